//! Questions to stations: what is to be asked, and what is under way.

use std::collections::{BTreeMap, BTreeSet};

use super::{GroupEnd, GroupState};
use crate::group::Member;
use crate::history::Version;
use crate::{GroupId, Timestamp, UserId};

/// Groups and members in one question.
const ITEMS_MAX: usize = 500;

/// Questions under way at a time: one that hangs leaves room for others.
const UNDER_WAY_MAX: usize = 4;

/// A thing to ask for. A group comes before its members, so that they are mostly in one question.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct Item {
    group: GroupId,
    member: Option<UserId>,
}

impl Item {
    pub(super) const fn group(group: GroupId) -> Item {
        Item {
            group,
            member: None,
        }
    }

    pub(super) const fn member(group: GroupId, user: UserId) -> Item {
        Item {
            group,
            member: Some(user),
        }
    }
}

/// Question for the states of some groups, **and then** for the rows of some members.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Question {
    pub number: u64,
    items: BTreeSet<Item>,
}

impl Question {
    /// Groups that it names in any way.
    pub fn groups(&self) -> impl Iterator<Item = GroupId> {
        self.items.iter().map(|item| item.group)
    }

    /// Groups whose state it asks for.
    pub fn states(&self) -> impl Iterator<Item = GroupId> {
        let states = self.items.iter().filter(|item| item.member.is_none());
        states.map(|item| item.group)
    }

    /// Members whose rows it asks for.
    pub fn rows(&self) -> impl Iterator<Item = (GroupId, UserId)> {
        let items = self.items.iter();
        items.filter_map(|item| Some((item.group, item.member?)))
    }

    pub(super) fn asks_for(&self, group: GroupId) -> bool {
        self.items.contains(&Item::group(group))
    }

    /// Members of one group whose rows it asks for.
    pub(super) fn members(&self, group: GroupId) -> Vec<UserId> {
        let items = self.items.range(Item::group(group)..);
        let items = items.take_while(|item| item.group == group);
        items.filter_map(|item| item.member).collect()
    }
}

/// Answer of a station, from the stores of record. It may leave out what it could not read.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct GroupAnswer {
    /// `None`: there is no such group.
    pub groups: BTreeMap<GroupId, Option<GroupFacts>>,
    /// Read after the states of `groups`. `None`: the user was never in the group.
    pub members: BTreeMap<(GroupId, UserId), Option<Member>>,
}

/// State of a group.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct GroupFacts {
    pub partition: u32,
    pub state: GroupState,
    /// Record that last changed anything of the group.
    pub version: Version,
    pub end: GroupEnd,
    /// Time of the last message.
    pub at: Timestamp,
    pub present: u32,
}

#[derive(Clone, Debug, Default)]
pub(super) struct Questions {
    last_number: u64,
    due_at: BTreeMap<Item, Timestamp>,
    queue: BTreeSet<(Timestamp, Item)>,
    under_way: BTreeMap<u64, Question>,
}

impl Questions {
    /// Number of the last question: what happens now is answered by later ones only.
    pub(super) fn last_number(&self) -> u64 {
        self.last_number
    }

    /// Asks for this at the time, or earlier if it is to be asked earlier already. What is under way
    /// is asked once more: its answer may be older.
    pub(super) fn ask(&mut self, item: Item, at: Timestamp) {
        if let Some(due_at) = self.due_at.get(&item).copied() {
            if due_at <= at {
                return;
            }
            self.queue.remove(&(due_at, item));
        }
        self.due_at.insert(item, at);
        self.queue.insert((at, item));
    }

    /// The next question, if something is due and there is room.
    pub(super) fn next(&mut self, now: Timestamp) -> Option<Question> {
        if self.under_way.len() >= UNDER_WAY_MAX {
            return None;
        }
        let mut items = BTreeSet::new();
        while items.len() < ITEMS_MAX
            && let Some(&(due_at, item)) = self.queue.first()
            && due_at <= now
        {
            self.queue.pop_first();
            self.due_at.remove(&item);
            items.insert(item);
        }
        if items.is_empty() {
            return None;
        }
        self.last_number += 1;
        let question = Question {
            number: self.last_number,
            items,
        };
        self.under_way.insert(question.number, question.clone());
        Some(question)
    }

    pub(super) fn answered(&mut self, number: u64) -> Option<Question> {
        self.under_way.remove(&number)
    }

    pub(super) fn deadline(&self) -> Option<Timestamp> {
        let has_room = self.under_way.len() < UNDER_WAY_MAX;
        let (due_at, _) = self.queue.first().filter(|_| has_room)?;
        Some(*due_at)
    }
}
