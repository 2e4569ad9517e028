//! The disk and the page of a shard in a faults build: its stop points, and what it refuses
//! (docs/faults.md).

use std::cell::RefCell;
use std::io;
use std::path::Path;
use std::sync::Arc;

use ostraca_engine::kind_name;
use ostraca_io::{Disk, DiskFile, FileName, Page, RealDisk, RealFile, RealStorage, Storage, files};

use super::stops::Stops;

/// The word of the epoch page at which processes look (`FORMAT.md` of the log).
const CELL: usize = 8;
/// Where a batch has the number of its records, and its first record's kind.
const RECORD_COUNT: std::ops::Range<usize> = 12..16;
const FIRST_KIND: usize = 64 + 40;

thread_local! {
    /// What this thread synced last, until it has looked at the cell.
    static SYNCED: RefCell<Option<String>> = const { RefCell::new(None) };
}

/// The machine's file system, as the script bends it.
#[derive(Debug, Clone)]
pub(crate) struct ScriptedStorage(Stops);

impl ScriptedStorage {
    pub(crate) fn from_env() -> Self {
        Self(Stops::from_env())
    }
}

impl Storage for ScriptedStorage {
    type Disk = ScriptedDisk;

    fn disk(&self, path: &Path) -> io::Result<ScriptedDisk> {
        Ok(ScriptedDisk {
            disk: RealDisk::open(path)?,
            dir: path.into(),
            stops: self.0.clone(),
        })
    }

    fn page(&self, path: &Path) -> io::Result<Arc<dyn Page>> {
        Ok(Arc::new(ScriptedPage {
            page: RealStorage.page(path)?,
            stops: self.0.clone(),
        }))
    }
}

#[derive(Debug, Clone)]
pub(crate) struct ScriptedDisk {
    disk: RealDisk,
    dir: Arc<Path>,
    stops: Stops,
}

impl ScriptedDisk {
    fn file(&self, file: RealFile) -> ScriptedFile {
        ScriptedFile {
            file,
            dir: Arc::clone(&self.dir),
            stops: self.stops.clone(),
        }
    }
}

impl Disk for ScriptedDisk {
    type File = ScriptedFile;

    fn create(&self, name: &FileName) -> io::Result<ScriptedFile> {
        Ok(self.file(self.disk.create(name)?))
    }

    fn open(&self, name: &FileName) -> io::Result<ScriptedFile> {
        Ok(self.file(self.disk.open(name)?))
    }

    fn open_read_only(&self, name: &FileName) -> io::Result<ScriptedFile> {
        Ok(self.file(self.disk.open_read_only(name)?))
    }

    fn rename_exclusive(&self, from: &FileName, to: &FileName) -> io::Result<()> {
        self.stops.reach("disk.before-rename");
        self.disk.rename_exclusive(from, to)
    }

    fn remove(&self, name: &FileName) -> io::Result<()> {
        self.stops.reach("disk.before-remove");
        let size = self.disk.open_read_only(name).and_then(|file| file.size());
        self.disk.remove(name)?;
        self.stops.give_back(&self.dir, size.unwrap_or_default());
        Ok(())
    }

    fn list(&self) -> io::Result<Vec<FileName>> {
        let names = self.disk.list();
        self.stops.reach("disk.after-list");
        names
    }

    fn sync_dir(&self) -> io::Result<()> {
        self.disk.sync_dir()
    }
}

#[derive(Debug)]
pub(crate) struct ScriptedFile {
    file: RealFile,
    dir: Arc<Path>,
    stops: Stops,
}

thread_local! {
    /// What this thread wrote last.
    static WRITTEN: RefCell<String> = const { RefCell::new(String::new()) };
}

/// What a write to the log is: `header`, `mark`, or the kind of a batch's first record.
fn name_of(bytes: &[u8]) -> String {
    if bytes.starts_with(b"ostraSEG") {
        return "header".to_owned();
    }
    if !bytes.starts_with(b"oBAT") {
        return "other".to_owned();
    }
    if bytes.get(RECORD_COUNT) == Some(&[0; 4]) {
        return "mark".to_owned();
    }
    let kind = bytes.get(FIRST_KIND).and_then(|&kind| kind_name(kind));
    kind.unwrap_or("no-op").to_owned()
}

impl DiskFile for ScriptedFile {
    fn size(&self) -> io::Result<u64> {
        self.file.size()
    }

    fn read_exact_at(&self, buf: &mut [u8], offset: u64) -> io::Result<()> {
        self.file.read_exact_at(buf, offset)
    }

    fn write_all_at(&self, buf: &[u8], offset: u64) -> io::Result<()> {
        let grows = (offset + buf.len() as u64).saturating_sub(self.file.size()?);
        self.stops.take_room(&self.dir, grows)?;
        let name = name_of(buf);
        self.stops.reach(&format!("log.before-write {name}"));
        WRITTEN.with_borrow_mut(|written| written.clone_from(&name));
        self.file.write_all_at(buf, offset)
    }

    fn sync_data(&self) -> io::Result<()> {
        let name = WRITTEN.take();
        self.stops.reach(&format!("log.before-sync {name}"));
        if self.stops.takes(&format!("fail-sync {name}")) {
            return Err(io::Error::other("the script fails this sync"));
        }
        self.file.sync_data()?;
        SYNCED.set(Some(name.clone()));
        self.stops.reach(&format!("log.after-sync {name}"));
        Ok(())
    }

    fn sync_all(&self) -> io::Result<()> {
        self.file.sync_all()
    }

    fn expect_sectors(&self) {
        self.file.expect_sectors();
    }

    fn set_size(&self, size: u64) -> io::Result<()> {
        self.stops.reach("disk.before-trim");
        let before = self.file.size()?;
        self.file.set_size(size)?;
        self.stops.give_back(&self.dir, before.saturating_sub(size));
        Ok(())
    }
}

#[derive(Debug)]
struct ScriptedPage {
    page: Arc<dyn Page>,
    stops: Stops,
}

impl ScriptedPage {
    /// Whether this thread answers calls: the log's own threads have names.
    fn is_reader() -> bool {
        let name = std::thread::current();
        let name = name.name().unwrap_or_default();
        !name.starts_with("shard-") && name != "opening"
    }
}

impl Page for ScriptedPage {
    fn load(&self, word: usize) -> u64 {
        if word != CELL {
            return self.page.load(word);
        }
        if Self::is_reader() {
            self.stops.reach("read.before-check");
            let value = self.page.load(word);
            self.stops.reach("read.after-check");
            return value;
        }
        let Some(name) = SYNCED.take() else {
            self.stops.reach("page.before-look");
            return self.page.load(word);
        };
        let value = self.page.load(word);
        self.stops.reach(&format!("log.after-check {name}"));
        value
    }

    fn store(&self, word: usize, value: u64) {
        self.page.store(word, value);
    }

    fn compare_exchange(&self, word: usize, current: u64, new: u64) -> Result<u64, u64> {
        self.stops.reach("page.before-raise");
        let raised = self.page.compare_exchange(word, current, new);
        self.stops.reach("page.after-raise");
        raised
    }

    fn flush(&self) -> io::Result<()> {
        self.page.flush()
    }
}

impl Stops {
    /// Whether the script's file `disk` has this line. It is taken out, so it asks once.
    fn takes(&self, line: &str) -> bool {
        let script = self.disk_script();
        let mut lines: Vec<&str> = script.lines().map(str::trim).collect();
        let Some(at) = lines.iter().position(|said| *said == line) else {
            return false;
        };
        lines.remove(at);
        let path = self.file("disk").expect("a script was read");
        let text = lines.join("\n");
        files::replace_durable(&path, text.as_bytes(), 0o644)
            .unwrap_or_else(|err| panic!("{}: {err}", path.display()));
        true
    }

    /// Panics on a script that says nothing valid, as for the clock.
    pub(super) fn disk_script(&self) -> String {
        let Some(path) = self.file("disk") else {
            return String::new();
        };
        let text = match files::read_text(&path) {
            Ok(text) => text,
            Err(err) if err.kind() == io::ErrorKind::NotFound => String::new(),
            Err(err) => panic!("{}: {err}", path.display()),
        };
        let wrong = text.lines().find(|line| !is_disk_line(line));
        assert_eq!(wrong, None, "{}: not understood", path.display());
        text
    }
}

fn is_disk_line(line: &str) -> bool {
    match line.split_once(' ') {
        Some(("fail-sync", kind)) => !kind.is_empty(),
        Some(("room", room)) => Stops::room_and_whose(room).is_some(),
        _ => line.is_empty(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn script(dir: &Path, text: &str) -> Stops {
        files::replace_durable(&dir.join("disk"), text.as_bytes(), 0o644).expect("written");
        Stops::at(dir)
    }

    fn disk(dir: &Path, stops: &Stops) -> ScriptedDisk {
        let log = dir.join("log");
        files::create_dir_durable(&log, 0o755).expect("a directory");
        let disk = RealDisk::open(&log).expect("a directory");
        let (dir, stops) = (log.into(), stops.clone());
        ScriptedDisk { disk, dir, stops }
    }

    #[test]
    fn a_write_is_named_by_what_it_holds() {
        let mut batch = [0; FIRST_KIND + 1];
        batch[..4].copy_from_slice(b"oBAT");
        assert_eq!(name_of(&batch), "mark");
        batch[RECORD_COUNT.start] = 2;
        assert_eq!(name_of(&batch), "no-op");
        for kind in 1..=u8::MAX {
            batch[FIRST_KIND] = kind;
            assert_eq!(name_of(&batch), kind_name(kind).unwrap_or("no-op"));
        }
        assert_eq!(name_of(b"ostraSEG"), "header");
        assert_eq!(name_of(&[0; 4096]), "other");
        assert_eq!(name_of(b"oBAT"), "no-op", "too short to say more");
    }

    #[test]
    fn a_sync_fails_once() {
        let dir = tempfile::tempdir().expect("a directory");
        let stops = script(dir.path(), "fail-sync header\nroom 9000\n");
        let disk = disk(dir.path(), &stops);
        let name = FileName::new("a").expect("a name");
        let file = disk.create(&name).expect("a file");
        let write = |bytes: &[u8]| file.write_all_at(bytes, 0).expect("room");
        write(b"other");
        file.sync_data().expect("it is not asked to fail");
        write(b"ostraSEG");
        file.sync_data().expect_err("it is");
        write(b"ostraSEG");
        file.sync_data().expect("once");
        assert_eq!(stops.disk_script(), "room 9000");
    }

    #[test]
    fn only_what_grows_a_file_needs_room() {
        let dir = tempfile::tempdir().expect("a directory");
        let stops = script(dir.path(), "room 10");
        let disk = disk(dir.path(), &stops);
        let name = FileName::new("a").expect("a name");
        let file = disk.create(&name).expect("a file");
        file.write_all_at(&[1; 10], 0).expect("room");
        file.write_all_at(&[2; 10], 0).expect("it does not grow");
        file.write_all_at(&[3; 10], 1).expect_err("by one byte");
        file.set_size(4).expect("shorter");
        file.write_all_at(&[4; 6], 4).expect("room again");
        disk.remove(&name).expect("it is there");
        let file = disk.create(&name).expect("a file");
        file.write_all_at(&[5; 11], 0).expect_err("as before");
        file.write_all_at(&[5; 10], 0).expect("room again");
    }

    #[test]
    #[should_panic(expected = "not understood")]
    fn a_wrong_line_is_not_passed_over() {
        let dir = tempfile::tempdir().expect("a directory");
        let _ = script(dir.path(), "fail-sync create\nfull\n").takes("fail-sync end");
    }
}
