//! `ostraca status`: who runs on a data directory, and how the shards are doing.

use std::fmt::Write as _;
use std::io::{self, Write as _};
use std::path::{Path, PathBuf};
use std::time::Duration;

use ostraca_client::{Client, Options, Seeds};
use ostraca_io::files;
use ostraca_server::DataDir;
use ostraca_server::endpoints::{self, Endpoint, Role, State};
use ostraca_types::ShardId;
use serde::Serialize;

use crate::args::StatusArgs;
use crate::exit::{Exit, Failure, written};
use crate::{client, data, process};

/// A process of this machine that is well answers in milliseconds.
const ANSWER_LIMIT: Duration = Duration::from_secs(3);

/// All that `--json` prints.
#[derive(Serialize)]
struct Report {
    data: PathBuf,
    cluster: String,
    /// Whether every process that belongs to the cluster runs and serves.
    serving: bool,
    processes: Vec<Process>,
}

#[derive(Serialize)]
struct Process {
    name: String,
    role: Role,
    /// `running` or `serving`; or else `starting`, `recovering`, `draining`, `stopped`, `unready`,
    /// `unreachable`, `restarting`, `failing`, `damaged` or `missing`.
    state: String,
    /// The exit code with which it ended last, if it has not served since.
    #[serde(skip_serializing_if = "Option::is_none")]
    exit: Option<u8>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pid: Option<u32>,
    #[serde(skip_serializing_if = "Option::is_none")]
    address: Option<String>,
    /// Where its metrics are.
    #[serde(skip_serializing_if = "Option::is_none")]
    metrics: Option<String>,
    #[serde(skip_serializing_if = "Vec::is_empty")]
    slots: Vec<u8>,
    #[serde(skip_serializing_if = "Option::is_none")]
    shard: Option<Counts>,
}

/// What a shard says about itself.
#[derive(Serialize)]
struct Counts {
    epoch: u64,
    sequence: u64,
    now_ms: u64,
    pastes: u64,
    idempotency_rows: u64,
    outbox_ready: u64,
    outbox_dropped: u64,
    dead_letters: u64,
    inbox_rows: u64,
    expiry_lag_ms: u64,
    outbox_oldest_age_ms: u64,
    queued: u64,
    commits: u64,
    syncs: u64,
    trouble: String,
}

pub(crate) fn run(args: &StatusArgs) -> Result<(), Failure> {
    let data = data::open(&args.data.path)?;
    let listed = endpoints::read(&data.run_dir()).map_err(|err| {
        let path = data.run_dir();
        Failure::doing(
            Exit::Failed,
            format_args!("cannot read endpoints.json in {}", path.display()),
            &err,
        )
    })?;
    let report = process::local_runtime()?.block_on(report(&data, &listed));
    let text = if args.json {
        let mut text = serde_json::to_string_pretty(&report)
            .map_err(|err| Failure::caused(Exit::Failed, &err))?;
        text.push('\n');
        text
    } else {
        table(&report)
    };
    written(io::stdout().lock().write_all(text.as_bytes()))?;
    if report.serving {
        return Ok(());
    }
    let bad: Vec<_> = report
        .processes
        .iter()
        .filter(|process| !process.is_well())
        .collect();
    let names: Vec<_> = bad
        .iter()
        .map(|bad| format!("{} is {}", bad.name, bad.state))
        .collect();
    Err(Failure::new(Exit::Unavailable, names.join(", ")))
}

async fn report(data: &DataDir, listed: &[Endpoint]) -> Report {
    // What is told about processes is as old as who told it.
    let is_up =
        |endpoint: &Endpoint| endpoint.role == Role::Up && endpoint.pid.is_some_and(is_running);
    let listed = if listed.iter().any(is_up) {
        listed
    } else {
        &[]
    };
    let listed = |name: &str| listed.iter().find(|endpoint| endpoint.name == name);
    let mut processes = vec![up(listed("up"))];
    let mut all_led = true;
    for shard in (0..data.shards()).map(ShardId) {
        let name = format!("shard-{shard}");
        let slots: Vec<u8> = data.slots_of(shard).iter().map(|slot| slot.0).collect();
        let first = shard_process(name.clone(), slots.clone(), listed(&name)).await;
        let mut led = first.state == "serving";
        processes.push(first);
        let second = format!("{name}-second");
        if let Some(endpoint) = listed(&second) {
            let second = shard_process(second, slots, Some(endpoint)).await;
            led |= second.state == "serving";
            processes.push(second);
        }
        all_led &= led;
    }
    for (name, role) in [("frontend", Role::Frontend), ("worker", Role::Worker)] {
        processes.push(http_process(name, role, listed(name)).await);
    }
    Report {
        data: data.path().to_owned(),
        cluster: data.cluster().to_string(),
        serving: all_led && processes.iter().all(Process::is_well),
        processes,
    }
}

fn up(endpoint: Option<&Endpoint>) -> Process {
    let mut process = Process::new("up".to_owned(), Role::Up, endpoint);
    if process.pid.is_some() {
        "running".clone_into(&mut process.state);
    }
    process
}

async fn shard_process(name: String, slots: Vec<u8>, endpoint: Option<&Endpoint>) -> Process {
    let mut process = Process::new(name, Role::Shard, endpoint);
    process.slots = slots;
    let Some(address) = process.address.clone() else {
        return process;
    };
    let client = Client::new(Options {
        deadline: ANSWER_LIMIT,
        ..Options::new(Seeds::Fixed(Vec::new()))
    });
    let Ok(status) = client.status_of(&address).await else {
        return process;
    };
    // Another process may listen there by now.
    if process.pid != Some(status.pid) {
        return process;
    }
    let state = status.state().as_str_name();
    process.state = state
        .strip_prefix("SHARD_STATE_")
        .unwrap_or(state)
        .to_lowercase();
    process.shard = Some(Counts {
        epoch: status.epoch,
        sequence: status.sequence,
        now_ms: status.now_ms,
        pastes: status.pastes,
        idempotency_rows: status.idempotency_rows,
        outbox_ready: status.outbox_ready,
        outbox_dropped: status.outbox_dropped,
        dead_letters: status.dead_letters,
        inbox_rows: status.inbox_rows,
        expiry_lag_ms: status.expiry_lag_ms,
        outbox_oldest_age_ms: status.outbox_oldest_age_ms,
        queued: status.queued,
        commits: status.commits,
        syncs: status.syncs,
        trouble: status.trouble,
    });
    process
}

async fn http_process(name: &str, role: Role, endpoint: Option<&Endpoint>) -> Process {
    let mut process = Process::new(name.to_owned(), role, endpoint);
    let Some(url) = process.address.clone() else {
        return process;
    };
    match client::is_ready(&url, ANSWER_LIMIT).await {
        Some(true) => "serving".clone_into(&mut process.state),
        Some(false) => "unready".clone_into(&mut process.state),
        None => {}
    }
    process
}

impl Process {
    /// What the list says, as far as the process table agrees.
    fn new(name: String, role: Role, endpoint: Option<&Endpoint>) -> Self {
        let running = endpoint.filter(|endpoint| endpoint.pid.is_some_and(is_running));
        let exit = endpoint.and_then(|endpoint| endpoint.exit);
        let state = match (endpoint.map(|endpoint| endpoint.state), running) {
            (Some(State::Damaged), _) => "damaged",
            (Some(State::Starting | State::Restarting), _) if exit.is_some() => "failing",
            (Some(State::Starting), _) => "starting",
            (Some(State::Restarting), _) => "restarting",
            (Some(State::Serving | State::Standby), Some(_)) => "unreachable",
            (Some(State::Serving | State::Standby) | None, _) => "missing",
        };
        Self {
            name,
            role,
            state: state.to_owned(),
            exit,
            pid: running.and_then(|endpoint| endpoint.pid),
            address: running.and_then(|endpoint| endpoint.grpc.clone().or(endpoint.http.clone())),
            metrics: running.and_then(|endpoint| endpoint.metrics.clone()),
            slots: Vec::new(),
            shard: None,
        }
    }

    fn is_well(&self) -> bool {
        matches!(self.state.as_str(), "running" | "serving" | "standby")
    }
}

/// Whether `pid` is a process of this program that has not ended.
fn is_running(pid: u32) -> bool {
    let stat = |pid: &str| files::read_text(&Path::new("/proc").join(pid).join("stat"));
    match (stat(&pid.to_string()), stat("self")) {
        (Ok(other), Ok(own)) => {
            let (other, own) = (name_and_state(&other), name_and_state(&own));
            // One that ended, and that nobody waited for, is still in the table.
            other.is_some_and(|(name, state)| {
                !matches!(state, 'Z' | 'X') && own.is_some_and(|(own, _)| own == name)
            })
        }
        _ => false,
    }
}

/// A process's name, in which anything may stand, and its state, from `/proc/PID/stat`.
fn name_and_state(stat: &str) -> Option<(&str, char)> {
    let (head, tail) = stat.rsplit_once(')')?;
    let (_, name) = head.split_once('(')?;
    Some((name, tail.trim_start().chars().next()?))
}

/// Aligned columns; a last line for each process in trouble.
fn table(report: &Report) -> String {
    let mut rows = vec![
        [
            "NAME", "PID", "STATE", "SLOTS", "EPOCH", "PASTES", "PENDING", "OLDEST", "DEAD",
            "ADDRESS",
        ]
        .map(str::to_owned),
    ];
    for process in &report.processes {
        let count = |value: fn(&Counts) -> u64| {
            process
                .shard
                .as_ref()
                .map_or_else(dash, |counts| value(counts).to_string())
        };
        rows.push([
            process.name.clone(),
            process.pid.map_or_else(dash, |pid| pid.to_string()),
            process.state.clone(),
            slot_ranges(&process.slots),
            count(|counts| counts.epoch),
            count(|counts| counts.pastes),
            count(|counts| counts.outbox_ready),
            process.shard.as_ref().map_or_else(dash, oldest),
            count(|counts| counts.dead_letters),
            process.address.clone().unwrap_or_else(dash),
        ]);
    }
    let width = |column: usize| {
        rows.iter()
            .map(|row| row[column].len())
            .max()
            .unwrap_or_default()
    };
    let widths: [usize; 10] = std::array::from_fn(width);
    let mut text = String::new();
    for row in &rows {
        let mut line = String::new();
        for (cell, width) in row.iter().zip(widths) {
            // Writing to a string does not fail.
            let _ = write!(line, "{cell:<width$}  ");
        }
        text.push_str(line.trim_end());
        text.push('\n');
    }
    for process in &report.processes {
        if let Some(counts) = process
            .shard
            .as_ref()
            .filter(|counts| !counts.trouble.is_empty())
        {
            let _ = writeln!(text, "{}: {}", process.name, counts.trouble);
        }
        if let Some(exit) = process.exit {
            let again = match process.state.as_str() {
                "damaged" => "is not started again; `ostraca log verify` says what is damaged",
                _ => "is started again; what it says is on stderr of `ostraca up`",
            };
            let _ = writeln!(
                text,
                "{}: ended with exit code {exit}, {again}",
                process.name
            );
        }
    }
    text
}

/// How old the oldest message is that some consumer has not finished.
fn oldest(counts: &Counts) -> String {
    match counts.outbox_oldest_age_ms / 1000 {
        0 if counts.outbox_ready == 0 => dash(),
        secs @ 0..60 => format!("{secs}s"),
        secs @ 60..3600 => format!("{}m", secs / 60),
        secs @ 3600..86_400 => format!("{}h", secs / 3600),
        secs => format!("{}d", secs / 86_400),
    }
}

fn dash() -> String {
    "-".to_owned()
}

/// `0-127,200`, or a dash for none.
fn slot_ranges(slots: &[u8]) -> String {
    let ranges: Vec<_> = slots
        .chunk_by(|a, b| a.checked_add(1) == Some(*b))
        .map(|range| match range {
            [first, .., last] => format!("{first}-{last}"),
            other => other.iter().map(u8::to_string).collect(),
        })
        .collect();
    if ranges.is_empty() {
        dash()
    } else {
        ranges.join(",")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_process_has_a_name_and_a_state() {
        assert_eq!(name_and_state("7 (a) b (c) Z 1 7"), Some(("a) b (c", 'Z')));
        assert!(is_running(std::process::id()));
        assert!(!is_running(1), "another program");
    }

    #[test]
    fn a_process_is_as_its_supervisor_says() {
        let state = |state, pid, exit| {
            let endpoint = Endpoint {
                name: "shard-0".to_owned(),
                role: Role::Shard,
                state,
                pid,
                exit,
                grpc: None,
                http: None,
                metrics: None,
                slots: Vec::new(),
            };
            Process::new("shard-0".to_owned(), Role::Shard, Some(&endpoint)).state
        };
        let runs = Some(std::process::id());
        assert_eq!(state(State::Damaged, None, Some(7)), "damaged");
        assert_eq!(state(State::Restarting, None, Some(1)), "failing");
        assert_eq!(state(State::Starting, runs, Some(1)), "failing");
        assert_eq!(state(State::Restarting, None, None), "restarting");
        assert_eq!(state(State::Starting, runs, None), "starting");
        assert_eq!(state(State::Serving, runs, None), "unreachable");
        assert_eq!(state(State::Serving, Some(1), None), "missing");
    }

    #[test]
    fn slots_are_shown_as_ranges() {
        assert_eq!(slot_ranges(&[]), "-");
        assert_eq!(slot_ranges(&[7]), "7");
        assert_eq!(slot_ranges(&[0, 1, 2, 9, 254, 255]), "0-2,9,254-255");
    }

    #[test]
    fn columns_are_aligned() {
        let report = Report {
            data: PathBuf::from("d"),
            cluster: String::new(),
            serving: false,
            processes: vec![
                Process::new("up".to_owned(), Role::Up, None),
                Process::new("shard-100".to_owned(), Role::Shard, None),
            ],
        };
        let text = table(&report);
        let columns: Vec<_> = text
            .lines()
            .map(|line| line.find("missing").or(line.find("STATE")))
            .collect();
        assert_eq!(columns, [columns[0]; 3], "\n{text}");
    }
}
