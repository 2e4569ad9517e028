//! Walking through the records of a log, segment by segment, and keeping account.

use ostraca_io::DiskFile;
use ostraca_types::{Epoch, Sequence};

use crate::frame::{BatchClass, Record};
use crate::place::{Identity, Owner};
use crate::reader::Reader;
use crate::segment::{BATCHES_START, Predecessor, SegmentId};
use crate::verify::{Cut, Report, SegmentReport};
use crate::{Error, Fault};

use super::{Decision, End, Link, Recovered, Recovery, Start, Stop, damaged, decide};

/// The state of a replay.
pub(super) struct Walk {
    /// Records up to this one are verified and not handed out.
    skip: Sequence,
    segment: Option<SegmentId>,
    owner: Owner,
    offset: u64,
    /// The sequence that comes next.
    next: Sequence,
    /// Chain value before it.
    chain: u32,
    /// Of the last record.
    epoch: Epoch,
    /// State before the last batch: what a successor names as the end.
    proven: Proven,
    /// The last batch, if it is in the last segment and has records: header and records.
    tail: Vec<u8>,
    keeps_tail: bool,
    entered_at: Sequence,
}

#[derive(Debug, Clone, Copy)]
struct Proven {
    offset: u64,
    next: Sequence,
    chain: u32,
}

impl Walk {
    pub(super) fn start(recovery: &Recovery) -> Self {
        let mut walk = Self::after_nothing(&recovery.identity);
        if let Some(link) = recovery.links.first() {
            walk.next = link.header.end_sequence_before().next();
            walk.chain = link.header.chain;
        }
        if let Start::After(covered) = recovery.start {
            walk.skip = covered;
        }
        walk.entered_at = walk.next;
        walk.proven = walk.now();
        walk
    }

    /// Of a log that has no segment.
    pub(super) fn after_nothing(identity: &Identity) -> Self {
        let (next, chain) = (Sequence(1), identity.chain_start());
        let proven = Proven {
            offset: BATCHES_START,
            next,
            chain,
        };
        Self {
            skip: Sequence(0),
            segment: None,
            owner: Owner([0; 16]),
            offset: BATCHES_START,
            next,
            chain,
            epoch: Epoch(0),
            proven,
            tail: Vec::new(),
            keeps_tail: false,
            entered_at: next,
        }
    }

    fn now(&self) -> Proven {
        Proven {
            offset: self.offset,
            next: self.next,
            chain: self.chain,
        }
    }

    pub(super) fn offset(&self) -> u64 {
        self.offset
    }

    pub(super) fn is_at(&self, end: &End) -> bool {
        self.offset == end.offset && self.last() == end.sequence && self.chain == end.chain
    }

    pub(super) fn last(&self) -> Sequence {
        Sequence(self.next.0 - 1)
    }

    pub(super) fn enter(&mut self, link: &Link) {
        self.segment = Some(link.header.id);
        self.owner = link.header.owner;
        self.offset = BATCHES_START;
        self.proven = self.now();
        self.tail.clear();
        self.keeps_tail = link.end.is_none();
        self.entered_at = self.next;
    }

    /// Like [`Self::enter`], of a segment in which the log may be made to end.
    pub(super) fn enter_as_last(&mut self, link: &Link) {
        self.enter(link);
        self.keeps_tail = true;
    }

    /// Reads as far as batches are valid and in order; whether that is the end of the file.
    pub(super) fn read_while_valid<F: DiskFile>(
        &mut self,
        reader: &mut Reader<F>,
        report: &mut Report,
        mut visit: impl FnMut(&Record<'_>),
    ) -> Result<bool, Error> {
        let end = reader.size();
        let mut visit = |record: &Record<'_>| {
            visit(record);
            Ok::<(), Error>(())
        };
        while self.offset < end {
            if self.step(reader, end, report, &mut visit)?.is_some() {
                return Ok(false);
            }
        }
        Ok(true)
    }

    pub(super) fn damaged(&self, fault: Fault) -> Error {
        // Without any segment: the one that is missed is the first.
        let segment = self.segment.unwrap_or(SegmentId {
            epoch: Epoch(1),
            number: 0,
        });
        damaged(segment, self.offset, self.next, fault)
    }

    /// Reads a segment up to the end that its successor recorded.
    pub(super) fn read_sealed<F, E, V>(
        &mut self,
        reader: &mut Reader<F>,
        end: &End,
        report: &mut Report,
        visit: &mut V,
    ) -> Result<(), E>
    where
        F: DiskFile,
        E: From<Error>,
        V: FnMut(&Record<'_>) -> Result<(), E>,
    {
        while self.offset < end.offset {
            let stop = self.step(reader, end.offset, report, visit)?;
            if let Some((_, fault)) = stop {
                return Err(self.damaged(fault).into());
            }
        }
        if !self.is_at(end) {
            return Err(self.damaged(Fault::End).into());
        }
        Ok(())
    }

    /// Reads the last segment up to the end of the log.
    pub(super) fn read_last<F, E, V>(
        &mut self,
        reader: &mut Reader<F>,
        report: &mut Report,
        visit: &mut V,
    ) -> Result<(), E>
    where
        F: DiskFile,
        E: From<Error>,
        V: FnMut(&Record<'_>) -> Result<(), E>,
    {
        let size = reader.size();
        loop {
            let stop = loop {
                if let Some((stop, _)) = self.step(reader, size, report, visit)? {
                    break stop;
                }
            };
            let beyond = reader.beyond(self.offset)?;
            match decide(stop, &beyond) {
                Decision::EndOfLog => return Ok(()),
                Decision::EndOfLogCut => {
                    report.cut = Some(Cut {
                        file: reader.name().clone(),
                        offset: self.offset,
                        bytes_not_zero: beyond.bytes_not_zero,
                    });
                    return Ok(());
                }
                Decision::Damaged(fault) => {
                    // An open log may have gone on since we read this place. What lies beyond was
                    // written after this place was synced, so a second look settles it.
                    reader.forget();
                    if self.step(reader, size, report, visit)?.is_some() {
                        return Err(self.damaged(fault).into());
                    }
                }
            }
        }
    }

    /// Reads one batch if it is the next in order; otherwise says why it is not.
    fn step<F, E, V>(
        &mut self,
        reader: &mut Reader<F>,
        end: u64,
        report: &mut Report,
        visit: &mut V,
    ) -> Result<Option<(Stop, Fault)>, E>
    where
        F: DiskFile,
        E: From<Error>,
        V: FnMut(&Record<'_>) -> Result<(), E>,
    {
        let batch = match reader.batch(self.offset, end)? {
            Ok(batch) => batch,
            Err(fault) => {
                let blank = reader.is_blank(self.offset)?;
                return Ok(Some((
                    if blank { Stop::Blank } else { Stop::Invalid },
                    fault,
                )));
            }
        };
        let out_of_order = if batch.header.first_sequence != self.next {
            Some(Fault::Sequence)
        } else if batch.header.chain != self.chain {
            Some(Fault::Chain)
        } else if batch
            .records()
            .next()
            .is_some_and(|record| record.epoch < self.epoch)
        {
            Some(Fault::Epoch)
        } else {
            None
        };
        if let Some(fault) = out_of_order {
            return Ok(Some((Stop::OutOfOrder(fault), fault)));
        }
        for record in batch.records() {
            report.count(&record);
            self.epoch = record.epoch;
            if record.sequence > self.skip {
                visit(&record)?;
            }
        }
        self.proven = self.now();
        self.tail.clear();
        if self.keeps_tail && batch.header.class != BatchClass::Mark {
            self.tail.extend_from_slice(batch.bytes());
        }
        self.offset += batch.padded_size();
        self.next = batch.sequence_end();
        self.chain = batch.chain_end;
        report.bytes += batch.padded_size();
        Ok(None)
    }

    pub(super) fn segment_report(&self, id: SegmentId) -> SegmentReport {
        SegmentReport {
            segment: id,
            first_sequence: self.entered_at,
            records: self.next.0 - self.entered_at.0,
            end_offset: self.offset,
        }
    }

    pub(super) fn recovered(
        self,
        recovery: Recovery,
        segments: Vec<(SegmentId, Sequence)>,
    ) -> Recovered {
        let proven = self.proven;
        let predecessor = self.segment.map(|id| Predecessor {
            id,
            owner: self.owner,
            end_offset: proven.offset,
            end_sequence: Sequence(proven.next.0 - 1),
        });
        Recovered {
            identity: recovery.identity,
            epoch: recovery.epoch,
            found: recovery.found,
            predecessor,
            chain: proven.chain,
            chain_end: self.chain,
            tail: self.tail,
            segments,
            untrimmed: recovery.untrimmed,
            report: recovery.report,
        }
    }
}
