//! `ostraca frontend`: the HTTP frontend process.

use std::io::{self, Write as _};
use std::net::SocketAddr;
use std::path::PathBuf;
use std::sync::Arc;

use ostraca_bodies::Bodies;
use ostraca_client::{Client, Options, Seeds};
use ostraca_frontend::{Config, Frontend, serve};
use ostraca_server::DataDir;
use ostraca_server::endpoints;
use tokio::net::TcpListener;

use crate::args::{FrontendArgs, HttpArgs};
use crate::exit::{Exit, Failure};
use crate::signals::StopSignals;
use crate::{data, machine, process};

/// Serves until it is told to stop.
pub(crate) fn run(args: FrontendArgs) -> Result<(), Failure> {
    process::adopt(args.parent)?;
    let config = config(&args.http)?;
    let data = data::open(&args.data)?;
    let bodies =
        Bodies::local(&data.bodies_dir()).map_err(|err| Failure::caused(Exit::Failed, &err))?;
    process::runtime()?.block_on(async {
        let stop = StopSignals::listen()?.drain();
        let client = shards(&data, args.shards_at);
        let frontend = Frontend::new(config, client, bodies, machine::entropy())
            .map_err(|err| Failure::caused(Exit::Usage, &err))?;
        let http = args.http.http;
        let listen = async {
            let listener = TcpListener::bind(http).await?;
            let address = listener.local_addr()?;
            Ok((listener, address))
        };
        let (listener, address) = listen
            .await
            .map_err(process::cannot_listen("--http", http))?;
        // The listener's queue takes connections from here on.
        ready(address);
        serve(frontend, listener, stop)
            .await
            .map_err(|err| Failure::doing(Exit::Failed, "cannot serve HTTP", &err))
    })
}

/// The settings that a person gave, once they are known to be usable.
pub(crate) fn config(args: &HttpArgs) -> Result<Config, Failure> {
    let config = Config {
        public_url: args.public_url.clone(),
        body_size_max: args.body_size_max,
        ..Config::default()
    };
    config.validate().map_err(|err| {
        let option = err.setting.replace('_', "-");
        let (expected, value) = (err.expected, err.value);
        Failure::new(
            Exit::Usage,
            format!("--{option} must be {expected}: {value}"),
        )
    })?;
    Ok(config)
}

/// A client of the shards at addresses given by a person, or of the data directory's cluster: by the
/// addresses of what runs there, read anew each time, as a restart may change them.
pub(crate) fn shards(data: &DataDir, given: Vec<String>) -> Client {
    if !given.is_empty() {
        return Client::new(Options::new(Seeds::Fixed(given)));
    }
    let run_dir: PathBuf = data.run_dir();
    let seeds = Seeds::Ask(Arc::new(move || match endpoints::read(&run_dir) {
        Ok(list) => list
            .into_iter()
            .filter_map(|endpoint| endpoint.grpc)
            .collect(),
        Err(err) => {
            tracing::warn!(event = "endpoints_unreadable", %err, "no shard's address is known");
            Vec::new()
        }
    }));
    Client::new(Options {
        cluster: Some(data.cluster()),
        ..Options::new(seeds)
    })
}

fn ready(address: SocketAddr) {
    let mut stdout = io::stdout().lock();
    let told = writeln!(stdout, "ready http=http://{address}").and_then(|()| stdout.flush());
    if let Err(err) = told {
        // Whoever waited for the line is gone; it serves all the same.
        tracing::debug!(event = "ready_not_told", %err, "stdout is closed");
    }
}
