//! What a member of a group is shown.

use crate::change::{Arranged, Change, Changed};
use crate::conversation::{Head, is_listed};
use crate::frame::{HistoryRange, Summary};
use crate::group::{Member, Role, Settings};
use crate::message::Content;
use crate::unread::{Tally, base_in_group};
use crate::{Code, ConversationId, GroupId, MessageId, Placed, Refusal, Seq, Timestamp};

use super::DensePage;

/// From behind which place on somebody may read a group.
///
/// # Errors
/// `Forbidden` for who is not in it.
pub fn readable_after(settings: Settings, member: Option<&Member>) -> Result<Seq, Refusal> {
    let readable = member.and_then(|member| member.readable_after(settings));
    readable.ok_or_else(|| Refusal::new(Code::Forbidden, "you are not in this group"))
}

/// The part of a range that lies behind `floor`.
pub fn range_behind(range: HistoryRange, floor: Seq) -> HistoryRange {
    match range {
        HistoryRange::Forward { after } => HistoryRange::Forward {
            after: after.max(floor),
        },
        HistoryRange::Backward { .. } => range,
    }
}

/// The part of a page that lies behind `floor`. What lies before it is not *more*: there is nothing for this reader.
pub fn page_behind(mut page: DensePage, range: HistoryRange, floor: Seq) -> DensePage {
    if let HistoryRange::Backward { before } = range {
        page.messages.retain(|placed| placed.position.seq > floor);
        let last = page.messages.last().map(|placed| placed.position.seq);
        let end = last.or(before).unwrap_or_else(|| page.last_seq.next());
        page.more = page.more && end > floor.next();
    }
    page
}

/// Changes are dense, so none can be left out; of a message that the reader may not read nothing is said.
pub fn changes_behind(changes: &mut [Changed], floor: Seq) {
    let hidden = changes.iter_mut().filter(|changed| changed.seq <= floor);
    for changed in hidden {
        if let Change::Edit(content) = &mut changed.asked.change {
            *content = Content {
                kind: content.kind,
                ..Content::text("")
            };
        }
    }
}

/// The page that the newest messages of a group make, where they reach it; `None`: ask history. `kept` are those
/// beside history, newest first, whoever wrote them there: what does not hang together by position and by `prev`, up
/// to the message that the head names, is not believed. The page has `limit` messages, or the last of its direction,
/// or `bytes_max` of content: who asks for the newest few must not be given fewer because no more were kept.
pub fn from_timeline(
    mut kept: Vec<Placed>,
    range: HistoryRange,
    head: &Head,
    limit: usize,
    bytes_max: usize,
) -> Option<Vec<Placed>> {
    let last = head.seq;
    // What came since the head was read is pushed, or is in the next page.
    kept.retain(|placed| placed.position.seq <= last);
    let first = match range {
        HistoryRange::Forward { after } => {
            kept.reverse();
            after.next()
        }
        HistoryRange::Backward { before } => {
            let end = before.map_or_else(|| last.next(), |before| before.min(last.next()));
            Seq(end.0.checked_sub(1)?)
        }
    };
    if first == Seq::ZERO || first > last {
        return Some(Vec::new());
    }
    let mut page: Vec<Placed> = Vec::new();
    for placed in kept.into_iter().skip_while(|p| p.position.seq != first) {
        let is_other_end = placed.position.seq == last && head.last_id != Some(placed.message.id);
        if is_other_end {
            return None;
        }
        if page.len() == limit || page.last().is_some_and(|end| !are_neighbours(end, &placed)) {
            break;
        }
        page.push(placed);
    }
    let end = page.last()?.position.seq;
    let is_end = match range {
        HistoryRange::Forward { .. } => end == last,
        HistoryRange::Backward { .. } => end == Seq::ZERO.next(),
    };
    let size = |placed: &Placed| placed.message.content.data.len();
    let is_whole =
        is_end || page.len() >= limit || page.iter().map(size).sum::<usize>() >= bytes_max;
    is_whole.then_some(page)
}

fn are_neighbours(one: &Placed, other: &Placed) -> bool {
    let (earlier, later) = match one.position.seq < other.position.seq {
        true => (one, other),
        false => (other, one),
    };
    let prev: Option<MessageId> = later.position.prev;
    later.position.seq == earlier.position.seq.next() && prev == Some(earlier.message.id)
}

/// What the list difference knows of a group of somebody's. There is no row that each message would write (S4-33): it
/// is found by the group's head, and by the user's own registers.
#[derive(Clone, Copy, Debug)]
pub struct GroupRow {
    pub role: Option<Role>,
    pub end: Seq,
    /// When the head was written.
    pub stamp: Timestamp,
    pub touched: Timestamp,
    pub cleared: Tally,
}

impl GroupRow {
    /// Is it told to a device whose list is of `since`? `from` as by [`list_from`](super::list_from).
    ///
    /// A message moves the stamp of the head; coming, leaving and what the user does here touch their own register. A
    /// device that has nothing is not told of a group that was left.
    pub fn is_told(&self, since: Timestamp, from: Timestamp) -> bool {
        let is_in = self.role.is_some();
        if since == Timestamp::ZERO {
            return is_in && (self.end == Seq::ZERO || is_listed(self.end, self.cleared));
        }
        self.touched >= from || (is_in && self.stamp >= from)
    }
}

/// A group in the list of one of its members.
#[derive(Clone, Copy, Debug)]
pub struct GroupListed {
    pub group: GroupId,
    pub member: Member,
    pub head: Head,
    /// No message behind this place was ever changed.
    pub changed_to: Seq,
    /// What they did with it, as in a private conversation.
    pub read_seq: Seq,
    pub cleared: Tally,
    pub touched: Timestamp,
    pub arranged: Arranged,
    pub hidden: u64,
}

impl GroupListed {
    pub fn standing(&self) -> GroupRow {
        GroupRow {
            role: self.member.role,
            end: self.head.seq,
            stamp: self.head.stamp,
            touched: self.touched,
            cleared: self.cleared,
        }
    }

    /// How far they are done with it.
    pub fn base(&self) -> Seq {
        base_in_group(self.read_seq, self.cleared.seq, self.member.since)
    }

    /// How many messages are behind that, of whoever.
    pub fn missed(&self) -> usize {
        let missed = self.head.seq.0.saturating_sub(self.base().0);
        usize::try_from(missed).unwrap_or(usize::MAX)
    }

    /// Without what must be looked up. Of a group that they are not in, nothing but that.
    pub fn summary(&self) -> Summary {
        let head = &self.head;
        let is_in = self.member.role.is_some();
        Summary {
            conversation: ConversationId::Group(self.group),
            seq: if is_in { head.seq } else { Seq::ZERO },
            incoming: 0,
            rev: if is_in { head.rev } else { 0 },
            // What was there before they came is not theirs to read.
            read_seq: self.read_seq.max(self.member.since),
            cleared_seq: self.cleared.seq,
            arranged: self.arranged,
            hidden: self.hidden,
            role: self.member.role,
            unread: 0,
            version: head.stamp.max(self.touched),
            newest: None,
            marks: None,
        }
    }
}

impl Summary {
    /// Is it on the user's list? What was taken from it is not, until it goes on; nor a group that they are not in.
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
