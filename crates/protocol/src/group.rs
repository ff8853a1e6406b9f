//! Groups: who is in them, and who may do what.
//!
//! What is to become of a group is a record of its conversation's own log, so it has one place among the
//! messages: whoever writes after a removal in the log is refused there, and a message before it goes to those
//! who were members then. The single writer judges the wish against the group as it stands. A wish about a
//! group begins and ends a batch: what is before it in the log has taken effect whole when it is judged, and it has
//! when what follows is. So a record that comes again after a crash finds the group as it was the first time,
//! or made by itself, which members tell by the version that they bear.

mod audience;
mod members;
mod record;
mod row;

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

pub use self::audience::Audience;
pub use self::members::Members;
pub use self::record::{Presence, refusal, rule};
pub use self::row::GroupRow;
use crate::history::Version;
use crate::{Code, Refusal, Seq, UserId};

/// What a member is in a group.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub enum Role {
    Member,
    Admin,
    /// Exactly one, as long as anybody is in.
    Owner,
}

impl Role {
    /// May change what others wrote, and who is in.
    pub const fn administers(self) -> bool {
        matches!(self, Role::Admin | Role::Owner)
    }
}

/// Somebody who is or was in.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Member {
    /// `None`: not any more.
    pub role: Option<Role>,
    /// The end of the conversation when they came: what lies after it they may read in any case.
    pub since: Seq,
    /// The record that made it so.
    pub version: Version,
}

impl Member {
    /// From behind which place on they may read; `None` where they are not in.
    pub fn readable_after(&self, settings: Settings) -> Option<Seq> {
        self.role?;
        match settings.open_history {
            true => Some(Seq::ZERO),
            false => Some(self.since),
        }
    }
}

/// How a group is meant to be.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Settings {
    /// Who comes later may read what was before (S0-15).
    pub open_history: bool,
    /// Anybody may come; otherwise somebody who administers brings them.
    pub open_door: bool,
}

/// A group as its writer knows it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Group {
    pub settings: Settings,
    /// The record that made the settings so.
    pub version: Version,
    pub members: Members,
}

/// What is to become of a group.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Wish {
    /// A new group of the asker, with these in it. Its number was chosen at random: one that exists is refused.
    Create {
        settings: Settings,
        members: Vec<UserId>,
    },
    /// Oneself, through an open door.
    Join,
    Leave,
    Add(Vec<UserId>),
    Remove(UserId),
    /// Admin or member; the owner's is handed over.
    SetRole(UserId, Role),
    HandOver(UserId),
    Set(Settings),
}

/// Bounds of groups.
#[derive(Clone, Debug)]
pub struct Limits {
    pub members: usize,
    /// Of one wish.
    pub added: usize,
}

impl Default for Limits {
    fn default() -> Self {
        Limits {
            members: 100_000,
            added: 500,
        }
    }
}

/// What a wish makes of the group: members as they are then. Empty: it is so already.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Outcome {
    pub members: BTreeMap<UserId, Member>,
    /// And the record that makes them so.
    pub settings: Option<(Settings, Version)>,
}

impl Outcome {
    pub fn is_nothing(&self) -> bool {
        self.members.is_empty() && self.settings.is_none()
    }
}

impl Group {
    /// A new one of `owner`, before its first message.
    pub fn new(owner: UserId, settings: Settings, record: Version) -> Group {
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

    /// The one that a wish of `by` makes, where none is.
    ///
    /// # Errors
    /// `NotFound` for any other wish, `InvalidArgument` and `RateLimited` at the bounds.
    pub fn create(
        record: Version,
        by: UserId,
        wish: &Wish,
        limits: &Limits,
    ) -> Result<Group, Refusal> {
        let Wish::Create { settings, members } = wish else {
            return refuse(Code::NotFound, "there is no such group");
        };
        if members.len() > limits.added {
            let text = format!("{} at a time; {} at most", members.len(), limits.added);
            return refuse(Code::InvalidArgument, &text);
        }
        let mut group = Group::new(by, *settings, record);
        let brought = group.bring(record, members, Seq::ZERO, limits)?;
        group.apply(brought);
        Ok(group)
    }

    pub fn role(&self, user: UserId) -> Option<Role> {
        self.members.get(user)?.role
    }

    /// Those who are in.
    pub fn present(&self) -> impl Iterator<Item = (UserId, Role)> {
        let members = self.members.iter();
        members.filter_map(|(user, member)| Some((user, member.role?)))
    }

    /// From behind which place on somebody may read; `None` where they are not in.
    pub fn readable_after(&self, user: UserId) -> Option<Seq> {
        self.members.get(user)?.readable_after(self.settings)
    }

    /// Those who are in and may read what stands at `seq`.
    pub fn readers_now(&self, seq: Seq) -> impl Iterator<Item = UserId> {
        let present = self.present().map(|(user, _)| user);
        present.filter(move |user| self.reads_now(*user, seq))
    }

    /// Is somebody in who may read what stands at `seq`?
    pub(super) fn reads_now(&self, user: UserId, seq: Seq) -> bool {
        self.readable_after(user).is_some_and(|after| seq > after)
    }

    /// What a wish of `by` makes of the group; `end` is where the conversation ends.
    ///
    /// # Errors
    /// `Forbidden`, `NotFound` where somebody is not in, `InvalidArgument`, `RateLimited` where it is full.
    pub fn judge(
        &self,
        record: Version,
        by: UserId,
        wish: &Wish,
        end: Seq,
        limits: &Limits,
    ) -> Result<Outcome, Refusal> {
        let mine = self.role(by);
        match wish {
            Wish::Create { .. } => refuse(Code::InvalidArgument, "there is such a group already"),
            Wish::Join if mine.is_some() => Ok(Outcome::default()),
            _ if self.members.present() == 0 => {
                refuse(Code::NotFound, "everybody has left this group: it is over")
            }
            Wish::Join if self.settings.open_door => self.bring(record, &[by], end, limits),
            Wish::Join => refuse(
                Code::Forbidden,
                "somebody who administers it brings people in",
            ),
            Wish::Leave => self.leave(record, by),
            _ if mine.is_none() => refuse(Code::Forbidden, "you are not in this group"),
            Wish::Add(users) if users.len() > limits.added => {
                let text = format!("{} at a time; {} at most", users.len(), limits.added);
                refuse(Code::InvalidArgument, &text)
            }
            Wish::Add(users) if self.settings.open_door || administers(mine) => {
                self.bring(record, users, end, limits)
            }
            Wish::Remove(user) => self.remove(record, mine, *user),
            Wish::SetRole(user, role) if mine == Some(Role::Owner) => {
                self.set_role(record, by, *user, *role)
            }
            Wish::HandOver(user) if mine == Some(Role::Owner) => self.hand_over(record, by, *user),
            Wish::Set(settings) if administers(mine) => Ok(Outcome {
                settings: (self.settings != *settings).then_some((*settings, record)),
                ..Outcome::default()
            }),
            Wish::Add(_) | Wish::Set(_) => {
                refuse(Code::Forbidden, "its owner and its administrators do that")
            }
            Wish::SetRole(..) | Wish::HandOver(_) => refuse(Code::Forbidden, "its owner does that"),
        }
    }

    /// The group after it.
    pub fn apply(&mut self, outcome: Outcome) {
        self.members.extend(outcome.members);
        if let Some((settings, version)) = outcome.settings {
            self.settings = settings;
            self.version = version;
        }
    }

    fn bring(
        &self,
        record: Version,
        users: &[UserId],
        end: Seq,
        limits: &Limits,
    ) -> Result<Outcome, Refusal> {
        let newcomer = |user: &&UserId| self.role(**user).is_none();
        let member = Member {
            role: Some(Role::Member),
            since: end,
            version: record,
        };
        let members: BTreeMap<UserId, Member> = (users.iter().filter(newcomer))
            .map(|user| (*user, member))
            .collect();
        let present = self.members.present();
        if present + members.len() > limits.members {
            let text = format!("{present} are in; {} at most", limits.members);
            return refuse(Code::RateLimited, &text);
        }
        Ok(Outcome {
            members,
            settings: None,
        })
    }

    fn leave(&self, record: Version, by: UserId) -> Result<Outcome, Refusal> {
        let Some(role) = self.role(by) else {
            return Ok(Outcome::default());
        };
        if role == Role::Owner && self.members.present() > 1 {
            return refuse(
                Code::InvalidArgument,
                "hand the group over first: it is yours",
            );
        }
        self.with(record, &[(by, None)])
    }

    fn remove(
        &self,
        record: Version,
        mine: Option<Role>,
        user: UserId,
    ) -> Result<Outcome, Refusal> {
        match self.role(user) {
            // Administrators do not remove each other.
            _ if !administers(mine) => {
                refuse(Code::Forbidden, "its owner and its administrators do that")
            }
            None => Ok(Outcome::default()),
            theirs if theirs >= mine => refuse(
                Code::Forbidden,
                "only its owner may remove an administrator",
            ),
            Some(_) => self.with(record, &[(user, None)]),
        }
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
                "a group is handed over, with its owner's role",
            ),
            None => refuse(Code::NotFound, "they are not in this group"),
            Some(now) if now == role => Ok(Outcome::default()),
            Some(_) => self.with(record, &[(user, Some(role))]),
        }
    }

    fn hand_over(&self, record: Version, by: UserId, user: UserId) -> Result<Outcome, Refusal> {
        match self.role(user) {
            _ if user == by => Ok(Outcome::default()),
            None => refuse(Code::NotFound, "they are not in this group"),
            Some(_) => {
                let both = [(user, Some(Role::Owner)), (by, Some(Role::Admin))];
                self.with(record, &both)
            }
        }
    }

    fn with(&self, record: Version, roles: &[(UserId, Option<Role>)]) -> Result<Outcome, Refusal> {
        Ok(Outcome {
            members: self.changed(record, roles),
            settings: None,
        })
    }

    fn changed(
        &self,
        record: Version,
        roles: &[(UserId, Option<Role>)],
    ) -> BTreeMap<UserId, Member> {
        let changed = roles.iter().filter_map(|(user, role)| {
            let member = self.members.get(*user)?;
            let member = Member {
                role: *role,
                version: record,
                ..*member
            };
            Some((*user, member))
        });
        changed.collect()
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
