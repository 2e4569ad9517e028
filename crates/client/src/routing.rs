//! Which shard leads a slot, and the connection to it.

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
use tonic::transport::{Channel, Endpoint};

use crate::Error;

/// A peer on the same network answers a connect in milliseconds.
const CONNECT_TIMEOUT: Duration = Duration::from_secs(1);
/// How long one seed may take. It answers from memory, so this is far above what a busy machine
/// needs. And it is far below [`crate::DEADLINE_DEFAULT`], so that a caller hears that there is no
/// route, which is definite, before its deadline says that anything may have happened.
const SEED_LIMIT: Duration = Duration::from_secs(1);
/// A refresh in the background: finding the seeds, which may be a file, and asking them. Without it
/// one that never ends would be the last.
const REFRESH_MAX: Duration = Duration::from_secs(3);
/// Above the default 64 KiB, or one busy stream starves the others of the connection.
const STREAM_WINDOW: u32 = 1 << 20;
const CONNECTION_WINDOW: u32 = 8 << 20;
/// Finds a peer that is gone without a word; modest, as servers of other languages punish more.
const KEEPALIVE_INTERVAL: Duration = Duration::from_secs(30);
const KEEPALIVE_TIMEOUT: Duration = Duration::from_secs(20);

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

/// The way to one slot's leader.
#[derive(Debug, Clone)]
pub(crate) struct Route {
    address: Arc<str>,
    pub(crate) channel: Channel,
}

#[derive(Default)]
struct Table {
    version: u64,
    /// By slot; empty before the first refresh.
    routes: Vec<Option<Route>>,
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

/// A connection to `address`, made when it is first used and again after it broke. No retry
/// policy anywhere (k17).
pub(crate) fn connect(address: &str) -> Result<Channel, Error> {
    let endpoint = Endpoint::from_shared(format!("http://{address}"))
        .map_err(|_| Error::no_route(format!("not an address: {address}")))?;
    Ok(endpoint
        .connect_timeout(CONNECT_TIMEOUT)
        .tcp_nodelay(true)
        .initial_stream_window_size(STREAM_WINDOW)
        .initial_connection_window_size(CONNECTION_WINDOW)
        .http2_keep_alive_interval(KEEPALIVE_INTERVAL)
        .keep_alive_timeout(KEEPALIVE_TIMEOUT)
        .connect_lazy())
}

impl Router {
    pub(crate) fn new(seeds: Seeds) -> Self {
        Self(Arc::new(Inner {
            seeds,
            table: RwLock::default(),
            refreshing: AtomicBool::new(false),
        }))
    }

    /// The way to the leader of `slot`, fetching the table if there is none yet.
    pub(crate) async fn route(&self, slot: Slot) -> Result<Route, Error> {
        if let Some(route) = self.known(slot) {
            return Ok(route);
        }
        self.refresh().await?;
        self.known(slot)
            .ok_or_else(|| Error::no_route(format!("no shard is known to lead slot {slot}")))
    }

    fn known(&self, slot: Slot) -> Option<Route> {
        self.0.table.read().routes.get(slot.index())?.clone()
    }

    /// The way to where a refusal points: the address that it names, at once, while the table is
    /// fetched in the background; or what a fresh table says.
    pub(crate) async fn reroute(
        &self,
        slot: Slot,
        from: &Route,
        refusal: &Error,
    ) -> Result<Route, Error> {
        match refusal.metadata("address") {
            Some(address) if *address != *from.address => {
                self.suspect(from);
                self.route_to(address)
            }
            _ => {
                self.refresh().await?;
                self.route(slot).await
            }
        }
    }

    /// The way to an address, over the connection that there is, or a new one.
    fn route_to(&self, address: &str) -> Result<Route, Error> {
        let table = self.0.table.read();
        let mut known = table.routes.iter().flatten();
        if let Some(route) = known.find(|route| *route.address == *address) {
            return Ok(route.clone());
        }
        drop(table);
        Ok(Route {
            address: address.into(),
            channel: connect(address)?,
        })
    }

    /// Fetches the table: asks all seeds at once and takes the first answer that is no older than
    /// the table that there is. In turn, one seed that hangs would hide the others.
    pub(crate) async fn refresh(&self) -> Result<Vec<Shard>, Error> {
        let mut failure = Error::no_route("no shard's address is known");
        // Dropped with the first good answer, which ends the other questions.
        let mut asked = JoinSet::new();
        for address in self.0.seeds.addresses().await? {
            match self.route_to(&address) {
                Ok(route) => drop(asked.spawn(ask(route))),
                Err(err) => failure = err,
            }
        }
        while let Some(answer) = asked.join_next().await {
            let answer = answer.map_err(|_| Error::no_route("no answer from a shard"));
            match answer.flatten().and_then(|table| self.adopt(table)) {
                Ok(shards) => return Ok(shards),
                Err(err) => failure = err,
            }
        }
        Err(failure)
    }

    /// Fetches the table in the background after an error that says that `route` may be stale: the
    /// shard is out of reach, was silent until the deadline, or does not lead the slot.
    pub(crate) fn learn(&self, route: &Route, err: &Error) {
        let stale = matches!(
            err.reason(),
            Some(Reason::WrongShard | Reason::NotLeader | Reason::DeadlineExceeded)
        );
        if stale || err.is_unreachable() {
            self.suspect(route);
        }
    }

    /// A shard may have moved. Fetches the table in the background, once at a time.
    pub(crate) fn suspect(&self, route: &Route) {
        if self.0.refreshing.swap(true, Ordering::AcqRel) {
            return;
        }
        let this = self.clone();
        let address = Arc::clone(&route.address);
        tokio::spawn(async move {
            let refreshed = tokio::time::timeout(REFRESH_MAX, this.refresh()).await;
            if !matches!(refreshed, Ok(Ok(_))) {
                tracing::debug!(%address, "no routing table could be fetched");
            }
            this.0.refreshing.store(false, Ordering::Release);
        });
    }

    fn adopt(&self, response: v1::GetRoutingResponse) -> Result<Vec<Shard>, Error> {
        let malformed = || Error::no_route("a shard's routing table is not of this API's form");
        let mut shards = Vec::with_capacity(response.shards.len());
        for route in response.shards {
            let slots = route
                .slots
                .into_iter()
                .map(|slot| u8::try_from(slot).map(Slot));
            shards.push(Shard {
                id: ShardId(u16::try_from(route.shard).map_err(|_| malformed())?),
                address: route.address,
                slots: slots.collect::<Result<_, _>>().map_err(|_| malformed())?,
            });
        }
        let mut table = self.0.table.write();
        // It comes from a process that has not heard.
        if response.version < table.version {
            return Err(Error::no_route(
                "a shard's routing table is older than the one that is known",
            ));
        }
        let mut routes = vec![None; SLOTS];
        for shard in shards.iter().filter(|shard| !shard.address.is_empty()) {
            let mut known = table.routes.iter().flatten();
            let route = match known.find(|route| *route.address == *shard.address) {
                Some(route) => route.clone(),
                None => Route {
                    address: shard.address.as_str().into(),
                    channel: connect(&shard.address)?,
                },
            };
            for slot in &shard.slots {
                routes[slot.index()] = Some(route.clone());
            }
        }
        *table = Table {
            version: response.version,
            routes,
        };
        Ok(shards)
    }
}

/// Asks one shard for the table.
async fn ask(route: Route) -> Result<v1::GetRoutingResponse, Error> {
    let mut service = ClusterServiceClient::new(route.channel);
    let asked = service.get_routing(v1::GetRoutingRequest {});
    match tokio::time::timeout(SEED_LIMIT, asked).await {
        Ok(Ok(response)) => Ok(response.into_inner()),
        _ => Err(Error::no_route(format!(
            "no answer from a shard at {}",
            route.address
        ))),
    }
}
