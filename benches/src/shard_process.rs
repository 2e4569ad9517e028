//! A shard in a process of its own, on a real disk.

use std::io::BufRead as _;
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::sync::Arc;

use ostraca_io::{SystemClock, SystemEntropy, files, process};
use ostraca_server::{DataDir, Lead, ShardOptions, Told, serve_shard};
use ostraca_types::ShardId;

use crate::Failure;

/// Serves the one shard of a cluster in `dir`, and prints where: what the process does that
/// [`ShardProcess::start`] starts.
pub fn serve(dir: &Path, threads: usize, parent: u32) -> Result<(), Failure> {
    process::die_with_parent(parent)?;
    let runtime = tokio::runtime::Builder::new_multi_thread()
        .worker_threads(threads)
        .enable_all()
        .build()?;
    runtime.block_on(async {
        let options = ShardOptions {
            storage: ostraca_io::RealStorage,
            lead: Lead::IfFree,
            data: DataDir::init(dir, Some(1), &SystemEntropy)?,
            shard: ShardId(0),
            listener: std::net::TcpListener::bind("127.0.0.1:0")?,
            metrics: None,
            clock: Arc::new(SystemClock::new()?),
            entropy: Arc::new(SystemEntropy),
        };
        #[allow(
            clippy::print_stdout,
            reason = "the one line that the parent waits for"
        )]
        let ready = |told| {
            if let Told::Leads(address) = told {
                println!("{address}");
            }
        };
        Ok(serve_shard(options, ready, std::future::pending()).await?)
    })
}

/// A server process that ends with this value, or with the process that has it.
#[derive(Debug)]
pub struct ShardProcess {
    child: Child,
    /// Where it serves gRPC.
    pub address: String,
    _dir: tempfile::TempDir,
}

impl ShardProcess {
    /// Starts this program again with `--serve DIR --server-threads N --parent PID`, for a new
    /// directory in `dir`. Call it from the main thread.
    pub fn start(dir: &Path, threads: usize) -> Result<Self, Failure> {
        let dir = tempfile::tempdir_in(dir)?;
        let mut child = Command::new(std::env::current_exe()?)
            .arg("--serve")
            .arg(dir.path())
            .arg(format!("--server-threads={threads}"))
            .arg(format!("--parent={}", std::process::id()))
            .stdout(Stdio::piped())
            .spawn()?;
        let stdout = child.stdout.take();
        let mut this = Self {
            child,
            address: String::new(),
            _dir: dir,
        };
        let stdout = stdout.ok_or("no output")?;
        std::io::BufReader::new(stdout).read_line(&mut this.address)?;
        this.address.truncate(this.address.trim_end().len());
        if this.address.is_empty() {
            return Err("the shard did not start".into());
        }
        Ok(this)
    }

    /// Its process id.
    #[must_use]
    pub fn pid(&self) -> u32 {
        self.child.id()
    }
}

impl Drop for ShardProcess {
    fn drop(&mut self) {
        drop(self.child.kill());
        drop(self.child.wait());
    }
}

/// CPU time of all threads of the process `pid` so far, in microseconds.
pub fn cpu_us(pid: u32) -> Result<f64, Failure> {
    let stat = files::read_text(format!("/proc/{pid}/stat").as_ref())?;
    let after_name = stat.rsplit(')').next().ok_or("no stat")?;
    let ticks: f64 = after_name
        .split_whitespace()
        .skip(11)
        .take(2)
        .filter_map(|field| field.parse::<f64>().ok())
        .sum();
    // USER_HZ is 100 on Linux.
    Ok(ticks * 10_000.0)
}

/// Anonymous memory of the process `pid` that is resident, in MiB.
pub fn resident_mib(pid: u32) -> Result<f64, Failure> {
    let status = files::read_text(format!("/proc/{pid}/status").as_ref())?;
    let line = status
        .lines()
        .find_map(|line| line.strip_prefix("RssAnon:"));
    let kib: f64 = line
        .and_then(|line| line.split_whitespace().next())
        .ok_or("no RssAnon")?
        .parse()?;
    Ok(kib / 1024.0)
}
