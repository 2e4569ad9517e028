//! `run/endpoints.json`: which processes of a data directory run, and where they listen.
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
}

/// One running process.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Endpoint {
    /// `shard-0`, `frontend`, `up`.
    pub name: String,
    /// What it does.
    pub role: Role,
    /// Its process id.
    pub pid: u32,
    /// `host:port` of its gRPC, if it serves that.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub grpc: Option<String>,
    /// Its HTTP URL, if it serves that.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub http: Option<String>,
    /// The slots it leads.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub slots: Vec<u8>,
}

const FILE: &str = "endpoints.json";

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
            pid: 7,
            grpc: Some("127.0.0.1:5000".to_owned()),
            http: None,
            slots: vec![0, 255],
        }];
        write(dir.path(), &endpoints).expect("written");
        assert_eq!(read(dir.path()).expect("read"), endpoints);
    }
}
