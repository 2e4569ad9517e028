//! One run: a phase in which everything goes wrong, a quiet one in which everything must come to its
//! end, and the verdict.

use std::collections::BTreeMap;
use std::fmt;
use std::sync::Arc;
use std::sync::atomic::Ordering;

use ostraca_checker::{
    KeyState, Ledger, Limits, MessageState, PasteState, ShardState, Store, Told, Verdict, check,
};

use ostraca_engine::Trouble;
use ostraca_types::{ShardId, Slot};

use crate::client::{Client, Saves};
use crate::faults::{Faults, heal, mix, power_cut};
use crate::kernel::{MILLI, Nanos, SECOND, Scheduler};
use crate::operator;
use crate::shard::Directory;
use crate::worker::{Place, consumers};
use crate::world::World;

/// In the quiet phase everything comes to its end within this: visibility timeouts, backoffs of up to
/// five minutes, and a pause of a process that was stopped.
const QUIET_MAX: Nanos = 60 * 60 * SECOND;
/// A wait for a message that is longer than this is slept through.
const IDLE_MIN: Nanos = 5 * SECOND;
const LOOK: Nanos = 500 * MILLI;

/// What came of a run.
#[derive(Debug)]
pub struct Report {
    /// What replays it.
    pub options: Options,
    /// The kinds of faults that the seed has.
    pub kinds: Vec<String>,
    /// What happened, and how often.
    pub counts: BTreeMap<String, usize>,
    /// What was found.
    pub verdict: Verdict,
    /// What did not come to its end in the quiet phase.
    pub stuck: Option<String>,
    /// Kills and power cuts of shard processes.
    pub crashes: usize,
    /// Calls of clients and workers.
    pub calls: usize,
    /// Events.
    pub events: u64,
    /// A hash of who did something when, in what order: the same seed gives the same.
    pub trail: u64,
    /// What happened, for a person; empty unless asked for.
    pub lines: Vec<String>,
}

impl Report {
    /// Whether nothing was found.
    #[must_use]
    pub fn is_good(&self) -> bool {
        self.stuck.is_none() && self.verdict.findings.is_empty()
    }
}

impl fmt::Display for Report {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for line in &self.lines {
            writeln!(f, "{line}")?;
        }
        if let Some(stuck) = &self.stuck {
            writeln!(f, "Stuck: it does not come to its end: {stuck}")?;
        }
        write!(f, "{}", self.verdict)?;
        let seed = self.options.seed;
        write!(
            f,
            "seed {seed}; replay with: cargo run --profile sim -p ostraca-sim -- --from {seed} --seeds 1 --trace"
        )?;
        for kind in &self.options.without {
            write!(f, " --without {kind}")?;
        }
        if let Some(until) = self.options.faults_until {
            write!(f, " --faults-until {until}")?;
        }
        writeln!(f)
    }
}

/// What is run.
#[derive(Debug, Clone, Default)]
pub struct Options {
    /// What replays it.
    pub seed: u64,
    /// Writes down what happens.
    pub tells: bool,
    /// Kinds of faults that are left out, though the seed has them.
    pub without: Vec<String>,
    /// After this many nanoseconds, sleeps not counted, nothing goes wrong any more.
    pub faults_until: Option<u64>,
}

/// Says which seed it was, where a run panics.
struct Seed(u64);

impl Drop for Seed {
    #[expect(
        clippy::print_stderr,
        reason = "the panic's own message goes there as well"
    )]
    fn drop(&mut self) {
        if std::thread::panicking() {
            eprintln!("this was seed {}", self.0);
        }
    }
}

/// Leaves out of a run that fails what it fails without: kinds of faults, one after the other, and the
/// faults towards its end. Each try is a run of its own, so the result may fail otherwise.
#[must_use]
pub fn shrink(failed: &Report) -> Report {
    let mut least = run(&failed.options);
    for kind in &failed.kinds {
        let mut options = least.options.clone();
        options.without.push(kind.clone());
        let without = run(&options);
        if !without.is_good() {
            least = without;
        }
    }
    let (mut passes, mut fails) = (0, least.options.faults_until.unwrap_or(11 * SECOND));
    while fails - passes > SECOND / 20 {
        let middle = passes + (fails - passes) / 2;
        let mut options = least.options.clone();
        options.faults_until = Some(middle);
        let shorter = run(&options);
        if shorter.is_good() {
            passes = middle;
        } else {
            (least, fails) = (shorter, middle);
        }
    }
    let mut options = least.options;
    options.tells = failed.options.tells;
    run(&options)
}

/// Runs a seed.
#[must_use]
pub fn run(options: &Options) -> Report {
    let seed = options.seed;
    let _says = Seed(seed);
    // Attempts of a worker carry timers, which never come to anything here: their waits are the
    // kernel's.
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_time()
        .start_paused(true)
        .build()
        .expect("a runtime");
    let _entered = runtime.enter();

    let world = World::new(seed, options.tells);
    let mut scheduler = Scheduler::new(world.kernel.clone());
    let workers = consumers().map(|consumer| Place::new(&world, consumer));
    let chance = &world.kernel.chance;
    let (kinds, until) = mix(chance);
    for seat in &world.seats {
        seat.start();
    }
    let [purge, search] = &workers;
    purge.start(&world);
    let (later, place) = (chance.below(until), Arc::clone(search));
    let registering = world.clone();
    world
        .kernel
        .after(later, move |_| place.start(&registering));
    operator::start(&world);
    let saves = Saves::default();
    for _ in 0..chance.within(2, 6) {
        Client::start(&world, &saves, until);
    }
    Faults::start(&world, &workers, options, (kinds.clone(), until));
    scheduler.run(until);

    heal(&world, &workers);
    world.quiet.store(true, Ordering::Relaxed);
    let quiet_until = world.kernel.now() + QUIET_MAX;
    let mut look = world.kernel.now();
    let stuck = loop {
        look += LOOK;
        while scheduler.step(look) {}
        let left = open_ends(&world);
        if left.is_none() || look >= quiet_until {
            break left;
        }
        if let Some(idle) = idle(&world) {
            world.kernel.leap(idle);
            look = world.kernel.now();
        }
    };
    // What is judged is what the disk has: whatever was acknowledged must come back from it.
    let stuck = stuck.or_else(|| {
        power_cut(&world);
        recovered(&world, &mut scheduler)
    });
    let store = store(&world);
    if store.shards.iter().any(|shard| shard.dropped > 0) {
        world.kernel.count("dropped");
    }
    if world.dirs.iter().any(|dir| has_rolled(dir)) {
        world.kernel.count("segment rolled");
    }
    scheduler.finish();
    let ledger = std::mem::take(&mut *world.ledger.lock());
    let limits = Limits {
        converged: stuck.is_none(),
        // Wall clocks are set ahead by up to ten minutes, and back again.
        clock_slack: std::time::Duration::from_secs(30 * 60),
        workers_known: true,
        ..Limits::default()
    };
    Report {
        options: options.clone(),
        counts: counts(&world, &ledger),
        kinds: kinds.iter().map(|kind| format!("{kind:?}")).collect(),
        verdict: check(&ledger, &store, &limits),
        stuck,
        crashes: world.crashes.load(Ordering::Relaxed),
        calls: ledger.calls.len(),
        events: scheduler.events,
        trail: world.kernel.trail(),
        lines: world.kernel.lines(),
    }
}

/// Whether some leader filled a segment.
fn has_rolled(dir: &Directory) -> bool {
    let disk = dir.disk.lock().clone();
    let files = ostraca_io::Disk::list(&disk).unwrap_or_default();
    let logs = files.iter().map(ostraca_io::FileName::as_str);
    let mut logs = logs.filter(|name| name.ends_with(".log"));
    // The first segment of an epoch has number 0.
    logs.any(|name| !name.ends_with("-00000000.log"))
}

/// How long nothing happens, where all that is left is messages whose backoff takes long.
fn idle(world: &World) -> Option<Nanos> {
    if world.clients.load(Ordering::Relaxed) > 0 {
        return None;
    }
    let mut least = None;
    for dir in &world.dirs {
        let shard = leader(world, dir.id)?;
        let status = shard.status();
        let due = status.next_end.is_some_and(|end| end <= status.now);
        if due || status.counts.outbox.dead > 0 || status.trouble.is_some() {
            return None;
        }
        for consumer in consumers() {
            if let Some(next) = shard.next_message_in(&consumer) {
                let next = Nanos::try_from(next.as_nanos()).unwrap_or(Nanos::MAX);
                least = Some(least.map_or(next, |least: Nanos| least.min(next)));
            }
        }
    }
    least.filter(|&least| least > IDLE_MIN)
}

/// Waits until every shard is led again.
fn recovered(world: &World, scheduler: &mut Scheduler) -> Option<String> {
    let mut look = world.kernel.now();
    for _ in 0..120 {
        look += LOOK;
        while scheduler.step(look) {}
        let led = |dir: &Arc<Directory>| leader(world, dir.id).is_some();
        if world.dirs.iter().all(led) {
            return None;
        }
    }
    Some("a shard does not come back from its disk".to_owned())
}

/// What has not come to its end.
fn open_ends(world: &World) -> Option<String> {
    let clients = world.clients.load(Ordering::Relaxed);
    if clients > 0 {
        return Some(format!("{clients} clients are still at work"));
    }
    for dir in &world.dirs {
        let seats = world.seats.iter().filter(|seat| seat.dir.id == dir.id);
        let Some(shard) = seats.clone().find_map(|seat| leading(seat)) else {
            let refusals: Vec<_> = seats
                .filter_map(|seat| seat.now.lock().refuses.lock().clone())
                .collect();
            return Some(format!("nobody leads shard {}: {refusals:?}", dir.id));
        };
        let status = shard.status();
        if status.trouble == Some(Trouble::ClockLeapt) {
            // It was set back, and right again: a person says so.
            world.kernel.count("clock confirmed");
            shard.confirm_clock();
        }
        if status.counts.outbox.ready > 0 {
            let ready = status.counts.outbox.ready;
            return Some(format!(
                "{ready} messages of shard {} are not finished",
                dir.id
            ));
        }
        if status.next_end.is_some_and(|end| end <= status.now) {
            return Some(format!("pastes of shard {} are due", dir.id));
        }
        if let Some(trouble) = status.trouble {
            return Some(format!("shard {}: {trouble}", dir.id));
        }
    }
    None
}

/// What happened, and what clients were told.
fn counts(world: &World, ledger: &Ledger) -> BTreeMap<String, usize> {
    let mut counts = world.kernel.counts();
    for call in &ledger.calls {
        let told = match &call.told {
            Told::Created { replayed: true, .. } => "replayed",
            Told::Conflict => "conflict",
            Told::TokenRejected => "token rejected",
            Told::Deleted => "deleted",
            Told::Registered => "registered",
            Told::Settled(false) => "stale handle",
            Told::Dead(_) => "given up",
            Told::Replayed(true) => "dead letter replayed",
            Told::Unknown => "unknown",
            Told::Refused { reason } => reason,
            _ => continue,
        };
        *counts.entry(told.to_owned()).or_default() += 1;
    }
    counts
}

/// The shard of that number, as its leader has it.
fn leader(world: &World, shard: ShardId) -> Option<ostraca_engine::Shard> {
    let mut seats = world.seats.iter().filter(|seat| seat.dir.id == shard);
    seats.find_map(|seat| leading(seat))
}

/// The shard of a process that really leads.
fn leading(seat: &crate::shard::Seat) -> Option<ostraca_engine::Shard> {
    let shard = seat.shard()?;
    let probe = ostraca_types::KeyDigest([0; 16]);
    shard.idempotency(&probe).is_ok().then_some(shard)
}

fn store(world: &World) -> Store {
    let mut store = Store {
        owners: Slot::all().map(|slot| World::owner(slot).0).collect(),
        ..Store::default()
    };
    let outside = world.outside.lock();
    let now = world.kernel.now();
    store.objects.extend(outside.objects.keys().copied());
    let cached = outside.cached.iter().filter(|&(_, &until)| until > now);
    store.cached.extend(cached.map(|(id, _)| *id));
    drop(outside);
    for dir in &world.dirs {
        let Some(shard) = leader(world, dir.id) else {
            continue;
        };
        let status = shard.status();
        let rows = shard.rows();
        store.shards.push(ShardState {
            shard: dir.id.0,
            epoch: status.epoch.0,
            sequence: status.applied.0,
            now: status.now,
            dropped: status.counts.outbox.dropped,
        });
        store
            .pastes
            .extend(rows.pastes.into_iter().map(|(id, row)| PasteState {
                id,
                expires_at: row.expires_at,
                token: row.token_hash,
                outbox: row.outbox_id,
            }));
        store
            .keys
            .extend(rows.idempotency.into_iter().map(|(digest, row)| KeyState {
                digest,
                paste: row.paste_id,
                expires_at: row.expires_at,
            }));
        let ready = rows.ready.iter();
        store.undelivered.extend(ready.map(|row| MessageState {
            outbox: row.outbox_id,
            paste: row.paste_id,
            ended_at: row.ended_at,
        }));
        let inbox = rows.inbox.into_iter();
        store
            .inbox
            .extend(inbox.map(|row| (row.consumer.to_string(), row.outbox_id, row.expires_at)));
    }
    store
}
