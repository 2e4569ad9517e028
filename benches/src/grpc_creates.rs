//! Creates per second over gRPC, against a shard in a process of its own, on a real disk.
//!
//! Each round measures every case once, so that a slow moment of the machine hits all of them; the
//! figures are medians over the rounds. `begin+commit` is a whole create without its PUT;
//! `commit` has its tickets from begins before the clock starts; `echo` is an empty unary call (the
//! health check) to the same process.

#![allow(
    clippy::print_stdout,
    clippy::disallowed_methods,
    reason = "a benchmark prints and times"
)]
#![allow(clippy::cast_precision_loss, reason = "figures are rounded anyway")]

use std::path::PathBuf;
use std::sync::Arc;
use std::time::{Duration, Instant};

use clap::Parser;
use ostraca_benches::shard_process::{ShardProcess, cpu_us, serve};
use ostraca_benches::{Failure, median};
use ostraca_client::{Begun, Client, NewPaste, Options, Seeds, StreamAnswer, Ticket};
use ostraca_io::{Entropy as _, SystemEntropy};
use ostraca_types::{BodyDigest, IdempotencyKey, RequestDigest, Slot};

/// Measures creates over gRPC.
#[derive(Parser)]
struct Arguments {
    /// Seconds per case and round.
    #[arg(long, default_value_t = 2.0)]
    seconds: f64,
    /// Rounds; the figures are their medians.
    #[arg(long, default_value_t = 5)]
    rounds: usize,
    /// Calls in flight.
    #[arg(long, value_delimiter = ',', default_values_t = [1, 64, 256])]
    in_flight: Vec<usize>,
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

#[derive(Clone, Copy, PartialEq, Eq)]
enum Case {
    Echo,
    UnaryBoth,
    UnaryCommit,
    StreamBoth,
    StreamCommit,
}

const CASES: [(Case, &str); 5] = [
    (Case::Echo, "unary, empty echo"),
    (Case::UnaryBoth, "unary, begin + commit"),
    (Case::UnaryCommit, "unary, commit"),
    (Case::StreamBoth, "stream, begin + commit"),
    (Case::StreamCommit, "stream, commit"),
];

/// One case of one round.
#[derive(Clone, Copy, Default)]
struct Figures {
    per_second: f64,
    syncs_per_second: f64,
    server_cpu_us: f64,
    p50_us: f64,
    p99_us: f64,
}

fn main() -> Result<(), Failure> {
    let arguments = Arguments::parse();
    if let Some(dir) = &arguments.serve {
        return serve(dir, arguments.server_threads, arguments.parent);
    }
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()?;
    runtime.block_on(measure(&arguments))
}

async fn measure(arguments: &Arguments) -> Result<(), Failure> {
    let server = ShardProcess::start(&arguments.dir, arguments.server_threads)?;
    let seeds = Seeds::Fixed(vec![server.address.clone()]);
    let client = Client::new(Options {
        cluster: None,
        seeds,
        deadline: Duration::from_secs(30),
    });
    let window = Duration::from_secs_f64(arguments.seconds);
    // Warm: connections, page cache, the first segments.
    case(&server, &client, Case::UnaryBoth, 64, window).await?;
    let mut figures = vec![vec![Vec::new(); arguments.in_flight.len()]; CASES.len()];
    for round in 0..arguments.rounds {
        eprint(&format!("round {} of {}", round + 1, arguments.rounds));
        for (at, in_flight) in arguments.in_flight.iter().enumerate() {
            for (which, (kind, _)) in CASES.into_iter().enumerate() {
                figures[which][at].push(case(&server, &client, kind, *in_flight, window).await?);
            }
        }
    }
    println!(
        "| case | in flight | per second | syncs/s | per sync | server CPU µs each | p50 µs | p99 µs |"
    );
    println!("| --- | ---: | ---: | ---: | ---: | ---: | ---: | ---: |");
    for (which, (_, name)) in CASES.into_iter().enumerate() {
        for (at, in_flight) in arguments.in_flight.iter().enumerate() {
            let of = |field: fn(&Figures) -> f64| median(figures[which][at].iter().map(field));
            let (rate, syncs) = (of(|f| f.per_second), of(|f| f.syncs_per_second));
            let per_sync = if syncs > 1.0 {
                format!("{:.1}", rate / syncs)
            } else {
                "-".to_owned()
            };
            println!(
                "| {name} | {in_flight} | {rate:.0} | {syncs:.0} | {per_sync} | {:.1} | {:.0} | {:.0} |",
                of(|f| f.server_cpu_us),
                of(|f| f.p50_us),
                of(|f| f.p99_us),
            );
        }
    }
    Ok(())
}

#[allow(clippy::print_stderr, reason = "talk goes there")]
fn eprint(line: &str) {
    eprintln!("{line}");
}

async fn case(
    server: &ShardProcess,
    client: &Client,
    case: Case,
    in_flight: usize,
    window: Duration,
) -> Result<Figures, Failure> {
    let tickets = match case {
        Case::UnaryCommit | Case::StreamCommit => begin_many(client, window).await?,
        _ => Vec::new(),
    };
    let status = async || client.status_of(&server.address).await;
    let (before, cpu_before) = (status().await?, cpu_us(server.pid())?);
    let started = Instant::now();
    let latencies = match case {
        Case::Echo => echo(&server.address, in_flight, window).await?,
        Case::UnaryBoth | Case::UnaryCommit => unary(client, in_flight, window, tickets).await?,
        Case::StreamBoth => stream_both(client, in_flight, window).await?,
        Case::StreamCommit => stream_commit(client, in_flight, window, tickets).await?,
    };
    let elapsed = started.elapsed().as_secs_f64();
    let (after, cpu_after) = (status().await?, cpu_us(server.pid())?);
    let mut histogram = hdrhistogram::Histogram::<u64>::new(3)?;
    for latency in &latencies {
        histogram.record(u64::try_from(latency.as_nanos())?)?;
    }
    let count = latencies.len() as f64;
    Ok(Figures {
        per_second: count / elapsed,
        syncs_per_second: (after.syncs - before.syncs) as f64 / elapsed,
        server_cpu_us: (cpu_after - cpu_before) / count,
        p50_us: histogram.value_at_quantile(0.5) as f64 / 1000.0,
        p99_us: histogram.value_at_quantile(0.99) as f64 / 1000.0,
    })
}

type Begin = (IdempotencyKey, Ticket);

const REQUEST: RequestDigest = RequestDigest([7; 32]);

fn new_key() -> IdempotencyKey {
    IdempotencyKey::mint(|bytes| SystemEntropy.fill(bytes))
}

fn paste() -> NewPaste {
    NewPaste {
        lifetime: None,
        syntax: None,
        title: None,
        body_size: 1000,
        body_digest: BodyDigest([9; 32]),
    }
}

/// More tickets than a window can commit.
async fn begin_many(client: &Client, window: Duration) -> Result<Vec<Begin>, Failure> {
    const PER_SECOND_MAX: f64 = 150_000.0;
    const IN_FLIGHT: usize = 512;
    let mut stream = client.stream_creates(Slot(0), IN_FLIGHT).await?;
    #[allow(
        clippy::cast_possible_truncation,
        clippy::cast_sign_loss,
        reason = "a positive count"
    )]
    let count = (window.as_secs_f64() * PER_SECOND_MAX) as usize;
    let mut waiting = std::collections::HashMap::new();
    let mut begun = Vec::with_capacity(count);
    while begun.len() + waiting.len() < count || !waiting.is_empty() {
        while waiting.len() < IN_FLIGHT && begun.len() + waiting.len() < count {
            let key = new_key();
            waiting.insert(stream.begin(&key, &REQUEST).await?, key);
        }
        let (tag, answer) = stream.next().await?;
        let StreamAnswer::Begun(Ok(Begun::New(ticket))) = answer else {
            return Err("a begin failed".into());
        };
        begun.push((waiting.remove(&tag).ok_or("an unknown tag")?, ticket));
    }
    Ok(begun)
}

async fn echo(address: &str, in_flight: usize, window: Duration) -> Result<Vec<Duration>, Failure> {
    use tonic_health::pb::{HealthCheckRequest, health_client::HealthClient};
    let channel = tonic::transport::Endpoint::from_shared(format!("http://{address}"))?
        .connect()
        .await?;
    let health = HealthClient::new(channel);
    in_parallel(in_flight, window, move |_| {
        let mut health = health.clone();
        async move {
            health.check(HealthCheckRequest::default()).await?;
            Ok(true)
        }
    })
    .await
}

/// Begins and commits, or commits of `tickets` if there are any.
async fn unary(
    client: &Client,
    in_flight: usize,
    window: Duration,
    tickets: Vec<Begin>,
) -> Result<Vec<Duration>, Failure> {
    let begins = tickets.is_empty();
    let tickets = Arc::new(std::sync::Mutex::new(tickets));
    let client = client.clone();
    in_parallel(in_flight, window, move |_| {
        let (client, tickets) = (client.clone(), Arc::clone(&tickets));
        async move {
            let ticket = tickets.lock().map_err(|_| "poisoned")?.pop();
            let (key, ticket) = match ticket {
                Some(begun) => begun,
                None if begins => {
                    let key = new_key();
                    match client.begin_create(&key, &REQUEST).await? {
                        Begun::New(ticket) => (key, ticket),
                        Begun::Stored(_) => return Err("a new key had an answer".into()),
                    }
                }
                None => return Ok(false),
            };
            client
                .commit_create(&key, &REQUEST, &ticket, &paste())
                .await?;
            Ok(true)
        }
    })
    .await
}

/// Runs `in_flight` loops of `call` for the window, or until one answers `false`.
async fn in_parallel<F, A>(
    in_flight: usize,
    window: Duration,
    call: F,
) -> Result<Vec<Duration>, Failure>
where
    F: Fn(usize) -> A + Clone + Send + 'static,
    A: Future<Output = Result<bool, Failure>> + Send,
{
    let ends = Instant::now() + window;
    let loops: Vec<_> = (0..in_flight)
        .map(|n| {
            let call = call.clone();
            tokio::spawn(async move {
                let mut latencies = Vec::new();
                loop {
                    let asked = Instant::now();
                    if asked >= ends || !call(n).await? {
                        return Ok::<_, Failure>(latencies);
                    }
                    latencies.push(asked.elapsed());
                }
            })
        })
        .collect();
    let mut latencies = Vec::new();
    for task in loops {
        latencies.append(&mut task.await??);
    }
    Ok(latencies)
}

async fn stream_both(
    client: &Client,
    in_flight: usize,
    window: Duration,
) -> Result<Vec<Duration>, Failure> {
    let mut stream = client.stream_creates(Slot(0), in_flight).await?;
    let mut waiting = std::collections::HashMap::new();
    let mut latencies = Vec::new();
    let ends = Instant::now() + window;
    loop {
        while waiting.len() < in_flight && Instant::now() < ends {
            let (key, asked) = (new_key(), Instant::now());
            waiting.insert(stream.begin(&key, &REQUEST).await?, (key, asked));
        }
        if waiting.is_empty() {
            return Ok(latencies);
        }
        let (tag, answer) = stream.next().await?;
        let (key, asked) = waiting.remove(&tag).ok_or("an unknown tag")?;
        match answer {
            StreamAnswer::Begun(begun) => {
                let Begun::New(ticket) = begun? else {
                    return Err("a new key had an answer".into());
                };
                let tag = stream.commit(&key, &REQUEST, &ticket, &paste()).await?;
                waiting.insert(tag, (key, asked));
            }
            StreamAnswer::Committed(committed) => {
                committed?;
                latencies.push(asked.elapsed());
            }
        }
    }
}

async fn stream_commit(
    client: &Client,
    in_flight: usize,
    window: Duration,
    mut tickets: Vec<Begin>,
) -> Result<Vec<Duration>, Failure> {
    let mut stream = client.stream_creates(Slot(0), in_flight).await?;
    let mut waiting = std::collections::HashMap::new();
    let mut latencies = Vec::new();
    let ends = Instant::now() + window;
    loop {
        while waiting.len() < in_flight && Instant::now() < ends {
            let Some((key, ticket)) = tickets.pop() else {
                break;
            };
            let asked = Instant::now();
            waiting.insert(
                stream.commit(&key, &REQUEST, &ticket, &paste()).await?,
                asked,
            );
        }
        if waiting.is_empty() {
            return Ok(latencies);
        }
        let (tag, answer) = stream.next().await?;
        let StreamAnswer::Committed(committed) = answer else {
            return Err("not a commit".into());
        };
        committed?;
        latencies.push(waiting.remove(&tag).ok_or("an unknown tag")?.elapsed());
    }
}
