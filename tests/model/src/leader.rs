//! What a leader does: append and answer, roll, checkpoint, and give disk back.

use crate::process::{Phase, Process, View};
use crate::protocol::{Turn, answer, small};
use crate::state::{Checkpoint, CheckpointId, Kept, Kind, Position, Segment, SegmentId, State};
use crate::variants::Variant;

impl Turn<'_> {
    pub(crate) fn begin_append(&mut self) {
        if self.me().appends == 0 {
            return;
        }
        if self.config.is(Variant::CheckBeforeAppend) {
            if self.cell_is_own() {
                self.step("loads the cell", Phase::Write, |state, index| {
                    let me = &mut state.processes[index];
                    me.appends -= 1;
                    me.pending = Some(Kind::Data);
                });
            }
            return;
        }
        self.put_batch(Kind::Data);
    }

    pub(crate) fn write(&mut self) {
        match self.me().pending {
            Some(kind) => self.put_batch(kind),
            // A take-over without a header, in a broken variant.
            None => self.put_batch(Kind::NoOp),
        }
    }

    fn put_batch(&mut self, kind: Kind) {
        let batch = self.pending_batch(kind);
        let next = if self.config.is(Variant::HintBeforeSync) && self.config.hints {
            Phase::StoreHint
        } else {
            Phase::SyncBatch
        };
        let counted = self.me().phase == Phase::Serve && kind == Kind::Data;
        let what = match kind {
            Kind::NoOp => "writes its no-op",
            Kind::Data => "writes a batch",
            Kind::Checkpoint(_) => "writes the checkpoint's record",
        };
        self.step(what, next, |state, index| {
            let me = &mut state.processes[index];
            me.appends -= u8::from(counted);
            me.pending = Some(kind);
            let slot = usize::from(me.slot);
            me.slot += 1;
            if let Some(id) = me.segment {
                state.segment_mut(id).slots[slot].write(Some(batch));
            }
        });
    }

    pub(crate) fn sync_batch(&mut self) {
        let next = if self.config.is(Variant::HintBeforeCheck) && self.config.hints {
            Phase::StoreHint
        } else {
            Phase::Check
        };
        self.sync_segment("syncs the batch", next);
    }

    /// The full fence, the load of the cell, and the answer.
    pub(crate) fn check(&mut self) {
        let Some(kind) = self.me().pending else {
            return;
        };
        let checked_before =
            self.config.is(Variant::CheckBeforeAppend) && matches!(kind, Kind::Data);
        if !checked_before && !self.cell_is_own() {
            self.fenced(kind);
            return;
        }
        let after = self.me().at.after(self.pending_batch(kind));
        let next = self.after_answer(kind);
        self.step("passes the fence, and answers", next, |state, index| {
            answer(state, index, after);
            let me = &mut state.processes[index];
            me.at = after;
            me.pending = None;
            me.serves = true;
            if let Kind::Checkpoint(id) = kind {
                me.obsolete = me.obsolete.or(me.checkpoint);
                me.checkpoint = Some(id);
                me.covered = me.at.sequence - 1;
            }
        });
    }

    fn after_answer(&self, kind: Kind) -> Phase {
        let hint_is_due = self.config.hints
            && !self.config.is(Variant::HintBeforeCheck)
            && !self.config.is(Variant::HintBeforeSync);
        if hint_is_due {
            Phase::StoreHint
        } else if self.config.is(Variant::RecordBeforeFiles) && matches!(kind, Kind::Checkpoint(_))
        {
            Phase::SyncFiles
        } else {
            Phase::Serve
        }
    }

    /// Nothing is answered, and nothing is removed: the successor may have adopted the record.
    fn fenced(&mut self, kind: Kind) {
        let removes = self.config.is(Variant::FencedCheckpointRemoves);
        self.step("is fenced, and stops", Phase::Stopped, |state, index| {
            if let Kind::Checkpoint(id) = kind
                && removes
                && let Some(files) = state.checkpoint_mut(id)
            {
                files.unlink();
            }
            state.processes[index] = Process::stopped();
        });
    }

    pub(crate) fn store_hint(&mut self) {
        let at: Position = match self.me().pending {
            Some(kind) => self.me().at.after(self.pending_batch(kind)),
            None => self.me().at,
        };
        let next = if self.me().pending.is_none() {
            Phase::Serve
        } else if self.config.is(Variant::HintBeforeSync) {
            Phase::SyncBatch
        } else {
            Phase::Check
        };
        self.step("stores the durable hint", next, |state, _| {
            state.hint.store(at.sequence);
        });
    }

    /// The old segment is synced, as always between two batches. Then the steps of a take-over,
    /// from the name to the header; the next batch makes the segment count.
    pub(crate) fn begin_roll(&mut self) {
        let me = self.me();
        if me.rolls == 0 || me.slot == 0 || me.appends + me.checkpoints == 0 {
            return;
        }
        let view = View {
            last: me.segment,
            end: me.slot,
            end_at: me.at,
            tail: None,
            checkpoint: None,
        };
        self.step("decides to roll", Phase::Create, |state, index| {
            let me = &mut state.processes[index];
            me.rolls -= 1;
            me.view = view;
        });
    }

    pub(crate) fn begin_checkpoint(&mut self) {
        let me = self.me();
        if me.checkpoints == 0 {
            return;
        }
        let maker = small(self.index);
        let made = self.state.checkpoints.iter();
        let made = made.filter(|files| files.id.maker == maker).count();
        let id = CheckpointId {
            epoch: me.epoch,
            number: small(made),
            maker,
        };
        let taken = self.state.checkpoints.iter().any(|files| {
            files.has_name() && (files.id.epoch, files.id.number) == (id.epoch, id.number)
        });
        if taken {
            self.stop("finds a run's name taken, and stops");
            return;
        }
        self.step("writes a run", Phase::WriteManifest, |state, index| {
            let mut files = Checkpoint {
                id,
                run_entry: Kept::default(),
                run: Kept::default(),
                manifest_entry: Kept::default(),
                manifest: Kept::default(),
            };
            files.run_entry.write(true);
            files.run.write(true);
            state.checkpoints.push(files);
            state.checkpoints.sort_by_key(|files| files.id);
            let me = &mut state.processes[index];
            me.checkpoints -= 1;
            me.pending = Some(Kind::Checkpoint(id));
        });
    }

    pub(crate) fn write_manifest(&mut self) {
        let Some(id) = self.checkpoint_at_work() else {
            return;
        };
        let next = if self.config.is(Variant::RecordBeforeFiles) {
            Phase::Write
        } else {
            Phase::SyncFiles
        };
        let replaces = self.config.is(Variant::ManifestRenamed);
        self.step("writes a manifest", next, |state, _| {
            for files in &mut state.checkpoints {
                if files.id == id {
                    files.manifest_entry.write(true);
                    files.manifest.write(true);
                } else if replaces {
                    files.manifest_entry.write(false);
                }
            }
        });
    }

    /// Two syncs in fact. A power loss between them leaves nothing that one before both does not.
    pub(crate) fn sync_files(&mut self) {
        let Some(id) = self.checkpoint_at_work() else {
            return;
        };
        let next = if self.config.is(Variant::NoIndexDirectorySync) {
            Phase::Write
        } else {
            Phase::SyncIndex
        };
        self.sync_step("syncs run and manifest", next, |state, _, ok| {
            if let Some(files) = state.checkpoint_mut(id) {
                files.run.sync(ok);
                files.manifest.sync(ok);
            }
        });
    }

    pub(crate) fn sync_index(&mut self) {
        let next = if self.me().pending.is_some() {
            Phase::Write
        } else {
            Phase::Serve
        };
        let unlinks_early = self.config.is(Variant::UnlinkBeforeRecord);
        self.sync_directory_step("syncs the index' directory", next, |state, index, ok| {
            for files in &mut state.checkpoints {
                files.run_entry.sync(ok);
                files.manifest_entry.sync(ok);
            }
            let me = &mut state.processes[index];
            if unlinks_early {
                me.obsolete = me.checkpoint;
                me.covered = me.at.sequence;
            }
        });
    }

    fn checkpoint_at_work(&self) -> Option<CheckpointId> {
        match self.me().pending {
            Some(Kind::Checkpoint(id)) => Some(id),
            // The record came first, in a broken variant.
            _ => self.me().checkpoint,
        }
    }

    /// What a leader may do at any time once its no-op passed the fence, and however late.
    pub(crate) fn background(&mut self) {
        let me = self.me();
        let serves = me.serves && me.phase == Phase::Serve;
        let early = self.appends_no_op();
        if self.config.trims && (serves || (early && self.config.is(Variant::TrimBeforeNoOp))) {
            self.trim();
        }
        let cleans = serves || (early && self.config.is(Variant::CleanUpBeforeNoOp));
        if self.config.cleans_up && cleans {
            self.clean_up();
        }
        // Not so in a broken variant: the record is not written yet, but what it covers is unlinked.
        let covers = me.covered > 0;
        if covers && matches!(me.phase, Phase::Serve | Phase::Write) {
            self.purge();
        }
    }

    /// Truncates the predecessor at the end that the own header records.
    fn trim(&mut self) {
        let me = self.me();
        if me.trimmed || me.slot == 0 {
            return;
        }
        let own = me.segment.and_then(|id| self.segment(id));
        let Some(header) = own.and_then(|segment| segment.header.cache) else {
            return;
        };
        let Some(id) = header.predecessor else {
            return;
        };
        let is_there = self.state.named(id.epoch, id.number).is_some();
        if is_there {
            let phase = self.me().phase;
            self.step("trims its predecessor", phase, |state, index| {
                state.segment_mut(id).trim(header.end);
                state.processes[index].trimmed = true;
            });
        }
    }

    /// Unlinks what lower epochs left outside the history, one file at a time. A name is never used
    /// again, so it does not matter when the directory was listed.
    fn clean_up(&mut self) {
        let me = self.me();
        let history = self.history();
        let higher_too = self.config.is(Variant::CleanUpOfHigherEpochs);
        let by_header = self.config.is(Variant::NamesWithoutEpoch);
        let is_lower = |epoch: u8| epoch < me.epoch || (higher_too && epoch > me.epoch);
        let segment = self.state.segments.iter().find(|segment| {
            let not_ours = if by_header && segment.header.cache.is_none() {
                segment.id.maker != small(self.index)
            } else {
                is_lower(segment.id.epoch)
            };
            segment.entry.cache && not_ours && !history.contains(&segment.id)
        });
        let files = self.state.checkpoints.iter().find(|files| {
            files.has_name() && is_lower(files.id.epoch) && me.checkpoint != Some(files.id)
        });
        let (segment, files) = (segment.map(|one| one.id), files.map(|one| one.id));
        let phase = me.phase;
        if let Some(id) = segment {
            self.step("unlinks a leftover segment", phase, |state, _| {
                state.segment_mut(id).entry.write(false);
            });
        }
        if let Some(id) = files {
            self.step("unlinks a leftover run and manifest", phase, |state, _| {
                unlink_files(state, id);
            });
        }
    }

    /// Unlinks what the checkpoint in effect no longer needs: segments from the oldest up, and the
    /// checkpoint before.
    fn purge(&mut self) {
        let me = self.me();
        let history = self.history();
        let oldest = history.windows(2).rev().find_map(|pair| {
            let next = self.segment(pair[0])?.header.cache?;
            let is_covered = next.end_at.sequence <= me.covered;
            let is_there = self.segment(pair[1])?.entry.cache;
            (is_covered && is_there).then_some(pair[1])
        });
        let (obsolete, phase) = (me.obsolete, me.phase);
        if let Some(id) = oldest {
            self.step("unlinks an old segment", phase, |state, _| {
                state.segment_mut(id).entry.write(false);
            });
        }
        if let Some(id) = obsolete {
            self.step("unlinks the old run and manifest", phase, |state, index| {
                unlink_files(state, id);
                state.processes[index].obsolete = None;
            });
        }
    }

    fn segment(&self, id: SegmentId) -> Option<&Segment> {
        self.state.segments.iter().find(|segment| segment.id == id)
    }

    /// The own segment and its predecessors, newest first: what the process knows without looking.
    fn history(&self) -> Vec<SegmentId> {
        let mut history = Vec::new();
        let mut next = self.me().segment;
        while let Some(id) = next {
            history.push(id);
            let segment = self.segment(id);
            next = segment
                .and_then(|segment| segment.header.cache)
                .and_then(|header| header.predecessor);
        }
        history
    }
}

fn unlink_files(state: &mut State, id: CheckpointId) {
    if let Some(files) = state.checkpoint_mut(id) {
        files.unlink();
    }
}
