//! `packetboat config`: what is set, and is it right.

use std::path::Path;
use std::process::ExitCode;

use anyhow::Result;
use clap::{Args, Subcommand};

use crate::settings::{self, Settings};

#[derive(Debug, Args)]
#[command(after_help = "Examples:
  packetboat config default > packetboat.toml
  packetboat --config packetboat.toml config check
  packetboat config schema > packetboat.schema.json")]
pub struct Config {
    #[command(subcommand)]
    what: What,
}

#[derive(Debug, Subcommand)]
enum What {
    /// Every setting with its default and what it means; unset ones are commented out.
    Default,
    /// Read file, environment and the files they name, and say what is wrong with them (exit 3).
    Check(Check),
    /// What is in force: file and environment over defaults, secrets struck out.
    Print,
    /// The JSON schema of a settings file, for editors.
    Schema,
}

#[derive(Debug, Args)]
struct Check {
    /// Also dial Kafka, Redis, etcd and ScyllaDB (exit 1 where one does not answer, or is not set up).
    #[cfg(feature = "cluster")]
    #[arg(long)]
    connect: bool,
}

impl Config {
    pub(super) async fn run(self, file: Option<&Path>) -> Result<ExitCode> {
        match self.what {
            What::Default => print!("{}", settings::template()),
            What::Check(check) => return check.run(&Settings::load(file)?).await,
            What::Print => print!("{}", Settings::load(file)?.print()?),
            What::Schema => println!("{}", serde_json::to_string_pretty(&settings::schema())?),
        }
        Ok(ExitCode::SUCCESS)
    }
}

impl Check {
    async fn run(self, settings: &Settings) -> Result<ExitCode> {
        settings.check_files()?;
        println!("the settings are right");
        #[cfg(feature = "cluster")]
        if self.connect {
            return Ok(dial(settings).await);
        }
        Ok(ExitCode::SUCCESS)
    }
}

/// Dials each part; one that hangs delays only its own line.
#[cfg(feature = "cluster")]
async fn dial(settings: &Settings) -> ExitCode {
    let outcomes = crate::compose::dial(settings).await;
    let mut code = ExitCode::SUCCESS;
    for (part, outcome) in outcomes {
        match outcome {
            Ok(()) => println!("{part} answers"),
            Err(error) => {
                println!("{part}: {error:#}");
                code = ExitCode::FAILURE;
            }
        }
    }
    code
}
