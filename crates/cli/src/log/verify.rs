//! `ostraca log verify`: whether the logs are what was written, and what they hold.

use std::fmt;
use std::io::{self, Write as _};
use std::path::PathBuf;

use ostraca_wal::{Report, SegmentId};
use serde::Serialize;

use crate::args::LogArgs;
use crate::exit::{Failure, written};

use super::page::EpochPage;
use super::{ShardDir, Troubles, shard_dirs};

/// One shard's log, as `--json` prints it.
#[derive(Serialize)]
struct Verified {
    shard: u16,
    directory: PathBuf,
    /// Whether the shard can be opened with it.
    valid: bool,
    /// What is wrong with the log; absent if nothing is.
    #[serde(skip_serializing_if = "Option::is_none")]
    trouble: Option<String>,
    /// Absent if it is not known whose it should be.
    #[serde(skip_serializing_if = "Option::is_none")]
    epoch_page: Option<EpochPage>,
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

/// Verifies every log, also after one that is damaged.
pub(super) fn run(args: &LogArgs) -> Result<(), Failure> {
    let mut troubles = Troubles::default();
    let mut all = Vec::new();
    for dir in shard_dirs(&args.path)? {
        let (one, failures) = verify(&dir);
        if !args.json {
            written(io::stdout().lock().write_all(one.to_string().as_bytes()))?;
        }
        all.push(one);
        failures
            .iter()
            .for_each(|failure| troubles.note(&dir, failure));
    }
    if args.json {
        super::print_json(&all)?;
    }
    troubles.into_result()
}

/// What a log holds, and all that is wrong with it.
fn verify(dir: &ShardDir) -> (Verified, Vec<Failure>) {
    let mut one = Verified {
        shard: dir.shard.0,
        directory: dir.path.clone(),
        valid: false,
        trouble: None,
        epoch_page: None,
        contents: None,
    };
    let mut failures = Vec::new();
    let read = dir.open().and_then(|log| {
        failures.extend(log.page.trouble(dir));
        one.epoch_page = Some(log.page.clone());
        log.read(dir, |_| {}).map_err(|err| dir.failure(&err))
    });
    match read {
        Ok(report) => one.contents = Some(Contents::from(&report)),
        Err(failure) => {
            one.trouble = Some(failure.to_string());
            failures.push(failure);
        }
    }
    one.valid = failures.is_empty();
    (one, failures)
}

impl From<&Report> for Contents {
    fn from(report: &Report) -> Self {
        let names =
            |segments: &[SegmentId]| segments.iter().map(ToString::to_string).collect::<Vec<_>>();
        let segments = report.segments.iter();
        Self {
            records: report.records,
            first_sequence: report.first_sequence.0,
            last_sequence: report.last_sequence.0,
            epochs: report.epochs.iter().map(|epoch| epoch.0).collect(),
            bytes: report.bytes,
            segments: segments.map(|one| one.segment.to_string()).collect(),
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
        let word = if self.valid { "valid" } else { "NOT VALID" };
        write!(f, "shard-{}  {word}", self.shard)?;
        match &self.contents {
            None => writeln!(f)?,
            Some(contents) => contents.fmt(f)?,
        }
        if let Some(page) = &self.epoch_page {
            writeln!(f, "  epoch page: {page}")?;
        }
        Ok(())
    }
}

/// The rest of a line, and more.
impl fmt::Display for Contents {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self {
            records,
            first_sequence,
            last_sequence,
            bytes,
            ..
        } = self;
        let (segments, epochs) = (self.segments.len(), self.epochs.len());
        writeln!(
            f,
            "  {records} records, sequence {first_sequence} to {last_sequence}, {epochs} epochs, \
             {segments} segments, {bytes} bytes"
        )?;
        if let Some(Torn {
            file,
            offset,
            bytes,
        }) = &self.torn
        {
            writeln!(
                f,
                "  a torn append, which the next start cuts: {file}, offset {offset}, {bytes} bytes"
            )?;
        }
        for segment in &self.passed_over {
            writeln!(f, "  not part of the history: {segment}")?;
        }
        for segment in &self.header_copies_lost {
            writeln!(f, "  one of two header copies is lost: {segment}")?;
        }
        Ok(())
    }
}
