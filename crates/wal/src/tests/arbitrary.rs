//! Whatever bytes a disk returns, decoders and recovery return, too.

use std::sync::LazyLock;

use ostraca_io::{Disk, DiskFile, SimDisk};
use proptest::collection::vec;
use proptest::prelude::*;

use super::*;
use crate::frame::BatchHeader;
use crate::frame::BatchView;
use crate::place::{Place, checksum};
use crate::segment::HeaderCopy;

const ID: SegmentId = SegmentId {
    epoch: Epoch(1),
    number: 0,
};

/// A log with a sealed and an open segment.
static LOG: LazyLock<SimDisk> = LazyLock::new(|| {
    let disk = SimDisk::new(1);
    for round in 0..2 {
        let (mut log, _) = open(&disk).expect("a log");
        for number in 0..3 {
            append_one(&mut log, round * 3 + number).expect("power");
        }
    }
    disk
});

/// Whatever its checksums say: what no writer makes, no reader believes (WAL-03).
#[test]
fn d05_a_record_larger_than_any_that_is_written_is_refused() {
    use crate::frame::{BatchClass, chain_after, padded, record_field as field};
    let place = Place::new(&IDENTITY, ID);
    let check = |payload_size: usize| {
        let size = BATCH_HEADER_SIZE + RECORD_HEADER_SIZE + payload_size;
        let mut bytes = vec![0; padded(size)];
        let header = BatchHeader {
            size,
            record_count: 1,
            epoch: ID.epoch,
            first_sequence: Sequence(1),
            chain: 0,
            class: BatchClass::Plain,
        };
        let seed = place.seed(8192 + BATCH_HEADER_SIZE as u64);
        let payload_crc = crc32fast::hash(&bytes[..payload_size]);
        let chain = chain_after(0, header.first_sequence, ID.epoch, payload_crc);
        let stored_size = u32::try_from(payload_size).expect("small");
        let record = &mut bytes[BATCH_HEADER_SIZE..BATCH_HEADER_SIZE + RECORD_HEADER_SIZE];
        record[field::PAYLOAD_CRC].copy_from_slice(&(payload_crc ^ seed).to_le_bytes());
        record[field::PAYLOAD_SIZE].copy_from_slice(&stored_size.to_le_bytes());
        record[field::CHAIN].copy_from_slice(&chain.to_le_bytes());
        record[field::SEQUENCE].copy_from_slice(&1u64.to_le_bytes());
        record[field::EPOCH].copy_from_slice(&ID.epoch.0.to_le_bytes());
        let crc = checksum(record, field::CRC, seed);
        record[field::CRC].copy_from_slice(&crc.to_le_bytes());
        BatchView::check(&bytes, header, &place, 8192).err()
    };
    assert_eq!(check(PAYLOAD_SIZE_MAX), None);
    assert_eq!(check(PAYLOAD_SIZE_MAX + 1), Some(Fault::Size));
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 128, failure_persistence: None, ..Default::default() })]

    #[test]
    fn any_bytes_decode_or_do_not(mut bytes in vec(any::<u8>(), 2048), sealed in any::<bool>()) {
        let place = Place::new(&IDENTITY, ID);
        let (header, _) = bytes.split_first_chunk_mut::<BATCH_HEADER_SIZE>().expect("enough");
        if sealed {
            // Checksums that pass, over fields that mean nothing: the limits must hold alone.
            header[..4].copy_from_slice(&frame::BATCH_MAGIC);
            header[10..12].fill(0);
            header[44] %= 4;
            header[45..].fill(0);
            let crc = checksum(header, 4..8, place.seed(8192));
            header[4..8].copy_from_slice(&crc.to_le_bytes());
        }
        let decoded = BatchHeader::decode(header, &place, 8192, 2048);
        if let Ok(header) = decoded {
            let size = frame::padded(header.size);
            prop_assert!(size <= 2048);
            prop_assert!(BatchView::check(&bytes[..size], header, &place, 8192).is_err());
        }
    }

    #[test]
    fn any_segment_header_decodes_or_does_not(
        mut bytes in vec(any::<u8>(), 128),
        sealed in any::<bool>(),
    ) {
        bytes.resize(SEGMENT_HEADER_SIZE, 0);
        if sealed {
            bytes[..8].copy_from_slice(&segment::SEGMENT_MAGIC);
            bytes[12..14].fill(0);
            bytes[14..16].copy_from_slice(&IDENTITY.shard.0.to_le_bytes());
            bytes[16..32].copy_from_slice(&IDENTITY.store.0);
            bytes[32..40].copy_from_slice(&1u64.to_le_bytes());
            bytes[40..44].fill(0);
            let crc = checksum(&bytes, 8..12, Place::new(&IDENTITY, ID).seed(0));
            bytes[8..12].copy_from_slice(&crc.to_le_bytes());
        }
        let copy = bytes.first_chunk().expect("enough");
        let decoded = HeaderCopy::decode(copy, &IDENTITY, ID, 0);
        prop_assert!(!matches!(decoded, HeaderCopy::Valid(_)), "random fields are not consistent");
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 64, failure_persistence: None, ..Default::default() })]

    /// Recovery of a file of any bytes ends, and invents nothing.
    #[test]
    fn any_file_is_recovered_or_refused(
        bytes in vec(any::<u8>(), 0..12_000),
        epoch in 0u64..3,
    ) {
        let disk = SimDisk::new(1);
        let name = SegmentId { epoch: Epoch(epoch), number: 0 }.file_name();
        let file = disk.create(&name).expect("a new name");
        file.write_all_at(&bytes, 0).expect("room");
        if let Ok((_, records)) = recover(&disk) {
            prop_assert!(records.is_empty());
        }
    }

    /// A damaged log is refused, or yields a prefix of what it held.
    #[test]
    fn any_damage_is_refused_or_leaves_a_prefix(
        epoch in 1u64..3,
        damage in vec((0u64..16_384, vec(any::<u8>(), 1..700)), 1..4),
    ) {
        let disk = LOG.fork();
        let name = SegmentId { epoch: Epoch(epoch), number: 0 }.file_name();
        for (offset, bytes) in &damage {
            disk.overwrite(&name, *offset, bytes);
        }
        if let Ok((_, records)) = recover(&disk) {
            let found = numbers(&records);
            prop_assert!(found.len() <= 6 && found.iter().copied().eq(0..found.len() as u64));
            match open(&disk) {
                Ok((_, again)) => prop_assert_eq!(numbers(&again), found),
                // What looks like a torn tail is convicted by the epoch page.
                Err(Error::Damaged { fault: Fault::Behind(_), .. }) => {
                    prop_assert!(found.len() < 6);
                }
                Err(err) => panic!("{err}"),
            }
        }
    }
}
