//! The Rust client of ostraca's shards: what the frontend, the worker, the benches and the tests
//! use.
//!
//! - Every call goes to the shard that leads its slot, by a routing table that is fetched from any
//!   shard and refreshed when an answer says that it is stale, or a shard is out of reach. Of two
//!   leaders of a shard the one with the higher epoch is believed.
//! - Every call has a deadline, on a stream as well. What it meets before anything was sent is an
//!   error that says so.
//! - Calls to one shard share four connections and wait for a place beyond 480; a stream has a
//!   connection of its own. Beyond 4,096 that wait a call is refused at once as overloaded. A
//!   connection that failed, or was silent for a whole call, is not used for the next one.
//! - The table is fetched once for all calls that want it. That of another cluster than the first one
//!   heard of is not taken, for as long as the client lives.
//! - Nothing is retried (k17). A definite "wrong shard" refusal, after which nothing was appended,
//!   is followed once: that is routing.
//! - Secrets never reach an [`Error`].

mod error;
mod outbox;
mod pool;
mod routing;
mod stream;

use std::sync::Arc;
use std::time::Duration;

use ostraca_proto::v1;
use ostraca_types::{
    BodyDigest, ClusterId, DeleteToken, ErrorKind, IdempotencyKey, Lifetime, PasteId,
    RequestDigest, Slot, Syntax, Timestamp, Title,
};
use tokio::time::{Instant, timeout_at};
use tonic::transport::Channel;
use tonic::{Request, Response, Status};

pub use error::Error;
pub use outbox::{
    DeadLetter, DeadLetters, EndCause, Handle, Message, Messages, RECEIVE_MAX, RECEIVE_WAIT_MAX,
    Receive, Recorded, Settled,
};
pub use routing::{Seeds, Shard};
pub use stream::{CreateStream, StreamAnswer};

use pool::Place;
use routing::{Route, Router};
use v1::paste_service_client::PasteServiceClient;

/// How long a call may take, routing included, unless the options say otherwise.
pub const DEADLINE_DEFAULT: Duration = Duration::from_secs(5);

/// How often a call that waits for a place looks whether another process leads its slot by then.
const LEADER_LOOK: Duration = Duration::from_millis(50);

/// How much longer the shard works on a call than its caller waits.
const DEADLINE_GRACE: Duration = Duration::from_millis(100);

/// Where to find shards, and how long to wait for them.
#[derive(Debug, Clone)]
pub struct Options {
    /// Addresses to fetch the routing table from.
    pub seeds: Seeds,
    /// The deadline of each call.
    pub deadline: Duration,
    /// The cluster, where it is known. Otherwise it is the one that is heard of first.
    pub cluster: Option<ClusterId>,
}

impl Options {
    /// The default deadline.
    #[must_use]
    pub const fn new(seeds: Seeds) -> Self {
        Self {
            seeds,
            deadline: DEADLINE_DEFAULT,
            cluster: None,
        }
    }
}

/// What is saved besides the body.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct NewPaste {
    /// `None` for the default.
    pub lifetime: Option<Lifetime>,
    /// The language.
    pub syntax: Option<Syntax>,
    /// The title.
    pub title: Option<Title>,
    /// Bytes of the body.
    pub body_size: u64,
    /// SHA-256 of the body.
    pub body_digest: BodyDigest,
}

/// The right to commit one create.
#[derive(Clone)]
pub struct Ticket {
    ticket: Vec<u8>,
    /// The id that the paste will have.
    pub paste_id: PasteId,
    /// Where to PUT the body before the commit.
    pub object_key: String,
}

impl std::fmt::Debug for Ticket {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Ticket")
            .field("paste_id", &self.paste_id)
            .finish_non_exhaustive()
    }
}

/// What BeginCreate found.
#[derive(Debug, Clone)]
pub enum Begun {
    /// The key is new: PUT the body, then commit.
    New(Ticket),
    /// The key was committed for the same request.
    Stored(CreateAnswer),
}

/// The answer to a create, the first or a repeated one.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct CreateAnswer {
    /// The paste's id.
    pub paste_id: PasteId,
    /// The instant from which on it is gone.
    pub expires_at: Timestamp,
    /// The right to delete it.
    pub delete_token: DeleteToken,
    /// Whether this is the stored answer of an earlier create.
    pub replayed: bool,
}

/// A paste's row.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Paste {
    /// Its id.
    pub id: PasteId,
    /// When it was created, by shard time.
    pub created_at: Timestamp,
    /// The instant from which on it is gone.
    pub expires_at: Timestamp,
    /// Shard time when it was read; before `expires_at`.
    pub now: Timestamp,
    /// Bytes of the body.
    pub body_size: u64,
    /// SHA-256 of the body.
    pub body_digest: BodyDigest,
    /// Where the body is.
    pub object_key: String,
    /// The language.
    pub syntax: Option<Syntax>,
    /// The title.
    pub title: Option<Title>,
}

/// A client of one cluster. Clones share connections and the routing table.
#[derive(Debug, Clone)]
pub struct Client {
    router: Router,
    deadline: Duration,
}

/// Messages are at most 64 KiB by contract; the limit leaves room for error details.
const MESSAGE_SIZE_MAX: usize = 128 << 10;

impl Client {
    /// Connects to nothing yet: the first call does. Needs a tokio runtime from then on, which runs as
    /// long as the client is used: connections, and fetches of the table, live in the one of the call
    /// that began them.
    #[must_use]
    pub fn new(options: Options) -> Self {
        Self {
            router: Router::new(options.seeds, options.cluster),
            deadline: options.deadline,
        }
    }

    /// Looks the key up, and begins a create if it is new. Appends nothing.
    pub async fn begin_create(
        &self,
        key: &IdempotencyKey,
        digest: &RequestDigest,
    ) -> Result<Begun, Error> {
        let request = begin_request(key, digest);
        let response = self
            .routed(
                key.slot(),
                self.deadline,
                request,
                async |channel, request| service(channel).begin_create(request).await,
            )
            .await?;
        begun(response)
    }

    /// Commits a create whose body was PUT under the ticket's object key. On return the paste is
    /// durable. After an error of kind `Unknown` it may be, too: ask again with the same key.
    pub async fn commit_create(
        &self,
        key: &IdempotencyKey,
        digest: &RequestDigest,
        ticket: &Ticket,
        paste: &NewPaste,
    ) -> Result<CreateAnswer, Error> {
        let request = commit_request(key, digest, ticket, paste);
        let response = self
            .routed(
                key.slot(),
                self.deadline,
                request,
                async |channel, request| service(channel).commit_create(request).await,
            )
            .await?;
        answer(response.answer)
    }

    /// Reads a paste's row.
    pub async fn get_paste(&self, id: &PasteId) -> Result<Paste, Error> {
        let request = v1::GetPasteRequest {
            paste_id: id.to_string(),
        };
        let response = self
            .routed(
                id.slot(),
                self.deadline,
                request,
                async |channel, request| service(channel).get_paste(request).await,
            )
            .await?;
        paste(response.paste)
    }

    /// Ends a paste. On return its end is durable; the object goes later.
    pub async fn delete_paste(&self, id: &PasteId, token: &DeleteToken) -> Result<(), Error> {
        let request = v1::DeletePasteRequest {
            paste_id: id.to_string(),
            delete_token: token.expose_text(),
        };
        self.routed(
            id.slot(),
            self.deadline,
            request,
            async |channel, request| service(channel).delete_paste(request).await,
        )
        .await?;
        Ok(())
    }

    /// A stream of begins and commits to the shard that leads `slot`, with at most `in_flight`
    /// unanswered calls. After a stream that broke, or that answered WRONG_SHARD, a new one goes
    /// where the shard leads by then.
    pub async fn stream_creates(
        &self,
        slot: Slot,
        in_flight: usize,
    ) -> Result<CreateStream, Error> {
        let until = Instant::now() + self.deadline;
        let route = self.route(slot, until).await?;
        CreateStream::open(self.router.clone(), route, in_flight, self.deadline, until).await
    }

    /// The routing table as the cluster tells it now.
    pub async fn shards(&self) -> Result<Vec<Shard>, Error> {
        self.within(self.router.refresh()).await
    }

    /// The status of the shard process at `address` (host:port).
    pub async fn status_of(&self, address: &str) -> Result<v1::GetStatusResponse, Error> {
        let channel = pool::connect(address)?;
        let mut service = v1::cluster_service_client::ClusterServiceClient::new(channel);
        let status = async {
            service
                .get_status(v1::GetStatusRequest {})
                .await
                .map_err(Error::from_status)
        };
        Ok(self.within(status).await?.into_inner())
    }

    /// Tells the shard process at `address` (host:port) that its wall clock, which leapt ahead, is
    /// right. It cannot be taken back.
    pub async fn confirm_clock(&self, address: &str) -> Result<(), Error> {
        let channel = pool::connect(address)?;
        let mut service = v1::cluster_service_client::ClusterServiceClient::new(channel);
        let confirm = async {
            let request = self.router.mark(Request::new(v1::ConfirmClockRequest {}));
            service
                .confirm_clock(request)
                .await
                .map_err(Error::from_status)
        };
        self.within(confirm).await?;
        Ok(())
    }

    async fn within<T>(&self, call: impl Future<Output = Result<T, Error>>) -> Result<T, Error> {
        tokio::time::timeout(self.deadline, call)
            .await
            .unwrap_or_else(|_| Err(Error::deadline()))
    }

    /// Sends `request` to the leader of `slot`, and once more to where a definite refusal points.
    pub(crate) async fn routed<Q: Clone, A>(
        &self,
        slot: Slot,
        deadline: Duration,
        request: Q,
        send: impl AsyncFn(Channel, Request<Q>) -> Result<Response<A>, Status>,
    ) -> Result<A, Error> {
        let until = Instant::now() + deadline;
        let route = self.route(slot, until).await?;
        let (route, place) = self.placed(slot, route, until).await?;
        match self
            .once(&route, place, until, request.clone(), &send)
            .await
        {
            Err(refusal) if refusal.kind() == ErrorKind::NotLeader => {
                let reroute = timeout_at(until, self.router.reroute(slot, &route, refusal));
                let route = reroute.await.unwrap_or_else(|_| Err(no_route_yet()))?;
                let place = timeout_at(until, route.peer.place()).await;
                let place = place.unwrap_or_else(|_| Err(Error::no_place()))?;
                self.once(&route, place, until, request, &send).await
            }
            done => done,
        }
    }

    /// The way to the leader of `slot`, if it is found before `until`.
    pub(crate) async fn route(&self, slot: Slot, until: Instant) -> Result<Route, Error> {
        let found = timeout_at(until, self.router.route(slot)).await;
        found.unwrap_or_else(|_| Err(no_route_yet()))
    }

    /// A place for a call on the way to the leader of `slot`, before `until`. Where another one comes to
    /// lead while the call waits, as after a leader that hangs, it goes there: nothing was sent yet.
    async fn placed(
        &self,
        slot: Slot,
        mut route: Route,
        until: Instant,
    ) -> Result<(Route, Place), Error> {
        loop {
            let peer = Arc::clone(&route.peer);
            let mut place = std::pin::pin!(peer.place());
            // The wait goes on where the leader is the same: the places are given in order.
            route = loop {
                let look = until.min(Instant::now() + LEADER_LOOK);
                if let Ok(place) = timeout_at(look, place.as_mut()).await {
                    return Ok((route, place?));
                }
                if Instant::now() >= until {
                    return Err(Error::no_place());
                }
                match self.router.known(slot) {
                    Some(now) if !Arc::ptr_eq(&now.peer, &peer) => break now,
                    _ => {}
                }
            };
        }
    }

    /// Sends `request` over one connection, once.
    async fn once<Q, A>(
        &self,
        route: &Route,
        place: Place,
        until: Instant,
        request: Q,
        send: &impl AsyncFn(Channel, Request<Q>) -> Result<Response<A>, Status>,
    ) -> Result<A, Error> {
        let left = until.saturating_duration_since(Instant::now());
        if left.is_zero() {
            return Err(Error::no_place());
        }
        let mut request = self.router.mark(Request::new(request));
        // The server stops working on it when nobody waits any more. A little later than this side
        // does: tonic's own timer would call the missed deadline a cancellation.
        request.set_timeout(left + DEADLINE_GRACE);
        let err = match timeout_at(until, send(place.channel(), request)).await {
            Ok(Ok(response)) => {
                place.answered();
                route.trust();
                return Ok(response.into_inner());
            }
            Ok(Err(status)) => {
                let err = Error::from_status(status);
                if err.is_unreachable() {
                    place.give_up();
                } else {
                    place.answered();
                }
                err
            }
            Err(_) => {
                place.unanswered();
                Error::deadline()
            }
        };
        self.router.learn(route, &err);
        Err(err)
    }
}

/// The deadline passed while seeds were asked. Nothing was sent to a leader.
fn no_route_yet() -> Error {
    Error::no_route("no routing table came before the deadline")
}

fn service(channel: Channel) -> PasteServiceClient<Channel> {
    PasteServiceClient::new(channel)
        .max_decoding_message_size(MESSAGE_SIZE_MAX)
        .max_encoding_message_size(MESSAGE_SIZE_MAX)
}

fn begin_request(key: &IdempotencyKey, digest: &RequestDigest) -> v1::BeginCreateRequest {
    v1::BeginCreateRequest {
        idempotency_key: key.expose_text(),
        request_digest: digest.0.to_vec(),
    }
}

fn commit_request(
    key: &IdempotencyKey,
    digest: &RequestDigest,
    ticket: &Ticket,
    paste: &NewPaste,
) -> v1::CommitCreateRequest {
    v1::CommitCreateRequest {
        idempotency_key: key.expose_text(),
        request_digest: digest.0.to_vec(),
        ticket: ticket.ticket.clone(),
        lifetime_seconds: paste.lifetime.map_or(0, Lifetime::as_secs),
        syntax: paste
            .syntax
            .as_ref()
            .map_or_else(String::new, |s| s.as_str().to_owned()),
        title: paste
            .title
            .as_ref()
            .map_or_else(String::new, |t| t.as_str().to_owned()),
        body_size: paste.body_size,
        body_digest: paste.body_digest.0.to_vec(),
    }
}

fn begun(response: v1::BeginCreateResponse) -> Result<Begun, Error> {
    use v1::begin_create_response::Outcome;
    match response.outcome {
        Some(Outcome::Ticket(ticket)) => Ok(Begun::New(Ticket {
            ticket: ticket.ticket,
            paste_id: PasteId::parse(&ticket.paste_id).map_err(|_| Error::malformed())?,
            object_key: ticket.object_key,
        })),
        Some(Outcome::Answer(stored)) => answer(Some(stored)).map(Begun::Stored),
        None => Err(Error::malformed()),
    }
}

fn answer(answer: Option<v1::CreateAnswer>) -> Result<CreateAnswer, Error> {
    let answer = answer.ok_or_else(Error::malformed)?;
    Ok(CreateAnswer {
        paste_id: PasteId::parse(&answer.paste_id).map_err(|_| Error::malformed())?,
        expires_at: Timestamp(answer.expires_at_ms),
        delete_token: DeleteToken::parse(&answer.delete_token).map_err(|_| Error::malformed())?,
        replayed: answer.replayed,
    })
}

fn paste(paste: Option<v1::Paste>) -> Result<Paste, Error> {
    let paste = paste.ok_or_else(Error::malformed)?;
    let optional = |text: String| (!text.is_empty()).then_some(text);
    Ok(Paste {
        id: PasteId::parse(&paste.paste_id).map_err(|_| Error::malformed())?,
        created_at: Timestamp(paste.created_at_ms),
        expires_at: Timestamp(paste.expires_at_ms),
        now: Timestamp(paste.now_ms),
        body_size: paste.body_size,
        body_digest: BodyDigest(
            paste
                .body_digest
                .try_into()
                .map_err(|_| Error::malformed())?,
        ),
        object_key: paste.object_key,
        syntax: optional(paste.syntax)
            .map(|text| Syntax::parse(&text))
            .transpose()
            .map_err(|_| Error::malformed())?,
        title: optional(paste.title)
            .map(|text| Title::parse(&text))
            .transpose()
            .map_err(|_| Error::malformed())?,
    })
}
