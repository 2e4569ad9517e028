use super::*;

use proptest::prelude::*;

/// A register that can be set once and cleared, as a key is, and read.
struct Once;

#[derive(Debug, Clone, Copy)]
enum Op {
    Set(u8),
    Conflict,
    Clear,
    Read(Option<u8>),
}

impl Model for Once {
    type State = Option<u8>;
    type Op = Op;

    fn step(&self, state: &Option<u8>, op: &Op) -> Option<Option<u8>> {
        match (*op, *state) {
            (Op::Set(value), None) => Some(Some(value)),
            (Op::Set(value), Some(held)) => (value == held).then_some(*state),
            (Op::Conflict, held) => held.is_some().then_some(held),
            (Op::Clear, held) => held.is_some().then_some(None),
            (Op::Read(seen), held) => (seen == held).then_some(held),
        }
    }

    fn only_looks(&self, op: &Op) -> bool {
        matches!(op, Op::Conflict | Op::Read(_))
    }
}

/// All orders of all choices of what happened.
fn exists(events: &[Event<Op>]) -> bool {
    fn go(events: &[Event<Op>], used: &mut Vec<usize>, state: Option<u8>) -> bool {
        let left = |at: &usize| !used.contains(at);
        let rest: Vec<usize> = (0..events.len()).filter(left).collect();
        if rest.iter().all(|&at| events[at].returned.is_none()) {
            return true;
        }
        rest.iter().any(|&at| {
            let early = rest.iter().any(|&other| {
                events[other]
                    .returned
                    .is_some_and(|returned| returned < events[at].invoked)
            });
            let Some(next) = Once.step(&state, &events[at].op).filter(|_| !early) else {
                return false;
            };
            used.push(at);
            let found = go(events, used, next);
            used.pop();
            found
        })
    }
    go(events, &mut Vec::new(), None)
}

fn op() -> impl Strategy<Value = Op> {
    prop_oneof![
        (0..2u8).prop_map(Op::Set),
        Just(Op::Conflict),
        Just(Op::Clear),
        proptest::option::of(0..2u8).prop_map(Op::Read),
    ]
}

fn event() -> impl Strategy<Value = Event<Op>> {
    // Few instants, so that many calls overlap or touch.
    (0..10u64, proptest::option::weighted(0.75, 0..5u64), op()).prop_map(|(invoked, takes, op)| {
        Event {
            invoked,
            returned: takes.map(|takes| invoked + takes),
            op,
        }
    })
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(4_000))]

    /// Goal: the search finds an order if and only if there is one.
    /// Method: tiny histories, of which every order is tried.
    #[test]
    fn the_search_agrees_with_trying_every_order(events in proptest::collection::vec(event(), 0..7)) {
        let expected = if exists(&events) { Order::Exists } else { Order::Impossible };
        prop_assert_eq!(order(&Once, None, &events, 1_000_000), expected);
    }
}

fn event_at(invoked: u64, returned: Option<u64>, op: Op) -> Event<Op> {
    Event {
        invoked,
        returned,
        op,
    }
}

#[test]
fn a_read_of_an_unknown_write_is_explained_by_it() {
    let unknown = event_at(0, None, Op::Set(1));
    let early = event_at(1, Some(2), Op::Read(None));
    let late = event_at(3, Some(4), Op::Read(Some(1)));
    let events = [unknown, early, late.clone()];
    assert_eq!(order(&Once, None, &events, 100), Order::Exists);
    assert_eq!(order(&Once, None, &[late], 100), Order::Impossible);
}

/// Goal: a paste that is read for as long as a run lasts is no burden.
/// Method: the work allowed is the calls and a little more; a thread's stack would not hold the depth.
#[test]
fn a_long_history_takes_a_step_a_call() {
    let reads = 200_000;
    let mut events = vec![event_at(0, Some(1), Op::Set(1))];
    events.extend((0..reads).map(|at| event_at(2 + at, Some(40 + at), Op::Read(Some(1)))));
    events.push(event_at(reads, Some(reads + 50), Op::Clear));
    events.push(event_at(reads + 60, Some(reads + 61), Op::Read(None)));
    let budget = events.len() + 1000;
    assert_eq!(order(&Once, None, &events, budget), Order::Exists);
}

#[test]
fn a_search_over_its_budget_is_given_up() {
    // All at once, and no order: every choice of those that come first must be tried.
    let mut events: Vec<_> = (0..12)
        .map(|at| {
            event_at(
                0,
                Some(9),
                if at % 2 == 0 { Op::Set(at) } else { Op::Clear },
            )
        })
        .collect();
    events.push(event_at(10, Some(11), Op::Read(Some(200))));
    assert_eq!(order(&Once, None, &events, 100), Order::Unknown);
    assert_eq!(order(&Once, None, &events, 10_000_000), Order::Impossible);
}
