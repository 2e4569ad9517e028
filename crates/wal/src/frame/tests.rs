//! A batch is valid in its own place, whole, and nowhere else.

use ostraca_types::{ShardId, StoreId};

use super::*;
use crate::batch::{Batch, Position};
use crate::place::Identity;

const IDENTITY: Identity = Identity {
    store: StoreId([9; 16]),
    shard: ShardId(1),
};
const ID: SegmentId = SegmentId {
    epoch: Epoch(3),
    number: 1,
};
const OFFSET: u64 = 8192;

fn sealed(place: &Place) -> Vec<u8> {
    let mut batch = Batch::new();
    for payload in [&b"a payload"[..], b"another"] {
        batch
            .push(1, 0, Slot(0), Timestamp(1), payload)
            .expect("room");
    }
    let position = Position {
        place,
        offset: OFFSET,
        first_sequence: Sequence(10),
        chain: 5,
        class: BatchClass::Plain,
    };
    batch.seal(&position).0.to_vec()
}

fn check(bytes: &[u8], place: &Place, offset: u64) -> Result<(), Fault> {
    let front = bytes.first_chunk().expect("a header");
    let header = BatchHeader::decode(front, place, offset, bytes.len() as u64)?;
    let size = padded(header.size);
    BatchView::check(&bytes[..size], header, place, offset).map(|_| ())
}

#[test]
fn d05_a_batch_is_valid_in_its_own_place_only() {
    let place = Place::new(&IDENTITY, ID);
    let bytes = sealed(&place);
    assert_eq!(check(&bytes, &place, OFFSET), Ok(()));
    let elsewhere = |store, shard, epoch, number| {
        let identity = Identity {
            store: StoreId([store; 16]),
            shard: ShardId(shard),
        };
        let epoch = Epoch(epoch);
        Place::new(&identity, SegmentId { epoch, number })
    };
    for place in [
        elsewhere(8, 1, 3, 1),
        elsewhere(9, 2, 3, 1),
        elsewhere(9, 1, 4, 1),
        elsewhere(9, 1, 3, 0),
    ] {
        assert_eq!(
            check(&bytes, &place, OFFSET),
            Err(Fault::HeaderChecksum),
            "{place:?}"
        );
    }
    assert_eq!(
        check(&bytes, &place, OFFSET + 512),
        Err(Fault::HeaderChecksum)
    );
}

/// Each check by itself, so that none hides behind another.
#[test]
fn d05_every_flip_is_found_where_it_is() {
    let place = Place::new(&IDENTITY, ID);
    let bytes = sealed(&place);
    let first_payload = BATCH_HEADER_SIZE + RECORD_HEADER_SIZE;
    for at in 0..bytes.len() {
        let mut flipped = bytes.clone();
        flipped[at] ^= 0x10;
        let expected = match at {
            0..4 => Fault::Magic,
            4..112 => Fault::HeaderChecksum,
            112..121 => Fault::PayloadChecksum,
            121..169 => Fault::HeaderChecksum,
            169..176 => Fault::PayloadChecksum,
            _ => Fault::NotZero,
        };
        assert_eq!(check(&flipped, &place, OFFSET), Err(expected), "byte {at}");
    }
    assert_eq!(first_payload, 112);
}

/// Fields of a header that verifies and still makes no sense.
#[test]
fn a_sealed_header_is_bounded_all_the_same() {
    use batch_field as field;
    let place = Place::new(&IDENTITY, ID);
    let bytes = sealed(&place);
    let with = |range: std::ops::Range<usize>, value: &[u8]| {
        let mut bytes = bytes.clone();
        bytes[range].copy_from_slice(value);
        let crc = checksum(&bytes[..BATCH_HEADER_SIZE], field::CRC, place.seed(OFFSET));
        bytes[field::CRC].copy_from_slice(&crc.to_le_bytes());
        check(&bytes, &place, OFFSET)
    };
    let size = |size: u32| with(field::SIZE, &size.to_le_bytes());
    assert_eq!(size(176), Ok(()));
    for wrong in [0, 63, 513, u32::MAX, 175] {
        assert!(size(wrong).is_err(), "{wrong}");
    }
    assert_eq!(size(177), Err(Fault::Size), "a byte that no record covers");
    let count = |count: u32| with(field::RECORD_COUNT, &count.to_le_bytes());
    assert_eq!(count(0), Err(Fault::Field));
    assert_eq!(count(1), Err(Fault::Size));
    assert_eq!(count(3), Err(Fault::Size));
    assert_eq!(count(u32::MAX), Err(Fault::Size));
    assert_eq!(with(field::FLAGS, &[1]), Err(Fault::Epoch), "of this epoch");
    assert_eq!(
        with(field::FLAGS, &[2]),
        Err(Fault::Field),
        "a mark is empty"
    );
    assert_eq!(with(field::FLAGS, &[3]), Err(Fault::Field));
    assert_eq!(with(field::RESERVED, &[1; 19]), Err(Fault::NotZero));
    let number = |range, value: u64| with(range, &value.to_le_bytes());
    assert_eq!(number(field::EPOCH, 2), Err(Fault::Epoch));
    for sequence in [0, 11, u64::MAX] {
        let wrong = number(field::FIRST_SEQUENCE, sequence);
        assert_eq!(wrong, Err(Fault::Sequence), "{sequence}");
    }
    assert_eq!(number(field::DURABLE_SEQUENCE, 10), Err(Fault::Sequence));
    assert_eq!(with(field::CHAIN, &[0; 4]), Err(Fault::Chain));
}
