//! Keeps one child process running.

use std::ffi::OsString;
use std::io;
use std::net::SocketAddr;
use std::path::PathBuf;
use std::pin::pin;
use std::process::Stdio;
use std::time::Duration;

use ostraca_io::process;
use ostraca_server::endpoints::Role;
use ostraca_types::ShardId;
use tokio::io::{AsyncBufReadExt as _, BufReader};
use tokio::process::{Child as Process, Command};
use tokio::sync::{mpsc, watch};
use tokio::time::{sleep, timeout};

use crate::exit::Exit;

/// The first restart comes at once, as far as a person or a client with a retry can tell.
const DELAY_FIRST: Duration = Duration::from_millis(50);
/// What dies again and again is not worth more of the machine than this.
const DELAY_MAX: Duration = Duration::from_secs(5);
/// A child that lived this long died of something new.
const LIFE_LONG: Duration = Duration::from_secs(10);
/// How long a child may drain. Above the drain limits of shard, frontend and worker.
const STOP_LIMIT: Duration = Duration::from_secs(15);

/// How far stopping has come. It only grows.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Stage {
    Run,
    /// First what calls shards, so that no call reaches a shard that is draining.
    StopCallers,
    StopShards,
    Kill,
}

/// A child process and how to start it.
#[derive(Debug)]
pub(super) struct Child {
    pub(super) name: String,
    pub(super) role: Role,
    /// Which one, of a shard's process.
    pub(super) shard: Option<ShardId>,
    pub(super) program: PathBuf,
    pub(super) arguments: Vec<OsString>,
    pub(super) listen_flag: &'static str,
    /// Port 0: a free one at the first start, and the same again at later ones if it can be had.
    pub(super) listen: SocketAddr,
}

/// What happened to a child.
#[derive(Debug)]
pub(super) enum News {
    Started {
        pid: u32,
    },
    /// It serves, at this address or URL; or would, if the shard's other process did not.
    Ready {
        leads: bool,
        address: String,
        /// Where its metrics are, if the line says so.
        metrics: Option<String>,
    },
    /// `exit` is `None` after a signal.
    Ended {
        exit: Option<Exit>,
    },
}

/// News of the child with this index.
#[derive(Debug)]
pub(super) struct Event {
    pub(super) child: usize,
    pub(super) news: News,
}

/// Tells the supervisor about one child.
struct Teller {
    child: usize,
    news: mpsc::Sender<Event>,
}

impl Teller {
    async fn tell(&self, news: News) {
        // The supervisor listens until every keeper has returned.
        let _ = self
            .news
            .send(Event {
                child: self.child,
                news,
            })
            .await;
    }
}

/// One run of the process, from start to end.
struct Life {
    /// What ended it; `None` after a signal.
    exit: Option<Exit>,
    /// Where it listened, if it came to that.
    bound: Option<SocketAddr>,
    long: bool,
}

impl Child {
    /// Starts the child, and again whenever it ends, until it is time to stop or its data is found
    /// damaged. On return there is no process left.
    pub(super) async fn keep(
        self,
        index: usize,
        mut stage: watch::Receiver<Stage>,
        news: mpsc::Sender<Event>,
    ) {
        let teller = Teller { child: index, news };
        let mut listen = self.listen;
        let mut delay = DELAY_FIRST;
        loop {
            let life = match self.live(listen, &mut stage, &teller).await {
                Ok(Some(life)) => life,
                Ok(None) => return,
                Err(err) => {
                    tracing::error!(event = "child_not_started", name = self.name, %err, "cannot start");
                    Life {
                        exit: Some(Exit::Failed),
                        bound: None,
                        long: false,
                    }
                }
            };
            teller.tell(News::Ended { exit: life.exit }).await;
            if life.exit == Some(Exit::Damaged) {
                return;
            }
            listen = self.next_listen(listen, &life);
            if life.long {
                delay = DELAY_FIRST;
            }
            // By then the supervisor may have found that there is no use in it.
            if timeout(delay, self.time_to_stop(&mut stage)).await.is_ok() {
                return;
            }
            let delay_ms = u64::try_from(delay.as_millis()).unwrap_or(u64::MAX);
            tracing::warn!(
                event = "child_restarts",
                name = self.name,
                delay_ms,
                "starts again"
            );
            delay = (delay * 2).min(DELAY_MAX);
        }
    }

    fn next_listen(&self, last: SocketAddr, life: &Life) -> SocketAddr {
        match life.bound {
            Some(bound) if self.listen.port() == 0 => bound,
            // It may be that the port was taken meanwhile.
            None if matches!(life.exit, Some(Exit::Failed | Exit::Conflict)) => self.listen,
            _ => last,
        }
    }

    /// One life; `None` if it was ended because it is time to stop.
    async fn live(
        &self,
        listen: SocketAddr,
        stage: &mut watch::Receiver<Stage>,
        teller: &Teller,
    ) -> io::Result<Option<Life>> {
        let mut process = self.start(listen)?;
        let pid = process.id().unwrap_or_default();
        tracing::info!(event = "child_started", name = self.name, pid, "started");
        teller.tell(News::Started { pid }).await;
        let stdout = process.stdout.take().ok_or(io::ErrorKind::BrokenPipe)?;
        let mut lines = BufReader::new(stdout).lines();
        let mut reads = true;
        let mut bound = None;
        let mut long = pin!(sleep(LIFE_LONG));
        let status = loop {
            tokio::select! {
                status = process.wait() => break status?,
                line = lines.next_line(), if reads => match line {
                    Ok(Some(line)) => if let Some((leads, address, socket)) = ready_address(&line) {
                        bound = socket;
                        let event = if leads { "child_ready" } else { "child_stands_by" };
                        tracing::info!(event, name = self.name, address);
                        let metrics = ready_metrics(&line);
                        teller.tell(News::Ready { leads, address, metrics }).await;
                    },
                    _ => reads = false,
                },
                () = long.as_mut(), if !long.is_elapsed() => {}
                () = self.time_to_stop(stage) => {
                    self.end(process, stage).await?;
                    return Ok(None);
                }
            }
        };
        tracing::warn!(event = "child_ended", name = self.name, pid, %status, "ended");
        // A code that is none of ours is a failure of another kind than a signal.
        let exit = status
            .code()
            .map(|code| Exit::from_code(code).unwrap_or(Exit::Failed));
        Ok(Some(Life {
            exit,
            bound,
            long: long.is_elapsed(),
        }))
    }

    fn start(&self, listen: SocketAddr) -> io::Result<Process> {
        Command::new(&self.program)
            .args(&self.arguments)
            .arg(self.listen_flag)
            .arg(listen.to_string())
            .arg("--parent")
            .arg(std::process::id().to_string())
            .stdin(Stdio::null())
            .stdout(Stdio::piped())
            // Ctrl-C on the terminal goes to `up` alone, which stops the children in order.
            .process_group(0)
            .kill_on_drop(true)
            .spawn()
    }

    /// Asks the process to stop, and ends it if it does not in time or there is no time left.
    async fn end(
        &self,
        mut process: Process,
        stage: &mut watch::Receiver<Stage>,
    ) -> io::Result<()> {
        if *stage.borrow() < Stage::Kill
            && let Some(pid) = process.id()
        {
            match process::terminate(pid) {
                Err(err) if err.kind() == io::ErrorKind::NotFound => {}
                other => other?,
            }
            tokio::select! {
                status = process.wait() => {
                    tracing::info!(event = "child_stopped", name = self.name, status = %status?, "stopped");
                    return Ok(());
                }
                () = sleep(STOP_LIMIT) => {
                    tracing::warn!(event = "child_killed", name = self.name, pid, "did not stop in time");
                }
                () = reached(stage, Stage::Kill) => {}
            }
        }
        process.kill().await
    }

    async fn time_to_stop(&self, stage: &mut watch::Receiver<Stage>) {
        let at = match self.role {
            Role::Frontend | Role::Worker => Stage::StopCallers,
            Role::Shard | Role::Up => Stage::StopShards,
        };
        reached(stage, at).await;
    }
}

/// Waits until stopping has come to `at`. A supervisor that is gone is the end, too.
async fn reached(stage: &mut watch::Receiver<Stage>, at: Stage) {
    let _ = stage.wait_for(|&now| now >= at).await;
}

/// The address in a child's ready or standby line, as it stands there and as a socket's.
fn ready_address(line: &str) -> Option<(bool, String, Option<SocketAddr>)> {
    let (word, rest) = line.split_once(' ')?;
    let leads = match word {
        "ready" => true,
        "standby" => false,
        _ => return None,
    };
    let first = rest.split(' ').next()?;
    let (_, address) = first.split_once('=')?;
    let socket = address
        .strip_prefix("http://")
        .unwrap_or(address)
        .parse()
        .ok();
    Some((leads, address.to_owned(), socket))
}

/// Where a child's ready line says that its metrics are.
fn ready_metrics(line: &str) -> Option<String> {
    let mut words = line.split(' ');
    let metrics = words.find_map(|word| word.strip_prefix("metrics="))?;
    Some(metrics.to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_ready_line_names_the_address() {
        let socket = "127.0.0.1:5000".parse().ok();
        for address in ["127.0.0.1:5000", "http://127.0.0.1:5000"] {
            let read = ready_address(&format!("ready grpc={address} metrics=http://x"));
            assert_eq!(read, Some((true, address.to_owned(), socket)));
            let read = ready_address(&format!("standby grpc={address} metrics=http://x"));
            assert_eq!(read, Some((false, address.to_owned(), socket)));
        }
        assert_eq!(ready_address("readying"), None);
    }
}
