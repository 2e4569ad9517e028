//! What a caller of the engine can meet.

use std::fmt;
use std::time::Duration;

use ostraca_types::{ErrorKind, Sequence};

/// Why a command was not answered with an outcome.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Error {
    /// The queue is full. Nothing was appended; send again after the delay.
    Busy {
        /// How long the queue takes to empty, about.
        retry_after: Duration,
    },
    /// It waited in the queue for longer than its caller does. Nothing was appended.
    Late,
    /// There is no room for the next segment. Nothing was appended.
    Full,
    /// The shard is stopping or has stopped. Nothing was appended.
    Closed,
    /// Another process leads the shard. Nothing was appended; it is to be asked.
    Fenced,
    /// The log failed while the command was in flight: it may be durable, or not. Ask again with
    /// the same key.
    Unknown,
}

impl Error {
    /// What the caller can do.
    #[must_use]
    pub const fn kind(&self) -> ErrorKind {
        match self {
            Self::Busy { .. } | Self::Late => ErrorKind::Busy,
            Self::Full => ErrorKind::Full,
            Self::Closed => ErrorKind::Unavailable,
            Self::Fenced => ErrorKind::NotLeader,
            Self::Unknown => ErrorKind::Unknown,
        }
    }
}

impl fmt::Display for Error {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Busy { .. } => "the shard has more work than it can queue",
            Self::Late => "this waited in the shard's queue for longer than its caller does",
            Self::Full => "the disk has no room for the next log segment",
            Self::Closed => "the shard is stopping",
            Self::Fenced => "another process leads this shard now",
            Self::Unknown => {
                "the shard stopped while this was in flight; ask again with the same key"
            }
        })
    }
}

impl std::error::Error for Error {}

/// Why a shard did not open.
#[derive(Debug)]
pub enum OpenError {
    /// The log could not be recovered.
    Log(ostraca_wal::Error),
    /// A record has a kind or command version that a newer program wrote.
    NewerCommand {
        /// The record's kind.
        kind: u8,
        /// The command's version.
        version: u8,
        /// Which record.
        sequence: Sequence,
    },
    /// A record whose checksum holds is no command.
    Malformed {
        /// The record's kind.
        kind: u8,
        /// Which record.
        sequence: Sequence,
    },
    /// The shard's thread could not be started.
    Thread(std::io::Error),
}

impl OpenError {
    /// What the caller can do.
    #[must_use]
    pub fn kind(&self) -> ErrorKind {
        match self {
            Self::Log(err) => err.kind(),
            Self::Malformed { .. } => ErrorKind::Damaged,
            // Nothing is wrong with it; another program is needed.
            Self::NewerCommand { .. } => ErrorKind::Rejected,
            Self::Thread(_) => ErrorKind::Unavailable,
        }
    }
}

impl fmt::Display for OpenError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Log(err) => err.fmt(f),
            Self::NewerCommand {
                kind,
                version,
                sequence,
            } => write!(
                f,
                "a newer ostraca wrote this log, use that one: record {sequence} has kind {kind}, version {version}"
            ),
            Self::Malformed { kind, sequence } => write!(
                f,
                "a record of the log is no command, run `ostraca log verify`: record {sequence}, kind {kind}"
            ),
            Self::Thread(_) => f.write_str("the shard's thread could not be started"),
        }
    }
}

impl std::error::Error for OpenError {
    fn source(&self) -> Option<&(dyn std::error::Error + 'static)> {
        match self {
            // Its text is this one's; the cause is behind it.
            Self::Log(err) => std::error::Error::source(err),
            Self::Thread(source) => Some(source),
            Self::NewerCommand { .. } | Self::Malformed { .. } => None,
        }
    }
}

impl From<ostraca_wal::Error> for OpenError {
    fn from(err: ostraca_wal::Error) -> Self {
        Self::Log(err)
    }
}
