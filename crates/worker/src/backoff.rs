//! Growing delays with jitter.

use std::time::Duration;

use ostraca_io::Entropy;

/// Delays that double from one failure to the next.
#[derive(Debug)]
pub(crate) struct Backoff {
    min: Duration,
    max: Duration,
    /// The longest that the next delay may be.
    ceiling: Duration,
}

impl Backoff {
    /// Delays of at least `min` and at most `max`.
    pub(crate) const fn new(min: Duration, max: Duration) -> Self {
        Self {
            min,
            max,
            ceiling: min,
        }
    }

    /// The next delay: twice the range of the last one, and a random point in its upper half, so
    /// that workers that failed together do not come back together.
    pub(crate) fn next(&mut self, entropy: &dyn Entropy) -> Duration {
        self.ceiling = (self.ceiling * 2).min(self.max);
        let floor = (self.ceiling / 2).max(self.min);
        let span = (self.ceiling - floor).as_micros();
        let mut random = [0; 4];
        entropy.fill(&mut random);
        let share = span * u128::from(u32::from_le_bytes(random)) / u128::from(u32::MAX);
        floor + Duration::from_micros(u64::try_from(share).unwrap_or(u64::MAX))
    }

    /// It worked again.
    pub(crate) const fn reset(&mut self) {
        self.ceiling = self.min;
    }
}

#[cfg(test)]
mod tests {
    use ostraca_io::SeededEntropy;

    use super::*;

    #[test]
    fn delays_double_within_their_bounds_and_differ() {
        let entropy = SeededEntropy::new(7);
        let secs = Duration::from_secs;
        let mut backoff = Backoff::new(secs(1), secs(60));
        let mut lower = [1, 2, 4, 8, 16, 30, 30].map(secs).into_iter();
        let mut upper = [2, 4, 8, 16, 32, 60, 60].map(secs).into_iter();
        for _ in 0..7 {
            let delay = backoff.next(&entropy);
            let (lower, upper) = (lower.next().expect("seven"), upper.next().expect("seven"));
            assert!((lower..=upper).contains(&delay), "{delay:?}");
        }
        assert_ne!(backoff.next(&entropy), backoff.next(&entropy));
        backoff.reset();
        assert!(backoff.next(&entropy) <= secs(2));
    }
}
