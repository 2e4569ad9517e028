//! `ostraca protoset`: the compiled API, for tools that call it without reflection.

use std::io::{self, IsTerminal as _, Write as _};

use ostraca_server::DESCRIPTOR_SETS;

use crate::exit::{self, Exit, Failure};

/// Prints the descriptors. Sets of descriptors that follow one another are one set.
pub(crate) fn run() -> Result<(), Failure> {
    let mut stdout = io::stdout().lock();
    if stdout.is_terminal() {
        return Err(Failure::new(
            Exit::Usage,
            "this is no text; send it to a file: ostraca protoset > ostraca.protoset",
        ));
    }
    exit::written(stdout.write_all(&DESCRIPTOR_SETS.concat()))
}
