//! Work beside a shard's own thread.

use std::io;
use std::sync::Arc;

/// Runs jobs beside their caller: the seam at which a simulation decides when each goes on.
pub trait Spawn: Send + Sync + 'static {
    /// Runs `job`, once, without waiting for it. After an error it never runs.
    fn spawn(&self, name: &str, job: Box<dyn FnOnce() + Send>) -> io::Result<()>;
}

impl<S: Spawn + ?Sized> Spawn for Arc<S> {
    fn spawn(&self, name: &str, job: Box<dyn FnOnce() + Send>) -> io::Result<()> {
        (**self).spawn(name, job)
    }
}

/// A thread for each job.
#[derive(Debug, Clone, Copy, Default)]
pub struct Threads;

impl Spawn for Threads {
    fn spawn(&self, name: &str, job: Box<dyn FnOnce() + Send>) -> io::Result<()> {
        let thread = std::thread::Builder::new().name(name.to_owned());
        thread.spawn(job).map(drop)
    }
}
