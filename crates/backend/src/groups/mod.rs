//! Who is and was in which group, and how each group is meant to be.
//!
//! The single writer of a group's conversation judges wishes against the group (`protocol::group`) and saves what
//! they make of it; who opens doors asks whether somebody is in.

#[cfg(test)]
mod contract;
mod embedded;
mod loading;
#[cfg(feature = "scylla")]
mod scylla;

use async_trait::async_trait;
use protocol::group::{Member, Settings};
use protocol::history::Version;
use protocol::{GroupId, UserId};

pub use self::embedded::EmbeddedGroups;
pub use self::loading::{Loading, PAGE, Page};
#[cfg(feature = "scylla")]
pub use self::scylla::ScyllaGroups;
use crate::Result;
use crate::hook::hooked;

#[async_trait]
pub trait GroupStore: Send + Sync {
    /// Puts what a record made of a group: its settings and each member, where the version is not earlier than
    /// that of what stands. One version says one thing. Each member is put into the user's own list first, then
    /// into the group, and the settings come last: nobody is in a group that they do not find, and a new group is
    /// there when it is whole. What was broken off is repeated whole.
    async fn save(
        &self,
        group: GroupId,
        settings: Option<(Settings, Version)>,
        members: Vec<(UserId, Member)>,
    ) -> Result<()>;

    /// How it is meant to be, and the record that made it so; `None`: there is no such group (yet).
    async fn settings(&self, group: GroupId) -> Result<Option<(Settings, Version)>>;

    /// Those who are or were in, in order of user, from behind `after` on, at most `limit`: a shorter page is the
    /// last. One small read, however many there are. [`Loading`] puts the pages together.
    async fn members(
        &self,
        group: GroupId,
        after: Option<UserId>,
        limit: usize,
    ) -> Result<Vec<(UserId, Member)>>;

    /// What each of these users is or was in the group, and how it is meant to be; `None` for who never was in,
    /// and where there is no such group. A few small reads, whatever the size of the group; in order of the
    /// question.
    async fn members_of(
        &self,
        keys: &[(GroupId, UserId)],
    ) -> Result<Vec<Option<(Settings, Member)>>>;

    /// Those who are in, in order of user, from behind `after` on, at most `limit`: a shorter page is the last.
    async fn present(
        &self,
        group: GroupId,
        after: Option<UserId>,
        limit: usize,
    ) -> Result<Vec<(UserId, Member)>>;

    /// The groups that a user is or was in, in order of group, from behind `after` on, at most `limit`: a shorter
    /// page is the last. Who left finds it with no role.
    async fn groups_of(
        &self,
        user: UserId,
        after: Option<GroupId>,
        limit: usize,
    ) -> Result<Vec<(GroupId, Member)>>;
}

hooked! { GroupStore as "groups":
    write save(group: GroupId, settings: Option<(Settings, Version)>, members: Vec<(UserId, Member)>)
        of [group.get()] => ();
    read settings(group: GroupId) of [group.get()] => Option<(Settings, Version)>;
    read members(group: GroupId, after: Option<UserId>, limit: usize) of [group.get()] => Vec<(UserId, Member)>;
    read members_of(keys: &[(GroupId, UserId)]) of keys.iter().map(|(group, _)| group.get())
        => Vec<Option<(Settings, Member)>>;
    read present(group: GroupId, after: Option<UserId>, limit: usize) of [group.get()] => Vec<(UserId, Member)>;
    read groups_of(user: UserId, after: Option<GroupId>, limit: usize) of [user.get()] => Vec<(GroupId, Member)>;
}
