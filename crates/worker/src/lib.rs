//! What happens after a paste's end: its object is deleted and the edge purged, once each as far as
//! anybody can tell, whatever is killed in between.
//!
//! What it promises:
//! - The order of contract i02: look in the inbox (there: ack, no effect); delete the object
//!   (missing is success); purge the edge (purged already is success); record; and only when that is
//!   durable, ack. A stop between any two of them is made good by the redelivery (i03).
//! - A failing effect records nothing (i04) and is given back with a reason that holds no secret.
//! - Each step has a deadline, attempts in flight are bounded, and a message is asked for only when
//!   there is room for it.
//! - While the object store is down no message is asked for, so an outage uses up no attempts.
//! - A stop finishes what is in flight, within [`DRAIN_MAX`]; the rest is delivered again.
//!
//! | module | holds |
//! | --- | --- |
//! | `ports` | what it needs: shards, objects, an edge; the real ones |
//! | `purge` | the five steps of one attempt |
//! | `attempts` | single attempts, for whoever has loops of their own |
//! | `worker` | receiving, running attempts, giving back, draining |
//! | `gate` | whether the object store is up |
//! | `edge` | edges: none, and HTTP PURGE |
//! | `backoff`, `metrics`, `serve` | delays; counters, and the address that tells them |

mod attempts;
mod backoff;
mod config;
mod edge;
mod gate;
mod metrics;
mod ports;
mod purge;
mod serve;
mod worker;

pub use attempts::Attempts;
pub use config::{CONCURRENCY_DEFAULT, CONCURRENCY_MAX, Config, ConfigError};
pub use edge::{EdgeConfig, EdgeConfigError, HttpEdge, PurgeError, PurgeFault};
pub use ports::{Edge, Fault, Inbox, Objects, Outbox, Ports};
pub use purge::{Failure, Finished, OBJECT_DEADLINE, PURGE_DEADLINE};
pub use serve::Observer;
pub use worker::{DRAIN_MAX, Worker};

#[cfg(test)]
mod tests;
