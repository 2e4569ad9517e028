//! What a record asks for, and its bytes (FORMAT.md).

use std::fmt;

use ostraca_index::{EndCause, SEALED_ANSWER_SIZE, SealedAnswer};
use ostraca_io::{BootId, BootTime};
use ostraca_types::contract::{SYNTAX_SIZE_MAX, TITLE_SIZE_MAX};
use ostraca_types::{
    BodyDigest, ConsumerName, KeyDigest, OutboxId, PasteId, RequestHash, Slot, Syntax, Timestamp,
    Title, TokenHash,
};

pub use delivery::{Ack, Deliver, Extend, Inbox, Nack, Replay};

use field::{create, end, time};

mod delivery;

/// Byte ranges of the payloads: one row of FORMAT.md each.
pub(crate) mod field {
    pub(crate) mod create {
        use std::ops::Range;
        pub(crate) const BEGUN_AT: Range<usize> = 0..8;
        pub(crate) const CREATED_AT: Range<usize> = 8..16;
        pub(crate) const EXPIRES_AT: Range<usize> = 16..24;
        pub(crate) const KEY_EXPIRES_AT: Range<usize> = 24..32;
        pub(crate) const KEY_DIGEST: Range<usize> = 32..48;
        pub(crate) const REQUEST_HASH: Range<usize> = 48..80;
        pub(crate) const PASTE_ID: Range<usize> = 80..92;
        pub(crate) const TOKEN_HASH: Range<usize> = 92..124;
        pub(crate) const OUTBOX_ID: Range<usize> = 124..139;
        pub(crate) const SYNTAX_LEN: Range<usize> = 139..140;
        pub(crate) const TITLE_LEN: Range<usize> = 140..142;
        pub(crate) const RESERVED: Range<usize> = 142..144;
        pub(crate) const BODY_SIZE: Range<usize> = 144..148;
        pub(crate) const BODY_DIGEST: Range<usize> = 148..180;
        pub(crate) const GENERATION: Range<usize> = 180..184;
        pub(crate) const ANSWER: Range<usize> = 184..248;
        pub(crate) const FIXED_SIZE: usize = 248;
    }
    pub(crate) mod end {
        use std::ops::Range;
        pub(crate) const PASTE_ID: Range<usize> = 0..12;
        pub(crate) const CAUSE: Range<usize> = 12..13;
        pub(crate) const RESERVED: Range<usize> = 13..16;
        pub(crate) const SIZE: usize = 16;
    }
    pub(crate) mod time {
        use std::ops::Range;
        pub(crate) const BOOT: Range<usize> = 0..16;
        pub(crate) const ELAPSED: Range<usize> = 16..24;
        pub(crate) const BOUND: Range<usize> = 24..32;
        pub(crate) const SIZE: usize = 32;
    }
}

const _: () = {
    assert!(create::ANSWER.end == create::FIXED_SIZE);
    assert!(create::ANSWER.end - create::ANSWER.start == SEALED_ANSWER_SIZE);
    assert!(end::RESERVED.end == end::SIZE);
    assert!(time::BOUND.end == time::SIZE);
    assert!(create::FIXED_SIZE + SYNTAX_SIZE_MAX + TITLE_SIZE_MAX <= ostraca_wal::PAYLOAD_SIZE_MAX);
    // One byte and two bytes hold the lengths.
    assert!(SYNTAX_SIZE_MAX <= u8::MAX as usize && TITLE_SIZE_MAX <= u16::MAX as usize);
};

const KIND_CREATE: u8 = 1;
const KIND_END: u8 = 2;
const KIND_TIME: u8 = 3;
const KIND_INBOX: u8 = 4;
const KIND_DELIVER: u8 = 5;
const KIND_ACK: u8 = 6;
const KIND_NACK: u8 = 7;
const KIND_EXTEND: u8 = 8;
const KIND_REPLAY: u8 = 9;
const KIND_REGISTER: u8 = 10;
/// The one version of each command so far.
const VERSION: u8 = 1;

/// The name of a record kind, for tools; kind 0 is the log's own no-op.
#[must_use]
pub const fn kind_name(kind: u8) -> Option<&'static str> {
    match kind {
        0 => Some("no-op"),
        KIND_CREATE => Some("create"),
        KIND_END => Some("end"),
        KIND_TIME => Some("time"),
        KIND_INBOX => Some("inbox"),
        KIND_DELIVER => Some("deliver"),
        KIND_ACK => Some("ack"),
        KIND_NACK => Some("nack"),
        KIND_EXTEND => Some("extend"),
        KIND_REPLAY => Some("replay"),
        KIND_REGISTER => Some("register"),
        _ => None,
    }
}

/// The three rows of a create, with all that apply needs to decide. No secret is in the clear: the
/// token is a hash, and sealed inside the answer.
#[derive(Clone, PartialEq, Eq)]
pub struct Create {
    /// Shard time of the begin.
    pub begun_at: Timestamp,
    /// Shard time when the commit entered the queue.
    pub created_at: Timestamp,
    /// When the paste becomes invisible.
    pub expires_at: Timestamp,
    /// When the key is new again.
    pub key_expires_at: Timestamp,
    /// The key, as the index knows it. Its slot is the command's.
    pub key_digest: KeyDigest,
    /// What was asked for, under the key.
    pub request_hash: RequestHash,
    /// The new paste, on the key's slot.
    pub paste_id: PasteId,
    /// SHA-256 of the delete token.
    pub token_hash: TokenHash,
    /// The message of the paste's life, on the key's slot.
    pub outbox_id: OutboxId,
    /// Bytes of the body.
    pub body_size: u32,
    /// SHA-256 of the body.
    pub body_digest: BodyDigest,
    /// The language.
    pub syntax: Option<Syntax>,
    /// The title.
    pub title: Option<Title>,
    /// The rest of the answer.
    pub answer: SealedAnswer,
}

impl fmt::Debug for Create {
    /// The idempotency row appears nowhere (k16).
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Create")
            .field("paste_id", &self.paste_id)
            .finish_non_exhaustive()
    }
}

/// The end of a paste.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct End {
    /// Which paste.
    pub paste_id: PasteId,
    /// Why.
    pub cause: EndCause,
}

/// Where the shard's clock stands.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Time {
    /// The boot-time clock's reading at the record's shard time.
    pub boot: BootTime,
    /// Readers see no later instant until the next time record is durable.
    pub bound: Timestamp,
}

/// One command of a shard's log.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Command {
    /// Create a paste.
    Create(Box<Create>),
    /// End a paste.
    End(End),
    /// Move the clock.
    Time(Time),
    /// Record a message as done.
    Inbox(Inbox),
    /// Take messages that are due.
    Deliver(Deliver),
    /// Be done with attempts.
    Ack(Ack),
    /// Fail an attempt.
    Nack(Nack),
    /// Take longer for an attempt.
    Extend(Extend),
    /// Deliver a dead letter again.
    Replay(Replay),
    /// Get ends from now on.
    Register(ConsumerName),
}

/// Why a record is no command.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum DecodeError {
    /// A kind or version that a newer program wrote.
    Newer { kind: u8, version: u8 },
    /// Not what this program writes, though its checksum holds.
    Malformed { kind: u8 },
}

impl Command {
    pub(crate) const fn kind(&self) -> u8 {
        match self {
            Self::Create(_) => KIND_CREATE,
            Self::End(_) => KIND_END,
            Self::Time(_) => KIND_TIME,
            Self::Inbox(_) => KIND_INBOX,
            Self::Deliver(_) => KIND_DELIVER,
            Self::Ack(_) => KIND_ACK,
            Self::Nack(_) => KIND_NACK,
            Self::Extend(_) => KIND_EXTEND,
            Self::Replay(_) => KIND_REPLAY,
            Self::Register(_) => KIND_REGISTER,
        }
    }

    #[allow(clippy::unused_self, reason = "versions are a matter of each command")]
    pub(crate) const fn version(&self) -> u8 {
        VERSION
    }

    pub(crate) fn slot(&self) -> Slot {
        match self {
            Self::Create(create) => create.key_digest.slot(),
            Self::End(end) => end.paste_id.slot(),
            Self::Inbox(inbox) => inbox.outbox_id.slot(),
            // About the shard, or about several slots of it.
            Self::Time(_)
            | Self::Deliver(_)
            | Self::Ack(_)
            | Self::Nack(_)
            | Self::Extend(_)
            | Self::Replay(_)
            | Self::Register(_) => Slot(0),
        }
    }

    /// The payload, in place of what `out` had.
    pub(crate) fn encode(&self, out: &mut Vec<u8>) {
        out.clear();
        match self {
            Self::Create(create) => create.encode(out),
            Self::End(end) => {
                out.resize(end::SIZE, 0);
                out[end::PASTE_ID].copy_from_slice(end.paste_id.random_part());
                out[end::CAUSE.start] = match end.cause {
                    EndCause::Deleted => 1,
                    EndCause::Expired => 2,
                };
            }
            Self::Time(time) => {
                out.resize(time::SIZE, 0);
                out[time::BOOT].copy_from_slice(&time.boot.boot.0);
                let elapsed = u64::try_from(time.boot.elapsed.as_millis()).unwrap_or(u64::MAX);
                out[time::ELAPSED].copy_from_slice(&elapsed.to_le_bytes());
                out[time::BOUND].copy_from_slice(&time.bound.0.to_le_bytes());
            }
            Self::Inbox(inbox) => inbox.encode(out),
            Self::Deliver(deliver) => deliver.encode(out),
            Self::Ack(ack) => ack.encode(out),
            Self::Nack(nack) => nack.encode(out),
            Self::Extend(extend) => extend.encode(out),
            Self::Replay(replay) => replay.encode(out),
            Self::Register(consumer) => out.extend_from_slice(consumer.as_str().as_bytes()),
        }
    }

    /// Reads a payload. `None` for the log's own no-op. Never panics, whatever the bytes.
    pub(crate) fn decode(
        kind: u8,
        version: u8,
        slot: Slot,
        payload: &[u8],
    ) -> Result<Option<Self>, DecodeError> {
        if kind == 0 {
            return Ok(None);
        }
        if kind_name(kind).is_none() || version != VERSION {
            return Err(DecodeError::Newer { kind, version });
        }
        let command = match kind {
            KIND_CREATE => Create::decode(slot, payload)
                .map(Box::new)
                .map(Self::Create),
            KIND_END => decode_end(slot, payload).map(Self::End),
            KIND_TIME => decode_time(payload).map(Self::Time),
            KIND_INBOX => Inbox::decode(slot, payload).map(Self::Inbox),
            KIND_DELIVER => Deliver::decode(payload).map(Self::Deliver),
            KIND_ACK => Ack::decode(payload).map(Self::Ack),
            KIND_NACK => Nack::decode(payload).map(Self::Nack),
            KIND_EXTEND => Extend::decode(payload).map(Self::Extend),
            KIND_REPLAY => Replay::decode(payload).map(Self::Replay),
            _ => delivery::consumer(payload).map(Self::Register),
        };
        command.map(Some).ok_or(DecodeError::Malformed { kind })
    }
}

impl Create {
    fn encode(&self, out: &mut Vec<u8>) {
        let syntax = self.syntax.as_ref().map_or("", Syntax::as_str).as_bytes();
        let title = self.title.as_ref().map_or("", Title::as_str).as_bytes();
        out.resize(create::FIXED_SIZE, 0);
        let mut put = |range: std::ops::Range<usize>, bytes: &[u8]| {
            out[range].copy_from_slice(bytes);
        };
        put(create::BEGUN_AT, &self.begun_at.0.to_le_bytes());
        put(create::CREATED_AT, &self.created_at.0.to_le_bytes());
        put(create::EXPIRES_AT, &self.expires_at.0.to_le_bytes());
        put(create::KEY_EXPIRES_AT, &self.key_expires_at.0.to_le_bytes());
        put(create::KEY_DIGEST, &self.key_digest.0);
        put(create::REQUEST_HASH, &self.request_hash.0);
        put(create::PASTE_ID, self.paste_id.random_part());
        put(create::TOKEN_HASH, &self.token_hash.0);
        put(create::OUTBOX_ID, self.outbox_id.random_part());
        // The types bound both lengths; see the assertions above.
        put(
            create::SYNTAX_LEN,
            &[u8::try_from(syntax.len()).unwrap_or(0)],
        );
        put(
            create::TITLE_LEN,
            &u16::try_from(title.len()).unwrap_or(0).to_le_bytes(),
        );
        put(create::BODY_SIZE, &self.body_size.to_le_bytes());
        put(create::BODY_DIGEST, &self.body_digest.0);
        put(create::GENERATION, &self.answer.generation.to_le_bytes());
        put(create::ANSWER, &self.answer.bytes);
        out.extend_from_slice(syntax);
        out.extend_from_slice(title);
    }

    fn decode(slot: Slot, payload: &[u8]) -> Option<Self> {
        let (fixed, options) = payload.split_at_checked(create::FIXED_SIZE)?;
        if fixed[create::RESERVED] != [0, 0] {
            return None;
        }
        let syntax_len = usize::from(fixed[create::SYNTAX_LEN.start]);
        let title_len = usize::from(u16::from_le_bytes(array(fixed, create::TITLE_LEN)));
        if options.len() != syntax_len + title_len {
            return None;
        }
        let text = |bytes| std::str::from_utf8(bytes).ok();
        let (syntax, title) = (text(&options[..syntax_len])?, text(&options[syntax_len..])?);
        let key_digest = KeyDigest(array(fixed, create::KEY_DIGEST));
        if key_digest.slot() != slot {
            return None;
        }
        Some(Self {
            begun_at: timestamp(fixed, create::BEGUN_AT),
            created_at: timestamp(fixed, create::CREATED_AT),
            expires_at: timestamp(fixed, create::EXPIRES_AT),
            key_expires_at: timestamp(fixed, create::KEY_EXPIRES_AT),
            key_digest,
            request_hash: RequestHash(array(fixed, create::REQUEST_HASH)),
            paste_id: PasteId::from_parts(slot, &fixed[create::PASTE_ID]).ok()?,
            token_hash: TokenHash(array(fixed, create::TOKEN_HASH)),
            outbox_id: OutboxId::from_parts(slot, &fixed[create::OUTBOX_ID]).ok()?,
            body_size: u32::from_le_bytes(array(fixed, create::BODY_SIZE)),
            body_digest: BodyDigest(array(fixed, create::BODY_DIGEST)),
            syntax: if syntax.is_empty() {
                None
            } else {
                Some(Syntax::parse(syntax).ok()?)
            },
            title: if title.is_empty() {
                None
            } else {
                Some(Title::parse(title).ok()?)
            },
            answer: SealedAnswer {
                generation: u32::from_le_bytes(array(fixed, create::GENERATION)),
                bytes: array(fixed, create::ANSWER),
            },
        })
    }
}

fn decode_end(slot: Slot, payload: &[u8]) -> Option<End> {
    if payload.len() != end::SIZE || payload[end::RESERVED] != [0, 0, 0] {
        return None;
    }
    let cause = match payload[end::CAUSE.start] {
        1 => EndCause::Deleted,
        2 => EndCause::Expired,
        _ => return None,
    };
    Some(End {
        paste_id: PasteId::from_parts(slot, &payload[end::PASTE_ID]).ok()?,
        cause,
    })
}

fn decode_time(payload: &[u8]) -> Option<Time> {
    if payload.len() != time::SIZE {
        return None;
    }
    let elapsed = timestamp(payload, time::ELAPSED).0;
    Some(Time {
        boot: BootTime {
            boot: BootId(array(payload, time::BOOT)),
            elapsed: std::time::Duration::from_millis(elapsed),
        },
        bound: timestamp(payload, time::BOUND),
    })
}

/// The bytes of one field. The caller has checked that they are there.
fn array<const N: usize>(bytes: &[u8], range: std::ops::Range<usize>) -> [u8; N] {
    let mut field = [0; N];
    field.copy_from_slice(&bytes[range]);
    field
}

fn timestamp(bytes: &[u8], range: std::ops::Range<usize>) -> Timestamp {
    Timestamp(u64::from_le_bytes(array(bytes, range)))
}

#[cfg(test)]
pub(crate) mod tests;
