//! What a shard counts, for whoever shows it.

use std::sync::atomic::{AtomicU64, Ordering};

use crate::apply::Outcome;
use crate::command::Command;

/// Upper bounds of the sizes of batches, in commands.
pub const BATCH_BUCKETS: [u64; 12] = [1, 2, 4, 8, 16, 32, 64, 128, 256, 512, 1024, 2048];

/// A histogram of batch sizes.
#[derive(Debug, Default)]
pub(crate) struct Batches {
    buckets: [AtomicU64; BATCH_BUCKETS.len()],
    commands: AtomicU64,
}

impl Batches {
    pub(crate) fn record(&self, commands: usize) {
        let commands = commands as u64;
        let at = BATCH_BUCKETS.partition_point(|&bound| bound < commands);
        self.buckets[at.min(BATCH_BUCKETS.len() - 1)].fetch_add(1, Ordering::Relaxed);
        self.commands.fetch_add(commands, Ordering::Relaxed);
    }

    pub(crate) fn snapshot(&self) -> BatchSizes {
        BatchSizes {
            buckets: std::array::from_fn(|at| self.buckets[at].load(Ordering::Relaxed)),
            commands: self.commands.load(Ordering::Relaxed),
        }
    }
}

/// Batches by their size since the shard was opened.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct BatchSizes {
    /// Batches up to each bound of [`BATCH_BUCKETS`] and above the one before.
    pub buckets: [u64; BATCH_BUCKETS.len()],
    /// Commands in all of them.
    pub commands: u64,
}

macro_rules! outcomes {
    ($($(#[$doc:meta])* $field:ident = $name:literal,)*) => {
        /// Decided commands by their outcome since the shard was opened.
        #[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
        pub struct OutcomeCounts {
            $($(#[$doc])* pub $field: u64,)*
        }

        impl OutcomeCounts {
            /// All of them by name, as a label of a metric.
            #[must_use]
            pub fn all(&self) -> Vec<(&'static str, u64)> {
                vec![$(($name, self.$field)),*]
            }
        }

        #[derive(Debug, Default)]
        pub(crate) struct Outcomes {
            $($field: AtomicU64,)*
        }

        impl Outcomes {
            pub(crate) fn snapshot(&self) -> OutcomeCounts {
                OutcomeCounts { $($field: self.$field.load(Ordering::Relaxed),)* }
            }
        }
    };
}

outcomes! {
    /// Creates that made a paste.
    created = "created",
    /// Creates that met their own key.
    replayed = "replayed",
    /// Creates that met a key of another request.
    conflicts = "conflict",
    /// Creates whose id was taken.
    ids_taken = "id_taken",
    /// Creates in flight for too long.
    too_late = "too_late",
    /// Ends by a token.
    deleted = "deleted",
    /// Ends by expiry.
    expired = "expired",
    /// Ends of pastes that were not there.
    unknown = "unknown_paste",
    /// Inbox rows made.
    recorded = "recorded",
    /// Inbox rows that were there.
    already_recorded = "already_recorded",
    /// Attempts at messages.
    delivered = "delivered",
    /// Attempts that were acked.
    acked = "acked",
    /// Attempts that were nacked.
    nacked = "nacked",
    /// Acks, nacks and extensions of attempts that were over.
    stale = "stale",
}

impl Outcomes {
    pub(crate) fn count(&self, command: &Command, outcome: &Outcome) {
        use ostraca_index::{EndCause, Settled};
        let (counter, by) = match (outcome, command) {
            (Outcome::Created, _) => (&self.created, 1),
            (Outcome::Replayed(_), _) => (&self.replayed, 1),
            (Outcome::Conflict, _) => (&self.conflicts, 1),
            (Outcome::IdTaken, _) => (&self.ids_taken, 1),
            (Outcome::TooLate, _) => (&self.too_late, 1),
            (Outcome::Ended, Command::End(end)) if end.cause == EndCause::Deleted => {
                (&self.deleted, 1)
            }
            (Outcome::Ended, _) => (&self.expired, 1),
            (Outcome::UnknownPaste, _) => (&self.unknown, 1),
            (Outcome::Recorded, _) => (&self.recorded, 1),
            (Outcome::AlreadyRecorded, _) => (&self.already_recorded, 1),
            (Outcome::Delivered(deliveries), _) => (&self.delivered, deliveries.len()),
            (Outcome::Settled(settled), _) => {
                let done = settled.iter().filter(|one| **one == Settled::Done).count();
                let over = (settled.len() - done) as u64;
                self.stale.fetch_add(over, Ordering::Relaxed);
                match command {
                    Command::Ack(_) => (&self.acked, done),
                    Command::Nack(_) => (&self.nacked, done),
                    _ => return,
                }
            }
            (
                Outcome::NotDue
                | Outcome::TimeMoved
                | Outcome::Registered
                | Outcome::TooManyConsumers
                | Outcome::UnknownConsumer
                | Outcome::DeadLetterReplayed
                | Outcome::UnknownDeadLetter,
                _,
            ) => return,
        };
        counter.fetch_add(by as u64, Ordering::Relaxed);
    }
}
