//! The workers of two consumers: the real order of steps, over simulated calls, with handles that come
//! late, and copies of messages that somebody keeps for days.

mod ports;

use std::fmt;
use std::future::Future;
use std::sync::Arc;
use std::task::{Context, Poll, Waker};
use std::time::Duration;

use ostraca_checker::{Attempt, Delivered, Op, Told};
use ostraca_client::{EndCause, Handle, Message, Settled};
use ostraca_engine::{AttemptId, Delivery};
use ostraca_types::{ConsumerName, Epoch, OutboxId, ShardId};
use ostraca_worker::{Attempts, Failure, Fault, Outbox as _, Ports};
use parking_lot::Mutex;

use crate::caller::Caller;
use crate::kernel::{HOUR, MILLI, Nanos, Process};
use crate::net::{Answer, Request};
use crate::world::{SHARDS, World};

const VISIBILITY_MS: u64 = 5_000;
/// How old a copy of a message is when it is handed to a worker again, mostly: not before the broker
/// would have let go of it.
const COPY_AGE_MIN: Nanos = 6 * 24 * HOUR;
const COPIES_MAX: usize = 6;

/// Where a consumer's worker runs now.
pub(crate) struct Place {
    consumer: ConsumerName,
    pub(crate) process: Mutex<Arc<Process>>,
    /// Messages that were finished, and when: whoever has one can hand it to a worker at any time.
    copies: Arc<Mutex<Vec<(Nanos, Message)>>>,
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
    caller: Caller,
    consumer: ConsumerName,
    /// The message under way: the parts of the world are told of pastes alone.
    outbox: Arc<Mutex<Option<OutboxId>>>,
    /// Handles that come late.
    late: Arc<Mutex<Vec<Held>>>,
}

/// A handle that a worker has.
#[derive(Debug, Clone)]
struct Held {
    attempt: AttemptId,
    /// It has been told that the message is recorded, so that it may ack.
    recorded: bool,
}

/// What a handle is for.
enum Settling {
    Ack,
    Nack(String),
    Extend(u64),
}

/// The consumers of a run. The second is registered in the middle of it.
pub(crate) fn consumers() -> [ConsumerName; 2] {
    let search = ConsumerName::parse("search").expect("a name");
    [ConsumerName::purge(), search]
}

impl Place {
    pub(crate) fn new(world: &World, consumer: ConsumerName) -> Arc<Self> {
        let process = world.kernel.process("nobody");
        world.kernel.kill(&process);
        Arc::new(Self {
            consumer,
            process: Mutex::new(process),
            copies: Arc::default(),
        })
    }

    /// Starts the worker, unless it runs.
    pub(crate) fn start(&self, world: &World) {
        let mut place = self.process.lock();
        if !place.is_dead() {
            return;
        }
        let caller = Caller::new(world);
        *place = world.kernel.process(format!("w{}", caller.id));
        let process = Arc::clone(&place);
        let reach = Reach {
            world: world.clone(),
            caller,
            consumer: self.consumer.clone(),
            outbox: Arc::default(),
            late: Arc::default(),
        };
        let copies = Arc::clone(&self.copies);
        world
            .kernel
            .spawn(&Arc::clone(&process), move || reach.work(&process, &copies));
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
    fn work(&self, process: &Process, copies: &Mutex<Vec<(Nanos, Message)>>) {
        let kernel = &self.world.kernel;
        let mut registered = self.is_purge();
        while !process.is_dead() {
            registered = registered || self.register();
            if registered {
                for shard in (0..SHARDS).map(ShardId) {
                    if self.is_due(shard) || kernel.chance.hits(100) {
                        self.serve(shard, copies);
                    }
                }
            }
            if self.hits(150) {
                self.settle_late(|_| true);
            }
            self.copy(copies);
            kernel.wait(kernel.chance.within(10 * MILLI, 150 * MILLI));
        }
    }

    /// Whether some process that believes to lead has a message for it, of which a receive that waits
    /// would hear.
    fn is_due(&self, shard: ShardId) -> bool {
        let seats = self.world.seats.iter().filter(|seat| seat.dir.id == shard);
        let mut led = seats.filter_map(|seat| seat.shard());
        led.any(|shard| {
            let due = shard.next_message_in(&self.consumer);
            due.is_some_and(|due| due.is_zero())
        })
    }

    /// `of` in a thousand times; never while everything comes to its end.
    fn hits(&self, of: u64) -> bool {
        !self.world.is_quiet() && self.world.kernel.chance.hits(of)
    }

    fn is_purge(&self) -> bool {
        self.consumer == ConsumerName::purge()
    }

    fn attempts(&self) -> Attempts<Self, Self, Self> {
        let ports = Ports {
            shards: self.clone(),
            objects: self.clone(),
            edge: self.clone(),
        };
        Attempts::new(ports, self.consumer.clone())
    }

    /// Gets ends from now on, of every shard.
    fn register(&self) -> bool {
        (0..SHARDS).all(|shard| {
            let request = Request::Register(self.consumer.clone());
            let op = Op::Register {
                consumer: self.consumer.to_string(),
            };
            let told = |answer: &Answer| match answer {
                Answer::Registered => Some((Told::Registered, ())),
                _ => None,
            };
            let registered = self.caller.call(ShardId(shard), &request, op, told);
            registered.is_ok()
        })
    }

    fn serve(&self, shard: ShardId, copies: &Mutex<Vec<(Nanos, Message)>>) {
        for delivery in self.receive(shard) {
            if self.world.kernel.is_dying() {
                return;
            }
            let message = message(&delivery);
            let id = message.outbox_id;
            if self.hits(300) {
                self.settle_late(|held| held.attempt.outbox_id == id);
            }
            *self.outbox.lock() = Some(id);
            if self.hits(120) {
                let longer = self.world.kernel.chance.within(1_000, 15_000);
                let longer = Duration::from_millis(longer);
                drop(now(self.extend(&self.consumer, &message.handle, longer)));
            }
            match now(self.attempts().run(&message)) {
                Ok(_) => {
                    if self.hits(60) {
                        self.keep(self.held(&message.handle, true));
                    }
                    let mut copies = copies.lock();
                    if copies.len() < COPIES_MAX && self.hits(250) {
                        copies.push((self.world.kernel.now(), message));
                    }
                }
                Err(Failure::Ack(_)) => {}
                Err(failure) => {
                    let reason = failure.to_string();
                    drop(now(self.nack(
                        &self.consumer,
                        &message.handle,
                        &reason,
                        None,
                    )));
                    if self.hits(200) {
                        self.keep(self.held(&message.handle, false));
                    }
                }
            }
        }
    }

    fn receive(&self, shard: ShardId) -> Vec<Delivery> {
        let request = Request::Receive {
            consumer: self.consumer.clone(),
            max: 4,
            visibility_ms: VISIBILITY_MS,
        };
        let op = Op::Receive {
            consumer: self.consumer.to_string(),
        };
        let deliveries = self
            .caller
            .call(shard, &request, op, |answer| match answer {
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
        deliveries.unwrap_or_default()
    }

    /// Somebody hands the worker a copy of a message that was finished, seldom at once and mostly after
    /// days: a broker that redelivers, or a person with a backup of it.
    fn copy(&self, copies: &Mutex<Vec<(Nanos, Message)>>) {
        let kernel = &self.world.kernel;
        let at_once = self.hits(5);
        let old = |at: Nanos| kernel.now() - at >= COPY_AGE_MIN;
        let mut kept = copies.lock();
        let Some(at) = kept.iter().position(|&(at, _)| at_once || old(at)) else {
            return;
        };
        let (_, message) = kept.swap_remove(at);
        drop(kept);
        *self.outbox.lock() = Some(message.outbox_id);
        if let Ok(finished) = now(self.attempts().run(&message)) {
            kernel.count(if finished.ran {
                "copy ran"
            } else {
                "copy did nothing"
            });
        }
    }

    fn held(&self, handle: &Handle, recorded: bool) -> Held {
        let attempt = attempt_of(handle, self.outbox());
        Held { attempt, recorded }
    }

    fn keep(&self, held: Held) {
        self.late.lock().push(held);
    }

    /// Uses a handle late, or twice.
    fn settle_late(&self, of: impl Fn(&Held) -> bool) {
        let chance = &self.world.kernel.chance;
        let mut late = self.late.lock();
        let Some(at) = late.iter().position(of) else {
            return;
        };
        let held = if chance.hits(500) {
            late[at].clone()
        } else {
            late.remove(at)
        };
        drop(late);
        let settling = match chance.below(4) {
            0 => Settling::Nack("late".to_owned()),
            1 => Settling::Extend(chance.within(1_000, 15_000)),
            _ if held.recorded => Settling::Ack,
            _ => Settling::Nack("twice".to_owned()),
        };
        drop(self.settle(&held, settling));
    }

    fn settle(&self, held: &Held, settling: Settling) -> Result<Settled, Fault> {
        let (name, attempt) = (self.consumer.clone(), held.attempt);
        let outbox = attempt.outbox_id;
        let consumer = name.to_string();
        let handle = Some(Attempt {
            number: attempt.attempt,
            epoch: attempt.epoch.0,
        });
        let (request, op) = match settling {
            Settling::Ack => {
                let op = Op::Ack {
                    consumer,
                    outbox,
                    attempt: handle,
                };
                (Request::Ack(name, attempt), op)
            }
            Settling::Nack(reason) => {
                let op = Op::Nack {
                    consumer,
                    outbox,
                    attempt: handle,
                };
                (Request::Nack(name, attempt, reason), op)
            }
            Settling::Extend(visibility_ms) => {
                let op = Op::Extend {
                    consumer,
                    outbox,
                    attempt: handle,
                };
                let request = Request::Extend {
                    consumer: name,
                    attempt,
                    visibility_ms,
                };
                (request, op)
            }
        };
        let shard = World::owner(outbox.slot());
        self.caller
            .call(shard, &request, op, |answer| match answer {
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
