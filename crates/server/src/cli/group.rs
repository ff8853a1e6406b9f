//! `packetboat group`: groups from the command line.

use std::path::Path;
use std::process::ExitCode;
use std::time::Duration;

use anyhow::{Result, bail};
use backend::clock::{Clock, SystemClock};
use clap::{ArgAction, Args, Subcommand, ValueEnum};
use client::core::CatchUp;
use client::{Client, SendTicket};
use operator::answer::ErrorDetail;
use protocol::group::{GroupCommand, GroupSettings, Role};
use protocol::{Code, DeviceId, GroupId, Platform, Refusal, Timestamp, UserId};
use serde_json::json;
use tokio::time::timeout;

use super::connection::{SignIn, attend};
use super::numbers::{seconds, span};
use super::terminal::outln;

#[derive(Debug, Args)]
#[command(after_help = "Examples:
  packetboat group create --user 1 2 3
  packetboat group add --user 1 --group 7001 4 5
  packetboat group role --user 1 --group 7001 4 admin
  packetboat group mute --user 1 --group 7001 5 --for 2h
  packetboat group members --user 1 --group 7001")]
pub struct Group {
    #[command(subcommand)]
    what: GroupArgs,
}

#[derive(Debug, Subcommand)]
enum GroupArgs {
    /// Create a group; its number is chosen at random.
    Create {
        #[command(flatten)]
        who: CallerArgs,
        #[command(flatten)]
        settings: Doors,
        /// Initial members, besides me.
        members: Vec<UserId>,
    },
    /// Join a group whose door is open.
    Join(Here),
    /// Leave the group.
    Leave(Here),
    /// Add members.
    Add {
        #[command(flatten)]
        here: Here,
        #[arg(required = true)]
        users: Vec<UserId>,
    },
    /// Remove members.
    Remove {
        #[command(flatten)]
        here: Here,
        /// Members to remove.
        #[arg(required = true)]
        users: Vec<UserId>,
    },
    /// Remove users, members or not, and keep them out until an administrator adds them.
    Ban {
        #[command(flatten)]
        here: Here,
        /// Users to ban.
        #[arg(required = true)]
        users: Vec<UserId>,
    },
    /// Let a member write nothing for some time; with `--for 0s`, let them write again.
    Mute {
        #[command(flatten)]
        here: Here,
        /// Member to mute.
        whom: UserId,
        /// Time from now on, as in 10m, 2h or 7days.
        #[arg(long = "for", value_name = "DURATION", value_parser = span)]
        duration: Duration,
    },
    /// End the group for good.
    Dissolve(Here),
    /// Make a member an administrator, or a plain member again.
    Role {
        #[command(flatten)]
        here: Here,
        /// Member whose role changes.
        whom: UserId,
        role: RoleArg,
    },
    /// Make another member the owner.
    HandOver {
        #[command(flatten)]
        here: Here,
        /// Member to become the owner.
        whom: UserId,
    },
    /// Set who may join, read and write. Replaces all settings: a flag that is missing is off.
    Set {
        #[command(flatten)]
        here: Here,
        #[command(flatten)]
        settings: Doors,
    },
    /// Print the members: one JSON line for each.
    Members(Here),
}

/// Identity and time limit of a command.
#[derive(Debug, Args)]
struct CallerArgs {
    #[command(flatten)]
    sign_in: SignIn,
    /// Time after which to give up.
    #[arg(long, value_name = "SECONDS", default_value = "20", value_parser = seconds)]
    timeout: Duration,
}

#[derive(Debug, Args)]
struct Here {
    #[command(flatten)]
    who: CallerArgs,
    /// Group to act on.
    #[arg(long)]
    group: GroupId,
}

#[derive(Debug, Args)]
struct Doors {
    /// New members may read earlier messages.
    #[arg(long, action = ArgAction::SetTrue)]
    open_history: bool,
    /// Anybody may join.
    #[arg(long, action = ArgAction::SetTrue)]
    open_door: bool,
    /// Only the owner and administrators write.
    #[arg(long, action = ArgAction::SetTrue)]
    muted: bool,
    /// The group is announced like a large one, whatever its size.
    #[arg(long, action = ArgAction::SetTrue)]
    quiet: bool,
}

#[derive(Clone, Copy, Debug, ValueEnum)]
enum RoleArg {
    Admin,
    Member,
}

impl Group {
    pub(super) async fn run(self, config: Option<&Path>) -> Result<ExitCode> {
        let (args, command) = match self.what {
            GroupArgs::Create {
                who,
                settings,
                members,
            } => return create(who, settings.settings(), members, config).await,
            GroupArgs::Members(args) => return members(args, config).await,
            GroupArgs::Join(args) => (args, GroupCommand::Join),
            GroupArgs::Leave(args) => (args, GroupCommand::Leave),
            GroupArgs::Add { here: args, users } => (args, GroupCommand::Add(users)),
            GroupArgs::Remove { here: args, users } => (args, GroupCommand::Remove(users)),
            GroupArgs::Ban { here: args, users } => (args, GroupCommand::Ban(users)),
            GroupArgs::Mute {
                here: args,
                whom,
                duration,
            } => {
                let until = if duration.is_zero() {
                    Timestamp::ZERO
                } else {
                    SystemClock.now() + duration
                };
                (args, GroupCommand::Mute(whom, until))
            }
            GroupArgs::Dissolve(args) => (args, GroupCommand::Dissolve),
            GroupArgs::Role {
                here: args,
                whom,
                role,
            } => (args, GroupCommand::SetRole(whom, role.role())),
            GroupArgs::HandOver { here: args, whom } => (args, GroupCommand::HandOver(whom)),
            GroupArgs::Set {
                here: args,
                settings,
            } => (args, GroupCommand::Set(settings.settings())),
        };
        let client = args.who.connect(config).await?;
        let ticket = client.group_command(args.group, command).await?;
        report(&client, args.group, ticket, args.who.timeout).await
    }
}

impl Doors {
    fn settings(&self) -> GroupSettings {
        GroupSettings {
            open_history: self.open_history,
            open_door: self.open_door,
            muted: self.muted,
            quiet: self.quiet,
        }
    }
}

impl RoleArg {
    fn role(self) -> Role {
        match self {
            RoleArg::Admin => Role::Admin,
            RoleArg::Member => Role::Member,
        }
    }
}

impl CallerArgs {
    /// Connects as a bot, like `send`: a bot signs nobody out.
    async fn connect(&self, config: Option<&Path>) -> Result<Client> {
        let device = DeviceId::new(&format!("group-{}", uuid::Uuid::new_v4()))?;
        let mut settings = self.sign_in.client(config, Platform::Bot, device)?;
        settings.catch_up = CatchUp::Recent(0);
        let (client, events) = Client::connect(settings).await?;
        tokio::spawn(attend(events));
        Ok(client)
    }
}

async fn create(
    caller: CallerArgs,
    settings: GroupSettings,
    members: Vec<UserId>,
    config: Option<&Path>,
) -> Result<ExitCode> {
    let client = caller.connect(config).await?;
    let (group, ticket) = client.create_group(settings, members).await?;
    report(&client, group, ticket, caller.timeout).await
}

/// Prints one line; done means that the group is in this state now.
async fn report(
    client: &Client,
    group: GroupId,
    mut ticket: SendTicket,
    patience: Duration,
) -> Result<ExitCode> {
    let (status, refusal) = match timeout(patience, ticket.placed()).await {
        Ok(Ok(())) => ("done", None),
        Ok(Err(refusal)) => ("failed", Some(refusal)),
        Err(_) => {
            let text = "no answer in time; it may still be done";
            ("unknown", Some(Refusal::new(Code::DeadlineExceeded, text)))
        }
    };
    let group = group.get();
    let line = match &refusal {
        None => json!({ "group": group, "status": status }),
        Some(refusal) => {
            json!({ "group": group, "status": status, "error": ErrorDetail::from(refusal) })
        }
    };
    outln!("{line}")?;
    client.close().await;
    Ok(match refusal {
        None => ExitCode::SUCCESS,
        Some(_) => ExitCode::FAILURE,
    })
}

async fn members(args: Here, config: Option<&Path>) -> Result<ExitCode> {
    let client = args.who.connect(config).await?;
    let ready = timeout(args.who.timeout, client.ready()).await;
    match ready {
        Ok(ready) => ready.map_err(anyhow::Error::msg)?,
        Err(_) => bail!("cannot reach the server in time"),
    }
    let mut cursor = None;
    loop {
        let page = client.members(args.group, cursor).await?;
        for (user, role) in &page.members {
            let role = match role {
                Role::Owner => "owner",
                Role::Admin => "admin",
                Role::Member => "member",
            };
            outln!("{}", json!({ "user": user.get(), "role": role }))?;
        }
        cursor = page.members.last().map(|(user, _)| *user);
        if !page.more || cursor.is_none() {
            break;
        }
    }
    client.close().await;
    Ok(ExitCode::SUCCESS)
}
