//! `packetboat chat`: a conversation in the terminal.

mod lines;
mod screen;
mod talk;

use std::io::IsTerminal;
use std::path::Path;
use std::process::ExitCode;

use anyhow::{Result, bail};
use clap::Args;
use client::Client;
use client::core::CatchUp;
use protocol::{GroupId, Recipient, UserId};

use super::connection::Device;
use talk::Talk;

/// Past messages shown at the start.
const PAST: u32 = 50;

#[derive(Debug, Args)]
#[command(after_help = "Examples:
  packetboat chat --user 1 --to 2
  packetboat chat --user 1 --group 7001
  printf '/list\\n' | packetboat chat --user 1 --to 2 --device script
Lines that begin with a slash are commands: /more, /list, /open USER or /open g:GROUP, /recall,
/edit TEXT, /react EMOJI, /hide, /clear, /clear-all.")]
pub struct ChatCommand {
    #[command(flatten)]
    device: Device,
    /// User to chat with.
    #[arg(long, required_unless_present = "group")]
    to: Option<UserId>,
    /// Group to chat in.
    #[arg(long, conflicts_with = "to")]
    group: Option<GroupId>,
}

impl ChatCommand {
    pub(super) async fn run(self, config: Option<&Path>) -> Result<ExitCode> {
        let mut settings = self.device.config(config)?;
        settings.catch_up = CatchUp::Recent(PAST);
        let me = self.device.sign_in.user;
        let with = match (self.group, self.to) {
            (Some(group), _) => Recipient::Group(group),
            (None, Some(to)) => Recipient::User(to),
            (None, None) => bail!("name a user with --to or a group with --group"),
        };
        let (client, events) = Client::connect(settings).await?;
        let talk = Talk::new(client.clone(), events, me, with)?;
        let result = if std::io::stdin().is_terminal() && std::io::stdout().is_terminal() {
            screen::run(talk).await
        } else {
            lines::run(talk).await
        };
        client.close().await;
        result.map(|()| ExitCode::SUCCESS)
    }
}
