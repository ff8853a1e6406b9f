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

use backend::groups::GroupStore;
use futures_util::stream::{self, StreamExt};
use parking_lot::Mutex;
use protocol::admission::MEMBER_BELIEVED_FOR;
use protocol::group::{GroupSettings, Member};
use protocol::reading::{not_a_member, stranger};
use protocol::{GroupId, Refusal, UserId};
use tokio::time::Instant;

use crate::deadline::within;
use crate::owner_questions::{Unreadable, by_owner};

/// Members remembered; beyond, the oldest are asked for again.
const KNOWN_MAX: usize = 131_072;

/// Questions to the store at the same time, each about another group.
const TOGETHER: usize = 16;

type Key = (GroupId, UserId);

/// Answer of the store; `None` for a user who never was a member.
type MemberAnswer = Option<(GroupSettings, Member)>;

/// Asks for members of groups.
pub(crate) struct Membership {
    groups: Arc<dyn GroupStore>,
    /// Deadline of a check before the log, which lets pass if there is no answer; also of the
    /// question whether a group exists, for the reason of a refusal.
    door_deadline: Duration,
    deadline: Duration,
    known: Mutex<MemberMemory>,
}

/// Two generations of members: once the young ones are many, the old ones are forgotten at once.
#[derive(Default)]
struct MemberMemory {
    young: BTreeMap<Key, Instant>,
    old: BTreeMap<Key, Instant>,
}

impl MemberMemory {
    fn has(&self, key: &Key, now: Instant) -> bool {
        let until = self.young.get(key).or_else(|| self.old.get(key));
        until.is_some_and(|until| *until > now)
    }

    fn learn(&mut self, key: Key, until: Instant) {
        if self.young.len() >= KNOWN_MAX / 2 {
            self.old = std::mem::take(&mut self.young);
        }
        self.young.insert(key, until);
    }
}

impl Membership {
    pub(crate) fn new(
        groups: Arc<dyn GroupStore>,
        door_deadline: Duration,
        deadline: Duration,
    ) -> Membership {
        Membership {
            groups,
            door_deadline,
            deadline,
            known: Mutex::default(),
        }
    }

    /// Refusals of these senders, for those who are no members; the others may pass. One question
    /// for all who are not known. If the store does not answer they may pass, as the writer judges
    /// them again.
    pub(crate) async fn refused_senders(&self, asked: &[Key]) -> BTreeMap<Key, Refusal> {
        let unknown = self.unknown(asked);
        if unknown.is_empty() {
            return BTreeMap::new();
        }
        let members = self.groups.members_of(&unknown);
        let Ok(members) = within(self.door_deadline, members).await else {
            metrics::counter!("station_members_unasked_total").increment(unknown.len() as u64);
            return BTreeMap::new();
        };
        let members = unknown.into_iter().zip(members.into_iter().map(Ok));
        let until = Instant::now() + self.door_deadline;
        self.judge(members, until).await
    }

    /// Refusals of receivers, whom nobody judges again: those of whom the store says nothing are
    /// refused, too, and may ask again. After a failure the store is asked about each group alone,
    /// and about each receiver in a group that fails: rows are stored by user.
    pub(crate) async fn refused_receivers(
        &self,
        asked: &[Key],
        deadline: Duration,
    ) -> BTreeMap<Key, Refusal> {
        let until = Instant::now() + deadline;
        let unknown = self.unknown(asked);
        let groups = &self.groups;
        let ask = move |keys: Vec<Key>| async move { groups.members_of(&keys).await };
        let unreadable = Unreadable::Refused;
        let of_group = |(group, _): &Key| *group;
        let members = by_owner(deadline * 2 / 3, unreadable, unknown.clone(), of_group, ask);
        let members = unknown.into_iter().zip(members.await.each);
        let mut members: BTreeMap<Key, Result<MemberAnswer, Refusal>> = members.collect();
        let mut failed: BTreeMap<GroupId, Vec<Key>> = BTreeMap::new();
        for (key, _) in members.iter().filter(|(_, member)| member.is_err()) {
            failed.entry(key.0).or_default().push(*key);
        }
        let again: Vec<Key> = failed
            .into_values()
            .filter(|keys| keys.len() > 1)
            .flatten()
            .collect();
        if !again.is_empty() {
            let rest = until.saturating_duration_since(Instant::now());
            let alone = by_owner(rest, unreadable, again.clone(), |key| *key, ask).await;
            members.extend(again.into_iter().zip(alone.each));
        }
        let until = until.min(Instant::now() + self.door_deadline);
        self.judge(members, until).await
    }

    /// Refusals by what the store says; members are remembered. `until` ends the questions about
    /// groups of strangers.
    async fn judge(
        &self,
        members: impl IntoIterator<Item = (Key, Result<MemberAnswer, Refusal>)>,
        until: Instant,
    ) -> BTreeMap<Key, Refusal> {
        let believed_until = Instant::now() + MEMBER_BELIEVED_FOR;
        let mut refused = BTreeMap::new();
        let mut strangers = BTreeSet::new();
        for (key, member) in members {
            match member {
                Ok(Some((_, member))) if member.role.is_some() => {
                    self.known.lock().learn(key, believed_until);
                }
                Ok(Some(_)) => drop(refused.insert(key, not_a_member())),
                Ok(None) => drop(strangers.insert(key)),
                Err(refusal) => drop(refused.insert(key, refusal)),
            }
        }
        let groups: BTreeSet<GroupId> = strangers.iter().map(|(group, _)| *group).collect();
        let why = stream::iter(groups)
            .map(|group| async move { (group, self.strange(group, until).await) })
            .buffer_unordered(TOGETHER);
        let why: BTreeMap<GroupId, Refusal> = why.collect().await;
        let strangers = strangers.into_iter();
        refused.extend(strangers.map(|key| (key, why[&key.0].clone())));
        refused
    }

    /// Current membership of a user in a group.
    ///
    /// # Errors
    /// `Forbidden` for a user who is no member, `NotFound` if there is no such group; the store's.
    pub(crate) async fn of(
        &self,
        user: UserId,
        group: GroupId,
    ) -> Result<(GroupSettings, Member), Refusal> {
        let asked = [(group, user)];
        let members = within(self.deadline, self.groups.members_of(&asked)).await?;
        match members.into_iter().next().flatten() {
            Some((settings, member)) if member.role.is_some() => Ok((settings, member)),
            Some(_) => Err(not_a_member()),
            None => {
                let until = Instant::now() + self.door_deadline;
                Err(self.strange(group, until).await)
            }
        }
    }

    fn unknown(&self, asked: &[Key]) -> Vec<Key> {
        let (known, now) = (self.known.lock(), Instant::now());
        let unknown: BTreeSet<Key> = (asked.iter().copied())
            .filter(|key| !known.has(key, now))
            .collect();
        unknown.into_iter().collect()
    }

    /// Refusal for a user who never was a member, also if the store does not say in time whether
    /// the group exists.
    async fn strange(&self, group: GroupId, until: Instant) -> Refusal {
        let left = until.saturating_duration_since(Instant::now());
        let somebody = within(left, self.groups.present(group, None, 1)).await;
        stranger(somebody.ok().map(|somebody| !somebody.is_empty()))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test(start_paused = true)]
    async fn what_is_believed_ends_and_is_bounded() {
        let key = |n: i64| {
            let group = GroupId::new(1).expect("positive");
            (group, UserId::new(n + 1).expect("positive"))
        };
        let mut known = MemberMemory::default();
        let now = Instant::now();
        for n in 0..(KNOWN_MAX as i64 * 2) {
            known.learn(key(n), now + MEMBER_BELIEVED_FOR);
        }
        assert!(known.young.len() + known.old.len() <= KNOWN_MAX);
        let last = key(KNOWN_MAX as i64 * 2 - 1);
        assert!(known.has(&last, now));
        assert!(!known.has(&key(0), now));
        assert!(!known.has(&last, now + MEMBER_BELIEVED_FOR));
    }
}
