//! A leader that is told to stop, and its standby: no call is lost on the way from one to the other.

#![expect(
    clippy::disallowed_methods,
    clippy::print_stderr,
    reason = "a test has files and deadlines of its own, and says what it measured"
)]

#[allow(dead_code, reason = "shared with fence_e2e")]
mod fence;
#[allow(dead_code, reason = "shared with standby_e2e")]
mod standby;

use std::collections::HashMap;
use std::fs;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use fence::{RUNTIME, Save, program};
use ostraca_io::{Clock as _, SystemClock, process};
use ostraca_proto::v1::GetPasteRequest;
use ostraca_proto::v1::paste_service_client::PasteServiceClient;
use ostraca_tests::http::Http;
use ostraca_tests::pastes::{Created, create, is_replay, save};
use ostraca_tests::{Options, Up, key, poll};
use ostraca_types::Reason;
use serde_json::Value;
use standby::{LEASE, Load, assert_made_once, channel, data, pair, routing, stand_by, takes_over};
use tonic_types::StatusExt as _;

/// The event of a leader that left its shard to a standby.
const HANDED_OVER: &str = "\"event\":\"handed_over\"";

/// Whoever is refused by the one that stops is sent to the one that starts, and waits there.
#[test]
fn k17_a_planned_hand_over_fails_no_call() {
    let data = data();
    let (mut leader, mut standby) = pair(&data, &[]);
    let mut made = Vec::new();
    for round in 0..4 {
        let load = Load::start(4, &[&leader, &standby]);
        let told = Instant::now();
        process::terminate(leader.process.pid()).expect("it runs");
        takes_over(&mut standby, 1, told, LEASE);
        assert_eq!(leader.process.exit(), Some(0));
        load.wait_more(40);
        let done = load.end();
        assert_eq!(done.failures, Vec::<String>::new(), "round {round}");
        // What is in the queue is committed and answered before the log is closed.
        assert_eq!(done.unknown.len(), 0, "round {round}");
        eprintln!("round {round}: {} creates", done.made.len());
        made.extend(done.made);
        assert_made_once(&standby, &made);
        leader = std::mem::replace(&mut standby, stand_by(&data, &[]));
    }
}

/// One that takes its time is waited for: until it leads, somebody says where to go.
#[test]
fn k17_a_successor_that_is_slow_is_waited_for() {
    let data = data();
    let (mut leader, mut standby) = pair(&data, &[]);
    let load = Load::start(4, &[&leader, &standby]);
    let point = "page.before-raise";
    standby.process.script.pause_at(point);
    process::terminate(leader.process.pid()).expect("it runs");
    standby.process.wait_held(point);
    let held = Instant::now();
    while held.elapsed() < Duration::from_secs(1) {
        assert!(
            !leader.process.has_ended(),
            "it still has callers to send on"
        );
        let refused = leader.begin_here(&Save::new());
        let details = refused.assert_refused(Reason::NotLeader);
        assert_eq!(details["address"], standby.address);
    }
    standby.process.wake(point);
    let _ = standby.process.wait_leads(1);
    load.wait_more(20);
    let done = load.end();
    assert_eq!(done.failures, Vec::<String>::new());
    assert_eq!(done.unknown.len(), 0);
    assert_eq!(leader.process.exit(), Some(0));
    assert_made_once(&standby, &done.made);
}

/// A standby that knows of no other one is not the only one: those who are left are handed over to.
#[test]
fn k17_the_last_of_three_is_handed_over_to() {
    let data = data();
    let (mut first, mut standby) = pair(&data, &[]);
    let mut leader = stand_by(&data, &[]);
    // The third one's word was the last, and it is the one that leads.
    wait_known(&data.path(), 0, leader.process.pid());
    standby.process.stop();
    first.process.kill();
    let _ = leader.process.wait_leads(1);
    standby.process.go_on();
    wait_known(&data.path(), 0, standby.process.pid());
    let load = Load::start(4, &[&leader, &standby]);
    let told = Instant::now();
    assert_eq!(leader.process.terminate(), Some(0));
    takes_over(&mut standby, 1, told, LEASE);
    load.wait_more(20);
    let done = load.end();
    assert_eq!(done.failures, Vec::<String>::new());
    assert_made_once(&standby, &done.made);
}

/// Who is stopped takes over from nobody: the leader drains as if it had no standby, and sends nobody
/// there.
#[test]
fn k17_a_standby_that_is_stopped_is_not_handed_over_to() {
    let data = data();
    let (mut leader, mut standby) = pair(&data, &[]);
    wait_known(&data.path(), 0, standby.process.pid());
    let old = Save::new();
    let mut made = vec![(old.clone(), leader.create(&old))];
    standby.process.stop();
    let point = "log.before-sync create";
    let save = Save::new();
    let waiting = leader.hold_create(&save, point);
    leader.process.go_on();
    process::terminate(leader.process.pid()).expect("it runs");
    let refused = poll("it takes no new call", || {
        let mut service = PasteServiceClient::new(channel(&leader.address));
        let paste_id = made[0].1.paste_id.to_string();
        let read = service.get_paste(GetPasteRequest { paste_id });
        RUNTIME.block_on(read).err()
    });
    // It refuses, or listens no more.
    let details = refused.get_error_details();
    let address = details
        .error_info()
        .and_then(|info| info.metadata.get("address"));
    assert_eq!(address, None, "sent to a process that is stopped");
    assert!(!waiting.is_answered(), "what is under way is waited for");
    leader.process.script.release(point);
    let answer = waiting.wait().expect("it is finished before the end");
    made.push((save, answer));
    assert_eq!(leader.process.exit(), Some(0));
    let said = leader.process.stderr();
    assert!(!said.contains(HANDED_OVER), "{said}");

    let woken = Instant::now();
    standby.process.go_on();
    takes_over(&mut standby, 1, woken, LEASE);
    assert_made_once(&standby, &made);
    // To one that runs it is handed over, and says so.
    let mut next = stand_by(&data, &[]);
    wait_known(&data.path(), 0, next.process.pid());
    let told = Instant::now();
    assert_eq!(standby.process.terminate(), Some(0));
    takes_over(&mut next, 1, told, LEASE);
    let said = standby.process.stderr();
    assert!(said.contains(HANDED_OVER), "{said}");
    assert_made_once(&next, &made);
}

/// Nor does one that runs and whose loop hangs, which no look at its process tells.
#[test]
fn k17_a_standby_whose_loop_hangs_is_not_handed_over_to() {
    let data = data();
    let (mut leader, mut standby) = pair(&data, &[]);
    wait_known(&data.path(), 0, standby.process.pid());
    let old = Save::new();
    let mut made = vec![(old.clone(), leader.create(&old))];
    let point = "read.before-check";
    standby.process.script.pause_at(point);
    standby.process.wait_held(point);
    standby.process.go_on();
    let beat = data.path().join("run/shard-0.standby.beat");
    let clock = SystemClock::new().expect("a clock");
    poll("its last beat is old", || {
        let beat = fs::read_to_string(&beat).ok()?;
        let at: u64 = beat.trim_end().rsplit(' ').next()?.parse().ok()?;
        let age = clock
            .boot()
            .elapsed
            .checked_sub(Duration::from_millis(at))?;
        (age > Duration::from_secs(1)).then_some(())
    });
    assert!(process::is_running(standby.process.pid()));
    let told = Instant::now();
    assert_eq!(leader.process.terminate(), Some(0));
    eprintln!("ended after {} ms", told.elapsed().as_millis());
    let said = leader.process.stderr();
    assert!(!said.contains(HANDED_OVER), "{said}");

    standby.process.script.release(point);
    let woken = Instant::now();
    takes_over(&mut standby, 1, woken, LEASE);
    let save = Save::new();
    made.push((save.clone(), standby.create(&save)));
    assert_made_once(&standby, &made);
}

/// Waits until the processes on `data` know that `pid` stands by. Two that start at one moment share one
/// seat, so the other one's word comes a little later than its readiness.
fn wait_known(data: &Path, shard: u16, pid: u32) {
    let seat = data.join(format!("run/shard-{shard}.standby.json"));
    poll("the standby is known", || {
        let seat = fs::read(&seat).ok()?;
        let seat: Value = serde_json::from_slice(&seat).ok()?;
        (seat["pid"] == pid).then_some(())
    });
}

fn up(shards: u16) -> Up {
    let options = Options::new(program()).shards(shards);
    options.argument("--standbys").start()
}

/// The process of a shard that has this state by the list: its pid and address.
fn one_in(up: &Up, shard: u16, state: &str) -> Option<(u32, String)> {
    let names = [format!("shard-{shard}"), format!("shard-{shard}-second")];
    let list = up.endpoints();
    let found = list.iter().find(|entry| {
        let named = names.iter().any(|name| entry["name"] == **name);
        named && entry["state"] == state
    })?;
    let pid = u32::try_from(found["pid"].as_u64()?).ok()?;
    Some((pid, found["grpc"].as_str()?.to_owned()))
}

fn leader(up: &Up, shard: u16) -> (u32, String) {
    poll("a shard is led", || one_in(up, shard, "serving"))
}

/// Whether the process `pid` is listed as a leader. One that hands over is, for a moment, as well.
fn leads(up: &Up, pid: u32) -> bool {
    let list = up.endpoints();
    let mut entries = list.iter();
    entries.any(|entry| entry["pid"] == pid && entry["state"] == "serving")
}

fn standby_of(up: &Up, shard: u16) -> (u32, String) {
    poll("a shard has a standby", || one_in(up, shard, "standby"))
}

/// Saves and reads until told to stop. What was made; anything but a success fails the test.
fn save_and_read(http: &Http, stop: &AtomicBool) -> Vec<(String, Created)> {
    let mut made = Vec::new();
    while !stop.load(Ordering::Relaxed) {
        let key = key();
        let created = save(http, &key, "x");
        let read = http.get(&created.raw());
        assert_eq!(read.status, 200, "{}", read.text());
        made.push((key, created));
    }
    made
}

/// The frontend is a client like any other.
#[test]
fn k17_a_hand_over_is_not_seen_through_http() {
    let up = up(1);
    let _ = standby_of(&up, 0);
    let stop = Arc::<AtomicBool>::default();
    let clients: Vec<_> = (0..4)
        .map(|_| {
            let (http, stop) = (up.http(), Arc::clone(&stop));
            thread::spawn(move || save_and_read(&http, &stop))
        })
        .collect();
    let http = up.http();
    for _ in 0..3 {
        let (pid, _) = leader(&up, 0);
        let (next, _) = standby_of(&up, 0);
        wait_known(&up.data(), 0, next);
        let _ = save(&http, &key(), "before");
        let told = Instant::now();
        process::terminate(pid).expect("it runs");
        poll("the standby leads", || leads(&up, next).then_some(()));
        let took = told.elapsed();
        assert!(took < LEASE + Duration::from_secs(1), "{took:?}");
        eprintln!("led after {} ms", took.as_millis());
        let _ = save(&http, &key(), "after");
        poll("it is started again", || {
            one_in(&up, 0, "standby").filter(|(standby, _)| *standby != pid)
        });
    }
    stop.store(true, Ordering::Relaxed);
    let made = clients
        .into_iter()
        .flat_map(|client| client.join().expect("no call failed"));
    let made: Vec<_> = made.collect();
    assert!(made.len() > 20);
    for (key, created) in &made {
        let again = http.send(&create(key, "x"));
        assert!(is_replay(&again), "{}", again.text());
        assert_eq!(Created::from(&again), *created);
    }
    assert_eq!(up.counts().pastes, made.len() as u64 + 6);
}

/// What a process says to a read of a paste of `slot`: the details of its refusal.
fn refusal(address: &str, created: &Created, reason: Reason) -> HashMap<String, String> {
    let mut service = PasteServiceClient::new(channel(address));
    let request = GetPasteRequest {
        paste_id: created.id.clone(),
    };
    let refused = RUNTIME.block_on(service.get_paste(request));
    let status = refused.expect_err("it does not lead the slot");
    let details = status.get_error_details();
    let info = details.error_info().expect("a reason");
    assert_eq!(info.reason, reason.as_str(), "{status:?}");
    info.metadata.clone()
}

/// Standbys, and leaders of other shards, send to the leader; every process has the whole table.
#[test]
fn f06_a_refusal_says_where_the_leader_is() {
    let up = up(2);
    let leaders = [leader(&up, 0).1, leader(&up, 1).1];
    let standbys = [standby_of(&up, 0).1, standby_of(&up, 1).1];
    let table = routing(&leaders[0]);
    for address in leaders.iter().chain(&standbys) {
        let told = routing(address);
        assert_eq!(told, table, "{address}");
        for route in told {
            assert_eq!(route.address, leaders[route.shard as usize]);
            assert!(route.epoch > 0);
        }
    }
    let created = save(&up.http(), &key(), "x");
    let reads = |address: &str| {
        let mut service = PasteServiceClient::new(channel(address));
        let paste_id = created.id.clone();
        let read = RUNTIME.block_on(service.get_paste(GetPasteRequest { paste_id }));
        read.is_ok()
    };
    let own = usize::from(!reads(&leaders[0]));
    let other = 1 - own;
    for (address, reason) in [
        (&standbys[own], Reason::NotLeader),
        (&leaders[other], Reason::WrongShard),
        (&standbys[other], Reason::WrongShard),
    ] {
        let details = refusal(address, &created, reason);
        assert_eq!(details["shard"], own.to_string());
        assert_eq!(details["address"], leaders[own]);
        assert_eq!(details["epoch"], table[own].epoch.to_string());
        assert!(details.contains_key("routingVersion"), "{details:?}");
    }
}

fn status(up: &Up) -> (Option<i32>, Vec<(String, String)>) {
    let data = up.data();
    let data = data.to_str().expect("UTF-8");
    let ended = up.run(&["status", "--json", "--data", data], b"");
    let report: Value = serde_json::from_slice(&ended.stdout).expect("JSON");
    let shards = report["processes"].as_array().expect("a list").iter();
    let shards = shards
        .filter(|entry| entry["role"] == "shard")
        .map(|entry| {
            let text = |field: &str| entry[field].as_str().unwrap_or_default().to_owned();
            (text("name"), text("state"))
        });
    (ended.code(), shards.collect())
}

/// Each shard is led by one of its two processes, and a kill of either changes which. The other
/// shard's calls do not notice.
#[test]
fn l02_a_take_over_is_one_shards_and_status_shows_it() {
    let mut up = up(2);
    let two_of_each = |up: &Up| {
        poll("each shard has a leader and a standby", || {
            let (code, shards) = status(up);
            let count = |state: &str| shards.iter().filter(|shard| shard.1 == state).count();
            (code == Some(0) && (count("serving"), count("standby")) == (2, 2)).then_some(())
        });
    };
    two_of_each(&up);
    let table = routing(&leader(&up, 1).1);
    let http = up.http();
    // A paste of each shard: the first characters of an id are its slot.
    let mut of_shard: [Option<Created>; 2] = [None, None];
    while of_shard.iter().any(Option::is_none) {
        let created = save(&http, &key(), "x");
        let id = ostraca_types::PasteId::parse(&created.id).expect("an id");
        let owner = table
            .iter()
            .position(|route| route.slots.contains(&u32::from(id.slot().0)));
        of_shard[owner.expect("every slot is led")] = Some(created);
    }
    let [first, second] = of_shard.map(|created| created.expect("one of each"));
    let (led, _) = leader(&up, 0);
    let (other, _) = leader(&up, 1);
    process::kill(led).expect("it runs");
    let mut reads = 0;
    poll("shard 0 is led again", || {
        let read = http.get(&second.raw());
        assert_eq!(read.status, 200, "{}", read.text());
        reads += 1;
        (leader(&up, 0).0 != led).then_some(())
    });
    assert!(reads > 0);
    assert_eq!(leader(&up, 1).0, other, "the other shard goes on as it was");
    poll("its paste is read", || {
        (http.get(&first.raw()).status == 200).then_some(())
    });
    two_of_each(&up);
    let (standby, _) = standby_of(&up, 1);
    process::kill(standby).expect("it runs");
    poll("it is started again", || {
        one_in(&up, 1, "standby").filter(|(pid, _)| *pid != standby)
    });
    two_of_each(&up);
    assert_eq!(leader(&up, 1).0, other, "a standby's end changes nothing");
    assert!(up.stop().success());
}

/// Nobody waits for a successor when all are told to stop.
#[test]
fn f01_up_ends_leaders_and_standbys_together() {
    let mut up = up(2);
    for shard in 0..2 {
        let _ = (leader(&up, shard), standby_of(&up, shard));
    }
    let created = save(&up.http(), &key(), "x");
    for _ in 0..2 {
        let told = Instant::now();
        let ended = up.stop();
        let took = told.elapsed();
        assert_eq!(ended.code(), Some(0), "{}", up.stderr());
        assert_eq!(up.children(), Vec::<u32>::new());
        assert!(took < Duration::from_secs(3), "{took:?}");
        eprintln!("ended after {} ms", took.as_millis());
        assert!(!up.stderr().contains("child_killed"), "{}", up.stderr());
        up.start_again();
        assert_eq!(up.http().get(&created.raw()).status, 200);
    }
}
