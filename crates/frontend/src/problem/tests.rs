use super::*;
use axum::body::to_bytes;

async fn text(response: Response) -> String {
    let bytes = to_bytes(response.into_body(), 1 << 20)
        .await
        .expect("a body");
    String::from_utf8(bytes.to_vec()).expect("text")
}

fn accept(value: &'static str) -> HeaderMap {
    let mut headers = HeaderMap::new();
    headers.insert(axum::http::header::ACCEPT, HeaderValue::from_static(value));
    headers
}

#[tokio::test]
async fn a_problem_is_json_text_or_html() {
    let problem = Problem::too_large(1000);
    let json = problem.render(&HeaderMap::new());
    assert_eq!(json.status(), StatusCode::PAYLOAD_TOO_LARGE);
    assert_eq!(json.headers()[CONTENT_TYPE], "application/problem+json");
    assert_eq!(json.headers()[CACHE_CONTROL], "no-store");
    assert_eq!(
        text(json).await,
        "{\"type\":\"https://ostraca.dev/problems/body-too-large\",\
         \"title\":\"The paste is too large\",\"status\":413,\
         \"detail\":\"a paste has at most 1000 bytes\",\"reason\":\"BODY_TOO_LARGE\",\
         \"limit\":1000}\n"
    );
    let plain = text(problem.render(&accept("text/plain"))).await;
    assert_eq!(
        plain,
        "The paste is too large: a paste has at most 1000 bytes (BODY_TOO_LARGE)\n"
    );
    let html = problem.render(&accept("text/html"));
    assert_eq!(html.headers()[CONTENT_TYPE], "text/html; charset=utf-8");
    assert!(text(html).await.contains("<h1>The paste is too large</h1>"));
}

#[tokio::test]
async fn a_page_has_sentences() {
    let page = async |problem: Problem| text(problem.render(&accept("text/html"))).await;
    let html = page(Problem::no_paste().back_to("/x/delete".to_owned())).await;
    assert!(html.contains("<p>The paste expired, was deleted, or never existed.</p>"));
    assert!(html.contains("<a href=\"/x/delete\">"), "{html}");
    let html = page(Problem::field("body_base64", "body_base64 is not base64")).await;
    assert!(html.contains("<p>body_base64 is not base64.</p>"), "{html}");
}

#[tokio::test]
async fn what_a_client_named_is_shown_cut_and_escaped() {
    let name = format!("<script>\r\n{}", "x".repeat(1000));
    let problem = crate::options::unknown(&name, "field");
    let json = text(problem.render(&HeaderMap::new())).await;
    assert!(json.len() < 1000, "{json}");
    assert!(!json.contains("\\r"), "{json}");
    let html = text(problem.render(&accept("text/html"))).await;
    assert!(!html.contains("<script>\u{fffd}"), "{html}");
}

#[test]
fn delays_are_whole_seconds_between_one_and_a_minute() {
    for (delay, secs) in [
        (None, 1),
        (Some(0), 1),
        (Some(1001), 2),
        (Some(1_000_000), 60),
    ] {
        let delay = delay.map(Duration::from_millis);
        let problem = Problem::new(Reason::Overloaded, "x").waits(delay);
        let response = problem.render(&HeaderMap::new());
        assert_eq!(response.headers()[RETRY_AFTER], secs.to_string());
    }
}

#[test]
fn k17_object_store_failures_name_what_to_do() {
    use ostraca_bodies::Error;
    let key = || "p/00/00abcdefghijkl".to_owned();
    let down = || Error::Store {
        action: ostraca_bodies::Action::Get,
        source: "no".into(),
    };
    let full = std::io::Error::from(std::io::ErrorKind::StorageFull);
    let full = Error::Store {
        action: ostraca_bodies::Action::Put,
        source: full.into(),
    };
    let cases = [
        (Error::Exists { key: key() }, Call::Create, 503, "ID_TAKEN"),
        (full, Call::Create, 503, "DISK_FULL"),
        (down(), Call::Create, 503, "BODY_STORE_DOWN"),
        (down(), Call::Read, 503, "BODY_STORE_DOWN"),
        (
            Error::Missing { key: key() },
            Call::Read,
            500,
            "BODY_MISSING",
        ),
        (
            Error::TooLarge {
                key: key(),
                size: 1,
            },
            Call::Read,
            500,
            "BODY_DAMAGED",
        ),
        (Error::InvalidKey, Call::Create, 500, "INTERNAL"),
    ];
    for (err, call, status, reason) in cases {
        let problem = Problem::from_bodies(&err, call);
        assert_eq!(
            (problem.status().as_u16(), problem.kind().reason()),
            (status, reason),
            "{err}"
        );
        let waits = problem
            .render(&HeaderMap::new())
            .headers()
            .contains_key(RETRY_AFTER);
        assert_eq!(waits, status == 503, "{err}");
    }
}
