//! The idempotency key of a create.

use std::fmt;

use sha2::{Digest, Sha256};
use uuid::{Uuid, Variant};
use zeroize::{Zeroize, ZeroizeOnDrop};

use crate::Slot;

/// A UUID of random bits that a client makes once per save and sends again on each retry (k01).
///
/// It is a secret: whoever knows it gets the stored answer, delete token included. The text is
/// 36 characters with hyphens; upper and lower case are the same key.
#[derive(Clone, PartialEq, Eq, Zeroize, ZeroizeOnDrop)]
pub struct IdempotencyKey([u8; 16]);

/// Why a text is no idempotency key.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum KeyError {
    /// Not 36 characters of hexadecimal digits with hyphens in the UUID's places.
    NotAUuid,
    /// A UUID, but not one of random bits: version 4 or 7 is asked for.
    NotRandom,
}

impl fmt::Display for KeyError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::NotAUuid => {
                "an idempotency key is a UUID of 36 characters, as `uuidgen` prints one"
            }
            Self::NotRandom => {
                "an idempotency key is a random UUID (version 4 or 7), never nil or max"
            }
        })
    }
}

impl std::error::Error for KeyError {}

impl IdempotencyKey {
    /// Reads a bare key.
    pub fn parse(text: &str) -> Result<Self, KeyError> {
        // `Uuid` reads braces, URNs and 32 digits too; our grammar has the one form.
        if text.len() != 36 {
            return Err(KeyError::NotAUuid);
        }
        let uuid = Uuid::try_parse(text).map_err(|_| KeyError::NotAUuid)?;
        Self::check(uuid)
    }

    /// Reads the value of an `Idempotency-Key` header, where the key may stand in double quotes
    /// (a structured-field string).
    pub fn parse_header(value: &str) -> Result<Self, KeyError> {
        let value = value.trim_matches([' ', '\t']);
        let bare = value
            .strip_prefix('"')
            .and_then(|rest| rest.strip_suffix('"'));
        Self::parse(bare.unwrap_or(value))
    }

    /// A new key of version 4. `fill` must come from a cryptographic random source.
    pub fn mint(mut fill: impl FnMut(&mut [u8])) -> Self {
        let mut bytes = [0; 16];
        fill(&mut bytes);
        Self(
            uuid::Builder::from_random_bytes(bytes)
                .into_uuid()
                .into_bytes(),
        )
    }

    fn check(uuid: Uuid) -> Result<Self, KeyError> {
        // Nil and max have neither the variant nor the version.
        match (uuid.get_variant(), uuid.get_version_num()) {
            (Variant::RFC4122, 4 | 7) => Ok(Self(uuid.into_bytes())),
            _ => Err(KeyError::NotRandom),
        }
    }

    /// The name under which the key is looked up: the first 16 bytes of SHA-256 over its bytes.
    #[must_use]
    pub fn digest(&self) -> KeyDigest {
        let hash = Sha256::digest(self.0);
        let mut digest = [0; 16];
        digest.copy_from_slice(&hash[..16]);
        KeyDigest(digest)
    }

    /// The slot on which the key and its paste live.
    #[must_use]
    pub fn slot(&self) -> Slot {
        self.digest().slot()
    }

    /// The 16 bytes, for deriving keys from them. Never store or print them.
    #[must_use]
    pub fn expose(&self) -> &[u8; 16] {
        &self.0
    }

    /// The key as text, for the one who owns it: the client that made it.
    #[must_use]
    pub fn expose_text(&self) -> String {
        Uuid::from_bytes(self.0).hyphenated().to_string()
    }
}

impl fmt::Debug for IdempotencyKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("IdempotencyKey(secret)")
    }
}

/// The first 16 bytes of SHA-256 over a key's 16 bytes: the key of the unique-key index.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct KeyDigest(pub [u8; 16]);

impl fmt::Debug for KeyDigest {
    /// A fixed word: whoever reads a log could try guesses against it.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("KeyDigest(..)")
    }
}

impl KeyDigest {
    /// The slot is the digest's first byte.
    #[must_use]
    pub const fn slot(&self) -> Slot {
        Slot(self.0[0])
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const KEY: &str = "f81d4fae-7dec-41d0-a765-00a0c91e6bf6";

    #[test]
    fn case_and_quotes_do_not_matter() {
        let key = IdempotencyKey::parse(KEY).expect("a key");
        for text in [
            KEY.to_uppercase(),
            format!("\"{KEY}\""),
            format!(" {KEY}\t"),
        ] {
            assert_eq!(
                IdempotencyKey::parse_header(&text),
                Ok(key.clone()),
                "{text}"
            );
        }
        assert_eq!(key.expose_text(), KEY);
    }

    #[test]
    fn other_forms_are_refused() {
        use KeyError::{NotAUuid, NotRandom};
        let cases = [
            ("", NotAUuid),
            ("f81d4fae7dec41d0a76500a0c91e6bf6", NotAUuid),
            ("{f81d4fae-7dec-41d0-a765-00a0c91e6bf6}", NotAUuid),
            ("urn:uuid:f81d4fae-7dec-41d0-a765-00a0c91e6bf6", NotAUuid),
            ("f81d4fae-7dec-41d0-a765-00a0c91e6bfé", NotAUuid),
            ("f81d4fae-7dec-41d0-a765-00a0c91e6bf", NotAUuid),
            ("\"f81d4fae-7dec-41d0-a765-00a0c91e6bf6", NotAUuid),
            ("00000000-0000-0000-0000-000000000000", NotRandom),
            ("ffffffff-ffff-ffff-ffff-ffffffffffff", NotRandom),
            ("f81d4fae-7dec-11d0-a765-00a0c91e6bf6", NotRandom), // version 1: time
            ("f81d4fae-7dec-51d0-a765-00a0c91e6bf6", NotRandom), // version 5: a name's hash
            ("f81d4fae-7dec-41d0-c765-00a0c91e6bf6", NotRandom), // another variant
        ];
        for (text, error) in cases {
            assert_eq!(IdempotencyKey::parse_header(text), Err(error), "{text}");
        }
        assert_eq!(
            IdempotencyKey::parse("\"f81d4fae-7dec-41d0-a765-00a0c91e6bf6\""),
            Err(NotAUuid)
        );
    }

    #[test]
    fn k16_debug_prints_a_fixed_word() {
        let key = IdempotencyKey::parse(KEY).expect("a key");
        assert_eq!(format!("{key:?}"), "IdempotencyKey(secret)");
    }

    #[test]
    fn a_minted_key_is_a_key() {
        let mut next = 0u8;
        let key = IdempotencyKey::mint(|bytes| {
            for byte in bytes {
                next = next.wrapping_mul(31).wrapping_add(17);
                *byte = next;
            }
        });
        assert_eq!(IdempotencyKey::parse(&key.expose_text()), Ok(key));
    }
}
