//! Access of a user to a conversation, and the end of it.

use super::{Fill, NeedResult, NoAnswer, Reading, may_read, readable_after};
use crate::cache::{self, GroupEntry};
use crate::conversation::Head;
use crate::group::{GroupInfo, Member, dissolved};
use crate::{Code, ConversationId, GroupId, Refusal, Seq};

/// Access of a user to a conversation.
#[derive(Clone, Copy, Debug)]
pub(super) struct ReadAccess {
    /// Messages behind this place may be read.
    pub(super) floor: Seq,
    pub(super) head: Head,
    /// Messages behind this place were never changed.
    pub(super) changed_to: Seq,
}

impl ReadAccess {
    fn new(floor: Seq, entry: &GroupEntry) -> ReadAccess {
        ReadAccess {
            floor,
            head: entry.head,
            changed_to: entry.changed_to,
        }
    }
}

impl Reading<'_> {
    /// `is_behind` is true for a head that the question shows to be old: a cache entry with such a
    /// head is not believed.
    pub(super) fn access(
        &self,
        conversation: ConversationId,
        is_behind: impl Fn(&Head) -> bool,
    ) -> NeedResult<ReadAccess> {
        let ConversationId::Group(group) = conversation else {
            may_read(self.user, conversation)?;
            let head = self.head(conversation)?;
            return Ok(ReadAccess {
                floor: Seq::ZERO,
                head,
                changed_to: cache::changed_to(head.rev, head.seq),
            });
        };
        // The group's entry before the user's: a member who was removed before the group's was
        // written must not look like a member by it.
        let entry = self.ask.group_entries(vec![group])?[0];
        if let Some(entry) = &entry
            && let Some(user_entry) = self.ask.user_entry(self.user)?
            && let Some(floor) = user_entry.readable_after(group, entry)
            && !is_behind(&entry.head)
        {
            return Ok(ReadAccess::new(floor, entry));
        }
        // The head before the member, who may know where the group ended at that time.
        let head = self.head(conversation)?;
        let (info, member) = self.membership(group)?;
        let floor = readable_after(info.settings, Some(&member))?;
        let new_entry = GroupEntry::read(self.started_at, head, Some(info.settings));
        let is_good = |entry: &GroupEntry| entry.settings.is_some() && !is_behind(&entry.head);
        if !entry.as_ref().is_some_and(is_good) {
            self.fill(Fill::Group(group, new_entry));
        }
        Ok(ReadAccess::new(floor, &new_entry))
    }

    pub(super) fn head(&self, conversation: ConversationId) -> NeedResult<Head> {
        Ok(self.ask.heads(vec![conversation])?[0])
    }

    /// Membership of the user as of now.
    ///
    /// # Errors
    /// `Forbidden` for a user who is no member, `NotFound` if there is no such group (any more).
    pub(super) fn membership(&self, group: GroupId) -> NeedResult<(GroupInfo, Member)> {
        let refusal = match present_member(self.ask.members(vec![group])?[0]) {
            Ok(Some(membership)) => return Ok(membership),
            Ok(None) => stranger(self.ask.populated(group)?.as_ref().ok().copied()),
            Err(refusal) => refusal,
        };
        Err(NoAnswer::Refused(refusal))
    }
}

/// The store's answer about a user, if they are a member now; `None` for a [`stranger`].
///
/// # Errors
/// `Forbidden` for a former member, `NotFound` in a dissolved group.
pub fn present_member(
    answer: Option<(GroupInfo, Member)>,
) -> Result<Option<(GroupInfo, Member)>, Refusal> {
    match answer {
        Some((info, _)) if info.is_dissolved => Err(dissolved()),
        Some((_, member)) if member.role.is_none() => Err(not_a_member()),
        Some(_) | None => Ok(answer),
    }
}

/// Refusal for a user who was a member, or of a group that others are in.
pub fn not_a_member() -> Refusal {
    Refusal::new(Code::Forbidden, "you are not in this group")
}

/// Refusal for a user who never was a member; `None`: nobody says whether the group has one.
pub fn stranger(is_populated: Option<bool>) -> Refusal {
    match is_populated {
        Some(false) => Refusal::new(Code::NotFound, "there is no such group"),
        Some(true) | None => not_a_member(),
    }
}
