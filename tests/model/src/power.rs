//! A power loss: each thing that was written and not synced is kept or lost on its own.

use crate::process::{Phase, Process};
use crate::state::{Checkpoint, Hint, Kept, Segment, State};

/// Every state that a power loss in `state` can leave. Nothing that ran runs on; processes that
/// had not started may start.
pub fn outcomes(state: &State) -> Vec<State> {
    let dirty = Settle { kept: 0, met: 0 }.run(state).1;
    assert!(
        dirty < 20,
        "a million outcomes: the configuration is too large"
    );
    let mut outcomes = Vec::new();
    for kept in 0..1_u32 << dirty {
        let (settled, _) = Settle { kept, met: 0 }.run(state);
        for sequence in 0..16 {
            if state.hint.possible & (1 << sequence) != 0 {
                let mut outcome = settled.clone();
                outcome.hint = Hint::durable(sequence);
                outcomes.push(outcome);
            }
        }
    }
    outcomes
}

/// Whether anything runs after a power loss. If not, looking at the outcomes is enough.
pub fn leaves_processes(state: &State) -> bool {
    let mut processes = state.processes.iter();
    processes.any(|process| process.phase == Phase::Waiting)
}

/// Goes over all that is dirty; bit n of `kept` says whether the n-th was written back.
struct Settle {
    kept: u32,
    met: u32,
}

impl Settle {
    fn run(mut self, before: &State) -> (State, u32) {
        let mut state = before.clone();
        self.settle(&mut state.cell);
        for segment in &mut state.segments {
            self.settle_segment(segment);
        }
        for files in &mut state.checkpoints {
            self.settle_files(files);
        }
        state.segments.retain(|segment| segment.entry.cache);
        state.checkpoints.retain(Checkpoint::has_name);
        for process in &mut state.processes {
            if process.phase != Phase::Waiting {
                *process = Process::stopped();
            }
        }
        state.power_losses -= 1;
        (state, self.met)
    }

    fn settle<T: Copy + Eq>(&mut self, thing: &mut Kept<T>) {
        let mut written_back = false;
        if thing.dirty {
            written_back = self.kept & (1 << self.met) != 0;
            self.met += 1;
        }
        thing.settle(written_back);
    }

    fn settle_segment(&mut self, segment: &mut Segment) {
        self.settle(&mut segment.entry);
        self.settle(&mut segment.header);
        for slot in &mut segment.slots {
            self.settle(slot);
        }
    }

    fn settle_files(&mut self, files: &mut Checkpoint) {
        self.settle(&mut files.run_entry);
        self.settle(&mut files.run);
        self.settle(&mut files.manifest_entry);
        self.settle(&mut files.manifest);
    }
}
