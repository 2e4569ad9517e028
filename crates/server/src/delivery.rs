//! Outbox and inbox: translate, call the engine, translate back.

use std::sync::Arc;
use std::time::Duration;

use ostraca_engine::{
    Ack, Answer, AttemptId, Command, DeadLetter, Deliver, Delivery, EndCause, Extend, Inbox, Nack,
    Outcome, Replay, Settled, Shard,
};
use ostraca_proto::v1;
use ostraca_types::contract::{
    FAILURE_SIZE_MAX, INBOX_RETENTION, VISIBILITY_DEFAULT, VISIBILITY_MAX,
};
use ostraca_types::{ConsumerName, Epoch, OutboxId, Reason, Slot};
use tokio::sync::{mpsc, oneshot};
use tokio::time::Instant;
use tokio_stream::wrappers::ReceiverStream;
use tonic::{Request, Response, Status};
use v1::inbox_service_server::InboxService;
use v1::outbox_service_server::OutboxService;

use crate::deadline;
use crate::host::{Host, Phase};
use crate::refusal::Refusal;
use crate::services::decided;

const MESSAGES_DEFAULT: u32 = 10;
const MESSAGES_MAX: u32 = 100;
/// A long poll ends before a client's deadline of half a minute.
const WAIT_MAX: Duration = Duration::from_secs(20);
/// How often a waiting poll looks at the shard's clock: the wait until a message is due is in shard
/// time, which can move faster than this runtime's.
const LOOK_INTERVAL: Duration = Duration::from_secs(1);
const PAGE_MAX: usize = 100;

const HANDLE_VERSION: u8 = 1;
const HANDLE_SIZE: usize = 29;

/// A handle: version, outbox id (16), epoch (8), attempt (4), little-endian.
fn handle(id: &AttemptId) -> Vec<u8> {
    let mut bytes = Vec::with_capacity(HANDLE_SIZE);
    bytes.push(HANDLE_VERSION);
    bytes.push(id.outbox_id.slot().0);
    bytes.extend_from_slice(id.outbox_id.random_part());
    bytes.extend_from_slice(&id.epoch.0.to_le_bytes());
    bytes.extend_from_slice(&id.attempt.to_le_bytes());
    bytes
}

fn parse_handle(bytes: &[u8]) -> Result<AttemptId, Refusal> {
    let parsed = || {
        let bytes: &[u8; HANDLE_SIZE] = bytes.try_into().ok()?;
        (bytes[0] == HANDLE_VERSION).then_some(())?;
        Some(AttemptId {
            outbox_id: OutboxId::from_parts(Slot(bytes[1]), &bytes[2..17]).ok()?,
            epoch: Epoch(u64::from_le_bytes(bytes[17..25].try_into().ok()?)),
            attempt: u32::from_le_bytes(bytes[25..29].try_into().ok()?),
        })
    };
    parsed().ok_or_else(|| Refusal::field("handle", "not a handle that a delivery had"))
}

fn parse_consumer(text: &str) -> Result<ConsumerName, Refusal> {
    ConsumerName::parse(text).map_err(|err| Refusal::field("consumer", err.to_string()))
}

fn parse_outbox_id(text: &str) -> Result<OutboxId, Refusal> {
    OutboxId::parse(text).map_err(|err| Refusal::field("outbox_id", err.to_string()))
}

fn visibility(millis: u32) -> Result<Duration, Refusal> {
    match Duration::from_millis(millis.into()) {
        Duration::ZERO => Ok(VISIBILITY_DEFAULT),
        asked if asked <= VISIBILITY_MAX => Ok(asked),
        _ => Err(Refusal::field(
            "visibility_ms",
            "a visibility timeout is at most 12 h",
        )),
    }
}

fn max_messages(asked: u32) -> u32 {
    match asked {
        0 => MESSAGES_DEFAULT,
        asked => asked.min(MESSAGES_MAX),
    }
}

fn unknown_consumer(consumer: &ConsumerName) -> Refusal {
    Refusal::new(
        Reason::UnknownConsumer,
        format!("no consumer of this name is registered with the shard: {consumer}"),
    )
    .with("field", "consumer")
}

fn message(delivery: &Delivery) -> v1::Message {
    v1::Message {
        outbox_id: delivery.row.outbox_id.to_string(),
        paste_id: delivery.row.paste_id.to_string(),
        object_key: delivery.row.paste_id.object_key(),
        cause: match delivery.row.cause {
            EndCause::Deleted => v1::EndCause::Deleted,
            EndCause::Expired => v1::EndCause::Expired,
        }
        .into(),
        ended_at_ms: delivery.row.ended_at.0,
        attempt: delivery.id.attempt,
        handle: handle(&delivery.id),
        visible_at_ms: delivery.visible_at.0,
    }
}

fn result(settled: Settled) -> v1::SettleResult {
    match settled {
        Settled::Done => v1::SettleResult::Done,
        Settled::Stale => v1::SettleResult::Stale,
        Settled::Gone => v1::SettleResult::Gone,
    }
}

/// Queues a command and waits until it is durable and decided.
async fn propose(shard: &Shard, command: Command) -> Result<Answer, Refusal> {
    let (sender, receiver) = oneshot::channel();
    shard.deliver(command, Box::new(|answer| drop(sender.send(answer))))?;
    Ok(decided(receiver).await?)
}

/// What a consumer asks for.
struct Want {
    consumer: ConsumerName,
    max: u32,
    visibility: Duration,
    /// When whoever asks stops waiting.
    ends: Option<Instant>,
}

impl Host {
    fn jitter(&self) -> u64 {
        let mut bytes = [0; 8];
        self.entropy.fill(&mut bytes);
        u64::from_le_bytes(bytes)
    }

    /// Messages that are due, waiting for the first until `wait_ends`; none if nothing came.
    async fn receive(&self, want: &Want, wait_ends: Instant) -> Result<Vec<v1::Message>, Refusal> {
        let mut deliverable = self.deliverable.subscribe();
        let mut phase = self.phase();
        loop {
            deliverable.mark_unchanged();
            let shard = self.serving()?;
            if !shard.is_subscribed(&want.consumer)? {
                return Err(unknown_consumer(&want.consumer));
            }
            // A hint: an append that finds nothing is of no use to anyone.
            let due_in = shard.next_message_in(&want.consumer);
            if due_in == Some(Duration::ZERO) {
                let deliver = Deliver {
                    consumer: want.consumer.clone(),
                    max: u16::try_from(want.max).unwrap_or(1),
                    visibility: want.visibility,
                    jitter: self.jitter(),
                };
                let shard = shard.within(deadline::left(want.ends));
                let answer = propose(&shard, Command::Deliver(deliver)).await?;
                match answer.outcome {
                    Outcome::Delivered(deliveries) if !deliveries.is_empty() => {
                        return Ok(deliveries.iter().map(message).collect());
                    }
                    Outcome::Delivered(_) => {}
                    Outcome::UnknownConsumer => return Err(unknown_consumer(&want.consumer)),
                    _ => unreachable!("a deliver has no such outcome"),
                }
            }
            let wait = due_in.unwrap_or(LOOK_INTERVAL).min(LOOK_INTERVAL);
            let look_at = (Instant::now() + wait.max(Duration::from_millis(1))).min(wait_ends);
            tokio::select! {
                _ = deliverable.changed() => {}
                _ = phase.wait_for(|phase| *phase != Phase::Serving) => {}
                () = tokio::time::sleep_until(look_at) => {}
            }
            if Instant::now() >= wait_ends {
                return Ok(Vec::new());
            }
        }
    }

    async fn settle(
        &self,
        slot: Slot,
        command: Command,
        left: Option<Duration>,
    ) -> Result<Vec<Settled>, Refusal> {
        let consumer = match &command {
            Command::Ack(Ack { consumer, .. })
            | Command::Nack(Nack { consumer, .. })
            | Command::Extend(Extend { consumer, .. }) => consumer.clone(),
            _ => unreachable!("nothing else settles an attempt"),
        };
        let shard = self.shard_for(slot)?.within(left);
        match propose(&shard, command).await?.outcome {
            Outcome::Settled(settled) => Ok(settled),
            Outcome::UnknownConsumer => Err(unknown_consumer(&consumer)),
            _ => unreachable!("settling has no such outcome"),
        }
    }
}

pub(crate) struct OutboxServices(pub(crate) Arc<Host>);

#[tonic::async_trait]
impl OutboxService for OutboxServices {
    async fn register_consumer(
        &self,
        request: Request<v1::RegisterConsumerRequest>,
    ) -> Result<Response<v1::RegisterConsumerResponse>, Status> {
        let answer: Result<_, Refusal> = async {
            let left = deadline::left(deadline::of(&request));
            let consumer = parse_consumer(&request.get_ref().consumer)?;
            let shard = self.0.serving()?.within(left);
            if !shard.is_subscribed(&consumer)? {
                match propose(&shard, Command::Register(consumer)).await?.outcome {
                    Outcome::Registered => {}
                    Outcome::TooManyConsumers => {
                        let text = "a shard has 64 consumers at most";
                        return Err(Refusal::new(Reason::TooManyConsumers, text));
                    }
                    _ => unreachable!("a registration has no such outcome"),
                }
            }
            Ok(Response::new(v1::RegisterConsumerResponse {}))
        }
        .await;
        answer.map_err(|refusal| self.0.complete(refusal).into())
    }

    async fn receive(
        &self,
        request: Request<v1::ReceiveRequest>,
    ) -> Result<Response<v1::ReceiveResponse>, Status> {
        let answer: Result<_, Refusal> = async {
            let ends = deadline::of(&request);
            let request = request.into_inner();
            let want = Want {
                consumer: parse_consumer(&request.consumer)?,
                max: max_messages(request.max_messages),
                visibility: visibility(request.visibility_ms)?,
                ends,
            };
            let wait = Duration::from_millis(request.wait_ms.into()).min(WAIT_MAX);
            let messages = self.0.receive(&want, Instant::now() + wait).await?;
            Ok(Response::new(v1::ReceiveResponse { messages }))
        }
        .await;
        answer.map_err(|refusal| self.0.complete(refusal).into())
    }

    type StreamMessagesStream = ReceiverStream<Result<v1::Message, Status>>;

    async fn stream_messages(
        &self,
        request: Request<v1::StreamMessagesRequest>,
    ) -> Result<Response<Self::StreamMessagesStream>, Status> {
        let request = request.into_inner();
        let want = Want {
            consumer: parse_consumer(&request.consumer)?,
            max: max_messages(request.max_messages),
            visibility: visibility(request.visibility_ms)?,
            ends: None,
        };
        let subscribed = self.0.serving()?.is_subscribed(&want.consumer);
        if !subscribed.map_err(|err| self.0.complete(err.into()))? {
            return Err(unknown_consumer(&want.consumer).into());
        }
        let (sender, receiver) = mpsc::channel(usize::try_from(want.max).unwrap_or(1));
        tokio::spawn(stream(Arc::clone(&self.0), want, sender));
        Ok(Response::new(ReceiverStream::new(receiver)))
    }

    async fn ack(
        &self,
        request: Request<v1::AckRequest>,
    ) -> Result<Response<v1::AckResponse>, Status> {
        let answer: Result<_, Refusal> = async {
            let left = deadline::left(deadline::of(&request));
            let request = request.into_inner();
            let consumer = parse_consumer(&request.consumer)?;
            let attempts = request.handles.iter().map(|bytes| parse_handle(bytes));
            let attempts: Vec<_> = attempts.collect::<Result<_, _>>()?;
            let (Some(first), true) = (attempts.first(), attempts.len() <= PAGE_MAX) else {
                return Err(Refusal::field("handles", "an ack has 1 to 100 handles"));
            };
            for attempt in &attempts {
                self.0.shard_for(attempt.outbox_id.slot())?;
            }
            let slot = first.outbox_id.slot();
            let settled = self
                .0
                .settle(slot, Command::Ack(Ack { consumer, attempts }), left)
                .await?;
            let results = settled.into_iter().map(|one| result(one).into()).collect();
            Ok(Response::new(v1::AckResponse { results }))
        }
        .await;
        answer.map_err(|refusal| self.0.complete(refusal).into())
    }

    async fn nack(
        &self,
        request: Request<v1::NackRequest>,
    ) -> Result<Response<v1::NackResponse>, Status> {
        let answer: Result<_, Refusal> = async {
            let left = deadline::left(deadline::of(&request));
            let request = request.into_inner();
            let attempt = parse_handle(&request.handle)?;
            let delay = match Duration::from_millis(request.delay_ms.into()) {
                Duration::ZERO => None,
                asked if asked <= VISIBILITY_MAX => Some(asked),
                _ => return Err(Refusal::field("delay_ms", "a delay is at most 12 h")),
            };
            let mut reason = request.reason;
            reason.truncate(reason.floor_char_boundary(FAILURE_SIZE_MAX));
            let nack = Nack {
                consumer: parse_consumer(&request.consumer)?,
                attempt,
                delay,
                reason: reason.into(),
                jitter: self.0.jitter(),
            };
            let settled = self
                .0
                .settle(attempt.outbox_id.slot(), Command::Nack(nack), left)
                .await?;
            let result = settled
                .first()
                .map_or(v1::SettleResult::Gone, |&one| result(one));
            Ok(Response::new(v1::NackResponse {
                result: result.into(),
            }))
        }
        .await;
        answer.map_err(|refusal| self.0.complete(refusal).into())
    }

    async fn extend(
        &self,
        request: Request<v1::ExtendRequest>,
    ) -> Result<Response<v1::ExtendResponse>, Status> {
        let answer: Result<_, Refusal> = async {
            let left = deadline::left(deadline::of(&request));
            let request = request.into_inner();
            let attempt = parse_handle(&request.handle)?;
            let extend = Extend {
                consumer: parse_consumer(&request.consumer)?,
                attempt,
                visibility: visibility(request.visibility_ms)?,
            };
            let settled = self
                .0
                .settle(attempt.outbox_id.slot(), Command::Extend(extend), left)
                .await?;
            let result = settled
                .first()
                .map_or(v1::SettleResult::Gone, |&one| result(one));
            Ok(Response::new(v1::ExtendResponse {
                result: result.into(),
            }))
        }
        .await;
        answer.map_err(|refusal| self.0.complete(refusal).into())
    }

    async fn list_dead_letters(
        &self,
        request: Request<v1::ListDeadLettersRequest>,
    ) -> Result<Response<v1::ListDeadLettersResponse>, Status> {
        let answer: Result<_, Refusal> = async {
            let request = request.into_inner();
            let consumer = parse_consumer(&request.consumer)?;
            let page_size = match usize::try_from(request.page_size) {
                Ok(0) => PAGE_MAX,
                Ok(size) => size.min(PAGE_MAX),
                Err(_) => {
                    return Err(Refusal::field("page_size", "a page has at least one row"));
                }
            };
            let after = match request.page_token.as_str() {
                "" => None,
                token => Some(OutboxId::parse(token).map_err(|_| {
                    Refusal::field("page_token", "not a page token that an answer had")
                })?),
            };
            let letters = self
                .0
                .serving()?
                .dead_letters(&consumer, after, page_size + 1);
            let mut letters = letters
                .map_err(Refusal::from)?
                .ok_or_else(|| unknown_consumer(&consumer))?;
            let more = letters.len() > page_size;
            letters.truncate(page_size);
            let last = letters.last().filter(|_| more);
            let next_page_token =
                last.map_or_else(String::new, |last| last.row.outbox_id.to_string());
            let dead_letters = letters.into_iter().map(dead_letter).collect();
            Ok(Response::new(v1::ListDeadLettersResponse {
                dead_letters,
                next_page_token,
            }))
        }
        .await;
        answer.map_err(|refusal| self.0.complete(refusal).into())
    }

    async fn replay_dead_letter(
        &self,
        request: Request<v1::ReplayDeadLetterRequest>,
    ) -> Result<Response<v1::ReplayDeadLetterResponse>, Status> {
        let answer: Result<_, Refusal> = async {
            let left = deadline::left(deadline::of(&request));
            let request = request.into_inner();
            let consumer = parse_consumer(&request.consumer)?;
            let outbox_id = parse_outbox_id(&request.outbox_id)?;
            let shard = self.0.shard_for(outbox_id.slot())?.within(left);
            let replay = Replay {
                consumer: consumer.clone(),
                outbox_id,
            };
            match propose(&shard, Command::Replay(replay)).await?.outcome {
                Outcome::DeadLetterReplayed => Ok(Response::new(v1::ReplayDeadLetterResponse {})),
                Outcome::UnknownDeadLetter => {
                    let text = "no such dead letter, or it is over its age";
                    Err(Refusal::new(Reason::DeadLetterNotFound, text))
                }
                Outcome::UnknownConsumer => Err(unknown_consumer(&consumer)),
                _ => unreachable!("a replay has no such outcome"),
            }
        }
        .await;
        answer.map_err(|refusal| self.0.complete(refusal).into())
    }
}

fn dead_letter(letter: DeadLetter) -> v1::DeadLetter {
    v1::DeadLetter {
        outbox_id: letter.row.outbox_id.to_string(),
        paste_id: letter.row.paste_id.to_string(),
        ended_at_ms: letter.row.ended_at.0,
        attempts: letter.attempts,
        dead_at_ms: letter.dead_at.0,
        last_error: letter.last_error.into(),
    }
}

/// Sends messages as they become due until the client hangs up or the shard drains. Takes no more
/// than the client has room for: what waits unread runs out of its visibility.
async fn stream(
    host: Arc<Host>,
    mut want: Want,
    sender: mpsc::Sender<Result<v1::Message, Status>>,
) {
    let max = want.max;
    loop {
        // Room for one, then for as many as there is. An unread stream holds no drain up.
        let mut phase = host.phase();
        let first = tokio::select! {
            _ = phase.wait_for(|phase| *phase != Phase::Serving) => return,
            first = sender.clone().reserve_owned() => first,
        };
        let Ok(first) = first else { return };
        let room = u32::try_from(sender.capacity()).unwrap_or(0) + 1;
        want.max = room.min(max);
        let poll_ends = Instant::now() + WAIT_MAX;
        let received = tokio::select! {
            () = sender.closed() => return,
            received = host.receive(&want, poll_ends) => received,
        };
        match received {
            Ok(messages) => {
                let mut messages = messages.into_iter();
                let Some(message) = messages.next() else {
                    continue;
                };
                first.send(Ok(message));
                for message in messages {
                    if sender.send(Ok(message)).await.is_err() {
                        return;
                    }
                }
            }
            Err(refusal) => {
                first.send(Err(refusal.into()));
                return;
            }
        }
    }
}

pub(crate) struct InboxServices(pub(crate) Arc<Host>);

#[tonic::async_trait]
impl InboxService for InboxServices {
    async fn record_inbox(
        &self,
        request: Request<v1::RecordInboxRequest>,
    ) -> Result<Response<v1::RecordInboxResponse>, Status> {
        let answer: Result<_, Refusal> = async {
            let left = deadline::left(deadline::of(&request));
            let request = request.into_inner();
            let outbox_id = parse_outbox_id(&request.outbox_id)?;
            let shard = self.0.shard_for(outbox_id.slot())?.within(left);
            let inbox = Inbox {
                consumer: parse_consumer(&request.consumer)?,
                outbox_id,
                expires_at: shard.now().plus(INBOX_RETENTION),
            };
            let already_recorded = match propose(&shard, Command::Inbox(inbox)).await?.outcome {
                Outcome::Recorded => false,
                Outcome::AlreadyRecorded => true,
                Outcome::TooManyConsumers => {
                    let text = "a shard knows 64 consumers at most";
                    return Err(Refusal::new(Reason::TooManyConsumers, text));
                }
                _ => unreachable!("an inbox record has no such outcome"),
            };
            Ok(Response::new(v1::RecordInboxResponse { already_recorded }))
        }
        .await;
        answer.map_err(|refusal| self.0.complete(refusal).into())
    }

    async fn contains_inbox(
        &self,
        request: Request<v1::ContainsInboxRequest>,
    ) -> Result<Response<v1::ContainsInboxResponse>, Status> {
        let answer: Result<_, Refusal> = async {
            let request = request.into_inner();
            let consumer = parse_consumer(&request.consumer)?;
            let outbox_id = parse_outbox_id(&request.outbox_id)?;
            let shard = self.0.shard_for(outbox_id.slot())?;
            let recorded = shard
                .inbox_contains(&consumer, outbox_id)
                .map_err(Refusal::from)?;
            Ok(Response::new(v1::ContainsInboxResponse { recorded }))
        }
        .await;
        answer.map_err(|refusal| self.0.complete(refusal).into())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn o02_a_handle_names_message_epoch_and_attempt() {
        let id = AttemptId {
            outbox_id: OutboxId::from_parts(Slot(7), &[3; 15]).expect("in range"),
            epoch: Epoch(5),
            attempt: 9,
        };
        let bytes = handle(&id);
        assert_eq!(parse_handle(&bytes).expect("a handle"), id);
        for other in [&bytes[1..], &[0; HANDLE_SIZE][..], &[]] {
            assert!(parse_handle(other).is_err());
        }
    }
}
