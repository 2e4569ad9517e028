//! A log that is open: sequences, batches, marks, and the real disk.

use crate::Room;
use std::sync::Arc;

use ostraca_io::{Page, RealDisk, RealPage, SimDisk};

use super::*;

#[test]
fn sequences_follow_one_another() {
    let disk = SimDisk::new(1);
    let (mut log, records) = open(&disk).expect("a new log");
    assert!(records.is_empty());
    assert_eq!(
        (log.durable_sequence(), log.sequence_next()),
        (Sequence(1), Sequence(2))
    );
    let mut batch = Batch::new();
    push(&mut batch, 0, 1);
    push(&mut batch, 1, 0);
    assert_eq!(
        log.append(&mut batch, Room::Reserve).expect("power"),
        Sequence(2)
    );
    assert_eq!(log.durable_sequence(), Sequence(1), "not synced yet");
    log.sync().expect("power");
    assert_eq!(
        (log.durable_sequence(), log.sequence_next()),
        (Sequence(3), Sequence(4))
    );
    batch.clear();
    push(&mut batch, 2, 1);
    assert_eq!(
        log.append(&mut batch, Room::Reserve).expect("power"),
        Sequence(4)
    );
    let (recovered, records) = recover(&disk.crash()).expect("a log");
    assert_eq!(
        (recovered.last_sequence(), numbers(&records)),
        (Sequence(4), vec![0, 1, 2])
    );
    assert_eq!(records[0].kind, KIND_NO_OP);
}

#[test]
fn a_record_comes_back_as_it_was_given() {
    let disk = SimDisk::new(1);
    let (mut log, _) = open(&disk).expect("a new log");
    let mut batch = Batch::new();
    let largest = vec![0xa5; PAYLOAD_SIZE_MAX];
    batch
        .push(KIND_MAX, 255, Slot(255), Timestamp(u64::MAX), &largest)
        .expect("room");
    batch.push(1, 0, Slot(0), Timestamp(0), &[]).expect("room");
    log.append(&mut batch, Room::Reserve).expect("power");
    log.sync().expect("power");
    let mut seen = Vec::new();
    let report = verify(&disk.crash(), IDENTITY, None, &mut |record: &Record<'_>| {
        seen.push((
            record.kind,
            record.version,
            record.slot,
            record.time,
            record.payload.len(),
        ));
        assert_eq!((record.epoch, record.segment.number), (Epoch(1), 0));
    })
    .expect("a log");
    assert_eq!(
        seen[1],
        (
            KIND_MAX,
            255,
            Slot(255),
            Timestamp(u64::MAX),
            PAYLOAD_SIZE_MAX
        )
    );
    assert_eq!(seen[2], (1, 0, Slot(0), Timestamp(0), 0));
    assert_eq!((report.records, report.segments.len()), (3, 1));
    assert_eq!(
        (report.first_sequence, report.last_sequence),
        (Sequence(1), Sequence(3))
    );
}

#[test]
fn a_batch_says_when_it_is_full_and_can_be_used_again() {
    let disk = SimDisk::new(1);
    let (mut log, _) = open(&disk).expect("a new log");
    let mut batch = Batch::new();
    let mut count = 0;
    while batch
        .push(7, 1, Slot(0), TIME, &payload(count, 8000))
        .is_ok()
    {
        count += 1;
    }
    assert!(batch.size() <= BATCH_SIZE_MAX && batch.size() > BATCH_SIZE_MAX - 10_000);
    assert_eq!(batch.len() as u64, count);
    log.append(&mut batch, Room::Reserve)
        .expect("the largest batch fits the smallest segment");
    log.sync().expect("power");
    batch.clear();
    assert!(batch.is_empty());
    push(&mut batch, count, 10);
    assert_eq!(batch.size(), BATCH_ALIGNMENT);
    log.append(&mut batch, Room::Reserve).expect("power");
    let (_, records) = open(&disk.crash()).expect("the largest tail fits too");
    assert_eq!(numbers(&records), (0..=count).collect::<Vec<_>>());
}

/// The largest possible tail, written again with its no-op, fits the smallest segment.
#[test]
fn the_largest_tail_can_be_taken_over() {
    let disk = SimDisk::new(1);
    let (mut log, _) = open(&disk).expect("a new log");
    let mut batch = Batch::new();
    let mut rest = BATCH_SIZE_MAX - BATCH_HEADER_SIZE;
    while rest > 0 {
        let size = PAYLOAD_SIZE_MAX.min(rest - RECORD_HEADER_SIZE);
        batch
            .push(7, 1, Slot(0), TIME, &vec![1; size])
            .expect("room");
        rest -= RECORD_HEADER_SIZE + size;
    }
    assert_eq!(batch.size(), BATCH_SIZE_MAX);
    log.append(&mut batch, Room::Reserve).expect("it fits");
    let (_, records) = open(&disk.crash()).expect("it fits");
    assert_eq!(records.len(), batch.len() + 1);
}

#[test]
#[should_panic(expected = "the batch before was not synced")]
fn d01_a_second_batch_waits_for_the_sync_of_the_first() {
    let disk = SimDisk::new(1);
    let (mut log, _) = open(&disk).expect("a new log");
    let mut batch = Batch::new();
    push(&mut batch, 0, 1);
    log.append(&mut batch, Room::Reserve).expect("power");
    drop(log.append(&mut batch, Room::Reserve));
}

#[test]
#[should_panic(expected = "this kind is the log's own")]
fn the_logs_own_kinds_are_not_the_callers() {
    Batch::new()
        .push(KIND_NO_OP, 0, Slot(0), TIME, &[])
        .expect("it panics before");
}

#[test]
fn a_mark_is_written_once_and_synced() {
    let disk = SimDisk::new(1);
    let (mut log, _) = open(&disk).expect("a new log");
    append_one(&mut log, 0).expect("power");
    let before = disk.operations();
    log.mark().expect("power");
    assert_eq!(disk.operations() - before, 2, "a write and a sync");
    log.mark().expect("power");
    log.sync().expect("power");
    assert_eq!(disk.operations() - before, 2, "nothing to prove");
    append_one(&mut log, 1).expect("power");
    let (_, records) = recover(&disk.crash()).expect("a log");
    assert_eq!(numbers(&records), [0, 1]);
}

/// The hot path: one write and one sync, whatever the batch.
#[test]
fn an_append_is_one_write_and_one_sync() {
    let disk = SimDisk::new(1);
    let (mut log, _) = open(&disk).expect("a new log");
    let before = disk.operations();
    log.append(&mut big_batch(0), Room::Reserve).expect("power");
    assert_eq!(disk.operations() - before, 1);
    log.sync().expect("power");
    assert_eq!(disk.operations() - before, 2);
}

#[test]
fn a_visitors_error_ends_the_replay() {
    #[derive(Debug)]
    enum Reason {
        Log(Error),
        Enough(Sequence),
    }
    impl From<Error> for Reason {
        fn from(err: Error) -> Self {
            Self::Log(err)
        }
    }
    let disk = SimDisk::new(1);
    let (mut log, _) = open(&disk).expect("a new log");
    append_one(&mut log, 0).expect("power");
    let recovery = Recovery::read(&disk, IDENTITY).expect("a log");
    match recovery.replay(&disk, |record| Err(Reason::Enough(record.sequence))) {
        Err(Reason::Enough(sequence)) => assert_eq!(sequence, Sequence(1)),
        Err(Reason::Log(err)) => panic!("{err}"),
        Ok(_) => panic!("it should have ended"),
    }
}

#[test]
fn messages_say_what_to_do() {
    let err = Error::Damaged {
        file: SegmentId {
            epoch: Epoch(1),
            number: 0,
        }
        .file_name(),
        offset: 8192,
        sequence: Sequence(4),
        fault: Fault::LaterBatch(9216),
    };
    assert_eq!(
        err.to_string(),
        "the log is damaged, nothing was changed; look with `ostraca log verify`, then restore a \
         copy, or give up what is lost with `ostraca log cut`: not valid, and a valid batch follows at 9216; file \
         seg-0000000000000001-00000000.log, offset 8192, sequence 4"
    );
    assert_eq!(err.kind(), ostraca_types::ErrorKind::Damaged);
}

#[test]
fn the_real_disk_serves_as_well() {
    let dir = tempfile::tempdir().expect("a directory");
    let disk = RealDisk::open(dir.path()).expect("the directory");
    let page = dir.path().join(EPOCH_PAGE);
    ostraca_io::files::create_durable(&page, &new_epoch_page(&IDENTITY), 0o600).expect("made");
    let page: Arc<dyn Page> = Arc::new(RealPage::open(&page).expect("just made"));
    for round in 0..3 {
        let mut found = 0;
        let claim =
            Claim::raise(Arc::clone(&page), IDENTITY, &disk, &*ENTROPY).expect("a working disk");
        let recovered = claim
            .recover(&disk, Start::Beginning)
            .and_then(|recovery| {
                recovery.replay(&disk, |record| {
                    found += u64::from(record.kind != KIND_NO_OP);
                    Ok::<(), Error>(())
                })
            })
            .expect("a log");
        assert_eq!(found, round * 27);
        let log = Log::take_over(disk.clone(), claim, OWNER, SMALL, recovered, TIME);
        let mut log = log.expect("a working disk");
        let mut work = log.take_clean_up().expect("the first time");
        work.run().expect("a working disk");
        for first in 0..3 {
            log.append(&mut big_batch(round * 27 + first * 9), Room::Reserve)
                .expect("room");
            log.sync().expect("a working disk");
            if let Some(preparation) = log.wants_segment() {
                let thread = std::thread::spawn(|| preparation.run());
                log.install(thread.join().expect("no panic").expect("room"));
            }
        }
    }
}
