//! What is saved comes back byte for byte, through `ostraca up` and real sockets.

#![expect(clippy::disallowed_methods, reason = "a test reads files of its own")]

use std::fs;
use std::path::{Path, PathBuf};
use std::sync::Mutex;
use std::thread;

use base64::Engine as _;
use base64::prelude::BASE64_STANDARD;
use ostraca_tests::http::{Framing, Http, Request};
use ostraca_tests::pastes::{CREATE, Created, create, save};
use ostraca_tests::{Options, bytes, key};
use serde_json::json;

const BINARY: &str = env!("CARGO_BIN_EXE_ostraca");
const LIMIT: usize = 1 << 20;

/// Saves `body` raw and reads it back in every way.
fn round_trip(http: &Http, what: &str, body: &[u8]) {
    let created = save(http, &key(), body);
    reads_back(http, what, &created, body);
}

/// GET gives the bytes, HEAD agrees with it, and a cache can ask whether they changed.
fn reads_back(http: &Http, what: &str, created: &Created, body: &[u8]) {
    let raw = created.raw();
    let got = http.get(&raw);
    assert_eq!(got.status, 200, "{what}: {}", got.text());
    assert!(
        got.body == body,
        "{what}: {} bytes came back, not the {} saved",
        got.body.len(),
        body.len()
    );
    let head = http.send(&Request::new("HEAD", &raw));
    assert_eq!((head.status, head.body.len()), (200, 0), "{what}");
    let size = body.len().to_string();
    assert_eq!(head.header("content-length"), Some(size.as_str()), "{what}");
    for name in ["content-type", "etag", "x-content-type-options"] {
        let value = got.header(name);
        assert!(value.is_some(), "{what}: no {name}");
        assert_eq!(head.header(name), value, "{what}: {name}");
    }
    let type_ = got.header("content-type").unwrap_or_default();
    assert!(type_.starts_with("text/plain"), "{what}: {type_}");
    let etag = got.header("etag").unwrap_or_default();
    let unchanged = http.send(&Request::new("GET", &raw).header("if-none-match", etag));
    assert_eq!((unchanged.status, unchanged.body.len()), (304, 0), "{what}");
    assert_eq!(unchanged.header("etag"), Some(etag), "{what}");
    let changed = http.send(&Request::new("GET", &raw).header("if-none-match", "\"other\""));
    assert!(changed.status == 200 && changed.body == body, "{what}");
}

fn is_source(path: &Path) -> bool {
    let extension = path.extension().and_then(|extension| extension.to_str());
    matches!(extension, Some("rs" | "md" | "toml" | "proto"))
}

/// The sources of this repository, without what is built from them.
fn sources(dir: &Path, found: &mut Vec<PathBuf>) {
    for entry in fs::read_dir(dir).expect("a directory") {
        let path = entry.expect("an entry").path();
        let name = path
            .file_name()
            .and_then(|name| name.to_str())
            .unwrap_or_default();
        if path.is_dir() && name != "target" && !name.starts_with('.') {
            sources(&path, found);
        } else if is_source(&path) {
            found.push(path);
        }
    }
}

/// Goal: what people paste most, source code, comes back as it was.
/// Method: every source file of this repository.
#[test]
fn r01_every_source_file_of_this_repository_comes_back() {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("../..");
    let mut files = Vec::new();
    sources(&root, &mut files);
    assert!(
        files.len() > 50,
        "{} files in {}",
        files.len(),
        root.display()
    );
    let up = Options::new(BINARY).start();
    let http = up.http();
    let files = Mutex::new(files);
    thread::scope(|scope| {
        for _ in 0..4 {
            scope.spawn(|| {
                loop {
                    let Some(path) = files.lock().expect("a lock").pop() else {
                        break;
                    };
                    let body = fs::read(&path).expect("a file");
                    if !body.is_empty() {
                        round_trip(&http, &path.display().to_string(), &body);
                    }
                }
            });
        }
    });
}

/// Goal: nothing on the way believes to know what text is.
/// Method: ten scripts and what editors, shells and networks like to change, raw, and by the JSON
/// API in both of its forms. Covers BY-01, BY-02, BY-05, BY-07, BY-10, BY-14.
#[test]
fn r01_bytes_of_every_kind_come_back() {
    let cases: [(&str, &[u8]); 27] = [
        (
            "Latin",
            "Zwölf Boxkämpfer jagen Viktor über den großen Sylter Deich\n".as_bytes(),
        ),
        (
            "Cyrillic",
            "Съешь же ещё этих мягких французских булок\n".as_bytes(),
        ),
        ("Greek", "Ξεσκεπάζω την ψυχοφθόρα βδελυγμία\n".as_bytes()),
        ("Arabic", "صِف خَلقَ خَودِ كَمِثلِ الشَمسِ إِذ بَزَغَت\n".as_bytes()),
        (
            "Hebrew",
            "דג סקרן שט בים מאוכזב ולפתע מצא לו חברה\n".as_bytes(),
        ),
        (
            "Devanagari",
            "ऋषियों को सताने वाले दुष्ट राक्षसों के राजा\n".as_bytes(),
        ),
        ("Han", "視野無限廣,窗外有藍天\n".as_bytes()),
        ("Hiragana", "いろはにほへと ちりぬるを\n".as_bytes()),
        (
            "Hangul",
            "키스의 고유조건은 입술끼리 만나야 하고\n".as_bytes(),
        ),
        ("Thai", "เป็นมนุษย์สุดประเสริฐเลิศคุณค่า\n".as_bytes()),
        (
            "emoji",
            "👩🏽‍💻 🏳️‍🌈 e\u{301} \u{202e}rtl\u{202c} \u{200b}\n".as_bytes(),
        ),
        ("CRLF", b"one\r\ntwo\r\n"),
        ("lone CR", b"one\rtwo\r"),
        ("mixed line ends", b"a\r\nb\nc\rd\n\r"),
        ("NUL", b"a\0b\0\0"),
        ("only NUL", b"\0"),
        (
            "all bytes",
            &std::array::from_fn::<u8, 256, _>(|byte| u8::try_from(byte).unwrap_or_default()),
        ),
        ("invalid UTF-8", b"\xff\xfe\xc0\x80\xed\xa0\x80 ok \xf8"),
        ("cut UTF-8", b"ends in half a character \xf0\x9f\x98"),
        ("UTF-8 BOM", b"\xef\xbb\xbfwith a mark\n"),
        ("UTF-16 BOM", b"\xff\xfeh\0i\0"),
        ("no final newline", b"last line"),
        ("blank lines first", b"\n\n\n  text\n"),
        ("only a newline", b"\n"),
        ("spaces at the end", b"  text \t \n \n"),
        (
            "markup",
            b"</pre></textarea><script>alert(1)</script>&amp;\n",
        ),
        ("looks like HTTP", b"0\r\n\r\nHTTP/1.1 200 OK\r\n\r\n"),
    ];
    let up = Options::new(BINARY).start();
    let http = up.http();
    for (what, body) in cases {
        round_trip(&http, what, body);
        let mut document = json!({ "body_base64": BASE64_STANDARD.encode(body) });
        let saved = Created::from(&http.send(&by_json(&key(), &document)));
        reads_back(&http, &format!("{what}, base64"), &saved, body);
        if let Ok(text) = std::str::from_utf8(body) {
            document = json!({ "body": text });
            let saved = Created::from(&http.send(&by_json(&key(), &document)));
            reads_back(&http, &format!("{what}, JSON"), &saved, body);
        }
    }
}

fn by_json(key: &str, document: &serde_json::Value) -> Request {
    Request::new("POST", CREATE)
        .header("content-type", "application/json")
        .header("idempotency-key", key)
        .body(document.to_string())
}

fn by_form(key: &str, body: &[u8]) -> Request {
    assert!(
        body.iter().all(u8::is_ascii_alphanumeric),
        "needs no escapes"
    );
    Request::new("POST", CREATE)
        .header("content-type", "application/x-www-form-urlencoded")
        .header("accept", "application/json")
        .header("idempotency-key", key)
        .body([b"body=", body].concat())
}

fn by_multipart(key: &str, body: &[u8]) -> Request {
    let part = b"--edge\r\ncontent-disposition: form-data; name=\"body\"\r\n\r\n";
    Request::new("POST", CREATE)
        .header("content-type", "multipart/form-data; boundary=edge")
        .header("accept", "application/json")
        .header("idempotency-key", key)
        .body([part, body, b"\r\n--edge--\r\n"].concat())
}

/// Goal: the limit is the limit, in decoded bytes, whatever wraps them and however they come.
/// Method: sizes around 64 KiB and the limit. Covers SZ-01, SZ-02, SZ-04, SZ-05, SZ-07.
#[test]
fn a_body_up_to_the_limit_is_saved_and_one_byte_more_is_not() {
    let up = Options::new(BINARY).start();
    let http = up.http();
    let framings = [
        Framing::Length,
        Framing::Chunked(8 << 10),
        Framing::Chunked(1_000_003),
    ];
    for size in [1, 65_535, 65_536, 65_537, LIMIT - 1, LIMIT] {
        let body = bytes(1, size);
        for framing in framings {
            let created = Created::from(&http.send(&create(&key(), body.clone()).framing(framing)));
            reads_back(
                &http,
                &format!("{size} bytes, {framing:?}"),
                &created,
                &body,
            );
        }
        let text = vec![b'x'; size];
        let document = json!({ "body_base64": BASE64_STANDARD.encode(&body) });
        for (what, request, body) in [
            ("JSON", by_json(&key(), &document), &body),
            ("form", by_form(&key(), &text), &text),
            ("multipart", by_multipart(&key(), &text), &text),
        ] {
            let created = Created::from(&http.send(&request));
            reads_back(&http, &format!("{size} bytes, {what}"), &created, body);
        }
    }
    let before = up.counts();
    let body = bytes(1, LIMIT + 1);
    let text = vec![b'x'; LIMIT + 1];
    let document = json!({ "body_base64": BASE64_STANDARD.encode(&body) });
    for (what, request) in [
        ("raw", create(&key(), body)),
        ("JSON", by_json(&key(), &document)),
        ("form", by_form(&key(), &text)),
        ("multipart", by_multipart(&key(), &text)),
    ] {
        for framing in framings {
            let refused = http.send(&request.clone().framing(framing));
            assert_eq!(
                refused.status,
                413,
                "{what}, {framing:?}: {}",
                refused.text()
            );
            assert_eq!(refused.reason(), "BODY_TOO_LARGE", "{what}, {framing:?}");
            assert!(
                refused.text().contains(&LIMIT.to_string()),
                "{what}: the limit is named"
            );
        }
    }
    assert_eq!(up.counts(), before, "nothing was written");
}

/// Goal: a body of no bytes is a mistake, said so, and uses up nothing.
/// Method: every form of it, and then the same key again with a body. Covers SZ-08.
#[test]
fn k02_an_empty_body_is_refused_and_leaves_the_key_free() {
    let up = Options::new(BINARY).start();
    let http = up.http();
    for request in [
        |key: &str| create(key, b""),
        |key: &str| create(key, b"").framing(Framing::Chunked(1)),
        |key: &str| by_json(key, &json!({ "body": "" })),
        |key: &str| by_form(key, b""),
        |key: &str| by_multipart(key, b""),
    ] {
        let key = key();
        let refused = http.send(&request(&key));
        assert_eq!(
            (refused.status, refused.reason().as_str()),
            (400, "EMPTY_BODY"),
            "{}",
            refused.text()
        );
        round_trip(&http, "after it", save_text(&http, &key).as_bytes());
    }
}

fn save_text(http: &Http, key: &str) -> String {
    let body = format!("saved under {key}");
    let created = save(http, key, body.clone());
    assert_eq!(http.get(&created.raw()).text(), body);
    body
}

/// Goal: a paste is there as soon as its create was answered.
/// Method: read each at once, on new connections, through the page, the API and raw.
#[test]
fn r01_a_paste_is_readable_as_soon_as_its_create_was_answered() {
    let up = Options::new(BINARY).start();
    let http = up.http();
    for round in 0..50 {
        let body = format!("round {round}");
        let created = save(&http, &key(), body.clone());
        assert_eq!(http.get(&created.raw()).text(), body);
        let row = http.get(&created.api());
        assert_eq!(row.status, 200, "{}", row.text());
        assert_eq!(row.json()["id"], created.id.as_str());
        let page = http.get(&format!("/{}", created.id));
        assert_eq!(page.status, 200);
        assert!(page.text().contains(&body), "the page shows it");
    }
}
