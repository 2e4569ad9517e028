//! Messages, the inbox, and what was done to the world.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use ostraca_types::contract::{EDGE_MAX_AGE, INBOX_RETENTION, OUTBOX_RETENTION};
use ostraca_types::{OutboxId, PasteId};

use crate::Context;
use crate::ledger::{EffectKind, Instant, Op, Told, short};
use crate::verdict::{Kind, Verdict};

/// Whose work is done when a paste's object is away.
const PURGE: &str = "purge";

/// What is known of one message.
#[derive(Default)]
struct Message {
    /// Whose end it tells, and the first call that was given it.
    pastes: BTreeMap<PasteId, Option<usize>>,
    /// The first delivery.
    delivered: Option<usize>,
    consumers: BTreeMap<String, Steps>,
    effects: Vec<usize>,
    /// The store still has it, or the paste that it is of.
    is_kept: bool,
}

/// The steps of one consumer.
#[derive(Default)]
struct Steps {
    delivered: Option<usize>,
    records: Vec<usize>,
    looks: Vec<usize>,
    acks: Vec<usize>,
}

pub(crate) fn check(context: &Context<'_>, verdict: &mut Verdict) {
    let messages = messages(context);
    let mut of: BTreeMap<PasteId, BTreeSet<OutboxId>> = BTreeMap::new();
    for (id, message) in &messages {
        for paste in message.pastes.keys() {
            of.entry(*paste).or_default().insert(*id);
        }
        message.check(context, *id, verdict);
    }
    for (paste, ids) in &of {
        if ids.len() > 1 {
            let calls = ids.iter().filter_map(|id| messages[id].delivered);
            let calls: Vec<_> = calls.chain(context.created.get(paste).copied()).collect();
            let text = format!("{} messages", ids.len());
            let subject = format!("paste {paste}");
            verdict.add(context, Kind::TwoMessages, subject, text, &calls);
        }
    }
    ends(context, &of, verdict);
    objects(context, &messages, verdict);
}

fn messages(context: &Context<'_>) -> BTreeMap<OutboxId, Message> {
    let mut messages: BTreeMap<OutboxId, Message> = BTreeMap::new();
    let calls = context.calls;
    let first = |known: &mut Option<usize>, at: usize| {
        if known.is_none_or(|first| calls[at].returned < calls[first].returned) {
            *known = Some(at);
        }
    };
    for (at, call) in calls.iter().enumerate() {
        let (consumer, outbox) = match (&call.op, &call.told) {
            (Op::Receive { consumer }, Told::Delivered(delivered)) => {
                for one in delivered {
                    let message = messages.entry(one.outbox).or_default();
                    first(message.pastes.entry(one.paste).or_default(), at);
                    first(&mut message.delivered, at);
                    let steps = message.consumers.entry(consumer.clone()).or_default();
                    first(&mut steps.delivered, at);
                }
                continue;
            }
            (
                Op::Ack { consumer, outbox }
                | Op::Record { consumer, outbox }
                | Op::Contains { consumer, outbox },
                _,
            ) => (consumer, *outbox),
            _ => continue,
        };
        let message = messages.entry(outbox).or_default();
        let steps = message.consumers.entry(consumer.clone()).or_default();
        match &call.op {
            Op::Ack { .. } => steps.acks.push(at),
            Op::Record { .. } => steps.records.push(at),
            _ => steps.looks.push(at),
        }
    }
    for (at, effect) in context.effects.iter().enumerate() {
        let message = messages.entry(effect.outbox).or_default();
        message.pastes.entry(effect.paste).or_default();
        message.effects.push(at);
    }
    let ended = context.store.undelivered.iter().copied();
    let live = context.store.pastes.iter().map(|row| (row.outbox, row.id));
    for (outbox, paste) in ended.chain(live) {
        let message = messages.entry(outbox).or_default();
        message.pastes.entry(paste).or_default();
        message.is_kept = true;
    }
    messages
}

impl Message {
    fn check(&self, context: &Context<'_>, id: OutboxId, verdict: &mut Verdict) {
        let calls = context.calls;
        let subject = format!("message {id}");
        if self.pastes.len() > 1 {
            let text = format!("{} pastes", self.pastes.len());
            let at: Vec<_> = self.pastes.values().copied().flatten().collect();
            verdict.add_with(
                context,
                Kind::MessageShared,
                &subject,
                text,
                &at,
                &self.effects,
            );
        }
        for (consumer, steps) in &self.consumers {
            steps.inbox(context, consumer, id, self.delivered, verdict);
            if consumer == PURGE {
                self.effects_first(context, steps, &subject, verdict);
                self.record_before_ack(context, steps, id, &subject, verdict);
            }
        }
        let early = self.effects.iter().copied().find(|&at| {
            let given = |first: usize| calls[first].returned <= context.effects[at].at;
            !self.delivered.is_some_and(given)
        });
        if let Some(at) = early {
            let text = "done before anybody was given the message";
            let shown: Vec<_> = self.delivered.into_iter().collect();
            verdict.add_with(
                context,
                Kind::EffectBeforeEnd,
                &subject,
                text,
                &shown,
                &[at],
            );
        }
    }

    /// i02: effects, and then the record.
    fn effects_first(
        &self,
        context: &Context<'_>,
        steps: &Steps,
        subject: &str,
        verdict: &mut Verdict,
    ) {
        let done_by = |kind: EffectKind, by: Instant| {
            let effects = self.effects.iter().map(|&at| context.effects[at]);
            effects
                .clone()
                .any(|effect| effect.kind == kind && effect.at <= by)
        };
        let early = steps.records.iter().copied().find(|&at| {
            let by = context.calls[at].invoked;
            let sent = !matches!(context.calls[at].told, Told::Refused { .. });
            sent && !(done_by(EffectKind::ObjectDeleted, by) && done_by(EffectKind::EdgePurged, by))
        });
        if let Some(at) = early {
            let text = "recorded before object and edge were done";
            let kind = Kind::RecordBeforeEffects;
            verdict.add_with(context, kind, subject, text, &[at], &self.effects);
        }
    }

    /// i02: only when the record is durable, the ack; and without an ack nothing is done with.
    fn record_before_ack(
        &self,
        context: &Context<'_>,
        steps: &Steps,
        id: OutboxId,
        subject: &str,
        verdict: &mut Verdict,
    ) {
        let calls = context.calls;
        let known_by = |ack: usize| {
            steps
                .known(context)
                .any(|at| calls[at].returned <= calls[ack].invoked)
        };
        let early = steps.acks.iter().copied().find(|&at| {
            // A refused one was sent as well, but may be the routing of one that was not.
            !matches!(calls[at].told, Told::Refused { .. }) && !known_by(at)
        });
        if let Some(at) = early {
            let text = "acked, and nobody had been told that it is recorded";
            let shown: Vec<_> = steps.records.iter().copied().chain([at]).collect();
            return verdict.add(context, Kind::AckBeforeRecord, subject, text, &shown);
        }
        let (Some(first), Some(_)) = (steps.delivered, context.now(id.slot())) else {
            return;
        };
        let unknown = |&at: &usize| calls[at].told == Told::Unknown;
        let recorded = context.inbox.contains(&(PURGE, id))
            || steps.known(context).next().is_some()
            || steps.records.iter().any(unknown);
        // One that is older than its retention is dropped undelivered; that is counted elsewhere.
        let aged =
            context.ended.0.saturating_sub(calls[first].invoked.0) >= nanos(OUTBOX_RETENTION);
        if !self.is_kept && !recorded && !aged {
            let text = "it is not in the store, and nobody recorded it";
            verdict.add(context, Kind::AckBeforeRecord, subject, text, &[first]);
        }
    }
}

impl Steps {
    /// The answers that say that it is recorded.
    fn known<'a>(&'a self, context: &'a Context<'_>) -> impl Iterator<Item = usize> + 'a {
        self.records
            .iter()
            .chain(&self.looks)
            .copied()
            .filter(|&at| {
                let told = &context.calls[at].told;
                matches!(told, Told::Recorded { .. } | Told::Contained(true))
            })
    }

    /// i05, i06: what was recorded stays so for 8 days, and is recorded once.
    fn inbox(
        &self,
        context: &Context<'_>,
        consumer: &str,
        id: OutboxId,
        delivered: Option<usize>,
        verdict: &mut Verdict,
    ) {
        let calls = context.calls;
        let Some(first) = self
            .known(context)
            .min_by_key(|&at| (calls[at].returned, at))
        else {
            return;
        };
        // It cannot have been recorded, and so begun to count, before it was asked for, or, where who
        // did that was killed, before anybody had the message.
        let asked = self.records.iter().copied().chain(delivered);
        let Some(begun) = asked.map(|at| calls[at].invoked).min() else {
            return;
        };
        let over = begun.0.saturating_add(nanos(INBOX_RETENTION));
        let over = over.saturating_sub(nanos(context.limits.clock_slack));
        let since = calls[first].returned;
        let lost = self.looks.iter().copied().find(|&at| {
            let within = calls[at].invoked > since && calls[at].returned.0 < over;
            within && calls[at].told == Told::Contained(false)
        });
        let news = self.records.iter().copied().filter(|&at| {
            let new = calls[at].told == Told::Recorded { first: true };
            new && calls[at].returned.0 < over
        });
        // New means that it was not there: not after it was known, and not twice, at once or not.
        let again = news
            .clone()
            .find(|&at| calls[at].invoked > since)
            .or(news.clone().nth(1));
        let subject = format!("message {id} of {consumer}");
        if let Some(at) = lost.or(again) {
            let text = "it was recorded, and was not there";
            let shown: Vec<_> = news.chain([first, at]).collect();
            return verdict.add(context, Kind::InboxLost, &subject, text, &shown);
        }
        let judged = context.now(id.slot()).is_some() && context.ended.0 < over;
        if judged && !context.inbox.contains(&(consumer, id)) {
            let text = "it was recorded, and is not in the store";
            verdict.add(context, Kind::InboxLost, &subject, text, &[first]);
        }
    }
}

fn nanos(time: Duration) -> u64 {
    u64::try_from(time.as_nanos()).unwrap_or(u64::MAX)
}

/// r04: whatever was created and is there no more has a message, that somebody was given or will be.
fn ends(context: &Context<'_>, of: &BTreeMap<PasteId, BTreeSet<OutboxId>>, verdict: &mut Verdict) {
    if !context.limits.converged {
        return;
    }
    let without = |paste: &PasteId| {
        !context.pastes.contains_key(paste)
            && !of.contains_key(paste)
            && context.now(paste.slot()).is_some()
    };
    for (paste, &at) in &context.created {
        // Deleted long ago, it may have been dropped undelivered; that is counted elsewhere.
        let since = context.calls[at].returned.0;
        let aged = context.ended.0.saturating_sub(since) >= nanos(OUTBOX_RETENTION);
        let subject = format!("paste {paste}");
        if without(paste) && !aged && !verdict.is_about(&subject) {
            let text = "it was created, is not there any more, and has no message";
            verdict.add(context, Kind::EndWithoutMessage, subject, text, &[at]);
        }
    }
    // A key's row proves the create that nobody was told of, and that it was of late.
    for row in &context.store.keys {
        let used = context
            .now(row.paste.slot())
            .is_some_and(|now| now < row.expires_at);
        if used && without(&row.paste) && !context.created.contains_key(&row.paste) {
            let subject = format!("paste {}", row.paste);
            let text = format!(
                "key {} created it, it is not there, and has no message",
                short(&row.digest.0)
            );
            verdict.add(context, Kind::EndWithoutMessage, subject, text, &[]);
        }
    }
}

/// What the world still has, and should not, or the other way round.
fn objects(context: &Context<'_>, messages: &BTreeMap<OutboxId, Message>, verdict: &mut Verdict) {
    let calls = context.calls;
    let touched = |paste: &PasteId| {
        context
            .effects_of
            .get(paste)
            .and_then(|of| of.first())
            .copied()
    };
    for paste in &context.store.pastes {
        let subject = format!("paste {}", paste.id);
        let Some(now) = context.now(paste.id.slot()) else {
            continue;
        };
        let shown: Vec<_> = context
            .created
            .get(&paste.id)
            .copied()
            .into_iter()
            .collect();
        if let Some(effect) = touched(&paste.id) {
            let text = "done, and the paste is in the store";
            verdict.add_with(
                context,
                Kind::EffectBeforeEnd,
                subject,
                text,
                &shown,
                &[effect],
            );
        } else if now < paste.expires_at && !context.store.objects.contains(&paste.id) {
            let text = "the paste is there, and its object is not";
            verdict.add(context, Kind::ObjectMissing, subject, text, &shown);
        }
    }
    // Of each paste, the reads whose answer may have reached the edge after a purge.
    let mut late: BTreeMap<PasteId, Instant> = BTreeMap::new();
    for (at, call) in calls.iter().enumerate() {
        let (Op::Get { paste } | Op::Delete { paste, .. }) = &call.op else {
            continue;
        };
        if !matches!(
            call.told,
            Told::Found { .. } | Told::Deleted | Told::TokenRejected
        ) {
            continue;
        }
        let last = late.entry(*paste).or_default();
        *last = call.returned.max(*last);
        let Some(effect) = touched(paste) else {
            continue;
        };
        let subject = format!("paste {paste}");
        if context.effects[effect].at < call.invoked && !verdict.is_about(&subject) {
            let text = "it was there after its object was deleted or the edge purged";
            verdict.add_with(
                context,
                Kind::EffectBeforeEnd,
                subject,
                text,
                &[at],
                &[effect],
            );
        }
    }
    for (consumer, id, _) in &context.store.inbox {
        let Some(message) = messages.get(id).filter(|_| consumer == PURGE) else {
            continue;
        };
        for paste in message.pastes.keys() {
            let there = context.store.objects.contains(paste);
            let purged = message.effects.iter().map(|&at| context.effects[at]);
            let purged = purged.filter(|effect| effect.kind == EffectKind::EdgePurged);
            // r06: an answer that was on its way while the edge was purged may be served for a while.
            let excused = purged.map(|effect| effect.at).max().is_some_and(|purged| {
                let read = late.get(paste).copied().unwrap_or_default();
                read >= purged && context.ended.0 < read.0.saturating_add(nanos(EDGE_MAX_AGE))
            });
            if there || (context.store.cached.contains(paste) && !excused) {
                let what = if there { "object" } else { "copy in the edge" };
                let text = format!("message {id} is finished, and the {what} is there");
                let steps = message.consumers.get(PURGE);
                let shown: Vec<_> = steps
                    .map(|steps| steps.known(context).collect())
                    .unwrap_or_default();
                let subject = format!("paste {paste}");
                verdict.add_with(
                    context,
                    Kind::LeftOver,
                    subject,
                    text,
                    &shown,
                    &message.effects,
                );
            }
        }
    }
}
