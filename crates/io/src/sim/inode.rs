//! A simulated file: what readers see, what is on the disk, and what happened to it since its
//! sync.

use std::collections::BTreeMap;
use std::io;
use std::ops::Range;
use std::sync::Arc;

use super::content::Content;
use super::state::Detour;
use super::{SECTOR_SIZE, Unsynced, below};
use crate::SeededEntropy;

#[derive(Debug, Clone, Default)]
pub(super) struct Inode {
    /// What readers see.
    cached: Content,
    /// What is on the disk; it may reach beyond `size_durable` where only the size was not synced.
    durable: Content,
    size_durable: usize,
    /// Oldest first.
    unsynced: Vec<Change>,
    /// Every state that was on the disk, oldest first, if they are kept.
    versions: Option<Arc<Vec<Content>>>,
}

/// A change of a file that a power cut may undo.
#[derive(Debug, Clone)]
enum Change {
    Write(Write),
    /// The file got this size and was smaller.
    Grown(usize),
    /// The file got this size and was larger.
    Cut(usize),
}

/// A write, as the device gets it: whole sectors.
#[derive(Debug, Clone)]
struct Write {
    /// What the caller wrote.
    range: Range<usize>,
    /// Where the first of its sectors starts.
    start: usize,
    /// All of its sectors, as they were in the cache after the write.
    bytes: Arc<[u8]>,
    /// Synced, and here only because the truncation before it is not.
    firm: bool,
    detour: Option<Detour>,
}

impl Write {
    fn sectors(&self) -> Range<usize> {
        self.start / SECTOR_SIZE..self.end() / SECTOR_SIZE
    }

    fn end(&self) -> usize {
        self.start + self.bytes.len()
    }

    fn part(&self, part: Range<usize>) -> &[u8] {
        &self.bytes[part.start - self.start..part.end - self.start]
    }
}

/// Bytes that reached the disk at a wrong place.
#[derive(Debug)]
pub(super) struct Astray {
    pub(super) detour: Detour,
    /// Where they belong.
    start: usize,
    bytes: Vec<u8>,
}

impl Inode {
    pub(super) fn size(&self) -> u64 {
        self.cached.size() as u64
    }

    pub(super) fn cached(&self) -> &Content {
        &self.cached
    }

    pub(super) fn read(&self, buf: &mut [u8], offset: u64) -> io::Result<()> {
        if buf.is_empty() {
            return Ok(());
        }
        let start = usize::try_from(offset)
            .ok()
            .filter(|start| {
                let end = start.checked_add(buf.len());
                end.is_some_and(|end| end <= self.cached.size())
            })
            .ok_or(io::ErrorKind::UnexpectedEof)?;
        self.cached.read(buf, start);
        Ok(())
    }

    pub(super) fn write(&mut self, buf: &[u8], offset: u64, detour: Option<Detour>) {
        if buf.is_empty() {
            return;
        }
        let range = in_memory(offset)..in_memory(offset) + buf.len();
        if range.end > self.cached.size() {
            self.unsynced.push(Change::Grown(range.end));
        }
        self.cached.write(range.start, buf);
        let start = range.start / SECTOR_SIZE * SECTOR_SIZE;
        let mut bytes = self
            .cached
            .bytes(start, range.end.next_multiple_of(SECTOR_SIZE) - start);
        // What is beyond the end of a file is zeros on the disk.
        bytes.resize(bytes.len().next_multiple_of(SECTOR_SIZE), 0);
        self.unsynced.push(Change::Write(Write {
            range,
            start,
            bytes: bytes.into(),
            firm: false,
            detour,
        }));
    }

    pub(super) fn set_size(&mut self, size: u64) {
        let size = in_memory(size);
        match size.cmp(&self.cached.size()) {
            std::cmp::Ordering::Less => self.unsynced.push(Change::Cut(size)),
            std::cmp::Ordering::Equal => {}
            std::cmp::Ordering::Greater => self.unsynced.push(Change::Grown(size)),
        }
        self.cached.set_size(size);
    }

    /// What was written reaches the disk; what of it went astray is for [`Self::deliver`].
    pub(super) fn sync(&mut self, size_too: bool) -> Vec<Astray> {
        let mut astray = Vec::new();
        let mut cut = false;
        for change in std::mem::take(&mut self.unsynced) {
            match change {
                // Until the truncation is durable, this must come after it and survive without it.
                Change::Write(write) if cut && write.detour.is_none() => {
                    self.unsynced.push(Change::Write(Write {
                        firm: true,
                        ..write
                    }));
                }
                Change::Write(write) => self.land(&write, write.start..write.end(), &mut astray),
                size if size_too => self.resize(&size),
                size => {
                    cut |= matches!(size, Change::Cut(_));
                    self.unsynced.push(size);
                }
            }
        }
        if size_too {
            assert_eq!(
                self.size_durable,
                self.cached.size(),
                "every change was noted"
            );
            self.durable.set_size(self.size_durable);
        }
        self.remember();
        astray
    }

    /// A failed sync: the kernel holds the bytes for clean and no later sync writes them. Sizes are
    /// the file system's own and may still reach the disk.
    pub(super) fn forget_unsynced(&mut self) {
        self.unsynced
            .retain(|change| !matches!(change, Change::Write(write) if !write.firm));
    }

    /// The power went: decides what of the unsynced changes is on the disk. The file then is what
    /// is on the disk.
    pub(super) fn settle(&mut self, fate: Unsynced, chance: &SeededEntropy) -> Vec<Astray> {
        let changes = std::mem::take(&mut self.unsynced);
        let mut lot = Lot::draw(fate, &changes, chance);
        let mut astray = Vec::new();
        for (position, change) in changes.iter().enumerate() {
            match change {
                Change::Write(write) if write.firm => {
                    self.land(write, write.start..write.end(), &mut astray);
                }
                Change::Write(write) => {
                    for part in lot.parts(position, write) {
                        self.land(write, part, &mut astray);
                    }
                }
                size if lot.takes_size() => self.resize(size),
                _ => {}
            }
        }
        self.durable.set_size(self.size_durable);
        self.cached = self.durable.clone();
        self.remember();
        astray
    }

    /// Part of a write reaches the disk.
    fn land(&mut self, write: &Write, part: Range<usize>, astray: &mut Vec<Astray>) {
        let Some(detour) = write.detour else {
            self.durable.write(part.start, write.part(part));
            return;
        };
        let part = part.start.max(write.range.start)..part.end.min(write.range.end);
        if !part.is_empty() {
            astray.push(Astray {
                detour,
                start: part.start,
                bytes: write.part(part).to_vec(),
            });
        }
    }

    /// A change of the size reaches the disk.
    fn resize(&mut self, change: &Change) {
        match change {
            Change::Write(_) => {}
            Change::Grown(size) => self.size_durable = *size,
            Change::Cut(size) => {
                self.durable.set_size(self.durable.size().min(*size));
                self.size_durable = *size;
            }
        }
        if self.size_durable > self.durable.size() {
            self.durable.set_size(self.size_durable);
        }
    }

    /// The device puts bytes here that belong elsewhere. Those that fall outside of the file are
    /// lost.
    pub(super) fn deliver(&mut self, astray: &Astray) {
        let place =
            i128::try_from(astray.start).unwrap_or(i128::MAX) + i128::from(astray.detour.shift);
        // What would be before the file's start.
        let outside = usize::try_from(-place).unwrap_or(0).min(astray.bytes.len());
        if let Ok(start) = usize::try_from(place.max(0)) {
            self.durable.write_within(start, &astray.bytes[outside..]);
        }
        self.remember();
    }

    /// The kernel drops what it holds for clean: readers see the disk, and on it what is unsynced.
    pub(super) fn evict(&mut self) {
        let size = self.cached.size();
        let mut seen = self.durable.clone();
        for change in &self.unsynced {
            match change {
                Change::Write(write) => seen.write(write.start, &write.bytes),
                Change::Cut(size) => seen.set_size(seen.size().min(*size)),
                Change::Grown(_) => {}
            }
        }
        seen.set_size(size);
        self.cached = seen;
    }

    /// Changes `size` bytes wherever they are: in the cache, on the disk and on their way there.
    /// Panics if they are not all within the file.
    pub(super) fn damage(&mut self, start: usize, size: usize, change: impl Fn(&mut [u8])) {
        let end = start.checked_add(size);
        assert!(
            end.is_some_and(|end| end <= self.cached.size()),
            "no such bytes to damage"
        );
        for content in [&mut self.cached, &mut self.durable] {
            let mut bytes = content.bytes(start, size);
            bytes.resize(size, 0);
            change(&mut bytes);
            content.write_within(start, &bytes);
        }
        for unsynced in &mut self.unsynced {
            let Change::Write(write) = unsynced else {
                continue;
            };
            let common = start.max(write.start)..(start + size).min(write.end());
            if !common.is_empty() {
                let here = common.start - write.start..common.end - write.start;
                let there = common.start - start..common.end - start;
                let mut bytes = vec![0; size];
                bytes[there.clone()].copy_from_slice(&write.bytes[here.clone()]);
                change(&mut bytes);
                Arc::make_mut(&mut write.bytes)[here].copy_from_slice(&bytes[there]);
            }
        }
    }

    /// The file is these bytes, for readers and on the disk.
    pub(super) fn replace(&mut self, bytes: &[u8]) {
        self.unsynced.clear();
        self.durable = Content::from(bytes);
        self.size_durable = bytes.len();
        self.cached = self.durable.clone();
        self.remember();
    }

    /// From now on every state that was on the disk is kept.
    pub(super) fn keep_versions(&mut self) {
        self.versions.get_or_insert_default();
        self.remember();
    }

    /// Every state that was on the disk, oldest first.
    pub(super) fn versions(&self) -> &[Content] {
        self.versions.as_deref().map_or(&[], Vec::as_slice)
    }

    fn remember(&mut self) {
        if let Some(versions) = &mut self.versions {
            let mut now = self.durable.clone();
            now.set_size(self.size_durable);
            if !versions.last().is_some_and(|last| last.same(&now)) {
                Arc::make_mut(versions).push(now);
            }
        }
    }
}

/// What a power cut leaves of a file's changes.
struct Lot {
    fate: Unsynced,
    /// The position of the write that is torn, and how many of its bytes survive.
    torn: Option<(usize, usize)>,
    /// Of each sector, how many of the writes to it reached the disk before the power went: the
    /// last of these is what it holds.
    versions: BTreeMap<usize, usize>,
    /// How many of the changes of the size reached the disk.
    sizes: usize,
}

impl Lot {
    fn draw(fate: Unsynced, changes: &[Change], chance: &SeededEntropy) -> Self {
        let mut lot = Self {
            fate,
            torn: None,
            versions: BTreeMap::new(),
            sizes: 0,
        };
        for (position, change) in changes.iter().enumerate() {
            match change {
                Change::Write(write) if write.firm => {}
                Change::Write(write) if fate == Unsynced::Random => {
                    for sector in write.sectors() {
                        *lot.versions.entry(sector).or_default() += 1;
                    }
                }
                Change::Write(write) if fate == Unsynced::Torn => {
                    lot.torn = Some((position, write.range.len()));
                }
                Change::Write(_) => {}
                Change::Grown(_) | Change::Cut(_) => lot.sizes += 1,
            }
        }
        for version in lot.versions.values_mut() {
            *version -= below(chance, *version + 1);
        }
        if let Some((_, kept)) = &mut lot.torn {
            *kept = below(chance, *kept + 1);
        }
        lot.sizes -= match fate {
            Unsynced::Lost => lot.sizes,
            Unsynced::Kept => 0,
            Unsynced::Torn | Unsynced::Random => below(chance, lot.sizes + 1),
        };
        lot
    }

    /// The parts of the write at `position` that survive. Writes are asked for in order.
    fn parts(&mut self, position: usize, write: &Write) -> Vec<Range<usize>> {
        let whole = write.start..write.end();
        match (self.fate, self.torn) {
            (Unsynced::Lost, _) => Vec::new(),
            (Unsynced::Torn, Some((torn, 0))) if torn == position => Vec::new(),
            (Unsynced::Torn, Some((torn, kept))) if torn == position => {
                let part = write.start..write.range.start + kept;
                vec![part]
            }
            (Unsynced::Kept | Unsynced::Torn, _) => vec![whole],
            (Unsynced::Random, _) => {
                let survives = |sector: &usize| {
                    let left = self.versions.entry(*sector).or_default();
                    let last = *left == 1;
                    *left = left.saturating_sub(1);
                    last
                };
                let part = |sector| sector * SECTOR_SIZE..(sector + 1) * SECTOR_SIZE;
                write.sectors().filter(survives).map(part).collect()
            }
        }
    }

    /// Whether the next change of the size survives.
    fn takes_size(&mut self) -> bool {
        let takes = self.sizes > 0;
        self.sizes = self.sizes.saturating_sub(1);
        takes
    }
}

fn in_memory(offset: u64) -> usize {
    usize::try_from(offset).expect("a simulated file fits memory")
}
