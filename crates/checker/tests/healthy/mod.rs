//! A history of everything that can happen and nothing that cannot, and the store that it leaves.

pub(crate) mod messages;

use ostraca_checker::{
    Begun, Call, Delivered, Effect, EffectKind, Instant, KeyState, Ledger, Op, PasteState,
    Position, ShardState, Store, Time, Told,
};
use ostraca_types::contract::IDEMPOTENCY_RETENTION;
use ostraca_types::{KeyDigest, OutboxId, PasteId, RequestDigest, Slot, Timestamp, TokenHash};

/// Shard time when the ledger begins.
pub(crate) const START: u64 = 1_700_000_000_000;
pub(crate) const HOUR: u64 = 3_600_000;
pub(crate) const DAY: u64 = 24 * HOUR;
/// A lifetime that nothing here outlasts.
pub(crate) const LONG: u64 = 30 * DAY;
pub(crate) const PURGE: &str = "purge";

pub(crate) use messages::{SEARCH, by};

/// Who saves what: a number names a key, its request, its paste, its token and its message.
#[derive(Clone, Copy)]
pub(crate) struct Save(pub(crate) u8);

impl Save {
    pub(crate) fn key(self) -> KeyDigest {
        KeyDigest([self.0; 16])
    }

    pub(crate) fn request(self) -> RequestDigest {
        RequestDigest([self.0; 32])
    }

    pub(crate) fn paste(self) -> PasteId {
        PasteId::mint(Slot(self.0), |bytes| bytes.fill(self.0))
    }

    pub(crate) fn token(self) -> TokenHash {
        TokenHash([self.0; 32])
    }

    pub(crate) fn outbox(self) -> OutboxId {
        OutboxId::from_parts(Slot(self.0), &[self.0; 15]).expect("in range")
    }

    pub(crate) fn get(self) -> Op {
        let paste = self.paste();
        Op::Get { paste }
    }

    pub(crate) fn delete(self) -> Op {
        let (paste, token) = (self.paste(), self.token());
        Op::Delete { paste, token }
    }

    /// A create with this key, of what `request` saves.
    pub(crate) fn create_of(self, request: Self, lifetime_ms: u64) -> Op {
        Op::Create {
            key: self.key(),
            request: request.request(),
            lifetime_ms,
        }
    }

    pub(crate) fn record(self) -> Op {
        let (consumer, outbox) = (PURGE.to_owned(), self.outbox());
        Op::Record { consumer, outbox }
    }

    pub(crate) fn ack(self) -> Op {
        let (consumer, outbox) = (PURGE.to_owned(), self.outbox());
        let attempt = None;
        Op::Ack {
            consumer,
            outbox,
            attempt,
        }
    }

    pub(crate) fn nack(self) -> Op {
        let (consumer, outbox) = (PURGE.to_owned(), self.outbox());
        let attempt = None;
        Op::Nack {
            consumer,
            outbox,
            attempt,
        }
    }

    pub(crate) fn look(self) -> Op {
        let (consumer, outbox) = (PURGE.to_owned(), self.outbox());
        Op::Contains { consumer, outbox }
    }

    pub(crate) fn delivered(self, attempt: u32, ended_at: Timestamp) -> Told {
        Told::Delivered(vec![Delivered {
            outbox: self.outbox(),
            paste: self.paste(),
            attempt,
            ended_at,
        }])
    }

    pub(crate) fn created(self, expires_at: Timestamp, replayed: bool) -> Told {
        Told::Created {
            paste: self.paste(),
            expires_at,
            token: self.token(),
            replayed,
        }
    }
}

pub(crate) fn receive() -> Op {
    let consumer = PURGE.to_owned();
    Op::Receive { consumer }
}

pub(crate) fn refused(reason: &str) -> Told {
    let reason = reason.to_owned();
    Told::Refused { reason }
}

/// Written down as it goes on, one call after the other, each of a millisecond.
pub(crate) struct History {
    pub(crate) ledger: Ledger,
    pub(crate) store: Store,
    /// Milliseconds since the start.
    pub(crate) now: u64,
    pub(crate) epoch: u64,
    pub(crate) sequence: u64,
}

impl History {
    fn new() -> Self {
        Self {
            ledger: Ledger::default(),
            store: Store {
                owners: vec![0; 256],
                ..Store::default()
            },
            now: 0,
            epoch: 1,
            sequence: 1,
        }
    }

    pub(crate) fn at(&self) -> Instant {
        Instant(self.now * 1_000_000)
    }

    pub(crate) fn shard_time(&self) -> Timestamp {
        Timestamp(START + self.now)
    }

    /// Shard time when a call was asked.
    pub(crate) fn time_of(&self, call: usize) -> Timestamp {
        Timestamp(START + self.ledger.calls[call].invoked.0 / 1_000_000)
    }

    /// One more call, of which the store learns nothing.
    pub(crate) fn call(&mut self, op: Op, told: Told) -> usize {
        let appends = match &told {
            Told::Created { replayed, .. } => !replayed,
            Told::Deleted
            | Told::Settled(_)
            | Told::Recorded { .. }
            | Told::Registered
            | Told::Replayed(_) => true,
            Told::Delivered(messages) => !messages.is_empty(),
            _ => false,
        };
        self.sequence += u64::from(appends);
        let decided = !matches!(told, Told::Refused { .. } | Told::Unknown);
        let invoked = self.at();
        self.now += 1;
        self.ledger.calls.push(Call {
            client: 1,
            invoked,
            returned: self.at(),
            op,
            told,
            at: decided.then_some(Position {
                shard: 0,
                epoch: self.epoch,
                sequence: self.sequence,
            }),
            begun: None,
        });
        self.now += 1;
        self.ledger.calls.len() - 1
    }

    pub(crate) fn create(&mut self, save: Save, lifetime_ms: u64) -> Timestamp {
        let expires_at = Timestamp(self.shard_time().0 + lifetime_ms);
        self.call(
            save.create_of(save, lifetime_ms),
            save.created(expires_at, false),
        );
        self.keep(save, save, expires_at, lifetime_ms);
        expires_at
    }

    pub(crate) fn again(&mut self, save: Save, expires_at: Timestamp, lifetime_ms: u64) -> usize {
        self.call(
            save.create_of(save, lifetime_ms),
            save.created(expires_at, true),
        )
    }

    /// The rows of a create under a key.
    pub(crate) fn keep(&mut self, key: Save, save: Save, expires_at: Timestamp, lifetime_ms: u64) {
        self.store.pastes.push(PasteState {
            id: save.paste(),
            expires_at,
            token: save.token(),
            outbox: save.outbox(),
        });
        self.store.keys.push(KeyState {
            digest: key.key(),
            paste: save.paste(),
            expires_at: Timestamp(expires_at.0 - lifetime_ms).plus(IDEMPOTENCY_RETENTION),
        });
        self.store.objects.insert(save.paste());
    }

    /// A create that nobody heard the answer of was committed an hour after its begin.
    pub(crate) fn unheard(&mut self, call: usize, save: Save) {
        let created = self.time_of(call);
        self.ledger.calls[call].begun = Some(Begun {
            paste: save.paste(),
            at: Some(Time(Timestamp(created.0 - HOUR))),
        });
        self.sequence += 1;
        self.keep(save, save, Timestamp(created.0 + LONG), LONG);
    }

    /// A read, which finds what is in the store.
    pub(crate) fn get(&mut self, save: Save) -> usize {
        let row = self.store.pastes.iter().find(|row| row.id == save.paste());
        let now = self.shard_time();
        let told = row
            .filter(|row| now < row.expires_at)
            .map(|row| Told::Found {
                now,
                expires_at: row.expires_at,
            });
        self.call(save.get(), told.unwrap_or(Told::Missing))
    }

    /// The paste's row is gone.
    pub(crate) fn end_of(&mut self, save: Save) {
        self.store.pastes.retain(|row| row.id != save.paste());
    }

    pub(crate) fn effect(&mut self, kind: EffectKind, save: Save) {
        self.ledger.effects.push(Effect {
            at: self.at(),
            kind,
            paste: save.paste(),
            outbox: save.outbox(),
        });
        self.now += 1;
    }

    /// The worker's order of steps, from a delivery on.
    pub(crate) fn purge(&mut self, save: Save, attempt: u32) {
        self.end_of(save);
        self.call(receive(), save.delivered(attempt, self.shard_time()));
        self.call(save.look(), Told::Contained(false));
        self.effect(EffectKind::ObjectDeleted, save);
        self.effect(EffectKind::EdgePurged, save);
        self.store.objects.remove(&save.paste());
        self.call(save.record(), Told::Recorded { first: true });
        self.recorded(PURGE, save);
        self.call(save.ack(), Told::Settled(true));
    }

    pub(crate) fn recorded(&mut self, consumer: &str, save: Save) {
        let until = Timestamp(self.shard_time().0 + 8 * DAY);
        self.store
            .inbox
            .push((consumer.to_owned(), save.outbox(), until));
    }

    /// The shard, as it is found at the end.
    pub(crate) fn end(&mut self) {
        self.store.shards = vec![ShardState {
            shard: 0,
            epoch: self.epoch,
            sequence: self.sequence,
            now: self.shard_time(),
            dropped: 0,
        }];
    }
}

/// Deleted; its create is retried before and after.
pub(crate) const DELETED: Save = Save(1);
/// Never ends.
pub(crate) const LIVES: Save = Save(2);
/// Ends by its expiry.
pub(crate) const EXPIRED: Save = Save(3);
/// Created by a call that nobody heard the answer of.
pub(crate) const UNSURE: Save = Save(4);
/// A create that nobody heard of, and that never was.
pub(crate) const NEVER: Save = Save(5);
/// Created by two at once.
pub(crate) const RACE: Save = Save(6);
/// Ended by a delete that nobody heard the answer of.
pub(crate) const UNSURE_DELETE: Save = Save(7);
/// A key that is used again when its time is over.
pub(crate) const REUSED: Save = Save(8);
/// What it is used for then.
pub(crate) const REUSED_LATER: Save = Save(9);
/// Its message takes three attempts, the second by a worker that is killed.
pub(crate) const TOILED: Save = Save(10);
/// Read while the edge was purged.
pub(crate) const READ_LATE: Save = Save(11);
/// Created, for somebody who never heard of it, with another request than the one that did.
pub(crate) const TAKEN: Save = Save(12);
/// Created for somebody who never heard of it, and never asked again.
pub(crate) const UNHEARD: Save = Save(15);
/// Some request that nobody keeps.
pub(crate) const OTHER: Save = Save(99);

pub(crate) fn healthy() -> History {
    let mut h = History::new();
    creates(&mut h);
    ends(&mut h);
    another_leader(&mut h);
    h.gives_up();
    h.now += 26 * HOUR;
    h.get(LIVES);
    // Their keys' time is over.
    let kept = |row: &KeyState| row.digest == RACE.key();
    h.store.keys.retain(kept);
    let expires_at = Timestamp(h.shard_time().0 + LONG);
    let told = REUSED_LATER.created(expires_at, false);
    h.call(REUSED.create_of(REUSED_LATER, LONG), told);
    h.keep(REUSED, REUSED_LATER, expires_at, LONG);
    h.call(REUSED.create_of(REUSED, LONG), Told::Conflict);
    h.get(REUSED);
    h.call(EXPIRED.look(), Told::Contained(true));
    h.get(LIVES);
    h.end();
    h
}

fn creates(h: &mut History) {
    h.call(DELETED.create_of(DELETED, LONG), refused("NOT_LEADER"));
    let first = h.create(DELETED, LONG);
    h.again(DELETED, first, LONG);
    h.call(DELETED.create_of(OTHER, LONG), Told::Conflict);
    h.get(DELETED);
    let op = Op::Delete {
        paste: DELETED.paste(),
        token: OTHER.token(),
    };
    h.call(op, Told::TokenRejected);
    h.create(LIVES, LONG);
    h.get(LIVES);
    h.create(EXPIRED, 5_000);
    h.get(EXPIRED);
    // Some seconds before answers tell of a time at which it is over.
    let op = Op::Delete {
        paste: EXPIRED.paste(),
        token: OTHER.token(),
    };
    h.call(op, Told::TokenRejected);
    h.create(REUSED, LONG);

    // Nobody heard, and it was done.
    let expires_at = Timestamp(h.shard_time().0 + LONG);
    h.call(UNSURE.create_of(UNSURE, LONG), Told::Unknown);
    h.sequence += 1;
    h.keep(UNSURE, UNSURE, expires_at, LONG);
    h.again(UNSURE, expires_at, LONG);
    h.get(UNSURE);
    // Nobody heard, and it was not.
    h.call(NEVER.create_of(NEVER, LONG), Told::Unknown);
    h.call(NEVER.create_of(NEVER, LONG), refused("OVERLOADED"));
    h.create(NEVER, LONG);

    // At once: one makes it, one is told so, and one had something else in mind.
    let race = h.create(RACE, LONG);
    let twin = h.again(RACE, race, LONG);
    let other = h.call(RACE.create_of(OTHER, LONG), Told::Conflict);
    let begun = h.ledger.calls[twin - 1].invoked;
    for (client, at) in [(2, twin), (3, other)] {
        h.ledger.calls[at].invoked = begun;
        h.ledger.calls[at].client = client;
    }
    h.call(LIVES.delete(), refused("DRAINING"));

    // Used by somebody who never heard of it.
    let expires_at = Timestamp(h.shard_time().0 + LONG);
    h.call(TAKEN.create_of(OTHER, LONG), Told::Unknown);
    h.sequence += 1;
    h.keep(TAKEN, TAKEN, expires_at, LONG);
    h.call(TAKEN.create_of(TAKEN, LONG), Told::Conflict);

    let at = h.call(UNHEARD.create_of(UNHEARD, LONG), Told::Unknown);
    h.unheard(at, UNHEARD);
}

fn ends(h: &mut History) {
    let row = h.store.pastes[0];
    h.end_of(DELETED);
    let deleted = h.call(DELETED.delete(), Told::Deleted);
    // Asked before it was gone, and answered after.
    let told = Told::Found {
        now: h.time_of(deleted),
        expires_at: row.expires_at,
    };
    let at = h.call(DELETED.get(), told);
    h.ledger.calls[at].invoked = h.ledger.calls[deleted].invoked;
    if let Some(position) = &mut h.ledger.calls[at].at {
        position.sequence -= 1;
    }
    h.get(DELETED);
    h.call(DELETED.delete(), Told::Missing);
    h.again(DELETED, row.expires_at, LONG);
    h.purge(DELETED, 1);
    // An ack of an attempt that is over.
    h.call(DELETED.ack(), Told::Settled(false));
}

fn another_leader(h: &mut History) {
    h.epoch = 2;
    h.sequence += 1;
    h.register();
    h.create(UNSURE_DELETE, LONG);
    h.call(UNSURE_DELETE.delete(), Told::Unknown);
    h.sequence += 1;
    h.end_of(UNSURE_DELETE);
    h.get(UNSURE_DELETE);
    h.purge(UNSURE_DELETE, 1);
    h.search(UNSURE_DELETE);
    h.now += 6_000;
    h.get(EXPIRED);
    h.get(LIVES);
    h.sequence += 1;
    h.purge(EXPIRED, 1);
    h.call(receive(), Told::Delivered(Vec::new()));

    h.create(TOILED, LONG);
    h.end_of(TOILED);
    h.call(TOILED.delete(), Told::Deleted);
    h.call(receive(), TOILED.delivered(1, h.shard_time()));
    h.call(TOILED.look(), Told::Contained(false));
    h.call(TOILED.nack(), Told::Settled(true));
    h.call(receive(), TOILED.delivered(2, h.shard_time()));
    h.call(TOILED.look(), Told::Unknown);
    h.call(TOILED.look(), Told::Contained(false));
    h.effect(EffectKind::ObjectDeleted, TOILED);
    h.effect(EffectKind::EdgePurged, TOILED);
    h.store.objects.remove(&TOILED.paste());
    // The worker is killed here, and nobody wrote down that it had recorded the message.
    h.sequence += 1;
    h.recorded(PURGE, TOILED);
    h.search(TOILED);
    h.call(receive(), TOILED.delivered(3, h.shard_time()));
    h.call(TOILED.look(), Told::Contained(true));
    h.call(TOILED.ack(), Told::Unknown);

    h.create(READ_LATE, LONG);
    let read = h.get(READ_LATE);
    h.end_of(READ_LATE);
    h.call(READ_LATE.delete(), Told::Deleted);
    h.purge(READ_LATE, 1);
    h.search(READ_LATE);
    h.ledger.calls[read].returned = h.at();
    // An orphan, of a create that never committed.
    h.store.objects.insert(OTHER.paste());
}
