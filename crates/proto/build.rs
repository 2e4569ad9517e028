//! Compiles `proto/` without a `protoc` binary, and keeps the descriptor set for reflection.

#![allow(
    clippy::disallowed_methods,
    reason = "a build script is not the product"
)]

use std::path::PathBuf;
use std::{env, error, fs};

use prost::Message as _;

fn main() -> Result<(), Box<dyn error::Error>> {
    let root = PathBuf::from(env::var("CARGO_MANIFEST_DIR")?).join("../../proto");
    println!("cargo::rerun-if-changed={}", root.join("ostraca").display());
    let files = ["paste", "cluster", "outbox", "inbox"];
    let descriptors = protox::compile(
        files.map(|file| root.join(format!("ostraca/v1/{file}.proto"))),
        [&root],
    )?;
    let out = PathBuf::from(env::var("OUT_DIR")?);
    fs::write(out.join("ostraca.v1.protoset"), descriptors.encode_to_vec())?;
    tonic_prost_build::configure()
        // Keys, tokens and titles: no generated `Debug` prints them.
        .skip_debug([
            ".ostraca.v1.BeginCreateRequest",
            ".ostraca.v1.CommitCreateRequest",
            ".ostraca.v1.CreateTicket",
            ".ostraca.v1.CreateAnswer",
            ".ostraca.v1.Paste",
            ".ostraca.v1.DeletePasteRequest",
        ])
        .compile_fds(descriptors)?;
    Ok(())
}
