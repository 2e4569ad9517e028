//! The whole life of a paste in real processes: it ends once, and its object and its place in a
//! cache go, whatever is killed in between.
//!
//! The long run of the store under kills, which takes several minutes:
//!
//! ```console
//! $ OSTRACA_LIFE_PASTES=20000 cargo test -p ostraca-cli --test life_e2e -- --nocapture store_under_kills
//! ```

#![expect(
    clippy::disallowed_methods,
    reason = "a test has files and deadlines of its own"
)]

use std::collections::HashSet;
use std::fs;
use std::io;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::path::PathBuf;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use ostraca_io::{Entropy as _, SeededEntropy, SystemEntropy};
use ostraca_tests::edge::Edge;
use ostraca_tests::faults::{self, Clock};
use ostraca_tests::http::{Http, Request, Response};
use ostraca_tests::pastes::{Created, create, delete, save};
use ostraca_tests::{DEADLINE, Options, Up, key, poll, signal};
use ostraca_types::PasteId;
use time::OffsetDateTime;
use time::format_description::well_known::Rfc3339;

const BINARY: &str = env!("CARGO_BIN_EXE_ostraca");
const SHARDS: u16 = 2;
const CLIENTS: u64 = 8;
/// Each so many steps of the clock something is killed.
const STEPS_PER_KILL: u64 = 4;
/// Past the visibility timeout of 30 s and the first backoffs: what a killed worker had comes again.
const REDELIVERED: Duration = Duration::from_secs(40);
/// The points between, before and after the five steps (docs/faults.md), in their order.
const POINTS: [&str; 6] = [
    "worker.before-look",
    "worker.after-look",
    "worker.after-delete",
    "worker.after-purge",
    "worker.after-record",
    "worker.after-ack",
];

/// An `up` of the faults build, its script, and the edge that its worker purges.
struct Store {
    // Before the edge: the worker ends first.
    up: Up,
    http: Http,
    clock: Clock,
    edge: Edge,
}

impl Store {
    fn start() -> Self {
        let program = if cfg!(feature = "faults") {
            BINARY.into()
        } else {
            faults::binary(BINARY)
        };
        let clock = Clock::stopped();
        let edge = Edge::start();
        let up = Options::new(program)
            .shards(SHARDS)
            .argument("--edge")
            .argument(&edge.argument())
            .environment("OSTRACA_FAULTS", &clock.variable())
            .start();
        Self {
            http: up.http(),
            up,
            clock,
            edge,
        }
    }

    /// Waits until every process serves, and reaches the others.
    fn wait_ready(&mut self) {
        self.up.wait_ready(SHARDS);
        self.up.wait_process("worker", None);
        poll("the frontend reaches the shards", || {
            let ready = self.http.try_send(&Request::new("GET", "/readyz"));
            ready.is_ok_and(|answer| answer.status == 200).then_some(())
        });
    }

    fn advance(&mut self, by: Duration) {
        self.clock.advance(by);
        self.up.wait_shard_time(self.clock.wall_ms());
    }

    /// Waits until no consumer has anything left to do, though the clock stands still.
    fn wait_delivered(&self) {
        poll("every message is acked", || {
            (self.up.sum("outbox_ready") == Some(0)).then_some(())
        });
    }

    fn sum(&self, field: &str) -> u64 {
        poll("every shard answers", || self.up.sum(field))
    }

    fn assert_nothing_given_up(&self) {
        assert_eq!(self.sum("dead_letters"), 0);
        assert_eq!(self.sum("outbox_dropped"), 0);
    }

    fn is_purged(&self, id: &str) -> bool {
        urls(id).iter().all(|url| self.edge.purges(url) > 0)
    }
}

/// Every path under which a cache can keep a paste.
fn urls(id: &str) -> [String; 3] {
    [
        format!("/{id}"),
        format!("/{id}/raw"),
        format!("/api/v1/pastes/{id}"),
    ]
}

fn parsed(id: &str) -> PasteId {
    PasteId::parse(id).expect("an id")
}

/// The file of a paste's object.
fn object(up: &Up, id: &str) -> PathBuf {
    up.data().join("bodies").join(parsed(id).object_key())
}

/// The names of all files in the object store.
fn objects(up: &Up) -> HashSet<String> {
    let prefix = up.data().join("bodies/p");
    let slots = fs::read_dir(prefix).expect("the object store");
    slots
        .flat_map(|slot| fs::read_dir(slot.expect("an entry").path()).expect("a directory"))
        .map(|file| {
            let name = file.expect("an entry").file_name();
            name.into_string().expect("UTF-8")
        })
        .collect()
}

/// The process of the shard that has the paste.
fn shard_of(up: &Up, id: &str) -> String {
    let slot = parsed(id).slot().0;
    let list = up.endpoints();
    let has = |slots: &serde_json::Value| {
        let mut slots = slots.as_array().into_iter().flatten();
        slots.any(|have| have.as_u64() == Some(u64::from(slot)))
    };
    let shard = list
        .iter()
        .find(|entry| has(&entry["slots"]))
        .expect("a shard");
    shard["name"].as_str().expect("a name").to_owned()
}

/// Goal: a kill anywhere in the worker's order, and of the shard with it, ends with the object gone,
/// the edge purged, one inbox row, and the message acked; and nothing is undone before its time.
/// Method: the worker ends itself at a named point, the shard of the paste is killed at once.
/// Covers i02, i05, o03, r05.
#[test]
fn i03_a_worker_killed_between_any_two_steps_ends_with_everything_done_once() {
    let mut store = Store::start();
    for (done, point) in (0..).zip(POINTS) {
        store.wait_ready();
        let created = save(&store.http, &key(), "text");
        let object = object(&store.up, &created.id);
        assert!(object.exists(), "{point}");
        let (worker, _) = store.up.process("worker").expect("it runs");
        store.clock.stop_at(point);
        let deleted = delete(&store.http, &created, &created.token);
        assert_eq!(deleted.status, 204, "{point}: {}", deleted.text());
        poll(point, || store.clock.has_stopped().then_some(()));
        let before_delete = matches!(point, "worker.before-look" | "worker.after-look");
        assert_eq!(object.exists(), before_delete, "{point}");

        let shard = shard_of(&store.up, &created.id);
        let killed = store.up.kill_process(&shard);
        assert!(killed.is_some(), "{point}: {shard} runs");
        store.up.wait_process(&shard, killed);
        store.up.wait_process("worker", Some(worker));
        store.wait_ready();
        store.advance(REDELIVERED);
        store.wait_delivered();

        assert!(!object.exists(), "{point}: the object is gone");
        assert!(store.is_purged(&created.id), "{point}: the edge is purged");
        assert_eq!(store.sum("inbox_rows"), done + 1, "{point}: one row");
        for url in urls(&created.id) {
            assert_eq!(store.http.get(&url).status, 404, "{point}: {url}");
        }
        store.assert_nothing_given_up();
    }
}

/// Goal: a worker that does nothing holds nobody up, and does everything once it can.
/// Method: SIGSTOP, creates and deletes, SIGCONT.
#[test]
fn o06_a_worker_that_is_down_holds_nobody_up() {
    const PASTES: u64 = 40;
    let mut store = Store::start();
    store.wait_ready();
    let (worker, _) = store.up.process("worker").expect("it runs");
    ostraca_tests::stop(worker);
    let started = Instant::now();
    let pastes: Vec<Created> = (0..PASTES)
        .map(|_| save(&store.http, &key(), "text"))
        .collect();
    for created in &pastes {
        let deleted = delete(&store.http, created, &created.token);
        assert_eq!(deleted.status, 204, "{}", deleted.text());
        assert_eq!(store.http.get(&created.raw()).status, 404);
    }
    // Were one of them to wait for the worker, none would ever be answered.
    assert!(started.elapsed() < DEADLINE, "{:?}", started.elapsed());
    assert_eq!(store.sum("outbox_ready"), PASTES, "nobody works");
    assert_eq!(objects(&store.up).len() as u64, PASTES);
    signal("CONT", worker);
    store.wait_delivered();
    assert!(objects(&store.up).is_empty());
    assert!(pastes.iter().all(|created| store.is_purged(&created.id)));
    assert_eq!(store.sum("inbox_rows"), PASTES);
    store.assert_nothing_given_up();
}

/// What one client knows of one paste.
struct Saved {
    id: String,
    token: String,
    expiry_ms: u64,
    /// A delete of it was answered, by 204 or by 404.
    deleted: bool,
}

/// All that one client knows.
#[derive(Default)]
struct Ledger {
    saved: Vec<Saved>,
    /// Creates that were never answered: there may be a paste or not.
    unknown: u64,
    /// Requests of creates without the answer that they wanted: each may leave an object.
    failed: u64,
}

/// What clients and disturber share.
struct Scene {
    http: Http,
    seed: u64,
    pastes: u64,
    /// Creates that are over.
    created: AtomicU64,
    /// What the shards' clocks show at most.
    clock_ms: AtomicU64,
    stop: AtomicBool,
}

impl Scene {
    /// Sends until the answer is something else than "later"; the flag says whether it answers the
    /// first request that was sent. `None` if whoever asks gives up, which it may after each other
    /// answer, and after each lost one.
    fn until_answered(
        &self,
        request: &Request,
        mut gives_up: impl FnMut() -> bool,
    ) -> Option<(Response, bool)> {
        let mut first = true;
        poll("an answer", || {
            assert!(!self.stop.load(Ordering::Relaxed), "another one failed");
            match self.http.try_send(request) {
                Ok(answer) if !matches!(answer.status, 503 | 504) => Some(Some((answer, first))),
                // Nothing was sent.
                Err(err) if err.kind() == io::ErrorKind::ConnectionRefused => None,
                _ => {
                    first = false;
                    gives_up().then_some(None)
                }
            }
        })
    }

    /// One of the clients: saves, and deletes some of what it has saved.
    fn client(&self, number: u64) -> Ledger {
        let random = SeededEntropy::new(self.seed.wrapping_add(number));
        let mut ledger = Ledger::default();
        for _ in 0..self.pastes / CLIENTS {
            self.save(&random, &mut ledger);
            self.created.fetch_add(1, Ordering::SeqCst);
            if random.below(3) == 0 && !ledger.saved.is_empty() {
                let at = random.below(ledger.saved.len() as u64);
                let at = usize::try_from(at).expect("an index");
                self.delete(&mut ledger.saved[at]);
            }
        }
        ledger
    }

    fn save(&self, random: &SeededEntropy, ledger: &mut Ledger) {
        // A quarter is there at the end.
        let secs = match random.below(4) {
            0 => 86_400,
            _ => 60 + random.below(541),
        };
        let request =
            create(&key(), secs.to_string()).header("paste-lifetime", &format!("{secs}s"));
        let mut failed = 0;
        let answered = self.until_answered(&request, || {
            failed += 1;
            random.below(30) == 0
        });
        ledger.failed += failed;
        let Some((answer, _)) = answered else {
            ledger.unknown += 1;
            return;
        };
        let created = Created::from(&answer);
        ledger.saved.push(Saved {
            expiry_ms: expiry_ms(&created),
            deleted: false,
            token: created.token,
            id: created.id,
        });
    }

    fn delete(&self, saved: &mut Saved) {
        let request = Request::new("DELETE", &format!("/api/v1/pastes/{}", saved.id))
            .header("authorization", &format!("Bearer {}", saved.token));
        let Some((answer, first)) = self.until_answered(&request, || false) else {
            return;
        };
        match answer.status {
            204 => assert!(!saved.deleted, "r03: {} ended twice", saved.id),
            404 => {
                let is_due = self.clock_ms.load(Ordering::SeqCst) >= saved.expiry_ms;
                assert!(saved.deleted || is_due || !first, "{} is lost", saved.id);
            }
            status => panic!("seed {}: {status}: {}", self.seed, answer.text()),
        }
        saved.deleted = true;
    }

    /// Moves the clock and kills processes, as the clients get on: so slow machines have as many
    /// kills as fast ones, and after each there is progress.
    fn disturb(&self, store: &mut Store) {
        let random = SeededEntropy::new(self.seed);
        let processes = ["shard-0", "shard-1", "worker", "frontend"];
        let mut kills = 0;
        let steps = (self.pastes / 50).max(80);
        for step in 1..=steps {
            poll("the clients get on", || {
                let created = self.created.load(Ordering::SeqCst);
                (created >= self.pastes * step / (steps + 1)).then_some(())
            });
            let by = Duration::from_millis(1000 + random.below(9000));
            // Before the shards can see it: whoever reads it after an answer is not behind them.
            let clock_ms = store.clock.wall_ms() + u64::try_from(by.as_millis()).expect("small");
            self.clock_ms.store(clock_ms, Ordering::SeqCst);
            store.clock.advance(by);
            if step % STEPS_PER_KILL == 0 {
                // Within whatever they do; not a time that is hoped to be enough.
                thread::sleep(Duration::from_micros(random.below(20_000)));
                let at = random.below(processes.len() as u64);
                let name = processes[usize::try_from(at).expect("an index")];
                kills += u64::from(store.up.kill_process(name).is_some());
            }
        }
        assert!(kills >= steps / STEPS_PER_KILL / 2, "only {kills} kills");
    }
}

fn expiry_ms(created: &Created) -> u64 {
    let at = OffsetDateTime::parse(&created.expires_at, &Rfc3339).expect("RFC 3339");
    u64::try_from(at.unix_timestamp_nanos() / 1_000_000).expect("after 1970")
}

/// Goal: whatever is killed, every paste that ended has ended whole, every other one is there, and
/// what nobody knows of are the objects of creates that failed.
/// Method: clients save and delete while the clock moves and processes are killed; then every paste
/// is compared by its id, and the totals too. Covers o03, i03, i05, k14, d06.
#[test]
fn r05_o03_i03_a_store_under_kills_ends_whole() {
    let pastes = std::env::var("OSTRACA_LIFE_PASTES").map_or(600, |pastes| {
        pastes.parse().expect("OSTRACA_LIFE_PASTES is a number")
    });
    let mut seed = [0; 8];
    SystemEntropy.fill(&mut seed);
    let seed = u64::from_le_bytes(seed);
    println!("seed {seed}");
    let mut store = Store::start();
    let scene = Scene {
        http: store.http.clone(),
        seed,
        pastes,
        created: AtomicU64::new(0),
        clock_ms: AtomicU64::new(store.clock.wall_ms()),
        stop: AtomicBool::new(false),
    };
    let ledgers: Vec<Ledger> = thread::scope(|scope| {
        let scene = &scene;
        let start = |number| scope.spawn(move || scene.client(number));
        let clients: Vec<_> = (1..=CLIENTS).map(start).collect();
        let disturbed = catch_unwind(AssertUnwindSafe(|| scene.disturb(&mut store)));
        // The clients end whether or not this did well.
        scene.stop.store(disturbed.is_err(), Ordering::Relaxed);
        let ledgers = clients
            .into_iter()
            .map(|client| client.join().expect("no client is refused"));
        let ledgers = ledgers.collect();
        assert!(disturbed.is_ok(), "the disturbing failed");
        ledgers
    });
    store.wait_ready();

    // Now all short lives are over, and what killed workers had comes again until it is done.
    store.advance(Duration::from_secs(601));
    let started = Instant::now();
    while store.sum("outbox_ready") != 0 || store.sum("expiry_lag_ms") != 0 {
        let ready = store.sum("outbox_ready");
        assert!(started.elapsed() < 4 * DEADLINE, "{ready} left");
        store.advance(Duration::from_secs(5));
    }
    let now_ms = store.clock.wall_ms();

    let all: HashSet<&str> = ledgers
        .iter()
        .flat_map(|ledger| &ledger.saved)
        .map(|saved| saved.id.as_str())
        .collect();
    let known: usize = ledgers.iter().map(|ledger| ledger.saved.len()).sum();
    assert_eq!(all.len(), known, "seed {seed}: an id names two pastes");
    let objects = objects(&store.up);
    let mut live = 0;
    for saved in ledgers.iter().flat_map(|ledger| &ledger.saved) {
        let id = &saved.id;
        let lives = !saved.deleted && now_ms < saved.expiry_ms;
        live += u64::from(lives);
        let status = store.http.get(&format!("/{id}/raw")).status;
        assert_eq!(status, if lives { 200 } else { 404 }, "seed {seed}: {id}");
        assert_eq!(objects.contains(id), lives, "seed {seed}: object of {id}");
        assert_eq!(store.is_purged(id), !lives, "seed {seed}: purges of {id}");
    }
    // Of creates that were not answered: pastes that nobody knows of, and orphans.
    let strange = objects.iter().filter(|id| !all.contains(id.as_str()));
    let (secret, orphans): (Vec<_>, Vec<_>) =
        strange.partition(|id| store.http.get(&format!("/{id}/raw")).status == 200);
    let unknown: u64 = ledgers.iter().map(|ledger| ledger.unknown).sum();
    let failed: u64 = ledgers.iter().map(|ledger| ledger.failed).sum();
    let (known, secret, orphans) = (known as u64, secret.len() as u64, orphans.len() as u64);
    println!(
        "{known} pastes, {live} live; {failed} requests failed, {unknown} creates were given up: \
         {secret} live pastes of these, {orphans} orphans"
    );
    assert!(secret <= unknown, "seed {seed}");
    assert!(secret + orphans <= failed, "seed {seed}");
    let (rows, creates) = (store.sum("pastes"), store.sum("idempotency_rows"));
    assert_eq!(rows, live + secret, "seed {seed}: live pastes");
    assert!((known..=known + unknown).contains(&creates), "seed {seed}");
    assert!(live > 0 && creates > rows, "seed {seed}: some of each");
    assert_eq!(store.sum("inbox_rows"), creates - rows, "seed {seed}: ends");
    store.assert_nothing_given_up();
}
