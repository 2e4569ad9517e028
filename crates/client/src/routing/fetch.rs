//! Fetching the table, once for all who want it.
//!
//! While somebody wants the table, one task asks the seeds: all at once, as one that hangs would
//! hide the others, and none for more than one table at a time. Every answer is heeded: the first
//! one may be of a process that has not heard.
//!
//! What a seed says may be older than what made a caller ask, if its question was under way by then.
//! So a caller is content as soon as the table has what he looks for, whichever fetch brought it;
//! that there is no such thing he is told only by answers to a fetch that started after he came, and
//! that he shares with all who came meanwhile. A seed that fails while such a fetch waits for it has
//! failed for all of them. A fetch belongs to nobody, so nobody who leaves ends it.

use std::collections::{BTreeMap, BTreeSet};
use std::future::pending;
use std::ops::ControlFlow;
use std::sync::Arc;
use std::time::Duration;

use ostraca_proto::v1;
use ostraca_proto::v1::cluster_service_client::ClusterServiceClient;
use parking_lot::Mutex;
use tokio::sync::{Notify, watch};
use tokio::task::JoinSet;
use tokio::time::{Instant, sleep_until, timeout, timeout_at};

use super::{Router, Shard};
use crate::Error;
use crate::pool::{Peer, Waiters};

/// How long one seed may take. It answers from memory, so this is far above what a busy machine
/// needs. And it is far below [`crate::DEADLINE_DEFAULT`], so that a caller hears soon that there
/// is no route.
const SEED_LIMIT: Duration = Duration::from_secs(1);
/// How long finding the seeds may take, which may be reading a file. Without it a search that never
/// ends would be the last one.
const SEARCH_LIMIT: Duration = Duration::from_secs(2);
/// The least time from one fetch to the next, unless the first brought news, or somebody wants to
/// see the table itself. Calls to a shard that nobody leads would otherwise ask its cluster as often
/// as they fail; and it is little beside the time that a take-over needs.
pub(super) const PAUSE: Duration = Duration::from_millis(100);

/// What a router's fetches share.
#[derive(Default)]
pub(super) struct Fetches {
    pub(super) waiters: Waiters,
    state: Mutex<State>,
    progress: watch::Sender<Progress>,
    /// Wakes the task when a fetch is wanted.
    wanted: Notify,
}

#[derive(Default)]
struct State {
    /// There is a task.
    running: bool,
    /// The latest fetch, counted from 1, and when it started.
    number: u64,
    started: Option<Instant>,
    /// It brought something that was not known.
    news: bool,
    /// Another one is to follow; without a pause?
    wanted: bool,
    urgent: bool,
}

/// What those who wait are told.
struct Progress {
    /// The last fetch in which every seed was heard, or failed.
    heard: u64,
    /// The last one in which a seed told a table, and the latest table.
    told: u64,
    /// The last one that ended with its task, and heard nobody.
    cut_off: u64,
    shards: Arc<[Shard]>,
    /// The latest failure.
    error: Error,
}

impl Default for Progress {
    fn default() -> Self {
        Self {
            heard: 0,
            told: 0,
            cut_off: 0,
            shards: Arc::default(),
            error: no_seed(),
        }
    }
}

fn no_seed() -> Error {
    Error::no_route("no shard's address is known")
}

impl Router {
    /// Waits until it is `enough`, or all seeds have been heard. `enough` is told whether a seed has
    /// told a table that it was asked for since this call.
    pub(super) async fn fetch(
        &self,
        urgent: bool,
        enough: impl Fn(bool) -> bool,
    ) -> Result<Arc<[Shard]>, Error> {
        let waits = self.0.fetches.waiters.one_more();
        let _waits = waits.ok_or_else(Error::no_room_to_ask)?;
        let mut progress = self.0.fetches.progress.subscribe();
        let mut fetch = self.want(urgent);
        let mut again = true;
        loop {
            let cut_off = {
                let progress = progress.borrow_and_update();
                let told = progress.told >= fetch;
                if enough(told) || (told && progress.heard >= fetch) {
                    return Ok(Arc::clone(&progress.shards));
                }
                let cut_off = again && progress.cut_off >= fetch;
                if progress.heard >= fetch && !cut_off {
                    return Err(progress.error.clone());
                }
                cut_off
            };
            if cut_off {
                // By the end of a runtime, which need not be this one.
                again = false;
                fetch = self.want(urgent);
                continue;
            }
            // The router has the other end.
            let _ = progress.changed().await;
        }
    }

    /// Has the table fetched, and says by which fetch: one that has not started.
    pub(super) fn want(&self, urgent: bool) -> u64 {
        let mut state = self.0.fetches.state.lock();
        state.wanted = true;
        state.urgent |= urgent;
        let fetch = state.number + 1;
        if state.running {
            self.0.fetches.wanted.notify_one();
            return fetch;
        }
        state.running = true;
        let task = Task::new(self.clone(), state.number);
        // A runtime that shuts down drops the task at once, which takes the lock.
        drop(state);
        drop(tokio::spawn(task.run()));
        fetch
    }
}

/// Fetches as long as somebody wants it.
struct Task {
    router: Router,
    under_way: JoinSet<Event>,
    /// The latest fetch.
    number: u64,
    /// Its seeds are being found.
    searching: bool,
    /// Its seeds, each with the last fetch in which it was heard, or failed.
    heard: BTreeMap<String, u64>,
    /// Those with a question under way, which an earlier fetch may have asked.
    asked: BTreeSet<String>,
    ended: bool,
}

enum Event {
    Found(Result<Vec<String>, Error>),
    Answered(Answer),
}

struct Answer {
    peer: Arc<Peer>,
    /// The fetch that asked.
    fetch: u64,
    table: Result<v1::GetRoutingResponse, Error>,
}

impl Task {
    fn new(router: Router, number: u64) -> Self {
        Self {
            router,
            under_way: JoinSet::new(),
            number,
            searching: false,
            heard: BTreeMap::new(),
            asked: BTreeSet::new(),
            ended: false,
        }
    }

    async fn run(mut self) {
        let router = self.router.clone();
        while let ControlFlow::Continue(next) = self.next() {
            if next.is_some_and(|next| next <= Instant::now()) {
                self.start();
                continue;
            }
            let paused = async {
                match next {
                    Some(next) => sleep_until(next).await,
                    None => pending().await,
                }
            };
            tokio::select! {
                () = router.0.fetches.wanted.notified() => {}
                () = paused => self.start(),
                Some(event) = self.under_way.join_next() => match event {
                    Ok(Event::Found(seeds)) => self.found(seeds),
                    Ok(Event::Answered(answer)) => self.answered(answer),
                    // It panicked, or the runtime ends. Those who wait are told so.
                    Err(_) => return,
                },
            }
        }
    }

    /// When the next fetch starts, if one is wanted. The task ends when there is nothing left to do.
    fn next(&mut self) -> ControlFlow<(), Option<Instant>> {
        let mut state = self.router.0.fetches.state.lock();
        if !state.wanted && self.under_way.is_empty() {
            state.running = false;
            self.ended = true;
            return ControlFlow::Break(());
        }
        if !state.wanted || self.searching {
            return ControlFlow::Continue(None);
        }
        let at_once = self.heard() == self.number && (state.news || state.urgent);
        ControlFlow::Continue(Some(match state.started {
            // A seed that is silent holds up the next fetch no longer than this either.
            Some(started) if !at_once => started + PAUSE,
            _ => Instant::now(),
        }))
    }

    fn start(&mut self) {
        let mut state = self.router.0.fetches.state.lock();
        *state = State {
            running: true,
            number: state.number + 1,
            started: Some(Instant::now()),
            ..State::default()
        };
        self.number = state.number;
        self.searching = true;
        let router = self.router.clone();
        self.under_way.spawn(async move {
            let found = timeout(SEARCH_LIMIT, router.0.seeds.addresses()).await;
            let late = || Error::no_route("the shards' addresses were not found in time");
            Event::Found(found.unwrap_or_else(|_| Err(late())))
        });
    }

    fn found(&mut self, seeds: Result<Vec<String>, Error>) {
        self.searching = false;
        let (peers, wrong) = match seeds {
            Ok(seeds) => self.router.0.table.write().set_seeds(seeds),
            Err(err) => (Vec::new(), Some(err)),
        };
        let wrong = wrong.or_else(|| peers.is_empty().then(no_seed));
        let before = std::mem::take(&mut self.heard);
        for peer in peers {
            let heard = before.get(peer.address()).copied();
            let address = peer.address().to_owned();
            self.heard.insert(address, heard.unwrap_or(self.number - 1));
            // Who is asked already is asked again when that is answered.
            if !self.asked.contains(peer.address()) {
                self.ask(peer);
            }
        }
        self.tell(|progress| {
            if let Some(wrong) = wrong {
                progress.error = wrong;
            }
            false
        });
    }

    fn ask(&mut self, peer: Arc<Peer>) {
        self.asked.insert(peer.address().to_owned());
        let fetch = self.number;
        self.under_way.spawn(async move {
            let table = ask(&peer).await;
            Event::Answered(Answer { peer, fetch, table })
        });
    }

    fn answered(&mut self, answer: Answer) {
        let Answer { peer, fetch, table } = answer;
        self.asked.remove(peer.address());
        // A table can have been on its way for long; a failure is how it is now. Of a fetch whose seeds
        // are still being found it says nothing: that one asks.
        let heard = if table.is_ok() { fetch } else { self.begun() };
        let adopted = table.and_then(|table| self.router.adopt(peer.address(), table));
        let news = adopted.as_ref().is_ok_and(|adopted| adopted.news);
        if news {
            self.router.0.fetches.state.lock().news = true;
        }
        if let Some(last) = self.heard.get_mut(peer.address()) {
            *last = heard;
            if heard < self.number {
                self.ask(peer);
            }
        }
        self.tell(|progress| match adopted {
            Ok(adopted) => {
                let first = fetch > progress.told;
                progress.told = progress.told.max(fetch);
                progress.shards = adopted.shards;
                first || news
            }
            Err(err) => {
                progress.error = err;
                false
            }
        });
    }

    /// The last fetch whose seeds are found.
    fn begun(&self) -> u64 {
        self.number - u64::from(self.searching)
    }

    /// The last fetch in which every seed was heard.
    fn heard(&self) -> u64 {
        let begun = self.begun();
        let heard = self.heard.values().copied().min();
        heard.map_or(begun, |heard| heard.min(begun))
    }

    /// Notes what came. Those who wait are woken if `what` says so, or a fetch is over: not by each
    /// seed that has nothing new, as they can be many.
    fn tell(&self, what: impl FnOnce(&mut Progress) -> bool) {
        let heard = self.heard();
        let mut in_vain = None;
        self.router.0.fetches.progress.send_if_modified(|progress| {
            let news = what(progress);
            let over = heard > progress.heard;
            if over && heard > progress.told {
                in_vain = Some(progress.error.clone());
            }
            progress.heard = progress.heard.max(heard);
            news || over
        });
        if let Some(err) = in_vain {
            tracing::debug!(%err, "no routing table could be fetched");
        }
    }
}

impl Drop for Task {
    /// It panicked, or its runtime is gone, which need not be that of those who wait: they are told,
    /// and the next one who wants the table has a new task.
    fn drop(&mut self) {
        if self.ended {
            return;
        }
        let fetches = &self.router.0.fetches;
        let mut state = fetches.state.lock();
        let number = state.number + u64::from(state.wanted);
        *state = State {
            number,
            ..State::default()
        };
        // Before the next task can tell anything: progress is never the first of the two locks.
        fetches.progress.send_modify(|progress| {
            progress.heard = number;
            progress.cut_off = number;
            progress.error = Error::no_route("the fetch of the routing table was cut off");
        });
    }
}

/// Asks one shard for the table.
async fn ask(peer: &Arc<Peer>) -> Result<v1::GetRoutingResponse, Error> {
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
