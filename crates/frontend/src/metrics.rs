//! Counters. Every label has few values: routes as they are declared, never a path; no key, token
//! or id anywhere.

use axum::http::{Method, StatusCode};
use prometheus_client::encoding::{EncodeLabelSet, text};
use prometheus_client::metrics::counter::Counter;
use prometheus_client::metrics::family::Family;
use prometheus_client::registry::Registry;

#[derive(Debug, Clone, PartialEq, Eq, Hash, EncodeLabelSet)]
struct Answer {
    route: String,
    method: &'static str,
    code: u16,
}

#[derive(Debug, Clone, PartialEq, Eq, Hash, EncodeLabelSet)]
struct Create {
    outcome: &'static str,
}

/// What this process counted since it started.
#[derive(Debug)]
pub(crate) struct Metrics {
    registry: Registry,
    answers: Family<Answer, Counter>,
    creates: Family<Create, Counter>,
    body_missing: Counter,
    body_damaged: Counter,
}

impl Metrics {
    pub(crate) fn new() -> Self {
        let mut registry = Registry::with_prefix("ostraca_frontend");
        let answers = Family::default();
        let creates = Family::default();
        let (body_missing, body_damaged) = (Counter::default(), Counter::default());
        registry.register(
            "requests",
            "HTTP answers by route, method and code",
            answers.clone(),
        );
        registry.register("creates", "Creates by their outcome", creates.clone());
        registry.register(
            "body_missing",
            "Reads of a paste whose object is not there (r07)",
            body_missing.clone(),
        );
        registry.register(
            "body_damaged",
            "Reads of a paste whose object is not the one that was saved (r07)",
            body_damaged.clone(),
        );
        Self {
            registry,
            answers,
            creates,
            body_missing,
            body_damaged,
        }
    }

    pub(crate) fn answered(&self, route: &str, method: &Method, code: StatusCode) {
        let method = match *method {
            Method::GET => "GET",
            Method::HEAD => "HEAD",
            Method::POST => "POST",
            Method::DELETE => "DELETE",
            _ => "other",
        };
        let answer = Answer {
            route: route.to_owned(),
            method,
            code: code.as_u16(),
        };
        self.answers.get_or_create(&answer).inc();
    }

    pub(crate) fn created(&self, outcome: &'static str) {
        self.creates.get_or_create(&Create { outcome }).inc();
    }

    pub(crate) fn body_missing(&self) {
        self.body_missing.inc();
    }

    pub(crate) fn body_damaged(&self) {
        self.body_damaged.inc();
    }

    /// In the OpenMetrics text format.
    pub(crate) fn text(&self) -> String {
        let mut text = String::new();
        // Writing to a string does not fail.
        let _ = text::encode(&mut text, &self.registry);
        text
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn w06_counters_are_there_before_they_count() {
        let metrics = Metrics::new();
        let text = metrics.text();
        assert!(
            text.contains("ostraca_frontend_body_missing_total 0"),
            "{text}"
        );
        assert!(
            text.contains("ostraca_frontend_body_damaged_total 0"),
            "{text}"
        );
        metrics.body_missing();
        metrics.created("replayed");
        metrics.answered("/{id}/raw", &Method::GET, StatusCode::OK);
        let text = metrics.text();
        assert!(
            text.contains("ostraca_frontend_body_missing_total 1"),
            "{text}"
        );
        assert!(
            text.contains("ostraca_frontend_creates_total{outcome=\"replayed\"} 1"),
            "{text}"
        );
        let answer = "requests_total{route=\"/{id}/raw\",method=\"GET\",code=\"200\"} 1";
        assert!(text.contains(answer), "{text}");
    }
}
