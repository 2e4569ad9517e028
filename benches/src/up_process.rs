//! A whole cluster on this machine: `ostraca up`.

use std::io::BufRead as _;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::Arc;

use ostraca_client::Seeds;
use ostraca_io::files;
use ostraca_server::endpoints::{self, Endpoint};
use tempfile::TempDir;

use crate::Failure;

/// The script's directory, beside the data.
const SCRIPT: &str = "script";

/// `ostraca up` and its children, which end with this value or with the process that has it.
#[derive(Debug)]
pub struct UpProcess {
    child: Child,
    run_dir: PathBuf,
    dir: TempDir,
}

impl UpProcess {
    /// Starts `program up` with so many shards on a new directory in `dir`, and waits until it is
    /// ready. Call it from the main thread.
    pub fn start(program: &Path, dir: &Path, shards: u16) -> Result<Self, Failure> {
        let dir = tempfile::tempdir_in(dir)?;
        let data = dir.path().join("data");
        let script = dir.path().join(SCRIPT);
        files::create_dir_durable(&script, 0o700)?;
        let mut child = Command::new(program)
            .args(["up", "--http", "127.0.0.1:0", "--log", "error"])
            .arg(format!("--shards={shards}"))
            .arg(format!("--parent={}", std::process::id()))
            .arg("--data")
            .arg(&data)
            .env("OSTRACA_FAULTS", &script)
            .stdin(Stdio::null())
            .stdout(Stdio::piped())
            .spawn()
            .map_err(|err| format!("cannot start {}: {err}", program.display()))?;
        let stdout = child.stdout.take();
        let this = Self {
            child,
            run_dir: data.join("run"),
            dir,
        };
        let mut line = String::new();
        std::io::BufReader::new(stdout.ok_or("no output")?).read_line(&mut line)?;
        if !line.starts_with("ready ") {
            return Err("`ostraca up` did not start".into());
        }
        Ok(this)
    }

    /// The process of a shard, while it serves.
    pub fn shard(&self, shard: usize) -> Result<Option<Endpoint>, Failure> {
        let name = format!("shard-{shard}");
        let list = endpoints::read(&self.run_dir)?;
        let serves = |endpoint: &Endpoint| endpoint.name == name && endpoint.grpc.is_some();
        Ok(list.into_iter().find(serves))
    }

    /// Scripts the disks of a program that has the feature `faults` (docs/faults.md); any other one
    /// takes no notice.
    pub fn script_disk(&self, lines: &str) -> Result<(), Failure> {
        let path = self.dir.path().join(SCRIPT).join("disk");
        Ok(files::replace_durable(&path, lines.as_bytes(), 0o600)?)
    }

    /// Where clients find the shards: as a frontend does.
    #[must_use]
    pub fn seeds(&self) -> Seeds {
        let run_dir = self.run_dir.clone();
        Seeds::Ask(Arc::new(move || {
            let list = endpoints::read(&run_dir).unwrap_or_default();
            list.into_iter()
                .filter_map(|endpoint| endpoint.grpc)
                .collect()
        }))
    }
}

impl Drop for UpProcess {
    fn drop(&mut self) {
        // The kernel ends its children with it, also one that is stopped.
        drop(self.child.kill());
        drop(self.child.wait());
    }
}
