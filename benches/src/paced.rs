//! Creates at a steady rate over all slots, through the stock client: what one frontend does.

use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use ostraca_client::{Begun, Client, NewPaste};
use ostraca_types::{BodyDigest, RequestDigest, ShardId};

use crate::Failure;
use crate::calls::key_in;

const REQUEST: RequestDigest = RequestDigest([7; 32]);
/// Arrivals are no finer than this; their latencies count from when they were due.
const TICK: Duration = Duration::from_millis(1);

/// By slot: the shard that owns it.
pub type Owners = Arc<[usize; 256]>;

/// Which shard owns each slot.
pub async fn owners(client: &Client) -> Result<Owners, Failure> {
    let mut owners = [0; 256];
    for shard in client.shards().await? {
        let ShardId(id) = shard.id;
        for slot in shard.slots {
            owners[usize::from(slot.0)] = usize::from(id);
        }
    }
    Ok(Arc::new(owners))
}

/// What became of one create.
#[derive(Debug, Clone, Copy)]
pub struct Created {
    /// By its key's slot.
    pub shard: usize,
    /// When it was to start.
    pub due: Instant,
    /// When this client came to it.
    pub begun: Instant,
    /// When it was answered.
    pub done: Instant,
    /// Whether it succeeded.
    pub ok: bool,
}

/// A whole create but for the PUT of its body: begin, then commit.
async fn create(client: &Client, owners: &Owners, due: Instant) -> Created {
    let begun = now();
    let key = key_in(|_| true);
    let both = async {
        let Begun::New(ticket) = client.begin_create(&key, &REQUEST).await? else {
            return Ok(());
        };
        let paste = NewPaste {
            lifetime: None,
            syntax: None,
            title: None,
            body_size: 1000,
            body_digest: BodyDigest([9; 32]),
        };
        let committed = client.commit_create(&key, &REQUEST, &ticket, &paste).await;
        committed.map(drop)
    };
    let answer: Result<(), ostraca_client::Error> = both.await;
    Created {
        shard: owners[usize::from(key.slot().0)],
        due,
        begun,
        done: now(),
        ok: answer.is_ok(),
    }
}

/// Creates one on `shard`, and says whether that worked.
pub async fn create_on(client: &Client, owners: &Owners, shard: usize) -> bool {
    loop {
        // Whichever shard it falls on; the wanted one is hit soon.
        let created = create(client, owners, now()).await;
        if created.shard == shard {
            return created.ok;
        }
    }
}

/// Creates a second with `in_flight` at a time.
pub async fn capacity(
    client: &Client,
    owners: &Owners,
    in_flight: usize,
    window: Duration,
) -> Result<f64, Failure> {
    let ends = now() + window;
    let loops: Vec<_> = (0..in_flight)
        .map(|_| {
            let (client, owners) = (client.clone(), Arc::clone(owners));
            tokio::spawn(async move {
                let mut count = 0_u32;
                while now() < ends {
                    count += u32::from(create(&client, &owners, now()).await.ok);
                }
                count
            })
        })
        .collect();
    let mut count = 0.0;
    for task in loops {
        count += f64::from(task.await?);
    }
    Ok(count / window.as_secs_f64())
}

/// Starts `rate` creates a second until `ends`, whatever becomes of the earlier ones, and waits for
/// them all.
pub async fn run(
    client: &Client,
    owners: &Owners,
    rate: f64,
    ends: Instant,
) -> Result<Vec<Created>, Failure> {
    let done = Arc::new(Mutex::new(Vec::new()));
    let started = now();
    let mut ticks = tokio::time::interval(TICK);
    let mut tasks = tokio::task::JoinSet::new();
    let gap = Duration::from_secs_f64(1.0 / rate);
    let mut due = started;
    while due < ends {
        ticks.tick().await;
        let now = now();
        while due <= now && due < ends {
            let (client, owners) = (client.clone(), Arc::clone(owners));
            let done = Arc::clone(&done);
            tasks.spawn(async move {
                let created = create(&client, &owners, due).await;
                done.lock()
                    .unwrap_or_else(PoisonError::into_inner)
                    .push(created);
            });
            due += gap;
        }
        // Or what is done would be kept until the end.
        while tasks.try_join_next().is_some() {}
    }
    while let Some(ended) = tasks.join_next().await {
        ended?;
    }
    let mut done = done.lock().unwrap_or_else(PoisonError::into_inner);
    Ok(std::mem::take(&mut *done))
}

#[allow(clippy::disallowed_methods, reason = "a benchmark times")]
fn now() -> Instant {
    Instant::now()
}
