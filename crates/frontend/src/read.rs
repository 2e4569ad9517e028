//! Reading a paste: its bytes, its page, its metadata.

use askama::Template as _;
use axum::body::Body;
use axum::extract::rejection::PathRejection;
use axum::extract::{Path, State};
use axum::http::header::{
    ACCEPT_RANGES, CACHE_CONTROL, CONTENT_SECURITY_POLICY, CONTENT_TYPE, ETAG, IF_NONE_MATCH, LINK,
};
use axum::http::{HeaderMap, HeaderValue, StatusCode};
use axum::response::{IntoResponse, Response};
use bytes::Bytes;
use ostraca_bodies::Kind;
use ostraca_client::Paste;
use ostraca_types::contract::{BODY_SIZE_MAX, EDGE_MAX_AGE};
use ostraca_types::{BodyDigest, PasteId};
use serde::Serialize;
use sha2::{Digest as _, Sha256};

use crate::admission::{Reading, page_cost};
use crate::body::hashed;
use crate::frontend::{App, Shared};
use crate::instant::{readable, rfc3339};
use crate::pages;
use crate::problem::{Call, Problem};

/// Raw bodies run nothing and load nothing, whatever they contain.
const RAW_POLICY: &str = "sandbox; default-src 'none'";
/// A page shows so many bytes of a paste; the rest is behind the raw link.
pub(crate) const PREVIEW_SIZE_MAX: usize = 512 << 10;
/// A path parameter that may be anything, also no UTF-8.
pub(crate) type Param = Result<Path<String>, PathRejection>;

/// A text that is no id is an id that names no paste (k06).
pub(crate) fn paste_id(param: Param) -> Result<PasteId, Problem> {
    let Path(text) = param.map_err(|_| Problem::no_paste())?;
    PasteId::parse(&text).map_err(|_| Problem::no_paste())
}

/// The row, from its shard.
pub(crate) async fn row(app: &Shared, id: &PasteId) -> Result<Paste, Problem> {
    app.client
        .get_paste(id)
        .await
        .map_err(|err| Problem::from_client(&err, Call::Read))
}

/// What caches may do with a paste (r06): a shared one keeps it for a minute, and never beyond its
/// expiry by the shard's clock. Seconds are rounded down. A browser asks each time, which the tag
/// makes cheap: nobody can purge its cache, and who deletes a paste looks whether it is gone.
fn cache_control(paste: &Paste) -> HeaderValue {
    let left = paste.expires_at.since(paste.now);
    let secs = left.min(EDGE_MAX_AGE).as_secs();
    HeaderValue::try_from(format!(
        "public, max-age=0, must-revalidate, s-maxage={secs}"
    ))
    .unwrap_or(HeaderValue::from_static("no-store"))
}

/// `GET /{id}/raw`: the bytes.
pub(crate) async fn raw(
    State(app): State<App>,
    id: Param,
    headers: HeaderMap,
) -> Result<Response, Problem> {
    let paste = row(&app, &paste_id(id)?).await?;
    let etag = etag(&paste.body_digest.0);
    let mut response = if matches(&headers, &etag) {
        StatusCode::NOT_MODIFIED.into_response()
    } else {
        let (body, reading) = body(&app, &paste, size_of(&paste)).await?;
        Body::from(reading.held_by(body)).into_response()
    };
    let answer = response.headers_mut();
    answer.insert(
        CONTENT_TYPE,
        HeaderValue::from_static("text/plain; charset=utf-8"),
    );
    answer.insert(
        CONTENT_SECURITY_POLICY,
        HeaderValue::from_static(RAW_POLICY),
    );
    answer.insert(ACCEPT_RANGES, HeaderValue::from_static("none"));
    answer.insert(CACHE_CONTROL, cache_control(&paste));
    // Hexadecimal digits in quotes.
    if let Ok(etag) = HeaderValue::try_from(etag) {
        answer.insert(ETAG, etag);
    }
    Ok(response)
}

/// Strong: the same bytes and no others.
fn etag(digest: &[u8; 32]) -> String {
    let hex: String = digest[..16]
        .iter()
        .map(|byte| format!("{byte:02x}"))
        .collect();
    format!("\"{hex}\"")
}

/// Whether `If-None-Match` names the tag; compared weakly, as RFC 9110 has it.
fn matches(headers: &HeaderMap, etag: &str) -> bool {
    let values = headers.get_all(IF_NONE_MATCH).into_iter();
    values.filter_map(|value| value.to_str().ok()).any(|value| {
        value
            .split(',')
            .map(str::trim)
            .any(|tag| tag == "*" || tag.strip_prefix("W/").unwrap_or(tag) == etag)
    })
}

/// The body's size as the row has it; a size beyond all bodies is refused when it is read.
fn size_of(paste: &Paste) -> usize {
    usize::try_from(paste.body_size).map_or(BODY_SIZE_MAX, |size| size.min(BODY_SIZE_MAX))
}

/// The body, checked against the row before anything of it is sent (r07), and the right to have it
/// in memory, counted as `cost` bytes.
async fn body(app: &Shared, paste: &Paste, cost: usize) -> Result<(Bytes, Reading), Problem> {
    let reading = app.admission.read(cost)?;
    let object = &paste.object_key;
    let body = match app.bodies.get(object).await {
        Ok(body) => body,
        Err(err) => {
            match err.kind() {
                Kind::Missing => {
                    app.metrics.body_missing();
                    tracing::error!(event = "body_missing", %object);
                }
                Kind::Rejected => {
                    app.metrics.body_damaged();
                    tracing::error!(event = "body_damaged", %object, error = %err);
                }
                Kind::Exists | Kind::Full | Kind::Down => {
                    tracing::warn!(event = "body_get_failed", %object, error = %err);
                }
            }
            return Err(Problem::from_bodies(&err, Call::Read));
        }
    };
    let digest = hashed(&body, |body| BodyDigest(Sha256::digest(body).into())).await?;
    if body.len() as u64 == paste.body_size && digest == paste.body_digest {
        return Ok((body, reading));
    }
    app.metrics.body_damaged();
    tracing::error!(event = "body_damaged", %object);
    Err(Problem::body_damaged())
}

/// `GET /{id}`: the page.
pub(crate) async fn page(
    State(app): State<App>,
    id: Param,
    headers: HeaderMap,
) -> Result<Response, Problem> {
    let paste = row(&app, &paste_id(id)?).await?;
    let (body, reading) = body(&app, &paste, page_cost(size_of(&paste))).await?;
    let preview = Preview::of(&body);
    let id = paste.id.as_str();
    let page = pages::PastePage {
        assets: pages::assets(),
        id,
        url: &app.url(&paste.id),
        title: paste.title.as_ref().map(|title| title.as_str()),
        syntax: paste.syntax.as_ref().map(|syntax| syntax.as_str()),
        created_at: &readable(paste.created_at),
        expires_at: &readable(paste.expires_at),
        size: &pages::size(paste.body_size),
        preview: &preview,
    };
    let html = Bytes::from(page.render().map_err(|_| Problem::internal())?);
    // Of the page and not of the paste: another version may show the same paste otherwise.
    let etag = etag(&hashed(&html, |html| Sha256::digest(html).into()).await?);
    let mut response = if matches(&headers, &etag) {
        let mut unchanged = pages::html(Body::empty());
        *unchanged.status_mut() = StatusCode::NOT_MODIFIED;
        unchanged
    } else {
        pages::html(reading.held_by(html))
    };
    let headers = response.headers_mut();
    headers.insert(CACHE_CONTROL, cache_control(&paste));
    if let Ok(etag) = HeaderValue::try_from(etag) {
        headers.insert(ETAG, etag);
    }
    let link = format!("</{id}/raw>; rel=\"alternate\"; type=\"text/plain\"");
    if let Ok(link) = HeaderValue::try_from(link) {
        headers.insert(LINK, link);
    }
    Ok(response)
}

/// What a page shows of a body.
pub(crate) struct Preview {
    pub(crate) text: String,
    /// The body goes on.
    pub(crate) cut: bool,
    /// Some bytes are shown as replacement characters.
    pub(crate) not_utf8: bool,
    /// Some bytes are zero, shown as a symbol.
    pub(crate) nul: bool,
}

impl Preview {
    pub(crate) fn of(body: &[u8]) -> Self {
        let mut shown = &body[..body.len().min(PREVIEW_SIZE_MAX)];
        let cut = shown.len() < body.len();
        if cut
            && let Err(err) = std::str::from_utf8(shown)
            && err.error_len().is_none()
        {
            // The cut went through a character.
            shown = &shown[..err.valid_up_to()];
        }
        let text = String::from_utf8_lossy(shown);
        let nul = text.contains('\0');
        Self {
            // HTML has no zero: a parser would drop it, or replace it.
            text: if nul {
                text.replace('\0', "\u{2400}")
            } else {
                text.into_owned()
            },
            cut,
            not_utf8: std::str::from_utf8(body).is_err(),
            nul,
        }
    }
}

/// `GET /api/v1/pastes/{id}`: what is known about the paste, without its body.
pub(crate) async fn metadata(State(app): State<App>, id: Param) -> Result<Response, Problem> {
    #[derive(Serialize)]
    struct Document<'a> {
        id: &'a str,
        url: String,
        raw_url: String,
        created_at: String,
        expires_at: String,
        size: u64,
        syntax: Option<&'a str>,
        title: Option<&'a str>,
    }
    let paste = row(&app, &paste_id(id)?).await?;
    let document = Document {
        id: paste.id.as_str(),
        url: app.url(&paste.id),
        raw_url: app.raw_url(&paste.id),
        created_at: rfc3339(paste.created_at),
        expires_at: rfc3339(paste.expires_at),
        size: paste.body_size,
        syntax: paste.syntax.as_ref().map(|syntax| syntax.as_str()),
        title: paste.title.as_ref().map(|title| title.as_str()),
    };
    let mut text = serde_json::to_string(&document).map_err(|_| Problem::internal())?;
    text.push('\n');
    let mut response = text.into_response();
    let headers = response.headers_mut();
    headers.insert(CONTENT_TYPE, HeaderValue::from_static("application/json"));
    headers.insert(CACHE_CONTROL, cache_control(&paste));
    Ok(response)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_etag_is_named_in_any_form() {
        let etag = etag(&[0xab; 32]);
        assert_eq!(etag, format!("\"{}\"", "ab".repeat(16)));
        let named = |value: &str| {
            let mut headers = HeaderMap::new();
            headers.insert(IF_NONE_MATCH, value.parse().expect("a header value"));
            matches(&headers, &etag)
        };
        assert!(named(&etag) && named(&format!("W/{etag}")) && named("*"));
        assert!(named(&format!("\"x\", {etag}")));
        assert!(!named("\"x\"") && !named(""));
    }

    #[test]
    fn a_preview_shows_what_a_page_can_show() {
        let plain = Preview::of("a\n<b>é".as_bytes());
        assert_eq!(plain.text, "a\n<b>é");
        assert!(!plain.cut && !plain.not_utf8 && !plain.nul);

        let odd = Preview::of(b"a\0\xff");
        assert_eq!(odd.text, "a\u{2400}\u{fffd}");
        assert!(odd.not_utf8 && odd.nul && !odd.cut);

        // A cut through a character is no encoding error.
        let mut long = "x".repeat(PREVIEW_SIZE_MAX - 1);
        long.push('é');
        let long = Preview::of(long.as_bytes());
        assert!(long.cut && !long.not_utf8);
        assert_eq!(long.text.len(), PREVIEW_SIZE_MAX - 1);
    }
}
