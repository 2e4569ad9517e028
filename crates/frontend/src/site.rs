//! The form, the texts, the static files, and what operators ask.

use std::time::Duration;

use askama::Template as _;
use axum::extract::{Path, State};
use axum::http::header::{CACHE_CONTROL, CONTENT_TYPE};
use axum::response::{IntoResponse, Response};
use ostraca_types::{IdempotencyKey, Reason};

use crate::frontend::App;
use crate::pages;
use crate::problem::{Kind, Problem};
use crate::read::Param;

/// A load balancer asks often and waits little.
const READY_DEADLINE: Duration = Duration::from_secs(2);

const TEXT: (axum::http::HeaderName, &str) = (CONTENT_TYPE, "text/plain; charset=utf-8");

/// `GET /`: the form, with a key of its own (k01). Kept by nobody: two people with one key would
/// meet each other's answers.
pub(crate) async fn index(State(app): State<App>) -> Response {
    let key = IdempotencyKey::mint(|bytes| app.entropy.fill(bytes));
    let page = pages::IndexPage {
        assets: pages::assets(),
        idempotency_key: &key.expose_text(),
        size_max: &pages::size(app.config.body_size_max as u64),
        size_max_bytes: app.config.body_size_max,
    };
    pages::small(&page)
}

/// `GET /help.txt`.
pub(crate) async fn help(State(app): State<App>) -> Response {
    let page = pages::Help {
        origin: app.origin(),
        size_max_bytes: app.config.body_size_max,
    };
    ([TEXT], page.render().unwrap_or_default()).into_response()
}

/// `GET /robots.txt`.
pub(crate) async fn robots() -> Response {
    ([TEXT], "User-agent: *\nAllow: /$\nDisallow: /\n").into_response()
}

/// `GET /static/{name}`. The names change with the content, so caches keep them for ever.
pub(crate) async fn asset(name: Param) -> Result<Response, Problem> {
    let Path(name) = name.map_err(|_| no_page())?;
    let asset = pages::assets().find(&name).ok_or_else(no_page)?;
    let headers = [
        (CONTENT_TYPE, asset.content_type),
        (CACHE_CONTROL, "public, max-age=31536000, immutable"),
    ];
    Ok((headers, asset.text).into_response())
}

/// `GET /healthz`: this process is alive.
pub(crate) async fn healthz() -> Response {
    ([TEXT], "alive\n").into_response()
}

/// `GET /readyz`: a shard tells who leads which slots.
pub(crate) async fn readyz(State(app): State<App>) -> Result<Response, Problem> {
    match tokio::time::timeout(READY_DEADLINE, app.client.shards()).await {
        Ok(Ok(_)) => Ok(([TEXT], "ready\n").into_response()),
        Ok(Err(_)) | Err(_) => {
            let problem = Problem::new(Reason::NotReady, "no shard answers");
            Err(problem.retry_after_secs(1))
        }
    }
}

/// `GET /metrics`.
pub(crate) async fn metrics(State(app): State<App>) -> Response {
    let kind = "application/openmetrics-text; version=1.0.0; charset=utf-8";
    ([(CONTENT_TYPE, kind)], app.metrics.text()).into_response()
}

/// What no route matches.
pub(crate) async fn no_route() -> Problem {
    no_page()
}

/// A route that is there, with another method.
pub(crate) async fn wrong_method() -> Problem {
    Problem::of(
        Kind::Method,
        "the Allow header names the methods of this page",
    )
}

fn no_page() -> Problem {
    Problem::of(
        Kind::NoRoute,
        "there is nothing here; /help.txt says what there is",
    )
}
