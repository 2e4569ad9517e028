//! What every serving process does at its start.

use std::io;
use std::net::SocketAddr;

use ostraca_io::process;

use crate::args::ParentArg;
use crate::exit::{Exit, Failure};

/// Binds this process's life to its parent's, if it was told who that is. Comes first: a child
/// whose parent is gone must not touch the data.
pub(crate) fn adopt(parent: ParentArg) -> Result<(), Failure> {
    let Some(pid) = parent.pid else { return Ok(()) };
    process::die_with_parent(pid)
        .map_err(|err| Failure::doing(Exit::Failed, format_args!("no parent process {pid}"), &err))
}

/// Why nothing listens at `address`, which `option` sets.
pub(crate) fn cannot_listen(
    option: &'static str,
    address: SocketAddr,
) -> impl FnOnce(io::Error) -> Failure {
    move |err| {
        let exit = match err.kind() {
            io::ErrorKind::AddrInUse => Exit::Conflict,
            _ => Exit::Failed,
        };
        let doing = format_args!("cannot listen on {address}, choose another with {option}");
        Failure::doing(exit, doing, &err)
    }
}

/// The runtime of a serving process.
pub(crate) fn runtime() -> Result<tokio::runtime::Runtime, Failure> {
    tokio::runtime::Builder::new_multi_thread()
        .enable_all()
        .build()
        .map_err(no_runtime)
}

/// A runtime on the calling thread alone.
pub(crate) fn local_runtime() -> Result<tokio::runtime::Runtime, Failure> {
    tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()
        .map_err(no_runtime)
}

fn no_runtime(err: io::Error) -> Failure {
    Failure::doing(Exit::Failed, "cannot start", &err)
}
