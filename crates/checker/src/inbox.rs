//! The inbox: effects, then the record, then the ack; for each consumer its own, for 8 days.

use ostraca_types::contract::INBOX_RETENTION;
use ostraca_types::{OutboxId, Timestamp};

use crate::Context;
use crate::delivery::{Message, Steps};
use crate::ledger::{EffectKind, Instant, Told};
use crate::verdict::{Kind, Verdict};

pub(crate) fn check(
    context: &Context<'_>,
    (consumer, id): (&str, OutboxId),
    message: &Message,
    steps: &Steps,
    verdict: &mut Verdict,
) {
    let of = Of {
        context,
        consumer,
        id,
        message,
        steps,
        subject: format!("message {id} of {consumer}"),
    };
    of.effects_first(verdict);
    of.record_before_ack(verdict);
    of.runs_once(verdict);
    of.lasts(verdict);
}

/// One consumer's part in one message.
struct Of<'a> {
    context: &'a Context<'a>,
    consumer: &'a str,
    id: OutboxId,
    message: &'a Message,
    steps: &'a Steps,
    subject: String,
}

impl Of<'_> {
    fn kinds(&self) -> impl Iterator<Item = EffectKind> + '_ {
        let kinds = EffectKind::ALL.iter().copied();
        kinds.filter(|kind| kind.consumer() == self.consumer)
    }

    fn all_done_by(&self, by: Instant) -> bool {
        self.kinds().all(|kind| {
            let effects = self.message.effects.iter();
            let mut effects = effects.map(|&at| self.context.effects[at]);
            effects.any(|effect| effect.kind == kind && effect.at <= by)
        })
    }

    /// i02: effects, and then the record. And i01: nobody else's record stands for it.
    fn effects_first(&self, verdict: &mut Verdict) {
        let calls = self.context.calls;
        let early = self.steps.records.iter().copied().find(|&at| {
            let sent = !matches!(calls[at].told, Told::Refused { .. });
            sent && !self.all_done_by(calls[at].invoked)
        });
        if let Some(at) = early {
            let text = "recorded before its effects were done";
            verdict.add_with(
                self.context,
                Kind::RecordBeforeEffects,
                &self.subject,
                text,
                &[at],
                &self.message.effects,
            );
        }
        let suppressed = self.steps.looks.iter().copied().find(|&at| {
            calls[at].told == Told::Contained(true) && !self.all_done_by(calls[at].returned)
        });
        if let Some(at) = suppressed.filter(|_| early.is_none()) {
            let text = "it is recorded, and its effects were not done";
            verdict.add(self.context, Kind::Suppressed, &self.subject, text, &[at]);
        }
    }

    /// i02: only when the record is durable, the ack.
    fn record_before_ack(&self, verdict: &mut Verdict) {
        let (calls, steps) = (self.context.calls, self.steps);
        let known_by = |ack: usize| {
            let mut known = steps.known(self.context);
            known.any(|at| calls[at].returned <= calls[ack].invoked)
        };
        let early = steps.acks.iter().copied().find(|&at| {
            // A refused one was sent as well, but may be the routing of one that was not.
            !matches!(calls[at].told, Told::Refused { .. }) && !known_by(at)
        });
        if let Some(at) = early {
            let text = "acked, and nobody had been told that it is recorded";
            let shown: Vec<_> = steps.records.iter().copied().chain([at]).collect();
            verdict.add(
                self.context,
                Kind::AckBeforeRecord,
                &self.subject,
                text,
                &shown,
            );
        }
    }

    /// i02, i06: an effect runs once for each time that somebody was told that it is not recorded.
    fn runs_once(&self, verdict: &mut Verdict) {
        if !self.context.limits.workers_known {
            return;
        }
        let (calls, looks) = (self.context.calls, &self.steps.looks);
        let free = looks
            .iter()
            .filter(|&&at| calls[at].told == Told::Contained(false));
        let mut free: Vec<Instant> = free.map(|&at| calls[at].returned).collect();
        free.sort_unstable();
        // One that ran before that is another matter.
        let given = self.steps.delivered.map(|at| calls[at].returned);
        for kind in self.kinds() {
            let effects = self.message.effects_of(self.context, kind).into_iter();
            let effects = effects.filter(|&at| given <= Some(self.context.effects[at].at));
            for (before, at) in effects.enumerate() {
                let by = self.context.effects[at].at;
                if free.get(before).is_none_or(|&look| look > by) {
                    let text = "done, and nobody had been told that it is not recorded";
                    return verdict.add_with(
                        self.context,
                        Kind::EffectRepeated,
                        &self.subject,
                        text,
                        looks,
                        &[at],
                    );
                }
            }
        }
    }

    /// i05, i06: what was recorded stays so for 8 days, is recorded once, and is over then.
    fn lasts(&self, verdict: &mut Verdict) {
        let Self {
            context,
            steps,
            subject,
            ..
        } = self;
        let calls = context.calls;
        let slot = self.id.slot();
        let known = steps.known(context);
        let Some(first) = known.min_by_key(|&at| (calls[at].returned, at)) else {
            return;
        };
        // It cannot have been recorded, and so begun to count, before it was asked for, or, where who
        // did that was killed, before it had the message.
        let asked = steps.records.iter().copied().chain(steps.delivered);
        let Some(begun) = asked.min_by_key(|&at| calls[at].invoked) else {
            return;
        };
        let over = context.within(slot, begun).0.plus(INBOX_RETENTION);
        let since = calls[first].returned;
        let within = |at: usize| context.within(slot, at).1 < over;
        let lost = steps.looks.iter().copied().find(|&at| {
            let later = calls[at].invoked > since && within(at);
            later && calls[at].told == Told::Contained(false)
        });
        let news = steps.records.iter().copied();
        let news =
            news.filter(|&at| calls[at].told == Told::Recorded { first: true } && within(at));
        // New means that it was not there: not after it was known, and not twice, at once or not.
        let again = news
            .clone()
            .find(|&at| calls[at].invoked > since)
            .or(news.clone().nth(1));
        if let Some(at) = lost.or(again) {
            let text = "it was recorded, and was not there";
            let shown: Vec<_> = news.chain([first, at]).collect();
            return verdict.add(context, Kind::InboxLost, subject, text, &shown);
        }
        let rows = context.store.inbox.iter();
        let mut rows =
            rows.filter(|(consumer, id, _)| (consumer.as_str(), *id) == (self.consumer, self.id));
        let short = match rows.next() {
            None => context.now(slot).is_some_and(|now| now < over),
            Some((.., until)) => *until < over,
        };
        if short {
            let text = "it was recorded, and is not in the store for its 8 days";
            return verdict.add(context, Kind::InboxLost, subject, text, &[first]);
        }
        self.ends(verdict);
    }

    /// i06: after 8 days it is new again.
    fn ends(&self, verdict: &mut Verdict) {
        let (context, calls) = (self.context, self.context.calls);
        // One whose outcome nobody knows may have come late, and begun to count anew.
        let told = |&at: &usize| matches!(calls[at].told, Told::Recorded { .. });
        let records = &self.steps.records;
        if !context.limits.workers_known || !records.iter().all(told) {
            return;
        }
        let slot = self.id.slot();
        let latest = records.iter().map(|&at| context.within(slot, at).1).max();
        let Some(over) = latest.map(|latest: Timestamp| latest.plus(INBOX_RETENTION)) else {
            return;
        };
        let late = self.steps.looks.iter().copied().find(|&at| {
            calls[at].told == Told::Contained(true) && context.within(slot, at).0 >= over
        });
        if let Some(at) = late {
            let text = "its 8 days were over, and it was there";
            let shown: Vec<_> = records.iter().copied().chain([at]).collect();
            verdict.add(context, Kind::InboxKeptTooLong, &self.subject, text, &shown);
        }
    }
}
