//! Ctrl-C and SIGTERM.

use tokio::signal::unix::{Signal, SignalKind, signal};

use crate::exit::{Exit, Failure};

/// The two signals that ask a process to stop.
pub(crate) struct StopSignals {
    interrupt: Signal,
    terminate: Signal,
}

/// Which one came.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum StopSignal {
    Interrupt,
    Terminate,
}

impl StopSignals {
    /// From here on the signals end nothing by themselves. Needs a tokio runtime.
    pub(crate) fn listen() -> Result<Self, Failure> {
        let listen = |kind| {
            signal(kind)
                .map_err(|err| Failure::doing(Exit::Failed, "cannot listen for signals", &err))
        };
        Ok(Self {
            interrupt: listen(SignalKind::interrupt())?,
            terminate: listen(SignalKind::terminate())?,
        })
    }

    /// Waits for the next one.
    pub(crate) async fn next(&mut self) -> StopSignal {
        tokio::select! {
            _ = self.interrupt.recv() => StopSignal::Interrupt,
            _ = self.terminate.recv() => StopSignal::Terminate,
        }
    }

    /// For a serving process: the first signal asks it to drain, a second Ctrl-C ends it at once.
    pub(crate) async fn drain(mut self) {
        let first = self.next().await;
        tracing::info!(event = "stopping", signal = ?first, "told to stop");
        tokio::spawn(async move {
            while self.next().await != StopSignal::Interrupt {}
            std::process::exit(i32::from(Exit::Interrupted as u8));
        });
    }
}
