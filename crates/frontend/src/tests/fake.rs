//! A shard that keeps its rows in a map: enough of the gRPC API for the handlers.

use std::collections::HashMap;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use ostraca_io::{Entropy as _, SeededEntropy};
use ostraca_proto::v1::{self, cluster_service_server, paste_service_server};
use ostraca_types::contract::LIFETIME_DEFAULT;
use ostraca_types::{DeleteToken, IdempotencyKey, PasteId, Reason, Slot};
use tokio::net::TcpListener;
use tokio::sync::Semaphore;
use tokio_stream::Empty;
use tokio_stream::wrappers::TcpListenerStream;
use tonic::{Code, Request, Response, Status, Streaming};
use tonic_types::{ErrorDetails, StatusExt as _};

/// Which call fails next, or waits.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub(super) enum Rpc {
    Begin,
    Commit,
    Get,
    Delete,
}

#[derive(Default)]
struct Rows {
    /// By key: the request's digest and its answer.
    keys: HashMap<String, (Vec<u8>, v1::CreateAnswer)>,
    pastes: HashMap<String, (v1::Paste, String)>,
    failures: HashMap<Rpc, Status>,
    gates: HashMap<Rpc, Arc<Gate>>,
    commits: Vec<v1::CommitCreateRequest>,
}

/// Holds the calls that come to it until it is opened.
pub(super) struct Gate {
    came: Semaphore,
    open: Semaphore,
}

impl Gate {
    /// Waits until one more call came.
    pub(super) async fn came(&self) {
        self.came.acquire().await.expect("never closed").forget();
    }

    pub(super) fn open(&self) {
        self.open.close();
    }
}

pub(super) struct FakeShard {
    pub(super) address: String,
    pub(super) now_ms: AtomicU64,
    rows: Mutex<Rows>,
    entropy: SeededEntropy,
}

pub(super) fn refusal(code: Code, reason: Reason) -> Status {
    let metadata = HashMap::from([("field".to_owned(), "title".to_owned())]);
    let mut details = ErrorDetails::with_error_info(reason.as_str(), "ostraca.dev", metadata);
    details.set_retry_info(Some(Duration::from_secs(3)));
    Status::with_error_details(code, "as the shard says", details)
}

impl FakeShard {
    pub(super) async fn start() -> Arc<Self> {
        let listener = TcpListener::bind("127.0.0.1:0").await.expect("a port");
        let shard = Arc::new(Self {
            address: listener.local_addr().expect("bound").to_string(),
            now_ms: AtomicU64::new(1_790_000_000_000),
            rows: Mutex::default(),
            entropy: SeededEntropy::new(99),
        });
        let server = tonic::transport::Server::builder()
            .add_service(paste_service_server::PasteServiceServer::from_arc(
                Arc::clone(&shard),
            ))
            .add_service(cluster_service_server::ClusterServiceServer::from_arc(
                Arc::clone(&shard),
            ));
        tokio::spawn(server.serve_with_incoming(TcpListenerStream::new(listener)));
        shard
    }

    pub(super) fn fail(&self, rpc: Rpc, status: Option<Status>) {
        let failures = &mut self.rows.lock().expect("no panic").failures;
        match status {
            Some(status) => failures.insert(rpc, status),
            None => failures.remove(&rpc),
        };
    }

    pub(super) fn hold(&self, rpc: Rpc) -> Arc<Gate> {
        let gate = Arc::new(Gate {
            came: Semaphore::new(0),
            open: Semaphore::new(0),
        });
        let gates = &mut self.rows.lock().expect("no panic").gates;
        gates.insert(rpc, Arc::clone(&gate));
        gate
    }

    pub(super) fn commits(&self) -> Vec<v1::CommitCreateRequest> {
        self.rows.lock().expect("no panic").commits.clone()
    }

    pub(super) fn pastes(&self) -> usize {
        self.rows.lock().expect("no panic").pastes.len()
    }

    async fn come(&self, rpc: Rpc) -> Result<(), Status> {
        let gate = self.rows.lock().expect("no panic").gates.get(&rpc).cloned();
        if let Some(gate) = gate {
            gate.came.add_permits(1);
            // There are no permits: it ends by being closed.
            drop(gate.open.acquire().await);
        }
        match self.rows.lock().expect("no panic").failures.get(&rpc) {
            Some(status) => Err(status.clone()),
            None => Ok(()),
        }
    }

    fn stored(&self, key: &str, digest: &[u8]) -> Result<Option<v1::CreateAnswer>, Status> {
        match self.rows.lock().expect("no panic").keys.get(key) {
            None => Ok(None),
            Some((first, answer)) if first == digest => Ok(Some(v1::CreateAnswer {
                replayed: true,
                ..answer.clone()
            })),
            Some(_) => Err(refusal(Code::AlreadyExists, Reason::KeyReused)),
        }
    }
}

#[tonic::async_trait]
impl paste_service_server::PasteService for FakeShard {
    async fn begin_create(
        &self,
        request: Request<v1::BeginCreateRequest>,
    ) -> Result<Response<v1::BeginCreateResponse>, Status> {
        use v1::begin_create_response::Outcome;
        self.come(Rpc::Begin).await?;
        let request = request.into_inner();
        let outcome = match self.stored(&request.idempotency_key, &request.request_digest)? {
            Some(answer) => Outcome::Answer(answer),
            None => {
                let key = IdempotencyKey::parse(&request.idempotency_key).expect("a key");
                let id = PasteId::mint(key.slot(), |bytes| self.entropy.fill(bytes));
                Outcome::Ticket(v1::CreateTicket {
                    ticket: id.to_string().into_bytes(),
                    paste_id: id.to_string(),
                    object_key: id.object_key(),
                })
            }
        };
        Ok(Response::new(v1::BeginCreateResponse {
            outcome: Some(outcome),
            position: None,
        }))
    }

    async fn commit_create(
        &self,
        request: Request<v1::CommitCreateRequest>,
    ) -> Result<Response<v1::CommitCreateResponse>, Status> {
        let request = request.into_inner();
        self.rows
            .lock()
            .expect("no panic")
            .commits
            .push(request.clone());
        self.come(Rpc::Commit).await?;
        if let Some(answer) = self.stored(&request.idempotency_key, &request.request_digest)? {
            return Ok(Response::new(v1::CommitCreateResponse {
                answer: Some(answer),
                position: None,
            }));
        }
        let id =
            PasteId::parse(std::str::from_utf8(&request.ticket).expect("text")).expect("an id");
        let now_ms = self.now_ms.load(Ordering::Relaxed);
        let secs = match request.lifetime_seconds {
            0 => LIFETIME_DEFAULT.as_secs(),
            secs => u64::from(secs),
        };
        let token = DeleteToken::mint(|bytes| self.entropy.fill(bytes)).expose_text();
        let answer = v1::CreateAnswer {
            paste_id: id.to_string(),
            expires_at_ms: now_ms + secs * 1000,
            delete_token: token.clone(),
            replayed: false,
        };
        let paste = v1::Paste {
            paste_id: id.to_string(),
            created_at_ms: now_ms,
            expires_at_ms: answer.expires_at_ms,
            now_ms,
            body_size: request.body_size,
            body_digest: request.body_digest,
            object_key: id.object_key(),
            syntax: request.syntax,
            title: request.title,
        };
        let mut rows = self.rows.lock().expect("no panic");
        rows.keys.insert(
            request.idempotency_key,
            (request.request_digest, answer.clone()),
        );
        rows.pastes.insert(id.to_string(), (paste, token));
        Ok(Response::new(v1::CommitCreateResponse {
            answer: Some(answer),
            position: None,
        }))
    }

    type StreamCreatesStream = Empty<Result<v1::StreamCreatesResponse, Status>>;

    async fn stream_creates(
        &self,
        _: Request<Streaming<v1::StreamCreatesRequest>>,
    ) -> Result<Response<Self::StreamCreatesStream>, Status> {
        Ok(Response::new(tokio_stream::empty()))
    }

    async fn get_paste(
        &self,
        request: Request<v1::GetPasteRequest>,
    ) -> Result<Response<v1::GetPasteResponse>, Status> {
        self.come(Rpc::Get).await?;
        let now_ms = self.now_ms.load(Ordering::Relaxed);
        let rows = self.rows.lock().expect("no panic");
        match rows.pastes.get(&request.into_inner().paste_id) {
            Some((paste, _)) if now_ms < paste.expires_at_ms => {
                let paste = v1::Paste {
                    now_ms,
                    ..paste.clone()
                };
                Ok(Response::new(v1::GetPasteResponse {
                    paste: Some(paste),
                    position: None,
                }))
            }
            _ => Err(refusal(Code::NotFound, Reason::PasteNotFound)),
        }
    }

    async fn delete_paste(
        &self,
        request: Request<v1::DeletePasteRequest>,
    ) -> Result<Response<v1::DeletePasteResponse>, Status> {
        self.come(Rpc::Delete).await?;
        let request = request.into_inner();
        let mut rows = self.rows.lock().expect("no panic");
        match rows.pastes.get(&request.paste_id) {
            None => Err(refusal(Code::NotFound, Reason::PasteNotFound)),
            Some((_, token)) if *token != request.delete_token => {
                Err(refusal(Code::PermissionDenied, Reason::TokenRejected))
            }
            Some(_) => {
                rows.pastes.remove(&request.paste_id);
                Ok(Response::new(v1::DeletePasteResponse { position: None }))
            }
        }
    }
}

#[tonic::async_trait]
impl cluster_service_server::ClusterService for FakeShard {
    async fn get_routing(
        &self,
        _: Request<v1::GetRoutingRequest>,
    ) -> Result<Response<v1::GetRoutingResponse>, Status> {
        let slots = Slot::all().map(|slot| u32::from(slot.0)).collect();
        let route = v1::ShardRoute {
            shard: 0,
            address: self.address.clone(),
            slots,
            epoch: 1,
        };
        Ok(Response::new(v1::GetRoutingResponse {
            version: 1,
            shards: vec![route],
            cluster_id: String::new(),
        }))
    }

    async fn confirm_clock(
        &self,
        _: Request<v1::ConfirmClockRequest>,
    ) -> Result<Response<v1::ConfirmClockResponse>, Status> {
        Err(Status::unimplemented("not of this test"))
    }

    async fn get_status(
        &self,
        _: Request<v1::GetStatusRequest>,
    ) -> Result<Response<v1::GetStatusResponse>, Status> {
        Ok(Response::new(v1::GetStatusResponse::default()))
    }
}
