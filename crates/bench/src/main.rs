//! `bench`: parses the command line, runs the command, reports how it ended.

use std::process::ExitCode;

use bench::Bench;
use clap::Parser;
use server::cli;

/// As in `packetboat`, which this program also runs.
#[cfg(feature = "mimalloc")]
#[global_allocator]
static ALLOCATOR: mimalloc::MiMalloc = mimalloc::MiMalloc;

fn main() -> ExitCode {
    // All TLS below uses the provider of the process.
    let _ = rustls::crypto::aws_lc_rs::default_provider().install_default();
    let bench = match Bench::try_parse() {
        Ok(bench) => bench,
        Err(usage) => return cli::show_usage("bench", &usage),
    };
    let result = bench.run();
    server::telemetry::end();
    result.unwrap_or_else(|error| cli::fail("bench", &error))
}
