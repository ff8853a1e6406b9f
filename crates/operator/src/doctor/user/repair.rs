//! Repairs a user's data. Each step is an operation of the store itself, which may be repeated and
//! gives way to a concurrent writer.

use std::time::Duration;

use anyhow::{Result, anyhow, bail};
use protocol::cache::{CacheKey, Invalidation};
use protocol::conversation::ConversationRow;
use protocol::{ConversationId, UserId};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use tokio::time::{Instant, timeout};

use super::Mend;
use super::examine::examine_user;
use crate::doctor::{ANSWER_TIMEOUT, Doctor, UserReport};
use backend::Backends;

/// Limit of steps in one repair; a further request goes on.
const MENDS: usize = 500;
/// Time after which no further step begins: one examination at a time has room.
const STEPS_WITHIN: Duration = Duration::from_secs(60);
/// Limit of steps named in the log of operations.
const MAX_LOGGED_MENDS: usize = 50;

/// Report before a repair, its steps, and the report after it.
#[derive(Clone, Debug, PartialEq, Eq, JsonSchema, Serialize, Deserialize)]
pub struct RepairReport {
    pub before: UserReport,
    pub steps: Vec<RepairStep>,
    pub after: UserReport,
}

/// One step of a repair.
#[derive(Clone, Debug, PartialEq, Eq, JsonSchema, Serialize, Deserialize)]
pub struct RepairStep {
    /// Step, in words.
    pub step: String,
    /// Reason for a step that failed, or was not begun, which may be requested again.
    pub error: Option<String>,
}

impl Doctor {
    /// Repairs the differences that a look finds now. Logs operator and reason first. `None` if
    /// this process does not see the stores.
    ///
    /// # Errors
    /// A log of operations that cannot be written; nothing is repaired then.
    pub async fn repair(
        &self,
        by: &str,
        user: UserId,
        reason: &str,
    ) -> Result<Option<RepairReport>> {
        let Some(backends) = &self.parts.access.backends else {
            return Ok(None);
        };
        let examination = examine_user(backends, user).await;
        let mends = examination
            .differences
            .iter()
            .filter_map(|d| d.mend.clone());
        let mends: Vec<Mend> = mends.take(MENDS).collect();
        let report_before = examination.report();
        if mends.is_empty() {
            let report_after = report_before.clone();
            return Ok(Some(RepairReport {
                before: report_before,
                steps: Vec::new(),
                after: report_after,
            }));
        }
        self.write_down(by, user, &mends, reason).await?;
        let steps = mend_all(backends, mends).await;
        let report_after = examine_user(backends, user).await.report();
        Ok(Some(RepairReport {
            before: report_before,
            steps,
            after: report_after,
        }))
    }

    async fn write_down(&self, by: &str, user: UserId, mends: &[Mend], reason: &str) -> Result<()> {
        let Some(desk) = &self.parts.desk else {
            bail!(
                "this process has no operations log: use the admin port of a station or a carrier"
            );
        };
        let mut steps: Vec<String> = mends
            .iter()
            .take(MAX_LOGGED_MENDS)
            .map(Mend::to_string)
            .collect();
        if mends.len() > MAX_LOGGED_MENDS {
            steps.push(format!("and {} more", mends.len() - MAX_LOGGED_MENDS));
        }
        Ok(desk.letters.log_repair(by, user, steps, reason).await?)
    }
}

/// Owner of the cache entry that a step may make stale.
fn find_owner(mend: &Mend) -> Option<CacheKey> {
    match mend {
        Mend::WriteHead(ConversationId::Group(group), _) => Some(CacheKey::Group(*group)),
        Mend::WriteListed(row) => Some(CacheKey::User(row.owner)),
        Mend::WriteHead(..) | Mend::WriteRows(_) | Mend::Disconnect(_) | Mend::Acknowledge(..) => {
            None
        }
    }
}

/// Invalidates the cache entry of `owner`, which may differ from the store now.
async fn forget(backends: &Backends, owner: CacheKey) -> backend::Result<()> {
    let outcome = backends.cache.forget(&[Invalidation::of(owner)]).await;
    outcome.into_iter().collect()
}

/// Does one step after the other, while there is time.
async fn mend_all(backends: &Backends, mends: Vec<Mend>) -> Vec<RepairStep> {
    let start = Instant::now();
    let mut steps = Vec::with_capacity(mends.len());
    for mend in mends {
        let step = mend.to_string();
        let error = if start.elapsed() < STEPS_WITHIN {
            mend_one(backends, mend).await.err()
        } else {
            Some(anyhow!(
                "not started: the steps before it took {STEPS_WITHIN:?}"
            ))
        };
        steps.push(RepairStep {
            step,
            error: error.map(|error| format!("{error:#}")),
        });
    }
    steps
}

async fn mend_one(backends: &Backends, mend: Mend) -> Result<()> {
    let now = backends.clock.now();
    let owner = find_owner(&mend);
    let outcome = async {
        match mend {
            Mend::Disconnect(key) => backends
                .mailbox
                .disconnect(vec![key])
                .await
                .into_iter()
                .collect(),
            Mend::Acknowledge(target, id) => {
                let acks = vec![(target, vec![id])];
                let results = backends.mailbox.acknowledge(acks, now).await;
                results.into_iter().try_for_each(|ids| ids.map(drop))
            }
            Mend::WriteRows(rows) => backends.messages.save(rows).await,
            Mend::WriteHead(conversation, head) => {
                backends.heads.save(vec![(conversation, head)]).await
            }
            Mend::WriteListed(row) => {
                // Stamped now, so that no device's cursor of the list is past it.
                let row = ConversationRow {
                    version: now,
                    ..row
                };
                backends.conversations.save(vec![row]).await
            }
        }
    };
    let outcome = timeout(ANSWER_TIMEOUT, outcome).await;
    // Even after an error or a timeout: the step may have been done.
    if let Some(owner) = owner {
        timeout(ANSWER_TIMEOUT, forget(backends, owner)).await??;
    }
    match outcome {
        Ok(Ok(())) => Ok(()),
        Ok(Err(error)) => bail!("{error}: {}", error.source),
        Err(_) => {
            bail!("no answer within {ANSWER_TIMEOUT:?}: the step may or may not have been done")
        }
    }
}

#[cfg(test)]
mod tests;
