//! What is known of shard time at an instant of the ledger.
//!
//! Shard time never runs back, so an answer that tells it bounds it for every call that was invoked
//! after that answer, and for every call that was answered before it was asked for.

use std::collections::BTreeMap;

use ostraca_types::Timestamp;

use crate::ledger::{Call, Instant, Op, Told};
use crate::store::ShardState;

/// Of one shard.
#[derive(Debug, Default)]
struct Bounds {
    /// At each return, the latest shard time that was told so far.
    least: Vec<(Instant, Timestamp)>,
    /// At each invocation, the earliest shard time that was told by calls invoked from then on.
    most: Vec<(Instant, Timestamp)>,
    /// In the store, when all had returned.
    last: Option<Timestamp>,
}

/// Of all shards.
#[derive(Debug, Default)]
pub(crate) struct Times {
    shards: BTreeMap<u16, Bounds>,
}

/// The shard time that an answer tells: of its record or its look, or when its create was queued.
pub(crate) fn told_time(call: &Call) -> Option<Timestamp> {
    match (&call.told, &call.op) {
        (Told::Found { now, .. }, _) => Some(*now),
        (
            Told::Created {
                expires_at,
                replayed: false,
                ..
            },
            Op::Create { lifetime_ms, .. },
        ) => Some(Timestamp(expires_at.0.saturating_sub(*lifetime_ms))),
        _ => None,
    }
}

impl Times {
    pub(crate) fn of(calls: &[Call], states: &[ShardState]) -> Self {
        let mut told: BTreeMap<u16, Vec<(Instant, Instant, Timestamp)>> = BTreeMap::new();
        for call in calls {
            if let (Some(at), Some(time)) = (call.at, told_time(call)) {
                let of = told.entry(at.shard).or_default();
                of.push((call.invoked, call.returned, time));
            }
        }
        let mut shards: BTreeMap<u16, Bounds> = BTreeMap::new();
        for state in states {
            shards.entry(state.shard).or_default().last = Some(state.now);
        }
        for (shard, mut told) in told {
            let bounds = shards.entry(shard).or_default();
            told.sort_by_key(|&(_, returned, _)| returned);
            let mut latest = Timestamp(0);
            for &(_, returned, time) in &told {
                latest = latest.max(time);
                bounds.least.push((returned, latest));
            }
            told.sort_by_key(|&(invoked, ..)| invoked);
            let mut earliest = bounds.last.unwrap_or(Timestamp(u64::MAX));
            for &(invoked, _, time) in told.iter().rev() {
                earliest = earliest.min(time);
                bounds.most.push((invoked, earliest));
            }
            bounds.most.reverse();
        }
        Self { shards }
    }

    /// Shard time was at least this when something was invoked at `at`.
    pub(crate) fn at_least(&self, shard: u16, at: Instant) -> Timestamp {
        let Some(bounds) = self.shards.get(&shard) else {
            return Timestamp(0);
        };
        // Strictly before: what was told at the same instant may have come after.
        let before = bounds.least.partition_point(|(returned, _)| *returned < at);
        let last = before
            .checked_sub(1)
            .and_then(|last| bounds.least.get(last));
        last.map_or(Timestamp(0), |(_, time)| *time)
    }

    /// Shard time was at most this when something had returned at `at`.
    pub(crate) fn at_most(&self, shard: u16, at: Instant) -> Timestamp {
        let Some(bounds) = self.shards.get(&shard) else {
            return Timestamp(u64::MAX);
        };
        let from = bounds.most.partition_point(|(invoked, _)| *invoked <= at);
        let told = bounds.most.get(from).map(|&(_, time)| time);
        told.or(bounds.last).unwrap_or(Timestamp(u64::MAX))
    }
}
