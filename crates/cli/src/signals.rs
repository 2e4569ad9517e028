//! Ctrl-C, SIGTERM, and the end of the terminal.

use std::path::Path;

use ostraca_io::files;
use tokio::signal::unix::{Signal, SignalKind, signal};

use crate::exit::{Exit, Failure};
use crate::process;

/// The signals that ask a process to stop.
pub(crate) struct StopSignals {
    interrupt: Signal,
    terminate: Signal,
    /// `None` under `nohup`.
    hangup: Option<Signal>,
}

/// Which one came.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum StopSignal {
    Interrupt,
    Terminate,
    Hangup,
}

impl StopSignals {
    /// From here on the signals end nothing by themselves. Needs a tokio runtime.
    pub(crate) fn listen() -> Result<Self, Failure> {
        let hangup = match ignores_hangup() {
            true => None,
            false => Some(listen(SignalKind::hangup())?),
        };
        Ok(Self {
            interrupt: listen(SignalKind::interrupt())?,
            terminate: listen(SignalKind::terminate())?,
            hangup,
        })
    }

    /// Waits for the next one.
    pub(crate) async fn next(&mut self) -> StopSignal {
        let hangup = async {
            match &mut self.hangup {
                Some(hangup) => hangup.recv().await,
                None => std::future::pending().await,
            }
        };
        tokio::select! {
            _ = self.interrupt.recv() => StopSignal::Interrupt,
            _ = self.terminate.recv() => StopSignal::Terminate,
            _ = hangup => StopSignal::Hangup,
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

/// Does a command's `work` on this thread, which Ctrl-C ends. From the first step of the work on, so
/// that whatever has gone out is told of; before it, the signal ends the process by itself.
pub(crate) fn interruptible<T>(
    work: impl Future<Output = Result<T, Failure>>,
) -> Result<T, Failure> {
    process::local_runtime()?.block_on(async {
        let mut interrupt = listen(SignalKind::interrupt())?;
        tokio::select! {
            done = work => done,
            _ = interrupt.recv() => Err(Failure::new(Exit::Interrupted, "interrupted")),
        }
    })
}

fn listen(kind: SignalKind) -> Result<Signal, Failure> {
    signal(kind).map_err(|err| Failure::doing(Exit::Failed, "cannot listen for signals", &err))
}

/// Whether whoever started this process wants it to outlive the terminal.
fn ignores_hangup() -> bool {
    let status = files::read_text(Path::new("/proc/self/status")).unwrap_or_default();
    let ignored = status.lines().find_map(|line| line.strip_prefix("SigIgn:"));
    let ignored = ignored.and_then(|mask| u64::from_str_radix(mask.trim(), 16).ok());
    // Bit n - 1 is signal n, and SIGHUP is 1.
    ignored.is_some_and(|mask| mask & 1 != 0)
}
