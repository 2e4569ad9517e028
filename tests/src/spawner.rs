//! Starts processes that end with the test process.

use std::io;
use std::process::{Child, Command, ExitStatus, Output};
use std::sync::OnceLock;
use std::sync::mpsc::{SyncSender, sync_channel};
use std::time::{Duration, Instant};

/// A command, and where its process is wanted.
type Order = (Command, SyncSender<io::Result<Child>>);

/// Starts `command` from a thread that lives as long as this process. The kernel ties a child that
/// asked for it to the *thread* that started it, and the threads of tests end with each test.
pub(crate) fn spawn(command: Command) -> io::Result<Child> {
    static SPAWNER: OnceLock<SyncSender<Order>> = OnceLock::new();
    let spawner = SPAWNER.get_or_init(|| {
        let (orders, inbox) = sync_channel::<Order>(16);
        std::thread::spawn(move || {
            while let Ok((mut command, answer)) = inbox.recv() {
                // Whoever does not want the process any more panicked.
                let _ = answer.send(command.spawn());
            }
        });
        orders
    });
    let (answer, started) = sync_channel(1);
    spawner.send((command, answer)).map_err(io::Error::other)?;
    started.recv().map_err(io::Error::other)?
}

/// How a process ended, and all that it said.
#[derive(Debug)]
pub struct Ended {
    /// How it ended.
    pub status: ExitStatus,
    /// Its stdout.
    pub stdout: Vec<u8>,
    /// Its stderr.
    pub stderr: String,
}

impl Ended {
    /// The exit code; a signal is none.
    #[must_use]
    pub fn code(&self) -> Option<i32> {
        self.status.code()
    }

    /// Its stdout, which must be text.
    #[must_use]
    pub fn text(&self) -> &str {
        std::str::from_utf8(&self.stdout).expect("stdout is text")
    }
}

impl From<Output> for Ended {
    fn from(output: Output) -> Self {
        Self {
            status: output.status,
            stdout: output.stdout,
            stderr: String::from_utf8_lossy(&output.stderr).into_owned(),
        }
    }
}

/// Waits for a process to end, and kills it at the deadline.
pub(crate) fn wait(child: &mut Child, limit: Duration) -> Option<ExitStatus> {
    let started = Instant::now();
    loop {
        match child.try_wait() {
            Ok(Some(status)) => return Some(status),
            Ok(None) if started.elapsed() < limit => std::thread::sleep(Duration::from_millis(5)),
            _ => return None,
        }
    }
}
