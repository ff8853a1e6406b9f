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
const RENEWAL_RETRY_PAUSE: Duration = Duration::from_millis(500);

/// Keeps and revokes leases, on the runtime on which the registry was connected.
#[derive(Clone)]
pub(super) struct LeaseKeeper {
    pub(super) calls: Arc<Calls>,
    pub(super) runtime: Handle,
    /// Revocations in progress.
    pub(super) revocations: TaskTracker,
}

impl LeaseKeeper {
    pub(super) async fn grant(&self, ttl: Duration) -> Result<HeldLease> {
        let lease = self.calls.grant(ttl).await?;
        Ok(HeldLease {
            lease,
            keeper: self.clone(),
        })
    }
}

/// A lease of ours. Dropping it revokes it in the background, within the deadline of a call; if
/// that fails, or the runtime has ended, the lease expires.
pub(super) struct HeldLease {
    pub(super) lease: Lease,
    keeper: LeaseKeeper,
}

impl HeldLease {
    pub(super) fn calls(&self) -> &Calls {
        &self.keeper.calls
    }
}

impl Drop for HeldLease {
    fn drop(&mut self) {
        let (calls, lease) = (self.keeper.calls.clone(), self.lease.id);
        let revoke = async move {
            if let Err(error) = calls.revoke(lease).await {
                tracing::debug!(%error, source = %error.source, lease, "cannot revoke a lease; it will expire");
            }
        };
        (self.keeper.revocations).spawn_on(revoke, &self.keeper.runtime);
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

/// Keeps a lease until dropped, then gives it up. Cancels `lost_token` if the lease ends
/// earlier.
pub(super) fn keep_alive(
    held_lease: HeldLease,
    mark: LeaseMark,
    patience: LeasePatience,
    lost_token: CancellationToken,
) -> (AbortOnDropHandle<()>, HeldLease) {
    let keeper = Keeper {
        calls: held_lease.keeper.calls.clone(),
        lease: held_lease.lease,
        mark,
        patience,
    };
    let task = held_lease.keeper.runtime.spawn(async move {
        let why = keeper.wait_until_lost().await;
        tracing::warn!(
            key = keeper.mark.key,
            lease = keeper.lease.id,
            why,
            "lease lost"
        );
        lost_token.cancel();
    });
    (AbortOnDropHandle::new(task), held_lease)
}

struct Keeper {
    calls: Arc<Calls>,
    lease: Lease,
    mark: LeaseMark,
    patience: LeasePatience,
}

impl Keeper {
    async fn wait_until_lost(&self) -> &'static str {
        const SILENT: &str = "not renewed in time";
        let mut renewed_at = self.lease.requested_at;
        let mut next_renewal = renewed_at + self.pause();
        loop {
            sleep_until(next_renewal).await;
            let renewal = self.calls.renew(self.lease.id);
            match timeout_at(self.expires_at(renewed_at), renewal).await {
                Ok(Ok(Some(requested_at))) => renewed_at = requested_at,
                Ok(Ok(None)) => return "expired, says etcd",
                Ok(Err(error)) => {
                    let source = &error.source;
                    tracing::debug!(%error, %source, key = self.mark.key, "lease renewal failed");
                    next_renewal = Instant::now() + self.calls.jitter(RENEWAL_RETRY_PAUSE);
                    continue;
                }
                Err(_) => return SILENT,
            }
            next_renewal = renewed_at + self.pause();
            // etcd has renewed leases that were gone (fixed in 3.5.23): only the key is proof.
            let check = self.is_marked_otherwise();
            if timeout_at(self.expires_at(renewed_at), check).await == Ok(true) {
                return "its key was deleted, or another process with the same name has taken it";
            }
        }
    }

    /// A quarter of the time to live, to fit at least three renewals into it.
    fn pause(&self) -> Duration {
        self.calls.jitter(self.lease.ttl / 4)
    }

    fn expires_at(&self, renewed_at: Instant) -> Instant {
        match self.patience {
            LeasePatience::Ttl => renewed_at + self.lease.ttl,
            // As good as never, without overflow.
            LeasePatience::Endless => Instant::now() + Duration::from_secs(86_400),
        }
    }

    /// Whether the key is known to be gone or changed; false if etcd does not answer.
    async fn is_marked_otherwise(&self) -> bool {
        let Ok(answer) = self.calls.get(&self.mark.key).await else {
            return false;
        };
        let value = answer.kvs().first().map(|kv| kv.value());
        value != Some(self.mark.value.as_bytes())
    }
}
