//! What the store and the world hold at the end.

use std::collections::BTreeSet;

use ostraca_types::{KeyDigest, OutboxId, PasteId, Timestamp, TokenHash};

/// Where a shard is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ShardState {
    /// Which.
    pub shard: u16,
    /// Its leader's fencing token.
    pub epoch: u64,
    /// The last applied record.
    pub sequence: u64,
    /// Shard time.
    pub now: Timestamp,
    /// Messages that were over their age before every consumer had finished them, as it counts them.
    pub dropped: u64,
}

/// An end that some consumer has not finished.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct MessageState {
    /// The message.
    pub outbox: OutboxId,
    /// The paste that ended.
    pub paste: PasteId,
    /// Shard time of the end.
    pub ended_at: Timestamp,
}

/// A paste that has not ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct PasteState {
    /// Its id.
    pub id: PasteId,
    /// When it expires.
    pub expires_at: Timestamp,
    /// Of its token.
    pub token: TokenHash,
    /// Its message.
    pub outbox: OutboxId,
}

/// A key's row.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct KeyState {
    /// The key's digest.
    pub digest: KeyDigest,
    /// What it created.
    pub paste: PasteId,
    /// Until when it is honoured.
    pub expires_at: Timestamp,
}

/// All rows of all shards, and what the object store and the edge hold: at the end, when everything
/// has come to rest.
#[derive(Debug, Clone, Default)]
pub struct Store {
    /// Shards. What belongs to one that is not here is not judged.
    pub shards: Vec<ShardState>,
    /// Which shard owns a slot.
    pub owners: Vec<u16>,
    /// Pastes.
    pub pastes: Vec<PasteState>,
    /// Keys.
    pub keys: Vec<KeyState>,
    /// Ends that some consumer has not finished, dead letters too.
    pub undelivered: Vec<MessageState>,
    /// What consumers have finished, and until when that is known.
    pub inbox: Vec<(String, OutboxId, Timestamp)>,
    /// Pastes whose object is there.
    pub objects: BTreeSet<PasteId>,
    /// Pastes that the edge would still serve.
    pub cached: BTreeSet<PasteId>,
}
