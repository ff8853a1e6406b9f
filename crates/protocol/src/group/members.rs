//! Who is and was in a group: shared between its states, so that a join costs no more in a large one.

use std::ops::Bound;

use imbl::OrdMap;

use super::Member;
use crate::UserId;
use crate::history::Version;

/// In order of user. A clone shares what both have in common.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Members {
    map: OrdMap<UserId, Member>,
    /// Those who are in: a public group may have a thousand times as many who left.
    present: OrdMap<UserId, Member>,
    /// The last record that made anything of a member.
    newest: Version,
}

impl Members {
    /// Those who are and were in.
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

    /// A walk over all of them: what is done for each record does without it.
    pub fn iter(&self) -> impl Iterator<Item = (UserId, &Member)> {
        #[cfg(test)]
        walks::count();
        self.map.iter().map(|(user, member)| (*user, member))
    }

    /// Those behind `after`, from the first one on where it is `None`, who may have been in at a record: who left
    /// is among them only where a later record than that one made anything of a member.
    pub fn behind(
        &self,
        after: Option<UserId>,
        record: Option<Version>,
    ) -> impl Iterator<Item = (UserId, &Member)> {
        let begin = after.map_or(Bound::Unbounded, Bound::Excluded);
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

    /// Records come in order: a member is replaced by a later one only.
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

    pub(in crate::group) fn during<T>(work: impl FnOnce() -> T) -> (T, usize) {
        let before = WALKS.get();
        let done = work();
        (done, WALKS.get() - before)
    }
}
