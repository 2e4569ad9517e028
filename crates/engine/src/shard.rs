//! The handle to a shard, and its thread.

use std::collections::VecDeque;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::thread::JoinHandle;
use std::time::Duration;

use ostraca_index::{Counts, IdempotencyRow, Index, PasteRow};
use ostraca_io::{Clock, Disk, Entropy};
use ostraca_types::{Epoch, KeyDigest, PasteId, Sequence, Timestamp};
use ostraca_wal::Identity;
use parking_lot::Mutex;

use crate::apply::Outcome;
use crate::command::{Command, Create, End};
use crate::core::Core;
use crate::error::{Error, OpenError};
use crate::queue::{Drained, Queue, Work};
use crate::time::ShardClock;

/// After this long without work the last batch is marked as durable. Long enough that a client in a
/// loop never meets it, short enough that the window of doubt stays small.
const IDLE_MARK: Duration = Duration::from_millis(20);
/// How often an idle shard looks at its clock and its next segment.
const TEND_INTERVAL: Duration = Duration::from_millis(50);

/// How a shard is run.
#[derive(Debug, Clone, Default)]
pub struct Options {
    /// Of the log.
    pub log: ostraca_wal::Options,
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

/// Called once, on the shard's thread: it must not block.
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
    /// Commands that became durable since the shard was opened.
    pub commits: u64,
    /// Syncs since then.
    pub syncs: u64,
    /// The wall clock is further ahead than is believed.
    pub clock_leapt: bool,
    /// What stopped the shard.
    pub stopped_by: Option<String>,
}

/// What opening a shard found.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct OpenReport {
    /// Records replayed.
    pub records: u64,
    /// Bytes of a torn tail, never acknowledged, that were cut.
    pub cut_bytes: u64,
}

/// What the shard's thread and its callers share.
pub(crate) struct Inner {
    queue: Queue,
    pub(crate) index: Index,
    pub(crate) clock: ShardClock,
    pub(crate) epoch: Epoch,
    pub(crate) applied: AtomicU64,
    pub(crate) commits: AtomicU64,
    pub(crate) syncs: AtomicU64,
    pub(crate) leapt: AtomicBool,
    stopped_by: Mutex<Option<String>>,
}

impl Inner {
    pub(crate) fn new(index: Index, clock: ShardClock, epoch: Epoch) -> Self {
        Self {
            queue: Queue::default(),
            index,
            clock,
            epoch,
            applied: AtomicU64::new(0),
            commits: AtomicU64::new(0),
            syncs: AtomicU64::new(0),
            leapt: AtomicBool::new(false),
            stopped_by: Mutex::new(None),
        }
    }
}

/// A handle to an open shard. Clones are the same shard.
#[derive(Clone)]
pub struct Shard(Arc<Inner>);

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
    /// synced. On return the shard leads under a new epoch, and all it will say is durable.
    ///
    /// The caller holds the directory's lock.
    pub fn open<D: Disk>(
        disk: D,
        identity: Identity,
        clock: Arc<dyn Clock>,
        entropy: &dyn Entropy,
        options: &Options,
    ) -> Result<(Self, ShardThread, OpenReport), OpenError> {
        let (core, opened) = Core::open(disk, identity, clock, entropy, options)?;
        let report = OpenReport {
            records: opened.records,
            cut_bytes: opened.cut_bytes,
        };
        let shard = Self(Arc::clone(core.inner()));
        let thread = std::thread::Builder::new()
            .name(format!("shard-{}", identity.shard))
            .spawn(move || run(core))
            .map_err(OpenError::Thread)?;
        Ok((shard, ShardThread(thread), report))
    }

    /// Shard time: what expiry is judged by. Does not block.
    #[must_use]
    pub fn now(&self) -> Timestamp {
        self.0.clock.now()
    }

    /// The row of a visible paste, and the instant at which it was visible. Does not block on the
    /// disk.
    pub fn paste(&self, id: &PasteId) -> Result<Option<(PasteRow, Timestamp)>, Error> {
        self.check_open()?;
        let row = self.0.index.paste(id);
        let now = self.0.clock.now();
        Ok(row.filter(|row| now < row.expires_at).map(|row| (row, now)))
    }

    /// The row of a key that is still honoured. A hint for a create, which apply decides. Does not
    /// block on the disk.
    pub fn idempotency(&self, digest: &KeyDigest) -> Result<Option<IdempotencyRow>, Error> {
        self.check_open()?;
        let row = self.0.index.idempotency(digest);
        let now = self.0.clock.now();
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

    fn propose(&self, command: Command, reply: Reply, size: usize) -> Result<(), Error> {
        self.0.queue.push(Work {
            command,
            reply,
            size,
        })
    }

    /// Takes no more commands; those that wait are still committed and answered, then the thread
    /// ends.
    pub fn close(&self) {
        self.0.queue.close();
    }

    /// The fencing token under which this shard leads.
    #[must_use]
    pub fn epoch(&self) -> Epoch {
        self.0.epoch
    }

    /// The last applied record.
    #[must_use]
    pub fn applied(&self) -> Sequence {
        Sequence(self.0.applied.load(Ordering::Acquire))
    }

    /// What the shard is doing. The numbers are not read at one instant.
    #[must_use]
    pub fn status(&self) -> Status {
        Status {
            epoch: self.0.epoch,
            applied: self.applied(),
            now: self.now(),
            counts: self.0.index.counts(),
            commits: self.0.commits.load(Ordering::Relaxed),
            syncs: self.0.syncs.load(Ordering::Relaxed),
            clock_leapt: self.0.leapt.load(Ordering::Relaxed),
            stopped_by: self.0.stopped_by.lock().clone(),
        }
    }

    /// A hash of all rows; see [`Index::fingerprint`].
    #[must_use]
    pub fn fingerprint(&self) -> u64 {
        self.0.index.fingerprint()
    }

    fn check_open(&self) -> Result<(), Error> {
        if self.0.stopped_by.lock().is_some() {
            Err(Error::Closed)
        } else {
            Ok(())
        }
    }
}

/// The thread of a shard.
fn run<D: Disk>(mut core: Core<D>) -> Result<(), ostraca_wal::Error> {
    let inner = Arc::clone(core.inner());
    let mut work = VecDeque::new();
    let ended = serve(&mut core, &inner.queue, &mut work);
    if let Err(err) = &ended {
        *inner.stopped_by.lock() = Some(err.to_string());
        // Nobody gets in any more; who waits was never appended, and hears so.
        inner.queue.close();
        inner.queue.drain(&mut work, Duration::ZERO);
        work.into_iter()
            .for_each(|work| (work.reply)(Err(Error::Closed)));
    }
    ended
}

fn serve<D: Disk>(
    core: &mut Core<D>,
    queue: &Queue,
    work: &mut VecDeque<Work>,
) -> Result<(), ostraca_wal::Error> {
    let mut marked = core.last_sequence();
    loop {
        let timeout = match () {
            () if !work.is_empty() => Duration::ZERO,
            () if marked != core.last_sequence() => IDLE_MARK,
            () => TEND_INTERVAL,
        };
        let drained = queue.drain(work, timeout);
        if !work.is_empty() {
            core.commit(work)?;
        } else if marked != core.last_sequence() {
            core.mark()?;
            marked = core.last_sequence();
        }
        if drained == Drained::Closed && work.is_empty() {
            return core.mark();
        }
        core.tend()?;
    }
}

#[cfg(test)]
mod tests;
