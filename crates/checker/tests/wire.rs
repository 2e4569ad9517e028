//! Ledgers as lines of JSON: version 1 never changes, and what is not one is refused by name.

mod healthy;

use std::collections::BTreeSet;

use ostraca_checker::{
    Call, Effect, EffectKind, Instant, LEDGER_VERSION, Ledger, LedgerError, Op, Position, Told,
};
use ostraca_types::Timestamp;

use healthy::{LONG, OTHER, Save, healthy, receive, refused};

const GOLDEN: &str = include_str!("golden/ledger_v1.jsonl");

/// Each kind of entry, question and answer.
fn sample() -> Ledger {
    let (save, at) = (Save(7), Timestamp(1_700_000_000_123));
    let answers = [
        (save.create_of(save, LONG), save.created(at, false)),
        (save.create_of(save, LONG), save.created(at, true)),
        (save.create_of(OTHER, LONG), Told::Conflict),
        (save.create_of(save, 60_000), refused("CREATE_TOO_LATE")),
        (
            save.get(),
            Told::Found {
                now: at,
                expires_at: Timestamp(u64::MAX),
            },
        ),
        (save.get(), Told::Missing),
        (save.delete(), Told::TokenRejected),
        (save.delete(), Told::Deleted),
        (receive(), save.delivered(3, at)),
        (save.nack(), Told::Settled(true)),
        (save.look(), Told::Contained(false)),
        (save.record(), Told::Recorded { first: true }),
        (save.ack(), Told::Unknown),
    ];
    let calls = answers
        .into_iter()
        .zip(1..)
        .map(|((op, told), number)| Call {
            client: u32::try_from(number).expect("a few"),
            invoked: Instant(number * 1_000),
            returned: Instant(number * 1_000 + 999),
            op,
            at: (!matches!(told, Told::Refused { .. } | Told::Unknown)).then_some(Position {
                shard: 3,
                epoch: 2,
                sequence: number,
            }),
            told,
        });
    let effects = [EffectKind::ObjectDeleted, EffectKind::EdgePurged].map(|kind| Effect {
        at: Instant(u64::MAX),
        kind,
        paste: save.paste(),
        outbox: save.outbox(),
    });
    Ledger {
        calls: calls.collect(),
        effects: effects.to_vec(),
    }
}

/// Fails to compile when a question or an answer is added that the sample may lack.
fn names(call: &Call) -> [&'static str; 2] {
    let op = match &call.op {
        Op::Create { .. } => "create",
        Op::Get { .. } => "get",
        Op::Delete { .. } => "delete",
        Op::Receive { .. } => "receive",
        Op::Ack { .. } => "ack",
        Op::Nack { .. } => "nack",
        Op::Record { .. } => "record",
        Op::Contains { .. } => "contains",
    };
    let told = match &call.told {
        Told::Created { .. } => "created",
        Told::Conflict => "conflict",
        Told::Found { .. } => "found",
        Told::Missing => "missing",
        Told::Deleted => "deleted",
        Told::TokenRejected => "token_rejected",
        Told::Delivered(_) => "delivered",
        Told::Settled(_) => "settled",
        Told::Recorded { .. } => "recorded",
        Told::Contained(_) => "contained",
        Told::Refused { .. } => "refused",
        Told::Unknown => "unknown",
    };
    [op, told]
}

fn written(ledger: &Ledger) -> String {
    let mut bytes = Vec::new();
    ledger.write(&mut bytes).expect("memory takes it");
    String::from_utf8(bytes).expect("text")
}

fn refusal(text: &str) -> LedgerError {
    Ledger::read(text.as_bytes()).expect_err("not a ledger that is known")
}

#[test]
fn version_1_is_frozen() {
    assert_eq!(written(&sample()), GOLDEN);
    assert_eq!(
        Ledger::read(GOLDEN.as_bytes()).expect("version 1"),
        sample()
    );
}

#[test]
fn the_golden_ledger_has_every_question_and_answer() {
    let sample = sample();
    let names: BTreeSet<_> = sample.calls.iter().flat_map(names).collect();
    assert_eq!(names.len(), 20, "{names:?}");
    for name in names {
        assert!(GOLDEN.contains(&format!("\"{name}\"")), "{name}");
    }
}

#[test]
fn a_whole_history_comes_back_as_it_was() {
    let h = healthy();
    let read = Ledger::read(written(&h.ledger).as_bytes()).expect("as it was written");
    assert_eq!(read, h.ledger);
}

#[test]
fn an_unknown_version_is_refused_by_name() {
    let newer = GOLDEN.replacen("\"ledger\":1", "\"ledger\":2", 1);
    let refusal = refusal(&newer);
    assert!(matches!(refusal, LedgerError::Version(2)), "{refusal:?}");
    let text = refusal.to_string();
    assert!(
        text.ends_with(&format!("(it knows {LEDGER_VERSION}): 2")),
        "{text}"
    );
}

#[test]
fn what_is_no_ledger_is_refused() {
    let headless: String = GOLDEN.split_inclusive('\n').skip(1).collect();
    for text in ["", "\n", "{}\n", "not json\n", headless.as_str()] {
        let refusal = refusal(text);
        assert!(
            matches!(refusal, LedgerError::NotALedger),
            "{text:?}: {refusal:?}"
        );
    }
}

/// A writer that was killed leaves half a line: what it said is not known, so nothing is concluded.
#[test]
fn a_line_that_is_not_whole_is_refused_with_its_number() {
    let lines = GOLDEN.lines().count();
    let torn = &GOLDEN[..GOLDEN.len() - 5];
    assert!(matches!(refusal(torn), LedgerError::Line { line, .. } if line == lines));
    let changes = [
        // An answer, a digest, an id and a field that are none.
        ("\"conflict\"", "\"agreement\""),
        ("0707070707", "070707070g"),
        ("0707070707", "070707070A"),
        ("0707070707", "07070707"),
        ("\"get\":{\"paste\":\"07", "\"get\":{\"paste\":\"~7"),
        ("\"shard\":3", "\"shard\":3,\"shards\":4"),
    ];
    for (from, to) in changes {
        let changed = GOLDEN.replacen(from, to, 1);
        assert_ne!(changed, GOLDEN, "{from}");
        let refusal = refusal(&changed);
        assert!(
            matches!(refusal, LedgerError::Line { .. }),
            "{to}: {refusal:?}"
        );
    }
}
