//! Mends what can be mended: each by the store's own step, which may be repeated and gives way to a writer.

use anyhow::{Result, bail};
use protocol::cached::{Outdated, Owner};
use protocol::conversation::ConversationRow;
use protocol::doctor::user::Mend;
use protocol::{ConversationId, UserId};
use serde::{Deserialize, Serialize};
use tokio::time::timeout;

use super::user::examined;
use super::{Doctor, PATIENCE, UserReport};
use backend::Backends;

/// Steps of one repair; asked again, it goes on.
const MENDS: usize = 500;
/// Steps that the log of operations names.
const NAMED: usize = 50;

/// What was wrong, what was done, and what is wrong still.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Repaired {
    pub before: UserReport,
    pub mended: Vec<Mended>,
    pub after: UserReport,
}

/// One step.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Mended {
    pub what: String,
    /// Why it was not done; then it may be asked for again.
    pub error: Option<String>,
}

impl Doctor {
    /// Mends what a look finds now; who asked for it and why is written down before. `None` where this process
    /// does not see the stores.
    ///
    /// # Errors
    /// A log that cannot be written: then nothing was done.
    pub async fn repair(&self, by: &str, user: UserId, why: &str) -> Result<Option<Repaired>> {
        let Some(backends) = &self.parts.access.whole else {
            return Ok(None);
        };
        let found = examined(backends, user).await;
        let mends = found.differences.iter().filter_map(|d| d.mend.clone());
        let mends: Vec<Mend> = mends.take(MENDS).collect();
        let before = found.report();
        if mends.is_empty() {
            let after = before.clone();
            return Ok(Some(Repaired {
                before,
                mended: Vec::new(),
                after,
            }));
        }
        self.write_down(by, user, &mends, why).await?;
        let mut mended = Vec::with_capacity(mends.len());
        for mend in mends {
            let what = mend.to_string();
            let error = mend_one(backends, mend).await.err();
            mended.push(Mended {
                what,
                error: error.map(|error| format!("{error:#}")),
            });
        }
        let after = examined(backends, user).await.report();
        Ok(Some(Repaired {
            before,
            mended,
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

/// Of whom a copy may be old then.
fn owner_of(mend: &Mend) -> Option<Owner> {
    match mend {
        Mend::WriteHead(ConversationId::Group(group), _) => Some(Owner::Group(*group)),
        Mend::WriteListed(row) => Some(Owner::User(row.owner)),
        Mend::WriteHead(..) | Mend::WriteRows(_) | Mend::Disconnect(_) | Mend::Acknowledge(..) => {
            None
        }
    }
}

/// What is kept beside the store is not what it says now.
async fn forget(backends: &Backends, owner: Owner) -> backend::Result<()> {
    let forgotten = backends.cache.forget(&[Outdated::of(owner)]).await;
    forgotten.into_iter().collect()
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
            Mend::WriteRows(rows) => backends.history.save_private(rows).await,
            Mend::WriteHead(conversation, head) => {
                backends.heads.save(vec![(conversation, head)]).await
            }
            Mend::WriteListed(row) => {
                // Stamped now, so that no device's list has passed it.
                let row = ConversationRow {
                    version: now,
                    ..row
                };
                backends.conversations.save(vec![row]).await
            }
        }
    };
    let done = timeout(PATIENCE, done).await;
    // Whether it was done or not.
    if let Some(owner) = owner {
        timeout(PATIENCE, forget(backends, owner)).await??;
    }
    match done {
        Ok(Ok(())) => Ok(()),
        Ok(Err(error)) => bail!("{error}: {}", error.source),
        Err(_) => bail!("no answer within {PATIENCE:?}: whether it was done is unknown"),
    }
}
