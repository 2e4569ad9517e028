//! A state-space model of the log, the fence and the checkpoint files.
//!
//! It is small enough to visit every state: every order in which the steps of three processes can
//! come, with every power loss, failing sync and unreadable cell between them. `docs/fence.md`
//! tells what it shows, and `tests/model.rs` is what runs it.
//!
//! # Invariants
//!
//! In every state, and so also after a power loss in every state:
//!
//! - Recovery reads the files without calling anything damaged, and misses no file (d02).
//! - What was answered is a prefix of what recovery yields: the same records in the same order
//!   (d01, f03). Epochs never decrease along it, or recovery would call it damaged.
//!
//! At every step:
//!
//! - Who answers is the last that passed the fence: nothing is answered once a higher epoch, or
//!   another process under the same epoch, has answered or served (f01, f02). A no-op that passes
//!   the fence counts as an answer.
//! - A read is released only with all that was answered before, and only while no one has answered
//!   under a higher epoch (f04). What a read showed counts as answered (f05).
//! - A candidate whose epoch is still in the cell never reports damage (d02).
//!
//! # What is modelled
//!
//! Segments with names, headers and batches; the cell and the durable hint beside it; runs and
//! manifests. Everything that is written is in the cache at once, where all processes see it, and on
//! the disk after a sync. A power loss keeps or loses each header, batch, file, name, unlink,
//! trim and raise that was not synced, each on its own, and any value that the hint had since it was
//! synced. A failed sync leaves the cache as it is and the disk as it was, and later syncs do not
//! write it. After a power loss the processes that had not started go on.
//!
//! # What is left out, and why that loses nothing
//!
//! - **SIGKILL.** It leaves the cache, and no process waits for another. So a killed process is one
//!   that takes no further step, and the search contains those. One scope kills as a step of its
//!   own all the same.
//! - **Torn batches and headers.** Half a batch is an invalid one, and recovery treats an invalid
//!   batch like none. The two copies of a header are written together and are one here.
//! - **Bytes.** A chain value stands for the history, and two histories with one value are one. It
//!   is a 32-bit hash of some ten records; a collision would hide a violation, not make one.
//! - **Reading in pieces.** Listing is a step, and reading what was listed is another. One scope
//!   looks at the segments one at a time, from the highest name down, until one counts; the rest is
//!   then read at one go. After the raise each older process writes to its own file only, at most
//!   one batch after another's sync, so that a file read a little later is a state that could have
//!   been met anyway. Unlinks in between are modelled: a file may be missing that was listed.
//! - **Temporary files.** They are never read, and a name means a file of full size. Preparing a
//!   segment is the step that gives it its name, and the step that syncs the directory.
//! - **Marks.** They prove the last batch and hold no record. Without them the last batch is never
//!   proven, which is the harder case for a take-over. What a mark convicts is not shown here.
//! - **Memory order.** Steps are sequentially consistent: the full fences are taken for granted.
//! - **Bit rot.** Nothing is damaged here, so that whatever is called damaged is a mistake.
//! - **The lease.** Any process may take over at any time.
//! - **A process that opens again** is another process; each leads at most once.
//! - **Merges.** A manifest needs one run. A merge writes and unlinks files as a checkpoint does.
//!
//! # Modules
//!
//! [`state`] and [`process`]: what a state is. [`protocol`]: the steps, of which `takeover` and
//! `leader` hold a process' own. [`power`]: what a power loss leaves. [`recovery`]: what the files
//! say. [`variants`]: how the protocol can be broken, and the scope of a search. [`check`]: the
//! search.

pub mod check;
mod leader;
pub mod power;
pub mod process;
pub mod protocol;
pub mod recovery;
pub mod state;
mod takeover;
pub mod variants;
