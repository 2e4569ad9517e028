//! `ostraca worker`: the worker process.

use std::io::{self, Write as _};
use std::net::SocketAddr;

use ostraca_bodies::Bodies;

use ostraca_worker::{Config, HttpEdge, Ports, Worker};
use tokio::net::TcpListener;

use crate::args::WorkerArgs;
use crate::exit::{Exit, Failure};
use crate::frontend::shards;
use crate::signals::StopSignals;
use crate::{data, machine, process};

/// Works until it is told to stop.
pub(crate) fn run(args: WorkerArgs) -> Result<(), Failure> {
    process::adopt(args.parent)?;
    let data = data::open(&args.data)?;
    let bodies =
        Bodies::local(&data.bodies_dir()).map_err(|err| Failure::caused(Exit::Failed, &err))?;
    let edge = HttpEdge::new(&args.edge.config, args.public_url.as_ref())
        .map_err(|err| Failure::caused(Exit::Failed, &err))?;
    let config = Config {
        concurrency: args.concurrency,
        ..Config::default()
    };
    process::runtime()?.block_on(async {
        let stop = StopSignals::listen()?.drain();
        let ports = Ports {
            shards: shards(&data, args.shards_at),
            objects: bodies,
            edge,
        };
        #[cfg(feature = "faults")]
        let ports = crate::faults::stopping(ports);
        let worker = Worker::new(config, ports, machine::entropy())
            .map_err(|err| Failure::caused(Exit::Usage, &err))?;
        let metrics = args.metrics;
        let listen = async {
            let listener = TcpListener::bind(metrics).await?;
            let address = listener.local_addr()?;
            Ok((listener, address))
        };
        let (listener, address) = listen.await.map_err(|err: io::Error| {
            Failure::doing(
                Exit::Failed,
                format_args!("cannot listen on {metrics}"),
                &err,
            )
        })?;
        // Until the process ends: the drain can be watched, too.
        let serving = tokio::spawn(worker.observer().serve(listener));
        ready(address);
        worker.run(stop).await;
        serving.abort();
        Ok(())
    })
}

fn ready(address: SocketAddr) {
    let mut stdout = io::stdout().lock();
    let line = format!("ready http=http://{address} metrics=http://{address}/metrics");
    let told = writeln!(stdout, "{line}").and_then(|()| stdout.flush());
    if let Err(err) = told {
        // Whoever waited for the line is gone; it works all the same.
        tracing::debug!(event = "ready_not_told", %err, "stdout is closed");
    }
}
