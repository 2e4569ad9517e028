//! The promises of [`Disk`] and [`DiskFile`], asked of the real and of the simulated disk.

use std::io::{self, ErrorKind};

use crate::{Disk, DiskFile, FileName, RealDisk, SimDisk};

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

fn an_open_file_outlives_its_name(disk: &impl Disk) {
    create(disk, "a", b"still here");
    let file = disk.open(&name("a")).expect("the file");
    disk.remove(&name("a")).expect("the file");
    assert_eq!(kind(disk.open(&name("a"))), ErrorKind::NotFound);
    let mut bytes = [0; 5];
    file.read_exact_at(&mut bytes, 0).expect("its bytes");
    assert_eq!(&bytes, b"still");
    create(disk, "a", b"another");
    assert_eq!(contents(disk, "a"), b"another");
}

fn names_come_sorted(disk: &impl Disk) {
    for text in ["b", "a-2", "a-10", "c.log", "_"] {
        create(disk, text, b"");
    }
    let sorted = ["_", "a-10", "a-2", "b", "c.log"].map(name);
    assert_eq!(disk.list().expect("the names"), sorted);
    disk.sync_dir().expect("a working disk");
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
    an_open_file_outlives_its_name,
    names_come_sorted,
}

/// The simulated disk holds nothing but our files; a real directory can hold anything.
#[test]
fn a_real_listing_leaves_out_what_is_not_ours() {
    let dir = tempfile::tempdir().expect("a directory");
    let disk = RealDisk::open(dir.path()).expect("the directory");
    create(&disk, "ours", b"");
    for foreign in [".hidden", "UPPER", "sp ace"] {
        std::fs::write(dir.path().join(foreign), b"").expect("a foreign file");
    }
    std::fs::create_dir(dir.path().join("directory")).expect("a directory");
    assert_eq!(disk.list().expect("the names"), [name("ours")]);
}
