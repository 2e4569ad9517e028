//! FORMAT.md says what the code does, and neither changes by accident.

use std::ops::Range;

use ostraca_types::{Epoch, Sequence, Slot, Timestamp};

use super::{IDENTITY, OWNER};
use crate::batch::{Batch, Position};
use crate::frame::{self, BatchClass, batch_field, record_field};
use crate::place::{Owner, Place};
use crate::reader::Beyond;
use crate::recovery::{Decision, Stop, decide};
use crate::segment::{
    self, HeaderCopy, Headers, Judgement, Predecessor, SegmentHeader, SegmentId, field,
};
use crate::{Fault, SEGMENT_HEADER_SIZE};

const DOCUMENT: &str = include_str!("../../FORMAT.md");

/// The cells of each row of the first table under a heading, without its head.
fn table(heading: &str) -> Vec<Vec<&'static str>> {
    let (_, section) = DOCUMENT
        .split_once(&format!("# {heading}\n"))
        .expect("the heading");
    rows(section)
}

/// The same, of the first table after a text.
pub(super) fn table_after(text: &str) -> Vec<Vec<&'static str>> {
    rows(DOCUMENT.split_once(text).expect("the text").1)
}

fn rows(section: &'static str) -> Vec<Vec<&'static str>> {
    section
        .lines()
        .skip_while(|line| !line.starts_with('|'))
        .take_while(|line| line.starts_with('|'))
        .skip(2)
        .map(|line| line.trim_matches('|').split('|').map(str::trim).collect())
        .collect()
}

fn fields(heading: &str) -> Vec<(&'static str, Range<usize>)> {
    let row = |cells: Vec<&'static str>| {
        let start: usize = cells[0].parse().expect("an offset");
        let size: usize = cells[1].parse().expect("a size");
        (cells[2], start..start + size)
    };
    table(heading).into_iter().map(row).collect()
}

#[test]
fn the_document_matches_the_code() {
    let expected = [
        ("magic", field::MAGIC),
        ("crc", field::CRC),
        ("version", field::VERSION),
        ("shard", field::SHARD),
        ("store", field::STORE),
        ("epoch", field::EPOCH),
        ("number", field::NUMBER),
        ("predecessor_number", field::PREDECESSOR_NUMBER),
        ("owner", field::OWNER),
        ("segment_size", field::SEGMENT_SIZE),
        ("first_sequence", field::FIRST_SEQUENCE),
        ("predecessor_epoch", field::PREDECESSOR_EPOCH),
        ("predecessor_owner", field::PREDECESSOR_OWNER),
        ("predecessor_end_offset", field::PREDECESSOR_END_OFFSET),
        ("predecessor_end_sequence", field::PREDECESSOR_END_SEQUENCE),
        ("predecessor_end_chain", field::PREDECESSOR_END_CHAIN),
        ("reserved", field::RESERVED),
    ];
    assert_eq!(fields("Segment header"), expected);
    let expected = [
        ("magic", batch_field::MAGIC),
        ("crc", batch_field::CRC),
        ("size", batch_field::SIZE),
        ("record_count", batch_field::RECORD_COUNT),
        ("epoch", batch_field::EPOCH),
        ("first_sequence", batch_field::FIRST_SEQUENCE),
        ("durable_sequence", batch_field::DURABLE_SEQUENCE),
        ("chain", batch_field::CHAIN),
        ("flags", batch_field::FLAGS),
        ("reserved", batch_field::RESERVED),
    ];
    assert_eq!(fields("Batch header"), expected);
    let expected = [
        ("crc", record_field::CRC),
        ("payload_crc", record_field::PAYLOAD_CRC),
        ("payload_size", record_field::PAYLOAD_SIZE),
        ("chain", record_field::CHAIN),
        ("sequence", record_field::SEQUENCE),
        ("epoch", record_field::EPOCH),
        ("time", record_field::TIME),
        ("kind", record_field::KIND),
        ("version", record_field::VERSION),
        ("slot", record_field::SLOT),
        ("reserved", record_field::RESERVED),
    ];
    assert_eq!(fields("Record header"), expected);
}

#[test]
fn the_epoch_page_table_matches_the_code() {
    use crate::fence::page_field;
    let expected = [
        ("magic", page_field::MAGIC),
        ("crc", page_field::CRC),
        ("version", page_field::VERSION),
        ("shard", page_field::SHARD),
        ("store", page_field::STORE),
        ("epoch", page_field::EPOCH),
        ("epoch_complement", page_field::EPOCH_COMPLEMENT),
        ("durable_sequence", page_field::DURABLE),
        ("durable_complement", page_field::DURABLE_COMPLEMENT),
        ("beat", page_field::BEAT),
        ("beat_epoch", page_field::BEAT_EPOCH),
    ];
    assert_eq!(fields("The epoch page"), expected);
}

/// d07, of the page that every shard begins with.
#[test]
fn d07_the_epoch_page_keeps_its_bytes() {
    let page = crate::new_epoch_page(&IDENTITY);
    assert!(crate::place::is_zero(&page[192..]));
    assert_eq!(
        hex(&page[..192]),
        include_str!("../../golden/epoch_page_v1.hex")
    );
}

/// Every header's fields follow one another: no byte is in two rows, none in no row.
#[test]
fn the_tables_leave_no_gap() {
    for (heading, size) in [
        ("Segment header", SEGMENT_HEADER_SIZE),
        ("Batch header", frame::BATCH_HEADER_SIZE),
        ("Record header", frame::RECORD_HEADER_SIZE),
    ] {
        let mut at = 0;
        for (name, range) in fields(heading) {
            assert_eq!(range.start, at, "{heading}: {name}");
            at = range.end;
        }
        assert_eq!(at, size, "{heading}");
    }
}

#[test]
fn the_document_states_the_limits() {
    let stated: Vec<(&str, u64)> = table("Limits")
        .into_iter()
        .map(|cells| (cells[0], cells[1].parse().expect("a number")))
        .collect();
    let expected = [
        ("PAYLOAD_SIZE_MAX", frame::PAYLOAD_SIZE_MAX as u64),
        ("BATCH_SIZE_MAX", frame::BATCH_SIZE_MAX as u64),
        ("SEGMENT_SIZE_MIN", segment::SEGMENT_SIZE_MIN),
        ("SEGMENT_SIZE_MAX", segment::SEGMENT_SIZE_MAX),
        ("SEQUENCE_MAX", frame::SEQUENCE_MAX),
    ];
    assert_eq!(stated, expected);
    assert_eq!(table("Kinds")[1][0], format!("1 to {}", frame::KIND_MAX));
    let current = table("History").pop().expect("a row");
    assert_eq!(current[0], segment::FORMAT_VERSION.to_string());
    let flags = [BatchClass::Plain, BatchClass::Reappended, BatchClass::Mark];
    assert_eq!(flags.map(BatchClass::to_disk), [0, 1, 2]);
    for magic in [&frame::BATCH_MAGIC[..], &segment::SEGMENT_MAGIC] {
        let text = std::str::from_utf8(magic).expect("ASCII");
        assert!(DOCUMENT.contains(&format!("`{text}`")), "{text}");
    }
}

fn sample_header(predecessor: Option<Predecessor>) -> SegmentHeader {
    SegmentHeader {
        id: SegmentId {
            epoch: Epoch(5),
            number: 2,
        },
        owner: OWNER,
        segment_size: segment::SEGMENT_SIZE_MIN,
        predecessor,
        chain: if predecessor.is_some() {
            0xc0de
        } else {
            IDENTITY.chain_start()
        },
    }
}

/// What must be decided at each row of the table of headers.
#[test]
fn every_row_about_headers_is_decided_as_written() {
    let header = sample_header(None);
    let other = SegmentHeader {
        owner: Owner([1; 16]),
        ..header
    };
    let valid = HeaderCopy::Valid(header);
    let bad = HeaderCopy::Invalid;
    let foreign = HeaderCopy::Foreign(IDENTITY.store, IDENTITY.shard);
    let elsewhere = HeaderCopy::Misplaced(header.id);
    let newer = HeaderCopy::Unknown(9);
    let both = [true, false];
    for cells in table_after("What a segment's header says is judged so:") {
        let (copies, counts): (Vec<[HeaderCopy; 2]>, &[bool]) = match (cells[0], cells[1]) {
            ("both valid and equal", "yes") => (vec![[valid, valid]], &both[..1]),
            ("one valid", "yes") => (
                vec![[valid, bad], [bad, valid], [valid, foreign]],
                &both[..1],
            ),
            ("none valid", "yes") => (vec![[bad, bad]], &both[..1]),
            ("both valid, not equal", "yes") => {
                (vec![[valid, HeaderCopy::Valid(other)]], &both[..1])
            }
            ("any, none of an unknown format", "no") => {
                (vec![[valid, valid], [bad, valid], [bad, bad]], &both[1..])
            }
            ("none valid, one is another store's or shard's", "any") => {
                (vec![[foreign, foreign], [bad, foreign]], &both[..])
            }
            ("none valid, one is another segment's", "any") => {
                (vec![[elsewhere, elsewhere], [elsewhere, bad]], &both[..])
            }
            ("one of an unknown format", "any") => (vec![[newer, valid], [bad, newer]], &both[..]),
            unknown => panic!("a row without a test: {unknown:?}"),
        };
        for copies in copies {
            for &counts in counts {
                let decision = match Headers::of(copies).judge(counts) {
                    Judgement::Use(_) => "use",
                    Judgement::UseAndReport(_) => "use, report the other",
                    Judgement::PassOver => "pass over",
                    Judgement::Damaged(_) => "damaged",
                    Judgement::Foreign(..) => "refuse: foreign",
                    Judgement::Unknown(_) => "refuse: unknown format",
                };
                assert_eq!(decision, cells[2], "{cells:?} {copies:?}");
            }
        }
    }
}

/// What must be decided at each row of the table of the last segment's end.
#[test]
fn every_row_about_the_end_is_decided_as_written() {
    let mut rows = table_after("In the last segment:");
    // The one row that does not end the scan; the replay tests show it.
    assert_eq!(
        rows.remove(0),
        ["a valid batch, the next in order", "any", "replay"]
    );
    for cells in rows {
        let stop = match cells[0] {
            "zeros, or the end of the file" => Stop::Blank,
            "anything else" => Stop::Invalid,
            "a valid batch that is not the next in order" => Stop::OutOfOrder(Fault::Chain),
            unknown => panic!("a row without a test: {unknown}"),
        };
        let own: u64 = if stop == Stop::Invalid { 9 } else { 0 };
        let beyond = |batch, out_of_reach, bytes| Beyond {
            batch,
            out_of_reach,
            bytes_not_zero: own + bytes,
        };
        let cases = match cells[1] {
            "zeros" => vec![beyond(None, None, 0)],
            "a valid batch" => vec![beyond(Some(9216), None, 4), beyond(Some(1), Some(2), 4)],
            "bytes within the reach of one batch" => vec![beyond(None, None, 4)],
            "bytes beyond the reach of one batch" => vec![beyond(None, Some(1 << 21), 4)],
            "any" => vec![beyond(None, None, 0), beyond(Some(9216), Some(1), 4)],
            unknown => panic!("a row without a test: {unknown}"),
        };
        for case in cases {
            let decision = match decide(stop, &case) {
                Decision::EndOfLog => "end of log",
                Decision::EndOfLogCut => "end of log, cut",
                Decision::Damaged(_) => "damaged",
            };
            assert_eq!(decision, cells[2], "{cells:?} {case:?}");
        }
    }
}

/// Lines of an offset and 32 bytes; lines of zeros are left out.
fn hex(bytes: &[u8]) -> String {
    let mut text = String::new();
    for (line, chunk) in bytes.chunks(32).enumerate() {
        if chunk.iter().any(|&byte| byte != 0) {
            let digits: String = chunk.iter().map(|byte| format!("{byte:02x}")).collect();
            text.push_str(&format!("{:08x} {digits}\n", line * 32));
        }
    }
    text.push_str(&format!("{:08x}\n", bytes.len()));
    text
}

#[test]
fn the_segment_header_keeps_its_bytes() {
    let predecessor = Predecessor {
        id: SegmentId {
            epoch: Epoch(4),
            number: 1,
        },
        owner: Owner([0x11; 16]),
        end_offset: 9216,
        end_sequence: Sequence(1000),
    };
    let header = sample_header(Some(predecessor));
    let bytes = header.encode(&IDENTITY);
    assert_eq!(
        hex(&bytes),
        include_str!("../../golden/segment_header_v1.hex")
    );
    for (copy, bytes) in bytes
        .as_chunks::<SEGMENT_HEADER_SIZE>()
        .0
        .iter()
        .enumerate()
    {
        let offset = (copy * SEGMENT_HEADER_SIZE) as u64;
        let decoded = HeaderCopy::decode(bytes, &IDENTITY, header.id, offset);
        assert_eq!(decoded, HeaderCopy::Valid(header));
    }
}

#[test]
fn a_batch_keeps_its_bytes() {
    let place = Place::new(
        &IDENTITY,
        SegmentId {
            epoch: Epoch(5),
            number: 2,
        },
    );
    let mut batch = Batch::new();
    batch
        .push(1, 0, Slot(200), Timestamp(1_800_000_000_000), b"the first")
        .expect("room");
    batch
        .push(2, 3, Slot(0), Timestamp(1_800_000_000_001), b"")
        .expect("room");
    let position = |class| Position {
        place: &place,
        offset: 8192,
        first_sequence: Sequence(1001),
        chain: 0xc0de,
        class,
    };
    let (bytes, _) = batch.seal(&position(BatchClass::Plain));
    assert_eq!(hex(bytes), include_str!("../../golden/batch_v1.hex"));
    let mut mark = Batch::new();
    let (bytes, chain) = mark.seal(&position(BatchClass::Mark));
    assert_eq!(hex(bytes), include_str!("../../golden/mark_v1.hex"));
    assert_eq!(chain, 0xc0de, "a mark has no record");
}
