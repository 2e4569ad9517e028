//! Every row of the two tables of recovery in FORMAT.md, as bytes on a disk: what is read is what
//! the row says. A row of the document without a case fails, and so does a case without a row. The
//! decisions alone are fed row by row in `format`.

use ostraca_io::{Disk, DiskFile, SimDisk};

use super::format::table_after;
use super::*;
use crate::batch::Position;
use crate::frame::BatchClass;
use crate::place::{Place, checksum};
use crate::segment::{HeaderCopy, SegmentHeader, field};

const ROOMY: Options = Options {
    segment_size: 3 << 20,
    segment_size_first: 3 << 20,
};
const FIRST: SegmentId = SegmentId {
    epoch: Epoch(1),
    number: 0,
};
const SECOND: SegmentId = SegmentId {
    epoch: Epoch(2),
    number: 0,
};

/// A log of one record, and where it ends: with room behind it, or with the file.
fn log_with_an_end(at_the_end_of_the_file: bool) -> (SimDisk, u64) {
    let disk = SimDisk::new(1);
    let options = if at_the_end_of_the_file { SMALL } else { ROOMY };
    let (mut log, _) = open_from(&disk, options, Start::Beginning).expect("a new log");
    append_one(&mut log, 0).expect("power");
    while at_the_end_of_the_file && log.free() > 0 {
        let mut batch = Batch::new();
        let rest = usize::try_from(log.free())
            .expect("small")
            .min(60_000 / 512 * 512);
        push(
            &mut batch,
            log.sequence_next().0 - 2,
            rest - BATCH_HEADER_SIZE - RECORD_HEADER_SIZE - 8,
        );
        log.append(&mut batch, Room::Reserve).expect("room");
        log.sync().expect("power");
    }
    let end = recover(&disk).expect("a log").0.report().segments[0].end_offset;
    assert_eq!(at_the_end_of_the_file, end == SEGMENT_SIZE_MIN);
    (disk.crash(), end)
}

/// A batch that is valid at `offset`, and comes so many sequences after the last one.
fn valid_batch(disk: &SimDisk, offset: u64, after: u64) -> Vec<u8> {
    let (recovered, _) = recover(disk).expect("undamaged");
    let mut batch = Batch::new();
    push(&mut batch, 77, 20);
    let position = Position {
        place: &Place::new(&IDENTITY, FIRST),
        offset,
        first_sequence: Sequence(recovered.last_sequence().0 + after),
        chain: recovered.chain_end,
        class: BatchClass::Plain,
    };
    batch.seal(&position).0.to_vec()
}

/// What recovery makes of the end of a log, in the words of the table.
fn decision_at(disk: &SimDisk, end: u64) -> &'static str {
    match recover(disk) {
        Ok((recovered, records)) if records.last().is_some_and(|last| last.payload[0] == 77) => {
            assert_eq!(recovered.report().cut, None);
            "replay"
        }
        Ok((recovered, _)) => match &recovered.report().cut {
            None => "end of log",
            Some(cut) => {
                assert_eq!((&cut.file, cut.offset), (&FIRST.file_name(), end));
                "end of log, cut"
            }
        },
        Err(Error::Damaged { file, offset, .. }) => {
            assert_eq!((file, offset), (FIRST.file_name(), end));
            "damaged"
        }
        Err(err) => panic!("{err}"),
    }
}

#[test]
fn d02_every_row_about_the_end_is_read_as_written() {
    let rows = table_after("In the last segment:");
    assert_eq!(rows.len(), 10);
    for cells in rows {
        let after: &[&str] = match cells[1] {
            "any" => &["zeros", "a valid batch", "within", "beyond"],
            "zeros" => &["zeros"],
            "a valid batch" => &["a valid batch"],
            "bytes within the reach of one batch" => &["within"],
            "bytes beyond the reach of one batch" => &["beyond"],
            unknown => panic!("a row without a case: {unknown}"),
        };
        for &after in after {
            let ends: &[bool] = match (cells[0], after) {
                ("zeros, or the end of the file", "zeros") => &[false, true],
                _ => &[false],
            };
            for &at_the_end_of_the_file in ends {
                let (disk, end) = log_with_an_end(at_the_end_of_the_file);
                let name = FIRST.file_name();
                let met = match cells[0] {
                    "a valid batch, the next in order" => valid_batch(&disk, end, 1),
                    "a valid batch that is not the next in order" => valid_batch(&disk, end, 2),
                    "zeros, or the end of the file" => Vec::new(),
                    "anything else" => b"oBAT, but no batch".to_vec(),
                    unknown => panic!("a row without a case: {unknown}"),
                };
                let further = end + BATCH_ALIGNMENT as u64;
                let (place, behind) = match after {
                    "a valid batch" => (further, valid_batch(&disk, further, 2)),
                    "within" => (further, vec![1]),
                    "beyond" => (end + BATCH_SIZE_MAX as u64, vec![1]),
                    _ => (end, Vec::new()),
                };
                disk.overwrite(&name, end, &met);
                disk.overwrite(&name, place, &behind);
                // What is after a batch that was replayed is for another row.
                let decision = if cells[2] == "replay" && after != "zeros" {
                    replayed_before(&disk, further)
                } else {
                    decision_at(&disk, end)
                };
                assert_eq!(decision, cells[2], "{cells:?} {after}");
            }
        }
    }
}

/// Whether the scan went on to `next`, which is where it stopped.
fn replayed_before(disk: &SimDisk, next: u64) -> &'static str {
    match recover(disk) {
        Ok((recovered, records)) => {
            let cut = recovered.report().cut.as_ref().map(|cut| cut.offset);
            assert_eq!(cut, Some(next));
            assert_eq!(records.last().map(|last| last.payload[0]), Some(77));
        }
        Err(Error::Damaged { offset, .. }) => assert_eq!(offset, next),
        Err(err) => panic!("{err}"),
    }
    "replay"
}

/// Which segment's header is damaged.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Role {
    Predecessor,
    Last,
    /// A take-over that was interrupted before its no-op.
    DoesNotCount,
}

fn log_with(role: Role) -> (SimDisk, SegmentId) {
    let disk = SimDisk::new(1);
    let (mut log, _) = open(&disk).expect("a new log");
    append_one(&mut log, 0).expect("power");
    let disk = disk.crash();
    if role != Role::DoesNotCount {
        drop(open(&disk).expect("a log"));
        let id = if role == Role::Last { SECOND } else { FIRST };
        return (disk.crash(), id);
    }
    let whole = disk.fork();
    drop(open(&whole).expect("a log"));
    let torn = disk.operations() + (whole.operations() - disk.operations()) - 3;
    disk.power_cut_at(torn, ostraca_io::Unsynced::Kept);
    open(&disk).expect_err("the power goes before the no-op is complete");
    let disk = disk.restarted();
    let no_op = BATCHES_START + BATCH_ALIGNMENT as u64;
    disk.overwrite(&SECOND.file_name(), no_op, &[0; BATCH_ALIGNMENT]);
    (disk, SECOND)
}

/// A copy of a header with one thing changed, sealed again for its place.
fn changed(bytes: &[u8], change: impl Fn(&mut Vec<u8>), seed: u32) -> Vec<u8> {
    let mut bytes = bytes.to_vec();
    change(&mut bytes);
    let crc = checksum(&bytes, field::CRC, seed);
    bytes[field::CRC].copy_from_slice(&crc.to_le_bytes());
    bytes
}

/// Both copies, as a row of the table has them.
fn copies(row: &str, header: &SegmentHeader, id: SegmentId) -> Vec<[Vec<u8>; 2]> {
    let split = |bytes: Vec<u8>| {
        let (first, second) = bytes.split_at(SEGMENT_HEADER_SIZE);
        [first.to_vec(), second.to_vec()]
    };
    let valid = split(header.encode(&IDENTITY));
    let bad = || vec![0xee; SEGMENT_HEADER_SIZE];
    let place = Place::new(&IDENTITY, id);
    let other_owner = SegmentHeader {
        owner: Owner([1; 16]),
        ..*header
    };
    let elsewhere = SegmentHeader {
        id: SegmentId {
            number: 9,
            ..header.id
        },
        ..*header
    };
    let stranger = Identity {
        shard: ShardId(4),
        ..IDENTITY
    };
    let newer = |copy: usize| {
        let put = |bytes: &mut Vec<u8>| bytes[field::VERSION].copy_from_slice(&9u16.to_le_bytes());
        let seed = place.seed((copy * SEGMENT_HEADER_SIZE) as u64);
        changed(&valid[copy], put, seed)
    };
    match row {
        "both valid and equal" => vec![valid],
        "one valid" => vec![[valid[0].clone(), bad()], [bad(), valid[1].clone()]],
        "none valid" => vec![[bad(), bad()]],
        "both valid, not equal" => {
            let other = split(other_owner.encode(&IDENTITY));
            vec![[valid[0].clone(), other[1].clone()]]
        }
        "any, none of an unknown format" => vec![
            valid.clone(),
            [valid[0].clone(), bad()],
            [bad(), bad()],
            [vec![0; SEGMENT_HEADER_SIZE], vec![0; SEGMENT_HEADER_SIZE]],
        ],
        "none valid, one is another store's or shard's" => {
            let foreign = split(header.encode(&stranger));
            vec![foreign.clone(), [bad(), foreign[1].clone()]]
        }
        "none valid, one is another segment's" => {
            let misplaced = split(elsewhere.encode(&IDENTITY));
            vec![misplaced.clone(), [misplaced[0].clone(), bad()]]
        }
        "one of an unknown format" => vec![
            [newer(0), newer(1)],
            [valid[0].clone(), newer(1)],
            [newer(0), bad()],
        ],
        unknown => panic!("a row without a case: {unknown}"),
    }
}

/// What recovery makes of a header, in the words of the table.
fn decision_about(disk: &SimDisk, id: SegmentId) -> &'static str {
    match recover(disk) {
        Ok((recovered, records)) => {
            assert_eq!(numbers(&records), [0]);
            let report = recovered.report();
            if report.passed_over == [id] {
                "pass over"
            } else if report.header_copies_lost == [id] {
                "use, report the other"
            } else {
                "use"
            }
        }
        Err(Error::Damaged { file, .. }) => {
            assert_eq!(file, id.file_name());
            "damaged"
        }
        Err(Error::Foreign { file, shard, .. }) => {
            assert_eq!((file, shard), (id.file_name(), ShardId(4)));
            "refuse: foreign"
        }
        Err(Error::UnknownFormat { file, version: 9 }) => {
            assert_eq!(file, id.file_name());
            "refuse: unknown format"
        }
        Err(err) => panic!("{err}"),
    }
}

#[test]
fn d02_every_row_about_headers_is_read_as_written() {
    let rows = table_after("What a segment's header says is judged so:");
    assert_eq!(rows.len(), 8);
    for cells in rows {
        let roles: &[Role] = match cells[1] {
            "yes" => &[Role::Predecessor, Role::Last],
            "no" => &[Role::DoesNotCount],
            "any" => &[Role::Predecessor, Role::Last, Role::DoesNotCount],
            unknown => panic!("a row without a case: {unknown}"),
        };
        for &role in roles {
            let (disk, id) = log_with(role);
            let name = id.file_name();
            let file = disk.open_read_only(&name).expect("the file");
            let mut bytes = [0; SEGMENT_HEADER_SIZE];
            file.read_exact_at(&mut bytes, 0).expect("a header");
            let HeaderCopy::Valid(header) = HeaderCopy::decode(&bytes, &IDENTITY, id, 0) else {
                panic!("{role:?} has a header");
            };
            for [first, second] in copies(cells[0], &header, id) {
                let disk = disk.fork();
                disk.overwrite(&name, 0, &first);
                disk.overwrite(&name, SEGMENT_HEADER_SIZE as u64, &second);
                let context = format!("{cells:?} {role:?}");
                assert_eq!(decision_about(&disk, id), cells[2], "{context}");
            }
        }
    }
}
