use std::time::Duration;

use ostraca_index::AttemptId;
use ostraca_types::Epoch;
use proptest::prelude::*;

use super::*;

/// A create with a recognisable value in every field.
pub(crate) fn sample(n: u8) -> Create {
    let mut key_digest = KeyDigest([n; 16]);
    key_digest.0[0] = 5;
    let slot = key_digest.slot();
    Create {
        begun_at: Timestamp(1000),
        created_at: Timestamp(2000),
        expires_at: Timestamp(62_000),
        key_expires_at: Timestamp(90_002_000),
        key_digest,
        request_hash: RequestHash([0x22; 32]),
        paste_id: PasteId::mint(slot, |bytes| bytes.fill(n)),
        token_hash: TokenHash([0x33; 32]),
        outbox_id: OutboxId::from_parts(slot, &[n.min(100); 15]).expect("in range"),
        body_size: 77,
        body_digest: BodyDigest([0x44; 32]),
        syntax: Some(Syntax::parse("rust").expect("a syntax")),
        title: Some(Title::parse("Ein Titel").expect("a title")),
        answer: SealedAnswer {
            generation: 9,
            bytes: [0x55; SEALED_ANSWER_SIZE],
        },
    }
}

fn attempt(n: u8) -> AttemptId {
    AttemptId {
        outbox_id: sample(n).outbox_id,
        epoch: Epoch(3),
        attempt: 2,
    }
}

fn commands() -> Vec<Command> {
    let bare = Create {
        syntax: None,
        title: None,
        ..sample(8)
    };
    vec![
        Command::Create(Box::new(sample(7))),
        Command::Create(Box::new(bare)),
        Command::End(End {
            paste_id: sample(7).paste_id,
            cause: EndCause::Deleted,
        }),
        Command::End(End {
            paste_id: sample(7).paste_id,
            cause: EndCause::Expired,
        }),
        Command::Time(Time {
            boot: BootTime {
                boot: BootId([6; 16]),
                elapsed: Duration::from_millis(1234),
            },
            bound: Timestamp(99),
        }),
        Command::Inbox(Inbox {
            consumer: ConsumerName::purge(),
            outbox_id: sample(7).outbox_id,
            expires_at: Timestamp(88),
        }),
        Command::Deliver(Deliver {
            consumer: ConsumerName::purge(),
            max: 10,
            visibility: Duration::from_secs(30),
            jitter: 0x0102_0304_0506_0708,
        }),
        Command::Ack(Ack {
            consumer: ConsumerName::purge(),
            attempts: vec![attempt(7), attempt(8)],
        }),
        Command::Nack(Nack {
            consumer: ConsumerName::purge(),
            attempt: attempt(7),
            delay: None,
            reason: "no route".into(),
            jitter: 9,
        }),
        Command::Nack(Nack {
            consumer: ConsumerName::purge(),
            attempt: attempt(7),
            delay: Some(Duration::from_secs(1)),
            reason: "".into(),
            jitter: 9,
        }),
        Command::Extend(Extend {
            consumer: ConsumerName::purge(),
            attempt: attempt(7),
            visibility: Duration::from_secs(60),
        }),
        Command::Replay(Replay {
            consumer: ConsumerName::purge(),
            outbox_id: sample(7).outbox_id,
        }),
        Command::Register(ConsumerName::parse("mirror").expect("a name")),
    ]
}

#[test]
fn what_was_encoded_decodes() {
    let mut bytes = Vec::new();
    for command in commands() {
        command.encode(&mut bytes);
        let back = Command::decode(command.kind(), command.version(), command.slot(), &bytes);
        assert_eq!(back, Ok(Some(command)));
    }
}

/// d07: the bytes of a version never change.
#[test]
fn d07_commands_have_golden_bytes() {
    let mut bytes = Vec::new();
    let mut text = String::new();
    for command in commands() {
        command.encode(&mut bytes);
        let hex: String = bytes.iter().map(|byte| format!("{byte:02x}")).collect();
        let name = kind_name(command.kind()).expect("a name");
        text.push_str(&format!("{name} {} {hex}\n", command.version()));
    }
    assert_eq!(
        text,
        include_str!("../../golden/commands_v1.txt"),
        "\n{text}"
    );
}

#[test]
fn d07_a_newer_command_is_refused_by_name() {
    for (kind, version) in [(11, 1), (255, 1), (1, 0), (1, 2), (3, 200)] {
        let refused = Command::decode(kind, version, Slot(5), &[0; 300]);
        assert_eq!(refused, Err(DecodeError::Newer { kind, version }));
    }
}

#[test]
fn the_document_matches_the_code() {
    let document = include_str!("../../FORMAT.md");
    let rows = |heading: &str| -> Vec<(String, usize, usize)> {
        let (_, section) = document.split_once(heading).expect("the section");
        let section = section.split("\n#").next().expect("its text");
        let numbers = section.lines().filter(|line| line.starts_with("| "));
        numbers
            .filter_map(|line| {
                let cells: Vec<&str> = line.split('|').map(str::trim).collect();
                let (offset, size) = (cells[1].parse().ok()?, cells[2].parse().ok()?);
                Some((cells[3].to_owned(), offset, size))
            })
            .collect()
    };
    macro_rules! table {
        ($module:ident: $($field:ident)*) => {
            vec![$((
                stringify!($field).to_lowercase(),
                $module::$field.start,
                $module::$field.end - $module::$field.start,
            )),*]
        };
    }
    let create = table!(create: BEGUN_AT CREATED_AT EXPIRES_AT KEY_EXPIRES_AT KEY_DIGEST REQUEST_HASH
        PASTE_ID TOKEN_HASH OUTBOX_ID SYNTAX_LEN TITLE_LEN RESERVED BODY_SIZE BODY_DIGEST GENERATION
        ANSWER);
    assert_eq!(rows("### Create, version 1"), create);
    assert_eq!(
        rows("### End, version 1"),
        table!(end: PASTE_ID CAUSE RESERVED)
    );
    assert_eq!(
        rows("### Time, version 1"),
        table!(time: BOOT ELAPSED BOUND)
    );
}

proptest! {
    #[test]
    fn no_bytes_make_decoding_panic(kind in 0u8..12, slot: u8, bytes: Vec<u8>) {
        let _ = Command::decode(kind, 0, Slot(slot), &bytes);
    }

    #[test]
    fn a_changed_create_never_panics(at in 0usize..260, to: u8) {
        let mut bytes = Vec::new();
        sample(7).encode(&mut bytes);
        bytes[at] = to;
        let _ = Command::decode(KIND_CREATE, 0, Slot(5), &bytes);
    }
}
