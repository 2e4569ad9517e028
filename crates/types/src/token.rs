//! The delete token and its hash.

use std::fmt;

use sha2::{Digest, Sha256};
use subtle::ConstantTimeEq;
use zeroize::{Zeroize, ZeroizeOnDrop};

use crate::base62;

const TOKEN_TEXT_LEN: usize = 22;

/// The right to delete one paste: 16 random bytes, shown once as 22 base62 characters.
#[derive(Clone, PartialEq, Eq, Zeroize, ZeroizeOnDrop)]
pub struct DeleteToken([u8; 16]);

/// The text is not 22 base62 characters of a 128-bit value. It says nothing about the text.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct TokenError;

impl fmt::Display for TokenError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("a delete token is the 22 characters that the create answered")
    }
}

impl std::error::Error for TokenError {}

impl DeleteToken {
    /// A new token. `fill` must come from a cryptographic random source.
    pub fn mint(mut fill: impl FnMut(&mut [u8])) -> Self {
        let mut bytes = [0; 16];
        fill(&mut bytes);
        Self(bytes)
    }

    /// The token of 16 stored bytes.
    #[must_use]
    pub const fn from_bytes(bytes: [u8; 16]) -> Self {
        Self(bytes)
    }

    /// Reads a token.
    pub fn parse(text: &str) -> Result<Self, TokenError> {
        if text.len() != TOKEN_TEXT_LEN {
            return Err(TokenError);
        }
        let value = base62::decode(text.as_bytes()).ok_or(TokenError)?;
        Ok(Self(value.to_be_bytes()))
    }

    /// What the paste row keeps.
    #[must_use]
    pub fn hash(&self) -> TokenHash {
        TokenHash(Sha256::digest(self.0).into())
    }

    /// The 16 bytes, for sealing them. Never store or print them.
    #[must_use]
    pub fn expose(&self) -> &[u8; 16] {
        &self.0
    }

    /// The token as text, for the one answer that carries it.
    #[must_use]
    pub fn expose_text(&self) -> String {
        let text = base62::encode::<TOKEN_TEXT_LEN>(u128::from_be_bytes(self.0));
        text.iter().map(|&byte| char::from(byte)).collect()
    }
}

impl fmt::Debug for DeleteToken {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("DeleteToken(secret)")
    }
}

/// SHA-256 over a delete token's 16 bytes.
#[derive(Clone, Copy)]
pub struct TokenHash(pub [u8; 32]);

impl TokenHash {
    /// Whether `token` is the one that was hashed, in a time that does not depend on where they
    /// differ (r03).
    #[must_use]
    pub fn matches(&self, token: &DeleteToken) -> bool {
        self.0.ct_eq(&token.hash().0).into()
    }
}

/// In constant time, like [`TokenHash::matches`].
impl PartialEq for TokenHash {
    fn eq(&self, other: &Self) -> bool {
        self.0.ct_eq(&other.0).into()
    }
}

impl Eq for TokenHash {}

impl fmt::Debug for TokenHash {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("TokenHash(..)")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn k16_debug_prints_a_fixed_word() {
        let token = DeleteToken::from_bytes([7; 16]);
        assert_eq!(
            format!("{token:?} {:?}", token.hash()),
            "DeleteToken(secret) TokenHash(..)"
        );
    }

    #[test]
    fn r03_only_the_token_itself_matches() {
        let token = DeleteToken::from_bytes(*b"0123456789abcdef");
        let text = token.expose_text();
        assert_eq!(DeleteToken::parse(&text), Ok(token.clone()));
        assert!(token.hash().matches(&token));
        for bit in 0..128 {
            let mut bytes = *token.expose();
            bytes[bit / 8] ^= 1 << (bit % 8);
            assert!(
                !token.hash().matches(&DeleteToken::from_bytes(bytes)),
                "bit {bit}"
            );
        }
        for wrong in [
            "",
            &text[..21],
            &format!("{text}0"),
            &text.replace(&text[..1], "-"),
        ] {
            assert_eq!(DeleteToken::parse(wrong), Err(TokenError));
        }
    }
}
