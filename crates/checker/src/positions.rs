//! Where answers were decided, against when they were given.

use std::collections::BTreeMap;

use ostraca_types::Timestamp;

use crate::Context;
use crate::ledger::{Call, Told};
use crate::times::told_time;
use crate::verdict::{Kind, Verdict};

/// Whether the answer is of a record that the call appended.
fn appended(call: &Call) -> bool {
    match &call.told {
        Told::Created { replayed, .. } => !replayed,
        Told::Deleted
        | Told::Settled(_)
        | Told::Recorded { .. }
        | Told::Registered
        | Told::Replayed(_) => true,
        Told::Delivered(messages) => !messages.is_empty(),
        _ => false,
    }
}

pub(crate) fn check(context: &Context<'_>, verdict: &mut Verdict) {
    let mut shards: BTreeMap<u16, Vec<usize>> = BTreeMap::new();
    for (at, call) in context.calls.iter().enumerate() {
        if let Some(position) = call.at {
            shards.entry(position.shard).or_default().push(at);
        }
    }
    for (shard, mut of) in shards {
        let subject = format!("shard {shard}");
        records(context, &of, &subject, verdict);
        of.sort_by_key(|&at| context.calls[at].invoked);
        answers(context, shard, &of, &subject, verdict);
    }
}

/// Records are numbered once, and a later one never has an earlier leader.
fn records(context: &Context<'_>, of: &[usize], subject: &str, verdict: &mut Verdict) {
    let calls = context.calls;
    let mut records: BTreeMap<u64, usize> = BTreeMap::new();
    for &at in of.iter().filter(|&&at| appended(&calls[at])) {
        let Some(position) = calls[at].at else {
            continue;
        };
        if let Some(other) = records.insert(position.sequence, at) {
            let text = format!("record {} answered two calls", position.sequence);
            verdict.add(context, Kind::OrderViolated, subject, text, &[other, at]);
        }
    }
    // Looks count as well: a leader that has answered one leaves no room for its predecessor's records.
    let mut by_sequence: Vec<(u64, u64, usize)> = of
        .iter()
        .filter_map(|&at| {
            calls[at]
                .at
                .map(|position| (position.sequence, position.epoch, at))
        })
        .collect();
    by_sequence.sort_unstable();
    let mut before: Option<(u64, usize)> = None;
    for group in by_sequence.chunk_by(|one, next| one.0 == next.0) {
        for &(sequence, epoch, at) in group.iter().filter(|&&(_, _, at)| appended(&calls[at])) {
            if let Some((highest, other)) = before
                && epoch < highest
            {
                let text = format!("record {sequence} has epoch {epoch}, one before it {highest}");
                verdict.add(context, Kind::OrderViolated, subject, text, &[other, at]);
                return;
            }
        }
        for &(_, epoch, at) in group {
            raise(&mut before, epoch, at);
        }
    }
}

/// What was told never is behind what had been told before it was asked.
fn answers(context: &Context<'_>, shard: u16, of: &[usize], subject: &str, verdict: &mut Verdict) {
    let calls = context.calls;
    let mut returns: Vec<usize> = of.to_vec();
    returns.sort_by_key(|&at| calls[at].returned);
    let mut returned = returns.into_iter().peekable();
    let (mut epoch, mut sequence) = (None::<(u64, usize)>, None::<(u64, usize)>);
    let mut time = None::<(Timestamp, usize)>;
    let mut found = [false; 3];
    for &at in of {
        let call = &calls[at];
        while let Some(earlier) =
            returned.next_if(|&earlier| calls[earlier].returned < call.invoked)
        {
            let Some(position) = calls[earlier].at else {
                continue;
            };
            raise(&mut epoch, position.epoch, earlier);
            if appended(&calls[earlier]) {
                raise(&mut sequence, position.sequence, earlier);
            }
            if let Some(told) = told_time(&calls[earlier]) {
                raise(&mut time, told, earlier);
            }
        }
        let Some(position) = call.at else { continue };
        if let Some((highest, other)) = epoch
            && position.epoch < highest
            && !std::mem::replace(&mut found[0], true)
        {
            let text = format!(
                "epoch {} answered after epoch {highest} had",
                position.epoch
            );
            verdict.add(context, Kind::StaleLeader, subject, text, &[other, at]);
        } else if let Some((highest, other)) = sequence
            && position.sequence < highest
            && !found[0]
            && !std::mem::replace(&mut found[1], true)
        {
            let text = format!("sequence {} was told after {highest}", position.sequence);
            verdict.add(context, Kind::OrderViolated, subject, text, &[other, at]);
        }
        if let (Some((latest, other)), Some(now)) = (time, told_time(call))
            && now < latest
            && !std::mem::replace(&mut found[2], true)
        {
            let text = format!("its time was {}, and then {}", latest.0, now.0);
            verdict.add(context, Kind::ClockRanBack, subject, text, &[other, at]);
        }
    }
    // The store was read when all had returned.
    for at in returned {
        let Some(position) = calls[at].at else {
            continue;
        };
        raise(&mut epoch, position.epoch, at);
        if appended(&calls[at]) {
            raise(&mut sequence, position.sequence, at);
        }
        if let Some(told) = told_time(&calls[at]) {
            raise(&mut time, told, at);
        }
    }
    let last = |at: Option<(u64, usize)>| at.map_or(0, |(value, _)| value);
    let Some(state) = context
        .store
        .shards
        .iter()
        .find(|state| state.shard == shard)
    else {
        return;
    };
    if state.sequence < last(sequence) || state.epoch < last(epoch) {
        let text = format!(
            "the store is at epoch {}, sequence {}",
            state.epoch, state.sequence
        );
        let at: Vec<_> = [epoch, sequence]
            .into_iter()
            .flatten()
            .map(|(_, at)| at)
            .collect();
        verdict.add(context, Kind::OrderViolated, subject, text, &at);
    }
    if let Some((latest, at)) = time
        && state.now < latest
        && !found[2]
    {
        let text = format!(
            "its time was {}, and is {} in the store",
            latest.0, state.now.0
        );
        verdict.add(context, Kind::ClockRanBack, subject, text, &[at]);
    }
}

fn raise<T: PartialOrd + Copy>(highest: &mut Option<(T, usize)>, value: T, at: usize) {
    if highest.is_none_or(|(known, _)| known < value) {
        *highest = Some((value, at));
    }
}
