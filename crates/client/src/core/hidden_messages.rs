//! Messages that the user hid, on whichever device: the application gets only their positions.
//!
//! The server keeps hidden messages in the order of hiding, and the list says how far they go. A
//! device shows nothing more of a conversation until it knows all up to there. Messages it got
//! before it learns of the hiding, from a mailbox or loaded by its application, are shown first and
//! taken back then.

use std::collections::BTreeSet;

use protocol::change::{MessageChange, MessageMarks, OrderedChange};
use protocol::frame::{HiddenPage, PageMut, Summary, SyncQuery};
use protocol::{ConversationId, Placed, Refusal, Seq, Timestamp};

use super::queries::Query;
use super::snapshot::Change as SavedChange;
use super::timeline::{ShownKind, Track};
use super::{Core, Event};

/// Hidden messages of one conversation.
#[derive(Debug, Default)]
pub(super) struct HiddenMessages {
    seqs: BTreeSet<Seq>,
    /// Number of the last hiding handed to the application.
    last_delivered: u64,
    open_query: Option<HiddenQuery>,
}

/// Query under way.
#[derive(Clone, Copy, Debug)]
struct HiddenQuery {
    start: u64,
    /// Number of the last hiding when the query was sent; the answer may lack later ones.
    server_number: u64,
}

impl HiddenMessages {
    pub(super) fn new(seqs: BTreeSet<Seq>, last_delivered: u64) -> HiddenMessages {
        HiddenMessages {
            seqs,
            last_delivered,
            open_query: None,
        }
    }

    pub(super) fn disconnected(&mut self) {
        self.open_query = None;
    }

    fn has(&self, seq: Seq) -> bool {
        self.seqs.contains(&seq)
    }
}

impl Track {
    /// Whether the server has hidings that the application was not handed yet.
    pub(super) fn is_missing_hidden(&self) -> bool {
        self.hidden_messages.last_delivered < self.progress.hidden_known
    }
}

impl Core {
    /// Compares the number of the last hiding in the list with ours.
    pub(super) fn compare_hidden(&mut self, conversation: ConversationId, server_number: u64) {
        let track = self.track(conversation);
        if server_number < track.hidden_messages.last_delivered {
            // The server lost some, or an answer that was further ahead came first: requesting all
            // again does no harm.
            track.hidden_messages.last_delivered = 0;
            track.hidden_messages.open_query = None;
            track.progress.hide_number = 0;
        } else if server_number <= track.progress.hidden_known {
            return;
        }
        track.progress.hidden_known = server_number;
        let progress = track.progress;
        self.store_progress(conversation, progress);
        self.questions.look_at(conversation);
    }

    pub(super) fn ask_for_hidden(
        &mut self,
        conversation: ConversationId,
        limit: u32,
        deadline: Timestamp,
    ) {
        let Some(track) = self.timeline.track_mut(conversation) else {
            return;
        };
        if track.hidden_messages.open_query.is_some() || !track.is_missing_hidden() {
            return;
        }
        let (start, server_number) = (
            track.hidden_messages.last_delivered,
            track.progress.hidden_known,
        );
        track.hidden_messages.open_query = Some(HiddenQuery {
            start,
            server_number,
        });
        let query = SyncQuery::Hidden {
            conversation,
            after: start,
            limit,
        };
        let question = Query::Hidden {
            conversation,
            after: start,
        };
        self.questions.ask(question, query, deadline, &mut self.out);
    }

    pub(super) fn hidden_fetched(
        &mut self,
        conversation: ConversationId,
        start: u64,
        page: HiddenPage,
        now: Timestamp,
    ) {
        let hidden_messages = &mut self.track(conversation).hidden_messages;
        let Some(query) = hidden_messages
            .open_query
            .take_if(|query| query.start == start)
        else {
            // Superseded: the hidings are requested anew.
            return;
        };
        let previous = hidden_messages.last_delivered;
        hidden_messages.last_delivered = hidden_messages.last_delivered.max(page.last);
        if !page.more {
            // The page is the last one, whatever the list said.
            hidden_messages.last_delivered =
                hidden_messages.last_delivered.max(query.server_number);
        }
        let last_delivered = hidden_messages.last_delivered;
        let track = self.track(conversation);
        match (track.is_missing_hidden(), last_delivered > previous) {
            (true, false) => return self.look_again(conversation, now),
            (true, true) => self.questions.look_at(conversation),
            (false, _) => track.failures = 0,
        }
        self.hide(conversation, page.seqs, Some(last_delivered));
        self.show_the_rest(conversation);
    }

    /// Shows the row and messages that waited until all hidings were known.
    fn show_the_rest(&mut self, conversation: ConversationId) {
        if !self.track(conversation).is_missing_hidden() {
            let row = self.list.row(conversation);
            self.tell_row(row);
        }
        self.show_held(conversation);
        self.fetch_if_missing(conversation);
    }

    pub(super) fn hidden_not_fetched(
        &mut self,
        conversation: ConversationId,
        refusal: &Refusal,
        now: Timestamp,
    ) {
        let track = self.track(conversation);
        track.hidden_messages.open_query = None;
        if refusal.code.retryable() {
            self.look_again(conversation, now);
        } else {
            track.hidden_messages.last_delivered = track.progress.hidden_known;
            self.show_the_rest(conversation);
        }
    }

    /// Drops hidings behind the conversation's new end: those messages are gone, and others will
    /// take their positions.
    pub(super) fn hidden_behind(&mut self, conversation: ConversationId, end: Seq) {
        let track = self.track(conversation);
        let removed_seqs = track.hidden_messages.seqs.split_off(&end.next());
        track.hidden_messages =
            HiddenMessages::new(std::mem::take(&mut track.hidden_messages.seqs), 0);
        (track.progress.hide_number, track.progress.hidden_known) = (0, 0);
        if !removed_seqs.is_empty() && self.settings.acks {
            self.out.change(SavedChange::HiddenUpTo(conversation, end));
        }
    }

    /// Takes a hiding that the server pushed.
    pub(super) fn hidden(&mut self, conversation: ConversationId, seq: Seq) {
        match self.timeline.room(self.settings.limits.untaken_max) {
            // No room: the hiding is fetched once the application has taken some items.
            0 => self.questions.list_again(),
            _ => {
                self.hide(conversation, vec![seq], None);
                let row = self.list.row(conversation);
                self.tell_row(row.filter(|row| row.seq == seq));
            }
        }
    }

    /// Hides these messages; `to` is the number of the last hiding they complete.
    fn hide(&mut self, conversation: ConversationId, mut seqs: Vec<Seq>, to: Option<u64>) {
        let hidden_messages = &mut self.track(conversation).hidden_messages;
        seqs.retain(|seq| hidden_messages.seqs.insert(*seq));
        let kind = ShownKind::Hidden {
            seqs: seqs.clone(),
            to,
        };
        if seqs.is_empty() {
            self.timeline.untaken(conversation, kind);
            self.mark_taken(0);
            return;
        }
        let number = self.timeline.next_number();
        self.timeline.untaken(conversation, kind);
        self.out.emit_event(Event::Hidden {
            number,
            conversation,
            seqs,
        });
    }

    fn is_hidden(&self, conversation: ConversationId, seq: Seq) -> bool {
        let track = self.timeline.get(conversation);
        track.is_some_and(|track| track.hidden_messages.has(seq))
    }

    /// Empties the content of a message that is hidden.
    pub(super) fn hide_content(
        &self,
        placed_message: &mut Placed,
        marks: &mut Option<MessageMarks>,
    ) {
        if self.is_hidden(placed_message.conversation, placed_message.position.seq) {
            let content = &mut placed_message.message.content;
            *content = content.emptied();
            marks.get_or_insert_with(MessageMarks::default).hidden = true;
        }
    }

    /// Empties the hidden messages of a page.
    pub(super) fn veil_page(&self, (messages, mut marks): PageMut<'_>) {
        for placed_message in messages {
            let seq = placed_message.position.seq;
            let mut of_it = marks.as_mut().and_then(|marks| marks.remove(&seq));
            self.hide_content(placed_message, &mut of_it);
            if let Some(marks) = &mut marks {
                marks.extend(of_it.map(|of_it| (seq, of_it)));
            }
        }
    }

    /// Row with its newest message emptied if that is hidden, or may be.
    pub(super) fn veiled_row(&self, mut row: Summary) -> Summary {
        if let Some(newest) = &mut row.newest {
            self.hide_content(newest, &mut row.marks);
            let track = self.timeline.get(row.conversation);
            if track.is_some_and(Track::is_missing_hidden) {
                newest.message.content = newest.message.content.emptied();
            }
        }
        row
    }

    /// Empties an edit of a hidden message.
    pub(super) fn hide_edit(&self, conversation: ConversationId, change: &mut OrderedChange) {
        if let MessageChange::Edit(content) = &mut change.asked.change
            && self.is_hidden(conversation, change.seq)
        {
            *content = content.emptied();
        }
    }
}
