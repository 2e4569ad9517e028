//! The handle to a shard, and its thread.

use std::collections::VecDeque;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::thread::JoinHandle;
use std::time::Duration;

use ostraca_index::{Counts, DeadLetter, IdempotencyRow, Index, PasteRow, Rows};
use ostraca_io::{Clock, Disk, Entropy, Page, Spawn, Threads};
use ostraca_types::{ConsumerName, Epoch, KeyDigest, OutboxId, PasteId, Sequence, Timestamp};
use ostraca_wal::{Claim, Identity};
use parking_lot::Mutex;

use crate::apply::Outcome;
use crate::command::{Command, Create, End};
use crate::core::Core;
use crate::error::{Error, OpenError};
use crate::metrics::{BatchSizes, Batches, OutcomeCounts, Outcomes};
use crate::queue::{Queue, Work};
use crate::time::ShardClock;

use rounds::CloseAtEnd;
pub use rounds::Rounds;

mod rounds;

/// How a shard is run.
#[derive(Clone)]
pub struct Options {
    /// Of the log.
    pub log: ostraca_wal::Options,
    /// Called on the shard's thread after messages became due, or may become so at another time. It
    /// must not block.
    pub on_deliverable: Option<Arc<dyn Fn() + Send + Sync>>,
    /// Asked on the shard's thread when a batch is durable, before it is answered: whether the epoch
    /// page is still the one that whoever leads next looks at. Where it is not, no fence tells, and this
    /// ends the leadership as the fence does. It must not block.
    pub page_is_shared: Option<Arc<dyn Fn() -> bool + Send + Sync>>,
    /// Runs what a shard does beside its thread.
    pub spawn: Arc<dyn Spawn>,
}

impl Default for Options {
    fn default() -> Self {
        Self {
            log: ostraca_wal::Options::default(),
            on_deliverable: None,
            page_is_shared: None,
            spawn: Arc::new(Threads),
        }
    }
}

/// What a durable command came to, and which record it is.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Answer {
    /// What it came to.
    pub outcome: Outcome,
    /// The fencing token under which it was written.
    pub epoch: Epoch,
    /// Its place in the log.
    pub sequence: Sequence,
}

/// Called once, on the shard's thread: it must neither block nor panic.
pub type Reply = Box<dyn FnOnce(Result<Answer, Error>) + Send>;

/// What a shard is doing.
#[derive(Debug, Clone)]
pub struct Status {
    /// The fencing token.
    pub epoch: Epoch,
    /// The last applied record.
    pub applied: Sequence,
    /// The shard's time.
    pub now: Timestamp,
    /// Rows.
    pub counts: Counts,
    /// The expiry of the paste that ends next.
    pub next_end: Option<Timestamp>,
    /// Commands that became durable since the shard was opened.
    pub commits: u64,
    /// Syncs since then.
    pub syncs: u64,
    /// Commands whose append the fence refused.
    pub fenced: u64,
    /// Batches by their size since then.
    pub batches: BatchSizes,
    /// Commands by their outcome since then.
    pub outcomes: OutcomeCounts,
    /// Commands that wait.
    pub queued: usize,
    /// What keeps the shard from some of its work.
    pub trouble: Option<Trouble>,
    /// What stopped the shard.
    pub stopped_by: Option<String>,
}

/// What keeps a running shard from some of its work.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Trouble {
    /// There is no room for the next segment: creates are refused.
    DiskFull,
    /// There is no room at all: the clock stands still, and everything that appends is refused.
    DiskFullClockStuck,
    /// The wall clock is further ahead than is believed: no paste ends by its expiry until it goes
    /// back, or a person confirms it.
    ClockLeapt,
}

impl std::fmt::Display for Trouble {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(match self {
            Self::DiskFull => "the disk has no room for the next log segment: creates are refused",
            Self::DiskFullClockStuck => {
                "the disk is full: nothing can be appended, and the clock stands still"
            }
            Self::ClockLeapt => {
                "the wall clock has leapt ahead and is not believed: expired pastes are not ended; \
                 set it right, or confirm it with `ostraca clock confirm`"
            }
        })
    }
}

/// What opening a shard found.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct OpenReport {
    /// Records replayed.
    pub records: u64,
    /// Bytes of a torn tail, never acknowledged, that were cut.
    pub cut_bytes: u64,
    /// The epoch page was bad, and was made good.
    pub page_repaired: bool,
}

/// What the shard's thread and its callers share.
pub(crate) struct Inner {
    queue: Queue,
    pub(crate) index: Index,
    pub(crate) clock: ShardClock,
    pub(crate) claim: Claim,
    on_deliverable: Option<Arc<dyn Fn() + Send + Sync>>,
    pub(crate) applied: AtomicU64,
    pub(crate) commits: AtomicU64,
    pub(crate) syncs: AtomicU64,
    /// Rounds of the shard's thread.
    pub(crate) rounds: AtomicU64,
    /// Commands whose append the fence refused (w07).
    pub(crate) fenced: AtomicU64,
    pub(crate) batches: Batches,
    pub(crate) outcomes: Outcomes,
    /// The wall clock is further ahead than is believed.
    pub(crate) leapt: AtomicBool,
    /// A person says that it is right.
    pub(crate) leap_confirmed: AtomicBool,
    /// The next segment could not be prepared.
    pub(crate) full: AtomicBool,
    /// Not even a record of the clock had room.
    pub(crate) clock_stuck: AtomicBool,
    stopped_by: Mutex<Option<String>>,
}

impl Inner {
    pub(crate) fn new(
        index: Index,
        clock: ShardClock,
        claim: Claim,
        on_deliverable: Option<Arc<dyn Fn() + Send + Sync>>,
    ) -> Self {
        Self {
            queue: Queue::default(),
            index,
            clock,
            claim,
            on_deliverable,
            applied: AtomicU64::new(0),
            commits: AtomicU64::new(0),
            syncs: AtomicU64::new(0),
            rounds: AtomicU64::new(0),
            fenced: AtomicU64::new(0),
            batches: Batches::default(),
            outcomes: Outcomes::default(),
            leapt: AtomicBool::new(false),
            leap_confirmed: AtomicBool::new(false),
            full: AtomicBool::new(false),
            clock_stuck: AtomicBool::new(false),
            stopped_by: Mutex::new(None),
        }
    }

    pub(crate) fn notify(&self) {
        if let Some(notify) = &self.on_deliverable {
            notify();
        }
    }

    /// Nobody gets in any more, and nothing more is read; who waits, in `work` or the queue, was never
    /// appended, and hears so.
    fn stop(&self, reason: String, closed: Error, work: &mut VecDeque<Work>) {
        self.stopped_by.lock().get_or_insert(reason);
        self.queue.close();
        self.queue.drain(work, usize::MAX, Duration::ZERO);
        work.drain(..).for_each(|work| work.tell(Err(closed)));
    }

    fn trouble(&self) -> Option<Trouble> {
        if self.clock_stuck.load(Ordering::Relaxed) {
            Some(Trouble::DiskFullClockStuck)
        } else if self.full.load(Ordering::Relaxed) {
            Some(Trouble::DiskFull)
        } else if self.leapt.load(Ordering::Relaxed) {
            Some(Trouble::ClockLeapt)
        } else {
            None
        }
    }
}

/// A handle to an open shard. Clones are the same shard.
#[derive(Clone)]
pub struct Shard {
    inner: Arc<Inner>,
    /// When the caller that uses this handle stops waiting, on the boot-time clock.
    until: Option<Duration>,
}

/// The shard's thread. It runs until [`Shard::close`] or the first failure of the log.
#[derive(Debug)]
pub struct ShardThread(JoinHandle<Result<(), ostraca_wal::Error>>);

impl ShardThread {
    /// Waits for the thread's end. `Ok` after [`Shard::close`]: everything queued was answered and
    /// the log is marked; otherwise what stopped the log. Blocks.
    pub fn join(self) -> Result<(), ostraca_wal::Error> {
        match self.0.join() {
            Ok(ended) => ended,
            Err(panic) => std::panic::resume_unwind(panic),
        }
    }
}

impl Shard {
    /// Recovers the shard on `disk` and starts its thread. Blocks while the log is replayed and
    /// synced. On return the shard leads under a new epoch, all it will say is durable, and whoever
    /// led before answers nothing any more. `page` is the shard's epoch page.
    pub fn open<D: Disk>(
        disk: D,
        page: &Arc<dyn Page>,
        identity: Identity,
        clock: Arc<dyn Clock>,
        entropy: &dyn Entropy,
        options: &Options,
    ) -> Result<(Self, ShardThread, OpenReport), OpenError> {
        let (shard, mut rounds, report) =
            Self::open_stepped(disk, page, identity, clock, entropy, options)?;
        let thread = std::thread::Builder::new()
            .name(format!("shard-{}", identity.shard))
            .spawn(move || {
                let _closing = CloseAtEnd::of(&rounds);
                while rounds.next(rounds.patience())? {}
                Ok(())
            })
            .map_err(OpenError::Thread)?;
        Ok((shard, ShardThread(thread), report))
    }

    /// Like [`Shard::open`], without a thread: whoever has the rounds makes them.
    pub fn open_stepped<D: Disk>(
        disk: D,
        page: &Arc<dyn Page>,
        identity: Identity,
        clock: Arc<dyn Clock>,
        entropy: &dyn Entropy,
        options: &Options,
    ) -> Result<(Self, Rounds<D>, OpenReport), OpenError> {
        let (core, opened) = Core::open(disk, page, identity, clock, entropy, options)?;
        let report = OpenReport {
            records: opened.records,
            cut_bytes: opened.cut_bytes,
            page_repaired: opened.page_repaired,
        };
        let shard = Self {
            inner: Arc::clone(core.inner()),
            until: None,
        };
        Ok((shard, Rounds::new(core), report))
    }

    /// The same shard, for a caller who waits no longer than `wait` from now. What it queues is not
    /// worked on later, and nothing is appended for it: the reply is [`Error::Late`]. What a batch
    /// has taken goes on, whoever waits.
    #[must_use]
    pub fn within(mut self, wait: Option<Duration>) -> Self {
        self.until = wait.map(|wait| self.inner.clock.elapsed().saturating_add(wait));
        self
    }

    /// Shard time: what expiry is judged by. Does not block.
    #[must_use]
    pub fn now(&self) -> Timestamp {
        self.inner.clock.now()
    }

    /// The row of a visible paste, and the instant at which it was visible. Does not block on the
    /// disk.
    pub fn paste(&self, id: &PasteId) -> Result<Option<(PasteRow, Timestamp)>, Error> {
        let row = self.inner.index.paste(id);
        let now = self.inner.clock.now();
        self.check_leading()?;
        Ok(row.filter(|row| now < row.expires_at).map(|row| (row, now)))
    }

    /// The row of a key that is still honoured. A hint for a create, which apply decides. Does not
    /// block on the disk.
    pub fn idempotency(&self, digest: &KeyDigest) -> Result<Option<IdempotencyRow>, Error> {
        let row = self.inner.index.idempotency(digest);
        let now = self.inner.clock.now();
        self.check_leading()?;
        Ok(row.filter(|row| now < row.expires_at))
    }

    /// Queues a create. After `Ok` the reply is called once, when the record is durable and
    /// decided, or its outcome has become unknown; after an error it never is. Does not block.
    pub fn create(&self, create: Box<Create>, reply: Reply) -> Result<(), Error> {
        // The fixed fields, and the options behind them.
        let options = create
            .title
            .as_ref()
            .map_or(0, |title| title.as_str().len());
        self.propose(Command::Create(create), reply, 512 + options)
    }

    /// Queues an end; like [`Shard::create`].
    pub fn end(&self, end: End, reply: Reply) -> Result<(), Error> {
        self.propose(Command::End(end), reply, 128)
    }

    /// Queues a command of delivery: an inbox record, a deliver, an ack, a nack, an extension, a
    /// replay or a registration; like [`Shard::create`].
    pub fn deliver(&self, command: Command, reply: Reply) -> Result<(), Error> {
        let size = match &command {
            Command::Ack(ack) => 128 + ack.attempts.len() * 32,
            Command::Nack(nack) => 256 + nack.reason.len(),
            _ => 192,
        };
        self.propose(command, reply, size)
    }

    fn propose(&self, command: Command, reply: Reply, size: usize) -> Result<(), Error> {
        let work = Work {
            command,
            reply,
            size,
            until: self.until,
        };
        self.inner
            .queue
            .push(work)
            .map_err(|err| self.or_fenced(err))
    }

    /// Why a shard is closed matters to who looks for its leader.
    fn or_fenced(&self, err: Error) -> Error {
        if err == Error::Closed && !self.inner.claim.holds() {
            Error::Fenced
        } else {
            err
        }
    }

    /// Whether a message is recorded as done by a consumer. Does not block on the disk.
    pub fn inbox_contains(
        &self,
        consumer: &ConsumerName,
        outbox_id: OutboxId,
    ) -> Result<bool, Error> {
        let until = self.inner.index.inbox(consumer, outbox_id);
        let now = self.inner.clock.now();
        self.check_leading()?;
        Ok(until.is_some_and(|until| now < until))
    }

    /// Whether a consumer of that name gets ends.
    pub fn is_subscribed(&self, consumer: &ConsumerName) -> Result<bool, Error> {
        let subscribed = self.inner.index.is_subscribed(consumer);
        self.check_leading()?;
        Ok(subscribed)
    }

    /// How long until a consumer's next message is due, by the shard's time: a hint for when to
    /// queue a deliver. `None` without a message.
    #[must_use]
    pub fn next_message_in(&self, consumer: &ConsumerName) -> Option<Duration> {
        let due = self.inner.index.next_message(consumer)?;
        Some(due.since(self.inner.clock.now()))
    }

    /// A consumer's dead letters after `after`, by outbox id, at most `limit`; `None` without a
    /// consumer of that name.
    pub fn dead_letters(
        &self,
        consumer: &ConsumerName,
        after: Option<OutboxId>,
        limit: usize,
    ) -> Result<Option<Vec<DeadLetter>>, Error> {
        let now = self.inner.clock.now();
        let letters = self.inner.index.dead_letters(consumer, after, limit, now);
        self.check_leading()?;
        Ok(letters)
    }

    /// The sealing generations that honoured keys need, ascending. Walks all keys.
    #[must_use]
    pub fn generations(&self) -> Vec<u32> {
        self.inner.index.generations(self.inner.clock.now())
    }

    /// Takes a wall clock that has leapt ahead as right, at the next look at it.
    pub fn confirm_clock(&self) {
        self.inner.leap_confirmed.store(true, Ordering::Release);
    }

    /// Takes no more commands; those that wait are still committed and answered, then the thread
    /// ends.
    pub fn close(&self) {
        self.inner.queue.close();
    }

    /// The fencing token under which this shard leads.
    #[must_use]
    pub fn epoch(&self) -> Epoch {
        self.inner.claim.epoch()
    }

    /// How often the shard's thread went round: a number that stands still for long means that it
    /// hangs, in a sync say. Idle it goes round every 50 ms.
    #[must_use]
    pub fn rounds(&self) -> u64 {
        self.inner.rounds.load(Ordering::Relaxed)
    }

    /// Tells who waits to take over that this leader has closed its log. Only after
    /// [`ShardThread::join`].
    pub fn resign(&self) {
        self.inner.claim.resign();
    }

    /// The last applied record.
    #[must_use]
    pub fn applied(&self) -> Sequence {
        Sequence(self.inner.applied.load(Ordering::Acquire))
    }

    /// What the shard is doing. The numbers are not read at one instant.
    #[must_use]
    pub fn status(&self) -> Status {
        Status {
            epoch: self.epoch(),
            applied: self.applied(),
            now: self.now(),
            counts: self.inner.index.counts(),
            next_end: self.inner.index.next_due(),
            commits: self.inner.commits.load(Ordering::Relaxed),
            syncs: self.inner.syncs.load(Ordering::Relaxed),
            fenced: self.inner.fenced.load(Ordering::Relaxed),
            batches: self.inner.batches.snapshot(),
            outcomes: self.inner.outcomes.snapshot(),
            queued: self.inner.queue.len(),
            trouble: self.inner.trouble(),
            stopped_by: self.inner.stopped_by.lock().clone(),
        }
    }

    /// All rows, for checks. It walks them all, and is no one instant's where the shard goes on.
    #[must_use]
    pub fn rows(&self) -> Rows {
        self.inner.index.rows()
    }

    /// A hash of all rows; see [`Index::fingerprint`].
    #[must_use]
    pub fn fingerprint(&self) -> u64 {
        self.inner.index.fingerprint()
    }

    /// Whether what was read before the call may be answered (f04): nobody else led until then, and
    /// the log has not failed.
    fn check_leading(&self) -> Result<(), Error> {
        if !self.inner.claim.holds() {
            Err(Error::Fenced)
        } else if self.inner.stopped_by.lock().is_some() {
            Err(Error::Closed)
        } else {
            Ok(())
        }
    }
}

#[cfg(test)]
mod tests;
