//! What the simulated disk does at a crash, beyond the promises that it shares with the real one.

use std::collections::BTreeSet;
use std::io::ErrorKind;

use super::*;
use crate::{Disk, DiskFile, FileName};

mod faults;
mod page;
mod sizes;

fn name(text: &str) -> FileName {
    FileName::new(text).expect("a file name")
}

/// A disk with a durable file `a` of four sectors of ones.
fn disk_with_ones(seed: u64) -> SimDisk {
    let disk = SimDisk::new(seed);
    let file = disk.create(&name("a")).expect("a new name");
    file.write_all_at(&[1; 4 * SECTOR_SIZE], 0).expect("room");
    file.sync_all().expect("power");
    disk.sync_dir().expect("power");
    disk
}

/// The fill byte of each sector, or `None` for a sector that is not of one byte.
fn sectors(disk: &SimDisk) -> Vec<Option<u8>> {
    let bytes = disk.contents(&name("a")).expect("the file");
    bytes
        .chunks(SECTOR_SIZE)
        .map(|sector| {
            sector
                .iter()
                .all(|byte| *byte == sector[0])
                .then_some(sector[0])
        })
        .collect()
}

fn overwrite_with_twos(disk: &SimDisk) -> SimFile {
    let file = disk.open(&name("a")).expect("the file");
    file.write_all_at(&[2; 4 * SECTOR_SIZE], 0).expect("power");
    file
}

#[test]
fn unsynced_sectors_meet_their_fate() {
    let mut mixed = false;
    for seed in 0..20 {
        for fate in Unsynced::ALL {
            let disk = disk_with_ones(seed);
            overwrite_with_twos(&disk);
            disk.power_cut(fate);
            let after = sectors(&disk.restarted());
            match fate {
                Unsynced::Lost => assert_eq!(after, [Some(1); 4], "seed={seed}"),
                Unsynced::Kept => assert_eq!(after, [Some(2); 4], "seed={seed}"),
                Unsynced::Torn => {
                    let torn = after.iter().filter(|sector| sector.is_none()).count();
                    assert!(torn <= 1, "seed={seed} {after:?}");
                    let new = after
                        .iter()
                        .take_while(|sector| **sector == Some(2))
                        .count();
                    assert!(
                        after[new..].iter().all(|sector| *sector != Some(2)),
                        "seed={seed}"
                    );
                }
                Unsynced::Random => {
                    assert!(after.iter().all(Option::is_some), "seed={seed} {after:?}");
                    mixed |= after.contains(&Some(1)) && after.contains(&Some(2));
                }
            }
        }
    }
    assert!(mixed, "no seed mixed old and new sectors");
}

#[test]
fn synced_bytes_survive_every_fate() {
    for fate in Unsynced::ALL {
        let disk = disk_with_ones(3);
        overwrite_with_twos(&disk).sync_data().expect("power");
        disk.power_cut(fate);
        assert_eq!(sectors(&disk.restarted()), [Some(2); 4], "{fate:?}");
    }
}

#[test]
fn a_size_is_durable_only_after_sync_all() {
    let disk = disk_with_ones(3);
    let file = disk.open(&name("a")).expect("the file");
    file.write_all_at(&[2; SECTOR_SIZE], 4 * SECTOR_SIZE as u64)
        .expect("room");
    file.sync_data().expect("power");
    let short = disk.fork();
    short.power_cut(Unsynced::Lost);
    assert_eq!(sectors(&short.restarted()).len(), 4);
    file.sync_all().expect("power");
    disk.power_cut(Unsynced::Lost);
    assert_eq!(
        sectors(&disk.restarted()),
        [Some(1), Some(1), Some(1), Some(1), Some(2)]
    );
}

#[test]
fn names_are_durable_only_after_a_sync_of_the_directory() {
    for (fate, expected) in [(Unsynced::Lost, vec!["a"]), (Unsynced::Kept, vec!["b"])] {
        let disk = disk_with_ones(3);
        disk.rename_exclusive(&name("a"), &name("b"))
            .expect("a free name");
        disk.create(&name("c")).expect("a free name");
        disk.remove(&name("c")).expect("the file");
        disk.power_cut(fate);
        let names = disk.restarted().list().expect("the names");
        assert_eq!(
            names,
            expected.into_iter().map(name).collect::<Vec<_>>(),
            "{fate:?}"
        );
    }
}

#[test]
fn random_entries_are_lost_one_by_one() {
    let mut seen = BTreeSet::new();
    for seed in 0..64 {
        let disk = SimDisk::new(seed);
        for text in ["a", "b"] {
            disk.create(&name(text)).expect("a new name");
        }
        disk.power_cut(Unsynced::Random);
        seen.insert(disk.restarted().list().expect("the names").len());
    }
    assert_eq!(seen.into_iter().collect::<Vec<_>>(), [0, 1, 2]);
}

#[test]
fn a_cut_stops_everything_until_the_restart() {
    let disk = disk_with_ones(3);
    let file = disk.open(&name("a")).expect("the file");
    let before = disk.operations();
    disk.power_cut_at(before + 1, Unsynced::Kept);
    file.write_all_at(&[2; SECTOR_SIZE], 0)
        .expect("before the cut");
    file.write_all_at(&[3; SECTOR_SIZE], SECTOR_SIZE as u64)
        .expect_err("the cut");
    file.sync_data().expect_err("no power");
    disk.list().expect_err("no power");
    let after = disk.restarted();
    file.size().expect_err("its process is gone");
    disk.list().expect_err("its process is gone");
    assert_eq!(after.operations(), 0);
    assert_eq!(sectors(&after), [Some(2), Some(3), Some(1), Some(1)]);
}

#[test]
fn a_killed_process_loses_its_handles_and_no_bytes() {
    let disk = disk_with_ones(3);
    let file = overwrite_with_twos(&disk);
    let after = disk.crash();
    file.sync_data().expect_err("its process is gone");
    assert_eq!(sectors(&after), [Some(2); 4]);
    after.power_cut(Unsynced::Lost);
    assert_eq!(
        sectors(&after.restarted()),
        [Some(1); 4],
        "they never were synced"
    );
}

#[test]
fn no_later_sync_repairs_a_failed_one() {
    let disk = disk_with_ones(3);
    let file = overwrite_with_twos(&disk);
    disk.fail_next_sync();
    file.sync_data().expect_err("asked for");
    file.sync_data().expect("only the next one fails");
    assert_eq!(
        sectors(&disk),
        [Some(2); 4],
        "the cache shows the new bytes"
    );
    disk.power_cut(Unsynced::Kept);
    assert_eq!(sectors(&disk.restarted()), [Some(1); 4]);
}

#[test]
fn a_full_disk_refuses_growth_only() {
    let disk = disk_with_ones(3);
    disk.set_capacity(5 * SECTOR_SIZE as u64);
    overwrite_with_twos(&disk);
    let file = disk.create(&name("b")).expect("names are free");
    let error = file
        .write_all_at(&[1; 2 * SECTOR_SIZE], 0)
        .expect_err("over the capacity");
    assert_eq!(error.kind(), ErrorKind::StorageFull);
    disk.remove(&name("b")).expect("the file");
    let file = disk.create(&name("c")).expect("names are free");
    file.write_all_at(&[1; SECTOR_SIZE], 0)
        .expect("room for one");
}

#[test]
fn failing_writes_fail_until_healed() {
    let disk = disk_with_ones(3);
    let file = disk.open(&name("a")).expect("the file");
    disk.fail_writes_with(ErrorKind::Interrupted);
    let error = file
        .write_all_at(&[2; SECTOR_SIZE], 0)
        .expect_err("asked for");
    assert_eq!(error.kind(), ErrorKind::Interrupted);
    disk.heal_writes();
    file.write_all_at(&[2; SECTOR_SIZE], 0).expect("healed");
}

#[test]
fn damage_is_on_the_disk_and_in_the_cache() {
    let disk = disk_with_ones(3);
    disk.flip_bit(&name("a"), 0, 1);
    disk.overwrite(&name("a"), 2 * SECTOR_SIZE as u64, &[9; SECTOR_SIZE]);
    for disk in [disk.crash(), disk.restarted()] {
        let bytes = disk.contents(&name("a")).expect("the file");
        assert_eq!(bytes[0], 3);
        assert_eq!(sectors(&disk)[1..], [Some(1), Some(9), Some(1)]);
    }
}
