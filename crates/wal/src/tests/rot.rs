//! d02 and d05: stored bytes that changed, of a log that is opened as a shard opens it, with the
//! hint of the epoch page. What the log alone can tell is in `damage`.
//!
//! Each file of a small log is damaged in each sector: a flipped bit, zeros, an older copy of the
//! sector, another sector of the same file and of another one; and whole: an older copy, a shorter
//! one, another file's bytes, none. What is allowed:
//!
//! - After a kill the hint is exact, so the records are all there, or the log is refused and a file
//!   and an offset are named. Never is one missing, never does anything panic.
//! - After a power cut the hint may be as old as the last opening or the last prepared segment. What
//!   was appended since may be missing from some batch on to the end, if the damage reaches that far;
//!   no record up to the hint ever is. Where bytes are left behind the cut, it is reported. A loss
//!   that leaves only zeros, as an older copy of the file does, shows nothing that could be.
//!
//! Covers WAL-06, WAL-18, WAL-19, WAL-21, WAL-22 and WAL-30.

use ostraca_io::{Disk, FileName, SimDisk, Unsynced};

use super::*;

const SECTOR: usize = 512;

/// Three leaders: the first's segment is cut off behind its end, the second's rolled into another
/// one, the third's ends in a batch that nothing proves, or in a mark; and a ballast.
struct Whole {
    disk: SimDisk,
    records: Vec<Stored>,
    files: Vec<File>,
    /// Where the last segment ends.
    end: u64,
}

/// The sectors of a file that hold something, and some of those that do not.
struct File {
    name: FileName,
    bytes: Vec<u8>,
    sectors: Vec<usize>,
}

fn whole_log(marked: bool) -> Whole {
    let disk = SimDisk::new(1);
    disk.keep_versions();
    let (mut log, _) = open(&disk).expect("a new log");
    append_one(&mut log, 0).expect("power");
    append_one(&mut log, 1).expect("power");
    let disk = disk.crash();
    let (mut log, _) = open(&disk).expect("a log");
    clean_up(&mut log).expect("power");
    for first in [2, 11, 20] {
        log.append(&mut big_batch(first), Room::Reserve)
            .expect("room");
        log.sync().expect("power");
    }
    let disk = disk.crash();
    let (mut log, _) = open(&disk).expect("a log");
    append_one(&mut log, 29).expect("power");
    log.mark().expect("power");
    for first in [30, 32] {
        let mut batch = Batch::new();
        push(&mut batch, first, 700);
        push(&mut batch, first + 1, 0);
        log.append(&mut batch, Room::Reserve).expect("power");
        log.sync().expect("power");
    }
    if marked {
        log.mark().expect("power");
    }
    let disk = disk.crash();
    let (recovered, records) = recover(&disk).expect("undamaged");
    assert_eq!(numbers(&records), (0..34).collect::<Vec<_>>());
    let ends = &recovered.report().segments;
    let names = disk.list().expect("power");
    let files = names.into_iter().map(|name| File::of(&disk, name));
    Whole {
        files: files.collect(),
        records,
        end: ends.last().expect("four segments").end_offset,
        disk,
    }
}

impl File {
    fn of(disk: &SimDisk, name: FileName) -> Self {
        let bytes = disk.contents(&name).expect("it is listed");
        let count = bytes.len().div_ceil(SECTOR);
        let holds = |&sector: &usize| {
            let end = bytes.len().min((sector + 1) * SECTOR);
            !place::is_zero(&bytes[sector * SECTOR..end])
        };
        // Of a large batch some sectors: they are all alike. Of the rest its start, some, its end.
        let mut sectors: Vec<usize> = (0..count).filter(holds).collect();
        if sectors.len() > 64 {
            let (first, last) = (sectors[40], sectors[sectors.len() - 4]);
            sectors.retain(|sector| *sector < first || *sector > last || sector % 197 == 0);
        }
        let behind = sectors.last().map_or(0, |last| last + 1);
        let free = (behind..count).filter(|sector| sector - behind < 2 || sector % 797 == 0);
        sectors.extend(free.chain(count.checked_sub(1)));
        // The rest of both header copies, which is zeros and counts.
        sectors.extend((0..16).filter(|sector| *sector < count));
        sectors.sort_unstable();
        sectors.dedup();
        Self {
            name,
            bytes,
            sectors,
        }
    }

    fn sector(&self, sector: usize) -> &[u8] {
        let end = self.bytes.len().min((sector + 1) * SECTOR);
        &self.bytes[sector * SECTOR..end]
    }
}

#[derive(Debug, Default)]
struct Count {
    harmless: usize,
    refused: usize,
    shorter: usize,
}

/// Opens a damaged log. `hint`: everything up to it must be there, or the log is refused.
fn open_damaged(
    disk: &SimDisk,
    whole: &Whole,
    damaged: &FileName,
    hint: Sequence,
    count: &mut Count,
    context: &str,
) {
    let untouched = disk.fork();
    let (mut log, records) = match open(disk) {
        Ok(opened) => opened,
        Err(Error::Damaged {
            file,
            offset,
            fault,
            ..
        }) => {
            // A log that ends early is named where it ends: what is missing is behind that.
            let behind = matches!(fault, Fault::Behind(_));
            assert!(file == *damaged || behind, "{context}: {file} {fault}");
            let size = whole.files.iter().map(|file| file.bytes.len()).max();
            assert!(offset <= size.unwrap_or(0) as u64, "{context}: {offset}");
            count.refused += 1;
            return;
        }
        Err(err) => panic!("{context}: {err}"),
    };
    assert!(whole.records.starts_with(&records), "{context}");
    let last = records.last().map_or(Sequence(0), |record| record.sequence);
    assert!(last >= hint, "{context}: a silent loss behind {last}");
    if records.len() == whole.records.len() {
        count.harmless += 1;
    } else {
        let (recovered, _) = recover(&untouched).unwrap_or_else(|err| panic!("{context}: {err}"));
        let report = recovered.report();
        let bytes = disk.contents(damaged).unwrap_or_default();
        if let Some(cut) = &report.cut {
            assert!(cut.bytes_not_zero > 0, "{context}");
        } else if let Some(last) = report.segments.last() {
            let end = usize::try_from(last.end_offset).expect("small");
            let rest = bytes.get(end..).unwrap_or_default();
            assert!(place::is_zero(rest), "{context}: cut and not reported");
        }
        count.shorter += 1;
    }
    // It goes on from there.
    append_one(&mut log, 999).expect("power");
    let (_, again) = recover(&disk.crash()).unwrap_or_else(|err| panic!("{context}: {err}"));
    assert!(again.starts_with(&records), "{context}");
    assert_eq!(numbers(&again).last(), Some(&999), "{context}");
}

/// The kinds of damage to one sector.
fn changes(whole: &Whole, file: &File, sector: usize) -> Vec<(&'static str, Vec<u8>)> {
    let old = file.sector(sector);
    let bit = sector * 37 % old.len();
    let mut flipped = old.to_vec();
    flipped[bit] ^= 1 << (sector % 8);
    let mut changes = vec![("flipped", flipped), ("zeros", vec![0; old.len()])];
    let mut older = whole.disk.older_sectors(&file.name, sector);
    older.retain(|copy| copy.len() == old.len());
    changes.extend(older.into_iter().map(|copy| ("older", copy)));
    let near = [1, 8].into_iter().map(|by| sector + by);
    let near = near.filter(|near| file.sectors.contains(near));
    changes.extend(near.map(|near| ("another", file.sector(near).to_vec())));
    // The same place in other files: only the seeds tell.
    let same = whole.files.iter().filter(|other| other.name != file.name);
    let same = same.filter(|other| other.sectors.contains(&sector));
    changes.extend(same.map(|other| ("another file's", other.sector(sector).to_vec())));
    changes.retain(|(_, copy)| copy.len() == old.len() && copy != old);
    changes
}

fn damage_every_sector(whole: &Whole, hint: Sequence) -> Count {
    let mut count = Count::default();
    for file in &whole.files {
        for &sector in &file.sectors {
            for (kind, bytes) in changes(whole, file, sector) {
                let disk = whole.disk.fork();
                disk.restore_sector(&file.name, sector, &bytes);
                let context = format!("{} sector {sector}: {kind}", file.name);
                open_damaged(&disk, whole, &file.name, hint, &mut count, &context);
            }
        }
    }
    count
}

/// After a power cut the page is as it was at the last opening.
fn after_a_power_cut(whole: Whole) -> (Whole, Sequence) {
    whole.disk.power_cut(Unsynced::Lost);
    let disk = whole.disk.restarted();
    let page = read_epoch_page(disk.page(), &IDENTITY).expect("readable");
    let hint = page.durable.expect("known");
    let no_ops = whole
        .records
        .iter()
        .filter(|record| record.kind == KIND_NO_OP);
    let last = no_ops.map(|record| record.sequence).max();
    assert_eq!(Some(hint), last, "of the last opening");
    (Whole { disk, ..whole }, hint)
}

fn last_sequence(whole: &Whole) -> Sequence {
    whole.records.last().expect("records").sequence
}

#[test]
fn d02_no_damaged_sector_is_a_silent_loss() {
    for marked in [false, true] {
        let whole = whole_log(marked);
        let count = damage_every_sector(&whole, last_sequence(&whole));
        let (harmless, refused) = (count.harmless, count.refused);
        assert!(harmless > 100 && refused > 200, "{count:?}");
        assert_eq!(count.shorter, 0);
    }
}

/// One sector reaches no further than the last batch, and a mark leaves nothing to lose.
#[test]
fn d02_after_a_power_cut_a_damaged_sector_costs_at_most_the_last_batch() {
    for marked in [false, true] {
        let (whole, _) = after_a_power_cut(whole_log(marked));
        let before_the_last_batch = Sequence(last_sequence(&whole).0 - 2);
        let count = damage_every_sector(&whole, before_the_last_batch);
        assert_eq!(count.shorter > 0, !marked, "{count:?}");
        assert!(count.shorter < 30, "{count:?}");
    }
}

/// Damage that reaches from some batch to the end: what is behind the hint may be lost, no more.
#[test]
fn d02_after_a_power_cut_nothing_before_the_hint_is_lost() {
    let (whole, hint) = after_a_power_cut(whole_log(true));
    let mut count = Count::default();
    let last = &whole.files.iter().rev().find(|file| file.bytes[0] != 0);
    let last = last.expect("a segment");
    let start = usize::try_from(BATCHES_START).expect("small");
    let end = usize::try_from(whole.end).expect("small");
    for from in (start..end).step_by(SECTOR) {
        for byte in [0, 0xa5] {
            let disk = whole.disk.fork();
            disk.overwrite(&last.name, from as u64, &vec![byte; end - from]);
            let context = format!("{byte:x} from {from}");
            open_damaged(&disk, &whole, &last.name, hint, &mut count, &context);
        }
    }
    assert!(count.shorter >= 4 && count.refused >= 4, "{count:?}");
}

/// Whole files: older copies, shorter ones, exchanged ones, none.
fn damage_every_file(whole: &Whole, hint: Sequence) -> Count {
    let mut count = Count::default();
    for file in &whole.files {
        let mut copies = whole.disk.older_copies(&file.name);
        let size = file.bytes.len();
        let shorter = [0, 100, 4096, 8192, 8704, 9000, size - 512, size - 1];
        let shorter = shorter.into_iter().filter(|shorter| *shorter < size);
        copies.extend(shorter.map(|shorter| file.bytes[..shorter].to_vec()));
        copies.extend(whole.files.iter().map(|other| other.bytes.clone()));
        copies.retain(|copy| *copy != file.bytes);
        for (position, copy) in copies.iter().enumerate() {
            let disk = whole.disk.fork();
            disk.restore_file(&file.name, copy);
            let context = format!("{} copy {position} of {} bytes", file.name, copy.len());
            open_damaged(&disk, whole, &file.name, hint, &mut count, &context);
        }
        let disk = whole.disk.fork();
        disk.remove(&file.name).expect("power");
        let context = format!("{} is missing", file.name);
        open_damaged(&disk, whole, &file.name, hint, &mut count, &context);
    }
    count
}

#[test]
fn d02_no_damaged_file_is_a_silent_loss() {
    let whole = whole_log(true);
    let count = damage_every_file(&whole, last_sequence(&whole));
    assert!(count.harmless > 10 && count.refused > 40, "{count:?}");
    assert_eq!(count.shorter, 0);
}

/// An older copy of the last segment from after the last opening is a whole log: nothing on this
/// disk tells it from the newest one. Any other is refused.
#[test]
fn d02_after_a_power_cut_an_older_file_costs_nothing_before_the_hint() {
    let (whole, hint) = after_a_power_cut(whole_log(true));
    let count = damage_every_file(&whole, hint);
    assert!((1..8).contains(&count.shorter), "{count:?}");
}
