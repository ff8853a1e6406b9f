//! Copies beside the stores, filled, renewed and forgotten by the rules, in a memory of their own that is lost with
//! the mailbox.

use std::collections::BTreeMap;
use std::time::Duration;

use protocol::cached::{CachedGroup, CachedMember, CachedUser, Outdated, Owner};
use protocol::change::ChangeRow;
use protocol::conversation::{Head, Registers};
use protocol::frame::SyncQuery;
use protocol::sync::GroupListed;
use protocol::{ConversationId, GroupId, Refusal, Seq, Timestamp, UserId};

use crate::plan::Sabotage;
use crate::world::World;

/// How long a copy is good: in some worlds it ends before they do.
const KEEP_FOR: [Duration; 2] = [Duration::from_secs(30 * 60), Duration::from_secs(20)];

#[derive(Debug, Default)]
pub(crate) struct Copies {
    users: BTreeMap<UserId, Slot<CachedUser>>,
    groups: BTreeMap<GroupId, Slot<CachedGroup>>,
    /// The last that was given.
    token: u64,
}

#[derive(Clone, Debug)]
pub(crate) struct Slot<T> {
    token: u64,
    copy: Option<T>,
}

/// What was there when somebody asked, before they read the stores.
#[derive(Clone, Debug)]
pub(crate) struct Found {
    at: Timestamp,
    user: Slot<CachedUser>,
    groups: BTreeMap<GroupId, Slot<CachedGroup>>,
}

/// What a writer found of groups before it writes.
pub(crate) type Permits = Vec<(GroupId, Slot<CachedGroup>)>;

/// What was read and is to be kept, by the token of before.
#[derive(Clone, Debug)]
pub(crate) enum Filled {
    User(UserId, u64, CachedUser),
    Group(GroupId, u64, CachedGroup),
}

/// Registers of somebody were moved: their copy before, and when.
#[derive(Clone, Debug)]
pub(crate) struct Moved {
    user: UserId,
    before: Slot<CachedUser>,
    at: Timestamp,
}

impl Copies {
    fn next(&mut self) -> u64 {
        self.token += 1;
        self.token
    }

    fn user(&mut self, user: UserId) -> Slot<CachedUser> {
        let token = self.next();
        let slot = self.users.entry(user);
        slot.or_insert(Slot { token, copy: None }).clone()
    }

    fn group(&mut self, group: GroupId) -> Slot<CachedGroup> {
        let token = self.next();
        let slot = self.groups.entry(group);
        slot.or_insert(Slot { token, copy: None }).clone()
    }

    /// Tokens of before are not given again.
    pub(crate) fn lose(&mut self) {
        self.users.clear();
        self.groups.clear();
    }

    pub(crate) fn forget(&mut self, outdated: &[Outdated]) {
        for Outdated { owner, unless } in outdated {
            match owner {
                Owner::User(user) => drop(self.users.remove(user)),
                Owner::Group(group) => {
                    let copy = self.groups.get(group).and_then(|slot| slot.copy);
                    let reach = copy.map(|copy| copy.reach()).zip(*unless);
                    if !reach.is_some_and(|(reach, unless)| reach.covers(unless)) {
                        self.groups.remove(group);
                    }
                }
            }
        }
    }
}

impl Found {
    pub(crate) fn user(&self) -> Option<&CachedUser> {
        self.user.copy.as_ref()
    }

    fn group(&self, group: GroupId) -> Option<&CachedGroup> {
        self.groups.get(&group)?.copy.as_ref()
    }
}

impl World {
    /// What a question wants to know of copies.
    pub(crate) fn find_copies(&mut self, user: UserId, query: &SyncQuery) -> Option<Found> {
        let groups: Vec<GroupId> = match query {
            SyncQuery::List { .. } => self.disk.groups.keys().copied().collect(),
            SyncQuery::History { conversation, .. } | SyncQuery::Changes { conversation, .. } => {
                match conversation {
                    ConversationId::Group(group) => vec![*group],
                    ConversationId::Private { .. } | ConversationId::System(_) => return None,
                }
            }
            _ => return None,
        };
        let keep_for = KEEP_FOR[usize::from(self.plan.stations > 1)];
        let (now, copies) = (self.now, &mut self.copies);
        let is_good = |at: Timestamp| at + keep_for > now;
        let mut found = Found {
            at: now,
            user: copies.user(user),
            groups: (groups.into_iter())
                .map(|group| (group, copies.group(group)))
                .collect(),
        };
        found.user.copy = found.user.copy.filter(|copy| is_good(copy.at));
        for slot in found.groups.values_mut() {
            slot.copy = slot.copy.filter(|copy| is_good(copy.at));
        }
        Some(found)
    }

    fn ends(&self, held: Option<u64>, token: u64) -> bool {
        held != Some(token) && self.sabotage != Some(Sabotage::OldCopyKept)
    }

    fn keep_user(&mut self, user: UserId, token: u64, copy: CachedUser) -> bool {
        let held = self.copies.users.get(&user).map(|slot| slot.token);
        if self.ends(held, token) {
            return false;
        }
        let (token, copy) = (self.copies.next(), Some(copy));
        self.copies.users.insert(user, Slot { token, copy });
        true
    }

    fn keep_group(&mut self, group: GroupId, token: u64, copy: CachedGroup) -> bool {
        let held = self.copies.groups.get(&group).map(|slot| slot.token);
        if self.ends(held, token) {
            return false;
        }
        let (token, copy) = (self.copies.next(), Some(copy));
        self.copies.groups.insert(group, Slot { token, copy });
        true
    }

    pub(crate) fn fill(&mut self, filled: Vec<Filled>) {
        for filled in filled {
            match filled {
                Filled::User(user, token, copy) => _ = self.keep_user(user, token, copy),
                Filled::Group(group, token, copy) => {
                    if !self.keep_group(group, token, copy) {
                        let (owner, unless) = (Owner::Group(group), Some(copy.reach()));
                        self.copies.forget(&[Outdated { owner, unless }]);
                    }
                }
            }
        }
    }

    /// A list of everything is read from the stores where it was not found.
    pub(crate) fn filled_list(
        &self,
        user: UserId,
        found: Found,
        private_before: Timestamp,
    ) -> Vec<Filled> {
        let mut filled = Vec::new();
        if found.user.copy.is_none() {
            let copy = CachedUser {
                at: found.at,
                private_before,
                groups: self.members_of(user),
            };
            filled.push(Filled::User(user, found.user.token, copy));
        }
        for (group, slot) in found.groups {
            if slot.copy.is_none() {
                let copy = CachedGroup::read(found.at, self.head_on_disk(group), None);
                filled.push(Filled::Group(group, slot.token, copy));
            }
        }
        filled
    }

    /// The groups of somebody, and what they did with them.
    pub(crate) fn members_of(&self, user: UserId) -> BTreeMap<GroupId, CachedMember> {
        let groups = self.disk.groups.iter();
        let members = groups.filter_map(|(group, kept)| {
            let member = *kept.members.get(&user)?;
            let registers = self.registers(user, ConversationId::Group(*group));
            let registers = Registers {
                read_seq: registers.read,
                received_seq: registers.read,
                cleared: registers.cleared,
                touched: registers.touched,
                arranged: registers.arranged.unwrap_or_default().1,
                hidden: registers.hidden,
            };
            Some((*group, CachedMember { member, registers }))
        });
        members.collect()
    }

    pub(crate) fn head_on_disk(&self, group: GroupId) -> Head {
        let head = self.disk.heads.get(&ConversationId::Group(group));
        head.copied().unwrap_or_default()
    }

    /// The groups of somebody as a list is made of them, and since when at least it is so.
    pub(crate) fn rows_of(&self, user: UserId, found: &Found) -> (Vec<GroupListed>, Timestamp) {
        let members = match found.user() {
            Some(copy) => copy.groups.clone(),
            None => self.members_of(user),
        };
        let mut at = found.user().map_or(found.at, |copy| copy.at);
        let rows = members.into_iter().map(|(group, member)| {
            let read = || CachedGroup::read(found.at, self.head_on_disk(group), None);
            let copy = found.group(group).copied().unwrap_or_else(read);
            at = at.min(copy.at);
            member.listed(group, &copy)
        });
        (rows.collect(), at)
    }

    /// From behind which place on somebody may read a conversation, and where it ends.
    pub(crate) fn stands(
        &self,
        user: UserId,
        conversation: ConversationId,
        found: Option<Found>,
        filled: &mut Vec<Filled>,
        is_behind: impl Fn(&Head) -> bool,
    ) -> Result<(Seq, CachedGroup), Refusal> {
        let found = found.filter(|_| self.sabotage != Some(Sabotage::LateReadAll));
        let (ConversationId::Group(group), Some(found)) = (conversation, found) else {
            let floor = self.readable_after(user, conversation)?;
            let head = self.disk.heads.get(&conversation);
            let head = head.copied().unwrap_or_default();
            return Ok((floor, CachedGroup::read(self.now, head, None)));
        };
        let known = || {
            let copy = *found.group(group)?;
            let floor = found.user()?.readable_after(group, &copy)?;
            (!is_behind(&copy.head)).then_some((floor, copy))
        };
        if let Some(known) = known() {
            return Ok(known);
        }
        let floor = self.readable_after(user, conversation)?;
        let head = self.head_on_disk(group);
        let settings = self.group(group).map(|group| group.settings);
        let copy = CachedGroup::read(found.at, head, settings);
        filled.push(Filled::Group(group, found.groups[&group].token, copy));
        Ok((floor, copy))
    }

    /// The permits to renew copies of these, before anything is written.
    pub(crate) fn ask_permits<'a>(
        &mut self,
        conversations: impl Iterator<Item = &'a ConversationId>,
    ) -> Permits {
        let groups = conversations.filter_map(|conversation| match conversation {
            ConversationId::Group(group) => Some(*group),
            ConversationId::Private { .. } | ConversationId::System(_) => None,
        });
        groups
            .map(|group| (group, self.copies.group(group)))
            .collect()
    }

    /// As their heads are now.
    pub(crate) fn renew_copies(&mut self, permits: Permits, changes: &[ChangeRow]) {
        for (group, slot) in permits {
            let conversation = ConversationId::Group(group);
            let head = self.carrier.heads.get(&conversation);
            let Some(head) = head.copied() else { continue };
            let changes = changes
                .iter()
                .filter(|row| row.conversation == conversation);
            let changes = changes
                .map(|row| (row.changed.rev, row.changed.seq))
                .collect();
            let Some(copy) = slot.copy.and_then(|copy| copy.moved(head, &changes)) else {
                continue;
            };
            if !self.keep_group(group, slot.token, copy) {
                self.copies.forget(&[Outdated::of(Owner::Group(group))]);
            }
        }
    }

    /// Before they are.
    pub(crate) fn moves(&mut self, user: UserId) -> Moved {
        Moved {
            user,
            before: self.copies.user(user),
            at: self.now,
        }
    }

    /// The copy says it, too, or is forgotten.
    pub(crate) fn moved(&mut self, moved: Moved, reads: &[(ConversationId, Seq)]) {
        let Moved { user, before, at } = moved;
        let Slot { token, copy } = before;
        let kept = copy.is_some_and(|mut copy| {
            let each = reads.iter();
            each.for_each(|(conversation, seq)| copy.read(*conversation, *seq, at));
            self.keep_user(user, token, copy)
        });
        if !kept {
            self.copies.forget(&[Outdated::of(Owner::User(user))]);
        }
    }
}
