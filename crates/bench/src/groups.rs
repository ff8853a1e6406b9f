//! Groups created as a user creates them: by commands of `packetboat`.

use std::path::Path;
use std::process::Stdio;

use anyhow::{Context, Result, bail};
use protocol::GroupId;
use protocol::group::GroupLimits;
use serde::Deserialize;
use tokio::process::Command;

use super::dialect::Dialect;

/// Answer of `packetboat group`.
#[derive(Deserialize)]
struct Answer {
    group: i64,
    status: String,
}

/// Creates a group of `owner` and these users of the load, in as many steps as it takes.
pub(super) async fn create_group(
    config: Option<&Path>,
    url: &str,
    owner: u64,
    members: impl Iterator<Item = u64>,
) -> Result<GroupId> {
    let owner = Dialect::user(owner)?.to_string();
    let members = members.map(|user| Ok(Dialect::user(user)?.to_string()));
    let members: Vec<String> = members.collect::<Result<_>>()?;
    let mut steps = members.chunks(GroupLimits::default().users_per_command);
    let create = ["create", "--url", url, "--user", &owner].map(str::to_owned);
    let group = group_command(config, &create, steps.next().unwrap_or_default()).await?;
    for members in steps {
        let number = group.get().to_string();
        let add = ["add", "--url", url, "--user", &owner, "--group", &number].map(str::to_owned);
        group_command(config, &add, members).await?;
    }
    Ok(group)
}

async fn group_command(
    config: Option<&Path>,
    arguments: &[String],
    members: &[String],
) -> Result<GroupId> {
    let mut command = Command::new(std::env::current_exe().context("finding this binary")?);
    command.args(["packetboat", "group"]).args(arguments);
    if let Some(config) = config {
        command.arg("--config").arg(config);
    }
    command.args(members);
    let output = command.stderr(Stdio::inherit()).output().await?;
    let answer: Answer = serde_json::from_slice(&output.stdout).context("creating a group")?;
    if answer.status != "done" {
        bail!("cannot create a group: {}", answer.status);
    }
    Ok(GroupId::new(answer.group)?)
}
