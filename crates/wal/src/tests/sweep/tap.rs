//! The seam, tapped: keeps the disk as each operation left it, breaks one of them on purpose, and
//! can be one of the mutants that a wrapper can express.

use std::io;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard};

use ostraca_io::{Disk, DiskFile, FileName, Page, SimDisk, SimFile, SimPage};

use ostraca_types::Epoch;

use super::run::Known;
use crate::SegmentId;

/// The word of the page that says who leads.
const CELL: usize = 8;

/// A mistake at the seam, for the tests that must catch it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Mutant {
    /// The answer comes before the sync: a sync of data does nothing.
    NoDataSync,
    /// A segment gets its name before its zeros and its size are durable.
    NoSizeSync,
    /// Names are never made durable.
    NoDirectorySync,
    /// The epoch page is never made durable.
    NoPageSync,
    /// Everybody leads for ever: the cell shows each process what it raised it to.
    FenceUnchecked,
}

/// What goes wrong at one operation.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Fault {
    /// A sync, or the next one, fails.
    Sync,
    /// A write, or the next one, fails with a prefix written.
    Write,
    /// From here on nothing may grow.
    Full,
    /// A write, or the next one, goes astray in the device; `hidden`: only the disk shows it, not
    /// the cache.
    Astray { to: Place, hidden: bool },
}

/// Where a write goes that goes astray.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Place {
    Nowhere,
    /// So many bytes further on.
    Shifted(i64),
    /// To this offset of segment 0 of this epoch.
    Segment(u64, u64),
}

/// The disk at one operation, and what a recovery of it must and may find.
#[derive(Debug, Clone)]
pub(super) struct Snapshot {
    pub(super) disk: SimDisk,
    pub(super) known: Known,
}

/// What the taps of all processes of one run share.
#[derive(Debug, Default)]
pub(super) struct Record {
    pub(super) known: Known,
    pub(super) snapshots: Vec<Snapshot>,
    /// Operations so far, and the numbers of those that were syncs and writes.
    pub(super) operations: usize,
    pub(super) syncs: Vec<usize>,
    pub(super) writes: Vec<usize>,
    pub(super) fault: Option<(usize, Fault)>,
    pub(super) keeps_snapshots: bool,
}

/// A [`SimDisk`] as one process sees it, and its page.
#[derive(Debug, Clone)]
pub(super) struct Tap {
    pub(super) disk: SimDisk,
    pub(super) mutant: Option<Mutant>,
    record: Arc<Mutex<Record>>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Kind {
    Sync,
    Write,
    Other,
}

impl Tap {
    pub(super) fn new(disk: SimDisk, mutant: Option<Mutant>) -> Self {
        Self {
            disk,
            mutant,
            record: Arc::default(),
        }
    }

    /// Another process's.
    pub(super) fn of(&self, disk: &SimDisk) -> Self {
        Self {
            disk: disk.clone(),
            ..self.clone()
        }
    }

    pub(super) fn record(&self) -> MutexGuard<'_, Record> {
        self.record
            .lock()
            .expect("no test panics while it holds it")
    }

    pub(super) fn page(&self) -> Arc<TapPage> {
        Arc::new(TapPage {
            page: self.disk.page(),
            tap: self.clone(),
            raised_to: AtomicU64::new(0),
        })
    }

    /// Keeps the disk as a power cut may find it.
    pub(super) fn keep(&self) {
        let mut record = self.record();
        if record.keeps_snapshots {
            let snapshot = Snapshot {
                disk: self.disk.fork(),
                known: record.known.clone(),
            };
            record.snapshots.push(snapshot);
        }
    }

    /// One operation: a power cut finds a change as it was made, and what a sync would have synced
    /// not synced.
    fn operation<T>(&self, kind: Kind, call: impl FnOnce() -> io::Result<T>) -> io::Result<T> {
        if kind == Kind::Sync {
            self.keep();
        }
        let fault = self.next(kind);
        match fault {
            Some(Fault::Sync) => self.disk.fail_next_sync(),
            Some(Fault::Write) => self.disk.fail_writes_with(io::ErrorKind::Other),
            Some(Fault::Full) => self.disk.set_capacity(0),
            Some(Fault::Astray { to, hidden }) => self.misplace(to, hidden),
            None => {}
        }
        let done = call();
        if fault == Some(Fault::Write) {
            self.disk.heal_writes();
        }
        if kind != Kind::Sync {
            self.keep();
        }
        done
    }

    fn misplace(&self, to: Place, hidden: bool) {
        let mut write = self.disk.misplace_next_write();
        if hidden {
            write = write.behind_cache();
        }
        match to {
            Place::Nowhere => write.lost(),
            Place::Shifted(bytes) => write.shifted(bytes),
            Place::Segment(epoch, offset) => {
                let epoch = Epoch(epoch);
                let id = SegmentId { epoch, number: 0 };
                write.into_file(&id.file_name(), offset);
            }
        }
    }

    fn next(&self, kind: Kind) -> Option<Fault> {
        let mut record = self.record();
        let operation = record.operations;
        record.operations += 1;
        match kind {
            Kind::Sync => record.syncs.push(operation),
            Kind::Write => record.writes.push(operation),
            Kind::Other => {}
        }
        let (at, fault) = record.fault?;
        let meets = match fault {
            Fault::Sync => kind == Kind::Sync,
            Fault::Write | Fault::Astray { .. } => kind == Kind::Write,
            Fault::Full => true,
        };
        (operation >= at && meets).then(|| {
            record.fault = None;
            fault
        })
    }

    fn sync(&self, skipped: bool, call: impl FnOnce() -> io::Result<()>) -> io::Result<()> {
        self.operation(Kind::Sync, || if skipped { Ok(()) } else { call() })
    }

    fn file(&self, file: SimFile) -> TapFile {
        TapFile {
            file,
            tap: self.clone(),
        }
    }
}

impl Disk for Tap {
    type File = TapFile;

    fn create(&self, name: &FileName) -> io::Result<TapFile> {
        self.operation(Kind::Other, || self.disk.create(name))
            .map(|file| self.file(file))
    }

    fn open(&self, name: &FileName) -> io::Result<TapFile> {
        self.disk.open(name).map(|file| self.file(file))
    }

    fn open_read_only(&self, name: &FileName) -> io::Result<TapFile> {
        self.disk.open_read_only(name).map(|file| self.file(file))
    }

    fn rename_exclusive(&self, from: &FileName, to: &FileName) -> io::Result<()> {
        self.operation(Kind::Other, || self.disk.rename_exclusive(from, to))
    }

    fn remove(&self, name: &FileName) -> io::Result<()> {
        self.operation(Kind::Other, || self.disk.remove(name))
    }

    fn list(&self) -> io::Result<Vec<FileName>> {
        self.disk.list()
    }

    fn sync_dir(&self) -> io::Result<()> {
        let skipped = self.mutant == Some(Mutant::NoDirectorySync);
        self.sync(skipped, || self.disk.sync_dir())
    }
}

/// A file of a [`Tap`].
#[derive(Debug)]
pub(super) struct TapFile {
    file: SimFile,
    tap: Tap,
}

impl DiskFile for TapFile {
    fn size(&self) -> io::Result<u64> {
        self.file.size()
    }

    fn read_exact_at(&self, buf: &mut [u8], offset: u64) -> io::Result<()> {
        self.file.read_exact_at(buf, offset)
    }

    fn write_all_at(&self, buf: &[u8], offset: u64) -> io::Result<()> {
        self.tap
            .operation(Kind::Write, || self.file.write_all_at(buf, offset))
    }

    fn sync_data(&self) -> io::Result<()> {
        let skipped = self.tap.mutant == Some(Mutant::NoDataSync);
        self.tap.sync(skipped, || self.file.sync_data())
    }

    fn sync_all(&self) -> io::Result<()> {
        let skipped = self.tap.mutant == Some(Mutant::NoSizeSync);
        self.tap.sync(skipped, || self.file.sync_all())
    }

    fn set_size(&self, size: u64) -> io::Result<()> {
        self.tap.operation(Kind::Other, || self.file.set_size(size))
    }
}

/// The page as one process of a [`Tap`] sees it.
#[derive(Debug)]
pub(super) struct TapPage {
    page: Arc<SimPage>,
    tap: Tap,
    raised_to: AtomicU64,
}

impl Page for TapPage {
    fn load(&self, word: usize) -> u64 {
        let raised_to = self.raised_to.load(Ordering::SeqCst);
        if self.tap.mutant == Some(Mutant::FenceUnchecked) && word == CELL && raised_to != 0 {
            return raised_to;
        }
        self.page.load(word)
    }

    fn store(&self, word: usize, value: u64) {
        self.page.store(word, value);
    }

    fn compare_exchange(&self, word: usize, current: u64, new: u64) -> Result<u64, u64> {
        let exchanged = self.page.compare_exchange(word, current, new);
        if exchanged.is_ok() {
            self.raised_to.store(new, Ordering::SeqCst);
        }
        self.tap.keep();
        exchanged
    }

    fn flush(&self) -> io::Result<()> {
        let skipped = self.tap.mutant == Some(Mutant::NoPageSync);
        self.tap.sync(skipped, || self.page.flush())
    }
}
