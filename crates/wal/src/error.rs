//! What can go wrong with a log, and what to do about it.

use std::fmt;
use std::io;

use ostraca_io::FileName;
use ostraca_types::{Epoch, ErrorKind, Sequence, ShardId, StoreId};

use crate::{FORMAT_VERSION, SegmentId};

/// Why the log cannot do what was asked.
#[derive(Debug)]
pub enum Error {
    /// The disk refused. If the log was open for appending it is stopped; open it again to
    /// recover.
    Io {
        /// What was being done.
        action: Action,
        /// The file, unless it was about the directory.
        file: Option<FileName>,
        /// What the disk said.
        source: io::Error,
    },
    /// Stored bytes are not what was written. Nothing was changed.
    Damaged {
        /// The damaged file.
        file: FileName,
        /// Where in it.
        offset: u64,
        /// The first record that is in doubt, or the last of a segment that is in doubt whole.
        sequence: Sequence,
        /// What is wrong there.
        fault: Fault,
    },
    /// This program does not know the file's format: a newer one wrote it, or one from before the
    /// first release.
    UnknownFormat {
        /// The file.
        file: FileName,
        /// Its format's version.
        version: u16,
    },
    /// The file belongs to another store or shard.
    Foreign {
        /// The file.
        file: FileName,
        /// The store in its header.
        store: StoreId,
        /// The shard in its header.
        shard: ShardId,
    },
    /// A segment size that is out of bounds or does not fit the other.
    SegmentSize {
        /// The size that was asked for.
        size: u64,
    },
    /// No room for the next segment. Nothing was appended, and the log goes on being usable.
    Full,
    /// Another process raised the epoch: this one leads no more, and never will under this epoch.
    /// What was appended last may be part of the log, or not.
    Fenced {
        /// The epoch that it led under.
        epoch: Epoch,
    },
    /// A file of the claimed epoch is there already, so the epoch was granted twice, after damage to
    /// the epoch page. Nothing was changed: raise it again, and read again.
    EpochTaken {
        /// That epoch.
        epoch: Epoch,
    },
    /// No higher epoch can be granted: a file's name has one that no leadership ever had.
    EpochsUsedUp {
        /// The highest.
        epoch: Epoch,
    },
    /// An earlier failure stopped the log. Nothing was appended.
    Stopped,
}

impl Error {
    /// What the caller can do about it.
    #[must_use]
    pub const fn kind(&self) -> ErrorKind {
        match self {
            Self::Io {
                action: Action::Write | Action::Sync,
                ..
            } => ErrorKind::Unknown,
            Self::Io { .. } | Self::Stopped | Self::EpochTaken { .. } => ErrorKind::Unavailable,
            Self::Damaged { .. } | Self::Foreign { .. } | Self::EpochsUsedUp { .. } => {
                ErrorKind::Damaged
            }
            Self::Fenced { .. } => ErrorKind::NotLeader,
            Self::SegmentSize { .. } | Self::UnknownFormat { .. } => ErrorKind::Rejected,
            Self::Full => ErrorKind::Full,
        }
    }
}

impl fmt::Display for Error {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Io {
                action,
                file: Some(file),
                ..
            } => write!(f, "cannot {action}: {file}"),
            Self::Io {
                action, file: None, ..
            } => write!(f, "cannot {action}"),
            Self::Damaged {
                file,
                offset,
                sequence,
                fault,
            } => write!(
                f,
                "the log is damaged, nothing was changed; look with `ostraca log verify`, then \
                 restore a copy, or give up what is lost with `ostraca log cut`: {fault}; file {file}, offset {offset}, sequence {sequence}"
            ),
            Self::UnknownFormat { file, version } => write!(
                f,
                "another program wrote this log, use that one; this one knows format \
                 {FORMAT_VERSION}: {file}, format {version}"
            ),
            Self::Foreign { file, store, shard } => {
                write!(
                    f,
                    "the file belongs to another store: {file}, store {store}, shard {shard}"
                )
            }
            Self::SegmentSize { size } => {
                write!(
                    f,
                    "segment sizes must be within their bounds and in order: {size}"
                )
            }
            Self::Fenced { epoch } => write!(
                f,
                "another process leads this shard now; this one led under epoch {epoch}"
            ),
            Self::EpochTaken { epoch } => {
                write!(f, "epoch {epoch} was granted twice; start again")
            }
            Self::EpochsUsedUp { epoch } => write!(
                f,
                "a file of the log has an epoch that was never granted, move it away: epoch {epoch}"
            ),
            Self::Full => f.write_str("no room for the next segment of the log; free disk space"),
            Self::Stopped => f.write_str("an earlier failure stopped the log; open it again"),
        }
    }
}

impl std::error::Error for Error {
    fn source(&self) -> Option<&(dyn std::error::Error + 'static)> {
        match self {
            Self::Io { source, .. } => Some(source),
            _ => None,
        }
    }
}

/// What was asked of the disk.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Action {
    /// List the directory.
    List,
    /// Sync the directory.
    SyncDirectory,
    /// Open a file.
    Open,
    /// Read a file.
    Read,
    /// Create a file.
    Create,
    /// Fill a file with zeros, and sync it.
    Prepare,
    /// Give a file its name.
    Rename,
    /// Remove a file.
    Remove,
    /// Write to the log.
    Write,
    /// Sync the log.
    Sync,
    /// Cut off what lies behind a segment's end.
    Trim,
    /// Sync the epoch page.
    SyncPage,
}

impl Action {
    /// For `map_err` of a call about `file`.
    pub(crate) fn of(self, file: &FileName) -> impl FnOnce(io::Error) -> Error {
        move |source| Error::Io {
            action: self,
            file: Some(file.clone()),
            source,
        }
    }

    /// For `map_err` of a call about the directory.
    pub(crate) fn of_directory(self) -> impl FnOnce(io::Error) -> Error {
        move |source| Error::Io {
            action: self,
            file: None,
            source,
        }
    }
}

impl fmt::Display for Action {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::List => "list the log's directory",
            Self::SyncDirectory => "sync the log's directory",
            Self::Open => "open a segment",
            Self::Read => "read a segment",
            Self::Create => "create a segment",
            Self::Prepare => "fill a segment with zeros",
            Self::Rename => "name a segment",
            Self::Remove => "remove a segment",
            Self::Write => "write to the log",
            Self::Sync => "sync the log",
            Self::Trim => "cut off a segment behind its end",
            Self::SyncPage => "sync the epoch page",
        })
    }
}

/// What is wrong with stored bytes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Fault {
    /// No structure starts here.
    Magic,
    /// A header does not match its checksum, under the seed of its place.
    HeaderChecksum,
    /// A payload does not match its checksum, under the seed of its place.
    PayloadChecksum,
    /// Reserved bytes or padding are not zero.
    NotZero,
    /// A size is out of bounds, or reaches beyond the end.
    Size,
    /// A field has a value that this format does not know.
    Field,
    /// The epoch does not fit segment or order.
    Epoch,
    /// Not the sequence that comes next.
    Sequence,
    /// Not the chain value that comes next.
    Chain,
    /// Neither copy of the segment header is valid, or they differ.
    SegmentHeader,
    /// The header is that of another segment.
    Misplaced(SegmentId),
    /// The file is shorter than its header says.
    FileSize,
    /// Another process made this segment than its successor says.
    Owner,
    /// The segment does not end as its successor says.
    End,
    /// The file is not there, and its records are needed.
    Missing,
    /// The log ends before this record, which was durable: a checkpoint or the epoch page says so.
    Behind(Sequence),
    /// A valid batch further on, at this offset, proves that what is here was durable.
    LaterBatch(u64),
    /// Bytes further on, at this offset, lie beyond the reach of one torn batch.
    LaterBytes(u64),
}

impl fmt::Display for Fault {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Magic => f.write_str("no batch starts here"),
            Self::HeaderChecksum => f.write_str("a header does not match its checksum"),
            Self::PayloadChecksum => f.write_str("a payload does not match its checksum"),
            Self::NotZero => f.write_str("reserved bytes are not zero"),
            Self::Size => f.write_str("a size is out of bounds"),
            Self::Field => f.write_str("a field has an unknown value"),
            Self::Epoch => f.write_str("an epoch is out of order"),
            Self::Sequence => f.write_str("a sequence is out of order"),
            Self::Chain => f.write_str("the chain of records is broken"),
            Self::SegmentHeader => f.write_str("no valid segment header"),
            Self::Misplaced(segment) => write!(f, "the header is that of {segment}"),
            Self::FileSize => f.write_str("the file is too short"),
            Self::Owner => f.write_str("another process made this segment"),
            Self::End => f.write_str("the segment does not end as its successor says"),
            Self::Missing => f.write_str("the file is missing"),
            Self::Behind(covered) => {
                write!(f, "the log ends before record {covered}, which was durable")
            }
            Self::LaterBatch(offset) => {
                write!(f, "not valid, and a valid batch follows at {offset}")
            }
            Self::LaterBytes(offset) => {
                write!(
                    f,
                    "not valid, and bytes of a later batch follow at {offset}"
                )
            }
        }
    }
}
