//! Bodies of JSON.

use std::fmt;

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use bytes::Bytes;
use ostraca_types::Reason;
use serde::de::{
    DeserializeSeed, Deserializer, Error as _, IgnoredAny, MapAccess, SeqAccess, Visitor,
};
use serde_json::error::Category;

use crate::options::{KEY_FIELD, Options, unknown};
use crate::problem::Problem;

/// Reads a JSON document: its body, and its options into `options`.
pub(crate) fn parse(document: &[u8], options: &mut Options) -> Result<Bytes, Problem> {
    let mut reader = serde_json::Deserializer::from_slice(document);
    let (mut body, mut problem) = (None, None);
    let seed = Document {
        options,
        body: &mut body,
        problem: &mut problem,
    };
    let parsed = seed.deserialize(&mut reader).and_then(|()| reader.end());
    match (parsed, problem) {
        (_, Some(problem)) => Err(problem),
        (Err(err), None) => Err(malformed(&err)),
        (Ok(()), None) => body.ok_or_else(|| {
            Problem::field("body", "the document has neither 'body' nor 'body_base64'")
        }),
    }
}

fn malformed(err: &serde_json::Error) -> Problem {
    let detail = match err.classify() {
        // These texts are fixed and quote nothing of the document; they end with the position.
        Category::Syntax | Category::Eof => format!("malformed JSON: {err}"),
        Category::Data | Category::Io => format!(
            "the JSON document must be an object, at line {} column {}",
            err.line(),
            err.column()
        ),
    };
    Problem::new(Reason::InvalidField, detail)
}

/// What a field can be. Its content goes into no error.
enum Value {
    Null,
    Text(String),
    Number(u64),
    Other,
}

struct Document<'a> {
    options: &'a mut Options,
    body: &'a mut Option<Bytes>,
    problem: &'a mut Option<Problem>,
}

impl Document<'_> {
    fn take(&mut self, name: &str, value: Value) -> Result<(), Problem> {
        let text = match (name, value) {
            // Programs write null for what they leave out.
            (_, Value::Null) if is_known(name) => return Ok(()),
            ("lifetime", Value::Number(secs)) => secs.to_string(),
            (_, Value::Text(text)) => text,
            (_, _) if is_known(name) => {
                let is = match name {
                    "lifetime" => "a whole number of seconds, or a string such as 10m",
                    _ => "a string",
                };
                return Err(Problem::field(
                    name,
                    format!("the field {name} must be {is}"),
                ));
            }
            _ => return Err(unknown(name, "field")),
        };
        match name {
            "body" => self.set_body(name, text.into_bytes().into()),
            "body_base64" => {
                let bytes = STANDARD.decode(text).map_err(|_| {
                    Problem::field(
                        name,
                        "body_base64 is not base64 (as `base64 -w0` writes it)",
                    )
                })?;
                self.set_body(name, bytes.into())
            }
            KEY_FIELD => self.options.give_key_field(text.as_bytes()),
            _ => self.options.give(name, text.as_bytes(), "field"),
        }
    }

    fn set_body(&mut self, name: &str, body: Bytes) -> Result<(), Problem> {
        if self.body.is_some() {
            return Err(Problem::field(name, "the body is given twice"));
        }
        *self.body = Some(body);
        Ok(())
    }
}

fn is_known(name: &str) -> bool {
    matches!(
        name,
        "body" | "body_base64" | KEY_FIELD | "lifetime" | "syntax" | "title"
    )
}

impl<'de> DeserializeSeed<'de> for Document<'_> {
    type Value = ();

    fn deserialize<D: Deserializer<'de>>(self, reader: D) -> Result<(), D::Error> {
        reader.deserialize_map(self)
    }
}

impl<'de> Visitor<'de> for Document<'_> {
    type Value = ();

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("an object")
    }

    fn visit_map<A: MapAccess<'de>>(mut self, mut map: A) -> Result<(), A::Error> {
        while let Some(name) = map.next_key::<String>()? {
            let value = map.next_value_seed(AnyValue)?;
            if let Err(problem) = self.take(&name, value) {
                *self.problem = Some(problem);
                return Err(A::Error::custom("a field is wrong"));
            }
        }
        Ok(())
    }
}

struct AnyValue;

impl<'de> DeserializeSeed<'de> for AnyValue {
    type Value = Value;

    fn deserialize<D: Deserializer<'de>>(self, reader: D) -> Result<Value, D::Error> {
        reader.deserialize_any(self)
    }
}

impl<'de> Visitor<'de> for AnyValue {
    type Value = Value;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("a value")
    }

    fn visit_unit<E>(self) -> Result<Value, E> {
        Ok(Value::Null)
    }

    fn visit_str<E>(self, text: &str) -> Result<Value, E> {
        Ok(Value::Text(text.to_owned()))
    }

    fn visit_string<E>(self, text: String) -> Result<Value, E> {
        Ok(Value::Text(text))
    }

    fn visit_u64<E>(self, number: u64) -> Result<Value, E> {
        Ok(Value::Number(number))
    }

    fn visit_i64<E>(self, _: i64) -> Result<Value, E> {
        Ok(Value::Other)
    }

    fn visit_f64<E>(self, _: f64) -> Result<Value, E> {
        Ok(Value::Other)
    }

    fn visit_bool<E>(self, _: bool) -> Result<Value, E> {
        Ok(Value::Other)
    }

    fn visit_seq<A: SeqAccess<'de>>(self, mut seq: A) -> Result<Value, A::Error> {
        while seq.next_element::<IgnoredAny>()?.is_some() {}
        Ok(Value::Other)
    }

    fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<Value, A::Error> {
        while map.next_entry::<IgnoredAny, IgnoredAny>()?.is_some() {}
        Ok(Value::Other)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read(document: &str) -> Result<(Bytes, Options), String> {
        let mut options = Options::default();
        match parse(document.as_bytes(), &mut options) {
            Ok(body) => Ok((body, options)),
            Err(problem) => Err(format!("{problem:?}")),
        }
    }

    #[test]
    fn body_and_base64_are_bytes() {
        assert_eq!(
            read(r#"{"body":"a\r\n\u0000é"}"#).expect("read").0,
            "a\r\n\0é"
        );
        assert_eq!(
            read(r#"{"body_base64":"/wAK"}"#).expect("read").0,
            &b"\xff\0\n"[..]
        );
    }

    #[test]
    fn options_are_strings_null_or_seconds() {
        let (_, options) =
            read(r#"{"lifetime":3600,"syntax":"rust","title":null,"body":"x"}"#).expect("read");
        assert_eq!(options.lifetime.expect("given").as_secs(), 3600);
        assert_eq!(options.syntax.expect("given").as_str(), "rust");
        assert_eq!(options.title, None);
    }

    #[test]
    fn malformed_json_is_told_with_its_position() {
        for (document, position) in [
            ("{\"body\": \"x\"", "line 1 column 12"),
            ("{\n\"body\" x}", "line 2 column 8"),
            ("", "line 1 column 0"),
            ("{\"body\":\"x\"} y", "line 1 column 14"),
            ("[1]", "line 1 column"),
            ("\"secret\"", "line 1 column"),
            ("{\"body\":\"\\ud800\"}", "line 1 column"),
        ] {
            let text = read(document).expect_err("malformed");
            assert!(text.contains(position), "{document}: {text}");
            assert!(!text.contains("secret"), "{text}");
        }
    }

    #[test]
    fn wrong_fields_are_refused_by_name_and_not_quoted() {
        for (document, name) in [
            (r#"{"body":"x","burn":true}"#, "burn"),
            (r#"{"body":"x","burn":"secret"}"#, "burn"),
            (r#"{"body":"x","title":["secret"]}"#, "title"),
            (r#"{"body":"x","title":{"secret":1}}"#, "title"),
            (r#"{"body":"x","lifetime":-1}"#, "lifetime"),
            (r#"{"body":"x","lifetime":600.5}"#, "lifetime"),
            (
                r#"{"body":"x","lifetime":18446744073709551615}"#,
                "lifetime",
            ),
            (r#"{"body":"x","body_base64":"eA=="}"#, "body_base64"),
            (r#"{"body_base64":"secret!"}"#, "body_base64"),
            (r#"{"body":"x","title":"a","title":"b"}"#, "title"),
            (r#"{"title":"secret"}"#, "body"),
        ] {
            let text = read(document).expect_err("refused");
            assert!(
                text.contains(&format!("field: Some(\"{name}\")")),
                "{document}: {text}"
            );
            assert!(!text.contains("secret"), "{text}");
        }
        let text = read(r#"{"body":"x","lifetime":600.5}"#).expect_err("refused");
        assert!(text.contains("a whole number of seconds"), "{text}");
    }
}
