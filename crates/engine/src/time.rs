//! The shard's clock (d06).
//!
//! Shard time moves only through durable time records. Each says where the clock stood at which
//! reading of the boot-time clock; between two records it follows that clock, which never steps
//! and goes on across restarts of the process. Readers see it through one monotone maximum, never
//! beyond the bound of the last durable record. So after a restart on the same boot the clock goes
//! on where it was, and after a reboot it starts at the bound: either way no reader sees an earlier
//! instant than one has seen, and what answered 404 because it expired stays gone.
//!
//! The wall clock is asked only when a record is made, and believed only forward, by at most
//! [`LEAP_RUNNING_MAX`] while running and [`LEAP_STOPPED_MAX`] across a restart.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use ostraca_io::Clock;
use ostraca_types::Timestamp;
use parking_lot::RwLock;

use crate::command::Time;

/// How far ahead of the clock a record lets readers see. After a reboot that is faster than this,
/// pastes can expire earlier by the difference; a longer one costs nothing. Twice the interval
/// between records, so that a late one holds no reader back.
pub(crate) const BOUND_AHEAD: Duration = Duration::from_secs(20);
/// A time record is due when the bound is nearer than this.
const BOUND_LOW: Duration = Duration::from_secs(10);
/// A wall clock that is further ahead while the machine runs has leapt and is not believed.
pub(crate) const LEAP_RUNNING_MAX: Duration = Duration::from_secs(5 * 60);
/// The same for the time that the machine was down, of which nothing is known.
pub(crate) const LEAP_STOPPED_MAX: Duration = Duration::from_secs(7 * 24 * 3600);

/// Where the clock stands, by the last durable time record.
#[derive(Debug, Clone, Copy)]
struct Base {
    time: Timestamp,
    record: Time,
}

/// The clock of one shard. Only the shard's thread moves its base; anyone reads it.
pub(crate) struct ShardClock {
    clock: Arc<dyn Clock>,
    base: RwLock<Base>,
    /// The latest instant that anyone was shown.
    shown: AtomicU64,
}

/// What replaying the log told about time.
#[derive(Debug, Clone, Copy, Default)]
pub(crate) struct Replayed {
    /// Shard time of the last record.
    pub(crate) last: Timestamp,
    /// The last time record and its shard time.
    pub(crate) record: Option<(Timestamp, Time)>,
}

impl Replayed {
    pub(crate) fn see(&mut self, time: Timestamp, record: Option<Time>) {
        self.last = self.last.max(time);
        if let Some(record) = record {
            self.record = Some((time, record));
        }
    }
}

/// A proposed step of the clock: what the next time record says.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Step {
    pub(crate) time: Timestamp,
    pub(crate) record: Time,
    /// The wall clock is further ahead than is believed.
    pub(crate) leapt: bool,
}

/// Whether the boot-time clock goes on from the record's reading. One that stands lower is another,
/// whatever its name: a container made anew has the boot's id and can have a clock of its own.
fn same_boot(record: &Time, boot: &ostraca_io::BootTime) -> bool {
    record.boot.boot == boot.boot && record.boot.elapsed <= boot.elapsed
}

/// Where the clock starts, given what the log says.
pub(crate) fn starting_step(clock: &dyn Clock, replayed: &Replayed) -> Step {
    let boot = clock.boot();
    let (earliest, leap_max) = match replayed.record {
        None => (replayed.last, LEAP_STOPPED_MAX),
        Some((time, record)) if same_boot(&record, &boot) => {
            // The same boot: exactly as far on as the boot-time clock is.
            let since = boot.elapsed.saturating_sub(record.boot.elapsed);
            (replayed.last.max(time.plus(since)), LEAP_RUNNING_MAX)
        }
        // Another boot: how far readers saw is known by its bound alone.
        Some((_, record)) => (replayed.last.max(record.bound), LEAP_STOPPED_MAX),
    };
    let wall = clock.wall();
    let new_store = replayed.record.is_none() && replayed.last == Timestamp(0);
    let leapt = !new_store && wall.since(earliest) > leap_max;
    let time = if leapt { earliest } else { earliest.max(wall) };
    Step {
        time,
        record: Time {
            boot,
            bound: time.plus(BOUND_AHEAD),
        },
        leapt,
    }
}

impl ShardClock {
    /// A clock at `step`, which must be durable before anyone is answered.
    pub(crate) fn new(clock: Arc<dyn Clock>, step: Step) -> Self {
        Self {
            clock,
            base: RwLock::new(Base {
                time: step.time,
                record: step.record,
            }),
            shown: AtomicU64::new(step.time.0),
        }
    }

    /// The shard's time. Never earlier than anyone was told before, never beyond the durable bound.
    pub(crate) fn now(&self) -> Timestamp {
        let base = *self.base.read();
        let elapsed = self
            .clock
            .boot()
            .elapsed
            .saturating_sub(base.record.boot.elapsed);
        let now = base.time.plus(elapsed).min(base.record.bound);
        Timestamp(self.shown.fetch_max(now.0, Ordering::AcqRel).max(now.0))
    }

    /// The boot-time clock.
    pub(crate) fn elapsed(&self) -> Duration {
        self.clock.boot().elapsed
    }

    /// The step that a time record should take now, with readers allowed `ahead` of it; `None` while
    /// the last one is good. A person can make a wall clock believed that has leapt.
    pub(crate) fn due_step(
        &self,
        ahead: Duration,
        believe: bool,
        leapt_before: bool,
    ) -> Option<Step> {
        let base = *self.base.read();
        let boot = self.clock.boot();
        let elapsed = boot.elapsed.saturating_sub(base.record.boot.elapsed);
        let running = base.time.plus(elapsed);
        let wall = self.clock.wall();
        let left = base.record.bound.since(running);
        // A bound that was set far ahead, as the disk was full, is brought back: a reboot would start
        // there. And a wall clock that came back to its senses is noticed at once.
        let good = left > BOUND_LOW && left <= ahead;
        let still_leapt = wall.since(running) > LEAP_RUNNING_MAX;
        if good && !believe && (!leapt_before || still_leapt) {
            return None;
        }
        let leapt = !believe && still_leapt;
        let time = if leapt { running } else { running.max(wall) };
        Some(Step {
            time,
            record: Time {
                boot,
                bound: time.plus(ahead),
            },
            leapt,
        })
    }

    /// Takes a step whose record is durable.
    pub(crate) fn take(&self, time: Timestamp, record: Time) {
        let mut base = self.base.write();
        assert!(time >= base.time, "the shard's clock ran backwards");
        *base = Base { time, record };
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use ostraca_io::ManualClock;

    const START: Timestamp = Timestamp(1_700_000_000_000);
    const HOUR: Duration = Duration::from_secs(3600);

    fn started(clock: &ManualClock, replayed: &Replayed) -> (ShardClock, Step) {
        let step = starting_step(clock, replayed);
        (ShardClock::new(Arc::new(clock.clone()), step), step)
    }

    fn tick(clock: &ShardClock) -> Option<Step> {
        let step = clock.due_step(BOUND_AHEAD, false, false);
        if let Some(step) = step {
            clock.take(step.time, step.record);
        }
        step
    }

    #[test]
    fn d06_readers_never_see_beyond_the_durable_bound() {
        let clock = ManualClock::new(START);
        let (shard, _) = started(&clock, &Replayed::default());
        assert_eq!(shard.now(), START);
        clock.advance(HOUR);
        assert_eq!(shard.now(), START.plus(BOUND_AHEAD));
        tick(&shard).expect("due");
        assert_eq!(shard.now(), START.plus(HOUR));
    }

    #[test]
    fn d06_a_wall_clock_that_steps_back_moves_nothing_back() {
        let clock = ManualClock::new(START);
        let (shard, step) = started(&clock, &Replayed::default());
        clock.step_wall(Timestamp(START.0 - 86_400_000));
        clock.advance(Duration::from_secs(15));
        assert_eq!(shard.now(), START.plus(Duration::from_secs(15)));
        tick(&shard).expect("due");
        let seen = shard.now();
        // Restarted on the same boot, the log knowing the first record only.
        let replayed = Replayed {
            last: step.time,
            record: Some((step.time, step.record)),
        };
        assert_eq!(started(&clock, &replayed).0.now(), seen);
    }

    #[test]
    fn d06_after_a_reboot_the_clock_starts_at_the_bound() {
        let clock = ManualClock::new(START);
        let (_, step) = started(&clock, &Replayed::default());
        let replayed = Replayed {
            last: step.time,
            record: Some((step.time, step.record)),
        };
        clock.step_wall(Timestamp(START.0 - 86_400_000));
        clock.reboot(Duration::ZERO);
        assert_eq!(started(&clock, &replayed).0.now(), step.record.bound);
        // With a wall clock that is right, nothing is ahead of it.
        clock.step_wall(START.plus(HOUR));
        assert_eq!(started(&clock, &replayed).0.now(), START.plus(HOUR));
    }

    #[test]
    fn d06_a_leap_is_not_believed() {
        let clock = ManualClock::new(START);
        let (shard, step) = started(&clock, &Replayed::default());
        clock.step_wall(START.plus(HOUR));
        clock.advance(Duration::from_secs(15));
        let tick = tick(&shard).expect("due");
        assert!(tick.leapt);
        assert_eq!(shard.now(), START.plus(Duration::from_secs(15)));
        let replayed = Replayed {
            last: step.time,
            record: Some((step.time, step.record)),
        };
        // Nor by a restart: on the same boot the time that passed is known.
        let restarted = starting_step(&clock, &replayed);
        assert!(restarted.leapt);
        assert_eq!(restarted.time, START.plus(Duration::from_secs(15)));
        clock.reboot(Duration::ZERO);
        assert!(!starting_step(&clock, &replayed).leapt);
        clock.step_wall(START.plus(8 * 24 * HOUR));
        assert!(starting_step(&clock, &replayed).leapt);
        // A person can say that it is right.
        clock.step_wall(START.plus(HOUR));
        let (shard, _) = started(&clock, &Replayed::default());
        clock.step_wall(START.plus(9 * 24 * HOUR));
        assert!(shard.due_step(BOUND_AHEAD, false, false).is_none());
        let believed = shard.due_step(BOUND_AHEAD, true, true).expect("at once");
        assert_eq!(
            (believed.time, believed.leapt),
            (START.plus(9 * 24 * HOUR), false)
        );
    }

    #[test]
    fn d06_a_bound_far_ahead_is_brought_back_and_a_mended_clock_noticed() {
        let clock = ManualClock::new(START);
        let (shard, _) = started(&clock, &Replayed::default());
        clock.advance(Duration::from_secs(15));
        let far = shard.due_step(HOUR, false, false).expect("due");
        shard.take(far.time, far.record);
        assert!(shard.due_step(HOUR, false, false).is_none());
        let near = shard.due_step(BOUND_AHEAD, false, false).expect("at once");
        assert_eq!(near.record.bound, near.time.plus(BOUND_AHEAD));
        shard.take(near.time, near.record);
        clock.step_wall(START.plus(HOUR));
        assert!(
            shard.due_step(BOUND_AHEAD, false, true).is_none(),
            "it is still ahead"
        );
        clock.step_wall(START.plus(Duration::from_secs(15)));
        assert!(
            !shard
                .due_step(BOUND_AHEAD, false, true)
                .expect("at once")
                .leapt
        );
    }

    #[test]
    fn d06_a_boot_time_clock_that_went_back_is_another() {
        let clock = ManualClock::new(START);
        clock.advance(HOUR);
        let (_, step) = started(&clock, &Replayed::default());
        let replayed = Replayed {
            last: step.time,
            record: Some((step.time, step.record)),
        };
        let restarted = ManualClock::new(Timestamp(0));
        assert_eq!(started(&restarted, &replayed).0.now(), step.record.bound);
    }

    #[test]
    fn d06_small_corrections_of_the_wall_clock_are_taken() {
        let clock = ManualClock::new(START);
        let (shard, _) = started(&clock, &Replayed::default());
        clock.step_wall(START.plus(Duration::from_secs(60)));
        assert_eq!(shard.now(), START, "not before a record says so");
        clock.advance(Duration::from_secs(11));
        assert!(!tick(&shard).expect("due").leapt);
        assert_eq!(shard.now(), START.plus(Duration::from_secs(71)));
    }
}
