//! Paste bodies: objects under the keys that the shards mint, in whatever store the `object_store`
//! library speaks to. Now that is a directory on this machine.
//!
//! - A PUT is create-only: an object is written once under its name and never replaced. On return
//!   bytes and name survive a power cut, so the commit that follows may rely on them (k07).
//! - Every call has a deadline, and nothing here is retried: the caller's caller has the one retry
//!   policy.
//! - What a store still works on after its deadline holds its permit until it is done, so a store
//!   that hangs costs a bounded amount of memory.
//! - A store is made with its cluster and never by opening it or writing to it: one that was moved
//!   away or unmounted is `Down`, not empty.
//! - A missing object is told apart from a store that does not answer, also when the directory is
//!   gone (an unmounted volume is not a deletion of everything).
//! - Errors name object keys and never carry a body's bytes.

mod bodies;
mod error;
mod local;

pub use bodies::{
    Bodies, DELETE_DEADLINE, Deleted, GET_DEADLINE, IN_FLIGHT_MAX, LIST_STEP_DEADLINE, Object,
    Objects,
};
pub use error::{Action, Error, Kind};
