//! A command that has a shard's directory to itself is not taken for a leader that hangs.

mod held;

use std::path::Path;

use held::{HeldStorage, begin_start_to, create, key, start, until};
use ostraca_io::files::{Lock, LockRole};
use ostraca_proto::v1::ShardState;
use ostraca_server::{Lead, ServeError, Standby};
use ostraca_types::ErrorKind;
use tokio::time::{Duration, Instant};

const LEASE: Duration = Duration::from_millis(300);

fn lock_as(role: LockRole, dir: &Path) -> Lock {
    let lock = Lock::acquire_as(role, &dir.join("shard-0/lock")).expect("no trouble");
    lock.expect("it is free")
}

/// Goal: whoever leads next waits until a command is done, also one that kills nobody and goes by the
/// fence alone.
/// Method: this test holds the lock as a command does, for several leases; then as a leader that hangs.
#[tokio::test]
async fn f01_nobody_leads_beside_a_command() {
    let dir = tempfile::tempdir().expect("a directory");
    let server = start(dir.path(), 0).await;
    create(&server.client(), &key()).await;
    server.stop().await;
    let tool = lock_as(LockRole::Tool, dir.path());
    let pid = Some(std::process::id());
    for lead in [Lead::IfFree, Lead::TakeOver] {
        let mut other = begin_start_to(lead, dir.path(), 0, HeldStorage::default());
        let err = other.ended().await.expect_err("it is not free");
        assert!(
            matches!(err, ServeError::HeldByTool(by) if by == pid),
            "{err}"
        );
        assert_eq!(err.kind(), ErrorKind::Exists);
    }
    let lead = Lead::WhenNeeded(Standby {
        lease: LEASE,
        kill: false,
    });
    let mut standby = begin_start_to(lead, dir.path(), 0, HeldStorage::default());
    until("it stands by", async || {
        standby.status().await.state() == ShardState::Standby
    })
    .await;
    let since = Instant::now();
    while since.elapsed() < 6 * LEASE {
        assert!(!standby.leads(), "it leads beside a command");
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
    drop(tool);
    standby.is_leading().await;
    create(&standby.client(), &key()).await;
    standby.stop().await;

    // The same wait ends with the lease where the lock is a leader's.
    let _leader = lock_as(LockRole::Leader, dir.path());
    let mut standby = begin_start_to(lead, dir.path(), 0, HeldStorage::default());
    standby.is_leading().await;
    standby.stop().await;
}
