//! The tables and checksums of FORMAT.md, written from the document and not from the log's code: a
//! checksum hides everything behind it, so targets put right ones over wrong fields.

use std::ops::Range;

use ostraca_types::{Epoch, Sequence};
use ostraca_wal::{BATCH_ALIGNMENT, BATCH_HEADER_SIZE, Identity, RECORD_HEADER_SIZE, SegmentId};

/// Fields of a segment header; the reserved bytes last.
pub const SEGMENT_FIELDS: [Range<usize>; 17] = [
    0..8,      // magic
    8..12,     // crc
    12..14,    // version
    14..16,    // shard
    16..32,    // store
    32..40,    // epoch
    40..44,    // number
    44..48,    // predecessor_number
    48..64,    // owner
    64..72,    // segment_size
    72..80,    // first_sequence
    80..88,    // predecessor_epoch
    88..104,   // predecessor_owner
    104..112,  // predecessor_end_offset
    112..120,  // predecessor_end_sequence
    120..124,  // predecessor_end_chain
    124..4096, // reserved
];

/// Fields of a batch header; the reserved bytes last.
pub const BATCH_FIELDS: [Range<usize>; 10] = [
    0..4,   // magic
    4..8,   // crc
    8..12,  // size
    12..16, // record_count
    16..24, // epoch
    24..32, // first_sequence
    32..40, // durable_sequence
    40..44, // chain
    44..45, // flags
    45..64, // reserved
];

/// Fields of a record header; the reserved bytes last.
pub const RECORD_FIELDS: [Range<usize>; 11] = [
    0..4,   // crc
    4..8,   // payload_crc
    8..12,  // payload_size
    12..16, // chain
    16..24, // sequence
    24..32, // epoch
    32..40, // time
    40..41, // kind
    41..42, // version
    42..43, // slot
    43..48, // reserved
];

/// `magic` of a batch.
pub const BATCH_MAGIC: [u8; 4] = *b"oBAT";
/// `magic` of a segment.
pub const SEGMENT_MAGIC: [u8; 8] = *b"ostraSEG";

/// Puts a number into a field of a header: as many of its low bytes as there is room for, then
/// zeros.
pub fn put(header: &mut [u8], field: &Range<usize>, value: u64) {
    let bytes = value.to_le_bytes();
    let size = field.len().min(bytes.len());
    header[field.clone()].fill(0);
    header[field.start..field.start + size].copy_from_slice(&bytes[..size]);
}

/// The number in a field of at most eight bytes.
#[must_use]
pub fn get(header: &[u8], field: &Range<usize>) -> u64 {
    let mut bytes = [0; 8];
    bytes[..field.len()].copy_from_slice(&header[field.clone()]);
    u64::from_le_bytes(bytes)
}

/// One place of one file of one store.
#[derive(Debug, Clone, Copy)]
pub struct Place {
    /// Whose log.
    pub identity: Identity,
    /// Which segment.
    pub segment: SegmentId,
    /// Where in it.
    pub offset: u64,
}

impl Place {
    /// `place(offset)`.
    #[must_use]
    pub fn seed(&self) -> u32 {
        let mut hasher = crc32fast::Hasher::new();
        hasher.update(&self.identity.store.0);
        hasher.update(&self.identity.shard.0.to_le_bytes());
        hasher.update(&self.segment.epoch.0.to_le_bytes());
        hasher.update(&self.segment.number.to_le_bytes());
        hasher.update(&self.offset.to_le_bytes());
        hasher.finalize()
    }

    /// So many bytes further on in the same file.
    #[must_use]
    pub fn at(&self, bytes: usize) -> Self {
        Self {
            offset: self.offset + bytes as u64,
            ..*self
        }
    }

    /// Puts the header checksum right.
    pub fn seal(&self, header: &mut [u8], crc: &Range<usize>) {
        let mut hasher = crc32fast::Hasher::new_with_initial(self.seed());
        hasher.update(&header[..crc.start]);
        hasher.update(&header[crc.end..]);
        put(header, crc, hasher.finalize().into());
    }
}

/// The chain value before the first record.
#[must_use]
pub fn chain_start(identity: &Identity) -> u32 {
    let mut hasher = crc32fast::Hasher::new();
    hasher.update(&identity.store.0);
    hasher.update(&identity.shard.0.to_le_bytes());
    hasher.finalize()
}

/// The chain value after a record.
#[must_use]
pub fn chain_after(before: u32, sequence: u64, epoch: u64, payload: &[u8]) -> u32 {
    let mut hasher = crc32fast::Hasher::new();
    hasher.update(&before.to_le_bytes());
    hasher.update(&sequence.to_le_bytes());
    hasher.update(&epoch.to_le_bytes());
    hasher.update(&crc32fast::hash(payload).to_le_bytes());
    hasher.finalize()
}

/// What [`seal_batch`] puts right. Each can be left as it is found.
#[derive(Debug, Clone, Copy)]
pub struct Right(pub u8);

impl Right {
    /// Everything.
    pub const ALL: Self = Self(u8::MAX);
    /// The batch header's checksum.
    pub const HEADER: Self = Self(1);
    /// Header and payload checksums of the records.
    pub const RECORDS: Self = Self(2);
    /// The records' chain.
    pub const CHAIN: Self = Self(4);
    /// Magic, epochs, and what is to be zero.
    pub const CONSTANTS: Self = Self(8);
    /// The records' sequences, and the durable one.
    pub const SEQUENCES: Self = Self(16);
    /// The batch's size and count.
    pub const SIZE: Self = Self(32);
    /// The records' payload sizes, to what is left.
    pub const PAYLOAD_SIZES: Self = Self(64);
    /// Kinds and flags.
    pub const KINDS: Self = Self(128);

    fn has(self, other: Self) -> bool {
        self.0 & other.0 == other.0
    }
}

/// Makes a batch, or something near one, of any bytes at a place; returns the chain value after it.
pub fn seal_batch(bytes: &mut [u8], place: &Place, right: Right) -> u32 {
    let Some((header, records)) = bytes.split_at_mut_checked(BATCH_HEADER_SIZE) else {
        return 0;
    };
    let [
        magic,
        crc,
        size,
        count,
        epoch,
        first,
        durable,
        chain,
        flags,
        reserved,
    ] = &BATCH_FIELDS;
    if right.has(Right::CONSTANTS) {
        header[magic.clone()].copy_from_slice(&BATCH_MAGIC);
        header[reserved.clone()].fill(0);
        put(header, epoch, place.segment.epoch.0);
    }
    if right.has(Right::KINDS) {
        let marks = records.len() < RECORD_HEADER_SIZE;
        let class = if marks { 2 } else { get(header, flags) % 2 };
        put(header, flags, class);
    }
    if right.has(Right::SEQUENCES) {
        put(header, first, get(header, first).max(1));
        put(header, durable, get(header, first).wrapping_sub(1));
    }
    let mut state = RecordState {
        sequence: get(header, first),
        chain: u32::try_from(get(header, chain)).expect("four bytes"),
        reappended: get(header, flags) == 1,
    };
    let (records_size, records_count) =
        seal_records(records, &place.at(BATCH_HEADER_SIZE), right, &mut state);
    if right.has(Right::SIZE) {
        put(header, size, (BATCH_HEADER_SIZE + records_size) as u64);
        put(header, count, records_count);
        records[records_size..].fill(0);
    }
    if right.has(Right::HEADER) {
        place.seal(header, crc);
    }
    state.chain
}

struct RecordState {
    sequence: u64,
    chain: u32,
    reappended: bool,
}

fn seal_records(
    records: &mut [u8],
    place: &Place,
    right: Right,
    state: &mut RecordState,
) -> (usize, u64) {
    let [
        crc,
        payload_crc,
        size,
        chain,
        sequence,
        epoch,
        _,
        kind,
        _,
        _,
        reserved,
    ] = &RECORD_FIELDS;
    let (mut at, mut count) = (0, 0);
    while let Some((header, rest)) = records[at..].split_at_mut_checked(RECORD_HEADER_SIZE) {
        let mut payload_size = usize::try_from(get(header, size)).expect("four bytes");
        if right.has(Right::PAYLOAD_SIZES) {
            payload_size = payload_size.min(rest.len()).min(64 << 10);
            put(header, size, payload_size as u64);
        }
        let Some(payload) = rest.get(..payload_size) else {
            break;
        };
        if right.has(Right::CONSTANTS) {
            header[reserved.clone()].fill(0);
            if !state.reappended {
                put(header, epoch, place.segment.epoch.0);
            }
        }
        if right.has(Right::KINDS) {
            put(header, kind, get(header, kind) % 192);
        }
        if right.has(Right::SEQUENCES) {
            put(header, sequence, state.sequence);
        }
        let before = state.chain;
        state.chain = chain_after(before, get(header, sequence), get(header, epoch), payload);
        if right.has(Right::CHAIN) {
            put(header, chain, state.chain.into());
        }
        if right.has(Right::RECORDS) {
            let seed = place.at(at).seed();
            put(
                header,
                payload_crc,
                (crc32fast::hash(payload) ^ seed).into(),
            );
            place.at(at).seal(header, crc);
        }
        state.sequence = state.sequence.wrapping_add(1);
        at += RECORD_HEADER_SIZE + payload_size;
        count += 1;
    }
    (at, count)
}

/// With the padding of a batch.
#[must_use]
pub fn padded(size: usize) -> usize {
    size.next_multiple_of(BATCH_ALIGNMENT)
}

/// A segment's id.
#[must_use]
pub fn segment(epoch: u64, number: u32) -> SegmentId {
    SegmentId {
        epoch: Epoch(epoch),
        number,
    }
}

/// Where a log, or a part of it, ends.
#[derive(Debug, Clone, Copy)]
pub struct End {
    /// In which segment.
    pub segment: SegmentId,
    /// By whom that was made.
    pub owner: u8,
    /// Where in it.
    pub offset: u64,
    /// The last record.
    pub sequence: Sequence,
    /// Chain value after it.
    pub chain: u32,
}
