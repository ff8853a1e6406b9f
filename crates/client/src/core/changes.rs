//! Changes of messages: each shown once, in its order, and after the message it changes.
//!
//! Changes are dense by *rev*, as messages are by seq. The next one is shown; if one is missing, it
//! and those behind it are requested. A change of a message not yet shown waits for it.

use std::collections::BTreeMap;

use protocol::change::{MessageChange, OrderedChange};
use protocol::frame::{ChangePage, Summary, SyncQuery};
use protocol::{ConversationId, Refusal, Seq, Timestamp};

use super::list::base_of;
use super::queries::Query;
use super::timeline::ShownKind;
use super::{Core, Event};

/// Changes held per conversation; further ones are requested again.
const HELD_MAX: usize = 256;

/// Cursors over the changes of one conversation.
#[derive(Debug, Default)]
pub(super) struct ChangeCursors {
    /// Last change handed to the application.
    pub(super) shown: u64,
    /// Last change the server has.
    known: u64,
    held: BTreeMap<u64, OrderedChange>,
    asked: bool,
    /// The server seems to have fewer changes than were shown, so the core must ask.
    suspect: bool,
}

impl ChangeCursors {
    pub(super) fn new(kept: u64) -> ChangeCursors {
        ChangeCursors {
            shown: kept,
            known: kept,
            ..ChangeCursors::default()
        }
    }

    /// Cursors at the stored change `kept`, with the server at `known`.
    pub(super) fn behind(kept: u64, known: u64) -> ChangeCursors {
        ChangeCursors {
            known: kept.max(known),
            ..ChangeCursors::new(kept)
        }
    }

    /// True if changes must be requested: the next one is not held, or the server may have lost
    /// some.
    pub(super) fn are_missing(&self) -> bool {
        let is_next_missing = self.shown < self.known && !self.held.contains_key(&(self.shown + 1));
        !self.asked && (self.suspect || is_next_missing)
    }

    pub(super) fn disconnected(&mut self) {
        self.asked = false;
        self.suspect = false;
    }

    fn hold(&mut self, changed: OrderedChange) {
        self.known = self.known.max(changed.rev);
        let is_next = changed.rev == self.shown + 1;
        if changed.rev > self.shown && (is_next || self.held.len() < HELD_MAX) {
            self.held.insert(changed.rev, changed);
        }
    }

    /// Takes the next change, if its message is shown.
    fn take_next(&mut self, shown: Seq) -> Option<OrderedChange> {
        let next = self.held.first_entry()?;
        if *next.key() != self.shown + 1 || next.get().seq > shown {
            return None;
        }
        self.shown += 1;
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
            && revs.shown == 0
            && revs.held.is_empty()
        {
            *revs = ChangeCursors::new(rev);
            track.kept.rev = rev;
            track.fresh_to = seq;
        }
        let revs = &mut track.revs;
        revs.known = revs.known.max(rev);
        revs.suspect |= rev < revs.shown;
        self.look_for_changes(conversation);
    }

    /// Takes a change that the server pushed.
    pub(super) fn changed(&mut self, conversation: ConversationId, changed: OrderedChange) {
        self.track(conversation).revs.hold(changed);
        self.show_changes(conversation);
    }

    pub(super) fn ask_for_changes(
        &mut self,
        conversation: ConversationId,
        limit: u32,
        until: Timestamp,
    ) {
        let Some(track) = self.timeline.track_mut(conversation) else {
            return;
        };
        if !track.revs.are_missing() {
            return;
        }
        track.revs.asked = true;
        track.revs.suspect = false;
        let after = track.revs.shown;
        let question = Query::Changes {
            conversation,
            after,
        };
        let query = SyncQuery::Changes {
            conversation,
            after,
            limit,
        };
        self.questions.ask(question, query, until, &mut self.out);
    }

    pub(super) fn changes_fetched(
        &mut self,
        conversation: ConversationId,
        page: ChangePage,
        now: Timestamp,
    ) {
        let revs = &mut self.track(conversation).revs;
        revs.asked = false;
        revs.known = revs.known.max(page.last_rev);
        if page.changes.is_empty() && revs.are_missing() {
            // The server does not have yet, or no longer has, changes that it announced.
            return self.look_again(conversation, now);
        }
        page.changes
            .into_iter()
            .for_each(|changed| revs.hold(changed));
        self.show_changes(conversation);
    }

    /// Falls back to the list's last change: the server has fewer than were shown, so it lost some
    /// and goes on from those it has.
    pub(super) fn changes_behind(&mut self, conversation: ConversationId) {
        let listed = self.list.rev(conversation);
        let track = self.track(conversation);
        // A row from before the server's loss may name changes that are still to come again.
        let rev = listed.min(track.revs.shown);
        track.revs = ChangeCursors::new(rev);
        track.kept.rev = rev;
        let kept = track.kept;
        self.keep(conversation, kept);
    }

    pub(super) fn changes_not_fetched(
        &mut self,
        conversation: ConversationId,
        refusal: &Refusal,
        now: Timestamp,
    ) {
        let revs = &mut self.track(conversation).revs;
        revs.asked = false;
        match refusal.code.retryable() {
            true => self.look_again(conversation, now),
            false => revs.known = revs.shown,
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
            let shown = track.shown.seq;
            let Some(mut changed) = track.revs.take_next(shown) else {
                break;
            };
            let asked = &changed.asked;
            (self.outbox).changed(asked.send_id, asked.id, changed.seq, &mut self.out);
            self.note_changed(conversation, &changed);
            let number = self.timeline.next_number();
            let rev = changed.rev;
            self.veil_change(conversation, &mut changed);
            self.timeline
                .untaken(conversation, ShownKind::Change { rev });
            self.out.tell(Event::Changed {
                number,
                conversation,
                changed,
            });
        }
        self.look_for_changes(conversation);
    }

    fn look_for_changes(&mut self, conversation: ConversationId) {
        let is_missing = |track: &super::timeline::Track| !track.waits && track.revs.are_missing();
        if self
            .timeline
            .track_mut(conversation)
            .is_some_and(|track| is_missing(track))
        {
            self.questions.look_at(conversation);
        }
    }

    /// Applies a change to the conversation's row in the list.
    fn note_changed(&mut self, conversation: ConversationId, changed: &OrderedChange) {
        let me = self.account.map(|account| account.user);
        let is_recall = changed.asked.change == MessageChange::Recall;
        let is_others = Some(changed.asked.by) != me;
        let is_group = matches!(conversation, ConversationId::Group(_));
        let row = self
            .list
            .change(conversation, changed, is_recall && is_others && !is_group);
        // An administrator may recall another member's message: only the server knows whether it
        // counted as unread.
        let may_count = |row: &Summary| row.unread > 0 && changed.seq > base_of(row);
        if is_group && is_recall && row.as_ref().is_some_and(may_count) {
            self.row_moved(conversation);
        }
        self.tell_row(row);
    }
}
