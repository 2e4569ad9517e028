//! A healthy history gives no finding; with one thing planted in it, exactly that is found.

mod healthy;
mod plants;

use std::collections::BTreeSet;

use ostraca_checker::{EffectKind, Kind, Limits, Told, check};

use healthy::{DAY, DELETED, EXPIRED, LIVES, READ_LATE, healthy};
use plants::{forget, late, plants};

/// Every step of every worker is in the ledger.
fn limits() -> Limits {
    Limits {
        workers_known: true,
        ..Limits::default()
    }
}

#[test]
fn a_healthy_history_has_no_finding() {
    let h = healthy();
    assert!(h.ledger.calls.len() >= 60, "{} calls", h.ledger.calls.len());
    let verdict = check(&h.ledger, &h.store, &limits());
    assert!(verdict.is_good(), "{verdict}");
}

/// Goal: each thing that can be wrong is found, and nothing else is.
/// Method: a change to the healthy history for each; what shows it must be named.
#[test]
fn what_is_planted_is_found_and_only_that() {
    let mut failures = String::new();
    for &kind in Kind::ALL {
        assert!(
            kind == Kind::Undecided || !plants(kind).is_empty(),
            "{kind:?} is not planted"
        );
        for (name, plant) in plants(kind) {
            let mut h = healthy();
            let shown = plant(&mut h);
            let verdict = check(&h.ledger, &h.store, &limits());
            let found: Vec<_> = verdict
                .findings
                .iter()
                .map(|finding| finding.kind)
                .collect();
            let names = |all: &[usize], some: &[usize]| {
                let all: BTreeSet<_> = all.iter().collect();
                some.iter().all(|at| all.contains(at))
            };
            let good = found == [kind]
                && names(&verdict.findings[0].calls, &shown.calls)
                && names(&verdict.findings[0].effects, &shown.effects);
            if !good {
                let (calls, effects) = (shown.calls, shown.effects);
                failures += &format!(
                    "{kind:?}, {name}: calls {calls:?} and effects {effects:?} of\n{verdict}\n"
                );
            }
        }
    }
    assert!(failures.is_empty(), "{failures}");
}

/// The late reader's copy may be served for a while (r06), and that is no finding.
#[test]
fn a_copy_of_an_answer_on_its_way_is_not_left_over() {
    let mut h = healthy();
    let read = h.find(&READ_LATE.get(), |_| true);
    let end = h.ledger.calls.iter().map(|call| call.returned).max();
    h.ledger.calls[read].returned = end.expect("calls");
    h.store.cached.insert(READ_LATE.paste());
    let verdict = check(&h.ledger, &h.store, &limits());
    assert!(verdict.is_good(), "{verdict}");
}

/// Goal: what the contract lets go of after its time is not asked for.
/// Method: a copy of a message does nothing at seven days; two days later keys, messages and the inbox
/// are gone, and it begins anew.
#[test]
fn what_is_over_is_no_finding() {
    let mut h = healthy();
    forget(&mut h, DELETED);
    h.now += 7 * DAY;
    h.call(EXPIRED.look(), Told::Contained(true));
    h.call(EXPIRED.ack(), Told::Settled(false));
    h.now += 2 * DAY;
    h.call(EXPIRED.look(), Told::Contained(false));
    h.effect(EffectKind::ObjectDeleted, EXPIRED);
    h.effect(EffectKind::EdgePurged, EXPIRED);
    h.call(EXPIRED.record(), Told::Recorded { first: true });
    h.call(EXPIRED.ack(), Told::Settled(false));
    h.get(LIVES);
    h.store.inbox.clear();
    h.store.keys.clear();
    h.end();
    let verdict = check(&h.ledger, &h.store, &limits());
    assert!(verdict.is_good(), "{verdict}");
}

/// What has not come to its end has no message yet that anybody saw.
#[test]
fn before_everything_converged_a_message_may_be_on_its_way() {
    let mut h = healthy();
    forget(&mut h, EXPIRED);
    let limits = Limits {
        converged: false,
        ..limits()
    };
    let verdict = check(&h.ledger, &h.store, &limits);
    assert!(verdict.is_good(), "{verdict}");
}

/// A shard that could not be read at the end proves nothing.
#[test]
fn what_could_not_be_read_is_not_judged() {
    let mut h = healthy();
    h.store.shards.clear();
    h.store.pastes.clear();
    h.store.keys.clear();
    h.store.inbox.clear();
    let verdict = check(&h.ledger, &h.store, &limits());
    assert!(verdict.is_good(), "{verdict}");
}

#[test]
fn a_search_that_is_given_up_says_so() {
    let h = healthy();
    let limits = Limits {
        search_max: 1,
        ..limits()
    };
    let verdict = check(&h.ledger, &h.store, &limits);
    assert!(!verdict.is_good());
    for finding in &verdict.findings {
        assert_eq!(finding.kind, Kind::Undecided, "{verdict}");
        assert!(!finding.calls.is_empty(), "{verdict}");
    }
}

#[test]
fn evidence_is_in_the_order_of_time() {
    let mut h = healthy();
    late(&mut h, EffectKind::EdgePurged);
    let verdict = check(&h.ledger, &h.store, &limits());
    let finding = verdict.findings.first().expect("it is found");
    let times: Vec<f64> = (finding.evidence.iter())
        .map(|line| line.split([' ', ':']).next().unwrap_or_default())
        .map(|time| time.parse().expect("a time"))
        .collect();
    assert!(times.len() >= 3 && times.is_sorted(), "{verdict}");
}

#[test]
fn neither_keys_nor_tokens_are_in_a_verdict() {
    let mut h = healthy();
    let plant = plants(Kind::AnswerChanged)[0].1;
    plant(&mut h);
    let text = check(&h.ledger, &h.store, &limits()).to_string();
    let whole: String = [77; 32]
        .iter()
        .map(|byte: &u8| format!("{byte:02x}"))
        .collect();
    assert!(
        text.contains(&whole[..10]) && !text.contains(&whole),
        "{text}"
    );
}
