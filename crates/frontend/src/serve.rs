//! Connections: accepting them, keeping silent ones from piling up, and ending in bounded time.

use std::io;
use std::sync::Arc;
use std::time::Duration;

use hyper::server::conn::http1;
use hyper_util::rt::{TokioIo, TokioTimer};
use hyper_util::service::TowerToHyperService;
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::{Semaphore, watch};
use tokio::task::JoinSet;

use crate::Frontend;
use crate::stall::Stalling;

/// After the stop, requests in flight have so long; then their connections are dropped.
pub const DRAIN_MAX: Duration = Duration::from_secs(10);
/// A connection that does not send the head of a request within this is closed: one that says
/// nothing, and one that has had its answers, alike.
pub(crate) const HEAD_DEADLINE: Duration = Duration::from_secs(20);
/// The head of a request in bytes; beyond it the answer is 431.
const HEAD_SIZE_MAX: usize = 64 << 10;
/// Accepting failed, most likely for want of descriptors: others end meanwhile.
const ACCEPT_PAUSE: Duration = Duration::from_millis(100);

/// Serves until `stop`, then finishes what is in flight for at most [`DRAIN_MAX`]. Returns only
/// when no connection is left. Without `public_url` in the settings, links start with the address
/// of `listener`.
pub async fn serve(
    frontend: Frontend,
    listener: TcpListener,
    stop: impl Future<Output = ()> + Send + 'static,
) -> io::Result<()> {
    let address = listener.local_addr()?;
    frontend
        .0
        .origin
        .get_or_init(|| format!("http://{address}"));
    let places = Arc::new(Semaphore::new(frontend.0.config.connections_max));
    let service = TowerToHyperService::new(frontend.router());
    let (stopping, stopped) = watch::channel(false);
    let mut connections = JoinSet::new();
    tokio::pin!(stop);
    loop {
        let accepted = async {
            // The semaphore is never closed.
            let place = Arc::clone(&places).acquire_owned().await.ok();
            (place, listener.accept().await)
        };
        tokio::select! {
            () = &mut stop => break,
            // So that ended connections do not pile up in the set.
            Some(_) = connections.join_next(), if !connections.is_empty() => {}
            (place, accepted) = accepted => match accepted {
                Ok((stream, _)) => {
                    let connection = connection(stream, service.clone(), stopped.clone());
                    connections.spawn(async move {
                        connection.await;
                        drop(place);
                    });
                }
                Err(err) => {
                    tracing::warn!(event = "accept_failed", error = %err);
                    tokio::time::sleep(ACCEPT_PAUSE).await;
                }
            },
        }
    }
    drop(listener);
    // Receivers that are gone have no connection to end.
    let _ = stopping.send(true);
    let ended = async { while connections.join_next().await.is_some() {} };
    if tokio::time::timeout(DRAIN_MAX, ended).await.is_err() {
        tracing::warn!(event = "drain_cut", connections = connections.len());
        connections.shutdown().await;
    }
    Ok(())
}

async fn connection(
    stream: TcpStream,
    service: TowerToHyperService<axum::Router>,
    mut stopped: watch::Receiver<bool>,
) {
    // Without it a small answer waits 40 ms for the client's acknowledgement.
    if stream.set_nodelay(true).is_err() {
        return; // The client is gone already.
    }
    let connection = http1::Builder::new()
        .timer(TokioTimer::new())
        .header_read_timeout(HEAD_DEADLINE)
        .max_buf_size(HEAD_SIZE_MAX)
        // A client that has sent all of its request may close its side and still read.
        .half_close(true)
        .serve_connection(TokioIo::new(Stalling::new(stream)), service);
    let stop = async {
        // An error means that the sender is gone, which is a stop too.
        let _ = stopped.wait_for(|stopped| *stopped).await;
    };
    tokio::pin!(connection);
    tokio::select! {
        ended = connection.as_mut() => log(ended),
        () = stop => {
            connection.as_mut().graceful_shutdown();
            log(connection.await);
        }
    }
}

/// Clients that go away are no news.
fn log(ended: hyper::Result<()>) {
    if let Err(err) = ended {
        tracing::debug!(event = "connection_ended", error = %err);
    }
}
