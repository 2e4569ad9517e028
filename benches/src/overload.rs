//! One shard that is offered more than it can do: what it accepts, refuses and leaves standing, how
//! long each takes, and how much memory it takes meanwhile.
//!
//! First its capacity, in a closed loop. Then an open loop: a call is due at its time whatever became
//! of the earlier ones, and its latency counts from that time. The calls are commits, unary, over
//! several connections: independent callers are what overruns a shard, where a stream of creates is
//! held back by its own unanswered calls. Tickets are taken before the clock starts, so that every
//! call is one append. Two kinds:
//!
//! - `fresh`: each makes a paste. Latencies are of these. The shard's memory grows by the rows.
//! - `replays`: commits that were made before. Each is an append all the same, and its answer is the
//!   stored one; no row is added. What memory grows by here is what is in flight.
//!
//! Expected, on two cores: a commit takes 20 µs of the server's CPU, nearly all of it in the runtime's
//! thread, so that thread sets the capacity, at about 45,000 a second. The queue holds 8,192 and a
//! batch 2,048: at the shard thread's pace, 4 µs each, that is 40 ms of waiting at most. What waits
//! before it, in sockets and in the runtime, is bounded by 1,024 streams a connection: with 16
//! connections 16,384 calls, 360 ms at 45,000 a second. So p99 at 2x is 40 ms where the queue fills
//! first and refuses, and 360 ms where the runtime is what calls wait for; 10x is as 2x, as the rest is
//! held back by the limit of streams. Memory: some KiB a call in flight, 100 MiB at most.

#![allow(
    clippy::print_stdout,
    clippy::print_stderr,
    clippy::disallowed_methods,
    reason = "a benchmark prints and times"
)]
#![allow(clippy::cast_precision_loss, reason = "figures are rounded anyway")]

use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use clap::Parser;
use ostraca_benches::calls::{self, Pool};
use ostraca_benches::load::{Arrivals, Load, Report};
use ostraca_benches::shard_process::{ShardProcess, cpu_us, resident_mib, serve};
use ostraca_benches::{Failure, median};
use ostraca_client::{Client, Options, Seeds};
use ostraca_proto::v1;
use tonic::Code;
use tonic_types::StatusExt as _;
use v1::paste_service_client::PasteServiceClient;

/// Measures a shard that is offered more than it can do.
#[derive(Parser)]
struct Arguments {
    /// Seconds per level and round.
    #[arg(long, default_value_t = 5.0)]
    seconds: f64,
    /// Rounds; the figures are their medians.
    #[arg(long, default_value_t = 3)]
    rounds: usize,
    /// Connections, each with the streams that the server allows: 1,024.
    #[arg(long, default_value_t = 16)]
    connections: usize,
    /// Calls in flight while capacity is measured.
    #[arg(long, default_value_t = 256)]
    in_flight: usize,
    /// Runtime threads of the server.
    #[arg(long, default_value_t = 1)]
    server_threads: usize,
    /// Where the shard's directory is made; it decides which disk is measured.
    #[arg(long, default_value = "target")]
    dir: PathBuf,
    /// Serves a shard in this directory instead; for this program's own use.
    #[arg(long, hide = true)]
    serve: Option<PathBuf>,
    /// Who started that server.
    #[arg(long, hide = true, default_value_t = 0)]
    parent: u32,
}

/// Offered load as a part of capacity.
const LEVELS: [(&str, f64); 3] = [("80 %", 0.8), ("2x", 2.0), ("10x", 10.0)];
const KINDS: [&str; 2] = ["fresh", "replays"];
/// Pastes that are committed again and again.
const REPLAYED: usize = 4096;
/// How often memory, queue and an outsider's call are looked at.
const LOOK: Duration = Duration::from_millis(50);

fn main() -> Result<(), Failure> {
    let arguments = Arguments::parse();
    match &arguments.serve {
        Some(dir) => serve(dir, arguments.server_threads, arguments.parent),
        None => measure(&arguments),
    }
}

/// What an outsider saw during a level.
#[derive(Default)]
struct Seen {
    resident_mib: Vec<f64>,
    queued_max: u64,
    /// Refusals that did not say when to come again.
    without_delay: u64,
    /// What the stock client's own commits took, in milliseconds, and those that were refused.
    commit_ms: Vec<f64>,
    refused_ms: Vec<f64>,
}

/// One level of one round.
#[derive(Clone)]
struct Level {
    offered: f64,
    sent: f64,
    accepted: f64,
    refused: f64,
    held_back: f64,
    failed: f64,
    p50_ms: f64,
    p99_ms: f64,
    max_ms: f64,
    refused_p99_ms: f64,
    resident_mib: [f64; 3],
    in_flight_max: f64,
    queued_max: f64,
    per_sync: f64,
    server_cores: f64,
    client_cores: f64,
    late_p99_ms: f64,
    outsider_max_ms: f64,
    without_delay: f64,
}

fn measure(arguments: &Arguments) -> Result<(), Failure> {
    let server = ShardProcess::start(&arguments.dir, arguments.server_threads)?;
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()?;
    let window = Duration::from_secs_f64(arguments.seconds);
    let mut load = Load::connect(&server.address, arguments.connections)?;
    let begin = |count| runtime.block_on(calls::begin(&server.address, count, |_| true));
    let replayed = begin(REPLAYED)?;
    let mut pools = [None, Some(Pool::replays(&replayed))];
    let closed = Arrivals::Closed(arguments.in_flight);
    let mut figures = vec![vec![Vec::new(); LEVELS.len()]; KINDS.len()];
    let mut capacities = vec![Vec::new(); KINDS.len()];
    for round in 0..arguments.rounds {
        for (which, kind) in KINDS.into_iter().enumerate() {
            eprintln!("round {} of {}, {kind}", round + 1, arguments.rounds);
            // Of fresh ones, as many as the shard could take in a second and in such a window.
            let mut capacity = 100_000.0;
            for level in [None, Some(0), Some(1), Some(2)] {
                if kind == "fresh" {
                    #[allow(
                        clippy::cast_possible_truncation,
                        clippy::cast_sign_loss,
                        reason = "a count of calls"
                    )]
                    let count = (capacity * arguments.seconds * 1.5) as usize + 40_000;
                    pools[which] = Some(Pool::fresh(&begin(count)?));
                }
                let pool = pools[which].as_mut().ok_or("no calls")?;
                let Some(level) = level else {
                    load.drive(pool, closed, window / 4, &|| false)?;
                    let report = load.drive(pool, closed, window, &|| false)?;
                    capacity = report.per_second(report.accepted);
                    capacities[which].push(capacity);
                    continue;
                };
                let rate = LEVELS[level].1 * capacity;
                let figure = measure_level(&server, &runtime, &replayed[0], || {
                    load.drive(pool, Arrivals::Open(rate), window, &|| false)
                })?;
                figures[which][level].push(figure);
            }
        }
    }
    print(&capacities, &figures);
    Ok(())
}

fn measure_level(
    server: &ShardProcess,
    runtime: &tokio::runtime::Runtime,
    outsiders: &v1::CommitCreateRequest,
    drive: impl FnOnce() -> Result<Report, Failure>,
) -> Result<Level, Failure> {
    let client = client(&server.address);
    let status = || runtime.block_on(client.status_of(&server.address));
    let (own, pid) = (std::process::id(), server.pid());
    let before = status()?;
    let (cpu, own_cpu, started) = (cpu_us(pid)?, cpu_us(own)?, Instant::now());
    let looking = look(server.address.clone(), pid, outsiders.clone());
    let report = drive();
    let took_us = started.elapsed().as_micros() as f64;
    let (cpu, own_cpu) = (cpu_us(pid)? - cpu, cpu_us(own)? - own_cpu);
    let (report, seen) = (report?, looking.end()?);
    let after = status()?;
    let ms = |histogram: &hdrhistogram::Histogram<u64>, quantile| {
        histogram.value_at_quantile(quantile) as f64 / 1000.0
    };
    let resident = &seen.resident_mib;
    let outsiders = seen.commit_ms.iter().chain(&seen.refused_ms).copied();
    Ok(Level {
        offered: report.per_second(report.due),
        sent: 1.0 - report.held_back as f64 / report.due.max(1) as f64,
        accepted: report.per_second(report.accepted),
        refused: report.per_second(report.refused),
        held_back: report.per_second(report.held_back),
        failed: report.failed as f64,
        p50_ms: ms(&report.accepted_us, 0.5),
        p99_ms: ms(&report.accepted_us, 0.99),
        max_ms: report.accepted_us.max() as f64 / 1000.0,
        refused_p99_ms: ms(&report.refused_us, 0.99),
        resident_mib: [
            resident.first().copied().unwrap_or_default(),
            resident.last().copied().unwrap_or_default(),
            resident.iter().copied().fold(0.0, f64::max),
        ],
        in_flight_max: report.in_flight_max as f64,
        queued_max: seen.queued_max as f64,
        per_sync: (after.commits - before.commits) as f64
            / (after.syncs - before.syncs).max(1) as f64,
        server_cores: cpu / took_us,
        client_cores: own_cpu / took_us,
        late_p99_ms: ms(&report.late_us, 0.99),
        outsider_max_ms: outsiders.fold(0.0, f64::max),
        without_delay: seen.without_delay as f64,
    })
}

fn client(address: &str) -> Client {
    Client::new(Options {
        cluster: None,
        seeds: Seeds::Fixed(vec![address.to_owned()]),
        deadline: Duration::from_secs(30),
    })
}

/// A thread that looks at the shard from outside.
struct Looking {
    stop: Arc<AtomicBool>,
    thread: JoinHandle<Result<Seen, Failure>>,
}

impl Looking {
    fn end(self) -> Result<Seen, Failure> {
        self.stop.store(true, Ordering::Relaxed);
        self.thread.join().map_err(|_| "a look panicked")?
    }
}

fn look(address: String, pid: u32, commit: v1::CommitCreateRequest) -> Looking {
    let stop = Arc::new(AtomicBool::new(false));
    let stopped = Arc::clone(&stop);
    let thread = std::thread::spawn(move || {
        let runtime = tokio::runtime::Builder::new_current_thread()
            .enable_all()
            .build()?;
        let mut seen = Seen::default();
        let (resident, outsider) = runtime.block_on(async {
            let client = client(&address);
            let mut resident = vec![resident_mib(pid)?];
            let mut service = PasteServiceClient::connect(format!("http://{address}")).await?;
            let memory = async {
                let mut ticks = tokio::time::interval(LOOK);
                while !stopped.load(Ordering::Relaxed) {
                    ticks.tick().await;
                    resident.push(resident_mib(pid)?);
                }
                Ok::<_, Failure>(())
            };
            let outsider = async {
                let mut ticks = tokio::time::interval(LOOK);
                while !stopped.load(Ordering::Relaxed) {
                    ticks.tick().await;
                    let queued = client.status_of(&address).await?.queued;
                    seen.queued_max = seen.queued_max.max(queued);
                    let asked = Instant::now();
                    let answer = service.commit_create(commit.clone()).await;
                    let ms = asked.elapsed().as_secs_f64() * 1000.0;
                    match answer {
                        Ok(_) => seen.commit_ms.push(ms),
                        Err(status) if status.code() == Code::ResourceExhausted => {
                            seen.refused_ms.push(ms);
                            let details = status.get_error_details();
                            let delay = details.retry_info().and_then(|info| info.retry_delay);
                            seen.without_delay += u64::from(delay.is_none_or(|d| d.is_zero()));
                        }
                        Err(status) => return Err(status.into()),
                    }
                }
                Ok::<_, Failure>(())
            };
            let (memory, outsider) = tokio::join!(memory, outsider);
            memory?;
            Ok::<_, Failure>((resident, outsider))
        })?;
        outsider?;
        seen.resident_mib = resident;
        Ok(seen)
    });
    Looking { stop, thread }
}

fn print(capacities: &[Vec<f64>], figures: &[Vec<Vec<Level>>]) {
    let rows = || {
        KINDS.into_iter().enumerate().flat_map(|(which, kind)| {
            let levels = LEVELS.into_iter().enumerate();
            levels.map(move |(level, (name, _))| (kind, name, which, level))
        })
    };
    let of = |which: usize, level: usize, field: fn(&Level) -> f64| -> f64 {
        median(figures[which][level].iter().map(field))
    };
    for (which, kind) in KINDS.into_iter().enumerate() {
        println!(
            "capacity, {kind}: {:.0}/s",
            median(capacities[which].iter().copied())
        );
    }
    println!();
    println!(
        "| calls | level | offered/s | sent | accepted/s | refused/s | held back/s | errors | \
         p50 ms | p99 ms | max ms | p99 / at 80 % | refusal p99 ms | RssAnon first, last, max MiB |"
    );
    println!("| --- | --- |{}", " ---: |".repeat(12));
    for (kind, name, which, level) in rows() {
        let of = |field| of(which, level, field);
        let at_80 = median(figures[which][0].iter().map(|l| l.p99_ms));
        let refused_p99 = if of(|l| l.refused) > 0.0 {
            format!("{:.1}", of(|l| l.refused_p99_ms))
        } else {
            "-".to_owned()
        };
        println!(
            "| {kind} | {name} | {:.0} | {:.0} % | {:.0} | {:.0} | {:.0} | {:.0} | {:.2} | {:.1} | {:.1} | {:.1} | {refused_p99} | {:.0}, {:.0}, {:.0} |",
            of(|l| l.offered),
            100.0 * of(|l| l.sent),
            of(|l| l.accepted),
            of(|l| l.refused),
            of(|l| l.held_back),
            of(|l| l.failed),
            of(|l| l.p50_ms),
            of(|l| l.p99_ms),
            of(|l| l.max_ms),
            of(|l| l.p99_ms) / at_80,
            of(|l| l.resident_mib[0]),
            of(|l| l.resident_mib[1]),
            of(|l| l.resident_mib[2]),
        );
    }
    println!();
    println!(
        "| calls | level | in flight, max | / accepted a second, ms | queued, max | calls per sync | \
         server cores | client cores | client late, p99 ms | outsider's commit, slowest ms | refusals without a delay |"
    );
    println!("| --- | --- |{}", " ---: |".repeat(9));
    for (kind, name, which, level) in rows() {
        let of = |field| of(which, level, field);
        println!(
            "| {kind} | {name} | {:.0} | {:.0} | {:.0} | {:.0} | {:.2} | {:.2} | {:.2} | {:.0} | {:.0} |",
            of(|l| l.in_flight_max),
            1000.0 * of(|l| l.in_flight_max) / of(|l| l.accepted + l.refused).max(1.0),
            of(|l| l.queued_max),
            of(|l| l.per_sync),
            of(|l| l.server_cores),
            of(|l| l.client_cores),
            of(|l| l.late_p99_ms),
            of(|l| l.outsider_max_ms),
            of(|l| l.without_delay),
        );
    }
}
