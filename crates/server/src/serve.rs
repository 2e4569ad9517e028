//! A shard process: recovers, serves, drains.

use std::fmt;
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use ostraca_engine::{EPOCH_PAGE, OpenError, Shard, ShardThread, StoreError, StoreMeta};
use ostraca_io::files::{Lock, LockError};
use ostraca_io::{Clock, Entropy, Storage};
use ostraca_proto::v1::cluster_service_server::ClusterServiceServer;
use ostraca_proto::v1::inbox_service_server::InboxServiceServer;
use ostraca_proto::v1::outbox_service_server::OutboxServiceServer;
use ostraca_proto::v1::paste_service_server::PasteServiceServer;
use ostraca_types::{ErrorKind, ShardId, Timestamp};
use tokio::sync::oneshot;
use tonic::transport::Server;
use tonic::transport::server::TcpIncoming;
use tonic_health::ServingStatus;
use tonic_health::server::HealthReporter;

use crate::deadline::DeadlineLayer;
use crate::delivery::{InboxServices, OutboxServices};
use crate::host::{Host, Phase};
use crate::secrets::Secrets;
use crate::services::{Cluster, Services};
use crate::{DataDir, SecretError, sealing};

/// Messages are at most 64 KiB: bodies do not travel here.
const MESSAGE_SIZE_MAX: usize = 64 << 10;
/// Above the default 64 KiB, or one stream that nobody reads starves the others of a connection.
const STREAM_WINDOW: u32 = 1 << 20;
const CONNECTION_WINDOW: u32 = 8 << 20;
const STREAMS_MAX: u32 = 1024;
/// Finds clients that are gone without a word.
const KEEPALIVE_INTERVAL: Duration = Duration::from_secs(30);
const KEEPALIVE_TIMEOUT: Duration = Duration::from_secs(20);
/// A drain waits this long for calls to finish and clients to hang up. Most calls take milliseconds;
/// a silent connection would hold it for ever.
const DRAIN_MAX: Duration = Duration::from_secs(10);

/// Generations last an hour; a scripted clock can make one pass in a moment.
const SEALING_INTERVAL: Duration = Duration::from_secs(1);

/// What a shard process runs on.
pub struct ShardOptions<S> {
    /// What the shard's directory is opened with.
    pub storage: S,
    /// Lead the shard also while another process holds its directory: the fence ends that one's
    /// leadership, however it is. Otherwise a second process is taken for a mistake.
    pub take_over: bool,
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

/// Why a shard process ended, or did not start.
#[derive(Debug)]
pub enum ServeError {
    /// The cluster has no such shard.
    NoSuchShard(ShardId),
    /// Another process serves this shard; its pid, where known.
    Held(Option<u32>),
    /// The secrets are missing, unreadable or not this store's.
    Secrets(SecretError),
    /// The store file cannot be used.
    Store(StoreError),
    /// The shard's directory belongs to another shard or cluster.
    Foreign(ShardId),
    /// The log did not open.
    Open(OpenError),
    /// A write or sync failed while serving, and the log has to be recovered; or the fence ended this
    /// leadership.
    Stopped(ostraca_wal::Error),
    /// A file, a socket or a thread was refused.
    Io(&'static str, std::io::Error),
    /// The gRPC server failed.
    Transport(tonic::transport::Error),
}

impl ServeError {
    /// What whoever started the process can do: `Damaged` needs a person, `Exists` and `NotLeader`
    /// mean that another process serves the shard, `Unknown` asks for a restart, `Rejected` for a
    /// change.
    #[must_use]
    pub fn kind(&self) -> ErrorKind {
        match self {
            Self::NoSuchShard(_) | Self::Secrets(_) | Self::Foreign(_) => ErrorKind::Rejected,
            Self::Held(_) => ErrorKind::Exists,
            Self::Store(StoreError::Io(..)) | Self::Io(..) | Self::Transport(_) => {
                ErrorKind::Unavailable
            }
            Self::Store(_) => ErrorKind::Damaged,
            Self::Open(err) => err.kind(),
            Self::Stopped(err @ ostraca_wal::Error::Fenced { .. }) => err.kind(),
            Self::Stopped(_) => ErrorKind::Unknown,
        }
    }
}

impl fmt::Display for ServeError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::NoSuchShard(shard) => write!(f, "this cluster has no shard {shard}"),
            Self::Held(Some(pid)) => write!(
                f,
                "another process serves this shard, stop it or start with --take-over: pid {pid}"
            ),
            Self::Held(None) => {
                f.write_str("another process serves this shard, stop it or start with --take-over")
            }
            Self::Secrets(err) => err.fmt(f),
            Self::Store(err) => err.fmt(f),
            Self::Foreign(shard) => write!(
                f,
                "the directory belongs to another shard or cluster than its place says: shard {shard}"
            ),
            Self::Open(err) => err.fmt(f),
            Self::Stopped(err) => err.fmt(f),
            Self::Io(what, _) => f.write_str(what),
            Self::Transport(_) => f.write_str("the gRPC server failed"),
        }
    }
}

impl std::error::Error for ServeError {
    fn source(&self) -> Option<&(dyn std::error::Error + 'static)> {
        match self {
            Self::Secrets(err) => std::error::Error::source(err),
            Self::Store(err) => std::error::Error::source(err),
            Self::Open(err) => std::error::Error::source(err),
            Self::Stopped(err) => std::error::Error::source(err),
            Self::Io(_, err) => Some(err),
            Self::Transport(err) => Some(err),
            Self::NoSuchShard(_) | Self::Held(_) | Self::Foreign(_) => None,
        }
    }
}

/// Serves one shard until `stop`, then drains for at most 10 s. `ready` is called with the address
/// once recovery is done and calls are answered; before, the process answers health (NOT_SERVING)
/// and status.
///
/// On `Ok` everything that was acknowledged is durable and the log is marked, so the next start
/// finds nothing in doubt.
pub async fn serve_shard<S: Storage>(
    options: ShardOptions<S>,
    ready: impl FnOnce(SocketAddr) + Send,
    stop: impl Future<Output = ()> + Send,
) -> Result<(), ServeError> {
    let ShardOptions {
        storage,
        take_over,
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
    ));
    let health = Health::new().await;
    let (drain, drained) = oneshot::channel::<()>();
    let mut server = tokio::spawn(listen(Arc::clone(&host), &health, listener, drained)?);

    if let Some(metrics) = metrics {
        tokio::spawn(crate::metrics::serve(
            Arc::clone(&host),
            into_tokio(metrics)?,
        ));
    }

    // A thread of its own, which the end of the process does not wait for: replaying changes
    // nothing, so it can be left at any moment. What follows, taking over, changes no older file.
    let (opened, opening) = oneshot::channel();
    let opener = Arc::clone(&host);
    std::thread::Builder::new()
        .name("opening".to_owned())
        .spawn(move || {
            let shard = open(&opener, &storage, take_over, clock, &*entropy);
            drop(opened.send(shard));
        })
        .map_err(|err| ServeError::Io("cannot start a thread", err))?;
    let mut stop = std::pin::pin!(stop);
    let (shard, thread, lock) = tokio::select! {
        opened = opening => {
            opened.map_err(|_| ServeError::Io("opening ended early", std::io::ErrorKind::Other.into()))??
        }
        () = &mut stop => return Ok(()),
        failed = &mut server => return Err(server_ended(failed)),
    };
    let _closing = CloseOnDrop(shard.clone());
    host.serve(shard.clone());
    health.set(ServingStatus::Serving).await;
    ready(address);

    let tending = tokio::spawn(tend_sealing(Arc::clone(&host), shard.clone()));
    let mut thread = tokio::task::spawn_blocking(move || thread.join());
    let stopped_early = tokio::select! {
        () = stop => None,
        ended = &mut thread => Some(ended),
        failed = &mut server => return Err(server_ended(failed)),
    };
    // Off the routes first, then no new calls, then the log.
    health.set(ServingStatus::NotServing).await;
    let ended = if let Some(ended) = stopped_early {
        host.enter(Phase::Stopped);
        ended
    } else {
        host.enter(Phase::Draining);
        let _ = drain.send(());
        if tokio::time::timeout(DRAIN_MAX, &mut server).await.is_err() {
            tracing::warn!(event = "drain_cut", shard = %host.id, "connections were still open");
        }
        shard.close();
        thread.await
    };
    tending.abort();
    server.abort();
    drop(lock);
    match ended {
        Ok(ended) => ended.map_err(ServeError::Stopped),
        Err(panic) => std::panic::resume_unwind(panic.into_panic()),
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

/// Takes the directory's lock, finds out who it is, and opens the log. Blocks.
///
/// The lock keeps mistakes out, no more: safety rests on the fence alone.
fn open<S: Storage>(
    host: &Host,
    storage: &S,
    take_over: bool,
    clock: Arc<dyn Clock>,
    entropy: &dyn Entropy,
) -> Result<(Shard, ShardThread, Option<Lock>), ServeError> {
    let dir = host.data.shard_dir(host.id);
    let log_dir = dir.join("log");
    let io = |what| move |err| ServeError::Io(what, err);
    let lock = match Lock::acquire(&dir.join("lock")) {
        Ok(lock) => Some(lock),
        Err(LockError::Held(pid)) if take_over => {
            tracing::warn!(event = "taking_over", shard = %host.id, pid);
            None
        }
        Err(LockError::Held(pid)) => return Err(ServeError::Held(pid)),
        Err(LockError::Io(err)) => {
            return Err(ServeError::Io("cannot lock the shard's directory", err));
        }
    };
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
    // Made with the store, and never again: whoever leads now would look at another one.
    let page = storage
        .page(&dir.join(EPOCH_PAGE))
        .map_err(io("cannot use the shard's epoch page, made with its store"))?;
    let deliverable = host.deliverable.clone();
    let options = ostraca_engine::Options {
        on_deliverable: Some(Arc::new(move || deliverable.send_replace(()))),
        ..Default::default()
    };
    let clock_wall = clock.wall();
    let (shard, thread, report) =
        Shard::open(disk, &page, meta.identity(), clock, entropy, &options)
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
    if let Err(err) = check_opened(host, &shard, clock_wall) {
        // The thread must not go on appending without the lock.
        shard.close();
        drop(thread.join());
        return Err(err);
    }
    tracing::info!(
        event = "recovery_done", shard = %host.id, epoch = %shard.epoch(),
        records = report.records, sequence = %shard.applied()
    );
    Ok((shard, thread, lock))
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

/// The gRPC server, to be run until `drained`.
fn listen(
    host: Arc<Host>,
    health: &Health,
    listener: std::net::TcpListener,
    drained: oneshot::Receiver<()>,
) -> Result<impl Future<Output = Result<(), tonic::transport::Error>> + Send + use<>, ServeError> {
    let listener = into_tokio(listener)?;
    // On each accepted socket, as the listener is ours: without it a call costs 44 ms.
    let incoming = TcpIncoming::from(listener).with_nodelay(Some(true));
    let paste = PasteServiceServer::new(Services(Arc::clone(&host)))
        .max_decoding_message_size(MESSAGE_SIZE_MAX)
        .max_encoding_message_size(MESSAGE_SIZE_MAX);
    let outbox = OutboxServiceServer::new(OutboxServices(Arc::clone(&host)))
        .max_decoding_message_size(MESSAGE_SIZE_MAX)
        .max_encoding_message_size(MESSAGE_SIZE_MAX);
    let inbox = InboxServiceServer::new(InboxServices(Arc::clone(&host)))
        .max_decoding_message_size(MESSAGE_SIZE_MAX)
        .max_encoding_message_size(MESSAGE_SIZE_MAX);
    let cluster = ClusterServiceServer::new(Cluster(host))
        .max_decoding_message_size(MESSAGE_SIZE_MAX)
        .max_encoding_message_size(MESSAGE_SIZE_MAX);
    let reflection = || {
        tonic_reflection::server::Builder::configure()
            .register_encoded_file_descriptor_set(ostraca_proto::DESCRIPTOR_SET)
            .register_encoded_file_descriptor_set(tonic_health::pb::FILE_DESCRIPTOR_SET)
    };
    let reflection_v1 = reflection()
        .build_v1()
        .expect("the descriptors are compiled in");
    let reflection_v1alpha = reflection()
        .build_v1alpha()
        .expect("the descriptors are compiled in");
    let router = Server::builder()
        .initial_stream_window_size(STREAM_WINDOW)
        .initial_connection_window_size(CONNECTION_WINDOW)
        .max_concurrent_streams(STREAMS_MAX)
        .http2_keepalive_interval(Some(KEEPALIVE_INTERVAL))
        .http2_keepalive_timeout(Some(KEEPALIVE_TIMEOUT))
        .layer(DeadlineLayer)
        .add_service(paste)
        .add_service(outbox)
        .add_service(inbox)
        .add_service(cluster)
        .add_service(health.service())
        .add_service(reflection_v1)
        .add_service(reflection_v1alpha);
    Ok(router.serve_with_incoming_shutdown(incoming, async {
        // An error means that the other side is gone, which ends the server as well.
        let _ = drained.await;
    }))
}

/// The health of the process and of each service.
struct Health(HealthReporter);

impl Health {
    const SERVICES: [&'static str; 5] = [
        "",
        "ostraca.v1.PasteService",
        "ostraca.v1.ClusterService",
        "ostraca.v1.OutboxService",
        "ostraca.v1.InboxService",
    ];

    /// Nothing serves yet: the reporter is born saying that the process does.
    async fn new() -> Self {
        let health = Self(HealthReporter::new());
        health.set(ServingStatus::NotServing).await;
        health
    }

    async fn set(&self, status: ServingStatus) {
        for service in Self::SERVICES {
            self.0.set_service_status(service, status).await;
        }
    }

    fn service(
        &self,
    ) -> tonic_health::pb::health_server::HealthServer<tonic_health::server::HealthService> {
        let service = tonic_health::server::HealthService::from_health_reporter(self.0.clone());
        tonic_health::pb::health_server::HealthServer::new(service)
    }
}
