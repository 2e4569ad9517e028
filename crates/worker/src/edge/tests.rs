//! Against an HTTP server that answers as it is told.

use std::sync::Arc;

use ostraca_types::Slot;
use parking_lot::Mutex;
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::TcpListener;

use super::*;

/// The heads of the requests that came.
type Heads = Arc<Mutex<Vec<String>>>;

/// A server that answers each request with `answer`, or never if that is empty.
async fn server(answer: &'static str) -> (String, Heads) {
    let listener = TcpListener::bind("127.0.0.1:0").await.expect("a port");
    let address = listener.local_addr().expect("an address").to_string();
    let heads = Heads::default();
    let seen = Arc::clone(&heads);
    tokio::spawn(async move {
        while let Ok((mut stream, _)) = listener.accept().await {
            let seen = Arc::clone(&seen);
            tokio::spawn(async move {
                let mut head = Vec::new();
                while let Ok(byte) = stream.read_u8().await {
                    head.push(byte);
                    if head.ends_with(b"\r\n\r\n") {
                        let text = String::from_utf8(std::mem::take(&mut head));
                        seen.lock().push(text.expect("a head is text"));
                        if answer.is_empty() {
                            continue;
                        }
                        stream.write_all(answer.as_bytes()).await.expect("written");
                    }
                }
            });
        }
    });
    (address, heads)
}

fn edge(addresses: &[&str], public_url: Option<&str>) -> HttpEdge {
    // Another test may have been first.
    let _ = rustls::crypto::ring::default_provider().install_default();
    let urls: Vec<_> = addresses
        .iter()
        .map(|address| format!("http://{address}"))
        .collect();
    let config = EdgeConfig::parse(&format!("http-purge={}", urls.join(","))).expect("an edge");
    let public_url = public_url.map(|url| Url::parse(url).expect("a URL"));
    HttpEdge::new(&config, public_url.as_ref()).expect("a client")
}

fn id() -> PasteId {
    PasteId::mint(Slot(3), |random| random.fill(7))
}

async fn purged_by(answer: &'static str) -> Result<(), PurgeError> {
    let (address, _) = server(answer).await;
    edge(&[&address], None).purge(&id()).await
}

#[tokio::test]
async fn i02_every_url_of_a_paste_is_purged_on_every_target() {
    let answer = "HTTP/1.1 200 Purged\r\nContent-Length: 2\r\n\r\nok";
    let (one, heads_of_one) = server(answer).await;
    let (two, heads_of_two) = server(answer).await;
    let edge = edge(&[&one, &two], None);
    edge.purge(&id()).await.expect("purged");
    let id = id();
    let mut expected = [
        format!("PURGE /{id} HTTP/1.1"),
        format!("PURGE /{id}/raw HTTP/1.1"),
        format!("PURGE /api/v1/pastes/{id} HTTP/1.1"),
    ];
    expected.sort();
    for (address, heads) in [(one, heads_of_one), (two, heads_of_two)] {
        let heads = heads.lock();
        let mut lines: Vec<_> = heads
            .iter()
            .filter_map(|head| head.lines().next())
            .collect();
        lines.sort_unstable();
        assert_eq!(lines, expected);
        let host = format!("host: {address}");
        assert!(heads.iter().all(|head| head.to_lowercase().contains(&host)));
    }
}

/// A cache knows what it keeps by the readers' Host.
#[tokio::test]
async fn a_purge_has_the_public_host() {
    let (address, heads) = server("HTTP/1.1 204 No Content\r\n\r\n").await;
    let edge = edge(&[&address], Some("https://paste.example"));
    edge.purge(&id()).await.expect("purged");
    for head in heads.lock().iter() {
        let lower = head.to_lowercase();
        assert!(lower.contains("host: paste.example\r\n"), "{head}");
        assert_eq!(lower.matches("host:").count(), 1, "{head}");
    }
}

#[tokio::test]
async fn i02_what_was_not_kept_is_purged() {
    for answer in [
        "HTTP/1.1 200 OK\r\nContent-Length: 0\r\n\r\n",
        "HTTP/1.1 204 No Content\r\n\r\n",
        "HTTP/1.1 404 Not Found\r\nContent-Length: 0\r\n\r\n",
    ] {
        assert_eq!(purged_by(answer).await, Ok(()), "{answer}");
    }
}

#[tokio::test]
async fn a_refusal_is_for_a_person_and_a_busy_edge_is_not() {
    for (answer, fault) in [
        ("401 Unauthorized", PurgeFault::Refused(401)),
        ("403 Forbidden", PurgeFault::Refused(403)),
        ("405 Method Not Allowed", PurgeFault::Refused(405)),
        (
            "301 Moved\r\nLocation: http://127.0.0.1:1/",
            PurgeFault::Refused(301),
        ),
        ("429 Too Many Requests", PurgeFault::Busy(429)),
        ("500 Error", PurgeFault::Busy(500)),
        ("503 Unavailable", PurgeFault::Busy(503)),
    ] {
        let answer = format!("HTTP/1.1 {answer}\r\nContent-Length: 0\r\n\r\n");
        let err = purged_by(answer.leak()).await.expect_err("an error");
        assert_eq!(err.fault(), fault);
        assert_eq!(err.retry_after(), None);
        let text = err.to_string();
        assert!(text.starts_with("127.0.0.1:"), "{text}");
        assert!(!text.contains(id().as_str()), "{text}");
    }
}

#[tokio::test]
async fn a_busy_edge_says_when_to_come_back() {
    for (headers, wait) in [
        ("Retry-After: 7", 7),
        ("Retry-After: 999999", 3600),
        (
            "Date: Wed, 21 Oct 2026 07:28:00 GMT\r\nRetry-After: Wed, 21 Oct 2026 07:29:30 GMT",
            90,
        ),
        (
            "Date: Wed, 21 Oct 2026 07:28:00 GMT\r\nRetry-After: Wed, 21 Oct 2026 07:00:00 GMT",
            0,
        ),
    ] {
        let answer = format!("HTTP/1.1 503 Busy\r\nContent-Length: 0\r\n{headers}\r\n\r\n");
        let err = purged_by(answer.leak()).await.expect_err("busy");
        assert_eq!(
            err.retry_after(),
            Some(Duration::from_secs(wait)),
            "{headers}"
        );
    }
    let answer = "HTTP/1.1 503 Busy\r\nContent-Length: 0\r\nRetry-After: soon\r\n\r\n";
    assert_eq!(
        purged_by(answer).await.expect_err("busy").retry_after(),
        None
    );
}

/// Goal: one target's failure is told although the others worked, and they are purged all the same.
#[tokio::test]
async fn one_target_that_fails_is_enough() {
    let (good, heads) = server("HTTP/1.1 200 OK\r\nContent-Length: 0\r\n\r\n").await;
    let (bad, _) = server("HTTP/1.1 405 No\r\nContent-Length: 0\r\n\r\n").await;
    let (busy, _) =
        server("HTTP/1.1 429 Wait\r\nContent-Length: 0\r\nRetry-After: 3\r\n\r\n").await;
    let err = edge(&[&busy, &bad, &good], None).purge(&id()).await;
    let err = err.expect_err("two fail");
    assert_eq!(
        err.fault(),
        PurgeFault::Refused(405),
        "the one for a person"
    );
    assert_eq!(err.retry_after(), Some(Duration::from_secs(3)));
    assert_eq!(heads.lock().len(), 3, "the good one was purged");
}

#[tokio::test]
async fn an_edge_that_is_silent_or_gone_is_given_up() {
    let listener = TcpListener::bind("127.0.0.1:0").await.expect("a port");
    let gone = listener.local_addr().expect("an address").to_string();
    drop(listener);
    let err = edge(&[&gone], None).purge(&id()).await.expect_err("gone");
    assert_eq!(err.fault(), PurgeFault::Unreachable);
    let err = purged_by("").await.expect_err("silent");
    assert_eq!(err.fault(), PurgeFault::Deadline);
}

#[tokio::test]
async fn without_an_edge_everything_is_purged() {
    let _ = rustls::crypto::ring::default_provider().install_default();
    let none = HttpEdge::new(&EdgeConfig::None, None).expect("a client");
    assert_eq!(none.purge(&id()).await, Ok(()));
}

#[test]
fn an_edge_is_read_as_it_is_written() {
    for text in [
        "none",
        "http-purge=http://127.0.0.1:6081/",
        "http-purge=http://a/,https://b:8443/cache",
    ] {
        let config = EdgeConfig::parse(text).expect("an edge");
        assert_eq!(config.to_string(), text);
    }
    for text in [
        "",
        "varnish",
        "http-purge=",
        "http-purge=a",
        "http-purge=ftp://a",
        "http-purge=http://u:p@a",
        "http-purge=http://a?b",
        "http-purge=http://a,",
    ] {
        assert_eq!(EdgeConfig::parse(text), Err(EdgeConfigError), "{text}");
    }
}
