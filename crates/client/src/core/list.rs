//! Conversation list of this device: the server's last rows, and everything that came since.

use std::collections::{BTreeMap, BTreeSet};

use protocol::change::{ListArrangement, MessageMarks, OrderedChange};
use protocol::frame::{ListEvent, ListEventKind, Summary};
use protocol::{ConversationId, Placed, Seq, Timestamp, UserId};

use super::{Action, Core};

/// Rows, including those of conversations taken from the list: they return with their next message.
#[derive(Debug, Default)]
pub(super) struct ConversationListState {
    rows: BTreeMap<ConversationId, Summary>,
    /// Recalls of others' messages, by rev, that the server's last row may not have counted.
    recalls: BTreeMap<ConversationId, BTreeMap<u64, Seq>>,
    /// Own group messages newer than the server's last row: a group's row does not count others'
    /// messages apart.
    own: BTreeMap<ConversationId, BTreeSet<Seq>>,
    /// Reads and clears of conversations without a row: the server may have made the row that
    /// comes before it recorded them.
    early: BTreeMap<ConversationId, EarlyMarks>,
}

#[derive(Clone, Copy, Debug, Default)]
struct EarlyMarks {
    read_seq: Seq,
    cleared_seq: Seq,
}

/// Time from which the server knows the unread messages of a row better than this device.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Unsure {
    Now,
    /// Once the server has recorded the read of this device.
    OnceRead,
}

/// Conversations without a row whose marks are remembered; beyond, the first is forgotten, and
/// shown as its row says.
const EARLY_MAX: usize = 1024;

/// Own messages remembered per group until the server's next row; beyond, the oldest are forgotten
/// and, if that row is older than they are, counted as others' until the row after it.
const OWN_MAX: usize = 4096;

impl ConversationListState {
    pub(super) fn new(rows: BTreeMap<ConversationId, Summary>) -> ConversationListState {
        ConversationListState {
            rows,
            recalls: BTreeMap::new(),
            own: BTreeMap::new(),
            early: BTreeMap::new(),
        }
    }

    /// Marks of a conversation that has no row yet.
    fn early(&mut self, conversation: ConversationId) -> &mut EarlyMarks {
        if self.early.len() >= EARLY_MAX && !self.early.contains_key(&conversation) {
            self.early.pop_first();
        }
        self.early.entry(conversation).or_default()
    }

    /// Whether the server's list named the conversation.
    pub(super) fn is_named(&self, conversation: ConversationId) -> bool {
        let row = self.rows.get(&conversation);
        row.is_some_and(|row| row.version > Timestamp::ZERO)
    }

    /// Whether the user is in this group, which is large.
    pub(super) fn is_large(&self, conversation: ConversationId) -> bool {
        let row = self.rows.get(&conversation);
        row.is_some_and(|row| row.is_large && row.role.is_some())
    }

    pub(super) fn rev(&self, conversation: ConversationId) -> u64 {
        self.rows.get(&conversation).map_or(0, |row| row.rev)
    }

    /// Takes a row from the server and adds the messages newer than it. The second part: the
    /// server did not know yet how far the user has read, and must be asked again.
    fn listed(&mut self, summary: Summary) -> (Summary, Option<Unsure>) {
        let base = unread_base(&summary);
        let early = self.early.remove(&summary.conversation);
        let row = self.rows.entry(summary.conversation);
        let row = row.or_insert_with(|| summary.clone());
        if let Some(early) = early {
            row.read_seq = row.read_seq.max(early.read_seq);
            row.cleared_seq = row.cleared_seq.max(early.cleared_seq);
        }
        let later_count = match summary.conversation {
            ConversationId::Group(_) => {
                let own = self.own.get_mut(&summary.conversation);
                let own = own.map_or(0, |own| {
                    *own = own.split_off(&summary.seq.next());
                    own.len() as u64
                });
                row.seq.0.saturating_sub(summary.seq.0).saturating_sub(own)
            }
            ConversationId::Private { .. } | ConversationId::System(_) => {
                row.incoming.saturating_sub(summary.incoming)
            }
        };
        let is_ahead = row.seq > summary.seq;
        let is_newer = row.seq == summary.seq && row.rev > summary.rev;
        let ours = std::mem::replace(row, summary);
        if is_ahead {
            row.unread += later_count;
            (row.seq, row.incoming) = (ours.seq, ours.incoming);
        }
        // A signal moves a row without its newest message.
        if (is_ahead || is_newer) && newest_seq(&ours) >= newest_seq(row) {
            (row.newest, row.marks) = (ours.newest, ours.marks);
        }
        row.cleared_seq = row.cleared_seq.max(ours.cleared_seq);
        let recalls = self.recalls.remove(&row.conversation).unwrap_or_default();
        let uncounted_recalls: BTreeMap<u64, Seq> = (recalls.into_iter())
            .filter(|(rev, _)| *rev > row.rev)
            .collect();
        let base_now = unread_base(row);
        let less = uncounted_recalls
            .values()
            .filter(|seq| **seq > base_now)
            .count();
        row.unread = row.unread.saturating_sub(less as u64);
        if !uncounted_recalls.is_empty() {
            self.recalls.insert(row.conversation, uncounted_recalls);
        }
        row.rev = row.rev.max(ours.rev);
        let is_open = ours.read_seq > row.read_seq && row.unread > 0;
        row.read_seq = row.read_seq.max(ours.read_seq);
        if unread_base(row) >= row.seq || is_left(row) {
            row.unread = 0;
        }
        let is_early = early.is_some_and(|early| early.read_seq.max(early.cleared_seq) > base);
        let unsure = match (is_early, is_open) {
            (true, _) => Some(Unsure::Now),
            (false, true) => Some(Unsure::OnceRead),
            (false, false) => None,
        };
        (row.clone(), unsure.filter(|_| row.unread > 0))
    }

    /// Counts a shown message.
    fn shown(&mut self, placed_message: &Placed, me: UserId) -> Option<Summary> {
        let conversation = placed_message.conversation;
        let early = self.early.remove(&conversation).unwrap_or_default();
        let row = self.rows.entry(conversation);
        let row = row.or_insert_with(|| Summary {
            read_seq: early.read_seq,
            cleared_seq: early.cleared_seq,
            ..empty(conversation)
        });
        if placed_message.position.seq <= row.seq {
            return shown_behind_signal(row, placed_message, me);
        }
        let is_others = u64::from(placed_message.message.from != me);
        if is_others == 0 && matches!(conversation, ConversationId::Group(_)) {
            let own = self.own.entry(conversation).or_default();
            own.insert(placed_message.position.seq);
            if own.len() > OWN_MAX {
                own.pop_first();
            }
        }
        row.seq = placed_message.position.seq;
        row.incoming += is_others;
        row.unread += u64::from(is_others > 0 && placed_message.position.seq > unread_base(row));
        row.newest = Some(placed_message.clone());
        row.marks = None;
        Some(row.clone())
    }

    /// Moves the row of a large group to the position of a signal. Until the server's row comes, all
    /// messages up to there count as others'.
    pub(super) fn signalled(
        &mut self,
        conversation: ConversationId,
        seq: Seq,
        at: Timestamp,
    ) -> Option<Summary> {
        let row = self.rows.get_mut(&conversation)?;
        if seq <= row.seq {
            return None;
        }
        let unread_from = row.seq.max(unread_base(row));
        row.unread += seq.0.saturating_sub(unread_from.0);
        row.seq = seq;
        row.version = row.version.max(at);
        Some(row.clone())
    }

    /// Applies a change to its row. `is_less`: another user's message was recalled.
    pub(super) fn change(
        &mut self,
        conversation: ConversationId,
        change: &OrderedChange,
        is_less: bool,
    ) -> Option<Summary> {
        let row = self.rows.get_mut(&conversation)?;
        if change.rev <= row.rev {
            // The server's row already counts this change.
            return None;
        }
        row.rev = change.rev;
        let is_unread = change.seq > unread_base(row);
        if is_less {
            let recalls = self.recalls.entry(conversation).or_default();
            recalls.insert(change.rev, change.seq);
        }
        row.unread = row.unread.saturating_sub(u64::from(is_less && is_unread));
        if change.seq == row.seq
            && let Some(newest) = &mut row.newest
        {
            change.asked.change.apply_to(&mut newest.message.content);
            row.marks
                .get_or_insert_with(MessageMarks::default)
                .apply(&change.asked);
        }
        Some(row.clone())
    }

    /// Takes messages up to `seq` from the list. The flag: the server must be asked for the row.
    fn cleared(&mut self, conversation: ConversationId, seq: Seq) -> Option<(Summary, bool)> {
        let Some(row) = self.rows.get_mut(&conversation) else {
            let early = self.early(conversation);
            early.cleared_seq = early.cleared_seq.max(seq);
            return None;
        };
        row.cleared_seq = row.cleared_seq.max(seq);
        let is_all = seq >= row.seq;
        if is_all {
            row.unread = 0;
        }
        Some((row.clone(), !is_all && row.unread > 0))
    }

    pub(super) fn row(&self, conversation: ConversationId) -> Option<Summary> {
        self.rows.get(&conversation).cloned()
    }

    pub(super) fn rows(&self) -> impl Iterator<Item = &Summary> {
        self.rows.values()
    }

    /// Marks messages up to `seq` as read. The flag: only the server knows how many are left.
    fn read(&mut self, conversation: ConversationId, seq: Seq) -> Option<(Summary, bool)> {
        let Some(row) = self.rows.get_mut(&conversation) else {
            let early = self.early(conversation);
            early.read_seq = early.read_seq.max(seq);
            return None;
        };
        if seq <= row.read_seq {
            return None;
        }
        row.read_seq = seq;
        let is_all = seq >= row.seq;
        if is_all {
            row.unread = 0;
        }
        Some((row.clone(), !is_all && row.unread > 0))
    }
}

impl Core {
    pub(super) fn note_listed(&mut self, summary: Summary) {
        let conversation = summary.conversation;
        if let Some((seq, id, progress)) = self.timeline.read_lost(conversation, summary.read_seq) {
            self.acks.read(conversation, seq, id);
            self.store_progress(conversation, progress);
        }
        let was_large = self.list.is_large(conversation);
        let (row, unsure) = self.list.listed(summary);
        if was_large != self.list.is_large(conversation) {
            self.large_groups_changed();
        }
        match unsure {
            Some(Unsure::Now) => self.questions.list_again(),
            Some(Unsure::OnceRead) => _ = self.unsure_unread.insert(conversation),
            None => {}
        }
        self.tell_row(Some(row));
    }

    pub(super) fn note_shown(&mut self, placed_message: &Placed, me: UserId) {
        let row = self.list.shown(placed_message, me);
        self.tell_row(row);
    }

    /// Notes a read, here or on another device of the user. True: the unread count must be
    /// requested, once the server knows of the read.
    pub(super) fn note_read(&mut self, conversation: ConversationId, seq: Seq) -> bool {
        let Some((row, is_open)) = self.list.read(conversation, seq) else {
            return false;
        };
        self.tell_row(Some(row));
        is_open
    }

    /// Takes a change of the user's list, made on whichever device.
    pub(super) fn list_event(&mut self, event: &ListEvent) {
        let seq = match event.kind {
            ListEventKind::Cleared(seq) | ListEventKind::Hidden(seq) => seq,
            ListEventKind::Arranged(_) | ListEventKind::Member(_) => Seq::ZERO,
        };
        (self.outbox).changed(event.send_id, event.id, seq, &mut self.out);
        match event.kind {
            ListEventKind::Hidden(seq) => self.hidden(event.conversation, seq),
            ListEventKind::Cleared(seq) => {
                let Some((row, is_open)) = self.list.cleared(event.conversation, seq) else {
                    return;
                };
                self.tell_row(Some(row));
                if is_open {
                    self.questions.list_again();
                }
            }
            // Events are retried, and an old one may come after a newer one: ask for the current
            // row.
            ListEventKind::Arranged(_) | ListEventKind::Member(_) => {
                self.row_moved(event.conversation);
            }
        }
    }

    pub(super) fn tell_row(&mut self, row: Option<Summary>) {
        let Some(row) = row else {
            return;
        };
        if self.settings.acks {
            self.out
                .change(super::Change::Listed(Box::new(row.clone())));
        }
        let row = self.veiled_row(row);
        self.out.push(Action::Listed(Box::new(row)));
    }

    /// Conversation list as the application gets it.
    pub fn list(&self) -> impl Iterator<Item = Summary> {
        self.list.rows().cloned().map(|row| self.veiled_row(row))
    }
}

/// Position of the newest message that the row shows.
fn newest_seq(row: &Summary) -> Seq {
    let newest = row.newest.as_ref();
    newest.map_or(Seq::ZERO, |newest| newest.position.seq)
}

/// Takes a message that a signal announced before it came.
fn shown_behind_signal(row: &mut Summary, placed_message: &Placed, me: UserId) -> Option<Summary> {
    let seq = placed_message.position.seq;
    if !row.is_large || seq <= newest_seq(row) {
        return None;
    }
    let is_counted = placed_message.message.from == me && seq > unread_base(row);
    row.unread = row.unread.saturating_sub(u64::from(is_counted));
    row.newest = Some(placed_message.clone());
    row.marks = None;
    Some(row.clone())
}

/// True for a group that the user is not in.
pub(super) fn is_left(row: &Summary) -> bool {
    matches!(row.conversation, ConversationId::Group(_)) && row.role.is_none()
}

/// Position behind which messages may be unread.
pub(super) fn unread_base(row: &Summary) -> Seq {
    row.read_seq.max(row.cleared_seq)
}

fn empty(conversation: ConversationId) -> Summary {
    Summary {
        conversation,
        seq: Seq::ZERO,
        incoming: 0,
        rev: 0,
        read_seq: Seq::ZERO,
        cleared_seq: Seq::ZERO,
        arranged: ListArrangement::default(),
        hidden: 0,
        role: None,
        is_large: false,
        unread: 0,
        version: Timestamp::ZERO,
        newest: None,
        marks: None,
    }
}
