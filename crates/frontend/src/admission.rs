//! How many creates are in flight, and how much memory bodies take, coming and going.

use std::sync::Arc;

use bytes::Bytes;
use ostraca_types::Reason;
use tokio::sync::{OwnedSemaphorePermit, Semaphore};

use crate::Config;
use crate::body::envelope_max;
use crate::problem::Problem;
use crate::read::PREVIEW_SIZE_MAX;

/// Memory is counted in pages of this size: a semaphore counts to 2^29 on small machines.
const PAGE: usize = 1 << 10;
/// What a request with a tiny body takes: parsing, digests, tasks.
const COST_MIN: usize = 16 << 10;
/// A page has a preview, and each of its characters escaped, in up to five more.
const PREVIEW_FACTOR: usize = 6;

/// The most that one create is counted with.
pub(crate) const fn cost_max(body_size_max: usize) -> usize {
    create_cost(envelope_max(body_size_max))
}

/// The most that one read is counted with.
pub(crate) const fn read_cost_max(body_size_max: usize) -> usize {
    COST_MIN + page_cost(body_size_max)
}

/// What is counted for a create of which `arriving` bytes may arrive: what was read and what was
/// decoded from it are in memory at the same time.
const fn create_cost(arriving: usize) -> usize {
    COST_MIN + 2 * arriving
}

/// What is counted for the page of a body, besides the body.
pub(crate) const fn page_cost(body_size: usize) -> usize {
    let shown = if body_size < PREVIEW_SIZE_MAX {
        body_size
    } else {
        PREVIEW_SIZE_MAX
    };
    body_size + PREVIEW_FACTOR * shown
}

/// Says whether another request may start. Nothing waits here: who is refused is told so at once.
#[derive(Debug)]
pub(crate) struct Admission {
    creates: Arc<Semaphore>,
    create_pages: Arc<Semaphore>,
    read_pages: Arc<Semaphore>,
}

/// The right to have one create in flight; it ends with the value.
#[derive(Debug)]
pub(crate) struct Admitted {
    _create: OwnedSemaphorePermit,
    _pages: OwnedSemaphorePermit,
}

/// The right to have one body in memory on its way to a client; it ends with the value.
#[derive(Debug)]
pub(crate) struct Reading {
    _pages: OwnedSemaphorePermit,
}

impl Admission {
    pub(crate) fn new(config: &Config) -> Self {
        let semaphore = |count: usize| Arc::new(Semaphore::new(count.min(Semaphore::MAX_PERMITS)));
        Self {
            creates: semaphore(config.creates_in_flight_max),
            create_pages: semaphore(config.create_memory_max / PAGE),
            read_pages: semaphore(config.read_memory_max / PAGE),
        }
    }

    /// Admits a create of which at most `arriving` bytes will be read, or refuses it.
    pub(crate) fn create(&self, arriving: usize) -> Result<Admitted, Problem> {
        let admitted = Arc::clone(&self.creates)
            .try_acquire_owned()
            .and_then(|create| {
                let pages = Arc::clone(&self.create_pages);
                let pages = pages.try_acquire_many_owned(pages_of(create_cost(arriving)))?;
                Ok(Admitted {
                    _create: create,
                    _pages: pages,
                })
            });
        admitted.map_err(|_| overloaded("too many creates are in flight; nothing was saved"))
    }

    /// Admits a read that takes `size` bytes, or refuses it.
    pub(crate) fn read(&self, size: usize) -> Result<Reading, Problem> {
        let pages = Arc::clone(&self.read_pages);
        match pages.try_acquire_many_owned(pages_of(COST_MIN + size)) {
            Ok(pages) => Ok(Reading { _pages: pages }),
            Err(_) => Err(overloaded("too many pastes are being read")),
        }
    }
}

impl Reading {
    /// `body`, which keeps its place until its last byte is handed to the client's connection.
    pub(crate) fn held_by(self, body: impl AsRef<[u8]> + Send + 'static) -> Bytes {
        struct Held<B> {
            body: B,
            _reading: Reading,
        }
        impl<B: AsRef<[u8]>> AsRef<[u8]> for Held<B> {
            fn as_ref(&self) -> &[u8] {
                self.body.as_ref()
            }
        }
        Bytes::from_owner(Held {
            body,
            _reading: self,
        })
    }
}

fn pages_of(cost: usize) -> u32 {
    u32::try_from(cost / PAGE).unwrap_or(u32::MAX)
}

fn overloaded(detail: &'static str) -> Problem {
    Problem::new(Reason::Overloaded, detail).retry_after_secs(1)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn l01_creates_beyond_count_or_memory_are_refused_at_once() {
        let config = Config {
            creates_in_flight_max: 2,
            ..Config::default()
        };
        let admission = Admission::new(&config);
        let first = admission.create(1).expect("room");
        let _second = admission.create(1).expect("room");
        assert!(admission.create(1).is_err());
        drop(first);
        admission.create(1).expect("room again");

        let create_memory_max = cost_max(config.body_size_max);
        let admission = Admission::new(&Config {
            create_memory_max,
            ..Config::default()
        });
        let large = admission
            .create(envelope_max(config.body_size_max))
            .expect("fits alone");
        assert!(admission.create(1).is_err(), "the memory is taken");
        drop(large);
        admission.create(1).expect("room again");
    }

    #[test]
    fn l01_an_answer_keeps_its_place_until_it_is_sent() {
        let read_memory_max = read_cost_max(1000);
        let config = Config {
            body_size_max: 1000,
            read_memory_max,
            ..Config::default()
        };
        let admission = Admission::new(&config);
        let body = admission
            .read(page_cost(1000))
            .expect("room")
            .held_by("hello");
        assert_eq!(body, "hello");
        let rest = body.slice(3..);
        drop(body);
        assert!(admission.read(0).is_err(), "the rest is still to be sent");
        drop(rest);
        admission.read(0).expect("room again");
    }
}
