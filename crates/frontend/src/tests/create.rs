use std::time::Duration;

use base64::Engine as _;

use super::fake::{Rpc, refusal};
use super::*;
use ostraca_types::Reason;
use tokio::time::Instant;
use tonic::Code;

const FORM: &str = "application/x-www-form-urlencoded";

/// `text` as every byte escaped.
fn escaped(text: &[u8]) -> String {
    text.iter().map(|byte| format!("%{byte:02X}")).collect()
}

async fn post_as(site: &Site, key: &str, kind: &str, body: impl Into<Body>) -> Answer {
    let headers = [("idempotency-key", key), ("content-type", kind)];
    site.send(Method::POST, "/api/v1/pastes", &headers, body)
        .await
}

fn multipart(body: &[u8]) -> (String, Vec<u8>) {
    let mut form =
        b"--XX\r\nContent-Disposition: form-data; name=\"body\"; filename=\"f\"\r\n\r\n".to_vec();
    form.extend_from_slice(body);
    form.extend_from_slice(b"\r\n--XX--\r\n");
    ("multipart/form-data; boundary=XX".to_owned(), form)
}

#[tokio::test]
async fn k02_a_repetition_gets_the_same_bytes_and_a_mark() {
    let site = Site::start().await;
    let key = site.new_key();
    let first = site.post(&key, "hello").await;
    assert_eq!(first.status, 201, "{}", first.text());
    assert_eq!(first.header("idempotency-replayed"), None);
    assert_eq!(first.header("cache-control"), Some("no-store"));
    let id = first.field("id");
    assert_eq!(
        first.header("location"),
        Some(format!("{URL}/{id}").as_str())
    );
    assert_eq!(first.field("url"), format!("{URL}/{id}"));
    assert_eq!(first.field("raw_url"), format!("{URL}/{id}/raw"));
    assert_eq!(first.field("expires_at"), "2026-10-21T14:13:20.000Z");
    assert_eq!(first.field("delete_token").len(), 22);

    let again = site
        .post(&format!("\"{}\"", key.to_uppercase()), "hello")
        .await;
    assert_eq!((again.status, &again.body), (201, &first.body));
    assert_eq!(again.header("idempotency-replayed"), Some("true"));
    assert_eq!(again.header("location"), first.header("location"));
    assert_eq!(
        (site.shard.pastes(), site.shard.commits().len()),
        (1, 1),
        "nothing was inserted"
    );
    assert!(
        site.metric("ostraca_frontend_creates_total{outcome=\"replayed\"} 1")
            .await
    );
}

/// Goal: the request is the same whatever wraps it; a form's line ends are what its author typed.
/// Covers BY-04.
#[tokio::test]
async fn k03_one_content_is_one_request_in_every_form() {
    let site = Site::start().await;
    let key = site.new_key();
    let body = "a\nb é";
    let query = "/api/v1/pastes?lifetime=1h&syntax=c%2B%2B&title=t";
    let headers = [
        ("idempotency-key", key.as_str()),
        ("content-type", "text/plain"),
    ];
    let first = site.send(Method::POST, query, &headers, body).await;
    assert_eq!(first.status, 201, "{}", first.text());

    let json = format!(
        "{{\"idempotency_key\":\"{key}\",\"title\":\"t\",\"syntax\":\"c++\",\"lifetime\":3600,\
         \"body_base64\":\"{}\"}}",
        base64::engine::general_purpose::STANDARD.encode(body)
    );
    let json_headers = [("content-type", "application/json; charset=utf-8")];
    let as_json = site
        .send(Method::POST, "/api/v1/pastes", &json_headers, json)
        .await;
    // A textarea sends CRLF.
    let form = format!(
        "idempotency_key={key}&body={}&title=t&syntax=c%2B%2B&lifetime=60m",
        escaped("a\r\nb é".as_bytes())
    );
    let as_form = site
        .send(
            Method::POST,
            "/api/v1/pastes",
            &[("content-type", FORM)],
            form,
        )
        .await;
    let headers = [
        ("idempotency-key", key.as_str()),
        ("paste-lifetime", "3600s"),
        ("paste-syntax", "c++"),
        ("paste-title", "t"),
    ];
    let without_type = site
        .send(Method::POST, "/api/v1/pastes", &headers, body)
        .await;
    for again in [as_json, as_form, without_type] {
        assert_eq!(
            again.header("idempotency-replayed"),
            Some("true"),
            "{}",
            again.text()
        );
        assert_eq!(again.body, first.body);
    }
    let commit = &site.shard.commits()[0];
    assert_eq!((commit.lifetime_seconds, commit.body_size), (3600, 6));
}

#[tokio::test]
async fn k05_another_request_under_a_used_key_is_a_409_that_shows_nothing() {
    let site = Site::start().await;
    let key = site.new_key();
    let first = site.post(&key, "hello").await;
    let headers = [("idempotency-key", key.as_str())];
    for (uri, body) in [
        ("/api/v1/pastes", "other"),
        ("/api/v1/pastes?title=t", "hello"),
        ("/api/v1/pastes?lifetime=30d", "hello"),
    ] {
        let second = site.send(Method::POST, uri, &headers, body).await;
        second.expect(409, "IDEMPOTENCY_KEY_REUSED");
        let all = format!("{} {:?}", second.text(), second.headers);
        for secret in [first.field("id"), first.field("delete_token"), key.clone()] {
            assert!(!all.contains(&secret), "{all}");
        }
    }
    assert_eq!(site.shard.pastes(), 1);
}

#[tokio::test]
async fn k01_a_create_without_a_good_key_writes_nothing() {
    let site = Site::start().await;
    let post = async |headers: &[(&str, &str)], uri: &str| {
        site.send(Method::POST, uri, headers, "hello").await
    };
    let none = post(&[], "/api/v1/pastes").await;
    none.expect(400, "IDEMPOTENCY_KEY_MISSING");
    assert!(none.field("detail").contains("uuidgen"));
    let key = site.new_key();
    for value in ["x", "00000000-0000-0000-0000-000000000000", "\"\""] {
        let answer = post(&[("idempotency-key", value)], "/api/v1/pastes").await;
        answer.expect(400, "IDEMPOTENCY_KEY_MALFORMED");
    }
    let twice = [
        ("idempotency-key", key.as_str()),
        ("idempotency-key", key.as_str()),
    ];
    post(&twice, "/api/v1/pastes")
        .await
        .expect(400, "IDEMPOTENCY_KEY_MALFORMED");
    let in_url = post(&[], &format!("/api/v1/pastes?idempotency_key={key}")).await;
    in_url.expect(400, "INVALID_FIELD");
    assert!(!in_url.text().contains(&key));
    let form = site
        .send(
            Method::POST,
            "/api/v1/pastes",
            &[("content-type", FORM)],
            "body=x",
        )
        .await;
    form.expect(400, "IDEMPOTENCY_KEY_MISSING");
    assert!(site.shard.commits().is_empty());
    assert!(
        site.metric("ostraca_frontend_creates_total{outcome=\"refused\"} 7")
            .await
    );
}

/// The limit counts decoded bytes: L passes in every form, L + 1 in none, announced or chunked.
/// Covers SZ-02, SZ-04.
#[tokio::test]
async fn the_limit_counts_decoded_bytes_in_every_form() {
    let site = Site::start().await;
    let limit = 1000;
    for size in [limit - 1, limit, limit + 1] {
        let zeros = vec![0u8; size];
        let lines = "\r\n".repeat(size);
        let (multipart_type, multipart) = multipart(&zeros);
        let encoded = base64::engine::general_purpose::STANDARD.encode(&zeros);
        let forms: [(&str, Vec<u8>); 6] = [
            ("text/plain", zeros.clone()),
            (
                "application/json",
                format!("{{\"body\":\"{}\"}}", "\\u0000".repeat(size)).into(),
            ),
            (
                "application/json",
                format!("{{\"body_base64\":\"{encoded}\"}}").into(),
            ),
            (FORM, format!("body={}", escaped(&zeros)).into()),
            (FORM, format!("body={}", escaped(lines.as_bytes())).into()),
            (&multipart_type, multipart),
        ];
        for (kind, body) in forms {
            for chunked in [false, true] {
                let body: Body = if chunked {
                    let chunks: Vec<Result<Bytes, std::io::Error>> = body
                        .chunks(777)
                        .map(|chunk| Ok(Bytes::copy_from_slice(chunk)))
                        .collect();
                    Body::from_stream(tokio_stream::iter(chunks))
                } else {
                    Body::from(body.clone())
                };
                let answer = post_as(&site, &site.new_key(), kind, body).await;
                if size <= limit {
                    assert_eq!(
                        answer.status,
                        201,
                        "{kind} {size} {chunked} {}",
                        answer.text()
                    );
                    let raw = site.get(&format!("/{}/raw", answer.field("id"))).await;
                    assert_eq!(raw.body.len(), size);
                } else {
                    answer.expect(413, "BODY_TOO_LARGE");
                    assert_eq!(answer.json()["limit"], 1000);
                }
            }
        }
        // One byte beyond even the largest envelope.
        let huge = format!("body={}", "x".repeat(size * 6 + (64 << 10)));
        let huge = post_as(&site, &site.new_key(), FORM, huge).await;
        huge.expect(413, "BODY_TOO_LARGE");
    }
}

#[tokio::test]
async fn raw_bytes_come_back_untouched() {
    let site = Site::start().await;
    let bodies: [&[u8]; 7] = [
        b"a\r\nb\r\n",
        b"no newline",
        b"\n\n\xef\xbb\xbfbom",
        b"nul\0",
        b"\xff\xfe",
        b"\n",
        b"{}",
    ];
    for body in bodies {
        for kind in ["text/plain", "application/octet-stream", "not a type", ""] {
            let answer = post_as(&site, &site.new_key(), kind, body).await;
            assert_eq!(answer.status, 201, "{}", answer.text());
            let raw = site.get(&format!("/{}/raw", answer.field("id"))).await;
            assert_eq!(raw.body, body);
        }
    }
}

#[tokio::test]
async fn what_is_wrong_with_a_request_is_told() {
    let site = Site::start().await;
    let key = site.new_key();
    site.post(&key, "").await.expect(400, "EMPTY_BODY");
    let empty = post_as(&site, &key, "application/json", "{\"body\":\"\"}").await;
    empty.expect(400, "EMPTY_BODY");
    let json = post_as(&site, &key, "application/json", "{\"body\":\n x").await;
    json.expect(400, "INVALID_FIELD");
    assert!(
        json.field("detail").contains("line 2 column 2"),
        "{}",
        json.text()
    );
    let unknown = post_as(
        &site,
        &key,
        "application/json",
        "{\"body\":\"x\",\"burn\":1}",
    )
    .await;
    unknown.expect(400, "INVALID_FIELD");
    assert_eq!(unknown.field("field"), "burn");
    let curl = post_as(&site, &key, FORM, "some text that curl sends as a form").await;
    curl.expect(400, "INVALID_FIELD");
    assert!(
        curl.field("detail")
            .contains("-H 'Content-Type: text/plain'")
    );
    let multipart = post_as(&site, &key, "multipart/form-data", "x").await;
    multipart.expect(400, "INVALID_FIELD");
    let headers = [
        ("idempotency-key", key.as_str()),
        ("content-encoding", "gzip"),
    ];
    let gzip = site
        .send(Method::POST, "/api/v1/pastes", &headers, "x")
        .await;
    gzip.expect(415, "UNSUPPORTED_ENCODING");
    let headers = [("idempotency-key", key.as_str()), ("paste-burn", "1")];
    let header = site
        .send(Method::POST, "/api/v1/pastes", &headers, "x")
        .await;
    header.expect(400, "INVALID_FIELD");
    assert!(site.shard.commits().is_empty());
    // Nothing of it used the key up (k02).
    assert_eq!(site.post(&key, "x").await.status, 201);
}

#[tokio::test]
async fn answers_are_text_or_html_where_that_is_asked_for() {
    let site = Site::start().await;
    let key = site.new_key();
    let with = async |accept: &str| {
        let headers = [("idempotency-key", key.as_str()), ("accept", accept)];
        site.send(Method::POST, "/api/v1/pastes", &headers, "hello")
            .await
    };
    let text = with("text/plain").await;
    let location = text.header("location").expect("a link").to_owned();
    assert_eq!(text.text(), format!("{location}\n"));
    let html = with("text/html,application/xhtml+xml,*/*;q=0.8").await;
    assert_eq!((html.status, html.header("vary")), (201, Some("Accept")));
    assert!(
        html.header("content-security-policy")
            .expect("a policy")
            .contains("script-src 'self'")
    );
    let token = with("*/*").await.field("delete_token");
    assert_eq!(html.text().matches(&token).count(), 1);
    assert!(html.text().contains(&location));
    assert!(!html.text().contains(&key));
}

#[tokio::test]
async fn k11_of_two_creates_in_flight_one_commits_and_both_get_its_answer() {
    let site = Site::start().await;
    let key = site.new_key();
    // Both look the key up before either commits.
    let both = async || {
        let held = site.shard.hold(Rpc::Commit);
        held.came().await;
        held.came().await;
        held.open();
    };
    let (one, two, ()) = tokio::join!(site.post(&key, "hello"), site.post(&key, "hello"), both());
    assert_eq!((one.status, &one.body), (201, &two.body), "{}", two.text());
    let marked = |answer: &Answer| answer.header("idempotency-replayed") == Some("true");
    assert!(marked(&one) != marked(&two), "one is the repetition");
    assert_eq!((site.shard.pastes(), site.shard.commits().len()), (1, 2));
    assert_eq!(
        site.get(&format!("/{}/raw", one.field("id"))).await.text(),
        "hello"
    );

    let key = site.new_key();
    let (one, two, ()) = tokio::join!(site.post(&key, "hello"), site.post(&key, "other"), both());
    let mut statuses = [one.status, two.status];
    statuses.sort_unstable();
    assert_eq!(statuses, [201, 409]);
}

#[tokio::test]
async fn k17_a_failed_create_is_not_repeated() {
    let site = Site::start().await;
    let key = site.new_key();
    site.shard.fail(
        Rpc::Commit,
        Some(refusal(Code::Unavailable, Reason::OutcomeUnknown)),
    );
    let unknown = site.post(&key, "hello").await;
    unknown.expect(503, "OUTCOME_UNKNOWN");
    assert_eq!(unknown.header("retry-after"), Some("3"));
    assert!(unknown.field("detail").contains("same idempotency key"));
    assert_eq!(site.shard.commits().len(), 1, "one attempt");
    site.shard.fail(Rpc::Commit, None);
    assert_eq!(site.post(&key, "hello").await.status, 201);
}

#[tokio::test]
async fn k07_nothing_is_committed_when_the_body_was_not_stored() {
    let site = Site::start().await;
    let key = site.new_key();
    // A file where a directory should be: no body can be written.
    let prefix = site.dir.path().join("p");
    let moved = site.dir.path().join("moved");
    rename(&prefix, &moved);
    write(&prefix, b"in the way");
    let down = site.post(&key, "hello").await;
    down.expect(503, "BODY_STORE_DOWN");
    assert!(down.header("retry-after").is_some());
    assert!(site.shard.commits().is_empty());
    rename(&prefix, &site.dir.path().join("away"));
    rename(&moved, &prefix);
    assert_eq!(site.post(&key, "hello").await.status, 201);
}

#[tokio::test]
async fn a_client_that_goes_away_does_not_cancel_its_commit() {
    let site = Site::start().await;
    let key = site.new_key();
    let held = site.shard.hold(Rpc::Begin);
    tokio::select! {
        _ = site.post(&key, "hello") => panic!("it is held"),
        () = held.came() => {}
    }
    held.open();
    let limit = Instant::now() + Duration::from_secs(60);
    while site.shard.pastes() == 0 {
        assert!(Instant::now() < limit, "the create went on");
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
    let again = site.post(&key, "hello").await;
    assert_eq!(
        again.header("idempotency-replayed"),
        Some("true"),
        "{}",
        again.text()
    );
}

#[tokio::test]
async fn l01_creates_beyond_the_bound_are_refused_at_once() {
    let config = Config {
        creates_in_flight_max: 1,
        ..Config::default()
    };
    let site = Arc::new(Site::with(config).await);
    let held = site.shard.hold(Rpc::Begin);
    let first = {
        let site = Arc::clone(&site);
        tokio::spawn(async move { site.post(&site.new_key(), "hello").await.status })
    };
    held.came().await;
    let second = site
        .post("f81d4fae-7dec-41d0-a765-00a0c91e6bf6", "hello")
        .await;
    second.expect(503, "OVERLOADED");
    assert_eq!(second.header("retry-after"), Some("1"));
    assert!(!first.is_finished(), "the refusal did not wait");
    held.open();
    assert_eq!(first.await.expect("no panic"), 201);
}

#[expect(
    clippy::disallowed_methods,
    reason = "the test breaks the store behind its back"
)]
fn rename(from: &std::path::Path, to: &std::path::Path) {
    std::fs::rename(from, to).expect("renamed");
}

#[expect(
    clippy::disallowed_methods,
    reason = "the test breaks the store behind its back"
)]
pub(super) fn write(path: &std::path::Path, bytes: &[u8]) {
    std::fs::write(path, bytes).expect("written");
}
