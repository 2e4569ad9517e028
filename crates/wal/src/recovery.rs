//! Reading a log back: which segments it is made of, their records, and where it ends.
//!
//! Nothing here changes a file. The decisions are the tables "Recovery" of FORMAT.md: one is
//! [`Headers::judge`](crate::segment::Headers::judge), the other [`decide`].

use std::collections::BTreeSet;
use std::fmt;

use ostraca_io::{Disk, FileName};
use ostraca_types::{Epoch, Sequence};

use crate::error::Action;
use crate::frame::Record;
use crate::place::Identity;
use crate::reader::{Beyond, Reader};
use crate::segment::{Headers, Judgement, NamedFile, Predecessor, SegmentHeader, SegmentId};
use crate::verify::Report;
use crate::{Error, Fault};

mod cut;
mod replay;

pub use cut::{CutPlan, plan_cut};
use replay::Walk;

/// From where a log is read.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Start {
    /// From its first record.
    Beginning,
    /// From the record after this one, which a checkpoint covers. Older segments may be gone.
    After(Sequence),
    /// From the oldest segment that is there: for a look at a log whose checkpoint is not known.
    Oldest,
}

/// The segments that make up a log, found and judged, their records not yet read.
#[derive(Debug)]
pub struct Recovery {
    identity: Identity,
    start: Start,
    /// The epoch of the claim under which it is read; `None` for a look.
    epoch: Option<Epoch>,
    /// Everything up to it was durable once, as the epoch page says.
    durable: Option<Sequence>,
    /// Segments that a checkpoint covers, with their last sequence, oldest first.
    covered: Vec<(SegmentId, Sequence)>,
    /// The segments to read, oldest first.
    links: Vec<Link>,
    untrimmed: Vec<(SegmentId, u64)>,
    found: Found,
    report: Report,
}

/// One segment of the history.
#[derive(Debug, Clone, Copy)]
struct Link {
    header: SegmentHeader,
    /// Where its successor says that it ends; `None` for the last one.
    end: Option<End>,
    /// Of the file, in bytes.
    size: u64,
}

impl Link {
    fn untrimmed(&self) -> Option<(SegmentId, u64)> {
        let end = self.end.filter(|end| end.offset < self.size)?;
        Some((self.header.id, end.offset))
    }
}

#[derive(Debug, Clone, Copy)]
struct End {
    offset: u64,
    sequence: Sequence,
    chain: u32,
}

/// What the directory holds.
#[derive(Debug, Default)]
pub(crate) struct Found {
    segments: BTreeSet<SegmentId>,
    /// The highest epoch in any name.
    pub(crate) epoch_max: Epoch,
    pub(crate) temporaries: Vec<FileName>,
    /// Files that keep room for a take-over.
    pub(crate) ballasts: Vec<FileName>,
    /// Segments outside the history.
    pub(crate) strays: Vec<SegmentId>,
}

/// A log that was read to its end. [`crate::Log::take_over`] goes on from it. Its `Debug` shows no
/// record.
pub struct Recovered {
    pub(crate) identity: Identity,
    /// The epoch of the claim under which it was read; `None` for a look.
    pub(crate) epoch: Option<Epoch>,
    pub(crate) found: Found,
    /// Where the next segment goes on: before the tail.
    pub(crate) predecessor: Option<Predecessor>,
    /// Chain value there.
    pub(crate) chain: u32,
    /// Chain value at the end.
    pub(crate) chain_end: u32,
    /// The last batch if it has records, as nothing proves it: header and records. Or nothing.
    pub(crate) tail: Vec<u8>,
    /// Segments of the history with their last sequence, oldest first.
    pub(crate) segments: Vec<(SegmentId, Sequence)>,
    /// Segments whose file goes on behind the end that a successor recorded, with that end.
    pub(crate) untrimmed: Vec<(SegmentId, u64)>,
    report: Report,
}

impl fmt::Debug for Recovered {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Recovered")
            .field("epoch", &self.epoch)
            .field("predecessor", &self.predecessor)
            .field("tail_size", &self.tail.len())
            .field("report", &self.report)
            .finish_non_exhaustive()
    }
}

impl Recovered {
    /// The last record of the log; 0 if it has none.
    #[must_use]
    pub fn last_sequence(&self) -> Sequence {
        self.report.last_sequence
    }

    /// What was found.
    #[must_use]
    pub fn report(&self) -> &Report {
        &self.report
    }

    pub(crate) fn into_report(self) -> Report {
        self.report
    }
}

impl Recovery {
    /// Finds the segments of the log and reads their headers; the log must be there from its
    /// first record. Blocks; changes nothing.
    pub fn read<D: Disk>(disk: &D, identity: Identity) -> Result<Self, Error> {
        Self::read_from(disk, identity, Start::Beginning)
    }

    /// Like [`Self::read`], of a log whose older segments may have been purged.
    pub fn read_from<D: Disk>(disk: &D, identity: Identity, start: Start) -> Result<Self, Error> {
        let mut found = Found::list(disk)?;
        let mut report = Report::default();
        let last = find_last(disk, &identity, &found, &mut report)?;
        let mut links = match last {
            Some(last) => walk_back(disk, &identity, &found, start, last, &mut report)?,
            None => Vec::new(),
        };
        let untrimmed = links.iter().filter_map(Link::untrimmed).collect();
        let history: BTreeSet<_> = links.iter().map(|link| link.header.id).collect();
        found.strays = found.segments.difference(&history).copied().collect();
        check_strays(disk, &identity, &found.strays, &mut report)?;
        report.passed_over.clone_from(&found.strays);
        let covered = take_covered(&mut links, start);
        Ok(Self {
            identity,
            start,
            epoch: None,
            durable: None,
            covered,
            links,
            untrimmed,
            found,
            report,
        })
    }

    /// Read under a claim, of a log that was durable up to there.
    pub(crate) fn under(mut self, epoch: Epoch, durable: Option<Sequence>) -> Self {
        self.epoch = Some(epoch);
        self.durable = durable;
        self
    }

    /// For a look at a log of which the epoch page said, before this reading began, that everything
    /// up to `durable` was durable.
    #[must_use]
    pub fn at_least(mut self, durable: Option<Sequence>) -> Self {
        self.durable = durable;
        self
    }

    /// Reads every record after the start, in order, and finds the end of the log. `visit` sees
    /// only records of verified batches; its error ends the reading. Memory is bounded by a few
    /// batches, whatever the log's size. Blocks; changes nothing.
    pub fn replay<D, E, V>(mut self, disk: &D, mut visit: V) -> Result<Recovered, E>
    where
        D: Disk,
        E: From<Error>,
        V: FnMut(&Record<'_>) -> Result<(), E>,
    {
        let mut at = Walk::start(&self);
        let mut segments = std::mem::take(&mut self.covered);
        let mut window = Vec::new();
        for link in std::mem::take(&mut self.links) {
            at.enter(&link);
            let reader = Reader::open(disk, &self.identity, link.header.id)?;
            let end = link.end.map_or(u64::MAX, |end| end.offset);
            let mut reader = reader.with_window(window).up_to(end);
            match link.end {
                Some(end) => at.read_sealed(&mut reader, &end, &mut self.report, &mut visit)?,
                None => at.read_last(&mut reader, &mut self.report, &mut visit)?,
            }
            window = reader.into_window();
            segments.push((link.header.id, at.last()));
            self.report.segments.push(at.segment_report(link.header.id));
        }
        self.report.last_sequence = at.last();
        self.check_not_behind(&at)?;
        Ok(at.recovered(self, segments))
    }

    /// A log that ends early has lost what one copy cannot show: its last batch, or its newest
    /// segments whole.
    fn check_not_behind(&self, at: &Walk) -> Result<(), Error> {
        let covered = match self.start {
            Start::After(covered) => Some(covered),
            Start::Beginning | Start::Oldest => None,
        };
        match covered.max(self.durable) {
            Some(durable) if at.last() < durable => Err(at.damaged(Fault::Behind(durable))),
            _ => Ok(()),
        }
    }
}

impl Found {
    pub(crate) fn list<D: Disk>(disk: &D) -> Result<Self, Error> {
        let mut found = Self::default();
        for name in disk.list().map_err(Action::List.of_directory())? {
            let id = match NamedFile::of(&name) {
                Some(NamedFile::Segment(id)) => {
                    found.segments.insert(id);
                    id
                }
                Some(NamedFile::Temporary(id)) => {
                    found.temporaries.push(name);
                    id
                }
                Some(NamedFile::Ballast(id)) => {
                    found.ballasts.push(name);
                    id
                }
                None => continue,
            };
            found.epoch_max = found.epoch_max.max(id.epoch);
        }
        Ok(found)
    }
}

/// The highest segment that counts.
fn find_last<D: Disk>(
    disk: &D,
    identity: &Identity,
    found: &Found,
    report: &mut Report,
) -> Result<Option<(SegmentHeader, u64)>, Error> {
    for &id in found.segments.iter().rev() {
        let Some(mut reader) = Reader::open_if_there(disk, identity, id)? else {
            // Removed since it was listed: no part of the history, or that history is over.
            continue;
        };
        let headers = reader.headers(identity)?;
        let counts = reader.counts()?;
        if let Some(header) = used(id, headers, counts, Sequence(0), report)? {
            check_size(&reader, &header, header.segment_size)?;
            return Ok(Some((header, reader.size())));
        }
    }
    Ok(None)
}

/// A file that is no part of the history may still say that it is another store's, or that a newer
/// program was here.
fn check_strays<D: Disk>(
    disk: &D,
    identity: &Identity,
    strays: &[SegmentId],
    report: &mut Report,
) -> Result<(), Error> {
    for &id in strays {
        if let Some(reader) = Reader::open_if_there(disk, identity, id)? {
            let headers = reader.headers(identity)?;
            used(id, headers, false, Sequence(0), report)?;
        }
    }
    Ok(())
}

/// Applies the table of headers; `None`: pass over.
fn used(
    id: SegmentId,
    headers: Headers,
    counts: bool,
    sequence: Sequence,
    report: &mut Report,
) -> Result<Option<SegmentHeader>, Error> {
    match headers.judge(counts) {
        Judgement::Use(header) => Ok(Some(header)),
        Judgement::UseAndReport(header) => {
            report.header_copies_lost.push(id);
            Ok(Some(header))
        }
        Judgement::PassOver => Ok(None),
        Judgement::Damaged(fault) => Err(damaged(id, 0, sequence, fault)),
        Judgement::Foreign(store, shard) => Err(Error::Foreign {
            file: id.file_name(),
            store,
            shard,
        }),
        Judgement::Unknown(version) => Err(Error::UnknownFormat {
            file: id.file_name(),
            version,
        }),
    }
}

fn check_size<F: ostraca_io::DiskFile>(
    reader: &Reader<F>,
    header: &SegmentHeader,
    size: u64,
) -> Result<(), Error> {
    if reader.size() >= size {
        return Ok(());
    }
    let sequence = header.end_sequence_before().next();
    Err(damaged(header.id, reader.size(), sequence, Fault::FileSize))
}

/// The history that ends with `last`, oldest first.
fn walk_back<D: Disk>(
    disk: &D,
    identity: &Identity,
    found: &Found,
    start: Start,
    (last, size): (SegmentHeader, u64),
    report: &mut Report,
) -> Result<Vec<Link>, Error> {
    let mut links = vec![Link {
        header: last,
        end: None,
        size,
    }];
    let mut successor = last;
    // Ends, because a valid header names a predecessor with a lower name only.
    while let Some(end) = successor.predecessor {
        let reader = match found.segments.contains(&end.id) {
            true => Reader::open_if_there(disk, identity, end.id)?,
            false => None,
        };
        let Some(reader) = reader else {
            let needed = match start {
                Start::Beginning => true,
                Start::After(covered) => end.end_sequence > covered,
                Start::Oldest => false,
            };
            if needed {
                return Err(damaged(end.id, 0, end.end_sequence, Fault::Missing));
            }
            break;
        };
        let headers = reader.headers(identity)?;
        let Some(header) = used(end.id, headers, true, end.end_sequence, report)? else {
            return Err(damaged(end.id, 0, end.end_sequence, Fault::SegmentHeader));
        };
        // What is behind the end may have been given back.
        check_size(&reader, &header, end.end_offset)?;
        if header.owner != end.owner {
            return Err(damaged(end.id, 0, end.end_sequence, Fault::Owner));
        }
        let end = End {
            offset: end.end_offset,
            sequence: end.end_sequence,
            chain: successor.chain,
        };
        links.push(Link {
            header,
            end: Some(end),
            size: reader.size(),
        });
        successor = header;
    }
    links.reverse();
    Ok(links)
}

/// Takes off the segments of which a checkpoint covers every record.
fn take_covered(links: &mut Vec<Link>, start: Start) -> Vec<(SegmentId, Sequence)> {
    let Start::After(covered) = start else {
        return Vec::new();
    };
    let is_covered = |link: &&Link| link.end.is_some_and(|end| end.sequence <= covered);
    let count = links.iter().take_while(is_covered).count();
    let ends = links.drain(..count);
    ends.filter_map(|link| Some((link.header.id, link.end?.sequence)))
        .collect()
}

fn damaged(segment: SegmentId, offset: u64, sequence: Sequence, fault: Fault) -> Error {
    Error::Damaged {
        file: segment.file_name(),
        offset,
        sequence,
        fault,
    }
}

/// Why the scan of the last segment stopped.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Stop {
    /// Zeros, or the end of the file.
    Blank,
    /// A valid batch that is not the next in order.
    OutOfOrder(Fault),
    /// Anything else.
    Invalid,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Decision {
    EndOfLog,
    EndOfLogCut,
    Damaged(Fault),
}

/// The table of FORMAT.md: what the end of a scan means, by what lies beyond it.
pub(crate) fn decide(stop: Stop, beyond: &Beyond) -> Decision {
    match (stop, beyond) {
        (Stop::OutOfOrder(fault), _) => Decision::Damaged(fault),
        (
            _,
            Beyond {
                batch: Some(offset),
                ..
            },
        ) => Decision::Damaged(Fault::LaterBatch(*offset)),
        (
            _,
            Beyond {
                out_of_reach: Some(offset),
                ..
            },
        ) => Decision::Damaged(Fault::LaterBytes(*offset)),
        (
            Stop::Blank,
            Beyond {
                bytes_not_zero: 0, ..
            },
        ) => Decision::EndOfLog,
        (Stop::Blank | Stop::Invalid, _) => Decision::EndOfLogCut,
    }
}
