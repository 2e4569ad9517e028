//! A ledger as lines of JSON: the first names the version, each other one is a call or an effect.
//!
//! Digests are hexadecimal, ids are the text that everybody else sees, instants are numbers. Each
//! version is frozen by a file in `tests/golden`. Every line of version 1 is one of version 2, which has
//! more questions and answers, and says of attempts and begins which they are.

use std::fmt;
use std::io::{self, BufRead, Write};

use serde::{Deserialize, Serialize};

use crate::ledger::{Call, Effect, Ledger};

/// The version of what is written; older ones are read as well.
pub const LEDGER_VERSION: u32 = 2;

/// The first line.
#[derive(Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
struct Head {
    ledger: u32,
}

/// Another line, as it is written.
#[derive(Serialize)]
#[serde(rename_all = "snake_case")]
enum Line<'a> {
    Call(&'a Call),
    Effect(&'a Effect),
}

/// The same, as it is read.
#[derive(Deserialize)]
#[serde(rename_all = "snake_case")]
enum Entry {
    Call(Call),
    Effect(Effect),
}

/// Why a ledger could not be read.
#[derive(Debug)]
pub enum LedgerError {
    /// Reading failed.
    Io(io::Error),
    /// The first line is not one of a ledger.
    NotALedger,
    /// A version that this program does not know.
    Version(u32),
    /// A line that is not an entry of a ledger, or not a whole one; lines count from 1.
    Line {
        /// Which.
        line: usize,
        /// What is wrong with it.
        source: serde_json::Error,
    },
}

impl fmt::Display for LedgerError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Io(_) => f.write_str("the ledger cannot be read"),
            Self::NotALedger => {
                f.write_str("this is not a ledger: its first line names no version")
            }
            Self::Version(version) => write!(
                f,
                "the ledger has a version that this program does not know (it knows 1 to {LEDGER_VERSION}): {version}"
            ),
            Self::Line { line, .. } => write!(f, "no entry of a ledger in line {line}"),
        }
    }
}

impl std::error::Error for LedgerError {
    fn source(&self) -> Option<&(dyn std::error::Error + 'static)> {
        match self {
            Self::Io(source) => Some(source),
            Self::Line { source, .. } => Some(source),
            Self::NotALedger | Self::Version(_) => None,
        }
    }
}

impl Ledger {
    /// Writes a whole ledger, version first.
    ///
    /// # Errors
    /// Those of the writer.
    pub fn write(&self, to: &mut impl Write) -> io::Result<()> {
        write_line(
            to,
            &Head {
                ledger: LEDGER_VERSION,
            },
        )?;
        for call in &self.calls {
            write_line(to, &Line::Call(call))?;
        }
        for effect in &self.effects {
            write_line(to, &Line::Effect(effect))?;
        }
        Ok(())
    }

    /// Reads what [`Ledger::write`] wrote.
    ///
    /// # Errors
    /// Whatever is not a ledger of a version that this program knows, whole to its last line.
    pub fn read(from: impl BufRead) -> Result<Self, LedgerError> {
        let mut lines = from.lines();
        let head = lines.next().ok_or(LedgerError::NotALedger)?;
        let head = head.map_err(LedgerError::Io)?;
        let Head { ledger: version } =
            serde_json::from_str(&head).map_err(|_| LedgerError::NotALedger)?;
        if !(1..=LEDGER_VERSION).contains(&version) {
            return Err(LedgerError::Version(version));
        }
        let mut ledger = Self::default();
        for (at, line) in lines.enumerate() {
            let line = line.map_err(LedgerError::Io)?;
            match serde_json::from_str(&line) {
                Ok(Entry::Call(call)) => ledger.calls.push(call),
                Ok(Entry::Effect(effect)) => ledger.effects.push(effect),
                Err(source) => {
                    let line = at + 2;
                    return Err(LedgerError::Line { line, source });
                }
            }
        }
        Ok(ledger)
    }
}

fn write_line(to: &mut impl Write, line: &impl Serialize) -> io::Result<()> {
    serde_json::to_writer(&mut *to, line)?;
    to.write_all(b"\n")
}

/// How fields whose types know nothing of JSON are written.
pub(crate) mod text {
    use std::fmt;

    use ostraca_types::{KeyDigest, OutboxId, PasteId, RequestDigest, Timestamp, TokenHash};
    use serde::de::{Deserialize, Deserializer, Error};
    use serde::ser::{Serialize, Serializer};

    /// What a field is in JSON.
    pub(crate) trait Text: Sized {
        type Json: Serialize + for<'de> Deserialize<'de>;

        fn to_json(&self) -> Self::Json;
        fn from_json(json: &Self::Json) -> Option<Self>;
    }

    pub(crate) fn serialize<T: Text, S: Serializer>(value: &T, to: S) -> Result<S::Ok, S::Error> {
        value.to_json().serialize(to)
    }

    pub(crate) fn deserialize<'de, T: Text, D: Deserializer<'de>>(from: D) -> Result<T, D::Error> {
        let json = T::Json::deserialize(from)?;
        T::from_json(&json).ok_or_else(|| D::Error::custom(NotValid(std::any::type_name::<T>())))
    }

    /// What was read is not told: whoever writes a ledger wrongly may have put anything there.
    struct NotValid(&'static str);

    impl fmt::Display for NotValid {
        fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
            let name = self.0.rsplit("::").next().unwrap_or(self.0);
            write!(f, "not a valid {name}")
        }
    }

    fn hex(bytes: &[u8]) -> String {
        bytes.iter().map(|byte| format!("{byte:02x}")).collect()
    }

    fn from_hex<const N: usize>(text: &str) -> Option<[u8; N]> {
        let digits = text.as_bytes();
        // One spelling each, so that equal values are equal lines.
        let lower = |digit: &u8| matches!(digit, b'0'..=b'9' | b'a'..=b'f');
        if digits.len() != 2 * N || !digits.iter().all(lower) {
            return None;
        }
        let mut bytes = [0; N];
        for (byte, pair) in bytes.iter_mut().zip(digits.chunks_exact(2)) {
            *byte = u8::from_str_radix(std::str::from_utf8(pair).ok()?, 16).ok()?;
        }
        Some(bytes)
    }

    macro_rules! digest {
        ($($name:ident),*) => {$(
            impl Text for $name {
                type Json = String;

                fn to_json(&self) -> String {
                    hex(&self.0)
                }

                fn from_json(json: &String) -> Option<Self> {
                    from_hex(json).map(Self)
                }
            }
        )*};
    }

    macro_rules! id {
        ($($name:ident),*) => {$(
            impl Text for $name {
                type Json = String;

                fn to_json(&self) -> String {
                    self.to_string()
                }

                fn from_json(json: &String) -> Option<Self> {
                    Self::parse(json).ok()
                }
            }
        )*};
    }

    digest!(KeyDigest, RequestDigest, TokenHash);
    id!(PasteId, OutboxId);

    impl Text for Timestamp {
        type Json = u64;

        fn to_json(&self) -> u64 {
            self.0
        }

        fn from_json(json: &u64) -> Option<Self> {
            Some(Self(*json))
        }
    }
}
