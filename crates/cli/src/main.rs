//! The one binary, `ostraca`: serves, supervises what serves, and is a client of it.
//!
//! Data goes to stdout, talk to stderr; each failure has an exit code ([`exit::Exit`]) and one
//! line that says why. A closed pipe is no failure.

mod args;
mod client;
mod clock;
mod data;
mod dead_letters;
mod events;
mod exit;
#[cfg(feature = "faults")]
mod faults;
mod frontend;
mod log;
mod machine;
mod process;
mod protoset;
mod shard;
mod signals;
mod status;
mod up;
mod worker;

use std::io::{self, Write as _};
use std::process::ExitCode;

use clap::{CommandFactory as _, Parser as _};

use args::{Cli, Command};
use exit::{Exit, Failure};

fn main() -> ExitCode {
    let cli = match Cli::try_parse() {
        Ok(cli) => cli,
        Err(err) => {
            // Help and version go to stdout, errors to stderr; a closed pipe is no failure.
            let _ = err.print();
            return if err.use_stderr() {
                Exit::Usage.into()
            } else {
                Exit::Fine.into()
            };
        }
    };
    match run(cli) {
        Ok(()) => Exit::Fine.into(),
        Err(failure) => {
            failure.tell();
            failure.exit.into()
        }
    }
}

fn run(cli: Cli) -> Result<(), Failure> {
    let log = cli.log.as_deref();
    events::init(log.unwrap_or(if serves(&cli.command) { "info" } else { "warn" }))?;
    // One TLS provider for everything that the process links. It is the first call, so none is
    // installed yet.
    let _ = rustls::crypto::ring::default_provider().install_default();
    match cli.command {
        Command::Up(args) => up::run(&args, log),
        Command::Shard(args) => shard::run(&args),
        Command::Frontend(args) => frontend::run(args),
        Command::Worker(args) => worker::run(args),
        Command::Paste(args) => client::paste(args),
        Command::Get(args) => client::get(&args),
        Command::Rm(args) => client::rm(&args),
        Command::Status(args) => status::run(&args),
        Command::DeadLetters(command) => dead_letters::run(command),
        Command::Clock(command) => clock::run(&command),
        Command::Log(command) => log::run(command),
        Command::Protoset => protoset::run(),
        Command::Completions { shell } => completions(shell),
    }
}

/// A serving process says what it does; a command that a person waits for says what goes wrong.
const fn serves(command: &Command) -> bool {
    matches!(
        command,
        Command::Up(_) | Command::Shard(_) | Command::Frontend(_) | Command::Worker(_)
    )
}

fn completions(shell: clap_complete::Shell) -> Result<(), Failure> {
    let mut script = Vec::new();
    clap_complete::generate(shell, &mut Cli::command(), "ostraca", &mut script);
    exit::written(io::stdout().lock().write_all(&script))
}
