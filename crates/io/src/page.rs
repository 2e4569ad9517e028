//! A page of a file, mapped by every process that shares it.

#![expect(unsafe_code, reason = "mapped memory that other processes change")]

use std::fs::OpenOptions;
use std::io;
use std::path::Path;
use std::sync::atomic::{AtomicU64, Ordering};

use memmap2::MmapRaw;

use crate::disk::{PAGE_SIZE, PAGE_WORDS, Page};

/// A [`Page`] that is a file of exactly [`PAGE_SIZE`] bytes on a local file system.
///
/// Nobody may cut the file off while it is mapped: a load then ends the process (SIGBUS), which is
/// safe and not pleasant.
#[derive(Debug)]
pub struct RealPage(MmapRaw);

impl RealPage {
    /// Maps the file at `path`. `InvalidData` if it has another size, `NotFound` if there is none.
    pub fn open(path: &Path) -> io::Result<Self> {
        let file = OpenOptions::new().read(true).write(true).open(path)?;
        if file.metadata()?.len() != PAGE_SIZE as u64 {
            return Err(io::ErrorKind::InvalidData.into());
        }
        // The mapping keeps the file open by itself. The kernel closes it on exec.
        let map = MmapRaw::map_raw(&file)?;
        Ok(Self(map))
    }

    fn word(&self, word: usize) -> &AtomicU64 {
        assert!(word < PAGE_WORDS, "a page has no word {word}");
        let start = self.0.as_mut_ptr().cast::<u64>();
        // SAFETY: the mapping is `PAGE_SIZE` bytes long, page-aligned, readable, writable, and
        // lives as long as `self`; the word is within it. It is only ever accessed as this atomic,
        // here and in other processes, which run this code or read through the page cache.
        unsafe { AtomicU64::from_ptr(start.add(word)) }
    }
}

impl Page for RealPage {
    fn load(&self, word: usize) -> u64 {
        u64::from_le(self.word(word).load(Ordering::SeqCst))
    }

    fn store(&self, word: usize, value: u64) {
        self.word(word).store(value.to_le(), Ordering::SeqCst);
    }

    fn compare_exchange(&self, word: usize, current: u64, new: u64) -> Result<u64, u64> {
        self.word(word)
            .compare_exchange(
                current.to_le(),
                new.to_le(),
                Ordering::SeqCst,
                Ordering::SeqCst,
            )
            .map(u64::from_le)
            .map_err(u64::from_le)
    }

    fn flush(&self) -> io::Result<()> {
        self.0.flush()
    }
}
