//! What every answer has, whichever handler made it: one shape of errors, headers that protect the
//! reader, an explicit word to caches, a line in the metrics.

use std::sync::atomic::Ordering;

use axum::extract::{MatchedPath, Request, State};
use axum::http::header::{
    CACHE_CONTROL, CONNECTION, CONTENT_SECURITY_POLICY, CONTENT_TYPE, EXPECT, HeaderName,
    REFERRER_POLICY, X_CONTENT_TYPE_OPTIONS,
};
use axum::http::{HeaderMap, HeaderValue};
use axum::middleware::Next;
use axum::response::Response;

use crate::body::Drained;
use crate::frontend::App;
use crate::problem::rendered;

const PAGE_POLICY: HeaderValue = HeaderValue::from_static(
    "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self'; connect-src 'self'; \
     form-action 'self'; frame-ancestors 'none'; base-uri 'none'",
);
const OTHER_POLICY: HeaderValue =
    HeaderValue::from_static("default-src 'none'; frame-ancestors 'none'; base-uri 'none'");

/// On every answer.
const ALWAYS: [(HeaderName, HeaderValue); 5] = [
    (X_CONTENT_TYPE_OPTIONS, HeaderValue::from_static("nosniff")),
    (REFERRER_POLICY, HeaderValue::from_static("no-referrer")),
    (
        HeaderName::from_static("cross-origin-resource-policy"),
        HeaderValue::from_static("same-origin"),
    ),
    (
        HeaderName::from_static("permissions-policy"),
        HeaderValue::from_static("camera=(), geolocation=(), microphone=(), payment=(), usb=()"),
    ),
    (
        HeaderName::from_static("x-robots-tag"),
        HeaderValue::from_static("noindex"),
    ),
];

/// Around every route and the fallback.
pub(crate) async fn finish(State(app): State<App>, request: Request, next: Next) -> Response {
    let (head, body) = request.into_parts();
    let accept = head.headers.clone();
    let method = head.method.clone();
    let route = head.extensions.get::<MatchedPath>().cloned();
    let (body, read_whole) = Drained::wrap(body, head.headers.contains_key(EXPECT));
    let response = next.run(Request::from_parts(head, body)).await;

    let mut response = rendered(response, &accept);
    let headers = response.headers_mut();
    protect(headers);
    if !read_whole.load(Ordering::Relaxed) {
        // Tells a client that is still sending to stop.
        headers.insert(CONNECTION, HeaderValue::from_static("close"));
    }
    let route = route.as_ref().map_or("none", MatchedPath::as_str);
    app.metrics.answered(route, &method, response.status());
    response
}

fn protect(headers: &mut HeaderMap) {
    for (name, value) in ALWAYS {
        headers.entry(name).or_insert(value);
    }
    headers
        .entry(CACHE_CONTROL)
        .or_insert(HeaderValue::from_static("no-store"));
    let is_html = |value: &HeaderValue| value.as_bytes().starts_with(b"text/html");
    let policy = if headers.get(CONTENT_TYPE).is_some_and(is_html) {
        PAGE_POLICY
    } else {
        OTHER_POLICY
    };
    headers.entry(CONTENT_SECURITY_POLICY).or_insert(policy);
}
