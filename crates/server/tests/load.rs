//! A shard that is given more than it can do: what it refuses, what it keeps, and whom it holds up.

mod held;

use std::collections::HashSet;

use held::{REQUEST, Server, Shut, begin_start, create, key, start, until, upper_key, within};
use ostraca_proto::v1;
use ostraca_proto::v1::inbox_service_client::InboxServiceClient;
use ostraca_proto::v1::outbox_service_client::OutboxServiceClient;
use ostraca_proto::v1::paste_service_client::PasteServiceClient;
use ostraca_proto::v1::stream_creates_request::Call;
use ostraca_proto::v1::stream_creates_response::Answer;
use ostraca_types::{OutboxId, Slot};
use tokio::sync::mpsc;
use tokio::time::{Duration, Instant};
use tokio_stream::wrappers::ReceiverStream;
use tonic::transport::{Channel, Endpoint};
use tonic::{Code, Request, Status};
use tonic_types::StatusExt as _;

/// The bounds of the queue, and the most that the shard's thread has taken from it.
const QUEUE_ENTRIES: u64 = 8192;
const QUEUE_BYTES: u64 = 8 << 20;
const BATCH: u64 = 2048;
/// Calls of a process that are not answered yet, those of streams left out.
const CALLS: usize = 8192;
/// Calls of one stream that are not answered yet.
const STREAM_IN_FLIGHT: usize = 1024;

/// A commit that can be sent as often as one likes: there is one paste.
async fn commit_request(server: &Server) -> v1::CommitCreateRequest {
    let key = key();
    let request = v1::BeginCreateRequest {
        idempotency_key: key.expose_text(),
        request_digest: REQUEST.0.to_vec(),
    };
    let begun = server.raw().begin_create(request).await.expect("begun");
    let Some(v1::begin_create_response::Outcome::Ticket(ticket)) = begun.into_inner().outcome
    else {
        panic!("a new key")
    };
    v1::CommitCreateRequest {
        idempotency_key: key.expose_text(),
        request_digest: REQUEST.0.to_vec(),
        ticket: ticket.ticket,
        body_size: 5,
        body_digest: vec![9; 32],
        ..Default::default()
    }
}

/// That it is the refusal of a shard that has too much to do, and says when to come again.
fn assert_overloaded(status: &Status) {
    assert_eq!(status.code(), Code::ResourceExhausted, "{status}");
    let details = status.get_error_details();
    assert_eq!(details.error_info().expect("a reason").reason, "OVERLOADED");
    let delay = details.retry_info().and_then(|info| info.retry_delay);
    assert!(delay.is_some_and(|delay| !delay.is_zero()), "{delay:?}");
}

/// The answers of a stream that was given as many calls as it takes.
type Answers = tonic::Streaming<v1::StreamCreatesResponse>;

async fn flood(server: &Server, commit: &v1::CommitCreateRequest) -> Answers {
    let (calls, queued) = mpsc::channel(STREAM_IN_FLIGHT);
    for tag in 0..STREAM_IN_FLIGHT {
        let call = v1::StreamCreatesRequest {
            tag: tag as u64,
            call: Some(Call::Commit(commit.clone())),
        };
        calls.send(call).await.expect("room");
    }
    let mut client = server.raw();
    let answers = client.stream_creates(ReceiverStream::new(queued));
    answers.await.expect("a stream").into_inner()
}

/// Goal: what a shard cannot take is refused at once, with a delay; what it keeps is bounded, reads
/// and other shards go on, and all that it accepted is answered in the end.
/// Method: the shard's thread is held in a sync, and is sent more than queue and batch hold.
#[tokio::test]
async fn l01_l02_a_shard_that_cannot_keep_up_refuses_at_once_and_answers_what_it_took() {
    let dir = tempfile::tempdir().expect("a directory");
    let (server, other) = (start(dir.path(), 0).await, start(dir.path(), 1).await);
    let read = create(&server.client(), &key()).await.paste_id;
    let commit = commit_request(&server).await;
    let held = server.hold().await;

    let mut streams = Vec::new();
    for _ in 0..12 {
        streams.push(flood(&server, &commit).await);
    }
    let sent = 12 * STREAM_IN_FLIGHT as u64;
    until("the queue is full", async || {
        server.status().await.queued == QUEUE_ENTRIES
    })
    .await;
    // One answer at a time, on a connection of its own, and far below the time of a sync that hangs.
    let mut unary = server.raw();
    for _ in 0..50 {
        let asked = Instant::now();
        let refused = within(unary.commit_create(commit.clone())).await;
        assert_overloaded(&refused.expect_err("no room"));
        assert!(asked.elapsed() < held::DEADLINE / 4, "it waited");
    }
    assert_eq!(server.status().await.queued, QUEUE_ENTRIES);

    // Reads do not queue, and the other shard does not know.
    let request = v1::GetPasteRequest {
        paste_id: read.to_string(),
    };
    within(unary.get_paste(request)).await.expect("readable");
    for _ in 0..10 {
        within(create(&other.client(), &upper_key())).await;
    }

    // Those that were refused are told while the shard is held, and all others are told after.
    let mut refused = 0;
    let mut told = vec![HashSet::new(); streams.len()];
    let limit = Instant::now() + held::DEADLINE;
    while refused < sent - QUEUE_ENTRIES - BATCH {
        assert!(Instant::now() < limit, "{refused} refused");
        for (stream, tags) in streams.iter_mut().zip(&mut told) {
            let soon = Duration::from_millis(20);
            while let Ok(message) = tokio::time::timeout(soon, stream.message()).await {
                let Some(message) = message.expect("open") else {
                    assert_eq!(tags.len(), STREAM_IN_FLIGHT, "all its calls were refused");
                    break;
                };
                let Some(Answer::Failure(failure)) = message.answer else {
                    panic!("nothing is durable yet")
                };
                assert_told_overloaded(&failure);
                assert!(tags.insert(message.tag), "answered twice");
                refused += 1;
            }
        }
    }
    drop(held);
    let mut created = 0;
    for (stream, tags) in streams.iter_mut().zip(&mut told) {
        while tags.len() < STREAM_IN_FLIGHT {
            let message = within(stream.message()).await.expect("open").expect("open");
            match message.answer {
                Some(Answer::Commit(response)) => {
                    created += usize::from(!response.answer.expect("an answer").replayed);
                }
                // It was on its way.
                Some(Answer::Failure(failure)) => {
                    assert_told_overloaded(&failure);
                    refused += 1;
                }
                other => panic!("{other:?}"),
            }
            assert!(tags.insert(message.tag), "answered twice");
        }
    }
    assert_eq!(created, 1, "one key, one paste");
    // The create that holds the thread may wait as well.
    assert!(refused <= sent - QUEUE_ENTRIES + 1, "{refused} refused");
    assert_eq!(server.status().await.queued, 0);
    server.stop().await;
    other.stop().await;
}

#[track_caller]
fn assert_told_overloaded(failure: &v1::Failure) {
    assert_eq!(failure.reason, "OVERLOADED");
    assert_eq!(failure.code, Code::ResourceExhausted as i32);
    assert!(failure.retry_delay_ms > 0);
}

/// Goal: calls that wait are bounded before they come to the queue, which has room for more.
/// Method: the shard's thread is held, and is sent more calls than are taken at once, each of its own
/// task, over several connections.
#[tokio::test]
async fn l01_calls_beyond_the_bound_are_refused_at_once() {
    let dir = tempfile::tempdir().expect("a directory");
    let server = start(dir.path(), 0).await;
    let commit = commit_request(&server).await;
    let held = server.hold().await;
    let mut calls = tokio::task::JoinSet::new();
    // More connections than it needs, as one carries 128.
    for _ in 0..72 {
        let channel = server.channel();
        for _ in 0..120 {
            let mut client = PasteServiceClient::new(channel.clone());
            let commit = commit.clone();
            calls.spawn(async move { client.commit_create(commit).await });
        }
    }
    // The create that holds the thread has a place as well.
    for _ in 0..72 * 120 + 1 - CALLS {
        let refused = within(calls.join_next()).await.expect("calls");
        assert_overloaded(&refused.expect("no panic").expect_err("no place"));
    }
    // The thread has one of them, or is held in the mark before it.
    until("all others wait for the log", async || {
        server.status().await.queued >= CALLS as u64 - 1
    })
    .await;
    drop(held);
    let mut created = 0;
    while let Some(answer) = within(calls.join_next()).await {
        let answer = answer.expect("no panic").expect("it was taken");
        created += usize::from(!answer.into_inner().answer.expect("an answer").replayed);
    }
    assert_eq!(created, 1, "one key, one paste");
    server.stop().await;
}

/// Goal: many large commands are bounded by their bytes, before their number is.
/// Method: acks of a hundred handles each, as many as are taken at once, behind streams of commits.
#[tokio::test]
async fn l01_what_waits_is_bounded_by_bytes_too() {
    let dir = tempfile::tempdir().expect("a directory");
    let server = start(dir.path(), 0).await;
    let commit = commit_request(&server).await;
    let held = server.hold().await;
    let mut streams = Vec::new();
    for _ in 0..4 {
        streams.push(flood(&server, &commit).await);
    }
    let commits = 4 * STREAM_IN_FLIGHT as u64;
    until("the commits wait", async || {
        server.status().await.queued >= commits
    })
    .await;
    // A handle as its deliveries have it: version, outbox id, epoch, attempt.
    let mut handle = vec![0; 29];
    (handle[0], handle[25]) = (1, 1);
    let ack = v1::AckRequest {
        consumer: "purge".to_owned(),
        handles: vec![handle; 100],
    };
    let mut calls = tokio::task::JoinSet::new();
    for _ in 0..20 {
        let channel = server.channel();
        for _ in 0..100 {
            let (mut client, ack) = (OutboxServiceClient::new(channel.clone()), ack.clone());
            calls.spawn(async move { client.ack(ack).await });
        }
    }
    let refused = within(calls.join_next()).await.expect("calls");
    let refused = refused.expect("no panic").expect_err("no room");
    assert_overloaded(&refused);
    let queued = server.status().await.queued;
    let each = 128 + 100 * 32;
    assert!(queued < QUEUE_ENTRIES, "{queued} wait");
    let bytes = commits * 512 + (queued - commits) * each;
    // One of them may be the create that holds the thread, which is smaller.
    assert!(bytes <= QUEUE_BYTES + each, "{bytes} bytes wait");
    drop(held);
    let mut done = 0;
    while let Some(answer) = within(calls.join_next()).await {
        match answer.expect("no panic") {
            Ok(answer) => {
                let results = answer.into_inner().results;
                let gone = i32::from(v1::SettleResult::Gone);
                assert!(results.len() == 100 && results.iter().all(|one| *one == gone));
                done += 1;
            }
            Err(status) => assert_overloaded(&status),
        }
    }
    assert!(
        done + 1 >= queued - commits,
        "{done} of {queued} were answered"
    );
    server.stop().await;
}

/// Records of an inbox, each of which can be asked for.
struct Records {
    client: InboxServiceClient<Channel>,
}

impl Records {
    fn id(n: u8) -> String {
        let id = OutboxId::from_parts(Slot(1), &[n; 15]).expect("in range");
        id.to_string()
    }

    fn request(n: u8) -> Request<v1::RecordInboxRequest> {
        Request::new(v1::RecordInboxRequest {
            consumer: "test".to_owned(),
            outbox_id: Self::id(n),
        })
    }

    async fn contains(&mut self, n: u8) -> bool {
        let request = v1::ContainsInboxRequest {
            consumer: "test".to_owned(),
            outbox_id: Self::id(n),
        };
        let answer = within(self.client.contains_inbox(request)).await;
        answer.expect("an answer").into_inner().recorded
    }
}

/// Goal: what nobody waits for any more when its turn comes is not done; what somebody waits for is,
/// and so is that of a client which went away before its deadline.
/// Method: all three wait behind a sync that hangs until the deadlines have passed.
#[tokio::test]
async fn l01_deadlines_that_have_passed_are_not_worked_on() {
    let dir = tempfile::tempdir().expect("a directory");
    let server = start(dir.path(), 0).await;
    let client = InboxServiceClient::new(server.channel());
    let mut records = Records { client };
    let held: Shut = server.hold().await;
    let before = server.status().await;

    let mut waits = records.client.clone();
    let waits = tokio::spawn(async move { waits.record_inbox(Records::request(1)).await });
    let mut leaves = records.client.clone();
    let leaves = tokio::spawn(async move {
        let mut request = Records::request(2);
        request.set_timeout(held::DEADLINE);
        leaves.record_inbox(request).await
    });
    until("both wait", async || {
        server.status().await.queued >= before.queued + 2
    })
    .await;
    leaves.abort();
    let mut late = Vec::new();
    for n in 3..13 {
        let mut client = records.client.clone();
        late.push(tokio::spawn(async move {
            let mut request = Records::request(n);
            request.set_timeout(Duration::from_millis(100));
            client.record_inbox(request).await
        }));
    }
    for call in late {
        let told = within(call).await.expect("no panic").expect_err("too late");
        // By whichever side's timer came first; the server's is ahead.
        let codes = [Code::DeadlineExceeded, Code::Cancelled];
        assert!(codes.contains(&told.code()), "{told}");
    }
    assert!(server.status().await.queued >= before.queued + 12);
    // The client's clock may be ahead of the server's, by less than the deadline.
    tokio::time::sleep(Duration::from_millis(100)).await;

    drop(held);
    let waited = within(waits).await.expect("no panic").expect("done");
    assert!(!waited.into_inner().already_recorded);
    until("the queue is empty", async || {
        server.status().await.queued == 0
    })
    .await;
    assert!(records.contains(1).await);
    // Nobody is told of this one; it may be applied a moment after the one before it was answered.
    let limit = Instant::now() + held::DEADLINE;
    while !records.contains(2).await {
        assert!(Instant::now() < limit, "who left was waited for");
    }
    for n in 3..13 {
        assert!(!records.contains(n).await, "nobody waited for {n}");
    }
    // They are free to be done later.
    let again = within(records.client.record_inbox(Records::request(3))).await;
    assert!(!again.expect("done").into_inner().already_recorded);
    server.stop().await;
}

/// Sends begins, up to `most`, and reads no answer: how many were taken before that stopped, and
/// what keeps the stream open.
async fn send_unread(
    channel: Channel,
    most: u64,
) -> (u64, Answers, mpsc::Sender<v1::StreamCreatesRequest>) {
    let (calls, queued) = mpsc::channel(1);
    let mut client = PasteServiceClient::new(channel);
    let answers = client.stream_creates(ReceiverStream::new(queued)).await;
    let answers = answers.expect("a stream").into_inner();
    let (mut sent, key) = (0, key().expose_text());
    while sent < most {
        let call = v1::StreamCreatesRequest {
            tag: sent,
            call: Some(Call::Begin(v1::BeginCreateRequest {
                idempotency_key: key.clone(),
                request_digest: REQUEST.0.to_vec(),
            })),
        };
        let sending = tokio::time::timeout(Duration::from_millis(300), calls.send(call));
        // Held back, or hung up on.
        if !matches!(sending.await, Ok(Ok(()))) {
            break;
        }
        sent += 1;
    }
    (sent, answers, calls)
}

/// Goal: a client that sends and never reads is not read from for ever, and nobody waits for it.
/// Method: it has more in flight than a stream may, on a connection that it shares; and on others
/// it sends as much as is taken. The rest are answered as before. Latency is only compared for
/// orders of magnitude.
#[tokio::test]
async fn l01_a_stream_that_nobody_reads_starves_nobody() {
    const MOST: u64 = 100_000;
    let dir = tempfile::tempdir().expect("a directory");
    let server = start(dir.path(), 0).await;
    let read = create(&server.client(), &key()).await.paste_id;
    let endpoint = Endpoint::from_shared(format!("http://{}", server.address))
        .expect("an address")
        // As our client has them: a stream may not eat up its connection.
        .initial_stream_window_size(64 << 10)
        .initial_connection_window_size(8 << 20);
    let shared = endpoint.connect().await.expect("a connection");
    let median = async |channel: Channel| {
        let mut client = PasteServiceClient::new(channel);
        let mut took = Vec::new();
        for _ in 0..21 {
            let request = v1::GetPasteRequest {
                paste_id: read.to_string(),
            };
            let asked = Instant::now();
            within(client.get_paste(request)).await.expect("readable");
            took.push(asked.elapsed());
        }
        took.sort_unstable();
        took[took.len() / 2]
    };
    let before = median(shared.clone()).await;
    let bound = before * 10 + Duration::from_millis(50);

    let mut unread = Vec::new();
    for _ in 0..3 {
        let most = STREAM_IN_FLIGHT as u64 + 200;
        unread.push(send_unread(shared.clone(), most).await);
    }
    for channel in [shared.clone(), server.channel()] {
        let after = median(channel).await;
        assert!(after < bound, "{after:?} each, and {before:?} before");
    }
    for _ in 0..2 {
        let greedy = send_unread(server.channel(), MOST).await;
        assert!(greedy.0 < MOST, "it is read from for ever");
        unread.push(greedy);
    }
    for channel in [shared.clone(), server.channel()] {
        let after = median(channel).await;
        assert!(after < bound, "{after:?} each, and {before:?} before");
    }
    for _ in 0..5 {
        within(create(&server.client(), &key())).await;
    }
    drop(unread);
    server.stop().await;
}

/// A shard that recovers refuses, and keeps nobody waiting.
#[tokio::test]
async fn l01_a_shard_that_is_not_ready_refuses_at_once() {
    let dir = tempfile::tempdir().expect("a directory");
    let storage = held::HeldStorage::default();
    let shut = storage.opening.shut();
    let mut server = begin_start(dir.path(), 0, storage);
    let request = v1::BeginCreateRequest {
        idempotency_key: key().expose_text(),
        request_digest: REQUEST.0.to_vec(),
    };
    let refused = within(server.raw().begin_create(request)).await;
    let refused = refused.expect_err("not ready");
    assert_eq!(refused.code(), Code::Unavailable);
    let details = refused.get_error_details();
    assert_eq!(details.error_info().expect("a reason").reason, "NOT_READY");
    assert!(details.retry_info().is_some());
    drop(shut);
    server.is_leading().await;
    create(&server.client(), &key()).await;
    server.stop().await;
}
