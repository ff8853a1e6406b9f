//! `packetboat`: parse, settle the settings, run the command, say how it ended.

use std::process::ExitCode;

use clap::Parser;
use server::cli::{self, Cli};

#[cfg(feature = "mimalloc")]
#[global_allocator]
static ALLOCATOR: mimalloc::MiMalloc = mimalloc::MiMalloc;

fn main() -> ExitCode {
    // Whoever speaks TLS below takes the process's provider.
    let _ = rustls::crypto::aws_lc_rs::default_provider().install_default();
    let cli = Cli::parse();
    let ended = cli::run(cli);
    server::telemetry::end();
    match ended {
        Ok(code) => code,
        Err(error) => {
            eprintln!("packetboat: {error:#}");
            cli::exit_code(&error)
        }
    }
}
