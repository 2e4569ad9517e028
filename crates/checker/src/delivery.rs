//! Messages: each end has one, every consumer is given it, and nothing is done with one before that.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use ostraca_types::contract::OUTBOX_RETENTION;
use ostraca_types::{OutboxId, PasteId, Timestamp};

use crate::ledger::{Delivered, EffectKind, Op, Told, short};
use crate::verdict::{Kind, Verdict};
use crate::{Context, attempts, inbox, objects};

/// Whose work is done when a paste's object is away; it gets ends from a store's first day on.
pub(crate) const PURGE: &str = "purge";
/// How long a message may be kept over its age: until the clock's next record.
const DROP_DELAY: Duration = Duration::from_secs(60);

/// What is known of one message.
#[derive(Default)]
pub(crate) struct Message {
    /// Whose end it tells, and the first call that was given it.
    pub(crate) pastes: BTreeMap<PasteId, Option<usize>>,
    /// The first delivery.
    pub(crate) delivered: Option<usize>,
    pub(crate) consumers: BTreeMap<String, Steps>,
    pub(crate) effects: Vec<usize>,
    /// Shard time of the end, where somebody was told.
    pub(crate) ended_at: Option<Timestamp>,
    /// The store still has it, or the paste that it is of.
    pub(crate) is_kept: bool,
}

/// The steps of one consumer.
#[derive(Default)]
pub(crate) struct Steps {
    /// The delivery that was answered first.
    pub(crate) delivered: Option<usize>,
    pub(crate) deliveries: Vec<(usize, Delivered)>,
    pub(crate) records: Vec<usize>,
    pub(crate) looks: Vec<usize>,
    pub(crate) acks: Vec<usize>,
    /// Nacks and extensions.
    pub(crate) others: Vec<usize>,
    pub(crate) replays: Vec<usize>,
}

/// From which record of which shard on a consumer gets ends.
type Registered<'a> = BTreeMap<(&'a str, u16), u64>;

pub(crate) fn check(context: &Context<'_>, verdict: &mut Verdict) {
    let messages = messages(context);
    let registered = registered(context);
    let mut of: BTreeMap<PasteId, BTreeSet<OutboxId>> = BTreeMap::new();
    for (id, message) in &messages {
        for paste in message.pastes.keys() {
            of.entry(*paste).or_default().insert(*id);
        }
        message.check(context, *id, verdict);
        message.arrives(context, &registered, *id, verdict);
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
    kept(context, verdict);
    dropped(context, &messages, verdict);
    objects::check(context, &messages, verdict);
    attempts::check(context, &messages, verdict);
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
                    message.ended_at = Some(one.ended_at);
                    let steps = message.consumers.entry(consumer.clone()).or_default();
                    first(&mut steps.delivered, at);
                    steps.deliveries.push((at, *one));
                }
                continue;
            }
            (
                Op::Ack {
                    consumer, outbox, ..
                }
                | Op::Nack {
                    consumer, outbox, ..
                }
                | Op::Extend {
                    consumer, outbox, ..
                }
                | Op::Record { consumer, outbox }
                | Op::Contains { consumer, outbox }
                | Op::Replay { consumer, outbox },
                _,
            ) => (consumer, *outbox),
            _ => continue,
        };
        let message = messages.entry(outbox).or_default();
        let steps = message.consumers.entry(consumer.clone()).or_default();
        match &call.op {
            Op::Ack { .. } => steps.acks.push(at),
            Op::Record { .. } => steps.records.push(at),
            Op::Contains { .. } => steps.looks.push(at),
            Op::Replay { .. } => steps.replays.push(at),
            _ => steps.others.push(at),
        }
    }
    for (at, effect) in context.effects.iter().enumerate() {
        let message = messages.entry(effect.outbox).or_default();
        message.pastes.entry(effect.paste).or_default();
        message.effects.push(at);
    }
    for row in &context.store.undelivered {
        let message = messages.entry(row.outbox).or_default();
        message.pastes.entry(row.paste).or_default();
        message.ended_at = Some(row.ended_at);
        message.is_kept = true;
    }
    for row in &context.store.pastes {
        let message = messages.entry(row.outbox).or_default();
        message.pastes.entry(row.id).or_default();
        message.is_kept = true;
    }
    messages
}

fn registered<'a>(context: &Context<'a>) -> Registered<'a> {
    let shards = context.store.shards.iter();
    let mut registered: Registered<'_> = shards.map(|state| ((PURGE, state.shard), 0)).collect();
    for call in context.calls {
        if let (Op::Register { consumer }, Told::Registered, Some(at)) =
            (&call.op, &call.told, call.at)
        {
            let from = registered.entry((consumer, at.shard)).or_insert(u64::MAX);
            *from = at.sequence.min(*from);
        }
    }
    registered
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
            inbox::check(context, (consumer, id), self, steps, verdict);
        }
        let early = self.effects.iter().copied().find(|&at| {
            let effect = &context.effects[at];
            let given = |steps: &Steps| {
                steps
                    .delivered
                    .is_some_and(|first| calls[first].returned <= effect.at)
            };
            !self
                .consumers
                .get(effect.kind.consumer())
                .is_some_and(given)
        });
        if let Some(at) = early {
            let text = "done before its consumer was given the message";
            let consumer = context.effects[at].kind.consumer();
            let steps = self.consumers.get(consumer);
            let shown: Vec<_> = steps
                .and_then(|steps| steps.delivered)
                .into_iter()
                .collect();
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

    /// The effects of a kind, in the order of time.
    pub(crate) fn effects_of(&self, context: &Context<'_>, kind: EffectKind) -> Vec<usize> {
        let of = |&at: &usize| context.effects[at].kind == kind;
        let mut effects: Vec<_> = self.effects.iter().copied().filter(of).collect();
        effects.sort_by_key(|&at| context.effects[at].at);
        effects
    }

    /// o03, o06: it is gone only when each consumer that had been registered before the end has
    /// finished it, or it was over its age.
    fn arrives(
        &self,
        context: &Context<'_>,
        registered: &Registered<'_>,
        id: OutboxId,
        verdict: &mut Verdict,
    ) {
        let Some(now) = context.now(id.slot()).filter(|_| !self.is_kept) else {
            return;
        };
        // One that is older than its retention is dropped undelivered, and counted.
        let aged = self
            .ended_at
            .is_none_or(|ended_at| now >= ended_at.plus(OUTBOX_RETENTION));
        if aged {
            return;
        }
        for (&(consumer, shard), &from) in registered {
            if shard != context.owner(id.slot()) {
                continue;
            }
            let steps = self.consumers.get(consumer);
            let given = steps.and_then(|steps| steps.delivered);
            if let (Some(first), Some(steps)) = (given, steps) {
                let unknown = |&at: &usize| context.calls[at].told == Told::Unknown;
                let finished = context.inbox.contains(&(consumer, id))
                    || steps.known(context).next().is_some()
                    || steps.records.iter().any(unknown);
                if !finished {
                    let text = format!("it is not in the store, and {consumer} did not record it");
                    let subject = format!("message {id}");
                    verdict.add(context, Kind::MessageLost, subject, text, &[first]);
                }
            } else if let Some(at) = self.ended_after(context, from) {
                let text = format!("{consumer} was never given it, and it is not in the store");
                let subject = format!("message {id}");
                let shown: Vec<_> = self.delivered.into_iter().chain([at]).collect();
                verdict.add(context, Kind::ConsumerSkipped, subject, text, &shown);
            }
        }
    }

    /// The answer that shows that the paste was there after that record.
    fn ended_after(&self, context: &Context<'_>, from: u64) -> Option<usize> {
        let mut pastes = self.pastes.keys();
        let created = pastes.find_map(|paste| context.created.get(paste).copied())?;
        let call = &context.calls[created];
        // A stored answer is about a record before it.
        let appended = matches!(
            call.told,
            Told::Created {
                replayed: false,
                ..
            }
        );
        let after = call.at.is_some_and(|at| appended && at.sequence > from);
        let deleted = || {
            let calls = context.calls.iter();
            calls.enumerate().find_map(|(at, call)| match &call.op {
                Op::Delete { paste, .. } if self.pastes.contains_key(paste) => {
                    let told = call.told == Told::Deleted;
                    let after = call.at.is_some_and(|place| place.sequence > from);
                    (told && after).then_some(at)
                }
                _ => None,
            })
        };
        if after || from == 0 {
            Some(created)
        } else {
            deleted()
        }
    }
}

impl Steps {
    /// The answers that say that it is recorded.
    pub(crate) fn known<'a>(
        &'a self,
        context: &'a Context<'_>,
    ) -> impl Iterator<Item = usize> + 'a {
        self.records
            .iter()
            .chain(&self.looks)
            .copied()
            .filter(|&at| {
                let told = &context.calls[at].told;
                matches!(told, Told::Recorded { .. } | Told::Contained(true))
            })
    }
}

pub(crate) fn nanos(time: Duration) -> u64 {
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
        let Told::Created { expires_at, .. } = context.calls[at].told else {
            continue;
        };
        // Ended long ago, it may have been dropped undelivered: its age counts from the end.
        let deleted = context.deletable.get(paste).copied();
        let ended = deleted.map_or(expires_at, |deleted| deleted.min(expires_at));
        let over = ended.plus(OUTBOX_RETENTION);
        let aged = context.now(paste.slot()).is_some_and(|now| now >= over);
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

/// o05: a message lives for 7 days from its end on.
fn kept(context: &Context<'_>, verdict: &mut Verdict) {
    for (at, call) in context.calls.iter().enumerate() {
        let Told::Delivered(delivered) = &call.told else {
            continue;
        };
        for one in delivered {
            let over = one.ended_at.plus(OUTBOX_RETENTION);
            if context.within(one.outbox.slot(), at).0 >= over {
                let text = format!("it ended at {}, and was delivered", one.ended_at.0);
                let subject = format!("message {}", one.outbox);
                verdict.add(context, Kind::MessageOverAge, subject, text, &[at]);
            }
        }
    }
    for row in &context.store.undelivered {
        let over = row.ended_at.plus(OUTBOX_RETENTION).plus(DROP_DELAY);
        if context
            .now(row.outbox.slot())
            .is_some_and(|now| now >= over)
        {
            let text = format!("it ended at {}, and is in the store", row.ended_at.0);
            let subject = format!("message {}", row.outbox);
            verdict.add(context, Kind::MessageOverAge, subject, text, &[]);
        }
    }
}

/// o05: what is gone, and was not acked by somebody who was given it, was dropped and is counted.
fn dropped(context: &Context<'_>, messages: &BTreeMap<OutboxId, Message>, verdict: &mut Verdict) {
    if !context.limits.workers_known {
        return;
    }
    let acked = |&at: &usize| {
        let told = &context.calls[at].told;
        matches!(told, Told::Settled(true) | Told::Unknown)
    };
    for state in &context.store.shards {
        let of = |id: &OutboxId| context.owner(id.slot()) == state.shard;
        let mut shown = Vec::new();
        for (_, message) in messages.iter().filter(|(id, _)| of(id)) {
            let open = |steps: &&Steps| steps.delivered.is_some() && !steps.acks.iter().any(acked);
            if let Some(steps) = message.consumers.values().find(open)
                && !message.is_kept
            {
                shown.extend(steps.delivered);
            }
        }
        if shown.len() as u64 > state.dropped {
            let (lost, counted) = (shown.len(), state.dropped);
            let text =
                format!("{lost} messages are gone that somebody did not ack, {counted} counted");
            let subject = format!("shard {}", state.shard);
            verdict.add(context, Kind::DropNotCounted, subject, text, &shown);
        }
    }
}
