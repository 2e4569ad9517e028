//! A shard that answers as a test says, and counts what it was asked.

use std::collections::HashMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use ostraca_client::{Begun, Client, CreateAnswer, Error, NewPaste, Options, Seeds, Ticket};
use ostraca_io::{Entropy as _, SystemEntropy};
use ostraca_proto::v1::{self, cluster_service_server, paste_service_server};
use ostraca_types::{
    BodyDigest, DeleteToken, IdempotencyKey, PasteId, Reason, RequestDigest, Slot, Title,
};
use parking_lot::Mutex;
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::{mpsc, watch};
use tokio_stream::wrappers::ReceiverStream;
use tonic::transport::Server;
use tonic::transport::server::TcpIncoming;
use tonic::{Code, Request, Response, Status, Streaming};
use tonic_types::{ErrorDetails, StatusExt as _};
use v1::stream_creates_request::Call;
use v1::stream_creates_response::Answer;

pub(crate) const REQUEST: RequestDigest = RequestDigest([1; 32]);
pub(crate) const TITLE: &str = "my-diary";
const CLUSTER: &str = "00112233445566778899aabbccddeeff";

/// What happens to calls.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Behaviour {
    Answer,
    /// As a proxy says it, or tonic: without details.
    Unavailable,
    /// As a shard says it.
    Refuse(Code, Reason),
    /// Another shard leads the slot; its address, where known.
    WrongShard(Option<String>),
    /// Another process leads the shard: its address, and under which epoch, 0 if that is not said.
    NotLeader(String, u64),
    /// By a table of this version the slot is this shard's, which is led there.
    Misdirected(u64, u16, String),
    /// The call arrives and is never answered.
    Hang,
    /// As a stream: begins are answered and commits are not.
    HangCommits,
    /// The call arrives, and the connection is reset.
    Reset,
}

/// How often each call arrived.
#[derive(Debug, Default)]
pub(crate) struct Counts {
    pub(crate) begins: AtomicUsize,
    pub(crate) commits: AtomicUsize,
    pub(crate) routings: AtomicUsize,
    pub(crate) connections: AtomicUsize,
}

/// Begins and commits that arrived.
pub(crate) fn creates(fake: &Fake) -> (usize, usize) {
    let Counts {
        begins, commits, ..
    } = &fake.counts;
    (
        begins.load(Ordering::SeqCst),
        commits.load(Ordering::SeqCst),
    )
}

pub(crate) struct Fake {
    pub(crate) address: String,
    pub(crate) counts: Counts,
    behaviour: Mutex<Behaviour>,
    routing: Mutex<Routing>,
    /// Whether GetRouting waits.
    routing_waits: watch::Sender<bool>,
    /// Whether GetRouting's answers, as they were when it was asked, are on their way.
    answers_wait: watch::Sender<bool>,
    /// Whether begins and commits wait before anything happens to them.
    calls_wait: watch::Sender<bool>,
    /// Changed to end every connection.
    ends: watch::Sender<Ends>,
}

/// Who leads all slots, and in which cluster.
#[derive(Clone)]
struct Routing {
    version: u64,
    epoch: u64,
    leader: String,
    cluster: String,
}

/// How connections end: those that were made before the latest change.
#[derive(Debug, Clone, Copy)]
enum Ends {
    Reset,
    /// Nothing comes through any more, as when a machine is gone.
    Silent,
}

impl Fake {
    pub(crate) async fn start() -> Arc<Self> {
        let inner = TcpListener::bind("127.0.0.1:0").await.expect("a port");
        let outer = TcpListener::bind("127.0.0.1:0").await.expect("a port");
        let address = outer.local_addr().expect("bound").to_string();
        let fake = Arc::new(Self {
            routing: Mutex::new(Routing {
                version: 1,
                epoch: 1,
                leader: address.clone(),
                cluster: CLUSTER.to_owned(),
            }),
            routing_waits: watch::Sender::new(false),
            answers_wait: watch::Sender::new(false),
            calls_wait: watch::Sender::new(false),
            address,
            counts: Counts::default(),
            behaviour: Mutex::new(Behaviour::Answer),
            ends: watch::Sender::new(Ends::Reset),
        });
        let server = inner.local_addr().expect("bound");
        let paste = paste_service_server::PasteServiceServer::from_arc(Arc::clone(&fake));
        let cluster = cluster_service_server::ClusterServiceServer::from_arc(Arc::clone(&fake));
        let router = Server::builder().add_service(paste).add_service(cluster);
        // As a shard sets it: else answers on a connection that was idle come 40 ms late.
        let inner = TcpIncoming::from(inner).with_nodelay(Some(true));
        tokio::spawn(router.serve_with_incoming(inner));
        let relay = Arc::clone(&fake);
        tokio::spawn(async move {
            while let Ok((client, _)) = outer.accept().await {
                relay.counts.connections.fetch_add(1, Ordering::SeqCst);
                let ends = relay.ends.subscribe();
                tokio::spawn(carry(client, server.to_string(), ends));
            }
        });
        fake
    }

    pub(crate) fn behave(&self, behaviour: Behaviour) {
        *self.behaviour.lock() = behaviour;
    }

    /// What GetRouting answers from now on: `leader` leads all slots, and has just become it.
    pub(crate) fn route(&self, version: u64, leader: &str) {
        let epoch = self.routing.lock().epoch + 1;
        self.route_at(version, epoch, leader);
    }

    /// The same with the epoch under which it leads; 0 if that is not known.
    pub(crate) fn route_at(&self, version: u64, epoch: u64, leader: &str) {
        let mut routing = self.routing.lock();
        routing.version = version;
        routing.epoch = epoch;
        routing.leader = leader.to_owned();
    }

    /// Which cluster GetRouting says that it is of; an earlier build says nothing.
    pub(crate) fn belong_to(&self, cluster: &str) {
        self.routing.lock().cluster = cluster.to_owned();
    }

    /// Whether GetRouting waits until this says otherwise.
    pub(crate) fn hold_routing(&self, waits: bool) {
        self.routing_waits.send_replace(waits);
    }

    /// Whether GetRouting's answers are late: they say what was so when it was asked.
    pub(crate) fn hold_answers(&self, waits: bool) {
        self.answers_wait.send_replace(waits);
    }

    /// Whether begins and commits wait, and what happens to them then is told later.
    pub(crate) fn hold_calls(&self, waits: bool) {
        self.calls_wait.send_replace(waits);
    }

    /// Resets every connection.
    pub(crate) fn reset(&self) {
        self.ends.send_replace(Ends::Reset);
    }

    /// Nothing comes through any connection that there is.
    pub(crate) fn silence(&self) {
        self.ends.send_replace(Ends::Silent);
    }

    fn not_leader(&self, address: &str, epoch: u64) -> HashMap<String, String> {
        pointer(self.routing.lock().version, 0, address, epoch)
    }

    async fn come(&self, count: &AtomicUsize) -> Result<(), Status> {
        count.fetch_add(1, Ordering::SeqCst);
        let mut waits = self.calls_wait.subscribe();
        waits.wait_for(|waits| !waits).await.expect("it is there");
        let behaviour = self.behaviour.lock().clone();
        match behaviour {
            Behaviour::Answer => Ok(()),
            Behaviour::Unavailable => Err(Status::unavailable("by a proxy")),
            Behaviour::Refuse(code, reason) => Err(refusal(code, reason, HashMap::new())),
            Behaviour::WrongShard(address) => Err(refusal(
                Code::FailedPrecondition,
                Reason::WrongShard,
                wrong_shard(address),
            )),
            Behaviour::NotLeader(address, epoch) => Err(refusal(
                Code::FailedPrecondition,
                Reason::NotLeader,
                self.not_leader(&address, epoch),
            )),
            Behaviour::Misdirected(version, shard, address) => Err(refusal(
                Code::FailedPrecondition,
                Reason::WrongShard,
                pointer(version, shard, &address, 9),
            )),
            Behaviour::Hang | Behaviour::HangCommits => std::future::pending().await,
            Behaviour::Reset => {
                self.reset();
                std::future::pending().await
            }
        }
    }
}

/// Carries one connection's bytes until it is to end, in the middle of whatever it carries.
async fn carry(mut client: TcpStream, server: String, mut ends: watch::Receiver<Ends>) {
    client.set_zero_linger().expect("a socket");
    let mut server = TcpStream::connect(server).await.expect("the server");
    for socket in [&client, &server] {
        socket.set_nodelay(true).expect("a socket");
    }
    tokio::select! {
        _ = tokio::io::copy_bidirectional(&mut client, &mut server) => {}
        _ = ends.changed() => {
            let end = *ends.borrow();
            if matches!(end, Ends::Silent) {
                // Held open until the test is over.
                std::future::pending::<()>().await;
            }
        }
    }
}

/// As a shard says where to go.
fn pointer(version: u64, shard: u16, address: &str, epoch: u64) -> HashMap<String, String> {
    let mut metadata = HashMap::from_iter([
        ("shard".to_owned(), shard.to_string()),
        ("routingVersion".to_owned(), version.to_string()),
        ("address".to_owned(), address.to_owned()),
    ]);
    if epoch > 0 {
        metadata.insert("epoch".to_owned(), epoch.to_string());
    }
    metadata
}

fn wrong_shard(address: Option<String>) -> HashMap<String, String> {
    let address = address.map(|address| ("address".to_owned(), address));
    HashMap::from_iter(address)
}

fn refusal(code: Code, reason: Reason, metadata: HashMap<String, String>) -> Status {
    let details = ErrorDetails::with_error_info(reason.as_str(), "ostraca.dev", metadata);
    Status::with_error_details(code, "as a shard says it", details)
}

fn ticket() -> v1::BeginCreateResponse {
    let id = PasteId::mint(Slot(7), |bytes| SystemEntropy.fill(bytes));
    v1::BeginCreateResponse {
        outcome: Some(v1::begin_create_response::Outcome::Ticket(
            v1::CreateTicket {
                ticket: b"ticket".to_vec(),
                paste_id: id.to_string(),
                object_key: id.object_key(),
            },
        )),
        position: None,
    }
}

fn committed() -> v1::CommitCreateResponse {
    let id = PasteId::mint(Slot(7), |bytes| SystemEntropy.fill(bytes));
    let token = DeleteToken::mint(|bytes| SystemEntropy.fill(bytes));
    v1::CommitCreateResponse {
        answer: Some(v1::CreateAnswer {
            paste_id: id.to_string(),
            expires_at_ms: 1,
            delete_token: token.expose_text(),
            replayed: false,
        }),
        position: None,
    }
}

#[tonic::async_trait]
impl paste_service_server::PasteService for Fake {
    async fn begin_create(
        &self,
        _: Request<v1::BeginCreateRequest>,
    ) -> Result<Response<v1::BeginCreateResponse>, Status> {
        self.come(&self.counts.begins).await?;
        Ok(Response::new(ticket()))
    }

    async fn commit_create(
        &self,
        _: Request<v1::CommitCreateRequest>,
    ) -> Result<Response<v1::CommitCreateResponse>, Status> {
        self.come(&self.counts.commits).await?;
        Ok(Response::new(committed()))
    }

    type StreamCreatesStream = ReceiverStream<Result<v1::StreamCreatesResponse, Status>>;

    async fn stream_creates(
        &self,
        request: Request<Streaming<v1::StreamCreatesRequest>>,
    ) -> Result<Response<Self::StreamCreatesStream>, Status> {
        let mut calls = request.into_inner();
        let (answers, receiver) = mpsc::channel(64);
        let behaviour = self.behaviour.lock().clone();
        let failure = match behaviour.clone() {
            Behaviour::WrongShard(address) => Some(v1::Failure {
                code: Code::FailedPrecondition.into(),
                reason: Reason::WrongShard.as_str().to_owned(),
                message: String::new(),
                retry_delay_ms: 0,
                metadata: wrong_shard(address),
            }),
            Behaviour::NotLeader(address, epoch) => Some(v1::Failure {
                code: Code::FailedPrecondition.into(),
                reason: Reason::NotLeader.as_str().to_owned(),
                message: String::new(),
                retry_delay_ms: 0,
                metadata: self.not_leader(&address, epoch),
            }),
            Behaviour::Answer | Behaviour::HangCommits => None,
            Behaviour::Hang => {
                // The stream opens; calls are read and not answered.
                tokio::spawn(async move {
                    while let Ok(Some(_)) = calls.message().await {}
                    drop(answers);
                });
                return Ok(Response::new(ReceiverStream::new(receiver)));
            }
            _ => {
                self.come(&self.counts.begins).await?;
                unreachable!("it fails")
            }
        };
        tokio::spawn(async move {
            while let Ok(Some(v1::StreamCreatesRequest { tag, call })) = calls.message().await {
                if behaviour == Behaviour::HangCommits && matches!(call, Some(Call::Commit(_))) {
                    continue;
                }
                let answer = match (&failure, call) {
                    (Some(failure), _) => Answer::Failure(failure.clone()),
                    (None, Some(Call::Commit(_))) => Answer::Commit(committed()),
                    (None, _) => Answer::Begin(ticket()),
                };
                let answer = Some(answer);
                let sent = answers.send(Ok(v1::StreamCreatesResponse { tag, answer }));
                if sent.await.is_err() {
                    return;
                }
            }
        });
        Ok(Response::new(ReceiverStream::new(receiver)))
    }

    async fn get_paste(
        &self,
        _: Request<v1::GetPasteRequest>,
    ) -> Result<Response<v1::GetPasteResponse>, Status> {
        Err(Status::unimplemented("not asked for"))
    }

    async fn delete_paste(
        &self,
        _: Request<v1::DeletePasteRequest>,
    ) -> Result<Response<v1::DeletePasteResponse>, Status> {
        Err(Status::unimplemented("not asked for"))
    }
}

#[tonic::async_trait]
impl cluster_service_server::ClusterService for Fake {
    async fn get_routing(
        &self,
        _: Request<v1::GetRoutingRequest>,
    ) -> Result<Response<v1::GetRoutingResponse>, Status> {
        self.counts.routings.fetch_add(1, Ordering::SeqCst);
        let mut waits = self.routing_waits.subscribe();
        waits.wait_for(|waits| !waits).await.expect("it is there");
        let routing = self.routing.lock().clone();
        let mut late = self.answers_wait.subscribe();
        late.wait_for(|waits| !waits).await.expect("it is there");
        let slots = Slot::all().map(|slot| u32::from(slot.0)).collect();
        let shards = vec![v1::ShardRoute {
            epoch: routing.epoch,
            shard: 0,
            address: routing.leader,
            slots,
        }];
        Ok(Response::new(v1::GetRoutingResponse {
            version: routing.version,
            shards,
            cluster_id: routing.cluster,
        }))
    }

    async fn get_status(
        &self,
        _: Request<v1::GetStatusRequest>,
    ) -> Result<Response<v1::GetStatusResponse>, Status> {
        Ok(Response::new(v1::GetStatusResponse::default()))
    }

    async fn confirm_clock(
        &self,
        _: Request<v1::ConfirmClockRequest>,
    ) -> Result<Response<v1::ConfirmClockResponse>, Status> {
        Err(Status::unimplemented("not asked for"))
    }
}

/// The kernel accepts for it, as it does for a process that is stopped; nobody answers.
pub(crate) struct Hung(
    pub(crate) String,
    #[expect(dead_code, reason = "held open")] std::net::TcpListener,
);

pub(crate) fn hung() -> Hung {
    let listener = std::net::TcpListener::bind("127.0.0.1:0").expect("a port");
    Hung(listener.local_addr().expect("bound").to_string(), listener)
}

/// An address where nobody listens.
pub(crate) fn closed() -> String {
    hung().0
}

pub(crate) fn client(seeds: &[&str], deadline: Duration) -> Client {
    let seeds = seeds.iter().map(|&seed| seed.to_owned()).collect();
    Client::new(Options {
        deadline,
        ..Options::new(Seeds::Fixed(seeds))
    })
}

pub(crate) fn key() -> IdempotencyKey {
    IdempotencyKey::mint(|bytes| SystemEntropy.fill(bytes))
}

pub(crate) fn paste() -> NewPaste {
    NewPaste {
        lifetime: None,
        syntax: None,
        title: Some(Title::parse(TITLE).expect("a title")),
        body_size: 5,
        body_digest: BodyDigest([9; 32]),
    }
}

/// A ticket from the fake, which must answer.
pub(crate) async fn begin(client: &Client, key: &IdempotencyKey) -> Ticket {
    match client.begin_create(key, &REQUEST).await {
        Ok(Begun::New(ticket)) => ticket,
        other => panic!("{other:?}"),
    }
}

pub(crate) async fn commit(
    client: &Client,
    key: &IdempotencyKey,
    ticket: &Ticket,
) -> Result<CreateAnswer, Error> {
    client.commit_create(key, &REQUEST, ticket, &paste()).await
}

/// Asks until there is an answer.
pub(crate) async fn poll<T>(what: &str, mut ask: impl AsyncFnMut() -> Option<T>) -> T {
    let asking = async {
        loop {
            if let Some(answer) = ask().await {
                return answer;
            }
            tokio::time::sleep(Duration::from_millis(10)).await;
        }
    };
    tokio::time::timeout(Duration::from_secs(30), asking)
        .await
        .unwrap_or_else(|_| panic!("not within 30 s: {what}"))
}
