//! `cargo run --release -p ostraca-sim -- --seeds N`: runs seeds, as many at once as there are cores.

#![expect(
    clippy::print_stdout,
    clippy::print_stderr,
    clippy::disallowed_methods,
    reason = "a program that prints, and says how long it took"
)]

use std::collections::BTreeMap;
use std::process::ExitCode;
use std::sync::Mutex;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::time::Instant;

use clap::Parser;
use ostraca_sim::{Options, Report, kinds, run, shrink};

#[derive(Debug, Parser)]
#[command(about = "Runs shards, clients and workers under faults, by seeds.")]
struct Arguments {
    /// How many seeds to run.
    #[arg(long, default_value_t = 1000)]
    seeds: u64,
    /// The first of them.
    #[arg(long, default_value_t = 0)]
    from: u64,
    /// Seeds at once; 0 for one a core.
    #[arg(long, default_value_t = 0)]
    jobs: usize,
    /// Prints what happens.
    #[arg(long)]
    trace: bool,
    /// Leaves out kinds of faults; as often as wanted.
    #[arg(long)]
    without: Vec<String>,
    /// No faults after so many nanoseconds.
    #[arg(long)]
    faults_until: Option<u64>,
    /// Leaves out of a run that failed what it fails without.
    #[arg(long)]
    shrink: bool,
    /// Goes on after a seed that failed.
    #[arg(long)]
    all: bool,
    /// Takes a seed for failed only if it has a finding of this kind, or does not come to its end
    /// (Stuck); as often as wanted.
    #[arg(long)]
    expect: Vec<String>,
    /// Tells what happened, in how many seeds, and in which one first.
    #[arg(long)]
    counts: bool,
}

/// What happened in some seeds.
type Counts = BTreeMap<String, (usize, u64)>;

thread_local! {
    static SEED: std::cell::Cell<u64> = const { std::cell::Cell::new(0) };
}

fn main() -> ExitCode {
    let arguments = Arguments::parse();
    if let Some(unknown) = arguments
        .without
        .iter()
        .find(|kind| !kinds().contains(kind))
    {
        eprintln!(
            "no kind of fault is named {unknown}; there are {}",
            kinds().join(", ")
        );
        return ExitCode::from(2);
    }
    let before = std::panic::take_hook();
    std::panic::set_hook(Box::new(move |info| {
        let seed = SEED.get();
        eprintln!("seed {seed} panics; replay with --from {seed} --seeds 1 --trace");
        before(info);
    }));
    let cores = std::thread::available_parallelism().map_or(1, usize::from);
    let jobs = if arguments.jobs == 0 {
        cores
    } else {
        arguments.jobs
    };
    let end = arguments.from.saturating_add(arguments.seeds);
    let next = AtomicU64::new(arguments.from);
    let [done, crashes, calls, failed] = [const { AtomicUsize::new(0) }; 4];
    let counts: Mutex<Counts> = Mutex::default();
    let started = Instant::now();
    std::thread::scope(|scope| {
        for _ in 0..jobs {
            scope.spawn(|| {
                while failed.load(Ordering::Relaxed) == 0 || arguments.all {
                    let seed = next.fetch_add(1, Ordering::Relaxed);
                    if seed >= end {
                        return;
                    }
                    SEED.set(seed);
                    let options = Options {
                        seed,
                        tells: arguments.trace,
                        without: arguments.without.clone(),
                        faults_until: arguments.faults_until,
                    };
                    let mut report = run(&options);
                    let fails = is_expected(&report, &arguments.expect);
                    if arguments.shrink && fails {
                        report = shrink(&report);
                    }
                    if arguments.counts {
                        add(&mut counts.lock().expect("nobody panicked"), &report);
                    }
                    if fails {
                        failed.fetch_add(1, Ordering::Relaxed);
                        println!("{report}");
                    } else if arguments.trace {
                        println!("{report}");
                    }
                    done.fetch_add(1, Ordering::Relaxed);
                    crashes.fetch_add(report.crashes, Ordering::Relaxed);
                    calls.fetch_add(report.calls, Ordering::Relaxed);
                }
            });
        }
    });
    let took = started.elapsed().as_secs_f64();
    for (what, (seeds, first)) in counts.into_inner().expect("nobody panicked") {
        println!("{seeds:>8} seeds, from {first:>6}: {what}");
    }
    let [done, crashes, calls, failed] =
        [&done, &crashes, &calls, &failed].map(|count| count.load(Ordering::Relaxed));
    println!(
        "{done} seeds, {failed} failed, {crashes} crashes, {calls} calls, {took:.1} s on {jobs} threads"
    );
    if failed == 0 {
        ExitCode::SUCCESS
    } else {
        ExitCode::FAILURE
    }
}

/// Whether a run failed, and in a way that is looked for.
fn is_expected(report: &Report, expected: &[String]) -> bool {
    let found = report.verdict.findings.iter();
    let found = found.map(|finding| format!("{:?}", finding.kind));
    let stuck = report.stuck.iter().map(|_| "Stuck".to_owned());
    let mut found = found.chain(stuck);
    !report.is_good() && (expected.is_empty() || found.any(|kind| expected.contains(&kind)))
}

fn add(counts: &mut Counts, report: &Report) {
    let seed = report.options.seed;
    for what in report.counts.keys() {
        let (seeds, first) = counts.entry(what.clone()).or_insert((0, seed));
        *seeds += 1;
        *first = seed.min(*first);
    }
}
