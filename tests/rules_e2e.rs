//! Rules of the contract that only whole processes can show: what is left when they are killed,
//! where keys live, what requests ignore, and what the documentation tells.

#![expect(
    clippy::disallowed_methods,
    reason = "a test has files and deadlines of its own"
)]

use std::collections::{BTreeMap, HashSet};
use std::fs;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::Duration;

use ostraca_client::{Begun, Client, NewPaste, Seeds, Ticket};
use ostraca_io::{Entropy as _, SeededEntropy, SystemEntropy};
use ostraca_tests::http::{Http, Request, Response};
use ostraca_tests::pastes::{CREATE, Created, create, delete, is_replay, save};
use ostraca_tests::{Counts, DEADLINE, Options, Up, key};
use ostraca_types::contract::IDEMPOTENCY_RETENTION;
use ostraca_types::{BodyDigest, DeleteToken, IdempotencyKey, PasteId, Reason, RequestDigest};
use serde_json::{Value, json};
use tokio::sync::mpsc;

const BINARY: &str = env!("CARGO_BIN_EXE_ostraca");
const README: &str = include_str!("../README.md");
const HTTP_API: &str = include_str!("../docs/http-api.md");
const GOLDEN_KEYS: &str = include_str!("../proto/golden/keys.txt");

fn slot_of(key: &str) -> u8 {
    IdempotencyKey::parse(key).expect("a key").slot().0
}

/// A new key on a slot of the lower half, which is the first one of two shards'.
fn lower_key() -> String {
    loop {
        let key = key();
        if slot_of(&key) < 128 {
            return key;
        }
    }
}

/// A seed that a failure prints.
fn new_seed() -> u64 {
    let mut seed = [0; 8];
    SystemEntropy.fill(&mut seed);
    u64::from_le_bytes(seed)
}

/// The records of all logs of a stopped `up`, as `log dump` tells them.
fn records(up: &Up) -> Vec<Value> {
    let data = up.data();
    let dumped = up.run(
        &["log", "dump", "--json", data.to_str().expect("UTF-8")],
        b"",
    );
    assert_eq!(dumped.code(), Some(0), "{}", dumped.stderr);
    let lines = dumped.text().lines();
    lines
        .map(|line| serde_json::from_str(line).expect("JSON"))
        .collect()
}

/// A create that was sent once, and its answer if there was one.
struct Sent {
    key: String,
    body: String,
    answer: Option<Created>,
}

/// Sends creates, each with a key of its own and none again, until told to stop.
fn send_once_each(http: &Http, client: u64, stop: &AtomicBool) -> Vec<Sent> {
    let mut sent = Vec::new();
    while !stop.load(Ordering::Relaxed) {
        let (key, body) = (key(), format!("client {client}, paste {}", sent.len()));
        let answer = http.try_send(&create(&key, body.clone()));
        let answer = match answer {
            Ok(answer) if answer.status == 201 => Some(Created::from(&answer)),
            // Refused or unknown: either is what the kill left.
            _ => None,
        };
        if answer.is_none() {
            // As a client would; and it leaves the machine to the shard that recovers.
            thread::sleep(Duration::from_millis(10));
        }
        sent.push(Sent { key, body, answer });
    }
    sent
}

/// Goal: paste row, idempotency row and outbox row are there together or not at all, whenever the
/// shard was killed, because they are one record.
/// Method: kill shards at random moments while clients create. Afterwards the log has one record
/// for each key that is known and none for the others, a known key's paste is there with its body,
/// and there is no paste that no key knows. Deleting it needs its outbox row. Covers IDEM-21.
#[test]
fn k08_rows_of_a_create_survive_kills_together_or_not_at_all() {
    const SHARDS: u16 = 2;
    const CLIENTS: u64 = 12;
    let seed = new_seed();
    println!("seed {seed}");
    let mut up = Options::new(BINARY).shards(SHARDS).start();
    let http = up.http();
    let stop = AtomicBool::new(false);
    let sent: Vec<Sent> = thread::scope(|scope| {
        let start = |client| {
            let (http, stop) = (&http, &stop);
            scope.spawn(move || send_once_each(http, client, stop))
        };
        let clients: Vec<_> = (0..CLIENTS).map(start).collect();
        let killed = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| {
            let random = SeededEntropy::new(seed);
            for round in 0..5 * SHARDS {
                let pid = up.wait_shard(round % SHARDS, None);
                // A random moment, not a time that is hoped to be enough.
                thread::sleep(Duration::from_millis(50 + random.below(150)));
                if up.kill_shard(round % SHARDS) == Some(pid) {
                    up.wait_shard(round % SHARDS, Some(pid));
                }
            }
        }));
        stop.store(true, Ordering::Relaxed);
        let sent = clients
            .into_iter()
            .flat_map(|client| client.join().expect("no panic"))
            .collect();
        assert!(killed.is_ok(), "the killing failed");
        sent
    });
    up.wait_ready(SHARDS);
    let Counts { pastes, keys } = up.counts();
    assert_eq!(pastes, keys, "seed {seed}: a row without the other");
    assert_eq!(up.stop().code(), Some(0));
    let mut creates = BTreeMap::<u8, u64>::new();
    for record in records(&up) {
        let kind = record["kind"].as_str().expect("a kind");
        assert!(
            !["paste", "key", "idempotency", "outbox"].contains(&kind),
            "a row has a record of its own: {record}"
        );
        if kind == "create" {
            let slot = record["slot"]
                .as_u64()
                .and_then(|slot| slot.try_into().ok());
            *creates.entry(slot.expect("a slot")).or_default() += 1;
        }
    }
    assert_eq!(creates.values().sum::<u64>(), keys, "seed {seed}");

    up.start_again();
    let http = up.http();
    let (mut known, mut acknowledged) = (BTreeMap::<u8, u64>::new(), 0);
    for Sent { key, body, answer } in &sent {
        let retried = http.send(&create(key, body.clone()));
        let created = Created::from(&retried);
        let read = http.get(&created.raw());
        assert_eq!(
            (read.status, read.text()),
            (200, body.clone()),
            "seed {seed}"
        );
        if let Some(first) = answer {
            assert!(is_replay(&retried), "seed {seed}: {}", retried.text());
            // Links change with the address of the frontend, which started anew.
            let told = |created: &Created| {
                let Created {
                    id,
                    expires_at,
                    token,
                    ..
                } = created.clone();
                (id, expires_at, token)
            };
            assert_eq!(told(&created), told(first), "seed {seed}");
            acknowledged += 1;
        }
        if is_replay(&retried) {
            *known.entry(slot_of(key)).or_default() += 1;
            let ended = delete(&http, &created, &created.token);
            assert_eq!(ended.status, 204, "seed {seed}: {}", ended.text());
        }
    }
    println!("{} sent, {keys} known, {acknowledged} answered", sent.len());
    assert!(acknowledged > 50, "seed {seed}: {acknowledged} answered");
    assert_eq!(
        known, creates,
        "seed {seed}: known keys and records, by slot"
    );
}

/// What shard `shard` holds.
fn shard_counts(up: &Up, shard: u16) -> Counts {
    let data = up.data();
    let arguments = ["status", "--json", "--data", data.to_str().expect("UTF-8")];
    let status = up.run(&arguments, b"");
    assert_eq!(status.code(), Some(0), "{}", status.stderr);
    let status: Value = serde_json::from_slice(&status.stdout).expect("JSON");
    let processes = status["processes"].as_array().expect("a list");
    let name = format!("shard-{shard}");
    let process = processes.iter().find(|process| process["name"] == name);
    let counts = &process.expect("listed")["shard"];
    let count = |name: &str| counts[name].as_u64().expect("a count");
    Counts {
        pastes: count("pastes"),
        keys: count("idempotency_rows"),
    }
}

/// Goal: keys live on the shard of their slot; no other one is even asked.
/// Method: creates, repetitions, conflicts and deletes on slots of one shard leave the counts of the
/// other as they are, and go on while it is stopped; while their own is, they cannot be answered.
/// Covers IDEM-06: what a key is worth depends on the key alone.
#[test]
fn k12_keys_live_on_their_slots_shard_only() {
    let up = Options::new(BINARY).shards(2).start();
    let http = up.http();
    let untouched = shard_counts(&up, 1);
    assert_eq!(untouched, Counts { pastes: 0, keys: 0 });
    let exercise = || {
        let key = lower_key();
        let created = save(&http, &key, "text");
        assert!(is_replay(&http.send(&create(&key, "text"))));
        assert_eq!(http.send(&create(&key, "other")).status, 409);
        (key, created)
    };
    let mut first = None;
    for _ in 0..20 {
        let (_, created) = exercise();
        assert_eq!(delete(&http, &created, &created.token).status, 204);
        first = Some(exercise());
    }
    let expected = Counts {
        pastes: 20,
        keys: 40,
    };
    assert_eq!(shard_counts(&up, 0), expected);
    assert_eq!(shard_counts(&up, 1), untouched);

    let (stopped, _) = up.process("shard-1").expect("it runs");
    ostraca_tests::stop(stopped);
    let (key, created) = first.expect("saved");
    let again = http.send(&create(&key, "text"));
    exercise();
    ostraca_tests::signal("CONT", stopped);
    assert!(is_replay(&again));
    assert_eq!(Created::from(&again), created);
    // And the other way round: nobody else can answer for it.
    let (stopped, _) = up.process("shard-0").expect("it runs");
    ostraca_tests::stop(stopped);
    let nobody = http.send(&create(&key, "text"));
    ostraca_tests::signal("CONT", stopped);
    assert!(matches!(nobody.status, 503 | 504), "{}", nobody.text());
    assert_eq!(shard_counts(&up, 1), untouched);
}

/// Goal: where a key lives follows from its bytes by a hash that any language can compute, and from
/// nothing else: not the shards, not the frontend, not the spelling.
/// Method: the frozen vectors, through clusters of one and of three shards. Covers IDEM-12, IDEM-13.
#[test]
fn k06_an_id_is_minted_on_the_slot_of_its_key() {
    for shards in [1, 3] {
        let up = Options::new(BINARY).shards(shards).start();
        let http = up.http();
        let mut seen = HashSet::new();
        let lines = GOLDEN_KEYS.lines().filter(|line| !line.starts_with('#'));
        for line in lines {
            let columns: Vec<_> = line.split_whitespace().collect();
            let [key, _, slot, characters] = columns[..] else {
                continue;
            };
            let answer = http.send(&create(key, "text"));
            let created = Created::from(&answer);
            assert_eq!(&created.id[..2], characters, "{key}");
            let id = PasteId::parse(&created.id).expect("an id");
            assert_eq!(id.slot().to_string(), slot, "{key}");
            assert_eq!(is_replay(&answer), !seen.insert(key.to_lowercase()));
            assert_eq!(http.get(&created.raw()).status, 200);
        }
        assert!(seen.len() >= 3, "the vectors are found");
    }
}

/// Status, body and headers, but for the one that tells the time.
fn all_of(response: &Response) -> (u16, Vec<(String, String)>, Vec<u8>) {
    let mut headers = response.headers.clone();
    headers.retain(|(name, _)| name != "date");
    (response.status, headers, response.body.clone())
}

/// Goal: reading and deleting take no idempotency key: one that is sent, good, used or malformed, is
/// ignored, and is not used up.
/// Method: compare with the same request without it. Covers EX-02, CA-11.
#[test]
fn r02_reads_and_deletes_ignore_an_idempotency_key() {
    let up = Options::new(BINARY).start();
    let http = up.http();
    let own = key();
    let created = save(&http, &own, "text");
    let unused = key();
    let long = "a".repeat(300);
    let values = [
        own.as_str(),
        &unused,
        "",
        "again",
        "00000000-0000-0000-0000-000000000000",
        &long,
        "schlüssel",
    ];
    let page = format!("/{}", created.id);
    let missing = "/00000000000000/raw".to_owned();
    let targets = [page, created.raw(), created.api(), missing];
    for target in &targets {
        let get = Request::new("GET", target);
        let plain = http.send(&get);
        let head = http.send(&Request::new("HEAD", target));
        let (status, headers, _) = all_of(&plain);
        assert_eq!(all_of(&head), (status, headers, Vec::new()), "{target}");
        let tag = plain.header("etag").unwrap_or("\"none\"").to_owned();
        let ask = get.clone().header("if-none-match", &tag);
        let unchanged = http.send(&ask);
        for value in values {
            let with = |request: &Request| {
                let answer = http.send(&request.clone().header("idempotency-key", value));
                assert!(!is_replay(&answer), "{target} {value}");
                all_of(&answer)
            };
            assert_eq!(with(&get), all_of(&plain), "{target} {value}");
            let head_with = with(&Request::new("HEAD", target));
            assert_eq!(head_with, all_of(&head), "HEAD {target} {value}");
            assert_eq!(with(&ask), all_of(&unchanged), "{target} {value}");
        }
        // Two of them make a create fail.
        let twice = get.header("idempotency-key", &own);
        let twice = http.send(&twice.header("idempotency-key", &unused));
        assert_eq!(all_of(&twice), all_of(&plain), "{target}");
    }
    assert_eq!(up.counts(), Counts { pastes: 1, keys: 1 });

    // Each delete has a paste of its own, and then one that is gone.
    let bearer = |created: &Created| format!("Bearer {}", created.token);
    let gone = delete(&http, &save_and_delete(&http, None), &created.token);
    let before = up.counts().keys;
    for (keys, value) in (before + 1..).zip(values) {
        let deleted = save_and_delete(&http, Some(value));
        let again = Request::new("DELETE", &deleted.api())
            .header("authorization", &bearer(&deleted))
            .header("idempotency-key", value);
        assert_eq!(all_of(&http.send(&again)), all_of(&gone), "{value}");
        assert_eq!(up.counts(), Counts { pastes: 1, keys }, "{value}");
    }
    let wrong = Request::new("DELETE", &created.api())
        .header("authorization", "Bearer 0000000000000000000000")
        .header("idempotency-key", &own);
    assert_eq!(http.send(&wrong).status, 403, "a key is no token");
    assert_eq!(http.get(&created.raw()).body, b"text");
    let first = http.send(&create(&unused, "text"));
    assert!(!is_replay(&first), "no read or delete used it up");
    assert_eq!(first.status, 201);
}

/// A paste that was saved and deleted, the latter with this idempotency key.
fn save_and_delete(http: &Http, value: Option<&str>) -> Created {
    let created = save(http, &key(), "to be deleted");
    let bearer = format!("Bearer {}", created.token);
    let mut request = Request::new("DELETE", &created.api()).header("authorization", &bearer);
    if let Some(value) = value {
        request = request.header("idempotency-key", value);
    }
    let deleted = http.send(&request);
    assert_eq!((deleted.status, deleted.body.len()), (204, 0), "{value:?}");
    created
}

/// One line of words, so that a sentence is found however its lines are broken.
fn words(text: &str) -> String {
    text.split_whitespace().collect::<Vec<_>>().join(" ")
}

fn assert_says(name: &str, text: &str, sentences: &[&str]) {
    let text = words(text);
    for sentence in sentences {
        assert!(text.contains(sentence), "{name} does not say: {sentence}");
    }
}

/// Goal: what stays possible stands where a user reads it: in the README, the API's documentation
/// and the help of a running frontend; and it is so. Covers ID-07.
#[test]
fn k18_what_stays_possible_is_documented() {
    let up = Options::new(BINARY).start();
    let http = up.http();
    assert_says(
        "README.md",
        README,
        &[
            "a new key per click makes a new paste; so does a retry after 25 hours.",
            "leaves an object that no paste names",
            "Whoever works on ended pastes can see the same message twice.",
        ],
    );
    assert_says(
        "docs/http-api.md",
        HTTP_API,
        &[
            "a new key per click makes a new paste; so does a retry after 25 hours;",
            "equal bodies under two keys are two pastes.",
            "leaves an object that no paste names.",
            "Whoever works on ended pastes can see a message twice.",
        ],
    );
    let help = http.get("/help.txt");
    assert_eq!(help.status, 200);
    assert_says(
        "/help.txt",
        &help.text(),
        &[
            "a new key makes a new paste, and so does a retry 25 hours or later after the first save.",
            "can leave a stored body that no paste names",
            "Clearing up after a paste's end can happen more than once",
        ],
    );
    // A new key per click.
    let clicks = [save(&http, &key(), "text"), save(&http, &key(), "text")];
    assert!(clicks[0].id != clicks[1].id && clicks[0].token != clicks[1].token);
    assert_eq!(up.counts(), Counts { pastes: 2, keys: 2 });
}

/// Goal: the documentation says in one sentence for how long a key is honoured, and says what the
/// program does.
#[test]
fn k13_the_documentation_says_how_long_a_key_is_honoured() {
    let hours = IDEMPOTENCY_RETENTION.as_secs() / 3600;
    let sentence = format!("within {hours} hours of the first gets the first answer; from {hours}");
    let text = words(HTTP_API);
    let (before, after) = text.split_once(&sentence).expect("the sentence");
    let begins = before
        .rfind(". ")
        .max(before.rfind(":** "))
        .expect("a beginning");
    assert!(
        before[begins..].contains("a create that is retried with the same key"),
        "{}",
        &before[begins..]
    );
    let (ends, _) = after.split_once('.').expect("an end");
    assert_eq!(ends, " hours on the same key makes a new paste");
    let in_readme = format!("within {hours} hours of the first gets the first answer");
    assert_says("README.md", README, &[&in_readme]);
    let up = Options::new(BINARY).shards(1).start();
    let help = up.http().get("/help.txt").text();
    let in_help = format!("A key is honoured for {hours} hours after its create");
    assert_says("/help.txt", &help, &[&in_help]);
}

/// Everything below `dir`.
fn files(dir: &Path, found: &mut Vec<std::path::PathBuf>) {
    for entry in fs::read_dir(dir).expect("a directory") {
        let path = entry.expect("an entry").path();
        if path.is_dir() {
            files(&path, found);
        } else {
            found.push(path);
        }
    }
}

/// Goal: neither token nor key is at rest in the clear, in no file and no line of a log.
/// Method: saves, a repetition, a conflict and a delete, with the most talkative log; then search
/// every file for them, as text and as bytes. Covers IDEM-16.
#[test]
fn k16_no_file_and_no_log_line_has_a_token_or_a_key() {
    let mut up = Options::new(BINARY)
        .environment("OSTRACA_LOG", "debug")
        .start();
    let http = up.http();
    let mut secrets = Vec::new();
    let mut ids = Vec::new();
    for deleted in [false, true] {
        let text = key();
        let request = create(&text, "text").header("paste-title", "Geheimnis");
        let created = Created::from(&http.send(&request));
        assert!(is_replay(&http.send(&request)));
        assert_eq!(http.send(&create(&text, "other")).status, 409);
        if deleted {
            assert_eq!(delete(&http, &created, &created.token).status, 204);
        }
        let token = DeleteToken::parse(&created.token).expect("a token");
        secrets.push(token.expose().to_vec());
        secrets.push(created.token.into_bytes());
        let key = IdempotencyKey::parse(&text).expect("a key");
        secrets.push(key.expose().to_vec());
        secrets.push(text.replace('-', "").into_bytes());
        secrets.push(text.into_bytes());
        ids.push(created.id);
    }
    assert_eq!(up.stop().code(), Some(0));
    let mut paths = Vec::new();
    files(up.scratch(), &mut paths);
    assert!(
        paths.iter().any(|path| path.ends_with("stderr")),
        "logs too"
    );
    let mut found = 0;
    for path in paths {
        let bytes = fs::read(&path).expect("a file");
        let has = |what: &[u8]| bytes.windows(what.len()).any(|part| part == what);
        for secret in &secrets {
            assert!(!has(secret), "a secret is in {}", path.display());
        }
        found += usize::from(has(&ids[0].as_bytes()[2..]));
    }
    assert!(found > 0, "the search finds what is there");
    assert!(!up.stderr().contains("Geheimnis"), "a title is in the log");
}

/// Goal: a title is what was written, whatever carried it, and is shown as that. Covers BY-13.
/// Method: characters that mean something to URLs, forms, HTML and JSON; one key, so that any
/// difference would be another request.
#[test]
fn k03_a_title_is_what_was_written() {
    let up = Options::new(BINARY).start();
    let http = up.http();
    let title = "a+b %41 &amp; \"ö\" \\u0041 <i>";
    let encoded: String = title.bytes().map(|byte| format!("%{byte:02X}")).collect();
    let key = key();
    let typed = |content_type: &str, body: String| {
        Request::new("POST", CREATE)
            .header("content-type", content_type)
            .header("accept", "application/json")
            .header("idempotency-key", &key)
            .body(body)
    };
    let first = Created::from(&http.send(&create(&key, "text").header("paste-title", title)));
    let forms = [
        typed(
            "application/json",
            json!({ "body": "text", "title": title }).to_string(),
        ),
        typed(
            "application/x-www-form-urlencoded",
            format!("body=text&title={encoded}"),
        ),
        Request::new("POST", &format!("{CREATE}?title={encoded}"))
            .header("content-type", "text/plain")
            .header("idempotency-key", &key)
            .body("text"),
    ];
    for request in forms {
        let again = http.send(&request);
        assert!(is_replay(&again), "{}", again.text());
        assert_eq!(Created::from(&again), first);
    }
    assert_eq!(http.get(&first.api()).json()["title"], title);
    let page = http.get(&format!("/{}", first.id)).text();
    let shown = "a+b %41 &#38;amp; &#34;ö&#34; \\u0041 &#60;i&#62;";
    assert!(page.contains(shown), "{page}");
}

/// Who asks for what under the one key of a race.
const REQUESTS: [RequestDigest; 2] = [RequestDigest([1; 32]), RequestDigest([2; 32])];

fn paste() -> NewPaste {
    NewPaste {
        lifetime: None,
        syntax: None,
        title: None,
        body_size: 5,
        body_digest: BodyDigest([9; 32]),
    }
}

/// What somebody was told about the key: whose it is, and where told, the paste.
#[derive(Debug, Clone, PartialEq, Eq)]
struct Told {
    /// The request that owns the key.
    owner: usize,
    paste: Option<PasteId>,
}

/// What an answer to request `asked` tells besides its own success; `None` for nothing.
fn told(asked: usize, result: Result<Begun, ostraca_client::Error>) -> Option<Told> {
    match result {
        Ok(Begun::Stored(answer)) if answer.replayed => Some(Told {
            owner: asked,
            paste: Some(answer.paste_id),
        }),
        Err(err) if err.reason() == Some(Reason::KeyReused) => Some(Told {
            owner: 1 - asked,
            paste: None,
        }),
        _ => None,
    }
}

/// Begins, until the shard that was killed before is found again.
async fn begin(client: &Client, key: &IdempotencyKey, request: usize) -> Ticket {
    let begun = async {
        loop {
            match client.begin_create(key, &REQUESTS[request]).await {
                Ok(Begun::New(ticket)) => return ticket,
                Ok(Begun::Stored(_)) => panic!("the key is new"),
                Err(_) => tokio::time::sleep(Duration::from_millis(5)).await,
            }
        }
    };
    let begun = tokio::time::timeout(DEADLINE, begun).await;
    begun.expect("the shard answers")
}

/// Two clients race for one key, and others look on. Sends what anyone is told first.
async fn race(client: &Client, key: &IdempotencyKey, requests: [usize; 2]) -> mpsc::Receiver<Told> {
    // All have begun before any commits, so no look-up decides.
    let tickets = [
        begin(client, key, requests[0]).await,
        begin(client, key, requests[1]).await,
    ];
    let (tell, heard) = mpsc::channel(16);
    for (ticket, request) in tickets.into_iter().zip(requests) {
        let (client, key, tell) = (client.clone(), key.clone(), tell.clone());
        tokio::spawn(async move {
            let paste = paste();
            let committed = client.commit_create(&key, &REQUESTS[request], &ticket, &paste);
            let answer = committed.await.map(Begun::Stored);
            if let Some(told) = told(request, answer) {
                let _ = tell.send(told).await;
            }
        });
    }
    for request in [0, 1] {
        let (client, key, tell) = (client.clone(), key.clone(), tell.clone());
        tokio::spawn(async move {
            while !tell.is_closed() {
                let answer = client.begin_create(&key, &REQUESTS[request]).await;
                if answer
                    .as_ref()
                    .is_err_and(ostraca_client::Error::is_unreachable)
                {
                    return;
                }
                if let Some(told) = told(request, answer) {
                    let _ = tell.send(told).await;
                    return;
                }
            }
        });
    }
    heard
}

/// Goal: a refusal and a stored answer are promises as well: what anyone was told about a key is
/// still true after the shard was killed the moment it was told.
/// Method: two clients race for one key, with one request or two, while others ask for it. With the
/// first "the key is taken" or repeated answer the shard is killed. Fifty times, over ten shards, as
/// one that dies again and again is restarted ever later. Covers IDEM-03, IDEM-21, WAL-12.
#[test]
fn f05_what_was_told_about_a_key_survives_a_kill() {
    const SHARDS: u16 = 10;
    const ROUNDS: u16 = 50;
    let mut up = Options::new(BINARY).shards(SHARDS).start();
    let list = up.data().join("run/endpoints.json");
    let seeds = Seeds::Ask(Arc::new(move || addresses(&list)));
    let client = Client::new(ostraca_client::Options::new(seeds));
    let runtime = tokio::runtime::Builder::new_multi_thread()
        .worker_threads(2)
        .enable_all()
        .build()
        .expect("a runtime");
    let owners = owners(&up);
    let mut killed = vec![None; usize::from(SHARDS)];
    let mut promises = Vec::new();
    for round in 0..ROUNDS {
        let shard = round % SHARDS;
        up.wait_shard(shard, killed[usize::from(shard)]);
        let key = loop {
            let text = key();
            if owners[usize::from(slot_of(&text))] == shard {
                break IdempotencyKey::parse(&text).expect("a key");
            }
        };
        let requests = if round % 4 == 0 { [0, 0] } else { [0, 1] };
        let told = runtime.block_on(async {
            let mut heard = race(&client, &key, requests).await;
            let told = tokio::time::timeout(DEADLINE, heard.recv()).await;
            killed[usize::from(shard)] = up.kill_shard(shard);
            told.expect("an answer").expect("somebody was told")
        });
        assert!(killed[usize::from(shard)].is_some(), "it was running");
        promises.push((key, told));
    }
    for shard in 0..SHARDS {
        up.wait_shard(shard, killed[usize::from(shard)]);
    }
    for (round, (key, promise)) in promises.iter().enumerate() {
        for request in [0, 1] {
            let now = runtime.block_on(async {
                let asking = async {
                    loop {
                        match client.begin_create(key, &REQUESTS[request]).await {
                            // The route is learnt, or the shard is still recovering.
                            Err(err) if err.reason() != Some(Reason::KeyReused) => {
                                tokio::time::sleep(Duration::from_millis(5)).await;
                            }
                            answer => return told(request, answer),
                        }
                    }
                };
                tokio::time::timeout(DEADLINE, asking).await
            });
            let now = now.expect("an answer");
            let now = now.unwrap_or_else(|| panic!("round {round}: {promise:?} is forgotten"));
            assert_eq!(now.owner, promise.owner, "round {round}");
            if let (Some(now), Some(then)) = (now.paste, promise.paste) {
                assert_eq!(now, then, "round {round}");
            }
        }
    }
    drop(runtime);
}

/// Where the shards that serve listen.
fn addresses(list: &Path) -> Vec<String> {
    let text = fs::read_to_string(list).unwrap_or_default();
    let list: Vec<Value> = serde_json::from_str(&text).unwrap_or_default();
    list.iter()
        .filter_map(|one| one["grpc"].as_str().map(str::to_owned))
        .collect()
}

/// Which shard owns each slot.
fn owners(up: &Up) -> Vec<u16> {
    let mut owners = vec![0; 256];
    for endpoint in up.endpoints() {
        let name = endpoint["name"].as_str().unwrap_or_default();
        let Some(shard) = name.strip_prefix("shard-") else {
            continue;
        };
        for slot in endpoint["slots"].as_array().expect("its slots") {
            let slot = usize::try_from(slot.as_u64().expect("a slot")).expect("small");
            owners[slot] = shard.parse().expect("a number");
        }
    }
    owners
}
