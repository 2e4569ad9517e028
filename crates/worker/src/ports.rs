//! What the worker needs of the world, as traits, and the real things behind them.
//!
//! Dropping a call's future is how a worker dies in the middle of it: whatever was asked for may
//! have happened or not.

use std::fmt;
use std::time::Duration;

use ostraca_bodies::{Bodies, Deleted};
use ostraca_client::{
    Client, Handle, Message, RECEIVE_MAX, RECEIVE_WAIT_MAX, Receive, Recorded, Settled, Shard,
};
use ostraca_types::{ConsumerName, OutboxId, PasteId};

use crate::PurgeError;

/// Why a shard did not do what it was asked; whether it happened is not known. For a person, and
/// without secrets.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Fault(pub String);

impl fmt::Display for Fault {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

impl std::error::Error for Fault {}

impl From<ostraca_client::Error> for Fault {
    fn from(err: ostraca_client::Error) -> Self {
        // What is none of ours may refuse without a word.
        Self(match err.message() {
            "" => "a shard did not do what it was asked".to_owned(),
            text => text.to_owned(),
        })
    }
}

/// The messages of all shards. Each call has a deadline of its own.
pub trait Outbox: Send + Sync + 'static {
    /// Who leads which slots now.
    fn shards(&self) -> impl Future<Output = Result<Vec<Shard>, Fault>> + Send;

    /// Takes up to `max` messages of one shard, each for `visibility`; waits for the first, and
    /// answers none if none became due.
    fn receive(
        &self,
        shard: &Shard,
        consumer: &ConsumerName,
        max: usize,
        visibility: Duration,
    ) -> impl Future<Output = Result<Vec<Message>, Fault>> + Send;

    /// The work of this attempt is done. `Done` is durable.
    fn ack(
        &self,
        consumer: &ConsumerName,
        handle: &Handle,
    ) -> impl Future<Output = Result<Settled, Fault>> + Send;

    /// The work of this attempt failed. It comes again after `delay`, or with backoff.
    fn nack(
        &self,
        consumer: &ConsumerName,
        handle: &Handle,
        reason: &str,
        delay: Option<Duration>,
    ) -> impl Future<Output = Result<Settled, Fault>> + Send;

    /// The work of this attempt takes longer: it has `visibility` from now.
    fn extend(
        &self,
        consumer: &ConsumerName,
        handle: &Handle,
        visibility: Duration,
    ) -> impl Future<Output = Result<Settled, Fault>> + Send;
}

/// What is done already. Each call has a deadline of its own.
pub trait Inbox: Send + Sync + 'static {
    /// Whether the consumer has finished this message.
    fn contains(
        &self,
        consumer: &ConsumerName,
        outbox_id: &OutboxId,
    ) -> impl Future<Output = Result<bool, Fault>> + Send;

    /// The consumer has finished it. Durable on return.
    fn record(
        &self,
        consumer: &ConsumerName,
        outbox_id: &OutboxId,
    ) -> impl Future<Output = Result<Recorded, Fault>> + Send;
}

/// The object store.
pub trait Objects: Send + Sync + 'static {
    /// Deletes an object, and says whether it was there. On return it stays away.
    fn delete(
        &self,
        key: &str,
    ) -> impl Future<Output = Result<Deleted, ostraca_bodies::Error>> + Send;

    /// Whether the store works, found out without touching any paste's object.
    fn probe(&self) -> impl Future<Output = Result<(), ostraca_bodies::Error>> + Send;
}

/// The cache in front of the frontend.
pub trait Edge: Send + Sync + 'static {
    /// Drops everything that it keeps of a paste; nothing to drop is success.
    fn purge(&self, id: &PasteId) -> impl Future<Output = Result<(), PurgeError>> + Send;
}

/// All of it.
#[derive(Debug)]
pub struct Ports<S, B, E> {
    /// The shards: [`Outbox`] and [`Inbox`].
    pub shards: S,
    /// The object store.
    pub objects: B,
    /// The edge.
    pub edge: E,
}

impl Outbox for Client {
    async fn shards(&self) -> Result<Vec<Shard>, Fault> {
        Ok(Self::shards(self).await?)
    }

    async fn receive(
        &self,
        shard: &Shard,
        consumer: &ConsumerName,
        max: usize,
        visibility: Duration,
    ) -> Result<Vec<Message>, Fault> {
        let ask = Receive {
            max: max.min(RECEIVE_MAX),
            wait: RECEIVE_WAIT_MAX,
            visibility,
        };
        Ok(Self::receive(self, shard, consumer, ask).await?)
    }

    async fn ack(&self, consumer: &ConsumerName, handle: &Handle) -> Result<Settled, Fault> {
        let results = Self::ack(self, consumer, std::slice::from_ref(handle)).await;
        // One handle, one result.
        let result = results.into_iter().next();
        Ok(result.ok_or_else(|| Fault("no answer to an ack".to_owned()))??)
    }

    async fn nack(
        &self,
        consumer: &ConsumerName,
        handle: &Handle,
        reason: &str,
        delay: Option<Duration>,
    ) -> Result<Settled, Fault> {
        Ok(Self::nack(self, consumer, handle, reason, delay).await?)
    }

    async fn extend(
        &self,
        consumer: &ConsumerName,
        handle: &Handle,
        visibility: Duration,
    ) -> Result<Settled, Fault> {
        Ok(Self::extend(self, consumer, handle, visibility).await?)
    }
}

impl Inbox for Client {
    async fn contains(&self, consumer: &ConsumerName, outbox_id: &OutboxId) -> Result<bool, Fault> {
        Ok(self.contains_inbox(consumer, outbox_id).await?)
    }

    async fn record(
        &self,
        consumer: &ConsumerName,
        outbox_id: &OutboxId,
    ) -> Result<Recorded, Fault> {
        Ok(self.record_inbox(consumer, outbox_id).await?)
    }
}

/// Where a delete is tried to see whether deletes work: in a directory of pastes, under a name that
/// no paste has.
const PROBE_KEY: &str = "p/00/probe";

impl Objects for Bodies {
    async fn delete(&self, key: &str) -> Result<Deleted, ostraca_bodies::Error> {
        Self::delete(self, key).await
    }

    async fn probe(&self) -> Result<(), ostraca_bodies::Error> {
        Self::delete(self, PROBE_KEY).await.map(|_| ())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn p02_the_probe_is_no_paste() {
        assert_eq!(PasteId::from_object_key(PROBE_KEY), None);
    }

    #[tokio::test]
    async fn a_probe_tells_a_store_that_is_gone() {
        let dir = tempfile::tempdir().expect("a directory");
        std::fs::DirBuilder::new()
            .create(dir.path().join("p"))
            .expect("made");
        let bodies = Bodies::local(dir.path()).expect("a store");
        bodies.probe().await.expect("it works");
        std::fs::remove_dir_all(dir.path().join("p")).expect("removed");
        let down = bodies.probe().await.expect_err("unmounted");
        assert_eq!(down.kind(), ostraca_bodies::Kind::Down);
    }
}
