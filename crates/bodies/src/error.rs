//! What went wrong with an object.

use std::fmt;
use std::io;
use std::path::PathBuf;
use std::time::Duration;

/// What was asked of the store.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Action {
    /// Finding the store's directory.
    Open,
    /// Writing an object.
    Put,
    /// Reading an object.
    Get,
    /// Deleting an object.
    Delete,
    /// Listing objects.
    List,
    /// Removing what unfinished writes left.
    RemoveLeftovers,
}

impl fmt::Display for Action {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Open => "opening the object store",
            Self::Put => "writing an object",
            Self::Get => "reading an object",
            Self::Delete => "deleting an object",
            Self::List => "listing objects",
            Self::RemoveLeftovers => "removing leftovers",
        })
    }
}

/// What the caller can do.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Kind {
    /// An object of that key is there. It was not touched; take another key.
    Exists,
    /// There is no object of that key.
    Missing,
    /// The key or the body is not one of ours; sending it again will not help.
    Rejected,
    /// The store has no room. Nothing was written.
    Full,
    /// The store did not answer, or not in time. A PUT may still happen, a delete too.
    Down,
}

/// Why a call did not succeed.
#[derive(Debug)]
pub enum Error {
    /// There is no store in this directory.
    NoStore(PathBuf),
    /// An object of that key is there already. It was not touched.
    Exists {
        /// The object's key.
        key: String,
    },
    /// There is no object of that key.
    Missing {
        /// The object's key.
        key: String,
    },
    /// The key is not of the form that a store takes.
    InvalidKey,
    /// The object is larger than any body can be; it was not read.
    TooLarge {
        /// The object's key.
        key: String,
        /// Its size in bytes.
        size: u64,
    },
    /// The store did not answer in time. What was asked may still happen.
    Deadline {
        /// What was asked.
        action: Action,
        /// How long it was waited for.
        after: Duration,
    },
    /// The store refused or failed.
    Store {
        /// What was asked.
        action: Action,
        /// What it said.
        source: Box<dyn std::error::Error + Send + Sync>,
    },
}

impl Error {
    /// What the caller can do.
    #[must_use]
    pub fn kind(&self) -> Kind {
        match self {
            Self::Exists { .. } => Kind::Exists,
            Self::Missing { .. } => Kind::Missing,
            Self::InvalidKey | Self::TooLarge { .. } => Kind::Rejected,
            Self::Store { source, .. } if is_full(source.as_ref()) => Kind::Full,
            Self::NoStore(_) | Self::Deadline { .. } | Self::Store { .. } => Kind::Down,
        }
    }

    pub(crate) fn store(
        action: Action,
        source: impl Into<Box<dyn std::error::Error + Send + Sync>>,
    ) -> Self {
        Self::Store {
            action,
            source: source.into(),
        }
    }

    pub(crate) fn from_store(action: Action, key: &str, source: object_store::Error) -> Self {
        match source {
            object_store::Error::NotFound { .. } => Self::Missing {
                key: key.to_owned(),
            },
            object_store::Error::AlreadyExists { .. } => Self::Exists {
                key: key.to_owned(),
            },
            other => Self::store(action, other),
        }
    }
}

/// Whether "no space left" or "quota exceeded" is anywhere among the causes.
fn is_full(err: &(dyn std::error::Error + 'static)) -> bool {
    let mut cause = Some(err);
    while let Some(err) = cause {
        if let Some(err) = err.downcast_ref::<io::Error>()
            && matches!(
                err.kind(),
                io::ErrorKind::StorageFull | io::ErrorKind::QuotaExceeded
            )
        {
            return true;
        }
        cause = err.source();
    }
    false
}

impl fmt::Display for Error {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::NoStore(dir) => write!(
                f,
                "the bodies of the pastes are not here: their directory was moved away, or its \
                 volume is not mounted; put it back: {}",
                dir.display()
            ),
            Self::Exists { key } => write!(f, "the object is already there: {key}"),
            Self::Missing { key } => write!(f, "the object is missing: {key}"),
            Self::InvalidKey => f.write_str("not an object key"),
            Self::TooLarge { key, size } => {
                write!(f, "the object is larger than any body: {key}, {size} bytes")
            }
            Self::Deadline { action, after } => {
                write!(f, "{action} took longer than {} ms", after.as_millis())
            }
            Self::Store { action, .. } => write!(f, "{action} failed"),
        }
    }
}

impl std::error::Error for Error {
    fn source(&self) -> Option<&(dyn std::error::Error + 'static)> {
        match self {
            Self::Store { source, .. } => Some(source.as_ref()),
            _ => None,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn d04_a_full_disk_is_a_kind_of_its_own() {
        let full = object_store::Error::Generic {
            store: "test",
            source: Box::new(io::Error::from(io::ErrorKind::StorageFull)),
        };
        assert_eq!(
            Error::from_store(Action::Put, "p/00/x", full).kind(),
            Kind::Full
        );
        let broken = object_store::Error::Generic {
            store: "test",
            source: Box::new(io::Error::from(io::ErrorKind::BrokenPipe)),
        };
        assert_eq!(
            Error::from_store(Action::Put, "p/00/x", broken).kind(),
            Kind::Down
        );
    }
}
