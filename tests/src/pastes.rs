//! The requests of the HTTP API, as tests send them.

use serde_json::Value;

use crate::http::{Http, Request, Response};

/// The one create endpoint.
pub const CREATE: &str = "/api/v1/pastes";

/// A raw create with a key.
#[must_use]
pub fn create(key: &str, body: impl Into<Vec<u8>>) -> Request {
    Request::new("POST", CREATE)
        .header("content-type", "application/octet-stream")
        .header("idempotency-key", key)
        .body(body)
}

/// What a create answered.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Created {
    /// The paste's id.
    pub id: String,
    /// Its expiry, as text.
    pub expires_at: String,
    /// Its delete token.
    pub token: String,
    /// All of the answer's body.
    pub body: Value,
}

impl Created {
    /// Reads the answer of a create, which must be a success.
    #[must_use]
    pub fn from(response: &Response) -> Self {
        assert_eq!(response.status, 201, "{}", response.text());
        let body = response.json();
        let text = |field: &str| {
            body[field]
                .as_str()
                .unwrap_or_else(|| panic!("no {field} in the answer"))
                .to_owned()
        };
        Self {
            id: text("id"),
            expires_at: text("expires_at"),
            token: text("delete_token"),
            body,
        }
    }

    /// The target of the paste's bytes.
    #[must_use]
    pub fn raw(&self) -> String {
        format!("/{}/raw", self.id)
    }

    /// The target of the paste in the API.
    #[must_use]
    pub fn api(&self) -> String {
        format!("{CREATE}/{}", self.id)
    }
}

/// Whether an answer to a create is the stored one of an earlier create.
#[must_use]
pub fn is_replay(response: &Response) -> bool {
    response.header("idempotency-replayed") == Some("true")
}

/// Saves `body` under `key`, which must succeed.
#[must_use]
pub fn save(http: &Http, key: &str, body: impl Into<Vec<u8>>) -> Created {
    Created::from(&http.send(&create(key, body)))
}

/// Deletes a paste.
#[must_use]
pub fn delete(http: &Http, created: &Created, token: &str) -> Response {
    let bearer = format!("Bearer {token}");
    http.send(&Request::new("DELETE", &created.api()).header("authorization", &bearer))
}
