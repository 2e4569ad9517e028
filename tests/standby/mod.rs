//! Processes of one shard that stand by for each other, and clients that know all of them.

use std::fs;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};

use ostraca_client::{Begun, CreateAnswer};
use ostraca_proto::v1;
use ostraca_proto::v1::cluster_service_client::ClusterServiceClient;
use ostraca_tests::faults::Script;
use ostraca_tests::http::Http;
use ostraca_tests::poll;
use ostraca_tests::shards::Data;
use ostraca_types::ErrorKind;
use tonic::transport::{Channel, Endpoint};

use crate::fence::{Caller, Node, RUNTIME, Save, program};

/// Unless another one is given.
pub(crate) const LEASE: Duration = Duration::from_secs(2);
/// What tests that wait for it to pass give: as `--lease`, and as it is.
pub(crate) const SHORT: [&str; 2] = ["--lease", "500"];
pub(crate) const SHORT_LEASE: Duration = Duration::from_millis(500);
/// A take-over is done this long after the lease has passed.
const TAKE_OVER_MAX: Duration = Duration::from_secs(1);
/// The client's default.
const CALL_DEADLINE: Duration = Duration::from_secs(5);

/// The directory of a shard, and nothing that runs.
pub(crate) fn data() -> Data {
    Data::new(&program())
}

/// Starts a process that leads when there is need, and waits until it watches.
pub(crate) fn stand_by(data: &Data, arguments: &[&str]) -> Node {
    let arguments: Vec<_> = ["--standby"].iter().chain(arguments).copied().collect();
    let mut process = data.launch(Script::new(), &arguments);
    let address = process.wait_standby(1);
    Node::at(process, address)
}

/// A leader and its standby.
pub(crate) fn pair(data: &Data, arguments: &[&str]) -> (Node, Node) {
    let mut first = stand_by(data, arguments);
    let _ = first.process.wait_leads(1);
    let second = stand_by(data, arguments);
    (first, second)
}

/// A client that knows both, as one does that is told where a shard's processes are.
pub(crate) fn caller(nodes: &[&Node]) -> Caller {
    let addresses: Vec<_> = nodes.iter().map(|node| node.address.as_str()).collect();
    Caller::of(&addresses, CALL_DEADLINE)
}

/// Waits until `node` leads for the `nth` time; how long after `since` that was, which is not longer
/// than a take-over may take.
#[track_caller]
pub(crate) fn takes_over(node: &mut Node, nth: usize, since: Instant, lease: Duration) -> Duration {
    let _ = node.process.wait_leads(nth);
    let took = since.elapsed();
    assert!(took < lease + TAKE_OVER_MAX, "took over after {took:?}");
    eprintln!("took over after {} ms", took.as_millis());
    took
}

/// Asks for `save` until it is answered: the one retry policy there is, the client's.
pub(crate) fn until_made(caller: &Caller, save: &Save) -> CreateAnswer {
    poll("a create is answered", || match caller.try_create(save) {
        Ok(answer) => Some(answer),
        Err(err) => {
            let passes = matches!(err.kind(), ErrorKind::Unavailable | ErrorKind::Unknown);
            assert!(passes || err.kind() == ErrorKind::NotLeader, "{err:?}");
            None
        }
    })
}

/// Everything that was acknowledged is there, once, under its key, and nothing else is.
#[track_caller]
pub(crate) fn assert_made_once(leader: &Node, made: &[(Save, CreateAnswer)]) {
    for (save, answer) in made {
        assert!(leader.has(answer.paste_id), "an acknowledged paste is gone");
        let again = leader.create(save);
        assert!(again.replayed, "the key is known");
        assert_eq!(again.paste_id, answer.paste_id, "the key gives one paste");
        assert_eq!(again.delete_token, answer.delete_token);
    }
    assert_eq!(
        leader.pastes(),
        made.len() as u64,
        "each key made one paste"
    );
}

/// Clients that create and read until they are told to end.
pub(crate) struct Load {
    stop: Arc<AtomicBool>,
    count: Arc<AtomicUsize>,
    clients: Vec<JoinHandle<Done>>,
}

/// What clients did and heard.
#[derive(Default)]
pub(crate) struct Done {
    pub(crate) made: Vec<(Save, CreateAnswer)>,
    /// Commits that may have happened or not.
    pub(crate) unknown: Vec<Save>,
    /// Calls that failed in another way.
    pub(crate) failures: Vec<String>,
}

impl Load {
    /// Starts `clients` of them, each of which knows `nodes`.
    pub(crate) fn start(clients: usize, nodes: &[&Node]) -> Self {
        let (stop, count) = (Arc::<AtomicBool>::default(), Arc::<AtomicUsize>::default());
        let clients = (0..clients).map(|_| {
            let (caller, stop, count) = (caller(nodes), Arc::clone(&stop), Arc::clone(&count));
            thread::spawn(move || {
                let mut done = Done::default();
                while !stop.load(Ordering::Relaxed) {
                    done.save_and_read(&caller);
                    count.fetch_add(1, Ordering::Relaxed);
                }
                done
            })
        });
        let clients = clients.collect();
        let load = Self {
            stop,
            count,
            clients,
        };
        load.wait_more(20);
        load
    }

    /// Waits until `more` pastes were tried from now on.
    pub(crate) fn wait_more(&self, more: usize) {
        let until = self.count.load(Ordering::Relaxed) + more;
        poll("clients go on", || {
            (self.count.load(Ordering::Relaxed) >= until).then_some(())
        });
    }

    /// Ends it.
    pub(crate) fn end(self) -> Done {
        self.stop.store(true, Ordering::Relaxed);
        let mut all = Done::default();
        for client in self.clients {
            let done = client.join().expect("a client");
            all.made.extend(done.made);
            all.unknown.extend(done.unknown);
            all.failures.extend(done.failures);
        }
        all
    }
}

impl Done {
    fn save_and_read(&mut self, caller: &Caller) {
        let save = Save::new();
        let ticket = match caller.begin(&save) {
            Ok(Begun::New(ticket)) => ticket,
            other => return self.failures.push(format!("begin: {other:?}")),
        };
        match caller.send(&save, ticket).wait() {
            Ok(answer) => {
                if let Err(err) = caller.ask(answer.paste_id).wait() {
                    self.failures.push(format!("read: {err:?}"));
                }
                self.made.push((save, answer));
            }
            Err(err) if err.kind() == ErrorKind::Unknown => self.unknown.push(save),
            Err(err) => self.failures.push(format!("commit: {err:?}")),
        }
    }
}

/// Where `address` says that each shard is led, and under which epoch.
pub(crate) fn routing(address: &str) -> Vec<v1::ShardRoute> {
    let mut service = ClusterServiceClient::new(channel(address));
    let asked = RUNTIME.block_on(service.get_routing(v1::GetRoutingRequest {}));
    asked.expect("every process answers").into_inner().shards
}

/// Whether it says that it leads; `None` if it does not answer.
pub(crate) fn leads(node: &Node) -> Option<bool> {
    let mut service = ClusterServiceClient::new(channel(&node.address));
    let status = RUNTIME.block_on(service.get_status(v1::GetStatusRequest {}));
    Some(status.ok()?.into_inner().state() == v1::ShardState::Serving)
}

/// What a shard's process says of `name` to whoever scrapes it.
#[track_caller]
pub(crate) fn metric(node: &Node, name: &str) -> u64 {
    // What it printed, by the file that it prints into.
    let said = fs::read_to_string(format!("/proc/{}/fd/1", node.process.pid()));
    let said = said.expect("it runs");
    let url = said.split_whitespace().find_map(|word| {
        let url = word.strip_prefix("metrics=")?;
        url.strip_suffix("/metrics")
    });
    let answer = Http::new(url.expect("it says where")).get("/metrics");
    let text = answer.text();
    let mut lines = text.lines();
    let value = lines.find_map(|line| line.strip_prefix(name)?.strip_prefix(' '));
    let value = value.unwrap_or_else(|| panic!("no {name} in {text}"));
    value.parse().expect("a whole number")
}

/// A connection to one process.
pub(crate) fn channel(address: &str) -> Channel {
    let _runtime = RUNTIME.enter();
    let endpoint = Endpoint::from_shared(format!("http://{address}"));
    endpoint.expect("an address").connect_lazy()
}
