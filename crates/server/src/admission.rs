//! Calls that a process takes at once.
//!
//! The queue of a shard bounds what waits for its thread. What waits before that, for the runtime, is
//! bounded by the streams of a connection, beyond which a client waits on its own side. The number of
//! connections is not bounded, so neither is the product, nor the memory for it. A call beyond the bound
//! is refused here, before its message is read.
//!
//! It is far above what keeps latencies low, and is not made to do that: a refusal costs so much that
//! a process which refuses most of what it is sent gets little else done (measured: a third of its
//! capacity at twice the load, a thirtieth at ten times).

use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::task::{Context, Poll};

use ostraca_types::Reason;
use tonic::Status;
use tonic::codegen::http::{Request, Response};
use tower::{Layer, Service};

use crate::host::Host;
use crate::refusal::Refusal;

/// The most calls that are not answered yet, some 20 KiB of memory each. As many as the queue holds:
/// at 30,000 commits a second the last of them waits for 0.3 s.
pub(crate) const CALLS_MAX: usize = 8192;

/// Refuses calls beyond [`CALLS_MAX`].
#[derive(Clone)]
pub(crate) struct AdmissionLayer {
    host: Arc<Host>,
    taken: Arc<AtomicUsize>,
}

impl AdmissionLayer {
    pub(crate) fn new(host: Arc<Host>) -> Self {
        Self {
            host,
            taken: Arc::default(),
        }
    }
}

impl<S> Layer<S> for AdmissionLayer {
    type Service = Admission<S>;

    fn layer(&self, inner: S) -> Admission<S> {
        Admission {
            inner,
            layer: self.clone(),
        }
    }
}

/// See [`AdmissionLayer`].
#[derive(Clone)]
pub(crate) struct Admission<S> {
    inner: S,
    layer: AdmissionLayer,
}

/// A place among the calls that are taken.
struct Place(Arc<AtomicUsize>);

impl Place {
    fn take(taken: &Arc<AtomicUsize>) -> Option<Self> {
        let place = Self(Arc::clone(taken));
        // Beyond the bound it is given back at once.
        (taken.fetch_add(1, Ordering::Relaxed) < CALLS_MAX).then_some(place)
    }
}

impl Drop for Place {
    fn drop(&mut self) {
        self.0.fetch_sub(1, Ordering::Relaxed);
    }
}

impl<S, Q, B> Service<Request<Q>> for Admission<S>
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

    fn call(&mut self, request: Request<Q>) -> Self::Future {
        if !is_counted(request.uri().path()) {
            return Box::pin(self.inner.call(request));
        }
        let Some(place) = Place::take(&self.layer.taken) else {
            let text = "the process has more calls than it can take";
            let refusal = Refusal::new(Reason::Overloaded, text);
            let status = Status::from(self.layer.host.complete(refusal));
            return Box::pin(async move { Ok(status.into_http()) });
        };
        let answer = self.inner.call(request);
        Box::pin(async move {
            let _place = place;
            answer.await
        })
    }
}

/// Calls that end by themselves, soon. Streams have bounds of their own, and so has whoever waits for
/// messages, for each connection; the number of connections is bounded by file descriptors. Status, health and routing are answered to everyone.
fn is_counted(path: &str) -> bool {
    let Some(call) = path.strip_prefix("/ostraca.v1.") else {
        return false;
    };
    !call.starts_with("ClusterService/")
        && !matches!(
            call,
            "PasteService/StreamCreates" | "OutboxService/StreamMessages" | "OutboxService/Receive"
        )
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn l01_places_are_bounded_and_come_back() {
        let taken = Arc::default();
        let places: Vec<_> = (0..CALLS_MAX).map_while(|_| Place::take(&taken)).collect();
        assert_eq!(places.len(), CALLS_MAX);
        assert!((0..10).all(|_| Place::take(&taken).is_none()));
        drop(places);
        assert!(Place::take(&taken).is_some());
        assert_eq!(taken.load(Ordering::Relaxed), 0);
    }

    #[test]
    fn l01_whoever_waits_for_messages_takes_no_place() {
        for path in [
            "/ostraca.v1.PasteService/CommitCreate",
            "/ostraca.v1.InboxService/Record",
            "/ostraca.v1.OutboxService/Ack",
        ] {
            assert!(is_counted(path), "{path}");
        }
        for path in [
            "/ostraca.v1.PasteService/StreamCreates",
            "/ostraca.v1.OutboxService/Receive",
            "/ostraca.v1.ClusterService/GetRouting",
            "/grpc.health.v1.Health/Check",
        ] {
            assert!(!is_counted(path), "{path}");
        }
    }
}
