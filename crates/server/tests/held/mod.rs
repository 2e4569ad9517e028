//! One shard process's worth of server, in the test's process, whose disk waits when it is told to.

#![allow(dead_code, reason = "each test binary uses its part")]

use std::io;
use std::net::SocketAddr;
use std::path::Path;
use std::sync::Arc;

use ostraca_client::{Begun, Client, NewPaste, Options, Seeds, Ticket};
use ostraca_io::{
    Disk, DiskFile, Entropy, FileName, Page, RealDisk, RealFile, RealStorage, Storage, SystemClock,
    SystemEntropy,
};
use ostraca_proto::v1;
use ostraca_proto::v1::paste_service_client::PasteServiceClient;
use ostraca_server::{DataDir, Lead, ServeError, ShardOptions, Told, serve_shard};
use ostraca_types::{BodyDigest, IdempotencyKey, Lifetime, RequestDigest, ShardId, Slot};
use parking_lot::{Condvar, Mutex};
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::TcpStream;
use tokio::sync::{oneshot, watch};
use tokio::task::JoinHandle;
use tokio::time::{Duration, Instant};
use tonic::transport::{Channel, Endpoint};

/// How long anything may take that should take milliseconds.
pub(crate) const DEADLINE: Duration = Duration::from_secs(120);
pub(crate) const REQUEST: RequestDigest = RequestDigest([1; 32]);

/// What holds threads up while it is shut.
#[derive(Debug, Clone, Default)]
pub(crate) struct Gate(Arc<(Mutex<Inside>, Condvar)>);

#[derive(Debug, Default)]
struct Inside {
    shut: bool,
    waiting: usize,
}

/// The gate is open again when this goes, however the test ends.
#[must_use]
pub(crate) struct Shut(Gate);

impl Drop for Shut {
    fn drop(&mut self) {
        let (inside, opened) = &*self.0.0;
        inside.lock().shut = false;
        opened.notify_all();
    }
}

impl Gate {
    pub(crate) fn shut(&self) -> Shut {
        self.0.0.lock().shut = true;
        Shut(self.clone())
    }

    /// Whether a thread waits.
    pub(crate) fn holds(&self) -> bool {
        self.0.0.lock().waiting > 0
    }

    fn pass(&self) {
        let (inside, opened) = &*self.0;
        let mut inside = inside.lock();
        inside.waiting += 1;
        while inside.shut {
            opened.wait(&mut inside);
        }
        inside.waiting -= 1;
    }
}

/// The machine's disk behind two gates.
#[derive(Debug, Clone, Default)]
pub(crate) struct HeldStorage {
    /// Before the log's directory is opened.
    pub(crate) opening: Gate,
    /// Before each sync of a segment.
    pub(crate) syncing: Gate,
}

#[derive(Clone)]
pub(crate) struct HeldDisk(RealDisk, Gate);

pub(crate) struct HeldFile(RealFile, Gate);

impl Storage for HeldStorage {
    type Disk = HeldDisk;

    fn disk(&self, path: &Path) -> io::Result<HeldDisk> {
        self.opening.pass();
        Ok(HeldDisk(RealStorage.disk(path)?, self.syncing.clone()))
    }

    fn page(&self, path: &Path) -> io::Result<Arc<dyn Page>> {
        RealStorage.page(path)
    }
}

impl HeldDisk {
    fn held(&self, file: RealFile) -> HeldFile {
        HeldFile(file, self.1.clone())
    }
}

impl Disk for HeldDisk {
    type File = HeldFile;

    fn create(&self, name: &FileName) -> io::Result<HeldFile> {
        self.0.create(name).map(|file| self.held(file))
    }

    fn open(&self, name: &FileName) -> io::Result<HeldFile> {
        self.0.open(name).map(|file| self.held(file))
    }

    fn open_read_only(&self, name: &FileName) -> io::Result<HeldFile> {
        self.0.open_read_only(name).map(|file| self.held(file))
    }

    fn rename_exclusive(&self, from: &FileName, to: &FileName) -> io::Result<()> {
        self.0.rename_exclusive(from, to)
    }

    fn remove(&self, name: &FileName) -> io::Result<()> {
        self.0.remove(name)
    }

    fn list(&self) -> io::Result<Vec<FileName>> {
        self.0.list()
    }

    fn sync_dir(&self) -> io::Result<()> {
        self.0.sync_dir()
    }
}

impl DiskFile for HeldFile {
    fn size(&self) -> io::Result<u64> {
        self.0.size()
    }

    fn read_exact_at(&self, buf: &mut [u8], offset: u64) -> io::Result<()> {
        self.0.read_exact_at(buf, offset)
    }

    fn write_all_at(&self, buf: &[u8], offset: u64) -> io::Result<()> {
        self.0.write_all_at(buf, offset)
    }

    fn sync_data(&self) -> io::Result<()> {
        self.1.pass();
        self.0.sync_data()
    }

    fn sync_all(&self) -> io::Result<()> {
        self.0.sync_all()
    }

    fn expect_sectors(&self) {
        self.0.expect_sectors();
    }

    fn set_size(&self, size: u64) -> io::Result<()> {
        self.0.set_size(size)
    }
}

/// A server that was started and may serve by now.
pub(crate) struct Server {
    pub(crate) address: SocketAddr,
    metrics_address: SocketAddr,
    pub(crate) storage: HeldStorage,
    leads: watch::Receiver<bool>,
    stop: Option<oneshot::Sender<()>>,
    ended: JoinHandle<Result<(), ServeError>>,
}

/// Starts a shard, and does not wait for it.
pub(crate) fn begin_start(dir: &Path, shard: u16, storage: HeldStorage) -> Server {
    begin_start_to(Lead::IfFree, dir, shard, storage)
}

/// The same, to lead when `lead` says.
pub(crate) fn begin_start_to(lead: Lead, dir: &Path, shard: u16, storage: HeldStorage) -> Server {
    begin_start_by(Arc::new(SystemEntropy), lead, dir, shard, storage)
}

/// The same, by another source of random bytes.
pub(crate) fn begin_start_by(
    entropy: Arc<dyn Entropy>,
    lead: Lead,
    dir: &Path,
    shard: u16,
    storage: HeldStorage,
) -> Server {
    let data = DataDir::init(dir, None, &SystemEntropy).expect("a data directory");
    let listener = std::net::TcpListener::bind("127.0.0.1:0").expect("a free port");
    let address = listener.local_addr().expect("an address");
    let metrics = std::net::TcpListener::bind("127.0.0.1:0").expect("a free port");
    let metrics_address = metrics.local_addr().expect("an address");
    let options = ShardOptions {
        storage: storage.clone(),
        lead,
        data,
        shard: ShardId(shard),
        listener,
        metrics: Some(metrics),
        clock: Arc::new(SystemClock::new().expect("a clock")),
        entropy,
    };
    let (stop, stopped) = oneshot::channel::<()>();
    let (tell, leads) = watch::channel(false);
    let ended = tokio::spawn(async move {
        let told = move |told| _ = tell.send_replace(matches!(told, Told::Leads(_)));
        serve_shard(options, told, async { drop(stopped.await) }).await
    });
    Server {
        address,
        metrics_address,
        storage,
        leads,
        stop: Some(stop),
        ended,
    }
}

/// Starts a shard.
pub(crate) async fn start(dir: &Path, shard: u16) -> Server {
    let mut server = begin_start(dir, shard, HeldStorage::default());
    server.is_leading().await;
    server
}

impl Server {
    pub(crate) async fn is_leading(&mut self) {
        let leads = self.leads.wait_for(|leads| *leads);
        drop(within(leads).await.expect("it serves"));
    }

    pub(crate) fn client(&self) -> Client {
        Client::new(Options::new(Seeds::Fixed(vec![self.address.to_string()])))
    }

    /// A connection of its own.
    pub(crate) fn channel(&self) -> Channel {
        let endpoint = Endpoint::from_shared(format!("http://{}", self.address));
        endpoint.expect("an address").connect_lazy()
    }

    pub(crate) fn raw(&self) -> PasteServiceClient<Channel> {
        PasteServiceClient::new(self.channel())
    }

    pub(crate) async fn status(&self) -> v1::GetStatusResponse {
        let address = self.address.to_string();
        self.client().status_of(&address).await.expect("a status")
    }

    /// What a scrape says of `name`, which has no labels.
    pub(crate) async fn metric(&self, name: &str) -> u64 {
        let mut socket = TcpStream::connect(self.metrics_address)
            .await
            .expect("there");
        let request = "GET /metrics HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n";
        socket.write_all(request.as_bytes()).await.expect("sent");
        let mut text = String::new();
        within(socket.read_to_string(&mut text))
            .await
            .expect("an answer");
        let mut lines = text.lines();
        let value = lines.find_map(|line| line.strip_prefix(name)?.strip_prefix(' '));
        let value = value.unwrap_or_else(|| panic!("no {name} in {text}"));
        value.parse().expect("a whole number")
    }

    /// Holds the shard's thread in a sync, until the value goes.
    pub(crate) async fn hold(&self) -> Shut {
        let shut = self.storage.syncing.shut();
        let (client, key) = (self.client(), key());
        let (ticket, paste) = (begin(&client, &key).await, paste());
        tokio::spawn(async move {
            let answer = client.commit_create(&key, &REQUEST, &ticket, &paste);
            drop(answer.await);
        });
        until("the shard's thread is held", || {
            std::future::ready(self.storage.syncing.holds())
        })
        .await;
        shut
    }

    /// How it ends by itself.
    pub(crate) async fn ended(&mut self) -> Result<(), ServeError> {
        within(&mut self.ended).await.expect("no panic")
    }

    /// Whether the last that it told is that it leads.
    pub(crate) fn leads(&self) -> bool {
        *self.leads.borrow()
    }

    /// Tells it to stop, and does not wait.
    pub(crate) fn begin_stop(&mut self) {
        drop(self.stop.take());
    }

    pub(crate) async fn stop(mut self) {
        self.begin_stop();
        let ended = within(self.ended).await;
        ended.expect("no panic").expect("a clean end");
    }
}

/// What takes milliseconds, with a limit.
pub(crate) async fn within<T>(work: impl Future<Output = T>) -> T {
    let done = tokio::time::timeout(DEADLINE, work).await;
    done.expect("it takes milliseconds")
}

/// Asks until it is so.
pub(crate) async fn until<F: Future<Output = bool>>(what: &str, mut is_so: impl FnMut() -> F) {
    let limit = Instant::now() + DEADLINE;
    while !is_so().await {
        assert!(Instant::now() < limit, "not within {DEADLINE:?}: {what}");
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
}

fn key_where(wanted: impl Fn(Slot) -> bool) -> IdempotencyKey {
    loop {
        let key = IdempotencyKey::mint(|bytes| SystemEntropy.fill(bytes));
        if wanted(key.slot()) {
            return key;
        }
    }
}

/// A key on a slot of shard 0, which has the lower half.
pub(crate) fn key() -> IdempotencyKey {
    key_where(|slot| slot < Slot(128))
}

/// A key on a slot of shard 1.
pub(crate) fn upper_key() -> IdempotencyKey {
    key_where(|slot| slot >= Slot(128))
}

pub(crate) fn paste() -> NewPaste {
    NewPaste {
        lifetime: Some(Lifetime::parse("10m").expect("a lifetime")),
        syntax: None,
        title: None,
        body_size: 5,
        body_digest: BodyDigest([9; 32]),
    }
}

pub(crate) async fn begin(client: &Client, key: &IdempotencyKey) -> Ticket {
    match client.begin_create(key, &REQUEST).await.expect("begun") {
        Begun::New(ticket) => ticket,
        Begun::Stored(answer) => panic!("{answer:?}"),
    }
}

pub(crate) async fn create(client: &Client, key: &IdempotencyKey) -> ostraca_client::CreateAnswer {
    let ticket = begin(client, key).await;
    let answer = client.commit_create(key, &REQUEST, &ticket, &paste()).await;
    answer.expect("created")
}
