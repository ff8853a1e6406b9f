//! `packetboat trace`: the history of one message.

use std::path::Path;
use std::process::ExitCode;

use anyhow::Result;
use clap::Args;
use operator::answer::List;
use operator::audit::trace::{EventDetail, Name, Report};
use serde_json::{Value, json};

use super::Output;
use super::audit::more;
use super::desk::Desk;
use super::table::TextTable;
use super::terminal::{errln, out, outln};

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
        let lives: List<Report> = self.desk.get(&path, &json!({})).await?;
        match self.output {
            Output::Json => outln!("{}", serde_json::to_string(&lives)?)?,
            Output::Table => lives.items.iter().try_for_each(print)?,
        }
        if lives.items.is_empty() {
            errln!("packetboat: no record of {}", self.id);
            return Ok(ExitCode::FAILURE);
        }
        Ok(ExitCode::SUCCESS)
    }
}

fn print(life: &Report) -> Result<()> {
    outln!("message {}", life.msg_id)?;
    for sentence in &life.verdict.items {
        outln!("  {sentence}")?;
    }
    more(life.verdict.truncated)?;
    let mut table = TextTable::new(&["  after", "for", "what"]);
    for event in &life.events.items {
        table.row([
            format!("  {} ms", event.at.ms() - life.accepted_at.ms()),
            event.target.clone().unwrap_or_default(),
            words(&event.event),
        ]);
    }
    out!("{table}\n")?;
    more(life.events.truncated)?;
    Ok(())
}

/// Formats an event as `pushed attempt=1 …`.
fn words(event: &EventDetail) -> String {
    let Ok(Value::Object(fields)) = serde_json::to_value(event) else {
        return format!("{event:?}");
    };
    let name = fields.get("type").and_then(Value::as_str);
    let name = name.unwrap_or_default().replace('_', " ");
    let fields = fields
        .iter()
        .filter(|(key, value)| *key != "type" && !value.is_null());
    fields.fold(name, |words, (key, value)| match value {
        Value::String(text) => format!("{words} {key}={text}"),
        other => format!("{words} {key}={other}"),
    })
}

#[cfg(test)]
mod tests {
    use protocol::SessionId;

    use super::*;

    #[test]
    fn an_event_is_a_few_words() {
        assert_eq!(words(&EventDetail::StoredOffline), "stored offline");
        let session = SessionId::new(7).expect("positive");
        assert_eq!(words(&EventDetail::Acked { session }), "acked session=7");
        let event = EventDetail::Retried {
            attempt: 1,
            tier: 2,
        };
        assert_eq!(words(&event), "retried attempt=1 tier=2");
    }
}
