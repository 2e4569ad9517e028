//! A simulated disk and page whose every call is a wait.

use std::io;
use std::sync::Arc;

use ostraca_io::{Disk, DiskFile, FileName, Page, SimDisk, SimFile, SimPage};

use crate::kernel::{Kernel, MICRO, MILLI, Nanos, Process, SECOND};

/// How the device behaves now.
#[derive(Debug, Clone, Copy, Default)]
pub(crate) struct Mood {
    /// Every how many thousand syncs is slow.
    pub(crate) slow_syncs: u64,
    /// How slow the slow ones are at most.
    pub(crate) slow_max: Nanos,
}

/// Of one process.
#[derive(Debug, Clone)]
pub(crate) struct Device {
    pub(crate) kernel: Kernel,
    pub(crate) process: Arc<Process>,
    pub(crate) mood: Arc<parking_lot::Mutex<Mood>>,
}

/// What a call costs.
#[derive(Debug, Clone, Copy)]
enum Cost {
    Look,
    Read,
    Change,
    Sync,
}

impl Device {
    /// Waits as long as the device takes. `false`: the process was killed meanwhile.
    fn waits(&self, cost: Cost) -> bool {
        let chance = &self.kernel.chance;
        let ambushed = self.process.is_ambushed();
        let takes = match cost {
            // Most looks take no time; at some the process loses the processor.
            Cost::Look | Cost::Read if !chance.hits(if ambushed { 300 } else { 60 }) => 0,
            Cost::Look | Cost::Read => chance.within(MICRO, 300 * MICRO),
            Cost::Change => chance.within(5 * MICRO, 60 * MICRO),
            Cost::Sync => {
                let mood = *self.mood.lock();
                if chance.hits(mood.slow_syncs) {
                    chance.within(20 * MILLI, mood.slow_max.max(SECOND))
                } else {
                    chance.within(100 * MICRO, 900 * MICRO)
                }
            }
        };
        if takes > 0 {
            self.kernel.spring(&self.process, takes);
            self.kernel.wait(takes);
        }
        !self.process.is_dead()
    }

    fn call(&self, cost: Cost) -> io::Result<()> {
        if self.waits(cost) {
            Ok(())
        } else {
            Err(killed())
        }
    }
}

fn killed() -> io::Error {
    io::Error::other("the process was killed")
}

/// A disk as one process sees it.
#[derive(Debug, Clone)]
pub(crate) struct StepDisk {
    pub(crate) device: Device,
    pub(crate) disk: SimDisk,
}

impl StepDisk {
    fn file(&self, file: SimFile) -> StepFile {
        StepFile {
            device: self.device.clone(),
            file,
        }
    }
}

impl Disk for StepDisk {
    type File = StepFile;

    fn create(&self, name: &FileName) -> io::Result<StepFile> {
        self.device.call(Cost::Change)?;
        self.disk.create(name).map(|file| self.file(file))
    }

    fn open(&self, name: &FileName) -> io::Result<StepFile> {
        self.device.call(Cost::Read)?;
        self.disk.open(name).map(|file| self.file(file))
    }

    fn open_read_only(&self, name: &FileName) -> io::Result<StepFile> {
        self.device.call(Cost::Read)?;
        self.disk.open_read_only(name).map(|file| self.file(file))
    }

    fn rename_exclusive(&self, from: &FileName, to: &FileName) -> io::Result<()> {
        self.device.call(Cost::Change)?;
        self.disk.rename_exclusive(from, to)
    }

    fn remove(&self, name: &FileName) -> io::Result<()> {
        self.device.call(Cost::Change)?;
        self.disk.remove(name)
    }

    fn list(&self) -> io::Result<Vec<FileName>> {
        self.device.call(Cost::Read)?;
        self.disk.list()
    }

    fn sync_dir(&self) -> io::Result<()> {
        self.device.call(Cost::Sync)?;
        self.disk.sync_dir()
    }
}

#[derive(Debug)]
pub(crate) struct StepFile {
    device: Device,
    file: SimFile,
}

impl DiskFile for StepFile {
    fn size(&self) -> io::Result<u64> {
        self.device.call(Cost::Look)?;
        self.file.size()
    }

    fn read_exact_at(&self, buf: &mut [u8], offset: u64) -> io::Result<()> {
        self.device.call(Cost::Read)?;
        self.file.read_exact_at(buf, offset)
    }

    fn write_all_at(&self, buf: &[u8], offset: u64) -> io::Result<()> {
        if self.device.waits(Cost::Change) {
            return self.file.write_all_at(buf, offset);
        }
        // Killed in the middle of it: some of it was written.
        let part = self.device.kernel.chance.below(buf.len() as u64 + 1);
        let part = usize::try_from(part).unwrap_or(0);
        self.file.write_all_at(&buf[..part], offset)?;
        Err(killed())
    }

    fn sync_data(&self) -> io::Result<()> {
        self.device.call(Cost::Sync)?;
        self.file.sync_data()
    }

    fn sync_all(&self) -> io::Result<()> {
        self.device.call(Cost::Sync)?;
        self.file.sync_all()
    }

    fn set_size(&self, size: u64) -> io::Result<()> {
        self.device.call(Cost::Change)?;
        self.file.set_size(size)
    }
}

/// The epoch page as one process sees it. One that was killed changes nothing, and believes that it
/// does.
#[derive(Debug)]
pub(crate) struct StepPage {
    pub(crate) device: Device,
    pub(crate) page: Arc<SimPage>,
}

impl Page for StepPage {
    fn load(&self, word: usize) -> u64 {
        self.device.waits(Cost::Look);
        self.page.load(word)
    }

    fn store(&self, word: usize, value: u64) {
        if self.device.waits(Cost::Look) {
            self.page.store(word, value);
        }
    }

    fn compare_exchange(&self, word: usize, current: u64, new: u64) -> Result<u64, u64> {
        if self.device.waits(Cost::Change) {
            self.page.compare_exchange(word, current, new)
        } else {
            Ok(current)
        }
    }

    fn flush(&self) -> io::Result<()> {
        self.device.call(Cost::Sync)?;
        self.page.flush()
    }
}
