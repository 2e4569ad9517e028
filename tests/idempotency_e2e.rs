//! One paste for one key, whatever happens in between: rules k01 to k15 through real sockets.

use std::sync::Barrier;
use std::thread;
use std::time::Duration;

use ostraca_tests::faults::{self, Clock};
use ostraca_tests::http::{Framing, Http, Request, Response, Until};
use ostraca_tests::pastes::{CREATE, Created, create, delete, is_replay, save};
use ostraca_tests::{Counts, Options, Up, bytes, key, poll};
use serde_json::json;
use time::OffsetDateTime;
use time::format_description::well_known::Rfc3339;

const BINARY: &str = env!("CARGO_BIN_EXE_ostraca");
const HOUR: Duration = Duration::from_secs(3600);
const KEY_LIFE_MS: u64 = 25 * 3_600_000;

fn start() -> (Up, Http) {
    let up = Options::new(BINARY).start();
    let http = up.http();
    (up, http)
}

fn counts(pastes: u64, keys: u64) -> Counts {
    Counts { pastes, keys }
}

/// Whether anything of an answer stands in another one, headers included.
fn assert_reveals_nothing(response: &Response, created: &Created, key: &str) {
    let all = format!("{:?}{}", response.headers, response.text());
    for secret in [
        created.token.as_str(),
        &created.id,
        &created.expires_at,
        key,
    ] {
        assert!(!all.contains(secret), "shown: {secret}\n{all}");
    }
}

/// Goal: no create without a key of random bits, and none of the refused ones writes anything.
/// Method: every malformed key that people send. Covers IDEM-18, ID-01, ID-08.
#[test]
fn k01_a_create_without_a_random_key_is_refused() {
    let (up, http) = start();
    let plain = || Request::new("POST", CREATE).body("text");
    let with = |value: &str| plain().header("idempotency-key", value);
    let good = key();
    let missing = "IDEMPOTENCY_KEY_MISSING";
    let malformed = "IDEMPOTENCY_KEY_MALFORMED";
    let in_query =
        |name: &str| Request::new("POST", &format!("{CREATE}?{name}={good}")).body("text");
    let cases = [
        ("none", plain(), missing),
        ("empty", with(""), malformed),
        ("a word", with("again"), malformed),
        (
            "nil",
            with("00000000-0000-0000-0000-000000000000"),
            malformed,
        ),
        (
            "max",
            with("ffffffff-ffff-ffff-ffff-ffffffffffff"),
            malformed,
        ),
        (
            "version 1",
            with("f81d4fae-7dec-11d0-a765-00a0c91e6bf6"),
            malformed,
        ),
        (
            "version 5",
            with("f81d4fae-7dec-51d0-a765-00a0c91e6bf6"),
            malformed,
        ),
        ("without hyphens", with(&good.replace('-', "")), malformed),
        ("in braces", with(&format!("{{{good}}}")), malformed),
        ("half a quote", with(&format!("\"{good}")), malformed),
        ("a character too much", with(&format!("{good}0")), malformed),
        ("256 characters", with(&"a".repeat(256)), malformed),
        ("not ASCII", with("schlüssel"), malformed),
        (
            "two",
            with(&good).header("idempotency-key", &key()),
            malformed,
        ),
        ("in the query", in_query("idempotency_key"), "INVALID_FIELD"),
        (
            "in the query, with a hyphen",
            in_query("Idempotency-Key"),
            "INVALID_FIELD",
        ),
    ];
    for (what, request, reason) in cases {
        let refused = http.send(&request);
        assert_eq!(refused.status, 400, "{what}: {}", refused.text());
        assert_eq!(refused.reason(), reason, "{what}");
        assert!(!refused.text().contains(&good), "{what}: the key is shown");
    }
    assert_eq!(up.counts(), counts(0, 0), "nothing was written");
}

/// Goal: upper and lower case, and a quoted value, are the same key; version 7 is a key.
#[test]
fn k01_forms_of_a_key_are_the_same_key() {
    let (up, http) = start();
    let key = key();
    let first = save(&http, &key, "text");
    for form in [
        key.to_uppercase(),
        format!("\"{key}\""),
        format!("\"{}\"", key.to_uppercase()),
        format!("  {key} "),
    ] {
        let again = http.send(&create(&form, "text"));
        assert!(is_replay(&again), "{form}");
        assert_eq!(Created::from(&again), first, "{form}");
    }
    let in_body = json!({ "body": "text", "idempotency_key": key }).to_string();
    let by_field = Request::new("POST", CREATE)
        .header("content-type", "application/json")
        .body(in_body);
    assert_eq!(Created::from(&http.send(&by_field)), first);
    let seven = save(&http, "019a8b0c-7d3e-7f12-8a45-6b7c8d9e0f10", "text");
    assert_ne!(seven.id, first.id);
    assert_eq!(up.counts(), counts(2, 2));
}

/// Goal: a retry has the first answer, marked in a header that the body does not show, also after
/// the paste was deleted. Covers IDEM-15, ID-05.
#[test]
fn k02_k04_a_retry_has_the_first_answer_also_after_the_delete() {
    let (up, http) = start();
    let key = key();
    let request = create(&key, "text")
        .header("paste-title", "a title")
        .header("paste-syntax", "rust");
    let answer = http.send(&request);
    let first = Created::from(&answer);
    assert!(!is_replay(&answer), "the first is no replay");
    for _ in 0..3 {
        let again = http.send(&request);
        assert!(is_replay(&again));
        assert_eq!(
            (again.status, &again.body),
            (201, &answer.body),
            "byte for byte"
        );
    }
    assert_eq!(up.counts(), counts(1, 1));
    assert_eq!(delete(&http, &first, &first.token).status, 204);
    let again = http.send(&request);
    assert!(is_replay(&again));
    assert_eq!(
        (again.status, &again.body),
        (201, &answer.body),
        "the first answer, not a new paste"
    );
    assert_eq!(
        http.get(&first.raw()).status,
        404,
        "a retry revives nothing"
    );
    assert_eq!(
        up.counts(),
        counts(0, 1),
        "the end of the paste leaves the key alone (k14)"
    );
}

/// Goal: only successes are stored. Covers IDEM-04.
#[test]
fn k02_a_failed_create_leaves_the_key_free() {
    let (up, http) = start();
    for (name, value) in [
        ("paste-lifetime", "1s"),
        ("paste-syntax", "C++"),
        ("paste-color", "red"),
    ] {
        let key = key();
        let refused = http.send(&create(&key, "text").header(name, value));
        assert_eq!(
            (refused.status, refused.reason().as_str()),
            (400, "INVALID_FIELD"),
            "{name}"
        );
        let saved = http.send(&create(&key, "text"));
        assert_eq!((saved.status, is_replay(&saved)), (201, false), "{name}");
    }
    assert_eq!(up.counts(), counts(3, 3));
}

/// Goal: the request is the same whatever wraps it.
/// Method: one key, the same content raw, as JSON in both forms, and as a form.
#[test]
fn k03_the_same_content_is_the_same_request_in_every_form() {
    let (up, http) = start();
    let key = key();
    let typed = |content_type: &str, body: String| {
        Request::new("POST", CREATE)
            .header("content-type", content_type)
            .header("accept", "application/json")
            .header("idempotency-key", &key)
            .body(body)
    };
    let title = "a title";
    let first = Created::from(
        &http.send(
            &create(&key, "text")
                .header("paste-title", title)
                .header("paste-lifetime", "1h"),
        ),
    );
    let requests = [
        create(&key, "text")
            .header("paste-title", title)
            .header("paste-lifetime", "3600"),
        create(&key, "text")
            .header("paste-title", title)
            .header("paste-lifetime", "60m")
            .framing(Framing::Chunked(1)),
        typed(
            "application/json",
            json!({ "body": "text", "title": title, "lifetime": "1h" }).to_string(),
        ),
        typed(
            "application/json",
            json!({ "body_base64": "dGV4dA==", "title": title, "lifetime": 3600 }).to_string(),
        ),
        typed(
            "application/x-www-form-urlencoded",
            "body=text&title=a+title&lifetime=1h".to_owned(),
        ),
    ];
    for request in requests {
        let again = http.send(&request);
        assert!(is_replay(&again), "{}", again.text());
        assert_eq!(Created::from(&again), first);
    }
    assert_eq!(up.counts(), counts(1, 1));
}

/// Goal: a key that belongs to another request is a 409 that shows nothing of the first answer, and
/// changes nothing. Covers IDEM-19, ID-02, ID-04.
#[test]
fn k03_k05_the_same_key_for_another_request_is_refused() {
    let (up, http) = start();
    let key = key();
    let ask = |body: &str, lifetime: Option<&str>, syntax: Option<&str>, title: Option<&str>| {
        let mut request = create(&key, body);
        for (name, value) in [
            ("paste-lifetime", lifetime),
            ("paste-syntax", syntax),
            ("paste-title", title),
        ] {
            if let Some(value) = value {
                request = request.header(name, value);
            }
        }
        request
    };
    let (hour, rust, title) = (Some("1h"), Some("rust"), Some("title"));
    let first = Created::from(&http.send(&ask("body", hour, rust, title)));
    let others = [
        ("body", ask("bodY", hour, rust, title)),
        ("longer body", ask("body\n", hour, rust, title)),
        ("lifetime", ask("body", Some("2h"), rust, title)),
        ("no lifetime", ask("body", None, rust, title)),
        ("syntax", ask("body", hour, Some("c"), title)),
        ("no syntax", ask("body", hour, None, title)),
        ("title", ask("body", hour, rust, Some("Title"))),
        ("no title", ask("body", hour, rust, None)),
        ("syntax and title exchanged", ask("body", hour, title, rust)),
    ];
    let refuse_all = || {
        for (what, other) in &others {
            let refused = http.send(other);
            assert_eq!(refused.status, 409, "{what}: {}", refused.text());
            assert_eq!(refused.reason(), "IDEMPOTENCY_KEY_REUSED", "{what}");
            assert_reveals_nothing(&refused, &first, &key);
        }
    };
    refuse_all();
    assert_eq!(up.counts(), counts(1, 1), "no second paste");
    assert_eq!(http.get(&first.raw()).body, b"body");
    let again = http.send(&ask("body", hour, rust, title));
    assert!(is_replay(&again));
    assert_eq!(
        Created::from(&again),
        first,
        "the first answer is still there"
    );
    assert_eq!(delete(&http, &first, &first.token).status, 204);
    refuse_all();
    assert_eq!(up.counts(), counts(0, 1));
}

/// Sends all requests at the same instant, as far as two cores can.
fn at_once(http: &Http, requests: &[Request]) -> Vec<Response> {
    let barrier = Barrier::new(requests.len());
    thread::scope(|scope| {
        let send = |request| {
            let barrier = &barrier;
            scope.spawn(move || {
                barrier.wait();
                http.send(request)
            })
        };
        let threads: Vec<_> = requests.iter().map(send).collect();
        threads
            .into_iter()
            .map(|thread| thread.join().expect("an answer"))
            .collect()
    })
}

/// Goal: a race of creates with one key has one paste and one answer.
/// Method: 64 at once, five times. Covers IDEM-01, IDEM-03, IDEM-22.
#[test]
fn k11_parallel_creates_with_one_key_have_one_answer() {
    let (up, http) = start();
    for round in 1..=5 {
        let key = key();
        let answers = at_once(&http, &vec![create(&key, "text"); 64]);
        let first = Created::from(&answers[0]);
        for answer in &answers {
            assert_eq!(Created::from(answer), first);
        }
        let made = answers.iter().filter(|answer| !is_replay(answer)).count();
        assert_eq!(made, 1, "one of them made it");
        assert_eq!(http.get(&first.raw()).body, b"text");
        assert_eq!(up.counts(), counts(round, round));
    }
}

/// Goal: of two requests that race for one key one wins, and the other is refused without a word
/// about the winner.
/// Method: 32 at once, two bodies, five times. Covers IDEM-01, IDEM-03.
#[test]
fn k11_parallel_creates_with_one_key_and_two_bodies_have_one_winner() {
    let (up, http) = start();
    for round in 1..=5 {
        let key = key();
        let body = |index: usize| {
            if index.is_multiple_of(2) {
                "even"
            } else {
                "odd"
            }
        };
        let requests: Vec<_> = (0..32).map(|index| create(&key, body(index))).collect();
        let answers = at_once(&http, &requests);
        let winner = answers
            .iter()
            .position(|answer| answer.status == 201)
            .expect("one wins");
        let first = Created::from(&answers[winner]);
        for (index, answer) in answers.iter().enumerate() {
            if body(index) == body(winner) {
                assert_eq!(Created::from(answer), first);
            } else {
                assert_eq!(answer.status, 409, "{}", answer.text());
                assert_eq!(answer.reason(), "IDEMPOTENCY_KEY_REUSED");
                assert_reveals_nothing(answer, &first, &key);
            }
        }
        assert_eq!(http.get(&first.raw()).text(), body(winner));
        assert_eq!(up.counts(), counts(round, round));
    }
}

/// Goal: a client that goes away at any point, and asks again, has one paste.
/// Method: close the connection after each part of a request; retry at once, beside what may still
/// be under way. Covers IDEM-07, IDEM-09, IDEM-21.
#[test]
fn k09_k10_a_client_that_goes_away_and_retries_has_one_paste() {
    let (up, http) = start();
    let body = bytes(7, 300_000);
    let mut keys = 0;
    for framing in [Framing::Length, Framing::Chunked(1000)] {
        for until in [Until::MidHead, Until::Head, Until::MidBody, Until::Answer] {
            let request = create(&key(), body.clone()).framing(framing);
            for _ in 0..3 {
                http.abandon(&request, until).expect("sent so far");
            }
            let first = Created::from(&http.send(&request));
            let again = http.send(&request);
            assert!(is_replay(&again), "{until:?}");
            assert_eq!(Created::from(&again), first, "{until:?}");
            assert!(http.get(&first.raw()).body == body, "{until:?}");
            keys += 1;
            assert_eq!(up.counts(), counts(keys, keys), "{until:?}");
        }
    }
}

/// Goal: a commit under way is not undone because nobody waits for it; the retry has its answer.
/// Method: go away after the whole request, and ask again only when the paste is there.
#[test]
fn k10_an_answer_that_was_lost_is_given_again() {
    let (up, http) = start();
    let request = create(&key(), "text");
    http.abandon(&request, Until::Answer).expect("sent");
    poll("the paste is made", || {
        (up.counts() == counts(1, 1)).then_some(())
    });
    let answer = http.send(&request);
    assert!(is_replay(&answer));
    assert_eq!(http.get(&Created::from(&answer).raw()).body, b"text");
    assert_eq!(up.counts(), counts(1, 1));
}

/// Goal: equal bodies are not the same paste; the key decides.
#[test]
fn k15_equal_bodies_under_two_keys_are_two_pastes() {
    let (up, http) = start();
    let (one, two) = (save(&http, &key(), "text"), save(&http, &key(), "text"));
    assert!(one.id != two.id && one.token != two.token);
    assert_eq!(up.counts(), counts(2, 2));
    assert_eq!(delete(&http, &one, &two.token).status, 403, "not its token");
    assert_eq!(delete(&http, &one, &one.token).status, 204);
    assert_eq!(http.get(&one.raw()).status, 404);
    assert_eq!(http.get(&two.raw()).body, b"text", "the other one stays");
}

/// Goal: a wrong token changes nothing; a second delete is like one of what never existed.
/// Covers SE-11.
#[test]
fn r03_a_delete_needs_the_token_and_happens_once() {
    let (_up, http) = start();
    let created = save(&http, &key(), "text");
    let other = save(&http, &key(), "other");
    let token = &created.token;
    let mut last = token.clone();
    let end = if last.ends_with('0') { '1' } else { '0' };
    last.pop();
    last.push(end);
    for wrong in [
        other.token.as_str(),
        &last,
        &token[..21],
        &format!("{token}0"),
        "x",
    ] {
        let refused = delete(&http, &created, wrong);
        assert_eq!(refused.status, 403, "{}", refused.text());
        assert!(!refused.text().contains(token));
    }
    let none = http.send(&Request::new("DELETE", &created.api()));
    assert_eq!(none.status, 401, "{}", none.text());
    assert_eq!(http.get(&created.raw()).body, b"text", "nothing changed");
    assert_eq!(delete(&http, &created, token).status, 204);
    let again = delete(&http, &created, token);
    let never = Created {
        id: "00000000000000".to_owned(),
        ..created.clone()
    };
    let never_deleted = delete(&http, &never, token);
    assert_eq!(
        (again.status, &again.body),
        (404, &never_deleted.body),
        "byte for byte"
    );
    let (gone, never_was) = (http.get(&created.raw()), http.get(&never.raw()));
    assert_eq!((gone.status, &gone.body), (404, &never_was.body));
}

/// An `up` of the faults build whose clocks stand still.
struct Scripted {
    up: Up,
    http: Http,
    clock: Clock,
}

impl Scripted {
    fn start() -> Self {
        let program = if cfg!(feature = "faults") {
            BINARY.into()
        } else {
            faults::binary(BINARY)
        };
        let clock = Clock::stopped();
        let up = Options::new(program)
            .environment("OSTRACA_FAULTS", &clock.variable())
            .start();
        Self {
            http: up.http(),
            up,
            clock,
        }
    }

    fn advance_to(&mut self, now_ms: u64) {
        self.clock.advance_to(now_ms);
        self.up.wait_shard_time(now_ms);
    }
}

fn expiry_ms(created: &Created) -> u64 {
    let at = OffsetDateTime::parse(&created.expires_at, &Rfc3339).expect("RFC 3339");
    u64::try_from(at.unix_timestamp_nanos() / 1_000_000).expect("after 1970")
}

/// Goal: a key is honoured for 25 h and not after, to the millisecond, and its end leaves the paste
/// alone.
/// Method: stopped clocks. The instant of the create is the paste's expiry less its lifetime.
/// Covers IDEM-10, IDEM-21.
#[test]
fn k13_a_key_is_honoured_for_25_hours_and_not_after() {
    let mut scripted = Scripted::start();
    let http = scripted.http.clone();
    let request = create(&key(), "text").header("paste-lifetime", "30d");
    let first = Created::from(&http.send(&request));
    let created_ms = expiry_ms(&first) - 30 * 86_400_000;
    scripted.advance_to(created_ms + KEY_LIFE_MS - 60_000);
    assert_eq!(Created::from(&http.send(&request)), first, "at 24 h 59 min");
    scripted.advance_to(created_ms + KEY_LIFE_MS - 1);
    let last = http.send(&request);
    assert!(is_replay(&last), "a millisecond before");
    assert_eq!(Created::from(&last), first);
    scripted.advance_to(created_ms + KEY_LIFE_MS);
    let next = http.send(&request);
    assert!(!is_replay(&next), "at 25 h");
    let second = Created::from(&next);
    assert!(second.id != first.id && second.token != first.token);
    let again = http.send(&request);
    assert!(is_replay(&again));
    assert_eq!(
        Created::from(&again),
        second,
        "the key is the second paste's now"
    );
    for created in [&first, &second] {
        assert_eq!(
            http.get(&created.raw()).body,
            b"text",
            "k14: the paste lives on"
        );
    }
    assert_eq!(scripted.up.counts().pastes, 2);
}

/// Goal: a paste is there up to its expiry and gone from then on, to the millisecond, whether or not
/// anything swept it; the key outlives it. Covers EX-11, EX-16, IDEM-10.
#[test]
fn r01_k14_a_paste_is_gone_at_its_expiry_and_its_key_is_not() {
    let mut scripted = Scripted::start();
    let http = scripted.http.clone();
    let request = create(&key(), "text").header("paste-lifetime", "1m");
    let created = Created::from(&http.send(&request));
    let expiry = expiry_ms(&created);
    scripted.advance_to(expiry - 1);
    assert_eq!(
        http.get(&created.raw()).body,
        b"text",
        "a millisecond before"
    );
    assert_eq!(http.get(&created.api()).status, 200);
    for at in [expiry, expiry + 1] {
        scripted.advance_to(at);
        let never = http.get("/00000000000000/raw");
        for target in [created.raw(), created.api(), format!("/{}", created.id)] {
            assert_eq!(http.get(&target).status, 404, "{target} at its expiry");
        }
        assert_eq!(
            http.get(&created.raw()).body,
            never.body,
            "as if it never existed"
        );
        assert_eq!(delete(&http, &created, &created.token).status, 404);
    }
    let again = http.send(&request);
    assert!(is_replay(&again));
    assert_eq!(Created::from(&again), created, "the first answer");
    assert_eq!(
        http.get(&created.raw()).status,
        404,
        "a retry revives nothing"
    );
}

/// Goal: what was once gone stays gone, though the wall clock steps back and the shards restart.
/// Covers WAL-16, EX-16.
#[test]
fn d06_a_clock_that_steps_back_brings_nothing_back() {
    let mut scripted = Scripted::start();
    let http = scripted.http.clone();
    let short = create(&key(), "text").header("paste-lifetime", "1h");
    let created = Created::from(&http.send(&short));
    scripted.advance_to(expiry_ms(&created));
    assert_eq!(http.get(&created.raw()).status, 404);
    scripted.clock.step_wall_back(2 * HOUR);
    assert_eq!(http.get(&created.raw()).status, 404, "after the step");
    scripted.clock.advance(Duration::from_millis(1));
    assert_eq!(http.get(&created.raw()).status, 404, "later");
    let meanwhile =
        Created::from(&http.send(&create(&key(), "text").header("paste-lifetime", "1h")));
    assert!(
        expiry_ms(&meanwhile) >= expiry_ms(&created),
        "shard time did not step back"
    );
    for shard in 0..2 {
        let killed = scripted.up.kill_shard(shard);
        scripted.up.wait_shard(shard, killed);
    }
    let gone = poll("an answer after the restart", || {
        Some(http.get(&created.raw())).filter(|answer| answer.status != 503)
    });
    assert_eq!(gone.status, 404, "after a restart");
    assert_eq!(http.get(&meanwhile.raw()).body, b"text");
}
