//! What happens to page words, and which process sees them.

use super::*;
use crate::{PAGE_WORDS, Page};

/// What forks of a disk load after a power cut with this fate, over many chances.
fn outcomes(disk: &SimDisk, fate: Unsynced, word: usize) -> BTreeSet<u64> {
    let outcome = |_| {
        let fork = disk.fork();
        fork.power_cut(fate);
        fork.restarted().page().load(word)
    };
    (0..100).map(outcome).collect()
}

#[test]
fn a_killed_process_loses_no_word() {
    let disk = SimDisk::new(1);
    let page = disk.page();
    page.store(0, 7);
    page.compare_exchange(PAGE_WORDS - 1, 0, 8)
        .expect("it is zero");
    let after = disk.crash().page();
    assert_eq!((after.load(0), after.load(PAGE_WORDS - 1)), (7, 8));
}

#[test]
fn a_power_cut_leaves_any_value_since_the_flush() {
    let disk = SimDisk::new(1);
    let page = disk.page();
    page.store(5, 1);
    page.store(5, 2);
    page.flush().expect("power");
    for value in [3, 4, 5] {
        page.store(5, value);
    }
    assert_eq!(outcomes(&disk, Unsynced::Lost, 5), [2].into());
    assert_eq!(outcomes(&disk, Unsynced::Kept, 5), [5].into());
    for fate in [Unsynced::Torn, Unsynced::Random] {
        assert_eq!(outcomes(&disk, fate, 5), [2, 3, 4, 5].into(), "{fate:?}");
    }
    page.flush().expect("power");
    for fate in Unsynced::ALL {
        assert_eq!(outcomes(&disk, fate, 5), [5].into(), "{fate:?}");
    }
}

#[test]
fn words_meet_their_fates_one_by_one() {
    let disk = SimDisk::new(1);
    let page = disk.page();
    page.store(0, 1);
    page.store(1, 1);
    let outcome = |_| {
        let after = disk.fork().restarted().page();
        (after.load(0), after.load(1))
    };
    let seen: BTreeSet<_> = (0..100).map(outcome).collect();
    assert_eq!(seen, [(0, 0), (0, 1), (1, 0), (1, 1)].into());
}

#[test]
fn no_later_flush_repairs_a_failed_one() {
    let disk = SimDisk::new(1);
    let page = disk.page();
    page.store(0, 1);
    page.flush().expect("power");
    page.store(0, 2);
    disk.fail_next_sync();
    page.flush().expect_err("asked for");
    page.flush().expect("only the next one fails");
    assert_eq!(page.load(0), 2, "processes see it");
    assert_eq!(outcomes(&disk, Unsynced::Kept, 0), [1].into());
    // What is stored again is written again.
    page.store(0, 3);
    page.flush().expect("power");
    assert_eq!(outcomes(&disk, Unsynced::Lost, 0), [3].into());
}

#[test]
fn processes_beside_one_another_share_disk_and_page() {
    let ours = SimDisk::new(1);
    let theirs = ours.beside();
    ours.page().store(3, 9);
    assert_eq!(theirs.page().load(3), 9);
    assert_eq!(theirs.page().compare_exchange(3, 8, 1), Err(9));
    let file = ours.create(&name("a")).expect("a new name");
    file.write_all_at(b"ours", 0).expect("room");
    assert_eq!(theirs.contents(&name("a")).expect("the file"), b"ours");
    assert_eq!(theirs.operations(), 2, "both count as one");

    // Each can be killed alone.
    let after = theirs.crash();
    theirs.list().expect_err("it was killed");
    file.size().expect("this one lives");
    after.list().expect("it was started again");
    // The power goes for all.
    let after = ours.restarted();
    file.size().expect_err("no process survived");
    theirs.list().expect_err("no process survived");
    after.list().expect("it was started after");
}

#[test]
fn a_dead_process_loads_zeros_and_stores_nothing() {
    let disk = SimDisk::new(1);
    let page = disk.page();
    page.store(0, 7);
    let after = disk.crash();
    assert_eq!(page.load(0), 0);
    page.store(0, 8);
    for current in [0, 7] {
        page.compare_exchange(0, current, 8)
            .expect_err("it was killed");
    }
    page.flush().expect_err("it was killed");
    assert_eq!(after.page().load(0), 7);

    let page = after.page();
    after.power_cut(Unsynced::Kept);
    assert_eq!(page.load(0), 0);
    page.store(0, 8);
    page.flush().expect_err("no power");
    assert_eq!(after.restarted().page().load(0), 7);
}

#[test]
fn a_cut_during_an_exchange_leaves_it_undecided() {
    for (fate, left) in [(Unsynced::Lost, 0), (Unsynced::Kept, 5)] {
        let disk = SimDisk::new(1);
        let page = disk.page();
        disk.power_cut_at(disk.operations(), fate);
        page.compare_exchange(0, 0, 5).expect("it was zero");
        assert!(disk.is_off());
        page.flush().expect_err("no power");
        assert_eq!(disk.restarted().page().load(0), left);
    }
}

#[test]
fn a_cut_during_a_flush_made_nothing_durable() {
    let disk = SimDisk::new(1);
    let page = disk.page();
    page.store(0, 5);
    disk.power_cut_at(disk.operations(), Unsynced::Lost);
    page.flush().expect_err("the cut");
    assert_eq!(disk.restarted().page().load(0), 0);
}

#[test]
fn a_damaged_word_is_on_the_disk_and_in_memory() {
    let disk = SimDisk::new(1);
    let page = disk.page();
    page.store(0, 5);
    disk.damage_page(0, 6);
    assert_eq!(page.load(0), 6);
    for fate in Unsynced::ALL {
        assert_eq!(outcomes(&disk, fate, 0), [6].into(), "{fate:?}");
    }
}

#[test]
fn forks_have_pages_of_their_own() {
    let disk = SimDisk::new(1);
    disk.page().store(0, 5);
    let fork = disk.fork();
    fork.page().store(0, 6);
    fork.page().flush().expect("power");
    assert_eq!((disk.page().load(0), fork.page().load(0)), (5, 6));
}
