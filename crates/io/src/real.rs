//! A directory of the machine's file system.

use std::fs::{File, OpenOptions};
use std::io;
use std::os::unix::fs::{FileExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use std::sync::Arc;

use crate::direct::Direct;
use crate::{Disk, DiskFile, FileName};

/// A directory on a local file system.
#[derive(Debug, Clone)]
pub struct RealDisk {
    path: Arc<PathBuf>,
    /// Kept open, so that renames and syncs are about this directory whatever its path becomes.
    dir: Arc<File>,
}

impl RealDisk {
    /// Opens the directory at `path`.
    pub fn open(path: &Path) -> io::Result<Self> {
        let dir = OpenOptions::new()
            .read(true)
            .custom_flags(oflags(rustix::fs::OFlags::DIRECTORY))
            .open(path)?;
        Ok(Self {
            path: Arc::new(path.to_owned()),
            dir: Arc::new(dir),
        })
    }

    /// Where the directory is, for messages.
    #[must_use]
    pub fn path(&self) -> &Path {
        &self.path
    }

    fn path_of(&self, name: &FileName) -> PathBuf {
        self.path.join(name.as_str())
    }
}

fn oflags(flags: rustix::fs::OFlags) -> i32 {
    flags.bits().cast_signed()
}

impl Disk for RealDisk {
    type File = RealFile;

    fn create(&self, name: &FileName) -> io::Result<RealFile> {
        let file = OpenOptions::new()
            .read(true)
            .write(true)
            .create_new(true)
            .open(self.path_of(name))?;
        Ok(RealFile::from(file))
    }

    fn open(&self, name: &FileName) -> io::Result<RealFile> {
        OpenOptions::new()
            .read(true)
            .write(true)
            .open(self.path_of(name))
            .map(RealFile::from)
    }

    fn open_read_only(&self, name: &FileName) -> io::Result<RealFile> {
        OpenOptions::new()
            .read(true)
            .open(self.path_of(name))
            .map(RealFile::from)
    }

    fn rename_exclusive(&self, from: &FileName, to: &FileName) -> io::Result<()> {
        let flags = rustix::fs::RenameFlags::NOREPLACE;
        rustix::fs::renameat_with(&self.dir, from.as_str(), &self.dir, to.as_str(), flags)?;
        Ok(())
    }

    fn remove(&self, name: &FileName) -> io::Result<()> {
        std::fs::remove_file(self.path_of(name))
    }

    fn list(&self) -> io::Result<Vec<FileName>> {
        let mut names = Vec::new();
        for entry in std::fs::read_dir(&*self.path)? {
            let entry = entry?;
            if let Some(name) = entry.file_name().to_str().and_then(FileName::new)
                && entry.file_type()?.is_file()
            {
                names.push(name);
            }
        }
        names.sort();
        Ok(names)
    }

    fn sync_dir(&self) -> io::Result<()> {
        self.dir.sync_all()
    }
}

/// An open file of a [`RealDisk`]. Descriptors are close-on-exec, as the standard library opens
/// them.
#[derive(Debug)]
pub struct RealFile {
    file: File,
    direct: Direct,
}

impl From<File> for RealFile {
    fn from(file: File) -> Self {
        let direct = Direct::default();
        Self { file, direct }
    }
}

impl DiskFile for RealFile {
    fn size(&self) -> io::Result<u64> {
        Ok(self.file.metadata()?.len())
    }

    fn read_exact_at(&self, buf: &mut [u8], offset: u64) -> io::Result<()> {
        self.file.read_exact_at(buf, offset)
    }

    fn write_all_at(&self, buf: &[u8], offset: u64) -> io::Result<()> {
        self.direct.write_all_at(&self.file, buf, offset)
    }

    fn expect_sectors(&self) {
        self.direct.turn_on(&self.file);
    }

    fn sync_data(&self) -> io::Result<()> {
        self.file.sync_data()
    }

    fn sync_all(&self) -> io::Result<()> {
        self.file.sync_all()
    }

    fn set_size(&self, size: u64) -> io::Result<()> {
        self.file.set_len(size)
    }
}
