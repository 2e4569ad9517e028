//! Receiving messages, running attempts, giving back what failed, and stopping.

use std::collections::HashMap;
use std::sync::Arc;
use std::time::Duration;

use ostraca_client::{Message, RECEIVE_MAX, Recorded, Settled, Shard};
use ostraca_io::Entropy;
use ostraca_types::contract::FAILURE_SIZE_MAX;
use ostraca_types::{ShardId, Slot};
use parking_lot::Mutex;
use tokio::sync::{OwnedSemaphorePermit, Semaphore, oneshot};
use tokio::task::{JoinError, JoinSet};
use tokio::time::{Instant, sleep, sleep_until, timeout};

use crate::backoff::Backoff;
use crate::gate::{Appetite, Gate};
use crate::metrics::{Metrics, Outcome};
use crate::ports::{Edge, Inbox, Objects, Outbox, Ports};
use crate::purge::{Failure, Finished, purge};
use crate::{Config, ConfigError, Observer, PurgeFault};

/// After the stop, attempts in flight have so long.
pub const DRAIN_MAX: Duration = Duration::from_secs(10);
/// A table of shards is fetched this often: shards come and go rarely, and a call that went to the
/// wrong place refreshes the client's own table at once.
const TABLE_AGE_MAX: Duration = Duration::from_secs(30);
/// A shard that restarts is back within a second.
const RETRY_DELAY_MIN: Duration = Duration::from_millis(100);
const RETRY_DELAY_MAX: Duration = Duration::from_secs(5);
/// A shard that answers "none" without waiting is not asked more often than this.
const EMPTY_PAUSE: Duration = Duration::from_millis(100);
/// The same trouble is told at most this often; the counters have every one.
const SAY_AGAIN: Duration = Duration::from_secs(60);

/// The purge worker of one cluster.
pub struct Worker<S, B, E>(Arc<Inner<S, B, E>>);

struct Inner<S, B, E> {
    config: Config,
    ports: Ports<S, B, E>,
    entropy: Arc<dyn Entropy>,
    metrics: Arc<Metrics>,
    gate: Arc<Gate>,
    /// A place for each attempt that may run.
    running: Semaphore,
    said: Mutex<HashMap<&'static str, Instant>>,
}

/// The loops of the shards that are asked for messages.
#[derive(Default)]
struct Loops {
    tasks: JoinSet<()>,
    /// Dropping a sender stops its loop.
    serving: HashMap<ShardId, (Vec<Slot>, oneshot::Sender<()>)>,
}

impl<S, B, E> Worker<S, B, E>
where
    S: Outbox + Inbox,
    B: Objects,
    E: Edge,
{
    /// Does nothing until it runs.
    pub fn new(
        config: Config,
        ports: Ports<S, B, E>,
        entropy: Arc<dyn Entropy>,
    ) -> Result<Self, ConfigError> {
        config.validate()?;
        Ok(Self(Arc::new(Inner {
            running: Semaphore::new(config.concurrency),
            config,
            ports,
            entropy,
            metrics: Arc::new(Metrics::new()),
            gate: Arc::new(Gate::new()),
            said: Mutex::default(),
        })))
    }

    /// What it tells about itself.
    #[must_use]
    pub fn observer(&self) -> Observer {
        Observer {
            metrics: Arc::clone(&self.0.metrics),
            gate: Arc::clone(&self.0.gate),
        }
    }

    /// Works until `stop`, then finishes what is in flight for at most [`DRAIN_MAX`]. On return
    /// nothing of it runs any more; what was not finished is delivered again.
    pub async fn run(self, stop: impl Future<Output = ()>) {
        let inner = self.0;
        let mut loops = Loops::default();
        let entropy = Arc::clone(&inner.entropy);
        tokio::select! {
            () = stop => {}
            () = Arc::clone(&inner).follow(&mut loops) => {}
            () = inner.gate.probe(&inner.ports.objects, &*entropy, &inner.metrics) => {}
        }
        loops.serving.clear();
        while let Some(ended) = loops.tasks.join_next().await {
            unpanicked(ended);
        }
    }
}

impl<S, B, E> Inner<S, B, E>
where
    S: Outbox + Inbox,
    B: Objects,
    E: Edge,
{
    /// Keeps one receive loop per shard. Never returns.
    async fn follow(self: Arc<Self>, loops: &mut Loops) {
        let mut backoff = Backoff::new(RETRY_DELAY_MIN, RETRY_DELAY_MAX);
        loop {
            let delay = match self.ports.shards.shards().await {
                Ok(shards) => {
                    backoff.reset();
                    self.adopt(shards, loops);
                    TABLE_AGE_MAX
                }
                Err(err) => {
                    self.metrics.call_failed("shards");
                    if self.may_say("shards") {
                        tracing::warn!(event = "shards_unknown", %err, "no shard tells who leads what");
                    }
                    backoff.next(&*self.entropy)
                }
            };
            sleep(delay).await;
            while let Some(ended) = loops.tasks.try_join_next() {
                unpanicked(ended);
            }
        }
    }

    fn adopt(self: &Arc<Self>, shards: Vec<Shard>, loops: &mut Loops) {
        let shards: Vec<_> = shards
            .into_iter()
            .filter(|shard| !shard.slots.is_empty())
            .collect();
        // A loop finds its shard by its slots, so a shard with other slots gets another loop.
        loops.serving.retain(|id, (slots, _)| {
            shards
                .iter()
                .any(|shard| shard.id == *id && shard.slots == *slots)
        });
        // What one shard may have waiting: fast shards use all of the places all the same, as a
        // waiting message that begins makes room for the next.
        let room = self.config.concurrency.div_ceil(shards.len().max(1));
        for shard in shards {
            if loops.serving.contains_key(&shard.id) {
                continue;
            }
            tracing::info!(event = "shard_joined", shard = %shard.id, "receives from it");
            let (keep, gone) = oneshot::channel();
            loops.serving.insert(shard.id, (shard.slots.clone(), keep));
            let inner = Arc::clone(self);
            loops
                .tasks
                .spawn(inner.serve(shard, room.min(RECEIVE_MAX), gone));
        }
    }

    /// Receives from one shard until `gone`, then lets what is in flight finish.
    async fn serve(self: Arc<Self>, shard: Shard, room: usize, gone: oneshot::Receiver<()>) {
        let mut attempts = JoinSet::new();
        tokio::select! {
            // The sender is dropped, never used.
            _ = gone => {}
            () = self.receive(&shard, room, &mut attempts) => {}
        }
        let ended = async {
            while let Some(ended) = attempts.join_next().await {
                unpanicked(ended);
            }
        };
        if timeout(DRAIN_MAX, ended).await.is_err() {
            let attempts_left = attempts.len();
            tracing::warn!(event = "drain_cut", shard = %shard.id, attempts_left, "left to redelivery");
            attempts.shutdown().await;
        }
    }

    /// Asks one shard for messages, as many as there is room for, and starts their attempts. Never
    /// returns.
    async fn receive(self: &Arc<Self>, shard: &Shard, room: usize, attempts: &mut JoinSet<()>) {
        let size = u32::try_from(room).unwrap_or(u32::MAX);
        let room = Arc::new(Semaphore::new(room));
        let mut backoff = Backoff::new(RETRY_DELAY_MIN, RETRY_DELAY_MAX);
        loop {
            while let Some(ended) = attempts.try_join_next() {
                unpanicked(ended);
            }
            let appetite = self.gate.open().await;
            let mut places = match appetite {
                Appetite::All => places(&room, 1).await,
                // Not while another one waits for its turn to try the store.
                Appetite::One => places(&room, size).await,
            };
            if !self.gate.is_open_for(appetite) {
                continue;
            }
            let max = match appetite {
                Appetite::All => places.as_ref().map_or(1, OwnedSemaphorePermit::num_permits),
                Appetite::One => 1,
            };
            let asked = Instant::now();
            let (consumer, visibility) = (&self.config.consumer, self.config.visibility);
            let received = tokio::select! {
                received = self.ports.shards.receive(shard, consumer, max, visibility) => received,
                // What was about to come is delivered again once there is a use for it.
                () = self.gate.closed() => continue,
            };
            match received {
                Ok(messages) => {
                    backoff.reset();
                    if messages.is_empty() {
                        drop(places);
                        sleep_until(asked + EMPTY_PAUSE).await;
                        continue;
                    }
                    for message in messages {
                        let place = places.as_mut().and_then(|places| places.split(1));
                        attempts.spawn(Arc::clone(self).attempt(message, place));
                    }
                }
                Err(err) => {
                    drop(places);
                    self.metrics.call_failed("receive");
                    if self.may_say("receive") {
                        tracing::warn!(event = "receive_failed", shard = %shard.id, %err, "will ask again");
                    }
                    sleep(backoff.next(&*self.entropy)).await;
                }
            }
        }
    }

    /// One attempt, from its delivery until it is settled. It holds its place in the room until it
    /// runs.
    async fn attempt(self: Arc<Self>, message: Message, place: Option<OwnedSemaphorePermit>) {
        let delivered = Instant::now();
        let work = async {
            // Never closed.
            let _running = self.running.acquire().await.ok();
            let Some(pass) = self.gate.admit().await else {
                return Err(Failure::Paused);
            };
            // The one that tries the store keeps it, so that no other is received meanwhile.
            let _place = place.filter(|_| pass.is_trial());
            let _in_flight = self.metrics.in_flight();
            let (ports, consumer) = (&self.ports, &self.config.consumer);
            let result = purge(ports, consumer, &message, &self.metrics).await;
            match &result {
                Ok(finished) if finished.ran => self.gate.works(),
                // It says nothing about the store.
                Ok(_) => {}
                Err(failure) if failure.is_after_object() => self.gate.works(),
                Err(failure) if failure.is_store_down() => self.gate.fails(&self.metrics),
                Err(_) => {}
            }
            drop(pass);
            result
        };
        let result = tokio::select! {
            result = work => result,
            // Never ends.
            () = self.extend(&message) => return,
        };
        match result {
            Ok(finished) => self.finished(&message, finished, delivered),
            Err(failure) => self.failed(&message, &failure).await,
        }
    }

    /// Keeps the message from being delivered again while its attempt takes long. Never returns.
    async fn extend(&self, message: &Message) {
        let (consumer, visibility) = (&self.config.consumer, self.config.visibility);
        loop {
            // Twice more before it is too late, should one call fail.
            sleep(visibility / 3).await;
            let extended = self
                .ports
                .shards
                .extend(consumer, &message.handle, visibility);
            match extended.await {
                Ok(Settled::Done) => {}
                // Another attempt is under way, or nobody asks any more: what this one does is safe
                // to repeat, so it goes on.
                Ok(Settled::Stale | Settled::Gone) => std::future::pending().await,
                Err(err) => {
                    self.metrics.call_failed("extend");
                    tracing::debug!(event = "extend_failed", outbox_id = %message.outbox_id, %err);
                }
            }
        }
    }

    fn finished(&self, message: &Message, finished: Finished, delivered: Instant) {
        let Finished {
            recorded,
            ran,
            settled,
        } = finished;
        if ran {
            // The attempt began `visibility` before the instant at which it would come again.
            let began = message.visible_at.since(message.ended_at);
            let age = began.saturating_sub(self.config.visibility) + delivered.elapsed();
            self.metrics.purged(age);
        }
        self.metrics.delivered(match (settled, recorded) {
            (Settled::Stale | Settled::Gone, _) => Outcome::Unacked,
            (Settled::Done, Recorded::Before) => Outcome::Repeated,
            (Settled::Done, Recorded::Now) => Outcome::Done,
        });
        tracing::debug!(
            event = "outbox_delivered",
            outbox_id = %message.outbox_id,
            attempt = message.attempt,
            ran,
            "finished"
        );
    }

    async fn failed(&self, message: &Message, failure: &Failure) {
        self.tell(message, failure);
        if let Failure::Ack(_) = failure {
            // Giving it back would be a lie, and most likely fail, too.
            self.metrics.delivered(Outcome::Unacked);
            return;
        }
        self.metrics.delivered(match failure {
            Failure::Paused => Outcome::Paused,
            _ => Outcome::Failed,
        });
        let reason = short(failure.to_string());
        let consumer = &self.config.consumer;
        let nack = self
            .ports
            .shards
            .nack(consumer, &message.handle, &reason, failure.delay());
        if let Err(err) = nack.await {
            // It comes again when its visibility timeout has passed.
            self.metrics.call_failed("nack");
            tracing::debug!(event = "nack_failed", outbox_id = %message.outbox_id, %err);
        }
    }

    /// Counts a failure, and says so, not each time.
    fn tell(&self, message: &Message, failure: &Failure) {
        let (id, attempt) = (&message.outbox_id, message.attempt);
        tracing::debug!(event = "delivery_failed", outbox_id = %id, attempt, %failure);
        match failure {
            // The gate says that.
            Failure::Paused => {}
            Failure::Edge(err) => {
                self.metrics.purge_failed(err.fault());
                let refused = matches!(err.fault(), PurgeFault::Refused(_));
                if refused && self.may_say("purge_refused") {
                    tracing::error!(
                        event = "purge_refused",
                        %err,
                        "the edge keeps ended pastes until their max-age is over"
                    );
                } else if !refused && self.may_say("purge_failed") {
                    tracing::warn!(event = "purge_failed", %err, "will be tried again");
                }
            }
            Failure::Record(err) => {
                self.metrics.inbox_record_failed();
                if self.may_say("record") {
                    tracing::error!(event = "inbox_record_failed", outbox_id = %id, %err);
                }
            }
            Failure::Object(err) => {
                if self.may_say("object") {
                    tracing::warn!(event = "object_delete_failed", outbox_id = %id, %err);
                }
            }
            Failure::LookUp(err) | Failure::Ack(err) => {
                if self.may_say("inbox") {
                    tracing::warn!(event = "shard_call_failed", outbox_id = %id, %err, %failure);
                }
            }
        }
    }

    /// Whether it is time to tell of this trouble, again.
    fn may_say(&self, what: &'static str) -> bool {
        let now = Instant::now();
        let mut said = self.said.lock();
        let last = said.get(what);
        let due = last.is_none_or(|last| now.duration_since(*last) >= SAY_AGAIN);
        if due {
            said.insert(what, now);
        }
        due
    }
}

/// At least so many places of the room, and as many as are free.
async fn places(room: &Arc<Semaphore>, least: u32) -> Option<OwnedSemaphorePermit> {
    // Never closed.
    let mut places = Arc::clone(room).acquire_many_owned(least).await.ok()?;
    let free = u32::try_from(room.available_permits()).unwrap_or(u32::MAX);
    if let Ok(more) = Arc::clone(room).try_acquire_many_owned(free) {
        places.merge(more);
    }
    Some(places)
}

/// At most [`FAILURE_SIZE_MAX`] bytes.
fn short(mut reason: String) -> String {
    reason.truncate(reason.floor_char_boundary(FAILURE_SIZE_MAX));
    reason
}

/// A task that panicked is our own mistake: it goes on where it is waited for.
fn unpanicked(ended: Result<(), JoinError>) {
    if let Err(err) = ended
        && err.is_panic()
    {
        std::panic::resume_unwind(err.into_panic());
    }
}
