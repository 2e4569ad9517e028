//! Deliverable messages, and how far each consumer is with them.
//!
//! Everything here is a function of the rows and of what the record says: the same log gives the
//! same deliveries. Jitter comes from a number in the record; who is next is decided by order.

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::ops::Bound;
use std::time::Duration;

use ostraca_types::contract::{
    ATTEMPTS_MIN, ATTEMPTS_TIME_MIN, BACKOFF_MAX, BACKOFF_MIN, CONSUMERS_MAX, OUTBOX_RETENTION,
};
use ostraca_types::{ConsumerName, Epoch, OutboxId, Timestamp};

use crate::ReadyRow;

/// Messages that are looked at for the oldest one; behind more dead letters than these nobody looks.
const OLDEST_LOOKS_MAX: usize = 10_000;

/// Names one attempt at a message: of two with one number, the epoch tells which leader gave it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct AttemptId {
    /// The message.
    pub outbox_id: OutboxId,
    /// The leadership under which it was delivered.
    pub epoch: Epoch,
    /// From 1 up, over the life of the message.
    pub attempt: u32,
}

/// One message on its way to a consumer.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Delivery {
    /// What ended.
    pub row: ReadyRow,
    /// This attempt.
    pub id: AttemptId,
    /// When it comes again if nothing is heard.
    pub visible_at: Timestamp,
}

/// What came of an ack, a nack or an extension.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Settled {
    /// As asked.
    Done,
    /// The message was delivered again meanwhile; nothing changed.
    Stale,
    /// There is no such message any more; nothing changed.
    Gone,
}

/// A message that was given up.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct DeadLetter {
    /// What ended.
    pub row: ReadyRow,
    /// Attempts since the end, or since the last replay.
    pub attempts: u32,
    /// When it was given up.
    pub dead_at: Timestamp,
    /// The last reason that the consumer gave; empty if every attempt timed out.
    pub last_error: Box<str>,
}

/// How a consumer stands with one message.
#[derive(Debug, Clone, Hash)]
struct Progress {
    /// The last attempt and the epoch under which it was made; 0 before the first.
    attempt: u32,
    epoch: Epoch,
    /// Attempts that count towards giving up, and the instant of the first of them.
    counted: u32,
    counted_since: Timestamp,
    state: State,
    last_error: Box<str>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
enum State {
    /// To be delivered from this instant on; in flight if it was attempted and this is ahead.
    Due(Timestamp),
    /// Given up at this instant.
    Dead(Timestamp),
}

struct Consumer {
    name: ConsumerName,
    /// Gets ends. One that only has inbox rows does not.
    subscribed: bool,
    progress: HashMap<OutboxId, Progress>,
    /// Those that are due at some time, in that order.
    schedule: BTreeSet<(Timestamp, OutboxId)>,
    dead: BTreeSet<OutboxId>,
}

struct Entry {
    row: ReadyRow,
    /// A bit for each consumer that has not finished it.
    waiting: u64,
}

/// How many messages there are.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct OutboxCounts {
    /// That some consumer has not finished.
    pub ready: u64,
    /// That some consumer has given up, counted for each.
    pub dead: u64,
    /// That were over their age before every consumer had finished them, since the log began.
    pub dropped: u64,
    /// The earliest end among `ready`, dead letters left out.
    pub oldest: Option<Timestamp>,
}

/// The messages of a shard.
pub(crate) struct Outbox {
    consumers: Vec<Consumer>,
    entries: HashMap<OutboxId, Entry>,
    by_end: BTreeSet<(Timestamp, OutboxId)>,
    dropped: u64,
}

impl Outbox {
    pub(crate) fn new() -> Self {
        let mut outbox = Self {
            consumers: Vec::new(),
            entries: HashMap::new(),
            by_end: BTreeSet::new(),
            dropped: 0,
        };
        outbox.register(&ConsumerName::purge());
        outbox
    }

    /// The name of a number that is known.
    pub(crate) fn name(&self, number: u16) -> Option<&ConsumerName> {
        Some(&self.consumers.get(usize::from(number))?.name)
    }

    /// Every message, by its end.
    pub(crate) fn ready(&self) -> impl Iterator<Item = ReadyRow> {
        let rows = self.by_end.iter();
        rows.filter_map(|(_, id)| self.entries.get(id).map(|entry| entry.row))
    }

    /// The number of a name that is known.
    pub(crate) fn consumer(&self, name: &ConsumerName) -> Option<u16> {
        let at = self
            .consumers
            .iter()
            .position(|known| known.name == *name)?;
        u16::try_from(at).ok()
    }

    /// The number of a name, given one if it is new; `None` when there are too many.
    pub(crate) fn intern(&mut self, name: &ConsumerName) -> Option<u16> {
        if let Some(number) = self.consumer(name) {
            return Some(number);
        }
        if self.consumers.len() == CONSUMERS_MAX {
            return None;
        }
        self.consumers.push(Consumer {
            name: name.clone(),
            subscribed: false,
            progress: HashMap::new(),
            schedule: BTreeSet::new(),
            dead: BTreeSet::new(),
        });
        u16::try_from(self.consumers.len() - 1).ok()
    }

    /// Subscribes a consumer to the ends from now on; `false` when there are too many.
    pub(crate) fn register(&mut self, name: &ConsumerName) -> bool {
        let Some(number) = self.intern(name) else {
            return false;
        };
        self.consumers[usize::from(number)].subscribed = true;
        true
    }

    fn subscriber(&self, name: &ConsumerName) -> Option<usize> {
        self.consumer(name)
            .map(usize::from)
            .filter(|&number| self.consumers[number].subscribed)
    }

    /// A paste ended: its message is due for every subscriber.
    pub(crate) fn ended(&mut self, row: ReadyRow) {
        let mut waiting = 0;
        for (number, consumer) in self.consumers.iter_mut().enumerate() {
            if !consumer.subscribed {
                continue;
            }
            waiting |= 1 << number;
            consumer.schedule.insert((row.ended_at, row.outbox_id));
            let progress = Progress {
                attempt: 0,
                epoch: Epoch(0),
                counted: 0,
                counted_since: Timestamp(0),
                state: State::Due(row.ended_at),
                last_error: "".into(),
            };
            consumer.progress.insert(row.outbox_id, progress);
        }
        self.by_end.insert((row.ended_at, row.outbox_id));
        let twice = self.entries.insert(row.outbox_id, Entry { row, waiting });
        assert!(twice.is_none(), "an outbox id was given twice");
    }

    /// When the next message is due; `None` without a message or a subscriber of that name.
    pub(crate) fn next_due(&self, name: &ConsumerName) -> Option<Timestamp> {
        let consumer = &self.consumers[self.subscriber(name)?];
        consumer.schedule.first().map(|&(due, _)| due)
    }

    pub(crate) fn is_subscribed(&self, name: &ConsumerName) -> bool {
        self.subscriber(name).is_some()
    }

    /// Takes up to `max` due messages, oldest first, as attempts that last for `visibility`. Those
    /// that were attempted often and long enough are given up on the way. `None` without a
    /// subscriber of that name.
    pub(crate) fn deliver(
        &mut self,
        name: &ConsumerName,
        max: usize,
        visibility: Duration,
        jitter: u64,
        epoch: Epoch,
        now: Timestamp,
    ) -> Option<Vec<Delivery>> {
        let number = self.subscriber(name)?;
        let consumer = &mut self.consumers[number];
        let mut deliveries = Vec::new();
        while deliveries.len() < max
            && let Some(&(due, outbox_id)) = consumer.schedule.first()
            && due <= now
        {
            consumer.schedule.pop_first();
            let (Some(progress), Some(entry)) = (
                consumer.progress.get_mut(&outbox_id),
                self.entries.get(&outbox_id),
            ) else {
                unreachable!("a scheduled message has its rows")
            };
            if is_over_age(entry.row.ended_at, now) {
                // Its removal is a matter of the next time record; until then it is not due.
                continue;
            }
            // By when the last attempt ran out, not by now: time in which nobody tried is no reason.
            if progress.is_exhausted(due) {
                progress.state = State::Dead(now);
                consumer.dead.insert(outbox_id);
                continue;
            }
            if progress.counted == 0 {
                progress.counted_since = now;
            }
            progress.attempt += 1;
            progress.counted += 1;
            progress.epoch = epoch;
            let visible_at = now.plus(visibility);
            let backoff = backoff(progress.counted, jitter, outbox_id);
            let due = visible_at.plus(backoff);
            progress.state = State::Due(due);
            consumer.schedule.insert((due, outbox_id));
            let id = AttemptId {
                outbox_id,
                epoch,
                attempt: progress.attempt,
            };
            deliveries.push(Delivery {
                row: entry.row,
                id,
                visible_at,
            });
        }
        Some(deliveries)
    }

    /// The consumer and progress of an attempt that is still the newest.
    fn current(&mut self, number: usize, id: AttemptId) -> Result<&mut Progress, Settled> {
        let progress = self.consumers[number].progress.get_mut(&id.outbox_id);
        let progress = progress.ok_or(Settled::Gone)?;
        // Epoch 0 is nobody's: of a message that was never delivered, or was replayed since.
        let attempted = progress.epoch != Epoch(0);
        if attempted && progress.attempt == id.attempt && progress.epoch == id.epoch {
            Ok(progress)
        } else {
            Err(Settled::Stale)
        }
    }

    /// The work is done; `None` without a subscriber of that name.
    pub(crate) fn ack(&mut self, name: &ConsumerName, id: AttemptId) -> Option<Settled> {
        let number = self.subscriber(name)?;
        if let Err(refused) = self.current(number, id) {
            return Some(refused);
        }
        self.finish(number, id.outbox_id);
        Some(Settled::Done)
    }

    fn finish(&mut self, number: usize, outbox_id: OutboxId) {
        self.consumers[number].forget(&outbox_id);
        if let Some(entry) = self.entries.get_mut(&outbox_id) {
            entry.waiting &= !(1 << number);
            if entry.waiting == 0 {
                let ended_at = entry.row.ended_at;
                self.entries.remove(&outbox_id);
                self.by_end.remove(&(ended_at, outbox_id));
            }
        }
    }

    /// The work failed: due again after `delay`, or after a backoff, or given up.
    pub(crate) fn nack(
        &mut self,
        name: &ConsumerName,
        id: AttemptId,
        delay: Option<Duration>,
        reason: &str,
        jitter: u64,
        now: Timestamp,
    ) -> Option<Settled> {
        let number = self.subscriber(name)?;
        let progress = match self.current(number, id) {
            Ok(progress) => progress,
            Err(refused) => return Some(refused),
        };
        if matches!(progress.state, State::Dead(_)) {
            return Some(Settled::Stale);
        }
        progress.last_error = reason.into();
        let state = if progress.is_exhausted(now) {
            State::Dead(now)
        } else {
            let backoff = backoff(progress.counted, jitter, id.outbox_id);
            State::Due(now.plus(delay.unwrap_or(backoff)))
        };
        self.consumers[number].move_to(id.outbox_id, state);
        Some(Settled::Done)
    }

    /// The work takes longer.
    pub(crate) fn extend(
        &mut self,
        name: &ConsumerName,
        id: AttemptId,
        visibility: Duration,
        now: Timestamp,
    ) -> Option<Settled> {
        let number = self.subscriber(name)?;
        match self.current(number, id) {
            Err(refused) => return Some(refused),
            Ok(progress) if matches!(progress.state, State::Dead(_)) => {
                return Some(Settled::Stale);
            }
            Ok(_) => {}
        }
        let state = State::Due(now.plus(visibility));
        self.consumers[number].move_to(id.outbox_id, state);
        Some(Settled::Done)
    }

    /// Delivers a dead letter again; `Some(false)` if there is none of that id.
    pub(crate) fn replay(
        &mut self,
        name: &ConsumerName,
        outbox_id: OutboxId,
        now: Timestamp,
    ) -> Option<bool> {
        let number = self.subscriber(name)?;
        let entry = self.entries.get(&outbox_id);
        let consumer = &mut self.consumers[number];
        let alive = entry.is_some_and(|entry| !is_over_age(entry.row.ended_at, now));
        if !alive || !consumer.dead.contains(&outbox_id) {
            return Some(false);
        }
        if let Some(progress) = consumer.progress.get_mut(&outbox_id) {
            progress.counted = 0;
            progress.epoch = Epoch(0);
            progress.last_error = "".into();
        }
        consumer.move_to(outbox_id, State::Due(now));
        Some(true)
    }

    /// The dead letters of a consumer after `after`, by outbox id, at most `limit`.
    pub(crate) fn dead_letters(
        &self,
        name: &ConsumerName,
        after: Option<OutboxId>,
        limit: usize,
        now: Timestamp,
    ) -> Option<Vec<DeadLetter>> {
        let consumer = &self.consumers[self.subscriber(name)?];
        let from = after.map_or(Bound::Unbounded, Bound::Excluded);
        let letters = consumer.dead.range((from, Bound::Unbounded));
        let letters = letters.filter_map(|outbox_id| {
            let row = self.entries.get(outbox_id)?.row;
            let progress = consumer.progress.get(outbox_id)?;
            let State::Dead(dead_at) = progress.state else {
                return None;
            };
            (!is_over_age(row.ended_at, now)).then(|| DeadLetter {
                row,
                attempts: progress.counted,
                dead_at,
                last_error: progress.last_error.clone(),
            })
        });
        Some(letters.take(limit).collect())
    }

    /// Removes messages over their age, at most `limit` at a time.
    pub(crate) fn purge(&mut self, now: Timestamp, limit: usize) {
        for _ in 0..limit {
            match self.by_end.first() {
                Some(&(ended_at, outbox_id)) if is_over_age(ended_at, now) => {
                    self.by_end.pop_first();
                    self.entries.remove(&outbox_id);
                    for consumer in &mut self.consumers {
                        consumer.forget(&outbox_id);
                    }
                    self.dropped += 1;
                }
                _ => return,
            }
        }
    }

    pub(crate) fn counts(&self) -> OutboxCounts {
        let dead: usize = self
            .consumers
            .iter()
            .map(|consumer| consumer.dead.len())
            .sum();
        OutboxCounts {
            ready: self.entries.len() as u64,
            dead: dead as u64,
            dropped: self.dropped,
            oldest: self.oldest(),
        }
    }

    /// The earliest end of a message that somebody is to work on: dead letters wait for a person,
    /// and are told by their number.
    fn oldest(&self) -> Option<Timestamp> {
        let worked_on = |outbox_id: &OutboxId| {
            self.consumers.iter().any(|consumer| {
                let progress = consumer.progress.get(outbox_id);
                progress.is_some_and(|progress| matches!(progress.state, State::Due(_)))
            })
        };
        let mut ends = self.by_end.iter().take(OLDEST_LOOKS_MAX);
        let (ended_at, _) = ends.find(|(_, outbox_id)| worked_on(outbox_id))?;
        Some(*ended_at)
    }

    /// Everything that two equal outboxes have in common, in an order that does not depend on how
    /// they came to be.
    pub(crate) fn summary(&self) -> impl std::hash::Hash {
        let mut rows = BTreeMap::new();
        for (number, consumer) in self.consumers.iter().enumerate() {
            for (id, progress) in &consumer.progress {
                rows.insert((number, *id), format!("{progress:?}"));
            }
        }
        let entries: BTreeMap<_, _> = self
            .entries
            .iter()
            .map(|(id, entry)| (*id, (entry.row, entry.waiting)))
            .collect();
        let names: Vec<_> = self
            .consumers
            .iter()
            .map(|consumer| (consumer.name.clone(), consumer.subscribed))
            .collect();
        (names, rows, entries, self.dropped)
    }
}

impl Progress {
    fn is_exhausted(&self, now: Timestamp) -> bool {
        self.counted >= ATTEMPTS_MIN && now.since(self.counted_since) >= ATTEMPTS_TIME_MIN
    }
}

impl Consumer {
    /// Changes when, or whether, a message is due.
    fn move_to(&mut self, outbox_id: OutboxId, to: State) {
        let Some(progress) = self.progress.get_mut(&outbox_id) else {
            return;
        };
        if let State::Due(due) = progress.state {
            self.schedule.remove(&(due, outbox_id));
        }
        self.dead.remove(&outbox_id);
        match to {
            State::Due(due) => self.schedule.insert((due, outbox_id)),
            State::Dead(_) => self.dead.insert(outbox_id),
        };
        progress.state = to;
    }

    fn forget(&mut self, outbox_id: &OutboxId) {
        if let Some(progress) = self.progress.remove(outbox_id) {
            if let State::Due(due) = progress.state {
                self.schedule.remove(&(due, *outbox_id));
            }
            self.dead.remove(outbox_id);
        }
    }
}

fn is_over_age(ended_at: Timestamp, now: Timestamp) -> bool {
    now >= ended_at.plus(OUTBOX_RETENTION)
}

/// Exponential backoff with full jitter: uniform from 0 to the smaller of 5 min and 1 s doubled with
/// each attempt. (Brooker: "Exponential Backoff And Jitter", AWS Architecture Blog, 2015.)
fn backoff(attempts: u32, jitter: u64, outbox_id: OutboxId) -> Duration {
    let doublings = attempts.saturating_sub(1).min(16);
    let ceiling = (BACKOFF_MIN * (1 << doublings)).min(BACKOFF_MAX);
    let ceiling_ms = u64::try_from(ceiling.as_millis()).unwrap_or(u64::MAX);
    // The messages of one record must not come back together.
    let mut mixed = jitter;
    for &byte in outbox_id.random_part() {
        mixed = (mixed ^ u64::from(byte)).wrapping_mul(0x0000_0100_0000_01b3);
    }
    mixed ^= mixed >> 32;
    Duration::from_millis(mixed % (ceiling_ms + 1))
}

#[cfg(test)]
mod tests;
