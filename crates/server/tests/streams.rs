//! Streams of calls whose answers nobody reads, by hand: a client library would send less at once.

mod held;

use h2::client::{Connection, ResponseFuture, SendRequest};
use h2::{Reason, RecvStream, SendStream};
use held::{REQUEST, Server, create, key, start, within};
use ostraca_proto::v1;
use prost::Message as _;
use prost::bytes::Bytes;
use tokio::net::TcpStream;
use tokio::task::JoinHandle;
use tonic::codegen::http::Request;
use v1::stream_creates_request::Call;

/// As many calls as a stream's window of 1 MiB holds, about: all of them can be sent, whether or not
/// the server reads any.
const CALLS: usize = 12_000;
const STREAM_WINDOW: usize = 1 << 20;

/// A begin, as it is sent.
fn call() -> Bytes {
    let begin = v1::BeginCreateRequest {
        idempotency_key: key().expose_text(),
        request_digest: REQUEST.0.to_vec(),
    };
    let call = v1::StreamCreatesRequest {
        tag: 1,
        call: Some(Call::Begin(begin)),
    };
    let message = call.encode_to_vec();
    let size = u32::try_from(message.len()).expect("small").to_be_bytes();
    [&[0], &size[..], &message].concat().into()
}

fn request(path: &str) -> Request<()> {
    Request::post(format!("http://localhost/ostraca.v1.{path}"))
        .header("content-type", "application/grpc")
        .header("te", "trailers")
        .body(())
        .expect("a request")
}

type Client = SendRequest<Bytes>;

async fn connect(server: &Server) -> (Client, JoinHandle<Result<(), h2::Error>>) {
    let socket = TcpStream::connect(server.address)
        .await
        .expect("a connection");
    let handshake = h2::client::Builder::new()
        .max_send_buffer_size(64 << 20)
        .handshake(socket);
    let (client, connection): (_, Connection<_, _>) = handshake.await.expect("HTTP/2");
    (client, tokio::spawn(connection))
}

/// A stream that was answered, so that the server's settings are known.
async fn open(client: &Client) -> (SendStream<Bytes>, RecvStream) {
    let mut client = within(client.clone().ready()).await.expect("open");
    let (response, calls) = client
        .send_request(request("PasteService/StreamCreates"), false)
        .expect("sent");
    let response = within(response).await.expect("an answer");
    (calls, response.into_body())
}

/// One call, each in a frame of its own.
fn send(calls: &mut SendStream<Bytes>, call: &Bytes) -> Result<(), h2::Error> {
    calls.send_data(call.clone(), false)
}

/// Whether a call on the same connection is answered.
async fn is_served(client: &Client) -> bool {
    let Ok(mut client) = within(client.clone().ready()).await else {
        return false;
    };
    let sent = client.send_request(request("ClusterService/GetRouting"), false);
    let Ok((response, mut body)): Result<(ResponseFuture, _), _> = sent else {
        return false;
    };
    let _ = body.send_data(vec![0; 5].into(), true);
    within(response).await.is_ok()
}

/// How many messages are left to read, up to the end.
async fn count(mut answers: RecvStream) -> usize {
    let (mut count, mut read) = (0, Vec::new());
    while let Some(data) = within(answers.data()).await {
        let data = data.expect("the stream goes on");
        let capacity = answers.flow_control();
        capacity.release_capacity(data.len()).expect("open");
        read.extend_from_slice(&data);
        while let Some((head, rest)) = read.split_first_chunk::<5>() {
            let size = [head[1], head[2], head[3], head[4]];
            let size = usize::try_from(u32::from_be_bytes(size)).expect("small");
            if rest.len() < size {
                break;
            }
            drop(read.drain(..5 + size));
            count += 1;
        }
    }
    count
}

/// Goal: one stream that is not read is not read from either, and costs nobody the connection.
/// Method: a window full of small calls, ten times what may be in flight; another call on the same
/// connection; then the answers are read, and none is missing.
#[tokio::test]
async fn l01_a_stream_that_is_not_read_is_held_back_and_not_cut() {
    let dir = tempfile::tempdir().expect("a directory");
    let server = start(dir.path(), 0).await;
    let call = call();
    assert!(CALLS * call.len() < STREAM_WINDOW, "it all can be sent");
    let (client, connection) = connect(&server).await;
    let (mut calls, answers) = open(&client).await;
    for _ in 0..CALLS {
        send(&mut calls, &call).expect("open");
    }
    calls.send_data(Bytes::new(), true).expect("open");
    assert!(is_served(&client).await, "the connection was cut");
    assert_eq!(count(answers).await, CALLS);
    connection.abort();
    server.stop().await;
}

/// Goal: a client that does so with many streams of one connection loses that connection; all others
/// go on. It sees a broken connection, and no stream that ended in order.
/// Method: eight streams, each as full as it can be; another connection meanwhile.
#[tokio::test]
async fn l01_a_client_that_reads_none_of_many_streams_loses_its_own_connection_only() {
    let dir = tempfile::tempdir().expect("a directory");
    let server = start(dir.path(), 0).await;
    let (call, other) = (call(), connect(&server).await);
    let (client, connection) = connect(&server).await;
    let mut streams = Vec::new();
    for _ in 0..8 {
        streams.push(open(&client).await);
    }
    for _ in 0..CALLS {
        for (calls, _) in &mut streams {
            // Once it is cut there is nothing to send on.
            let _ = send(calls, &call);
        }
    }
    let ended = within(connection).await.expect("no panic");
    let ended = ended.expect_err("it is cut");
    // The reason gets lost where the client was still sending.
    let said = ended.is_go_away() && ended.reason() == Some(Reason::ENHANCE_YOUR_CALM);
    assert!(said || ended.is_io(), "{ended}");
    for (_, mut answers) in streams {
        let end = loop {
            match within(answers.data()).await {
                Some(Ok(_)) => {}
                end => break end,
            }
        };
        assert!(matches!(end, Some(Err(_))), "it looks complete");
    }
    assert!(is_served(&other.0).await, "another's connection");
    create(&server.client(), &key()).await;
    other.1.abort();
    server.stop().await;
}
