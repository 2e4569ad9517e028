//! The connections to one shard.

use std::sync::atomic::Ordering;

use crate::fake::{Behaviour, Fake, REQUEST, begin, client, creates, key};
use crate::{PATIENT, SHORT};
use ostraca_types::{Reason, Slot};

pub(crate) fn connections(fake: &Fake) -> usize {
    fake.counts.connections.load(Ordering::SeqCst)
}

/// Goal: bulk and calls do not share a connection.
#[tokio::test]
async fn a_stream_has_a_connection_of_its_own() {
    let fake = Fake::start().await;
    let client = client(&[&fake.address], PATIENT);
    begin(&client, &key()).await;
    let before = connections(&fake);
    for more in 1..=2 {
        let mut stream = client.stream_creates(Slot(0), 1).await.expect("a stream");
        stream.begin(&key(), &REQUEST).await.expect("sent");
        stream.next().await.expect("an answer");
        assert_eq!(connections(&fake), before + more);
        begin(&client, &key()).await;
    }
    assert_eq!(connections(&fake), before + 2, "calls need no more");
}

/// Goal: the call after one that failed has a fresh connection; the failed one is not sent again.
/// Method: the connection breaks, or nothing comes through it any more.
#[tokio::test]
async fn k17_the_call_after_a_failure_has_a_fresh_connection() {
    for silent in [false, true] {
        let fake = Fake::start().await;
        let client = client(&[&fake.address], if silent { SHORT } else { PATIENT });
        begin(&client, &key()).await;
        let before = connections(&fake);
        let expected = if silent {
            fake.silence();
            Some(Reason::DeadlineExceeded)
        } else {
            fake.behave(Behaviour::Reset);
            None
        };
        let failed = client.begin_create(&key(), &REQUEST).await;
        assert_eq!(failed.expect_err("it fails").reason(), expected);
        let arrived = if silent { 1 } else { 2 };
        assert_eq!(creates(&fake), (arrived, 0));
        fake.behave(Behaviour::Answer);
        begin(&client, &key()).await;
        assert_eq!(creates(&fake), (arrived + 1, 0));
        assert!(connections(&fake) > before);
    }
}
