//! `packetboat`: parses the command line, runs the command, reports how it ended.

use std::process::ExitCode;

use clap::Parser;
use server::cli::{self, Cli};

#[cfg(feature = "mimalloc")]
#[global_allocator]
static ALLOCATOR: mimalloc::MiMalloc = mimalloc::MiMalloc;

fn main() -> ExitCode {
    // All TLS below uses the provider of the process.
    let _ = rustls::crypto::aws_lc_rs::default_provider().install_default();
    let cli = match Cli::try_parse() {
        Ok(cli) => cli,
        Err(usage) => return cli::show_usage("packetboat", &usage),
    };
    let result = cli::run(cli);
    server::telemetry::end();
    result.unwrap_or_else(|error| cli::fail("packetboat", &error))
}
