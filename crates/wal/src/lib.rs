#![doc = include_str!("../FORMAT.md")]
//!
//! # The crate
//!
//! What it promises: a record that [`Log::sync`] returned for survives a killed process and a
//! power cut (d01); a torn append is cut and reported, anything else that is wrong is
//! [`Error::Damaged`] and names file and offset (d02); a failed write or sync stops the log, and
//! recovery reads the disk and makes the tail durable again (d03); no byte is believed before its
//! checksum passed (d05).
//!
//! Invariants:
//! - A batch is written only after the batch before it was synced.
//! - A file changes only under the epoch in its name, and only by its maker; reading changes
//!   nothing.
//! - Appends change no size, no allocation and no directory.
//!
//! Modules: `frame` (batches and records as bytes), `batch` (one being gathered), `segment` (files,
//! headers, preparation), `place` (what checksums are seeded with), `reader` and `recovery`
//! (reading back), `fence` (who leads), `log` (appending), `clean_up` (what is tidied after a
//! take-over), `verify` (a look without opening), `error`.

mod batch;
mod clean_up;
mod error;
mod fence;
mod frame;
#[cfg(fuzzing)]
pub mod fuzzing;
mod log;
mod place;
mod reader;
mod recovery;
mod segment;
mod verify;

#[cfg(test)]
mod tests;

pub use batch::{Batch, BatchFull};
pub use clean_up::CleanUp;
pub use error::{Action, Error, Fault};
pub use fence::{Claim, EPOCH_PAGE, Heartbeat, PageReport, new_epoch_page, read_epoch_page};
pub use frame::{
    BATCH_ALIGNMENT, BATCH_HEADER_SIZE, BATCH_SIZE_MAX, KIND_MAX, KIND_NO_OP, PAYLOAD_SIZE_MAX,
    RECORD_HEADER_SIZE, Record,
};
pub use log::{Log, Options, RESERVE_SIZE, Room};
pub use place::{Identity, Owner};
pub use recovery::{CutPlan, Recovered, Recovery, Start, plan_cut};
pub use segment::{
    BATCHES_START, FORMAT_VERSION, Preparation, Prepared, SEGMENT_HEADER_SIZE, SEGMENT_SIZE_MAX,
    SEGMENT_SIZE_MIN, SegmentId,
};
pub use verify::{Cut, Report, SegmentReport, verify};
