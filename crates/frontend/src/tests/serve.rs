use std::time::Duration;

use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::oneshot;
use tokio::time::timeout;

use super::fake::Rpc;
use super::*;

/// Below every limit that would end what is waited for as well.
const SOON: Duration = Duration::from_secs(9);

/// The site behind a socket; its address, and what stops it.
async fn listen(
    site: &Site,
) -> (
    std::net::SocketAddr,
    oneshot::Sender<()>,
    tokio::task::JoinHandle<()>,
) {
    let listener = TcpListener::bind("127.0.0.1:0").await.expect("a port");
    let address = listener.local_addr().expect("bound");
    let (stop, stopped) = oneshot::channel::<()>();
    let frontend = site.frontend.clone();
    let served = tokio::spawn(async move {
        let stopped = async { _ = stopped.await };
        crate::serve(frontend, listener, stopped)
            .await
            .expect("served");
    });
    (address, stop, served)
}

async fn read_all(stream: &mut TcpStream) -> std::io::Result<String> {
    let mut bytes = Vec::new();
    stream.read_to_end(&mut bytes).await?;
    Ok(String::from_utf8_lossy(&bytes).into_owned())
}

/// Goal: a client that sends everything before it reads sees the refusal, not a reset.
/// Method: send far more than the sockets' buffers hold, then read. Covers SZ-07.
#[tokio::test]
async fn a_client_that_is_still_sending_sees_the_413() {
    let site = Site::start().await;
    let (address, _stop, _served) = listen(&site).await;
    for head in [
        "Content-Length: 33554432\r\n\r\n".to_owned(),
        // One chunk of the same size.
        "Transfer-Encoding: chunked\r\n\r\n2000000\r\n".to_owned(),
    ] {
        for path in ["/api/v1/pastes", "/no/such/page"] {
            let mut stream = TcpStream::connect(address).await.expect("connected");
            let key = site.new_key();
            let request =
                format!("POST {path} HTTP/1.1\r\nHost: x\r\nIdempotency-Key: {key}\r\n{head}");
            stream.write_all(request.as_bytes()).await.expect("sent");
            let piece = vec![b'x'; 1 << 20];
            for _ in 0..32 {
                stream
                    .write_all(&piece)
                    .await
                    .expect("the connection stays open");
            }
            if head.contains("chunked") {
                stream
                    .write_all(b"\r\n0\r\n\r\n")
                    .await
                    .expect("the connection stays open");
            }
            let answer = timeout(SOON, read_all(&mut stream)).await;
            let answer = answer.expect("closed").expect("no reset");
            let status = if path == "/api/v1/pastes" {
                "413"
            } else {
                "404"
            };
            assert!(
                answer.starts_with(&format!("HTTP/1.1 {status} ")),
                "{answer}"
            );
            assert!(
                answer.to_lowercase().contains("connection: close"),
                "{answer}"
            );
        }
    }
}

#[tokio::test]
async fn a_client_that_waits_for_100_continue_is_refused_before_it_sends() {
    let site = Site::start().await;
    let (address, _stop, _served) = listen(&site).await;
    let mut stream = TcpStream::connect(address).await.expect("connected");
    let key = site.new_key();
    let request = format!(
        "POST /api/v1/pastes HTTP/1.1\r\nHost: x\r\nIdempotency-Key: {key}\r\n\
         Expect: 100-continue\r\nContent-Length: 33554432\r\n\r\n"
    );
    stream.write_all(request.as_bytes()).await.expect("sent");
    let answer = timeout(SOON, read_all(&mut stream)).await;
    let answer = answer.expect("closed at once").expect("no reset");
    assert!(answer.starts_with("HTTP/1.1 413 "), "{answer}");
    assert!(!answer.contains("100 Continue"), "{answer}");
}

#[tokio::test]
async fn links_start_with_the_bound_address_and_never_with_the_host_header() {
    let mut site = Site::start().await;
    let client = Client::new(Options::new(Seeds::Fixed(vec![site.shard.address.clone()])));
    let bodies = Bodies::local(site.dir.path()).expect("a store");
    let entropy = Arc::new(SeededEntropy::new(1));
    site.frontend = Frontend::new(Config::default(), client, bodies, entropy).expect("valid");
    let (address, _stop, _served) = listen(&site).await;
    let mut stream = TcpStream::connect(address).await.expect("connected");
    let key = site.new_key();
    let request = format!(
        "POST /api/v1/pastes HTTP/1.1\r\nHost: evil.example\r\nX-Forwarded-Host: evil.example\r\n\
         Idempotency-Key: {key}\r\nConnection: close\r\nContent-Length: 2\r\n\r\nhi"
    );
    stream.write_all(request.as_bytes()).await.expect("sent");
    let answer = read_all(&mut stream).await.expect("answered");
    assert!(
        answer.contains(&format!("\"url\":\"http://{address}/")),
        "{answer}"
    );
    assert!(!answer.contains("evil"), "{answer}");
}

#[tokio::test]
async fn a_stop_finishes_what_is_in_flight_and_does_not_wait_for_the_silent() {
    let site = Site::start().await;
    let (id, _) = site.paste("hello").await;
    let (address, stop, served) = listen(&site).await;
    let held = site.shard.hold(Rpc::Get);
    // Neither a connection without a word nor one between requests holds the stop up.
    let _silent = TcpStream::connect(address).await.expect("connected");
    let mut busy = TcpStream::connect(address).await.expect("connected");
    let request = format!("GET /{id}/raw HTTP/1.1\r\nHost: x\r\n\r\n");
    busy.write_all(request.as_bytes()).await.expect("sent");
    held.came().await;
    stop.send(()).expect("serving");
    held.open();
    let answer = read_all(&mut busy).await.expect("answered");
    assert!(
        answer.starts_with("HTTP/1.1 200 ") && answer.ends_with("hello"),
        "{answer}"
    );
    timeout(SOON, served)
        .await
        .expect("ended in time")
        .expect("no panic");
    assert!(
        TcpStream::connect(address).await.is_err(),
        "nobody listens any more"
    );
}

/// A connection to a frontend whose clock runs as fast as nothing happens.
async fn connect_paused(
    site: &Site,
) -> (TcpStream, oneshot::Sender<()>, tokio::task::JoinHandle<()>) {
    let (address, stop, served) = listen(site).await;
    (
        TcpStream::connect(address).await.expect("connected"),
        stop,
        served,
    )
}

#[tokio::test(start_paused = true)]
async fn a_connection_that_says_nothing_is_closed() {
    let site = Site::start().await;
    let (mut silent, _stop, _served) = connect_paused(&site).await;
    let started = tokio::time::Instant::now();
    assert_eq!(read_all(&mut silent).await.expect("closed"), "");
    assert!(started.elapsed() >= crate::serve::HEAD_DEADLINE);

    // The same after an answer.
    let (mut idle, _stop, _served) = connect_paused(&site).await;
    idle.write_all(b"GET /healthz HTTP/1.1\r\nHost: x\r\n\r\n")
        .await
        .expect("sent");
    assert!(
        read_all(&mut idle)
            .await
            .expect("closed")
            .ends_with("alive\n")
    );
}

#[tokio::test(start_paused = true)]
async fn a_body_that_does_not_arrive_costs_the_deadline() {
    let site = Site::start().await;
    let (mut stream, _stop, _served) = connect_paused(&site).await;
    let key = site.new_key();
    let request = format!(
        "POST /api/v1/pastes HTTP/1.1\r\nHost: x\r\nIdempotency-Key: {key}\r\n\
         Content-Length: 10\r\n\r\nhalf"
    );
    stream.write_all(request.as_bytes()).await.expect("sent");
    let answer = read_all(&mut stream).await.expect("answered");
    assert!(answer.starts_with("HTTP/1.1 408 "), "{answer}");
    assert!(answer.contains("nothing was saved"), "{answer}");
}

#[tokio::test(start_paused = true)]
async fn a_stop_does_not_wait_longer_than_its_bound() {
    let site = Site::start().await;
    let (mut stream, stop, served) = connect_paused(&site).await;
    let key = site.new_key();
    let request = format!(
        "POST /api/v1/pastes HTTP/1.1\r\nHost: x\r\nIdempotency-Key: {key}\r\n\
         Content-Length: 10\r\n\r\nhalf"
    );
    stream.write_all(request.as_bytes()).await.expect("sent");
    tokio::time::sleep(Duration::from_secs(1)).await;
    let stopped = tokio::time::Instant::now();
    stop.send(()).expect("serving");
    served.await.expect("no panic");
    let took = stopped.elapsed();
    let second = Duration::from_secs(1);
    assert!(
        took >= crate::DRAIN_MAX && took < crate::DRAIN_MAX + second,
        "{took:?}"
    );
}

#[tokio::test(start_paused = true)]
async fn a_client_that_stops_reading_is_dropped() {
    let config = Config {
        body_size_max: 10 << 20,
        ..Config::default()
    };
    let site = Site::with(config).await;
    let started = tokio::time::Instant::now();
    let listener = TcpListener::bind("127.0.0.1:0").await.expect("a port");
    let _client = TcpStream::connect(listener.local_addr().expect("bound"))
        .await
        .expect("connected");
    let (socket, _) = listener.accept().await.expect("accepted");
    let mut socket = crate::stall::Stalling::new(socket);
    // More than the sockets' buffers hold.
    let err = socket
        .write_all(&vec![b'x'; 64 << 20])
        .await
        .expect_err("nobody reads");
    assert_eq!(err.kind(), std::io::ErrorKind::TimedOut);
    assert!(started.elapsed() >= crate::stall::STALL_MAX);
    drop(site);
}
