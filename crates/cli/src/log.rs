//! `ostraca log`: a look at logs that changes nothing. Payloads are not shown: a create's has the
//! sealed answer in it.

use std::fmt;
use std::io::{self, BufWriter, Write as _};
use std::path::{Path, PathBuf};

use ostraca_engine::{StoreError, StoreMeta, kind_name};
use ostraca_io::RealDisk;
use ostraca_types::{ErrorKind, ShardId, Timestamp};
use ostraca_wal::{Error, Identity, Record, Recovery, Report, Start};
use serde::Serialize;
use time::OffsetDateTime;
use time::format_description::well_known::Rfc3339;

use crate::args::{LogArgs, LogCommand};
use crate::data;
use crate::exit::{Exit, Failure, say, written};

/// One shard's log, as `--json` prints it.
#[derive(Serialize)]
struct Verified {
    shard: u16,
    directory: PathBuf,
    /// What is wrong; absent if nothing is.
    #[serde(skip_serializing_if = "Option::is_none")]
    trouble: Option<String>,
    #[serde(flatten)]
    contents: Option<Contents>,
}

#[derive(Serialize)]
struct Contents {
    records: u64,
    first_sequence: u64,
    last_sequence: u64,
    epochs: Vec<u64>,
    bytes: u64,
    segments: Vec<String>,
    passed_over: Vec<String>,
    header_copies_lost: Vec<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    torn: Option<Torn>,
}

/// An append that never was acknowledged; the next start cuts it.
#[derive(Serialize)]
struct Torn {
    file: String,
    offset: u64,
    bytes: u64,
}

/// One record, as `dump --json` prints it.
#[derive(Serialize)]
struct Line {
    shard: u16,
    sequence: u64,
    epoch: u64,
    time: String,
    kind: String,
    version: u8,
    slot: u8,
    payload_bytes: usize,
    segment: String,
    offset: u64,
}

pub(crate) fn run(command: LogCommand) -> Result<(), Failure> {
    match command {
        LogCommand::Verify(args) => verify(&args),
        LogCommand::Dump(args) => dump(&args),
    }
}

/// Verifies every log, also after one that is damaged.
fn verify(args: &LogArgs) -> Result<(), Failure> {
    let mut troubles = Troubles::default();
    let mut all = Vec::new();
    for dir in shard_dirs(&args.path)? {
        let outcome = dir.open().and_then(|(disk, identity)| {
            ostraca_wal::verify(&disk, identity, None, &mut |_| {}).map_err(|err| dir.failure(&err))
        });
        let one = Verified {
            shard: dir.shard.0,
            directory: dir.path.clone(),
            trouble: outcome.as_ref().err().map(ToString::to_string),
            contents: outcome.as_ref().ok().map(Contents::from),
        };
        if !args.json {
            written(io::stdout().lock().write_all(one.to_string().as_bytes()))?;
        }
        all.push(one);
        troubles.note(&dir, outcome.err());
    }
    if args.json {
        let text = serde_json::to_string_pretty(&all)
            .map_err(|err| Failure::caused(Exit::Failed, &err))?;
        written(writeln!(io::stdout().lock(), "{text}"))?;
    }
    troubles.into_result()
}

/// What is wrong with the logs: told at once for each, and together at the end.
#[derive(Default)]
struct Troubles {
    shards: Vec<String>,
    damaged: bool,
}

impl Troubles {
    fn note(&mut self, dir: &ShardDir, failure: Option<Failure>) {
        if let Some(failure) = failure {
            say(&failure);
            self.shards.push(format!("shard-{}", dir.shard));
            self.damaged |= failure.exit == Exit::Damaged;
        }
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

/// Why a dump of one log ended early.
enum Stopped {
    Log(Error),
    Stdout(io::Error),
}

impl From<Error> for Stopped {
    fn from(err: Error) -> Self {
        Self::Log(err)
    }
}

/// Prints every record in order, of each log up to its end or its damage.
fn dump(args: &LogArgs) -> Result<(), Failure> {
    let mut stdout = BufWriter::new(io::stdout().lock());
    let mut troubles = Troubles::default();
    for dir in shard_dirs(&args.path)? {
        let failure = match dir.open() {
            Err(failure) => Some(failure),
            Ok((disk, identity)) => match dump_log(&dir, &disk, identity, args.json, &mut stdout) {
                Ok(()) => None,
                Err(Stopped::Log(err)) => Some(dir.failure(&err)),
                Err(Stopped::Stdout(err)) => return written(Err(err)),
            },
        };
        // So that what is told comes after the records that it is about.
        written(stdout.flush())?;
        troubles.note(&dir, failure);
    }
    troubles.into_result()
}

fn dump_log(
    dir: &ShardDir,
    disk: &RealDisk,
    identity: Identity,
    json: bool,
    out: &mut impl io::Write,
) -> Result<(), Stopped> {
    let recovery = Recovery::read_from(disk, identity, Start::Oldest)?;
    let replayed = recovery.replay(disk, |record| {
        let line = Line::new(dir.shard, record);
        if json {
            serde_json::to_writer(&mut *out, &line).map_err(|err| Stopped::Stdout(err.into()))?;
            writeln!(out).map_err(Stopped::Stdout)
        } else {
            writeln!(out, "{line}").map_err(Stopped::Stdout)
        }
    });
    replayed.map(|_| ())
}

/// A shard's directory.
struct ShardDir {
    path: PathBuf,
    shard: ShardId,
    meta: Result<StoreMeta, StoreError>,
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
    fn open(&self) -> Result<(RealDisk, Identity), Failure> {
        let meta = self.meta.as_ref().map_err(store_failure)?;
        let log = self.path.join("log");
        let disk = RealDisk::open(&log).map_err(|err| {
            Failure::doing(
                Exit::Failed,
                format_args!("cannot open {}", log.display()),
                &err,
            )
        })?;
        Ok((
            disk,
            Identity {
                store: meta.store,
                shard: self.shard,
            },
        ))
    }

    /// Its directory, then what is wrong in which file.
    fn failure(&self, err: &Error) -> Failure {
        let path = self.path.display();
        match err {
            // Its own text sends to this command.
            Error::Damaged {
                file,
                offset,
                sequence,
                fault,
            } => Failure::new(
                Exit::Damaged,
                format!(
                    "{path}: the log is damaged: {fault}; file {file}, offset {offset}, sequence \
                     {sequence}"
                ),
            ),
            err if err.kind() == ErrorKind::Damaged => Failure::doing(Exit::Damaged, path, err),
            err => Failure::doing(Exit::Failed, path, err),
        }
    }
}

impl From<&Report> for Contents {
    fn from(report: &Report) -> Self {
        let names = |segments: &[ostraca_wal::SegmentId]| {
            segments.iter().map(ToString::to_string).collect()
        };
        Self {
            records: report.records,
            first_sequence: report.first_sequence.0,
            last_sequence: report.last_sequence.0,
            epochs: report.epochs.iter().map(|epoch| epoch.0).collect(),
            bytes: report.bytes,
            segments: report
                .segments
                .iter()
                .map(|one| one.segment.to_string())
                .collect(),
            passed_over: names(&report.passed_over),
            header_copies_lost: names(&report.header_copies_lost),
            torn: report.cut.as_ref().map(|cut| Torn {
                file: cut.file.to_string(),
                offset: cut.offset,
                bytes: cut.bytes_not_zero,
            }),
        }
    }
}

impl fmt::Display for Verified {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let shard = self.shard;
        let Some(contents) = &self.contents else {
            return writeln!(f, "shard-{shard}  NOT VALID");
        };
        let Contents {
            records,
            first_sequence,
            last_sequence,
            bytes,
            ..
        } = contents;
        let (segments, epochs) = (contents.segments.len(), contents.epochs.len());
        writeln!(
            f,
            "shard-{shard}  valid  {records} records, sequence {first_sequence} to {last_sequence}, \
             {epochs} epochs, {segments} segments, {bytes} bytes"
        )?;
        if let Some(Torn {
            file,
            offset,
            bytes,
        }) = &contents.torn
        {
            writeln!(
                f,
                "  a torn append, which the next start cuts: {file}, offset {offset}, {bytes} bytes"
            )?;
        }
        for segment in &contents.passed_over {
            writeln!(f, "  not part of the history: {segment}")?;
        }
        for segment in &contents.header_copies_lost {
            writeln!(f, "  one of two header copies is lost: {segment}")?;
        }
        Ok(())
    }
}

impl Line {
    fn new(shard: ShardId, record: &Record<'_>) -> Self {
        Self {
            shard: shard.0,
            sequence: record.sequence.0,
            epoch: record.epoch.0,
            time: rfc3339(record.time),
            kind: kind_name(record.kind).map_or_else(|| record.kind.to_string(), str::to_owned),
            version: record.version,
            slot: record.slot.0,
            payload_bytes: record.payload.len(),
            segment: record.segment.to_string(),
            offset: record.offset,
        }
    }
}

impl fmt::Display for Line {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self {
            shard,
            sequence,
            epoch,
            time,
            kind,
            version,
            slot,
            payload_bytes,
            segment,
            offset,
        } = self;
        write!(
            f,
            "shard-{shard}  sequence {sequence}  epoch {epoch}  {time}  {kind:<6}  version {version}  \
             slot {slot:>3}  {payload_bytes} bytes  {segment}:{offset}"
        )
    }
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
}
