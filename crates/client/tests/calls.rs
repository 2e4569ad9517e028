//! Calls against shards that fail: what is sent how often, and where to.

mod connections;
mod fake;
mod fetches;
mod routing;

use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use fake::{
    Behaviour, Fake, REQUEST, TITLE, begin, client, closed, commit, creates, hung, key, paste, poll,
};
use ostraca_client::{Begun, Client, Options, Seeds, StreamAnswer};
use ostraca_types::{ErrorKind, Reason, Slot};
use tonic::Code;

/// Beyond this a test is not about waiting.
const PATIENT: Duration = Duration::from_secs(10);
/// For calls that are to miss it.
const SHORT: Duration = Duration::from_millis(300);

/// Goal: the library sends a create once, however it fails. Covers IDEM-21.
/// Method: every way to fail, for both steps; a repetition would be counted, also one that comes
/// with the next call.
#[tokio::test]
async fn k17_a_create_is_sent_once_whatever_happens() {
    let unknown = (ErrorKind::Unknown, Some(Reason::OutcomeUnknown));
    let late = (ErrorKind::Unknown, Some(Reason::DeadlineExceeded));
    let refuse = Behaviour::Refuse;
    let cases = [
        (Behaviour::Unavailable, (ErrorKind::Unknown, None)),
        (Behaviour::Reset, (ErrorKind::Unknown, None)),
        (Behaviour::Hang, late),
        (refuse(Code::Unavailable, Reason::OutcomeUnknown), unknown),
        (
            refuse(Code::Unavailable, Reason::NotReady),
            (ErrorKind::Unavailable, Some(Reason::NotReady)),
        ),
        (
            refuse(Code::ResourceExhausted, Reason::Overloaded),
            (ErrorKind::Busy, Some(Reason::Overloaded)),
        ),
        (
            refuse(Code::DeadlineExceeded, Reason::DeadlineExceeded),
            late,
        ),
    ];
    for (behaviour, expected) in cases {
        let fake = Fake::start().await;
        let deadline = match behaviour {
            Behaviour::Hang => SHORT,
            _ => PATIENT,
        };
        let (client, key) = (client(&[&fake.address], deadline), key());
        let ticket = begin(&client, &key).await;
        assert_eq!(creates(&fake), (1, 0));

        fake.behave(behaviour.clone());
        let begun = client.begin_create(&key, &REQUEST).await;
        let err = begun.expect_err("it fails");
        assert_eq!((err.kind(), err.reason()), expected, "{behaviour:?}: {err}");
        assert_eq!(creates(&fake), (2, 0), "{behaviour:?}: begins, commits");

        let committed = commit(&client, &key, &ticket).await;
        let err = committed.expect_err("it fails");
        assert_eq!((err.kind(), err.reason()), expected, "{behaviour:?}: {err}");
        assert_eq!(creates(&fake), (2, 1), "{behaviour:?}: begins, commits");

        // Whoever wants it twice says so.
        fake.behave(Behaviour::Answer);
        let committed = commit(&client, &key, &ticket).await;
        committed.expect("answered");
        assert_eq!(creates(&fake), (2, 2), "{behaviour:?}: begins, commits");
    }
}

/// Goal: a shard that nobody reaches gets nothing, and what is told is that.
#[tokio::test]
async fn k17_a_refused_connection_is_not_tried_again() {
    let fake = Fake::start().await;
    fake.route(1, &closed());
    let client = client(&[&fake.address], PATIENT);
    let err = client.begin_create(&key(), &REQUEST).await;
    assert!(err.expect_err("nobody listens").is_unreachable());
    assert_eq!(creates(&fake), (0, 0), "nor does it go elsewhere");
}

/// Goal: a definite "wrong shard" is followed once, to where it points.
#[tokio::test]
async fn k17_a_create_is_sent_exactly_twice_after_a_wrong_shard() {
    for named in [true, false] {
        let (old, new) = (Fake::start().await, Fake::start().await);
        let (client, key) = (client(&[&old.address], PATIENT), key());
        let ticket = begin(&client, &key).await;
        // Without an address in the refusal, a fresh table says where.
        let address = named.then(|| new.address.clone());
        old.behave(Behaviour::WrongShard(address));
        if !named {
            old.route(2, &new.address);
        }
        let committed = commit(&client, &key, &ticket).await;
        committed.expect("the other one answers");
        assert_eq!((creates(&old), creates(&new)), ((1, 1), (0, 1)), "{named}");
    }
}

/// Goal: and not more often, though the other one refuses as well.
#[tokio::test]
async fn k17_two_wrong_shards_end_a_call() {
    let (one, two) = (Fake::start().await, Fake::start().await);
    let client = client(&[&one.address], PATIENT);
    one.behave(Behaviour::WrongShard(Some(two.address.clone())));
    two.behave(Behaviour::WrongShard(Some(one.address.clone())));
    let err = client.begin_create(&key(), &REQUEST).await;
    assert_eq!(err.expect_err("refused").kind(), ErrorKind::NotLeader);
    assert_eq!((creates(&one), creates(&two)), ((1, 0), (1, 0)));
}

/// Goal: after the one resend everything is as before: an unknown outcome stays one.
#[tokio::test]
async fn k17_the_resend_is_not_repeated_either() {
    let (old, new) = (Fake::start().await, Fake::start().await);
    let client = client(&[&old.address], PATIENT);
    old.behave(Behaviour::WrongShard(Some(new.address.clone())));
    new.behave(Behaviour::Reset);
    let err = client.begin_create(&key(), &REQUEST).await;
    assert!(err.expect_err("reset").is_unreachable());
    assert_eq!((creates(&old), creates(&new)), ((1, 0), (1, 0)));
}

async fn is_led_by(client: &Client, address: &str) -> bool {
    let shards = client.shards().await.expect("a table");
    shards.iter().any(|shard| shard.address == address)
}

/// Goal: a route to a shard that moved is refreshed, whatever a call met there.
/// Method: the cached table names one that is gone, hangs or does not lead; the seed knows better.
#[tokio::test]
async fn f06_a_stale_route_is_refreshed() {
    let stopped = hung();
    let not_leading = Fake::start().await;
    not_leading.behave(Behaviour::WrongShard(None));
    for old in [&closed(), &stopped.0, &not_leading.address] {
        let (seed, new) = (Fake::start().await, Fake::start().await);
        seed.route(1, old);
        let client = client(&[&seed.address], 2 * SHORT);
        assert!(is_led_by(&client, old).await);
        seed.route(1, &new.address);
        let arrived = poll("the new route is learnt", async || {
            client.begin_create(&key(), &REQUEST).await.ok()
        });
        assert!(matches!(arrived.await, Begun::New(_)));
        assert_eq!(creates(&new), (1, 0), "{old}");
    }
}

/// Goal: the same for streams, which hold on to the route that they were opened with.
#[tokio::test]
async fn f06_streams_learn_a_new_route() {
    let stopped = hung();
    let not_leading = Fake::start().await;
    not_leading.behave(Behaviour::WrongShard(None));
    for old in [&closed(), &stopped.0, &not_leading.address] {
        let (seed, new) = (Fake::start().await, Fake::start().await);
        seed.route(1, old);
        let client = client(&[&seed.address], 2 * SHORT);
        assert!(is_led_by(&client, old).await);
        seed.route(1, &new.address);
        poll("a stream to the new leader", async || {
            let mut stream = client.stream_creates(Slot(0), 1).await.ok()?;
            let tag = stream.begin(&key(), &REQUEST).await.ok()?;
            let (answered, answer) = stream.next().await.ok()?;
            assert_eq!(answered, tag);
            match answer {
                StreamAnswer::Begun(Ok(Begun::New(_))) => Some(()),
                StreamAnswer::Begun(Err(err)) => {
                    assert_eq!(err.reason(), Some(Reason::WrongShard));
                    None
                }
                other => panic!("{other:?}"),
            }
        })
        .await;
    }
}

/// Goal: a stream that breaks is told as broken, and the next one finds the new leader.
#[tokio::test]
async fn f06_a_broken_stream_refreshes_its_route() {
    let (old, new, seed) = (
        Fake::start().await,
        Fake::start().await,
        Fake::start().await,
    );
    seed.route(1, &old.address);
    let client = client(&[&seed.address], PATIENT);
    old.behave(Behaviour::Hang);
    let mut stream = client.stream_creates(Slot(0), 1).await.expect("a stream");
    stream.begin(&key(), &REQUEST).await.expect("sent");
    seed.route(2, &new.address);
    old.reset();
    assert!(stream.next().await.expect_err("broken").is_unreachable());
    // No other call tells the client that something is wrong.
    poll("the new table is fetched", async || {
        (seed.counts.routings.load(Ordering::SeqCst) == 2).then_some(())
    })
    .await;
    poll("the new leader is known", async || {
        client.begin_create(&key(), &REQUEST).await.ok()
    })
    .await;
    assert_eq!(creates(&new), (1, 0));
}

/// Goal: a table that is older than the one that is known is not believed.
#[tokio::test]
async fn f06_an_older_table_is_not_trusted() {
    let (fresh, stale) = (Fake::start().await, Fake::start().await);
    fresh.route(5, &fresh.address);
    stale.route(4, &stale.address);
    let knows = client(&[&fresh.address], PATIENT);
    assert!(is_led_by(&knows, &fresh.address).await);
    fresh.route(4, &stale.address);
    let err = knows.shards().await.expect_err("an older one");
    assert_eq!(err.kind(), ErrorKind::Unavailable, "{err}");
    knows.begin_create(&key(), &REQUEST).await.expect("routed");
    assert_eq!((creates(&fresh), creates(&stale)), ((1, 0), (0, 0)));
}

/// Goal: a seed that hangs, or is gone, hides no other one.
/// Method: the kernel accepts connections for the one that hangs, as for a stopped process.
#[tokio::test]
async fn f06_a_hung_seed_does_not_block_routing() {
    let (stopped, fake) = (hung(), Fake::start().await);
    let gone = closed();
    let seeds = [
        stopped.0.as_str(),
        "not an address",
        gone.as_str(),
        fake.address.as_str(),
    ];
    let client = client(&seeds, PATIENT);
    let started = tokio::time::Instant::now();
    begin(&client, &key()).await;
    // One that waited for the first seed would take a second at least.
    assert!(started.elapsed() < Duration::from_millis(900));
}

/// Goal: no route is a definite answer, told before the deadline makes it an unknown one.
#[tokio::test]
async fn k17_seeds_that_all_hang_are_no_route() {
    let stopped = hung();
    let client = client(&[&stopped.0], PATIENT);
    let err = client.begin_create(&key(), &REQUEST).await;
    let err = err.expect_err("no table");
    assert_eq!(
        (err.kind(), err.reason()),
        (ErrorKind::Unavailable, Some(Reason::NotReady)),
        "{err}"
    );
}

/// Goal: asking for the table opens no connection to a shard that has one.
#[tokio::test]
async fn a_refresh_uses_the_connections_that_there_are() {
    let fake = Fake::start().await;
    let client = client(&[&fake.address], PATIENT);
    begin(&client, &key()).await;
    let connections = || fake.counts.connections.load(Ordering::SeqCst);
    // The seed was not known for a shard yet.
    let before = connections();
    assert!(before <= 2, "{before}");
    for _ in 0..5 {
        client.shards().await.expect("a table");
    }
    assert_eq!(fake.counts.routings.load(Ordering::SeqCst), 6);
    assert_eq!(connections(), before);
}

/// Goal: whoever looks for seeds in a file does not hold up the calls of others.
/// Method: one thread for all tasks; the search ends only when another task says so.
#[tokio::test]
async fn seeds_are_looked_for_where_blocking_is_allowed() {
    let fake = Fake::start().await;
    let (found, waits) = std::sync::mpsc::sync_channel(1);
    let (waits, address) = (std::sync::Mutex::new(waits), fake.address.clone());
    let ask = move || {
        let waits = waits.lock().expect("no panic");
        match waits.recv_timeout(Duration::from_secs(2)) {
            Ok(()) => vec![address.clone()],
            Err(_) => Vec::new(),
        }
    };
    let seeds = Seeds::Ask(Arc::new(ask));
    assert_eq!(
        format!("{seeds:?}"),
        "Ask(..)",
        "it is not asked to be shown"
    );
    let client = Client::new(Options::new(seeds));
    let (key, other) = (key(), async move {
        tokio::task::yield_now().await;
        found.send(()).expect("it waits");
    });
    let (begun, ()) = tokio::join!(client.begin_create(&key, &REQUEST), other);
    begun.expect("the seed is found");
}

/// Goal: a shard that is silent does not hold a stream's caller: each call has the deadline.
#[tokio::test]
async fn a_streams_answers_have_a_deadline() {
    let fake = Fake::start().await;
    let client = client(&[&fake.address], SHORT);
    begin(&client, &key()).await;
    fake.behave(Behaviour::Hang);
    let mut stream = client.stream_creates(Slot(0), 8).await.expect("a stream");
    let late = |err: ostraca_client::Error| (err.kind(), err.reason());
    let expected = (ErrorKind::Unknown, Some(Reason::DeadlineExceeded));
    let started = tokio::time::Instant::now();
    let nothing = tokio::time::timeout(PATIENT, stream.next()).await;
    let nothing = nothing.expect("bounded").expect_err("nothing was asked");
    assert_eq!(late(nothing), expected);

    let mut stream = client.stream_creates(Slot(0), 8).await.expect("a stream");
    let ticket = begin_by(&fake, &client).await;
    stream
        .commit(&key(), &REQUEST, &ticket, &paste())
        .await
        .expect("sent");
    let silent = tokio::time::timeout(PATIENT, stream.next()).await;
    let silent = silent.expect("bounded").expect_err("nobody answers");
    assert_eq!(late(silent), expected);
    assert!(started.elapsed() >= SHORT, "it did wait");
}

/// A ticket, whatever the fake does otherwise.
async fn begin_by(fake: &Fake, client: &Client) -> ostraca_client::Ticket {
    fake.behave(Behaviour::Answer);
    let ticket = begin(client, &key()).await;
    fake.behave(Behaviour::Hang);
    ticket
}

/// Goal: the deadline is each call's own, not that of the wait for any answer: one that stays
/// unanswered is told although others are answered all the time.
#[tokio::test]
async fn a_streams_deadline_is_that_of_its_oldest_call() {
    let fake = Fake::start().await;
    let client = client(&[&fake.address], SHORT);
    let ticket = begin(&client, &key()).await;
    fake.behave(Behaviour::HangCommits);
    let mut stream = client.stream_creates(Slot(0), 8).await.expect("a stream");
    let committed = stream.commit(&key(), &REQUEST, &ticket, &paste()).await;
    committed.expect("sent");
    let answered = async {
        loop {
            stream.begin(&key(), &REQUEST).await.expect("sent");
            if let Err(err) = stream.next().await {
                return err;
            }
            tokio::time::sleep(SHORT / 10).await;
        }
    };
    let late = tokio::time::timeout(PATIENT, answered).await;
    let late = late.expect("the commit's deadline");
    assert_eq!(late.reason(), Some(Reason::DeadlineExceeded));
}

/// Goal: a caller that comes late for an answer gets it.
#[tokio::test]
async fn a_streams_answer_that_came_in_time_is_given_out_later() {
    let fake = Fake::start().await;
    let client = client(&[&fake.address], SHORT);
    let mut stream = client.stream_creates(Slot(0), 8).await.expect("a stream");
    let tag = stream.begin(&key(), &REQUEST).await.expect("sent");
    // Longer than its deadline: the test is about that.
    tokio::time::sleep(2 * SHORT).await;
    let (answered, answer) = stream.next().await.expect("it has come");
    assert_eq!(answered, tag);
    assert!(matches!(answer, StreamAnswer::Begun(Ok(_))), "{answer:?}");
}

/// Goal: a caller that asks for too much hears so; nothing is sent, and the stream goes on.
#[tokio::test]
async fn a_full_stream_is_an_error_and_no_panic() {
    let fake = Fake::start().await;
    let client = client(&[&fake.address], PATIENT);
    let mut none = client.stream_creates(Slot(0), 0).await.expect("a stream");
    assert_eq!(
        none.begin(&key(), &REQUEST).await.expect_err("full").kind(),
        ErrorKind::Busy
    );
    let mut stream = client.stream_creates(Slot(0), 2).await.expect("a stream");
    for _ in 0..3 {
        let tags = [
            stream.begin(&key(), &REQUEST).await.expect("sent"),
            stream.begin(&key(), &REQUEST).await.expect("sent"),
        ];
        let full = stream.begin(&key(), &REQUEST).await.expect_err("full");
        assert_eq!(
            (full.kind(), full.reason(), full.retry_after()),
            (ErrorKind::Busy, None, None),
            "{full}"
        );
        assert_eq!(stream.in_flight(), 2);
        let ticket = begin(&client, &key()).await;
        let commit = stream.commit(&key(), &REQUEST, &ticket, &paste()).await;
        assert_eq!(commit.expect_err("full").kind(), ErrorKind::Busy);
        for tag in tags {
            assert_eq!(stream.next().await.expect("an answer").0, tag);
        }
    }
}

/// Goal: nothing that this library hands out prints a secret or what a client wrote.
#[tokio::test]
async fn k16_no_debug_print_has_a_secret() {
    let fake = Fake::start().await;
    let client = client(&[&fake.address], PATIENT);
    let key = key();
    let ticket = begin(&client, &key).await;
    let answer = commit(&client, &key, &ticket).await.expect("answered");
    let mut stream = client.stream_creates(Slot(0), 1).await.expect("a stream");
    stream
        .commit(&key, &REQUEST, &ticket, &paste())
        .await
        .expect("sent");
    let unanswered = format!("{stream:?}");
    let (_, by_stream) = stream.next().await.expect("an answer");
    let StreamAnswer::Committed(Ok(streamed)) = &by_stream else {
        panic!("{by_stream:?}")
    };
    fake.behave(Behaviour::Refuse(Code::AlreadyExists, Reason::KeyReused));
    let err = client.begin_create(&key, &REQUEST).await;
    let err = err.expect_err("refused");
    let all = format!(
        "{key:?} {ticket:?} {answer:?} {by_stream:?} {unanswered} {err:?} {err} {client:?} {:?} {:?}",
        paste(),
        Begun::Stored(answer.clone()),
    );
    for secret in [
        key.expose_text(),
        answer.delete_token.expose_text(),
        streamed.delete_token.expose_text(),
        TITLE.to_owned(),
        // The ticket, as text and as Debug shows bytes.
        "\"ticket\"".to_owned(),
        format!("{:?}", b"ticket"),
    ] {
        assert!(!all.contains(&secret), "{secret} in {all}");
    }
    assert!(all.contains(ticket.paste_id.as_str()), "it shows something");
}
