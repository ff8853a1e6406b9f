//! Readers of a message in a large group, one after the other, without a copy of the members.

use std::fmt;
use std::sync::Arc;

use super::{Group, Member};
use crate::history::Version;
use crate::{Seq, UserId};

/// Readers of one message or change, in order of user. All messages of a batch share the group.
#[derive(Clone, PartialEq, Eq)]
pub struct Audience {
    group: Arc<Group>,
    seq: Seq,
    /// Record that placed the message; `None` for a change, which goes to the present members.
    placed_by: Option<Version>,
}

impl Audience {
    /// As [`Group::readers`].
    pub fn for_message(group: Arc<Group>, record: Version, seq: Seq) -> Audience {
        Audience {
            group,
            seq,
            placed_by: Some(record),
        }
    }

    /// As [`Group::readers_now`].
    pub fn for_change(group: Arc<Group>, seq: Seq) -> Audience {
        Audience {
            group,
            seq,
            placed_by: None,
        }
    }

    /// Readers behind `cursor`; all if it is `None`.
    pub fn behind(&self, cursor: Option<UserId>) -> impl Iterator<Item = UserId> {
        let members = self.group.members.behind(cursor, self.placed_by);
        let readers = members.filter(|(user, member)| self.reads(*user, member));
        readers.map(|(user, _)| user)
    }

    fn reads(&self, user: UserId, member: &Member) -> bool {
        match self.placed_by {
            Some(record) => Group::reads(member, record, self.seq),
            None => self.group.reads_now(user, self.seq),
        }
    }
}

impl fmt::Debug for Audience {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Audience")
            .field("members", &self.group.members.len())
            .field("seq", &self.seq)
            .finish_non_exhaustive()
    }
}
