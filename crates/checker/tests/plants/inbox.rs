//! Of effects and the inbox.

use ostraca_checker::{Effect, EffectKind, Instant, Told};

use super::{Plant, Planted, calls, effect_of, gives, late};
use crate::healthy::*;

pub(super) const INBOX_LOST: &[(&str, Plant)] = &[
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
        h.store
            .inbox
            .retain(|(who, id, _)| who != PURGE || *id != TOILED.outbox());
        calls([h.find(&TOILED.look(), |told| *told == Told::Contained(true))])
    }),
    ("in the store for less than its time", |h| {
        let rows = h.store.inbox.iter_mut();
        for row in rows.filter(|(_, id, _)| *id == DELETED.outbox()) {
            row.2.0 -= DAY;
        }
        calls([h.find(&DELETED.record(), |_| true)])
    }),
];

pub(super) const INBOX_KEPT_TOO_LONG: &[(&str, Plant)] = &[("nine days later", |h| {
    h.now += 9 * DAY;
    h.get(LIVES);
    let at = h.call(DELETED.look(), Told::Contained(true));
    h.store.inbox.clear();
    h.store.keys.clear();
    h.end();
    calls([h.find(&DELETED.record(), |_| true), at])
})];

pub(super) const SUPPRESSED: &[(&str, Plant)] = &[("by the other's record", |h| {
    let look = TOILED.looks(SEARCH);
    let record = TOILED.records(SEARCH);
    h.ledger.calls.retain(|call| call.op != record);
    h.ledger
        .effects
        .retain(|effect| effect.outbox != TOILED.outbox() || effect.kind != EffectKind::Unlisted);
    let at = h.find(&look, |_| true);
    h.ledger.calls[at].told = Told::Contained(true);
    calls([at])
})];

pub(super) const ACK_BEFORE_RECORD: &[(&str, Plant)] = &[
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
];

pub(super) const EFFECT_REPEATED: &[(&str, Plant)] = &[("though it is recorded", |h| {
    h.call(TOILED.looks(SEARCH), Told::Contained(true));
    h.effect(EffectKind::Unlisted, TOILED);
    h.end();
    Planted {
        calls: vec![h.find(&TOILED.looks(SEARCH), |_| true)],
        effects: vec![h.ledger.effects.len() - 1],
    }
})];

pub(super) const RECORD_BEFORE_EFFECTS: &[(&str, Plant)] = &[
    ("the object deleted afterwards", |h| {
        late(h, EffectKind::ObjectDeleted)
    }),
    ("the edge purged afterwards", |h| {
        late(h, EffectKind::EdgePurged)
    }),
];

pub(super) const EFFECT_BEFORE_END: &[(&str, Plant)] = &[
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
        h.call(LIVES.look(), Told::Contained(false));
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
];

pub(super) const OBJECT_MISSING: &[(&str, Plant)] = &[("of a paste in the store", |h| {
    h.store.objects.remove(&LIVES.paste());
    calls([h.create_call(LIVES)])
})];

pub(super) const LEFT_OVER: &[(&str, Plant)] = &[
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
];
