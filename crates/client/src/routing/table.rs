//! What is known of who leads what.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use ostraca_proto::v1;
use ostraca_types::contract::SLOTS;
use ostraca_types::{ClusterId, ShardId, Slot};
use tonic::metadata::AsciiMetadataValue;

use crate::Error;
use crate::pool::Peer;

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
    pub(super) shard: ShardId,
    /// The highest that was named for this shard; 0 if none was.
    pub(super) epoch: u64,
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

    /// A call found it silent, gone, or not leading.
    pub(super) fn doubt(&self) {
        self.doubted.store(true, Ordering::Relaxed);
    }

    /// It answered as the leader.
    pub(crate) fn trust(&self) {
        // Hardly ever written, so that calls do not fight for it.
        if self.doubted.load(Ordering::Relaxed) {
            self.doubted.store(false, Ordering::Relaxed);
        }
    }

    /// At an address that was named without an epoch, when `highest` was the highest one.
    pub(super) fn hinted(shard: ShardId, highest: u64, peer: Arc<Peer>) -> Route {
        Arc::new(Self {
            shard,
            epoch: highest,
            proven: false,
            doubted: AtomicBool::new(false),
            peer,
        })
    }

    pub(super) fn is_at(&self, address: &str) -> bool {
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

/// A cluster's name, as calls carry it.
pub(super) type Cluster = AsciiMetadataValue;

/// One of those who are asked for the table.
struct Seed {
    peer: Arc<Peer>,
    /// It serves another cluster, and that was logged.
    stranger: bool,
}

#[derive(Default)]
pub(super) struct Table {
    pub(super) version: u64,
    /// The cluster that this is the table of; `None` until one is named.
    pub(super) cluster: Option<Cluster>,
    /// By slot; empty before the first refresh.
    owners: Vec<Option<ShardId>>,
    shards: BTreeMap<ShardId, Known>,
    /// By address.
    seeds: BTreeMap<String, Seed>,
}

/// What was learnt from a table.
pub(super) struct Adopted {
    /// Its shards, at the addresses that are believed.
    pub(super) shards: Arc<[Shard]>,
    /// Something is known now that was not known before.
    pub(super) news: bool,
}

impl Table {
    /// Empty; of this cluster alone, if one is given.
    pub(super) fn of(cluster: Option<ClusterId>) -> Self {
        Self {
            cluster: cluster.and_then(|id| id.to_string().parse().ok()),
            ..Self::default()
        }
    }

    pub(super) fn owner(&self, slot: Slot) -> Option<ShardId> {
        self.owners.get(slot.index()).copied().flatten()
    }

    pub(super) fn route(&self, slot: Slot) -> Option<Route> {
        self.leader(self.owner(slot)?)
    }

    pub(super) fn leader(&self, shard: ShardId) -> Option<Route> {
        self.shards.get(&shard)?.route().cloned()
    }

    /// The connections to an address that there are, or new ones.
    pub(super) fn peer(&self, address: &str) -> Result<Arc<Peer>, Error> {
        let mut routes = self.shards.values().filter_map(Known::route);
        if let Some(route) = routes.find(|route| route.is_at(address)) {
            return Ok(Arc::clone(&route.peer));
        }
        match self.seeds.get(address) {
            Some(seed) => Ok(Arc::clone(&seed.peer)),
            None => Peer::new(address),
        }
    }

    /// These are asked for the table from now on; with an error if there was one that cannot be.
    /// The connections to who was one before, and leads no shard, are let go of.
    pub(super) fn set_seeds(&mut self, addresses: Vec<String>) -> (Vec<Arc<Peer>>, Option<Error>) {
        let mut before = std::mem::take(&mut self.seeds);
        let mut wrong = None;
        for address in addresses {
            let seed = match before.remove(&address) {
                Some(seed) => Ok(seed),
                None => self.peer(&address).map(|peer| Seed {
                    peer,
                    stranger: false,
                }),
            };
            match seed {
                Ok(seed) => drop(self.seeds.insert(address, seed)),
                Err(err) => wrong = Some(err),
            }
        }
        let peers = self.seeds.values().map(|seed| Arc::clone(&seed.peer));
        (peers.collect(), wrong)
    }

    /// Somebody says that `shard` is led at `address`, under `epoch` unless that is 0. An empty
    /// address says that its leader is not known. True if it is believed, and was not known.
    pub(super) fn heed(&mut self, shard: ShardId, address: &str, epoch: u64) -> bool {
        let known = self.shards.get(&shard);
        let highest = known.map_or(0, Known::epoch).max(epoch);
        if address.is_empty() {
            // No reason to forget one that answers.
            let forget = |route: &Route| route.doubted.load(Ordering::Relaxed);
            let forgotten = known.and_then(Known::route).is_some_and(forget);
            if forgotten {
                self.shards.insert(shard, Known::Vacant(highest));
            }
            return forgotten;
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
            return false;
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
                true
            }
            // The other shards are led all the same.
            Err(err) => {
                tracing::debug!(%shard, %err, "a leader that cannot be reached");
                false
            }
        }
    }

    /// Learns from the table that the seed at `address` answered with, unless that is older than
    /// this one, or another cluster's.
    pub(super) fn adopt(&mut self, address: &str, told: Told) -> Result<Adopted, Error> {
        if let (Some(told), Some(ours)) = (&told.cluster, &self.cluster)
            && told != ours
        {
            return Err(self.another_cluster(address));
        }
        // It comes from a process that has not heard.
        if told.version < self.version {
            return Err(Error::no_route(
                "a shard's routing table is older than the one that is known",
            ));
        }
        if told.cluster.is_some() {
            self.cluster = told.cluster;
        }
        let mut news = told.version > self.version || told.owners != self.owners;
        self.version = told.version;
        self.owners = told.owners;
        for (epoch, shard) in &told.shards {
            news |= self.heed(shard.id, &shard.address, *epoch);
        }
        let ids: BTreeSet<_> = told.shards.iter().map(|(_, shard)| shard.id).collect();
        self.shards.retain(|id, _| ids.contains(id));
        let shards = told.shards.into_iter().map(|(_, shard)| {
            let leader = self.leader(shard.id);
            let address = leader.map_or_else(String::new, |it| it.peer.address().to_owned());
            Shard { address, ..shard }
        });
        Ok(Adopted {
            shards: shards.collect(),
            news,
        })
    }

    /// Said to a person once for each seed: a list of addresses, or a port that is used again, is
    /// wrong, and goes on being.
    fn another_cluster(&mut self, address: &str) -> Error {
        let seed = self.seeds.get_mut(address);
        if !seed.is_some_and(|seed| std::mem::replace(&mut seed.stranger, true)) {
            tracing::warn!(event = "another_cluster", %address, "its routing table is not taken");
        }
        Error::no_route(format!("the shard at {address} serves another cluster"))
    }
}

/// A table as a seed tells it.
pub(super) struct Told {
    version: u64,
    /// `None` if the seed is of a build that does not say.
    cluster: Option<Cluster>,
    owners: Vec<Option<ShardId>>,
    /// Each with its leader's epoch.
    shards: Vec<(u64, Shard)>,
}

impl Told {
    pub(super) fn read(response: v1::GetRoutingResponse) -> Result<Self, Error> {
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
        let cluster = match response.cluster_id.as_str() {
            "" => None,
            name => Some(name.parse().map_err(|_| malformed())?),
        };
        Ok(Self {
            version: response.version,
            cluster,
            owners,
            shards,
        })
    }
}
