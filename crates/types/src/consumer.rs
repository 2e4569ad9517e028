//! Who gets outbox messages.

use std::fmt;

use crate::contract::CONSUMER_SIZE_MAX;

/// The name of a consumer: `[a-z0-9-]{1,32}`.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct ConsumerName(Box<str>);

/// The text does not match `[a-z0-9-]{1,32}`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ConsumerNameError;

impl fmt::Display for ConsumerNameError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("a consumer's name is 1 to 32 characters of a-z, 0-9 and -")
    }
}

impl std::error::Error for ConsumerNameError {}

impl ConsumerName {
    /// The purge worker, which every shard knows from its first day.
    pub const PURGE: &str = "purge";

    /// Checks a name.
    pub fn parse(text: &str) -> Result<Self, ConsumerNameError> {
        let valid = |byte: u8| matches!(byte, b'a'..=b'z' | b'0'..=b'9' | b'-');
        if text.is_empty() || text.len() > CONSUMER_SIZE_MAX || !text.bytes().all(valid) {
            return Err(ConsumerNameError);
        }
        Ok(Self(text.into()))
    }

    /// The purge worker's name.
    #[must_use]
    pub fn purge() -> Self {
        Self(Self::PURGE.into())
    }

    /// The name.
    #[must_use]
    pub fn as_str(&self) -> &str {
        &self.0
    }
}

impl fmt::Display for ConsumerName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_are_a_small_alphabet() {
        assert_eq!(ConsumerName::parse("purge"), Ok(ConsumerName::purge()));
        for text in ["", "Purge", "a b", "a/b", &"a".repeat(33)] {
            assert_eq!(ConsumerName::parse(text), Err(ConsumerNameError), "{text}");
        }
    }
}
