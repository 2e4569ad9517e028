//! What a worker tells about itself, over HTTP.

use std::fmt;
use std::io;
use std::sync::Arc;

use axum::Router;
use axum::extract::State;
use axum::http::StatusCode;
use axum::http::header::CONTENT_TYPE;
use axum::response::{IntoResponse, Response};
use axum::routing::get;
use tokio::net::TcpListener;

use crate::gate::Gate;
use crate::metrics::Metrics;

/// The counters and the health of a worker, also while it drains.
#[derive(Clone)]
pub struct Observer {
    pub(crate) metrics: Arc<Metrics>,
    pub(crate) gate: Arc<Gate>,
}

impl fmt::Debug for Observer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Observer")
    }
}

impl Observer {
    /// Serves `GET /metrics`, `/healthz` (it is alive) and `/readyz` (it is not paused). Ends only
    /// when it is dropped, or `listener` fails. For an address that strangers do not reach.
    pub async fn serve(self, listener: TcpListener) -> io::Result<()> {
        let router = Router::new()
            .route("/metrics", get(metrics))
            .route("/healthz", get(async || "alive\n"))
            .route("/readyz", get(readyz))
            .with_state(self);
        axum::serve(listener, router).await
    }

    /// The counters in the OpenMetrics text format.
    #[must_use]
    pub fn metrics(&self) -> String {
        self.metrics.text()
    }
}

async fn metrics(State(observer): State<Observer>) -> Response {
    let kind = "application/openmetrics-text; version=1.0.0; charset=utf-8";
    ([(CONTENT_TYPE, kind)], observer.metrics()).into_response()
}

async fn readyz(State(observer): State<Observer>) -> Response {
    if observer.gate.is_open() {
        "ready\n".into_response()
    } else {
        let why = "the object store is down\n";
        (StatusCode::SERVICE_UNAVAILABLE, why).into_response()
    }
}
