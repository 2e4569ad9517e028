//! The calls of [`Disk`] and [`DiskFile`].

use std::io;
use std::sync::Arc;

use parking_lot::{Mutex, MutexGuard};

use super::state::{Change, InodeId, State, finish, lock};
use super::{SimDisk, below};
use crate::{Disk, DiskFile, FileName};

impl SimDisk {
    fn lock(&self) -> io::Result<MutexGuard<'_, State>> {
        lock(&self.state, self.process)
    }

    fn file(&self, inode: InodeId, writable: bool) -> SimFile {
        SimFile {
            state: Arc::clone(&self.state),
            process: self.process,
            inode,
            writable,
        }
    }

    fn open_as(&self, name: &FileName, writable: bool) -> io::Result<SimFile> {
        let inode = self.lock()?.inode_of(name)?;
        Ok(self.file(inode, writable))
    }
}

impl Disk for SimDisk {
    type File = SimFile;

    fn create(&self, name: &FileName) -> io::Result<SimFile> {
        let mut state = self.lock()?;
        let turn = state.begin();
        if state.names.contains_key(name) {
            return Err(io::ErrorKind::AlreadyExists.into());
        }
        let id = state.create(name);
        finish(&turn)?;
        Ok(self.file(id, true))
    }

    fn open(&self, name: &FileName) -> io::Result<SimFile> {
        self.open_as(name, true)
    }

    fn open_read_only(&self, name: &FileName) -> io::Result<SimFile> {
        self.open_as(name, false)
    }

    fn rename_exclusive(&self, from: &FileName, to: &FileName) -> io::Result<()> {
        let mut state = self.lock()?;
        let turn = state.begin();
        let inode = state.inode_of(from)?;
        if state.names.contains_key(to) {
            return Err(io::ErrorKind::AlreadyExists.into());
        }
        state.change(Change::Rename {
            from: from.clone(),
            to: to.clone(),
            inode,
        });
        finish(&turn)
    }

    fn remove(&self, name: &FileName) -> io::Result<()> {
        let mut state = self.lock()?;
        let turn = state.begin();
        let inode = state.inode_of(name)?;
        state.change(Change::Remove(name.clone(), inode));
        finish(&turn)
    }

    fn list(&self) -> io::Result<Vec<FileName>> {
        Ok(self.lock()?.names.keys().cloned().collect())
    }

    fn sync_dir(&self) -> io::Result<()> {
        let mut state = self.lock()?;
        finish(&state.begin())?;
        if state.takes_sync_failure() {
            state.unsynced.clear();
            return Err(io::Error::other(
                "the device failed a sync of the directory",
            ));
        }
        state.sync_dir();
        Ok(())
    }
}

/// An open file of a [`SimDisk`].
#[derive(Debug)]
pub struct SimFile {
    state: Arc<Mutex<State>>,
    process: u64,
    inode: InodeId,
    writable: bool,
}

impl SimFile {
    fn lock(&self) -> io::Result<MutexGuard<'_, State>> {
        lock(&self.state, self.process)
    }

    fn lock_to_write(&self) -> io::Result<MutexGuard<'_, State>> {
        if !self.writable {
            return Err(io::ErrorKind::PermissionDenied.into());
        }
        self.lock()
    }

    fn sync(&self, size_too: bool) -> io::Result<()> {
        let mut state = self.lock()?;
        finish(&state.begin())?;
        if state.takes_sync_failure() {
            state.inode_mut(self.inode)?.forget_unsynced();
            return Err(io::Error::other("the device failed a sync"));
        }
        state.sync(self.inode, size_too)
    }
}

impl DiskFile for SimFile {
    fn size(&self) -> io::Result<u64> {
        Ok(self.lock()?.inode_mut(self.inode)?.size())
    }

    fn read_exact_at(&self, buf: &mut [u8], offset: u64) -> io::Result<()> {
        self.lock()?.inode_mut(self.inode)?.read(buf, offset)
    }

    fn write_all_at(&self, buf: &[u8], offset: u64) -> io::Result<()> {
        let mut state = self.lock_to_write()?;
        let turn = state.begin();
        if let Some(kind) = state.writes_fail {
            let written = below(&state.chance, buf.len() + 1);
            let inode = state.inode_mut(self.inode)?;
            inode.write(&buf[..written], offset, None);
            return Err(kind.into());
        }
        let room = state.room();
        let end = offset.saturating_add(buf.len() as u64);
        let inode = state.inode_mut(self.inode)?;
        let short = end.saturating_sub(inode.size()).saturating_sub(room);
        if short > 0 {
            let fits = (buf.len() as u64).saturating_sub(short);
            let fits = usize::try_from(fits).unwrap_or(0);
            inode.write(&buf[..fits], offset, None);
            return Err(io::ErrorKind::StorageFull.into());
        }
        let detour = match buf {
            [] => None,
            _ => state.takes_misdirection(self.inode, offset),
        };
        state.inode_mut(self.inode)?.write(buf, offset, detour);
        finish(&turn)
    }

    fn sync_data(&self) -> io::Result<()> {
        self.sync(false)
    }

    fn sync_all(&self) -> io::Result<()> {
        self.sync(true)
    }

    fn set_size(&self, size: u64) -> io::Result<()> {
        let mut state = self.lock_to_write()?;
        let turn = state.begin();
        let room = state.room();
        let inode = state.inode_mut(self.inode)?;
        if size.saturating_sub(inode.size()) > room {
            return Err(io::ErrorKind::StorageFull.into());
        }
        inode.set_size(size);
        finish(&turn)
    }
}
