//! What stands in front of a shard: it translates requests into commands, as the gRPC services do.
//!
//! Answers are not sealed here, and tickets not signed: both are the services' own, and tested there.

use std::sync::Arc;
use std::time::Duration;

use ostraca_engine::{
    Ack, Command, Create, Deliver, End, EndCause, Error, Extend, IdempotencyRow, Inbox, Nack,
    Outcome, Replay, SEALED_ANSWER_SIZE, SealedAnswer, Settled, Shard,
};
use ostraca_io::Entropy as _;
use ostraca_types::contract::{IDEMPOTENCY_RETENTION, INBOX_RETENTION};
use ostraca_types::{BodyDigest, DeleteToken, Epoch, OutboxId, PasteId, Sequence, Timestamp};

use crate::kernel::{Kernel, Process};
use crate::net::{Answer, Arrival, Created, Net, Reply, Request, Ticket};

/// Dead letters that one list has.
const LETTERS_MAX: usize = 100;

/// A process that leads, as its callers see it.
pub(crate) struct Service {
    pub(crate) kernel: Kernel,
    pub(crate) net: Net,
    pub(crate) process: Arc<Process>,
}

/// The answer as its row keeps it.
fn stored(expires_at: Timestamp, token: &DeleteToken) -> SealedAnswer {
    let mut bytes = [0; SEALED_ANSWER_SIZE];
    bytes[..8].copy_from_slice(&expires_at.0.to_le_bytes());
    bytes[8..24].copy_from_slice(token.expose());
    SealedAnswer {
        generation: 0,
        bytes,
    }
}

fn opened(row: &IdempotencyRow) -> Created {
    let (expires_at, rest) = row.answer.bytes.split_first_chunk::<8>().expect("64 bytes");
    let token = rest.first_chunk::<16>().expect("56 bytes");
    Created {
        paste: row.paste_id,
        expires_at: Timestamp(u64::from_le_bytes(*expires_at)),
        token: DeleteToken::from_bytes(*token),
        replayed: true,
    }
}

pub(crate) fn refused(err: Error) -> Answer {
    match err {
        Error::Busy { .. } => Answer::Refused("OVERLOADED"),
        Error::Late => Answer::Refused("DEADLINE_EXCEEDED"),
        Error::Full => Answer::Refused("DISK_FULL"),
        Error::Closed => Answer::Refused("NOT_READY"),
        Error::Fenced => Answer::Refused("NOT_LEADER"),
        Error::Unknown => Answer::Unknown,
    }
}

type Position = Option<(Epoch, Sequence)>;

impl Service {
    /// Answers what arrived, now or when its record is durable. `shard` is `None` while this process
    /// does not lead.
    pub(crate) fn handle(&self, shard: Option<&Shard>, arrival: Arrival) {
        let Arrival { call, request } = arrival;
        let Some(shard) = shard else {
            return self.reply(call, Answer::Refused("NOT_LEADER"), None);
        };
        let answered = self.ask(shard, call, request);
        match answered {
            // When it is durable.
            Ok(None) => {}
            Ok(Some(answer)) => self.reply(call, answer, Some((shard.epoch(), shard.applied()))),
            Err(err) => self.reply(call, refused(err), None),
        }
    }

    fn reply(&self, call: u64, answer: Answer, at: Position) {
        self.net.reply(&self.process, call, Reply { answer, at });
    }

    fn ask(&self, shard: &Shard, call: u64, request: Request) -> Result<Option<Answer>, Error> {
        Ok(match request {
            Request::Begin { key, request } => Some(match shard.idempotency(&key)? {
                Some(row) if row.request_hash == request => Answer::Created(opened(&row)),
                Some(_) => Answer::Conflict,
                None => Answer::Ticket(Ticket {
                    key,
                    request,
                    paste: PasteId::mint(key.slot(), |bytes| self.kernel.entropy.fill(bytes)),
                    begun_at: shard.now(),
                }),
            }),
            Request::Commit {
                ticket,
                lifetime_ms,
            } => {
                self.commit(shard, call, ticket, lifetime_ms)?;
                None
            }
            Request::Get(id) => Some(match shard.paste(&id)? {
                Some((row, now)) => Answer::Found {
                    now,
                    expires_at: row.expires_at,
                },
                None => Answer::Missing,
            }),
            Request::Delete(id, token) => {
                let Some((row, _)) = shard.paste(&id)? else {
                    return Ok(Some(Answer::Missing));
                };
                if !row.token_hash.matches(&token) {
                    return Ok(Some(Answer::TokenRejected));
                }
                let end = End {
                    paste_id: id,
                    cause: EndCause::Deleted,
                };
                let reply = self.later(call, |outcome| match outcome {
                    Outcome::Ended => Answer::Deleted,
                    _ => Answer::Missing,
                });
                shard.end(end, reply)?;
                None
            }
            Request::Contains(consumer, id) => {
                Some(Answer::Contains(shard.inbox_contains(&consumer, id)?))
            }
            Request::DeadLetters(consumer) => {
                Some(match shard.dead_letters(&consumer, None, LETTERS_MAX)? {
                    Some(letters) => Answer::Dead(letters),
                    None => Answer::Refused("UNKNOWN_CONSUMER"),
                })
            }
            request => {
                self.deliver(shard, call, request)?;
                None
            }
        })
    }

    fn commit(
        &self,
        shard: &Shard,
        call: u64,
        ticket: Ticket,
        lifetime_ms: u64,
    ) -> Result<(), Error> {
        let created_at = shard.now();
        let expires_at = created_at.plus(Duration::from_millis(lifetime_ms));
        let entropy = &self.kernel.entropy;
        let token = DeleteToken::mint(|bytes| entropy.fill(bytes));
        let create = Create {
            begun_at: ticket.begun_at,
            created_at,
            expires_at,
            key_expires_at: created_at.plus(IDEMPOTENCY_RETENTION),
            key_digest: ticket.key,
            request_hash: ticket.request,
            paste_id: ticket.paste,
            token_hash: token.hash(),
            outbox_id: OutboxId::mint(ticket.key.slot(), |bytes| entropy.fill(bytes)),
            body_size: 1,
            body_digest: BodyDigest([0; 32]),
            syntax: None,
            title: None,
            answer: stored(expires_at, &token),
        };
        let reply = self.later(call, move |outcome| match outcome {
            Outcome::Created => Answer::Created(Created {
                paste: ticket.paste,
                expires_at,
                token,
                replayed: false,
            }),
            Outcome::Replayed(row) => Answer::Created(opened(&row)),
            Outcome::Conflict => Answer::Conflict,
            Outcome::IdTaken => Answer::Refused("ID_TAKEN"),
            _ => Answer::Refused("CREATE_TOO_LATE"),
        });
        shard.create(Box::new(create), reply)
    }

    fn deliver(&self, shard: &Shard, call: u64, request: Request) -> Result<(), Error> {
        let jitter = self.kernel.chance.next();
        let command = match request {
            Request::Receive {
                consumer,
                max,
                visibility_ms,
            } => Command::Deliver(Deliver {
                consumer,
                max,
                visibility: Duration::from_millis(visibility_ms),
                jitter,
            }),
            Request::Ack(consumer, attempt) => Command::Ack(Ack {
                consumer,
                attempts: vec![attempt],
            }),
            Request::Nack(consumer, attempt, reason) => Command::Nack(Nack {
                consumer,
                attempt,
                delay: None,
                reason: reason.into(),
                jitter,
            }),
            Request::Extend {
                consumer,
                attempt,
                visibility_ms,
            } => Command::Extend(Extend {
                consumer,
                attempt,
                visibility: Duration::from_millis(visibility_ms),
            }),
            Request::Register(consumer) => Command::Register(consumer),
            Request::Replay(consumer, outbox_id) => Command::Replay(Replay {
                consumer,
                outbox_id,
            }),
            Request::Record(consumer, outbox_id) => Command::Inbox(Inbox {
                consumer,
                outbox_id,
                expires_at: shard.now().plus(INBOX_RETENTION),
            }),
            _ => unreachable!("not a request of delivery"),
        };
        let reply = self.later(call, |outcome| match outcome {
            Outcome::Delivered(messages) => Answer::Delivered(messages),
            Outcome::Settled(settled) => {
                Answer::Settled(settled.first().copied().unwrap_or(Settled::Gone))
            }
            Outcome::Recorded => Answer::Recorded { first: true },
            Outcome::AlreadyRecorded => Answer::Recorded { first: false },
            Outcome::Registered => Answer::Registered,
            Outcome::DeadLetterReplayed => Answer::Replayed(true),
            Outcome::UnknownDeadLetter => Answer::Replayed(false),
            _ => Answer::Refused("UNKNOWN_CONSUMER"),
        });
        shard.deliver(command, reply)
    }

    /// Answers a call with what its durable command came to.
    fn later(
        &self,
        call: u64,
        answer: impl FnOnce(Outcome) -> Answer + Send + 'static,
    ) -> ostraca_engine::Reply {
        let (net, process) = (self.net.clone(), Arc::clone(&self.process));
        Box::new(move |decided| {
            let (answer, at) = match decided {
                Ok(decided) => {
                    let at = (decided.epoch, decided.sequence);
                    (answer(decided.outcome), Some(at))
                }
                Err(err) => (refused(err), None),
            };
            net.reply(&process, call, Reply { answer, at });
        })
    }
}
