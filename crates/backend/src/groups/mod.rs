//! Groups and their members, past and present.
//!
//! The single writer of a group's conversation judges commands against the group
//! (`protocol::group`) and saves their result; readers that guard access ask whether a user is a
//! member.

#[cfg(test)]
mod contract;
mod embedded;
mod loading;
#[cfg(feature = "scylla")]
mod scylla;

use async_trait::async_trait;
use protocol::group::{GroupInfo, Member};
use protocol::{GroupId, UserId};

pub use self::embedded::EmbeddedGroups;
pub use self::loading::{GroupLoad, LoadProgress, PAGE};
#[cfg(feature = "scylla")]
pub use self::scylla::ScyllaGroups;
use crate::Result;
use crate::hook::hooked;

#[async_trait]
pub trait GroupStore: Send + Sync {
    /// Saves a record's changes of a group: the group itself and each member, unless a later version
    /// is stored. One version has one content. Each member is written to the user's own list first,
    /// then to the group, and the group itself comes last: no member is in a group absent from their
    /// own list, a new group appears once it is whole, and a group bears a record's version once
    /// everything of the record is saved. An interrupted call is repeated whole.
    async fn save(
        &self,
        group: GroupId,
        info: Option<GroupInfo>,
        members: Vec<(UserId, Member)>,
    ) -> Result<()>;

    /// Groups without their members, in request order; `None` where there is no such group (yet).
    async fn infos(&self, groups: &[GroupId]) -> Result<Vec<Option<GroupInfo>>>;

    /// Members past and present, in order of user, after `cursor`, at most `limit`: a shorter
    /// page is the last. One small read, however many there are. [`LoadProgress`] puts the pages
    /// together.
    async fn members(
        &self,
        group: GroupId,
        cursor: Option<UserId>,
        limit: usize,
    ) -> Result<Vec<(UserId, Member)>>;

    /// Membership of each user, past or present, with the group; `None` for a user of whom it knows
    /// nothing, and if there is no such group. A few small reads, whatever the size of the group; in
    /// request order.
    async fn members_of(
        &self,
        keys: &[(GroupId, UserId)],
    ) -> Result<Vec<Option<(GroupInfo, Member)>>>;

    /// Present members, in order of user, after `cursor`, at most `limit`: a shorter page is the
    /// last.
    async fn present(
        &self,
        group: GroupId,
        cursor: Option<UserId>,
        limit: usize,
    ) -> Result<Vec<(UserId, Member)>>;

    /// Groups of a user, past and present, in order of group, after `cursor`, at most `limit`: a
    /// shorter page is the last. Groups that the user left have no role.
    async fn groups_of(
        &self,
        user: UserId,
        cursor: Option<GroupId>,
        limit: usize,
    ) -> Result<Vec<(GroupId, Member)>>;
}

hooked! { GroupStore as "groups":
    write save(group: GroupId, info: Option<GroupInfo>, members: Vec<(UserId, Member)>)
        of [group.get()] => ();
    read infos(groups: &[GroupId]) of groups.iter().map(|group| group.get()) => Vec<Option<GroupInfo>>;
    read members(group: GroupId, after: Option<UserId>, limit: usize) of [group.get()] => Vec<(UserId, Member)>;
    read members_of(keys: &[(GroupId, UserId)]) of keys.iter().flat_map(|(group, user)| [group.get(), user.get()])
        => Vec<Option<(GroupInfo, Member)>>;
    read present(group: GroupId, after: Option<UserId>, limit: usize) of [group.get()] => Vec<(UserId, Member)>;
    read groups_of(user: UserId, after: Option<GroupId>, limit: usize) of [user.get()] => Vec<(GroupId, Member)>;
}
