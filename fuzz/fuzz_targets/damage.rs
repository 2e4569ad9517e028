//! Any damage to a valid log.
//!
//! The changes cannot spell a checksum: libFuzzer sees what a checksum is compared with, and would.

#![no_main]

use std::sync::LazyLock;

use libfuzzer_sys::fuzz_target;
use ostraca_fuzz::input::Input;
use ostraca_fuzz::sample::{IDENTITY, OPTIONS, OWNER, Sample, Stored, raise, replay};
use ostraca_io::{Disk, DiskFile, FileName, PAGE_WORDS, SimDisk};
use ostraca_wal::{Claim, Error, KIND_NO_OP, Recovery, Start, plan_cut, read_epoch_page};

const STEPS_MAX: usize = 12;

static SAMPLE: LazyLock<Sample> = LazyLock::new(|| Sample::large().expect("a disk without faults"));

fuzz_target!(|data: &[u8]| {
    let mut input = Input::new(data);
    let disk = SAMPLE.disk.fork();
    let mut page_intact = true;
    for _ in 0..STEPS_MAX {
        if input.is_empty() {
            break;
        }
        page_intact &= !damage(&disk, &mut input);
    }
    let first = look(&disk, Start::Beginning);
    if let Ok(records) = &first {
        assert!(SAMPLE.records.starts_with(records), "a prefix");
    }
    if let Ok(records) = look(&disk, Start::Oldest) {
        let from = records.first().map_or(0, |record| record.sequence.0 - 1);
        let from = usize::try_from(from).expect("a short log");
        assert!(
            SAMPLE.records[from..].starts_with(&records),
            "no other record"
        );
    }
    let Ok(claim) = raise(&disk) else { return };
    let recovery = claim.recover(&disk, Start::Beginning);
    match recovery.and_then(|recovery| replay(&disk, recovery)) {
        Ok((_, records)) => {
            assert_eq!(records, first.expect("it leads, so it was seen"));
            let whole = records == SAMPLE.records;
            assert!(!page_intact || whole, "all that was durable");
        }
        Err(_) => cut(disk, claim),
    }
});

fn look(disk: &SimDisk, start: Start) -> Result<Vec<Stored>, Error> {
    let recovery = Recovery::read_from(disk, IDENTITY, start)?;
    replay(disk, recovery).map(|(_, records)| records)
}

/// What a cut keeps is a prefix, and can be read.
fn cut(disk: SimDisk, claim: Claim) {
    let durable = read_epoch_page(disk.page(), &IDENTITY)
        .expect("it was raised")
        .durable;
    let Ok(Some(plan)) = plan_cut(&disk, IDENTITY, durable) else {
        return;
    };
    let keeps = usize::try_from(plan.keeps.0).expect("a short log");
    plan.carry_out(disk.clone(), claim, OWNER, OPTIONS)
        .expect("a disk without faults");
    let records = look(&disk, Start::Beginning).expect("what was cut can be read");
    let (no_op, kept) = records.split_last().expect("a no-op");
    assert_eq!(kept, &SAMPLE.records[..keeps]);
    assert_eq!(no_op.rest.1, KIND_NO_OP);
}

/// Does one change; whether it was one of the page.
fn damage(disk: &SimDisk, input: &mut Input<'_>) -> bool {
    let kind = input.u8() % 8;
    let name = &SAMPLE.files[usize::from(input.u8()) % SAMPLE.files.len()];
    match kind {
        0 | 1 => {
            let (offset, bit) = (input.u32(), input.u8());
            let flip = |bytes: &mut [u8]| bytes[0] ^= 1 << (bit % 8);
            change(disk, name, offset, 1, flip);
        }
        2 => {
            let (offset, size, byte) = (input.u32(), input.u16(), input.u8());
            change(disk, name, offset, size.into(), |bytes| bytes.fill(byte));
        }
        3 => {
            let (from, to) = (input.u16(), input.u16());
            let source = &SAMPLE.files[usize::from(input.u8()) % SAMPLE.files.len()];
            let mut sector = [0; 512];
            let offset = |sector: u16| u32::from(sector) * 512;
            change(disk, source, offset(from), 512, |bytes| {
                sector[..bytes.len()].copy_from_slice(bytes);
            });
            change(disk, name, offset(to), 512, |bytes| {
                let size = bytes.len();
                bytes.copy_from_slice(&sector[..size]);
            });
        }
        4 => {
            if let Ok(file) = disk.open(name) {
                let size = file.size().expect("power");
                let size = u64::from(input.u32()) % (size + 4096);
                file.set_size(size).expect("no capacity is set");
            }
        }
        5 => {
            let (sector, which) = (usize::from(input.u16()), usize::from(input.u8()));
            if let Ok(file) = disk.open(name) {
                let older = disk.older_sectors(name, sector);
                let end = ((sector + 1) * 512) as u64;
                if !older.is_empty() && end <= file.size().expect("power") {
                    disk.restore_sector(name, sector, &older[which % older.len()]);
                }
            }
        }
        6 => {
            let (how, other) = (input.u8(), usize::from(input.u8()) % SAMPLE.files.len());
            if how % 2 == 0 {
                drop(disk.remove(name));
            } else if let Some(copy) = disk.contents(&SAMPLE.files[other])
                && disk.open(name).is_ok()
            {
                disk.restore_file(name, &copy);
            }
        }
        _ => {
            let (word, value) = (usize::from(input.u16()) % PAGE_WORDS, input.u64());
            disk.damage_page(word, value);
            return true;
        }
    }
    false
}

/// Changes what of a range is in the file.
fn change(
    disk: &SimDisk,
    name: &FileName,
    offset: u32,
    size: usize,
    change: impl FnOnce(&mut [u8]),
) {
    let Ok(file) = disk.open(name) else { return };
    let total = file.size().expect("power").max(1);
    let offset = u64::from(offset) % total;
    let size = size.min(usize::try_from(total - offset).expect("a small file"));
    let mut bytes = vec![0; size];
    if size > 0 && file.read_exact_at(&mut bytes, offset).is_ok() {
        change(&mut bytes);
        disk.overwrite(name, offset, &bytes);
    }
}
