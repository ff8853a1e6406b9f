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

use super::user::examined;
use super::{Doctor, PATIENCE, UserReport};
use crate::doctor::user::Mend;
use backend::Backends;

/// Limit of steps in one repair; a further request goes on.
const MENDS: usize = 500;
/// Time after which no further step begins: one examination at a time has room.
const STEPS_WITHIN: Duration = Duration::from_secs(60);
/// Limit of steps named in the log of operations.
const NAMED: usize = 50;

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
    pub async fn repair(&self, by: &str, user: UserId, why: &str) -> Result<Option<RepairReport>> {
        let Some(backends) = &self.parts.access.whole else {
            return Ok(None);
        };
        let found = examined(backends, user).await;
        let mends = found.differences.iter().filter_map(|d| d.mend.clone());
        let mends: Vec<Mend> = mends.take(MENDS).collect();
        let before = found.report();
        if mends.is_empty() {
            let after = before.clone();
            return Ok(Some(RepairReport {
                before,
                steps: Vec::new(),
                after,
            }));
        }
        self.write_down(by, user, &mends, why).await?;
        let steps = mend_all(backends, mends).await;
        let after = examined(backends, user).await.report();
        Ok(Some(RepairReport {
            before,
            steps,
            after,
        }))
    }

    async fn write_down(&self, by: &str, user: UserId, mends: &[Mend], why: &str) -> Result<()> {
        let Some(desk) = &self.parts.desk else {
            bail!("nobody writes down what is done here: ask a station or a carrier");
        };
        let mut what: Vec<String> = mends.iter().take(NAMED).map(Mend::to_string).collect();
        if mends.len() > NAMED {
            what.push(format!("and {} more", mends.len() - NAMED));
        }
        Ok(desk.letters.repaired(by, user, what, why).await?)
    }
}

/// Owner of the cache entry that a step may make stale.
fn owner_of(mend: &Mend) -> Option<CacheKey> {
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
    let forgotten = backends.cache.forget(&[Invalidation::of(owner)]).await;
    forgotten.into_iter().collect()
}

/// Does one step after the other, while there is time.
async fn mend_all(backends: &Backends, mends: Vec<Mend>) -> Vec<RepairStep> {
    let began = Instant::now();
    let mut steps = Vec::with_capacity(mends.len());
    for mend in mends {
        let step = mend.to_string();
        let error = match began.elapsed() < STEPS_WITHIN {
            true => mend_one(backends, mend).await.err(),
            false => Some(anyhow!(
                "not begun, as the steps before it took {STEPS_WITHIN:?}"
            )),
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
    let owner = owner_of(&mend);
    let done = async {
        match mend {
            Mend::Disconnect(key) => backends
                .mailbox
                .disconnect(vec![key])
                .await
                .into_iter()
                .collect(),
            Mend::Acknowledge(target, id) => {
                let acked = vec![(target, vec![id])];
                let waited = backends.mailbox.acknowledge(acked, now).await;
                waited.into_iter().try_for_each(|ids| ids.map(drop))
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
    let done = timeout(PATIENCE, done).await;
    // Even after an error or a timeout: the step may have been done.
    if let Some(owner) = owner {
        timeout(PATIENCE, forget(backends, owner)).await??;
    }
    match done {
        Ok(Ok(())) => Ok(()),
        Ok(Err(error)) => bail!("{error}: {}", error.source),
        Err(_) => bail!("no answer within {PATIENCE:?}: whether it was done is unknown"),
    }
}

#[cfg(test)]
mod tests;
