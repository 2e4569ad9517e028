//! The one place where outcomes are decided: in log order, after the sync.

use ostraca_index::{Delivery, IdempotencyRow, Index, PasteRow, ReadyRow, Settled};
use ostraca_types::contract::IN_FLIGHT_MAX;
use ostraca_types::{Epoch, Timestamp};

use crate::command::{Command, Create, Deliver, End, Extend, Nack};

/// What a command came to. All there are.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Outcome {
    /// The paste, its key and its outbox row are there.
    Created,
    /// The key was there, for the same request: this is its row (k02).
    Replayed(IdempotencyRow),
    /// The key was there, for another request (k05).
    Conflict,
    /// The id is another paste's: mint anew.
    IdTaken,
    /// In flight for longer than its bound (p03), or past its own expiry.
    TooLate,
    /// The paste ended, and its message is deliverable.
    Ended,
    /// There is no such paste, or it has ended, or it is past its expiry.
    UnknownPaste,
    /// An expiry before its time.
    NotDue,
    /// The clock moved.
    TimeMoved,
    /// The message is recorded as done.
    Recorded,
    /// It was recorded before.
    AlreadyRecorded,
    /// These messages were delivered.
    Delivered(Vec<Delivery>),
    /// What came of each attempt.
    Settled(Vec<Settled>),
    /// The consumer is registered.
    Registered,
    /// The shard has as many consumers as it can.
    TooManyConsumers,
    /// No consumer of this name is registered.
    UnknownConsumer,
    /// The dead letter is due again.
    DeadLetterReplayed,
    /// There is no such dead letter.
    UnknownDeadLetter,
}

/// Decides one command and changes the rows accordingly. It depends on the rows, the command, and
/// the record's epoch and shard time alone: no clock, no randomness, no order of a hash map, no I/O. So
/// replaying a log gives the rows and the outcomes that it gave when it was written.
pub(crate) fn apply(index: &Index, command: &Command, epoch: Epoch, time: Timestamp) -> Outcome {
    match command {
        Command::Create(create) => apply_create(index, create, time),
        Command::End(end) => apply_end(index, *end, time),
        Command::Time(_) => {
            index.purge(time);
            Outcome::TimeMoved
        }
        Command::Inbox(inbox) => {
            let (consumer, id) = (&inbox.consumer, inbox.outbox_id);
            match index.record_inbox(consumer, id, inbox.expires_at, time) {
                Some(true) => Outcome::Recorded,
                Some(false) => Outcome::AlreadyRecorded,
                None => Outcome::TooManyConsumers,
            }
        }
        Command::Register(consumer) if index.register(consumer) => Outcome::Registered,
        Command::Register(_) => Outcome::TooManyConsumers,
        Command::Deliver(_)
        | Command::Ack(_)
        | Command::Nack(_)
        | Command::Extend(_)
        | Command::Replay(_) => {
            apply_delivery(index, command, epoch, time).unwrap_or(Outcome::UnknownConsumer)
        }
    }
}

/// `None` without a consumer of that name.
fn apply_delivery(
    index: &Index,
    command: &Command,
    epoch: Epoch,
    time: Timestamp,
) -> Option<Outcome> {
    Some(match command {
        Command::Deliver(Deliver {
            consumer,
            max,
            visibility,
            jitter,
        }) => {
            let max = usize::from(*max);
            Outcome::Delivered(index.deliver(consumer, max, *visibility, *jitter, epoch, time)?)
        }
        Command::Ack(ack) => {
            let settled = ack.attempts.iter();
            let settled = settled.map(|&attempt| index.ack(&ack.consumer, attempt));
            Outcome::Settled(settled.collect::<Option<_>>()?)
        }
        Command::Nack(Nack {
            consumer,
            attempt,
            delay,
            reason,
            jitter,
        }) => Outcome::Settled(vec![
            index.nack(consumer, *attempt, *delay, reason, *jitter, time)?,
        ]),
        Command::Extend(Extend {
            consumer,
            attempt,
            visibility,
        }) => Outcome::Settled(vec![index.extend(consumer, *attempt, *visibility, time)?]),
        Command::Replay(replay) => {
            if index.replay(&replay.consumer, replay.outbox_id, time)? {
                Outcome::DeadLetterReplayed
            } else {
                Outcome::UnknownDeadLetter
            }
        }
        Command::Create(_)
        | Command::End(_)
        | Command::Time(_)
        | Command::Inbox(_)
        | Command::Register(_) => unreachable!("not a command of delivery"),
    })
}

fn apply_create(index: &Index, create: &Create, time: Timestamp) -> Outcome {
    // The key comes first: a retry that is late, or whose fresh id is taken, still gets its stored
    // answer (k10).
    if let Some(row) = index.idempotency(&create.key_digest)
        && time < row.expires_at
    {
        return if row.request_hash == create.request_hash {
            Outcome::Replayed(row)
        } else {
            Outcome::Conflict
        };
    }
    if time.since(create.begun_at) > IN_FLIGHT_MAX || time >= create.expires_at {
        return Outcome::TooLate;
    }
    if index.has_paste(&create.paste_id) {
        return Outcome::IdTaken;
    }
    index.create(
        create.key_digest,
        IdempotencyRow {
            expires_at: create.key_expires_at,
            request_hash: create.request_hash,
            paste_id: create.paste_id,
            answer: create.answer,
        },
        PasteRow {
            created_at: create.created_at,
            expires_at: create.expires_at,
            token_hash: create.token_hash,
            outbox_id: create.outbox_id,
            body_size: create.body_size,
            body_digest: create.body_digest,
            syntax: create.syntax.clone(),
            title: create.title.clone(),
        },
    );
    Outcome::Created
}

fn apply_end(index: &Index, end: End, time: Timestamp) -> Outcome {
    use ostraca_index::EndCause::{Deleted, Expired};
    let Some(paste) = index.paste(&end.paste_id) else {
        return Outcome::UnknownPaste;
    };
    let due = time >= paste.expires_at;
    match end.cause {
        // Past its expiry it is invisible, so there is nothing to delete; its end is the expiry's.
        Deleted if due => Outcome::UnknownPaste,
        Expired if !due => Outcome::NotDue,
        Deleted | Expired => {
            index.end(ReadyRow {
                outbox_id: paste.outbox_id,
                paste_id: end.paste_id,
                ended_at: time,
                cause: end.cause,
            });
            Outcome::Ended
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::command::tests::sample;
    use ostraca_index::EndCause;
    use ostraca_types::{KeyDigest, RequestHash};

    const NOW: Timestamp = Timestamp(2000);

    fn apply_now(index: &Index, command: &Command, time: Timestamp) -> Outcome {
        apply(index, command, Epoch(1), time)
    }

    fn create(create: Create) -> Command {
        Command::Create(Box::new(create))
    }

    fn with_other_key(create: Create) -> Create {
        let mut digest = KeyDigest([0xee; 16]);
        digest.0[0] = create.key_digest.0[0];
        Create {
            key_digest: digest,
            ..create
        }
    }

    #[test]
    fn k08_a_create_makes_all_its_rows() {
        let index = Index::new();
        assert_eq!(apply_now(&index, &create(sample(7)), NOW), Outcome::Created);
        let paste = index.paste(&sample(7).paste_id).expect("the paste");
        assert_eq!(paste.outbox_id, sample(7).outbox_id);
        assert!(index.idempotency(&sample(7).key_digest).is_some());
    }

    #[test]
    fn k02_k05_the_key_decides() {
        let index = Index::new();
        apply_now(&index, &create(sample(7)), NOW);
        let again = Create {
            paste_id: sample(9).paste_id,
            ..sample(7)
        };
        match apply_now(&index, &create(again.clone()), NOW) {
            Outcome::Replayed(row) => assert_eq!(row.paste_id, sample(7).paste_id),
            other => panic!("{other:?}"),
        }
        let other = Create {
            request_hash: RequestHash([1; 32]),
            ..again
        };
        assert_eq!(apply_now(&index, &create(other), NOW), Outcome::Conflict);
        assert_eq!(index.counts().pastes, 1);
    }

    #[test]
    fn k13_a_key_is_honoured_until_its_expiry_and_not_at_it() {
        let index = Index::new();
        apply_now(&index, &create(sample(7)), NOW);
        let expiry = sample(7).key_expires_at;
        let retry = |now: Timestamp| Create {
            begun_at: now,
            created_at: now,
            expires_at: now.plus(std::time::Duration::from_secs(60)),
            paste_id: sample(9).paste_id,
            outbox_id: sample(9).outbox_id,
            ..sample(7)
        };
        let before = Timestamp(expiry.0 - 1);
        let outcome = apply_now(&index, &create(retry(before)), before);
        assert!(matches!(outcome, Outcome::Replayed(_)), "{outcome:?}");
        assert_eq!(
            apply_now(&index, &create(retry(expiry)), expiry),
            Outcome::Created
        );
    }

    #[test]
    fn p03_a_create_in_flight_beyond_its_bound_changes_nothing() {
        let index = Index::new();
        let late = |by| Create {
            expires_at: Timestamp(u64::MAX),
            begun_at: Timestamp(by),
            ..sample(7)
        };
        let hour = 3_600_000;
        let now = Timestamp(10 + hour);
        assert_eq!(apply_now(&index, &create(late(9)), now), Outcome::TooLate);
        assert_eq!(index.counts(), Default::default());
        assert_eq!(apply_now(&index, &create(late(10)), now), Outcome::Created);
    }

    #[test]
    fn a_create_past_its_own_expiry_changes_nothing() {
        let index = Index::new();
        let at = sample(7).expires_at;
        assert_eq!(apply_now(&index, &create(sample(7)), at), Outcome::TooLate);
        assert_eq!(
            apply_now(&index, &create(sample(7)), Timestamp(at.0 - 1)),
            Outcome::Created
        );
    }

    #[test]
    fn a_taken_id_is_told_apart() {
        let index = Index::new();
        apply_now(&index, &create(sample(7)), NOW);
        assert_eq!(
            apply_now(&index, &create(with_other_key(sample(7))), NOW),
            Outcome::IdTaken
        );
    }

    #[test]
    fn r04_a_paste_ends_once() {
        let index = Index::new();
        apply_now(&index, &create(sample(7)), NOW);
        let end = |cause| {
            Command::End(End {
                paste_id: sample(7).paste_id,
                cause,
            })
        };
        assert_eq!(
            apply_now(&index, &end(EndCause::Expired), NOW),
            Outcome::NotDue
        );
        assert_eq!(
            apply_now(&index, &end(EndCause::Deleted), NOW),
            Outcome::Ended
        );
        assert_eq!(
            apply_now(&index, &end(EndCause::Deleted), NOW),
            Outcome::UnknownPaste
        );
        let due = sample(7).expires_at;
        assert_eq!(
            apply_now(&index, &end(EndCause::Expired), due),
            Outcome::UnknownPaste
        );
        assert_eq!(index.counts().outbox.ready, 1);
    }

    #[test]
    fn an_expired_paste_cannot_be_deleted_and_ends_by_expiry() {
        let index = Index::new();
        apply_now(&index, &create(sample(7)), NOW);
        let end = |cause| {
            Command::End(End {
                paste_id: sample(7).paste_id,
                cause,
            })
        };
        let due = sample(7).expires_at;
        assert_eq!(
            apply_now(&index, &end(EndCause::Deleted), due),
            Outcome::UnknownPaste
        );
        assert_eq!(
            apply_now(&index, &end(EndCause::Expired), due),
            Outcome::Ended
        );
    }
}
