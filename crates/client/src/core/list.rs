//! The conversation list as this device knows it: what the server said last, and what came since.

use std::collections::{BTreeMap, BTreeSet};

use protocol::change::{Arranged, Change, Changed, Marks};
use protocol::frame::{ListDeed, ListWord, Summary};
use protocol::{ConversationId, Placed, Seq, Timestamp, UserId};

use super::{Action, Core};

/// The rows, also of conversations that were taken from the list: they come back with their next message.
#[derive(Debug, Default)]
pub(super) struct List {
    rows: BTreeMap<ConversationId, Summary>,
    /// Recalls of others' messages, by rev, that the server's last word may not have counted.
    recalled: BTreeMap<ConversationId, BTreeMap<u64, Seq>>,
    /// Own messages in groups that came after the server's last word: it does not say how many are others'.
    own: BTreeMap<ConversationId, BTreeSet<Seq>>,
}

/// Own messages of one group that are remembered until the server's next word; beyond, the first are forgotten and,
/// where that word is older than they are, counted as others' until the one after it.
const OWN_MAX: usize = 4096;

impl List {
    pub(super) fn new(rows: BTreeMap<ConversationId, Summary>) -> List {
        List {
            rows,
            recalled: BTreeMap::new(),
            own: BTreeMap::new(),
        }
    }

    /// The server's list had it.
    pub(super) fn is_named(&self, conversation: ConversationId) -> bool {
        let row = self.rows.get(&conversation);
        row.is_some_and(|row| row.version > Timestamp::ZERO)
    }

    pub(super) fn rev(&self, conversation: ConversationId) -> u64 {
        self.rows.get(&conversation).map_or(0, |row| row.rev)
    }

    /// The server's word. Messages that came after it was said are counted on. The second: the server does not know
    /// yet how far we have read, and must be asked again.
    fn listed(&mut self, summary: Summary) -> (Summary, bool) {
        let row = self.rows.entry(summary.conversation);
        let row = row.or_insert_with(|| summary.clone());
        let later = match summary.conversation {
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
            row.unread += later;
            (row.seq, row.incoming) = (ours.seq, ours.incoming);
        }
        if is_ahead || is_newer {
            (row.newest, row.marks) = (ours.newest, ours.marks);
        }
        row.cleared_seq = row.cleared_seq.max(ours.cleared_seq);
        let recalled = self.recalled.remove(&row.conversation).unwrap_or_default();
        let uncounted: BTreeMap<u64, Seq> = (recalled.into_iter())
            .filter(|(rev, _)| *rev > row.rev)
            .collect();
        let base = base_of(row);
        let less = uncounted.values().filter(|seq| **seq > base).count();
        row.unread = row.unread.saturating_sub(less as u64);
        if !uncounted.is_empty() {
            self.recalled.insert(row.conversation, uncounted);
        }
        row.rev = row.rev.max(ours.rev);
        let is_open = ours.read_seq > row.read_seq && row.unread > 0;
        row.read_seq = row.read_seq.max(ours.read_seq);
        if base_of(row) >= row.seq || is_left(row) {
            row.unread = 0;
        }
        (row.clone(), is_open && row.unread > 0)
    }

    /// A message was shown.
    fn shown(&mut self, placed: &Placed, me: UserId) -> Option<Summary> {
        let conversation = placed.conversation;
        let row = self
            .rows
            .entry(conversation)
            .or_insert_with(|| empty(conversation));
        if placed.position.seq <= row.seq {
            return None;
        }
        let is_others = u64::from(placed.message.from != me);
        if is_others == 0 && matches!(conversation, ConversationId::Group(_)) {
            let own = self.own.entry(conversation).or_default();
            own.insert(placed.position.seq);
            if own.len() > OWN_MAX {
                own.pop_first();
            }
        }
        row.seq = placed.position.seq;
        row.incoming += is_others;
        row.unread += is_others;
        row.newest = Some(placed.clone());
        row.marks = None;
        Some(row.clone())
    }

    /// `is_less`: a message of somebody else was recalled.
    pub(super) fn change(
        &mut self,
        conversation: ConversationId,
        changed: &Changed,
        is_less: bool,
    ) -> Option<Summary> {
        let row = self.rows.get_mut(&conversation)?;
        if changed.rev <= row.rev {
            // What the server counted, it counted with this.
            return None;
        }
        row.rev = changed.rev;
        let is_unread = changed.seq > base_of(row);
        if is_less {
            let recalled = self.recalled.entry(conversation).or_default();
            recalled.insert(changed.rev, changed.seq);
        }
        row.unread = row.unread.saturating_sub(u64::from(is_less && is_unread));
        if changed.seq == row.seq
            && let Some(newest) = &mut row.newest
        {
            let content = &mut newest.message.content;
            match &changed.asked.change {
                Change::Recall => *content = content.emptied(),
                Change::Edit(edited) => *content = edited.clone(),
                Change::React { .. } => {}
            }
            row.marks
                .get_or_insert_with(Marks::default)
                .apply(&changed.asked);
        }
        Some(row.clone())
    }

    /// Taken from the list. The second: the server is to be asked how it stands.
    fn cleared(&mut self, conversation: ConversationId, seq: Seq) -> Option<(Summary, bool)> {
        let row = self.rows.get_mut(&conversation)?;
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

    /// Read up to here. The second: how many are left is for the server to say.
    fn read(&mut self, conversation: ConversationId, seq: Seq) -> Option<(Summary, bool)> {
        let row = self.rows.get_mut(&conversation)?;
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
        if let Some((seq, id, kept)) = self.timeline.read_lost(conversation, summary.read_seq) {
            self.acks.read(conversation, seq, id);
            self.keep(conversation, kept);
        }
        let (row, is_open) = self.list.listed(summary);
        if is_open {
            self.unsure_unread.insert(conversation);
        }
        self.tell_row(Some(row));
    }

    pub(super) fn note_shown(&mut self, placed: &Placed, me: UserId) {
        let row = self.list.shown(placed, me);
        self.tell_row(row);
    }

    /// Here, or on another device of the same user. What is left is asked for once the server knows: answers whether
    /// it must be.
    pub(super) fn note_read(&mut self, conversation: ConversationId, seq: Seq) -> bool {
        let Some((row, is_open)) = self.list.read(conversation, seq) else {
            return false;
        };
        self.tell_row(Some(row));
        is_open
    }

    /// The user's list was changed, on whichever device.
    pub(super) fn list_word(&mut self, word: &ListWord) {
        let seq = match word.deed {
            ListDeed::Cleared(seq) | ListDeed::Hidden(seq) => seq,
            ListDeed::Arranged(_) | ListDeed::Member(_) => Seq::ZERO,
        };
        (self.outbox).changed(word.send_id, word.id, seq, &mut self.out);
        match word.deed {
            ListDeed::Hidden(seq) => self.hidden(word.conversation, seq),
            ListDeed::Cleared(seq) => {
                let Some((row, is_open)) = self.list.cleared(word.conversation, seq) else {
                    return;
                };
                self.tell_row(Some(row));
                if is_open {
                    self.questions.list_again();
                }
            }
            // Words are tried again, and an old one may come behind a newer one: how it stands now is asked.
            ListDeed::Arranged(_) | ListDeed::Member(_) => {
                self.row_moved(word.conversation);
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

    /// The conversation list as the application gets it.
    pub fn list(&self) -> impl Iterator<Item = Summary> {
        self.list.rows().cloned().map(|row| self.veiled_row(row))
    }
}

/// A group that the user is not in.
pub(super) fn is_left(row: &Summary) -> bool {
    matches!(row.conversation, ConversationId::Group(_)) && row.role.is_none()
}

/// What lies behind this may be unread.
pub(super) fn base_of(row: &Summary) -> Seq {
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
        arranged: Arranged::default(),
        hidden: 0,
        role: None,
        unread: 0,
        version: Timestamp::ZERO,
        newest: None,
        marks: None,
    }
}
