//! `run/shard-N.leader.json` and `run/shard-N.standby.json`: who leads a shard and who would, by
//! their own word, and where they listen.
//!
//! Each process writes its own seat when it takes it, replaced atomically. It says what was true when
//! it was written and is no proof of anything: a call that comes to the wrong process is refused
//! there, by the fence. The epoch tells which of two leaders is the later one.

use std::io;
use std::path::{Path, PathBuf};

use ostraca_io::{files, process};
use ostraca_types::ShardId;
use serde::{Deserialize, Serialize};

use crate::host::Host;

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

    /// Whether a process waits to take over and can: one that was stopped would not come, while its
    /// callers wait for it.
    pub(crate) fn can_hand_over(&self) -> bool {
        let seat = read(&self.data.run_dir(), self.id, Place::Standby);
        seat.is_some_and(|seat| process::is_running(seat.pid))
    }

    /// Whether a process waits to take over; a leader is none.
    pub(crate) fn has_standby(&self) -> bool {
        let seat = read(&self.data.run_dir(), self.id, Place::Standby);
        seat.is_some_and(|seat| process::is_alive(seat.pid))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

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
