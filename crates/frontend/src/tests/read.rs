use std::sync::atomic::Ordering;
use std::time::Duration;

use super::create::write;
use super::*;

const MISSING: &str = "00abcdefghijkl";
/// By an edge; a browser asks each time.
const CACHED_FOR_A_MINUTE: &str = "public, max-age=0, must-revalidate, s-maxage=60";

/// Goal: raw is text to every browser and cache; HEAD and 304 agree with GET, and ranges are neither
/// served nor promised. Covers BY-11, CA-07, CA-10, CA-11.
#[tokio::test]
async fn raw_is_text_that_runs_nothing() {
    let site = Site::start().await;
    let (id, _) = site.paste("<script>alert(1)</script>").await;
    let raw = site.get(&format!("/{id}/raw")).await;
    assert_eq!((raw.status, raw.text()), (200, "<script>alert(1)</script>"));
    for (name, value) in [
        ("content-type", "text/plain; charset=utf-8"),
        ("x-content-type-options", "nosniff"),
        ("content-security-policy", "sandbox; default-src 'none'"),
        ("accept-ranges", "none"),
        ("content-length", "25"),
        ("cache-control", CACHED_FOR_A_MINUTE),
        ("referrer-policy", "no-referrer"),
        ("x-robots-tag", "noindex"),
    ] {
        assert_eq!(raw.header(name), Some(value), "{name}");
    }
    let etag = raw.header("etag").expect("a tag");
    assert_eq!(etag.len(), 34);

    let head = site
        .send(Method::HEAD, &format!("/{id}/raw"), &[], Body::empty())
        .await;
    assert_eq!((head.status, head.body.len()), (200, 0));
    assert_eq!(head.header("content-length"), Some("25"));
    assert_eq!(head.header("etag"), Some(etag));

    let ask = [("if-none-match", etag)];
    let not_modified = site
        .send(Method::GET, &format!("/{id}/raw"), &ask, Body::empty())
        .await;
    assert_eq!((not_modified.status, not_modified.body.len()), (304, 0));
    for name in [
        "etag",
        "cache-control",
        "content-security-policy",
        "content-type",
    ] {
        assert_eq!(not_modified.header(name), raw.header(name), "{name}");
    }
    let range = [("range", "bytes=0-0")];
    let ranged = site
        .send(Method::GET, &format!("/{id}/raw"), &range, Body::empty())
        .await;
    assert_eq!((ranged.status, ranged.body.len()), (200, 25));
}

#[tokio::test]
async fn a_page_shows_what_is_known_and_escapes_it() {
    let site = Site::start().await;
    let headers = [
        ("idempotency-key", &*site.new_key()),
        ("paste-title", "</title><script>x</script>"),
        ("paste-syntax", "c++"),
    ];
    let body = "\n</pre><script>y</script>\0";
    let created = site
        .send(Method::POST, "/api/v1/pastes", &headers, body)
        .await;
    let id = created.field("id");
    let page = site.get(&format!("/{id}?fbclid=1")).await;
    assert_eq!(page.status, 200);
    assert_eq!(
        page.header("content-type"),
        Some("text/html; charset=utf-8")
    );
    assert_eq!(page.header("cache-control"), Some(CACHED_FOR_A_MINUTE));
    let link = format!("</{id}/raw>; rel=\"alternate\"; type=\"text/plain\"");
    assert_eq!(page.header("link"), Some(link.as_str()));
    let policy = page.header("content-security-policy").expect("a policy");
    assert!(
        policy.contains("default-src 'none'") && !policy.contains("unsafe"),
        "{policy}"
    );
    let html = page.text();
    assert!(!html.contains("<script>"), "{html}");
    assert!(html.contains("c++") && html.contains("␀") && html.contains("translate=\"no\""));
    assert!(!html.contains(&created.field("delete_token")));
    // A browser drops the first line end after <pre>; the paste's own must not be that one.
    assert!(html.contains("tabindex=\"0\">\n\n&#60;/pre&#62;"), "{html}");
    assert!(html.contains("created 2026-09-21 14:13 UTC"), "{html}");

    let etag = page.header("etag").expect("a tag");
    let ask = [("if-none-match", etag)];
    let uri = format!("/{id}");
    let unchanged = site.send(Method::GET, &uri, &ask, Body::empty()).await;
    assert_eq!((unchanged.status, unchanged.body.len()), (304, 0));
    for name in ["etag", "cache-control", "content-security-policy", "link"] {
        assert_eq!(unchanged.header(name), page.header(name), "{name}");
    }
    assert_ne!(
        site.get(&format!("{uri}/raw")).await.header("etag"),
        Some(etag)
    );

    let odd = site.post(&site.new_key(), &b"\xff\xfe"[..]).await;
    let odd = site.get(&format!("/{}", odd.field("id"))).await;
    assert!(odd.text().contains("Not UTF-8") && odd.text().contains('\u{fffd}'));
}

/// Goal: a page that shows less than the paste says so, and raw has all of it. Covers SZ-10.
#[tokio::test]
async fn a_large_paste_is_cut_on_its_page_only() {
    let site = Site::with(Config::default()).await;
    let body = "x".repeat(1 << 20);
    let created = site.post(&site.new_key(), body).await;
    let id = created.field("id");
    let page = site.get(&format!("/{id}")).await;
    assert!(
        page.body.len() < (512 << 10) + 10_000,
        "{}",
        page.body.len()
    );
    assert!(page.text().contains("the beginning only"));
    assert_eq!(site.get(&format!("/{id}/raw")).await.body.len(), 1 << 20);
}

#[tokio::test]
async fn metadata_has_everything_but_the_body() {
    let site = Site::start().await;
    let (id, token) = site.paste("hello").await;
    let answer = site.get(&format!("/api/v1/pastes/{id}")).await;
    assert_eq!(answer.status, 200);
    assert_eq!(
        answer.text(),
        format!(
            "{{\"id\":\"{id}\",\"url\":\"{URL}/{id}\",\"raw_url\":\"{URL}/{id}/raw\",\
             \"created_at\":\"2026-09-21T14:13:20.000Z\",\
             \"expires_at\":\"2026-10-21T14:13:20.000Z\",\"size\":5,\"syntax\":null,\
             \"title\":null}}\n"
        )
    );
    assert!(!answer.text().contains(&token));
    assert_eq!(answer.header("cache-control"), Some(CACHED_FOR_A_MINUTE));
}

/// Goal: answers for pastes can be cached, and not for longer than they are true. Covers CA-05.
#[tokio::test]
async fn r06_no_cache_keeps_a_paste_beyond_its_expiry() {
    let site = Site::start().await;
    let headers = [
        ("idempotency-key", &*site.new_key()),
        ("paste-lifetime", "2m"),
    ];
    let id = site
        .send(Method::POST, "/api/v1/pastes", &headers, "x")
        .await
        .field("id");
    let created = site.shard.now_ms.load(Ordering::Relaxed);
    for (after_ms, expected) in [
        (0, 60),
        (60_000, 60),
        (60_001, 59),
        (119_000, 1),
        (119_001, 0),
        (119_999, 0),
    ] {
        site.shard
            .now_ms
            .store(created + after_ms, Ordering::Relaxed);
        for uri in [
            format!("/{id}"),
            format!("/{id}/raw"),
            format!("/api/v1/pastes/{id}"),
        ] {
            let answer = site.get(&uri).await;
            let value = format!("public, max-age=0, must-revalidate, s-maxage={expected}");
            assert_eq!(
                answer.header("cache-control"),
                Some(value.as_str()),
                "{uri} {after_ms}"
            );
        }
    }
    site.shard
        .now_ms
        .store(created + 120_000, Ordering::Relaxed);
    site.get(&format!("/{id}/raw"))
        .await
        .expect(404, "PASTE_NOT_FOUND");
}

#[tokio::test]
async fn r07_a_missing_or_damaged_body_is_an_error_of_its_own_and_counted() {
    let site = Site::start().await;
    let (id, _) = site.paste("hello").await;
    write(&site.object(&id), b"jello");
    for uri in [format!("/{id}/raw"), format!("/{id}")] {
        site.get(&uri).await.expect(500, "BODY_DAMAGED");
    }
    write(&site.object(&id), b"hello, and more");
    site.get(&format!("/{id}/raw"))
        .await
        .expect(500, "BODY_DAMAGED");
    assert!(site.metric("ostraca_frontend_body_damaged_total 3").await);
    remove(&site.object(&id));
    site.get(&format!("/{id}/raw"))
        .await
        .expect(500, "BODY_MISSING");
    assert!(site.metric("ostraca_frontend_body_missing_total 1").await);
    // A file that cannot be opened is a store that does not answer.
    let loops = site.object(&id);
    std::os::unix::fs::symlink(loops.file_name().expect("a name"), &loops).expect("linked");
    let down = site.get(&format!("/{id}/raw")).await;
    down.expect(503, "BODY_STORE_DOWN");
    assert!(down.header("retry-after").is_some());
    assert!(site.metric("ostraca_frontend_body_missing_total 1").await);
    assert_eq!(site.get(&format!("/api/v1/pastes/{id}")).await.status, 200);
}

#[tokio::test]
async fn r03_a_delete_needs_the_token_and_leaves_no_trace() {
    let site = Site::start().await;
    let (id, token) = site.paste("hello").await;
    let (_, other) = site.paste("other").await;
    let delete = async |id: &str, authorization: Option<&str>| {
        let uri = format!("/api/v1/pastes/{id}");
        let headers: Vec<_> = authorization
            .map(|value| ("authorization", value))
            .into_iter()
            .collect();
        site.send(Method::DELETE, &uri, &headers, Body::empty())
            .await
    };
    let none = delete(&id, None).await;
    none.expect(401, "DELETE_TOKEN_MISSING");
    assert!(
        none.header("www-authenticate")
            .expect("a scheme")
            .starts_with("Bearer")
    );
    for wrong in [&other, &token[..21], &token.to_lowercase(), "x"] {
        let answer = delete(&id, Some(&format!("Bearer {wrong}"))).await;
        answer.expect(403, "DELETE_TOKEN_REJECTED");
        assert!(!answer.text().contains(&token));
    }
    assert_eq!(
        site.get(&format!("/{id}/raw")).await.status,
        200,
        "nothing was changed"
    );

    let bearer = format!("Bearer {token}");
    let deleted = delete(&id, Some(&bearer)).await;
    assert_eq!((deleted.status, deleted.body.len()), (204, 0));
    let again = delete(&id, Some(&bearer)).await;
    again.expect(404, "PASTE_NOT_FOUND");
    let never = delete(MISSING, Some(&bearer)).await;
    assert_eq!(
        (again.status, &again.body, &again.headers),
        (404, &never.body, &never.headers)
    );
    for (gone, never) in [
        (format!("/{id}"), format!("/{MISSING}")),
        (format!("/{id}/raw"), format!("/{MISSING}/raw")),
        (
            format!("/api/v1/pastes/{id}"),
            format!("/api/v1/pastes/{MISSING}"),
        ),
        (format!("/{id}/delete"), "/zz/delete".to_owned()),
    ] {
        let (gone, never) = (site.get(&gone).await, site.get(&never).await);
        gone.expect(404, "PASTE_NOT_FOUND");
        assert_eq!((&gone.body, &gone.headers), (&never.body, &never.headers));
    }
    assert_eq!(
        delete(MISSING, Some("Bearer x")).await.status,
        404,
        "no token and no paste"
    );
}

#[tokio::test]
async fn a_browser_deletes_by_a_page_that_asks_first() {
    let site = Site::start().await;
    let (id, token) = site.paste("hello").await;
    let uri = format!("/{id}/delete");
    let page = site.get(&uri).await;
    assert_eq!(
        (page.status, page.header("cache-control")),
        (200, Some("no-store"))
    );
    assert_eq!(
        site.get(&format!("/{id}/raw")).await.status,
        200,
        "asking deletes nothing"
    );
    let post = async |form: String| {
        let headers = [
            ("content-type", "application/x-www-form-urlencoded"),
            ("accept", "text/html"),
        ];
        site.send(Method::POST, &uri, &headers, form).await
    };
    for (form, status) in [("", 400), ("token=wrong", 403)] {
        let refused = post(form.to_owned()).await;
        assert_eq!(refused.status, status);
        let back = format!("<a href=\"{uri}\">");
        assert!(refused.text().contains(&back), "{}", refused.text());
    }
    let done = post(format!("token=+{token}+")).await;
    assert_eq!((done.status, done.text().contains("Deleted")), (200, true));
    assert_eq!(post(format!("token={token}")).await.status, 404);
}

#[tokio::test]
async fn ids_that_are_none_are_missing_and_never_an_error() {
    let site = Site::start().await;
    let long = "a".repeat(10_000);
    for id in [
        "%2e%2e",
        "..",
        "%2f",
        "%ff",
        "%00",
        "zzabcdefghijkl",
        "48abcdefghijkl",
        "00abcdefghijk-",
        "00abcdefghijklm",
        long.as_str(),
        "favicon.ico",
        "%3Cscript%3E",
    ] {
        for uri in [
            format!("/{id}"),
            format!("/{id}/raw"),
            format!("/api/v1/pastes/{id}"),
        ] {
            site.get(&uri).await.expect(404, "PASTE_NOT_FOUND");
        }
    }
    for uri in [
        "//",
        "/..//",
        "/a/b/c",
        "/api/v1",
        "/static/../x",
        "/static/app.js",
    ] {
        assert_eq!(site.get(uri).await.status, 404, "{uri}");
    }
}

#[tokio::test]
async fn a_slow_shard_costs_a_deadline() {
    let site = Site::start().await;
    let _never_opened = site.shard.hold(fake::Rpc::Get);
    let client = Options {
        seeds: Seeds::Fixed(vec![site.shard.address.clone()]),
        // Time enough to connect on a busy machine.
        deadline: Duration::from_secs(1),
        cluster: None,
    };
    let bodies = Bodies::local(site.dir.path()).expect("a store");
    let entropy = Arc::new(SeededEntropy::new(1));
    let frontend = Frontend::new(Config::default(), Client::new(client), bodies, entropy);
    let site = Site {
        router: frontend.expect("valid").router(),
        ..site
    };
    site.get(&format!("/{MISSING}/raw"))
        .await
        .expect(504, "DEADLINE_EXCEEDED");
}

#[tokio::test]
async fn l01_reads_beyond_their_memory_are_refused_at_once() {
    let read_memory_max = crate::admission::read_cost_max(1000);
    let config = Config {
        body_size_max: 1000,
        read_memory_max,
        ..Config::default()
    };
    let site = Site::with(config).await;
    let (id, _) = site.paste("hello").await;
    let uri = format!("/{id}/raw");
    // An answer of which nothing is read yet.
    let request = Request::builder()
        .uri(&uri)
        .body(Body::empty())
        .expect("a request");
    let unread = site
        .router
        .clone()
        .oneshot(request)
        .await
        .expect("infallible");
    assert_eq!(unread.status(), 200);
    let refused = site.get(&format!("/{id}")).await;
    refused.expect(503, "OVERLOADED");
    assert_eq!(refused.header("retry-after"), Some("1"));
    drop(unread);
    assert_eq!(site.get(&format!("/{id}")).await.status, 200);
}

#[expect(
    clippy::disallowed_methods,
    reason = "the test breaks the store behind its back"
)]
fn remove(path: &std::path::Path) {
    std::fs::remove_file(path).expect("removed");
}
