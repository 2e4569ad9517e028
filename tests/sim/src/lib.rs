//! Shards, clients, workers and a network in one thread, under faults that a seed replays.
//!
//! `docs/simulation.md` says what is real and what is simulated, and how to run it. What is found is said
//! by the checker, of which the simulator writes the ledger.
//!
//! | module | holds |
//! | --- | --- |
//! | `kernel` | time, tasks, processes, chance: one order of events |
//! | `storage` | a disk and a page whose every call is a wait |
//! | `net` | calls that are lost, late, twice and out of order |
//! | `shard`, `service` | the processes of a shard, and what stands in front of it |
//! | `client`, `worker`, `operator` | who asks, who works on ends, and who replays what was given up |
//! | `caller` | calls that are written down |
//! | `faults` | what goes wrong |
//! | `world`, `run` | all of it together, from its start to its verdict |

mod caller;
mod client;
mod faults;
mod kernel;
mod net;
mod operator;
mod run;
mod service;
mod shard;
mod storage;
mod worker;
mod world;

pub use faults::kinds;
pub use run::{Options, Report, run, shrink};
