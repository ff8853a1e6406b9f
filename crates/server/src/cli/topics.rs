//! `packetboat topics`: brings the log's topics in line with the settings.

use std::path::Path;
use std::process::ExitCode;

use anyhow::{Context, Result};
use backend::queue::topics;
use clap::{Args, Subcommand};

use super::terminal::outln;
use crate::settings::Settings;

#[derive(Debug, Args)]
#[command(after_help = "Examples:
  packetboat --config packetboat.toml topics apply
  packetboat topics check")]
pub struct Topics {
    #[command(subcommand)]
    what: TopicsCommand,
}

#[derive(Debug, Subcommand)]
enum TopicsCommand {
    /// Create missing topics; nothing is ever shrunk or deleted.
    Apply,
    /// Print differences from the settings (exit 1 if there are any).
    Check,
}

impl Topics {
    pub(super) async fn run(self, file: Option<&Path>) -> Result<ExitCode> {
        let config = Settings::load(file)?.kafka;
        match self.what {
            TopicsCommand::Apply => {
                let changes = topics::apply(&config).await.context("asking Kafka")?;
                for change in &changes {
                    outln!("{change}")?;
                }
                if changes.is_empty() {
                    outln!("nothing to do")?;
                }
                Ok(ExitCode::SUCCESS)
            }
            TopicsCommand::Check => {
                let differences = topics::check(&config).await.context("asking Kafka")?;
                for difference in &differences {
                    outln!("{difference}")?;
                }
                if differences.is_empty() {
                    outln!("the topics match the settings")?;
                    return Ok(ExitCode::SUCCESS);
                }
                Ok(ExitCode::FAILURE)
            }
        }
    }
}
