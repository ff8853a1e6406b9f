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
    told: u64,
    asked: Option<HiddenQuery>,
}

/// Query under way.
#[derive(Clone, Copy, Debug)]
struct HiddenQuery {
    after: u64,
    /// Number of the last hiding when the query was sent; the answer may lack later ones.
    known: u64,
}

impl HiddenMessages {
    pub(super) fn new(seqs: BTreeSet<Seq>, told: u64) -> HiddenMessages {
        HiddenMessages {
            seqs,
            told,
            asked: None,
        }
    }

    pub(super) fn disconnected(&mut self) {
        self.asked = None;
    }

    fn has(&self, seq: Seq) -> bool {
        self.seqs.contains(&seq)
    }
}

impl Track {
    /// True if the server has hidings that the application was not handed yet.
    pub(super) fn is_missing_hidden(&self) -> bool {
        self.hidden.told < self.kept.hidden_known
    }
}

impl Core {
    /// Compares the number of the last hiding in the list with ours.
    pub(super) fn compare_hidden(&mut self, conversation: ConversationId, known: u64) {
        let track = self.track(conversation);
        if known < track.hidden.told {
            // The server lost some, or an answer that was further ahead came first: requesting all
            // again does no harm.
            track.hidden.told = 0;
            track.hidden.asked = None;
            track.kept.hidden = 0;
        } else if known <= track.kept.hidden_known {
            return;
        }
        track.kept.hidden_known = known;
        let kept = track.kept;
        self.keep(conversation, kept);
        self.questions.look_at(conversation);
    }

    pub(super) fn ask_for_hidden(
        &mut self,
        conversation: ConversationId,
        limit: u32,
        until: Timestamp,
    ) {
        let Some(track) = self.timeline.track_mut(conversation) else {
            return;
        };
        if track.hidden.asked.is_some() || !track.is_missing_hidden() {
            return;
        }
        let (after, known) = (track.hidden.told, track.kept.hidden_known);
        track.hidden.asked = Some(HiddenQuery { after, known });
        let query = SyncQuery::Hidden {
            conversation,
            after,
            limit,
        };
        let question = Query::Hidden {
            conversation,
            after,
        };
        self.questions.ask(question, query, until, &mut self.out);
    }

    pub(super) fn hidden_fetched(
        &mut self,
        conversation: ConversationId,
        after: u64,
        page: HiddenPage,
        now: Timestamp,
    ) {
        let hidden = &mut self.track(conversation).hidden;
        let Some(asked) = hidden.asked.take_if(|asked| asked.after == after) else {
            // Superseded: the hidings are requested anew.
            return;
        };
        let before = hidden.told;
        hidden.told = hidden.told.max(page.last);
        if !page.more {
            // The page is the last one, whatever the list said.
            hidden.told = hidden.told.max(asked.known);
        }
        let told = hidden.told;
        let track = self.track(conversation);
        match (track.is_missing_hidden(), told > before) {
            (true, false) => return self.look_again(conversation, now),
            (true, true) => self.questions.look_at(conversation),
            (false, _) => track.failures = 0,
        }
        self.hide(conversation, page.seqs, Some(told));
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
        track.hidden.asked = None;
        if refusal.code.retryable() {
            self.look_again(conversation, now);
        } else {
            track.hidden.told = track.kept.hidden_known;
            self.show_the_rest(conversation);
        }
    }

    /// Drops hidings behind the conversation's new end: those messages are gone, and others will
    /// take their positions.
    pub(super) fn hidden_behind(&mut self, conversation: ConversationId, end: Seq) {
        let track = self.track(conversation);
        let gone = track.hidden.seqs.split_off(&end.next());
        track.hidden = HiddenMessages::new(std::mem::take(&mut track.hidden.seqs), 0);
        (track.kept.hidden, track.kept.hidden_known) = (0, 0);
        if !gone.is_empty() && self.settings.acks {
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
        let hidden = &mut self.track(conversation).hidden;
        seqs.retain(|seq| hidden.seqs.insert(*seq));
        let what = ShownKind::Hidden {
            seqs: seqs.clone(),
            to,
        };
        if seqs.is_empty() {
            self.timeline.untaken(conversation, what);
            self.taken(0);
            return;
        }
        let number = self.timeline.next_number();
        self.timeline.untaken(conversation, what);
        self.out.tell(Event::Hidden {
            number,
            conversation,
            seqs,
        });
    }

    fn is_hidden(&self, conversation: ConversationId, seq: Seq) -> bool {
        let track = self.timeline.get(conversation);
        track.is_some_and(|track| track.hidden.has(seq))
    }

    /// Empties the content of a message that is hidden.
    pub(super) fn veil(&self, placed: &mut Placed, marks: &mut Option<MessageMarks>) {
        if self.is_hidden(placed.conversation, placed.position.seq) {
            let content = &mut placed.message.content;
            *content = content.emptied();
            marks.get_or_insert_with(MessageMarks::default).hidden = true;
        }
    }

    /// Empties the hidden messages of a page.
    pub(super) fn veil_page(&self, (messages, mut marks): PageMut<'_>) {
        for placed in messages {
            let seq = placed.position.seq;
            let mut of_it = marks.as_mut().and_then(|marks| marks.remove(&seq));
            self.veil(placed, &mut of_it);
            if let Some(marks) = &mut marks {
                marks.extend(of_it.map(|of_it| (seq, of_it)));
            }
        }
    }

    /// Row with its newest message emptied if that is hidden, or may be.
    pub(super) fn veiled_row(&self, mut row: Summary) -> Summary {
        if let Some(newest) = &mut row.newest {
            self.veil(newest, &mut row.marks);
            let track = self.timeline.get(row.conversation);
            if track.is_some_and(Track::is_missing_hidden) {
                newest.message.content = newest.message.content.emptied();
            }
        }
        row
    }

    /// Empties an edit of a hidden message.
    pub(super) fn veil_change(&self, conversation: ConversationId, changed: &mut OrderedChange) {
        if let MessageChange::Edit(content) = &mut changed.asked.change
            && self.is_hidden(conversation, changed.seq)
        {
            *content = content.emptied();
        }
    }
}
