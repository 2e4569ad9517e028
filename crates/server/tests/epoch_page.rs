//! The file of a shard's epoch page is replaced under its processes, as by a person who lost it and
//! made it anew: nobody leads by a page that others do not look at.

mod held;

use std::path::{Path, PathBuf};

use held::{
    HeldStorage, REQUEST, Server, begin, begin_start_to, create, key, paste, start, until, within,
};
use ostraca_io::files::{self, Lock};
use ostraca_server::{Lead, ServeError, Standby};
use ostraca_types::ErrorKind;
use tokio::time::{Duration, Instant};

fn page_of(dir: &Path) -> PathBuf {
    dir.join("shard-0/epoch")
}

/// As `ostraca log cut` makes a lost one: zeros, which the next leader makes good.
fn replace(page: &Path) {
    files::remove(page).expect("it is there");
    files::create_durable(page, &[0; 4096], 0o600).expect("a new one");
}

/// What the page's file says is granted.
fn granted(page: &Path) -> u64 {
    let bytes = files::read(page).expect("the page");
    let epoch = bytes[64..].first_chunk().expect("the cell");
    u32::from_le_bytes(*epoch).into()
}

/// A shard that has been led, and is not.
async fn left_shard() -> tempfile::TempDir {
    let dir = tempfile::tempdir().expect("a directory");
    let server = start(dir.path(), 0).await;
    create(&server.client(), &key()).await;
    server.stop().await;
    dir
}

/// Whoever holds it seems to lead, and hangs.
fn lock(dir: &Path) -> Lock {
    Lock::acquire(&dir.join("shard-0/lock")).expect("it is free")
}

/// A standby that kills nobody: all of a test's servers are one process.
async fn stand_by(dir: &Path, lease: Duration) -> Server {
    let standby = Standby { lease, kill: false };
    let server = begin_start_to(Lead::WhenNeeded(standby), dir, 0, HeldStorage::default());
    until("it stands by", async || {
        server.status().await.state() == ostraca_proto::v1::ShardState::Standby
    })
    .await;
    server
}

/// Goal: a standby leads by the page that is there when its time comes.
/// Method: the page is made anew while it waits for the lock.
#[tokio::test]
async fn f01_a_standby_leads_by_the_page_that_is_there() {
    let dir = left_shard().await;
    let page = page_of(dir.path());
    let held = lock(dir.path());
    let mut standby = stand_by(dir.path(), Duration::from_secs(600)).await;
    replace(&page);
    assert_eq!(granted(&page), 0);
    drop(held);
    standby.is_leading().await;
    assert_eq!(granted(&page), standby.status().await.epoch);
    create(&standby.client(), &key()).await;
    standby.stop().await;
}

/// Goal: a leader that beats on a new page is not taken for one that hangs.
/// Method: the lock is held by somebody else, so the beats alone speak for the leader.
#[tokio::test]
async fn f06_a_standby_looks_for_beats_on_the_page_that_is_there() {
    const LEASE: Duration = Duration::from_secs(2);
    let dir = left_shard().await;
    let _held = lock(dir.path());
    let standby = stand_by(dir.path(), LEASE).await;
    replace(&page_of(dir.path()));
    let mut leader = begin_start_to(Lead::TakeOver, dir.path(), 0, HeldStorage::default());
    leader.is_leading().await;
    let led = Instant::now();
    while led.elapsed() < 2 * LEASE {
        assert!(!standby.leads(), "it took over from one that serves");
        create(&leader.client(), &key()).await;
        tokio::time::sleep(Duration::from_millis(50)).await;
    }
    standby.stop().await;
    leader.stop().await;
}

/// Goal: nothing is answered under a page that was replaced while the log was opened.
/// Method: the opening is held after the page was mapped, and the page made anew.
#[tokio::test]
async fn f01_nobody_serves_by_a_page_that_was_replaced_meanwhile() {
    let dir = left_shard().await;
    let page = page_of(dir.path());
    let storage = HeldStorage::default();
    let shut = storage.opening.shut();
    let mut server = begin_start_to(Lead::IfFree, dir.path(), 0, storage);
    until("the opening waits", async || server.storage.opening.holds()).await;
    replace(&page);
    drop(shut);
    let err = server.ended().await.expect_err("it does not lead");
    assert_eq!(err.kind(), ErrorKind::NotLeader, "{err}");
    assert!(!server.leads(), "it has served");
    assert_eq!(granted(&page), 0);

    // A standby gives up that one term, and leads by the page that is there.
    let storage = HeldStorage::default();
    let shut = storage.opening.shut();
    let lead = Lead::WhenNeeded(Standby::default());
    let mut standby = begin_start_to(lead, dir.path(), 0, storage);
    until("the opening waits", async || {
        standby.storage.opening.holds()
    })
    .await;
    replace(&page);
    drop(shut);
    standby.is_leading().await;
    assert_eq!(granted(&page), standby.status().await.epoch);
    standby.stop().await;
}

/// Goal: a leader whose page is replaced ends its leadership, as no fence will.
#[tokio::test]
async fn f01_a_leader_gives_up_when_its_page_is_replaced() {
    let dir = tempfile::tempdir().expect("a directory");
    let mut server = start(dir.path(), 0).await;
    // Where it is only gone, everybody who maps it is fenced by it.
    let (page, aside) = (page_of(dir.path()), dir.path().join("shard-0/aside"));
    files::rename_durable(&page, &aside).expect("it is there");
    create(&server.client(), &key()).await;
    files::rename_durable(&aside, &page).expect("it is there");
    replace(&page);
    let err = server.ended().await.expect_err("it leads no more");
    assert_eq!(err.kind(), ErrorKind::NotLeader, "{err}");
}

/// Goal: what is under way when the page is replaced is answered by nobody: whoever leads by the new
/// one need not find it.
/// Method: a create is held in its sync meanwhile, with another one behind it.
#[tokio::test]
async fn f01_nothing_is_acknowledged_under_a_page_that_was_replaced() {
    let dir = tempfile::tempdir().expect("a directory");
    let mut server = start(dir.path(), 0).await;
    let client = server.client();
    let old = create(&client, &key()).await;
    let shut = server.storage.syncing.shut();
    let mut commits = Vec::new();
    for _ in 0..2 {
        let (client, key) = (client.clone(), key());
        let ticket = begin(&client, &key).await;
        commits.push(tokio::spawn(async move {
            let paste = paste();
            client.commit_create(&key, &REQUEST, &ticket, &paste).await
        }));
        until("it is in its sync", async || server.storage.syncing.holds()).await;
    }
    until("one waits", async || server.status().await.queued == 1).await;
    replace(&page_of(dir.path()));
    drop(shut);
    let mut kinds = Vec::new();
    for commit in commits {
        let told = within(commit).await.expect("no panic");
        kinds.push(told.expect_err("nobody knows of it").kind());
    }
    assert_eq!(kinds[0], ErrorKind::Unknown, "it is in the log");
    // The second one was never appended.
    assert!(
        matches!(kinds[1], ErrorKind::NotLeader | ErrorKind::Unavailable),
        "{kinds:?}"
    );
    let err = server.ended().await.expect_err("it leads no more");
    assert!(matches!(err, ServeError::EpochPageReplaced(_)), "{err}");
    let next = start(dir.path(), 0).await;
    let read = next.client().get_paste(&old.paste_id).await;
    read.expect("what was acknowledged is there");
    next.stop().await;
}
