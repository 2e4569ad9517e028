//! Of messages, attempts and dead letters.

use ostraca_checker::{Call, MessageState, Op, Told};
use ostraca_types::Timestamp;

use super::{Plant, Planted, calls, forget, gives};
use crate::healthy::messages::GIVEN_UP;
use crate::healthy::*;

pub(super) const END_WITHOUT_MESSAGE: &[(&str, Plant)] = &[
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
];

pub(super) const TWO_MESSAGES: &[(&str, Plant)] = &[("one of them in the store", |h| {
    let row = ended(h, Save(44), EXPIRED);
    h.store.undelivered.push(row);
    calls([h.create_call(EXPIRED)])
})];

pub(super) const MESSAGE_SHARED: &[(&str, Plant)] = &[("one of them in the store", |h| {
    let row = ended(h, EXPIRED, Save(45));
    h.store.undelivered.push(row);
    calls([h.find(&receive(), |told| gives(told, EXPIRED))])
})];

pub(super) const MESSAGE_LOST: &[(&str, Plant)] = &[
    ("gone, and nobody did anything about it", |h| {
        let at = h.find(&receive(), |told| gives(told, EXPIRED));
        let given = h.ledger.calls[at].clone();
        forget(h, EXPIRED);
        h.ledger.calls.push(given);
        h.store.shards[0].dropped = 1;
        calls([h.ledger.calls.len() - 1])
    }),
    ("gone, and one of two consumers did not record it", |h| {
        let given = h.find(&search(), |told| gives(told, TOILED));
        let of = (SEARCH, TOILED);
        steps(h, of, |call| matches!(call.op, Op::Receive { .. }));
        undone(h, of);
        h.store.shards[0].dropped = 1;
        calls([given])
    }),
];

pub(super) const CONSUMER_SKIPPED: &[(&str, Plant)] = &[
    ("of a paste that was created after its registration", |h| {
        let of = (SEARCH, READ_LATE);
        steps(h, of, |_| false);
        undone(h, of);
        calls([h.create_call(READ_LATE)])
    }),
    ("of a paste that was deleted after its registration", |h| {
        let at = h.call(LIVES.delete(), Told::Deleted);
        h.end_of(LIVES);
        h.purge(LIVES, 1);
        h.end();
        calls([at])
    }),
    ("the first of them", |h| {
        let of = (PURGE, UNSURE_DELETE);
        steps(h, of, |_| false);
        undone(h, of);
        calls([h.create_call(UNSURE_DELETE)])
    }),
];

pub(super) const MESSAGE_OVER_AGE: &[(&str, Plant)] = &[
    ("delivered", |h| {
        let ended_at = Timestamp(START - 7 * DAY);
        let at = h.call(receive(), EXPIRED.delivered(2, ended_at));
        h.end();
        calls([at])
    }),
    ("kept", |h| {
        let mut row = ended(h, UNSURE, UNSURE);
        row.ended_at = Timestamp(START - 7 * DAY);
        h.store.undelivered.push(row);
        Planted::default()
    }),
];

pub(super) const DROP_NOT_COUNTED: &[(&str, Plant)] = &[("never acked, and gone", |h| {
    h.ledger.calls.retain(|call| call.op != DELETED.ack());
    calls([h.find(&receive(), |told| gives(told, DELETED))])
})];

pub(super) const DEAD_TOO_EARLY: &[(&str, Plant)] = &[
    ("after eleven attempts", |h| {
        let at = listed(h);
        if let Told::Dead(letters) = &mut h.ledger.calls[at].told {
            letters[0].attempts -= 1;
        }
        calls([at])
    }),
    ("within six hours", |h| {
        let at = listed(h);
        if let Told::Dead(letters) = &mut h.ledger.calls[at].told {
            letters[0].dead_at = Timestamp(letters[0].ended_at.0 + 6 * HOUR - 1);
        }
        calls([at])
    }),
    ("within six hours of its replay", |h| {
        let replay = h.find(&GIVEN_UP.replays(), |told| *told == Told::Replayed(true));
        let (ended_at, now) = (h.time_of(replay), h.shard_time());
        let ended_at = Timestamp(ended_at.0 - 7 * HOUR);
        let at = h.list_dead(12, ended_at, now);
        let first = h.ledger.calls[replay].invoked.0 / 1_000_000 + START;
        if let Told::Dead(letters) = &mut h.ledger.calls[at].told {
            letters[0].dead_at = Timestamp(first + HOUR);
        }
        h.end();
        calls([replay, at])
    }),
];

pub(super) const WRONG_HANDLE: &[(&str, Plant)] = &[
    ("an old one gives back", |h| {
        let old = h.find(&GIVEN_UP.nacks(by(PURGE, 2, 1)), |told| {
            *told == Told::Settled(false)
        });
        h.ledger.calls[old].told = Told::Settled(true);
        calls([old])
    }),
    ("one from before the replay extends", |h| {
        let op = GIVEN_UP.extends(by(PURGE, 2, 12));
        let old = h.find(&op, |told| *told == Told::Settled(false));
        h.ledger.calls[old].told = Told::Settled(true);
        calls([old])
    }),
    ("an old one acks", |h| {
        let given = h.find(&search(), |told| gives(told, READ_LATE));
        let ack = h.find(&READ_LATE.acks(by(SEARCH, 2, 1)), |_| true);
        let mut newer = h.ledger.calls[given].clone();
        newer.told = READ_LATE.delivered(2, h.time_of(given));
        // Between the two in the log.
        newer.at = h.ledger.calls[ack - 1].at;
        newer.invoked = h.ledger.calls[ack - 1].invoked;
        newer.returned = h.ledger.calls[ack - 1].returned;
        h.ledger.calls[ack - 1].at = None;
        h.ledger.calls.push(newer);
        calls([ack, h.ledger.calls.len() - 1])
    }),
    ("the newest does not ack", |h| {
        let ack = h.find(&READ_LATE.acks(by(SEARCH, 2, 1)), |_| true);
        h.ledger.calls[ack].told = Told::Settled(false);
        h.store.shards[0].dropped = 1;
        calls([ack])
    }),
    ("one for two attempts", |h| {
        let given = h.find(&search(), |told| gives(told, READ_LATE));
        let told = h.ledger.calls[given].told.clone();
        h.call(search(), told);
        h.end();
        calls([given, h.ledger.calls.len() - 1])
    }),
    ("delivered after its ack", |h| {
        let ack = h.find(&READ_LATE.acks(by(SEARCH, 2, 1)), |_| true);
        let told = READ_LATE.delivered(2, h.time_of(ack));
        let at = h.call(search(), told);
        h.end();
        calls([ack, at])
    }),
    ("acked twice", |h| {
        let ack = h.find(&READ_LATE.acks(by(SEARCH, 2, 1)), |_| true);
        let at = h.call(READ_LATE.acks(by(SEARCH, 2, 1)), Told::Settled(true));
        h.end();
        calls([ack, at])
    }),
];

fn search() -> Op {
    let consumer = SEARCH.to_owned();
    Op::Receive { consumer }
}

fn listed(h: &History) -> usize {
    let consumer = PURGE.to_owned();
    h.find(&Op::DeadLetters { consumer }, |_| true)
}

pub(super) fn ended(h: &History, message: Save, paste: Save) -> MessageState {
    MessageState {
        outbox: message.outbox(),
        paste: paste.paste(),
        ended_at: h.shard_time(),
    }
}

/// Of a consumer's steps with a message only those are left.
fn steps(h: &mut History, (consumer, save): (&str, Save), keep: fn(&Call) -> bool) {
    let of = |op: &Op| match op {
        Op::Receive { consumer: who } => who == consumer,
        Op::Ack {
            consumer: who,
            outbox,
            ..
        }
        | Op::Record {
            consumer: who,
            outbox,
        }
        | Op::Contains {
            consumer: who,
            outbox,
        } => who == consumer && *outbox == save.outbox(),
        _ => false,
    };
    h.ledger.calls.retain(|call| {
        let given = !matches!(call.op, Op::Receive { .. }) || gives(&call.told, save);
        !(of(&call.op) && given) || keep(call)
    });
}

/// The consumer did nothing about it.
fn undone(h: &mut History, (consumer, save): (&str, Save)) {
    let effects = |effect: &ostraca_checker::Effect| {
        effect.outbox == save.outbox() && effect.kind.consumer() == consumer
    };
    h.ledger.effects.retain(|effect| !effects(effect));
    let inbox = |(who, id, _): &(String, _, _)| who == consumer && *id == save.outbox();
    h.store.inbox.retain(|row| !inbox(row));
}
