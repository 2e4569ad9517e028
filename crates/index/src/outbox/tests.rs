use ostraca_types::{PasteId, Slot};

use super::*;
use crate::EndCause;

const START: Timestamp = Timestamp(1_000_000);
const VISIBILITY: Duration = Duration::from_secs(30);
const HOUR: Duration = Duration::from_secs(3600);

fn row(n: u8) -> ReadyRow {
    let slot = Slot(n);
    ReadyRow {
        outbox_id: OutboxId::from_parts(slot, &[n.min(100); 15]).expect("in range"),
        paste_id: PasteId::mint(slot, |bytes| bytes.fill(n)),
        ended_at: START.plus(Duration::from_millis(n.into())),
        cause: EndCause::Deleted,
    }
}

fn outbox(rows: u8) -> Outbox {
    let mut outbox = Outbox::new();
    (0..rows).for_each(|n| outbox.ended(row(n)));
    outbox
}

fn deliver(outbox: &mut Outbox, max: usize, now: Timestamp) -> Vec<Delivery> {
    let purge = ConsumerName::purge();
    outbox
        .deliver(&purge, max, VISIBILITY, 7, Epoch(1), now)
        .expect("registered")
}

fn ack(outbox: &mut Outbox, delivery: &Delivery) -> Settled {
    outbox
        .ack(&ConsumerName::purge(), delivery.id)
        .expect("registered")
}

fn nack(outbox: &mut Outbox, delivery: &Delivery, now: Timestamp) -> Settled {
    outbox
        .nack(&ConsumerName::purge(), delivery.id, None, "no", 9, now)
        .expect("registered")
}

/// When everything of [`outbox`] has ended.
const NOW: Timestamp = Timestamp(START.0 + 1000);

#[test]
fn o01_o03_an_unacked_message_comes_again_under_its_id() {
    let mut outbox = outbox(2);
    let first = deliver(&mut outbox, 10, NOW);
    assert_eq!(
        first.iter().map(|one| one.row).collect::<Vec<_>>(),
        [row(0), row(1)]
    );
    assert_eq!(deliver(&mut outbox, 10, NOW), [], "both are in flight");
    assert_eq!(ack(&mut outbox, &first[0]), Settled::Done);
    // Visibility, and one backoff of at most a second.
    let later = NOW.plus(VISIBILITY + BACKOFF_MIN);
    let again = deliver(&mut outbox, 10, later);
    assert_eq!(again.len(), 1);
    assert_eq!((again[0].row, again[0].id.attempt), (row(1), 2));
    assert_eq!(outbox.counts().ready, 1);
}

#[test]
fn o02_a_late_ack_or_nack_changes_nothing_about_a_newer_attempt() {
    let mut outbox = outbox(1);
    let first = deliver(&mut outbox, 1, NOW)[0];
    let later = NOW.plus(HOUR);
    let second = deliver(&mut outbox, 1, later)[0];
    assert_eq!(ack(&mut outbox, &first), Settled::Stale);
    assert_eq!(nack(&mut outbox, &first, later), Settled::Stale);
    let extended = outbox.extend(&ConsumerName::purge(), first.id, VISIBILITY, later);
    assert_eq!(extended, Some(Settled::Stale));
    // The same number from another leader is another attempt.
    let mut foreign = second;
    foreign.id.epoch = Epoch(9);
    assert_eq!(ack(&mut outbox, &foreign), Settled::Stale);
    assert_eq!(ack(&mut outbox, &second), Settled::Done);
    assert_eq!(ack(&mut outbox, &second), Settled::Gone);
    assert_eq!(outbox.counts().ready, 0);
}

#[test]
fn o04_a_failing_message_backs_off_and_is_given_up_after_count_and_time() {
    let mut outbox = outbox(1);
    let mut now = NOW;
    let mut attempts = 0;
    let mut longest = Duration::ZERO;
    let dead = loop {
        let delivered = deliver(&mut outbox, 1, now);
        if let Some(delivery) = delivered.first() {
            attempts += 1;
            nack(&mut outbox, delivery, now);
        }
        let purge = ConsumerName::purge();
        if let Some(dead) = outbox
            .dead_letters(&purge, None, 10, now)
            .expect("registered")
            .pop()
        {
            break dead;
        }
        let due = outbox.next_due(&purge).expect("it comes again");
        longest = longest.max(due.since(now));
        now = due;
    };
    assert!(attempts >= ATTEMPTS_MIN, "{attempts}");
    assert!(
        now.since(NOW) >= ATTEMPTS_TIME_MIN,
        "an outage of an hour gives nothing up"
    );
    assert!(
        longest <= BACKOFF_MAX && longest > BACKOFF_MAX / 2,
        "{longest:?}"
    );
    assert_eq!((&*dead.last_error, dead.attempts), ("no", attempts));
    assert_eq!(deliver(&mut outbox, 1, now.plus(HOUR)), []);
    assert_eq!(outbox.counts().dead, 1);
}

#[test]
fn o04_attempts_that_time_out_are_given_up_as_well() {
    let mut outbox = outbox(1);
    let mut now = NOW;
    for attempt in 1.. {
        let delivered = deliver(&mut outbox, 1, now);
        if delivered.is_empty() {
            assert!(attempt > ATTEMPTS_MIN);
            break;
        }
        now = now.plus(HOUR);
    }
    assert_eq!(outbox.counts().dead, 1);
}

#[test]
fn o05_a_replay_starts_count_and_clock_anew_and_keeps_the_id() {
    let mut outbox = outbox(1);
    let mut now = NOW;
    while outbox.counts().dead == 0 {
        deliver(&mut outbox, 1, now);
        now = now.plus(HOUR);
    }
    let purge = ConsumerName::purge();
    assert_eq!(outbox.replay(&purge, row(9).outbox_id, now), Some(false));
    assert_eq!(outbox.replay(&purge, row(0).outbox_id, now), Some(true));
    assert_eq!(outbox.replay(&purge, row(0).outbox_id, now), Some(false));
    let again = deliver(&mut outbox, 1, now)[0];
    assert_eq!(again.row.outbox_id, row(0).outbox_id);
    assert!(
        again.id.attempt > ATTEMPTS_MIN,
        "attempts are numbered over the whole life"
    );
    nack(&mut outbox, &again, now.plus(ATTEMPTS_TIME_MIN));
    assert_eq!(
        outbox.counts().dead,
        0,
        "one failure after a replay gives nothing up"
    );
}

#[test]
fn o02_a_replay_makes_the_handles_before_it_void() {
    let mut outbox = outbox(1);
    let (mut now, mut last) = (NOW, None);
    while outbox.counts().dead == 0 {
        last = deliver(&mut outbox, 1, now).pop().or(last);
        now = now.plus(HOUR);
    }
    let last = last.expect("an attempt");
    assert_eq!(
        nack(&mut outbox, &last, now),
        Settled::Stale,
        "it is given up already"
    );
    assert_eq!(
        outbox.counts().oldest,
        None,
        "a dead letter is nobody's work"
    );
    let purge = ConsumerName::purge();
    assert_eq!(outbox.replay(&purge, last.row.outbox_id, now), Some(true));
    assert_eq!(nack(&mut outbox, &last, now), Settled::Stale);
    assert_eq!(ack(&mut outbox, &last), Settled::Stale);
    assert_eq!(deliver(&mut outbox, 1, now).len(), 1, "the replay stands");
}

#[test]
fn o02_what_was_never_delivered_cannot_be_acked() {
    let mut outbox = outbox(1);
    let never = AttemptId {
        outbox_id: row(0).outbox_id,
        epoch: Epoch(0),
        attempt: 0,
    };
    let purge = ConsumerName::purge();
    assert_eq!(outbox.ack(&purge, never), Some(Settled::Stale));
    assert_eq!(deliver(&mut outbox, 1, NOW).len(), 1);
}

/// Twelve failures within an hour, then nobody works for a night.
#[test]
fn o04_time_in_which_nobody_tried_gives_nothing_up() {
    let mut outbox = outbox(1);
    let mut now = NOW;
    for _ in 0..ATTEMPTS_MIN {
        let delivery = deliver(&mut outbox, 1, now)[0];
        nack(&mut outbox, &delivery, now);
        let due = outbox.next_due(&ConsumerName::purge());
        now = due.expect("it comes again").max(now);
    }
    assert!(now.since(NOW) < ATTEMPTS_TIME_MIN);
    let delivered = deliver(&mut outbox, 1, now.plus(HOUR * 8));
    assert_eq!(delivered.len(), 1, "it is tried");
}

#[test]
fn o05_a_message_over_its_age_is_gone_and_counted() {
    let mut outbox = outbox(2);
    let first = deliver(&mut outbox, 1, NOW)[0];
    let age = OUTBOX_RETENTION;
    let at = first.row.ended_at.plus(age);
    let before = Timestamp(at.0 - 1);
    outbox.purge(before, 10);
    assert_eq!(outbox.counts().ready, 2);
    assert_eq!(
        deliver(&mut outbox, 1, at).len(),
        1,
        "the younger one, by a millisecond"
    );
    outbox.purge(at, 10);
    assert_eq!((outbox.counts().ready, outbox.counts().dropped), (1, 1));
    assert_eq!(ack(&mut outbox, &first), Settled::Gone);
}

#[test]
fn o06_consumers_do_not_wait_for_each_other() {
    let mut outbox = Outbox::new();
    let mirror = ConsumerName::parse("mirror").expect("a name");
    outbox.ended(row(0));
    assert!(outbox.register(&mirror));
    outbox.ended(row(1));
    // One registered later sees the ends from then on.
    let other = outbox
        .deliver(&mirror, 10, VISIBILITY, 7, Epoch(1), NOW)
        .expect("registered");
    assert_eq!(
        other.iter().map(|one| one.row).collect::<Vec<_>>(),
        [row(1)]
    );
    assert_eq!(outbox.ack(&mirror, other[0].id), Some(Settled::Done));
    assert_eq!(outbox.counts().ready, 2, "purge has seen neither");
    for delivery in deliver(&mut outbox, 10, NOW) {
        assert_eq!(ack(&mut outbox, &delivery), Settled::Done);
    }
    assert_eq!(outbox.counts().ready, 0);
    let nobody = ConsumerName::parse("nobody").expect("a name");
    assert_eq!(
        outbox.deliver(&nobody, 1, VISIBILITY, 7, Epoch(1), NOW),
        None
    );
}

/// OUT-10: a failing message steps aside.
#[test]
fn o06_a_failing_message_does_not_block_the_others() {
    let mut outbox = outbox(3);
    let first = deliver(&mut outbox, 1, NOW)[0];
    nack(&mut outbox, &first, NOW);
    let purge = ConsumerName::purge();
    let delayed = outbox.nack(&purge, first.id, Some(HOUR), "no", 9, NOW);
    assert_eq!(delayed, Some(Settled::Done));
    let rows: Vec<_> = deliver(&mut outbox, 10, NOW)
        .iter()
        .map(|one| one.row)
        .collect();
    assert_eq!(rows, [row(1), row(2)]);
}

#[test]
fn an_extension_keeps_the_attempt() {
    let mut outbox = outbox(1);
    let first = deliver(&mut outbox, 1, NOW)[0];
    let purge = ConsumerName::purge();
    let extended = outbox.extend(&purge, first.id, HOUR, NOW.plus(VISIBILITY));
    assert_eq!(extended, Some(Settled::Done));
    assert_eq!(deliver(&mut outbox, 1, NOW.plus(HOUR)), []);
    assert_eq!(ack(&mut outbox, &first), Settled::Done);
}

#[test]
fn backoff_is_spread_over_its_range() {
    let spread: BTreeSet<_> = (0..100).map(|n| backoff(20, 5, row(n).outbox_id)).collect();
    assert!(spread.len() > 90);
    assert!(spread.iter().all(|one| *one <= BACKOFF_MAX));
    assert!(spread.last() > Some(&(BACKOFF_MAX * 9 / 10)));
    assert!(spread.first() < Some(&(BACKOFF_MAX / 10)));
    let first: BTreeSet<_> = (0..100).map(|n| backoff(1, 5, row(n).outbox_id)).collect();
    assert!(first.iter().all(|one| *one <= BACKOFF_MIN));
}
