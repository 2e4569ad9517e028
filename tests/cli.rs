//! The command line as a person and a script meet it: output, exit codes, and what a build has.

#![expect(clippy::disallowed_methods, reason = "a test has files of its own")]

use std::fs;
use std::net::TcpListener;

use ostraca_tests::{Ended, Options, Up, command, key, run, run_while, signal};
use serde_json::Value;

const BINARY: &str = env!("CARGO_BIN_EXE_ostraca");

/// Runs the binary without a server.
fn ostraca(arguments: &[&str]) -> Ended {
    let mut command = command(BINARY);
    command.args(arguments);
    run(command, b"")
}

fn expect(ended: Ended, code: i32) -> Ended {
    assert_eq!(
        ended.code(),
        Some(code),
        "stdout: {}\nstderr: {}",
        ended.text(),
        ended.stderr
    );
    ended
}

/// Saves `body`, and returns URL and token as they are printed.
fn paste(up: &Up, arguments: &[&str], body: &[u8]) -> (String, String) {
    let ended = expect(up.run(&[&["paste"], arguments].concat(), body), 0);
    let url = ended.text().strip_suffix('\n').expect("a line").to_owned();
    assert!(!url.contains('\n'), "the URL and nothing else: {url}");
    let token = ended
        .stderr
        .trim()
        .strip_prefix("delete token: ")
        .expect("the token")
        .to_owned();
    assert_eq!(token.len(), 22);
    (url, token)
}

#[test]
fn a_paste_is_saved_read_and_removed() {
    let up = Options::new(BINARY).start();
    let body = ostraca_tests::bytes(3, 100_000);
    let (url, token) = paste(
        &up,
        &[
            "--lifetime",
            "10m",
            "--syntax",
            "rust",
            "--title",
            "ein Titel mit ö",
        ],
        &body,
    );
    assert!(url.starts_with(&up.url), "{url}");
    let id = url.rsplit('/').next().expect("an id");
    for name in [id, &url, &format!("{url}/raw")] {
        let got = expect(up.run(&["get", name], b""), 0);
        assert!(
            got.stdout == body && got.stderr.is_empty(),
            "{name}: {}",
            got.stderr
        );
    }
    let file = up.scratch().join("copy");
    let file = file.to_str().expect("UTF-8");
    assert!(
        expect(up.run(&["get", id, "-o", file], b""), 0)
            .stdout
            .is_empty()
    );
    assert!(fs::read(file).expect("the file") == body);
    let row = up.http().get(&format!("/api/v1/pastes/{id}")).json();
    assert_eq!(
        (row["syntax"].as_str(), row["title"].as_str()),
        (Some("rust"), Some("ein Titel mit ö"))
    );

    let removed = expect(up.run(&["rm", &url], token.as_bytes()), 0);
    assert!(removed.stdout.is_empty() && removed.stderr.is_empty());
    expect(up.run(&["get", id], b""), 3);
    expect(up.run(&["rm", id], token.as_bytes()), 3);
}

#[test]
fn k02_a_save_is_repeated_with_its_key() {
    let up = Options::new(BINARY).start();
    let key = key();
    let file = up.scratch().join("text");
    fs::write(&file, "from a file").expect("written");
    let file = file.to_str().expect("UTF-8");
    let first = paste(&up, &["--key", &key, file], b"");
    assert_eq!(
        paste(&up, &["--key", &key, "-"], b"from a file"),
        first,
        "the first answer"
    );
    let other = expect(up.run(&["paste", "--key", &key], b"another text"), 4);
    assert!(
        other.stdout.is_empty() && !other.stderr.contains(&first.1),
        "{}",
        other.stderr
    );
    assert!(
        !other.stderr.contains("--key"),
        "no repetition helps: {}",
        other.stderr
    );
    let json = expect(up.run(&["paste", "--key", &key, "--json", file], b""), 0);
    let answer: Value = serde_json::from_slice(&json.stdout).expect("JSON");
    assert_eq!(
        (answer["url"].as_str(), answer["delete_token"].as_str()),
        (Some(first.0.as_str()), Some(first.1.as_str()))
    );
}

/// Goal: the token is taken from stdin, a file or the environment, and a wrong one changes nothing.
#[test]
fn r03_rm_takes_the_token_from_stdin_a_file_or_the_environment() {
    let up = Options::new(BINARY).start();
    let (stays, _) = paste(&up, &[], b"text");
    let (url, token) = paste(&up, &[], b"text");
    for wrong in ["", "short", "0000000000000000000000"] {
        let refused = expect(up.run(&["rm", &stays], wrong.as_bytes()), 1);
        assert!(!refused.stderr.is_empty());
    }
    expect(up.run(&["rm", &stays], token.as_bytes()), 1);
    assert_eq!(expect(up.run(&["get", &stays], b""), 0).stdout, b"text");

    let file = up.scratch().join("token");
    fs::write(&file, format!("{token}\n")).expect("written");
    expect(
        up.run(
            &["rm", &url, "--token-file", file.to_str().expect("UTF-8")],
            b"",
        ),
        0,
    );
    let (url, token) = paste(&up, &[], b"text");
    let mut by_environment = command(BINARY);
    by_environment
        .args(["rm", &url])
        .env("OSTRACA_TOKEN", &token);
    expect(run(by_environment, b""), 0);
    let flag = expect(up.run(&["rm", &stays, "--token", &token], b""), 2);
    assert!(!flag.stdout.contains(&b'0'), "no flag takes it");
}

#[test]
fn failures_have_their_exit_codes() {
    for arguments in [
        &["nonsense"][..],
        &[],
        &["get"],
        &["paste", "--lifetime", "1s"],
        &["paste", "--key", "00000000-0000-0000-0000-000000000000"],
        &["up", "--shards", "0"],
        &["up", "--grpc-ip", "0.0.0.0"],
        &["up", "--body-size-max", "0"],
        &["--log", "a=b=c", "status"],
        &["get", "--url", "127.0.0.1:8080", "00000000000000"],
        &["get", "--url", "localhost:8080", "00000000000000"],
    ] {
        let ended = expect(ostraca(arguments), 2);
        assert!(
            ended.stdout.is_empty() && !ended.stderr.is_empty(),
            "{arguments:?}"
        );
    }
    for arguments in [
        &["get", "no-id"][..],
        &["status", "--data", "/nonexistent"],
        &["log", "verify", "/nonexistent"],
        &["shard", "--data", "/nonexistent", "--shard", "0"],
    ] {
        expect(ostraca(arguments), 3);
    }
    for arguments in [
        &["paste", "/nonexistent/file"][..],
        &["paste", "/tmp"],
        &["rm", "00000000000000", "--token-file", "/nonexistent/file"],
    ] {
        let ended = expect(ostraca(arguments), 1);
        let file = arguments.last().expect("a file");
        assert!(ended.stderr.contains(file), "{}", ended.stderr);
    }
    // A port that was free a moment ago.
    let closed = TcpListener::bind("127.0.0.1:0")
        .expect("a port")
        .local_addr()
        .expect("an address");
    let url = format!("http://{closed}");
    expect(ostraca(&["get", "--url", &url, "00000000000000"]), 5);
    let lost = expect(ostraca(&["paste", "--url", &url, "-"]), 5);
    let key = lost
        .stderr
        .split("--key ")
        .nth(1)
        .and_then(|rest| rest.split_whitespace().next());
    assert_eq!(
        key.map(str::len),
        Some(36),
        "the key to repeat it with: {}",
        lost.stderr
    );
    let lines: Vec<_> = lost.stderr.lines().collect();
    assert!(
        lines[0].contains(&format!("cannot reach {url}")) && lines[0].contains("`ostraca up`"),
        "first what went wrong: {}",
        lost.stderr
    );
}

/// Goal: a save whose URL could not be printed can be found, deleted and repeated all the same.
#[test]
fn a_save_whose_url_nobody_took_is_told_on_stderr() {
    let up = Options::new(BINARY).shards(1).start();
    let mut save = std::process::Command::new("sh");
    let script = "exec \"$0\" paste --url \"$1\" - > /dev/full";
    save.args(["-c", script, BINARY, &up.url]);
    let saved = expect(run(save, b"text"), 1);
    let told = |before: &str| {
        let (_, after) = saved.stderr.split_once(before).expect(before);
        after.split_whitespace().next().expect("a word").to_owned()
    };
    let (url, token, key) = (told("saved as "), told("delete token: "), told("--key "));
    assert_eq!(
        paste(&up, &["--key", &key], b"text"),
        (url.clone(), token.clone())
    );
    expect(up.run(&["rm", &url], token.as_bytes()), 0);
}

/// Goal: plain HTTP needs no certificates, which small containers do not have.
#[test]
fn plain_http_works_without_the_systems_certificates() {
    let up = Options::new(BINARY).shards(1).start();
    let mut save = command(BINARY);
    save.args(["paste", "--url", &up.url]);
    save.env("SSL_CERT_FILE", "/nonexistent")
        .env("SSL_CERT_DIR", "/nonexistent");
    expect(run(save, b"text"), 0);
}

/// Goal: a save that is interrupted, its outcome unknown, can be repeated.
#[test]
fn an_interrupted_save_says_how_to_repeat_it() {
    let silent = TcpListener::bind("127.0.0.1:0").expect("a port");
    let url = format!("http://{}", silent.local_addr().expect("an address"));
    let mut save = command(BINARY);
    save.args(["paste", "--url", &url]);
    // Open until the process has ended: a reset would be another failure than the signal.
    let mut connection = None;
    let ended = run_while(save, b"text", |pid| {
        connection = Some(silent.accept().expect("the request"));
        signal("INT", pid);
    });
    drop(connection);
    let ended = expect(ended, 130);
    assert!(
        ended.stdout.is_empty() && ended.stderr.contains("--key "),
        "{}",
        ended.stderr
    );
}

#[test]
fn status_tells_who_runs() {
    let mut up = Options::new(BINARY).shards(2).start();
    let data = up.data();
    let data = data.to_str().expect("UTF-8");
    let _ = paste(&up, &[], b"text");
    let table = expect(up.run(&["status", "--data", data], b""), 0);
    let lines: Vec<_> = table.text().lines().collect();
    assert_eq!(
        lines.len(),
        6,
        "a heading, up, two shards, a frontend, a worker:\n{}",
        table.text()
    );
    assert!(
        lines[0].starts_with("NAME") && lines[2].contains("0-127"),
        "{}",
        table.text()
    );
    let json = expect(up.run(&["status", "--json", "--data", data], b""), 0);
    let json: Value = serde_json::from_slice(&json.stdout).expect("JSON");
    assert_eq!(json["serving"], true);
    let pids: Vec<_> = json["processes"]
        .as_array()
        .expect("a list")
        .iter()
        .map(|one| one["pid"].clone())
        .collect();
    let listed: Vec<_> = up
        .endpoints()
        .iter()
        .map(|one| one["pid"].clone())
        .collect();
    assert_eq!(pids, listed);
    assert_eq!(up.stop().code(), Some(0));
    let stopped = expect(up.run(&["status", "--data", data], b""), 5);
    assert_eq!(
        stopped.text().matches("missing").count(),
        5,
        "{}",
        stopped.text()
    );
}

/// Goal: a log is looked at without changing it or showing what it holds.
#[test]
fn k16_a_log_is_verified_and_dumped_without_its_payloads() {
    let mut up = Options::new(BINARY).shards(1).start();
    let key = key();
    let (url, token) = paste(&up, &["--key", &key, "--title", "Geheimnis"], b"text");
    expect(up.run(&["rm", &url], token.as_bytes()), 0);
    assert_eq!(up.stop().code(), Some(0));
    let data = up.data();
    for path in [data.clone(), data.join("shard-0")] {
        let path = path.to_str().expect("UTF-8");
        let verified = expect(up.run(&["log", "verify", path], b""), 0);
        assert!(
            verified.text().starts_with("shard-0  valid"),
            "{}",
            verified.text()
        );
        let json = expect(up.run(&["log", "verify", "--json", path], b""), 0);
        let json: Value = serde_json::from_slice(&json.stdout).expect("JSON");
        let dumped = expect(up.run(&["log", "dump", "--json", path], b""), 0);
        let records: Vec<Value> = dumped
            .text()
            .lines()
            .map(|line| serde_json::from_str(line).expect("JSON"))
            .collect();
        assert_eq!(json[0]["records"].as_u64(), Some(records.len() as u64));
        for kind in ["create", "end"] {
            assert_eq!(
                records
                    .iter()
                    .filter(|record| record["kind"] == kind)
                    .count(),
                1,
                "{kind}"
            );
        }
        let text = expect(up.run(&["log", "dump", path], b""), 0);
        assert_eq!(text.text().lines().count(), records.len());
        for secret in [&key, &token, "Geheimnis"] {
            assert!(!text.text().contains(secret) && !dumped.text().contains(secret));
        }
    }
}

#[test]
fn completions_and_help_go_to_stdout() {
    for shell in ["bash", "zsh", "fish"] {
        assert!(
            expect(ostraca(&["completions", shell]), 0)
                .text()
                .contains("ostraca"),
            "{shell}"
        );
    }
    let help = expect(ostraca(&["--help"]), 0);
    assert!(help.text().contains("Examples:") && help.text().contains("Exit codes:"));
    assert!(help.stderr.is_empty());
}

/// Goal: a reader that has seen enough is no failure and no panic.
#[test]
fn a_closed_pipe_is_no_failure() {
    let up = Options::new(BINARY).start();
    let (url, _) = paste(&up, &[], &ostraca_tests::bytes(5, 1 << 20));
    let mut command = std::process::Command::new("sh");
    command.args([
        "-c",
        "{ \"$0\" get \"$1\"; echo $? >&2; } | head -c 1",
        BINARY,
        &url,
    ]);
    let ended = expect(run(command, b""), 0);
    assert_eq!((ended.stdout.len(), ended.stderr.trim()), (1, "0"));
}

/// Goal: the default build has no way to bend clocks or disks.
#[cfg(not(feature = "faults"))]
#[test]
fn the_default_build_has_no_faults() {
    let version = expect(ostraca(&["--version"]), 0);
    assert_eq!(
        version.text().trim(),
        format!("ostraca {}", env!("CARGO_PKG_VERSION"))
    );
    let binary = fs::read(BINARY).expect("the binary");
    let has = |name: &[u8]| binary.windows(name.len()).any(|part| part == name);
    assert!(
        has(b"OSTRACA_LOG"),
        "names of variables are found in the binary"
    );
    assert!(!has(b"OSTRACA_FAULTS"), "and this one is not");

    let clock = ostraca_tests::faults::Clock::stopped();
    let up = Options::new(BINARY)
        .environment("OSTRACA_FAULTS", &clock.variable())
        .shards(1)
        .start();
    let now = || {
        let data = up.data();
        let status = expect(
            up.run(
                &["status", "--json", "--data", data.to_str().expect("UTF-8")],
                b"",
            ),
            0,
        );
        let status: Value = serde_json::from_slice(&status.stdout).expect("JSON");
        status["processes"][1]["shard"]["now_ms"]
            .as_u64()
            .expect("a time")
    };
    let before = now();
    let _ = paste(&up, &[], b"text");
    ostraca_tests::poll("the shard's clock runs", || (now() > before).then_some(()));
}

/// Goal: and the faults build says that it is one.
#[test]
fn the_faults_build_says_so() {
    let program = if cfg!(feature = "faults") {
        BINARY.into()
    } else {
        ostraca_tests::faults::binary(BINARY)
    };
    let mut version = command(program);
    version.arg("--version");
    assert_eq!(
        expect(run(version, b""), 0).text().trim(),
        format!("ostraca {} faults", env!("CARGO_PKG_VERSION"))
    );
}
