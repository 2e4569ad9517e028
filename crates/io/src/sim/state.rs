//! What a simulated disk is made of, behind the lock that its processes share.

use std::collections::{BTreeMap, BTreeSet};
use std::io;

use parking_lot::{Mutex, MutexGuard};

use super::inode::{Astray, Inode};
use super::page::Words;
use super::{Unsynced, below};
use crate::{FileName, SeededEntropy};

#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct InodeId(pub(super) u64);

/// A change of the directory that a power cut may undo.
#[derive(Debug, Clone)]
pub(super) enum Change {
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

/// A fault that waits for its write.
#[derive(Debug, Clone)]
pub(super) struct Misdirection {
    /// The first operation that it may meet.
    pub(super) from: u64,
    pub(super) to: Place,
    /// Readers go on to see the right bytes for as long as the cache has them.
    pub(super) hidden: bool,
}

/// Where a device takes a write.
#[derive(Debug, Clone)]
pub(super) enum Place {
    Nowhere,
    Shifted(i64),
    File(FileName, u64),
}

/// What a [`Misdirection`] means for the write that it met.
#[derive(Debug, Clone, Copy)]
pub(super) struct Detour {
    /// Nowhere if there is none.
    pub(super) inode: Option<InodeId>,
    pub(super) shift: i64,
    pub(super) hidden: bool,
}

#[derive(Debug)]
pub(super) struct State {
    pub(super) chance: SeededEntropy,
    /// The processes whose handles work.
    pub(super) alive: BTreeSet<u64>,
    pub(super) process_next: u64,
    pub(super) page: Words,
    pub(super) inodes: BTreeMap<InodeId, Inode>,
    inode_next: u64,
    /// The directory as processes see it.
    pub(super) names: Names,
    /// The directory as a power cut leaves it if nothing unsynced survives.
    names_durable: Names,
    pub(super) unsynced: Vec<Change>,
    pub(super) operations: u64,
    pub(super) cut: Option<(u64, Unsynced)>,
    /// The power is off, and this is the fate of what was not synced.
    pub(super) off: Option<Unsynced>,
    /// The next sync from this operation on fails.
    pub(super) sync_fails_from: Option<u64>,
    pub(super) writes_fail: Option<io::ErrorKind>,
    pub(super) misdirection: Option<Misdirection>,
    pub(super) versions_kept: bool,
    pub(super) capacity: u64,
}

/// What one mutating operation may do.
pub(super) enum Turn {
    /// Run it.
    Run,
    /// The power goes while it runs: what it did is not synced, and the caller gets an error.
    Cut,
}

impl State {
    /// An empty disk, and one process.
    pub(super) fn new(seed: u64) -> Self {
        Self {
            chance: SeededEntropy::new(seed),
            alive: BTreeSet::from([0]),
            process_next: 1,
            page: Words::default(),
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
            misdirection: None,
            versions_kept: false,
            capacity: u64::MAX,
        }
    }

    /// The same state with its own chance. File contents are shared until one of the two writes.
    pub(super) fn fork(&self) -> Self {
        Self {
            chance: SeededEntropy::new(self.chance.next()),
            alive: self.alive.clone(),
            process_next: self.process_next,
            page: self.page.clone(),
            inodes: self.inodes.clone(),
            inode_next: self.inode_next,
            names: self.names.clone(),
            names_durable: self.names_durable.clone(),
            unsynced: self.unsynced.clone(),
            operations: self.operations,
            cut: self.cut,
            off: self.off,
            sync_fails_from: self.sync_fails_from,
            writes_fail: self.writes_fail,
            misdirection: self.misdirection.clone(),
            versions_kept: self.versions_kept,
            capacity: self.capacity,
        }
    }

    /// Counts a mutating operation.
    pub(super) fn begin(&mut self) -> Turn {
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

    pub(super) fn inode_of(&self, name: &FileName) -> io::Result<InodeId> {
        self.names
            .get(name)
            .copied()
            .ok_or_else(|| io::ErrorKind::NotFound.into())
    }

    /// A removed file lives on under its open handles, until the power goes.
    pub(super) fn inode_mut(&mut self, id: InodeId) -> io::Result<&mut Inode> {
        self.inodes
            .get_mut(&id)
            .ok_or_else(|| io::ErrorKind::NotFound.into())
    }

    /// The file of this name, for a fault. Panics if there is none.
    pub(super) fn named_mut(&mut self, name: &FileName) -> &mut Inode {
        let id = self.inode_of(name).expect("a file to damage");
        self.inode_mut(id).expect("a file to damage")
    }

    pub(super) fn create(&mut self, name: &FileName) -> InodeId {
        let id = InodeId(self.inode_next);
        self.inode_next += 1;
        let mut inode = Inode::default();
        if self.versions_kept {
            inode.keep_versions();
        }
        self.inodes.insert(id, inode);
        self.change(Change::Create(name.clone(), id));
        id
    }

    pub(super) fn change(&mut self, change: Change) {
        change.apply(&mut self.names);
        self.unsynced.push(change);
    }

    pub(super) fn sync_dir(&mut self) {
        for change in std::mem::take(&mut self.unsynced) {
            change.apply(&mut self.names_durable);
        }
    }

    /// Bytes that the files may still grow by.
    pub(super) fn room(&self) -> u64 {
        let used = self
            .names
            .values()
            .filter_map(|inode| self.inodes.get(inode))
            .map(Inode::size)
            .sum();
        self.capacity.saturating_sub(used)
    }

    /// After a failed sync the kernel holds the bytes for clean: a later sync does not write them.
    pub(super) fn takes_sync_failure(&mut self) -> bool {
        // The sync itself was counted already.
        let fails = self
            .sync_fails_from
            .is_some_and(|from| from < self.operations);
        if fails {
            self.sync_fails_from = None;
        }
        fails
    }

    /// Where the device takes a write to `offset` of a file, if not there.
    pub(super) fn takes_misdirection(&mut self, id: InodeId, offset: u64) -> Option<Detour> {
        // The write itself was counted already.
        let operations = self.operations;
        let fault = self.misdirection.take_if(|fault| fault.from < operations)?;
        let (inode, shift) = match fault.to {
            Place::Nowhere => (None, 0),
            Place::Shifted(shift) => (Some(id), shift),
            Place::File(name, place) => (
                self.inode_of(&name).ok(),
                place.cast_signed().wrapping_sub(offset.cast_signed()),
            ),
        };
        Some(Detour {
            inode,
            shift,
            hidden: fault.hidden,
        })
    }

    pub(super) fn sync(&mut self, id: InodeId, size_too: bool) -> io::Result<()> {
        for astray in self.inode_mut(id)?.sync(size_too) {
            self.deliver(&astray);
            if !astray.detour.hidden {
                for file in [Some(id), astray.detour.inode].into_iter().flatten() {
                    self.inodes
                        .get_mut(&file)
                        .into_iter()
                        .for_each(Inode::evict);
                }
            }
        }
        Ok(())
    }

    fn deliver(&mut self, astray: &Astray) {
        let target = astray.detour.inode;
        if let Some(inode) = target.and_then(|id| self.inodes.get_mut(&id)) {
            inode.deliver(astray);
        }
    }

    /// The power comes back: the fate of all that was not synced is settled, what is left is
    /// durable, and the faults that waited are gone.
    pub(super) fn restart(&mut self) {
        let scheduled = self.cut.map(|(_, fate)| fate);
        let fate = self.off.or(scheduled).unwrap_or(Unsynced::Random);
        self.settle(fate);
        self.cut = None;
        self.off = None;
        self.sync_fails_from = None;
        self.writes_fail = None;
        self.misdirection = None;
        self.operations = 0;
        self.alive.clear();
    }

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
        let mut astray = Vec::new();
        for inode in self.inodes.values_mut() {
            astray.extend(inode.settle(fate, &self.chance));
        }
        for astray in &astray {
            self.deliver(astray);
        }
        let names = &self.names;
        self.inodes
            .retain(|id, _| names.values().any(|named| named == id));
        // Nothing is left in a cache.
        self.inodes.values_mut().for_each(Inode::evict);
        self.page.settle(fate, &self.chance);
    }
}

/// The state, for a call of a process that lives and has power.
pub(super) fn lock(state: &Mutex<State>, process: u64) -> io::Result<MutexGuard<'_, State>> {
    let state = state.lock();
    if !state.alive.contains(&process) {
        return Err(io::Error::other("the process that held this was killed"));
    }
    if state.off.is_some() {
        return Err(power_is_off());
    }
    Ok(state)
}

/// The end of an operation that changed the disk.
pub(super) fn finish(turn: &Turn) -> io::Result<()> {
    match turn {
        Turn::Run => Ok(()),
        Turn::Cut => Err(power_is_off()),
    }
}

fn power_is_off() -> io::Error {
    io::Error::other("the power is off")
}
