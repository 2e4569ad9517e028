//! What tests that start processes share: [`Up`] runs `ostraca up`, [`http`] is a client that
//! controls every byte, [`edge`] is a cache, [`faults`] has the build with scripted clocks and
//! disks, [`shards`] runs one shard's processes without `up`.
//!
//! - Nothing waits for a fixed time in the hope that it is enough: [`poll`] has a deadline.
//! - Every process is ended by its id, also when a test panics, and when the test process is
//!   killed.
//! - Nothing here knows the crates inside: tests see what a user sees.

#![expect(
    clippy::disallowed_methods,
    clippy::print_stderr,
    reason = "tests have deadlines, files and a terminal of their own"
)]
#![allow(
    clippy::missing_panics_doc,
    reason = "a helper of tests fails by panicking"
)]

pub mod edge;
pub mod faults;
pub mod http;
pub mod pastes;
pub mod shards;
mod spawner;
mod up;

use std::time::{Duration, Instant};

use ostraca_io::{Entropy as _, SystemEntropy};
use ostraca_types::IdempotencyKey;

pub use spawner::Ended;
pub use up::{Counts, Options, Up, command, run, run_while, signal, stop};

/// How long anything may take that should take milliseconds. Two busy cores are slow at times.
pub const DEADLINE: Duration = Duration::from_secs(120);

/// Asks until there is an answer. Panics with `what` if there is none by the deadline.
pub fn poll<T>(what: &str, mut ask: impl FnMut() -> Option<T>) -> T {
    let started = Instant::now();
    loop {
        if let Some(answer) = ask() {
            return answer;
        }
        assert!(
            started.elapsed() < DEADLINE,
            "not within {DEADLINE:?}: {what}"
        );
        std::thread::sleep(Duration::from_millis(10));
    }
}

/// A new idempotency key, as text.
#[must_use]
pub fn key() -> String {
    IdempotencyKey::mint(|bytes| SystemEntropy.fill(bytes)).expose_text()
}

/// Bytes that a seed replays.
#[must_use]
pub fn bytes(seed: u64, size: usize) -> Vec<u8> {
    let mut bytes = vec![0; size];
    ostraca_io::SeededEntropy::new(seed).fill(&mut bytes);
    bytes
}
