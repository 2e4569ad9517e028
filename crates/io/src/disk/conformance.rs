//! The promises of [`Disk`], [`DiskFile`] and [`Page`], asked of the real and of the simulated
//! disk.

use std::fs;
use std::io::{self, ErrorKind};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::thread;

use tempfile::TempDir;

use crate::{Disk, DiskFile, FileName, PAGE_SIZE, PAGE_WORDS, Page, RealDisk, RealPage, SimDisk};

fn name(text: &str) -> FileName {
    FileName::new(text).expect("a file name")
}

fn kind<T>(result: io::Result<T>) -> ErrorKind {
    match result {
        Ok(_) => panic!("it should have failed"),
        Err(err) => err.kind(),
    }
}

fn contents(disk: &impl Disk, text: &str) -> Vec<u8> {
    let file = disk.open_read_only(&name(text)).expect("the file");
    let size = usize::try_from(file.size().expect("its size")).expect("a small file");
    let mut bytes = vec![0; size];
    file.read_exact_at(&mut bytes, 0).expect("its bytes");
    bytes
}

fn create(disk: &impl Disk, text: &str, bytes: &[u8]) {
    let file = disk.create(&name(text)).expect("a new name");
    file.write_all_at(bytes, 0).expect("room");
    file.sync_all().expect("a working disk");
}

fn create_is_exclusive(disk: &impl Disk) {
    create(disk, "a", b"first");
    assert_eq!(kind(disk.create(&name("a"))), ErrorKind::AlreadyExists);
    assert_eq!(contents(disk, "a"), b"first");
}

fn a_new_file_is_empty(disk: &impl Disk) {
    let file = disk.create(&name("a")).expect("a new name");
    assert_eq!(file.size().expect("its size"), 0);
}

fn only_not_found_means_not_there(disk: &impl Disk) {
    assert_eq!(kind(disk.open(&name("a"))), ErrorKind::NotFound);
    assert_eq!(kind(disk.open_read_only(&name("a"))), ErrorKind::NotFound);
    assert_eq!(kind(disk.remove(&name("a"))), ErrorKind::NotFound);
    assert_eq!(
        kind(disk.rename_exclusive(&name("a"), &name("b"))),
        ErrorKind::NotFound
    );
    assert!(disk.list().expect("the names").is_empty());
}

fn rename_never_replaces(disk: &impl Disk) {
    create(disk, "a", b"from");
    create(disk, "b", b"to");
    assert_eq!(
        kind(disk.rename_exclusive(&name("a"), &name("b"))),
        ErrorKind::AlreadyExists
    );
    assert_eq!(
        (contents(disk, "a"), contents(disk, "b")),
        (b"from".to_vec(), b"to".to_vec())
    );
    assert_eq!(
        kind(disk.rename_exclusive(&name("none"), &name("b"))),
        ErrorKind::NotFound
    );
    assert_eq!(
        kind(disk.rename_exclusive(&name("a"), &name("a"))),
        ErrorKind::AlreadyExists
    );
    disk.rename_exclusive(&name("a"), &name("c"))
        .expect("a free name");
    assert_eq!(disk.list().expect("the names"), [name("b"), name("c")]);
    assert_eq!(contents(disk, "c"), b"from");
}

fn reading_past_the_end_fails(disk: &impl Disk) {
    create(disk, "a", b"12345");
    let file = disk.open(&name("a")).expect("the file");
    let mut three = [0; 3];
    file.read_exact_at(&mut three, 2).expect("the last three");
    assert_eq!(&three, b"345");
    for offset in [3, 5, 1 << 40] {
        assert_eq!(
            kind(file.read_exact_at(&mut three, offset)),
            ErrorKind::UnexpectedEof
        );
    }
}

fn writes_extend_and_fill_with_zeros(disk: &impl Disk) {
    create(disk, "a", b"1");
    let file = disk.open(&name("a")).expect("the file");
    file.write_all_at(b"22", 4).expect("room");
    file.write_all_at(b"3", 0).expect("room");
    assert_eq!(file.size().expect("its size"), 6);
    assert_eq!(contents(disk, "a"), b"3\0\0\x0022");
    file.sync_data().expect("a working disk");
}

fn a_reader_cannot_write(disk: &impl Disk) {
    create(disk, "a", b"1");
    let file = disk.open_read_only(&name("a")).expect("the file");
    file.write_all_at(b"2", 0).expect_err("opened for reading");
    assert_eq!(contents(disk, "a"), b"1");
}

fn handles_see_each_others_writes(disk: &impl Disk) {
    create(disk, "a", b"old");
    let reader = disk.clone().open_read_only(&name("a")).expect("the file");
    let writer = disk.open(&name("a")).expect("the file");
    writer.write_all_at(b"new", 0).expect("room");
    let mut bytes = [0; 3];
    reader.read_exact_at(&mut bytes, 0).expect("its bytes");
    assert_eq!(&bytes, b"new");
}

fn calls_without_bytes_do_nothing(disk: &impl Disk) {
    create(disk, "a", b"1");
    let file = disk.open(&name("a")).expect("the file");
    file.write_all_at(&[], 100).expect("nothing to write");
    assert_eq!(file.size().expect("its size"), 1);
    for offset in [0, 1, 100] {
        file.read_exact_at(&mut [], offset)
            .expect("nothing to read");
    }
}

fn a_smaller_size_cuts_off(disk: &impl Disk) {
    create(disk, "a", b"123456");
    let file = disk.open(&name("a")).expect("the file");
    file.set_size(2).expect("a working disk");
    file.sync_all().expect("a working disk");
    assert_eq!(contents(disk, "a"), b"12");
    assert_eq!(
        kind(file.read_exact_at(&mut [0; 3], 0)),
        ErrorKind::UnexpectedEof
    );
    file.set_size(0).expect("a working disk");
    assert_eq!(contents(disk, "a"), b"");
}

fn a_larger_size_is_filled_with_zeros(disk: &impl Disk) {
    create(disk, "a", &[7; 6000]);
    let file = disk.open(&name("a")).expect("the file");
    file.set_size(5000).expect("a working disk");
    file.set_size(10_000).expect("room");
    let bytes = contents(disk, "a");
    assert_eq!(bytes.len(), 10_000);
    assert!(bytes[..5000].iter().all(|byte| *byte == 7));
    assert!(
        bytes[5000..].iter().all(|byte| *byte == 0),
        "what was cut off is gone"
    );
    // A gap that a write leaves is no different.
    file.set_size(4999).expect("a working disk");
    file.write_all_at(&[8], 6000).expect("room");
    assert_eq!(contents(disk, "a")[4998..5001], [7, 0, 0]);
    assert_eq!(contents(disk, "a")[5999..], [0, 8]);
}

fn the_same_size_changes_nothing(disk: &impl Disk) {
    create(disk, "a", b"123");
    let file = disk.open(&name("a")).expect("the file");
    file.set_size(3).expect("a working disk");
    assert_eq!(contents(disk, "a"), b"123");
}

fn handles_see_each_others_sizes(disk: &impl Disk) {
    create(disk, "a", b"123");
    let reader = disk.clone().open_read_only(&name("a")).expect("the file");
    let writer = disk.open(&name("a")).expect("the file");
    for size in [1, 5000, 0, 2] {
        writer.set_size(size).expect("room");
        assert_eq!(reader.size().expect("its size"), size);
    }
}

fn a_reader_cannot_set_a_size(disk: &impl Disk) {
    create(disk, "a", b"123");
    let file = disk.open_read_only(&name("a")).expect("the file");
    for size in [0, 3, 10] {
        file.set_size(size).expect_err("opened for reading");
    }
    assert_eq!(contents(disk, "a"), b"123");
    file.sync_data().expect("a reader may sync");
    file.sync_all().expect("a reader may sync");
}

fn an_open_file_outlives_its_name(disk: &impl Disk) {
    create(disk, "a", b"still here");
    let file = disk.open(&name("a")).expect("the file");
    disk.remove(&name("a")).expect("the file");
    assert_eq!(kind(disk.open(&name("a"))), ErrorKind::NotFound);
    let mut bytes = [0; 5];
    file.read_exact_at(&mut bytes, 0).expect("its bytes");
    assert_eq!(&bytes, b"still");
    create(disk, "a", b"another");
    file.write_all_at(b"ended", 0).expect("room");
    file.set_size(6).expect("a working disk");
    file.sync_all().expect("a working disk");
    assert_eq!(file.size().expect("its size"), 6);
    assert_eq!(contents(disk, "a"), b"another");
}

fn an_open_file_follows_a_rename(disk: &impl Disk) {
    create(disk, "a", b"1");
    let file = disk.open(&name("a")).expect("the file");
    disk.rename_exclusive(&name("a"), &name("b"))
        .expect("a free name");
    file.write_all_at(b"2", 1).expect("room");
    file.sync_all().expect("a working disk");
    assert_eq!(contents(disk, "b"), b"12");
}

fn names_come_sorted(disk: &impl Disk) {
    for text in ["b", "a-2", "a-10", "c.log", "_"] {
        create(disk, text, b"");
    }
    let sorted = ["_", "a-10", "a-2", "b", "c.log"].map(name);
    assert_eq!(disk.list().expect("the names"), sorted);
    disk.sync_dir().expect("a working disk");
}

fn a_new_page_is_zeros(page: &dyn Page, _: &dyn Page) {
    assert!((0..PAGE_WORDS).all(|word| page.load(word) == 0));
}

fn each_word_keeps_its_value(page: &dyn Page, other: &dyn Page) {
    for word in 0..PAGE_WORDS {
        page.store(word, !(word as u64));
    }
    for page in [page, other] {
        assert!((0..PAGE_WORDS).all(|word| page.load(word) == !(word as u64)));
    }
}

fn an_exchange_needs_the_current_value(page: &dyn Page, other: &dyn Page) {
    assert_eq!(page.compare_exchange(1, 0, u64::MAX), Ok(0));
    assert_eq!(page.compare_exchange(1, 0, 5), Err(u64::MAX));
    assert_eq!(page.load(1), u64::MAX, "a refused one changes nothing");
    assert_eq!(other.compare_exchange(1, u64::MAX, 6), Ok(u64::MAX));
    assert_eq!(page.compare_exchange(1, 6, 6), Ok(6));
    assert_eq!((page.load(0), page.load(1), page.load(2)), (0, 6, 0));
}

fn handles_see_each_others_stores(page: &dyn Page, other: &dyn Page) {
    page.store(9, 1);
    assert_eq!(other.load(9), 1);
    other.store(9, 2);
    assert_eq!(page.load(9), 2);
    page.flush().expect("a working disk");
    assert_eq!((page.load(9), other.load(9)), (2, 2));
}

fn no_exchange_is_lost_among_threads(page: &dyn Page, other: &dyn Page) {
    const THREADS: u64 = 4;
    const ROUNDS: u64 = 2000;
    thread::scope(|scope| {
        for thread in 0..THREADS {
            let page = if thread % 2 == 0 { page } else { other };
            scope.spawn(move || {
                for _ in 0..ROUNDS {
                    let mut seen = page.load(3);
                    while let Err(now) = page.compare_exchange(3, seen, seen + 1) {
                        seen = now;
                    }
                }
            });
        }
    });
    assert_eq!(
        (page.load(3), other.load(3)),
        (THREADS * ROUNDS, page.load(3))
    );
}

/// One stores to a word and then to another: who sees the second sees the first.
fn stores_are_seen_in_order(page: &dyn Page, other: &dyn Page) {
    const ROUNDS: u64 = 2000;
    thread::scope(|scope| {
        scope.spawn(|| {
            for round in 1..=ROUNDS {
                page.store(100, round);
                page.store(300, round);
            }
        });
        let mut later = 0;
        while later < ROUNDS {
            later = other.load(300);
            assert!(other.load(100) >= later);
        }
    });
}

fn a_page_ends(page: &dyn Page, _: &dyn Page) {
    let beyond = |call: &dyn Fn(usize)| {
        for word in [PAGE_WORDS, usize::MAX] {
            let call = AssertUnwindSafe(|| call(word));
            assert!(catch_unwind(call).is_err());
        }
    };
    beyond(&|word| page.store(word, 1));
    beyond(&|word| assert_eq!(page.load(word), 0));
    beyond(&|word| assert_eq!(page.compare_exchange(word, 0, 1), Ok(0)));
    a_new_page_is_zeros(page, page);
}

/// The file of a real page, all zeros.
fn page_file() -> (TempDir, PathBuf) {
    let dir = tempfile::tempdir().expect("a directory");
    let path = dir.path().join("page");
    fs::write(&path, [0; PAGE_SIZE]).expect("a file");
    (dir, path)
}

fn map(path: &Path) -> Arc<RealPage> {
    Arc::new(RealPage::open(path).expect("the page"))
}

macro_rules! on_both_disks {
    ($($test:ident),* $(,)?) => {
        mod real {
            $(#[test]
            fn $test() {
                let dir = tempfile::tempdir().expect("a directory");
                super::$test(&super::RealDisk::open(dir.path()).expect("the directory"));
            })*
        }
        mod simulated {
            $(#[test]
            fn $test() {
                super::$test(&super::SimDisk::new(1));
            })*
        }
    };
}

on_both_disks! {
    create_is_exclusive,
    a_new_file_is_empty,
    only_not_found_means_not_there,
    rename_never_replaces,
    reading_past_the_end_fails,
    writes_extend_and_fill_with_zeros,
    a_reader_cannot_write,
    handles_see_each_others_writes,
    calls_without_bytes_do_nothing,
    a_smaller_size_cuts_off,
    a_larger_size_is_filled_with_zeros,
    the_same_size_changes_nothing,
    handles_see_each_others_sizes,
    a_reader_cannot_set_a_size,
    an_open_file_outlives_its_name,
    an_open_file_follows_a_rename,
    names_come_sorted,
}

macro_rules! on_both_pages {
    ($($test:ident),* $(,)?) => {
        mod real_page {
            $(#[test]
            fn $test() {
                let (_dir, path) = super::page_file();
                super::$test(&*super::map(&path), &*super::map(&path));
            })*
        }
        mod simulated_page {
            $(#[test]
            fn $test() {
                let disk = super::SimDisk::new(1);
                super::$test(&*disk.page(), &*disk.beside().page());
            })*
        }
    };
}

on_both_pages! {
    a_new_page_is_zeros,
    each_word_keeps_its_value,
    an_exchange_needs_the_current_value,
    handles_see_each_others_stores,
    no_exchange_is_lost_among_threads,
    stores_are_seen_in_order,
    a_page_ends,
}

#[test]
fn a_real_page_is_a_file_of_little_endian_words() {
    let (_dir, path) = page_file();
    let page = map(&path);
    page.store(1, 0x0102_0304_0506_0708);
    page.compare_exchange(PAGE_WORDS - 1, 0, 0xff)
        .expect("it is zero");
    page.flush().expect("a working disk");
    let bytes = fs::read(&path).expect("the file");
    assert_eq!(bytes.len(), PAGE_SIZE);
    assert_eq!(bytes[..8], [0; 8]);
    assert_eq!(bytes[8..16], [8, 7, 6, 5, 4, 3, 2, 1]);
    assert_eq!(bytes[PAGE_SIZE - 8..], [0xff, 0, 0, 0, 0, 0, 0, 0]);
    drop(page);
    assert_eq!(map(&path).load(1), 0x0102_0304_0506_0708);
}

#[test]
fn a_real_page_is_a_file_of_one_size() {
    let (_dir, path) = page_file();
    for size in [0, PAGE_SIZE - 1, PAGE_SIZE + 1, 2 * PAGE_SIZE] {
        fs::write(&path, vec![0; size]).expect("a file");
        assert_eq!(kind(RealPage::open(&path)), ErrorKind::InvalidData);
        let bytes = fs::read(&path).expect("the file");
        assert_eq!(bytes.len(), size, "it stays as it was");
    }
    fs::remove_file(&path).expect("the file");
    assert_eq!(kind(RealPage::open(&path)), ErrorKind::NotFound);
    assert!(!path.exists(), "opening creates nothing");
}

#[test]
fn a_real_page_outlives_its_name() {
    let (dir, path) = page_file();
    let (page, other) = (map(&path), map(&path));
    let renamed = dir.path().join("renamed");
    fs::rename(&path, &renamed).expect("the file");
    page.store(0, 1);
    assert_eq!((other.load(0), map(&renamed).load(0)), (1, 1));
    fs::remove_file(&renamed).expect("the file");
    page.store(0, 2);
    page.flush().expect("a working disk");
    assert_eq!(other.compare_exchange(0, 2, 3), Ok(2));
    assert_eq!(page.load(0), 3);
    // A new file of that name is another page.
    fs::write(&path, [0; PAGE_SIZE]).expect("a file");
    assert_eq!((map(&path).load(0), page.load(0)), (0, 3));
}

/// The simulated disk holds nothing but our files; a real directory can hold anything.
#[test]
fn a_real_listing_leaves_out_what_is_not_ours() {
    let dir = tempfile::tempdir().expect("a directory");
    let disk = RealDisk::open(dir.path()).expect("the directory");
    create(&disk, "ours", b"");
    for foreign in [".hidden", "UPPER", "sp ace"] {
        fs::write(dir.path().join(foreign), b"").expect("a foreign file");
    }
    fs::create_dir(dir.path().join("directory")).expect("a directory");
    assert_eq!(disk.list().expect("the names"), [name("ours")]);
}
