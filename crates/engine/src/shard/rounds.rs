//! What a shard's thread does, round by round, and what becomes of those who wait when it ends.

use std::collections::VecDeque;
use std::sync::Arc;
use std::time::Duration;

use ostraca_io::Disk;
use ostraca_types::Sequence;

use super::Inner;
use crate::core::{BATCH_ENTRIES_MAX, Core};
use crate::error::Error;
use crate::queue::{Drained, Work};

/// After this long without work the last batch is marked as durable. Long enough that a client in a
/// loop never meets it, short enough that the window of doubt stays small.
pub(super) const IDLE_MARK: Duration = Duration::from_millis(20);
/// How often an idle shard looks at its clock and its next segment.
const TEND_INTERVAL: Duration = Duration::from_millis(50);

/// Stops a shard whose thread panics: until the process has ended, callers come and wait for it. What
/// the thread had taken is dropped behind this, which tells its waiters that nobody knows.
pub(super) struct CloseAtEnd(Arc<Inner>);

impl CloseAtEnd {
    pub(super) fn of<D: Disk>(rounds: &Rounds<D>) -> Self {
        Self(Arc::clone(rounds.core.inner()))
    }
}

impl Drop for CloseAtEnd {
    fn drop(&mut self) {
        if std::thread::panicking() {
            let reason = "the shard's thread panicked".to_owned();
            self.0.stop(reason, Error::Closed, &mut VecDeque::new());
        }
    }
}

/// What the thread of a shard does, round by round. [`Shard::open`](super::Shard::open) starts that
/// thread; a simulation makes the rounds itself.
pub struct Rounds<D: Disk> {
    core: Core<D>,
    /// Taken from the queue, and not part of a batch yet.
    work: VecDeque<Work>,
    /// What was proven durable by a mark. At first nothing: the opening's own record of the clock is
    /// to be proven as any other.
    marked: Sequence,
}

impl<D: Disk> std::fmt::Debug for Rounds<D> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Rounds").finish_non_exhaustive()
    }
}

impl<D: Disk> Rounds<D> {
    pub(super) fn new(core: Core<D>) -> Self {
        Self {
            core,
            work: VecDeque::new(),
            marked: Sequence(0),
        }
    }

    /// How long the next round should wait for work.
    #[must_use]
    pub fn patience(&self) -> Duration {
        match () {
            () if !self.work.is_empty() || self.core.has_due_ends() => Duration::ZERO,
            () if self.marked != self.core.last_sequence() => IDLE_MARK,
            () => TEND_INTERVAL,
        }
    }

    /// One round: waits at most `timeout` for work, commits a batch of it, and does what is due
    /// besides. `false`: the shard is closed, and everything that waited was answered. After an error,
    /// which stops the log, everybody who waited has been told; there is no next round.
    pub fn next(&mut self, timeout: Duration) -> Result<bool, ostraca_wal::Error> {
        let ended = self.go_round(timeout);
        if let Err(err) = &ended {
            let closed = if matches!(err, ostraca_wal::Error::Fenced { .. }) {
                Error::Fenced
            } else {
                Error::Closed
            };
            let inner = Arc::clone(self.core.inner());
            inner.stop(err.to_string(), closed, &mut self.work);
        }
        ended
    }

    fn go_round(&mut self, timeout: Duration) -> Result<bool, ostraca_wal::Error> {
        let Self { core, work, marked } = self;
        // What is taken and not committed yet counts as one batch at most; the rest stays in the
        // queue, which refuses what it cannot hold.
        let room = BATCH_ENTRIES_MAX.saturating_sub(work.len());
        let drained = core.inner().queue.drain(work, room, timeout);
        if !work.is_empty() || core.has_due_ends() {
            core.commit(work)?;
        } else if *marked != core.last_sequence() {
            core.mark()?;
            *marked = core.last_sequence();
        }
        if drained == Drained::Closed && work.is_empty() {
            core.mark()?;
            return Ok(false);
        }
        core.tend()?;
        core.beat();
        Ok(true)
    }
}
