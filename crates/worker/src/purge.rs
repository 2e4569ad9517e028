//! One attempt: the five steps in their order (i02).

use std::fmt;
use std::time::Duration;

use ostraca_bodies::{DELETE_DEADLINE, Deleted, Kind};
use ostraca_client::{Message, Recorded, Settled};
use ostraca_types::ConsumerName;
use tokio::time::timeout;

use crate::metrics::{Metrics, Step};
use crate::ports::{Edge, Fault, Inbox, Objects, Outbox, Ports};
use crate::{PurgeError, PurgeFault};

/// A delete of an object is given up after this.
pub const OBJECT_DEADLINE: Duration = DELETE_DEADLINE;
/// A purge of all edges is given up after this.
pub const PURGE_DEADLINE: Duration = Duration::from_secs(5);

/// How an attempt went well.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Finished {
    /// Whether somebody had finished the message before.
    pub recorded: Recorded,
    /// Whether this attempt ran the effects.
    pub ran: bool,
    /// What the ack found.
    pub settled: Settled,
}

/// The step that an attempt failed at, and why.
#[derive(Debug)]
pub enum Failure {
    /// The object store was down before this attempt began.
    Paused,
    /// The inbox was not read.
    LookUp(Fault),
    /// The object was not deleted, as far as is known.
    Object(ostraca_bodies::Error),
    /// The edge was not purged, as far as is known.
    Edge(PurgeError),
    /// All is done, and it is not known whether that is recorded.
    Record(Fault),
    /// All is done and recorded, only the shard does not know.
    Ack(Fault),
}

/// Runs one attempt from the look into the inbox to the ack. It may be stopped between any two
/// steps and in each of them: the next attempt makes it good (i03).
pub(crate) async fn purge<S: Outbox + Inbox, B: Objects, E: Edge>(
    ports: &Ports<S, B, E>,
    consumer: &ConsumerName,
    message: &Message,
    metrics: &Metrics,
) -> Result<Finished, Failure> {
    let id = &message.outbox_id;
    let looked = metrics.timed(Step::LookUp, ports.shards.contains(consumer, id));
    let mut recorded = Recorded::Before;
    let ran = !looked.await.map_err(Failure::LookUp)?;
    if ran {
        let deleted = metrics.timed(Step::Object, delete(&ports.objects, &message.object_key));
        let deleted = deleted.await.map_err(Failure::Object)?;
        // Later attempts may follow one that deleted it and was stopped.
        if deleted == Deleted::WasNot && message.attempt == 1 {
            metrics.object_missing();
            tracing::warn!(event = "object_missing", outbox_id = %id, object = message.object_key);
        }
        let purged = metrics.timed(Step::Edge, purge_edge(&ports.edge, message));
        purged.await.map_err(Failure::Edge)?;
        // Only now, and the ack only after it: whoever finds the row relies on the effects, and
        // after an ack nobody comes back to look.
        let record = metrics.timed(Step::Record, ports.shards.record(consumer, id));
        recorded = record.await.map_err(Failure::Record)?;
    }
    let ack = metrics.timed(Step::Ack, ports.shards.ack(consumer, &message.handle));
    Ok(Finished {
        recorded,
        ran,
        settled: ack.await.map_err(Failure::Ack)?,
    })
}

async fn delete(objects: &impl Objects, key: &str) -> Result<Deleted, ostraca_bodies::Error> {
    match timeout(OBJECT_DEADLINE, objects.delete(key)).await {
        Ok(done) => done,
        Err(_) => Err(ostraca_bodies::Error::Deadline {
            action: ostraca_bodies::Action::Delete,
            after: OBJECT_DEADLINE,
        }),
    }
}

async fn purge_edge(edge: &impl Edge, message: &Message) -> Result<(), PurgeError> {
    match timeout(PURGE_DEADLINE, edge.purge(&message.paste_id)).await {
        Ok(done) => done,
        Err(_) => Err(PurgeError::new(PurgeFault::Deadline)),
    }
}

impl Failure {
    /// Whether it says that the object store is down. One object's own trouble does not.
    pub(crate) fn is_store_down(&self) -> bool {
        match self {
            Self::Object(err) => is_down(err),
            _ => false,
        }
    }

    /// Whether the object store did its part.
    pub(crate) const fn is_after_object(&self) -> bool {
        matches!(self, Self::Edge(_) | Self::Record(_) | Self::Ack(_))
    }

    /// When to try again, if not with backoff.
    pub(crate) const fn delay(&self) -> Option<Duration> {
        match self {
            Self::Edge(err) => err.retry_after(),
            _ => None,
        }
    }
}

pub(crate) fn is_down(err: &ostraca_bodies::Error) -> bool {
    matches!(err.kind(), Kind::Down | Kind::Full)
}

/// For dead letters and logs: which step, and what was wrong, without secrets.
impl fmt::Display for Failure {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Paused => f.write_str("not tried: the object store is down"),
            Self::LookUp(fault) => write!(f, "the inbox was not read: {fault}"),
            Self::Object(err) => write!(f, "the object was not deleted: {err}"),
            Self::Edge(err) => write!(f, "the edge was not purged: {err}"),
            Self::Record(fault) => write!(f, "done, but not recorded: {fault}"),
            Self::Ack(fault) => write!(f, "done and recorded, but not acked: {fault}"),
        }
    }
}
