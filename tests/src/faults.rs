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

/// The script of the processes of a faults build: what becomes of the one that comes to a named
/// point first, and what their disks refuse.
pub struct Script(TempDir);

impl Script {
    /// Asks for nothing yet.
    #[must_use]
    pub fn new() -> Self {
        Self(TempDir::with_prefix("ostraca-script-").expect("a directory"))
    }

    /// The value of `OSTRACA_FAULTS`.
    #[must_use]
    pub fn variable(&self) -> String {
        self.0.path().to_str().expect("UTF-8").to_owned()
    }

    /// Has the next process that comes to `point` end there with SIGKILL.
    pub fn stop_at(&self, point: &str) {
        self.remove("stopped");
        self.replace("stop", point);
    }

    /// Whether a process came to the point of the last [`Self::stop_at`].
    #[must_use]
    pub fn has_stopped(&self) -> bool {
        self.0.path().join("stopped").exists()
    }

    /// Has the next thread that comes to `point` stop its process there, and go no further itself
    /// until [`Self::release`].
    pub fn pause_at(&self, point: &str) {
        self.replace("pause", point);
    }

    /// Whether a thread is held at `point`.
    #[must_use]
    pub fn holds_at(&self, point: &str) -> bool {
        self.held(point).exists()
    }

    /// Lets the thread that is held at `point` go on. Its process is stopped still.
    pub fn release(&self, point: &str) {
        fs::remove_file(self.held(point)).expect("a thread is held there");
    }

    /// Replaces the lines about the disk.
    pub fn disk(&self, lines: &str) {
        self.replace("disk", lines);
    }

    fn held(&self, point: &str) -> PathBuf {
        let name = format!("paused.{}", point.replace(' ', "."));
        self.0.path().join(name)
    }

    fn remove(&self, name: &str) {
        let path = self.0.path().join(name);
        if let Err(err) = fs::remove_file(&path) {
            assert_eq!(err.kind(), io::ErrorKind::NotFound, "{path:?}: {err}");
        }
    }

    fn replace(&self, name: &str, text: &str) {
        let next = self.0.path().join(format!("{name}.next"));
        fs::write(&next, text).expect("written");
        fs::rename(&next, self.0.path().join(name)).expect("renamed");
    }
}

impl Default for Script {
    fn default() -> Self {
        Self::new()
    }
}

/// A script with clocks. They stand still until they are moved, in the steps of the machine's wall
/// clock and the boot-time clock together, unless told otherwise.
pub struct Clock {
    script: Script,
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
            script: Script::new(),
            wall_ms: u64::try_from(now.as_millis()).expect("64 bits"),
            boot_ms: 1_000_000,
        };
        clock.write();
        clock
    }

    /// The value of `OSTRACA_FAULTS`.
    #[must_use]
    pub fn variable(&self) -> String {
        self.script.variable()
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

    /// As [`Script::stop_at`].
    pub fn stop_at(&self, point: &str) {
        self.script.stop_at(point);
    }

    /// As [`Script::has_stopped`].
    #[must_use]
    pub fn has_stopped(&self) -> bool {
        self.script.has_stopped()
    }

    fn write(&self) {
        let mut script = String::new();
        let _ = writeln!(script, "wall_ms={}\nboot_ms={}", self.wall_ms, self.boot_ms);
        self.script.replace("clock", &script);
    }
}
