//! A member's view of a group.

use crate::change::{ListArrangement, OrderedChange};
use crate::conversation::{Head, is_listed};
use crate::frame::{HistoryRange, Summary};
use crate::group::{GroupSettings, Member, Role};
use crate::unread::{Tally, base_in_group};
use crate::{Code, ConversationId, GroupId, MessageId, Placed, Refusal, Seq, Timestamp};

use super::DensePage;

/// Position behind which a user may read a group.
///
/// # Errors
/// `Forbidden` for a user who is not a member.
pub fn readable_after(settings: GroupSettings, member: Option<&Member>) -> Result<Seq, Refusal> {
    let readable_seq = member.and_then(|member| member.readable_after(settings));
    readable_seq.ok_or_else(|| Refusal::new(Code::Forbidden, "you are not in this group"))
}

/// Part of a range behind `floor`.
pub fn range_behind(range: HistoryRange, floor: Seq) -> HistoryRange {
    match range {
        HistoryRange::Forward { after } => HistoryRange::Forward {
            after: after.max(floor),
        },
        HistoryRange::Backward { .. } => range,
    }
}

/// Part of a page behind `floor`. Earlier messages are not *more*: none are for this reader.
pub fn page_behind(mut page: DensePage<'_>, range: HistoryRange, floor: Seq) -> DensePage<'_> {
    if let HistoryRange::Backward { before: cursor } = range {
        let readable_messages = page.messages.iter();
        let readable_messages =
            readable_messages.take_while(|message| message.position.seq > floor);
        page.messages = &page.messages[..readable_messages.count()];
        let last = page.messages.last().map(|message| message.position.seq);
        let end = last.or(cursor).unwrap_or_else(|| page.last_seq.next());
        page.more = page.more && end > floor.next();
    }
    page
}

/// Blanks edits of messages that the reader may not read. Changes are dense, so none can be left
/// out.
pub fn changes_behind(changes: &mut [OrderedChange], floor: Seq) {
    let hidden_edits = changes.iter_mut().filter(|change| change.seq <= floor);
    hidden_edits.for_each(OrderedChange::blank);
}

/// Page from the newest messages of a group, if they are enough; `None`: ask history. `messages`
/// come from the cache, newest first, from any writer: those that do not link up by position
/// and by `prev`, up to the head's message, are not trusted. The page has `limit` messages, or the
/// last of its direction, or `bytes_max` of content: a request for the newest few must not get
/// fewer because no more were kept.
pub fn from_timeline(
    mut messages: Vec<Placed>,
    range: HistoryRange,
    head: &Head,
    limit: usize,
    bytes_max: usize,
) -> Option<Vec<Placed>> {
    let last = head.seq;
    // Messages since the read of the head get pushed, or are in the next page.
    messages.retain(|message| message.position.seq <= last);
    let first = match range {
        HistoryRange::Forward { after } => {
            messages.reverse();
            after.next()
        }
        HistoryRange::Backward { before: cursor } => {
            let end = cursor.map_or_else(|| last.next(), |cursor| cursor.min(last.next()));
            Seq(end.0.checked_sub(1)?)
        }
    };
    if first == Seq::ZERO || first > last {
        return Some(Vec::new());
    }
    let mut page: Vec<Placed> = Vec::new();
    for message in messages.into_iter().skip_while(|p| p.position.seq != first) {
        let is_other_end = message.position.seq == last && head.last_id != Some(message.message.id);
        if is_other_end {
            return None;
        }
        if page.len() == limit
            || page
                .last()
                .is_some_and(|end| !are_neighbours(end, &message))
        {
            break;
        }
        page.push(message);
    }
    let end = page.last()?.position.seq;
    let is_end = match range {
        HistoryRange::Forward { .. } => end == last,
        HistoryRange::Backward { .. } => end == Seq::ZERO.next(),
    };
    let size = |message: &Placed| message.message.content.data.len();
    let is_whole =
        is_end || page.len() >= limit || page.iter().map(size).sum::<usize>() >= bytes_max;
    is_whole.then_some(page)
}

fn are_neighbours(one: &Placed, other: &Placed) -> bool {
    let (first, second) = if one.position.seq < other.position.seq {
        (one, other)
    } else {
        (other, one)
    };
    let prev: Option<MessageId> = second.position.prev;
    second.position.seq == first.position.seq.next() && prev == Some(first.message.id)
}

/// Inputs of the list difference for a user's group. No message writes a row of the user (S4-33):
/// the difference compares the group's head and the user's own registers.
#[derive(Clone, Copy, Debug)]
pub struct GroupListKey {
    pub role: Option<Role>,
    pub end: Seq,
    /// Time of the head's last write.
    pub stamp: Timestamp,
    pub touched_at: Timestamp,
    pub cleared_tally: Tally,
}

impl GroupListKey {
    /// Whether it is in the answer to a device with a list of `list_version`; `from` comes from
    /// [`list_from`](super::list_from).
    ///
    /// A message moves the stamp of the head; joins, leaves and the user's own operations move
    /// `touched_at`. A device without a list hears nothing of groups that the user left.
    pub fn is_told(&self, list_version: Timestamp, from: Timestamp) -> bool {
        let is_in = self.role.is_some();
        if list_version == Timestamp::ZERO {
            return is_in && (self.end == Seq::ZERO || is_listed(self.end, self.cleared_tally));
        }
        self.touched_at >= from || (is_in && self.stamp >= from)
    }
}

/// A group in the list of one of its members.
#[derive(Clone, Copy, Debug)]
pub struct GroupListEntry {
    pub group: GroupId,
    pub member: Member,
    pub head: Head,
    /// No message behind this position was ever changed.
    pub changed_to: Seq,
    /// The user's registers, as in a private conversation.
    pub read_seq: Seq,
    pub cleared_tally: Tally,
    pub touched_at: Timestamp,
    pub arrangement: ListArrangement,
    pub hide_mark: u64,
}

impl GroupListEntry {
    pub fn key(&self) -> GroupListKey {
        GroupListKey {
            role: self.member.role,
            end: self.head.seq,
            stamp: self.head.stamp,
            touched_at: self.touched_at,
            cleared_tally: self.cleared_tally,
        }
    }

    /// Position up to which the user is done with the group.
    pub fn base(&self) -> Seq {
        base_in_group(self.read_seq, self.cleared_tally.seq, self.member.since)
    }

    /// Number of messages behind that, by any author.
    pub fn missed(&self) -> usize {
        let missed_count = self.head.seq.0.saturating_sub(self.base().0);
        usize::try_from(missed_count).unwrap_or(usize::MAX)
    }

    /// Summary without the parts that need a lookup. A group that the user is not in shows only
    /// that fact.
    pub fn summary(&self) -> Summary {
        let head = &self.head;
        let is_in = self.member.role.is_some();
        Summary {
            conversation: ConversationId::Group(self.group),
            seq: if is_in { head.seq } else { Seq::ZERO },
            incoming: 0,
            rev: if is_in { head.rev } else { 0 },
            // Earlier messages than the join are not theirs to read.
            read_seq: self.read_seq.max(self.member.since),
            cleared_seq: self.cleared_tally.seq,
            arranged: self.arrangement,
            hidden: self.hide_mark,
            role: self.member.role,
            // Boats seat nobody yet: all groups are pushed.
            is_large: false,
            unread: 0,
            version: if is_in {
                head.stamp.max(self.touched_at)
            } else {
                self.touched_at
            },
            newest: None,
            marks: None,
        }
    }
}

impl Summary {
    /// Whether it is in the user's list: not a cleared conversation, until it goes on, nor a group
    /// that the user is not in.
    pub fn is_on_list(&self) -> bool {
        match self.conversation {
            ConversationId::Group(_) if self.role.is_none() => false,
            ConversationId::Group(_) if self.seq == Seq::ZERO => true,
            _ => self.seq > self.cleared_seq,
        }
    }
}

#[cfg(test)]
mod tests;
