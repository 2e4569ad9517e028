//! What the trouble of one shard does to the others: throughput and p99 of their slots before, during
//! and after.
//!
//! `ostraca up` with several shards and no standbys; one client, as a frontend has it, creates over all
//! slots at half of what was measured to be possible. Then something happens to shard 0:
//!
//! - `nothing`: how far the figures differ by themselves.
//! - `killed`: SIGKILL; `up` starts it again.
//! - `stopped`: SIGSTOP for the whole phase, then SIGCONT. Its calls wait until then, or for their
//!   deadline of 5 s.
//! - `full`: files of its directory cannot grow; its creates are refused once what it has prepared is used
//!   up. Only with a program that has the feature `faults` (docs/faults.md), whose clocks and disks read a
//!   script at every call: compare its figures with those of its own phase before.
//! - `overrun`: other clients send it several times what it can do, past the client that is measured.
//! - `stranger overrun`: the same load on a shard of another cluster on this machine. What it does to
//!   all shards is the machine's doing, as cores and disk are shared; the difference between this and
//!   `overrun` is what the cluster adds.
//!
//! A latency counts from when its create was due, and belongs to the phase in which that was.
//!
//! Expected: the shards share nothing but the machine and the client, so at half load the others keep
//! their throughput, 1.00, in each case, and their p99 of some ms within its own spread when shard 0 is
//! killed, stopped or full: a dead or silent shard takes no CPU, a refusal less than a create, and the
//! client has connections to each. A
//! restart reads the log, one core for a moment. Overrun, shard 0 takes as much of two cores as the
//! scheduler gives it: the p99 of the others grows by time slices of a few ms, the stranger's as much.

#![allow(
    clippy::print_stdout,
    clippy::print_stderr,
    clippy::disallowed_methods,
    reason = "a benchmark prints and times"
)]
#![allow(clippy::cast_precision_loss, reason = "figures are rounded anyway")]

use std::path::{Path, PathBuf};
use std::process::Command;
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use clap::{Parser, ValueEnum};
use ostraca_benches::calls::{self, Pool};
use ostraca_benches::load::{Arrivals, Load, Report};
use ostraca_benches::paced::{self, Created, Owners};
use ostraca_benches::shard_process::{ShardProcess, serve};
use ostraca_benches::up_process::UpProcess;
use ostraca_benches::{Failure, median};
use ostraca_client::{Client, Options};
use ostraca_io::{files, process};

/// Measures what the trouble of one shard does to the others.
#[derive(Parser)]
struct Arguments {
    /// Seconds per phase: before, during, after.
    #[arg(long, default_value_t = 4.0)]
    seconds: f64,
    /// Rounds; the figures are their medians.
    #[arg(long, default_value_t = 3)]
    rounds: usize,
    /// What happens, in each round; all that the program can do unless given.
    #[arg(long, value_enum, value_delimiter = ',')]
    events: Vec<Event>,
    /// Shards.
    #[arg(long, default_value_t = 4, value_parser = clap::value_parser!(u16).range(2..=64))]
    shards: u16,
    /// Offered load as a part of what is possible.
    #[arg(long, default_value_t = 0.5)]
    load: f64,
    /// What overruns a shard, as a multiple of what it alone can do.
    #[arg(long, default_value_t = 5.0)]
    overrun: f64,
    /// The program; beside this one unless given.
    #[arg(long)]
    ostraca: Option<PathBuf>,
    /// Where the data directories are made; it decides which disk is measured.
    #[arg(long, default_value = "target")]
    dir: PathBuf,
    /// Runtime threads of the stranger.
    #[arg(long, default_value_t = 2)]
    server_threads: usize,
    /// Serves a shard in this directory instead; for this program's own use.
    #[arg(long, hide = true)]
    serve: Option<PathBuf>,
    /// Who started that server.
    #[arg(long, hide = true, default_value_t = 0)]
    parent: u32,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
enum Event {
    Nothing,
    Killed,
    Stopped,
    Full,
    Overrun,
    StrangerOverrun,
}

impl Event {
    const fn name(self) -> &'static str {
        match self {
            Self::Nothing => "nothing",
            Self::Killed => "killed",
            Self::Stopped => "stopped",
            Self::Full => "full",
            Self::Overrun => "overrun",
            Self::StrangerOverrun => "stranger overrun",
        }
    }
}

const PHASES: usize = 3;
/// Left out at the start of the first phase.
const WARM_UP: Duration = Duration::from_secs(1);
/// A shard that was killed serves again within that.
const SERVES_WITHIN: Duration = Duration::from_secs(60);
const IN_FLIGHT: usize = 64;
const CONNECTIONS: usize = 16;
const REPLAYED: usize = 1024;

fn main() -> Result<(), Failure> {
    let arguments = Arguments::parse();
    if let Some(dir) = &arguments.serve {
        return serve(dir, arguments.server_threads, arguments.parent);
    }
    let program = match &arguments.ostraca {
        Some(program) => program.clone(),
        None => std::env::current_exe()?.with_file_name("ostraca"),
    };
    if !program.is_file() {
        let program = program.display();
        return Err(format!("no {program}: run `cargo build --release` first").into());
    }
    let has_faults = has_faults(&program)?;
    let events = if arguments.events.is_empty() {
        let all = Event::value_variants().iter().copied();
        all.filter(|event| *event != Event::Full || has_faults)
            .collect()
    } else {
        arguments.events.clone()
    };
    if events.contains(&Event::Full) && !has_faults {
        let build =
            "cargo build --release -p ostraca-cli --features faults --target-dir target/faults";
        return Err(format!(
            "`full` needs --ostraca with a build that has the feature faults: {build}"
        )
        .into());
    }
    let up = UpProcess::start(&program, &arguments.dir, arguments.shards)?;
    let stranger = ShardProcess::start(&arguments.dir, arguments.server_threads)?;
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()?;
    runtime.block_on(measure(&arguments, &events, &up, &stranger))
}

fn has_faults(program: &Path) -> Result<bool, Failure> {
    let version = Command::new(program).arg("--version").output()?;
    let version = String::from_utf8(version.stdout)?;
    Ok(version.split_whitespace().any(|word| word == "faults"))
}

/// One shard's figures of one phase.
#[derive(Debug, Clone, Copy, Default)]
struct Figures {
    per_second: f64,
    p99_ms: f64,
    failed: f64,
    /// How late the client came to a create: a part of its latency that is no shard's.
    late_p99_ms: f64,
}

/// What one event of one round did.
#[derive(Debug, Clone)]
struct Seen {
    /// By shard and phase.
    shards: Vec<[Figures; PHASES]>,
    /// All but shard 0, by phase.
    others: [Figures; PHASES],
    /// The longest time in which shard 0 answered nothing.
    silent_ms: f64,
    /// How busy the machine's cores were, by phase.
    busy: [f64; PHASES],
    /// Of what overran a shard: sent, accepted and refused a second.
    overrun: Option<[f64; 3]>,
}

/// What overruns a shard, and what it can do.
struct Target {
    address: String,
    commits: Vec<ostraca_proto::v1::CommitCreateRequest>,
    capacity: f64,
}

async fn measure(
    arguments: &Arguments,
    events: &[Event],
    up: &UpProcess,
    stranger: &ShardProcess,
) -> Result<(), Failure> {
    let client = Client::new(Options::new(up.seeds()));
    let owners = paced::owners(&client).await?;
    let window = Duration::from_secs_f64(arguments.seconds);
    paced::capacity(&client, &owners, IN_FLIGHT, WARM_UP).await?;
    let possible = paced::capacity(&client, &owners, IN_FLIGHT, window).await?;
    let mut seen = vec![Vec::new(); events.len()];
    let mut alone = Vec::new();
    for round in 0..arguments.rounds {
        for (which, event) in events.iter().copied().enumerate() {
            let (of, name) = (arguments.rounds, event.name());
            eprintln!("round {} of {of}, {name}", round + 1);
            let target = match event {
                Event::Overrun => {
                    let shard = up.shard(0)?.and_then(|shard| shard.grpc);
                    let owners = owners.clone();
                    let on_0 = move |slot: ostraca_types::Slot| owners[usize::from(slot.0)] == 0;
                    Some(target(shard.ok_or("shard 0 is away")?, on_0).await?)
                }
                Event::StrangerOverrun => Some(target(stranger.address.clone(), |_| true).await?),
                Event::Nothing | Event::Killed | Event::Stopped | Event::Full => None,
            };
            if let (Event::Overrun, Some(target)) = (event, &target) {
                alone.push(target.capacity);
            }
            let rate = possible * arguments.load;
            let happens = Happens {
                event,
                window,
                overrun: arguments.overrun,
                target,
            };
            seen[which].push(happens.measure(up, &client, &owners, rate).await?);
            serves_again(up, &client, &owners).await?;
        }
    }
    println!(
        "possible: {possible:.0} creates/s; offered: {:.0}/s; one shard alone: {:.0} commits/s",
        possible * arguments.load,
        median(alone),
    );
    print(events, &seen);
    Ok(())
}

async fn target(
    address: String,
    wanted: impl Fn(ostraca_types::Slot) -> bool + Send + 'static,
) -> Result<Target, Failure> {
    let commits = calls::begin(&address, REPLAYED, wanted).await?;
    let (at, prepared) = (address.clone(), commits.clone());
    let report = tokio::task::spawn_blocking(move || {
        let mut load = Load::connect(&at, CONNECTIONS)?;
        let mut pool = Pool::replays(&prepared);
        load.drive(&mut pool, Arrivals::Closed(4 * IN_FLIGHT), WARM_UP, &|| {
            false
        })
    })
    .await??;
    Ok(Target {
        address,
        commits,
        capacity: report.per_second(report.accepted),
    })
}

async fn serves_again(up: &UpProcess, client: &Client, owners: &Owners) -> Result<(), Failure> {
    let started = Instant::now();
    while up.shard(0)?.is_none() || !paced::create_on(client, owners, 0).await {
        if started.elapsed() > SERVES_WITHIN {
            return Err("shard 0 does not serve again".into());
        }
        tokio::time::sleep(Duration::from_millis(50)).await;
    }
    Ok(())
}

/// What sends too much.
type Overrunning = JoinHandle<Result<Report, Failure>>;

/// An event, and the load around it.
struct Happens {
    event: Event,
    window: Duration,
    overrun: f64,
    target: Option<Target>,
}

impl Happens {
    async fn measure(
        &self,
        up: &UpProcess,
        client: &Client,
        owners: &Owners,
        rate: f64,
    ) -> Result<Seen, Failure> {
        let started = Instant::now();
        let begins = started + WARM_UP + self.window;
        let ends = begins + self.window;
        let all = async {
            tokio::time::sleep_until((started + WARM_UP).into()).await;
            let mut busy = vec![cores()?];
            tokio::time::sleep_until(begins.into()).await;
            busy.push(cores()?);
            let flood = self.begin(up)?;
            tokio::time::sleep_until(ends.into()).await;
            match self.event {
                Event::Stopped => process::resume(pid(up)?)?,
                Event::Full => up.script_disk("")?,
                _ => {}
            }
            busy.push(cores()?);
            tokio::time::sleep_until((ends + self.window).into()).await;
            busy.push(cores()?);
            Ok::<_, Failure>((busy, flood))
        };
        let load = paced::run(client, owners, rate, ends + self.window);
        let (created, marks) = tokio::join!(load, all);
        let ((busy, flood), created) = (marks?, created?);
        let report = flood.map(|flood| flood.join().map_err(|_| "the load panicked"));
        let report = report.transpose()?.transpose()?;
        let starts = [started + WARM_UP, begins, ends];
        let shards = owners.iter().max().map_or(0, |last| last + 1);
        let of = |wanted: &dyn Fn(usize) -> bool| {
            starts.map(|start| figures(&created, wanted, start, self.window))
        };
        Ok(Seen {
            shards: (0..shards).map(|shard| of(&|at| at == shard)).collect(),
            others: of(&|at| at != 0),
            silent_ms: silence(&created),
            busy: std::array::from_fn(|phase| {
                let (from, to) = (busy[phase], busy[phase + 1]);
                (to.0 - from.0) / (to.1 - from.1)
            }),
            overrun: report.map(|report| {
                let sent = report.due - report.held_back;
                [sent, report.accepted, report.refused].map(|count| report.per_second(count))
            }),
        })
    }

    fn begin(&self, up: &UpProcess) -> Result<Option<Overrunning>, Failure> {
        match self.event {
            Event::Nothing => {}
            Event::Killed => process::kill(pid(up)?)?,
            Event::Stopped => process::pause(pid(up)?)?,
            Event::Full => up.script_disk("room 0 shard-0")?,
            Event::Overrun | Event::StrangerOverrun => {
                let target = self.target.as_ref().ok_or("nothing to overrun")?;
                let arrivals = Arrivals::Open(self.overrun * target.capacity);
                let (window, address) = (self.window, target.address.clone());
                let mut pool = Pool::replays(&target.commits);
                return Ok(Some(std::thread::spawn(move || {
                    let mut load = Load::connect(&address, CONNECTIONS)?;
                    load.drive(&mut pool, arrivals, window, &|| false)
                })));
            }
        }
        Ok(None)
    }
}

fn pid(up: &UpProcess) -> Result<u32, Failure> {
    let pid = up.shard(0)?.and_then(|shard| shard.pid);
    pid.ok_or_else(|| "shard 0 is away".into())
}

/// Of the creates that were due in a phase.
fn figures(
    created: &[Created],
    wanted: &dyn Fn(usize) -> bool,
    start: Instant,
    window: Duration,
) -> Figures {
    let phase = created
        .iter()
        .filter(|c| wanted(c.shard) && c.due >= start && c.due < start + window);
    let p99_ms = |times: &mut dyn Iterator<Item = Duration>| {
        let mut ms: Vec<f64> = times.map(|time| time.as_secs_f64() * 1000.0).collect();
        ms.sort_by(f64::total_cmp);
        ms.get(ms.len() * 99 / 100).copied().unwrap_or_default()
    };
    let count = phase.clone().filter(|c| c.ok).count();
    Figures {
        per_second: count as f64 / window.as_secs_f64(),
        p99_ms: p99_ms(&mut phase.clone().filter(|c| c.ok).map(|c| c.done - c.due)),
        failed: (phase.clone().count() - count) as f64,
        late_p99_ms: p99_ms(&mut phase.map(|c| c.begun - c.due)),
    }
}

fn silence(created: &[Created]) -> f64 {
    let answered = created.iter().filter(|c| c.shard == 0 && c.ok);
    let mut at: Vec<Instant> = answered.map(|c| c.done).collect();
    at.sort();
    let gaps = at.windows(2).map(|pair| pair[1] - pair[0]);
    gaps.max().unwrap_or_default().as_secs_f64() * 1000.0
}

/// Ticks in which the machine's cores worked, and all ticks.
fn cores() -> Result<(f64, f64), Failure> {
    let stat = files::read_text("/proc/stat".as_ref())?;
    let line = stat.lines().next().ok_or("no stat")?;
    let ticks: Vec<f64> = line
        .split_whitespace()
        .skip(1)
        .filter_map(|t| t.parse().ok())
        .collect();
    let all: f64 = ticks.iter().take(8).sum();
    // Idle, and waiting for the disk.
    Ok((all - ticks.iter().skip(3).take(2).sum::<f64>(), all))
}

fn print(events: &[Event], seen: &[Vec<Seen>]) {
    println!();
    println!(
        "| shard 0 is | others: throughput, during / before | after / before | p99 ms, before | during | after | \
         p99 during / before | after / before | others' failures | client late p99 ms before, during, after | shard 0 silent, ms | cores busy before, during | overrun: sent, accepted, refused a second |"
    );
    println!("| --- |{} --- |", " ---: |".repeat(11));
    for (which, event) in events.iter().copied().enumerate() {
        let name = event.name();
        let of = |field: &dyn Fn(&Seen) -> f64| median(seen[which].iter().map(field));
        let rate = |phase: usize| of(&|s| s.others[phase].per_second / s.others[0].per_second);
        let p99 = |phase: usize| of(&|s| s.others[phase].p99_ms);
        let ratio = |phase: usize| of(&|s| s.others[phase].p99_ms / s.others[0].p99_ms);
        let late = |phase: usize| of(&|s| s.others[phase].late_p99_ms);
        let failed = of(&|s| s.others.iter().map(|figures| figures.failed).sum());
        let overran = seen[which].iter().any(|s| s.overrun.is_some());
        let overrun = |at: usize| of(&|s| s.overrun.unwrap_or_default()[at]);
        let overrun = if overran {
            format!("{:.0}, {:.0}, {:.0}", overrun(0), overrun(1), overrun(2))
        } else {
            "-".to_owned()
        };
        println!(
            "| {name} | {:.2} | {:.2} | {:.1} | {:.1} | {:.1} | {:.2} | {:.2} | {failed:.0} | {:.1}, {:.1}, {:.1} | {:.0} | {:.0} %, {:.0} % | {overrun} |",
            rate(1),
            rate(2),
            p99(0),
            p99(1),
            p99(2),
            ratio(1),
            ratio(2),
            late(0),
            late(1),
            late(2),
            of(&|s| s.silent_ms),
            100.0 * of(&|s| s.busy[0]),
            100.0 * of(&|s| s.busy[1]),
        );
    }
    println!();
    println!(
        "| shard 0 is | shard | creates/s before, during, after | p99 ms before, during, after | failed before, during, after |"
    );
    println!("| --- | ---: | ---: | ---: | ---: |");
    for (which, event) in events.iter().copied().enumerate() {
        let name = event.name();
        let shards = seen[which].first().map_or(0, |seen| seen.shards.len());
        for shard in 0..shards {
            let of = |field: fn(&Figures) -> f64, digits: usize| {
                let phases = (0..PHASES).map(|phase| {
                    let value = median(seen[which].iter().map(|s| field(&s.shards[shard][phase])));
                    format!("{value:.digits$}")
                });
                phases.collect::<Vec<_>>().join(", ")
            };
            println!(
                "| {name} | {shard} | {} | {} | {} |",
                of(|f| f.per_second, 0),
                of(|f| f.p99_ms, 1),
                of(|f| f.failed, 0),
            );
        }
    }
}
