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
    stops: Stops,
}

impl ScriptedDisk {
    fn file(&self, file: RealFile) -> ScriptedFile {
        ScriptedFile {
            file,
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
        self.disk.remove(name)
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
        if offset + buf.len() as u64 > self.file.size()? && self.stops.says("full") {
            return Err(io::ErrorKind::StorageFull.into());
        }
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

    fn set_size(&self, size: u64) -> io::Result<()> {
        self.stops.reach("disk.before-trim");
        self.file.set_size(size)
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
        let value = self.page.load(word);
        if let Some(name) = SYNCED.take() {
            self.stops.reach(&format!("log.after-check {name}"));
        }
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
    /// Whether the script's file `disk` has this line.
    fn says(&self, line: &str) -> bool {
        self.disk_script().lines().any(|said| said.trim() == line)
    }

    /// The same, once: the line is taken out.
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

    fn disk_script(&self) -> String {
        let Some(path) = self.file("disk") else {
            return String::new();
        };
        match files::read_text(&path) {
            Ok(text) => text,
            Err(err) if err.kind() == io::ErrorKind::NotFound => String::new(),
            Err(err) => panic!("{}: {err}", path.display()),
        }
    }
}
