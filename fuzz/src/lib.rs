//! What the fuzz targets share.
//!
//! `fuzz/run SECONDS [TARGET...]` builds and runs them; with `cargo fuzz` installed, from the
//! repository's root, `RUSTC_BOOTSTRAP=1 cargo fuzz run TARGET FILE` runs one on one input.
//!
//! | target | its input | what must hold |
//! | --- | --- | --- |
//! | `batch` | a place, what to put right, bytes | decoders return; what they accept encodes to the same bytes |
//! | `segment_header` | the same, and the epoch page | the same |
//! | `recovery` | a [`script`] that makes files | recovery returns, twice the same; a take-over keeps what was read |
//! | `damage` | changes of a valid log | an error, or a prefix of its records; under the epoch page an error or all |
//!
//! Inputs are numbers in a fixed order ([`input`]) and not derived ones: seeds are written in the
//! same order. `cargo run --manifest-path fuzz/Cargo.toml --example seeds` makes them anew, out of
//! logs that the log's own code wrote.

pub mod format;
pub mod input;
pub mod sample;
pub mod script;
