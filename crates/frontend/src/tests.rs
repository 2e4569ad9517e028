//! The handlers, through the router, against a shard that lives in the test and a store on disk.

mod create;
mod errors;
mod fake;
mod read;
mod serve;
mod site;

use std::sync::Arc;

use axum::Router;
use axum::body::{Body, to_bytes};
use axum::http::{HeaderMap, Method, Request, StatusCode};
use bytes::Bytes;
use ostraca_bodies::Bodies;
use ostraca_client::{Client, Options, Seeds};
use ostraca_io::{Entropy, SeededEntropy, files};
use ostraca_types::IdempotencyKey;
use tower::ServiceExt as _;

use crate::{Config, Frontend};
use fake::FakeShard;

/// A frontend with all that it talks to.
struct Site {
    shard: Arc<FakeShard>,
    frontend: Frontend,
    router: Router,
    dir: tempfile::TempDir,
    entropy: SeededEntropy,
}

/// An answer, read whole.
struct Answer {
    status: u16,
    headers: HeaderMap,
    body: Bytes,
}

impl Answer {
    fn text(&self) -> &str {
        std::str::from_utf8(&self.body).expect("text")
    }

    fn json(&self) -> serde_json::Value {
        serde_json::from_slice(&self.body).expect("JSON")
    }

    fn field(&self, name: &str) -> String {
        self.json()[name]
            .as_str()
            .unwrap_or_else(|| panic!("no {name}: {}", self.text()))
            .to_owned()
    }

    fn header(&self, name: &str) -> Option<&str> {
        self.headers
            .get(name)
            .map(|value| value.to_str().expect("ASCII"))
    }

    #[track_caller]
    fn expect(&self, status: u16, reason: &str) {
        assert_eq!(self.status, status, "{}", self.text());
        assert_eq!(self.field("reason"), reason);
        assert_eq!(
            self.header("content-type"),
            Some("application/problem+json")
        );
        assert_eq!(self.header("cache-control"), Some("no-store"));
    }
}

const URL: &str = "https://paste.example";

impl Site {
    async fn start() -> Self {
        Self::with(Config {
            body_size_max: 1000,
            ..Config::default()
        })
        .await
    }

    async fn with(config: Config) -> Self {
        let shard = FakeShard::start().await;
        let client = Client::new(Options::new(Seeds::Fixed(vec![shard.address.clone()])));
        let dir = tempfile::tempdir().expect("a directory");
        files::create_dir_durable(&dir.path().join("p"), 0o700).expect("made");
        let bodies = Bodies::local(dir.path()).expect("a store");
        let config = Config {
            public_url: config.public_url.or(Some(URL.to_owned())),
            ..config
        };
        let entropy = Arc::new(SeededEntropy::new(7));
        let frontend = Frontend::new(config, client, bodies, entropy).expect("valid settings");
        let router = frontend.router();
        Self {
            shard,
            frontend,
            router,
            dir,
            entropy: SeededEntropy::new(8),
        }
    }

    fn new_key(&self) -> String {
        IdempotencyKey::mint(|bytes| self.entropy.fill(bytes)).expose_text()
    }

    async fn send(
        &self,
        method: Method,
        uri: &str,
        headers: &[(&str, &str)],
        body: impl Into<Body>,
    ) -> Answer {
        let mut request = Request::builder().method(method).uri(uri);
        for (name, value) in headers {
            request = request.header(*name, *value);
        }
        let request = request.body(body.into()).expect("a request");
        let response = self
            .router
            .clone()
            .oneshot(request)
            .await
            .expect("infallible");
        let (head, body) = response.into_parts();
        let body = to_bytes(body, 16 << 20).await.expect("a body");
        Answer {
            status: head.status.as_u16(),
            headers: head.headers,
            body,
        }
    }

    async fn get(&self, uri: &str) -> Answer {
        self.send(Method::GET, uri, &[], Body::empty()).await
    }

    /// A raw create.
    async fn post(&self, key: &str, body: impl Into<Body>) -> Answer {
        let headers = [("idempotency-key", key), ("content-type", "text/plain")];
        self.send(Method::POST, "/api/v1/pastes", &headers, body)
            .await
    }

    /// A paste; its id and token.
    async fn paste(&self, body: &'static str) -> (String, String) {
        let answer = self.post(&self.new_key(), body).await;
        assert_eq!(answer.status, 201, "{}", answer.text());
        (answer.field("id"), answer.field("delete_token"))
    }

    fn object(&self, id: &str) -> std::path::PathBuf {
        self.dir.path().join(format!("p/{}/{id}", &id[..2]))
    }

    async fn metric(&self, line: &str) -> bool {
        let answer = self.get("/metrics").await;
        assert_eq!(answer.status, StatusCode::OK.as_u16());
        answer.text().lines().any(|one| one == line)
    }
}
