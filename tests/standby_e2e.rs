//! Standbys: who leads when the leader is gone, hangs, or wakes again, as real processes.

#![expect(
    clippy::disallowed_methods,
    clippy::print_stderr,
    reason = "a test has deadlines of its own, and says what it measured"
)]

#[allow(dead_code, reason = "shared with fence_e2e")]
mod fence;
mod standby;

use std::fs::{self, OpenOptions};
use std::io::{self, PipeReader, PipeWriter, Read as _, Write as _};
use std::os::fd::AsRawFd as _;
use std::os::unix::fs::OpenOptionsExt as _;
use std::process::{Child, Stdio};
use std::time::{Duration, Instant};

use fence::{FENCED, Node, RUNTIME, Save, assert_unknown, program};
use ostraca_client::CreateAnswer;
use ostraca_tests::faults::Script;
use ostraca_tests::shards::Data;
use ostraca_tests::{command, poll};
use ostraca_types::Reason;
use standby::{
    LEASE, Load, SHORT, SHORT_LEASE, assert_made_once, caller, channel, data, leads, metric, pair,
    routing, stand_by, takes_over, until_made,
};
use tonic_health::pb::HealthCheckRequest;
use tonic_health::pb::health_check_response::ServingStatus;
use tonic_health::pb::health_client::HealthClient;

/// A SIGKILL while clients create: the lock is free, so nobody waits for the lease (FEN-07).
#[test]
fn f03_a_killed_leader_is_replaced_and_nothing_acknowledged_is_lost() {
    let data = data();
    let (mut first, mut second) = pair(&data, &[]);
    let load = Load::start(3, &[&first, &second]);
    let killed = Instant::now();
    first.process.kill();
    let took = takes_over(&mut second, 1, killed, LEASE);
    assert!(took < LEASE, "it waited for the lease: {took:?}");
    load.wait_more(20);
    let mut done = load.end();
    // What was not answered is asked for again, by the same keys.
    for save in done.unknown {
        done.made.push((save.clone(), second.create(&save)));
    }
    assert_made_once(&second, &done.made);

    let mut third = stand_by(&data, &[]);
    third.begin_here(&Save::new()).assert_not_leading();
    let killed = Instant::now();
    second.process.kill();
    takes_over(&mut third, 1, killed, LEASE);
    assert_made_once(&third, &done.made);
}

/// It is killed before another one leads: who is dead answers nobody.
#[test]
fn f04_a_stopped_leader_is_killed_and_replaced() {
    let data = data();
    let (mut first, mut second) = pair(&data, &SHORT);
    let save = Save::new();
    let made = first.create(&save);
    let stopped = Instant::now();
    first.process.stop();
    let took = takes_over(&mut second, 1, stopped, SHORT_LEASE);
    assert!(took + Duration::from_millis(60) >= SHORT_LEASE, "{took:?}");
    assert_eq!(first.process.exit(), None, "it was killed");
    assert_made_once(&second, &[(save, made)]);
}

/// The same of one whose process runs, and whose log hangs in a sync.
#[test]
fn f04_a_leader_stuck_in_a_sync_is_killed_and_replaced() {
    let data = data();
    let (mut first, mut second) = pair(&data, &SHORT);
    let (save, old) = (Save::new(), Save::new());
    let made = first.create(&old);
    let hung = Instant::now();
    let waiting = first.hold_create(&save, "log.before-sync create");
    first.process.go_on();
    takes_over(&mut second, 1, hung, SHORT_LEASE);
    assert_eq!(first.process.exit(), None, "it was killed");
    // The connection broke, and so nobody knows; the key does.
    assert!(waiting.wait().is_err());
    let other = second.create(&save);
    assert_made_once(&second, &[(old, made), (save, other)]);
}

/// A leader that must not be killed wakes when another one leads: `runs` says whether only its log's
/// thread was held.
fn woken(runs: bool) {
    let arguments = ["--lease", "500", "--no-kill"];
    let data = data();
    let (mut first, mut second) = pair(&data, &arguments);
    let both = caller(&[&first, &second]);
    let old_save = Save::new();
    let old = first.create(&old_save);
    let point = "log.before-sync create";
    let (save, hung) = (Save::new(), Instant::now());
    let waiting = first.hold_create(&save, point);
    if runs {
        first.process.go_on();
    }
    takes_over(&mut second, 1, hung, SHORT_LEASE);
    assert!(!waiting.is_answered());
    second.delete(&old);
    if !runs {
        // What runs again is not what knows: its log's thread is held on.
        first.process.go_on();
    }
    for refused in [
        first.ask_here(old.paste_id),
        first.begin_here(&old_save),
        first.begin_here(&Save::new()),
    ] {
        assert_sent_to(&second, refused);
    }
    first.process.script.release(point);
    assert_unknown(waiting.wait());
    let _ = first.process.wait_standby(2);
    assert_sent_to(&second, first.ask_here(old.paste_id));
    assert!(!first.process.has_ended(), "it goes on");
    let again = until_made(&both, &save);
    assert!(again.replayed, "it was written before it was overtaken");

    let killed = Instant::now();
    second.process.kill();
    takes_over(&mut first, 2, killed, SHORT_LEASE);
    assert!(!first.has(old.paste_id), "its end is there");
    let asked = first.create(&old_save);
    assert_eq!(
        asked.paste_id, old.paste_id,
        "the answer outlives the paste"
    );
    assert_made_once(&first, &[(save, again)]);
}

/// Refused by who does not lead, with the way to who does.
#[track_caller]
fn assert_sent_to(leader: &Node, refused: fence::Heard) {
    let details = refused.assert_refused(Reason::NotLeader);
    let (epoch, _) = leader.status();
    assert_eq!(details["address"], leader.address);
    assert_eq!(details["epoch"], epoch.to_string());
    assert_eq!(details["shard"], "0");
    assert!(details.contains_key("routingVersion"), "{details:?}");
}

#[test]
fn f04_a_woken_leader_answers_nothing_and_becomes_the_standby() {
    woken(false);
}

#[test]
fn f04_a_leader_that_left_a_hung_sync_answers_nothing_and_becomes_the_standby() {
    woken(true);
}

/// Whoever leads, one does: two standbys find out which of them.
#[test]
fn f01_of_two_standbys_one_leads() {
    let data = data();
    let (first, second) = pair(&data, &[]);
    let mut nodes = vec![first, second, stand_by(&data, &[])];
    let mut made = Vec::new();
    for round in 0..4 {
        let leader = only_leader(&nodes);
        made.push(create(&nodes[leader]));
        let mut killed = nodes.swap_remove(leader);
        let since = Instant::now();
        killed.process.kill();
        let next = only_leader(&nodes);
        let took = since.elapsed();
        assert!(took < LEASE + Duration::from_secs(1), "{took:?}");
        eprintln!("round {round}: led after {} ms", took.as_millis());
        let mut others = nodes.iter().enumerate().filter(|(index, _)| *index != next);
        let other = others.next().expect("two are left").1;
        assert_sent_to(&nodes[next], other.begin_here(&Save::new()));
        nodes.push(stand_by(&data, &[]));
    }
    let leader = only_leader(&nodes);
    assert_made_once(&nodes[leader], &made);
}

/// Both see the leader hang at the same moment: it is killed, and neither kills the other one.
#[test]
fn f01_two_standbys_kill_the_leader_that_hangs_and_not_each_other() {
    let data = data();
    let (first, second) = pair(&data, &SHORT);
    let mut nodes = vec![first, second, stand_by(&data, &SHORT)];
    let mut made = Vec::new();
    for _ in 0..3 {
        let leader = only_leader(&nodes);
        made.push(create(&nodes[leader]));
        let mut stopped = nodes.swap_remove(leader);
        stopped.process.stop();
        assert_eq!(stopped.process.exit(), None, "it was killed");
        let next = only_leader(&nodes);
        made.push(create(&nodes[next]));
        for node in &mut nodes {
            assert!(!node.process.has_ended(), "{}", node.process.stderr());
        }
        nodes.push(stand_by(&data, &SHORT));
    }
    let leader = only_leader(&nodes);
    assert_made_once(&nodes[leader], &made);
}

/// Waits until one of them leads, and all others say that they do not.
fn only_leader(nodes: &[Node]) -> usize {
    poll("one leads", || {
        let answers: Option<Vec<bool>> = nodes.iter().map(leads).collect();
        let answers = answers?;
        assert!(answers.iter().filter(|leads| **leads).count() <= 1);
        answers.iter().position(|leads| *leads)
    })
}

fn create(leader: &Node) -> (Save, CreateAnswer) {
    let save = Save::new();
    let answer = leader.create(&save);
    (save, answer)
}

/// What a pipe is opened with, so that a write into a full one fails and does not wait.
const NON_BLOCKING: i32 = 0o4000;

/// A pipe that is full: whoever writes into it waits until it is read.
fn full_pipe() -> (PipeReader, PipeWriter) {
    let (reader, writer) = io::pipe().expect("a pipe");
    // Opened anew, so that whoever is given the other one waits all the same.
    let path = format!("/proc/self/fd/{}", writer.as_raw_fd());
    let mut filler = OpenOptions::new();
    filler.write(true).custom_flags(NON_BLOCKING);
    let mut filler = filler.open(path).expect("the same pipe");
    // The last bytes one by one: a small write can fit where a large one does not.
    for size in [4096, 1] {
        let full = loop {
            if let Err(err) = filler.write(&vec![b' '; size]) {
                break err;
            }
        };
        assert_eq!(full.kind(), io::ErrorKind::WouldBlock);
    }
    (reader, writer)
}

/// `ostraca log cut` at work: it holds the shard's lock until its pipe is read. Killed with this value.
struct Cut {
    child: Child,
    pipe: PipeReader,
}

impl Cut {
    /// Makes the lost epoch page of the shard anew, all but the word that it is done.
    fn begin(data: &Data) -> Self {
        let shard = data.path().join("shard-0");
        let cut = || {
            let mut cut = command(program());
            cut.args(["log", "cut"]).arg(&shard).stdin(Stdio::null());
            cut
        };
        let plan = cut().output().expect("it runs");
        let plan = String::from_utf8(plan.stdout).expect("text");
        let keeps = plan.trim_end().rsplit(' ').next().expect("a sequence");
        let (pipe, writer) = full_pipe();
        let mut accepted = cut();
        accepted.args(["--accept-loss-after", keeps]).stdout(writer);
        let child = accepted.spawn().expect("it starts");
        let held = format!("{} tool\n", child.id());
        let cut = Self { child, pipe };
        poll("the cut has the lock, and the page is there", || {
            let lock = fs::read_to_string(shard.join("lock")).ok()?;
            (lock == held && shard.join("epoch").exists()).then_some(())
        });
        cut
    }

    fn is_at_work(&mut self) -> bool {
        self.child.try_wait().expect("a child").is_none()
    }

    /// Lets it say the rest, and end.
    fn finish(mut self) -> String {
        let mut said = String::new();
        self.pipe.read_to_string(&mut said).expect("text");
        assert!(self.child.wait().expect("a child").success(), "{said}");
        said
    }
}

impl Drop for Cut {
    fn drop(&mut self) {
        // Errors mean that it has ended.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// A command that has the shard to itself beats not, as a leader that hangs; and is no leader.
#[test]
fn f01_a_standby_waits_for_a_cut_and_does_not_kill_it() {
    const WAITS: &str = "\"event\":\"waits_for_tool\"";
    let data = data();
    let mut first = Node::serving(data.launch(Script::new(), &[]));
    let made = create(&first);
    first.process.kill();
    fs::remove_file(data.path().join("shard-0/epoch")).expect("it is there");
    let mut cut = Cut::begin(&data);
    let mut standby = stand_by(&data, &SHORT);
    poll("it says what it waits for", || {
        standby.process.stderr().contains(WAITS).then_some(())
    });
    let waits = Instant::now();
    while waits.elapsed() < 4 * SHORT_LEASE {
        assert!(cut.is_at_work(), "it was killed");
        assert_eq!(leads(&standby), Some(false));
    }
    // Nor does anybody else lead meanwhile, not even by order.
    for arguments in [&[][..], &["--take-over"]] {
        let mut other = data.launch(Script::new(), arguments);
        assert_eq!(other.exit(), FENCED, "{arguments:?}");
        assert!(other.stderr().contains("a command is at work"));
    }
    let done = Instant::now();
    let said = cut.finish();
    assert!(said.contains("made anew"), "{said}");
    takes_over(&mut standby, 1, done, Duration::ZERO);
    assert_made_once(&standby, &[made]);
    let said = standby.process.stderr();
    assert_eq!(said.matches(WAITS).count(), 1, "{said}");
    assert!(!said.contains("leader_hangs"), "{said}");
}

/// Any process tells who leads, and a client whose leader is gone asks.
#[test]
fn f06_a_stale_route_is_refreshed_from_whoever_is_left() {
    let data = data();
    let (mut first, mut second) = pair(&data, &[]);
    let both = caller(&[&first, &second]);
    let save = Save::new();
    let made = until_made(&both, &save);
    for node in [&first, &second] {
        let [route] = &routing(&node.address)[..] else {
            panic!("one shard");
        };
        assert_eq!(route.address, first.address);
        assert_eq!(route.epoch, first.status().0);
    }
    let (epoch, _) = first.status();
    first.process.kill();
    let _ = second.process.wait_leads(1);
    let route = routing(&second.address).remove(0);
    assert_eq!(route.address, second.address);
    assert!(route.epoch > epoch && route.epoch == second.status().0);
    let read = poll("the client finds the new leader", || {
        both.ask(made.paste_id).wait().ok()
    });
    assert_eq!(read.id, made.paste_id);
    assert_made_once(&second, &[(save, made)]);
    // Without `--standby` a second process is a mistake still.
    assert_eq!(data.launch(Script::new(), &[]).exit(), FENCED);
}

/// What the fence refused is counted where a person is paged from, by the process that it refused,
/// also when that stands by again.
#[test]
fn w07_a_commit_that_the_fence_refused_is_counted() {
    let counted = |node: &Node| metric(node, "ostraca_fencing_rejections_total");
    let data = data();
    let (mut first, mut second) = pair(&data, &["--lease", "500", "--no-kill"]);
    let made = create(&first);
    assert_eq!(counted(&first), 0, "there before it counts");
    let point = "log.before-write create";
    let (save, hung) = (Save::new(), Instant::now());
    let waiting = first.hold_create(&save, point);
    takes_over(&mut second, 1, hung, SHORT_LEASE);
    first.process.wake(point);
    assert_unknown(waiting.wait());
    let _ = first.process.wait_standby(2);
    assert_eq!(counted(&first), 1);

    // A leader that had nothing under way when it was overtaken lost nothing.
    first.process.kill();
    let mut third = stand_by(&data, &["--lease", "500", "--no-kill"]);
    let stopped = Instant::now();
    second.process.stop();
    takes_over(&mut third, 1, stopped, SHORT_LEASE);
    second.process.go_on();
    let _ = second.process.wait_standby(2);
    assert_eq!((counted(&second), counted(&third)), (0, 0));
    let again = (save.clone(), third.create(&save));
    assert_made_once(&third, &[made, again]);
}

/// Health is progress: a process that is alive, and whose log hangs at `point`, does not serve, and
/// pages.
fn hangs_at(point: &str) {
    let hangs = |node: &Node| metric(node, "ostraca_shard_hangs");
    let data: Data = data();
    let mut leader = Node::serving(data.launch(Script::new(), &[]));
    let old = leader.create(&Save::new());
    poll("healthy", || is_serving(&leader).then_some(()));
    assert_eq!(hangs(&leader), 0);
    let hung = Instant::now();
    let save = Save::new();
    let waiting = leader.hold_create(&save, point);
    leader.process.go_on();
    poll("not serving", || (!is_serving(&leader)).then_some(()));
    let took = hung.elapsed();
    assert!(took >= Duration::from_secs(2), "not at once: {took:?}");
    assert!(took < Duration::from_secs(6), "{took:?}");
    eprintln!("not serving after {} ms", took.as_millis());
    poll("it pages", || (hangs(&leader) == 1).then_some(()));
    assert!(leader.has(old.paste_id), "it leads, and reads need no sync");
    leader.process.script.release(point);
    let made = waiting.wait().expect("it was slow, and is made");
    poll("serving again", || is_serving(&leader).then_some(()));
    poll("it pages no more", || (hangs(&leader) == 0).then_some(()));
    assert_eq!(leader.create(&save).paste_id, made.paste_id);
}

#[test]
fn w08_a_leader_that_does_not_sync_is_not_serving_until_it_goes_on() {
    hangs_at("log.before-sync create");
}

#[test]
fn w08_a_leader_that_does_not_apply_is_not_serving_until_it_goes_on() {
    hangs_at("log.after-check create");
}

fn is_serving(node: &Node) -> bool {
    let mut health = HealthClient::new(channel(&node.address));
    let request = HealthCheckRequest {
        service: "ostraca.v1.PasteService".to_owned(),
    };
    let answer = RUNTIME.block_on(health.check(request));
    let answer = answer.expect("health is answered").into_inner();
    answer.status() == ServingStatus::Serving
}
