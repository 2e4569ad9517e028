//! Bodies of HTML forms: `application/x-www-form-urlencoded` and `multipart/form-data`.
//!
//! A browser sends the text of a textarea with CRLF for each line end, whatever was typed. So the
//! text of a form has CRLF turned into LF; a file part of a multipart form is left alone.

use axum::body::Body;
use bytes::Bytes;
use multer::{Constraints, Multipart, SizeLimit};
use ostraca_types::Reason;

use crate::body::{envelope_max, incomplete};
use crate::options::{KEY_FIELD, Options, unknown};
use crate::problem::Problem;

/// Longest value of a field that is not the body.
const FIELD_SIZE_MAX: usize = 4 << 10;

/// The pairs of an urlencoded text, as bytes: what is not UTF-8 is kept, not replaced.
pub(crate) fn pairs(text: &[u8]) -> impl Iterator<Item = (Vec<u8>, Vec<u8>)> {
    text.split(|&byte| byte == b'&')
        .filter(|pair| !pair.is_empty())
        .map(|pair| {
            let mut halves = pair.splitn(2, |&byte| byte == b'=');
            let name = halves.next().unwrap_or_default();
            (
                unescaped(name),
                unescaped(halves.next().unwrap_or_default()),
            )
        })
}

/// `+` is a space, `%41` a byte; a `%` without two digits stands for itself.
fn unescaped(text: &[u8]) -> Vec<u8> {
    let digit = |byte: Option<&u8>| byte.and_then(|&byte| char::from(byte).to_digit(16));
    let mut bytes = Vec::with_capacity(text.len());
    let mut at = 0;
    while let Some(&byte) = text.get(at) {
        let escape = if byte == b'%' {
            digit(text.get(at + 1)).zip(digit(text.get(at + 2)))
        } else {
            None
        };
        match escape {
            Some((high, low)) => {
                // Two hexadecimal digits are a byte.
                bytes.push(u8::try_from(high * 16 + low).unwrap_or(b'?'));
                at += 3;
            }
            None => {
                bytes.push(if byte == b'+' { b' ' } else { byte });
                at += 1;
            }
        }
    }
    bytes
}

/// CRLF becomes LF; a CR alone stays.
fn with_lf(text: Vec<u8>) -> Vec<u8> {
    if !text.windows(2).any(|pair| pair == b"\r\n") {
        return text;
    }
    let mut bytes = Vec::with_capacity(text.len());
    for (at, &byte) in text.iter().enumerate() {
        if byte != b'\r' || text.get(at + 1) != Some(&b'\n') {
            bytes.push(byte);
        }
    }
    bytes
}

/// Reads an urlencoded form: its body, and its options into `options`.
pub(crate) fn urlencoded(form: &[u8], options: &mut Options) -> Result<Bytes, Problem> {
    if !pairs(form).any(|(name, _)| name == b"body") {
        return Err(Problem::field(
            "body",
            "this was sent as a form (application/x-www-form-urlencoded) without a field 'body'. \
             If it is curl --data-binary, add -H 'Content-Type: text/plain'",
        ));
    }
    let mut body = None;
    for (name, value) in pairs(form) {
        let name = String::from_utf8_lossy(&name).into_owned();
        take(&name, value, true, &mut body, options)?;
    }
    Ok(body.unwrap_or_default())
}

/// Reads a multipart form whose decoded body has at most `limit` bytes.
pub(crate) async fn multipart(
    body: Body,
    content_type: &str,
    limit: usize,
    options: &mut Options,
) -> Result<Bytes, Problem> {
    let boundary = multer::parse_boundary(content_type).map_err(|_| {
        Problem::new(
            Reason::InvalidField,
            "the multipart form's content type names no boundary",
        )
    })?;
    let whole = SizeLimit::new().whole_stream(envelope_max(limit) as u64);
    let constraints = Constraints::new().size_limit(whole);
    let mut form = Multipart::with_constraints(body.into_data_stream(), boundary, constraints);
    let mut found = None;
    while let Some(mut field) = form.next_field().await.map_err(|err| broken(&err, limit))? {
        let name = field.name().unwrap_or_default().to_owned();
        // Before it is read: it may be a file of any size.
        if !is_known(&name) {
            return Err(unknown(&name, "field"));
        }
        let is_text = field.file_name().is_none();
        // Text may arrive with two bytes for each line end that counts as one.
        let (most, is_body) = match name.as_str() {
            "body" if is_text => (2 * limit, true),
            "body" => (limit, true),
            _ => (FIELD_SIZE_MAX, false),
        };
        let mut value = Vec::new();
        while let Some(chunk) = field.chunk().await.map_err(|err| broken(&err, limit))? {
            if value.len() + chunk.len() > most {
                return Err(match is_body {
                    true => Problem::too_large(limit),
                    false => Problem::field(&name, "the field is too long"),
                });
            }
            value.extend_from_slice(&chunk);
        }
        take(&name, value, is_text, &mut found, options)?;
    }
    found.ok_or_else(|| Problem::field("body", "the form has no field 'body'"))
}

fn is_known(name: &str) -> bool {
    matches!(name, "body" | KEY_FIELD | "lifetime" | "syntax" | "title")
}

/// One field. A form cannot leave an option out, so an empty one is one that was not given.
fn take(
    name: &str,
    value: Vec<u8>,
    is_text: bool,
    body: &mut Option<Bytes>,
    options: &mut Options,
) -> Result<(), Problem> {
    match name {
        "body" if body.is_some() => Err(Problem::field(name, "the field body is given twice")),
        "body" => {
            *body = Some(if is_text { with_lf(value) } else { value }.into());
            Ok(())
        }
        KEY_FIELD if value.is_empty() => Ok(()),
        KEY_FIELD => options.give_key_field(&value),
        "lifetime" | "syntax" | "title" if value.is_empty() => Ok(()),
        "lifetime" | "syntax" | "title" => options.give(name, &value, "field"),
        _ => Err(unknown(name, "field")),
    }
}

fn broken(err: &multer::Error, limit: usize) -> Problem {
    match err {
        multer::Error::StreamSizeExceeded { .. } | multer::Error::FieldSizeExceeded { .. } => {
            Problem::too_large(limit)
        }
        multer::Error::StreamReadFailed(_) => incomplete(),
        // Its text can quote what was sent.
        _ => Problem::new(
            Reason::InvalidField,
            "the multipart form is malformed or incomplete",
        ),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use axum::http::StatusCode;

    fn parse(form: &str) -> Result<(Bytes, Options), Problem> {
        let mut options = Options::default();
        urlencoded(form.as_bytes(), &mut options).map(|body| (body, options))
    }

    #[test]
    fn form_text_has_lf_and_nothing_else_is_touched() {
        let (body, _) = parse("body=a%0D%0Ab%0Dc%0A%00%FF+%2B%zz%").expect("a form");
        assert_eq!(body.as_ref(), b"a\nb\rc\n\0\xff +%zz%");
    }

    #[test]
    fn empty_options_of_a_form_are_not_given() {
        let (_, options) =
            parse("body=x&title=&syntax=&lifetime=1h&idempotency_key=").expect("a form");
        let lifetime = ostraca_types::Lifetime::parse("1h").ok();
        assert_eq!(
            options,
            Options {
                lifetime,
                ..Options::default()
            }
        );
    }

    #[test]
    fn a_form_without_a_body_tells_about_the_content_type() {
        for form in ["hello world", "", "a=b&c", "title=x"] {
            let problem = parse(form).expect_err("no body");
            let text = format!("{problem:?}");
            assert!(text.contains("-H 'Content-Type: text/plain'"), "{text}");
        }
    }

    #[test]
    fn unknown_fields_and_second_bodies_are_refused_by_name() {
        for (form, name) in [("body=x&burn=1", "burn"), ("body=x&body=y", "body")] {
            let problem = parse(form).expect_err("refused");
            assert_eq!(problem.status(), StatusCode::BAD_REQUEST);
            assert!(format!("{problem:?}").contains(name));
        }
    }

    async fn parse_parts(parts: &str, limit: usize) -> Result<(Bytes, Options), Problem> {
        let mut options = Options::default();
        let text = parts.replace('\n', "\r\n");
        let kind = "multipart/form-data; boundary=XX";
        let body = multipart(Body::from(text), kind, limit, &mut options).await?;
        Ok((body, options))
    }

    #[tokio::test]
    async fn a_file_part_is_untouched_and_a_text_part_has_lf() {
        let file =
            "--XX\nContent-Disposition: form-data; name=\"body\"; filename=\"x\"\n\na\nb\n--XX--\n";
        assert_eq!(parse_parts(file, 10).await.expect("a form").0, "a\r\nb");
        let text = "--XX\nContent-Disposition: form-data; name=\"body\"\n\na\nb\n--XX\nContent-Disposition: form-data; name=\"title\"\n\nhi\n--XX--\n";
        let (body, options) = parse_parts(text, 10).await.expect("a form");
        assert_eq!(body, "a\nb");
        assert_eq!(options.title.expect("given").as_str(), "hi");
    }

    /// Goal: `curl -F file=@notes.txt` tells what the field is called.
    #[tokio::test]
    async fn a_file_under_another_name_is_told_the_right_one() {
        let large = "x".repeat(2 * FIELD_SIZE_MAX);
        let form = format!(
            "--XX\nContent-Disposition: form-data; name=\"file\"; filename=\"x\"\n\n{large}\n--XX--\n"
        );
        let problem = parse_parts(&form, 10_000).await.expect_err("refused");
        let text = format!("{problem:?}");
        assert!(
            text.contains("unknown field: file; known fields are body"),
            "{text}"
        );
    }

    #[tokio::test]
    async fn multipart_counts_the_body_and_not_its_envelope() {
        let of = |size: usize| {
            let body = "x".repeat(size);
            format!(
                "--XX\nContent-Disposition: form-data; name=\"body\"; filename=\"x\"\n\n{body}\n--XX--\n"
            )
        };
        assert_eq!(parse_parts(&of(10), 10).await.expect("fits").0.len(), 10);
        let problem = parse_parts(&of(11), 10).await.expect_err("too large");
        assert_eq!(problem.status(), StatusCode::PAYLOAD_TOO_LARGE);
    }

    #[tokio::test]
    async fn broken_multipart_is_a_400() {
        for parts in [
            "",
            "--XX",
            "--XX\n\n",
            "--XX\nContent-Disposition: form-data; name=\"body\"\n\nx",
        ] {
            let problem = parse_parts(parts, 10).await.expect_err("broken");
            assert_eq!(problem.status(), StatusCode::BAD_REQUEST, "{parts:?}");
        }
    }
}
