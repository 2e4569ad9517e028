//! Time, tasks and processes: one thread, one order of events, one source of chance.
//!
//! A task is a stack of its own that runs until it waits for something; then the next event has its
//! turn. Every wait is a place where the task's process can be killed or stopped, and every call to a
//! disk or a page is a wait, so whatever can happen between two of them does, by the seed.

mod scheduler;

use std::cmp::Reverse;
use std::collections::{BTreeMap, BinaryHeap};
use std::fmt;
use std::io;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Duration;

use ostraca_io::{BootId, BootTime, Clock, Entropy, SeededEntropy, Spawn};
use ostraca_types::Timestamp;
use parking_lot::Mutex;

pub(crate) use scheduler::Scheduler;

/// Nanoseconds since the start of the run.
pub(crate) type Nanos = u64;

pub(crate) const MICRO: Nanos = 1_000;
pub(crate) const MILLI: Nanos = 1_000_000;
pub(crate) const SECOND: Nanos = 1_000_000_000;
pub(crate) const HOUR: Nanos = 3_600 * SECOND;

/// The wall clock at the start of the run.
const WALL_START: u64 = 1_700_000_000_000;

/// Numbers by a seed: SplitMix64, as [`SeededEntropy`] has it.
#[derive(Debug)]
pub(crate) struct Chance(SeededEntropy);

impl Chance {
    pub(crate) const fn new(seed: u64) -> Self {
        Self(SeededEntropy::new(seed))
    }

    pub(crate) fn next(&self) -> u64 {
        self.0.next()
    }

    /// A number below `end`.
    pub(crate) fn below(&self, end: u64) -> u64 {
        self.0.below(end.max(1))
    }

    pub(crate) fn within(&self, from: u64, to: u64) -> u64 {
        from + self.below(to.saturating_sub(from).max(1))
    }

    /// True `of` times in a thousand.
    pub(crate) fn hits(&self, of: u64) -> bool {
        self.below(1000) < of
    }

    /// One of several.
    pub(crate) fn pick<'a, T>(&self, of: &'a [T]) -> Option<&'a T> {
        let at = usize::try_from(self.below(of.len() as u64)).unwrap_or(0);
        of.get(at)
    }
}

/// Something that happens to a process in the middle of a call.
struct Ambush {
    /// Such calls until then.
    calls: u64,
    strike: Box<dyn FnOnce(&Kernel) + Send>,
}

/// A process: what is killed and stopped together.
pub(crate) struct Process {
    pub(crate) name: String,
    dead: AtomicBool,
    frozen_until: AtomicU64,
    ambush: Mutex<Option<Ambush>>,
}

impl fmt::Debug for Process {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.name)
    }
}

impl Process {
    pub(crate) fn is_dead(&self) -> bool {
        self.dead.load(Ordering::Relaxed)
    }

    pub(crate) fn is_ambushed(&self) -> bool {
        self.ambush.lock().is_some()
    }

    pub(crate) fn frozen_until(&self) -> Nanos {
        self.frozen_until.load(Ordering::Relaxed)
    }
}

pub(crate) type TaskId = usize;

enum Event {
    /// The task goes on, if it still waits for that.
    Wake {
        task: TaskId,
        wait: u64,
    },
    Run(Box<dyn FnOnce(&Kernel) + Send>),
}

struct Scheduled {
    at: Nanos,
    order: u64,
    event: Event,
}

impl PartialEq for Scheduled {
    fn eq(&self, other: &Self) -> bool {
        self.order == other.order
    }
}
impl Eq for Scheduled {}
impl PartialOrd for Scheduled {
    fn partial_cmp(&self, other: &Self) -> Option<std::cmp::Ordering> {
        Some(self.cmp(other))
    }
}
impl Ord for Scheduled {
    fn cmp(&self, other: &Self) -> std::cmp::Ordering {
        (self.at, self.order).cmp(&(other.at, other.order))
    }
}

struct Task {
    process: Arc<Process>,
    /// Counts its waits: a wake is for one of them.
    wait: u64,
    done: bool,
}

type Body = Box<dyn FnOnce() + Send>;

struct State {
    now: Nanos,
    /// Of which the machine slept so long.
    slept: Nanos,
    order: u64,
    events: BinaryHeap<Reverse<Scheduled>>,
    tasks: Vec<Task>,
    starting: Vec<(TaskId, Body)>,
    running: Option<TaskId>,
    /// How far the wall clock is off, in milliseconds.
    wall_step: i64,
    boot: u8,
    booted_at: Nanos,
    /// A hash of who did something when, in what order.
    trail: u64,
    counts: BTreeMap<String, usize>,
    lines: Option<Vec<String>>,
}

/// The one handle to all of it. Clones are the same.
#[derive(Clone)]
pub(crate) struct Kernel {
    state: Arc<Mutex<State>>,
    pub(crate) chance: Arc<Chance>,
    pub(crate) entropy: Arc<SeededEntropy>,
}

impl fmt::Debug for Kernel {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Kernel").finish_non_exhaustive()
    }
}

impl Kernel {
    pub(crate) fn new(seed: u64, tells: bool) -> Self {
        let state = State {
            now: 0,
            slept: 0,
            order: 0,
            events: BinaryHeap::new(),
            tasks: Vec::new(),
            starting: Vec::new(),
            running: None,
            wall_step: 0,
            boot: 1,
            booted_at: 0,
            trail: 0xcbf2_9ce4_8422_2325,
            counts: BTreeMap::new(),
            lines: tells.then(Vec::new),
        };
        Self {
            state: Arc::new(Mutex::new(state)),
            chance: Arc::new(Chance::new(seed)),
            entropy: Arc::new(SeededEntropy::new(!seed)),
        }
    }

    pub(crate) fn now(&self) -> Nanos {
        self.state.lock().now
    }

    /// Writes down what happened: always into the trail, and as a line where somebody reads it.
    pub(crate) fn tell(&self, who: &str, what: impl FnOnce() -> String) {
        let mut state = self.state.lock();
        let (now, order) = (state.now, state.order);
        let bytes = who.bytes().map(u64::from);
        for word in bytes.chain([now, order]) {
            state.trail = (state.trail ^ word).wrapping_mul(0x0100_0000_01b3);
        }
        if let Some(lines) = &mut state.lines {
            let at = Duration::from_nanos(now).as_secs_f64();
            lines.push(format!("{at:>14.6}  {who:<10} {}", what()));
        }
    }

    /// Counts what happened, so that a run says what it had.
    pub(crate) fn count(&self, what: impl Into<String>) {
        *self.state.lock().counts.entry(what.into()).or_default() += 1;
    }

    pub(crate) fn counts(&self) -> BTreeMap<String, usize> {
        self.state.lock().counts.clone()
    }

    pub(crate) fn trail(&self) -> u64 {
        self.state.lock().trail
    }

    pub(crate) fn lines(&self) -> Vec<String> {
        self.state.lock().lines.take().unwrap_or_default()
    }

    pub(crate) fn process(&self, name: impl Into<String>) -> Arc<Process> {
        Arc::new(Process {
            name: name.into(),
            dead: AtomicBool::new(false),
            frozen_until: AtomicU64::new(0),
            ambush: Mutex::new(None),
        })
    }

    /// Kills a process: what it waits for never comes, and what it still does changes nothing.
    pub(crate) fn kill(&self, process: &Process) {
        if process.dead.swap(true, Ordering::Relaxed) {
            return;
        }
        self.tell(&process.name, || "is killed".to_owned());
        let mut state = self.state.lock();
        let waiting: Vec<_> = (0..state.tasks.len())
            .filter(|&task| !state.tasks[task].done && *state.tasks[task].process == *process)
            .map(|task| (task, state.tasks[task].wait))
            .collect();
        for (task, wait) in waiting {
            let now = state.now;
            state.schedule(now, Event::Wake { task, wait });
        }
    }

    /// Lets something happen in the middle of a call of a process, the `calls`th from now that takes
    /// time: a fault that waits for the clock seldom meets what lasts for a few microseconds.
    pub(crate) fn ambush(
        &self,
        process: &Process,
        calls: u64,
        strike: impl FnOnce(&Self) + Send + 'static,
    ) {
        let strike = Box::new(strike);
        *process.ambush.lock() = Some(Ambush { calls, strike });
    }

    /// A process makes a call that takes so long.
    pub(crate) fn spring(&self, process: &Process, takes: Nanos) {
        let mut ambush = process.ambush.lock();
        if let Some(waiting) = &mut *ambush {
            waiting.calls = waiting.calls.saturating_sub(1);
            if waiting.calls == 0
                && let Some(Ambush { strike, .. }) = ambush.take()
            {
                drop(ambush);
                self.after(takes / 2, strike);
            }
        }
    }

    /// Whether a process was killed, and its last call has ended.
    pub(crate) fn is_gone(&self, process: &Process) -> bool {
        let state = self.state.lock();
        let lives = |task: &Task| !task.done && *task.process == *process;
        process.is_dead() && !state.tasks.iter().any(lives)
    }

    /// Stops a process until then, as SIGSTOP does.
    pub(crate) fn freeze(&self, process: &Process, until: Nanos) {
        process.frozen_until.fetch_max(until, Ordering::Relaxed);
    }

    pub(crate) fn thaw(&self, process: &Process) {
        process.frozen_until.store(0, Ordering::Relaxed);
    }

    /// Starts a task of a process.
    pub(crate) fn spawn(
        &self,
        process: &Arc<Process>,
        body: impl FnOnce() + Send + 'static,
    ) -> TaskId {
        let mut state = self.state.lock();
        let task = state.tasks.len();
        state.tasks.push(Task {
            process: Arc::clone(process),
            wait: 0,
            done: false,
        });
        state.starting.push((task, Box::new(body)));
        let now = state.now;
        state.schedule(now, Event::Wake { task, wait: 0 });
        task
    }

    /// Runs `what` after `delay`.
    pub(crate) fn after(&self, delay: Nanos, what: impl FnOnce(&Self) + Send + 'static) {
        let mut state = self.state.lock();
        let at = state.now + delay;
        state.schedule(at, Event::Run(Box::new(what)));
    }

    /// The task that runs now.
    pub(crate) fn current(&self) -> Option<TaskId> {
        self.state.lock().running
    }

    /// Whether the task that runs is of a process that was killed.
    pub(crate) fn is_dying(&self) -> bool {
        let state = self.state.lock();
        let running = state.running.and_then(|task| state.tasks.get(task));
        running.is_some_and(|task| task.process.is_dead())
    }

    /// Lets a task go on that waits.
    pub(crate) fn wake(&self, task: TaskId) {
        let mut state = self.state.lock();
        let (now, wait) = (state.now, state.tasks[task].wait);
        state.schedule(now, Event::Wake { task, wait });
    }

    /// Waits at most so long, or until [`Self::wake`]. Outside of a task, and for a process that was
    /// killed, it does nothing.
    #[expect(
        deprecated,
        reason = "its successor needs a scope at hand, which a disk's caller has not"
    )]
    pub(crate) fn wait(&self, at_most: Nanos) {
        {
            let mut state = self.state.lock();
            let Some(task) = state.running else { return };
            if state.tasks[task].process.is_dead() {
                return;
            }
            state.tasks[task].wait += 1;
            let wait = state.tasks[task].wait;
            let at = state.now.saturating_add(at_most);
            state.schedule(at, Event::Wake { task, wait });
        }
        generator::yield_with(());
    }

    /// Moves everything ahead at once, as a machine that sleeps does.
    pub(crate) fn leap(&self, by: Nanos) {
        self.tell("machine", || {
            format!("sleeps for {:?}", Duration::from_nanos(by))
        });
        let mut state = self.state.lock();
        state.now += by;
        state.slept += by;
    }

    /// How long the machine was awake: a run is as long as that, however much of it is slept through.
    pub(crate) fn awake(&self) -> Nanos {
        let state = self.state.lock();
        state.now - state.slept
    }

    pub(crate) fn step_wall(&self, millis: i64) {
        self.tell("machine", || {
            format!("the wall clock is off by {millis} ms")
        });
        self.state.lock().wall_step = millis;
    }

    /// Starts another boot, of which the boot-time clock counts from 0.
    pub(crate) fn reboot(&self) {
        let mut state = self.state.lock();
        state.boot = state.boot.wrapping_add(1);
        state.booted_at = state.now;
    }
}

impl State {
    fn schedule(&mut self, at: Nanos, event: Event) {
        let order = self.order;
        self.order += 1;
        self.events.push(Reverse(Scheduled { at, order, event }));
    }
}

impl PartialEq for Process {
    fn eq(&self, other: &Self) -> bool {
        std::ptr::eq(self, other)
    }
}

/// The machine's clocks, as the kernel moves them.
#[derive(Debug, Clone)]
pub(crate) struct KernelClock(pub(crate) Kernel);

impl Clock for KernelClock {
    fn wall(&self) -> Timestamp {
        let state = self.0.state.lock();
        Timestamp((WALL_START + state.now / MILLI).saturating_add_signed(state.wall_step))
    }

    fn boot(&self) -> BootTime {
        let state = self.0.state.lock();
        BootTime {
            boot: BootId([state.boot; 16]),
            // From somewhat before: a machine takes some time to come to us.
            elapsed: Duration::from_millis(10_000 + (state.now - state.booted_at) / MILLI),
        }
    }
}

/// Random bytes of the run.
#[derive(Debug, Clone)]
pub(crate) struct KernelEntropy(pub(crate) Kernel);

impl Entropy for KernelEntropy {
    fn fill(&self, bytes: &mut [u8]) {
        self.0.entropy.fill(bytes);
    }
}

/// Jobs of a process, each a task of it.
#[derive(Debug, Clone)]
pub(crate) struct KernelSpawn(pub(crate) Kernel, pub(crate) Arc<Process>);

impl Spawn for KernelSpawn {
    fn spawn(&self, _: &str, job: Box<dyn FnOnce() + Send>) -> io::Result<()> {
        self.0.spawn(&self.1, job);
        Ok(())
    }
}
