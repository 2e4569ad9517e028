//! A request's body: reading it within limits, and what happens to a rest that nobody reads.

use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::task::{Context, Poll};
use std::time::Duration;

use axum::body::Body;
use bytes::Bytes;
use http_body_util::BodyExt as _;
use hyper::body::{Body as HttpBody, Frame, SizeHint};

use crate::problem::{Kind, Problem};

/// Of a body that nobody wanted, so much more is read, for so long, before the connection is
/// closed. A client that is still sending would otherwise see a reset in place of its answer.
const DRAIN_SIZE_MAX: usize = 64 << 20;
const DRAIN_TIME_MAX: Duration = Duration::from_secs(10);

/// Options, key, field names and boundaries around a body.
const ENVELOPE_SLACK: usize = 64 << 10;
/// JSON writes a byte as up to six (`\u0000`), a form a line end as six (`%0D%0A`).
const ESCAPE_FACTOR: usize = 6;

/// A body up to this size is hashed where it is: a task switch costs as much.
const HASH_INLINE_MAX: usize = 128 << 10;

/// The most bytes that a create with a body of `limit` decoded bytes can arrive as.
pub(crate) const fn envelope_max(limit: usize) -> usize {
    limit * ESCAPE_FACTOR + ENVELOPE_SLACK
}

/// What a request announces as its size; `None` for chunked.
pub(crate) fn announced(body: &Body) -> Option<u64> {
    HttpBody::size_hint(body).exact()
}

/// Reads a body whole, up to `limit` bytes; `too_large` when there is more.
pub(crate) async fn read(
    mut body: Body,
    limit: usize,
    too_large: impl Fn() -> Problem,
) -> Result<Bytes, Problem> {
    let announced = announced(&body);
    if announced.is_some_and(|size| size > limit as u64) {
        return Err(too_large());
    }
    // Not trusted further than the limit, which it was just checked against.
    let mut read = Vec::with_capacity(
        announced
            .and_then(|size| usize::try_from(size).ok())
            .unwrap_or(0),
    );
    while let Some(frame) = body.frame().await {
        let Ok(data) = frame.map_err(|_| incomplete())?.into_data() else {
            continue;
        };
        if read.len() + data.len() > limit {
            return Err(too_large());
        }
        read.extend_from_slice(&data);
    }
    Ok(read.into())
}

/// What `hash` makes of a body. A large one is hashed on a thread that others do not wait for.
pub(crate) async fn hashed<T: Send + 'static>(
    body: &Bytes,
    hash: impl FnOnce(&[u8]) -> T + Send + 'static,
) -> Result<T, Problem> {
    if body.len() <= HASH_INLINE_MAX {
        return Ok(hash(body));
    }
    let body = body.clone();
    let hashed = tokio::task::spawn_blocking(move || hash(&body));
    hashed.await.map_err(|_| Problem::internal())
}

/// The client stopped sending, or sent what is no HTTP body.
pub(crate) fn incomplete() -> Problem {
    Problem::new(
        ostraca_types::Reason::InvalidField,
        "the body did not arrive whole",
    )
}

pub(crate) fn too_slow() -> Problem {
    Problem::of(
        Kind::SlowRequest,
        "the body did not arrive in time; nothing was saved",
    )
}

/// A request's body that reads on by itself, within bounds, when it is dropped before its end.
pub(crate) struct Drained {
    inner: Body,
    /// Whether the client waits for a `100 Continue`: then it has sent nothing, and nothing more is
    /// read.
    waits: bool,
    ended: Arc<AtomicBool>,
}

impl Drained {
    /// The body, and whether it has been read to its end.
    pub(crate) fn wrap(inner: Body, waits: bool) -> (Body, Arc<AtomicBool>) {
        let ended = Arc::new(AtomicBool::new(inner.is_end_stream()));
        (
            Body::new(Self {
                inner,
                waits,
                ended: Arc::clone(&ended),
            }),
            ended,
        )
    }
}

impl HttpBody for Drained {
    type Data = Bytes;
    type Error = axum::Error;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, axum::Error>>> {
        let polled = Pin::new(&mut self.inner).poll_frame(cx);
        if matches!(polled, Poll::Ready(None | Some(Err(_)))) || self.inner.is_end_stream() {
            self.ended.store(true, Ordering::Relaxed);
        }
        polled
    }

    fn is_end_stream(&self) -> bool {
        self.inner.is_end_stream()
    }

    fn size_hint(&self) -> SizeHint {
        self.inner.size_hint()
    }
}

impl Drop for Drained {
    fn drop(&mut self) {
        if self.waits || self.ended.load(Ordering::Relaxed) {
            return;
        }
        let body = std::mem::take(&mut self.inner);
        // There is no runtime any more when the process ends; then there is nothing to do.
        if let Ok(runtime) = tokio::runtime::Handle::try_current() {
            runtime.spawn(tokio::time::timeout(DRAIN_TIME_MAX, drain(body)));
        }
    }
}

async fn drain(mut body: Body) {
    let mut drained = 0;
    while let Some(Ok(frame)) = body.frame().await {
        drained += frame.data_ref().map_or(0, Bytes::len);
        if drained > DRAIN_SIZE_MAX {
            return;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use axum::http::StatusCode;

    fn too_large() -> Problem {
        Problem::too_large(10)
    }

    #[tokio::test]
    async fn a_body_of_the_limit_passes_and_one_byte_more_does_not() {
        let ten = read(Body::from("0123456789"), 10, too_large)
            .await
            .expect("fits");
        assert_eq!(ten, "0123456789");
        let eleven = read(Body::from("0123456789a"), 10, too_large)
            .await
            .expect_err("too large");
        assert_eq!(eleven.status(), StatusCode::PAYLOAD_TOO_LARGE);
    }

    #[test]
    fn an_escaped_body_of_the_limit_fits_its_envelope() {
        let limit = 1000;
        let json = serde_json::to_string(&"\0".repeat(limit)).expect("text");
        assert!(json.len() <= envelope_max(limit), "{}", json.len());
        assert!("%0D%0A".len() * limit <= envelope_max(limit));
    }
}
