//! A shard process: recovers, serves, drains.

use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use ostraca_engine::{EPOCH_PAGE, Shard, ShardThread, StoreMeta};
use ostraca_io::files::Lock;
use ostraca_io::{Clock, Entropy, Storage};
use ostraca_types::{ErrorKind, ShardId, Timestamp};
use tokio::sync::oneshot;
use tonic_health::ServingStatus;

use crate::epoch_page::MappedPage;
use crate::error::ServeError;
use crate::host::{Host, Phase};
use crate::leadership::{self, Lead};
use crate::listen::{Health, listen};
use crate::seats::{self, Place};
use crate::secrets::Secrets;
use crate::{DataDir, SecretError, sealing};

/// A drain waits this long for calls to finish and clients to hang up. Most calls take milliseconds;
/// a silent connection would hold it for ever.
const DRAIN_MAX: Duration = Duration::from_secs(10);

/// How long a process that handed over tells its clients where to go, once its successor leads,
/// before it hangs up.
const HAND_OVER_GRACE: Duration = Duration::from_millis(500);
/// How often a leader's health is looked at.
const WATCH_INTERVAL: Duration = Duration::from_millis(100);
/// A shard's thread goes round every 50 ms, and a sync takes milliseconds. One that takes this long
/// pages (w08).
const HUNG_AFTER: Duration = Duration::from_secs(3);

/// The same, of a process whose log failed or is led by another: for the answers that are on their way.
const ENDED_DRAIN: Duration = Duration::from_millis(500);

/// Generations last an hour; a scripted clock can make one pass in a moment.
const SEALING_INTERVAL: Duration = Duration::from_secs(1);

/// What a shard process runs on.
pub struct ShardOptions<S> {
    /// What the shard's directory is opened with.
    pub storage: S,
    /// When to lead.
    pub lead: Lead,
    /// The cluster's directory.
    pub data: DataDir,
    /// Which of its shards.
    pub shard: ShardId,
    /// Where it listens.
    pub listener: std::net::TcpListener,
    /// Where it serves `/metrics`, if anywhere.
    pub metrics: Option<std::net::TcpListener>,
    /// The machine's clocks.
    pub clock: Arc<dyn Clock>,
    /// The machine's random source.
    pub entropy: Arc<dyn Entropy>,
}

/// What a shard process tells whoever started it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Told {
    /// It waits until there is no leader. Calls are refused with where to go.
    StandsBy(SocketAddr),
    /// It leads, and answers calls.
    Leads(SocketAddr),
}

/// Serves one shard until `stop`. `tell` is called with the address when recovery is done and calls
/// are answered; before, the process answers health (NOT_SERVING) and status. A standby tells more
/// than once, as it comes and goes.
///
/// At the end it drains for at most 10 s, or, where a standby waits, closes its log at once and sends
/// its callers there. On `Ok` everything that was acknowledged is durable and the log is marked, so
/// the next start finds nothing in doubt.
pub async fn serve_shard<S: Storage>(
    options: ShardOptions<S>,
    mut tell: impl FnMut(Told) + Send,
    stop: impl Future<Output = ()> + Send,
) -> Result<(), ServeError> {
    let ShardOptions {
        storage,
        lead,
        data,
        shard,
        listener,
        metrics,
        clock,
        entropy,
    } = options;
    if shard.0 >= data.shards() {
        return Err(ServeError::NoSuchShard(shard));
    }
    let address = listener
        .local_addr()
        .map_err(|err| ServeError::Io("cannot listen", err))?;
    let secrets = Secrets::load(&data.secret_dir()).map_err(ServeError::Secrets)?;
    let host = Arc::new(Host::new(
        data,
        shard,
        secrets,
        Arc::clone(&entropy),
        address,
        matches!(lead, Lead::WhenNeeded(_)),
    ));
    let health = Health::new().await;
    let (drain, drained) = oneshot::channel::<()>();
    let mut drain = Some(drain);
    let listener = into_tokio(listener)?;
    let listening = listen(Arc::clone(&host), &health, listener, drained);
    let mut server = tokio::spawn(listening);

    if let Some(metrics) = metrics {
        tokio::spawn(crate::metrics::serve(
            Arc::clone(&host),
            into_tokio(metrics)?,
        ));
    }

    let terms = Terms {
        host: &host,
        health: &health,
        lead,
        storage: Arc::new(storage),
        clock,
        entropy,
    };
    let mut stop = std::pin::pin!(stop);
    let stands_by = matches!(lead, Lead::WhenNeeded(_));
    let ended = loop {
        if stands_by {
            terms.stand_by();
            tell(Told::StandsBy(address));
        }
        let led = tokio::select! {
            led = terms.begin() => led,
            () = &mut stop => break Ok(()),
            failed = &mut server => return Err(server_ended(failed)),
        };
        let mut led = match led {
            // Another standby was faster.
            Err(err) if stands_by && err.kind() == ErrorKind::NotLeader => continue,
            other => other?,
        };
        let ended = tokio::select! {
            ended = terms.serve(&mut led, &mut tell) => ended,
            () = &mut stop => {
                break terms.finish(led, drain.take(), &mut server).await;
            }
            failed = &mut server => return Err(server_ended(failed)),
        };
        // Off the routes first.
        health.set(ServingStatus::NotServing).await;
        let fenced = led.shard.status().fenced;
        host.fenced.fetch_add(fenced, Ordering::Relaxed);
        // One that was overtaken because it hung does so no more.
        host.hangs.store(false, Ordering::Relaxed);
        match ended {
            Err(err) if stands_by && err.kind() == ErrorKind::NotLeader => {
                tracing::warn!(event = "fenced", shard = %host.id, %err);
            }
            ended => {
                host.enter(Phase::Stopped);
                break ended;
            }
        }
    };
    if ended.is_err() {
        // Who was in flight is told, before the process ends.
        stop_server(&host, drain.take(), ENDED_DRAIN, &mut server).await;
    }
    server.abort();
    terms.leave();
    ended
}

/// What the leaderships of one process have in common.
struct Terms<'a, S> {
    host: &'a Arc<Host>,
    health: &'a Health,
    lead: Lead,
    storage: Arc<S>,
    clock: Arc<dyn Clock>,
    entropy: Arc<dyn Entropy>,
}

impl<S: Storage> Terms<'_, S> {
    fn stand_by(&self) {
        self.host.stand_by();
        self.host.take_standby_seat(&*self.clock);
    }

    /// Both seats, when the process ends.
    fn leave(&self) {
        let run_dir = self.host.data.run_dir();
        for place in [Place::Leader, Place::Standby] {
            seats::leave(&run_dir, self.host.id, place, std::process::id());
        }
    }

    /// Waits until this process is to lead, and opens the shard.
    async fn begin(&self) -> Result<Led, ServeError> {
        let dir = self.host.data.shard_dir(self.host.id);
        let map = || MappedPage::map(&*self.storage, dir.join(EPOCH_PAGE));
        let lock = self.lead.wait(self.host, &dir, &self.clock, map).await?;
        // The one of before the wait may be no longer what others look at.
        let page = Arc::new(map()?);
        self.host.enter(Phase::Recovering);
        // A thread of its own, which the end of the process does not wait for: replaying changes
        // nothing, so it can be left at any moment. What follows, taking over, changes no older file.
        let (opened, opening) = oneshot::channel();
        let (host, storage) = (Arc::clone(self.host), Arc::clone(&self.storage));
        let (clock, entropy) = (Arc::clone(&self.clock), Arc::clone(&self.entropy));
        let mapped = Arc::clone(&page);
        std::thread::Builder::new()
            .name("opening".to_owned())
            .spawn(move || drop(opened.send(open(&host, &*storage, &mapped, clock, &*entropy))))
            .map_err(|err| ServeError::Io("cannot start a thread", err))?;
        let opened = opening.await;
        let (shard, thread) = opened.map_err(|_| {
            ServeError::Io("opening ended early", std::io::ErrorKind::Other.into())
        })??;
        Ok(Led {
            _closing: CloseOnDrop(shard.clone()),
            tending: AbortOnDrop(tokio::spawn(tend_sealing(
                Arc::clone(self.host),
                shard.clone(),
            ))),
            shard,
            thread: tokio::task::spawn_blocking(move || thread.join()),
            lock,
            page,
        })
    }

    /// Serves until this leadership ends by itself. Otherwise it can be dropped.
    async fn serve(
        &self,
        led: &mut Led,
        tell: &mut (impl FnMut(Told) + Send),
    ) -> Result<(), ServeError> {
        let host = self.host;
        host.serve(led.shard.clone());
        host.take_seat(Place::Leader, led.shard.epoch().0);
        seats::leave(
            &host.data.run_dir(),
            host.id,
            Place::Standby,
            std::process::id(),
        );
        self.health.set(ServingStatus::Serving).await;
        tell(Told::Leads(host.address));
        let path = host.data.shard_dir(host.id).join("lock");
        let ended = tokio::select! {
            ended = &mut led.thread => ended_with(ended),
            failed = watch_over(host, self.health, &led.shard, &mut led.lock, &path, &led.page) => {
                if matches!(failed, ServeError::EpochPageReplaced(_)) {
                    // No fence would refuse what it appends beside the next leader, this process or
                    // another. What it has begun is answered by nobody.
                    led.shard.close();
                    let ended = ended_with((&mut led.thread).await);
                    ended.and(Err(failed))
                } else {
                    Err(failed)
                }
            }
        };
        match ended {
            // By the look at the page's file, and not by another epoch on it.
            Err(ServeError::Stopped(fenced @ ostraca_wal::Error::Fenced { .. })) => {
                Err(led.page.replaced().unwrap_or(ServeError::Stopped(fenced)))
            }
            ended => ended,
        }
    }

    /// Closes the log, when the process is told to stop: at once where a standby waits, and after the
    /// calls that are under way where none does.
    async fn finish(
        &self,
        led: Led,
        drain: Option<oneshot::Sender<()>>,
        server: &mut ServerTask,
    ) -> Result<(), ServeError> {
        let host = self.host;
        // Off the routes first, then no new calls, then the log.
        self.health.set(ServingStatus::NotServing).await;
        drop(led.tending);
        let ended = if host.can_hand_over(&*self.clock) {
            // Calls are sent there from now on, and wait there until it leads.
            host.enter(Phase::HandedOver);
            led.shard.close();
            let ended = led.thread.await;
            led.shard.resign();
            drop(led.lock);
            tracing::info!(event = "handed_over", shard = %host.id, epoch = %led.shard.epoch());
            // Only then clients that ask where to go are told. Where nobody comes, as when all of a
            // shard's processes are stopped at once, there is nothing to wait for.
            if host.is_succeeded(led.shard.epoch().0).await {
                tokio::time::sleep(HAND_OVER_GRACE).await;
            }
            stop_server(host, drain, DRAIN_MAX, server).await;
            ended
        } else {
            host.enter(Phase::Draining);
            stop_server(host, drain, DRAIN_MAX, server).await;
            led.shard.close();
            led.thread.await
        };
        ended_with(ended)
    }
}

/// One leadership.
struct Led {
    lock: Option<Lock>,
    page: Arc<MappedPage>,
    shard: Shard,
    thread: tokio::task::JoinHandle<Result<(), ostraca_wal::Error>>,
    tending: AbortOnDrop,
    _closing: CloseOnDrop,
}

type ServerTask = tokio::task::JoinHandle<Result<(), tonic::transport::Error>>;

fn ended_with(
    ended: Result<Result<(), ostraca_wal::Error>, tokio::task::JoinError>,
) -> Result<(), ServeError> {
    match ended {
        Ok(ended) => ended.map_err(ServeError::Stopped),
        Err(panic) => std::panic::resume_unwind(panic.into_panic()),
    }
}

/// Takes no more calls, and lets those that are under way finish.
async fn stop_server(
    host: &Host,
    drain: Option<oneshot::Sender<()>>,
    limit: Duration,
    server: &mut ServerTask,
) {
    // Where it was asked already, it has ended.
    let Some(drain) = drain else { return };
    let _ = drain.send(());
    if tokio::time::timeout(limit, server).await.is_err() {
        tracing::warn!(event = "drain_cut", shard = %host.id, "connections were still open");
    }
}

/// Health is progress (w08): a shard whose thread does not go round serves nobody. And whoever took
/// over without the lock gets it when its holder ends.
async fn watch_over(
    host: &Host,
    health: &Health,
    shard: &Shard,
    lock: &mut Option<Lock>,
    path: &std::path::Path,
    page: &MappedPage,
) -> ServeError {
    let mut look = tokio::time::interval(WATCH_INTERVAL);
    let (mut rounds, mut since) = (shard.rounds(), tokio::time::Instant::now());
    let mut hangs = false;
    loop {
        look.tick().await;
        if shard.rounds() != rounds {
            (rounds, since) = (shard.rounds(), tokio::time::Instant::now());
        }
        let hung = since.elapsed() >= HUNG_AFTER;
        if hung != hangs {
            hangs = hung;
            if hangs {
                tracing::error!(event = "shard_hangs", shard = %host.id, "its thread makes no progress");
                health.set(ServingStatus::NotServing).await;
            } else {
                tracing::warn!(event = "shard_goes_on", shard = %host.id);
                health.set(ServingStatus::Serving).await;
            }
            host.hangs.store(hangs, Ordering::Relaxed);
        }
        if let Some(replaced) = page.replaced() {
            return replaced;
        }
        if lock.is_none() {
            match leadership::acquire(path) {
                Ok(free) => *lock = free.ok(),
                Err(err) => return err,
            }
        }
    }
}

/// Ends a task with its leadership.
struct AbortOnDrop(tokio::task::JoinHandle<()>);

impl Drop for AbortOnDrop {
    fn drop(&mut self) {
        self.0.abort();
    }
}

/// The server ends by itself only when it fails.
fn server_ended(
    ended: Result<Result<(), tonic::transport::Error>, tokio::task::JoinError>,
) -> ServeError {
    match ended {
        Ok(Err(err)) => ServeError::Transport(err),
        _ => ServeError::Io("the gRPC server ended", std::io::ErrorKind::Other.into()),
    }
}

fn into_tokio(listener: std::net::TcpListener) -> Result<tokio::net::TcpListener, ServeError> {
    listener
        .set_nonblocking(true)
        .and_then(|()| tokio::net::TcpListener::from_std(listener))
        .map_err(|err| ServeError::Io("cannot listen", err))
}

/// Makes sealing secrets ahead of their time and destroys those that are no longer needed.
async fn tend_sealing(host: Arc<Host>, shard: Shard) {
    loop {
        let (tended, now) = (Arc::clone(&host), shard.now());
        let result = tokio::task::spawn_blocking(move || tended.sealing.tend(now)).await;
        if let Ok(Err(err)) = result {
            // Tried again; a commit that needs a secret which is not there is refused meanwhile.
            tracing::error!(event = "sealing_not_tended", shard = %host.id, %err);
        }
        tokio::time::sleep(SEALING_INTERVAL).await;
    }
}

/// Ends the shard's thread also when serving is given up halfway.
struct CloseOnDrop(Shard);

impl Drop for CloseOnDrop {
    fn drop(&mut self) {
        self.0.close();
    }
}

/// Finds out who the directory is, and opens the log. Blocks.
fn open<S: Storage>(
    host: &Host,
    storage: &S,
    page: &Arc<MappedPage>,
    clock: Arc<dyn Clock>,
    entropy: &dyn Entropy,
) -> Result<(Shard, ShardThread), ServeError> {
    let dir = host.data.shard_dir(host.id);
    let log_dir = dir.join("log");
    let io = |what| move |err| ServeError::Io(what, err);
    // Made with the cluster: where it is not, the directory is not the shard's.
    let meta = StoreMeta::read(&dir).map_err(ServeError::Store)?;
    if meta.shard != host.id || meta.cluster != host.data.cluster() {
        return Err(ServeError::Foreign(host.id));
    }
    if meta.secret_check != host.secrets.check_value(meta.store) {
        return Err(ServeError::Secrets(SecretError::Wrong(
            host.data.secret_dir(),
        )));
    }
    let disk = storage
        .disk(&log_dir)
        .map_err(io("cannot open the log's directory"))?;
    let deliverable = host.deliverable.clone();
    let looked_at = Arc::clone(page);
    let options = ostraca_engine::Options {
        on_deliverable: Some(Arc::new(move || deliverable.send_replace(()))),
        page_is_shared: Some(Arc::new(move || looked_at.replaced().is_none())),
        ..Default::default()
    };
    let clock_wall = clock.wall();
    let (shard, thread, report) =
        Shard::open(disk, page.page(), meta.identity(), clock, entropy, &options)
            .map_err(ServeError::Open)?;
    if report.page_repaired {
        tracing::warn!(
            event = "epoch_page_repaired", shard = %host.id, epoch = %shard.epoch(),
            "the epoch page was damaged, and was made good from the log"
        );
    }
    if report.cut_bytes > 0 {
        tracing::warn!(
            event = "torn_tail_cut", shard = %host.id, bytes = report.cut_bytes,
            "an append that was never acknowledged was cut"
        );
    }
    // The page last: from here on calls are answered, whose fence it is.
    if let Err(err) = check_opened(host, &shard, clock_wall).and_then(|()| page.check()) {
        // The thread must not go on.
        shard.close();
        drop(thread.join());
        return Err(err);
    }
    tracing::info!(
        event = "recovery_done", shard = %host.id, epoch = %shard.epoch(),
        records = report.records, sequence = %shard.applied()
    );
    Ok((shard, thread))
}

/// What has to hold before anything is answered.
fn check_opened(host: &Host, shard: &Shard, wall: Timestamp) -> Result<(), ServeError> {
    // Every honoured answer can be opened, or this is not the secret directory it was sealed with;
    // unless the wall clock says that the time of a secret is over. Then another shard may have
    // destroyed it, whose clock was not held back: its answers are errors, and counted.
    for generation in shard.generations() {
        match host.sealing.get(generation) {
            Err(SecretError::Missing(_)) if sealing::is_over(generation, wall) => {
                tracing::warn!(event = "sealing_secret_over", shard = %host.id, generation);
            }
            other => drop(other.map_err(ServeError::Secrets)?),
        }
    }
    if let Err(err) = host.sealing.tend(shard.now()) {
        // Tried again; reads and ends need none.
        tracing::error!(event = "sealing_not_tended", shard = %host.id, %err);
    }
    Ok(())
}
