//! What goes wrong, and when: a run has its own mix of kinds, so that rare companies of faults meet.

mod crowd;
mod damage;
mod outage;

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use ostraca_io::{SimDisk, Unsynced};

use crate::Options;
use crate::kernel::{Chance, HOUR, Kernel, MILLI, Nanos, SECOND};
use crate::net::Weather;
use crate::shard::{Directory, LEASE, Seat};
use crate::storage::Mood;
use crate::worker::Place;
use crate::world::{Part, StoreMood, World};
use damage::damage;

/// The kinds of faults. Each has the chance to be part of a run.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Kind {
    Kill,
    PowerCut,
    /// Shorter than the lease, or longer.
    Freeze,
    HandOver,
    /// A person lets a standby lead, whoever leads.
    TakeOver,
    SlowSyncs,
    FailedSync,
    FailedWrites,
    FullDisk,
    Damage,
    BadCell,
    EvictCache,
    WallClock,
    Sleep,
    Network,
    Store,
    KillWorker,
    FreezeWorker,
    /// A sleep of about a week, past retention times.
    LongSleep,
    /// The object store, the edge or the search refuses, for hours.
    Outage,
    /// More calls at once than a queue holds.
    Crowd,
}

const KINDS: [(Kind, u64); 21] = [
    (Kind::Kill, 700),
    (Kind::PowerCut, 500),
    (Kind::Freeze, 700),
    (Kind::HandOver, 300),
    (Kind::TakeOver, 300),
    (Kind::SlowSyncs, 300),
    (Kind::FailedSync, 300),
    (Kind::FailedWrites, 200),
    (Kind::FullDisk, 200),
    (Kind::Damage, 250),
    (Kind::BadCell, 150),
    (Kind::EvictCache, 300),
    (Kind::WallClock, 300),
    (Kind::Sleep, 350),
    (Kind::Network, 600),
    (Kind::Store, 400),
    (Kind::KillWorker, 500),
    (Kind::FreezeWorker, 300),
    (Kind::LongSleep, 150),
    (Kind::Outage, 120),
    (Kind::Crowd, 80),
];
/// Long sleeps of one run: what is open is over after one, and nothing is left for more.
const LONG_SLEEPS_MAX: u64 = 2;
/// Crowds of one run: what they leave in the log is read at each opening.
const CROWDS_MAX: u64 = 2;
/// A run with an outage is at least so long.
const OUTAGE_MIN: Nanos = 8 * SECOND;

/// The word of the epoch page that says who leads, by FORMAT.md of the log.
const EPOCH_CELL: usize = 8;

/// The names of all kinds of faults.
#[must_use]
pub fn kinds() -> Vec<String> {
    KINDS.iter().map(|(kind, _)| format!("{kind:?}")).collect()
}

pub(crate) struct Faults {
    world: World,
    workers: Vec<Arc<Place>>,
    kinds: Vec<Kind>,
    options: Options,
    until: Nanos,
    pace: Nanos,
    long_sleeps: AtomicU64,
    outages: AtomicU64,
    crowds: AtomicU64,
}

/// The kinds of faults of this seed, and how long it takes.
pub(crate) fn mix(chance: &Chance) -> (Vec<Kind>, Nanos) {
    let mut kinds = Vec::new();
    for (kind, of) in KINDS {
        if chance.hits(of) {
            kinds.push(kind);
        }
    }
    let until = chance.within(3 * SECOND, 11 * SECOND);
    if kinds.contains(&Kind::Outage) {
        // Of what fails for other reasons as well nothing is tried often enough.
        kinds.retain(|kind| *kind == Kind::Outage || chance.hits(500));
        return (kinds, until.max(OUTAGE_MIN));
    }
    (kinds, until)
}

impl Faults {
    /// Starts the faults of this seed, until then.
    pub(crate) fn start(
        world: &World,
        workers: &[Arc<Place>],
        options: &Options,
        (kinds, until): (Vec<Kind>, Nanos),
    ) {
        let chance = &world.kernel.chance;
        let faults = Arc::new(Self {
            world: world.clone(),
            workers: workers.to_vec(),
            kinds,
            options: options.clone(),
            until,
            pace: chance.within(200 * MILLI, 1500 * MILLI),
            long_sleeps: AtomicU64::new(0),
            outages: AtomicU64::new(0),
            crowds: AtomicU64::new(0),
        });
        world
            .kernel
            .tell("faults", || format!("of this run: {:?}", faults.kinds));
        if faults.kinds.contains(&Kind::Outage) {
            // It takes a while, and has to find messages.
            let (this, delay) = (Arc::clone(&faults), chance.within(SECOND, OUTAGE_MIN / 3));
            world
                .kernel
                .after(delay, move |_| this.strike(Kind::Outage));
        }
        faults.next();
    }

    fn next(self: &Arc<Self>) {
        let kernel = &self.world.kernel;
        let delay = kernel.chance.within(20 * MILLI, 2 * self.pace);
        let this = Arc::clone(self);
        kernel.after(delay, move |kernel| {
            if kernel.awake() >= this.until {
                return;
            }
            if let Some(kind) = kernel.chance.pick(&this.kinds) {
                this.strike(*kind);
            }
            this.next();
        });
    }

    fn seat(&self) -> &Arc<Seat> {
        let world = &self.world;
        // Mostly a leader: that is where something can be lost.
        let leading = world.seats.iter().filter(|seat| seat.shard().is_some());
        let leading: Vec<_> = leading.collect();
        match world.kernel.chance.pick(&leading) {
            Some(seat) if world.kernel.chance.hits(800) => seat,
            _ => {
                &world.seats[usize::try_from(world.kernel.chance.below(world.seats.len() as u64))
                    .unwrap_or(0)]
            }
        }
    }

    fn strike(self: &Arc<Self>, kind: Kind) {
        let world = &self.world;
        let kernel = &world.kernel;
        let chance = &kernel.chance;
        let options = &self.options;
        let over = options
            .faults_until
            .is_some_and(|until| kernel.awake() > until);
        if over || options.without.contains(&format!("{kind:?}")) {
            return;
        }
        kernel.tell("faults", || format!("{kind:?}"));
        // The others are counted where it is certain that they strike.
        let certain = !matches!(
            kind,
            Kind::Kill
                | Kind::PowerCut
                | Kind::Freeze
                | Kind::HandOver
                | Kind::TakeOver
                | Kind::Damage
                | Kind::LongSleep
                | Kind::Outage
                | Kind::Crowd
        );
        if certain {
            kernel.count(format!("{kind:?}"));
        }
        match kind {
            Kind::Kill => {
                let (world, seat) = (world.clone(), Arc::clone(self.seat()));
                self.at_a_call(&Arc::clone(&seat), move |kernel| {
                    kernel.count("Kill");
                    kill(&world, &seat);
                });
            }
            Kind::PowerCut => {
                let world = world.clone();
                self.at_a_call(self.seat(), move |_| power_cut(&world));
            }
            Kind::Freeze => {
                let process = self.seat().process();
                let longer = chance.hits(750);
                let pause = if longer {
                    chance.within(LEASE, 5 * LEASE)
                } else {
                    chance.within(10 * MILLI, LEASE)
                };
                self.at_a_call(self.seat(), move |kernel| {
                    kernel.count("Freeze");
                    kernel.tell(&process.name, || "is stopped".to_owned());
                    kernel.freeze(&process, kernel.now() + pause);
                });
            }
            Kind::HandOver => {
                if let Some(shard) = self.seat().shard() {
                    kernel.count("HandOver");
                    shard.close();
                }
            }
            Kind::TakeOver => {
                let dir = &self.seat().dir;
                let standbys: Vec<_> = seats_of(world, dir)
                    .filter(|seat| seat.shard().is_none())
                    .collect();
                if let Some(seat) = chance.pick(&standbys) {
                    kernel.count("TakeOver");
                    seat.take_over();
                }
            }
            Kind::SlowSyncs => {
                let mood = Mood {
                    slow_syncs: chance.within(5, 300),
                    slow_max: chance.within(SECOND, 3 * SECOND),
                };
                let dir = &self.seat().dir;
                *dir.mood.lock() = mood;
                let dir = Arc::clone(dir);
                kernel.after(chance.within(SECOND, 3 * SECOND), move |_| {
                    *dir.mood.lock() = Mood::default();
                });
            }
            Kind::FailedSync => self.disk().fail_next_sync(),
            Kind::FailedWrites => {
                let disk = self.disk();
                disk.fail_writes_with(std::io::ErrorKind::Other);
                kernel.after(chance.within(MILLI, 200 * MILLI), move |_| {
                    disk.heal_writes();
                });
            }
            Kind::FullDisk if chance.hits(500) => crowd::fills_the_disk(kernel, self.disk()),
            Kind::FullDisk => {
                let disk = self.disk();
                disk.set_capacity(chance.within(1 << 20, 6 << 20));
                kernel.after(chance.within(100 * MILLI, 3 * SECOND), move |_| {
                    disk.set_capacity(u64::MAX);
                });
            }
            Kind::Damage => damage(world, self.seat()),
            Kind::BadCell => self.disk().damage_page(EPOCH_CELL, chance.next()),
            Kind::EvictCache => self.disk().evict_cache(),
            Kind::WallClock => {
                let step = i64::try_from(chance.below(1_200_000)).unwrap_or(0) - 600_000;
                kernel.step_wall(if chance.hits(300) { 0 } else { step });
            }
            Kind::Sleep => {
                // Rarely, as each passes retention times, and most races need the hours around them.
                if chance.hits(300) {
                    kernel.leap(chance.within(HOUR / 2, 30 * HOUR));
                } else {
                    kernel.leap(chance.within(SECOND, 90 * SECOND));
                }
            }
            Kind::Network => {
                world.net.set_weather(Weather {
                    lost: chance.within(0, 150),
                    twice: chance.within(0, 150),
                    late: chance.within(0, 200),
                    late_max: chance.within(5 * MILLI, 4 * SECOND),
                });
                let net = world.net.clone();
                kernel.after(chance.within(200 * MILLI, 3 * SECOND), move |_| {
                    net.set_weather(Weather::default());
                });
            }
            Kind::Store => {
                let mood = StoreMood {
                    refuses: chance.within(0, 700),
                    slow: chance.within(0, 500),
                };
                let parts: &[Part] = if chance.hits(700) {
                    &[Part::Objects, Part::Edge]
                } else {
                    &[Part::Search]
                };
                let moods = parts.iter().map(|&part| (part, mood));
                world.outside.lock().moods.extend(moods);
                let world = world.clone();
                kernel.after(chance.within(200 * MILLI, 4 * SECOND), move |_| {
                    let mut outside = world.outside.lock();
                    outside.moods.retain(|part, _| !parts.contains(part));
                });
            }
            Kind::KillWorker => {
                let worker = self.worker();
                kernel.kill(&worker.process.lock());
                let (worker, world) = (Arc::clone(worker), world.clone());
                kernel.after(chance.within(MILLI, 500 * MILLI), move |_| {
                    worker.start(&world);
                });
            }
            Kind::FreezeWorker => {
                let until = kernel.now() + chance.within(10 * MILLI, 8 * SECOND);
                kernel.freeze(&self.worker().process.lock(), until);
            }
            Kind::LongSleep => {
                if self.long_sleeps.fetch_add(1, Ordering::Relaxed) < LONG_SLEEPS_MAX {
                    kernel.count("LongSleep");
                    // To either side of the 7 days of a message, and the 8 of its inbox row.
                    let hours = [(140, 168), (168, 192), (192, 220)];
                    let (from, to) = chance.pick(&hours).copied().unwrap_or(hours[0]);
                    kernel.leap(chance.within(from * HOUR, to * HOUR));
                }
            }
            Kind::Crowd => {
                if self.crowds.fetch_add(1, Ordering::Relaxed) < CROWDS_MAX {
                    self.crowd();
                }
            }
            Kind::Outage => {
                if self.outages.fetch_add(1, Ordering::Relaxed) == 0 {
                    kernel.count("Outage");
                    outage::start(world);
                }
            }
        }
    }

    fn crowd(&self) {
        let (seat, kernel) = (self.seat(), &self.world.kernel);
        let Some(shard) = seat.shard() else { return };
        kernel.count("Crowd");
        if kernel.chance.hits(500) {
            crowd::fills_the_disk(kernel, seat.dir.disk.lock().clone());
        }
        // Two of them fill a segment.
        for wave in 0..3 {
            let shard = shard.clone();
            kernel.after(wave * 150 * MILLI, move |kernel| {
                crowd::comes(kernel, &shard);
            });
        }
    }

    fn worker(&self) -> &Arc<Place> {
        let chance = &self.world.kernel.chance;
        chance.pick(&self.workers).unwrap_or(&self.workers[0])
    }

    /// Lets something happen now, or in the middle of one of the next calls of that process.
    fn at_a_call(&self, seat: &Seat, strike: impl FnOnce(&Kernel) + Send + 'static) {
        let kernel = &self.world.kernel;
        if kernel.chance.hits(250) {
            strike(kernel);
        } else {
            let calls = kernel.chance.within(1, 16);
            let until = self.until;
            kernel.ambush(&seat.process(), calls, move |kernel| {
                if kernel.awake() < until {
                    strike(kernel);
                }
            });
        }
    }

    fn disk(&self) -> SimDisk {
        self.seat().dir.disk.lock().clone()
    }
}

fn kill(world: &World, seat: &Arc<Seat>) {
    world.crashes.fetch_add(1, Ordering::Relaxed);
    world.kernel.kill(&seat.process());
    seat.restart_later();
}

/// All that runs on the machine ends at once, and what was not synced is lost, in whole or in part.
pub(crate) fn power_cut(world: &World) {
    let chance = &world.kernel.chance;
    // What a person has not looked at yet could be taken for a torn tail after it.
    if world.dirs.iter().any(|dir| dir.damaged.lock().is_some()) {
        return;
    }
    world.kernel.count("PowerCut");
    for seat in &world.seats {
        world.crashes.fetch_add(1, Ordering::Relaxed);
        world.kernel.kill(&seat.process());
    }
    for dir in &world.dirs {
        let fate = chance
            .pick(&Unsynced::ALL)
            .copied()
            .unwrap_or(Unsynced::Random);
        let mut disk = dir.disk.lock();
        disk.power_cut(fate);
        *disk = disk.restarted();
        *dir.lock.lock() = None;
    }
    world.kernel.reboot();
    for seat in &world.seats {
        seat.restart_later();
    }
}

/// The processes of a shard.
fn seats_of<'a>(world: &'a World, dir: &'a Arc<Directory>) -> impl Iterator<Item = &'a Arc<Seat>> {
    world
        .seats
        .iter()
        .filter(|seat| Arc::ptr_eq(&seat.dir, dir))
}

/// Everything is well from now on.
pub(crate) fn heal(world: &World, workers: &[Arc<Place>]) {
    let kernel = &world.kernel;
    kernel.tell("faults", || "are over".to_owned());
    world.net.set_weather(Weather::default());
    world.outside.lock().moods.clear();
    kernel.step_wall(0);
    for dir in &world.dirs {
        let disk = dir.disk.lock();
        disk.heal_writes();
        disk.set_capacity(u64::MAX);
        *dir.mood.lock() = Mood::default();
    }
    for seat in &world.seats {
        kernel.thaw(&seat.process());
        seat.restart_later();
    }
    for worker in workers {
        kernel.thaw(&worker.process.lock());
        worker.start(world);
    }
}
