//! Outbox and inbox: what shards have to say about pastes that ended, and what was done about it.

use std::collections::BTreeMap;
use std::fmt;
use std::time::Duration;

use ostraca_proto::v1;
use ostraca_types::{ConsumerName, OutboxId, PasteId, ShardId, Slot, Timestamp};
use tokio::task::JoinSet;
use tokio::time::{Instant, timeout_at};
use tonic::transport::Channel;
use tonic::{Request, Streaming};
use v1::inbox_service_client::InboxServiceClient;
use v1::outbox_service_client::OutboxServiceClient;

use crate::{Client, Error, MESSAGE_SIZE_MAX, Shard};

/// Messages of one answer, at most.
pub const RECEIVE_MAX: usize = 100;
/// The longest that a shard waits for a message before it answers none.
pub const RECEIVE_WAIT_MAX: Duration = Duration::from_secs(20);
/// Handles of one call.
const ACK_MAX: usize = 100;

/// How messages are asked for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Receive {
    /// How many at most; up to [`RECEIVE_MAX`].
    pub max: usize,
    /// How long to wait for the first; up to [`RECEIVE_WAIT_MAX`]. No part of the deadline.
    pub wait: Duration,
    /// How long an attempt may take before the message comes again.
    pub visibility: Duration,
}

/// Names one attempt at a message: for ack, nack and extend, never for deduplication (o02).
#[derive(Clone, PartialEq, Eq, Hash)]
pub struct Handle {
    outbox_id: OutboxId,
    /// Who issued it.
    shard: ShardId,
    bytes: Box<[u8]>,
}

impl Handle {
    /// The handle `bytes` that `shard` issued for an attempt at `outbox_id`.
    #[must_use]
    pub fn new(outbox_id: OutboxId, shard: ShardId, bytes: impl Into<Box<[u8]>>) -> Self {
        Self {
            outbox_id,
            shard,
            bytes: bytes.into(),
        }
    }

    /// As the shard issued it.
    #[must_use]
    pub fn as_bytes(&self) -> &[u8] {
        &self.bytes
    }
}

impl fmt::Debug for Handle {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Handle({} on shard {})", self.outbox_id, self.shard)
    }
}

/// Why a paste ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum EndCause {
    /// Somebody deleted it.
    Deleted,
    /// Its time had come.
    Expired,
}

/// One delivery of the one message of a paste's life.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Message {
    /// The same on every delivery (o01).
    pub outbox_id: OutboxId,
    /// The paste that ended.
    pub paste_id: PasteId,
    /// Where its body is, or was.
    pub object_key: String,
    /// Why it ended; `None` for a cause that this build does not know.
    pub cause: Option<EndCause>,
    /// When it ended, by shard time.
    pub ended_at: Timestamp,
    /// Which delivery this is, from 1 up, over the whole life of the message.
    pub attempt: u32,
    /// For ack, nack and extend.
    pub handle: Handle,
    /// When it comes again if nothing is heard, by shard time.
    pub visible_at: Timestamp,
}

/// What became of an ack, nack or extend.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Settled {
    /// Done as asked.
    Done,
    /// The message was delivered again meanwhile; nothing was changed.
    Stale,
    /// There is no such message any more; nothing was changed.
    Gone,
}

/// What a record in the inbox found.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Recorded {
    /// It is there now.
    Now,
    /// It was there: somebody finished before.
    Before,
}

/// A message that was given up (o04).
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct DeadLetter {
    /// The message's name; it keeps it when it is replayed.
    pub outbox_id: OutboxId,
    /// The paste that ended.
    pub paste_id: PasteId,
    /// When it ended, by shard time.
    pub ended_at: Timestamp,
    /// Attempts since the end, or since the last replay.
    pub attempts: u32,
    /// When it was given up, by shard time.
    pub dead_at: Timestamp,
    /// The last reason that a consumer gave; `None` if every attempt timed out.
    pub last_error: Option<String>,
}

/// One page of a shard's dead letters.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct DeadLetters {
    /// By outbox id.
    pub letters: Vec<DeadLetter>,
    /// For the next page; `None` if this was the last one.
    pub next: Option<String>,
}

/// Messages as they become due, until this value is dropped.
#[derive(Debug)]
pub struct Messages {
    shard: ShardId,
    stream: Streaming<v1::Message>,
    /// Its own, and there as long as it is.
    _connection: Channel,
}

impl Messages {
    /// The next message; waits as long as none is due. `None` or an error means that the stream is
    /// over: what was sent and not read comes again after its visibility timeout.
    pub async fn next(&mut self) -> Result<Option<Message>, Error> {
        while let Some(wire) = self.stream.message().await.map_err(Error::from_status)? {
            if let Some(message) = message(self.shard, wire) {
                return Ok(Some(message));
            }
        }
        Ok(None)
    }
}

impl Client {
    /// Registers a consumer with one shard; durable on return. It gets the ends from then on.
    pub async fn register_consumer(
        &self,
        shard: &Shard,
        consumer: &ConsumerName,
    ) -> Result<(), Error> {
        let request = v1::RegisterConsumerRequest {
            consumer: consumer.to_string(),
        };
        self.routed(
            a_slot(shard)?,
            self.deadline,
            request,
            async |shard, request| outbox(shard).register_consumer(request).await,
        )
        .await?;
        Ok(())
    }

    /// Takes messages that are due on one shard, oldest end first; none if none became due within
    /// `ask.wait`. A message that this build cannot read is left out, and logged.
    pub async fn receive(
        &self,
        shard: &Shard,
        consumer: &ConsumerName,
        ask: Receive,
    ) -> Result<Vec<Message>, Error> {
        let request = v1::ReceiveRequest {
            consumer: consumer.to_string(),
            max_messages: count(ask.max),
            wait_ms: millis(ask.wait),
            visibility_ms: millis(ask.visibility),
        };
        let response = self
            .routed(
                a_slot(shard)?,
                ask.wait + self.deadline,
                request,
                async |shard, request| outbox(shard).receive(request).await,
            )
            .await?;
        let messages = response.messages.into_iter();
        Ok(messages
            .filter_map(|wire| message(shard.id, wire))
            .collect())
    }

    /// The same as a stream, with at most `max` messages on their way unread. The deadline is for
    /// its beginning.
    pub async fn messages(
        &self,
        shard: &Shard,
        consumer: &ConsumerName,
        max: usize,
        visibility: Duration,
    ) -> Result<Messages, Error> {
        let request = v1::StreamMessagesRequest {
            consumer: consumer.to_string(),
            max_messages: count(max),
            visibility_ms: millis(visibility),
        };
        let until = Instant::now() + self.deadline;
        let route = self.route(a_slot(shard)?, until).await?;
        let open = async {
            let connection = route.peer.own_connection();
            let request = self.router.mark(Request::new(request));
            let response = outbox(connection.clone()).stream_messages(request).await;
            match response {
                Ok(response) => Ok((connection, response.into_inner())),
                Err(status) => Err(Error::from_status(status)),
            }
        };
        let opened = timeout_at(until, open).await;
        let opened = opened.unwrap_or_else(|_| Err(Error::deadline()));
        let (connection, stream) = opened.inspect_err(|err| self.router.learn(&route, err))?;
        Ok(Messages {
            shard: shard.id,
            stream,
            _connection: connection,
        })
    }

    /// Says that the work of these attempts is done. One call a shard, each with its own deadline,
    /// and one result a handle, in their order; `Done` is durable.
    pub async fn ack(
        &self,
        consumer: &ConsumerName,
        handles: &[Handle],
    ) -> Vec<Result<Settled, Error>> {
        let mut shards: BTreeMap<ShardId, Vec<usize>> = BTreeMap::new();
        for (place, handle) in handles.iter().enumerate() {
            shards.entry(handle.shard).or_default().push(place);
        }
        let mut calls = JoinSet::new();
        for places in shards.values().flat_map(|places| places.chunks(ACK_MAX)) {
            let (client, places) = (self.clone(), places.to_vec());
            let slot = handles[places[0]].outbox_id.slot();
            let request = v1::AckRequest {
                consumer: consumer.to_string(),
                handles: places
                    .iter()
                    .map(|&place| handles[place].bytes.to_vec())
                    .collect(),
            };
            calls.spawn(async move {
                let answer = client.ack_on(slot, request, places.len()).await;
                (places, answer)
            });
        }
        // A call that panicked is our own mistake; its handles count as unanswered.
        let mut results = vec![Err(Error::broken()); handles.len()];
        while let Some(Ok((places, answer))) = calls.join_next().await {
            for (nth, place) in places.into_iter().enumerate() {
                results[place] = answer.clone().map(|settled| settled[nth]);
            }
        }
        results
    }

    async fn ack_on(
        &self,
        slot: Slot,
        request: v1::AckRequest,
        expected: usize,
    ) -> Result<Vec<Settled>, Error> {
        let response = self
            .routed(slot, self.deadline, request, async |shard, request| {
                outbox(shard).ack(request).await
            })
            .await?;
        let settled: Vec<_> = response
            .results
            .into_iter()
            .map(settled)
            .collect::<Result<_, _>>()?;
        if settled.len() == expected {
            Ok(settled)
        } else {
            Err(Error::malformed())
        }
    }

    /// Says that the work of this attempt failed, and why: for a person, without secrets. The
    /// message comes again after `delay`, or with backoff.
    pub async fn nack(
        &self,
        consumer: &ConsumerName,
        handle: &Handle,
        reason: &str,
        delay: Option<Duration>,
    ) -> Result<Settled, Error> {
        let request = v1::NackRequest {
            consumer: consumer.to_string(),
            handle: handle.bytes.to_vec(),
            reason: reason.to_owned(),
            // No delay is backoff on the wire, so "at once" is a millisecond.
            delay_ms: delay.map_or(0, |delay| millis(delay).max(1)),
        };
        let slot = handle.outbox_id.slot();
        let response = self
            .routed(slot, self.deadline, request, async |shard, request| {
                outbox(shard).nack(request).await
            })
            .await?;
        settled(response.result)
    }

    /// Says that the work of this attempt takes longer: it has `visibility` from now.
    pub async fn extend(
        &self,
        consumer: &ConsumerName,
        handle: &Handle,
        visibility: Duration,
    ) -> Result<Settled, Error> {
        let request = v1::ExtendRequest {
            consumer: consumer.to_string(),
            handle: handle.bytes.to_vec(),
            visibility_ms: millis(visibility),
        };
        let slot = handle.outbox_id.slot();
        let response = self
            .routed(slot, self.deadline, request, async |shard, request| {
                outbox(shard).extend(request).await
            })
            .await?;
        settled(response.result)
    }

    /// A page of a consumer's dead letters on one shard. `after` is the last page's `next`.
    pub async fn dead_letters(
        &self,
        shard: &Shard,
        consumer: &ConsumerName,
        page_size: usize,
        after: Option<&str>,
    ) -> Result<DeadLetters, Error> {
        let request = v1::ListDeadLettersRequest {
            consumer: consumer.to_string(),
            page_size: i32::try_from(page_size).unwrap_or(i32::MAX),
            page_token: after.unwrap_or_default().to_owned(),
        };
        let response = self
            .routed(
                a_slot(shard)?,
                self.deadline,
                request,
                async |shard, request| outbox(shard).list_dead_letters(request).await,
            )
            .await?;
        let token = response.next_page_token;
        Ok(DeadLetters {
            letters: response
                .dead_letters
                .into_iter()
                .map(dead_letter)
                .collect::<Result<_, _>>()?,
            next: (!token.is_empty()).then_some(token),
        })
    }

    /// Delivers a dead letter again. On return that is durable.
    pub async fn replay_dead_letter(
        &self,
        consumer: &ConsumerName,
        outbox_id: &OutboxId,
    ) -> Result<(), Error> {
        let request = v1::ReplayDeadLetterRequest {
            consumer: consumer.to_string(),
            outbox_id: outbox_id.to_string(),
        };
        let slot = outbox_id.slot();
        self.routed(slot, self.deadline, request, async |shard, request| {
            outbox(shard).replay_dead_letter(request).await
        })
        .await?;
        Ok(())
    }

    /// Records that the consumer's effect for this message is done. On return that is durable.
    pub async fn record_inbox(
        &self,
        consumer: &ConsumerName,
        outbox_id: &OutboxId,
    ) -> Result<Recorded, Error> {
        let request = v1::RecordInboxRequest {
            consumer: consumer.to_string(),
            outbox_id: outbox_id.to_string(),
        };
        let slot = outbox_id.slot();
        let response = self
            .routed(slot, self.deadline, request, async |shard, request| {
                inbox(shard).record_inbox(request).await
            })
            .await?;
        Ok(if response.already_recorded {
            Recorded::Before
        } else {
            Recorded::Now
        })
    }

    /// Whether the consumer's effect for this message is recorded.
    pub async fn contains_inbox(
        &self,
        consumer: &ConsumerName,
        outbox_id: &OutboxId,
    ) -> Result<bool, Error> {
        let request = v1::ContainsInboxRequest {
            consumer: consumer.to_string(),
            outbox_id: outbox_id.to_string(),
        };
        let slot = outbox_id.slot();
        let response = self
            .routed(slot, self.deadline, request, async |shard, request| {
                inbox(shard).contains_inbox(request).await
            })
            .await?;
        Ok(response.recorded)
    }
}

fn outbox(channel: Channel) -> OutboxServiceClient<Channel> {
    OutboxServiceClient::new(channel)
        .max_decoding_message_size(MESSAGE_SIZE_MAX)
        .max_encoding_message_size(MESSAGE_SIZE_MAX)
}

fn inbox(channel: Channel) -> InboxServiceClient<Channel> {
    InboxServiceClient::new(channel)
        .max_decoding_message_size(MESSAGE_SIZE_MAX)
        .max_encoding_message_size(MESSAGE_SIZE_MAX)
}

/// One by which the shard is found, wherever it listens by now.
fn a_slot(shard: &Shard) -> Result<Slot, Error> {
    let slot = shard.slots.first();
    slot.copied()
        .ok_or_else(|| Error::no_route(format!("shard {} owns no slot", shard.id)))
}

/// Beyond 49 days it is 49 days; the shard refuses what is too long by name.
fn millis(duration: Duration) -> u32 {
    u32::try_from(duration.as_millis()).unwrap_or(u32::MAX)
}

fn count(n: usize) -> u32 {
    u32::try_from(n).unwrap_or(u32::MAX)
}

/// `None` for what is not of this API's form. One such message must not keep the others of its
/// answer from being read: it times out by itself, and is a dead letter in the end.
fn message(shard: ShardId, wire: v1::Message) -> Option<Message> {
    let cause = match wire.cause() {
        v1::EndCause::Unspecified => None,
        v1::EndCause::Deleted => Some(EndCause::Deleted),
        v1::EndCause::Expired => Some(EndCause::Expired),
    };
    let ids = (
        OutboxId::parse(&wire.outbox_id),
        PasteId::parse(&wire.paste_id),
    );
    let (Ok(outbox_id), Ok(paste_id)) = ids else {
        tracing::warn!(event = "message_malformed", %shard, "left to time out");
        return None;
    };
    Some(Message {
        outbox_id,
        paste_id,
        object_key: wire.object_key,
        cause,
        ended_at: Timestamp(wire.ended_at_ms),
        attempt: wire.attempt,
        handle: Handle::new(outbox_id, shard, wire.handle),
        visible_at: Timestamp(wire.visible_at_ms),
    })
}

fn settled(wire: i32) -> Result<Settled, Error> {
    match v1::SettleResult::try_from(wire) {
        Ok(v1::SettleResult::Done) => Ok(Settled::Done),
        Ok(v1::SettleResult::Stale) => Ok(Settled::Stale),
        Ok(v1::SettleResult::Gone) => Ok(Settled::Gone),
        Ok(v1::SettleResult::Unspecified) | Err(_) => Err(Error::malformed()),
    }
}

fn dead_letter(wire: v1::DeadLetter) -> Result<DeadLetter, Error> {
    Ok(DeadLetter {
        outbox_id: OutboxId::parse(&wire.outbox_id).map_err(|_| Error::malformed())?,
        paste_id: PasteId::parse(&wire.paste_id).map_err(|_| Error::malformed())?,
        ended_at: Timestamp(wire.ended_at_ms),
        attempts: wire.attempts,
        dead_at: Timestamp(wire.dead_at_ms),
        last_error: (!wire.last_error.is_empty()).then_some(wire.last_error),
    })
}

#[cfg(test)]
mod tests;
