//! Begin and commit: translate, call the engine, translate back.

use std::sync::atomic::Ordering;
use std::time::Duration;

use ostraca_engine::{Answer, Create, IdempotencyRow, Outcome};
use ostraca_proto::v1;
use ostraca_types::contract::{BODY_SIZE_MAX, IDEMPOTENCY_RETENTION, LIFETIME_DEFAULT};
use ostraca_types::{
    BodyDigest, DeleteToken, IdempotencyKey, KeyError, Lifetime, OutboxId, PasteId, Reason,
    RequestDigest, RequestHash, Syntax, Timestamp, Title,
};

use crate::host::Host;
use crate::refusal::Refusal;
use crate::seal::{self, Binding};
use crate::ticket::Ticket;

/// A commit that was queued, and what answering it needs.
pub(crate) struct PendingCommit {
    key: IdempotencyKey,
    request_hash: RequestHash,
    paste_id: PasteId,
    expires_at: Timestamp,
    token: DeleteToken,
}

pub(crate) fn parse_key(text: &str) -> Result<IdempotencyKey, Refusal> {
    if text.is_empty() {
        return Err(Refusal::new(
            Reason::KeyMissing,
            "a create needs an idempotency key: a random UUID, made once per save",
        )
        .with("field", "idempotency_key"));
    }
    IdempotencyKey::parse(text).map_err(|err: KeyError| {
        Refusal::new(Reason::KeyMalformed, err.to_string()).with("field", "idempotency_key")
    })
}

fn parse_digest(bytes: &[u8]) -> Result<RequestDigest, Refusal> {
    bytes
        .try_into()
        .map(RequestDigest)
        .map_err(|_| Refusal::field("request_digest", "a request digest is 32 bytes"))
}

impl Host {
    /// The answer that a key's row holds, for the request that `request_hash` stands for.
    fn stored_answer(
        &self,
        key: &IdempotencyKey,
        request_hash: RequestHash,
        row: &IdempotencyRow,
    ) -> Result<v1::CreateAnswer, Refusal> {
        if row.request_hash != request_hash {
            return Err(Refusal::new(
                Reason::KeyReused,
                "this idempotency key was used for another request; a new save needs a new key",
            ));
        }
        let binding = Binding {
            cluster: self.data.cluster(),
            key_digest: key.digest(),
            request_hash,
            paste_id: &row.paste_id,
        };
        let opened = self
            .sealing
            .get(row.answer.generation)
            .ok()
            .and_then(|secret| seal::open(key, &secret, binding, &row.answer).ok());
        let (expires_at, token) = opened.ok_or_else(|| {
            self.not_opened.fetch_add(1, Ordering::Relaxed);
            tracing::error!(event = "answer_not_opened", shard = %self.id, slot = %key.slot());
            Refusal::new(
                Reason::AnswerNotOpened,
                "this create was stored, but its answer cannot be opened",
            )
        })?;
        Ok(answer(&row.paste_id, expires_at, &token, true))
    }

    pub(crate) fn begin(
        &self,
        request: &v1::BeginCreateRequest,
    ) -> Result<v1::BeginCreateResponse, Refusal> {
        use v1::begin_create_response::Outcome;
        let key = parse_key(&request.idempotency_key)?;
        let digest = parse_digest(&request.request_digest)?;
        let key_digest = key.digest();
        let shard = self.shard_for(key_digest.slot())?;
        let request_hash = seal::request_hash(&key, &digest);
        // A hint that saves PUT and append; apply decides (k11).
        let outcome = if let Some(row) = shard.idempotency(&key_digest)? {
            Outcome::Answer(self.stored_answer(&key, request_hash, &row)?)
        } else {
            let paste_id = PasteId::mint(key_digest.slot(), |bytes| self.entropy.fill(bytes));
            let ticket = Ticket {
                key_digest,
                request_hash,
                paste_id,
                begun_at: shard.now(),
            };
            Outcome::Ticket(v1::CreateTicket {
                ticket: ticket.issue(&self.secrets.ticket, self.data.cluster()),
                paste_id: paste_id.to_string(),
                object_key: paste_id.object_key(),
            })
        };
        let position = self.position(shard.epoch(), shard.applied());
        Ok(v1::BeginCreateResponse {
            outcome: Some(outcome),
            position,
        })
    }

    /// Checks a commit and queues it. `reply` is called once with its answer, unless this answers
    /// with a refusal. `left` is how long whoever asks still waits.
    pub(crate) fn commit(
        &self,
        request: &v1::CommitCreateRequest,
        left: Option<Duration>,
        reply: impl FnOnce(PendingCommit, Result<Answer, ostraca_engine::Error>) + Send + 'static,
    ) -> Result<(), Refusal> {
        let key = parse_key(&request.idempotency_key)?;
        let digest = parse_digest(&request.request_digest)?;
        let key_digest = key.digest();
        let shard = self.shard_for(key_digest.slot())?.within(left);
        let request_hash = seal::request_hash(&key, &digest);
        let ticket = Ticket::verify(&request.ticket, &self.secrets.ticket, self.data.cluster())
            .filter(|ticket| ticket.key_digest == key_digest && ticket.request_hash == request_hash)
            .ok_or_else(|| {
                Refusal::new(
                    Reason::TicketRejected,
                    "the ticket is not of this cluster, or not of this key and request",
                )
                .with("field", "ticket")
            })?;
        let options = Options::parse(request)?;
        let created_at = shard.now();
        let expires_at = created_at.plus(options.lifetime);
        let token = DeleteToken::mint(|bytes| self.entropy.fill(bytes));
        let binding = Binding {
            cluster: self.data.cluster(),
            key_digest,
            request_hash,
            paste_id: &ticket.paste_id,
        };
        let (generation, secret) = self.sealing.current(created_at).map_err(|err| {
            tracing::error!(event = "no_sealing_secret", shard = %self.id, %err);
            Refusal::new(Reason::NotReady, "there is no sealing secret yet")
        })?;
        let sealing = (generation, &secret);
        let create = Create {
            begun_at: ticket.begun_at,
            created_at,
            expires_at,
            key_expires_at: created_at.plus(IDEMPOTENCY_RETENTION),
            key_digest,
            request_hash,
            paste_id: ticket.paste_id,
            token_hash: token.hash(),
            outbox_id: OutboxId::mint(key_digest.slot(), |bytes| self.entropy.fill(bytes)),
            body_size: options.body_size,
            body_digest: options.body_digest,
            syntax: options.syntax,
            title: options.title,
            answer: seal::seal(&key, sealing, binding, expires_at, &token, &*self.entropy),
        };
        let pending = PendingCommit {
            key,
            request_hash,
            paste_id: ticket.paste_id,
            expires_at,
            token,
        };
        shard.create(
            Box::new(create),
            Box::new(move |answer| reply(pending, answer)),
        )?;
        Ok(())
    }

    /// What a decided commit answers.
    pub(crate) fn committed(
        &self,
        pending: &PendingCommit,
        decided: Result<Answer, ostraca_engine::Error>,
    ) -> Result<v1::CommitCreateResponse, Refusal> {
        let Answer {
            outcome,
            epoch,
            sequence,
        } = decided?;
        let answer = match outcome {
            Outcome::Created => {
                answer(&pending.paste_id, pending.expires_at, &pending.token, false)
            }
            Outcome::Replayed(row) => {
                self.stored_answer(&pending.key, pending.request_hash, &row)?
            }
            Outcome::Conflict => {
                return Err(Refusal::new(
                    Reason::KeyReused,
                    "this idempotency key was used for another request; a new save needs a new key",
                ));
            }
            Outcome::IdTaken => {
                return Err(Refusal::new(
                    Reason::IdTaken,
                    "the id was taken meanwhile; begin anew",
                ));
            }
            Outcome::TooLate => {
                return Err(Refusal::new(
                    Reason::CreateTooLate,
                    "the create was in flight for too long; begin anew with the same key",
                ));
            }
            // No `_` arm in apply's own list; here only the first five are a create's.
            _ => unreachable!("a create has no such outcome"),
        };
        let position = self.position(epoch, sequence);
        Ok(v1::CommitCreateResponse {
            answer: Some(answer),
            position,
        })
    }
}

fn answer(
    paste_id: &PasteId,
    expires_at: Timestamp,
    token: &DeleteToken,
    replayed: bool,
) -> v1::CreateAnswer {
    v1::CreateAnswer {
        paste_id: paste_id.to_string(),
        expires_at_ms: expires_at.0,
        delete_token: token.expose_text(),
        replayed,
    }
}

/// The options of a commit, checked.
struct Options {
    lifetime: Duration,
    syntax: Option<Syntax>,
    title: Option<Title>,
    body_size: u32,
    body_digest: BodyDigest,
}

impl Options {
    fn parse(request: &v1::CommitCreateRequest) -> Result<Self, Refusal> {
        let lifetime = match request.lifetime_seconds {
            0 => LIFETIME_DEFAULT,
            secs => Lifetime::from_secs(secs.into())
                .map_err(|err| Refusal::field("lifetime_seconds", err.to_string()))?
                .duration(),
        };
        let syntax = Some(&request.syntax).filter(|text| !text.is_empty());
        let title = Some(&request.title).filter(|text| !text.is_empty());
        let body_size = match usize::try_from(request.body_size) {
            Ok(0) => {
                return Err(
                    Refusal::new(Reason::EmptyBody, "a paste has at least one byte")
                        .with("field", "body_size"),
                );
            }
            Ok(size) if size <= BODY_SIZE_MAX => u32::try_from(size).ok(),
            _ => None,
        };
        Ok(Self {
            lifetime,
            syntax: syntax
                .map(|text| Syntax::parse(text))
                .transpose()
                .map_err(|err| Refusal::field("syntax", err.to_string()))?,
            title: title
                .map(|text| Title::parse(text))
                .transpose()
                .map_err(|err| Refusal::field("title", err.to_string()))?,
            body_size: body_size.ok_or_else(|| {
                Refusal::new(
                    Reason::BodyTooLarge,
                    format!("a body is at most {BODY_SIZE_MAX} bytes"),
                )
                .with("limit", BODY_SIZE_MAX.to_string())
            })?,
            body_digest: request
                .body_digest
                .as_slice()
                .try_into()
                .map(BodyDigest)
                .map_err(|_| Refusal::field("body_digest", "a body digest is 32 bytes"))?,
        })
    }
}
