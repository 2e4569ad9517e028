//! The bounded queue in front of a shard's thread.

use std::collections::VecDeque;
use std::time::Duration;

use parking_lot::{Condvar, Mutex};

use crate::command::Command;
use crate::error::Error;
use crate::shard::{Answer, Reply};

/// The most commands that wait. At 20,000 creates a second these are 0.4 s of work.
pub(crate) const ENTRIES_MAX: usize = 8192;
/// The most bytes of commands that wait.
pub(crate) const BYTES_MAX: usize = 8 << 20;
/// What a refused caller is told to wait: about the time that a full queue takes to empty.
const RETRY_AFTER: Duration = Duration::from_millis(500);

/// A command, and whom to tell. That happens once, also where a panic takes the work away: then nobody
/// knows what became of it.
pub(crate) struct Work {
    pub(crate) command: Command,
    pub(crate) reply: Reply,
    /// About how many bytes of memory and log it is.
    pub(crate) size: usize,
    /// When its caller stops waiting, on the boot-time clock.
    pub(crate) until: Option<Duration>,
}

impl Work {
    pub(crate) fn tell(mut self, answer: Result<Answer, Error>) {
        self.take_reply()(answer);
    }

    fn take_reply(&mut self) -> Reply {
        std::mem::replace(&mut self.reply, nobody())
    }
}

impl Drop for Work {
    fn drop(&mut self) {
        // Nobody's, if it was told.
        self.take_reply()(Err(Error::Unknown));
    }
}

/// The reply to nobody. It costs no memory.
pub(crate) fn nobody() -> Reply {
    Box::new(|_| {})
}

/// What a wait for work found.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum Drained {
    /// Some work.
    Work,
    /// None within the time.
    Nothing,
    /// None, and none will come.
    Closed,
}

#[derive(Default)]
struct State {
    waiting: VecDeque<Work>,
    bytes: usize,
    closed: bool,
}

/// Many callers in, one thread out. A caller is refused rather than kept waiting.
#[derive(Default)]
pub(crate) struct Queue {
    state: Mutex<State>,
    arrived: Condvar,
}

impl Queue {
    /// Adds work, or refuses it: then nothing was queued and its reply is not called.
    pub(crate) fn push(&self, mut work: Work) -> Result<(), Error> {
        let mut state = self.state.lock();
        let refused = if state.closed {
            Some(Error::Closed)
        } else if state.waiting.len() >= ENTRIES_MAX || state.bytes + work.size > BYTES_MAX {
            Some(Error::Busy {
                retry_after: RETRY_AFTER,
            })
        } else {
            None
        };
        if let Some(refused) = refused {
            // What a reply holds is let go of outside the lock.
            drop(state);
            drop(work.take_reply());
            return Err(refused);
        }
        state.bytes += work.size;
        state.waiting.push_back(work);
        let first = state.waiting.len() == 1;
        drop(state);
        // The thread waits only when nothing else does, so only the first arrival has to wake it.
        if first {
            self.arrived.notify_one();
        }
        Ok(())
    }

    /// Moves up to `max` of what waits to the end of `into`, waiting up to `timeout` for the first.
    /// What stays behind counts against the bounds: a caller is refused when the shard cannot keep
    /// up, not when its memory is full.
    pub(crate) fn drain(
        &self,
        into: &mut VecDeque<Work>,
        max: usize,
        timeout: Duration,
    ) -> Drained {
        let mut state = self.state.lock();
        if state.waiting.is_empty() && !state.closed && !timeout.is_zero() {
            self.arrived.wait_for(&mut state, timeout);
        }
        if state.waiting.is_empty() {
            return if state.closed {
                Drained::Closed
            } else {
                Drained::Nothing
            };
        }
        let count = max.min(state.waiting.len());
        let taken: usize = state.waiting.iter().take(count).map(|work| work.size).sum();
        state.bytes -= taken;
        into.extend(state.waiting.drain(..count));
        Drained::Work
    }

    /// How much waits.
    pub(crate) fn len(&self) -> usize {
        self.state.lock().waiting.len()
    }

    /// Takes no more work. What waits is still drained.
    pub(crate) fn close(&self) {
        self.state.lock().closed = true;
        self.arrived.notify_all();
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::command::End;
    use crate::command::tests::sample;
    use ostraca_index::EndCause;

    fn work(size: usize) -> Work {
        let end = End {
            paste_id: sample(1).paste_id,
            cause: EndCause::Deleted,
        };
        Work {
            command: Command::End(end),
            reply: nobody(),
            size,
            until: None,
        }
    }

    #[test]
    fn l01_a_full_queue_refuses_at_once() {
        let queue = Queue::default();
        for _ in 0..ENTRIES_MAX {
            queue.push(work(1)).expect("room");
        }
        let refused = queue.push(work(1)).expect_err("no room");
        assert!(matches!(refused, Error::Busy { retry_after } if !retry_after.is_zero()));
        let mut taken = VecDeque::new();
        let drain = |taken: &mut _, max| queue.drain(taken, max, Duration::ZERO);
        assert_eq!(drain(&mut taken, 10), Drained::Work);
        assert_eq!(taken.len(), 10);
        for _ in 0..10 {
            queue.push(work(1)).expect("as much room as was taken");
        }
        assert!(matches!(queue.push(work(1)), Err(Error::Busy { .. })));
        assert_eq!(drain(&mut taken, usize::MAX), Drained::Work);
        queue.push(work(BYTES_MAX)).expect("room again");
        assert!(
            matches!(queue.push(work(1)), Err(Error::Busy { .. })),
            "bytes are bounded too"
        );
    }

    #[test]
    fn a_closed_queue_gives_what_it_has_and_takes_nothing() {
        let queue = Queue::default();
        queue.push(work(1)).expect("room");
        queue.close();
        assert_eq!(queue.push(work(1)), Err(Error::Closed));
        let mut taken = VecDeque::new();
        assert_eq!(
            queue.drain(&mut taken, usize::MAX, Duration::MAX),
            Drained::Work
        );
        assert_eq!(
            queue.drain(&mut taken, usize::MAX, Duration::MAX),
            Drained::Closed
        );
    }
}
