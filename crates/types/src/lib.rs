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
pub mod contract;
mod error;
mod id;
mod key;
mod log_position;
mod paste;
mod request;
mod time;
mod token;

pub use error::ErrorKind;
pub use id::{ClusterId, IdError, OutboxId, PasteId, ShardId, Slot, StoreId, OUTBOX_ID_TEXT_LEN, PASTE_ID_LEN};
pub use key::{IdempotencyKey, KeyDigest, KeyError};
pub use log_position::{Epoch, Sequence};
pub use paste::{BodyDigest, Lifetime, LifetimeError, Syntax, SyntaxError, Title, TitleError};
pub use request::{RequestDigest, RequestHash, REQUEST_DIGEST_VERSION};
pub use time::Timestamp;
pub use token::{DeleteToken, TokenError, TokenHash};
