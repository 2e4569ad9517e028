//! The vectors in `proto/golden/`, which any other language can read, against this code (d07). They
//! were computed by another program than ours.

use ostraca_types::{
    DeleteToken, IdempotencyKey, Lifetime, OutboxId, PasteId, RequestDigest, Slot, Syntax, Title,
};

fn rows(text: &str) -> impl Iterator<Item = Vec<&str>> {
    text.lines()
        .filter(|line| !line.starts_with('#'))
        .map(|line| line.split(' ').collect())
}

fn hex(bytes: &[u8]) -> String {
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}

fn unhex(text: &str) -> Vec<u8> {
    let digits = text.as_bytes().chunks(2);
    digits
        .map(|pair| u8::from_str_radix(std::str::from_utf8(pair).expect("hex"), 16).expect("hex"))
        .collect()
}

#[test]
fn k06_d07_keys_have_the_golden_digest_and_slot() {
    let mut seen = 0;
    for row in rows(include_str!("../../../proto/golden/keys.txt")) {
        let [key, digest, slot, text] = row[..] else {
            panic!("{row:?}")
        };
        let key = IdempotencyKey::parse(key).expect("a key");
        assert_eq!(hex(&key.digest().0), digest);
        assert_eq!(key.slot().to_string(), slot);
        let id = PasteId::mint(key.slot(), |bytes| bytes.fill(0));
        assert_eq!(&id.as_str()[..2], text);
        seen += 1;
    }
    assert_eq!(seen, 12);
}

#[test]
fn k06_d07_ids_have_the_golden_text() {
    let mut seen = [0; 5];
    for row in rows(include_str!("../../../proto/golden/ids.txt")) {
        match row[..] {
            ["slot", slot, text] => {
                let slot = Slot(slot.parse().expect("a slot"));
                let id = PasteId::mint(slot, |bytes| bytes.fill(0));
                assert_eq!(&id.as_str()[..2], text);
                seen[0] += 1;
            }
            ["paste", id, slot, object_key] => {
                let id = PasteId::parse(id).expect("an id");
                assert_eq!(id.slot().to_string(), slot);
                assert_eq!(id.object_key(), object_key);
                seen[1] += 1;
            }
            ["outbox", text, slot, bytes] => {
                let id = OutboxId::parse(text).expect("an outbox id");
                assert_eq!(id.to_string(), text);
                assert_eq!(id.slot().to_string(), slot);
                assert_eq!(hex(id.random_part()), bytes);
                seen[2] += 1;
            }
            ["token", text, bytes, hash] => {
                let token = DeleteToken::parse(text).expect("a token");
                assert_eq!(token.expose_text(), text);
                assert_eq!(hex(token.expose()), bytes);
                assert_eq!(hex(&token.hash().0), hash);
                seen[3] += 1;
            }
            ["missing", text] => {
                assert!(PasteId::parse(text).is_err(), "{text}");
                seen[4] += 1;
            }
            _ => panic!("{row:?}"),
        }
    }
    assert_eq!(seen, [9, 3, 4, 4, 6]);
}

#[test]
fn k03_d07_requests_have_the_golden_digest() {
    let mut seen = 0;
    for row in rows(include_str!("../../../proto/golden/request_digest.txt")) {
        let [body, lifetime, syntax, title, digest] = row[..] else {
            panic!("{row:?}")
        };
        let given = |text: &str| (text != "-").then(|| text.to_owned());
        let lifetime = given(lifetime).map(|text| Lifetime::parse(&text).expect("a lifetime"));
        let syntax = given(syntax).map(|text| Syntax::parse(&text).expect("a syntax"));
        let title = given(title).map(|text| {
            let text = String::from_utf8(unhex(&text)).expect("UTF-8");
            Title::parse(&text).expect("a title")
        });
        let computed =
            RequestDigest::compute(&unhex(body), lifetime, syntax.as_ref(), title.as_ref());
        assert_eq!(hex(&computed.0), digest);
        seen += 1;
    }
    assert_eq!(seen, 7);
}
