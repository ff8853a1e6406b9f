//! Loading of a group page by page, each page a call of its own; a failed page keeps the pages
//! before it. A group of any size is thus read in the end, however short the deadline of one call.

use protocol::group::{Group, GroupSettings, Members};
use protocol::history::Version;
use protocol::{GroupId, UserId};

use super::GroupStore;
use crate::Result;

/// Members per page.
pub const PAGE: usize = 1_000;

/// Progress of a load.
pub struct LoadProgress {
    group: GroupId,
    settings: Option<(GroupSettings, Version)>,
    members: Members,
    cursor: Option<UserId>,
}

/// Result of a page.
#[derive(Debug, PartialEq, Eq)]
pub enum GroupLoad {
    /// More pages follow.
    Part,
    Whole(Group),
    /// The group has no settings (yet).
    Absent,
}

impl LoadProgress {
    pub fn new(group: GroupId) -> LoadProgress {
        LoadProgress {
            group,
            settings: None,
            members: Members::default(),
            cursor: None,
        }
    }

    /// Reads the next page, at most `limit` members. After an error or a cancelled call, the same
    /// page is read again.
    ///
    /// # Errors
    /// Those of the store.
    pub async fn next(&mut self, store: &dyn GroupStore, limit: usize) -> Result<GroupLoad> {
        let (settings, version) = match self.settings {
            Some(settings) => settings,
            None => match store.settings(self.group).await? {
                Some(settings) => *self.settings.insert(settings),
                None => return Ok(GroupLoad::Absent),
            },
        };
        let page = store.members(self.group, self.cursor, limit).await?;
        let is_last = page.len() < limit;
        self.cursor = page.last().map(|(user, _)| *user).or(self.cursor);
        self.members.extend(page);
        Ok(if is_last {
            GroupLoad::Whole(Group {
                settings,
                version,
                members: self.members.clone(),
            })
        } else {
            GroupLoad::Part
        })
    }
}
