//! A log that is open for appending.

use std::io;
use std::sync::{Arc, Weak};

use ostraca_io::{Disk, DiskFile, FileName};
use ostraca_types::{Epoch, Sequence, Slot, Timestamp};

use crate::Error;
use crate::batch::{Batch, Position};
use crate::clean_up::{CleanUp, remove};
use crate::error::Action;
use crate::fence::Claim;
use crate::frame::{BatchClass, KIND_NO_OP, Records};
use crate::place::{Identity, Owner, Place};
use crate::recovery::{Found, Recovered};
use crate::segment::{
    BATCHES_START, NamedFile, Predecessor, Preparation, Prepared, SEGMENT_SIZE_MAX,
    SEGMENT_SIZE_MIN, SegmentHeader, SegmentId, prepare,
};

/// Each roll makes a segment this many times as large, up to the full size.
const SEGMENT_GROWTH: u64 = 4;
/// What is kept free at the end of the last segment while no next one is prepared: for what must
/// still be written when the disk is full.
pub const RESERVE_SIZE: u64 = 512 << 10;

/// How much of the last segment a batch may use.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Room {
    /// All but the reserve, until the next segment is there.
    Ordinary,
    /// The reserve, too.
    Reserve,
}

/// How a log lays out its files.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Options {
    /// Bytes of a segment once the log has grown. Larger ones make rolls rarer, and cost more
    /// disk ahead of use. 64 MiB.
    pub segment_size: u64,
    /// Bytes of the first segment after a take-over; each roll makes one four times as large, up
    /// to `segment_size`. Small, so that many restarts do not make many large files. 2 MiB.
    pub segment_size_first: u64,
}

impl Default for Options {
    fn default() -> Self {
        Self {
            segment_size: 64 << 20,
            segment_size_first: 2 << 20,
        }
    }
}

impl Options {
    /// Both sizes are within [`SEGMENT_SIZE_MIN`] and [`SEGMENT_SIZE_MAX`], whole pages, and in
    /// order.
    pub fn validate(&self) -> Result<(), Error> {
        for size in [self.segment_size_first, self.segment_size] {
            let bounds = self.segment_size_first.max(SEGMENT_SIZE_MIN)..=SEGMENT_SIZE_MAX;
            if !bounds.contains(&size) || !size.is_multiple_of(4096) {
                return Err(Error::SegmentSize { size });
            }
        }
        Ok(())
    }
}

/// The segment that is being appended to.
#[derive(Debug)]
struct Current<F> {
    file: F,
    place: Place,
    size: u64,
    /// Where the next batch goes.
    offset: u64,
}

/// A shard's log, open for appending by its one leader.
///
/// One batch is in flight at a time: [`Log::append`], [`Log::sync`], and so on. After a failed
/// write or sync every later call is [`Error::Stopped`]: what reached the disk is unknown, and
/// only a recovery can tell (d03). After [`Error::Fenced`] as well: there is another leader (f02).
#[derive(Debug)]
pub struct Log<D: Disk> {
    disk: D,
    claim: Claim,
    identity: Identity,
    owner: Owner,
    options: Options,
    current: Current<D::File>,
    sequence_next: Sequence,
    durable: Sequence,
    /// Chain value after the last record.
    chain: u32,
    /// Something was written and not synced.
    in_flight: bool,
    /// A batch or mark proves that everything is durable.
    proven: bool,
    stopped: bool,
    /// The number of the next segment to prepare; never given twice, failed ones included.
    number_next: u32,
    prepared: Option<Prepared<D>>,
    preparing: Weak<()>,
    preparing_held: bool,
    /// Older segments of the history with their last sequence, oldest first.
    older: Vec<(SegmentId, Sequence)>,
    /// Until it is taken.
    clean_up: Option<CleanUp<D>>,
    /// For marks and the log's own records.
    own_batch: Batch,
}

impl<D: Disk> Log<D> {
    /// Goes on from a log that was read under `claim`: writes what is not proven durable again, and
    /// a no-op at `time`. Every opening is a take-over, also of a new log.
    ///
    /// On return everything that `recovered` handed out and the no-op survive a power cut, no older
    /// leader passes its check, and answers may be given. Older files are not changed, so a failed
    /// or interrupted take-over can be repeated from the start: with a new claim. Panics if
    /// `recovered` was not read under `claim`: what was read before the raise may lack what an older
    /// leader acknowledged meanwhile. Blocks.
    pub fn take_over(
        disk: D,
        claim: Claim,
        owner: Owner,
        options: Options,
        recovered: Recovered,
        time: Timestamp,
    ) -> Result<Self, Error> {
        options.validate()?;
        let identity = claim.identity();
        assert_eq!(identity, recovered.identity, "another log was recovered");
        assert_eq!(
            Some(claim.epoch()),
            recovered.epoch,
            "the log was read before the epoch was raised"
        );
        // Whoever lost the claim while reading may have met missing files; it stops here.
        claim.check()?;
        let (id, file, size) = create_first(&disk, &claim, &recovered.found.ballasts, &options)?;
        let place = Place::new(&identity, id);
        let current = Current {
            file,
            place,
            size,
            offset: BATCHES_START,
        };
        let end_before = recovered
            .predecessor
            .as_ref()
            .map_or(Sequence(0), |before| before.end_sequence);
        let mut untrimmed = recovered.untrimmed;
        untrimmed.extend(
            recovered
                .predecessor
                .map(|before| (before.id, before.end_offset)),
        );
        let clean_up = CleanUp {
            disk: disk.clone(),
            leftovers: leftovers(recovered.found, id.epoch),
            untrimmed,
            ballast: Some((id.ballast_name(), options.segment_size_first)),
            removed: 0,
        };
        let mut log = Self {
            disk,
            claim,
            identity,
            owner,
            options,
            current,
            sequence_next: end_before.next(),
            durable: end_before,
            chain: recovered.chain,
            in_flight: false,
            proven: true,
            stopped: false,
            number_next: 1,
            prepared: None,
            preparing: Weak::new(),
            preparing_held: false,
            older: recovered.segments,
            clean_up: Some(clean_up),
            own_batch: Batch::new(),
        };
        log.append_tail(&recovered.tail)?;
        assert_eq!(
            log.chain, recovered.chain_end,
            "the tail is not what was read"
        );
        log.write_header(recovered.predecessor, recovered.chain)?;
        log.append_no_op(time)?;
        // Else a power cut could take the hint back to before this leadership, and the loss of all of
        // its segments would not be noticed.
        let flushed = log.claim.flush();
        log.stopped |= flushed.is_err();
        flushed?;
        Ok(log)
    }

    /// What a power cut may have kept of the last batch only, is written again and synced.
    /// Before the header: in one sync with it, the header could survive alone.
    fn append_tail(&mut self, tail: &[u8]) -> Result<(), Error> {
        if tail.is_empty() {
            return Ok(());
        }
        let mut batch = std::mem::take(&mut self.own_batch);
        batch.clear();
        for record in Records::of(tail, self.current.place.segment()) {
            batch
                .push_as(
                    record.epoch,
                    record.kind,
                    record.version,
                    record.slot,
                    record.time,
                    record.payload,
                )
                .expect("it was one batch before");
        }
        // Not yet known to be durable: until the no-op is, the segment does not count.
        let written = self
            .write(&mut batch, BatchClass::Reappended)
            .and_then(|_| self.sync_and_check());
        self.own_batch = batch;
        written
    }

    fn append_no_op(&mut self, time: Timestamp) -> Result<(), Error> {
        let mut batch = std::mem::take(&mut self.own_batch);
        batch.clear();
        batch
            .push_as(Epoch(0), KIND_NO_OP, 0, Slot(0), time, &[])
            .expect("an empty batch has room");
        let written = self
            .write(&mut batch, BatchClass::Plain)
            .and_then(|_| self.sync());
        self.own_batch = batch;
        written
    }

    /// Writes both copies of the current segment's header, and syncs them.
    fn write_header(&mut self, predecessor: Option<Predecessor>, chain: u32) -> Result<(), Error> {
        let header = SegmentHeader {
            id: self.current.place.segment(),
            owner: self.owner,
            segment_size: self.current.size,
            predecessor,
            chain,
        };
        let written = self
            .current
            .file
            .write_all_at(&header.encode(&self.identity), 0);
        self.stop_on(Action::Write, written)?;
        let synced = self.current.file.sync_data();
        self.stop_on(Action::Sync, synced)
    }

    /// Writes the batch at the end of the log and returns the sequence of its first record. It is
    /// durable after [`Self::sync`], and not before. The batch keeps its records.
    ///
    /// [`Error::Full`]: nothing was written, and the same batch can be appended later, or now if it
    /// may use the reserve. Panics if
    /// the batch is empty, or if the one before was not synced: that a batch was written only
    /// after the one before was durable is what recovery rests on. Blocks for the write, and for
    /// preparing a segment if the current one is full, none is installed, and preparing is not held.
    pub fn append(&mut self, batch: &mut Batch, room: Room) -> Result<Sequence, Error> {
        assert!(
            !batch.is_empty(),
            "an empty batch proves nothing; use `mark`"
        );
        self.check_running()?;
        assert!(!self.in_flight, "the batch before was not synced");
        if !self.has_room(batch.size() as u64, room) {
            self.roll()?;
        }
        self.write(batch, BatchClass::Plain)
    }

    fn has_room(&self, size: u64, room: Room) -> bool {
        let kept = match room {
            Room::Ordinary if self.prepared.is_none() => RESERVE_SIZE,
            Room::Ordinary | Room::Reserve => 0,
        };
        self.current.offset + size + kept <= self.current.size
    }

    /// Bytes that are left in the last segment, the reserve included.
    #[must_use]
    pub fn free(&self) -> u64 {
        self.current.size - self.current.offset
    }

    /// While held, an append that needs a segment which is not installed is refused with
    /// [`Error::Full`] at once, instead of preparing it: for a disk that was full a moment ago, as
    /// each try would take what room there is and give it back.
    pub fn hold_preparing(&mut self, hold: bool) {
        self.preparing_held = hold;
    }

    fn write(&mut self, batch: &mut Batch, class: BatchClass) -> Result<Sequence, Error> {
        self.check_running()?;
        assert!(!self.in_flight, "the batch before was not synced");
        let first_sequence = self.sequence_next;
        let position = Position {
            place: &self.current.place,
            offset: self.current.offset,
            first_sequence,
            chain: self.chain,
            class,
        };
        let (bytes, chain) = batch.seal(&position);
        let end = self.current.offset + bytes.len() as u64;
        assert!(end <= self.current.size, "a batch never spans segments");
        let written = self.current.file.write_all_at(bytes, self.current.offset);
        batch.unseal();
        self.stop_on(Action::Write, written)?;
        self.current.offset = end;
        self.chain = chain;
        self.sequence_next = Sequence(first_sequence.0 + batch.len() as u64);
        self.in_flight = true;
        Ok(first_sequence)
    }

    /// Makes what was appended survive a power cut, and passes it through the fence: on return it is
    /// part of every later history, and may be answered. Without an append before it does nothing.
    /// [`Error::Fenced`]: another process leads, and whether it is part of the history is unknown.
    /// Blocks for one sync of the data.
    pub fn sync(&mut self) -> Result<(), Error> {
        self.check_running()?;
        if !self.in_flight {
            return Ok(());
        }
        self.sync_and_check()?;
        self.claim.note_durable(self.durable);
        Ok(())
    }

    fn sync_and_check(&mut self) -> Result<(), Error> {
        let synced = self.current.file.sync_data();
        self.stop_on(Action::Sync, synced)?;
        // After the sync: if nobody has raised the epoch yet, whoever does reads this batch.
        let fenced = self.claim.check();
        self.stopped |= fenced.is_err();
        fenced?;
        self.in_flight = false;
        self.proven = false;
        self.durable = Sequence(self.sequence_next.0 - 1);
        Ok(())
    }

    /// Proves the last batch: after this, damage to it cannot be taken for a torn write. For an
    /// idle log and before a clean stop. Does nothing if that is proven already. Panics if the
    /// last batch was not synced. Where the segment has no room for a mark the batch stays in doubt
    /// until the next one, as it would in a log that is never idle. Blocks for a write and a sync.
    pub fn mark(&mut self) -> Result<(), Error> {
        self.check_running()?;
        assert!(!self.in_flight, "the batch before was not synced");
        if self.proven {
            return Ok(());
        }
        let mut batch = std::mem::take(&mut self.own_batch);
        batch.clear();
        if !self.has_room(batch.size() as u64, Room::Reserve) {
            self.own_batch = batch;
            return Ok(());
        }
        // Synced before any batch follows: a power cut that lost the mark and kept such a batch
        // would leave a hole that looks like damage.
        let marked = self
            .write(&mut batch, BatchClass::Mark)
            .and_then(|_| self.sync());
        self.own_batch = batch;
        marked?;
        self.proven = true;
        Ok(())
    }

    fn roll(&mut self) -> Result<(), Error> {
        let next = match self.prepared.take() {
            Some(prepared) => prepared,
            None => self.prepare_inline()?,
        };
        let before = self.current.place.segment();
        assert!(before < next.id, "segments are numbered upwards");
        let predecessor = Predecessor {
            id: before,
            owner: self.owner,
            end_offset: self.current.offset,
            end_sequence: Sequence(self.sequence_next.0 - 1),
        };
        self.current = Current {
            file: next.file,
            place: Place::new(&self.identity, next.id),
            size: next.size,
            offset: BATCHES_START,
        };
        self.older.push((before, predecessor.end_sequence));
        // Durable before the first batch: a segment that counts has a valid header.
        self.write_header(Some(predecessor), self.chain)
    }

    fn prepare_inline(&mut self) -> Result<Prepared<D>, Error> {
        if self.preparing_held {
            return Err(Error::Full);
        }
        let prepared = self.preparation().run();
        if matches!(prepared, Err(ref err) if !matches!(err, Error::Full)) {
            self.stopped = true;
        }
        prepared
    }

    fn preparation(&mut self) -> Preparation<D> {
        let number = self.number_next;
        self.number_next = number
            .checked_add(1)
            .expect("fewer segments than 32 bits count");
        let under_way = Arc::new(());
        self.preparing = Arc::downgrade(&under_way);
        Preparation {
            disk: self.disk.clone(),
            claim: self.claim.clone(),
            id: SegmentId {
                epoch: self.epoch(),
                number,
            },
            size: (self.current.size * SEGMENT_GROWTH).min(self.options.segment_size),
            under_way,
        }
    }

    /// The next segment, if it is time to prepare it: the current one is half full and no other
    /// preparation is under way or installed. Run it on another thread and hand the result to
    /// [`Self::install`]; without that, the append that fills the segment waits for it.
    pub fn wants_segment(&mut self) -> Option<Preparation<D>> {
        let half_full = self.current.offset >= self.current.size / 2;
        let idle = self.prepared.is_none() && self.preparing.strong_count() == 0;
        (half_full && idle && !self.stopped).then(|| self.preparation())
    }

    /// Takes a prepared segment for the next roll. One that comes too late is removed.
    pub fn install(&mut self, prepared: Prepared<D>) {
        assert_eq!(prepared.id.epoch, self.epoch(), "another log's segment");
        let late = prepared.id <= self.current.place.segment() || self.prepared.is_some();
        if late {
            // It holds zeros only; if it cannot be removed, recovery passes over it.
            drop(self.disk.remove(&prepared.id.file_name()));
        } else {
            self.prepared = Some(prepared);
        }
    }

    /// What is to be tidied after a take-over, once: run it on another thread. The no-op has passed
    /// the fence, so it harms nobody.
    pub fn take_clean_up(&mut self) -> Option<CleanUp<D>> {
        self.clean_up.take()
    }

    /// Removes the segments of which every record is covered, oldest first; returns how many.
    /// Only after the checkpoint that covers them took effect: they cannot be read again. A
    /// failure does not stop the log. The removals need not survive a power cut.
    pub fn purge(&mut self, covered: Sequence) -> Result<usize, Error> {
        self.check_running()?;
        let mut removed = 0;
        while let Some((id, last)) = self.older.first() {
            if *last > covered {
                break;
            }
            removed += usize::from(remove(&self.disk, &id.file_name())?);
            self.older.remove(0);
        }
        Ok(removed)
    }

    fn check_running(&self) -> Result<(), Error> {
        if self.stopped {
            Err(Error::Stopped)
        } else {
            Ok(())
        }
    }

    fn stop_on(&mut self, action: Action, result: io::Result<()>) -> Result<(), Error> {
        result.map_err(|err| {
            self.stopped = true;
            action.of(&self.current.place.segment().file_name())(err)
        })
    }

    /// The claim that it leads by, for readers on other threads.
    #[must_use]
    pub fn claim(&self) -> &Claim {
        &self.claim
    }

    /// The epoch under which it appends.
    #[must_use]
    pub fn epoch(&self) -> Epoch {
        self.current.place.segment().epoch
    }

    /// The sequence that the next record gets.
    #[must_use]
    pub fn sequence_next(&self) -> Sequence {
        self.sequence_next
    }

    /// Everything up to it survives a power cut.
    #[must_use]
    pub fn durable_sequence(&self) -> Sequence {
        self.durable
    }

    /// Whether a failure stopped it.
    #[must_use]
    pub fn is_stopped(&self) -> bool {
        self.stopped
    }
}

/// Makes segment 0 of the claimed epoch. Its name depends on the epoch alone, so of two processes
/// that were granted the same one only one goes on.
fn create_first<D: Disk>(
    disk: &D,
    claim: &Claim,
    ballasts: &[FileName],
    options: &Options,
) -> Result<(SegmentId, D::File, u64), Error> {
    let id = SegmentId {
        epoch: claim.epoch(),
        number: 0,
    };
    let mut size = options.segment_size_first;
    let mut made = prepare(disk, id, size);
    if matches!(made, Err(Error::Full)) && !ballasts.is_empty() {
        // This is what it was kept for. It holds nothing that anybody reads.
        for ballast in ballasts {
            remove(disk, ballast)?;
        }
        made = prepare(disk, id, size);
        if matches!(made, Err(Error::Full)) {
            size = SEGMENT_SIZE_MIN;
            made = prepare(disk, id, size);
        }
    }
    match made {
        Err(Error::Io { source, .. }) if source.kind() == io::ErrorKind::AlreadyExists => {
            Err(Error::EpochTaken {
                epoch: claim.epoch(),
            })
        }
        other => other.map(|file| (id, file, size)),
    }
}

/// The files that [`CleanUp`] may remove.
fn leftovers(found: Found, epoch: Epoch) -> Vec<FileName> {
    // What has a higher epoch is a later leader's, and not ours to remove.
    let lower = |name: &FileName| NamedFile::of(name).is_some_and(|file| file.id().epoch < epoch);
    let strays = found.strays.iter().map(SegmentId::file_name);
    let files = found.temporaries.into_iter().chain(found.ballasts);
    files.chain(strays).filter(lower).collect()
}
