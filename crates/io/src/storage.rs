//! What a shard process opens in its directory.

use std::io;
use std::path::Path;
use std::sync::Arc;

use crate::{Disk, Page, RealDisk, RealPage};

/// Opens disks and pages by their path: the seam at which a faults build puts scripted ones.
pub trait Storage: Send + Sync + 'static {
    /// What a directory is opened as.
    type Disk: Disk;

    /// Opens the directory at `path`.
    fn disk(&self, path: &Path) -> io::Result<Self::Disk>;

    /// Maps the page at `path`; see [`RealPage::open`].
    fn page(&self, path: &Path) -> io::Result<Arc<dyn Page>>;
}

/// The machine's file system.
#[derive(Debug, Clone, Copy)]
pub struct RealStorage;

impl Storage for RealStorage {
    type Disk = RealDisk;

    fn disk(&self, path: &Path) -> io::Result<RealDisk> {
        RealDisk::open(path)
    }

    fn page(&self, path: &Path) -> io::Result<Arc<dyn Page>> {
        Ok(Arc::new(RealPage::open(path)?))
    }
}
