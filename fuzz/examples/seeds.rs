//! Writes the seed corpus: `cargo run --manifest-path fuzz/Cargo.toml --example seeds`.
//!
//! A seed is a valid log, or a part of one, or one with a single thing wrong, in the order in which
//! its target reads. They are files of fixed names; a run of `cargo fuzz` adds none.

use std::fs;
use std::path::Path;

use ostraca_fuzz::format::{RECORD_FIELDS, Right, put, segment};
use ostraca_fuzz::input::{Input, Output};
use ostraca_fuzz::sample::{IDENTITY, Sample, replay};
use ostraca_fuzz::script::{self, Step, Twist};
use ostraca_io::{Disk, SimDisk};
use ostraca_wal::{
    BATCH_HEADER_SIZE, BATCHES_START, RECORD_HEADER_SIZE, Recovery, SEGMENT_HEADER_SIZE,
    new_epoch_page,
};

fn main() {
    let sample = Sample::small().expect("a disk without faults");
    batches(&sample);
    segment_headers(&sample);
    recoveries(&sample);
    damages();
}

fn write(target: &str, name: &str, output: Output) {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR"))
        .join("corpus")
        .join(target);
    fs::create_dir_all(&folder).expect("a folder");
    let file = folder.join(name).with_extension("seed");
    fs::write(file, output.into_bytes()).expect("a file");
}

/// The segments of a sample with their bytes.
fn files(disk: &SimDisk) -> Vec<(u64, Vec<u8>)> {
    let names = disk.list().expect("power");
    (1..)
        .zip(names)
        .map(|(epoch, name)| {
            assert_eq!(name, segment(epoch, 0).file_name(), "one segment an epoch");
            (epoch, disk.contents(&name).expect("listed"))
        })
        .collect()
}

/// Where batches are in a segment, with their bytes, padding left out.
fn batches_of(file: &[u8]) -> Vec<(usize, &[u8])> {
    let mut batches = Vec::new();
    let mut at = usize::try_from(BATCHES_START).expect("small");
    while file[at..].starts_with(b"oBAT") {
        let size = u32::from_le_bytes(file[at + 8..at + 12].try_into().expect("four"));
        let size = usize::try_from(size).expect("small");
        batches.push((at, &file[at..at + size]));
        at += size.next_multiple_of(512);
    }
    batches
}

fn batches(sample: &Sample) {
    let seed = |right: Right, filler: u8, epoch: u64, at: usize, bytes: &[u8]| {
        let mut output = Output::default();
        output.u8(right.0).u8(filler).u64(epoch).u32(0);
        output.u64((at as u64) << 2).bytes(bytes);
        output
    };
    for (epoch, file) in files(&sample.disk) {
        for (position, (at, bytes)) in batches_of(&file).into_iter().enumerate() {
            let name = format!("epoch-{epoch}-batch-{position}");
            write("batch", &name, seed(Right(0), 0, epoch, at, bytes));
            // The same fields at another place, with checksums made anew.
            let name = format!("{name}-elsewhere");
            let right = Right(Right::HEADER.0 | Right::RECORDS.0);
            write("batch", &name, seed(right, 0, epoch, at + 5120, bytes));
        }
    }
    // A plain batch, and filler of any kind.
    let header = [2; 64];
    // Records of two epochs, written again under a third.
    let (_, file) = files(&sample.disk).remove(1);
    let (at, bytes) = batches_of(&file)[0];
    let mut bytes = bytes.to_vec();
    let second = BATCH_HEADER_SIZE + RECORD_HEADER_SIZE + 100;
    put(&mut bytes[second..], &RECORD_FIELDS[5], 2);
    write("batch", "two-epochs", seed(Right::ALL, 0, 9, at, &bytes));
    write("batch", "any-mark", seed(Right::ALL, 0, 7, 8192, &header));
    write(
        "batch",
        "any-records",
        seed(Right::ALL, 249, 7, 8192, &header),
    );
    write(
        "batch",
        "at-the-limit",
        seed(Right::ALL, 254, 7, 8192, &header),
    );
    write(
        "batch",
        "beyond-the-limit",
        seed(Right::ALL, 255, 7, 8192, &header),
    );
}

fn segment_headers(sample: &Sample) {
    for (epoch, file) in files(&sample.disk) {
        for (name, right) in [("as-is", 0), ("sealed", 8), ("fields", 15), ("same", 31)] {
            let mut output = Output::default();
            output.u8(right).u64(epoch).u32(0);
            for copy in file.chunks(SEGMENT_HEADER_SIZE).take(2) {
                output.bytes(&copy[..128]).bytes(&[0; 4]);
            }
            write("segment_header", &format!("epoch-{epoch}-{name}"), output);
        }
    }
    let page = new_epoch_page(&IDENTITY);
    for (name, right) in [
        ("page-new", 128),
        ("page-header", 129),
        ("page-sealed", 131),
    ] {
        let mut output = Output::default();
        output.u8(right).bytes(&page[64..72]).bytes(&page[128..144]);
        output.bytes(&page[..32]);
        write("segment_header", name, output);
    }
    let mut output = Output::default();
    output.u8(128).u32(9).u32(!9).u64(77).u64(!77);
    write("segment_header", "page-used", output);
}

fn begin(epoch: u8, number: u8, from: u8) -> Step {
    Step::Segment {
        epoch,
        number,
        owner: 0x77,
        from,
        shape: 0,
        twist: Twist::default(),
    }
}

fn batch(records: u8, payload_size: u16) -> Step {
    Step::Batch {
        flags: if records == 0 { 2 } else { 0 },
        records,
        payload_size,
        epoch: 1,
        twist: Twist::default(),
        record_twist: Twist::default(),
        twisted: 0,
    }
}

fn reappended(records: u8, payload_size: u16) -> Step {
    match batch(records, payload_size) {
        Step::Batch {
            records,
            payload_size,
            epoch,
            twist,
            record_twist,
            twisted,
            ..
        } => Step::Batch {
            flags: 1,
            records,
            payload_size,
            epoch,
            twist,
            record_twist,
            twisted,
        },
        other => other,
    }
}

/// What a script makes is a log of so many records, or none.
fn script(name: &str, start: u8, steps: &[Step], records: Option<usize>) {
    let mut output = Output::default();
    for step in steps {
        step.write(&mut output);
    }
    let steps = output.into_bytes();
    let disk = script::run(&mut Input::new(&steps));
    let read = Recovery::read(&disk, IDENTITY).and_then(|recovery| replay(&disk, recovery));
    let read = read.map(|(_, records)| records.len());
    assert_eq!(read.as_ref().ok(), records.as_ref(), "{name}: {read:?}");
    let mut output = Output::default();
    output.u8(start).bytes(&steps);
    write("recovery", name, output);
}

fn recoveries(sample: &Sample) {
    script("nothing", 0, &[], Some(0));
    let one = [begin(1, 0, 0), batch(1, 0), batch(3, 50), batch(1, 600)];
    script("one-segment", 0, &one, Some(5));
    let with = |more: &[Step]| [&one[..], more].concat();
    script("mark", 0, &with(&[batch(0, 0)]), Some(5));
    script(
        "torn",
        0,
        &with(&[batch(2, 300), Step::Flip(10_400, 1)]),
        Some(5),
    );
    script(
        "out-of-reach",
        0,
        &with(&[Step::Fill(1_060_000, 9, 1)]),
        None,
    );
    let hole = [Step::Seek(40), batch(1, 1)];
    script("hole", 0, &with(&hole), None);
    script("older-batch", 0, &with(&[Step::Copy(16, 40)]), Some(5));
    script("blank-segment", 0, &with(&[begin(2, 0, 1)]), Some(5));
    let again = [begin(2, 0, 2), reappended(1, 600)];
    script("torn-take-over", 0, &with(&again), Some(5));
    let over = with(&[begin(2, 0, 2), reappended(1, 600), batch(1, 0), batch(2, 9)]);
    script("take-over", 0, &over, Some(8));
    script("oldest", 2, &[&over[..], &[Step::Remove(0)]].concat(), None);
    let roll = with(&[begin(1, 1, 1), batch(2, 9), begin(1, 2, 1), batch(1, 4)]);
    script("rolls", 0, &roll, Some(8));
    let behind = [Step::Resize(12_800)];
    script("too-short", 0, &with(&behind), None);
    let big = [
        begin(1, 0, 0),
        batch(15, 65_535),
        begin(1, 1, 1),
        batch(9, 65_535),
    ];
    script("large-batches", 0, &big, Some(24));
    let far = [begin(1, 0, 0), Step::State(0, 1 << 40), batch(1, 1)];
    script("far-sequence", 0, &far, None);
    let chain = with(&[Step::State(1, 7), batch(1, 1)]);
    script("broken-chain", 0, &chain, None);
    let hint = [Step::Page(16, 9), Step::Page(17, !9)];
    script("hint", 0, &with(&hint), Some(5));
    let mut output = Output::default();
    // Start::After the third record.
    output.u8(3).u8(3);
    for step in &roll {
        step.write(&mut output);
    }
    write("recovery", "after-a-checkpoint", output);
    for (field, name) in [
        (3, "newer"),
        (4, "foreign"),
        (6, "misplaced"),
        (10, "sizes"),
    ] {
        let twist = Twist { field, value: 9 };
        let twisted = Step::Segment {
            epoch: 1,
            number: 0,
            owner: 1,
            from: 0,
            shape: 0,
            twist,
        };
        let twisted = [twisted, batch(1, 1)];
        script(name, 0, &twisted, None);
        // Behind damage in a later segment.
        let damaged = [begin(2, 0, 0), batch(1, 1), Step::Fill(0, 8192, 1)];
        let name = format!("{name}-behind-damage");
        script(&name, 0, &[&twisted[..], &damaged].concat(), None);
    }
    written_log(sample);
}

/// Sectors as the log's own code wrote them.
fn written_log(sample: &Sample) {
    let mut steps = Vec::new();
    for (epoch, file) in files(&sample.disk) {
        let epoch = u8::try_from(epoch).expect("small");
        let bare = Step::Segment {
            epoch,
            number: 0,
            owner: 0,
            from: 0,
            shape: 32,
            twist: Twist::default(),
        };
        steps.push(bare);
        for (sector, bytes) in file.chunks(512).enumerate() {
            if let Some(last) = bytes.iter().rposition(|&byte| byte != 0) {
                steps.push(Step::Seek(u16::try_from(sector).expect("small")));
                steps.push(Step::Raw(bytes[..=last].to_vec()));
            }
        }
    }
    script("written-log", 0, &steps, Some(sample.records.len()));
}

fn damages() {
    let sample = Sample::large().expect("a disk without faults");
    let seeds = [
        ("nothing", Output::default()),
        ("flip", Output::default()),
        ("fill", Output::default()),
        ("copy-sector", Output::default()),
        ("cut-off", Output::default()),
        ("older-sector", Output::default()),
        ("remove-last", Output::default()),
        ("remove-first", Output::default()),
        ("another-file", Output::default()),
        ("headers-cut-off", Output::default()),
        ("page", Output::default()),
        ("several", Output::default()),
    ];
    let last = u8::try_from(sample.files.len() - 1).expect("few");
    for (name, mut output) in seeds {
        match name {
            "flip" => drop(output.bytes(&[0, 0]).u32(8200).u8(3)),
            "fill" => drop(output.bytes(&[2, last]).u32(8192).u16(600).u8(0)),
            "copy-sector" => drop(output.bytes(&[3, last]).u16(16).u16(18).u8(last)),
            "cut-off" => drop(output.bytes(&[4, last]).u32(9000)),
            "headers-cut-off" => drop(output.bytes(&[4, last - 2]).u32(4100)),
            "older-sector" => drop(output.bytes(&[5, last]).u16(19).u8(0)),
            "remove-last" => drop(output.bytes(&[6, last, 0, 0])),
            "remove-first" => drop(output.bytes(&[6, 0, 0, 0])),
            "another-file" => drop(output.bytes(&[6, last, 1, 1])),
            "page" => drop(output.u8(7).u8(0).u16(8).u64(u64::MAX)),
            "several" => {
                output.bytes(&[0, 1]).u32(4100).u8(3);
                output.bytes(&[0, 2]).u32(100).u8(3);
                output.bytes(&[2, last]).u32(10_240).u16(9000).u8(0);
            }
            _ => {}
        }
        write("damage", name, output);
    }
}
