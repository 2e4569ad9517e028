//! The shard over a simulated disk: what was answered survives, and nothing is answered early.

use std::sync::mpsc;

use ostraca_io::{Entropy as _, ManualClock, Page, SeededEntropy, SimDisk, Unsynced};
use ostraca_types::{ErrorKind, RequestHash, ShardId, StoreId};

use super::rounds::IDLE_MARK;
use super::*;
use crate::command::tests::sample;
use crate::core::BATCH_ENTRIES_MAX;
use ostraca_index::EndCause;

mod panics;

const START: Timestamp = Timestamp(1_700_000_000_000);
const IDENTITY: Identity = Identity {
    store: StoreId([7; 16]),
    shard: ShardId(0),
};

/// Small segments, so that a short workload rolls.
fn options() -> Options {
    let mut options = Options::default();
    options.log.segment_size_first = ostraca_wal::SEGMENT_SIZE_MIN;
    options.log.segment_size = ostraca_wal::SEGMENT_SIZE_MIN;
    options
}

/// The shard's epoch page, made where it is missing.
fn page(disk: &SimDisk) -> Arc<dyn Page> {
    if disk.page().load(0) == 0 {
        let page = ostraca_wal::new_epoch_page(&IDENTITY);
        for (word, bytes) in page.chunks_exact(8).enumerate() {
            disk.damage_page(word, u64::from_le_bytes(bytes.try_into().expect("eight")));
        }
    }
    disk.page()
}

fn open_core(disk: &SimDisk, clock: &ManualClock) -> Result<Core<SimDisk>, OpenError> {
    let clock: Arc<dyn Clock> = Arc::new(clock.clone());
    let entropy = SeededEntropy::new(1);
    Core::open(
        disk.clone(),
        &page(disk),
        IDENTITY,
        clock,
        &entropy,
        &options(),
    )
    .map(|(core, _)| core)
}

fn open(
    disk: &SimDisk,
    clock: &ManualClock,
) -> Result<(Shard, ShardThread, OpenReport), OpenError> {
    let clock: Arc<dyn Clock> = Arc::new(clock.clone());
    Shard::open(
        disk.clone(),
        &page(disk),
        IDENTITY,
        clock,
        &SeededEntropy::new(1),
        &options(),
    )
}

fn create(n: u8) -> Create {
    Create {
        begun_at: START,
        created_at: START,
        expires_at: START.plus(Duration::from_secs(3600)),
        key_expires_at: START.plus(Duration::from_secs(90_000)),
        ..sample(n)
    }
}

fn end(n: u8) -> Command {
    Command::End(End {
        paste_id: sample(n).paste_id,
        cause: EndCause::Deleted,
    })
}

type Answers = Arc<Mutex<Vec<(Command, Result<Answer, Error>)>>>;

/// Work whose answer lands in `answers`.
fn work(command: Command, answers: &Answers) -> Work {
    let (answers, asked) = (Arc::clone(answers), command.clone());
    let reply: Reply = Box::new(move |answer| answers.lock().push((asked, answer)));
    Work {
        command,
        reply,
        size: 1,
        until: None,
    }
}

/// Batches of creates, retries under another request, and ends; some of a single command.
fn batches() -> Vec<Vec<Command>> {
    let conflicting = |n| Create {
        request_hash: RequestHash([0xaa; 32]),
        ..create(n)
    };
    (0..6)
        .map(|batch| {
            let first = batch * 4;
            let mut commands: Vec<_> = (first..first + 4)
                .map(|n| Command::Create(Box::new(create(n))))
                .collect();
            commands.push(Command::Create(Box::new(conflicting(first))));
            if batch > 0 {
                commands.push(end(first - 1));
            }
            commands
        })
        .chain((24..28).map(|n| vec![Command::Create(Box::new(create(n)))]))
        .collect()
}

/// What a run handed to the shard, and what it was answered.
struct Run {
    asked: Vec<Command>,
    answers: Vec<(Command, Result<Answer, Error>)>,
}

/// Runs the batches until the disk fails.
fn run_batches(disk: &SimDisk, clock: &ManualClock) -> Run {
    let answers = Answers::default();
    let mut asked = Vec::new();
    if let Ok(mut core) = open_core(disk, clock) {
        for batch in batches() {
            asked.extend(batch.iter().cloned());
            let mut queue = batch
                .into_iter()
                .map(|command| work(command, &answers))
                .collect();
            if core.commit(&mut queue).and_then(|()| core.mark()).is_err() {
                break;
            }
        }
    }
    let answers = Arc::try_unwrap(answers).map(Mutex::into_inner);
    Run {
        asked,
        answers: answers.unwrap_or_else(|_| panic!("all were answered")),
    }
}

/// Goal: every answer survives a power cut anywhere, refusals included, and a create is there
/// with all its rows or with none.
/// Method: count the workload's disk operations, cut the power at each, with each fate.
#[test]
fn d01_k08_f05_answers_survive_a_cut_at_every_operation() {
    let clock = ManualClock::new(START);
    let disk = SimDisk::new(1);
    run_batches(&disk, &clock);
    for cut_at in 0..disk.operations() {
        for fate in [
            Unsynced::Lost,
            Unsynced::Kept,
            Unsynced::Torn,
            Unsynced::Random,
        ] {
            let disk = SimDisk::new(cut_at);
            disk.power_cut_at(cut_at, fate);
            let Run { asked, answers } = run_batches(&disk, &clock);
            let core = open_core(&disk.restarted(), &clock).expect("a power cut is recoverable");
            let index = &core.inner().index;
            let seen = format!("cut_at={cut_at} fate={fate:?}");
            let is_end = |command: &Command, id: &PasteId| matches!(command, Command::End(end) if end.paste_id == *id);
            let asked_to_end = |id: &PasteId| asked.iter().any(|command| is_end(command, id));
            let ended = |id: &PasteId| {
                answers
                    .iter()
                    .any(|(command, answer)| is_end(command, id) && answer.is_ok())
            };
            for (asked, answer) in &answers {
                let Ok(answer) = answer else { continue };
                match (asked, &answer.outcome) {
                    (Command::Create(asked), Outcome::Created) => {
                        assert!(
                            index.idempotency(&asked.key_digest).is_some(),
                            "{seen}: a key is lost"
                        );
                        assert!(
                            asked_to_end(&asked.paste_id) || index.has_paste(&asked.paste_id),
                            "{seen}: a paste is lost"
                        );
                    }
                    (Command::Create(asked), Outcome::Conflict) => {
                        let row = index.idempotency(&asked.key_digest);
                        let stands = row.is_some_and(|row| row.request_hash != asked.request_hash);
                        assert!(stands, "{seen}: a refusal was undone");
                    }
                    (Command::End(asked), Outcome::Ended) => {
                        assert!(
                            !index.has_paste(&asked.paste_id),
                            "{seen}: an ended paste is back"
                        );
                    }
                    other => panic!("{seen}: {other:?}"),
                }
            }
            for command in batches().iter().flatten() {
                let Command::Create(asked) = command else {
                    continue;
                };
                let (key, paste) = (
                    index.idempotency(&asked.key_digest),
                    index.paste(&asked.paste_id),
                );
                if let Some(paste) = paste {
                    assert!(key.is_some(), "{seen}: a paste without its key");
                    assert_eq!(paste.outbox_id, asked.outbox_id, "{seen}");
                    assert!(!ended(&asked.paste_id), "{seen}");
                }
            }
            let counts = index.counts();
            assert_eq!(
                counts.pastes + counts.outbox.ready,
                counts.idempotency,
                "{seen}: rows of a create differ"
            );
        }
    }
}

#[test]
fn f05_nothing_is_answered_when_the_sync_fails() {
    let clock = ManualClock::new(START);
    let disk = SimDisk::new(1);
    let mut core = open_core(&disk, &clock).expect("new");
    let answers = Answers::default();
    let conflicting = Create {
        request_hash: RequestHash([0xaa; 32]),
        ..create(1)
    };
    let mut queue: VecDeque<_> = [create(1), conflicting]
        .into_iter()
        .map(|create| work(Command::Create(Box::new(create)), &answers))
        .collect();
    disk.fail_next_sync();
    core.commit(&mut queue).expect_err("the sync failed");
    // Neither the create nor the refusal, which depends on it.
    let told: Vec<_> = answers
        .lock()
        .iter()
        .map(|(_, answer)| answer.clone())
        .collect();
    assert_eq!(told, [Err(Error::Unknown), Err(Error::Unknown)]);
    assert!(
        core.inner()
            .index
            .idempotency(&create(1).key_digest)
            .is_none()
    );
}

#[test]
fn d03_a_failed_sync_stops_the_shard_and_recovery_reads_the_disk() {
    let clock = ManualClock::new(START);
    let disk = SimDisk::new(1);
    let (shard, thread, _) = open(&disk, &clock).expect("new");
    let ask = |shard: &Shard, n| {
        let (sender, receiver) = mpsc::sync_channel(1);
        shard
            .create(
                Box::new(create(n)),
                Box::new(move |answer| sender.send(answer).expect("asked")),
            )
            .map(|()| receiver.recv().expect("an answer"))
    };
    assert_eq!(
        ask(&shard, 1).expect("queued").expect("committed").outcome,
        Outcome::Created
    );
    // The idle mark or a clock record may meet the failure first; either way nothing is claimed. Where
    // it is the next segment, which is prepared beside, that is tried again and the log goes on.
    let meets = |n| {
        disk.fail_next_sync();
        (n, ask(&shard, n))
    };
    let mut tries = (2..12).map(meets);
    let (failed, told) = tries
        .find(|(_, told)| !matches!(told, Ok(Ok(_))))
        .expect("a sync of the log failed");
    assert!(
        matches!(
            told,
            Ok(Err(Error::Unknown | Error::Closed)) | Err(Error::Closed)
        ),
        "{told:?}"
    );
    thread.join().expect_err("the log stopped");
    assert_eq!(shard.paste(&create(1).paste_id), Err(Error::Closed));
    assert!(shard.status().stopped_by.is_some());
    assert!(matches!(ask(&shard, 12), Err(Error::Closed)));

    // The process starts again, on what the disk has and not on what its cache shows.
    let (shard, thread, _) = open(&disk.restarted(), &clock).expect("recovered");
    for acknowledged in 1..failed {
        let paste = shard.paste(&create(acknowledged).paste_id);
        assert!(paste.expect("open").is_some(), "{acknowledged}");
    }
    let again = ask(&shard, failed).expect("queued");
    let outcome = again.expect("committed").outcome;
    assert!(
        matches!(outcome, Outcome::Created | Outcome::Replayed(_)),
        "{outcome:?}"
    );
    shard.close();
    thread.join().expect("closed");
}

#[test]
fn r01_a_paste_is_visible_until_its_expiry_and_not_at_it() {
    let clock = ManualClock::new(START);
    let (shard, thread, _) = open(&SimDisk::new(1), &clock).expect("new");
    let (sender, receiver) = mpsc::sync_channel(1);
    let reply = Box::new(move |answer| sender.send(answer).expect("asked"));
    shard.create(Box::new(create(1)), reply).expect("queued");
    receiver.recv().expect("an answer").expect("committed");
    let at = |shard: &Shard, instant: Timestamp| {
        clock.advance(instant.since(clock.wall()));
        while shard.now() < instant {
            std::thread::yield_now();
        }
        shard.paste(&create(1).paste_id).expect("open").is_some()
    };
    let expiry = create(1).expires_at;
    assert!(at(&shard, Timestamp(expiry.0 - 1)));
    assert!(!at(&shard, expiry));
    shard.close();
    thread.join().expect("closed");
}

#[test]
fn d06_a_restart_never_shows_an_earlier_instant() {
    let clock = ManualClock::new(START);
    let disk = SimDisk::new(1);
    let core = open_core(&disk, &clock).expect("new");
    clock.advance(Duration::from_secs(7));
    let seen = core.inner().clock.now();
    clock.step_wall(Timestamp(START.0 - 3_600_000));
    let core = open_core(&disk.crash(), &clock).expect("recovered");
    assert_eq!(core.inner().clock.now(), seen);
    clock.reboot(Duration::from_secs(1));
    let core = open_core(&disk.restarted(), &clock).expect("recovered");
    assert!(core.inner().clock.now() >= seen);
}

/// Asks the shard and waits for the answer.
fn ask(shard: &Shard, command: Command) -> Result<Answer, Error> {
    let (sender, receiver) = mpsc::sync_channel(1);
    let reply: Reply = Box::new(move |answer| sender.send(answer).expect("asked"));
    match command {
        Command::Create(create) => shard.create(create, reply)?,
        Command::End(end) => shard.end(end, reply)?,
        other => shard.deliver(other, reply)?,
    }
    receiver.recv().expect("an answer")
}

/// A create with a key and an id of its own, that lives for `lifetime`.
fn another(n: u32, now: Timestamp, lifetime: Duration) -> Command {
    let mut create = create(1);
    create.key_digest.0[1..5].copy_from_slice(&n.to_le_bytes());
    create.begun_at = now;
    create.created_at = now;
    create.expires_at = now.plus(lifetime);
    create.key_expires_at = now.plus(Duration::from_secs(90_000));
    let entropy = SeededEntropy::new(n.into());
    create.paste_id = PasteId::mint(create.key_digest.slot(), |place| entropy.fill(place));
    create.outbox_id = OutboxId::mint(create.key_digest.slot(), |place| entropy.fill(place));
    Command::Create(Box::new(create))
}

/// A full disk, as the shard's thread meets it: idle marks, the clock and ends included.
#[test]
fn d04_a_full_disk_stops_creates_and_nothing_else() {
    let clock = ManualClock::new(START);
    let disk = SimDisk::new(1);
    let (shard, thread, _) = open(&disk, &clock).expect("new");
    disk.set_capacity(0);
    let lifetime = Duration::from_secs(60);
    let mut made = 0;
    let refused = loop {
        match ask(&shard, another(made, shard.now(), lifetime)) {
            Ok(_) => made += 1,
            Err(err) => break err,
        }
    };
    assert_eq!(refused, Error::Full);
    // Well past idle marks, and the clock goes on.
    for _ in 0..3 {
        clock.advance(Duration::from_secs(25));
        let at = clock.wall();
        while shard.now() < at {
            std::thread::yield_now();
        }
    }
    assert_eq!(shard.status().trouble, Some(Trouble::DiskFull));
    // Everything was due meanwhile: the ends went through, and so do deliveries.
    while shard.status().counts.pastes > 0 {
        std::thread::yield_now();
    }
    assert_eq!(shard.status().counts.outbox.ready, u64::from(made));
    let deliver = Command::Deliver(crate::Deliver {
        consumer: ConsumerName::purge(),
        max: 1,
        visibility: Duration::from_secs(30),
        jitter: 1,
    });
    let delivered = ask(&shard, deliver).expect("out of the reserve");
    assert!(matches!(delivered.outcome, Outcome::Delivered(messages) if messages.len() == 1));
    assert_eq!(
        ask(&shard, another(made, shard.now(), lifetime)),
        Err(Error::Full)
    );

    disk.set_capacity(u64::MAX);
    let outcome = loop {
        match ask(&shard, another(made, shard.now(), lifetime)) {
            // The next try is a matter of seconds.
            Err(Error::Full) => clock.advance(Duration::from_secs(1)),
            other => break other.expect("committed").outcome,
        }
    };
    assert_eq!(outcome, Outcome::Created);
    assert_eq!(shard.status().trouble, None);
    shard.close();
    thread.join().expect("closed");
}

/// A machine that slept between a begin and its commit: the first thing to move is the clock.
#[test]
fn p03_a_commit_after_a_long_pause_is_judged_by_the_time_that_passed() {
    let clock = ManualClock::new(START);
    let (shard, thread, _) = open(&SimDisk::new(1), &clock).expect("new");
    let begun = another(1, START, Duration::from_secs(7 * 86_400));
    clock.advance(Duration::from_secs(25 * 3600));
    assert_eq!(
        ask(&shard, begun).expect("decided").outcome,
        Outcome::TooLate
    );
    shard.close();
    thread.join().expect("closed");
}

/// 20 syncs in a row that wait until they are let go.
#[test]
fn l01_a_shard_that_cannot_keep_up_refuses_at_once() {
    let clock = ManualClock::new(START);
    let (mut core, mut work_left) = (
        open_core(&SimDisk::new(1), &clock).expect("new"),
        VecDeque::new(),
    );
    let queue = &Arc::clone(core.inner()).queue;
    let answers = Answers::default();
    let mut accepted = 0;
    for round in 0..10u32 {
        for n in 0..20_000 {
            let next = work(
                another(round * 20_000 + n, START, IDLE_MARK * 100_000),
                &answers,
            );
            accepted += usize::from(queue.push(next).is_ok());
        }
        let room = BATCH_ENTRIES_MAX - work_left.len();
        queue.drain(&mut work_left, room, Duration::ZERO);
        core.commit(&mut work_left).expect("a good disk");
        let waiting = accepted - answers.lock().len();
        assert!(
            waiting <= crate::queue::ENTRIES_MAX + BATCH_ENTRIES_MAX,
            "{waiting} wait"
        );
    }
}

/// A command whose caller gave up while it waited leaves nothing; one that was taken into a batch
/// in time is decided like any other.
#[test]
fn l01_what_nobody_waits_for_any_more_is_not_worked_on() {
    let clock = ManualClock::new(START);
    let mut core = open_core(&SimDisk::new(1), &clock).expect("new");
    let answers = Answers::default();
    let now = clock.boot().elapsed;
    let in_time = now + Duration::from_millis(2);
    let mut queued: VecDeque<_> = (0..4)
        .map(|n| {
            let mut work = work(another(n, START, IDLE_MARK * 100_000), &answers);
            work.until = (n % 2 == 1).then_some(in_time);
            work
        })
        .collect();
    let commits = |core: &Core<SimDisk>| core.inner().commits.load(Ordering::Relaxed);
    let late = queued.split_off(2);
    clock.advance(Duration::from_millis(1));
    core.commit(&mut queued).expect("a good disk");
    assert_eq!(commits(&core), 2, "there was a millisecond left");

    let mut queued = late;
    clock.advance(Duration::from_millis(1));
    core.commit(&mut queued).expect("a good disk");
    assert_eq!(commits(&core), 3);
    let mut answers = answers.lock().drain(..).collect::<Vec<_>>();
    assert_eq!(answers.len(), 4, "each is answered");
    answers.retain(|(_, answer)| answer.is_err());
    let [(Command::Create(refused), Err(err))] = &answers[..] else {
        panic!("{answers:?}")
    };
    assert_eq!((*err, err.kind()), (Error::Late, ErrorKind::Busy));
    let row = core.inner().index.idempotency(&refused.key_digest);
    assert!(row.is_none(), "the key is free");
}

#[test]
fn r04_k14_expired_pastes_end_by_themselves_and_keys_stay() {
    let clock = ManualClock::new(START);
    let disk = SimDisk::new(1);
    let (shard, thread, _) = open(&disk, &clock).expect("new");
    for n in 0..50u32 {
        let lifetime = Duration::from_secs(60 + u64::from(n));
        ask(&shard, another(n, START, lifetime)).expect("committed");
    }
    shard.close();
    thread.join().expect("closed");
    // Down for an hour: all of them are due at the start.
    clock.advance(Duration::from_secs(3600));
    let (shard, thread, _) = open(&disk.crash(), &clock).expect("recovered");
    while shard.status().counts.pastes > 0 {
        std::thread::yield_now();
    }
    let counts = shard.status().counts;
    assert_eq!((counts.idempotency, counts.outbox.ready), (50, 50));
    shard.close();
    thread.join().expect("closed");
}

#[test]
fn d06_a_leap_holds_back_ends_until_it_is_confirmed() {
    let clock = ManualClock::new(START);
    let (shard, thread, _) = open(&SimDisk::new(1), &clock).expect("new");
    ask(&shard, another(1, START, Duration::from_secs(3600))).expect("committed");
    clock.step_wall(START.plus(Duration::from_secs(86_400)));
    clock.advance(Duration::from_secs(15));
    while shard.status().trouble != Some(Trouble::ClockLeapt) {
        std::thread::yield_now();
    }
    // Creates and reads go on under the clock that did not step.
    let outcome = ask(&shard, another(2, shard.now(), Duration::from_secs(3600)));
    assert_eq!(outcome.expect("decided").outcome, Outcome::Created);
    assert_eq!(shard.now(), START.plus(Duration::from_secs(15)));
    assert_eq!(shard.status().counts.pastes, 2);
    shard.confirm_clock();
    while shard.status().counts.pastes > 0 {
        std::thread::yield_now();
    }
    assert_eq!(shard.status().trouble, None);
    shard.close();
    thread.join().expect("closed");
}

/// The life of messages goes through the log: a restart knows what was delivered, acked and
/// recorded.
#[test]
fn o03_i05_deliveries_acks_and_inbox_rows_survive_a_restart() {
    let clock = ManualClock::new(START);
    let disk = SimDisk::new(1);
    let (shard, thread, _) = open(&disk, &clock).expect("new");
    for n in 0..3u32 {
        ask(&shard, another(n, START, Duration::from_secs(3600))).expect("committed");
    }
    let ids: Vec<_> = (0..3u32)
        .map(|n| match another(n, START, IDLE_MARK) {
            Command::Create(create) => create.paste_id,
            other => panic!("{other:?}"),
        })
        .collect();
    for paste_id in ids {
        let end = End {
            paste_id,
            cause: EndCause::Deleted,
        };
        assert_eq!(
            ask(&shard, Command::End(end)).expect("decided").outcome,
            Outcome::Ended
        );
    }
    let deliver = |shard: &Shard, max| {
        let command = Command::Deliver(crate::Deliver {
            consumer: ConsumerName::purge(),
            max,
            visibility: Duration::from_secs(30),
            jitter: 1,
        });
        match ask(shard, command).expect("decided").outcome {
            Outcome::Delivered(messages) => messages,
            other => panic!("{other:?}"),
        }
    };
    let first = deliver(&shard, 2);
    let record = Command::Inbox(crate::Inbox {
        consumer: ConsumerName::purge(),
        outbox_id: first[0].row.outbox_id,
        expires_at: shard.now().plus(Duration::from_secs(8 * 86_400)),
    });
    assert_eq!(
        ask(&shard, record.clone()).expect("decided").outcome,
        Outcome::Recorded
    );
    let ack = |shard: &Shard, attempt| {
        let ack = crate::Ack {
            consumer: ConsumerName::purge(),
            attempts: vec![attempt],
        };
        ask(shard, Command::Ack(ack)).expect("decided").outcome
    };
    use ostraca_index::Settled;
    assert_eq!(
        ack(&shard, first[0].id),
        Outcome::Settled(vec![Settled::Done])
    );
    let fingerprint = shard.fingerprint();
    shard.close();
    thread.join().expect("closed");

    let (shard, thread, _) = open(&disk.crash(), &clock).expect("recovered");
    assert_eq!(shard.fingerprint(), fingerprint);
    let purge = ConsumerName::purge();
    assert!(
        shard
            .inbox_contains(&purge, first[0].row.outbox_id)
            .expect("open")
    );
    assert_eq!(
        ask(&shard, record).expect("decided").outcome,
        Outcome::AlreadyRecorded
    );
    // What was in flight is in flight, and its handle is good; the third was never delivered.
    let rest = deliver(&shard, 10);
    assert_eq!(rest.len(), 1);
    assert_eq!(
        ack(&shard, first[1].id),
        Outcome::Settled(vec![Settled::Done])
    );
    assert_eq!(
        ack(&shard, first[0].id),
        Outcome::Settled(vec![Settled::Gone])
    );
    shard.close();
    thread.join().expect("closed");
}

/// A clock of which no two looks are the same.
struct TickingClock(ManualClock);

impl Clock for TickingClock {
    fn wall(&self) -> Timestamp {
        self.0.advance(Duration::from_millis(1));
        self.0.wall()
    }

    fn boot(&self) -> ostraca_io::BootTime {
        self.0.advance(Duration::from_millis(1));
        self.0.boot()
    }
}

/// What is applied is judged by the time that its record carries, and by no other look at a clock.
#[test]
fn the_same_log_gives_the_same_rows_whatever_the_clock_does_meanwhile() {
    let disk = SimDisk::new(1);
    let clock = ManualClock::new(START);
    let ticking: Arc<dyn Clock> = Arc::new(TickingClock(clock.clone()));
    let entropy = SeededEntropy::new(1);
    let opened = Core::open(
        disk.clone(),
        &page(&disk),
        IDENTITY,
        ticking,
        &entropy,
        &options(),
    );
    let (mut core, _) = opened.expect("new");
    let answers = Answers::default();
    for batch in batches() {
        let mut queue = batch
            .into_iter()
            .map(|command| work(command, &answers))
            .collect();
        core.commit(&mut queue).expect("a good disk");
    }
    let fingerprint = core.inner().index.fingerprint();
    let reopened = open_core(&disk.crash(), &clock).expect("recovered");
    assert_eq!(reopened.inner().index.fingerprint(), fingerprint);
    assert!(reopened.inner().claim.epoch() > core.inner().claim.epoch());
}

/// Ends must not use up what their messages need, so that objects can go and room comes back.
#[test]
fn d04_ends_leave_room_for_deliveries_acks_and_inbox_records() {
    let clock = ManualClock::new(START);
    let disk = SimDisk::new(1);
    let mut options = options();
    options.log.segment_size_first = 4 << 20;
    options.log.segment_size = 4 << 20;
    let shared: Arc<dyn Clock> = Arc::new(clock.clone());
    let entropy = SeededEntropy::new(1);
    let opened = Core::open(
        disk.clone(),
        &page(&disk),
        IDENTITY,
        shared,
        &entropy,
        &options,
    );
    let (mut core, _) = opened.expect("new");
    disk.set_capacity(0);
    let answers = Answers::default();
    let mut made = 0;
    while !answers.lock().iter().any(|(_, answer)| answer.is_err()) {
        let creates = (0..500).map(|n| another(made + n, START, Duration::from_secs(60)));
        let mut queue = creates.map(|create| work(create, &answers)).collect();
        core.commit(&mut queue).expect("a full disk stops nothing");
        made += 500;
    }
    clock.advance(Duration::from_secs(61));
    core.tend().expect("the clock goes on");
    for _ in 0..1000 {
        core.commit(&mut VecDeque::new())
            .expect("a full disk stops nothing");
    }
    assert!(!core.has_due_ends(), "the thread would go round and round");
    let counts = core.inner().index.counts();
    assert!(counts.pastes > 0 && counts.outbox.ready > 0, "{counts:?}");
    answers.lock().clear();
    let mut ask = |command| {
        let mut queue = VecDeque::from([work(command, &answers)]);
        core.commit(&mut queue).expect("a full disk stops nothing");
        let (_, answer) = answers.lock().pop().expect("an answer");
        answer.expect("out of the reserve").outcome
    };
    let purge = ConsumerName::purge;
    for _ in 0..100 {
        let delivered = ask(Command::Deliver(crate::Deliver {
            consumer: purge(),
            max: 1,
            visibility: Duration::from_secs(30),
            jitter: 1,
        }));
        let Outcome::Delivered(messages) = delivered else {
            panic!("{delivered:?}")
        };
        let recorded = ask(Command::Inbox(crate::Inbox {
            consumer: purge(),
            outbox_id: messages[0].row.outbox_id,
            expires_at: START.plus(Duration::from_secs(8 * 86_400)),
        }));
        assert_eq!(recorded, Outcome::Recorded);
        let settled = ask(Command::Ack(crate::Ack {
            consumer: purge(),
            attempts: vec![messages[0].id],
        }));
        assert_eq!(
            settled,
            Outcome::Settled(vec![ostraca_index::Settled::Done])
        );
    }
}
