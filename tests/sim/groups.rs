//! Groups: wishes judged by the real rules and made real member by member, one row a message, and what a member is
//! shown.

use std::collections::{BTreeMap, BTreeSet};

use api::task::{DeliverTask, MessageTask, Task};
use api::told::{Roles, frames_of, is_wish};
use protocol::cached::{CachedGroup, Outdated, Owner};
use protocol::delivery::{self, Owed, Source};
use protocol::frame::{HistoryRange, Summary};
use protocol::group::{self, Group, GroupRow, Member, Outcome, Settings, Wish};
use protocol::history::Version;
use protocol::ledger::Event as LedgerEvent;
use protocol::sync::{GroupListed, readable_after};
use protocol::unread::in_group;
use protocol::{
    Code, ConversationId, GroupId, Message, MessageId, Placed, Position, Refusal, Seq, UserId,
};

use crate::boat::Notice;
use crate::effects::Effect;
use crate::plan::Sabotage;
use crate::world::World;
use crate::writer::{Batch, Written, version_of};

/// What a wish makes of its group.
#[derive(Debug)]
pub(crate) struct Granted {
    pub(crate) group: GroupId,
    pub(crate) members: Vec<(UserId, Member)>,
    pub(crate) settings: Option<(Settings, Version)>,
    /// Whose lists tell of it.
    touched: Vec<UserId>,
    /// Whose copies are from before.
    pub(crate) outdated: Vec<Outdated>,
}

/// What of a group is saved: a new one is there once its settings are, which stand last.
#[derive(Clone, Debug, Default)]
pub(crate) struct Kept {
    pub(crate) settings: Option<(Settings, Version)>,
    pub(crate) members: BTreeMap<UserId, Member>,
}

impl Kept {
    pub(crate) fn save_member(&mut self, user: UserId, member: Member) {
        let newer = |old: &Member| old.version <= member.version;
        if self.members.get(&user).is_none_or(newer) {
            self.members.insert(user, member);
        }
    }

    pub(crate) fn save_settings(&mut self, settings: (Settings, Version)) {
        if self
            .settings
            .is_none_or(|(_, version)| version <= settings.1)
        {
            self.settings = Some(settings);
        }
    }
}

impl World {
    pub(crate) fn group(&self, group: GroupId) -> Option<Group> {
        let kept = self.disk.groups.get(&group)?;
        let (settings, version) = kept.settings?;
        Some(Group {
            settings,
            version,
            members: kept.members.clone().into_iter().collect(),
        })
    }

    pub(crate) fn group_of(&self, conversation: ConversationId) -> Option<Group> {
        match conversation {
            ConversationId::Group(group) => self.group(group),
            ConversationId::Private { .. } | ConversationId::System(_) => None,
        }
    }

    /// Makes of a group what is wished, if its rules allow.
    pub(crate) fn wish(
        &mut self,
        source: Source,
        task: &Task,
        work: &MessageTask,
        wish: &Wish,
        batch: &mut Batch,
    ) {
        let message = &work.message;
        let conversation = message.conversation().expect("of a group");
        let ConversationId::Group(number) = conversation else {
            unreachable!("refused at the door")
        };
        let (version, by) = (version_of(source), message.from);
        let standing = self.group(number);
        let end = self.head(conversation, batch).seq;
        let limits = group::Limits::default();
        let ruled = group::rule(standing.as_ref(), version, by, wish, end, &limits);
        let outcome = match ruled {
            Ok(outcome) => outcome,
            Err(refusal) => return self.refused(source, work, refusal, batch),
        };
        let changed: BTreeSet<UserId> = outcome.members.keys().copied().chain([by]).collect();
        let after = after(standing, &outcome);
        let role = |user: UserId| (user, after.as_ref().and_then(|group| group.role(user)));
        let roles: Roles = changed.into_iter().map(role).collect();
        let placed = Placed {
            message: message.clone(),
            conversation,
            position: Position {
                seq: end.max(Seq(1)),
                prev: None,
            },
        };
        let left = outcome.members.iter();
        let left = left.filter(|(_, member)| member.role.is_none());
        let left = left.map(|(user, _)| Owner::User(*user));
        let owners = left.chain(outcome.settings.map(|_| Owner::Group(number)));
        batch.granted = Some(Granted {
            group: number,
            outdated: owners.map(Outdated::of).collect(),
            touched: outcome.members.keys().copied().collect(),
            members: outcome.members.into_iter().collect(),
            settings: outcome.settings,
        });
        let owed = roles.keys().map(|user| delivery::told(*user)).collect();
        let task = delivery::Task {
            audience: None,
            own_frames: frames_of(&placed, &roles, None),
            ..self.told_task(task, placed, 0, owed, LedgerEvent::Listed { conversation })
        };
        batch.deliveries.push(Written { source, task });
    }

    /// The record ends here, at its place in the log.
    pub(crate) fn refused(
        &mut self,
        source: Source,
        work: &MessageTask,
        refusal: Refusal,
        batch: &mut Batch,
    ) {
        let conversation = work.message.conversation().expect("of a group");
        let why = refusal.text.clone();
        let told = self.ends_with(work, LedgerEvent::Refused { conversation, why });
        self.tell_why(work, refusal);
        batch.dropped.push((source, told));
    }

    pub(crate) fn tell_why(&mut self, work: &MessageTask, refusal: Refusal) {
        if let Some(origin) = work.origin.clone() {
            let send_id = work.message.send_id;
            let frame = protocol::frame::ServerFrame::Refused { send_id, refusal };
            let frame = api::codec::encode_server(&frame);
            self.notify(origin.life, origin.session, Notice::Frame(frame));
        }
    }

    /// To whom a group's message goes: who was in when its record had its turn.
    pub(crate) fn owed_in_group(&self, placed: &Placed, version: Version) -> Vec<Owed> {
        let Some(group) = self.group_of(placed.conversation) else {
            return Vec::new();
        };
        let readers: Vec<UserId> = match self.sabotage {
            Some(Sabotage::ToldToLeavers) => group.members.iter().map(|(user, _)| user).collect(),
            _ => group.readers(version, placed.position.seq).collect(),
        };
        let known = |user| self.disk.platforms.get(&user).cloned().unwrap_or_default();
        delivery::owed_to(readers, placed, known)
    }

    /// How those stand now who are told of a wish.
    pub(crate) fn standings(&self, deliver: &DeliverTask) -> Roles {
        let group = self.group_of(deliver.placed.conversation);
        let Some(group) = group.filter(|_| is_wish(&deliver.placed.message)) else {
            return Roles::new();
        };
        let owed = deliver.owed().into_iter();
        owed.map(|owed| (owed.user, group.role(owed.user)))
            .collect()
    }

    /// The row of a group's message, also where an earlier record of the batch made it.
    pub(crate) fn group_row<'a>(
        &'a self,
        group: GroupId,
        id: MessageId,
        batch: &'a Batch,
    ) -> Option<&'a GroupRow> {
        let mut pending = batch.group_rows.iter();
        let pending = pending.find(|row| row.group == group && row.id == id);
        pending.or_else(|| self.disk.group_rows.get(&(group, id)))
    }

    /// The rows of a group by place.
    pub(crate) fn group_rows(&self, group: GroupId) -> BTreeMap<Seq, &GroupRow> {
        let rows = self.disk.group_rows.values();
        let rows = rows.filter(|row| row.group == group);
        rows.map(|row| (row.seq, row)).collect()
    }

    pub(crate) fn first_in_group(
        &self,
        message: &Message,
        group: GroupId,
        since: MessageId,
        version: Version,
        batch: &Batch,
    ) -> Option<MessageId> {
        let written = self.disk.group_rows.values();
        let mut rows = written.chain(&batch.group_rows);
        let same = |row: &&GroupRow| {
            row.group == group
                && (row.from, row.send_id) == (message.from, message.send_id)
                && row.id >= since
                && row.version < version
        };
        rows.find(same).map(|row| row.id)
    }

    /// From behind which place on somebody may read a conversation.
    pub(crate) fn readable_after(
        &self,
        user: UserId,
        conversation: ConversationId,
    ) -> Result<Seq, Refusal> {
        let ConversationId::Group(group) = conversation else {
            return protocol::sync::may_read(user, conversation).map(|()| Seq::ZERO);
        };
        let group = self.group(group);
        let group = group.ok_or_else(|| Refusal::new(Code::NotFound, "there is no such group"))?;
        match self.sabotage {
            Some(Sabotage::LateReadAll) if group.role(user).is_some() => Ok(Seq::ZERO),
            _ => readable_after(group.settings, group.members.get(user)),
        }
    }

    /// The messages of a group in the order of `range`.
    pub(crate) fn group_messages(&self, group: GroupId, range: HistoryRange) -> Vec<Placed> {
        let rows = self.group_rows(group).into_values().map(GroupRow::placed);
        match range {
            HistoryRange::Forward { after } => {
                rows.filter(|placed| placed.position.seq > after).collect()
            }
            HistoryRange::Backward { before } => {
                let is_before = |seq| before.is_none_or(|before| seq < before);
                let rows = rows.filter(|placed| is_before(placed.position.seq));
                let mut rows: Vec<_> = rows.collect();
                rows.reverse();
                rows
            }
        }
    }

    pub(crate) fn group_listed(&self, user: UserId, group: GroupId) -> Option<GroupListed> {
        let member = self.members_of(user).remove(&group)?;
        let copy = CachedGroup::read(self.now, self.head_on_disk(group), None);
        Some(member.listed(group, &copy))
    }

    pub(crate) fn group_summary(&self, user: UserId, row: &GroupListed) -> Summary {
        if row.member.role.is_none() {
            return row.summary();
        }
        let conversation = ConversationId::Group(row.group);
        let (base, end) = (row.base(), row.head.seq);
        let row_changed_to = row.changed_to;
        let rows = self.group_rows(row.group);
        let behind = || rows.range(base.next()..).filter(|(seq, _)| **seq <= end);
        let own = behind().filter(|(_, row)| row.from == user).count() as u64;
        let recalled = behind().filter(|(seq, row)| {
            let is_recalled = self.disk.recalled.contains_key(&(conversation, **seq));
            row.from != user && base < row_changed_to && is_recalled
        });
        let recalled = recalled.map(|(seq, _)| *seq).collect();
        let floor = self.readable_after(user, conversation);
        let newest = rows
            .get(&end)
            .filter(|_| floor.is_ok_and(|floor| end > floor));
        let mut newest = newest.map(|row| row.placed());
        let marks = newest.as_mut().filter(|_| end <= row.changed_to);
        let marks = marks.and_then(|newest| self.show_as_it_is(newest));
        Summary {
            unread: in_group(end, base, own, &recalled),
            newest,
            marks,
            ..row.summary()
        }
    }

    /// One effect of a wish that was granted: members, then settings, then what their lists are told by.
    pub(crate) fn grant_step(&mut self, granted: &mut Granted) -> bool {
        let group = granted.group;
        if let Some((user, member)) = granted.members.pop() {
            self.apply(Effect::Member {
                group,
                user,
                member,
            });
        } else if let Some(settings) = granted.settings.take() {
            self.apply(Effect::Settings { group, settings });
        } else if let Some(user) = granted.touched.pop() {
            let (conversation, at) = (ConversationId::Group(group), self.now);
            self.apply(Effect::Touched {
                user,
                conversation,
                at,
            });
        }
        let is_whole = granted.members.is_empty() && granted.settings.is_none();
        !is_whole || !granted.touched.is_empty() || !self.forgets(&mut granted.outdated)
    }

    /// Nothing behind a wish is written before: who was sent away must not find it.
    fn forgets(&mut self, outdated: &mut Vec<Outdated>) -> bool {
        if self.are_copies_away() {
            return false;
        }
        self.copies.forget(&std::mem::take(outdated));
        true
    }
}

/// The group after a wish.
fn after(standing: Option<Group>, outcome: &Outcome) -> Option<Group> {
    match (standing, outcome.settings) {
        (Some(mut group), _) => {
            group.apply(outcome.clone());
            Some(group)
        }
        (None, Some((settings, version))) => Some(Group {
            settings,
            version,
            members: outcome.members.clone().into_iter().collect(),
        }),
        (None, None) => None,
    }
}
