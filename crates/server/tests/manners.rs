//! What clients, probes and proxies expect of a gRPC server, and what libraries leave to be done.

mod held;

use std::collections::{BTreeMap, BTreeSet};
use std::io::{BufRead as _, BufReader};
use std::net::SocketAddr;
use std::process::{Command, Stdio};

use held::{
    REQUEST, Server, begin, begin_start, create, key, paste, start, until, upper_key, within,
};
use ostraca_client::NewPaste;
use ostraca_proto::v1;
use ostraca_types::DeleteToken;
use tokio::task::JoinSet;
use tokio::time::Duration;
use tonic::Code;
use tonic::codegen::http::{HeaderMap, Request};
use tonic_health::pb::health_check_response::ServingStatus;
use tonic_health::pb::{HealthCheckRequest, health_client::HealthClient};

const MESSAGE_SIZE_MAX: usize = 64 << 10;

async fn health(server: &Server) -> ServingStatus {
    let asked = HealthClient::new(server.channel())
        .check(HealthCheckRequest::default())
        .await;
    asked.expect("an answer").into_inner().status()
}

/// Goal: nobody is sent calls before they are answered.
/// Method: opening the log waits, and the process says how it is.
#[tokio::test]
async fn health_says_that_a_shard_does_not_serve_until_recovery_is_done() {
    let dir = tempfile::tempdir().expect("a directory");
    let storage = held::HeldStorage::default();
    let shut = storage.opening.shut();
    let mut server = begin_start(dir.path(), 0, storage);
    until("recovery waits", async || server.storage.opening.holds()).await;
    assert_eq!(health(&server).await, ServingStatus::NotServing);
    let status = server.status().await;
    assert_eq!(status.state(), v1::ShardState::Recovering);
    drop(shut);
    server.is_leading().await;
    assert_eq!(health(&server).await, ServingStatus::Serving);
    server.stop().await;
}

/// Goal: a stopping shard is off the routes before it hangs up, and what is under way is answered.
/// Method: a watcher of its health; a commit in flight that the disk holds up; a silent connection.
#[tokio::test]
async fn health_says_so_before_a_drain_and_what_is_in_flight_is_answered() {
    let dir = tempfile::tempdir().expect("a directory");
    let mut server = start(dir.path(), 0).await;
    let mut client = HealthClient::new(server.channel());
    let watch = client.watch(HealthCheckRequest::default()).await;
    let mut watch = watch.expect("a stream").into_inner();
    let told = async |watch: &mut tonic::Streaming<_>| {
        let told = within(watch.message()).await;
        let told: tonic_health::pb::HealthCheckResponse = told.expect("open").expect("open");
        told.status()
    };
    assert_eq!(told(&mut watch).await, ServingStatus::Serving);

    let (client, key) = (server.client(), key());
    let (ticket, paste) = (begin(&client, &key).await, paste());
    let held = server.hold().await;
    let queued = server.status().await.queued;
    let commit = tokio::spawn(async move {
        let answer = client.commit_create(&key, &REQUEST, &ticket, &paste);
        answer.await
    });
    until("the commit waits", async || {
        server.status().await.queued > queued
    })
    .await;
    let silent = tokio::net::TcpStream::connect(server.address).await;
    server.begin_stop();
    assert_eq!(told(&mut watch).await, ServingStatus::NotServing);
    drop(held);
    let answer = within(commit).await.expect("no panic");
    assert!(!answer.expect("committed").replayed);
    within(server.stop()).await;
    drop(silent);
}

/// What a call answers.
struct Answer {
    code: Code,
    /// Of the headers and the trailers together.
    header_bytes: usize,
    /// Of the messages.
    answer_bytes: usize,
}

/// Sends one message by hand, of which it is said that it is `announced` bytes long.
async fn send(address: SocketAddr, path: &str, announced: usize, message: &[u8]) -> Answer {
    let socket = tokio::net::TcpStream::connect(address)
        .await
        .expect("a connection");
    let (mut sender, connection) = h2::client::handshake(socket).await.expect("HTTP/2");
    let connection = tokio::spawn(connection);
    let request = Request::post(format!("http://localhost{path}"))
        .header("content-type", "application/grpc")
        .header("te", "trailers")
        .body(())
        .expect("a request");
    let (response, mut body) = sender.send_request(request, false).expect("sent");
    let size = u32::try_from(announced).expect("small").to_be_bytes();
    let frame = [&[0], &size[..], message].concat();
    // It may be refused before all of it was taken.
    let _ = body.send_data(frame.into(), true);
    let response = within(response).await.expect("an answer");
    let mut headers = response.headers().clone();
    let mut answer_bytes = 0;
    let mut body = response.into_body();
    while let Some(data) = within(body.data()).await {
        let size = data.expect("data").len();
        answer_bytes += size;
        body.flow_control().release_capacity(size).expect("open");
    }
    if let Some(trailers) = body.trailers().await.expect("an end") {
        headers.extend(trailers);
    }
    connection.abort();
    let code = Code::from_bytes(headers["grpc-status"].as_bytes());
    let header_bytes = size_of_headers(&headers);
    Answer {
        code,
        header_bytes,
        answer_bytes,
    }
}

/// As HTTP/2 counts them.
fn size_of_headers(headers: &HeaderMap) -> usize {
    let sizes = headers
        .iter()
        .map(|(name, value)| name.as_str().len() + value.len() + 32);
    sizes.sum()
}

/// Every call of the API, as `proto/` has them, and those that libraries bring.
fn paths() -> Vec<String> {
    let files = [
        include_str!("../../../proto/ostraca/v1/paste.proto"),
        include_str!("../../../proto/ostraca/v1/cluster.proto"),
        include_str!("../../../proto/ostraca/v1/outbox.proto"),
        include_str!("../../../proto/ostraca/v1/inbox.proto"),
    ];
    let mut paths = Vec::new();
    for file in files {
        let mut service = "";
        for line in file.lines().map(str::trim) {
            if let Some(rest) = line.strip_prefix("service ") {
                service = rest.trim_end_matches(" {");
            } else if let Some(rest) = line.strip_prefix("rpc ") {
                let (name, _) = rest.split_once('(').expect("an rpc");
                paths.push(format!("/ostraca.v1.{service}/{name}"));
            }
        }
    }
    assert!(paths.len() > 15, "{paths:?}");
    let others = [
        "/grpc.health.v1.Health/Check",
        "/grpc.health.v1.Health/Watch",
        "/grpc.reflection.v1.ServerReflection/ServerReflectionInfo",
        "/grpc.reflection.v1alpha.ServerReflection/ServerReflectionInfo",
    ];
    paths.extend(others.map(str::to_owned));
    paths
}

/// The services that reflection lists.
async fn listed(server: &Server) -> BTreeSet<String> {
    use tonic_reflection::pb::v1::{
        ServerReflectionRequest, server_reflection_client::ServerReflectionClient,
        server_reflection_request::MessageRequest, server_reflection_response::MessageResponse,
    };
    let asked = ServerReflectionRequest {
        host: String::new(),
        message_request: Some(MessageRequest::ListServices(String::new())),
    };
    let answers = ServerReflectionClient::new(server.channel())
        .server_reflection_info(tokio_stream::iter([asked]))
        .await;
    let mut answers = answers.expect("reflection").into_inner();
    let answer = answers.message().await.expect("an answer").expect("one");
    let Some(MessageResponse::ListServicesResponse(list)) = answer.message_response else {
        panic!("{answer:?}")
    };
    list.service.into_iter().map(|listed| listed.name).collect()
}

/// Goal: the limit of messages is the same at every door, of one call or of a stream.
/// Method: one byte more than the limit, at each; and a message that only says that it is as long.
#[tokio::test]
async fn l01_no_call_takes_a_message_above_64_kib() {
    let dir = tempfile::tempdir().expect("a directory");
    let server = start(dir.path(), 0).await;
    // A field that no message has, so that only the size can be refused.
    let message = |size: usize| {
        let mut bytes = vec![0; size];
        let field = size - 6;
        bytes[..2].copy_from_slice(&[0xFA, 0x7F]);
        for (at, byte) in bytes[2..6].iter_mut().enumerate() {
            let more = if at < 3 { 0x80 } else { 0 };
            *byte = u8::try_from(field >> (7 * at) & 0x7F).expect("7 bits") | more;
        }
        bytes
    };
    let paths = paths();
    let services = paths.iter().filter_map(|path| path[1..].split_once('/'));
    let mut services: BTreeSet<_> = services.map(|(name, _)| name.to_owned()).collect();
    // Each version of reflection lists itself only.
    assert!(services.remove("grpc.reflection.v1alpha.ServerReflection"));
    assert_eq!(listed(&server).await, services, "a door that is not tried");
    let mut wrong = BTreeMap::new();
    for path in paths {
        let large = message(MESSAGE_SIZE_MAX + 1);
        let over = send(server.address, &path, large.len(), &large).await;
        let said = send(server.address, &path, 1 << 30, b"and no more").await;
        // Reflection ends its stream without a word.
        let refused = if path.contains("reflection") {
            Code::Ok
        } else {
            Code::OutOfRange
        };
        let answered = over.answer_bytes + said.answer_bytes;
        let (over, said) = (over.code, said.code);
        if (over, said, answered) != (refused, refused, 0) {
            wrong.insert(path, (over, said, answered));
        }
    }
    assert!(wrong.is_empty(), "{wrong:?}");
    // At the limit it is read, and refused for what it says.
    let path = "/ostraca.v1.PasteService/BeginCreate";
    let fits = message(MESSAGE_SIZE_MAX);
    let code = send(server.address, path, fits.len(), &fits).await.code;
    assert_eq!(code, Code::InvalidArgument);
    server.stop().await;
}

/// Goal: no refusal has more in its headers than clients take, whatever it was asked.
/// Method: the longest fields that fit a message, wherever one is echoed or looked at.
#[tokio::test]
async fn errors_stay_small_whatever_was_asked() {
    use prost::Message as _;
    let dir = tempfile::tempdir().expect("a directory");
    let server = start(dir.path(), 0).await;
    let long = "é".repeat(30_000);
    let refused = [
        (
            "PasteService/BeginCreate",
            v1::BeginCreateRequest {
                idempotency_key: long.clone(),
                request_digest: vec![1; 32],
            }
            .encode_to_vec(),
        ),
        (
            "PasteService/BeginCreate",
            v1::BeginCreateRequest {
                idempotency_key: upper_key().expose_text(),
                request_digest: vec![1; 32],
            }
            .encode_to_vec(),
        ),
        (
            "PasteService/CommitCreate",
            v1::CommitCreateRequest {
                idempotency_key: key().expose_text(),
                request_digest: vec![1; 32],
                ticket: vec![1; 60_000],
                ..Default::default()
            }
            .encode_to_vec(),
        ),
        (
            "PasteService/GetPaste",
            v1::GetPasteRequest {
                paste_id: long.clone(),
            }
            .encode_to_vec(),
        ),
        (
            "OutboxService/RegisterConsumer",
            v1::RegisterConsumerRequest {
                consumer: long.clone(),
            }
            .encode_to_vec(),
        ),
        (
            "OutboxService/ListDeadLetters",
            v1::ListDeadLettersRequest {
                consumer: "purge".to_owned(),
                page_token: long.clone(),
                page_size: 0,
            }
            .encode_to_vec(),
        ),
        (
            "InboxService/RecordInbox",
            v1::RecordInboxRequest {
                consumer: "test".to_owned(),
                outbox_id: long,
            }
            .encode_to_vec(),
        ),
    ];
    for (path, message) in refused {
        let path = format!("/ostraca.v1.{path}");
        let answer = send(server.address, &path, message.len(), &message).await;
        assert_ne!(answer.code, Code::Ok, "{path}");
        // grpc-go and grpc-core take 16 KiB and 8 KiB.
        let size = answer.header_bytes;
        assert!(size < 8 << 10, "{size} bytes from {path}");
    }
    server.stop().await;
}

/// Goal: calls that are not read yet leave room for others: a connection has more than its streams.
/// Method: how much a client may send at once, on one stream and on ten.
#[tokio::test]
async fn a_connections_window_is_well_above_a_streams() {
    let dir = tempfile::tempdir().expect("a directory");
    let server = start(dir.path(), 0).await;
    let socket = tokio::net::TcpStream::connect(server.address)
        .await
        .expect("a connection");
    // What the client itself would keep is no bound here.
    let client = h2::client::Builder::new()
        .max_send_buffer_size(64 << 20)
        .handshake::<_, &[u8]>(socket);
    let (mut sender, connection) = client.await.expect("HTTP/2");
    let connection = tokio::spawn(connection);
    let mut streams = Vec::new();
    for _ in 0..10 {
        let request = Request::post("http://localhost/ostraca.v1.PasteService/StreamCreates")
            .header("content-type", "application/grpc")
            .header("te", "trailers")
            .body(())
            .expect("a request");
        let mut ready = within(sender.clone().ready()).await.expect("open");
        let (response, mut body) = ready.send_request(request, false).expect("sent");
        // The answer comes once the server's settings did.
        drop(within(response).await.expect("an answer"));
        body.reserve_capacity(4 << 20);
        streams.push(body);
        sender = ready;
    }
    let granted: Vec<_> = streams.iter().map(h2::SendStream::capacity).collect();
    assert_eq!(granted[0], 1 << 20, "of a stream");
    let sum: usize = granted.iter().sum();
    assert_eq!(sum, 8 << 20, "of the connection: {granted:?}");
    drop((streams, sender));
    connection.abort();
    server.stop().await;
}

/// Goal: a client that has more calls than a connection may carry waits, and is not stuck.
/// Method: many times as many, all held up at once by the shard's thread.
#[tokio::test]
async fn more_calls_than_a_connection_carries_are_all_answered() {
    const CALLS: usize = 3000;
    let dir = tempfile::tempdir().expect("a directory");
    let server = start(dir.path(), 0).await;
    let (client, raw) = (server.client(), server.raw());
    let answer = create(&client, &key()).await;
    let held = server.hold().await;
    let mut calls = JoinSet::new();
    let wrong = DeleteToken::mint(|bytes| bytes.fill(7));
    for n in 0..CALLS {
        let mut raw = raw.clone();
        // One in three does not queue.
        let token = if n % 3 == 0 {
            &wrong
        } else {
            &answer.delete_token
        };
        let request = v1::DeletePasteRequest {
            paste_id: answer.paste_id.to_string(),
            delete_token: token.expose_text(),
        };
        calls.spawn(async move { raw.delete_paste(request).await });
    }
    until("as many wait as can", async || {
        server.status().await.queued > 100
    })
    .await;
    drop(held);
    let mut codes = BTreeMap::new();
    while let Some(answer) = within(calls.join_next()).await {
        let code = answer
            .expect("no panic")
            .map_or_else(|s| s.code(), |_| Code::Ok);
        *codes.entry(format!("{code:?}")).or_insert(0) += 1;
    }
    assert_eq!(codes.values().sum::<usize>(), CALLS, "{codes:?}");
    assert_eq!(codes.get("Ok"), Some(&1), "{codes:?}");
    let known = ["Ok", "NotFound", "PermissionDenied"];
    assert!(
        codes.keys().all(|code| known.contains(&code.as_str())),
        "{codes:?}"
    );
    server.stop().await;
}

/// Goal: a client that gives up many calls before the server has looked at them keeps its connection.
/// Method: a page of them at once, by hand, and one more on the same connection.
#[tokio::test]
async fn calls_that_are_given_up_at_once_cost_nobody_the_connection() {
    let dir = tempfile::tempdir().expect("a directory");
    let server = start(dir.path(), 0).await;
    let socket = tokio::net::TcpStream::connect(server.address).await;
    let (mut sender, connection) = h2::client::handshake(socket.expect("a connection"))
        .await
        .expect("HTTP/2");
    let connection = tokio::spawn(connection);
    let request = || {
        Request::post("http://localhost/ostraca.v1.ClusterService/GetRouting")
            .header("content-type", "application/grpc")
            .header("te", "trailers")
            .body(())
            .expect("a request")
    };
    for _ in 0..100 {
        let (_, mut body) = sender.send_request(request(), false).expect("sent");
        body.send_reset(h2::Reason::CANCEL);
    }
    let mut sender = within(sender.ready())
        .await
        .expect("the connection is kept");
    let (response, mut body) = sender.send_request(request(), false).expect("sent");
    body.send_data(vec![0; 5].into(), true).expect("sent");
    let response = within(response).await.expect("it is answered");
    assert_eq!(response.status(), 200);
    connection.abort();
    server.stop().await;
}

/// Goal: tools that know one version of reflection only are answered.
#[tokio::test]
async fn reflection_answers_in_its_older_version_too() {
    use tonic_reflection::pb::v1alpha::{
        ServerReflectionRequest, server_reflection_client::ServerReflectionClient,
        server_reflection_request::MessageRequest, server_reflection_response::MessageResponse,
    };
    let dir = tempfile::tempdir().expect("a directory");
    let server = start(dir.path(), 0).await;
    let asked = ServerReflectionRequest {
        host: String::new(),
        message_request: Some(MessageRequest::FileContainingSymbol(
            "ostraca.v1.PasteService".to_owned(),
        )),
    };
    let answers = ServerReflectionClient::new(server.channel())
        .server_reflection_info(tokio_stream::iter([asked]))
        .await;
    let mut answers = answers.expect("reflection").into_inner();
    let answer = answers.message().await.expect("an answer").expect("one");
    let Some(MessageResponse::FileDescriptorResponse(files)) = answer.message_response else {
        panic!("{answer:?}")
    };
    assert_eq!(files.file_descriptor_proto.len(), 1);
    server.stop().await;
}

/// Set in the process that serves with few files.
const FEW_FILES: &str = "OSTRACA_TEST_FEW_FILES";

/// The process that the next test starts: serves until its input ends.
#[test]
fn few_files_server() {
    if std::env::var_os(FEW_FILES).is_none() {
        return;
    }
    let runtime = tokio::runtime::Runtime::new().expect("a runtime");
    runtime.block_on(async {
        let dir = tempfile::tempdir().expect("a directory");
        let server = start(dir.path(), 0).await;
        println!("\naddress {}", server.address);
        let ended = tokio::task::spawn_blocking(|| std::io::stdin().read_line(&mut String::new()));
        ended.await.expect("no panic").expect("read");
        server.stop().await;
    });
}

/// Goal: running out of file descriptors ends no server: connections that are there are served, and
/// new ones are again once there is room.
/// Method: a process that may open few, and more connections than that.
#[tokio::test]
async fn running_out_of_files_does_not_end_a_server() {
    let test = std::env::current_exe().expect("this test");
    let mut child = Command::new("sh")
        .args([
            "-c",
            "ulimit -n 64 && exec \"$0\" --exact few_files_server --nocapture",
        ])
        .arg(test)
        .env(FEW_FILES, "1")
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .spawn()
        .expect("sh");
    let mut lines = BufReader::new(child.stdout.take().expect("a pipe")).lines();
    let address = loop {
        let line = lines.next().expect("it serves").expect("a line");
        if let Some(address) = line.strip_prefix("address ") {
            break address.parse::<SocketAddr>().expect("an address");
        }
    };
    let connect = || {
        let endpoint = tonic::transport::Endpoint::from_shared(format!("http://{address}"));
        endpoint.expect("an address").connect_lazy()
    };
    let serves = async |channel: tonic::transport::Channel| {
        let asked = HealthClient::new(channel)
            .check(HealthCheckRequest::default())
            .await;
        asked.is_ok_and(|answer| answer.into_inner().status() == ServingStatus::Serving)
    };
    let first = connect();
    assert!(within(serves(first.clone())).await);
    let mut open = Vec::new();
    for _ in 0..100 {
        open.push(
            tokio::net::TcpStream::connect(address)
                .await
                .expect("in the backlog"),
        );
    }
    let busy = || {
        let stat = format!("/proc/{}/stat", child.id());
        let stat = ostraca_io::files::read_text(stat.as_ref()).expect("it runs");
        let (_, fields) = stat.rsplit_once(") ").expect("a name");
        // User and system time, in hundredths of a second.
        let fields = fields.split(' ').skip(11).take(2);
        fields
            .map(|ticks| ticks.parse::<u64>().expect("a number"))
            .sum::<u64>()
    };
    // Long enough for it to meet the limit.
    let before = busy();
    tokio::time::sleep(Duration::from_millis(600)).await;
    let during = within(serves(first.clone())).await;
    let spent = busy() - before;
    drop(open);
    let after = tokio::time::timeout(held::DEADLINE, async {
        while !serves(connect()).await {
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
    });
    let after = after.await.is_ok();
    drop((first, child.stdin.take()));
    let ended = child.wait().expect("it ends");
    assert!(
        spent < 20,
        "it asks for connections all the time: {spent} hundredths of a second"
    );
    assert!(during, "the connections that are there are served");
    assert!(after, "new ones are taken again");
    assert!(ended.success(), "{ended}");
}

/// The largest title that is allowed: nothing of the options makes an answer too large to send.
#[tokio::test]
async fn the_largest_options_fit_an_answer() {
    let dir = tempfile::tempdir().expect("a directory");
    let server = start(dir.path(), 0).await;
    let (client, key) = (server.client(), key());
    let ticket = begin(&client, &key).await;
    let paste = NewPaste {
        title: Some(ostraca_types::Title::parse(&"t".repeat(256)).expect("a title")),
        ..paste()
    };
    let created = client.commit_create(&key, &REQUEST, &ticket, &paste).await;
    let id = created.expect("created").paste_id;
    let row = client.get_paste(&id).await.expect("readable");
    assert_eq!(row.title, paste.title);
    server.stop().await;
}
