//! The server at the other end.

use std::time::Duration;

use ostraca_types::{DeleteToken, IdempotencyKey, Lifetime, PasteId, Reason, Syntax, Title};
use reqwest::header::{AUTHORIZATION, HeaderMap, HeaderValue};
use reqwest::{Response, StatusCode, Url, redirect};
use serde::Deserialize;

use crate::exit::{Exit, Failure};

/// A server of this or the next network answers a connect much faster.
const CONNECT_LIMIT: Duration = Duration::from_secs(10);
/// Above the server's own deadline of 30 s, which gives the better message.
const ANSWER_LIMIT: Duration = Duration::from_secs(60);
/// No error answer is longer; more is not ours, and not shown.
const PROBLEM_SIZE_MAX: usize = 16 << 10;

pub(super) struct Server {
    http: reqwest::Client,
    /// Without a slash at its end.
    base: String,
}

/// What is to be saved.
pub(super) struct Save<'a> {
    pub(super) key: &'a IdempotencyKey,
    pub(super) body: Vec<u8>,
    pub(super) lifetime: Option<Lifetime>,
    pub(super) syntax: Option<&'a Syntax>,
    pub(super) title: Option<&'a Title>,
}

/// The fields of a problem (RFC 9457) that a person or a script acts on.
#[derive(Deserialize, Default)]
#[serde(default)]
struct Problem {
    reason: String,
    title: String,
    detail: String,
}

impl Server {
    pub(super) fn new(url: &str) -> Result<Self, Failure> {
        let parsed = Url::parse(url).ok();
        if !parsed.is_some_and(|url| matches!(url.scheme(), "http" | "https") && url.has_host()) {
            let message = format!("a server's URL is http:// or https:// and a host, not {url}");
            return Err(Failure::new(Exit::Usage, message));
        }
        let http = http_client(url).map_err(|err| Failure::caused(Exit::Failed, &err))?;
        Ok(Self {
            http,
            base: url.trim_end_matches('/').to_owned(),
        })
    }

    /// Saves, and returns the server's JSON.
    pub(super) async fn save(&self, save: Save<'_>) -> Result<String, Failure> {
        let mut headers = HeaderMap::new();
        let mut header = |name: &'static str, value: Option<&str>| -> Result<(), Failure> {
            if let Some(value) = value {
                // A title is UTF-8 without control characters, which a header can carry.
                let value = HeaderValue::from_bytes(value.as_bytes())
                    .map_err(|err| Failure::doing(Exit::Usage, "not a header's value", &err))?;
                headers.insert(name, value);
            }
            Ok(())
        };
        header(
            "paste-lifetime",
            save.lifetime.map(|l| l.as_secs().to_string()).as_deref(),
        )?;
        header("paste-syntax", save.syntax.map(Syntax::as_str))?;
        header("paste-title", save.title.map(Title::as_str))?;
        header("content-type", Some("application/octet-stream"))?;
        header("accept", Some("application/json"))?;
        headers.insert("idempotency-key", secret(&save.key.expose_text())?);
        let url = format!("{}/api/v1/pastes", self.base);
        let response = sent(
            self.http
                .post(url)
                .headers(headers)
                .body(save.body)
                .send()
                .await,
        )?;
        accepted(response)
            .await?
            .text()
            .await
            .map_err(|err| broken(&err))
    }

    /// The answer with a paste's bytes, to be read with [`next`].
    pub(super) async fn raw(&self, id: &PasteId) -> Result<Response, Failure> {
        let url = format!("{}/{id}/raw", self.base);
        accepted(sent(self.http.get(url).send().await)?).await
    }

    pub(super) async fn delete(&self, id: &PasteId, token: &DeleteToken) -> Result<(), Failure> {
        let url = format!("{}/api/v1/pastes/{id}", self.base);
        let bearer = secret(&format!("Bearer {}", token.expose_text()))?;
        let response = sent(
            self.http
                .delete(url)
                .header(AUTHORIZATION, bearer)
                .send()
                .await,
        )?;
        accepted(response).await.map(|_| ())
    }
}

/// A client that neither follows redirects (a key or token would go along) nor retries.
pub(crate) fn http_client(url: &str) -> reqwest::Result<reqwest::Client> {
    let mut builder = reqwest::Client::builder();
    if !url.starts_with("https://") {
        // The system's certificates are not needed; a small container has none, and that would be
        // an error. Redirects, which could lead to https, are not followed.
        builder = builder.tls_certs_only([]);
    }
    builder
        .redirect(redirect::Policy::none())
        .retry(reqwest::retry::never())
        .connect_timeout(CONNECT_LIMIT)
        .timeout(ANSWER_LIMIT)
        .user_agent(concat!("ostraca/", env!("CARGO_PKG_VERSION")))
        .build()
}

/// A header's value that no log shows.
fn secret(value: &str) -> Result<HeaderValue, Failure> {
    let mut value = HeaderValue::from_str(value)
        .map_err(|err| Failure::doing(Exit::Usage, "not a header's value", &err))?;
    value.set_sensitive(true);
    Ok(value)
}

/// The next bytes of an answer.
pub(super) async fn next(
    response: &mut Response,
) -> Result<Option<impl AsRef<[u8]> + use<>>, Failure> {
    response.chunk().await.map_err(|err| broken(&err))
}

fn sent(result: reqwest::Result<Response>) -> Result<Response, Failure> {
    result.map_err(|err| broken(&err))
}

fn broken(err: &reqwest::Error) -> Failure {
    let exit = if err.is_builder() {
        Exit::Usage
    } else if err.is_timeout() {
        Exit::Timeout
    } else {
        Exit::Unavailable
    };
    let server = err.url().map(|url| url.origin().ascii_serialization());
    let server = server.as_deref().unwrap_or("the server");
    let what = if err.is_connect() {
        format!("cannot reach {server}, is `ostraca up` running?")
    } else if err.is_timeout() {
        format!("no answer in time from {server}")
    } else {
        format!("no answer from {server}")
    };
    // What lies between is about the library's insides.
    let mut cause: &dyn std::error::Error = err;
    while let Some(source) = cause.source() {
        cause = source;
    }
    Failure::doing(exit, what, cause)
}

/// The answer, if it is a success; what the server says went wrong otherwise.
async fn accepted(mut response: Response) -> Result<Response, Failure> {
    let status = response.status();
    if status.is_success() {
        return Ok(response);
    }
    let mut bytes = Vec::new();
    // An answer that breaks off still has its status.
    while let Ok(Some(chunk)) = response.chunk().await {
        bytes.extend_from_slice(&chunk);
        if bytes.len() > PROBLEM_SIZE_MAX {
            bytes.clear();
            break;
        }
    }
    let problem: Problem = serde_json::from_slice(&bytes).unwrap_or_default();
    let reason = Reason::parse(&problem.reason);
    let message = match (problem.detail.as_str(), problem.title.as_str()) {
        ("", "") => format!("the server answered {status}"),
        ("", title) => title.to_owned(),
        (detail, _) => detail.to_owned(),
    };
    Err(Failure::new(exit_of(status, reason), message))
}

fn exit_of(status: StatusCode, reason: Option<Reason>) -> Exit {
    if let Some(
        Reason::Damaged | Reason::BodyDamaged | Reason::BodyMissing | Reason::AnswerNotOpened,
    ) = reason
    {
        return Exit::Damaged;
    }
    match status {
        StatusCode::NOT_FOUND => Exit::NotFound,
        StatusCode::CONFLICT => Exit::Conflict,
        StatusCode::REQUEST_TIMEOUT | StatusCode::GATEWAY_TIMEOUT => Exit::Timeout,
        StatusCode::TOO_MANY_REQUESTS
        | StatusCode::BAD_GATEWAY
        | StatusCode::SERVICE_UNAVAILABLE => Exit::Unavailable,
        _ => Exit::Failed,
    }
}

/// Where a paste is that was named by its id or by its URL: the server and the id. What cannot be
/// an id is a missing one (k06).
pub(super) fn paste_at(server: &str, text: &str) -> Result<(String, PasteId), Failure> {
    let is_url = text.starts_with("http://") || text.starts_with("https://");
    let (base, id) = if is_url {
        let path = text
            .split(['?', '#'])
            .next()
            .unwrap_or(text)
            .trim_end_matches('/');
        let path = path.strip_suffix("/raw").unwrap_or(path);
        path.rsplit_once('/').unwrap_or((path, ""))
    } else {
        (server, text)
    };
    let base = base
        .strip_suffix("/api/v1/pastes")
        .filter(|_| is_url)
        .unwrap_or(base);
    let id =
        PasteId::parse(id).map_err(|err| Failure::doing(Exit::NotFound, "no such paste", &err))?;
    Ok((base.to_owned(), id))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_paste_is_named_by_id_or_url() {
        let id = "0aKX2b3c4d5e6f";
        let default = "http://127.0.0.1:8080";
        let at = |text: &str| {
            paste_at(default, text)
                .map(|(base, id)| (base, id.to_string()))
                .map_err(|err| err.exit)
        };
        assert_eq!(at(id), Ok((default.to_owned(), id.to_owned())));
        for tail in ["", "/", "/raw", "?x=1", "#L3"] {
            let url = format!("https://paste.example/base/{id}{tail}");
            assert_eq!(
                at(&url),
                Ok(("https://paste.example/base".to_owned(), id.to_owned()))
            );
        }
        let api = format!("http://[::1]:80/api/v1/pastes/{id}");
        assert_eq!(at(&api), Ok(("http://[::1]:80".to_owned(), id.to_owned())));
        for wrong in [
            "",
            "x",
            "http://",
            "https://paste.example",
            "zz000000000000",
        ] {
            assert_eq!(at(wrong), Err(Exit::NotFound), "{wrong}");
        }
    }

    #[test]
    fn statuses_have_their_exit_codes() {
        let exit = |status| exit_of(StatusCode::from_u16(status).expect("a status"), None);
        let expected = [
            (400, Exit::Failed),
            (401, Exit::Failed),
            (403, Exit::Failed),
            (404, Exit::NotFound),
            (409, Exit::Conflict),
            (413, Exit::Failed),
            (503, Exit::Unavailable),
            (504, Exit::Timeout),
        ];
        for (status, code) in expected {
            assert_eq!(exit(status), code, "{status}");
        }
        assert_eq!(
            exit_of(StatusCode::INTERNAL_SERVER_ERROR, Some(Reason::BodyMissing)),
            Exit::Damaged
        );
    }
}
