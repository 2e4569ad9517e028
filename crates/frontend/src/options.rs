//! What can be said about a paste besides its body, and where: options as field, query parameter or
//! `Paste-*` header, the idempotency key as header or field.

use axum::http::HeaderMap;
use ostraca_types::{IdempotencyKey, Lifetime, Reason, Syntax, Title};

use crate::form;
use crate::problem::{Problem, shown};

/// The field that carries the key.
pub(crate) const KEY_FIELD: &str = "idempotency_key";
const KEY_HEADER: &str = "idempotency-key";
const HEADER_PREFIX: &str = "paste-";

/// All that was given so far.
#[derive(Debug, Default, Clone, PartialEq, Eq)]
pub(crate) struct Options {
    pub(crate) key: Option<IdempotencyKey>,
    pub(crate) lifetime: Option<Lifetime>,
    pub(crate) syntax: Option<Syntax>,
    pub(crate) title: Option<Title>,
}

impl Options {
    /// What the request line and the headers say.
    pub(crate) fn from_head(query: Option<&str>, headers: &HeaderMap) -> Result<Self, Problem> {
        let mut options = Self::default();
        for (name, value) in form::pairs(query.unwrap_or_default().as_bytes()) {
            let name = String::from_utf8_lossy(&name);
            if is_key_name(&name) {
                return Err(Problem::field(
                    &name,
                    "an idempotency key is a secret and never stands in a URL, where logs and \
                     histories keep it: send it as the Idempotency-Key header",
                ));
            }
            options.give(&name, &value, "query parameter")?;
        }
        for (name, value) in headers {
            if name == KEY_HEADER {
                options.give_key_header(value.as_bytes())?;
            } else if let Some(option) = name.as_str().strip_prefix(HEADER_PREFIX) {
                options.give_header(name.as_str(), option, value.as_bytes())?;
            }
        }
        Ok(options)
    }

    fn give_header(&mut self, name: &str, option: &str, value: &[u8]) -> Result<(), Problem> {
        if !is_option(option) {
            return Err(unknown(name, "header"));
        }
        self.give(option, value, "header")
    }

    /// A second header is refused whatever it says: two keys are two requests.
    fn give_key_header(&mut self, value: &[u8]) -> Result<(), Problem> {
        if self.key.is_some() {
            return Err(malformed_key("the Idempotency-Key header stands twice"));
        }
        let key = std::str::from_utf8(value)
            .ok()
            .map(IdempotencyKey::parse_header);
        match key {
            Some(Ok(key)) => self.key = Some(key),
            Some(Err(err)) => return Err(malformed_key(&err.to_string())),
            None => {
                return Err(malformed_key(
                    "an idempotency key is a UUID, as `uuidgen` prints",
                ));
            }
        }
        Ok(())
    }

    /// The key as a field of the body; a header that is given too must agree.
    pub(crate) fn give_key_field(&mut self, value: &[u8]) -> Result<(), Problem> {
        let key = std::str::from_utf8(value).ok().map(IdempotencyKey::parse);
        let key = match key {
            Some(Ok(key)) => key,
            Some(Err(err)) => return Err(malformed_key(&err.to_string())),
            None => {
                return Err(malformed_key(
                    "an idempotency key is a UUID, as `uuidgen` prints",
                ));
            }
        };
        match &self.key {
            Some(given) if *given != key => {
                Err(malformed_key("two different idempotency keys are given"))
            }
            _ => {
                self.key = Some(key);
                Ok(())
            }
        }
    }

    /// One option. Given twice, it must have the same value. `place` is for the error's text.
    pub(crate) fn give(&mut self, name: &str, value: &[u8], place: &str) -> Result<(), Problem> {
        if !is_option(name) {
            return Err(unknown(name, place));
        }
        let Ok(text) = std::str::from_utf8(value) else {
            return Err(Problem::field(
                name,
                format!("the {place} {name} is not UTF-8"),
            ));
        };
        match name {
            "lifetime" => set(&mut self.lifetime, name, Lifetime::parse(text)),
            "syntax" => set(&mut self.syntax, name, Syntax::parse(text)),
            _ => set(&mut self.title, name, Title::parse(text)),
        }
    }

    /// The key, which every create carries (k01).
    pub(crate) fn key(&self) -> Result<IdempotencyKey, Problem> {
        self.key.clone().ok_or_else(|| {
            Problem::new(
                Reason::KeyMissing,
                "send a random UUID, made once per paste and sent again on each retry, for \
                 example: curl -H \"Idempotency-Key: $(uuidgen)\" …; see /help.txt",
            )
        })
    }
}

fn set<T: PartialEq, E: std::fmt::Display>(
    place: &mut Option<T>,
    name: &str,
    value: Result<T, E>,
) -> Result<(), Problem> {
    let value = value.map_err(|err| Problem::field(name, err.to_string()))?;
    match place {
        Some(given) if *given != value => Err(Problem::field(
            name,
            format!("{name} is given twice, with different values"),
        )),
        _ => {
            *place = Some(value);
            Ok(())
        }
    }
}

fn is_option(name: &str) -> bool {
    matches!(name, "lifetime" | "syntax" | "title")
}

fn is_key_name(name: &str) -> bool {
    name.replace('-', "_").eq_ignore_ascii_case(KEY_FIELD)
}

pub(crate) fn unknown(name: &str, place: &str) -> Problem {
    let known = match place {
        "field" => "fields are body, idempotency_key, lifetime, syntax and title",
        _ => "options are lifetime, syntax and title",
    };
    let detail = format!("unknown {place}: {}; known {known}", shown(name));
    Problem::field(name, detail)
}

/// Says nothing of the key itself.
fn malformed_key(detail: &str) -> Problem {
    Problem::new(Reason::KeyMalformed, detail.to_owned())
}

#[cfg(test)]
mod tests;
