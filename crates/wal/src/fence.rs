//! The fence: which process may append, answer and remove, by one page that all of them map.
//!
//! The table "Epoch page" of FORMAT.md. The order of the steps is the argument; `docs/fence.md`
//! has it whole, and a model of it is checked in every interleaving.

use std::sync::Arc;
use std::sync::atomic::{Ordering, fence};

use ostraca_io::{Disk, Entropy, FileName, PAGE_SIZE, Page};
use ostraca_types::{Epoch, Sequence, ShardId, StoreId};

use crate::error::{Action, Error};
use crate::place::{Identity, array_at, u16_at, u32_at};
use crate::recovery::{Found, Recovery, Start};
use crate::segment::FORMAT_VERSION;

/// Byte ranges inside the epoch page: one row of FORMAT.md each.
pub(crate) mod page_field {
    use std::ops::Range;
    pub(crate) const MAGIC: Range<usize> = 0..8;
    pub(crate) const CRC: Range<usize> = 8..12;
    pub(crate) const VERSION: Range<usize> = 12..14;
    pub(crate) const SHARD: Range<usize> = 14..16;
    pub(crate) const STORE: Range<usize> = 16..32;
    pub(crate) const EPOCH: Range<usize> = 64..68;
    pub(crate) const EPOCH_COMPLEMENT: Range<usize> = 68..72;
    pub(crate) const DURABLE: Range<usize> = 128..136;
    pub(crate) const DURABLE_COMPLEMENT: Range<usize> = 136..144;
    pub(crate) const BEAT: Range<usize> = 192..196;
    pub(crate) const BEAT_EPOCH: Range<usize> = 196..200;
}
use page_field as field;

/// The name of the epoch page's file, beside the log's directory.
pub const EPOCH_PAGE: &str = "epoch";

const MAGIC: [u8; 8] = *b"ostraEPO";
/// The part that never changes.
const HEADER_SIZE: usize = field::STORE.end;
/// Epoch and complement are one word, so that one compare-exchange changes both.
const CELL: usize = field::EPOCH.start / 8;
const DURABLE: usize = field::DURABLE.start / 8;
const DURABLE_COMPLEMENT: usize = field::DURABLE_COMPLEMENT.start / 8;
/// Beat and epoch are one word as well: a beat always says whose it is.
const HEARTBEAT: usize = field::BEAT.start / 8;
/// The beat of a leader that has closed its log.
const RESIGNED: u32 = u32::MAX;

/// How far a bad cell is repaired beyond the epochs in use: at least this, and up to
/// [`REPAIR_SPREAD`] more. A process that raised the cell and has no file yet is in none of them, and
/// may still wake up: its epoch must not be given again. So many cannot have died or been stopped
/// between their raise and their first file; and the rest is random, because a second repair must
/// not meet the first one's epoch either.
const REPAIR_JUMP: u64 = 1 << 16;
const REPAIR_SPREAD: u64 = 1 << 24;

const _: () = {
    assert!(
        field::EPOCH.start.is_multiple_of(8)
            && field::EPOCH_COMPLEMENT.end == field::EPOCH.start + 8
    );
    assert!(field::DURABLE_COMPLEMENT.end <= PAGE_SIZE);
    assert!(field::BEAT.start.is_multiple_of(8) && field::BEAT_EPOCH.end == field::BEAT.start + 8);
    assert!(HEADER_SIZE.is_multiple_of(8));
};

/// The epoch page of a new shard, as its file is made, once, with the store: epoch 0, nothing
/// durable.
#[must_use]
pub fn new_epoch_page(identity: &Identity) -> [u8; PAGE_SIZE] {
    let mut bytes = [0; PAGE_SIZE];
    bytes[..HEADER_SIZE].copy_from_slice(&header(identity));
    bytes[field::EPOCH.start..field::EPOCH_COMPLEMENT.end].copy_from_slice(&cell(0).to_le_bytes());
    bytes[field::DURABLE_COMPLEMENT].copy_from_slice(&(!0u64).to_le_bytes());
    bytes
}

fn header(identity: &Identity) -> [u8; HEADER_SIZE] {
    let mut bytes = [0; HEADER_SIZE];
    bytes[field::MAGIC].copy_from_slice(&MAGIC);
    bytes[field::VERSION].copy_from_slice(&FORMAT_VERSION.to_le_bytes());
    bytes[field::SHARD].copy_from_slice(&identity.shard.0.to_le_bytes());
    bytes[field::STORE].copy_from_slice(&identity.store.0);
    let crc = crc32fast::hash(&bytes[field::CRC.end..]);
    bytes[field::CRC].copy_from_slice(&crc.to_le_bytes());
    bytes
}

fn repair_jump(entropy: &dyn Entropy) -> u64 {
    let mut bytes = [0; 8];
    entropy.fill(&mut bytes);
    REPAIR_JUMP + u64::from_le_bytes(bytes) % REPAIR_SPREAD
}

fn page_name() -> FileName {
    FileName::new(EPOCH_PAGE).expect("characters of a file name")
}

/// The cell's word for an epoch.
fn cell(epoch: u32) -> u64 {
    u64::from(epoch) | (u64::from(!epoch) << 32)
}

/// The epoch in a cell's word; `None` if the cell is bad.
fn epoch_of(word: u64) -> Option<u64> {
    let epoch = u32::try_from(word & u64::from(u32::MAX)).ok()?;
    (cell(epoch) == word).then_some(u64::from(epoch))
}

/// The cell that every process of a shard looks at, and the hint beside it.
#[derive(Debug, Clone)]
struct EpochPage(Arc<dyn Page>);

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum PageHeader {
    Valid,
    Bad,
}

impl EpochPage {
    fn header(&self, identity: &Identity) -> Result<PageHeader, Error> {
        let mut bytes = [0; HEADER_SIZE];
        for (word, chunk) in bytes.chunks_exact_mut(8).enumerate() {
            chunk.copy_from_slice(&self.0.load(word).to_le_bytes());
        }
        let crc = crc32fast::hash(&bytes[field::CRC.end..]);
        if bytes[field::MAGIC] != MAGIC || u32_at(&bytes, field::CRC) != crc {
            return Ok(PageHeader::Bad);
        }
        let version = u16_at(&bytes, field::VERSION);
        if version != FORMAT_VERSION {
            return Err(Error::UnknownFormat {
                file: page_name(),
                version,
            });
        }
        let store = StoreId(array_at(&bytes, field::STORE));
        let shard = ShardId(u16_at(&bytes, field::SHARD));
        if (store, shard) != (identity.store, identity.shard) {
            return Err(Error::Foreign {
                file: page_name(),
                store,
                shard,
            });
        }
        Ok(PageHeader::Valid)
    }

    fn write_header(&self, identity: &Identity) {
        for (word, chunk) in header(identity).chunks_exact(8).enumerate() {
            self.0
                .store(word, u64::from_le_bytes(array_at(chunk, 0..8)));
        }
    }

    fn durable(&self) -> Option<Sequence> {
        let sequence = self.0.load(DURABLE);
        (self.0.load(DURABLE_COMPLEMENT) == !sequence).then_some(Sequence(sequence))
    }

    /// Not at once: between the two stores, and after a crash there, the hint is unknown.
    fn set_durable(&self, sequence: Sequence) {
        self.0.store(DURABLE, sequence.0);
        self.0.store(DURABLE_COMPLEMENT, !sequence.0);
    }
}

/// What the epoch page of a shard says, for a look that changes nothing.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct PageReport {
    /// The highest epoch that was granted; `None` if the cell is bad.
    pub epoch: Option<Epoch>,
    /// Everything up to it was durable, whatever else is; `None` if that is unknown.
    pub durable: Option<Sequence>,
}

/// Reads an epoch page. [`Error::Foreign`] and [`Error::UnknownFormat`] as for a segment.
pub fn read_epoch_page(page: Arc<dyn Page>, identity: &Identity) -> Result<PageReport, Error> {
    let page = EpochPage(page);
    Ok(match page.header(identity)? {
        PageHeader::Valid => PageReport {
            epoch: epoch_of(page.0.load(CELL)).map(Epoch),
            durable: page.durable(),
        },
        PageHeader::Bad => PageReport {
            epoch: None,
            durable: None,
        },
    })
}

/// One look at the heartbeat of a shard's leader. A later look that is equal means that its loop has
/// not gone round in between. It decides when to take over; whether one may is the fence's.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Heartbeat {
    beat: u32,
    epoch: u32,
    cell: u64,
}

impl Heartbeat {
    /// Looks. Does not block.
    #[must_use]
    pub fn of(page: &dyn Page) -> Self {
        let word = page.load(HEARTBEAT).to_le_bytes();
        let half = |at: usize| u32_at(&word, at..at + 4);
        Self {
            beat: half(0),
            epoch: half(4),
            cell: page.load(CELL),
        }
    }

    /// Whether the last leader closed its log and waits for a successor, and nobody came yet.
    #[must_use]
    pub fn resigned(&self) -> bool {
        self.beat == RESIGNED && self.cell == cell(self.epoch)
    }

    /// Whether the beat is that of the process which leads. One that raised the epoch and serves not
    /// yet has not beaten.
    #[must_use]
    pub fn is_of_leader(&self) -> bool {
        self.cell == cell(self.epoch)
    }
}

/// A claim to lead a shard: an epoch that no other process was or will be granted. It holds until
/// somebody raises the epoch again, and never again after that.
///
/// Clones are the same claim, for readers on other threads.
#[derive(Debug, Clone)]
pub struct Claim {
    page: EpochPage,
    identity: Identity,
    epoch: u32,
    repaired: bool,
}

impl Claim {
    /// Raises the epoch above every one that the page or a file's name has. From the return on no
    /// other process's append, answer or read passes its check; what the log holds can be read.
    ///
    /// A bad page is made good here and nowhere else. Blocks for a listing and a flush.
    pub fn raise<D: Disk>(
        page: Arc<dyn Page>,
        identity: Identity,
        disk: &D,
        entropy: &dyn Entropy,
    ) -> Result<Self, Error> {
        let page = EpochPage(page);
        let header = page.header(&identity)?;
        let in_use = Found::list(disk)?.epoch_max;
        let mut current = page.0.load(CELL);
        loop {
            let granted = epoch_of(current);
            let bad = header == PageHeader::Bad || granted.is_none();
            let above = if bad { repair_jump(entropy) } else { 0 };
            // Also in a bad page a good cell counts: somebody may be repairing it with us.
            let highest = granted.unwrap_or(0).max(in_use.0.saturating_add(above));
            let highest = Epoch(highest);
            let raised = highest.0.checked_add(1);
            let Some(epoch) = raised.and_then(|epoch| u32::try_from(epoch).ok()) else {
                return Err(Error::EpochsUsedUp { epoch: highest });
            };
            // In place: a renamed file would leave a stopped process with the old one mapped.
            match page.0.compare_exchange(CELL, current, cell(epoch)) {
                Err(other) => current = other,
                Ok(_) => {
                    let claim = Self {
                        page,
                        identity,
                        epoch,
                        repaired: bad,
                    };
                    claim.make_durable(header)?;
                    return Ok(claim);
                }
            }
        }
    }

    /// Before anything is read: after a power cut the epoch must not be granted once more.
    fn make_durable(&self, header: PageHeader) -> Result<(), Error> {
        if header == PageHeader::Bad {
            self.page.write_header(&self.identity);
        }
        self.flush()?;
        // The raise comes before whatever is read next, as others see it.
        fence(Ordering::SeqCst);
        Ok(())
    }

    /// The epoch that is claimed.
    #[must_use]
    pub fn epoch(&self) -> Epoch {
        Epoch(u64::from(self.epoch))
    }

    /// Whether the page was bad and had to be made good.
    #[must_use]
    pub fn repaired(&self) -> bool {
        self.repaired
    }

    /// Whether nobody raised the epoch since. Does not block. What was written, synced or read
    /// before the call came before anyone's raise, if it says so: a new leader sees it. Of what comes
    /// after the call it says nothing.
    #[must_use]
    pub fn holds(&self) -> bool {
        fence(Ordering::SeqCst);
        self.page.0.load(CELL) == cell(self.epoch)
    }

    /// [`Error::Fenced`] unless it holds.
    pub fn check(&self) -> Result<(), Error> {
        if self.holds() {
            Ok(())
        } else {
            Err(Error::Fenced {
                epoch: self.epoch(),
            })
        }
    }

    /// Finds the segments of the log, as [`Recovery::read_from`] does; [`crate::Log::take_over`]
    /// goes on from what was read through its own claim only. A log that ends before what the page
    /// knows to have been durable is damaged.
    pub fn recover<D: Disk>(&self, disk: &D, start: Start) -> Result<Recovery, Error> {
        let recovery = self.or_fenced(Recovery::read_from(disk, self.identity, start))?;
        Ok(recovery.under(self.epoch(), self.page.durable()))
    }

    /// The result of a reading under this claim. A failure means nothing once the claim is lost: the
    /// new leader may have removed files meanwhile.
    pub fn or_fenced<T, E: From<Error>>(&self, result: Result<T, E>) -> Result<T, E> {
        result.map_err(|err| self.check().err().map_or(err, E::from))
    }

    /// Shows that the leader's loop went round for the `round`th time. Does not block.
    pub fn beat(&self, round: u64) {
        let round = u32::try_from(round % u64::from(RESIGNED)).unwrap_or_default();
        self.store_beat(round);
    }

    /// Shows that this leader has closed its log: a successor need not wait. Does not block.
    pub fn resign(&self) {
        self.store_beat(RESIGNED);
    }

    fn store_beat(&self, beat: u32) {
        let word = u64::from(beat) | u64::from(self.epoch) << 32;
        // One that was replaced stays silent; if it is replaced just now, its last beat only makes
        // a contender wait once more.
        if self.holds() {
            self.page.0.store(HEARTBEAT, word);
        }
    }

    pub(crate) fn identity(&self) -> Identity {
        self.identity
    }

    /// Remembers that everything up to `sequence` is durable and part of every later history:
    /// only after its sync returned and the claim held after that. A killed process leaves the
    /// hint as it is, a power cut may leave an older one; each is true.
    pub(crate) fn note_durable(&self, sequence: Sequence) {
        self.page.set_durable(sequence);
    }

    /// Makes the page survive a power cut.
    pub(crate) fn flush(&self) -> Result<(), Error> {
        self.page.0.flush().map_err(Action::SyncPage.of_directory())
    }
}
