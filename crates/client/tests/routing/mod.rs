//! Whom a client believes that it leads a shard: the later one, whoever says so.

use std::sync::Arc;
use std::sync::atomic::Ordering;

use crate::fake::{Behaviour, Fake, REQUEST, begin, client, closed, creates, hung, key, poll};
use crate::{PATIENT, SHORT};
use ostraca_client::{Begun, Client, Error, StreamAnswer};
use ostraca_types::{ErrorKind, Reason, Slot};

async fn begun(client: &Client) -> Result<Begun, Error> {
    client.begin_create(&key(), &REQUEST).await
}

/// Where the client believes that all slots are led, after it heard the seeds.
async fn led_at(client: &Client) -> String {
    let mut shards = client.shards().await.expect("a table");
    shards.pop().expect("one shard").address
}

async fn two() -> (Arc<Fake>, Arc<Fake>) {
    (Fake::start().await, Fake::start().await)
}

/// Goal: leaders change without a new version of the table.
#[tokio::test]
async fn f06_a_later_epoch_replaces_a_leader_at_the_same_version() {
    let (old, new) = two().await;
    old.route_at(1, 5, &old.address);
    let client = client(&[&old.address], PATIENT);
    assert_eq!(led_at(&client).await, old.address);
    old.route_at(1, 6, &new.address);
    assert_eq!(led_at(&client).await, new.address);
    begin(&client, &key()).await;
    assert_eq!((creates(&old), creates(&new)), ((0, 0), (1, 0)));
}

/// Goal: a seed that has not heard of a take-over takes no client back to who led before, though
/// the new leader is out of reach for a while.
/// Method: epoch 5 led, 6 leads and breaks every connection; the only seed says 5.
#[tokio::test]
async fn f06_an_earlier_epoch_is_never_gone_back_to() {
    let (seed, old, new) = (
        Fake::start().await,
        Fake::start().await,
        Fake::start().await,
    );
    seed.route_at(1, 6, &new.address);
    let client = client(&[&seed.address], PATIENT);
    begin(&client, &key()).await;
    seed.route_at(1, 5, &old.address);
    assert_eq!(led_at(&client).await, new.address, "while it answers");
    new.behave(Behaviour::Reset);
    assert!(begun(&client).await.expect_err("reset").is_unreachable());
    assert_eq!(led_at(&client).await, new.address, "while it does not");
    // Nor with a newer table, which tells who owns slots.
    seed.route_at(2, 5, &old.address);
    assert_eq!(led_at(&client).await, new.address);
    new.behave(Behaviour::Answer);
    begin(&client, &key()).await;
    assert_eq!((creates(&old), creates(&new)), ((0, 0), (3, 0)));
}

/// Goal: who is told by a refusal who leads goes there from then on, whatever its seeds say.
#[tokio::test]
async fn f06_a_refusal_updates_the_route_of_its_shard_at_once() {
    let (old, new) = two().await;
    old.route_at(1, 5, &old.address);
    old.behave(Behaviour::NotLeader(new.address.clone(), 6));
    let client = client(&[&old.address], PATIENT);
    begin(&client, &key()).await;
    assert_eq!((creates(&old), creates(&new)), ((1, 0), (1, 0)), "followed");
    for _ in 0..3 {
        begin(&client, &key()).await;
        assert_eq!(led_at(&client).await, new.address);
    }
    assert_eq!((creates(&old), creates(&new)), ((1, 0), (4, 0)), "at once");
}

/// Goal: a call that was under way when a table named its leader anew follows the refusal all the
/// same, and so does every later call at once.
#[tokio::test]
async fn f06_a_refusal_counts_for_a_leader_that_was_named_anew() {
    let (old, standby) = two().await;
    old.route_at(1, 1, &old.address);
    let client = client(&[&old.address], PATIENT);
    assert_eq!(led_at(&client).await, old.address);
    old.hold_calls(true);
    let under_way = tokio::spawn({
        let client = client.clone();
        async move { begun(&client).await }
    });
    poll("the call arrives", async || {
        (creates(&old) == (1, 0)).then_some(())
    })
    .await;
    old.route_at(1, 2, &old.address);
    assert_eq!(led_at(&client).await, old.address);
    old.behave(Behaviour::NotLeader(standby.address.clone(), 0));
    old.hold_calls(false);
    under_way.await.expect("no panic").expect("followed");
    begin(&client, &key()).await;
    assert_eq!((creates(&old), creates(&standby)), ((1, 0), (2, 0)));
}

/// Goal: a stream's refusals teach as those of calls do.
#[tokio::test]
async fn f06_a_refusal_on_a_stream_updates_the_route() {
    let (old, new) = two().await;
    old.route_at(1, 5, &old.address);
    old.behave(Behaviour::NotLeader(new.address.clone(), 6));
    let client = client(&[&old.address], PATIENT);
    let mut stream = client.stream_creates(Slot(0), 1).await.expect("a stream");
    stream.begin(&key(), &REQUEST).await.expect("sent");
    let (_, answer) = stream.next().await.expect("an answer");
    assert!(
        matches!(&answer, StreamAnswer::Begun(Err(err)) if err.reason() == Some(Reason::NotLeader)),
        "{answer:?}"
    );
    begin(&client, &key()).await;
    assert_eq!((creates(&old), creates(&new)), ((0, 0), (1, 0)));
}

/// Goal: a refusal that points to who led before is not followed, and believed by nobody.
#[tokio::test]
async fn f06_a_refusal_that_points_back_is_not_followed() {
    let (old, new) = two().await;
    new.route_at(1, 6, &new.address);
    let client = client(&[&new.address], PATIENT);
    begin(&client, &key()).await;
    new.behave(Behaviour::NotLeader(old.address.clone(), 5));
    let err = begun(&client).await.expect_err("refused");
    assert_eq!(err.reason(), Some(Reason::NotLeader));
    new.behave(Behaviour::Answer);
    begin(&client, &key()).await;
    assert_eq!((creates(&old), creates(&new)), ((0, 0), (3, 0)));
}

/// Goal: a word without an epoch is heeded by who has nothing better: the leader is out of reach,
/// or says itself that it does not lead. The epochs that were heard of stay in force.
#[tokio::test]
async fn f06_an_address_without_an_epoch_stands_in_for_a_leader_out_of_reach() {
    for refuses in [false, true] {
        let (seed, old, lost, new) = (
            Fake::start().await,
            Fake::start().await,
            Fake::start().await,
            Fake::start().await,
        );
        seed.route_at(1, 6, &lost.address);
        let client = client(&[&seed.address], PATIENT);
        begin(&client, &key()).await;
        seed.route_at(1, 0, &new.address);
        assert_eq!(led_at(&client).await, lost.address, "it ranks below");
        if refuses {
            // The standby that will lead, as a leader names it that hands over.
            lost.behave(Behaviour::NotLeader(new.address.clone(), 0));
            begin(&client, &key()).await;
        } else {
            lost.behave(Behaviour::Reset);
            assert!(begun(&client).await.expect_err("reset").is_unreachable());
            poll("the word is heeded", async || begun(&client).await.ok()).await;
        }
        for (epoch, stale) in [(5, &old), (6, &lost)] {
            seed.route_at(1, epoch, &stale.address);
            assert_eq!(led_at(&client).await, new.address, "not back to {epoch}");
        }
        seed.route_at(1, 7, &new.address);
        assert_eq!(led_at(&client).await, new.address);
        seed.route_at(1, 0, &old.address);
        assert_eq!(led_at(&client).await, new.address, "now it has an epoch");
        assert_eq!(creates(&old), (0, 0));
    }
}

/// Goal: one failure leaves no lasting doubt in a leader that answers.
#[tokio::test]
async fn f06_a_leader_that_answers_again_is_believed_again() {
    let (seed, leader, other) = (
        Fake::start().await,
        Fake::start().await,
        Fake::start().await,
    );
    seed.route_at(1, 6, &leader.address);
    let client = client(&[&seed.address], PATIENT);
    leader.behave(Behaviour::Reset);
    assert!(begun(&client).await.expect_err("reset").is_unreachable());
    leader.behave(Behaviour::Answer);
    begin(&client, &key()).await;
    seed.route_at(1, 0, &other.address);
    assert_eq!(led_at(&client).await, leader.address);
}

/// Goal: who owns a slot is told by the newer table: that of a refusal is followed if it is newer
/// than the client's, and asked about if it is older.
#[tokio::test]
async fn f06_a_refusal_by_an_older_table_is_not_followed() {
    for (version, followed) in [(3, false), (5, true)] {
        let (asked, other) = two().await;
        asked.route_at(4, 6, &asked.address);
        let client = client(&[&asked.address], PATIENT);
        asked.behave(Behaviour::Misdirected(version, 1, other.address.clone()));
        let answer = begun(&client).await;
        assert_eq!(answer.is_ok(), followed, "{version}: {answer:?}");
        let expected = if followed { (1, 0) } else { (0, 0) };
        assert_eq!((creates(&asked), creates(&other)), ((1, 0), expected));
    }
}

/// Goal: a leader that left, and that no table names any more, is a definite answer.
#[tokio::test]
async fn f06_a_leader_out_of_reach_that_no_table_names_is_no_route() {
    let (seed, gone) = (Fake::start().await, closed());
    seed.route_at(1, 6, &gone);
    let client = client(&[&seed.address], PATIENT);
    assert_eq!(led_at(&client).await, gone);
    seed.route_at(1, 0, "");
    assert_eq!(led_at(&client).await, gone, "nothing speaks against it yet");
    let no_route = poll("it is given up", async || {
        let err = begun(&client).await.expect_err("nobody leads");
        (err.kind() == ErrorKind::Unavailable).then_some(err)
    });
    assert_eq!(no_route.await.reason(), Some(Reason::NotReady));
    // And what was heard before stays.
    let new = Fake::start().await;
    seed.route_at(1, 5, &closed());
    assert_eq!(led_at(&client).await, "");
    seed.route_at(1, 7, &new.address);
    begin(&client, &key()).await;
}

/// Goal: the first seed that answers hides no other one that knows better.
/// Method: the better one answers only when the answer of the other was heard.
#[tokio::test]
async fn f06_a_stale_seed_that_answers_first_hides_no_better_one() {
    let (stale, fresh, lost, new) = (
        Fake::start().await,
        Fake::start().await,
        Fake::start().await,
        Fake::start().await,
    );
    for seed in [&stale, &fresh] {
        seed.route_at(1, 5, &lost.address);
    }
    let client = client(&[&stale.address, &fresh.address], PATIENT);
    assert_eq!(led_at(&client).await, lost.address);
    stale.route_at(2, 5, &lost.address);
    fresh.route_at(3, 6, &new.address);
    fresh.hold_routing(true);
    lost.behave(Behaviour::Reset);
    let heard = |fake: &Fake| fake.counts.routings.load(Ordering::SeqCst);
    let before = heard(&fresh);
    assert!(begun(&client).await.expect_err("reset").is_unreachable());
    let adopted = |version: u64| {
        let (client, version) = (client.clone(), format!("version: {version}"));
        async move || format!("{client:?}").contains(&version).then_some(())
    };
    poll("the stale one is heard", adopted(2)).await;
    poll("the other one is asked", async || {
        (heard(&fresh) > before).then_some(())
    })
    .await;
    fresh.hold_routing(false);
    // Without another call, which would start another refresh.
    poll("the better one is heard", adopted(3)).await;
    begin(&client, &key()).await;
    assert_eq!(creates(&new), (1, 0));
}

/// Goal: who is dead, silent, or no shard is a typed error, as a seed and as a leader; nothing
/// hangs. Covers OPS-06.
#[tokio::test]
async fn f06_a_wrong_or_dead_server_is_a_typed_error() {
    let (silent, dead) = (hung(), closed());
    let web = tokio::net::TcpListener::bind("127.0.0.1:0").await;
    let web = web.expect("a port");
    let web_address = web.local_addr().expect("bound").to_string();
    tokio::spawn(async move {
        while let Ok((mut socket, _)) = web.accept().await {
            let answer = b"HTTP/1.1 400 Bad Request\r\n\r\n";
            let _ = tokio::io::AsyncWriteExt::write_all(&mut socket, answer).await;
        }
    });
    // Another service of gRPC, which knows no GetRouting.
    let other = tokio::net::TcpListener::bind("127.0.0.1:0").await;
    let other = other.expect("a port");
    let other_address = other.local_addr().expect("bound").to_string();
    tokio::spawn(
        tonic::transport::Server::builder()
            .add_routes(tonic::service::Routes::default())
            .serve_with_incoming(tokio_stream::wrappers::TcpListenerStream::new(other)),
    );
    for seed in [&silent.0, &dead, &web_address, &other_address] {
        // Long before the deadline: nobody needs it to know.
        let client = client(&[seed], 10 * PATIENT);
        let asked = tokio::time::timeout(PATIENT, begun(&client)).await;
        let err = asked.expect("it ends").expect_err("no shard");
        assert_eq!(
            (err.kind(), err.reason()),
            (ErrorKind::Unavailable, Some(Reason::NotReady)),
            "{seed}: {err}"
        );
    }
    // One that says where the shard is, and it is not there: that something was sent is possible.
    let seed = Fake::start().await;
    for (leader, reason) in [
        (&silent.0, Some(Reason::DeadlineExceeded)),
        (&dead, None),
        (&web_address, None),
        (&other_address, None),
    ] {
        seed.route(1, leader);
        let client = client(&[&seed.address], SHORT);
        let asked = tokio::time::timeout(PATIENT, begun(&client)).await;
        let err = asked.expect("it ends").expect_err("no shard");
        assert_eq!(
            (err.kind(), err.reason()),
            (ErrorKind::Unknown, reason),
            "{leader}: {err}"
        );
        let stream = async {
            let mut stream = client.stream_creates(Slot(0), 1).await?;
            stream.begin(&key(), &REQUEST).await?;
            stream.next().await.map(drop)
        };
        let asked = tokio::time::timeout(PATIENT, stream).await;
        let err = asked.expect("it ends").expect_err("no shard");
        assert_eq!(err.kind(), ErrorKind::Unknown, "{leader}: {err}");
    }
}
