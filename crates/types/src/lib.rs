//! The words of ostraca as types: ids, slots, keys, tokens, epochs, instants, limits.
//!
//! This crate does no I/O, asks no clock and draws no randomness; whoever mints an id passes the
//! source of random bytes in. Everything that other languages must compute alike (slot of a key,
//! text of an id, digest of a request) is frozen by the vectors in `proto/golden/`.
//!
//! Invariants:
//! - Every value of a type here is valid: parsing is the only way in for text from outside.
//! - Secrets ([`IdempotencyKey`], [`DeleteToken`]) print a fixed word under `Debug`, have no
//!   `Display`, and are wiped when dropped.
//! - There is one type of instant, [`Timestamp`], in milliseconds; a length of time is a
//!   [`std::time::Duration`].

mod base62;
mod consumer;
pub mod contract;
mod error;
mod id;
mod key;
mod log_position;
mod paste;
mod reason;
mod request;
mod time;
mod token;

pub use consumer::{ConsumerName, ConsumerNameError};
pub use error::ErrorKind;
pub use id::{
    ClusterId, IdError, OUTBOX_ID_TEXT_LEN, OutboxId, PASTE_ID_LEN, PasteId, ShardId, Slot, StoreId,
};
pub use key::{IdempotencyKey, KeyDigest, KeyError};
pub use log_position::{Epoch, Sequence};
pub use paste::{BodyDigest, Lifetime, LifetimeError, Syntax, SyntaxError, Title, TitleError};
pub use reason::Reason;
pub use request::{REQUEST_DIGEST_VERSION, RequestDigest, RequestHash};
pub use time::Timestamp;
pub use token::{DeleteToken, TokenError, TokenHash};
