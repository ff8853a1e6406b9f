//! Groups: their members, and the rights of each role.
//!
//! A group command is a record of the conversation's own log, so it has one place among the
//! messages: a member who writes after their removal in the log is refused there, and a message
//! before it goes to the members of that time. The single writer judges the command against the
//! present group. A group command starts and ends a batch: everything before it in the log has
//! taken effect in full when it is judged, and the command itself has before anything later is. So
//! a redelivered record, after a crash, finds the group as it was the first time, or as the record
//! itself made it, which the members' versions tell.

mod audience;
mod members;
mod record;

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

pub use self::audience::Audience;
pub use self::members::Members;
pub use self::record::{MembershipAt, refusal, rule};
use crate::history::Version;
use crate::{Code, Refusal, Seq, UserId};

/// Role of a member in a group.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub enum Role {
    Member,
    Admin,
    /// Exactly one, while the group has any member.
    Owner,
}

impl Role {
    /// Whether the role may change others' messages, and the membership.
    pub const fn administers(self) -> bool {
        matches!(self, Role::Admin | Role::Owner)
    }
}

/// A present or former member.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Member {
    /// `None` for a former member.
    pub role: Option<Role>,
    /// End of the conversation when they joined: later messages are always theirs to read.
    pub since: Seq,
    /// Record that last changed the member.
    pub version: Version,
}

impl Member {
    /// Position behind which the member may read; `None` for a former member.
    pub fn readable_after(&self, settings: GroupSettings) -> Option<Seq> {
        self.role?;
        if settings.open_history {
            Some(Seq::ZERO)
        } else {
            Some(self.since)
        }
    }
}

/// Whether a present or former member may read an edit that this record made of the message at
/// `seq`, which was theirs to read when it came. Of a former member's, edits up to the leave are.
/// `None`: the user never was a member, as far as the store knows.
pub fn reads_edit(member: Option<&(GroupSettings, Member)>, seq: Seq, edit: Version) -> bool {
    let Some((settings, member)) = member else {
        return false;
    };
    match member.readable_after(*settings) {
        Some(floor) => seq > floor,
        None => edit < member.version,
    }
}

/// Settings of a group.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct GroupSettings {
    /// Later members may read earlier messages (S0-15).
    pub open_history: bool,
    /// Anybody may join; otherwise an administrator adds them.
    pub open_door: bool,
}

/// A group, as its writer knows it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Group {
    pub settings: GroupSettings,
    /// Record that last changed the settings.
    pub version: Version,
    pub members: Members,
}

/// Command for a group.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum GroupCommand {
    /// Creates a group of the asker, with these members. Its number was chosen at random: one that
    /// exists is refused.
    Create {
        settings: GroupSettings,
        members: Vec<UserId>,
    },
    /// The asker joins by themselves, through an open door.
    Join,
    Leave,
    Add(Vec<UserId>),
    Remove(UserId),
    /// Admin or member only; the owner's role is handed over.
    SetRole(UserId, Role),
    HandOver(UserId),
    Set(GroupSettings),
}

/// Limits of groups.
#[derive(Clone, Debug)]
pub struct GroupLimits {
    pub members: usize,
    /// Users added by one command.
    pub added_per_command: usize,
}

impl Default for GroupLimits {
    fn default() -> Self {
        GroupLimits {
            members: 100_000,
            added_per_command: 500,
        }
    }
}

/// Effect of a command: the changed members and settings. Empty if the group is like that already.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct GroupUpdate {
    pub members: BTreeMap<UserId, Member>,
    /// New settings, and the record that makes them.
    pub settings: Option<(GroupSettings, Version)>,
}

impl GroupUpdate {
    pub fn is_nothing(&self) -> bool {
        self.members.is_empty() && self.settings.is_none()
    }
}

impl Group {
    /// A new group of `owner`, before its first message.
    pub fn new(owner: UserId, settings: GroupSettings, record: Version) -> Group {
        let member = Member {
            role: Some(Role::Owner),
            since: Seq::ZERO,
            version: record,
        };
        Group {
            settings,
            version: record,
            members: Members::from_iter([(owner, member)]),
        }
    }

    /// The group that a command of `by` creates, if there is none.
    ///
    /// # Errors
    /// `NotFound` for any other command, `InvalidArgument` and `RateLimited` at the limits.
    pub fn create(
        record: Version,
        by: UserId,
        command: &GroupCommand,
        limits: &GroupLimits,
    ) -> Result<Group, Refusal> {
        let GroupCommand::Create { settings, members } = command else {
            return refuse(Code::NotFound, "there is no such group");
        };
        if members.len() > limits.added_per_command {
            let text = format!(
                "{} at a time; {} at most",
                members.len(),
                limits.added_per_command
            );
            return refuse(Code::InvalidArgument, &text);
        }
        let mut group = Group::new(by, *settings, record);
        let update = group.add_members(record, members, Seq::ZERO, limits)?;
        group.apply(update);
        Ok(group)
    }

    pub fn role(&self, user: UserId) -> Option<Role> {
        self.members.get(user)?.role
    }

    /// Present members.
    pub fn present(&self) -> impl Iterator<Item = (UserId, Role)> {
        let members = self.members.iter();
        members.filter_map(|(user, member)| Some((user, member.role?)))
    }

    /// Position behind which `user` may read; `None` if they are not a member.
    pub fn readable_after(&self, user: UserId) -> Option<Seq> {
        self.members.get(user)?.readable_after(self.settings)
    }

    /// Present members who may read the message at `seq`.
    pub fn readers_now(&self, seq: Seq) -> impl Iterator<Item = UserId> {
        let present = self.present().map(|(user, _)| user);
        present.filter(move |user| self.reads_now(*user, seq))
    }

    /// Whether `user` is a member who may read the message at `seq`.
    pub(super) fn reads_now(&self, user: UserId, seq: Seq) -> bool {
        self.readable_after(user)
            .is_some_and(|lower_bound| seq > lower_bound)
    }

    /// Judges a command of `by`; `end` is the end of the conversation.
    ///
    /// # Errors
    /// `Forbidden`, `NotFound` if a named user is not a member, `InvalidArgument`, `RateLimited` if
    /// the group is full.
    pub fn judge(
        &self,
        record: Version,
        by: UserId,
        command: &GroupCommand,
        end: Seq,
        limits: &GroupLimits,
    ) -> Result<GroupUpdate, Refusal> {
        let own_role = self.role(by);
        match command {
            GroupCommand::Create { .. } => {
                refuse(Code::InvalidArgument, "there is such a group already")
            }
            GroupCommand::Join if own_role.is_some() => Ok(GroupUpdate::default()),
            _ if self.members.present() == 0 => refuse(
                Code::NotFound,
                "everybody has left this group: it no longer exists",
            ),
            GroupCommand::Join if self.settings.open_door => {
                self.add_members(record, &[by], end, limits)
            }
            GroupCommand::Join => refuse(Code::Forbidden, "only an administrator can add people"),
            GroupCommand::Leave => self.leave(record, by),
            _ if own_role.is_none() => refuse(Code::Forbidden, "you are not in this group"),
            GroupCommand::Add(users) if users.len() > limits.added_per_command => {
                let text = format!(
                    "{} at a time; {} at most",
                    users.len(),
                    limits.added_per_command
                );
                refuse(Code::InvalidArgument, &text)
            }
            GroupCommand::Add(users) if self.settings.open_door || administers(own_role) => {
                self.add_members(record, users, end, limits)
            }
            GroupCommand::Remove(user) => self.remove(record, own_role, *user),
            GroupCommand::SetRole(user, role) if own_role == Some(Role::Owner) => {
                self.set_role(record, by, *user, *role)
            }
            GroupCommand::HandOver(user) if own_role == Some(Role::Owner) => {
                self.hand_over(record, by, *user)
            }
            GroupCommand::Set(settings) if administers(own_role) => Ok(GroupUpdate {
                settings: (self.settings != *settings).then_some((*settings, record)),
                ..GroupUpdate::default()
            }),
            GroupCommand::Add(_) | GroupCommand::Set(_) => {
                refuse(Code::Forbidden, "its owner and its administrators do that")
            }
            GroupCommand::SetRole(..) | GroupCommand::HandOver(_) => {
                refuse(Code::Forbidden, "its owner does that")
            }
        }
    }

    /// Applies a command's effect.
    pub fn apply(&mut self, outcome: GroupUpdate) {
        self.members.extend(outcome.members);
        if let Some((settings, version)) = outcome.settings {
            self.settings = settings;
            self.version = version;
        }
    }

    fn add_members(
        &self,
        record: Version,
        users: &[UserId],
        end: Seq,
        limits: &GroupLimits,
    ) -> Result<GroupUpdate, Refusal> {
        let newcomer = |user: &&UserId| self.role(**user).is_none();
        let member = Member {
            role: Some(Role::Member),
            since: end,
            version: record,
        };
        let members: BTreeMap<UserId, Member> = (users.iter().filter(newcomer))
            .map(|user| (*user, member))
            .collect();
        let member_count = self.members.present();
        if member_count + members.len() > limits.members {
            let text = format!("{member_count} are in; {} at most", limits.members);
            return refuse(Code::RateLimited, &text);
        }
        Ok(GroupUpdate {
            members,
            settings: None,
        })
    }

    fn leave(&self, record: Version, by: UserId) -> Result<GroupUpdate, Refusal> {
        let Some(role) = self.role(by) else {
            return Ok(GroupUpdate::default());
        };
        if role == Role::Owner && self.members.present() > 1 {
            return refuse(
                Code::InvalidArgument,
                "you own this group: transfer it first",
            );
        }
        self.update_roles(record, &[(by, None)])
    }

    fn remove(
        &self,
        record: Version,
        mine: Option<Role>,
        user: UserId,
    ) -> Result<GroupUpdate, Refusal> {
        match self.role(user) {
            // Administrators do not remove each other.
            _ if !administers(mine) => {
                refuse(Code::Forbidden, "its owner and its administrators do that")
            }
            None => Ok(GroupUpdate::default()),
            theirs if theirs >= mine => refuse(
                Code::Forbidden,
                "only its owner may remove an administrator",
            ),
            Some(_) => self.update_roles(record, &[(user, None)]),
        }
    }

    fn set_role(
        &self,
        record: Version,
        by: UserId,
        user: UserId,
        role: Role,
    ) -> Result<GroupUpdate, Refusal> {
        match self.role(user) {
            _ if role == Role::Owner || user == by => refuse(
                Code::InvalidArgument,
                "a group is transferred by giving someone the owner role",
            ),
            None => refuse(Code::NotFound, "they are not in this group"),
            Some(current) if current == role => Ok(GroupUpdate::default()),
            Some(_) => self.update_roles(record, &[(user, Some(role))]),
        }
    }

    fn hand_over(&self, record: Version, by: UserId, user: UserId) -> Result<GroupUpdate, Refusal> {
        match self.role(user) {
            _ if user == by => Ok(GroupUpdate::default()),
            None => refuse(Code::NotFound, "they are not in this group"),
            Some(_) => {
                let roles = [(user, Some(Role::Owner)), (by, Some(Role::Admin))];
                self.update_roles(record, &roles)
            }
        }
    }

    fn update_roles(
        &self,
        record: Version,
        roles: &[(UserId, Option<Role>)],
    ) -> Result<GroupUpdate, Refusal> {
        Ok(GroupUpdate {
            members: self.with_roles(record, roles),
            settings: None,
        })
    }

    fn with_roles(
        &self,
        record: Version,
        roles: &[(UserId, Option<Role>)],
    ) -> BTreeMap<UserId, Member> {
        let members = roles.iter().filter_map(|(user, role)| {
            let member = self.members.get(*user)?;
            let member = Member {
                role: *role,
                version: record,
                ..*member
            };
            Some((*user, member))
        });
        members.collect()
    }
}

fn administers(role: Option<Role>) -> bool {
    role.is_some_and(Role::administers)
}

fn refuse<T>(code: Code, text: &str) -> Result<T, Refusal> {
    Err(Refusal::new(code, text))
}

#[cfg(test)]
mod tests;
