//! Processes that are killed, started twice, started wrongly and stopped.

#![expect(
    clippy::disallowed_methods,
    reason = "a test has files and deadlines of its own"
)]

use std::collections::{HashMap, HashSet};
use std::fs;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use ostraca_io::{SeededEntropy, process};
use ostraca_tests::http::{Http, Request};
use ostraca_tests::pastes::{Created, create, delete, is_replay, save};
use ostraca_tests::{Counts, DEADLINE, Options, Up, key, poll, run, signal};

const BINARY: &str = env!("CARGO_BIN_EXE_ostraca");
const CLIENTS: u64 = 16;
const KILLS: u32 = 20;
const SHARDS: u16 = 3;

/// One client's save: what it sent, and the first answer that it got.
struct Saved {
    request: Request,
    body: Vec<u8>,
    answer: Created,
}

/// Sends a create until it is answered: the one retry policy there is, the client's. A refusal of
/// any other kind than "later" is a failure.
fn until_answered(http: &Http, request: &Request) -> Created {
    poll("a create is answered", || match http.try_send(request) {
        Ok(answer) if answer.status == 201 => Some(Created::from(&answer)),
        Ok(answer) => {
            assert!(
                matches!(answer.status, 503 | 504),
                "{}: {}",
                answer.status,
                answer.text()
            );
            None
        }
        Err(_) => None,
    })
}

/// Saves until told to stop, and repeats some saves at once.
fn client(http: &Http, seed: u64, stop: &AtomicBool) -> Vec<Saved> {
    let random = SeededEntropy::new(seed);
    let mut saved = Vec::new();
    while !stop.load(Ordering::Relaxed) {
        let size = usize::try_from(1 + random.below(3000)).expect("small");
        let body = ostraca_tests::bytes(random.next(), size);
        let request = create(&key(), body.clone());
        let answer = until_answered(http, &request);
        if random.below(4) == 0 {
            assert_eq!(
                until_answered(http, &request),
                answer,
                "a retry has the first answer"
            );
        }
        saved.push(Saved {
            request,
            body,
            answer,
        });
    }
    saved
}

/// Kills shards at random moments: while they serve, and while they recover.
fn kill_at_random(up: &mut Up, seed: u64) {
    let random = SeededEntropy::new(seed);
    let started = Instant::now();
    let mut kills = 0;
    while kills < KILLS {
        // A random moment, not a time that is hoped to be enough.
        thread::sleep(Duration::from_millis(20 + random.below(300)));
        let shard = u16::try_from(random.below(u64::from(SHARDS))).expect("small");
        // One that is down is passed over: to wait for it would be to kill it as it starts, each
        // time, and its slots would never be served.
        kills += u32::from(up.kill_shard(shard).is_some());
        assert!(started.elapsed() < 3 * DEADLINE, "{kills} kills so far");
    }
}

/// Goal: whatever is killed, an acknowledged paste is there, a retry has the first answer, and no
/// key has two pastes.
/// Method: 16 clients save in a loop while shards are killed twenty times. Then every paste is
/// compared by key, not by totals, and the totals too. Covers IDEM-21, INB-12, WAL-12, WAL-13.
#[test]
fn d01_k09_k10_acknowledged_pastes_survive_kills_and_no_key_has_two() {
    let mut seed = [0; 8];
    ostraca_io::Entropy::fill(&ostraca_io::SystemEntropy, &mut seed);
    let seed = u64::from_le_bytes(seed);
    println!("seed {seed}");
    let mut up = Options::new(BINARY).shards(SHARDS).start();
    let http = up.http();
    let stop = AtomicBool::new(false);
    let saved: Vec<Saved> = thread::scope(|scope| {
        let start = |number| {
            let (http, stop) = (&http, &stop);
            scope.spawn(move || client(http, seed.wrapping_add(number), stop))
        };
        let clients: Vec<_> = (1..=CLIENTS).map(start).collect();
        // The clients end whether or not this does well.
        let killed = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| {
            kill_at_random(&mut up, seed);
        }));
        stop.store(true, Ordering::Relaxed);
        let saved = clients
            .into_iter()
            .flat_map(|client| client.join().expect("no refusal"));
        let saved = saved.collect();
        assert!(killed.is_ok(), "the killing failed");
        saved
    });
    up.wait_ready(SHARDS);
    assert!(saved.len() > 100, "only {} saves", saved.len());
    println!("{} pastes", saved.len());
    let mut ids = HashSet::new();
    for Saved {
        request,
        body,
        answer,
    } in &saved
    {
        assert!(
            ids.insert(&answer.id),
            "seed {seed}: {} names two pastes",
            answer.id
        );
        let read = http.get(&answer.raw());
        assert!(
            read.status == 200 && read.body == *body,
            "seed {seed}: lost {}",
            answer.id
        );
        let again = http.send(request);
        assert!(is_replay(&again), "seed {seed}: {}", again.text());
        assert_eq!(Created::from(&again), *answer, "seed {seed}");
    }
    let total = saved.len() as u64;
    assert_eq!(
        up.counts(),
        Counts {
            pastes: total,
            keys: total
        },
        "seed {seed}: a paste too many"
    );
}

/// Goal: what a delete answered stays, too.
#[test]
fn d01_r03_an_acknowledged_delete_survives_a_kill() {
    let mut up = Options::new(BINARY).shards(1).start();
    let http = up.http();
    let mut pastes = HashMap::new();
    for round in 0..20 {
        let key = key();
        let created = save(&http, &key, format!("round {round}"));
        let deleted = round % 2 == 0;
        if deleted {
            assert_eq!(delete(&http, &created, &created.token).status, 204);
        }
        pastes.insert(key, (created, deleted));
    }
    let killed = up.kill_shard(0);
    up.wait_shard(0, killed);
    poll("the frontend reaches it", || {
        (http.get("/readyz").status == 200).then_some(())
    });
    for (created, deleted) in pastes.values() {
        let status = http.get(&created.raw()).status;
        assert_eq!(status, if *deleted { 404 } else { 200 });
    }
}

/// Goal: a frontend that dies comes back at the same address.
#[test]
fn a_killed_frontend_comes_back_at_its_address() {
    let up = Options::new(BINARY).start();
    let http = up.http();
    let created = save(&http, &key(), "text");
    let (pid, _) = up.process("frontend").expect("it runs");
    process::kill(pid).expect("it runs");
    poll("a new frontend serves", || {
        up.process("frontend")
            .filter(|&(new, serves)| serves && new != pid)
    });
    assert_eq!(http.get(&created.raw()).body, b"text");
}

/// Goal: one `up` per data directory; the second says who holds it.
#[test]
fn f01_a_second_up_refuses_and_names_the_first() {
    let up = Options::new(BINARY).start();
    let second = run(Options::new(BINARY).command(&up.data()), b"");
    assert_eq!(second.code(), Some(4), "{}", second.stderr);
    assert!(
        second.stderr.contains(&format!("pid {}", up.pid())),
        "{}",
        second.stderr
    );
    assert!(second.stdout.is_empty());
    assert_eq!(
        up.http().get("/readyz").status,
        200,
        "the first one is not disturbed"
    );
}

/// Goal: no process outlives the `up` that started it, so that a new one can serve at once.
/// Method: SIGKILL, then start again on the same directory and read what was saved.
#[test]
fn d01_children_end_with_a_killed_up_and_a_new_one_serves() {
    let mut up = Options::new(BINARY).start();
    let created = save(&up.http(), &key(), "text");
    assert_eq!(up.children().len(), 4);
    up.kill();
    up.start_again();
    assert_eq!(up.http().get(&created.raw()).body, b"text");
}

/// Goal: SIGTERM ends everything, in order, with code 0, and what was saved is there afterwards.
#[test]
fn d01_up_stops_cleanly_on_sigterm() {
    let mut up = Options::new(BINARY).start();
    let created = save(&up.http(), &key(), "text");
    let status = up.stop();
    assert_eq!(status.code(), Some(0), "{}", up.stderr());
    assert!(up.children().is_empty(), "no child is left");
    assert!(up.endpoints().is_empty(), "nobody is listed");
    up.start_again();
    assert_eq!(up.http().get(&created.raw()).body, b"text");
}

/// Goal: whoever does not want to wait for a drain interrupts twice, and nothing is left.
/// Method: a shard that is held by SIGSTOP never drains.
#[test]
fn a_second_interrupt_kills_at_once() {
    let mut up = Options::new(BINARY).start();
    let created = save(&up.http(), &key(), "text");
    let (stuck, _) = up.process("shard-0").expect("it runs");
    ostraca_tests::stop(stuck);
    signal("INT", up.pid());
    poll("the frontend is stopped, and shard-1", || {
        (up.children().len() == 1).then_some(())
    });
    assert_eq!(up.children(), [stuck], "it waits for the one that is stuck");
    let interrupted = Instant::now();
    signal("INT", up.pid());
    assert_eq!(up.wait().code(), Some(130), "{}", up.stderr());
    // Without the second one it would wait for 15 s.
    assert!(interrupted.elapsed() < Duration::from_secs(8), "at once");
    assert!(up.children().is_empty(), "nothing is left");
    up.start_again();
    assert_eq!(up.http().get(&created.raw()).body, b"text");
}

/// Goal: the number of shards of a cluster is not changed by a flag.
#[test]
fn k06_another_number_of_shards_is_refused() {
    let mut up = Options::new(BINARY).shards(2).start();
    let created = save(&up.http(), &key(), "text");
    assert_eq!(up.stop().code(), Some(0));
    let refused = run(Options::new(BINARY).shards(3).command(&up.data()), b"");
    assert_eq!(refused.code(), Some(4), "{}", refused.stderr);
    assert!(
        refused.stderr.contains("has 2 shards, not 3"),
        "{}",
        refused.stderr
    );
    for count in [0, 257] {
        let refused = run(Options::new(BINARY).shards(count).command(&up.data()), b"");
        assert_eq!(refused.code(), Some(2), "{}", refused.stderr);
    }
    up.start_again();
    assert_eq!(up.http().get(&created.raw()).body, b"text");
}

/// Goal: a missing or wrong secret refuses to start, and nothing is served or made anew.
#[test]
fn k16_a_missing_or_wrong_secret_refuses_to_start() {
    let mut up = Options::new(BINARY).start();
    let created = save(&up.http(), &key(), "text");
    assert_eq!(up.stop().code(), Some(0));
    let secrets = up.data().join("secret");
    let aside = up.data().join("secret-aside");
    fs::rename(&secrets, &aside).expect("moved away");
    let refused = run(Options::new(BINARY).command(&up.data()), b"");
    assert_eq!(refused.code(), Some(1), "{}", refused.stderr);
    assert!(refused.stderr.contains("secret"), "{}", refused.stderr);
    assert!(!secrets.exists(), "no new secrets are made");
    // Another cluster's.
    let other = Options::new(BINARY).start();
    copy_dir(&other.data().join("secret"), &secrets);
    let refused = run(Options::new(BINARY).command(&up.data()), b"");
    assert_eq!(refused.code(), Some(1), "{}", refused.stderr);
    assert!(
        refused.stderr.contains("not the secrets"),
        "{}",
        refused.stderr
    );
    fs::remove_dir_all(&secrets).expect("removed");
    fs::rename(&aside, &secrets).expect("put back");
    up.start_again();
    assert_eq!(up.http().get(&created.raw()).body, b"text");
}

fn copy_dir(from: &std::path::Path, to: &std::path::Path) {
    use std::os::unix::fs::PermissionsExt as _;
    fs::create_dir(to).expect("made");
    fs::set_permissions(to, fs::Permissions::from_mode(0o700)).expect("private");
    for entry in fs::read_dir(from).expect("a directory") {
        let entry = entry.expect("an entry");
        fs::copy(entry.path(), to.join(entry.file_name())).expect("copied");
    }
}

/// Goal: a damaged shard stays down, is told once, and the other slots are served.
/// Method: flip a bit of an old record, which later batches convict. Covers WAL-22.
#[test]
fn d02_l02_a_damaged_shard_stays_down_and_the_others_serve() {
    let mut up = Options::new(BINARY).shards(2).start();
    let http = up.http();
    for _ in 0..40 {
        let _ = save(&http, &key(), "text");
    }
    assert_eq!(up.stop().code(), Some(0));
    let log = up.data().join("shard-0/log");
    let mut segments: Vec<_> = fs::read_dir(&log)
        .expect("a log")
        .map(|entry| entry.expect("an entry").path())
        .filter(|path| path.to_string_lossy().contains("/seg-"))
        .collect();
    segments.sort();
    let mut bytes = fs::read(&segments[0]).expect("a segment");
    // Past the headers, within the first records.
    let at = bytes
        .iter()
        .enumerate()
        .skip(8 << 10)
        .find(|&(_, &byte)| byte != 0)
        .expect("a record")
        .0;
    bytes[at] ^= 1;
    fs::write(&segments[0], bytes).expect("written");

    let data = up.data();
    let verified = up.run(&["log", "verify", data.to_str().expect("UTF-8")], b"");
    assert_eq!(
        verified.code(),
        Some(7),
        "{}\n{}",
        verified.text(),
        verified.stderr
    );
    assert!(verified.stderr.contains("offset"), "{}", verified.stderr);
    assert!(
        verified.text().contains("shard-1  valid"),
        "{}",
        verified.text()
    );

    up.start_again();
    assert_eq!(
        up.ready_line.matches("127.0.0.1").count(),
        2,
        "{}: one shard",
        up.ready_line
    );
    let status = up.run(&["status", "--data", data.to_str().expect("UTF-8")], b"");
    assert_eq!(status.code(), Some(5), "{}", status.text());
    let http = up.http();
    let mut statuses = HashSet::new();
    for _ in 0..40 {
        statuses.insert(http.send(&create(&key(), "text")).status);
    }
    assert_eq!(
        statuses,
        HashSet::from([201, 503]),
        "half of the slots are served"
    );
    // Were it started again, it would have been by now, several times.
    let told = up.stderr().matches("shard-0 is damaged").count();
    assert_eq!(told, 1, "said once");
}
