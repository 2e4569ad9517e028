//! Going on without what is damaged.

use ostraca_io::{Disk, SimDisk};

use super::*;

fn segment(epoch: u64, number: u32) -> ostraca_io::FileName {
    let epoch = Epoch(epoch);
    SegmentId { epoch, number }.file_name()
}

fn plan(disk: &SimDisk) -> Option<CutPlan> {
    let page = read_epoch_page(disk.page(), &IDENTITY).expect("readable");
    plan_cut(disk, IDENTITY, page.durable).expect("readable files")
}

fn cut(disk: &SimDisk) -> Sequence {
    let claim = claim(disk).expect("power");
    let plan = plan(disk).expect("damaged");
    let keeps = plan.keeps;
    let done = plan.carry_out(disk.clone(), claim, OWNER, SMALL);
    done.expect("room");
    keeps
}

/// Three epochs, of which the second rolls; records 0 to 29.
fn three_epochs() -> SimDisk {
    let disk = SimDisk::new(1);
    let (mut log, _) = open(&disk).expect("a new log");
    append_one(&mut log, 0).expect("power");
    let disk = disk.crash();
    let (mut log, _) = open(&disk).expect("a log");
    for first in [1, 10, 19] {
        log.append(&mut big_batch(first), Room::Reserve)
            .expect("room");
        log.sync().expect("power");
    }
    let disk = disk.crash();
    let (mut log, _) = open(&disk).expect("a log");
    append_one(&mut log, 28).expect("power");
    append_one(&mut log, 29).expect("power");
    log.mark().expect("power");
    disk.crash()
}

#[test]
fn an_undamaged_log_is_not_cut() {
    assert!(plan(&three_epochs()).is_none());
    assert!(plan(&SimDisk::new(1)).is_none());
}

/// Goal: a cut keeps all that can be read before the damage, and nothing behind it comes back.
/// Method: damage each segment in turn, in headers and batches; cut; append; open again and again.
#[test]
fn d02_a_cut_keeps_what_is_before_the_damage() {
    let records = BATCHES_START + 512;
    let big = 10 * BIG_PAYLOAD as u64;
    let third = BATCHES_START + big_batch(0).size() as u64; // its no-op
    // What is damaged, and the numbers that are left.
    let cases = [
        (segment(1, 0), vec![8192], 0),
        (segment(1, 0), vec![0, 4096], 0),
        // The tail that was written again. The segment before still has it, but behind its end,
        // where it cannot be told from what a fenced leader wrote.
        (segment(2, 0), vec![8192], 0),
        (segment(2, 0), vec![records + 512], 1),
        (segment(2, 0), vec![records + big], 10),
        (segment(2, 0), vec![0, 4096], 1),
        (segment(2, 1), vec![0, 4096], 19),
        (segment(3, 0), vec![8192], 19),
        (segment(3, 0), vec![third], 28),
        (segment(3, 0), vec![0, 4096], 28),
        (segment(3, 0), vec![third + 512], 28),
        (segment(3, 0), vec![third + 1024, third + 1536], 29),
    ];
    for (file, places, left) in cases {
        let context = format!("{file} at {places:?}");
        let disk = three_epochs();
        for &offset in &places {
            disk.flip_bit(&file, offset + 5, 1);
        }
        open(&disk).map(|_| ()).expect_err(&context);
        let before = disk.fork();
        let found = plan(&disk).unwrap_or_else(|| panic!("{context}"));
        assert!(found.known > found.keeps, "{context}: {found:?}");
        let names_it = found.files.contains(&file);
        // Its own records can be whole, if it is its header that is gone.
        assert!(names_it, "{context}: {found:?}");
        cut(&disk);
        for name in before.list().expect("power") {
            assert_eq!(before.contents(&name), disk.contents(&name), "{context}");
        }
        let (mut log, records) =
            open(&disk.crash()).unwrap_or_else(|err| panic!("{context}: {err}"));
        assert_eq!(
            numbers(&records),
            (0..left).collect::<Vec<_>>(),
            "{context}"
        );
        clean_up(&mut log).expect("power");
        append_one(&mut log, left).expect("power");
        let (_, records) = open(&disk.crash()).unwrap_or_else(|err| panic!("{context}: {err}"));
        assert_eq!(
            numbers(&records),
            (0..=left).collect::<Vec<_>>(),
            "{context}"
        );
    }
}

/// What only the epoch page knows of is lost as well, and then no longer asked for.
#[test]
fn d02_a_log_that_ends_before_the_hint_can_be_cut() {
    let disk = SimDisk::new(1);
    let (mut log, _) = open(&disk).expect("a new log");
    append_one(&mut log, 0).expect("power");
    append_one(&mut log, 1).expect("power");
    let disk = disk.crash();
    disk.flip_bit(&segment(1, 0), BATCHES_START + 1024 + 80, 0);
    let found = plan(&disk).expect("damaged");
    assert!(matches!(
        found.damage,
        Error::Damaged {
            fault: Fault::Behind(Sequence(3)),
            ..
        }
    ));
    assert_eq!((found.keeps, found.known), (Sequence(2), Sequence(3)));
    assert_eq!(found.files, [segment(1, 0)]);
    assert_eq!(cut(&disk), Sequence(2));
    assert_eq!(numbers(&open(&disk.crash()).expect("a log").1), [0]);
}

/// A cut that is interrupted anywhere can be made again.
#[test]
fn a_cut_may_be_cut_at_every_operation() {
    for cut_at in 0..20 {
        for fate in ostraca_io::Unsynced::ALL {
            let disk = three_epochs();
            disk.flip_bit(&segment(2, 0), BATCHES_START + 1024 + 5, 1);
            disk.power_cut_at(disk.operations() + cut_at, fate);
            let done = claim(&disk).and_then(|claim| {
                let plan = plan_cut(&disk, IDENTITY, None)?.expect("damaged");
                plan.carry_out(disk.clone(), claim, OWNER, SMALL)
            });
            let disk = disk.restarted();
            let page = read_epoch_page(disk.page(), &IDENTITY).expect("readable");
            match plan_cut(&disk, IDENTITY, page.durable).expect("readable files") {
                None => {}
                Some(_) => drop(cut(&disk)),
            }
            let (_, records) =
                open(&disk).unwrap_or_else(|err| panic!("{cut_at} {fate:?} {done:?}: {err}"));
            assert_eq!(numbers(&records), [0], "{cut_at} {fate:?}");
        }
    }
}

/// What no cut gets out of the way is named instead, and nothing is changed.
#[test]
fn d02_what_a_cut_cannot_help_is_refused() {
    use crate::place::{Place, checksum};
    use crate::segment::field;
    let disk = three_epochs();
    disk.flip_bit(&segment(2, 0), BATCHES_START + 1024 + 5, 1);
    // A segment under another's name, beside the damage.
    let misplaced = disk.fork();
    let bytes = misplaced.contents(&segment(1, 0)).expect("the file");
    misplaced
        .create(&segment(9, 0))
        .and_then(|file| ostraca_io::DiskFile::write_all_at(&file, &bytes, 0))
        .expect("room");
    match plan_cut(&misplaced, IDENTITY, None) {
        Err(Error::Damaged {
            file,
            fault: Fault::Misplaced(_),
            ..
        }) => assert_eq!(file, segment(9, 0)),
        other => panic!("{other:?}"),
    }
    // A newer program's segment.
    let id = SegmentId {
        epoch: Epoch(3),
        number: 0,
    };
    let mut header = disk.contents(&id.file_name()).expect("the file");
    header.truncate(SEGMENT_HEADER_SIZE);
    header[field::VERSION].copy_from_slice(&9u16.to_le_bytes());
    let crc = checksum(&header, field::CRC, Place::new(&IDENTITY, id).seed(0));
    header[field::CRC].copy_from_slice(&crc.to_le_bytes());
    disk.overwrite(&id.file_name(), 0, &header);
    let refused = plan_cut(&disk, IDENTITY, None).expect_err("another program's");
    assert!(
        matches!(refused, Error::UnknownFormat { version: 9, .. }),
        "{refused}"
    );
}

/// A file that is too short for a batch is nothing to go on from.
#[test]
fn d02_a_segment_that_is_all_but_gone_can_be_cut() {
    let disk = three_epochs();
    let last = disk.open(&segment(3, 0)).expect("the file");
    ostraca_io::DiskFile::set_size(&last, 4100).expect("power");
    assert_eq!(
        cut(&disk),
        Sequence(30),
        "the log ends where the one before does"
    );
    assert_eq!(
        numbers(&open(&disk.crash()).expect("a log").1),
        (0..28).collect::<Vec<_>>()
    );
}

/// Goal: what a fenced leader wrote late is never taken for history, however much longer it is.
/// Method: let an overtaken leader write behind its recorded end, and damage its successor.
#[test]
fn f03_a_cut_does_not_bring_back_what_was_fenced() {
    let disk = SimDisk::new(1);
    let (mut stale, _) = open(&disk).expect("a new log");
    append_one(&mut stale, 0).expect("power");
    stale.mark().expect("power");
    let (mut leader, _) = open(&disk.beside()).expect("a log");
    for number in 1..4 {
        append_one(&mut leader, number).expect("power");
    }
    let mut late = Batch::new();
    for number in 90..99 {
        push(&mut late, number, 20);
    }
    stale.append(&mut late, Room::Reserve).expect("power");
    stale.sync().expect_err("another one leads");
    let disk = disk.crash();
    let third = BATCHES_START + 2 * BATCH_ALIGNMENT as u64;
    disk.flip_bit(&segment(2, 0), third + 70, 1);
    assert_eq!(cut(&disk), Sequence(4));
    assert_eq!(numbers(&open(&disk.crash()).expect("a log").1), [0, 1]);
}
