//! What a router learns, and how often it asks.

use std::time::Duration;

use ostraca_types::ErrorKind;
use parking_lot::Mutex;
use tokio::time::Instant;

use super::fetch::PAUSE;
use super::*;

fn led_at(router: &Router, epoch: u64, address: &str) {
    let shard = v1::ShardRoute {
        shard: 0,
        address: address.to_owned(),
        slots: vec![3],
        epoch,
    };
    let table = v1::GetRoutingResponse {
        version: 1,
        shards: vec![shard],
        cluster_id: String::new(),
    };
    router.adopt("127.0.0.1:1", table).expect("a table");
}

/// Goal: a leader that hands over sends to its standby, though a table that was on its way names
/// the leader once more.
#[tokio::test]
async fn f06_a_refusal_is_followed_whatever_table_comes_in_between() {
    let router = Router::new(Seeds::Fixed(Vec::new()), None);
    led_at(&router, 1, "127.0.0.1:1");
    let from = router.known(Slot(3)).expect("led");
    let refusal = Error::from_failure(v1::Failure {
        code: tonic::Code::FailedPrecondition.into(),
        reason: Reason::NotLeader.as_str().to_owned(),
        message: String::new(),
        retry_delay_ms: 0,
        metadata: [("shard", "0"), ("address", "127.0.0.1:2")]
            .map(|(name, value)| (name.to_owned(), value.to_owned()))
            .into(),
    });
    router.learn(&from, &refusal);
    led_at(&router, 2, "127.0.0.1:1");
    let route = router.reroute(Slot(3), &from, refusal.clone()).await;
    assert!(route.expect("a route").is_at("127.0.0.1:2"));
    // Somebody who leads by a word with an epoch is asked rather than a hint.
    led_at(&router, 3, "127.0.0.1:3");
    let route = router.reroute(Slot(3), &from, refusal).await;
    assert!(route.expect("a route").is_at("127.0.0.1:3"));
}

/// Seeds that say when they were looked for: once in each fetch.
fn watched(addresses: &[&str]) -> (Router, Arc<Mutex<Vec<Instant>>>) {
    let fetches = Arc::new(Mutex::new(Vec::new()));
    let (seen, addresses) = (Arc::clone(&fetches), addresses.iter());
    let addresses: Vec<_> = addresses.map(|&address| address.to_owned()).collect();
    let ask = move || {
        seen.lock().push(Instant::now());
        addresses.clone()
    };
    (Router::new(Seeds::Ask(Arc::new(ask)), None), fetches)
}

fn pauses(fetches: &Mutex<Vec<Instant>>) -> Vec<Duration> {
    let fetches = fetches.lock();
    fetches.windows(2).map(|two| two[1] - two[0]).collect()
}

/// Goal: a leader who is not there is not asked for as often as calls fail.
#[tokio::test(start_paused = true)]
async fn f06_fetches_that_bring_nothing_have_pauses_between_them() {
    let (router, fetches) = watched(&[]);
    for calls in 1..=20 {
        let (one, two) = tokio::join!(router.route(Slot(0)), router.route(Slot(1)));
        for route in [one, two] {
            assert_eq!(route.expect_err("no seed").kind(), ErrorKind::Unavailable);
        }
        assert_eq!(fetches.lock().len(), calls, "both share one");
    }
    let pauses = pauses(&fetches);
    assert!(pauses.iter().all(|pause| *pause >= PAUSE), "{pauses:?}");
    assert!(pauses.iter().all(|pause| *pause < 2 * PAUSE), "{pauses:?}");
    // The pause is the caller's time too, and is over when that is.
    let started = Instant::now();
    let late = tokio::time::timeout(PAUSE / 2, router.route(Slot(0)));
    assert!(late.await.is_err(), "it waits");
    assert!(started.elapsed() < PAUSE);
}

/// Goal: whoever wants to see the table itself need not wait.
#[tokio::test(start_paused = true)]
async fn a_refresh_makes_no_pause() {
    let (router, fetches) = watched(&[]);
    for calls in 1..=5 {
        let started = Instant::now();
        router.refresh().await.expect_err("no seed");
        assert!(started.elapsed() < PAUSE);
        assert_eq!(fetches.lock().len(), calls);
    }
}

/// Goal: a seed that is silent for as long as it may be holds up no fetch that much.
/// Method: the kernel accepts connections for it, as it does for a process that is stopped.
#[tokio::test(start_paused = true)]
async fn f06_a_silent_seed_holds_up_no_later_fetch() {
    let silent = std::net::TcpListener::bind("127.0.0.1:0").expect("a port");
    let address = silent.local_addr().expect("bound").to_string();
    let (router, fetches) = watched(&[&address]);
    let first = async {
        router.route(Slot(0)).await.expect_err("silent");
    };
    let second = async {
        // By then the first one asks.
        tokio::time::sleep(PAUSE / 2).await;
        router.route(Slot(0)).await.expect_err("silent");
    };
    tokio::join!(first, second);
    let pauses = pauses(&fetches);
    assert_eq!(pauses.len(), 1, "one for each");
    assert!(pauses[0] >= PAUSE && pauses[0] < 2 * PAUSE, "{pauses:?}");
}

/// Goal: a client outlives the runtime in which it last fetched.
#[test]
fn f06_a_fetch_that_is_cut_off_is_not_the_last_one() {
    let silent = std::net::TcpListener::bind("127.0.0.1:0").expect("a port");
    let address = silent.local_addr().expect("bound").to_string();
    let router = Router::new(Seeds::Fixed(vec![address]), None);
    let runtime = || {
        let mut builder = tokio::runtime::Builder::new_current_thread();
        builder.enable_all().build().expect("a runtime")
    };
    let (first, second) = (runtime(), runtime());
    let asking = first.spawn({
        let router = router.clone();
        async move { router.route(Slot(0)).await.map(drop) }
    });
    // Until the seed is asked.
    let reached = first.block_on(async {
        silent.set_nonblocking(true).expect("a socket");
        loop {
            if let Ok((socket, _)) = silent.accept() {
                return socket;
            }
            tokio::time::sleep(Duration::from_millis(1)).await;
        }
    });
    // Another runtime's caller joins.
    let waits = second.spawn({
        let router = router.clone();
        async move { router.route(Slot(0)).await.map(drop) }
    });
    second.block_on(tokio::task::yield_now());
    drop((first, asking));
    let within = Duration::from_secs(120);
    // He asks himself, and finds the seed as silent as it is; so does whoever comes next.
    let ends = async { tokio::time::timeout(within, waits).await };
    let joined = second.block_on(ends).expect("it is told");
    let ends = async { tokio::time::timeout(within, router.route(Slot(0))).await };
    let next = second.block_on(ends).expect("it is told").map(drop);
    for told in [joined.expect("no panic"), next] {
        let err = told.expect_err("silent");
        assert_eq!(err.kind(), ErrorKind::Unavailable);
        assert!(err.message().contains("no answer"), "{err}");
    }
    drop(reached);
}

/// Goal: calls that wait to hear who leads are bounded by number, too.
#[tokio::test]
async fn l01_calls_that_wait_for_a_route_are_bounded() {
    let (router, fetches) = watched(&[]);
    let mut waiting: Vec<_> = std::iter::from_fn(|| router.0.fetches.waiters.one_more()).collect();
    let err = router.route(Slot(0)).await.expect_err("no room");
    assert_eq!(
        (err.kind(), err.reason()),
        (ErrorKind::Busy, Some(Reason::Overloaded))
    );
    assert!(fetches.lock().is_empty() && err.retry_after().is_some());
    waiting.pop();
    let err = router.route(Slot(0)).await.expect_err("no seeds");
    assert_eq!(err.kind(), ErrorKind::Unavailable);
    assert_eq!(fetches.lock().len(), 1);
}

/// Goal: connections are kept to seeds and leaders, and to nobody else.
#[tokio::test]
async fn connections_to_who_is_neither_seed_nor_leader_are_let_go_of() {
    let router = Router::new(Seeds::Fixed(Vec::new()), None);
    let set = |addresses: &[&str]| {
        let addresses = addresses.iter().map(|&it| it.to_owned()).collect();
        let (peers, wrong) = router.0.table.write().set_seeds(addresses);
        assert!(wrong.is_none());
        peers.iter().map(Arc::downgrade).collect::<Vec<_>>()
    };
    let (one, two, three) = ("127.0.0.1:1", "127.0.0.1:2", "127.0.0.1:3");
    let first = set(&[one, two, three, three]);
    assert_eq!(first.len(), 3, "each once");
    led_at(&router, 1, two);
    let again = set(&[one]);
    assert!(again[0].ptr_eq(&first[0]), "kept");
    assert!(first[1].upgrade().is_some(), "it leads");
    assert!(first[2].upgrade().is_none());
    let leads = set(&[two]);
    assert!(leads[0].ptr_eq(&first[1]), "the leader's are a seed's too");
    assert!(first[0].upgrade().is_none());
    led_at(&router, 2, one);
    set(&[]);
    assert!(first[1].upgrade().is_none());
}
