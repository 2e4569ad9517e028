//! `ostraca log stat`: what the logs are made of.

use std::collections::BTreeMap;
use std::fmt;
use std::io::{self, Write as _};
use std::path::PathBuf;

use ostraca_io::{Disk as _, DiskFile as _, FileName, RealDisk, RealFile};
use ostraca_types::Timestamp;
use ostraca_wal::{
    BATCH_HEADER_SIZE, RECORD_HEADER_SIZE, Record, Report, SEGMENT_HEADER_SIZE, SegmentId,
};
use serde::Serialize;

use crate::args::LogArgs;
use crate::exit::{Exit, Failure, written};

use super::dump::kind;
use super::page::EpochPage;
use super::{OpenLog, ShardDir, Troubles, rfc3339, shard_dirs};

/// Epochs of the table: every start is one, and the last ones are of interest. `--json` has all.
const EPOCHS_SHOWN: usize = 10;

/// One shard, as `--json` prints it.
#[derive(Serialize)]
struct Stat {
    shard: u16,
    directory: PathBuf,
    /// Whether it was read to its end; else what follows is what is before the damage.
    whole: bool,
    epoch_page: Option<EpochPage>,
    files: Files,
    #[serde(flatten)]
    records: Records,
    /// Bytes of all batches, padding included; absent unless the log was read to its end.
    #[serde(skip_serializing_if = "Option::is_none")]
    bytes: Option<u64>,
    /// Segments outside the history: prepared ones, torn creations, a stale leader's.
    passed_over: Vec<PassedOver>,
}

/// The files of the log's directory.
#[derive(Default, Serialize)]
struct Files {
    /// Segments of the history; all of them if the log was not read to its end.
    segments: Group,
    /// Segments that nothing was written to yet: prepared, and not needed so far.
    prepared: Group,
    /// Other segments outside the history: torn creations, a stale leader's.
    passed_over: Group,
    /// Zeros that keep room for the next start.
    ballast: Group,
    /// Segments that are being filled with zeros, and what a killed process left of that.
    temporary: Group,
    /// Not the log's.
    other: Group,
}

#[derive(Default, Serialize)]
struct Group {
    count: u64,
    bytes: u64,
}

#[derive(Serialize)]
struct PassedOver {
    segment: String,
    bytes: u64,
    /// Nothing was written to it yet.
    prepared: bool,
}

/// What a log's records are.
#[derive(Default, Serialize)]
struct Records {
    records: u64,
    first_sequence: u64,
    last_sequence: u64,
    #[serde(skip_serializing_if = "Option::is_none")]
    first_time: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    last_time: Option<String>,
    /// Batches that have records: marks are none.
    batches: u64,
    payload_bytes: u64,
    kinds: Vec<Kind>,
    epochs: Vec<Epoch>,
}

#[derive(Serialize)]
struct Kind {
    kind: String,
    records: u64,
    payload_bytes: u64,
}

/// The records that were first appended under one epoch.
#[derive(Serialize)]
struct Epoch {
    epoch: u64,
    first_sequence: u64,
    last_sequence: u64,
    records: u64,
}

pub(super) fn run(args: &LogArgs) -> Result<(), Failure> {
    let mut troubles = Troubles::default();
    let mut all = Vec::new();
    for dir in shard_dirs(&args.path)? {
        let log = match dir.open() {
            Ok(log) => log,
            Err(failure) => {
                troubles.note(&dir, &failure);
                continue;
            }
        };
        let (stat, failures) = stat(&dir, &log)?;
        if !args.json {
            written(io::stdout().lock().write_all(stat.to_string().as_bytes()))?;
        }
        all.push(stat);
        failures
            .iter()
            .for_each(|failure| troubles.note(&dir, failure));
    }
    if args.json {
        super::print_json(&all)?;
    }
    troubles.into_result()
}

fn stat(dir: &ShardDir, log: &OpenLog) -> Result<(Stat, Vec<Failure>), Failure> {
    let mut tally = Tally::default();
    let read = log.read(dir, |record| tally.count(record));
    let mut failures: Vec<_> = log.page.trouble(dir).into_iter().collect();
    let report = read.map_err(|err| failures.push(dir.failure(&err))).ok();
    let listed = passed_over(&log.disk, report.as_ref())
        .and_then(|passed_over| Ok((files(&log.disk, &passed_over)?, passed_over)));
    let (files, passed_over) = listed.map_err(|err| {
        let path = log.disk.path().display();
        Failure::doing(
            Exit::Failed,
            format_args!("cannot look at the files in {path}"),
            &err,
        )
    })?;
    let stat = Stat {
        shard: dir.shard.0,
        directory: dir.path.clone(),
        whole: report.is_some(),
        epoch_page: Some(log.page.clone()),
        files,
        records: tally.finish(),
        bytes: report.map(|report| report.bytes),
        passed_over,
    };
    Ok((stat, failures))
}

/// Opens a file; `None` if it was removed since it was listed.
fn open(disk: &RealDisk, name: &FileName) -> io::Result<Option<RealFile>> {
    match disk.open_read_only(name) {
        Err(err) if err.kind() == io::ErrorKind::NotFound => Ok(None),
        other => other.map(Some),
    }
}

fn files(disk: &RealDisk, passed_over: &[PassedOver]) -> io::Result<Files> {
    let mut files = Files::default();
    for name in disk.list()? {
        let Some(file) = open(disk, &name)? else {
            continue;
        };
        // The names of crates/wal/FORMAT.md.
        let group = match name.as_str().split_once('-') {
            Some(("seg", rest)) => {
                let segment = rest.trim_end_matches(".log");
                let outside = passed_over.iter().find(|one| one.segment == segment);
                match outside.map(|one| one.prepared) {
                    None => &mut files.segments,
                    Some(true) => &mut files.prepared,
                    Some(false) => &mut files.passed_over,
                }
            }
            Some(("bal", _)) => &mut files.ballast,
            Some(("tmp", _)) => &mut files.temporary,
            _ => &mut files.other,
        };
        group.count += 1;
        group.bytes += file.size()?;
    }
    Ok(files)
}

fn passed_over(disk: &RealDisk, report: Option<&Report>) -> io::Result<Vec<PassedOver>> {
    let mut found = Vec::new();
    for segment in report.iter().flat_map(|report| &report.passed_over) {
        if let Some(file) = open(disk, &segment.file_name())? {
            found.push(PassedOver {
                segment: segment.to_string(),
                bytes: file.size()?,
                prepared: is_unwritten(&file)?,
            });
        }
    }
    Ok(found)
}

/// Whether neither a header nor a first batch was written. Every segment has room for both.
fn is_unwritten(file: &RealFile) -> io::Result<bool> {
    const START: usize = 2 * SEGMENT_HEADER_SIZE + BATCH_HEADER_SIZE;
    let mut start = vec![0; START];
    if file.size()? < START as u64 {
        return Ok(false);
    }
    file.read_exact_at(&mut start, 0)?;
    Ok(start.iter().all(|&byte| byte == 0))
}

/// What is counted while a log is read.
#[derive(Default)]
struct Tally {
    records: Records,
    times: Option<(Timestamp, Timestamp)>,
    kinds: BTreeMap<u8, (u64, u64)>,
    /// Where a further record of the same batch would start.
    batch_goes_on: Option<(SegmentId, u64)>,
}

impl Tally {
    fn count(&mut self, record: &Record<'_>) {
        let (records, sequence) = (&mut self.records, record.sequence.0);
        let payload = record.payload.len() as u64;
        if records.records == 0 {
            records.first_sequence = sequence;
        }
        records.records += 1;
        records.last_sequence = sequence;
        records.payload_bytes += payload;
        let (first, last) = self.times.unwrap_or((record.time, record.time));
        self.times = Some((first.min(record.time), last.max(record.time)));
        let (count, bytes) = self.kinds.entry(record.kind).or_default();
        *count += 1;
        *bytes += payload;
        match records.epochs.last_mut() {
            Some(epoch) if epoch.epoch == record.epoch.0 => {
                epoch.last_sequence = sequence;
                epoch.records += 1;
            }
            _ => records.epochs.push(Epoch {
                epoch: record.epoch.0,
                first_sequence: sequence,
                last_sequence: sequence,
                records: 1,
            }),
        }
        // Records of a batch follow back to back, and a batch header is before each batch.
        let here = (record.segment, record.offset);
        records.batches += u64::from(self.batch_goes_on != Some(here));
        let end = record.offset + RECORD_HEADER_SIZE as u64 + payload;
        self.batch_goes_on = Some((record.segment, end));
    }

    fn finish(self) -> Records {
        let mut records = self.records;
        records.first_time = self.times.map(|(first, _)| rfc3339(first));
        records.last_time = self.times.map(|(_, last)| rfc3339(last));
        let kinds = self.kinds.into_iter();
        records.kinds = kinds
            .map(|(number, (count, bytes))| Kind {
                kind: kind(number),
                records: count,
                payload_bytes: bytes,
            })
            .collect();
        records
    }
}

impl fmt::Display for Group {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:>5} files  {:>12} bytes", self.count, self.bytes)
    }
}

impl fmt::Display for Stat {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Records {
            records,
            first_sequence,
            last_sequence,
            batches,
            payload_bytes,
            ..
        } = &self.records;
        let whole = if self.whole {
            ""
        } else {
            "  NOT VALID, this is what is before the damage"
        };
        writeln!(
            f,
            "shard-{}  {records} records, sequence {first_sequence} to {last_sequence}{whole}",
            self.shard
        )?;
        if let Some(page) = &self.epoch_page {
            writeln!(f, "  epoch page   {page}")?;
        }
        if let Records {
            first_time: Some(first),
            last_time: Some(last),
            ..
        } = &self.records
        {
            writeln!(f, "  shard time   {first} to {last}")?;
        }
        // In tenths, without a float.
        let per_batch = (records * 10).checked_div(*batches).unwrap_or_default();
        writeln!(
            f,
            "  batches      {batches}, of {}.{} records on average",
            per_batch / 10,
            per_batch % 10
        )?;
        if let Some(bytes) = self.bytes {
            let around = bytes.saturating_sub(*payload_bytes);
            writeln!(
                f,
                "  bytes        {bytes}: {payload_bytes} of payload, {around} of headers and padding"
            )?;
        }
        self.files.fmt(f)?;
        for PassedOver {
            segment,
            bytes,
            prepared,
        } in &self.passed_over
        {
            let what = if *prepared {
                "prepared, not used yet"
            } else {
                "not part of the history"
            };
            writeln!(f, "    {segment}  {bytes} bytes  {what}")?;
        }
        self.records.fmt(f)
    }
}

impl fmt::Display for Files {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        writeln!(f, "  segments     {}", self.segments)?;
        writeln!(f, "  prepared     {}", self.prepared)?;
        writeln!(f, "  ballast      {}", self.ballast)?;
        writeln!(f, "  temporary    {}", self.temporary)?;
        if self.other.count > 0 {
            writeln!(f, "  not ours     {}", self.other)?;
        }
        writeln!(f, "  passed over  {}", self.passed_over)
    }
}

/// The two tables.
impl fmt::Display for Records {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        writeln!(
            f,
            "  {:<10}{:>12}{:>16}",
            "KIND", "RECORDS", "PAYLOAD BYTES"
        )?;
        for Kind {
            kind,
            records,
            payload_bytes,
        } in &self.kinds
        {
            writeln!(f, "  {kind:<10}{records:>12}{payload_bytes:>16}")?;
        }
        writeln!(
            f,
            "  {:<10}{:>12}{:>16}{:>14}",
            "EPOCH", "RECORDS", "FIRST SEQUENCE", "LAST"
        )?;
        let earlier = self.epochs.len().saturating_sub(EPOCHS_SHOWN);
        if earlier > 0 {
            writeln!(f, "  {earlier} earlier ones")?;
        }
        for Epoch {
            epoch,
            records,
            first_sequence,
            last_sequence,
        } in &self.epochs[earlier..]
        {
            writeln!(
                f,
                "  {epoch:<10}{records:>12}{first_sequence:>16}{last_sequence:>14}"
            )?;
        }
        Ok(())
    }
}
