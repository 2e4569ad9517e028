//! Deadlines that are told as what they are.
//!
//! tonic answers an expired `grpc-timeout` with CANCELLED. Its own timer wraps every layer of ours,
//! so this one fires a little before it and answers DEADLINE_EXCEEDED, which says: it may have
//! happened.

use std::pin::Pin;
use std::task::{Context, Poll};
use std::time::Duration;

use tokio::time::Instant;
use tonic::codegen::http::{HeaderMap, Request, Response};
use tonic::{Code, Status};
use tower::{Layer, Service};

const HEADER: &str = "grpc-timeout";
/// No call takes longer, whatever its client would wait: a create's own bound is far above, but a
/// call that is stuck this long is of no use to anyone. Streams are not bounded by it.
const DEADLINE_MAX: Duration = Duration::from_secs(60);
/// How long before tonic's timer ours fires: above the runtime's resolution of 1 ms.
const AHEAD: Duration = Duration::from_millis(5);
const STREAMS: [&str; 2] = [
    "/ostraca.v1.PasteService/StreamCreates",
    "/ostraca.v1.OutboxService/StreamMessages",
];

/// Bounds each unary call by its client's deadline.
#[derive(Debug, Clone, Copy)]
pub(crate) struct DeadlineLayer;

impl<S> Layer<S> for DeadlineLayer {
    type Service = Deadline<S>;

    fn layer(&self, inner: S) -> Deadline<S> {
        Deadline { inner }
    }
}

/// See [`DeadlineLayer`].
#[derive(Debug, Clone)]
pub(crate) struct Deadline<S> {
    inner: S,
}

impl<S, Q, B> Service<Request<Q>> for Deadline<S>
where
    S: Service<Request<Q>, Response = Response<B>>,
    S::Future: Send + 'static,
    B: Default,
{
    type Response = Response<B>;
    type Error = S::Error;
    type Future = Pin<Box<dyn Future<Output = Result<Response<B>, S::Error>> + Send>>;

    fn poll_ready(&mut self, cx: &mut Context<'_>) -> Poll<Result<(), S::Error>> {
        self.inner.poll_ready(cx)
    }

    fn call(&mut self, mut request: Request<Q>) -> Self::Future {
        let asked = timeout(request.headers());
        if asked == Some(Duration::ZERO) {
            // Nobody waits for it: not worked on.
            return Box::pin(async { Ok(exceeded()) });
        }
        let is_stream = is_stream(request.uri().path());
        if is_stream {
            return Box::pin(self.inner.call(request));
        }
        let deadline = asked.map_or(DEADLINE_MAX, |asked| {
            asked.saturating_sub(AHEAD.min(asked / 2)).min(DEADLINE_MAX)
        });
        let ends = Instant::now() + deadline;
        request.extensions_mut().insert(AnsweredBy(ends));
        let answer = self.inner.call(request);
        Box::pin(async move {
            tokio::time::timeout_at(ends, answer)
                .await
                .unwrap_or_else(|_| Ok(exceeded()))
        })
    }
}

/// When a unary call is answered at the latest.
#[derive(Clone, Copy)]
struct AnsweredBy(Instant);

/// When the caller of a unary call stops waiting. A stream's calls have no deadline of their own.
pub(crate) fn of<T>(request: &tonic::Request<T>) -> Option<Instant> {
    request.extensions().get().map(|AnsweredBy(ends)| *ends)
}

/// The same, of a call, as how long that is from now.
pub(crate) fn left(ends: Option<Instant>) -> Option<Duration> {
    ends.map(|ends| ends.saturating_duration_since(Instant::now()))
}

fn exceeded<B: Default>() -> Response<B> {
    let text = "the deadline passed; a create may have happened, ask again with the same key";
    Status::new(Code::DeadlineExceeded, text).into_http()
}

/// Calls that stay open by design.
fn is_stream(path: &str) -> bool {
    STREAMS.contains(&path) || path.ends_with("/Watch") || path.ends_with("/ServerReflectionInfo")
}

/// The client's deadline; `None` if there is none that can be read.
fn timeout(headers: &HeaderMap) -> Option<Duration> {
    let text = headers.get(HEADER)?.to_str().ok()?;
    let (digits, unit) = text.split_at_checked(text.len().checked_sub(1)?)?;
    // At most eight digits, says the protocol; so nothing here overflows.
    if digits.is_empty() || digits.len() > 8 {
        return None;
    }
    let number: u64 = digits.parse().ok()?;
    Some(match unit {
        "H" => Duration::from_secs(number * 3600),
        "M" => Duration::from_secs(number * 60),
        "S" => Duration::from_secs(number),
        "m" => Duration::from_millis(number),
        "u" => Duration::from_micros(number),
        "n" => Duration::from_nanos(number),
        _ => return None,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn a_call_that_takes_longer_is_told_so() {
        let stuck = tower::service_fn(|_: Request<()>| {
            std::future::pending::<Result<Response<String>, std::convert::Infallible>>()
        });
        let mut service = DeadlineLayer.layer(stuck);
        let mut request = Request::new(());
        request
            .headers_mut()
            .insert(HEADER, "5m".parse().expect("a header"));
        let response = service.call(request).await.expect("an answer");
        assert_eq!(response.headers()["grpc-status"], "4");
    }

    #[test]
    fn deadlines_are_read() {
        let read = |text: &str| {
            let mut headers = HeaderMap::new();
            headers.insert(HEADER, text.parse().expect("a header"));
            timeout(&headers)
        };
        assert_eq!(read("5S"), Some(Duration::from_secs(5)));
        assert_eq!(read("250m"), Some(Duration::from_millis(250)));
        assert_eq!(
            read("99999999H"),
            Some(Duration::from_secs(99_999_999 * 3600))
        );
        for text in ["", "S", "5", "5x", "-5S", "999999999S"] {
            assert_eq!(read(text), None, "{text}");
        }
    }
}
