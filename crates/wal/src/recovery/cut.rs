//! Going on without what is damaged: the last resort of an operator, never of a program.
//!
//! A cut changes no file. It is a take-over whose segment names an earlier end: as any history, it
//! ends where its successor says. What lies behind is in no history from then on, so a later
//! clean-up removes it; whoever cuts keeps copies before.

use std::collections::BTreeMap;

use ostraca_io::{Disk, FileName};
use ostraca_types::{Sequence, Timestamp};

use crate::place::Identity;
use crate::reader::Reader;
use crate::segment::{BATCHES_START, Judgement, SegmentId};
use crate::{Claim, Error, Fault, Log, Options, Owner};

use super::{Found, Link, Recovered, Recovery, Start, Walk, used, walk_back};
use crate::verify::Report;

/// What a cut of a damaged log keeps and loses. [`plan_cut`] makes it.
#[derive(Debug)]
pub struct CutPlan {
    recovered: Recovered,
    time: Timestamp,
    /// Why the log cannot be opened as it is.
    pub damage: Error,
    /// The last record that is kept; 0: none.
    pub keeps: Sequence,
    /// The highest record that is known of, by the epoch page or a valid batch behind the cut: what is
    /// between is lost, and there may have been more.
    pub known: Sequence,
    /// Files that hold something behind the cut. It is in no history any more, and goes when the log
    /// is opened next.
    pub files: Vec<FileName>,
}

/// Looks for the longest history that can be read; `None` if the log is not damaged. `durable` is
/// the hint of the epoch page. Blocks; changes nothing.
///
/// Any error but damage is returned: a file of a newer program or of another store is no damage, and
/// a cut would not get it out of the way. Nor would it a segment under another's name, which is
/// returned as [`Error::Damaged`]: it has to be moved out of the directory, or back.
pub fn plan_cut<D: Disk>(
    disk: &D,
    identity: Identity,
    durable: Option<Sequence>,
) -> Result<Option<CutPlan>, Error> {
    let whole = Recovery::read(disk, identity)
        .and_then(|recovery| recovery.at_least(durable).replay(disk, |_| Ok(())));
    let damage = match whole {
        Ok(_) => return Ok(None),
        Err(damage @ Error::Damaged { .. }) => damage,
        Err(err) => return Err(err),
    };
    let found = Found::list(disk)?;
    let ends = recorded_ends(disk, &identity, &found)?;
    let mut best = Prefix::nothing(&identity);
    let mut known = durable.unwrap_or(Sequence(0));
    for &id in found.segments.iter().rev() {
        let Some(links) = history_of(disk, &identity, &found, id)? else {
            continue;
        };
        let prefix = Prefix::read(disk, &identity, links, &ends)?;
        // Of two that are as long, the later leader's.
        if best.is_none_or_shorter(&prefix) {
            best = prefix;
        }
    }
    for &id in &found.segments {
        let mut reader = Reader::open(disk, &identity, id)?;
        known = known.max(reader.last_valid()?);
    }
    let keeps = best.walk.last();
    let files = best.files_behind(disk, &identity, &found)?;
    let time = best.time;
    Ok(Some(CutPlan {
        recovered: best.recovered(identity, found),
        time,
        damage,
        keeps,
        known: known.max(keeps),
        files,
    }))
}

impl CutPlan {
    /// Makes the cut: takes the log over at its end, under a claim that was raised before the plan
    /// was made. On return the log can be opened again, and what was lost is lost. Blocks.
    pub fn carry_out<D: Disk>(
        mut self,
        disk: D,
        claim: Claim,
        owner: Owner,
        options: Options,
    ) -> Result<(), Error> {
        self.recovered.epoch = Some(claim.epoch());
        let mut log = Log::take_over(disk, claim, owner, options, self.recovered, self.time)?;
        log.mark()
    }
}

/// Where segments end by the word of their latest successor that counts. What lies behind is the tail,
/// which the successor has too, or a fenced leader's and was never acknowledged: the two cannot be
/// told apart without the successor, so neither is read.
fn recorded_ends<D: Disk>(
    disk: &D,
    identity: &Identity,
    found: &Found,
) -> Result<BTreeMap<SegmentId, (SegmentId, u64)>, Error> {
    let mut ends = BTreeMap::new();
    for &id in &found.segments {
        let mut reader = Reader::open(disk, identity, id)?;
        let judgement = reader.headers(identity)?.judge(true);
        let (Judgement::Use(header) | Judgement::UseAndReport(header)) = judgement else {
            continue;
        };
        if let Some(before) = header.predecessor
            && reader.counts()?
        {
            ends.insert(before.id, (id, before.end_offset));
        }
    }
    Ok(ends)
}

/// The segments that `last` comes from, oldest first; `None` if one of them cannot be used.
fn history_of<D: Disk>(
    disk: &D,
    identity: &Identity,
    found: &Found,
    last: SegmentId,
) -> Result<Option<Vec<Link>>, Error> {
    let reader = Reader::open(disk, identity, last)?;
    let mut report = Report::default();
    let header = match used(
        last,
        reader.headers(identity)?,
        true,
        Sequence(0),
        &mut report,
    ) {
        Ok(Some(header)) => header,
        // A file that is not where it belongs would be in the way of the next opening, too.
        Err(
            err @ Error::Damaged {
                fault: Fault::Misplaced(_),
                ..
            },
        ) => return Err(err),
        Ok(None) | Err(Error::Damaged { .. }) => return Ok(None),
        Err(err) => return Err(err),
    };
    if reader.size() < BATCHES_START {
        // Nothing can go on from it.
        return Ok(None);
    }
    let last = (header, reader.size());
    match walk_back(disk, identity, found, Start::Beginning, last, &mut report) {
        Ok(links) => Ok(Some(links)),
        Err(Error::Damaged { .. }) => Ok(None),
        Err(err) => Err(err),
    }
}

/// What can be read of one history.
struct Prefix {
    walk: Walk,
    report: Report,
    links: Vec<Link>,
    /// Segments with their last sequence, as far as it was read.
    segments: Vec<(SegmentId, Sequence)>,
    time: Timestamp,
}

impl Prefix {
    fn nothing(identity: &Identity) -> Self {
        Self {
            walk: Walk::after_nothing(identity),
            report: Report::default(),
            links: Vec::new(),
            segments: Vec::new(),
            time: Timestamp(0),
        }
    }

    /// Reads what is valid, and nothing behind the end that the latest successor recorded.
    fn read<D: Disk>(
        disk: &D,
        identity: &Identity,
        links: Vec<Link>,
        ends: &BTreeMap<SegmentId, (SegmentId, u64)>,
    ) -> Result<Self, Error> {
        let mut prefix = Self::nothing(identity);
        for (position, link) in links.iter().enumerate() {
            let at = &mut prefix.walk;
            at.enter_as_last(link);
            let mut reader = Reader::open(disk, identity, link.header.id)?;
            if let Some(end) = link.end {
                reader = reader.up_to(end.offset);
            }
            let next = links.get(position + 1).map(|next| next.header.id);
            let overtaken = ends.get(&link.header.id);
            let overtaken = overtaken.filter(|(successor, _)| Some(*successor) > next);
            if let Some((_, end)) = overtaken {
                reader = reader.up_to(*end);
            }
            let time = &mut prefix.time;
            let whole = at.read_while_valid(&mut reader, &mut prefix.report, |record| {
                *time = (*time).max(record.time);
            })?;
            prefix.segments.push((link.header.id, at.last()));
            let ends_as_recorded = link.end.is_none_or(|end| at.is_at(&end));
            if !(whole && ends_as_recorded) || overtaken.is_some() {
                break;
            }
        }
        prefix.links = links;
        Ok(prefix)
    }

    fn is_none_or_shorter(&self, other: &Self) -> bool {
        self.links.is_empty() || self.walk.last() < other.walk.last()
    }

    /// The segment of the cut, if bytes follow there, and all that are not part of what is kept.
    fn files_behind<D: Disk>(
        &self,
        disk: &D,
        identity: &Identity,
        found: &Found,
    ) -> Result<Vec<FileName>, Error> {
        let mut files = Vec::new();
        for &id in &found.segments {
            let kept = self.segments.iter().any(|(kept, _)| *kept == id);
            let is_last = self.segments.last().is_some_and(|(last, _)| *last == id);
            let mut reader = Reader::open(disk, identity, id)?;
            let behind = is_last && reader.has_bytes_from(self.walk.offset())?;
            if !kept || behind {
                files.push(id.file_name());
            }
        }
        Ok(files)
    }

    fn recovered(self, identity: Identity, mut found: Found) -> Recovered {
        let history: Vec<_> = self.segments.iter().map(|(id, _)| *id).collect();
        found.strays = found.segments.iter().copied().collect();
        found.strays.retain(|id| !history.contains(id));
        let recovery = Recovery {
            identity,
            start: Start::Beginning,
            epoch: None,
            durable: None,
            covered: Vec::new(),
            links: Vec::new(),
            untrimmed: Vec::new(),
            found,
            report: self.report,
        };
        let segments = self.segments;
        self.walk.recovered(recovery, segments)
    }
}
