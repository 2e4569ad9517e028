//! Any files as a log.

#![no_main]

use libfuzzer_sys::fuzz_target;
use ostraca_fuzz::input::Input;
use ostraca_fuzz::sample::{
    IDENTITY, OPTIONS, OWNER, Stored, append, open, raise, replay, take_over,
};
use ostraca_fuzz::script;
use ostraca_io::SimDisk;
use ostraca_types::{Epoch, Sequence};
use ostraca_wal::{
    Error, KIND_MAX, KIND_NO_OP, PAYLOAD_SIZE_MAX, Recovery, Report, Start, plan_cut, verify,
};

fuzz_target!(|data: &[u8]| {
    let mut input = Input::new(data);
    let start = match input.u8() % 4 {
        0 | 1 => Start::Beginning,
        2 => Start::Oldest,
        _ => Start::After(Sequence(input.u8().into())),
    };
    let disk = script::run(&mut input);
    let operations = disk.operations();
    let all = verified(&disk);
    let seen = look(&disk, start);
    for records in [&all, &seen].into_iter().flatten() {
        check(records, start);
    }
    match start {
        Start::Oldest => same(&seen, &all),
        Start::Beginning if seen.is_ok() => same(&seen, &all),
        _ => {}
    }
    same(&look(&disk, start), &seen);
    assert_eq!(disk.operations(), operations, "reading changes nothing");
    if start != Start::Beginning || seen.is_err() {
        cut(&disk.fork(), &all);
    }
    lead(&disk, start, &seen);
});

type Seen = Result<(Report, Vec<Stored>), Error>;

fn look(disk: &SimDisk, start: Start) -> Seen {
    let recovery = Recovery::read_from(disk, IDENTITY, start)?;
    let (recovered, records) = replay(disk, recovery)?;
    Ok((recovered.report().clone(), records))
}

fn verified(disk: &SimDisk) -> Seen {
    let mut records = Vec::new();
    let report = verify(disk, IDENTITY, None, &mut |record| {
        records.push(Stored::of(record));
    })?;
    Ok((report, records))
}

/// Errors have no equality, and say all that they hold.
fn same(one: &Seen, other: &Seen) {
    match (one, other) {
        (Ok(one), Ok(other)) => assert_eq!(one, other),
        _ => assert_eq!(format!("{one:?}"), format!("{other:?}")),
    }
}

fn check((report, records): &(Report, Vec<Stored>), start: Start) {
    for pair in records.windows(2) {
        assert_eq!(pair[0].sequence.next(), pair[1].sequence, "no gap");
        assert!(pair[0].epoch <= pair[1].epoch, "epochs never decrease");
    }
    for record in records {
        assert!(record.payload.len() <= PAYLOAD_SIZE_MAX && record.rest.1 <= KIND_MAX);
        assert!(record.epoch > Epoch(0) && record.sequence > Sequence(0));
    }
    if let (Some(last), Some(first)) = (records.last(), records.first()) {
        assert_eq!(last.sequence, report.last_sequence);
        assert!(start != Start::Beginning || first.sequence >= Sequence(1));
    }
}

/// A cut keeps what it says, if the log is damaged.
fn cut(disk: &SimDisk, seen: &Seen) {
    let Ok(claim) = raise(disk) else { return };
    let operations = disk.operations();
    let plan = plan_cut(disk, IDENTITY, None);
    assert_eq!(disk.operations(), operations, "a plan changes nothing");
    let Ok(Some(plan)) = plan else { return };
    let keeps = plan.keeps;
    assert!(keeps <= plan.known);
    plan.carry_out(disk.clone(), claim, OWNER, OPTIONS)
        .expect("a disk without faults");
    let looked = look(disk, Start::Beginning);
    let (report, after) = looked.expect("what was cut can be read");
    assert_eq!(report.last_sequence, keeps.next());
    if let Ok((_, before)) = seen {
        let from_the_first = before.first().is_some_and(|first| first.sequence.0 == 1);
        let kept = &after[..after.len() - 1];
        assert!(!from_the_first || kept.starts_with(before) || before.starts_with(kept));
    }
}

/// A take-over keeps what was read, and so does the next.
fn lead(disk: &SimDisk, start: Start, seen: &Seen) {
    let Ok(claim) = raise(disk) else { return };
    let recovery = claim.recover(disk, start);
    let Ok((recovered, records)) = recovery.and_then(|recovery| replay(disk, recovery)) else {
        return;
    };
    let (report, looked) = seen.as_ref().expect("what leads was seen before");
    assert_eq!(&records, looked);
    let mut log = take_over(disk, claim, recovered).expect("a disk without faults");
    append(&mut log, &[3]).expect("room");
    let mut work = log.take_clean_up().expect("not taken yet");
    work.run().expect("a disk without faults");
    let again = match open(disk, start) {
        Err(Error::EpochsUsedUp { .. }) => return,
        other => other.expect("what was taken over can be read").1,
    };
    let (kept, added) = again.split_at(records.len());
    assert_eq!(kept, records);
    assert_eq!(added.len(), 2);
    assert_eq!(added[0].sequence, report.last_sequence.next());
    assert_eq!(added[0].rest.1, KIND_NO_OP);
    assert_eq!(added[1].payload, [1; 3]);
}
