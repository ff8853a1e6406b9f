//! Changes of messages: each shown once, in its order, and after the message it changes.
//!
//! Changes are dense by *rev*, as messages are by seq. The next one is shown; if one is missing, it
//! and those behind it are requested. A change of a message not yet shown waits for it.

use std::collections::BTreeMap;

use protocol::change::{MessageChange, OrderedChange};
use protocol::frame::{ChangePage, Summary, SyncQuery};
use protocol::{ConversationId, Refusal, Seq, Timestamp};

use super::list::unread_base;
use super::queries::Query;
use super::timeline::ShownKind;
use super::{Core, Event};

/// Changes held per conversation; further ones are requested again.
const HELD_MAX: usize = 256;

/// Cursors over the changes of one conversation.
#[derive(Debug, Default)]
pub(super) struct ChangeCursors {
    /// Last change handed to the application.
    pub(super) last_shown: u64,
    /// Last change the server has.
    last_known: u64,
    held_changes: BTreeMap<u64, OrderedChange>,
    is_querying: bool,
    /// The server seems to have fewer changes than were shown, so the core must ask.
    suspect: bool,
}

impl ChangeCursors {
    pub(super) fn new(stored_rev: u64) -> ChangeCursors {
        ChangeCursors {
            last_shown: stored_rev,
            last_known: stored_rev,
            ..ChangeCursors::default()
        }
    }

    /// Cursors at the stored change `stored_rev`, with the server at `server_rev`.
    pub(super) fn behind(stored_rev: u64, server_rev: u64) -> ChangeCursors {
        ChangeCursors {
            last_known: stored_rev.max(server_rev),
            ..ChangeCursors::new(stored_rev)
        }
    }

    /// Whether changes must be requested: the next one is not held, or the server may have lost
    /// some.
    pub(super) fn are_missing(&self) -> bool {
        let is_next_missing = self.last_shown < self.last_known
            && !self.held_changes.contains_key(&(self.last_shown + 1));
        !self.is_querying && (self.suspect || is_next_missing)
    }

    pub(super) fn disconnected(&mut self) {
        self.is_querying = false;
        self.suspect = false;
    }

    /// Notes the last change that the server has.
    pub(super) fn know(&mut self, rev: u64) {
        self.last_known = self.last_known.max(rev);
    }

    /// Number of changes from the last one shown to the first one held, or the last one known.
    pub(super) fn missing_count(&self) -> u64 {
        let next_held = self.held_changes.first_key_value();
        let end = next_held.map_or(self.last_known, |(rev, _)| rev - 1);
        end.saturating_sub(self.last_shown)
    }

    /// Leaves out the missing changes.
    pub(super) fn skip(&mut self) {
        self.last_shown += self.missing_count();
    }

    fn hold_change(&mut self, change: OrderedChange) {
        self.last_known = self.last_known.max(change.rev);
        let is_next = change.rev == self.last_shown + 1;
        if change.rev > self.last_shown && (is_next || self.held_changes.len() < HELD_MAX) {
            self.held_changes.insert(change.rev, change);
        }
    }

    /// Takes the next change, if its message is shown.
    fn take_next(&mut self, shown_seq: Seq) -> Option<OrderedChange> {
        let next = self.held_changes.first_entry()?;
        if *next.key() != self.last_shown + 1 || next.get().seq > shown_seq {
            return None;
        }
        self.last_shown += 1;
        Some(next.remove())
    }
}

impl Core {
    /// Compares the last change in the list with ours. `fresh_to`: this device never had the
    /// conversation, and messages fetched from now on, up to there, already carry these changes.
    pub(super) fn compare_changes(
        &mut self,
        conversation: ConversationId,
        rev: u64,
        fresh_to: Option<Seq>,
    ) {
        let track = self.track(conversation);
        let revs = &mut track.revs;
        if let Some(seq) = fresh_to
            && rev > 0
            && revs.last_shown == 0
            && revs.held_changes.is_empty()
        {
            *revs = ChangeCursors::new(rev);
            track.progress.rev = rev;
            track.fresh_to = seq;
        }
        let revs = &mut track.revs;
        revs.last_known = revs.last_known.max(rev);
        revs.suspect |= rev < revs.last_shown;
        self.look_for_changes(conversation);
    }

    /// Takes a change that the server pushed.
    pub(super) fn changed(&mut self, conversation: ConversationId, change: OrderedChange) {
        self.track(conversation).revs.hold_change(change);
        self.show_changes(conversation);
    }

    pub(super) fn ask_for_changes(
        &mut self,
        conversation: ConversationId,
        limit: u32,
        deadline: Timestamp,
    ) {
        let Some(track) = self.timeline.track_mut(conversation) else {
            return;
        };
        if !track.wants_changes() {
            return;
        }
        track.pulls_changes = false;
        track.revs.is_querying = true;
        track.revs.suspect = false;
        let after_rev = track.revs.last_shown;
        let question = Query::Changes {
            conversation,
            after: after_rev,
        };
        let query = SyncQuery::Changes {
            conversation,
            after: after_rev,
            limit,
        };
        self.questions.ask(question, query, deadline, &mut self.out);
    }

    pub(super) fn changes_fetched(
        &mut self,
        conversation: ConversationId,
        page: ChangePage,
        now: Timestamp,
    ) {
        let revs = &mut self.track(conversation).revs;
        revs.is_querying = false;
        revs.last_known = revs.last_known.max(page.last_rev);
        if page.changes.is_empty() && revs.are_missing() {
            // The server does not have yet, or no longer has, changes that it announced.
            return self.look_again(conversation, now);
        }
        page.changes
            .into_iter()
            .for_each(|change| revs.hold_change(change));
        self.show_changes(conversation);
    }

    /// Falls back to the list's last change: the server has fewer than were shown, so it lost some
    /// and goes on from those it has.
    pub(super) fn changes_behind(&mut self, conversation: ConversationId) {
        let listed_rev = self.list.rev(conversation);
        let track = self.track(conversation);
        // A row from before the server's loss may name changes that are still to come again.
        let rev = listed_rev.min(track.revs.last_shown);
        track.revs = ChangeCursors::new(rev);
        track.progress.rev = rev;
        let progress = track.progress;
        self.store_progress(conversation, progress);
    }

    pub(super) fn changes_not_fetched(
        &mut self,
        conversation: ConversationId,
        refusal: &Refusal,
        now: Timestamp,
    ) {
        let revs = &mut self.track(conversation).revs;
        revs.is_querying = false;
        if refusal.code.retryable() {
            self.look_again(conversation, now)
        } else {
            revs.last_known = revs.last_shown
        }
    }

    /// Shows the next changes in order, as far as their messages are shown.
    pub(super) fn show_changes(&mut self, conversation: ConversationId) {
        let untaken_max = self.settings.limits.untaken_max;
        loop {
            let has_room = self.timeline.room(untaken_max) > 0;
            let Some(track) = self.timeline.track_mut(conversation) else {
                return;
            };
            if !track.may_show() {
                return;
            }
            if !has_room {
                self.timeline.stall(conversation);
                return;
            }
            let shown_seq = track.shown_cursor.seq;
            let Some(mut change) = track.revs.take_next(shown_seq) else {
                break;
            };
            let request = &change.asked;
            (self.outbox).changed(request.send_id, request.id, change.seq, &mut self.out);
            self.note_changed(conversation, &change);
            let number = self.timeline.next_number();
            let rev = change.rev;
            self.hide_edit(conversation, &mut change);
            self.timeline
                .untaken(conversation, ShownKind::Change { rev });
            self.out.emit_event(Event::Changed {
                number,
                conversation,
                change,
            });
        }
        self.look_for_changes(conversation);
    }

    fn look_for_changes(&mut self, conversation: ConversationId) {
        let is_missing = |track: &super::timeline::Track| !track.waits && track.wants_changes();
        if self
            .timeline
            .track_mut(conversation)
            .is_some_and(|track| is_missing(track))
        {
            self.questions.look_at(conversation);
        }
    }

    /// Applies a change to the conversation's row in the list.
    fn note_changed(&mut self, conversation: ConversationId, change: &OrderedChange) {
        let me = self.account.map(|account| account.user);
        let is_recall = change.asked.change == MessageChange::Recall;
        let is_others = Some(change.asked.by) != me;
        let is_group = matches!(conversation, ConversationId::Group(_));
        let row = self
            .list
            .change(conversation, change, is_recall && is_others && !is_group);
        // An administrator may recall another member's message: only the server knows whether it
        // counted as unread.
        let may_count = |row: &Summary| row.unread > 0 && change.seq > unread_base(row);
        if is_group && is_recall && row.as_ref().is_some_and(may_count) {
            self.row_moved(conversation);
        }
        self.tell_row(row);
    }
}
