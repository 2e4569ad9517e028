//! `ostraca log`: looks at logs that change nothing, and the cut of one that is damaged. Payloads
//! are not shown: a create's has the sealed answer in it.

use std::fmt;
use std::io::{self, Write as _};
use std::path::{Path, PathBuf};

use ostraca_engine::{StoreError, StoreMeta};
use ostraca_io::RealDisk;
use ostraca_types::{ErrorKind, ShardId, Timestamp};
use ostraca_wal::{Error, Identity, Record, Report};
use serde::Serialize;
use time::OffsetDateTime;
use time::format_description::well_known::Rfc3339;

use crate::args::LogCommand;
use crate::data;
use crate::exit::{Exit, Failure, say, written};

use page::EpochPage;
use progress::Progress;

mod copies;
mod cut;
mod dump;
mod page;
mod progress;
mod stat;
mod verify;

pub(crate) fn run(command: LogCommand) -> Result<(), Failure> {
    match command {
        LogCommand::Verify(args) => verify::run(&args),
        LogCommand::Dump(args) => dump::run(&args),
        LogCommand::Stat(args) => stat::run(&args),
        LogCommand::Cut(args) => cut::run(&args),
    }
}

/// What is wrong with the logs: told at once for each, and together at the end.
#[derive(Default)]
struct Troubles {
    shards: Vec<String>,
    damaged: bool,
}

impl Troubles {
    fn note(&mut self, dir: &ShardDir, failure: &Failure) {
        say(failure);
        let shard = format!("shard-{}", dir.shard);
        if self.shards.last() != Some(&shard) {
            self.shards.push(shard);
        }
        self.damaged |= failure.exit == Exit::Damaged;
    }

    fn into_result(self) -> Result<(), Failure> {
        if self.shards.is_empty() {
            return Ok(());
        }
        let exit = if self.damaged {
            Exit::Damaged
        } else {
            Exit::Failed
        };
        Err(Failure::new(
            exit,
            format!("not valid: {}", self.shards.join(", ")),
        ))
    }
}

/// A shard's directory.
struct ShardDir {
    path: PathBuf,
    shard: ShardId,
    meta: Result<StoreMeta, StoreError>,
}

/// A shard's log, opened for a look.
struct OpenLog {
    /// Read before the log is: the log must reach to what it says.
    page: EpochPage,
    disk: RealDisk,
    identity: Identity,
}

/// Those of a data directory, or the one that `path` is.
fn shard_dirs(path: &Path) -> Result<Vec<ShardDir>, Failure> {
    match StoreMeta::read(path) {
        Ok(meta) => {
            return Ok(vec![ShardDir {
                path: path.to_owned(),
                shard: meta.shard,
                meta: Ok(meta),
            }]);
        }
        Err(StoreError::NotMade(_)) if path.is_dir() => {}
        Err(StoreError::NotMade(_)) => {
            let message = format!("no such directory: {}", path.display());
            return Err(Failure::new(Exit::NotFound, message));
        }
        Err(err) => return Err(store_failure(&err)),
    }
    let data = data::open(path)?;
    let shards = (0..data.shards()).map(ShardId);
    Ok(shards
        .map(|shard| {
            let path = data.shard_dir(shard);
            let meta = StoreMeta::read(&path);
            ShardDir { path, shard, meta }
        })
        .collect())
}

/// The directory is in the error.
fn store_failure(err: &StoreError) -> Failure {
    let exit = match err {
        // It was made with the cluster: then it is lost.
        StoreError::Damaged(_) | StoreError::NotMade(_) => Exit::Damaged,
        StoreError::Io(..) | StoreError::Newer(..) => Exit::Failed,
    };
    Failure::caused(exit, err)
}

impl ShardDir {
    fn open(&self) -> Result<OpenLog, Failure> {
        let meta = self.meta.as_ref().map_err(store_failure)?;
        let identity = Identity {
            store: meta.store,
            shard: self.shard,
        };
        let page = EpochPage::read(&self.path, &identity);
        let log = self.path.join("log");
        let disk = RealDisk::open(&log).map_err(|err| {
            Failure::doing(
                Exit::Failed,
                format_args!("cannot open {}", log.display()),
                &err,
            )
        })?;
        Ok(OpenLog {
            page,
            disk,
            identity,
        })
    }

    /// Its directory, then what is wrong in which file, and what can be done.
    fn failure(&self, err: &Error) -> Failure {
        let path = self.path.display();
        match err {
            // Its own text sends to this command.
            Error::Damaged { .. } => Failure::new(
                Exit::Damaged,
                format!(
                    "{path}: the log is damaged: {}; restore a copy, or see what a cut would lose: \
                     ostraca log cut {}",
                    Damage(err),
                    quoted(&self.path)
                ),
            ),
            err if err.kind() == ErrorKind::Damaged => Failure::doing(Exit::Damaged, path, err),
            err => Failure::doing(Exit::Failed, path, err),
        }
    }
}

impl OpenLog {
    /// Reads and verifies the log from end to end, and shows each record to `visit`.
    fn read(&self, dir: &ShardDir, mut visit: impl FnMut(&Record<'_>)) -> Result<Report, Error> {
        let mut progress = Progress::on_terminal(&format!("shard-{}", dir.shard));
        let durable = self.page.durable();
        ostraca_wal::verify(&self.disk, self.identity, durable, &mut |record| {
            if let Some(progress) = &mut progress {
                progress.record(record);
            }
            visit(record);
        })
    }
}

/// What is wrong, and where, without what to do about it.
struct Damage<'a>(&'a Error);

impl fmt::Display for Damage<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.0 {
            Error::Damaged {
                file,
                offset,
                sequence,
                fault,
            } => write!(
                f,
                "{fault}; file {file}, offset {offset}, sequence {sequence}"
            ),
            other => other.fmt(f),
        }
    }
}

fn print_json(value: &impl Serialize) -> Result<(), Failure> {
    let text =
        serde_json::to_string_pretty(value).map_err(|err| Failure::caused(Exit::Failed, &err))?;
    written(writeln!(io::stdout().lock(), "{text}"))
}

/// A path as a shell takes it.
fn quoted(path: &Path) -> String {
    let text = path.display().to_string();
    let plain = |char: char| char.is_ascii_alphanumeric() || "/._-+,:@%".contains(char);
    if !text.is_empty() && text.chars().all(plain) {
        return text;
    }
    format!("'{}'", text.replace('\'', "'\\''"))
}

/// Shard time as people read it; as a number where the calendar ends.
pub(crate) fn rfc3339(at: Timestamp) -> String {
    let nanos = i128::from(at.0) * 1_000_000;
    OffsetDateTime::from_unix_timestamp_nanos(nanos)
        .ok()
        .and_then(|time| time.format(&Rfc3339).ok())
        .unwrap_or_else(|| at.to_string())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn instants_are_shown_in_utc() {
        assert_eq!(rfc3339(Timestamp(0)), "1970-01-01T00:00:00Z");
        assert_eq!(
            rfc3339(Timestamp(1_700_000_000_123)),
            "2023-11-14T22:13:20.123Z"
        );
        assert_eq!(rfc3339(Timestamp(u64::MAX)), "18446744073709551615 ms");
    }

    #[test]
    fn a_path_is_quoted_where_a_shell_needs_it() {
        for (path, expected) in [
            ("/var/lib/ostraca/shard-0", "/var/lib/ostraca/shard-0"),
            ("my data/shard-0", "'my data/shard-0'"),
            ("it's", "'it'\\''s'"),
        ] {
            assert_eq!(quoted(Path::new(path)), expected);
        }
    }
}
