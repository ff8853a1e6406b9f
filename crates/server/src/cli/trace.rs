//! `packetboat trace`: the history of one message.

use std::path::Path;
use std::process::ExitCode;

use anyhow::Result;
use clap::Args;
use comfy_table::{Table, presets};
use operator::admin::trace::{Name, Report};
use serde_json::json;

use super::Output;
use super::audit::more;
use super::desk::Desk;

#[derive(Debug, Args)]
#[command(after_help = "Examples:
  packetboat trace 192656276478504960
  packetboat trace 67e55044-10b1-426f-9247-bb680e5fe0c8 --output json")]
pub struct Trace {
    /// Message id, or the send_id its client gave it.
    id: String,
    #[command(flatten)]
    desk: Desk,
    #[arg(long, value_enum, default_value_t)]
    output: Output,
}

impl Trace {
    pub(super) async fn run(self, _config: Option<&Path>) -> Result<ExitCode> {
        self.id.parse::<Name>().map_err(anyhow::Error::msg)?;
        let path = format!("/api/v1/trace/{}", self.id);
        let lives: Vec<Report> = self.desk.get(&path, &json!({})).await?;
        match self.output {
            Output::Json => println!("{}", serde_json::to_string(&lives)?),
            Output::Table => lives.iter().for_each(print),
        }
        if lives.is_empty() {
            eprintln!("packetboat: nothing is known of {}", self.id);
            return Ok(ExitCode::FAILURE);
        }
        Ok(ExitCode::SUCCESS)
    }
}

fn print(life: &Report) {
    println!("message {}", life.msg_id);
    for sentence in &life.verdict.first {
        println!("  {sentence}");
    }
    more(life.verdict.left_off);
    let mut table = Table::new();
    table.load_style(presets::NOTHING);
    table.set_header(["  after", "for", "what"]);
    for event in &life.events.first {
        table.add_row([
            format!("  {} ms", event.at - life.accepted_at),
            event.target.clone().unwrap_or_default(),
            words(&event.event),
        ]);
    }
    println!("{table}");
    more(life.events.left_off);
}

/// Formats `Pushed { attempt: 1, … }` as `pushed attempt=1 …`.
fn words(event: &protocol::ledger::LedgerEvent) -> String {
    match serde_json::to_value(event) {
        Ok(serde_json::Value::String(name)) => spaced(&name),
        Ok(serde_json::Value::Object(event)) => event
            .iter()
            .map(|(name, fields)| {
                let fields = fields.as_object().into_iter().flatten();
                let fields = fields.map(|(key, value)| format!(" {key}={}", plain(value)));
                spaced(name) + &fields.collect::<String>()
            })
            .collect(),
        _ => format!("{event:?}"),
    }
}

fn plain(value: &serde_json::Value) -> String {
    match value {
        serde_json::Value::String(text) => text.clone(),
        serde_json::Value::Object(fields) => {
            fields.values().map(plain).collect::<Vec<_>>().join("/")
        }
        other => other.to_string(),
    }
}

/// Formats `StoredOffline` as `stored offline`.
fn spaced(name: &str) -> String {
    let mut words = String::new();
    for c in name.chars() {
        if c.is_uppercase() && !words.is_empty() {
            words.push(' ');
        }
        words.extend(c.to_lowercase());
    }
    words
}
