//! A shard whose thread panics, which is our own mistake: nobody waits for it from then on.

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::mpsc::{Receiver, SyncSender, sync_channel};

use super::*;

/// Far more than any answer takes.
const SOON: Duration = Duration::from_secs(30);

/// Queues a create, and does not wait for its answer.
fn begin(shard: &Shard, n: u8) -> Receiver<Result<Answer, Error>> {
    let (sender, receiver) = sync_channel(1);
    let reply: Reply = Box::new(move |answer| drop(sender.send(answer)));
    shard.create(Box::new(create(n)), reply).expect("queued");
    receiver
}

/// Queues a create whose reply holds the shard's thread until it is told to go on, and tells first
/// that it does.
fn hold(
    shard: &Shard,
    n: u8,
    then: impl FnOnce() + Send + 'static,
) -> (Receiver<()>, SyncSender<()>) {
    let ((holds, held), (go_on, told)) = (sync_channel(1), sync_channel::<()>(1));
    let reply: Reply = Box::new(move |_| {
        holds.send(()).expect("somebody waits");
        told.recv().expect("it is told");
        then();
    });
    shard.create(Box::new(create(n)), reply).expect("queued");
    (held, go_on)
}

/// Goal: whoever waits for a shard hears of its end, whatever ends it.
/// Method: a reply panics on the shard's thread, in the middle of a batch and before a full queue.
#[test]
fn w08_nobody_waits_for_a_shard_whose_thread_panicked() {
    let (clock, disk) = (ManualClock::new(START), SimDisk::new(1));
    let (shard, thread, _) = open(&disk, &clock).expect("new");
    let (held, go_on) = hold(&shard, 1, || ());
    held.recv_timeout(SOON).expect("the thread is held");
    // One batch, whose first answer ends the thread.
    let (falls, fall) = hold(&shard, 2, || panic!("a reply fell"));
    let of_the_batch = [begin(&shard, 3), begin(&shard, 4)];
    go_on.send(()).expect("it waits");
    falls.recv_timeout(SOON).expect("the batch is durable");
    let in_the_queue = [begin(&shard, 5), begin(&shard, 6)];
    fall.send(()).expect("it waits");

    for answer in of_the_batch {
        let answer = answer.recv_timeout(SOON).expect("it is told");
        assert_eq!(answer, Err(Error::Unknown), "they are durable");
    }
    for answer in in_the_queue {
        let answer = answer.recv_timeout(SOON).expect("it is told");
        assert_eq!(answer, Err(Error::Closed), "nothing was appended");
    }
    assert_eq!(
        ask(&shard, Command::Create(Box::new(create(7)))),
        Err(Error::Closed)
    );
    assert_eq!(shard.paste(&create(1).paste_id), Err(Error::Closed));
    let stopped_by = shard.status().stopped_by.expect("it stopped");
    assert!(stopped_by.contains("panicked"), "{stopped_by}");
    let panic = catch_unwind(AssertUnwindSafe(|| thread.join())).expect_err("it panicked");
    assert_eq!(panic.downcast_ref(), Some(&"a reply fell"));

    // What was said holds: the batch is there, and the queue's commands are not.
    let (shard, thread, _) = open(&disk.restarted(), &clock).expect("recovered");
    for (n, is_there) in [
        (1, true),
        (2, true),
        (3, true),
        (4, true),
        (5, false),
        (6, false),
    ] {
        let found = shard.paste(&create(n).paste_id).expect("open").is_some();
        assert_eq!(found, is_there, "{n}");
    }
    shard.close();
    thread.join().expect("closed");
}
