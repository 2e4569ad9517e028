//! A shard with several processes that were told to lead it, and clients that speak to one of them.

use std::collections::HashMap;
use std::path::PathBuf;
use std::sync::LazyLock;
use std::time::Duration;

use ostraca_client::{Begun, Client, CreateAnswer, Error, NewPaste, Options, Paste, Seeds, Ticket};
use ostraca_io::{Entropy as _, SystemEntropy};
use ostraca_proto::v1;
use ostraca_proto::v1::paste_service_client::PasteServiceClient;
use ostraca_tests::faults::{self, Script};
use ostraca_tests::shards::{Data, Shard};
use ostraca_tests::{DEADLINE, poll};
use ostraca_types::{
    BodyDigest, DeleteToken, ErrorKind, IdempotencyKey, PasteId, Reason, RequestDigest, Title,
};
use tokio::runtime::Runtime;
use tokio::task::JoinHandle;
use tonic::Status;
use tonic::transport::{Channel, Endpoint};
use tonic_types::StatusExt as _;

const BINARY: &str = env!("CARGO_BIN_EXE_ostraca");
/// Far beyond any stop of a test, so that a call is answered by its shard or never.
const CALL_DEADLINE: Duration = Duration::from_secs(300);
/// The exit code of one that lost the leadership, or may not have it.
pub(crate) const FENCED: Option<i32> = Some(4);

/// As large as the first segment of a take-over, which may have to be made from it.
const BALLAST_SIZE: u64 = 2 << 20;

pub(crate) static RUNTIME: LazyLock<Runtime> = LazyLock::new(|| Runtime::new().expect("a runtime"));

/// The faults build.
pub(crate) fn program() -> PathBuf {
    if cfg!(feature = "faults") {
        BINARY.into()
    } else {
        faults::binary(BINARY)
    }
}

/// Starts a process that takes over, whoever leads, with a script that asks for nothing.
pub(crate) fn take_over(data: &Data) -> Node {
    Node::serving(data.launch(Script::new(), &["--take-over"]))
}

/// Starts a process that takes over, and is held at `point` on its way there.
pub(crate) fn contender_at(data: &Data, point: &str) -> Shard {
    let script = Script::new();
    script.pause_at(point);
    let mut shard = data.launch(script, &["--take-over"]);
    shard.wait_held(point);
    shard
}

/// What a client wants to save, with its key.
#[derive(Clone)]
pub(crate) struct Save {
    key: IdempotencyKey,
    digest: RequestDigest,
    paste: NewPaste,
}

impl Save {
    pub(crate) fn new() -> Self {
        let key = IdempotencyKey::mint(|bytes| SystemEntropy.fill(bytes));
        let title = Title::parse(&ostraca_tests::key()).expect("a title");
        Self {
            digest: RequestDigest::compute(b"", None, None, Some(&title)),
            paste: NewPaste {
                lifetime: None,
                syntax: None,
                title: Some(title),
                body_size: 5,
                body_digest: BodyDigest([5; 32]),
            },
            key,
        }
    }
}

/// A client.
#[derive(Clone)]
pub(crate) struct Caller(Client);

impl Caller {
    /// Of the processes at these addresses.
    pub(crate) fn of(addresses: &[&str], deadline: Duration) -> Self {
        let addresses = addresses.iter().map(|address| (*address).to_owned());
        Self(Client::new(Options {
            cluster: None,
            seeds: Seeds::Fixed(addresses.collect()),
            deadline,
        }))
    }

    /// Whether the key was committed, or the right to commit it.
    pub(crate) fn begin(&self, save: &Save) -> Result<Begun, Error> {
        let client = self.0.clone();
        let (key, digest) = (save.key.clone(), save.digest);
        call(async move { client.begin_create(&key, &digest).await }).wait()
    }

    /// Begins a create that is new here.
    pub(crate) fn ticket(&self, save: &Save) -> Ticket {
        match self.begin(save) {
            Ok(Begun::New(ticket)) => ticket,
            other => panic!("not new: {other:?}"),
        }
    }

    /// Sends a commit.
    pub(crate) fn send(&self, save: &Save, ticket: Ticket) -> Call<CreateAnswer> {
        let client = self.0.clone();
        let (key, digest, paste) = (save.key.clone(), save.digest, save.paste.clone());
        call(async move { client.commit_create(&key, &digest, &ticket, &paste).await })
    }

    /// Creates a paste, or asks for it again.
    pub(crate) fn try_create(&self, save: &Save) -> Result<CreateAnswer, Error> {
        match self.begin(save)? {
            Begun::New(ticket) => self.send(save, ticket).wait(),
            Begun::Stored(answer) => Ok(answer),
        }
    }

    /// The same, which must succeed.
    pub(crate) fn create(&self, save: &Save) -> CreateAnswer {
        self.try_create(save).expect("a leader creates")
    }

    /// Asks for a paste.
    pub(crate) fn ask(&self, id: PasteId) -> Call<Paste> {
        let client = self.0.clone();
        call(async move { client.get_paste(&id).await })
    }

    /// Whether the paste is there; anything else than an answer fails the test.
    pub(crate) fn has(&self, id: PasteId) -> bool {
        match self.ask(id).wait() {
            Ok(paste) => paste.id == id,
            Err(err) if err.kind() == ErrorKind::NotFound => false,
            Err(err) => panic!("no answer: {err:?}"),
        }
    }

    /// Deletes a paste, which must succeed.
    pub(crate) fn delete(&self, answer: &CreateAnswer) {
        let (id, token): (_, DeleteToken) = (answer.paste_id, answer.delete_token.clone());
        let client = self.0.clone();
        let ended = call(async move { client.delete_paste(&id, &token).await });
        ended.wait().expect("a leader deletes");
    }
}

/// A process that serves, or did, and a client of it alone.
pub(crate) struct Node {
    pub(crate) process: Shard,
    caller: Caller,
    pub(crate) address: String,
}

impl std::ops::Deref for Node {
    type Target = Caller;

    fn deref(&self) -> &Caller {
        &self.caller
    }
}

impl Node {
    /// Waits until `process` serves.
    pub(crate) fn serving(mut process: Shard) -> Self {
        let address = process.wait_ready();
        Self::at(process, address)
    }

    /// A process that listens at `address`.
    pub(crate) fn at(process: Shard, address: String) -> Self {
        let caller = Caller::of(&[&address], CALL_DEADLINE);
        Self {
            process,
            caller,
            address,
        }
    }

    /// Sends a commit, and waits until the shard's thread is held at `point` with it.
    pub(crate) fn hold_create(&mut self, save: &Save, point: &str) -> Call<CreateAnswer> {
        let ticket = self.ticket(save);
        self.process.script.pause_at(point);
        let sent = self.send(save, ticket);
        self.process.wait_held(point);
        sent
    }

    /// Wakes an old leader that is held at `point`, and waits for what the caller of a create hears.
    /// Should its log's thread go on, it is held once more before it can notice that another one leads:
    /// so the end of the process hides no answer that must not be given.
    pub(crate) fn wake(
        &mut self,
        point: &str,
        waiting: Call<CreateAnswer>,
    ) -> Result<CreateAnswer, Error> {
        let look = "page.before-look";
        self.process.script.pause_at(look);
        self.process.wake(point);
        let held = poll("it ends, or goes on", || {
            let held = self.process.script.holds_at(look);
            (held || self.process.has_ended()).then_some(held)
        });
        if held {
            self.process.wait_held(look);
            self.process.go_on();
        }
        let heard = waiting.wait();
        if held {
            self.process.wake(look);
        }
        heard
    }

    /// Asks this process alone for a paste: a client of the project follows to whoever leads.
    pub(crate) fn ask_here(&self, id: PasteId) -> Heard {
        let request = v1::GetPasteRequest {
            paste_id: id.to_string(),
        };
        let mut service = self.here();
        Heard(RUNTIME.spawn(async move { service.get_paste(request).await.map(drop) }))
    }

    /// Begins a create with this process alone.
    pub(crate) fn begin_here(&self, save: &Save) -> Heard {
        let request = v1::BeginCreateRequest {
            idempotency_key: save.key.expose_text(),
            request_digest: save.digest.0.to_vec(),
        };
        let mut service = self.here();
        Heard(RUNTIME.spawn(async move { service.begin_create(request).await.map(drop) }))
    }

    fn here(&self) -> PasteServiceClient<Channel> {
        let _runtime = RUNTIME.enter();
        let endpoint = Endpoint::from_shared(format!("http://{}", self.address));
        PasteServiceClient::new(endpoint.expect("an address").connect_lazy())
    }

    /// Under which epoch it leads, and how many pastes there are.
    pub(crate) fn status(&self) -> (u64, u64) {
        let (client, address) = (self.caller.0.clone(), self.address.clone());
        let status = call(async move {
            let status = client.status_of(&address).await?;
            Ok((status.epoch, status.pastes))
        });
        status
            .wait()
            .expect("it answers about itself, whoever leads")
    }

    /// How many pastes there are.
    pub(crate) fn pastes(&self) -> u64 {
        self.status().1
    }

    /// Waits for the end of its clean-up: the ballast is the last that it makes.
    pub(crate) fn wait_clean(&self, data: &Data) {
        let ballast = format!("bal-{:016x}-00000000.log", self.status().0);
        poll("the clean-up is done", || {
            let size = data.log().join(&ballast).metadata().ok()?.len();
            (size == BALLAST_SIZE).then_some(())
        });
    }
}

/// A call under way.
pub(crate) struct Call<T>(JoinHandle<Result<T, Error>>);

fn call<T: Send + 'static>(
    call: impl Future<Output = Result<T, Error>> + Send + 'static,
) -> Call<T> {
    Call(RUNTIME.spawn(call))
}

impl<T> Call<T> {
    /// Waits for the answer.
    pub(crate) fn wait(self) -> Result<T, Error> {
        let answer = RUNTIME.block_on(async { tokio::time::timeout(DEADLINE, self.0).await });
        answer.expect("an answer in time").expect("no panic")
    }

    pub(crate) fn is_answered(&self) -> bool {
        self.0.is_finished()
    }
}

/// A caller that waited heard that it may have happened, and nothing definite.
#[track_caller]
pub(crate) fn assert_unknown(answer: Result<CreateAnswer, Error>) {
    let err = answer.expect_err("no success is told");
    assert_eq!(err.kind(), ErrorKind::Unknown, "{err:?}");
    assert_eq!(err.reason(), Some(Reason::OutcomeUnknown), "{err:?}");
}

/// What one process says by itself.
pub(crate) struct Heard(JoinHandle<Result<(), Status>>);

impl Heard {
    pub(crate) fn is_answered(&self) -> bool {
        self.0.is_finished()
    }

    /// Waits until it is refused: another one leads, and nothing was done. (f04, f06)
    #[track_caller]
    pub(crate) fn assert_not_leading(self) {
        self.assert_refused(Reason::NotLeader);
    }

    /// Waits for the refusal with this reason, which says where to go; its details.
    #[track_caller]
    pub(crate) fn assert_refused(self, reason: Reason) -> HashMap<String, String> {
        let answer = RUNTIME.block_on(async { tokio::time::timeout(DEADLINE, self.0).await });
        let status = answer
            .expect("an answer in time")
            .expect("no panic")
            .expect_err("an old leader answers nothing");
        let details = status.get_error_details();
        let info = details.error_info().expect("a reason");
        assert_eq!(info.reason, reason.as_str(), "{status:?}");
        assert!(info.metadata.contains_key("address"), "{status:?}");
        info.metadata.clone()
    }
}
