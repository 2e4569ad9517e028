//! What runs are made of.

use ostraca_io::{SeededEntropy, Unsynced};

/// How much is appended.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Load {
    /// A sector.
    One,
    /// Three records, some sectors.
    Few,
    /// Three of these do not fit a segment.
    Big,
}

/// What a run is made of.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Step {
    /// Append, sync, answer.
    Append(Load),
    /// Append only. The next step of this leader syncs and answers.
    Leave(Load),
    Mark,
    /// Prepare a segment if one is wanted, and install it.
    Prepare,
    CleanUp,
    /// Kill the leader; the next process takes over.
    Kill,
    /// The power goes; the next process takes over.
    Cut(Unsynced),
    /// A process beside the leader takes over. The old one appends after the raise, or after the
    /// reading, or goes on with what it left.
    Beside {
        after_raise: Option<Load>,
        after_read: Option<Load>,
    },
    /// The one that was replaced last goes on.
    Stale(Load),
    /// A checkpoint of everything, and what it covers goes.
    Purge,
    /// The next sync fails.
    FailSync,
    /// The next write fails.
    FailWrite,
    /// Nothing may grow, until that was met.
    Full,
    /// The kernel forgets what it holds for clean.
    Evict,
}

/// Small batches, marks, rests.
pub(super) const SMALL_BATCHES: &[Step] = &[
    Step::Append(Load::One),
    Step::Append(Load::Few),
    Step::Mark,
    Step::Append(Load::Few),
    Step::Leave(Load::One),
    Step::Mark,
    Step::Leave(Load::Few),
];

/// Large ones that roll, with a segment prepared ahead and without.
pub(super) const ROLLS: &[Step] = &[
    Step::Append(Load::Big),
    Step::Append(Load::Big),
    Step::Prepare,
    Step::Append(Load::Big),
    Step::Append(Load::One),
    Step::Mark,
    Step::Append(Load::Big),
    Step::Leave(Load::Big),
    Step::Append(Load::Few),
];

/// Restarts in a row with clean-ups, which cut off and remove, and a purge.
pub(super) const RESTARTS: &[Step] = &[
    Step::CleanUp,
    Step::Append(Load::Few),
    Step::Kill,
    Step::CleanUp,
    Step::Leave(Load::Few),
    Step::Kill,
    Step::Append(Load::One),
    Step::CleanUp,
    Step::Kill,
    Step::Kill,
    Step::CleanUp,
    Step::Append(Load::One),
    Step::Purge,
    Step::Append(Load::One),
    Step::Kill,
    Step::CleanUp,
];

/// Take-overs beside a leader that goes on appending until it is refused, and after that.
pub(super) const TAKE_OVERS: &[Step] = &[
    Step::Append(Load::One),
    Step::Leave(Load::Few),
    Step::Beside {
        after_raise: Some(Load::One),
        after_read: None,
    },
    Step::Stale(Load::One),
    Step::Append(Load::One),
    Step::Beside {
        after_raise: Some(Load::Few),
        after_read: Some(Load::One),
    },
    Step::Stale(Load::Few),
    Step::CleanUp,
    Step::Append(Load::One),
    Step::Mark,
    Step::Beside {
        after_raise: None,
        after_read: Some(Load::Few),
    },
    Step::CleanUp,
    Step::Stale(Load::One),
    Step::Append(Load::One),
];

pub(super) const WORKLOADS: [(&str, &[Step]); 4] = [
    ("small batches", SMALL_BATCHES),
    ("rolls", ROLLS),
    ("restarts", RESTARTS),
    ("take-overs", TAKE_OVERS),
];

/// A run that any seed gives, with every kind of step.
pub(super) fn any_steps(seed: u64, count: usize) -> Vec<Step> {
    let chance = SeededEntropy::new(seed ^ 0x05_7e_95);
    let load = || match chance.below(5) {
        0..2 => Load::One,
        2..4 => Load::Few,
        _ => Load::Big,
    };
    let perhaps = || (chance.below(2) == 0).then(load);
    let fate = || Unsynced::ALL[usize::try_from(chance.below(4)).expect("small")];
    let step = |_| match chance.below(40) {
        0..12 => Step::Append(load()),
        12..16 => Step::Leave(load()),
        16..18 => Step::Mark,
        18..21 => Step::Prepare,
        21..24 => Step::CleanUp,
        24..27 => Step::Kill,
        27 => Step::Cut(fate()),
        28..31 => Step::Beside {
            after_raise: perhaps(),
            after_read: perhaps(),
        },
        31..34 => Step::Stale(load()),
        34 => Step::Purge,
        35 => Step::FailSync,
        36 => Step::FailWrite,
        37 => Step::Full,
        _ => Step::Evict,
    };
    (0..count).map(step).collect()
}
