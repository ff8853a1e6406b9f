//! How users stand in a group now, where they are told of a wish after its writer was done with it.

use api::task::DeliverTask;
use backend::groups::GroupStore;
use protocol::{ConversationId, GroupId, UserId};

use crate::records::{Roles, is_wish, owed_of};
use crate::stores::{Result, Timed};

/// Nothing where the delivery is not of a wish.
pub(crate) async fn standings(
    groups: &dyn GroupStore,
    stores: Timed,
    deliver: &DeliverTask,
) -> Result<Roles> {
    let ConversationId::Group(group) = deliver.placed.conversation else {
        return Ok(Roles::new());
    };
    if !is_wish(&deliver.placed) {
        return Ok(Roles::new());
    }
    let owed = owed_of(deliver);
    let keys: Vec<(GroupId, UserId)> = owed.iter().map(|owed| (group, owed.user)).collect();
    let found = stores.within(groups.members_of(&keys)).await?;
    let roles = found.into_iter().map(|found| found?.1.role);
    Ok(keys.into_iter().map(|(_, user)| user).zip(roles).collect())
}
