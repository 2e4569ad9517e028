//! The data directory of a cluster on one machine: who it is, its secrets, which shard owns which
//! slot, and where the processes listen.
//!
//! ```text
//! DIR/routing            identity and slot table; its presence means that the cluster was made
//! DIR/secret/            mode 0700: cluster.key, sealing-N.key; never in a backup
//! DIR/shard-N/           store, epoch, lock, log/
//! DIR/bodies/            objects
//! DIR/run/               lock, endpoints.json; true only while processes run
//! ```
//!
//! A cluster is made under the name `making`, which says what it will be; then secret, stores and
//! directories, each durably; and `making` becomes `routing` last. A crash before that goes on from
//! `making` at the next start. So a directory with `routing` has everything, or has lost it: a start
//! never makes anew what is missing, as an empty shard in place of a lost one would answer 404 for
//! all it had acknowledged.

use std::fmt;
use std::io;
use std::path::{Path, PathBuf};

use ostraca_engine::{StoreError, StoreMeta};
use ostraca_io::{Entropy, files};
use ostraca_types::contract::SLOTS;
use ostraca_types::{ClusterId, ShardId, Slot};
use serde::{Deserialize, Serialize};
use sha2::{Digest as _, Sha256};

use crate::Secrets;

/// The version of the `routing` file that this program writes.
const ROUTING_FORMAT: u32 = 0;
/// The most shards: each owns one slot at least.
pub const SHARDS_MAX: u16 = 256;

/// Shards unless asked otherwise.
const SHARDS_DEFAULT: u16 = 2;

/// Logs hold titles and ids in the clear: they are nobody else's.
const MODE_DIR: u32 = 0o700;
const MODE_FILE: u32 = 0o600;

/// An opened data directory.
#[derive(Debug, Clone)]
pub struct DataDir {
    path: PathBuf,
    cluster: ClusterId,
    version: u64,
    /// The shard of each slot.
    owners: Vec<ShardId>,
}

/// Why a data directory cannot be used.
#[derive(Debug)]
pub enum Error {
    /// The directory or a file in it cannot be read or written.
    Io {
        /// Which one.
        path: PathBuf,
        /// What the system said.
        source: io::Error,
    },
    /// There is no cluster in the directory.
    NotMade(PathBuf),
    /// The `routing` file is not what this program wrote.
    Malformed(PathBuf),
    /// The `routing` file has a newer format than this program knows.
    NewerFormat(u32),
    /// The cluster was made with another number of shards.
    ShardsDiffer {
        /// How many it has.
        has: u16,
        /// How many were asked for.
        asked: u16,
    },
    /// The number of shards is 0 or above 256.
    ShardCount(u16),
    /// There are parts of a cluster and no `routing` file.
    RoutingLost(PathBuf),
    /// A store cannot be made or read.
    Store(StoreError),
}

impl fmt::Display for Error {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Io { path, .. } => write!(f, "cannot use the data directory: {}", path.display()),
            Self::NotMade(path) => write!(
                f,
                "no cluster in this directory; `ostraca up` makes one: {}",
                path.display()
            ),
            Self::Malformed(path) => write!(
                f,
                "not a routing file of ostraca; restore it from a backup: {}",
                path.display()
            ),
            Self::NewerFormat(version) => write!(
                f,
                "the routing file has format {version}, this program knows up to {ROUTING_FORMAT}; use a newer ostraca"
            ),
            Self::ShardsDiffer { has, asked } => write!(
                f,
                "this cluster has {has} shards, not {asked}: leave --shards out, or make a new \
                 cluster with --data in another directory; slots cannot be moved yet"
            ),
            Self::RoutingLost(path) => write!(
                f,
                "there are parts of a cluster here and no routing file; restore it from a backup, \
                 or choose another --data: {}",
                path.display()
            ),
            Self::Store(err) => err.fmt(f),
            Self::ShardCount(count) => {
                write!(f, "a cluster has 1 to {SHARDS_MAX} shards, not {count}")
            }
        }
    }
}

impl std::error::Error for Error {
    fn source(&self) -> Option<&(dyn std::error::Error + 'static)> {
        match self {
            Self::Io { source, .. } => Some(source),
            Self::Store(err) => std::error::Error::source(err),
            _ => None,
        }
    }
}

fn io_at(path: &Path) -> impl FnOnce(io::Error) -> Error {
    let path = path.to_owned();
    move |source| Error::Io { path, source }
}

#[derive(Serialize, Deserialize)]
struct RoutingFile {
    format: u32,
    cluster: String,
    version: u64,
    /// 256 shard numbers.
    slots: Vec<u16>,
    /// SHA-256 over all of the above, its first 16 bytes in hexadecimal: a changed digit would send
    /// keys to a shard that has never seen them.
    checksum: String,
}

impl RoutingFile {
    fn new(cluster: ClusterId, shards: u16) -> Self {
        let count = usize::from(shards);
        let mut file = Self {
            format: ROUTING_FORMAT,
            cluster: cluster.to_string(),
            version: 1,
            // Contiguous ranges of nearly equal width.
            slots: (0..SLOTS)
                .map(|slot| u16::try_from(slot * count / SLOTS).unwrap_or_default())
                .collect(),
            checksum: String::new(),
        };
        file.checksum = file.sum();
        file
    }

    fn sum(&self) -> String {
        let mut sha = Sha256::new();
        sha.update(format!("{} {} {}", self.format, self.cluster, self.version));
        self.slots
            .iter()
            .for_each(|shard| sha.update(shard.to_le_bytes()));
        sha.finalize()
            .iter()
            .take(16)
            .map(|byte| format!("{byte:02x}"))
            .collect()
    }
}

impl DataDir {
    /// Opens the cluster in `path`, making it first if there is none: with `shards` shards, 2 if
    /// not given. On return everything made is durable. Blocks on the disk.
    pub fn init(path: &Path, shards: Option<u16>, entropy: &dyn Entropy) -> Result<Self, Error> {
        if let Some(asked) = shards
            && (asked == 0 || asked > SHARDS_MAX)
        {
            return Err(Error::ShardCount(asked));
        }
        files::create_dir_durable(path, MODE_DIR).map_err(io_at(path))?;
        match Self::open(path) {
            Err(Error::NotMade(_)) => Self::make(path, shards, entropy),
            Ok(dir) => match shards {
                Some(asked) if asked != dir.shards() => Err(Error::ShardsDiffer {
                    has: dir.shards(),
                    asked,
                }),
                _ => Ok(dir),
            },
            Err(err) => Err(err),
        }
    }

    fn make(path: &Path, asked: Option<u16>, entropy: &dyn Entropy) -> Result<Self, Error> {
        let making = path.join("making");
        match Self::read(&making, path) {
            // Made up to here and no further.
            Ok(_) => {}
            Err(Error::NotMade(_)) => {
                let names = files::list(path).map_err(io_at(path))?;
                let part = |name: &String| name == "secret" || name.starts_with("shard-");
                if names.iter().any(part) {
                    return Err(Error::RoutingLost(path.to_owned()));
                }
                let mut cluster = [0; 16];
                entropy.fill(&mut cluster);
                let file = RoutingFile::new(ClusterId(cluster), asked.unwrap_or(SHARDS_DEFAULT));
                let text = serde_json::to_vec_pretty(&file).unwrap_or_default();
                files::create_durable(&making, &text, MODE_FILE).map_err(io_at(&making))?;
            }
            Err(err) => return Err(err),
        }
        let dir = Self::read(&making, path)?;
        if let Some(asked) = asked
            && asked != dir.shards()
        {
            return Err(Error::ShardsDiffer {
                has: dir.shards(),
                asked,
            });
        }
        let secret_dir = dir.secret_dir();
        crate::secrets::make(&secret_dir, entropy).map_err(io_at(&secret_dir))?;
        let secrets = Secrets::load(&secret_dir).map_err(|err| Error::Io {
            path: secret_dir.clone(),
            source: io::Error::other(err),
        })?;
        for shard in (0..dir.shards()).map(ShardId) {
            let log_dir = dir.shard_dir(shard).join("log");
            files::create_dir_durable(&log_dir, MODE_DIR).map_err(io_at(&log_dir))?;
            let made = StoreMeta::mint(shard, dir.cluster, entropy, |store| {
                secrets.check_value(store)
            })
            .create(&dir.shard_dir(shard));
            match made {
                Err(StoreError::Io(_, err)) if err.kind() == io::ErrorKind::AlreadyExists => {}
                other => other.map_err(Error::Store)?,
            }
        }
        let bodies = dir.bodies_dir();
        // The object store opens where its `p` is, and nowhere else.
        for made in [&bodies, &bodies.join("p")] {
            files::create_dir_durable(made, MODE_DIR).map_err(io_at(made))?;
        }
        files::rename_durable(&making, &path.join("routing")).map_err(io_at(&making))?;
        Self::open(path)
    }

    /// Opens the cluster in `path`.
    pub fn open(path: &Path) -> Result<Self, Error> {
        Self::read(&path.join("routing"), path)
    }

    fn read(routing: &Path, path: &Path) -> Result<Self, Error> {
        let bytes = match files::read(routing) {
            Err(err) if err.kind() == io::ErrorKind::NotFound => {
                return Err(Error::NotMade(path.to_owned()));
            }
            other => other.map_err(io_at(routing))?,
        };
        let malformed = || Error::Malformed(routing.to_owned());
        let file: RoutingFile = serde_json::from_slice(&bytes).map_err(|_| malformed())?;
        if file.format > ROUTING_FORMAT {
            return Err(Error::NewerFormat(file.format));
        }
        let valid = file.checksum == file.sum()
            && file.slots.len() == SLOTS
            && file.cluster.len() == 32
            && file.slots.iter().all(|&shard| shard < SHARDS_MAX);
        let cluster = u128::from_str_radix(&file.cluster, 16).map_err(|_| malformed())?;
        if !valid {
            return Err(malformed());
        }
        Ok(Self {
            path: path.to_owned(),
            cluster: ClusterId(cluster.to_be_bytes()),
            version: file.version,
            owners: file.slots.into_iter().map(ShardId).collect(),
        })
    }

    /// Where the directory is.
    #[must_use]
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// The name of the cluster.
    #[must_use]
    pub const fn cluster(&self) -> ClusterId {
        self.cluster
    }

    /// The version of the slot table.
    #[must_use]
    pub const fn version(&self) -> u64 {
        self.version
    }

    /// How many shards there are: they are numbered from 0.
    #[must_use]
    pub fn shards(&self) -> u16 {
        self.owners
            .iter()
            .map(|shard| shard.0 + 1)
            .max()
            .unwrap_or(0)
    }

    /// The shard that owns `slot`.
    #[must_use]
    pub fn owner(&self, slot: Slot) -> ShardId {
        self.owners[slot.index()]
    }

    /// The slots that `shard` owns, ascending.
    #[must_use]
    pub fn slots_of(&self, shard: ShardId) -> Vec<Slot> {
        Slot::all()
            .filter(|&slot| self.owner(slot) == shard)
            .collect()
    }

    /// Where the secrets are.
    #[must_use]
    pub fn secret_dir(&self) -> PathBuf {
        self.path.join("secret")
    }

    /// Where one shard is.
    #[must_use]
    pub fn shard_dir(&self, shard: ShardId) -> PathBuf {
        self.path.join(format!("shard-{shard}"))
    }

    /// Where the objects are.
    #[must_use]
    pub fn bodies_dir(&self) -> PathBuf {
        self.path.join("bodies")
    }

    /// Where running processes tell about themselves.
    #[must_use]
    pub fn run_dir(&self) -> PathBuf {
        self.path.join("run")
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use ostraca_io::SeededEntropy;

    #[test]
    fn a_cluster_is_made_once_and_keeps_its_shards() {
        let dir = tempfile::tempdir().expect("a directory");
        let entropy = SeededEntropy::new(1);
        assert!(matches!(DataDir::open(dir.path()), Err(Error::NotMade(_))));
        let made = DataDir::init(dir.path(), Some(3), &entropy).expect("made");
        let again = DataDir::init(dir.path(), None, &entropy).expect("opened");
        assert_eq!(made.cluster(), again.cluster());
        assert_eq!(again.shards(), 3);
        let slots: usize = (0..3)
            .map(|shard| again.slots_of(ShardId(shard)).len())
            .sum();
        assert_eq!(slots, SLOTS);
        let refused = DataDir::init(dir.path(), Some(4), &entropy).expect_err("shards differ");
        assert!(
            matches!(refused, Error::ShardsDiffer { has: 3, asked: 4 }),
            "{refused}"
        );
        for count in [0, 257] {
            let refused = DataDir::init(dir.path(), Some(count), &entropy).expect_err("count");
            assert!(matches!(refused, Error::ShardCount(_)));
        }
    }

    #[test]
    fn what_is_lost_is_never_made_anew() {
        let entropy = SeededEntropy::new(1);
        for lost in ["routing", "secret"] {
            let dir = tempfile::tempdir().expect("a directory");
            DataDir::init(dir.path(), None, &entropy).expect("made");
            let aside = dir.path().join("aside");
            files::rename_durable(&dir.path().join(lost), &aside).expect("moved");
            let again = DataDir::init(dir.path(), None, &entropy);
            if lost == "routing" {
                assert!(matches!(again, Err(Error::RoutingLost(_))), "{again:?}");
            }
            assert!(!dir.path().join(lost).exists(), "{lost} is not made anew");
        }
    }

    #[test]
    fn an_interrupted_making_goes_on_with_what_it_began() {
        let dir = tempfile::tempdir().expect("a directory");
        let made = DataDir::init(dir.path(), Some(3), &SeededEntropy::new(1)).expect("made");
        // As a crash just before the last step leaves it.
        let (routing, making) = (dir.path().join("routing"), dir.path().join("making"));
        files::rename_durable(&routing, &making).expect("moved");
        let again = DataDir::init(dir.path(), Some(3), &SeededEntropy::new(2)).expect("made");
        assert_eq!((again.cluster(), again.shards()), (made.cluster(), 3));
        assert!(!making.exists());
    }

    #[test]
    fn d05_every_character_of_the_table_is_checked() {
        let dir = tempfile::tempdir().expect("a directory");
        DataDir::init(dir.path(), None, &SeededEntropy::new(1)).expect("made");
        let routing = dir.path().join("routing");
        let text = files::read_text(&routing).expect("the file");
        for (from, to) in [("    1,", "    0,"), ("\"version\": 1", "\"version\": 2")] {
            let changed = text.replacen(from, to, 1);
            assert_ne!(changed, text);
            files::replace_durable(&routing, changed.as_bytes(), 0o600).expect("written");
            assert!(matches!(
                DataDir::open(dir.path()),
                Err(Error::Malformed(_))
            ));
        }
    }

    #[test]
    fn d07_a_newer_routing_file_is_refused_by_name() {
        let dir = tempfile::tempdir().expect("a directory");
        DataDir::init(dir.path(), None, &SeededEntropy::new(1)).expect("made");
        let routing = dir.path().join("routing");
        let text = files::read_text(&routing).expect("the file");
        let newer = text.replace("\"format\": 0", "\"format\": 7");
        files::replace_durable(&routing, newer.as_bytes(), 0o644).expect("written");
        assert!(matches!(
            DataDir::open(dir.path()),
            Err(Error::NewerFormat(7))
        ));
        files::replace_durable(&routing, b"{}", 0o644).expect("written");
        assert!(matches!(
            DataDir::open(dir.path()),
            Err(Error::Malformed(_))
        ));
    }
}
