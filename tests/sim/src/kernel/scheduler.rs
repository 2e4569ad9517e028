//! Who runs next.

use std::cmp::Reverse;
use std::sync::Arc;

use generator::{Generator, Gn};

use super::{Event, Kernel, Nanos, TaskId};

/// Words of a task's stack. Recovery and a batch are the deepest; unoptimised they need most.
const STACK_WORDS: usize = 1 << 16;

/// Has the stacks of all tasks and lets them run, one at a time.
pub(crate) struct Scheduler {
    kernel: Kernel,
    stacks: Vec<Option<Generator<'static, (), ()>>>,
    pub(crate) events: u64,
}

impl Scheduler {
    pub(crate) fn new(kernel: Kernel) -> Self {
        Self {
            kernel,
            stacks: Vec::new(),
            events: 0,
        }
    }

    /// Lets the machine be awake until then.
    pub(crate) fn run(&mut self, until: Nanos) {
        loop {
            // It may sleep on the way.
            let slept = self.kernel.state.lock().slept;
            if !self.step(until + slept) {
                return;
            }
        }
    }

    /// The next event, if it is not after `until`; `false` where there is none.
    pub(crate) fn step(&mut self, until: Nanos) -> bool {
        let event = {
            let mut state = self.kernel.state.lock();
            match state.events.peek() {
                Some(Reverse(next)) if next.at <= until => {}
                _ => return false,
            }
            let Some(Reverse(next)) = state.events.pop() else {
                return false;
            };
            state.now = state.now.max(next.at);
            next.event
        };
        self.events += 1;
        match event {
            Event::Run(what) => what(&self.kernel),
            Event::Wake { task, wait } => self.resume(task, wait),
        }
        true
    }

    fn resume(&mut self, task: TaskId, wait: u64) {
        let body = {
            let mut state = self.kernel.state.lock();
            let now = state.now;
            let waiting = &state.tasks[task];
            if waiting.done || waiting.wait != wait {
                return;
            }
            let frozen_until = waiting.process.frozen_until();
            if frozen_until > now && !waiting.process.is_dead() {
                state.schedule(frozen_until, Event::Wake { task, wait });
                return;
            }
            state.running = Some(task);
            let starting = state.starting.iter().position(|(id, _)| *id == task);
            starting.map(|at| state.starting.swap_remove(at).1)
        };
        if let Some(body) = body {
            if self.stacks.len() <= task {
                self.stacks.resize_with(task + 1, || None);
            }
            let stack = Gn::new_opt(STACK_WORDS, body);
            self.stacks[task] = Some(stack);
        }
        if let Some(stack) = &mut self.stacks[task] {
            stack.resume();
            if stack.is_done() {
                self.stacks[task] = None;
                self.kernel.state.lock().tasks[task].done = true;
            }
        }
        self.kernel.state.lock().running = None;
    }

    /// Kills whoever still runs, so that every stack comes to its end.
    pub(crate) fn finish(&mut self) {
        let processes: Vec<_> = {
            let state = self.kernel.state.lock();
            let alive = state.tasks.iter().filter(|task| !task.done);
            alive.map(|task| Arc::clone(&task.process)).collect()
        };
        for process in processes {
            self.kernel.kill(&process);
        }
        for task in 0..self.stacks.len() {
            let wait = self.kernel.state.lock().tasks[task].wait;
            self.resume(task, wait);
            assert!(self.stacks[task].is_none(), "a task outlived its process");
        }
        // What still waits holds on to the world, which holds on to this.
        let (events, processes) = {
            let mut state = self.kernel.state.lock();
            let tasks = state.tasks.iter();
            let processes: Vec<_> = tasks.map(|task| Arc::clone(&task.process)).collect();
            (std::mem::take(&mut state.events), processes)
        };
        drop(events);
        for process in processes {
            drop(process.ambush.lock().take());
        }
    }
}
