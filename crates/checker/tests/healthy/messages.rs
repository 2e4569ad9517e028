//! A second consumer, handles, and a message that is given up and replayed.

use ostraca_checker::{Attempt, DeadLetter, EffectKind, Op, Told};

use super::{HOUR, History, LIVES, LONG, PURGE, Save, receive};

/// Registered in the middle of it all.
pub(crate) const SEARCH: &str = "search";
/// Its message fails for hours, is given up, and replayed.
pub(crate) const GIVEN_UP: Save = Save(13);
/// Attempts until it is given up.
const ATTEMPTS: u32 = 12;

/// A step of a consumer, by the handle of an attempt where there is one.
pub(crate) fn by(consumer: &str, epoch: u64, number: u32) -> (String, Option<Attempt>) {
    (consumer.to_owned(), Some(Attempt { number, epoch }))
}

impl Save {
    pub(crate) fn acks(self, (consumer, attempt): (String, Option<Attempt>)) -> Op {
        Op::Ack {
            consumer,
            outbox: self.outbox(),
            attempt,
        }
    }

    pub(crate) fn nacks(self, (consumer, attempt): (String, Option<Attempt>)) -> Op {
        Op::Nack {
            consumer,
            outbox: self.outbox(),
            attempt,
        }
    }

    pub(crate) fn extends(self, (consumer, attempt): (String, Option<Attempt>)) -> Op {
        Op::Extend {
            consumer,
            outbox: self.outbox(),
            attempt,
        }
    }

    pub(crate) fn replays(self) -> Op {
        Op::Replay {
            consumer: PURGE.to_owned(),
            outbox: self.outbox(),
        }
    }

    pub(crate) fn looks(self, consumer: &str) -> Op {
        Op::Contains {
            consumer: consumer.to_owned(),
            outbox: self.outbox(),
        }
    }

    pub(crate) fn records(self, consumer: &str) -> Op {
        Op::Record {
            consumer: consumer.to_owned(),
            outbox: self.outbox(),
        }
    }
}

impl History {
    pub(super) fn register(&mut self) {
        let consumer = SEARCH.to_owned();
        self.call(Op::Register { consumer }, Told::Registered);
    }

    /// The second consumer is done with a message at its first attempt.
    pub(super) fn search(&mut self, save: Save) {
        let consumer = SEARCH.to_owned();
        let given = save.delivered(1, self.shard_time());
        self.call(Op::Receive { consumer }, given);
        self.call(save.looks(SEARCH), Told::Contained(false));
        self.effect(EffectKind::Unlisted, save);
        self.call(save.records(SEARCH), Told::Recorded { first: true });
        self.recorded(SEARCH, save);
        let attempt = by(SEARCH, self.epoch, 1);
        self.call(save.acks(attempt), Told::Settled(true));
    }

    /// An outage of hours: each attempt fails, handles come late and twice, and a person replays what
    /// was given up.
    pub(super) fn gives_up(&mut self) {
        let epoch = self.epoch;
        self.create(GIVEN_UP, LONG);
        self.end_of(GIVEN_UP);
        let ended_at = self.shard_time();
        self.call(GIVEN_UP.delete(), Told::Deleted);
        self.search(GIVEN_UP);
        for number in 1..=ATTEMPTS {
            let attempt = by(PURGE, epoch, number);
            self.call(receive(), GIVEN_UP.delivered(number, ended_at));
            if number > 1 {
                let old = by(PURGE, epoch, number - 1);
                self.call(GIVEN_UP.nacks(old), Told::Settled(false));
            }
            self.call(GIVEN_UP.extends(attempt.clone()), Told::Settled(true));
            self.call(GIVEN_UP.looks(PURGE), Told::Contained(false));
            self.now += HOUR / 2;
            self.call(GIVEN_UP.nacks(attempt), Told::Settled(true));
        }
        self.now += HOUR;
        let dead_at = self.shard_time();
        self.list_dead(ATTEMPTS, ended_at, dead_at);
        self.get(LIVES);
        self.call(GIVEN_UP.replays(), Told::Replayed(true));
        self.call(GIVEN_UP.replays(), Told::Replayed(false));
        let old = by(PURGE, epoch, ATTEMPTS);
        self.call(GIVEN_UP.extends(old), Told::Settled(false));
        let last = ATTEMPTS + 1;
        self.call(receive(), GIVEN_UP.delivered(last, ended_at));
        self.call(GIVEN_UP.looks(PURGE), Told::Contained(false));
        self.effect(EffectKind::ObjectDeleted, GIVEN_UP);
        self.effect(EffectKind::EdgePurged, GIVEN_UP);
        self.store.objects.remove(&GIVEN_UP.paste());
        self.call(GIVEN_UP.records(PURGE), Told::Recorded { first: true });
        self.recorded(PURGE, GIVEN_UP);
        for done in [true, false] {
            let attempt = by(PURGE, epoch, last);
            self.call(GIVEN_UP.acks(attempt), Told::Settled(done));
        }
    }

    /// A list of what was given up, with this message in it.
    pub(crate) fn list_dead(
        &mut self,
        attempts: u32,
        ended_at: ostraca_types::Timestamp,
        dead_at: ostraca_types::Timestamp,
    ) -> usize {
        let consumer = PURGE.to_owned();
        let letter = DeadLetter {
            outbox: GIVEN_UP.outbox(),
            paste: GIVEN_UP.paste(),
            attempts,
            ended_at,
            dead_at,
        };
        self.call(Op::DeadLetters { consumer }, Told::Dead(vec![letter]))
    }
}
