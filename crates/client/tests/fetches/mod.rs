//! How often the table is asked for, whom, and whose table is taken.

use std::sync::Arc;
use std::sync::atomic::Ordering;

use crate::PATIENT;
use crate::connections::connections;
use crate::fake::{Behaviour, Fake, REQUEST, begin, client, creates, key, poll};
use ostraca_client::{Begun, Client, Error, Options, Seeds};
use ostraca_types::{ErrorKind, Reason};
use parking_lot::Mutex;
use tokio::task::JoinHandle;

const STRANGE: &str = "ffffffffffffffffffffffffffffffff";

fn fetches(fake: &Fake) -> usize {
    fake.counts.routings.load(Ordering::SeqCst)
}

/// Calls that have come to where they wait.
async fn calls(client: &Client, count: usize) -> Vec<JoinHandle<Result<Begun, Error>>> {
    let call = |_| {
        let client = client.clone();
        tokio::spawn(async move { client.begin_create(&key(), &REQUEST).await })
    };
    let calls = (0..count).map(call).collect();
    // One thread runs all tasks, in their order.
    tokio::spawn(async {}).await.expect("no panic");
    calls
}

async fn asked(fake: &Fake, times: usize) {
    poll("the seed is asked", async || {
        (fetches(fake) == times).then_some(())
    })
    .await;
}

/// Goal: however many calls wait for a leader, the seeds are asked once for all of them, and once
/// more for those who came when they had been asked.
#[tokio::test]
async fn f06_calls_without_a_leader_share_a_fetch() {
    let fake = Fake::start().await;
    fake.route_at(1, 0, "");
    fake.hold_routing(true);
    let client = client(&[&fake.address], PATIENT);
    let mut waiting = calls(&client, 500).await;
    asked(&fake, 1).await;
    waiting.extend(calls(&client, 500).await);
    fake.hold_routing(false);
    for call in waiting {
        let err = call.await.expect("no panic").expect_err("nobody leads");
        assert_eq!(
            (err.kind(), err.reason()),
            (ErrorKind::Unavailable, Some(Reason::NotReady))
        );
    }
    assert_eq!(fetches(&fake), 2);
}

/// Goal: what was on its way when a call came does not tell it that there is no leader; one further
/// fetch does, or finds him.
/// Method: the first answer was given before there was a leader, and comes later than the call.
#[tokio::test]
async fn f06_an_answer_from_before_a_call_does_not_refuse_it() {
    let fake = Fake::start().await;
    fake.route_at(1, 0, "");
    fake.hold_answers(true);
    let client = client(&[&fake.address], PATIENT);
    let mut early = calls(&client, 1).await;
    asked(&fake, 1).await;
    fake.route_at(1, 1, &fake.address);
    let late = calls(&client, 20).await;
    fake.hold_answers(false);
    for call in late {
        call.await.expect("no panic").expect("a leader");
    }
    let early = early.remove(0).await.expect("no panic");
    assert_eq!(early.expect_err("too early").kind(), ErrorKind::Unavailable);
    assert_eq!((fetches(&fake), creates(&fake)), (2, (20, 0)));
}

/// Goal: nor does a late answer count for the next fetch, which started while it was on its way.
/// Method: another seed shows that it has started, and knows nothing.
#[tokio::test]
async fn f06_a_seed_that_answers_late_is_asked_again() {
    let (late, prompt) = (Fake::start().await, Fake::start().await);
    for seed in [&late, &prompt] {
        seed.route_at(1, 0, "");
    }
    late.hold_answers(true);
    let client = client(&[&late.address, &prompt.address], PATIENT);
    let _early = calls(&client, 1).await;
    asked(&late, 1).await;
    late.route_at(1, 1, &late.address);
    let call = calls(&client, 1).await.remove(0);
    asked(&prompt, 2).await;
    assert_eq!(fetches(&late), 1, "one question at a time");
    late.hold_answers(false);
    call.await.expect("no panic").expect("a leader");
    assert_eq!(fetches(&late), 2);
}

/// Goal: what was asked for an earlier fetch and failed tells nobody whose seeds are still being found.
/// Method: the seed is silent until its first question has failed; by then the second fetch looks for
/// its seeds, and finds them when the seed answers again.
#[tokio::test]
async fn f06_a_failure_of_an_earlier_question_refuses_no_later_call() {
    let seed = Fake::start().await;
    seed.hold_routing(true);
    let (find, found) = std::sync::mpsc::sync_channel(1);
    let searches = Arc::new(Mutex::new(0));
    let ask = {
        let (searches, address, found) = (
            Arc::clone(&searches),
            seed.address.clone(),
            Mutex::new(found),
        );
        move || {
            let mut searches = searches.lock();
            *searches += 1;
            let held = *searches == 2;
            drop(searches);
            if held {
                // Or the test has failed.
                let _ = found.lock().recv();
            }
            vec![address.clone()]
        }
    };
    let client = Client::new(Options {
        deadline: 3 * PATIENT,
        ..Options::new(Seeds::Ask(Arc::new(ask)))
    });
    let early = calls(&client, 1).await.remove(0);
    asked(&seed, 1).await;
    let late = calls(&client, 1).await.remove(0);
    poll("the next fetch looks for seeds", async || {
        (*searches.lock() == 2).then_some(())
    })
    .await;
    let err = early.await.expect("no panic").expect_err("silent");
    assert_eq!(err.kind(), ErrorKind::Unavailable);
    seed.hold_routing(false);
    find.send(()).expect("it waits");
    late.await.expect("no panic").expect("a leader");
}

/// Goal: the same for a call that was refused while a fetch was under way: its answer may be as old
/// as what sent the call there.
#[tokio::test]
async fn f06_an_answer_from_before_a_refusal_is_not_the_last_word() {
    let (old, new) = (Fake::start().await, Fake::start().await);
    let client = client(&[&old.address], PATIENT);
    begin(&client, &key()).await;
    old.hold_answers(true);
    let refresh = tokio::spawn({
        let client = client.clone();
        async move { client.shards().await }
    });
    asked(&old, 2).await;
    old.behave(Behaviour::WrongShard(None));
    let refused = calls(&client, 1).await;
    poll("it is refused", async || {
        (creates(&old) == (2, 0)).then_some(())
    })
    .await;
    old.route(1, &new.address);
    old.hold_answers(false);
    for call in refused {
        call.await.expect("no panic").expect("followed");
    }
    let shards = refresh.await.expect("no panic").expect("a table");
    assert_eq!(shards[0].address, old.address, "what it was then");
    assert_eq!((creates(&old), creates(&new)), ((2, 0), (1, 0)));
}

/// Goal: a fetch is nobody's own: whoever leaves, also the one for whom it was begun, ends it for
/// nobody.
#[tokio::test]
async fn f06_a_caller_that_leaves_ends_no_fetch_of_others() {
    let fake = Fake::start().await;
    fake.hold_routing(true);
    let client = client(&[&fake.address], PATIENT);
    let mut waiting = calls(&client, 3).await;
    asked(&fake, 1).await;
    for leaving in waiting.drain(..2) {
        leaving.abort();
        assert!(leaving.await.expect_err("it left").is_cancelled());
    }
    fake.hold_routing(false);
    let left = waiting.remove(0).await.expect("no panic");
    left.expect("routed");
    assert_eq!((fetches(&fake), creates(&fake)), (1, (1, 0)));
}

/// Goal: who is asked for the table again and again is asked over one connection, also if he leads
/// nothing.
#[tokio::test]
async fn a_seed_that_leads_nothing_keeps_its_connection() {
    let (seed, leader) = (Fake::start().await, Fake::start().await);
    seed.route(1, &leader.address);
    let client = client(&[&seed.address], PATIENT);
    for _ in 0..5 {
        client.shards().await.expect("a table");
    }
    assert_eq!((fetches(&seed), connections(&seed)), (5, 1));
    // When it comes to lead, calls use that one too.
    seed.route(1, &seed.address);
    client.shards().await.expect("a table");
    begin(&client, &key()).await;
    assert_eq!((creates(&seed), connections(&seed)), ((1, 0), 1));
}

/// A client whose seeds change.
fn client_of(seeds: &Arc<Mutex<Vec<String>>>) -> Client {
    let seeds = Arc::clone(seeds);
    Client::new(Options {
        deadline: PATIENT,
        ..Options::new(Seeds::Ask(Arc::new(move || seeds.lock().clone())))
    })
}

/// Goal: a client belongs to the cluster that it heard of first. One that answers at an address of
/// its list by now leads it nowhere, whatever version and epoch it names, and is named.
#[tokio::test]
async fn f06_a_table_of_another_cluster_is_not_taken() {
    let (own, other) = (Fake::start().await, Fake::start().await);
    other.belong_to(STRANGE);
    other.route_at(9, 9, &other.address);
    let seeds = Arc::new(Mutex::new(vec![own.address.clone()]));
    let client = client_of(&seeds);
    begin(&client, &key()).await;

    *seeds.lock() = vec![other.address.clone()];
    for _ in 0..2 {
        let err = client.shards().await.expect_err("another cluster");
        assert_eq!(err.kind(), ErrorKind::Unavailable);
        assert!(err.message().contains(&other.address), "{err}");
    }
    begin(&client, &key()).await;

    // It hides none that is right.
    *seeds.lock() = vec![other.address.clone(), own.address.clone()];
    own.route_at(2, 2, &own.address);
    let shards = client.shards().await.expect("of the right one");
    assert_eq!(shards[0].address, own.address);
    begin(&client, &key()).await;
    assert_eq!((creates(&own), creates(&other)), ((3, 0), (0, 0)));
}

/// Goal: a build that names no cluster is believed, before and after another one named it.
#[tokio::test]
async fn f06_a_table_without_a_cluster_is_taken() {
    let (silent, own, other) = (
        Fake::start().await,
        Fake::start().await,
        Fake::start().await,
    );
    silent.belong_to("");
    other.belong_to(STRANGE);
    other.route_at(9, 9, &other.address);
    let seeds = Arc::new(Mutex::new(Vec::new()));
    let client = client_of(&seeds);
    for (version, seed) in [(1, &silent), (2, &own), (3, &silent)] {
        seed.route(version, &seed.address);
        *seeds.lock() = vec![seed.address.clone()];
        let shards = client.shards().await.expect("taken");
        assert_eq!(shards[0].slots.len(), 256);
        let debug = format!("{client:?}");
        assert!(debug.contains(&format!("version: {version}")), "{debug}");
    }
    // What was named in between stays named.
    *seeds.lock() = vec![other.address.clone()];
    client.shards().await.expect_err("another cluster");
}

/// Goal: calls to a shard that hangs pile up to a bound; beyond it a call is told so at once, as an
/// overloaded shard would tell it, and was not sent. Those that wait go on when the shard does.
#[tokio::test]
async fn l01_calls_before_a_shard_that_hangs_are_bounded() {
    let fake = Fake::start().await;
    let client = client(&[&fake.address], 3 * PATIENT);
    begin(&client, &key()).await;
    fake.hold_calls(true);
    let mut waiting = Vec::new();
    let refused = loop {
        assert!(waiting.len() < 10_000, "no bound");
        let mut call = calls(&client, 100).await;
        let ended = call.iter().position(JoinHandle::is_finished);
        if let Some(ended) = ended {
            // Where one is refused, so are all that come later.
            let refused = call.split_off(ended);
            waiting.append(&mut call);
            break refused;
        }
        waiting.append(&mut call);
    };
    for call in refused {
        assert!(call.is_finished(), "it waits");
        let err = call.await.expect("no panic").expect_err("refused");
        assert_eq!(
            (err.kind(), err.reason()),
            (ErrorKind::Busy, Some(Reason::Overloaded))
        );
        assert!(err.retry_after().is_some(), "{err}");
    }
    fake.hold_calls(false);
    let sent = 1 + waiting.len();
    for call in waiting {
        call.await.expect("no panic").expect("answered");
    }
    assert_eq!(creates(&fake), (sent, 0), "what was refused was not sent");
    begin(&client, &key()).await;
}
