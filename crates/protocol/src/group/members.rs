//! Present and former members of a group. States of a group share them, so that a join costs no
//! more in a large group.

use std::ops::Bound;

use imbl::OrdMap;

use super::Member;
use crate::UserId;
use crate::history::Version;

/// Members in order of user. A clone shares its structure with the original.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Members {
    map: OrdMap<UserId, Member>,
    /// Present members: a public group may have a thousand times as many former ones.
    present: OrdMap<UserId, Member>,
    /// Last record that changed a member.
    newest: Version,
}

impl Members {
    /// Number of present and former members.
    pub fn len(&self) -> usize {
        self.map.len()
    }

    pub fn is_empty(&self) -> bool {
        self.map.is_empty()
    }

    pub fn present(&self) -> usize {
        self.present.len()
    }

    pub const fn newest(&self) -> Version {
        self.newest
    }

    pub fn get(&self, user: UserId) -> Option<&Member> {
        self.map.get(&user)
    }

    pub fn contains(&self, user: UserId) -> bool {
        self.map.contains_key(&user)
    }

    /// Walks over all members; the handling of a single record does without it.
    pub fn iter(&self) -> impl Iterator<Item = (UserId, &Member)> {
        #[cfg(test)]
        walks::count();
        self.map.iter().map(|(user, member)| (*user, member))
    }

    /// Members behind `cursor` (all if it is `None`) who may have been in the group at a record.
    /// Former members are included only if a later record than that one changed a member.
    pub fn behind(
        &self,
        cursor: Option<UserId>,
        record: Option<Version>,
    ) -> impl Iterator<Item = (UserId, &Member)> {
        let begin = cursor.map_or(Bound::Unbounded, Bound::Excluded);
        let is_replayed = record.is_some_and(|record| self.newest > record);
        let members = if is_replayed {
            #[cfg(test)]
            walks::count();
            &self.map
        } else {
            &self.present
        };
        let members = members.range((begin, Bound::Unbounded));
        members.map(|(user, member)| (*user, member))
    }

    /// Sets a member. Records come in order, so only a later one replaces a member.
    pub fn insert(&mut self, user: UserId, member: Member) {
        self.newest = self.newest.max(member.version);
        if member.role.is_some() {
            self.present.insert(user, member);
        } else {
            self.present.remove(&user);
        }
        self.map.insert(user, member);
    }
}

impl Extend<(UserId, Member)> for Members {
    fn extend<I: IntoIterator<Item = (UserId, Member)>>(&mut self, members: I) {
        let members = members.into_iter();
        members.for_each(|(user, member)| self.insert(user, member));
    }
}

impl FromIterator<(UserId, Member)> for Members {
    fn from_iter<I: IntoIterator<Item = (UserId, Member)>>(members: I) -> Members {
        let mut all = Members::default();
        all.extend(members);
        all
    }
}

/// Walks over members, counted for tests.
#[cfg(test)]
pub(super) mod walks {
    use std::cell::Cell;

    thread_local! {
        static WALKS: Cell<usize> = const { Cell::new(0) };
    }

    pub(super) fn count() {
        WALKS.set(WALKS.get() + 1);
    }

    pub(in crate::group) fn count_during<T>(work: impl FnOnce() -> T) -> (T, usize) {
        let walks_before = WALKS.get();
        let output = work();
        (output, WALKS.get() - walks_before)
    }
}
