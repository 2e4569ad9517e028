//! Whether calls can be put into one order that explains all answers.
//!
//! The search is that of Wing and Gong ("Testing and verifying concurrent objects", 1993) with the
//! memory of Lowe ("Testing for linearizability", 2017): a call may come next if no other one that is
//! left returned before it was invoked; a set of calls that was placed before, with the same state
//! after it, need not be tried again.
//!
//! Two things keep long histories cheap. A call that only looks, at a state that it may have seen,
//! comes next, and nothing else is tried in its place: in whatever order there is, it can be moved up
//! to here without being noticed. And of the calls that were placed only those behind the first one
//! that was not are remembered, which is as many as overlap.

use std::collections::HashSet;
use std::hash::Hash;

/// What calls do to the state of one thing.
pub(crate) trait Model {
    type State: Clone + Eq + Hash;
    type Op;

    /// The state after a call that was answered so; `None` if it cannot have been.
    fn step(&self, state: &Self::State, op: &Self::Op) -> Option<Self::State>;

    /// Whether a call leaves every state as it is. Not one that happens to leave this one.
    fn only_looks(&self, op: &Self::Op) -> bool;
}

/// One call.
#[derive(Debug, Clone)]
pub(crate) struct Event<O> {
    pub(crate) invoked: u64,
    /// `None`: it may have taken effect at any time after it was invoked, or never.
    pub(crate) returned: Option<u64>,
    pub(crate) op: O,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Order {
    Exists,
    Impossible,
    /// The search was given up.
    Unknown,
}

/// Whether there is an order, after at most `budget` calls tried.
pub(crate) fn order<M: Model>(
    model: &M,
    start: M::State,
    events: &[Event<M::Op>],
    budget: usize,
) -> Order {
    let (mut required, mut optional) = (Vec::new(), Vec::new());
    for event in events {
        match event.returned {
            Some(returned) => required.push((event.invoked, returned, &event.op)),
            None => optional.push((event.invoked, &event.op)),
        }
    }
    required.sort_by_key(|&(invoked, returned, _)| (invoked, returned));
    optional.sort_by_key(|&(invoked, _)| invoked);
    // No call may come before one that returned before it was invoked: behind the first call that is
    // left, those that are invoked after the earliest return of what is left.
    let mut earliest = vec![u64::MAX; required.len() + 1];
    for (at, &(_, returned, _)) in required.iter().enumerate().rev() {
        earliest[at] = earliest[at + 1].min(returned);
    }
    let search = Search {
        model,
        required,
        optional,
        earliest,
        budget,
    };
    search.run(start)
}

/// What was placed.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
struct Placed {
    /// All required calls before this one, and it is not.
    first: usize,
    /// Required calls behind it, in their order.
    ahead: Vec<usize>,
    /// Calls with an unknown outcome that have taken effect, in their order.
    taken: Vec<usize>,
}

struct Search<'a, M: Model> {
    model: &'a M,
    /// With their invocations and returns, by invocation.
    required: Vec<(u64, u64, &'a M::Op)>,
    /// Those that need not have happened, by invocation.
    optional: Vec<(u64, &'a M::Op)>,
    /// Of each required call and those behind it, the earliest return.
    earliest: Vec<u64>,
    budget: usize,
}

/// A way to go on.
type Branch<M> = (Placed, <M as Model>::State);

impl<M: Model> Search<'_, M> {
    fn run(mut self, start: M::State) -> Order {
        let nothing = Placed {
            first: 0,
            ahead: Vec::new(),
            taken: Vec::new(),
        };
        let mut seen = HashSet::new();
        // A stack of its own: a history may be longer than a thread's stack is deep.
        let mut open: Vec<Branch<M>> = vec![(nothing, start)];
        while let Some((placed, state)) = open.pop() {
            if placed.first == self.required.len() {
                return Order::Exists;
            }
            if !seen.insert((placed.clone(), state.clone())) {
                continue;
            }
            if !self.go_on(&placed, &state, &mut open) {
                return Order::Unknown;
            }
        }
        Order::Impossible
    }

    /// Adds all ways to go on; `false` if the search is over its budget.
    fn go_on(&mut self, placed: &Placed, state: &M::State, open: &mut Vec<Branch<M>>) -> bool {
        let first_return = self.first_return(placed);
        let from = open.len();
        for at in placed.first..self.required.len() {
            let (invoked, _, op) = self.required[at];
            if invoked > first_return {
                break;
            }
            if placed.ahead.binary_search(&at).is_ok() {
                continue;
            }
            let Some(left) = self.budget.checked_sub(1) else {
                return false;
            };
            self.budget = left;
            let Some(next) = self.model.step(state, op) else {
                continue;
            };
            if self.model.only_looks(op) {
                open.truncate(from);
                open.push((placed.with(at), next));
                return true;
            }
            open.push((placed.with(at), next));
        }
        for (at, &(invoked, op)) in self.optional.iter().enumerate() {
            if invoked > first_return {
                break;
            }
            if placed.taken.binary_search(&at).is_ok() {
                continue;
            }
            let Some(left) = self.budget.checked_sub(1) else {
                return false;
            };
            self.budget = left;
            // One that changes nothing might as well not have happened.
            if let Some(next) = self.model.step(state, op).filter(|next| next != state) {
                let mut placed = placed.clone();
                let place = placed.taken.partition_point(|&taken| taken < at);
                placed.taken.insert(place, at);
                open.push((placed, next));
            }
        }
        // The one on top is tried first: the order in which they were asked is the likeliest.
        open[from..].reverse();
        true
    }

    /// The earliest return of the required calls that are left.
    fn first_return(&self, placed: &Placed) -> u64 {
        let mut first = u64::MAX;
        let mut ahead = placed.ahead.iter().copied().peekable();
        for at in placed.first..self.required.len() {
            if ahead.peek().is_none() {
                return first.min(self.earliest[at]);
            }
            if ahead.next_if_eq(&at).is_none() {
                first = first.min(self.required[at].1);
            }
        }
        first
    }
}

impl Placed {
    /// With one more of the required calls.
    fn with(&self, at: usize) -> Self {
        let mut placed = self.clone();
        if at == placed.first {
            placed.first += 1;
            let row = placed.ahead.iter().enumerate();
            let joins = row
                .take_while(|&(count, &ahead)| ahead == self.first + 1 + count)
                .count();
            placed.first += joins;
            placed.ahead.drain(..joins);
        } else {
            let place = placed.ahead.partition_point(|&ahead| ahead < at);
            placed.ahead.insert(place, at);
        }
        placed
    }
}

#[cfg(test)]
mod tests;
