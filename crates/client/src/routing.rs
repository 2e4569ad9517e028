//! Which shard leads a slot, and the way to its leader.
//!
//! Two numbers say which of two statements is the later one. The table's version: which shard owns a
//! slot; an older table is ignored. A shard's epoch: which process leads it; leaders change without
//! a new version. Who heard of an epoch goes back to no earlier one, whoever names it and however
//! long the leader of the later one is out of reach.
//!
//! The cluster that is heard of first is the router's for life, unless it was made for one. Each call
//! names it, so that an address that another one serves by now refuses it, and is not believed.

mod fetch;
mod table;

use std::fmt;
use std::sync::Arc;

use ostraca_proto::v1;
use ostraca_types::{ClusterId, Reason, ShardId, Slot};
use parking_lot::RwLock;
use tonic::Request;

use crate::Error;
use fetch::Fetches;
use table::{Adopted, Leader, Table, Told};

pub(crate) use table::Route;
pub use table::Shard;

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

/// Shared by the clones of a client.
#[derive(Clone)]
pub(crate) struct Router(Arc<Inner>);

struct Inner {
    seeds: Seeds,
    table: RwLock<Table>,
    fetches: Fetches,
}

impl fmt::Debug for Router {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Router")
            .field("version", &self.0.table.read().version)
            .finish()
    }
}

impl Router {
    pub(crate) fn new(seeds: Seeds, cluster: Option<ClusterId>) -> Self {
        let table = Table::of(cluster);
        Self(Arc::new(Inner {
            seeds,
            table: RwLock::new(table),
            fetches: Fetches::default(),
        }))
    }

    /// The way to the leader of `slot`, fetching the table if none is known.
    pub(crate) async fn route(&self, slot: Slot) -> Result<Route, Error> {
        if let Some(route) = self.known(slot) {
            return Ok(route);
        }
        self.fetch(false, |_| self.known(slot).is_some()).await?;
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
        self.fetch(false, |_| known().is_some()).await?;
        known().ok_or(refusal)
    }

    /// The leader of the shard that a refusal names, or the address that it names without an epoch:
    /// a standby, which no table has. None if the refusal's table says otherwise than this one, and
    /// is the older of the two.
    fn pointed(&self, slot: Slot, from: &Route, refusal: &Error) -> Option<Route> {
        if refusal.reason() == Some(Reason::WrongCluster) {
            return None;
        }
        let table = self.0.table.read();
        let shard = named(refusal).unwrap_or(from.shard);
        let owner = table.owner(slot);
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

    /// The table as a seed tells it now.
    pub(crate) async fn refresh(&self) -> Result<Vec<Shard>, Error> {
        let shards = self.fetch(true, |told_since| told_since).await?;
        Ok(shards.to_vec())
    }

    /// Learns from a call's error: where the shard is led, if it says so, and that it should be
    /// asked for, if the error says that `route` may be stale: the shard is out of reach, was silent
    /// until the deadline, does not lead the slot, or is of another cluster.
    pub(crate) fn learn(&self, route: &Route, err: &Error) {
        let refused = matches!(err.reason(), Some(Reason::WrongShard | Reason::NotLeader));
        let stale = matches!(
            err.reason(),
            Some(Reason::WrongCluster | Reason::DeadlineExceeded)
        );
        if !refused && !stale && !err.is_unreachable() {
            return;
        }
        route.doubt();
        // A table may have named it anew since the call was sent.
        let known = self.0.table.read().leader(route.shard);
        if let Some(known) = known.filter(|known| known.is_at(route.peer.address())) {
            known.doubt();
        }
        if let (true, Some(address)) = (refused, err.metadata("address")) {
            let shard = named(err).unwrap_or(route.shard);
            let epoch = number(err, "epoch").unwrap_or(0);
            self.0.table.write().heed(shard, address, epoch);
        }
        // Whoever comes next finds what it brings.
        self.want(false);
    }

    /// Has a call say which cluster it is for.
    pub(crate) fn mark<T>(&self, mut request: Request<T>) -> Request<T> {
        if let Some(cluster) = self.0.table.read().cluster.clone() {
            request
                .metadata_mut()
                .insert(ostraca_proto::CLUSTER_METADATA, cluster);
        }
        request
    }

    /// Learns from what the seed at `address` answered.
    fn adopt(&self, address: &str, response: v1::GetRoutingResponse) -> Result<Adopted, Error> {
        let told = Told::read(response)?;
        self.0.table.write().adopt(address, told)
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

#[cfg(test)]
mod tests;
