//! Commits that were prepared before the clock starts.

use ostraca_io::{Entropy as _, SystemEntropy};
use ostraca_proto::v1;
use ostraca_types::{IdempotencyKey, Slot};
use tokio::sync::mpsc;
use tokio_stream::wrappers::ReceiverStream;
use v1::paste_service_client::PasteServiceClient;
use v1::stream_creates_request::Call as StreamCall;
use v1::stream_creates_response::Answer;

use crate::Failure;
use crate::http2::Call;

/// The method whose calls these are.
pub const COMMIT_PATH: &str = "/ostraca.v1.PasteService/CommitCreate";

/// Begins of one stream that wait for their answers.
const IN_FLIGHT: usize = 512;

/// A key whose slot is wanted.
#[must_use]
pub fn key_in(wanted: impl Fn(Slot) -> bool) -> IdempotencyKey {
    loop {
        let key = IdempotencyKey::mint(|bytes| SystemEntropy.fill(bytes));
        if wanted(key.slot()) {
            return key;
        }
    }
}

/// Begins `count` creates with keys of wanted slots at the shard at `address`; the calls that commit
/// them.
pub async fn begin(
    address: &str,
    count: usize,
    wanted: impl Fn(Slot) -> bool + Send + 'static,
) -> Result<Vec<v1::CommitCreateRequest>, Failure> {
    let mut service = PasteServiceClient::connect(format!("http://{address}")).await?;
    let (sender, queued) = mpsc::channel(IN_FLIGHT);
    let begins = tokio::spawn(async move {
        let mut begins = Vec::with_capacity(count);
        for tag in 0..count as u64 {
            let begin = v1::BeginCreateRequest {
                idempotency_key: key_in(&wanted).expose_text(),
                request_digest: vec![7; 32],
            };
            let call = v1::StreamCreatesRequest {
                tag,
                call: Some(StreamCall::Begin(begin.clone())),
            };
            if sender.send(call).await.is_err() {
                break;
            }
            begins.push(begin);
        }
        begins
    });
    let mut answers = service
        .stream_creates(ReceiverStream::new(queued))
        .await?
        .into_inner();
    let mut tickets = vec![Vec::new(); count];
    for _ in 0..count {
        let answer = answers.message().await?.ok_or("the stream ended")?;
        let tag = usize::try_from(answer.tag)?;
        let ticket = match answer.answer {
            Some(Answer::Begin(begun)) => match begun.outcome {
                Some(v1::begin_create_response::Outcome::Ticket(ticket)) => ticket.ticket,
                _ => return Err("a new key had an answer".into()),
            },
            _ => return Err("a begin failed".into()),
        };
        *tickets.get_mut(tag).ok_or("an unknown tag")? = ticket;
    }
    let begins = begins.await?;
    let commits = begins
        .into_iter()
        .zip(tickets)
        .map(|(begin, ticket)| v1::CommitCreateRequest {
            idempotency_key: begin.idempotency_key,
            request_digest: begin.request_digest,
            ticket,
            body_size: 1000,
            body_digest: vec![9; 32],
            ..Default::default()
        });
    Ok(commits.collect())
}

/// Commits to send, by their place.
#[derive(Debug)]
pub struct Pool {
    calls: Vec<Call>,
    free: Vec<usize>,
    /// Each may be sent any number of times at once.
    replays: bool,
    next: usize,
}

impl Pool {
    /// Each is sent until it was accepted, and not again.
    #[must_use]
    pub fn fresh(commits: &[v1::CommitCreateRequest]) -> Self {
        let calls: Vec<_> = commits.iter().map(Call::new).collect();
        Self {
            free: (0..calls.len()).rev().collect(),
            calls,
            replays: false,
            next: 0,
        }
    }

    /// Each is sent again and again: one paste, whose stored answer is the answer.
    #[must_use]
    pub fn replays(commits: &[v1::CommitCreateRequest]) -> Self {
        Self {
            replays: true,
            ..Self::fresh(commits)
        }
    }

    /// The next to send, if one is left.
    pub fn take(&mut self) -> Option<usize> {
        if !self.replays {
            return self.free.pop();
        }
        self.next = (self.next + 1) % self.calls.len();
        Some(self.next)
    }

    /// Of one that was not accepted: nothing was done.
    pub fn give_back(&mut self, place: usize) {
        if !self.replays {
            self.free.push(place);
        }
    }

    /// What is sent.
    #[must_use]
    pub fn call(&self, place: usize) -> &Call {
        &self.calls[place]
    }
}
