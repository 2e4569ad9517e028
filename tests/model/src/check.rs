//! Breadth-first search through all states, the invariants, and the shortest way to a violation.

use std::collections::{BTreeSet, HashSet, VecDeque};
use std::hash::{DefaultHasher, Hash, Hasher};

use crate::power;
use crate::protocol::{self, Label};
use crate::recovery::recover;
use crate::state::{State, Violation};
use crate::variants::Config;

/// A search that meets more states is a mistake in its configuration.
const STATES_MAX: usize = 3_000_000;

/// What a search found.
#[derive(Debug)]
pub struct Report {
    /// Different states, without those that a power loss leaves and in which nothing runs.
    pub states: usize,
    /// Steps between them.
    pub transitions: usize,
    /// States after a power loss that were looked at.
    pub outcomes: usize,
    /// Steps to the state that is farthest away.
    pub depth: u32,
    /// What the steps were called: whether the search went where it should.
    pub steps: BTreeSet<&'static str>,
    /// The first violation, which no shorter way leads to.
    pub found: Option<Found>,
}

/// A violation and the way to it.
#[derive(Debug)]
pub struct Found {
    /// What happened.
    pub violation: Violation,
    /// One line for each step.
    pub trace: Vec<String>,
}

/// Where a state was met first.
struct Node {
    parent: usize,
    /// Which of the parent's steps.
    step: usize,
    depth: u32,
}

/// Visits every state that `config` allows, until an invariant is violated.
///
/// States are told apart by 64 bits of their hash. Among half a million states two share one with a
/// probability of 1 in 100 million, and then one of them is not visited.
pub fn check(config: &Config) -> Report {
    check_for(config, |_| true)
}

/// The same, until a violation is met that is `wanted`. Others are passed over.
pub fn check_for(config: &Config, wanted: impl Fn(Violation) -> bool) -> Report {
    let mut search = Search {
        config,
        wanted: &wanted,
        nodes: Vec::new(),
        seen: HashSet::new(),
        frontier: VecDeque::new(),
        report: Report {
            states: 0,
            transitions: 0,
            outcomes: 0,
            depth: 0,
            steps: BTreeSet::new(),
            found: None,
        },
    };
    search.run();
    search.report
}

/// What is wrong in a state, whichever step led to it.
fn violated(config: &Config, state: &State) -> Option<Violation> {
    if state.violation.is_some() {
        return state.violation;
    }
    match recover(config, state) {
        Err(damage) => Some(Violation::CalledDamaged(damage)),
        Ok(recovered) => (!recovered.contains(state.answered)).then_some(Violation::Lost),
    }
}

struct Search<'a> {
    config: &'a Config,
    wanted: &'a dyn Fn(Violation) -> bool,
    nodes: Vec<Node>,
    seen: HashSet<u64>,
    frontier: VecDeque<(usize, State)>,
    report: Report,
}

impl Search<'_> {
    fn run(&mut self) {
        let initial = State::initial(self.config);
        self.visit(initial, 0, 0, 0);
        while let Some((at, state)) = self.frontier.pop_front() {
            let depth = self.nodes[at].depth + 1;
            for (step, (label, next)) in
                protocol::steps(self.config, &state).into_iter().enumerate()
            {
                self.report.transitions += 1;
                self.report.steps.insert(label.what());
                let ends_here = label == Label::POWER_LOSS && !power::leaves_processes(&next);
                if ends_here {
                    self.report.outcomes += 1;
                    if let Some(violation) = self.violated(&next) {
                        self.report_violation(violation, at, step);
                    }
                } else {
                    self.visit(next, at, step, depth);
                }
                if self.report.found.is_some() {
                    return;
                }
            }
        }
    }

    fn violated(&self, state: &State) -> Option<Violation> {
        violated(self.config, state).filter(|&violation| (self.wanted)(violation))
    }

    fn visit(&mut self, mut state: State, parent: usize, step: usize, depth: u32) {
        let mut hasher = DefaultHasher::new();
        state.hash(&mut hasher);
        if !self.seen.insert(hasher.finish()) {
            return;
        }
        let at = self.nodes.len();
        assert!(at < STATES_MAX, "the configuration is too large");
        self.nodes.push(Node {
            parent,
            step,
            depth,
        });
        self.report.states += 1;
        self.report.depth = depth;
        match self.violated(&state) {
            Some(violation) => self.report_violation(violation, parent, step),
            None => {
                state.violation = None;
                self.frontier.push_back((at, state));
            }
        }
    }

    /// Takes the steps to `parent` and then `step` once more, now with their descriptions.
    fn report_violation(&mut self, violation: Violation, parent: usize, step: usize) {
        let mut way = vec![step];
        let mut at = parent;
        while at != 0 {
            way.push(self.nodes[at].step);
            at = self.nodes[at].parent;
        }
        let mut state = State::initial(self.config);
        let mut trace = Vec::new();
        for step in way.into_iter().rev() {
            let (label, next) = protocol::steps(self.config, &state).swap_remove(step);
            trace.push(label.describe(&state, &next));
            state = next;
            state.violation = None;
        }
        self.report.found = Some(Found { violation, trace });
    }
}
