//! Any bytes as a batch, anywhere.

#![no_main]

use libfuzzer_sys::fuzz_target;
use ostraca_fuzz::format::{Place, Right, padded, seal_batch, segment};
use ostraca_fuzz::input::Input;
use ostraca_fuzz::sample::IDENTITY;
use ostraca_types::Epoch;
use ostraca_wal::fuzzing::{DecodedBatch, decode_batch};
use ostraca_wal::{BATCH_ALIGNMENT, BATCH_SIZE_MAX, KIND_MAX, PAYLOAD_SIZE_MAX};

fuzz_target!(|data: &[u8]| {
    let mut input = Input::new(data);
    let right = Right(input.u8());
    // Now and then, to reach the limits with a short input.
    let filler = usize::from(input.u8().saturating_sub(248)) * 150_000;
    let place = Place {
        identity: IDENTITY,
        segment: segment(input.u64(), input.u32()),
        // A file's size is below 2^63.
        offset: input.u64() >> 2 & !(BATCH_ALIGNMENT as u64 - 1),
    };
    let mut bytes = input.rest().to_vec();
    bytes.resize(bytes.len() + filler, u8::MAX);
    seal_batch(&mut bytes, &place, right);
    bytes.resize(padded(bytes.len()), 0);
    let decoded = decode_batch(&bytes, &place.identity, place.segment, place.offset);
    if let Ok(batch) = decoded {
        check(&batch, &place);
        assert_eq!(batch.encoded, bytes[..batch.encoded.len()]);
        let elsewhere = place.offset + BATCH_ALIGNMENT as u64;
        decode_batch(&bytes, &place.identity, place.segment, elsewhere)
            .expect_err("a batch is valid at its place only");
    }
});

fn check(batch: &DecodedBatch<'_>, place: &Place) {
    assert!(batch.encoded.len() <= BATCH_SIZE_MAX);
    assert_eq!(padded(batch.size), batch.encoded.len());
    let mut sequence = batch.first_sequence;
    let mut epoch = Epoch(1);
    for record in &batch.records {
        assert_eq!(record.sequence, sequence);
        assert!(record.epoch >= epoch);
        assert_eq!(record.epoch < place.segment.epoch, batch.reappended);
        assert!(record.payload.len() <= PAYLOAD_SIZE_MAX && record.kind <= KIND_MAX);
        assert_eq!(record.segment, place.segment);
        sequence = sequence.next();
        epoch = record.epoch;
    }
}
