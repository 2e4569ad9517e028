//! What goes to stderr: text on a terminal, one JSON object a line otherwise.
//!
//! Every event has a field `event` with a stable name, which scripts and harnesses match; the text
//! beside it is for people and may change. Secrets are types that cannot be printed.

use std::io::{self, IsTerminal as _};

use tracing_subscriber::EnvFilter;

use crate::exit::{Exit, Failure};

/// Starts logging. `filter` is in the syntax of `tracing_subscriber`: `info`,
/// `ostraca_server=debug,warn`.
pub(crate) fn init(filter: &str) -> Result<(), Failure> {
    let filter = EnvFilter::try_new(filter).map_err(|err| {
        Failure::doing(
            Exit::Usage,
            format_args!("not a log filter, {filter}"),
            &err,
        )
    })?;
    let builder = tracing_subscriber::fmt()
        .with_env_filter(filter)
        .with_writer(io::stderr)
        // It would say on stderr that stderr cannot be written, and panic.
        .log_internal_errors(false);
    let terminal = io::stderr().is_terminal();
    let started = if terminal {
        let plain = std::env::var_os("NO_COLOR").is_some_and(|value| !value.is_empty());
        builder.with_ansi(!plain).try_init()
    } else {
        builder.json().flatten_event(true).try_init()
    };
    started.map_err(|err| Failure::new(Exit::Failed, err.to_string()))
}
