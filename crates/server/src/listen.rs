//! The listener of a shard process, and what tonic leaves to be done about it.

use std::future::Future;
use std::io;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, ready};
use std::time::Duration;

use ostraca_proto::CLUSTER_METADATA;
use ostraca_proto::v1::cluster_service_server::ClusterServiceServer;
use ostraca_proto::v1::inbox_service_server::InboxServiceServer;
use ostraca_proto::v1::outbox_service_server::OutboxServiceServer;
use ostraca_proto::v1::paste_service_server::PasteServiceServer;
use ostraca_types::{ClusterId, Reason};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::oneshot;
use tokio::time::{Sleep, sleep};
use tokio_stream::Stream;
use tonic::service::InterceptorLayer;
use tonic::transport::Server;
use tonic::{Request, Status};
use tonic_health::ServingStatus;
use tonic_health::server::HealthReporter;

use crate::admission::AdmissionLayer;
use crate::deadline::DeadlineLayer;
use crate::delivery::{InboxServices, OutboxServices};
use crate::hold::HoldLayer;
use crate::host::Host;
use crate::refusal::Refusal;
use crate::services::{Cluster, Services};

/// Messages are at most 64 KiB: bodies do not travel here.
const MESSAGE_SIZE_MAX: usize = 64 << 10;
/// Above the default 64 KiB, or one stream that nobody reads starves the others of a connection.
const STREAM_WINDOW: u32 = 1 << 20;
/// Well above a stream's, for the same reason.
///
/// It also bounds how many small frames a connection may have that were not read yet: h2 counts what each
/// lacks to 256 bytes, and cuts the connection (ENHANCE_YOUR_CALM) when that is more than half of this
/// window. A stream is read while no more than its bound of answers waits; one that is full of the
/// smallest calls, some 80 bytes each, is within it and held back by its own window. A client that fills
/// more than one and reads no answers loses its connection, and nobody else theirs. tonic has no setting
/// for it.
const CONNECTION_WINDOW: u32 = 8 << 20;
/// Calls and streams of one connection at a time. A client that has more waits on its own side, which
/// costs the process nothing, while a call that it refuses costs as much as two thirds of one that it
/// takes. Measured over 16 connections at twice and ten times capacity (docs/performance.md): with 1,024
/// all that is accepted waits for half a second and more, with 128 for a tenth of that, at full rate.
const STREAMS_MAX: u32 = 128;
/// Finds clients that are gone without a word.
const KEEPALIVE_INTERVAL: Duration = Duration::from_secs(30);
const KEEPALIVE_TIMEOUT: Duration = Duration::from_secs(20);
/// Calls that a client gave up before they were looked at, of one connection. At h2's own 20 a client
/// that gives up a page of waiting calls loses its connection; as many as it may have open are none
/// to be punished for.
const RESETS_MAX: usize = STREAMS_MAX as usize;
/// How long the listener is left alone after it could not accept: out of file descriptors it would
/// say so again at once.
const ACCEPT_PAUSE: Duration = Duration::from_millis(100);

const _: () = {
    const SMALLEST_CALL: u32 = 80;
    let unread = STREAM_WINDOW / SMALLEST_CALL * (256 - SMALLEST_CALL);
    assert!(unread < CONNECTION_WINDOW / 2);
};

/// The connections that a listener accepts.
struct Incoming {
    listener: TcpListener,
    pause: Option<Pin<Box<Sleep>>>,
}

impl Incoming {
    fn new(listener: TcpListener) -> Self {
        Self {
            listener,
            pause: None,
        }
    }
}

impl Stream for Incoming {
    type Item = io::Result<TcpStream>;

    fn poll_next(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Option<Self::Item>> {
        loop {
            if let Some(pause) = &mut self.pause {
                ready!(pause.as_mut().poll(cx));
                self.pause = None;
            }
            match ready!(self.listener.poll_accept(cx)) {
                Ok((stream, _)) => {
                    // As the listener is ours, tonic leaves that to us: without it a call costs 44 ms.
                    if let Err(err) = stream.set_nodelay(true) {
                        tracing::debug!(event = "no_nodelay", %err);
                    }
                    return Poll::Ready(Some(Ok(stream)));
                }
                Err(err) if is_of_one_connection(&err) => {}
                Err(err) => {
                    tracing::warn!(event = "accept_failed", %err, "will be tried again");
                    self.pause = Some(Box::pin(sleep(ACCEPT_PAUSE)));
                }
            }
        }
    }
}

/// Whether it says nothing about the next one.
fn is_of_one_connection(err: &io::Error) -> bool {
    use io::ErrorKind::{ConnectionAborted, ConnectionReset, Interrupted};
    matches!(
        err.kind(),
        ConnectionAborted | ConnectionReset | Interrupted
    )
}

/// The gRPC server, to be run until `drained`.
pub(crate) fn listen(
    host: Arc<Host>,
    health: &Health,
    listener: TcpListener,
    drained: oneshot::Receiver<()>,
) -> impl Future<Output = Result<(), tonic::transport::Error>> + Send + use<> {
    let incoming = Incoming::new(listener);
    let paste = PasteServiceServer::new(Services(Arc::clone(&host)))
        .max_decoding_message_size(MESSAGE_SIZE_MAX)
        .max_encoding_message_size(MESSAGE_SIZE_MAX);
    let outbox = OutboxServiceServer::new(OutboxServices(Arc::clone(&host)))
        .max_decoding_message_size(MESSAGE_SIZE_MAX)
        .max_encoding_message_size(MESSAGE_SIZE_MAX);
    let inbox = InboxServiceServer::new(InboxServices(Arc::clone(&host)))
        .max_decoding_message_size(MESSAGE_SIZE_MAX)
        .max_encoding_message_size(MESSAGE_SIZE_MAX);
    let held = Arc::clone(&host);
    let cluster = ClusterServiceServer::new(Cluster(host))
        .max_decoding_message_size(MESSAGE_SIZE_MAX)
        .max_encoding_message_size(MESSAGE_SIZE_MAX);
    let reflection = || {
        tonic_reflection::server::Builder::configure()
            .register_encoded_file_descriptor_set(ostraca_proto::DESCRIPTOR_SET)
            .register_encoded_file_descriptor_set(tonic_health::pb::FILE_DESCRIPTOR_SET)
    };
    let reflection_v1 = reflection()
        .build_v1()
        .expect("the descriptors are compiled in")
        .max_decoding_message_size(MESSAGE_SIZE_MAX);
    let reflection_v1alpha = reflection()
        .build_v1alpha()
        .expect("the descriptors are compiled in")
        .max_decoding_message_size(MESSAGE_SIZE_MAX);
    let router = Server::builder()
        .initial_stream_window_size(STREAM_WINDOW)
        .initial_connection_window_size(CONNECTION_WINDOW)
        .max_concurrent_streams(STREAMS_MAX)
        .http2_max_pending_accept_reset_streams(Some(RESETS_MAX))
        .http2_keepalive_interval(Some(KEEPALIVE_INTERVAL))
        .http2_keepalive_timeout(Some(KEEPALIVE_TIMEOUT))
        .layer(InterceptorLayer::new(for_cluster(held.data.cluster())))
        .layer(AdmissionLayer::new(Arc::clone(&held)))
        .layer(DeadlineLayer)
        .layer(HoldLayer(held))
        .add_service(paste)
        .add_service(outbox)
        .add_service(inbox)
        .add_service(cluster)
        .add_service(health.service())
        .add_service(reflection_v1)
        .add_service(reflection_v1alpha);
    router.serve_with_incoming_shutdown(incoming, async {
        // An error means that the other side is gone, which ends the server as well.
        let _ = drained.await;
    })
}

/// Refuses a call that names another cluster than this one, as by a client of the one that had this
/// address before. Here, as it is true of every service and costs what it guards nothing.
fn for_cluster(
    cluster: ClusterId,
) -> impl FnMut(Request<()>) -> Result<Request<()>, Status> + Clone + Send + Sync + 'static {
    let ours = cluster.to_string();
    move |request| match request.metadata().get(CLUSTER_METADATA) {
        Some(named) if named.as_bytes() != ours.as_bytes() => {
            let why = "this process is of another cluster; nothing was done";
            Err(Refusal::new(Reason::WrongCluster, why).into())
        }
        _ => Ok(request),
    }
}

/// The health of the process and of each service.
pub(crate) struct Health(HealthReporter);

impl Health {
    const SERVICES: [&'static str; 5] = [
        "",
        "ostraca.v1.PasteService",
        "ostraca.v1.ClusterService",
        "ostraca.v1.OutboxService",
        "ostraca.v1.InboxService",
    ];

    /// Nothing serves yet: the reporter is born saying that the process does.
    pub(crate) async fn new() -> Self {
        let health = Self(HealthReporter::new());
        health.set(ServingStatus::NotServing).await;
        health
    }

    pub(crate) async fn set(&self, status: ServingStatus) {
        for service in Self::SERVICES {
            self.0.set_service_status(service, status).await;
        }
    }

    fn service(
        &self,
    ) -> tonic_health::pb::health_server::HealthServer<tonic_health::server::HealthService> {
        let service = tonic_health::server::HealthService::from_health_reporter(self.0.clone());
        tonic_health::pb::health_server::HealthServer::new(service)
            .max_decoding_message_size(MESSAGE_SIZE_MAX)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use tokio_stream::StreamExt as _;

    #[tokio::test]
    async fn an_accepted_socket_sends_at_once() {
        let listener = TcpListener::bind("127.0.0.1:0").await.expect("a port");
        let address = listener.local_addr().expect("bound");
        let mut incoming = Incoming::new(listener);
        let (client, server) = tokio::join!(TcpStream::connect(address), incoming.next());
        let (client, server) = (client.expect("connected"), server.expect("one"));
        assert!(server.expect("accepted").nodelay().expect("a socket"));
        assert!(
            !client.nodelay().expect("a socket"),
            "it is not so by itself"
        );
    }
}
