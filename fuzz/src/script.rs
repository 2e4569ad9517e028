//! Files, described: a list of steps which make segments whose checksums are right, so that what is
//! wrong in them is met by what is behind the checksums.
//!
//! Without a twist the steps make a valid log. A fuzzer changes a step, or the order of them.

use std::ops::Range;

use ostraca_io::{Disk, DiskFile, FileName, SimDisk};
use ostraca_types::{Sequence, ShardId};
use ostraca_wal::{
    BATCH_HEADER_SIZE, BATCHES_START, RECORD_HEADER_SIZE, SEGMENT_HEADER_SIZE, SEGMENT_SIZE_MIN,
    SegmentId,
};

use crate::format::{
    BATCH_FIELDS, End, Place, RECORD_FIELDS, Right, SEGMENT_FIELDS, SEGMENT_MAGIC, chain_start,
    get, padded, put, seal_batch, segment,
};
use crate::input::{Input, Output};
use crate::sample::{IDENTITY, OWNER, make_page};

/// Files that a script may make.
const FILES_MAX: usize = 6;
/// Steps that are taken.
const STEPS_MAX: usize = 64;
/// Bytes of all batches.
const BATCH_BYTES_MAX: usize = 3 << 20;
const FILE_SIZE_MAX: u64 = SEGMENT_SIZE_MIN + (1 << 20);
const SECTOR: u64 = 512;

/// One field of a header gets another value before its checksum is made.
#[derive(Debug, Clone, Copy, Default)]
pub struct Twist {
    /// Its position in the table, from 1; 0 and those beyond the table: none.
    pub field: u8,
    /// The value.
    pub value: u64,
}

impl Twist {
    fn read(input: &mut Input<'_>) -> Self {
        let field = input.u8();
        let value = if field == 0 { 0 } else { input.u64() };
        Self { field, value }
    }

    fn write(self, output: &mut Output) {
        output.u8(self.field);
        if self.field != 0 {
            output.u64(self.value);
        }
    }

    fn apply(self, header: &mut [u8], fields: &[Range<usize>]) {
        if let Some(field) = usize::from(self.field)
            .checked_sub(1)
            .and_then(|position| fields.get(position))
        {
            put(header, field, self.value);
        }
    }
}

/// A step of a script.
#[derive(Debug, Clone)]
pub enum Step {
    /// A segment of the smallest size, or another one.
    Segment {
        /// 240 and more: the highest that there are.
        epoch: u8,
        /// Of the segment.
        number: u8,
        /// Who makes it.
        owner: u8,
        /// Goes on from the end that is so many back, from 1; 0: from none.
        from: u8,
        /// 1, 2: without that copy; 4: only the second is twisted; 8: a temporary file; 16: a
        /// ballast; 32: nothing in it; 64: a file of half the size.
        shape: u8,
        /// Of the header.
        twist: Twist,
    },
    /// The next batch.
    Batch {
        /// Its flags.
        flags: u8,
        /// How many.
        records: u8,
        /// Of each payload.
        payload_size: u16,
        /// Of the records, if they are written again.
        epoch: u8,
        /// Of the batch header.
        twist: Twist,
        /// Of a record's header.
        record_twist: Twist,
        /// Of which.
        twisted: u8,
    },
    /// Bytes as they are, at the next place of a batch.
    Raw(Vec<u8>),
    /// Goes on in another sector.
    Seek(u16),
    /// What comes next is as if this were the state: 0: sequence; 1: chain; 2: the end that is so
    /// many back.
    State(u8, u64),
    /// Cuts the file off, or makes it longer.
    Resize(u32),
    /// Changes a byte.
    Flip(u32, u8),
    /// Fills so many bytes from an offset with a byte.
    Fill(u32, u16, u8),
    /// Copies a sector over another.
    Copy(u16, u16),
    /// A word of the epoch page.
    Page(u8, u64),
    /// Removes a file.
    Remove(u8),
}

impl Step {
    fn read(input: &mut Input<'_>) -> Self {
        match input.u8() % 16 {
            0 | 1 => Self::Segment {
                epoch: input.u8(),
                number: input.u8(),
                owner: input.u8(),
                from: input.u8(),
                shape: input.u8(),
                twist: Twist::read(input),
            },
            2..=6 => Self::Batch {
                flags: input.u8(),
                records: input.u8(),
                payload_size: input.u16(),
                epoch: input.u8(),
                twist: Twist::read(input),
                record_twist: Twist::read(input),
                twisted: input.u8(),
            },
            7 => {
                let size = usize::from(input.u16() % 2048);
                Self::Raw(input.take(size).to_vec())
            }
            8 => Self::Seek(input.u16()),
            9 => Self::State(input.u8(), input.u64()),
            10 => Self::Resize(input.u32()),
            11 => Self::Flip(input.u32(), input.u8()),
            12 => Self::Fill(input.u32(), input.u16(), input.u8()),
            13 => Self::Copy(input.u16(), input.u16()),
            14 => Self::Page(input.u8(), input.u64()),
            _ => Self::Remove(input.u8()),
        }
    }

    /// As [`run`] reads it.
    pub fn write(&self, output: &mut Output) {
        match self {
            Self::Segment {
                epoch,
                number,
                owner,
                from,
                shape,
                twist,
            } => {
                output.bytes(&[0, *epoch, *number, *owner, *from, *shape]);
                twist.write(output);
            }
            Self::Batch {
                flags,
                records,
                payload_size,
                epoch,
                twist,
                record_twist,
                twisted,
            } => {
                output.bytes(&[2, *flags, *records]).u16(*payload_size);
                output.u8(*epoch);
                twist.write(output);
                record_twist.write(output);
                output.u8(*twisted);
            }
            Self::Raw(bytes) => {
                let size = u16::try_from(bytes.len()).expect("small");
                output.u8(7).u16(size).bytes(bytes);
            }
            Self::Seek(sector) => drop(output.u8(8).u16(*sector)),
            Self::State(what, value) => drop(output.bytes(&[9, *what]).u64(*value)),
            Self::Resize(size) => drop(output.u8(10).u32(*size)),
            Self::Flip(offset, bits) => drop(output.u8(11).u32(*offset).u8(*bits)),
            Self::Fill(offset, size, byte) => {
                output.u8(12).u32(*offset).u16(*size).u8(*byte);
            }
            Self::Copy(from, to) => drop(output.u8(13).u16(*from).u16(*to)),
            Self::Page(word, value) => drop(output.bytes(&[14, *word]).u64(*value)),
            Self::Remove(which) => drop(output.bytes(&[15, *which])),
        }
    }
}

/// Takes the steps, on an empty disk with a new epoch page.
#[must_use]
pub fn run(input: &mut Input<'_>) -> SimDisk {
    let disk = SimDisk::new(1);
    make_page(&disk);
    let mut maker = Maker::new(disk);
    for _ in 0..STEPS_MAX {
        if input.is_empty() {
            break;
        }
        maker.take(&Step::read(input));
    }
    maker.disk
}

struct Maker {
    disk: SimDisk,
    files: Vec<FileName>,
    /// Ends of batches, newest last.
    ends: Vec<End>,
    /// Where the next batch goes.
    at: End,
    current: Option<FileName>,
    batch_bytes: usize,
}

impl Maker {
    fn new(disk: SimDisk) -> Self {
        Self {
            disk,
            files: Vec::new(),
            ends: Vec::new(),
            at: start_of(segment(1, 0), OWNER.0[0]),
            current: None,
            batch_bytes: 0,
        }
    }

    fn take(&mut self, step: &Step) {
        match step {
            Step::Segment {
                epoch,
                number,
                owner,
                from,
                shape,
                twist,
            } => {
                let epoch = match epoch {
                    255 => u64::MAX,
                    240.. => u64::from(u32::MAX) - u64::from(255 - epoch),
                    _ => u64::from(*epoch),
                };
                let before = self.end(*from);
                self.at = start_of(segment(epoch, (*number).into()), *owner);
                if self.create(*shape) && shape & 32 == 0 {
                    self.segment_header(before, *shape, *twist);
                }
                if let Some(before) = before {
                    self.at.sequence = before.sequence;
                    self.at.chain = before.chain;
                }
            }
            Step::Batch {
                flags,
                records,
                payload_size,
                epoch,
                twist,
                record_twist,
                twisted,
            } => {
                let (count, size) = (usize::from(*records), usize::from(*payload_size));
                let bytes = self.batch(*flags, count, size, *epoch);
                let Some(mut bytes) = bytes else { return };
                let place = self.place(self.at.offset);
                twist.apply(&mut bytes, &BATCH_FIELDS);
                place.seal(&mut bytes[..BATCH_HEADER_SIZE], &BATCH_FIELDS[1]);
                if count > 0 {
                    let at = BATCH_HEADER_SIZE
                        + usize::from(*twisted) % count * (RECORD_HEADER_SIZE + size);
                    let header = &mut bytes[at..at + RECORD_HEADER_SIZE];
                    record_twist.apply(header, &RECORD_FIELDS);
                    if record_twist.field > 2 {
                        place.at(at).seal(header, &RECORD_FIELDS[0]);
                    }
                }
                self.put(self.at.offset, &bytes);
                self.at.offset += padded(bytes.len()) as u64;
                self.ends.push(self.at);
            }
            Step::Raw(bytes) => {
                self.put(self.at.offset, bytes);
                self.at.offset += padded(bytes.len()) as u64;
            }
            Step::Seek(sector) => self.at.offset = u64::from(*sector) * SECTOR,
            Step::State(0, value) => self.at.sequence = Sequence(*value),
            Step::State(1, value) => {
                self.at.chain = u32::try_from(value & u64::from(u32::MAX)).unwrap_or(0);
            }
            Step::State(_, back) => {
                if let Some(end) = self.end(u8::try_from(back & 0xff).unwrap_or(0)) {
                    self.at.sequence = end.sequence;
                    self.at.chain = end.chain;
                }
            }
            Step::Resize(size) => self.resize(u64::from(*size) % FILE_SIZE_MAX),
            Step::Flip(offset, bits) => self.change(*offset, 1, |bytes| bytes[0] ^= bits),
            Step::Fill(offset, size, byte) => {
                self.change(*offset, (*size).into(), |bytes| bytes.fill(*byte));
            }
            Step::Copy(from, to) => {
                let mut sector = Vec::new();
                let offset = |sector: u16| u32::from(sector) * 512;
                self.change(offset(*from), 512, |bytes| sector = bytes.to_vec());
                self.change(offset(*to), sector.len(), |bytes| {
                    let size = bytes.len();
                    bytes.copy_from_slice(&sector[..size]);
                });
            }
            Step::Page(word, value) => self.disk.damage_page(usize::from(*word), *value),
            Step::Remove(which) => {
                if let Some(name) = self.files.get(usize::from(*which)) {
                    drop(self.disk.remove(name));
                    self.current.take_if(|current| current == name);
                }
            }
        }
    }

    /// The end that is so many back.
    fn end(&self, back: u8) -> Option<End> {
        let back = usize::from(back).checked_sub(1)?;
        self.ends.iter().rev().nth(back).copied()
    }

    fn place(&self, offset: u64) -> Place {
        Place {
            identity: IDENTITY,
            segment: self.at.segment,
            offset,
        }
    }

    fn create(&mut self, shape: u8) -> bool {
        let name = self.at.segment.file_name();
        let name = match shape {
            _ if shape & 8 != 0 => renamed(&name, "tmp"),
            _ if shape & 16 != 0 => renamed(&name, "bal"),
            _ => name,
        };
        self.current = None;
        if self.files.len() == FILES_MAX {
            return false;
        }
        if self.disk.create(&name).is_ok() {
            self.files.push(name.clone());
        }
        self.current = Some(name);
        let half = shape & 64 != 0;
        self.resize(SEGMENT_SIZE_MIN / if half { 2 } else { 1 });
        true
    }

    fn segment_header(&mut self, before: Option<End>, shape: u8, twist: Twist) {
        let mut fields = segment_header(self.at.segment, self.at.owner, before);
        for copy in 0..2 {
            let offset = copy * SEGMENT_HEADER_SIZE;
            if copy == 1 || shape & 4 == 0 {
                twist.apply(&mut fields, &SEGMENT_FIELDS);
            }
            // Under what the header says of itself, as a foreign or a misplaced one is.
            let mut stated = self.place(offset as u64);
            let [_, _, _, shard, store, epoch, number, ..] = &SEGMENT_FIELDS;
            stated.identity.shard = ShardId(low(get(&fields, shard)));
            stated
                .identity
                .store
                .0
                .copy_from_slice(&fields[store.clone()]);
            stated.segment = segment(get(&fields, epoch), low(get(&fields, number)));
            stated.seal(&mut fields, &SEGMENT_FIELDS[1]);
            if shape & (1 << copy) == 0 {
                self.put(offset as u64, &fields);
            }
        }
    }

    fn batch(&mut self, flags: u8, count: usize, size: usize, epoch: u8) -> Option<Vec<u8>> {
        let bytes_size = BATCH_HEADER_SIZE + count * (RECORD_HEADER_SIZE + size);
        self.batch_bytes += bytes_size;
        if self.batch_bytes > BATCH_BYTES_MAX {
            return None;
        }
        let mut bytes = vec![0; bytes_size];
        let [_, _, _, _, _, first, _, chain, flag, _] = &BATCH_FIELDS;
        put(&mut bytes, first, self.at.sequence.0.wrapping_add(1));
        put(&mut bytes, chain, self.at.chain.into());
        put(&mut bytes, flag, flags.into());
        for record in bytes[BATCH_HEADER_SIZE..].chunks_exact_mut(RECORD_HEADER_SIZE + size) {
            put(record, &RECORD_FIELDS[2], size as u64);
            put(record, &RECORD_FIELDS[5], epoch.into());
            put(record, &RECORD_FIELDS[7], 7);
            record[RECORD_HEADER_SIZE..].fill(epoch | 1);
        }
        let right = Right(u8::MAX - Right::KINDS.0);
        let place = self.place(self.at.offset);
        self.at.chain = seal_batch(&mut bytes, &place, right);
        self.at.sequence.0 = self.at.sequence.0.wrapping_add(count as u64);
        Some(bytes)
    }

    /// Writes what of the bytes falls on the file.
    fn put(&self, offset: u64, bytes: &[u8]) {
        let offset = u32::try_from(offset).unwrap_or(u32::MAX);
        self.change(offset, bytes.len(), |place| {
            let size = place.len();
            place.copy_from_slice(&bytes[..size]);
        });
    }

    /// Changes what of a range is in the file.
    fn change(&self, offset: u32, size: usize, change: impl FnOnce(&mut [u8])) {
        let Some(name) = &self.current else { return };
        let Ok(file) = self.disk.open(name) else {
            return;
        };
        let offset = u64::from(offset);
        let rest = file.size().expect("power").saturating_sub(offset);
        let size = size.min(usize::try_from(rest).unwrap_or(0));
        if size == 0 {
            return;
        }
        let mut bytes = vec![0; size];
        file.read_exact_at(&mut bytes, offset).expect("in the file");
        change(&mut bytes);
        self.disk.overwrite(name, offset, &bytes);
    }

    fn resize(&self, size: u64) {
        if let Some(file) = self
            .current
            .as_ref()
            .and_then(|name| self.disk.open(name).ok())
        {
            file.set_size(size).expect("no capacity is set");
            file.sync_all().expect("power");
        }
    }
}

fn start_of(segment: SegmentId, owner: u8) -> End {
    End {
        segment,
        owner,
        offset: BATCHES_START,
        sequence: Sequence(0),
        chain: chain_start(&IDENTITY),
    }
}

/// A field's number, which fits.
fn low<T: TryFrom<u64, Error: std::fmt::Debug>>(value: u64) -> T {
    T::try_from(value).expect("read from a field of that size")
}

fn renamed(name: &FileName, prefix: &str) -> FileName {
    FileName::new(&name.as_str().replace("seg", prefix)).expect("as good as before")
}

/// A segment header without its checksum.
fn segment_header(segment: SegmentId, owner: u8, before: Option<End>) -> Vec<u8> {
    let mut bytes = vec![0; SEGMENT_HEADER_SIZE];
    let fields = &SEGMENT_FIELDS;
    bytes[fields[0].clone()].copy_from_slice(&SEGMENT_MAGIC);
    put(&mut bytes, &fields[2], ostraca_wal::FORMAT_VERSION.into());
    put(&mut bytes, &fields[3], IDENTITY.shard.0.into());
    bytes[fields[4].clone()].copy_from_slice(&IDENTITY.store.0);
    put(&mut bytes, &fields[5], segment.epoch.0);
    put(&mut bytes, &fields[6], segment.number.into());
    bytes[fields[8].clone()].fill(owner);
    put(&mut bytes, &fields[9], SEGMENT_SIZE_MIN);
    let sequence = before.map_or(0, |end| end.sequence.0);
    put(&mut bytes, &fields[10], sequence.wrapping_add(1));
    put(&mut bytes, &fields[15], chain_start(&IDENTITY).into());
    if let Some(end) = before {
        put(&mut bytes, &fields[7], end.segment.number.into());
        put(&mut bytes, &fields[11], end.segment.epoch.0);
        bytes[fields[12].clone()].fill(end.owner);
        put(&mut bytes, &fields[13], end.offset);
        put(&mut bytes, &fields[14], end.sequence.0);
        put(&mut bytes, &fields[15], end.chain.into());
    }
    bytes
}
