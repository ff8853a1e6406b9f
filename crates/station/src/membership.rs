//! Members of groups, as far as a station checks them: before the log, and for receipts.
//!
//! The group's writer judges every record at its place in the log, so a station may be a few
//! seconds behind: it lets a member pass who was removed a moment ago, and the writer refuses. It
//! must not be behind the other way: that a user is *not* in a group is never remembered.
//!
//! Receipts have no writer that judges them again, so they wait for a store that does not answer.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::Duration;

use backend::Backends;
use backend::clock::Clock;
use backend::groups::GroupStore;
use futures_util::stream::{self, StreamExt};
use parking_lot::Mutex;
use protocol::admission::MEMBERSHIP_CACHE_TTL;
use protocol::group::{GroupInfo, Member};
use protocol::reading::{present_member, stranger};
use protocol::{GroupId, Refusal, UserId};
use tokio::time::Instant;

use crate::config::Config;
use crate::stores::{Unreadable, by_owner, within};

/// Members remembered; beyond, the oldest are asked for again.
const MAX_REMEMBERED_MEMBERS: usize = 131_072;

/// Questions to the store at the same time, each about another group.
const MAX_CONCURRENT_QUERIES: usize = 16;

type Key = (GroupId, UserId);

/// Answer of the store; `None` for a user who never was a member.
type MemberAnswer = Option<(GroupInfo, Member)>;

/// Asks for members of groups.
pub(crate) struct Membership {
    groups: Arc<dyn GroupStore>,
    clock: Arc<dyn Clock>,
    /// Deadline of a check before the log, which lets pass if there is no answer; also of the
    /// question whether a group exists, for the reason of a refusal.
    door_deadline: Duration,
    deadline: Duration,
    memory: Mutex<MemberMemory>,
}

/// What a member wants to do.
#[derive(Clone, Copy)]
enum Purpose {
    Read,
    Write,
}

/// Two generations of members who may write: once the young ones are many, the old ones are forgotten at once.
#[derive(Default)]
struct MemberMemory {
    young: BTreeMap<Key, Instant>,
    old: BTreeMap<Key, Instant>,
}

impl MemberMemory {
    fn has(&self, key: &Key, now: Instant) -> bool {
        let expires_at = self.young.get(key).or_else(|| self.old.get(key));
        expires_at.is_some_and(|expires_at| *expires_at > now)
    }

    fn remember(&mut self, key: Key, expires_at: Instant) {
        if self.young.len() >= MAX_REMEMBERED_MEMBERS / 2 {
            self.old = std::mem::take(&mut self.young);
        }
        self.young.insert(key, expires_at);
    }
}

impl Membership {
    pub(crate) fn new(backends: &Backends, config: &Config) -> Membership {
        Membership {
            groups: backends.groups.clone(),
            clock: backends.clock.clone(),
            door_deadline: config.members_deadline,
            deadline: config.store_deadline,
            memory: Mutex::default(),
        }
    }

    /// Refusals of these senders, for those who are no members or are muted; the others may pass. One
    /// question for all who are not known to be members who may write. If the store does not answer
    /// they may pass, as the writer judges them again.
    pub(crate) async fn refused_senders(&self, senders: &[Key]) -> BTreeMap<Key, Refusal> {
        let unknown_keys = self.unknown(senders);
        if unknown_keys.is_empty() {
            return BTreeMap::new();
        }
        let members = self.groups.members_of(&unknown_keys);
        let Ok(members) = within(self.door_deadline, members).await else {
            metrics::counter!("station_members_unasked_total").increment(unknown_keys.len() as u64);
            return BTreeMap::new();
        };
        let members = unknown_keys.into_iter().zip(members.into_iter().map(Ok));
        let deadline = Instant::now() + self.door_deadline;
        self.judge(members, deadline, Purpose::Write).await
    }

    /// Refusals of receivers, whom nobody judges again: those of whom the store says nothing are
    /// refused, too, and may ask again. After a failure the store is asked about each group alone,
    /// and about each receiver in a group that fails: rows are stored by user.
    pub(crate) async fn refused_receivers(
        &self,
        receivers: &[Key],
        timeout: Duration,
    ) -> BTreeMap<Key, Refusal> {
        let deadline = Instant::now() + timeout;
        let unknown_keys = self.unknown(receivers);
        let groups = &self.groups;
        let ask = move |keys: Vec<Key>| async move { groups.members_of(&keys).await };
        let unreadable = Unreadable::Refused;
        let group_key = |(group, _): &Key| *group;
        let members = by_owner(
            timeout * 2 / 3,
            unreadable,
            unknown_keys.clone(),
            group_key,
            ask,
        );
        let members = unknown_keys.into_iter().zip(members.await.each);
        let mut members: BTreeMap<Key, Result<MemberAnswer, Refusal>> = members.collect();
        let mut failed_keys: BTreeMap<GroupId, Vec<Key>> = BTreeMap::new();
        for (key, _) in members.iter().filter(|(_, member)| member.is_err()) {
            failed_keys.entry(key.0).or_default().push(*key);
        }
        let retry_keys: Vec<Key> = failed_keys
            .into_values()
            .filter(|keys| keys.len() > 1)
            .flatten()
            .collect();
        if !retry_keys.is_empty() {
            let rest = deadline.saturating_duration_since(Instant::now());
            let retries = by_owner(rest, unreadable, retry_keys.clone(), |key| *key, ask).await;
            members.extend(retry_keys.into_iter().zip(retries.each));
        }
        let deadline = deadline.min(Instant::now() + self.door_deadline);
        self.judge(members, deadline, Purpose::Read).await
    }

    /// Refusals by what the store says; members are remembered. `deadline` ends the questions about
    /// groups of strangers.
    async fn judge(
        &self,
        members: impl IntoIterator<Item = (Key, Result<MemberAnswer, Refusal>)>,
        deadline: Instant,
        purpose: Purpose,
    ) -> BTreeMap<Key, Refusal> {
        let believed_until = Instant::now() + MEMBERSHIP_CACHE_TTL;
        let now = self.clock.now();
        let mut refusals = BTreeMap::new();
        let mut strangers = BTreeSet::new();
        for (key, member) in members {
            match member.and_then(present_member) {
                Ok(Some((info, member))) => match (info.may_write(&member, now), purpose) {
                    (Ok(()), _) => self.memory.lock().remember(key, believed_until),
                    (Err(refusal), Purpose::Write) => drop(refusals.insert(key, refusal)),
                    (Err(_), Purpose::Read) => {}
                },
                Ok(None) => drop(strangers.insert(key)),
                Err(refusal) => drop(refusals.insert(key, refusal)),
            }
        }
        let groups: BTreeSet<GroupId> = strangers.iter().map(|(group, _)| *group).collect();
        let reasons = stream::iter(groups)
            .map(|group| async move { (group, self.stranger_refusal(group, deadline).await) })
            .buffer_unordered(MAX_CONCURRENT_QUERIES);
        let reasons: BTreeMap<GroupId, Refusal> = reasons.collect().await;
        let strangers = strangers.into_iter();
        refusals.extend(strangers.map(|key| (key, reasons[&key.0].clone())));
        refusals
    }

    /// Current membership of a user in a group.
    ///
    /// # Errors
    /// `Forbidden` for a user who is no member, `NotFound` if there is no such group (any more); the
    /// store's.
    pub(crate) async fn of(
        &self,
        user: UserId,
        group: GroupId,
    ) -> Result<(GroupInfo, Member), Refusal> {
        let keys = [(group, user)];
        let members = within(self.deadline, self.groups.members_of(&keys)).await?;
        match present_member(members.into_iter().next().flatten())? {
            Some(membership) => Ok(membership),
            None => {
                let deadline = Instant::now() + self.door_deadline;
                Err(self.stranger_refusal(group, deadline).await)
            }
        }
    }

    fn unknown(&self, keys: &[Key]) -> Vec<Key> {
        let (memory, now) = (self.memory.lock(), Instant::now());
        let unknown: BTreeSet<Key> = (keys.iter().copied())
            .filter(|key| !memory.has(key, now))
            .collect();
        unknown.into_iter().collect()
    }

    /// Refusal for a user who never was a member, also if the store does not say in time whether
    /// the group exists.
    async fn stranger_refusal(&self, group: GroupId, deadline: Instant) -> Refusal {
        let budget = deadline.saturating_duration_since(Instant::now());
        stranger(
            within(budget, is_populated(&*self.groups, group))
                .await
                .ok(),
        )
    }
}

/// Whether there is such a group with a member.
pub(crate) async fn is_populated(groups: &dyn GroupStore, group: GroupId) -> backend::Result<bool> {
    let infos = groups.infos(&[group]).await?;
    let is_there = infos[0].is_some_and(|info| !info.is_dissolved);
    Ok(is_there && !groups.present(group, None, 1).await?.is_empty())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test(start_paused = true)]
    async fn remembered_members_expire_and_are_bounded() {
        let key = |n: i64| {
            let group = GroupId::new(1).expect("positive");
            (group, UserId::new(n + 1).expect("positive"))
        };
        let mut memory = MemberMemory::default();
        let now = Instant::now();
        for n in 0..(MAX_REMEMBERED_MEMBERS as i64 * 2) {
            memory.remember(key(n), now + MEMBERSHIP_CACHE_TTL);
        }
        assert!(memory.young.len() + memory.old.len() <= MAX_REMEMBERED_MEMBERS);
        let last = key(MAX_REMEMBERED_MEMBERS as i64 * 2 - 1);
        assert!(memory.has(&last, now));
        assert!(!memory.has(&key(0), now));
        assert!(!memory.has(&last, now + MEMBERSHIP_CACHE_TTL));
    }
}
