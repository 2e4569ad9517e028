//! The shard over a simulated disk: what was answered survives, and nothing is answered early.

use std::sync::mpsc;

use ostraca_io::{ManualClock, SeededEntropy, SimDisk, Unsynced};
use ostraca_types::{RequestHash, ShardId, StoreId};

use super::*;
use crate::command::tests::sample;
use ostraca_index::EndCause;

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

fn open_core(disk: &SimDisk, clock: &ManualClock) -> Result<Core<SimDisk>, OpenError> {
    let clock: Arc<dyn Clock> = Arc::new(clock.clone());
    let entropy = SeededEntropy::new(1);
    Core::open(disk.clone(), IDENTITY, clock, &entropy, &options()).map(|(core, _)| core)
}

fn open(
    disk: &SimDisk,
    clock: &ManualClock,
) -> Result<(Shard, ShardThread, OpenReport), OpenError> {
    let clock: Arc<dyn Clock> = Arc::new(clock.clone());
    Shard::open(
        disk.clone(),
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

/// Runs the batches until the disk fails; returns what was answered.
fn run_batches(disk: &SimDisk, clock: &ManualClock) -> Vec<(Command, Result<Answer, Error>)> {
    let answers = Answers::default();
    if let Ok(mut core) = open_core(disk, clock) {
        for batch in batches() {
            let mut queue = batch
                .into_iter()
                .map(|command| work(command, &answers))
                .collect();
            if core.commit(&mut queue).and_then(|()| core.mark()).is_err() {
                break;
            }
        }
    }
    Arc::try_unwrap(answers)
        .map(Mutex::into_inner)
        .unwrap_or_else(|_| panic!("all were answered"))
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
            let answers = run_batches(&disk, &clock);
            let core = open_core(&disk.restarted(), &clock).expect("a power cut is recoverable");
            let index = &core.inner().index;
            let seen = format!("cut_at={cut_at} fate={fate:?}");
            let ended = |n: &PasteId| {
                answers.iter().any(|(asked, answer)| {
                    matches!(asked, Command::End(end) if end.paste_id == *n) && answer.is_ok()
                })
            };
            for (asked, answer) in &answers {
                let Ok(answer) = answer else { continue };
                match (asked, &answer.outcome) {
                    (Command::Create(asked), Outcome::Created) => {
                        assert!(
                            index.idempotency(&asked.key_digest).is_some(),
                            "{seen}: a key is lost"
                        );
                        let maybe_ended = batches().iter().flatten().any(
                            |command| matches!(command, Command::End(end) if end.paste_id == asked.paste_id),
                        );
                        assert!(
                            maybe_ended || index.has_paste(&asked.paste_id),
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
                counts.pastes + counts.ready,
                counts.idempotency,
                "{seen}: rows of a create differ"
            );
        }
    }
}

#[test]
fn the_same_log_gives_the_same_rows() {
    let clock = ManualClock::new(START);
    let disk = SimDisk::new(1);
    let mut core = open_core(&disk, &clock).expect("new");
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
    assert!(reopened.inner().epoch > core.inner().epoch);
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
    disk.fail_next_sync();
    // The idle mark or a clock record may meet the failure first; either way nothing is claimed.
    let told = ask(&shard, 2);
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
    assert!(matches!(ask(&shard, 3), Err(Error::Closed)));

    // The process starts again, on what the disk has and not on what its cache shows.
    let (shard, thread, _) = open(&disk.restarted(), &clock).expect("recovered");
    assert!(shard.paste(&create(1).paste_id).expect("open").is_some());
    let outcome = ask(&shard, 2).expect("queued").expect("committed").outcome;
    assert!(
        matches!(outcome, Outcome::Created | Outcome::Replayed(_)),
        "{outcome:?}"
    );
    shard.close();
    thread.join().expect("closed");
}

#[test]
fn d04_a_full_disk_refuses_creates_and_resumes() {
    let clock = ManualClock::new(START);
    let disk = SimDisk::new(1);
    let mut core = open_core(&disk, &clock).expect("new");
    let answers = Answers::default();
    disk.set_capacity(0);
    // One segment's worth of creates, each with a key of its own.
    let mut made: u32 = 0;
    let mut next = || {
        made += 1;
        let mut create = create(1);
        create.key_digest.0[1..5].copy_from_slice(&made.to_le_bytes());
        let mut bytes = made.to_le_bytes().into_iter().cycle();
        create.paste_id = PasteId::mint(create.key_digest.slot(), |place| {
            place.fill(bytes.next().unwrap_or(0) % 62);
        });
        create
    };
    let refused = loop {
        let mut queue: VecDeque<_> = (0..500)
            .map(|_| work(Command::Create(Box::new(next())), &answers))
            .collect();
        while !queue.is_empty() {
            core.commit(&mut queue).expect("a full disk stops nothing");
        }
        if let Some((_, Err(err))) = answers.lock().last() {
            break *err;
        }
    };
    assert_eq!(refused, Error::Full);
    disk.set_capacity(u64::MAX);
    answers.lock().clear();
    core.commit(&mut VecDeque::from([work(
        Command::Create(Box::new(create(9))),
        &answers,
    )]))
    .expect("room again");
    let answer = answers.lock()[0].1.clone().expect("committed");
    assert_eq!(answer.outcome, Outcome::Created);
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
