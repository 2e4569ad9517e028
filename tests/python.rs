//! A client in Python, generated from `proto/`, and what tools of other languages need. Needs
//! Python with venv and a registry of its packages, so it runs under OSTRACA_EXTERNAL=1.

#![expect(clippy::disallowed_methods, reason = "a test has files of its own")]

use std::os::unix::fs::symlink;
use std::path::{Path, PathBuf};
use std::process::{Command, Output};

use ostraca_tests::{Options, command, run};

const BINARY: &str = env!("CARGO_BIN_EXE_ostraca");
/// Of the workspace.
const ROOT: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/../..");
const PAGE: &str = include_str!("../docs/grpc-api.md");

/// Runs a command that may take as long as a download does.
fn done(command: &mut Command) -> Output {
    let output = command
        .output()
        .unwrap_or_else(|err| panic!("{command:?}: {err}"));
    assert!(
        output.status.success(),
        "{command:?} ended with {}\n{}{}",
        output.status,
        String::from_utf8_lossy(&output.stdout),
        String::from_utf8_lossy(&output.stderr),
    );
    output
}

/// A Python with the libraries, made once and kept as long as the list of them is the same.
fn python(requirements: &Path) -> PathBuf {
    let wanted = std::fs::read_to_string(requirements).expect("the list of libraries");
    let home = Path::new(env!("CARGO_TARGET_TMPDIR")).join("python");
    let python = home.join("bin/python");
    let made = home.join("made-of");
    if std::fs::read_to_string(&made).is_ok_and(|have| have == wanted) {
        return python;
    }
    done(
        Command::new("python3")
            .args(["-m", "venv", "--clear"])
            .arg(&home),
    );
    done(
        Command::new(&python)
            .args(["-m", "pip", "install", "--quiet", "--no-input"])
            .args(["--disable-pip-version-check", "--only-binary=:all:", "-r"])
            .arg(requirements),
    );
    std::fs::write(&made, wanted).expect("written");
    python
}

/// The code of the page in one language.
fn code_of_the_page(language: &str) -> String {
    let fence = format!("```{language}");
    let mut code = String::new();
    let mut inside = false;
    for line in PAGE.lines() {
        match line {
            "```" => inside = false,
            line if line == fence => inside = true,
            _ if inside => {
                code.push_str(line);
                code.push('\n');
            }
            _ => {}
        }
    }
    assert!(!code.is_empty(), "{language} on the page");
    code
}

/// Runs the page's shell as at the root of the repository, and makes a module of its Python.
fn generate(python: &Path, home: &Path) -> PathBuf {
    symlink(Path::new(ROOT).join("proto"), home.join("proto")).expect("a link");
    let tools = home.join("tools");
    std::fs::create_dir(&tools).expect("a directory");
    symlink(BINARY, tools.join("ostraca")).expect("a link");
    let bin = python.parent().expect("of the environment").display();
    let path = std::env::var("PATH").unwrap_or_default();
    done(
        Command::new("bash")
            .args(["-euc", &code_of_the_page("sh")])
            .current_dir(home)
            .env("PATH", format!("{bin}:{}:{path}", tools.display())),
    );
    let generated = home.join("generated");
    std::fs::write(generated.join("page.py"), code_of_the_page("python")).expect("written");
    generated
}

/// Goal: a client of another language needs `docs/grpc-api.md`, `proto/`, and nothing of ours; the
/// code on that page is right.
/// Method: see `tests/python/client.py`. Covers k02, k05, k06, f06, o01, i01 and reflection.
#[test]
fn k06_a_client_in_python_creates_reads_deletes_and_consumes() {
    if std::env::var_os("OSTRACA_EXTERNAL").is_none() {
        eprintln!("not run without OSTRACA_EXTERNAL=1: a client in Python (python3, venv, pip)");
        return;
    }
    let tests = Path::new(ROOT).join("tests/python");
    let python = python(&tests.join("requirements.txt"));
    let up = Options::new(BINARY).shards(2).start();
    let generated = generate(&python, up.scratch());
    let addresses = up
        .ready_line
        .split_whitespace()
        .find_map(|word| word.strip_prefix("grpc="));
    let mut client = command(&python);
    client
        .arg("-B")
        .arg(tests.join("client.py"))
        .arg(&generated)
        .arg(Path::new(ROOT).join("proto/golden"))
        .arg(up.data().join("bodies"))
        .args([up.url.as_str(), BINARY])
        .args(addresses.expect("addresses").split(','));
    let ended = run(client, b"");
    assert_eq!(
        (ended.code(), ended.text()),
        (Some(0), "done\n"),
        "{}",
        ended.stderr
    );
}

/// The fields of a message that has only fields number 1 of bytes.
fn repeated(mut bytes: &[u8]) -> Vec<&[u8]> {
    let mut fields = Vec::new();
    while let [0x0A, rest @ ..] = bytes {
        let end = rest.iter().position(|byte| byte & 0x80 == 0).expect("ends");
        let size = rest[..=end]
            .iter()
            .rev()
            .fold(0_usize, |size, byte| size << 7 | usize::from(byte & 0x7F));
        let (field, after) = rest[end + 1..].split_at(size);
        fields.push(field);
        bytes = after;
    }
    assert!(bytes.is_empty(), "one set of descriptors");
    fields
}

/// Goal: whoever looks up what to do after a refusal finds it.
#[test]
fn the_page_has_every_reason() {
    let reasons = include_str!("../crates/types/src/reason.rs").lines();
    let reasons: Vec<_> = reasons
        .filter_map(|line| line.trim().strip_suffix("\",")?.split_once(" = \""))
        .map(|(_, reason)| format!("`{reason}`"))
        .collect();
    assert!(reasons.len() > 20, "{reasons:?}");
    for reason in reasons {
        assert!(PAGE.contains(&reason), "{reason} is on the page");
    }
}

#[test]
fn a_protoset_is_printed() {
    let mut printing = command(BINARY);
    printing.arg("protoset");
    let ended = run(printing, b"");
    assert_eq!((ended.code(), ended.stderr.as_str()), (Some(0), ""));
    // The first field of a file is its name.
    let names: Vec<_> = repeated(&ended.stdout)
        .into_iter()
        .map(|file| {
            let size = usize::from(file[1]);
            std::str::from_utf8(&file[2..2 + size]).expect("a name")
        })
        .collect();
    let paths = ["paste", "cluster", "outbox", "inbox"].map(|name| format!("ostraca/v1/{name}"));
    for path in paths.iter().map(String::as_str).chain(["health"]) {
        let found = names.iter().filter(|name| name.starts_with(path)).count();
        assert_eq!(found, 1, "{path} in {names:?}");
    }
    let mut unique = names.clone();
    unique.sort_unstable();
    unique.dedup();
    assert_eq!(unique.len(), names.len(), "{names:?}");
}
