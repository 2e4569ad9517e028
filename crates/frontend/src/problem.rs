//! Errors as a client sees them: one shape at every layer (RFC 9457), and the one place where an
//! error of a shard or of the object store becomes a status.
//!
//! A handler returns a [`Problem`]; [`crate::finish`] renders it in the form that the request's
//! `Accept` asks for.

use std::borrow::Cow;
use std::time::Duration;

use askama::Template as _;
use axum::http::header::{
    ALLOW, CACHE_CONTROL, CONTENT_TYPE, HeaderName, RETRY_AFTER, VARY, WWW_AUTHENTICATE,
};
use axum::http::{HeaderMap, HeaderValue, StatusCode};
use axum::response::{IntoResponse, Response};
use ostraca_types::{ErrorKind, Reason};
use serde::Serialize;

use crate::negotiate::{Format, prefer};
use crate::pages;

/// Longest delay that a `Retry-After` names.
const RETRY_AFTER_MAX_SECS: u64 = 60;
/// Names of fields come from the client and are shown back cut to this many characters.
const FIELD_CHARS_MAX: usize = 64;

/// What kind of problem, beyond the reasons that shards know.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Kind {
    /// A reason of the API.
    Api(Reason),
    /// No such page or call.
    NoRoute,
    /// The page or call is there, the method is not.
    Method,
    /// The request did not arrive whole in time. Nothing was done.
    SlowRequest,
    /// A content coding that is not undone here.
    Encoding,
    /// Our own mistake.
    Internal,
}

impl Kind {
    /// The machine-readable reason.
    const fn reason(self) -> &'static str {
        match self {
            Self::Api(reason) => reason.as_str(),
            Self::NoRoute => "NOT_FOUND",
            Self::Method => "METHOD_NOT_ALLOWED",
            Self::SlowRequest => "REQUEST_TIMEOUT",
            Self::Encoding => "UNSUPPORTED_ENCODING",
            Self::Internal => "INTERNAL",
        }
    }

    fn status_and_title(self) -> (StatusCode, &'static str) {
        match self {
            Self::Api(reason) => status_and_title(reason),
            Self::NoRoute => (StatusCode::NOT_FOUND, "No such page"),
            Self::Method => (StatusCode::METHOD_NOT_ALLOWED, "Another method is needed"),
            Self::SlowRequest => (StatusCode::REQUEST_TIMEOUT, "The request took too long"),
            Self::Encoding => (
                StatusCode::UNSUPPORTED_MEDIA_TYPE,
                "The content coding is not supported",
            ),
            Self::Internal => (
                StatusCode::INTERNAL_SERVER_ERROR,
                "Something went wrong here",
            ),
        }
    }
}

/// The status of each reason. No `_` arm: a new reason must choose.
fn status_and_title(reason: Reason) -> (StatusCode, &'static str) {
    match reason {
        Reason::InvalidField => (StatusCode::BAD_REQUEST, "The request is not valid"),
        Reason::KeyMissing => (StatusCode::BAD_REQUEST, "The idempotency key is missing"),
        Reason::KeyMalformed => (StatusCode::BAD_REQUEST, "The idempotency key is malformed"),
        Reason::EmptyBody => (StatusCode::BAD_REQUEST, "The paste is empty"),
        Reason::TokenMissing => (StatusCode::UNAUTHORIZED, "The delete token is missing"),
        Reason::TokenRejected => (StatusCode::FORBIDDEN, "The delete token is wrong"),
        Reason::PasteNotFound => (StatusCode::NOT_FOUND, "No such paste"),
        Reason::KeyReused => (StatusCode::CONFLICT, "The key belongs to another request"),
        Reason::BodyTooLarge => (StatusCode::PAYLOAD_TOO_LARGE, "The paste is too large"),
        Reason::AnswerNotOpened => (
            StatusCode::INTERNAL_SERVER_ERROR,
            "The stored answer cannot be opened",
        ),
        Reason::Damaged => (StatusCode::INTERNAL_SERVER_ERROR, "Stored data is damaged"),
        Reason::BodyMissing => (
            StatusCode::INTERNAL_SERVER_ERROR,
            "The paste's body is missing",
        ),
        Reason::BodyDamaged => (
            StatusCode::INTERNAL_SERVER_ERROR,
            "The paste's body is damaged",
        ),
        Reason::TicketRejected | Reason::CreateTooLate | Reason::IdTaken => (
            StatusCode::SERVICE_UNAVAILABLE,
            "The paste was not saved: ask again",
        ),
        Reason::WrongShard | Reason::NotLeader | Reason::WrongCluster | Reason::NotReady => {
            (StatusCode::SERVICE_UNAVAILABLE, "Not ready: ask again")
        }
        Reason::Overloaded => (
            StatusCode::SERVICE_UNAVAILABLE,
            "Too much to do: ask again later",
        ),
        Reason::DiskFull => (StatusCode::SERVICE_UNAVAILABLE, "No room for new pastes"),
        Reason::BodyStoreDown => (StatusCode::SERVICE_UNAVAILABLE, "Bodies are out of reach"),
        Reason::OutcomeUnknown => (StatusCode::SERVICE_UNAVAILABLE, "The outcome is unknown"),
        // Nothing that is asked here has them for an answer.
        Reason::UnknownConsumer | Reason::TooManyConsumers | Reason::DeadLetterNotFound => {
            Kind::Internal.status_and_title()
        }
        Reason::DeadlineExceeded => (StatusCode::GATEWAY_TIMEOUT, "No answer in time"),
    }
}

/// What was asked of a shard or of the object store.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Call {
    /// To save a paste.
    Create,
    /// To read one.
    Read,
    /// To end one.
    Delete,
}

/// An error on its way to the client. Carries no key, token, body or title.
#[derive(Debug, Clone)]
pub(crate) struct Problem(Box<Inner>);

#[derive(Debug, Clone)]
struct Inner {
    kind: Kind,
    detail: Cow<'static, str>,
    field: Option<String>,
    limit: Option<usize>,
    retry_after: Option<u64>,
    /// The form that a person comes back to.
    form: Option<String>,
}

impl Problem {
    pub(crate) fn new(reason: Reason, detail: impl Into<Cow<'static, str>>) -> Self {
        Self::of(Kind::Api(reason), detail)
    }

    pub(crate) fn of(kind: Kind, detail: impl Into<Cow<'static, str>>) -> Self {
        let inner = Inner {
            kind,
            detail: detail.into(),
            field: None,
            limit: None,
            retry_after: None,
            form: None,
        };
        Self(Box::new(inner))
    }

    /// A field or option that is wrong, by its name.
    pub(crate) fn field(name: &str, detail: impl Into<Cow<'static, str>>) -> Self {
        let mut problem = Self::new(Reason::InvalidField, detail);
        problem.0.field = Some(shown(name));
        problem
    }

    /// The same for each id that names no paste, whether there once was one or not.
    pub(crate) fn no_paste() -> Self {
        Self::new(
            Reason::PasteNotFound,
            "the paste expired, was deleted, or never existed",
        )
    }

    pub(crate) fn too_large(limit: usize) -> Self {
        let detail = format!("a paste has at most {limit} bytes");
        let mut problem = Self::new(Reason::BodyTooLarge, detail);
        problem.0.limit = Some(limit);
        problem
    }

    pub(crate) fn internal() -> Self {
        Self::of(
            Kind::Internal,
            "this is a mistake of the service, not of the request",
        )
    }

    /// With a link, on the page, to the form at `path`.
    pub(crate) fn back_to(mut self, path: String) -> Self {
        self.0.form = Some(path);
        self
    }

    pub(crate) fn retry_after_secs(mut self, secs: u64) -> Self {
        self.0.retry_after = Some(secs.clamp(1, RETRY_AFTER_MAX_SECS));
        self
    }

    fn waits(self, delay: Option<Duration>) -> Self {
        let secs = delay.map_or(1, |delay| delay.as_millis().div_ceil(1000));
        self.retry_after_secs(u64::try_from(secs).unwrap_or(RETRY_AFTER_MAX_SECS))
    }

    pub(crate) fn kind(&self) -> Kind {
        self.0.kind
    }

    pub(crate) fn status(&self) -> StatusCode {
        self.0.kind.status_and_title().0
    }

    /// The only place where an error of a shard becomes a problem. No `_` arm over the reasons: a
    /// new one must choose.
    pub(crate) fn from_client(err: &ostraca_client::Error, call: Call) -> Self {
        let reason = match err.reason() {
            Some(reason) => reason,
            // Nobody of ours refused what we sent: then we sent what we should not have.
            None if err.kind() == ErrorKind::Rejected => return Self::internal(),
            // A read changes nothing, so nothing is unknown.
            None if call == Call::Read => Reason::NotReady,
            None => Reason::OutcomeUnknown,
        };
        let again = match call {
            Call::Create => "ask again with the same idempotency key",
            Call::Read | Call::Delete => "ask again",
        };
        match reason {
            // The shard's text says what is wrong with the request, and carries no secret.
            Reason::InvalidField => match err.metadata("field") {
                Some(field) => Self::field(field, err.message().to_owned()),
                None => Self::new(reason, err.message().to_owned()),
            },
            Reason::KeyMissing | Reason::KeyMalformed | Reason::EmptyBody => {
                Self::new(reason, err.message().to_owned())
            }
            Reason::BodyTooLarge => Self::new(
                reason,
                "the shard takes no paste of this size; nothing was saved",
            ),
            Reason::KeyReused => Self::key_reused(),
            Reason::PasteNotFound => Self::no_paste(),
            Reason::TokenRejected => Self::wrong_token(),
            Reason::TokenMissing => Self::no_token(),
            Reason::AnswerNotOpened => Self::new(
                reason,
                "the paste was saved once with this key, and its answer cannot be opened any more",
            ),
            Reason::Damaged => Self::new(reason, "the shard found stored data damaged"),
            Reason::BodyMissing => Self::body_missing(),
            Reason::BodyDamaged => Self::body_damaged(),
            Reason::TicketRejected | Reason::CreateTooLate | Reason::IdTaken => {
                Self::new(reason, format!("nothing was saved: {again}")).waits(err.retry_after())
            }
            Reason::Overloaded => {
                Self::new(reason, format!("the shard is busy: {again}")).waits(err.retry_after())
            }
            Reason::DiskFull => Self::new(reason, "the shard's disk is full; nothing was saved")
                .waits(err.retry_after()),
            // That a slot has moved is our business, not the client's.
            Reason::WrongShard | Reason::NotLeader | Reason::WrongCluster | Reason::NotReady => {
                let detail = format!("the paste's shard is not ready: {again}");
                Self::new(Reason::NotReady, detail).waits(err.retry_after())
            }
            Reason::BodyStoreDown => Self::body_store_down(call),
            Reason::UnknownConsumer | Reason::TooManyConsumers | Reason::DeadLetterNotFound => {
                Self::internal()
            }
            Reason::OutcomeUnknown => {
                let detail = format!("whether it was done is not known: {again}");
                Self::new(reason, detail).waits(err.retry_after())
            }
            Reason::DeadlineExceeded => Self::deadline(call),
        }
    }

    /// The only place where an error of the object store becomes a problem.
    pub(crate) fn from_bodies(err: &ostraca_bodies::Error, call: Call) -> Self {
        use ostraca_bodies::Kind;
        match (err.kind(), call) {
            // An id that is taken: the next attempt gets another one.
            (Kind::Exists, _) => Self::new(
                Reason::IdTaken,
                "nothing was saved: ask again with the same key",
            )
            .waits(None),
            (Kind::Full, _) => Self::new(
                Reason::DiskFull,
                "there is no room for bodies; nothing was saved",
            )
            .waits(None),
            (Kind::Missing, _) => Self::body_missing(),
            (Kind::Rejected, Call::Create) => Self::internal(),
            (Kind::Rejected, Call::Read | Call::Delete) => Self::body_damaged(),
            (Kind::Down, _) => Self::body_store_down(call),
        }
    }

    pub(crate) fn key_reused() -> Self {
        Self::new(
            Reason::KeyReused,
            "this idempotency key was used for another request; a new paste needs a new key",
        )
    }

    pub(crate) fn wrong_token() -> Self {
        Self::new(
            Reason::TokenRejected,
            "this is not the paste's delete token",
        )
    }

    pub(crate) fn no_token() -> Self {
        Self::new(
            Reason::TokenMissing,
            "send the delete token as 'Authorization: Bearer TOKEN'",
        )
    }

    pub(crate) fn body_missing() -> Self {
        Self::new(
            Reason::BodyMissing,
            "the paste is there, and its body is not where it should be",
        )
    }

    pub(crate) fn body_damaged() -> Self {
        Self::new(
            Reason::BodyDamaged,
            "the body that is stored is not the one that was saved",
        )
    }

    pub(crate) fn deadline(call: Call) -> Self {
        Self::new(
            Reason::DeadlineExceeded,
            match call {
                Call::Create => {
                    "it may have been saved: ask again with the same idempotency key to find out"
                }
                Call::Read => "ask again",
                Call::Delete => "it may have been deleted: ask again to find out",
            },
        )
    }

    fn body_store_down(call: Call) -> Self {
        let detail = match call {
            Call::Create => "nothing was saved: ask again with the same idempotency key",
            Call::Read | Call::Delete => "the object store does not answer: ask again",
        };
        Self::new(Reason::BodyStoreDown, detail).waits(None)
    }

    /// The answer, in the form that the request asked for.
    pub(crate) fn render(&self, request: &HeaderMap) -> Response {
        let (status, title) = self.0.kind.status_and_title();
        let detail: &str = &self.0.detail;
        let (content_type, text) =
            match prefer(request, &[Format::Json, Format::Text, Format::Html]) {
                Format::Json => ("application/problem+json", self.json(status, title)),
                Format::Text => {
                    let reason = self.0.kind.reason();
                    (
                        "text/plain; charset=utf-8",
                        format!("{title}: {detail} ({reason})\n"),
                    )
                }
                Format::Html => {
                    let retry =
                        self.0.retry_after.is_some() || status == StatusCode::GATEWAY_TIMEOUT;
                    let conflict = self.0.kind == Kind::Api(Reason::KeyReused);
                    let page = pages::ErrorPage {
                        assets: pages::assets(),
                        status: status.as_u16(),
                        title,
                        detail: &sentence(detail),
                        form: self.0.form.as_deref(),
                        retry,
                        conflict,
                    };
                    // A template over strings has no way to fail.
                    (
                        "text/html; charset=utf-8",
                        page.render().unwrap_or_default(),
                    )
                }
            };
        let mut response = (status, text).into_response();
        let headers = response.headers_mut();
        let mut set = |name: HeaderName, value: &'static str| {
            headers.insert(name, HeaderValue::from_static(value));
        };
        set(CONTENT_TYPE, content_type);
        set(CACHE_CONTROL, "no-store");
        set(VARY, "Accept");
        if status == StatusCode::UNAUTHORIZED {
            set(WWW_AUTHENTICATE, "Bearer realm=\"ostraca\"");
        }
        if let Some(secs) = self.0.retry_after {
            response
                .headers_mut()
                .insert(RETRY_AFTER, HeaderValue::from(secs));
        }
        response
    }

    fn json(&self, status: StatusCode, title: &str) -> String {
        #[derive(Serialize)]
        struct Document<'a> {
            r#type: String,
            title: &'a str,
            status: u16,
            detail: &'a str,
            reason: &'a str,
            #[serde(skip_serializing_if = "Option::is_none")]
            field: Option<&'a str>,
            #[serde(skip_serializing_if = "Option::is_none")]
            limit: Option<usize>,
        }
        let reason = self.0.kind.reason();
        let document = Document {
            r#type: problem_type(reason),
            title,
            status: status.as_u16(),
            detail: &self.0.detail,
            reason,
            field: self.0.field.as_deref(),
            limit: self.0.limit,
        };
        let mut text = serde_json::to_string(&document).unwrap_or_default();
        text.push('\n');
        text
    }
}

/// The URI that names a reason.
fn problem_type(reason: &str) -> String {
    format!(
        "https://ostraca.dev/problems/{}",
        reason.to_ascii_lowercase().replace('_', "-")
    )
}

/// A detail as a page shows it. The name of a field at its beginning stays as it is.
fn sentence(detail: &str) -> String {
    let word = detail.split(' ').next().unwrap_or_default();
    let mut text = if word.bytes().all(|byte| byte.is_ascii_lowercase()) {
        let (first, rest) = detail.split_at(detail.len().min(1));
        first.to_ascii_uppercase() + rest
    } else {
        detail.to_owned()
    };
    if !text.ends_with(['.', '?', '!', '…']) {
        text.push('.');
    }
    text
}

/// A name from the client as it can be shown: cut, and without control characters.
pub(crate) fn shown(name: &str) -> String {
    let safe = |c: char| {
        if c.is_control() {
            char::REPLACEMENT_CHARACTER
        } else {
            c
        }
    };
    let mut text: String = name.chars().take(FIELD_CHARS_MAX).map(safe).collect();
    if name.chars().nth(FIELD_CHARS_MAX).is_some() {
        text.push('…');
    }
    text
}

/// The status, and the problem itself for whoever renders it.
impl IntoResponse for Problem {
    fn into_response(self) -> Response {
        let mut response = self.status().into_response();
        response.extensions_mut().insert(self);
        response
    }
}

/// Replaces a response that carries a problem by the problem's rendering, keeping `Allow`.
pub(crate) fn rendered(mut response: Response, request: &HeaderMap) -> Response {
    match response.extensions_mut().remove::<Problem>() {
        Some(problem) => {
            let mut rendered = problem.render(request);
            if let Some(allow) = response.headers_mut().remove(ALLOW) {
                rendered.headers_mut().insert(ALLOW, allow);
            }
            rendered
        }
        None => response,
    }
}

#[cfg(test)]
mod tests;
