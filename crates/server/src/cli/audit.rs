//! `packetboat audit`: accepted = settled + in flight, or the names of what is missing.

use std::path::Path;
use std::process::ExitCode;
use std::time::Duration;

use anyhow::Result;
use backend::clock::{Clock, SystemClock};
use clap::Args;
use comfy_table::{Table, presets};

use super::Output;
use super::desk::Desk;
use crate::admin::audit::{Question, Report};

#[derive(Debug, Args)]
#[command(after_help = "Examples:
  packetboat audit
  packetboat audit --last 1h --output json")]
pub struct Audit {
    #[command(flatten)]
    desk: Desk,
    /// Only what was accepted in this time before now. Default: everything that the log keeps.
    #[arg(long, value_name = "TIME", value_parser = humantime::parse_duration)]
    last: Option<Duration>,
    /// A line for each minute.
    #[arg(long)]
    minutes: bool,
    #[arg(long, value_enum, default_value_t)]
    output: Output,
}

impl Audit {
    pub(super) async fn run(self, _config: Option<&Path>) -> Result<ExitCode> {
        let since = self.last.map(|last| (SystemClock.now() - last).millis());
        let question = Question { since, until: None };
        let report: Report = self.desk.get("/api/v1/audit", &question).await?;
        match self.output {
            Output::Json => println!("{}", serde_json::to_string(&report)?),
            Output::Table => print(&report, self.minutes),
        }
        Ok(if report.even {
            ExitCode::SUCCESS
        } else {
            ExitCode::FAILURE
        })
    }
}

fn print(report: &Report, minutes: bool) {
    let verdict = if report.even {
        "the books balance"
    } else {
        "THE BOOKS DO NOT BALANCE"
    };
    println!(
        "{verdict}: {} accepted = {} settled + {} in flight + {} missing",
        report.accepted,
        report.settled,
        report.in_flight,
        report.missing.len(),
    );
    report
        .missing
        .iter()
        .for_each(|id| println!("missing: {id}"));
    report
        .contradictions
        .iter()
        .for_each(|what| println!("contradiction: {what}"));
    if report.unreadable > 0 {
        println!(
            "{} records are none of ours: see packetboat dlq list",
            report.unreadable
        );
    }
    if minutes {
        let mut table = Table::new();
        table.load_style(presets::NOTHING);
        table.set_header(["minute", "accepted", "settled", "in flight", "missing"]);
        for minute in &report.minutes {
            let at = Duration::from_millis(minute.at.max(0) as u64);
            let at = std::time::UNIX_EPOCH + at;
            table.add_row([
                humantime::format_rfc3339_seconds(at).to_string(),
                minute.accepted.to_string(),
                minute.settled.to_string(),
                minute.in_flight.to_string(),
                minute.missing.to_string(),
            ]);
        }
        println!("{table}");
    }
}
