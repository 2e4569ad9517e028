//! The decoders as the targets in `fuzz/` reach them. Only `cargo fuzz` compiles this.

use ostraca_types::Sequence;

use crate::batch::Position;
use crate::frame::{BatchClass, BatchHeader, BatchView, padded};
use crate::place::Place;
use crate::segment::{HeaderCopy, Headers, Judgement, Predecessor, SegmentHeader};
use crate::{Batch, Fault, Identity, Record, SEGMENT_HEADER_SIZE, SegmentId};

/// A batch that was verified.
#[derive(Debug)]
pub struct DecodedBatch<'a> {
    /// Of header and records.
    pub size: usize,
    /// Of its first record.
    pub first_sequence: Sequence,
    /// Flagged as written again by a take-over.
    pub reappended: bool,
    /// In order.
    pub records: Vec<Record<'a>>,
    /// What the encoder makes of the same fields at the same place, padding included.
    pub encoded: Vec<u8>,
}

/// Decodes the batch that `bytes` start with, as recovery does.
pub fn decode_batch<'a>(
    bytes: &'a [u8],
    identity: &Identity,
    segment: SegmentId,
    offset: u64,
) -> Result<DecodedBatch<'a>, Fault> {
    let place = Place::new(identity, segment);
    let header = bytes.first_chunk().ok_or(Fault::Size)?;
    let header = BatchHeader::decode(header, &place, offset, bytes.len() as u64)?;
    let view = BatchView::check(&bytes[..padded(header.size)], header, &place, offset)?;
    let records: Vec<_> = view.records().collect();
    let mut batch = Batch::new();
    for record in &records {
        batch
            .push_as(
                record.epoch,
                record.kind,
                record.version,
                record.slot,
                record.time,
                record.payload,
            )
            .expect("what was decoded can be encoded");
    }
    let position = Position {
        place: &place,
        offset,
        first_sequence: header.first_sequence,
        chain: header.chain,
        class: header.class,
    };
    let (encoded, chain) = batch.seal(&position);
    assert_eq!(chain, view.chain_end, "the chain is what was encoded");
    Ok(DecodedBatch {
        size: header.size,
        first_sequence: header.first_sequence,
        reappended: header.class == BatchClass::Reappended,
        records,
        encoded: encoded.to_vec(),
    })
}

/// A segment header that was verified.
#[derive(Debug)]
pub struct DecodedSegmentHeader {
    /// Of the file, in bytes.
    pub segment_size: u64,
    /// Segment, end offset and end sequence of what it goes on from.
    pub predecessor: Option<(SegmentId, u64, Sequence)>,
    /// What the encoder makes of the same fields: both copies.
    pub encoded: Vec<u8>,
}

/// Decodes both copies of a segment header, and each for itself. The third is what recovery uses of
/// the two in a segment that counts.
#[must_use]
pub fn decode_segment_header(
    copies: &[[u8; SEGMENT_HEADER_SIZE]; 2],
    identity: &Identity,
    segment: SegmentId,
) -> [Option<DecodedSegmentHeader>; 3] {
    let offset = SEGMENT_HEADER_SIZE as u64;
    let decoded = [
        HeaderCopy::decode(&copies[0], identity, segment, 0),
        HeaderCopy::decode(&copies[1], identity, segment, offset),
    ];
    let valid = |copy: HeaderCopy| match copy {
        HeaderCopy::Valid(header) => Some(shown(&header, identity)),
        _ => None,
    };
    let used = match Headers::of(decoded).judge(true) {
        Judgement::Use(header) | Judgement::UseAndReport(header) => Some(shown(&header, identity)),
        _ => None,
    };
    [valid(decoded[0]), valid(decoded[1]), used]
}

fn shown(header: &SegmentHeader, identity: &Identity) -> DecodedSegmentHeader {
    let shown = |before: Predecessor| (before.id, before.end_offset, before.end_sequence);
    DecodedSegmentHeader {
        segment_size: header.segment_size,
        predecessor: header.predecessor.map(shown),
        encoded: header.encode(identity),
    }
}
