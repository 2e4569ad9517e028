//! Calls that come while a standby takes over.
//!
//! A client that was refused by a leader which hands over follows to its standby at once, and comes
//! there before that one leads. Refusing it would end its call; so it waits, for as long as a take-over
//! takes, or until a heartbeat shows that there is a leader after all.

use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::Duration;

use tonic::codegen::http::{Request, Response};
use tower::{Layer, Service};

use crate::host::{Host, Phase};

/// Longer than a take-over at the size that is planned for; a client's deadline may be shorter.
const HOLD_MAX: Duration = Duration::from_secs(4);
/// One beat may be from before the call.
const BEATS: u64 = 2;

/// Holds calls of a standby that is about to lead.
#[derive(Clone)]
pub(crate) struct HoldLayer(pub(crate) Arc<Host>);

impl<S> Layer<S> for HoldLayer {
    type Service = Hold<S>;

    fn layer(&self, inner: S) -> Hold<S> {
        Hold {
            inner,
            host: Arc::clone(&self.0),
        }
    }
}

/// See [`HoldLayer`].
#[derive(Clone)]
pub(crate) struct Hold<S> {
    inner: S,
    host: Arc<Host>,
}

impl<S, Q, B> Service<Request<Q>> for Hold<S>
where
    S: Service<Request<Q>, Response = Response<B>> + Clone + Send + 'static,
    S::Future: Send + 'static,
    Q: Send + 'static,
{
    type Response = Response<B>;
    type Error = S::Error;
    type Future = Pin<Box<dyn Future<Output = Result<Response<B>, S::Error>> + Send>>;

    fn poll_ready(&mut self, cx: &mut Context<'_>) -> Poll<Result<(), S::Error>> {
        self.inner.poll_ready(cx)
    }

    fn call(&mut self, request: Request<Q>) -> Self::Future {
        if !self.host.takes_over() || !is_of_a_slot(request.uri().path()) {
            return Box::pin(self.inner.call(request));
        }
        // The one that is ready goes with the call.
        let next = self.inner.clone();
        let mut inner = std::mem::replace(&mut self.inner, next);
        let host = Arc::clone(&self.host);
        Box::pin(async move {
            host.taken_over().await;
            inner.call(request).await
        })
    }
}

/// Calls about slots; status and routing are answered by anyone.
fn is_of_a_slot(path: &str) -> bool {
    ["Paste", "Outbox", "Inbox"].iter().any(|service| {
        path.strip_prefix("/ostraca.v1.")
            .and_then(|rest| rest.strip_prefix(service))
            .is_some_and(|rest| rest.starts_with("Service/"))
    })
}

impl Host {
    fn takes_over(&self) -> bool {
        self.stands_by && matches!(*self.phase().borrow(), Phase::Standby | Phase::Recovering)
    }

    /// Waits until this process leads, or another one shows that it does.
    async fn taken_over(&self) {
        let mut phase = self.phase();
        let mut beats = self.beats_seen.subscribe();
        let seen = *beats.borrow_and_update();
        let settled = async {
            tokio::select! {
                _ = phase.wait_for(|phase| !matches!(phase, Phase::Standby | Phase::Recovering)) => {}
                _ = beats.wait_for(|now| *now >= seen + BEATS) => {}
            }
        };
        // What is answered then is for the service to say.
        let _ = tokio::time::timeout(HOLD_MAX, settled).await;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_calls_about_slots_wait() {
        for path in [
            "/ostraca.v1.PasteService/GetPaste",
            "/ostraca.v1.InboxService/Record",
        ] {
            assert!(is_of_a_slot(path), "{path}");
        }
        for path in [
            "/ostraca.v1.ClusterService/GetRouting",
            "/grpc.health.v1.Health/Check",
        ] {
            assert!(!is_of_a_slot(path), "{path}");
        }
    }
}
