//! The build with scripted clocks and stop points (docs/faults.md).

use std::fmt::Write as _;
use std::fs;
use std::io;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::OnceLock;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use tempfile::TempDir;

/// The faults build that belongs to the default build at `program`, building it if need be: into
/// `faults` beside that build's profile directory, once at a time on this machine.
pub fn binary(program: &str) -> PathBuf {
    static BUILT: OnceLock<PathBuf> = OnceLock::new();
    BUILT.get_or_init(|| build(Path::new(program))).clone()
}

fn build(program: &Path) -> PathBuf {
    let target = program
        .parent()
        .and_then(Path::parent)
        .expect("<target>/<profile>/ostraca");
    let target = target.join("faults");
    fs::create_dir_all(&target).expect("a directory");
    let lock = fs::File::create(target.join("build.lock")).expect("a file");
    lock.lock().expect("a lock");
    let cargo = std::env::var_os("CARGO").unwrap_or_else(|| "cargo".into());
    let mut command = Command::new(cargo);
    command
        .args([
            "build",
            "--quiet",
            "--package",
            "ostraca-cli",
            "--bin",
            "ostraca",
        ])
        .args(["--features", "faults", "--target-dir"])
        .arg(&target)
        .current_dir(concat!(env!("CARGO_MANIFEST_DIR"), "/.."));
    let status = command.status().expect("cargo runs");
    assert!(status.success(), "the faults build fails: {command:?}");
    target.join("debug/ostraca")
}

/// The script of the processes of a faults build. Their clocks stand still until they are moved, in
/// the steps of the machine's wall clock and the boot-time clock together, unless told otherwise;
/// and the one process that comes to a named point first ends there.
pub struct Clock {
    dir: TempDir,
    wall_ms: u64,
    boot_ms: u64,
}

impl Clock {
    /// Stands still at the present instant.
    #[must_use]
    pub fn stopped() -> Self {
        let now = SystemTime::now()
            .duration_since(UNIX_EPOCH)
            .expect("after 1970");
        let clock = Self {
            dir: TempDir::with_prefix("ostraca-clock-").expect("a directory"),
            wall_ms: u64::try_from(now.as_millis()).expect("64 bits"),
            boot_ms: 1_000_000,
        };
        clock.write();
        clock
    }

    /// The value of `OSTRACA_FAULTS`.
    #[must_use]
    pub fn variable(&self) -> String {
        self.dir.path().to_str().expect("UTF-8").to_owned()
    }

    /// What the wall clock shows.
    #[must_use]
    pub const fn wall_ms(&self) -> u64 {
        self.wall_ms
    }

    /// Moves both clocks ahead until the wall clock shows `wall_ms`.
    pub fn advance_to(&mut self, wall_ms: u64) {
        let by = wall_ms.checked_sub(self.wall_ms).expect("ahead");
        self.wall_ms += by;
        self.boot_ms += by;
        self.write();
    }

    /// Moves both clocks ahead.
    pub fn advance(&mut self, by: Duration) {
        self.advance_to(self.wall_ms + u64::try_from(by.as_millis()).expect("64 bits"));
    }

    /// Steps the wall clock alone, back by `by`.
    pub fn step_wall_back(&mut self, by: Duration) {
        self.wall_ms -= u64::try_from(by.as_millis()).expect("64 bits");
        self.write();
    }

    /// Has the next process that comes to `point` end there with SIGKILL.
    pub fn stop_at(&self, point: &str) {
        let stopped = self.dir.path().join("stopped");
        if let Err(err) = fs::remove_file(&stopped) {
            assert_eq!(err.kind(), io::ErrorKind::NotFound, "{stopped:?}: {err}");
        }
        self.replace("stop", point);
    }

    /// Whether a process came to the point of the last [`Self::stop_at`].
    #[must_use]
    pub fn has_stopped(&self) -> bool {
        self.dir.path().join("stopped").exists()
    }

    fn write(&self) {
        let mut script = String::new();
        let _ = writeln!(script, "wall_ms={}\nboot_ms={}", self.wall_ms, self.boot_ms);
        self.replace("clock", &script);
    }

    fn replace(&self, name: &str, text: &str) {
        let next = self.dir.path().join(format!("{name}.next"));
        fs::write(&next, text).expect("written");
        fs::rename(&next, self.dir.path().join(name)).expect("renamed");
    }
}
