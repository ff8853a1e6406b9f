//! `packetboat kick`: ends the sessions of a user, and revokes tokens.

use std::path::Path;
use std::process::ExitCode;

use anyhow::{Context, Result};
use clap::Args;
use operator::answer::utc;
use operator::users::{ANSWER_TIMEOUT, KickAnswer, KickQuestion};
use protocol::{Platform, UserId};
use tokio::time::timeout;

use super::Output;
use super::desk::Desk;
use super::terminal::outln;

#[derive(Debug, Args)]
#[command(after_help = "Examples:
  packetboat kick --user 7 --revoke --reason \"the phone was stolen\"
  packetboat kick --user 7 --platform web --reason \"asked by phone\"")]
pub struct Kick {
    /// User whose sessions end.
    #[arg(long)]
    user: UserId,
    /// Only sessions on this platform; the user may sign in again.
    #[arg(long, conflicts_with = "revoke")]
    platform: Option<Platform>,
    /// Also refuse every token issued until now.
    #[arg(long)]
    revoke: bool,
    /// Reason, recorded in the log of operations (packetboat dlq log) and not shown to the user.
    #[arg(long, value_name = "TEXT")]
    reason: String,
    #[command(flatten)]
    desk: Desk,
    #[arg(long, value_enum, default_value_t)]
    output: Output,
}

impl Kick {
    pub(super) async fn run(self, _config: Option<&Path>) -> Result<ExitCode> {
        let path = format!("/api/v1/users/{}/kick", self.user);
        let question = KickQuestion {
            platform: self.platform.map(|platform| platform.name().to_owned()),
            revoke: self.revoke,
            why: self.reason,
        };
        let answer = timeout(ANSWER_TIMEOUT, self.desk.post(&path, &question)).await;
        let kick_answer: KickAnswer = answer.context(
            "no answer in time; the kick may have been done anyway (see packetboat dlq log): try again",
        )??;
        match self.output {
            Output::Json => outln!("{}", serde_json::to_string(&kick_answer)?)?,
            Output::Table => print(self.user, &kick_answer)?,
        }
        Ok(ExitCode::SUCCESS)
    }
}

fn print(user: UserId, answer: &KickAnswer) -> Result<()> {
    if let Some(cutoff) = answer.revoked_before {
        let cutoff = utc(cutoff);
        outln!("tokens of user {user} that were issued before {cutoff} are refused")?;
    }
    outln!("user {user}: {} sessions ending", answer.sessions)?;
    Ok(())
}
