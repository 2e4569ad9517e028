//! Misplaced and lost writes, evicted caches and older copies.

use super::*;

const SECTOR: u64 = SECTOR_SIZE as u64;

fn write(disk: &SimDisk, text: &str, fill: u8, sector: u64) -> SimFile {
    let file = disk.open(&name(text)).expect("the file");
    file.write_all_at(&[fill; SECTOR_SIZE], sector * SECTOR)
        .expect("a device that reports success");
    file
}

/// Like [`disk_with_ones`], and a durable file `b` of two sectors of fives.
fn two_files(seed: u64) -> SimDisk {
    let disk = disk_with_ones(seed);
    let file = disk.create(&name("b")).expect("a new name");
    file.write_all_at(&[5; 2 * SECTOR_SIZE], 0).expect("room");
    file.sync_all().expect("power");
    disk.sync_dir().expect("power");
    disk
}

fn fills(disk: &SimDisk, text: &str) -> Vec<u8> {
    let bytes = disk.contents(&name(text)).expect("the file");
    bytes.chunks(SECTOR_SIZE).map(|sector| sector[0]).collect()
}

#[test]
fn a_misplaced_write_is_elsewhere_once_it_was_synced() {
    let disk = disk_with_ones(3);
    disk.misplace_next_write().shifted(2 * 512);
    assert!(disk.awaits_misplaced_write());
    let file = write(&disk, "a", 2, 1);
    assert!(!disk.awaits_misplaced_write());
    assert_eq!(fills(&disk, "a"), [1, 2, 1, 1], "the cache is right");
    file.sync_data().expect("a device that reports success");
    assert_eq!(fills(&disk, "a"), [1, 1, 1, 2]);
    // One write only.
    write(&disk, "a", 3, 0).sync_data().expect("power");
    disk.power_cut(Unsynced::Lost);
    assert_eq!(fills(&disk.restarted(), "a"), [3, 1, 1, 2]);
}

#[test]
fn a_misplaced_write_may_hide_behind_the_cache() {
    let disk = disk_with_ones(3);
    disk.misplace_next_write().behind_cache().shifted(-512);
    let file = write(&disk, "a", 2, 1);
    file.sync_data().expect("a device that reports success");
    assert_eq!(fills(&disk, "a"), [1, 2, 1, 1]);
    let evicted = disk.fork();
    evicted.evict_cache();
    for after in [evicted, disk.crash().restarted()] {
        assert_eq!(fills(&after, "a"), [2, 1, 1, 1]);
    }
}

#[test]
fn a_misplaced_write_may_hit_another_file() {
    for hidden in [false, true] {
        let disk = two_files(3);
        let fault = disk.misplace_next_write();
        let fault = if hidden { fault.behind_cache() } else { fault };
        fault.into_file(&name("b"), SECTOR);
        write(&disk, "a", 2, 0).sync_data().expect("power");
        let (a, b) = if hidden {
            (vec![2, 1, 1, 1], vec![5, 5])
        } else {
            (vec![1; 4], vec![5, 2])
        };
        assert_eq!((fills(&disk, "a"), fills(&disk, "b")), (a, b));
        let disk = disk.restarted();
        assert_eq!(
            (fills(&disk, "a"), fills(&disk, "b")),
            (vec![1; 4], vec![5, 2])
        );
    }
}

#[test]
fn a_lost_write_never_reaches_the_disk() {
    let disk = disk_with_ones(3);
    let fork = disk.fork();
    disk.misplace_next_write().lost();
    write(&disk, "a", 2, 1).sync_all().expect("power");
    assert_eq!(fills(&disk, "a"), [1; 4]);

    fork.misplace_next_write().behind_cache().lost();
    write(&fork, "a", 2, 1).sync_all().expect("power");
    assert_eq!(fills(&fork, "a"), [1, 2, 1, 1]);
    fork.power_cut(Unsynced::Kept);
    assert_eq!(fills(&fork.restarted(), "a"), [1; 4]);
}

#[test]
fn a_misplaced_write_outside_of_the_file_is_lost() {
    for shift in [i64::MIN, -1024, 4 * 512, i64::MAX] {
        let disk = disk_with_ones(3);
        disk.misplace_next_write().shifted(shift);
        write(&disk, "a", 2, 1).sync_all().expect("power");
        assert_eq!(fills(&disk, "a"), [1; 4], "{shift}");
    }
    let disk = disk_with_ones(3);
    disk.misplace_next_write().into_file(&name("none"), 0);
    write(&disk, "a", 2, 1).sync_all().expect("power");
    assert_eq!(fills(&disk, "a"), [1; 4]);
    // In part: half a sector on either end.
    for (shift, sector, end) in [(-256, 0, 0..256), (256, 3, 1792..2048)] {
        let disk = disk_with_ones(3);
        disk.misplace_next_write().shifted(shift);
        write(&disk, "a", 2, sector).sync_all().expect("power");
        let bytes = disk.contents(&name("a")).expect("the file");
        for (place, byte) in bytes.iter().enumerate() {
            assert_eq!(*byte == 2, end.contains(&place), "{place}");
        }
    }
}

#[test]
fn a_misplaced_write_that_grows_a_file_leaves_zeros() {
    let disk = disk_with_ones(3);
    disk.misplace_next_write().shifted(-512);
    write(&disk, "a", 2, 4).sync_all().expect("power");
    for disk in [disk.crash(), disk.restarted()] {
        assert_eq!(fills(&disk, "a"), [1, 1, 1, 2, 0]);
    }
}

#[test]
fn a_misplaced_write_meets_the_fates_of_every_write() {
    let disk = disk_with_ones(3);
    disk.misplace_write_from(disk.operations() + 1).shifted(512);
    write(&disk, "a", 2, 0);
    write(&disk, "a", 3, 2);
    let mut seen = BTreeSet::new();
    for _ in 0..50 {
        seen.insert(fills(&disk.fork().restarted(), "a"));
    }
    let expected = [[1, 1, 1, 1], [2, 1, 1, 1], [1, 1, 1, 3], [2, 1, 1, 3]];
    assert_eq!(seen, expected.map(Vec::from).into());
    disk.power_cut(Unsynced::Lost);
    assert_eq!(fills(&disk.restarted(), "a"), [1; 4]);
}

#[test]
fn a_restart_ends_the_wait_for_a_misplaced_write() {
    let disk = disk_with_ones(3);
    disk.misplace_next_write().lost();
    let disk = disk.restarted();
    assert!(!disk.awaits_misplaced_write());
}

#[test]
fn an_evicted_cache_shows_what_a_failed_sync_lost() {
    let disk = disk_with_ones(3);
    let file = write(&disk, "a", 2, 1);
    disk.fail_next_sync();
    file.sync_data().expect_err("asked for");
    write(&disk, "a", 3, 2);
    assert_eq!(fills(&disk, "a"), [1, 2, 3, 1]);
    disk.evict_cache();
    assert_eq!(fills(&disk, "a"), [1, 1, 3, 1], "what is unsynced stays");
}

#[test]
fn damage_reaches_bytes_on_their_way_to_the_disk() {
    for fate in [Unsynced::Lost, Unsynced::Kept] {
        let disk = disk_with_ones(3);
        write(&disk, "a", 2, 1);
        disk.overwrite(&name("a"), 500, &[9; 24]);
        disk.flip_bit(&name("a"), 600, 7);
        disk.power_cut(fate);
        let bytes = disk.restarted().contents(&name("a")).expect("the file");
        let fill = if fate == Unsynced::Kept { 2 } else { 1 };
        assert_eq!(bytes[498..502], [1, 1, 9, 9]);
        assert_eq!(bytes[522..526], [9, 9, fill, fill]);
        assert_eq!(bytes[600], fill | 0x80);
    }
}

#[test]
#[should_panic(expected = "no such bytes")]
fn damage_beyond_the_end_is_a_mistake() {
    disk_with_ones(3).flip_bit(&name("a"), 4 * SECTOR, 0);
}

#[test]
fn older_copies_are_what_was_on_the_disk() {
    let disk = disk_with_ones(3);
    disk.keep_versions();
    for fill in [2, 3, 4] {
        let file = write(&disk, "a", fill, 1);
        if fill != 3 {
            file.sync_all().expect("power");
        }
    }
    let older = disk.older_sectors(&name("a"), 1);
    assert_eq!(older, [[1; SECTOR_SIZE], [2; SECTOR_SIZE]]);
    assert!(disk.older_sectors(&name("a"), 0).is_empty());
    assert!(disk.older_sectors(&name("a"), 4).is_empty());
    assert_eq!(disk.older_copies(&name("a")).len(), 2);

    // They follow a file to its other name, into forks, and through a restart.
    disk.rename_exclusive(&name("a"), &name("b"))
        .expect("a free name");
    disk.sync_dir().expect("power");
    let fork = disk.fork().restarted();
    fork.restore_sector(&name("b"), 1, &older[1]);
    assert_eq!(fills(&fork, "b"), [1, 2, 1, 1]);
    for (copy, fill) in fork.older_copies(&name("b")).iter().zip([1, 4]) {
        fork.restore_file(&name("b"), copy);
        assert_eq!(fills(&fork, "b"), [1, fill, 1, 1]);
        assert_eq!(fills(&fork.fork().restarted(), "b"), [1, fill, 1, 1]);
    }
    assert_eq!(fills(&disk, "b"), [1, 4, 1, 1]);
}

#[test]
fn a_new_file_has_versions_too() {
    let disk = SimDisk::new(3);
    disk.keep_versions();
    let file = disk.create(&name("a")).expect("a new name");
    file.write_all_at(b"first", 0).expect("room");
    file.sync_all().expect("power");
    file.write_all_at(b"second", 0).expect("room");
    file.sync_all().expect("power");
    assert_eq!(
        disk.older_copies(&name("a")),
        [b"".to_vec(), b"first".to_vec()]
    );
    assert_eq!(disk.older_sectors(&name("a"), 0), [b"first"]);
}

#[test]
fn an_older_copy_may_have_another_size() {
    let disk = disk_with_ones(3);
    let copy = disk.contents(&name("a")).expect("the file");
    let file = write(&disk, "a", 2, 5);
    file.sync_all().expect("power");
    write(&disk, "a", 3, 6);
    disk.restore_file(&name("a"), &copy);
    assert_eq!(file.size().expect("power"), 4 * SECTOR);
    disk.power_cut(Unsynced::Kept);
    assert_eq!(fills(&disk.restarted(), "a"), [1; 4]);
}

#[test]
fn only_the_bytes_of_the_call_are_misplaced() {
    let disk = disk_with_ones(3);
    write(&disk, "a", 2, 0).sync_all().expect("power");
    disk.misplace_next_write().shifted(700);
    let file = disk.open(&name("a")).expect("the file");
    file.write_all_at(&[3; 10], 100).expect("power");
    file.sync_all().expect("power");
    let mut expected = [[2; SECTOR_SIZE], [1; SECTOR_SIZE]].concat();
    expected[800..810].fill(3);
    let bytes = disk.contents(&name("a")).expect("the file");
    assert!(bytes[..2 * SECTOR_SIZE] == expected);
}
