//! The constants of the contract (docs/contract.md), in one place, each with its reason, and the
//! relations between them, checked when this crate is compiled.

use std::time::Duration;

const fn minutes(n: u64) -> Duration {
    Duration::from_secs(n * 60)
}

const fn hours(n: u64) -> Duration {
    minutes(n * 60)
}

const fn days(n: u64) -> Duration {
    hours(n * 24)
}

/// Parts of the key space. Fixed for the life of a cluster: ids and keys name their slot.
pub const SLOTS: usize = 256;

/// A paste's lifetime when the client names none.
pub const LIFETIME_DEFAULT: Duration = days(30);
/// Shorter lifetimes would end before a person has opened the link.
pub const LIFETIME_MIN: Duration = minutes(1);
/// Longer ones would make disk a debt without an end.
pub const LIFETIME_MAX: Duration = days(365);

/// From a create's begin to its commit. A commit later than this is refused (p03), so that an
/// object which the reaper may already have removed never gets a row.
pub const IN_FLIGHT_MAX: Duration = hours(1);
/// A PUT of a body is given up after this.
pub const PUT_DEADLINE: Duration = Duration::from_secs(10);
/// Clocks of shard, frontend and object store may differ by this much.
pub const CLOCK_SKEW_MAX: Duration = minutes(10);

/// A client may retry a create with the same key for this long.
pub const RETRY_WINDOW: Duration = hours(24);
/// How long the answer to a key is kept (k13). Shorter than the window, a late retry would make
/// a second paste.
pub const IDEMPOTENCY_RETENTION: Duration = hours(25);

/// How long the outbox delivers and replays a message, counted from the paste's end (o05).
pub const OUTBOX_RETENTION: Duration = days(7);
/// How long an inbox row suppresses a redelivery (i06).
pub const INBOX_RETENTION: Duration = days(8);

/// How long an attempt at a message may take before it is delivered again, unless its receiver asks
/// otherwise. Deleting an object and purging an edge take less than a second; this leaves room for
/// both to be slow.
pub const VISIBILITY_DEFAULT: Duration = Duration::from_secs(30);
/// The longest that a receiver can ask for.
pub const VISIBILITY_MAX: Duration = hours(12);
/// The first backoff after a failed attempt; each later one is twice as long, with full jitter.
pub const BACKOFF_MIN: Duration = Duration::from_secs(1);
/// The longest backoff: after an outage everything is tried again within this.
pub const BACKOFF_MAX: Duration = minutes(5);
/// A message is given up only after this many attempts ...
pub const ATTEMPTS_MIN: u32 = 12;
/// ... and this long since the first of them, so that an outage of hours gives nothing up (o04).
pub const ATTEMPTS_TIME_MIN: Duration = hours(6);

/// The reaper leaves younger objects alone: a create in flight may still give them a row.
pub const ORPHAN_AGE_MIN: Duration = hours(24);

/// An edge may serve a paste this long after its end (r06).
pub const EDGE_MAX_AGE: Duration = Duration::from_secs(60);

/// Longest name of a consumer, in bytes.
pub const CONSUMER_SIZE_MAX: usize = 32;
/// Consumers of a shard. A row knows by one bit each who has finished it.
pub const CONSUMERS_MAX: usize = 64;
/// Longest reason of a failed attempt, in bytes; it is for a person.
pub const FAILURE_SIZE_MAX: usize = 256;

/// Longest title, in bytes of UTF-8.
pub const TITLE_SIZE_MAX: usize = 256;
/// Longest syntax name, in bytes.
pub const SYNTAX_SIZE_MAX: usize = 32;
/// Body limit unless configured, in decoded bytes.
pub const BODY_SIZE_DEFAULT: usize = 1 << 20;
/// The most that the body limit can be configured to: bodies are held in memory while they are
/// hashed and PUT.
pub const BODY_SIZE_MAX: usize = 10 << 20;

const _: () = {
    assert!(SLOTS == u8::MAX as usize + 1);
    assert!(LIFETIME_MIN.as_secs() <= LIFETIME_DEFAULT.as_secs());
    assert!(LIFETIME_DEFAULT.as_secs() <= LIFETIME_MAX.as_secs());
    assert!(
        IN_FLIGHT_MAX.as_secs() + PUT_DEADLINE.as_secs() + CLOCK_SKEW_MAX.as_secs()
            < ORPHAN_AGE_MIN.as_secs()
    );
    assert!(IN_FLIGHT_MAX.as_secs() < IDEMPOTENCY_RETENTION.as_secs());
    assert!(IDEMPOTENCY_RETENTION.as_secs() > RETRY_WINDOW.as_secs());
    assert!(INBOX_RETENTION.as_secs() > OUTBOX_RETENTION.as_secs());
    assert!(ATTEMPTS_TIME_MIN.as_secs() < OUTBOX_RETENTION.as_secs());
    assert!(VISIBILITY_MAX.as_secs() < OUTBOX_RETENTION.as_secs());
    assert!(CONSUMERS_MAX <= u64::BITS as usize);
    assert!(BODY_SIZE_DEFAULT <= BODY_SIZE_MAX);
};
