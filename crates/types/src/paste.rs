//! What a client asks to save, besides the body.

use std::fmt;
use std::time::Duration;

use crate::contract::{LIFETIME_MAX, LIFETIME_MIN, SYNTAX_SIZE_MAX, TITLE_SIZE_MAX};

/// SHA-256 over a paste's body. What is read from the object store is checked against it.
#[derive(Clone, Copy, PartialEq, Eq, Hash)]
pub struct BodyDigest(pub [u8; 32]);

impl fmt::Debug for BodyDigest {
    /// A fixed word: whoever reads a log could try guesses against it.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("BodyDigest(..)")
    }
}

/// How long a paste lives: whole seconds, from 1 minute to 365 days.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Lifetime(u32);

/// Why a text is no lifetime.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum LifetimeError {
    /// Not a number with an optional unit `s`, `m`, `h` or `d`.
    Grammar,
    /// Below 1 minute or above 365 days.
    Range,
}

impl fmt::Display for LifetimeError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Grammar => "a lifetime is a number of seconds, or 10m, 1h, 30d",
            Self::Range => "a lifetime is at least 1 minute and at most 365 days",
        })
    }
}

impl std::error::Error for LifetimeError {}

impl Lifetime {
    /// A lifetime of whole seconds.
    pub fn from_secs(secs: u64) -> Result<Self, LifetimeError> {
        if secs < LIFETIME_MIN.as_secs() || secs > LIFETIME_MAX.as_secs() {
            return Err(LifetimeError::Range);
        }
        u32::try_from(secs)
            .map(Self)
            .map_err(|_| LifetimeError::Range)
    }

    /// Reads `90`, `90s`, `10m`, `1h`, `30d`: digits, then at most one unit, nothing else.
    pub fn parse(text: &str) -> Result<Self, LifetimeError> {
        let (digits, unit) = match text.as_bytes().last() {
            Some(b's') => (&text[..text.len() - 1], 1),
            Some(b'm') => (&text[..text.len() - 1], 60),
            Some(b'h') => (&text[..text.len() - 1], 3600),
            Some(b'd') => (&text[..text.len() - 1], 86_400),
            _ => (text, 1),
        };
        if digits.is_empty() || !digits.bytes().all(|byte| byte.is_ascii_digit()) {
            return Err(LifetimeError::Grammar);
        }
        // Only too many digits can fail here, so the value is out of range.
        let number: u64 = digits.parse().map_err(|_| LifetimeError::Range)?;
        Self::from_secs(number.checked_mul(unit).ok_or(LifetimeError::Range)?)
    }

    /// In seconds.
    #[must_use]
    pub const fn as_secs(self) -> u32 {
        self.0
    }

    /// As a length of time.
    #[must_use]
    pub const fn duration(self) -> Duration {
        Duration::from_secs(self.0 as u64)
    }
}

/// A paste's title: 1 to 256 bytes of UTF-8 without control characters.
#[derive(Clone, PartialEq, Eq, Hash)]
pub struct Title(Box<str>);

/// Why a text is no title.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum TitleError {
    /// No bytes at all; leave the option out instead.
    Empty,
    /// More than 256 bytes of UTF-8.
    TooLong,
    /// A control character, which no page and no header can show.
    Control,
}

impl fmt::Display for TitleError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Empty => "a title is not empty; leave it out instead",
            Self::TooLong => "a title is at most 256 bytes of UTF-8",
            Self::Control => "a title has no control characters",
        })
    }
}

impl std::error::Error for TitleError {}

impl Title {
    /// Checks a title.
    pub fn parse(text: &str) -> Result<Self, TitleError> {
        if text.is_empty() {
            Err(TitleError::Empty)
        } else if text.len() > TITLE_SIZE_MAX {
            Err(TitleError::TooLong)
        } else if text.chars().any(char::is_control) {
            Err(TitleError::Control)
        } else {
            Ok(Self(text.into()))
        }
    }

    /// The title.
    #[must_use]
    pub fn as_str(&self) -> &str {
        &self.0
    }
}

impl fmt::Debug for Title {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        // What a client wrote is its own business.
        write!(f, "Title({} bytes)", self.0.len())
    }
}

/// The name of a paste's language: `[a-z0-9+#-]{1,32}`.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct Syntax(Box<str>);

/// The text does not match `[a-z0-9+#-]{1,32}`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct SyntaxError;

impl fmt::Display for SyntaxError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("a syntax is 1 to 32 characters of a-z, 0-9, +, # and -")
    }
}

impl std::error::Error for SyntaxError {}

impl Syntax {
    /// Checks a syntax name.
    pub fn parse(text: &str) -> Result<Self, SyntaxError> {
        let valid = |byte: u8| matches!(byte, b'a'..=b'z' | b'0'..=b'9' | b'+' | b'#' | b'-');
        if text.is_empty() || text.len() > SYNTAX_SIZE_MAX || !text.bytes().all(valid) {
            return Err(SyntaxError);
        }
        Ok(Self(text.into()))
    }

    /// The name.
    #[must_use]
    pub fn as_str(&self) -> &str {
        &self.0
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lifetimes_are_read_and_bounded() {
        let secs = |text| Lifetime::parse(text).map(Lifetime::as_secs);
        assert_eq!(secs("60"), Ok(60));
        assert_eq!(secs("90s"), Ok(90));
        assert_eq!(secs("10m"), Ok(600));
        assert_eq!(secs("1h"), Ok(3600));
        assert_eq!(secs("30d"), Ok(2_592_000));
        assert_eq!(secs("365d"), Ok(31_536_000));
        for text in [
            "59",
            "0",
            "0m",
            "366d",
            "9223372036854775808",
            "99999999999999999999d",
        ] {
            assert_eq!(secs(text), Err(LifetimeError::Range), "{text}");
        }
        for text in [
            "", "m", "-1", "+60", "1 d", " 60", "1.5h", "1w", "1D", "60٠", "1hh",
        ] {
            assert_eq!(secs(text), Err(LifetimeError::Grammar), "{text}");
        }
    }

    #[test]
    fn titles_are_bounded_in_bytes() {
        assert!(Title::parse(&"é".repeat(128)).is_ok());
        assert_eq!(Title::parse(&"é".repeat(129)), Err(TitleError::TooLong));
        assert_eq!(Title::parse(""), Err(TitleError::Empty));
        assert_eq!(Title::parse("a\r\nb"), Err(TitleError::Control));
        assert_eq!(
            format!("{:?}", Title::parse("diary").expect("a title")),
            "Title(5 bytes)"
        );
    }

    #[test]
    fn syntax_names_are_a_small_alphabet() {
        for text in ["rust", "c++", "c#", "objective-c", &"a".repeat(32)] {
            assert!(Syntax::parse(text).is_ok(), "{text}");
        }
        for text in ["", "Rust", "a b", "../x", &"a".repeat(33)] {
            assert_eq!(Syntax::parse(text), Err(SyntaxError), "{text}");
        }
    }
}
