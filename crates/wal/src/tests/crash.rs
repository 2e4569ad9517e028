//! d01 and d03: what was acknowledged survives every crash.

use crate::Room;
use ostraca_io::{Disk, SimDisk, Unsynced};

use super::*;

/// What a run appended, and what of it was acknowledged when the run ended.
#[derive(Debug, Default)]
struct Run {
    attempted: u64,
    acknowledged: u64,
}

impl Run {
    fn append(&mut self, log: &mut Log<SimDisk>, big: bool) -> Result<(), Error> {
        let mut batch = if big {
            big_batch(self.attempted)
        } else {
            Batch::new()
        };
        for number in self.attempted..self.attempted + if big { 0 } else { 3 } {
            push(&mut batch, number, 300);
        }
        self.attempted += batch.len() as u64;
        log.append(&mut batch, Room::Reserve)?;
        Ok(())
    }

    fn acknowledge(&mut self, log: &mut Log<SimDisk>, big: bool) -> Result<(), Error> {
        self.append(log, big)?;
        log.sync()?;
        self.acknowledged = self.attempted;
        Ok(())
    }

    fn take_over(&mut self, disk: &SimDisk) -> Result<Log<SimDisk>, Error> {
        let (mut log, records) = open(disk)?;
        let found = numbers(&records).len() as u64;
        assert!(found >= self.acknowledged && found <= self.attempted);
        // What a take-over handed out may be answered from.
        self.acknowledged = found;
        self.attempted = found;
        clean_up(&mut log)?;
        Ok(log)
    }
}

/// Appends, marks, rolls with and without preparing ahead, take-overs after a clean stop, with a
/// tail in the cache, and twice in a row.
fn workload(disk: &SimDisk, run: &mut Run) -> Result<(), Error> {
    let mut log = run.take_over(disk)?;
    run.acknowledge(&mut log, false)?;
    log.mark()?;
    run.acknowledge(&mut log, false)?;
    for _ in 0..2 {
        run.acknowledge(&mut log, true)?;
    }
    let preparation = log.wants_segment().expect("half full");
    log.install(preparation.run()?);
    run.acknowledge(&mut log, true)?; // rolls into the prepared one
    run.append(&mut log, false)?; // never synced: the next take-over finds it in the cache

    let mut log = run.take_over(&disk.crash())?;
    run.acknowledge(&mut log, false)?;
    for _ in 0..3 {
        run.acknowledge(&mut log, true)?; // the third rolls, preparing by itself
    }
    log.mark()?;
    let disk = disk.crash();
    drop(run.take_over(&disk)?);
    let disk = disk.crash();
    let mut log = run.take_over(&disk)?;
    run.acknowledge(&mut log, false)?;
    Ok(())
}

/// Runs the workload until it ends or the power goes.
fn run_with_cut(seed: u64, cut_at: u64, fate: Unsynced) -> (SimDisk, Run) {
    let disk = SimDisk::new(seed);
    disk.power_cut_at(cut_at, fate);
    let mut run = Run::default();
    match workload(&disk, &mut run) {
        Ok(()) => assert!(!disk.is_off()),
        Err(Error::Io { .. }) => assert!(disk.is_off(), "cut_at={cut_at}"),
        Err(err) => panic!("seed={seed} cut_at={cut_at} fate={fate:?}: {err}"),
    }
    (disk.restarted(), run)
}

fn check(found: &[u64], run: &Run, context: &str) {
    let end = found.len() as u64;
    assert!(
        found.iter().copied().eq(0..end),
        "in order, nothing invented: {context} {found:?}"
    );
    assert!(
        end >= run.acknowledged,
        "{context}: {} acknowledged, {end} found",
        run.acknowledged
    );
    assert!(
        end <= run.attempted,
        "{context}: {} appended, {end} found",
        run.attempted
    );
}

fn operations_of_the_workload() -> u64 {
    let disk = SimDisk::new(0);
    workload(&disk, &mut Run::default()).expect("nothing fails");
    disk.operations()
}

/// Goal: an acknowledged record survives a power cut anywhere, a recovery that is cut too
/// included.
/// Method: count the workload's operations, then cut the power at each, with every fate; recover;
/// cut the take-over at one of its operations; recover again.
#[test]
fn d01_acknowledged_records_survive_a_cut_at_every_operation() {
    let operations = operations_of_the_workload();
    assert!(
        operations > 60,
        "the workload became too small: {operations}"
    );
    for cut_at in 0..=operations {
        for (position, fate) in Unsynced::ALL.into_iter().enumerate() {
            let seed = cut_at * 4 + position as u64;
            let context = format!("seed={seed} cut_at={cut_at} fate={fate:?}");
            let (disk, run) = run_with_cut(seed, cut_at, fate);
            let (_, records) = recover(&disk).unwrap_or_else(|err| panic!("{context}: {err}"));
            check(&numbers(&records), &run, &context);

            let second_cut = (cut_at * 5 + position as u64) % 13;
            let second_fate = Unsynced::ALL[usize::try_from(seed / 13 % 4).expect("below 4")];
            let context = format!("{context} second_cut={second_cut} second_fate={second_fate:?}");
            disk.power_cut_at(second_cut, second_fate);
            let interrupted = open(&disk).map(|_| ());
            let disk = disk.restarted();
            let (log, again) = open(&disk).unwrap_or_else(|err| panic!("{context}: {err}"));
            assert_eq!(
                numbers(&again),
                numbers(&records),
                "{context} {interrupted:?}"
            );

            // Nothing that a take-over handed out depends on the cache.
            drop(log);
            disk.power_cut(Unsynced::Lost);
            let (_, last) = recover(&disk.restarted()).expect("a take-over is durable");
            assert_eq!(numbers(&last), numbers(&records), "{context}");
            assert!(last.starts_with(&again), "{context}: a record changed");
        }
    }
}

/// Goal: every step of a take-over with a tail may be the last one.
/// Method: leave a tail in the cache, cut the take-over at each operation with every fate.
#[test]
fn d01_a_take_over_may_be_cut_at_every_operation() {
    for cut_at in 0..16 {
        for seed in 0..24 {
            let fate = Unsynced::ALL[usize::try_from(seed % 4).expect("below 4")];
            let disk = SimDisk::new(seed);
            let (mut log, _) = open(&disk).expect("a new log");
            append_one(&mut log, 0).expect("power");
            let mut batch = Batch::new();
            push(&mut batch, 1, 3000);
            push(&mut batch, 2, 10);
            log.append(&mut batch, Room::Reserve).expect("power");
            let disk = disk.crash();
            let start = disk.operations();
            disk.power_cut_at(start + cut_at, fate);
            let whole = open(&disk).is_ok();
            let disk = disk.restarted();
            let (_, records) = recover(&disk).expect("a cut is recoverable");
            let found = numbers(&records);
            let context = format!("cut_at={cut_at} seed={seed} fate={fate:?}");
            if whole {
                assert_eq!(found, [0, 1, 2], "{context}");
            } else {
                assert!(found == [0] || found == [0, 1, 2], "{context}: {found:?}");
            }
        }
    }
}

/// Appends until less than two sectors of the first segment are left; returns how many records.
fn fill_first_segment(log: &mut Log<SimDisk>) -> u64 {
    let mut used = BATCHES_START + BATCH_ALIGNMENT as u64; // the no-op
    let mut count = 0;
    let mut batch = Batch::new();
    while SEGMENT_SIZE_MIN - used >= 2 * BATCH_ALIGNMENT as u64 {
        batch.clear();
        let room = (SEGMENT_SIZE_MIN - used).min(60_000);
        let size = usize::try_from(room).expect("small") - BATCH_HEADER_SIZE - RECORD_HEADER_SIZE;
        push(
            &mut batch,
            count,
            size / BATCH_ALIGNMENT * BATCH_ALIGNMENT - 8,
        );
        log.append(&mut batch, Room::Reserve).expect("power");
        log.sync().expect("power");
        used += batch.size() as u64;
        count += 1;
    }
    count
}

/// Goal: a cut during a roll leaves the old segment's end or the new segment, never damage.
/// Method: roll with a small batch, so that the power may well keep the batch and not the header.
#[test]
fn d01_a_roll_may_be_cut_at_every_operation() {
    let mut rolled = 0;
    for cut_at in 0..4 {
        for seed in 0..24 {
            let fate = Unsynced::ALL[usize::try_from(seed % 4).expect("below 4")];
            let context = format!("cut_at={cut_at} seed={seed} fate={fate:?}");
            let disk = SimDisk::new(seed);
            let (mut log, _) = open(&disk).expect("a new log");
            let count = fill_first_segment(&mut log);
            let prepared = log
                .wants_segment()
                .expect("it is full")
                .run()
                .expect("room");
            log.install(prepared);
            disk.power_cut_at(disk.operations() + cut_at, fate);
            let mut batch = Batch::new();
            push(&mut batch, count, 10);
            push(&mut batch, count + 1, 600);
            let appended = log
                .append(&mut batch, Room::Reserve)
                .and_then(|_| log.sync());
            assert!(appended.is_err(), "header, sync, batch, sync: {context}");
            let disk = disk.restarted();
            let (recovered, records) =
                recover(&disk).unwrap_or_else(|err| panic!("{context}: {err}"));
            let found = numbers(&records).len() as u64;
            assert!(
                found == count || found == count + 2,
                "{context}: {found} of {count}"
            );
            rolled += u32::from(recovered.report().segments.len() == 2);
        }
    }
    assert!(rolled > 10, "{rolled}");
}

/// Killing the process loses nothing that was written.
#[test]
fn d01_a_killed_process_loses_nothing() {
    let disk = SimDisk::new(1);
    let mut run = Run::default();
    workload(&disk, &mut run).expect("nothing fails");
    let (_, records) = recover(&disk.crash()).expect("a log");
    assert_eq!(numbers(&records).len() as u64, run.attempted);
}

#[test]
fn d03_a_failed_sync_stops_the_log() {
    let disk = SimDisk::new(1);
    let (mut log, _) = open(&disk).expect("a new log");
    append_one(&mut log, 0).expect("power");
    disk.fail_next_sync();
    assert!(matches!(
        append_one(&mut log, 1),
        Err(Error::Io {
            action: Action::Sync,
            ..
        })
    ));
    let operations = disk.operations();
    assert!(matches!(log.sync(), Err(Error::Stopped)));
    assert!(matches!(append_one(&mut log, 2), Err(Error::Stopped)));
    assert!(matches!(log.mark(), Err(Error::Stopped)));
    assert!(matches!(log.purge(Sequence(1)), Err(Error::Stopped)));
    assert!(log.wants_segment().is_none());
    assert!(log.is_stopped());
    assert_eq!(
        log.durable_sequence(),
        Sequence(2),
        "the no-op and record 0"
    );
    assert_eq!(
        disk.operations(),
        operations,
        "a stopped log touches nothing"
    );
}

#[test]
fn d03_a_failed_write_stops_the_log() {
    let disk = SimDisk::new(1);
    let (mut log, _) = open(&disk).expect("a new log");
    disk.fail_writes_with(std::io::ErrorKind::Other);
    assert!(matches!(
        append_one(&mut log, 0),
        Err(Error::Io {
            action: Action::Write,
            ..
        })
    ));
    disk.heal_writes();
    assert!(matches!(append_one(&mut log, 0), Err(Error::Stopped)));
    let (_, records) = open(&disk.crash()).expect("a torn write is no damage");
    assert!(numbers(&records).len() <= 1);
}

/// Goal: what recovery hands out is on the disk, not only in the cache.
/// Method: fail the sync of a batch, so that the cache shows it and no later sync writes it; take
/// over by another process; cut the power; the batch must still be there.
#[test]
fn d03_a_take_over_writes_again_what_only_the_cache_has() {
    for rolled in [false, true] {
        let disk = SimDisk::new(1);
        let (mut log, _) = open(&disk).expect("a new log");
        append_one(&mut log, 0).expect("power");
        let mut expected = vec![0];
        if rolled {
            for first in [1, 10] {
                log.append(&mut big_batch(first), Room::Reserve)
                    .expect("power");
                log.sync().expect("power");
            }
            expected.extend(1..19);
        }
        let mut batch = if rolled { big_batch(19) } else { Batch::new() };
        if rolled {
            expected.extend(19..28);
            let prepared = log.wants_segment().expect("half full").run().expect("room");
            log.install(prepared);
        } else {
            push(&mut batch, 1, 5000);
            expected.push(1);
        }
        log.append(&mut batch, Room::Reserve).expect("power");
        disk.fail_next_sync();
        log.sync().expect_err("asked for");

        let disk = disk.crash();
        let (log, records) = open(&disk).expect("a log");
        assert_eq!(numbers(&records), expected, "the cache shows it");
        drop(log);
        disk.power_cut(Unsynced::Lost);
        let (_, after) = recover(&disk.restarted()).expect("a log");
        assert_eq!(numbers(&after), expected, "rolled={rolled}");
        assert!(
            after.starts_with(&records),
            "sequences, epochs and times are the first ones"
        );
    }
}

/// A mark that only the cache has must not become part of a recorded end.
#[test]
fn d03_a_mark_whose_sync_failed_is_not_relied_on() {
    let disk = SimDisk::new(1);
    let (mut log, _) = open(&disk).expect("a new log");
    append_one(&mut log, 0).expect("power");
    disk.fail_next_sync();
    log.mark().expect_err("asked for");
    let disk = disk.crash();
    drop(open(&disk).expect("a log"));
    disk.power_cut(Unsynced::Lost);
    let (_, records) = recover(&disk.restarted()).expect("undamaged");
    assert_eq!(numbers(&records), [0]);
}

/// Goal: a failed sync anywhere, then a take-over, then a power cut: nothing acknowledged is
/// lost, and undamaged files are never called damaged.
/// Method: fail each sync of the workload in turn.
#[test]
fn d03_any_sync_may_fail() {
    let operations = operations_of_the_workload();
    for fail_at in 0..operations {
        let disk = SimDisk::new(fail_at);
        let mut run = Run::default();
        // The next sync from this operation on fails.
        let failing = FailingFrom {
            disk: disk.clone(),
            at: fail_at,
        };
        let ended = failing.run(&mut run);
        let disk = disk.crash();
        let context = format!("fail_at={fail_at} {ended:?}");
        let (log, records) = open(&disk).unwrap_or_else(|err| panic!("{context}: {err}"));
        check(&numbers(&records), &run, &context);
        drop(log);
        disk.power_cut(Unsynced::Lost);
        let after = recover(&disk.restarted()).unwrap_or_else(|err| panic!("{context}: {err}"));
        assert_eq!(numbers(&after.1), numbers(&records), "{context}");
    }
}

/// Runs the workload on a disk of which one sync fails.
struct FailingFrom {
    disk: SimDisk,
    at: u64,
}

impl FailingFrom {
    fn run(&self, run: &mut Run) -> Result<(), Error> {
        self.disk.fail_sync_from(self.at);
        workload(&self.disk, run)
    }
}

/// Tail and header have a sync each, though the counting rule alone would save an acknowledged
/// batch; what a test cannot see lost, it counts (WAL-28).
#[test]
fn d01_a_take_over_syncs_each_step() {
    let disk = SimDisk::new(1);
    drop(open(&disk).expect("a new log"));
    let before = disk.operations();
    drop(open(&disk).expect("a log with a tail"));
    // Raise and flush; create, zeros (two writes), sync, rename, sync the directory; a write and a
    // sync each of the tail, the header and the no-op; flush the page.
    assert_eq!(disk.operations() - before, 2 + 6 + 6 + 1);
}

/// The syncs of the two steps that make a segment known, in order (WAL-01, WAL-28).
#[test]
fn d01_a_segment_is_durable_before_it_is_used() {
    let disk = SimDisk::new(1);
    let (mut log, _) = open(&disk).expect("a new log");
    for first in [0, 9] {
        log.append(&mut big_batch(first), Room::Reserve)
            .expect("power");
        log.sync().expect("power");
    }
    let prepared = log.wants_segment().expect("half full").run().expect("room");
    let name = prepared.id.file_name();
    disk.power_cut(Unsynced::Lost);
    let disk = disk.restarted();
    let bytes = disk.contents(&name).expect("the name survives");
    assert_eq!(bytes.len() as u64, SEGMENT_SIZE_MIN);
    assert!(place::is_zero(&bytes));
    assert_eq!(
        disk.list().expect("power").len(),
        2,
        "no temporary file is left"
    );
}
