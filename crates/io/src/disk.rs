//! What the engine asks of a disk: one directory of files.

use std::fmt;
use std::io;

#[cfg(test)]
mod conformance;

/// One directory of files, and what a crash may do to it.
///
/// A handle is cheap to clone; clones are the same directory. Every call may block on the device.
///
/// What survives: bytes of a file after its [`DiskFile::sync_data`] (its size too after
/// [`DiskFile::sync_all`]); names after [`Disk::sync_dir`]. Everything else may be lost, kept, or
/// kept in part, in any order, when the power goes. A killed process loses nothing that a call
/// has returned for.
pub trait Disk: Clone + Send + Sync + 'static {
    /// An open file of this disk.
    type File: DiskFile;

    /// Creates an empty file, readable and writable. `AlreadyExists` if the name is taken.
    fn create(&self, name: &FileName) -> io::Result<Self::File>;

    /// Opens a file for reading and writing. Only `NotFound` means that there is none.
    fn open(&self, name: &FileName) -> io::Result<Self::File>;

    /// Opens a file for reading.
    fn open_read_only(&self, name: &FileName) -> io::Result<Self::File>;

    /// Gives a file another name in this directory, atomically. `AlreadyExists` if that name is
    /// taken; nothing is ever replaced.
    fn rename_exclusive(&self, from: &FileName, to: &FileName) -> io::Result<()>;

    /// Removes a name. `NotFound` if there is none.
    fn remove(&self, name: &FileName) -> io::Result<()>;

    /// The names of all files, in ascending order. Names that are no [`FileName`] are left out:
    /// they are not ours.
    fn list(&self) -> io::Result<Vec<FileName>>;

    /// Makes earlier creates, renames and removes survive a power cut.
    fn sync_dir(&self) -> io::Result<()>;
}

/// An open file. Calls on one file may come from several threads.
pub trait DiskFile: Send + Sync + 'static {
    /// The file's size in bytes.
    fn size(&self) -> io::Result<u64>;

    /// Fills `buf` from `offset`. `UnexpectedEof` if the file ends before.
    fn read_exact_at(&self, buf: &mut [u8], offset: u64) -> io::Result<()>;

    /// Writes all of `buf` at `offset`, extending the file if it ends before. After an error any
    /// part of it may have been written.
    fn write_all_at(&self, buf: &[u8], offset: u64) -> io::Result<()>;

    /// Makes written bytes survive a power cut; a file that grew needs [`DiskFile::sync_all`].
    /// After an error the fate of all unsynced bytes is unknown, and a later success says nothing
    /// about them. Never retry: stop and recover.
    fn sync_data(&self) -> io::Result<()>;

    /// Makes bytes, size and allocation survive a power cut. The same holds after an error.
    fn sync_all(&self) -> io::Result<()>;

    /// From now on the caller writes whole sectors into bytes that the file has already: they need
    /// not go through the page cache. A hint, which a disk may ignore; what is promised about
    /// writes, syncs and reads stays the same.
    fn expect_sectors(&self) {}

    /// Cuts the file off at `size` bytes, and gives their room back, or extends it with zeros. It
    /// survives a power cut after [`DiskFile::sync_all`].
    fn set_size(&self, size: u64) -> io::Result<()>;
}

/// Bytes of a [`Page`].
pub const PAGE_SIZE: usize = 4096;
/// Words of a [`Page`].
pub const PAGE_WORDS: usize = PAGE_SIZE / 8;

/// One page that several processes share: what one stores the others load at once, also one that
/// was stopped in between. All calls are sequentially consistent and none but [`Page::flush`]
/// blocks. Words are little-endian in the file. Panics on a word that is not below [`PAGE_WORDS`].
///
/// What survives: a killed process loses nothing that it stored. A power cut leaves, of each word,
/// what the last [`Page::flush`] made durable or anything that was stored since.
pub trait Page: fmt::Debug + Send + Sync {
    /// The value of a word.
    fn load(&self, word: usize) -> u64;

    /// Sets a word.
    fn store(&self, word: usize, value: u64);

    /// Sets a word to `new` if it is `current`; otherwise the error is its value.
    fn compare_exchange(&self, word: usize, current: u64, new: u64) -> Result<u64, u64>;

    /// Makes what was stored before survive a power cut. Blocks. After an error nothing is known
    /// about what did.
    fn flush(&self) -> io::Result<()>;
}

/// The name of a file within its directory: 1 to 64 characters of `a-z`, `0-9`, `-`, `.` and `_`,
/// not starting with a dot.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct FileName(Box<str>);

impl FileName {
    /// Checks a name; `None` if it is not one that we make.
    #[must_use]
    pub fn new(name: &str) -> Option<Self> {
        let valid = |byte: u8| matches!(byte, b'a'..=b'z' | b'0'..=b'9' | b'-' | b'.' | b'_');
        let fits = (1..=64).contains(&name.len());
        (fits && name.bytes().all(valid) && !name.starts_with('.')).then(|| Self(name.into()))
    }

    /// The name.
    #[must_use]
    pub fn as_str(&self) -> &str {
        &self.0
    }
}

impl fmt::Display for FileName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}
