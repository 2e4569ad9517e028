//! How the protocol can be broken on purpose, and how large a search is.

/// One change to the protocol. Each removes or moves one step, and nothing else.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum Variant {
    /// A segment counts once it holds any valid batch, also a re-appended one.
    ReappendedCounts,
    /// A segment counts once its header is valid.
    HeaderCounts,
    /// The same, and the tail is made durable by the header's sync only.
    HeaderCountsTailInItsSync,
    /// Tail and header in one sync. This breaks nothing, thanks to the counting rule.
    TailInHeadersSync,
    /// A header does not say where its predecessor ends.
    EndNotRecorded,
    /// The header is made durable by the no-op's sync only.
    HeaderInNoOpsSync,
    /// The header is not written before the no-op, but some time after the first answers.
    HeaderAfterAnswer,
    /// The tail stays in the predecessor, and nothing is synced.
    TailNotDurable,
    /// The tail stays in the predecessor, whose file is synced.
    TailSyncedInPlace,
    /// The log is read before the cell is raised.
    ReadBeforeRaise,
    /// The cell is loaded before the append, not after its sync.
    CheckBeforeAppend,
    /// The cell is replaced by rename: who mapped the old file sees the old epoch for ever.
    CellRenamed,
    /// The cell's raise is not synced. This breaks nothing: a name is durable before anything is
    /// served, and the next raise goes beyond the highest name.
    CellNotSynced,
    /// Recovery joins all segments that count in the order of their epochs.
    CutsInEpochOrder,
    /// The manifest has one name, and a new one replaces it.
    ManifestRenamed,
    /// The log's record before the sync of run and manifest.
    RecordBeforeFiles,
    /// Old segments and manifests are unlinked before the record passed the fence.
    UnlinkBeforeRecord,
    /// A checkpoint that was fenced unlinks its own files.
    FencedCheckpointRemoves,
    /// Leftovers are unlinked before the no-op.
    CleanUpBeforeNoOp,
    /// Leftovers of higher epochs are unlinked, too.
    CleanUpOfHigherEpochs,
    /// Names carry no epoch: only a header says whose a segment is.
    NamesWithoutEpoch,
    /// A take-over appends to its predecessor's file.
    WritesIntoPredecessor,
    /// Reads are answered without a load of the cell.
    ReadsWithoutCheck,
    /// Reads are answered before the no-op passed the fence.
    ReadsBeforeNoOp,
    /// The log's directory is not synced.
    NoLogDirectorySync,
    /// The directory of runs and manifests is not synced.
    NoIndexDirectorySync,
    /// The directory is opened for its sync, not before the name is made: another process' failed
    /// sync of it goes unnoticed.
    DirectoryOpenedLate,
    /// The predecessor is trimmed before the no-op.
    TrimBeforeNoOp,
    /// The durable hint is stored after the sync, before the check.
    HintBeforeCheck,
    /// The durable hint is stored before the sync.
    HintBeforeSync,
    /// A name that is taken leads to another raise, but not to another read. A name can be taken only
    /// if the cell is [repaired by one](Variant::RepairedByOne), so this includes it.
    TakenNameNotReadAgain,
    /// An unreadable cell is repaired to the epoch after the highest name's. A candidate that has
    /// raised and made no name yet may hold that epoch.
    RepairedByOne,
}

/// What one process may do in a search.
#[derive(Clone, Copy, Debug, Default)]
pub struct Budget {
    /// Batches of clients' records.
    pub appends: u8,
    /// New segments.
    pub rolls: u8,
    /// Runs and manifests.
    pub checkpoints: u8,
}

/// The scope of one search.
#[derive(Clone, Copy, Debug)]
pub struct Config {
    /// How the protocol is broken; `None`: as written.
    pub variant: Option<Variant>,
    /// One for each process. They start in this order, which loses nothing: they are alike.
    pub processes: &'static [Budget],
    /// The first process leads already. Else the directory is empty.
    pub first_leads: bool,
    /// Records in a client's batch.
    pub batch_records: u8,
    /// How often the power fails.
    pub power_losses: u8,
    /// How many syncs fail.
    pub sync_failures: u8,
    /// How often the cell becomes unreadable.
    pub bad_cells: u8,
    /// Processes are killed as a step of its own, not just never scheduled again.
    pub kills: bool,
    /// A candidate looks at one segment at a time until one counts, and reads the rest then.
    pub reads_in_pieces: bool,
    /// Predecessors are trimmed.
    pub trims: bool,
    /// Leftovers are unlinked.
    pub cleans_up: bool,
    /// The durable hint is stored.
    pub hints: bool,
}

impl Config {
    /// The smallest search: add to it.
    pub const SMALLEST: Config = Config {
        variant: None,
        processes: &[],
        first_leads: true,
        batch_records: 1,
        power_losses: 0,
        sync_failures: 0,
        bad_cells: 0,
        kills: false,
        reads_in_pieces: false,
        trims: false,
        cleans_up: false,
        hints: false,
    };

    /// The same scope with a broken protocol.
    pub const fn broken(mut self, variant: Variant) -> Config {
        self.variant = Some(variant);
        self
    }

    /// Whether the protocol is broken in this way.
    pub fn is(&self, variant: Variant) -> bool {
        self.variant == Some(variant)
    }
}
