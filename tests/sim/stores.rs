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
            Need::Latest(asked) => {
                let latest = asked
                    .iter()
                    .map(|asked| self.latest(asked).unwrap_or_default());
                Fact::Latest(latest.map(LatestMessages::from).collect())
            }
            Need::Page(page) => Fact::Page(self.page(user, page).into()),
            Need::Rows(keys) => {
                let rows = keys.iter().map(|key| self.rows.get(key).cloned());
                Fact::Rows(rows.collect())
            }
            Need::Tallies(places) => {
                let tally = |(of, seq): &(ConversationId, Seq)| {
                    let row = self.row_at(Owner::User(user), *of, *seq)?;
                    Some(row.tally())
                };
                Fact::Tallies(places.iter().map(tally).collect())
            }
            Need::Recalled(ranges) => {
                Fact::Recalled(ranges.iter().map(|range| self.recalled_in(range)).collect())
            }
            Need::Own(ranges) => {
                let own = ranges.iter().map(|range| {
                    let rows = self.rows_of_group(range.group);
                    let between =
                        rows.range((Bound::Excluded(range.base), Bound::Included(range.last)));
                    between.filter(|(_, row)| row.author() == user).count() as u64
                });
                Fact::Own(own.collect())
            }
            Need::Overlays(places) => {
                let overlay = |place| self.altered.get(place).cloned().unwrap_or_default();
                Fact::Overlays(places.iter().map(overlay).collect())
            }
            Need::OverlayRanges(ranges) => {
                let overlays = ranges.iter().map(|range| {
                    let of = range.conversation;
                    let altered = self.altered.range((of, range.first)..=(of, range.last));
                    altered
                        .map(|((_, seq), overlay)| (*seq, overlay.clone()))
                        .collect()
                });
                Fact::OverlayRanges(overlays.collect::<Vec<BTreeMap<Seq, Overlay>>>())
            }
            Need::Changes(Slice {
                owner: of,
                cursor: after,
                limit,
            }) => {
                let behind = (
                    Bound::Excluded((*of, *after)),
                    Bound::Included((*of, u64::MAX)),
                );
                let changes = self.changes.range(behind).take(*limit);
                Fact::Changes(changes.map(|(_, row)| row.changed.clone()).collect())
            }
            Need::Pins(Slice {
                owner: of,
                cursor: after,
                limit,
            }) => {
                let before = self.altered.range((*of, Seq::ZERO)..(*of, *after)).rev();
                let pins = before.filter(|(_, overlay)| overlay.pin().is_some());
                let pins =
                    pins.filter_map(|((_, seq), _)| Some((*seq, self.id_at(user, *of, *seq)?)));
                Fact::Pins(pins.take(*limit).collect())
            }
            Need::Feed(Slice {
                owner: of,
                cursor: after,
                limit,
            }) => {
                let rows = self.rows_of(Owner::User(*of), earliest());
                let rows = rows.filter(|row| Some(row.id()) > *after).take(*limit);
                Fact::Feed(rows.cloned().collect())
            }
            Need::Ids((group, places)) => {
                let rows = self.rows_of_group(*group);
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
            Need::Heads(of) => {
                let head = |of| self.heads.get(of).copied().unwrap_or_default();
                Fact::Heads(of.iter().map(head).collect())
            }
            Need::Members(groups) => {
                let member = |group| {
                    let group = self.groups.get(group)?;
                    Some((group.settings?.0, *group.members.get(&user)?))
                };
                Fact::Members(groups.iter().map(member).collect())
            }
            Need::Populated(group) => Fact::Populated(Ok(self.present(*group).next().is_some())),
            Need::Present(Slice {
                owner: of,
                cursor: after,
                limit,
            }) => {
                let present = self.present(*of).filter(|(user, _)| Some(*user) > *after);
                Fact::Present(present.take(*limit).collect())
            }
            Need::Memberships(Slice {
                owner: of,
                cursor: after,
                limit,
            }) => {
                let groups = self
                    .groups
                    .iter()
                    .filter(|(group, _)| Some(**group) > *after);
                let mine = groups.filter_map(|(id, group)| Some((*id, *group.members.get(of)?)));
                Fact::Memberships(mine.take(*limit).collect())
            }
            Need::Registers(keys) => {
                let registers = keys.iter().map(|(user, of)| self.registers_of(*user, *of));
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
                let listed = of.iter().map(|of| {
                    let row = self.conversations.get(&(user, *of))?;
                    Some(self.listed(row))
                });
                Fact::ListEntries(listed.collect())
            }
            Need::Hidden(Slice {
                owner: of,
                cursor: after,
                limit,
            }) => {
                let hidden = self.hidden.get(&(user, *of)).into_iter();
                let behind = (Bound::Excluded(*after), Bound::Unbounded);
                let hidden = hidden.flat_map(|all| all.range(behind)).take(*limit);
                Fact::Hidden(hidden.map(|(mark, seq)| (*mark, *seq)).collect())
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
    fn latest(&self, asked: &LatestNeed) -> Option<Vec<Placed>> {
        let rows = self.rows_of_group(asked.group);
        let newest = rows.values().rev().map(|row| row.placed.clone());
        let range = HistoryRange::Backward { before: None };
        from_timeline(
            newest.collect(),
            range,
            &asked.head,
            asked.count,
            usize::MAX,
        )
    }

    pub(crate) fn registers_of(&self, owner: UserId, conversation: ConversationId) -> Registers {
        let registers = self.registers.get(&(owner, conversation));
        registers.copied().unwrap_or_default()
    }

    fn listed(&self, row: &ConversationRow) -> ListEntry {
        let registers = list_registers(self.registers_of(row.owner, row.conversation));
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

    fn page(&self, user: UserId, asked: &PageNeed) -> Vec<Placed> {
        let places = asked.key.first..=asked.key.last;
        let rows = self.rows_by_seq(Owner::of(asked.conversation, user), asked.conversation);
        let rows = rows.range(places);
        let mut messages: Vec<Placed> = rows.map(|(_, row)| row.placed.clone()).collect();
        if !asked.key.is_forward {
            messages.reverse();
        }
        messages
    }

    /// Rows of an owner by id, from this one on.
    pub(crate) fn rows_of(
        &self,
        owner: Owner,
        since: MessageId,
    ) -> impl Iterator<Item = &MessageRow> {
        let rows = self.rows.range((owner, since)..);
        let rows = rows.take_while(move |((of, _), _)| *of == owner);
        rows.map(|(_, row)| row)
    }

    /// Row at a seq, as its owner has it.
    pub(crate) fn row_at(
        &self,
        owner: Owner,
        conversation: ConversationId,
        seq: Seq,
    ) -> Option<&MessageRow> {
        let mut rows = self.rows_of(owner, earliest());
        rows.find(|row| row.placed.conversation == conversation && row.seq() == seq)
    }

    fn id_at(&self, user: UserId, of: ConversationId, seq: Seq) -> Option<MessageId> {
        Some(self.row_at(Owner::of(of, user), of, seq)?.id())
    }

    /// Rows of a conversation by seq, as their owner has them.
    fn rows_by_seq(
        &self,
        owner: Owner,
        conversation: ConversationId,
    ) -> BTreeMap<Seq, &MessageRow> {
        let rows = self.rows_of(owner, earliest());
        let rows = rows.filter(|row| row.placed.conversation == conversation);
        rows.map(|row| (row.seq(), row)).collect()
    }

    /// Rows of a group by seq.
    pub(crate) fn rows_of_group(&self, group: GroupId) -> BTreeMap<Seq, &MessageRow> {
        self.rows_by_seq(Owner::Group(group), ConversationId::Group(group))
    }

    fn recalled_in(&self, range: &RecallRange) -> BTreeMap<Seq, UserId> {
        let of = range.conversation;
        let between = (
            Bound::Excluded((of, range.base)),
            Bound::Included((of, range.last)),
        );
        let recalled = self.recalled.range(between).filter(|(place, _)| {
            let overlay = self.altered.get(place);
            let register = overlay.and_then(|overlay| overlay.recalled.as_ref());
            register.is_some_and(|register| register.version <= range.last_version)
        });
        recalled.map(|((_, seq), author)| (*seq, *author)).collect()
    }
}

/// Smallest id.
fn earliest() -> MessageId {
    MessageId::floor_of(Timestamp::ZERO)
}

fn list_registers(registers: Registers) -> ListRegisters {
    ListRegisters {
        read_seq: registers.read,
        received_seq: registers.read,
        cleared: registers.cleared,
        touched: registers.touched,
        arranged: registers.arranged.unwrap_or_default().1,
        hidden: registers.hidden,
    }
}
