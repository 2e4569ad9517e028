//! Against two shards that remember what they were asked.

use std::sync::Arc;

use parking_lot::Mutex;
use tokio::net::TcpListener;
use tokio_stream::wrappers::{ReceiverStream, TcpListenerStream};
use v1::cluster_service_server::{ClusterService, ClusterServiceServer};
use v1::inbox_service_server::{InboxService, InboxServiceServer};
use v1::outbox_service_server::{OutboxService, OutboxServiceServer};

use super::*;
use crate::{Options, Seeds};
use ostraca_types::{ErrorKind, Reason};
use tonic::{Request, Response, Status};

/// What both shards were asked, and the messages that they have.
#[derive(Default)]
struct Seen {
    routes: Vec<v1::ShardRoute>,
    acks: Vec<(u32, v1::AckRequest)>,
    nacks: Vec<v1::NackRequest>,
    receives: Vec<(u32, v1::ReceiveRequest)>,
    recorded: Vec<(u32, v1::RecordInboxRequest)>,
    messages: Vec<v1::Message>,
    receive_takes: Duration,
    ack_fails_on: Option<u32>,
}

#[derive(Clone)]
struct Fake {
    shard: u32,
    seen: Arc<Mutex<Seen>>,
}

/// A deadline that a busy machine keeps, and that a test can wait for.
const SHORT: Duration = Duration::from_secs(1);

/// Shard 0 has the even slots, shard 1 the odd ones.
async fn shards() -> (Client, Vec<Shard>, Arc<Mutex<Seen>>) {
    let seen = Arc::new(Mutex::new(Seen::default()));
    for shard in 0..2 {
        let listener = TcpListener::bind("127.0.0.1:0").await.expect("a port");
        seen.lock().routes.push(v1::ShardRoute {
            epoch: 1,
            shard,
            address: listener.local_addr().expect("bound").to_string(),
            slots: (0..256).filter(|slot| slot % 2 == shard).collect(),
        });
        let fake = Fake {
            shard,
            seen: Arc::clone(&seen),
        };
        let server = tonic::transport::Server::builder()
            .max_concurrent_streams(128)
            .add_service(ClusterServiceServer::new(fake.clone()))
            .add_service(OutboxServiceServer::new(fake.clone()))
            .add_service(InboxServiceServer::new(fake));
        tokio::spawn(server.serve_with_incoming(TcpListenerStream::new(listener)));
    }
    let seeds = Seeds::Fixed(vec![seen.lock().routes[0].address.clone()]);
    let client = Client::new(Options {
        cluster: None,
        seeds,
        deadline: SHORT,
    });
    let shards = client.shards().await.expect("a table");
    (client, shards, seen)
}

#[tonic::async_trait]
impl ClusterService for Fake {
    async fn get_routing(
        &self,
        _: Request<v1::GetRoutingRequest>,
    ) -> Result<Response<v1::GetRoutingResponse>, Status> {
        Ok(Response::new(v1::GetRoutingResponse {
            version: 1,
            shards: self.seen.lock().routes.clone(),
            cluster_id: String::new(),
        }))
    }

    async fn get_status(
        &self,
        _: Request<v1::GetStatusRequest>,
    ) -> Result<Response<v1::GetStatusResponse>, Status> {
        Err(Status::unimplemented(""))
    }

    async fn confirm_clock(
        &self,
        _: Request<v1::ConfirmClockRequest>,
    ) -> Result<Response<v1::ConfirmClockResponse>, Status> {
        Err(Status::unimplemented(""))
    }
}

#[tonic::async_trait]
impl OutboxService for Fake {
    type StreamMessagesStream = ReceiverStream<Result<v1::Message, Status>>;

    async fn register_consumer(
        &self,
        _: Request<v1::RegisterConsumerRequest>,
    ) -> Result<Response<v1::RegisterConsumerResponse>, Status> {
        Ok(Response::new(v1::RegisterConsumerResponse {}))
    }

    async fn receive(
        &self,
        request: Request<v1::ReceiveRequest>,
    ) -> Result<Response<v1::ReceiveResponse>, Status> {
        let takes = {
            let mut seen = self.seen.lock();
            seen.receives.push((self.shard, request.into_inner()));
            seen.receive_takes
        };
        tokio::time::sleep(takes).await;
        let messages = self.seen.lock().messages.clone();
        Ok(Response::new(v1::ReceiveResponse { messages }))
    }

    async fn stream_messages(
        &self,
        _: Request<v1::StreamMessagesRequest>,
    ) -> Result<Response<Self::StreamMessagesStream>, Status> {
        let messages = self.seen.lock().messages.clone();
        let (sender, receiver) = tokio::sync::mpsc::channel(10);
        tokio::spawn(async move {
            for message in messages {
                let _ = sender.send(Ok(message)).await;
            }
        });
        Ok(Response::new(ReceiverStream::new(receiver)))
    }

    async fn ack(
        &self,
        request: Request<v1::AckRequest>,
    ) -> Result<Response<v1::AckResponse>, Status> {
        let request = request.into_inner();
        let mut seen = self.seen.lock();
        // The first byte of a handle of these tests is its result.
        let results = request.handles.iter().map(|handle| i32::from(handle[0]));
        let results = results.collect();
        seen.acks.push((self.shard, request));
        if seen.ack_fails_on == Some(self.shard) {
            return Err(Status::unavailable("down"));
        }
        Ok(Response::new(v1::AckResponse { results }))
    }

    async fn nack(
        &self,
        request: Request<v1::NackRequest>,
    ) -> Result<Response<v1::NackResponse>, Status> {
        self.seen.lock().nacks.push(request.into_inner());
        let result = v1::SettleResult::Done.into();
        Ok(Response::new(v1::NackResponse { result }))
    }

    async fn extend(
        &self,
        _: Request<v1::ExtendRequest>,
    ) -> Result<Response<v1::ExtendResponse>, Status> {
        let result = v1::SettleResult::Stale.into();
        Ok(Response::new(v1::ExtendResponse { result }))
    }

    async fn list_dead_letters(
        &self,
        request: Request<v1::ListDeadLettersRequest>,
    ) -> Result<Response<v1::ListDeadLettersResponse>, Status> {
        let last = !request.into_inner().page_token.is_empty();
        let dead_letters = self.seen.lock().messages.clone().into_iter();
        Ok(Response::new(v1::ListDeadLettersResponse {
            dead_letters: dead_letters
                .map(|message| v1::DeadLetter {
                    outbox_id: message.outbox_id,
                    paste_id: message.paste_id,
                    attempts: 12,
                    ..v1::DeadLetter::default()
                })
                .collect(),
            next_page_token: if last { "" } else { "more" }.to_owned(),
        }))
    }

    async fn replay_dead_letter(
        &self,
        _: Request<v1::ReplayDeadLetterRequest>,
    ) -> Result<Response<v1::ReplayDeadLetterResponse>, Status> {
        Ok(Response::new(v1::ReplayDeadLetterResponse {}))
    }
}

#[tonic::async_trait]
impl InboxService for Fake {
    async fn record_inbox(
        &self,
        request: Request<v1::RecordInboxRequest>,
    ) -> Result<Response<v1::RecordInboxResponse>, Status> {
        let mut seen = self.seen.lock();
        let request = request.into_inner();
        let already_recorded = seen.recorded.iter().any(|(_, one)| *one == request);
        seen.recorded.push((self.shard, request));
        Ok(Response::new(v1::RecordInboxResponse { already_recorded }))
    }

    async fn contains_inbox(
        &self,
        _: Request<v1::ContainsInboxRequest>,
    ) -> Result<Response<v1::ContainsInboxResponse>, Status> {
        let recorded = !self.seen.lock().recorded.is_empty();
        Ok(Response::new(v1::ContainsInboxResponse { recorded }))
    }
}

fn outbox_id(slot: u8) -> OutboxId {
    OutboxId::mint(Slot(slot), |random| random.fill(slot % 100))
}

fn wire(slot: u8) -> v1::Message {
    v1::Message {
        outbox_id: outbox_id(slot).to_string(),
        paste_id: PasteId::mint(Slot(slot), |random| random.fill(1)).to_string(),
        object_key: "p/x".to_owned(),
        cause: v1::EndCause::Expired.into(),
        ended_at_ms: 5,
        attempt: 3,
        handle: vec![1, 0, 0xff],
        visible_at_ms: 30_005,
    }
}

const ASK: Receive = Receive {
    max: 7,
    wait: Duration::from_secs(20),
    visibility: Duration::from_secs(30),
};

#[tokio::test]
async fn o01_a_message_is_received_with_all_that_it_says() {
    let (client, shards, seen) = shards().await;
    seen.lock().messages = vec![wire(3)];
    let purge = ConsumerName::purge();
    let messages = client.receive(&shards[1], &purge, ASK).await.expect("some");
    let [message] = &messages[..] else {
        panic!("one: {messages:?}")
    };
    assert_eq!(message.outbox_id, outbox_id(3));
    assert_eq!(message.cause, Some(EndCause::Expired));
    assert_eq!((message.attempt, message.ended_at), (3, Timestamp(5)));
    assert_eq!(message.visible_at, Timestamp(30_005));
    assert_eq!(message.handle.as_bytes(), [1, 0, 0xff]);
    let (shard, request) = seen.lock().receives[0].clone();
    assert_eq!(
        (shard, request.max_messages, request.wait_ms),
        (1, 7, 20_000)
    );
    assert_eq!(
        (request.visibility_ms, &*request.consumer),
        (30_000, "purge")
    );

    let mut stream = client
        .messages(&shards[1], &purge, 10, ASK.visibility)
        .await
        .expect("a stream");
    let streamed = stream.next().await.expect("no error");
    assert_eq!(streamed.as_ref(), Some(message));
    assert_eq!(stream.next().await.expect("no error"), None);
}

/// OUT-10: what cannot be read stands in nobody's way.
#[tokio::test]
async fn o06_a_malformed_message_steps_aside() {
    let (client, shards, seen) = shards().await;
    let odd = v1::Message {
        outbox_id: "?".to_owned(),
        ..wire(3)
    };
    seen.lock().messages = vec![odd, wire(5)];
    let purge = ConsumerName::purge();
    let messages = client.receive(&shards[1], &purge, ASK).await.expect("some");
    assert_eq!(messages.len(), 1);
    assert_eq!(messages[0].outbox_id, outbox_id(5));
}

/// Goal: a long poll has its deadline on top of its wait, and every call has one.
#[tokio::test]
async fn every_call_has_a_deadline_a_long_poll_after_its_wait() {
    let (client, shards, seen) = shards().await;
    let purge = ConsumerName::purge();
    let ask = Receive { wait: SHORT, ..ASK };
    // More than the deadline, less than wait and deadline.
    seen.lock().receive_takes = SHORT + SHORT / 2;
    client
        .receive(&shards[0], &purge, ask)
        .await
        .expect("it waits");
    let ask = Receive {
        wait: Duration::ZERO,
        ..ASK
    };
    let late = client.receive(&shards[0], &purge, ask).await;
    let late = late.expect_err("over the deadline");
    assert_eq!(late.reason(), Some(Reason::DeadlineExceeded));
}

#[tokio::test]
async fn o02_acks_are_grouped_by_shard_and_answered_in_order() {
    let (client, _, seen) = shards().await;
    let purge = ConsumerName::purge();
    let handle = |slot: u8, result: v1::SettleResult| {
        let result = u8::try_from(i32::from(result)).expect("small");
        let shard = ShardId(u16::from(slot % 2));
        Handle::new(outbox_id(slot), shard, [result, slot])
    };
    let handles = [
        handle(2, v1::SettleResult::Done),
        handle(3, v1::SettleResult::Stale),
        handle(4, v1::SettleResult::Gone),
        handle(5, v1::SettleResult::Done),
    ];
    let results = client.ack(&purge, &handles).await;
    let results: Vec<_> = results
        .into_iter()
        .map(|one| one.expect("answered"))
        .collect();
    let expected = [Settled::Done, Settled::Stale, Settled::Gone, Settled::Done];
    assert_eq!(results, expected);
    let mut acks = std::mem::take(&mut seen.lock().acks);
    acks.sort_by_key(|(shard, _)| *shard);
    let asked: Vec<_> = acks
        .iter()
        .map(|(shard, ack)| (*shard, ack.handles.clone()))
        .collect();
    assert_eq!(
        asked,
        [
            (0, vec![vec![1, 2], vec![3, 4]]),
            (1, vec![vec![2, 3], vec![1, 5]])
        ]
    );

    // One shard's failure is not the other's, and nothing is sent twice (k17).
    seen.lock().ack_fails_on = Some(1);
    let results = client.ack(&purge, &handles).await;
    let answered: Vec<_> = results.iter().map(Result::is_ok).collect();
    assert_eq!(answered, [true, false, true, false]);
    assert_eq!(seen.lock().acks.len(), 2);
}

#[tokio::test]
async fn o02_more_acks_than_a_call_takes_are_several_calls() {
    let (client, _, seen) = shards().await;
    let handles = vec![Handle::new(outbox_id(2), ShardId(0), [1]); 250];
    let results = client.ack(&ConsumerName::purge(), &handles).await;
    assert!(results.iter().all(Result::is_ok) && results.len() == 250);
    let mut sizes: Vec<_> = seen
        .lock()
        .acks
        .iter()
        .map(|(_, one)| one.handles.len())
        .collect();
    sizes.sort_unstable();
    assert_eq!(sizes, [50, 100, 100]);
}

#[tokio::test]
async fn a_nack_at_once_is_not_a_nack_with_backoff() {
    let (client, _, seen) = shards().await;
    let purge = ConsumerName::purge();
    let handle = Handle::new(outbox_id(2), ShardId(0), [9]);
    for (delay, wire) in [
        (None, 0),
        (Some(Duration::ZERO), 1),
        (Some(Duration::from_secs(7)), 7000),
    ] {
        let settled = client.nack(&purge, &handle, "why", delay).await;
        assert_eq!(settled.expect("answered"), Settled::Done);
        let nack = seen.lock().nacks.pop().expect("a nack");
        assert_eq!((nack.delay_ms, &*nack.reason), (wire, "why"));
        assert_eq!(nack.handle, [9]);
    }
    let settled = client.extend(&purge, &handle, ASK.visibility).await;
    assert_eq!(settled.expect("answered"), Settled::Stale);
}

#[tokio::test]
async fn i05_inbox_rows_are_asked_for_on_the_shard_of_the_outbox_id() {
    let (client, _, seen) = shards().await;
    let purge = ConsumerName::purge();
    assert!(
        !client
            .contains_inbox(&purge, &outbox_id(3))
            .await
            .expect("told")
    );
    let record = async || {
        client
            .record_inbox(&purge, &outbox_id(3))
            .await
            .expect("told")
    };
    assert_eq!(record().await, Recorded::Now);
    assert_eq!(record().await, Recorded::Before);
    assert!(
        client
            .contains_inbox(&purge, &outbox_id(3))
            .await
            .expect("told")
    );
    assert!(seen.lock().recorded.iter().all(|(shard, _)| *shard == 1));
}

#[tokio::test]
async fn o05_dead_letters_come_in_pages() {
    let (client, shards, seen) = shards().await;
    seen.lock().messages = vec![wire(3)];
    let purge = ConsumerName::purge();
    let page = client.dead_letters(&shards[1], &purge, 100, None).await;
    let page = page.expect("a page");
    assert_eq!(page.letters[0].outbox_id, outbox_id(3));
    assert_eq!(page.letters[0].last_error, None);
    let token = page.next.expect("another page");
    let page = client
        .dead_letters(&shards[1], &purge, 100, Some(&token))
        .await;
    assert_eq!(page.expect("a page").next, None);
    let replayed = client.replay_dead_letter(&purge, &outbox_id(3)).await;
    replayed.expect("replayed");
    let registered = client.register_consumer(&shards[0], &purge).await;
    registered.expect("registered");
}

/// Long polls in all places that a shard has, of one that answers none.
async fn take_all_places(
    client: &Client,
    shard: &Shard,
    seen: &Mutex<Seen>,
) -> JoinSet<Result<Vec<Message>, Error>> {
    seen.lock().receive_takes = ASK.wait;
    let mut polls = JoinSet::new();
    for _ in 0..crate::pool::PLACES {
        let (client, shard) = (client.clone(), shard.clone());
        polls.spawn(async move { client.receive(&shard, &ConsumerName::purge(), ASK).await });
    }
    let all = async {
        while seen.lock().receives.len() < crate::pool::PLACES {
            tokio::time::sleep(Duration::from_millis(10)).await;
        }
    };
    let arrived = tokio::time::timeout(ASK.wait, all).await;
    arrived.expect("over all connections, every one arrives");
    polls
}

/// Goal: more calls than a shard takes on one connection neither deadlock nor are taken for sent:
/// they use the other connections, and beyond all they wait for a place, within their deadline.
/// Method: as many long polls as there are places, of a shard that answers none.
#[tokio::test]
async fn k17_a_call_without_a_place_is_definite_and_waits_within_its_deadline() {
    let (client, shards, seen) = shards().await;
    let purge = ConsumerName::purge();
    let mut polls = take_all_places(&client, &shards[0], &seen).await;

    let record = async || client.record_inbox(&purge, &outbox_id(2)).await;
    let err = record().await.expect_err("no place");
    assert_eq!(
        (err.kind(), err.reason()),
        (ErrorKind::Busy, Some(Reason::Overloaded)),
        "{err}"
    );
    assert!(err.retry_after().is_some() && seen.lock().recorded.is_empty());
    let other = client.record_inbox(&purge, &outbox_id(3)).await;
    assert_eq!(other.expect("another shard"), Recorded::Now);

    // A place that becomes free in time is taken.
    let (recorded, ()) = tokio::join!(record(), async {
        tokio::task::yield_now().await;
        polls.abort_all();
    });
    assert_eq!(recorded.expect("a place"), Recorded::Now);
}

/// Goal: calls that wait for a place with a leader that hangs follow to its successor.
/// Method: long polls have all places of one shard; then another address leads it, under a later epoch.
#[tokio::test]
async fn f06_a_call_that_waits_for_a_place_follows_to_a_new_leader() {
    let (client, shards, seen) = shards().await;
    let purge = ConsumerName::purge();
    let polls = take_all_places(&client, &shards[0], &seen).await;

    let id = outbox_id(2);
    let (recorded, ()) = tokio::join!(client.record_inbox(&purge, &id), async {
        tokio::task::yield_now().await;
        {
            let mut seen = seen.lock();
            let successor = seen.routes[1].address.clone();
            seen.routes[0].address = successor;
            seen.routes[0].epoch = 2;
        }
        client.shards().await.expect("a table");
    });
    assert_eq!(recorded.expect("of the new leader"), Recorded::Now);
    assert!(!polls.is_empty(), "the places are still taken");
}
