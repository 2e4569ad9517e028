//! Propose, sync, apply, answer: the steps of a shard, without its thread.
//!
//! Everything here happens in the order of the calls and depends on disk and clock alone, so a
//! simulation can drive it as the shard's thread does.

use std::collections::VecDeque;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use ostraca_index::EndCause;
use ostraca_io::{Clock, Disk, Entropy, Page, Spawn};
use ostraca_types::{ErrorKind, Sequence, Timestamp};
use ostraca_wal::{
    Batch, Claim, CleanUp, Identity, Log, Owner, Prepared, RESERVE_SIZE, Recovered, Room, Start,
};

use crate::apply::{Outcome, apply};
use crate::command::{Command, DecodeError, End};
use crate::error::{Error, OpenError};
use crate::job::Job;
use crate::queue::{Work, nobody};
use crate::shard::{Answer, Inner, Options};
use crate::time::{BOUND_AHEAD, Replayed, ShardClock, Step, starting_step};

/// The most commands of one batch: beyond a few hundred a sync costs more, not less, and all of
/// them wait for it.
pub(crate) const BATCH_ENTRIES_MAX: usize = 2048;
/// Ends of due pastes that ride on a batch of commands. At 300 batches a second these are 38,000
/// ends a second, and 8 KiB that a sync hardly notices.
const SWEEP_RIDING_MAX: usize = 128;
/// Ends of due pastes in a batch of their own, when nobody waits.
const SWEEP_ALONE_MAX: usize = 512;
/// While the disk is full the clock's records must last in the reserve: one in ten minutes.
const BOUND_AHEAD_FULL: Duration = Duration::from_secs(600);
/// While the disk is full, pastes end only as long as this much of the segment is left: what their
/// messages need, so that their objects can go, must not be used up by ends.
const FREE_FOR_ENDS: u64 = RESERVE_SIZE / 2;
/// And below this only acks, inbox records and the clock go on.
const FREE_FOR_WORK: u64 = RESERVE_SIZE / 8;
/// How long a segment that could not be prepared is left alone: each try takes all room there is,
/// if only for a moment.
const PREPARE_AGAIN_MIN: Duration = Duration::from_secs(1);
const PREPARE_AGAIN_MAX: Duration = Duration::from_secs(30);
/// The same for what is tidied after a take-over.
const CLEAN_UP_AGAIN: Duration = Duration::from_secs(30);
/// Records of a replay between two beats: some milliseconds.
const BEAT_INTERVAL: u64 = 1 << 12;
/// Epochs that were granted twice, after damage to the epoch page, before opening gives up.
const EPOCHS_TAKEN_MAX: u32 = 8;

/// What opening found.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Opened {
    pub(crate) records: u64,
    pub(crate) cut_bytes: u64,
    pub(crate) page_repaired: bool,
}

impl Replay {
    fn cut_bytes(&self) -> u64 {
        let cut = &self.recovered.report().cut;
        cut.as_ref().map_or(0, |cut| cut.bytes_not_zero)
    }
}

/// What is left, and why.
type Cleaned<D> = Option<(CleanUp<D>, ostraca_wal::Error)>;

/// A log that was read under a claim, with the rows that it makes.
struct Replay {
    claim: Claim,
    recovered: Recovered,
    index: ostraca_index::Index,
    clock: Replayed,
    records: u64,
}

/// One shard's log and rows, and the jobs that prepare segments and tidy.
pub(crate) struct Core<D: Disk> {
    log: Log<D>,
    inner: Arc<Inner>,
    batch: Batch,
    payload: Vec<u8>,
    taken: Vec<Work>,
    spawn: Arc<dyn Spawn>,
    page_is_shared: Option<Arc<dyn Fn() -> bool + Send + Sync>>,
    preparing: Option<Job<Result<Prepared<D>, ostraca_wal::Error>>>,
    cleaning: Option<Job<Cleaned<D>>>,
    /// What is left to tidy, and when it is tried, on the boot-time clock.
    clean_up: Option<(CleanUp<D>, Duration)>,
    /// When a segment that could not be prepared is tried again, on the boot-time clock, and how
    /// long the wait was.
    prepare_again: Option<(Duration, Duration)>,
    /// There was no room for ends either; not tried before this reading of the boot-time clock.
    ends_held_until: Duration,
}

impl<D: Disk> Core<D> {
    /// Raises the epoch, recovers the log, replays it, takes it over, and makes the clock's start
    /// durable. Reads nothing but page and log; afterwards everything that was replayed is durable
    /// under this epoch, and no other process's work passes the fence.
    pub(crate) fn open(
        disk: D,
        page: &Arc<dyn Page>,
        identity: Identity,
        clock: Arc<dyn Clock>,
        entropy: &dyn Entropy,
        options: &Options,
    ) -> Result<(Self, Opened), OpenError> {
        let mut owner = [0; 16];
        entropy.fill(&mut owner);
        let owner = Owner(owner);
        let mut taken = 0;
        loop {
            let replay = Self::read(&disk, page, identity, entropy)?;
            let opened = Opened {
                records: replay.records,
                cut_bytes: replay.cut_bytes(),
                page_repaired: replay.claim.repaired(),
            };
            match Self::lead(disk.clone(), replay, Arc::clone(&clock), owner, options) {
                // Its files may be those of a leader that commits meanwhile: all is read again.
                Err(OpenError::Log(ostraca_wal::Error::EpochTaken { .. }))
                    if taken < EPOCHS_TAKEN_MAX =>
                {
                    taken += 1;
                }
                led => return led.map(|core| (core, opened)),
            }
        }
    }

    /// Raises the epoch, and replays the log.
    fn read(
        disk: &D,
        page: &Arc<dyn Page>,
        identity: Identity,
        entropy: &dyn Entropy,
    ) -> Result<Replay, OpenError> {
        let claim = Claim::raise(Arc::clone(page), identity, disk, entropy)?;
        let index = ostraca_index::Index::new();
        let mut clock = Replayed::default();
        let mut records = 0;
        let recovery = claim.recover(disk, Start::Beginning)?;
        let replayed = recovery.replay(disk, |record| {
            records += 1;
            if records % BEAT_INTERVAL == 0 {
                // A long replay is progress, too.
                claim.beat(records);
            }
            let command = Command::decode(record.kind, record.version, record.slot, record.payload)
                .map_err(|err| match err {
                    DecodeError::Newer { kind, version } => OpenError::NewerCommand {
                        kind,
                        version,
                        sequence: record.sequence,
                    },
                    DecodeError::Malformed { kind } => OpenError::Malformed {
                        kind,
                        sequence: record.sequence,
                    },
                })?;
            let moved = match &command {
                Some(Command::Time(time)) => Some(*time),
                _ => None,
            };
            clock.see(record.time, moved);
            if let Some(command) = command {
                apply(&index, &command, record.epoch, record.time);
            }
            Ok::<(), OpenError>(())
        });
        let recovered = claim.or_fenced(replayed)?;
        Ok(Replay {
            claim,
            recovered,
            index,
            clock,
            records,
        })
    }

    /// Takes over the log that was read.
    fn lead(
        disk: D,
        replay: Replay,
        clock: Arc<dyn Clock>,
        owner: Owner,
        options: &Options,
    ) -> Result<Self, OpenError> {
        let step = starting_step(&*clock, &replay.clock);
        let Replay {
            claim,
            recovered,
            index,
            ..
        } = replay;
        let mut log = Log::take_over(disk, claim, owner, options.log, recovered, step.time)?;
        let notify = options.on_deliverable.clone();
        let claim = log.claim().clone();
        let inner = Inner::new(index, ShardClock::new(clock, step), claim, notify);
        let clean_up = log.take_clean_up().map(|work| (work, Duration::ZERO));
        let mut core = Self {
            log,
            inner: Arc::new(inner),
            batch: Batch::new(),
            payload: Vec::new(),
            taken: Vec::new(),
            spawn: Arc::clone(&options.spawn),
            page_is_shared: options.page_is_shared.clone(),
            preparing: None,
            cleaning: None,
            clean_up,
            prepare_again: None,
            ends_held_until: Duration::ZERO,
        };
        // No reader sees the clock before where it starts is durable: else a crash now and a
        // reboot could bring it back.
        if !core.move_clock(step)? {
            return Err(OpenError::Log(ostraca_wal::Error::Full));
        }
        Ok(core)
    }

    pub(crate) const fn inner(&self) -> &Arc<Inner> {
        &self.inner
    }

    /// Takes as much of `work` as fits one batch through all four steps, and ends of due pastes
    /// with it. An error means that the log stopped; then everything taken was told that its
    /// outcome is unknown.
    pub(crate) fn commit(&mut self, work: &mut VecDeque<Work>) -> Result<(), ostraca_wal::Error> {
        // First: commands are judged by the record's time, and a machine that slept, or a thread
        // that was stopped, may be hours behind (p03).
        let clock_is_right = self.move_clock_if_due()?;
        let time = self.inner.clock.now();
        self.take(work, time);
        if !clock_is_right {
            // There is no room even for that, so there is none for anything else.
            self.refuse(|_| true);
            return Ok(());
        }
        self.take_due_ends(time);
        if self.prepare_again.is_some() && self.log.free() < FREE_FOR_WORK {
            // What frees space, and the clock, come last: nothing else uses the rest up.
            self.refuse(|command| !matches!(command, Command::Ack(_) | Command::Inbox(_)));
            self.encode_taken(time);
        }
        if self.taken.is_empty() {
            return Ok(());
        }
        match self.write() {
            // Definite: nothing was written, and the log goes on. What does not need new room goes
            // on out of the reserve.
            Err(err) if err.kind() == ErrorKind::Full => {
                self.no_room();
                self.refuse(|command| matches!(command, Command::Create(_)));
                if self.taken.is_empty() {
                    return Ok(());
                }
                self.encode_taken(time);
                match self.write() {
                    Err(err) if err.kind() == ErrorKind::Full => {
                        self.ends_held_until = self.inner.clock.elapsed() + PREPARE_AGAIN_MIN;
                        self.refuse(|_| true);
                    }
                    Err(err) => return Err(self.give_up(err)),
                    Ok(first) => self.apply_taken(first, time),
                }
                Ok(())
            }
            Err(err) => Err(self.give_up(err)),
            Ok(first) => {
                self.apply_taken(first, time);
                Ok(())
            }
        }
    }

    /// The log stopped: whether what was taken is part of it is unknown.
    fn give_up(&mut self, err: ostraca_wal::Error) -> ostraca_wal::Error {
        if matches!(err, ostraca_wal::Error::Fenced { .. }) {
            let fenced = self.taken.len() as u64;
            self.inner.fenced.fetch_add(fenced, Ordering::Relaxed);
        }
        let taken = self.taken.drain(..);
        taken.for_each(|work| work.tell(Err(Error::Unknown)));
        err
    }

    /// Moves commands from the front of `work` to `taken`, as many as fit one batch. Those that
    /// nobody waits for any more are not worked on.
    fn take(&mut self, work: &mut VecDeque<Work>, time: Timestamp) {
        self.batch.clear();
        let elapsed = self.inner.clock.elapsed();
        while self.taken.len() < BATCH_ENTRIES_MAX
            && let Some(next) = work.pop_front()
        {
            if next.until.is_some_and(|until| until <= elapsed) {
                next.tell(Err(Error::Late));
                continue;
            }
            self.taken.push(next);
            if !self.push_encoded(self.taken.len() - 1, time) {
                work.extend(self.taken.pop());
                work.rotate_right(1);
                return;
            }
        }
    }

    /// Adds the ends of pastes that are past their expiry, unless the clock is in doubt.
    fn take_due_ends(&mut self, time: Timestamp) {
        if !self.may_end() {
            return;
        }
        let limit = if self.taken.is_empty() {
            SWEEP_ALONE_MAX
        } else {
            SWEEP_RIDING_MAX
        };
        for paste_id in self.inner.index.due(time, limit) {
            let end = End {
                paste_id,
                cause: EndCause::Expired,
            };
            self.taken.push(Work {
                command: Command::End(end),
                reply: nobody(),
                size: 0,
                until: None,
            });
            if !self.push_encoded(self.taken.len() - 1, time) {
                self.taken.pop();
                return;
            }
        }
    }

    /// Encodes what is left of a batch anew.
    fn encode_taken(&mut self, time: Timestamp) {
        self.batch.clear();
        for at in 0..self.taken.len() {
            let pushed = self.push_encoded(at, time);
            assert!(pushed, "a part of a batch fits a batch");
        }
    }

    /// Adds `taken[at]` to the batch; `false` if it does not fit.
    fn push_encoded(&mut self, at: usize, time: Timestamp) -> bool {
        let command = &self.taken[at].command;
        command.encode(&mut self.payload);
        let (kind, version, slot) = (command.kind(), command.version(), command.slot());
        let payload = &self.payload;
        self.batch.push(kind, version, slot, time, payload).is_ok()
    }

    /// Makes the batch durable, so that it can be answered.
    fn write(&mut self) -> Result<Sequence, ostraca_wal::Error> {
        let first = self.append_and_sync()?;
        // After the sync, as the look at the page itself: if it was shared then, whoever leads by
        // another one reads the log later, and finds this batch.
        if self.page_is_shared.as_ref().is_some_and(|is| !is()) {
            let epoch = self.inner.claim.epoch();
            return Err(ostraca_wal::Error::Fenced { epoch });
        }
        Ok(first)
    }

    fn append_and_sync(&mut self) -> Result<Sequence, ostraca_wal::Error> {
        let creates = |work: &Work| matches!(work.command, Command::Create(_));
        let room = if self.taken.iter().any(creates) {
            Room::Ordinary
        } else {
            Room::Reserve
        };
        let first = self.log.append(&mut self.batch, room)?;
        self.log.sync()?;
        self.inner.syncs.fetch_add(1, Ordering::Relaxed);
        Ok(first)
    }

    /// Durable: applies in log order, then answers. A refusal waited for the sync as well: "the key
    /// is taken" is a promise about an earlier record, and a crash must not undo it.
    fn apply_taken(&mut self, first: Sequence, time: Timestamp) {
        let inner = &self.inner;
        let epoch = inner.claim.epoch();
        let mut sequence = first;
        let mut deliverable = false;
        inner
            .commits
            .fetch_add(self.taken.len() as u64, Ordering::Relaxed);
        inner.batches.record(self.taken.len());
        for work in self.taken.drain(..) {
            let outcome = apply(&inner.index, &work.command, epoch, time);
            inner.applied.store(sequence.0, Ordering::Release);
            inner.outcomes.count(&work.command, &outcome);
            deliverable |= matches!(
                outcome,
                Outcome::Ended | Outcome::Settled(_) | Outcome::DeadLetterReplayed
            );
            work.tell(Ok(Answer {
                outcome,
                epoch,
                sequence,
            }));
            sequence = sequence.next();
        }
        if deliverable {
            inner.notify();
        }
    }

    /// Tells those of the taken commands that match that there is no room, and drops them.
    fn refuse(&mut self, matching: impl Fn(&Command) -> bool) {
        let refused = self.taken.extract_if(.., |work| matching(&work.command));
        refused.for_each(|work| work.tell(Err(Error::Full)));
    }

    /// What is due besides commands: the clock's next record, ends of pastes, the next segment. An
    /// idle leader that was replaced hears of it here. Called often.
    pub(crate) fn tend(&mut self) -> Result<(), ostraca_wal::Error> {
        self.inner.claim.check()?;
        self.tend_segments();
        self.tend_clean_up();
        self.move_clock_if_due()?;
        Ok(())
    }

    fn tend_segments(&mut self) {
        match Job::take_if_done(&mut self.preparing) {
            None => {}
            Some(Ok(prepared)) => {
                self.log.install(prepared);
                if self.prepare_again.take().is_some() {
                    tracing::info!(event = "segment_prepared", "there is room again");
                }
                self.log.hold_preparing(false);
                self.inner.full.store(false, Ordering::Relaxed);
            }
            Some(Err(err)) => {
                tracing::warn!(event = "segment_not_prepared", %err, cause = ?source(&err));
                self.prepare_later();
            }
        }
        let waits = self
            .prepare_again
            .is_some_and(|(at, _)| self.inner.clock.elapsed() < at);
        if self.preparing.is_none()
            && !waits
            && let Some(preparation) = self.log.wants_segment()
        {
            // Without it the append that needs the segment prepares it itself.
            self.preparing = Job::start(&*self.spawn, "segment", move || preparation.run());
        }
    }

    fn tend_clean_up(&mut self) {
        if let Some(Some((rest, err))) = Job::take_if_done(&mut self.cleaning) {
            tracing::debug!(event = "clean_up_later", %err, cause = ?source(&err));
            self.clean_up = Some((rest, self.inner.clock.elapsed() + CLEAN_UP_AGAIN));
        }
        let now = self.inner.clock.elapsed();
        if let Some((mut work, _)) = self.clean_up.take_if(|(_, at)| now >= *at) {
            let clean_up = move || match work.run() {
                Ok(_) => None,
                Err(err) => Some((work, err)),
            };
            // Without it, what is left is found again when the log is opened next.
            self.cleaning = Job::start(&*self.spawn, "clean-up", clean_up);
        }
    }

    /// Shows that the thread went round: whoever watches takes over when it does not.
    pub(crate) fn beat(&self) {
        let round = self.inner.rounds.fetch_add(1, Ordering::Relaxed);
        self.inner.claim.beat(round);
    }

    /// An append met the end of the last segment. A wait that has begun goes on: only a try that
    /// failed makes the next one longer, or steady load would put it off for ever.
    fn no_room(&mut self) {
        if self.prepare_again.is_none() {
            self.prepare_later();
        }
    }

    /// A segment could not be prepared: leaves the disk alone for a while.
    fn prepare_later(&mut self) {
        let now = self.inner.clock.elapsed();
        if self.prepare_again.is_some_and(|(at, _)| now < at) {
            return;
        }
        let wait = self.prepare_again.map_or(PREPARE_AGAIN_MIN, |(_, last)| {
            (last * 2).min(PREPARE_AGAIN_MAX)
        });
        self.prepare_again = Some((now + wait, wait));
        self.log.hold_preparing(true);
        self.inner.full.store(true, Ordering::Relaxed);
    }

    /// Whether the clock is where it should be: it was, or could be moved.
    fn move_clock_if_due(&mut self) -> Result<bool, ostraca_wal::Error> {
        let full = self.prepare_again.is_some();
        let ahead = if full { BOUND_AHEAD_FULL } else { BOUND_AHEAD };
        let believe = self.inner.leap_confirmed.load(Ordering::Acquire);
        let leapt = self.inner.leapt.load(Ordering::Relaxed);
        let Some(step) = self.inner.clock.due_step(ahead, believe, leapt) else {
            return Ok(true);
        };
        let moved = self.move_clock(step)?;
        if moved && believe {
            // Not before: a confirmation that found no room stands.
            self.inner.leap_confirmed.store(false, Ordering::Release);
        }
        Ok(moved)
    }

    /// Makes a step of the clock durable, then takes it. `false`: there is no room, and it stays
    /// where it is.
    fn move_clock(&mut self, step: Step) -> Result<bool, ostraca_wal::Error> {
        let command = Command::Time(step.record);
        command.encode(&mut self.payload);
        self.batch.clear();
        let (kind, version, slot) = (command.kind(), command.version(), command.slot());
        let pushed = self
            .batch
            .push(kind, version, slot, step.time, &self.payload);
        assert!(pushed.is_ok(), "one record fits a batch");
        match self.log.append(&mut self.batch, Room::Reserve) {
            Err(err) if err.kind() == ErrorKind::Full => {
                self.no_room();
                self.inner.clock_stuck.store(true, Ordering::Relaxed);
                return Ok(false);
            }
            appended => {
                let sequence = appended?;
                self.log.sync()?;
                let inner = &self.inner;
                inner.syncs.fetch_add(1, Ordering::Relaxed);
                apply(&inner.index, &command, inner.claim.epoch(), step.time);
                inner.clock.take(step.time, step.record);
                inner.applied.store(sequence.0, Ordering::Release);
                inner.leapt.store(step.leapt, Ordering::Relaxed);
                inner.clock_stuck.store(false, Ordering::Relaxed);
            }
        }
        Ok(true)
    }

    /// Whether pastes wait for their end, which an idle shard then commits.
    pub(crate) fn has_due_ends(&self) -> bool {
        let now = self.inner.clock.now();
        self.may_end() && self.inner.index.next_due().is_some_and(|due| due <= now)
    }

    /// A clock that is in doubt ends nothing: an end cannot be taken back.
    fn may_end(&self) -> bool {
        let inner = &self.inner;
        !inner.leapt.load(Ordering::Relaxed)
            && !inner.clock_stuck.load(Ordering::Relaxed)
            && inner.clock.elapsed() >= self.ends_held_until
            && (self.prepare_again.is_none() || self.log.free() >= FREE_FOR_ENDS)
    }

    /// Proves the last batch durable, so that damage to it could not be taken for a torn write.
    pub(crate) fn mark(&mut self) -> Result<(), ostraca_wal::Error> {
        self.log.mark()
    }

    /// The last record that was appended.
    pub(crate) fn last_sequence(&self) -> Sequence {
        Sequence(self.log.sequence_next().0 - 1)
    }
}

fn source(err: &ostraca_wal::Error) -> Option<String> {
    std::error::Error::source(err).map(ToString::to_string)
}
