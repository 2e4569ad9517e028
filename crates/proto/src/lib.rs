//! Generated code of the `ostraca.v1` gRPC API, and nothing else but the `Debug` of messages that
//! carry secrets. The API's documentation is the comments of `proto/ostraca/v1/*.proto`.

/// Package `ostraca.v1`.
#[allow(
    missing_docs,
    unreachable_pub,
    unused_qualifications,
    clippy::all,
    clippy::pedantic,
    clippy::restriction,
    reason = "generated code"
)]
pub mod v1 {
    tonic::include_proto!("ostraca.v1");
}

/// The metadata by which a call says for which cluster it is (`paste.proto`).
pub const CLUSTER_METADATA: &str = "ostraca-cluster";

/// The compiled descriptors of [`v1`], a `google.protobuf.FileDescriptorSet`, for reflection.
pub const DESCRIPTOR_SET: &[u8] = include_bytes!(concat!(env!("OUT_DIR"), "/ostraca.v1.protoset"));

/// Messages with keys, tokens, tickets or titles print their name and nothing of their content.
macro_rules! opaque_debug {
    ($($message:ident)*) => {$(
        impl std::fmt::Debug for v1::$message {
            fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
                f.debug_struct(stringify!($message)).finish_non_exhaustive()
            }
        }
    )*};
}

opaque_debug! {
    BeginCreateRequest CommitCreateRequest CreateTicket CreateAnswer Paste DeletePasteRequest
}
