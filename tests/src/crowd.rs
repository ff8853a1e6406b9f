//! Members of a group, counted plainly, and the messages each of them heard or may read.

use std::collections::{BTreeMap, BTreeSet};

use protocol::group::{GroupCommand, GroupSettings, Role};
use protocol::{Seq, UserId};

#[derive(Debug)]
pub struct Crowd {
    settings: GroupSettings,
    /// True once history was opened or closed. Nobody is told that: rows stay as they were listed.
    has_turned: bool,
    people: BTreeMap<UserId, Person>,
}

#[derive(Debug, Default)]
struct Person {
    role: Option<Role>,
    since: Seq,
    /// Messages they could read at any time.
    heard: BTreeSet<Seq>,
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
                people: BTreeMap::new(),
            };
            members.iter().for_each(|user| crowd.come(*user, end));
            crowd.people.entry(by).or_default().role = Some(Role::Owner);
            *group = Some(crowd);
            return true;
        };
        let may = crowd.may(by, command);
        if may {
            crowd.make(by, command, end);
        }
        may
    }

    fn may(&self, by: UserId, command: &GroupCommand) -> bool {
        let is_over = self.people.values().all(|person| person.role.is_none());
        let mine = self.role(by);
        let (owns, rules) = (mine == Some(Role::Owner), self.administers(by));
        match command {
            GroupCommand::Create { .. } => false,
            GroupCommand::Join if mine.is_some() => true,
            _ if is_over => false,
            GroupCommand::Join => self.settings.open_door,
            GroupCommand::Leave => !owns || self.present().count() == 1,
            _ if mine.is_none() => false,
            GroupCommand::Add(_) => rules || self.settings.open_door,
            GroupCommand::Remove(user) => rules && self.role(*user) < mine,
            GroupCommand::SetRole(user, role) => {
                owns && *role != Role::Owner && *user != by && self.is_in(*user)
            }
            GroupCommand::HandOver(user) => owns && self.is_in(*user),
            GroupCommand::Set(_) => rules,
        }
    }

    fn make(&mut self, by: UserId, command: &GroupCommand, end: Seq) {
        match command {
            GroupCommand::Create { .. } => {}
            GroupCommand::Join => self.come(by, end),
            GroupCommand::Add(users) => users.iter().for_each(|user| self.come(*user, end)),
            GroupCommand::Leave => self.be(by, None),
            GroupCommand::Remove(user) => self.be(*user, None),
            GroupCommand::SetRole(user, role) => self.be(*user, Some(*role)),
            GroupCommand::HandOver(user) => {
                self.be(by, Some(Role::Admin));
                self.be(*user, Some(Role::Owner));
            }
            GroupCommand::Set(settings) => {
                self.has_turned |= settings.open_history != self.settings.open_history;
                self.settings = *settings;
            }
        }
        self.hears(end);
    }

    fn come(&mut self, user: UserId, end: Seq) {
        if !self.is_in(user) {
            let person = self.people.entry(user).or_default();
            person.role = Some(Role::Member);
            person.since = end;
        }
    }

    fn be(&mut self, user: UserId, role: Option<Role>) {
        if let Some(person) = self.people.get_mut(&user) {
            person.role = role;
        }
    }

    /// Extends the group to `end`, for its members to read.
    pub fn hears(&mut self, end: Seq) {
        let is_open = self.settings.open_history;
        for person in self
            .people
            .values_mut()
            .filter(|person| person.role.is_some())
        {
            let from = if is_open { Seq::ZERO } else { person.since };
            person.heard.extend((from.0 + 1..=end.0).map(Seq));
        }
    }

    pub fn role(&self, user: UserId) -> Option<Role> {
        self.people.get(&user)?.role
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
            .map_or(Seq::ZERO, |person| person.since)
    }

    /// Role and first message of members, past and present.
    pub fn members(&self) -> BTreeMap<UserId, (Option<Role>, Seq)> {
        let people = self.people.iter();
        let people = people.map(|(user, person)| (*user, (person.role, person.since)));
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
        let since = if is_open { Seq::ZERO } else { self.since(user) };
        self.is_in(user).then_some(since)
    }

    /// True if a row may show the message at `end`, or not, by the settings from when it was listed.
    pub fn may_be_stale(&self, user: UserId, end: Seq) -> bool {
        self.has_turned && end <= self.since(user)
    }

    pub fn may_have_heard(&self, user: UserId, seq: Seq) -> bool {
        let person = self.people.get(&user);
        person.is_some_and(|person| person.heard.contains(&seq))
    }
}
