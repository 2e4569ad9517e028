//! The directory under a local store: what `object_store` leaves to be done for durability.
//!
//! `object_store` 0.14.2 with `with_fsync(true)` writes a body to `NAME#1`, syncs that file, links
//! it to its name, and syncs the directory that holds the name: body and name are durable on
//! return. A directory that is not there it makes, and syncs its parents too, but only in the call
//! that made it: a second PUT into the same new directory returns without that sync, and so does
//! the first one after a process was killed between the making and the sync. Then a power cut can
//! take the directory, and the acknowledged body in it. So all 256 directories are made and synced
//! here, before the first PUT; the library never makes one. Its deletes are not synced at all: that
//! is done here too, because a worker records a delete as done once it returned.

use std::io;
use std::path::{Path, PathBuf};

use ostraca_io::files;
use ostraca_types::{PasteId, Slot, Timestamp};

/// All object keys begin with it.
pub(crate) const PREFIX: &str = "p";
/// Bodies are for who has their link, not for every user of the machine.
const DIRECTORY_MODE: u32 = 0o700;

/// Makes the directories of the slots in a store. On return their names survive a power cut,
/// whether they were made now or by an earlier process that was killed before it synced them.
pub(crate) fn prepare(root: &Path) -> io::Result<()> {
    let prefix = root.join(PREFIX);
    for slot in Slot::all() {
        make(&prefix.join(directory_of(slot)))?;
    }
    sync(&prefix)?;
    sync(root)?;
    match root.canonicalize()?.parent() {
        Some(parent) => sync(parent),
        None => Ok(()),
    }
}

/// The two characters of a slot, as they stand in object keys.
fn directory_of(slot: Slot) -> String {
    let id = PasteId::mint(slot, |random| random.fill(0));
    id.as_str().chars().take(2).collect()
}

fn make(path: &Path) -> io::Result<()> {
    use std::os::unix::fs::DirBuilderExt as _;
    match std::fs::DirBuilder::new().mode(DIRECTORY_MODE).create(path) {
        Err(err) if err.kind() == io::ErrorKind::AlreadyExists && path.is_dir() => Ok(()),
        other => other,
    }
}

/// Makes earlier creates and unlinks in a directory survive a power cut.
#[expect(
    clippy::disallowed_methods,
    reason = "a directory is opened to be synced, never read"
)]
pub(crate) fn sync(directory: &Path) -> io::Result<()> {
    std::fs::File::open(directory)?.sync_all()
}

/// Whether `root` holds a store.
pub(crate) fn is_store(root: &Path) -> bool {
    root.join(PREFIX).is_dir()
}

/// An error if the directory that holds an object is not there.
pub(crate) fn check(directory: &Path) -> io::Result<()> {
    match directory.is_dir() {
        true => Ok(()),
        false => Err(io::Error::other("the directory of the object is not there")),
    }
}

/// The directory that holds the object of `key`.
pub(crate) fn holder(root: &Path, key: &str) -> PathBuf {
    let mut path = root.join(key);
    path.pop();
    path
}

/// Removes files that a process left which was killed while it wrote a body (`NAME#1` and so on),
/// if they were last written before `before`. The library lists none of them, and a paste's end
/// deletes none.
pub(crate) fn remove_leftovers(root: &Path, before: Timestamp) -> io::Result<usize> {
    let mut removed = 0;
    for directory in files::list(&root.join(PREFIX))? {
        let directory = root.join(PREFIX).join(directory);
        if !directory.is_dir() {
            continue;
        }
        for name in files::list(&directory)? {
            let path = directory.join(&name);
            if is_leftover(&name) && written_at(&path)?.is_some_and(|at| at < before) {
                removed += usize::from(remove(&path)?);
            }
        }
    }
    Ok(removed)
}

/// As the library names what it writes before it links it: the name, `#`, a number.
fn is_leftover(name: &str) -> bool {
    name.split_once('#').is_some_and(|(_, number)| {
        !number.is_empty() && number.bytes().all(|byte| byte.is_ascii_digit())
    })
}

fn written_at(path: &Path) -> io::Result<Option<Timestamp>> {
    let modified = match std::fs::symlink_metadata(path) {
        Ok(metadata) => metadata.modified()?,
        Err(err) if err.kind() == io::ErrorKind::NotFound => return Ok(None),
        Err(err) => return Err(err),
    };
    // A time before 1970 is no time at which this program wrote.
    let since = modified
        .duration_since(std::time::UNIX_EPOCH)
        .unwrap_or_default();
    Ok(Some(Timestamp(0).plus(since)))
}

#[expect(
    clippy::disallowed_methods,
    reason = "the object store is no shard's Disk"
)]
fn remove(path: &Path) -> io::Result<bool> {
    match std::fs::remove_file(path) {
        Ok(()) => Ok(true),
        Err(err) if err.kind() == io::ErrorKind::NotFound => Ok(false),
        Err(err) => Err(err),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_object_key_has_its_directory_before_the_first_put() {
        let dir = tempfile::tempdir().expect("a directory");
        let root = dir.path().join("bodies");
        files::create_dir_durable(&root.join(PREFIX), DIRECTORY_MODE).expect("made");
        prepare(&root).expect("new");
        prepare(&root).expect("again");
        for slot in Slot::all() {
            let id = PasteId::mint(slot, |random| random.fill(7));
            assert!(holder(&root, &id.object_key()).is_dir(), "slot {slot}");
        }
        assert_eq!(files::list(&root.join(PREFIX)).expect("listed").len(), 256);
        let one = root.join(PREFIX).join("00");
        assert_eq!(files::mode(&one).expect("made"), DIRECTORY_MODE);
    }

    #[test]
    fn leftovers_are_told_from_objects() {
        for name in ["00abcdefghijkl#1", "00abcdefghijkl#12"] {
            assert!(is_leftover(name), "{name}");
        }
        for name in ["00abcdefghijkl", "00abcdefghijkl#", "00abcdefghijkl#x1"] {
            assert!(!is_leftover(name), "{name}");
        }
    }
}
