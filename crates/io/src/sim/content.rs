//! Bytes that are cheap to copy: copies share their chunks until one of them writes.

use std::sync::Arc;

const CHUNK_SIZE: usize = 4096;

type Chunk = [u8; CHUNK_SIZE];

static ZEROS: Chunk = [0; CHUNK_SIZE];

/// The bytes of a file.
#[derive(Debug, Clone, Default)]
pub(super) struct Content {
    /// `None` is a chunk of zeros; so is all of the last chunk that is beyond the size.
    chunks: Arc<Vec<Option<Arc<Chunk>>>>,
    size: usize,
}

impl Content {
    pub(super) fn size(&self) -> usize {
        self.size
    }

    /// Fills `buf` from `start`. Panics if the bytes end before.
    pub(super) fn read(&self, buf: &mut [u8], start: usize) {
        assert!(start + buf.len() <= self.size, "a read beyond the end");
        let (mut at, mut rest) = (start, buf);
        while !rest.is_empty() {
            let within = at % CHUNK_SIZE;
            let (now, later) = rest.split_at_mut(rest.len().min(CHUNK_SIZE - within));
            let chunk = self.chunks[at / CHUNK_SIZE].as_deref().unwrap_or(&ZEROS);
            now.copy_from_slice(&chunk[within..within + now.len()]);
            at += now.len();
            rest = later;
        }
    }

    /// What there is of `size` bytes from `start`.
    pub(super) fn bytes(&self, start: usize, size: usize) -> Vec<u8> {
        let mut bytes = vec![0; self.size.saturating_sub(start).min(size)];
        self.read(&mut bytes, start.min(self.size));
        bytes
    }

    /// Writes all of `bytes`, with zeros before them if the file ends before `start`.
    pub(super) fn write(&mut self, start: usize, bytes: &[u8]) {
        if start + bytes.len() > self.size {
            self.set_size(start + bytes.len());
        }
        let chunks = Arc::make_mut(&mut self.chunks);
        let (mut at, mut rest) = (start, bytes);
        while !rest.is_empty() {
            let within = at % CHUNK_SIZE;
            let (now, later) = rest.split_at(rest.len().min(CHUNK_SIZE - within));
            let chunk = &mut chunks[at / CHUNK_SIZE];
            let zeros = now == &ZEROS[..now.len()];
            if zeros && now.len() == CHUNK_SIZE {
                *chunk = None;
            } else if !zeros || chunk.is_some() {
                let chunk = Arc::make_mut(chunk.get_or_insert_with(|| Arc::new(ZEROS)));
                chunk[within..within + now.len()].copy_from_slice(now);
            }
            at += now.len();
            rest = later;
        }
    }

    /// Writes those of `bytes` that fall on what there is.
    pub(super) fn write_within(&mut self, start: usize, bytes: &[u8]) {
        let room = self.size.saturating_sub(start).min(bytes.len());
        if room > 0 {
            self.write(start, &bytes[..room]);
        }
    }

    /// Cuts off, or extends with zeros.
    pub(super) fn set_size(&mut self, size: usize) {
        let count = size.div_ceil(CHUNK_SIZE);
        if count != self.chunks.len() {
            Arc::make_mut(&mut self.chunks).resize(count, None);
        }
        let within = size % CHUNK_SIZE;
        if size < self.size && within > 0 {
            let last = &mut Arc::make_mut(&mut self.chunks)[count - 1];
            if let Some(chunk) = last {
                Arc::make_mut(chunk)[within..].fill(0);
            }
        }
        self.size = size;
    }

    /// Whether these are the same bytes; quick for copies of one another.
    pub(super) fn same(&self, other: &Self) -> bool {
        let same_chunk =
            |(ours, theirs): (&Option<Arc<Chunk>>, &Option<Arc<Chunk>>)| match (ours, theirs) {
                (Some(ours), Some(theirs)) => Arc::ptr_eq(ours, theirs) || ours == theirs,
                (None, None) => true,
                (Some(chunk), None) | (None, Some(chunk)) => **chunk == ZEROS,
            };
        self.size == other.size
            && (Arc::ptr_eq(&self.chunks, &other.chunks)
                || self.chunks.iter().zip(&*other.chunks).all(same_chunk))
    }
}

impl From<&[u8]> for Content {
    fn from(bytes: &[u8]) -> Self {
        let mut content = Self::default();
        content.write(0, bytes);
        content
    }
}
