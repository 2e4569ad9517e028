//! Base62, digits `0-9A-Za-z` in that order, most significant first.

/// The digits, in the order of their value.
pub(crate) const ALPHABET: &[u8; 62] =
    b"0123456789ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz";

/// The value of one digit, or `None` for any other byte.
pub(crate) const fn digit(byte: u8) -> Option<u8> {
    match byte {
        b'0'..=b'9' => Some(byte - b'0'),
        b'A'..=b'Z' => Some(byte - b'A' + 10),
        b'a'..=b'z' => Some(byte - b'a' + 36),
        _ => None,
    }
}

/// `value` in exactly `N` digits. Panics if it does not fit: widths are chosen at compile time.
pub(crate) fn encode<const N: usize>(mut value: u128) -> [u8; N] {
    let mut text = [b'0'; N];
    for place in text.iter_mut().rev() {
        // A remainder of 62 always fits.
        *place = ALPHABET[usize::try_from(value % 62).unwrap_or_default()];
        value /= 62;
    }
    assert_eq!(value, 0, "the value does not fit {N} base62 digits");
    text
}

/// The value of `text`, or `None` if a byte is no digit or the value exceeds 128 bits.
pub(crate) fn decode(text: &[u8]) -> Option<u128> {
    text.iter().try_fold(0u128, |value, &byte| {
        value.checked_mul(62)?.checked_add(u128::from(digit(byte)?))
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    proptest! {
        #[test]
        fn what_was_encoded_decodes(value: u128) {
            prop_assert_eq!(decode(&encode::<22>(value)), Some(value));
        }
    }

    #[test]
    fn digits_have_their_place_in_the_alphabet() {
        for (value, &byte) in ALPHABET.iter().enumerate() {
            assert_eq!(digit(byte).map(usize::from), Some(value));
        }
        let digits = (0..=u8::MAX).filter(|&byte| digit(byte).is_some()).count();
        assert_eq!(digits, 62);
    }

    #[test]
    fn a_value_beyond_128_bits_is_refused() {
        assert_eq!(decode(b"zzzzzzzzzzzzzzzzzzzzzz"), None);
    }
}
