//! Copies of what a cut gives up, before it does.

use std::io;
use std::path::Path;

use ostraca_io::{Disk, DiskFile, FileName, RealDisk, files};

/// Bytes that are read at once.
const CHUNK_SIZE: usize = 1 << 20;

/// Why there are no copies. What was copied is removed again.
#[derive(Debug)]
pub(super) enum CopyError {
    /// The file cannot be read from there on.
    Read(FileName, u64, io::Error),
    /// There is no room for all of them.
    Full,
    /// The copies cannot be written.
    Write(io::Error),
}

impl CopyError {
    fn write(err: io::Error) -> Self {
        match err.kind() {
            io::ErrorKind::StorageFull | io::ErrorKind::QuotaExceeded => Self::Full,
            _ => Self::Write(err),
        }
    }
}

/// Copies `names` whole into a new directory at `to`, for nobody else's eyes. On return they survive
/// a power cut; after an error nothing is left of them.
pub(super) fn set_aside(from: &RealDisk, to: &Path, names: &[FileName]) -> Result<(), CopyError> {
    if to.exists() {
        // Another cut's: never added to.
        return Err(CopyError::Write(io::ErrorKind::AlreadyExists.into()));
    }
    files::create_dir_durable(to, 0o700).map_err(CopyError::write)?;
    let made = RealDisk::open(to)
        .map_err(CopyError::write)
        .and_then(|disk| copy_all(from, &disk, names, |name| close(&to.join(name.as_str()))));
    if made.is_err() {
        // Empty again, unless the disk refuses even that; the error says that nothing was cut.
        let _ = std::fs::remove_dir(to);
    }
    made
}

/// Nobody else reads what was in a log.
fn close(path: &Path) -> io::Result<()> {
    use std::os::unix::fs::PermissionsExt as _;
    std::fs::set_permissions(path, std::fs::Permissions::from_mode(0o600))
}

fn copy_all<F: Disk, T: Disk>(
    from: &F,
    to: &T,
    names: &[FileName],
    close: impl Fn(&FileName) -> io::Result<()>,
) -> Result<(), CopyError> {
    let mut made = Vec::new();
    let copied = names.iter().try_for_each(|name| {
        // Exclusively: a name that is taken is no copy of ours.
        let file = to.create(name).map_err(CopyError::write)?;
        made.push(name);
        close(name).map_err(CopyError::write)?;
        copy(from, name, &file)
    });
    let durable = copied.and_then(|()| to.sync_dir().map_err(CopyError::write));
    if durable.is_err() {
        for name in made {
            // Half a copy takes room that the next try needs, and helps nobody.
            let _ = to.remove(name);
        }
    }
    durable
}

fn copy<F: Disk>(from: &F, name: &FileName, to: &impl DiskFile) -> Result<(), CopyError> {
    let unreadable = |offset| move |err| CopyError::Read(name.clone(), offset, err);
    let file = from.open_read_only(name).map_err(unreadable(0))?;
    let size = file.size().map_err(unreadable(0))?;
    let mut chunk = vec![0; CHUNK_SIZE];
    let mut offset = 0;
    while offset < size {
        let rest = usize::try_from(size - offset).unwrap_or(CHUNK_SIZE);
        let part = &mut chunk[..rest.min(CHUNK_SIZE)];
        file.read_exact_at(part, offset)
            .map_err(unreadable(offset))?;
        to.write_all_at(part, offset).map_err(CopyError::write)?;
        offset += part.len() as u64;
    }
    to.sync_all().map_err(CopyError::write)
}

#[cfg(test)]
mod tests {
    use super::*;
    use ostraca_io::SimDisk;

    fn name(text: &str) -> FileName {
        FileName::new(text).expect("a name")
    }

    /// A disk with two files, one of which is not a whole number of chunks.
    fn source() -> (SimDisk, [FileName; 2]) {
        let disk = SimDisk::new(1);
        let names = [name("seg-a.log"), name("seg-b.log")];
        for (name, size) in names.iter().zip([CHUNK_SIZE + 7, 2 * CHUNK_SIZE]) {
            let file = disk.create(name).expect("a new file");
            let bytes = ostraca_tests::bytes(3, size);
            file.write_all_at(&bytes, 0).expect("power");
        }
        (disk, names)
    }

    #[test]
    fn copies_are_whole_and_durable() {
        let (from, names) = source();
        let to = SimDisk::new(2);
        copy_all(&from, &to, &names, |_| Ok(())).expect("room");
        to.power_cut(ostraca_io::Unsynced::Lost);
        let to = to.restarted();
        for name in &names {
            assert_eq!(from.contents(name), to.contents(name));
        }
    }

    #[test]
    fn where_there_is_no_room_nothing_is_left() {
        let (from, names) = source();
        for capacity in [0, 1, CHUNK_SIZE as u64 + 7, 3 * CHUNK_SIZE as u64] {
            let to = SimDisk::new(2);
            to.set_capacity(capacity);
            let refused = copy_all(&from, &to, &names, |_| Ok(()));
            assert!(matches!(refused, Err(CopyError::Full)), "{capacity}");
            assert_eq!(to.list().expect("power"), []);
        }
    }

    #[test]
    fn a_name_that_is_taken_is_left_alone() {
        let (from, names) = source();
        let to = SimDisk::new(2);
        let other = to.create(&names[1]).expect("a new file");
        other.write_all_at(b"other", 0).expect("power");
        let refused = copy_all(&from, &to, &names, |_| Ok(()));
        assert!(matches!(refused, Err(CopyError::Write(_))), "{refused:?}");
        assert_eq!(to.list().expect("power"), [names[1].clone()]);
        assert_eq!(to.contents(&names[1]).as_deref(), Some(&b"other"[..]));
    }

    #[test]
    fn what_cannot_be_read_is_named() {
        let (from, names) = source();
        let to = SimDisk::new(2);
        let missing = [names[0].clone(), name("seg-c.log")];
        match copy_all(&from, &to, &missing, |_| Ok(())) {
            Err(CopyError::Read(file, 0, _)) => assert_eq!(file, missing[1]),
            other => panic!("{other:?}"),
        }
        assert_eq!(to.list().expect("power"), []);
    }
}
