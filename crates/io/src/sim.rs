//! A disk in memory that keeps what was synced apart from what was only written, and can lose,
//! keep, tear and damage on purpose.
//!
//! One [`SimDisk`] value is the disk as one process sees it; [`SimDisk::beside`] is another one's.
//! [`SimDisk::crash`] kills that process and [`SimDisk::restarted`] brings the power back; both
//! return the disk for a new process, and the handles of who was killed fail from then on. All
//! chance comes from the seed.
//!
//! | method | fault | what it stands for |
//! | --- | --- | --- |
//! | [`SimDisk::crash`] | the handles are lost, no byte is | a killed process: the cache lives on |
//! | [`SimDisk::power_cut`], [`SimDisk::power_cut_at`] | [`Unsynced`]: sectors, sizes, names and page words that were not synced are lost, kept, torn or reordered | the power goes; the kernel writes back in any order, the device sector by sector |
//! | [`SimDisk::fail_next_sync`], [`SimDisk::fail_sync_from`] | a sync fails, the cache shows new bytes, the disk has old ones, and no later sync helps | the device fails a write-back, the kernel marks its pages clean |
//! | [`SimDisk::evict_cache`] | readers see the disk's bytes where nothing is unsynced | the kernel needs its memory: old bytes come back after a failed sync |
//! | [`SimDisk::fail_writes_with`], [`SimDisk::heal_writes`] | writes fail with a prefix written | a failing device, a quota, a signal |
//! | [`SimDisk::set_capacity`] | writes and sizes that grow a file are `StorageFull` | a full file system |
//! | [`SimDisk::misplace_next_write`], [`SimDisk::misplace_write_from`] | a write is acknowledged and synced, its bytes are elsewhere in the file, in another file, or nowhere | a misdirected or lost write: firmware, a controller, a failing address line |
//! | the same, `behind_cache` | the same, and readers see the right bytes until the restart | the same, while the kernel caches what it wrote |
//! | [`SimDisk::flip_bit`], [`SimDisk::overwrite`] | bytes change | rot, a wild write, a zeroed block, another program |
//! | [`SimDisk::restore_sector`] with [`SimDisk::older_sectors`] | one sector is an older one | an old mapping of a flash device, a lost write found later |
//! | [`SimDisk::restore_file`] with [`SimDisk::older_copies`] or [`SimDisk::contents`] | a file is an older one | a backup or a snapshot brought back |
//! | [`SimDisk::damage_page`] | a page word changes | rot, another program |

use std::sync::Arc;

use parking_lot::Mutex;

use crate::SeededEntropy;

mod content;
mod faults;
mod file;
mod inode;
mod page;
mod state;
#[cfg(test)]
mod tests;

pub use file::SimFile;
pub use page::SimPage;
use state::State;

/// What a power cut keeps or loses whole.
pub(crate) const SECTOR_SIZE: usize = 512;

/// What a power cut does to sectors, sizes, directory entries and page words that were not synced.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Unsynced {
    /// Nothing of it survives.
    Lost,
    /// All of it survives, as if it had been synced.
    Kept,
    /// Of each file's most recent write a prefix survives, which may end within a sector; earlier
    /// writes survive whole. Of the directory's changes a prefix survives. A size or a page word
    /// is any that it was since its sync.
    Torn,
    /// Each sector, size and page word is any that it was since its sync, by its own chance; a
    /// sector is whole. Each change of a directory entry survives or not by its own coin.
    Random,
}

impl Unsynced {
    /// All fates, for a sweep.
    pub const ALL: [Self; 4] = [Self::Lost, Self::Kept, Self::Torn, Self::Random];
}

/// A simulated [`crate::Disk`]. Clones are the same disk, seen by the same process.
#[derive(Debug, Clone)]
pub struct SimDisk {
    state: Arc<Mutex<State>>,
    process: u64,
}

impl SimDisk {
    /// An empty disk. The same seed and the same calls give the same disk.
    #[must_use]
    pub fn new(seed: u64) -> Self {
        Self {
            state: Arc::new(Mutex::new(State::new(seed))),
            process: 0,
        }
    }

    /// Schedules a power cut: the operation with this number (from 0, see [`Self::operations`])
    /// and every call after it fail until [`Self::restarted`]. A write or a change of a size, of the
    /// directory or of the page that meets the cut is treated as done and not synced; a sync that
    /// meets it synced nothing.
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
        state.restart();
        self.process_of(&mut state)
    }

    /// Kills the process, and the disk is a new one's: nothing that was written is lost, all of
    /// the killed one's handles are.
    #[must_use]
    pub fn crash(&self) -> Self {
        let mut state = self.state.lock();
        state.alive.remove(&self.process);
        self.process_of(&mut state)
    }

    /// The disk of one more process, which lives beside this one.
    #[must_use]
    pub fn beside(&self) -> Self {
        self.process_of(&mut self.state.lock())
    }

    fn process_of(&self, state: &mut State) -> Self {
        let process = state.process_next;
        state.process_next += 1;
        state.alive.insert(process);
        Self {
            state: Arc::clone(&self.state),
            process,
        }
    }

    /// The page beside the disk, zeros at first.
    #[must_use]
    pub fn page(&self) -> Arc<SimPage> {
        Arc::new(SimPage {
            state: Arc::clone(&self.state),
            process: self.process,
        })
    }

    /// An independent disk in the same state. Cheap: the two share the bytes of their files until
    /// one of them writes there.
    #[must_use]
    pub fn fork(&self) -> Self {
        let copy = self.state.lock().fork();
        Self {
            state: Arc::new(Mutex::new(copy)),
            process: self.process,
        }
    }

    /// Mutating operations so far: create, rename, remove, write, a change of a size, an exchange
    /// of a page word and the four syncs, failed ones too.
    #[must_use]
    pub fn operations(&self) -> u64 {
        self.state.lock().operations
    }
}

/// A number below `end`.
fn below(chance: &SeededEntropy, end: usize) -> usize {
    usize::try_from(chance.below(end as u64)).unwrap_or(0)
}
