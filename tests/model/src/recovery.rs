//! Recovery: what the files say the history is. Reading changes nothing.

use std::fmt;

use crate::process::View;
use crate::state::{Batch, CheckpointId, Header, Kind, Position, Segment, SegmentId, State};
use crate::variants::{Config, Variant};

/// Why recovery refuses.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum Damage {
    /// A segment counts, or is a predecessor, and has no valid header.
    Header,
    /// A segment that was listed, or a predecessor that no checkpoint covers, is not there.
    SegmentMissing,
    /// The predecessor's owner is not the recorded one.
    Owner,
    /// A predecessor does not reach its recorded end, or has another history there.
    Short,
    /// A valid batch beyond one that is not.
    Hole,
    /// A valid batch that is not the next one.
    Order,
    /// The manifest or the run that the log names is not there.
    CheckpointMissing,
    /// The log ends before the durable hint.
    BelowHint,
}

impl fmt::Display for Damage {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Damage::Header => "no valid header",
            Damage::SegmentMissing => "a segment is missing",
            Damage::Owner => "another owner's segment under the predecessor's name",
            Damage::Short => "a predecessor ends before its recorded end",
            Damage::Hole => "a valid batch beyond a hole",
            Damage::Order => "a valid batch out of order",
            Damage::CheckpointMissing => "a manifest or run is missing",
            Damage::BelowHint => "the log ends before the durable hint",
        })
    }
}

/// What recovery found.
#[derive(Clone, Debug, Default)]
pub struct Recovered {
    /// The position before the first record that was found, and after each record.
    pub history: Vec<Position>,
    /// Where a take-over continues.
    pub view: View,
}

impl Recovered {
    /// Whether the history up to `position` is part of what was found; the empty one always is.
    pub fn contains(&self, position: Position) -> bool {
        position == Position::default() || self.history.contains(&position)
    }

    /// The end of the history.
    pub fn at(&self) -> Position {
        self.history.last().copied().unwrap_or_default()
    }
}

/// Reads the log, the hint, and that the checkpoint's files are there: what a process that starts
/// now and is not disturbed would say.
pub fn recover(config: &Config, state: &State) -> Result<Recovered, Damage> {
    let listed: Vec<SegmentId> = list(state);
    let recovered = read_log(config, state, &listed)?;
    if let Some(id) = recovered.view.checkpoint {
        open_index(state, id)?;
    }
    Ok(recovered)
}

/// The names in the log's directory, in order.
pub fn list(state: &State) -> Vec<SegmentId> {
    let present = state.segments.iter().filter(|segment| segment.entry.cache);
    present.map(|segment| segment.id).collect()
}

/// Opens the files that the log's newest checkpoint record names.
pub fn open_index(state: &State, id: CheckpointId) -> Result<(), Damage> {
    let found = state.checkpoints.iter().find(|files| files.id == id);
    match found {
        Some(files) if files.is_whole() => Ok(()),
        _ => Err(Damage::CheckpointMissing),
    }
}

/// Reads those segments of the log that were `listed`; some may be gone since.
pub fn read_log(config: &Config, state: &State, listed: &[SegmentId]) -> Result<Recovered, Damage> {
    let mut reader = Reader {
        config,
        at: Position::default(),
        epoch: 0,
        recovered: Recovered::default(),
    };
    if config.is(Variant::CutsInEpochOrder) {
        reader.read_in_epoch_order(state, listed)?;
    } else if let Some(last) = last_that_counts(config, state, listed)? {
        reader.read_predecessors(state, last)?;
        reader.read_last(last)?;
    }
    let recovered = reader.recovered;
    if recovered.at().sequence < state.hint.now {
        return Err(Damage::BelowHint);
    }
    Ok(recovered)
}

/// From the highest name down, until one counts.
fn last_that_counts<'a>(
    config: &Config,
    state: &'a State,
    listed: &[SegmentId],
) -> Result<Option<&'a Segment>, Damage> {
    for id in listed.iter().rev() {
        let Some(segment) = state.named(id.epoch, id.number) else {
            return Err(Damage::SegmentMissing);
        };
        if counts(config, segment) {
            return Ok(Some(segment));
        }
    }
    Ok(None)
}

/// A segment counts only once it holds a valid batch that is not flagged re-appended.
pub(crate) fn counts(config: &Config, segment: &Segment) -> bool {
    let mut batches = segment.slots.iter().filter_map(|slot| slot.cache);
    if config.is(Variant::ReappendedCounts) {
        return batches.next().is_some();
    }
    if config.is(Variant::HeaderCounts) || config.is(Variant::HeaderCountsTailInItsSync) {
        return segment.header.cache.is_some();
    }
    batches.any(|batch| !batch.reappended)
}

struct Reader<'a> {
    config: &'a Config,
    /// After the record that was read last.
    at: Position,
    /// Of the record that was read last.
    epoch: u8,
    recovered: Recovered,
}

impl Reader<'_> {
    fn start(&mut self, at: Position) {
        self.at = at;
        self.recovered.history.push(at);
    }

    /// Reads one valid batch, or says that it is not the next one.
    fn replay(&mut self, batch: Batch) -> Result<(), Damage> {
        if batch.sequence != self.at.sequence + 1 || batch.epoch < self.epoch {
            return Err(Damage::Order);
        }
        self.epoch = batch.epoch;
        for _ in 0..batch.count {
            self.at = self.at.after(Batch { count: 1, ..batch });
            self.recovered.history.push(self.at);
        }
        if let Kind::Checkpoint(id) = batch.kind {
            self.recovered.view.checkpoint = Some(id);
        }
        Ok(())
    }

    /// Walks back from `last`, then reads the predecessors, oldest first, each to its recorded end.
    fn read_predecessors(&mut self, state: &State, last: &Segment) -> Result<(), Damage> {
        let mut sealed: Vec<(&Segment, Header)> = Vec::new();
        let mut header = last.header.cache.ok_or(Damage::Header)?;
        while let Some(id) = header.predecessor {
            let Some(segment) = state.named(id.epoch, id.number) else {
                break;
            };
            if segment.id != id {
                return Err(Damage::Owner);
            }
            sealed.push((segment, header));
            header = segment.header.cache.ok_or(Damage::Header)?;
        }
        self.start(header.end_at);
        let starts_at = header.predecessor.map(|_| header.end_at.sequence);
        for (segment, header) in sealed.into_iter().rev() {
            self.read_sealed(segment, header)?;
        }
        self.read_batches_of(last)?;
        // A missing predecessor is fine only if a checkpoint covers all of it. A checkpoint covers
        // what precedes its record, and the records that were found start behind the missing one.
        if starts_at.is_some() && self.recovered.view.checkpoint.is_none() {
            return Err(Damage::SegmentMissing);
        }
        Ok(())
    }

    fn read_sealed(&mut self, segment: &Segment, next: Header) -> Result<(), Damage> {
        if self.config.is(Variant::EndNotRecorded) {
            for batch in segment.slots.iter().map_while(|slot| slot.cache) {
                self.replay(batch)?;
            }
            return Ok(());
        }
        for slot in &segment.slots[..usize::from(next.end)] {
            self.replay(slot.cache.ok_or(Damage::Short)?)?;
        }
        if self.at == next.end_at {
            Ok(())
        } else {
            Err(Damage::Short)
        }
    }

    /// Replays the last segment up to its first invalid batch.
    fn read_batches_of(&mut self, last: &Segment) -> Result<(), Damage> {
        let view = &mut self.recovered.view;
        view.last = Some(last.id);
        view.end_at = self.at;
        let mut end = 0;
        for batch in last.slots.iter().map_while(|slot| slot.cache) {
            if self.config.is(Variant::EndNotRecorded) && self.is_known(batch) {
                end += 1;
                continue;
            }
            let before = self.at;
            self.replay(batch)?;
            let view = &mut self.recovered.view;
            (view.end, view.end_at, view.tail) = (end, before, Some(batch));
            end += 1;
        }
        Ok(())
    }

    /// Whether this is the copy of a tail that was read already: met twice if no end is recorded.
    fn is_known(&self, batch: Batch) -> bool {
        let history = &self.recovered.history;
        let before = history.iter().find(|at| at.sequence + 1 == batch.sequence);
        batch.reappended && before.is_some_and(|at| history.contains(&at.after(batch)))
    }

    /// A valid batch beyond the end of the last segment convicts what is before it.
    fn read_last(&mut self, last: &Segment) -> Result<(), Damage> {
        let valid = last.slots.iter().take_while(|slot| slot.cache.is_some());
        let end = valid.count();
        if last.slots[end..].iter().any(|slot| slot.cache.is_some()) {
            return Err(Damage::Hole);
        }
        Ok(())
    }

    /// The broken variant: all segments that count, in the order of their names, each cut where any
    /// header says so.
    fn read_in_epoch_order(&mut self, state: &State, listed: &[SegmentId]) -> Result<(), Damage> {
        let found = listed
            .iter()
            .filter_map(|id| state.named(id.epoch, id.number));
        let counting: Vec<&Segment> = found.filter(|one| counts(self.config, one)).collect();
        self.start(Position::default());
        for segment in &counting {
            let ends = counting.iter().filter_map(|other| {
                let header = other.header.cache?;
                (header.predecessor == Some(segment.id)).then_some(header.end)
            });
            let end = ends.min();
            if segment.header.cache.is_none() {
                return Err(Damage::Header);
            }
            match end {
                Some(end) => {
                    for slot in &segment.slots[..usize::from(end)] {
                        self.replay(slot.cache.ok_or(Damage::Short)?)?;
                    }
                }
                None => {
                    self.read_batches_of(segment)?;
                    self.read_last(segment)?;
                }
            }
        }
        Ok(())
    }
}
