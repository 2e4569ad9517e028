//! A look at a log without opening it: for `ostraca log verify` and `ostraca log dump`.

use std::collections::BTreeSet;

use ostraca_io::{Disk, FileName};
use ostraca_types::{Epoch, Sequence};

use crate::recovery::{Recovery, Start};
use crate::{Error, Identity, Record, SegmentId};

/// What a log holds.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Report {
    /// The segments of its history, oldest first.
    pub segments: Vec<SegmentReport>,
    /// Records in them.
    pub records: u64,
    /// The first of them; 0 if there is none.
    pub first_sequence: Sequence,
    /// The last of them; 0 if there never was one.
    pub last_sequence: Sequence,
    /// The epochs under which they were first appended.
    pub epochs: BTreeSet<Epoch>,
    /// Bytes of all batches, padding included.
    pub bytes: u64,
    /// What is cut, or would be: a torn append.
    pub cut: Option<Cut>,
    /// Segments outside the history: torn creations, prepared ones, a stale leader's.
    pub passed_over: Vec<SegmentId>,
    /// Segments that have one valid header copy left.
    pub header_copies_lost: Vec<SegmentId>,
}

/// One segment of the history.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct SegmentReport {
    /// Which.
    pub segment: SegmentId,
    /// Of its first record, or of the next one if it has none.
    pub first_sequence: Sequence,
    /// Records in it, up to its end.
    pub records: u64,
    /// Where it ends.
    pub end_offset: u64,
}

/// The torn append at the end of a log.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Cut {
    /// The last segment.
    pub file: FileName,
    /// Where it starts.
    pub offset: u64,
    /// Bytes from there that are not zero.
    pub bytes_not_zero: u64,
}

impl Report {
    pub(crate) fn count(&mut self, record: &Record<'_>) {
        if self.records == 0 {
            self.first_sequence = record.sequence;
        }
        self.records += 1;
        if self.epochs.last() != Some(&record.epoch) {
            self.epochs.insert(record.epoch);
        }
    }
}

/// Verifies all that is there of a log and shows each record to `progress`, in order. `durable` is
/// what the epoch page said before (see [`crate::read_epoch_page`]). Blocks for as long as reading takes; changes nothing. It may run on a copy, or beside an open log, whose
/// batch in flight then looks like a torn append; a segment that is purged meanwhile fails it
/// with `NotFound`.
pub fn verify<D: Disk>(
    disk: &D,
    identity: Identity,
    durable: Option<Sequence>,
    progress: &mut dyn FnMut(&Record<'_>),
) -> Result<Report, Error> {
    let recovery = Recovery::read_from(disk, identity, Start::Oldest)?.at_least(durable);
    let recovered = recovery.replay(disk, |record| {
        progress(record);
        Ok::<(), Error>(())
    })?;
    Ok(recovered.into_report())
}
