//! Segment files: their names, their header, and how one is prepared.

use std::fmt;
use std::io;
use std::sync::Arc;

use ostraca_io::{Disk, DiskFile, FileName};
use ostraca_types::{Epoch, Sequence, ShardId, StoreId};

use crate::error::Action;
use crate::fence::Claim;
use crate::frame::{BATCH_ALIGNMENT, BATCH_SIZE_MAX, SEQUENCE_MAX};
use crate::place::{Identity, Owner, Place, array_at, checksum, is_zero, u16_at, u32_at, u64_at};
use crate::{Error, Fault};

/// The version of FORMAT.md that this code writes and reads.
pub const FORMAT_VERSION: u16 = 1;
/// Bytes of one copy of the segment header.
pub const SEGMENT_HEADER_SIZE: usize = 4096;
/// Where batches start.
pub const BATCHES_START: u64 = 2 * SEGMENT_HEADER_SIZE as u64;
/// Two headers, the largest batch, a no-op.
pub const SEGMENT_SIZE_MIN: u64 = BATCHES_START + BATCH_SIZE_MAX as u64 + 4096;
/// Recovery reads the rest of the last segment.
pub const SEGMENT_SIZE_MAX: u64 = 1 << 30;

pub(crate) const SEGMENT_MAGIC: [u8; 8] = *b"ostraSEG";
/// Zeros are written in chunks of this.
const PREPARE_CHUNK_SIZE: usize = 1 << 20;

/// Byte ranges inside a segment header: one row of FORMAT.md each.
pub(crate) mod field {
    use std::ops::Range;
    pub(crate) const MAGIC: Range<usize> = 0..8;
    pub(crate) const CRC: Range<usize> = 8..12;
    pub(crate) const VERSION: Range<usize> = 12..14;
    pub(crate) const SHARD: Range<usize> = 14..16;
    pub(crate) const STORE: Range<usize> = 16..32;
    pub(crate) const EPOCH: Range<usize> = 32..40;
    pub(crate) const NUMBER: Range<usize> = 40..44;
    pub(crate) const PREDECESSOR_NUMBER: Range<usize> = 44..48;
    pub(crate) const OWNER: Range<usize> = 48..64;
    pub(crate) const SEGMENT_SIZE: Range<usize> = 64..72;
    pub(crate) const FIRST_SEQUENCE: Range<usize> = 72..80;
    pub(crate) const PREDECESSOR_EPOCH: Range<usize> = 80..88;
    pub(crate) const PREDECESSOR_OWNER: Range<usize> = 88..104;
    pub(crate) const PREDECESSOR_END_OFFSET: Range<usize> = 104..112;
    pub(crate) const PREDECESSOR_END_SEQUENCE: Range<usize> = 112..120;
    pub(crate) const PREDECESSOR_END_CHAIN: Range<usize> = 120..124;
    pub(crate) const RESERVED: Range<usize> = 124..4096;
}

const _: () = {
    assert!(field::RESERVED.end == SEGMENT_HEADER_SIZE);
    assert!(BATCHES_START.is_multiple_of(BATCH_ALIGNMENT as u64));
    assert!(SEGMENT_SIZE_MIN.is_multiple_of(BATCH_ALIGNMENT as u64));
    // The largest batch, written again by a take-over, and its no-op fit the smallest segment.
    assert!(BATCHES_START + BATCH_SIZE_MAX as u64 + BATCH_ALIGNMENT as u64 <= SEGMENT_SIZE_MIN);
};

/// The name of a segment: who made it, and which of that maker's it is.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct SegmentId {
    /// The maker's epoch.
    pub epoch: Epoch,
    /// Within the epoch: from 0 up, possibly with gaps.
    pub number: u32,
}

impl fmt::Display for SegmentId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:016x}-{:08x}", self.epoch.0, self.number)
    }
}

impl SegmentId {
    /// The name of its file.
    #[must_use]
    pub fn file_name(&self) -> FileName {
        self.named("seg")
    }

    pub(crate) fn temporary_name(&self) -> FileName {
        self.named("tmp")
    }

    pub(crate) fn ballast_name(&self) -> FileName {
        self.named("bal")
    }

    fn named(&self, prefix: &str) -> FileName {
        FileName::new(&format!("{prefix}-{self}.log")).expect("characters of a file name")
    }
}

/// What a file's name says about it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum NamedFile {
    Segment(SegmentId),
    Temporary(SegmentId),
    Ballast(SegmentId),
}

impl NamedFile {
    /// `None` for a file that is not ours.
    pub(crate) fn of(name: &FileName) -> Option<Self> {
        let text = name.as_str();
        let (prefix, rest) = text.split_once('-')?;
        let (epoch, number) = rest.strip_suffix(".log")?.split_once('-')?;
        let id = SegmentId {
            epoch: Epoch(u64::from_str_radix(epoch, 16).ok()?),
            number: u32::from_str_radix(number, 16).ok()?,
        };
        let file = match prefix {
            "seg" => Self::Segment(id),
            "tmp" => Self::Temporary(id),
            "bal" => Self::Ballast(id),
            _ => return None,
        };
        // Only the one spelling that we make.
        (id.named(prefix) == *name).then_some(file)
    }

    pub(crate) fn id(self) -> SegmentId {
        match self {
            Self::Segment(id) | Self::Temporary(id) | Self::Ballast(id) => id,
        }
    }
}

/// Where a segment goes on from.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Predecessor {
    pub(crate) id: SegmentId,
    pub(crate) owner: Owner,
    pub(crate) end_offset: u64,
    pub(crate) end_sequence: Sequence,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct SegmentHeader {
    pub(crate) id: SegmentId,
    pub(crate) owner: Owner,
    pub(crate) segment_size: u64,
    /// `None`: the log starts here.
    pub(crate) predecessor: Option<Predecessor>,
    /// Chain value before the first record of this segment.
    pub(crate) chain: u32,
}

/// What one copy of a header holds.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum HeaderCopy {
    Valid(SegmentHeader),
    Unknown(u16),
    /// Valid, but of another store or shard.
    Foreign(StoreId, ShardId),
    /// Valid, but of another segment.
    Misplaced(SegmentId),
    Invalid,
}

impl SegmentHeader {
    pub(crate) fn end_sequence_before(&self) -> Sequence {
        self.predecessor
            .map_or(Sequence(0), |predecessor| predecessor.end_sequence)
    }

    /// Both copies, as they are written.
    pub(crate) fn encode(&self, identity: &Identity) -> Vec<u8> {
        let place = Place::new(identity, self.id);
        let mut copies = vec![0; 2 * SEGMENT_HEADER_SIZE];
        for (copy, bytes) in copies.chunks_exact_mut(SEGMENT_HEADER_SIZE).enumerate() {
            self.encode_fields(bytes, identity);
            let seed = place.seed((copy * SEGMENT_HEADER_SIZE) as u64);
            let crc = checksum(bytes, field::CRC, seed);
            bytes[field::CRC].copy_from_slice(&crc.to_le_bytes());
        }
        copies
    }

    fn encode_fields(&self, bytes: &mut [u8], identity: &Identity) {
        let mut put = |range: std::ops::Range<usize>, value: &[u8]| {
            bytes[range].copy_from_slice(value);
        };
        put(field::MAGIC, &SEGMENT_MAGIC);
        put(field::VERSION, &FORMAT_VERSION.to_le_bytes());
        put(field::SHARD, &identity.shard.0.to_le_bytes());
        put(field::STORE, &identity.store.0);
        put(field::EPOCH, &self.id.epoch.0.to_le_bytes());
        put(field::NUMBER, &self.id.number.to_le_bytes());
        put(field::OWNER, &self.owner.0);
        put(field::SEGMENT_SIZE, &self.segment_size.to_le_bytes());
        put(
            field::FIRST_SEQUENCE,
            &self.end_sequence_before().next().0.to_le_bytes(),
        );
        put(field::PREDECESSOR_END_CHAIN, &self.chain.to_le_bytes());
        if let Some(predecessor) = &self.predecessor {
            put(
                field::PREDECESSOR_EPOCH,
                &predecessor.id.epoch.0.to_le_bytes(),
            );
            put(
                field::PREDECESSOR_NUMBER,
                &predecessor.id.number.to_le_bytes(),
            );
            put(field::PREDECESSOR_OWNER, &predecessor.owner.0);
            put(
                field::PREDECESSOR_END_OFFSET,
                &predecessor.end_offset.to_le_bytes(),
            );
            put(
                field::PREDECESSOR_END_SEQUENCE,
                &predecessor.end_sequence.0.to_le_bytes(),
            );
        }
    }
}

impl HeaderCopy {
    /// Verifies and reads the copy that was found at `offset` of `expected`.
    pub(crate) fn decode(
        bytes: &[u8; SEGMENT_HEADER_SIZE],
        identity: &Identity,
        expected: SegmentId,
        offset: u64,
    ) -> Self {
        if bytes[field::MAGIC] != SEGMENT_MAGIC {
            return Self::Invalid;
        }
        // Verified under what it says of itself, so that a wrong directory, a renamed or a
        // misplaced file gets its own name.
        let stated = Identity {
            store: StoreId(array_at(bytes, field::STORE)),
            shard: ShardId(u16_at(bytes, field::SHARD)),
        };
        let id = SegmentId {
            epoch: Epoch(u64_at(bytes, field::EPOCH)),
            number: u32_at(bytes, field::NUMBER),
        };
        let seed = Place::new(&stated, id).seed(offset);
        if u32_at(bytes, field::CRC) != checksum(bytes, field::CRC, seed) {
            return Self::Invalid;
        }
        if stated != *identity {
            return Self::Foreign(stated.store, stated.shard);
        }
        if id != expected {
            return Self::Misplaced(id);
        }
        let version = u16_at(bytes, field::VERSION);
        if version != FORMAT_VERSION {
            return Self::Unknown(version);
        }
        decode_fields(bytes, identity, id).map_or(Self::Invalid, Self::Valid)
    }
}

fn decode_fields(
    bytes: &[u8; SEGMENT_HEADER_SIZE],
    identity: &Identity,
    id: SegmentId,
) -> Option<SegmentHeader> {
    let predecessor = Predecessor {
        id: SegmentId {
            epoch: Epoch(u64_at(bytes, field::PREDECESSOR_EPOCH)),
            number: u32_at(bytes, field::PREDECESSOR_NUMBER),
        },
        owner: Owner(array_at(bytes, field::PREDECESSOR_OWNER)),
        end_offset: u64_at(bytes, field::PREDECESSOR_END_OFFSET),
        end_sequence: Sequence(u64_at(bytes, field::PREDECESSOR_END_SEQUENCE)),
    };
    let none = Predecessor {
        id: SegmentId {
            epoch: Epoch(0),
            number: 0,
        },
        owner: Owner([0; 16]),
        end_offset: 0,
        end_sequence: Sequence(0),
    };
    let header = SegmentHeader {
        id,
        owner: Owner(array_at(bytes, field::OWNER)),
        segment_size: u64_at(bytes, field::SEGMENT_SIZE),
        predecessor: (predecessor.id.epoch != Epoch(0)).then_some(predecessor),
        chain: u32_at(bytes, field::PREDECESSOR_END_CHAIN),
    };
    let aligned = |offset: u64| offset.is_multiple_of(BATCH_ALIGNMENT as u64);
    let comes_from = match &header.predecessor {
        None => predecessor == none && header.chain == identity.chain_start(),
        Some(before) => {
            before.id < id
                && before.end_offset >= BATCHES_START
                && aligned(before.end_offset)
                && before.end_sequence.0 <= SEQUENCE_MAX
        }
    };
    let first = header.end_sequence_before().0.checked_add(1);
    let valid = comes_from
        && id.epoch != Epoch(0)
        && (SEGMENT_SIZE_MIN..=SEGMENT_SIZE_MAX).contains(&header.segment_size)
        && aligned(header.segment_size)
        && first == Some(u64_at(bytes, field::FIRST_SEQUENCE))
        && is_zero(&bytes[field::RESERVED]);
    valid.then_some(header)
}

/// A segment that is to be made ahead of its use, away from the log's thread.
#[derive(Debug)]
pub struct Preparation<D: Disk> {
    pub(crate) disk: D,
    pub(crate) claim: Claim,
    pub(crate) id: SegmentId,
    pub(crate) size: u64,
    /// The log asks again once this is gone.
    pub(crate) under_way: Arc<()>,
}

/// A zero-filled segment, ready for [`crate::Log::install`].
#[derive(Debug)]
pub struct Prepared<D: Disk> {
    pub(crate) file: D::File,
    pub(crate) id: SegmentId,
    pub(crate) size: u64,
    pub(crate) _under_way: Arc<()>,
}

impl<D: Disk> Preparation<D> {
    /// Writes the segment's zeros and gives it its name. Blocks for as long as that takes; on
    /// return the file survives a power cut. [`Error::Full`] leaves nothing behind, and the log
    /// asks again. The log is not affected by any failure here.
    pub fn run(self) -> Result<Prepared<D>, Error> {
        // With each segment the hint of what was durable, against a power cut. Its own failure
        // costs the hint and nothing else.
        drop(self.claim.flush());
        let file = prepare(&self.disk, self.id, self.size)?;
        Ok(Prepared {
            file,
            id: self.id,
            size: self.size,
            _under_way: self.under_way,
        })
    }
}

/// Makes a zero-filled segment under its final name. `AlreadyExists` if either name is taken.
pub(crate) fn prepare<D: Disk>(disk: &D, id: SegmentId, size: u64) -> Result<D::File, Error> {
    let temporary = id.temporary_name();
    let file = create_filled(disk, &temporary, size)?;
    if let Err(err) = disk.rename_exclusive(&temporary, &id.file_name()) {
        drop(disk.remove(&temporary));
        return Err(full_or(Action::Rename, &id.file_name())(err));
    }
    // Until then a power cut could take the name away under acknowledged batches.
    disk.sync_dir()
        .map_err(Action::SyncDirectory.of_directory())?;
    file.expect_sectors();
    Ok(file)
}

/// Makes a file of zeros that has its room on the disk.
pub(crate) fn create_filled<D: Disk>(
    disk: &D,
    name: &FileName,
    size: u64,
) -> Result<D::File, Error> {
    let file = disk.create(name).map_err(full_or(Action::Create, name))?;
    if let Err(err) = fill_with_zeros(&file, size) {
        // Gives the room back. If this fails too, the next take-over cleans up; the first
        // failure is the one to report.
        drop(disk.remove(name));
        return Err(full_or(Action::Prepare, name)(err));
    }
    Ok(file)
}

fn fill_with_zeros(file: &impl DiskFile, size: u64) -> io::Result<()> {
    static ZEROS: [u8; PREPARE_CHUNK_SIZE] = [0; PREPARE_CHUNK_SIZE];
    let mut offset = 0;
    while offset < size {
        let chunk = (size - offset).min(ZEROS.len() as u64);
        file.write_all_at(
            &ZEROS[..usize::try_from(chunk).unwrap_or(ZEROS.len())],
            offset,
        )?;
        offset += chunk;
    }
    file.sync_all()
}

fn full_or(action: Action, file: &FileName) -> impl FnOnce(io::Error) -> Error {
    let otherwise = action.of(file);
    move |err| match err.kind() {
        io::ErrorKind::StorageFull | io::ErrorKind::QuotaExceeded => Error::Full,
        _ => otherwise(err),
    }
}

/// Both copies of a header, taken together.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Headers {
    Equal(SegmentHeader),
    One(SegmentHeader),
    Differ,
    None,
    Foreign(StoreId, ShardId),
    Misplaced(SegmentId),
    Unknown(u16),
}

impl Headers {
    pub(crate) fn of(copies: [HeaderCopy; 2]) -> Self {
        use HeaderCopy::{Foreign, Misplaced, Unknown, Valid};
        match copies {
            [Unknown(version), _] | [_, Unknown(version)] => Self::Unknown(version),
            [Valid(first), Valid(second)] if first == second => Self::Equal(first),
            [Valid(_), Valid(_)] => Self::Differ,
            [Valid(one), _] | [_, Valid(one)] => Self::One(one),
            [Foreign(store, shard), _] | [_, Foreign(store, shard)] => Self::Foreign(store, shard),
            [Misplaced(id), _] | [_, Misplaced(id)] => Self::Misplaced(id),
            [HeaderCopy::Invalid, HeaderCopy::Invalid] => Self::None,
        }
    }

    /// The table of FORMAT.md. `counts`: it holds a batch that makes it count, or a successor
    /// names it.
    pub(crate) fn judge(self, counts: bool) -> Judgement {
        match (self, counts) {
            (Self::Unknown(version), _) => Judgement::Unknown(version),
            (Self::Foreign(store, shard), _) => Judgement::Foreign(store, shard),
            (Self::Misplaced(id), _) => Judgement::Damaged(Fault::Misplaced(id)),
            (_, false) => Judgement::PassOver,
            (Self::Equal(header), true) => Judgement::Use(header),
            (Self::One(header), true) => Judgement::UseAndReport(header),
            (Self::Differ | Self::None, true) => Judgement::Damaged(Fault::SegmentHeader),
        }
    }
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Judgement {
    Use(SegmentHeader),
    UseAndReport(SegmentHeader),
    PassOver,
    Damaged(Fault),
    Foreign(StoreId, ShardId),
    Unknown(u16),
}
