//! A job beside the shard's thread, and what came of it.

use std::any::Any;
use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};
use std::sync::mpsc::{Receiver, TryRecvError, sync_channel};

use ostraca_io::Spawn;

/// A job that was started.
pub(crate) struct Job<T>(Receiver<Result<T, Panic>>);

/// What a job panicked with.
type Panic = Box<dyn Any + Send>;

impl<T: Send + 'static> Job<T> {
    /// Starts it; `None` where that is not possible.
    pub(crate) fn start(
        spawn: &dyn Spawn,
        name: &str,
        job: impl FnOnce() -> T + Send + 'static,
    ) -> Option<Self> {
        let (done, result) = sync_channel(1);
        let job = Box::new(move || {
            // What the job owned is gone with it, and the shard ends by the same panic.
            let result = catch_unwind(AssertUnwindSafe(job));
            // Nobody looks any more once the shard is closed.
            drop(done.send(result));
        });
        spawn.spawn(name, job).ok().map(|()| Self(result))
    }

    /// What came of it, once. Panics as the job did: that is our own mistake.
    pub(crate) fn take_if_done(job: &mut Option<Self>) -> Option<T> {
        let done = match job.as_ref()?.0.try_recv() {
            Ok(done) => done,
            Err(TryRecvError::Empty) => return None,
            Err(TryRecvError::Disconnected) => panic!("a job of the shard was dropped unfinished"),
        };
        *job = None;
        Some(done.unwrap_or_else(|panic| resume_unwind(panic)))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use ostraca_io::Threads;

    fn wait<T: Send + 'static>(mut job: Option<Job<T>>) -> T {
        loop {
            if let Some(done) = Job::take_if_done(&mut job) {
                assert!(job.is_none(), "it is done once");
                return done;
            }
            std::thread::yield_now();
        }
    }

    #[test]
    fn a_jobs_panic_is_the_shards_with_its_own_words() {
        let well = Job::start(&Threads, "well", || 7);
        let slot = wait(well) + 2;
        let ill = Job::start(&Threads, "ill", move || -> u8 {
            panic!("slot {slot} is odd")
        });
        let panic = catch_unwind(AssertUnwindSafe(|| wait(ill))).expect_err("it panicked");
        let words = panic.downcast_ref::<String>().expect("a text");
        assert_eq!(words, "slot 9 is odd");
    }
}
