//! Selects the letters of a command.

use std::time::Duration;

use anyhow::Result;
use backend::clock::{Clock, SystemClock};
use clap::Args;
use operator::answer::{Time, reason as reasons};
use operator::dead_letters::routes::{LETTERS_MAX, ListQuestion};
use operator::dead_letters::rules::{Cause, OperatorWork};
use operator::dead_letters::{Filter, Kind, Selection};
use protocol::UserId;
use protocol::ledger::DeadReason;

use crate::cli::numbers::span;

/// Filters, all of which must match.
#[derive(Clone, Debug, Args)]
pub(super) struct Filters {
    /// Only messages, or only notifications.
    #[arg(long, value_name = "message|notification", value_parser = topic)]
    topic: Option<Kind>,
    /// Only letters with this reason of death.
    #[arg(long, value_parser = reason)]
    reason: Option<DeadReason>,
    /// Only letters of this cause, as printed by `stats`.
    #[arg(long)]
    cause: Option<Cause>,
    /// Only letters whose error contains this text.
    #[arg(long)]
    text: Option<String>,
    /// Only letters of this conversation, such as p:1:2.
    #[arg(long)]
    conversation: Option<String>,
    /// Only letters that this user is missing.
    #[arg(long)]
    user: Option<UserId>,
    /// Only letters that died in the last 2h, 3d …
    #[arg(long, value_name = "TIME", value_parser = span)]
    last: Option<Duration>,
    /// Only letters that died longer ago than this.
    #[arg(long, value_name = "TIME", value_parser = span)]
    older_than: Option<Duration>,
}

impl Filters {
    pub(super) fn question(self) -> ListQuestion {
        ListQuestion {
            kind: self.topic,
            reason: self.reason.map(reasons::name),
            cause: self.cause.map(|cause| cause.to_string()),
            text: self.text,
            conversation: self.conversation,
            user: self.user,
            since: self.last.map(before_now),
            until: self.older_than.map(before_now),
            ..ListQuestion::default()
        }
    }

    fn filter(&self) -> Filter {
        Filter {
            kind: self.topic,
            reason: self.reason,
            cause: self.cause.clone(),
            text: self.text.clone(),
            conversation: self.conversation.clone(),
            user: self.user,
            since: self.last.map(before_now),
            until: self.older_than.map(before_now),
            ..Filter::default()
        }
    }
}

/// Letters by id, or by filters.
#[derive(Clone, Debug, Args)]
pub(super) struct SelectionArgs {
    /// Letters, by id.
    #[arg(
        required_unless_present_any = ["reason", "cause", "text", "conversation", "user", "all"],
        conflicts_with_all = [
            "topic", "reason", "cause", "text", "conversation", "user", "last", "older_than",
        ]
    )]
    ids: Vec<String>,
    /// All letters, whatever their reason.
    #[arg(long, conflicts_with = "ids")]
    all: bool,
    #[command(flatten)]
    filters: Filters,
    /// Maximum number of letters selected by filter, oldest first.
    #[arg(long, default_value_t = LETTERS_MAX, value_parser = letters)]
    limit: usize,
}

impl SelectionArgs {
    pub(super) fn is_by_name(&self) -> bool {
        !self.ids.is_empty()
    }

    /// Named letters, or the filtered ones to which this work applies.
    pub(super) fn selection(&self, work: OperatorWork) -> Result<Selection> {
        if self.is_by_name() {
            return Ok(Selection::ids(self.ids.clone()));
        }
        let filter = Filter {
            redriven: Some(false),
            discarded: Some(work == OperatorWork::Restore),
            ..self.filters.filter()
        };
        Ok(Selection::Filter {
            filter,
            limit: self.limit,
        })
    }
}

fn before_now(ago: Duration) -> Time {
    Time::from(SystemClock.now() - ago)
}

fn reason(name: &str) -> Result<DeadReason, String> {
    let names = || DeadReason::ALL.map(DeadReason::name).join(", ");
    DeadReason::from_name(name).ok_or_else(|| format!("unknown reason; use one of {}", names()))
}

fn topic(name: &str) -> Result<Kind, String> {
    let names = || Kind::ALL.map(Kind::name).join(" and ");
    Kind::from_name(name).ok_or_else(|| format!("there are {}", names()))
}

pub(super) fn letters(text: &str) -> Result<usize, String> {
    match text.parse() {
        Ok(count @ 1..=LETTERS_MAX) => Ok(count),
        _ => Err(format!("1 to {LETTERS_MAX} at a time")),
    }
}
