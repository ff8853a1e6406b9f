//! A group as it is read: by pages, each a call of its own, and what was read stays where a later page fails. So a
//! group of any size is read in the end, however short the time for one call.

use protocol::group::{Group, Members, Settings};
use protocol::history::Version;
use protocol::{GroupId, UserId};

use super::GroupStore;
use crate::Result;

/// Members of one page.
pub const PAGE: usize = 1_000;

/// How far a group was read.
pub struct Loading {
    group: GroupId,
    settings: Option<(Settings, Version)>,
    members: Members,
    after: Option<UserId>,
}

/// What is known of a group after a page.
#[derive(Debug, PartialEq, Eq)]
pub enum Page {
    /// There are more.
    Part,
    Whole(Group),
    /// It has no settings (yet).
    Absent,
}

impl Loading {
    pub fn new(group: GroupId) -> Loading {
        Loading {
            group,
            settings: None,
            members: Members::default(),
            after: None,
        }
    }

    /// Reads the next page, at most `limit` members. After an error, or where it was given up, it is read again.
    ///
    /// # Errors
    /// Those of the store.
    pub async fn next(&mut self, store: &dyn GroupStore, limit: usize) -> Result<Page> {
        let (settings, version) = match self.settings {
            Some(settings) => settings,
            None => match store.settings(self.group).await? {
                Some(settings) => *self.settings.insert(settings),
                None => return Ok(Page::Absent),
            },
        };
        let page = store.members(self.group, self.after, limit).await?;
        let is_last = page.len() < limit;
        self.after = page.last().map(|(user, _)| *user).or(self.after);
        self.members.extend(page);
        Ok(match is_last {
            true => Page::Whole(Group {
                settings,
                version,
                members: self.members.clone(),
            }),
            false => Page::Part,
        })
    }
}
