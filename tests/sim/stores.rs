//! Answers of the stores to the needs of `protocol::reading`.

use std::collections::BTreeMap;
use std::ops::Bound;

use protocol::change::Overlay;
use protocol::conversation::{ConversationRow, ListEntry, ListRegisters};
use protocol::frame::HistoryRange;
use protocol::group::Member;
use protocol::message_row::{MessageRow, Owner};
use protocol::reading::{
    Fact, LatestMessages, LatestNeed, Need, PageNeed, RecallRange, Slice, from_timeline,
};
use protocol::{ConversationId, GroupId, MessageId, Placed, Seq, Timestamp, UserId};

use crate::effects::{Registers, Stores};

impl Stores {
    pub(crate) fn fact(&self, user: UserId, need: &Need) -> Fact {
        let fact = self.list_fact(user, need);
        let fact = fact.or_else(|| self.message_fact(user, need));
        fact.unwrap_or_else(|| panic!("the cache answers {need:?}"))
    }

    /// Facts about messages.
    fn message_fact(&self, user: UserId, need: &Need) -> Option<Fact> {
        Some(match need {
            Need::Latest(needs) => {
                let latest_rows = needs
                    .iter()
                    .map(|need| self.latest(need).unwrap_or_default());
                Fact::Latest(latest_rows.map(LatestMessages::from).collect())
            }
            Need::Page(page) => Fact::Page(self.page(user, page).into()),
            Need::Rows(keys) => {
                let rows = keys.iter().map(|key| self.rows.get(key).cloned());
                Fact::Rows(rows.collect())
            }
            Need::Tallies(places) => {
                let tally = |(conversation, seq): &(ConversationId, Seq)| {
                    let row = self.row_at(Owner::User(user), *conversation, *seq)?;
                    Some(row.tally())
                };
                Fact::Tallies(places.iter().map(tally).collect())
            }
            Need::Recalled(ranges) => {
                Fact::Recalled(ranges.iter().map(|range| self.recalled_in(range)).collect())
            }
            Need::Own(ranges) => {
                let own = ranges.iter().map(|range| {
                    let rows = self.group_rows(range.group);
                    let own_range =
                        rows.range((Bound::Excluded(range.base), Bound::Included(range.last)));
                    own_range.filter(|(_, row)| row.author() == user).count() as u64
                });
                Fact::Own(own.collect())
            }
            Need::Overlays(places) => {
                let overlay = |position| self.overlays.get(position).cloned().unwrap_or_default();
                Fact::Overlays(places.iter().map(overlay).collect())
            }
            Need::OverlayRanges(ranges) => {
                let overlays = ranges.iter().map(|range| {
                    let conversation = range.conversation;
                    let range_overlays = self
                        .overlays
                        .range((conversation, range.first)..=(conversation, range.last));
                    range_overlays
                        .map(|((_, seq), overlay)| (*seq, overlay.clone()))
                        .collect()
                });
                Fact::OverlayRanges(overlays.collect::<Vec<BTreeMap<Seq, Overlay>>>())
            }
            Need::Changes(Slice {
                owner: conversation,
                cursor,
                limit,
            }) => {
                let range = (
                    Bound::Excluded((*conversation, *cursor)),
                    Bound::Included((*conversation, u64::MAX)),
                );
                let changes = self.changes.range(range).take(*limit);
                Fact::Changes(changes.map(|(_, row)| row.changed.clone()).collect())
            }
            Need::Pins(Slice {
                owner: conversation,
                cursor,
                limit,
            }) => {
                let earlier_overlays = self
                    .overlays
                    .range((*conversation, Seq::ZERO)..(*conversation, *cursor))
                    .rev();
                let pins = earlier_overlays.filter(|(_, overlay)| overlay.pin().is_some());
                let pins = pins.filter_map(|((_, seq), _)| {
                    Some((*seq, self.id_at(user, *conversation, *seq)?))
                });
                Fact::Pins(pins.take(*limit).collect())
            }
            Need::Feed(Slice {
                owner: user_id,
                cursor,
                limit,
            }) => {
                let rows = self.owner_rows(Owner::User(*user_id), earliest());
                let rows = rows.filter(|row| Some(row.id()) > *cursor).take(*limit);
                Fact::Feed(rows.cloned().collect())
            }
            Need::Ids((group, places)) => {
                let rows = self.group_rows(*group);
                let id = |seq| rows.get(seq).map(|row| row.id());
                Fact::Ids(places.iter().map(id).collect())
            }
            Need::Statuses(ids) => {
                let status = |id| self.statuses.get(&(user, id)).copied();
                let statuses = ids.iter().map(|id| Ok(status(*id).unwrap_or_default()));
                Fact::Statuses(statuses.collect())
            }
            Need::Traces(ids) => {
                let trace = |id| Ok(self.ledger.get(id).cloned().unwrap_or_default());
                Fact::Traces(ids.iter().map(trace).collect())
            }
            _ => return None,
        })
    }

    /// Facts about conversations, their members and lists.
    fn list_fact(&self, user: UserId, need: &Need) -> Option<Fact> {
        Some(match need {
            Need::Heads(conversations) => {
                let head = |conversation| self.heads.get(conversation).copied().unwrap_or_default();
                Fact::Heads(conversations.iter().map(head).collect())
            }
            Need::Infos(groups) => {
                let info = |group| self.groups.get(group).and_then(|group| group.info);
                Fact::Infos(groups.iter().map(info).collect())
            }
            Need::Members(groups) => {
                let member = |group| {
                    let group = self.groups.get(group)?;
                    Some((group.info?, *group.members.get(&user)?))
                };
                Fact::Members(groups.iter().map(member).collect())
            }
            Need::Populated(group) => Fact::Populated(Ok(self.present(*group).next().is_some())),
            Need::Present(Slice {
                owner: group,
                cursor,
                limit,
            }) => {
                let present = self
                    .present(*group)
                    .filter(|(user, _)| Some(*user) > *cursor);
                Fact::Present(present.take(*limit).collect())
            }
            Need::Memberships(Slice {
                owner: member,
                cursor,
                limit,
            }) => {
                let groups = self
                    .groups
                    .iter()
                    .filter(|(group, _)| Some(**group) > *cursor);
                let mine =
                    groups.filter_map(|(id, group)| Some((*id, *group.members.get(member)?)));
                Fact::Memberships(mine.take(*limit).collect())
            }
            Need::Registers(keys) => {
                let registers = keys
                    .iter()
                    .map(|(user, conversation)| self.user_registers(*user, *conversation));
                Fact::Registers(registers.map(list_registers).collect())
            }
            Need::ListSlice(slice) => {
                let rows = self.conversations.values().filter(|row| row.owner == user);
                let listed = rows.map(|row| self.listed(row)).filter(|listed| {
                    let is_behind = Some(listed.row.conversation) > slice.cursor;
                    is_behind && listed.version() >= slice.from
                });
                Fact::ListSlice(slice.rows(listed.take(slice.limit).collect()))
            }
            Need::ListEntries(of) => {
                let entries = of.iter().map(|of| {
                    let row = self.conversations.get(&(user, *of))?;
                    Some(self.listed(row))
                });
                Fact::ListEntries(entries.collect())
            }
            Need::Hidden(Slice {
                owner: conversation,
                cursor,
                limit,
            }) => {
                let marks = self.hidden_messages.get(&(user, *conversation)).into_iter();
                let range = (Bound::Excluded(*cursor), Bound::Unbounded);
                let marks = marks.flat_map(|all| all.range(range)).take(*limit);
                Fact::Hidden(marks.map(|(mark, seq)| (*mark, *seq)).collect())
            }
            Need::LastReceived(_) => Fact::LastReceived(None),
            _ => return None,
        })
    }

    pub(crate) fn present(&self, group: GroupId) -> impl Iterator<Item = (UserId, Member)> {
        let members = self.groups.get(&group).map(|group| &group.members);
        let members = members.into_iter().flatten();
        let present = members.filter(|(_, member)| member.role.is_some());
        present.map(|(user, member)| (*user, *member))
    }

    /// End of a group, as a cache beside history would have it.
    fn latest(&self, need: &LatestNeed) -> Option<Vec<Placed>> {
        let rows = self.group_rows(need.group);
        let newest = rows.values().rev().map(|row| row.placed.clone());
        let range = HistoryRange::Backward { before: None };
        from_timeline(newest.collect(), range, &need.head, need.count, usize::MAX)
    }

    pub(crate) fn user_registers(&self, owner: UserId, conversation: ConversationId) -> Registers {
        let registers = self.registers.get(&(owner, conversation));
        registers.copied().unwrap_or_default()
    }

    fn listed(&self, row: &ConversationRow) -> ListEntry {
        let registers = list_registers(self.user_registers(row.owner, row.conversation));
        ListEntry {
            row: *row,
            read_seq: registers.read_seq,
            received_seq: registers.received_seq,
            cleared: registers.cleared,
            touched: registers.touched,
            arranged: registers.arranged,
            hidden: registers.hidden,
        }
    }

    fn page(&self, user: UserId, need: &PageNeed) -> Vec<Placed> {
        let places = need.key.first..=need.key.last;
        let rows = self.rows_by_seq(Owner::of(need.conversation, user), need.conversation);
        let rows = rows.range(places);
        let mut messages: Vec<Placed> = rows.map(|(_, row)| row.placed.clone()).collect();
        if !need.key.is_forward {
            messages.reverse();
        }
        messages
    }

    /// Rows of an owner by id, from this one on.
    pub(crate) fn owner_rows(
        &self,
        owner: Owner,
        first_id: MessageId,
    ) -> impl Iterator<Item = &MessageRow> {
        let rows = self.rows.range((owner, first_id)..);
        let rows = rows.take_while(move |((row_owner, _), _)| *row_owner == owner);
        rows.map(|(_, row)| row)
    }

    /// Row at a seq, as its owner has it.
    pub(crate) fn row_at(
        &self,
        owner: Owner,
        conversation: ConversationId,
        seq: Seq,
    ) -> Option<&MessageRow> {
        let mut rows = self.owner_rows(owner, earliest());
        rows.find(|row| row.placed.conversation == conversation && row.seq() == seq)
    }

    fn id_at(&self, user: UserId, conversation: ConversationId, seq: Seq) -> Option<MessageId> {
        Some(
            self.row_at(Owner::of(conversation, user), conversation, seq)?
                .id(),
        )
    }

    /// Rows of a conversation by seq, as their owner has them.
    fn rows_by_seq(
        &self,
        owner: Owner,
        conversation: ConversationId,
    ) -> BTreeMap<Seq, &MessageRow> {
        let rows = self.owner_rows(owner, earliest());
        let rows = rows.filter(|row| row.placed.conversation == conversation);
        rows.map(|row| (row.seq(), row)).collect()
    }

    /// Rows of a group by seq.
    pub(crate) fn group_rows(&self, group: GroupId) -> BTreeMap<Seq, &MessageRow> {
        self.rows_by_seq(Owner::Group(group), ConversationId::Group(group))
    }

    fn recalled_in(&self, range: &RecallRange) -> BTreeMap<Seq, UserId> {
        let conversation = range.conversation;
        let bounds = (
            Bound::Excluded((conversation, range.base)),
            Bound::Included((conversation, range.last)),
        );
        let recalled_messages = self.recall_authors.range(bounds).filter(|(place, _)| {
            let overlay = self.overlays.get(place);
            let register = overlay.and_then(|overlay| overlay.recalled.as_ref());
            register.is_some_and(|register| register.version <= range.last_version)
        });
        recalled_messages
            .map(|((_, seq), author)| (*seq, *author))
            .collect()
    }
}

/// Smallest id.
fn earliest() -> MessageId {
    MessageId::floor_of(Timestamp::ZERO)
}

fn list_registers(registers: Registers) -> ListRegisters {
    ListRegisters {
        read_seq: registers.read_seq,
        received_seq: registers.read_seq,
        cleared: registers.cleared_to,
        touched: registers.touched_at,
        arranged: registers.arrangement.unwrap_or_default().1,
        hidden: registers.hidden_mark,
    }
}
