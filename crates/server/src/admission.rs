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
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
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

/// The calls of a process that count against the bound.
#[derive(Debug, Default)]
pub(crate) struct Calls {
    in_flight: AtomicUsize,
    ended: AtomicU64,
}

impl Calls {
    /// Those that are not answered yet. Never above the bound by more than the calls that are refused
    /// at this moment.
    pub(crate) fn in_flight(&self) -> usize {
        self.in_flight.load(Ordering::Relaxed)
    }

    /// Those that were taken and are over, however they ended.
    pub(crate) fn ended(&self) -> u64 {
        self.ended.load(Ordering::Relaxed)
    }
}

/// Refuses calls beyond [`CALLS_MAX`].
#[derive(Clone)]
pub(crate) struct AdmissionLayer(Arc<Host>);

impl AdmissionLayer {
    pub(crate) const fn new(host: Arc<Host>) -> Self {
        Self(host)
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

/// A place among the calls that are taken. It is given back when the call's work goes: answered, given
/// up by its client, or panicked.
struct Place(Arc<Calls>);

impl Place {
    fn take(calls: &Arc<Calls>) -> Option<Self> {
        if calls.in_flight.fetch_add(1, Ordering::Relaxed) < CALLS_MAX {
            return Some(Self(Arc::clone(calls)));
        }
        calls.in_flight.fetch_sub(1, Ordering::Relaxed);
        None
    }
}

impl Drop for Place {
    fn drop(&mut self) {
        self.0.ended.fetch_add(1, Ordering::Relaxed);
        self.0.in_flight.fetch_sub(1, Ordering::Relaxed);
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
        let host = &self.layer.0;
        let Some(place) = Place::take(&host.calls) else {
            let text = "the process has more calls than it can take";
            let refusal = Refusal::new(Reason::Overloaded, text);
            let status = Status::from(host.complete(refusal));
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
        let calls = Arc::default();
        let places: Vec<_> = (0..CALLS_MAX).map_while(|_| Place::take(&calls)).collect();
        assert_eq!(places.len(), CALLS_MAX);
        assert!((0..10).all(|_| Place::take(&calls).is_none()));
        assert_eq!((calls.in_flight(), calls.ended()), (CALLS_MAX, 0));
        drop(places);
        assert_eq!((calls.in_flight(), calls.ended()), (0, CALLS_MAX as u64));
        assert!(Place::take(&calls).is_some());
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
