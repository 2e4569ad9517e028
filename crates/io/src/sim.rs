//! A disk in memory that keeps what was synced apart from what was only written, and can lose,
//! keep, tear and damage on purpose.
//!
//! One [`SimDisk`] value is the disk as one process sees it. [`SimDisk::crash`] kills that process
//! and [`SimDisk::restarted`] brings the power back; both return the disk for the next process,
//! and every older handle fails from then on. All chance comes from the seed.

use std::collections::BTreeMap;
use std::io;
use std::sync::Arc;

use parking_lot::{Mutex, MutexGuard};

use crate::{Disk, DiskFile, FileName, SeededEntropy};

mod inode;
#[cfg(test)]
mod tests;

use inode::Inode;

/// What a power cut keeps or loses whole.
pub(crate) const SECTOR_SIZE: usize = 512;

/// What a power cut does to sectors and directory entries that were not synced.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Unsynced {
    /// Nothing of it survives.
    Lost,
    /// All of it survives, as if it had been synced.
    Kept,
    /// Of each file's most recent write a prefix survives, which may end within a sector; earlier
    /// writes survive whole. Of the directory's changes a prefix survives.
    Torn,
    /// Each sector, each change of a directory entry and each change of a size survives or not by
    /// its own coin; a sector is old or new whole.
    Random,
}

impl Unsynced {
    /// All fates, for a sweep.
    pub const ALL: [Self; 4] = [Self::Lost, Self::Kept, Self::Torn, Self::Random];
}

/// A simulated [`Disk`]. Clones are the same disk, seen by the same process.
#[derive(Debug, Clone)]
pub struct SimDisk {
    state: Arc<Mutex<State>>,
    process: u64,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
struct InodeId(u64);

/// A change of the directory that a power cut may undo.
#[derive(Debug, Clone)]
enum Change {
    Create(FileName, InodeId),
    Rename {
        from: FileName,
        to: FileName,
        inode: InodeId,
    },
    Remove(FileName, InodeId),
}

type Names = BTreeMap<FileName, InodeId>;

impl Change {
    /// Changes may survive one by one, so this one may meet a directory without the one before.
    fn apply(&self, names: &mut Names) {
        match self {
            Self::Create(name, inode) => {
                names.insert(name.clone(), *inode);
            }
            Self::Rename { from, to, inode } => {
                if names.get(from) == Some(inode) {
                    names.remove(from);
                }
                names.insert(to.clone(), *inode);
            }
            Self::Remove(name, inode) => {
                if names.get(name) == Some(inode) {
                    names.remove(name);
                }
            }
        }
    }
}

#[derive(Debug)]
struct State {
    chance: SeededEntropy,
    /// The process whose handles work.
    process: u64,
    inodes: BTreeMap<InodeId, Inode>,
    inode_next: u64,
    /// The directory as processes see it.
    names: Names,
    /// The directory as a power cut leaves it if nothing unsynced survives.
    names_durable: Names,
    unsynced: Vec<Change>,
    operations: u64,
    cut: Option<(u64, Unsynced)>,
    /// The power is off, and this is the fate of what was not synced.
    off: Option<Unsynced>,
    /// The next sync from this operation on fails.
    sync_fails_from: Option<u64>,
    writes_fail: Option<io::ErrorKind>,
    capacity: u64,
}

/// What one mutating operation may do.
enum Turn {
    /// Run it.
    Run,
    /// The power goes while it runs: what it did is not synced, and the caller gets an error.
    Cut,
}

impl State {
    /// Counts a mutating operation.
    fn begin(&mut self) -> Turn {
        let operation = self.operations;
        self.operations += 1;
        match self.cut {
            Some((at, fate)) if operation >= at => {
                self.off = Some(fate);
                Turn::Cut
            }
            _ => Turn::Run,
        }
    }

    fn inode_of(&self, name: &FileName) -> io::Result<InodeId> {
        self.names
            .get(name)
            .copied()
            .ok_or_else(|| io::ErrorKind::NotFound.into())
    }

    fn change(&mut self, change: Change) {
        change.apply(&mut self.names);
        self.unsynced.push(change);
    }

    fn used(&self) -> u64 {
        self.names
            .values()
            .filter_map(|inode| self.inodes.get(inode))
            .map(Inode::size)
            .sum()
    }

    /// After a failed sync the kernel holds the bytes for clean: a later sync does not write them.
    fn takes_sync_failure(&mut self) -> bool {
        // The sync itself was counted already.
        let fails = self
            .sync_fails_from
            .is_some_and(|from| from < self.operations);
        if fails {
            self.sync_fails_from = None;
        }
        fails
    }

    /// Settles the fate of all that was not synced; what is left is durable.
    fn settle(&mut self, fate: Unsynced) {
        let changes = std::mem::take(&mut self.unsynced);
        let kept = match fate {
            Unsynced::Torn => below(&self.chance, changes.len() + 1),
            _ => 0,
        };
        for (position, change) in changes.iter().enumerate() {
            let survives = match fate {
                Unsynced::Lost => false,
                Unsynced::Kept => true,
                Unsynced::Torn => position < kept,
                Unsynced::Random => below(&self.chance, 2) == 0,
            };
            if survives {
                change.apply(&mut self.names_durable);
            }
        }
        self.names = self.names_durable.clone();
        let names = &self.names;
        self.inodes
            .retain(|id, _| names.values().any(|named| named == id));
        for inode in self.inodes.values_mut() {
            inode.settle(fate, &self.chance);
        }
    }
}

/// A number below `end`.
fn below(chance: &SeededEntropy, end: usize) -> usize {
    usize::try_from(chance.below(end as u64)).unwrap_or(0)
}

fn power_is_off() -> io::Error {
    io::Error::other("the power is off")
}

impl SimDisk {
    /// An empty disk. The same seed and the same calls give the same disk.
    #[must_use]
    pub fn new(seed: u64) -> Self {
        let state = State {
            chance: SeededEntropy::new(seed),
            process: 0,
            inodes: BTreeMap::new(),
            inode_next: 0,
            names: Names::new(),
            names_durable: Names::new(),
            unsynced: Vec::new(),
            operations: 0,
            cut: None,
            off: None,
            sync_fails_from: None,
            writes_fail: None,
            capacity: u64::MAX,
        };
        Self {
            state: Arc::new(Mutex::new(state)),
            process: 0,
        }
    }

    fn lock(&self) -> io::Result<MutexGuard<'_, State>> {
        lock(&self.state, self.process)
    }

    /// Schedules a power cut: the operation with this number (from 0, see [`Self::operations`])
    /// and every call after it fail until [`Self::restarted`]. A write or a change of the
    /// directory that meets the cut is treated as done and not synced; a sync that meets it
    /// synced nothing.
    pub fn power_cut_at(&self, operation: u64, fate: Unsynced) {
        self.state.lock().cut = Some((operation, fate));
    }

    /// Cuts the power now.
    pub fn power_cut(&self, fate: Unsynced) {
        self.state.lock().off = Some(fate);
    }

    /// Whether the power is off.
    #[must_use]
    pub fn is_off(&self) -> bool {
        self.state.lock().off.is_some()
    }

    /// The disk after the power came back: what was not synced has met its fate, what survived is
    /// durable, and operations count from 0 again. If the power is still on, it is cut now, with
    /// the scheduled fate or else [`Unsynced::Random`]. Faults that were asked for are gone, the
    /// capacity stays.
    #[must_use]
    pub fn restarted(&self) -> Self {
        let mut state = self.state.lock();
        let scheduled = state.cut.map(|(_, fate)| fate);
        let fate = state.off.or(scheduled).unwrap_or(Unsynced::Random);
        state.settle(fate);
        state.cut = None;
        state.off = None;
        state.sync_fails_from = None;
        state.writes_fail = None;
        state.operations = 0;
        state.process += 1;
        Self {
            state: Arc::clone(&self.state),
            process: state.process,
        }
    }

    /// Kills the process: nothing that was written is lost, all of its handles are.
    #[must_use]
    pub fn crash(&self) -> Self {
        let mut state = self.state.lock();
        state.process += 1;
        Self {
            state: Arc::clone(&self.state),
            process: state.process,
        }
    }

    /// An independent disk in the same state.
    #[must_use]
    pub fn fork(&self) -> Self {
        let state = self.state.lock();
        let copy = State {
            chance: SeededEntropy::new(state.chance.next()),
            process: state.process,
            inodes: state.inodes.clone(),
            inode_next: state.inode_next,
            names: state.names.clone(),
            names_durable: state.names_durable.clone(),
            unsynced: state.unsynced.clone(),
            operations: state.operations,
            cut: state.cut,
            off: state.off,
            sync_fails_from: state.sync_fails_from,
            writes_fail: state.writes_fail,
            capacity: state.capacity,
        };
        Self {
            state: Arc::new(Mutex::new(copy)),
            process: self.process,
        }
    }

    /// Mutating operations so far: create, rename, remove, write and the three syncs, failed ones
    /// too.
    #[must_use]
    pub fn operations(&self) -> u64 {
        self.state.lock().operations
    }

    /// Lets the next sync of a file or the directory fail. What it should have synced stays
    /// visible, is not durable, and no later sync makes it so: the kernel holds it for clean.
    pub fn fail_next_sync(&self) {
        self.fail_sync_from(0);
    }

    /// Like [`Self::fail_next_sync`], for the first sync that is operation `operation` or a later
    /// one (see [`Self::operations`]).
    pub fn fail_sync_from(&self, operation: u64) {
        self.state.lock().sync_fails_from = Some(operation);
    }

    /// Lets every write fail from now on, each with a prefix of it written.
    pub fn fail_writes_with(&self, kind: io::ErrorKind) {
        self.state.lock().writes_fail = Some(kind);
    }

    /// Ends [`Self::fail_writes_with`].
    pub fn heal_writes(&self) {
        self.state.lock().writes_fail = None;
    }

    /// Bytes that all files together may have; a write that would grow them beyond is
    /// `StorageFull`.
    pub fn set_capacity(&self, bytes: u64) {
        self.state.lock().capacity = bytes;
    }

    /// Flips one bit, on the disk and for readers. Panics if there is no such byte.
    pub fn flip_bit(&self, name: &FileName, offset: u64, bit: u32) {
        self.damage(name, offset, |bytes| bytes[0] ^= 1 << (bit % 8));
    }

    /// Replaces bytes, on the disk and for readers. Panics if they are not all within the file.
    pub fn overwrite(&self, name: &FileName, offset: u64, bytes: &[u8]) {
        self.damage(name, offset, |place| {
            place[..bytes.len()].copy_from_slice(bytes);
        });
    }

    fn damage(&self, name: &FileName, offset: u64, change: impl Fn(&mut [u8])) {
        let mut state = self.state.lock();
        let id = state.inode_of(name).expect("a file to damage");
        let inode = state.inodes.get_mut(&id).expect("a file to damage");
        inode.damage(
            usize::try_from(offset).expect("an offset in memory"),
            change,
        );
    }

    /// A file's bytes as readers see them; `None` if there is no such file.
    #[must_use]
    pub fn contents(&self, name: &FileName) -> Option<Vec<u8>> {
        let state = self.state.lock();
        let id = state.names.get(name)?;
        state.inodes.get(id).map(|inode| inode.bytes().to_vec())
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

fn lock(state: &Mutex<State>, process: u64) -> io::Result<MutexGuard<'_, State>> {
    let state = state.lock();
    if state.process != process {
        return Err(io::Error::other("the process that held this was killed"));
    }
    if state.off.is_some() {
        return Err(power_is_off());
    }
    Ok(state)
}

/// The end of an operation that changed the disk.
fn finish(turn: &Turn) -> io::Result<()> {
    match turn {
        Turn::Run => Ok(()),
        Turn::Cut => Err(power_is_off()),
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
        let id = InodeId(state.inode_next);
        state.inode_next += 1;
        state.inodes.insert(id, Inode::default());
        state.change(Change::Create(name.clone(), id));
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
        let changes = std::mem::take(&mut state.unsynced);
        if state.takes_sync_failure() {
            return Err(io::Error::other(
                "the device failed a sync of the directory",
            ));
        }
        for change in &changes {
            change.apply(&mut state.names_durable);
        }
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
    fn with<T>(&self, run: impl FnOnce(&mut State, InodeId) -> io::Result<T>) -> io::Result<T> {
        let mut state = lock(&self.state, self.process)?;
        run(&mut state, self.inode)
    }

    fn sync(&self, size_too: bool) -> io::Result<()> {
        self.with(|state, id| {
            finish(&state.begin())?;
            let fails = state.takes_sync_failure();
            let inode = inode_mut(state, id)?;
            if fails {
                inode.forget_unsynced();
                return Err(io::Error::other("the device failed a sync"));
            }
            inode.sync(size_too);
            Ok(())
        })
    }
}

/// A removed file lives on under its open handles, until the power goes.
fn inode_mut(state: &mut State, id: InodeId) -> io::Result<&mut Inode> {
    state
        .inodes
        .get_mut(&id)
        .ok_or_else(|| io::ErrorKind::NotFound.into())
}

impl DiskFile for SimFile {
    fn size(&self) -> io::Result<u64> {
        self.with(|state, id| Ok(inode_mut(state, id)?.size()))
    }

    fn read_exact_at(&self, buf: &mut [u8], offset: u64) -> io::Result<()> {
        self.with(|state, id| inode_mut(state, id)?.read(buf, offset))
    }

    fn write_all_at(&self, buf: &[u8], offset: u64) -> io::Result<()> {
        if !self.writable {
            return Err(io::ErrorKind::PermissionDenied.into());
        }
        self.with(|state, id| {
            let turn = state.begin();
            if let Some(kind) = state.writes_fail {
                let written = below(&state.chance, buf.len() + 1);
                inode_mut(state, id)?.write(&buf[..written], offset);
                return Err(kind.into());
            }
            let end = offset.saturating_add(buf.len() as u64);
            let room = state.capacity.saturating_sub(state.used());
            let inode = inode_mut(state, id)?;
            let short = end.saturating_sub(inode.size()).saturating_sub(room);
            if short > 0 {
                let fits = (buf.len() as u64).saturating_sub(short);
                inode.write(&buf[..usize::try_from(fits).unwrap_or(0)], offset);
                return Err(io::ErrorKind::StorageFull.into());
            }
            inode.write(buf, offset);
            finish(&turn)
        })
    }

    fn sync_data(&self) -> io::Result<()> {
        self.sync(false)
    }

    fn sync_all(&self) -> io::Result<()> {
        self.sync(true)
    }
}
