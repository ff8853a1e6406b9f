//! `packetboat config`: what is set, and is it right.

use std::path::Path;
use std::process::ExitCode;

use anyhow::Result;
use clap::{Args, Subcommand};

use crate::settings::Settings;

#[derive(Debug, Args)]
#[command(after_help = "Examples:
  packetboat config default > packetboat.toml
  packetboat --config packetboat.toml config check")]
pub struct Config {
    #[command(subcommand)]
    what: What,
}

#[derive(Debug, Subcommand)]
enum What {
    /// Every setting with its default.
    Default,
    /// Read file and environment, and say what is wrong with them (exit 3).
    Check,
    /// What is in force: file and environment over defaults, secrets struck out.
    Print,
}

impl Config {
    pub(super) fn run(self, file: Option<&Path>) -> Result<ExitCode> {
        match self.what {
            What::Default => print!("{}", toml::to_string_pretty(&Settings::default())?),
            What::Check => {
                Settings::load(file)?;
                println!("the settings are right");
            }
            What::Print => print!("{}", Settings::load(file)?.print()?),
        }
        Ok(ExitCode::SUCCESS)
    }
}
