//! Opening a data directory, and the exit codes of its errors.

use std::path::Path;

use ostraca_server::DataDir;
use ostraca_server::data_dir::Error;

use crate::exit::{Exit, Failure};

pub(crate) fn open(path: &Path) -> Result<DataDir, Failure> {
    DataDir::open(path).map_err(failure)
}

pub(crate) fn failure(err: Error) -> Failure {
    let exit = match err {
        Error::Io { .. } | Error::NewerFormat(_) => Exit::Failed,
        Error::NotMade(_) => Exit::NotFound,
        Error::Malformed(_) | Error::RoutingLost(_) | Error::Store(_) => Exit::Damaged,
        Error::ShardsDiffer { .. } => Exit::Conflict,
        Error::ShardCount(_) => Exit::Usage,
    };
    Failure::caused(exit, &err)
}
