//! Directories of live instances, with one watcher per role that this process follows.
//!
//! A watch may end, starve, or miss something; so after every end a new one starts from a list, and
//! a full list is taken now and then besides. While etcd is away, the last known directory stays.

use std::collections::BTreeMap;
use std::pin::pin;
use std::sync::Arc;
use std::time::Duration;

use etcd_client::WatchStream;
use parking_lot::Mutex;
use protocol::pause::Backoff;
use tokio::runtime::Handle;
use tokio::sync::watch;
use tokio::time::{Instant, sleep};
use tokio_util::sync::CancellationToken;

use super::super::{Directory, Role};
use super::SEAM;
use super::calls::{Calls, classify};
use super::directory_snapshot::DirectorySnapshot;
use super::keys::Keys;
use crate::{Error, Result};

/// Pause between failed lists, and between lists where no watch lasts; doubles each time, up to
/// `LIST_RETRY_PAUSE_MAX`.
const LIST_RETRY_PAUSE: Duration = Duration::from_millis(500);
const LIST_RETRY_PAUSE_MAX: Duration = Duration::from_secs(5);
const LIST_BACKOFF: Backoff = Backoff::new(LIST_RETRY_PAUSE, LIST_RETRY_PAUSE_MAX);

/// The watchers of a registry.
pub(super) struct Watchers {
    pub(super) calls: Arc<Calls>,
    pub(super) keys: Keys,
    pub(super) list_every: Duration,
    pub(super) runtime: Handle,
    /// Cancelled when the registry is dropped.
    pub(super) stop: CancellationToken,
    pub(super) senders: Mutex<BTreeMap<Role, watch::Sender<Directory>>>,
}

impl Watchers {
    /// Directory of a role from now on. Asks etcd only for the first watch of a role.
    pub(super) async fn watch(self: &Arc<Self>, role: Role) -> Result<watch::Receiver<Directory>> {
        if let Some(sender) = self.senders.lock().get(&role) {
            return Ok(sender.subscribe());
        }
        let snapshot = list(&self.calls, &self.keys, role).await?;
        Ok(self.begin(role, snapshot))
    }

    /// Starts a watcher from `snapshot`, unless another one started meanwhile.
    pub(super) fn begin(
        self: &Arc<Self>,
        role: Role,
        snapshot: DirectorySnapshot,
    ) -> watch::Receiver<Directory> {
        let mut senders = self.senders.lock();
        if let Some(sender) = senders.get(&role) {
            return sender.subscribe();
        }
        let (sender, receiver) = watch::channel(snapshot.to_directory());
        senders.insert(role, sender.clone());
        let watcher = Watcher {
            calls: self.calls.clone(),
            keys: self.keys.clone(),
            role,
            list_every: self.list_every,
            sender: sender.clone(),
        };
        let watchers = self.clone();
        self.runtime.spawn(async move {
            let mut watch_loop = pin!(watcher.watch(snapshot));
            loop {
                tokio::select! {
                    biased;
                    // Remaining receivers see their channel close.
                    () = watchers.stop.cancelled() => {
                        watchers.senders.lock().remove(&role);
                        return;
                    }
                    () = sender.closed() => if watchers.is_done(role) {
                        return;
                    },
                    () = &mut watch_loop => {}
                }
            }
        });
        receiver
    }

    /// Ends a role without receivers. The lock keeps new ones from subscribing meanwhile.
    fn is_done(&self, role: Role) -> bool {
        let mut senders = self.senders.lock();
        let is_done = senders
            .get(&role)
            .is_none_or(|sender| sender.receiver_count() == 0);
        if is_done {
            senders.remove(&role);
        }
        is_done
    }
}

async fn list(calls: &Calls, keys: &Keys, role: Role) -> Result<DirectorySnapshot> {
    let prefix = keys.instances(role);
    let answer = calls.list(&prefix).await?;
    Ok(DirectorySnapshot::from_list(role, &prefix, &answer))
}

struct Watcher {
    calls: Arc<Calls>,
    keys: Keys,
    role: Role,
    list_every: Duration,
    sender: watch::Sender<Directory>,
}

impl Watcher {
    /// Follows the role for ever, restarting the watch from a list whenever it ends.
    async fn watch(&self, snapshot: DirectorySnapshot) {
        let follow = |mut snapshot| async move {
            let Err(error) = self.follow(&mut snapshot).await;
            tracing::debug!(role = ?self.role, %error, source = %error.source, "watch ended");
        };
        let list = || async {
            let snapshot = self.list_until_answered().await;
            self.notify(&snapshot);
            snapshot
        };
        let jitter = |mean| self.calls.jitter(mean);
        follow_and_list(snapshot, follow, list, jitter).await;
    }

    /// Runs until the watch ends for any reason.
    async fn follow(&self, snapshot: &mut DirectorySnapshot) -> Result<std::convert::Infallible> {
        let prefix = self.keys.instances(self.role);
        let mut stream = self.calls.watch(&prefix, snapshot.revision + 1).await?;
        loop {
            let pause = self.calls.jitter(self.list_every);
            // An incomplete message must not delay the list.
            let mut list_due = pin!(sleep(pause));
            loop {
                tokio::select! {
                    biased;
                    // Messages may come without a pause.
                    () = &mut list_due => break,
                    outcome = next(&mut stream, snapshot) => outcome?,
                }
                self.notify(snapshot);
            }
            self.reconcile(snapshot).await?;
        }
    }

    /// Picks up what the watch missed.
    async fn reconcile(&self, snapshot: &mut DirectorySnapshot) -> Result<()> {
        let newer = match list(&self.calls, &self.keys, self.role).await {
            Ok(newer) => newer,
            Err(error) => {
                tracing::debug!(role = ?self.role, %error, source = %error.source, "listing failed");
                return Ok(());
            }
        };
        if newer.revision < snapshot.revision {
            let text =
                "etcd went back in time: it was restored from a backup, or it is another cluster";
            return Err(Error::unavailable(SEAM, text));
        }
        *snapshot = newer;
        self.notify(snapshot);
        Ok(())
    }

    async fn list_until_answered(&self) -> DirectorySnapshot {
        let (mut backoff, mut is_away) = (LIST_BACKOFF, false);
        loop {
            match list(&self.calls, &self.keys, self.role).await {
                Ok(snapshot) => {
                    if is_away {
                        tracing::info!(role = ?self.role, "etcd is back");
                    }
                    return snapshot;
                }
                Err(error) if !is_away => {
                    let source = &error.source;
                    tracing::warn!(role = ?self.role, %error, %source, "etcd is unreachable; \
                                                                        keeping the last known \
                                                                        members");
                    is_away = true;
                }
                Err(_) => {}
            }
            sleep(self.calls.jitter(backoff.failed())).await;
        }
    }

    fn notify(&self, snapshot: &DirectorySnapshot) {
        let directory = snapshot.to_directory();
        self.sender.send_if_modified(|last| {
            let has_changed = *last != directory;
            if has_changed {
                *last = directory;
            }
            has_changed
        });
    }
}

/// Follows and lists in turns for ever, starting from `state`. `jitter` makes a pause of a mean.
async fn follow_and_list<S, F, L>(
    mut state: S,
    follow: impl Fn(S) -> F,
    list: impl Fn() -> L,
    jitter: impl Fn(Duration) -> Duration,
) where
    F: Future<Output = ()>,
    L: Future<Output = S>,
{
    let mut ends = WatchEnds::default();
    loop {
        let start = Instant::now();
        follow(state).await;
        sleep(jitter(ends.pause_after(start.elapsed()))).await;
        state = list().await;
    }
}

/// Ends of watches in a row.
#[derive(Default)]
struct WatchEnds {
    /// Mean pauses after further watches that do not last.
    backoff: Option<Backoff>,
}

impl WatchEnds {
    /// Mean pause before the next list, after a watch that took so long. One that lasted is
    /// followed at once, and so is the first that did not: whatever ends it may be over. Where
    /// lists succeed and watches fail (a proxy that cuts streams, a member without a leader), lists
    /// without a pause would load every member.
    fn pause_after(&mut self, duration: Duration) -> Duration {
        if duration >= LIST_RETRY_PAUSE_MAX {
            self.backoff = None;
        }
        match &mut self.backoff {
            Some(backoff) => backoff.failed(),
            None => {
                self.backoff = Some(LIST_BACKOFF);
                Duration::ZERO
            }
        }
    }
}

/// Waits for the next response and applies its events.
async fn next(stream: &mut WatchStream, snapshot: &mut DirectorySnapshot) -> Result<()> {
    let Some(response) = stream.message().await.map_err(classify)? else {
        return Err(Error::unavailable(SEAM, "the stream ended"));
    };
    if response.canceled() {
        let (reason, compact_revision) = (response.cancel_reason(), response.compact_revision());
        let text = format!("cancelled ({reason:?}, compacted up to {compact_revision})");
        return Err(Error::unavailable(SEAM, text));
    }
    snapshot.apply(response.events());
    Ok(())
}

#[cfg(test)]
mod tests {
    use std::cell::Cell;

    use tokio::time::timeout;

    use super::*;

    /// Lists in a minute of watches that take so long each.
    async fn lists_in_a_minute(watch: Duration) -> usize {
        let lists = Cell::new(0);
        let follow = |()| sleep(watch);
        let list = || async { lists.set(lists.get() + 1) };
        let turns = follow_and_list((), follow, list, |mean| mean);
        let outcome = timeout(Duration::from_secs(60), turns).await;
        assert!(outcome.is_err(), "it goes on for ever");
        lists.get()
    }

    // A proxy that cuts streams: lists succeeded without a pause, thousands in a second.
    #[tokio::test(start_paused = true)]
    async fn watches_that_fail_at_once_cost_few_lists() {
        // After 0, 0.5, 1.5, 3.5 and 7.5 seconds, and each five seconds from then on.
        assert_eq!(lists_in_a_minute(Duration::ZERO).await, 15);
    }

    #[tokio::test(start_paused = true)]
    async fn a_watch_that_lasted_is_followed_by_a_list_at_once() {
        assert_eq!(lists_in_a_minute(Duration::from_millis(6_500)).await, 9);
    }
}
