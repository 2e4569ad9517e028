//! A job beside the shard's thread, and what came of it.

use std::sync::mpsc::{Receiver, TryRecvError, sync_channel};

use ostraca_io::Spawn;

/// A job that was started.
pub(crate) struct Job<T>(Receiver<T>);

impl<T: Send + 'static> Job<T> {
    /// Starts it; `None` where that is not possible.
    pub(crate) fn start(
        spawn: &dyn Spawn,
        name: &str,
        job: impl FnOnce() -> T + Send + 'static,
    ) -> Option<Self> {
        let (done, result) = sync_channel(1);
        // Nobody looks any more once the shard is closed.
        let job = Box::new(move || drop(done.send(job())));
        spawn.spawn(name, job).ok().map(|()| Self(result))
    }

    /// What came of it, once. Panics if the job did: that is our own mistake.
    pub(crate) fn take_if_done(job: &mut Option<Self>) -> Option<T> {
        let done = match job.as_ref()?.0.try_recv() {
            Ok(done) => done,
            Err(TryRecvError::Empty) => return None,
            Err(TryRecvError::Disconnected) => panic!("a job of the shard panicked"),
        };
        *job = None;
        Some(done)
    }
}
