//! A shard over a real socket and a real disk: does the service keep its word?

mod running;

use std::path::Path;
use std::time::Duration;

use ostraca_client::{Begun, Client, CreateAnswer, Error, NewPaste, StreamAnswer, Ticket};
use ostraca_io::{Entropy as _, ManualClock, SystemEntropy, files};
use ostraca_proto::CLUSTER_METADATA;
use ostraca_proto::v1;
use ostraca_proto::v1::cluster_service_client::ClusterServiceClient;
use ostraca_proto::v1::paste_service_client::PasteServiceClient;
use ostraca_server::{DataDir, ServeError};
use ostraca_types::{DeleteToken, ErrorKind, IdempotencyKey, PasteId, Reason, RequestDigest, Slot};
use running::{HOUR, REQUEST, Running, START, advance, create, key, new, paste, start};
use tonic::Code;
use tonic_types::StatusExt as _;

const OTHER_REQUEST: RequestDigest = RequestDigest([2; 32]);

async fn begin(client: &Client, key: &IdempotencyKey) -> Ticket {
    match client.begin_create(key, &REQUEST).await.expect("begun") {
        Begun::New(ticket) => ticket,
        Begun::Stored(answer) => panic!("{answer:?}"),
    }
}

fn reason(refused: Result<impl std::fmt::Debug, Error>) -> (ErrorKind, Option<Reason>) {
    let err = refused.expect_err("a refusal");
    (err.kind(), err.reason())
}

#[tokio::test]
async fn k02_k04_r03_the_first_answer_comes_back() {
    let (dir, clock) = new();
    let running = start(dir.path(), 0, &clock).await.expect("serving");
    let (client, key) = (running.client(), key());
    let first = create(&client, &key).await.expect("created");
    assert!(!first.replayed);
    assert_eq!(first.paste_id.slot(), key.slot());
    assert_eq!(first.expires_at, START.plus(Duration::from_secs(600)));

    let replay = CreateAnswer {
        replayed: true,
        ..first.clone()
    };
    assert_eq!(create(&client, &key).await.expect("replayed"), replay);

    let row = client.get_paste(&first.paste_id).await.expect("readable");
    assert_eq!(row.title, paste().title);
    assert_eq!(row.object_key, first.paste_id.object_key());

    let wrong = DeleteToken::mint(|bytes| SystemEntropy.fill(bytes));
    let refused = client.delete_paste(&first.paste_id, &wrong).await;
    assert_eq!(
        reason(refused),
        (ErrorKind::Denied, Some(Reason::TokenRejected))
    );
    client.get_paste(&first.paste_id).await.expect("unchanged");
    client
        .delete_paste(&first.paste_id, &first.delete_token)
        .await
        .expect("deleted");
    let gone = (ErrorKind::NotFound, Some(Reason::PasteNotFound));
    let again = client
        .delete_paste(&first.paste_id, &first.delete_token)
        .await;
    let never = PasteId::mint(Slot(0), |bytes| SystemEntropy.fill(bytes));
    let never = client.delete_paste(&never, &first.delete_token).await;
    assert_eq!(
        again.as_ref().expect_err("gone").message(),
        never.as_ref().expect_err("never was").message()
    );
    assert_eq!(reason(again), gone);
    assert_eq!(reason(client.get_paste(&first.paste_id).await), gone);
    assert_eq!(create(&client, &key).await.expect("k04"), replay);

    running.stop().await;
    let running = start(dir.path(), 0, &clock).await.expect("serving again");
    assert_eq!(create(&running.client(), &key).await.expect("k10"), replay);
    running.stop().await;
}

#[tokio::test]
async fn k01_a_create_needs_a_random_uuid() {
    let (dir, clock) = new();
    let running = start(dir.path(), 0, &clock).await.expect("serving");
    let mut raw = running.raw().await;
    let cases = [
        ("", Reason::KeyMissing),
        ("not a key", Reason::KeyMalformed),
        ("00000000-0000-0000-0000-000000000000", Reason::KeyMalformed),
        ("f81d4fae-7dec-11d0-a765-00a0c91e6bf6", Reason::KeyMalformed),
    ];
    for (text, expected) in cases {
        let request = v1::BeginCreateRequest {
            idempotency_key: text.to_owned(),
            request_digest: vec![1; 32],
        };
        let begun = raw.begin_create(request).await.expect_err("refused");
        let commit = v1::CommitCreateRequest {
            idempotency_key: text.to_owned(),
            request_digest: vec![1; 32],
            ..Default::default()
        };
        let committed = raw.commit_create(commit).await.expect_err("refused");
        for status in [begun, committed] {
            assert_eq!(status.code(), Code::InvalidArgument);
            let details = status.get_error_details();
            assert_eq!(
                details.error_info().expect("details").reason,
                expected.as_str()
            );
        }
    }
    let status = running
        .client()
        .status_of(&running.address.to_string())
        .await
        .expect("a status");
    assert_eq!(
        (status.pastes, status.commits),
        (0, 0),
        "nothing was written"
    );
    running.stop().await;
}

#[tokio::test]
async fn k05_another_request_under_a_used_key_learns_nothing() {
    let (dir, clock) = new();
    let running = start(dir.path(), 0, &clock).await.expect("serving");
    let (client, key) = (running.client(), key());
    let first = create(&client, &key).await.expect("created");
    let refused = client
        .begin_create(&key, &OTHER_REQUEST)
        .await
        .expect_err("a conflict");
    assert_eq!(refused.reason(), Some(Reason::KeyReused));
    let shown = format!("{refused} {refused:?}");
    assert!(!shown.contains(&first.delete_token.expose_text()));
    assert!(!shown.contains(first.paste_id.as_str()));
    running.stop().await;
}

#[tokio::test]
async fn k11_two_creates_in_flight_with_one_key_make_one_paste() {
    let (dir, clock) = new();
    let running = start(dir.path(), 0, &clock).await.expect("serving");
    let (client, key) = (running.client(), key());
    // All have begun before any commits, so no look-up can decide.
    let mut tickets = Vec::new();
    for _ in 0..64 {
        tickets.push(begin(&client, &key).await);
    }
    let commits = tickets.into_iter().map(|ticket| {
        let (client, key) = (client.clone(), key.clone());
        tokio::spawn(async move {
            client
                .commit_create(&key, &REQUEST, &ticket, &paste())
                .await
        })
    });
    let mut answers = Vec::new();
    for commit in commits.collect::<Vec<_>>() {
        answers.push(commit.await.expect("no panic").expect("answered"));
    }
    assert_eq!(answers.iter().filter(|answer| !answer.replayed).count(), 1);
    for answer in &answers {
        let same = CreateAnswer {
            replayed: answers[0].replayed,
            ..answer.clone()
        };
        assert_eq!(same, answers[0]);
    }
    let status = client
        .status_of(&running.address.to_string())
        .await
        .expect("a status");
    assert_eq!(status.pastes, 1);
    running.stop().await;
}

#[tokio::test]
async fn k11_k05_a_race_between_two_requests_has_one_winner() {
    let (dir, clock) = new();
    let running = start(dir.path(), 0, &clock).await.expect("serving");
    let (client, key) = (running.client(), key());
    let mine = begin(&client, &key).await;
    let Begun::New(theirs) = client
        .begin_create(&key, &OTHER_REQUEST)
        .await
        .expect("begun")
    else {
        panic!("nothing was committed yet")
    };
    client
        .commit_create(&key, &OTHER_REQUEST, &theirs, &paste())
        .await
        .expect("first");
    let refused = client.commit_create(&key, &REQUEST, &mine, &paste()).await;
    assert_eq!(
        reason(refused),
        (ErrorKind::Exists, Some(Reason::KeyReused))
    );
    running.stop().await;
}

#[tokio::test]
async fn k13_k14_a_key_is_honoured_for_25_hours() {
    let (dir, clock) = new();
    let running = start(dir.path(), 0, &clock).await.expect("serving");
    let (client, key) = (running.client(), key());
    let first = create(&client, &key).await.expect("created");
    advance(&running, &clock, 25 * HOUR - Duration::from_millis(1)).await;
    let gone = client.get_paste(&first.paste_id).await;
    assert_eq!(
        reason(gone),
        (ErrorKind::NotFound, Some(Reason::PasteNotFound))
    );
    assert_eq!(
        create(&client, &key).await.expect("stored").paste_id,
        first.paste_id
    );
    advance(&running, &clock, Duration::from_millis(1)).await;
    let second = create(&client, &key).await.expect("a new paste");
    assert!(!second.replayed);
    assert_ne!(second.paste_id, first.paste_id);
    running.stop().await;
}

#[tokio::test]
async fn p03_a_commit_an_hour_after_its_begin_is_refused() {
    let (dir, clock) = new();
    let running = start(dir.path(), 0, &clock).await.expect("serving");
    let (client, in_time, late) = (running.client(), key(), key());
    let (first, second) = (begin(&client, &in_time).await, begin(&client, &late).await);
    advance(&running, &clock, HOUR).await;
    client
        .commit_create(&in_time, &REQUEST, &first, &paste())
        .await
        .expect("within the bound");
    advance(&running, &clock, Duration::from_millis(1)).await;
    let refused = client
        .commit_create(&late, &REQUEST, &second, &paste())
        .await;
    assert_eq!(
        reason(refused),
        (ErrorKind::TooLate, Some(Reason::CreateTooLate))
    );
    // The retry starts anew.
    create(&client, &late).await.expect("a new attempt");
    running.stop().await;
}

#[tokio::test]
async fn r01_a_paste_is_readable_until_its_expiry_and_not_at_it() {
    let (dir, clock) = new();
    let running = start(dir.path(), 0, &clock).await.expect("serving");
    let (client, key) = (running.client(), key());
    let first = create(&client, &key).await.expect("created");
    advance(&running, &clock, Duration::from_millis(599_999)).await;
    client
        .get_paste(&first.paste_id)
        .await
        .expect("one millisecond left");
    advance(&running, &clock, Duration::from_millis(1)).await;
    let gone = client.get_paste(&first.paste_id).await;
    assert_eq!(
        reason(gone),
        (ErrorKind::NotFound, Some(Reason::PasteNotFound))
    );
    // d06: a wall clock that goes back, and a restart, bring nothing back.
    clock.step_wall(START);
    running.stop().await;
    let running = start(dir.path(), 0, &clock).await.expect("serving again");
    let gone = running.client().get_paste(&first.paste_id).await;
    assert_eq!(
        reason(gone),
        (ErrorKind::NotFound, Some(Reason::PasteNotFound))
    );
    running.stop().await;
}

#[tokio::test]
async fn a_ticket_is_good_for_its_own_key_and_request() {
    let (dir, clock) = new();
    let running = start(dir.path(), 0, &clock).await.expect("serving");
    let (client, key, other) = (running.client(), key(), key());
    let ticket = begin(&client, &key).await;
    let rejected = (ErrorKind::Rejected, Some(Reason::TicketRejected));
    let refused = client
        .commit_create(&other, &REQUEST, &ticket, &paste())
        .await;
    assert_eq!(reason(refused), rejected);
    let refused = client
        .commit_create(&key, &OTHER_REQUEST, &ticket, &paste())
        .await;
    assert_eq!(reason(refused), rejected);
    let refused = client
        .commit_create(
            &key,
            &REQUEST,
            &ticket,
            &NewPaste {
                body_size: 0,
                ..paste()
            },
        )
        .await;
    assert_eq!(
        reason(refused),
        (ErrorKind::Rejected, Some(Reason::EmptyBody))
    );
    let large = NewPaste {
        body_size: (10 << 20) + 1,
        ..paste()
    };
    let refused = client.commit_create(&key, &REQUEST, &ticket, &large).await;
    assert_eq!(
        reason(refused),
        (ErrorKind::Rejected, Some(Reason::BodyTooLarge))
    );
    running.stop().await;
}

#[tokio::test]
async fn f06_the_wrong_shard_says_where_to_go() {
    let (dir, clock) = new();
    let (lower, upper) = (
        start(dir.path(), 0, &clock).await.expect("serving"),
        start(dir.path(), 1, &clock).await.expect("serving"),
    );
    let run_dir = dir.path().join("run");
    files::create_dir_durable(&run_dir, 0o755).expect("made");
    let endpoint = |name: &str, running: &Running| ostraca_server::endpoints::Endpoint {
        name: name.to_owned(),
        role: ostraca_server::endpoints::Role::Shard,
        state: ostraca_server::endpoints::State::Serving,
        pid: None,
        exit: None,
        grpc: Some(running.address.to_string()),
        http: None,
        metrics: None,
        slots: Vec::new(),
    };
    let list = [endpoint("shard-0", &lower), endpoint("shard-1", &upper)];
    ostraca_server::endpoints::write(&run_dir, &list).expect("written");
    let request = v1::BeginCreateRequest {
        idempotency_key: key().expose_text(),
        request_digest: vec![1; 32],
    };
    let status = upper
        .raw()
        .await
        .begin_create(request)
        .await
        .expect_err("not its slot");
    assert_eq!(status.code(), Code::FailedPrecondition);
    let details = status.get_error_details();
    let info = details.error_info().expect("details");
    assert_eq!(info.reason, "WRONG_SHARD");
    assert_eq!(info.metadata["address"], lower.address.to_string());
    assert_eq!(info.metadata["shard"], "0");
    // A client that knows one shard reaches the other's slots.
    create(&upper.client(), &key()).await.expect("routed");
    lower.stop().await;
    upper.stop().await;
}

/// Goal: the table says of which cluster it is, so that no client mixes two: each process of one
/// says the same, and says it after a restart; another cluster's says another.
#[tokio::test]
async fn f06_the_table_names_its_cluster() {
    async fn named(running: &Running) -> String {
        let mut cluster = ClusterServiceClient::new(running.channel());
        let table = cluster.get_routing(v1::GetRoutingRequest {}).await;
        table.expect("a table").into_inner().cluster_id
    }
    let ((dir, clock), (other_dir, _)) = (new(), new());
    let mut ids = Vec::new();
    for (path, shard) in [
        (dir.path(), 0),
        (dir.path(), 1),
        (dir.path(), 0),
        (other_dir.path(), 0),
    ] {
        let running = start(path, shard, &clock).await.expect("serving");
        let cluster = DataDir::open(path).expect("made").cluster().to_string();
        let id = named(&running).await;
        assert_eq!((id.len(), &id), (32, &cluster));
        ids.push(id);
        running.stop().await;
    }
    assert!(ids[..3].iter().all(|id| *id == ids[0]), "{ids:?}");
    assert_ne!(ids[3], ids[0]);
}

/// Goal: a call that names another cluster is refused by every service, definitely, and does nothing.
#[tokio::test]
async fn f06_a_call_for_another_cluster_is_refused() {
    let (dir, clock) = new();
    let running = start(dir.path(), 0, &clock).await.expect("serving");
    let cluster = DataDir::open(dir.path()).expect("made").cluster();
    let ask = async |named: &str| {
        let mut cluster = ClusterServiceClient::new(running.channel());
        let mut paste = PasteServiceClient::new(running.channel());
        let begin = v1::BeginCreateRequest {
            idempotency_key: key().expose_text(),
            request_digest: REQUEST.0.to_vec(),
        };
        let (begun, told) = (
            paste.begin_create(named_for(named, begin)).await,
            cluster
                .get_status(named_for(named, v1::GetStatusRequest {}))
                .await,
        );
        [begun.map(drop), told.map(drop)]
    };
    for answer in ask(&cluster.to_string()).await {
        answer.expect("its own");
    }
    for named in ["0123456789abcdef0123456789abcdef", "", "x"] {
        for answer in ask(named).await {
            let refused = answer.expect_err("another one");
            assert_eq!(refused.code(), Code::FailedPrecondition);
            let details = refused.get_error_details();
            let info = details.error_info().expect("a reason");
            assert_eq!(info.reason, "WRONG_CLUSTER");
            assert!(info.metadata.is_empty(), "it says nowhere to go");
        }
    }
    running.stop().await;
}

fn named_for<T>(cluster: &str, message: T) -> tonic::Request<T> {
    let mut request = tonic::Request::new(message);
    let name = cluster.parse().expect("ASCII");
    request.metadata_mut().insert(CLUSTER_METADATA, name);
    request
}

/// Goal: a client that is sent to another cluster, by a seat that is stale, does nothing there, and
/// believes nothing of what it is told there: it finds its own cluster again.
#[tokio::test]
async fn f06_a_client_does_nothing_in_another_cluster() {
    let ((dir, clock), (other_dir, _)) = (new(), new());
    let running = start(dir.path(), 0, &clock).await.expect("serving");
    let other = start(other_dir.path(), 0, &clock).await.expect("serving");
    let client = running.client();
    create(&client, &key()).await.expect("created");
    let told = client.shards().await.expect("a table");
    let seat = dir.path().join("run/shard-0.leader.json");
    let text = format!(r#"{{"pid":1,"grpc":"{}","epoch":9}}"#, other.address);
    files::replace_durable(&seat, text.as_bytes(), 0o644).expect("written");
    let strange = client.shards().await.expect("a table");
    assert_ne!(strange[0].address, told[0].address, "it is sent away");

    let key = key();
    let err = client
        .begin_create(&key, &REQUEST)
        .await
        .expect_err("refused");
    assert_eq!(
        (err.kind(), err.reason()),
        (ErrorKind::NotLeader, Some(Reason::WrongCluster))
    );
    let stream = client
        .stream_creates(Slot(0), 1)
        .await
        .expect_err("refused");
    assert_eq!(stream.reason(), Some(Reason::WrongCluster));

    let text = format!(r#"{{"pid":1,"grpc":"{}","epoch":10}}"#, running.address);
    files::replace_durable(&seat, text.as_bytes(), 0o644).expect("written");
    create(&client, &key).await.expect("created");
    let status = client.status_of(&other.address.to_string()).await;
    assert_eq!(status.expect("a status").pastes, 0);
    running.stop().await;
    other.stop().await;
}

/// Goal: a leader names itself from when it serves on, whatever its seat says yet: that is written a
/// moment later. To a later leader it gives way.
#[tokio::test]
async fn f06_a_leader_needs_no_seat_to_name_itself() {
    let (dir, clock) = new();
    let running = start(dir.path(), 0, &clock).await.expect("serving");
    let mut cluster = ClusterServiceClient::new(running.channel());
    let mut named = async || {
        let table = cluster.get_routing(v1::GetRoutingRequest {}).await;
        let mut shards = table.expect("a table").into_inner().shards;
        let route = shards.swap_remove(0);
        (route.address, route.epoch)
    };
    let seat = dir.path().join("run/shard-0.leader.json");
    let own = running.address.to_string();
    let (_, epoch) = named().await;
    files::remove(&seat).expect("it was there");
    assert_eq!(named().await, (own.clone(), epoch));
    let other = "127.0.0.1:1".to_owned();
    for (seats, expected) in [
        (epoch - 1, (own, epoch)),
        (epoch + 1, (other.clone(), epoch + 1)),
    ] {
        let text = format!(r#"{{"pid":1,"grpc":"{other}","epoch":{seats}}}"#);
        files::replace_durable(&seat, text.as_bytes(), 0o644).expect("written");
        assert_eq!(named().await, expected);
    }
    running.stop().await;
}

#[tokio::test]
async fn creates_on_a_stream_are_answered_under_their_tags() {
    let (dir, clock) = new();
    let running = start(dir.path(), 0, &clock).await.expect("serving");
    let client = running.client();
    let mut stream = client.stream_creates(Slot(0), 200).await.expect("a stream");
    let keys: Vec<_> = (0..200).map(|_| key()).collect();
    let mut begun = std::collections::HashMap::new();
    for key in &keys {
        begun.insert(
            stream.begin(key, &REQUEST).await.expect("sent"),
            key.clone(),
        );
    }
    let mut committing = std::collections::HashMap::new();
    while !begun.is_empty() {
        let (tag, answer) = stream.next().await.expect("an answer");
        let StreamAnswer::Begun(Ok(Begun::New(ticket))) = answer else {
            panic!("{answer:?}")
        };
        let key = begun.remove(&tag).expect("its tag");
        let tag = stream
            .commit(&key, &REQUEST, &ticket, &paste())
            .await
            .expect("sent");
        committing.insert(tag, (key, ticket.paste_id));
    }
    while !committing.is_empty() {
        let (tag, answer) = stream.next().await.expect("an answer");
        let StreamAnswer::Committed(Ok(answer)) = answer else {
            panic!("{answer:?}")
        };
        let (key, id) = committing.remove(&tag).expect("its tag");
        assert_eq!((answer.paste_id, answer.replayed), (id, false));
        assert_eq!(create(&client, &key).await.expect("stored").paste_id, id);
    }
    // A refusal leaves the stream open.
    let tag = stream.begin(&keys[0], &OTHER_REQUEST).await.expect("sent");
    let (answered, answer) = stream.next().await.expect("an answer");
    let StreamAnswer::Begun(Err(refused)) = answer else {
        panic!("{answer:?}")
    };
    assert_eq!((answered, refused.reason()), (tag, Some(Reason::KeyReused)));
    let tag = stream.begin(&keys[0], &REQUEST).await.expect("sent");
    let (answered, answer) = stream.next().await.expect("an answer");
    assert!(
        matches!(answer, StreamAnswer::Begun(Ok(Begun::Stored(_)))),
        "{answer:?}"
    );
    assert_eq!(answered, tag);
    running.stop().await;
}

/// Everything below `dir`.
fn all_files(dir: &Path) -> Vec<std::path::PathBuf> {
    let mut found = Vec::new();
    for name in files::list(dir).expect("a directory") {
        let path = dir.join(name);
        if path.is_dir() {
            found.append(&mut all_files(&path));
        } else {
            found.push(path);
        }
    }
    found
}

#[tokio::test]
#[allow(
    clippy::disallowed_methods,
    reason = "segments are larger than small files may be"
)]
async fn k16_neither_token_nor_key_is_at_rest_in_the_clear() {
    let (dir, clock) = new();
    let running = start(dir.path(), 0, &clock).await.expect("serving");
    let (client, key) = (running.client(), key());
    let answer = create(&client, &key).await.expect("created");
    running.stop().await;
    let secrets = [
        key.expose().to_vec(),
        key.expose_text().into_bytes(),
        answer.delete_token.expose().to_vec(),
        answer.delete_token.expose_text().into_bytes(),
    ];
    let mut id_found = false;
    for path in all_files(dir.path()) {
        let bytes = std::fs::read(&path).expect("a file");
        for secret in &secrets {
            let found = bytes
                .windows(secret.len())
                .any(|part| part == secret.as_slice());
            assert!(!found, "a secret is in {}", path.display());
        }
        let id = &answer.paste_id.as_str().as_bytes()[2..];
        id_found |= bytes.windows(id.len()).any(|part| part == id);
    }
    assert!(id_found, "the search finds what is there");
}

#[tokio::test]
async fn k16_a_wrong_or_missing_secret_refuses_to_start() {
    let (dir, clock) = new();
    let running = start(dir.path(), 0, &clock).await.expect("serving");
    create(&running.client(), &key()).await.expect("created");
    running.stop().await;
    let secret_dir = dir.path().join("secret");
    // The cluster's key, the generation that the create used, and the next one, made ahead.
    let names = files::list(&secret_dir).expect("the secrets");
    assert_eq!(names.len(), 3, "{names:?}");
    for name in &names[..2] {
        let path = secret_dir.join(name);
        let right = files::read(&path).expect("a secret");
        files::replace_durable(&path, &vec![7; right.len()], 0o600).expect("written");
        let refused = start(dir.path(), 0, &clock).await.err().expect("refused");
        assert!(
            matches!(refused, ServeError::Secrets(_)),
            "{name}: {refused}"
        );
        assert_eq!(refused.kind(), ErrorKind::Rejected);
        files::destroy(&path).expect("removed");
        let refused = start(dir.path(), 0, &clock).await.err().expect("refused");
        assert!(
            matches!(refused, ServeError::Secrets(_)),
            "{name}: {refused}"
        );
        files::replace_durable(&path, &right, 0o600).expect("written");
    }
    let running = start(dir.path(), 0, &clock)
        .await
        .expect("the right ones are back");
    running.stop().await;
}

/// Goal: 26 h after a create nothing opens its token any more, whoever kept a copy of the log.
/// Method: copy the shard before, let the time pass, put the copy back under the secrets of then.
#[tokio::test]
#[allow(clippy::disallowed_methods, reason = "a copy of a directory")]
async fn k16_after_26_hours_no_copy_of_the_log_opens_a_token() {
    let (dir, clock) = new();
    let running = start(dir.path(), 0, &clock).await.expect("serving");
    let (client, key) = (running.client(), key());
    create(&client, &key).await.expect("created");
    let before = files::list(&dir.path().join("secret")).expect("the secrets");
    running.stop().await;
    let shard = dir.path().join("shard-0");
    let copies: Vec<_> = all_files(&shard)
        .into_iter()
        .map(|path| (path.clone(), std::fs::read(path).expect("a file")))
        .collect();

    let running = start(dir.path(), 0, &clock).await.expect("serving");
    advance(&running, &clock, 26 * HOUR).await;
    // The secret of the create is destroyed by the shard's own clock.
    let used = &before[1];
    wait_until(|| !dir.path().join("secret").join(used).exists()).await;
    running.stop().await;

    std::fs::remove_dir_all(shard.join("log")).expect("removed");
    std::fs::create_dir(shard.join("log")).expect("made");
    for (path, bytes) in copies {
        std::fs::write(path, bytes).expect("put back");
    }
    // With a clock of then, on another boot, so that the copy would honour the key.
    let then = ManualClock::new(START.plus(Duration::from_secs(60)));
    then.reboot(Duration::ZERO);
    let refused = start(dir.path(), 0, &then).await.err().expect("refused");
    assert!(matches!(refused, ServeError::Secrets(_)), "{refused}");
}

/// Polls; what is waited for takes milliseconds.
async fn wait_until(done: impl Fn() -> bool) {
    let limit = tokio::time::Instant::now() + Duration::from_secs(30);
    while !done() {
        assert!(tokio::time::Instant::now() < limit, "it did not happen");
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
}

#[tokio::test]
#[allow(clippy::disallowed_methods, reason = "loss is what this is about")]
async fn d02_a_shard_that_lost_its_log_or_its_newest_segment_refuses() {
    let (dir, clock) = new();
    for _ in 0..2 {
        let running = start(dir.path(), 0, &clock).await.expect("serving");
        create(&running.client(), &key()).await.expect("created");
        running.stop().await;
    }
    let log = dir.path().join("shard-0/log");
    let newest = files::list(&log).expect("segments").pop().expect("one");
    let aside = dir.path().join("aside");
    std::fs::rename(log.join(&newest), &aside).expect("moved");
    let refused = start(dir.path(), 0, &clock).await.err().expect("refused");
    assert_eq!(refused.kind(), ErrorKind::Damaged, "{refused}");
    std::fs::rename(&aside, log.join(&newest)).expect("moved back");
    for part in ["shard-0/log", "shard-0/store", "shard-0"] {
        let path = dir.path().join(part);
        std::fs::rename(&path, &aside).expect("moved");
        let refused = start(dir.path(), 0, &clock).await.err().expect("refused");
        assert!(!path.exists(), "{part} is not made anew: {refused}");
        std::fs::rename(&aside, &path).expect("moved back");
    }
    let running = start(dir.path(), 0, &clock).await.expect("all is back");
    running.stop().await;
}

#[tokio::test]
async fn a_shard_is_served_by_one_process() {
    let (dir, clock) = new();
    let running = start(dir.path(), 0, &clock).await.expect("serving");
    let refused = start(dir.path(), 0, &clock).await.err().expect("refused");
    assert!(
        matches!(refused, ServeError::Held(Some(pid)) if pid == std::process::id()),
        "{refused}"
    );
    running.stop().await;
}

#[tokio::test]
async fn a_missed_deadline_is_told_as_one() {
    let (dir, clock) = new();
    let running = start(dir.path(), 0, &clock).await.expect("serving");
    // By hand, as tonic's client would give up by itself.
    let socket = tokio::net::TcpStream::connect(running.address)
        .await
        .expect("a connection");
    let (mut sender, connection) = h2::client::handshake(socket).await.expect("HTTP/2");
    let connection = tokio::spawn(connection);
    // A long poll of 20 s for which nothing comes.
    let poll = v1::ReceiveRequest {
        consumer: "purge".to_owned(),
        wait_ms: 20_000,
        ..Default::default()
    };
    let poll = prost::Message::encode_to_vec(&poll);
    for timeout in ["0n", "1m", "2m", "50m"] {
        let url = "http://localhost/ostraca.v1.OutboxService/Receive";
        let request = tonic::codegen::http::Request::post(url)
            .header("content-type", "application/grpc")
            .header("te", "trailers")
            .header("grpc-timeout", timeout)
            .body(())
            .expect("a request");
        let (response, mut body) = sender.send_request(request, false).expect("sent");
        let mut frame = vec![0, 0, 0, 0, u8::try_from(poll.len()).expect("short")];
        frame.extend_from_slice(&poll);
        body.send_data(frame.into(), true).expect("sent");
        let response = response.await.expect("an answer");
        let status = response.headers()["grpc-status"].to_str().expect("text");
        assert_eq!(
            status,
            (Code::DeadlineExceeded as i32).to_string(),
            "{timeout}"
        );
    }
    drop(sender);
    connection.abort();
    running.stop().await;
}

#[tokio::test]
async fn health_and_reflection_answer() {
    use tonic_health::pb::health_check_response::ServingStatus;
    use tonic_health::pb::{HealthCheckRequest, health_client::HealthClient};
    let (dir, clock) = new();
    let running = start(dir.path(), 0, &clock).await.expect("serving");
    let channel = tonic::transport::Endpoint::from_shared(format!("http://{}", running.address))
        .expect("an address")
        .connect_lazy();
    let mut health = HealthClient::new(channel.clone());
    for service in ["", "ostraca.v1.PasteService"] {
        let request = HealthCheckRequest {
            service: service.to_owned(),
        };
        let response = health.check(request).await.expect("an answer").into_inner();
        assert_eq!(response.status(), ServingStatus::Serving);
    }
    let unknown = HealthCheckRequest {
        service: "nobody".to_owned(),
    };
    assert_eq!(
        health.check(unknown).await.expect_err("unknown").code(),
        Code::NotFound
    );

    use tonic_reflection::pb::v1::{
        ServerReflectionRequest, server_reflection_client::ServerReflectionClient,
        server_reflection_request::MessageRequest, server_reflection_response::MessageResponse,
    };
    let list = ServerReflectionRequest {
        host: String::new(),
        message_request: Some(MessageRequest::ListServices(String::new())),
    };
    let mut answers = ServerReflectionClient::new(channel)
        .server_reflection_info(tokio_stream::iter([list]))
        .await
        .expect("reflection")
        .into_inner();
    let answer = answers.message().await.expect("an answer").expect("one");
    let Some(MessageResponse::ListServicesResponse(list)) = answer.message_response else {
        panic!("{answer:?}")
    };
    let names: Vec<_> = list
        .service
        .into_iter()
        .map(|service| service.name)
        .collect();
    for name in [
        "ostraca.v1.OutboxService",
        "ostraca.v1.InboxService",
        "ostraca.v1.PasteService",
        "ostraca.v1.ClusterService",
        "grpc.health.v1.Health",
    ] {
        assert!(names.iter().any(|known| known == name), "{names:?}");
    }
    running.stop().await;
}

#[tokio::test]
async fn a_drain_ends_although_a_stream_and_a_silent_connection_stay_open() {
    let (dir, clock) = new();
    let running = start(dir.path(), 0, &clock).await.expect("serving");
    let client = running.client();
    let stream = client.stream_creates(Slot(0), 1).await.expect("a stream");
    let silent = tokio::net::TcpStream::connect(running.address)
        .await
        .expect("a connection");
    let limit = Duration::from_secs(15);
    tokio::time::timeout(limit, running.stop())
        .await
        .expect("the drain is bounded");
    drop((stream, silent));
}
