//! What the services of one shard process share.

use std::net::SocketAddr;
use std::sync::atomic::AtomicU64;
use std::sync::{Arc, OnceLock};

use ostraca_engine::Shard;
use ostraca_io::Entropy;
use ostraca_io::files::FileVersion;
use ostraca_proto::v1;
use ostraca_types::{Epoch, Reason, Sequence, ShardId, Slot, Timestamp};
use parking_lot::Mutex;
use tokio::sync::watch;

use crate::DataDir;
use crate::endpoints;
use crate::refusal::Refusal;
use crate::sealing::Sealing;
use crate::secrets::Secrets;

/// How far the process is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Phase {
    /// Replaying the log.
    Recovering,
    /// Answering.
    Serving,
    /// Finishing what is in flight.
    Draining,
    /// The log failed.
    Stopped,
}

/// `host:port` of each shard, where known.
type Addresses = Vec<Option<String>>;

/// One shard process.
pub(crate) struct Host {
    pub(crate) data: DataDir,
    pub(crate) id: ShardId,
    pub(crate) secrets: Secrets,
    pub(crate) entropy: Arc<dyn Entropy>,
    pub(crate) address: SocketAddr,
    pub(crate) sealing: Sealing,
    /// Stored answers that could not be opened.
    pub(crate) not_opened: AtomicU64,
    /// Changes when messages may have become due.
    pub(crate) deliverable: watch::Sender<()>,
    shard: OnceLock<Shard>,
    phase: watch::Sender<Phase>,
    /// What the endpoints file says, and which version of it.
    addresses: Mutex<Option<(Option<FileVersion>, Addresses)>>,
}

impl Host {
    pub(crate) fn new(
        data: DataDir,
        id: ShardId,
        secrets: Secrets,
        entropy: Arc<dyn Entropy>,
        address: SocketAddr,
    ) -> Self {
        let sealing = Sealing::new(
            data.secret_dir(),
            secrets.ticket.clone(),
            Arc::clone(&entropy),
        );
        Self {
            data,
            id,
            secrets,
            entropy,
            address,
            sealing,
            not_opened: AtomicU64::new(0),
            deliverable: watch::Sender::new(()),
            addresses: Mutex::new(None),
            shard: OnceLock::new(),
            phase: watch::Sender::new(Phase::Recovering),
        }
    }

    /// Lets calls in.
    pub(crate) fn serve(&self, shard: Shard) {
        assert!(
            self.shard.set(shard).is_ok(),
            "a process opens its shard once"
        );
        self.phase.send_replace(Phase::Serving);
    }

    pub(crate) fn enter(&self, phase: Phase) {
        self.phase.send_replace(phase);
    }

    /// The shard, whatever it answers for.
    pub(crate) fn opened(&self) -> Option<&Shard> {
        self.shard.get()
    }

    pub(crate) fn phase(&self) -> watch::Receiver<Phase> {
        self.phase.subscribe()
    }

    /// The shard, if it answers for `slot`.
    pub(crate) fn shard_for(&self, slot: Slot) -> Result<&Shard, Refusal> {
        let owner = self.data.owner(slot);
        if owner != self.id {
            let mut refusal = Refusal::new(
                Reason::WrongShard,
                format!(
                    "slot {slot} is led by shard {owner}, this is shard {}",
                    self.id
                ),
            )
            .with("shard", owner.to_string())
            .with("routingVersion", self.data.version().to_string());
            if let Some(address) = self
                .addresses()
                .get(usize::from(owner.0))
                .cloned()
                .flatten()
            {
                refusal = refusal.with("address", address);
            }
            return Err(refusal);
        }
        self.serving()
    }

    /// The shard, if it answers.
    pub(crate) fn serving(&self) -> Result<&Shard, Refusal> {
        match *self.phase.borrow() {
            Phase::Recovering => Err(Refusal::new(
                Reason::NotReady,
                "the shard is replaying its log",
            )),
            Phase::Draining => Err(Refusal::new(Reason::NotReady, "the shard is stopping")),
            Phase::Stopped => Err(Refusal::new(
                Reason::NotReady,
                "the shard has stopped after a failure",
            )),
            Phase::Serving => self
                .shard
                .get()
                .ok_or_else(|| Refusal::new(Reason::NotReady, "the shard is not open")),
        }
    }

    /// Where each shard's gRPC listens, as far as the endpoints file tells; this process knows its
    /// own.
    fn addresses(&self) -> Addresses {
        // A flood of misdirected calls must not become a flood of reads.
        let version = endpoints::version(&self.data.run_dir());
        let mut known = self.addresses.lock();
        match &*known {
            Some((read, addresses)) if *read == version => addresses.clone(),
            _ => {
                let addresses = self.read_addresses();
                *known = Some((version, addresses.clone()));
                addresses
            }
        }
    }

    fn read_addresses(&self) -> Addresses {
        let mut addresses = vec![None; usize::from(self.data.shards())];
        // Routing data may be stale or missing; a client comes back with what it finds.
        let known = endpoints::read(&self.data.run_dir()).unwrap_or_default();
        for endpoint in known
            .into_iter()
            .filter(|known| known.role == endpoints::Role::Shard)
        {
            let shard = endpoint
                .name
                .strip_prefix("shard-")
                .and_then(|n| n.parse::<usize>().ok());
            if let Some(address) = shard.and_then(|shard| addresses.get_mut(shard)) {
                *address = endpoint.grpc;
            }
        }
        if let Some(own) = addresses.get_mut(usize::from(self.id.0)) {
            *own = Some(self.address.to_string());
        }
        addresses
    }

    pub(crate) fn routing(&self) -> v1::GetRoutingResponse {
        let shards = self
            .addresses()
            .into_iter()
            .zip(0..)
            .map(|(address, shard)| v1::ShardRoute {
                shard: u32::from(shard),
                address: address.unwrap_or_default(),
                slots: self
                    .data
                    .slots_of(ShardId(shard))
                    .iter()
                    .map(|slot| slot.0.into())
                    .collect(),
            });
        v1::GetRoutingResponse {
            version: self.data.version(),
            shards: shards.collect(),
        }
    }

    pub(crate) fn status(&self) -> v1::GetStatusResponse {
        let state = match *self.phase.borrow() {
            Phase::Recovering => v1::ShardState::Recovering,
            Phase::Serving => v1::ShardState::Serving,
            Phase::Draining => v1::ShardState::Draining,
            Phase::Stopped => v1::ShardState::Stopped,
        };
        let mut response = v1::GetStatusResponse {
            shard: self.id.0.into(),
            state: state.into(),
            pid: std::process::id(),
            ..Default::default()
        };
        if let Some(shard) = self.shard.get() {
            let status = shard.status();
            response.epoch = status.epoch.0;
            response.sequence = status.applied.0;
            response.now_ms = status.now.0;
            response.pastes = status.counts.pastes;
            response.idempotency_rows = status.counts.idempotency;
            response.outbox_ready = status.counts.outbox.ready;
            response.inbox_rows = status.counts.inbox;
            response.dead_letters = status.counts.outbox.dead;
            response.outbox_dropped = status.counts.outbox.dropped;
            let millis = |since: Option<Timestamp>| {
                let age = since.map(|since| status.now.since(since).as_millis());
                u64::try_from(age.unwrap_or_default()).unwrap_or(u64::MAX)
            };
            response.outbox_oldest_age_ms = millis(status.counts.outbox.oldest);
            response.expiry_lag_ms = millis(status.next_end);
            response.queued = status.queued as u64;
            response.commits = status.commits;
            response.syncs = status.syncs;
            response.trouble = match (status.stopped_by, status.trouble) {
                (Some(stopped_by), _) => stopped_by,
                (None, Some(trouble)) => trouble.to_string(),
                (None, None) => String::new(),
            };
        }
        response
    }

    /// Where something was decided.
    pub(crate) fn position(&self, epoch: Epoch, sequence: Sequence) -> Option<v1::LogPosition> {
        Some(v1::LogPosition {
            shard: self.id.0.into(),
            epoch: epoch.0,
            sequence: sequence.0,
        })
    }
}
