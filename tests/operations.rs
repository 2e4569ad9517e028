//! What an operator meets: disks that are full, ports that are taken, directories that were moved
//! away, shards that are damaged (docs/operations.md).

#![expect(clippy::disallowed_methods, reason = "a test has files of its own")]

use std::fs;
use std::net::TcpListener;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};

use ostraca_tests::pastes::{create, save};
use ostraca_tests::{Ended, Options, Up, command, key, poll, run, signal};
use serde_json::Value;
use tempfile::TempDir;

const BINARY: &str = env!("CARGO_BIN_EXE_ostraca");

#[track_caller]
fn expect(ended: Ended, code: i32) -> Ended {
    assert_eq!(
        ended.code(),
        Some(code),
        "stdout: {}\nstderr: {}",
        ended.text(),
        ended.stderr
    );
    ended
}

/// Runs the binary on the data of `up`.
fn on_data(up: &Up, arguments: &[&str]) -> Ended {
    let data = up.data();
    let mut command = command(BINARY);
    command.args(arguments).arg("--data").arg(data);
    run(command, b"")
}

/// `up` with streams of the test's own, killed when the test ends.
struct Started(Child);

impl Drop for Started {
    fn drop(&mut self) {
        // Errors mean that it has ended, which is what is wanted.
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

impl Started {
    /// Starts it, and waits until it is ready.
    fn new(mut command: Command, stdout: &Path) -> Self {
        command
            .stdin(Stdio::null())
            .stdout(fs::File::create(stdout).expect("a file"));
        let mut up = Self(command.spawn().expect("it starts"));
        poll("it is ready", || {
            let ended = up.0.try_wait().expect("a child");
            assert!(ended.is_none(), "{ended:?}");
            let text = fs::read_to_string(stdout).expect("a file");
            text.starts_with("ready ").then_some(())
        });
        up
    }

    /// Sends a signal, and waits for the end; the exit code.
    fn stop(&mut self, name: &str) -> Option<i32> {
        signal(name, self.0.id());
        let status = poll("it stops", || self.0.try_wait().expect("a child"));
        status.code()
    }
}

/// Goal: a place for the log that takes nothing stops nothing.
#[test]
fn an_unwritable_stderr_stops_nothing() {
    let dir = TempDir::new().expect("a directory");
    let mut command = Options::new(BINARY)
        .shards(1)
        .command(&dir.path().join("data"));
    let full = fs::File::options().write(true).open("/dev/full");
    command.stderr(full.expect("a device"));
    let mut up = Started::new(command, &dir.path().join("stdout"));
    assert_eq!(up.stop("TERM"), Some(0));
}

/// Goal: the end of the terminal is a stop like any other, but not for what outlives it.
#[test]
fn a_hangup_stops_in_order_and_not_under_nohup() {
    let dir = TempDir::new().expect("a directory");
    let options = Options::new(BINARY).shards(1);
    let (data, stdout) = (dir.path().join("data"), dir.path().join("stdout"));
    let quiet = |mut command: Command| {
        command.stderr(Stdio::null());
        command
    };
    let mut up = Started::new(quiet(options.command(&data)), &stdout);
    assert_eq!(up.stop("HUP"), Some(0));

    let plain = options.command(&data);
    let mut nohup = command("sh");
    nohup
        .args(["-c", "trap '' HUP; exec \"$@\"", "sh"])
        .arg(plain.get_program())
        .args(plain.get_args());
    let mut up = Started::new(quiet(nohup), &stdout);
    let status = fs::read_to_string(format!("/proc/{}/status", up.0.id())).expect("it runs");
    let ignored = status.lines().find_map(|line| line.strip_prefix("SigIgn:"));
    let ignored = u64::from_str_radix(ignored.expect("a mask").trim(), 16).expect("a mask");
    assert_eq!(ignored & 1, 1, "SIGHUP is left alone");
    assert_eq!(up.stop("TERM"), Some(0));
    let list = data.join("run/endpoints.json");
    assert_eq!(fs::read_to_string(list).expect("a list").trim(), "[]");
}

/// Goal: what cannot work is refused by name, before a directory is made for it.
#[test]
fn up_checks_what_it_is_asked_before_it_makes_anything() {
    let dir = TempDir::new().expect("a directory");
    let data = dir.path().join("data");
    let taken = TcpListener::bind("127.0.0.1:0").expect("a port");
    let taken = taken.local_addr().expect("an address").to_string();
    for (option, value, code) in [
        ("--http", taken.as_str(), 4),
        ("--public-url", "paste.example", 2),
        ("--http", ":8081", 2),
    ] {
        let mut up = command(BINARY);
        up.arg("up").arg("--data").arg(&data).args([option, value]);
        if option != "--http" {
            up.args(["--http", "127.0.0.1:0"]);
        }
        let refused = expect(run(up, b""), code);
        assert!(refused.stderr.contains(option), "{}", refused.stderr);
        assert!(
            !refused.stderr.contains("starts again"),
            "{}",
            refused.stderr
        );
        assert!(!data.exists(), "{option} {value}");
    }
}

/// Goal: titles in the logs are for nobody else of the machine.
#[test]
fn the_data_directory_is_nobody_elses() {
    use std::os::unix::fs::PermissionsExt as _;
    let up = Options::new(BINARY).shards(1).start();
    let mode = fs::metadata(up.data()).expect("it is there").permissions();
    assert_eq!(mode.mode() & 0o777, 0o700);
}

/// Goal: bodies that are gone are never replaced by an empty store: not by a create, and not by a
/// start.
#[test]
fn a_store_of_bodies_that_was_moved_away_is_not_made_anew() {
    let mut up = Options::new(BINARY).start();
    let http = up.http();
    let saved = save(&http, &key(), "text");
    let (bodies, moved) = (up.data().join("bodies"), up.data().join("moved"));
    fs::rename(&bodies, &moved).expect("moved");
    let refused = http.send(&create(&key(), "another"));
    assert_eq!(
        (refused.status, refused.reason().as_str()),
        (503, "BODY_STORE_DOWN")
    );
    assert_eq!(http.get(&saved.raw()).status, 503);
    // And so when all of it was moved.
    let (data, away) = (up.data(), up.scratch().join("away"));
    fs::rename(&data, &away).expect("moved");
    let refused = expect(up.run(&["paste", "-"], b"more"), 5);
    assert!(refused.stderr.contains("--key "), "{}", refused.stderr);
    assert!(!data.exists());
    fs::rename(&away, &data).expect("moved back");

    assert_eq!(up.stop().code(), Some(0));
    let refused = expect(run(Options::new(BINARY).command(&data), b""), 1);
    let told = &refused.stderr;
    assert!(
        told.contains("put it back") && told.contains("/bodies"),
        "{told}"
    );
    assert!(!bodies.exists());
    fs::rename(&moved, &bodies).expect("moved back");
    up.start_again();
    assert_eq!(up.http().get(&saved.raw()).text(), "text");
}

/// The segments of a shard, the oldest first.
fn segments(up: &Up, shard: u16) -> Vec<PathBuf> {
    let log = up.data().join(format!("shard-{shard}/log"));
    let mut segments: Vec<_> = fs::read_dir(log)
        .expect("a log")
        .map(|entry| entry.expect("an entry").path())
        .filter(|path| path.to_string_lossy().contains("/seg-"))
        .collect();
    segments.sort();
    segments
}

/// What `status --json` says of a process.
fn status_of(up: &Up, name: &str) -> Value {
    let status = on_data(up, &["status", "--json"]);
    let status: Value = serde_json::from_slice(&status.stdout).expect("JSON");
    let processes = status["processes"].as_array().expect("a list");
    let found = processes.iter().find(|process| process["name"] == name);
    found.expect("a process").clone()
}

/// Goal: damage is told as what it is, with its place, and hides nothing else.
/// Method: an old record of the first of two shards is changed, which later ones convict.
#[test]
fn d02_damage_is_told_with_its_place_and_hides_no_other_log() {
    let mut up = Options::new(BINARY).shards(2).start();
    let http = up.http();
    for _ in 0..40 {
        let _ = save(&http, &key(), "text");
    }
    assert_eq!(up.stop().code(), Some(0));
    let oldest = segments(&up, 0).swap_remove(0);
    let mut bytes = fs::read(&oldest).expect("a segment");
    // Past the headers, within the first records.
    let (at, _) = bytes
        .iter()
        .enumerate()
        .skip(8 << 10)
        .find(|&(_, &byte)| byte != 0)
        .expect("a record");
    bytes[at] ^= 1;
    fs::write(&oldest, bytes).expect("written");

    let data = up.data();
    let shard_dir = data.join("shard-0").display().to_string();
    for what in ["verify", "dump"] {
        let data = data.to_str().expect("UTF-8");
        let looked = expect(up.run(&["log", what, data], b""), 7);
        assert!(looked.text().contains("shard-1  "), "{}", looked.text());
        let told = &looked.stderr;
        let place = told.find(&shard_dir).zip(told.find("offset"));
        assert!(place.is_some_and(|(dir, file)| dir < file), "{told}");
        assert!(!told.contains("log verify"), "that is what was run: {told}");
    }
    up.start_again();
    assert!(up.stderr().contains(&shard_dir), "{}", up.stderr());
    let shard = status_of(&up, "shard-0");
    assert_eq!(
        (&shard["state"], &shard["exit"], &shard["pid"]),
        (&"damaged".into(), &7.into(), &Value::Null)
    );
    let table = expect(on_data(&up, &["status"]), 5);
    assert!(
        table.text().contains("ended with exit code 7"),
        "{}",
        table.text()
    );
    assert!(
        table.stderr.contains("shard-0 is damaged"),
        "{}",
        table.stderr
    );
}

/// Goal: a shard that cannot start does not look like one that is about to.
#[test]
fn a_shard_that_cannot_start_is_failing_until_it_serves() {
    let mut up = Options::new(BINARY).shards(2).start();
    let (secret, moved) = (up.data().join("secret"), up.data().join("moved"));
    fs::rename(&secret, &moved).expect("moved");
    let killed = up.kill_shard(1);
    let shard = poll("it is failing", || {
        let shard = status_of(&up, "shard-1");
        (shard["state"] == "failing").then_some(shard)
    });
    assert_eq!(shard["exit"], 1);
    fs::rename(&moved, &secret).expect("moved back");
    up.wait_shard(1, killed);
    let shard = status_of(&up, "shard-1");
    assert_eq!(
        (&shard["state"], &shard["exit"]),
        (&"serving".into(), &Value::Null)
    );
}

/// Goal: nobody is sent to a process that is no more, or is another program's by now.
#[test]
fn status_names_no_process_that_has_ended() {
    let mut up = Options::new(BINARY).shards(1).start();
    up.kill();
    let table = expect(on_data(&up, &["status"]), 5);
    let rows: Vec<_> = table.text().lines().skip(1).collect();
    assert_eq!(rows.len(), 4, "{}", table.text());
    for row in rows {
        let cells: Vec<_> = row.split_whitespace().collect();
        assert_eq!(cells[1..3], ["-", "missing"], "{row}");
    }
}
