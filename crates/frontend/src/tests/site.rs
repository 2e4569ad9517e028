use super::*;

/// Goal: a form is a save of its own: no cache keeps it, so whoever comes back to it gets another key
/// and makes another paste. Covers ID-07.
#[tokio::test]
async fn k01_the_form_carries_a_key_of_its_own() {
    let site = Site::start().await;
    let key_of = |page: &Answer| {
        let html = page.text();
        let rest = html
            .split("name=\"idempotency_key\" value=\"")
            .nth(1)
            .expect("a key");
        rest[..36].to_owned()
    };
    let (one, two) = (site.get("/").await, site.get("/?x=1").await);
    assert_eq!(one.header("cache-control"), Some("no-store"));
    let key = key_of(&one);
    assert!(IdempotencyKey::parse(&key).is_ok(), "{key}");
    assert_ne!(key, key_of(&two));

    // What a browser without script sends.
    let form = format!("idempotency_key={key}&body=a%0D%0Ab&title=&syntax=&lifetime=30d");
    let headers = [
        ("content-type", "application/x-www-form-urlencoded"),
        (
            "accept",
            "text/html,application/xhtml+xml,application/xml;q=0.9,*/*;q=0.8",
        ),
    ];
    let saved = site
        .send(Method::POST, "/api/v1/pastes", &headers, form)
        .await;
    assert_eq!(saved.status, 201, "{}", saved.text());
    let url = saved
        .header("location")
        .expect("a link")
        .strip_prefix(URL)
        .expect("our origin");
    assert_eq!(site.get(&format!("{url}/raw")).await.text(), "a\nb");
}

/// Goal: a page loads nothing but our own files, which are named by their content, so that a cache
/// can keep them for ever and a new version is never missed. Covers CA-08.
#[tokio::test]
async fn pages_load_nothing_but_our_own_named_files() {
    let site = Site::start().await;
    let page = site.get("/").await;
    let html = page.text();
    let mut files = 0;
    for part in html.split('"').filter(|part| part.starts_with("/static/")) {
        let file = site.get(part).await;
        assert_eq!(file.status, 200, "{part}");
        assert_eq!(
            file.header("cache-control"),
            Some("public, max-age=31536000, immutable")
        );
        assert_eq!(file.header("x-content-type-options"), Some("nosniff"));
        files += 1;
    }
    assert_eq!(files, 3);
    assert!(
        !html.contains("style=") && !html.contains("onclick"),
        "{html}"
    );
    assert!(
        !html.contains("http://") && !html.contains("https://"),
        "{html}"
    );
}

/// Goal: every answer says whether it may be kept, and what it is. Covers CA-04.
#[tokio::test]
async fn texts_and_health() {
    let site = Site::start().await;
    let help = site.get("/help.txt").await;
    assert!(help.text().contains("Idempotency-Key: $KEY") && help.text().contains(URL));
    assert!(help.text().contains("honoured for 25 hours") && help.text().contains("422"));
    assert!(
        site.get("/robots.txt")
            .await
            .text()
            .starts_with("User-agent: *")
    );
    assert_eq!(site.get("/healthz").await.text(), "alive\n");
    assert_eq!(site.get("/readyz").await.text(), "ready\n");
    for uri in [
        "/",
        "/help.txt",
        "/robots.txt",
        "/healthz",
        "/readyz",
        "/metrics",
        "/none/x",
    ] {
        let answer = site.get(uri).await;
        for name in [
            "cache-control",
            "content-security-policy",
            "x-content-type-options",
            "referrer-policy",
            "cross-origin-resource-policy",
            "permissions-policy",
            "x-robots-tag",
        ] {
            assert!(answer.header(name).is_some(), "{uri} {name}");
        }
        assert!(answer.header("x-xss-protection").is_none());
        assert!(answer.header("content-type").is_some(), "{uri}");
    }
}

#[tokio::test]
async fn readiness_needs_a_shard_and_health_does_not() {
    let client = Client::new(Options::new(Seeds::Fixed(vec!["127.0.0.1:1".to_owned()])));
    let site = Site::start().await;
    let bodies = Bodies::local(site.dir.path()).expect("a store");
    let entropy = Arc::new(SeededEntropy::new(1));
    let frontend = Frontend::new(Config::default(), client, bodies, entropy).expect("valid");
    let site = Site {
        router: frontend.router(),
        ..site
    };
    site.get("/readyz").await.expect(503, "NOT_READY");
    assert_eq!(site.get("/healthz").await.status, 200);
    site.get("/00abcdefghijkl").await.expect(503, "NOT_READY");
}

#[tokio::test]
async fn k16_metrics_and_debug_have_no_secrets() {
    let site = Site::start().await;
    let key = site.new_key();
    let headers = [
        ("idempotency-key", key.as_str()),
        ("paste-title", "my-diary"),
    ];
    let created = site
        .send(Method::POST, "/api/v1/pastes", &headers, "the body")
        .await;
    site.get(&format!("/{}", created.field("id"))).await;
    let metrics = site.get("/metrics").await;
    let all = format!("{} {:?}", metrics.text(), site.frontend);
    for secret in [
        &key,
        &created.field("delete_token"),
        "my-diary",
        "the body",
        &created.field("id"),
    ] {
        assert!(!all.contains(secret), "{all}");
    }
    let line = "ostraca_frontend_requests_total{route=\"/{id}\",method=\"GET\",code=\"200\"} 1";
    assert!(all.contains(line), "{all}");
}
