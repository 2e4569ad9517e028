//! Reading one segment, verified, through a bounded window.

use std::io;
use std::ops::Range;

use ostraca_io::{Disk, DiskFile, FileName};
use ostraca_types::Sequence;

use crate::Error;
use crate::Fault;
use crate::error::Action;
use crate::frame::{
    BATCH_ALIGNMENT, BATCH_HEADER_SIZE, BATCH_MAGIC, BATCH_SIZE_MAX, BatchClass, BatchHeader,
    BatchView, padded,
};
use crate::place::{Identity, Place, is_zero};
use crate::segment::{BATCHES_START, HeaderCopy, Headers, SEGMENT_HEADER_SIZE, SegmentId};

/// Bytes read at once. Any batch fits, wherever it starts in the window before.
const WINDOW_SIZE: usize = 2 * BATCH_SIZE_MAX;

/// An open segment.
pub(crate) struct Reader<F> {
    file: F,
    name: FileName,
    place: Place,
    size: u64,
    /// Of [`WINDOW_SIZE`], once something was read.
    window: Vec<u8>,
    /// The part of the file that it holds.
    window_range: Range<u64>,
}

/// What lies behind the place where a scan stopped.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub(crate) struct Beyond {
    /// The first valid batch.
    pub(crate) batch: Option<u64>,
    /// The first byte that is not zero and that one torn batch does not reach.
    pub(crate) out_of_reach: Option<u64>,
    /// Bytes that are not zero.
    pub(crate) bytes_not_zero: u64,
}

impl<F: DiskFile> Reader<F> {
    pub(crate) fn open<D>(disk: &D, identity: &Identity, id: SegmentId) -> Result<Self, Error>
    where
        D: Disk<File = F>,
    {
        let name = id.file_name();
        let file = disk.open_read_only(&name).map_err(Action::Open.of(&name))?;
        let size = file.size().map_err(Action::Read.of(&name))?;
        let place = Place::new(identity, id);
        Ok(Self {
            file,
            name,
            place,
            size,
            window: Vec::new(),
            window_range: 0..0,
        })
    }

    /// Like [`Self::open`]; `None` if there is no such file.
    pub(crate) fn open_if_there<D>(
        disk: &D,
        identity: &Identity,
        id: SegmentId,
    ) -> Result<Option<Self>, Error>
    where
        D: Disk<File = F>,
    {
        match Self::open(disk, identity, id) {
            Err(Error::Io { source, .. }) if source.kind() == io::ErrorKind::NotFound => Ok(None),
            other => other.map(Some),
        }
    }

    /// Takes the file as one of `end` bytes: what is behind may be given back while we read.
    pub(crate) fn up_to(mut self, end: u64) -> Self {
        self.size = self.size.min(end);
        self
    }

    /// Reads through the window of a reader that is done.
    pub(crate) fn with_window(mut self, window: Vec<u8>) -> Self {
        self.window = window;
        self
    }

    pub(crate) fn into_window(self) -> Vec<u8> {
        self.window
    }

    pub(crate) fn name(&self) -> &FileName {
        &self.name
    }

    pub(crate) fn size(&self) -> u64 {
        self.size
    }

    pub(crate) fn headers(&self, identity: &Identity) -> Result<Headers, Error> {
        let mut copies = [HeaderCopy::Invalid; 2];
        for (position, copy) in copies.iter_mut().enumerate() {
            let offset = (position * SEGMENT_HEADER_SIZE) as u64;
            if offset + SEGMENT_HEADER_SIZE as u64 > self.size {
                continue;
            }
            let mut bytes = [0; SEGMENT_HEADER_SIZE];
            self.file
                .read_exact_at(&mut bytes, offset)
                .map_err(Action::Read.of(&self.name))?;
            *copy = HeaderCopy::decode(&bytes, identity, self.place.segment(), offset);
        }
        Ok(Headers::of(copies))
    }

    /// The bytes at `offset`; `None` if the file ends before.
    fn bytes(&mut self, offset: u64, size: usize) -> Result<Option<&[u8]>, Error> {
        if offset
            .checked_add(size as u64)
            .is_none_or(|end| end > self.size)
        {
            return Ok(None);
        }
        let end = offset + size as u64;
        if offset < self.window_range.start || end > self.window_range.end {
            self.fill_window(offset)?;
        }
        let from = usize::try_from(offset - self.window_range.start).unwrap_or(usize::MAX);
        Ok(from
            .checked_add(size)
            .and_then(|to| self.window.get(from..to)))
    }

    /// Lets the next read ask the disk again.
    pub(crate) fn forget(&mut self) {
        self.window_range = 0..0;
    }

    fn fill_window(&mut self, offset: u64) -> Result<(), Error> {
        if self.window.is_empty() {
            self.window = vec![0; WINDOW_SIZE];
        }
        self.window_range = 0..0;
        let size = (self.size - offset).min(WINDOW_SIZE as u64);
        let window = &mut self.window[..usize::try_from(size).unwrap_or(WINDOW_SIZE)];
        self.file
            .read_exact_at(window, offset)
            .map_err(Action::Read.of(&self.name))?;
        self.window_range = offset..offset + size;
        Ok(())
    }

    /// The batch at `offset`, which must end at `end` or before. All of it is verified; whether it
    /// is the next in order is for the caller to see.
    pub(crate) fn batch(
        &mut self,
        offset: u64,
        end: u64,
    ) -> Result<Result<BatchView<'_>, Fault>, Error> {
        let room = end.min(self.size).saturating_sub(offset);
        if room < BATCH_HEADER_SIZE as u64 {
            return Ok(Err(Fault::Size));
        }
        let place = self.place.clone();
        let Some(bytes) = self.bytes(offset, BATCH_HEADER_SIZE)? else {
            return Ok(Err(Fault::Size));
        };
        let Some(header) = bytes.first_chunk() else {
            return Ok(Err(Fault::Size));
        };
        let header = match BatchHeader::decode(header, &place, offset, room) {
            Ok(header) => header,
            Err(fault) => return Ok(Err(fault)),
        };
        match self.bytes(offset, padded(header.size))? {
            Some(bytes) => Ok(BatchView::check(bytes, header, &place, offset)),
            None => Ok(Err(Fault::Size)),
        }
    }

    /// Whether the segment holds a batch that makes it count, wherever.
    pub(crate) fn counts(&mut self) -> Result<bool, Error> {
        let mut offset = BATCHES_START;
        while let Some(found) = self.next_batch(offset)? {
            let Ok(batch) = self.batch(found, self.size)? else {
                break;
            };
            if batch.header.class != BatchClass::Reappended {
                return Ok(true);
            }
            offset = found + batch.padded_size();
        }
        Ok(false)
    }

    /// Where the first valid batch at or after `offset` starts.
    fn next_batch(&mut self, mut offset: u64) -> Result<Option<u64>, Error> {
        while let Some(bytes) = self.bytes(offset, BATCH_MAGIC.len())? {
            if *bytes == BATCH_MAGIC && self.batch(offset, self.size)?.is_ok() {
                return Ok(Some(offset));
            }
            offset += BATCH_ALIGNMENT as u64;
        }
        Ok(None)
    }

    /// The last record of any valid batch; 0 if there is none.
    pub(crate) fn last_valid(&mut self) -> Result<Sequence, Error> {
        let mut last = Sequence(0);
        let mut offset = BATCHES_START;
        while let Some(found) = self.next_batch(offset)? {
            let Ok(batch) = self.batch(found, self.size)? else {
                break;
            };
            last = last.max(Sequence(batch.sequence_end().0 - 1));
            offset = found + batch.padded_size();
        }
        Ok(last)
    }

    /// Whether any byte from `offset` on is not zero.
    pub(crate) fn has_bytes_from(&mut self, offset: u64) -> Result<bool, Error> {
        let beyond = self.beyond(offset)?;
        Ok(beyond.batch.is_some() || beyond.bytes_not_zero > 0)
    }

    /// Whether all is zero from `offset` to the next place where a batch could start.
    pub(crate) fn is_blank(&mut self, offset: u64) -> Result<bool, Error> {
        let rest = usize::try_from(self.size.saturating_sub(offset)).unwrap_or(usize::MAX);
        let bytes = self.bytes(offset, rest.min(BATCH_ALIGNMENT))?;
        Ok(bytes.is_none_or(is_zero))
    }

    /// Looks at everything from `end`, where a scan stopped, to the end of the file or the first
    /// valid batch.
    pub(crate) fn beyond(&mut self, end: u64) -> Result<Beyond, Error> {
        let mut beyond = Beyond::default();
        let reach = end.saturating_add(BATCH_SIZE_MAX as u64);
        let mut offset = end;
        while offset < self.size {
            let rest = usize::try_from(self.size - offset).unwrap_or(usize::MAX);
            let size = rest.min(BATCH_ALIGNMENT);
            if let Some(bytes) = self.bytes(offset, size)?
                && !is_zero(bytes)
            {
                let not_zero = bytes.iter().filter(|&&byte| byte != 0).count() as u64;
                let may_be_batch = bytes.starts_with(&BATCH_MAGIC);
                if may_be_batch && self.batch(offset, self.size)?.is_ok() {
                    beyond.batch = Some(offset);
                    break;
                }
                beyond.bytes_not_zero += not_zero;
                if offset >= reach && beyond.out_of_reach.is_none() {
                    beyond.out_of_reach = Some(offset);
                }
            }
            offset += size as u64;
        }
        Ok(beyond)
    }
}
