//! The tables, one set for each slot.

use std::collections::{BTreeMap, HashMap};
use std::hash::{BuildHasher as _, BuildHasherDefault, DefaultHasher, Hash};
use std::sync::atomic::{AtomicU64, Ordering};

use ostraca_types::contract::SLOTS;
use ostraca_types::{KeyDigest, OutboxId, PasteId, Slot, Timestamp};
use parking_lot::RwLock;

use crate::{IdempotencyRow, PasteRow, ReadyRow};

/// The rows of one slot. Digests and ids are uniformly random: SHA-256 made the ones, we the
/// others.
#[derive(Default)]
struct SlotRows {
    pastes: HashMap<PasteId, PasteRow>,
    idempotency: HashMap<KeyDigest, IdempotencyRow>,
    /// In the order of their ends.
    ready: BTreeMap<(Timestamp, OutboxId), ReadyRow>,
}

/// How many rows there are.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Counts {
    /// Pastes that have not ended; some may be past their expiry.
    pub pastes: u64,
    /// Idempotency rows; some may be past their expiry.
    pub idempotency: u64,
    /// Deliverable outbox rows.
    pub ready: u64,
}

/// The rows of a shard.
///
/// A lock is held for one row's look-up or change, never across I/O or a call of the caller's.
pub struct Index {
    slots: Box<[RwLock<SlotRows>]>,
    pastes: AtomicU64,
    idempotency: AtomicU64,
    ready: AtomicU64,
}

impl Default for Index {
    fn default() -> Self {
        Self::new()
    }
}

impl Index {
    /// An index without rows.
    #[must_use]
    pub fn new() -> Self {
        Self {
            slots: (0..SLOTS).map(|_| RwLock::default()).collect(),
            pastes: AtomicU64::new(0),
            idempotency: AtomicU64::new(0),
            ready: AtomicU64::new(0),
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

    /// Adds the rows of a create. The key's row may replace one that is no longer honoured; the
    /// paste's id must be new.
    pub fn create(&self, digest: KeyDigest, key: IdempotencyRow, paste: PasteRow) {
        let id = key.paste_id;
        assert_eq!(
            digest.slot(),
            id.slot(),
            "a key and its paste live on one slot"
        );
        let mut rows = self.slot(id.slot()).write();
        let replaced = rows.idempotency.insert(digest, key);
        let taken = rows.pastes.insert(id, paste);
        assert!(taken.is_none(), "a paste id was given twice");
        drop(rows);
        self.pastes.fetch_add(1, Ordering::Relaxed);
        if replaced.is_none() {
            self.idempotency.fetch_add(1, Ordering::Relaxed);
        }
    }

    /// Ends a paste: removes its row and makes its outbox row deliverable.
    pub fn end(&self, row: ReadyRow) {
        let mut rows = self.slot(row.paste_id.slot()).write();
        let ended = rows.pastes.remove(&row.paste_id);
        assert!(
            ended.is_some_and(|paste| paste.outbox_id == row.outbox_id),
            "an end without its paste"
        );
        let twice = rows.ready.insert((row.ended_at, row.outbox_id), row);
        assert!(twice.is_none(), "an outbox id was given twice");
        drop(rows);
        self.pastes.fetch_sub(1, Ordering::Relaxed);
        self.ready.fetch_add(1, Ordering::Relaxed);
    }

    /// The deliverable rows of a slot, in the order of their ends, at most `limit`.
    #[must_use]
    pub fn ready(&self, slot: Slot, limit: usize) -> Vec<ReadyRow> {
        self.slot(slot)
            .read()
            .ready
            .values()
            .take(limit)
            .copied()
            .collect()
    }

    /// How many rows there are, about: the three numbers are not read at one instant.
    #[must_use]
    pub fn counts(&self) -> Counts {
        Counts {
            pastes: self.pastes.load(Ordering::Relaxed),
            idempotency: self.idempotency.load(Ordering::Relaxed),
            ready: self.ready.load(Ordering::Relaxed),
        }
    }

    /// A hash of every row, whatever the order in which they came: equal logs give equal
    /// fingerprints. Walks all rows; for tests and tools. Not stable across builds.
    #[must_use]
    pub fn fingerprint(&self) -> u64 {
        let mut sum = 0u64;
        for rows in &self.slots {
            let rows = rows.read();
            for (id, row) in &rows.pastes {
                let options = (row.syntax.as_ref(), row.title.as_ref(), row.body_digest);
                let times = (row.created_at, row.expires_at, row.body_size);
                sum = sum.wrapping_add(hash(&(
                    1u8,
                    id,
                    times,
                    row.token_hash.0,
                    row.outbox_id,
                    options,
                )));
            }
            for (digest, row) in &rows.idempotency {
                let answer = (row.answer.generation, row.answer.bytes);
                let key = (row.expires_at, row.request_hash, row.paste_id);
                sum = sum.wrapping_add(hash(&(2u8, digest, key, answer)));
            }
            for row in rows.ready.values() {
                let end = (row.ended_at, row.cause);
                sum = sum.wrapping_add(hash(&(3u8, row.outbox_id, row.paste_id, end)));
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
    fn k14_an_end_leaves_the_key() {
        let index = Index::new();
        let (digest, id, paste) = create(&index, 7);
        let end = ReadyRow {
            outbox_id: paste.outbox_id,
            paste_id: id,
            ended_at: Timestamp(2),
            cause: EndCause::Deleted,
        };
        index.end(end);
        assert_eq!(index.paste(&id), None);
        assert!(
            index
                .idempotency(&digest)
                .is_some_and(|row| row.paste_id == id)
        );
        assert_eq!(index.ready(id.slot(), 10), [end]);
        assert_eq!(
            index.counts(),
            Counts {
                pastes: 0,
                idempotency: 1,
                ready: 1
            }
        );
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
