//! What is kept of a paste, a key and an end.

use std::fmt;

use ostraca_types::{
    BodyDigest, ConsumerName, KeyDigest, OutboxId, PasteId, RequestHash, Syntax, Timestamp, Title,
    TokenHash,
};

/// A paste that has not ended. The object's key follows from the id.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct PasteRow {
    /// Shard time when the create entered the queue.
    pub created_at: Timestamp,
    /// The instant from which on it is invisible, whether or not it was swept.
    pub expires_at: Timestamp,
    /// SHA-256 of the delete token.
    pub token_hash: TokenHash,
    /// The one message of this paste's life, deliverable once the paste ends.
    pub outbox_id: OutboxId,
    /// Bytes of the body.
    pub body_size: u32,
    /// SHA-256 of the body.
    pub body_digest: BodyDigest,
    /// The language.
    pub syntax: Option<Syntax>,
    /// The title.
    pub title: Option<Title>,
}

/// Bytes of a sealed answer: nonce 24, sealed expiry 8 and token 16, authenticator 16.
pub const SEALED_ANSWER_SIZE: usize = 64;

/// The answer to a create, encrypted under a key that only its client can derive (k16). Opaque
/// here.
#[derive(Clone, Copy, PartialEq, Eq)]
pub struct SealedAnswer {
    /// Which sealing secret it needs.
    pub generation: u32,
    /// Nonce and ciphertext.
    pub bytes: [u8; SEALED_ANSWER_SIZE],
}

impl fmt::Debug for SealedAnswer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "SealedAnswer(generation {})", self.generation)
    }
}

/// The stored answer of a create under its key's digest.
#[derive(Clone, PartialEq, Eq)]
pub struct IdempotencyRow {
    /// The instant from which on the key is new again. Never the paste's (k14).
    pub expires_at: Timestamp,
    /// What the client asked for, under its key.
    pub request_hash: RequestHash,
    /// The paste that was created.
    pub paste_id: PasteId,
    /// The rest of the answer.
    pub answer: SealedAnswer,
}

impl fmt::Debug for IdempotencyRow {
    /// The row appears nowhere (k16).
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("IdempotencyRow(..)")
    }
}

/// Why a paste ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum EndCause {
    /// By its delete token.
    Deleted,
    /// By its lifetime.
    Expired,
}

/// A message that a consumer has finished.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub struct InboxRow {
    /// Who.
    pub consumer: ConsumerName,
    /// What.
    pub outbox_id: OutboxId,
    /// Until when that is known.
    pub expires_at: Timestamp,
}

/// All rows of a shard, each kind by its key; those past their expiry too.
#[derive(Debug, Clone, Default)]
pub struct Rows {
    /// Pastes that have not ended.
    pub pastes: Vec<(PasteId, PasteRow)>,
    /// Keys.
    pub idempotency: Vec<(KeyDigest, IdempotencyRow)>,
    /// What is finished.
    pub inbox: Vec<InboxRow>,
    /// Ends that some consumer has not finished.
    pub ready: Vec<ReadyRow>,
}

/// A deliverable outbox row: the paste ended, and nobody has worked on that yet.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct ReadyRow {
    /// The message's id.
    pub outbox_id: OutboxId,
    /// The paste that ended.
    pub paste_id: PasteId,
    /// Shard time of the end.
    pub ended_at: Timestamp,
    /// Why it ended.
    pub cause: EndCause,
}
