//! d03 and d04: one operation of a run fails, or meets a full disk; d02 and d05: one write goes
//! astray in the device.

use ostraca_io::Unsynced;

use super::super::{IDENTITY, open_from, recover_from};
use super::run::{End, Run, Stop, operations_of};
use super::steps::{Load, RESTARTS, ROLLS, SMALL_BATCHES, Step, TAKE_OVERS, WORKLOADS};
use super::tap::{Fault, Place};
use super::{SMALL, cycle};
use crate::{Error, read_epoch_page};

/// Takes the steps with one fault, and crashes in the end; returns how many failures were met.
fn run_with_fault(steps: &[Step], operation: usize, fault: Fault, end: End) -> usize {
    let seed = operation as u64;
    let mut run = Run::new(seed, None).with_fault(operation, fault, end);
    let context = || format!("operation={operation} {fault:?} {end:?}");
    run.take(steps)
        .unwrap_or_else(|stop| panic!("{}: {stop}", context()));
    // What is promised by now depends on no cache, and on nothing that failed.
    cycle(&run.now(), Unsynced::Lost, seed).unwrap_or_else(|err| panic!("{}: {err}", context()));
    run.failures
}

/// Every end where a run is short; where it is long they take turns.
fn ends(steps: &[Step], position: usize) -> &'static [End] {
    if steps == SMALL_BATCHES {
        &End::ALL
    } else {
        let turn = position % End::ALL.len();
        &End::ALL[turn..=turn]
    }
}

/// Goal: no sync that fails takes anything along that was answered (WAL-24), and none is retried as
/// if it had not failed.
/// Method: fail each sync of each run, of files, directory and page; then the process is killed, the
/// cache is evicted too so that old bytes come back, or the power goes.
#[test]
fn d03_any_sync_of_any_run_may_fail() {
    let mut failures = 0;
    for (_, steps) in WORKLOADS {
        for (position, operation) in operations_of(steps).syncs.into_iter().enumerate() {
            for end in ends(steps, position) {
                failures += run_with_fault(steps, operation, Fault::Sync, *end);
            }
        }
    }
    assert!(failures > 100, "{failures}");
}

/// Goal: a write that fails half done is a torn one, and is refused or cut.
#[test]
fn d03_any_write_of_any_run_may_fail() {
    let mut failures = 0;
    for (_, steps) in WORKLOADS {
        for (position, operation) in operations_of(steps).writes.into_iter().enumerate() {
            for end in ends(steps, position + 1) {
                failures += run_with_fault(steps, operation, Fault::Write, *end);
            }
        }
    }
    assert!(failures > 100, "{failures}");
}

/// Goal: a disk that is full at any moment refuses what it has no room for, and nothing else; what
/// was written goes on being used, and the next opening works (WAL-07, WAL-09).
#[test]
fn d04_the_disk_may_be_full_at_every_operation() {
    let mut failures = 0;
    for steps in [ROLLS, RESTARTS, TAKE_OVERS] {
        for operation in 0..operations_of(steps).operations {
            failures += run_with_fault(steps, operation, Fault::Full, End::Killed);
        }
    }
    assert!(failures > 100, "{failures}");
}

/// Two openings, the second with a tail to write again; a mark in the middle, no mark in the end.
const SMALL_LOG: &[Step] = &[
    Step::Append(Load::One),
    Step::Append(Load::Few),
    Step::Kill,
    Step::Append(Load::One),
    Step::Mark,
    Step::Append(Load::Few),
    Step::Append(Load::One),
];

const PLACES: [Place; 10] = [
    Place::Nowhere,
    Place::Shifted(512),
    Place::Shifted(-512),
    Place::Shifted(1024),
    Place::Shifted(4096),
    Place::Shifted(-4096),
    Place::Shifted(70),
    Place::Segment(2, 0),
    Place::Segment(2, 8192),
    Place::Segment(3, 8192),
];

/// Goal: a write that the device puts nowhere, or over something else, loses nothing silently
/// (WAL-19).
/// Method: each write of a small log, to each of some places, seen at once or after the cache only;
/// then the process is killed, or the power goes. After a kill what is found is all that was
/// answered. After a power cut the hint of the page is that of the last opening: what is appended
/// after it may be missing from some batch on, as FORMAT.md says ("What one copy on one disk cannot
/// tell"), and no record before the hint.
#[test]
fn d02_no_write_that_goes_astray_is_a_silent_loss() {
    let (mut refused, mut harmless, mut shortened) = (0, 0, 0);
    for operation in operations_of(SMALL_LOG).writes {
        for to in PLACES {
            for (hidden, cut) in [(false, false), (false, true), (true, false), (true, true)] {
                let context = format!("operation={operation} {to:?} hidden={hidden} cut={cut}");
                let fault = Fault::Astray { to, hidden };
                let mut run = Run::new(1, None).with_fault(operation, fault, End::Killed);
                match run.take(SMALL_LOG) {
                    Ok(()) => {}
                    Err(Stop::Refused(err)) => {
                        assert_is_named(&err, &context);
                        refused += 1;
                        continue;
                    }
                    Err(Stop::Broken(err)) => panic!("{context}: {err}"),
                }
                let snapshot = run.now();
                let disk = if cut {
                    snapshot.disk.power_cut(Unsynced::Lost);
                    snapshot.disk.restarted()
                } else {
                    snapshot.disk.crash()
                };
                let page = read_epoch_page(disk.page(), &IDENTITY).expect("readable");
                let hint = page.durable.expect("known");
                let records = match open_from(&disk, SMALL, snapshot.known.start()) {
                    Ok((_, records)) => records,
                    Err(err) => {
                        assert_is_named(&err, &context);
                        refused += 1;
                        continue;
                    }
                };
                match snapshot.known.judge(&records) {
                    Ok(()) => harmless += 1,
                    Err(err) => {
                        let last = records.last().expect("a no-op").sequence;
                        assert!(cut && last >= hint, "{context}: {err}");
                        let shorter = snapshot.known.only_up_to(last);
                        shorter.judge(&records).expect("a prefix");
                        shortened += 1;
                    }
                }
                // What was handed out stays.
                let (_, again) = recover_from(&disk.crash(), snapshot.known.start())
                    .unwrap_or_else(|err| panic!("{context}: {err}"));
                assert!(again.starts_with(&records), "{context}");
            }
        }
    }
    assert!(
        refused > 100 && harmless > 50 && (1..refused / 2).contains(&shortened),
        "{refused} refused, {harmless} harmless, {shortened} shorter"
    );
}

fn assert_is_named(err: &Error, context: &str) {
    assert!(matches!(err, Error::Damaged { .. }), "{context}: {err}");
}
