//! What the world still has and should not, or the other way round.

use std::collections::BTreeMap;

use ostraca_types::contract::EDGE_MAX_AGE;
use ostraca_types::{OutboxId, PasteId};

use crate::Context;
use crate::delivery::{Message, PURGE, nanos};
use crate::ledger::{EffectKind, Instant, Op, Told};
use crate::verdict::{Kind, Verdict};

pub(crate) fn check(
    context: &Context<'_>,
    messages: &BTreeMap<OutboxId, Message>,
    verdict: &mut Verdict,
) {
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
