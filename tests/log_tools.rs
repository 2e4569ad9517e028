//! `ostraca log` on logs that are whole, running and damaged, and the cut of one that is
//! (docs/operations.md, "A damaged log").

#![expect(clippy::disallowed_methods, reason = "a test has files of its own")]

use std::collections::BTreeMap;
use std::fs;
use std::os::unix::fs::{FileExt as _, PermissionsExt as _};
use std::path::{Path, PathBuf};

use ostraca_tests::pastes::{Created, create, delete};
use ostraca_tests::{Ended, Options, Up, command, key, run};
use serde_json::Value;

const BINARY: &str = env!("CARGO_BIN_EXE_ostraca");
const TITLE: &str = "Geheimnis";
const BODY: &str = "Vertraulich";

/// Runs `ostraca log`, and keeps all that it told.
struct Tools {
    told: Vec<String>,
}

impl Tools {
    const fn new() -> Self {
        Self { told: Vec::new() }
    }

    #[track_caller]
    fn run(&mut self, arguments: &[&str], path: &Path, code: i32) -> Ended {
        let mut log = command(BINARY);
        log.arg("log").args(arguments).arg(path);
        let ended = run(log, b"");
        let (out, err) = (ended.text(), &ended.stderr);
        assert_eq!(
            ended.code(),
            Some(code),
            "{arguments:?}\nstdout: {out}\nstderr: {err}"
        );
        self.told.push(format!("{out}{err}"));
        ended
    }

    #[track_caller]
    fn json(&mut self, arguments: &[&str], path: &Path, code: i32) -> Value {
        let ended = self.run(arguments, path, code);
        serde_json::from_slice(&ended.stdout).expect("JSON")
    }

    /// The records that `dump` prints.
    #[track_caller]
    fn records(&mut self, path: &Path, code: i32) -> Vec<Value> {
        let ended = self.run(&["dump", "--json"], path, code);
        let lines = ended.text().lines();
        lines
            .map(|line| serde_json::from_str(line).expect("JSON"))
            .collect()
    }

    fn expect_no_secret(&self, saved: &[Saved]) {
        assert!(self.told.iter().any(|text| text.contains("create")));
        for text in &self.told {
            for secret in [TITLE, BODY] {
                assert!(!text.contains(secret), "{secret} is told: {text}");
            }
            for one in saved {
                for secret in [
                    &one.key,
                    &one.key.replace('-', ""),
                    &one.created.token,
                    &one.created.id,
                ] {
                    assert!(!text.contains(secret.as_str()), "{secret} is told: {text}");
                }
            }
        }
    }
}

struct Saved {
    key: String,
    created: Created,
}

/// Saves pastes one after the other, so that their records have their order.
fn save_some(up: &Up, count: usize) -> Vec<Saved> {
    let http = up.http();
    let save = |number| {
        let key = key();
        let request = create(&key, format!("{BODY} {number}")).header("paste-title", TITLE);
        let created = Created::from(&http.send(&request));
        Saved { key, created }
    };
    (0..count).map(save).collect()
}

/// Every file below a directory, with its bytes.
fn contents(dir: &Path) -> BTreeMap<PathBuf, Vec<u8>> {
    let mut found = BTreeMap::new();
    for entry in fs::read_dir(dir).expect("a directory") {
        let path = entry.expect("an entry").path();
        if path.is_dir() {
            found.extend(contents(&path));
        } else {
            found.insert(path.clone(), fs::read(&path).expect("a file"));
        }
    }
    found
}

fn number(value: &Value, field: &str) -> u64 {
    let number = value[field].as_u64();
    number.unwrap_or_else(|| panic!("no {field} in {value}"))
}

/// The segment of a record, and the record's place in it.
fn place(shard_dir: &Path, record: &Value) -> (PathBuf, u64) {
    let segment = record["segment"].as_str().expect("a name");
    let path = shard_dir.join(format!("log/seg-{segment}.log"));
    (path, number(record, "offset"))
}

fn overwrite(path: &Path, offset: u64, bytes: &[u8]) {
    let file = fs::File::options().write(true).open(path);
    let written = file.expect("a file").write_all_at(bytes, offset);
    written.expect("written");
}

/// Changes a byte of a record's payload.
fn damage(shard_dir: &Path, record: &Value) {
    let (path, offset) = place(shard_dir, record);
    let at = offset + 60;
    let byte = fs::read(&path).expect("a segment")[usize::try_from(at).expect("small")];
    overwrite(&path, at, &[byte ^ 0x10]);
}

/// The sequence in the command that the plan of a cut ends with.
fn offered(plan: &Ended) -> String {
    let (_, sequence) = plan
        .text()
        .rsplit_once("--accept-loss-after ")
        .unwrap_or_else(|| panic!("no command in {}", plan.text()));
    sequence.trim().to_owned()
}

/// Goal: damage to the very last acknowledged batch, which looks like a torn write, is told as what
/// it is, by the tools as by the shard.
/// Method: SIGKILL, then zeros from the last record that the epoch page knows of to the end. The same
/// without the hint is what one copy cannot tell.
#[test]
fn d02_the_epoch_page_convicts_damage_to_the_last_acknowledged_batch() {
    let mut tools = Tools::new();
    let mut up = Options::new(BINARY).shards(1).start();
    let saved = save_some(&up, 5);
    up.kill();
    let dir = up.data().join("shard-0");
    let verified = tools.json(&["verify", "--json"], &dir, 0);
    let page = &verified[0]["epoch_page"];
    assert_eq!(
        (&page["state"], number(page, "epoch")),
        (&"good".into(), 1),
        "{page}"
    );
    let durable = number(page, "durable_sequence");
    let records = tools.records(&dir, 0);
    let last = records
        .iter()
        .find(|record| number(record, "sequence") == durable);
    let (segment, offset) = place(&dir, last.expect("the last durable record"));
    let size = fs::metadata(&segment).expect("a segment").len();
    let zeros = vec![0; usize::try_from(size - offset).expect("small")];
    overwrite(&segment, offset, &zeros);

    let convicted = tools.json(&["verify", "--json"], &dir, 7);
    assert_eq!(convicted[0]["valid"], false);
    let trouble = convicted[0]["trouble"].as_str().expect("a text");
    let fault = format!("ends before record {durable}, which was durable");
    assert!(trouble.contains(&fault), "{trouble}");
    let dumped = tools.run(&["dump", "--json"], &dir, 7);
    assert_eq!(dumped.text().lines().count() as u64, durable - 1);
    assert!(dumped.stderr.contains(&fault), "{}", dumped.stderr);
    let mut shard = command(BINARY);
    shard
        .args(["shard", "--shard", "0", "--data"])
        .arg(up.data());
    let refused = run(shard, b"");
    assert_eq!(refused.code(), Some(7), "{}", refused.stderr);
    assert!(refused.stderr.contains("ostraca log cut"));

    let good = fs::read(dir.join("epoch")).expect("a page");
    overwrite(&dir.join("epoch"), 128, &[0; 16]);
    let torn = tools.run(&["verify"], &dir, 0);
    assert!(torn.text().contains("a torn append"), "{}", torn.text());
    assert!(torn.text().contains("is unknown"), "{}", torn.text());
    fs::write(dir.join("epoch"), good).expect("put back");

    let keeps = (durable - 1).to_string();
    let plan = tools.run(&["cut"], &dir, 7);
    assert_eq!(offered(&plan), keeps);
    let accept = ["cut", "--no-copies", "--accept-loss-after", &keeps];
    let done = tools.run(&accept, &dir, 0);
    assert!(
        done.text().contains("No copies were made"),
        "{}",
        done.text()
    );
    let names = fs::read_dir(&dir).expect("a directory");
    let aside = names.filter(|entry| {
        let name = entry.as_ref().expect("an entry").file_name();
        name.to_string_lossy().starts_with("cut-")
    });
    assert_eq!(aside.count(), 0);
    up.start_again();
    let status = up.http().get(&saved[0].created.raw()).status;
    assert_eq!(status, 200);
    tools.expect_no_secret(&saved);
}

/// Goal: the way out of damage, from end to end: it costs what it says and nothing else, and nothing
/// without the word for it.
/// Method: a record in the middle of one of two logs is changed.
#[test]
fn d02_a_damaged_log_is_cut_where_the_operator_accepts() {
    let mut tools = Tools::new();
    let mut up = Options::new(BINARY).shards(2).start();
    let saved = save_some(&up, 60);
    up.kill();
    let (data, dir) = (up.data(), up.data().join("shard-0"));
    let records = tools.records(&dir, 0);
    let creates: Vec<_> = records
        .iter()
        .filter(|record| record["kind"] == "create")
        .collect();
    assert!(creates.len() > 10, "half of the slots");
    let middle = creates[creates.len() / 2];
    damage(&dir, middle);
    let (segment, _) = place(&dir, middle);
    let damaged = contents(&dir);

    let told = tools.run(&["verify"], &data, 7);
    assert!(
        told.text().contains("shard-0  NOT VALID"),
        "{}",
        told.text()
    );
    assert!(told.text().contains("shard-1  valid"), "{}", told.text());
    for part in ["offset ", "sequence ", "ostraca log cut "] {
        assert!(told.stderr.contains(part), "{}", told.stderr);
    }
    let stat = tools.json(&["stat", "--json"], &dir, 7);
    assert_eq!(stat[0]["whole"], false);
    assert_eq!(
        number(&stat[0], "last_sequence"),
        number(middle, "sequence") - 1
    );

    // `up` serves the other log. The plan may be made beside it, and changes nothing.
    up.start_again();
    assert!(
        up.stderr().contains("shard-0 is damaged"),
        "{}",
        up.stderr()
    );
    let http = up.http();
    let statuses: Vec<_> = saved
        .iter()
        .map(|one| http.get(&one.created.raw()).status)
        .collect();
    let of_shard_0: Vec<_> = (0..saved.len()).filter(|&at| statuses[at] != 200).collect();
    assert_eq!(of_shard_0.len(), creates.len(), "{statuses:?}");
    let before = contents(&dir);
    let plan = tools.run(&["cut"], &dir, 7);
    let keeps = offered(&plan);
    assert_eq!(keeps, (number(middle, "sequence") - 1).to_string());
    let last = number(records.last().expect("records"), "sequence");
    for part in [
        "not valid, and a valid batch follows",
        "sequence ",
        &format!("every record up to {keeps}\n"),
        &format!("up to {last}\n"),
        segment
            .file_name()
            .and_then(|name| name.to_str())
            .expect("a name"),
    ] {
        assert!(plan.text().contains(part), "no {part} in {}", plan.text());
    }
    assert_eq!(contents(&dir), before, "a plan changes nothing");

    let refused = tools.run(&["cut"], &data, 2);
    assert!(refused.stderr.contains("has 2"), "{}", refused.stderr);
    let wrong = last.to_string();
    let refused = tools.run(&["cut", "--accept-loss-after", &wrong], &dir, 2);
    assert!(
        refused.stderr.contains(&format!("is {keeps},"))
            && refused.stderr.contains(&format!("says {wrong}")),
        "{}",
        refused.stderr
    );
    // The lock names who had it last.
    let but_lock = |mut files: BTreeMap<PathBuf, Vec<u8>>| {
        files.remove(&dir.join("lock"));
        files
    };
    assert_eq!(but_lock(contents(&dir)), but_lock(before));

    let done = tools.run(&["cut", "--accept-loss-after", &keeps], &dir, 0);
    assert!(done.text().contains("acknowledgements"), "{}", done.text());
    let aside = fs::read_dir(&dir)
        .expect("a directory")
        .map(|entry| entry.expect("an entry").path())
        .find(|path| path.to_string_lossy().contains("/cut-"))
        .expect("copies");
    assert!(
        done.text().contains(&aside.display().to_string()),
        "{}",
        done.text()
    );
    let mode = |path: &Path| fs::metadata(path).expect("there").permissions().mode() & 0o777;
    let copy = aside.join(segment.file_name().expect("a name"));
    assert_eq!((mode(&aside), mode(&copy)), (0o700, 0o600));
    assert_eq!(fs::read(&copy).expect("a copy"), damaged[&segment]);
    tools.run(&["verify"], &data, 0);
    let again = tools.run(&["cut", "--accept-loss-after", &keeps], &dir, 0);
    assert!(again.text().contains("nothing to cut"), "{}", again.text());

    up.kill();
    up.start_again();
    up.wait_ready(2);
    let http = up.http();
    let kept = creates.len() / 2;
    for (at, one) in saved.iter().enumerate() {
        let lost = of_shard_0.iter().skip(kept).any(|&lost| lost == at);
        let status = http.get(&one.created.raw()).status;
        assert_eq!(status, if lost { 404 } else { 200 }, "paste {at}");
    }
    // What a client that holds an acknowledgement gets.
    let lost = &saved[of_shard_0[kept]];
    let retry = create(
        &lost.key,
        format!("{BODY} {}", of_shard_0[kept]).into_bytes(),
    )
    .header("paste-title", TITLE);
    let anew = Created::from(&http.send(&retry));
    assert_ne!(anew.id, lost.created.id);
    assert_eq!(fs::read(&copy).expect("a copy"), damaged[&segment]);
    tools.run(&["verify"], &data, 0);
    tools.expect_no_secret(&saved);
}

/// Goal: a shard that somebody has is never cut.
#[test]
fn a_cut_is_refused_while_a_process_has_the_shard() {
    let mut tools = Tools::new();
    let mut up = Options::new(BINARY).shards(1).start();
    let saved = save_some(&up, 3);
    let dir = up.data().join("shard-0");
    let (pid, _) = up.process("shard-0").expect("it runs");
    let accept = ["cut", "--accept-loss-after", "3"];
    let held = tools.run(&accept, &dir, 4);
    assert!(
        held.stderr.contains(&format!("pid {pid}")),
        "{}",
        held.stderr
    );
    // A look is allowed.
    tools.run(&["cut"], &dir, 0);
    let http = up.http();
    assert_eq!(http.get(&saved[0].created.raw()).status, 200);
    assert_eq!(save_some(&up, 1).len(), 1);
    assert_eq!(up.stop().code(), Some(0));

    // Who leads by a take-over has no lock.
    let records = tools.records(&dir, 0);
    let (segment, _) = place(&dir, &records[0]);
    let open = fs::File::open(segment).expect("a segment");
    let held = tools.run(&accept, &dir, 4);
    let own = format!("pid {}", std::process::id());
    assert!(held.stderr.contains(&own), "{}", held.stderr);
    drop(open);
    for path in [&dir, &up.data()] {
        let nothing = tools.run(&accept, path, 0);
        assert!(
            nothing.text().contains("nothing to cut"),
            "{}",
            nothing.text()
        );
    }
    tools.run(&["cut", "--no-copies"], &dir, 2);
    tools.run(&accept, &up.scratch().join("nothing"), 3);
}

/// Goal: looks work beside running processes, agree with one another, and show no secret.
#[test]
fn k16_looks_may_run_beside_a_process_and_show_no_secret() {
    let mut tools = Tools::new();
    let mut up = Options::new(BINARY).shards(2).start();
    let saved = save_some(&up, 30);
    let http = up.http();
    assert_eq!(
        delete(&http, &saved[0].created, &saved[0].created.token).status,
        204
    );
    let data = up.data();
    for what in ["verify", "stat"] {
        let told = tools.run(&[what], &data, 0);
        assert_eq!(told.stderr, "", "no progress, as this is no terminal");
        let looked = tools.json(&[what, "--json"], &data, 0);
        let creates = |shard: &Value| {
            let kinds = shard["kinds"].as_array().into_iter().flatten();
            let mut creates = kinds.filter(|kind| kind["kind"] == "create");
            creates.next().map(|kind| number(kind, "records"))
        };
        let shards = looked.as_array().expect("a list");
        assert_eq!(shards.len(), 2);
        if what == "stat" {
            assert_eq!(shards.iter().filter_map(creates).sum::<u64>(), 30);
        }
    }
    tools.run(&["dump"], &data, 0);
    tools.records(&data, 0);
    assert_eq!(up.stop().code(), Some(0));

    let dir = data.join("shard-0");
    let records = tools.records(&dir, 0);
    let verified = tools.json(&["verify", "--json"], &dir, 0);
    let stat = &tools.json(&["stat", "--json"], &dir, 0)[0];
    for field in ["records", "first_sequence", "last_sequence", "bytes"] {
        assert_eq!(stat[field], verified[0][field], "{field}");
    }
    assert_eq!(number(stat, "records"), records.len() as u64);
    let payload: u64 = records.iter().map(|one| number(one, "payload_bytes")).sum();
    assert_eq!(number(stat, "payload_bytes"), payload);
    assert_eq!(stat["epochs"][0]["epoch"], 1);
    assert_eq!(stat["epochs"][0]["last_sequence"], stat["last_sequence"]);
    assert_eq!(stat["first_time"], records[0]["time"]);
    assert!((1..=number(stat, "records")).contains(&number(stat, "batches")));
    // What is on the disk, by the file system.
    let log = fs::read_dir(dir.join("log")).expect("a log");
    let sizes = log.map(|entry| entry.expect("an entry").metadata().expect("a file").len());
    let groups = stat["files"].as_object().expect("groups").values();
    assert_eq!(
        groups.map(|group| number(group, "bytes")).sum::<u64>(),
        sizes.sum::<u64>()
    );
    let some = tools.run(&["dump", "--from", "2", "--to", "4"], &dir, 0);
    assert_eq!(some.text().lines().count(), 3, "{}", some.text());
    assert!(some.text().starts_with("shard-0  sequence 2 "));
    tools.run(&["dump", "--from", "4", "--to", "3"], &dir, 2);
    tools.expect_no_secret(&saved);
}

/// Goal: a lost epoch page is told, made anew only on demand, and costs no record.
#[test]
fn a_lost_epoch_page_is_made_anew_on_demand() {
    for wrong_size in [false, true] {
        let mut tools = Tools::new();
        let mut up = Options::new(BINARY).shards(1).start();
        let saved = save_some(&up, 4);
        assert_eq!(up.stop().code(), Some(0));
        let dir = up.data().join("shard-0");
        let page = dir.join("epoch");
        if wrong_size {
            fs::write(&page, [0; 4095]).expect("written");
        } else {
            fs::remove_file(&page).expect("removed");
        }
        let before = contents(&dir);
        let told = tools.run(&["verify"], &dir, 7);
        assert!(told.stderr.contains("epoch page"), "{}", told.stderr);
        let plan = tools.run(&["cut"], &dir, 7);
        assert!(plan.text().contains("loses none"), "{}", plan.text());
        assert_eq!(contents(&dir), before);
        let last = offered(&plan);
        let records = tools.records(&dir, 0);
        assert_eq!(last, records.len().to_string());
        tools.run(&["cut", "--accept-loss-after", "1"], &dir, 2);
        let done = tools.run(&["cut", "--accept-loss-after", &last], &dir, 0);
        assert!(done.text().contains("made anew"), "{}", done.text());
        assert_eq!(fs::metadata(&page).expect("a page").len(), 4096);
        assert_eq!(dir.join("epoch-damaged-1").exists(), wrong_size);
        tools.run(&["verify"], &dir, 0);
        assert_eq!(tools.records(&dir, 0), records, "nothing is lost");
        up.start_again();
        let http = up.http();
        for one in &saved {
            assert_eq!(http.get(&one.created.raw()).status, 200);
        }
    }
}

/// Goal: scripts find the exit codes where they look for them.
#[test]
fn the_help_of_each_tool_has_its_exit_codes() {
    for what in ["verify", "dump", "stat", "cut"] {
        let mut help = command(BINARY);
        help.args(["log", what, "--help"]);
        let help = run(help, b"");
        assert_eq!(help.code(), Some(0));
        for part in ["Examples:", "Exit codes:", "\n    7  damaged"] {
            assert!(help.text().contains(part), "{what}: {}", help.text());
        }
    }
}
