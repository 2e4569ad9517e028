//! Wall clock and boot-time clock.

use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use ostraca_types::Timestamp;
use parking_lot::Mutex;

/// Which boot of the machine a [`BootTime`] counts from. Readings of different boots do not
/// compare.
#[derive(Clone, Copy, PartialEq, Eq, Hash)]
pub struct BootId(pub [u8; 16]);

impl fmt::Debug for BootId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.iter().try_for_each(|byte| write!(f, "{byte:02x}"))
    }
}

/// A reading of the boot-time clock: it never steps, counts while the machine sleeps, and goes on
/// across restarts of the process.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct BootTime {
    /// The boot that it counts from.
    pub boot: BootId,
    /// Time since that boot, to the millisecond.
    pub elapsed: Duration,
}

/// All that ostraca asks of the machine's clocks. No call blocks.
pub trait Clock: Send + Sync + 'static {
    /// What the wall clock says. It can step, both ways.
    fn wall(&self) -> Timestamp;
    /// What the boot-time clock says.
    fn boot(&self) -> BootTime;
}

impl<C: Clock + ?Sized> Clock for Arc<C> {
    fn wall(&self) -> Timestamp {
        (**self).wall()
    }

    fn boot(&self) -> BootTime {
        (**self).boot()
    }
}

/// The machine's clocks.
#[derive(Debug, Clone, Copy)]
pub struct SystemClock {
    boot: BootId,
}

impl SystemClock {
    /// Reads which boot this is. Fails where `/proc` is not mounted.
    pub fn new() -> std::io::Result<Self> {
        let text = crate::files::read_text("/proc/sys/kernel/random/boot_id".as_ref())?;
        let digits: String = text.trim().chars().filter(|&digit| digit != '-').collect();
        let value = u128::from_str_radix(&digits, 16).map_err(std::io::Error::other)?;
        Ok(Self {
            boot: BootId(value.to_be_bytes()),
        })
    }
}

fn millis(time: rustix::time::Timespec) -> u64 {
    // Neither clock is negative, and milliseconds since 1970 fit 64 bits.
    let secs = u64::try_from(time.tv_sec).unwrap_or(0);
    let nanos = u64::try_from(time.tv_nsec).unwrap_or(0);
    secs * 1000 + nanos / 1_000_000
}

impl Clock for SystemClock {
    fn wall(&self) -> Timestamp {
        Timestamp(millis(rustix::time::clock_gettime(
            rustix::time::ClockId::Realtime,
        )))
    }

    fn boot(&self) -> BootTime {
        let now = rustix::time::clock_gettime(rustix::time::ClockId::Boottime);
        BootTime {
            boot: self.boot,
            elapsed: Duration::from_millis(millis(now)),
        }
    }
}

/// A clock that stands still until it is told to move: for tests and simulation.
#[derive(Debug, Clone)]
pub struct ManualClock(Arc<Mutex<(Timestamp, BootTime)>>);

impl ManualClock {
    /// Starts at `wall`, on the first boot.
    #[must_use]
    pub fn new(wall: Timestamp) -> Self {
        let boot = BootTime {
            boot: BootId([1; 16]),
            elapsed: Duration::from_secs(100),
        };
        Self(Arc::new(Mutex::new((wall, boot))))
    }

    /// Moves both clocks ahead.
    pub fn advance(&self, by: Duration) {
        let mut clocks = self.0.lock();
        clocks.0 = clocks.0.plus(by);
        clocks.1.elapsed += by;
    }

    /// Sets the wall clock alone, either way.
    pub fn step_wall(&self, to: Timestamp) {
        self.0.lock().0 = to;
    }

    /// The machine boots again after `pause` on the wall clock.
    pub fn reboot(&self, pause: Duration) {
        let mut clocks = self.0.lock();
        clocks.0 = clocks.0.plus(pause);
        clocks.1.elapsed = Duration::ZERO;
        clocks.1.boot.0[0] = clocks.1.boot.0[0].wrapping_add(1);
    }
}

impl Clock for ManualClock {
    fn wall(&self) -> Timestamp {
        self.0.lock().0
    }

    fn boot(&self) -> BootTime {
        self.0.lock().1
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_systems_clocks_run() {
        let clock = SystemClock::new().expect("/proc");
        let (wall, boot) = (clock.wall(), clock.boot());
        assert!(wall > Timestamp(1_700_000_000_000));
        assert!(clock.boot().elapsed >= boot.elapsed);
        assert_eq!(
            clock.boot().boot,
            SystemClock::new().expect("/proc").boot().boot
        );
    }
}
