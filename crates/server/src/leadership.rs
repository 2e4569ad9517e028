//! When to lead: whoever holds the directory's lock, or whoever sees that the leader is gone or
//! hangs.
//!
//! All of this is about liveness. Two processes that both come to lead are no danger: the epoch that
//! was raised last leads, the other one is fenced.

use std::path::Path;
use std::time::Duration;

use ostraca_engine::Heartbeat;
use ostraca_io::files::{Lock, LockError};
use ostraca_io::process;
use tokio::time::Instant;

use crate::epoch_page::MappedPage;
use crate::error::ServeError;
use crate::host::Host;
use crate::seats::{self, Place};

/// How often a standby looks.
const LOOK_INTERVAL: Duration = Duration::from_millis(20);
/// A free lock says that the leader is gone, unless it is one that took over without the lock from a
/// leader that hangs: that one beats. An idle leader beats every 50 ms.
const SILENT_MIN: Duration = Duration::from_millis(250);
/// How long a leader that was killed may take to be gone: it may hang in a sync.
const KILLED_MAX: Duration = Duration::from_millis(500);
/// How often a standby looks whether its shard's standbys are known. Of several only one is, and that
/// one may lead by now, or be gone.
const SEAT_INTERVAL: Duration = Duration::from_millis(100);
/// A standby that was handed the shard leads by then, or something is wrong with it.
const SUCCESSOR_MAX: Duration = Duration::from_secs(4);

/// How a shard process comes to lead.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Lead {
    /// At once, unless another process holds the directory: then not at all.
    IfFree,
    /// At once, whoever leads: the fence ends that one's leadership.
    TakeOver,
    /// When there is no leader, or it hangs; and again after another one took over.
    WhenNeeded(Standby),
}

/// What a standby goes by.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Standby {
    /// A leader whose loop has not gone round for this long hangs.
    pub lease: Duration,
    /// Whether a leader that hangs is killed first. Safety does not need it; but who is dead wakes no
    /// more, and answers nobody too late.
    pub kill: bool,
}

impl Default for Standby {
    fn default() -> Self {
        Self {
            lease: Duration::from_secs(2),
            kill: true,
        }
    }
}

impl Lead {
    /// Waits until this process is to lead; the lock is kept while it does. `None`: it is another
    /// process's, or was. `map` maps the page that is there now. It is safe to drop the wait.
    pub(crate) async fn wait(
        self,
        host: &Host,
        dir: &Path,
        map: impl Fn() -> Result<MappedPage, ServeError>,
    ) -> Result<Option<Lock>, ServeError> {
        let path = dir.join("lock");
        let takes_over = match self {
            // It does not touch the lock before it needs it: others look at who has it.
            Self::WhenNeeded(standby) => return standby.watch(host, &path, map).await,
            Self::IfFree => false,
            Self::TakeOver => true,
        };
        match acquire(&path)? {
            Ok(lock) => Ok(Some(lock)),
            Err(pid) if takes_over => {
                tracing::warn!(event = "taking_over", shard = %host.id, pid);
                Ok(None)
            }
            Err(pid) => Err(ServeError::Held(pid)),
        }
    }
}

impl Standby {
    async fn watch(
        self,
        host: &Host,
        path: &Path,
        map: impl Fn() -> Result<MappedPage, ServeError>,
    ) -> Result<Option<Lock>, ServeError> {
        let mut page = map()?;
        let mut last = Heartbeat::of(&**page.page());
        let mut since = Instant::now();
        // Who has the lock, since the last beat.
        let mut holder = None;
        let mut looked_for_seat = Instant::now();
        let mut look = tokio::time::interval(LOOK_INTERVAL);
        loop {
            look.tick().await;
            if looked_for_seat.elapsed() >= SEAT_INTERVAL {
                looked_for_seat = Instant::now();
                if !host.has_standby() {
                    host.take_seat(Place::Standby, 0);
                }
            }
            if page.replaced().is_some() {
                // Whoever leads beats on the new one: the old one's silence says nothing.
                page = map()?;
                (last, since, holder) = (Heartbeat::of(&**page.page()), Instant::now(), None);
            }
            let now = Heartbeat::of(&**page.page());
            if now != last {
                (last, since, holder) = (now, Instant::now(), None);
                if now.is_of_leader() && !now.resigned() {
                    host.beats_seen.send_modify(|seen| *seen += 1);
                }
                if !now.resigned() {
                    continue;
                }
            }
            let silent = since.elapsed();
            if !now.resigned() && silent < SILENT_MIN.min(self.lease) {
                continue;
            }
            match acquire(path)? {
                Ok(lock) => {
                    tracing::info!(event = "leader_gone", shard = %host.id, silent_ms = millis(silent));
                    return Ok(Some(lock));
                }
                // Another standby has just got it, and is about to lead: it is not the one that hangs.
                Err(pid) if holder.is_some_and(|holder| holder != pid) => {
                    (since, holder) = (Instant::now(), Some(pid));
                }
                Err(pid) if silent < self.lease || holder.is_none() => holder = Some(pid),
                Err(pid) => {
                    tracing::warn!(event = "leader_hangs", shard = %host.id, pid, silent_ms = millis(silent));
                    let silent = || Heartbeat::of(&**page.page()) == last;
                    match self.replace(path, pid, silent).await? {
                        Replaced::ByThis(lock) => return Ok(lock),
                        Replaced::ByAnother => (since, holder) = (Instant::now(), None),
                    }
                }
            }
        }
    }

    /// The holder of the lock hangs. `silent` says whether nobody else has come to lead meanwhile.
    async fn replace(
        self,
        path: &Path,
        pid: Option<u32>,
        silent: impl Fn() -> bool,
    ) -> Result<Replaced, ServeError> {
        if let Some(killed) = pid.filter(|_| self.kill) {
            // It holds the lock, so the pid in it is its own and not another's.
            match process::kill(killed) {
                Err(err) if err.kind() != std::io::ErrorKind::NotFound => {
                    tracing::warn!(event = "leader_not_killed", pid, %err);
                }
                _ => {
                    let until = Instant::now() + KILLED_MAX;
                    while Instant::now() < until {
                        match acquire(path)? {
                            Ok(lock) => return Ok(Replaced::ByThis(Some(lock))),
                            // Another standby was faster: it must not lose the lead at once.
                            Err(holder) if holder != pid || !silent() => {
                                return Ok(Replaced::ByAnother);
                            }
                            Err(_) => tokio::time::sleep(LOOK_INTERVAL).await,
                        }
                    }
                }
            }
        }
        // The fence is what ends its leadership.
        Ok(Replaced::ByThis(None))
    }
}

/// Who leads after one that hung.
enum Replaced {
    /// With the lock, if that one let go of it.
    ByThis(Option<Lock>),
    ByAnother,
}

impl Host {
    /// Waits until whoever was handed the shard leads it; `false` if nobody comes. This process led
    /// under `epoch`.
    pub(crate) async fn is_succeeded(&self, epoch: u64) -> bool {
        let run_dir = self.data.run_dir();
        let leads =
            || seats::read(&run_dir, self.id, Place::Leader).is_some_and(|seat| seat.epoch > epoch);
        let until = Instant::now() + SUCCESSOR_MAX;
        while Instant::now() < until {
            if leads() {
                return true;
            }
            if !self.has_standby() {
                // It leaves one seat after it took the other.
                return leads();
            }
            tokio::time::sleep(LOOK_INTERVAL).await;
        }
        false
    }
}

fn millis(time: Duration) -> u64 {
    u64::try_from(time.as_millis()).unwrap_or(u64::MAX)
}

/// The lock, or who holds it.
pub(crate) fn acquire(path: &Path) -> Result<Result<Lock, Option<u32>>, ServeError> {
    match Lock::acquire(path) {
        Ok(lock) => Ok(Ok(lock)),
        Err(LockError::Held(pid)) => Ok(Err(pid)),
        Err(LockError::Io(err)) => Err(ServeError::Io("cannot lock the shard's directory", err)),
    }
}
