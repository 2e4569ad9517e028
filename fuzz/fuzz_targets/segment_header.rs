//! Any bytes as the two copies of a segment header, and as an epoch page.

#![no_main]

use libfuzzer_sys::fuzz_target;
use ostraca_fuzz::format::{Place, SEGMENT_FIELDS, SEGMENT_MAGIC, get, put, segment};
use ostraca_fuzz::input::Input;
use ostraca_fuzz::sample::{IDENTITY, raise};
use ostraca_io::SimDisk;
use ostraca_wal::fuzzing::{DecodedSegmentHeader, decode_segment_header};
use ostraca_wal::{
    BATCH_ALIGNMENT, BATCHES_START, SEGMENT_HEADER_SIZE, SEGMENT_SIZE_MAX, SEGMENT_SIZE_MIN,
    SegmentId, new_epoch_page, read_epoch_page,
};

/// What of a header is given; the rest of it is zero, or what `TAIL` bytes at its end say.
const HEAD: usize = 128;
const TAIL: usize = 4;

fuzz_target!(|data: &[u8]| {
    let mut input = Input::new(data);
    match input.u8() {
        what @ 0..128 => segment_header(what, &mut input),
        what => epoch_page(what, &mut input),
    }
});

fn segment_header(right: u8, input: &mut Input<'_>) {
    let id = segment(input.u64(), input.u32());
    let mut copies = [[0; SEGMENT_HEADER_SIZE]; 2];
    for copy in &mut copies {
        let head = input.take(HEAD);
        copy[..head.len()].copy_from_slice(head);
        let tail = input.take(TAIL);
        copy[SEGMENT_HEADER_SIZE - tail.len()..].copy_from_slice(tail);
    }
    if right & 16 != 0 {
        copies[1] = copies[0];
    }
    for (offset, copy) in [0, SEGMENT_HEADER_SIZE as u64].into_iter().zip(&mut copies) {
        put_right(copy, right, id, offset);
    }
    let [first, second, used] = decode_segment_header(&copies, &IDENTITY, id);
    for (position, decoded) in [&first, &second].into_iter().enumerate() {
        if let Some(header) = decoded {
            check(header, id);
            let encoded = header.encoded.as_chunks().0;
            assert_eq!(encoded[position], copies[position], "one encoding");
        }
    }
    let agree = |used: &DecodedSegmentHeader| {
        [&first, &second]
            .into_iter()
            .flatten()
            .all(|copy| copy.encoded == used.encoded)
    };
    assert!(used.as_ref().is_none_or(agree));
    assert!(used.is_none() || first.is_some() || second.is_some());
}

fn put_right(copy: &mut [u8; SEGMENT_HEADER_SIZE], right: u8, id: SegmentId, offset: u64) {
    let [
        magic,
        crc,
        version,
        shard,
        store,
        epoch,
        number,
        _,
        _,
        size,
        first,
        before,
        ..,
    ] = &SEGMENT_FIELDS;
    if right & 1 != 0 {
        copy[magic.clone()].copy_from_slice(&SEGMENT_MAGIC);
    }
    if right & 2 != 0 {
        put(copy, version, 0);
        put(copy, shard, IDENTITY.shard.0.into());
        copy[store.clone()].copy_from_slice(&IDENTITY.store.0);
        put(copy, epoch, id.epoch.0);
        put(copy, number, id.number.into());
    }
    if right & 4 != 0 {
        let end_sequence = get(copy, &SEGMENT_FIELDS[14]);
        put(copy, first, end_sequence.wrapping_add(1));
        let predecessor_epoch = get(copy, before).min(id.epoch.0);
        put(copy, before, predecessor_epoch);
        let segment_size = get(copy, size).max(SEGMENT_SIZE_MIN);
        put(copy, size, segment_size);
    }
    if right & 8 != 0 {
        let stated = segment(
            get(copy, epoch),
            u32::try_from(get(copy, number)).expect("four bytes"),
        );
        let place = Place {
            identity: IDENTITY,
            segment: stated,
            offset,
        };
        place.seal(copy, crc);
    }
}

fn check(header: &DecodedSegmentHeader, id: SegmentId) {
    assert!((SEGMENT_SIZE_MIN..=SEGMENT_SIZE_MAX).contains(&header.segment_size));
    if let Some((before, end_offset, end_sequence)) = header.predecessor {
        assert!(before < id && before.epoch.0 > 0);
        assert!(end_offset >= BATCHES_START);
        assert!(end_offset.is_multiple_of(BATCH_ALIGNMENT as u64));
        // Panics if there is none.
        let _: ostraca_types::Sequence = end_sequence.next();
    }
}

/// Of a page only the bytes that mean something are given: its header, cell and hint.
fn epoch_page(right: u8, input: &mut Input<'_>) {
    let mut page = new_epoch_page(&IDENTITY);
    let mut put = |start: usize, bytes: &[u8]| {
        page[start..start + bytes.len()].copy_from_slice(bytes);
    };
    put(64, input.take(8));
    put(128, input.take(16));
    if right & 1 != 0 {
        put(0, input.take(32));
    }
    if right & 2 != 0 {
        let crc = crc32fast::hash(&page[12..32]);
        page[8..12].copy_from_slice(&crc.to_le_bytes());
    }
    let disk = SimDisk::new(1);
    for (word, bytes) in page.as_chunks().0.iter().enumerate() {
        disk.damage_page(word, u64::from_le_bytes(*bytes));
    }
    let Ok(report) = read_epoch_page(disk.page(), &IDENTITY) else {
        assert!(raise(&disk).is_err(), "refused is refused");
        return;
    };
    if let Some(epoch) = report.epoch {
        assert_eq!(epoch.0, get(&page, &(64..68)));
        assert_eq!(page[..32], new_epoch_page(&IDENTITY)[..32]);
    }
    let Ok(claim) = raise(&disk) else { return };
    let after = read_epoch_page(disk.page(), &IDENTITY).expect("made good");
    assert_eq!(after.epoch, Some(claim.epoch()));
    assert!(report.epoch.is_none_or(|before| before < claim.epoch()));
    assert_eq!(claim.repaired(), report.epoch.is_none());
    assert!(report.durable.is_none() || report.durable == after.durable);
}
