//! Batches and records as bytes: the tables "Batch header" and "Record header" of FORMAT.md.
//!
//! Decoders take whatever a broken disk returns: they never panic, and use no field of a header
//! before its checksum has passed.

use std::fmt;

use ostraca_types::{Epoch, Sequence, Slot, Timestamp};

use crate::place::{Place, checksum, u32_at, u64_at};
use crate::{Fault, SegmentId};

/// Batches start at multiples of this, so that recovery finds the next one beyond a hole.
pub const BATCH_ALIGNMENT: usize = 512;
/// Bytes of a batch header.
pub const BATCH_HEADER_SIZE: usize = 64;
/// Bytes of a record header.
pub const RECORD_HEADER_SIZE: usize = 48;
/// Largest payload of a record.
pub const PAYLOAD_SIZE_MAX: usize = 64 << 10;
/// Largest batch with header and padding. It bounds a reader's memory, and how far a torn write
/// reaches.
pub const BATCH_SIZE_MAX: usize = 1 << 20;

/// No sequence is higher, so that none that is read can overflow what follows it. A million records a
/// second need 292,000 years to get there.
pub(crate) const SEQUENCE_MAX: u64 = 1 << 63;

/// The kind of the log's own no-op.
pub const KIND_NO_OP: u8 = 0;
/// The highest kind that the log's user may give; those above are reserved in FORMAT.md.
pub const KIND_MAX: u8 = 191;

pub(crate) const BATCH_MAGIC: [u8; 4] = *b"oBAT";

/// Byte ranges inside a batch header: one row of FORMAT.md each.
pub(crate) mod batch_field {
    use std::ops::Range;
    pub(crate) const MAGIC: Range<usize> = 0..4;
    pub(crate) const CRC: Range<usize> = 4..8;
    pub(crate) const SIZE: Range<usize> = 8..12;
    pub(crate) const RECORD_COUNT: Range<usize> = 12..16;
    pub(crate) const EPOCH: Range<usize> = 16..24;
    pub(crate) const FIRST_SEQUENCE: Range<usize> = 24..32;
    pub(crate) const DURABLE_SEQUENCE: Range<usize> = 32..40;
    pub(crate) const CHAIN: Range<usize> = 40..44;
    pub(crate) const FLAGS: Range<usize> = 44..45;
    pub(crate) const RESERVED: Range<usize> = 45..64;
}

/// Byte ranges inside a record header: one row of FORMAT.md each.
pub(crate) mod record_field {
    use std::ops::Range;
    pub(crate) const CRC: Range<usize> = 0..4;
    pub(crate) const PAYLOAD_CRC: Range<usize> = 4..8;
    pub(crate) const PAYLOAD_SIZE: Range<usize> = 8..12;
    pub(crate) const CHAIN: Range<usize> = 12..16;
    pub(crate) const SEQUENCE: Range<usize> = 16..24;
    pub(crate) const EPOCH: Range<usize> = 24..32;
    pub(crate) const TIME: Range<usize> = 32..40;
    pub(crate) const KIND: Range<usize> = 40..41;
    pub(crate) const VERSION: Range<usize> = 41..42;
    pub(crate) const SLOT: Range<usize> = 42..43;
    pub(crate) const RESERVED: Range<usize> = 43..48;
}

const _: () = {
    assert!(batch_field::RESERVED.end == BATCH_HEADER_SIZE);
    assert!(record_field::RESERVED.end == RECORD_HEADER_SIZE);
    assert!(BATCH_SIZE_MAX.is_multiple_of(BATCH_ALIGNMENT));
    assert!(BATCH_SIZE_MAX <= u32::MAX as usize);
    // The largest record fits an empty batch; otherwise it could never be written.
    assert!(BATCH_HEADER_SIZE + RECORD_HEADER_SIZE + PAYLOAD_SIZE_MAX <= BATCH_SIZE_MAX);
};

/// `size` with its padding.
pub(crate) const fn padded(size: usize) -> usize {
    size.next_multiple_of(BATCH_ALIGNMENT)
}

/// What sets a batch apart.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum BatchClass {
    Plain,
    /// Records of an earlier epoch that a take-over wrote again.
    Reappended,
    /// No records: proves what is before it.
    Mark,
}

impl BatchClass {
    pub(crate) const fn to_disk(self) -> u8 {
        match self {
            Self::Plain => 0,
            Self::Reappended => 1,
            Self::Mark => 2,
        }
    }

    const fn from_disk(flags: u8) -> Result<Self, Fault> {
        match flags {
            0 => Ok(Self::Plain),
            1 => Ok(Self::Reappended),
            2 => Ok(Self::Mark),
            _ => Err(Fault::Field),
        }
    }
}

/// A decoded batch header.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct BatchHeader {
    /// Header and records, without padding.
    pub(crate) size: usize,
    pub(crate) record_count: u32,
    pub(crate) epoch: Epoch,
    pub(crate) first_sequence: Sequence,
    /// Chain value before the first record.
    pub(crate) chain: u32,
    pub(crate) class: BatchClass,
}

impl BatchHeader {
    /// Writes the header into `bytes`, checksum included.
    pub(crate) fn encode(&self, bytes: &mut [u8; BATCH_HEADER_SIZE], place: &Place, offset: u64) {
        use batch_field as field;
        let size = u32::try_from(self.size).expect("at most BATCH_SIZE_MAX");
        let durable = self
            .first_sequence
            .0
            .checked_sub(1)
            .expect("sequences start at 1");
        bytes.fill(0);
        bytes[field::MAGIC].copy_from_slice(&BATCH_MAGIC);
        bytes[field::SIZE].copy_from_slice(&size.to_le_bytes());
        bytes[field::RECORD_COUNT].copy_from_slice(&self.record_count.to_le_bytes());
        bytes[field::EPOCH].copy_from_slice(&self.epoch.0.to_le_bytes());
        bytes[field::FIRST_SEQUENCE].copy_from_slice(&self.first_sequence.0.to_le_bytes());
        bytes[field::DURABLE_SEQUENCE].copy_from_slice(&durable.to_le_bytes());
        bytes[field::CHAIN].copy_from_slice(&self.chain.to_le_bytes());
        bytes[field::FLAGS.start] = self.class.to_disk();
        let crc = checksum(bytes, field::CRC, place.seed(offset));
        bytes[field::CRC].copy_from_slice(&crc.to_le_bytes());
    }

    /// Verifies and reads a header at `offset`, of a batch that has `room` bytes there.
    pub(crate) fn decode(
        bytes: &[u8; BATCH_HEADER_SIZE],
        place: &Place,
        offset: u64,
        room: u64,
    ) -> Result<Self, Fault> {
        use batch_field as field;
        if bytes[field::MAGIC] != BATCH_MAGIC {
            return Err(Fault::Magic);
        }
        if u32_at(bytes, field::CRC) != checksum(bytes, field::CRC, place.seed(offset)) {
            return Err(Fault::HeaderChecksum);
        }
        if bytes[field::RESERVED].iter().any(|&byte| byte != 0) {
            return Err(Fault::NotZero);
        }
        let header = Self {
            size: u32_at(bytes, field::SIZE) as usize,
            record_count: u32_at(bytes, field::RECORD_COUNT),
            epoch: Epoch(u64_at(bytes, field::EPOCH)),
            first_sequence: Sequence(u64_at(bytes, field::FIRST_SEQUENCE)),
            chain: u32_at(bytes, field::CHAIN),
            class: BatchClass::from_disk(bytes[field::FLAGS.start])?,
        };
        if header.size < BATCH_HEADER_SIZE
            || header.size > BATCH_SIZE_MAX
            || padded(header.size) as u64 > room
        {
            return Err(Fault::Size);
        }
        if (header.record_count == 0) != (header.class == BatchClass::Mark) {
            return Err(Fault::Field);
        }
        if header.epoch != place.segment().epoch {
            return Err(Fault::Epoch);
        }
        let end = header
            .first_sequence
            .0
            .saturating_add(header.record_count.into());
        if header.first_sequence.0.checked_sub(1) != Some(u64_at(bytes, field::DURABLE_SEQUENCE))
            || end > SEQUENCE_MAX
        {
            return Err(Fault::Sequence);
        }
        Ok(header)
    }
}

/// One record of the log, as it is read. Its `Debug` does not show the payload: nobody knows here
/// what is in it.
#[derive(Clone, Copy, PartialEq, Eq)]
pub struct Record<'a> {
    /// Its place in the shard's log.
    pub sequence: Sequence,
    /// The leadership under which it was first appended.
    pub epoch: Epoch,
    /// Shard time.
    pub time: Timestamp,
    /// [`KIND_NO_OP`], or what the log's user gave it.
    pub kind: u8,
    /// Version of the command.
    pub version: u8,
    /// The part of the key space that it is about.
    pub slot: Slot,
    /// The command.
    pub payload: &'a [u8],
    /// The segment that it was read from.
    pub segment: SegmentId,
    /// Where its header is in that segment.
    pub offset: u64,
}

impl fmt::Debug for Record<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Record")
            .field("sequence", &self.sequence)
            .field("epoch", &self.epoch)
            .field("kind", &self.kind)
            .field("payload_size", &self.payload.len())
            .field("segment", &self.segment)
            .field("offset", &self.offset)
            .finish_non_exhaustive()
    }
}

/// The chain value after a record.
pub(crate) fn chain_after(before: u32, sequence: Sequence, epoch: Epoch, payload_crc: u32) -> u32 {
    let mut bytes = [0; 24];
    bytes[..4].copy_from_slice(&before.to_le_bytes());
    bytes[4..12].copy_from_slice(&sequence.0.to_le_bytes());
    bytes[12..20].copy_from_slice(&epoch.0.to_le_bytes());
    bytes[20..].copy_from_slice(&payload_crc.to_le_bytes());
    crc32fast::hash(&bytes)
}

/// A batch of which every byte was verified.
#[derive(Clone, Copy)]
pub(crate) struct BatchView<'a> {
    pub(crate) header: BatchHeader,
    /// Chain value after the last record.
    pub(crate) chain_end: u32,
    /// Header and records, without padding.
    bytes: &'a [u8],
    segment: SegmentId,
    offset: u64,
}

impl<'a> BatchView<'a> {
    /// Verifies a batch whose header passed; `bytes` is all of it, with its padding.
    pub(crate) fn check(
        bytes: &'a [u8],
        header: BatchHeader,
        place: &Place,
        offset: u64,
    ) -> Result<Self, Fault> {
        if bytes.len() != padded(header.size) {
            return Err(Fault::Size);
        }
        let (bytes, padding) = bytes.split_at(header.size);
        if padding.iter().any(|&byte| byte != 0) {
            return Err(Fault::NotZero);
        }
        let mut sequence = header.first_sequence;
        let mut chain = header.chain;
        let mut epoch = Epoch(0);
        let mut at = BATCH_HEADER_SIZE;
        for _ in 0..header.record_count {
            let record = check_record(&bytes[at..], place, offset + at as u64)?;
            let fits = match header.class {
                BatchClass::Reappended => record.epoch < header.epoch,
                BatchClass::Plain | BatchClass::Mark => record.epoch == header.epoch,
            };
            if !fits || record.epoch < epoch || record.epoch == Epoch(0) {
                return Err(Fault::Epoch);
            }
            if record.sequence != sequence {
                return Err(Fault::Sequence);
            }
            if chain_after(chain, sequence, record.epoch, record.payload_crc) != record.chain {
                return Err(Fault::Chain);
            }
            chain = record.chain;
            epoch = record.epoch;
            sequence = sequence.next();
            at += record.size;
        }
        if at != bytes.len() {
            return Err(Fault::Size);
        }
        Ok(Self {
            header,
            chain_end: chain,
            bytes,
            segment: place.segment(),
            offset,
        })
    }

    pub(crate) fn bytes(&self) -> &'a [u8] {
        self.bytes
    }

    /// Bytes that the batch takes in its segment.
    pub(crate) fn padded_size(&self) -> u64 {
        padded(self.header.size) as u64
    }

    /// The sequence after its last record.
    pub(crate) fn sequence_end(&self) -> Sequence {
        Sequence(self.header.first_sequence.0 + u64::from(self.header.record_count))
    }

    pub(crate) fn records(&self) -> Records<'a> {
        Records {
            bytes: &self.bytes[BATCH_HEADER_SIZE..],
            segment: self.segment,
            offset: self.offset + BATCH_HEADER_SIZE as u64,
        }
    }
}

/// What verifying a record yields for its batch.
struct CheckedRecord {
    size: usize,
    sequence: Sequence,
    epoch: Epoch,
    chain: u32,
    /// Unseeded.
    payload_crc: u32,
}

fn check_record(bytes: &[u8], place: &Place, offset: u64) -> Result<CheckedRecord, Fault> {
    use record_field as field;
    let (header, rest) = bytes
        .split_first_chunk::<RECORD_HEADER_SIZE>()
        .ok_or(Fault::Size)?;
    let seed = place.seed(offset);
    if u32_at(header, field::CRC) != checksum(header, field::CRC, seed) {
        return Err(Fault::HeaderChecksum);
    }
    if header[field::RESERVED].iter().any(|&byte| byte != 0) {
        return Err(Fault::NotZero);
    }
    if header[field::KIND.start] > KIND_MAX {
        return Err(Fault::Field);
    }
    let payload_size = u32_at(header, field::PAYLOAD_SIZE) as usize;
    if payload_size > PAYLOAD_SIZE_MAX {
        return Err(Fault::Size);
    }
    let payload = rest.get(..payload_size).ok_or(Fault::Size)?;
    let payload_crc = crc32fast::hash(payload);
    if u32_at(header, field::PAYLOAD_CRC) != payload_crc ^ seed {
        return Err(Fault::PayloadChecksum);
    }
    Ok(CheckedRecord {
        size: RECORD_HEADER_SIZE + payload_size,
        sequence: Sequence(u64_at(header, field::SEQUENCE)),
        epoch: Epoch(u64_at(header, field::EPOCH)),
        chain: u32_at(header, field::CHAIN),
        payload_crc,
    })
}

/// The records of a verified batch, in order.
#[derive(Clone)]
pub(crate) struct Records<'a> {
    bytes: &'a [u8],
    segment: SegmentId,
    offset: u64,
}

impl<'a> Records<'a> {
    /// Of a batch that was verified and kept: header and records.
    pub(crate) fn of(bytes: &'a [u8], segment: SegmentId) -> Self {
        Self {
            bytes: bytes.get(BATCH_HEADER_SIZE..).unwrap_or_default(),
            segment,
            offset: 0,
        }
    }
}

impl<'a> Iterator for Records<'a> {
    type Item = Record<'a>;

    fn next(&mut self) -> Option<Record<'a>> {
        use record_field as field;
        let (header, rest) = self.bytes.split_first_chunk::<RECORD_HEADER_SIZE>()?;
        let size = u32_at(header, field::PAYLOAD_SIZE) as usize;
        let (payload, rest) = rest.split_at_checked(size)?;
        let record = Record {
            sequence: Sequence(u64_at(header, field::SEQUENCE)),
            epoch: Epoch(u64_at(header, field::EPOCH)),
            time: Timestamp(u64_at(header, field::TIME)),
            kind: header[field::KIND.start],
            version: header[field::VERSION.start],
            slot: Slot(header[field::SLOT.start]),
            payload,
            segment: self.segment,
            offset: self.offset,
        };
        self.bytes = rest;
        self.offset += (RECORD_HEADER_SIZE + size) as u64;
        Some(record)
    }
}

#[cfg(test)]
mod tests;
