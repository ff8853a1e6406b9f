//! Groups and their members as stored.

use std::collections::BTreeMap;

use protocol::group::{Group, GroupInfo, Member};
use protocol::{ConversationId, GroupId, UserId};

use crate::world::World;

/// Stored state of a group. A new group exists once its own row does, which is written last.
#[derive(Clone, Debug, Default)]
pub(crate) struct StoredGroup {
    pub(crate) info: Option<GroupInfo>,
    pub(crate) members: BTreeMap<UserId, Member>,
}

impl StoredGroup {
    pub(crate) fn save_member(&mut self, user: UserId, member: Member) {
        let is_newer = |old: &Member| old.version <= member.version;
        if self.members.get(&user).is_none_or(is_newer) {
            self.members.insert(user, member);
        }
    }

    pub(crate) fn save_info(&mut self, info: GroupInfo) {
        if self.info.is_none_or(|old| old.version <= info.version) {
            self.info = Some(info);
        }
    }
}

impl World {
    pub(crate) fn group(&self, group: GroupId) -> Option<Group> {
        let stored_group = self.disk.groups.get(&group)?;
        Some(Group {
            info: stored_group.info?,
            members: stored_group.members.clone().into_iter().collect(),
        })
    }

    pub(crate) fn conversation_group(&self, conversation: ConversationId) -> Option<Group> {
        match conversation {
            ConversationId::Group(group) => self.group(group),
            ConversationId::Private { .. } | ConversationId::System(_) => None,
        }
    }
}
