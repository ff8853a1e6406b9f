//! `packetboat send`: sends messages from the command line.

use std::collections::VecDeque;
use std::io::{BufRead, IsTerminal};
use std::path::Path;
use std::process::ExitCode;
use std::time::Duration;

use anyhow::Result;
use clap::Args;
use client::core::{CatchUp, SendStatus};
use client::{Client, SendTicket};
use operator::answer::ErrorDetail;
use protocol::message::Content;
use protocol::{Code, DeviceId, GroupId, MessageId, Platform, Recipient, Refusal, UserId};
use serde::Serialize;
use tokio::sync::mpsc;
use tokio::time::{Instant, timeout_at};

use super::connection::{SignIn, attend};
use super::numbers::seconds;
use super::terminal::{errln, outln};

/// Messages in flight at a time.
const PIPELINE: usize = 256;

#[derive(Debug, Args)]
#[command(after_help = "Examples:
  packetboat send --user 1 --to 2 \"hello\"
  packetboat send --user 1 --to 7001 --group \"hello, all\"
  seq 1000 | packetboat send --user 1 --to 2 --stdin
  packetboat send --url wss://chat.example.com/ws --user 1 --to 2 \"hello\"")]
pub struct Send {
    #[command(flatten)]
    sign_in: SignIn,
    /// Platform to send from. A bot signs nobody out and gets no mail of its own.
    #[arg(long, default_value = "bot")]
    platform: Platform,
    /// Receiver: a user, or with --group a group.
    #[arg(long)]
    to: UserId,
    /// The receiver is a group.
    #[arg(long)]
    group: bool,
    /// Send each line of standard input as a message.
    #[arg(long, conflicts_with = "text")]
    stdin: bool,
    /// Time after which to give up on a message that the server has not accepted.
    #[arg(long, value_name = "SECONDS", default_value = "60", value_parser = seconds)]
    timeout: Duration,
    /// Message to send.
    #[arg(required_unless_present = "stdin")]
    text: Option<String>,
}

/// One line of output.
#[derive(Serialize)]
struct Line<'a> {
    send_id: String,
    #[serde(skip_serializing_if = "Option::is_none")]
    msg_id: Option<String>,
    status: &'a str,
    #[serde(skip_serializing_if = "Option::is_none")]
    error: Option<ErrorDetail>,
}

impl Send {
    pub(super) async fn run(self, config: Option<&Path>) -> Result<ExitCode> {
        let device = DeviceId::new(&format!("send-{}", uuid::Uuid::new_v4()))?;
        let mut settings = self.sign_in.client(config, self.platform, device)?;
        settings.catch_up = CatchUp::Recent(0);
        let (client, events) = Client::connect(settings).await?;
        tokio::spawn(attend(events));

        let to = if self.group {
            Recipient::Group(GroupId::new(self.to.get())?)
        } else {
            Recipient::User(self.to)
        };
        let mut lines = self.lines();
        let mut sends = VecDeque::new();
        let mut all_accepted = true;
        loop {
            tokio::select! {
                biased;
                line = lines.recv(), if sends.len() < PIPELINE => match line {
                    Some(text) => {
                        let ticket = client.send(to, Content::text(text?)).await?;
                        let deadline = Instant::now() + self.timeout;
                        sends.push_back(SendAttempt { ticket, deadline });
                    }
                    None if sends.is_empty() => break,
                    None => all_accepted &= report(&client, &mut sends).await?,
                },
                accepted = report(&client, &mut sends), if !sends.is_empty() => {
                    all_accepted &= accepted?;
                }
            }
        }
        client.close().await;
        Ok(if all_accepted {
            ExitCode::SUCCESS
        } else {
            ExitCode::FAILURE
        })
    }

    /// Reads the texts concurrently with the sending, and no faster.
    fn lines(&self) -> mpsc::Receiver<std::io::Result<String>> {
        let (feed, lines) = mpsc::channel(PIPELINE);
        let text = self.text.clone();
        std::thread::spawn(move || match text {
            Some(text) => drop(feed.blocking_send(Ok(text))),
            None => {
                let input = std::io::stdin();
                if input.is_terminal() {
                    errln!("One message per line; end with Ctrl-D.");
                }
                for line in input.lock().lines() {
                    if feed.blocking_send(line).is_err() {
                        break;
                    }
                }
            }
        });
        lines
    }
}

/// A message in flight, and the deadline of its retries.
struct SendAttempt {
    ticket: SendTicket,
    deadline: Instant,
}

/// Waits for the oldest send and prints its line; true if it was accepted. Cancel safe.
async fn report(client: &Client, sends: &mut VecDeque<SendAttempt>) -> Result<bool> {
    let Some(oldest) = sends.front_mut() else {
        return Ok(true);
    };
    let answer = oldest.answer(client).await?;
    let send_id = oldest.ticket.send_id().to_string();
    sends.pop_front();
    let is_accepted = answer.is_ok();
    let line = match answer {
        Ok(id) => Line {
            send_id,
            msg_id: Some(id.to_string()),
            status: "accepted",
            error: None,
        },
        Err(refusal) => Line {
            send_id,
            msg_id: None,
            status: "failed",
            error: Some(ErrorDetail::from(&refusal)),
        },
    };
    outln!("{}", serde_json::to_string(&line)?)?;
    Ok(is_accepted)
}

impl SendAttempt {
    /// Waits for the outcome. Retries a retryable failure until the deadline; after it, later
    /// messages go on without this one.
    async fn answer(&mut self, client: &Client) -> Result<Result<MessageId, Refusal>> {
        let send_id = self.ticket.send_id();
        loop {
            match timeout_at(self.deadline, self.ticket.accepted()).await {
                Ok(Err(refusal)) if refusal.code.retryable() && Instant::now() < self.deadline => {
                    if !client.retry(send_id).await? {
                        return Ok(Err(refusal));
                    }
                }
                Ok(answer) => return Ok(answer),
                Err(_) => {
                    client.give_up(send_id).await?;
                    let text = "not accepted in time; it may still be".to_owned();
                    return Ok(Err(Refusal::new(Code::DeadlineExceeded, text)));
                }
            }
        }
    }
}

/// One word for the status.
pub(super) fn word(status: &SendStatus) -> &'static str {
    match status {
        SendStatus::Pending => "sending",
        SendStatus::Failed(_) => "failed",
        SendStatus::Accepted { .. } | SendStatus::Placed { .. } => "sent",
        SendStatus::Delivered { .. } => "delivered",
        SendStatus::Read { .. } => "read",
    }
}
