//! Why a shard process ended.

use std::fmt;

use ostraca_engine::{OpenError, StoreError};
use ostraca_types::{ErrorKind, ShardId};

use crate::SecretError;

/// Why a shard process ended, or did not start.
#[derive(Debug)]
pub enum ServeError {
    /// The cluster has no such shard.
    NoSuchShard(ShardId),
    /// Another process serves this shard; its pid, where known.
    Held(Option<u32>),
    /// A command is at work on this shard; its pid, where known.
    HeldByTool(Option<u32>),
    /// The secrets are missing, unreadable or not this store's.
    Secrets(SecretError),
    /// The store file cannot be used.
    Store(StoreError),
    /// The shard's directory belongs to another shard or cluster.
    Foreign(ShardId),
    /// The log did not open.
    Open(OpenError),
    /// A write or sync failed while serving, and the log has to be recovered; or the fence ended this
    /// leadership.
    Stopped(ostraca_wal::Error),
    /// The shard's epoch page is not there, or is no page.
    NoEpochPage(std::path::PathBuf),
    /// Another file has taken the place of the epoch page that this process led by.
    EpochPageReplaced(std::path::PathBuf),
    /// A file, a socket or a thread was refused.
    Io(&'static str, std::io::Error),
    /// The gRPC server failed.
    Transport(tonic::transport::Error),
}

impl ServeError {
    /// What whoever started the process can do: `Damaged` needs a person, `Exists` and `NotLeader`
    /// mean that another process serves the shard, `Unknown` asks for a restart, `Rejected` for a
    /// change.
    #[must_use]
    pub fn kind(&self) -> ErrorKind {
        match self {
            Self::NoSuchShard(_) | Self::Secrets(_) | Self::Foreign(_) => ErrorKind::Rejected,
            Self::Held(_) | Self::HeldByTool(_) => ErrorKind::Exists,
            Self::EpochPageReplaced(_) => ErrorKind::NotLeader,
            Self::Store(StoreError::Io(..)) | Self::Io(..) | Self::Transport(_) => {
                ErrorKind::Unavailable
            }
            Self::Store(_) | Self::NoEpochPage(_) => ErrorKind::Damaged,
            Self::Open(err) => err.kind(),
            Self::Stopped(err @ ostraca_wal::Error::Fenced { .. }) => err.kind(),
            Self::Stopped(_) => ErrorKind::Unknown,
        }
    }
}

impl fmt::Display for ServeError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::NoSuchShard(shard) => write!(f, "this cluster has no shard {shard}"),
            Self::Held(Some(pid)) => write!(
                f,
                "another process serves this shard, stop it or start with --take-over: pid {pid}"
            ),
            Self::Held(None) => {
                f.write_str("another process serves this shard, stop it or start with --take-over")
            }
            Self::HeldByTool(Some(pid)) => write!(
                f,
                "a command is at work on this shard, wait until it is done: pid {pid}"
            ),
            Self::HeldByTool(None) => {
                f.write_str("a command is at work on this shard, wait until it is done")
            }
            Self::Secrets(err) => err.fmt(f),
            Self::Store(err) => err.fmt(f),
            Self::Foreign(shard) => write!(
                f,
                "the directory belongs to another shard or cluster than its place says: shard {shard}"
            ),
            Self::Open(err) => err.fmt(f),
            Self::Stopped(err) => err.fmt(f),
            Self::NoEpochPage(path) => write!(
                f,
                "the epoch page is missing or has another size; put it back, or make it anew with \
                 `ostraca log cut`: {}",
                path.display()
            ),
            Self::EpochPageReplaced(path) => write!(
                f,
                "another epoch page was put in the place of the one that this process looks at: {}",
                path.display()
            ),
            Self::Io(what, _) => f.write_str(what),
            Self::Transport(_) => f.write_str("the gRPC server failed"),
        }
    }
}

impl std::error::Error for ServeError {
    fn source(&self) -> Option<&(dyn std::error::Error + 'static)> {
        match self {
            Self::Secrets(err) => std::error::Error::source(err),
            Self::Store(err) => std::error::Error::source(err),
            Self::Open(err) => std::error::Error::source(err),
            Self::Stopped(err) => std::error::Error::source(err),
            Self::Io(_, err) => Some(err),
            Self::Transport(err) => Some(err),
            Self::NoSuchShard(_)
            | Self::Held(_)
            | Self::HeldByTool(_)
            | Self::Foreign(_)
            | Self::NoEpochPage(_)
            | Self::EpochPageReplaced(_) => None,
        }
    }
}
