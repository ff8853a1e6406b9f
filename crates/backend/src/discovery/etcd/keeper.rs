//! A lease, from grant to end: renewed, checked, given up.

use std::sync::Arc;
use std::time::Duration;

use tokio::runtime::Handle;
use tokio::time::{Instant, sleep_until, timeout_at};
use tokio_util::sync::CancellationToken;
use tokio_util::task::{AbortOnDropHandle, TaskTracker};

use super::calls::{Calls, Lease};
use crate::Result;

/// Pause after a failed renewal.
const RENEW_AGAIN: Duration = Duration::from_millis(500);

/// Keeps and revokes leases, on the runtime on which the registry was connected.
#[derive(Clone)]
pub(super) struct LeaseKeeper {
    pub(super) calls: Arc<Calls>,
    pub(super) runtime: Handle,
    /// Revocations in progress.
    pub(super) revoking: TaskTracker,
}

impl LeaseKeeper {
    pub(super) async fn grant(&self, ttl: Duration) -> Result<HeldLease> {
        let lease = self.calls.grant(ttl).await?;
        Ok(HeldLease {
            lease,
            keeping: self.clone(),
        })
    }
}

/// A lease of ours. Dropping it revokes it in the background, within the deadline of a call; if
/// that fails, or the runtime has ended, the lease expires.
pub(super) struct HeldLease {
    pub(super) lease: Lease,
    keeping: LeaseKeeper,
}

impl HeldLease {
    pub(super) fn calls(&self) -> &Calls {
        &self.keeping.calls
    }
}

impl Drop for HeldLease {
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

/// Condition under which a lease no longer counts.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum LeasePatience {
    /// Unrenewed for its time to live: others may have seen it end.
    Ttl,
    /// Only if etcd reports its end: writes under the lease are fenced there.
    Endless,
}

/// Key under a lease, with a value that nobody else writes.
pub(super) struct LeaseMark {
    pub(super) key: String,
    pub(super) value: String,
}

/// Keeps a lease until dropped, then gives it up. Cancels `lost` if the lease ends earlier.
pub(super) fn keep(
    held: HeldLease,
    mark: LeaseMark,
    patience: LeasePatience,
    lost: CancellationToken,
) -> (AbortOnDropHandle<()>, HeldLease) {
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
    mark: LeaseMark,
    patience: LeasePatience,
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
            // etcd has renewed leases that were gone (fixed in 3.5.23): only the key is proof.
            let looking = self.is_marked_otherwise();
            if timeout_at(self.ends(renewed), looking).await == Ok(true) {
                return "its key is gone, or a later life has it";
            }
        }
    }

    /// A quarter of the time to live, to fit at least three renewals into it.
    fn pause(&self) -> Duration {
        self.calls.jittered(self.lease.ttl / 4)
    }

    fn ends(&self, renewed: Instant) -> Instant {
        match self.patience {
            LeasePatience::Ttl => renewed + self.lease.ttl,
            // As good as never, without overflow.
            LeasePatience::Endless => Instant::now() + Duration::from_secs(86_400),
        }
    }

    /// True if the key is known to be gone or changed; false if etcd does not answer.
    async fn is_marked_otherwise(&self) -> bool {
        let Ok(found) = self.calls.get(&self.mark.key).await else {
            return false;
        };
        let value = found.kvs().first().map(|kv| kv.value());
        value != Some(self.mark.value.as_bytes())
    }
}
