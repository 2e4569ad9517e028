//! Shards, objects and an edge in memory, with one message per paste.

use std::collections::{BTreeMap, HashMap, HashSet};
use std::sync::Arc;
use std::time::Duration;

use ostraca_bodies::{Action, Deleted};
use ostraca_client::{EndCause, Handle, Message, RECEIVE_WAIT_MAX, Recorded, Settled, Shard};
use ostraca_io::{Entropy as _, SeededEntropy};
use ostraca_types::{ConsumerName, OutboxId, PasteId, ShardId, Slot, Timestamp};
use parking_lot::Mutex;
use tokio::sync::Notify;
use tokio::time::{Instant, sleep, timeout};

use crate::{Edge, Fault, Inbox, Objects, Outbox, Ports, PurgeError};

/// What was called, in order. Looks, extends and receives are not listed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Call {
    Contains,
    Delete,
    Purge,
    Record,
    Ack,
    Nack,
}

/// One message, as its shard knows it.
#[derive(Debug, Clone)]
pub(super) struct Letter {
    pub(super) message: Message,
    pub(super) due: Instant,
    pub(super) acked: bool,
    pub(super) nacks: Vec<(String, Option<Duration>)>,
    pub(super) extends: usize,
    /// All that were issued, and all that came back.
    pub(super) issued: Vec<Handle>,
    pub(super) returned: Vec<Handle>,
}

/// What goes wrong.
#[derive(Debug, Clone, Default)]
pub(super) struct Faults {
    pub(super) store_down: bool,
    /// Deletes never end.
    pub(super) store_hangs: bool,
    /// The store's own trouble with one object.
    pub(super) key_rejected: bool,
    pub(super) delete_takes: Duration,
    pub(super) edge: Option<PurgeError>,
    pub(super) edge_hangs: bool,
    pub(super) record_fails: bool,
    pub(super) record_takes: Duration,
    pub(super) ack_fails: bool,
    pub(super) contains_fails: bool,
    pub(super) no_table: bool,
    pub(super) dead_shards: HashSet<ShardId>,
}

#[derive(Debug)]
struct State {
    shards: u16,
    letters: BTreeMap<OutboxId, Letter>,
    objects: HashSet<String>,
    cached: HashSet<PasteId>,
    /// Rows, and how often each was inserted.
    inbox: HashMap<(ConsumerName, OutboxId), usize>,
    calls: Vec<Call>,
    faults: Faults,
    probes: usize,
    receives: usize,
    deleting: usize,
    deleting_max: usize,
    /// Points passed, and the one that stops whoever comes to it.
    points: usize,
    stop_at: Option<usize>,
}

/// Clones share it.
#[derive(Debug, Clone)]
pub(super) struct World {
    state: Arc<Mutex<State>>,
    stopped: Arc<Notify>,
    news: Arc<Notify>,
}

impl World {
    pub(super) fn new(shards: u16) -> Self {
        Self {
            state: Arc::new(Mutex::new(State {
                shards,
                letters: BTreeMap::new(),
                objects: HashSet::new(),
                cached: HashSet::new(),
                inbox: HashMap::new(),
                calls: Vec::new(),
                faults: Faults::default(),
                probes: 0,
                receives: 0,
                deleting: 0,
                deleting_max: 0,
                points: 0,
                stop_at: None,
            })),
            stopped: Arc::default(),
            news: Arc::default(),
        }
    }

    pub(super) fn ports(&self) -> Ports<Self, Self, Self> {
        Ports {
            shards: self.clone(),
            objects: self.clone(),
            edge: self.clone(),
        }
    }

    /// The `n`th paste of `slot` ended: its message is due, its object and its place in the edge
    /// are there.
    pub(super) fn end(&self, slot: Slot, n: u32) -> OutboxId {
        let entropy = SeededEntropy::new(u64::from(n));
        let paste_id = PasteId::mint(slot, |bytes| entropy.fill(bytes));
        let outbox_id = OutboxId::mint(slot, |bytes| entropy.fill(bytes));
        let mut state = self.state.lock();
        let shard = ShardId(u16::from(slot.0) % state.shards);
        state.objects.insert(paste_id.object_key());
        state.cached.insert(paste_id);
        let known = state.letters.insert(
            outbox_id,
            Letter {
                message: Message {
                    outbox_id,
                    paste_id,
                    object_key: paste_id.object_key(),
                    cause: Some(EndCause::Deleted),
                    ended_at: Timestamp(1_000_000),
                    attempt: 0,
                    handle: Handle::new(outbox_id, shard, []),
                    visible_at: Timestamp(1_000_000),
                },
                due: Instant::now(),
                acked: false,
                nacks: Vec::new(),
                extends: 0,
                issued: Vec::new(),
                returned: Vec::new(),
            },
        );
        assert!(known.is_none(), "ids differ");
        drop(state);
        self.news.notify_waiters();
        outbox_id
    }

    pub(super) fn break_with(&self, change: impl FnOnce(&mut Faults)) {
        change(&mut self.state.lock().faults);
    }

    /// The `n`th point from here on stops whoever comes to it.
    pub(super) fn stop_at(&self, n: Option<usize>) {
        let mut state = self.state.lock();
        state.points = 0;
        state.stop_at = n;
    }

    pub(super) fn points(&self) -> usize {
        self.state.lock().points
    }

    pub(super) async fn stopped(&self) {
        self.stopped.notified().await;
    }

    pub(super) fn letter(&self, id: OutboxId) -> Letter {
        self.state.lock().letters[&id].clone()
    }

    pub(super) fn letters(&self) -> Vec<Letter> {
        self.state.lock().letters.values().cloned().collect()
    }

    pub(super) fn unacked(&self) -> usize {
        let state = self.state.lock();
        state.letters.values().filter(|one| !one.acked).count()
    }

    pub(super) fn deletes(&self) -> usize {
        let calls = self.calls();
        calls.iter().filter(|call| **call == Call::Delete).count()
    }

    pub(super) fn calls(&self) -> Vec<Call> {
        self.state.lock().calls.clone()
    }

    pub(super) fn probes(&self) -> usize {
        self.state.lock().probes
    }

    pub(super) fn receives(&self) -> usize {
        self.state.lock().receives
    }

    pub(super) fn deleting_max(&self) -> usize {
        self.state.lock().deleting_max
    }

    pub(super) fn objects(&self) -> usize {
        self.state.lock().objects.len()
    }

    pub(super) fn cached(&self) -> usize {
        self.state.lock().cached.len()
    }

    /// Rows of the purge worker's inbox.
    pub(super) fn inbox(&self) -> usize {
        self.state.lock().inbox.len()
    }

    pub(super) fn record_before(&self, id: OutboxId) {
        let key = (ConsumerName::purge(), id);
        self.state.lock().inbox.insert(key, 1);
    }

    pub(super) fn remove_object(&self, id: OutboxId) {
        let mut state = self.state.lock();
        let key = state.letters[&id].message.object_key.clone();
        state.objects.remove(&key);
    }

    /// What must hold at every moment, whoever was stopped where: a row says that the effects are
    /// done, an ack that there is a row.
    pub(super) fn check(&self) {
        let state = self.state.lock();
        for (id, letter) in &state.letters {
            let recorded = state.inbox.contains_key(&(ConsumerName::purge(), *id));
            assert!(recorded || !letter.acked, "acked without a row: {id}");
            if recorded {
                let message = &letter.message;
                assert!(
                    !state.objects.contains(&message.object_key),
                    "a row, and the object is there: {id}"
                );
                assert!(
                    !state.cached.contains(&message.paste_id),
                    "a row, and the edge still has it: {id}"
                );
            }
        }
    }

    /// Delivers a message as its shard would.
    pub(super) fn deliver(&self, id: OutboxId, visibility: Duration) -> Message {
        let mut state = self.state.lock();
        let shards = state.shards;
        let letter = state.letters.get_mut(&id).expect("a message");
        let shard = ShardId(u16::from(id.slot().0) % shards);
        let message = &mut letter.message;
        message.attempt += 1;
        // Opaque, and unlike anything that could be made from the message.
        let seed = u8::try_from(message.attempt % 251).expect("small");
        let bytes = vec![0xa5 ^ seed, seed, 0, 0xff];
        message.handle = Handle::new(id, shard, bytes);
        message.visible_at = message.ended_at.plus(visibility);
        letter.due = Instant::now() + visibility;
        letter.issued.push(letter.message.handle.clone());
        letter.message.clone()
    }

    async fn point(&self) {
        let stops = {
            let mut state = self.state.lock();
            let here = state.points;
            state.points += 1;
            state.stop_at == Some(here)
        };
        if stops {
            self.stopped.notify_one();
            std::future::pending::<()>().await;
        }
    }

    fn faults(&self) -> Faults {
        self.state.lock().faults.clone()
    }

    fn called(&self, call: Call) {
        self.state.lock().calls.push(call);
    }

    fn settle(&self, handle: &Handle, change: impl FnOnce(&mut Letter)) -> Settled {
        let mut state = self.state.lock();
        let holder = state
            .letters
            .values_mut()
            .find(|letter| letter.issued.contains(handle));
        let letter = holder.expect("a handle that was issued");
        letter.returned.push(handle.clone());
        if letter.acked {
            return Settled::Gone;
        }
        if letter.message.handle != *handle {
            return Settled::Stale;
        }
        change(letter);
        Settled::Done
    }

    fn due(&self, shard: ShardId) -> Vec<OutboxId> {
        let state = self.state.lock();
        let now = Instant::now();
        let due = state.letters.iter().filter(|(id, letter)| {
            !letter.acked && letter.due <= now && u16::from(id.slot().0) % state.shards == shard.0
        });
        due.map(|(id, _)| *id).collect()
    }
}

impl Outbox for World {
    async fn shards(&self) -> Result<Vec<Shard>, Fault> {
        if self.faults().no_table {
            return Err(Fault("no table".to_owned()));
        }
        let shards = self.state.lock().shards;
        let slots = |shard: u16| {
            Slot::all()
                .filter(|slot| u16::from(slot.0) % shards == shard)
                .collect()
        };
        Ok((0..shards)
            .map(|shard| Shard {
                id: ShardId(shard),
                address: String::new(),
                slots: slots(shard),
            })
            .collect())
    }

    async fn receive(
        &self,
        shard: &Shard,
        _: &ConsumerName,
        max: usize,
        visibility: Duration,
    ) -> Result<Vec<Message>, Fault> {
        self.state.lock().receives += 1;
        if self.faults().dead_shards.contains(&shard.id) {
            return Err(Fault("no answer".to_owned()));
        }
        let take = async {
            loop {
                let news = self.news.notified();
                let due = self.due(shard.id);
                if !due.is_empty() {
                    return due;
                }
                // Somebody else's change of time is seen soon enough.
                let _ = timeout(Duration::from_millis(50), news).await;
            }
        };
        let due = timeout(RECEIVE_WAIT_MAX, take).await.unwrap_or_default();
        let taken = due.into_iter().take(max);
        Ok(taken.map(|id| self.deliver(id, visibility)).collect())
    }

    async fn ack(&self, _: &ConsumerName, handle: &Handle) -> Result<Settled, Fault> {
        self.point().await;
        self.called(Call::Ack);
        if self.faults().ack_fails {
            return Err(Fault("no answer".to_owned()));
        }
        let settled = self.settle(handle, |letter| letter.acked = true);
        self.point().await;
        Ok(settled)
    }

    async fn nack(
        &self,
        _: &ConsumerName,
        handle: &Handle,
        reason: &str,
        delay: Option<Duration>,
    ) -> Result<Settled, Fault> {
        self.called(Call::Nack);
        Ok(self.settle(handle, |letter| {
            letter.nacks.push((reason.to_owned(), delay));
            letter.due = Instant::now() + delay.unwrap_or(Duration::from_secs(1));
        }))
    }

    async fn extend(
        &self,
        _: &ConsumerName,
        handle: &Handle,
        visibility: Duration,
    ) -> Result<Settled, Fault> {
        Ok(self.settle(handle, |letter| {
            letter.extends += 1;
            letter.due = Instant::now() + visibility;
        }))
    }
}

impl Inbox for World {
    async fn contains(&self, consumer: &ConsumerName, id: &OutboxId) -> Result<bool, Fault> {
        self.point().await;
        self.called(Call::Contains);
        if self.faults().contains_fails {
            return Err(Fault("no answer".to_owned()));
        }
        let key = (consumer.clone(), *id);
        let contains = self.state.lock().inbox.contains_key(&key);
        self.point().await;
        Ok(contains)
    }

    async fn record(&self, consumer: &ConsumerName, id: &OutboxId) -> Result<Recorded, Fault> {
        self.point().await;
        self.called(Call::Record);
        let faults = self.faults();
        sleep(faults.record_takes).await;
        if faults.record_fails {
            return Err(Fault("no answer".to_owned()));
        }
        let rows = {
            let mut state = self.state.lock();
            let rows = state.inbox.entry((consumer.clone(), *id)).or_default();
            *rows += 1;
            *rows
        };
        self.point().await;
        Ok(if rows == 1 {
            Recorded::Now
        } else {
            Recorded::Before
        })
    }
}

/// Counts a delete as running until it is dropped.
struct Deleting(World);

impl Drop for Deleting {
    fn drop(&mut self) {
        self.0.state.lock().deleting -= 1;
    }
}

fn down() -> ostraca_bodies::Error {
    ostraca_bodies::Error::Store {
        action: Action::Delete,
        source: "a test".into(),
    }
}

impl Objects for World {
    async fn delete(&self, key: &str) -> Result<Deleted, ostraca_bodies::Error> {
        self.point().await;
        self.called(Call::Delete);
        {
            let mut state = self.state.lock();
            state.deleting += 1;
            state.deleting_max = state.deleting_max.max(state.deleting);
        }
        let _deleting = Deleting(self.clone());
        let faults = self.faults();
        sleep(faults.delete_takes).await;
        if faults.store_hangs {
            std::future::pending::<()>().await;
        }
        if faults.store_down {
            return Err(down());
        }
        if faults.key_rejected {
            return Err(ostraca_bodies::Error::InvalidKey);
        }
        let deleted = if self.state.lock().objects.remove(key) {
            Deleted::Was
        } else {
            Deleted::WasNot
        };
        self.point().await;
        Ok(deleted)
    }

    async fn probe(&self) -> Result<(), ostraca_bodies::Error> {
        self.state.lock().probes += 1;
        if self.faults().store_down {
            Err(down())
        } else {
            Ok(())
        }
    }
}

impl Edge for World {
    async fn purge(&self, id: &PasteId) -> Result<(), PurgeError> {
        self.point().await;
        self.called(Call::Purge);
        let faults = self.faults();
        if faults.edge_hangs {
            std::future::pending::<()>().await;
        }
        if let Some(err) = faults.edge {
            return Err(err);
        }
        self.state.lock().cached.remove(id);
        self.point().await;
        Ok(())
    }
}
