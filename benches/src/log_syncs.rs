//! The log alone, beside a loop of raw writes and syncs on an equally laid out file.
//!
//! Each round measures every case once, so that a slow moment of the machine hits all of them, and
//! each round starts with another case; figures and ratios are medians over the rounds. All cases
//! put equally many bytes on the disk, into files that were zero-filled before; a latency is one
//! batch's, a rate is over the sum of the latencies.
//!
//! Expected: up to 64 KiB the sync decides, 50 to 150 µs, and sealing takes a few µs of it. With
//! 1 MiB the disk's bandwidth decides; 2,449 records are some 300 µs of CPU to fill and to seal, in
//! which a log with one batch in flight leaves the disk idle; and a log that grows writes every
//! byte twice, the first time as zeros.

#![allow(
    clippy::print_stdout,
    clippy::disallowed_methods,
    reason = "a benchmark prints, times and opens files of its own"
)]
#![allow(clippy::cast_precision_loss, reason = "figures are rounded anyway")]

use std::fs::{File, OpenOptions};
use std::io;
use std::os::unix::fs::{FileExt as _, OpenOptionsExt as _};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use clap::Parser;
use hdrhistogram::Histogram;
use ostraca_io::{Entropy as _, RealDisk, RealPage, SystemEntropy, files};
use ostraca_types::{ShardId, Slot, StoreId, Timestamp};
use ostraca_wal::{
    BATCH_HEADER_SIZE, Batch, Claim, EPOCH_PAGE, Identity, Log, Options, Owner, Prepared,
    RECORD_HEADER_SIZE, Room, Start, new_epoch_page,
};
use rustix::fs::OFlags;

type Failure = Box<dyn std::error::Error + Send + Sync>;

/// Measures the log's syncs.
#[derive(Parser)]
struct Arguments {
    /// Seconds per case and round.
    #[arg(long, default_value_t = 0.5)]
    seconds: f64,
    /// Rounds; the figures are their medians.
    #[arg(long, default_value_t = 7)]
    rounds: usize,
    /// Bytes of a batch. Such that records fill it but for less than a sector.
    #[arg(long, value_delimiter = ',', default_values_t = [512, 4 << 10, 64 << 10, 1 << 20])]
    sizes: Vec<usize>,
    /// Bytes of the raw files and of the log's segments.
    #[arg(long, default_value_t = 64 << 20)]
    file_size: u64,
    /// Where the files are made; it decides which disk is measured.
    #[arg(long, default_value = "target")]
    dir: PathBuf,
}

#[derive(Clone, Copy)]
enum Case {
    /// Write and `fdatasync`.
    Raw,
    /// `O_DIRECT | O_DSYNC`: one call.
    Direct,
    /// `append` and `sync` of a batch that is there; segments are prepared off the clock.
    Log,
    /// The same, the batch filled on the clock.
    LogFilled,
    /// The same, and the next segment is zero-filled on another thread meanwhile.
    LogGrowing,
}

const CASES: [(Case, &str); 5] = [
    (Case::Raw, "write + fdatasync"),
    (Case::Direct, "O_DIRECT, O_DSYNC"),
    (Case::Log, "log: append + sync"),
    (Case::LogFilled, "log: fill + append + sync"),
    (Case::LogGrowing, "the same, segments prepared beside"),
];

/// What a create's record typically is.
const PAYLOAD_SIZE: usize = 380;
const KIND: u8 = 1;
const TIME: Timestamp = Timestamp(1_790_000_000_000);
const IDENTITY: Identity = Identity {
    store: StoreId([1; 16]),
    shard: ShardId(0),
};
/// `O_DIRECT` wants buffers at multiples of a sector or a page; a page suits both.
const PAGE_SIZE: usize = 4096;
const SECTOR_SIZE: usize = 512;
const FILL_SIZE: usize = 1 << 20;
/// What the file system does behind removed segments is not to hit the next case.
const PAUSE: Duration = Duration::from_millis(50);

/// One case of one round.
#[derive(Clone, Copy)]
struct Figures {
    per_second: f64,
    p50_us: f64,
    p99_us: f64,
}

fn main() -> Result<(), Failure> {
    let arguments = Arguments::parse();
    let window = Duration::from_secs_f64(arguments.seconds);
    let dir = tempfile::tempdir_in(&arguments.dir)?;
    let mut subjects = Subjects::create(dir.path(), &arguments)?;
    let rounds = || Vec::with_capacity(arguments.rounds);
    let mut figures = vec![vec![rounds(); CASES.len()]; arguments.sizes.len()];
    for round in 0..arguments.rounds {
        eprint(&format!("round {} of {}", round + 1, arguments.rounds));
        for (at, size) in arguments.sizes.iter().enumerate() {
            for turn in 0..CASES.len() {
                let which = (round + turn) % CASES.len();
                figures[at][which].push(subjects.measure(CASES[which].0, *size, window)?);
            }
        }
    }
    println!(
        "| bytes | case | syncs/s | MB/s | p50 µs | p99 µs | rate / raw | p50 / raw | p99 / raw |"
    );
    println!("| ---: | --- | ---: | ---: | ---: | ---: | ---: | ---: | ---: |");
    for (size, cases) in arguments.sizes.iter().zip(&figures) {
        for ((_, name), of_case) in CASES.iter().zip(cases) {
            print_row(*size, name, of_case, &cases[0]);
        }
    }
    println!(
        "\nO_DIRECT writes here are multiples of {}.",
        subjects.direct_unit
    );
    Ok(())
}

fn print_row(size: usize, name: &str, figures: &[Figures], raw: &[Figures]) {
    let of = |field: fn(&Figures) -> f64| median(figures.iter().map(field));
    let ratio = |field: fn(&Figures) -> f64| {
        let pairs = figures.iter().zip(raw);
        median(pairs.map(|(ours, raw)| field(ours) / field(raw)))
    };
    println!(
        "| {size} | {name} | {:.0} | {:.1} | {:.0} | {:.0} | {:.2} | {:.2} | {:.2} |",
        of(|f| f.per_second),
        of(|f| f.per_second) * size as f64 / 1e6,
        of(|f| f.p50_us),
        of(|f| f.p99_us),
        ratio(|f| f.per_second),
        ratio(|f| f.p50_us),
        ratio(|f| f.p99_us),
    );
}

#[allow(clippy::print_stderr, reason = "talk goes there")]
fn eprint(line: &str) {
    eprintln!("{line}");
}

fn median(values: impl Iterator<Item = f64>) -> f64 {
    let mut values: Vec<f64> = values.collect();
    values.sort_by(f64::total_cmp);
    values.get(values.len() / 2).copied().unwrap_or_default()
}

/// All that is measured, in one directory.
struct Subjects {
    raw: RawFile,
    direct: RawFile,
    /// The smallest write that the file system takes directly.
    direct_unit: usize,
    log: GrowingLog,
    bytes: Aligned,
}

impl Subjects {
    fn create(dir: &Path, arguments: &Arguments) -> Result<Self, Failure> {
        let size = arguments.file_size;
        let direct_flags = OFlags::DIRECT | OFlags::DSYNC;
        let mut direct = RawFile::create(&dir.join("direct"), size, direct_flags)?;
        let size_max = arguments.sizes.iter().max().copied().unwrap_or_default();
        let mut bytes = Aligned::zeroed(size_max.next_multiple_of(PAGE_SIZE));
        SystemEntropy.fill(bytes.as_mut_slice());
        let direct_unit = match direct.write(&bytes.as_slice()[..SECTOR_SIZE]) {
            Err(err) if err.kind() == io::ErrorKind::InvalidInput => PAGE_SIZE,
            written => written.map(|()| SECTOR_SIZE)?,
        };
        direct.offset = 0;
        Ok(Self {
            raw: RawFile::create(&dir.join("raw"), size, OFlags::empty())?,
            direct,
            direct_unit,
            log: GrowingLog::create(&dir.join("log"), size)?,
            bytes,
        })
    }

    fn measure(&mut self, case: Case, size: usize, window: Duration) -> Result<Figures, Failure> {
        let bytes = &self.bytes.as_slice()[..size];
        let padded = size.next_multiple_of(self.direct_unit);
        let direct_bytes = &self.bytes.as_slice()[..padded];
        self.log.fill(size)?;
        let mut histogram = Histogram::<u64>::new(3)?;
        let mut spent = Duration::ZERO;
        while spent < window {
            let started = Instant::now();
            match case {
                Case::Raw => {
                    self.raw.write(bytes)?;
                    self.raw.file.sync_data()?;
                }
                Case::Direct => self.direct.write(direct_bytes)?,
                Case::Log => self.log.append_and_sync()?,
                Case::LogFilled => {
                    self.log.fill(size)?;
                    self.log.append_and_sync()?;
                }
                Case::LogGrowing => {
                    self.log.fill(size)?;
                    self.log.append_and_sync()?;
                    self.log.prepare_beside()?;
                }
            }
            let took = started.elapsed();
            histogram.record(u64::try_from(took.as_nanos())?)?;
            spent += took;
            if matches!(case, Case::Log | Case::LogFilled) {
                self.log.prepare()?;
            }
        }
        self.log.settle()?;
        Ok(Figures {
            per_second: histogram.len() as f64 / spent.as_secs_f64(),
            p50_us: histogram.value_at_quantile(0.5) as f64 / 1000.0,
            p99_us: histogram.value_at_quantile(0.99) as f64 / 1000.0,
        })
    }
}

/// A zero-filled file that is written from its start to its end, again and again.
struct RawFile {
    file: File,
    size: u64,
    offset: u64,
}

impl RawFile {
    fn create(path: &Path, size: u64, flags: OFlags) -> io::Result<Self> {
        let file = OpenOptions::new()
            .write(true)
            .create_new(true)
            .custom_flags(flags.bits().cast_signed())
            .open(path)?;
        let zeros = Aligned::zeroed(FILL_SIZE);
        for offset in (0..size).step_by(FILL_SIZE) {
            file.write_all_at(zeros.as_slice(), offset)?;
        }
        file.sync_all()?;
        Ok(Self {
            file,
            size,
            offset: 0,
        })
    }

    fn write(&mut self, bytes: &[u8]) -> io::Result<()> {
        let size = bytes.len() as u64;
        // The cases of one file differ in size, so it may stand anywhere.
        let at = self.offset.next_multiple_of(size);
        let at = if at + size > self.size { 0 } else { at };
        self.file.write_all_at(bytes, at)?;
        self.offset = at + size;
        Ok(())
    }
}

/// Bytes at an address that `O_DIRECT` takes.
struct Aligned {
    bytes: Vec<u8>,
    from: usize,
    size: usize,
}

impl Aligned {
    fn zeroed(size: usize) -> Self {
        let bytes = vec![0; size + PAGE_SIZE];
        let from = bytes.as_ptr().align_offset(PAGE_SIZE);
        Self { bytes, from, size }
    }

    fn as_slice(&self) -> &[u8] {
        &self.bytes[self.from..][..self.size]
    }

    fn as_mut_slice(&mut self) -> &mut [u8] {
        &mut self.bytes[self.from..][..self.size]
    }
}

/// A log, its batch, and the segment that is being prepared.
struct GrowingLog {
    log: Log<RealDisk>,
    batch: Batch,
    payload: [u8; PAYLOAD_SIZE],
    preparing: Option<JoinHandle<Result<Prepared<RealDisk>, ostraca_wal::Error>>>,
}

impl GrowingLog {
    fn create(dir: &Path, segment_size: u64) -> Result<Self, Failure> {
        files::create_dir_durable(dir, 0o755)?;
        let mut payload = [0; PAYLOAD_SIZE];
        SystemEntropy.fill(&mut payload);
        Ok(Self {
            log: open(dir, segment_size)?,
            batch: Batch::new(),
            payload,
            preparing: None,
        })
    }

    fn fill(&mut self, size: usize) -> Result<(), Failure> {
        self.batch.clear();
        for _ in 0..(size - BATCH_HEADER_SIZE) / (RECORD_HEADER_SIZE + PAYLOAD_SIZE) {
            self.batch.push(KIND, 0, Slot(0), TIME, &self.payload)?;
        }
        assert_eq!(self.batch.size(), size, "the cases write equally much");
        Ok(())
    }

    fn append_and_sync(&mut self) -> Result<(), Failure> {
        self.log.append(&mut self.batch, Room::Ordinary)?;
        Ok(self.log.sync()?)
    }

    fn prepare(&mut self) -> Result<(), Failure> {
        if let Some(preparation) = self.log.wants_segment() {
            self.log.install(preparation.run()?);
        }
        Ok(())
    }

    /// As the engine does it.
    fn prepare_beside(&mut self) -> Result<(), Failure> {
        if let Some(ready) = self.preparing.take_if(|thread| thread.is_finished()) {
            self.install(ready)?;
        }
        if self.preparing.is_none()
            && let Some(preparation) = self.log.wants_segment()
        {
            self.preparing = Some(std::thread::spawn(move || preparation.run()));
        }
        Ok(())
    }

    fn install(
        &mut self,
        thread: JoinHandle<Result<Prepared<RealDisk>, ostraca_wal::Error>>,
    ) -> Result<(), Failure> {
        let prepared = thread.join().map_err(|_| "preparing panicked")?;
        self.log.install(prepared?);
        Ok(())
    }

    /// Ends what a case left running, and gives back the room that it took.
    fn settle(&mut self) -> Result<(), Failure> {
        if let Some(thread) = self.preparing.take() {
            self.install(thread)?;
        }
        if self.log.purge(self.log.durable_sequence())? > 0 {
            std::thread::sleep(PAUSE);
        }
        Ok(())
    }
}

/// Opens the new log in `dir`.
fn open(dir: &Path, segment_size: u64) -> Result<Log<RealDisk>, Failure> {
    let disk = RealDisk::open(dir)?;
    let page = dir.with_extension(EPOCH_PAGE);
    files::create_durable(&page, &new_epoch_page(&IDENTITY), 0o600)?;
    let claim = Claim::raise(
        Arc::new(RealPage::open(&page)?),
        IDENTITY,
        &disk,
        &SystemEntropy,
    )?;
    let nothing = |_: &ostraca_wal::Record<'_>| Ok::<(), ostraca_wal::Error>(());
    let recovery = claim.recover(&disk, Start::Beginning)?;
    let recovered = recovery.replay(&disk, nothing)?;
    let options = Options {
        segment_size,
        segment_size_first: segment_size,
    };
    let owner = Owner([2; 16]);
    Ok(Log::take_over(
        disk, claim, owner, options, recovered, TIME,
    )?)
}
