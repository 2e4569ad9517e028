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

/// How often a held thread looks whether it may go on.
const HELD_POLL: Duration = Duration::from_millis(1);

/// The points of this process. Without a directory none is ever reached.
#[derive(Debug, Clone)]
pub(super) struct Stops(Option<Arc<PathBuf>>);

impl Stops {
    pub(super) fn from_env() -> Self {
        Self(std::env::var_os(super::VARIABLE).map(|dir| Arc::new(PathBuf::from(dir))))
    }

    /// The script in `dir`.
    #[cfg(test)]
    pub(super) fn at(dir: &std::path::Path) -> Self {
        Self(Some(Arc::new(dir.to_owned())))
    }

    /// A file of the script, if there is one.
    pub(super) fn file(&self, name: &str) -> Option<PathBuf> {
        self.0.as_ref().map(|dir| dir.join(name))
    }

    /// Ends this process with SIGKILL, or stops it with SIGSTOP, if the script asks for it at this
    /// point. A stopped thread goes no further before its file of the script is removed, whatever
    /// the rest of the process does meanwhile.
    ///
    /// Panics if the script cannot be read or renamed: a test that goes on without its kill proves
    /// nothing.
    pub(super) fn reach(&self, point: &str) {
        if self.asks("stop", "stopped", point).is_some() {
            let killed = process::kill(std::process::id());
            unreachable!("the kernel kills who asks for it: {killed:?}");
        }
        if let Some(paused) = self.asks("pause", &paused(point), point) {
            // The kernel may stop another thread of this process first, and let this one run on.
            if let Err(err) = process::pause(std::process::id()) {
                panic!("this process cannot stop itself: {err}");
            }
            while paused.exists() {
                std::thread::sleep(HELD_POLL);
            }
        }
    }

    /// Whether the script's file names the point; then its name from now on. It is renamed, so it
    /// asks once, and asks one process: the rename has one winner.
    fn asks(&self, name: &str, renamed: &str, point: &str) -> Option<PathBuf> {
        let (asked, done) = (self.file(name)?, self.file(renamed)?);
        match files::read_text(&asked) {
            Ok(text) if text.trim() == point => {}
            Ok(_) => return None,
            Err(err) if err.kind() == io::ErrorKind::NotFound => return None,
            Err(err) => panic!("{}: {err}", asked.display()),
        }
        match files::rename_durable(&asked, &done) {
            Ok(()) => Some(done),
            // Another one was here first.
            Err(err) if err.kind() == io::ErrorKind::NotFound => None,
            Err(err) => panic!("{}: {err}", done.display()),
        }
    }
}

/// What `pause` is called once a thread is held at the point.
fn paused(point: &str) -> String {
    format!("paused.{}", point.replace(' ', "."))
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
        let stops = Stops::at(dir.path());
        stops.reach("worker.after-ack");
        let stop = dir.path().join("stop");
        files::replace_durable(&stop, b"worker.after-look\n", 0o644).expect("written");
        // Were it wrong, this test process would be gone.
        stops.reach("worker.after-ack");
        Stops(None).reach("worker.after-look");
        assert!(stop.exists(), "it waits for its process");
    }

    #[test]
    fn a_point_is_asked_for_once() {
        let dir = tempfile::tempdir().expect("a directory");
        let stops = Stops::at(dir.path());
        let pause = dir.path().join("pause");
        files::replace_durable(&pause, b"log.before-sync create\n", 0o644).expect("written");
        let held = paused("log.before-sync create");
        assert_eq!(stops.asks("pause", &held, "log.before-sync end"), None);
        let asked = stops.asks("pause", &held, "log.before-sync create");
        assert_eq!(
            asked,
            Some(dir.path().join("paused.log.before-sync.create"))
        );
        assert_eq!(stops.asks("pause", &held, "log.before-sync create"), None);
    }
}
