//! `packetboat schema`: tables that the program needs.

use std::path::Path;
use std::process::ExitCode;

use anyhow::{Context, Result};
use backend::scylla::schema;
use clap::{Args, Subcommand};

use super::terminal::{out, outln};
use crate::settings::Settings;

#[derive(Debug, Args)]
#[command(after_help = "Examples:
  packetboat schema print
  packetboat --config packetboat.toml schema apply")]
pub struct Schema {
    #[command(subcommand)]
    what: SchemaCommand,
}

#[derive(Debug, Subcommand)]
enum SchemaCommand {
    /// Create the keyspace and migrate its tables to the version that this program needs.
    Apply,
    /// Check that the tables are at that version (exit 1 if not).
    Check,
    /// Print the statements, to be run by hand.
    Print,
}

impl Schema {
    pub(super) async fn run(self, file: Option<&Path>) -> Result<ExitCode> {
        let config = Settings::load(file)?.scylla;
        match self.what {
            SchemaCommand::Apply => {
                let migrations = schema::apply(&config).await.context("asking ScyllaDB")?;
                let mut new = migrations
                    .iter()
                    .filter(|migration| migration.new)
                    .peekable();
                if new.peek().is_none() {
                    outln!("nothing to do")?;
                }
                for migration in new {
                    outln!("{:04} {}", migration.number, migration.name)?;
                }
            }
            SchemaCommand::Check => {
                schema::check(&config).await.context("asking ScyllaDB")?;
                outln!("the tables are up to date")?;
            }
            SchemaCommand::Print => out!("{}", schema::print(&config))?,
        }
        Ok(ExitCode::SUCCESS)
    }
}
