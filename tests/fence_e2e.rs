//! The fence on real files: several processes that each believe that they lead one shard, stepped
//! through their schedules at the stop points of the faults build (docs/faults.md).

#![expect(
    clippy::disallowed_methods,
    reason = "a test has files and deadlines of its own"
)]

mod fence;

use std::fs::{self, OpenOptions};
use std::os::unix::fs::FileExt as _;

use fence::{Call, FENCED, Node, Save, assert_unknown, contender_at, program, take_over};
use ostraca_client::{Begun, CreateAnswer};
use ostraca_tests::faults::Script;
use ostraca_tests::poll;
use ostraca_tests::shards::{Data, Shard};

/// A directory that has a leader, and a paste that it acknowledged.
fn led() -> (Data, Node, Save, CreateAnswer) {
    let data = Data::new(&program());
    let leader = Node::serving(data.launch(Script::new(), &[]));
    let old = Save::new();
    let answer = leader.create(&old);
    (data, leader, old, answer)
}

/// Asks again for `save`, which may have been made once: then it is made once all the same.
#[track_caller]
fn ask_again(leader: &Node, save: &Save, was_there: bool) -> CreateAnswer {
    let before = leader.pastes();
    let answer = leader.create(save);
    assert_eq!(answer.replayed, was_there);
    assert_eq!(leader.pastes(), before + u64::from(!was_there));
    assert!(leader.has(answer.paste_id));
    let again = leader.create(save);
    assert_eq!(again.paste_id, answer.paste_id);
    assert_eq!(leader.pastes(), before + u64::from(!was_there));
    answer
}

/// A leader is stopped at `point` with a create; another one takes over, serves, and is stopped in
/// its turn; the first one wakes: `hear` has what its caller heard, and lets it end. Then the second
/// one goes on: the record of the create is in its history, or is not.
fn overtaken_at(
    point: &str,
    in_history: bool,
    hear: impl FnOnce(&mut Node, Call<CreateAnswer>) -> Option<CreateAnswer>,
) {
    let (data, mut first, old_save, old) = led();
    let save = Save::new();
    let waiting = first.hold_create(&save, point);

    let mut second = take_over(&data);
    assert_eq!(second.pastes(), 1 + u64::from(in_history));
    let other = second.create(&Save::new());
    second.delete(&old);
    second.process.stop();

    assert!(!waiting.is_answered());
    let heard = hear(&mut first, waiting);
    assert_eq!(first.process.exit(), FENCED, "{}", first.process.stderr());

    second.process.go_on();
    assert_eq!(second.pastes(), 1 + u64::from(in_history));
    let made = ask_again(&second, &save, in_history);
    if let Some(heard) = heard {
        assert_eq!(heard.paste_id, made.paste_id);
        assert_eq!(heard.delete_token, made.delete_token);
    }
    // The answer outlives the paste.
    assert_eq!(second.create(&old_save).paste_id, old.paste_id);
    second.process.kill();

    let third = Node::serving(data.launch(Script::new(), &[]));
    assert_eq!(third.pastes(), 2);
    assert!(third.has(made.paste_id) && third.has(other.paste_id));
    assert!(!third.has(old.paste_id));
}

/// As [`overtaken_at`]; whoever waited hears nothing definite.
fn overtaken_before_the_check(point: &str, in_history: bool) {
    overtaken_at(point, in_history, |first, waiting| {
        assert_unknown(first.wake(point, waiting));
        None
    });
}

/// FEN-01, FEN-03: what the new leader did not find never comes.
#[test]
fn f03_a_record_written_after_the_takeover_never_appears() {
    overtaken_before_the_check("log.before-write create", false);
}

/// FEN-01, FEN-15: written and not synced is not acknowledged, and may be there or not.
#[test]
fn f02_an_append_overtaken_before_its_sync_is_not_acknowledged() {
    overtaken_before_the_check("log.before-sync create", true);
}

/// FEN-01, WAL-12: nor is what was synced and not checked, although it is there.
#[test]
fn f02_an_append_overtaken_before_its_check_is_not_acknowledged() {
    overtaken_before_the_check("log.after-sync create", true);
}

/// FEN-03: what passed the check is in every later history, so its answer is true however late.
#[test]
fn f03_an_append_that_passed_the_check_is_in_the_new_history() {
    let point = "log.after-check create";
    overtaken_at(point, true, |first, waiting| {
        Some(first.wake(point, waiting).expect("it is a success"))
    });
}

/// FEN-12: an old leader whose log hangs in a sync, and whose process runs: it answers no read, no
/// stored answer and no begin.
#[test]
fn f04_what_the_new_leader_deleted_does_not_come_back() {
    let (data, mut first, old_save, old) = led();
    let point = "log.before-sync create";
    let (save, late) = (Save::new(), Save::new());
    let late_ticket = first.ticket(&late);
    let waiting = first.hold_create(&save, point);
    first.process.go_on();
    assert!(first.has(old.paste_id), "it leads still");

    let second = take_over(&data);
    second.delete(&old);
    first.ask_here(old.paste_id).assert_not_leading();
    first.begin_here(&old_save).assert_not_leading();
    first.begin_here(&Save::new()).assert_not_leading();
    let late_waiting = first.send(&late, late_ticket);

    assert_unknown(first.wake(point, waiting));
    // It was queued, or refused and followed to the new leader: never made by the old one.
    if let Ok(made) = late_waiting.wait() {
        assert!(second.has(made.paste_id));
    }
    assert_eq!(first.process.exit(), FENCED);
    ask_again(&second, &save, true);
    assert!(!second.has(old.paste_id));
}

/// FEN-12: the check comes after the look at the rows.
#[test]
fn f04_a_read_in_flight_at_the_takeover_is_refused() {
    let (data, mut first, _, old) = led();
    // Its log's thread must not notice before the read does.
    let append = "log.before-sync create";
    let save = Save::new();
    let waiting = first.hold_create(&save, append);
    let check = "read.before-check";
    first.process.script.pause_at(check);
    let reading = first.ask_here(old.paste_id);
    first.process.go_on();
    first.process.wait_held(check);

    let second = take_over(&data);
    second.delete(&old);
    assert!(!reading.is_answered());
    first.process.wake(check);
    reading.assert_not_leading();
    assert_unknown(first.wake(append, waiting));
    assert_eq!(first.process.exit(), FENCED);
}

/// FEN-03: also "this was stored before" is said under the leader's own token only.
#[test]
fn f05_a_stored_answer_waits_for_the_fence() {
    let (data, mut first, _, _) = led();
    let point = "log.before-sync create";
    let save = Save::new();
    let (one, two) = (first.ticket(&save), first.ticket(&save));
    let stored = first.send(&save, one).wait().expect("a leader creates");
    first.process.script.pause_at(point);
    let waiting = first.send(&save, two);
    first.process.wait_held(point);
    let second = take_over(&data);
    second.delete(&stored);
    assert_unknown(first.wake(point, waiting));
    assert_eq!(first.process.exit(), FENCED);
    assert_eq!(second.create(&save).paste_id, stored.paste_id);
}

/// FEN-09: a raise alone ends the leadership, and one who raised and died keeps nobody else out.
#[test]
fn f01_an_old_leader_is_fenced_from_the_raise_on() {
    let (data, mut first, _, old) = led();
    let append = "log.after-sync create";
    let save = Save::new();
    let waiting = first.hold_create(&save, append);
    let mut second = contender_at(&data, "page.after-raise");
    assert_unknown(first.wake(append, waiting));
    assert_eq!(first.process.exit(), FENCED);
    second.kill();
    let third = Node::serving(data.launch(Script::new(), &[]));
    assert!(third.has(old.paste_id));
    ask_again(&third, &save, true);
}

/// FEN-03: a contender reads after it raised, so it finds what was acknowledged while it only looked.
#[test]
fn f03_what_is_acknowledged_before_the_raise_is_found() {
    for point in ["disk.after-list", "page.before-raise"] {
        let (data, mut first, _, old) = led();
        let second = contender_at(&data, point);
        let save = Save::new();
        let made = first.create(&save);
        first.delete(&old);
        second.wake(point);
        let second = Node::serving(second);
        assert!(second.has(made.paste_id), "{point}");
        assert!(!second.has(old.paste_id), "{point}");
        ask_again(&second, &save, true);
        assert_eq!(first.process.exit(), FENCED);
    }
}

/// Overtakes a contender that has raised and is held at `point`. It wakes when the third one leads, and
/// ends without a change.
fn overtaken_contender(data: &Data, mut second: Shard, point: &str, old: &CreateAnswer) {
    let third = take_over(data);
    let (_, pastes) = third.status();
    let made = third.create(&Save::new());
    third.delete(old);
    third.wait_clean(data);
    third.process.stop();
    let before = data.contents();
    second.wake(point);
    assert_eq!(second.exit(), FENCED, "{}", second.stderr());
    assert!(data.contents() == before, "{point}: files were changed");
    third.process.go_on();
    assert_eq!(third.pastes(), pastes);
    assert!(third.has(made.paste_id) && !third.has(old.paste_id));
    assert!(!third.create(&Save::new()).replayed, "{point}: it leads");
}

/// FEN-01, FEN-09: the second of three wakes last.
#[test]
fn f01_an_overtaken_contender_changes_nothing() {
    for point in [
        "page.after-raise",
        "log.before-write header",
        "log.before-sync no-op",
    ] {
        let (data, mut first, _, old) = led();
        let second = contender_at(&data, point);
        assert_eq!(first.process.exit(), FENCED);
        overtaken_contender(&data, second, point, &old);
    }
}

/// The same with a list of files that are gone when it reads them.
#[test]
fn f01_a_contender_with_a_stale_list_is_fenced_and_not_damaged() {
    let (data, mut first, _, old) = led();
    let (raised, listed) = ("page.after-raise", "disk.after-list");
    let mut second = contender_at(&data, raised);
    assert_eq!(first.process.exit(), FENCED);
    second.script.pause_at(listed);
    second.wake(raised);
    second.wait_held(listed);
    overtaken_contender(&data, second, listed, &old);
}

/// FEN-01, FEN-10: an unlink and a trim that come after another one took over.
#[test]
fn f02_a_late_clean_up_harms_nobody() {
    let data = Data::new(&program());
    let leftover = data.log().join("tmp-0000000000000001-00000007.log");
    fs::write(&leftover, [0; 512]).expect("written");
    let (remove, trim) = ("disk.before-remove", "disk.before-trim");
    let script = Script::new();
    script.pause_at(remove);
    let mut first = data.launch(script, &[]);
    first.wait_held(remove);
    first.go_on();
    let mut first = Node::serving(first);
    let (kept, old) = (Save::new(), first.create(&Save::new()));
    first.create(&kept);
    let save = Save::new();
    // Keeps its process from ending before its clean-up has come.
    let append = "log.before-sync create";
    let waiting = first.hold_create(&save, append);

    // Its own clean-up is held up: what the first one removes is there still.
    let second = contender_at(&data, remove);
    second.go_on();
    let mut second = Node::serving(second);
    let made = second.create(&Save::new());
    second.delete(&old);
    assert!(leftover.exists());
    let oldest = data.log().join("seg-0000000000000001-00000000.log");
    let size = || oldest.metadata().expect("a segment").len();
    let before = size();

    first.process.script.pause_at(trim);
    first.process.wake(remove);
    first.process.wait_held(trim);
    assert!(!leftover.exists(), "removed late");
    assert_eq!(size(), before);
    first.process.wake(trim);
    poll("the late trim", || (size() < before).then_some(()));
    assert_unknown(first.wake(append, waiting));
    assert_eq!(first.process.exit(), FENCED);

    assert!(second.has(made.paste_id) && !second.has(old.paste_id));
    second.process.wake(remove);
    second.wait_clean(&data);
    second.create(&Save::new());
    second.process.kill();
    let third = Node::serving(data.launch(Script::new(), &[]));
    // The one that was kept, the two of the second leader, and the one whose outcome was unknown.
    assert_eq!(third.pastes(), 4);
    assert!(third.has(made.paste_id) && !third.has(old.paste_id));
    ask_again(&third, &kept, true);
    ask_again(&third, &save, true);
}

/// FEN-01: what proves the fence outlives restarts and clean-ups.
#[test]
fn f02_an_old_leader_is_refused_after_many_restarts() {
    let (data, mut first, _, old) = led();
    let point = "log.before-write create";
    let save = Save::new();
    let waiting = first.hold_create(&save, point);
    let mut made = vec![old];
    let mut last = take_over(&data);
    for _ in 0..3 {
        made.push(last.create(&Save::new()));
        last.wait_clean(&data);
        assert_eq!(last.process.terminate(), Some(0));
        last = take_over(&data);
    }
    last.wait_clean(&data);
    assert_unknown(first.wake(point, waiting));
    assert_eq!(first.process.exit(), FENCED);
    made.push(last.create(&Save::new()));
    last.process.kill();

    let next = Node::serving(data.launch(Script::new(), &[]));
    assert_eq!(next.pastes(), 5);
    assert!(made.iter().all(|paste| next.has(paste.paste_id)));
    ask_again(&next, &save, false);
}

/// FEN-09: a second process is a mistake unless it says otherwise, and the first one goes on.
#[test]
fn f01_a_second_process_needs_to_be_told_to_take_over() {
    let (data, mut first, _, old) = led();
    let (epoch, _) = first.status();
    let mut second = data.launch(Script::new(), &[]);
    assert_eq!(second.exit(), FENCED);
    let holder = format!("pid {}", first.process.pid());
    assert!(second.stderr().contains(&holder), "{}", second.stderr());
    assert!(first.has(old.paste_id));
    first.create(&Save::new());
    assert_eq!(first.status(), (epoch, 2));
    assert_eq!(first.process.terminate(), Some(0));
}

/// FEN-04: nobody has to ask it.
#[test]
fn f01_an_idle_old_leader_notices_by_itself() {
    let (data, mut first, _, _) = led();
    let (epoch, _) = first.status();
    let second = take_over(&data);
    assert_eq!(first.process.exit(), FENCED);
    assert!(second.status().0 > epoch);
    second.create(&Save::new());
}

/// A bit of the epoch page flips under a leader: it stops, and the next start makes the page good.
#[test]
fn d05_a_damaged_epoch_page_stops_its_leader_and_is_repaired() {
    let (data, mut first, old_save, old) = led();
    let (epoch, _) = first.status();
    let point = "log.after-sync create";
    let save = Save::new();
    let waiting = first.hold_create(&save, point);
    let page = data.path().join("shard-0/epoch");
    let page = OpenOptions::new().read(true).write(true).open(page);
    let page = page.expect("the page");
    // In place: it is mapped.
    let mut byte = [0];
    page.read_exact_at(&mut byte, 64).expect("the cell");
    page.write_all_at(&[byte[0] ^ 1], 64).expect("written");
    assert_unknown(first.wake(point, waiting));
    assert_eq!(first.process.exit(), FENCED);

    let mut second = Node::serving(data.launch(Script::new(), &[]));
    let said = second.process.stderr();
    assert!(said.contains("epoch_page_repaired"), "{said}");
    // Far above what a stopped contender may have raised it to.
    assert!(second.status().0 > epoch + (1 << 16));
    assert!(second.has(old.paste_id));
    assert!(matches!(second.begin(&old_save), Ok(Begun::Stored(_))));
    ask_again(&second, &save, true);
    assert_eq!(second.process.terminate(), Some(0));
    let third = Node::serving(data.launch(Script::new(), &[]));
    assert!(!third.process.stderr().contains("epoch_page_repaired"));
    assert_eq!(third.pastes(), 2);
}
