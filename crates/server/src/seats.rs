//! `run/shard-N.leader.json` and `run/shard-N.standby.json`: who leads a shard and who would, by
//! their own word, and where they listen.
//!
//! Each process writes its own seat when it takes it, replaced atomically. It says what was true when
//! it was written and is no proof of anything: a call that comes to the wrong process is refused
//! there, by the fence. The epoch tells which of two leaders is the later one.
//!
//! A standby beats, by its place in the loop that would take over: `run/shard-N.standby.beat` says who
//! beat last and when, by the boot-time clock, which all processes share. One that lives and does not
//! go round would not come, while callers wait for it.

use std::io;
use std::path::{Path, PathBuf};
use std::time::Duration;

use ostraca_io::{BootTime, Clock, files, process};
use ostraca_types::ShardId;
use serde::{Deserialize, Serialize};

use crate::host::Host;

/// How often a standby beats, and looks whether its shard's standbys are known. Of several only one is,
/// and that one may lead by now, or be gone.
pub(crate) const BEAT_INTERVAL: Duration = Duration::from_millis(100);
/// Ten beats that are missing are no busy machine's.
const BEAT_AGE_MAX: Duration = Duration::from_secs(1);

/// Which seat.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Place {
    Leader,
    Standby,
}

/// Who has a seat.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Seat {
    pub(crate) pid: u32,
    /// `host:port` of its gRPC.
    pub(crate) grpc: String,
    /// Of its leadership; 0 for a standby.
    pub(crate) epoch: u64,
}

fn path(run_dir: &Path, shard: ShardId, place: Place) -> PathBuf {
    let place = match place {
        Place::Leader => "leader",
        Place::Standby => "standby",
    };
    run_dir.join(format!("shard-{shard}.{place}.json"))
}

/// Who has the seat, as far as is known.
pub(crate) fn read(run_dir: &Path, shard: ShardId, place: Place) -> Option<Seat> {
    let bytes = files::read(&path(run_dir, shard, place)).ok()?;
    serde_json::from_slice(&bytes).ok()
}

/// Which version of the file is there; `None` without one.
pub(crate) fn version(run_dir: &Path, shard: ShardId, place: Place) -> Option<files::FileVersion> {
    files::version(&path(run_dir, shard, place)).ok()
}

/// Takes the seat. A leader of an earlier epoch does not take it from a later one.
pub(crate) fn take(run_dir: &Path, shard: ShardId, place: Place, seat: &Seat) -> io::Result<()> {
    if read(run_dir, shard, place).is_some_and(|other| other.epoch > seat.epoch) {
        return Ok(());
    }
    files::create_dir_durable(run_dir, 0o700)?;
    let text = serde_json::to_vec(seat).map_err(io::Error::other)?;
    files::replace_durable(&path(run_dir, shard, place), &text, 0o644)
}

/// Leaves the seat, if it is still the one of the process `pid`.
pub(crate) fn leave(run_dir: &Path, shard: ShardId, place: Place, pid: u32) {
    if read(run_dir, shard, place).is_some_and(|seat| seat.pid == pid) {
        // Stale at worst.
        drop(files::remove(&path(run_dir, shard, place)));
    }
}

fn beat_path(run_dir: &Path, shard: ShardId) -> PathBuf {
    run_dir.join(format!("shard-{shard}.standby.beat"))
}

/// A beat of the process `pid`, as it is written: one length, one line.
fn beat_line(pid: u32, now: BootTime) -> String {
    let BootTime { boot, elapsed } = now;
    format!("{pid:010} {boot:?} {:020}\n", elapsed.as_millis())
}

/// How long ago `pid` beat last, if the last beat is its. The clock is read behind the beat: a beat from
/// the future is none, but of another boot.
fn beat_age(run_dir: &Path, shard: ShardId, pid: u32, clock: &dyn Clock) -> Option<Duration> {
    let line = files::read_text(&beat_path(run_dir, shard)).ok()?;
    let now = clock.boot();
    let at = line.trim_end().rsplit(' ').next()?;
    let elapsed = Duration::from_millis(at.parse().ok()?);
    let beat = BootTime { elapsed, ..now };
    let is_its = line == beat_line(pid, beat);
    now.elapsed.checked_sub(elapsed).filter(|_| is_its)
}

impl Host {
    /// Says that this process has the seat; `epoch` is that of its leadership.
    pub(crate) fn take_seat(&self, place: Place, epoch: u64) {
        let seat = Seat {
            pid: std::process::id(),
            grpc: self.address.to_string(),
            epoch,
        };
        if let Err(err) = take(&self.data.run_dir(), self.id, place, &seat) {
            // Clients find the way all the same, by asking around.
            tracing::warn!(event = "seat_not_taken", shard = %self.id, %err);
        }
    }

    /// Says that this process stands by, and goes on doing so.
    pub(crate) fn take_standby_seat(&self, clock: &dyn Clock) {
        // Who sees the seat finds a beat; and another one's that came in between is not the last.
        self.beat(clock.boot());
        self.take_seat(Place::Standby, 0);
        self.beat(clock.boot());
    }

    /// Beats, if this process is the standby that is known; takes the seat of one that is none. Its loop
    /// went round at `now`. Blocks, on a disk that hangs for as long as that does.
    pub(crate) fn keep_seat(&self, now: BootTime, clock: &dyn Clock) {
        let run_dir = self.data.run_dir();
        let Some(seat) = read(&run_dir, self.id, Place::Standby) else {
            return self.take_standby_seat(clock);
        };
        if seat.pid == std::process::id() {
            return self.beat(now);
        }
        // One that has just taken it has perhaps not beaten yet.
        let age = beat_age(&run_dir, self.id, seat.pid, clock);
        let hangs = age.is_some_and(|age| age > BEAT_AGE_MAX);
        if hangs || !process::is_alive(seat.pid) {
            self.take_standby_seat(clock);
        }
    }

    fn beat(&self, now: BootTime) {
        let path = beat_path(&self.data.run_dir(), self.id);
        let line = beat_line(std::process::id(), now);
        if let Err(err) = files::overwrite(&path, line.as_bytes()) {
            // It is not handed over to, and takes over all the same.
            tracing::debug!(event = "standby_not_beaten", shard = %self.id, %err);
        }
    }

    /// Whether a process waits to take over and can: one that was stopped, or whose loop hangs, would
    /// not come, while its callers wait for it.
    pub(crate) fn can_hand_over(&self, clock: &dyn Clock) -> bool {
        let run_dir = self.data.run_dir();
        let seat = read(&run_dir, self.id, Place::Standby);
        seat.is_some_and(|seat| {
            let age = beat_age(&run_dir, self.id, seat.pid, clock);
            process::is_running(seat.pid) && age.is_some_and(|age| age <= BEAT_AGE_MAX)
        })
    }

    /// Whether a process waits to take over; a leader is none.
    pub(crate) fn has_standby(&self) -> bool {
        let seat = read(&self.data.run_dir(), self.id, Place::Standby);
        seat.is_some_and(|seat| process::is_alive(seat.pid))
    }
}

#[cfg(test)]
mod tests {
    use ostraca_io::{ManualClock, SystemEntropy};
    use ostraca_types::Timestamp;

    use super::*;
    use crate::DataDir;
    use crate::host::Phase;
    use crate::secrets::Secrets;

    /// A process of shard 0 whose directory is `dir`.
    fn host(dir: &Path) -> Host {
        let data = DataDir::init(dir, None, &SystemEntropy).expect("a data directory");
        let secrets = Secrets::load(&data.secret_dir()).expect("they are made");
        let address = "127.0.0.1:1".parse().expect("an address");
        let entropy = std::sync::Arc::new(SystemEntropy);
        Host::new(data, ShardId(0), secrets, entropy, address, true)
    }

    /// Goal: a shard is handed over to who goes on, and not to who only lives.
    /// Method: a standby's beats, by a clock that is told to move.
    #[test]
    fn k17_a_standby_that_does_not_beat_is_not_handed_over_to() {
        let dir = tempfile::tempdir().expect("a directory");
        let (host, clock) = (host(dir.path()), ManualClock::new(Timestamp(1_000)));
        assert!(!host.can_hand_over(&clock), "nobody stands by");
        // This process runs, so the beat alone decides.
        host.take_seat(Place::Standby, 0);
        assert!(!host.can_hand_over(&clock), "it has never beaten");
        host.keep_seat(clock.boot(), &clock);
        assert!(host.can_hand_over(&clock));
        clock.advance(BEAT_AGE_MAX);
        assert!(host.can_hand_over(&clock), "it is just young enough");
        clock.advance(Duration::from_millis(1));
        assert!(!host.can_hand_over(&clock), "it hangs");
        // Whatever the wall clock says.
        clock.step_wall(Timestamp(0));
        assert!(!host.can_hand_over(&clock));
        host.keep_seat(clock.boot(), &clock);
        assert!(host.can_hand_over(&clock), "it goes on");

        // The same number on the clock of another boot says nothing.
        let at = clock.boot().elapsed;
        clock.reboot(Duration::ZERO);
        clock.advance(at);
        assert!(!host.can_hand_over(&clock), "that was before the boot");
        host.keep_seat(clock.boot(), &clock);
        assert!(host.can_hand_over(&clock));
        // Nor does the beat of who had the seat before.
        let path = beat_path(&host.data.run_dir(), host.id);
        let other = beat_line(std::process::id() + 1, clock.boot());
        files::overwrite(&path, other.as_bytes()).expect("written");
        assert!(!host.can_hand_over(&clock));
        files::overwrite(&path, b"0000000001").expect("written");
        assert!(!host.can_hand_over(&clock), "half a beat");
    }

    /// Goal: whoever is refused by a standby does not stand in the way of its coming to lead.
    /// Method: refusals, each of which looks for the leader, while another thread changes the phase; two
    /// that wait for each other never end.
    #[test]
    fn f06_a_refusal_does_not_hold_up_a_take_over() {
        let dir = tempfile::tempdir().expect("a directory");
        let host = std::sync::Arc::new(host(dir.path()));
        let (ended, ends) = std::sync::mpsc::sync_channel(3);
        for thread in 0..3 {
            let (host, ended) = (std::sync::Arc::clone(&host), ended.clone());
            std::thread::spawn(move || {
                for round in 0..5_000 {
                    match (thread, round % 2) {
                        (0, 0) => host.enter(Phase::Recovering),
                        (0, _) => host.enter(Phase::Standby),
                        _ => drop(host.serving()),
                    }
                }
                ended.send(()).expect("it is waited for");
            });
        }
        for _ in 0..3 {
            let end = ends.recv_timeout(Duration::from_secs(60));
            end.expect("nobody waits for ever");
        }
    }

    /// Goal: of several standbys the one that is known goes on.
    /// Method: the seat of a process that lives, and beats no more.
    #[test]
    fn k17_the_seat_of_a_standby_that_does_not_beat_is_taken() {
        let dir = tempfile::tempdir().expect("a directory");
        let (host, clock) = (host(dir.path()), ManualClock::new(Timestamp(1_000)));
        let run_dir = host.data.run_dir();
        let seated = || read(&run_dir, host.id, Place::Standby).map(|seat| seat.pid);
        // The parent of this process lives as long.
        let other = std::os::unix::process::parent_id();
        let seat = Seat {
            pid: other,
            grpc: "127.0.0.1:2".to_owned(),
            epoch: 0,
        };
        take(&run_dir, host.id, Place::Standby, &seat).expect("written");
        let line = beat_line(other, clock.boot());
        files::overwrite(&beat_path(&run_dir, host.id), line.as_bytes()).expect("written");
        host.keep_seat(clock.boot(), &clock);
        assert_eq!(seated(), Some(other), "it goes on");
        // Before its first beat the last one is another's.
        let before = beat_line(std::process::id(), clock.boot());
        clock.advance(2 * BEAT_AGE_MAX);
        files::overwrite(&beat_path(&run_dir, host.id), before.as_bytes()).expect("written");
        host.keep_seat(clock.boot(), &clock);
        assert_eq!(seated(), Some(other), "it has just come");
        let line = beat_line(other, clock.boot());
        files::overwrite(&beat_path(&run_dir, host.id), line.as_bytes()).expect("written");
        clock.advance(2 * BEAT_AGE_MAX);
        host.keep_seat(clock.boot(), &clock);
        assert_eq!(seated(), Some(std::process::id()));
        assert!(host.can_hand_over(&clock), "it beats from the start");
    }

    #[test]
    fn f06_a_later_leader_keeps_its_seat() {
        let dir = tempfile::tempdir().expect("a directory");
        let seat = |pid, epoch| Seat {
            pid,
            grpc: format!("127.0.0.1:{pid}"),
            epoch,
        };
        let shard = ShardId(3);
        assert_eq!(read(dir.path(), shard, Place::Leader), None);
        for (pid, epoch) in [(1, 4), (2, 5), (1, 4)] {
            take(dir.path(), shard, Place::Leader, &seat(pid, epoch)).expect("written");
        }
        assert_eq!(read(dir.path(), shard, Place::Leader), Some(seat(2, 5)));
        leave(dir.path(), shard, Place::Leader, 1);
        assert_eq!(read(dir.path(), shard, Place::Leader), Some(seat(2, 5)));
        leave(dir.path(), shard, Place::Leader, 2);
        assert_eq!(read(dir.path(), shard, Place::Leader), None);
    }
}
