//! Whether the object store is up, as far as the worker knows.
//!
//! When a delete fails because the store is down, nothing more is asked for: each delivery counts
//! as an attempt. A probe, which uses no message, is tried with growing delays. Once it works, one
//! attempt goes through alone; only when the store did its part there does everything go on.

use std::time::Duration;

use ostraca_io::Entropy;
use parking_lot::Mutex;
use tokio::sync::{Semaphore, SemaphorePermit, watch};
use tokio::time::sleep;

use crate::backoff::Backoff;
use crate::metrics::Metrics;
use crate::ports::Objects;

/// The first probe comes at least this long after the failure.
const PROBE_DELAY_MIN: Duration = Duration::from_secs(1);
/// After an outage, however long, work goes on within this.
const PROBE_DELAY_MAX: Duration = Duration::from_secs(60);

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum State {
    /// The store is up.
    Up,
    /// A probe worked; one attempt at a time is let through.
    Trying,
    /// The store is down.
    Down,
}

/// How much may be received.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Appetite {
    /// As much as there is room for.
    All,
    /// One message, to try the store with.
    One,
}

#[derive(Debug)]
pub(crate) struct Gate {
    state: watch::Sender<State>,
    /// The one attempt of [`State::Trying`].
    trial: Semaphore,
    backoff: Mutex<Backoff>,
}

/// The right to use the object store once.
#[derive(Debug)]
pub(crate) struct Pass<'a> {
    /// `None` while the store is up.
    trial: Option<SemaphorePermit<'a>>,
}

impl Pass<'_> {
    /// Whether it is for the one attempt after a probe.
    pub(crate) const fn is_trial(&self) -> bool {
        self.trial.is_some()
    }
}

impl Gate {
    pub(crate) fn new() -> Self {
        Self {
            state: watch::Sender::new(State::Up),
            trial: Semaphore::new(1),
            backoff: Mutex::new(Backoff::new(PROBE_DELAY_MIN, PROBE_DELAY_MAX)),
        }
    }

    /// Waits until messages may be asked for.
    pub(crate) async fn open(&self) -> Appetite {
        // The sender lives in `self`, so no wait here can fail.
        match self.wait(|state| state != State::Down).await {
            State::Up => Appetite::All,
            State::Trying | State::Down => Appetite::One,
        }
    }

    /// Whether that is still how much may be received.
    pub(crate) fn is_open_for(&self, appetite: Appetite) -> bool {
        match *self.state.borrow() {
            State::Up => appetite == Appetite::All,
            State::Trying => appetite == Appetite::One,
            State::Down => false,
        }
    }

    /// Waits until messages may no longer be asked for.
    pub(crate) async fn closed(&self) {
        self.wait(|state| state == State::Down).await;
    }

    /// The right to use the store; `None` if it is down. Waits while another attempt tries it.
    pub(crate) async fn admit(&self) -> Option<Pass<'_>> {
        loop {
            match *self.state.borrow() {
                State::Up => return Some(Pass { trial: None }),
                State::Down => return None,
                State::Trying => {}
            }
            tokio::select! {
                biased;
                _ = self.wait(|state| state != State::Trying) => {}
                // Never closed.
                permit = self.trial.acquire() => if *self.state.borrow() == State::Trying {
                    return Some(Pass { trial: permit.ok() });
                },
            }
        }
    }

    /// The store did what an attempt asked of it.
    pub(crate) fn works(&self) {
        let back = self.state.send_if_modified(|state| {
            let trying = *state == State::Trying;
            if trying {
                *state = State::Up;
            }
            trying
        });
        if back {
            self.backoff.lock().reset();
        }
    }

    /// The store is down.
    pub(crate) fn fails(&self, metrics: &Metrics) {
        let before = self.state.send_replace(State::Down);
        if before != State::Down {
            metrics.paused(true);
            tracing::warn!(event = "worker_paused", "the object store is down");
        }
    }

    /// Probes the store whenever it is down. Never returns.
    pub(crate) async fn probe(
        &self,
        objects: &impl Objects,
        entropy: &dyn Entropy,
        metrics: &Metrics,
    ) {
        loop {
            self.closed().await;
            let delay = self.backoff.lock().next(entropy);
            sleep(delay).await;
            match objects.probe().await {
                // Nobody else leaves `Down`.
                Ok(()) => {
                    metrics.paused(false);
                    tracing::info!(event = "worker_resumed", "the object store works again");
                    self.state.send_replace(State::Trying);
                }
                Err(err) => {
                    tracing::debug!(event = "probe_failed", %err, "the object store is still down");
                }
            }
        }
    }

    pub(crate) fn is_open(&self) -> bool {
        *self.state.borrow() != State::Down
    }

    async fn wait(&self, mut until: impl FnMut(State) -> bool) -> State {
        let mut state = self.state.subscribe();
        let reached = state.wait_for(|&state| until(state)).await;
        reached.map_or(State::Down, |state| *state)
    }
}
