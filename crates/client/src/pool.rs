//! The connections to one address, and how many calls are on their way over each.

use std::fmt;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::time::Duration;

use parking_lot::RwLock;
use tokio::sync::Semaphore;
use tonic::transport::{Channel, Endpoint};

use crate::Error;

/// Connections for the calls to one address. One is carried by one task at each end, and a packet
/// that is lost holds up all that is on it. With more, fewer calls share a write. Streams and
/// their bulk have connections of their own besides.
const CONNECTIONS: usize = 4;
/// Calls on their way over one connection: below the 128 that a shard takes. A call beyond that
/// would wait in the HTTP/2 library, and look as if it had been sent.
pub(crate) const CALLS_MAX: usize = 120;
/// Calls on their way to one address.
pub(crate) const PLACES: usize = CONNECTIONS * CALLS_MAX;
/// Calls that wait for a place to one address, and as many to hear who leads. Their deadlines alone would let an application that
/// goes on calling a shard that hangs collect them by the second, each with its request. A shard
/// that does a thousand calls a second, a small part of what one can, serves so many within
/// [`crate::DEADLINE_DEFAULT`]; and a frontend has fewer requests at a time than this.
const WAITING_MAX: usize = 4096;

/// A peer on the same network answers a connect in milliseconds.
const CONNECT_TIMEOUT: Duration = Duration::from_secs(1);
/// Above the default 64 KiB, or one busy stream starves the others of the connection.
const STREAM_WINDOW: u32 = 1 << 20;
const CONNECTION_WINDOW: u32 = 8 << 20;
/// Finds a peer that is gone without a word; modest, as servers of other languages punish more.
const KEEPALIVE_INTERVAL: Duration = Duration::from_secs(30);
const KEEPALIVE_TIMEOUT: Duration = Duration::from_secs(20);

/// A connection to `address`, made when it is first used and again after it broke. No retry
/// policy anywhere (k17).
pub(crate) fn connect(address: &str) -> Result<Channel, Error> {
    Ok(endpoint(address)?.connect_lazy())
}

fn endpoint(address: &str) -> Result<Endpoint, Error> {
    let endpoint = Endpoint::from_shared(format!("http://{address}"))
        .map_err(|_| Error::no_route(format!("not an address: {address}")))?;
    Ok(endpoint
        .connect_timeout(CONNECT_TIMEOUT)
        .tcp_nodelay(true)
        .initial_stream_window_size(STREAM_WINDOW)
        .initial_connection_window_size(CONNECTION_WINDOW)
        .http2_keep_alive_interval(KEEPALIVE_INTERVAL)
        .keep_alive_timeout(KEEPALIVE_TIMEOUT))
}

/// One address.
pub(crate) struct Peer {
    address: Box<str>,
    endpoint: Endpoint,
    connections: [Connection; CONNECTIONS],
    /// As many as calls fit on all connections.
    places: Semaphore,
    /// Calls that wait for one of them.
    waiters: Waiters,
}

struct Connection {
    /// Calls on their way, those on a line that was given up included.
    in_flight: AtomicUsize,
    line: RwLock<Arc<Line>>,
}

/// One connection until it is given up.
struct Line {
    channel: Channel,
    /// Calls that were answered over it.
    answers: AtomicU64,
}

impl Line {
    fn new(endpoint: &Endpoint) -> Arc<Self> {
        Arc::new(Self {
            channel: endpoint.connect_lazy(),
            answers: AtomicU64::new(0),
        })
    }
}

impl fmt::Debug for Peer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("Peer").field(&self.address).finish()
    }
}

impl Peer {
    /// Connects to nothing yet.
    pub(crate) fn new(address: &str) -> Result<Arc<Self>, Error> {
        let endpoint = endpoint(address)?;
        let connections = std::array::from_fn(|_| Connection {
            in_flight: AtomicUsize::new(0),
            line: RwLock::new(Line::new(&endpoint)),
        });
        Ok(Arc::new(Self {
            address: address.into(),
            endpoint,
            connections,
            places: Semaphore::new(PLACES),
            waiters: Waiters::default(),
        }))
    }

    pub(crate) fn address(&self) -> &str {
        &self.address
    }

    /// A connection that nobody else uses: for a stream, whose bulk is not to hold up calls.
    pub(crate) fn own_connection(&self) -> Channel {
        self.endpoint.connect_lazy()
    }

    /// A place for one call, on the connection with the fewest. Waits while there is none, unless
    /// as many wait as may: then it fails at once.
    pub(crate) async fn place(self: &Arc<Self>) -> Result<Place, Error> {
        let permit = match self.places.try_acquire() {
            Ok(permit) => Ok(permit),
            Err(_) => {
                let waits = self.waiters.one_more();
                let _waits = waits.ok_or_else(Error::no_place)?;
                self.places.acquire().await
            }
        };
        if let Ok(permit) = permit {
            // Given back by the place, which may outlive this borrow.
            permit.forget();
        }
        Ok(self.place_on(self.take(), true))
    }

    /// A place beside those of calls, for asking who leads: that is asked most of all when a leader
    /// hangs and calls have taken its places. What a connection carries beyond them is for it.
    pub(crate) fn place_to_ask(self: &Arc<Self>) -> Place {
        let load = |nth: &usize| self.connections[*nth].in_flight.load(Ordering::Relaxed);
        self.place_on((0..CONNECTIONS).min_by_key(load).unwrap_or_default(), false)
    }

    fn place_on(self: &Arc<Self>, nth: usize, counted: bool) -> Place {
        let line = Arc::clone(&self.connections[nth].line.read());
        Place {
            peer: Arc::clone(self),
            nth,
            counted,
            answers_before: line.answers.load(Ordering::Relaxed),
            line,
        }
    }

    /// Counts a call in. Whoever comes here has one of `PLACES` permits, so there is a connection
    /// with room at every instant, though not always the one that was just looked at.
    fn take(&self) -> usize {
        let load = |nth: &usize| self.connections[*nth].in_flight.load(Ordering::Relaxed);
        loop {
            let nth = (0..CONNECTIONS).min_by_key(load).unwrap_or_default();
            let one_more = |calls| (calls < CALLS_MAX).then_some(calls + 1);
            let in_flight = &self.connections[nth].in_flight;
            if in_flight
                .fetch_update(Ordering::AcqRel, Ordering::Relaxed, one_more)
                .is_ok()
            {
                return nth;
            }
        }
    }
}

/// How many calls wait for the same thing.
#[derive(Default)]
pub(crate) struct Waiters(AtomicUsize);

impl Waiters {
    /// Counts a call in until it is dropped; `None` if as many wait as may.
    pub(crate) fn one_more(&self) -> Option<Waiting<'_>> {
        let one_more = |calls| (calls < WAITING_MAX).then_some(calls + 1);
        let counted = self
            .0
            .fetch_update(Ordering::AcqRel, Ordering::Relaxed, one_more);
        counted.is_ok().then(|| Waiting(&self.0))
    }
}

/// A call that waits.
pub(crate) struct Waiting<'a>(&'a AtomicUsize);

impl Drop for Waiting<'_> {
    fn drop(&mut self) {
        self.0.fetch_sub(1, Ordering::AcqRel);
    }
}

/// The right to have one call on its way, until it is dropped.
pub(crate) struct Place {
    peer: Arc<Peer>,
    nth: usize,
    /// Among the places of calls.
    counted: bool,
    line: Arc<Line>,
    answers_before: u64,
}

impl Place {
    pub(crate) fn channel(&self) -> Channel {
        self.line.channel.clone()
    }

    /// The call was answered.
    pub(crate) fn answered(&self) {
        self.line.answers.fetch_add(1, Ordering::Relaxed);
    }

    /// The call met its deadline. If nothing came over the connection in all that time, its other
    /// end may be gone without a word, which the keep-alive finds much later.
    pub(crate) fn unanswered(&self) {
        if self.line.answers.load(Ordering::Relaxed) == self.answers_before {
            self.give_up();
        }
    }

    /// The next call gets a fresh connection. Calls that are on this one are left on it.
    pub(crate) fn give_up(&self) {
        let mut line = self.peer.connections[self.nth].line.write();
        // Else somebody else has done it.
        if Arc::ptr_eq(&line, &self.line) {
            *line = Line::new(&self.peer.endpoint);
        }
    }
}

impl Drop for Place {
    fn drop(&mut self) {
        if !self.counted {
            return;
        }
        // In this order, so that who gets the permit finds the room.
        self.peer.connections[self.nth]
            .in_flight
            .fetch_sub(1, Ordering::AcqRel);
        self.peer.places.add_permits(1);
    }
}

#[cfg(test)]
mod tests;
