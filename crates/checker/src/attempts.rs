//! Attempts: what a handle can do, and when a message is given up.

use std::collections::BTreeMap;

use ostraca_types::contract::{ATTEMPTS_MIN, ATTEMPTS_TIME_MIN, OUTBOX_RETENTION};
use ostraca_types::{OutboxId, Timestamp};

use crate::Context;
use crate::delivery::{Message, Steps};
use crate::ledger::{Attempt, DeadLetter, Op, Told};
use crate::verdict::{Kind, Verdict};

pub(crate) fn check(
    context: &Context<'_>,
    messages: &BTreeMap<OutboxId, Message>,
    verdict: &mut Verdict,
) {
    for (id, message) in messages {
        for (consumer, steps) in &message.consumers {
            let subject = format!("message {id} of {consumer}");
            let found = twice(context, steps)
                .or_else(|| old(context, steps))
                .or_else(|| finished(context, steps))
                .or_else(|| newest(context, (consumer, *id), message, steps));
            if let Some((text, shown)) = found {
                verdict.add(context, Kind::WrongHandle, subject, text, &shown);
            }
        }
    }
    for (at, call) in context.calls.iter().enumerate() {
        if let (Op::DeadLetters { consumer }, Told::Dead(letters)) = (&call.op, &call.told) {
            for letter in letters {
                let steps = messages.get(&letter.outbox);
                let steps = steps.and_then(|message| message.consumers.get(consumer));
                given_up(context, (consumer, at), letter, steps, verdict);
            }
        }
    }
}

type Found = Option<(&'static str, Vec<usize>)>;

/// The place of an answer in its shard's log: what is settled is settled in that order.
fn place(context: &Context<'_>, at: usize) -> Option<u64> {
    context.calls[at].at.map(|position| position.sequence)
}

/// The attempts that were given, each with its place.
fn given<'a>(
    context: &'a Context<'_>,
    steps: &'a Steps,
) -> impl Iterator<Item = (Attempt, u64, usize)> + 'a {
    steps.deliveries.iter().filter_map(|(at, one)| {
        let position = context.calls[*at].at?;
        let attempt = Attempt {
            number: one.attempt,
            epoch: position.epoch,
        };
        Some((attempt, position.sequence, *at))
    })
}

/// The acks, nacks and extensions that were answered so, each with its attempt and place.
fn settled<'a>(
    context: &'a Context<'_>,
    steps: &'a Steps,
    done: bool,
) -> impl Iterator<Item = (Attempt, u64, usize)> + 'a {
    let all = steps.acks.iter().chain(&steps.others).copied();
    all.filter_map(move |at| {
        let (Op::Ack { attempt, .. } | Op::Nack { attempt, .. } | Op::Extend { attempt, .. }) =
            &context.calls[at].op
        else {
            return None;
        };
        let told = context.calls[at].told == Told::Settled(done);
        Some(((*attempt)?, place(context, at)?, at)).filter(|_| told)
    })
}

/// o02: each attempt has its own handle.
fn twice(context: &Context<'_>, steps: &Steps) -> Found {
    let mut known = BTreeMap::new();
    for (attempt, _, at) in given(context, steps) {
        if let Some(other) = known.insert(attempt, at) {
            return Some(("two attempts have one handle", vec![other, at]));
        }
    }
    None
}

/// o02: after a newer attempt, or a replay, a handle settles nothing.
fn old(context: &Context<'_>, steps: &Steps) -> Found {
    for (attempt, settled, at) in settled(context, steps, true) {
        let newer = given(context, steps)
            .find(|(newer, from, _)| newer.number > attempt.number && *from < settled);
        if let Some((.., newer)) = newer {
            return Some((
                "it was settled by the handle of an older attempt",
                vec![newer, at],
            ));
        }
        let own = given(context, steps).find(|(own, ..)| *own == attempt);
        let replayed = steps.replays.iter().copied().find(|&replay| {
            let told = context.calls[replay].told == Told::Replayed(true);
            let between = place(context, replay)
                .zip(own)
                .is_some_and(|(place, (_, from, _))| from < place && place < settled);
            told && between
        });
        if let Some(replay) = replayed {
            return Some((
                "it was settled by a handle from before its replay",
                vec![replay, at],
            ));
        }
    }
    None
}

/// o02, o03: what was acked is done with.
fn finished(context: &Context<'_>, steps: &Steps) -> Found {
    let is_ack = |at: usize| matches!(context.calls[at].op, Op::Ack { .. });
    let (_, from, ack) = settled(context, steps, true)
        .filter(|&(.., at)| is_ack(at))
        .min_by_key(|&(_, place, _)| place)?;
    let again = settled(context, steps, true).find(|&(_, place, _)| place > from);
    let again = again.or_else(|| given(context, steps).find(|&(_, place, _)| place > from));
    again.map(|(.., at)| ("it was acked, and there again", vec![ack, at]))
}

/// o02: the handle of the newest attempt at a message that is there acks it.
fn newest(
    context: &Context<'_>,
    (consumer, id): (&str, OutboxId),
    message: &Message,
    steps: &Steps,
) -> Found {
    if !context.limits.workers_known {
        return None;
    }
    let calls = context.calls;
    let is_ack = |at: usize| matches!(calls[at].op, Op::Ack { .. });
    let refused = settled(context, steps, false).filter(|&(.., at)| is_ack(at));
    for (attempt, settled, at) in refused {
        let by = calls[at].returned;
        let newer = given(context, steps)
            .any(|(newer, from, _)| newer.number > attempt.number && from < settled);
        let done = |&other: &usize| {
            let told = &calls[other].told;
            let done = matches!(
                told,
                Told::Settled(true) | Told::Replayed(true) | Told::Unknown
            );
            other != at && done && calls[other].invoked <= by
        };
        let over = steps.acks.iter().chain(&steps.replays).any(done);
        // What nobody heard the answer of may have given it to somebody.
        let unheard = calls.iter().any(|call| {
            let receives = matches!(&call.op, Op::Receive { consumer: who } if who == consumer);
            receives && call.told == Told::Unknown && call.invoked <= by
        });
        let aged = message.ended_at.is_none_or(|ended_at| {
            context.within(id.slot(), at).1 >= ended_at.plus(OUTBOX_RETENTION)
        });
        let own = given(context, steps).find(|(own, from, _)| *own == attempt && *from < settled);
        if let Some((.., own)) = own
            && !(newer || over || unheard || aged)
        {
            return Some(("its newest handle did not ack it", vec![own, at]));
        }
    }
    None
}

/// o04: 12 attempts, and 6 hours, since the end or the last replay.
fn given_up(
    context: &Context<'_>,
    (consumer, listed): (&str, usize),
    letter: &DeadLetter,
    steps: Option<&Steps>,
    verdict: &mut Verdict,
) {
    let calls = context.calls;
    let replays = steps.map_or(&[][..], |steps| &steps.replays);
    let replays = replays.iter().copied().filter(|&at| {
        calls[at].told == Told::Replayed(true) && calls[at].returned < calls[listed].invoked
    });
    let replayed = replays
        .map(|at| (context.within(letter.outbox.slot(), at).0, at))
        .max();
    // The first of the attempts that count cannot have come before that.
    let since = replayed.map_or(Timestamp(0), |(since, _)| since);
    let since = since.max(letter.ended_at);
    let short = letter.dead_at.since(since) < ATTEMPTS_TIME_MIN;
    if letter.attempts < ATTEMPTS_MIN || short {
        let (attempts, dead_at) = (letter.attempts, letter.dead_at.0);
        let text = format!(
            "given up at {dead_at} after {attempts} attempts since {} at the earliest",
            since.0
        );
        let subject = format!("message {} of {consumer}", letter.outbox);
        let shown: Vec<_> = replayed
            .map(|(_, at)| at)
            .into_iter()
            .chain([listed])
            .collect();
        verdict.add(context, Kind::DeadTooEarly, subject, text, &shown);
    }
}
