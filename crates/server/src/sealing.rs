//! Generations of sealing secrets (k16).
//!
//! A new secret every [`GENERATION_LENGTH`] of shard time, numbered by it, made by exclusive creation
//! of its file by whichever shard needs it first, synced before use, and destroyed when the last
//! answer that can have been sealed under it is 25 h old. So no token can be recovered 26 h after its
//! create, from whatever copy of a log.
//!
//! | offset | size | field of `sealing-GENERATION.key` |
//! | --- | --- | --- |
//! | 0 | 32 | the secret |
//! | 32 | 16 | first half of HMAC-SHA-256 over number and secret under the cluster's key |

use std::collections::BTreeMap;
use std::io;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use hmac::Mac as _;
use ostraca_io::{Entropy, files};
use ostraca_types::Timestamp;
use ostraca_types::contract::IDEMPOTENCY_RETENTION;
use parking_lot::{Mutex, RwLock};
use subtle::ConstantTimeEq as _;
use zeroize::Zeroizing;

use crate::secrets::{Error, KEY_SIZE, MODE_FILE, SecretKey, mac};

/// How long answers are sealed under one secret: an hour, less what the clocks of two shards of a
/// machine can differ by (a shard adopts the wall clock by at most that while it runs, and others a
/// few seconds later), and a minute for destroying it.
const GENERATION_LENGTH: Duration = Duration::from_secs(54 * 60);
/// So a secret outlives the last answer under it by this, and another shard's clock may lag as much.
const CLOCKS_DIFFER_MAX: Duration = Duration::from_secs(5 * 60);
/// The promise.
const RECOVERABLE_MAX: Duration = Duration::from_secs(26 * 3600);

const _: () = assert!(
    GENERATION_LENGTH.as_secs() + IDEMPOTENCY_RETENTION.as_secs() + CLOCKS_DIFFER_MAX.as_secs()
        < RECOVERABLE_MAX.as_secs()
);

const MAC_SIZE: usize = 16;

/// The sealing secrets that are not destroyed.
pub(crate) struct Sealing {
    dir: PathBuf,
    cluster_key: SecretKey,
    entropy: Arc<dyn Entropy>,
    known: RwLock<BTreeMap<u32, SecretKey>>,
    /// Held while a secret is made: two threads that make one generation must not both succeed.
    making: Mutex<()>,
}

/// The number of the secret under which an answer of that instant is sealed.
pub(crate) fn generation_at(time: Timestamp) -> u32 {
    let length = u64::try_from(GENERATION_LENGTH.as_millis()).unwrap_or(u64::MAX);
    // 32 bits last for 449,000 years.
    u32::try_from(time.0 / length).unwrap_or(u32::MAX)
}

/// From when on nothing that was sealed under a generation is honoured, by any shard's clock.
fn destroyed_at(generation: u32) -> Timestamp {
    let generations = Timestamp(0).plus(GENERATION_LENGTH * generation);
    generations
        .plus(GENERATION_LENGTH)
        .plus(IDEMPOTENCY_RETENTION)
        .plus(CLOCKS_DIFFER_MAX)
}

fn file_name(generation: u32) -> String {
    format!("sealing-{generation:010}.key")
}

fn generation_of(name: &str) -> Option<u32> {
    let number = name.strip_prefix("sealing-")?.strip_suffix(".key")?;
    number
        .parse()
        .ok()
        .filter(|&number| file_name(number) == name)
}

impl Sealing {
    pub(crate) fn new(dir: PathBuf, cluster_key: SecretKey, entropy: Arc<dyn Entropy>) -> Self {
        Self {
            dir,
            cluster_key,
            entropy,
            known: RwLock::default(),
            making: Mutex::new(()),
        }
    }

    fn authenticator(&self, generation: u32, secret: &[u8]) -> [u8; MAC_SIZE] {
        let mut mac = mac(&self.cluster_key);
        mac.update(b"ostraca sealing secret");
        mac.update(&generation.to_le_bytes());
        mac.update(secret);
        let full = mac.finalize().into_bytes();
        let mut half = [0; MAC_SIZE];
        half.copy_from_slice(&full[..MAC_SIZE]);
        half
    }

    /// The secret under which answers of `time` are sealed, made if there is none. Blocks on the
    /// disk once a generation, and then only if [`Self::tend`] has not been there before.
    pub(crate) fn current(&self, time: Timestamp) -> Result<(u32, SecretKey), Error> {
        let generation = generation_at(time);
        if let Some(secret) = self.known.read().get(&generation) {
            return Ok((generation, secret.clone()));
        }
        let _making = self.making.lock();
        if let Some(secret) = self.known.read().get(&generation) {
            return Ok((generation, secret.clone()));
        }
        let path = self.dir.join(file_name(generation));
        let mut bytes = Zeroizing::new([0; KEY_SIZE + MAC_SIZE]);
        let (secret, mac) = bytes.split_at_mut(KEY_SIZE);
        self.entropy.fill(secret);
        mac.copy_from_slice(&self.authenticator(generation, secret));
        match files::create_durable(&path, &*bytes, MODE_FILE) {
            // Another shard needed it first: it is this one's as well.
            Err(err) if err.kind() == io::ErrorKind::AlreadyExists => {}
            Err(err) => return Err(Error::Unreadable(path, err)),
            Ok(()) => {}
        }
        Ok((generation, self.get(generation)?))
    }

    /// The secret of a generation: `Missing` once it is destroyed.
    pub(crate) fn get(&self, generation: u32) -> Result<SecretKey, Error> {
        if let Some(secret) = self.known.read().get(&generation) {
            return Ok(secret.clone());
        }
        let secret = self.load(generation)?;
        self.known.write().insert(generation, secret.clone());
        Ok(secret)
    }

    fn load(&self, generation: u32) -> Result<SecretKey, Error> {
        let path = self.dir.join(file_name(generation));
        let bytes = match files::read(&path) {
            Err(err) if err.kind() == io::ErrorKind::NotFound => return Err(Error::Missing(path)),
            Err(err) => return Err(Error::Unreadable(path, err)),
            Ok(bytes) => Zeroizing::new(bytes),
        };
        let Some((secret, mac)) = bytes.split_first_chunk::<KEY_SIZE>() else {
            return Err(Error::Unreadable(path, io::ErrorKind::InvalidData.into()));
        };
        let genuine: bool = self.authenticator(generation, secret).ct_eq(mac).into();
        if !genuine {
            return Err(Error::Wrong(path));
        }
        Ok(SecretKey::new(*secret))
    }

    /// Destroys the secrets whose time is over, then makes those of `time` and of the generation after
    /// it. Blocks on the disk. What it could not do, the next call does.
    pub(crate) fn tend(&self, time: Timestamp) -> Result<(), Error> {
        // Also those that another shard has removed.
        self.known
            .write()
            .retain(|&generation, _| !is_over(generation, time));
        let unreadable = |err| Error::Unreadable(self.dir.clone(), err);
        let names = files::list(&self.dir).map_err(unreadable)?;
        let generations = names.iter().filter_map(|name| generation_of(name));
        for generation in generations.filter(|&generation| is_over(generation, time)) {
            destroy(&self.dir.join(file_name(generation)))?;
        }
        self.current(time)?;
        self.current(time.plus(GENERATION_LENGTH))?;
        Ok(())
    }
}

/// Whether the secret of a generation is destroyed at an instant.
pub(crate) fn is_over(generation: u32, time: Timestamp) -> bool {
    time >= destroyed_at(generation)
}

/// Overwrites and removes a secret. On return the removal survives a power cut. (What a disk keeps
/// of overwritten sectors is beyond a program's reach.)
fn destroy(path: &Path) -> Result<(), Error> {
    match files::destroy(path) {
        // Another shard was first.
        Err(err) if err.kind() == io::ErrorKind::NotFound => Ok(()),
        other => other.map_err(|err| Error::Unreadable(path.to_owned(), err)),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use ostraca_io::SeededEntropy;

    const START: Timestamp = Timestamp(1_700_000_000_000);

    fn sealing(dir: &Path, seed: u64) -> Sealing {
        crate::secrets::make(dir, &SeededEntropy::new(1)).expect("made");
        let key = crate::Secrets::load(dir).expect("loaded").ticket;
        Sealing::new(dir.to_owned(), key, Arc::new(SeededEntropy::new(seed)))
    }

    #[test]
    fn k16_a_secret_is_gone_within_26_hours_of_every_answer_under_it() {
        let dir = tempfile::tempdir().expect("a directory");
        let path = dir.path().join("secret");
        let (one, other) = (sealing(&path, 2), sealing(&path, 3));
        // The first instant of a generation: its answers live longest with their secret.
        let length = GENERATION_LENGTH.as_secs() * 1000;
        let first = Timestamp(START.0 / length * length);
        let (generation, secret) = one.current(first).expect("made");
        let shared = other
            .current(Timestamp(first.0 + length - 1))
            .expect("shared");
        assert_eq!((shared.0, shared.1.expose()), (generation, secret.expose()));
        let last = Timestamp(first.0 + length - 1);
        // As long as any key is honoured, by a clock that lags, it is there.
        let honoured = last.plus(IDEMPOTENCY_RETENTION).plus(CLOCKS_DIFFER_MAX);
        one.tend(honoured).expect("tended");
        other.get(generation).expect("there");
        one.tend(first.plus(RECOVERABLE_MAX)).expect("tended");
        assert!(matches!(one.get(generation), Err(Error::Missing(_))));
        other.tend(first.plus(RECOVERABLE_MAX)).expect("tended");
        assert!(
            matches!(other.get(generation), Err(Error::Missing(_))),
            "nor in its memory"
        );
        let fresh = sealing(&path, 4);
        assert!(matches!(fresh.get(generation), Err(Error::Missing(_))));
        assert!(!path.join(file_name(generation)).exists());
    }

    #[test]
    fn k16_threads_that_need_a_secret_at_once_seal_under_the_one_that_is_kept() {
        let dir = tempfile::tempdir().expect("a directory");
        let path = dir.path().join("secret");
        let sealing_of = |seed| Arc::new(sealing(&path, seed));
        let shards = [sealing_of(2), sealing_of(3)];
        for hour in 0..20 {
            let time = START.plus(GENERATION_LENGTH * hour);
            let threads: Vec<_> = (0..8)
                .map(|thread| {
                    let shard = Arc::clone(&shards[thread % 2]);
                    std::thread::spawn(move || *shard.current(time).expect("made").1.expose())
                })
                .collect();
            let kept = sealing(&path, 4);
            let used: Vec<_> = threads
                .into_iter()
                .map(|one| one.join().expect("made"))
                .collect();
            let (_, kept) = kept.current(time).expect("there");
            assert!(
                used.iter().all(|secret| secret == kept.expose()),
                "hour {hour}"
            );
        }
    }

    #[test]
    fn k16_a_changed_secret_is_an_error() {
        let dir = tempfile::tempdir().expect("a directory");
        let path = dir.path().join("secret");
        let one = sealing(&path, 2);
        let (generation, _) = one.current(START).expect("made");
        let file = path.join(file_name(generation));
        let bytes = files::read(&file).expect("the file");
        for at in 0..bytes.len() {
            let mut changed = bytes.clone();
            changed[at] ^= 1;
            files::replace_durable(&file, &changed, 0o600).expect("written");
            assert!(matches!(
                sealing(&path, 3).get(generation),
                Err(Error::Wrong(_))
            ));
        }
        files::replace_durable(&file, b"short", 0o600).expect("written");
        assert!(matches!(
            sealing(&path, 3).get(generation),
            Err(Error::Unreadable(..))
        ));
    }

    #[test]
    fn the_next_generation_is_made_ahead() {
        let dir = tempfile::tempdir().expect("a directory");
        let path = dir.path().join("secret");
        sealing(&path, 2).tend(START).expect("tended");
        let next = generation_at(START) + 1;
        sealing(&path, 3).get(next).expect("there");
    }
}
