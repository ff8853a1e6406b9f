//! Pages of messages, of changes and of hidden messages, and statuses.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use super::access::ReadAccess;
use super::{
    NeedResult, OverlayRange, PageKey, PageNeed, Reading, Slice, changes_behind, check_cursor,
    check_rev, dense_changes, dense_page, fitting, may_go_on, page_behind, page_limit,
    range_behind,
};
use crate::change::{MessageMarks, OrderedChange, Overlay};
use crate::conversation::Head;
use crate::frame::{ChangePage, HiddenPage, HistoryPage, HistoryRange, MessageStatus, MissedPage};
use crate::group::{GroupInfo, Member, reads_edit};
use crate::history::{Direction, RowStatus};
use crate::message_row::{MessageRow, Owner};
use crate::{ConversationId, GroupId, MessageId, Placed, Seq, UserId, cache, ledger};

/// Age of a message beyond which an empty ledger means that its entries are forgotten.
const LEDGER_FORGET_AGE: Duration = Duration::from_secs(24 * 3600);

impl<'a> Reading<'a> {
    /// A dense page of one conversation, for its two sides or for the members of its group.
    pub(super) fn history(
        &self,
        conversation: ConversationId,
        range: HistoryRange,
        limit: u32,
    ) -> NeedResult<HistoryPage> {
        let is_behind = |head: &Head| check_cursor(range, head.seq).is_err();
        let ReadAccess {
            floor,
            head,
            changed_to,
        } = self.access(conversation, is_behind)?;
        check_cursor(range, head.seq)?;
        let range = range_behind(range, floor);
        let limit = page_limit(limit, self.rules.page_max);
        // Rows after the head: they are written before it moves.
        let messages: &[Placed] = match PageKey::of(range, head.seq, limit) {
            Some(key) => self.ask.page(PageNeed {
                conversation,
                key,
                head,
            })?,
            None => &[],
        };
        let page = page_behind(dense_page(messages, range, head.seq)?, range, floor);
        let own = own_messages(self.user, conversation, page.messages);
        let (overlays, statuses) = (
            self.overlays_within(conversation, changed_to, page.messages),
            self.ask.statuses(own.iter().map(|(_, id)| *id).collect()),
        );
        let (overlays, statuses) = (overlays?, statuses?);
        let (mut messages, mut marks) = (page.messages.to_vec(), BTreeMap::new());
        for message in &mut messages {
            let seq = message.position.seq;
            if let Some(message_marks) =
                overlays.get(&seq).and_then(|overlay| overlay.show(message))
            {
                marks.insert(seq, message_marks);
            }
        }
        // A store that is away leads to too little here: its messages count as sent.
        let mut statuses: BTreeMap<Seq, RowStatus> = (own.iter().zip(statuses))
            .filter_map(|((seq, _), status)| Some((*seq, *status.as_ref().ok()?)))
            .filter(|(_, status)| *status != RowStatus::default())
            .collect();
        for (seq, _) in marks.iter().filter(|(_, marks)| marks.recalled.is_some()) {
            statuses.entry(*seq).or_default().deleted = true;
        }
        let sizes = messages.iter().map(|message| shown_size(message, &marks));
        let fit = fitting(sizes, self.rules.page_bytes_max);
        let more = page.more || fit < messages.len();
        for message in messages.drain(fit..) {
            marks.remove(&message.position.seq);
            statuses.remove(&message.position.seq);
        }
        Ok(HistoryPage {
            conversation,
            messages,
            marks,
            statuses,
            rev: head.rev,
            last_seq: page.last_seq,
            more,
        })
    }

    /// Overlays of messages of one conversation, in which nothing behind `changed_to` was ever
    /// changed.
    fn overlays_within(
        &self,
        conversation: ConversationId,
        changed_to: Seq,
        messages: &[Placed],
    ) -> NeedResult<BTreeMap<Seq, &'a Overlay>> {
        let range = overlay_range(conversation, changed_to, messages.iter());
        let overlays = self.ask.overlay_ranges(range.into_iter().collect())?;
        let each = overlays.iter().flatten();
        Ok(each.map(|(seq, overlay)| (*seq, overlay)).collect())
    }

    /// Changes in their order, for users who may read the messages changed.
    pub(super) fn changes(
        &self,
        conversation: ConversationId,
        cursor: u64,
        limit: u32,
    ) -> NeedResult<ChangePage> {
        // Only a client that knows of newer changes asks.
        let is_behind = |head: &Head| cursor >= head.rev;
        let ReadAccess { floor, head, .. } = self.access(conversation, is_behind)?;
        let last_rev = head.rev;
        check_rev(cursor, last_rev)?;
        let changes = self.ask.changes(Slice {
            owner: conversation,
            cursor,
            limit: page_limit(limit, self.rules.page_max),
        })?;
        // Changes behind the head are not final yet.
        let changes = changes.iter().filter(|change| change.rev <= last_rev);
        let mut changes: Vec<OrderedChange> = changes.cloned().collect();
        let sizes = changes
            .iter()
            .map(|change| change.asked.change.content_size());
        changes.truncate(fitting(sizes, self.rules.page_bytes_max));
        let more = dense_changes(conversation, &changes, cursor, last_rev)?;
        changes_behind(&mut changes, floor);
        self.blank_recalled(conversation, floor, &mut changes)?;
        Ok(ChangePage {
            conversation,
            changes,
            last_rev,
            more,
        })
    }

    /// Blanks edits of messages behind `floor` that were recalled, by a change of this page or of any
    /// other.
    fn blank_recalled(
        &self,
        conversation: ConversationId,
        floor: Seq,
        changes: &mut [OrderedChange],
    ) -> NeedResult<()> {
        let edited_seqs = changes.iter().filter(|change| change.is_edit());
        let edited_seqs = edited_seqs.map(|change| change.seq);
        let edited_seqs: BTreeSet<Seq> = edited_seqs.filter(|seq| *seq > floor).collect();
        let places = edited_seqs.iter().map(|seq| (conversation, *seq));
        let overlays = self.ask.overlays(places.collect())?;
        let recalled_seqs = edited_seqs.iter().zip(overlays);
        let recalled_seqs = recalled_seqs.filter(|(_, overlay)| overlay.recalled.is_some());
        let recalled_seqs: BTreeSet<Seq> = recalled_seqs.map(|(seq, _)| *seq).collect();
        let recalled_edits = changes.iter_mut();
        let recalled_edits = recalled_edits.filter(|change| recalled_seqs.contains(&change.seq));
        recalled_edits.for_each(OrderedChange::blank);
        Ok(())
    }

    /// Messages that the user hid in a conversation, also in a group that they left.
    pub(super) fn hidden(
        &self,
        conversation: ConversationId,
        cursor: u64,
        limit: u32,
    ) -> NeedResult<HiddenPage> {
        may_go_on(self.user, Some(conversation))?;
        let limit = page_limit(limit, self.rules.page_max);
        // One more than a page tells whether there are more.
        let hidden_messages = self.ask.hidden(Slice {
            owner: conversation,
            cursor,
            limit: limit + 1,
        })?;
        let page = &hidden_messages[..hidden_messages.len().min(limit)];
        Ok(HiddenPage {
            last: page.last().map_or(cursor, |(mark, _)| *mark),
            seqs: page.iter().map(|(_, seq)| *seq).collect(),
            more: hidden_messages.len() > limit,
        })
    }

    /// Private messages in order of id (S0-05): a device without a cursor for each conversation
    /// goes on from one message, its own last one or the last that the server knows the user
    /// received.
    pub(super) fn missed(&self, cursor: Option<MessageId>, limit: u32) -> NeedResult<MissedPage> {
        let cursor = match cursor {
            Some(cursor) => Some(cursor),
            // Messages accepted by other stations at that time may have come later.
            None => (self.ask.last_received(self.user)?)
                .map(|id| MessageId::floor_of(id.timestamp() - self.rules.list_margin)),
        };
        let limit = page_limit(limit, self.rules.page_max);
        // One more than a page tells whether there are more.
        let rows = self.ask.feed(Slice {
            owner: self.user,
            cursor,
            limit: limit + 1,
        })?;
        let rows = rows.iter().map(|row| row.placed.clone());
        let mut messages: Vec<Placed> = rows.collect();
        let row_count = messages.len();
        messages.truncate(limit);
        self.apply_changes(&mut messages)?;
        let sizes = messages.iter().map(|m| m.message.content.data.len());
        messages.truncate(fitting(sizes, self.rules.page_bytes_max));
        let more = messages.len() < row_count;
        Ok(MissedPage { messages, more })
    }

    /// Applies changes to messages of any conversations, which the user got when they came. Of a
    /// group that the user has left since, they are as of the time of the membership, or recalled.
    /// Returns the places of those that changed.
    pub(super) fn apply_changes(
        &self,
        messages: &mut [Placed],
    ) -> NeedResult<BTreeSet<(ConversationId, Seq)>> {
        let mut by_conversation = BTreeMap::<ConversationId, Vec<&Placed>>::new();
        for message in &*messages {
            by_conversation
                .entry(message.conversation)
                .or_default()
                .push(message);
        }
        let ends = self.changed_to(by_conversation.keys().copied())?;
        let ranges = by_conversation
            .into_iter()
            .filter_map(|(conversation, messages)| {
                let end = ends.get(&conversation).copied().unwrap_or_default();
                overlay_range(conversation, end, messages.into_iter())
            });
        let ranges: Vec<OverlayRange> = ranges.collect();
        let overlays = self.ask.overlay_ranges(ranges.clone())?;
        let overlays: BTreeMap<ConversationId, &BTreeMap<Seq, Overlay>> =
            (ranges.iter().map(|range| range.conversation).zip(overlays)).collect();
        let find_overlay = |message: &Placed| {
            let conversation_overlays = overlays.get(&message.conversation)?;
            conversation_overlays.get(&message.position.seq)
        };
        let members = self.edited_group_members(messages, find_overlay)?;
        let mut changed_places = BTreeSet::new();
        for message in messages {
            let place = (message.conversation, message.position.seq);
            let Some(overlay) = find_overlay(message) else {
                continue;
            };
            let is_read = match (edited_group(message, overlay), &overlay.edited) {
                (Some(group), Some(edit)) => {
                    let member = members.get(&group).copied().flatten();
                    reads_edit(member, place.1, edit.version)
                }
                _ => true,
            };
            let marks = if is_read {
                overlay.show(message)
            } else {
                overlay.without_edit().show(message)
            };
            if marks.is_some() {
                changed_places.insert(place);
            }
        }
        Ok(changed_places)
    }

    /// Memberships of the user in groups with edited messages among these.
    fn edited_group_members<'o>(
        &self,
        messages: &[Placed],
        find_overlay: impl Fn(&Placed) -> Option<&'o Overlay>,
    ) -> NeedResult<BTreeMap<GroupId, Option<&'a (GroupInfo, Member)>>> {
        let edited_groups = messages.iter();
        let edited_groups =
            edited_groups.filter_map(|message| edited_group(message, find_overlay(message)?));
        let edited_groups: BTreeSet<GroupId> = edited_groups.collect();
        let members = self.ask.members(edited_groups.iter().copied().collect())?;
        let members = members.iter().map(Option::as_ref);
        Ok(edited_groups.into_iter().zip(members).collect())
    }

    /// Last place of each conversation up to which messages may have been changed.
    fn changed_to(
        &self,
        conversations: impl Iterator<Item = ConversationId>,
    ) -> NeedResult<BTreeMap<ConversationId, Seq>> {
        let (mut groups, mut other_conversations) = (Vec::new(), Vec::new());
        for conversation in conversations {
            match conversation {
                ConversationId::Group(group) => groups.push(group),
                ConversationId::Private { .. } | ConversationId::System(_) => {
                    other_conversations.push(conversation);
                }
            }
        }
        let (entries, heads) = (
            self.entries(&groups),
            self.ask.heads(other_conversations.clone()),
        );
        let (entries, heads) = (entries?, heads?);
        let head_end = |head: &Head| cache::changed_to(head.rev, head.seq);
        let groups = groups.into_iter().map(ConversationId::Group);
        let groups = groups.zip(entries.iter().map(|entry| entry.changed_to));
        Ok(groups
            .chain(
                other_conversations
                    .into_iter()
                    .zip(heads.iter().map(head_end)),
            )
            .collect())
    }

    /// Statuses of the user's own messages; other messages are left out.
    pub(super) fn status(&self, ids: &[MessageId]) -> NeedResult<Vec<MessageStatus>> {
        let keys = ids.iter().map(|&id| (Owner::User(self.user), id)).collect();
        let (rows, statuses) = (self.ask.rows(keys), self.ask.statuses(ids.to_vec()));
        let mut own: Vec<(&MessageRow, RowStatus)> = Vec::new();
        for (row, status) in rows?.iter().zip(statuses?) {
            if let Some(row) = row
                && row.direction() == Some(Direction::Out)
            {
                own.push((row, status.clone()?));
            }
        }
        let read_messages = own.iter().filter(|(_, status)| status.read_at.is_some());
        let read_messages: Vec<_> = read_messages
            .filter_map(|(row, _)| Some((row.id(), row.peer()?)))
            .collect();
        let finished_ids = self.find_finished(&read_messages)?;
        Ok(own
            .into_iter()
            .map(|(row, status)| MessageStatus {
                id: row.id(),
                delivered_at: status.delivered_at,
                read_at: status.read_at,
                is_finished: finished_ids.contains(&row.id()),
            })
            .collect())
    }

    /// Messages, among those read, that every platform of their recipient has. A message that the
    /// ledger has long forgotten is owed to nobody; if the ledger cannot be asked, no message
    /// counts.
    fn find_finished(
        &self,
        read_messages: &[(MessageId, UserId)],
    ) -> NeedResult<BTreeSet<MessageId>> {
        let traces = self
            .ask
            .traces(read_messages.iter().map(|(id, _)| *id).collect())?;
        let is_old = |id: MessageId| id.timestamp() + LEDGER_FORGET_AGE < self.started_at;
        let finished_messages = read_messages
            .iter()
            .zip(traces)
            .filter(|((id, peer), entries)| match entries {
                Ok(entries) if entries.is_empty() => is_old(*id),
                Ok(entries) => ledger::has_ended_for(*peer, entries),
                Err(_) => false,
            });
        Ok(finished_messages.map(|((id, _), _)| *id).collect())
    }
}

/// Group of a message whose text was replaced.
fn edited_group(message: &Placed, overlay: &Overlay) -> Option<GroupId> {
    match message.conversation {
        ConversationId::Group(group) => {
            (overlay.edited.is_some() && overlay.recalled.is_none()).then_some(group)
        }
        ConversationId::Private { .. } | ConversationId::System(_) => None,
    }
}

/// Range of the messages that may have changed; `None` if none may.
fn overlay_range<'m>(
    conversation: ConversationId,
    changed_to: Seq,
    messages: impl Iterator<Item = &'m Placed>,
) -> Option<OverlayRange> {
    let seqs = messages.map(|message| message.position.seq);
    let seqs = seqs.filter(|seq| *seq <= changed_to);
    let (first, last) = seqs.fold(None, |bounds: Option<(Seq, Seq)>, seq| {
        let (first, last) = bounds.unwrap_or((seq, seq));
        Some((first.min(seq), last.max(seq)))
    })?;
    Some(OverlayRange {
        conversation,
        first,
        last,
    })
}

/// Messages of a page that `user` sent to a peer. Messages of groups have no such registers
/// (S0-61b).
fn own_messages(
    user: UserId,
    conversation: ConversationId,
    page: &[Placed],
) -> Vec<(Seq, MessageId)> {
    if matches!(conversation, ConversationId::Group(_)) {
        return Vec::new();
    }
    let own = page.iter().filter(|message| message.message.from == user);
    own.map(|message| (message.position.seq, message.message.id))
        .collect()
}

/// Size of a message as it goes out: it may have grown since.
pub(super) fn shown_size(placed_message: &Placed, marks: &BTreeMap<Seq, MessageMarks>) -> usize {
    let marks = marks.get(&placed_message.position.seq);
    placed_message.message.content.data.len() + marks.map_or(0, MessageMarks::weight)
}
