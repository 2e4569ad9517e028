//! The worker as it runs: receiving, bounds, giving back, pausing, draining. Time is simulated.

use std::sync::Arc;
use std::time::Duration;

use ostraca_io::SeededEntropy;
use ostraca_types::contract::FAILURE_SIZE_MAX;
use ostraca_types::{ShardId, Slot};
use tokio::sync::oneshot;
use tokio::task::JoinHandle;
use tokio::time::{Instant, sleep, timeout};

use super::fake::World;
use crate::{Config, DRAIN_MAX, Observer, PurgeError, PurgeFault, Worker};

const fn secs(n: u64) -> Duration {
    Duration::from_secs(n)
}

struct Running {
    stop: oneshot::Sender<()>,
    task: JoinHandle<()>,
    observer: Observer,
}

impl Running {
    fn start(world: &World) -> Self {
        Self::with(world, Config::default())
    }

    fn with(world: &World, config: Config) -> Self {
        let entropy = Arc::new(SeededEntropy::new(11));
        let worker = Worker::new(config, world.ports(), entropy).expect("valid settings");
        let observer = worker.observer();
        let (stop, stopped) = oneshot::channel();
        let task = tokio::spawn(worker.run(async {
            let _ = stopped.await;
        }));
        Self {
            stop,
            task,
            observer,
        }
    }

    /// Stops it, and says how long that took.
    async fn stop(self) -> Duration {
        let asked = Instant::now();
        self.stop.send(()).expect("it runs");
        self.task.await.expect("no panic");
        asked.elapsed()
    }

    fn counts(&self, line: &str) -> bool {
        self.observer.metrics().contains(line)
    }
}

/// Waits until everything is acked.
async fn finished(world: &World, within: Duration) {
    let all = async {
        while world.unacked() > 0 {
            sleep(Duration::from_millis(10)).await;
        }
    };
    let done = timeout(within, all).await;
    assert!(done.is_ok(), "{} unacked after {within:?}", world.unacked());
    world.check();
    assert_eq!((world.objects(), world.cached()), (0, 0));
    assert_eq!(world.inbox(), world.letters().len());
}

fn ends(world: &World, n: u32) {
    for n in 0..n {
        world.end(Slot(u8::try_from(n % 256).expect("below")), n);
    }
}

#[tokio::test(start_paused = true)]
async fn every_message_of_every_shard_is_finished_once() {
    let world = World::new(3);
    ends(&world, 500);
    let running = Running::start(&world);
    finished(&world, secs(30)).await;
    for letter in world.letters() {
        assert_eq!(letter.message.attempt, 1);
    }
    assert!(running.counts("deliveries_total{outcome=\"done\"} 500\n"));
    running.stop().await;
}

#[tokio::test(start_paused = true)]
async fn o02_handles_go_back_as_they_came() {
    let world = World::new(2);
    ends(&world, 40);
    world.break_with(|faults| faults.edge = Some(PurgeError::new(PurgeFault::Busy(503))));
    let running = Running::start(&world);
    sleep(secs(5)).await;
    world.break_with(|faults| faults.edge = None);
    finished(&world, secs(30)).await;
    for letter in world.letters() {
        assert!(letter.issued.len() > 1, "the first attempts failed");
        assert_eq!(letter.issued, letter.returned);
    }
    running.stop().await;
}

/// Goal: no more attempts at a time than configured, and one busy shard can use them all.
#[tokio::test(start_paused = true)]
async fn attempts_in_flight_are_bounded() {
    for (shards, busy) in [(1, 1), (4, 4), (4, 1), (40, 40)] {
        let world = World::new(shards);
        for (n, slot) in (0..400).zip((0..busy).cycle()) {
            world.end(Slot(slot), n);
        }
        world.break_with(|faults| faults.delete_takes = secs(1));
        let running = Running::start(&world);
        let started = Instant::now();
        finished(&world, secs(60)).await;
        assert_eq!(world.deleting_max(), 16, "{shards} shards, {busy} busy");
        // 400 / 16 rounds.
        assert!(started.elapsed() < secs(27), "{shards} shards, {busy} busy");
        running.stop().await;
    }
}

/// Goal: an outage of the object store, however long, uses up hardly any attempts, and everything
/// is finished soon after it.
#[tokio::test(start_paused = true)]
async fn o04_an_outage_of_the_store_pauses_the_worker_as_a_whole() {
    for hangs in [false, true] {
        let world = World::new(2);
        ends(&world, 300);
        world.break_with(|faults| {
            faults.store_down = true;
            faults.store_hangs = hangs;
        });
        let running = Running::start(&world);
        sleep(secs(120)).await;
        assert!(running.counts("ostraca_worker_paused 1\n"));
        let (receives, probes) = (world.receives(), world.probes());
        sleep(secs(3600)).await;
        assert_eq!(world.receives(), receives, "nothing is asked for");
        let probes = world.probes() - probes;
        assert!((60..=125).contains(&probes), "every 30 to 60 s: {probes}");
        let attempts: u32 = world.letters().iter().map(|one| one.message.attempt).sum();
        assert!(
            attempts <= 32,
            "in flight or waiting when it failed: {attempts}"
        );
        assert!(world.letters().iter().all(|one| one.message.attempt <= 1));
        world.break_with(|faults| {
            faults.store_down = false;
            faults.store_hangs = false;
            faults.delete_takes = secs(1);
        });
        // One probe, one try, and then as many at a time as before.
        finished(&world, secs(100)).await;
        assert!(running.counts("ostraca_worker_paused 0\n"));
        running.stop().await;
    }
}

/// Goal: who waits for messages when the pause begins gets none that comes during it.
#[tokio::test(start_paused = true)]
async fn o04_a_pause_ends_the_waiting_for_messages() {
    let world = World::new(2);
    let running = Running::start(&world);
    sleep(secs(1)).await;
    world.break_with(|faults| faults.store_down = true);
    let first = world.end(Slot(0), 0);
    sleep(secs(1)).await;
    let second = world.end(Slot(1), 1);
    sleep(secs(60)).await;
    assert_eq!(world.letter(first).message.attempt, 1);
    assert_eq!(world.letter(second).message.attempt, 0);
    world.break_with(|faults| faults.store_down = false);
    finished(&world, secs(75)).await;
    running.stop().await;
}

/// Goal: a probe that is wrong costs one try a time, not one for each place.
/// Method: the probe works, deletes hang.
#[tokio::test(start_paused = true)]
async fn o04_after_a_probe_one_attempt_goes_first() {
    let world = World::new(1);
    ends(&world, 100);
    world.break_with(|faults| faults.store_hangs = true);
    let running = Running::start(&world);
    sleep(secs(3600)).await;
    let (deletes, probes) = (world.deletes(), world.probes());
    assert!(probes > 30, "it goes on trying: {probes}");
    assert!(deletes <= 16 + probes, "{deletes} for {probes} probes");
    let attempts: u32 = world.letters().iter().map(|one| one.message.attempt).sum();
    let allowed = 32 + u32::try_from(probes).expect("few");
    assert!(attempts <= allowed, "{attempts} for {probes} probes");
    world.break_with(|faults| faults.store_hangs = false);
    finished(&world, secs(90)).await;
    running.stop().await;
}

/// Goal: one object that the store does not take is no reason to pause.
#[tokio::test(start_paused = true)]
async fn an_object_of_its_own_trouble_pauses_nothing() {
    let world = World::new(1);
    ends(&world, 1);
    world.break_with(|faults| faults.key_rejected = true);
    let running = Running::start(&world);
    sleep(secs(30)).await;
    assert_eq!(world.probes(), 0);
    assert!(world.letters()[0].nacks.len() > 5, "it is tried again");
    running.stop().await;
}

#[tokio::test(start_paused = true)]
async fn i04_a_failed_attempt_is_given_back_with_its_reason() {
    let world = World::new(1);
    ends(&world, 1);
    world.break_with(|faults| faults.edge = Some(PurgeError::new(PurgeFault::Refused(405))));
    let running = Running::start(&world);
    sleep(secs(3)).await;
    let letter = world.letters().remove(0);
    assert!(!letter.acked && world.inbox() == 0);
    let (reason, delay) = &letter.nacks[0];
    assert!(
        reason.contains("edge") && reason.contains("405"),
        "{reason}"
    );
    assert!(reason.len() <= FAILURE_SIZE_MAX);
    assert_eq!(*delay, None, "with backoff");
    assert!(!running.counts("purge_errors_total{kind=\"refused\"} 0\n"));
    running.stop().await;
}

#[tokio::test(start_paused = true)]
async fn an_edge_that_asks_for_time_gets_it() {
    let world = World::new(1);
    let id = world.end(Slot(0), 0);
    let busy = PurgeError::new(PurgeFault::Busy(429)).with_retry_after(secs(77));
    world.break_with(|faults| faults.edge = Some(busy));
    let running = Running::start(&world);
    sleep(secs(70)).await;
    let letter = world.letter(id);
    assert_eq!(letter.nacks.len(), 1);
    assert_eq!(letter.nacks[0].1, Some(secs(77)));
    running.stop().await;
}

/// Goal: after the effects are recorded the message is never given back, even when the ack fails.
#[tokio::test(start_paused = true)]
async fn i02_a_failed_ack_waits_for_redelivery_and_is_then_only_acked() {
    let world = World::new(1);
    let id = world.end(Slot(0), 0);
    world.break_with(|faults| faults.ack_fails = true);
    let running = Running::start(&world);
    sleep(secs(10)).await;
    assert!(world.letter(id).nacks.is_empty() && world.inbox() == 1);
    world.break_with(|faults| faults.ack_fails = false);
    finished(&world, secs(60)).await;
    assert_eq!(world.deletes(), 1);
    assert!(running.counts("deliveries_total{outcome=\"unacked\"} 1\n"));
    running.stop().await;
}

#[tokio::test(start_paused = true)]
async fn w01_a_failed_record_is_counted_and_given_back() {
    let world = World::new(1);
    let id = world.end(Slot(0), 0);
    world.break_with(|faults| faults.record_fails = true);
    let running = Running::start(&world);
    sleep(Duration::from_millis(500)).await;
    assert!(running.counts("ostraca_worker_inbox_record_failures_total 1\n"));
    assert_eq!(world.letter(id).nacks.len(), 1);
    world.break_with(|faults| faults.record_fails = false);
    finished(&world, secs(30)).await;
    running.stop().await;
}

/// Goal: an attempt that takes longer than its visibility is not delivered a second time.
#[tokio::test(start_paused = true)]
async fn o03_long_attempts_are_extended() {
    let world = World::new(1);
    let id = world.end(Slot(0), 0);
    world.break_with(|faults| {
        faults.delete_takes = secs(9);
        faults.record_takes = secs(100);
    });
    let running = Running::start(&world);
    finished(&world, secs(120)).await;
    let letter = world.letter(id);
    assert_eq!(letter.message.attempt, 1);
    assert!(letter.extends >= 10, "{}", letter.extends);
    running.stop().await;
}

/// Goal: so is one that waits for its turn.
#[tokio::test(start_paused = true)]
async fn o03_waiting_messages_are_extended() {
    let world = World::new(1);
    ends(&world, 12);
    world.break_with(|faults| faults.record_takes = secs(50));
    let config = Config {
        concurrency: 2,
        ..Config::default()
    };
    let running = Running::with(&world, config);
    finished(&world, secs(400)).await;
    for letter in world.letters() {
        assert_eq!(letter.message.attempt, 1, "delivered once");
    }
    running.stop().await;
}

#[tokio::test(start_paused = true)]
async fn a_stop_finishes_what_is_in_flight_and_takes_nothing_more() {
    let world = World::new(2);
    ends(&world, 200);
    world.break_with(|faults| faults.delete_takes = secs(3));
    let running = Running::start(&world);
    sleep(secs(1)).await;
    let receives = world.receives();
    let took = running.stop().await;
    assert!(took > secs(1) && took < DRAIN_MAX, "{took:?}");
    assert_eq!(world.receives(), receives);
    let delivered = world
        .letters()
        .into_iter()
        .filter(|one| !one.issued.is_empty());
    let delivered: Vec<_> = delivered.collect();
    assert!(delivered.len() >= 16 && delivered.iter().all(|one| one.acked));
    world.check();
}

#[tokio::test(start_paused = true)]
async fn a_drain_has_a_limit_and_the_rest_is_delivered_again() {
    let world = World::new(1);
    ends(&world, 3);
    world.break_with(|faults| faults.record_takes = secs(1000));
    let running = Running::start(&world);
    sleep(secs(1)).await;
    let took = running.stop().await;
    assert!(took <= DRAIN_MAX + secs(1), "{took:?}");
    assert_eq!(world.unacked(), 3);
    world.break_with(|faults| faults.record_takes = Duration::ZERO);
    let running = Running::start(&world);
    finished(&world, secs(60)).await;
    running.stop().await;
}

#[tokio::test(start_paused = true)]
async fn an_idle_worker_stops_at_once() {
    let running = Running::start(&World::new(2));
    sleep(secs(5)).await;
    assert!(running.stop().await < Duration::from_millis(100));
}

/// Goal: a shard that is gone delays nothing of the others (l02), and is served once it is back.
#[tokio::test(start_paused = true)]
async fn l02_a_dead_shard_delays_only_its_own() {
    let world = World::new(2);
    ends(&world, 100);
    world.break_with(|faults| {
        faults.dead_shards.insert(ShardId(0));
    });
    let running = Running::start(&world);
    sleep(secs(20)).await;
    assert_eq!(world.unacked(), 50);
    world.break_with(|faults| faults.dead_shards.clear());
    finished(&world, secs(10)).await;
    running.stop().await;
}

#[tokio::test(start_paused = true)]
async fn it_starts_before_any_shard_does() {
    let world = World::new(2);
    ends(&world, 10);
    world.break_with(|faults| faults.no_table = true);
    let running = Running::start(&world);
    sleep(secs(60)).await;
    world.break_with(|faults| faults.no_table = false);
    finished(&world, secs(10)).await;
    running.stop().await;
}
