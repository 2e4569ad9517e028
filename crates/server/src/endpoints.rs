//! `run/endpoints.json`: the processes of a data directory, how each is, and where it listens.
//!
//! Written by the supervisor whenever that changes, replaced atomically; read by shards (to answer
//! GetRouting), by the frontend (to find shards) and by people's scripts. It says what was true
//! when it was written and is no proof of anything.

use std::io;
use std::path::Path;

use ostraca_io::files;
use serde::{Deserialize, Serialize};

/// What a process does.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Role {
    /// The supervisor, `ostraca up`.
    Up,
    /// Leads a shard.
    Shard,
    /// Serves HTTP.
    Frontend,
    /// Deletes the objects of ended pastes, and purges the edge.
    Worker,
}

/// How a process is, as far as the supervisor knows.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum State {
    /// It runs or is about to, and does not serve yet.
    Starting,
    /// It serves.
    Serving,
    /// It would serve, if the shard's other process did not.
    Standby,
    /// It ended, and will be started again.
    Restarting,
    /// Its data is damaged: it is not started again.
    Damaged,
}

/// One process.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Endpoint {
    /// `shard-0`, `frontend`, `worker`, `up`.
    pub name: String,
    /// What it does.
    pub role: Role,
    /// How it is.
    pub state: State,
    /// Its process id, while it runs.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub pid: Option<u32>,
    /// The exit code with which it ended last, if it has not served since.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub exit: Option<u8>,
    /// `host:port` of its gRPC, if it serves that.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub grpc: Option<String>,
    /// Its HTTP URL, if it serves that: a frontend's pages, a worker's health.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub http: Option<String>,
    /// The URL of its metrics, if it serves them elsewhere.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub metrics: Option<String>,
    /// The slots it leads.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub slots: Vec<u8>,
}

const FILE: &str = "endpoints.json";

/// Which version of the list is there; `None` without one.
#[must_use]
pub fn version(run_dir: &Path) -> Option<files::FileVersion> {
    files::version(&run_dir.join(FILE)).ok()
}

/// Reads the list in `run_dir`; an absent file is an empty list.
pub fn read(run_dir: &Path) -> io::Result<Vec<Endpoint>> {
    match files::read(&run_dir.join(FILE)) {
        Err(err) if err.kind() == io::ErrorKind::NotFound => Ok(Vec::new()),
        Err(err) => Err(err),
        Ok(bytes) => serde_json::from_slice(&bytes).map_err(|_| io::ErrorKind::InvalidData.into()),
    }
}

/// Replaces the list in `run_dir`.
pub fn write(run_dir: &Path, endpoints: &[Endpoint]) -> io::Result<()> {
    let mut text = serde_json::to_vec_pretty(endpoints).map_err(io::Error::other)?;
    text.push(b'\n');
    files::replace_durable(&run_dir.join(FILE), &text, 0o644)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_was_written_is_read() {
        let dir = tempfile::tempdir().expect("a directory");
        assert_eq!(read(dir.path()).expect("no file yet"), []);
        let endpoints = [Endpoint {
            name: "shard-0".to_owned(),
            role: Role::Shard,
            state: State::Serving,
            pid: Some(7),
            exit: None,
            grpc: Some("127.0.0.1:5000".to_owned()),
            http: None,
            metrics: Some("http://127.0.0.1:5001/metrics".to_owned()),
            slots: vec![0, 255],
        }];
        write(dir.path(), &endpoints).expect("written");
        assert_eq!(read(dir.path()).expect("read"), endpoints);
    }
}
