//! Which bytes of the world a checksum belongs to: store, shard, segment, offset.

use std::ops::Range;

use ostraca_types::{ShardId, StoreId};

use crate::SegmentId;

/// Whose log it is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Identity {
    /// The shard directory's random name.
    pub store: StoreId,
    /// Which shard of the cluster.
    pub shard: ShardId,
}

impl Identity {
    fn hasher(&self) -> crc32fast::Hasher {
        let mut hasher = crc32fast::Hasher::new();
        hasher.update(&self.store.0);
        hasher.update(&self.shard.0.to_le_bytes());
        hasher
    }

    /// The chain value before the first record.
    pub(crate) fn chain_start(&self) -> u32 {
        self.hasher().finalize()
    }
}

/// The random name of the process that makes a segment. Never reused.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Owner(pub [u8; 16]);

/// One segment of one store: what its checksums are seeded with.
#[derive(Debug, Clone)]
pub(crate) struct Place {
    segment: SegmentId,
    hasher: crc32fast::Hasher,
}

impl Place {
    pub(crate) fn new(identity: &Identity, segment: SegmentId) -> Self {
        let mut hasher = identity.hasher();
        hasher.update(&segment.epoch.0.to_le_bytes());
        hasher.update(&segment.number.to_le_bytes());
        Self { segment, hasher }
    }

    pub(crate) fn segment(&self) -> SegmentId {
        self.segment
    }

    /// The seed for what starts at `offset`: `place(offset)` of FORMAT.md.
    pub(crate) fn seed(&self, offset: u64) -> u32 {
        let mut hasher = self.hasher.clone();
        hasher.update(&offset.to_le_bytes());
        hasher.finalize()
    }
}

/// CRC-32 of `bytes` without the range of the checksum itself, continued from `seed`.
pub(crate) fn checksum(bytes: &[u8], without: Range<usize>, seed: u32) -> u32 {
    let mut hasher = crc32fast::Hasher::new_with_initial(seed);
    hasher.update(&bytes[..without.start]);
    hasher.update(&bytes[without.end..]);
    hasher.finalize()
}

pub(crate) fn u16_at(bytes: &[u8], range: Range<usize>) -> u16 {
    u16::from_le_bytes(array_at(bytes, range))
}

pub(crate) fn u32_at(bytes: &[u8], range: Range<usize>) -> u32 {
    u32::from_le_bytes(array_at(bytes, range))
}

pub(crate) fn u64_at(bytes: &[u8], range: Range<usize>) -> u64 {
    u64::from_le_bytes(array_at(bytes, range))
}

/// The ranges are constants inside headers of fixed size.
pub(crate) fn array_at<const N: usize>(bytes: &[u8], range: Range<usize>) -> [u8; N] {
    let mut array = [0; N];
    array.copy_from_slice(&bytes[range]);
    array
}

/// Whether all bytes are zero. Comparing with zeros is a `memcmp`, also without optimisation.
pub(crate) fn is_zero(bytes: &[u8]) -> bool {
    static ZEROS: [u8; 4096] = [0; 4096];
    bytes
        .chunks(ZEROS.len())
        .all(|chunk| *chunk == ZEROS[..chunk.len()])
}
