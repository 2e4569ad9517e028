//! A batch that is being gathered for one append.

use std::fmt;

use ostraca_types::{Epoch, Sequence, Slot, Timestamp};

use crate::frame::{
    BATCH_HEADER_SIZE, BATCH_SIZE_MAX, BatchClass, BatchHeader, KIND_MAX, KIND_NO_OP,
    PAYLOAD_SIZE_MAX, RECORD_HEADER_SIZE, batch_field, chain_after, padded, record_field,
};
use crate::place::{Place, checksum, u32_at, u64_at};

/// Records that become durable with one write and one sync.
///
/// It keeps its memory across [`Batch::clear`]: one batch serves a log for ever. Its `Debug` does not
/// show what is in it.
#[derive(Clone)]
pub struct Batch {
    /// Room for the batch header, then the records; place-dependent fields are filled by `seal`.
    bytes: Vec<u8>,
    /// Unseeded CRC of each record's payload.
    payload_crcs: Vec<u32>,
}

/// The record does not fit; append what is there first.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct BatchFull;

impl fmt::Display for BatchFull {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("the batch is full")
    }
}

impl std::error::Error for BatchFull {}

impl fmt::Debug for Batch {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Batch")
            .field("records", &self.len())
            .field("size", &self.size())
            .finish_non_exhaustive()
    }
}

impl Default for Batch {
    fn default() -> Self {
        Self::new()
    }
}

/// Where and after what a batch is written.
pub(crate) struct Position<'a> {
    pub(crate) place: &'a Place,
    pub(crate) offset: u64,
    pub(crate) first_sequence: Sequence,
    /// Chain value before the batch.
    pub(crate) chain: u32,
    pub(crate) class: BatchClass,
}

impl Batch {
    /// An empty batch.
    #[must_use]
    pub fn new() -> Self {
        Self {
            bytes: vec![0; BATCH_HEADER_SIZE],
            payload_crcs: Vec::new(),
        }
    }

    /// Adds a record. Panics if `kind` is not the caller's to give (1 to
    /// [`KIND_MAX`]) or the payload is over [`PAYLOAD_SIZE_MAX`]: the caller checks its input
    /// before.
    pub fn push(
        &mut self,
        kind: u8,
        version: u8,
        slot: Slot,
        time: Timestamp,
        payload: &[u8],
    ) -> Result<(), BatchFull> {
        assert!(
            (KIND_NO_OP + 1..=KIND_MAX).contains(&kind),
            "this kind is the log's own"
        );
        self.push_as(Epoch(0), kind, version, slot, time, payload)
    }

    /// Adds a record of any kind. The epoch matters in a re-appended batch only.
    pub(crate) fn push_as(
        &mut self,
        epoch: Epoch,
        kind: u8,
        version: u8,
        slot: Slot,
        time: Timestamp,
        payload: &[u8],
    ) -> Result<(), BatchFull> {
        use record_field as field;
        assert!(
            payload.len() <= PAYLOAD_SIZE_MAX,
            "the caller checks the size"
        );
        if self.bytes.len() + RECORD_HEADER_SIZE + payload.len() > BATCH_SIZE_MAX {
            return Err(BatchFull);
        }
        let payload_size = u32::try_from(payload.len()).expect("at most PAYLOAD_SIZE_MAX");
        let mut header = [0; RECORD_HEADER_SIZE];
        header[field::PAYLOAD_SIZE].copy_from_slice(&payload_size.to_le_bytes());
        header[field::EPOCH].copy_from_slice(&epoch.0.to_le_bytes());
        header[field::TIME].copy_from_slice(&time.0.to_le_bytes());
        header[field::KIND.start] = kind;
        header[field::VERSION.start] = version;
        header[field::SLOT.start] = slot.0;
        self.bytes.extend_from_slice(&header);
        self.bytes.extend_from_slice(payload);
        self.payload_crcs.push(crc32fast::hash(payload));
        Ok(())
    }

    /// Records in it.
    #[must_use]
    pub fn len(&self) -> usize {
        self.payload_crcs.len()
    }

    /// Whether it has no record.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.payload_crcs.is_empty()
    }

    /// Bytes that it takes in the log, padding included.
    #[must_use]
    pub fn size(&self) -> usize {
        padded(self.bytes.len())
    }

    /// Empties it and keeps its memory.
    pub fn clear(&mut self) {
        self.bytes.truncate(BATCH_HEADER_SIZE);
        self.payload_crcs.clear();
    }

    fn record_count(&self) -> u32 {
        u32::try_from(self.payload_crcs.len()).expect("fewer than BATCH_SIZE_MAX")
    }

    /// Binds the batch to its position: sequences, epochs, chain and checksums. Returns the bytes
    /// to write, padding included, and the chain value after the batch. A batch may be sealed
    /// again for another position.
    pub(crate) fn seal(&mut self, position: &Position<'_>) -> (&[u8], u32) {
        let header = BatchHeader {
            size: self.bytes.len(),
            record_count: self.record_count(),
            epoch: position.place.segment().epoch,
            first_sequence: position.first_sequence,
            chain: position.chain,
            class: position.class,
        };
        let chain = self.seal_records(position);
        self.bytes.resize(padded(header.size), 0);
        let (front, _) = self
            .bytes
            .split_first_chunk_mut()
            .expect("made with a header");
        header.encode(front, position.place, position.offset);
        (&self.bytes, chain)
    }

    /// Takes the padding off again, so that records can be added.
    pub(crate) fn unseal(&mut self) {
        let size = u32_at(&self.bytes, batch_field::SIZE) as usize;
        self.bytes.truncate(size);
    }

    fn seal_records(&mut self, position: &Position<'_>) -> u32 {
        use record_field as field;
        let mut at = BATCH_HEADER_SIZE;
        let mut sequence = position.first_sequence;
        let mut chain = position.chain;
        for &payload_crc in &self.payload_crcs {
            let header = &mut self.bytes[at..at + RECORD_HEADER_SIZE];
            if position.class != BatchClass::Reappended {
                let epoch = position.place.segment().epoch;
                header[field::EPOCH].copy_from_slice(&epoch.0.to_le_bytes());
            }
            let epoch = Epoch(u64_at(header, field::EPOCH));
            chain = chain_after(chain, sequence, epoch, payload_crc);
            let seed = position.place.seed(position.offset + at as u64);
            header[field::PAYLOAD_CRC].copy_from_slice(&(payload_crc ^ seed).to_le_bytes());
            header[field::CHAIN].copy_from_slice(&chain.to_le_bytes());
            header[field::SEQUENCE].copy_from_slice(&sequence.0.to_le_bytes());
            let crc = checksum(header, field::CRC, seed);
            header[field::CRC].copy_from_slice(&crc.to_le_bytes());
            at += RECORD_HEADER_SIZE + u32_at(header, field::PAYLOAD_SIZE) as usize;
            sequence = sequence.next();
        }
        assert_eq!(
            at,
            self.bytes.len(),
            "the batch was sealed with its padding"
        );
        chain
    }
}
