//! The machine that the processes run on: its clocks, its disks and its random source.

use std::sync::Arc;

use ostraca_io::{Clock, Entropy, SystemClock, SystemEntropy};

use crate::exit::{Exit, Failure};

/// The clock of a serving process. A build with the feature `faults` can have it scripted.
pub(crate) fn clock() -> Result<Arc<dyn Clock>, Failure> {
    let system = SystemClock::new()
        .map_err(|err| Failure::doing(Exit::Failed, "cannot read the boot id from /proc", &err))?;
    #[cfg(feature = "faults")]
    if let Some(scripted) = crate::faults::ScriptedClock::from_env(system) {
        return Ok(Arc::new(scripted));
    }
    Ok(Arc::new(system))
}

/// The file system of this machine. A build with the feature `faults` stops at its points.
#[cfg(not(feature = "faults"))]
pub(crate) fn storage() -> ostraca_io::RealStorage {
    ostraca_io::RealStorage
}

#[cfg(feature = "faults")]
pub(crate) fn storage() -> crate::faults::ScriptedStorage {
    crate::faults::ScriptedStorage::from_env()
}

/// The kernel's random source.
pub(crate) fn entropy() -> Arc<dyn Entropy> {
    Arc::new(SystemEntropy)
}
