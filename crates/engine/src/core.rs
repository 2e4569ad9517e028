//! Propose, sync, apply, answer: the steps of a shard, without its thread.
//!
//! Everything here happens in the order of the calls and depends on disk and clock alone, so a
//! simulation can drive it as the shard's thread does.

use std::collections::VecDeque;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::thread::JoinHandle;

use ostraca_io::{Clock, Disk, Entropy};
use ostraca_types::{ErrorKind, Sequence};
use ostraca_wal::{Batch, Identity, Log, Owner, Prepared, Recovery};

use crate::apply::apply;
use crate::command::{Command, DecodeError};
use crate::error::{Error, OpenError};
use crate::queue::Work;
use crate::shard::{Answer, Inner, Options};
use crate::time::{Replayed, ShardClock, Step, starting_step};

/// The most commands of one batch: beyond a few hundred a sync costs more, not less, and all of
/// them wait for it.
const BATCH_ENTRIES_MAX: usize = 2048;

/// What opening found.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Opened {
    pub(crate) records: u64,
    pub(crate) cut_bytes: u64,
}

/// One shard's log and rows, and the thread that prepares segments.
pub(crate) struct Core<D: Disk> {
    log: Log<D>,
    inner: Arc<Inner>,
    batch: Batch,
    payload: Vec<u8>,
    preparing: Option<JoinHandle<Result<Prepared<D>, ostraca_wal::Error>>>,
}

impl<D: Disk> Core<D> {
    /// Recovers the log, replays it, takes it over, and makes the clock's start durable. Reads
    /// nothing but the log; afterwards everything that was replayed is durable under this epoch.
    pub(crate) fn open(
        disk: D,
        identity: Identity,
        clock: Arc<dyn Clock>,
        entropy: &dyn Entropy,
        options: &Options,
    ) -> Result<(Self, Opened), OpenError> {
        let index = ostraca_index::Index::new();
        let mut replayed = Replayed::default();
        let mut records = 0;
        let recovery = Recovery::read(&disk, identity)?;
        let recovered = recovery.replay(&disk, |record| {
            records += 1;
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
            replayed.see(record.time, moved);
            if let Some(command) = command {
                apply(&index, &command, record.time);
            }
            Ok::<(), OpenError>(())
        })?;
        let cut_bytes = recovered
            .report()
            .cut
            .as_ref()
            .map_or(0, |cut| cut.bytes_not_zero);
        let mut owner = [0; 16];
        entropy.fill(&mut owner);
        let step = starting_step(&*clock, &replayed);
        let log = Log::take_over(
            disk,
            identity,
            Owner(owner),
            options.log,
            recovered,
            step.time,
        )?;
        let inner = Arc::new(Inner::new(index, ShardClock::new(clock, step), log.epoch()));
        let mut core = Self {
            log,
            inner,
            batch: Batch::new(),
            payload: Vec::new(),
            preparing: None,
        };
        // No reader sees the clock before where it starts is durable: else a crash now and a
        // reboot could bring it back.
        core.move_clock(step)?;
        // What cannot be removed now is found again when the log is opened next.
        drop(core.log.clean_up());
        Ok((core, Opened { records, cut_bytes }))
    }

    pub(crate) const fn inner(&self) -> &Arc<Inner> {
        &self.inner
    }

    /// Takes as much of `work` as fits one batch through all four steps. An error means that the
    /// log stopped; then everything taken was told that its outcome is unknown.
    pub(crate) fn commit(&mut self, work: &mut VecDeque<Work>) -> Result<(), ostraca_wal::Error> {
        let time = self.inner.clock.now();
        self.batch.clear();
        while self.batch.len() < BATCH_ENTRIES_MAX
            && let Some(next) = work.get(self.batch.len())
        {
            next.command.encode(&mut self.payload);
            let (kind, version, slot) = (
                next.command.kind(),
                next.command.version(),
                next.command.slot(),
            );
            if self
                .batch
                .push(kind, version, slot, time, &self.payload)
                .is_err()
            {
                break;
            }
        }
        let taken = work.drain(..self.batch.len());
        let first = match self.log.append(&mut self.batch).and_then(|first| {
            self.log.sync()?;
            Ok(first)
        }) {
            Ok(first) => first,
            // Definite: the segment could not be made, so nothing was written and the log goes on.
            Err(err) if err.kind() == ErrorKind::Full => {
                taken.for_each(|work| (work.reply)(Err(Error::Full)));
                return Ok(());
            }
            Err(err) => {
                taken.for_each(|work| (work.reply)(Err(Error::Unknown)));
                return Err(err);
            }
        };
        let inner = &self.inner;
        inner.syncs.fetch_add(1, Ordering::Relaxed);
        inner
            .commits
            .fetch_add(taken.len() as u64, Ordering::Relaxed);
        let mut sequence = first;
        // Durable: apply in log order. A refusal waited for the sync as well: "the key is taken"
        // is a promise about an earlier record, and a crash must not undo it.
        for work in taken {
            let outcome = apply(&inner.index, &work.command, time);
            inner.applied.store(sequence.0, Ordering::Release);
            (work.reply)(Ok(Answer {
                outcome,
                epoch: inner.epoch,
                sequence,
            }));
            sequence = sequence.next();
        }
        Ok(())
    }

    /// What is due besides commands: the clock's next record, the next segment. Called often.
    pub(crate) fn tend(&mut self) -> Result<(), ostraca_wal::Error> {
        if self.preparing.as_ref().is_some_and(JoinHandle::is_finished)
            && let Some(preparing) = self.preparing.take()
        {
            match preparing.join() {
                Ok(Ok(prepared)) => self.log.install(prepared),
                // Asked for again below, and by the append that needs it, which reports it.
                Ok(Err(_)) => {}
                Err(panic) => std::panic::resume_unwind(panic),
            }
        }
        if self.preparing.is_none()
            && let Some(preparation) = self.log.wants_segment()
        {
            // Without a thread the append that needs the segment prepares it itself.
            self.preparing = std::thread::Builder::new()
                .name("segment".to_owned())
                .spawn(move || preparation.run())
                .ok();
        }
        match self.inner.clock.due_step() {
            Some(step) => self.move_clock(step),
            None => Ok(()),
        }
    }

    /// Makes a step of the clock durable, then takes it. On a full disk it stays where it is.
    fn move_clock(&mut self, step: Step) -> Result<(), ostraca_wal::Error> {
        let command = Command::Time(step.record);
        command.encode(&mut self.payload);
        self.batch.clear();
        let pushed = self.batch.push(
            command.kind(),
            command.version(),
            command.slot(),
            step.time,
            &self.payload,
        );
        assert!(pushed.is_ok(), "one record fits a batch");
        match self.log.append(&mut self.batch) {
            Err(err) if err.kind() == ErrorKind::Full => return Ok(()),
            appended => {
                let sequence = appended?;
                self.log.sync()?;
                self.inner.syncs.fetch_add(1, Ordering::Relaxed);
                apply(&self.inner.index, &command, step.time);
                self.inner.clock.take(step.time, step.record);
                self.inner.applied.store(sequence.0, Ordering::Release);
                self.inner.leapt.store(step.leapt, Ordering::Relaxed);
            }
        }
        Ok(())
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
