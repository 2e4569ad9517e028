//! The protocol holds in every state of several scopes, and fails once a step of it is missing.

use std::collections::BTreeSet;

use ostraca_model::check::{Report, check, check_for};
use ostraca_model::state::Violation;
use ostraca_model::variants::Variant::*;
use ostraca_model::variants::{Budget, Config, Variant};

const DOCUMENT: &str = include_str!("../../../docs/fence.md");

const fn budget(appends: u8, rolls: u8, checkpoints: u8) -> Budget {
    Budget {
        appends,
        rolls,
        checkpoints,
    }
}

/// Takes over and serves, and that is all.
const NOTHING: Budget = budget(0, 0, 0);
const APPEND: Budget = budget(1, 0, 0);
const NEXT: Config = Config::SMALLEST;

/// Three leaders of one log, with everything that can go wrong with files.
const LOG: Config = Config {
    processes: &[budget(2, 0, 0), APPEND, APPEND],
    batch_records: 2,
    power_losses: 1,
    sync_failures: 1,
    trims: true,
    hints: true,
    ..NEXT
};

/// Three that all start in an empty directory.
const EMPTY: Config = Config {
    processes: &[APPEND, APPEND, NOTHING],
    first_leads: false,
    power_losses: 1,
    sync_failures: 1,
    ..NEXT
};

/// The old leader rolls, the new one gives disk back.
const ROLL: Config = Config {
    processes: &[budget(2, 1, 0), APPEND, NOTHING],
    power_losses: 1,
    trims: true,
    cleans_up: true,
    ..NEXT
};

/// Two roll, and syncs fail.
const ROLLS: Config = Config {
    processes: &[budget(2, 1, 0), budget(2, 1, 0), NOTHING],
    power_losses: 1,
    sync_failures: 1,
    ..NEXT
};

/// Two with runs and manifests, one with two of them.
const CHECKPOINTS: Config = Config {
    processes: &[budget(1, 1, 2), budget(0, 0, 1)],
    power_losses: 1,
    sync_failures: 1,
    trims: true,
    cleans_up: true,
    ..NEXT
};

/// Three with runs and manifests.
const CHECKPOINTS_OF_THREE: Config = Config {
    processes: &[budget(1, 0, 1), budget(0, 0, 1), NOTHING],
    power_losses: 1,
    trims: true,
    cleans_up: true,
    ..NEXT
};

/// The cell becomes unreadable, twice.
const BAD_CELL: Config = Config {
    processes: &[APPEND, APPEND, APPEND],
    bad_cells: 2,
    power_losses: 1,
    cleans_up: true,
    ..NEXT
};

/// The cell becomes unreadable while segments are unlinked.
const BAD_CELL_AND_CHECKPOINTS: Config = Config {
    processes: &[NOTHING, budget(0, 1, 1), NOTHING],
    bad_cells: 1,
    power_losses: 1,
    cleans_up: true,
    ..NEXT
};

/// The log is read in several steps.
const PIECES: Config = Config {
    processes: &[budget(2, 1, 0), APPEND, NOTHING],
    reads_in_pieces: true,
    power_losses: 1,
    cleans_up: true,
    trims: true,
    ..NEXT
};

/// SIGKILL as a step of its own.
const KILLS: Config = Config {
    processes: &[APPEND, APPEND, NOTHING],
    kills: true,
    power_losses: 1,
    ..NEXT
};

/// Three leaders, and nothing goes wrong but that they do not know of each other.
const CALM: Config = Config {
    processes: &[APPEND, APPEND, NOTHING],
    ..NEXT
};

/// The same with power losses and failing syncs.
const ROUGH: Config = Config {
    power_losses: 1,
    sync_failures: 1,
    ..CALM
};

/// Leftovers are unlinked, and the first leader may have some.
const LEFTOVERS: Config = Config {
    processes: &[budget(1, 1, 0), NOTHING, NOTHING],
    cleans_up: true,
    ..NEXT
};

/// The cell becomes unreadable, and all leaders unlink.
const LEFTOVERS_AND_BAD_CELL: Config = Config {
    bad_cells: 1,
    ..LEFTOVERS
};

/// Two with runs and manifests, and power losses.
const FILES: Config = Config {
    processes: &[budget(0, 1, 2), budget(0, 0, 1)],
    power_losses: 1,
    cleans_up: true,
    ..NEXT
};

/// The second leader unlinks the first segment of its epoch.
const PURGE_AND_BAD_CELL: Config = Config {
    processes: &[NOTHING, budget(0, 1, 1), NOTHING],
    bad_cells: 1,
    ..NEXT
};

/// A broken protocol: what its row in the document is called, where it breaks, and how.
type Row = (Variant, &'static str, Config, fn(Violation) -> bool);

fn any(_: Violation) -> bool {
    true
}

fn lost(violation: Violation) -> bool {
    violation == Violation::Lost
}

fn fenced(violation: Violation) -> bool {
    violation == Violation::AnsweredWhenFenced
}

/// Not only a candidate says so.
fn unopenable(violation: Violation) -> bool {
    matches!(violation, Violation::CalledDamaged(_))
}

const BROKEN: &[Row] = &[
    (ReadBeforeRaise, "reading before raising", CALM, any),
    (CheckBeforeAppend, "checking before appending", CALM, any),
    (CellRenamed, "the cell replaced by rename", CALM, fenced),
    (ReadsWithoutCheck, "reads without a check", CALM, any),
    (ReadsBeforeNoOp, "reads before the no-op", ROUGH, any),
    (
        WritesIntoPredecessor,
        "writing into the predecessor",
        CALM,
        lost,
    ),
    (
        EndNotRecorded,
        "the predecessor's end not recorded",
        CALM,
        any,
    ),
    (CutsInEpochOrder, "all cuts in epoch order", CALM, any),
    (TailNotDurable, "the tail not made durable", ROUGH, any),
    (TailSyncedInPlace, "the tail synced in place", ROUGH, any),
    (
        ReappendedCounts,
        "the counting rule off: any batch",
        CALM,
        any,
    ),
    (HeaderCounts, "the counting rule off: a header", ROUGH, any),
    (
        HeaderCountsTailInItsSync,
        "the same, tail and header in one sync",
        ROUGH,
        lost,
    ),
    (
        HeaderInNoOpsSync,
        "header and no-op in one sync",
        ROUGH,
        any,
    ),
    (
        HeaderAfterAnswer,
        "header after the first answer",
        CALM,
        any,
    ),
    (
        NoLogDirectorySync,
        "the log's directory not synced",
        ROUGH,
        any,
    ),
    (
        DirectoryOpenedLate,
        "the directory opened for its sync",
        ROUGH,
        any,
    ),
    (
        NoIndexDirectorySync,
        "the index' directory not synced",
        FILES,
        any,
    ),
    (
        RecordBeforeFiles,
        "record before run and manifest",
        FILES,
        any,
    ),
    (ManifestRenamed, "a manifest that replaces", FILES, any),
    (UnlinkBeforeRecord, "unlink before the record", FILES, any),
    (
        FencedCheckpointRemoves,
        "a fenced checkpoint removes",
        FILES,
        any,
    ),
    (
        CleanUpBeforeNoOp,
        "clean-up before the no-op",
        LEFTOVERS,
        unopenable,
    ),
    (
        CleanUpOfHigherEpochs,
        "clean-up of higher epochs",
        LEFTOVERS,
        lost,
    ),
    (
        NamesWithoutEpoch,
        "names without the epoch",
        LEFTOVERS,
        lost,
    ),
    (
        TrimBeforeNoOp,
        "trim before the no-op",
        Config {
            trims: true,
            ..CALM
        },
        any,
    ),
    (
        HintBeforeCheck,
        "the hint before the check",
        Config {
            hints: true,
            batch_records: 2,
            ..CALM
        },
        any,
    ),
    (
        HintBeforeSync,
        "the hint before the sync",
        Config {
            hints: true,
            ..ROUGH
        },
        any,
    ),
    (
        TakenNameNotReadAgain,
        "a taken name, not read again",
        Config {
            bad_cells: 1,
            ..CALM
        },
        lost,
    ),
    (
        RepairedByOne,
        "a repair by one: leftovers",
        LEFTOVERS_AND_BAD_CELL,
        any,
    ),
    (
        RepairedByOne,
        "a repair by one: two leaders",
        PURGE_AND_BAD_CELL,
        fenced,
    ),
];

/// The document has this row, so that it tells what the model does.
#[expect(clippy::print_stdout, reason = "a missing row can be copied from it")]
fn assert_documented(row: &str) {
    println!("{row}");
    let is_there = DOCUMENT.lines().any(|line| line.starts_with(row));
    assert!(is_there, "docs/fence.md lacks the row: {row}");
}

fn assert_holds(name: &str, config: &Config) -> Report {
    let report = check(config);
    if let Some(found) = &report.found {
        let trace = found.trace.join("\n  ");
        panic!("{name}: {}\n  {trace}", found.violation);
    }
    report
}

/// Checks the protocol as written, that these steps were met, and the document.
fn assert_scopes_hold(scopes: &[(&str, Config)], met: &[&str]) {
    let mut steps = BTreeSet::new();
    for (name, config) in scopes {
        let report = assert_holds(name, config);
        let (states, outcomes) = (report.states, report.outcomes);
        assert_documented(&format!("| {name} | {states} | {outcomes} |"));
        steps.extend(report.steps);
    }
    for step in met {
        assert!(steps.contains(step), "no process ever {step}");
    }
}

#[test]
fn f03_every_answered_history_is_a_prefix_of_what_recovery_yields() {
    let scopes = [("log", LOG), ("empty directory", EMPTY), ("kills", KILLS)];
    let met = [
        "writes the tail again",
        "finds itself overtaken, and stops",
        "is fenced, and stops",
        "fails to sync, and stops",
        "stores the durable hint",
        "answers a read",
        "the power fails",
        "is killed",
    ];
    assert_scopes_hold(&scopes, &met);
}

#[test]
fn f02_rolls_and_clean_up_leave_the_fence_intact() {
    let scopes = [("roll", ROLL), ("rolls", ROLLS), ("read in pieces", PIECES)];
    let met = [
        "decides to roll",
        "trims its predecessor",
        "unlinks a leftover segment",
        "passes over a segment",
    ];
    assert_scopes_hold(&scopes, &met);
}

#[test]
fn d02_checkpoints_never_leave_a_file_missing() {
    let scopes = [
        ("checkpoints", CHECKPOINTS),
        ("checkpoints of three", CHECKPOINTS_OF_THREE),
    ];
    let met = [
        "unlinks an old segment",
        "unlinks the old run and manifest",
        "unlinks a leftover run and manifest",
        "opens manifest and run",
        "misses a file",
    ];
    assert_scopes_hold(&scopes, &met);
}

#[test]
fn f01_an_unreadable_cell_is_repaired() {
    let scopes = [
        ("bad cell", BAD_CELL),
        ("bad cell and checkpoints", BAD_CELL_AND_CHECKPOINTS),
    ];
    assert_scopes_hold(&scopes, &["the cell becomes unreadable"]);
}

#[test]
fn each_broken_variant_is_violated() {
    for (variant, name, scope, wanted) in BROKEN {
        let report = check_for(&scope.broken(*variant), wanted);
        let found = report.found;
        let found = found.unwrap_or_else(|| panic!("{variant:?} is not violated"));
        println!("{}", found.trace.join("\n"));
        let (violation, states, steps) = (found.violation, report.states, found.trace.len());
        assert_documented(&format!("| {name} | {violation} | {states} | {steps} |"));
    }
}

/// Two steps of the protocol that another one makes up for.
#[test]
fn what_the_names_and_the_counting_rule_make_up_for() {
    let scopes = [ROUGH, EMPTY, FILES, BAD_CELL_AND_CHECKPOINTS];
    for scope in scopes {
        assert_holds("the cell not synced", &scope.broken(CellNotSynced));
        assert_holds(
            "tail and header in one sync",
            &scope.broken(TailInHeadersSync),
        );
    }
}
