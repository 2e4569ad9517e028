//! One attempt: the order of its steps, and stops between them.

use std::time::Duration;

use ostraca_client::{Message, Recorded, Settled};
use ostraca_types::{ConsumerName, OutboxId, Slot};
use tokio::time::Instant;

use super::fake::{Call, World};
use crate::metrics::Metrics;
use crate::purge::{Failure, Finished, purge};
use crate::{OBJECT_DEADLINE, PURGE_DEADLINE, PurgeError, PurgeFault};

const VISIBILITY: Duration = Duration::from_secs(30);

/// One attempt. `None` if it was stopped on the way.
async fn attempt(
    world: &World,
    message: &Message,
    metrics: &Metrics,
) -> Option<Result<Finished, Failure>> {
    let (ports, consumer) = (world.ports(), ConsumerName::purge());
    tokio::select! {
        biased;
        result = purge(&ports, &consumer, message, metrics) => Some(result),
        () = world.stopped() => None,
    }
}

async fn undisturbed(world: &World, id: OutboxId) -> Result<Finished, Failure> {
    let message = world.deliver(id, VISIBILITY);
    let done = attempt(world, &message, &Metrics::new()).await;
    done.expect("nothing stops it")
}

#[tokio::test]
async fn i02_the_steps_come_in_their_order() {
    let world = World::new(1);
    let id = world.end(Slot(7), 0);
    let finished = undisturbed(&world, id).await.expect("it works");
    assert_eq!(
        finished,
        Finished {
            recorded: Recorded::Now,
            ran: true,
            settled: Settled::Done
        }
    );
    let order = [
        Call::Contains,
        Call::Delete,
        Call::Purge,
        Call::Record,
        Call::Ack,
    ];
    assert_eq!(world.calls(), order);
    assert_eq!((world.objects(), world.cached(), world.inbox()), (0, 0, 1));
}

/// INB-06: a duplicate is acked, or it would come again until it is a dead letter.
#[tokio::test]
async fn i02_a_finished_message_is_acked_without_effects() {
    let world = World::new(1);
    let id = world.end(Slot(7), 0);
    world.record_before(id);
    let finished = undisturbed(&world, id).await.expect("it works");
    assert!(!finished.ran && finished.settled == Settled::Done);
    assert_eq!(world.calls(), [Call::Contains, Call::Ack]);
    assert_eq!((world.objects(), world.cached()), (1, 1), "no effect");
    assert!(world.letter(id).acked);
}

/// INB-07: what is gone already is what was wanted.
#[tokio::test]
async fn w04_i02_a_missing_object_is_success_and_counted_on_the_first_attempt() {
    for (attempts, counted) in [(1, 1), (2, 0)] {
        let world = World::new(1);
        let id = world.end(Slot(7), 0);
        world.remove_object(id);
        let metrics = Metrics::new();
        let mut message = world.deliver(id, VISIBILITY);
        for _ in 1..attempts {
            message = world.deliver(id, VISIBILITY);
        }
        let done = attempt(&world, &message, &metrics).await;
        done.expect("nothing stops it").expect("success");
        assert!(world.letter(id).acked && world.cached() == 0);
        let line = format!("ostraca_worker_objects_missing_total {counted}\n");
        assert!(metrics.text().contains(&line), "{attempts} attempts");
    }
}

/// Two attempts at once: both did the effects, one row is there, both are finished.
#[tokio::test(start_paused = true)]
async fn i02_a_row_that_another_attempt_made_means_finished() {
    let world = World::new(1);
    let id = world.end(Slot(7), 0);
    world.break_with(|faults| faults.record_takes = Duration::from_secs(5));
    let other = async {
        tokio::time::sleep(Duration::from_secs(1)).await;
        assert!(world.calls().contains(&Call::Record), "it is under way");
        world.record_before(id);
    };
    let (finished, ()) = tokio::join!(undisturbed(&world, id), other);
    let finished = finished.expect("it works");
    assert!(finished.ran && finished.recorded == Recorded::Before);
    assert_eq!(finished.settled, Settled::Done);
    assert!(world.letter(id).acked && world.inbox() == 1);
}

/// Goal: a kill anywhere ends, after redelivery, with the object gone, the edge purged, one row,
/// and the message acked.
/// Method: stop the first attempt before and after every call, the second one too, and let the
/// third run; at each stop, an ack implies a row, and a row implies the effects.
#[tokio::test]
async fn i03_every_stop_between_two_steps_is_made_good_by_redelivery() {
    let world = World::new(1);
    let id = world.end(Slot(7), 0);
    undisturbed(&world, id).await.expect("it works");
    let points = world.points();
    assert_eq!(points, 10, "before and after each of five calls");
    for first in 0..points {
        for second in 0..=points {
            let world = World::new(1);
            let id = world.end(Slot(7), 0);
            let mut stops = [Some(first), Some(second), None].into_iter();
            while !world.letter(id).acked {
                let message = world.deliver(id, VISIBILITY);
                world.stop_at(stops.next().expect("the third attempt is not stopped"));
                if let Some(done) = attempt(&world, &message, &Metrics::new()).await {
                    done.expect("nothing fails");
                }
                world.check();
            }
            let left = (world.objects(), world.cached(), world.inbox());
            assert_eq!(left, (0, 0, 1), "first={first} second={second}");
        }
    }
}

#[tokio::test(start_paused = true)]
async fn i04_a_failing_effect_records_nothing_and_acks_nothing() {
    type Break = fn(&mut super::fake::Faults);
    let store: [Break; 3] = [
        |faults| faults.store_down = true,
        |faults| faults.store_hangs = true,
        |faults| faults.key_rejected = true,
    ];
    let edge: [Break; 2] = [
        |faults| faults.edge = Some(PurgeError::new(PurgeFault::Refused(405))),
        |faults| faults.edge_hangs = true,
    ];
    for change in store.into_iter().chain(edge) {
        let world = World::new(1);
        let id = world.end(Slot(7), 0);
        world.break_with(change);
        undisturbed(&world, id).await.expect_err("an effect fails");
        assert_eq!(world.inbox(), 0);
        assert!(!world.letter(id).acked);
        assert_eq!(world.cached(), 1, "no purge before the object is gone");
        let calls = world.calls();
        assert!(!calls.contains(&Call::Record) && !calls.contains(&Call::Ack));
    }
}

#[tokio::test(start_paused = true)]
async fn effects_have_deadlines() {
    let world = World::new(1);
    let id = world.end(Slot(7), 0);
    world.break_with(|faults| faults.store_hangs = true);
    let started = Instant::now();
    let failure = undisturbed(&world, id).await.expect_err("too slow");
    assert_eq!(started.elapsed(), OBJECT_DEADLINE);
    assert!(failure.is_store_down(), "{failure}");
    world.break_with(|faults| {
        faults.store_hangs = false;
        faults.edge_hangs = true;
    });
    let started = Instant::now();
    let failure = undisturbed(&world, id).await.expect_err("too slow");
    assert_eq!(started.elapsed(), PURGE_DEADLINE);
    assert!(failure.is_after_object(), "{failure}");
}

#[tokio::test]
async fn a_failed_look_has_no_effect_and_a_failed_record_no_ack() {
    let world = World::new(1);
    let id = world.end(Slot(7), 0);
    world.break_with(|faults| faults.contains_fails = true);
    let failure = undisturbed(&world, id).await.expect_err("no answer");
    assert!(matches!(failure, Failure::LookUp(_)));
    assert_eq!(world.calls(), [Call::Contains]);
    world.break_with(|faults| {
        faults.contains_fails = false;
        faults.record_fails = true;
    });
    let failure = undisturbed(&world, id).await.expect_err("no answer");
    assert!(matches!(failure, Failure::Record(_)));
    assert!(!world.calls().contains(&Call::Ack));
}
