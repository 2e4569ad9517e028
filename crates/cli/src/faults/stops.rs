//! Named points at which a process of a faults build ends or stops itself (docs/faults.md).

use std::io;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use ostraca_bodies::Deleted;
use ostraca_client::{Handle, Message, Recorded, Settled, Shard};
use ostraca_io::{files, process};
use ostraca_types::{ConsumerName, OutboxId, PasteId};
use ostraca_worker::{Edge, Fault, Inbox, Objects, Outbox, Ports, PurgeError};

/// The points of this process. Without a directory none is ever reached.
#[derive(Debug, Clone)]
pub(super) struct Stops(Option<Arc<PathBuf>>);

impl Stops {
    pub(super) fn from_env() -> Self {
        Self(std::env::var_os(super::VARIABLE).map(|dir| Arc::new(PathBuf::from(dir))))
    }

    /// A file of the script, if there is one.
    pub(super) fn file(&self, name: &str) -> Option<PathBuf> {
        self.0.as_ref().map(|dir| dir.join(name))
    }

    /// Ends this process with SIGKILL, or stops it with SIGSTOP, if the script asks for it at this
    /// point.
    ///
    /// Panics if the script cannot be read or renamed: a test that goes on without its kill proves
    /// nothing.
    pub(super) fn reach(&self, point: &str) {
        if self.asks("stop", "stopped", point) {
            let killed = process::kill(std::process::id());
            unreachable!("the kernel kills who asks for it: {killed:?}");
        }
        if self.asks("pause", "paused", point) {
            // Returns when somebody lets the process go on.
            if let Err(err) = process::pause(std::process::id()) {
                panic!("this process cannot stop itself: {err}");
            }
        }
    }

    /// Whether the script's file names the point. It is renamed, so it asks once, and asks one
    /// process: the rename has one winner.
    fn asks(&self, name: &str, renamed: &str, point: &str) -> bool {
        let (Some(asked), Some(done)) = (self.file(name), self.file(renamed)) else {
            return false;
        };
        match files::read_text(&asked) {
            Ok(text) if text.trim() == point => {}
            Ok(_) => return false,
            Err(err) if err.kind() == io::ErrorKind::NotFound => return false,
            Err(err) => panic!("{}: {err}", asked.display()),
        }
        match files::rename_durable(&asked, &done) {
            Ok(()) => true,
            // Another one was here first.
            Err(err) if err.kind() == io::ErrorKind::NotFound => false,
            Err(err) => panic!("{}: {err}", done.display()),
        }
    }
}

/// A port with a stop before or after its calls.
#[derive(Debug)]
pub(crate) struct Stopping<T> {
    inner: T,
    stops: Stops,
}

/// The worker's ports with its stop points between the steps of an attempt.
pub(crate) fn stopping<S, B, E>(
    ports: Ports<S, B, E>,
) -> Ports<Stopping<S>, Stopping<B>, Stopping<E>> {
    let stops = Stops::from_env();
    Ports {
        shards: Stopping::new(ports.shards, &stops),
        objects: Stopping::new(ports.objects, &stops),
        edge: Stopping::new(ports.edge, &stops),
    }
}

impl<T> Stopping<T> {
    fn new(inner: T, stops: &Stops) -> Self {
        Self {
            inner,
            stops: stops.clone(),
        }
    }

    /// A step that failed was not taken, so its point is not reached.
    fn after<R, F>(&self, point: &str, result: Result<R, F>) -> Result<R, F> {
        if result.is_ok() {
            self.stops.reach(point);
        }
        result
    }
}

impl<T: Outbox> Outbox for Stopping<T> {
    async fn shards(&self) -> Result<Vec<Shard>, Fault> {
        self.inner.shards().await
    }

    async fn receive(
        &self,
        shard: &Shard,
        consumer: &ConsumerName,
        max: usize,
        visibility: Duration,
    ) -> Result<Vec<Message>, Fault> {
        self.inner.receive(shard, consumer, max, visibility).await
    }

    async fn ack(&self, consumer: &ConsumerName, handle: &Handle) -> Result<Settled, Fault> {
        let settled = self.inner.ack(consumer, handle).await;
        self.after("worker.after-ack", settled)
    }

    async fn nack(
        &self,
        consumer: &ConsumerName,
        handle: &Handle,
        reason: &str,
        delay: Option<Duration>,
    ) -> Result<Settled, Fault> {
        self.inner.nack(consumer, handle, reason, delay).await
    }

    async fn extend(
        &self,
        consumer: &ConsumerName,
        handle: &Handle,
        visibility: Duration,
    ) -> Result<Settled, Fault> {
        self.inner.extend(consumer, handle, visibility).await
    }
}

impl<T: Inbox> Inbox for Stopping<T> {
    async fn contains(&self, consumer: &ConsumerName, outbox_id: &OutboxId) -> Result<bool, Fault> {
        self.stops.reach("worker.before-look");
        let found = self.inner.contains(consumer, outbox_id).await;
        self.after("worker.after-look", found)
    }

    async fn record(
        &self,
        consumer: &ConsumerName,
        outbox_id: &OutboxId,
    ) -> Result<Recorded, Fault> {
        let recorded = self.inner.record(consumer, outbox_id).await;
        self.after("worker.after-record", recorded)
    }
}

impl<T: Objects> Objects for Stopping<T> {
    async fn delete(&self, key: &str) -> Result<Deleted, ostraca_bodies::Error> {
        let deleted = self.inner.delete(key).await;
        self.after("worker.after-delete", deleted)
    }

    async fn probe(&self) -> Result<(), ostraca_bodies::Error> {
        self.inner.probe().await
    }
}

impl<T: Edge> Edge for Stopping<T> {
    async fn purge(&self, id: &PasteId) -> Result<(), PurgeError> {
        let purged = self.inner.purge(id).await;
        self.after("worker.after-purge", purged)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_the_named_point_stops() {
        let dir = tempfile::tempdir().expect("a directory");
        let stops = Stops(Some(Arc::new(dir.path().to_owned())));
        stops.reach("worker.after-ack");
        let stop = dir.path().join("stop");
        files::replace_durable(&stop, b"worker.after-look\n", 0o644).expect("written");
        // Were it wrong, this test process would be gone.
        stops.reach("worker.after-ack");
        Stops(None).reach("worker.after-look");
        assert!(stop.exists(), "it waits for its process");
    }
}
