//! `ostraca log dump`: the records, one a line.

use std::fmt;
use std::io::{self, BufWriter, Write as _};

use ostraca_engine::kind_name;
use ostraca_types::ShardId;
use ostraca_wal::{Error, Record, Recovery, Start};
use serde::Serialize;

use crate::args::DumpArgs;
use crate::exit::{Exit, Failure, written};

use super::{OpenLog, ShardDir, Troubles, rfc3339, shard_dirs};

/// One record, as `--json` prints it. Not its payload.
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

/// Why a dump of one log ended early.
enum Stopped {
    /// All that was asked for is printed.
    Done,
    Log(Error),
    Stdout(io::Error),
}

impl From<Error> for Stopped {
    fn from(err: Error) -> Self {
        Self::Log(err)
    }
}

/// Prints every record in order, of each log up to its end or its damage.
pub(super) fn run(args: &DumpArgs) -> Result<(), Failure> {
    if args.to.is_some_and(|to| to < args.from) {
        let message = "--to is below --from, so there is nothing to print";
        return Err(Failure::new(Exit::Usage, message));
    }
    let mut stdout = BufWriter::new(io::stdout().lock());
    let mut troubles = Troubles::default();
    for dir in shard_dirs(&args.path)? {
        let failure = match dir.open() {
            Err(failure) => Some(failure),
            Ok(log) => match dump(&dir, &log, args, &mut stdout) {
                Ok(()) | Err(Stopped::Done) => None,
                Err(Stopped::Log(err)) => Some(dir.failure(&err)),
                Err(Stopped::Stdout(err)) => return written(Err(err)),
            },
        };
        // So that what is told comes after the records that it is about.
        written(stdout.flush())?;
        if let Some(failure) = failure {
            troubles.note(&dir, &failure);
        }
    }
    troubles.into_result()
}

fn dump(
    dir: &ShardDir,
    log: &OpenLog,
    args: &DumpArgs,
    out: &mut impl io::Write,
) -> Result<(), Stopped> {
    let recovery = Recovery::read_from(&log.disk, log.identity, Start::Oldest)?;
    let recovery = recovery.at_least(log.page.durable());
    let replayed = recovery.replay(&log.disk, |record| {
        let sequence = record.sequence.0;
        if args.to.is_some_and(|to| sequence > to) {
            return Err(Stopped::Done);
        }
        if sequence < args.from {
            return Ok(());
        }
        let line = Line::new(dir.shard, record);
        if args.json {
            serde_json::to_writer(&mut *out, &line).map_err(|err| Stopped::Stdout(err.into()))?;
            writeln!(out).map_err(Stopped::Stdout)
        } else {
            writeln!(out, "{line}").map_err(Stopped::Stdout)
        }
    });
    replayed.map(|_| ())
}

impl Line {
    fn new(shard: ShardId, record: &Record<'_>) -> Self {
        Self {
            shard: shard.0,
            sequence: record.sequence.0,
            epoch: record.epoch.0,
            time: rfc3339(record.time),
            kind: kind(record.kind),
            version: record.version,
            slot: record.slot.0,
            payload_bytes: record.payload.len(),
            segment: record.segment.to_string(),
            offset: record.offset,
        }
    }
}

/// Its name; the number of one that this program does not know.
pub(super) fn kind(kind: u8) -> String {
    kind_name(kind).map_or_else(|| kind.to_string(), str::to_owned)
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
