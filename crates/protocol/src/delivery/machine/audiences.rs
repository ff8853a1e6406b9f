//! Large groups, a few members at a time: a message to 100,000 members takes no more work at once
//! than one to a thousand, and does not delay messages between two people.

use std::collections::{BTreeMap, VecDeque};

use super::{Delivery, RouteKind};
use crate::delivery::arena::Key;
use crate::{ConversationId, Moment};

/// Members of all audiences that are looked up at a time: one call to the mailbox.
const ROUTES_MAX: usize = 1024;
/// Pushes of all kinds above which no further member is looked up.
const PUSHES_MAX: usize = 8192;
/// Members of one audience before the next audience's turn.
const MEMBERS_PER_TURN: usize = 64;

/// Records with members of their audience left to look up.
#[derive(Clone, Debug, Default)]
pub(super) struct Audiences {
    /// Records per conversation, oldest first: one after the other.
    queues: BTreeMap<ConversationId, VecDeque<Key>>,
    /// Conversations in the order of their turns.
    turns: VecDeque<ConversationId>,
    /// Open routes of members.
    pub(super) routes: usize,
}

impl Audiences {
    fn add(&mut self, conversation: ConversationId, record: Key) {
        let queue = self.queues.entry(conversation).or_default();
        if queue.is_empty() {
            self.turns.push_back(conversation);
        }
        queue.push_back(record);
    }

    /// Record whose turn it is.
    fn next(&mut self) -> Option<(ConversationId, Key)> {
        let conversation = *self.turns.front()?;
        let record = self.queues.get(&conversation)?.front()?;
        Some((conversation, *record))
    }

    /// Ends the turn of the front conversation, and if `is_done` also its record.
    fn turn(&mut self, is_done: bool) {
        let Some(conversation) = self.turns.pop_front() else {
            return;
        };
        let Some(queue) = self.queues.get_mut(&conversation) else {
            return;
        };
        if is_done {
            queue.pop_front();
        }
        if queue.is_empty() {
            self.queues.remove(&conversation);
        } else {
            self.turns.push_back(conversation);
        }
    }

    pub(super) fn abandon(&mut self, is_gone: impl Fn(Key) -> bool) {
        self.queues.retain(|_, records| {
            records.retain(|record| !is_gone(*record));
            !records.is_empty()
        });
        let queues = &self.queues;
        self.turns.retain(|turn| queues.contains_key(turn));
    }
}

impl Delivery {
    pub(super) fn begin_audience(&mut self, now: Moment, key: Key) {
        let Some(record) = self.records.get_mut(key) else {
            return;
        };
        if record.task.audience.is_none() {
            return;
        }
        // One for the members still to look up.
        record.open += 1;
        self.audiences.add(record.task.placed.conversation, key);
        self.reach_audiences(now);
    }

    /// Looks up as many further members as there is room for.
    pub(super) fn reach_audiences(&mut self, now: Moment) {
        while self.audiences.routes < ROUTES_MAX && self.pushes.len() < PUSHES_MAX {
            let Some((_, key)) = self.audiences.next() else {
                return;
            };
            let room = (ROUTES_MAX - self.audiences.routes).min(MEMBERS_PER_TURN);
            let (members, is_last) = self.next_members(key, room);
            for user in members {
                self.audiences.routes += 1;
                self.route(
                    key,
                    RouteKind::Member(user),
                    user,
                    Vec::new(),
                    Vec::new(),
                    None,
                );
            }
            self.audiences.turn(is_last);
            if is_last {
                self.close_one(now, key);
            }
        }
    }

    /// Next members of a record's audience without its sender; true if they are the last.
    fn next_members(&mut self, key: Key, room: usize) -> (Vec<crate::UserId>, bool) {
        let Some(record) = self.records.get_mut(key) else {
            return (Vec::new(), true);
        };
        let from = record.task.placed.message.from;
        let next_members = record.task.audience.iter();
        let next_members = next_members.flat_map(|audience| audience.behind(record.last_member));
        let members: Vec<_> = next_members.take(room).collect();
        let is_last = members.len() < room;
        record.last_member = members.last().copied().or(record.last_member);
        let members = members.into_iter().filter(|user| *user != from);
        (members.collect(), is_last)
    }
}
