//! The parts that handlers share, and the routes.

use std::sync::{Arc, OnceLock};

use axum::Router;
use axum::middleware::from_fn_with_state;
use axum::routing::{delete, get, post};
use ostraca_bodies::Bodies;
use ostraca_client::Client;
use ostraca_io::Entropy;
use ostraca_types::PasteId;

use crate::admission::Admission;
use crate::metrics::Metrics;
use crate::{Config, ConfigError, create, finish, read, site};

/// The HTTP service. Clones share everything.
#[derive(Clone)]
pub struct Frontend(pub(crate) App);

impl std::fmt::Debug for Frontend {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Frontend")
            .field("config", &self.0.config)
            .finish_non_exhaustive()
    }
}

/// What handlers share.
pub(crate) type App = Arc<Shared>;

pub(crate) struct Shared {
    pub(crate) config: Config,
    pub(crate) client: Client,
    pub(crate) bodies: Bodies,
    pub(crate) entropy: Arc<dyn Entropy>,
    pub(crate) admission: Admission,
    pub(crate) metrics: Metrics,
    /// Set once, from the settings or from the address that is listened on.
    pub(crate) origin: OnceLock<String>,
}

impl Shared {
    /// What links start with, without a slash at the end.
    pub(crate) fn origin(&self) -> &str {
        self.origin.get().map_or("http://localhost", String::as_str)
    }

    pub(crate) fn url(&self, id: &PasteId) -> String {
        format!("{}/{id}", self.origin())
    }

    pub(crate) fn raw_url(&self, id: &PasteId) -> String {
        format!("{}/{id}/raw", self.origin())
    }
}

impl Frontend {
    /// Checks the settings. Connects to nothing yet. `entropy` makes the idempotency keys of forms,
    /// so it must be a cryptographic source.
    pub fn new(
        config: Config,
        client: Client,
        bodies: Bodies,
        entropy: Arc<dyn Entropy>,
    ) -> Result<Self, ConfigError> {
        config.validate()?;
        let origin = OnceLock::new();
        if let Some(url) = &config.public_url {
            // A new cell takes its first value.
            let _ = origin.set(url.trim_end_matches('/').to_owned());
        }
        Ok(Self(Arc::new(Shared {
            admission: Admission::new(&config),
            metrics: Metrics::new(),
            config,
            client,
            bodies,
            entropy,
            origin,
        })))
    }

    /// All routes. [`crate::serve`] serves them; with a server of one's own, set `public_url`.
    pub fn router(&self) -> Router {
        let app = Arc::clone(&self.0);
        Router::new()
            .route("/", get(site::index))
            .route("/api/v1/pastes", post(create::create))
            .route(
                "/api/v1/pastes/{id}",
                get(read::metadata).merge(delete(crate::delete::by_api)),
            )
            .route("/{id}", get(read::page))
            .route("/{id}/raw", get(read::raw))
            .route(
                "/{id}/delete",
                get(crate::delete::confirm).merge(post(crate::delete::by_form)),
            )
            .route("/static/{name}", get(site::asset))
            .route("/help.txt", get(site::help))
            .route("/robots.txt", get(site::robots))
            .route("/healthz", get(site::healthz))
            .route("/readyz", get(site::readyz))
            .route("/metrics", get(site::metrics))
            .fallback(site::no_route)
            .method_not_allowed_fallback(site::wrong_method)
            .layer(from_fn_with_state(Arc::clone(&app), finish::finish))
            .with_state(app)
    }
}
