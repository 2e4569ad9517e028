//! d02 and d05: a torn tail is told apart from damage, and no byte is believed unchecked.

use crate::Room;
use ostraca_io::{Disk, DiskFile, FileName, SimDisk, Unsynced};

use super::*;

const SECTOR: u64 = 512;

/// A log of two take-overs: segment 1 sealed, segment 2 open, ending with a batch that nothing
/// proves, or with a mark.
fn small_log(marked: bool) -> SimDisk {
    let disk = SimDisk::new(1);
    let (mut log, _) = open(&disk).expect("a new log");
    append_one(&mut log, 0).expect("power");
    append_one(&mut log, 1).expect("power");
    let disk = disk.crash();
    let (mut log, _) = open(&disk).expect("a log");
    append_one(&mut log, 2).expect("power");
    let mut batch = Batch::new();
    push(&mut batch, 3, 700);
    push(&mut batch, 4, 0);
    log.append(&mut batch, Room::Reserve).expect("power");
    log.sync().expect("power");
    log.mark().expect("power");
    append_one(&mut log, 5).expect("power");
    batch.clear();
    push(&mut batch, 6, 900);
    log.append(&mut batch, Room::Reserve).expect("power");
    log.sync().expect("power");
    if marked {
        log.mark().expect("power");
    }
    disk.crash()
}

fn segment_name(epoch: u64, number: u32) -> FileName {
    SegmentId {
        epoch: Epoch(epoch),
        number,
    }
    .file_name()
}

/// The same files, each changed or left out.
fn rebuilt(disk: &SimDisk, change: impl Fn(&FileName, Vec<u8>) -> Option<Vec<u8>>) -> SimDisk {
    let copy = SimDisk::new(2);
    for name in disk.list().expect("power") {
        let bytes = disk.contents(&name).expect("it is listed");
        if let Some(bytes) = change(&name, bytes) {
            let file = copy.create(&name).expect("a new name");
            file.write_all_at(&bytes, 0).expect("room");
            file.sync_all().expect("power");
        }
    }
    copy.sync_dir().expect("power");
    copy
}

fn report_of(disk: &SimDisk) -> Report {
    recover(disk).expect("undamaged").0.report().clone()
}

/// What damage to some bytes of a log led to.
#[derive(Debug, PartialEq, Eq)]
enum Outcome {
    Refused,
    Harmless,
    LastBatchCut,
}

/// Checks that the damage at `offset` of `name` is refused by name, or changes nothing, or is
/// within the documented window.
fn outcome(disk: &SimDisk, whole: &[u64], name: &FileName, offset: u64) -> Outcome {
    match recover(disk) {
        Err(Error::Damaged {
            file,
            offset: at,
            fault,
            ..
        }) => {
            assert_eq!(file, *name, "offset={offset} {fault}");
            assert!(
                at <= offset && offset < at + 3 * SECTOR,
                "offset={offset} named={at}"
            );
            Outcome::Refused
        }
        Err(err) => panic!("offset={offset}: {err}"),
        Ok((_, records)) if numbers(&records) == whole => Outcome::Harmless,
        Ok((recovered, records)) => {
            assert_eq!(
                numbers(&records),
                whole[..whole.len() - 1],
                "offset={offset}"
            );
            let cut = recovered.report().cut.as_ref();
            if let Some(cut) = cut {
                assert!(cut.file == *name && cut.offset <= offset && offset < cut.offset + 1536);
            }
            Outcome::LastBatchCut
        }
    }
}

/// Goal: damage to anything that is proven durable is refused by name.
/// Method: zero, fill and flip a bit in every sector of every file that holds anything.
#[test]
fn d02_damage_to_any_sector_is_named_or_harmless() {
    for marked in [false, true] {
        let disk = small_log(marked);
        let whole: Vec<u64> = (0..=6).collect();
        let report = report_of(&disk);
        let last = report.segments.last().expect("two segments");
        for segment in &report.segments {
            let name = segment.segment.file_name();
            let bytes = disk.contents(&name).expect("the file");
            for offset in (0..segment.end_offset + 2 * SECTOR).step_by(512) {
                let start = usize::try_from(offset).expect("small");
                let old = &bytes[start..start + 512];
                let mut flipped = old.to_vec();
                flipped[37] ^= 4;
                for new in [vec![0; 512], vec![0xff; 512], flipped] {
                    disk.overwrite(&name, offset, &new);
                    let outcome = outcome(&disk, &whole, &name, offset);
                    disk.overwrite(&name, offset, old);
                    let in_batches = (BATCHES_START..segment.end_offset).contains(&offset);
                    let in_last_batch = segment == last
                        && !marked
                        && in_batches
                        && offset >= segment.end_offset - 2 * SECTOR;
                    let context = format!("marked={marked} {name} {offset}");
                    if in_last_batch {
                        assert_eq!(outcome, Outcome::LastBatchCut, "{context}");
                    } else if in_batches && !(marked && offset == last.end_offset - SECTOR) {
                        let unchanged = new == old;
                        assert_eq!(outcome == Outcome::Refused, !unchanged, "{context}");
                    } else {
                        // A header copy, the mark itself, or zeros beyond the end.
                        assert_eq!(outcome, Outcome::Harmless, "{context}");
                    }
                }
            }
        }
    }
}

/// Goal: every byte that recovery believes is under a checksum (WAL-18, WAL-30).
/// Method: flip a bit of every byte of all batches.
#[test]
fn d05_a_flipped_bit_in_any_byte_is_found() {
    let disk = small_log(true);
    let whole: Vec<u64> = (0..=6).collect();
    let report = report_of(&disk);
    for segment in &report.segments {
        let name = segment.segment.file_name();
        // Without the mark that ends the log: it holds no record.
        let end = segment.end_offset
            - if segment.segment.epoch == Epoch(2) {
                SECTOR
            } else {
                0
            };
        for offset in BATCHES_START..end {
            let bit = u32::try_from(offset % 8).expect("small");
            disk.flip_bit(&name, offset, bit);
            let outcome = outcome(&disk, &whole, &name, offset);
            disk.flip_bit(&name, offset, bit);
            assert_eq!(outcome, Outcome::Refused, "{name} {offset}");
        }
    }
}

#[test]
fn d05_one_header_copy_is_enough_and_the_loss_is_reported() {
    let disk = small_log(true);
    for epoch in [1, 2] {
        let name = segment_name(epoch, 0);
        for offset in (0..128).chain([2000, 4095]) {
            for copy in [0, SEGMENT_HEADER_SIZE as u64] {
                disk.flip_bit(&name, copy + offset, 3);
                let report = report_of(&disk);
                let lost = SegmentId {
                    epoch: Epoch(epoch),
                    number: 0,
                };
                assert_eq!(
                    report.header_copies_lost,
                    [lost],
                    "copy at {copy}, byte {offset}"
                );
                assert_eq!(report.last_sequence, Sequence(9));
                disk.flip_bit(&name, copy + offset, 3);
            }
        }
    }
}

#[test]
fn d05_a_segment_without_a_header_is_damaged() {
    let disk = small_log(true);
    for epoch in [1, 2] {
        let name = segment_name(epoch, 0);
        for copy in [0, SEGMENT_HEADER_SIZE as u64] {
            disk.flip_bit(&name, copy + 70, 0);
        }
        match recover(&disk) {
            Err(Error::Damaged {
                file,
                fault: Fault::SegmentHeader,
                ..
            }) => assert_eq!(file, name),
            other => panic!("{other:?}"),
        }
        for copy in [0, SEGMENT_HEADER_SIZE as u64] {
            disk.flip_bit(&name, copy + 70, 0);
        }
    }
}

/// Goal: an append that was never acknowledged is cut, whatever the power left of it (WAL-04).
/// Method: tear a large last batch in many ways.
#[test]
fn d02_a_torn_tail_is_cut_and_reported() {
    let mut cuts = 0;
    for seed in 0..40 {
        let fate = if seed % 2 == 0 {
            Unsynced::Torn
        } else {
            Unsynced::Random
        };
        let disk = SimDisk::new(seed);
        let (mut log, _) = open(&disk).expect("a new log");
        append_one(&mut log, 0).expect("power");
        let end = BATCHES_START + 2 * SECTOR;
        log.append(&mut big_batch(1), Room::Reserve).expect("power");
        disk.power_cut(fate);
        let disk = disk.restarted();
        let (recovered, records) = recover(&disk).expect("a torn tail");
        if records.len() > 2 {
            // Only the padding was torn, or nothing: the batch is whole.
            assert_eq!(numbers(&records), (0..10).collect::<Vec<_>>());
            continue;
        }
        assert_eq!(numbers(&records), [0], "seed={seed} fate={fate:?}");
        if let Some(cut) = &recovered.report().cut {
            assert_eq!((&cut.file, cut.offset), (&segment_name(1, 0), end));
            assert!(cut.bytes_not_zero > 0 && cut.bytes_not_zero <= BIG_BATCH as u64 + 512);
            cuts += 1;
        }
        // The next epoch goes on, and what was cut does not come back.
        let (mut log, _) = open(&disk).expect("a log");
        append_one(&mut log, 1).expect("power");
        let (_, records) = recover(&disk.crash()).expect("a log");
        assert_eq!(numbers(&records), [0, 1]);
    }
    assert!(cuts > 30, "{cuts}");
}

/// WAL-06.
#[test]
fn d02_zeros_after_the_log_are_its_normal_end() {
    let disk = rebuilt(&small_log(false), |_, mut bytes| {
        bytes.extend_from_slice(&[0; 3000]);
        Some(bytes)
    });
    assert_eq!(report_of(&disk).cut, None);
}

#[test]
fn d02_a_shorter_file_is_damaged() {
    // Of the last one any byte counts, of the first one those up to the end that is recorded.
    for (epoch, size) in [(1, 8704), (2, SEGMENT_SIZE_MIN - 4096)] {
        let short = segment_name(epoch, 0);
        let disk = rebuilt(&small_log(true), |name, mut bytes| {
            if *name == short {
                bytes.truncate(usize::try_from(size).expect("small"));
            }
            Some(bytes)
        });
        match recover(&disk) {
            Err(Error::Damaged {
                file,
                fault: Fault::FileSize,
                ..
            }) => assert_eq!(file, short),
            other => panic!("{other:?}"),
        }
    }
}

/// WAL-22: what is not there is no shorter log.
#[test]
fn d02_a_missing_segment_is_named_unless_a_checkpoint_covers_it() {
    let missing = segment_name(1, 0);
    let disk = rebuilt(&small_log(true), |name, bytes| {
        (*name != missing).then_some(bytes)
    });
    let names_it = |result: Result<(Recovered, Vec<Stored>), Error>| match result {
        Err(Error::Damaged {
            file,
            fault: Fault::Missing,
            ..
        }) => assert_eq!(file, missing),
        other => panic!("{other:?}"),
    };
    names_it(recover(&disk));
    // Sequences: no-op 1, records 2 and 3 (written again in segment 2), no-op 4, ...
    names_it(recover_from(&disk, Start::After(Sequence(1))));
    let (_, records) = recover_from(&disk, Start::After(Sequence(2))).expect("covered");
    assert_eq!(numbers(&records), [1, 2, 3, 4, 5, 6]);
    let (_, records) = recover_from(&disk, Start::Oldest).expect("a look");
    assert_eq!(records[0].sequence, Sequence(3));
}

/// An older copy of the last segment is a whole log of its own; only a checkpoint can tell.
#[test]
fn d02_a_log_behind_its_checkpoint_is_damaged() {
    let disk = small_log(true);
    assert!(recover_from(&disk, Start::After(Sequence(9))).is_ok());
    for disk in [disk, SimDisk::new(1)] {
        match recover_from(&disk, Start::After(Sequence(10))) {
            Err(Error::Damaged {
                fault: Fault::Behind(Sequence(10)),
                ..
            }) => {}
            other => panic!("{other:?}"),
        }
    }
}

#[test]
fn d02_files_that_changed_names_are_refused() {
    let disk = small_log(true);
    let bytes = disk.contents(&segment_name(1, 0)).expect("the file");
    let copy = rebuilt(&disk, |_, bytes| Some(bytes));
    let file = copy.create(&segment_name(7, 0)).expect("a new name");
    file.write_all_at(&bytes, 0).expect("room");
    match recover(&copy) {
        Err(Error::Damaged {
            file,
            fault: Fault::Misplaced(id),
            ..
        }) => {
            assert_eq!((file, id.epoch), (segment_name(7, 0), Epoch(1)));
        }
        other => panic!("{other:?}"),
    }
}

/// A wrong directory or a wrong configuration must never look like an empty log.
#[test]
fn d02_another_stores_segment_is_refused() {
    let disk = small_log(true);
    for identity in [
        Identity {
            store: StoreId([1; 16]),
            ..IDENTITY
        },
        Identity {
            shard: ShardId(4),
            ..IDENTITY
        },
    ] {
        match Recovery::read(&disk, identity) {
            Err(Error::Foreign { store, shard, .. }) => {
                assert_eq!((store, shard), (IDENTITY.store, IDENTITY.shard));
            }
            other => panic!("{other:?}"),
        }
    }
}

#[test]
fn d07_a_newer_format_is_refused_by_name() {
    use crate::place::{Place, checksum};
    use crate::segment::field;
    let disk = small_log(true);
    let id = SegmentId {
        epoch: Epoch(1),
        number: 0,
    };
    let name = id.file_name();
    let mut bytes = disk.contents(&name).expect("the file");
    bytes.truncate(SEGMENT_HEADER_SIZE);
    bytes[field::VERSION].copy_from_slice(&9u16.to_le_bytes());
    let crc = checksum(&bytes, field::CRC, Place::new(&IDENTITY, id).seed(0));
    bytes[field::CRC].copy_from_slice(&crc.to_le_bytes());
    disk.overwrite(&name, 0, &bytes);
    match recover(&disk) {
        Err(Error::UnknownFormat { file, version: 9 }) => assert_eq!(file, name),
        other => panic!("{other:?}"),
    }
}

/// A write that landed in the wrong place (WAL-19), over a batch or behind the log.
#[test]
fn d02_a_misplaced_batch_is_not_believed() {
    let disk = small_log(false);
    let name = segment_name(1, 0);
    let bytes = disk.contents(&name).expect("the file");
    let batch = &bytes[8192 + 512..8192 + 1024];
    let end = report_of(&disk).segments[1].end_offset;
    let last = segment_name(2, 0);
    disk.overwrite(&last, end, batch);
    let report = report_of(&disk);
    assert_eq!(report.cut.expect("bytes that are no batch").offset, end);
    assert_eq!(report.last_sequence, Sequence(9));
    disk.overwrite(&last, BATCHES_START, batch);
    assert!(matches!(
        recover(&disk),
        Err(Error::Damaged {
            offset: BATCHES_START,
            ..
        })
    ));
}

/// Text that imitates a batch, at a place where recovery looks for one, convicts nothing.
#[test]
fn d02_a_payload_that_imitates_a_batch_is_no_batch() {
    let disk = SimDisk::new(1);
    let (mut log, _) = open(&disk).expect("a new log");
    append_one(&mut log, 0).expect("power");
    let bytes = disk.contents(&segment_name(1, 0)).expect("the file");
    // So that the copy starts at a multiple of 512.
    let mut imitation = vec![0; 512 - BATCH_HEADER_SIZE - RECORD_HEADER_SIZE];
    imitation.extend_from_slice(&bytes[8192 + 512..8192 + 1024]);
    let mut batch = Batch::new();
    batch.push(7, 1, Slot(0), TIME, &imitation).expect("room");
    log.append(&mut batch, Room::Reserve).expect("power");
    let disk = disk.crash();
    let offset = BATCHES_START + 1024;
    let written = disk.contents(&segment_name(1, 0)).expect("the file");
    assert_eq!(
        &written[8192 + 1024 + 512..8192 + 1024 + 516],
        b"oBAT",
        "it is where it should be"
    );
    disk.flip_bit(&segment_name(1, 0), offset + 20, 0);
    let (recovered, records) = recover(&disk).expect("a torn tail");
    assert_eq!(numbers(&records), [0]);
    assert_eq!(
        recovered.report().cut.as_ref().map(|cut| cut.offset),
        Some(offset)
    );
}

#[test]
fn d02_bytes_beyond_the_reach_of_one_batch_are_damage() {
    // The smallest segment has no such place.
    let disk = rebuilt(&small_log(false), |_, mut bytes| {
        bytes.extend_from_slice(&[0; 8192]);
        Some(bytes)
    });
    let end = report_of(&disk).segments[1].end_offset;
    let name = segment_name(2, 0);
    disk.overwrite(&name, end + BATCH_SIZE_MAX as u64 - 512, &[1]);
    assert_eq!(
        report_of(&disk)
            .cut
            .expect("a torn batch may reach there")
            .bytes_not_zero,
        1
    );
    let far = end + BATCH_SIZE_MAX as u64;
    disk.overwrite(&name, far, &[1]);
    match recover(&disk) {
        Err(Error::Damaged {
            file,
            offset,
            fault: Fault::LaterBytes(at),
            ..
        }) => {
            assert_eq!((file, offset, at), (name, end, far));
        }
        other => panic!("{other:?}"),
    }
}

/// Reading changes nothing, whatever it meets.
#[test]
fn d02_reading_never_writes() {
    let disk = small_log(false);
    disk.flip_bit(&segment_name(2, 0), BATCHES_START + 3, 1);
    let before = disk.operations();
    recover(&disk).expect_err("damage");
    verify(&disk, IDENTITY, None, &mut |_| {}).expect_err("damage");
    disk.flip_bit(&segment_name(2, 0), BATCHES_START + 3, 1);
    recover(&disk).expect("undamaged");
    assert_eq!(disk.operations(), before);
}

/// A log whose first segment holds one record of `payload` and was made by `owner`; then one more
/// take-over.
fn log_of(owner: Owner, payload: &[u8]) -> SimDisk {
    let disk = SimDisk::new(1);
    for owner in [owner, OWNER] {
        let claim = claim(&disk).expect("power");
        let (recovered, _) = recover_under(&claim, &disk, Start::Beginning).expect("a log");
        let log = Log::take_over(disk.clone(), claim, owner, SMALL, recovered, TIME);
        let mut log = log.expect("power");
        let mut batch = Batch::new();
        batch.push(7, 1, Slot(0), TIME, payload).expect("room");
        log.append(&mut batch, Room::Reserve).expect("power");
        log.sync().expect("power");
        append_one(&mut log, 1).expect("power");
    }
    disk
}

/// Goal: a segment that is valid by itself but of another history of the same store (an older
/// copy that was restored, WAL-21) is told from the one that its successor names.
/// Method: exchange the first segment for that of a log which went another way.
#[test]
fn d02_a_segment_of_another_history_is_named() {
    let ours = log_of(OWNER, b"one way");
    for (other, expected) in [
        (log_of(OWNER, b"another"), Fault::End),
        (log_of(Owner([1; 16]), b"one way"), Fault::Owner),
    ] {
        let first = segment_name(1, 0);
        let mixed = rebuilt(&ours, |name, bytes| {
            if *name == first {
                other.contents(name)
            } else {
                Some(bytes)
            }
        });
        match recover(&mixed) {
            Err(Error::Damaged { file, fault, .. }) => assert_eq!((file, fault), (first, expected)),
            other => panic!("{other:?}"),
        }
    }
}

/// Goal: a mark never turns an append that was lost into damage.
/// Method: a batch in flight after a mark, and a power cut that keeps any sectors of any of it.
#[test]
fn d02_a_mark_before_a_lost_append_convicts_nothing() {
    for seed in 0..64 {
        let disk = SimDisk::new(seed);
        let (mut log, _) = open(&disk).expect("a new log");
        append_one(&mut log, 0).expect("power");
        log.mark().expect("power");
        let mut batch = Batch::new();
        push(&mut batch, 1, 20);
        log.append(&mut batch, Room::Reserve).expect("power");
        disk.power_cut(Unsynced::Random);
        recover(&disk.restarted()).unwrap_or_else(|err| panic!("seed={seed}: {err}"));
    }
}

/// A batch that is valid by itself and does not go on from what is before it was not written by
/// us after it.
#[test]
fn d02_a_valid_batch_out_of_order_is_damage() {
    use crate::batch::Position;
    use crate::frame::BatchClass;
    use crate::place::Place;
    let disk = small_log(true);
    let (recovered, _) = recover(&disk).expect("undamaged");
    let id = SegmentId {
        epoch: Epoch(2),
        number: 0,
    };
    let offset = recovered.report().segments[1].end_offset;
    let (next, chain) = (recovered.last_sequence().next(), recovered.chain_end);
    let outcome = |first_sequence, chain, class| {
        let mut batch = Batch::new();
        batch
            .push_as(Epoch(1), 7, 1, Slot(0), TIME, b"forged")
            .expect("room");
        let place = Place::new(&IDENTITY, id);
        let position = Position {
            place: &place,
            offset,
            first_sequence,
            chain,
            class,
        };
        disk.overwrite(&id.file_name(), offset, batch.seal(&position).0);
        match recover(&disk) {
            Ok(_) => None,
            Err(Error::Damaged { fault, .. }) => Some(fault),
            Err(err) => panic!("{err}"),
        }
    };
    assert_eq!(outcome(next, chain, BatchClass::Plain), None);
    let (plain, again) = (BatchClass::Plain, BatchClass::Reappended);
    assert_eq!(outcome(next.next(), chain, plain), Some(Fault::Sequence));
    assert_eq!(outcome(next, chain ^ 1, plain), Some(Fault::Chain));
    assert_eq!(outcome(next, chain, again), Some(Fault::Epoch));
}
