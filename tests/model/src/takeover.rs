//! Taking over, from the list of names to the durable header. A roll shares its last steps.

use crate::process::{Phase, Process};
use crate::protocol::{Turn, small};
use crate::recovery::{self, Damage};
use crate::state::{Batch, Header, Hint, Kind, Segment, SegmentId, State, Violation};
use crate::variants::Variant;

/// How far the first repair goes beyond the highest name: farther than candidates may have raised
/// the cell without making a name. The second goes twice as far. In the real thing the distance is
/// large and random, so that no two repairs meet.
const REPAIR_GAP: u8 = 10;

impl Turn<'_> {
    pub(crate) fn names(&mut self) {
        let read_first = self.config.is(Variant::ReadBeforeRaise);
        let next = if read_first && !self.me().read_already {
            Phase::ListLog
        } else {
            Phase::Raise
        };
        self.step("lists the names", next, |state, index| {
            let names = recovery::list(state);
            let floor = names.last().map_or(0, |id| id.epoch);
            state.processes[index].floor = floor;
        });
    }

    /// A compare-exchange that fails is tried again, so that it is one step with the load before.
    pub(crate) fn raise(&mut self) {
        let next = if self.config.is(Variant::CellNotSynced) {
            self.after_raise()
        } else {
            Phase::SyncCell
        };
        let repairs_by_one = self.config.is(Variant::RepairedByOne)
            || self.config.is(Variant::TakenNameNotReadAgain);
        let repairs = self.config.bad_cells - self.state.bad_cells;
        let gap = if repairs_by_one {
            1
        } else {
            REPAIR_GAP * repairs
        };
        let renames = self.config.is(Variant::CellRenamed);
        self.step("raises the cell", next, |state, index| {
            let before = state.cell.cache;
            let floor = state.processes[index].floor;
            let epoch = match before {
                Some(epoch) => epoch.max(floor) + 1,
                None => floor + gap,
            };
            state.cell.write(Some(epoch));
            state.processes[index].epoch = epoch;
            if renames {
                freeze_others(state, index, before);
            }
        });
    }

    pub(crate) fn sync_cell(&mut self) {
        self.sync_step("syncs the cell", self.after_raise(), |state, _, ok| {
            state.cell.sync(ok);
            if ok {
                state.hint = Hint::durable(state.hint.now);
            }
        });
    }

    fn after_raise(&self) -> Phase {
        if self.me().read_already || self.config.is(Variant::ReadBeforeRaise) {
            Phase::Confirm
        } else {
            Phase::ListLog
        }
    }

    pub(crate) fn list_log(&mut self) {
        let next = if self.config.reads_in_pieces {
            Phase::FindLast
        } else {
            Phase::ReadLog
        };
        self.step("lists the log", next, |state, index| {
            state.processes[index].listed = recovery::list(state);
        });
    }

    /// What does not count now is passed over, whatever becomes of it before the log is read.
    pub(crate) fn find_last(&mut self) {
        let Some(id) = self.me().listed.last() else {
            self.step("finds the log empty", Phase::ReadLog, |_, _| {});
            return;
        };
        match self.state.named(id.epoch, id.number) {
            Some(segment) if recovery::counts(self.config, segment) => {
                self.step("finds the last segment", Phase::ReadLog, |_, _| {});
            }
            Some(_) => self.step("passes over a segment", Phase::FindLast, |state, index| {
                state.processes[index].listed.pop();
            }),
            None => self.step("misses a segment", Phase::Suspect, |state, index| {
                let me = &mut state.processes[index];
                me.suspicion = Some(Damage::SegmentMissing);
            }),
        }
    }

    pub(crate) fn read_log(&mut self) {
        let read = recovery::read_log(self.config, self.state, &self.me().listed);
        let next = match &read {
            Ok(read) if read.view.checkpoint.is_some() => Phase::OpenIndex,
            Ok(_) => self.after_read(),
            Err(_) => Phase::Suspect,
        };
        self.step("reads the log", next, |state, index| {
            let me = &mut state.processes[index];
            me.listed = Vec::new();
            match read {
                Ok(read) => {
                    me.view = read.view;
                    me.checkpoint = read.view.checkpoint;
                    me.at = read.at();
                }
                Err(damage) => me.suspicion = Some(damage),
            }
        });
    }

    pub(crate) fn open_index(&mut self) {
        let Some(id) = self.me().checkpoint else {
            return;
        };
        match recovery::open_index(self.state, id) {
            Ok(()) => self.step("opens manifest and run", self.after_read(), |_, _| {}),
            Err(damage) => self.step("misses a file", Phase::Suspect, |state, index| {
                state.processes[index].suspicion = Some(damage);
            }),
        }
    }

    fn after_read(&self) -> Phase {
        if self.config.is(Variant::ReadBeforeRaise) {
            Phase::Raise
        } else {
            Phase::Confirm
        }
    }

    /// A candidate that was overtaken can miss files that its successor unlinked.
    pub(crate) fn suspect(&mut self) {
        if self.cell_is_own() {
            self.step("reports damage", Phase::Stopped, |state, index| {
                let damage = state.processes[index].suspicion;
                state.violation = damage.map(Violation::ReportedDamaged);
            });
        } else {
            self.stop("finds itself overtaken, and stops");
        }
    }

    pub(crate) fn confirm(&mut self) {
        if !self.cell_is_own() {
            self.stop("finds itself overtaken, and stops");
            return;
        }
        let view = self.me().view;
        if self.config.is(Variant::WritesIntoPredecessor) && view.last.is_some() {
            let next = Phase::SyncPredecessor;
            self.step("takes the predecessor's file", next, |state, index| {
                let me = &mut state.processes[index];
                me.segment = view.last;
                me.slot = view.end + u8::from(view.tail.is_some());
            });
            return;
        }
        let leaves_tail =
            self.config.is(Variant::TailNotDurable) || self.config.is(Variant::TailSyncedInPlace);
        self.step(
            "sees that the cell is its own",
            Phase::Create,
            |state, index| {
                let me = &mut state.processes[index];
                if let Some(tail) = view.tail
                    && leaves_tail
                {
                    me.view.end += 1;
                    me.view.end_at = view.end_at.after(tail);
                    me.view.tail = None;
                }
            },
        );
    }

    /// Exclusively. Two processes can have the same epoch only after a repair that did not go far
    /// enough; then the name decides.
    pub(crate) fn create(&mut self) {
        let me = self.me();
        let id = SegmentId {
            epoch: me.epoch,
            number: match me.segment {
                Some(segment) => segment.number + 1,
                None => 0,
            },
            maker: small(self.index),
        };
        if self.state.named(id.epoch, id.number).is_none() {
            let next = if self.config.is(Variant::NoLogDirectorySync) {
                self.after_directory()
            } else {
                Phase::SyncDirectory
            };
            self.step("makes a segment", next, |state, index| {
                state.segments.push(Segment::prepared(id));
                state.segments.sort_by_key(|segment| segment.id);
                let me = &mut state.processes[index];
                me.segment = Some(id);
                me.slot = 0;
                me.trimmed = false;
            });
        } else if me.serves {
            self.stop("finds the name taken, and stops");
        } else {
            let reads_again = !self.config.is(Variant::TakenNameNotReadAgain);
            self.step("finds the name taken", Phase::Names, |state, index| {
                let me = &mut state.processes[index];
                if reads_again {
                    *me = Process {
                        phase: Phase::Names,
                        ..Process::waiting(me.appends, me.rolls, me.checkpoints)
                    };
                } else {
                    me.read_already = true;
                }
            });
        }
    }

    pub(crate) fn sync_directory(&mut self) {
        let next = self.after_directory();
        self.sync_directory_step("syncs the log's directory", next, |state, _, ok| {
            for segment in &mut state.segments {
                segment.entry.sync(ok);
            }
        });
    }

    fn after_directory(&self) -> Phase {
        let me = self.me();
        if self.config.is(Variant::TailSyncedInPlace) && me.view.last.is_some() && !me.serves {
            Phase::SyncPredecessor
        } else if me.view.tail.is_some() {
            Phase::WriteTail
        } else {
            self.before_header()
        }
    }

    /// Not part of the protocol.
    pub(crate) fn sync_predecessor(&mut self) {
        let into_it = self.config.is(Variant::WritesIntoPredecessor);
        let next = if into_it {
            Phase::Write
        } else {
            Phase::WriteHeader
        };
        self.sync_step("syncs the predecessor's file", next, |state, index, ok| {
            if let Some(id) = state.processes[index].view.last {
                state.segment_mut(id).sync(ok);
            }
            if into_it {
                state.processes[index].pending = Some(Kind::NoOp);
            }
        });
    }

    pub(crate) fn write_tail(&mut self) {
        let next = if self.config.is(Variant::TailInHeadersSync)
            || self.config.is(Variant::HeaderCountsTailInItsSync)
        {
            Phase::WriteHeader
        } else {
            Phase::SyncTail
        };
        self.step("writes the tail again", next, |state, index| {
            let me = &mut state.processes[index];
            let (tail, id) = (me.view.tail, me.segment);
            me.slot = 1;
            if let (Some(tail), Some(id)) = (tail, id) {
                state.segment_mut(id).slots[0].write(Some(Batch {
                    reappended: true,
                    ..tail
                }));
            }
        });
    }

    /// What follows when the tail is durable.
    pub(crate) fn before_header(&self) -> Phase {
        if self.config.is(Variant::HeaderAfterAnswer) && !self.me().serves {
            Phase::Write
        } else {
            Phase::WriteHeader
        }
    }

    pub(crate) fn write_header(&mut self) {
        let next = if self.config.is(Variant::HeaderInNoOpsSync) {
            self.after_header()
        } else {
            Phase::SyncHeader
        };
        self.step("writes its header", next, |state, index| {
            let me = &mut state.processes[index];
            let view = std::mem::take(&mut me.view);
            if !me.serves {
                me.pending = Some(Kind::NoOp);
            }
            if let Some(id) = me.segment {
                state.segment_mut(id).header.write(Some(Header {
                    predecessor: view.last,
                    end: view.end,
                    end_at: view.end_at,
                }));
            }
        });
    }

    /// What follows when the header is durable.
    pub(crate) fn after_header(&self) -> Phase {
        if self.me().serves {
            Phase::Serve
        } else {
            Phase::Write
        }
    }
}

/// The broken variant: the old cell's file shows `before` to all that have it mapped.
fn freeze_others(state: &mut State, index: usize, before: Option<u8>) {
    for (other, process) in state.processes.iter_mut().enumerate() {
        if other == index {
            process.frozen = None;
        } else if !matches!(process.phase, Phase::Waiting | Phase::Stopped) {
            process.frozen = process.frozen.or(before);
        }
    }
}
