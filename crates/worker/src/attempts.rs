//! Attempts without the loops around them.

use std::fmt;

use ostraca_client::Message;
use ostraca_types::ConsumerName;

use crate::metrics::Metrics;
use crate::ports::{Edge, Inbox, Objects, Outbox, Ports};
use crate::purge::{Failure, Finished, purge};

/// Runs the attempts of whoever has loops of their own for receiving and giving back, as a
/// simulation does: the steps and their order are those of [`crate::Worker`].
pub struct Attempts<S, B, E> {
    ports: Ports<S, B, E>,
    consumer: ConsumerName,
    metrics: Metrics,
}

impl<S, B, E> fmt::Debug for Attempts<S, B, E> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Attempts")
            .field("consumer", &self.consumer)
            .finish_non_exhaustive()
    }
}

impl<S: Outbox + Inbox, B: Objects, E: Edge> Attempts<S, B, E> {
    /// Attempts of `consumer` over `ports`.
    #[must_use]
    pub fn new(ports: Ports<S, B, E>, consumer: ConsumerName) -> Self {
        Self {
            ports,
            consumer,
            metrics: Metrics::new(),
        }
    }

    /// One attempt, from the look into the inbox to the ack. Needs a tokio runtime's timer. Dropping
    /// it is how a worker dies in the middle: the next attempt makes it good (i03).
    pub async fn run(&self, message: &Message) -> Result<Finished, Failure> {
        purge(&self.ports, &self.consumer, message, &self.metrics).await
    }
}
