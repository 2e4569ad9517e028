//! The store file: who a shard directory is (FORMAT.md).

use std::fmt;
use std::io;
use std::path::{Path, PathBuf};

use ostraca_io::{Entropy, files};
use ostraca_types::{ClusterId, ShardId, StoreId};
use ostraca_wal::{EPOCH_PAGE, Identity, new_epoch_page};

/// Byte ranges of the store file: one row of FORMAT.md each.
mod field {
    use std::ops::Range;
    pub(super) const MAGIC: Range<usize> = 0..8;
    pub(super) const VERSION: Range<usize> = 8..12;
    pub(super) const SHARD: Range<usize> = 12..14;
    pub(super) const RESERVED: Range<usize> = 14..16;
    pub(super) const STORE_ID: Range<usize> = 16..32;
    pub(super) const CLUSTER_ID: Range<usize> = 32..48;
    pub(super) const SECRET_CHECK: Range<usize> = 48..80;
    pub(super) const CHECKSUM: Range<usize> = 80..84;
    pub(super) const SIZE: usize = 84;
}

const MAGIC: &[u8; 8] = b"ostrstor";
const VERSION: u32 = 1;
const FILE: &str = "store";

/// Who a shard directory is.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct StoreMeta {
    /// Its random name.
    pub store: StoreId,
    /// Which shard it holds.
    pub shard: ShardId,
    /// The cluster that it belongs to.
    pub cluster: ClusterId,
    /// By which a wrong secret is known; opaque here.
    pub secret_check: [u8; 32],
}

/// Why a store file cannot be used.
#[derive(Debug)]
pub enum StoreError {
    /// It cannot be read or written.
    Io(PathBuf, io::Error),
    /// It is not there.
    NotMade(PathBuf),
    /// It is not what was written.
    Damaged(PathBuf),
    /// A newer program wrote it.
    Newer(PathBuf, u32),
}

impl fmt::Display for StoreError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Io(path, _) => write!(f, "cannot use the store file: {}", path.display()),
            Self::NotMade(path) => write!(f, "no store file: {}", path.display()),
            Self::Damaged(path) => write!(
                f,
                "the store file is damaged, restore it from a backup: {}",
                path.display()
            ),
            Self::Newer(path, version) => write!(
                f,
                "the store file has format {version}, this program knows {VERSION}: {}",
                path.display()
            ),
        }
    }
}

impl std::error::Error for StoreError {
    fn source(&self) -> Option<&(dyn std::error::Error + 'static)> {
        match self {
            Self::Io(_, source) => Some(source),
            _ => None,
        }
    }
}

impl StoreMeta {
    /// A new identity with a random store id. `secret_check` gives the check value for it.
    pub fn mint(
        shard: ShardId,
        cluster: ClusterId,
        entropy: &dyn Entropy,
        secret_check: impl FnOnce(StoreId) -> [u8; 32],
    ) -> Self {
        let mut id = [0; 16];
        entropy.fill(&mut id);
        let store = StoreId(id);
        Self {
            store,
            shard,
            cluster,
            secret_check: secret_check(store),
        }
    }

    /// Reads the store file in a shard's directory.
    pub fn read(shard_dir: &Path) -> Result<Self, StoreError> {
        let path = shard_dir.join(FILE);
        match files::read(&path) {
            Err(err) if err.kind() == io::ErrorKind::NotFound => Err(StoreError::NotMade(path)),
            Err(err) => Err(StoreError::Io(path, err)),
            Ok(bytes) => Self::decode(&bytes, path),
        }
    }

    /// Whose log the directory holds.
    #[must_use]
    pub const fn identity(&self) -> Identity {
        Identity {
            store: self.store,
            shard: self.shard,
        }
    }

    /// Writes the epoch page and the store file of a new shard's directory, once. On return they
    /// are durable.
    pub fn create(&self, shard_dir: &Path) -> Result<(), StoreError> {
        let path = shard_dir.join(FILE);
        if path.exists() {
            return Err(StoreError::Io(path, io::ErrorKind::AlreadyExists.into()));
        }
        // The page first: where the store file is, nothing is missing. A page without one is of an
        // attempt that was interrupted, and nobody has mapped it.
        let page = shard_dir.join(EPOCH_PAGE);
        files::replace_durable(&page, &new_epoch_page(&self.identity()), 0o600)
            .map_err(|err| StoreError::Io(page, err))?;
        files::create_durable(&path, &self.encode(), 0o600).map_err(|err| StoreError::Io(path, err))
    }

    fn encode(&self) -> [u8; field::SIZE] {
        let mut bytes = [0; field::SIZE];
        bytes[field::MAGIC].copy_from_slice(MAGIC);
        bytes[field::VERSION].copy_from_slice(&VERSION.to_le_bytes());
        bytes[field::SHARD].copy_from_slice(&self.shard.0.to_le_bytes());
        bytes[field::STORE_ID].copy_from_slice(&self.store.0);
        bytes[field::CLUSTER_ID].copy_from_slice(&self.cluster.0);
        bytes[field::SECRET_CHECK].copy_from_slice(&self.secret_check);
        let checksum = crc32fast::hash(&bytes[..field::CHECKSUM.start]);
        bytes[field::CHECKSUM].copy_from_slice(&checksum.to_le_bytes());
        bytes
    }

    fn decode(bytes: &[u8], path: PathBuf) -> Result<Self, StoreError> {
        let Ok(bytes) = <&[u8; field::SIZE]>::try_from(bytes) else {
            return Err(StoreError::Damaged(path));
        };
        let checksum = crc32fast::hash(&bytes[..field::CHECKSUM.start]);
        if bytes[field::MAGIC] != *MAGIC || bytes[field::CHECKSUM] != checksum.to_le_bytes() {
            return Err(StoreError::Damaged(path));
        }
        let version = u32::from_le_bytes(array(bytes, field::VERSION));
        if version != VERSION {
            return Err(StoreError::Newer(path, version));
        }
        if bytes[field::RESERVED] != [0, 0] {
            return Err(StoreError::Damaged(path));
        }
        Ok(Self {
            store: StoreId(array(bytes, field::STORE_ID)),
            shard: ShardId(u16::from_le_bytes(array(bytes, field::SHARD))),
            cluster: ClusterId(array(bytes, field::CLUSTER_ID)),
            secret_check: array(bytes, field::SECRET_CHECK),
        })
    }
}

fn array<const N: usize>(bytes: &[u8], range: std::ops::Range<usize>) -> [u8; N] {
    let mut field = [0; N];
    field.copy_from_slice(&bytes[range]);
    field
}

#[cfg(test)]
mod tests {
    use super::*;

    fn meta() -> StoreMeta {
        StoreMeta {
            store: StoreId([1; 16]),
            shard: ShardId(3),
            cluster: ClusterId([2; 16]),
            secret_check: [4; 32],
        }
    }

    #[test]
    fn a_store_file_is_made_once() {
        let dir = tempfile::tempdir().expect("a directory");
        assert!(matches!(
            StoreMeta::read(dir.path()),
            Err(StoreError::NotMade(_))
        ));
        meta().create(dir.path()).expect("made");
        assert_eq!(StoreMeta::read(dir.path()).expect("read"), meta());
        assert!(matches!(meta().create(dir.path()), Err(StoreError::Io(..))));
    }

    #[test]
    fn d05_every_byte_of_a_store_file_is_checked() {
        let bytes = meta().encode();
        for at in 0..bytes.len() {
            let mut changed = bytes;
            changed[at] ^= 1;
            let read = StoreMeta::decode(&changed, PathBuf::new());
            assert!(matches!(read, Err(StoreError::Damaged(_))), "byte {at}");
        }
        assert!(StoreMeta::decode(&bytes[..80], PathBuf::new()).is_err());
    }

    #[test]
    fn d07_a_newer_store_file_is_refused_by_name() {
        let mut bytes = meta().encode();
        bytes[field::VERSION].copy_from_slice(&9u32.to_le_bytes());
        let checksum = crc32fast::hash(&bytes[..field::CHECKSUM.start]);
        bytes[field::CHECKSUM].copy_from_slice(&checksum.to_le_bytes());
        let read = StoreMeta::decode(&bytes, PathBuf::new());
        assert!(matches!(read, Err(StoreError::Newer(_, 9))));
    }

    #[test]
    fn d07_the_store_file_has_golden_bytes() {
        let hex: String = meta()
            .encode()
            .iter()
            .map(|byte| format!("{byte:02x}"))
            .collect();
        assert_eq!(hex, include_str!("../golden/store_v1.hex").trim());
    }

    #[test]
    fn the_document_matches_the_code() {
        let (_, section) = include_str!("../FORMAT.md")
            .split_once("## Store file")
            .expect("the section");
        let (section, _) = section.split_once("\n## ").expect("the next section");
        let rows: Vec<(usize, usize)> = section
            .lines()
            .filter_map(|line| {
                let mut cells = line.split('|').map(str::trim).skip(1);
                let offset: usize = cells.next()?.parse().ok()?;
                let size: usize = cells.next()?.parse().ok()?;
                Some((offset, offset + size))
            })
            .collect();
        let fields = [
            field::MAGIC,
            field::VERSION,
            field::SHARD,
            field::RESERVED,
            field::STORE_ID,
            field::CLUSTER_ID,
            field::SECRET_CHECK,
            field::CHECKSUM,
        ];
        assert_eq!(rows, fields.map(|range| (range.start, range.end)));
    }
}
