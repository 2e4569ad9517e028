//! `ostraca up` in a directory of its own.

use std::fs;
use std::io::{BufRead as _, BufReader, Write as _};
use std::panic::{self, AssertUnwindSafe};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitStatus, Stdio};
use std::sync::mpsc::sync_channel;
use std::thread;

use ostraca_io::process;
use serde_json::Value;
use tempfile::TempDir;

use crate::http::Http;
use crate::spawner::{self, Ended};
use crate::{DEADLINE, poll};

/// How `up` is started.
#[derive(Debug, Clone)]
pub struct Options {
    program: PathBuf,
    shards: Option<u16>,
    arguments: Vec<String>,
    environment: Vec<(String, String)>,
}

impl Options {
    /// The binary at `program`, with all defaults but a free HTTP port.
    #[must_use]
    pub fn new(program: impl AsRef<Path>) -> Self {
        Self {
            program: program.as_ref().to_owned(),
            shards: None,
            arguments: Vec::new(),
            environment: Vec::new(),
        }
    }

    /// With `--shards`.
    #[must_use]
    pub const fn shards(mut self, shards: u16) -> Self {
        self.shards = Some(shards);
        self
    }

    /// With one more argument.
    #[must_use]
    pub fn argument(mut self, argument: &str) -> Self {
        self.arguments.push(argument.to_owned());
        self
    }

    /// With an environment variable.
    #[must_use]
    pub fn environment(mut self, name: &str, value: &str) -> Self {
        self.environment.push((name.to_owned(), value.to_owned()));
        self
    }

    /// `ostraca up` on `data`, not started yet.
    #[must_use]
    pub fn command(&self, data: &Path) -> Command {
        let mut command = command(&self.program);
        command
            .arg("up")
            .arg("--data")
            .arg(data)
            .args(["--http", "127.0.0.1:0"]);
        if let Some(shards) = self.shards {
            command.arg("--shards").arg(shards.to_string());
        }
        command.args(&self.arguments);
        command.envs(self.environment.iter().map(|(name, value)| (name, value)));
        // Ends with this process, however that ends.
        command.arg("--parent").arg(std::process::id().to_string());
        command
    }

    /// Starts it in a new directory and waits until it is ready.
    #[must_use]
    pub fn start(&self) -> Up {
        let dir = TempDir::with_prefix("ostraca-test-").expect("a directory");
        Up::start_in(dir, self.clone())
    }
}

/// The binary, with an environment that sends no request elsewhere.
#[must_use]
pub fn command(program: impl AsRef<Path>) -> Command {
    let mut command = Command::new(program.as_ref());
    for name in [
        "OSTRACA_URL",
        "OSTRACA_TOKEN",
        "OSTRACA_LOG",
        "http_proxy",
        "HTTP_PROXY",
        "all_proxy",
        "ALL_PROXY",
    ] {
        command.env_remove(name);
    }
    command
}

/// Rows of all shards.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Counts {
    /// Pastes that have not ended.
    pub pastes: u64,
    /// Keys with a stored answer.
    pub keys: u64,
}

/// A running `ostraca up`, ended with this value.
pub struct Up {
    options: Options,
    dir: TempDir,
    child: Child,
    /// What it printed.
    pub ready_line: String,
    /// Where it serves HTTP.
    pub url: String,
    /// Every process that it was ever seen to have started.
    seen: Vec<u32>,
}

impl Up {
    fn start_in(dir: TempDir, options: Options) -> Self {
        let (mut child, ready_line) = match launch(&options, dir.path()) {
            Ok(started) => started,
            Err(why) => panic!("{why}\n{}", stderr_of(dir.path())),
        };
        let url = ready_line
            .split_whitespace()
            .find_map(|word| word.strip_prefix("http="))
            .map(str::to_owned);
        let Some(url) = url else {
            // Not yet a value that would end it.
            let _ = child.kill().and_then(|()| child.wait());
            panic!("no http=URL in {ready_line}");
        };
        let mut up = Self {
            options,
            dir,
            child,
            ready_line,
            url,
            seen: Vec::new(),
        };
        up.note_processes();
        up
    }

    /// Its process id.
    #[must_use]
    pub fn pid(&self) -> u32 {
        self.child.id()
    }

    /// The data directory.
    #[must_use]
    pub fn data(&self) -> PathBuf {
        self.dir.path().join("data")
    }

    /// A directory of this test beside the data.
    #[must_use]
    pub fn scratch(&self) -> &Path {
        self.dir.path()
    }

    /// A client of its HTTP.
    #[must_use]
    pub fn http(&self) -> Http {
        Http::new(&self.url)
    }

    /// All that it and its children wrote to stderr so far.
    #[must_use]
    pub fn stderr(&self) -> String {
        stderr_of(self.dir.path())
    }

    /// The list of running processes, as JSON.
    #[must_use]
    pub fn endpoints(&self) -> Vec<Value> {
        let path = self.data().join("run/endpoints.json");
        let text = fs::read_to_string(&path).unwrap_or_else(|_| "[]".to_owned());
        serde_json::from_str(&text).expect("endpoints.json is replaced whole")
    }

    /// The process `name`, if it runs: its id and whether it serves.
    #[must_use]
    pub fn process(&self, name: &str) -> Option<(u32, bool)> {
        let list = self.endpoints();
        let entry = list.iter().find(|entry| entry["name"] == name)?;
        let pid = u32::try_from(entry["pid"].as_u64()?).ok()?;
        Some((pid, entry.get("grpc").or(entry.get("http")).is_some()))
    }

    /// Waits until the shard serves, as another process than `not`.
    pub fn wait_shard(&mut self, shard: u16, not: Option<u32>) -> u32 {
        self.wait_process(&format!("shard-{shard}"), not)
    }

    /// Waits until everything that is listed serves, and `shards` shards are.
    pub fn wait_ready(&mut self, shards: u16) {
        for shard in 0..shards {
            self.wait_shard(shard, None);
        }
        poll("the frontend serves", || {
            self.process("frontend").filter(|&(_, serves)| serves)
        });
    }

    /// Kills a shard's process with SIGKILL. `None` if it has none at this moment.
    pub fn kill_shard(&mut self, shard: u16) -> Option<u32> {
        self.kill_process(&format!("shard-{shard}"))
    }

    /// Kills the process `name` with SIGKILL. `None` if it does not run at this moment.
    pub fn kill_process(&mut self, name: &str) -> Option<u32> {
        let (pid, _) = self.process(name)?;
        self.seen.push(pid);
        process::kill(pid).ok().map(|()| pid)
    }

    /// Waits until the process `name` serves, as another one than `not`.
    pub fn wait_process(&mut self, name: &str, not: Option<u32>) -> u32 {
        let pid = poll(&format!("{name} serves again"), || {
            self.process(name)
                .filter(|&(pid, serves)| serves && Some(pid) != not)
                .map(|(pid, _)| pid)
        });
        self.note_processes();
        pid
    }

    /// Sends SIGTERM and waits for the end.
    pub fn stop(&mut self) -> ExitStatus {
        process::terminate(self.pid()).expect("it runs");
        self.wait()
    }

    /// Waits for the end.
    pub fn wait(&mut self) -> ExitStatus {
        self.note_processes();
        spawner::wait(&mut self.child, DEADLINE).expect("it stops in time")
    }

    /// Kills `up` itself with SIGKILL and waits for the end of its children.
    pub fn kill(&mut self) {
        self.note_processes();
        self.child.kill().expect("it runs");
        self.child.wait().expect("it ended");
        poll("the children of a killed `up` end", || {
            self.children().is_empty().then_some(())
        });
    }

    /// Starts it again on the same directory, after [`Self::stop`] or [`Self::kill`].
    pub fn start_again(&mut self) {
        let (child, ready_line) = launch(&self.options, self.dir.path())
            .unwrap_or_else(|why| panic!("{why}\n{}", self.stderr()));
        self.child = child;
        let url = ready_line
            .split_whitespace()
            .find_map(|word| word.strip_prefix("http="));
        url.expect("a URL").clone_into(&mut self.url);
        self.ready_line = ready_line;
        self.note_processes();
    }

    /// Runs the binary to its end with `arguments` and `stdin`, as a client of this `up`.
    #[must_use]
    pub fn run(&self, arguments: &[&str], stdin: &[u8]) -> Ended {
        let mut command = command(&self.options.program);
        command.args(arguments).env("OSTRACA_URL", &self.url);
        run(command, stdin)
    }

    fn status(&self) -> Ended {
        let data = self.data();
        self.run(
            &["status", "--json", "--data", data.to_str().expect("UTF-8")],
            b"",
        )
    }

    /// The sum of one number that every shard says about itself in `ostraca status --json`, whatever
    /// frontend and worker do; `None` while a shard does not answer.
    #[must_use]
    pub fn sum(&self, field: &str) -> Option<u64> {
        Some(self.numbers(field)?.into_iter().sum())
    }

    /// One number that every shard says about itself; `None` while a shard does not answer.
    fn numbers(&self, field: &str) -> Option<Vec<u64>> {
        let status = self.status();
        let status: Value = serde_json::from_slice(&status.stdout).expect("JSON");
        let processes = status["processes"].as_array().expect("a list");
        let shards = processes
            .iter()
            .filter(|process| process["role"] == "shard");
        shards
            .map(|process| {
                let shard = process.get("shard")?;
                let value = shard[field].as_u64();
                Some(value.unwrap_or_else(|| panic!("no {field} in {shard}")))
            })
            .collect()
    }

    /// What the shards hold together.
    #[must_use]
    pub fn counts(&self) -> Counts {
        let sum = |field| poll("every shard answers", || self.sum(field));
        Counts {
            pastes: sum("pastes"),
            keys: sum("idempotency_rows"),
        }
    }

    /// Waits until every shard's clock has come to `now_ms`: it follows the machine's only as far
    /// as a durable record allows, and catches up with a clock that was moved at the next one.
    pub fn wait_shard_time(&self, now_ms: u64) {
        poll("the shards' clocks have moved", || {
            // One that was killed a moment ago is started again.
            let clocks = self.numbers("now_ms")?;
            clocks.iter().all(|clock| *clock >= now_ms).then_some(())
        });
    }

    /// Its children that still run.
    #[must_use]
    pub fn children(&self) -> Vec<u32> {
        let data = self.data();
        self.seen
            .iter()
            .copied()
            .filter(|&pid| pid != self.pid() && serves(pid, &data))
            .collect()
    }

    fn note_processes(&mut self) {
        for entry in self.endpoints() {
            if let Some(pid) = entry["pid"]
                .as_u64()
                .and_then(|pid| u32::try_from(pid).ok())
                && !self.seen.contains(&pid)
            {
                self.seen.push(pid);
            }
        }
    }
}

impl Drop for Up {
    fn drop(&mut self) {
        self.note_processes();
        // Errors mean that it has ended, which is what is wanted.
        let _ = self.child.kill();
        let _ = self.child.wait();
        let started = std::time::Instant::now();
        while !self.children().is_empty() && started.elapsed() < DEADLINE {
            for pid in self.children() {
                let _ = process::kill(pid);
            }
            thread::sleep(std::time::Duration::from_millis(5));
        }
        if thread::panicking() {
            eprintln!("--- stderr of ostraca up\n{}---", self.stderr());
        }
    }
}

/// Runs a command to its end, which must come by the deadline.
#[must_use]
pub fn run(command: Command, stdin: &[u8]) -> Ended {
    run_while(command, stdin, |_| {})
}

/// Like [`run`]; `meanwhile` gets the process id.
#[must_use]
pub fn run_while(mut command: Command, stdin: &[u8], meanwhile: impl FnOnce(u32)) -> Ended {
    command
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped());
    let name = format!("{command:?}");
    let mut child = spawner::spawn(command).expect("it starts");
    let mut pipe = child.stdin.take().expect("a pipe");
    let input = stdin.to_owned();
    // A command that ends before it has read everything closes the pipe, as it may.
    let writer = thread::spawn(move || pipe.write_all(&input));
    let pid = child.id();
    let (ended, outcome) = sync_channel(1);
    let waiter = thread::spawn(move || {
        let _ = ended.send(child.wait_with_output());
    });
    let done = panic::catch_unwind(AssertUnwindSafe(|| meanwhile(pid)));
    let output = match (done, outcome.recv_timeout(DEADLINE)) {
        (Ok(()), Ok(output)) => output,
        (done, _) => {
            let _ = process::kill(pid);
            done.unwrap_or_else(|panic| panic::resume_unwind(panic));
            panic!("not within {DEADLINE:?}: {name}")
        }
    };
    let _ = writer.join();
    let _ = waiter.join();
    output.expect("it ran").into()
}

/// Sends a signal by its name, such as `INT` or `STOP`.
pub fn signal(name: &str, pid: u32) {
    let sent = Command::new("sh")
        .args(["-c", &format!("kill -{name} {pid}")])
        .status();
    assert!(sent.expect("sh runs").success(), "no process {pid}");
}

/// Whether `pid` is a process on `data`, and not another one that has the number by now.
fn serves(pid: u32, data: &Path) -> bool {
    // The command line of a process that ended, and was not waited for, is empty.
    let line = fs::read(format!("/proc/{pid}/cmdline")).unwrap_or_default();
    let data = data.as_os_str().as_encoded_bytes();
    line.split(|&byte| byte == 0)
        .any(|argument| argument == data)
}

fn stderr_of(dir: &Path) -> String {
    let bytes = fs::read(dir.join("stderr")).unwrap_or_default();
    String::from_utf8_lossy(&bytes).into_owned()
}

/// Starts `up` and reads its ready line.
fn launch(options: &Options, dir: &Path) -> Result<(Child, String), String> {
    let stderr = fs::OpenOptions::new()
        .create(true)
        .append(true)
        .open(dir.join("stderr"))
        .map_err(|err| err.to_string())?;
    let mut command = options.command(&dir.join("data"));
    command
        .stdin(Stdio::null())
        .stdout(Stdio::piped())
        .stderr(stderr);
    let mut child = spawner::spawn(command).map_err(|err| err.to_string())?;
    let mut stdout = BufReader::new(child.stdout.take().expect("a pipe"));
    let (lines, first) = sync_channel(1);
    thread::spawn(move || {
        let mut line = String::new();
        let read = stdout.read_line(&mut line);
        let _ = lines.send(read.map(|_| line));
        // The pipe stays open, so that nothing that is printed later fails.
        let mut rest = String::new();
        while matches!(stdout.read_line(&mut rest), Ok(1..)) {
            rest.clear();
        }
    });
    match first.recv_timeout(DEADLINE) {
        Ok(Ok(line)) if line.starts_with("ready ") => Ok((child, line.trim_end().to_owned())),
        other => {
            let _ = child.kill();
            let status = child.wait();
            Err(format!(
                "no ready line but {other:?}; it ended with {status:?}"
            ))
        }
    }
}

/// Stops a process (SIGSTOP), and waits until every thread of it has: until then one may still answer.
pub fn stop(pid: u32) {
    signal("STOP", pid);
    poll("every thread has stopped", || {
        let threads = fs::read_dir(format!("/proc/{pid}/task")).ok()?;
        let mut states = threads.filter_map(Result::ok).map(|thread| {
            let stat = fs::read_to_string(thread.path().join("stat")).ok()?;
            let (_, after_name) = stat.rsplit_once(')')?;
            after_name.trim_start().chars().next()
        });
        states.all(|state| state == Some('T')).then_some(())
    });
}
