//! Writes that do not go through the page cache.

use std::fs::File;
use std::io;
use std::os::unix::fs::FileExt as _;
use std::sync::atomic::{AtomicBool, Ordering};

use parking_lot::Mutex;
use rustix::fs::OFlags;

/// What every device takes as the alignment of memory, of offsets and of sizes, if it takes
/// sectors of 512 bytes at all.
const MEMORY_ALIGNMENT: usize = 4096;
const SECTOR_SIZE: usize = 512;

/// Whether a file's writes go to the device directly, and the memory that they go through: the
/// caller's has no alignment.
#[derive(Debug, Default)]
pub(crate) struct Direct {
    on: AtomicBool,
    buffer: Mutex<Vec<u8>>,
}

impl Direct {
    /// Turns it on where the file system knows it.
    pub(crate) fn turn_on(&self, file: &File) {
        self.on.store(set(file, true).is_ok(), Ordering::Relaxed);
    }

    /// Writes all of `bytes`.
    pub(crate) fn write_all_at(&self, file: &File, bytes: &[u8], offset: u64) -> io::Result<()> {
        if !self.on.load(Ordering::Relaxed) {
            return file.write_all_at(bytes, offset);
        }
        let sectors =
            bytes.len().is_multiple_of(SECTOR_SIZE) && offset.is_multiple_of(SECTOR_SIZE as u64);
        if sectors {
            match self.write_aligned(file, bytes, offset) {
                // The device has larger sectors. All of it is written once more, below.
                Err(err) if err.kind() == io::ErrorKind::InvalidInput => {}
                other => return other,
            }
        }
        set(file, false)?;
        self.on.store(false, Ordering::Relaxed);
        file.write_all_at(bytes, offset)
    }

    fn write_aligned(&self, file: &File, bytes: &[u8], offset: u64) -> io::Result<()> {
        let mut buffer = self.buffer.lock();
        if buffer.len() < bytes.len() + MEMORY_ALIGNMENT {
            *buffer = vec![0; bytes.len() + MEMORY_ALIGNMENT];
        }
        let start = buffer.as_ptr().align_offset(MEMORY_ALIGNMENT);
        let aligned = buffer
            .get_mut(start..start + bytes.len())
            .ok_or(io::ErrorKind::InvalidInput)?;
        aligned.copy_from_slice(bytes);
        file.write_all_at(aligned, offset)
    }
}

fn set(file: &File, direct: bool) -> io::Result<()> {
    let flags = rustix::fs::fcntl_getfl(file)?;
    let flags = if direct {
        flags | OFlags::DIRECT
    } else {
        flags - OFlags::DIRECT
    };
    rustix::fs::fcntl_setfl(file, flags)?;
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Whether the file system of the test takes direct writes or not, the bytes are the same.
    #[test]
    fn bytes_are_the_same_as_through_the_cache() {
        let dir = tempfile::tempdir().expect("a directory");
        let path = dir.path().join("file");
        let file = File::options()
            .read(true)
            .write(true)
            .create_new(true)
            .open(&path)
            .expect("made");
        file.write_all_at(&[0; 16384], 0).expect("room");
        file.sync_all().expect("a working disk");
        let direct = Direct::default();
        direct.turn_on(&file);
        // Unaligned memory, then a size that is none of whole sectors, then sectors again.
        let bytes: Vec<u8> = (0..2049u32).map(|n| n.to_le_bytes()[0]).collect();
        for (size, offset) in [(512, 512), (2048, 4096), (100, 8192), (512, 9216)] {
            direct
                .write_all_at(&file, &bytes[1..=size], offset)
                .expect("room");
            let mut read = vec![0; size];
            std::os::unix::fs::FileExt::read_exact_at(
                &File::open(&path).expect("there"),
                &mut read,
                offset,
            )
            .expect("written");
            assert_eq!(read, bytes[1..=size], "{size} at {offset}");
        }
        file.sync_data().expect("a working disk");
        assert!(
            !direct.on.load(Ordering::Relaxed),
            "a part of a sector ends it"
        );
    }
}
