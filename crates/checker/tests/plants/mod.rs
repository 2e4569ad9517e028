//! Small changes to a healthy history, each of which makes one thing wrong.

mod delivery;
mod inbox;

use ostraca_checker::{
    Begun, Call, Effect, EffectKind, Instant, KeyState, Kind, Op, Position, Time, Told,
};
use ostraca_types::{RequestDigest, Timestamp, TokenHash};

use crate::healthy::*;

/// What a change to a healthy history planted: the calls and effects that must be shown.
#[derive(Default)]
pub(crate) struct Planted {
    pub(crate) calls: Vec<usize>,
    pub(crate) effects: Vec<usize>,
}

pub(crate) fn calls(calls: impl Into<Vec<usize>>) -> Planted {
    Planted {
        calls: calls.into(),
        effects: Vec::new(),
    }
}

pub(crate) type Plant = fn(&mut History) -> Planted;

/// Whatever is to be found for a kind has at least one history that shows it. There is no arm for
/// "any other": a kind that is added needs its own.
pub(crate) fn plants(kind: Kind) -> &'static [(&'static str, Plant)] {
    match kind {
        Kind::CreateLost => &[
            ("not in the store", |h| {
                h.store.pastes.retain(|row| row.id != LIVES.paste());
                let row = delivery::ended(h, LIVES, LIVES);
                h.store.undelivered.push(row);
                calls([h.create_call(LIVES)])
            }),
            ("missing, and there again", |h| {
                let at = h.call(UNSURE.get(), Told::Missing);
                h.end();
                calls([h.create_call(UNSURE), at])
            }),
            ("missing for a delete that was refused", |h| {
                let at = h.find(&LIVES.delete(), |told| matches!(told, Told::Refused { .. }));
                h.ledger.calls[at].told = Told::Missing;
                calls([h.create_call(LIVES), at])
            }),
        ],
        Kind::KeyLost => &[
            ("not in the store", |h| {
                h.store.keys.retain(|row| row.digest != REUSED.key());
                let told = REUSED_LATER.paste();
                let named =
                    |call: &Call| matches!(call.told, Told::Created { paste, .. } if paste == told);
                calls([h.ledger.calls.iter().position(named).expect("its create")])
            }),
            ("in the store for less than its time", |h| {
                let rows = h.store.keys.iter_mut();
                for row in rows.filter(|row| row.digest == REUSED.key()) {
                    row.expires_at.0 -= HOUR;
                }
                calls([h.create_call(REUSED_LATER)])
            }),
        ],
        Kind::PasteUnnamed => &[
            ("its key's row is gone", |h| {
                let save = Save(70);
                let at = h.call(save.create_of(save, LONG), Told::Unknown);
                h.unheard(at, save);
                h.store.keys.retain(|row| row.digest != save.key());
                h.end();
                calls([at])
            }),
            ("nobody asked for it", |h| {
                let save = Save(70);
                h.keep(save, save, Timestamp(h.shard_time().0 + LONG), LONG);
                h.store.keys.retain(|row| row.digest != save.key());
                Planted::default()
            }),
        ],
        Kind::CommittedTooLate => &[
            ("an hour and a millisecond after its begin", |h| {
                let at = h.create_call(LIVES);
                let begun = Timestamp(h.time_of(at).0 - HOUR - 1);
                h.ledger.calls[at].begun = Some(Begun {
                    paste: LIVES.paste(),
                    at: Some(Time(begun)),
                });
                calls([at])
            }),
            ("nobody heard of it, and it is in the store", |h| {
                let at = h.find(&UNHEARD.create_of(UNHEARD, LONG), |_| true);
                if let Some(Begun {
                    at: Some(begun), ..
                }) = &mut h.ledger.calls[at].begun
                {
                    begun.0.0 -= 1;
                }
                calls([at])
            }),
        ],
        Kind::KeyWithTwoPastes => &[
            ("two answers", |h| {
                let twin = Save(66);
                let expires_at = Timestamp(h.shard_time().0 + LONG);
                let told = twin.created(expires_at, false);
                h.store.keys.retain(|row| row.digest != REUSED.key());
                h.keep(REUSED, twin, expires_at, LONG);
                let at = h.call(REUSED.create_of(REUSED_LATER, LONG), told);
                h.end();
                calls([h.create_call(REUSED_LATER), at])
            }),
            ("another one in the store", |h| {
                let rows = h.store.keys.iter_mut();
                for row in rows.filter(|row| row.digest == REUSED.key()) {
                    row.paste = LIVES.paste();
                }
                calls([h.create_call(REUSED_LATER)])
            }),
            ("two rows in the store", |h| {
                let row = h.store.keys.iter().find(|row| row.digest == REUSED.key());
                let row = *row.expect("its row");
                h.store.keys.push(KeyState {
                    paste: LIVES.paste(),
                    ..row
                });
                calls([h.create_call(REUSED_LATER), h.create_call(LIVES)])
            }),
        ],
        Kind::AnswerChanged => &[
            ("another token", |h| {
                let at = h.find(&RACE.create_of(RACE, LONG), is_replay);
                if let Told::Created { token, .. } = &mut h.ledger.calls[at].told {
                    *token = TokenHash([77; 32]);
                }
                calls([h.create_call(RACE), at])
            }),
            ("another expiry after the delete", |h| {
                let of = DELETED.create_of(DELETED, LONG);
                let mut all = h.ledger.calls.iter();
                let at = all.rposition(|call| call.op == of).expect("a retry");
                if let Told::Created { expires_at, .. } = &mut h.ledger.calls[at].told {
                    expires_at.0 += 1;
                }
                calls([h.create_call(DELETED), at])
            }),
            ("two firsts", |h| {
                let at = h.find(&RACE.create_of(RACE, LONG), is_replay);
                if let Told::Created { replayed, .. } = &mut h.ledger.calls[at].told {
                    *replayed = false;
                }
                // A record of its own, or it would be another's.
                h.ledger.calls[at].at = None;
                calls([h.create_call(RACE), at])
            }),
            ("another expiry for a reader", |h| {
                let at = h.find(&LIVES.get(), |_| true);
                if let Told::Found { expires_at, .. } = &mut h.ledger.calls[at].told {
                    expires_at.0 += 1;
                }
                calls([h.create_call(LIVES), at])
            }),
            ("another token in the store", |h| {
                let rows = h.store.pastes.iter_mut();
                for row in rows.filter(|row| row.id == LIVES.paste()) {
                    row.token = OTHER.token();
                }
                calls([h.create_call(LIVES)])
            }),
        ],
        Kind::WrongRequest => &[
            ("a stored answer for another one", |h| {
                let at = h.find(&RACE.create_of(RACE, LONG), is_replay);
                if let Op::Create { request, .. } = &mut h.ledger.calls[at].op {
                    *request = RequestDigest([88; 32]);
                }
                calls([h.create_call(RACE), at])
            }),
            ("a conflict with nobody", |h| {
                let at = h.call(LIVES.create_of(LIVES, LONG), Told::Conflict);
                h.end();
                calls([h.create_call(LIVES), at])
            }),
        ],
        Kind::KeyHonouredTooLong => &[
            ("a stored answer after its time", |h| {
                let Told::Created { expires_at, .. } = h.ledger.calls[h.create_call(LIVES)].told
                else {
                    panic!("its create")
                };
                let at = h.again(LIVES, expires_at, LONG);
                h.end();
                calls([h.create_call(LIVES), at])
            }),
            ("in the store for more than its time", |h| {
                let rows = h.store.keys.iter_mut();
                for row in rows.filter(|row| row.digest == REUSED.key()) {
                    row.expires_at.0 += HOUR;
                }
                calls([h.create_call(REUSED_LATER)])
            }),
        ],
        Kind::CameBack => &[
            ("found after its delete", |h| {
                let at = h.find(&DELETED.get(), |told| *told == Told::Missing);
                let before = h.find(&DELETED.get(), |_| true);
                let Told::Found { expires_at, .. } = h.ledger.calls[before].told else {
                    panic!("it was there")
                };
                let now = h.time_of(at);
                h.ledger.calls[at].told = Told::Found { now, expires_at };
                calls([h.find(&DELETED.delete(), |told| *told == Told::Deleted), at])
            }),
            ("deleted, and in the store", |h| {
                let at = h.call(LIVES.delete(), Told::Deleted);
                h.end();
                calls([h.create_call(LIVES), at])
            }),
            ("a token judged after its delete", |h| {
                let at = h.find(&DELETED.delete(), |told| *told == Told::Missing);
                h.ledger.calls[at].told = Told::TokenRejected;
                if let Op::Delete { token, .. } = &mut h.ledger.calls[at].op {
                    *token = OTHER.token();
                }
                calls([h.find(&DELETED.delete(), |told| *told == Told::Deleted), at])
            }),
        ],
        Kind::Outlived => &[
            ("found at its expiry", |h| {
                let at = h.find(&EXPIRED.get(), |told| *told == Told::Missing);
                let before = h.find(&EXPIRED.get(), |_| true);
                let Told::Found { expires_at, .. } = h.ledger.calls[before].told else {
                    panic!("it was there")
                };
                let now = h.time_of(at);
                h.ledger.calls[at].told = Told::Found { now, expires_at };
                calls([h.create_call(EXPIRED), at])
            }),
            ("deleted after its expiry", |h| {
                let at = h.find(&EXPIRED.get(), |told| *told == Told::Missing);
                let mut call = h.ledger.calls[at + 1].clone();
                call.op = EXPIRED.delete();
                call.told = Told::Deleted;
                // Nobody has looked at it since; that it is late others know.
                call.at = None;
                h.ledger.calls.remove(at);
                h.ledger.calls.insert(at + 1, call);
                h.ledger.calls[at + 1].invoked.0 += 1_100_000;
                h.ledger.calls[at + 1].returned.0 += 300_000;
                calls([h.create_call(EXPIRED), at + 1])
            }),
        ],
        Kind::EndedTwice => &[("two deletes", |h| {
            let first = h.find(&DELETED.delete(), |told| *told == Told::Deleted);
            let at = h.find(&DELETED.delete(), |told| *told == Told::Missing);
            h.ledger.calls[at].told = Told::Deleted;
            h.ledger.calls[at].at = None;
            calls([first, at])
        })],
        Kind::WrongTokenAccepted => &[("a delete with another token", |h| {
            let at = h.find(&DELETED.delete(), |told| *told == Told::Deleted);
            if let Op::Delete { token, .. } = &mut h.ledger.calls[at].op {
                *token = TokenHash([55; 32]);
            }
            calls([h.create_call(DELETED), at])
        })],
        Kind::TokenRefused => &[("its own", |h| {
            let at = h.call(LIVES.delete(), Told::TokenRejected);
            h.end();
            calls([h.create_call(LIVES), at])
        })],
        Kind::ClockRanBack => &[
            ("between two answers", |h| {
                let at = h.find(&UNSURE.get(), |_| true);
                if let Told::Found { now, .. } = &mut h.ledger.calls[at].told {
                    now.0 -= 10_000;
                }
                calls([at])
            }),
            ("until the end", |h| {
                h.store.shards[0].now.0 -= 10_000;
                calls([h.ledger.calls.len() - 1])
            }),
        ],
        Kind::OrderViolated => &[
            ("a look that is behind", |h| {
                let at = h.find(&UNSURE.get(), |_| true);
                if let Some(position) = &mut h.ledger.calls[at].at {
                    position.sequence -= 2;
                }
                calls([at])
            }),
            ("one record, two answers", |h| {
                let at = h.create_call(LIVES);
                let other = h.create_call(EXPIRED);
                h.ledger.calls[other].invoked = h.ledger.calls[at].invoked;
                h.ledger.calls[other].at = h.ledger.calls[at].at;
                calls([at, other])
            }),
            (
                "a record of a replaced leader behind its successor's",
                |h| {
                    // Asked while the old one led, so that neither answer alone is late.
                    let consumer = SEARCH.to_owned();
                    let new = h.find(&Op::Register { consumer }, |_| true);
                    let old = h.create_call(NEVER);
                    let begun = h.ledger.calls[old].invoked;
                    let last = h.create_call(UNSURE_DELETE);
                    let next = h.ledger.calls[last]
                        .at
                        .map(|position| position.sequence + 1);
                    let at = h.find(&UNSURE_DELETE.delete(), |_| true);
                    h.ledger.calls[at].told = Told::Deleted;
                    h.ledger.calls[at].invoked = begun;
                    h.ledger.calls[new].invoked = begun;
                    h.ledger.calls[last].invoked = begun;
                    h.ledger.calls[at].at = next.map(|sequence| Position {
                        shard: 0,
                        epoch: 1,
                        sequence,
                    });
                    calls([new, at])
                },
            ),
            ("a store that is behind", |h| {
                h.store.shards[0].sequence -= 1;
                calls([h.create_call(REUSED_LATER)])
            }),
        ],
        Kind::StaleLeader => &[("a read under an old token", |h| {
            let at = h.get(LIVES);
            h.end();
            let position = h.ledger.calls[h.create_call(LIVES)].at;
            h.ledger.calls[at].at = position;
            calls([at])
        })],
        Kind::EndWithoutMessage => delivery::END_WITHOUT_MESSAGE,
        Kind::TwoMessages => delivery::TWO_MESSAGES,
        Kind::MessageShared => delivery::MESSAGE_SHARED,
        Kind::MessageLost => delivery::MESSAGE_LOST,
        Kind::ConsumerSkipped => delivery::CONSUMER_SKIPPED,
        Kind::MessageOverAge => delivery::MESSAGE_OVER_AGE,
        Kind::DropNotCounted => delivery::DROP_NOT_COUNTED,
        Kind::DeadTooEarly => delivery::DEAD_TOO_EARLY,
        Kind::WrongHandle => delivery::WRONG_HANDLE,
        Kind::InboxLost => inbox::INBOX_LOST,
        Kind::InboxKeptTooLong => inbox::INBOX_KEPT_TOO_LONG,
        Kind::Suppressed => inbox::SUPPRESSED,
        Kind::AckBeforeRecord => inbox::ACK_BEFORE_RECORD,
        Kind::EffectRepeated => inbox::EFFECT_REPEATED,
        Kind::RecordBeforeEffects => inbox::RECORD_BEFORE_EFFECTS,
        Kind::EffectBeforeEnd => inbox::EFFECT_BEFORE_END,
        Kind::ObjectMissing => inbox::OBJECT_MISSING,
        Kind::LeftOver => inbox::LEFT_OVER,
        Kind::NotLinearizable => &[
            ("a key", |h| {
                // Used by the one that nobody heard of, and then new.
                let unknown = h.find(&NEVER.create_of(NEVER, LONG), |told| *told == Told::Unknown);
                let at = h.find(&NEVER.create_of(NEVER, LONG), |told| {
                    matches!(told, Told::Refused { .. })
                });
                h.ledger.calls[at].op = NEVER.create_of(OTHER, LONG);
                h.ledger.calls[at].told = Told::Conflict;
                calls([unknown, at, h.create_call(NEVER)])
            }),
            ("a key that is refused to others after its time", |h| {
                let at = h.call(LIVES.create_of(OTHER, LONG), Told::Conflict);
                h.end();
                calls([h.create_call(LIVES), at])
            }),
            ("a paste", |h| {
                // There, missing and there again, all before its create was answered.
                let get = h.find(&LIVES.get(), |_| true);
                let mut missing = h.ledger.calls[get].clone();
                missing.told = Told::Missing;
                missing.invoked.0 += 10_000_000;
                missing.returned.0 += 10_000_000;
                missing.at = None;
                let create = h.create_call(LIVES);
                h.ledger.calls[create].returned.0 += 20_000_000;
                h.ledger.calls.push(missing);
                calls([create, get, h.ledger.calls.len() - 1])
            }),
        ],
        // Of the search and its limit, not of a history: see below.
        Kind::Undecided => &[],
    }
}

impl History {
    /// The place of the first such call.
    pub(crate) fn find(&self, op: &Op, told: impl Fn(&Told) -> bool) -> usize {
        let mut calls = self.ledger.calls.iter();
        let found = calls.position(|call| call.op == *op && told(&call.told));
        found.expect("such a call")
    }

    pub(crate) fn create_call(&self, save: Save) -> usize {
        let named =
            |told: &Told| matches!(told, Told::Created { paste, .. } if *paste == save.paste());
        let found = self.ledger.calls.iter().position(|call| named(&call.told));
        found.expect("its create")
    }
}

fn is_replay(told: &Told) -> bool {
    matches!(told, Told::Created { replayed: true, .. })
}

pub(crate) fn gives(told: &Told, save: Save) -> bool {
    matches!(told, Told::Delivered(all) if all.iter().any(|one| one.outbox == save.outbox()))
}

pub(crate) fn effect_of(h: &History, save: Save) -> usize {
    let mut effects = h.ledger.effects.iter();
    effects
        .position(|effect| effect.paste == save.paste())
        .expect("an effect")
}

/// Nothing was ever heard of its message.
pub(crate) fn forget(h: &mut History, save: Save) {
    let outbox = save.outbox();
    let names = |op: &Op| match op {
        Op::Ack { outbox, .. }
        | Op::Nack { outbox, .. }
        | Op::Extend { outbox, .. }
        | Op::Record { outbox, .. }
        | Op::Contains { outbox, .. } => *outbox == save.outbox(),
        _ => false,
    };
    h.ledger
        .calls
        .retain(|call| !names(&call.op) && !gives(&call.told, save));
    h.ledger.effects.retain(|effect| effect.outbox != outbox);
    h.store.inbox.retain(|(_, id, _)| *id != outbox);
}

pub(crate) fn late(h: &mut History, kind: EffectKind) -> Planted {
    let record = h.find(&DELETED.record(), |_| true);
    let of = |effect: &Effect| effect.paste == DELETED.paste() && effect.kind == kind;
    let at = h.ledger.effects.iter().position(of).expect("an effect");
    h.ledger.effects[at].at = Instant(h.ledger.calls[record].returned.0 + 1);
    Planted {
        calls: vec![record],
        effects: vec![at],
    }
}
