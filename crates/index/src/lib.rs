//! The rows of a shard and its unique-key index.
//!
//! One thread, the shard's, changes rows: in log order, and only by what is durable already.
//! Any number of threads read at the same time. A reader sees each row whole; rows of one record
//! appear one after the other, so whoever depends on two of them asks again under the shard's
//! thread, which is what apply does.
//!
//! So far every row is in the [`Index`]'s memory and is rebuilt from the log when the shard opens.
//! Its methods are shaped so that sorted files can stand behind them: single keys in, owned rows
//! out, no iteration on the path of a create or a read.

mod outbox;
mod rows;
mod table;

pub use outbox::{AttemptId, DeadLetter, Delivery, OutboxCounts, Settled};
pub use rows::{
    EndCause, IdempotencyRow, InboxRow, PasteRow, ReadyRow, Rows, SEALED_ANSWER_SIZE, SealedAnswer,
};
pub use table::{Counts, Index};
