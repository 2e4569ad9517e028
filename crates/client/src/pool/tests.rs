//! Places on connections, and waiting for one.

use std::pin::Pin;
use std::task::{Context, Poll, Waker};

use ostraca_types::{ErrorKind, Reason};

use super::*;

/// Looks at a call for a place once.
fn polled<F: Future>(waiting: &mut Pin<Box<F>>) -> Poll<F::Output> {
    waiting
        .as_mut()
        .poll(&mut Context::from_waker(Waker::noop()))
}

#[tokio::test]
async fn calls_spread_and_none_is_over_the_limit_of_its_connection() {
    let peer = Peer::new("127.0.0.1:1").expect("an address");
    let one = peer.place().await.expect("a place");
    assert_eq!(one.nth, 0, "one call at a time needs one connection");
    drop(one);
    let mut places = Vec::new();
    for taken in 1..=PLACES {
        places.push(peer.place().await.expect("a place"));
        let load = |nth: usize| peer.connections[nth].in_flight.load(Ordering::Relaxed);
        let loads: Vec<_> = (0..CONNECTIONS).map(load).collect();
        let (least, most) = (loads.iter().min(), loads.iter().max());
        assert!(
            most.zip(least)
                .is_some_and(|(most, least)| most - least <= 1),
            "{loads:?}"
        );
        assert_eq!(loads.iter().sum::<usize>(), taken);
    }
    let mut waiting = Box::pin(peer.place());
    assert!(polled(&mut waiting).is_pending());
    let freed = places.swap_remove(7);
    let nth = freed.nth;
    drop(freed);
    let place = waiting.await.expect("a place");
    assert_eq!(place.nth, nth, "where there is room");
    drop(place);
    drop(places);
    assert_eq!(peer.places.available_permits(), PLACES);
}

#[tokio::test]
async fn a_connection_is_given_up_once_and_only_if_it_was_silent() {
    let peer = Peer::new("127.0.0.1:1").expect("an address");
    let one = peer.place().await.expect("a place");
    let mut others = Vec::new();
    for _ in 1..CONNECTIONS {
        others.push(peer.place().await.expect("a place"));
    }
    let same = peer.place().await.expect("a place");
    assert_eq!((one.nth, same.nth), (0, 0));
    let line = || Arc::clone(&peer.connections[0].line.read());
    same.answered();
    one.unanswered();
    assert!(Arc::ptr_eq(&line(), &one.line), "its other end is there");
    one.give_up();
    let fresh = line();
    assert!(!Arc::ptr_eq(&fresh, &one.line));
    same.give_up();
    assert!(Arc::ptr_eq(&line(), &fresh), "for all calls on it at once");
    drop((one, same, others));
    let later = peer.place().await.expect("a place");
    later.unanswered();
    assert!(!Arc::ptr_eq(&line(), &fresh), "it was silent");
}

/// Goal: calls that pile up before a shard that hangs are bounded: one more is refused at once,
/// definitely and as an overloaded shard would, and whoever gives up makes room.
#[tokio::test]
async fn l01_calls_that_wait_for_a_place_are_bounded() {
    let peer = Peer::new("127.0.0.1:1").expect("an address");
    let mut places = Vec::new();
    for _ in 0..PLACES {
        places.push(peer.place().await.expect("a place"));
    }
    let mut waiting: Vec<_> = (0..WAITING_MAX).map(|_| Box::pin(peer.place())).collect();
    for one in &mut waiting {
        assert!(polled(one).is_pending());
    }
    let refused = |polled| match polled {
        Poll::Ready(Err(err)) => err,
        Poll::Ready(Ok(_)) => panic!("a place"),
        Poll::Pending => panic!("it waits"),
    };
    let err: Error = refused(polled(&mut Box::pin(peer.place())));
    assert_eq!(
        (err.kind(), err.reason()),
        (ErrorKind::Busy, Some(Reason::Overloaded))
    );
    assert!(err.retry_after().is_some(), "{err}");

    // One that gives up, and one that gets a place.
    drop(waiting.pop());
    places.pop();
    let first = waiting.remove(0).await.expect("a place");
    let mut later: Vec<_> = (0..3).map(|_| Box::pin(peer.place())).collect();
    assert!(polled(&mut later[0]).is_pending());
    assert!(polled(&mut later[1]).is_pending());
    refused(polled(&mut later[2]));
    drop((first, waiting, later, places));
    assert_eq!(peer.waiters.0.load(Ordering::Relaxed), 0);
    assert_eq!(peer.places.available_permits(), PLACES);
}
