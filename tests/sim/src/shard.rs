//! A shard's directory, and the processes that lead it or wait to.

use std::collections::VecDeque;
use std::fmt;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use ostraca_engine::{Heartbeat, Identity, OpenError, Options, Shard, new_epoch_page};
use ostraca_io::{FileName, Page, SimDisk};
use ostraca_types::{ErrorKind, ShardId, StoreId};
use parking_lot::Mutex;

use crate::kernel::{
    Kernel, KernelClock, KernelEntropy, KernelSpawn, MILLI, Nanos, Process, SECOND,
};
use crate::net::{Address, Arrival, Net};
use crate::service::Service;
use crate::storage::{Device, Mood, StepDisk, StepPage};

/// A leader whose loop has not gone round for this long hangs.
pub(crate) const LEASE: Nanos = 500 * MILLI;
const LOOK_INTERVAL: Nanos = 50 * MILLI;
/// How long a process waits before it is started again.
const RESTART_MIN: Nanos = 20 * MILLI;
const RESTART_MAX: Nanos = 2 * SECOND;

/// One bit of a file, that is not what it was.
#[derive(Debug, Clone)]
pub(crate) struct Damage {
    pub(crate) file: FileName,
    pub(crate) offset: u64,
    pub(crate) bit: u32,
}

/// Where one shard is, whoever leads it.
pub(crate) struct Directory {
    pub(crate) id: ShardId,
    pub(crate) identity: Identity,
    pub(crate) disk: Mutex<SimDisk>,
    pub(crate) mood: Arc<Mutex<Mood>>,
    /// Who has the lock: the leader, unless it is one that took over from a leader that hangs.
    pub(crate) lock: Mutex<Option<Arc<Process>>>,
    /// A bit that flipped at rest, and when, until it did no harm or was put back.
    pub(crate) damaged: Mutex<Option<Damage>>,
}

impl fmt::Debug for Directory {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Directory({})", self.id)
    }
}

impl Directory {
    pub(crate) fn new(id: ShardId, seed: u64) -> Self {
        let identity = Identity {
            store: StoreId([7; 16]),
            shard: id,
        };
        let disk = SimDisk::new(seed);
        let page = new_epoch_page(&identity);
        for (word, bytes) in page.chunks_exact(8).enumerate() {
            disk.damage_page(word, u64::from_le_bytes(bytes.try_into().expect("eight")));
        }
        Self {
            id,
            identity,
            disk: Mutex::new(disk),
            mood: Arc::default(),
            lock: Mutex::new(None),
            damaged: Mutex::new(None),
        }
    }
}

/// One process of a shard: its place, and what runs there now.
pub(crate) struct Seat {
    pub(crate) kernel: Kernel,
    pub(crate) net: Net,
    pub(crate) dir: Arc<Directory>,
    pub(crate) address: Address,
    pub(crate) now: Mutex<Running>,
}

pub(crate) struct Running {
    pub(crate) process: Arc<Process>,
    pub(crate) shard: Arc<Mutex<Option<Shard>>>,
    pub(crate) starts: u32,
    /// A person lets it lead.
    pub(crate) takes_over: Arc<AtomicBool>,
    /// It refuses to open, and waits for a person.
    pub(crate) refuses: Arc<Mutex<Option<String>>>,
}

impl fmt::Debug for Seat {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Seat({})", self.address)
    }
}

impl Seat {
    pub(crate) fn new(kernel: &Kernel, net: &Net, dir: &Arc<Directory>, address: Address) -> Self {
        let process = kernel.process("nobody");
        kernel.kill(&process);
        Self {
            kernel: kernel.clone(),
            net: net.clone(),
            dir: Arc::clone(dir),
            address,
            now: Mutex::new(Running {
                process,
                shard: Arc::default(),
                starts: 0,
                takes_over: Arc::default(),
                refuses: Arc::default(),
            }),
        }
    }

    pub(crate) fn process(&self) -> Arc<Process> {
        Arc::clone(&self.now.lock().process)
    }

    pub(crate) fn shard(&self) -> Option<Shard> {
        let running = self.now.lock();
        let shard = running.shard.lock().clone();
        shard.filter(|_| !running.process.is_dead())
    }

    /// Lets the process lead, whoever leads.
    pub(crate) fn take_over(&self) {
        let running = self.now.lock();
        running.takes_over.store(true, Ordering::Relaxed);
    }

    /// Starts the process after a while, unless it runs.
    pub(crate) fn restart_later(self: &Arc<Self>) {
        let delay = self.kernel.chance.within(RESTART_MIN, RESTART_MAX);
        let seat = Arc::clone(self);
        self.kernel.after(delay, move |_| seat.start());
    }

    pub(crate) fn start(self: &Arc<Self>) {
        let mut running = self.now.lock();
        if !running.process.is_dead() {
            return;
        }
        running.starts += 1;
        let name = format!("s{}p{}.{}", self.dir.id, self.address % 2, running.starts);
        running.process = self.kernel.process(name);
        running.shard = Arc::default();
        running.refuses = Arc::default();
        running.takes_over = Arc::default();
        let takes_over = Arc::clone(&running.takes_over);
        let process = Arc::clone(&running.process);
        let leading = Arc::clone(&running.shard);
        let refuses = Arc::clone(&running.refuses);
        drop(running);
        self.kernel.tell(&process.name, || "starts".to_owned());

        let queue: Arc<Mutex<VecDeque<Arrival>>> = Arc::default();
        let (seat, body_process, body_shard) =
            (Arc::clone(self), Arc::clone(&process), Arc::clone(&leading));
        let main = self.kernel.spawn(&process, move || {
            let disk = seat.dir.disk.lock().beside();
            Program {
                disk,
                device: Device {
                    kernel: seat.kernel.clone(),
                    process: Arc::clone(&body_process),
                    mood: Arc::clone(&seat.dir.mood),
                },
                seat: &seat,
                process: body_process,
                leading: body_shard,
                takes_over,
                refuses,
            }
            .run();
        });
        let service = Service {
            kernel: self.kernel.clone(),
            net: self.net.clone(),
            process: Arc::clone(&process),
        };
        let arrivals = Arc::clone(&queue);
        let door = self.kernel.spawn(&process, move || {
            while !service.process.is_dead() {
                let Some(arrival) = arrivals.lock().pop_front() else {
                    service.kernel.wait(Nanos::MAX);
                    continue;
                };
                let shard = leading.lock().clone();
                service.handle(shard.as_ref(), arrival);
                service.kernel.wake(main);
            }
        });
        self.net.listen(self.address, &process, &queue, door);
    }
}

/// What a shard process does: waits until it is to lead, leads, and waits again.
struct Program<'a> {
    seat: &'a Arc<Seat>,
    process: Arc<Process>,
    device: Device,
    disk: SimDisk,
    leading: Arc<Mutex<Option<Shard>>>,
    takes_over: Arc<AtomicBool>,
    refuses: Arc<Mutex<Option<String>>>,
}

impl Program<'_> {
    fn run(&self) {
        let kernel = &self.seat.kernel;
        while !self.process.is_dead() {
            let page: Arc<dyn Page> = Arc::new(StepPage {
                device: self.device.clone(),
                page: self.disk.page(),
            });
            self.stand_by(&*page);
            if self.process.is_dead() {
                return;
            }
            let led = self.lead(&page);
            *self.leading.lock() = None;
            if self.process.is_dead() {
                return;
            }
            match led {
                Ok(()) => {
                    kernel.tell(&self.process.name, || "has handed over".to_owned());
                }
                Err(Ended::Fenced) => {
                    kernel.count("fenced");
                    kernel.tell(&self.process.name, || "is fenced".to_owned());
                }
                Err(Ended::Damaged(err)) => {
                    kernel.count("refuses");
                    kernel.tell(&self.process.name, || format!("refuses: {err}"));
                    *self.refuses.lock() = Some(err);
                    // It says so and serves nobody, until it is started again.
                    while !self.process.is_dead() {
                        kernel.wait(SECOND);
                    }
                }
                Err(Ended::Failed(err)) => {
                    kernel.tell(&self.process.name, || format!("ends: {err}"));
                    kernel.kill(&self.process);
                    self.seat.restart_later();
                }
            }
        }
    }

    /// Waits until there is no leader, or it hangs. It decides when, never whether: that is the
    /// fence's.
    fn stand_by(&self, page: &dyn Page) {
        let kernel = &self.seat.kernel;
        let mut last = Heartbeat::of(page);
        let mut since = kernel.now();
        while !self.process.is_dead() {
            kernel.wait(LOOK_INTERVAL);
            if self.takes_over.swap(false, Ordering::Relaxed) {
                return;
            }
            let now = Heartbeat::of(page);
            if now != last {
                (last, since) = (now, kernel.now());
            }
            let silent = kernel.now() - since;
            let lock = &self.seat.dir.lock;
            let holder = lock.lock().clone().filter(|holder| !kernel.is_gone(holder));
            match holder {
                None if now.resigned() || silent >= LEASE / 2 => {
                    *lock.lock() = Some(Arc::clone(&self.process));
                    return;
                }
                Some(holder) if *holder == *self.process => return,
                Some(holder) if silent >= LEASE => {
                    // Where it may not, or cannot be killed in time, the fence is enough.
                    if kernel.chance.hits(300) {
                        kernel.kill(&holder);
                        kernel.wait(MILLI);
                        if kernel.is_gone(&holder) {
                            *lock.lock() = Some(Arc::clone(&self.process));
                        }
                    }
                    return;
                }
                _ => {}
            }
        }
    }

    fn lead(&self, page: &Arc<dyn Page>) -> Result<(), Ended> {
        let (seat, kernel) = (self.seat, &self.seat.kernel);
        let disk = StepDisk {
            device: self.device.clone(),
            disk: self.disk.clone(),
        };
        let mut options = Options {
            spawn: Arc::new(KernelSpawn(kernel.clone(), Arc::clone(&self.process))),
            ..Options::default()
        };
        options.log.segment_size_first = ostraca_wal::SEGMENT_SIZE_MIN;
        options.log.segment_size = ostraca_wal::SEGMENT_SIZE_MIN;
        let (shard, mut rounds, report) = Shard::open_stepped(
            disk,
            page,
            seat.dir.identity,
            Arc::new(KernelClock(kernel.clone())),
            &KernelEntropy(kernel.clone()),
            &options,
        )?;
        kernel.tell(&self.process.name, || {
            let (epoch, sequence) = (shard.epoch(), shard.applied());
            let (records, cut) = (report.records, report.cut_bytes);
            format!("leads: epoch {epoch}, sequence {sequence}, {records} records, {cut} bytes cut")
        });
        kernel.count("leads");
        if report.cut_bytes > 0 {
            kernel.count("tail cut");
        }
        if report.page_repaired {
            kernel.count("page repaired");
        }
        *self.leading.lock() = Some(shard.clone());
        let led = loop {
            let patience = rounds.patience();
            if !patience.is_zero() {
                kernel.wait(Nanos::try_from(patience.as_nanos()).unwrap_or(SECOND));
            }
            if self.process.is_dead() {
                return Ok(());
            }
            match rounds.next(std::time::Duration::ZERO) {
                Ok(true) => {}
                Ok(false) => break Ok(()),
                Err(err) => break Err(OpenError::Log(err).into()),
            }
        };
        if led.is_ok() {
            shard.resign();
        }
        let lock = &seat.dir.lock;
        let mine = lock
            .lock()
            .as_ref()
            .is_some_and(|holder| **holder == *self.process);
        if mine {
            *lock.lock() = None;
        }
        led
    }
}

/// Why a leadership ended.
enum Ended {
    Fenced,
    Damaged(String),
    Failed(String),
}

impl From<OpenError> for Ended {
    fn from(err: OpenError) -> Self {
        match err.kind() {
            ErrorKind::NotLeader => Self::Fenced,
            ErrorKind::Damaged => Self::Damaged(err.to_string()),
            _ => Self::Failed(err.to_string()),
        }
    }
}
