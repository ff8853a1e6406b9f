//! Members and readers of a group, and the number of its messages since a time.

use std::time::Duration;

use super::{NeedResult, NoAnswer, Reading, Slice, page_limit, readable_after};
use crate::frame::{CountSince, MemberPage};
use crate::{Code, ConversationId, GroupId, MessageId, Refusal, Seq, Timestamp, UserId};

/// Messages counted at once.
pub const COUNTED_MAX: u64 = 1000;

/// Largest group whose readers are named.
pub const READERS_MAX: usize = 500;

impl Reading<'_> {
    /// Members of a group, for its members.
    pub(super) fn members(
        &self,
        group: GroupId,
        cursor: Option<UserId>,
        limit: u32,
    ) -> NeedResult<MemberPage> {
        let (info, _) = self.membership(group)?;
        let limit = page_limit(limit, self.rules.page_max);
        // One more than a page tells whether there are more.
        let present = self.ask.present(Slice {
            owner: group,
            cursor,
            limit: limit + 1,
        })?;
        let members = present.iter().take(limit);
        Ok(MemberPage {
            settings: info.settings,
            members: members
                .filter_map(|(user, member)| Some((*user, member.role?)))
                .collect(),
            more: present.len() > limit,
        })
    }

    /// Members who have read up to `seq`.
    pub(super) fn readers(&self, group: GroupId, seq: Seq) -> NeedResult<Vec<UserId>> {
        self.membership(group)?;
        let present = self.ask.present(Slice {
            owner: group,
            cursor: None,
            limit: READERS_MAX + 1,
        })?;
        if present.len() > READERS_MAX {
            let text = format!("readers are only available in groups of at most {READERS_MAX}");
            let refusal = Refusal::new(Code::Unsupported, text);
            return Err(NoAnswer::Refused(refusal));
        }
        let conversation = ConversationId::Group(group);
        let keys = present.iter().map(|(user, _)| (*user, conversation));
        let registers = self.ask.registers(keys.collect())?;
        let readers = present.iter().zip(registers);
        Ok(readers
            .filter(|(_, registers)| registers.read_seq >= seq)
            .map(|((user, _), _)| *user)
            .collect())
    }

    /// Number of messages in a group accepted after a time (S2-09, S2-10), of those that the user
    /// may read, among the newest [`COUNTED_MAX`]. Reads only their places.
    pub(super) fn count_since(
        &self,
        group: GroupId,
        lower_bound: Timestamp,
    ) -> NeedResult<CountSince> {
        let (info, member) = self.membership(group)?;
        let floor = readable_after(info.settings, Some(&member))?;
        let end = self.head(ConversationId::Group(group))?.seq;
        let first = floor.0.max(end.0.saturating_sub(COUNTED_MAX)) + 1;
        let places: Vec<Seq> = (first..=end.0).map(Seq).collect();
        let count = places.len();
        let ids = if places.is_empty() {
            &[][..]
        } else {
            self.ask.ids((group, places))?
        };
        let lower_bound = lower_bound.min(self.started_at);
        let earliest = MessageId::floor_of(lower_bound + Duration::from_millis(1));
        let later_count = ids.iter().flatten().filter(|id| **id >= earliest).count();
        let is_cut = first > floor.0 + 1;
        Ok(CountSince {
            count: later_count as u64,
            more: is_cut && later_count == count,
        })
    }
}
