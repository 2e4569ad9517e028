//! What the measurements share.

pub mod calls;
pub mod http2;
pub mod load;
pub mod paced;
pub mod shard_process;
pub mod up_process;

use std::time::Duration;

use ostraca_engine::{Create, SEALED_ANSWER_SIZE, SealedAnswer};
use ostraca_io::{Entropy as _, SystemEntropy};
use ostraca_types::{BodyDigest, KeyDigest, OutboxId, PasteId, RequestHash, Timestamp, TokenHash};

/// What ends a measurement.
pub type Failure = Box<dyn std::error::Error + Send + Sync>;

/// The middle one of some figures; 0 without any.
#[must_use]
pub fn median(values: impl IntoIterator<Item = f64>) -> f64 {
    let mut values: Vec<f64> = values.into_iter().collect();
    values.sort_by(f64::total_cmp);
    values.get(values.len() / 2).copied().unwrap_or_default()
}

/// A create with a key and an id of its own, as the engine takes it.
#[must_use]
pub fn create(now: Timestamp, lifetime: Duration) -> Box<Create> {
    let random = |bytes: &mut [u8]| SystemEntropy.fill(bytes);
    let mut digest = KeyDigest([0; 16]);
    random(&mut digest.0);
    let slot = digest.slot();
    Box::new(Create {
        begun_at: now,
        created_at: now,
        expires_at: now.plus(lifetime),
        key_expires_at: now.plus(Duration::from_secs(90_000)),
        key_digest: digest,
        request_hash: RequestHash([1; 32]),
        paste_id: PasteId::mint(slot, random),
        token_hash: TokenHash([2; 32]),
        outbox_id: OutboxId::mint(slot, random),
        body_size: 1000,
        body_digest: BodyDigest([3; 32]),
        syntax: None,
        title: None,
        answer: SealedAnswer {
            generation: 1,
            bytes: [4; SEALED_ANSWER_SIZE],
        },
    })
}
