//! What a process knows, and which step it takes next.

use crate::recovery::Damage;
use crate::state::{Batch, CheckpointId, Kind, Position, SegmentId};

/// The next step of a process. Its order is that of the protocol.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum Phase {
    /// Has not done anything yet.
    Waiting,
    /// List the names, for the highest epoch in them.
    Names,
    /// Raise the cell.
    Raise,
    /// Make the raise durable.
    SyncCell,
    /// List the log.
    ListLog,
    /// Look whether the highest name's segment counts. Only where reading is not one step.
    FindLast,
    /// Read what was listed.
    ReadLog,
    /// Open the manifest and the run that the log names.
    OpenIndex,
    /// Something is missing: load the cell before calling that damage.
    Suspect,
    /// Load the cell; stop if it is not the own.
    Confirm,
    /// Make a segment by its name.
    Create,
    /// Make the name durable.
    SyncDirectory,
    /// A broken variant's: sync the predecessor's file instead of writing its tail again.
    SyncPredecessor,
    /// Write the unproven tail again.
    WriteTail,
    /// Make it durable.
    SyncTail,
    /// Write the segment's header.
    WriteHeader,
    /// Make it durable.
    SyncHeader,
    /// Write the pending batch.
    Write,
    /// Make it durable.
    SyncBatch,
    /// Load the cell and answer.
    Check,
    /// Store the durable hint.
    StoreHint,
    /// Nothing is pending.
    Serve,
    /// Write the checkpoint's manifest.
    WriteManifest,
    /// Make run and manifest durable.
    SyncFiles,
    /// Make their names durable.
    SyncIndex,
    /// Killed, fenced, failed or done.
    Stopped,
}

/// What a process read from the log: where its own segment continues.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug, Default)]
pub struct View {
    /// The last segment; the predecessor of the next one.
    pub last: Option<SegmentId>,
    /// How many of its batches stay in it.
    pub end: u8,
    /// The history there.
    pub end_at: Position,
    /// The last batch, which nothing proves durable.
    pub tail: Option<Batch>,
    /// The newest checkpoint that the log names.
    pub checkpoint: Option<CheckpointId>,
}

/// One process, which leads at most once. A restarted process is another one.
#[derive(Clone, PartialEq, Eq, Hash, Debug)]
pub struct Process {
    /// Its next step.
    pub phase: Phase,
    /// Under which it acts; 0 before it raised.
    pub epoch: u8,
    /// The highest epoch among the names it listed.
    pub floor: u8,
    /// What the mapping of a replaced cell shows for ever. Only in a broken variant.
    pub frozen: Option<u8>,
    /// The names it is about to read.
    pub listed: Vec<SegmentId>,
    /// What it read.
    pub view: View,
    /// Why it doubts what it read.
    pub suspicion: Option<Damage>,
    /// Another process' sync of the directory failed while this one had an unsynced name in it and
    /// the directory open: its own sync will fail, too.
    pub sync_will_fail: bool,
    /// A name was taken, and the broken variant raises without reading again.
    pub read_already: bool,
    /// The segment that it appends to.
    pub segment: Option<SegmentId>,
    /// The next free place in it.
    pub slot: u8,
    /// What it has applied.
    pub at: Position,
    /// The kind of the batch that is being appended.
    pub pending: Option<Kind>,
    /// Whether its no-op passed the fence.
    pub serves: bool,
    /// The predecessor is cut on disk already.
    pub trimmed: bool,
    /// The checkpoint in effect.
    pub checkpoint: Option<CheckpointId>,
    /// The one before, which may be unlinked.
    pub obsolete: Option<CheckpointId>,
    /// The sequence that its own checkpoint covers: segments that end before may be unlinked.
    pub covered: u8,
    /// Appends still to do.
    pub appends: u8,
    /// Rolls still to do.
    pub rolls: u8,
    /// Checkpoints still to do.
    pub checkpoints: u8,
}

impl Process {
    /// One that has not started.
    pub fn waiting(appends: u8, rolls: u8, checkpoints: u8) -> Self {
        Process {
            phase: Phase::Waiting,
            epoch: 0,
            floor: 0,
            frozen: None,
            listed: Vec::new(),
            view: View::default(),
            suspicion: None,
            sync_will_fail: false,
            read_already: false,
            segment: None,
            slot: 0,
            at: Position::default(),
            pending: None,
            serves: false,
            trimmed: false,
            checkpoint: None,
            obsolete: None,
            covered: 0,
            appends,
            rolls,
            checkpoints,
        }
    }

    /// Whether it made a name in the directory that `phase` syncs, and has not synced it.
    pub fn has_unsynced_name(&self, phase: Phase) -> bool {
        if phase == Phase::SyncIndex {
            matches!(
                self.phase,
                Phase::WriteManifest | Phase::SyncFiles | Phase::SyncIndex
            )
        } else {
            self.phase == phase
        }
    }

    /// One that never does anything again. All of them are equal, so that states meet.
    pub fn stopped() -> Self {
        Process {
            phase: Phase::Stopped,
            ..Process::waiting(0, 0, 0)
        }
    }
}
