//! What a shard process counts, in the text format that Prometheus scrapes.
//!
//! Everything is read at the scrape from what the engine counts anyway, so there is no second set of
//! numbers to keep right. Labels are names out of fixed lists; no id, key or token is one.

use std::fmt;
use std::sync::Arc;
use std::sync::atomic::Ordering;

use axum::Router;
use axum::http::{StatusCode, header};
use axum::response::IntoResponse as _;
use axum::routing::get;
use ostraca_engine::{BATCH_BUCKETS, BatchSizes, Status, Trouble};
use prometheus_client::collector::Collector;
use prometheus_client::encoding::{DescriptorEncoder, EncodeMetric, MetricEncoder, NoLabelSet};
use prometheus_client::metrics::MetricType;
use prometheus_client::metrics::counter::ConstCounter;
use prometheus_client::metrics::gauge::ConstGauge;
use prometheus_client::registry::{Registry, Unit};

use crate::admission::CALLS_MAX;
use crate::host::{Host, Phase};

const CONTENT_TYPE: &str = "application/openmetrics-text; version=1.0.0; charset=utf-8";

/// Serves `/metrics` until the process ends.
pub(crate) async fn serve(host: Arc<Host>, listener: tokio::net::TcpListener) {
    let mut registry = Registry::with_prefix("ostraca");
    registry.register_collector(Box::new(ShardCollector(host)));
    let registry = Arc::new(registry);
    let scrape = move || async move {
        let mut text = String::new();
        match prometheus_client::encoding::text::encode(&mut text, &registry) {
            Ok(()) => ([(header::CONTENT_TYPE, CONTENT_TYPE)], text).into_response(),
            Err(_) => StatusCode::INTERNAL_SERVER_ERROR.into_response(),
        }
    };
    let router = Router::new().route("/metrics", get(scrape));
    if let Err(err) = axum::serve(listener, router).await {
        tracing::error!(event = "metrics_ended", %err);
    }
}

#[derive(Debug)]
struct ShardCollector(Arc<Host>);

impl fmt::Debug for Host {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Host")
            .field("id", &self.id)
            .finish_non_exhaustive()
    }
}

/// Writes single metrics.
struct Writer<'a, 'b>(&'a mut DescriptorEncoder<'b>);

impl Writer<'_, '_> {
    fn counter(&mut self, name: &str, help: &str, value: u64) -> fmt::Result {
        let metric = ConstCounter::new(value);
        metric.encode(
            self.0
                .encode_descriptor(name, help, None, metric.metric_type())?,
        )
    }

    fn gauge(&mut self, name: &str, help: &str, value: u64) -> fmt::Result {
        let metric = ConstGauge::new(i64::try_from(value).unwrap_or(i64::MAX));
        metric.encode(
            self.0
                .encode_descriptor(name, help, None, metric.metric_type())?,
        )
    }

    fn seconds(&mut self, name: &str, help: &str, millis: u128) -> fmt::Result {
        #[allow(
            clippy::cast_precision_loss,
            reason = "ages fit 52 bits of milliseconds"
        )]
        let metric = ConstGauge::new(millis as f64 / 1000.0);
        let unit = Some(&Unit::Seconds);
        metric.encode(
            self.0
                .encode_descriptor(name, help, unit, metric.metric_type())?,
        )
    }

    fn batches(&mut self, sizes: &BatchSizes) -> fmt::Result {
        let help = "Commands that one sync covered";
        let sizes = Histogram(sizes);
        let name = "commit_batch_commands";
        sizes.encode(
            self.0
                .encode_descriptor(name, help, None, sizes.metric_type())?,
        )
    }

    fn counters(
        &mut self,
        name: &str,
        help: &str,
        label_name: &str,
        values: &[(&'static str, u64)],
    ) -> fmt::Result {
        let kind = ConstCounter::new(0u64).metric_type();
        let mut family = self.0.encode_descriptor(name, help, None, kind)?;
        for (label, value) in values {
            let labels = [(label_name, *label)];
            ConstCounter::new(*value).encode(family.encode_family(&labels)?)?;
        }
        Ok(())
    }
}

/// Sizes of batches as Prometheus takes them.
struct Histogram<'a>(&'a BatchSizes);

impl EncodeMetric for Histogram<'_> {
    #[allow(clippy::cast_precision_loss, reason = "counts fit 52 bits")]
    fn encode(&self, mut encoder: MetricEncoder<'_>) -> fmt::Result {
        let counts = BATCH_BUCKETS.into_iter().zip(self.0.buckets);
        let mut buckets: Vec<_> = counts.map(|(bound, count)| (bound as f64, count)).collect();
        // A batch is never larger than the last bound.
        buckets.push((f64::INFINITY, 0));
        let count = self.0.buckets.iter().sum();
        encoder.encode_histogram::<NoLabelSet>(self.0.commands as f64, count, &buckets, None)
    }

    fn metric_type(&self) -> MetricType {
        MetricType::Histogram
    }
}

impl Collector for ShardCollector {
    fn encode(&self, mut encoder: DescriptorEncoder<'_>) -> fmt::Result {
        let mut write = Writer(&mut encoder);
        let host = &self.0;
        let serving = *host.phase().borrow() == Phase::Serving;
        let help = "Whether the shard answers: 0 while it recovers, drains or has stopped";
        write.gauge("shard_serving", help, serving.into())?;
        let not_opened = host.not_opened.load(Ordering::Relaxed);
        let help = "Stored answers that could not be opened";
        write.counter("answers_not_opened", help, not_opened)?;
        let hangs = host.hangs.load(Ordering::Relaxed);
        let help = "The shard's thread makes no progress";
        write.gauge("shard_hangs", help, hangs.into())?;
        // Of the leaderships that are over: while one lasts, nothing of it was refused.
        let fenced = host.fenced.load(Ordering::Relaxed);
        let help = "Commands whose append the fence refused";
        write.counter("fencing_rejections", help, fenced)?;
        // Streams and long polls are not among them.
        let help = "Unary calls that are not answered yet";
        write.gauge("calls_in_flight", help, host.calls.in_flight() as u64)?;
        let help = "Unary calls beyond which more are refused";
        write.gauge("calls_in_flight_max", help, CALLS_MAX as u64)?;
        let help = "Unary calls that were taken and are over, however they ended";
        write.counter("calls", help, host.calls.ended())?;
        match host.opened() {
            Some(shard) => encode(&mut write, &shard.status()),
            None => Ok(()),
        }
    }
}

fn encode(write: &mut Writer<'_, '_>, status: &Status) -> fmt::Result {
    write.counter("commits", "Commands that became durable", status.commits)?;
    write.counter("syncs", "Syncs of the log", status.syncs)?;
    write.batches(&status.batches)?;
    let help = "Decided commands by their outcome";
    write.counters("outcomes", help, "outcome", &status.outcomes.all())?;
    let refusals = crate::refusal::counts();
    write.counters("refusals", "Calls refused, by reason", "reason", &refusals)?;
    write.gauge(
        "queue_commands",
        "Commands that wait for the shard's thread",
        status.queued as u64,
    )?;
    write.gauge(
        "epoch",
        "The fencing token of this leadership",
        status.epoch.0,
    )?;
    write.gauge("sequence", "The last applied record", status.applied.0)?;
    let counts = &status.counts;
    write.gauge("pastes", "Pastes that have not ended", counts.pastes)?;
    write.gauge(
        "idempotency_rows",
        "Keys with a stored answer",
        counts.idempotency,
    )?;
    write.gauge(
        "inbox_rows",
        "Messages that a consumer has finished",
        counts.inbox,
    )?;
    let help = "Messages that some consumer has not finished";
    write.gauge("outbox_pending", help, counts.outbox.ready)?;
    let help = "Dead letters of all consumers";
    write.gauge("outbox_dead_letters", help, counts.outbox.dead)?;
    let help = "Messages over their age before every consumer had finished them";
    write.counter("outbox_dropped", help, counts.outbox.dropped)?;
    let age = |since: Option<ostraca_types::Timestamp>| {
        since.map_or(0, |since| status.now.since(since).as_millis())
    };
    let help = "Age of the oldest message that some consumer has not finished";
    write.seconds("outbox_oldest_age", help, age(counts.outbox.oldest))?;
    let help = "How long the paste that ends next is past its expiry";
    write.seconds("expiry_lag", help, age(status.next_end))?;
    let troubled = |trouble| u64::from(status.trouble == Some(trouble));
    let full = troubled(Trouble::DiskFull) + troubled(Trouble::DiskFullClockStuck);
    write.gauge("disk_full", "Creates are refused for lack of room", full)?;
    let help = "The wall clock has leapt ahead and is not believed";
    write.gauge("clock_leapt", help, troubled(Trouble::ClockLeapt))?;
    let stopped = u64::from(status.stopped_by.is_some());
    write.gauge("log_stopped", "A write or sync of the log failed", stopped)
}
