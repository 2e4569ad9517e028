//! f01 to f03: who leads, on one simulated disk that several processes share.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use ostraca_io::{Disk, Page, SimDisk, Unsynced};

use super::*;

const CELL: usize = 8;
const DURABLE: usize = 16;

fn batch_of(number: u64) -> Batch {
    let mut batch = Batch::new();
    push(&mut batch, number, 20);
    batch
}

#[test]
fn f01_every_claim_is_higher_than_all_before() {
    let disk = SimDisk::new(1);
    let claims: Vec<Claim> = (0..3).map(|_| claim(&disk).expect("power")).collect();
    let epochs: Vec<Epoch> = claims.iter().map(Claim::epoch).collect();
    assert_eq!(epochs, [Epoch(1), Epoch(2), Epoch(3)]);
    let held: Vec<bool> = claims.iter().map(Claim::holds).collect();
    assert_eq!(held, [false, false, true]);
    // Not one of them made a file: the page alone knows, and it survives a power cut.
    disk.power_cut(Unsynced::Lost);
    let disk = disk.restarted();
    assert_eq!(claim(&disk).expect("power").epoch(), Epoch(4));
}

#[test]
fn f01_of_claims_at_the_same_time_each_gets_its_own() {
    let disk = SimDisk::new(1);
    drop(claim(&disk).expect("power"));
    let threads: Vec<_> = (0..4)
        .map(|_| {
            let disk = disk.beside();
            std::thread::spawn(move || {
                let raised = (0..50).map(|_| claim(&disk).expect("power").epoch());
                raised.collect::<Vec<_>>()
            })
        })
        .collect();
    let mut epochs: Vec<Epoch> = threads
        .into_iter()
        .flat_map(|thread| thread.join().expect("no panic"))
        .collect();
    epochs.sort_unstable();
    assert_eq!(epochs, (2..202).map(Epoch).collect::<Vec<_>>());
}

/// The old leader is stopped between append and sync, and between sync and check; the new one
/// serves; the old one wakes (FEN-01, FEN-03).
#[test]
fn f03_an_append_that_was_not_answered_is_kept_or_refused_and_never_appears_later() {
    for synced_before in [false, true] {
        let disk = SimDisk::new(1);
        let (mut old, _) = open(&disk).expect("a new log");
        append_one(&mut old, 0).expect("power");
        old.append(&mut batch_of(1), Room::Reserve).expect("power");
        if synced_before {
            // Its sync returned; it is stopped before its check.
            let name = SegmentId {
                epoch: Epoch(1),
                number: 0,
            };
            let file = disk.open(&name.file_name()).expect("the file");
            ostraca_io::DiskFile::sync_data(&file).expect("power");
        }
        let (mut new, records) = open(&disk.beside()).expect("a log");
        // It was in the cache: the new leader has it, and has made it durable.
        assert_eq!(numbers(&records), [0, 1]);
        append_one(&mut new, 2).expect("power");
        let late = old.sync().expect_err("another one leads");
        assert!(matches!(late, Error::Fenced { epoch: Epoch(1) }), "{late}");
        disk.power_cut(Unsynced::Lost);
        let (_, after) = recover(&disk.restarted()).expect("a log");
        assert_eq!(numbers(&after), [0, 1, 2]);
    }
}

/// What is appended after the new leader read the log is in no history.
#[test]
fn f03_an_append_after_the_takeover_never_appears() {
    let disk = SimDisk::new(1);
    let (mut old, _) = open(&disk).expect("a new log");
    append_one(&mut old, 0).expect("power");
    let (mut new, _) = open(&disk.beside()).expect("a log");
    append_one(&mut new, 1).expect("power");
    assert!(matches!(
        append_one(&mut old, 99),
        Err(Error::Fenced { .. })
    ));
    let (_, records) = open(&disk.crash()).expect("a log");
    assert_eq!(numbers(&records), [0, 1]);
}

/// A contender that lost its claim while it read stops before it makes anything.
#[test]
fn f01_a_contender_that_was_overtaken_stops() {
    let disk = SimDisk::new(1);
    let (mut log, _) = open(&disk).expect("a new log");
    append_one(&mut log, 0).expect("power");
    let slow = disk.beside();
    let claim = claim(&slow).expect("power");
    let (recovered, _) = recover_under(&claim, &slow, Start::Beginning).expect("a log");
    let (mut leader, _) = open(&disk.beside()).expect("a log");
    append_one(&mut leader, 1).expect("power");
    let names = segment_names(&disk);
    let lost = Log::take_over(slow, claim, OWNER, SMALL, recovered, TIME);
    assert!(matches!(lost, Err(Error::Fenced { epoch: Epoch(2) })));
    assert_eq!(segment_names(&disk), names);
}

/// A contender that is overtaken later goes as far as its no-op, and answers nothing.
#[test]
fn f01_a_contender_that_was_overtaken_after_its_last_look_answers_nothing() {
    let disk = SimDisk::new(1);
    let (mut log, _) = open(&disk).expect("a new log");
    append_one(&mut log, 0).expect("power");
    // Its page stands still: as if it were stopped right after its look.
    let slow = disk.beside();
    let stale = Arc::new(Stale {
        page: disk.page(),
        shows_once: AtomicU64::new(0),
    });
    let claim = Claim::raise(
        Arc::clone(&stale) as Arc<dyn Page>,
        IDENTITY,
        &slow,
        &*ENTROPY,
    )
    .expect("power");
    let (recovered, _) = recover_under(&claim, &slow, Start::Beginning).expect("a log");
    let as_it_was = stale.load(CELL);
    let (mut leader, _) = open(&disk.beside()).expect("a log");
    stale.shows_once.store(as_it_was, Ordering::SeqCst);
    let lost = Log::take_over(slow, claim, OWNER, SMALL, recovered, TIME);
    assert!(
        matches!(lost, Err(Error::Fenced { epoch: Epoch(2) })),
        "{lost:?}"
    );
    append_one(&mut leader, 1).expect("it leads still");
    let (_, records) = open(&disk.crash()).expect("a log");
    assert_eq!(numbers(&records), [0, 1]);
}

/// Shows the cell once more as it was: what a process sees that is stopped right after its look.
#[derive(Debug)]
struct Stale {
    page: Arc<ostraca_io::SimPage>,
    shows_once: AtomicU64,
}

impl Page for Stale {
    fn load(&self, word: usize) -> u64 {
        let shown = match word {
            CELL => self.shows_once.swap(0, Ordering::SeqCst),
            _ => 0,
        };
        if shown == 0 {
            self.page.load(word)
        } else {
            shown
        }
    }

    fn store(&self, word: usize, value: u64) {
        self.page.store(word, value);
    }

    fn compare_exchange(&self, word: usize, current: u64, new: u64) -> Result<u64, u64> {
        self.page.compare_exchange(word, current, new)
    }

    fn flush(&self) -> std::io::Result<()> {
        self.page.flush()
    }
}

#[test]
#[should_panic(expected = "read before the epoch was raised")]
fn f01_a_log_that_was_read_before_the_raise_is_not_taken_over() {
    let disk = SimDisk::new(1);
    let (recovered, _) = recover(&disk).expect("a log");
    let claim = claim(&disk).expect("power");
    drop(Log::take_over(disk, claim, OWNER, SMALL, recovered, TIME));
}

/// A bad cell ends every leadership, and the next take-over mends it: beyond any epoch that was
/// granted and has no file yet.
#[test]
fn f02_a_bad_cell_is_repaired_by_a_take_over_only() {
    let disk = SimDisk::new(1);
    let (mut log, _) = open(&disk).expect("a new log");
    append_one(&mut log, 0).expect("power");
    // Granted, and stopped before it made a file.
    let granted = claim(&disk.beside()).expect("power");
    disk.damage_page(CELL, 0x1234);
    assert!(matches!(append_one(&mut log, 1), Err(Error::Fenced { .. })));
    let report = read_epoch_page(disk.page(), &IDENTITY).expect("readable");
    assert_eq!(report.epoch, None);
    let repaired = claim(&disk.beside()).expect("power");
    assert!(repaired.repaired() && repaired.epoch() > granted.epoch());
    assert!(!granted.holds() && repaired.holds());
    let (_, records) = open(&disk.crash()).expect("a log");
    assert_eq!(numbers(&records), [0, 1]);
}

#[test]
fn d07_a_page_of_another_store_or_format_is_refused_by_name() {
    let disk = SimDisk::new(1);
    drop(claim(&disk).expect("power"));
    let other = Identity {
        shard: ShardId(4),
        ..IDENTITY
    };
    let refused = Claim::raise(disk.page(), other, &disk, &*ENTROPY).expect_err("another shard's");
    assert!(matches!(
        refused,
        Error::Foreign {
            shard: ShardId(3),
            ..
        }
    ));
    let mut newer = new_epoch_page(&IDENTITY);
    newer[12] = 0xff;
    let crc = crc32fast::hash(&newer[12..32]);
    newer[8..12].copy_from_slice(&crc.to_le_bytes());
    for (word, bytes) in newer.chunks_exact(8).enumerate() {
        disk.damage_page(word, u64::from_le_bytes(bytes.try_into().expect("eight")));
    }
    let refused = Claim::raise(disk.page(), IDENTITY, &disk, &*ENTROPY).expect_err("a newer one");
    assert!(
        matches!(refused, Error::UnknownFormat { version: 255, .. }),
        "{refused}"
    );
}

/// Every bit of header and cell: the claim is as high as before, or the page is refused by name.
#[test]
fn d05_no_flipped_bit_of_the_page_grants_an_epoch_again() {
    for word in [0, 1, 2, 3, CELL] {
        for bit in 0..64 {
            let disk = SimDisk::new(1);
            drop(open(&disk).expect("a new log"));
            let before = claim(&disk).expect("power").epoch();
            let value = disk.page().load(word);
            disk.damage_page(word, value ^ (1 << bit));
            match claim(&disk) {
                Ok(claim) => assert!(claim.epoch() > before && claim.repaired()),
                Err(err) => panic!("word={word} bit={bit}: {err}"),
            }
            assert!(claim(&disk).expect("mended").epoch() > before);
        }
    }
}

#[test]
fn an_epoch_beyond_all_is_an_error_and_no_overflow() {
    for epoch in [u64::from(u32::MAX), u64::MAX] {
        let disk = SimDisk::new(1);
        let id = SegmentId {
            epoch: Epoch(epoch),
            number: 0,
        };
        disk.create(&id.file_name()).expect("a new name");
        let refused = claim(&disk).expect_err("no higher one");
        assert!(matches!(refused, Error::EpochsUsedUp { .. }), "{refused}");
    }
}

/// The last batch has no later one that would convict damage to it; the page does.
#[test]
fn d02_damage_to_the_last_batch_is_convicted_by_the_page() {
    let disk = SimDisk::new(1);
    let (mut log, _) = open(&disk).expect("a new log");
    append_one(&mut log, 0).expect("power");
    append_one(&mut log, 1).expect("power");
    let disk = disk.crash();
    let name = SegmentId {
        epoch: Epoch(1),
        number: 0,
    };
    let last = BATCHES_START + 2 * BATCH_ALIGNMENT as u64;
    disk.flip_bit(&name.file_name(), last + 100, 3);
    // The log alone cannot tell.
    assert_eq!(numbers(&recover(&disk).expect("a torn tail").1), [0]);
    let refused = open(&disk).expect_err("it was acknowledged");
    match refused {
        Error::Damaged {
            file,
            offset,
            sequence,
            fault,
        } => {
            assert_eq!((file, offset), (name.file_name(), last));
            assert_eq!(sequence, Sequence(3));
            assert_eq!(fault, Fault::Behind(Sequence(3)));
        }
        other => panic!("{other}"),
    }
    // Where the hint is bad as well, it is as without one.
    disk.damage_page(DURABLE, 77);
    assert_eq!(numbers(&open(&disk).expect("a torn tail").1), [0]);
}

/// After a power cut the hint may be older; what it says is still true, and a leadership that
/// served is never forgotten whole.
#[test]
fn d02_a_lost_leadership_is_convicted_after_a_power_cut_too() {
    let disk = SimDisk::new(1);
    let (mut log, _) = open(&disk).expect("a new log");
    append_one(&mut log, 0).expect("power");
    drop(open(&disk.crash()).expect("a log"));
    disk.power_cut(Unsynced::Lost);
    let disk = disk.restarted();
    let newest = SegmentId {
        epoch: Epoch(2),
        number: 0,
    };
    disk.remove(&newest.file_name()).expect("the file");
    assert_eq!(numbers(&recover(&disk).expect("a log").1), [0]);
    let refused = open(&disk).expect_err("its no-op is missing");
    assert!(
        matches!(
            refused,
            Error::Damaged {
                fault: Fault::Behind(_),
                ..
            }
        ),
        "{refused}"
    );
}
