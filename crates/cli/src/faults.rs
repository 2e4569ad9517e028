//! The scripted clock of a build with the feature `faults`, its stop points, in `stops`, and its
//! disk, in `storage` and `room` (docs/faults.md). Never in a build that holds data.
//!
//! The environment variable `OSTRACA_FAULTS` names a directory. A file `clock` in it says what the
//! clocks show; it is read at every call, and replaced by rename. Without the file the clocks are
//! the system's. One `name=value` a line; blank lines and lines that start with `#` are skipped:
//!
//! | line | meaning |
//! | --- | --- |
//! | `advance_ms=N` | both clocks run, N milliseconds ahead of the system's |
//! | `wall_ms=N` | the wall clock stands still at N milliseconds since 1970 |
//! | `boot_ms=N` | the boot-time clock stands still at N milliseconds since the boot |
//! | `boot_id=H` | the boot is this one, 32 hexadecimal digits; the system's unless given |
//!
//! `wall_ms` and `boot_ms` part a clock from `advance_ms`, and from each other.

mod room;
mod stops;
mod storage;

use std::io;
use std::path::PathBuf;
use std::time::Duration;

use ostraca_io::{BootId, BootTime, Clock, SystemClock, files};
use ostraca_types::Timestamp;

pub(crate) use stops::stopping;
pub(crate) use storage::ScriptedStorage;

const VARIABLE: &str = "OSTRACA_FAULTS";

/// The system's clocks, as the script bends them.
#[derive(Debug)]
pub(crate) struct ScriptedClock {
    system: SystemClock,
    file: PathBuf,
}

#[derive(Debug, Default, PartialEq, Eq)]
struct Script {
    advance: Duration,
    wall: Option<Timestamp>,
    boot: Option<Duration>,
    boot_id: Option<BootId>,
}

impl ScriptedClock {
    /// The clock that the environment asks for, if it asks for one.
    pub(crate) fn from_env(system: SystemClock) -> Option<Self> {
        let dir = std::env::var_os(VARIABLE)?;
        Some(Self {
            system,
            file: PathBuf::from(dir).join("clock"),
        })
    }

    /// Panics on a script that says nothing valid: a test that goes on with another clock than it
    /// asked for proves nothing.
    fn script(&self) -> Script {
        match files::read_text(&self.file) {
            Ok(text) => Script::parse(&text)
                .unwrap_or_else(|line| panic!("{}: not understood: {line}", self.file.display())),
            Err(err) if err.kind() == io::ErrorKind::NotFound => Script::default(),
            Err(err) => panic!("{}: {err}", self.file.display()),
        }
    }
}

impl Script {
    /// Reads a script; the error is the line that is not one.
    fn parse(text: &str) -> Result<Self, &str> {
        let mut script = Self::default();
        for line in text.lines().map(str::trim) {
            if line.is_empty() || line.starts_with('#') {
                continue;
            }
            let (name, value) = line.split_once('=').ok_or(line)?;
            let number = || value.parse::<u64>().map_err(|_| line);
            match name {
                "advance_ms" => script.advance = Duration::from_millis(number()?),
                "wall_ms" => script.wall = Some(Timestamp(number()?)),
                "boot_ms" => script.boot = Some(Duration::from_millis(number()?)),
                "boot_id" if value.len() == 32 => {
                    let id = u128::from_str_radix(value, 16).map_err(|_| line)?;
                    script.boot_id = Some(BootId(id.to_be_bytes()));
                }
                _ => return Err(line),
            }
        }
        Ok(script)
    }
}

impl Clock for ScriptedClock {
    fn wall(&self) -> Timestamp {
        let script = self.script();
        script
            .wall
            .unwrap_or_else(|| self.system.wall().plus(script.advance))
    }

    fn boot(&self) -> BootTime {
        let script = self.script();
        let system = self.system.boot();
        BootTime {
            boot: script.boot_id.unwrap_or(system.boot),
            elapsed: script.boot.unwrap_or(system.elapsed + script.advance),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_script_is_read_whole_or_not_at_all() {
        let script = Script::parse("# held\nwall_ms=5\n\nboot_ms=7\n").expect("a script");
        assert_eq!(
            (script.wall, script.boot),
            (Some(Timestamp(5)), Some(Duration::from_millis(7)))
        );
        assert_eq!(Script::parse(""), Ok(Script::default()));
        for wrong in [
            "wall_ms",
            "wall_ms=x",
            "wall=5",
            "boot_id=12",
            "advance_ms=-1",
        ] {
            assert_eq!(Script::parse(wrong), Err(wrong));
        }
    }

    #[test]
    fn the_clocks_move_together_unless_they_are_parted() {
        let dir = tempfile::tempdir().expect("a directory");
        let system = SystemClock::new().expect("/proc");
        let clock = ScriptedClock {
            system,
            file: dir.path().join("clock"),
        };
        let write = |text: &str| {
            files::replace_durable(&clock.file, text.as_bytes(), 0o644).expect("written");
        };
        let before = (clock.wall(), clock.boot());
        write("advance_ms=3600000\n");
        assert!(clock.wall().since(before.0) >= Duration::from_secs(3600));
        assert!(clock.boot().elapsed - before.1.elapsed >= Duration::from_secs(3600));
        assert_eq!(clock.boot().boot, before.1.boot);
        write("wall_ms=1000\n");
        assert_eq!(clock.wall(), Timestamp(1000));
        assert!(clock.boot().elapsed >= before.1.elapsed);
    }
}
