//! `packetboat group`: groups from the command line.

use std::path::Path;
use std::process::ExitCode;
use std::time::Duration;

use anyhow::{Result, bail};
use clap::{ArgAction, Args, Subcommand, ValueEnum};
use client::core::CatchUp;
use client::{Client, SendTicket};
use protocol::group::{Role, Settings, Wish};
use protocol::{DeviceId, GroupId, Platform, UserId};
use serde_json::json;
use tokio::time::timeout;

use super::connection::{SignIn, attend};

#[derive(Debug, Args)]
#[command(after_help = "Examples:
  packetboat group create --user 1 2 3
  packetboat group add --user 1 --group 7001 4 5
  packetboat group role --user 1 --group 7001 4 admin
  packetboat group members --user 1 --group 7001")]
pub struct Group {
    #[command(subcommand)]
    what: What,
}

#[derive(Debug, Subcommand)]
enum What {
    /// Make a new group; its number is chosen at random.
    Create {
        #[command(flatten)]
        who: Who,
        #[command(flatten)]
        settings: Doors,
        /// Who is in it from the beginning, beside me.
        members: Vec<UserId>,
    },
    /// Come in, where the door is open.
    Join(Here),
    /// Go.
    Leave(Here),
    /// Bring people in.
    Add {
        #[command(flatten)]
        here: Here,
        #[arg(required = true)]
        users: Vec<UserId>,
    },
    /// Send somebody away.
    Remove {
        #[command(flatten)]
        here: Here,
        /// A user.
        whom: UserId,
    },
    /// Make somebody an administrator, or a plain member again.
    Role {
        #[command(flatten)]
        here: Here,
        /// A user.
        whom: UserId,
        role: Given,
    },
    /// Make somebody else its owner.
    HandOver {
        #[command(flatten)]
        here: Here,
        /// A user.
        whom: UserId,
    },
    /// Say who may come, and what they may read.
    Set {
        #[command(flatten)]
        here: Here,
        #[command(flatten)]
        settings: Doors,
    },
    /// Print who is in: one JSON line for each.
    Members(Here),
}

/// As whom, and how long.
#[derive(Debug, Args)]
struct Who {
    #[command(flatten)]
    sign_in: SignIn,
    /// Give up when it is not done for so long.
    #[arg(long, value_name = "SECONDS", default_value_t = 20)]
    timeout: u64,
}

#[derive(Debug, Args)]
struct Here {
    #[command(flatten)]
    who: Who,
    /// Which group.
    #[arg(long)]
    group: GroupId,
}

#[derive(Debug, Args)]
struct Doors {
    /// Who comes later may read what was before.
    #[arg(long, action = ArgAction::SetTrue)]
    open_history: bool,
    /// Anybody may come.
    #[arg(long, action = ArgAction::SetTrue)]
    open_door: bool,
}

#[derive(Clone, Copy, Debug, ValueEnum)]
enum Given {
    Admin,
    Member,
}

impl Group {
    pub(super) async fn run(self, config: Option<&Path>) -> Result<ExitCode> {
        let (here, wish) = match self.what {
            What::Create {
                who,
                settings,
                members,
            } => return create(who, settings.settings(), members, config).await,
            What::Members(here) => return members(here, config).await,
            What::Join(here) => (here, Wish::Join),
            What::Leave(here) => (here, Wish::Leave),
            What::Add { here, users } => (here, Wish::Add(users)),
            What::Remove { here, whom } => (here, Wish::Remove(whom)),
            What::Role { here, whom, role } => (here, Wish::SetRole(whom, role.role())),
            What::HandOver { here, whom } => (here, Wish::HandOver(whom)),
            What::Set { here, settings } => (here, Wish::Set(settings.settings())),
        };
        let client = here.who.connect(config).await?;
        let ticket = client.wish(here.group, wish).await?;
        report(&client, here.group, ticket, here.who.patience()).await
    }
}

impl Doors {
    fn settings(&self) -> Settings {
        Settings {
            open_history: self.open_history,
            open_door: self.open_door,
        }
    }
}

impl Given {
    fn role(self) -> Role {
        match self {
            Given::Admin => Role::Admin,
            Given::Member => Role::Member,
        }
    }
}

impl Who {
    /// As `send` does: a bot signs nobody out.
    async fn connect(&self, config: Option<&Path>) -> Result<Client> {
        let device = DeviceId::new(&format!("group-{}", uuid::Uuid::new_v4()))?;
        let mut settings = self.sign_in.client(config, Platform::Bot, device)?;
        settings.catch_up = CatchUp::Recent(0);
        let (client, events) = Client::connect(settings).await?;
        tokio::spawn(attend(events));
        Ok(client)
    }

    fn patience(&self) -> Duration {
        Duration::from_secs(self.timeout)
    }
}

async fn create(
    who: Who,
    settings: Settings,
    members: Vec<UserId>,
    config: Option<&Path>,
) -> Result<ExitCode> {
    let client = who.connect(config).await?;
    let (group, ticket) = client.create_group(settings, members).await?;
    report(&client, group, ticket, who.patience()).await
}

/// One line; done means that the group is so now.
async fn report(
    client: &Client,
    group: GroupId,
    mut ticket: SendTicket,
    patience: Duration,
) -> Result<ExitCode> {
    let (line, code) = match timeout(patience, ticket.placed()).await {
        Ok(Ok(())) => (
            json!({ "group": group.get(), "status": "done" }),
            ExitCode::SUCCESS,
        ),
        Ok(Err(refusal)) => {
            let (code, error) = (refusal.code.name(), refusal.text);
            let line =
                json!({ "group": group.get(), "status": "failed", "code": code, "error": error });
            (line, ExitCode::FAILURE)
        }
        Err(_) => {
            let error = "it was not done in time; it may still be";
            let line = json!({ "group": group.get(), "status": "unknown", "error": error });
            (line, ExitCode::FAILURE)
        }
    };
    println!("{line}");
    client.close().await;
    Ok(code)
}

async fn members(here: Here, config: Option<&Path>) -> Result<ExitCode> {
    let client = here.who.connect(config).await?;
    let ready = timeout(here.who.patience(), client.ready()).await;
    match ready {
        Ok(ready) => ready.map_err(anyhow::Error::msg)?,
        Err(_) => bail!("the server was not reached in time"),
    }
    let mut after = None;
    loop {
        let page = client.members(here.group, after).await?;
        for (user, role) in &page.members {
            let role = match role {
                Role::Owner => "owner",
                Role::Admin => "admin",
                Role::Member => "member",
            };
            println!("{}", json!({ "user": user.get(), "role": role }));
        }
        after = page.members.last().map(|(user, _)| *user);
        if !page.more || after.is_none() {
            break;
        }
    }
    client.close().await;
    Ok(ExitCode::SUCCESS)
}
