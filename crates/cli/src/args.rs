//! The command line.

use std::net::{IpAddr, Ipv4Addr, SocketAddr, ToSocketAddrs as _};
use std::path::PathBuf;
use std::time::Duration;

use clap::{Args, Parser, Subcommand, ValueHint};
use ostraca_server::Standby;
use ostraca_types::contract::{BODY_SIZE_DEFAULT, BODY_SIZE_MAX};
use ostraca_types::{ConsumerName, IdempotencyKey, Lifetime, OutboxId, Syntax, Title};
use ostraca_worker::{CONCURRENCY_DEFAULT, CONCURRENCY_MAX, EdgeConfig};

use crate::exit;

/// The version, and what a build has beyond the default one.
const VERSION: &str = if cfg!(feature = "faults") {
    concat!(env!("CARGO_PKG_VERSION"), " faults")
} else {
    env!("CARGO_PKG_VERSION")
};

const EXAMPLES: &str = "\
Examples:
  ostraca up                                   everything on this machine
  ostraca paste notes.txt --lifetime 1h        save a file; the URL is printed
  git diff | ostraca paste --syntax diff       save what comes from a pipe
  ostraca get http://127.0.0.1:8080/0aKX…      print it, byte for byte
  ostraca rm 0aKX… --token-file token.txt      delete it
  ostraca status                               who runs, and how it is doing
";

const HELP_TEMPLATE: &str = "\
{about-with-newline}
{before-help}{usage-heading} {usage}

{all-args}{after-help}";

/// A pastebin on a sharded storage engine of its own.
#[derive(Debug, Parser)]
#[command(
    name = "ostraca",
    version = VERSION,
    before_long_help = EXAMPLES,
    after_long_help = exit::HELP,
    help_template = HELP_TEMPLATE,
    arg_required_else_help = true
)]
pub(crate) struct Cli {
    /// What to log on stderr: a level, or `target=level` separated by commas.
    #[arg(long, global = true, env = "OSTRACA_LOG", value_name = "FILTER")]
    pub(crate) log: Option<String>,

    #[command(subcommand)]
    pub(crate) command: Command,
}

#[derive(Debug, Subcommand)]
pub(crate) enum Command {
    /// Run everything on this machine: the shards, the HTTP frontend and the worker.
    #[command(
        before_long_help = "\
Examples:
  ostraca up
  ostraca up --data /var/lib/ostraca --http 0.0.0.0:8080 --public-url https://paste.example
",
        help_template = HELP_TEMPLATE
    )]
    Up(UpArgs),
    /// Run one shard.
    Shard(ShardArgs),
    /// Run the HTTP frontend.
    Frontend(FrontendArgs),
    /// Run the worker: it deletes the objects of ended pastes, and purges the edge.
    #[command(
        before_long_help = "\
Examples:
  ostraca worker --data ./ostraca-data --edge http-purge=http://127.0.0.1:6081
  ostraca worker --data ./ostraca-data --shards-at 10.0.0.1:7001 --metrics 127.0.0.1:9102
",
        help_template = HELP_TEMPLATE
    )]
    Worker(WorkerArgs),
    /// Save a text. The URL goes to stdout, the delete token to stderr.
    #[command(
        before_long_help = "\
Examples:
  ostraca paste notes.txt
  dmesg | ostraca paste --lifetime 10m --title 'after the crash'
  ostraca paste notes.txt --key \"$KEY\"     repeat a save whose answer was lost
",
        help_template = HELP_TEMPLATE
    )]
    Paste(PasteArgs),
    /// Print a paste, byte for byte.
    #[command(
        before_long_help = "\
Examples:
  ostraca get 0aKX2b3c4d5e6f
  ostraca get http://127.0.0.1:8080/0aKX2b3c4d5e6f -o notes.txt
",
        help_template = HELP_TEMPLATE
    )]
    Get(GetArgs),
    /// Delete a paste. The token comes from stdin, a file or OSTRACA_TOKEN.
    #[command(
        before_long_help = "\
Examples:
  ostraca rm 0aKX2b3c4d5e6f < token.txt
  ostraca rm 0aKX2b3c4d5e6f --token-file token.txt

A wrong token ends with exit code 1 and changes nothing.
",
        help_template = HELP_TEMPLATE
    )]
    Rm(RmArgs),
    /// Show which processes run, and how the shards are doing.
    Status(StatusArgs),
    /// Look at messages that were given up, and deliver one again.
    #[command(subcommand)]
    DeadLetters(DeadLettersCommand),
    /// Look after the clocks of shards.
    #[command(subcommand)]
    Clock(ClockCommand),
    /// Look at the logs of shards, and go on without what is damaged.
    #[command(subcommand)]
    Log(LogCommand),
    /// Print the compiled gRPC API, a FileDescriptorSet, for tools such as grpcurl and ghz.
    ///
    /// It has the API and health. Shards answer reflection as well, so most tools need no file.
    #[command(
        before_long_help = "\
Examples:
  ostraca protoset > ostraca.protoset
  grpcurl -plaintext -protoset ostraca.protoset 127.0.0.1:7001 ostraca.v1.ClusterService/GetRouting
",
        help_template = HELP_TEMPLATE
    )]
    Protoset,
    /// Print the completion script of a shell.
    Completions {
        /// Which shell.
        shell: clap_complete::Shell,
    },
}

/// A child ends when the process that started it does.
#[derive(Debug, Clone, Copy, Args)]
pub(crate) struct ParentArg {
    /// The process id of the parent.
    #[arg(long = "parent", hide = true, value_name = "PID")]
    pub(crate) pid: Option<u32>,
}

#[derive(Debug, Args)]
pub(crate) struct DataArg {
    /// The data directory.
    #[arg(long = "data", default_value = "./ostraca-data", value_name = "DIR", value_hint = ValueHint::DirPath)]
    pub(crate) path: PathBuf,
}

/// What the frontend is told, by a person or by `up`.
#[derive(Debug, Args)]
pub(crate) struct HttpArgs {
    /// Where HTTP listens.
    #[arg(long, default_value = "127.0.0.1:8080", value_name = "ADDR", value_parser = listen_address)]
    pub(crate) http: SocketAddr,
    /// What links start with; where HTTP listens unless given.
    #[arg(long, value_name = "URL")]
    pub(crate) public_url: Option<String>,
    /// The largest body in bytes.
    #[arg(long, default_value_t = BODY_SIZE_DEFAULT, value_name = "BYTES", value_parser = body_size)]
    pub(crate) body_size_max: usize,
}

#[derive(Debug, Args)]
pub(crate) struct UpArgs {
    #[command(flatten)]
    pub(crate) data: DataArg,
    #[command(flatten)]
    pub(crate) http: HttpArgs,
    #[command(flatten)]
    pub(crate) edge: EdgeArg,
    /// How many shards a new data directory gets: 1 to 256, 2 unless given. It cannot be changed
    /// later.
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u16).range(1..=256))]
    pub(crate) shards: Option<u16>,
    /// The IP address on which the shards' gRPC listens, each on a free port. Clients are told this
    /// address, so it must be one that they reach.
    #[arg(long, default_value_t = IpAddr::V4(Ipv4Addr::LOCALHOST), value_name = "IP")]
    pub(crate) grpc_ip: IpAddr,
    /// Run two processes for each shard: one leads, the other takes over when the first is gone or
    /// hangs.
    #[arg(long)]
    pub(crate) standbys: bool,
    #[command(flatten)]
    pub(crate) remote: RemoteArg,
    #[command(flatten)]
    pub(crate) parent: ParentArg,
}

#[derive(Debug, Clone, Copy, Args)]
pub(crate) struct RemoteArg {
    /// Let gRPC listen beyond loopback. It has neither TLS nor authentication yet: whoever reaches
    /// it can create and read.
    #[arg(long)]
    pub(crate) allow_remote: bool,
}

#[derive(Debug, Args)]
pub(crate) struct ShardArgs {
    /// The data directory.
    #[arg(long, value_name = "DIR", value_hint = ValueHint::DirPath)]
    pub(crate) data: PathBuf,
    /// Which shard, from 0 up.
    #[arg(long, value_name = "N")]
    pub(crate) shard: u16,
    /// Lead the shard although another process holds its directory. That one's appends and reads
    /// are refused from then on, also if it is stopped now and wakes later.
    #[arg(long)]
    pub(crate) take_over: bool,
    #[command(flatten)]
    pub(crate) standby: StandbyArgs,
    /// Where gRPC listens; port 0 is a free one.
    #[arg(long, default_value = "127.0.0.1:0", value_name = "ADDR")]
    pub(crate) grpc: SocketAddr,
    /// Where Prometheus finds /metrics; port 0 is a free one.
    #[arg(long, default_value = "127.0.0.1:0", value_name = "ADDR")]
    pub(crate) metrics: SocketAddr,
    #[command(flatten)]
    pub(crate) remote: RemoteArg,
    #[command(flatten)]
    pub(crate) parent: ParentArg,
}

/// How a standby goes about it.
#[derive(Debug, Clone, Copy, Args)]
pub(crate) struct StandbyArgs {
    /// Lead when there is no leader, or it hangs; wait otherwise, also after losing the lead.
    #[arg(long, conflicts_with = "take_over")]
    pub(crate) standby: bool,
    /// How long the leader may make no progress before the standby takes over, in milliseconds.
    #[arg(long, default_value_t = 2000, value_name = "MS", value_parser = clap::value_parser!(u64).range(100..=600_000))]
    pub(crate) lease: u64,
    /// Do not kill a leader that hangs before taking over. It is as safe; whoever waits for the
    /// old leader's answer waits longer.
    #[arg(long)]
    pub(crate) no_kill: bool,
}

impl StandbyArgs {
    pub(crate) fn settings(self) -> Standby {
        Standby {
            lease: Duration::from_millis(self.lease),
            kill: !self.no_kill,
        }
    }
}

#[derive(Debug, Args)]
pub(crate) struct FrontendArgs {
    /// The data directory.
    #[arg(long, value_name = "DIR", value_hint = ValueHint::DirPath)]
    pub(crate) data: PathBuf,
    #[command(flatten)]
    pub(crate) http: HttpArgs,
    /// Addresses of shards; what runs on the data directory unless given.
    #[arg(long, value_delimiter = ',', value_name = "ADDR,ADDR")]
    pub(crate) shards_at: Vec<String>,
    #[command(flatten)]
    pub(crate) parent: ParentArg,
}

/// What the worker is told, by a person or by `up`.
#[derive(Debug, Args)]
pub(crate) struct EdgeArg {
    /// The cache in front of the frontend: `none`, or `http-purge=URL,URL`, each of which is sent a
    /// PURGE for every URL of an ended paste.
    #[arg(long = "edge", default_value = "none", value_name = "EDGE", value_parser = EdgeConfig::parse)]
    pub(crate) config: EdgeConfig,
}

#[derive(Debug, Args)]
pub(crate) struct WorkerArgs {
    /// The data directory.
    #[arg(long, value_name = "DIR", value_hint = ValueHint::DirPath)]
    pub(crate) data: PathBuf,
    #[command(flatten)]
    pub(crate) edge: EdgeArg,
    /// What links start with; its host is the Host of each PURGE. The edge's own host unless given.
    #[arg(long, value_name = "URL", value_parser = public_url)]
    pub(crate) public_url: Option<reqwest::Url>,
    /// How many messages are worked on at one time.
    #[arg(long, default_value_t = CONCURRENCY_DEFAULT, value_name = "N", value_parser = concurrency)]
    pub(crate) concurrency: usize,
    /// Where metrics are served; port 0 is a free one.
    #[arg(long, default_value = "127.0.0.1:0", value_name = "ADDR")]
    pub(crate) metrics: SocketAddr,
    /// Addresses of shards; what runs on the data directory unless given.
    #[arg(long, value_delimiter = ',', value_name = "ADDR,ADDR")]
    pub(crate) shards_at: Vec<String>,
    #[command(flatten)]
    pub(crate) parent: ParentArg,
}

#[derive(Debug, Args)]
pub(crate) struct UrlArg {
    /// The server.
    #[arg(long, env = "OSTRACA_URL", default_value = "http://127.0.0.1:8080", value_name = "URL", value_hint = ValueHint::Url)]
    pub(crate) url: String,
}

#[derive(Debug, Args)]
pub(crate) struct PasteArgs {
    /// What to save; stdin if it is `-` or left out.
    #[arg(value_hint = ValueHint::FilePath)]
    pub(crate) file: Option<PathBuf>,
    #[command(flatten)]
    pub(crate) server: UrlArg,
    /// How long it lives: `10m`, `1h`, `30d` or seconds, from 1 minute to 365 days.
    #[arg(long, value_parser = Lifetime::parse)]
    pub(crate) lifetime: Option<Lifetime>,
    /// Its language, such as `rust`.
    #[arg(long, value_parser = Syntax::parse)]
    pub(crate) syntax: Option<Syntax>,
    /// Its title.
    #[arg(long, value_parser = Title::parse)]
    pub(crate) title: Option<Title>,
    /// Repeat an earlier save: the idempotency key that it printed. A new one unless given.
    #[arg(long, value_name = "UUID", value_parser = IdempotencyKey::parse)]
    pub(crate) key: Option<IdempotencyKey>,
    /// Print the server's whole answer, the delete token included, as JSON on stdout.
    #[arg(long)]
    pub(crate) json: bool,
}

#[derive(Debug, Args)]
pub(crate) struct GetArgs {
    /// The paste's id or URL.
    #[arg(value_name = "ID|URL")]
    pub(crate) paste: String,
    #[command(flatten)]
    pub(crate) server: UrlArg,
    /// Write to this file instead of stdout.
    #[arg(short, long, value_name = "FILE", value_hint = ValueHint::FilePath)]
    pub(crate) output: Option<PathBuf>,
}

#[derive(Debug, Args)]
pub(crate) struct RmArgs {
    /// The paste's id or URL.
    #[arg(value_name = "ID|URL")]
    pub(crate) paste: String,
    #[command(flatten)]
    pub(crate) server: UrlArg,
    /// Read the delete token from this file; `-` is stdin.
    #[arg(long, value_name = "FILE", value_hint = ValueHint::FilePath)]
    pub(crate) token_file: Option<PathBuf>,
}

#[derive(Debug, Args)]
pub(crate) struct StatusArgs {
    #[command(flatten)]
    pub(crate) data: DataArg,
    /// Print JSON.
    #[arg(long)]
    pub(crate) json: bool,
}

#[derive(Debug, Subcommand)]
pub(crate) enum ClockCommand {
    /// Take a wall clock that has leapt ahead as right, on every shard.
    ///
    /// A shard does not believe a wall clock that is suddenly more than 5 minutes ahead (7 days
    /// across a reboot): until it goes back, pastes do not end by their expiry. This says that it
    /// is right. Pastes that expired by it end at once, and that cannot be taken back.
    Confirm(ConfirmClockArgs),
}

#[derive(Debug, Args)]
pub(crate) struct ConfirmClockArgs {
    #[command(flatten)]
    pub(crate) data: DataArg,
}

#[derive(Debug, Subcommand)]
pub(crate) enum DeadLettersCommand {
    /// List them, of all shards.
    #[command(
        before_long_help = "\
Examples:
  ostraca dead-letters list
  ostraca dead-letters list --json --data /var/lib/ostraca
",
        help_template = HELP_TEMPLATE
    )]
    List(ListDeadLettersArgs),
    /// Deliver one again. Count and clock of its attempts start anew; 7 days after the paste's end
    /// it is gone all the same.
    Replay(ReplayDeadLetterArgs),
}

#[derive(Debug, Args)]
pub(crate) struct ConsumerArg {
    /// Whose messages.
    #[arg(long = "consumer", default_value = ConsumerName::PURGE, value_name = "NAME", value_parser = ConsumerName::parse)]
    pub(crate) name: ConsumerName,
}

#[derive(Debug, Args)]
pub(crate) struct ListDeadLettersArgs {
    #[command(flatten)]
    pub(crate) data: DataArg,
    #[command(flatten)]
    pub(crate) consumer: ConsumerArg,
    /// Print JSON, one object a line.
    #[arg(long)]
    pub(crate) json: bool,
}

#[derive(Debug, Args)]
pub(crate) struct ReplayDeadLetterArgs {
    /// Its outbox id, as the list shows it.
    #[arg(value_name = "ID", value_parser = OutboxId::parse)]
    pub(crate) id: OutboxId,
    #[command(flatten)]
    pub(crate) data: DataArg,
    #[command(flatten)]
    pub(crate) consumer: ConsumerArg,
}

#[derive(Debug, Subcommand)]
pub(crate) enum LogCommand {
    /// Verify every checksum, and say what the logs hold. Damage ends with exit code 7.
    ///
    /// Read-only, and offline: it asks no process, and may run beside one or on a copy.
    #[command(
        before_long_help = "\
Examples:
  ostraca log verify ./ostraca-data
  ostraca log verify --json /backup/ostraca-data/shard-0
",
        after_long_help = LOOK_EXITS,
        help_template = HELP_TEMPLATE
    )]
    Verify(LogArgs),
    /// Print every record, one a line, without its payload.
    ///
    /// Read-only; may run beside a process. Of a log that is damaged, the records before the damage.
    #[command(
        before_long_help = "\
Examples:
  ostraca log dump ./ostraca-data | tail
  ostraca log dump --json ./ostraca-data/shard-0 --from 1200 --to 1300
",
        after_long_help = LOOK_EXITS,
        help_template = HELP_TEMPLATE
    )]
    Dump(DumpArgs),
    /// Show what the logs are made of: files, records by kind, epochs.
    ///
    /// Read-only; may run beside a process. Of a log that is damaged, what is before the damage.
    #[command(
        before_long_help = "\
Examples:
  ostraca log stat ./ostraca-data
  ostraca log stat --json ./ostraca-data | jq '.[].kinds'
",
        after_long_help = LOOK_EXITS,
        help_template = HELP_TEMPLATE
    )]
    Stat(LogArgs),
    /// Go on without what is damaged, the last resort: what lies behind the cut is lost.
    ///
    /// Without `--accept-loss-after` it changes nothing, and shows what a cut would keep and lose,
    /// and the command that makes it. A cut is made only while no process has the shard. Files that
    /// hold something behind the cut are copied first, into `cut-EPOCH` in the shard's directory.
    #[command(
        before_long_help = "\
Examples:
  ostraca log cut ./ostraca-data/shard-0                          what would be lost
  ostraca log cut ./ostraca-data/shard-0 --accept-loss-after 57   lose it
",
        after_long_help = CUT_EXITS,
        help_template = HELP_TEMPLATE
    )]
    Cut(CutArgs),
}

const LOOK_EXITS: &str = "\
Exit codes:
    0  nothing is wrong
    1  a log cannot be read, or a newer version wrote it
    2  usage: the command line is wrong
    3  no such directory, or no cluster in it
    7  damaged: a log is not what was written, or its epoch page is missing
  130  interrupted";

const CUT_EXITS: &str = "\
Exit codes:
    0  the cut is made, or there is nothing to cut
    1  a file cannot be read or written, or a newer version wrote it
    2  usage: not one shard, or another sequence than the last that a cut keeps
    3  no such directory, or no cluster in it
    4  conflict: a process has the shard
    5  no room for the copies or the log; nothing is cut
    7  damaged and not cut: what a cut would lose is shown
  130  interrupted";

#[derive(Debug, Args)]
pub(crate) struct LogArgs {
    /// A data directory or a shard's directory.
    #[arg(value_hint = ValueHint::DirPath)]
    pub(crate) path: PathBuf,
    /// Print JSON: one array, an object a shard.
    #[arg(long)]
    pub(crate) json: bool,
}

#[derive(Debug, Args)]
pub(crate) struct DumpArgs {
    /// A data directory or a shard's directory.
    #[arg(value_hint = ValueHint::DirPath)]
    pub(crate) path: PathBuf,
    /// Print JSON, one object a line.
    #[arg(long)]
    pub(crate) json: bool,
    /// The first record to print. Those before it are read all the same.
    #[arg(
        long,
        value_name = "SEQUENCE",
        default_value_t = 0,
        hide_default_value = true
    )]
    pub(crate) from: u64,
    /// The last record to print. What follows it is not read, and not verified.
    #[arg(long, value_name = "SEQUENCE")]
    pub(crate) to: Option<u64>,
}

#[derive(Debug, Args)]
pub(crate) struct CutArgs {
    /// The directory of one shard.
    #[arg(value_hint = ValueHint::DirPath)]
    pub(crate) path: PathBuf,
    /// Make the cut: every record after this one is lost. It must be the last one that can be
    /// kept, as the command shows it when this is left out.
    #[arg(long, value_name = "SEQUENCE")]
    pub(crate) accept_loss_after: Option<u64>,
    /// Keep no copies of what is cut off. The next start removes it.
    #[arg(long, requires = "accept_loss_after")]
    pub(crate) no_copies: bool,
}

/// An IP address or a host name, and a port. Of a name's addresses the one that people write.
fn listen_address(text: &str) -> Result<SocketAddr, String> {
    let found: Vec<_> = text.to_socket_addrs().into_iter().flatten().collect();
    let address = found.iter().find(|address| address.is_ipv4());
    address.or(found.first()).copied().ok_or_else(|| {
        "an address and a port, such as 127.0.0.1:8080, localhost:8080 or 0.0.0.0:8080".to_owned()
    })
}

fn body_size(text: &str) -> Result<usize, String> {
    match text.parse() {
        Ok(size) if (1..=BODY_SIZE_MAX).contains(&size) => Ok(size),
        _ => Err(format!("a number of bytes from 1 to {BODY_SIZE_MAX}")),
    }
}

fn concurrency(text: &str) -> Result<usize, String> {
    match text.parse() {
        Ok(n) if (1..=CONCURRENCY_MAX).contains(&n) => Ok(n),
        _ => Err(format!("a number from 1 to {CONCURRENCY_MAX}")),
    }
}

fn public_url(text: &str) -> Result<reqwest::Url, String> {
    match reqwest::Url::parse(text) {
        Ok(url) if url.has_host() => Ok(url),
        _ => Err("http:// or https:// and a host".to_owned()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use clap::CommandFactory as _;

    #[test]
    fn the_command_line_is_consistent() {
        Cli::command().debug_assert();
    }

    #[test]
    fn the_long_help_starts_with_examples() {
        let help = Cli::command().render_long_help().to_string();
        let at = |text: &str| {
            help.find(text)
                .unwrap_or_else(|| panic!("no {text} in:\n{help}"))
        };
        assert!(at("Examples:") < at("Usage:"));
        assert!(at("Usage:") < at("Exit codes:"));
        assert!(
            !Cli::command()
                .render_help()
                .to_string()
                .contains("Examples:")
        );
    }

    #[test]
    fn an_address_may_be_a_name() {
        let address = "127.0.0.1:8081".parse();
        assert_eq!(listen_address("127.0.0.1:8081").ok(), address.clone().ok());
        assert_eq!(listen_address("localhost:8081").ok(), address.ok());
        for text in [":8081", "localhost", "8081", "127.0.0.1:x"] {
            let refused = listen_address(text).expect_err(text);
            assert!(refused.contains("127.0.0.1:8080"), "{refused}");
        }
    }

    #[test]
    fn k16_no_flag_takes_a_token() {
        for command in Cli::command().get_subcommands() {
            let token = command
                .get_arguments()
                .find(|arg| arg.get_long() == Some("token"));
            assert!(token.is_none(), "{}", command.get_name());
        }
    }
}
