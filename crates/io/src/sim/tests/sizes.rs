//! What a power cut leaves of sizes, of truncations, and of several writes to one sector.

use super::*;

const SECTOR: u64 = SECTOR_SIZE as u64;

fn open_a(disk: &SimDisk) -> SimFile {
    disk.open(&name("a")).expect("the file")
}

/// What forks of a disk are after a power cut with this fate, over many chances.
fn outcomes(disk: &SimDisk, fate: Unsynced) -> BTreeSet<Vec<Option<u8>>> {
    let outcome = |_| {
        let fork = disk.fork();
        fork.power_cut(fate);
        sectors(&fork.restarted())
    };
    (0..200).map(outcome).collect()
}

#[test]
fn a_sector_is_any_that_it_was_since_its_sync() {
    let disk = disk_with_ones(3);
    let file = open_a(&disk);
    for fill in [2, 3] {
        file.write_all_at(&[fill; 2 * SECTOR_SIZE], 0)
            .expect("power");
    }
    let random = outcomes(&disk, Unsynced::Random);
    // Three contents of each of two sectors, and the others stay.
    assert_eq!(random.len(), 9, "{random:?}");
    assert!(
        random
            .iter()
            .all(|sectors| sectors[2..] == [Some(1), Some(1)])
    );
    for sectors in outcomes(&disk, Unsynced::Torn) {
        assert!(sectors[0] != Some(1), "only the last write tears");
    }
}

#[test]
fn a_size_is_any_that_it_was_since_its_sync() {
    for fate in [Unsynced::Torn, Unsynced::Random] {
        let disk = disk_with_ones(3);
        let file = open_a(&disk);
        file.set_size(6 * SECTOR).expect("room");
        file.set_size(SECTOR).expect("power");
        file.set_size(3 * SECTOR).expect("room");
        let sizes: BTreeSet<usize> = outcomes(&disk, fate).iter().map(Vec::len).collect();
        assert_eq!(sizes.into_iter().collect::<Vec<_>>(), [1, 3, 4, 6]);
    }
}

#[test]
fn a_truncation_is_durable_only_after_sync_all() {
    let disk = disk_with_ones(3);
    let file = open_a(&disk);
    file.set_size(SECTOR).expect("power");
    assert_eq!(sectors(&disk), [Some(1)]);
    file.sync_data().expect("power");
    let old = vec![Some(1); 4];
    let new = vec![Some(1)];
    assert_eq!(outcomes(&disk, Unsynced::Lost), [old.clone()].into());
    assert_eq!(outcomes(&disk, Unsynced::Kept), [new.clone()].into());
    assert_eq!(outcomes(&disk, Unsynced::Random), [old, new.clone()].into());
    file.sync_all().expect("power");
    for fate in Unsynced::ALL {
        assert_eq!(outcomes(&disk, fate), [new.clone()].into(), "{fate:?}");
    }
}

#[test]
fn what_was_cut_off_never_comes_back() {
    let disk = disk_with_ones(3);
    let file = open_a(&disk);
    file.set_size(SECTOR + 100).expect("power");
    file.set_size(4 * SECTOR).expect("room");
    let expected = [Some(1), None, Some(0), Some(0)];
    assert_eq!(sectors(&disk), expected);
    file.sync_data().expect("power");
    file.sync_all().expect("power");
    for disk in [disk.crash(), disk.restarted()] {
        assert_eq!(sectors(&disk), expected);
        let bytes = disk.contents(&name("a")).expect("the file");
        assert!(bytes[SECTOR_SIZE + 100..].iter().all(|byte| *byte == 0));
    }
}

#[test]
fn bytes_synced_after_a_truncation_survive_without_it() {
    let disk = disk_with_ones(3);
    let file = open_a(&disk);
    file.set_size(0).expect("power");
    file.write_all_at(&[2; SECTOR_SIZE], 0).expect("room");
    file.sync_data().expect("power");
    // A later write that is not synced must not push the synced one out.
    file.write_all_at(&[3; SECTOR_SIZE], SECTOR).expect("room");
    for sectors in outcomes(&disk, Unsynced::Random) {
        assert!(sectors.is_empty() || sectors[0] == Some(2), "{sectors:?}");
    }
    assert_eq!(
        outcomes(&disk, Unsynced::Lost),
        [vec![Some(2), Some(1), Some(1), Some(1)]].into()
    );
    file.sync_all().expect("power");
    assert_eq!(
        outcomes(&disk, Unsynced::Lost),
        [vec![Some(2), Some(3)]].into()
    );
}

#[test]
fn a_change_of_a_size_may_meet_the_cut() {
    let disk = disk_with_ones(3);
    let file = open_a(&disk);
    disk.power_cut_at(disk.operations(), Unsynced::Kept);
    file.set_size(SECTOR).expect_err("the cut");
    assert_eq!(sectors(&disk.restarted()), [Some(1)]);
}

#[test]
fn a_smaller_size_gives_room_back() {
    let disk = disk_with_ones(3);
    let file = open_a(&disk);
    disk.set_capacity(4 * SECTOR);
    let error = file.set_size(5 * SECTOR).expect_err("over the capacity");
    assert_eq!(error.kind(), ErrorKind::StorageFull);
    file.set_size(SECTOR).expect("power");
    let other = disk.create(&name("b")).expect("a new name");
    other.set_size(3 * SECTOR).expect("room");
    let error = file.set_size(2 * SECTOR).expect_err("over the capacity");
    assert_eq!(error.kind(), ErrorKind::StorageFull);
}

#[test]
fn a_size_survives_a_failed_sync_without_its_bytes() {
    let disk = disk_with_ones(3);
    let file = open_a(&disk);
    file.write_all_at(&[2; 2 * SECTOR_SIZE], 3 * SECTOR)
        .expect("room");
    disk.fail_next_sync();
    file.sync_all().expect_err("asked for");
    file.sync_all().expect("only the next one fails");
    assert_eq!(sectors(&disk)[3..], [Some(2), Some(2)]);
    assert_eq!(sectors(&disk.restarted())[3..], [Some(1), Some(0)]);
}

/// Forks share the bytes of their files; none may see what another does.
#[test]
fn forks_are_independent() {
    let disk = disk_with_ones(3);
    let forks: Vec<SimDisk> = (2..10).map(|_| disk.fork()).collect();
    for (fork, fill) in forks.iter().zip(2..) {
        let file = open_a(fork);
        file.write_all_at(&[fill; SECTOR_SIZE], SECTOR)
            .expect("power");
        file.sync_data().expect("power");
        file.set_size(2 * SECTOR + u64::from(fill)).expect("power");
        fork.overwrite(&name("a"), 0, &[fill; SECTOR_SIZE]);
    }
    for (fork, fill) in forks.iter().zip(2..) {
        let expected = [Some(fill), Some(fill), Some(1)];
        assert_eq!(sectors(fork), expected);
    }
    assert_eq!(sectors(&disk), [Some(1); 4]);
}

/// Goal: shared chunks and journals change nothing that readers see.
/// Method: random calls, beside the same calls on a plain vector.
#[test]
fn a_file_is_what_a_vector_would_be() {
    for seed in 0..40 {
        let chance = SeededEntropy::new(seed);
        let disk = SimDisk::new(seed);
        let file = disk.create(&name("a")).expect("a new name");
        let mut model: Vec<u8> = Vec::new();
        for step in 0..100 {
            let at = below(&chance, 20_000);
            match below(&chance, 6) {
                0 => {
                    file.set_size(at as u64).expect("room");
                    model.resize(at, 0);
                }
                1 => file.sync_data().expect("power"),
                2 => file.sync_all().expect("power"),
                3 => disk.evict_cache(),
                _ => {
                    let fill = u8::try_from(below(&chance, 4)).expect("small");
                    let bytes = vec![fill; 1 + below(&chance, 10_000)];
                    file.write_all_at(&bytes, at as u64).expect("room");
                    model.resize(model.len().max(at + bytes.len()), 0);
                    model[at..at + bytes.len()].copy_from_slice(&bytes);
                }
            }
            let seen = disk.contents(&name("a")).expect("the file");
            assert!(seen == model, "seed={seed} step={step}");
        }
        disk.sync_dir().expect("power");
        let kept = disk.fork();
        kept.power_cut(Unsynced::Kept);
        assert!(
            kept.restarted().contents(&name("a")) == Some(model.clone()),
            "seed={seed}"
        );
        file.sync_all().expect("power");
        disk.power_cut(Unsynced::Random);
        assert!(
            disk.restarted().contents(&name("a")) == Some(model),
            "seed={seed}"
        );
    }
}
