//! How much room the disk of a faults build has (docs/faults.md).

use std::io;
use std::sync::{Mutex, PoisonError};

use ostraca_io::files;

use super::stops::Stops;

/// What was taken of the room so far: a file beside the script, as it outlives the process.
const TAKEN: &str = "taken";

/// Reading and writing that file is one step for the threads of this process.
static COUNTING: Mutex<()> = Mutex::new(());

impl Stops {
    /// Takes room for `bytes` by which a file grows. `StorageFull`, and nothing is taken, if the
    /// script says that there is less.
    pub(super) fn take_room(&self, bytes: u64) -> io::Result<()> {
        self.count(i64::try_from(bytes).expect("a file of this machine"))
    }

    /// Gives back what a removed or shortened file had.
    pub(super) fn give_back(&self, bytes: u64) {
        let bytes = i64::try_from(bytes).expect("a file of this machine");
        self.count(-bytes).expect("there is always room for less");
    }

    fn count(&self, bytes: i64) -> io::Result<()> {
        if bytes == 0 {
            return Ok(());
        }
        let _counting = COUNTING.lock().unwrap_or_else(PoisonError::into_inner);
        let Some(room) = self.room() else {
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

    /// The room that the script gives; `None` for all that the machine has.
    fn room(&self) -> Option<i64> {
        let script = self.disk_script();
        let room = script.lines().find_map(|line| line.strip_prefix("room "))?;
        Some(room.parse().expect("a script was read"))
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
        let full = |taken: io::Result<()>| taken.expect_err("full").kind();
        stops.take_room(u64::from(u32::MAX)).expect("no limit");
        script("room 100");
        stops.take_room(70).expect("room");
        assert_eq!(full(stops.take_room(31)), io::ErrorKind::StorageFull);
        stops.take_room(30).expect("nothing was taken before");
        script("room 0");
        stops.give_back(50);
        assert_eq!(full(stops.take_room(1)), io::ErrorKind::StorageFull);
        stops.give_back(55);
        stops.take_room(5).expect("given back");
        assert_eq!(full(stops.take_room(1)), io::ErrorKind::StorageFull);
        stops.take_room(0).expect("it does not grow");
        script("");
        stops.take_room(1).expect("no limit");
    }
}
