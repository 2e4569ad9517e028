//! The seam to the machine: [`Disk`], [`Clock`] and [`Entropy`], real and simulated.
//!
//! Nothing else in the project opens a file, asks the time or draws randomness; `clippy.toml`
//! bans the standard library's ways around this crate. All `unsafe` code of the project may live
//! here and nowhere else: it is in `page`, around one mapped page.
//!
//! - [`disk`]: what the engine asks of a directory of files; [`RealDisk`] and [`SimDisk`] keep the
//!   same promises, which `disk::conformance` tests on both.
//! - [`clock`]: wall clock and boot-time clock.
//! - [`entropy`]: random bytes.
//! - [`threads`]: what runs beside a shard's thread.
//! - [`files`]: small whole files outside the log (identity, routing, secrets), replaced
//!   atomically, and the lock on a directory.

#![expect(
    clippy::disallowed_methods,
    reason = "this crate is the seam that the ban protects"
)]

pub mod clock;
mod direct;
pub mod disk;
pub mod entropy;
pub mod files;
mod page;
pub mod process;
mod real;
mod sim;
mod storage;
pub mod threads;

pub use clock::{BootId, BootTime, Clock, ManualClock, SystemClock};
pub use disk::{Disk, DiskFile, FileName, PAGE_SIZE, PAGE_WORDS, Page};
pub use entropy::{Entropy, SeededEntropy, SystemEntropy};
pub use page::RealPage;
pub use real::{RealDisk, RealFile};
pub use sim::{SimDisk, SimFile, SimPage, Unsynced};
pub use storage::{RealStorage, Storage};
pub use threads::{Spawn, Threads};
