//! What clients were told against what the store holds: the verdict of simulations and of chaos runs.
//!
//! Each client writes down what it asked and what it was told, in a [`Ledger`]; at the end, when
//! everything has come to rest, somebody reads what the [`Store`] and the world hold; [`check`] finds
//! what cannot have come about by the rules of the contract, and shows the calls that prove it.
//!
//! It is sound about calls whose outcome is unknown: such a call may have taken effect at any time
//! after it was invoked, or never. And it is sound about time: only what answers told of shard time is
//! known of it ([`Limits::clock_slack`] says how far a clock may have been set ahead).
//!
//! Everything here is plain data: whoever runs the clients has the clock. A ledger can be kept as lines
//! of JSON ([`Ledger::write`], [`Ledger::read`]), in which neither keys nor tokens are, only digests.
//!
//! Where nothing specific is wrong, the calls about each key and each paste are checked for
//! linearizability.

mod attempts;
mod delivery;
mod inbox;
mod keys;
mod ledger;
mod linear;
mod objects;
mod pastes;
mod positions;
mod store;
mod times;
mod verdict;
mod wire;

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use ostraca_types::{KeyDigest, OutboxId, PasteId, Slot, Timestamp};

pub use ledger::{
    Attempt, Begun, Call, DeadLetter, Delivered, Effect, EffectKind, Instant, Ledger, Op, Position,
    Time, Told,
};
pub use store::{KeyState, MessageState, PasteState, ShardState, Store};
pub use verdict::{Finding, Kind, Verdict};
pub use wire::{LEDGER_VERSION, LedgerError};

use times::Times;

/// What may be taken for granted, and how hard to search.
#[derive(Debug, Clone, Copy)]
pub struct Limits {
    /// Everything came to its end: what is not finished is a finding.
    pub converged: bool,
    /// How far the shards' clocks may have been set ahead while a call was under way.
    pub clock_slack: Duration,
    /// Steps of the search for an order, for each key and each paste.
    pub search_max: usize,
    /// The ledger has every call of every worker, also those of a worker that was killed.
    pub workers_known: bool,
}

impl Default for Limits {
    /// A run that came to its end, with clocks that were set ahead by at most a minute.
    fn default() -> Self {
        Self {
            converged: true,
            clock_slack: Duration::from_secs(60),
            search_max: 100_000,
            workers_known: false,
        }
    }
}

/// What the checks share.
struct Context<'a> {
    calls: &'a [Call],
    effects: &'a [Effect],
    store: &'a Store,
    limits: Limits,
    times: Times,
    /// Shard time at the end, of the shards that could be read.
    now: BTreeMap<u16, Timestamp>,
    pastes: BTreeMap<PasteId, PasteState>,
    /// One row for each, if the store keeps its promise.
    keys: BTreeMap<KeyDigest, Vec<KeyState>>,
    /// Of each paste, the answer to its create that came first.
    created: BTreeMap<PasteId, usize>,
    /// Of each paste, in the order of time.
    effects_of: BTreeMap<PasteId, Vec<usize>>,
    inbox: BTreeSet<(&'a str, OutboxId)>,
    /// When each key was first used.
    begun: BTreeMap<KeyDigest, Instant>,
    /// Of each id that a begin gave, the create that was to commit it.
    tickets: BTreeMap<PasteId, usize>,
    /// Before which shard time each paste that somebody deletes cannot have been deleted.
    deletable: BTreeMap<PasteId, Timestamp>,
    /// The last that was written down.
    ended: Instant,
}

impl<'a> Context<'a> {
    fn of(ledger: &'a Ledger, store: &'a Store, limits: Limits) -> Self {
        let mut begun: BTreeMap<KeyDigest, Instant> = BTreeMap::new();
        let mut created: BTreeMap<PasteId, usize> = BTreeMap::new();
        for (at, call) in ledger.calls.iter().enumerate() {
            if let Op::Create { key, .. } = call.op {
                let first = begun.entry(key).or_insert(call.invoked);
                *first = (*first).min(call.invoked);
            }
            if let Told::Created { paste, .. } = call.told {
                let first = created.entry(paste).or_insert(at);
                if call.returned < ledger.calls[*first].returned {
                    *first = at;
                }
            }
        }
        let begins = ledger.calls.iter().enumerate();
        let begins = begins.filter_map(|(at, call)| Some((call.begun?.paste, at)));
        let times = Times::of(&ledger.calls, &store.shards);
        let mut deletable: BTreeMap<PasteId, Timestamp> = BTreeMap::new();
        for call in &ledger.calls {
            if let (Op::Delete { paste, .. }, Told::Deleted | Told::Unknown) =
                (&call.op, &call.told)
            {
                let shard = store.owners.get(paste.slot().index()).copied();
                let asked = times.at_least(shard.unwrap_or(0), call.invoked);
                let first = deletable.entry(*paste).or_insert(asked);
                *first = asked.min(*first);
            }
        }
        let mut keys: BTreeMap<KeyDigest, Vec<KeyState>> = BTreeMap::new();
        for row in &store.keys {
            keys.entry(row.digest).or_default().push(*row);
        }
        let mut effects_of: BTreeMap<PasteId, Vec<usize>> = BTreeMap::new();
        for (at, effect) in ledger.effects.iter().enumerate() {
            effects_of.entry(effect.paste).or_default().push(at);
        }
        for of in effects_of.values_mut() {
            of.sort_by_key(|&at| ledger.effects[at].at);
        }
        Self {
            calls: &ledger.calls,
            effects: &ledger.effects,
            store,
            limits,
            times,
            now: (store.shards.iter().map(|state| (state.shard, state.now))).collect(),
            pastes: store.pastes.iter().map(|row| (row.id, *row)).collect(),
            keys,
            created,
            effects_of,
            inbox: (store.inbox.iter())
                .map(|(consumer, id, _)| (consumer.as_str(), *id))
                .collect(),
            begun,
            tickets: begins.collect(),
            deletable,
            ended: (ledger.calls.iter().map(|call| call.returned).max()).unwrap_or_default(),
        }
    }

    /// The shard that owns a slot.
    fn owner(&self, slot: Slot) -> u16 {
        self.store.owners.get(slot.index()).copied().unwrap_or(0)
    }

    /// What is known of shard time: when something was asked it was at least this, and when it was
    /// answered at most that.
    fn within(&self, slot: Slot, call: usize) -> (Timestamp, Timestamp) {
        let (shard, call) = (self.owner(slot), &self.calls[call]);
        let least = self.times.at_least(shard, call.invoked);
        (least, self.times.at_most(shard, call.returned))
    }

    /// Shard time at the end, where that shard could be read.
    fn now(&self, slot: Slot) -> Option<Timestamp> {
        self.now.get(&self.owner(slot)).copied()
    }
}

/// Finds what is wrong.
#[must_use]
pub fn check(ledger: &Ledger, store: &Store, limits: &Limits) -> Verdict {
    let context = Context::of(ledger, store, *limits);
    let mut verdict = Verdict::default();
    positions::check(&context, &mut verdict);
    keys::check(&context, &mut verdict);
    pastes::check(&context, &mut verdict);
    delivery::check(&context, &mut verdict);
    verdict
}
