//! A consumer group inside one process: the holder of each partition, and its next one.
//!
//! Pure bookkeeping, cooperative. To move a partition, the group first asks its holder to give it
//! up: the holder sees *revoked*, keeps working, and returns the partition at its next poll; only
//! then is it assigned again. A holder that does not poll in time loses the partition, and a member
//! that does not poll within the poll interval is out of the group until it polls again.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::Duration;

use protocol::keys::Topic;
use tokio::sync::Notify;
use tokio::time::Instant;

use super::super::Partition;

#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(super) struct MemberId(pub(super) u64);

/// News for a member, most urgent first.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum GroupNews {
    Lost(Vec<Partition>),
    Revoked(Vec<Partition>),
    Assigned(Vec<Partition>),
}

pub(super) struct Group {
    /// Returns the number of partitions of a topic.
    partitions: fn(Topic, u32) -> u32,
    count: u32,
    /// Time a holder has to give up a partition after it is asked.
    revoke_timeout: Duration,
    /// Longest time a member may take between two polls.
    poll_interval: Duration,
    members: BTreeMap<MemberId, Member>,
    holdings: BTreeMap<Partition, Holding>,
}

struct Member {
    topic: Topic,
    wake: Arc<Notify>,
    assigned_partitions: Vec<Partition>,
    lost_partitions: Vec<Partition>,
    presence: Presence,
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum Presence {
    Polling,
    /// Working since its last poll ended.
    Working(Instant),
    /// Worked for longer than the poll interval, and holds no share.
    Out,
}

struct Holding {
    member: MemberId,
    stage: HoldingStage,
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum HoldingStage {
    /// Assigned, but not yet delivered to the member.
    Promised,
    Held,
    /// To be given up by this time; the member has not seen *revoked* yet.
    Asked(Instant),
    /// Seen as *revoked* by the member; given up at its next poll, or lost at this time.
    Told(Instant),
}

impl Group {
    pub(super) fn new(
        partitions: fn(Topic, u32) -> u32,
        count: u32,
        revoke_timeout: Duration,
        poll_interval: Duration,
    ) -> Group {
        Group {
            partitions,
            count,
            revoke_timeout,
            poll_interval,
            members: BTreeMap::new(),
            holdings: BTreeMap::new(),
        }
    }

    pub(super) fn join(&mut self, member: MemberId, topic: Topic, wake: Arc<Notify>, now: Instant) {
        let newcomer = Member {
            topic,
            wake,
            assigned_partitions: Vec::new(),
            lost_partitions: Vec::new(),
            presence: Presence::Working(now),
        };
        self.members.insert(member, newcomer);
        self.rebalance(now);
    }

    pub(super) fn leave(&mut self, member: MemberId, now: Instant) {
        self.members.remove(&member);
        self.holdings.retain(|_, holding| holding.member != member);
        self.rebalance(now);
    }

    pub(super) fn reads(&self, topic: Topic) -> bool {
        self.members.values().any(|m| m.topic == topic)
    }

    pub(super) fn holds(&self, member: MemberId, partition: Partition) -> bool {
        self.holdings.get(&partition).is_some_and(|holding| {
            holding.member == member && holding.stage != HoldingStage::Promised
        })
    }

    /// Frees the partitions the member has seen as *revoked*: by polling again it is done with
    /// them.
    pub(super) fn return_revoked(&mut self, member: MemberId, now: Instant) {
        let old_count = self.holdings.len();
        self.holdings.retain(|_, holding| {
            !(holding.member == member && matches!(holding.stage, HoldingStage::Told(_)))
        });
        if self.holdings.len() != old_count {
            self.rebalance(now);
        }
    }

    /// Marks the member as polling. A member that was out joins again.
    pub(super) fn poll_begins(&mut self, member: MemberId, now: Instant) {
        if let Some(entry) = self.members.get_mut(&member) {
            let old_presence = std::mem::replace(&mut entry.presence, Presence::Polling);
            if old_presence == Presence::Out {
                self.rebalance(now);
            }
        }
    }

    pub(super) fn poll_ends(&mut self, member: MemberId, now: Instant) {
        if let Some(entry) = self.members.get_mut(&member) {
            entry.presence = Presence::Working(now);
        }
    }

    /// Takes overdue partitions from members that were asked to give them up, and all partitions
    /// from members that stopped polling.
    pub(super) fn expire(&mut self, now: Instant) {
        for member in self.overdue_members(now) {
            self.evict(member, now);
        }
        let is_overdue = |stage| match stage {
            HoldingStage::Asked(deadline) | HoldingStage::Told(deadline) => deadline <= now,
            HoldingStage::Promised | HoldingStage::Held => false,
        };
        let overdue_holdings: Vec<_> = self
            .holdings
            .iter()
            .filter(|(_, holding)| is_overdue(holding.stage))
            .map(|(&partition, holding)| (partition, holding.member))
            .collect();
        for &(partition, member) in &overdue_holdings {
            self.holdings.remove(&partition);
            if let Some(member) = self.members.get_mut(&member) {
                member.lost_partitions.push(partition);
                member.wake.notify_one();
            }
        }
        if !overdue_holdings.is_empty() {
            self.rebalance(now);
        }
    }

    fn overdue_members(&self, now: Instant) -> Vec<MemberId> {
        let overdue = self.members.iter().filter(|(_, member)| {
            matches!(member.presence, Presence::Working(last_poll) if last_poll + self.poll_interval <= now)
        });
        overdue.map(|(&id, _)| id).collect()
    }

    fn evict(&mut self, id: MemberId, now: Instant) {
        let holdings = self
            .holdings
            .extract_if(.., |_, holding| holding.member == id);
        let holdings: Vec<_> = holdings.collect();
        if let Some(member) = self.members.get_mut(&id) {
            member.presence = Presence::Out;
            // The member never learned of promised partitions, so it does not lose them.
            member.assigned_partitions.clear();
            let losses = holdings
                .into_iter()
                .filter(|(_, holding)| holding.stage != HoldingStage::Promised);
            member
                .lost_partitions
                .extend(losses.map(|(partition, _)| partition));
        }
        self.rebalance(now);
    }

    /// Time of a sleeping member's next check for late members; `None` if it is alone. Another
    /// member that is polling now may become late one interval after its poll returns, which wakes
    /// nobody.
    pub(super) fn next_check(&self, now: Instant) -> Option<Instant> {
        let is_alone = self.members.len() < 2;
        let latest = (!is_alone).then(|| now + self.poll_interval);
        self.next_expiry().into_iter().chain(latest).min()
    }

    /// Time at which [`Group::expire`] next has work to do.
    fn next_expiry(&self) -> Option<Instant> {
        let revoke_deadlines = self
            .holdings
            .values()
            .filter_map(|holding| match holding.stage {
                HoldingStage::Asked(deadline) | HoldingStage::Told(deadline) => Some(deadline),
                HoldingStage::Promised | HoldingStage::Held => None,
            });
        let poll_deadlines = self
            .members
            .values()
            .filter_map(|member| match member.presence {
                Presence::Working(last_poll) => Some(last_poll + self.poll_interval),
                Presence::Polling | Presence::Out => None,
            });
        revoke_deadlines.chain(poll_deadlines).min()
    }

    /// Takes the member's most urgent news; taking it marks it as delivered.
    pub(super) fn news(&mut self, member: MemberId) -> Option<GroupNews> {
        let entry = self.members.get_mut(&member)?;
        if !entry.lost_partitions.is_empty() {
            return Some(GroupNews::Lost(std::mem::take(&mut entry.lost_partitions)));
        }
        let mut partitions = Vec::new();
        for (&partition, holding) in &mut self.holdings {
            if let (true, HoldingStage::Asked(deadline)) = (holding.member == member, holding.stage)
            {
                holding.stage = HoldingStage::Told(deadline);
                partitions.push(partition);
            }
        }
        if !partitions.is_empty() {
            return Some(GroupNews::Revoked(partitions));
        }
        let partitions = std::mem::take(&mut entry.assigned_partitions);
        for partition in &partitions {
            if let Some(holding) = self.holdings.get_mut(partition) {
                holding.stage = HoldingStage::Held;
            }
        }
        (!partitions.is_empty()).then_some(GroupNews::Assigned(partitions))
    }

    fn rebalance(&mut self, now: Instant) {
        let topics = self.members.values().map(|member| member.topic);
        for topic in topics.collect::<BTreeSet<Topic>>() {
            self.rebalance_topic(topic, now);
        }
    }

    /// Moves as few partitions as an even split allows.
    fn rebalance_topic(&mut self, topic: Topic, now: Instant) {
        let count = (self.partitions)(topic, self.count);
        let partitions = (0..count).map(|number| Partition { topic, number });
        let mut shares = self.shares(topic, count);
        let mut free = Vec::new();
        for partition in partitions {
            match self.holdings.get_mut(&partition) {
                None => free.push(partition),
                Some(holding) => {
                    let share = shares.get_mut(&holding.member);
                    let keeps = share.is_some_and(|remaining| {
                        let keeps = *remaining > 0;
                        *remaining = remaining.saturating_sub(1);
                        keeps
                    });
                    match (keeps, holding.stage) {
                        (true, HoldingStage::Asked(_)) => holding.stage = HoldingStage::Held,
                        (true, _) | (false, HoldingStage::Asked(_) | HoldingStage::Told(_)) => {}
                        (false, HoldingStage::Held) => {
                            holding.stage = HoldingStage::Asked(now + self.revoke_timeout);
                            self.wake(partition);
                        }
                        (false, HoldingStage::Promised) => {
                            self.withdraw(partition);
                            free.push(partition);
                        }
                    }
                }
            }
        }
        for partition in free {
            let Some((&member, remaining)) =
                shares.iter_mut().find(|(_, remaining)| **remaining > 0)
            else {
                continue;
            };
            *remaining -= 1;
            self.holdings.insert(
                partition,
                Holding {
                    member,
                    stage: HoldingStage::Promised,
                },
            );
            if let Some(member) = self.members.get_mut(&member) {
                member.assigned_partitions.push(partition);
                member.wake.notify_one();
            }
        }
    }

    /// Number of partitions due to each reader of the topic; members that hold more now get the
    /// remainder.
    fn shares(&self, topic: Topic, count: u32) -> BTreeMap<MemberId, u32> {
        let mut readers: Vec<(usize, MemberId)> = self
            .members
            .iter()
            .filter(|(_, member)| member.topic == topic && member.presence != Presence::Out)
            .map(|(&id, _)| {
                let held_count = self
                    .holdings
                    .iter()
                    .filter(|(partition, holding)| partition.topic == topic && holding.member == id)
                    .count();
                (held_count, id)
            })
            .collect();
        readers.sort_by_key(|&(held_count, id)| (std::cmp::Reverse(held_count), id));
        let readers_count = u32::try_from(readers.len()).unwrap_or(u32::MAX).max(1);
        let (each, remainder) = (count / readers_count, count % readers_count);
        readers
            .into_iter()
            .zip(0..)
            .map(|((_, id), index)| (id, each + u32::from(index < remainder)))
            .collect()
    }

    fn wake(&self, partition: Partition) {
        let holder = self.holdings.get(&partition).map(|holding| holding.member);
        if let Some(member) = holder.and_then(|id| self.members.get(&id)) {
            member.wake.notify_one();
        }
    }

    /// Withdraws an assignment that its member has not seen.
    fn withdraw(&mut self, partition: Partition) {
        let holding = self.holdings.remove(&partition);
        if let Some(member) = holding.and_then(|h| self.members.get_mut(&h.member)) {
            member
                .assigned_partitions
                .retain(|&candidate| candidate != partition);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const REVOKE_TIMEOUT: Duration = Duration::from_secs(30);
    const INTERVAL: Duration = Duration::from_secs(60);

    fn group() -> Group {
        Group::new(|_, count| count, 4, REVOKE_TIMEOUT, INTERVAL)
    }

    fn partitions(numbers: &[u32]) -> Vec<Partition> {
        numbers
            .iter()
            .map(|&number| Partition {
                topic: Topic::Message,
                number,
            })
            .collect()
    }

    fn join(group: &mut Group, member: u64, now: Instant) {
        group.join(MemberId(member), Topic::Message, Arc::default(), now);
    }

    #[test]
    fn partitions_move_only_after_the_holder_polled_again() {
        let (a, b, now) = (MemberId(1), MemberId(2), Instant::now());
        let mut group = group();
        join(&mut group, 1, now);
        assert_eq!(
            group.news(a),
            Some(GroupNews::Assigned(partitions(&[0, 1, 2, 3])))
        );
        join(&mut group, 2, now);
        assert_eq!(group.news(b), None);
        assert_eq!(group.news(a), Some(GroupNews::Revoked(partitions(&[2, 3]))));
        assert!(group.holds(a, partitions(&[3])[0]), "may still commit");
        assert_eq!(group.news(b), None, "not before a has polled");
        group.return_revoked(a, now);
        assert_eq!(
            group.news(b),
            Some(GroupNews::Assigned(partitions(&[2, 3])))
        );
        assert!(!group.holds(a, partitions(&[3])[0]));
        group.leave(a, now);
        assert_eq!(
            group.news(b),
            Some(GroupNews::Assigned(partitions(&[0, 1])))
        );
    }

    #[test]
    fn partition_is_lost_if_its_holder_does_not_poll_in_time() {
        let (a, b, now) = (MemberId(1), MemberId(2), Instant::now());
        let mut group = group();
        join(&mut group, 1, now);
        group.news(a);
        join(&mut group, 2, now);
        group.poll_begins(b, now);
        let expiry = group.next_expiry().expect("a was asked");
        assert_eq!(expiry, now + REVOKE_TIMEOUT);
        group.expire(expiry);
        assert_eq!(
            group.news(b),
            Some(GroupNews::Assigned(partitions(&[2, 3])))
        );
        assert_eq!(group.news(a), Some(GroupNews::Lost(partitions(&[2, 3]))));
        assert_eq!(group.next_expiry(), Some(now + INTERVAL), "a does not poll");
    }

    #[test]
    fn a_member_that_does_not_poll_is_out_until_it_polls_again() {
        let (a, b, now) = (MemberId(1), MemberId(2), Instant::now());
        let mut group = group();
        join(&mut group, 1, now);
        group.news(a);
        join(&mut group, 2, now);
        group.poll_begins(b, now);
        group.poll_begins(a, now);
        group.poll_ends(a, now);
        let almost = now + INTERVAL - Duration::from_millis(1);
        group.expire(now + REVOKE_TIMEOUT);
        assert_eq!(group.news(a), Some(GroupNews::Lost(partitions(&[2, 3]))));
        group.expire(almost);
        assert!(group.holds(a, partitions(&[0])[0]));
        assert_eq!(group.next_expiry(), Some(now + INTERVAL));
        group.expire(now + INTERVAL);
        assert!(!group.holds(a, partitions(&[0])[0]));
        assert_eq!(
            group.news(b),
            Some(GroupNews::Assigned(partitions(&[2, 3, 0, 1])))
        );
        group.poll_begins(a, now + INTERVAL);
        assert_eq!(group.news(a), Some(GroupNews::Lost(partitions(&[0, 1]))));
        assert_eq!(group.news(b), Some(GroupNews::Revoked(partitions(&[2, 3]))));
    }

    #[test]
    fn unseen_assignments_move_at_once_and_requests_can_be_undone() {
        let (a, b, now) = (MemberId(1), MemberId(2), Instant::now());
        let mut group = group();
        join(&mut group, 1, now);
        join(&mut group, 2, now);
        assert_eq!(
            group.news(a),
            Some(GroupNews::Assigned(partitions(&[0, 1])))
        );
        assert_eq!(
            group.news(b),
            Some(GroupNews::Assigned(partitions(&[2, 3])))
        );
        join(&mut group, 3, now);
        group.leave(MemberId(3), now);
        assert_eq!((group.news(a), group.news(b)), (None, None));
    }
}
