use super::*;

const KEY: &str = "f81d4fae-7dec-41d0-a765-00a0c91e6bf6";
const OTHER: &str = "0b7c1a52-93d4-4b6e-8f10-2f4f6f0c1d2e";

fn headers(pairs: &[(&str, &str)]) -> HeaderMap {
    let mut headers = HeaderMap::new();
    for (name, value) in pairs {
        let name = axum::http::HeaderName::try_from(*name).expect("a header name");
        let value = axum::http::HeaderValue::from_bytes(value.as_bytes()).expect("a header value");
        headers.append(name, value);
    }
    headers
}

fn head(query: &str, pairs: &[(&str, &str)]) -> Result<Options, String> {
    Options::from_head(Some(query), &headers(pairs)).map_err(|problem| format!("{problem:?}"))
}

#[test]
fn options_come_from_query_and_headers() {
    let options = head(
        "lifetime=1h&syntax=c%2B%2B",
        &[("Paste-Title", "Grüße & <b>")],
    );
    let options = options.expect("options");
    assert_eq!(options.lifetime.map(Lifetime::as_secs), Some(3600));
    assert_eq!(options.syntax.expect("given").as_str(), "c++");
    assert_eq!(options.title.expect("given").as_str(), "Grüße & <b>");
    assert_eq!(
        head("", &[("X-Other", "x")]).expect("none"),
        Options::default()
    );
}

#[test]
fn an_option_given_twice_must_be_the_same() {
    for pairs in [
        &[("Paste-Lifetime", "3600")][..],
        &[("Paste-Lifetime", "1h")],
    ] {
        let options = head("lifetime=60m", pairs).expect("the same lifetime");
        assert_eq!(options.lifetime.map(Lifetime::as_secs), Some(3600));
    }
    for (query, pairs) in [
        ("lifetime=1h", &[("Paste-Lifetime", "2h")][..]),
        ("lifetime=1h&lifetime=2h", &[]),
        ("", &[("Paste-Lifetime", "1h"), ("Paste-Lifetime", "2h")]),
    ] {
        let text = head(query, pairs).expect_err("two values");
        assert!(text.contains("lifetime is given twice"), "{text}");
    }
}

#[test]
fn unknown_options_and_bad_values_are_refused_by_name() {
    for (query, pairs, name) in [
        ("burn=1", &[][..], "burn"),
        ("Lifetime=1h", &[], "Lifetime"),
        ("lifetime=1h&&x", &[], "x"),
        ("", &[("Paste-Burn", "1")], "paste-burn"),
        ("", &[("Paste-Body", "1")], "paste-body"),
        ("lifetime=0", &[], "lifetime"),
        ("lifetime=-1", &[], "lifetime"),
        ("lifetime=9223372036854775808", &[], "lifetime"),
        ("lifetime=1+d", &[], "lifetime"),
        ("lifetime=", &[], "lifetime"),
        ("syntax=C%2B%2B", &[], "syntax"),
        ("title=%ff", &[], "title"),
        ("title=a%0d%0ab", &[], "title"),
        ("", &[("Paste-Syntax", "a b")], "syntax"),
    ] {
        let text = head(query, pairs).expect_err("refused");
        assert!(
            text.contains(&format!("field: Some(\"{name}\")")),
            "{query} {pairs:?}: {text}"
        );
        assert!(text.contains("InvalidField"), "{text}");
    }
}

#[test]
fn k01_a_key_in_a_url_is_refused_and_not_shown() {
    for name in ["idempotency_key", "Idempotency-Key", "idempotency%5Fkey"] {
        let text = head(&format!("{name}={KEY}"), &[]).expect_err("refused");
        assert!(text.contains("never stands in a URL"), "{text}");
        assert!(!text.contains(KEY), "{text}");
    }
}

#[test]
fn k01_one_key_in_any_of_its_forms() {
    let key = IdempotencyKey::parse(KEY).ok();
    for value in [KEY.to_owned(), KEY.to_uppercase(), format!("\"{KEY}\"")] {
        let options = head("", &[("Idempotency-Key", &value)]).expect("a key");
        assert_eq!(options.key, key, "{value}");
    }
    let long = "a".repeat(256);
    for value in ["", "x", &long, "é", "00000000-0000-0000-0000-000000000000"] {
        let text = head("", &[("Idempotency-Key", value)]).expect_err("no key");
        assert!(text.contains("KeyMalformed"), "{text}");
    }
    for second in [KEY, OTHER] {
        let text = head("", &[("Idempotency-Key", KEY), ("Idempotency-Key", second)]);
        assert!(text.expect_err("two headers").contains("KeyMalformed"));
    }
}

#[test]
fn k01_a_key_as_header_and_as_field_must_agree() {
    let mut options = head("", &[("Idempotency-Key", KEY)]).expect("a key");
    options
        .give_key_field(KEY.to_uppercase().as_bytes())
        .expect("the same key");
    let problem = options
        .give_key_field(OTHER.as_bytes())
        .expect_err("another key");
    let text = format!("{problem:?}");
    assert!(
        text.contains("KeyMalformed") && !text.contains(OTHER),
        "{text}"
    );

    let mut options = Options::default();
    assert!(format!("{:?}", options.key()).contains("uuidgen"));
    options.give_key_field(b"\xff").expect_err("no UTF-8");
    options.give_key_field(OTHER.as_bytes()).expect("a key");
    assert!(options.key().is_ok());
}
