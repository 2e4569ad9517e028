//! `POST /api/v1/pastes`: begin, PUT, commit.

use std::time::Duration;

use askama::Template as _;
use axum::body::Body;
use axum::extract::{Request, State};
use axum::http::header::{
    CACHE_CONTROL, CONTENT_ENCODING, CONTENT_TYPE, HeaderName, LOCATION, VARY,
};
use axum::http::{HeaderMap, HeaderValue, StatusCode};
use axum::response::{IntoResponse, Response};
use bytes::Bytes;
use ostraca_client::{Begun, CreateAnswer, NewPaste};
use ostraca_types::{BodyDigest, IdempotencyKey, Reason, RequestDigest};
use serde::Serialize;
use sha2::{Digest as _, Sha256};
use tokio::time::{Instant, timeout_at};

use crate::admission::Admitted;
use crate::body::{announced, envelope_max, hashed, read, too_slow};
use crate::frontend::{App, Shared};
use crate::instant::rfc3339;
use crate::negotiate::{Format, prefer};
use crate::options::Options;
use crate::problem::{Call, Kind, Problem};
use crate::{form, json, pages};

/// A request is answered within this, whatever happens behind it.
pub(crate) const REQUEST_DEADLINE: Duration = Duration::from_secs(30);
const REPLAYED: HeaderName = HeaderName::from_static("idempotency-replayed");

/// What a client asks to save, complete and checked.
struct Asked {
    key: IdempotencyKey,
    body: Bytes,
    options: Options,
}

pub(crate) async fn create(State(app): State<App>, request: Request) -> Result<Response, Problem> {
    let deadline = Instant::now() + REQUEST_DEADLINE;
    let (head, body) = request.into_parts();
    let created = async {
        let (asked, admitted) = ask(&app, head.uri.query(), &head.headers, body, deadline).await?;
        // A task of its own: a client that goes away drops this future, and the commit goes on.
        let task = tokio::spawn(save(App::clone(&app), asked, admitted));
        match timeout_at(deadline, task).await {
            Ok(Ok(saved)) => saved,
            Ok(Err(_)) => Err(Problem::internal()),
            Err(_) => Err(Problem::deadline(Call::Create)),
        }
    };
    let created = created.await;
    app.metrics.created(match &created {
        Ok(answer) if answer.replayed => "replayed",
        Ok(_) => "created",
        Err(problem) => outcome(problem),
    });
    Ok(respond(&app, &head.headers, &created?))
}

/// The name of a failure in the metrics.
fn outcome(problem: &Problem) -> &'static str {
    match problem.kind() {
        Kind::Api(Reason::KeyReused) => "conflict",
        Kind::Api(Reason::OutcomeUnknown | Reason::DeadlineExceeded) => "unknown",
        Kind::Api(Reason::Overloaded | Reason::DiskFull) => "overloaded",
        _ if problem.status().is_client_error() => "refused",
        _ if problem.status() == StatusCode::SERVICE_UNAVAILABLE => "unavailable",
        _ => "failed",
    }
}

/// Reads and checks the request. Nothing is written, and no shard is asked.
async fn ask(
    app: &Shared,
    query: Option<&str>,
    headers: &HeaderMap,
    body: Body,
    deadline: Instant,
) -> Result<(Asked, Admitted), Problem> {
    if headers
        .get(CONTENT_ENCODING)
        .is_some_and(|coding| coding != "identity")
    {
        return Err(Problem::of(
            Kind::Encoding,
            "a body is stored as it is sent; send it without Content-Encoding",
        ));
    }
    let mut options = Options::from_head(query, headers)?;
    let limit = app.config.body_size_max;
    let content = Content::of(headers);
    let most = match content {
        Content::Raw => limit,
        Content::Json | Content::Form | Content::Multipart(_) => envelope_max(limit),
    };
    let arriving = match announced(&body) {
        Some(size) if size > most as u64 => return Err(Problem::too_large(limit)),
        Some(size) => usize::try_from(size).unwrap_or(most),
        None => most,
    };
    if matches!(content, Content::Raw) {
        // Nothing in the body can bring it.
        options.key()?;
    }
    let admitted = app.admission.create(arriving)?;
    let decoded = decode(content, body, limit, &mut options);
    let body = timeout_at(deadline, decoded)
        .await
        .map_err(|_| too_slow())??;
    if body.len() > limit {
        return Err(Problem::too_large(limit));
    }
    let key = options.key()?;
    if body.is_empty() {
        return Err(Problem::new(
            Reason::EmptyBody,
            "a paste has at least one byte",
        ));
    }
    Ok((Asked { key, body, options }, admitted))
}

/// What a request's body is, by its content type.
enum Content<'a> {
    Json,
    Form,
    Multipart(&'a str),
    Raw,
}

impl<'a> Content<'a> {
    fn of(headers: &'a HeaderMap) -> Self {
        let text = headers
            .get(CONTENT_TYPE)
            .and_then(|value| value.to_str().ok());
        let text = text.unwrap_or_default();
        let name = text
            .split(';')
            .next()
            .unwrap_or_default()
            .trim()
            .to_ascii_lowercase();
        match name.as_str() {
            "application/json" => Self::Json,
            "application/x-www-form-urlencoded" => Self::Form,
            "multipart/form-data" => Self::Multipart(text),
            _ => Self::Raw,
        }
    }
}

async fn decode(
    content: Content<'_>,
    body: Body,
    limit: usize,
    options: &mut Options,
) -> Result<Bytes, Problem> {
    let too_large = || Problem::too_large(limit);
    match content {
        Content::Raw => read(body, limit, too_large).await,
        Content::Json => json::parse(&read(body, envelope_max(limit), too_large).await?, options),
        Content::Form => {
            form::urlencoded(&read(body, envelope_max(limit), too_large).await?, options)
        }
        Content::Multipart(content_type) => {
            form::multipart(body, content_type, limit, options).await
        }
    }
}

/// Begin, PUT, commit. Each step has its deadline; none is repeated (k17).
async fn save(app: App, asked: Asked, admitted: Admitted) -> Result<CreateAnswer, Problem> {
    let Asked { key, body, options } = asked;
    let Digests {
        request,
        body_digest,
    } = digests(&body, &options).await?;
    let refused = |err: ostraca_client::Error| Problem::from_client(&err, Call::Create);
    let ticket = match app
        .client
        .begin_create(&key, &request)
        .await
        .map_err(refused)?
    {
        Begun::Stored(answer) => {
            return Ok(CreateAnswer {
                replayed: true,
                ..answer
            });
        }
        Begun::New(ticket) => ticket,
    };
    let paste = NewPaste {
        lifetime: options.lifetime,
        syntax: options.syntax,
        title: options.title,
        body_size: body.len() as u64,
        body_digest,
    };
    if let Err(err) = app.bodies.put(&ticket.object_key, body).await {
        tracing::warn!(event = "body_put_failed", object = %ticket.object_key, error = %err);
        return Err(Problem::from_bodies(&err, Call::Create));
    }
    let answer = app
        .client
        .commit_create(&key, &request, &ticket, &paste)
        .await;
    drop(admitted);
    answer.map_err(refused)
}

struct Digests {
    request: RequestDigest,
    body_digest: BodyDigest,
}

async fn digests(body: &Bytes, options: &Options) -> Result<Digests, Problem> {
    let options = options.clone();
    hashed(body, move |body| compute(body, &options)).await
}

fn compute(body: &[u8], options: &Options) -> Digests {
    let Options {
        key: _,
        lifetime,
        syntax,
        title,
    } = options;
    let request = RequestDigest::compute(body, *lifetime, syntax.as_ref(), title.as_ref());
    Digests {
        request,
        body_digest: BodyDigest(Sha256::digest(body).into()),
    }
}

/// The answer: of one request and its repetitions the same bytes, but for one header (k02).
fn respond(app: &Shared, request: &HeaderMap, answer: &CreateAnswer) -> Response {
    #[derive(Serialize)]
    struct Document<'a> {
        id: &'a str,
        url: &'a str,
        raw_url: &'a str,
        expires_at: &'a str,
        delete_token: &'a str,
    }
    let (url, raw_url) = (app.url(&answer.paste_id), app.raw_url(&answer.paste_id));
    let token = answer.delete_token.expose_text();
    let (content_type, text) = match prefer(request, &[Format::Json, Format::Text, Format::Html]) {
        Format::Json => {
            let document = Document {
                id: answer.paste_id.as_str(),
                url: &url,
                raw_url: &raw_url,
                expires_at: &rfc3339(answer.expires_at),
                delete_token: &token,
            };
            let mut text = serde_json::to_string(&document).unwrap_or_default();
            text.push('\n');
            ("application/json", text)
        }
        Format::Text => ("text/plain; charset=utf-8", format!("{url}\n")),
        Format::Html => {
            let page = pages::CreatedPage {
                assets: pages::assets(),
                id: answer.paste_id.as_str(),
                url: &url,
                raw_url: &raw_url,
                expires_at: &crate::instant::readable(answer.expires_at),
                delete_token: &token,
            };
            // A template over strings has no way to fail.
            (
                "text/html; charset=utf-8",
                page.render().unwrap_or_default(),
            )
        }
    };
    let mut response = (StatusCode::CREATED, text).into_response();
    let headers = response.headers_mut();
    headers.insert(CONTENT_TYPE, HeaderValue::from_static(content_type));
    headers.insert(CACHE_CONTROL, HeaderValue::from_static("no-store"));
    headers.insert(VARY, HeaderValue::from_static("Accept"));
    // An origin that was checked and base62.
    if let Ok(location) = HeaderValue::try_from(url) {
        headers.insert(LOCATION, location);
    }
    if answer.replayed {
        headers.insert(REPLAYED, HeaderValue::from_static("true"));
    }
    response
}
