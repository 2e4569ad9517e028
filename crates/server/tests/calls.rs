//! How many calls a process has under way, which is what shows where the processor is short: nothing is
//! refused there.

mod held;

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use held::{
    HeldStorage, REQUEST, Server, begin, begin_start_by, create, key, paste, until, within,
};
use ostraca_io::{Entropy, SystemEntropy};
use ostraca_server::Lead;
use ostraca_types::ErrorKind;

/// Random bytes, until it is told to panic instead: so does the handler that asks for them.
#[derive(Default)]
struct Falls(AtomicBool);

impl Entropy for Falls {
    fn fill(&self, bytes: &mut [u8]) {
        assert!(!self.0.load(Ordering::Relaxed), "told to fall");
        SystemEntropy.fill(bytes);
    }
}

async fn in_flight(server: &Server) -> u64 {
    server.metric("ostraca_calls_in_flight").await
}

/// Waits until as many calls are under way.
async fn comes_to(server: &Server, calls: u64) {
    let what = format!("{calls} calls in flight");
    until(&what, async || in_flight(server).await == calls).await;
}

/// Goal: the gauge is what is under way, however a call ends.
/// Method: commits behind a sync that is held; some are given up. Then handlers that panic.
#[tokio::test]
async fn l01_calls_in_flight_are_told_and_given_back() {
    let dir = tempfile::tempdir().expect("a directory");
    let entropy = Arc::<Falls>::default();
    let (by, storage) = (Arc::clone(&entropy), HeldStorage::default());
    let mut server = begin_start_by(by, Lead::IfFree, dir.path(), 0, storage);
    server.is_leading().await;
    assert_eq!(in_flight(&server).await, 0);
    assert_eq!(server.metric("ostraca_calls_in_flight_max").await, 8192);
    let client = server.client();
    let ended = server.metric("ostraca_calls_total").await;
    create(&client, &key()).await;
    // Its begin and its commit.
    assert_eq!(server.metric("ostraca_calls_total").await, ended + 2);
    assert_eq!(in_flight(&server).await, 0);

    let mut tickets = Vec::new();
    for _ in 0..6 {
        let key = key();
        let ticket = begin(&client, &key).await;
        tickets.push((key, ticket));
    }
    let shut = server.storage.syncing.shut();
    let mut commits = Vec::new();
    for (key, ticket) in tickets {
        let client = client.clone();
        commits.push(tokio::spawn(async move {
            let paste = paste();
            client.commit_create(&key, &REQUEST, &ticket, &paste).await
        }));
    }
    comes_to(&server, 6).await;
    // Status and health are answered to everyone, and are not among them.
    assert_eq!(server.status().await.shard, 0);
    assert_eq!(in_flight(&server).await, 6);
    for given_up in commits.drain(..2) {
        given_up.abort();
    }
    comes_to(&server, 4).await;
    drop(shut);
    for commit in commits {
        let answer = within(commit).await.expect("no panic");
        answer.expect("it was only slow");
    }
    comes_to(&server, 0).await;
    assert_eq!(
        server.metric("ostraca_calls_total").await,
        ended + 2 + 2 * 6,
        "given up or not"
    );

    entropy.0.store(true, Ordering::Relaxed);
    for _ in 0..3 {
        let fallen = within(client.begin_create(&key(), &REQUEST)).await;
        let err = fallen.expect_err("its handler panicked");
        assert_eq!(err.kind(), ErrorKind::Unknown, "{err}");
    }
    entropy.0.store(false, Ordering::Relaxed);
    comes_to(&server, 0).await;
    create(&client, &key()).await;
    server.stop().await;
}
