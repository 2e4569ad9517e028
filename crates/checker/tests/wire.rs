//! Ledgers as lines of JSON: no version ever changes, and what is not one is refused by name.

mod healthy;

use std::collections::BTreeSet;

use ostraca_checker::{
    Begun, Call, DeadLetter, Effect, EffectKind, Instant, LEDGER_VERSION, Ledger, LedgerError, Op,
    Position, Time, Told,
};
use ostraca_types::Timestamp;

use healthy::{LONG, OTHER, SEARCH, Save, by, healthy, receive, refused};

const GOLDEN: &str = include_str!("golden/ledger_v2.jsonl");
const GOLDEN_V1: &str = include_str!("golden/ledger_v1.jsonl");

/// Each kind of entry, question and answer of version 1.
fn sample_v1() -> Ledger {
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
            begun: None,
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

/// What version 2 has besides.
fn sample() -> Ledger {
    let (save, at) = (Save(7), Timestamp(1_700_000_000_456));
    let mut ledger = sample_v1();
    let consumer = SEARCH.to_owned();
    let letter = DeadLetter {
        outbox: save.outbox(),
        paste: save.paste(),
        attempts: 12,
        ended_at: at,
        dead_at: Timestamp(at.0 + 1),
    };
    let outbox = save.outbox();
    let answers = [
        (save.create_of(save, LONG), save.created(at, false)),
        (save.acks(by(SEARCH, 2, 1)), Told::Settled(true)),
        (save.nacks(by(SEARCH, 2, 2)), Told::Settled(false)),
        (save.extends(by(SEARCH, 2, 3)), Told::Settled(true)),
        (
            Op::Register {
                consumer: consumer.clone(),
            },
            Told::Registered,
        ),
        (
            Op::DeadLetters {
                consumer: consumer.clone(),
            },
            Told::Dead(vec![letter]),
        ),
        (Op::Replay { consumer, outbox }, Told::Replayed(true)),
    ];
    let before = ledger.calls.last().expect("calls").clone();
    for (op, told) in answers {
        let begun = matches!(op, Op::Create { .. }).then_some(Begun {
            paste: save.paste(),
            at: Some(Time(at)),
        });
        ledger.calls.push(Call {
            op,
            told,
            begun,
            ..before.clone()
        });
    }
    ledger.effects.push(Effect {
        kind: EffectKind::Unlisted,
        ..ledger.effects[0]
    });
    ledger
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
        Op::Extend { .. } => "extend",
        Op::Register { .. } => "register",
        Op::DeadLetters { .. } => "dead_letters",
        Op::Replay { .. } => "replay",
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
        Told::Registered => "registered",
        Told::Dead(_) => "dead",
        Told::Replayed(_) => "replayed",
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
fn version_2_is_frozen() {
    assert_eq!(written(&sample()), GOLDEN);
    assert_eq!(
        Ledger::read(GOLDEN.as_bytes()).expect("version 2"),
        sample()
    );
}

#[test]
fn version_1_is_read() {
    let read = Ledger::read(GOLDEN_V1.as_bytes()).expect("version 1");
    assert_eq!(read, sample_v1());
}

#[test]
fn the_golden_ledger_has_every_question_and_answer() {
    let sample = sample();
    let names: BTreeSet<_> = sample.calls.iter().flat_map(names).collect();
    assert_eq!(names.len(), 27, "{names:?}");
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
    let newer = GOLDEN.replacen("\"ledger\":2", "\"ledger\":3", 1);
    let refusal = refusal(&newer);
    assert!(matches!(refusal, LedgerError::Version(3)), "{refusal:?}");
    let text = refusal.to_string();
    assert!(
        text.ends_with(&format!("(it knows 1 to {LEDGER_VERSION}): 3")),
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
