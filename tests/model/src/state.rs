//! What a state of the model consists of: files, the epoch cell, processes, and what was promised.

use std::fmt;

use crate::process::{Phase, Process};
use crate::recovery::Damage;
use crate::variants::Config;

/// Batches that fit a segment. Exceeding it is a configuration that is too large, and panics.
pub const SLOTS: usize = 6;

/// A thing that is written by one write and kept or lost by a power loss as one: a header, a batch,
/// a directory entry, the epoch cell.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug, Default)]
pub struct Kept<T> {
    /// What every process sees. SIGKILL does not change it.
    pub cache: T,
    /// What a power loss leaves if the write-back did not happen.
    pub disk: T,
    /// Whether a sync would write. After a failed write-back it is false although the two differ:
    /// a later sync then says ok and writes nothing.
    pub dirty: bool,
}

impl<T: Copy + Eq> Kept<T> {
    /// A value that is durable already.
    pub fn durable(value: T) -> Self {
        Kept {
            cache: value,
            disk: value,
            dirty: false,
        }
    }

    /// Changes what is seen. Durable after the next sync.
    pub fn write(&mut self, value: T) {
        self.cache = value;
        self.dirty = self.cache != self.disk;
    }

    /// A sync; a failed one drops the write-back for good.
    pub fn sync(&mut self, ok: bool) {
        if self.dirty && ok {
            self.disk = self.cache;
        }
        self.dirty = false;
    }

    /// What a power loss leaves: the new value if it had been written back, else the old one.
    pub fn settle(&mut self, written_back: bool) {
        let value = if written_back { self.cache } else { self.disk };
        *self = Self::durable(value);
    }
}

/// A place in the history: the last sequence and the chain value there. Two histories with the same
/// chain value are the same.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug, Default)]
pub struct Position {
    /// Of the last record; 0 in an empty log.
    pub sequence: u8,
    /// Over all records up to it.
    pub chain: u32,
}

impl Position {
    /// The position after one more record. FNV-1a stands for the CRC.
    fn then(self, epoch: u8, writer: u8, kind: Kind) -> Self {
        let sequence = self.sequence + 1;
        let kind = match kind {
            Kind::NoOp => 0,
            Kind::Data => 1,
            Kind::Checkpoint(id) => 2 + id.number,
        };
        let mut chain = self.chain;
        for byte in [sequence, epoch, writer, kind] {
            chain = (chain ^ u32::from(byte)).wrapping_mul(0x0100_0193);
            chain ^= chain >> 15;
        }
        Position { sequence, chain }
    }

    /// The position after all records of `batch`.
    pub fn after(self, batch: Batch) -> Self {
        (0..batch.count).fold(self, |at, _| at.then(batch.epoch, batch.writer, batch.kind))
    }
}

/// A segment's name and owner. Names are ordered by epoch, then number.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub struct SegmentId {
    /// Of the maker.
    pub epoch: u8,
    /// Within the epoch.
    pub number: u8,
    /// The process that made it. Stands for the header's `owner`; it is not in the name.
    pub maker: u8,
}

/// The names of one checkpoint's run and manifest.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub struct CheckpointId {
    /// Of the maker.
    pub epoch: u8,
    /// Within the epoch.
    pub number: u8,
    /// The process that made it; not in the name.
    pub maker: u8,
}

/// What a record is.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum Kind {
    /// The first record of an epoch.
    NoOp,
    /// A client's.
    Data,
    /// Names a manifest.
    Checkpoint(CheckpointId),
}

/// The records of one write and one sync.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub struct Batch {
    /// Of its first record.
    pub sequence: u8,
    /// How many records.
    pub count: u8,
    /// Under which they were first appended.
    pub epoch: u8,
    /// Who appended them first. Stands for the payload.
    pub writer: u8,
    /// Of each record.
    pub kind: Kind,
    /// Whether this is a copy made by a take-over.
    pub reappended: bool,
}

/// A segment's header: who came before, and where that one ends.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub struct Header {
    /// `None`: the log starts here.
    pub predecessor: Option<SegmentId>,
    /// Batches of the predecessor that count.
    pub end: u8,
    /// The history there.
    pub end_at: Position,
}

/// One segment file. It outlives its name while a process has it open.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub struct Segment {
    /// Its name.
    pub id: SegmentId,
    /// Whether the directory has the name.
    pub entry: Kept<bool>,
    /// `None`: not valid.
    pub header: Kept<Option<Header>>,
    /// `None`: zeros, or bytes that are no valid batch.
    pub slots: [Kept<Option<Batch>>; SLOTS],
}

impl Segment {
    /// A prepared file: full size, zeros, its name not yet durable.
    pub fn prepared(id: SegmentId) -> Self {
        let mut segment = Segment {
            id,
            entry: Kept::default(),
            header: Kept::default(),
            slots: [Kept::default(); SLOTS],
        };
        segment.entry.write(true);
        segment
    }

    /// `fdatasync`.
    pub fn sync(&mut self, ok: bool) {
        self.header.sync(ok);
        for slot in &mut self.slots {
            slot.sync(ok);
        }
    }

    /// Truncation: whatever is at `end` or behind it is gone.
    pub fn trim(&mut self, end: u8) {
        for slot in &mut self.slots[usize::from(end)..] {
            slot.write(None);
        }
    }
}

/// A run and the manifest that lists it.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub struct Checkpoint {
    /// Their names.
    pub id: CheckpointId,
    /// Whether the directory has the run.
    pub run_entry: Kept<bool>,
    /// Whether the run's bytes are right.
    pub run: Kept<bool>,
    /// Whether the directory has the manifest.
    pub manifest_entry: Kept<bool>,
    /// Whether the manifest's bytes are right.
    pub manifest: Kept<bool>,
}

impl Checkpoint {
    /// Whether all that the log's record promises is there.
    pub fn is_whole(&self) -> bool {
        self.run_entry.cache && self.run.cache && self.manifest_entry.cache && self.manifest.cache
    }

    /// Whether either name is there.
    pub fn has_name(&self) -> bool {
        self.run_entry.cache || self.manifest_entry.cache
    }

    /// Unlinks both files.
    pub fn unlink(&mut self) {
        self.run_entry.write(false);
        self.manifest_entry.write(false);
    }
}

/// The word beside the cell: the highest sequence known durable.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub struct Hint {
    /// What a load returns.
    pub now: u8,
    /// Bit s: a power loss may leave s.
    pub possible: u16,
}

impl Hint {
    /// A value that is durable.
    pub fn durable(sequence: u8) -> Self {
        Hint {
            now: sequence,
            possible: 1 << sequence,
        }
    }

    /// A plain store. It may or may not be written back, before or after later ones.
    pub fn store(&mut self, sequence: u8) {
        self.now = sequence;
        self.possible |= 1 << sequence;
    }
}

/// What must never happen.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum Violation {
    /// f03, d01: what was answered is not in what recovery yields.
    Lost,
    /// d02: recovery refuses files that nothing damaged.
    CalledDamaged(Damage),
    /// The same, but a candidate said so that may have read while files came and went.
    ReportedDamaged(Damage),
    /// f01: an answer after a higher or another leadership served.
    AnsweredWhenFenced,
    /// f04: a read that misses an answered write.
    StaleRead,
}

impl fmt::Display for Violation {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Violation::Lost => f.write_str("answered history lost"),
            Violation::CalledDamaged(damage) => write!(f, "called damaged: {damage}"),
            Violation::ReportedDamaged(damage) => write!(f, "reported damaged: {damage}"),
            Violation::AnsweredWhenFenced => f.write_str("answered after another leader"),
            Violation::StaleRead => f.write_str("stale read"),
        }
    }
}

/// One state of everything.
#[derive(Clone, PartialEq, Eq, Hash, Debug)]
pub struct State {
    /// By name.
    pub segments: Vec<Segment>,
    /// By name.
    pub checkpoints: Vec<Checkpoint>,
    /// `None`: unreadable.
    pub cell: Kept<Option<u8>>,
    /// Beside the cell.
    pub hint: Hint,
    /// All that will ever run.
    pub processes: Vec<Process>,
    /// The longest answered history.
    pub answered: Position,
    /// Epoch and process of the last leadership that served.
    pub served: Option<(u8, u8)>,
    /// Power losses still to come.
    pub power_losses: u8,
    /// Failing syncs still to come.
    pub sync_failures: u8,
    /// Times that the cell still becomes unreadable.
    pub bad_cells: u8,
    /// What the step that led here did wrong.
    pub violation: Option<Violation>,
}

impl State {
    /// Before the first step.
    pub fn initial(config: &Config) -> Self {
        let mut state = State {
            segments: Vec::new(),
            checkpoints: Vec::new(),
            cell: Kept::durable(Some(0)),
            hint: Hint::durable(0),
            processes: Vec::new(),
            answered: Position::default(),
            served: None,
            power_losses: config.power_losses,
            sync_failures: config.sync_failures,
            bad_cells: config.bad_cells,
            violation: None,
        };
        for process in config.processes {
            state.processes.push(Process::waiting(
                process.appends,
                process.rolls,
                process.checkpoints,
            ));
        }
        if config.first_leads {
            state.let_the_first_lead();
        }
        state
    }

    /// Process 0 has taken over an empty directory, and its no-op passed the fence.
    fn let_the_first_lead(&mut self) {
        let id = SegmentId {
            epoch: 1,
            number: 0,
            maker: 0,
        };
        let no_op = Batch {
            sequence: 1,
            count: 1,
            epoch: 1,
            writer: 0,
            kind: Kind::NoOp,
            reappended: false,
        };
        let mut segment = Segment::prepared(id);
        segment.entry.sync(true);
        segment.header.write(Some(Header {
            predecessor: None,
            end: 0,
            end_at: Position::default(),
        }));
        segment.slots[0].write(Some(no_op));
        segment.sync(true);
        self.segments.push(segment);
        self.cell = Kept::durable(Some(1));
        self.answered = Position::default().after(no_op);
        self.served = Some((1, 0));
        let process = &mut self.processes[0];
        process.phase = Phase::Serve;
        process.epoch = 1;
        process.segment = Some(id);
        process.slot = 1;
        process.at = self.answered;
        process.serves = true;
    }

    /// The segment that a process has open, whether it still has a name or not.
    ///
    /// # Panics
    ///
    /// If there never was such a segment.
    pub fn segment_mut(&mut self, id: SegmentId) -> &mut Segment {
        self.segments
            .iter_mut()
            .find(|segment| segment.id == id)
            .expect("a process has it open")
    }

    /// The segment that the directory has under this name.
    pub fn named(&self, epoch: u8, number: u8) -> Option<&Segment> {
        self.segments.iter().find(|segment| {
            segment.entry.cache && segment.id.epoch == epoch && segment.id.number == number
        })
    }

    /// The files of a checkpoint, whether they still have names or not.
    pub fn checkpoint_mut(&mut self, id: CheckpointId) -> Option<&mut Checkpoint> {
        self.checkpoints.iter_mut().find(|files| files.id == id)
    }
}
