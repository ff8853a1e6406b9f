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
    patience: Duration,
    /// Longest time a member may take between two polls.
    poll_interval: Duration,
    members: BTreeMap<MemberId, Member>,
    held: BTreeMap<Partition, Holding>,
}

struct Member {
    topic: Topic,
    wake: Arc<Notify>,
    assigned: Vec<Partition>,
    lost: Vec<Partition>,
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
        patience: Duration,
        poll_interval: Duration,
    ) -> Group {
        Group {
            partitions,
            count,
            patience,
            poll_interval,
            members: BTreeMap::new(),
            held: BTreeMap::new(),
        }
    }

    pub(super) fn join(&mut self, member: MemberId, topic: Topic, wake: Arc<Notify>, now: Instant) {
        let newcomer = Member {
            topic,
            wake,
            assigned: Vec::new(),
            lost: Vec::new(),
            presence: Presence::Working(now),
        };
        self.members.insert(member, newcomer);
        self.rebalance(now);
    }

    pub(super) fn leave(&mut self, member: MemberId, now: Instant) {
        self.members.remove(&member);
        self.held.retain(|_, holding| holding.member != member);
        self.rebalance(now);
    }

    pub(super) fn reads(&self, topic: Topic) -> bool {
        self.members.values().any(|m| m.topic == topic)
    }

    pub(super) fn holds(&self, member: MemberId, partition: Partition) -> bool {
        self.held.get(&partition).is_some_and(|holding| {
            holding.member == member && holding.stage != HoldingStage::Promised
        })
    }

    /// Frees the partitions the member has seen as *revoked*: by polling again it is done with
    /// them.
    pub(super) fn give_up_told(&mut self, member: MemberId, now: Instant) {
        let before = self.held.len();
        self.held.retain(|_, holding| {
            !(holding.member == member && matches!(holding.stage, HoldingStage::Told(_)))
        });
        if self.held.len() != before {
            self.rebalance(now);
        }
    }

    /// Marks the member as polling. A member that was out joins again.
    pub(super) fn poll_begins(&mut self, member: MemberId, now: Instant) {
        if let Some(known) = self.members.get_mut(&member) {
            let before = std::mem::replace(&mut known.presence, Presence::Polling);
            if before == Presence::Out {
                self.rebalance(now);
            }
        }
    }

    pub(super) fn poll_ends(&mut self, member: MemberId, now: Instant) {
        if let Some(known) = self.members.get_mut(&member) {
            known.presence = Presence::Working(now);
        }
    }

    /// Takes overdue partitions from members that were asked to give them up, and all partitions
    /// from members that stopped polling.
    pub(super) fn expire(&mut self, now: Instant) {
        for member in self.silent(now) {
            self.put_out(member, now);
        }
        let overdue = |stage| match stage {
            HoldingStage::Asked(by) | HoldingStage::Told(by) => by <= now,
            HoldingStage::Promised | HoldingStage::Held => false,
        };
        let taken: Vec<_> = self
            .held
            .iter()
            .filter(|(_, holding)| overdue(holding.stage))
            .map(|(&partition, holding)| (partition, holding.member))
            .collect();
        for &(partition, member) in &taken {
            self.held.remove(&partition);
            if let Some(member) = self.members.get_mut(&member) {
                member.lost.push(partition);
                member.wake.notify_one();
            }
        }
        if !taken.is_empty() {
            self.rebalance(now);
        }
    }

    fn silent(&self, now: Instant) -> Vec<MemberId> {
        let silent = self.members.iter().filter(|(_, member)| {
            matches!(member.presence, Presence::Working(since) if since + self.poll_interval <= now)
        });
        silent.map(|(&id, _)| id).collect()
    }

    fn put_out(&mut self, id: MemberId, now: Instant) {
        let taken = self.held.extract_if(.., |_, holding| holding.member == id);
        let taken: Vec<_> = taken.collect();
        if let Some(member) = self.members.get_mut(&id) {
            member.presence = Presence::Out;
            // The member never learned of promised partitions, so it does not lose them.
            member.assigned.clear();
            let known = taken
                .into_iter()
                .filter(|(_, holding)| holding.stage != HoldingStage::Promised);
            member.lost.extend(known.map(|(partition, _)| partition));
        }
        self.rebalance(now);
    }

    /// Time of a sleeping member's next look for late members; `None` if it is alone. Another
    /// member that is polling now may become late one interval after its poll returns, which wakes
    /// nobody.
    pub(super) fn next_look(&self, now: Instant) -> Option<Instant> {
        let is_alone = self.members.len() < 2;
        let latest = (!is_alone).then(|| now + self.poll_interval);
        self.next_expiry().into_iter().chain(latest).min()
    }

    /// Time at which [`Group::expire`] next has work to do.
    fn next_expiry(&self) -> Option<Instant> {
        let asked_back = self
            .held
            .values()
            .filter_map(|holding| match holding.stage {
                HoldingStage::Asked(by) | HoldingStage::Told(by) => Some(by),
                HoldingStage::Promised | HoldingStage::Held => None,
            });
        let silent = self
            .members
            .values()
            .filter_map(|member| match member.presence {
                Presence::Working(since) => Some(since + self.poll_interval),
                Presence::Polling | Presence::Out => None,
            });
        asked_back.chain(silent).min()
    }

    /// Takes the member's most urgent news; taking it marks it as delivered.
    pub(super) fn news(&mut self, member: MemberId) -> Option<GroupNews> {
        let known = self.members.get_mut(&member)?;
        if !known.lost.is_empty() {
            return Some(GroupNews::Lost(std::mem::take(&mut known.lost)));
        }
        let mut revoked = Vec::new();
        for (&partition, holding) in &mut self.held {
            if let (true, HoldingStage::Asked(by)) = (holding.member == member, holding.stage) {
                holding.stage = HoldingStage::Told(by);
                revoked.push(partition);
            }
        }
        if !revoked.is_empty() {
            return Some(GroupNews::Revoked(revoked));
        }
        let assigned = std::mem::take(&mut known.assigned);
        for partition in &assigned {
            if let Some(holding) = self.held.get_mut(partition) {
                holding.stage = HoldingStage::Held;
            }
        }
        (!assigned.is_empty()).then_some(GroupNews::Assigned(assigned))
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
            match self.held.get_mut(&partition) {
                None => free.push(partition),
                Some(holding) => {
                    let share = shares.get_mut(&holding.member);
                    let keeps = share.is_some_and(|left| {
                        let keeps = *left > 0;
                        *left = left.saturating_sub(1);
                        keeps
                    });
                    match (keeps, holding.stage) {
                        (true, HoldingStage::Asked(_)) => holding.stage = HoldingStage::Held,
                        (true, _) | (false, HoldingStage::Asked(_) | HoldingStage::Told(_)) => {}
                        (false, HoldingStage::Held) => {
                            holding.stage = HoldingStage::Asked(now + self.patience);
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
            let Some((&member, left)) = shares.iter_mut().find(|(_, left)| **left > 0) else {
                continue;
            };
            *left -= 1;
            self.held.insert(
                partition,
                Holding {
                    member,
                    stage: HoldingStage::Promised,
                },
            );
            if let Some(member) = self.members.get_mut(&member) {
                member.assigned.push(partition);
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
                let has = self
                    .held
                    .iter()
                    .filter(|(partition, holding)| partition.topic == topic && holding.member == id)
                    .count();
                (has, id)
            })
            .collect();
        readers.sort_by_key(|&(has, id)| (std::cmp::Reverse(has), id));
        let readers_count = u32::try_from(readers.len()).unwrap_or(u32::MAX).max(1);
        let (each, odd) = (count / readers_count, count % readers_count);
        readers
            .into_iter()
            .zip(0..)
            .map(|((_, id), place)| (id, each + u32::from(place < odd)))
            .collect()
    }

    fn wake(&self, partition: Partition) {
        let holder = self.held.get(&partition).map(|holding| holding.member);
        if let Some(member) = holder.and_then(|id| self.members.get(&id)) {
            member.wake.notify_one();
        }
    }

    /// Withdraws an assignment that its member has not seen.
    fn withdraw(&mut self, partition: Partition) {
        let holding = self.held.remove(&partition);
        if let Some(member) = holding.and_then(|h| self.members.get_mut(&h.member)) {
            member.assigned.retain(|&assigned| assigned != partition);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const PATIENCE: Duration = Duration::from_secs(30);
    const INTERVAL: Duration = Duration::from_secs(60);

    fn group() -> Group {
        Group::new(|_, count| count, 4, PATIENCE, INTERVAL)
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
        group.give_up_told(a, now);
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
    fn who_does_not_poll_loses_what_was_asked_back() {
        let (a, b, now) = (MemberId(1), MemberId(2), Instant::now());
        let mut group = group();
        join(&mut group, 1, now);
        group.news(a);
        join(&mut group, 2, now);
        group.poll_begins(b, now);
        let expiry = group.next_expiry().expect("a was asked");
        assert_eq!(expiry, now + PATIENCE);
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
        group.expire(now + PATIENCE);
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
    fn what_nobody_was_told_of_moves_at_once_and_a_command_may_be_taken_back() {
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
