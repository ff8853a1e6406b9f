//! How users stand in a group now, where they are told of a wish after its writer was done with it.

use api::task::DeliverTask;
use api::told::{Roles, is_wish};
use backend::groups::GroupStore;
use protocol::{ConversationId, GroupId, UserId};

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
    if !is_wish(&deliver.placed.message) {
        return Ok(Roles::new());
    }
    let owed = deliver.owed();
    let keys: Vec<(GroupId, UserId)> = owed.iter().map(|owed| (group, owed.user)).collect();
    let found = stores.within(groups.members_of(&keys)).await?;
    let roles = found.into_iter().map(|found| found?.1.role);
    Ok(keys.into_iter().map(|(_, user)| user).zip(roles).collect())
}
