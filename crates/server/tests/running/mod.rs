//! One shard process's worth of server, in the test's process.

#![allow(dead_code, reason = "each test binary uses its part")]

use std::net::SocketAddr;
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use ostraca_client::{Begun, Client, CreateAnswer, Error, NewPaste, Options, Seeds};
use ostraca_io::{Clock as _, Entropy as _, ManualClock, SystemEntropy};
use ostraca_proto::v1::paste_service_client::PasteServiceClient;
use ostraca_server::{DataDir, ServeError, ShardOptions, Told, serve_shard};
use ostraca_types::{
    BodyDigest, IdempotencyKey, Lifetime, PasteId, RequestDigest, ShardId, Slot, Timestamp, Title,
};
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::sync::oneshot;
use tokio::task::JoinHandle;
use tonic::transport::{Channel, Endpoint};

pub(crate) fn new() -> (tempfile::TempDir, ManualClock) {
    (
        tempfile::tempdir().expect("a directory"),
        ManualClock::new(START),
    )
}

pub(crate) const START: Timestamp = Timestamp(1_790_000_000_000);
pub(crate) const HOUR: Duration = Duration::from_secs(3600);

/// One shard process's worth of server, in this process.
pub(crate) struct Running {
    pub(crate) address: SocketAddr,
    metrics_address: SocketAddr,
    stop: oneshot::Sender<()>,
    ended: JoinHandle<Result<(), ServeError>>,
}

pub(crate) async fn start(
    dir: &Path,
    shard: u16,
    clock: &ManualClock,
) -> Result<Running, ServeError> {
    let data = DataDir::init(dir, None, &SystemEntropy).expect("a data directory");
    let listener = std::net::TcpListener::bind("127.0.0.1:0").expect("a free port");
    let metrics = std::net::TcpListener::bind("127.0.0.1:0").expect("a free port");
    let metrics_address = metrics.local_addr().expect("an address");
    let options = ShardOptions {
        storage: ostraca_io::RealStorage,
        lead: ostraca_server::Lead::IfFree,
        data,
        shard: ShardId(shard),
        listener,
        metrics: Some(metrics),
        clock: Arc::new(clock.clone()),
        entropy: Arc::new(SystemEntropy),
    };
    let (stop, stopped) = oneshot::channel::<()>();
    let (ready, is_ready) = oneshot::channel();
    let mut ended = tokio::spawn(async move {
        let mut ready = Some(ready);
        let report = |told| match (told, ready.take()) {
            (Told::Leads(address), Some(ready)) => {
                ready.send(address).expect("somebody waits");
            }
            other => panic!("{other:?}"),
        };
        serve_shard(options, report, async { drop(stopped.await) }).await
    });
    tokio::select! {
        Ok(address) = is_ready => Ok(Running { address, metrics_address, stop, ended }),
        failed = &mut ended => Err(failed.expect("no panic").expect_err("it ended before it served")),
    }
}

impl Running {
    pub(crate) fn client(&self) -> Client {
        Client::new(Options::new(Seeds::Fixed(vec![self.address.to_string()])))
    }

    pub(crate) async fn raw(&self) -> PasteServiceClient<Channel> {
        let address = format!("http://{}", self.address);
        PasteServiceClient::connect(address)
            .await
            .expect("a connection")
    }

    pub(crate) fn channel(&self) -> Channel {
        let endpoint = Endpoint::from_shared(format!("http://{}", self.address));
        endpoint.expect("an address").connect_lazy()
    }

    /// What a scrape gets.
    pub(crate) async fn metrics(&self) -> String {
        let mut socket = tokio::net::TcpStream::connect(self.metrics_address)
            .await
            .expect("there");
        let request = "GET /metrics HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n";
        socket.write_all(request.as_bytes()).await.expect("sent");
        let mut text = String::new();
        socket.read_to_string(&mut text).await.expect("an answer");
        assert!(text.starts_with("HTTP/1.1 200"), "{text}");
        text
    }

    pub(crate) async fn stop(self) {
        drop(self.stop);
        self.ended.await.expect("no panic").expect("a clean end");
    }
}

/// A key on a slot of shard 0, which has the lower half.
pub(crate) fn key() -> IdempotencyKey {
    loop {
        let key = IdempotencyKey::mint(|bytes| SystemEntropy.fill(bytes));
        if key.slot() < Slot(128) {
            return key;
        }
    }
}

pub(crate) fn paste() -> NewPaste {
    NewPaste {
        lifetime: Some(Lifetime::parse("10m").expect("a lifetime")),
        syntax: None,
        title: Some(Title::parse("A title").expect("a title")),
        body_size: 5,
        body_digest: BodyDigest([9; 32]),
    }
}

pub(crate) const REQUEST: RequestDigest = RequestDigest([1; 32]);

pub(crate) async fn create(client: &Client, key: &IdempotencyKey) -> Result<CreateAnswer, Error> {
    match client.begin_create(key, &REQUEST).await? {
        Begun::New(ticket) => client.commit_create(key, &REQUEST, &ticket, &paste()).await,
        Begun::Stored(answer) => Ok(answer),
    }
}

/// Moves the clock and waits until the shard has made it durable.
pub(crate) async fn advance(running: &Running, clock: &ManualClock, by: Duration) {
    clock.advance(by);
    let client = running.client();
    loop {
        let status = client
            .status_of(&running.address.to_string())
            .await
            .expect("a status");
        if status.now_ms >= clock.wall().0 {
            return;
        }
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
}

/// A paste's whole life, short as it is.
pub(crate) async fn create_and_delete(running: &Running) -> PasteId {
    let client = running.client();
    let answer = create(&client, &key()).await.expect("created");
    let deleted = client.delete_paste(&answer.paste_id, &answer.delete_token);
    deleted.await.expect("deleted");
    answer.paste_id
}
