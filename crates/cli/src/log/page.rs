//! The epoch page, for tools.

use std::fmt;
use std::io;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{Ordering, fence};

use ostraca_io::{PAGE_SIZE, Page, files};
use ostraca_types::{ErrorKind, Sequence};
use ostraca_wal::{EPOCH_PAGE, Identity, read_epoch_page};
use serde::Serialize;

use crate::exit::{Exit, Failure, chain};

use super::{ShardDir, quoted};

/// A leader that is between the two stores of the hint is done with them in nanoseconds.
const LOOKS: usize = 4;

/// What is known of a shard's epoch page.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
#[serde(tag = "state", rename_all = "kebab-case")]
pub(super) enum EpochPage {
    Good {
        /// The highest that was granted.
        epoch: u64,
        #[serde(skip_serializing_if = "Option::is_none")]
        durable_sequence: Option<u64>,
    },
    /// The next take-over makes it good.
    Bad {
        #[serde(skip_serializing_if = "Option::is_none")]
        durable_sequence: Option<u64>,
    },
    Missing,
    WrongSize {
        bytes: u64,
    },
    /// Of another store, or another shard.
    Foreign {
        trouble: String,
    },
    Unreadable {
        trouble: String,
    },
}

/// The page's bytes at one moment. Tools do not map it: that would need the permission to write,
/// which a copy on a read-only file system does not give.
#[derive(Debug)]
struct Snapshot(Vec<u8>);

impl Page for Snapshot {
    fn load(&self, word: usize) -> u64 {
        let bytes = self.0[word * 8..].first_chunk();
        u64::from_le_bytes(*bytes.expect("a page has that word"))
    }

    fn store(&self, _: usize, _: u64) {
        unreachable!("a look changes nothing");
    }

    fn compare_exchange(&self, _: usize, _: u64, _: u64) -> Result<u64, u64> {
        unreachable!("a look changes nothing");
    }

    fn flush(&self) -> io::Result<()> {
        Ok(())
    }
}

impl EpochPage {
    /// Reads the page in a shard's directory. What the log holds is to be read after that.
    pub(super) fn read(shard_dir: &Path, identity: &Identity) -> Self {
        let path = shard_dir.join(EPOCH_PAGE);
        let mut page = Self::look(&path, identity);
        for _ in 1..LOOKS {
            if page.durable().is_some() {
                break;
            }
            page = Self::look(&path, identity);
        }
        fence(Ordering::SeqCst);
        page
    }

    fn look(path: &Path, identity: &Identity) -> Self {
        let bytes = match files::read(path) {
            Err(err) if err.kind() == io::ErrorKind::NotFound => return Self::Missing,
            Err(err) => {
                return Self::Unreadable {
                    trouble: chain(&err),
                };
            }
            Ok(bytes) => bytes,
        };
        if bytes.len() != PAGE_SIZE {
            let bytes = bytes.len() as u64;
            return Self::WrongSize { bytes };
        }
        match read_epoch_page(Arc::new(Snapshot(bytes)), identity) {
            Err(err) if err.kind() == ErrorKind::Damaged => Self::Foreign {
                trouble: chain(&err),
            },
            Err(err) => Self::Unreadable {
                trouble: chain(&err),
            },
            Ok(report) => {
                let durable_sequence = report.durable.map(|sequence| sequence.0);
                match report.epoch {
                    Some(epoch) => Self::Good {
                        epoch: epoch.0,
                        durable_sequence,
                    },
                    None => Self::Bad { durable_sequence },
                }
            }
        }
    }

    /// Everything up to it was durable; `None` if that is unknown.
    pub(super) fn durable(&self) -> Option<Sequence> {
        match self {
            Self::Good {
                durable_sequence, ..
            }
            | Self::Bad { durable_sequence } => durable_sequence.map(Sequence),
            _ => None,
        }
    }

    /// Whether there is no page that a shard could be opened with, also not by making it good.
    pub(super) fn is_lost(&self) -> bool {
        matches!(self, Self::Missing | Self::WrongSize { .. })
    }

    /// Why the shard cannot be opened; `None` if it can be, for all that the page says.
    pub(super) fn trouble(&self, dir: &ShardDir) -> Option<Failure> {
        let page = dir.path.join(EPOCH_PAGE);
        let page = page.display();
        let exit = match self {
            Self::Good { .. } | Self::Bad { .. } => return None,
            Self::Unreadable { .. } => Exit::Failed,
            _ => Exit::Damaged,
        };
        let cut = quoted(&dir.path);
        let message = match self {
            Self::Foreign { .. } => format!(
                "{page}: {self}; put the shard's own in its place, or move it away and have one made: \
                 ostraca log cut {cut}"
            ),
            Self::Missing | Self::WrongSize { .. } => format!(
                "{page}: {self}, and the shard does not start without it; restore a copy, or have it \
                 made anew: ostraca log cut {cut}"
            ),
            _ => format!("{page}: {self}"),
        };
        Some(Failure::new(exit, message))
    }
}

impl fmt::Display for EpochPage {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Good {
                epoch,
                durable_sequence: Some(sequence),
            } => write!(
                f,
                "epoch {epoch} is granted, durable to sequence {sequence}"
            ),
            Self::Good { epoch, .. } => {
                write!(
                    f,
                    "epoch {epoch} is granted, how far it is durable is unknown"
                )
            }
            Self::Bad { .. } => f.write_str("bad; the next start makes it good"),
            Self::Missing => f.write_str("the epoch page is missing"),
            Self::WrongSize { bytes } => {
                write!(f, "the epoch page has {bytes} bytes, not {PAGE_SIZE}")
            }
            Self::Foreign { trouble } | Self::Unreadable { trouble } => f.write_str(trouble),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use ostraca_types::{ShardId, StoreId};
    use ostraca_wal::new_epoch_page;

    const IDENTITY: Identity = Identity {
        store: StoreId([1; 16]),
        shard: ShardId(0),
    };

    #[test]
    fn every_state_of_the_page_has_a_name() {
        let dir = tempfile::tempdir().expect("a directory");
        let path = dir.path().join(EPOCH_PAGE);
        let read = || EpochPage::read(dir.path(), &IDENTITY);
        assert_eq!(read(), EpochPage::Missing);
        let page = new_epoch_page(&IDENTITY);
        files::create_durable(&path, &page, 0o600).expect("made");
        assert_eq!(
            read(),
            EpochPage::Good {
                epoch: 0,
                durable_sequence: Some(0)
            }
        );
        let write = |bytes: &[u8]| files::replace_durable(&path, bytes, 0o600).expect("written");
        let mut bad = page;
        bad[64] = 1;
        write(&bad);
        assert_eq!(
            read(),
            EpochPage::Bad {
                durable_sequence: Some(0)
            }
        );
        write(&[0; PAGE_SIZE]);
        assert_eq!(
            read(),
            EpochPage::Bad {
                durable_sequence: None
            }
        );
        write(&page[..4095]);
        assert_eq!(read(), EpochPage::WrongSize { bytes: 4095 });
        let other = Identity {
            shard: ShardId(1),
            ..IDENTITY
        };
        write(&new_epoch_page(&other));
        assert!(matches!(read(), EpochPage::Foreign { .. }));
    }
}
