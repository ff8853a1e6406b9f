//! What becomes of a record at its place in a group's log, also when it comes again after a crash.
//!
//! Three things carry that. A wish takes effect whole before what follows it in the log is looked at, and what is before
//! it has taken effect whole when it is judged. Everything that it makes bears its version. And what bears a later
//! version stays as it is. So a group that shows
//!
//! - nothing of this record and nothing later is as it was the first time: judge it;
//! - something of this record, and nothing later, was perhaps not saved whole: make the rest, and it again;
//! - something later has this record behind it: nothing of it is left to be done.

use std::cmp::Ordering;
use std::collections::BTreeMap;

use super::{Group, Limits, Member, Members, Outcome, Role, Wish};
use crate::history::Version;
use crate::{Code, Refusal, Seq, UserId};

/// Was somebody in a group at the place of a record?
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Presence {
    In(Role),
    Out,
    /// What they are now, a later record made.
    Unknown,
}

/// What a wish makes of the group, at its place in the log: save all of it, however often it comes. `end` is where the
/// conversation ends.
///
/// # Errors
/// As [`Group::create`] and [`Group::judge`].
pub fn rule(
    group: Option<&Group>,
    record: Version,
    by: UserId,
    wish: &Wish,
    end: Seq,
    limits: &Limits,
) -> Result<Outcome, Refusal> {
    let Some(group) = group else {
        let group = Group::create(record, by, wish, limits)?;
        return Ok(Outcome {
            settings: Some((group.settings, group.version)),
            members: all(&group.members),
        });
    };
    match group.newest().cmp(&record) {
        Ordering::Less => group.judge(record, by, wish, end, limits),
        Ordering::Equal => Ok(group.completed(record, by, wish)),
        Ordering::Greater => Ok(group.made_by(record)),
    }
}

/// Why a message that stands nowhere has no place in a group; `None` where its sender is in.
pub fn refusal(group: Option<&Group>, record: Version, from: UserId) -> Option<Refusal> {
    let Some(group) = group else {
        return Some(Refusal::new(Code::NotFound, "there is no such group"));
    };
    match group.at(record, from) {
        Presence::In(_) => None,
        Presence::Out => Some(Refusal::new(Code::Forbidden, "you are not in this group")),
        Presence::Unknown => {
            let text = "you were not in this group when it was sent";
            Some(Refusal::new(Code::Forbidden, text))
        }
    }
}

impl Group {
    /// The last record that made anything of it. A record before it was handled, whole.
    pub fn newest(&self) -> Version {
        self.version.max(self.members.newest())
    }

    /// Was the user in when `record` had its turn?
    pub fn at(&self, record: Version, user: UserId) -> Presence {
        match self.members.get(user) {
            Some(member) if member.version >= record => Presence::Unknown,
            Some(Member {
                role: Some(role), ..
            }) => Presence::In(*role),
            Some(_) | None => Presence::Out,
        }
    }

    /// Those who were in when `record` placed a message at `seq`, in order: also who left since, and not who came
    /// since. Who did both begins behind the message.
    pub fn readers(&self, record: Version, seq: Seq) -> impl Iterator<Item = UserId> {
        let members = self.members.iter();
        members
            .filter(move |(_, member)| Group::reads(member, record, seq))
            .map(|(user, _)| user)
    }

    /// Was this member in when `record` placed a message at `seq`?
    pub(super) fn reads(member: &Member, record: Version, seq: Seq) -> bool {
        member.since < seq && (member.role.is_some() || member.version > record)
    }

    /// What bears the version of this record.
    fn made_by(&self, record: Version) -> Outcome {
        let members = self.members.iter();
        let own = members.filter(|(_, member)| member.version == record);
        Outcome {
            members: own.map(|(user, member)| (user, *member)).collect(),
            settings: (self.version == record).then_some((self.settings, record)),
        }
    }

    /// The same with what was broken off: the wish was granted, or nothing would bear its version.
    fn completed(&self, record: Version, by: UserId, wish: &Wish) -> Outcome {
        let mut own = self.made_by(record);
        let since = own.members.values().map(|member| member.since).next();
        let rest: BTreeMap<UserId, Member> = match wish {
            Wish::Add(users) => {
                let left = users.iter().filter(|user| self.role(**user).is_none());
                let member = since.map(|since| Member {
                    role: Some(Role::Member),
                    since,
                    version: record,
                });
                left.filter_map(|user| Some((*user, member?))).collect()
            }
            Wish::HandOver(user) => {
                let both = [(*user, Some(Role::Owner)), (by, Some(Role::Admin))];
                self.changed(record, &both)
            }
            // One member, or the settings, which stand last.
            Wish::Create { .. }
            | Wish::Join
            | Wish::Leave
            | Wish::Remove(_)
            | Wish::SetRole(..)
            | Wish::Set(_) => BTreeMap::new(),
        };
        own.members.extend(rest);
        own
    }
}

fn all(members: &Members) -> BTreeMap<UserId, Member> {
    let members = members.iter();
    members.map(|(user, member)| (user, *member)).collect()
}

#[cfg(test)]
mod tests;
