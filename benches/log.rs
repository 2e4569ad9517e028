//! The CPU that the log's framing takes: filling a batch, sealing it, and reading it back.
//!
//! No device: the disk drops what is written, or keeps it in memory. So `seal` is an append and a
//! sync but for the two system calls, and `replay` includes one copy of the bytes, as a read from
//! the page cache would. A record is a typical create's, 380 bytes of payload; batches are 512 B,
//! 4 KiB, 64 KiB and 1 MiB in the log. Divide by the records, or read the elements per second.
//!
//! Expected: fill 40 ns a record (a copy and a CRC of the payload), seal 30 ns (two CRCs over short
//! headers), replay the sum of both.

#![allow(missing_docs, reason = "a benchmark")]

use std::collections::BTreeMap;
use std::hint::black_box;
use std::io;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use criterion::{BenchmarkId, Criterion, Throughput, criterion_group, criterion_main};
use ostraca_io::{Disk, DiskFile, FileName, RealPage, SystemEntropy, files};
use ostraca_types::{ShardId, Slot, StoreId, Timestamp};
use ostraca_wal::{
    BATCH_SIZE_MAX, Batch, Claim, EPOCH_PAGE, Error, Identity, Log, Options, Owner, Record,
    Recovery, Room, SEGMENT_SIZE_MAX, Start, new_epoch_page,
};

const PAYLOAD: [u8; 380] = [7; 380];
const RECORDS: [usize; 4] = [1, 9, 152, 2449];
const TIME: Timestamp = Timestamp(1_790_000_000_000);
const IDENTITY: Identity = Identity {
    store: StoreId([1; 16]),
    shard: ShardId(0),
};
/// What is replayed: one segment, filled.
const REPLAYED_SIZE: u64 = 64 << 20;

fn fill(batch: &mut Batch, records: usize) {
    batch.clear();
    for _ in 0..records {
        let pushed = batch.push(1, 0, Slot(0), TIME, black_box(&PAYLOAD));
        pushed.expect("the largest batch holds as many");
    }
}

fn append(log: &mut Log<Memory>, batch: &mut Batch) {
    log.append(batch, Room::Ordinary).expect("written");
    log.sync().expect("synced");
}

fn framing(c: &mut Criterion) {
    let mut group = c.benchmark_group("log");
    for records in RECORDS {
        group.throughput(Throughput::Elements(records as u64));
        let mut batch = Batch::new();
        group.bench_function(BenchmarkId::new("fill", records), |b| {
            b.iter(|| fill(&mut batch, records));
        });
        let mut log = open(&Memory::new(Keeps::Nothing), SEGMENT_SIZE_MAX);
        fill(&mut batch, records);
        group.bench_function(BenchmarkId::new("seal", records), |b| {
            b.iter(|| append(&mut log, &mut batch));
        });
    }
    group.finish();
}

fn replay(c: &mut Criterion) {
    let mut group = c.benchmark_group("log");
    group.sample_size(20);
    for records in RECORDS {
        let disk = Memory::new(Keeps::All);
        let mut log = open(&disk, REPLAYED_SIZE);
        let mut batch = Batch::new();
        fill(&mut batch, records);
        // A roll would follow, and a segment that is hardly used.
        while log.free() > 2 * BATCH_SIZE_MAX as u64 {
            append(&mut log, &mut batch);
        }
        let last = log.sequence_next().0 - 1;
        group.throughput(Throughput::Elements(last));
        group.bench_function(BenchmarkId::new("replay", records), |b| {
            b.iter(|| {
                let recovery = Recovery::read(&disk, IDENTITY).expect("a sound log");
                let replayed = recovery.replay(&disk, |record| {
                    black_box(record);
                    Ok::<(), Error>(())
                });
                let recovered = replayed.expect("a sound log");
                assert_eq!(recovered.last_sequence().0, last);
            });
        });
    }
    group.finish();
}

/// Opens the new log on `disk`.
fn open(disk: &Memory, segment_size: u64) -> Log<Memory> {
    let dir = tempfile::tempdir_in(env!("CARGO_TARGET_TMPDIR")).expect("a directory");
    let page = dir.path().join(EPOCH_PAGE);
    files::create_durable(&page, &new_epoch_page(&IDENTITY), 0o600).expect("made");
    let page = Arc::new(RealPage::open(&page).expect("just made"));
    let claim = Claim::raise(page, IDENTITY, disk, &SystemEntropy).expect("a new page");
    let recovery = claim.recover(disk, Start::Beginning).expect("nothing");
    let nothing = |_: &Record<'_>| Ok::<(), Error>(());
    let recovered = recovery.replay(disk, nothing).expect("nothing");
    let options = Options {
        segment_size,
        segment_size_first: segment_size,
    };
    let owner = Owner([2; 16]);
    Log::take_over(disk.clone(), claim, owner, options, recovered, TIME).expect("opened")
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum Keeps {
    Nothing,
    All,
}

/// A disk without a device.
#[derive(Clone)]
struct Memory {
    keeps: Keeps,
    files: Arc<Mutex<BTreeMap<FileName, MemoryFile>>>,
}

#[derive(Clone)]
struct MemoryFile {
    keeps: Keeps,
    bytes: Arc<Mutex<Vec<u8>>>,
}

/// Nothing is left half done under these locks.
fn locked<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

impl Memory {
    fn new(keeps: Keeps) -> Self {
        Self {
            keeps,
            files: Arc::default(),
        }
    }
}

impl Disk for Memory {
    type File = MemoryFile;

    fn create(&self, name: &FileName) -> io::Result<MemoryFile> {
        let file = MemoryFile {
            keeps: self.keeps,
            bytes: Arc::default(),
        };
        locked(&self.files).insert(name.clone(), file.clone());
        Ok(file)
    }

    fn open(&self, name: &FileName) -> io::Result<MemoryFile> {
        let files = locked(&self.files);
        let file = files.get(name).cloned();
        file.ok_or_else(|| io::ErrorKind::NotFound.into())
    }

    fn open_read_only(&self, name: &FileName) -> io::Result<MemoryFile> {
        self.open(name)
    }

    fn rename_exclusive(&self, from: &FileName, to: &FileName) -> io::Result<()> {
        let mut files = locked(&self.files);
        let file = files.remove(from).ok_or(io::ErrorKind::NotFound)?;
        files.insert(to.clone(), file);
        Ok(())
    }

    fn remove(&self, name: &FileName) -> io::Result<()> {
        locked(&self.files).remove(name);
        Ok(())
    }

    fn list(&self) -> io::Result<Vec<FileName>> {
        Ok(locked(&self.files).keys().cloned().collect())
    }

    fn sync_dir(&self) -> io::Result<()> {
        Ok(())
    }
}

impl DiskFile for MemoryFile {
    fn size(&self) -> io::Result<u64> {
        Ok(locked(&self.bytes).len() as u64)
    }

    fn read_exact_at(&self, buf: &mut [u8], offset: u64) -> io::Result<()> {
        let bytes = locked(&self.bytes);
        let from = usize::try_from(offset).map_err(io::Error::other)?;
        let read = bytes.get(from..).and_then(|rest| rest.get(..buf.len()));
        buf.copy_from_slice(read.ok_or(io::ErrorKind::UnexpectedEof)?);
        Ok(())
    }

    fn write_all_at(&self, buf: &[u8], offset: u64) -> io::Result<()> {
        if self.keeps == Keeps::Nothing {
            return Ok(());
        }
        let from = usize::try_from(offset).map_err(io::Error::other)?;
        let mut bytes = locked(&self.bytes);
        let end = bytes.len().max(from + buf.len());
        bytes.resize(end, 0);
        bytes[from..][..buf.len()].copy_from_slice(buf);
        Ok(())
    }

    fn sync_data(&self) -> io::Result<()> {
        Ok(())
    }

    fn sync_all(&self) -> io::Result<()> {
        Ok(())
    }

    fn set_size(&self, size: u64) -> io::Result<()> {
        let size = usize::try_from(size).map_err(io::Error::other)?;
        locked(&self.bytes).resize(size, 0);
        Ok(())
    }
}

criterion_group!(benches, framing, replay);
criterion_main!(benches);
