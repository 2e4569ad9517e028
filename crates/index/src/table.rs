//! The tables, most of them one for each slot.

use std::collections::{BTreeSet, HashMap};
use std::hash::{BuildHasher as _, BuildHasherDefault, DefaultHasher, Hash};
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use ostraca_types::contract::SLOTS;
use ostraca_types::{ConsumerName, Epoch, KeyDigest, OutboxId, PasteId, Slot, Timestamp};
use parking_lot::{Mutex, RwLock};

use crate::outbox::{AttemptId, DeadLetter, Delivery, Outbox, OutboxCounts, Settled};
use crate::{IdempotencyRow, InboxRow, PasteRow, ReadyRow, Rows};

/// Rows past their expiry that one time record removes, of each kind. They are invisible already;
/// this only gives memory back, and nobody may wait long for it.
const PURGE_MAX: usize = 20_000;

/// The rows of one slot. Digests and ids are uniformly random: SHA-256 made the ones, we the
/// others.
#[derive(Default)]
struct SlotRows {
    pastes: HashMap<PasteId, PasteRow>,
    idempotency: HashMap<KeyDigest, IdempotencyRow>,
    /// Until when each is there.
    inbox: HashMap<(u16, OutboxId), Timestamp>,
}

/// What is to happen when, across slots.
#[derive(Default)]
struct Calendar {
    pastes: BTreeSet<(Timestamp, PasteId)>,
    idempotency: BTreeSet<(Timestamp, KeyDigest)>,
    inbox: BTreeSet<(Timestamp, u16, OutboxId)>,
}

/// How many rows there are.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Counts {
    /// Pastes that have not ended; some may be past their expiry.
    pub pastes: u64,
    /// Idempotency rows; some may be past their expiry.
    pub idempotency: u64,
    /// Inbox rows; some may be past their expiry.
    pub inbox: u64,
    /// Messages.
    pub outbox: OutboxCounts,
}

/// The rows of a shard.
///
/// A lock is held for one row's look-up or change, never across I/O or a call of the caller's.
pub struct Index {
    slots: Box<[RwLock<SlotRows>]>,
    calendar: Mutex<Calendar>,
    outbox: Mutex<Outbox>,
    pastes: AtomicU64,
    idempotency: AtomicU64,
    inbox: AtomicU64,
}

impl Default for Index {
    fn default() -> Self {
        Self::new()
    }
}

impl Index {
    /// An index without rows. The consumer `purge` is registered.
    #[must_use]
    pub fn new() -> Self {
        Self {
            slots: (0..SLOTS).map(|_| RwLock::default()).collect(),
            calendar: Mutex::default(),
            outbox: Mutex::new(Outbox::new()),
            pastes: AtomicU64::new(0),
            idempotency: AtomicU64::new(0),
            inbox: AtomicU64::new(0),
        }
    }

    fn slot(&self, slot: Slot) -> &RwLock<SlotRows> {
        &self.slots[slot.index()]
    }

    /// The row of a paste that has not ended. Whether it is visible is a matter of its expiry.
    #[must_use]
    pub fn paste(&self, id: &PasteId) -> Option<PasteRow> {
        self.slot(id.slot()).read().pastes.get(id).cloned()
    }

    /// Whether there is a paste of this id, ended ones not counted.
    #[must_use]
    pub fn has_paste(&self, id: &PasteId) -> bool {
        self.slot(id.slot()).read().pastes.contains_key(id)
    }

    /// The row of a key. Whether it is still honoured is a matter of its expiry.
    #[must_use]
    pub fn idempotency(&self, digest: &KeyDigest) -> Option<IdempotencyRow> {
        self.slot(digest.slot())
            .read()
            .idempotency
            .get(digest)
            .cloned()
    }

    /// Until when a message is recorded as done by a consumer.
    #[must_use]
    pub fn inbox(&self, consumer: &ConsumerName, outbox_id: OutboxId) -> Option<Timestamp> {
        let number = self.outbox.lock().consumer(consumer)?;
        let rows = self.slot(outbox_id.slot()).read();
        rows.inbox.get(&(number, outbox_id)).copied()
    }

    /// Adds the rows of a create. The key's row may replace one that is no longer honoured; the
    /// paste's id must be new.
    pub fn create(&self, digest: KeyDigest, key: IdempotencyRow, paste: PasteRow) {
        let id = key.paste_id;
        assert_eq!(
            digest.slot(),
            id.slot(),
            "a key and its paste live on one slot"
        );
        let mut calendar = self.calendar.lock();
        calendar.pastes.insert((paste.expires_at, id));
        calendar.idempotency.insert((key.expires_at, digest));
        let mut rows = self.slot(id.slot()).write();
        let replaced = rows.idempotency.insert(digest, key);
        let taken = rows.pastes.insert(id, paste);
        assert!(taken.is_none(), "a paste id was given twice");
        drop(rows);
        self.pastes.fetch_add(1, Ordering::Relaxed);
        match replaced {
            None => {
                self.idempotency.fetch_add(1, Ordering::Relaxed);
            }
            Some(old) => {
                calendar.idempotency.remove(&(old.expires_at, digest));
            }
        }
    }

    /// Ends a paste: removes its row and makes its message deliverable.
    pub fn end(&self, row: ReadyRow) {
        let ended = self
            .slot(row.paste_id.slot())
            .write()
            .pastes
            .remove(&row.paste_id);
        let Some(paste) = ended else {
            panic!("an end without its paste")
        };
        assert_eq!(paste.outbox_id, row.outbox_id, "an end with another id");
        let due = (paste.expires_at, row.paste_id);
        self.calendar.lock().pastes.remove(&due);
        self.outbox.lock().ended(row);
        self.pastes.fetch_sub(1, Ordering::Relaxed);
    }

    /// The pastes that are past their expiry at `now` and have not ended, in the order of their
    /// expiry, at most `limit`.
    #[must_use]
    pub fn due(&self, now: Timestamp, limit: usize) -> Vec<PasteId> {
        let calendar = self.calendar.lock();
        let due = calendar.pastes.iter().take_while(|(at, _)| *at <= now);
        due.take(limit).map(|&(_, id)| id).collect()
    }

    /// The expiry of the paste that is due next.
    #[must_use]
    pub fn next_due(&self) -> Option<Timestamp> {
        self.calendar.lock().pastes.first().map(|&(at, _)| at)
    }

    /// Records a message as done by a consumer until `expires_at`. `Some(false)` if it is recorded
    /// at `now` already; `None` if there are too many consumers.
    pub fn record_inbox(
        &self,
        consumer: &ConsumerName,
        outbox_id: OutboxId,
        expires_at: Timestamp,
        now: Timestamp,
    ) -> Option<bool> {
        let number = self.outbox.lock().intern(consumer)?;
        let mut calendar = self.calendar.lock();
        let mut rows = self.slot(outbox_id.slot()).write();
        let old = rows.inbox.get(&(number, outbox_id)).copied();
        if old.is_some_and(|until| now < until) {
            return Some(false);
        }
        rows.inbox.insert((number, outbox_id), expires_at);
        calendar.inbox.insert((expires_at, number, outbox_id));
        match old {
            Some(until) => {
                calendar.inbox.remove(&(until, number, outbox_id));
            }
            None => {
                self.inbox.fetch_add(1, Ordering::Relaxed);
            }
        }
        Some(true)
    }

    /// Subscribes a consumer to the ends from now on; `false` when there are too many.
    pub fn register(&self, consumer: &ConsumerName) -> bool {
        self.outbox.lock().register(consumer)
    }

    /// Whether a consumer of that name is subscribed.
    #[must_use]
    pub fn is_subscribed(&self, consumer: &ConsumerName) -> bool {
        self.outbox.lock().is_subscribed(consumer)
    }

    /// When a consumer's next message is due; `None` without one.
    #[must_use]
    pub fn next_message(&self, consumer: &ConsumerName) -> Option<Timestamp> {
        self.outbox.lock().next_due(consumer)
    }

    /// Takes up to `max` due messages as attempts that last for `visibility`, oldest first. `None`
    /// without a subscriber of that name, as in all that follows.
    pub fn deliver(
        &self,
        consumer: &ConsumerName,
        max: usize,
        visibility: Duration,
        jitter: u64,
        epoch: Epoch,
        now: Timestamp,
    ) -> Option<Vec<Delivery>> {
        let mut outbox = self.outbox.lock();
        outbox.deliver(consumer, max, visibility, jitter, epoch, now)
    }

    /// An attempt's work is done.
    pub fn ack(&self, consumer: &ConsumerName, id: AttemptId) -> Option<Settled> {
        self.outbox.lock().ack(consumer, id)
    }

    /// An attempt's work failed.
    pub fn nack(
        &self,
        consumer: &ConsumerName,
        id: AttemptId,
        delay: Option<Duration>,
        reason: &str,
        jitter: u64,
        now: Timestamp,
    ) -> Option<Settled> {
        let mut outbox = self.outbox.lock();
        outbox.nack(consumer, id, delay, reason, jitter, now)
    }

    /// An attempt's work takes longer.
    pub fn extend(
        &self,
        consumer: &ConsumerName,
        id: AttemptId,
        visibility: Duration,
        now: Timestamp,
    ) -> Option<Settled> {
        self.outbox.lock().extend(consumer, id, visibility, now)
    }

    /// Delivers a dead letter again; `Some(false)` if there is none of that id.
    pub fn replay(
        &self,
        consumer: &ConsumerName,
        outbox_id: OutboxId,
        now: Timestamp,
    ) -> Option<bool> {
        self.outbox.lock().replay(consumer, outbox_id, now)
    }

    /// A consumer's dead letters after `after`, by outbox id, at most `limit`.
    #[must_use]
    pub fn dead_letters(
        &self,
        consumer: &ConsumerName,
        after: Option<OutboxId>,
        limit: usize,
        now: Timestamp,
    ) -> Option<Vec<DeadLetter>> {
        self.outbox.lock().dead_letters(consumer, after, limit, now)
    }

    /// Gives back the memory of rows that are invisible at `now`: each kind by its own expiry, and
    /// never a paste.
    pub fn purge(&self, now: Timestamp) {
        let mut calendar = self.calendar.lock();
        for _ in 0..PURGE_MAX {
            match calendar.idempotency.first() {
                Some(&(at, digest)) if at <= now => {
                    calendar.idempotency.pop_first();
                    self.slot(digest.slot()).write().idempotency.remove(&digest);
                    self.idempotency.fetch_sub(1, Ordering::Relaxed);
                }
                _ => break,
            }
        }
        for _ in 0..PURGE_MAX {
            match calendar.inbox.first() {
                Some(&(at, consumer, outbox_id)) if at <= now => {
                    calendar.inbox.pop_first();
                    let key = (consumer, outbox_id);
                    self.slot(outbox_id.slot()).write().inbox.remove(&key);
                    self.inbox.fetch_sub(1, Ordering::Relaxed);
                }
                _ => break,
            }
        }
        drop(calendar);
        self.outbox.lock().purge(now, PURGE_MAX);
    }

    /// The sealing generations of keys that are honoured at `now`, ascending.
    #[must_use]
    pub fn generations(&self, now: Timestamp) -> Vec<u32> {
        let mut generations = BTreeSet::new();
        for rows in &self.slots {
            let rows = rows.read();
            let honoured = rows.idempotency.values().filter(|row| now < row.expires_at);
            generations.extend(honoured.map(|row| row.answer.generation));
        }
        generations.into_iter().collect()
    }

    /// How many rows there are, about: the numbers are not read at one instant.
    #[must_use]
    pub fn counts(&self) -> Counts {
        Counts {
            pastes: self.pastes.load(Ordering::Relaxed),
            idempotency: self.idempotency.load(Ordering::Relaxed),
            inbox: self.inbox.load(Ordering::Relaxed),
            outbox: self.outbox.lock().counts(),
        }
    }

    /// Every row. Walks them all; for checks.
    #[must_use]
    pub fn rows(&self) -> Rows {
        let mut all = Rows::default();
        let outbox = self.outbox.lock();
        all.ready.extend(outbox.ready());
        for rows in &self.slots {
            let rows = rows.read();
            let pastes = rows.pastes.iter();
            all.pastes
                .extend(pastes.map(|(id, row)| (*id, row.clone())));
            let keys = rows.idempotency.iter();
            all.idempotency
                .extend(keys.map(|(digest, row)| (*digest, row.clone())));
            let inbox = rows.inbox.iter();
            all.inbox
                .extend(inbox.filter_map(|(&(number, outbox_id), &expires_at)| {
                    Some(InboxRow {
                        consumer: outbox.name(number)?.clone(),
                        outbox_id,
                        expires_at,
                    })
                }));
        }
        all.pastes.sort_unstable_by_key(|(id, _)| *id);
        all.idempotency.sort_unstable_by_key(|(digest, _)| *digest);
        all.inbox.sort_unstable();
        all
    }

    /// A hash of every row, whatever the order in which they came: equal logs give equal
    /// fingerprints. Walks all rows; for tests and tools. Not stable across builds.
    #[must_use]
    pub fn fingerprint(&self) -> u64 {
        let mut sum = hash(&(0u8, self.outbox.lock().summary()));
        for rows in &self.slots {
            let rows = rows.read();
            for (id, row) in &rows.pastes {
                let options = (row.syntax.as_ref(), row.title.as_ref(), row.body_digest);
                let times = (row.created_at, row.expires_at, row.body_size);
                let row = (1u8, id, times, row.token_hash.0, row.outbox_id, options);
                sum = sum.wrapping_add(hash(&row));
            }
            for (digest, row) in &rows.idempotency {
                let answer = (row.answer.generation, row.answer.bytes);
                let key = (row.expires_at, row.request_hash, row.paste_id);
                sum = sum.wrapping_add(hash(&(2u8, digest, key, answer)));
            }
            for (key, until) in &rows.inbox {
                sum = sum.wrapping_add(hash(&(3u8, key, until)));
            }
        }
        sum
    }
}

fn hash(row: &impl Hash) -> u64 {
    BuildHasherDefault::<DefaultHasher>::default().hash_one(row)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{EndCause, SEALED_ANSWER_SIZE, SealedAnswer};
    use ostraca_types::{BodyDigest, RequestHash, TokenHash};

    fn create(index: &Index, n: u8) -> (KeyDigest, PasteId, PasteRow) {
        let slot = Slot(n % 3);
        let mut digest = KeyDigest([n; 16]);
        digest.0[0] = slot.0;
        let id = PasteId::mint(slot, |bytes| bytes.fill(n));
        let paste = PasteRow {
            created_at: Timestamp(1),
            expires_at: Timestamp(2),
            token_hash: TokenHash([n; 32]),
            outbox_id: OutboxId::from_parts(slot, &[n.min(100); 15]).expect("in range"),
            body_size: 1,
            body_digest: BodyDigest([n; 32]),
            syntax: None,
            title: None,
        };
        let key = IdempotencyRow {
            expires_at: Timestamp(3),
            request_hash: RequestHash([n; 32]),
            paste_id: id,
            answer: SealedAnswer {
                generation: 1,
                bytes: [n; SEALED_ANSWER_SIZE],
            },
        };
        index.create(digest, key, paste.clone());
        (digest, id, paste)
    }

    #[test]
    fn k14_i06_each_row_goes_by_its_own_expiry() {
        let index = Index::new();
        let (digest, id, paste) = create(&index, 7);
        let purge = ConsumerName::purge();
        let until = Timestamp(4);
        index.record_inbox(&purge, paste.outbox_id, until, Timestamp(1));
        // Past the paste's expiry: neither it nor the others go, as it has not ended.
        index.purge(Timestamp(2));
        assert!(index.paste(&id).is_some() && index.idempotency(&digest).is_some());
        index.end(ReadyRow {
            outbox_id: paste.outbox_id,
            paste_id: id,
            ended_at: Timestamp(2),
            cause: EndCause::Expired,
        });
        assert!(
            index.idempotency(&digest).is_some(),
            "the end leaves the key"
        );
        index.purge(Timestamp(3));
        assert!(index.idempotency(&digest).is_none());
        assert_eq!(index.inbox(&purge, paste.outbox_id), Some(until));
        index.purge(Timestamp(4));
        let counts = index.counts();
        assert_eq!((counts.pastes, counts.idempotency, counts.inbox), (0, 0, 0));
        assert_eq!(
            counts.outbox.ready, 1,
            "the message stays until it is acked"
        );
    }

    #[test]
    fn i01_two_consumers_never_suppress_each_other() {
        let index = Index::new();
        let outbox_id = OutboxId::from_parts(Slot(1), &[1; 15]).expect("in range");
        let (one, other) = (
            ConsumerName::parse("one").expect("a name"),
            ConsumerName::parse("other").expect("a name"),
        );
        let record =
            |name, now| index.record_inbox(name, outbox_id, Timestamp(now + 10), Timestamp(now));
        assert_eq!(record(&one, 1), Some(true));
        assert_eq!(record(&one, 10), Some(false));
        assert_eq!(index.inbox(&other, outbox_id), None);
        assert_eq!(record(&other, 10), Some(true));
        assert_eq!(record(&one, 11), Some(true), "its time is over");
        assert_eq!(index.counts().inbox, 2);
    }

    #[test]
    fn due_pastes_come_in_the_order_of_their_expiry() {
        let index = Index::new();
        let ids: Vec<_> = (0..5).map(|n| create(&index, n).1).collect();
        assert_eq!(index.due(Timestamp(1), 10), []);
        assert_eq!(index.due(Timestamp(2), 10).len(), ids.len());
        assert_eq!(index.due(Timestamp(2), 3).len(), 3);
        assert_eq!(index.next_due(), Some(Timestamp(2)));
    }

    #[test]
    fn the_fingerprint_is_about_rows_not_their_order() {
        let (one, other) = (Index::new(), Index::new());
        for n in 0..20 {
            create(&one, n);
            create(&other, 19 - n);
        }
        assert_eq!(one.fingerprint(), other.fingerprint());
        create(&other, 20);
        assert_ne!(one.fingerprint(), other.fingerprint());
    }
}
