//! Members of a group, counted plainly, and the messages each of them heard or may read.

use std::collections::{BTreeMap, BTreeSet};

use protocol::group::{GroupCommand, GroupSettings, Role};
use protocol::{Seq, Timestamp, UserId};

#[derive(Debug)]
pub struct Crowd {
    settings: GroupSettings,
    /// True once history was opened or closed. Nobody is told that: rows stay as they were listed.
    has_turned: bool,
    is_dissolved: bool,
    people: BTreeMap<UserId, Person>,
}

#[derive(Debug, Default)]
struct Person {
    role: Option<Role>,
    joined_seq: Seq,
    is_banned: bool,
    muted_until: Timestamp,
    /// Messages they could read at any time.
    readable_seqs: BTreeSet<Seq>,
}

impl Crowd {
    /// Applies a group command; `false` if it is refused.
    pub fn command(
        group: &mut Option<Crowd>,
        by: UserId,
        command: &GroupCommand,
        end: Seq,
    ) -> bool {
        let Some(crowd) = group else {
            let GroupCommand::Create { settings, members } = command else {
                return false;
            };
            let mut crowd = Crowd {
                settings: *settings,
                has_turned: false,
                is_dissolved: false,
                people: BTreeMap::new(),
            };
            members.iter().for_each(|user| crowd.add_member(*user, end));
            crowd.people.entry(by).or_default().role = Some(Role::Owner);
            *group = Some(crowd);
            return true;
        };
        let is_allowed = crowd.may(by, command);
        if is_allowed {
            crowd.apply(by, command, end);
        }
        is_allowed
    }

    fn may(&self, by: UserId, command: &GroupCommand) -> bool {
        let is_over = self.people.values().all(|person| person.role.is_none());
        let own_role = self.role(by);
        let (is_owner, is_admin) = (own_role == Some(Role::Owner), self.administers(by));
        let is_below = |user: &UserId| self.role(*user) < own_role;
        match command {
            GroupCommand::Create { .. } => false,
            _ if is_over || self.is_dissolved => false,
            GroupCommand::Join if own_role.is_some() => true,
            GroupCommand::Join => self.settings.open_door && !self.is_banned(by),
            GroupCommand::Leave => !is_owner || self.present().count() == 1,
            _ if own_role.is_none() => false,
            GroupCommand::Add(users) => {
                is_admin
                    || self.settings.open_door && !users.iter().any(|user| self.is_banned(*user))
            }
            GroupCommand::Remove(users) | GroupCommand::Ban(users) => {
                is_admin && users.iter().all(is_below)
            }
            GroupCommand::Mute(user, _) => is_admin && self.is_in(*user) && is_below(user),
            GroupCommand::Dissolve => is_owner,
            GroupCommand::SetRole(user, role) => {
                is_owner && *role != Role::Owner && *user != by && self.is_in(*user)
            }
            GroupCommand::HandOver(user) => is_owner && self.is_in(*user),
            GroupCommand::Set(_) => is_admin,
        }
    }

    fn apply(&mut self, by: UserId, command: &GroupCommand, end: Seq) {
        match command {
            GroupCommand::Create { .. } => {}
            GroupCommand::Join => self.add_member(by, end),
            GroupCommand::Add(users) => users.iter().for_each(|user| self.add_member(*user, end)),
            GroupCommand::Leave => self.set_role(by, None),
            GroupCommand::Remove(users) => users.iter().for_each(|user| self.set_role(*user, None)),
            GroupCommand::Ban(users) => users.iter().for_each(|user| self.ban(*user, end)),
            GroupCommand::Mute(user, until) => {
                if let Some(person) = self.people.get_mut(user) {
                    person.muted_until = *until;
                }
            }
            GroupCommand::Dissolve => {
                // A quiet group is large: its members stay, and may do nothing.
                if !self.settings.quiet {
                    let people = self.people.values_mut();
                    people.for_each(|person| person.role = None);
                }
                self.is_dissolved = true;
            }
            GroupCommand::SetRole(user, role) => self.set_role(*user, Some(*role)),
            GroupCommand::HandOver(user) => {
                self.set_role(by, Some(Role::Admin));
                self.set_role(*user, Some(Role::Owner));
            }
            GroupCommand::Set(settings) => {
                self.has_turned |= settings.open_history != self.settings.open_history;
                self.settings = *settings;
            }
        }
        self.extend_to(end);
    }

    fn add_member(&mut self, user: UserId, end: Seq) {
        if !self.is_in(user) {
            let person = self.people.entry(user).or_default();
            person.role = Some(Role::Member);
            person.joined_seq = end;
            person.is_banned = false;
        }
    }

    fn ban(&mut self, user: UserId, end: Seq) {
        let (is_in, is_banned) = (self.is_in(user), self.is_banned(user));
        let person = self.people.entry(user).or_default();
        if !is_in && !is_banned {
            person.joined_seq = end;
        }
        person.role = None;
        person.is_banned = true;
    }

    fn set_role(&mut self, user: UserId, role: Option<Role>) {
        if let Some(person) = self.people.get_mut(&user) {
            person.role = role;
        }
    }

    /// Extends the group to `end`, for its members to read.
    pub fn extend_to(&mut self, end: Seq) {
        let is_open = self.settings.open_history;
        for person in self
            .people
            .values_mut()
            .filter(|person| person.role.is_some())
        {
            let from = if is_open {
                Seq::ZERO
            } else {
                person.joined_seq
            };
            person.readable_seqs.extend((from.0 + 1..=end.0).map(Seq));
        }
    }

    /// Role of a present member; nobody has one in a dissolved group.
    pub fn role(&self, user: UserId) -> Option<Role> {
        self.people.get(&user)?.role.filter(|_| !self.is_dissolved)
    }

    /// Whether the user may write something that is accepted at this time.
    pub fn may_write(&self, user: UserId, at: Timestamp) -> bool {
        self.people.get(&user).is_some_and(|person| {
            let is_free = person.muted_until <= at && !self.settings.muted;
            self.is_in(user) && (is_free || self.administers(user))
        })
    }

    fn is_banned(&self, user: UserId) -> bool {
        (self.people.get(&user)).is_some_and(|person| person.is_banned)
    }

    pub fn administers(&self, user: UserId) -> bool {
        matches!(self.role(user), Some(Role::Admin | Role::Owner))
    }

    pub fn is_in(&self, user: UserId) -> bool {
        self.role(user).is_some()
    }

    pub fn ever_had(&self, user: UserId) -> bool {
        self.people.contains_key(&user)
    }

    pub fn since(&self, user: UserId) -> Seq {
        self.people
            .get(&user)
            .map_or(Seq::ZERO, |person| person.joined_seq)
    }

    /// Role and first message of members, past and present.
    pub fn members(&self) -> BTreeMap<UserId, (Option<Role>, Seq)> {
        let people = self.people.iter();
        let people = people.map(|(user, person)| (*user, (person.role, person.joined_seq)));
        people.collect()
    }

    pub fn present(&self) -> impl Iterator<Item = UserId> {
        let present = self
            .people
            .iter()
            .filter(|(_, person)| person.role.is_some());
        present.map(|(user, _)| *user)
    }

    pub fn readable_after(&self, user: UserId) -> Option<Seq> {
        let is_open = self.settings.open_history;
        let floor = if is_open { Seq::ZERO } else { self.since(user) };
        self.is_in(user).then_some(floor)
    }

    /// Whether a row may show the message at `end`, or not, by the settings from when it was listed.
    pub fn may_be_stale(&self, user: UserId, end: Seq) -> bool {
        self.has_turned && end <= self.since(user)
    }

    pub fn may_have_heard(&self, user: UserId, seq: Seq) -> bool {
        let person = self.people.get(&user);
        person.is_some_and(|person| person.readable_seqs.contains(&seq))
    }
}
