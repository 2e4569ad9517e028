//! Calls between processes: lost, late, twice, and in any order.

use std::collections::{BTreeMap, VecDeque};
use std::fmt;
use std::sync::Arc;

use ostraca_engine::{AttemptId, DeadLetter, Delivery, Settled};
use ostraca_types::{
    ConsumerName, DeleteToken, Epoch, KeyDigest, OutboxId, PasteId, RequestHash, Sequence,
    Timestamp,
};
use parking_lot::Mutex;

use crate::kernel::{Kernel, MICRO, MILLI, Nanos, Process, TaskId};

/// Where a process listens: it keeps its place when it is started again.
pub(crate) type Address = usize;

/// What a create holds between its begin and its commit.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Ticket {
    pub(crate) key: KeyDigest,
    pub(crate) request: RequestHash,
    pub(crate) paste: PasteId,
    pub(crate) begun_at: Timestamp,
}

#[derive(Debug, Clone)]
pub(crate) enum Request {
    Begin {
        key: KeyDigest,
        request: RequestHash,
    },
    Commit {
        ticket: Ticket,
        lifetime_ms: u64,
    },
    Get(PasteId),
    Delete(PasteId, DeleteToken),
    Receive {
        consumer: ConsumerName,
        max: u16,
        visibility_ms: u64,
    },
    Ack(ConsumerName, AttemptId),
    Nack(ConsumerName, AttemptId, String),
    Extend {
        consumer: ConsumerName,
        attempt: AttemptId,
        visibility_ms: u64,
    },
    Record(ConsumerName, OutboxId),
    Contains(ConsumerName, OutboxId),
    Register(ConsumerName),
    DeadLetters(ConsumerName),
    Replay(ConsumerName, OutboxId),
}

/// The answer to a create.
#[derive(Debug, Clone)]
pub(crate) struct Created {
    pub(crate) paste: PasteId,
    pub(crate) expires_at: Timestamp,
    pub(crate) token: DeleteToken,
    pub(crate) replayed: bool,
}

#[derive(Debug, Clone)]
pub(crate) enum Answer {
    Ticket(Ticket),
    Created(Created),
    Conflict,
    Found {
        now: Timestamp,
        expires_at: Timestamp,
    },
    Missing,
    Deleted,
    TokenRejected,
    Delivered(Vec<Delivery>),
    Settled(Settled),
    Recorded {
        first: bool,
    },
    Contains(bool),
    Registered,
    Dead(Vec<DeadLetter>),
    Replayed(bool),
    /// Definite: nothing was done.
    Refused(&'static str),
    /// The shard does not know what came of it.
    Unknown,
}

#[derive(Debug, Clone)]
pub(crate) struct Reply {
    pub(crate) answer: Answer,
    pub(crate) at: Option<(Epoch, Sequence)>,
}

/// Why a call has no reply.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Silence {
    /// Nobody listens there: nothing was done.
    Refused,
    /// Anything may have happened, or happen yet.
    Lost,
}

/// How bad the network is: of a thousand messages.
#[derive(Debug, Clone, Copy, Default)]
pub(crate) struct Weather {
    pub(crate) lost: u64,
    pub(crate) twice: u64,
    pub(crate) late: u64,
    pub(crate) late_max: Nanos,
}

/// A request on its arrival.
#[derive(Debug)]
pub(crate) struct Arrival {
    pub(crate) call: u64,
    pub(crate) request: Request,
}

struct Waiting {
    task: TaskId,
    reply: Option<Result<Reply, Silence>>,
    /// The request was sent twice: a refusal of one says nothing about the other.
    twice: bool,
}

#[derive(Default)]
struct State {
    weather: Weather,
    calls: BTreeMap<u64, Waiting>,
    next: u64,
    doors: Vec<Option<Door>>,
}

/// Where a process takes what arrives.
#[derive(Clone)]
struct Door {
    process: Arc<Process>,
    queue: Arc<Mutex<VecDeque<Arrival>>>,
    task: TaskId,
}

/// All of it. Clones are the same.
#[derive(Clone)]
pub(crate) struct Net {
    kernel: Kernel,
    state: Arc<Mutex<State>>,
}

impl fmt::Debug for Net {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Net").finish_non_exhaustive()
    }
}

impl Net {
    pub(crate) fn new(kernel: Kernel, doors: usize) -> Self {
        let state = State {
            doors: vec![None; doors],
            ..State::default()
        };
        Self {
            kernel,
            state: Arc::new(Mutex::new(state)),
        }
    }

    pub(crate) fn set_weather(&self, weather: Weather) {
        self.state.lock().weather = weather;
    }

    /// From now on what arrives at `address` is this process's.
    pub(crate) fn listen(
        &self,
        address: Address,
        process: &Arc<Process>,
        queue: &Arc<Mutex<VecDeque<Arrival>>>,
        task: TaskId,
    ) {
        self.state.lock().doors[address] = Some(Door {
            process: Arc::clone(process),
            queue: Arc::clone(queue),
            task,
        });
    }

    /// How long the next message takes; `None` if it never comes.
    fn delay(&self, weather: Weather) -> Option<Nanos> {
        let chance = &self.kernel.chance;
        if chance.hits(weather.lost) {
            return None;
        }
        Some(if chance.hits(weather.late) {
            chance.within(MILLI, weather.late_max.max(2 * MILLI))
        } else {
            chance.within(30 * MICRO, 600 * MICRO)
        })
    }

    /// Calls a process and waits for its reply, at most so long; and whether the request was sent
    /// twice, so that it may have been done once more than the reply says.
    pub(crate) fn call(
        &self,
        to: Address,
        request: &Request,
        patience: Nanos,
    ) -> (Result<Reply, Silence>, bool) {
        let Some(task) = self.kernel.current().filter(|_| !self.kernel.is_dying()) else {
            return (Err(Silence::Lost), false);
        };
        let (call, weather) = {
            let mut state = self.state.lock();
            let call = state.next;
            state.next += 1;
            (call, state.weather)
        };
        let twice = self.kernel.chance.hits(weather.twice);
        let waiting = Waiting {
            task,
            reply: None,
            twice,
        };
        self.state.lock().calls.insert(call, waiting);
        for _ in 0..=u8::from(twice) {
            if let Some(delay) = self.delay(weather) {
                let (net, request) = (self.clone(), request.clone());
                self.kernel
                    .after(delay, move |_| net.arrive(to, call, request));
            }
        }
        (self.wait_for(call, self.kernel.now() + patience), twice)
    }

    fn wait_for(&self, call: u64, until: Nanos) -> Result<Reply, Silence> {
        loop {
            if self.kernel.is_dying() {
                return Err(Silence::Lost);
            }
            let now = self.kernel.now();
            if now < until {
                self.kernel.wait(until - now);
            }
            let mut state = self.state.lock();
            let over = self.kernel.now() >= until;
            let Some(waiting) = state.calls.get_mut(&call) else {
                return Err(Silence::Lost);
            };
            let twice = waiting.twice;
            match waiting.reply.take() {
                None if !over => {}
                reply => {
                    state.calls.remove(&call);
                    return match reply.unwrap_or(Err(Silence::Lost)) {
                        Ok(Reply {
                            answer: Answer::Refused(_),
                            ..
                        })
                        | Err(Silence::Refused)
                            if twice =>
                        {
                            Err(Silence::Lost)
                        }
                        reply => reply,
                    };
                }
            }
        }
    }

    fn arrive(&self, to: Address, call: u64, request: Request) {
        let door = self.state.lock().doors[to].clone();
        match door.filter(|door| !door.process.is_dead()) {
            Some(door) => {
                door.queue.lock().push_back(Arrival { call, request });
                self.kernel.wake(door.task);
            }
            None => self.answer(call, Err(Silence::Refused)),
        }
    }

    /// Sends a reply on its way.
    pub(crate) fn reply(&self, from: &Process, call: u64, reply: Reply) {
        if from.is_dead() {
            return;
        }
        let weather = self.state.lock().weather;
        if let Some(delay) = self.delay(weather) {
            let net = self.clone();
            self.kernel
                .after(delay, move |_| net.answer(call, Ok(reply)));
        }
    }

    fn answer(&self, call: u64, reply: Result<Reply, Silence>) {
        let mut state = self.state.lock();
        if let Some(waiting) = state.calls.get_mut(&call)
            && waiting.reply.is_none()
        {
            waiting.reply = Some(reply);
            let task = waiting.task;
            drop(state);
            self.kernel.wake(task);
        }
    }
}
