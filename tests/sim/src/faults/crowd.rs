//! More callers than a shard can take, who fill its queue, and its segments.

use std::time::Duration;

use ostraca_engine::{Command, Deliver, Shard};
use ostraca_io::{Disk as _, SimDisk};
use ostraca_types::ConsumerName;

use crate::kernel::{Kernel, SECOND};

/// As many as the queue holds, and some more.
const CALLERS_MAX: u64 = 9_500;
const CALLERS_MIN: u64 = 6_000;

/// They come all at once, and nobody waits for an answer: they ask for the messages of a consumer that
/// is not registered, which changes nothing and is in the log all the same.
pub(super) fn comes(kernel: &Kernel, shard: &Shard) {
    let callers = kernel.chance.within(CALLERS_MIN, CALLERS_MAX);
    let consumer = ConsumerName::parse("whoever-comes-to-see-what-it-is").expect("a name");
    for _ in 0..callers {
        let deliver = Deliver {
            consumer: consumer.clone(),
            max: 1,
            visibility: Duration::from_secs(1),
            jitter: 0,
        };
        let queued = shard.deliver(Command::Deliver(deliver), Box::new(|_| {}));
        if queued.is_err() {
            kernel.count("queue full");
            return;
        }
    }
}

/// The disk has room for what is there and little more, for a while.
pub(super) fn fills_the_disk(kernel: &Kernel, disk: SimDisk) {
    let files = disk.list().unwrap_or_default();
    let sizes = files.iter().filter_map(|name| disk.contents(name));
    let used: usize = sizes.map(|bytes| bytes.len()).sum();
    disk.set_capacity(used as u64 + kernel.chance.below(1 << 16));
    kernel.after(kernel.chance.within(SECOND, 4 * SECOND), move |_| {
        disk.set_capacity(u64::MAX);
    });
}
