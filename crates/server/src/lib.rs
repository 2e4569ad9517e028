//! The gRPC services of a shard process, and the sealing of answers.
//!
//! Handlers translate, call the engine, and translate back; requests are checked once, here. The
//! API's documentation is the comments of `proto/ostraca/v1/*.proto`.
//!
//! Secrets stay in this crate: the engine sees a token's hash and a sealed answer, never a key or a
//! token.

mod admission;
mod creates;
pub mod data_dir;
mod deadline;
mod delivery;
pub mod endpoints;
mod epoch_page;
mod error;
mod hold;
mod host;
mod leadership;
mod listen;
mod metrics;
mod refusal;
mod seal;
mod sealing;
mod seats;
mod secrets;
mod serve;
mod services;
mod ticket;

pub use data_dir::DataDir;
pub use error::ServeError;
pub use leadership::{Lead, Standby};
pub use secrets::{Error as SecretError, Secrets};
pub use serve::{ShardOptions, Told, serve_shard};

/// The compiled descriptors of what a shard serves: the API, and health. Each is a
/// `google.protobuf.FileDescriptorSet`.
pub const DESCRIPTOR_SETS: [&[u8]; 2] = [
    ostraca_proto::DESCRIPTOR_SET,
    tonic_health::pb::FILE_DESCRIPTOR_SET,
];
