//! The engine alone, on a real disk: how long one create takes from proposal to answer.
//!
//! `cargo bench -p ostraca-benches` measures it beside a raw loop of equal writes and syncs on an
//! equally laid out file in the same directory. Expected: the sync decides, about 150 µs.

#![allow(clippy::disallowed_methods, missing_docs, reason = "a benchmark")]

use std::sync::{Arc, mpsc};
use std::time::Duration;

use criterion::{Criterion, criterion_group, criterion_main};
use ostraca_benches::create;
use ostraca_engine::{EPOCH_PAGE, Identity, Options, Shard, new_epoch_page};
use ostraca_io::{
    Disk as _, DiskFile as _, FileName, Page, RealDisk, RealPage, SystemClock, SystemEntropy,
};
use ostraca_types::{ShardId, StoreId};

const LIFETIME: Duration = Duration::from_secs(3600);

fn one_client(c: &mut Criterion) {
    let mut group = c.benchmark_group("one client");
    let dir = tempfile::tempdir_in(env!("CARGO_TARGET_TMPDIR")).expect("a directory");

    let disk = RealDisk::open(dir.path()).expect("the directory");
    let name = FileName::new("raw").expect("a name");
    let file = disk.create(&name).expect("a file");
    let size = 64 << 20;
    for offset in (0..size).step_by(1 << 20) {
        file.write_all_at(&[0; 1 << 20], offset).expect("written");
    }
    file.sync_all().expect("synced");
    let mut offset = 0;
    group.bench_function("raw 512 B write + fdatasync", |b| {
        b.iter(|| {
            file.write_all_at(&[1; 512], offset).expect("written");
            file.sync_data().expect("synced");
            offset = (offset + 512) % size;
        });
    });

    let log = dir.path().join("log");
    ostraca_io::files::create_dir_durable(&log, 0o755).expect("a directory");
    let identity = Identity {
        store: StoreId([1; 16]),
        shard: ShardId(0),
    };
    let page = dir.path().join(EPOCH_PAGE);
    ostraca_io::files::create_durable(&page, &new_epoch_page(&identity), 0o600).expect("made");
    let page: Arc<dyn Page> = Arc::new(RealPage::open(&page).expect("just made"));
    let (shard, thread, _) = Shard::open(
        RealDisk::open(&log).expect("the directory"),
        &page,
        identity,
        Arc::new(SystemClock::new().expect("a clock")),
        &SystemEntropy,
        &Options::default(),
    )
    .expect("opened");
    group.bench_function("create", |b| {
        b.iter(|| {
            let (sender, receiver) = mpsc::sync_channel(1);
            let reply = Box::new(move |answer| drop(sender.send(answer)));
            shard
                .create(create(shard.now(), LIFETIME), reply)
                .expect("queued");
            receiver.recv().expect("an answer").expect("committed")
        });
    });
    shard.close();
    thread.join().expect("closed");
    group.finish();
}

criterion_group!(benches, one_client);
criterion_main!(benches);
