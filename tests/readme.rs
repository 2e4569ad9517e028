//! Every line of shell that the README and the frontend's help show is run as it is shown, but for
//! the address, which is a free one. Needs bash and curl, so it runs under OSTRACA_EXTERNAL=1.

#![expect(
    clippy::disallowed_methods,
    clippy::print_stderr,
    reason = "a test has files and a terminal of its own"
)]

use std::os::unix::fs::symlink;

use ostraca_tests::{Ended, Options, Up, command, run};

const BINARY: &str = env!("CARGO_BIN_EXE_ostraca");
const README: &str = include_str!("../README.md");

/// Whether to run; says so where it does not.
fn external() -> bool {
    let external = std::env::var_os("OSTRACA_EXTERNAL").is_some();
    if !external {
        eprintln!("not run without OSTRACA_EXTERNAL=1: the README's commands (bash, curl)");
    }
    external
}

/// The lines of the blocks of shell in a part of the README.
fn shell_of(text: &str) -> String {
    let mut lines = String::new();
    let mut inside = false;
    for line in text.lines() {
        match line {
            "```sh" => inside = true,
            "```" => inside = false,
            _ if inside => {
                lines.push_str(line);
                lines.push('\n');
            }
            _ => {}
        }
    }
    lines
}

/// Runs `script` as a person would beside `up`: in a directory with a built binary and the data.
fn shell(up: &Up, script: &str) -> Ended {
    let home = up.scratch();
    let release = home.join("target/release");
    std::fs::create_dir_all(&release).expect("a directory");
    symlink(BINARY, release.join("ostraca")).expect("a link");
    symlink(up.data(), home.join("ostraca-data")).expect("a link");
    let mut bash = command("bash");
    bash.args(["-u", "-o", "pipefail", "-c"])
        .arg(script.replace("http://127.0.0.1:8080", &up.url))
        .current_dir(home)
        .env("OSTRACA_URL", &up.url);
    run(bash, b"")
}

#[test]
fn the_readme_does_what_it_says() {
    if !external() {
        return;
    }
    let up = Options::new(BINARY).start();
    let (_, examples) = README.split_once("\n## Try it\n").expect("the section");
    let script = shell_of(examples);
    assert!(script.contains("kill -9"), "the examples are found");
    let ended = shell(&up, &script);
    let (text, talk) = (ended.text(), &ended.stderr);
    assert_eq!(ended.code(), Some(0), "{text}\n{talk}");
    let shown = [
        "\"delete_token\":\"",        // create
        "HTTP/1.1 201",               // retry
        "idempotency-replayed: true", // retry
        "\"IDEMPOTENCY_KEY_REUSED\"", // conflict
        "\none\ntwo\n",               // read
        "shard-0",                    // status
        "\none\ntwo\n",               // read after the kill
        "\n204\n404\n",               // delete, twice
        "\nfrom the command line\n",  // get
    ];
    let mut rest = text;
    for expected in shown {
        let (_, after) = rest
            .split_once(expected)
            .unwrap_or_else(|| panic!("{expected:?} is not shown in its place:\n{text}\n{talk}"));
        // The next one may begin where this one ends.
        let overlap = usize::from(expected.ends_with('\n'));
        rest = &text[text.len() - after.len() - overlap..];
    }
    let mut left: Vec<_> = std::fs::read_dir(up.scratch())
        .expect("a directory")
        .map(|entry| entry.expect("an entry").file_name())
        .collect();
    left.sort();
    assert_eq!(
        left,
        ["data", "ostraca-data", "stderr", "target"],
        "no token is left"
    );
}

/// BY-08: a line of documentation that mangles what it sends.
#[test]
fn the_help_does_what_it_says() {
    if !external() {
        return;
    }
    let up = Options::new(BINARY).start();
    let help = up.http().get("/help.txt");
    let lines: Vec<String> = help
        .text()
        .lines()
        .map(str::trim)
        .filter(|line| line.starts_with("curl "))
        .map(|line| format!("{line} -H 'Accept: text/plain' -w ' %{{http_code}}\\n'"))
        .collect();
    assert_eq!(lines.len(), 4, "three saves and a delete");
    let body = "two lines\r\nand no last one";
    std::fs::write(up.scratch().join("notes.txt"), body).expect("a file");
    let saves = lines[..3].join("\n");
    // Debian's uuidgen is in a package of its own.
    let uuidgen = "uuidgen() { cat /proc/sys/kernel/random/uuid; }\nKEY=$(uuidgen)\n";
    let ended = shell(&up, &format!("{uuidgen}{saves}"));
    let (text, talk) = (ended.text(), &ended.stderr);
    let urls: Vec<&str> = text
        .lines()
        .filter(|line| line.starts_with("http"))
        .collect();
    assert_eq!(urls.len(), 3, "{text}\n{talk}");
    for url in urls {
        let path = url.strip_prefix(&up.url).expect("a link of this frontend");
        assert_eq!(up.http().get(&format!("{path}/raw")).text(), body, "{url}");
    }
}

#[test]
fn i07_the_page_names_what_the_inbox_does_not_make_safe() {
    let page = include_str!("../docs/inbox.md");
    let (_, unsafe_part) = page
        .split_once("## What it does not make safe")
        .expect("the section");
    for needed in [
        "email",
        "own idempotency key",
        "the outbox id",
        "in-progress state",
    ] {
        assert!(unsafe_part.contains(needed), "{needed}");
    }
    assert!(README.contains("docs/inbox.md"));
}
