//! Random bytes.

use std::sync::Arc;

use parking_lot::Mutex;

/// A source of random bytes. No call blocks once the machine has booted.
pub trait Entropy: Send + Sync + 'static {
    /// Fills `bytes`.
    fn fill(&self, bytes: &mut [u8]);
}

impl<E: Entropy + ?Sized> Entropy for Arc<E> {
    fn fill(&self, bytes: &mut [u8]) {
        (**self).fill(bytes);
    }
}

/// The kernel's cryptographic random source.
#[derive(Debug, Clone, Copy, Default)]
pub struct SystemEntropy;

impl Entropy for SystemEntropy {
    /// Panics if the kernel refuses, which Linux does only for a caller that is not allowed the
    /// system call: without random bytes there are no secrets, so there is nothing to go on with.
    fn fill(&self, bytes: &mut [u8]) {
        getrandom::fill(bytes).expect("the kernel's random source");
    }
}

/// A generator that a seed replays: for tests and simulation, never for secrets.
///
/// SplitMix64 (Steele, Lea, Flood: "Fast splittable pseudorandom number generators", 2014).
#[derive(Debug)]
pub struct SeededEntropy(Mutex<u64>);

impl SeededEntropy {
    /// The same seed gives the same bytes.
    #[must_use]
    pub const fn new(seed: u64) -> Self {
        Self(Mutex::new(seed))
    }

    /// The next 64 bits.
    pub fn next(&self) -> u64 {
        let mut state = self.0.lock();
        *state = state.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut mixed = *state;
        mixed = (mixed ^ (mixed >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        mixed ^ (mixed >> 31)
    }

    /// A number below `end`, which must not be 0. The bias is below `end` / 2^64.
    pub fn below(&self, end: u64) -> u64 {
        self.next() % end
    }
}

impl Entropy for SeededEntropy {
    fn fill(&self, bytes: &mut [u8]) {
        for chunk in bytes.chunks_mut(8) {
            chunk.copy_from_slice(&self.next().to_le_bytes()[..chunk.len()]);
        }
    }
}
