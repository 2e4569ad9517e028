//! Creates on one bidirectional stream.

use std::collections::BTreeMap;
use std::fmt;
use std::time::Duration;

use ostraca_proto::v1;
use ostraca_types::{IdempotencyKey, RequestDigest};
use tokio::sync::mpsc;
use tokio::time::{Instant, timeout_at};
use tokio_stream::wrappers::ReceiverStream;
use tonic::transport::Channel;
use tonic::{Request, Streaming};
use v1::stream_creates_request::Call;
use v1::stream_creates_response::Answer;

use crate::routing::{Route, Router};
use crate::{Begun, CreateAnswer, Error, NewPaste, Ticket};

/// The answer to one call of a stream.
#[derive(Debug)]
pub enum StreamAnswer {
    /// To a begin.
    Begun(Result<Begun, Error>),
    /// To a commit.
    Committed(Result<CreateAnswer, Error>),
}

/// A stream of begins and commits; each answer comes back under the tag that its call returned,
/// in any order. Each call has the client's deadline, from when it is sent.
///
/// When the stream breaks, every unanswered commit has an unknown outcome: ask again with the same
/// keys on a new one.
pub struct CreateStream {
    router: Router,
    route: Route,
    deadline: Duration,
    calls: mpsc::Sender<v1::StreamCreatesRequest>,
    answers: Streaming<v1::StreamCreatesResponse>,
    /// By tag, so the oldest comes first.
    in_flight: BTreeMap<u64, Sent>,
    in_flight_max: usize,
    next_tag: u64,
    /// Its own, and there as long as it is.
    _connection: Channel,
}

/// A call without an answer yet.
struct Sent {
    commit: bool,
    until: Instant,
}

impl fmt::Debug for CreateStream {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("CreateStream")
            .field("in_flight", &self.in_flight.len())
            .field("in_flight_max", &self.in_flight_max)
            .finish_non_exhaustive()
    }
}

impl CreateStream {
    pub(crate) async fn open(
        router: Router,
        route: Route,
        in_flight_max: usize,
        deadline: Duration,
        until: Instant,
    ) -> Result<Self, Error> {
        let (calls, queued) = mpsc::channel(in_flight_max.max(1));
        let connection = route.peer.own_connection();
        let mut service = crate::service(connection.clone());
        let queued = router.mark(Request::new(ReceiverStream::new(queued)));
        let opened = match timeout_at(until, service.stream_creates(queued)).await {
            Ok(opened) => opened.map_err(Error::from_status),
            Err(_) => Err(Error::deadline()),
        };
        let answers = opened.inspect_err(|err| router.learn(&route, err))?;
        Ok(Self {
            router,
            route,
            deadline,
            calls,
            answers: answers.into_inner(),
            in_flight: BTreeMap::new(),
            in_flight_max,
            next_tag: 0,
            _connection: connection,
        })
    }

    /// Calls without an answer yet.
    #[must_use]
    pub fn in_flight(&self) -> usize {
        self.in_flight.len()
    }

    /// Sends a begin. While `in_flight` calls wait already it sends nothing and fails with kind
    /// `Busy`: take an answer first. Any other error means that the stream is over.
    pub async fn begin(
        &mut self,
        key: &IdempotencyKey,
        digest: &RequestDigest,
    ) -> Result<u64, Error> {
        self.send(Call::Begin(crate::begin_request(key, digest)), false)
            .await
    }

    /// Sends a commit. It fails as [`Self::begin`] does.
    pub async fn commit(
        &mut self,
        key: &IdempotencyKey,
        digest: &RequestDigest,
        ticket: &Ticket,
        paste: &NewPaste,
    ) -> Result<u64, Error> {
        self.send(
            Call::Commit(crate::commit_request(key, digest, ticket, paste)),
            true,
        )
        .await
    }

    async fn send(&mut self, call: Call, commit: bool) -> Result<u64, Error> {
        if self.in_flight.len() >= self.in_flight_max {
            return Err(Error::stream_full());
        }
        let tag = self.next_tag;
        let request = v1::StreamCreatesRequest {
            tag,
            call: Some(call),
        };
        let until = Instant::now() + self.deadline;
        let sent = match timeout_at(until, self.calls.send(request)).await {
            Ok(sent) => sent.map_err(|_| Error::broken()),
            Err(_) => Err(Error::deadline()),
        };
        sent.inspect_err(|err| self.router.learn(&self.route, err))?;
        self.next_tag += 1;
        self.in_flight.insert(tag, Sent { commit, until });
        Ok(tag)
    }

    /// Waits for the next answer and its tag, at most until the oldest unanswered call meets its
    /// deadline; without one, for as long as a deadline. An error means that the stream is over.
    pub async fn next(&mut self) -> Result<(u64, StreamAnswer), Error> {
        let oldest = self.in_flight.first_key_value();
        let until = oldest.map_or_else(|| Instant::now() + self.deadline, |(_, sent)| sent.until);
        // What has come is taken first, however late the caller comes for it.
        let message = match timeout_at(until, self.answers.message()).await {
            Ok(Ok(Some(message))) => Ok(message),
            Ok(Ok(None)) => Err(Error::broken()),
            Ok(Err(status)) => Err(Error::from_status(status)),
            Err(_) => Err(Error::deadline()),
        };
        let message = message.inspect_err(|err| self.router.learn(&self.route, err))?;
        let v1::StreamCreatesResponse { tag, answer } = message;
        let sent = self.in_flight.remove(&tag).ok_or_else(Error::malformed)?;
        let answer = match (answer, sent.commit) {
            (Some(Answer::Begin(response)), false) => StreamAnswer::Begun(crate::begun(response)),
            (Some(Answer::Commit(response)), true) => {
                StreamAnswer::Committed(crate::answer(response.answer))
            }
            (Some(Answer::Failure(failure)), commit) => {
                let err = Error::from_failure(failure);
                self.router.learn(&self.route, &err);
                if commit {
                    StreamAnswer::Committed(Err(err))
                } else {
                    StreamAnswer::Begun(Err(err))
                }
            }
            _ => return Err(Error::malformed()),
        };
        Ok((tag, answer))
    }
}
