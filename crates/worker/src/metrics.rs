//! Counters. Every label has few values; no id, key or reason stands in one.

use std::time::Duration;

use prometheus_client::encoding::{EncodeLabelSet, text};
use prometheus_client::metrics::counter::Counter;
use prometheus_client::metrics::family::{Family, MetricConstructor};
use prometheus_client::metrics::gauge::Gauge;
use prometheus_client::metrics::histogram::{Histogram, exponential_buckets};
use prometheus_client::registry::{Registry, Unit};
use tokio::time::Instant;

use crate::PurgeFault;

/// The steps of an attempt (i02).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Step {
    LookUp,
    Object,
    Edge,
    Record,
    Ack,
}

impl Step {
    const fn name(self) -> &'static str {
        match self {
            Self::LookUp => "look_up",
            Self::Object => "object",
            Self::Edge => "edge",
            Self::Record => "record",
            Self::Ack => "ack",
        }
    }
}

/// How a delivery ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Outcome {
    /// Effects, record, ack.
    Done,
    /// It was finished before; acked without effects, or another attempt recorded first.
    Repeated,
    /// A step failed; given back.
    Failed,
    /// Not tried, as the object store was down; given back.
    Paused,
    /// Done and recorded, but the ack failed or came too late: it comes again, or came.
    Unacked,
}

impl Outcome {
    const ALL: [Self; 5] = [
        Self::Done,
        Self::Repeated,
        Self::Failed,
        Self::Paused,
        Self::Unacked,
    ];

    const fn name(self) -> &'static str {
        match self {
            Self::Done => "done",
            Self::Repeated => "repeated",
            Self::Failed => "failed",
            Self::Paused => "paused",
            Self::Unacked => "unacked",
        }
    }
}

#[derive(Debug, Clone, PartialEq, Eq, Hash, EncodeLabelSet)]
struct Delivery {
    outcome: &'static str,
}

#[derive(Debug, Clone, PartialEq, Eq, Hash, EncodeLabelSet)]
struct Timed {
    step: &'static str,
    outcome: &'static str,
}

#[derive(Debug, Clone, PartialEq, Eq, Hash, EncodeLabelSet)]
struct Purge {
    kind: &'static str,
}

#[derive(Debug, Clone, PartialEq, Eq, Hash, EncodeLabelSet)]
struct Call {
    call: &'static str,
}

/// From half a millisecond to a minute.
#[derive(Debug, Clone, Copy)]
struct Durations;

impl MetricConstructor<Histogram> for Durations {
    fn new_metric(&self) -> Histogram {
        Histogram::new(exponential_buckets(0.0005, 3.0, 11))
    }
}

/// What this process counted since it started.
#[derive(Debug)]
pub(crate) struct Metrics {
    registry: Registry,
    deliveries: Family<Delivery, Counter>,
    steps: Family<Timed, Histogram, Durations>,
    purge_age: Histogram,
    purge_errors: Family<Purge, Counter>,
    calls_failed: Family<Call, Counter>,
    objects_missing: Counter,
    inbox_record_failures: Counter,
    in_flight: Gauge,
    paused: Gauge,
}

/// Counts one attempt as in flight until it is dropped.
pub(crate) struct InFlight<'a>(&'a Gauge);

impl Drop for InFlight<'_> {
    fn drop(&mut self) {
        self.0.dec();
    }
}

impl Metrics {
    pub(crate) fn new() -> Self {
        let metrics = Self {
            registry: Registry::with_prefix("ostraca_worker"),
            deliveries: Family::default(),
            steps: Family::new_with_constructor(Durations),
            // From a tenth of a second to a week.
            purge_age: Histogram::new(exponential_buckets(0.1, 4.0, 12)),
            purge_errors: Family::default(),
            calls_failed: Family::default(),
            objects_missing: Counter::default(),
            inbox_record_failures: Counter::default(),
            in_flight: Gauge::default(),
            paused: Gauge::default(),
        };
        // Counters are there before they count, so that a rate over the first one is seen.
        for outcome in Outcome::ALL {
            metrics.delivery(outcome);
        }
        for kind in ["refused", "busy", "unreachable", "deadline"] {
            let _ = metrics.purge_errors.get_or_create(&Purge { kind });
        }
        metrics.registered()
    }

    fn registered(mut self) -> Self {
        let registry = &mut self.registry;
        registry.register(
            "deliveries",
            "Deliveries of messages by how they ended",
            self.deliveries.clone(),
        );
        registry.register_with_unit(
            "step_duration",
            "Steps of attempts: how long, and how they ended",
            Unit::Seconds,
            self.steps.clone(),
        );
        registry.register_with_unit(
            "purge_age",
            "From a paste's end until its object is deleted and the edge purged",
            Unit::Seconds,
            self.purge_age.clone(),
        );
        registry.register(
            "purge_errors",
            "Purges of an edge that failed; refused ones need a person",
            self.purge_errors.clone(),
        );
        registry.register(
            "calls_failed",
            "Calls to a shard that failed, beside the steps of an attempt",
            self.calls_failed.clone(),
        );
        registry.register(
            "objects_missing",
            "First deletes of an object that was not there (w04)",
            self.objects_missing.clone(),
        );
        registry.register(
            "inbox_record_failures",
            "Records in the inbox that failed after the effects (w01)",
            self.inbox_record_failures.clone(),
        );
        registry.register("in_flight", "Attempts that run now", self.in_flight.clone());
        registry.register(
            "paused",
            "1 while nothing is received because the object store is down",
            self.paused.clone(),
        );
        self
    }

    fn delivery(&self, outcome: Outcome) -> Counter {
        let outcome = outcome.name();
        self.deliveries.get_or_create_owned(&Delivery { outcome })
    }

    pub(crate) fn delivered(&self, outcome: Outcome) {
        self.delivery(outcome).inc();
    }

    /// Runs one step and notes how long it took.
    pub(crate) async fn timed<T, E>(
        &self,
        step: Step,
        work: impl Future<Output = Result<T, E>>,
    ) -> Result<T, E> {
        let started = Instant::now();
        let result = work.await;
        let timed = Timed {
            step: step.name(),
            outcome: if result.is_ok() { "ok" } else { "failed" },
        };
        let secs = started.elapsed().as_secs_f64();
        self.steps.get_or_create(&timed).observe(secs);
        result
    }

    /// Effects are done so long after the end.
    pub(crate) fn purged(&self, age: Duration) {
        self.purge_age.observe(age.as_secs_f64());
    }

    pub(crate) fn purge_failed(&self, fault: PurgeFault) {
        let kind = match fault {
            PurgeFault::Refused(_) => "refused",
            PurgeFault::Busy(_) => "busy",
            PurgeFault::Unreachable => "unreachable",
            PurgeFault::Deadline => "deadline",
        };
        self.purge_errors.get_or_create(&Purge { kind }).inc();
    }

    pub(crate) fn call_failed(&self, call: &'static str) {
        self.calls_failed.get_or_create(&Call { call }).inc();
    }

    pub(crate) fn object_missing(&self) {
        self.objects_missing.inc();
    }

    pub(crate) fn inbox_record_failed(&self) {
        self.inbox_record_failures.inc();
    }

    pub(crate) fn in_flight(&self) -> InFlight<'_> {
        self.in_flight.inc();
        InFlight(&self.in_flight)
    }

    pub(crate) fn paused(&self, paused: bool) {
        self.paused.set(i64::from(paused));
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
    fn w01_w04_counters_are_there_before_they_count() {
        let metrics = Metrics::new();
        for line in [
            "ostraca_worker_objects_missing_total 0",
            "ostraca_worker_inbox_record_failures_total 0",
            "ostraca_worker_deliveries_total{outcome=\"done\"} 0",
            "ostraca_worker_purge_errors_total{kind=\"refused\"} 0",
            "ostraca_worker_in_flight 0",
            "ostraca_worker_paused 0",
        ] {
            assert!(metrics.text().contains(line), "{line}\n{}", metrics.text());
        }
        metrics.object_missing();
        metrics.delivered(Outcome::Done);
        let in_flight = metrics.in_flight();
        let text = metrics.text();
        for line in [
            "ostraca_worker_objects_missing_total 1",
            "ostraca_worker_deliveries_total{outcome=\"done\"} 1",
            "ostraca_worker_in_flight 1",
        ] {
            assert!(text.contains(line), "{line}\n{text}");
        }
        drop(in_flight);
        assert!(metrics.text().contains("ostraca_worker_in_flight 0"));
    }

    #[tokio::test]
    async fn steps_are_timed_by_how_they_end() {
        let metrics = Metrics::new();
        let _ = metrics.timed(Step::Object, async { Ok::<_, ()>(()) }).await;
        let _ = metrics.timed(Step::Edge, async { Err::<(), _>(()) }).await;
        let text = metrics.text();
        for (step, outcome) in [("object", "ok"), ("edge", "failed")] {
            let line = format!(
                "ostraca_worker_step_duration_seconds_count{{step=\"{step}\",outcome=\"{outcome}\"}} 1"
            );
            assert!(text.contains(&line), "{line}\n{text}");
        }
    }
}
