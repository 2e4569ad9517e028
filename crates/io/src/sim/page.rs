//! A simulated page: what processes see, and what a power cut would leave.

use std::collections::BTreeMap;
use std::io;
use std::sync::Arc;

use parking_lot::Mutex;

use super::state::{State, Turn, finish, lock};
use super::{Unsynced, below};
use crate::SeededEntropy;
use crate::disk::{PAGE_WORDS, Page};

/// The words of a [`SimPage`].
#[derive(Debug, Clone)]
pub(super) struct Words {
    seen: Arc<[u64; PAGE_WORDS]>,
    durable: Arc<[u64; PAGE_WORDS]>,
    /// What was stored since the last flush, word by word, oldest first.
    unsynced: BTreeMap<usize, Vec<u64>>,
}

impl Default for Words {
    fn default() -> Self {
        let zeros = Arc::new([0; PAGE_WORDS]);
        Self {
            seen: Arc::clone(&zeros),
            durable: zeros,
            unsynced: BTreeMap::new(),
        }
    }
}

impl Words {
    fn store(&mut self, word: usize, value: u64) {
        Arc::make_mut(&mut self.seen)[word] = value;
        self.unsynced.entry(word).or_default().push(value);
    }

    fn flush(&mut self) {
        for word in std::mem::take(&mut self.unsynced).into_keys() {
            Arc::make_mut(&mut self.durable)[word] = self.seen[word];
        }
    }

    /// A failed flush: the kernel holds the page for clean.
    fn forget_unsynced(&mut self) {
        self.unsynced.clear();
    }

    /// Sets a word, in memory and on the disk.
    pub(super) fn damage(&mut self, word: usize, value: u64) {
        Arc::make_mut(&mut self.seen)[word] = value;
        Arc::make_mut(&mut self.durable)[word] = value;
        self.unsynced.remove(&word);
    }

    /// The power went: each word is what was durable, or anything that was stored since.
    pub(super) fn settle(&mut self, fate: Unsynced, chance: &SeededEntropy) {
        for (word, stored) in std::mem::take(&mut self.unsynced) {
            let kept = match fate {
                Unsynced::Lost => 0,
                Unsynced::Kept => stored.len(),
                Unsynced::Torn | Unsynced::Random => below(chance, stored.len() + 1),
            };
            if let Some(at) = kept.checked_sub(1) {
                Arc::make_mut(&mut self.durable)[word] = stored[at];
            }
        }
        self.seen = Arc::clone(&self.durable);
    }
}

/// The [`Page`] beside a [`super::SimDisk`], seen by one of its processes. A process that was
/// killed, or has lost its power, loads zeros and stores nothing.
#[derive(Debug, Clone)]
pub struct SimPage {
    pub(super) state: Arc<Mutex<State>>,
    pub(super) process: u64,
}

fn check(word: usize) {
    assert!(word < PAGE_WORDS, "a page has no word {word}");
}

impl Page for SimPage {
    fn load(&self, word: usize) -> u64 {
        check(word);
        lock(&self.state, self.process).map_or(0, |state| state.page.seen[word])
    }

    fn store(&self, word: usize, value: u64) {
        check(word);
        if let Ok(mut state) = lock(&self.state, self.process) {
            state.page.store(word, value);
        }
    }

    fn compare_exchange(&self, word: usize, current: u64, new: u64) -> Result<u64, u64> {
        check(word);
        let mut state = lock(&self.state, self.process).map_err(|_| !current)?;
        let seen = state.page.seen[word];
        if seen != current {
            return Err(seen);
        }
        // Where the power goes here, the word was set and is not durable.
        let _turn = state.begin();
        state.page.store(word, new);
        Ok(current)
    }

    fn flush(&self) -> io::Result<()> {
        let mut state = lock(&self.state, self.process)?;
        let turn = state.begin();
        if let Turn::Cut = turn {
            return finish(&turn);
        }
        if state.takes_sync_failure() {
            state.page.forget_unsynced();
            return Err(io::Error::other("the device failed a sync of the page"));
        }
        state.page.flush();
        Ok(())
    }
}
