//! Processes of one shard without `ostraca up`, each with a script of its own, so that several can
//! believe that they lead it.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Child, Stdio};

use ostraca_io::process;
use tempfile::TempDir;

use crate::faults::Script;
use crate::{DEADLINE, Options, command, poll, spawner};

/// The data directory of a cluster with one shard, in which nothing runs.
pub struct Data {
    program: PathBuf,
    dir: TempDir,
}

impl Data {
    /// Makes the cluster with `program`, a faults build, as a user would: by running it once.
    #[must_use]
    pub fn new(program: &Path) -> Self {
        let dir = TempDir::with_prefix("ostraca-test-").expect("a directory");
        let options = Options::new(program).shards(1);
        let mut up = options.command(&dir.path().join("data"));
        let stdout = fs::File::create(dir.path().join("up")).expect("a file");
        up.stdin(Stdio::null()).stdout(stdout).stderr(Stdio::null());
        let mut up = Process(spawner::spawn(up).expect("it starts"));
        poll("`up` is ready", || {
            assert_eq!(up.0.try_wait().expect("a child"), None, "`up` ended");
            let said = fs::read_to_string(dir.path().join("up")).expect("a file");
            said.starts_with("ready ").then_some(())
        });
        process::terminate(up.0.id()).expect("it runs");
        assert_eq!(up.exit(), Some(0));
        let program = program.to_owned();
        Self { program, dir }
    }

    /// The directory.
    #[must_use]
    pub fn path(&self) -> PathBuf {
        self.dir.path().join("data")
    }

    /// The directory of the shard's log.
    #[must_use]
    pub fn log(&self) -> PathBuf {
        self.path().join("shard-0/log")
    }

    /// Names and contents of the shard's files: log and epoch page.
    #[must_use]
    pub fn contents(&self) -> Vec<(String, Vec<u8>)> {
        let names = fs::read_dir(self.log()).expect("a directory");
        let mut files: Vec<_> = names
            .map(|entry| entry.expect("an entry").path())
            .chain([self.path().join("shard-0/epoch")])
            .map(|path| {
                let name = path.file_name().expect("a name").to_string_lossy();
                (name.into_owned(), fs::read(&path).expect("a file"))
            })
            .collect();
        files.sort();
        files
    }

    /// Starts the shard. It need not come to serve.
    #[must_use]
    pub fn launch(&self, script: Script, arguments: &[&str]) -> Shard {
        let dir = TempDir::with_prefix("ostraca-shard-").expect("a directory");
        let file = |name| fs::File::create(dir.path().join(name)).expect("a file");
        let mut shard = command(&self.program);
        shard
            .arg("shard")
            .arg("--data")
            .arg(self.path())
            .args(["--shard", "0"])
            .args(arguments)
            // Ends with this process, however that ends.
            .arg("--parent")
            .arg(std::process::id().to_string())
            .env("OSTRACA_FAULTS", script.variable())
            .stdin(Stdio::null())
            .stdout(file("stdout"))
            .stderr(file("stderr"));
        let child = spawner::spawn(shard).expect("it starts");
        Shard {
            process: Process(child),
            script,
            dir,
        }
    }
}

/// Killed with this value.
struct Process(Child);

impl Process {
    fn exit(&mut self) -> Option<i32> {
        let status = spawner::wait(&mut self.0, DEADLINE);
        status.expect("it ends in time").code()
    }
}

impl Drop for Process {
    fn drop(&mut self) {
        // Errors mean that it has ended, which is what is wanted. A stopped process ends as well.
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// A process of the shard, killed with this value.
pub struct Shard {
    process: Process,
    /// Its script.
    pub script: Script,
    dir: TempDir,
}

impl Shard {
    /// Its process id.
    #[must_use]
    pub fn pid(&self) -> u32 {
        self.process.0.id()
    }

    /// All that it wrote to stderr so far.
    #[must_use]
    pub fn stderr(&self) -> String {
        fs::read_to_string(self.dir.path().join("stderr")).expect("a file")
    }

    /// Waits until it serves; the address of its gRPC.
    #[must_use]
    pub fn wait_ready(&mut self) -> String {
        self.wait_said("ready", 1)
    }

    /// Waits until it stands by, for the `nth` time since its start; the address of its gRPC.
    #[must_use]
    pub fn wait_standby(&mut self, nth: usize) -> String {
        self.wait_said("standby", nth)
    }

    /// Waits until it serves, for the `nth` time since its start.
    #[must_use]
    pub fn wait_leads(&mut self, nth: usize) -> String {
        self.wait_said("ready", nth)
    }

    fn wait_said(&mut self, word: &str, nth: usize) -> String {
        poll(&format!("the shard says `{word}`"), || {
            let ended = self.process.0.try_wait().expect("a child");
            assert!(ended.is_none(), "{ended:?}: {}", self.stderr());
            self.said(word).into_iter().nth(nth - 1)
        })
    }

    /// The addresses of the lines that begin with `word`, so far.
    #[must_use]
    pub fn said(&self, word: &str) -> Vec<String> {
        let said = fs::read_to_string(self.dir.path().join("stdout")).expect("a file");
        let lines = said
            .split_inclusive('\n')
            .filter(|line| line.ends_with('\n'));
        let addresses = lines.filter_map(|line| {
            let rest = line.strip_prefix(word)?.strip_prefix(" grpc=")?;
            rest.split_whitespace().next().map(str::to_owned)
        });
        addresses.collect()
    }

    /// Waits until a thread of it is held at `point`, and all of the process has stopped.
    pub fn wait_held(&mut self, point: &str) {
        poll(&format!("a thread is held at {point}"), || {
            let ended = self.process.0.try_wait().expect("a child");
            assert!(ended.is_none(), "{ended:?}: {}", self.stderr());
            let held = self.script.holds_at(point) && has_stopped(self.pid());
            held.then_some(())
        });
    }

    /// Stops it (SIGSTOP), and waits until every thread of it has.
    pub fn stop(&self) {
        crate::stop(self.pid());
    }

    /// Lets it go on (SIGCONT); a thread that is held at a point stays there.
    pub fn go_on(&self) {
        process::resume(self.pid()).expect("it is there");
    }

    /// Lets it go on, and with it the thread that is held at `point`.
    pub fn wake(&self, point: &str) {
        self.script.release(point);
        self.go_on();
    }

    /// Whether it has ended.
    pub fn has_ended(&mut self) -> bool {
        self.process.0.try_wait().expect("a child").is_some()
    }

    /// Waits for its end; the exit code, which a signal is not.
    pub fn exit(&mut self) -> Option<i32> {
        self.process.exit()
    }

    /// Stops it in order (SIGTERM); the exit code.
    pub fn terminate(&mut self) -> Option<i32> {
        process::terminate(self.pid()).expect("it runs");
        self.exit()
    }

    /// Kills it (SIGKILL).
    pub fn kill(&mut self) {
        process::kill(self.pid()).expect("it is there");
        assert_eq!(self.exit(), None, "it was killed");
    }
}

impl Drop for Shard {
    fn drop(&mut self) {
        if std::thread::panicking() {
            eprintln!("--- stderr of process {}\n{}---", self.pid(), self.stderr());
        }
    }
}

/// Whether every thread of a process is stopped. Asks only: one more signal could be pending when
/// the process goes on.
fn has_stopped(pid: u32) -> bool {
    let Ok(threads) = fs::read_dir(format!("/proc/{pid}/task")) else {
        return false;
    };
    threads.filter_map(Result::ok).all(|thread| {
        let stat = fs::read_to_string(thread.path().join("stat")).unwrap_or_default();
        // The name in parentheses may be anything.
        let state = stat.rsplit_once(')').map(|(_, rest)| rest.trim_start());
        state.is_some_and(|state| state.starts_with('T'))
    })
}
