//! `ostraca dead-letters`: messages that were given up.

use std::io::{self, Write as _};

use ostraca_client::{Client, DeadLetter, Error, Shard};
use ostraca_types::{ConsumerName, ErrorKind, Reason, ShardId};
use serde::Serialize;

use crate::args::{DataArg, DeadLettersCommand, ListDeadLettersArgs, ReplayDeadLetterArgs};
use crate::data;
use crate::exit::{Exit, Failure, say, written};
use crate::frontend::shards;
use crate::log::rfc3339;
use crate::signals::interruptible;

/// Dead letters of one answer.
const PAGE_SIZE: usize = 100;

/// One dead letter, as `list --json` prints it.
#[derive(Serialize)]
struct Line<'a> {
    shard: u16,
    outbox_id: String,
    paste_id: String,
    ended_at: String,
    attempts: u32,
    dead_at: String,
    last_error: Option<&'a str>,
}

pub(crate) fn run(command: DeadLettersCommand) -> Result<(), Failure> {
    interruptible(async {
        match command {
            DeadLettersCommand::List(args) => list(&args).await,
            DeadLettersCommand::Replay(args) => replay(&args).await,
        }
    })
}

fn client(data: &DataArg) -> Result<Client, Failure> {
    let data = data::open(&data.path)?;
    Ok(shards(&data, Vec::new()))
}

/// Lists every shard's, also after one that does not answer; ends with the first trouble.
async fn list(args: &ListDeadLettersArgs) -> Result<(), Failure> {
    let client = client(&args.data)?;
    let mut shards = client.shards().await.map_err(failure)?;
    shards.sort_by_key(|shard| shard.id);
    let mut listing = Listing::new(args.json);
    let mut trouble = None;
    for shard in shards {
        match list_shard(&client, &shard, &args.consumer.name, &mut listing).await {
            Ok(()) => {}
            Err(Stopped::Stdout(err)) => return written(Err(err)),
            Err(Stopped::Shard(err)) => {
                say(format_args!("shard-{}: {err}", shard.id));
                trouble.get_or_insert(failure(err));
            }
        }
    }
    trouble.map_or(Ok(()), Err)
}

/// Why a listing ended early.
enum Stopped {
    Shard(Error),
    Stdout(io::Error),
}

async fn list_shard(
    client: &Client,
    shard: &Shard,
    consumer: &ConsumerName,
    listing: &mut Listing,
) -> Result<(), Stopped> {
    let mut after = None;
    loop {
        let page = client
            .dead_letters(shard, consumer, PAGE_SIZE, after.as_deref())
            .await
            .map_err(Stopped::Shard)?;
        for letter in &page.letters {
            listing.print(shard.id, letter).map_err(Stopped::Stdout)?;
        }
        after = page.next;
        if after.is_none() {
            return Ok(());
        }
    }
}

/// What goes to stdout: a heading before the first line of a table.
struct Listing {
    json: bool,
    headed: bool,
}

impl Listing {
    const fn new(json: bool) -> Self {
        Self { json, headed: json }
    }

    fn print(&mut self, shard: ShardId, letter: &DeadLetter) -> io::Result<()> {
        let mut stdout = io::stdout().lock();
        if !self.headed {
            self.headed = true;
            writeln!(
                stdout,
                "{}",
                row("ID", "PASTE", "ENDED", "TRIES", "GIVEN UP", "WHY")
            )?;
        }
        if self.json {
            let line = Line {
                shard: shard.0,
                outbox_id: letter.outbox_id.to_string(),
                paste_id: letter.paste_id.to_string(),
                ended_at: rfc3339(letter.ended_at),
                attempts: letter.attempts,
                dead_at: rfc3339(letter.dead_at),
                last_error: letter.last_error.as_deref(),
            };
            serde_json::to_writer(&mut stdout, &line)?;
            return writeln!(stdout);
        }
        let line = row(
            &letter.outbox_id.to_string(),
            letter.paste_id.as_str(),
            &rfc3339(letter.ended_at),
            &letter.attempts.to_string(),
            &rfc3339(letter.dead_at),
            &printable(letter.last_error.as_deref().unwrap_or("timed out")),
        );
        writeln!(stdout, "{line}")
    }
}

fn row(id: &str, paste: &str, ended: &str, tries: &str, dead: &str, why: &str) -> String {
    format!("{id:<22}  {paste:<14}  {ended:<24}  {tries:>5}  {dead:<24}  {why}")
}

/// A consumer's words on a terminal.
fn printable(text: &str) -> String {
    let shown = |c: char| if c.is_control() { '\u{fffd}' } else { c };
    text.chars().map(shown).collect()
}

async fn replay(args: &ReplayDeadLetterArgs) -> Result<(), Failure> {
    let client = client(&args.data)?;
    client
        .replay_dead_letter(&args.consumer.name, &args.id)
        .await
        .map_err(failure)
}

fn failure(err: Error) -> Failure {
    let exit = match err.kind() {
        _ if err.reason() == Some(Reason::DeadlineExceeded) => Exit::Timeout,
        ErrorKind::NotFound => Exit::NotFound,
        ErrorKind::Busy
        | ErrorKind::Full
        | ErrorKind::NotLeader
        | ErrorKind::Unavailable
        | ErrorKind::Unknown => Exit::Unavailable,
        ErrorKind::Damaged | ErrorKind::Sealed => Exit::Damaged,
        ErrorKind::Rejected | ErrorKind::Exists | ErrorKind::Denied | ErrorKind::TooLate => {
            Exit::Failed
        }
    };
    Failure::caused(exit, &err)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_reason_moves_no_cursor() {
        assert_eq!(printable("a\x1b[2J\nb"), "a\u{fffd}[2J\u{fffd}b");
    }

    #[test]
    fn columns_are_aligned() {
        let id = "0".repeat(22);
        let head = row("ID", "PASTE", "ENDED", "TRIES", "GIVEN UP", "WHY");
        let line = row(
            &id,
            &"0".repeat(14),
            "2026-01-01T00:00:00.123Z",
            "12",
            "2026-01-01T00:00:00.123Z",
            "why",
        );
        assert_eq!(head.find("WHY"), line.find("why"));
    }
}
