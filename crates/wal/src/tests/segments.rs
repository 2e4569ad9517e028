//! Segments: names, sizes, rolls, what counts, and what is removed.

use crate::{RESERVE_SIZE, Room};
use ostraca_io::{Disk, DiskFile, FileName, RealDisk, SimDisk};

use super::*;
use crate::segment::NamedFile;

fn open_with(disk: &SimDisk, options: Options) -> Log<SimDisk> {
    open_from(disk, options, Start::Beginning).expect("power").0
}

fn append_big(log: &mut Log<SimDisk>, first: u64) -> Result<(), Error> {
    log.append(&mut big_batch(first), Room::Reserve)?;
    log.sync()
}

#[test]
fn names_have_one_spelling() {
    let id = SegmentId {
        epoch: Epoch(0xab),
        number: 0x1c,
    };
    assert_eq!(id.file_name().as_str(), "seg-00000000000000ab-0000001c.log");
    assert_eq!(NamedFile::of(&id.file_name()), Some(NamedFile::Segment(id)));
    assert_eq!(
        NamedFile::of(&id.temporary_name()),
        Some(NamedFile::Temporary(id))
    );
    for foreign in [
        "seg-ab-1c.log",
        "seg-+0000000000000ab-0000001c.log",
        "seg-00000000000000ab-0000001c.log.1",
        "seg-00000000000000ab-0000001c",
        "log",
    ] {
        let name = FileName::new(foreign)
            .or_else(|| FileName::new("x"))
            .expect("a name");
        assert_eq!(NamedFile::of(&name), None, "{foreign}");
    }
}

#[test]
fn segments_grow_up_to_their_full_size() {
    let disk = SimDisk::new(1);
    let options = Options {
        segment_size: 6 << 20,
        segment_size_first: SEGMENT_SIZE_MIN,
    };
    let mut log = open_with(&disk, options);
    for first in 0..20 {
        append_big(&mut log, first * 9).expect("power");
    }
    let sizes: Vec<usize> = disk
        .list()
        .expect("power")
        .iter()
        .map(|name| disk.contents(name).expect("the file").len())
        .collect();
    let first = usize::try_from(SEGMENT_SIZE_MIN).expect("small");
    assert_eq!(sizes, [first, 4 * first, 6 << 20]);
    assert_eq!(
        numbers(&recover(&disk.crash()).expect("a log").1),
        (0..180).collect::<Vec<_>>()
    );
}

#[test]
fn a_segment_is_wanted_once_at_half() {
    let disk = SimDisk::new(1);
    let mut log = open_with(&disk, SMALL);
    assert!(log.wants_segment().is_none());
    append_big(&mut log, 0).expect("power");
    assert!(log.wants_segment().is_none());
    append_big(&mut log, 9).expect("power");
    let preparation = log.wants_segment().expect("half full");
    assert!(log.wants_segment().is_none(), "one is under way");
    drop(preparation);
    let preparation = log.wants_segment().expect("that one was given up");
    let prepared = preparation.run().expect("room");
    assert!(log.wants_segment().is_none(), "one is under way");
    log.install(prepared);
    assert!(log.wants_segment().is_none(), "one is installed");
    let operations = disk.operations();
    append_big(&mut log, 18).expect("power");
    assert_eq!(
        disk.operations() - operations,
        4,
        "header, sync, batch, sync"
    );
}

#[test]
fn a_segment_that_comes_too_late_is_removed() {
    let disk = SimDisk::new(1);
    let mut log = open_with(&disk, SMALL);
    append_big(&mut log, 0).expect("power");
    append_big(&mut log, 9).expect("power");
    let late = log.wants_segment().expect("half full");
    append_big(&mut log, 18).expect("prepares by itself");
    log.install(late.run().expect("room"));
    assert_eq!(segment_names(&disk).len(), 2);
    append_big(&mut log, 27).expect("power");
    append_big(&mut log, 36).expect("power");
    assert_eq!(recover(&disk.crash()).expect("a log").1.len(), 46);
}

/// A preparation may run on another thread.
#[test]
fn parts_of_a_log_are_send() {
    fn is_send<T: Send>() {}
    is_send::<Log<RealDisk>>();
    is_send::<Preparation<RealDisk>>();
    is_send::<Prepared<RealDisk>>();
    is_send::<Recovered>();
    is_send::<Error>();
}

#[test]
fn d04_a_full_disk_refuses_a_batch_and_the_log_goes_on() {
    let disk = SimDisk::new(1);
    let mut log = open_with(&disk, SMALL);
    append_big(&mut log, 0).expect("power");
    append_big(&mut log, 9).expect("power");
    disk.set_capacity(SEGMENT_SIZE_MIN + (SEGMENT_SIZE_MIN / 2));
    let next = log.sequence_next();
    assert!(matches!(
        log.wants_segment().expect("half full").run(),
        Err(Error::Full)
    ));
    let mut batch = big_batch(18);
    for _ in 0..2 {
        let err = log.append(&mut batch, Room::Reserve).expect_err("no room");
        assert_eq!(err.kind(), ostraca_types::ErrorKind::Full);
    }
    assert_eq!((segment_names(&disk).len(), log.sequence_next()), (1, next));
    append_one(&mut log, 18).expect("there is room in this segment");
    disk.set_capacity(u64::MAX);
    log.append(&mut big_batch(19), Room::Reserve)
        .expect("it resumes by itself");
    log.sync().expect("power");
    assert_eq!(
        numbers(&recover(&disk.crash()).expect("a log").1),
        (0..28).collect::<Vec<_>>()
    );
}

#[test]
fn options_are_checked() {
    Options::default()
        .validate()
        .expect("the defaults are fine");
    for (first, full) in [
        (SEGMENT_SIZE_MIN - 4096, 64 << 20),
        (4 << 20, 2 << 20),
        (2 << 20, SEGMENT_SIZE_MAX + 4096),
        (SEGMENT_SIZE_MIN + 1, 64 << 20),
    ] {
        let options = Options {
            segment_size: full,
            segment_size_first: first,
        };
        assert!(
            matches!(options.validate(), Err(Error::SegmentSize { .. })),
            "{options:?}"
        );
    }
}

#[test]
fn every_opening_raises_the_epoch_above_every_name() {
    let disk = SimDisk::new(1);
    assert_eq!(open_with(&disk, SMALL).epoch(), Epoch(1));
    assert_eq!(open_with(&disk.crash(), SMALL).epoch(), Epoch(2));
    let disk = disk.crash();
    disk.create(
        &SegmentId {
            epoch: Epoch(40),
            number: 3,
        }
        .temporary_name(),
    )
    .expect("a new name");
    assert_eq!(open_with(&disk, SMALL).epoch(), Epoch(41));
}

/// Two that were granted one epoch, which takes damage to the page: the name decides (f01).
#[test]
fn f01_whoever_meets_its_name_taken_reads_again() {
    let disk = SimDisk::new(1);
    let claim = claim(&disk).expect("power");
    let (recovered, _) = recover_under(&claim, &disk, Start::Beginning).expect("a log");
    let first = SegmentId {
        epoch: claim.epoch(),
        number: 0,
    };
    disk.create(&first.file_name()).expect("a new name");
    let log = Log::take_over(disk.clone(), claim, OWNER, SMALL, recovered, TIME);
    assert!(matches!(log, Err(Error::EpochTaken { epoch: Epoch(1) })));
    assert_eq!(open_with(&disk, SMALL).epoch(), Epoch(2));
}

/// What a stale leader writes after it was replaced is refused, and no part of the history.
#[test]
fn f02_a_stale_leaders_appends_are_refused_and_cut() {
    let disk = SimDisk::new(1);
    let mut stale = open_with(&disk, SMALL);
    append_one(&mut stale, 0).expect("power");
    append_one(&mut stale, 1).expect("power");
    append_big(&mut stale, 2).expect("power");
    append_big(&mut stale, 11).expect("power");
    // What it is about to prepare when it is stopped, and installs when it wakes.
    let preparation = stale.wants_segment().expect("half full");
    let mut leader = open_with(&disk.beside(), SMALL);
    stale.install(preparation.run().expect("room"));
    let late = append_one(&mut stale, 777).expect_err("another one leads");
    assert!(matches!(late, Error::Fenced { epoch: Epoch(1) }), "{late}");
    let later = append_one(&mut stale, 778).expect_err("for ever");
    assert!(matches!(later, Error::Stopped), "{later}");
    append_one(&mut leader, 20).expect("power");
    let (recovered, records) = recover(&disk).expect("a log");
    assert_eq!(numbers(&records), (0..21).collect::<Vec<_>>());
    assert_eq!(
        recovered.report().passed_over,
        [SegmentId {
            epoch: Epoch(1),
            number: 1
        }]
    );
    let disk = disk.crash();
    let (mut log, _) = open(&disk).expect("a log");
    assert_eq!(clean_up(&mut log).expect("power"), 1);
    assert_eq!(
        segment_names(&disk).len(),
        4,
        "three segments and a ballast"
    );
}

#[test]
fn a_segment_that_does_not_count_is_passed_over_whatever_its_header_says() {
    let disk = SimDisk::new(1);
    let mut log = open_with(&disk, SMALL);
    append_one(&mut log, 0).expect("power");
    append_one(&mut log, 1).expect("power");
    let disk = disk.crash();
    // The take-over's last write and sync are its no-op's.
    let whole = disk.fork();
    let start = whole.operations();
    drop(open(&whole).expect("a log"));
    let operations = whole.operations() - start;
    let torn = disk.fork();
    torn.power_cut_at(start + operations - 2, ostraca_io::Unsynced::Lost);
    open(&torn).expect_err("the power goes");
    let torn = torn.restarted();
    let (recovered, records) = recover(&torn).expect("a log");
    assert_eq!(
        recovered.report().passed_over,
        [SegmentId {
            epoch: Epoch(2),
            number: 0
        }]
    );
    assert_eq!(numbers(&records), [0, 1]);
    let bytes = torn.contents(
        &SegmentId {
            epoch: Epoch(2),
            number: 0,
        }
        .file_name(),
    );
    assert!(
        !place::is_zero(&bytes.expect("the file")[..128]),
        "its header is there"
    );
    let (log, records) = open(&torn).expect("a log");
    assert_eq!((log.epoch(), numbers(&records)), (Epoch(3), vec![0, 1]));
}

#[test]
fn purge_removes_what_a_checkpoint_covers() {
    let disk = SimDisk::new(1);
    let mut log = open_with(&disk, SMALL);
    let mut ends = Vec::new();
    for first in 0..6 {
        append_big(&mut log, first * 9).expect("power");
        ends.push(log.durable_sequence());
    }
    assert_eq!(segment_names(&disk).len(), 3);
    assert_eq!(log.purge(Sequence(ends[1].0 - 1)).expect("power"), 0);
    assert_eq!(log.purge(ends[1]).expect("power"), 1);
    let disk = disk.crash();
    assert!(matches!(
        recover(&disk),
        Err(Error::Damaged {
            fault: Fault::Missing,
            ..
        })
    ));
    let (mut log, records) = open_from(&disk, SMALL, Start::After(ends[1])).expect("covered");
    assert_eq!(numbers(&records), (18..54).collect::<Vec<_>>());
    assert_eq!(log.purge(log.durable_sequence()).expect("power"), 2);
    assert_eq!(segment_names(&disk).len(), 1, "the current one stays");
    // Segments that a checkpoint covers are not read, only known.
    let disk = disk.crash();
    let start = Start::After(log.durable_sequence());
    drop(open_from(&disk, SMALL, start).expect("power"));
}

#[test]
fn clean_up_removes_leftovers_and_nothing_of_a_higher_epoch() {
    let disk = SimDisk::new(1);
    drop(open_with(&disk, SMALL));
    let disk = disk.crash();
    let torn = SegmentId {
        epoch: Epoch(2),
        number: 0,
    };
    for name in [torn.file_name(), torn.temporary_name()] {
        disk.create(&name)
            .expect("a new name")
            .write_all_at(&[0; 9000], 0)
            .expect("room");
    }
    let claim = claim(&disk).expect("power");
    let higher = SegmentId {
        epoch: Epoch(9),
        number: 0,
    }
    .temporary_name();
    disk.create(&higher).expect("a new name");
    let (recovered, _) = recover_under(&claim, &disk, Start::Beginning).expect("a log");
    let log = Log::take_over(disk.clone(), claim, OWNER, SMALL, recovered, TIME);
    let mut log = log.expect("power");
    assert_eq!(log.epoch(), Epoch(3));
    assert_eq!(clean_up(&mut log).expect("power"), 2);
    let names = disk.list().expect("power");
    assert!(names.contains(&higher) && names.len() == 4, "{names:?}");
}

/// A look beside an open log: the log goes on, beyond what the reader has read already.
#[test]
fn verify_beside_an_open_log_is_no_damage() {
    let disk = SimDisk::new(1);
    let options = Options {
        segment_size: 8 << 20,
        segment_size_first: 8 << 20,
    };
    let mut log = open_with(&disk, options);
    append_one(&mut log, 0).expect("power");
    let mut went_on = false;
    let report = verify(&disk, IDENTITY, None, &mut |record| {
        if record.sequence == Sequence(2) && !went_on {
            went_on = true;
            for first in 0..15 {
                append_big(&mut log, 1 + first * 9).expect("power");
            }
        }
    });
    assert_eq!(
        report.expect("undamaged").last_sequence,
        log.durable_sequence()
    );
}

#[test]
fn d04_the_reserve_is_left_for_what_must_be_written() {
    let disk = SimDisk::new(1);
    let (mut log, _) = open(&disk).expect("a log");
    disk.set_capacity(0);
    log.hold_preparing(true);
    let mut first = 1;
    let full = loop {
        if let Err(err) = log.append(&mut big_batch(first), Room::Ordinary) {
            break err;
        }
        log.sync().expect("power");
        first += 9;
    };
    assert!(matches!(full, Error::Full), "{full}");
    let mut small = Batch::new();
    push(&mut small, 1, 20);
    let refused = log.append(&mut small, Room::Ordinary);
    // A small batch may still fit; the reserve is what it may not use.
    if refused.is_ok() {
        log.sync().expect("power");
    }
    let mut used = 0;
    while log.append(&mut small, Room::Reserve).is_ok() {
        log.sync().expect("power");
        used += small.size() as u64;
    }
    assert!(used + 512 >= RESERVE_SIZE, "{used} bytes of reserve");
    // No room for a mark either: that is no failure.
    log.mark().expect("nothing was written");
    assert!(!log.is_stopped());
    disk.set_capacity(u64::MAX);
    log.hold_preparing(false);
    log.append(&mut small, Room::Ordinary).expect("room again");
    log.sync().expect("power");
}
