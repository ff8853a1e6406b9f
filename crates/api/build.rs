//! Compiles proto/packetboat/v1 without protoc.

use std::path::PathBuf;

use protox::prost::Message as _;
use protox::prost_reflect::prost_types::{FileDescriptorSet, MethodDescriptorProto as Method};

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let root = PathBuf::from(std::env::var("CARGO_MANIFEST_DIR")?).join("../../proto");
    let files = [
        "auth", "boat", "client", "error", "message", "queue", "station",
    ]
    .map(|name| format!("packetboat/v1/{name}.proto"));
    println!("cargo:rerun-if-changed={}", root.display());
    let descriptors = protox::compile(files, [root])?;
    let streaming_methods: Vec<String> = descriptors
        .file
        .iter()
        .flat_map(|file| file.service.iter().map(move |service| (file, service)))
        .flat_map(|(file, service)| {
            let is_streaming =
                |method: &&Method| method.client_streaming() || method.server_streaming();
            service
                .method
                .iter()
                .filter(is_streaming)
                .map(move |method| {
                    format!("/{}.{}/{}", file.package(), service.name(), method.name())
                })
        })
        .collect();
    let out = PathBuf::from(std::env::var("OUT_DIR")?).join("streaming.rs");
    std::fs::write(out, format!("&{streaming_methods:?}"))?;
    let out = PathBuf::from(std::env::var("OUT_DIR")?).join("descriptors.bin");
    std::fs::write(out, without_comments(&descriptors).encode_to_vec())?;
    tonic_prost_build::configure()
        .build_transport(false)
        .bytes(".")
        .skip_debug(HIDDEN)
        // The frame's ticket is hidden, and its messages hide their own content.
        .type_attribute(".packetboat.v1.ServerFrame.frame", "#[derive(Debug)]")
        .compile_fds(descriptors)?;
    Ok(())
}

/// Messages that hold a token, a ticket or a body: `hidden.rs` says which of their fields may be
/// shown.
const HIDDEN: [&str; 21] = [
    ".packetboat.v1.Admission",
    ".packetboat.v1.AuthenticateRequest",
    ".packetboat.v1.ConnectRequest",
    ".packetboat.v1.Delivery",
    ".packetboat.v1.DisconnectRequest",
    ".packetboat.v1.Hello",
    ".packetboat.v1.MailAckItem",
    ".packetboat.v1.MailItem",
    ".packetboat.v1.MailPageRequest",
    ".packetboat.v1.MsgChat",
    ".packetboat.v1.ReassertResult",
    ".packetboat.v1.ReassertSession",
    ".packetboat.v1.ReceiptItem",
    ".packetboat.v1.Refresh",
    ".packetboat.v1.RefreshRequest",
    ".packetboat.v1.Refreshment",
    ".packetboat.v1.ResumeSession",
    ".packetboat.v1.ResumeTicketsResponse",
    ".packetboat.v1.SendItem",
    ".packetboat.v1.ServerFrame",
    ".packetboat.v1.SyncCall",
];

/// Strips comments of the proto files.
fn without_comments(descriptors: &FileDescriptorSet) -> FileDescriptorSet {
    let mut copy = descriptors.clone();
    for file in &mut copy.file {
        file.source_code_info = None;
    }
    copy
}
