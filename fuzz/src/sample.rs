//! A valid log, written by the log's own code: what `damage` starts from, and seeds come from.

use ostraca_io::{Disk, FileName, SeededEntropy, SimDisk, Unsynced};
use ostraca_types::{Epoch, Sequence, ShardId, Slot, StoreId, Timestamp};
use ostraca_wal::{
    Batch, Claim, Error, Identity, Log, Options, Owner, Record, Recovered, Recovery, Room,
    SEGMENT_SIZE_MIN, Start, new_epoch_page,
};

/// Whose logs all of these are.
pub const IDENTITY: Identity = Identity {
    store: StoreId([0x5a; 16]),
    shard: ShardId(3),
};
/// Who takes over.
pub const OWNER: Owner = Owner([0x77; 16]);
/// The smallest segments.
pub const OPTIONS: Options = Options {
    segment_size: SEGMENT_SIZE_MIN,
    segment_size_first: SEGMENT_SIZE_MIN,
};
const TIME: Timestamp = Timestamp(1_800_000_000_000);

/// What a record says, wherever it is stored.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Stored {
    /// Its place in the log.
    pub sequence: Sequence,
    /// Under which it was first appended.
    pub epoch: Epoch,
    /// All else in its header.
    pub rest: (Timestamp, u8, u8, Slot),
    /// The command.
    pub payload: Vec<u8>,
}

impl Stored {
    /// Of a record that was read.
    #[must_use]
    pub fn of(record: &Record<'_>) -> Self {
        Self {
            sequence: record.sequence,
            epoch: record.epoch,
            rest: (record.time, record.kind, record.version, record.slot),
            payload: record.payload.to_vec(),
        }
    }
}

/// Reads all that was found.
pub fn replay(disk: &SimDisk, recovery: Recovery) -> Result<(Recovered, Vec<Stored>), Error> {
    let mut records = Vec::new();
    let recovered = recovery.replay(disk, |record| {
        records.push(Stored::of(record));
        Ok::<(), Error>(())
    })?;
    Ok((recovered, records))
}

/// Makes the epoch page of a new shard.
pub fn make_page(disk: &SimDisk) {
    for (word, bytes) in new_epoch_page(&IDENTITY).as_chunks().0.iter().enumerate() {
        disk.damage_page(word, u64::from_le_bytes(*bytes));
    }
}

/// Raises the epoch.
pub fn raise(disk: &SimDisk) -> Result<Claim, Error> {
    Claim::raise(disk.page(), IDENTITY, disk, &SeededEntropy::new(1))
}

/// Goes on from what was read.
pub fn take_over(
    disk: &SimDisk,
    claim: Claim,
    recovered: Recovered,
) -> Result<Log<SimDisk>, Error> {
    Log::take_over(disk.clone(), claim, OWNER, OPTIONS, recovered, TIME)
}

/// Every step of an opening.
pub fn open(disk: &SimDisk, start: Start) -> Result<(Log<SimDisk>, Vec<Stored>), Error> {
    let claim = raise(disk)?;
    let (recovered, records) = replay(disk, claim.recover(disk, start)?)?;
    Ok((take_over(disk, claim, recovered)?, records))
}

/// Appends records with payloads of these sizes as one batch.
pub fn append(log: &mut Log<SimDisk>, sizes: &[usize]) -> Result<(), Error> {
    let mut batch = Batch::new();
    for (position, &size) in sizes.iter().enumerate() {
        let byte = u8::try_from(position % 251).unwrap_or(0) + 1;
        batch
            .push(byte % 191 + 1, 1, Slot(byte), TIME, &vec![byte; size])
            .expect("far from full");
    }
    log.append(&mut batch, Room::Ordinary)?;
    log.sync()
}

/// A log and what it holds.
#[derive(Debug)]
pub struct Sample {
    /// Its disk, which keeps what its files were before.
    pub disk: SimDisk,
    /// Its records, oldest first.
    pub records: Vec<Stored>,
    /// Its files.
    pub files: Vec<FileName>,
}

impl Sample {
    fn of(disk: SimDisk) -> Result<Self, Error> {
        let (_, records) = replay(&disk, Recovery::read(&disk, IDENTITY)?)?;
        let files = disk.list().expect("power");
        Ok(Self {
            disk,
            records,
            files,
        })
    }

    /// Two epochs, a few hundred bytes.
    pub fn small() -> Result<Self, Error> {
        let disk = SimDisk::new(1);
        make_page(&disk);
        let (mut log, _) = open(&disk, Start::Beginning)?;
        append(&mut log, &[20])?;
        append(&mut log, &[0, 7, 600])?;
        log.mark()?;
        append(&mut log, &[100, 1])?;
        let disk = disk.crash();
        let (mut log, _) = open(&disk, Start::Beginning)?;
        append(&mut log, &[5])?;
        append(&mut log, &[5])?;
        Self::of(disk.crash())
    }

    /// Rolled segments, trimmed ones, a torn take-over, marks, and a last batch that nothing but the
    /// epoch page proves.
    pub fn large() -> Result<Self, Error> {
        let disk = SimDisk::new(2);
        disk.keep_versions();
        make_page(&disk);
        let (mut log, _) = open(&disk, Start::Beginning)?;
        append(&mut log, &[20, 30])?;
        append(&mut log, &[60_000; 9])?;
        log.mark()?;
        // Does not fit what is left.
        append(&mut log, &[300; 3])?;
        append(&mut log, &[1])?;
        // The power goes when the next segment has its header and no batch that makes it count.
        let disk = disk.restarted();
        disk.power_cut_at(disk.operations() + 11, Unsynced::Kept);
        assert!(open(&disk, Start::Beginning).is_err(), "the power is off");
        let disk = disk.restarted();
        let (mut log, _) = open(&disk, Start::Beginning)?;
        append(&mut log, &[2000, 0, 1])?;
        append(&mut log, &[9])?;
        if let Some(mut work) = log.take_clean_up() {
            work.run()?;
        }
        let (mut log, _) = open(&disk, Start::Beginning)?;
        append(&mut log, &[40; 5])?;
        append(&mut log, &[512])?;
        append(&mut log, &[3, 4])?;
        Self::of(disk.crash())
    }
}
