//! Groups: settings and members as stored.

use std::collections::BTreeMap;

use protocol::group::{Group, GroupSettings, Member};
use protocol::history::Version;
use protocol::{ConversationId, GroupId, UserId};

use crate::world::World;

/// Stored state of a group. A new group exists once its settings do, which are written last.
#[derive(Clone, Debug, Default)]
pub(crate) struct StoredGroup {
    pub(crate) settings: Option<(GroupSettings, Version)>,
    pub(crate) members: BTreeMap<UserId, Member>,
}

impl StoredGroup {
    pub(crate) fn save_member(&mut self, user: UserId, member: Member) {
        let is_newer = |old: &Member| old.version <= member.version;
        if self.members.get(&user).is_none_or(is_newer) {
            self.members.insert(user, member);
        }
    }

    pub(crate) fn save_settings(&mut self, settings: (GroupSettings, Version)) {
        if self
            .settings
            .is_none_or(|(_, version)| version <= settings.1)
        {
            self.settings = Some(settings);
        }
    }
}

impl World {
    pub(crate) fn group(&self, group: GroupId) -> Option<Group> {
        let stored_group = self.disk.groups.get(&group)?;
        let (settings, version) = stored_group.settings?;
        Some(Group {
            settings,
            version,
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
