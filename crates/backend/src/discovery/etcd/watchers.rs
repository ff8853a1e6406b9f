//! Who is there: one watcher for each role that somebody here wants to know of.
//!
//! A watch may end, starve, or miss something; so it is begun anew from a list at every end, and
//! everybody is listed now and then besides. While etcd is away, the last known roster stands.

use std::collections::BTreeMap;
use std::pin::pin;
use std::sync::Arc;
use std::time::Duration;

use etcd_client::WatchStream;
use parking_lot::Mutex;
use tokio::runtime::Handle;
use tokio::sync::watch;
use tokio::time::sleep;
use tokio_util::sync::CancellationToken;

use super::super::{Role, Roster};
use super::SEAM;
use super::calls::{Calls, judged};
use super::keys::Keys;
use super::known::Known;
use crate::{Error, Result};

/// Between lists that fail; doubled each time, up to the second.
const LIST_AGAIN: Duration = Duration::from_millis(500);
const LIST_AGAIN_MAX: Duration = Duration::from_secs(5);

/// The watchers of a registry.
pub(super) struct Watchers {
    pub(super) calls: Arc<Calls>,
    pub(super) keys: Keys,
    pub(super) list_every: Duration,
    pub(super) runtime: Handle,
    /// Cancelled with the registry.
    pub(super) stop: CancellationToken,
    pub(super) told: Mutex<BTreeMap<Role, watch::Sender<Roster>>>,
}

impl Watchers {
    /// The roster of a role from now on. Asks etcd only where nobody here has asked before.
    pub(super) async fn watch(self: &Arc<Self>, role: Role) -> Result<watch::Receiver<Roster>> {
        if let Some(sender) = self.told.lock().get(&role) {
            return Ok(sender.subscribe());
        }
        let known = list(&self.calls, &self.keys, role).await?;
        Ok(self.begin(role, known))
    }

    /// Watches from what is known, unless somebody else began meanwhile.
    pub(super) fn begin(self: &Arc<Self>, role: Role, known: Known) -> watch::Receiver<Roster> {
        let mut told = self.told.lock();
        if let Some(sender) = told.get(&role) {
            return sender.subscribe();
        }
        let (sender, receiver) = watch::channel(known.roster());
        told.insert(role, sender.clone());
        let watcher = Watcher {
            calls: self.calls.clone(),
            keys: self.keys.clone(),
            role,
            list_every: self.list_every,
            sender: sender.clone(),
        };
        let watchers = self.clone();
        self.runtime.spawn(async move {
            let mut watching = pin!(watcher.watch(known));
            loop {
                tokio::select! {
                    () = &mut watching => {}
                    // Whoever still listens hears that nothing more will come.
                    () = watchers.stop.cancelled() => {
                        watchers.told.lock().remove(&role);
                        return;
                    }
                    () = sender.closed() => if watchers.is_done(role) {
                        return;
                    },
                }
            }
        });
        receiver
    }

    /// Under the lock, nobody begins to listen meanwhile.
    fn is_done(&self, role: Role) -> bool {
        let mut told = self.told.lock();
        let done = told
            .get(&role)
            .is_none_or(|sender| sender.receiver_count() == 0);
        if done {
            told.remove(&role);
        }
        done
    }
}

async fn list(calls: &Calls, keys: &Keys, role: Role) -> Result<Known> {
    let prefix = keys.instances(role);
    let answer = calls.list(&prefix).await?;
    Ok(Known::listed(role, &prefix, &answer))
}

struct Watcher {
    calls: Arc<Calls>,
    keys: Keys,
    role: Role,
    list_every: Duration,
    sender: watch::Sender<Roster>,
}

impl Watcher {
    /// For ever.
    async fn watch(&self, mut known: Known) {
        loop {
            let Err(error) = self.follow(&mut known).await;
            tracing::debug!(role = ?self.role, %error, source = %error.source, "a watch ended");
            known = self.list_until_answered().await;
            self.tell(&known);
        }
    }

    /// Until the watch ends, in whatever way.
    async fn follow(&self, known: &mut Known) -> Result<std::convert::Infallible> {
        let prefix = self.keys.instances(self.role);
        let mut stream = self.calls.watch(&prefix, known.revision + 1).await?;
        loop {
            let pause = self.calls.jittered(self.list_every);
            // A message that does not end in time is no reason to list later.
            let mut list_due = pin!(sleep(pause));
            loop {
                tokio::select! {
                    happened = next(&mut stream, known) => happened?,
                    () = &mut list_due => break,
                }
                self.tell(known);
            }
            self.list_beside(known).await?;
        }
    }

    /// What the watch has missed comes by the list.
    async fn list_beside(&self, known: &mut Known) -> Result<()> {
        let listed = match list(&self.calls, &self.keys, self.role).await {
            Ok(listed) => listed,
            Err(error) => {
                tracing::debug!(role = ?self.role, %error, source = %error.source, "not listed");
                return Ok(());
            }
        };
        if listed.revision < known.revision {
            let text = "etcd went back in time: it was restored, or is another";
            return Err(Error::unavailable(SEAM, text));
        }
        *known = listed;
        self.tell(known);
        Ok(())
    }

    async fn list_until_answered(&self) -> Known {
        let (mut mean, mut away) = (LIST_AGAIN, false);
        loop {
            match list(&self.calls, &self.keys, self.role).await {
                Ok(known) => {
                    if away {
                        tracing::info!(role = ?self.role, "etcd answers again");
                    }
                    return known;
                }
                Err(error) if !away => {
                    let source = &error.source;
                    tracing::warn!(role = ?self.role, %error, %source, "etcd is away; who was there last stays");
                    away = true;
                }
                Err(_) => {}
            }
            sleep(self.calls.jittered(mean)).await;
            mean = (mean * 2).min(LIST_AGAIN_MAX);
        }
    }

    fn tell(&self, known: &Known) {
        let roster = known.roster();
        self.sender.send_if_modified(|last| {
            let news = *last != roster;
            if news {
                *last = roster;
            }
            news
        });
    }
}

/// Takes over what happens next.
async fn next(stream: &mut WatchStream, known: &mut Known) -> Result<()> {
    let Some(response) = stream.message().await.map_err(judged)? else {
        return Err(Error::unavailable(SEAM, "the stream ended"));
    };
    if response.canceled() {
        let (reason, compacted) = (response.cancel_reason(), response.compact_revision());
        let text = format!("cancelled ({reason:?}, compacted up to {compacted})");
        return Err(Error::unavailable(SEAM, text));
    }
    known.apply(response.events());
    Ok(())
}
