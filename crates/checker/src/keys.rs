//! Keys: one paste each, one answer each, for 25 hours.

use std::collections::{BTreeMap, BTreeSet};

use ostraca_types::contract::{IDEMPOTENCY_RETENTION, IN_FLIGHT_MAX};
use ostraca_types::{KeyDigest, PasteId, RequestDigest, Timestamp};

use crate::Context;
use crate::ledger::{Begun, Call, Instant, Op, Told, short};
use crate::linear::{Event, Model, Order, order};
use crate::verdict::{Kind, Verdict};

/// An answer to a create.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
struct Answer {
    paste: PasteId,
    expires_at: Timestamp,
    token: [u8; 32],
}

/// A create of one key, taken apart.
#[derive(Clone, Copy)]
struct Create {
    at: usize,
    request: RequestDigest,
    lifetime_ms: u64,
}

pub(crate) fn check(context: &Context<'_>, verdict: &mut Verdict) {
    let mut keys: BTreeMap<KeyDigest, Vec<Create>> = BTreeMap::new();
    for (at, call) in context.calls.iter().enumerate() {
        if let Op::Create {
            key,
            request,
            lifetime_ms,
        } = call.op
        {
            keys.entry(key).or_default().push(Create {
                at,
                request,
                lifetime_ms,
            });
        }
    }
    for (key, rows) in &context.keys {
        if rows.len() > 1 {
            let subject = format!("key {}", short(&key.0));
            let text = format!("the store has {} rows of it", rows.len());
            let pastes = rows
                .iter()
                .filter_map(|row| context.created.get(&row.paste).copied());
            let shown: Vec<_> = pastes.collect();
            verdict.add(context, Kind::KeyWithTwoPastes, subject, text, &shown);
        }
    }
    commits(context, verdict);
    unnamed(context, verdict);
    for (key, creates) in &mut keys {
        creates.sort_by_key(|create| context.calls[create.at].returned);
        check_key(context, *key, creates, verdict);
    }
}

/// How long a key is honoured after the create that was queued at `created`.
fn until(created: Timestamp) -> Timestamp {
    created.plus(IDEMPOTENCY_RETENTION)
}

/// p03: whatever says when a paste was created, that was within an hour of its begin.
fn commits(context: &Context<'_>, verdict: &mut Verdict) {
    let told = context.calls.iter().filter_map(|call| match call.told {
        Told::Created {
            paste, expires_at, ..
        } => Some((paste, expires_at)),
        _ => None,
    });
    let rows = context.store.pastes.iter();
    let mut known: BTreeMap<PasteId, Timestamp> = told.collect();
    known.extend(rows.map(|row| (row.id, row.expires_at)));
    for (paste, expires_at) in known {
        let Some(&at) = context.tickets.get(&paste) else {
            continue;
        };
        let call = &context.calls[at];
        let (
            Op::Create { lifetime_ms, .. },
            Some(Begun {
                at: Some(begun), ..
            }),
        ) = (&call.op, call.begun)
        else {
            continue;
        };
        let created = Timestamp(expires_at.0.saturating_sub(*lifetime_ms));
        if created.since(begun.0) > IN_FLIGHT_MAX {
            let text = format!("begun at {}, and committed at {}", begun.0.0, created.0);
            let subject = format!("paste {paste}");
            verdict.add(context, Kind::CommittedTooLate, subject, text, &[at]);
        }
    }
}

/// k08: a paste came with its key's row, which names it for 25 h, whether or not anybody was told.
fn unnamed(context: &Context<'_>, verdict: &mut Verdict) {
    let named: BTreeSet<PasteId> = context.store.keys.iter().map(|row| row.paste).collect();
    // Of such a create nobody knows the id.
    let guess = |call: &&Call| call.told == Told::Unknown && call.begun.is_none();
    let guesses = context.calls.iter().filter(guess);
    let guesses: BTreeSet<_> = guesses
        .filter_map(|call| match call.op {
            Op::Create { key, .. } => Some(key.slot()),
            _ => None,
        })
        .collect();
    for row in &context.store.pastes {
        let Some(now) = context.now(row.id.slot()) else {
            continue;
        };
        if named.contains(&row.id) || context.created.contains_key(&row.id) {
            continue;
        }
        let subject = format!("paste {}", row.id);
        let Some(&at) = context.tickets.get(&row.id) else {
            if !guesses.contains(&row.id.slot()) {
                let text = "it is in the store, and nobody asked for it";
                verdict.add(context, Kind::PasteUnnamed, subject, text, &[]);
            }
            continue;
        };
        if let Op::Create { lifetime_ms, .. } = context.calls[at].op
            && now < until(Timestamp(row.expires_at.0.saturating_sub(lifetime_ms)))
        {
            let text = "it is in the store, and its key's row is not";
            verdict.add(context, Kind::PasteUnnamed, subject, text, &[at]);
        }
    }
}

/// `creates` are in the order of their returns.
fn check_key(context: &Context<'_>, key: KeyDigest, creates: &[Create], verdict: &mut Verdict) {
    let subject = format!("key {}", short(&key.0));
    let lives = lives(context, creates);
    // Each ends when the next begins, so if any two overlap, two neighbours do.
    for pair in lives.windows(2) {
        let [earlier, later] = pair else { continue };
        if later.latest < until(earlier.created) {
            let text = format!("{} and {}", earlier.answer.paste, later.answer.paste);
            let shown = [earlier.first(), later.first()];
            verdict.add(context, Kind::KeyWithTwoPastes, &subject, text, &shown);
        }
    }
    for (at, life) in lives.iter().enumerate() {
        life.answers(context, key, &subject, verdict);
        if at + 1 == lives.len() {
            in_store(context, key, life, &subject, verdict);
        }
    }
    conflicts(context, creates, &subject, verdict);
    if !verdict.is_about(&subject) {
        in_order(context, creates, &subject, verdict);
    }
}

/// All answers that name one paste.
struct Life {
    answer: Answer,
    request: RequestDigest,
    created: Timestamp,
    /// The latest shard time at which it can have been created.
    latest: Timestamp,
    /// In the order of their returns.
    told: Vec<Create>,
    /// Those that are not the first answer, with the first.
    changed: Vec<usize>,
}

impl Life {
    fn first(&self) -> usize {
        self.told.first().map_or(0, |create| create.at)
    }

    fn answers(&self, context: &Context<'_>, key: KeyDigest, subject: &str, verdict: &mut Verdict) {
        let (shard, over) = (context.owner(key.slot()), until(self.created));
        for create in &self.told {
            let (call, shown) = (&context.calls[create.at], [self.first(), create.at]);
            if create.request != self.request {
                let text = "another request got the answer";
                verdict.add(context, Kind::WrongRequest, subject, text, &shown);
            }
            let replayed = matches!(call.told, Told::Created { replayed: true, .. });
            if replayed && context.times.at_least(shard, call.invoked) >= over {
                let text = format!("it was honoured until {}", over.0);
                verdict.add(context, Kind::KeyHonouredTooLong, subject, text, &shown);
            }
        }
        if self.changed.len() > 1 {
            let text = "the answers differ, or two say that they are the first";
            verdict.add(context, Kind::AnswerChanged, subject, text, &self.changed);
        }
    }
}

/// In the order in which they began.
fn lives(context: &Context<'_>, creates: &[Create]) -> Vec<Life> {
    let mut lives: BTreeMap<PasteId, Life> = BTreeMap::new();
    for create in creates {
        let call = &context.calls[create.at];
        let Told::Created {
            paste,
            expires_at,
            token,
            replayed,
        } = call.told
        else {
            continue;
        };
        let answer = Answer {
            paste,
            expires_at,
            token: token.0,
        };
        let life = lives.entry(paste).or_insert_with(|| {
            let created = Timestamp(expires_at.0.saturating_sub(create.lifetime_ms));
            Life {
                answer,
                request: create.request,
                created,
                // It may have waited in a queue, for as long as a create may be in flight (p03).
                latest: if replayed {
                    created
                } else {
                    created.plus(IN_FLIGHT_MAX)
                },
                told: Vec::new(),
                changed: Vec::new(),
            }
        });
        life.told.push(*create);
        let differs = life.answer != answer;
        // The first of its kind is what others are compared with.
        if differs && life.changed.is_empty() {
            life.changed.push(life.first());
        }
        if differs || !replayed {
            life.changed.push(create.at);
        }
    }
    let mut lives: Vec<Life> = lives.into_values().collect();
    lives.sort_by_key(|life| life.created);
    lives
}

/// A conflict needs somebody who used the key for something else.
fn conflicts(context: &Context<'_>, creates: &[Create], subject: &str, verdict: &mut Verdict) {
    let calls = context.calls;
    // When each request was first asked for, of those that may have been granted.
    let mut asked: BTreeMap<[u8; 32], Instant> = BTreeMap::new();
    for create in creates {
        let call = &calls[create.at];
        if matches!(call.told, Told::Created { .. } | Told::Unknown) {
            let first = asked.entry(create.request.0).or_insert(call.invoked);
            *first = (*first).min(call.invoked);
        }
    }
    // The two that were asked first are enough: one of them is another than any third.
    let mut early: Vec<_> = asked
        .into_iter()
        .map(|(request, at)| (at, request))
        .collect();
    early.sort_unstable();
    early.truncate(2);
    for create in creates {
        let call = &calls[create.at];
        let other = early
            .iter()
            .any(|&(at, request)| request != create.request.0 && at <= call.returned);
        if call.told == Told::Conflict && !other {
            let own = creates.iter().find(|own| {
                own.request == create.request && matches!(calls[own.at].told, Told::Created { .. })
            });
            let text = "a conflict, and nobody had used the key for another request";
            let shown: Vec<_> = own
                .map(|own| own.at)
                .into_iter()
                .chain([create.at])
                .collect();
            verdict.add(context, Kind::WrongRequest, subject, text, &shown);
        }
    }
}

/// What the store says of a key that was answered; `life` is the last that is known.
fn in_store(
    context: &Context<'_>,
    key: KeyDigest,
    life: &Life,
    subject: &str,
    verdict: &mut Verdict,
) {
    let (Some(now), over) = (context.now(key.slot()), until(life.created)) else {
        return;
    };
    if now >= over || verdict.is_about(subject) {
        return;
    }
    let shown: Vec<_> = life.told.iter().map(|create| create.at).collect();
    let rows = context.keys.get(&key).and_then(|rows| rows.first());
    let Some(row) = rows else {
        let text = format!("it is not in the store at {now}, and is honoured until {over}");
        return verdict.add(context, Kind::KeyLost, subject, text, &shown);
    };
    if row.paste != life.answer.paste {
        let text = format!("the store has {} under it", row.paste);
        return verdict.add(context, Kind::KeyWithTwoPastes, subject, text, &shown);
    }
    let text = format!(
        "the store honours it until {}, and not until {over}",
        row.expires_at
    );
    let slack = context.limits.clock_slack;
    if row.expires_at.plus(slack) < over {
        verdict.add(context, Kind::KeyLost, subject, text, &shown);
    } else if row.expires_at > over.plus(slack) {
        verdict.add(context, Kind::KeyHonouredTooLong, subject, text, &shown);
    }
}

/// What a key is: unused, or used for a request, whose answer may not have been told yet.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
struct Held {
    request: RequestHashable,
    answer: Option<Answer>,
    /// Before then it is used.
    used_until: Timestamp,
    /// From then on it is not; `None` while nobody was told when it was used.
    free_from: Option<Timestamp>,
}

type RequestHashable = [u8; 32];

struct KeyModel;

#[derive(Debug, Clone)]
struct KeyOp {
    request: RequestHashable,
    told: KeyTold,
    lifetime_ms: u64,
    /// Shard time was within these.
    least: Timestamp,
    most: Timestamp,
}

#[derive(Debug, Clone)]
enum KeyTold {
    First(Answer),
    Stored(Answer),
    Conflict,
    Unknown,
}

impl Model for KeyModel {
    type State = Option<Held>;
    type Op = KeyOp;

    fn only_looks(&self, op: &KeyOp) -> bool {
        matches!(op.told, KeyTold::Conflict)
    }

    fn step(&self, state: &Self::State, op: &KeyOp) -> Option<Self::State> {
        let over = |held: &Held| op.most >= held.used_until;
        let honoured = |held: &Held| held.free_from.is_none_or(|from| op.least < from);
        let used = |answer: Option<Answer>| {
            let created = answer.map(|answer| answer.expires_at.0.saturating_sub(op.lifetime_ms));
            let free_from = created.map(|created| until(Timestamp(created)));
            Some(Some(Held {
                request: op.request,
                answer,
                // One that nobody heard of was not there before it was asked for.
                used_until: free_from.unwrap_or_else(|| until(op.least)),
                free_from,
            }))
        };
        match (&op.told, state) {
            (KeyTold::First(answer), None) => used(Some(*answer)),
            (KeyTold::First(answer), Some(held)) if over(held) && held.answer != Some(*answer) => {
                used(Some(*answer))
            }
            (KeyTold::Stored(answer), Some(held))
                if held.request == op.request && honoured(held) =>
            {
                match held.answer {
                    None => used(Some(*answer)),
                    Some(known) if known == *answer => Some(state.clone()),
                    Some(_) => None,
                }
            }
            (KeyTold::Conflict, Some(held)) if held.request != op.request && honoured(held) => {
                Some(state.clone())
            }
            (KeyTold::Unknown, None) => used(None),
            (KeyTold::Unknown, Some(held)) if over(held) => used(None),
            (KeyTold::Unknown, Some(_)) => Some(state.clone()),
            _ => None,
        }
    }
}

fn in_order(context: &Context<'_>, creates: &[Create], subject: &str, verdict: &mut Verdict) {
    let mut shown = Vec::new();
    let mut events = Vec::new();
    for create in creates {
        let call: &Call = &context.calls[create.at];
        let told = match &call.told {
            Told::Created {
                paste,
                expires_at,
                token,
                replayed,
            } => {
                let answer = Answer {
                    paste: *paste,
                    expires_at: *expires_at,
                    token: token.0,
                };
                if *replayed {
                    KeyTold::Stored(answer)
                } else {
                    KeyTold::First(answer)
                }
            }
            Told::Conflict => KeyTold::Conflict,
            Told::Unknown => KeyTold::Unknown,
            _ => continue,
        };
        let unknown = matches!(told, KeyTold::Unknown);
        let Op::Create { key, .. } = call.op else {
            continue;
        };
        let shard = context.owner(key.slot());
        let most = if unknown {
            Timestamp(u64::MAX)
        } else {
            context.times.at_most(shard, call.returned)
        };
        shown.push(create.at);
        events.push(Event {
            invoked: call.invoked.0,
            returned: (!unknown).then_some(call.returned.0),
            op: KeyOp {
                request: create.request.0,
                told,
                lifetime_ms: create.lifetime_ms,
                least: context.times.at_least(shard, call.invoked),
                most,
            },
        });
    }
    let kind = match order(&KeyModel, None, &events, context.limits.search_max) {
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
