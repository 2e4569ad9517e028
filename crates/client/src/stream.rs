//! Creates on one bidirectional stream.

use std::collections::HashMap;

use ostraca_proto::v1;
use ostraca_types::{IdempotencyKey, RequestDigest};
use tokio::sync::mpsc;
use tokio_stream::wrappers::ReceiverStream;
use tonic::Streaming;
use tonic::transport::Channel;
use v1::paste_service_client::PasteServiceClient;
use v1::stream_creates_request::Call;
use v1::stream_creates_response::Answer;

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
/// in any order.
///
/// When the stream breaks, every unanswered commit has an unknown outcome: ask again with the same
/// keys on a new one.
#[derive(Debug)]
pub struct CreateStream {
    calls: mpsc::Sender<v1::StreamCreatesRequest>,
    answers: Streaming<v1::StreamCreatesResponse>,
    /// Whether the call of a tag was a commit.
    in_flight: HashMap<u64, bool>,
    in_flight_max: usize,
    next_tag: u64,
}

impl CreateStream {
    pub(crate) async fn open(
        mut service: PasteServiceClient<Channel>,
        in_flight_max: usize,
    ) -> Result<Self, Error> {
        let (calls, queued) = mpsc::channel(in_flight_max.max(1));
        let answers = service
            .stream_creates(ReceiverStream::new(queued))
            .await
            .map_err(Error::from_status)?
            .into_inner();
        Ok(Self {
            calls,
            answers,
            in_flight: HashMap::new(),
            in_flight_max,
            next_tag: 0,
        })
    }

    /// Calls without an answer yet.
    #[must_use]
    pub fn in_flight(&self) -> usize {
        self.in_flight.len()
    }

    /// Sends a begin. Panics when `in_flight` calls wait already.
    pub async fn begin(
        &mut self,
        key: &IdempotencyKey,
        digest: &RequestDigest,
    ) -> Result<u64, Error> {
        self.send(Call::Begin(crate::begin_request(key, digest)), false)
            .await
    }

    /// Sends a commit. Panics when `in_flight` calls wait already.
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
        assert!(
            self.in_flight.len() < self.in_flight_max,
            "the stream is full"
        );
        let tag = self.next_tag;
        self.next_tag += 1;
        let request = v1::StreamCreatesRequest {
            tag,
            call: Some(call),
        };
        self.calls
            .send(request)
            .await
            .map_err(|_| Error::broken())?;
        self.in_flight.insert(tag, commit);
        Ok(tag)
    }

    /// Waits for the next answer and its tag. An error means that the stream is over.
    pub async fn next(&mut self) -> Result<(u64, StreamAnswer), Error> {
        let message = self.answers.message().await.map_err(Error::from_status)?;
        let v1::StreamCreatesResponse { tag, answer } = message.ok_or_else(Error::broken)?;
        let commit = self.in_flight.remove(&tag).ok_or_else(Error::malformed)?;
        let answer = match (answer, commit) {
            (Some(Answer::Begin(response)), false) => StreamAnswer::Begun(crate::begun(response)),
            (Some(Answer::Commit(response)), true) => {
                StreamAnswer::Committed(crate::answer(response.answer))
            }
            (Some(Answer::Failure(failure)), false) => {
                StreamAnswer::Begun(Err(Error::from_failure(failure)))
            }
            (Some(Answer::Failure(failure)), true) => {
                StreamAnswer::Committed(Err(Error::from_failure(failure)))
            }
            _ => return Err(Error::malformed()),
        };
        Ok((tag, answer))
    }
}
