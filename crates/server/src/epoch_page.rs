//! The epoch page of a shard, and whether it is the one that the shard's other processes map.
//!
//! The fence works among those who look at the same page. It is a file, and a person can put another
//! one in its place (`ostraca log cut` makes a lost one anew) while a standby waits.

use std::io;
use std::path::PathBuf;
use std::sync::Arc;

use ostraca_io::files::Pinned;
use ostraca_io::{Page, Storage};

use crate::error::ServeError;

/// A mapped page, and where it was.
pub(crate) struct MappedPage {
    page: Arc<dyn Page>,
    file: Pinned,
    path: PathBuf,
}

impl MappedPage {
    /// Maps the page at `path`. It was made with the store, and is never made by a shard: whoever
    /// leads now would look at another one.
    pub(crate) fn map<S: Storage>(storage: &S, path: PathBuf) -> Result<Self, ServeError> {
        let opened = || {
            // In this order: if the file is still there after the mapping, it is what was mapped.
            let file = Pinned::open(&path)?;
            Ok((file, storage.page(&path)?))
        };
        match opened() {
            Ok((file, page)) => {
                let mapped = Self { page, file, path };
                mapped.check()?;
                Ok(mapped)
            }
            Err(err) => Err(failed(path, err)),
        }
    }

    pub(crate) fn page(&self) -> &Arc<dyn Page> {
        &self.page
    }

    /// That another file has taken its place. One that was only removed is what all look at, still.
    pub(crate) fn replaced(&self) -> Option<ServeError> {
        let replaced = matches!(self.file.is_at(&self.path), Ok(false));
        replaced.then(|| ServeError::EpochPageReplaced(self.path.clone()))
    }

    /// That whoever comes next looks at this page.
    pub(crate) fn check(&self) -> Result<(), ServeError> {
        match self.file.is_at(&self.path) {
            Ok(true) => Ok(()),
            Ok(false) => Err(ServeError::EpochPageReplaced(self.path.clone())),
            Err(err) => Err(failed(self.path.clone(), err)),
        }
    }
}

fn failed(path: PathBuf, err: io::Error) -> ServeError {
    match err.kind() {
        io::ErrorKind::NotFound | io::ErrorKind::InvalidData => ServeError::NoEpochPage(path),
        _ => ServeError::Io("cannot map the shard's epoch page", err),
    }
}
