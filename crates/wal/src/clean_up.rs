//! What a leader tidies after its no-op has passed the fence: away from the log's thread, and of
//! no hurry.
//!
//! Nothing here can harm a history, however late it runs and whoever leads by then: what is
//! removed is no part of any history that passed the fence, and what is cut off lies behind an end
//! that a counting segment recorded.

use std::io;

use ostraca_io::{Disk, DiskFile, FileName};

use crate::error::{Action, Error};
use crate::segment::{SEGMENT_SIZE_MIN, SegmentId, create_filled};

/// The work, as far as it is left. Made by [`crate::Log::take_clean_up`].
#[derive(Debug)]
pub struct CleanUp<D: Disk> {
    pub(crate) disk: D,
    /// Files of lower epochs outside the history.
    pub(crate) leftovers: Vec<FileName>,
    /// Segments, and where their successors say that they end.
    pub(crate) untrimmed: Vec<(SegmentId, u64)>,
    /// The ballast to make, and how large if there is room for so much.
    pub(crate) ballast: Option<(FileName, u64)>,
    pub(crate) removed: usize,
}

impl<D: Disk> CleanUp<D> {
    /// Removes leftovers, gives back what lies behind the ends of older segments, and keeps room
    /// on the disk for the next take-over. Returns how many files were removed since the log was
    /// opened. Blocks.
    ///
    /// After an error the rest is still there to be run again, later: [`Error::Full`] means that
    /// there is no room for the ballast now. The log is not affected by any failure here, and nothing
    /// here needs to survive a power cut.
    pub fn run(&mut self) -> Result<usize, Error> {
        while let Some(name) = self.leftovers.last() {
            self.removed += usize::from(remove(&self.disk, name)?);
            self.leftovers.pop();
        }
        while let Some(&(id, end)) = self.untrimmed.last() {
            self.trim(id, end)?;
            self.untrimmed.pop();
        }
        if let Some((name, size)) = &self.ballast {
            let mut made = create_filled(&self.disk, name, *size).map(drop);
            if matches!(made, Err(Error::Full)) {
                // On a full disk: what the last run did not use of its segment is a little less.
                made = create_filled(&self.disk, name, SEGMENT_SIZE_MIN).map(drop);
            }
            made?;
            self.ballast = None;
        }
        Ok(self.removed)
    }

    fn trim(&self, id: SegmentId, end: u64) -> Result<(), Error> {
        let name = id.file_name();
        match self.disk.open(&name) {
            // A checkpoint covered all of it meanwhile.
            Err(err) if err.kind() == io::ErrorKind::NotFound => Ok(()),
            Err(err) => Err(Action::Open.of(&name)(err)),
            Ok(file) => file.set_size(end).map_err(Action::Trim.of(&name)),
        }
    }
}

/// `false` if it was gone already.
pub(crate) fn remove<D: Disk>(disk: &D, name: &FileName) -> Result<bool, Error> {
    match disk.remove(name) {
        Ok(()) => Ok(true),
        Err(err) if err.kind() == io::ErrorKind::NotFound => Ok(false),
        Err(err) => Err(Action::Remove.of(name)(err)),
    }
}
