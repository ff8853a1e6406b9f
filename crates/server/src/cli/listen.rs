//! `packetboat listen`: prints messages to standard output.

use std::borrow::Cow;
use std::path::Path;
use std::pin::pin;
use std::process::ExitCode;
use std::time::Duration;

use anyhow::{Result, bail};
use clap::Args;
use client::core::{CatchUp, ConnectionState, Origin, ShownMessage};
use client::{Client, Event, Events};
use operator::answer::Time;
use protocol::ConversationId;
use protocol::change::{MessageChange, OrderedChange};
use serde::Serialize;
use tokio::time::{Instant, sleep_until};

use super::connection::{Complaints, Device};
use super::numbers::seconds;
use super::terminal::{errln, outln};

#[derive(Debug, Args)]
#[command(after_help = "Examples:
  packetboat listen --user 2
  packetboat listen --user 2 --platform ios --count 3 --timeout 10
  packetboat listen --url tls://10.0.0.7:9001 --ca-file ca.pem --user 2")]
pub struct Listen {
    #[command(flatten)]
    device: Device,
    /// End after this many messages.
    #[arg(long)]
    count: Option<u64>,
    /// End after this many seconds: exit 1 if --count is not reached by then.
    #[arg(long, value_name = "SECONDS", value_parser = seconds)]
    timeout: Option<Duration>,
    /// Show messages, but never acknowledge nor remember them (for tests: the server will reconnect
    /// this session and keep the messages).
    #[arg(long)]
    no_ack: bool,
    /// Only new messages, not those this device has missed.
    #[arg(long)]
    from_now: bool,
    /// Include my own messages.
    #[arg(long)]
    own: bool,
}

/// One line of output.
#[derive(Serialize)]
#[serde(tag = "type", rename_all = "snake_case")]
enum Line<'a> {
    Message {
        msg_id: String,
        send_id: String,
        from: i64,
        conversation: String,
        seq: u64,
        /// Time of acceptance by the server.
        accepted_at: Time,
        text: Cow<'a, str>,
    },
    /// Change to a message that is older, or was printed before.
    Change {
        /// Name of its kind, such as `recall`.
        change: &'static str,
        rev: u64,
        msg_id: String,
        by: i64,
        conversation: String,
        seq: u64,
        #[serde(skip_serializing_if = "Option::is_none")]
        text: Option<Cow<'a, str>>,
        /// True for one that takes something back, such as a reaction.
        #[serde(skip_serializing_if = "std::ops::Not::not")]
        removed: bool,
    },
    /// Messages that the user hid: printed ones should be forgotten.
    Hidden {
        conversation: String,
        seqs: Vec<u64>,
    },
}

impl Listen {
    pub(super) async fn run(self, config: Option<&Path>) -> Result<ExitCode> {
        let mut settings = self.device.config(config)?;
        settings.acks = !self.no_ack;
        if self.from_now {
            settings.catch_up = CatchUp::Recent(0);
        }
        let deadline = self.timeout.map(|timeout| Instant::now() + timeout);
        let (client, mut events) = Client::connect(settings).await?;
        let result = self.listen(&mut events, deadline).await;
        client.close().await;
        result
    }

    async fn listen(&self, events: &mut Events, deadline: Option<Instant>) -> Result<ExitCode> {
        let (mut message_count, mut complaints) = (0, Complaints::default());
        let mut interrupt = pin!(tokio::signal::ctrl_c());
        while self.count.is_none_or(|count| message_count < count) {
            let event = tokio::select! {
                biased;
                // Events may come without a pause.
                _ = &mut interrupt => break,
                () = sleep_until_deadline(deadline) => break,
                event = events.next() => event,
            };
            match event {
                Some(Event::Message(shown)) if self.own || shown.origin == Origin::Other => {
                    print(&shown)?;
                    message_count += 1;
                }
                Some(Event::Changed {
                    conversation,
                    change: changed,
                    ..
                }) => print_change(conversation, &changed)?,
                Some(Event::Hidden {
                    conversation, seqs, ..
                }) => write_line(&Line::Hidden {
                    conversation: conversation.to_string(),
                    seqs: seqs.into_iter().map(|seq| seq.0).collect(),
                })?,
                Some(Event::State(ConnectionState::Closed(reason))) => {
                    bail!("connection lost: {reason}")
                }
                Some(Event::State(state)) => complaints.hear(&state),
                Some(Event::Gap {
                    conversation,
                    from,
                    to,
                    ..
                }) if !self.from_now => {
                    errln!("packetboat: {conversation}: messages {from} to {to} were skipped");
                }
                Some(Event::Reset(reset)) => errln!("packetboat: local state was reset: {reset:?}"),
                Some(_) => {}
                None => bail!("the client ended"),
            }
        }
        events.taken();
        match self.count {
            Some(count) if message_count < count => {
                errln!("packetboat: timed out with {message_count} of {count} messages");
                Ok(ExitCode::FAILURE)
            }
            _ => Ok(ExitCode::SUCCESS),
        }
    }
}

async fn sleep_until_deadline(deadline: Option<Instant>) {
    match deadline {
        Some(deadline) => sleep_until(deadline).await,
        None => std::future::pending().await,
    }
}

fn print_change(conversation: ConversationId, changed: &OrderedChange) -> Result<()> {
    let change = &changed.asked;
    let text = match &change.change {
        MessageChange::Edit(content) => Some(String::from_utf8_lossy(&content.data)),
        MessageChange::React { reaction, .. } => Some(Cow::Borrowed(reaction.as_str())),
        _ => None,
    };
    write_line(&Line::Change {
        change: change.change.name(),
        rev: changed.rev,
        msg_id: change.subject.to_string(),
        by: change.by.get(),
        conversation: conversation.to_string(),
        seq: changed.seq.0,
        text,
        removed: !change.change.is_on(),
    })
}

fn print(shown: &ShownMessage) -> Result<()> {
    let message = &shown.placed.message;
    write_line(&Line::Message {
        msg_id: message.id.to_string(),
        send_id: message.send_id.to_string(),
        from: message.from.get(),
        conversation: shown.placed.conversation.to_string(),
        seq: shown.placed.position.seq.0,
        accepted_at: message.accepted_at.into(),
        text: String::from_utf8_lossy(&message.content.data),
    })
}

fn write_line(line: &Line<'_>) -> Result<()> {
    Ok(outln!("{}", serde_json::to_string(line)?)?)
}
