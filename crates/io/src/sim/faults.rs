//! The faults that a test can ask for.

use std::io;

use super::content::Content;
use super::state::{Misdirection, Place};
use super::{SECTOR_SIZE, SimDisk};
use crate::FileName;

impl SimDisk {
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

    /// Lets the device misplace the next write that succeeds; the call on what this returns says
    /// to where.
    pub fn misplace_next_write(&self) -> Misplacement<'_> {
        self.misplace_write_from(0)
    }

    /// Like [`Self::misplace_next_write`], for the first write that is operation `operation` or a
    /// later one (see [`Self::operations`]).
    pub fn misplace_write_from(&self, operation: u64) -> Misplacement<'_> {
        Misplacement {
            disk: self,
            from: operation,
            hidden: false,
        }
    }

    /// Whether a write that was to be misplaced has not come yet.
    #[must_use]
    pub fn awaits_misplaced_write(&self) -> bool {
        self.state.lock().misdirection.is_some()
    }

    /// Lets the kernel drop all clean bytes from its cache: readers see what the disk has, and on
    /// it what is not synced yet.
    pub fn evict_cache(&self) {
        let mut state = self.state.lock();
        state.inodes.values_mut().for_each(|inode| inode.evict());
    }

    /// Flips one bit, on the disk and for readers. Panics if there is no such byte.
    pub fn flip_bit(&self, name: &FileName, offset: u64, bit: u32) {
        self.damage(name, offset, 1, |byte| byte[0] ^= 1 << (bit % 8));
    }

    /// Replaces bytes, on the disk and for readers. Panics if they are not all within the file.
    pub fn overwrite(&self, name: &FileName, offset: u64, bytes: &[u8]) {
        self.damage(name, offset, bytes.len(), |place| {
            place.copy_from_slice(bytes);
        });
    }

    fn damage(&self, name: &FileName, offset: u64, size: usize, change: impl Fn(&mut [u8])) {
        let start = usize::try_from(offset).expect("an offset in memory");
        let mut state = self.state.lock();
        state.named_mut(name).damage(start, size, change);
    }

    /// Sets a word of the page, for readers and on the disk.
    pub fn damage_page(&self, word: usize, value: u64) {
        self.state.lock().page.damage(word, value);
    }

    /// A file's bytes as readers see them; `None` if there is no such file.
    #[must_use]
    pub fn contents(&self, name: &FileName) -> Option<Vec<u8>> {
        let state = self.state.lock();
        let inode = state.inodes.get(state.names.get(name)?)?;
        Some(whole(inode.cached()))
    }

    /// From now on every state that a file has on the disk is kept, the present one too, for
    /// [`Self::older_copies`] and [`Self::older_sectors`]. Forks share what was kept.
    pub fn keep_versions(&self) {
        let mut state = self.state.lock();
        state.versions_kept = true;
        for inode in state.inodes.values_mut() {
            inode.keep_versions();
        }
    }

    /// What the file was on the disk after each sync since [`Self::keep_versions`], oldest first,
    /// without repeats and without what readers see now. Panics if there is no such file.
    #[must_use]
    pub fn older_copies(&self, name: &FileName) -> Vec<Vec<u8>> {
        self.older(name, whole)
    }

    /// What one sector of a file was on the disk, like [`Self::older_copies`]; shorter where the
    /// file ended within it.
    #[must_use]
    pub fn older_sectors(&self, name: &FileName, sector: usize) -> Vec<Vec<u8>> {
        let start = sector * SECTOR_SIZE;
        let mut older = self.older(name, |content| content.bytes(start, SECTOR_SIZE));
        older.retain(|bytes| !bytes.is_empty());
        older
    }

    fn older(&self, name: &FileName, part: impl Fn(&Content) -> Vec<u8>) -> Vec<Vec<u8>> {
        let mut state = self.state.lock();
        let inode = state.named_mut(name);
        let now = part(inode.cached());
        let mut older = Vec::new();
        for version in inode.versions() {
            let bytes = part(version);
            if bytes != now && !older.contains(&bytes) {
                older.push(bytes);
            }
        }
        older
    }

    /// Brings back an older copy of a file, whole: on the disk and for readers, who see its size
    /// too. The bytes may be any, such as [`Self::contents`] at an earlier time. Panics if there is
    /// no such file.
    pub fn restore_file(&self, name: &FileName, copy: &[u8]) {
        self.state.lock().named_mut(name).replace(copy);
    }

    /// Brings back an older copy of one sector, on the disk and for readers. Panics if it is not
    /// within the file.
    pub fn restore_sector(&self, name: &FileName, sector: usize, copy: &[u8]) {
        assert!(copy.len() <= SECTOR_SIZE, "more than a sector");
        self.overwrite(name, (sector * SECTOR_SIZE) as u64, copy);
    }
}

/// A write whose bytes a device puts elsewhere before it reports success. The last call says where;
/// without it nothing happens.
///
/// The cache has the right bytes until they reach the disk, by a sync or a power cut. From then on
/// readers see what the disk has: the right place as it was before, and the bytes at the other
/// place. What falls outside of the file there is lost.
#[derive(Debug)]
#[must_use = "it needs a place to misplace the write to"]
pub struct Misplacement<'disk> {
    disk: &'disk SimDisk,
    from: u64,
    hidden: bool,
}

impl Misplacement<'_> {
    /// Readers see no change until the next restart or [`SimDisk::evict_cache`]: only the disk is
    /// wrong.
    pub fn behind_cache(self) -> Self {
        Self {
            hidden: true,
            ..self
        }
    }

    /// The device puts the bytes nowhere: a lost write.
    pub fn lost(self) {
        self.into_place(Place::Nowhere);
    }

    /// The device puts the bytes so many further on or back in the same file.
    pub fn shifted(self, bytes: i64) {
        self.into_place(Place::Shifted(bytes));
    }

    /// The device puts the bytes at `offset` of the file that has this name at the time of the
    /// write. If there is none the write is lost.
    pub fn into_file(self, name: &FileName, offset: u64) {
        self.into_place(Place::File(name.clone(), offset));
    }

    fn into_place(self, to: Place) {
        self.disk.state.lock().misdirection = Some(Misdirection {
            from: self.from,
            to,
            hidden: self.hidden,
        });
    }
}

fn whole(content: &Content) -> Vec<u8> {
    content.bytes(0, content.size())
}
