//! Pastes: there from their create's answer until their end, and never again.

use std::collections::BTreeMap;

use ostraca_types::{PasteId, Timestamp, TokenHash};

use crate::Context;
use crate::ledger::{Instant, Op, Told};
use crate::linear::{Event, Model, Order, order};
use crate::verdict::{Kind, Verdict};

/// All that is known of one paste.
#[derive(Default)]
struct Paste {
    /// The answer to its create that came first.
    created: Option<usize>,
    expires_at: Option<Timestamp>,
    token: Option<TokenHash>,
    gets: Vec<usize>,
    deletes: Vec<usize>,
    /// From when on a delete can have ended it.
    deletable: Option<Instant>,
    /// The answer that came first of those after which it is over, and when.
    gone: Option<(Instant, usize)>,
}

pub(crate) fn check(context: &Context<'_>, verdict: &mut Verdict) {
    let mut pastes: BTreeMap<PasteId, Paste> = BTreeMap::new();
    for (at, call) in context.calls.iter().enumerate() {
        match (&call.op, &call.told) {
            (
                Op::Create { .. },
                Told::Created {
                    paste,
                    expires_at,
                    token,
                    ..
                },
            ) => {
                let paste = pastes.entry(*paste).or_default();
                paste.expires_at.get_or_insert(*expires_at);
                paste.token.get_or_insert(*token);
            }
            (Op::Get { paste }, _) => pastes.entry(*paste).or_default().gets.push(at),
            (Op::Delete { paste, .. }, _) => pastes.entry(*paste).or_default().deletes.push(at),
            _ => {}
        }
    }
    for (id, paste) in &mut pastes {
        paste.created = context.created.get(id).copied();
        paste.deletable = paste.deletable(context);
        paste.gone = paste.gone(context, *id);
        let subject = format!("paste {id}");
        paste.tokens(context, &subject, verdict);
        paste.there(context, *id, &subject, verdict);
        paste.in_store(context, *id, &subject, verdict);
        if !verdict.is_about(&subject) {
            paste.in_order(context, *id, &subject, verdict);
        }
    }
}

impl Paste {
    fn with(&self, more: &[usize]) -> Vec<usize> {
        self.created
            .into_iter()
            .chain(more.iter().copied())
            .collect()
    }

    fn is_own(&self, op: &Op) -> bool {
        match op {
            Op::Delete { token, .. } => self.token.is_none_or(|own| own == *token),
            _ => false,
        }
    }

    fn asked(&self) -> impl Iterator<Item = usize> + '_ {
        self.gets.iter().chain(&self.deletes).copied()
    }

    fn gone(&self, context: &Context<'_>, id: PasteId) -> Option<(Instant, usize)> {
        let calls = context.calls;
        let over = self.asked().filter(|&at| {
            // One that nobody had heard of may not have been created yet.
            let known =
                (self.created).is_some_and(|first| calls[first].returned < calls[at].invoked);
            let missing = calls[at].told == Told::Missing && known;
            calls[at].told == Told::Deleted || (missing && !self.is_lost(context, id, at))
        });
        over.map(|at| (calls[at].returned, at)).min()
    }

    /// Whether it was not found although nothing can have ended it.
    fn is_lost(&self, context: &Context<'_>, id: PasteId, at: usize) -> bool {
        let (Some(first), Some(expires_at)) = (self.created, self.expires_at) else {
            return false;
        };
        let call = &context.calls[at];
        let shard = context.owner(id.slot());
        call.told == Told::Missing
            && call.invoked > context.calls[first].returned
            && context.times.at_most(shard, call.returned) < expires_at
            && self.deletable.is_none_or(|from| from >= call.returned)
    }

    fn tokens(&self, context: &Context<'_>, subject: &str, verdict: &mut Verdict) {
        let calls = context.calls;
        let mut deleted: Option<usize> = None;
        for &at in &self.deletes {
            let own = self.is_own(&calls[at].op);
            if calls[at].told == Told::TokenRejected && own && self.token.is_some() {
                let text = "its own token was rejected";
                verdict.add(
                    context,
                    Kind::TokenRefused,
                    subject,
                    text,
                    &self.with(&[at]),
                );
            }
            if calls[at].told != Told::Deleted {
                continue;
            }
            if !own {
                let text = "deleted with a token that is not its own";
                verdict.add(
                    context,
                    Kind::WrongTokenAccepted,
                    subject,
                    text,
                    &self.with(&[at]),
                );
            }
            if let Some(before) = deleted.replace(at) {
                let shown = self.with(&[before, at]);
                verdict.add(
                    context,
                    Kind::EndedTwice,
                    subject,
                    "two deletes ended it",
                    &shown,
                );
            }
        }
    }

    /// Every answer that says that it was there.
    fn there(&self, context: &Context<'_>, id: PasteId, subject: &str, verdict: &mut Verdict) {
        let calls = context.calls;
        let shard = context.owner(id.slot());
        let mut came_back = false;
        for at in self.asked() {
            let call = &calls[at];
            let (now, expires_at) = match call.told {
                Told::Found { now, expires_at } => (now, Some(expires_at)),
                Told::Deleted | Told::TokenRejected => {
                    (context.times.at_least(shard, call.invoked), self.expires_at)
                }
                _ => continue,
            };
            if let Some(expires_at) = expires_at.filter(|&expires_at| now >= expires_at) {
                let text = format!("it was there at {}, and expired at {}", now.0, expires_at.0);
                verdict.add(context, Kind::Outlived, subject, text, &self.with(&[at]));
            }
            if expires_at != self.expires_at && self.expires_at.is_some() {
                let text = "its expiry is not what the create was told";
                verdict.add(
                    context,
                    Kind::AnswerChanged,
                    subject,
                    text,
                    &self.with(&[at]),
                );
            }
            if let Some((since, end)) = self.gone
                && call.invoked > since
                && !came_back
                // Two deletes are a kind of their own.
                && !(call.told == Told::Deleted && calls[end].told == Told::Deleted)
            {
                came_back = true;
                let text = "it had ended, and was there again";
                verdict.add(
                    context,
                    Kind::CameBack,
                    subject,
                    text,
                    &self.with(&[end, at]),
                );
            }
        }
    }

    fn deletable(&self, context: &Context<'_>) -> Option<Instant> {
        let may = self.deletes.iter().map(|&at| &context.calls[at]);
        let may = may.filter(|call| {
            let unknown = call.told == Told::Unknown && self.is_own(&call.op);
            call.told == Told::Deleted || unknown
        });
        may.map(|call| call.invoked).min()
    }

    /// What was acknowledged, against what was not found and what the store holds.
    fn in_store(&self, context: &Context<'_>, id: PasteId, subject: &str, verdict: &mut Verdict) {
        let (Some(first), Some(expires_at)) = (self.created, self.expires_at) else {
            return;
        };
        let calls = context.calls;
        let lost = self.asked().find(|&at| self.is_lost(context, id, at));
        if let Some(at) = lost {
            let text = format!("it is missing, and expires at {}", expires_at.0);
            verdict.add(context, Kind::CreateLost, subject, text, &[first, at]);
        }
        let Some(now) = context.now(id.slot()) else {
            return;
        };
        if verdict.is_about(subject) {
            return;
        }
        let Some(row) = context.pastes.get(&id) else {
            if now < expires_at && self.deletable.is_none() {
                let text = format!("it is not in the store at {now}, and expires at {expires_at}");
                verdict.add(context, Kind::CreateLost, subject, text, &[first]);
            }
            return;
        };
        if row.expires_at != expires_at || self.token.is_some_and(|token| token != row.token) {
            let text = "the store has another expiry or token for it";
            verdict.add(context, Kind::AnswerChanged, subject, text, &[first]);
        }
        if let Some((_, end)) = self.gone
            // One that is past its expiry is invisible before it ends.
            && (now < expires_at || calls[end].told == Told::Deleted)
        {
            let text = "it had ended, and is in the store";
            verdict.add(context, Kind::CameBack, subject, text, &self.with(&[end]));
        }
    }

    fn in_order(&self, context: &Context<'_>, id: PasteId, subject: &str, verdict: &mut Verdict) {
        // Of one whose create nobody was told of nothing is expected.
        let Some(first) = self.created else {
            return;
        };
        let calls = context.calls;
        let shard = context.owner(id.slot());
        // A stored answer tells that the create was before it, and not since when.
        let Op::Create { key, .. } = calls[first].op else {
            return;
        };
        let begun = context.begun.get(&key).copied().unwrap_or_default();
        let mut events = vec![Event {
            invoked: begun.0,
            returned: Some(calls[first].returned.0),
            op: PasteOp::Create,
        }];
        let mut shown = vec![first];
        for at in self.asked() {
            let may_be_over = self.expires_at.is_none_or(|expires_at| {
                context.times.at_most(shard, calls[at].returned) >= expires_at
            });
            let own = self.is_own(&calls[at].op);
            let (op, required) = match (&calls[at].op, &calls[at].told) {
                (_, Told::Found { .. }) => (PasteOp::There, true),
                (_, Told::TokenRejected) => (PasteOp::There, true),
                (_, Told::Missing) => (PasteOp::Missing { may_be_over }, true),
                (_, Told::Deleted) => (PasteOp::End, true),
                (Op::Delete { .. }, Told::Unknown) if own => (PasteOp::End, false),
                _ => continue,
            };
            shown.push(at);
            events.push(Event {
                invoked: calls[at].invoked.0,
                returned: required.then_some(calls[at].returned.0),
                op,
            });
        }
        let kind = match order(
            &PasteModel,
            State::Absent,
            &events,
            context.limits.search_max,
        ) {
            Order::Exists => return,
            Order::Impossible => Kind::NotLinearizable,
            Order::Unknown => Kind::Undecided,
        };
        verdict.add(
            context,
            kind,
            subject,
            "no order of these explains all answers",
            &shown,
        );
    }
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
enum State {
    Absent,
    Live,
    Ended,
}

#[derive(Debug, Clone, Copy)]
enum PasteOp {
    Create,
    There,
    Missing { may_be_over: bool },
    End,
}

struct PasteModel;

impl Model for PasteModel {
    type State = State;
    type Op = PasteOp;

    fn only_looks(&self, op: &PasteOp) -> bool {
        matches!(op, PasteOp::There | PasteOp::Missing { may_be_over: false })
    }

    fn step(&self, state: &State, op: &PasteOp) -> Option<State> {
        match (op, state) {
            (PasteOp::Create, State::Absent) => Some(State::Live),
            (PasteOp::There, State::Live) => Some(State::Live),
            (PasteOp::End, State::Live) => Some(State::Ended),
            (PasteOp::Missing { .. }, State::Absent | State::Ended) => Some(*state),
            (PasteOp::Missing { may_be_over: true }, State::Live) => Some(State::Ended),
            _ => None,
        }
    }
}
