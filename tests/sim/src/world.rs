//! Everything that a run consists of.

use std::collections::BTreeMap;
use std::fmt;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU32, AtomicUsize, Ordering};

use ostraca_checker::{Begun, Call, Effect, EffectKind, Instant, Ledger, Op, Position, Told};
use ostraca_types::{OutboxId, PasteId, ShardId, Slot};
use parking_lot::Mutex;

use crate::kernel::{Kernel, MICRO, MILLI, Nanos, SECOND};
use crate::net::{Address, Answer, Net, Reply, Request, Silence};
use crate::shard::{Directory, Seat};

/// Shards of a run, and processes of each.
pub(crate) const SHARDS: u16 = 2;
pub(crate) const SEATS: usize = 2;
/// How long an edge keeps what nobody purges.
const EDGE_MAX_AGE: Nanos = 60 * SECOND;

/// What a part of the world does now, of a thousand calls.
#[derive(Debug, Clone, Copy, Default)]
pub(crate) struct StoreMood {
    pub(crate) refuses: u64,
    pub(crate) slow: u64,
}

/// What is outside of the shards.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Part {
    Objects,
    Edge,
    Search,
}

impl Part {
    pub(crate) const ALL: [Self; 3] = [Self::Objects, Self::Edge, Self::Search];
}

/// What it holds, and how it behaves.
#[derive(Debug, Default)]
pub(crate) struct Outside {
    /// Of those that are not as they should be.
    pub(crate) moods: BTreeMap<Part, StoreMood>,
    pub(crate) objects: BTreeMap<PasteId, ()>,
    /// Until when.
    pub(crate) cached: BTreeMap<PasteId, Nanos>,
    /// When the edge was purged of it last.
    purged: BTreeMap<PasteId, Nanos>,
}

/// Clones are the same.
#[derive(Clone)]
pub(crate) struct World(Arc<Inner>);

impl std::ops::Deref for World {
    type Target = Inner;

    fn deref(&self) -> &Inner {
        &self.0
    }
}

pub(crate) struct Inner {
    pub(crate) kernel: Kernel,
    pub(crate) net: Net,
    pub(crate) dirs: Vec<Arc<Directory>>,
    pub(crate) seats: Vec<Arc<Seat>>,
    pub(crate) ledger: Mutex<Ledger>,
    pub(crate) outside: Mutex<Outside>,
    /// Which process of each shard answered last.
    hints: Mutex<Vec<usize>>,
    /// Nothing goes wrong any more, and everything comes to its end.
    pub(crate) quiet: AtomicBool,
    pub(crate) clients: AtomicUsize,
    next_client: AtomicU32,
    /// Kills and power cuts of shard processes, each of which is a recovery.
    pub(crate) crashes: AtomicUsize,
}

impl fmt::Debug for World {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("World").finish_non_exhaustive()
    }
}

impl World {
    pub(crate) fn new(seed: u64, tells: bool) -> Self {
        let kernel = Kernel::new(seed, tells);
        let net = Net::new(kernel.clone(), usize::from(SHARDS) * SEATS);
        let dirs: Vec<_> = (0..SHARDS)
            .map(|shard| Arc::new(Directory::new(ShardId(shard), kernel.chance.next())))
            .collect();
        let seats = (0..usize::from(SHARDS) * SEATS)
            .map(|address| Arc::new(Seat::new(&kernel, &net, &dirs[address / SEATS], address)))
            .collect();
        Self(Arc::new(Inner {
            kernel,
            net,
            dirs,
            seats,
            ledger: Mutex::default(),
            outside: Mutex::default(),
            hints: Mutex::new(vec![0; usize::from(SHARDS)]),
            quiet: AtomicBool::new(false),
            clients: AtomicUsize::new(0),
            next_client: AtomicU32::new(0),
            crashes: AtomicUsize::new(0),
        }))
    }

    pub(crate) fn is_quiet(&self) -> bool {
        self.quiet.load(Ordering::Relaxed)
    }

    pub(crate) fn client(&self) -> u32 {
        self.next_client.fetch_add(1, Ordering::Relaxed)
    }

    pub(crate) fn now(&self) -> Instant {
        Instant(self.kernel.now())
    }

    /// The shard that owns a slot.
    pub(crate) fn owner(slot: Slot) -> ShardId {
        ShardId(u16::from(slot.0) % SHARDS)
    }

    /// Asks the shard of a slot; where a process says that it does not lead, or nobody listens, the
    /// other one, once: that is routing. And whether the request was sent twice.
    pub(crate) fn ask(
        &self,
        shard: ShardId,
        request: &Request,
        patience: Nanos,
    ) -> (Result<Reply, Silence>, bool) {
        let at = usize::from(shard.0);
        // Not every client has heard who leads.
        let known = self.hints.lock()[at];
        let astray = usize::from(self.kernel.chance.hits(150));
        let hint = known ^ astray;
        let first: Address = at * SEATS + hint;
        let (answered, twice) = self.net.call(first, request, patience);
        match answered {
            Ok(Reply {
                answer: Answer::Refused("NOT_LEADER"),
                ..
            })
            | Err(Silence::Refused) => {
                self.hints.lock()[at] = 1 - hint;
                let second = at * SEATS + 1 - hint;
                let (answered, again) = self.net.call(second, request, patience);
                (answered, twice || again)
            }
            answered => {
                if matches!(answered, Err(Silence::Lost)) && self.kernel.chance.hits(500) {
                    self.hints.lock()[at] = 1 - hint;
                }
                (answered, twice)
            }
        }
    }

    /// Writes a call into the ledger. Of a request that was sent twice, one copy has the answer; what
    /// came of the other nobody knows.
    pub(crate) fn note(
        &self,
        client: u32,
        invoked: Instant,
        op: Op,
        (told, at): (Told, Option<Position>),
        twice: bool,
    ) {
        self.note_create(client, invoked, op, None, (told, at), twice);
    }

    /// The same of a create, which has what its begin gave.
    pub(crate) fn note_create(
        &self,
        client: u32,
        invoked: Instant,
        op: Op,
        begun: Option<Begun>,
        (told, at): (Told, Option<Position>),
        twice: bool,
    ) {
        self.kernel
            .tell("client", || format!("{client}: {op:?} -> {told:?}"));
        let call = Call {
            client,
            invoked,
            returned: self.now(),
            op,
            told,
            at,
            begun,
        };
        let mut ledger = self.ledger.lock();
        if twice {
            ledger.calls.push(Call {
                told: Told::Unknown,
                at: None,
                ..call.clone()
            });
        }
        ledger.calls.push(call);
    }

    /// Where a reply says that it was decided.
    pub(crate) fn position(shard: ShardId, reply: &Reply) -> Option<Position> {
        reply.at.map(|(epoch, sequence)| Position {
            shard: shard.0,
            epoch: epoch.0,
            sequence: sequence.0,
        })
    }

    fn mood(&self, part: Part) -> StoreMood {
        let outside = self.outside.lock();
        outside.moods.get(&part).copied().unwrap_or_default()
    }

    /// A call to a part of the world: what it does, and whether that is told. `None`: it may have
    /// done it or not.
    fn reach<T>(&self, part: Part, does: impl FnOnce(&mut Outside, Nanos) -> T) -> Option<T> {
        let chance = &self.kernel.chance;
        let takes = if chance.hits(self.mood(part).slow) {
            chance.within(100 * MILLI, 4 * SECOND)
        } else {
            chance.within(200 * MICRO, 4 * MILLI)
        };
        self.kernel.wait(takes);
        if self.kernel.is_dying() {
            return None;
        }
        let refused = chance.hits(self.mood(part).refuses);
        let done = (!refused || chance.hits(300)).then(|| {
            let now = self.kernel.now();
            does(&mut self.outside.lock(), now)
        });
        done.filter(|_| !refused)
    }

    /// Puts a paste's object. `false`: it may be there or not.
    pub(crate) fn put(&self, id: PasteId) -> bool {
        let put = self.reach(Part::Objects, |outside, _| outside.objects.insert(id, ()));
        put.is_some()
    }

    /// Deletes an object: whether it was there, if the store says so.
    pub(crate) fn delete_object(&self, id: PasteId, outbox: OutboxId) -> Option<bool> {
        self.reach(Part::Objects, |outside, _| {
            self.effect(EffectKind::ObjectDeleted, id, outbox);
            outside.objects.remove(&id).is_some()
        })
    }

    /// Purges the edge; `false` if that failed, as far as is known.
    pub(crate) fn purge_edge(&self, id: PasteId, outbox: OutboxId) -> bool {
        let purged = self.reach(Part::Edge, |outside, now| {
            self.effect(EffectKind::EdgePurged, id, outbox);
            outside.cached.remove(&id);
            outside.purged.insert(id, now);
        });
        purged.is_some()
    }

    /// Takes a paste out of the search; `false` if that failed, as far as is known.
    pub(crate) fn unlist(&self, id: PasteId, outbox: OutboxId) -> bool {
        let unlisted = self.reach(Part::Search, |_, _| {
            self.effect(EffectKind::Unlisted, id, outbox);
        });
        unlisted.is_some()
    }

    fn effect(&self, kind: EffectKind, paste: PasteId, outbox: OutboxId) {
        self.kernel.tell("world", || format!("{kind:?} {paste}"));
        self.ledger.lock().effects.push(Effect {
            at: self.now(),
            kind,
            paste,
            outbox,
        });
    }

    /// Somebody read a paste through the edge. An answer that was on its way while the edge was purged
    /// stays there for its max-age, which is what that is for (r06), and is not held against anybody.
    pub(crate) fn cache(&self, id: PasteId, invoked: Instant) {
        let until = self.kernel.now() + EDGE_MAX_AGE;
        let mut outside = self.outside.lock();
        if outside.purged.get(&id).is_none_or(|&at| at < invoked.0) {
            outside.cached.insert(id, until);
        } else {
            self.kernel.count("answer for a purged edge");
        }
    }
}
