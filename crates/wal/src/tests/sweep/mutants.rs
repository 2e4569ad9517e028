//! Mistakes at the seam, each of which the sweep must catch.
//!
//! | mutant | caught by | within |
//! | --- | --- | --- |
//! | [`Mutant::NoDataSync`]: the answer comes before the sync (WAL-12) | an answered record is missing | 1 seed |
//! | [`Mutant::NoSizeSync`]: a name before zeros and size are durable (WAL-09) | a file that is too short | 1 seed |
//! | [`Mutant::NoDirectorySync`]: names are never durable (WAL-01, WAL-28) | an answered record is missing | 1 seed |
//! | [`Mutant::NoPageSync`]: the page is never durable | nothing is lost: the names of files are above every epoch that was served under; the direct tests of the page catch it | 1 seed |
//! | [`Mutant::FenceUnchecked`]: everybody leads for ever (FEN-01) | an answered record is missing, or one that was given up is back | 1 seed |
//!
//! Mistakes inside the crate are patches in `mutants/`, which `mutants/run` applies to a copy of the
//! sources one by one:
//!
//! | mutant | caught by | seeds |
//! | --- | --- | --- |
//! | `chain-ignored`: a batch is believed whatever the chain value before it | `damage::d02_a_valid_batch_out_of_order_is_damage` | 1 |
//! | `counted-by-its-header`: a segment counts as soon as it has a header | `sweep::d01_restarts_and_clean_ups_survive_a_crash_at_every_operation`, `sweep::faults::d03_any_sync_of_any_run_may_fail` | 1 |
//! | `directory-not-synced`: a segment is used before its name is durable | `sweep::d01_rolls_survive_a_crash_at_every_operation` | 1 |
//! | `end-chain-ignored`: a segment is believed whatever chain value its successor recorded | `damage::d02_a_segment_of_another_history_is_named` | 1 |
//! | `end-not-recorded`: a segment is read as far as its batches are valid, whatever end was recorded | `sweep::f03_take_overs_beside_a_live_leader_survive_a_crash_at_every_operation` | 1 |
//! | `epoch-order-ignored`: epochs of records may decrease | `damage::d02_a_valid_batch_out_of_order_is_damage` | 1 |
//! | `failed-sync-retried`: a log goes on after a failed sync | `sweep::faults::d03_any_sync_of_any_run_may_fail` | 1 |
//! | `header-not-synced`: header and first batch share a sync | `crash::d01_a_roll_may_be_cut_at_every_operation` | 1 |
//! | `higher-epochs-removed`: a clean-up removes what a later leader made | `segments::clean_up_removes_leftovers_and_nothing_of_a_higher_epoch` | 1 |
//! | `hint-before-the-look`: the hint is stored before the sync and the look at the cell | `sweep::f03_take_overs_beside_a_live_leader_survive_a_crash_at_every_operation` | 1 |
//! | `hint-ignored`: a log may end before what the page knows to have been durable | `rot::d02_no_damaged_sector_is_a_silent_loss` | 1 |
//! | `hint-not-synced`: the page is not synced at the end of a take-over | `fence::d02_a_lost_leadership_is_convicted_after_a_power_cut_too` | 1 |
//! | `later-batch-ignored`: what is not valid ends the log, whatever follows | `rows::d02_every_row_about_the_end_is_read_as_written` | 1 |
//! | `length-trusted`: a size is used as it is stored, within no bounds | `frame::tests::a_sealed_header_is_bounded_all_the_same` | 1 |
//! | `mark-not-synced`: a mark shares the sync of the batch after it | `damage::d02_a_mark_before_a_lost_append_convicts_nothing` | 1 |
//! | `mark-proves-itself`: a recorded end may rest on a mark that only the cache has | `crash::d03_a_mark_whose_sync_failed_is_not_relied_on` | 1 |
//! | `name-before-its-sync`: a segment gets its name before its zeros are durable | `sweep::d01_rolls_survive_a_crash_at_every_operation` | 1 |
//! | `no-look-after-reading`: a contender that lost its claim while it read goes on | `fence::f01_a_contender_that_was_overtaken_stops` | 1 |
//! | `no-look-after-the-sync`: a batch is answered without a look at the cell | `sweep::f03_take_overs_beside_a_live_leader_survive_a_crash_at_every_operation` | 1 |
//! | `no-second-look`: a log that goes on while it is read looks damaged | `segments::verify_beside_an_open_log_is_no_damage` | 1 |
//! | `owner-ignored`: a segment of another process may be the predecessor | `damage::d02_a_segment_of_another_history_is_named` | 1 |
//! | `padding-unchecked`: padding may hold anything | `damage::d05_a_flipped_bit_in_any_byte_is_found` | 1 |
//! | `payload-length-trusted`: a record may be larger than any that is written | `arbitrary::d05_a_record_larger_than_any_that_is_written_is_refused` | 1 |
//! | `place-without-offset`: a checksum does not say where its bytes belong | `damage::d02_a_payload_that_imitates_a_batch_is_no_batch` | 1 |
//! | `place-without-segment`: a checksum does not say which segment its bytes belong to | `frame::tests::d05_a_batch_is_valid_in_its_own_place_only` | 1 |
//! | `purge-too-far`: a purge removes a segment with one record that no checkpoint covers | `segments::purge_removes_what_a_checkpoint_covers` | 1 |
//! | `raise-not-synced`: an epoch is used before the page that grants it is durable | `fence::f01_every_claim_is_higher_than_all_before` | 1 |
//! | `reappended-counts`: a segment counts with any batch, one that was written again too | `sweep::d01_restarts_and_clean_ups_survive_a_crash_at_every_operation` | 1 |
//! | `size-unchecked`: the last segment may be shorter than its header says | `damage::d02_a_shorter_file_is_damaged` | 1 |
//! | `tail-not-synced`: the tail shares the sync of the header | `crash::d01_a_take_over_syncs_each_step` | 1 |
//! | `tail-not-written-again`: a take-over goes on behind the last batch, which only the cache may have | `crash::d03_a_take_over_writes_again_what_only_the_cache_has`, `sweep::faults::d03_any_sync_of_any_run_may_fail` | 1 |
//! | `trim-before-the-no-op`: what a take-over cuts off goes before its segment counts | `sweep::d01_restarts_and_clean_ups_survive_a_crash_at_every_operation` | 1 |
//!
//! Without a mutant of its own: the sequence of a recorded end, because the chain value recorded
//! beside it covers every sequence.

use ostraca_io::{Page, Unsynced};
use ostraca_types::Epoch;

use super::super::{ENTROPY, IDENTITY};
use super::crash_everywhere;
use super::run::Run;
use super::steps::{RESTARTS, ROLLS, SMALL_BATCHES, Step, TAKE_OVERS};
use super::tap::{Mutant, Tap};
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
    is_caught(Mutant::NoDataSync, SMALL_BATCHES, 1);
}

/// WAL-09: a segment that is used before its size is durable.
#[test]
fn d01_naming_a_segment_before_its_size_is_durable_is_caught() {
    is_caught(Mutant::NoSizeSync, ROLLS, 1);
}

/// WAL-01, WAL-28: directory syncs that are left out.
#[test]
fn d01_leaving_out_directory_syncs_is_caught() {
    is_caught(Mutant::NoDirectorySync, ROLLS, 1);
    is_caught(Mutant::NoDirectorySync, RESTARTS, 1);
}

/// FEN-01: an answer without a look at the cell.
#[test]
fn f02_a_fence_that_is_not_looked_at_is_caught() {
    is_caught(Mutant::FenceUnchecked, TAKE_OVERS, 1);
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
