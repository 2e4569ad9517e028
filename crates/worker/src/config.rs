//! What an operator can set.

use std::fmt;
use std::time::Duration;

use ostraca_types::ConsumerName;
use ostraca_types::contract::{VISIBILITY_DEFAULT, VISIBILITY_MAX};

/// Attempts in flight unless configured: enough to keep a shard's syncs and a store's latency busy
/// at many times the planned 116 ends a second.
pub const CONCURRENCY_DEFAULT: usize = 16;
/// More would only wait for each other in the object store.
pub const CONCURRENCY_MAX: usize = 1024;
/// Below it an attempt could run out while it is extended.
const VISIBILITY_MIN: Duration = Duration::from_secs(3);

/// The settings of a worker. [`Config::default`] has the defaults.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Config {
    /// Whose messages it takes, and under which name it records.
    pub consumer: ConsumerName,
    /// Attempts in flight, 1 to [`CONCURRENCY_MAX`]; [`CONCURRENCY_DEFAULT`] by default. More of
    /// them help where an object store or an edge is slow to answer.
    pub concurrency: usize,
    /// How long an attempt may take before it is delivered again, 3 s to 12 h; 30 s by default. It
    /// is extended while the attempt runs, so this is how long the messages of a killed worker wait.
    pub visibility: Duration,
}

impl Default for Config {
    fn default() -> Self {
        Self {
            consumer: ConsumerName::purge(),
            concurrency: CONCURRENCY_DEFAULT,
            visibility: VISIBILITY_DEFAULT,
        }
    }
}

/// A setting that cannot be used.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ConfigError {
    /// Its name, as the field of [`Config`].
    pub setting: &'static str,
    /// What it has to be.
    pub expected: &'static str,
}

impl fmt::Display for ConfigError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} must be {}", self.setting, self.expected)
    }
}

impl std::error::Error for ConfigError {}

impl Config {
    /// Reports the first setting that cannot be used. Changes nothing.
    pub fn validate(&self) -> Result<(), ConfigError> {
        if !(1..=CONCURRENCY_MAX).contains(&self.concurrency) {
            return Err(ConfigError {
                setting: "concurrency",
                expected: "1 to 1024",
            });
        }
        if !(VISIBILITY_MIN..=VISIBILITY_MAX).contains(&self.visibility) {
            return Err(ConfigError {
                setting: "visibility",
                expected: "3 s to 12 h",
            });
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_cannot_work_is_refused_by_name() {
        assert_eq!(Config::default().validate(), Ok(()));
        let refused = |config: Config| config.validate().expect_err("refused").setting;
        for concurrency in [0, CONCURRENCY_MAX + 1] {
            let config = Config {
                concurrency,
                ..Config::default()
            };
            assert_eq!(refused(config), "concurrency");
        }
        for visibility in [Duration::ZERO, VISIBILITY_MAX * 2] {
            let config = Config {
                visibility,
                ..Config::default()
            };
            assert_eq!(refused(config), "visibility");
        }
    }
}
