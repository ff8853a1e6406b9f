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
use std::time::{Duration, UNIX_EPOCH};

use serde::{Deserialize, Serialize};

pub use self::audience::Audience;
pub use self::members::Members;
pub use self::record::{MembershipAt, refusal, rule};
use crate::history::Version;
use crate::{Code, Refusal, Seq, Timestamp, UserId};

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
    /// Not in cache entries.
    #[serde(skip)]
    pub restrictions: Restrictions,
}

/// What administrators forbid a user. It outlives a leave.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Restrictions {
    /// Cannot come back unless an administrator adds them.
    pub is_banned: bool,
    /// Cannot write messages that were accepted before this time.
    pub muted_until: Timestamp,
}

impl Member {
    pub const fn new(role: Option<Role>, since: Seq, version: Version) -> Member {
        Member {
            role,
            since,
            version,
            restrictions: Restrictions {
                is_banned: false,
                muted_until: Timestamp::ZERO,
            },
        }
    }

    /// Whether a group may forget the user in time: out of it, and nothing is forbidden to them.
    pub fn may_be_forgotten(&self) -> bool {
        self.role.is_none() && self.restrictions == Restrictions::default()
    }

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
/// `seq`, which was theirs to read when it came. Of a former member's, edits up to the leave are;
/// none if they were banned after the leave. `None`: the store knows nothing of the user.
pub fn reads_edit(member: Option<&(GroupInfo, Member)>, seq: Seq, edit: Version) -> bool {
    let Some((info, member)) = member else {
        return false;
    };
    match member.readable_after(info.settings) {
        Some(floor) => seq > floor,
        None if member.restrictions.is_banned && seq <= member.since => false,
        None => edit < member.version,
    }
}

/// Settings of a group; a command replaces all of them.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct GroupSettings {
    /// Later members may read earlier messages (S0-15).
    pub open_history: bool,
    /// Anybody may join; otherwise an administrator adds them.
    pub open_door: bool,
    /// Only who administers the group writes. Not in cache entries.
    #[serde(skip)]
    pub muted: bool,
    /// The group is large whatever its size. Not in cache entries.
    #[serde(skip)]
    pub quiet: bool,
}

impl GroupSettings {
    pub const CLOSED: GroupSettings = GroupSettings {
        open_history: false,
        open_door: false,
        muted: false,
        quiet: false,
    };
}

/// A group without its members.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct GroupInfo {
    pub settings: GroupSettings,
    /// Record that last changed anything of the group. While `present` is `None`: the record that
    /// last changed the settings.
    pub version: Version,
    /// Number of present members; `None` if they were never counted.
    pub present: Option<u32>,
    /// Whether messages go out to all members at once, instead of to each of them until it is
    /// acknowledged.
    pub is_large: bool,
    /// Record that last changed `is_large`. Earlier records are delivered as the group was then.
    pub resized_by: Version,
    pub is_dissolved: bool,
}

impl GroupInfo {
    /// A group whose members were never counted.
    pub const fn uncounted(settings: GroupSettings, version: Version) -> GroupInfo {
        GroupInfo {
            settings,
            version,
            present: None,
            is_large: false,
            resized_by: Version {
                epoch: 0,
                offset: 0,
            },
            is_dissolved: false,
        }
    }

    /// Whether a present member may write a message that is accepted `at`.
    ///
    /// # Errors
    /// `Muted`, with the time until the mute ends if it is the member's own.
    pub fn may_write(&self, member: &Member, at: Timestamp) -> Result<(), Refusal> {
        let muted_until = member.restrictions.muted_until;
        if administers(member.role) {
            Ok(())
        } else if muted_until > at {
            let text = format!("you are muted in this group until {}", rfc3339(muted_until));
            Err(Refusal::new(Code::Muted, text).retry_after(muted_until.since(at)))
        } else if self.settings.muted {
            let text = "only the owner and administrators write in this group";
            Err(Refusal::new(Code::Muted, text))
        } else {
            Ok(())
        }
    }
}

/// Whether a group with so many present members is large after a command. It stays so down to 80 %
/// of the bound: a group at the bound does not change with each join and leave.
pub const fn is_large(was_large: bool, present: usize, quiet: bool, push_max: usize) -> bool {
    quiet || present > push_max || (was_large && present * 5 > push_max.saturating_mul(4))
}

/// A group, as its writer knows it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Group {
    pub info: GroupInfo,
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
    Remove(Vec<UserId>),
    /// Admin or member only; the owner's role is handed over.
    SetRole(UserId, Role),
    HandOver(UserId),
    Set(GroupSettings),
    /// Removes these users, members or not, and keeps them out.
    Ban(Vec<UserId>),
    /// The member writes nothing before this time; an earlier time than now ends a mute.
    Mute(UserId, Timestamp),
    /// Ends the group for good.
    Dissolve,
}

impl GroupCommand {
    /// Whether it changes what a member may read without changing the member.
    const fn changes_settings(&self) -> bool {
        matches!(
            self,
            GroupCommand::Create { .. } | GroupCommand::Set(_) | GroupCommand::Dissolve
        )
    }
}

/// Limits of groups.
#[derive(Clone, Debug)]
pub struct GroupLimits {
    pub members: usize,
    /// Users that one command adds, removes or bans.
    pub users_per_command: usize,
    /// Present members above which a group is large.
    pub push_max: usize,
}

impl Default for GroupLimits {
    fn default() -> Self {
        GroupLimits {
            members: 100_000,
            users_per_command: 500,
            push_max: 500,
        }
    }
}

/// Effect of a command. Empty if the group is like that already.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct GroupUpdate {
    /// Changed members.
    pub members: BTreeMap<UserId, Member>,
    /// The group after the command. `None` if nothing changes, or a later record has written it.
    pub info: Option<GroupInfo>,
    /// Whether what members may read changes, without a change of the members.
    pub changes_settings: bool,
}

impl GroupUpdate {
    pub fn is_nothing(&self) -> bool {
        self.members.is_empty() && self.info.is_none()
    }
}

/// What a command asks for, before the rest of the group follows from it.
#[derive(Default)]
struct Outcome {
    members: BTreeMap<UserId, Member>,
    settings: Option<GroupSettings>,
}

impl Outcome {
    fn of_members(members: BTreeMap<UserId, Member>) -> Outcome {
        Outcome {
            members,
            ..Outcome::default()
        }
    }
}

impl Group {
    /// A new group of `owner`, before its first message.
    pub fn new(owner: UserId, settings: GroupSettings, record: Version) -> Group {
        let member = Member::new(Some(Role::Owner), Seq::ZERO, record);
        let info = GroupInfo {
            present: Some(1),
            is_large: settings.quiet,
            resized_by: record,
            ..GroupInfo::uncounted(settings, record)
        };
        Group {
            info,
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
        check_user_count(members, limits)?;
        let mut group = Group::new(by, *settings, record);
        let members = group.newcomers(record, members, Seq::ZERO, limits)?;
        group.members.extend(members);
        let present = group.members.present();
        group.info.present = u32::try_from(present).ok();
        group.info.is_large = is_large(false, present, settings.quiet, limits.push_max);
        Ok(group)
    }

    /// Role of a present member. In a dissolved group nobody has one.
    pub fn role(&self, user: UserId) -> Option<Role> {
        let member = self.members.get(user)?;
        member.role.filter(|_| !self.info.is_dissolved)
    }

    /// Present members.
    pub fn present(&self) -> impl Iterator<Item = (UserId, Role)> {
        let members = self.members.iter();
        members.filter_map(|(user, member)| Some((user, member.role?)))
    }

    /// Position behind which `user` may read; `None` if they are not a member.
    pub fn readable_after(&self, user: UserId) -> Option<Seq> {
        self.members.get(user)?.readable_after(self.info.settings)
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
    /// `Forbidden`, `NotFound` if a named user is not a member or the group was dissolved,
    /// `InvalidArgument`, `RateLimited` if the group is full.
    pub fn judge(
        &self,
        record: Version,
        by: UserId,
        command: &GroupCommand,
        end: Seq,
        limits: &GroupLimits,
    ) -> Result<GroupUpdate, Refusal> {
        let outcome = self.outcome(record, by, command, end, limits)?;
        Ok(self.update(record, command, outcome, limits))
    }

    fn outcome(
        &self,
        record: Version,
        by: UserId,
        command: &GroupCommand,
        end: Seq,
        limits: &GroupLimits,
    ) -> Result<Outcome, Refusal> {
        let own_role = self.role(by);
        let (is_owner, is_admin) = (own_role == Some(Role::Owner), administers(own_role));
        match command {
            GroupCommand::Create { .. } => {
                refuse(Code::InvalidArgument, "there is such a group already")
            }
            _ if self.info.is_dissolved => Err(dissolved()),
            _ if self.members.present() == 0 => refuse(
                Code::NotFound,
                "everybody has left this group: it no longer exists",
            ),
            GroupCommand::Join => self.join(record, by, end, limits),
            GroupCommand::Leave => self.leave(record, by),
            _ if own_role.is_none() => refuse(Code::Forbidden, "you are not in this group"),
            GroupCommand::Add(users) if is_admin || self.info.settings.open_door => {
                check_user_count(users, limits)?;
                if !is_admin && let Some(user) = users.iter().find(|user| self.has_banned(**user)) {
                    let text = format!("user {user} is banned: only an administrator can add them");
                    return refuse(Code::Forbidden, &text);
                }
                let members = self.newcomers(record, users, end, limits)?;
                Ok(Outcome::of_members(members))
            }
            GroupCommand::Remove(users) | GroupCommand::Ban(users) if is_admin => {
                check_user_count(users, limits)?;
                if let Some(user) = users.iter().find(|user| self.role(**user) >= own_role) {
                    let text = format!(
                        "user {user} has as high a role as you: only the owner may remove or ban \
                         an administrator, and nobody the owner"
                    );
                    return refuse(Code::Forbidden, &text);
                }
                let is_ban = matches!(command, GroupCommand::Ban(_));
                self.remove(record, users, is_ban, end, limits)
            }
            GroupCommand::Mute(user, until) if is_admin => {
                self.mute(record, own_role, *user, *until)
            }
            GroupCommand::Set(settings) if is_admin => Ok(Outcome {
                settings: (self.info.settings != *settings).then_some(*settings),
                ..Outcome::default()
            }),
            GroupCommand::SetRole(user, role) if is_owner => {
                self.set_role(record, by, *user, *role)
            }
            GroupCommand::HandOver(user) if is_owner => self.hand_over(record, by, *user),
            GroupCommand::Dissolve if is_owner => {
                Ok(Outcome::of_members(self.dissolve(record, limits)))
            }
            GroupCommand::Add(_)
            | GroupCommand::Remove(_)
            | GroupCommand::Ban(_)
            | GroupCommand::Mute(..)
            | GroupCommand::Set(_) => {
                refuse(Code::Forbidden, "its owner and its administrators do that")
            }
            GroupCommand::SetRole(..) | GroupCommand::HandOver(_) | GroupCommand::Dissolve => {
                refuse(Code::Forbidden, "its owner does that")
            }
        }
    }

    /// The update that a command's outcome makes: with it goes everything that counts members.
    fn update(
        &self,
        record: Version,
        command: &GroupCommand,
        outcome: Outcome,
        limits: &GroupLimits,
    ) -> GroupUpdate {
        let Outcome { members, settings } = outcome;
        let dissolves = *command == GroupCommand::Dissolve;
        if members.is_empty() && settings.is_none() && !dissolves {
            return GroupUpdate::default();
        }
        let mut present = self.members.present();
        for (user, member) in &members {
            present += usize::from(member.role.is_some());
            present -= usize::from(self.role(*user).is_some());
        }
        let settings = settings.unwrap_or(self.info.settings);
        let was_large = self.info.is_large;
        let is_large = if dissolves {
            // A small one is left by all.
            members.is_empty()
        } else {
            is_large(was_large, present, settings.quiet, limits.push_max)
        };
        GroupUpdate {
            members,
            info: Some(GroupInfo {
                settings,
                version: record,
                present: u32::try_from(present).ok(),
                is_large,
                resized_by: if is_large == was_large {
                    self.info.resized_by
                } else {
                    record
                },
                is_dissolved: self.info.is_dissolved || dissolves,
            }),
            changes_settings: command.changes_settings(),
        }
    }

    /// Applies a command's effect.
    pub fn apply(&mut self, update: GroupUpdate) {
        self.members.extend(update.members);
        self.info = update.info.unwrap_or(self.info);
    }

    fn has_banned(&self, user: UserId) -> bool {
        let member = self.members.get(user);
        member.is_some_and(|member| member.restrictions.is_banned)
    }

    fn join(
        &self,
        record: Version,
        by: UserId,
        end: Seq,
        limits: &GroupLimits,
    ) -> Result<Outcome, Refusal> {
        if self.role(by).is_some() {
            Ok(Outcome::default())
        } else if self.has_banned(by) {
            refuse(Code::Forbidden, "you are banned from this group")
        } else if self.info.settings.open_door {
            let members = self.newcomers(record, &[by], end, limits)?;
            Ok(Outcome::of_members(members))
        } else {
            refuse(Code::Forbidden, "only an administrator can add people")
        }
    }

    /// Those of these users who are not in the group, as members from `end` on.
    fn newcomers(
        &self,
        record: Version,
        users: &[UserId],
        end: Seq,
        limits: &GroupLimits,
    ) -> Result<BTreeMap<UserId, Member>, Refusal> {
        let members = self.added(record, users, end);
        let member_count = self.members.present();
        if member_count + members.len() > limits.members {
            let text = format!("{member_count} are in; {} at most", limits.members);
            return refuse(Code::RateLimited, &text);
        }
        Ok(members)
    }

    fn added(&self, record: Version, users: &[UserId], since: Seq) -> BTreeMap<UserId, Member> {
        let newcomers = users.iter().filter(|user| self.role(**user).is_none());
        let members = newcomers.map(|user| {
            let mut member = Member::new(Some(Role::Member), since, record);
            if let Some(former_member) = self.members.get(*user) {
                member.restrictions.muted_until = former_member.restrictions.muted_until;
            }
            (*user, member)
        });
        members.collect()
    }

    fn leave(&self, record: Version, by: UserId) -> Result<Outcome, Refusal> {
        let Some(role) = self.role(by) else {
            return Ok(Outcome::default());
        };
        if role == Role::Owner && self.members.present() > 1 {
            return refuse(
                Code::InvalidArgument,
                "you own this group: transfer it first",
            );
        }
        Ok(Outcome::of_members(self.with_roles(record, &[(by, None)])))
    }

    fn remove(
        &self,
        record: Version,
        users: &[UserId],
        is_ban: bool,
        end: Seq,
        limits: &GroupLimits,
    ) -> Result<Outcome, Refusal> {
        let members = self.removed(record, users, is_ban, end);
        let is_new = |user: &&UserId| !self.members.contains(**user);
        let new_count = members.keys().filter(is_new).count();
        let former_count = self.members.len() - self.members.present();
        // A ban is kept for good.
        if new_count > 0 && former_count + new_count > limits.members {
            let text = format!(
                "{former_count} users have left or are banned: only members can be banned now"
            );
            return refuse(Code::RateLimited, &text);
        }
        Ok(Outcome::of_members(members))
    }

    /// Those of these users who leave, or whom a ban finds outside, with `end` as the end of the
    /// conversation. A user who is banned outside was no member until then: nothing up to the end
    /// is theirs to read.
    fn removed(
        &self,
        record: Version,
        users: &[UserId],
        is_ban: bool,
        end: Seq,
    ) -> BTreeMap<UserId, Member> {
        let mut removed = BTreeMap::new();
        for user in users {
            let member = match self.members.get(*user).copied() {
                Some(member) if member.role.is_some() => member,
                _ if !is_ban || self.has_banned(*user) => continue,
                former_member => Member {
                    since: end,
                    ..former_member.unwrap_or_else(|| Member::new(None, end, record))
                },
            };
            let restrictions = Restrictions {
                is_banned: is_ban,
                ..member.restrictions
            };
            removed.insert(
                *user,
                Member {
                    role: None,
                    version: record,
                    restrictions,
                    ..member
                },
            );
        }
        removed
    }

    /// Members who leave a group that ends. A large one keeps them: they may do nothing in it.
    fn dissolve(&self, record: Version, limits: &GroupLimits) -> BTreeMap<UserId, Member> {
        let GroupInfo {
            settings, is_large, ..
        } = self.info;
        let present = self.members.present();
        if self::is_large(is_large, present, settings.quiet, limits.push_max) {
            BTreeMap::new()
        } else {
            self.dismissed(record)
        }
    }

    /// All present members as former ones.
    fn dismissed(&self, record: Version) -> BTreeMap<UserId, Member> {
        let roles: Vec<_> = self.present().map(|(user, _)| (user, None)).collect();
        self.with_roles(record, &roles)
    }

    fn mute(
        &self,
        record: Version,
        own_role: Option<Role>,
        user: UserId,
        until: Timestamp,
    ) -> Result<Outcome, Refusal> {
        let Some(member) = self.members.get(user).filter(|it| it.role.is_some()) else {
            return refuse(Code::NotFound, "they are not in this group");
        };
        if member.role >= own_role {
            let text = "they have as high a role as you: only the owner may mute an administrator";
            return refuse(Code::Forbidden, text);
        }
        if member.restrictions.muted_until == until {
            return Ok(Outcome::default());
        }
        let restrictions = Restrictions {
            muted_until: until,
            ..member.restrictions
        };
        let member = Member {
            version: record,
            restrictions,
            ..*member
        };
        Ok(Outcome::of_members(BTreeMap::from([(user, member)])))
    }

    fn set_role(
        &self,
        record: Version,
        by: UserId,
        user: UserId,
        role: Role,
    ) -> Result<Outcome, Refusal> {
        match self.role(user) {
            _ if role == Role::Owner || user == by => refuse(
                Code::InvalidArgument,
                "a group is transferred by giving someone the owner role",
            ),
            None => refuse(Code::NotFound, "they are not in this group"),
            Some(current) if current == role => Ok(Outcome::default()),
            Some(_) => Ok(Outcome::of_members(
                self.with_roles(record, &[(user, Some(role))]),
            )),
        }
    }

    fn hand_over(&self, record: Version, by: UserId, user: UserId) -> Result<Outcome, Refusal> {
        match self.role(user) {
            _ if user == by => Ok(Outcome::default()),
            None => refuse(Code::NotFound, "they are not in this group"),
            Some(_) => {
                let roles = [(user, Some(Role::Owner)), (by, Some(Role::Admin))];
                Ok(Outcome::of_members(self.with_roles(record, &roles)))
            }
        }
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

fn check_user_count(users: &[UserId], limits: &GroupLimits) -> Result<(), Refusal> {
    let count = users.len();
    if count > limits.users_per_command {
        let text = format!("{count} at a time; {} at most", limits.users_per_command);
        return refuse(Code::InvalidArgument, &text);
    }
    Ok(())
}

/// Refusal for everybody who turns to a group that was dissolved.
pub fn dissolved() -> Refusal {
    Refusal::new(Code::NotFound, "this group was dissolved")
}

/// Last second that has four digits of a year.
const RFC3339_SECONDS_MAX: u64 = 253_402_300_799;

fn rfc3339(time: Timestamp) -> String {
    let seconds = u64::try_from(time.millis() / 1000).unwrap_or_default();
    let since_epoch = Duration::from_secs(seconds.min(RFC3339_SECONDS_MAX));
    humantime::format_rfc3339_seconds(UNIX_EPOCH + since_epoch).to_string()
}

fn administers(role: Option<Role>) -> bool {
    role.is_some_and(Role::administers)
}

fn refuse<T>(code: Code, text: &str) -> Result<T, Refusal> {
    Err(Refusal::new(code, text))
}

#[cfg(test)]
mod tests;
