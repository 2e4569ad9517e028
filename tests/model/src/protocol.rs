//! The steps: what a process does at one go, and what the world does to it.
//!
//! Every access to something shared (the cell, a directory, a file) is a step of its own. Between
//! two steps of a process anything may happen, for any time.

use crate::power;
use crate::process::{Phase, Process};
use crate::state::{Batch, Hint, Kept, Kind, Position, Segment, SegmentId, State, Violation};
use crate::variants::{Config, Variant};

/// What a step is called in a trace.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Label {
    /// `None`: nobody's.
    process: Option<usize>,
    what: &'static str,
}

impl Label {
    /// Some of what was not synced is lost, and everything that ran ends.
    pub const POWER_LOSS: Label = Label {
        process: None,
        what: "the power fails",
    };
    const BAD_CELL: Label = Label {
        process: None,
        what: "the cell becomes unreadable",
    };

    /// Without the process.
    pub fn what(self) -> &'static str {
        self.what
    }

    /// A line of a trace.
    pub fn describe(self, before: &State, after: &State) -> String {
        let what = self.what;
        let Some(index) = self.process else {
            let segments = after.segments.iter();
            let segments: Vec<String> = segments.map(describe_segment).collect();
            return format!("{what}; the log is {}", segments.join(", "));
        };
        let name = ["A", "B", "C", "D"][index];
        let cell = match after.cell.cache {
            Some(epoch) => epoch.to_string(),
            None => "unreadable".to_owned(),
        };
        // A process that stopped has forgotten its epoch.
        let epoch = before.processes[index]
            .epoch
            .max(after.processes[index].epoch);
        format!("{name} (epoch {epoch}, cell {cell}) {what}")
    }
}

fn describe_segment(segment: &Segment) -> String {
    let SegmentId { epoch, number, .. } = segment.id;
    let batches = segment.slots.iter();
    let batches = batches.filter(|slot| slot.cache.is_some()).count();
    let name = if segment.entry.cache { "" } else { "unlinked " };
    let header = match segment.header.cache {
        Some(_) => "a header",
        None => "no header",
    };
    format!("{name}seg-{epoch}-{number} ({header}, batches: {batches})")
}

/// All steps that are possible in `state`, with the states they lead to.
pub fn steps(config: &Config, state: &State) -> Vec<(Label, State)> {
    let mut steps = Vec::new();
    if state.power_losses > 0 {
        let outcomes = power::outcomes(state).into_iter();
        steps.extend(outcomes.map(|outcome| (Label::POWER_LOSS, outcome)));
    }
    if state.bad_cells > 0 && state.cell.cache.is_some() {
        let mut next = state.clone();
        next.bad_cells -= 1;
        next.cell = Kept::durable(None);
        next.hint = Hint::durable(0);
        steps.push((Label::BAD_CELL, next));
    }
    for index in 0..state.processes.len() {
        Turn {
            config,
            state,
            index,
            steps: &mut steps,
        }
        .take();
    }
    steps
}

/// One process' choices in one state.
pub(crate) struct Turn<'a> {
    pub(crate) config: &'a Config,
    pub(crate) state: &'a State,
    pub(crate) index: usize,
    steps: &'a mut Vec<(Label, State)>,
}

impl<'a> Turn<'a> {
    /// The process as it is before the step.
    pub(crate) fn me(&self) -> &'a Process {
        &self.state.processes[self.index]
    }
}

impl Turn<'_> {
    fn take(&mut self) {
        let phase = self.me().phase;
        if self.config.kills && !matches!(phase, Phase::Waiting | Phase::Stopped) {
            self.stop("is killed");
        }
        self.read();
        match phase {
            Phase::Stopped => {}
            Phase::Waiting => {
                let others = &self.state.processes[..self.index];
                if others.iter().all(|other| other.phase != Phase::Waiting) {
                    self.names();
                }
            }
            Phase::Names => self.names(),
            Phase::Raise => self.raise(),
            Phase::SyncCell => self.sync_cell(),
            Phase::ListLog => self.list_log(),
            Phase::FindLast => self.find_last(),
            Phase::ReadLog => self.read_log(),
            Phase::OpenIndex => self.open_index(),
            Phase::Suspect => self.suspect(),
            Phase::Confirm => self.confirm(),
            Phase::Create => self.create(),
            Phase::SyncDirectory => self.sync_directory(),
            Phase::SyncPredecessor => self.sync_predecessor(),
            Phase::WriteTail => self.write_tail(),
            Phase::SyncTail => self.sync_segment("syncs the tail", self.before_header()),
            Phase::WriteHeader => self.write_header(),
            Phase::SyncHeader => self.sync_segment("syncs its header", self.after_header()),
            Phase::Write => {
                self.background();
                self.write();
            }
            Phase::SyncBatch => self.sync_batch(),
            Phase::Check => self.check(),
            Phase::StoreHint => self.store_hint(),
            Phase::Serve => {
                self.background();
                self.begin_append();
                self.begin_roll();
                self.begin_checkpoint();
            }
            Phase::WriteManifest => self.write_manifest(),
            Phase::SyncFiles => self.sync_files(),
            Phase::SyncIndex => self.sync_index(),
        }
    }

    /// A load of the cell shows the own epoch.
    pub(crate) fn cell_is_own(&self) -> bool {
        let me = self.me();
        let loaded = me.frozen.or(self.state.cell.cache);
        loaded == Some(me.epoch)
    }

    /// A step that changes shared things and the process, which goes on at `phase`.
    pub(crate) fn step(
        &mut self,
        what: &'static str,
        phase: Phase,
        change: impl FnOnce(&mut State, usize),
    ) {
        let mut next = self.state.clone();
        next.processes[self.index].phase = phase;
        change(&mut next, self.index);
        let process = Some(self.index);
        self.steps.push((Label { process, what }, next));
    }

    /// A sync. If it fails, the process stops: nobody tries again (d03).
    pub(crate) fn sync_step(
        &mut self,
        what: &'static str,
        phase: Phase,
        sync: impl Fn(&mut State, usize, bool),
    ) {
        self.sync_or_fail(what, phase, false, sync);
    }

    fn sync_or_fail(
        &mut self,
        what: &'static str,
        phase: Phase,
        will_fail: bool,
        sync: impl Fn(&mut State, usize, bool),
    ) {
        if !will_fail {
            self.step(what, phase, |state, index| sync(state, index, true));
        }
        if will_fail || self.state.sync_failures > 0 {
            self.step(
                "fails to sync, and stops",
                Phase::Stopped,
                |state, index| {
                    sync(state, index, false);
                    state.sync_failures -= u8::from(!will_fail);
                    state.processes[index] = Process::stopped();
                },
            );
        }
    }

    /// The sync of a directory, which processes share. Who had it open before a sync of it failed
    /// is told by its own next sync; who opens it afterwards is not.
    pub(crate) fn sync_directory_step(
        &mut self,
        what: &'static str,
        phase: Phase,
        sync: impl Fn(&mut State, usize, bool),
    ) {
        let unsynced_name = self.me().phase;
        let is_told = !self.config.is(Variant::DirectoryOpenedLate);
        let will_fail = self.me().sync_will_fail;
        self.sync_or_fail(what, phase, will_fail, |state, index, ok| {
            sync(state, index, ok);
            if !ok && is_told {
                for process in &mut state.processes {
                    process.sync_will_fail |= process.has_unsynced_name(unsynced_name);
                }
            }
        });
    }

    /// The process does nothing more.
    pub(crate) fn stop(&mut self, what: &'static str) {
        self.step(what, Phase::Stopped, |state, index| {
            state.processes[index] = Process::stopped();
        });
    }

    /// Makes the own segment's file durable.
    pub(crate) fn sync_segment(&mut self, what: &'static str, phase: Phase) {
        self.sync_step(what, phase, |state, index, ok| {
            if let Some(id) = state.processes[index].segment {
                state.segment_mut(id).sync(ok);
            }
        });
    }

    /// f04: read the applied rows, load the cell, answer if it is still the own. That the load
    /// shows the own epoch means that it did so when the rows were read, so one step is enough.
    fn read(&mut self) {
        let early = self.config.is(Variant::ReadsBeforeNoOp) && self.appends_no_op();
        let unchecked = self.config.is(Variant::ReadsWithoutCheck);
        if (self.me().serves || early) && (self.cell_is_own() || unchecked) {
            let phase = self.me().phase;
            self.step("answers a read", phase, |state, index| {
                let at = state.processes[index].at;
                if at.sequence < state.answered.sequence {
                    state.violation = Some(Violation::StaleRead);
                } else {
                    answer(state, index, at);
                }
            });
        }
    }

    /// The header is durable, and the no-op is next.
    pub(crate) fn appends_no_op(&self) -> bool {
        self.me().phase == Phase::Write && self.me().pending == Some(Kind::NoOp)
    }

    /// What the process is about to append.
    pub(crate) fn pending_batch(&self, kind: Kind) -> Batch {
        let me = self.me();
        Batch {
            sequence: me.at.sequence + 1,
            count: match kind {
                Kind::Data => self.config.batch_records,
                Kind::NoOp | Kind::Checkpoint(_) => 1,
            },
            epoch: me.epoch,
            writer: small(self.index),
            kind,
            reappended: false,
        }
    }
}

/// Something that depends on the history up to `at` is answered.
pub(crate) fn answer(state: &mut State, index: usize, at: Position) {
    let epoch = state.processes[index].epoch;
    let leadership = (epoch, small(index));
    let served = state.served.unwrap_or_default();
    let is_fenced = served.0 > epoch || (served.0 == epoch && served != leadership);
    // An answered history that is shorter is part of the longer one, as both are part of what
    // recovery yields: that is checked in every state.
    let is_other = at.sequence == state.answered.sequence && at != state.answered;
    if is_fenced {
        state.violation = Some(Violation::AnsweredWhenFenced);
    } else if at.sequence < state.answered.sequence || is_other {
        state.violation = Some(Violation::Lost);
    }
    state.answered = at;
    state.served = Some(leadership);
}

/// A process' number where it is stored.
pub(crate) fn small(index: usize) -> u8 {
    u8::try_from(index).expect("a few processes")
}
