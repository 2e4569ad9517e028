//! Ids and the slot in them.

use std::fmt;

use crate::base62;

/// One of the 256 parts of the key space. Every value is valid; a key's slot never changes.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Slot(pub u8);

impl Slot {
    /// All slots, in order.
    pub fn all() -> impl Iterator<Item = Self> {
        (0..=u8::MAX).map(Slot)
    }

    /// As an index into a table of [`crate::contract::SLOTS`] entries.
    #[must_use]
    pub const fn index(self) -> usize {
        self.0 as usize
    }

    fn to_text(self) -> [u8; 2] {
        base62::encode(u128::from(self.0))
    }

    /// Two base62 digits whose value is below 256; anything else is a missing id (k06).
    fn from_text(text: &[u8]) -> Result<Self, IdError> {
        let value = base62::decode(text).ok_or(IdError::NotBase62)?;
        u8::try_from(value)
            .map(Slot)
            .map_err(|_| IdError::NoSuchSlot)
    }
}

impl fmt::Display for Slot {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}

/// Why a text is no id.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum IdError {
    /// An id of this kind has another length.
    Length,
    /// A character outside `0-9A-Za-z`.
    NotBase62,
    /// The two characters of the slot decode to 256 or more.
    NoSuchSlot,
    /// The digits exceed what the bytes of the id can hold.
    OutOfRange,
}

impl fmt::Display for IdError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Length => "wrong length for an id",
            Self::NotBase62 => "an id has characters 0-9, A-Z and a-z only",
            Self::NoSuchSlot => "the first two characters name no slot",
            Self::OutOfRange => "the digits exceed the id's range",
        })
    }
}

impl std::error::Error for IdError {}

/// Characters of a paste id: 2 of slot, 12 random ones.
pub const PASTE_ID_LEN: usize = 14;

/// The name of a paste: two base62 characters of slot, then twelve random ones (71 bits).
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct PasteId([u8; PASTE_ID_LEN]);

impl PasteId {
    /// A new id on `slot`. `fill` must come from a cryptographic random source.
    pub fn mint(slot: Slot, mut fill: impl FnMut(&mut [u8])) -> Self {
        let mut text = [0; PASTE_ID_LEN];
        text[..2].copy_from_slice(&slot.to_text());
        let mut digits = random_digits(&mut fill);
        text[2..].fill_with(|| digits.next().unwrap_or_default());
        Self(text)
    }

    /// Reads an id. Every error means that no such paste can exist.
    pub fn parse(text: &str) -> Result<Self, IdError> {
        let bytes: [u8; PASTE_ID_LEN] = text.as_bytes().try_into().map_err(|_| IdError::Length)?;
        if bytes.iter().any(|&byte| base62::digit(byte).is_none()) {
            return Err(IdError::NotBase62);
        }
        Slot::from_text(&bytes[..2])?;
        Ok(Self(bytes))
    }

    /// The slot that the id names. Never a hash of the id (k06).
    #[must_use]
    pub fn slot(&self) -> Slot {
        // Both constructors checked the prefix.
        Slot::from_text(&self.0[..2]).unwrap_or(Slot(0))
    }

    /// The twelve characters after the slot, as they are stored.
    #[must_use]
    pub fn random_part(&self) -> &[u8] {
        &self.0[2..]
    }

    /// The id of a stored slot and random part.
    pub fn from_parts(slot: Slot, random: &[u8]) -> Result<Self, IdError> {
        if random.len() != PASTE_ID_LEN - 2 {
            return Err(IdError::Length);
        }
        if random.iter().any(|&byte| base62::digit(byte).is_none()) {
            return Err(IdError::NotBase62);
        }
        let mut text = [0; PASTE_ID_LEN];
        text[..2].copy_from_slice(&slot.to_text());
        text[2..].copy_from_slice(random);
        Ok(Self(text))
    }

    /// The id as text.
    #[must_use]
    pub fn as_str(&self) -> &str {
        std::str::from_utf8(&self.0).unwrap_or_default()
    }

    /// Where the paste's body is in the object store: `p/` + slot characters + `/` + id.
    #[must_use]
    pub fn object_key(&self) -> String {
        let id = self.as_str();
        format!("p/{}/{id}", &id[..2])
    }

    /// Reads an object key back; `None` for objects that are no paste's.
    #[must_use]
    pub fn from_object_key(key: &str) -> Option<Self> {
        let (slot, id) = key.strip_prefix("p/")?.split_once('/')?;
        let id = Self::parse(id).ok()?;
        (id.as_str().get(..2)? == slot).then_some(id)
    }
}

impl fmt::Display for PasteId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(self.as_str())
    }
}

impl fmt::Debug for PasteId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "PasteId({self})")
    }
}

/// Uniform base62 digits without an end: bytes from 248 up are drawn again, 248 being 4 times 62.
/// 16 bytes at a time, as each call may be one of the system's.
fn random_digits(fill: &mut impl FnMut(&mut [u8])) -> impl Iterator<Item = u8> {
    std::iter::repeat_with(move || {
        let mut bytes = [0; 16];
        fill(&mut bytes);
        bytes
    })
    .flatten()
    .filter(|&byte| byte < 248)
    .map(|byte| base62::ALPHABET[usize::from(byte % 62)])
}

/// Characters of an outbox id: 2 of slot, 20 of the rest.
pub const OUTBOX_ID_TEXT_LEN: usize = 22;
const OUTBOX_RANDOM_LEN: usize = 15;
/// 62^20. The 15 random bytes are drawn below it, so that they always fit 20 digits.
const OUTBOX_RANDOM_END: u128 = 62u128.pow(20);

/// The name of the one message of a paste's life: the slot byte and 15 random bytes.
///
/// 15 bytes hold 120 bits and 20 base62 digits only 119.08, so the random part is drawn uniformly
/// below 62^20; a larger one is out of range.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct OutboxId([u8; 16]);

impl OutboxId {
    /// A new id on `slot`. `fill` must come from a cryptographic random source.
    pub fn mint(slot: Slot, mut fill: impl FnMut(&mut [u8])) -> Self {
        loop {
            let mut random = [0; OUTBOX_RANDOM_LEN];
            fill(&mut random);
            // Accepted with probability 0.53.
            if let Ok(id) = Self::from_parts(slot, &random) {
                return id;
            }
        }
    }

    /// The id of a stored slot and random part.
    pub fn from_parts(slot: Slot, random: &[u8]) -> Result<Self, IdError> {
        if random.len() != OUTBOX_RANDOM_LEN {
            return Err(IdError::Length);
        }
        let mut bytes = [0; 16];
        bytes[0] = slot.0;
        bytes[1..].copy_from_slice(random);
        let id = Self(bytes);
        if id.value() >= OUTBOX_RANDOM_END {
            Err(IdError::OutOfRange)
        } else {
            Ok(id)
        }
    }

    /// Reads an outbox id.
    pub fn parse(text: &str) -> Result<Self, IdError> {
        let text: &[u8; OUTBOX_ID_TEXT_LEN] =
            text.as_bytes().try_into().map_err(|_| IdError::Length)?;
        let slot = Slot::from_text(&text[..2])?;
        let value = base62::decode(&text[2..]).ok_or(IdError::NotBase62)?;
        Self::from_parts(slot, &value.to_be_bytes()[1..])
    }

    fn value(&self) -> u128 {
        let mut bytes = self.0;
        bytes[0] = 0;
        u128::from_be_bytes(bytes)
    }

    /// The slot that the id names, by which a consumer finds the shard (o01).
    #[must_use]
    pub fn slot(&self) -> Slot {
        Slot(self.0[0])
    }

    /// The 15 bytes after the slot, as they are stored.
    #[must_use]
    pub fn random_part(&self) -> &[u8] {
        &self.0[1..]
    }
}

impl fmt::Display for OutboxId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let slot = self.slot().to_text();
        let rest = base62::encode::<20>(self.value());
        f.write_str(std::str::from_utf8(&slot).unwrap_or_default())?;
        f.write_str(std::str::from_utf8(&rest).unwrap_or_default())
    }
}

impl fmt::Debug for OutboxId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "OutboxId({self})")
    }
}

/// Which shard of the cluster: from 0 up, at most 256 of them.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct ShardId(pub u16);

impl fmt::Display for ShardId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}

macro_rules! random_id {
    ($(#[$doc:meta])* $name:ident) => {
        $(#[$doc])*
        #[derive(Clone, Copy, PartialEq, Eq, Hash)]
        pub struct $name(pub [u8; 16]);

        impl fmt::Display for $name {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                self.0.iter().try_for_each(|byte| write!(f, "{byte:02x}"))
            }
        }

        impl fmt::Debug for $name {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                write!(f, concat!(stringify!($name), "({})"), self)
            }
        }
    };
}

random_id! {
    /// The random name of a cluster, made once. Sealed answers are bound to it.
    ClusterId
}
random_id! {
    /// The random name of one shard directory. Every checksum of its files is seeded with it.
    StoreId
}

#[cfg(test)]
mod tests;
