//! d01, d02, d03: a crash at every operation of many runs, with every fate of what was not synced.
//!
//! A run is a list of steps: appends, marks, rolls, take-overs by the next process or by one beside
//! a leader that goes on, clean-ups, purges. The disk is kept at each operation (and before each
//! sync, which then synced nothing); at each of these the process is killed, and the power is cut
//! with each fate; then the log is opened as a shard opens it: raise, read under the claim, take
//! over. What was answered must be there, in order; one batch that was not answered may follow,
//! whole; nothing else, ever. That a batch which one take-over did not find never comes back is part
//! of it. Covers WAL-01, WAL-03,
//! WAL-04, WAL-10, WAL-12, WAL-13, WAL-15 (clean-up and purge are crash-tested at each step),
//! WAL-16 (sequences never regress) and WAL-27.
//!
//! `OSTRACA_SWEEP_SEEDS=1000 cargo test -p ostraca-wal sweep` takes that many random runs, and
//! `OSTRACA_SWEEP_SEED=17` that one alone; a failure prints its own. The number of cycles per minute
//! is printed by
//! `cargo test --release -p ostraca-wal -- --ignored --nocapture crash_cycles_per_cpu_minute`.

use ostraca_io::{SeededEntropy, SimDisk, Unsynced};

use super::{SMALL, Stored};
use super::{clean_up, open_from, recover_from};
use crate::Error;

mod faults;
mod mutants;
mod run;
mod steps;
mod tap;

use run::Run;
use steps::{RESTARTS, ROLLS, SMALL_BATCHES, Step, TAKE_OVERS, WORKLOADS, any_steps};
use tap::Snapshot;

/// Opens as a shard does and tidies; the records that were handed out.
fn open_and_tidy(disk: &SimDisk, snapshot: &Snapshot) -> Result<Vec<Stored>, Error> {
    let (mut log, records) = open_from(disk, SMALL, snapshot.known.start())?;
    clean_up(&mut log)?;
    Ok(records)
}

/// One crash and its recoveries: a recovery; one more, of what the first made durable; and one
/// that is interrupted at an operation that `draw` says, and run again. The three are the same.
fn cycle(snapshot: &Snapshot, fate: Unsynced, draw: u64) -> Result<(), String> {
    let crashed = snapshot.disk.fork();
    crashed.set_capacity(u64::MAX);
    crashed.power_cut(fate);
    let disk = crashed.restarted();
    let interrupted = disk.fork();
    let fail = |what: &str, err: &dyn std::fmt::Display| format!("{what}: {err}");

    let first = open_and_tidy(&disk, snapshot).map_err(|err| fail("it does not open", &err))?;
    snapshot.known.judge(&first)?;

    // Nothing that was handed out depends on the cache.
    disk.power_cut(Unsynced::Lost);
    let disk = disk.restarted();
    let (_, second) = recover_from(&disk, snapshot.known.start())
        .map_err(|err| fail("it does not open again", &err))?;
    if !second.starts_with(&first) || second.len() != first.len() + 1 {
        return Err(format!("the second recovery differs: {second:?}"));
    }

    let again = Unsynced::ALL[usize::try_from(draw / 32 % 4).expect("small")];
    interrupted.power_cut_at(draw % 24, again);
    drop(open_and_tidy(&interrupted, snapshot));
    let interrupted = interrupted.restarted();
    let third = open_and_tidy(&interrupted, snapshot)
        .map_err(|err| fail("it does not open after an interrupted recovery", &err))?;
    // An interrupted one may have got as far as its no-op.
    if !third.starts_with(&first) || third.len() > first.len() + 1 {
        return Err(format!("the third recovery differs: {third:?}"));
    }
    Ok(())
}

/// The process is killed instead: the cache lives on, and the next one takes over from what it shows.
/// None of that may be gone after a power cut.
fn kill(snapshot: &Snapshot) -> Result<(), String> {
    let mut disk = snapshot.disk.fork().crash();
    disk.set_capacity(u64::MAX);
    let mut first = open_and_tidy(&disk, snapshot);
    if matches!(first, Err(Error::Io { .. })) {
        // It met a fault that waited.
        disk = disk.crash();
        first = open_and_tidy(&disk, snapshot);
    }
    let first = first.map_err(|err| format!("it does not open: {err}"))?;
    snapshot.known.judge(&first)?;
    disk.power_cut(Unsynced::Lost);
    let (_, second) = recover_from(&disk.restarted(), snapshot.known.start())
        .map_err(|err| format!("it does not open again: {err}"))?;
    if second.starts_with(&first) {
        Ok(())
    } else {
        Err(format!("only the cache had it: {first:?}"))
    }
}

/// All crashes of a run; how many.
fn crash_everywhere(run: &Run, seed: u64) -> Result<usize, String> {
    let snapshots = std::mem::take(&mut run.tap.record().snapshots);
    let chance = SeededEntropy::new(seed);
    let mut cycles = 0;
    for (position, snapshot) in snapshots.iter().enumerate() {
        kill(snapshot).map_err(|err| format!("snapshot={position} killed: {err}"))?;
        cycles += 1;
        for fate in Unsynced::ALL {
            let draw = chance.next();
            cycle(snapshot, fate, draw)
                .map_err(|err| format!("snapshot={position} fate={fate:?} draw={draw}: {err}"))?;
            cycles += 1;
        }
    }
    Ok(cycles)
}

fn crash_run(seed: u64, steps: &[Step]) -> Result<usize, String> {
    let mut run = Run::new(seed, None).keeping();
    run.take(steps).map_err(|stop| stop.to_string())?;
    crash_everywhere(&run, seed)
}

fn sweep(name: &str, steps: &[Step], at_least: usize) {
    let cycles = crash_run(1, steps).unwrap_or_else(|err| panic!("{name}: {err}"));
    assert!(cycles >= at_least, "{name} became too small: {cycles}");
}

/// WAL-03, WAL-04: whatever pattern a power cut leaves of small batches and marks.
#[test]
fn d01_small_batches_and_marks_survive_a_crash_at_every_operation() {
    sweep("small batches", SMALL_BATCHES, 100);
}

/// WAL-01: a segment is as durable as what it holds.
#[test]
fn d01_rolls_survive_a_crash_at_every_operation() {
    sweep("rolls", ROLLS, 150);
}

/// WAL-10, WAL-15: what is cut off and removed was needed by nobody, however much of it happened.
#[test]
fn d01_restarts_and_clean_ups_survive_a_crash_at_every_operation() {
    sweep("restarts", RESTARTS, 400);
}

/// FEN-01: the old leader's appends are in every later history, or in none.
#[test]
fn f03_take_overs_beside_a_live_leader_survive_a_crash_at_every_operation() {
    sweep("take-overs", TAKE_OVERS, 250);
}

const SEEDS_IN_CI: u64 = 12;
const STEPS: usize = 12;

fn number_in(variable: &str) -> Option<u64> {
    std::env::var(variable).ok()?.parse().ok()
}

/// Goal: no order of appends, crashes, take-overs, faults and tidying breaks a promise.
/// Method: random steps, faults among them; a crash at each operation of each.
#[test]
fn d01_random_runs_survive_a_crash_at_every_operation() {
    let only = number_in("OSTRACA_SWEEP_SEED");
    let seeds = match only {
        Some(seed) => seed..seed + 1,
        None => 0..number_in("OSTRACA_SWEEP_SEEDS").unwrap_or(SEEDS_IN_CI),
    };
    for seed in seeds {
        let steps = any_steps(seed, STEPS);
        if let Err(err) = crash_run(seed, &steps) {
            panic!("OSTRACA_SWEEP_SEED={seed} replays it: {err}\n{steps:#?}");
        }
    }
}

/// Prints how many crashes and recoveries a minute of one CPU has room for. A cycle is three
/// openings and a reading, as above.
#[test]
#[ignore = "a measurement; the head of this file says how to run it"]
#[expect(clippy::disallowed_methods, reason = "a measurement's own timer")]
fn crash_cycles_per_cpu_minute() {
    let start = std::time::Instant::now();
    let mut cycles = 0;
    let mut seed = 1000;
    while start.elapsed().as_secs() < 10 {
        for (name, steps) in WORKLOADS {
            cycles += crash_run(seed, steps).unwrap_or_else(|err| panic!("{name}: {err}"));
        }
        cycles += crash_run(seed, &any_steps(seed, STEPS)).unwrap_or_else(|err| panic!("{err}"));
        seed += 1;
    }
    let seconds = start.elapsed().as_secs_f64();
    #[expect(clippy::cast_precision_loss, reason = "for people")]
    let each_minute = cycles as f64 * 60.0 / seconds;
    println!("{each_minute:.0} crash-and-recover cycles each minute of one CPU ({cycles} in all)");
}
