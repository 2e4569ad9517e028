//! Rules of the contract over gRPC, that a client library would not let one try.

use std::net::SocketAddr;
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use ostraca_client::{Begun, Client, CreateAnswer, Error, NewPaste, Options, Seeds, Ticket};
use ostraca_io::{Clock as _, Entropy as _, ManualClock, SystemEntropy};
use ostraca_proto::v1;
use ostraca_proto::v1::paste_service_client::PasteServiceClient;
use ostraca_server::{DataDir, ServeError, ShardOptions, Told, serve_shard};
use ostraca_types::{
    BodyDigest, ErrorKind, IdempotencyKey, Lifetime, RequestDigest, ShardId, Slot, Timestamp,
};
use tokio::sync::oneshot;
use tokio::task::JoinHandle;
use tonic::transport::Channel;
use tonic::{Code, Status};
use tonic_types::StatusExt as _;

const START: Timestamp = Timestamp(1_790_000_000_000);
const LIFETIME: Duration = Duration::from_secs(600);
const REQUEST: RequestDigest = RequestDigest([1; 32]);

/// One shard process's worth of server, in this process.
struct Running {
    address: SocketAddr,
    stop: oneshot::Sender<()>,
    ended: JoinHandle<Result<(), ServeError>>,
}

async fn start(dir: &Path, shard: u16, clock: &ManualClock) -> Running {
    let data = DataDir::init(dir, None, &SystemEntropy).expect("a data directory");
    let listener = std::net::TcpListener::bind("127.0.0.1:0").expect("a free port");
    let options = ShardOptions {
        storage: ostraca_io::RealStorage,
        lead: ostraca_server::Lead::IfFree,
        data,
        shard: ShardId(shard),
        listener,
        metrics: None,
        clock: Arc::new(clock.clone()),
        entropy: Arc::new(SystemEntropy),
    };
    let (stop, stopped) = oneshot::channel::<()>();
    let (ready, is_ready) = oneshot::channel();
    let ended = tokio::spawn(async move {
        let mut ready = Some(ready);
        let report = |told| match (told, ready.take()) {
            (Told::Leads(address), Some(ready)) => {
                ready.send(address).expect("somebody waits");
            }
            other => panic!("{other:?}"),
        };
        serve_shard(options, report, async { drop(stopped.await) }).await
    });
    let address = is_ready.await.expect("it serves");
    Running {
        address,
        stop,
        ended,
    }
}

impl Running {
    fn client(&self) -> Client {
        Client::new(Options::new(Seeds::Fixed(vec![self.address.to_string()])))
    }

    async fn raw(&self) -> PasteServiceClient<Channel> {
        PasteServiceClient::connect(format!("http://{}", self.address))
            .await
            .expect("a connection")
    }

    async fn status(&self) -> v1::GetStatusResponse {
        let address = self.address.to_string();
        self.client().status_of(&address).await.expect("a status")
    }

    async fn stop(self) {
        drop(self.stop);
        self.ended.await.expect("no panic").expect("a clean end");
    }
}

/// A key whose slot is as asked for.
fn key_on(wanted: impl Fn(Slot) -> bool) -> IdempotencyKey {
    loop {
        let key = IdempotencyKey::mint(|bytes| SystemEntropy.fill(bytes));
        if wanted(key.slot()) {
            return key;
        }
    }
}

/// On a slot of shard 0, which has the lower half.
fn lower() -> IdempotencyKey {
    key_on(|slot| slot < Slot(128))
}

fn paste() -> NewPaste {
    NewPaste {
        lifetime: Some(Lifetime::parse("10m").expect("a lifetime")),
        syntax: None,
        title: None,
        body_size: 5,
        body_digest: BodyDigest([9; 32]),
    }
}

async fn begin(client: &Client, key: &IdempotencyKey) -> Ticket {
    match client.begin_create(key, &REQUEST).await.expect("begun") {
        Begun::New(ticket) => ticket,
        Begun::Stored(answer) => panic!("{answer:?}"),
    }
}

async fn stored(client: &Client, key: &IdempotencyKey) -> CreateAnswer {
    match client.begin_create(key, &REQUEST).await.expect("begun") {
        Begun::Stored(answer) => answer,
        Begun::New(ticket) => panic!("not a stored answer but {ticket:?}"),
    }
}

async fn create(client: &Client, key: &IdempotencyKey) -> CreateAnswer {
    let ticket = begin(client, key).await;
    let answer = client.commit_create(key, &REQUEST, &ticket, &paste()).await;
    answer.expect("created")
}

/// Moves the clock and waits until the shard has made it durable.
async fn advance(running: &Running, clock: &ManualClock, by: Duration) {
    clock.advance(by);
    while running.status().await.now_ms < clock.wall().0 {
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
}

fn gone<T: std::fmt::Debug>(read: Result<T, Error>) -> bool {
    read.expect_err("it has ended").kind() == ErrorKind::NotFound
}

fn reason(status: &Status) -> String {
    let details = status.get_error_details();
    details.error_info().expect("details").reason.clone()
}

/// Goal: a retry has the first answer whatever became of the paste, and by either step.
/// Method: one paste is deleted, one expires, and one lives. Each is asked for again by a begin,
/// and by a commit that had begun before the first was committed; then after a restart. Covers ID-05.
#[tokio::test]
async fn k04_a_retry_has_the_first_answer_after_the_delete_and_after_the_expiry() {
    let dir = tempfile::tempdir().expect("a directory");
    let clock = ManualClock::new(START);
    let mut running = start(dir.path(), 0, &clock).await;
    let client = running.client();
    let (deleted, expired) = (lower(), lower());
    let late = [
        begin(&client, &deleted).await,
        begin(&client, &expired).await,
    ];
    let first = [
        create(&client, &deleted).await,
        create(&client, &expired).await,
    ];
    assert!(first.iter().all(|answer| !answer.replayed));
    let delete = client.delete_paste(&first[0].paste_id, &first[0].delete_token);
    delete.await.expect("deleted");
    advance(&running, &clock, LIFETIME).await;
    let third = lower();
    let lives = create(&client, &third).await;

    for restarted in [false, true] {
        if restarted {
            running.stop().await;
            running = start(dir.path(), 0, &clock).await;
        }
        let client = running.client();
        for (key, first, late) in [
            (&deleted, &first[0], Some(&late[0])),
            (&expired, &first[1], Some(&late[1])),
            (&third, &lives, None),
        ] {
            let replay = CreateAnswer {
                replayed: true,
                ..first.clone()
            };
            assert_eq!(stored(&client, key).await, replay);
            if let Some(ticket) = late {
                let answer = client.commit_create(key, &REQUEST, ticket, &paste()).await;
                assert_eq!(answer.expect("the first answer"), replay);
                assert!(gone(client.get_paste(&first.paste_id).await), "revived");
            }
        }
        client.get_paste(&lives.paste_id).await.expect("it lives");
    }
    let status = running.status().await;
    assert_eq!(status.idempotency_rows, 3, "no key has a second row");
    running.stop().await;
}

/// Goal: a create whose PUT takes for ever holds nothing: neither its slot, nor its key.
/// Method: hundreds of creates begin and do not commit, on one slot and under one key of it; the
/// shard's status is as before, others on that slot and under that key commit, and no slower.
/// Latency is compared with what it was just before, and only for orders of magnitude.
#[tokio::test]
async fn k07_creates_that_never_commit_hold_nothing() {
    const OPEN: usize = 400;
    let dir = tempfile::tempdir().expect("a directory");
    let clock = ManualClock::new(START);
    let running = start(dir.path(), 0, &clock).await;
    let client = running.client();
    let shared = lower();
    let slot = shared.slot();
    let on_slot = || key_on(|other| other == slot);

    let median = async || {
        let mut took = Vec::new();
        for _ in 0..21 {
            let key = on_slot();
            let started = tokio::time::Instant::now();
            create(&client, &key).await;
            took.push(started.elapsed());
        }
        took.sort_unstable();
        took[took.len() / 2]
    };
    let before = median().await;
    let idle = running.status().await;
    let mut open = vec![begin(&client, &shared).await];
    for _ in 1..OPEN {
        open.push(begin(&client, &shared).await);
        begin(&client, &on_slot()).await;
    }
    let status = running.status().await;
    let counts = |status: &v1::GetStatusResponse| {
        (
            status.sequence,
            status.commits,
            status.syncs,
            status.pastes,
            status.idempotency_rows,
        )
    };
    assert_eq!(counts(&status), counts(&idle), "a begin writes nothing");
    let after = median().await;
    let bound = before * 10 + Duration::from_millis(50);
    assert!(after < bound, "{after:?} each, and {before:?} before");

    // The key of all those open creates is free as well; whoever commits first has it.
    let winner = open.pop().expect("a ticket");
    let paste = paste();
    let first = client.commit_create(&shared, &REQUEST, &winner, &paste);
    let first = first.await.expect("committed");
    assert_eq!((first.paste_id, first.replayed), (winner.paste_id, false));
    for ticket in &open[..10] {
        let late = client
            .commit_create(&shared, &REQUEST, ticket, &paste)
            .await;
        let late = late.expect("the stored answer");
        assert_eq!((late.paste_id, late.replayed), (first.paste_id, true));
    }
    let status = running.status().await;
    assert_eq!((status.pastes, status.idempotency_rows), (43, 43));
    running.stop().await;
}

/// Goal: a key lives on its slot's shard and nowhere else; what reaches another one is refused and
/// leaves nothing there, valid ticket or not.
/// Method: two shards of one cluster, called directly.
#[tokio::test]
async fn k12_keys_live_on_their_slots_shard_only() {
    let dir = tempfile::tempdir().expect("a directory");
    let clock = ManualClock::new(START);
    let (own, other) = (
        start(dir.path(), 0, &clock).await,
        start(dir.path(), 1, &clock).await,
    );
    let untouched = other.status().await;
    assert_eq!((untouched.pastes, untouched.idempotency_rows), (0, 0));
    let key = lower();
    let begin = v1::BeginCreateRequest {
        idempotency_key: key.expose_text(),
        request_digest: REQUEST.0.to_vec(),
    };
    let begun = own.raw().await.begin_create(begin.clone()).await;
    let Some(v1::begin_create_response::Outcome::Ticket(ticket)) =
        begun.expect("its slot").into_inner().outcome
    else {
        panic!("a new key")
    };
    let commit = v1::CommitCreateRequest {
        idempotency_key: key.expose_text(),
        request_digest: REQUEST.0.to_vec(),
        ticket: ticket.ticket,
        body_size: 5,
        body_digest: vec![9; 32],
        ..Default::default()
    };
    // Before the key is known anywhere, and after: the other shard does not look it up.
    for known in [false, true] {
        if known {
            let committed = own.raw().await.commit_create(commit.clone()).await;
            committed.expect("committed");
        }
        let refused = [
            other.raw().await.begin_create(begin.clone()).await.err(),
            other.raw().await.commit_create(commit.clone()).await.err(),
        ];
        for status in refused {
            let status = status.expect("not its slot");
            assert_eq!(status.code(), Code::FailedPrecondition, "known: {known}");
            assert_eq!(reason(&status), "WRONG_SHARD");
        }
    }
    let read = v1::GetPasteRequest {
        paste_id: ticket.paste_id,
    };
    own.raw()
        .await
        .get_paste(read.clone())
        .await
        .expect("there");
    let status = other.raw().await.get_paste(read).await;
    assert_eq!(reason(&status.expect_err("not its slot")), "WRONG_SHARD");

    // Nothing at all happened there: not even a record was appended.
    assert_eq!(other.status().await, untouched);
    let status = own.status().await;
    assert_eq!((status.pastes, status.idempotency_rows), (1, 1));

    // Its own shard is the only one that can answer for it.
    own.stop().await;
    let refused = other.raw().await.begin_create(begin).await;
    assert_eq!(reason(&refused.expect_err("not its slot")), "WRONG_SHARD");
    other.stop().await;
}

/// Sends one gRPC frame by hand, and returns the status of the answer.
async fn send_frame(address: SocketAddr, encoding: Option<&str>, frame: &[u8]) -> Code {
    let socket = tokio::net::TcpStream::connect(address)
        .await
        .expect("a connection");
    let (mut sender, connection) = h2::client::handshake(socket).await.expect("HTTP/2");
    let connection = tokio::spawn(connection);
    let uri = "http://localhost/ostraca.v1.PasteService/BeginCreate";
    let mut request = tonic::codegen::http::Request::post(uri)
        .header("content-type", "application/grpc")
        .header("te", "trailers");
    if let Some(encoding) = encoding {
        request = request.header("grpc-encoding", encoding);
    }
    let request = request.body(()).expect("a request");
    let (response, mut body) = sender.send_request(request, false).expect("sent");
    // It may be refused before all of it was taken.
    let _ = body.send_data(frame.to_vec().into(), true);
    let response = response.await.expect("an answer");
    let mut status = response.headers().get("grpc-status").cloned();
    let mut body = response.into_body();
    while let Some(data) = body.data().await {
        let size = data.expect("data").len();
        body.flow_control().release_capacity(size).expect("open");
    }
    if let Some(trailers) = body.trailers().await.expect("an end") {
        status = status.or_else(|| trailers.get("grpc-status").cloned());
    }
    connection.abort();
    Code::from_bytes(status.expect("a status").as_bytes())
}

fn frame(compressed: bool, message: &[u8]) -> Vec<u8> {
    let size = u32::try_from(message.len()).expect("small");
    [&[u8::from(compressed)], &size.to_be_bytes()[..], message].concat()
}

/// Goal: no message is larger than the limit, and none grows beyond it after it came.
/// Method: a small frame that says that it is compressed is refused unread; one over 64 KiB, or
/// that only says so, is refused by its length. The shard serves on. Covers SZ-11.
#[tokio::test]
async fn l01_messages_are_bounded_and_never_inflated() {
    let dir = tempfile::tempdir().expect("a directory");
    let clock = ManualClock::new(START);
    let running = start(dir.path(), 0, &clock).await;
    let address = running.address;
    // 8 MiB of zeros, gzipped, begins like this; whether it goes on does not matter.
    let gzip = b"\x1f\x8b\x08\x00\x00\x00\x00\x00\x02\x03\xed\xc1\x01\x0d\x00\x00";
    for encoding in ["gzip", "deflate", "zstd"] {
        let code = send_frame(address, Some(encoding), &frame(true, gzip)).await;
        assert_eq!(code, Code::Unimplemented, "{encoding}");
    }
    let code = send_frame(address, None, &frame(true, gzip)).await;
    assert_eq!(code, Code::Internal, "compressed, and not said how");
    let code = send_frame(address, None, &frame(false, &[0; (64 << 10) + 1])).await;
    assert_eq!(code, Code::OutOfRange);
    let announced = [&[0], &u32::MAX.to_be_bytes()[..], b"and no more"].concat();
    let code = send_frame(address, None, &announced).await;
    assert_eq!(code, Code::OutOfRange);

    // A request that the library can make, and that is too large.
    let client = running.client();
    let key = lower();
    let mut raw = running.raw().await;
    let request = |title: usize| v1::CommitCreateRequest {
        idempotency_key: key.expose_text(),
        title: "x".repeat(title),
        ..Default::default()
    };
    let status = raw.commit_create(request(64 << 10)).await;
    assert_eq!(status.expect_err("too large").code(), Code::OutOfRange);
    let status = raw.commit_create(request(60_000)).await;
    assert_eq!(status.expect_err("read").code(), Code::InvalidArgument);
    create(&client, &key).await;
    running.stop().await;
}
