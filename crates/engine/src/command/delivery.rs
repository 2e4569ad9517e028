//! The commands of delivery: outbox and inbox.

use std::time::Duration;

use ostraca_index::AttemptId;
use ostraca_types::contract::{CONSUMER_SIZE_MAX, FAILURE_SIZE_MAX};
use ostraca_types::{ConsumerName, Epoch, OutboxId, Slot, Timestamp};

use super::array;

/// Attempts that one ack can name, and messages that one deliver can take.
pub(crate) const ATTEMPTS_MAX: usize = 100;

const ATTEMPT_SIZE: usize = 28;
const NO_DELAY: u32 = u32::MAX;

const _: () = {
    let ack = 1 + ATTEMPTS_MAX * ATTEMPT_SIZE + CONSUMER_SIZE_MAX;
    let nack = 42 + FAILURE_SIZE_MAX + CONSUMER_SIZE_MAX;
    assert!(ack <= ostraca_wal::PAYLOAD_SIZE_MAX && nack <= ostraca_wal::PAYLOAD_SIZE_MAX);
    assert!(ATTEMPTS_MAX <= u8::MAX as usize);
};

/// A consumer has finished a message.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Inbox {
    /// Who.
    pub consumer: ConsumerName,
    /// What.
    pub outbox_id: OutboxId,
    /// Until when that is recorded.
    pub expires_at: Timestamp,
}

/// A consumer takes messages that are due.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Deliver {
    /// Who.
    pub consumer: ConsumerName,
    /// The most messages; 1 to 100.
    pub max: u16,
    /// How long the attempts may take.
    pub visibility: Duration,
    /// Random.
    pub jitter: u64,
}

/// A consumer is done with attempts.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Ack {
    /// Who.
    pub consumer: ConsumerName,
    /// Which; 1 to 100.
    pub attempts: Vec<AttemptId>,
}

/// An attempt failed.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Nack {
    /// Whose.
    pub consumer: ConsumerName,
    /// Which.
    pub attempt: AttemptId,
    /// When it is due again; `None` for a backoff.
    pub delay: Option<Duration>,
    /// For a person; at most 256 bytes.
    pub reason: Box<str>,
    /// Random.
    pub jitter: u64,
}

/// An attempt takes longer.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Extend {
    /// Whose.
    pub consumer: ConsumerName,
    /// Which.
    pub attempt: AttemptId,
    /// From now.
    pub visibility: Duration,
}

/// A dead letter is delivered again.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Replay {
    /// Whose.
    pub consumer: ConsumerName,
    /// Which.
    pub outbox_id: OutboxId,
}

pub(super) fn consumer(bytes: &[u8]) -> Option<ConsumerName> {
    ConsumerName::parse(std::str::from_utf8(bytes).ok()?).ok()
}

fn millis(duration: Duration) -> [u8; 4] {
    // The API bounds every one to hours.
    u32::try_from(duration.as_millis())
        .unwrap_or(NO_DELAY - 1)
        .to_le_bytes()
}

fn duration(bytes: &[u8], at: usize) -> Duration {
    Duration::from_millis(u32::from_le_bytes(array(bytes, at..at + 4)).into())
}

fn number(bytes: &[u8], at: usize) -> u64 {
    u64::from_le_bytes(array(bytes, at..at + 8))
}

fn put_outbox_id(out: &mut Vec<u8>, id: &OutboxId) {
    out.push(id.slot().0);
    out.extend_from_slice(id.random_part());
}

fn outbox_id(bytes: &[u8]) -> Option<OutboxId> {
    OutboxId::from_parts(Slot(bytes[0]), &bytes[1..16]).ok()
}

fn put_attempt(out: &mut Vec<u8>, id: &AttemptId) {
    put_outbox_id(out, &id.outbox_id);
    out.extend_from_slice(&id.epoch.0.to_le_bytes());
    out.extend_from_slice(&id.attempt.to_le_bytes());
}

fn attempt(bytes: &[u8]) -> Option<AttemptId> {
    Some(AttemptId {
        outbox_id: outbox_id(bytes)?,
        epoch: Epoch(number(bytes, 16)),
        attempt: u32::from_le_bytes(array(bytes, 24..28)),
    })
}

impl Inbox {
    pub(super) fn encode(&self, out: &mut Vec<u8>) {
        out.extend_from_slice(&self.expires_at.0.to_le_bytes());
        out.extend_from_slice(self.outbox_id.random_part());
        out.extend_from_slice(self.consumer.as_str().as_bytes());
    }

    pub(super) fn decode(slot: Slot, payload: &[u8]) -> Option<Self> {
        let (fixed, name) = payload.split_at_checked(23)?;
        Some(Self {
            consumer: consumer(name)?,
            outbox_id: OutboxId::from_parts(slot, &fixed[8..23]).ok()?,
            expires_at: Timestamp(number(fixed, 0)),
        })
    }
}

impl Deliver {
    pub(super) fn encode(&self, out: &mut Vec<u8>) {
        out.extend_from_slice(&millis(self.visibility));
        out.extend_from_slice(&self.max.to_le_bytes());
        out.extend_from_slice(&[0; 2]);
        out.extend_from_slice(&self.jitter.to_le_bytes());
        out.extend_from_slice(self.consumer.as_str().as_bytes());
    }

    pub(super) fn decode(payload: &[u8]) -> Option<Self> {
        let (fixed, name) = payload.split_at_checked(16)?;
        let max = u16::from_le_bytes(array(fixed, 4..6));
        if fixed[6..8] != [0, 0] || max == 0 || usize::from(max) > ATTEMPTS_MAX {
            return None;
        }
        Some(Self {
            consumer: consumer(name)?,
            max,
            visibility: duration(fixed, 0),
            jitter: number(fixed, 8),
        })
    }
}

impl Ack {
    pub(super) fn encode(&self, out: &mut Vec<u8>) {
        out.push(u8::try_from(self.attempts.len()).unwrap_or(0));
        self.attempts.iter().for_each(|id| put_attempt(out, id));
        out.extend_from_slice(self.consumer.as_str().as_bytes());
    }

    pub(super) fn decode(payload: &[u8]) -> Option<Self> {
        let (&count, rest) = payload.split_first()?;
        let count = usize::from(count);
        if count == 0 || count > ATTEMPTS_MAX {
            return None;
        }
        let (attempts, name) = rest.split_at_checked(count * ATTEMPT_SIZE)?;
        let attempts = attempts.chunks_exact(ATTEMPT_SIZE).map(attempt);
        Some(Self {
            attempts: attempts.collect::<Option<_>>()?,
            consumer: consumer(name)?,
        })
    }
}

impl Nack {
    pub(super) fn encode(&self, out: &mut Vec<u8>) {
        put_attempt(out, &self.attempt);
        out.extend_from_slice(&self.delay.map_or(NO_DELAY.to_le_bytes(), millis));
        out.extend_from_slice(&self.jitter.to_le_bytes());
        let len = u16::try_from(self.reason.len()).unwrap_or(0);
        out.extend_from_slice(&len.to_le_bytes());
        out.extend_from_slice(self.reason.as_bytes());
        out.extend_from_slice(self.consumer.as_str().as_bytes());
    }

    pub(super) fn decode(payload: &[u8]) -> Option<Self> {
        let (fixed, rest) = payload.split_at_checked(42)?;
        let reason_len = usize::from(u16::from_le_bytes(array(fixed, 40..42)));
        if reason_len > FAILURE_SIZE_MAX {
            return None;
        }
        let (reason, name) = rest.split_at_checked(reason_len)?;
        let delay = u32::from_le_bytes(array(fixed, 28..32));
        Some(Self {
            attempt: attempt(fixed)?,
            delay: (delay != NO_DELAY).then(|| Duration::from_millis(delay.into())),
            jitter: number(fixed, 32),
            reason: std::str::from_utf8(reason).ok()?.into(),
            consumer: consumer(name)?,
        })
    }
}

impl Extend {
    pub(super) fn encode(&self, out: &mut Vec<u8>) {
        put_attempt(out, &self.attempt);
        out.extend_from_slice(&millis(self.visibility));
        out.extend_from_slice(self.consumer.as_str().as_bytes());
    }

    pub(super) fn decode(payload: &[u8]) -> Option<Self> {
        let (fixed, name) = payload.split_at_checked(32)?;
        Some(Self {
            attempt: attempt(fixed)?,
            visibility: duration(fixed, 28),
            consumer: consumer(name)?,
        })
    }
}

impl Replay {
    pub(super) fn encode(&self, out: &mut Vec<u8>) {
        put_outbox_id(out, &self.outbox_id);
        out.extend_from_slice(self.consumer.as_str().as_bytes());
    }

    pub(super) fn decode(payload: &[u8]) -> Option<Self> {
        let (fixed, name) = payload.split_at_checked(16)?;
        Some(Self {
            outbox_id: outbox_id(fixed)?,
            consumer: consumer(name)?,
        })
    }
}
