//! Ending a paste before its expiry.

use axum::extract::{Request, State};
use axum::http::header::{AUTHORIZATION, CACHE_CONTROL, CONTENT_TYPE, VARY};
use axum::http::{HeaderMap, HeaderValue, StatusCode};
use axum::response::{IntoResponse, Response};
use ostraca_types::{DeleteToken, PasteId, Reason};
use tokio::time::{Instant, timeout_at};

use crate::body::{read, too_slow};
use crate::create::REQUEST_DEADLINE;
use crate::form;
use crate::frontend::{App, Shared};
use crate::negotiate::{Format, prefer};
use crate::pages;
use crate::problem::{Call, Kind, Problem};
use crate::read::{Param, paste_id, row};

/// A token and its field's name, with room for what else a browser may send.
const FORM_SIZE_MAX: usize = 4 << 10;

/// `DELETE /api/v1/pastes/{id}`.
pub(crate) async fn by_api(
    State(app): State<App>,
    id: Param,
    headers: HeaderMap,
) -> Result<Response, Problem> {
    let token = bearer(&headers).ok_or_else(Problem::no_token)?;
    let id = paste_id(id)?;
    end(&app, &id, token).await?;
    Ok(StatusCode::NO_CONTENT.into_response())
}

/// What follows `Bearer` in the one `Authorization` header.
fn bearer(headers: &HeaderMap) -> Option<&str> {
    let mut values = headers.get_all(AUTHORIZATION).into_iter();
    let value = values.next()?.to_str().ok()?;
    if values.next().is_some() {
        return None;
    }
    let (scheme, token) = value.split_once(' ')?;
    let token = token.trim();
    (scheme.eq_ignore_ascii_case("bearer") && !token.is_empty()).then_some(token)
}

/// Ends the paste. A text that is no token is a wrong token, if there is a paste at all (r03).
async fn end(app: &Shared, id: &PasteId, token: &str) -> Result<(), Problem> {
    let Ok(token) = DeleteToken::parse(token) else {
        row(app, id).await?;
        return Err(Problem::wrong_token());
    };
    let ended = app.client.delete_paste(id, &token).await;
    ended.map_err(|err| Problem::from_client(&err, Call::Delete))
}

/// `GET /{id}/delete`: asks for the token. Changes nothing.
pub(crate) async fn confirm(State(app): State<App>, id: Param) -> Result<Response, Problem> {
    let id = paste_id(id)?;
    row(&app, &id).await?;
    Ok(pages::small(&pages::DeletePage {
        assets: pages::assets(),
        id: id.as_str(),
    }))
}

/// `POST /{id}/delete`: what the confirmation page sends.
pub(crate) async fn by_form(
    State(app): State<App>,
    id: Param,
    request: Request,
) -> Result<Response, Problem> {
    let deadline = Instant::now() + REQUEST_DEADLINE;
    let (head, body) = request.into_parts();
    let id = paste_id(id)?;
    let too_large = || Problem::new(Reason::InvalidField, "the form is too long");
    let form = timeout_at(deadline, read(body, FORM_SIZE_MAX, too_large));
    let form = form.await.map_err(|_| too_slow())??;
    let token = form::pairs(&form).find_map(|(name, value)| (name == b"token").then_some(value));
    let token = token
        .and_then(|token| String::from_utf8(token).ok())
        .unwrap_or_default();
    let ended = if token.trim().is_empty() {
        Err(Problem::field("token", "the form has no delete token"))
    } else {
        end(&app, &id, token.trim()).await
    };
    ended.map_err(|problem| match problem.kind() {
        Kind::Api(Reason::InvalidField | Reason::TokenRejected) => {
            problem.back_to(format!("/{id}/delete"))
        }
        _ => problem,
    })?;
    Ok(deleted(&head.headers))
}

fn deleted(request: &HeaderMap) -> Response {
    let mut response = match prefer(request, &[Format::Html, Format::Text]) {
        Format::Text | Format::Json => {
            let kind = [(CONTENT_TYPE, "text/plain; charset=utf-8")];
            (kind, "the paste is deleted\n").into_response()
        }
        Format::Html => pages::small(&pages::DeletedPage {
            assets: pages::assets(),
        }),
    };
    let headers = response.headers_mut();
    headers.insert(CACHE_CONTROL, HeaderValue::from_static("no-store"));
    headers.insert(VARY, HeaderValue::from_static("Accept"));
    response
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_token_is_a_bearer_token() {
        let token = |value: &str| {
            let mut headers = HeaderMap::new();
            headers.insert(AUTHORIZATION, value.parse().expect("a header value"));
            bearer(&headers).map(str::to_owned)
        };
        assert_eq!(token("Bearer abc").as_deref(), Some("abc"));
        assert_eq!(token("bearer  abc ").as_deref(), Some("abc"));
        for value in ["Basic abc", "Bearer", "Bearer ", "abc", ""] {
            assert_eq!(token(value), None, "{value:?}");
        }
    }
}
