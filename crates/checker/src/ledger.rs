//! What clients asked and were told, and what was done to the world.

use std::fmt;

use ostraca_types::{KeyDigest, OutboxId, PasteId, RequestDigest, Timestamp, TokenHash};
use serde::{Deserialize, Serialize};

use crate::wire::text;

/// Nanoseconds on the one clock of whoever writes the ledger, which never runs back.
#[derive(
    Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Default, Serialize, Deserialize,
)]
#[serde(transparent)]
pub struct Instant(pub u64);

impl fmt::Display for Instant {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let at = std::time::Duration::from_nanos(self.0);
        write!(f, "{:.6}", at.as_secs_f64())
    }
}

/// Where something was decided: the shard's log, under which fencing token, at which record.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Position {
    /// The shard.
    pub shard: u16,
    /// The fencing token.
    pub epoch: u64,
    /// The record; of a look that appended nothing, the last one that was applied.
    pub sequence: u64,
}

/// One call of a client or a worker. A create is one call from its begin to its commit.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Call {
    /// Who.
    pub client: u32,
    /// When it was asked.
    pub invoked: Instant,
    /// When it was answered, or given up.
    pub returned: Instant,
    /// What was asked.
    pub op: Op,
    /// What was told.
    pub told: Told,
    /// Where that was decided, if the answer says so.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub at: Option<Position>,
    /// Of a create: what its begin gave, if it was to be committed.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub begun: Option<Begun>,
}

/// What a create holds between its begin and its commit.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Begun {
    /// The id that its paste will have.
    #[serde(with = "text")]
    pub paste: PasteId,
    /// Shard time of the begin, for whoever knows it: its in-flight bound counts from there.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub at: Option<Time>,
}

/// Shard time, where it may be unknown.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(transparent)]
pub struct Time(#[serde(with = "text")] pub Timestamp);

/// Names one attempt at a message, as its delivery handle does.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Attempt {
    /// From 1 up, over the life of the message.
    pub number: u32,
    /// The fencing token under which it was delivered.
    pub epoch: u64,
}

/// What was asked. Neither keys nor tokens are here, only their digests.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case", deny_unknown_fields)]
pub enum Op {
    /// Save something.
    Create {
        /// The key's digest.
        #[serde(with = "text")]
        key: KeyDigest,
        /// What is saved.
        #[serde(with = "text")]
        request: RequestDigest,
        /// For how long, in milliseconds.
        lifetime_ms: u64,
    },
    /// Read a paste.
    Get {
        /// Which.
        #[serde(with = "text")]
        paste: PasteId,
    },
    /// End a paste.
    Delete {
        /// Which.
        #[serde(with = "text")]
        paste: PasteId,
        /// Of the token that was presented.
        #[serde(with = "text")]
        token: TokenHash,
    },
    /// Take messages.
    Receive {
        /// Whose.
        consumer: String,
    },
    /// Be done with a message.
    Ack {
        /// Whose.
        consumer: String,
        /// Which.
        #[serde(with = "text")]
        outbox: OutboxId,
        /// By the handle of which attempt.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        attempt: Option<Attempt>,
    },
    /// Give a message back.
    Nack {
        /// Whose.
        consumer: String,
        /// Which.
        #[serde(with = "text")]
        outbox: OutboxId,
        /// By the handle of which attempt.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        attempt: Option<Attempt>,
    },
    /// Take longer for an attempt.
    Extend {
        /// Whose.
        consumer: String,
        /// Which.
        #[serde(with = "text")]
        outbox: OutboxId,
        /// By the handle of which attempt.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        attempt: Option<Attempt>,
    },
    /// Record a message as done.
    Record {
        /// Whose.
        consumer: String,
        /// Which.
        #[serde(with = "text")]
        outbox: OutboxId,
    },
    /// Ask whether a message is recorded.
    Contains {
        /// Whose.
        consumer: String,
        /// Which.
        #[serde(with = "text")]
        outbox: OutboxId,
    },
    /// Get the ends of a shard from now on.
    Register {
        /// Who.
        consumer: String,
    },
    /// List what was given up.
    DeadLetters {
        /// Whose.
        consumer: String,
    },
    /// Deliver what was given up again.
    Replay {
        /// Whose.
        consumer: String,
        /// Which.
        #[serde(with = "text")]
        outbox: OutboxId,
    },
}

/// A message as it was delivered.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Delivered {
    /// The message.
    #[serde(with = "text")]
    pub outbox: OutboxId,
    /// The paste that ended.
    #[serde(with = "text")]
    pub paste: PasteId,
    /// Which attempt, from 1 up.
    pub attempt: u32,
    /// Shard time of the end.
    #[serde(with = "text")]
    pub ended_at: Timestamp,
}

/// A message that was given up, as it was listed.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct DeadLetter {
    /// The message.
    #[serde(with = "text")]
    pub outbox: OutboxId,
    /// The paste that ended.
    #[serde(with = "text")]
    pub paste: PasteId,
    /// Attempts since the end, or since the last replay.
    pub attempts: u32,
    /// Shard time of the end.
    #[serde(with = "text")]
    pub ended_at: Timestamp,
    /// Shard time at which it was given up.
    #[serde(with = "text")]
    pub dead_at: Timestamp,
}

/// What was told.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case", deny_unknown_fields)]
pub enum Told {
    /// The answer to a create, the first or a repeated one.
    Created {
        /// The paste.
        #[serde(with = "text")]
        paste: PasteId,
        /// When it expires, by shard time.
        #[serde(with = "text")]
        expires_at: Timestamp,
        /// Of the token that was given.
        #[serde(with = "text")]
        token: TokenHash,
        /// Whether the answer says that it is a stored one.
        replayed: bool,
    },
    /// The key was used for something else.
    Conflict,
    /// The paste is there.
    Found {
        /// Shard time.
        #[serde(with = "text")]
        now: Timestamp,
        /// When it expires.
        #[serde(with = "text")]
        expires_at: Timestamp,
    },
    /// There is no such paste.
    Missing,
    /// The paste has ended by this call.
    Deleted,
    /// Not the token of this paste.
    TokenRejected,
    /// Messages.
    Delivered(Vec<Delivered>),
    /// Whether the ack, nack or extension was of the latest attempt at a message that is there.
    Settled(bool),
    /// It is recorded.
    Recorded {
        /// By this call.
        first: bool,
    },
    /// Whether it is recorded.
    Contained(bool),
    /// The consumer gets ends from now on.
    Registered,
    /// What was given up.
    Dead(Vec<DeadLetter>),
    /// Whether there was such a dead letter, which is due again.
    Replayed(bool),
    /// Definite: nothing was done.
    Refused {
        /// The API's reason.
        reason: String,
    },
    /// It was done, or will be, or never is.
    Unknown,
}

/// Something that was done outside of the store on account of a message.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Effect {
    /// When.
    pub at: Instant,
    /// What.
    pub kind: EffectKind,
    /// To which paste.
    #[serde(with = "text")]
    pub paste: PasteId,
    /// On account of which message.
    #[serde(with = "text")]
    pub outbox: OutboxId,
}

/// What a worker does to the world.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "snake_case", deny_unknown_fields)]
pub enum EffectKind {
    /// The object was deleted, or was found to be away.
    ObjectDeleted,
    /// The edge was purged.
    EdgePurged,
    /// The paste was taken out of the search.
    Unlisted,
}

impl EffectKind {
    /// All of them.
    pub const ALL: &[Self] = &[Self::ObjectDeleted, Self::EdgePurged, Self::Unlisted];

    /// Whose effect it is: each consumer has its own.
    #[must_use]
    pub const fn consumer(self) -> &'static str {
        match self {
            Self::ObjectDeleted | Self::EdgePurged => "purge",
            Self::Unlisted => "search",
        }
    }
}

/// Everything that was written down, in any order.
///
/// Every call that was sent must be here, also one that nobody lived to hear the answer of, or what
/// it did has no explanation. The one exception is a worker's own steps, from whose end to the
/// redelivery of the message nothing depends on whether they are known; whoever has all of those as
/// well says so ([`crate::Limits::workers_known`]), and more is checked.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Ledger {
    /// Calls.
    pub calls: Vec<Call>,
    /// Effects.
    pub effects: Vec<Effect>,
}

/// As few characters of a digest as tell it from others.
pub(crate) fn short(bytes: &[u8]) -> String {
    bytes
        .iter()
        .take(5)
        .map(|byte| format!("{byte:02x}"))
        .collect()
}

/// An attempt's number in a line about it.
fn numbered(attempt: Option<Attempt>) -> String {
    attempt.map_or_else(String::new, |attempt| {
        format!(" (attempt {} of epoch {})", attempt.number, attempt.epoch)
    })
}

impl fmt::Display for Call {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(
            f,
            "{} to {}, client {}: ",
            self.invoked, self.returned, self.client
        )?;
        match &self.op {
            Op::Create {
                key,
                request,
                lifetime_ms,
            } => {
                let (key, request) = (short(&key.0), short(&request.0));
                write!(f, "create key {key} request {request} for {lifetime_ms} ms")?;
            }
            Op::Get { paste } => write!(f, "get {paste}")?,
            Op::Delete { paste, token } => write!(f, "delete {paste} with {}", short(&token.0))?,
            Op::Receive { consumer } => write!(f, "receive for {consumer}")?,
            Op::Ack {
                consumer,
                outbox,
                attempt,
            } => write!(f, "ack {outbox}{} for {consumer}", numbered(*attempt))?,
            Op::Nack {
                consumer,
                outbox,
                attempt,
            } => write!(f, "nack {outbox}{} for {consumer}", numbered(*attempt))?,
            Op::Extend {
                consumer,
                outbox,
                attempt,
            } => write!(f, "extend {outbox}{} for {consumer}", numbered(*attempt))?,
            Op::Record { consumer, outbox } => write!(f, "record {outbox} for {consumer}")?,
            Op::Contains { consumer, outbox } => write!(f, "look for {outbox} of {consumer}")?,
            Op::Register { consumer } => write!(f, "register {consumer}")?,
            Op::DeadLetters { consumer } => write!(f, "dead letters of {consumer}")?,
            Op::Replay { consumer, outbox } => write!(f, "replay {outbox} for {consumer}")?,
        }
        if let Some(Begun { paste, at }) = self.begun {
            write!(f, ", as {paste}")?;
            if let Some(Time(at)) = at {
                write!(f, " begun at {}", at.0)?;
            }
        }
        write!(f, " -> ")?;
        match &self.told {
            Told::Created {
                paste,
                expires_at,
                token,
                replayed,
            } => {
                let (token, how) = (short(&token.0), if *replayed { "stored" } else { "new" });
                write!(f, "{how}: {paste} until {expires_at}, token {token}")?;
            }
            Told::Conflict => f.write_str("conflict")?,
            Told::Found { now, .. } => write!(f, "found at {now}")?,
            Told::Missing => f.write_str("missing")?,
            Told::Deleted => f.write_str("deleted")?,
            Told::TokenRejected => f.write_str("token rejected")?,
            Told::Delivered(messages) => {
                f.write_str("delivered")?;
                for one in messages {
                    write!(
                        f,
                        " {} of {} (attempt {})",
                        one.outbox, one.paste, one.attempt
                    )?;
                }
            }
            Told::Settled(done) => f.write_str(if *done { "done" } else { "stale" })?,
            Told::Recorded { first } => {
                write!(f, "recorded, {}", if *first { "now" } else { "before" })?;
            }
            Told::Contained(there) => f.write_str(if *there { "there" } else { "not there" })?,
            Told::Registered => f.write_str("registered")?,
            Told::Dead(letters) => {
                f.write_str("dead")?;
                for one in letters {
                    let (attempts, since) = (one.attempts, one.dead_at.0);
                    write!(f, " {} (since {since}, {attempts} attempts)", one.outbox)?;
                }
            }
            Told::Replayed(was) => f.write_str(if *was { "replayed" } else { "no such" })?,
            Told::Refused { reason } => write!(f, "refused: {reason}")?,
            Told::Unknown => f.write_str("unknown")?,
        }
        if let Some(Position {
            shard,
            epoch,
            sequence,
        }) = self.at
        {
            write!(f, " (shard {shard}, epoch {epoch}, sequence {sequence})")?;
        }
        Ok(())
    }
}

impl fmt::Display for Effect {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let what = match self.kind {
            EffectKind::ObjectDeleted => "object deleted",
            EffectKind::EdgePurged => "edge purged",
            EffectKind::Unlisted => "taken out of the search",
        };
        write!(
            f,
            "{}: {what}, of {} for {}",
            self.at, self.paste, self.outbox
        )
    }
}
