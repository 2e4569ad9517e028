//! How much room the disk of a faults build has (docs/faults.md).

use std::io;
use std::path::Path;
use std::sync::{Mutex, PoisonError};

use ostraca_io::files;

use super::stops::Stops;

/// What was taken of the room so far: a file beside the script, as it outlives the process.
const TAKEN: &str = "taken";

/// Reading and writing that file is one step for the threads of this process.
static COUNTING: Mutex<()> = Mutex::new(());

impl Stops {
    /// Takes room for `bytes` by which a file of the directory `dir` grows. `StorageFull`, and nothing
    /// is taken, if the script says that there is less.
    pub(super) fn take_room(&self, dir: &Path, bytes: u64) -> io::Result<()> {
        self.count(dir, i64::try_from(bytes).expect("a file of this machine"))
    }

    /// Gives back what a removed or shortened file of `dir` had.
    pub(super) fn give_back(&self, dir: &Path, bytes: u64) {
        let bytes = i64::try_from(bytes).expect("a file of this machine");
        self.count(dir, -bytes)
            .expect("there is always room for less");
    }

    fn count(&self, dir: &Path, bytes: i64) -> io::Result<()> {
        if bytes == 0 {
            return Ok(());
        }
        let _counting = COUNTING.lock().unwrap_or_else(PoisonError::into_inner);
        let Some(room) = self.room(dir) else {
            return Ok(());
        };
        let path = self.file(TAKEN).expect("a script was read");
        let taken = match files::read_text(&path) {
            Ok(text) => text.trim().parse().ok(),
            Err(err) if err.kind() == io::ErrorKind::NotFound => Some(0),
            Err(err) => panic!("{}: {err}", path.display()),
        };
        let taken: i64 = taken.unwrap_or_else(|| panic!("{}: not a number", path.display()));
        let taken = taken + bytes;
        if bytes > 0 && taken > room {
            return Err(io::ErrorKind::StorageFull.into());
        }
        files::replace_durable(&path, taken.to_string().as_bytes(), 0o644)
            .unwrap_or_else(|err| panic!("{}: {err}", path.display()));
        Ok(())
    }

    /// The room that the script gives to `dir`; `None` for all that the machine has.
    fn room(&self, dir: &Path) -> Option<i64> {
        let script = self.disk_script();
        let room = script.lines().find_map(|line| line.strip_prefix("room "))?;
        let (room, whose) = Self::room_and_whose(room).expect("a script was read");
        let is_meant = whose.is_none_or(|name| dir.iter().any(|part| part == name));
        is_meant.then_some(i64::from(room))
    }

    /// Reads what follows `room`: how much, and the name of the directory below which it is, if
    /// not everywhere.
    pub(super) fn room_and_whose(text: &str) -> Option<(u32, Option<&str>)> {
        let (room, whose) = match text.split_once(' ') {
            Some((room, whose)) if !whose.is_empty() => (room, Some(whose)),
            Some(_) => return None,
            None => (text, None),
        };
        Some((room.parse().ok()?, whose))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_given_back_can_be_taken() {
        let dir = tempfile::tempdir().expect("a directory");
        let stops = Stops::at(dir.path());
        let script = |text: &str| {
            let path = dir.path().join("disk");
            files::replace_durable(&path, text.as_bytes(), 0o644).expect("written");
        };
        let log = Path::new("data/shard-1/log");
        let take = |bytes| stops.take_room(log, bytes);
        let give_back = |bytes| stops.give_back(log, bytes);
        let full = |taken: io::Result<()>| taken.expect_err("full").kind();
        take(u64::from(u32::MAX)).expect("no limit");
        script("room 100");
        take(70).expect("room");
        assert_eq!(full(take(31)), io::ErrorKind::StorageFull);
        take(30).expect("nothing was taken before");
        script("room 0");
        give_back(50);
        assert_eq!(full(take(1)), io::ErrorKind::StorageFull);
        give_back(55);
        take(5).expect("given back");
        assert_eq!(full(take(1)), io::ErrorKind::StorageFull);
        take(0).expect("it does not grow");
        script("");
        take(1).expect("no limit");
    }
    #[test]
    fn one_directory_can_be_full() {
        let dir = tempfile::tempdir().expect("a directory");
        let stops = Stops::at(dir.path());
        let path = dir.path().join("disk");
        files::replace_durable(&path, b"room 0 shard-1", 0o644).expect("written");
        let take = |log: &str| stops.take_room(Path::new(log), 1);
        let full = take("data/shard-1/log").expect_err("full");
        assert_eq!(full.kind(), io::ErrorKind::StorageFull);
        take("data/shard-10/log").expect("another one");
        stops.give_back(Path::new("data/shard-0/log"), 1);
        take("data/shard-1/log").expect_err("what others give back is not its");
    }
}
