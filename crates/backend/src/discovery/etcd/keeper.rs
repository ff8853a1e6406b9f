//! One lease, from its grant to its end: kept alive, watched over, given up.

use std::sync::Arc;
use std::time::Duration;

use tokio::runtime::Handle;
use tokio::time::{Instant, sleep_until, timeout_at};
use tokio_util::sync::CancellationToken;
use tokio_util::task::{AbortOnDropHandle, TaskTracker};

use super::calls::{Calls, Lease};
use crate::Result;

/// After a renewal that failed.
const RENEW_AGAIN: Duration = Duration::from_millis(500);

/// Where leases are kept and revoked: on the runtime that the registry was connected on.
#[derive(Clone)]
pub(super) struct Keeping {
    pub(super) calls: Arc<Calls>,
    pub(super) runtime: Handle,
    /// Revocations that are under way.
    pub(super) revoking: TaskTracker,
}

impl Keeping {
    pub(super) async fn grant(&self, ttl: Duration) -> Result<Held> {
        let lease = self.calls.grant(ttl).await?;
        Ok(Held {
            lease,
            keeping: self.clone(),
        })
    }
}

/// A lease of ours. Dropping it revokes it in the background, for one call's time; where that fails, or
/// the runtime is over, it runs out.
pub(super) struct Held {
    pub(super) lease: Lease,
    keeping: Keeping,
}

impl Held {
    pub(super) fn calls(&self) -> &Calls {
        &self.keeping.calls
    }
}

impl Drop for Held {
    fn drop(&mut self) {
        let (calls, lease) = (self.keeping.calls.clone(), self.lease.id);
        let revoke = async move {
            if let Err(error) = calls.revoke(lease).await {
                tracing::debug!(%error, source = %error.source, lease, "a lease is left to run out");
            }
        };
        (self.keeping.revoking).spawn_on(revoke, &self.keeping.runtime);
    }
}

/// When nobody may rely on a lease any more.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Patience {
    /// Not renewed for its time to live: others may have seen it end.
    Ttl,
    /// Only when etcd says that it has ended: what is done under the lease is fenced there.
    Endless,
}

/// What is under a lease: a key with a value that nobody else writes.
pub(super) struct Mark {
    pub(super) key: String,
    pub(super) value: String,
}

/// Keeps a lease until dropped; then gives it up. `lost` is cancelled when it ends before.
pub(super) fn keep(
    held: Held,
    mark: Mark,
    patience: Patience,
    lost: CancellationToken,
) -> (AbortOnDropHandle<()>, Held) {
    let keeper = Keeper {
        calls: held.keeping.calls.clone(),
        lease: held.lease,
        mark,
        patience,
    };
    let keeping = held.keeping.runtime.spawn(async move {
        let why = keeper.until_lost().await;
        tracing::warn!(
            key = keeper.mark.key,
            lease = keeper.lease.id,
            why,
            "a lease is lost"
        );
        lost.cancel();
    });
    (AbortOnDropHandle::new(keeping), held)
}

struct Keeper {
    calls: Arc<Calls>,
    lease: Lease,
    mark: Mark,
    patience: Patience,
}

impl Keeper {
    async fn until_lost(&self) -> &'static str {
        const SILENT: &str = "it was not renewed in time";
        let mut renewed = self.lease.asked;
        let mut due = renewed + self.pause();
        loop {
            sleep_until(due).await;
            let renewing = self.calls.renew(self.lease.id);
            match timeout_at(self.ends(renewed), renewing).await {
                Ok(Ok(Some(asked))) => renewed = asked,
                Ok(Ok(None)) => return "etcd says that it has ended",
                Ok(Err(error)) => {
                    let source = &error.source;
                    tracing::debug!(%error, %source, key = self.mark.key, "a lease is not renewed");
                    due = Instant::now() + self.calls.jittered(RENEW_AGAIN);
                    continue;
                }
                Err(_) => return SILENT,
            }
            due = renewed + self.pause();
            // etcd has renewed leases that were gone (fixed in 3.5.23): only the key proves it.
            let looking = self.is_marked_otherwise();
            if timeout_at(self.ends(renewed), looking).await == Ok(true) {
                return "its key is gone, or a later life has it";
            }
        }
    }

    /// Three renewals and more in the time to live.
    fn pause(&self) -> Duration {
        self.calls.jittered(self.lease.ttl / 4)
    }

    fn ends(&self, renewed: Instant) -> Instant {
        match self.patience {
            Patience::Ttl => renewed + self.lease.ttl,
            // As good as never, and it can be added up.
            Patience::Endless => Instant::now() + Duration::from_secs(86_400),
        }
    }

    /// Nothing is known when etcd does not answer.
    async fn is_marked_otherwise(&self) -> bool {
        let Ok(found) = self.calls.get(&self.mark.key).await else {
            return false;
        };
        let value = found.kvs().first().map(|kv| kv.value());
        value != Some(self.mark.value.as_bytes())
    }
}
