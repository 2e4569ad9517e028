//! `ostraca paste`, `get` and `rm`: a client over HTTP. Nothing is retried (k17): a person repeats
//! a save with `--key`.

mod server;

use std::fmt;
use std::fs::File;
use std::io::{self, IsTerminal as _, Read, Write};
use std::path::Path;
use std::time::Duration;

use ostraca_io::Entropy as _;
use ostraca_io::SystemEntropy;
use ostraca_types::contract::BODY_SIZE_MAX;
use ostraca_types::{DeleteToken, IdempotencyKey};
use serde::Deserialize;

use crate::args::{GetArgs, PasteArgs, RmArgs};
use crate::exit::{Exit, Failure, say, written};
use crate::signals::interruptible;
use server::{Save, Server, paste_at};

/// A token and what a person may have written around it.
const TOKEN_FILE_SIZE_MAX: u64 = 4096;
const TOKEN_VARIABLE: &str = "OSTRACA_TOKEN";
/// How `paste` introduces the token on stderr; `rm` reads such a line, too.
const TOKEN_LABEL: &str = "delete token: ";

/// The parts of the server's answer that a person sees.
#[derive(Deserialize)]
struct Answer {
    url: String,
    delete_token: String,
}

pub(crate) fn paste(args: PasteArgs) -> Result<(), Failure> {
    let body = read_body(args.file.as_deref())?;
    let key = args
        .key
        .unwrap_or_else(|| IdempotencyKey::mint(|bytes| SystemEntropy.fill(bytes)));
    let save = Save {
        key: &key,
        body,
        lifetime: args.lifetime,
        syntax: args.syntax.as_ref(),
        title: args.title.as_ref(),
    };
    let saved =
        interruptible(async { Server::new(&args.server.url)?.save(save).await }).and_then(|text| {
            let answer: Answer = serde_json::from_str(&text)
                .map_err(|err| Failure::doing(Exit::Failed, "not an answer of ostraca", &err))?;
            Ok((text, answer))
        });
    let (text, answer) = saved.map_err(|failure| {
        if may_be_repeated(failure.exit) {
            failure.repeat_with(key.clone())
        } else {
            failure
        }
    })?;
    // Before the URL, which stdout may not take.
    if !args.json {
        tell_token(&answer);
    }
    let mut stdout = io::stdout().lock();
    let told = match args.json {
        true => writeln!(stdout, "{}", text.trim_end()),
        false => writeln!(stdout, "{}", answer.url),
    };
    if told.is_err() {
        // Also when nobody reads any more: it is saved, and this is the only word of it.
        say(format_args!("saved as {}", answer.url));
        if args.json {
            tell_token(&answer);
        }
    }
    written(told).map_err(|failure| failure.repeat_with(key))
}

/// There is nowhere left to report a failure of stderr.
fn tell_token(answer: &Answer) {
    let _ = writeln!(io::stderr().lock(), "{TOKEN_LABEL}{}", answer.delete_token);
}

/// Whether the same again, with the same key, can end otherwise.
const fn may_be_repeated(exit: Exit) -> bool {
    match exit {
        Exit::Unavailable | Exit::Timeout | Exit::Interrupted | Exit::SyncFailed => true,
        Exit::Fine
        | Exit::Failed
        | Exit::Usage
        | Exit::NotFound
        | Exit::Conflict
        | Exit::Damaged => false,
    }
}

pub(crate) fn get(args: &GetArgs) -> Result<(), Failure> {
    let (base, id) = paste_at(&args.server.url, &args.paste)?;
    interruptible(async {
        let mut raw = Server::new(&base)?.raw(&id).await?;
        match &args.output {
            None => {
                let mut stdout = io::stdout().lock();
                while let Some(bytes) = server::next(&mut raw).await? {
                    match stdout.write_all(bytes.as_ref()) {
                        // The reader has seen enough.
                        Err(err) if err.kind() == io::ErrorKind::BrokenPipe => return Ok(()),
                        other => written(other)?,
                    }
                }
                written(stdout.flush())
            }
            Some(path) => {
                let fail = |err| {
                    Failure::doing(
                        Exit::Failed,
                        format_args!("cannot write {}", path.display()),
                        &err,
                    )
                };
                #[expect(
                    clippy::disallowed_methods,
                    reason = "a file of the person's, not ours"
                )]
                let mut file = File::create(path).map_err(fail)?;
                while let Some(bytes) = server::next(&mut raw).await? {
                    file.write_all(bytes.as_ref()).map_err(fail)?;
                }
                Ok(())
            }
        }
    })
}

pub(crate) fn rm(args: &RmArgs) -> Result<(), Failure> {
    let (base, id) = paste_at(&args.server.url, &args.paste)?;
    let token = read_token(args.token_file.as_deref())?;
    interruptible(async { Server::new(&base)?.delete(&id, &token).await })
}

/// Whether the frontend or worker at `url` says that it can serve; `None` if it says nothing.
pub(crate) async fn is_ready(url: &str, within: Duration) -> Option<bool> {
    let http = server::http_client(url).ok()?;
    let answer = http
        .get(format!("{url}/readyz"))
        .timeout(within)
        .send()
        .await
        .ok()?;
    Some(answer.status().is_success())
}

fn is_stdin(path: Option<&Path>) -> bool {
    path.is_none_or(|path| path == Path::new("-"))
}

#[expect(
    clippy::disallowed_methods,
    reason = "a file of the person's, not ours"
)]
fn open(path: &Path) -> Result<File, Failure> {
    File::open(path).map_err(cannot_read(path.display()))
}

fn cannot_read(what: impl fmt::Display) -> impl FnOnce(io::Error) -> Failure {
    move |err| Failure::doing(Exit::Failed, format_args!("cannot read {what}"), &err)
}

fn read_body(path: Option<&Path>) -> Result<Vec<u8>, Failure> {
    let mut body = Vec::new();
    // One byte more than any server takes, which is enough to see that it is too much.
    let limit = BODY_SIZE_MAX as u64 + 1;
    match path {
        Some(path) if !is_stdin(Some(path)) => {
            let read = open(path)?.take(limit).read_to_end(&mut body);
            read.map_err(cannot_read(path.display()))?;
        }
        _ => {
            if io::stdin().is_terminal() {
                say("type the text, then Ctrl-D");
            }
            let read = io::stdin().lock().take(limit).read_to_end(&mut body);
            read.map_err(cannot_read("stdin"))?;
        }
    }
    if body.len() > BODY_SIZE_MAX {
        let message = format!("no server takes more than {BODY_SIZE_MAX} bytes");
        return Err(Failure::new(Exit::Failed, message));
    }
    Ok(body)
}

/// From the file, else from the environment, else from stdin.
fn read_token(file: Option<&Path>) -> Result<DeleteToken, Failure> {
    let from_env = std::env::var(TOKEN_VARIABLE)
        .ok()
        .filter(|token| !token.is_empty());
    let text = match (file, from_env) {
        (None, Some(token)) => token,
        _ => {
            let mut text = String::new();
            let read = if is_stdin(file) {
                if io::stdin().is_terminal() {
                    say("type the delete token, then Enter and Ctrl-D");
                }
                io::stdin()
                    .lock()
                    .take(TOKEN_FILE_SIZE_MAX)
                    .read_to_string(&mut text)
            } else {
                let file = open(file.unwrap_or(Path::new("-")))?;
                file.take(TOKEN_FILE_SIZE_MAX).read_to_string(&mut text)
            };
            read.map_err(|err| Failure::doing(Exit::Failed, "cannot read the delete token", &err))?;
            text
        }
    };
    parse_token(&text)
}

fn parse_token(text: &str) -> Result<DeleteToken, Failure> {
    let text = text.trim();
    DeleteToken::parse(text.strip_prefix(TOKEN_LABEL).unwrap_or(text))
        .map_err(|err| Failure::caused(Exit::Failed, &err))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_token_is_read_as_it_was_printed() {
        let token = DeleteToken::from_bytes([3; 16]);
        let text = token.expose_text();
        for written in [
            text.clone(),
            format!("{text}\n"),
            format!("{TOKEN_LABEL}{text}\n"),
        ] {
            assert_eq!(parse_token(&written).expect("a token"), token);
        }
        let refused = parse_token("wrong").expect_err("no token");
        assert_eq!(refused.exit, Exit::Failed);
        assert!(!refused.to_string().contains("wrong"));
    }
}
