//! Small changes to a healthy history, each of which makes one thing wrong.

use ostraca_checker::{Call, Effect, EffectKind, Instant, KeyState, Kind, Op, Position, Told};
use ostraca_types::{RequestDigest, Timestamp, TokenHash};

use crate::healthy::*;

/// What a change to a healthy history planted: the calls and effects that must be shown.
#[derive(Default)]
pub(crate) struct Planted {
    pub(crate) calls: Vec<usize>,
    pub(crate) effects: Vec<usize>,
}

fn calls(calls: impl Into<Vec<usize>>) -> Planted {
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
                h.store.undelivered.push((LIVES.outbox(), LIVES.paste()));
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
                    let (old, new) = (h.create_call(NEVER), h.create_call(UNSURE_DELETE));
                    let begun = h.ledger.calls[old].invoked;
                    let next = h.ledger.calls[new].at.map(|position| position.sequence + 1);
                    let at = h.find(&UNSURE_DELETE.delete(), |_| true);
                    h.ledger.calls[at].told = Told::Deleted;
                    h.ledger.calls[at].invoked = begun;
                    h.ledger.calls[new].invoked = begun;
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
        Kind::EndWithoutMessage => &[
            ("of an answered create", |h| {
                forget(h, EXPIRED);
                calls([h.create_call(EXPIRED)])
            }),
            ("of a create that a key proves", |h| {
                let (key, paste) = (Save(70), Save(71));
                h.call(key.create_of(key, LONG), Told::Unknown);
                let expires_at = Timestamp(h.shard_time().0 + LONG);
                h.keep(key, paste, expires_at, LONG);
                h.store.pastes.retain(|row| row.id != paste.paste());
                Planted::default()
            }),
        ],
        Kind::TwoMessages => &[("one of them in the store", |h| {
            h.store
                .undelivered
                .push((Save(44).outbox(), EXPIRED.paste()));
            calls([h.create_call(EXPIRED)])
        })],
        Kind::MessageShared => &[("one of them in the store", |h| {
            h.store
                .undelivered
                .push((EXPIRED.outbox(), Save(45).paste()));
            calls([h.find(&receive(), |told| gives(told, EXPIRED))])
        })],
        Kind::InboxLost => &[
            ("looked for in vain", |h| {
                let at = h.find(&EXPIRED.look(), |told| *told == Told::Contained(true));
                h.ledger.calls[at].told = Told::Contained(false);
                calls([h.find(&EXPIRED.record(), |_| true), at])
            }),
            ("recorded twice at once", |h| {
                let first = h.find(&EXPIRED.record(), |_| true);
                let mut twin = h.ledger.calls[first].clone();
                twin.at = None;
                h.ledger.calls.push(twin);
                calls([first, h.ledger.calls.len() - 1])
            }),
            ("not in the store", |h| {
                h.store.inbox.retain(|(_, id, _)| *id != DELETED.outbox());
                calls([h.find(&DELETED.record(), |_| true)])
            }),
            ("not in the store, and only ever looked for", |h| {
                h.store.inbox.retain(|(_, id, _)| *id != TOILED.outbox());
                calls([h.find(&TOILED.look(), |told| *told == Told::Contained(true))])
            }),
        ],
        Kind::AckBeforeRecord => &[
            ("acked and then recorded", |h| {
                let (ack, record) = (
                    h.find(&DELETED.ack(), |_| true),
                    h.find(&DELETED.record(), |_| true),
                );
                let kept = h.ledger.calls[record].clone();
                h.ledger.calls[record].op = h.ledger.calls[ack].op.clone();
                h.ledger.calls[record].told = h.ledger.calls[ack].told.clone();
                h.ledger.calls[ack].op = kept.op;
                h.ledger.calls[ack].told = kept.told;
                calls([record])
            }),
            ("acked when the record's outcome was unknown", |h| {
                let at = h.find(&DELETED.record(), |_| true);
                h.ledger.calls[at].told = Told::Unknown;
                calls([at, h.find(&DELETED.ack(), |_| true)])
            }),
            ("gone, and nobody did anything about it", |h| {
                let at = h.find(&receive(), |told| gives(told, UNSURE_DELETE));
                let given = h.ledger.calls[at].clone();
                forget(h, UNSURE_DELETE);
                h.ledger.calls.push(given);
                h.store.objects.remove(&UNSURE_DELETE.paste());
                calls([h.ledger.calls.len() - 1])
            }),
        ],
        Kind::RecordBeforeEffects => &[
            ("the object deleted afterwards", |h| {
                late(h, EffectKind::ObjectDeleted)
            }),
            ("the edge purged afterwards", |h| {
                late(h, EffectKind::EdgePurged)
            }),
        ],
        Kind::EffectBeforeEnd => &[
            ("before anybody was given the message", |h| {
                let at = effect_of(h, EXPIRED);
                h.ledger.effects[at].at = Instant(3_000_000_000);
                Planted {
                    calls: vec![h.find(&receive(), |told| gives(told, EXPIRED))],
                    effects: vec![at],
                }
            }),
            ("and the paste is in the store", |h| {
                let at = h.ledger.effects.len();
                h.call(receive(), LIVES.delivered(1, h.shard_time()));
                h.ledger.effects.push(Effect {
                    at: h.at(),
                    kind: EffectKind::ObjectDeleted,
                    paste: LIVES.paste(),
                    outbox: LIVES.outbox(),
                });
                h.end();
                Planted {
                    calls: vec![h.create_call(LIVES)],
                    effects: vec![at],
                }
            }),
            ("and the paste was found afterwards", |h| {
                let purged = effect_of(h, READ_LATE);
                let at = h.find(&READ_LATE.get(), |_| true);
                let after = Instant(h.ledger.effects[purged].at.0 + 1);
                // Nobody knows of the delete before that.
                let delete = h.find(&READ_LATE.delete(), |_| true);
                h.ledger.calls[delete].returned = Instant(after.0 + 1);
                h.ledger.calls[at].invoked = after;
                h.ledger.calls[at].at = None;
                Planted {
                    calls: vec![at],
                    effects: vec![purged],
                }
            }),
        ],
        Kind::ObjectMissing => &[("of a paste in the store", |h| {
            h.store.objects.remove(&LIVES.paste());
            calls([h.create_call(LIVES)])
        })],
        Kind::LeftOver => &[
            ("the object", |h| {
                h.store.objects.insert(DELETED.paste());
                calls([h.find(&DELETED.record(), |_| true)])
            }),
            ("the edge's copy", |h| {
                h.store.cached.insert(DELETED.paste());
                calls([h.find(&DELETED.record(), |_| true)])
            }),
            ("a late reader's copy, when its time is over", |h| {
                h.store.cached.insert(READ_LATE.paste());
                calls([h.find(&READ_LATE.record(), |_| true)])
            }),
        ],
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

    fn create_call(&self, save: Save) -> usize {
        let named =
            |told: &Told| matches!(told, Told::Created { paste, .. } if *paste == save.paste());
        let found = self.ledger.calls.iter().position(|call| named(&call.told));
        found.expect("its create")
    }
}

fn is_replay(told: &Told) -> bool {
    matches!(told, Told::Created { replayed: true, .. })
}

fn gives(told: &Told, save: Save) -> bool {
    matches!(told, Told::Delivered(all) if all.iter().any(|one| one.outbox == save.outbox()))
}

fn effect_of(h: &History, save: Save) -> usize {
    let mut effects = h.ledger.effects.iter();
    effects
        .position(|effect| effect.paste == save.paste())
        .expect("an effect")
}

/// Nothing was ever heard of its message.
pub(crate) fn forget(h: &mut History, save: Save) {
    let of = [save.record(), save.ack(), save.look()];
    h.ledger
        .calls
        .retain(|call| !of.contains(&call.op) && !gives(&call.told, save));
    h.ledger
        .effects
        .retain(|effect| effect.paste != save.paste());
    h.store.inbox.retain(|(_, id, _)| *id != save.outbox());
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
