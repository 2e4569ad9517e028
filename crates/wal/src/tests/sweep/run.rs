//! A run of steps against a tapped disk, and what a recovery must and may find afterwards.

use std::fmt;
use std::sync::Arc;

use ostraca_io::{Page, SimDisk, Unsynced};
use ostraca_types::Sequence;

use super::super::{
    ENTROPY, IDENTITY, OWNER, SMALL, Stored, TIME, big_batch, claim, payload, push,
};
use super::steps::{Load, Step};
use super::tap::{Fault, Mutant, Record, Snapshot, Tap};
use crate::{Batch, Claim, Error, KIND_NO_OP, Log, Room, Start};

/// A record by its sequence and its number.
type Item = (Sequence, u64);

/// What a recovery must find, and what it may find after that.
#[derive(Debug, Clone, Default)]
pub(super) struct Known {
    /// In order: what was answered, and what a take-over handed out.
    acknowledged: Vec<Item>,
    /// Batches that were appended and not answered. One of them may follow, whole.
    pending: Vec<Vec<Item>>,
    /// A checkpoint covers what is up to here.
    covered: Sequence,
}

impl Known {
    pub(super) fn start(&self) -> Start {
        match self.covered {
            Sequence(0) => Start::Beginning,
            covered => Start::After(covered),
        }
    }

    /// The acknowledged records up to a sequence, and no other: for a loss that is allowed.
    pub(super) fn only_up_to(&self, last: Sequence) -> Self {
        let acknowledged = self.acknowledged.iter();
        Self {
            acknowledged: acknowledged
                .copied()
                .filter(|(sequence, _)| *sequence <= last)
                .collect(),
            pending: Vec::new(),
            covered: self.covered,
        }
    }

    /// Acknowledged ⊆ found, the order kept, nothing invented.
    pub(super) fn judge(&self, found: &[Stored]) -> Result<(), String> {
        for pair in found.windows(2) {
            if pair[0].sequence.next() != pair[1].sequence || pair[0].epoch > pair[1].epoch {
                return Err(format!("out of order: {pair:?}"));
            }
        }
        let found = items(found)?;
        let acknowledged = self.acknowledged.iter();
        let needed: Vec<Item> = acknowledged
            .copied()
            .filter(|(sequence, _)| *sequence > self.covered)
            .collect();
        let Some(rest) = found.strip_prefix(needed.as_slice()) else {
            return Err(format!("acknowledged {needed:?}, found {found:?}"));
        };
        if rest.is_empty() || self.pending.iter().any(|batch| batch == rest) {
            Ok(())
        } else {
            Err(format!("never appended, or given up: {rest:?}"))
        }
    }

    /// A take-over handed these out: now they are, and nothing else ever is.
    fn hand_out(&mut self, found: &[Stored]) -> Result<(), String> {
        let covered = self.covered;
        self.acknowledged
            .retain(|(sequence, _)| *sequence <= covered);
        self.acknowledged.extend(items(found)?);
        self.pending.clear();
        Ok(())
    }

    fn acknowledge(&mut self, batch: &[Item]) {
        self.give_up(batch);
        self.acknowledged.extend_from_slice(batch);
    }

    fn give_up(&mut self, batch: &[Item]) {
        self.pending.retain(|pending| pending != batch);
    }
}

/// The records that were appended by a run; the log's own are left out.
fn items(records: &[Stored]) -> Result<Vec<Item>, String> {
    let appended = records.iter().filter(|record| record.kind != KIND_NO_OP);
    let item = |record: &Stored| {
        let number = record.payload.first_chunk().copied();
        let number = u64::from_le_bytes(number.unwrap_or_default());
        if record.payload.len() < 8 || record.payload != payload(number, record.payload.len() - 8) {
            return Err(format!("an invented payload at {}", record.sequence));
        }
        Ok((record.sequence, number))
    };
    appended.map(item).collect()
}

struct Leader {
    log: Log<Tap>,
    /// What it appended and did not sync.
    in_flight: Option<Vec<Item>>,
    /// Another one has taken over: nothing that it appends is ever found.
    replaced: bool,
}

impl Leader {
    fn append(&mut self, tap: &Tap, number: &mut u64, load: Load) -> Result<(), Error> {
        self.settle(tap)?;
        let mut batch = Batch::new();
        match load {
            Load::One => push(&mut batch, *number, 20),
            Load::Few => (0..3).for_each(|more| push(&mut batch, *number + more, 300)),
            Load::Big => batch = big_batch(*number),
        }
        let first = self.log.sequence_next();
        let items = (0..batch.len() as u64).map(|more| (Sequence(first.0 + more), *number + more));
        let items: Vec<Item> = items.collect();
        *number += batch.len() as u64;
        if !self.replaced {
            tap.record().known.pending.push(items.clone());
        }
        let appended = self.log.append(&mut batch, Room::Reserve);
        match appended {
            Ok(_) => self.in_flight = Some(items),
            // Nothing was written.
            Err(Error::Full) => tap.record().known.give_up(&items),
            Err(_) => {}
        }
        appended.map(|_| ())
    }

    fn settle(&mut self, tap: &Tap) -> Result<(), Error> {
        let Some(items) = self.in_flight.take() else {
            return Ok(());
        };
        self.log.sync()?;
        tap.record().known.acknowledge(&items);
        Ok(())
    }
}

/// Why a run ended early.
#[derive(Debug)]
pub(super) enum Stop {
    /// A promise was broken.
    Broken(String),
    /// The log was refused by name.
    Refused(Error),
}

impl From<String> for Stop {
    fn from(broken: String) -> Self {
        Self::Broken(broken)
    }
}

impl fmt::Display for Stop {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Broken(broken) => f.write_str(broken),
            Self::Refused(err) => write!(f, "refused: {err}"),
        }
    }
}

/// How the process ends whose log was stopped by a failure.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum End {
    Killed,
    KilledAndEvicted,
    Cut(Unsynced),
}

impl End {
    pub(super) const ALL: [Self; 6] = [
        Self::Killed,
        Self::KilledAndEvicted,
        Self::Cut(Unsynced::Lost),
        Self::Cut(Unsynced::Kept),
        Self::Cut(Unsynced::Torn),
        Self::Cut(Unsynced::Random),
    ];
}

/// A disk and its processes.
pub(super) struct Run {
    pub(super) tap: Tap,
    leader: Option<Leader>,
    stale: Vec<Leader>,
    number: u64,
    end: End,
    /// Failures that stopped a leader, or were met on the way.
    pub(super) failures: usize,
}

impl Run {
    pub(super) fn new(seed: u64, mutant: Option<Mutant>) -> Self {
        let disk = SimDisk::new(seed);
        // Makes the page, as it is made with a store.
        drop(claim(&disk).expect("power"));
        Self {
            tap: Tap::new(disk, mutant),
            leader: None,
            stale: Vec::new(),
            number: 0,
            end: End::Killed,
            failures: 0,
        }
    }

    /// With a fault at one operation; who meets it ends so.
    pub(super) fn with_fault(self, operation: usize, fault: Fault, end: End) -> Self {
        self.tap.record().fault = Some((operation, fault));
        Self { end, ..self }
    }

    /// Keeps the disk at every operation.
    pub(super) fn keeping(self) -> Self {
        self.tap.record().keeps_snapshots = true;
        self
    }

    /// Opens the log and takes all steps; the error is a broken promise.
    pub(super) fn take(&mut self, steps: &[Step]) -> Result<(), Stop> {
        self.reopen(None)?;
        for (position, step) in steps.iter().enumerate() {
            self.step(*step).map_err(|stop| match stop {
                Stop::Broken(err) => Stop::Broken(format!("step {position}, {step:?}: {err}")),
                refused @ Stop::Refused(_) => refused,
            })?;
        }
        // What was left is answered, if it can be.
        match self.leader.as_mut().map(|leader| leader.settle(&self.tap)) {
            Some(Err(err)) => self.met(err)?,
            _ => self.tap.keep(),
        }
        Ok(())
    }

    /// The disk as it is now.
    pub(super) fn now(&self) -> Snapshot {
        Snapshot {
            disk: self.tap.disk.fork(),
            known: self.tap.record().known.clone(),
        }
    }

    fn step(&mut self, step: Step) -> Result<(), Stop> {
        match step {
            Step::Kill => return self.reopen(Some(End::Killed)),
            Step::Cut(fate) => return self.reopen(Some(End::Cut(fate))),
            Step::Beside {
                after_raise,
                after_read,
            } => return self.beside(after_raise, after_read),
            Step::FailSync => self.tap.disk.fail_next_sync(),
            Step::FailWrite => {
                let next = self.tap.record().operations;
                self.tap.record().fault = Some((next, Fault::Write));
            }
            Step::Full => self.tap.disk.set_capacity(0),
            Step::Evict => self.tap.disk.evict_cache(),
            Step::Stale(load) => {
                if let Some(stale) = self.stale.last_mut() {
                    // Refused, in whichever way.
                    let tap = &self.tap;
                    let appended = stale.append(tap, &mut self.number, load);
                    drop(appended.and_then(|()| stale.settle(tap)));
                }
            }
            own => {
                if let Err(err) = self.own_step(own) {
                    self.met(err)?;
                }
            }
        }
        Ok(())
    }

    /// A step of the leader.
    fn own_step(&mut self, step: Step) -> Result<(), Error> {
        let tap = &self.tap;
        let leader = self.leader.as_mut().expect("somebody leads");
        match step {
            Step::Leave(load) => leader.append(tap, &mut self.number, load),
            Step::Append(load) => {
                leader.append(tap, &mut self.number, load)?;
                leader.settle(tap)
            }
            Step::Mark => {
                leader.settle(tap)?;
                leader.log.mark()
            }
            Step::Prepare => {
                if let Some(preparation) = leader.log.wants_segment() {
                    leader.log.install(preparation.run()?);
                }
                Ok(())
            }
            Step::CleanUp => leader
                .log
                .take_clean_up()
                .map_or(Ok(()), |mut work| work.run().map(|_| ())),
            Step::Purge => {
                leader.settle(tap)?;
                let covered = leader.log.durable_sequence();
                tap.record().known.covered = covered;
                leader.log.purge(covered).map(|_| ())
            }
            _ => Ok(()),
        }
    }

    /// A failure was met: whoever it stopped is replaced.
    fn met(&mut self, err: Error) -> Result<(), Stop> {
        self.failures += 1;
        match err {
            Error::Full => self.tap.disk.set_capacity(u64::MAX),
            Error::Io { .. } | Error::Stopped => {}
            other => return Err(Stop::Refused(other)),
        }
        match &self.leader {
            Some(leader) if leader.log.is_stopped() => self.reopen(Some(self.end)),
            _ => Ok(()),
        }
    }

    fn reopen(&mut self, end: Option<End>) -> Result<(), Stop> {
        self.leader = None;
        match end {
            None => {}
            Some(End::Killed) => self.tap.disk = self.tap.disk.crash(),
            Some(End::KilledAndEvicted) => {
                self.tap.disk = self.tap.disk.crash();
                self.tap.disk.evict_cache();
            }
            Some(End::Cut(fate)) => {
                self.stale.clear();
                self.tap.disk.power_cut(fate);
                self.tap.disk = self.tap.disk.restarted();
            }
        }
        let mut last = None;
        for _ in 0..4 {
            match self.open(None, None)? {
                Ok(leader) => {
                    self.leader = Some(leader);
                    return Ok(());
                }
                Err(Error::Full) => self.tap.disk.set_capacity(u64::MAX),
                Err(err @ Error::Io { .. }) => last = Some(err),
                Err(err) => return Err(Stop::Refused(err)),
            }
            self.failures += 1;
            // The process gives up, as a shard does, and is started again.
            self.tap.disk = self.tap.disk.crash();
            if self.end == End::KilledAndEvicted {
                self.tap.disk.evict_cache();
            }
        }
        Err(Stop::Broken(format!("it does not open: {last:?}")))
    }

    fn beside(&mut self, after_raise: Option<Load>, after_read: Option<Load>) -> Result<(), Stop> {
        let before = self.tap.clone();
        self.tap = before.of(&before.disk.beside());
        match self.open(after_raise, after_read)? {
            Ok(leader) => {
                if let Some(mut old) = self.leader.replace(leader) {
                    old.replaced = true;
                    self.stale.push(old);
                }
                Ok(())
            }
            // The contender gave up; it may have ended the old one's leadership.
            Err(Error::Full | Error::Io { .. }) => {
                self.failures += 1;
                self.tap.disk.set_capacity(u64::MAX);
                self.reopen(Some(End::Killed))
            }
            Err(err) => Err(Stop::Refused(err)),
        }
    }

    /// Raise, read, judge, take over.
    fn open(
        &mut self,
        after_raise: Option<Load>,
        after_read: Option<Load>,
    ) -> Result<Result<Leader, Error>, Stop> {
        let page: Arc<dyn Page> = self.tap.page();
        let claim = match Claim::raise(page, IDENTITY, &self.tap, &*ENTROPY) {
            Ok(claim) => claim,
            Err(err) => return Ok(Err(err)),
        };
        self.go_on(after_raise);
        let known = self.tap.record().known.clone();
        let mut found = Vec::new();
        let recovered = claim
            .recover(&self.tap, known.start())
            .and_then(|recovery| {
                recovery.replay(&self.tap, |record| {
                    found.push(Stored::of(record));
                    Ok::<(), Error>(())
                })
            });
        let recovered = match recovered {
            Ok(recovered) => recovered,
            Err(err) => return Ok(Err(err)),
        };
        known.judge(&found)?;
        self.go_on(after_read);
        let tap = self.tap.clone();
        let log = match Log::take_over(tap, claim, OWNER, SMALL, recovered, TIME) {
            Ok(log) => log,
            Err(err) => return Ok(Err(err)),
        };
        self.tap.record().known.hand_out(&found)?;
        Ok(Ok(Leader {
            log,
            in_flight: None,
            replaced: false,
        }))
    }

    /// The old leader does what it can while another process takes over.
    fn go_on(&mut self, load: Option<Load>) {
        if let (Some(load), Some(old)) = (load, self.leader.as_mut()) {
            let tap = &self.tap;
            if old.in_flight.is_some() {
                drop(old.settle(tap));
            } else if !old.log.is_stopped() {
                drop(old.append(tap, &mut self.number, load));
            }
        }
    }
}

/// The numbers of the operations of a run, by kind.
pub(super) fn operations_of(steps: &[Step]) -> Record {
    let mut run = Run::new(0, None);
    run.take(steps).expect("nothing fails");
    std::mem::take(&mut *run.tap.record())
}
