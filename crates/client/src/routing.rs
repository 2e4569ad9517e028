//! Which shard leads a slot, and the way to its leader.
//!
//! Two numbers say which of two statements is the later one. The table's version: which shard owns a
//! slot; an older table is ignored. A shard's epoch: which process leads it; leaders change without
//! a new version. Who heard of an epoch goes back to no earlier one, whoever names it and however
//! long the leader of the later one is out of reach.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use ostraca_proto::v1;
use ostraca_proto::v1::cluster_service_client::ClusterServiceClient;
use ostraca_types::contract::SLOTS;
use ostraca_types::{Reason, ShardId, Slot};
use parking_lot::RwLock;
use tokio::task::JoinSet;
use tokio::time::{Instant, timeout_at};

use crate::Error;
use crate::pool::Peer;

/// How long one seed may take. It answers from memory, so this is far above what a busy machine
/// needs. And it is far below [`crate::DEADLINE_DEFAULT`], so that a caller hears soon that there
/// is no route.
const SEED_LIMIT: Duration = Duration::from_secs(1);
/// A refresh in the background: finding the seeds, which may be a file, and asking them. Without it
/// one that never ends would be the last.
const REFRESH_MAX: Duration = Duration::from_secs(3);

/// Where the routing table can be fetched: `host:port` of any shards.
#[derive(Clone)]
pub enum Seeds {
    /// Always these.
    Fixed(Vec<String>),
    /// Asked anew at each refresh, as addresses can change with each restart. It may read a file:
    /// it is called where blocking is allowed.
    Ask(Arc<dyn Fn() -> Vec<String> + Send + Sync>),
}

impl Seeds {
    async fn addresses(&self) -> Result<Vec<String>, Error> {
        match self {
            Self::Fixed(addresses) => Ok(addresses.clone()),
            Self::Ask(ask) => {
                let ask = Arc::clone(ask);
                tokio::task::spawn_blocking(move || ask())
                    .await
                    .map_err(|_| Error::no_route("the shards' addresses could not be found"))
            }
        }
    }
}

impl fmt::Debug for Seeds {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Fixed(addresses) => f.debug_list().entries(addresses).finish(),
            Self::Ask(_) => f.write_str("Ask(..)"),
        }
    }
}

/// One shard of the routing table.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Shard {
    /// Which shard.
    pub id: ShardId,
    /// `host:port` of its leader.
    pub address: String,
    /// The slots it owns.
    pub slots: Vec<Slot>,
}

/// The way to a shard's leader.
#[derive(Debug)]
pub(crate) struct Leader {
    shard: ShardId,
    /// The highest that was named for this shard; 0 if none was.
    epoch: u64,
    /// Whether it leads under that epoch. Otherwise somebody said that it does or will, and not
    /// under which one.
    proven: bool,
    /// A call found it silent, gone, or not leading; cleared by the next answer.
    doubted: AtomicBool,
    pub(crate) peer: Arc<Peer>,
}

pub(crate) type Route = Arc<Leader>;

impl Leader {
    /// Whether it makes way for a leader that was named with `epoch`, or without one.
    fn yields_to(&self, epoch: u64) -> bool {
        let doubted = self.doubted.load(Ordering::Relaxed);
        match epoch {
            0 => doubted || !self.proven,
            // An epoch has one leader, but addresses can be mistaken.
            _ => epoch > self.epoch || (doubted && epoch == self.epoch),
        }
    }

    /// It answered as the leader.
    pub(crate) fn trust(&self) {
        // Hardly ever written, so that calls do not fight for it.
        if self.doubted.load(Ordering::Relaxed) {
            self.doubted.store(false, Ordering::Relaxed);
        }
    }

    /// At an address that was named without an epoch, when `highest` was the highest one.
    fn hinted(shard: ShardId, highest: u64, peer: Arc<Peer>) -> Route {
        Arc::new(Self {
            shard,
            epoch: highest,
            proven: false,
            doubted: AtomicBool::new(false),
            peer,
        })
    }

    fn is_at(&self, address: &str) -> bool {
        self.peer.address() == address
    }
}

/// What is known of a shard.
enum Known {
    Led(Route),
    /// Its leader was out of reach and the table names no other; the highest epoch so far.
    Vacant(u64),
}

impl Known {
    fn route(&self) -> Option<&Route> {
        match self {
            Self::Led(route) => Some(route),
            Self::Vacant(_) => None,
        }
    }

    fn epoch(&self) -> u64 {
        match self {
            Self::Led(route) => route.epoch,
            Self::Vacant(epoch) => *epoch,
        }
    }
}

#[derive(Default)]
struct Table {
    version: u64,
    /// By slot; empty before the first refresh.
    owners: Vec<Option<ShardId>>,
    shards: BTreeMap<ShardId, Known>,
}

impl Table {
    fn route(&self, slot: Slot) -> Option<Route> {
        let owner = (*self.owners.get(slot.index())?)?;
        self.leader(owner)
    }

    fn leader(&self, shard: ShardId) -> Option<Route> {
        self.shards.get(&shard)?.route().cloned()
    }

    /// The connections to an address that there are, or new ones.
    fn peer(&self, address: &str) -> Result<Arc<Peer>, Error> {
        let mut routes = self.shards.values().filter_map(Known::route);
        match routes.find(|route| route.is_at(address)) {
            Some(route) => Ok(Arc::clone(&route.peer)),
            None => Peer::new(address),
        }
    }

    /// Somebody says that `shard` is led at `address`, under `epoch` unless that is 0. An empty
    /// address says that its leader is not known.
    fn heed(&mut self, shard: ShardId, address: &str, epoch: u64) {
        let known = self.shards.get(&shard);
        let highest = known.map_or(0, Known::epoch).max(epoch);
        if address.is_empty() {
            // No reason to forget one that answers.
            let forget = |route: &Route| route.doubted.load(Ordering::Relaxed);
            if known.and_then(Known::route).is_some_and(forget) {
                self.shards.insert(shard, Known::Vacant(highest));
            }
            return;
        }
        let believed = match known {
            None => true,
            Some(Known::Vacant(highest)) => epoch == 0 || epoch >= *highest,
            Some(Known::Led(route)) => {
                // Said again it is no more certain.
                let new = !route.is_at(address) || epoch > route.epoch;
                new && route.yields_to(epoch)
            }
        };
        if !believed {
            return;
        }
        match self.peer(address) {
            Ok(peer) => {
                let leader = Leader {
                    shard,
                    epoch: highest,
                    proven: epoch > 0,
                    doubted: AtomicBool::new(false),
                    peer,
                };
                self.shards.insert(shard, Known::Led(Arc::new(leader)));
            }
            // The other shards are led all the same.
            Err(err) => tracing::debug!(%shard, %err, "a leader that cannot be reached"),
        }
    }
}

/// Shared by the clones of a client.
#[derive(Clone)]
pub(crate) struct Router(Arc<Inner>);

struct Inner {
    seeds: Seeds,
    table: RwLock<Table>,
    refreshing: AtomicBool,
}

impl fmt::Debug for Router {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Router")
            .field("version", &self.0.table.read().version)
            .finish()
    }
}

impl Router {
    pub(crate) fn new(seeds: Seeds) -> Self {
        Self(Arc::new(Inner {
            seeds,
            table: RwLock::default(),
            refreshing: AtomicBool::new(false),
        }))
    }

    /// The way to the leader of `slot`, fetching the table if none is known.
    pub(crate) async fn route(&self, slot: Slot) -> Result<Route, Error> {
        if let Some(route) = self.known(slot) {
            return Ok(route);
        }
        self.fetch(|| self.known(slot).is_some()).await?;
        self.known(slot)
            .ok_or_else(|| Error::no_route(format!("no shard is known to lead slot {slot}")))
    }

    pub(crate) fn known(&self, slot: Slot) -> Option<Route> {
        self.0.table.read().route(slot)
    }

    /// The way to where a refusal points, which was learnt from; or else to what fresh tables say.
    /// The refusal itself if that is where it came from.
    pub(crate) async fn reroute(
        &self,
        slot: Slot,
        from: &Route,
        refusal: Error,
    ) -> Result<Route, Error> {
        let elsewhere = |route: &Route| !route.is_at(from.peer.address());
        if let Some(route) = self.pointed(slot, from, &refusal).filter(&elsewhere) {
            return Ok(route);
        }
        let known = || self.known(slot).filter(&elsewhere);
        self.fetch(|| known().is_some()).await?;
        known().ok_or(refusal)
    }

    /// The leader of the shard that a refusal names, or the address that it names without an epoch:
    /// a standby, which no table has. None if the refusal's table says otherwise than this one, and
    /// is the older of the two.
    fn pointed(&self, slot: Slot, from: &Route, refusal: &Error) -> Option<Route> {
        let table = self.0.table.read();
        let shard = named(refusal).unwrap_or(from.shard);
        let owner = table.owners.get(slot.index()).copied().flatten();
        let later = || number(refusal, "routingVersion").is_some_and(|it| it > table.version);
        if owner != Some(shard) && !later() {
            return None;
        }
        let leader = table.leader(shard);
        let hint = refusal
            .metadata("address")
            .filter(|_| number(refusal, "epoch").is_none());
        match (&leader, hint) {
            // One call does not ask twice who has refused it, whatever a table says that came in
            // between.
            (Some(leader), Some(hint)) if leader.is_at(from.peer.address()) => {
                let peer = table.peer(hint).ok()?;
                Some(Leader::hinted(shard, leader.epoch, peer))
            }
            _ => leader,
        }
    }

    /// Asks all seeds for the table. In turn, one seed that hangs would hide the others.
    pub(crate) async fn refresh(&self) -> Result<Vec<Shard>, Error> {
        self.fetch(|| true).await
    }

    /// Asks all seeds at once and heeds every answer until it is `enough`: the first one may be of
    /// a process that has not heard.
    async fn fetch(&self, enough: impl Fn() -> bool) -> Result<Vec<Shard>, Error> {
        let mut outcome = Err(Error::no_route("no shard's address is known"));
        // Dropped when it is enough, which ends the other questions.
        let mut asked = JoinSet::new();
        for address in self.0.seeds.addresses().await? {
            let peer = self.0.table.read().peer(&address);
            match peer {
                Ok(peer) => drop(asked.spawn(ask(peer))),
                Err(err) => outcome = Err(err),
            }
        }
        while let Some(answer) = asked.join_next().await {
            let answer = answer.map_err(|_| Error::no_route("no answer from a shard"));
            match answer.flatten().and_then(|table| self.adopt(table)) {
                Ok(shards) => outcome = Ok(shards),
                Err(err) if outcome.is_err() => outcome = Err(err),
                Err(_) => continue,
            }
            if outcome.is_ok() && enough() {
                break;
            }
        }
        outcome
    }

    /// Learns from a call's error: where the shard is led, if it says so, and that it should be
    /// asked for, if the error says that `route` may be stale: the shard is out of reach, was silent
    /// until the deadline, or does not lead the slot.
    pub(crate) fn learn(&self, route: &Route, err: &Error) {
        let refused = matches!(err.reason(), Some(Reason::WrongShard | Reason::NotLeader));
        let silent = err.reason() == Some(Reason::DeadlineExceeded);
        if !refused && !silent && !err.is_unreachable() {
            return;
        }
        route.doubted.store(true, Ordering::Relaxed);
        // A table may have named it anew since the call was sent.
        let known = self.0.table.read().leader(route.shard);
        if let Some(known) = known.filter(|known| known.is_at(route.peer.address())) {
            known.doubted.store(true, Ordering::Relaxed);
        }
        if let (true, Some(address)) = (refused, err.metadata("address")) {
            let shard = named(err).unwrap_or(route.shard);
            let epoch = number(err, "epoch").unwrap_or(0);
            self.0.table.write().heed(shard, address, epoch);
        }
        self.suspect(route);
    }

    /// A shard may have moved. Fetches the table in the background, once at a time.
    fn suspect(&self, route: &Route) {
        if self.0.refreshing.swap(true, Ordering::AcqRel) {
            return;
        }
        let (this, route) = (self.clone(), Arc::clone(route));
        tokio::spawn(async move {
            let replaced = || {
                let known = this.0.table.read().leader(route.shard);
                known.is_none_or(|known| !Arc::ptr_eq(&known, &route))
            };
            let refreshed = tokio::time::timeout(REFRESH_MAX, this.fetch(replaced)).await;
            if !matches!(refreshed, Ok(Ok(_))) {
                let address = route.peer.address();
                tracing::debug!(%address, "no routing table could be fetched");
            }
            this.0.refreshing.store(false, Ordering::Release);
        });
    }

    fn adopt(&self, response: v1::GetRoutingResponse) -> Result<Vec<Shard>, Error> {
        let malformed = || Error::no_route("a shard's routing table is not of this API's form");
        let mut owners = vec![None; SLOTS];
        let mut shards = Vec::with_capacity(response.shards.len());
        for route in response.shards {
            let id = ShardId(u16::try_from(route.shard).map_err(|_| malformed())?);
            let mut slots = Vec::with_capacity(route.slots.len());
            for slot in route.slots {
                let slot = u8::try_from(slot).map(Slot).map_err(|_| malformed())?;
                owners[slot.index()] = Some(id);
                slots.push(slot);
            }
            let address = route.address;
            shards.push((route.epoch, Shard { id, address, slots }));
        }
        let mut table = self.0.table.write();
        // It comes from a process that has not heard.
        if response.version < table.version {
            return Err(Error::no_route(
                "a shard's routing table is older than the one that is known",
            ));
        }
        table.version = response.version;
        table.owners = owners;
        for (epoch, shard) in &shards {
            table.heed(shard.id, &shard.address, *epoch);
        }
        let ids: BTreeSet<_> = shards.iter().map(|(_, shard)| shard.id).collect();
        table.shards.retain(|id, _| ids.contains(id));
        let known = shards.into_iter().map(|(_, shard)| {
            let leader = table.leader(shard.id);
            let address = leader.map_or_else(String::new, |it| it.peer.address().to_owned());
            Shard { address, ..shard }
        });
        Ok(known.collect())
    }
}

/// The shard that a refusal names.
fn named(refusal: &Error) -> Option<ShardId> {
    let shard = number(refusal, "shard")?;
    u16::try_from(shard).ok().map(ShardId)
}

fn number(refusal: &Error, name: &str) -> Option<u64> {
    refusal.metadata(name)?.parse().ok()
}

/// Asks one shard for the table.
async fn ask(peer: Arc<Peer>) -> Result<v1::GetRoutingResponse, Error> {
    let until = Instant::now() + SEED_LIMIT;
    let silent = || Error::no_route(format!("no answer from a shard at {}", peer.address()));
    let place = peer.place_to_ask();
    let mut service = ClusterServiceClient::new(place.channel());
    let asked = timeout_at(until, service.get_routing(v1::GetRoutingRequest {})).await;
    match asked {
        Ok(Ok(response)) => {
            place.answered();
            Ok(response.into_inner())
        }
        Ok(Err(_)) => {
            place.give_up();
            Err(silent())
        }
        Err(_) => {
            place.unanswered();
            Err(silent())
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn led_at(router: &Router, epoch: u64, address: &str) {
        let shard = v1::ShardRoute {
            shard: 0,
            address: address.to_owned(),
            slots: vec![3],
            epoch,
        };
        let table = v1::GetRoutingResponse {
            version: 1,
            shards: vec![shard],
        };
        router.adopt(table).expect("a table");
    }

    /// Goal: a leader that hands over sends to its standby, though a table that was on its way names
    /// the leader once more.
    #[tokio::test]
    async fn f06_a_refusal_is_followed_whatever_table_comes_in_between() {
        let router = Router::new(Seeds::Fixed(Vec::new()));
        led_at(&router, 1, "127.0.0.1:1");
        let from = router.known(Slot(3)).expect("led");
        let refusal = Error::from_failure(v1::Failure {
            code: tonic::Code::FailedPrecondition.into(),
            reason: Reason::NotLeader.as_str().to_owned(),
            message: String::new(),
            retry_delay_ms: 0,
            metadata: [("shard", "0"), ("address", "127.0.0.1:2")]
                .map(|(name, value)| (name.to_owned(), value.to_owned()))
                .into(),
        });
        router.learn(&from, &refusal);
        led_at(&router, 2, "127.0.0.1:1");
        let route = router.reroute(Slot(3), &from, refusal.clone()).await;
        assert!(route.expect("a route").is_at("127.0.0.1:2"));
        // Somebody who leads by a word with an epoch is asked rather than a hint.
        led_at(&router, 3, "127.0.0.1:3");
        let route = router.reroute(Slot(3), &from, refusal).await;
        assert!(route.expect("a route").is_at("127.0.0.1:3"));
    }
}
