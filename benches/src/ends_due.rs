//! What 100,000 ends that are due at once do to creates.
//!
//! One shard on a real disk, its clock moved by hand. Creates go on with a fixed number in flight;
//! latencies are taken for a while without anything due, then from the moment at which all the pastes
//! made before are due until the last of them has ended; alternating, the figures are medians.

#![allow(
    clippy::print_stdout,
    clippy::disallowed_methods,
    reason = "a benchmark prints and times"
)]
#![allow(clippy::cast_precision_loss, reason = "figures are rounded anyway")]

use std::path::PathBuf;
use std::sync::{Arc, mpsc};
use std::time::{Duration, Instant};

use clap::Parser;
use ostraca_benches::create;
use ostraca_engine::{EPOCH_PAGE, Identity, Options, Outcome, Reply, Shard, new_epoch_page};
use ostraca_io::{ManualClock, Page, RealDisk, RealPage, SystemEntropy, files};
use ostraca_types::{ShardId, StoreId, Timestamp};

type Failure = Box<dyn std::error::Error + Send + Sync>;

/// Measures creates while ends are due.
#[derive(Parser)]
struct Arguments {
    /// Pastes that are due at once.
    #[arg(long, default_value_t = 100_000)]
    due: usize,
    /// Creates in flight.
    #[arg(long, default_value_t = 16)]
    in_flight: usize,
    /// Rounds; the figures are their medians.
    #[arg(long, default_value_t = 5)]
    rounds: usize,
    /// Where the log is made; it decides which disk is measured.
    #[arg(long, default_value = "target")]
    dir: PathBuf,
}

const SHORT: Duration = Duration::from_secs(60);
const LONG: Duration = Duration::from_secs(30 * 86_400);

/// Creates with `in_flight` at a time while `more` says so; their latencies, and how long it took.
fn load(
    shard: &Shard,
    in_flight: usize,
    lifetime: Duration,
    mut more: impl FnMut(usize) -> bool,
) -> Result<(Vec<Duration>, Duration), Failure> {
    let (sender, receiver) = mpsc::sync_channel(in_flight);
    let send = || {
        let (sender, asked) = (sender.clone(), Instant::now());
        let reply: Reply = Box::new(move |answer| drop(sender.send((asked, answer))));
        shard.create(create(shard.now(), lifetime), reply)
    };
    let started = Instant::now();
    let mut latencies = Vec::new();
    let mut waiting = 0;
    let mut sent = 0;
    loop {
        while waiting < in_flight && more(sent) {
            send()?;
            waiting += 1;
            sent += 1;
        }
        if waiting == 0 {
            return Ok((latencies, started.elapsed()));
        }
        let (asked, answer) = receiver.recv()?;
        if answer?.outcome != Outcome::Created {
            return Err("a create was refused".into());
        }
        latencies.push(asked.elapsed());
        waiting -= 1;
    }
}

fn quantile(latencies: &mut [Duration], at: f64) -> f64 {
    latencies.sort_unstable();
    #[allow(
        clippy::cast_possible_truncation,
        clippy::cast_sign_loss,
        reason = "an index"
    )]
    let index = (latencies.len() as f64 * at) as usize;
    let latency = latencies.get(index.min(latencies.len().saturating_sub(1)));
    latency.map_or(0.0, |latency| latency.as_secs_f64() * 1e6)
}

fn median(mut values: Vec<f64>) -> f64 {
    values.sort_by(f64::total_cmp);
    values.get(values.len() / 2).copied().unwrap_or_default()
}

fn main() -> Result<(), Failure> {
    let arguments = Arguments::parse();
    let dir = tempfile::tempdir_in(&arguments.dir)?;
    let clock = ManualClock::new(Timestamp(1_790_000_000_000));
    let identity = Identity {
        store: StoreId([1; 16]),
        shard: ShardId(0),
    };
    let page = dir.path().join(EPOCH_PAGE);
    files::create_durable(&page, &new_epoch_page(&identity), 0o600)?;
    let page: Arc<dyn Page> = Arc::new(RealPage::open(&page)?);
    let (shard, thread, _) = Shard::open(
        RealDisk::open(dir.path())?,
        &page,
        identity,
        Arc::new(clock.clone()),
        &SystemEntropy,
        &Options::default(),
    )?;
    let (mut alone, mut beside) = (Vec::new(), Vec::new());
    let (mut ends_per_second, mut rates) = (Vec::new(), Vec::new());
    for _ in 0..arguments.rounds {
        load(&shard, 512, SHORT, |sent| sent < arguments.due)?;
        let until = Instant::now() + Duration::from_secs(1);
        let (mut latencies, took) = load(&shard, arguments.in_flight, LONG, |_| {
            Instant::now() < until
        })?;
        rates.push(latencies.len() as f64 / took.as_secs_f64());
        alone.push((
            quantile(&mut latencies, 0.5),
            quantile(&mut latencies, 0.99),
        ));

        clock.advance(SHORT * 2);
        let ready = |shard: &Shard| shard.status().next_end.is_none_or(|due| due > shard.now());
        // The first look moves the clock; from then on everything is due.
        while shard.now() < clock_now(&clock) {
            std::thread::yield_now();
        }
        let (mut latencies, took) = load(&shard, arguments.in_flight, LONG, |_| !ready(&shard))?;
        ends_per_second.push(arguments.due as f64 / took.as_secs_f64());
        beside.push((
            quantile(&mut latencies, 0.5),
            quantile(&mut latencies, 0.99),
        ));
    }
    let of = |figures: &[(f64, f64)], at: fn(&(f64, f64)) -> f64| {
        median(figures.iter().map(at).collect())
    };
    println!(
        "| {} creates in flight | p50 µs | p99 µs |",
        arguments.in_flight
    );
    println!("| --- | ---: | ---: |");
    let (p50, p99) = (of(&alone, |f| f.0), of(&alone, |f| f.1));
    println!(
        "| nothing due ({:.0} creates/s) | {p50:.0} | {p99:.0} |",
        median(rates)
    );
    let (p50, p99_beside) = (of(&beside, |f| f.0), of(&beside, |f| f.1));
    let ends = median(ends_per_second);
    println!(
        "| {} ends due ({ends:.0} ends/s) | {p50:.0} | {p99_beside:.0} |",
        arguments.due
    );
    println!("\np99 with ends due / without: {:.2}", p99_beside / p99);
    shard.close();
    thread.join()?;
    Ok(())
}

fn clock_now(clock: &ManualClock) -> Timestamp {
    ostraca_io::Clock::wall(clock)
}
