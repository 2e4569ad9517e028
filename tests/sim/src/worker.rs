//! The purge worker: the real order of steps, over simulated calls.

use std::fmt;
use std::future::Future;
use std::sync::Arc;
use std::task::{Context, Poll, Waker};
use std::time::Duration;

use ostraca_bodies::Deleted;
use ostraca_checker::{Delivered, Op, Position, Told};
use ostraca_client::{EndCause, Handle, Message, Recorded, Settled, Shard};
use ostraca_engine::{AttemptId, Delivery};
use ostraca_types::{ConsumerName, Epoch, OutboxId, PasteId, ShardId};
use ostraca_worker::{
    Attempts, Edge, Failure, Fault, Inbox, Objects, Outbox, Ports, PurgeError, PurgeFault,
};
use parking_lot::Mutex;

use crate::kernel::{MILLI, Nanos, Process, SECOND};
use crate::net::{Answer, Request, Silence};
use crate::world::{SHARDS, World};

const VISIBILITY_MS: u64 = 5_000;
const PATIENCE: Nanos = 2 * SECOND;

/// Where the worker runs now.
pub(crate) struct Place {
    pub(crate) process: Mutex<Arc<Process>>,
}

impl fmt::Debug for Place {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Place").finish_non_exhaustive()
    }
}

/// What an attempt needs of the world.
#[derive(Clone)]
struct Reach {
    world: World,
    id: u32,
    /// The message under way: the object store and the edge are told of pastes alone.
    outbox: Arc<Mutex<Option<OutboxId>>>,
}

impl Place {
    pub(crate) fn new(world: &World) -> Arc<Self> {
        let process = world.kernel.process("nobody");
        world.kernel.kill(&process);
        Arc::new(Self {
            process: Mutex::new(process),
        })
    }

    /// Starts the worker, unless it runs.
    pub(crate) fn start(&self, world: &World) {
        let mut place = self.process.lock();
        if !place.is_dead() {
            return;
        }
        let id = world.client();
        *place = world.kernel.process(format!("w{id}"));
        let process = Arc::clone(&place);
        let reach = Reach {
            world: world.clone(),
            id,
            outbox: Arc::default(),
        };
        world.kernel.spawn(&Arc::clone(&process), move || {
            while !process.is_dead() {
                for shard in 0..SHARDS {
                    reach.serve(ShardId(shard));
                }
                let chance = &reach.world.kernel.chance;
                reach
                    .world
                    .kernel
                    .wait(chance.within(10 * MILLI, 150 * MILLI));
            }
        });
    }
}

fn handle(attempt: AttemptId) -> Handle {
    let mut bytes = attempt.epoch.0.to_le_bytes().to_vec();
    bytes.extend_from_slice(&attempt.attempt.to_le_bytes());
    let shard = World::owner(attempt.outbox_id.slot());
    Handle::new(attempt.outbox_id, shard, bytes)
}

fn attempt_of(handle: &Handle, outbox_id: OutboxId) -> AttemptId {
    let (epoch, attempt) = handle.as_bytes().split_at(8);
    AttemptId {
        outbox_id,
        epoch: Epoch(u64::from_le_bytes(epoch.try_into().expect("eight"))),
        attempt: u32::from_le_bytes(attempt.try_into().expect("four")),
    }
}

fn message(delivery: &Delivery) -> Message {
    Message {
        outbox_id: delivery.row.outbox_id,
        paste_id: delivery.row.paste_id,
        object_key: delivery.row.paste_id.object_key(),
        cause: Some(match delivery.row.cause {
            ostraca_engine::EndCause::Deleted => EndCause::Deleted,
            ostraca_engine::EndCause::Expired => EndCause::Expired,
        }),
        ended_at: delivery.row.ended_at,
        attempt: delivery.id.attempt,
        handle: handle(delivery.id),
        visible_at: delivery.visible_at,
    }
}

/// Runs a future whose waits are the kernel's: it is never pending.
fn now<T>(future: impl Future<Output = T>) -> T {
    let mut future = std::pin::pin!(future);
    match future
        .as_mut()
        .poll(&mut Context::from_waker(Waker::noop()))
    {
        Poll::Ready(done) => done,
        Poll::Pending => {
            unreachable!("everything that an attempt waits for is a call of the kernel")
        }
    }
}

impl Reach {
    fn serve(&self, shard: ShardId) {
        let consumer = ConsumerName::purge();
        let max = 4;
        let request = Request::Receive {
            consumer: consumer.clone(),
            max,
            visibility_ms: VISIBILITY_MS,
        };
        let op = Op::Receive {
            consumer: consumer.to_string(),
        };
        let deliveries = self.call(shard, &request, op, |answer| match answer {
            Answer::Delivered(messages) => {
                let told = messages.iter().map(|one| Delivered {
                    outbox: one.row.outbox_id,
                    paste: one.row.paste_id,
                    attempt: one.id.attempt,
                    ended_at: one.row.ended_at,
                });
                Some((Told::Delivered(told.collect()), messages.clone()))
            }
            _ => None,
        });
        let attempts = Attempts::new(
            Ports {
                shards: self.clone(),
                objects: self.clone(),
                edge: self.clone(),
            },
            consumer.clone(),
        );
        for delivery in deliveries.unwrap_or_default() {
            if self.world.kernel.is_dying() {
                return;
            }
            let message = message(&delivery);
            *self.outbox.lock() = Some(message.outbox_id);
            match now(attempts.run(&message)) {
                Ok(_) | Err(Failure::Ack(_)) => {}
                Err(failure) => {
                    let reason = failure.to_string();
                    drop(now(self.nack(&consumer, &message.handle, &reason, None)));
                }
            }
        }
    }

    /// Asks a shard and writes down what it said, if that was an answer.
    fn call<T>(
        &self,
        shard: ShardId,
        request: &Request,
        op: Op,
        answered: impl FnOnce(&Answer) -> Option<(Told, T)>,
    ) -> Result<T, Fault> {
        let invoked = self.world.now();
        let (reply, twice) = self.world.ask(shard, request, PATIENCE);
        if self.world.kernel.is_dying() {
            return Err(Fault("killed".to_owned()));
        }
        let mut at: Option<Position> = None;
        let (told, value) = match &reply {
            Ok(reply) => {
                at = World::position(shard, reply);
                match (answered(&reply.answer), &reply.answer) {
                    (Some((told, value)), _) => (told, Ok(value)),
                    (None, Answer::Refused(reason)) => {
                        let reason = (*reason).to_owned();
                        (
                            Told::Refused {
                                reason: reason.clone(),
                            },
                            Err(Fault(reason)),
                        )
                    }
                    _ => (Told::Unknown, Err(Fault("unknown".to_owned()))),
                }
            }
            Err(Silence::Refused) => {
                let reason = "UNREACHABLE".to_owned();
                (
                    Told::Refused {
                        reason: reason.clone(),
                    },
                    Err(Fault(reason)),
                )
            }
            Err(Silence::Lost) => (Told::Unknown, Err(Fault("no reply".to_owned()))),
        };
        let empty = matches!(&told, Told::Delivered(messages) if messages.is_empty());
        if !empty {
            self.world.note(self.id, invoked, op, (told, at), twice);
        }
        value
    }

    fn settle(&self, outbox: OutboxId, request: &Request, op: Op) -> Result<Settled, Fault> {
        let shard = World::owner(outbox.slot());
        self.call(shard, request, op, |answer| match answer {
            Answer::Settled(settled) => Some(match settled {
                ostraca_engine::Settled::Done => (Told::Settled(true), Settled::Done),
                ostraca_engine::Settled::Stale => (Told::Settled(false), Settled::Stale),
                ostraca_engine::Settled::Gone => (Told::Settled(false), Settled::Gone),
            }),
            _ => None,
        })
    }

    fn outbox(&self) -> OutboxId {
        self.outbox.lock().expect("a message is under way")
    }
}

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

    async fn ack(&self, consumer: &ConsumerName, handle: &Handle) -> Result<Settled, Fault> {
        let outbox = self.outbox();
        let request = Request::Ack(consumer.clone(), attempt_of(handle, outbox));
        let consumer = consumer.to_string();
        self.settle(outbox, &request, Op::Ack { consumer, outbox })
    }

    async fn nack(
        &self,
        consumer: &ConsumerName,
        handle: &Handle,
        reason: &str,
        _: Option<Duration>,
    ) -> Result<Settled, Fault> {
        let outbox = self.outbox();
        let attempt = attempt_of(handle, outbox);
        let request = Request::Nack(consumer.clone(), attempt, reason.to_owned());
        let consumer = consumer.to_string();
        self.settle(outbox, &request, Op::Nack { consumer, outbox })
    }

    async fn extend(&self, _: &ConsumerName, _: &Handle, _: Duration) -> Result<Settled, Fault> {
        Ok(Settled::Done)
    }
}

impl Inbox for Reach {
    async fn contains(&self, consumer: &ConsumerName, outbox: &OutboxId) -> Result<bool, Fault> {
        let request = Request::Contains(consumer.clone(), *outbox);
        let op = Op::Contains {
            consumer: consumer.to_string(),
            outbox: *outbox,
        };
        self.call(
            World::owner(outbox.slot()),
            &request,
            op,
            |answer| match answer {
                Answer::Contains(there) => Some((Told::Contained(*there), *there)),
                _ => None,
            },
        )
    }

    async fn record(&self, consumer: &ConsumerName, outbox: &OutboxId) -> Result<Recorded, Fault> {
        let request = Request::Record(consumer.clone(), *outbox);
        let op = Op::Record {
            consumer: consumer.to_string(),
            outbox: *outbox,
        };
        self.call(
            World::owner(outbox.slot()),
            &request,
            op,
            |answer| match answer {
                Answer::Recorded { first } => Some((
                    Told::Recorded { first: *first },
                    if *first {
                        Recorded::Now
                    } else {
                        Recorded::Before
                    },
                )),
                _ => None,
            },
        )
    }
}

impl Objects for Reach {
    async fn delete(&self, key: &str) -> Result<Deleted, ostraca_bodies::Error> {
        let down = || ostraca_bodies::Error::Deadline {
            action: ostraca_bodies::Action::Delete,
            after: Duration::from_secs(1),
        };
        let id = PasteId::from_object_key(key).ok_or_else(down)?;
        match self.world.delete_object(id, self.outbox()) {
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
        if self.world.purge_edge(*id, self.outbox()) {
            Ok(())
        } else {
            Err(PurgeError::new(PurgeFault::Deadline))
        }
    }
}
