//! The gRPC services: thin shells around [`Host`].

use std::pin::Pin;
use std::sync::Arc;

use ostraca_engine::{Answer, End, EndCause, Outcome, Shard};
use ostraca_proto::v1;
use ostraca_types::{DeleteToken, PasteId, Reason};
use tokio::sync::{mpsc, oneshot};
use tokio_stream::Stream;
use tokio_stream::wrappers::ReceiverStream;
use tonic::{Request, Response, Status, Streaming};
use v1::cluster_service_server::ClusterService;
use v1::paste_service_server::PasteService;
use v1::stream_creates_request::Call;
use v1::stream_creates_response::Answer as StreamAnswer;

use crate::deadline;
use crate::host::{Host, Phase};
use crate::refusal::Refusal;

/// Calls of one stream that were read and not answered yet. Two batches' worth at full load.
const STREAM_IN_FLIGHT_MAX: usize = 1024;

pub(crate) struct Services(pub(crate) Arc<Host>);

type AnswerStream =
    Pin<Box<dyn Stream<Item = Result<v1::StreamCreatesResponse, Status>> + Send + 'static>>;

fn not_found() -> Refusal {
    Refusal::new(Reason::PasteNotFound, "no such paste, or it has ended")
}

/// Waits for the shard's thread. It drops a reply only if it dies.
pub(crate) async fn decided(
    answer: oneshot::Receiver<Result<Answer, ostraca_engine::Error>>,
) -> Result<Answer, ostraca_engine::Error> {
    answer.await.unwrap_or(Err(ostraca_engine::Error::Unknown))
}

#[tonic::async_trait]
impl PasteService for Services {
    async fn begin_create(
        &self,
        request: Request<v1::BeginCreateRequest>,
    ) -> Result<Response<v1::BeginCreateResponse>, Status> {
        let answer: Result<_, Refusal> =
            async { Ok(Response::new(self.0.begin(request.get_ref())?)) }.await;
        answer.map_err(|refusal| self.0.complete(refusal).into())
    }

    async fn commit_create(
        &self,
        request: Request<v1::CommitCreateRequest>,
    ) -> Result<Response<v1::CommitCreateResponse>, Status> {
        let answer: Result<_, Refusal> = async {
            let (sender, receiver) = oneshot::channel();
            let left = deadline::left(deadline::of(&request));
            self.0.commit(request.get_ref(), left, |pending, answer| {
                // Whoever asked may have gone; the commit stands.
                let _ = sender.send((pending, answer));
            })?;
            let unknown = || Refusal::from(ostraca_engine::Error::Unknown);
            let (pending, answer) = receiver.await.map_err(|_| unknown())?;
            Ok(Response::new(self.0.committed(&pending, answer)?))
        }
        .await;
        answer.map_err(|refusal| self.0.complete(refusal).into())
    }

    type StreamCreatesStream = AnswerStream;

    async fn stream_creates(
        &self,
        request: Request<Streaming<v1::StreamCreatesRequest>>,
    ) -> Result<Response<AnswerStream>, Status> {
        let (answers, receiver) = mpsc::channel(STREAM_IN_FLIGHT_MAX);
        tokio::spawn(answer_stream(
            Arc::clone(&self.0),
            request.into_inner(),
            answers,
        ));
        Ok(Response::new(Box::pin(ReceiverStream::new(receiver))))
    }

    async fn get_paste(
        &self,
        request: Request<v1::GetPasteRequest>,
    ) -> Result<Response<v1::GetPasteResponse>, Status> {
        let answer: Result<_, Refusal> = async {
            let id = PasteId::parse(&request.get_ref().paste_id).map_err(|_| not_found())?;
            let shard = self.0.shard_for(id.slot())?;
            let (row, now) = shard
                .paste(&id)
                .map_err(Refusal::from)?
                .ok_or_else(not_found)?;
            let paste = v1::Paste {
                paste_id: id.to_string(),
                created_at_ms: row.created_at.0,
                expires_at_ms: row.expires_at.0,
                now_ms: now.0,
                body_size: row.body_size.into(),
                body_digest: row.body_digest.0.to_vec(),
                object_key: id.object_key(),
                syntax: row
                    .syntax
                    .map_or_else(String::new, |syntax| syntax.as_str().to_owned()),
                title: row
                    .title
                    .map_or_else(String::new, |title| title.as_str().to_owned()),
            };
            let position = self.0.position(shard.epoch(), shard.applied());
            Ok(Response::new(v1::GetPasteResponse {
                paste: Some(paste),
                position,
            }))
        }
        .await;
        answer.map_err(|refusal| self.0.complete(refusal).into())
    }

    async fn delete_paste(
        &self,
        request: Request<v1::DeletePasteRequest>,
    ) -> Result<Response<v1::DeletePasteResponse>, Status> {
        let answer: Result<_, Refusal> = async {
            let left = deadline::left(deadline::of(&request));
            let request = request.get_ref();
            let id = PasteId::parse(&request.paste_id).map_err(|_| not_found())?;
            let shard = self.0.shard_for(id.slot())?.within(left);
            let Answer {
                outcome,
                epoch,
                sequence,
            } = delete(&shard, id, &request.delete_token).await?;
            match outcome {
                Outcome::Ended => {
                    let position = self.0.position(epoch, sequence);
                    Ok(Response::new(v1::DeletePasteResponse { position }))
                }
                Outcome::UnknownPaste => Err(not_found()),
                _ => unreachable!("a delete has no such outcome"),
            }
        }
        .await;
        answer.map_err(|refusal| self.0.complete(refusal).into())
    }
}

/// Checks the token against the row, which never changes while it is there, and ends the paste.
async fn delete(shard: &Shard, id: PasteId, token: &str) -> Result<Answer, Refusal> {
    let (row, _) = shard.paste(&id)?.ok_or_else(not_found)?;
    let token = DeleteToken::parse(token);
    if !token.is_ok_and(|token| row.token_hash.matches(&token)) {
        return Err(Refusal::new(
            Reason::TokenRejected,
            "not the delete token of this paste",
        ));
    }
    let (sender, receiver) = oneshot::channel();
    let end = End {
        paste_id: id,
        cause: EndCause::Deleted,
    };
    shard.end(end, Box::new(|answer| drop(sender.send(answer))))?;
    Ok(decided(receiver).await?)
}

/// Reads calls and answers them, until the client closes its side or the shard drains. A place
/// among the answers is reserved before a call is read, so answering never blocks the shard's
/// thread, and a client that does not read its answers is not read from either.
async fn answer_stream(
    host: Arc<Host>,
    mut calls: Streaming<v1::StreamCreatesRequest>,
    answers: mpsc::Sender<Result<v1::StreamCreatesResponse, Status>>,
) {
    let mut phase = host.phase();
    loop {
        // Draining comes first: a client that keeps calling, or never reads, must not hold it up.
        let place = tokio::select! {
            biased;
            _ = phase.wait_for(|phase| *phase != Phase::Serving) => return,
            place = answers.clone().reserve_owned() => place,
        };
        let Ok(place) = place else { return };
        let call = tokio::select! {
            biased;
            _ = phase.wait_for(|phase| *phase != Phase::Serving) => return,
            call = calls.message() => call,
        };
        // A broken stream takes its unanswered calls with it; the commits among them stand.
        let v1::StreamCreatesRequest { tag, call } = match call {
            Ok(Some(call)) => call,
            Ok(None) => return,
            // Without a word it would look as if the server had closed it in order.
            Err(broken) => {
                place.send(Err(broken));
                return;
            }
        };
        let respond = move |answer| {
            Ok(v1::StreamCreatesResponse {
                tag,
                answer: Some(answer),
            })
        };
        match call {
            Some(Call::Begin(begin)) => {
                let answer = match host.begin(&begin) {
                    Ok(response) => StreamAnswer::Begin(response),
                    Err(refusal) => StreamAnswer::Failure(host.complete(refusal).into()),
                };
                place.send(respond(answer));
            }
            Some(Call::Commit(commit)) => {
                let reply_host = Arc::clone(&host);
                let runtime = tokio::runtime::Handle::current();
                let queued = host.commit(&commit, None, move |pending, decided| {
                    let replayed = matches!(&decided, Ok(answer) if matches!(answer.outcome, Outcome::Replayed(_)));
                    let finish = move || {
                        let answer = match reply_host.committed(&pending, decided) {
                            Ok(response) => StreamAnswer::Commit(response),
                            Err(refusal) => StreamAnswer::Failure(reply_host.complete(refusal).into()),
                        };
                        place.send(respond(answer));
                    };
                    // A stored answer has to be opened, which is no work for the shard's thread.
                    if replayed {
                        drop(runtime.spawn(async move { finish() }));
                    } else {
                        finish();
                    }
                });
                if let Err(refusal) = queued {
                    // The place went with the reply that is not called: wait for another.
                    let answer = respond(StreamAnswer::Failure(host.complete(refusal).into()));
                    if answers.send(answer).await.is_err() {
                        return;
                    }
                }
            }
            None => {
                let refusal = Refusal::field("call", "neither a begin nor a commit");
                place.send(respond(StreamAnswer::Failure(refusal.into())));
            }
        }
    }
}

pub(crate) struct Cluster(pub(crate) Arc<Host>);

#[tonic::async_trait]
impl ClusterService for Cluster {
    async fn get_routing(
        &self,
        _: Request<v1::GetRoutingRequest>,
    ) -> Result<Response<v1::GetRoutingResponse>, Status> {
        Ok(Response::new(self.0.routing()))
    }

    async fn get_status(
        &self,
        _: Request<v1::GetStatusRequest>,
    ) -> Result<Response<v1::GetStatusResponse>, Status> {
        Ok(Response::new(self.0.status()))
    }

    async fn confirm_clock(
        &self,
        _: Request<v1::ConfirmClockRequest>,
    ) -> Result<Response<v1::ConfirmClockResponse>, Status> {
        let answer: Result<_, Refusal> = async {
            self.0.serving()?.confirm_clock();
            tracing::warn!(event = "clock_confirmed", shard = %self.0.id);
            Ok(Response::new(v1::ConfirmClockResponse {}))
        }
        .await;
        answer.map_err(|refusal| self.0.complete(refusal).into())
    }
}
