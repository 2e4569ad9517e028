//! When to lead: whoever holds the directory's lock, or whoever sees that the leader is gone or
//! hangs.
//!
//! All of this is about liveness. Two processes that both come to lead are no danger: the epoch that
//! was raised last leads, the other one is fenced.

use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use ostraca_engine::Heartbeat;
use ostraca_io::files::{Lock, LockHolder, LockRole};
use ostraca_io::{Clock, process};
use tokio::task::JoinHandle;
use tokio::time::Instant;

use crate::epoch_page::MappedPage;
use crate::error::ServeError;
use crate::host::Host;
use crate::seats::{self, BEAT_INTERVAL, Place};

/// How often a standby looks.
const LOOK_INTERVAL: Duration = Duration::from_millis(20);
/// A free lock says that the leader is gone, unless it is one that took over without the lock from a
/// leader that hangs: that one beats. An idle leader beats every 50 ms.
const SILENT_MIN: Duration = Duration::from_millis(250);
/// How long a leader that was killed may take to be gone: it may hang in a sync.
const KILLED_MAX: Duration = Duration::from_millis(500);
/// How long a beat that is under way may hold up who comes to lead. One that comes later names a
/// leader its own standby, and is too old to be handed over to in a second.
const BEAT_END_MAX: Duration = Duration::from_millis(250);
/// A standby that was handed the shard leads by then, or something is wrong with it.
const SUCCESSOR_MAX: Duration = Duration::from_secs(4);

/// How a shard process comes to lead.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Lead {
    /// At once, unless another process holds the directory: then not at all.
    IfFree,
    /// At once, whoever leads: the fence ends that one's leadership. A command that is at work on the
    /// directory does not lead, and keeps out this as well.
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
        host: &Arc<Host>,
        dir: &Path,
        clock: &Arc<dyn Clock>,
        map: impl Fn() -> Result<MappedPage, ServeError>,
    ) -> Result<Option<Lock>, ServeError> {
        let path = dir.join("lock");
        let takes_over = match self {
            // It does not touch the lock before it needs it: others look at who has it.
            Self::WhenNeeded(standby) => return standby.watch(host, &path, clock, map).await,
            Self::IfFree => false,
            Self::TakeOver => true,
        };
        match acquire(&path)? {
            Ok(lock) => Ok(Some(lock)),
            Err(LockHolder { pid, role }) => match role {
                LockRole::Tool => Err(ServeError::HeldByTool(pid)),
                LockRole::Leader if takes_over => {
                    tracing::warn!(event = "taking_over", shard = %host.id, pid);
                    Ok(None)
                }
                LockRole::Leader => Err(ServeError::Held(pid)),
            },
        }
    }
}

impl Standby {
    async fn watch(
        self,
        host: &Arc<Host>,
        path: &Path,
        clock: &Arc<dyn Clock>,
        map: impl Fn() -> Result<MappedPage, ServeError>,
    ) -> Result<Option<Lock>, ServeError> {
        let mut beats = Beats::default();
        let led = self.watch_leader(host, path, clock, map, &mut beats).await;
        // Who leads leaves the seat: nothing may take it behind that.
        beats.end().await;
        led
    }

    async fn watch_leader(
        self,
        host: &Arc<Host>,
        path: &Path,
        clock: &Arc<dyn Clock>,
        map: impl Fn() -> Result<MappedPage, ServeError>,
        beats: &mut Beats,
    ) -> Result<Option<Lock>, ServeError> {
        let mut page = map()?;
        let mut last = Heartbeat::of(&**page.page());
        let mut since = Instant::now();
        // Who has the lock, since the last beat.
        let mut holder = None;
        // The command that has the lock, once that was said.
        let mut waits_for = None;
        let mut look = tokio::time::interval(LOOK_INTERVAL);
        loop {
            look.tick().await;
            beats.beat_if_due(host, clock);
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
                // It does not beat, and is not there to: whoever leads next, it must be done first.
                Err(tool) if tool.role == LockRole::Tool => {
                    if waits_for != Some(tool) {
                        waits_for = Some(tool);
                        tracing::info!(event = "waits_for_tool", shard = %host.id, pid = tool.pid,
                            "a command is at work on the shard");
                    }
                    (since, holder) = (Instant::now(), None);
                }
                // Another standby has just got it, and is about to lead: it is not the one that hangs.
                Err(other) if holder.is_some_and(|holder| holder != other) => {
                    (since, holder) = (Instant::now(), Some(other));
                }
                Err(leader) if silent < self.lease || holder.is_none() => holder = Some(leader),
                Err(leader) => {
                    tracing::warn!(event = "leader_hangs", shard = %host.id, pid = leader.pid,
                        silent_ms = millis(silent));
                    let silent = || Heartbeat::of(&**page.page()) == last;
                    match self.replace(path, leader, silent).await? {
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
        leader: LockHolder,
        silent: impl Fn() -> bool,
    ) -> Result<Replaced, ServeError> {
        if let Some(pid) = leader.pid.filter(|_| self.kill) {
            // It holds the lock, so the pid in it is its own and not another's.
            match process::kill(pid) {
                Err(err) if err.kind() != std::io::ErrorKind::NotFound => {
                    tracing::warn!(event = "leader_not_killed", pid, %err);
                }
                _ => {
                    let until = Instant::now() + KILLED_MAX;
                    while Instant::now() < until {
                        match acquire(path)? {
                            Ok(lock) => return Ok(Replaced::ByThis(Some(lock))),
                            // Another standby was faster: it must not lose the lead at once.
                            Err(holder) if holder != leader || !silent() => {
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

/// The beats of a standby. A disk that hangs holds them up, and not the look at the leader.
#[derive(Default)]
struct Beats(Option<(Instant, JoinHandle<()>)>);

impl Beats {
    fn beat_if_due(&mut self, host: &Arc<Host>, clock: &Arc<dyn Clock>) {
        let waits = |(last, under_way): &(Instant, JoinHandle<()>)| {
            last.elapsed() < BEAT_INTERVAL || !under_way.is_finished()
        };
        if self.0.as_ref().is_some_and(waits) {
            return;
        }
        let (host, clock, now) = (Arc::clone(host), Arc::clone(clock), clock.boot());
        let beat = tokio::task::spawn_blocking(move || host.keep_seat(now, &*clock));
        self.0 = Some((Instant::now(), beat));
    }

    async fn end(self) {
        if let Some((_, under_way)) = self.0 {
            // A beat that panicked is none; one that hangs in the disk of the seats is not waited for.
            let _ = tokio::time::timeout(BEAT_END_MAX, under_way).await;
        }
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
pub(crate) fn acquire(path: &Path) -> Result<Result<Lock, LockHolder>, ServeError> {
    Lock::acquire_as(LockRole::Leader, path)
        .map_err(|err| ServeError::Io("cannot lock the shard's directory", err))
}
