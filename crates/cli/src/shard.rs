//! `ostraca shard`: one shard process.

use std::io::{self, Write as _};
use std::net::{SocketAddr, TcpListener};
use std::path::Path;

use ostraca_io::files::{self, Unsuitable};
use ostraca_server::{DataDir, Lead, ServeError, ShardOptions, Told, serve_shard};
use ostraca_types::{ErrorKind, ShardId};

use crate::args::{RemoteArg, ShardArgs, StandbyArgs};
use crate::exit::{Exit, Failure, say};
use crate::signals::StopSignals;
use crate::{data, machine, process};

/// Serves until it is told to stop.
pub(crate) fn run(args: &ShardArgs) -> Result<(), Failure> {
    process::adopt(args.parent)?;
    check_remote(args.remote, args.grpc.ip())?;
    let data = data::open(&args.data)?;
    let shard = ShardId(args.shard);
    if shard.0 >= data.shards() {
        let message = format!(
            "shards of this cluster are 0 to {}, not {shard}",
            data.shards() - 1
        );
        return Err(Failure::new(Exit::Usage, message));
    }
    check_filesystem(&data, shard)?;
    let listener =
        TcpListener::bind(args.grpc).map_err(process::cannot_listen("--grpc", args.grpc))?;
    let metrics = TcpListener::bind(args.metrics)
        .map_err(process::cannot_listen("--metrics", args.metrics))?;
    let metrics_at = metrics
        .local_addr()
        .map_err(|err| Failure::doing(Exit::Failed, "cannot listen", &err))?;
    let dir = data.shard_dir(shard);
    let options = ShardOptions {
        storage: machine::storage(),
        lead: match args.standby {
            StandbyArgs { standby: true, .. } => Lead::WhenNeeded(args.standby.settings()),
            _ if args.take_over => Lead::TakeOver,
            _ => Lead::IfFree,
        },
        data,
        shard,
        listener,
        metrics: Some(metrics),
        clock: machine::clock()?,
        entropy: machine::entropy(),
    };
    process::runtime()?.block_on(async {
        let stop = StopSignals::listen()?.drain();
        serve_shard(options, |told| tell(told, metrics_at), stop)
            .await
            .map_err(|err| failure(&err, &dir))
    })
}

fn tell(told: Told, metrics: SocketAddr) {
    let mut stdout = io::stdout().lock();
    let (word, grpc) = match told {
        Told::StandsBy(grpc) => ("standby", grpc),
        Told::Leads(grpc) => ("ready", grpc),
    };
    let line = format!("{word} grpc={grpc} metrics=http://{metrics}/metrics");
    let told = writeln!(stdout, "{line}").and_then(|()| stdout.flush());
    if let Err(err) = told {
        // Whoever waited for the line is gone; the shard serves all the same.
        tracing::debug!(event = "ready_not_told", %err, "stdout is closed");
    }
}

/// gRPC has neither TLS nor authentication yet.
pub(crate) fn check_remote(remote: RemoteArg, ip: std::net::IpAddr) -> Result<(), Failure> {
    if ip.is_loopback() || remote.allow_remote {
        return Ok(());
    }
    Err(Failure::new(
        Exit::Usage,
        format!(
            "gRPC has neither TLS nor authentication yet, so it listens on loopback only; \
             --allow-remote overrides that: {ip}"
        ),
    ))
}

/// The log needs a disk of this machine: elsewhere a lock may not hold, and a second machine can
/// write.
fn check_filesystem(data: &DataDir, shard: ShardId) -> Result<(), Failure> {
    let dir = data.shard_dir(shard);
    // Before the shard's first start its directory is not there, and will be made in this one.
    let path: &Path = if dir.exists() { &dir } else { data.path() };
    let kind = files::unsuitable_filesystem(path).map_err(|err| {
        Failure::doing(
            Exit::Failed,
            format_args!("cannot examine {}", path.display()),
            &err,
        )
    })?;
    match kind {
        None => Ok(()),
        Some(Unsuitable::Memory(name)) => {
            say(format_args!(
                "{} is on {name}: gone with the power",
                path.display()
            ));
            Ok(())
        }
        Some(Unsuitable::Network(name)) => Err(Failure::new(
            Exit::Failed,
            format!(
                "a shard needs a disk of this machine, not {name}; choose another --data: {}",
                path.display()
            ),
        )),
    }
}

fn failure(err: &ServeError, dir: &Path) -> Failure {
    let exit = match err.kind() {
        ErrorKind::Exists | ErrorKind::NotLeader => Exit::Conflict,
        ErrorKind::Damaged | ErrorKind::Sealed => Exit::Damaged,
        // In flight when a sync failed: the next start recovers from the disk.
        ErrorKind::Unknown => Exit::SyncFailed,
        ErrorKind::Busy | ErrorKind::Full | ErrorKind::Unavailable => Exit::Unavailable,
        ErrorKind::Rejected | ErrorKind::NotFound | ErrorKind::Denied | ErrorKind::TooLate => {
            Exit::Failed
        }
    };
    match err {
        // It names a file of the log, and not whose.
        ServeError::Open(_) | ServeError::Stopped(_) => Failure::doing(exit, dir.display(), err),
        _ => Failure::caused(exit, err),
    }
}
