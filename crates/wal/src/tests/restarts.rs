//! What restarts leave on the disk, and what a restart on a full one needs.

use ostraca_io::{Disk, SimDisk};

use super::*;

fn used(disk: &SimDisk) -> u64 {
    let names = disk.list().expect("power");
    let sizes = names
        .iter()
        .map(|name| disk.contents(name).map_or(0, |bytes| bytes.len()));
    sizes.sum::<usize>() as u64
}

/// Goal: restarts in a row, each of which makes a segment, do not fill the disk: a thousand cost
/// some 10 MiB.
/// Method: each with an append and killed; the last ones without a clean-up, as if they had been
/// killed before it. Every restart with a clean-up leaves exactly as much as the one before, so a
/// few tell what a thousand do; opening the log reads a header of each, which is what takes long.
#[test]
fn restarts_in_a_row_do_not_fill_the_disk() {
    let whole = 2 * SEGMENT_SIZE_MIN; // the last segment and the ballast
    let each = BATCHES_START + 3 * BATCH_ALIGNMENT as u64; // tail, no-op, a record
    assert!(1000 * each < 10 << 20);
    let mut disk = SimDisk::new(1);
    let (restarts, last_ones) = (150, 10);
    for number in 0..restarts {
        let (mut log, _) = open(&disk).expect("a log");
        if number < restarts - last_ones {
            clean_up(&mut log).expect("power");
            assert!(used(&disk) <= whole + number * each, "restart {number}");
        }
        append_one(&mut log, number).expect("power");
        disk = disk.crash();
    }
    let (mut log, records) = open(&disk).expect("a log");
    assert_eq!(numbers(&records), (0..restarts).collect::<Vec<_>>());
    clean_up(&mut log).expect("power");
    assert!(
        used(&disk) <= whole + restarts * each,
        "{} bytes",
        used(&disk)
    );
}

/// What is cut off was never part of the log: neither before nor after a power cut.
#[test]
fn a_trimmed_segment_reads_as_before() {
    let disk = SimDisk::new(1);
    let (mut log, _) = open(&disk).expect("a new log");
    append_one(&mut log, 0).expect("power");
    let disk = disk.crash();
    let (mut log, _) = open(&disk).expect("a log");
    append_one(&mut log, 1).expect("power");
    let before = recover(&disk).expect("a log").1;
    clean_up(&mut log).expect("power");
    let first = SegmentId {
        epoch: Epoch(1),
        number: 0,
    };
    let size = disk.contents(&first.file_name()).expect("the file").len() as u64;
    assert_eq!(
        size,
        BATCHES_START + BATCH_ALIGNMENT as u64,
        "its tail is in the next one"
    );
    assert_eq!(recover(&disk).expect("a log").1, before);
    for fate in ostraca_io::Unsynced::ALL {
        let disk = disk.fork();
        disk.power_cut(fate);
        assert_eq!(recover(&disk.restarted()).expect("a log").1, before);
    }
}

/// Goal: a shard on a full disk starts again and again.
/// Method: fill the disk to the last byte, then kill and open; what the run before did not use comes
/// back, and is the next ballast. (WAL-07)
#[test]
fn d04_a_restart_on_a_full_disk_uses_the_ballast() {
    let options = Options {
        segment_size: 2 << 20,
        segment_size_first: 2 << 20,
    };
    let disk = SimDisk::new(1);
    let (mut log, _) = open_from(&disk, options, Start::Beginning).expect("a new log");
    clean_up(&mut log).expect("power");
    append_one(&mut log, 0).expect("power");
    disk.set_capacity(used(&disk));
    let mut disk = disk.crash();
    for number in 1..60 {
        let opened = open_from(&disk, options, Start::Beginning);
        let (mut log, records) = opened.unwrap_or_else(|err| panic!("restart {number}: {err}"));
        assert_eq!(numbers(&records), (0..number).collect::<Vec<_>>());
        clean_up(&mut log).expect("what came back is enough for a smaller one");
        append_one(&mut log, number).expect("there is room in the segment");
        disk = disk.crash();
    }
}

/// Without a ballast there is nothing to give, and nothing is changed.
#[test]
fn d04_a_restart_on_a_full_disk_without_a_ballast_says_so() {
    let disk = SimDisk::new(1);
    let (mut log, _) = open(&disk).expect("a new log");
    append_one(&mut log, 0).expect("power");
    let disk = disk.crash();
    disk.set_capacity(0);
    let full = open(&disk).expect_err("no room");
    assert!(matches!(full, Error::Full), "{full}");
    assert_eq!(segment_names(&disk).len(), 1);
    disk.set_capacity(u64::MAX);
    assert_eq!(numbers(&open(&disk).expect("a log").1), [0]);
}
