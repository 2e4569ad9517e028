//! What the services of one shard process share.

use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64};

use ostraca_engine::Shard;
use ostraca_io::Entropy;
use ostraca_io::files::FileVersion;
use ostraca_proto::v1;
use ostraca_types::{Epoch, Reason, Sequence, ShardId, Slot, Timestamp};
use parking_lot::{Mutex, RwLock};
use tokio::sync::watch;

use crate::DataDir;
use crate::admission::Calls;
use crate::refusal::Refusal;
use crate::sealing::Sealing;
use crate::seats::{self, Place};
use crate::secrets::Secrets;

/// How far the process is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Phase {
    /// Waiting until there is no leader.
    Standby,
    /// Replaying the log.
    Recovering,
    /// Answering.
    Serving,
    /// Finishing what is in flight.
    Draining,
    /// The log is closed, and a standby takes over.
    HandedOver,
    /// The log failed.
    Stopped,
}

/// What a file said when it had this version.
type Known = (Option<FileVersion>, Option<Leader>);

/// Where a shard is led.
#[derive(Debug, Clone)]
struct Leader {
    address: String,
    epoch: u64,
}

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
    /// While this process leads.
    shard: RwLock<Option<Shard>>,
    phase: watch::Sender<Phase>,
    /// Counts the heartbeats of another leader that were seen.
    pub(crate) beats_seen: watch::Sender<u64>,
    /// Commands that the fence refused, of leaderships that are over (w07).
    pub(crate) fenced: AtomicU64,
    /// The shard's thread makes no progress (w08).
    pub(crate) hangs: AtomicBool,
    /// Calls that are under way (l01).
    pub(crate) calls: Arc<Calls>,
    /// Whether this process takes over when there is no leader.
    pub(crate) stands_by: bool,
    /// By shard: its leader, and which version of the file said so.
    leaders: Mutex<Vec<Option<Known>>>,
}

impl Host {
    pub(crate) fn new(
        data: DataDir,
        id: ShardId,
        secrets: Secrets,
        entropy: Arc<dyn Entropy>,
        address: SocketAddr,
        stands_by: bool,
    ) -> Self {
        let sealing = Sealing::new(
            data.secret_dir(),
            secrets.ticket.clone(),
            Arc::clone(&entropy),
        );
        let shards = usize::from(data.shards());
        Self {
            data,
            id,
            secrets,
            entropy,
            address,
            sealing,
            not_opened: AtomicU64::new(0),
            deliverable: watch::Sender::new(()),
            leaders: Mutex::new(vec![None; shards]),
            shard: RwLock::new(None),
            phase: watch::Sender::new(Phase::Recovering),
            beats_seen: watch::Sender::new(0),
            fenced: AtomicU64::new(0),
            hangs: AtomicBool::new(false),
            calls: Arc::default(),
            stands_by,
        }
    }

    /// Lets calls in.
    pub(crate) fn serve(&self, shard: Shard) {
        *self.shard.write() = Some(shard);
        self.phase.send_replace(Phase::Serving);
    }

    /// Lets go of a shard that is led no more.
    pub(crate) fn stand_by(&self) {
        self.phase.send_replace(Phase::Standby);
        *self.shard.write() = None;
    }

    pub(crate) fn enter(&self, phase: Phase) {
        self.phase.send_replace(phase);
    }

    /// The shard, whatever it answers for.
    pub(crate) fn opened(&self) -> Option<Shard> {
        self.shard.read().clone()
    }

    pub(crate) fn phase(&self) -> watch::Receiver<Phase> {
        self.phase.subscribe()
    }

    /// The shard, if it answers for `slot`.
    pub(crate) fn shard_for(&self, slot: Slot) -> Result<Shard, Refusal> {
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
            if let Some(leader) = self.leader(owner) {
                refusal = refusal
                    .with("address", leader.address)
                    .with("epoch", leader.epoch.to_string());
            }
            return Err(refusal);
        }
        self.serving()
    }

    /// The shard, if it answers.
    pub(crate) fn serving(&self) -> Result<Shard, Refusal> {
        // Not held on to: a refusal looks at it again, and whoever waits to change it goes first.
        let phase = *self.phase.borrow();
        match phase {
            Phase::Standby => Err(self.not_leader("this process is the shard's standby")),
            Phase::HandedOver => Err(self.not_leader("the shard is handed over to its standby")),
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
                .opened()
                .ok_or_else(|| Refusal::new(Reason::NotReady, "the shard is not open")),
        }
    }

    /// Nothing was done, and who leads or will: the standby, where this process has just led.
    fn not_leader(&self, message: &str) -> Refusal {
        let mut refusal = Refusal::new(Reason::NotLeader, message)
            .with("shard", self.id.to_string())
            .with("routingVersion", self.data.version().to_string());
        let own = self.address.to_string();
        let run_dir = self.data.run_dir();
        let standby = || seats::read(&run_dir, self.id, Place::Standby).map(|seat| seat.grpc);
        let leader = self.leader(self.id).filter(|leader| leader.address != own);
        if let Some(leader) = &leader {
            refusal = refusal.with("epoch", leader.epoch.to_string());
        }
        let address = leader.map(|leader| leader.address).or_else(standby);
        if let Some(address) = address.filter(|address| *address != own) {
            refusal = refusal.with("address", address);
        }
        refusal
    }

    /// A refusal as it is sent: with what is known of where and when it was decided, and where to go
    /// instead (f06).
    pub(crate) fn complete(&self, refusal: Refusal) -> Refusal {
        if refusal.reason() == Reason::NotLeader && !refusal.has("shard") {
            return self.not_leader("another process leads this shard now");
        }
        // It was let in, and came to the log when that was closed: nothing was done, and another
        // process will.
        if refusal.reason() == Reason::NotReady && self.is_led_elsewhere() {
            return self.not_leader("the shard is handed over");
        }
        match self.opened() {
            Some(shard) if !refusal.has("shard") => refusal
                .with("shard", self.id.to_string())
                .with("epoch", shard.epoch().to_string())
                .with("sequence", shard.applied().to_string()),
            _ => refusal,
        }
    }

    fn is_led_elsewhere(&self) -> bool {
        matches!(*self.phase.borrow(), Phase::Standby | Phase::HandedOver)
    }

    /// Who leads a shard, as far as is known: by its own word.
    fn leader(&self, shard: ShardId) -> Option<Leader> {
        let run_dir = self.data.run_dir();
        let version = seats::version(&run_dir, shard, Place::Leader);
        // A flood of misdirected calls must not become a flood of reads.
        let mut known = self.leaders.lock();
        let slot = known.get_mut(usize::from(shard.0))?;
        if slot.as_ref().is_none_or(|(read, _)| *read != version) {
            let seat = seats::read(&run_dir, shard, Place::Leader);
            let leader = seat.map(|seat| Leader {
                address: seat.grpc,
                epoch: seat.epoch,
            });
            *slot = Some((version, leader));
        }
        let told = slot.as_ref().and_then(|(_, leader)| leader.clone());
        drop(known);
        if shard != self.id {
            return told;
        }
        // Its own seat outlives its lead by the time that its successor's takes to be written.
        let stands_by = *self.phase.borrow() == Phase::Standby;
        let told = told.filter(|told| !stands_by || told.address != self.address.to_string());
        // And takes a moment itself, and is asked for meanwhile. A leader that has not heard that it
        // is replaced gives way to its successor's.
        let later = |own: &Leader| told.as_ref().is_none_or(|told| told.epoch < own.epoch);
        self.own_lead().filter(later).or(told)
    }

    /// This process, while it leads.
    fn own_lead(&self) -> Option<Leader> {
        let shard = self.opened()?;
        let leads = *self.phase.borrow() == Phase::Serving;
        leads.then(|| Leader {
            address: self.address.to_string(),
            epoch: shard.epoch().0,
        })
    }

    pub(crate) fn routing(&self) -> v1::GetRoutingResponse {
        let shards = (0..self.data.shards()).map(|shard| {
            let leader = self.leader(ShardId(shard));
            let (address, epoch) =
                leader.map_or_else(Default::default, |leader| (leader.address, leader.epoch));
            v1::ShardRoute {
                shard: u32::from(shard),
                address,
                epoch,
                slots: self
                    .data
                    .slots_of(ShardId(shard))
                    .iter()
                    .map(|slot| slot.0.into())
                    .collect(),
            }
        });
        v1::GetRoutingResponse {
            version: self.data.version(),
            shards: shards.collect(),
            cluster_id: self.data.cluster().to_string(),
        }
    }

    pub(crate) fn status(&self) -> v1::GetStatusResponse {
        let state = match *self.phase.borrow() {
            Phase::Standby => v1::ShardState::Standby,
            Phase::Recovering => v1::ShardState::Recovering,
            Phase::Serving => v1::ShardState::Serving,
            Phase::Draining | Phase::HandedOver => v1::ShardState::Draining,
            Phase::Stopped => v1::ShardState::Stopped,
        };
        let mut response = v1::GetStatusResponse {
            shard: self.id.0.into(),
            state: state.into(),
            pid: std::process::id(),
            ..Default::default()
        };
        if let Some(shard) = self.opened() {
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
