//! Loading of a group page by page, each page a call of its own; a failed page keeps the pages
//! before it. A group of any size is thus read in the end, however short the deadline of one call.

use protocol::group::{Group, GroupInfo, Members};
use protocol::{GroupId, UserId};

use super::GroupStore;
use crate::Result;

/// Members per page.
pub const PAGE: usize = 1_000;

/// Progress of a load.
pub struct LoadProgress {
    group: GroupId,
    info: Option<GroupInfo>,
    members: Members,
    cursor: Option<UserId>,
}

/// Result of a page.
#[derive(Debug, PartialEq, Eq)]
pub enum GroupLoad {
    /// More pages follow.
    Part,
    Whole(Group),
    /// There is no such group (yet).
    Absent,
}

impl LoadProgress {
    pub fn new(group: GroupId) -> LoadProgress {
        LoadProgress {
            group,
            info: None,
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
        let info = match self.info {
            Some(info) => info,
            None => match store.infos(&[self.group]).await?.pop().flatten() {
                Some(info) => *self.info.insert(info),
                None => return Ok(GroupLoad::Absent),
            },
        };
        let page = store.members(self.group, self.cursor, limit).await?;
        let is_last = page.len() < limit;
        if is_last {
            // Another writer may have gone on between the pages.
            let info_now = store.infos(&[self.group]).await?.pop().flatten();
            if info_now.is_none_or(|now| now.version != info.version) {
                *self = LoadProgress::new(self.group);
                return Ok(GroupLoad::Part);
            }
        }
        self.cursor = page.last().map(|(user, _)| *user).or(self.cursor);
        self.members.extend(page);
        Ok(if is_last {
            GroupLoad::Whole(Group {
                info,
                members: self.members.clone(),
            })
        } else {
            GroupLoad::Part
        })
    }
}
