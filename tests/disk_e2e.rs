//! Disks that fail and disks that are full, under real processes of the faults build
//! (docs/faults.md).

#![expect(clippy::disallowed_methods, reason = "a test has files of its own")]

use std::fs;
use std::iter;
use std::path::PathBuf;
use std::thread;

use ostraca_io::process;
use ostraca_tests::faults::{self, Script};
use ostraca_tests::http::{Http, Request, Response};
use ostraca_tests::pastes::{Created, create, delete, is_replay, save};
use ostraca_tests::{Options, Up, key, poll};
use ostraca_types::IdempotencyKey;
use serde_json::Value;

const BINARY: &str = env!("CARGO_BIN_EXE_ostraca");
const CLIENTS: usize = 8;
/// As large as the first segment of a take-over, which may have to be made from it.
const BALLAST_SIZE: u64 = 2 << 20;

/// An `up` of the faults build, and its script.
struct Store {
    up: Up,
    http: Http,
    script: Script,
}

impl Store {
    fn start() -> Self {
        Self::start_shards(1)
    }

    fn start_shards(shards: u16) -> Self {
        let program = if cfg!(feature = "faults") {
            BINARY.into()
        } else {
            faults::binary(BINARY)
        };
        let script = Script::new();
        let up = Options::new(program)
            .shards(shards)
            .environment("OSTRACA_FAULTS", &script.variable())
            .start();
        Self {
            http: up.http(),
            up,
            script,
        }
    }

    fn log(&self) -> PathBuf {
        self.up.data().join("shard-0/log")
    }

    /// Files of the log by the beginning of their names, in their order.
    fn files(&self, beginning: &str) -> Vec<PathBuf> {
        let names = fs::read_dir(self.log()).expect("a directory");
        let mut files: Vec<_> = names
            .map(|entry| entry.expect("an entry").path())
            .filter(|path| {
                let name = path.file_name().and_then(|name| name.to_str());
                name.is_some_and(|name| name.starts_with(beginning))
            })
            .collect();
        files.sort();
        files
    }

    /// What `ostraca status` says about the shard.
    fn status(&self) -> Value {
        let data = self.up.data();
        let data = data.to_str().expect("UTF-8");
        let status = self.up.run(&["status", "--json", "--data", data], b"");
        let status: Value = serde_json::from_slice(&status.stdout).expect("JSON");
        let processes = status["processes"].as_array().expect("a list");
        let shard = processes
            .iter()
            .find(|process| process["name"] == "shard-0");
        shard.expect("the shard is listed").clone()
    }

    fn sum(&self, field: &str) -> u64 {
        poll("the shard answers", || self.up.sum(field))
    }

    fn has(&self, created: &Created) -> bool {
        match self.http.get(&created.api()).status {
            200 => true,
            404 => false,
            other => panic!("no answer: {other}"),
        }
    }

    /// Ends a paste, whose message then goes through the worker: delivered, recorded, acked.
    fn end(&self, created: &Created) {
        let inbox_rows = self.sum("inbox_rows");
        assert_eq!(delete(&self.http, created, &created.token).status, 204);
        assert!(!self.has(created));
        poll("the worker is done", || {
            let done = (self.up.sum("outbox_ready")?, self.up.sum("inbox_rows")?);
            (done == (0, inbox_rows + 1)).then_some(())
        });
    }

    /// Creates on shard 0 until there is no room; how many were made.
    fn fill(&self) -> u64 {
        let made = self.create_on(0, u64::MAX);
        assert!(made.iter().all(|made| *made < u64::MAX), "it is full");
        made.iter().sum()
    }

    /// Has each client create on a shard until there is no room, or `most` times; how many each made.
    fn create_on(&self, shard: u16, most: u64) -> Vec<u64> {
        let clients: Vec<_> = (0..CLIENTS)
            .map(|_| {
                let http = self.http.clone();
                thread::spawn(move || {
                    let refused = (0..most).find(|_| {
                        let key = iter::repeat_with(key).find(|key| owner(key) == shard);
                        let answer = http.send(&large(&key.expect("half of all")));
                        if answer.status != 201 {
                            assert_full(&answer);
                        }
                        answer.status != 201
                    });
                    refused.unwrap_or(most)
                })
            })
            .collect();
        let made = clients
            .into_iter()
            .map(|client| client.join().expect("a client"));
        made.collect()
    }

    /// Kills the shard, and waits until `up` has started it again.
    fn kill_shard(&mut self) {
        let killed = self.up.kill_shard(0).expect("it runs");
        self.up.wait_shard(0, Some(killed));
    }
}

/// The shard of a key, where there are two; where there is one, half of the keys are shard 0's as well.
fn owner(key: &str) -> u16 {
    let key = IdempotencyKey::parse(key).expect("a key");
    u16::from(key.slot().0 >= 128)
}

/// A create with a record as large as one can be.
fn large(key: &str) -> Request {
    create(key, "x").header("paste-title", &"t".repeat(256))
}

#[track_caller]
fn assert_full(answer: &Response) {
    assert_eq!(answer.status, 503, "{}", answer.text());
    assert_eq!(answer.reason(), "DISK_FULL");
    assert!(answer.header("retry-after").is_some());
}

/// WAL-24: the shard says that it does not know, starts again from the disk, and makes what it finds
/// there durable anew.
#[test]
fn d03_a_failed_sync_stops_the_shard_and_a_retry_gives_one_paste() {
    let mut store = Store::start();
    let before = save(&store.http, &key(), "before");
    let (pid, _) = store.up.process("shard-0").expect("it runs");
    let segments = store.files("seg-").len();

    let raise = "page.before-raise";
    store.script.pause_at(raise);
    store.script.disk("fail-sync create");
    let key = key();
    let title = "the one whose sync failed";
    let request = create(&key, "once").header("paste-title", title);
    let unknown = store.http.send(&request);
    assert_eq!(unknown.status, 503, "{}", unknown.text());
    assert_eq!(unknown.reason(), "OUTCOME_UNKNOWN");

    // Its next process is held, so that there is time to look.
    poll("it is started again", || {
        store.script.holds_at(raise).then_some(())
    });
    let exit = poll("its end is known", || store.status()["exit"].as_u64());
    assert_eq!(exit, 8, "{}", store.up.stderr());
    let (held, serves) = store.up.process("shard-0").expect("it runs");
    assert!(held != pid && !serves);
    store.script.release(raise);
    process::resume(held).expect("it is there");
    store.up.wait_shard(0, Some(pid));

    // Not believed where it lay, but written and synced once more.
    let written = store.files("seg-");
    assert_eq!(written.len(), segments + 1);
    let newest = fs::read(written.last().expect("a segment")).expect("a segment");
    let holds = |bytes: &[u8]| bytes.windows(title.len()).any(|at| at == title.as_bytes());
    assert!(holds(&newest), "the record is in the new segment");

    let answer = poll("the frontend finds it again", || {
        let answer = store.http.send(&request);
        (answer.status != 503).then_some(answer)
    });
    let made = Created::from(&answer);
    assert!(is_replay(&answer));
    assert_eq!(store.sum("pastes"), 2);
    assert_eq!(save_again(&store, &request), made);
    store.kill_shard();
    assert_eq!(save_again(&store, &request), made);
    assert!(store.has(&before) && store.has(&made));
    assert_eq!(store.sum("pastes"), 2);
}

fn save_again(store: &Store, request: &Request) -> Created {
    let answer = store.http.send(request);
    assert!(is_replay(&answer));
    Created::from(&answer)
}

/// WAL-07, WAL-09: what needs no new room goes on, a restart too.
#[test]
fn d04_a_full_disk_refuses_creates_and_nothing_else_until_there_is_room() {
    let mut store = Store::start();
    let mut pastes: Vec<_> = (0..4).map(|_| save(&store.http, &key(), "x")).collect();
    poll("room for the next start is kept", || {
        let ballast = store.files("bal-").pop()?.metadata().ok()?.len();
        (ballast == BALLAST_SIZE).then_some(())
    });
    store.script.disk("room 0");
    let made = store.fill();
    assert_eq!(store.sum("pastes"), 4 + made);
    let trouble = store.status()["shard"]["trouble"].to_string();
    assert!(trouble.contains("disk has no room"), "{trouble}");
    assert!(pastes.iter().all(|paste| store.has(paste)));
    store.end(&pastes.pop().expect("one of four"));
    assert_full(&store.http.send(&large(&key())));

    store.kill_shard();
    assert!(store.files("bal-").is_empty(), "the room was used");
    assert!(pastes.iter().all(|paste| store.has(paste)));
    store.end(&pastes.pop().expect("one of three"));
    assert_eq!(store.sum("pastes"), 2 + made);

    let made = made + store.fill();
    store.end(&pastes.pop().expect("one of two"));
    assert_full(&store.http.send(&large(&key())));
    store.script.disk("");
    // Creates that keep coming do not put off the next look for room.
    poll("the shard finds the room", || {
        let answer = store.http.send(&large(&key()));
        if answer.status != 201 {
            assert_full(&answer);
        }
        (answer.status == 201).then_some(())
    });
    assert_eq!(store.status()["shard"]["trouble"], "");
    assert_eq!(store.sum("pastes"), 2 + made);
    assert!(store.has(&pastes[0]));
}

/// A full disk is one shard's trouble where shards have disks of their own.
#[test]
fn l02_the_full_disk_of_one_shard_refuses_its_creates_alone() {
    let store = Store::start_shards(2);
    store.script.disk("room 0 shard-0");
    let filled = store.fill();
    // As many as filled the one, and more.
    let each = filled.div_ceil(CLIENTS as u64) + 1;
    let made = store.create_on(1, each);
    assert_eq!(made, [each; CLIENTS], "the other has room");
    assert_eq!(store.create_on(0, 1), [0; CLIENTS], "it is full still");
}
