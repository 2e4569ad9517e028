//! Tests of the whole crate on the simulated disk. Those of one contract rule start with its
//! number.

use crate::Room;
use std::sync::LazyLock;

use ostraca_io::{Disk, Page, SeededEntropy, SimDisk};
use ostraca_types::{Epoch, Sequence, ShardId, Slot, StoreId, Timestamp};

use crate::*;

mod arbitrary;
mod crash;
mod cut;
mod damage;
mod fence;
mod format;
mod open_log;
mod restarts;
mod rot;
mod rows;
mod segments;
mod sweep;

pub(crate) const IDENTITY: Identity = Identity {
    store: StoreId([0x5a; 16]),
    shard: ShardId(3),
};
pub(crate) static ENTROPY: LazyLock<SeededEntropy> = LazyLock::new(|| SeededEntropy::new(7));
pub(crate) const OWNER: Owner = Owner([0x77; 16]);
pub(crate) const SMALL: Options = Options {
    segment_size: SEGMENT_SIZE_MIN,
    segment_size_first: SEGMENT_SIZE_MIN,
};
pub(crate) const TIME: Timestamp = Timestamp(1_800_000_000_000);
/// Three of these do not fit the smallest segment.
pub(crate) const BIG_BATCH: usize = 9 * BIG_PAYLOAD;
const BIG_PAYLOAD: usize = 40_000;

/// A record as a test remembers it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Stored {
    pub(crate) sequence: Sequence,
    pub(crate) epoch: Epoch,
    pub(crate) time: Timestamp,
    pub(crate) kind: u8,
    pub(crate) slot: Slot,
    pub(crate) payload: Vec<u8>,
}

impl Stored {
    pub(crate) fn of(record: &Record<'_>) -> Self {
        Self {
            sequence: record.sequence,
            epoch: record.epoch,
            time: record.time,
            kind: record.kind,
            slot: record.slot,
            payload: record.payload.to_vec(),
        }
    }
}

/// Reads the log from its start; the records come in order.
pub(crate) fn recover(disk: &SimDisk) -> Result<(Recovered, Vec<Stored>), Error> {
    recover_from(disk, Start::Beginning)
}

pub(crate) fn recover_from(
    disk: &SimDisk,
    start: Start,
) -> Result<(Recovered, Vec<Stored>), Error> {
    let mut records = Vec::new();
    let recovered = Recovery::read_from(disk, IDENTITY, start)?.replay(disk, |record| {
        records.push(Stored::of(record));
        Ok::<(), Error>(())
    })?;
    for pair in records.windows(2) {
        assert_eq!(pair[0].sequence.next(), pair[1].sequence, "no gap");
        assert!(pair[0].epoch <= pair[1].epoch, "epochs never decrease");
    }
    Ok((recovered, records))
}

/// Raises the epoch; the page is made where it is missing.
pub(crate) fn claim(disk: &SimDisk) -> Result<Claim, Error> {
    if disk.page().load(0) == 0 {
        for (word, bytes) in new_epoch_page(&IDENTITY).chunks_exact(8).enumerate() {
            disk.damage_page(word, u64::from_le_bytes(bytes.try_into().expect("eight")));
        }
    }
    Claim::raise(disk.page(), IDENTITY, disk, &*ENTROPY)
}

/// Reads under a claim.
pub(crate) fn recover_under(
    claim: &Claim,
    disk: &SimDisk,
    start: Start,
) -> Result<(Recovered, Vec<Stored>), Error> {
    let mut records = Vec::new();
    let recovered = claim.recover(disk, start)?.replay(disk, |record| {
        records.push(Stored::of(record));
        Ok::<(), Error>(())
    })?;
    Ok((recovered, records))
}

/// Every step of an opening, as a shard takes it.
pub(crate) fn open_from(
    disk: &SimDisk,
    options: Options,
    start: Start,
) -> Result<(Log<SimDisk>, Vec<Stored>), Error> {
    let claim = claim(disk)?;
    let (recovered, records) = recover_under(&claim, disk, start)?;
    let log = Log::take_over(disk.clone(), claim, OWNER, options, recovered, TIME)?;
    Ok((log, records))
}

pub(crate) fn open(disk: &SimDisk) -> Result<(Log<SimDisk>, Vec<Stored>), Error> {
    open_from(disk, SMALL, Start::Beginning)
}

/// Tidies as a shard does, but at once.
pub(crate) fn clean_up(log: &mut Log<SimDisk>) -> Result<usize, Error> {
    log.take_clean_up().map_or(Ok(0), |mut work| work.run())
}

/// A payload that tells its number, so that invented ones are found out.
pub(crate) fn payload(number: u64, size: usize) -> Vec<u8> {
    let mut bytes = number.to_le_bytes().to_vec();
    bytes.extend_from_slice(&vec![number.to_le_bytes()[0] | 1; size]);
    bytes
}

pub(crate) fn number_of(record: &Stored) -> u64 {
    let number = u64::from_le_bytes(record.payload[..8].try_into().expect("eight bytes"));
    assert!(
        record.payload == payload(number, record.payload.len() - 8),
        "an invented payload"
    );
    number
}

pub(crate) fn push(batch: &mut Batch, number: u64, size: usize) {
    let slot = Slot(number.to_le_bytes()[0]);
    batch
        .push(7, 1, slot, TIME, &payload(number, size))
        .expect("room");
}

/// Appends one record and syncs it.
pub(crate) fn append_one(log: &mut Log<SimDisk>, number: u64) -> Result<Sequence, Error> {
    let mut batch = Batch::new();
    push(&mut batch, number, 20);
    let sequence = log.append(&mut batch, Room::Reserve)?;
    log.sync()?;
    Ok(sequence)
}

/// A batch of [`BIG_BATCH`] bytes and a little.
pub(crate) fn big_batch(first_number: u64) -> Batch {
    let mut batch = Batch::new();
    for position in 0..9 {
        push(
            &mut batch,
            first_number + position,
            BIG_PAYLOAD - RECORD_HEADER_SIZE,
        );
    }
    batch
}

/// The numbers of the records that tests appended; the log's own are left out.
pub(crate) fn numbers(records: &[Stored]) -> Vec<u64> {
    records
        .iter()
        .filter(|record| record.kind != KIND_NO_OP)
        .map(number_of)
        .collect()
}

pub(crate) fn segment_names(disk: &SimDisk) -> Vec<String> {
    disk.list()
        .expect("power")
        .iter()
        .map(|name| name.as_str().to_owned())
        .collect()
}
