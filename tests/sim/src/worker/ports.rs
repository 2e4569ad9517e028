//! What the steps of an attempt reach: the shards, and a consumer's own part of the world.

use std::time::Duration;

use ostraca_bodies::Deleted;
use ostraca_checker::{Op, Told};
use ostraca_client::{Handle, Message, Recorded, Settled, Shard};
use ostraca_types::{ConsumerName, OutboxId, PasteId};
use ostraca_worker::{Edge, Fault, Inbox, Objects, Outbox, PurgeError, PurgeFault};

use super::{Reach, Settling};
use crate::net::{Answer, Request};
use crate::world::World;

impl Outbox for Reach {
    async fn shards(&self) -> Result<Vec<Shard>, Fault> {
        Ok(Vec::new())
    }

    async fn receive(
        &self,
        _: &Shard,
        _: &ConsumerName,
        _: usize,
        _: Duration,
    ) -> Result<Vec<Message>, Fault> {
        Ok(Vec::new())
    }

    async fn ack(&self, _: &ConsumerName, handle: &Handle) -> Result<Settled, Fault> {
        let held = self.held(handle, true);
        // It comes late: when the message was given to somebody again, perhaps.
        if self.hits(60) {
            self.keep(held);
            return Err(Fault("late".to_owned()));
        }
        self.settle(&held, Settling::Ack)
    }

    async fn nack(
        &self,
        _: &ConsumerName,
        handle: &Handle,
        reason: &str,
        _: Option<Duration>,
    ) -> Result<Settled, Fault> {
        let held = self.held(handle, false);
        self.settle(&held, Settling::Nack(reason.to_owned()))
    }

    async fn extend(
        &self,
        _: &ConsumerName,
        handle: &Handle,
        visibility: Duration,
    ) -> Result<Settled, Fault> {
        let millis = u64::try_from(visibility.as_millis()).unwrap_or(u64::MAX);
        let held = self.held(handle, false);
        self.settle(&held, Settling::Extend(millis))
    }
}

impl Inbox for Reach {
    async fn contains(&self, consumer: &ConsumerName, outbox: &OutboxId) -> Result<bool, Fault> {
        let request = Request::Contains(consumer.clone(), *outbox);
        let op = Op::Contains {
            consumer: consumer.to_string(),
            outbox: *outbox,
        };
        let shard = World::owner(outbox.slot());
        self.caller
            .call(shard, &request, op, |answer| match answer {
                Answer::Contains(there) => Some((Told::Contained(*there), *there)),
                _ => None,
            })
    }

    async fn record(&self, consumer: &ConsumerName, outbox: &OutboxId) -> Result<Recorded, Fault> {
        let request = Request::Record(consumer.clone(), *outbox);
        let op = Op::Record {
            consumer: consumer.to_string(),
            outbox: *outbox,
        };
        let shard = World::owner(outbox.slot());
        self.caller
            .call(shard, &request, op, |answer| match answer {
                Answer::Recorded { first } => Some((
                    Told::Recorded { first: *first },
                    if *first {
                        Recorded::Now
                    } else {
                        Recorded::Before
                    },
                )),
                _ => None,
            })
    }
}

impl Objects for Reach {
    async fn delete(&self, key: &str) -> Result<Deleted, ostraca_bodies::Error> {
        let down = || ostraca_bodies::Error::Deadline {
            action: ostraca_bodies::Action::Delete,
            after: Duration::from_secs(1),
        };
        let id = PasteId::from_object_key(key).ok_or_else(down)?;
        // The order of steps is the same for both; what they do is each one's own.
        let done = if self.is_purge() {
            self.world.delete_object(id, self.outbox())
        } else {
            self.world.unlist(id, self.outbox()).then_some(true)
        };
        match done {
            Some(true) => Ok(Deleted::Was),
            Some(false) => Ok(Deleted::WasNot),
            None => Err(down()),
        }
    }

    async fn probe(&self) -> Result<(), ostraca_bodies::Error> {
        Ok(())
    }
}

impl Edge for Reach {
    async fn purge(&self, id: &PasteId) -> Result<(), PurgeError> {
        if !self.is_purge() || self.world.purge_edge(*id, self.outbox()) {
            Ok(())
        } else {
            Err(PurgeError::new(PurgeFault::Deadline))
        }
    }
}
