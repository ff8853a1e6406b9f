//! Ruling on a record at its place in a group's log, stable across redeliveries after a crash.
//!
//! Three rules carry that. A command takes effect in full before anything later in the log is
//! looked at, and everything earlier has taken effect in full when it is judged. Everything that it
//! writes bears its version. And anything with a later version stays as it is. So a group that
//! shows
//!
//! - nothing of this record and nothing later is as it was the first time: judge the record;
//! - something of this record, and nothing later, may not have been saved in full: write the rest,
//!   and the saved part once more;
//! - something later has this record behind it: nothing of it is left to do.

use std::cmp::Ordering;
use std::collections::BTreeMap;

use super::{Group, GroupCommand, GroupLimits, GroupUpdate, Member, Outcome, Role, dissolved};
use crate::history::Version;
use crate::{Code, Refusal, Seq, Timestamp, UserId};

/// Membership of a user at a record's place in the log.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum MembershipAt {
    In(Role),
    Out,
    /// Unknown: this record or a later one wrote the present state.
    Unknown,
}

/// Effect of a command at its place in the log: save all of it, however often it comes. `end` is
/// the end of the conversation.
///
/// # Errors
/// As [`Group::create`] and [`Group::judge`].
pub fn rule(
    group: Option<&Group>,
    record: Version,
    by: UserId,
    command: &GroupCommand,
    end: Seq,
    limits: &GroupLimits,
) -> Result<GroupUpdate, Refusal> {
    let Some(group) = group else {
        let group = Group::create(record, by, command, limits)?;
        let members = group.members.iter();
        return Ok(GroupUpdate {
            info: Some(group.info),
            members: members.map(|(user, member)| (user, *member)).collect(),
            changes_settings: true,
        });
    };
    match group.newest().cmp(&record) {
        Ordering::Less => group.judge(record, by, command, end, limits),
        Ordering::Equal => Ok(group.complete_update(record, by, command, end, limits)),
        Ordering::Greater => Ok(group.made_by(record)),
    }
}

/// Reason why an unplaced message that was accepted `at` gets no position in a group; `None` if its
/// sender may write there.
pub fn refusal(
    group: Option<&Group>,
    record: Version,
    from: UserId,
    at: Timestamp,
) -> Option<Refusal> {
    let Some(group) = group else {
        return Some(Refusal::new(Code::NotFound, "there is no such group"));
    };
    if group.info.is_dissolved {
        return Some(dissolved());
    }
    match group.at(record, from) {
        MembershipAt::In(_) => {
            let member = group.members.get(from)?;
            group.info.may_write(member, at).err()
        }
        MembershipAt::Out => Some(Refusal::new(Code::Forbidden, "you are not in this group")),
        MembershipAt::Unknown => {
            let text = "you were not in this group, or were muted, when it was sent";
            Some(Refusal::new(Code::Forbidden, text))
        }
    }
}

impl Group {
    /// Last record that changed the group. Any record before it has been handled in full.
    pub fn newest(&self) -> Version {
        self.info.version.max(self.members.newest())
    }

    /// Membership of the user at the turn of `record`.
    pub fn at(&self, record: Version, user: UserId) -> MembershipAt {
        match self.members.get(user) {
            Some(member) if member.version >= record => MembershipAt::Unknown,
            Some(Member {
                role: Some(role), ..
            }) => MembershipAt::In(*role),
            Some(_) | None => MembershipAt::Out,
        }
    }

    /// Members at the time when `record` placed a message at `seq`, in order: including those who
    /// left since, without those who joined since. A user who did both starts behind the message.
    pub fn readers(&self, record: Version, seq: Seq) -> impl Iterator<Item = UserId> {
        let members = self.members.iter();
        members
            .filter(move |(_, member)| Group::reads(member, record, seq))
            .map(|(user, _)| user)
    }

    /// Whether this member was in the group when `record` placed a message at `seq`.
    pub(super) fn reads(member: &Member, record: Version, seq: Seq) -> bool {
        member.since < seq && (member.role.is_some() || member.version > record)
    }

    /// Members that bear this record's version, and the group if it does.
    fn made_by(&self, record: Version) -> GroupUpdate {
        let members = self.members.iter();
        let own_members = members.filter(|(_, member)| member.version == record);
        let info = Some(self.info).filter(|info| info.version == record);
        GroupUpdate {
            members: own_members.map(|(user, member)| (user, *member)).collect(),
            changes_settings: info.is_some(),
            info,
        }
    }

    /// The same, with the part that was not saved: the command was allowed, otherwise nothing would
    /// have its version. The group is saved last: until it bears the version it is as before.
    fn complete_update(
        &self,
        record: Version,
        by: UserId,
        command: &GroupCommand,
        end: Seq,
        limits: &GroupLimits,
    ) -> GroupUpdate {
        let mut update = self.made_by(record);
        if update.info.is_some() {
            return update;
        }
        let joined_at = update.members.values().map(|member| member.since).next();
        let remaining = match command {
            GroupCommand::Add(users) => self.added(record, users, joined_at.unwrap_or(end)),
            GroupCommand::Remove(users) => self.removed(record, users, false, end),
            GroupCommand::Ban(users) => self.removed(record, users, true, end),
            GroupCommand::HandOver(user) => {
                let roles = [(*user, Some(Role::Owner)), (by, Some(Role::Admin))];
                self.with_roles(record, &roles)
            }
            GroupCommand::Dissolve => self.dismissed(record),
            // One member, which is saved.
            GroupCommand::Create { .. }
            | GroupCommand::Join
            | GroupCommand::Leave
            | GroupCommand::SetRole(..)
            | GroupCommand::Set(_)
            | GroupCommand::Mute(..) => BTreeMap::new(),
        };
        update.members.extend(remaining);
        self.update(record, command, Outcome::of_members(update.members), limits)
    }
}

#[cfg(test)]
mod tests;
