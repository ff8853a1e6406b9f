//! `packetboat config`: shows and checks the settings.

use std::path::Path;
use std::process::ExitCode;

use anyhow::Result;
use clap::{Args, Subcommand};

use super::terminal::{out, outln};
use crate::settings::{self, Settings};

#[derive(Debug, Args)]
#[command(after_help = "Examples:
  packetboat config default > packetboat.toml
  packetboat --config packetboat.toml config check
  packetboat config schema > packetboat.schema.json")]
pub struct Config {
    #[command(subcommand)]
    what: ConfigCommand,
}

#[derive(Debug, Subcommand)]
enum ConfigCommand {
    /// Print every setting with its default and its meaning; unset ones are commented out.
    Default,
    /// Check file, environment and the files they name, and print all problems (exit 3).
    Check(Check),
    /// Print the settings in force: file and environment over defaults, secrets struck out.
    Print,
    /// Print the JSON schema of a settings file, for editors.
    Schema,
}

#[derive(Debug, Args)]
struct Check {
    /// Also dial Kafka, Redis, etcd and ScyllaDB (exit 1 if one does not answer, or is not set up).
    #[cfg(feature = "cluster")]
    #[arg(long)]
    connect: bool,
}

impl Config {
    pub(super) async fn run(self, file: Option<&Path>) -> Result<ExitCode> {
        match self.what {
            ConfigCommand::Default => out!("{}", settings::template())?,
            ConfigCommand::Check(check) => return check.run(&Settings::load(file)?).await,
            ConfigCommand::Print => out!("{}", Settings::load(file)?.print()?)?,
            ConfigCommand::Schema => {
                out!("{}\n", serde_json::to_string_pretty(&settings::schema())?)?
            }
        }
        Ok(ExitCode::SUCCESS)
    }
}

impl Check {
    async fn run(self, settings: &Settings) -> Result<ExitCode> {
        settings.check_files()?;
        outln!("the settings are valid")?;
        #[cfg(feature = "cluster")]
        if self.connect {
            return dial(settings).await;
        }
        Ok(ExitCode::SUCCESS)
    }
}

/// Dials each part; a part that hangs delays only its own line.
#[cfg(feature = "cluster")]
async fn dial(settings: &Settings) -> Result<ExitCode> {
    let outcomes = crate::compose::dial(settings).await;
    let mut code = ExitCode::SUCCESS;
    for (part, outcome) in outcomes {
        match outcome {
            Ok(()) => outln!("{part} answers")?,
            Err(error) => {
                outln!("{part}: {error:#}")?;
                code = ExitCode::FAILURE;
            }
        }
    }
    Ok(code)
}
