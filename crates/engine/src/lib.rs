//! A shard: one log, one set of rows, one thread that changes them.
//!
//! A command goes through four steps (see the project's DESIGN.md): it is **proposed** into a
//! bounded queue, where nothing is decided; its batch is written and **synced**; it is **applied**
//! in log order by a pure function, which decides; and then it is **answered**. While one batch
//! syncs the next one gathers, so there is group commit without timers.
//!
//! Invariants:
//! - Nothing is answered before what it depends on is durable, refusals included (f05).
//! - Apply reads rows and record and nothing else, so the same log gives the same rows.
//! - Reads never queue: they see applied rows, which are durable.
//! - The first failed write or sync stops the shard (d03). Whoever was in flight is told that the
//!   outcome is unknown.
//!
//! This crate is synchronous and sees no runtime. Disk and clock come through `ostraca-io`.

mod apply;
mod command;
mod core;
mod error;
mod job;
mod metrics;
mod queue;
mod shard;
mod store;
mod time;

pub use apply::Outcome;
pub use command::{Ack, Command, Create, Deliver, End, Extend, Inbox, Nack, Replay, kind_name};
pub use error::{Error, OpenError};
pub use metrics::{BATCH_BUCKETS, BatchSizes, OutcomeCounts};
pub use ostraca_index::{
    AttemptId, Counts, DeadLetter, Delivery, EndCause, IdempotencyRow, InboxRow, OutboxCounts,
    PasteRow, ReadyRow, Rows, SEALED_ANSWER_SIZE, SealedAnswer, Settled,
};
pub use ostraca_wal::{EPOCH_PAGE, Heartbeat, Identity, new_epoch_page};
pub use shard::{Answer, OpenReport, Options, Reply, Rounds, Shard, ShardThread, Status, Trouble};
pub use store::{StoreError, StoreMeta};

/// The formats of what the engine writes, as they stand in `FORMAT.md`.
#[doc = include_str!("../FORMAT.md")]
pub mod format {}
