//! A simulated file: the cache's bytes, the disk's bytes, and which sectors differ.

use std::io;
use std::ops::Range;

use super::{SECTOR_SIZE, Unsynced, below};
use crate::SeededEntropy;

#[derive(Debug, Clone, Default)]
pub(super) struct Inode {
    /// What readers see.
    cached: Vec<u8>,
    /// What is on the disk; it may reach beyond `size_durable` where only the size was not synced.
    durable: Vec<u8>,
    size_durable: usize,
    /// Byte ranges of the writes since the last sync, oldest first.
    unsynced: Vec<Range<usize>>,
}

impl Inode {
    pub(super) fn size(&self) -> u64 {
        self.cached.len() as u64
    }

    pub(super) fn bytes(&self) -> &[u8] {
        &self.cached
    }

    pub(super) fn read(&self, buf: &mut [u8], offset: u64) -> io::Result<()> {
        let bytes = usize::try_from(offset)
            .ok()
            .and_then(|start| self.cached.get(start..start.checked_add(buf.len())?))
            .ok_or(io::ErrorKind::UnexpectedEof)?;
        buf.copy_from_slice(bytes);
        Ok(())
    }

    pub(super) fn write(&mut self, buf: &[u8], offset: u64) {
        if buf.is_empty() {
            return;
        }
        let start = usize::try_from(offset).expect("a simulated file fits memory");
        let range = start..start + buf.len();
        grow(&mut self.cached, range.end);
        self.cached[range.clone()].copy_from_slice(buf);
        self.unsynced.push(range);
    }

    pub(super) fn sync(&mut self, size_too: bool) {
        for range in std::mem::take(&mut self.unsynced) {
            self.keep(sectors_of(&range, self.cached.len()));
        }
        if size_too {
            self.size_durable = self.cached.len();
            grow(&mut self.durable, self.size_durable);
        }
    }

    pub(super) fn forget_unsynced(&mut self) {
        self.unsynced.clear();
    }

    pub(super) fn damage(&mut self, offset: usize, change: impl Fn(&mut [u8])) {
        change(&mut self.cached[offset..]);
        change(&mut self.durable[offset..]);
    }

    /// The bytes of `range` reach the disk.
    fn keep(&mut self, range: Range<usize>) {
        grow(&mut self.durable, range.end);
        self.durable[range.clone()].copy_from_slice(&self.cached[range]);
    }

    /// The power went: decides what of the unsynced bytes and size is on the disk. The file then
    /// is what is on the disk.
    pub(super) fn settle(&mut self, fate: Unsynced, chance: &SeededEntropy) {
        let mut writes = std::mem::take(&mut self.unsynced);
        match fate {
            Unsynced::Lost => {}
            Unsynced::Kept => writes.into_iter().for_each(|range| self.keep(range)),
            Unsynced::Torn => {
                let last = writes.pop();
                writes.into_iter().for_each(|range| self.keep(range));
                if let Some(last) = last {
                    let kept = below(chance, last.len() + 1);
                    self.keep(last.start..last.start + kept);
                }
            }
            Unsynced::Random => {
                // Whole sectors: two writes into one sector have one fate.
                let mut sectors: Vec<usize> = writes
                    .iter()
                    .flat_map(|range| range.start / SECTOR_SIZE..range.end.div_ceil(SECTOR_SIZE))
                    .collect();
                sectors.sort_unstable();
                sectors.dedup();
                for sector in sectors {
                    if below(chance, 2) == 0 {
                        let start = sector * SECTOR_SIZE;
                        self.keep(start..(start + SECTOR_SIZE).min(self.cached.len()));
                    }
                }
            }
        }
        let size_survives = match fate {
            Unsynced::Lost => false,
            Unsynced::Kept => true,
            Unsynced::Torn | Unsynced::Random => below(chance, 2) == 0,
        };
        if size_survives {
            self.size_durable = self.cached.len();
        }
        grow(&mut self.durable, self.size_durable);
        self.durable.truncate(self.size_durable);
        self.cached.clone_from(&self.durable);
    }
}

/// Fills up to `size` with zeros. A copy, because `Vec::resize` is slow without optimisation.
fn grow(bytes: &mut Vec<u8>, size: usize) {
    let missing = size.saturating_sub(bytes.len());
    if missing > 0 {
        bytes.extend_from_slice(&vec![0; missing]);
    }
}

/// The whole sectors that hold `range`, up to the end of a file of `size` bytes.
fn sectors_of(range: &Range<usize>, size: usize) -> Range<usize> {
    let start = range.start / SECTOR_SIZE * SECTOR_SIZE;
    let end = (range.end.div_ceil(SECTOR_SIZE) * SECTOR_SIZE).min(size);
    start..end
}
