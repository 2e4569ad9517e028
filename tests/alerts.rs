//! The alerts of deploy/prometheus: each is on a metric that a process exports, has its section in the
//! runbook, and comes when it should. The last, and the list of what is scraped, need promtool and jq, so they
//! run under OSTRACA_EXTERNAL=1.

#![expect(
    clippy::disallowed_methods,
    clippy::print_stderr,
    reason = "a test has files and a terminal of its own"
)]

use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};

use ostraca_tests::http::Http;
use ostraca_tests::pastes::{delete, save};
use ostraca_tests::{Ended, Options, Up, command, key, poll, run};
use ostraca_types::Reason;
use serde_json::Value;

const BINARY: &str = env!("CARGO_BIN_EXE_ostraca");
const PROMETHEUS: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/../../deploy/prometheus");
const RULES: &str = include_str!("../deploy/prometheus/ostraca.rules.yml");
const RULE_TESTS: &str = include_str!("../deploy/prometheus/ostraca.rules.test.yml");
const RUNBOOK: &str = include_str!("../docs/alerts.md");
const CONTRACT: &str = include_str!("../docs/contract.md");
/// What deploy/prometheus puts to every sample.
const TARGET_LABELS: [&str; 4] = ["job", "cluster", "instance", "shard"];

/// One alert.
#[derive(Debug, Default)]
struct Alert {
    name: String,
    expr: String,
    labels: BTreeMap<String, String>,
    annotations: BTreeMap<String, String>,
}

/// The alerts of the file of rules. Fails on a line that is written in another way than the rest, so that
/// no rule is left out; whether it is YAML that Prometheus takes is for promtool.
fn alerts() -> Vec<Alert> {
    let mut alerts: Vec<Alert> = Vec::new();
    for line in RULES.lines() {
        let text = line.trim_start();
        let indent = line.len() - text.len();
        let known = match (indent, text.split_once(": ")) {
            (_, _) if text.is_empty() || text.starts_with('#') => Some(()),
            (0, None) => (text == "groups:").then_some(()),
            (4, None) => (text == "rules:").then_some(()),
            (8, None) => (text == "annotations:").then_some(()),
            (2, Some(("- name", _))) | (8, Some(("for" | "expr", ">-"))) => Some(()),
            (6, Some(("- alert", name))) => {
                alerts.push(Alert {
                    name: name.to_owned(),
                    ..Alert::default()
                });
                Some(())
            }
            // The rest belongs to the alert before it.
            (8 | 10, _) => alerts.last_mut().and_then(|alert| alert.take(indent, text)),
            _ => None,
        };
        assert!(known.is_some(), "not understood: {line}");
    }
    alerts
}

impl Alert {
    fn take(&mut self, indent: usize, text: &str) -> Option<()> {
        match (indent, text.split_once(": ")) {
            (8, Some(("expr", expr))) => expr.clone_into(&mut self.expr),
            (8, Some(("for", _))) => {}
            (8, Some(("labels", labels))) => {
                let labels = labels.strip_prefix('{')?.strip_suffix('}')?;
                for label in labels.split(", ") {
                    let (name, value) = label.split_once(": ")?;
                    self.labels.insert(name.to_owned(), value.to_owned());
                }
            }
            (10, Some((name @ ("summary" | "description" | "runbook_url"), value))) => {
                let value = value.trim_matches('"').to_owned();
                self.annotations.insert(name.to_owned(), value);
            }
            // A line of an expression that has several.
            (10, _) => {
                self.expr.push(' ');
                self.expr.push_str(text);
            }
            _ => return None,
        }
        Some(())
    }

    fn annotation(&self, name: &str) -> &str {
        let value = self.annotations.get(name).map(String::as_str);
        value
            .filter(|value| !value.is_empty())
            .unwrap_or_else(|| panic!("{} has no {name}", self.name))
    }
}

/// What an expression asks for.
#[derive(Debug, Default)]
struct Uses {
    /// Of each selector: the metric, and its labels with what they are compared with.
    selectors: Vec<(String, Vec<(String, String)>)>,
    /// Labels that are grouped or matched by.
    labels: Vec<String>,
}

/// Reads an expression of PromQL as far as these rules go.
fn uses(expr: &str) -> Uses {
    let mut uses = Uses::default();
    let mut rest = expr;
    while let Some(first) = rest.chars().next() {
        if !(first.is_ascii_alphabetic() || first == '_') {
            // A number with its unit, a duration, or an operator.
            let end = match rest.find(|sign: char| !sign.is_ascii_alphanumeric()) {
                Some(0) => first.len_utf8(),
                end => end.unwrap_or(rest.len()),
            };
            rest = &rest[end..];
            continue;
        }
        let is_name = |sign: char| sign.is_ascii_alphanumeric() || matches!(sign, '_' | ':');
        let end = rest.find(|sign| !is_name(sign)).unwrap_or(rest.len());
        let (name, after) = rest.split_at(end);
        rest = after;
        match name {
            "by" | "without" | "on" | "ignoring" | "group_left" | "group_right" => {
                let (labels, after) = enclosed(rest, '(', ')').expect("a list of labels");
                let labels = labels.split(',').map(|label| label.trim().to_owned());
                uses.labels.extend(labels);
                rest = after;
            }
            "and" | "or" | "unless" | "offset" | "bool" => {}
            _ if rest.trim_start().starts_with('(') || is_aggregation(name) => {}
            metric => {
                let mut compared = Vec::new();
                if let Some((matchers, after)) = enclosed(rest, '{', '}') {
                    for matcher in matchers.split(',') {
                        let (label, value) = matcher.split_once('=').expect("a comparison");
                        let label = label.trim_end_matches('!').trim().to_owned();
                        let value = value.trim_matches(['~', '"']).to_owned();
                        compared.push((label, value));
                    }
                    rest = after;
                }
                uses.selectors.push((metric.to_owned(), compared));
            }
        }
    }
    uses
}

/// These may have their `by` before what they aggregate.
fn is_aggregation(name: &str) -> bool {
    matches!(name, "sum" | "min" | "max" | "avg" | "count")
}

/// What stands between two signs at the beginning of `text`, and what follows.
fn enclosed(text: &str, open: char, close: char) -> Option<(&str, &str)> {
    text.trim_start().strip_prefix(open)?.split_once(close)
}

/// By metric: its labels, with the values that were seen.
type Exported = BTreeMap<String, BTreeMap<String, BTreeSet<String>>>;

/// Adds what the process at `url` exports.
fn scrape(url: &str, exported: &mut Exported) {
    let server = url.strip_suffix("/metrics").expect("a URL of metrics");
    let answer = Http::new(server).get("/metrics");
    assert_eq!(answer.status, 200, "{url}");
    for sample in answer.text().lines() {
        if sample.starts_with('#') {
            continue;
        }
        let end = sample.find(['{', ' ']).expect("a value");
        let (metric, rest) = sample.split_at(end);
        let labels = exported.entry(metric.to_owned()).or_default();
        // No value has a comma or a brace; routes have braces, and no rule is on them.
        let Some((listed, _)) = enclosed(rest, '{', '}') else {
            continue;
        };
        for label in listed.split(',') {
            let (name, value) = label.split_once('=').expect("a label");
            let values = labels.entry(name.to_owned()).or_default();
            values.insert(value.trim_matches('"').to_owned());
        }
    }
}

/// The processes, by what `ostraca status --json` says.
fn status(up: &Up) -> Vec<Value> {
    let data = up.data();
    let data = data.to_str().expect("UTF-8");
    let ended = up.run(&["status", "--json", "--data", data], b"");
    let report: Value = serde_json::from_slice(&ended.stdout).expect("JSON");
    report["processes"].as_array().expect("a list").clone()
}

/// All that the processes of a cluster export, which has a refusal of each kind of counter behind it.
fn exported() -> Exported {
    let up = Options::new(BINARY).shards(1).start();
    let http = up.http();
    let created = save(&http, &key(), "text");
    assert_eq!(delete(&http, &created, &created.token).status, 204);
    // Refusals are counted from the first one on.
    assert_eq!(http.get(&created.api()).status, 404);
    let urls = poll("every process says where its metrics are", || {
        let processes = status(&up);
        let urls = processes.iter().filter_map(|process| {
            let url = process["metrics"].as_str().map(str::to_owned);
            let frontend = (process["role"] == "frontend").then_some(process["address"].as_str()?);
            url.or(frontend.map(|address| format!("{address}/metrics")))
        });
        let urls: Vec<_> = urls.collect();
        (urls.len() == 3).then_some(urls)
    });
    let mut exported = Exported::new();
    for url in urls {
        scrape(&url, &mut exported);
    }
    exported
}

/// What is wrong with an expression, by what is exported.
fn unknown(expr: &str, exported: &Exported) -> Vec<String> {
    let uses = uses(expr);
    let mut unknown: Vec<_> = uses
        .labels
        .iter()
        .filter(|label| !TARGET_LABELS.contains(&label.as_str()))
        .map(|label| format!("label {label}"))
        .collect();
    for (metric, labels) in &uses.selectors {
        let none = BTreeMap::new();
        // Prometheus makes this one.
        let known = match exported.get(metric) {
            None if metric == "up" => &none,
            None => {
                unknown.push(format!("metric {metric}"));
                continue;
            }
            Some(known) => known,
        };
        for (label, value) in labels {
            if TARGET_LABELS.contains(&label.as_str()) {
                continue;
            }
            let is_counted_later = label == "reason" && Reason::parse(value).is_some();
            let seen = known.get(label);
            if !seen.is_some_and(|seen| seen.contains(value) || is_counted_later) {
                unknown.push(format!("{metric}{{{label}={value}}}"));
            }
        }
    }
    unknown
}

/// A rule on a metric that nobody exports never pages, and nobody notices.
#[test]
fn w01_to_w08_rules_are_on_what_processes_export() {
    let exported = exported();
    for alert in alerts() {
        let uses = uses(&alert.expr);
        assert!(!uses.selectors.is_empty(), "{alert:?}");
        let wrong = unknown(&alert.expr, &exported);
        assert!(wrong.is_empty(), "{}: {wrong:?}", alert.name);
    }
    // What is not there is found.
    for (expr, wrong) in [
        ("sum(rate(ostraca_no_such_total[5m])) > 0", 1),
        ("max by (shard, slot) (ostraca_disk_full) == 1", 1),
        ("ostraca_refusals_total{reason=\"NO_SUCH\"} > 1", 1),
        ("ostraca_commits_total{outcome=\"created\"} offset 5m", 1),
        ("ostraca_disk_full or ostraca_nothing unless up", 1),
        ("increase(max by (cluster) (ostraca_epoch)[1h:1m]) > 0", 0),
    ] {
        assert_eq!(unknown(expr, &exported).len(), wrong, "{expr}");
    }
}

/// The sections of the runbook, by their headings.
fn sections() -> BTreeMap<&'static str, &'static str> {
    let sections = RUNBOOK.split("\n## ").skip(1);
    let sections = sections.map(|section| section.split_once('\n').expect("a heading's line"));
    sections.collect()
}

/// Who is paged at night reads what it means and what to do.
#[test]
fn w01_to_w08_every_alert_is_in_the_runbook() {
    let (alerts, sections) = (alerts(), sections());
    let mut rules = BTreeSet::new();
    for alert in &alerts {
        let name = &alert.name;
        assert_ne!(alert.annotation("summary"), alert.annotation("description"));
        let anchor = format!("docs/alerts.md#{}", name.to_lowercase());
        assert_eq!(alert.annotation("runbook_url"), anchor, "{name}");
        let section = sections.get(name.as_str());
        let section = section.unwrap_or_else(|| panic!("the runbook has no section {name}"));
        let severity = alert.labels.get("severity").map(String::as_str);
        assert!(matches!(severity, Some("page" | "ticket")), "{name}");
        if let Some(rule) = alert.labels.get("rule") {
            assert!(CONTRACT.contains(&format!("**{rule}**")), "{name}: {rule}");
            assert!(
                section.contains(&format!("\nRule {rule}.")),
                "{name}: {rule}"
            );
            rules.insert(rule.as_str());
        }
        for part in ["**Means**", "**Look**", "**Do**"] {
            assert!(section.contains(part), "{name}: no {part}");
        }
        // Each is seen to come, and not to come.
        let calm = format!("alertname: {name}, exp_alerts: []}}");
        assert!(RULE_TESTS.contains(&calm), "{name} is not seen not to come");
        let comes = format!("alertname: {name}\n        exp_alerts:\n          - exp_labels:");
        assert!(RULE_TESTS.contains(&comes), "{name} is not seen to come");
    }
    for rule in ["w01", "w02", "w03", "w04", "w06", "w07", "w08", "o05"] {
        assert!(rules.contains(rule), "no alert for {rule}");
    }
    for name in sections.keys().filter(|name| name.starts_with("Ostraca")) {
        let known = alerts.iter().any(|alert| alert.name == **name);
        assert!(known, "the runbook's {name} is no alert");
    }
}

/// What the runbook tells to type is there to be typed.
#[test]
fn the_commands_of_the_runbook_exist() {
    let mut commands = BTreeSet::new();
    for section in sections().values() {
        for line in section.lines() {
            let Some(line) = line.strip_prefix("ostraca ") else {
                continue;
            };
            let words = line.split_whitespace();
            let is_command = |word: &&str| {
                word.bytes()
                    .all(|byte| byte.is_ascii_lowercase() || byte == b'-')
            };
            let named: Vec<_> = words
                .clone()
                .take_while(|word| !word.starts_with("--"))
                .filter(is_command)
                .collect();
            let options = words.filter(|word| word.starts_with("--"));
            commands.insert((named, options.collect::<Vec<_>>()));
        }
    }
    assert!(commands.len() > 5, "{commands:?}");
    for (named, options) in commands {
        let mut help = command(BINARY);
        help.args(&named).arg("--help");
        let ended = run(help, b"");
        assert_eq!(ended.code(), Some(0), "{named:?}: {}", ended.stderr);
        for option in options {
            assert!(ended.text().contains(option), "{named:?} has no {option}");
        }
    }
}

/// Runs a tool to its end, which must be good.
fn tool(program: &str, arguments: &[&str], directory: &Path) -> Ended {
    let mut tool = command(program);
    tool.args(arguments).current_dir(directory);
    let ended = run(tool, b"");
    assert_eq!(
        ended.code(),
        Some(0),
        "{program} {arguments:?}\n{}{}",
        ended.text(),
        ended.stderr
    );
    ended
}

/// Whether to run `what`; says so where it does not.
fn external(what: &str) -> bool {
    let external = std::env::var_os("OSTRACA_EXTERNAL").is_some();
    if !external {
        eprintln!("not run without OSTRACA_EXTERNAL=1: {what}");
    }
    external
}

/// Each alert comes and does not come, by Prometheus's own evaluation.
#[test]
fn w01_to_w08_alerts_come_when_they_should() {
    if !external("the alerts in Prometheus (promtool)") {
        return;
    }
    let directory = PathBuf::from(PROMETHEUS);
    let checked = tool(
        "promtool",
        &["check", "rules", "ostraca.rules.yml"],
        &directory,
    );
    let found = format!("{} rules found", alerts().len());
    let said = format!("{}{}", checked.text(), checked.stderr);
    assert!(said.contains(&found), "not {found}: {said}");
    let tests = ["test", "rules", "ostraca.rules.test.yml"];
    let _ = tool("promtool", &tests, &directory);
    let _ = tool(
        "promtool",
        &["check", "config", "prometheus.yml"],
        &directory,
    );
}

/// The list of targets has every process, also one that does not run, with the labels that rules go by.
#[test]
fn every_process_is_a_target() {
    if !external("the list of targets for Prometheus (jq)") {
        return;
    }
    let mut up = Options::new(BINARY)
        .shards(1)
        .argument("--standbys")
        .start();
    poll("all run", || {
        let told = |process: &Value| process["role"] == "up" || process["address"].is_string();
        status(&up).iter().all(told).then_some(())
    });
    let mut exported = Exported::new();
    for (instance, target, shard) in targets(&up) {
        assert_eq!(shard.is_some(), instance.starts_with("shard-"));
        assert!(shard.is_none_or(|shard| shard == "0"));
        scrape(&format!("http://{target}/metrics"), &mut exported);
    }
    for metric in [
        "shard_serving",
        "frontend_body_missing_total",
        "worker_paused",
    ] {
        assert!(
            exported.contains_key(&format!("ostraca_{metric}")),
            "{metric}"
        );
    }
    assert!(up.stop().success());
    for (instance, target, _) in targets(&up) {
        assert_eq!(target, "127.0.0.1:1", "{instance} does not run");
    }
}

/// Instance, address and shard of each target, as the script lists them.
fn targets(up: &Up) -> Vec<(String, String, Option<String>)> {
    let list = up.scratch().join("targets.json");
    let mut path = std::ffi::OsString::from(Path::new(BINARY).parent().expect("a directory"));
    path.push(":");
    path.push(std::env::var_os("PATH").unwrap_or_default());
    let mut targets = command(Path::new(PROMETHEUS).join("targets"));
    targets
        .arg(up.data())
        .arg(&list)
        .arg("test")
        .env("PATH", path);
    let ended = run(targets, b"");
    assert_eq!(ended.code(), Some(0), "{}", ended.stderr);
    let list = std::fs::read(list).expect("a list");
    let list: Vec<Value> = serde_json::from_slice(&list).expect("JSON");
    let listed = list.iter().map(|entry| {
        let labels = entry["labels"].as_object().expect("labels");
        let known = labels
            .keys()
            .all(|label| TARGET_LABELS.contains(&label.as_str()));
        assert!(known, "{entry}");
        assert_eq!(labels["cluster"], "test");
        let shard = labels.get("shard").and_then(Value::as_str);
        let text = |value: &Value| value.as_str().expect("text").to_owned();
        let target = text(&entry["targets"][0]);
        (text(&labels["instance"]), target, shard.map(str::to_owned))
    });
    let listed: Vec<_> = listed.collect();
    let names: BTreeSet<_> = listed
        .iter()
        .map(|(instance, ..)| instance.as_str())
        .collect();
    assert!(
        names.is_superset(&["shard-0", "frontend", "worker"].into()),
        "{names:?}"
    );
    listed
}
