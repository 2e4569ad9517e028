//! Edges: none, and caches that understand the HTTP method PURGE (Varnish, nginx, Squid).
//!
//! A purge names a URL, and a cache keeps a query string as another object: what somebody read
//! under `/{id}?x` stays until its max-age is over, as anything does that nobody purges (r06).

use std::fmt;
use std::time::{Duration, SystemTime};

use futures_util::future::join_all;
use ostraca_types::PasteId;
use reqwest::header::{DATE, HOST, HeaderMap, HeaderName, HeaderValue, RETRY_AFTER};
use reqwest::{Client, Method, Response, Url, redirect};

use crate::PURGE_DEADLINE;
use crate::ports::Edge;

/// One target's answer is given up a little before the whole purge is, so that it can be named.
const TARGET_DEADLINE: Duration = PURGE_DEADLINE.saturating_sub(Duration::from_millis(250));
const CONNECT_DEADLINE: Duration = Duration::from_secs(2);
/// An edge that asks for more patience than this is tried once an hour.
const RETRY_AFTER_MAX: Duration = Duration::from_secs(3600);
/// So much of an answer is read, to keep the connection; nothing of it is used.
const ANSWER_SIZE_MAX: usize = 64 << 10;

/// Which edges there are.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum EdgeConfig {
    /// None: readers reach the frontend itself.
    None,
    /// Each of these is sent a PURGE.
    HttpPurge(Vec<Url>),
}

/// The text names no edge.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct EdgeConfigError;

impl fmt::Display for EdgeConfigError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(
            "an edge is `none` or `http-purge=URL,URL`: http:// or https:// without user, query or \
             fragment",
        )
    }
}

impl std::error::Error for EdgeConfigError {}

impl EdgeConfig {
    /// Reads `none` or `http-purge=URL[,URL]`.
    pub fn parse(text: &str) -> Result<Self, EdgeConfigError> {
        if text == "none" {
            return Ok(Self::None);
        }
        let urls = text.strip_prefix("http-purge=").ok_or(EdgeConfigError)?;
        let targets = urls.split(',').map(target);
        Ok(Self::HttpPurge(targets.collect::<Result<_, _>>()?))
    }
}

/// As [`EdgeConfig::parse`] reads it.
impl fmt::Display for EdgeConfig {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::None => f.write_str("none"),
            Self::HttpPurge(targets) => {
                let targets: Vec<_> = targets.iter().map(Url::as_str).collect();
                write!(f, "http-purge={}", targets.join(","))
            }
        }
    }
}

/// A password in a URL would be seen in the list of processes, so there is none.
fn target(text: &str) -> Result<Url, EdgeConfigError> {
    let url = Url::parse(text).map_err(|_| EdgeConfigError)?;
    let plain = matches!(url.scheme(), "http" | "https")
        && url.has_host()
        && url.username().is_empty()
        && url.password().is_none()
        && url.query().is_none()
        && url.fragment().is_none();
    plain.then_some(url).ok_or(EdgeConfigError)
}

/// What was wrong.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum PurgeFault {
    /// It answered that it does not purge for us (401, 403, 405), or nothing that a cache says:
    /// somebody has to change its configuration or ours.
    Refused(u16),
    /// It has no time (429, 5xx).
    Busy(u16),
    /// No connection, or one that broke.
    Unreachable,
    /// No answer in time.
    Deadline,
}

/// Why an edge was not purged.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct PurgeError {
    fault: PurgeFault,
    /// `host:port`; `None` if it is not known which one it was.
    target: Option<String>,
    retry_after: Option<Duration>,
}

impl PurgeError {
    /// Of an edge without a name.
    #[must_use]
    pub const fn new(fault: PurgeFault) -> Self {
        Self {
            fault,
            target: None,
            retry_after: None,
        }
    }

    /// The same of an edge that asked to be left alone for so long.
    #[must_use]
    pub const fn with_retry_after(mut self, wait: Duration) -> Self {
        self.retry_after = Some(wait);
        self
    }

    /// What was wrong.
    #[must_use]
    pub const fn fault(&self) -> PurgeFault {
        self.fault
    }

    /// How long it asked to be left alone.
    #[must_use]
    pub const fn retry_after(&self) -> Option<Duration> {
        self.retry_after
    }
}

impl fmt::Display for PurgeError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if let Some(target) = &self.target {
            write!(f, "{target} ")?;
        }
        match self.fault {
            PurgeFault::Refused(status) => write!(f, "answered {status}, so it is not set up"),
            PurgeFault::Busy(status) => write!(f, "answered {status}"),
            PurgeFault::Unreachable => f.write_str("cannot be reached"),
            PurgeFault::Deadline => f.write_str("did not answer in time"),
        }
    }
}

impl std::error::Error for PurgeError {}

/// The edges of a configuration.
#[derive(Debug)]
pub struct HttpEdge {
    http: Client,
    targets: Vec<Target>,
    /// What readers' requests have as their Host, if not the target's own.
    host: Option<HeaderValue>,
}

#[derive(Debug)]
struct Target {
    /// Without a slash at its end.
    base: String,
    /// `host:port`.
    name: String,
}

impl HttpEdge {
    /// `public_url` is what links start with: a cache knows its objects by the Host of the readers'
    /// requests, which is the target's own name unless this is given.
    pub fn new(config: &EdgeConfig, public_url: Option<&Url>) -> reqwest::Result<Self> {
        let targets: &[Url] = match config {
            EdgeConfig::None => &[],
            EdgeConfig::HttpPurge(targets) => targets,
        };
        let mut builder = Client::builder();
        if !targets.iter().any(|target| target.scheme() == "https") {
            // The system's certificates are not needed, and a small container has none.
            builder = builder.tls_certs_only([]);
        }
        let http = builder
            // Edges are our own machines: no redirect away from them, no proxy in between, and the
            // one who tries again is the outbox.
            .redirect(redirect::Policy::none())
            .no_proxy()
            .retry(reqwest::retry::never())
            .connect_timeout(CONNECT_DEADLINE)
            .timeout(TARGET_DEADLINE)
            .user_agent(concat!("ostraca/", env!("CARGO_PKG_VERSION")))
            .build()?;
        // A host and a port of a parsed URL are visible ASCII.
        let host = public_url.and_then(|url| HeaderValue::try_from(authority(url)).ok());
        Ok(Self {
            http,
            targets: targets
                .iter()
                .map(|url| Target {
                    base: url.as_str().trim_end_matches('/').to_owned(),
                    name: authority(url),
                })
                .collect(),
            host,
        })
    }

    async fn purge_one(&self, target: &Target, path: &str) -> Result<(), PurgeError> {
        let failed = |fault, retry_after| PurgeError {
            fault,
            target: Some(target.name.clone()),
            retry_after,
        };
        // Five letters are a method.
        let method = Method::from_bytes(b"PURGE").unwrap_or(Method::DELETE);
        let mut request = self.http.request(method, format!("{}{path}", target.base));
        if let Some(host) = &self.host {
            request = request.header(HOST, host.clone());
        }
        let response = request.send().await.map_err(|err| {
            let fault = if err.is_timeout() && !err.is_connect() {
                PurgeFault::Deadline
            } else {
                PurgeFault::Unreachable
            };
            failed(fault, None)
        })?;
        let status = response.status();
        let wait = retry_after(response.headers());
        skip(response).await;
        match status.as_u16() {
            // 404: it kept nothing under this URL.
            200..=299 | 404 => Ok(()),
            code @ (429 | 500..=599) => Err(failed(PurgeFault::Busy(code), wait)),
            code => Err(failed(PurgeFault::Refused(code), None)),
        }
    }
}

/// Every URL under which the frontend serves something of a paste that a cache may keep.
fn paths(id: &PasteId) -> [String; 3] {
    [
        format!("/{id}"),
        format!("/{id}/raw"),
        format!("/api/v1/pastes/{id}"),
    ]
}

impl Edge for HttpEdge {
    /// All URLs on all targets, also after one of them failed. Of several errors the one for a
    /// person is told, with the longest wait that any target asked for.
    async fn purge(&self, id: &PasteId) -> Result<(), PurgeError> {
        let paths = paths(id);
        let purges = self
            .targets
            .iter()
            .flat_map(|target| paths.iter().map(move |path| self.purge_one(target, path)));
        let errors: Vec<_> = join_all(purges)
            .await
            .into_iter()
            .filter_map(Result::err)
            .collect();
        let wait = errors.iter().filter_map(PurgeError::retry_after).max();
        let refused = |err: &&PurgeError| matches!(err.fault, PurgeFault::Refused(_));
        match errors.iter().find(refused).or(errors.first()) {
            None => Ok(()),
            Some(err) => Err(PurgeError {
                retry_after: wait,
                ..err.clone()
            }),
        }
    }
}

fn authority(url: &Url) -> String {
    let host = url.host_str().unwrap_or_default();
    match url.port() {
        Some(port) => format!("{host}:{port}"),
        None => host.to_owned(),
    }
}

/// Reads what is left of an answer, or the connection could not be used again.
async fn skip(mut response: Response) {
    let mut read = 0;
    while let Ok(Some(chunk)) = response.chunk().await {
        read += chunk.len();
        if read > ANSWER_SIZE_MAX {
            return;
        }
    }
}

/// Seconds, or a date: then by the edge's own clock, which is in the same answer.
fn retry_after(headers: &HeaderMap) -> Option<Duration> {
    let text = |name: HeaderName| headers.get(name)?.to_str().ok();
    let date = |text: &str| -> Option<SystemTime> { httpdate::parse_http_date(text).ok() };
    let value = text(RETRY_AFTER)?;
    let wait = match value.trim().parse() {
        Ok(secs) => Duration::from_secs(secs),
        Err(_) => {
            let until = date(value)?;
            until.duration_since(date(text(DATE)?)?).unwrap_or_default()
        }
    };
    Some(wait.min(RETRY_AFTER_MAX))
}

#[cfg(test)]
mod tests;
