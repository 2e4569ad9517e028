//! `ostraca up`: every shard, one frontend and one worker as processes of this machine, kept running.
//!
//! Each child has a keeper, which starts it, waits for its end and starts it again. Keepers tell
//! what happens to the one supervisor, which keeps `run/endpoints.json` current. All of it runs on
//! the main thread: the kernel ends a child with the *thread* that started it.

mod keeper;

use std::ffi::OsString;
use std::io::{self, Write as _};
use std::net::{Ipv4Addr, SocketAddr, TcpListener};
use std::path::{Path, PathBuf};
use std::pin::pin;
use std::time::Duration;

use ostraca_io::files::{self, Lock, LockError};
use ostraca_server::endpoints::{self, Endpoint, Role};
use ostraca_server::{DataDir, Secrets};
use ostraca_types::ShardId;
use tokio::sync::{mpsc, watch};
use tokio::task::JoinSet;
use tokio::time::sleep;

use crate::args::{HttpArgs, UpArgs};
use crate::exit::{Exit, Failure, say, written};
use crate::shard::check_remote;
use crate::signals::{StopSignal, StopSignals};
use crate::{data, frontend, machine, process};
use keeper::{Child, Event, News, Stage};

/// How soon a list that could not be written, on a full disk say, is tried again.
const PUBLISH_AGAIN: Duration = Duration::from_secs(1);
/// The data directory is nobody else's.
const DIR_MODE: u32 = 0o700;
/// Each child has at most a few pieces of news under way; a keeper waits when this is full.
const NEWS_MAX: usize = 64;

/// Runs until it is told to stop.
pub(crate) fn run(args: &UpArgs, log: Option<&str>) -> Result<(), Failure> {
    process::adopt(args.parent)?;
    // All that is asked for, before a data directory is made or touched.
    check_remote(args.remote, args.grpc_ip)?;
    frontend::config(&args.http)?;
    let path = &args.data.path;
    // That another `up` runs on it says more than a port that is taken.
    let held = path.join("run").is_dir().then(|| lock(path)).transpose()?;
    let http = args.http.http;
    TcpListener::bind(http).map_err(process::cannot_listen("--http", http))?;
    let _lock = match held {
        Some(lock) => lock,
        None => lock(path)?,
    };
    let data = DataDir::init(path, args.shards, &machine::entropy()).map_err(data::failure)?;
    // The shards would say so, each; this says it once.
    Secrets::load(&data.secret_dir()).map_err(|err| Failure::caused(Exit::Failed, &err))?;
    let program = std::env::current_exe()
        .map_err(|err| Failure::doing(Exit::Failed, "cannot find this program's file", &err))?;
    process::local_runtime()?.block_on(supervise(&data, children(&program, args, log, &data)))
}

/// Locks the data directory, before anything else in it is touched.
fn lock(data: &Path) -> Result<Lock, Failure> {
    let run_dir = data.join("run");
    for dir in [data, &run_dir] {
        files::create_dir_durable(dir, DIR_MODE).map_err(|err| {
            Failure::doing(Exit::Failed, format!("cannot make {}", dir.display()), &err)
        })?;
    }
    Lock::acquire(&run_dir.join("lock")).map_err(|err| match err {
        LockError::Held(pid) => {
            let pid = pid.map_or_else(String::new, |pid| format!(", pid {pid}"));
            let data = data.display();
            Failure::new(
                Exit::Conflict,
                format!("another `ostraca up` runs on {data}{pid}"),
            )
        }
        LockError::Io(err) => Failure::doing(
            Exit::Failed,
            format_args!("cannot lock the data directory {}", data.display()),
            &err,
        ),
    })
}

/// The children in the order in which they are listed: shards by number, then what calls them.
fn children(program: &Path, args: &UpArgs, log: Option<&str>, data: &DataDir) -> Vec<Child> {
    let arguments_of = |command: &str| -> Vec<OsString> {
        let mut arguments = vec![command.into(), "--data".into(), data.path().into()];
        if let Some(log) = log {
            arguments.extend(["--log".into(), log.into()]);
        }
        arguments
    };
    let mut children = Vec::new();
    // Either of two processes of a shard may lead; the second one's name only tells them apart.
    let seconds = if args.standbys {
        &["", "-second"][..]
    } else {
        &[""]
    };
    for shard in (0..data.shards()).map(ShardId) {
        let mut arguments = arguments_of("shard");
        arguments.extend(["--shard".into(), shard.to_string().into()]);
        if args.remote.allow_remote {
            arguments.push("--allow-remote".into());
        }
        if args.standbys {
            arguments.push("--standby".into());
        }
        children.extend(seconds.iter().map(|second| Child {
            name: format!("shard-{shard}{second}"),
            role: Role::Shard,
            shard: Some(shard),
            program: program.to_owned(),
            arguments: arguments.clone(),
            listen_flag: "--grpc",
            listen: SocketAddr::new(args.grpc_ip, 0),
        }));
    }
    let HttpArgs {
        http,
        public_url,
        body_size_max,
    } = &args.http;
    let mut arguments = arguments_of("frontend");
    arguments.extend(["--body-size-max".into(), body_size_max.to_string().into()]);
    if let Some(url) = public_url {
        arguments.extend(["--public-url".into(), url.into()]);
    }
    children.push(Child {
        name: "frontend".to_owned(),
        role: Role::Frontend,
        shard: None,
        program: program.to_owned(),
        arguments,
        listen_flag: "--http",
        listen: *http,
    });
    let mut arguments = arguments_of("worker");
    arguments.extend(["--edge".into(), args.edge.config.to_string().into()]);
    if let Some(url) = public_url {
        arguments.extend(["--public-url".into(), url.into()]);
    }
    children.push(Child {
        name: "worker".to_owned(),
        role: Role::Worker,
        shard: None,
        program: program.to_owned(),
        arguments,
        listen_flag: "--metrics",
        listen: SocketAddr::new(Ipv4Addr::LOCALHOST.into(), 0),
    });
    children
}

/// Whether a start that ended with `exit` will end so again.
fn cannot_start(role: Role, exit: Exit) -> bool {
    match exit {
        Exit::Failed | Exit::Usage => true,
        // A port that is taken stays so. A shard that was killed may still hold its lock.
        Exit::Conflict => role != Role::Shard,
        Exit::Fine
        | Exit::NotFound
        | Exit::Unavailable
        | Exit::Timeout
        | Exit::Damaged
        | Exit::SyncFailed
        | Exit::Interrupted => false,
    }
}

/// What is known of one child.
#[derive(Debug, Clone)]
enum State {
    /// About to run for the first time.
    New,
    /// It ended, and will be started again.
    Down,
    Running {
        pid: u32,
        /// Where it serves, once it does, or would.
        address: Option<String>,
        /// Whether it serves.
        leads: bool,
        /// The URL of its metrics, once it serves.
        metrics: Option<String>,
    },
    /// Its data is damaged: it is not started again.
    Damaged,
}

/// One child as the list shows it.
struct Seat {
    name: String,
    role: Role,
    shard: Option<ShardId>,
    slots: Vec<u8>,
    state: State,
    /// How it ended, if it has not served since; `None` after a signal.
    exit: Option<Exit>,
}

struct Supervisor {
    run_dir: PathBuf,
    seats: Vec<Seat>,
    told_ready: bool,
    /// The list on disk is older than what is known.
    stale: bool,
}

async fn supervise(data: &DataDir, children: Vec<Child>) -> Result<(), Failure> {
    let mut signals = StopSignals::listen()?;
    let mut supervisor = Supervisor::new(data, &children);
    supervisor.write(&supervisor.list())?;
    let mut keepers = Keepers::new();
    let (sender, mut news) = mpsc::channel(NEWS_MAX);
    for (index, child) in children.into_iter().enumerate() {
        keepers.add(index, child, sender.clone());
    }
    drop(sender);
    // Ends with the first reason to stop; whichever it is, no child is left behind.
    let ended = loop {
        tokio::select! {
            signal = signals.next() => {
                tracing::info!(event = "stopping", ?signal, "told to stop");
                break Ok(());
            }
            Some(event) = news.recv() => {
                if let Err(failure) = supervisor.hear(event) {
                    break Err(failure);
                }
            }
            () = sleep(PUBLISH_AGAIN), if supervisor.stale => supervisor.publish(),
        }
    };
    let stopped = keepers.stop(&mut signals, &mut news).await;
    let published = supervisor.write(&[]);
    ended.and(stopped).and(published)
}

/// The running keepers, by the order in which they stop.
struct Keepers {
    stage: watch::Sender<Stage>,
    /// What calls shards: the frontend and the worker.
    callers: JoinSet<()>,
    shards: JoinSet<()>,
}

impl Keepers {
    fn new() -> Self {
        let (stage, _) = watch::channel(Stage::Run);
        Self {
            stage,
            callers: JoinSet::new(),
            shards: JoinSet::new(),
        }
    }

    fn add(&mut self, index: usize, child: Child, news: mpsc::Sender<Event>) {
        let keepers = match child.role {
            Role::Frontend | Role::Worker => &mut self.callers,
            Role::Shard | Role::Up => &mut self.shards,
        };
        keepers.spawn(child.keep(index, self.stage.subscribe(), news));
    }

    /// Stops frontend and worker, then the shards, each with a limit. A second Ctrl-C kills what is left.
    async fn stop(
        self,
        signals: &mut StopSignals,
        news: &mut mpsc::Receiver<Event>,
    ) -> Result<(), Failure> {
        let Self {
            stage,
            callers,
            shards,
        } = self;
        let advance = |to: Stage| stage.send_modify(|now| *now = to.max(*now));
        let mut orderly = pin!(async {
            advance(Stage::StopCallers);
            callers.join_all().await;
            advance(Stage::StopShards);
            shards.join_all().await;
        });
        let mut interrupted = Ok(());
        loop {
            tokio::select! {
                () = &mut orderly => return interrupted,
                signal = signals.next() => if signal == StopSignal::Interrupt {
                    advance(Stage::Kill);
                    interrupted = Err(Failure::new(Exit::Interrupted, "interrupted; killed what still ran"));
                },
                // A keeper may be waiting to tell.
                Some(_) = news.recv() => {}
            }
        }
    }
}

impl Supervisor {
    fn new(data: &DataDir, children: &[Child]) -> Self {
        let slots = |shard| data.slots_of(shard).iter().map(|slot| slot.0).collect();
        let seat = |child: &Child| Seat {
            name: child.name.clone(),
            role: child.role,
            shard: child.shard,
            slots: child.shard.map(slots).unwrap_or_default(),
            state: State::New,
            exit: None,
        };
        Self {
            run_dir: data.run_dir(),
            seats: children.iter().map(seat).collect(),
            told_ready: false,
            stale: false,
        }
    }

    /// Takes note of one piece of news. An error is a reason to stop everything.
    fn hear(&mut self, event: Event) -> Result<(), Failure> {
        let seat = &mut self.seats[event.child];
        match event.news {
            News::Started { pid } => {
                seat.state = State::Running {
                    pid,
                    address: None,
                    leads: false,
                    metrics: None,
                };
            }
            News::Ready {
                leads: now_leads,
                address: at,
                metrics: measured_at,
            } => {
                if let State::Running {
                    address,
                    leads,
                    metrics,
                    ..
                } = &mut seat.state
                {
                    (*address, *leads, *metrics) = (Some(at), now_leads, measured_at);
                    seat.exit = None;
                }
            }
            News::Ended {
                exit: Some(Exit::Damaged),
            } => {
                (seat.state, seat.exit) = (State::Damaged, Some(Exit::Damaged));
                say(format_args!(
                    "{} is damaged and stays down; its slots are not served, the others are",
                    seat.name
                ));
            }
            // What cannot start at all says why on stderr, once, not every five seconds.
            News::Ended { exit: Some(exit) }
                if !self.told_ready && cannot_start(seat.role, exit) =>
            {
                return Err(Failure::new(exit, format!("{} could not start", seat.name)));
            }
            News::Ended { exit } => (seat.state, seat.exit) = (State::Down, exit),
        }
        self.publish();
        self.tell_ready()
    }

    /// Prints the ready line, once, when all that can serve does.
    fn tell_ready(&mut self) -> Result<(), Failure> {
        if self.told_ready {
            return Ok(());
        }
        let (mut http, mut grpc) = (Vec::new(), Vec::new());
        for seat in &self.seats {
            match &seat.state {
                // Its slots are served by the shard's other process.
                _ if self.is_led_by_another(seat) => {}
                State::Running {
                    address: Some(address),
                    leads: true,
                    ..
                } => match seat.role {
                    Role::Frontend => http.push(address.as_str()),
                    Role::Shard => grpc.push(address.as_str()),
                    // Nobody calls it.
                    Role::Worker | Role::Up => {}
                },
                State::Damaged => {}
                State::Running { .. } | State::New | State::Down => return Ok(()),
            }
        }
        if grpc.is_empty() {
            return Err(Failure::new(Exit::Damaged, "every shard is damaged"));
        }
        let line = format!("ready http={} grpc={}", http.join(","), grpc.join(","));
        self.told_ready = true;
        let mut stdout = io::stdout().lock();
        written(writeln!(stdout, "{line}").and_then(|()| stdout.flush()))
    }

    /// Whether the other process of the same shard leads.
    fn is_led_by_another(&self, seat: &Seat) -> bool {
        let leads = |other: &Seat| matches!(other.state, State::Running { leads: true, .. });
        let of_shard = self.seats.iter().filter(|other| other.shard.is_some());
        of_shard
            .filter(|other| other.shard == seat.shard && other.name != seat.name)
            .any(leads)
    }

    /// Brings the list on disk up to date. A disk that refuses stops nothing that runs: the list is
    /// tried again.
    fn publish(&mut self) {
        let written = self.write(&self.list());
        if let Err(err) = &written {
            tracing::error!(event = "endpoints_not_written", %err, "will try again");
        }
        self.stale = written.is_err();
    }

    fn list(&self) -> Vec<Endpoint> {
        let mut list = vec![Endpoint {
            name: "up".to_owned(),
            role: Role::Up,
            state: endpoints::State::Serving,
            pid: Some(std::process::id()),
            exit: None,
            grpc: None,
            http: None,
            metrics: None,
            slots: Vec::new(),
        }];
        for seat in &self.seats {
            let (pid, address, leads, metrics) = match seat.state.clone() {
                State::Running {
                    pid,
                    address,
                    leads,
                    metrics,
                } => (Some(pid), address, leads, metrics),
                State::New | State::Down | State::Damaged => (None, None, false, None),
            };
            let state = match seat.state {
                State::Running { .. } if address.is_some() && leads => endpoints::State::Serving,
                State::Running { .. } if address.is_some() => endpoints::State::Standby,
                State::New | State::Running { .. } => endpoints::State::Starting,
                State::Down => endpoints::State::Restarting,
                State::Damaged => endpoints::State::Damaged,
            };
            let (grpc, http) = match seat.role {
                Role::Shard => (address, None),
                Role::Frontend | Role::Worker | Role::Up => (None, address),
            };
            list.push(Endpoint {
                name: seat.name.clone(),
                role: seat.role,
                state,
                pid,
                exit: seat.exit.map(|exit| exit as u8),
                grpc,
                http,
                metrics,
                slots: seat.slots.clone(),
            });
        }
        list
    }

    fn write(&self, list: &[Endpoint]) -> Result<(), Failure> {
        endpoints::write(&self.run_dir, list).map_err(|err| {
            Failure::doing(
                Exit::Failed,
                format_args!("cannot write endpoints.json in {}", self.run_dir.display()),
                &err,
            )
        })
    }
}
