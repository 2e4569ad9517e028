//! "The same request" (k03): a digest of everything that a client asked to save.

use std::fmt;

use sha2::{Digest, Sha256};

use crate::{Lifetime, Syntax, Title};

/// The version of the encoding under [`RequestDigest`]: its first byte.
pub const REQUEST_DIGEST_VERSION: u8 = 1;

/// Tags of the encoding. Numbers are never reused.
mod tag {
    pub(super) const BODY: u8 = 1;
    pub(super) const LIFETIME: u8 = 2;
    pub(super) const SYNTAX: u8 = 3;
    pub(super) const TITLE: u8 = 4;
}

/// SHA-256 over a version byte, then tag, length and value of the body and of each option that
/// was given, in the order of the tags.
///
/// A tag is one byte, a length four bytes little-endian. An absent option contributes nothing. A
/// lifetime is the seconds asked for, four bytes little-endian, never an instant: so a retry
/// after a minute is still the same request. The vectors are `proto/golden/request_digest.txt`.
#[derive(Clone, Copy, PartialEq, Eq, Hash)]
pub struct RequestDigest(pub [u8; 32]);

impl fmt::Debug for RequestDigest {
    /// A fixed word: whoever reads a log could try guesses against it.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("RequestDigest(..)")
    }
}

impl RequestDigest {
    /// The digest of one request.
    #[must_use]
    pub fn compute(
        body: &[u8],
        lifetime: Option<Lifetime>,
        syntax: Option<&Syntax>,
        title: Option<&Title>,
    ) -> Self {
        let mut sha = Sha256::new();
        sha.update([REQUEST_DIGEST_VERSION]);
        let mut field = |tag: u8, value: &[u8]| {
            let len = u32::try_from(value.len()).expect("bodies and options are far below 4 GiB");
            sha.update([tag]);
            sha.update(len.to_le_bytes());
            sha.update(value);
        };
        field(tag::BODY, body);
        if let Some(lifetime) = lifetime {
            field(tag::LIFETIME, &lifetime.as_secs().to_le_bytes());
        }
        if let Some(syntax) = syntax {
            field(tag::SYNTAX, syntax.as_str().as_bytes());
        }
        if let Some(title) = title {
            field(tag::TITLE, title.as_str().as_bytes());
        }
        Self(sha.finalize().into())
    }
}

/// HMAC-SHA-256 of a [`RequestDigest`] under the client's idempotency key: what a shard stores
/// and compares. Without the key it says nothing about the request.
#[derive(Clone, Copy, PartialEq, Eq, Hash)]
pub struct RequestHash(pub [u8; 32]);

impl fmt::Debug for RequestHash {
    /// A fixed word: whoever reads a log could try guesses against it.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("RequestHash(..)")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn k03_every_option_changes_the_digest() {
        let syntax = Syntax::parse("rust").expect("a syntax");
        let title = Title::parse("rust").expect("a title");
        let lifetime = Lifetime::from_secs(3600).expect("a lifetime");
        let digests = [
            RequestDigest::compute(b"a", None, None, None),
            RequestDigest::compute(b"b", None, None, None),
            RequestDigest::compute(b"a", Some(lifetime), None, None),
            RequestDigest::compute(b"a", None, Some(&syntax), None),
            RequestDigest::compute(b"a", None, None, Some(&title)),
            RequestDigest::compute(b"a", Some(lifetime), Some(&syntax), Some(&title)),
        ];
        for (at, one) in digests.iter().enumerate() {
            assert!(!digests[at + 1..].contains(one), "digest {at} stands twice");
        }
    }
}
