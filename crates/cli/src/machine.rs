//! The machine that the processes run on: its clocks and its random source.

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

/// The kernel's random source.
pub(crate) fn entropy() -> Arc<dyn Entropy> {
    Arc::new(SystemEntropy)
}
