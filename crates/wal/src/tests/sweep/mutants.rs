//! Mistakes at the seam, each of which the sweep must catch.
//!
//! | mutant | caught by | within |
//! | --- | --- | --- |
//! | [`Mutant::NoDataSync`]: the answer comes before the sync (WAL-12) | an answered record is missing | 2 seeds |
//! | [`Mutant::NoSizeSync`]: a name before zeros and size are durable (WAL-09) | a file that is too short | 2 seeds |
//! | [`Mutant::NoDirectorySync`]: names are never durable (WAL-01, WAL-28) | an answered record is missing | 2 seeds |
//! | [`Mutant::NoPageSync`]: the page is never durable | nothing is lost: the names of files are above every epoch that was served under; the direct tests of the page catch it | 1 seed |
//! | [`Mutant::FenceUnchecked`]: everybody leads for ever (FEN-01) | an answered record is missing, or one that was given up is back | 2 seeds |
//!
//! Mistakes inside the crate are patches: see `mutants/run` in the crate's directory, which applies
//! each to a copy of the sources and names the test that catches it.

use ostraca_io::{Page, Unsynced};
use ostraca_types::Epoch;

use super::super::{ENTROPY, IDENTITY};
use super::run::Run;
use super::tap::{Mutant, Tap};
use super::{RESTARTS, ROLLS, SMALL_BATCHES, Step, TAKE_OVERS, crash_everywhere};
use crate::Claim;

/// The first seed with which a run breaks a promise.
fn seeds_to_catch(mutant: Mutant, steps: &[Step], at_most: u64) -> Option<u64> {
    (1..=at_most).find(|&seed| {
        let mut run = Run::new(seed, Some(mutant)).keeping();
        run.take(steps).is_err() || crash_everywhere(&run, seed).is_err()
    })
}

fn is_caught(mutant: Mutant, steps: &[Step], within: u64) {
    let seeds = seeds_to_catch(mutant, steps, within);
    assert!(seeds.is_some(), "{mutant:?} survives {within} seeds");
}

/// WAL-12: an answer before the sync.
#[test]
fn d01_answering_before_the_sync_is_caught() {
    is_caught(Mutant::NoDataSync, SMALL_BATCHES, 2);
}

/// WAL-09: a segment that is used before its size is durable.
#[test]
fn d01_naming_a_segment_before_its_size_is_durable_is_caught() {
    is_caught(Mutant::NoSizeSync, ROLLS, 2);
}

/// WAL-01, WAL-28: directory syncs that are left out.
#[test]
fn d01_leaving_out_directory_syncs_is_caught() {
    is_caught(Mutant::NoDirectorySync, ROLLS, 2);
    is_caught(Mutant::NoDirectorySync, RESTARTS, 2);
}

/// FEN-01: an answer without a look at the cell.
#[test]
fn f02_a_fence_that_is_not_looked_at_is_caught() {
    is_caught(Mutant::FenceUnchecked, TAKE_OVERS, 2);
}

/// Two claims without a file, and a power cut between them: the second must be higher.
#[test]
fn f01_a_page_that_is_not_synced_is_caught() {
    let epochs = [None, Some(Mutant::NoPageSync)].map(|mutant| {
        let run = Run::new(1, mutant);
        let raise = |tap: &Tap| {
            let claim = Claim::raise(tap.page(), IDENTITY, tap, &*ENTROPY);
            claim.expect("power").epoch()
        };
        let first = raise(&run.tap);
        run.tap.disk.power_cut(Unsynced::Lost);
        let disk = run.tap.disk.restarted();
        assert!(disk.page().load(8) != 0, "the page is there");
        (first, raise(&run.tap.of(&disk)))
    });
    assert_eq!(epochs, [(Epoch(2), Epoch(3)), (Epoch(2), Epoch(2))]);
}
