//! Compiles proto/packetboat/v1 without protoc.

use std::path::PathBuf;

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let root = PathBuf::from(std::env::var("CARGO_MANIFEST_DIR")?).join("../../proto");
    let files = ["boat", "client", "error", "message", "queue", "station"]
        .map(|name| format!("packetboat/v1/{name}.proto"));
    println!("cargo:rerun-if-changed={}", root.display());
    let descriptors = protox::compile(files, [root])?;
    tonic_prost_build::configure()
        .build_transport(false)
        .bytes(".")
        .compile_fds(descriptors)?;
    Ok(())
}
