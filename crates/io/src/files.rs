//! Small whole files outside the log, and the lock on a directory.

use std::fs::{DirBuilder, File, OpenOptions};
use std::io::{self, Read as _, Write as _};
use std::os::unix::fs::{DirBuilderExt as _, FileExt as _, OpenOptionsExt as _};
use std::path::Path;
use std::sync::atomic::{AtomicU64, Ordering};

/// No small file is larger; a larger one is not ours, and is not read into memory.
const FILE_SIZE_MAX: u64 = 1 << 20;

/// Reads a small file whole. `NotFound` means that there is none; `InvalidData` that it is over
/// 1 MiB.
pub fn read(path: &Path) -> io::Result<Vec<u8>> {
    let file = File::open(path)?;
    let mut bytes = Vec::new();
    file.take(FILE_SIZE_MAX + 1).read_to_end(&mut bytes)?;
    if bytes.len() as u64 > FILE_SIZE_MAX {
        return Err(io::ErrorKind::InvalidData.into());
    }
    Ok(bytes)
}

/// Like [`read`], as text.
pub fn read_text(path: &Path) -> io::Result<String> {
    String::from_utf8(read(path)?).map_err(|_| io::ErrorKind::InvalidData.into())
}

/// Writes a file whole under a name that is not taken; `AlreadyExists` if it is. On return bytes
/// and name survive a power cut; before, there is no file of that name. `mode` is the permission
/// bits.
pub fn create_durable(path: &Path, bytes: &[u8], mode: u32) -> io::Result<()> {
    let (dir, temporary) = write_temporary(path, bytes, mode)?;
    let flags = rustix::fs::RenameFlags::NOREPLACE;
    let cwd = rustix::fs::CWD;
    if let Err(errno) = rustix::fs::renameat_with(cwd, &temporary, cwd, path, flags) {
        std::fs::remove_file(&temporary)?;
        return Err(errno.into());
    }
    dir.sync_all()
}

/// Writes a file whole in place of what was there. A reader, or a crash, meets the old file or
/// the new one, never a mixture. On return the new one survives a power cut.
pub fn replace_durable(path: &Path, bytes: &[u8], mode: u32) -> io::Result<()> {
    let (dir, temporary) = write_temporary(path, bytes, mode)?;
    std::fs::rename(&temporary, path)?;
    dir.sync_all()
}

fn write_temporary(path: &Path, bytes: &[u8], mode: u32) -> io::Result<(File, std::path::PathBuf)> {
    let (Some(parent), Some(name)) = (path.parent(), path.file_name()) else {
        return Err(io::ErrorKind::InvalidInput.into());
    };
    let dir = File::open(parent)?;
    let mut temporary = std::ffi::OsString::from(".");
    temporary.push(name);
    // Another for each call: two threads that write one file must not write into one another's.
    static CALLS: AtomicU64 = AtomicU64::new(0);
    let call = CALLS.fetch_add(1, Ordering::Relaxed);
    temporary.push(format!(".{}.{call}.tmp", std::process::id()));
    let temporary = parent.join(temporary);
    let mut file = OpenOptions::new()
        .write(true)
        .create(true)
        .truncate(true)
        .mode(mode)
        .open(&temporary)?;
    file.write_all(bytes)?;
    // Before the rename: else the name could survive a power cut and the bytes not.
    file.sync_all()?;
    Ok((dir, temporary))
}

/// Writes over the beginning of a file, which is made if there is none. Costs no sync, and need not
/// survive a power cut; a reader can meet a part of it, so it is for bytes of one length that say
/// whether they are whole.
pub fn overwrite(path: &Path, bytes: &[u8]) -> io::Result<()> {
    let mut file = OpenOptions::new();
    let file = file.write(true).create(true).truncate(false).mode(0o644);
    file.open(path)?.write_all_at(bytes, 0)
}

/// Gives a file another name in the same directory, which must not be taken. On return that
/// survives a power cut; a crash before leaves one of the two names.
pub fn rename_durable(from: &Path, to: &Path) -> io::Result<()> {
    let flags = rustix::fs::RenameFlags::NOREPLACE;
    let cwd = rustix::fs::CWD;
    rustix::fs::renameat_with(cwd, from, cwd, to, flags)?;
    let parent = to.parent().ok_or(io::ErrorKind::InvalidInput)?;
    File::open(parent)?.sync_all()
}

/// Removes a file. That need not survive a power cut. `NotFound` if there is none.
pub fn remove(path: &Path) -> io::Result<()> {
    std::fs::remove_file(path)
}

/// Overwrites a file with zeros and removes it. On return both survive a power cut.
pub fn destroy(path: &Path) -> io::Result<()> {
    let mut file = OpenOptions::new().write(true).open(path)?;
    let size = file.metadata()?.len().min(FILE_SIZE_MAX);
    file.write_all(&vec![0; usize::try_from(size).unwrap_or_default()])?;
    file.sync_all()?;
    std::fs::remove_file(path)?;
    let parent = path.parent().ok_or(io::ErrorKind::InvalidInput)?;
    File::open(parent)?.sync_all()
}

/// Makes a directory, and its parents, unless it is there. On return the new names survive a
/// power cut. `mode` is the permission bits of what is made.
pub fn create_dir_durable(path: &Path, mode: u32) -> io::Result<()> {
    if path.is_dir() {
        return Ok(());
    }
    let parent = match path.parent() {
        Some(parent) if !parent.as_os_str().is_empty() => parent,
        _ => Path::new("."),
    };
    create_dir_durable(parent, 0o755)?;
    match DirBuilder::new().mode(mode).create(path) {
        Err(err) if err.kind() == io::ErrorKind::AlreadyExists && path.is_dir() => {}
        other => other?,
    }
    File::open(parent)?.sync_all()
}

/// The names in a directory, in ascending order; names that are not UTF-8 are left out.
pub fn list(path: &Path) -> io::Result<Vec<String>> {
    let mut names = Vec::new();
    for entry in std::fs::read_dir(path)? {
        if let Ok(name) = entry?.file_name().into_string() {
            names.push(name);
        }
    }
    names.sort();
    Ok(names)
}

/// Tells one version of a file that is replaced whole from another.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct FileVersion {
    inode: u64,
    modified: (i64, i64),
}

/// Which version of a file is there.
pub fn version(path: &Path) -> io::Result<FileVersion> {
    use std::os::unix::fs::MetadataExt as _;
    let meta = std::fs::metadata(path)?;
    Ok(FileVersion {
        inode: meta.ino(),
        modified: (meta.mtime(), meta.mtime_nsec()),
    })
}

/// A file, whatever becomes of its path. While this lives, no other file is given its number.
#[derive(Debug)]
pub struct Pinned {
    number: (u64, u64),
    _file: File,
}

impl Pinned {
    /// The file at `path`. `NotFound` if there is none.
    pub fn open(path: &Path) -> io::Result<Self> {
        let file = File::open(path)?;
        let number = number(&file.metadata()?);
        let pinned = Self {
            number,
            _file: file,
        };
        Ok(pinned)
    }

    /// Whether it is the one at `path`. `NotFound` if there is none. One call to the system.
    pub fn is_at(&self, path: &Path) -> io::Result<bool> {
        Ok(number(&std::fs::metadata(path)?) == self.number)
    }
}

/// What tells a file from all others that are there.
fn number(meta: &std::fs::Metadata) -> (u64, u64) {
    use std::os::unix::fs::MetadataExt as _;
    (meta.dev(), meta.ino())
}

/// Permission bits of a file or directory.
pub fn mode(path: &Path) -> io::Result<u32> {
    use std::os::unix::fs::PermissionsExt as _;
    Ok(std::fs::metadata(path)?.permissions().mode() & 0o7777)
}

/// Why [`Lock::acquire`] did not get the lock.
#[derive(Debug)]
pub enum LockError {
    /// Another process holds it; its pid, where the file tells.
    Held(Option<u32>),
    /// The file cannot be opened or locked.
    Io(io::Error),
}

/// What a process holds a shard's lock for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum LockRole {
    /// It leads, and shows that it goes on. A file that says nothing about it is a leader's.
    Leader,
    /// A command that must be alone with the shard, and is done some time.
    Tool,
}

impl LockRole {
    const fn word(self) -> &'static str {
        match self {
            Self::Leader => "leader",
            Self::Tool => "tool",
        }
    }
}

/// Who holds a lock, by its own word.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct LockHolder {
    /// Where the file tells. A holder that has not written it yet is a holder all the same.
    pub pid: Option<u32>,
    /// What for.
    pub role: LockRole,
}

impl LockHolder {
    fn parse(text: &str) -> Self {
        let mut words = text.lines().next().unwrap_or_default().split(' ');
        let pid = words.next().and_then(|pid| pid.parse().ok());
        let role = match words.next() {
            None => LockRole::Leader,
            Some(word) if word == LockRole::Leader.word() => LockRole::Leader,
            // A word of a later version is no leader's, who is killed when it is silent.
            Some(_) => LockRole::Tool,
        };
        Self { pid, role }
    }
}

/// An exclusive lock on a file that names its holder. It ends with the value, and with the
/// process however that ends. Advisory: it keeps out whoever asks for it.
#[derive(Debug)]
pub struct Lock {
    _file: File,
}

impl Lock {
    /// Takes the lock at `path`, making the file if there is none, and writes this process's pid
    /// into it. Does not wait.
    pub fn acquire(path: &Path) -> Result<Self, LockError> {
        match Self::take(path, &format!("{}\n", std::process::id())) {
            Ok(taken) => taken.map_err(|holder| LockError::Held(holder.pid)),
            Err(err) => Err(LockError::Io(err)),
        }
    }

    /// The same, and writes what for beside it. Or who holds it.
    pub fn acquire_as(role: LockRole, path: &Path) -> io::Result<Result<Self, LockHolder>> {
        Self::take(path, &format!("{} {}\n", std::process::id(), role.word()))
    }

    fn take(path: &Path, holder: &str) -> io::Result<Result<Self, LockHolder>> {
        let mut file = OpenOptions::new()
            .read(true)
            .write(true)
            .create(true)
            .truncate(false)
            .open(path)?;
        match rustix::fs::flock(&file, rustix::fs::FlockOperation::NonBlockingLockExclusive) {
            Ok(()) => {}
            Err(rustix::io::Errno::WOULDBLOCK) => {
                let mut text = String::new();
                let said = file.read_to_string(&mut text).map(|_| text.as_str());
                return Ok(Err(LockHolder::parse(said.unwrap_or_default())));
            }
            Err(errno) => return Err(errno.into()),
        }
        // In this order: whoever looks in between must not take a tool for a leader without a name.
        file.write_all_at(holder.as_bytes(), 0)?;
        file.set_len(holder.len() as u64)?;
        Ok(Ok(Self { _file: file }))
    }
}

/// The name of the file system that holds `path`, for those on which durability or locks do not
/// mean what the log needs (design: network file systems are refused, tmpfs gets a warning).
pub fn unsuitable_filesystem(path: &Path) -> io::Result<Option<Unsuitable>> {
    // The kernel's magic numbers, from linux/magic.h and the file systems' own headers.
    let kind = rustix::fs::statfs(path)?.f_type;
    let kind = u64::try_from(kind).unwrap_or_default() & 0xffff_ffff;
    Ok(Some(match kind {
        0x6969 => Unsuitable::Network("nfs"),
        0xff53_4d42 => Unsuitable::Network("cifs"),
        0xfe53_4d42 => Unsuitable::Network("smb2"),
        0x517b => Unsuitable::Network("smb"),
        0x0102_1997 => Unsuitable::Network("9p"),
        0x00c3_6400 => Unsuitable::Network("ceph"),
        0x6573_5546 => Unsuitable::Network("fuse"),
        0x0102_1994 => Unsuitable::Memory("tmpfs"),
        _ => return Ok(None),
    }))
}

/// A file system that a shard directory should not be on.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Unsuitable {
    /// Another machine may write there too, and a lock may not hold. Refused.
    Network(&'static str),
    /// Gone with the power. Good for a try.
    Memory(&'static str),
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_pinned_file_is_told_from_one_in_its_place() {
        let dir = tempfile::tempdir().expect("a directory");
        let (path, aside) = (dir.path().join("one"), dir.path().join("aside"));
        create_durable(&path, b"first", 0o600).expect("a new name");
        let pinned = Pinned::open(&path).expect("it is there");
        assert!(pinned.is_at(&path).expect("it is there"));
        rename_durable(&path, &aside).expect("a free name");
        let gone = pinned.is_at(&path).expect_err("nothing is there");
        assert_eq!(gone.kind(), io::ErrorKind::NotFound);
        assert!(pinned.is_at(&aside).expect("it is there"));
        remove(&aside).expect("removed");
        create_durable(&path, b"first", 0o600).expect("a new name");
        assert!(
            !pinned.is_at(&path).expect("it is there"),
            "its number was given anew"
        );
    }

    #[test]
    fn a_created_file_is_never_replaced() {
        let dir = tempfile::tempdir().expect("a directory");
        let path = dir.path().join("once");
        create_durable(&path, b"first", 0o600).expect("a new name");
        let again = create_durable(&path, b"second", 0o600).expect_err("the name is taken");
        assert_eq!(again.kind(), io::ErrorKind::AlreadyExists);
        assert_eq!(read(&path).expect("the file"), b"first");
        assert_eq!(mode(&path).expect("the file"), 0o600);
        replace_durable(&path, b"third", 0o600).expect("a replacement");
        assert_eq!(read(&path).expect("the file"), b"third");
        assert_eq!(
            list(dir.path()).expect("the directory"),
            ["once"],
            "no temporary file is left"
        );
    }

    #[test]
    fn a_held_lock_says_what_for() {
        let dir = tempfile::tempdir().expect("a directory");
        let path = dir.path().join("lock");
        let pid = Some(std::process::id());
        for role in [LockRole::Tool, LockRole::Leader] {
            let lock = Lock::acquire_as(role, &path).expect("no trouble");
            let lock = lock.expect("free");
            let again = Lock::acquire_as(LockRole::Leader, &path).expect("no trouble");
            assert_eq!(again.expect_err("held"), LockHolder { pid, role });
            drop(lock);
        }
        // A longer word was there.
        let _lock = Lock::acquire_as(LockRole::Tool, &path).expect("no trouble");
        let text = read_text(&path).expect("the file");
        assert_eq!(text, format!("{} tool\n", std::process::id()));
    }

    #[test]
    fn a_lock_of_another_version_is_read() {
        let holder = |text, pid, role| {
            assert_eq!(
                LockHolder::parse(text),
                LockHolder { pid, role },
                "{text:?}"
            );
        };
        holder("", None, LockRole::Leader);
        holder("17\n", Some(17), LockRole::Leader);
        holder("17 leader\n", Some(17), LockRole::Leader);
        holder("17 tool\n23 leader\n", Some(17), LockRole::Tool);
        holder("17 mover\n", Some(17), LockRole::Tool);
    }

    #[test]
    fn a_held_lock_names_its_holder() {
        let dir = tempfile::tempdir().expect("a directory");
        let path = dir.path().join("lock");
        let lock = Lock::acquire(&path).expect("free");
        match Lock::acquire(&path) {
            Err(LockError::Held(pid)) => assert_eq!(pid, Some(std::process::id())),
            other => panic!("{other:?}"),
        }
        drop(lock);
        Lock::acquire(&path).expect("free again");
    }
}
