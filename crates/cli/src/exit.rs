//! How a command ends: its exit code, and the one line that says why.

use std::fmt;
use std::io;
use std::process::ExitCode;

use ostraca_types::IdempotencyKey;

/// The exit codes of every subcommand. Scripts depend on them: a number never changes its meaning.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[repr(u8)]
pub(crate) enum Exit {
    /// Done.
    Fine = 0,
    /// Anything that has no number of its own, a refused delete token among it.
    Failed = 1,
    /// The command line is wrong.
    Usage = 2,
    /// No such paste or data directory.
    NotFound = 3,
    /// The key belongs to another paste, or another process holds what this one needs: the data
    /// directory, the port.
    Conflict = 4,
    /// Not reachable or not serving now: the same again may work later.
    Unavailable = 5,
    /// No answer in time.
    Timeout = 6,
    /// Stored bytes are not what was written: a person has to decide.
    Damaged = 7,
    /// A write or sync failed, and the shard stopped: the next start recovers from the disk.
    SyncFailed = 8,
    /// Interrupted from the keyboard.
    Interrupted = 130,
}

/// The table for `--help`.
pub(crate) const HELP: &str = "\
Exit codes:
    0  fine
    1  failed
    2  usage: the command line is wrong
    3  not found
    4  conflict: the key, the data directory or the port is taken
    5  unavailable: try again later
    6  timeout
    7  damaged: stored bytes are not what was written
    8  stopped after a failed sync
  130  interrupted";

impl Exit {
    /// The meaning of a process's exit code, if it is one of ours.
    pub(crate) fn from_code(code: i32) -> Option<Self> {
        let all = [
            Self::Fine,
            Self::Failed,
            Self::Usage,
            Self::NotFound,
            Self::Conflict,
            Self::Unavailable,
            Self::Timeout,
            Self::Damaged,
            Self::SyncFailed,
            Self::Interrupted,
        ];
        all.into_iter().find(|&exit| code == i32::from(exit as u8))
    }
}

impl From<Exit> for ExitCode {
    fn from(exit: Exit) -> Self {
        Self::from(exit as u8)
    }
}

/// Why a command did not succeed: a code for scripts and a line for people. The line carries no
/// key, token or body.
#[derive(Debug)]
pub(crate) struct Failure {
    pub(crate) exit: Exit,
    message: String,
    repeat: Option<IdempotencyKey>,
}

impl Failure {
    pub(crate) fn new(exit: Exit, message: impl Into<String>) -> Self {
        Self {
            exit,
            message: message.into(),
            repeat: None,
        }
    }

    /// `err` and its causes, on one line.
    pub(crate) fn caused(exit: Exit, err: &dyn std::error::Error) -> Self {
        Self::new(exit, chain(err))
    }

    /// What was being done, then `err` and its causes.
    pub(crate) fn doing(exit: Exit, doing: impl fmt::Display, err: &dyn std::error::Error) -> Self {
        Self::new(exit, format!("{doing}: {}", chain(err)))
    }

    /// A save that may have happened all the same: with its key there is one paste either way.
    pub(crate) fn repeat_with(mut self, key: IdempotencyKey) -> Self {
        self.repeat = Some(key);
        self
    }

    /// Says it to the person, and what can be done.
    pub(crate) fn tell(&self) {
        say(self);
        if let Some(key) = &self.repeat {
            say(format_args!(
                "to repeat this save, add --key {}",
                key.expose_text()
            ));
        }
    }
}

impl fmt::Display for Failure {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.message)
    }
}

pub(crate) fn chain(err: &dyn std::error::Error) -> String {
    let mut text = err.to_string();
    let mut source = err.source();
    while let Some(cause) = source {
        let cause_text = cause.to_string();
        // Some libraries repeat the cause in the text.
        if !text.ends_with(&cause_text) {
            text.push_str(": ");
            text.push_str(&cause_text);
        }
        source = cause.source();
    }
    text
}

/// A failure to write to stdout. A reader that has seen enough closes the pipe: that is how
/// `ostraca get ID | head` ends, and no failure.
pub(crate) fn written(result: io::Result<()>) -> Result<(), Failure> {
    match result {
        Err(err) if err.kind() != io::ErrorKind::BrokenPipe => {
            Err(Failure::doing(Exit::Failed, "cannot write to stdout", &err))
        }
        _ => Ok(()),
    }
}

/// Says something to the person, on stderr. There is nowhere left to report a failure of that.
pub(crate) fn say(text: impl fmt::Display) {
    use io::Write as _;
    let _ = writeln!(io::stderr().lock(), "ostraca: {text}");
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_help_names_every_code() {
        for code in 0..=255 {
            let known = Exit::from_code(code).is_some();
            let listed = HELP.lines().any(|line| {
                line.trim_start()
                    .split_once("  ")
                    .is_some_and(|(number, _)| number == code.to_string())
            });
            assert_eq!(listed, known, "{code}");
        }
    }

    #[test]
    fn a_closed_pipe_is_no_failure() {
        assert!(written(Err(io::ErrorKind::BrokenPipe.into())).is_ok());
        assert!(written(Err(io::ErrorKind::StorageFull.into())).is_err());
    }
}
