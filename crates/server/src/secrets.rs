//! The secret of a cluster: the key under which tickets and sealing secrets are authenticated.
//!
//! It lives in the secret directory, mode 0700, outside every shard's directory and every backup,
//! beside the sealing secrets ([`crate::sealing`]).

use std::fmt;
use std::io;
use std::path::{Path, PathBuf};

use hmac::{Hmac, KeyInit as _, Mac as _};
use ostraca_io::{Entropy, files};
use ostraca_types::StoreId;
use sha2::Sha256;
use zeroize::{Zeroize, ZeroizeOnDrop, Zeroizing};

pub(crate) const KEY_SIZE: usize = 32;
const MODE_DIR: u32 = 0o700;
pub(crate) const MODE_FILE: u32 = 0o600;
const TICKET_KEY: &str = "cluster.key";
/// 32 random bytes that never leave the process.
#[derive(Clone, Zeroize, ZeroizeOnDrop)]
pub(crate) struct SecretKey([u8; KEY_SIZE]);

impl SecretKey {
    pub(crate) const fn new(bytes: [u8; KEY_SIZE]) -> Self {
        Self(bytes)
    }

    pub(crate) const fn expose(&self) -> &[u8; KEY_SIZE] {
        &self.0
    }
}

impl fmt::Debug for SecretKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("SecretKey(secret)")
    }
}

/// The secret of a cluster.
#[derive(Debug, Clone)]
pub struct Secrets {
    pub(crate) ticket: SecretKey,
}

/// Why the secrets cannot be used. It names files, never their content.
#[derive(Debug)]
pub enum Error {
    /// A file is not there.
    Missing(PathBuf),
    /// A file is not 32 bytes, or cannot be read.
    Unreadable(PathBuf, io::Error),
    /// The directory can be read by others.
    Exposed(PathBuf),
    /// The secrets are not those under which the store was written.
    Wrong(PathBuf),
}

impl fmt::Display for Error {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Missing(path) => write!(
                f,
                "a secret of this cluster is missing; put the secret directory back: {}",
                path.display()
            ),
            Self::Unreadable(path, _) => write!(f, "a secret cannot be read: {}", path.display()),
            Self::Exposed(path) => write!(
                f,
                "others can read the secrets; `chmod 700` the directory: {}",
                path.display()
            ),
            Self::Wrong(path) => write!(
                f,
                "these are not the secrets that the shard was written under; put the right \
                 secret directory back: {}",
                path.display()
            ),
        }
    }
}

impl std::error::Error for Error {
    fn source(&self) -> Option<&(dyn std::error::Error + 'static)> {
        match self {
            Self::Unreadable(_, source) => Some(source),
            _ => None,
        }
    }
}

/// Makes the secret of a new cluster, unless it is there. On return it is durable.
pub(crate) fn make(dir: &Path, entropy: &dyn Entropy) -> io::Result<()> {
    files::create_dir_durable(dir, MODE_DIR)?;
    let mut key = Zeroizing::new([0; KEY_SIZE]);
    entropy.fill(&mut *key);
    match files::create_durable(&dir.join(TICKET_KEY), &*key, MODE_FILE) {
        Err(err) if err.kind() == io::ErrorKind::AlreadyExists => Ok(()),
        other => other,
    }
}

impl Secrets {
    /// Reads the secrets in `dir`, which nobody else may be able to read.
    pub fn load(dir: &Path) -> Result<Self, Error> {
        match files::mode(dir) {
            Err(err) if err.kind() == io::ErrorKind::NotFound => {
                return Err(Error::Missing(dir.to_owned()));
            }
            Err(err) => return Err(Error::Unreadable(dir.to_owned(), err)),
            Ok(mode) if mode & 0o077 != 0 => return Err(Error::Exposed(dir.to_owned())),
            Ok(_) => {}
        }
        Ok(Self {
            ticket: load_key(dir.join(TICKET_KEY))?,
        })
    }

    /// The value that a store keeps to know its secrets by. It reveals nothing about them.
    pub(crate) fn check_value(&self, store: StoreId) -> [u8; 32] {
        let mut mac = mac(&self.ticket);
        mac.update(b"ostraca check value 1");
        mac.update(&store.0);
        mac.finalize().into_bytes().into()
    }
}

/// HMAC-SHA-256 under a secret.
pub(crate) fn mac(key: &SecretKey) -> Hmac<Sha256> {
    Hmac::<Sha256>::new_from_slice(key.expose()).expect("HMAC takes a key of any length")
}

fn load_key(path: PathBuf) -> Result<SecretKey, Error> {
    let bytes = match files::read(&path) {
        Err(err) if err.kind() == io::ErrorKind::NotFound => return Err(Error::Missing(path)),
        Err(err) => return Err(Error::Unreadable(path, err)),
        Ok(bytes) => Zeroizing::new(bytes),
    };
    match bytes.as_slice().try_into() {
        Ok(key) => Ok(SecretKey(key)),
        Err(_) => Err(Error::Unreadable(path, io::ErrorKind::InvalidData.into())),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use ostraca_io::SeededEntropy;

    #[test]
    fn k16_secrets_are_made_once_and_kept_private() {
        let dir = tempfile::tempdir().expect("a directory");
        let path = dir.path().join("secret");
        let store = StoreId([9; 16]);
        make(&path, &SeededEntropy::new(1)).expect("made");
        let first = Secrets::load(&path).expect("loaded").check_value(store);
        make(&path, &SeededEntropy::new(2)).expect("left alone");
        let secrets = Secrets::load(&path).expect("loaded");
        assert_eq!(secrets.check_value(store), first);
        assert_ne!(secrets.check_value(StoreId([8; 16])), first);
        assert_eq!(files::mode(&path).expect("a mode"), 0o700);
        assert_eq!(files::mode(&path.join(TICKET_KEY)).expect("a mode"), 0o600);
        assert!(!format!("{secrets:?}").contains(char::is_numeric));
    }

    #[test]
    fn k16_a_missing_or_short_secret_is_an_error() {
        let dir = tempfile::tempdir().expect("a directory");
        let path = dir.path().join("secret");
        assert!(matches!(Secrets::load(&path), Err(Error::Missing(_))));
        make(&path, &SeededEntropy::new(1)).expect("made");
        files::replace_durable(&path.join(TICKET_KEY), b"short", 0o600).expect("written");
        assert!(matches!(Secrets::load(&path), Err(Error::Unreadable(..))));
    }
}
