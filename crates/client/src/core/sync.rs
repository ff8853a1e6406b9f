//! Catching up: the list difference, then the missing messages of each conversation, page after
//! page.

use std::collections::BTreeMap;
use std::time::Duration;

use protocol::change::MessageMarks;
use protocol::frame::{HistoryPage, HistoryRange, ListPage, Summary, SyncQuery};
use protocol::pause::doubled;
use protocol::{Code, ConversationId, Placed, Refusal, Seq, Timestamp};

use super::list::is_left;
use super::queries::{ListPhase, Query};
use super::snapshot::Cursor;
use super::timeline::{ArrivalPath, EarlyEnd, ShownKind};
use super::{Action, CatchUp, Change, Core, Event, Reset};

impl Core {
    /// Sends the queries that are due and that there is room for.
    pub(super) fn ask(&mut self, now: Timestamp) {
        let limits = self.settings.limits.clone();
        let deadline = now + limits.answer;
        self.questions.wake(now);
        if self.questions.list_is_due(now) {
            self.timeline.ask_rows_again();
            let list = &mut self.questions.list;
            list.phase = ListPhase::Asked;
            let query = SyncQuery::List {
                since: list.version,
                cursor: list.cursor,
            };
            (self.questions).ask(Query::List, query, deadline, &mut self.out);
        }
        let page = limits
            .page
            .min(u32::try_from(limits.untaken_max).unwrap_or(u32::MAX));
        while self.questions.fetches() < limits.fetches_max {
            let room = u32::try_from(self.timeline.room(limits.untaken_max)).unwrap_or(u32::MAX);
            if room < page.div_ceil(2) {
                return;
            }
            let Some(conversation) = self.questions.next() else {
                return;
            };
            if let Some(track) = self.timeline.track_mut(conversation) {
                track.waits = false;
            }
            let limit = page.min(room);
            self.ask_for_row(conversation, deadline);
            self.ask_for_hidden(conversation, limit, deadline);
            self.ask_for(conversation, limit, deadline);
            self.ask_for_changes(conversation, limit, deadline);
        }
    }

    /// Requests the conversation's row, if no list named it or an event moved it.
    fn ask_for_row(&mut self, conversation: ConversationId, deadline: Timestamp) {
        let is_listing = !self.questions.list_is_done();
        let Some(track) = self.timeline.track_mut(conversation) else {
            return;
        };
        if is_listing || !track.is_row_missing() {
            return;
        }
        (track.is_row_asked, track.is_row_moved) = (true, false);
        let query = SyncQuery::Row { conversation };
        let question = Query::Row { conversation };
        self.questions.ask(question, query, deadline, &mut self.out);
    }

    pub(super) fn row_answered(
        &mut self,
        conversation: ConversationId,
        row: Option<Summary>,
        now: Timestamp,
    ) {
        let track = self.track(conversation);
        (track.is_unnamed, track.is_row_asked) = (false, false);
        track.failures = 0;
        if let Some(row) = row.filter(|row| row.conversation == conversation) {
            self.compare(row, now);
        }
        self.questions.look_at(conversation);
    }

    fn ask_for(&mut self, conversation: ConversationId, limit: u32, deadline: Timestamp) {
        let Some(track) = self.timeline.track_mut(conversation) else {
            return;
        };
        // Wait for the row: it says how far the hidden messages go.
        if track.is_querying || track.is_row_asked {
            return;
        }
        let (question, range, limit) = match self.settings.catch_up {
            _ if track.pull_before.is_some() => {
                let range = HistoryRange::Backward {
                    before: track.pull_before,
                };
                (Query::Newest { conversation }, range, limit)
            }
            CatchUp::Recent(newest) if track.newest_only => {
                let range = HistoryRange::Backward { before: None };
                (Query::Newest { conversation }, range, newest)
            }
            CatchUp::Everything | CatchUp::Recent(_) => {
                if !track.suspect && !track.is_missing_something() {
                    return;
                }
                let after_seq = track.shown_cursor.seq;
                let question = Query::Fetch {
                    conversation,
                    after_seq,
                };
                (question, HistoryRange::Forward { after: after_seq }, limit)
            }
        };
        track.is_querying = true;
        let query = SyncQuery::History {
            conversation,
            range,
            limit,
        };
        self.questions.ask(question, query, deadline, &mut self.out);
    }

    pub(super) fn listed(&mut self, page: ListPage, now: Timestamp) {
        let last = page.conversations.last().map(|last| last.conversation);
        for summary in page.conversations {
            self.compare(summary, now);
        }
        let list = &mut self.questions.list;
        let min_version = list
            .min_version
            .map_or(page.version, |v| v.min(page.version));
        list.min_version = Some(min_version);
        list.failures = 0;
        if page.more && last.is_some() {
            list.cursor = last;
            list.phase = ListPhase::Due(Timestamp::ZERO);
            return;
        }
        for conversation in self.timeline.decide_all() {
            self.show_held(conversation);
            self.fetch_if_missing(conversation);
        }
        self.look_at_missing_rows();
        if let Some(version) = self.questions.list_complete()
            && self.settings.acks
        {
            self.out.change(Change::ListVersion(version));
        }
    }

    /// Compares a row of the list with the messages shown.
    fn compare(&mut self, summary: Summary, now: Timestamp) {
        let conversation = summary.conversation;
        let absence_max = self.settings.limits.absence_max;
        let catch_up = self.settings.catch_up;
        let track = self.track(conversation);
        track.is_unnamed = false;
        let shown_cursor = track.shown_cursor;
        let is_fresh = shown_cursor.seq == Seq::ZERO && track.held_messages.is_empty();
        self.compare_hidden(conversation, summary.hidden);
        self.note_listed(summary.clone());
        let is_large = self.list.is_large(conversation);
        let track = self.track(conversation);
        track.is_large = is_large;
        track.pull_before = track.pull_before.filter(|_| is_large);
        if is_left(&summary) {
            // The group can no longer be queried, and messages shown stay.
            let track = self.track(conversation);
            track.is_undecided = false;
            track.progress.known_seq = track.shown_cursor.seq;
            self.drop_held(conversation);
            return;
        }
        let fresh_to = is_fresh.then_some(summary.seq);
        if let (ConversationId::Group(group), true) = (conversation, is_large) {
            if is_fresh {
                self.compare_changes(conversation, summary.rev, fresh_to);
            }
            self.large_group_listed(group, &summary, now);
            self.show_held(conversation);
            return;
        }
        self.compare_changes(conversation, summary.rev, fresh_to);
        let track = self.track(conversation);
        if summary.seq < shown_cursor.seq {
            self.suspect(conversation);
            return;
        }
        track.progress.known_seq = track.progress.known_seq.max(summary.seq);
        let fresh = std::mem::take(&mut track.is_undecided);
        let missing_count = summary.seq.0 - shown_cursor.seq.0;
        if missing_count == 0 {
            self.show_held(conversation);
            return;
        }
        let progress = track.progress;
        if let CatchUp::Recent(newest) = catch_up {
            let was_away =
                shown_cursor.seq > Seq::ZERO && now.since(shown_cursor.at) >= absence_max;
            // A group may have said very much, however short the absence was.
            let is_group = matches!(conversation, ConversationId::Group(_));
            if (fresh || was_away || is_group) && missing_count > u64::from(newest) {
                self.store_progress(conversation, progress);
                self.only_newest(conversation, &summary, newest);
                return;
            }
        }
        self.store_progress(conversation, progress);
        match summary.newest {
            Some(newest) => self.place_marked(newest, summary.marks, ArrivalPath::Fetched),
            None => self.fetch_if_missing(conversation),
        }
        self.show_held(conversation);
    }

    /// Asks the server for messages behind the last shown one: its history may differ from ours.
    pub(super) fn suspect(&mut self, conversation: ConversationId) {
        let track = self.track(conversation);
        if !track.is_querying && !track.is_undecided {
            track.suspect = true;
            self.questions.look_at(conversation);
        }
    }

    /// Turns to the newest messages, since more are missing than are to be shown.
    fn only_newest(&mut self, conversation: ConversationId, summary: &Summary, newest: u32) {
        let track = self.track(conversation);
        if newest > 0 {
            track.newest_only = true;
            self.questions.look_at(conversation);
            return;
        }
        // Only new messages: any pushed since we connected is new.
        let last_before_push = track.first_held().map(|seq| Seq(seq.0 - 1));
        let end = last_before_push.map_or(summary.seq, |last_before_push| {
            last_before_push.min(summary.seq)
        });
        let id = summary
            .newest
            .as_ref()
            .filter(|newest| newest.position.seq == end);
        let cursor = Cursor {
            seq: end,
            id: id.map(|newest| newest.message.id),
            at: id.map_or(track.shown_cursor.at, |newest| newest.message.accepted_at),
        };
        self.leave_out(conversation, cursor);
    }

    /// Reports the positions up to `cursor` as a gap, and goes on after it.
    pub(super) fn leave_out(&mut self, conversation: ConversationId, cursor: Cursor) {
        let from = self.track(conversation).shown_cursor.seq.next();
        if from <= cursor.seq {
            // A device that shows only the newest messages passes the gap at once: otherwise it
            // would load all of it after a restart.
            let is_all = self.settings.catch_up == CatchUp::Everything;
            let has_room = self.timeline.room(self.settings.limits.untaken_max) > 0;
            let number = (is_all && has_room).then(|| self.timeline.next_number());
            if number.is_some() {
                self.timeline
                    .untaken(conversation, ShownKind::Gap { cursor });
            }
            self.out.emit_event(Event::Gap {
                number,
                conversation,
                from,
                to: cursor.seq,
            });
        }
        self.skip_to(conversation, cursor);
    }

    /// Takes a page of messages upward from `after`.
    pub(super) fn fetched(
        &mut self,
        conversation: ConversationId,
        after_seq: Seq,
        page: HistoryPage,
        now: Timestamp,
    ) {
        if page.last_seq < after_seq {
            self.end_found(conversation, after_seq, &page, now);
            return;
        }
        let track = self.track(conversation);
        track.is_querying = false;
        track.trust();
        track.progress.known_seq = track.progress.known_seq.max(page.last_seq);
        if page.messages.is_empty() && !page.more && page.last_seq > after_seq {
            self.nothing_before(conversation, page.last_seq);
            return;
        }
        if page.messages.is_empty() && track.is_missing_something() {
            // The server knows of more messages than it can read now.
            self.look_again(conversation, now);
            return;
        }
        track.failures = 0;
        self.place_all(conversation, page.messages, page.marks);
        self.fetch_if_missing(conversation);
    }

    /// Takes the newest few messages, newest first.
    pub(super) fn newest_fetched(&mut self, conversation: ConversationId, page: HistoryPage) {
        let track = self.track(conversation);
        track.is_querying = false;
        track.trust();
        track.failures = 0;
        track.newest_only = false;
        track.pull_before = None;
        track.progress.known_seq = track.progress.known_seq.max(page.last_seq);
        if page.messages.is_empty() && !page.more {
            self.nothing_before(conversation, page.last_seq);
            return;
        }
        self.place_all(conversation, page.messages, page.marks);
        self.show_held(conversation);
        self.fetch_if_missing(conversation);
    }

    /// Goes on after `last`: the server has messages up to there, but none for us, since they
    /// precede our membership.
    fn nothing_before(&mut self, conversation: ConversationId, last: Seq) {
        let track = self.track(conversation);
        track.failures = 0;
        let cursor = Cursor {
            seq: last,
            id: None,
            at: track.shown_cursor.at,
        };
        if last > track.shown_cursor.seq {
            self.leave_out(conversation, cursor);
        }
        self.show_held(conversation);
        self.fetch_if_missing(conversation);
    }

    /// Places a dense page. Messages between the last shown one and the page are unavailable, or
    /// not wanted.
    fn place_all(
        &mut self,
        conversation: ConversationId,
        mut messages: Vec<Placed>,
        mut marks: BTreeMap<Seq, MessageMarks>,
    ) {
        messages.retain(|message| message.conversation == conversation);
        messages.sort_by_key(|message| message.position.seq);
        let shown_cursor = self.track(conversation).shown_cursor;
        let first = messages
            .iter()
            .find(|message| message.position.seq > shown_cursor.seq);
        if let Some(first) = first
            && first.position.seq > shown_cursor.seq.next()
        {
            let cursor = Cursor {
                seq: Seq(first.position.seq.0 - 1),
                id: first.position.prev,
                at: shown_cursor.at,
            };
            self.leave_out(conversation, cursor);
        }
        for message in messages {
            let marks = marks.remove(&message.position.seq);
            self.place_marked(message, marks, ArrivalPath::Fetched);
        }
    }

    /// Takes the end of the conversation. If it lies before the last shown message, the server is
    /// asked again: after a loss of power it may still be placing what it had placed before. Once
    /// that lasted for [`CATCH_UP_MAX`], the server lost messages.
    pub(super) fn end_found(
        &mut self,
        conversation: ConversationId,
        ours: Seq,
        page: &HistoryPage,
        now: Timestamp,
    ) {
        let track = self.track(conversation);
        track.is_querying = false;
        if page.last_seq >= ours {
            track.failures = 0;
            track.trust();
            self.fetch_if_missing(conversation);
            return;
        }
        let mut messages = page.messages.iter();
        let newest = messages.find(|m| m.position.seq == page.last_seq);
        let end = Cursor {
            seq: page.last_seq,
            id: newest.map(|newest| newest.message.id),
            at: track.shown_cursor.at,
        };
        let early = track.early_end.get_or_insert_with(|| EarlyEnd::new(end));
        early.answered(end, now);
        let EarlyEnd { end, duration, .. } = *early;
        if duration < CATCH_UP_MAX {
            track.suspect = true;
            self.look_again(conversation, now);
            return;
        }
        track.failures = 0;
        track.trust();
        // New messages may have come in the place of those shown: the lowest end counts.
        track.progress.known_seq = page.last_seq;
        self.out.emit_event(Event::Reset(Reset::Behind {
            conversation,
            ours,
            theirs: end.seq,
        }));
        self.hidden_behind(conversation, end.seq);
        self.skip_to(conversation, end);
        self.fetch_if_missing(conversation);
    }

    /// Handles a query that was refused or not answered in time.
    pub(super) fn not_answered(
        &mut self,
        question: Query,
        request: u32,
        refusal: Refusal,
        now: Timestamp,
    ) {
        match question {
            Query::List => self.list_refused(&refusal, now),
            Query::Fetch {
                conversation,
                after_seq: after,
            } if refusal.code == Code::Reset => {
                let query = SyncQuery::History {
                    conversation,
                    range: HistoryRange::Backward { before: None },
                    limit: 1,
                };
                let deadline = now + self.settings.limits.answer;
                let question = Query::End {
                    conversation,
                    ours: after,
                };
                self.questions.ask(question, query, deadline, &mut self.out);
            }
            Query::Fetch { conversation, .. }
            | Query::Newest { conversation }
            | Query::End { conversation, .. } => {
                self.track(conversation).is_querying = false;
                if refusal.code.retryable() {
                    self.look_again(conversation, now);
                } else {
                    self.cannot_fetch(conversation);
                }
            }
            Query::Changes { conversation, .. } if refusal.code == Code::Reset => {
                self.changes_behind(conversation);
            }
            Query::Changes { conversation, .. } => {
                self.changes_not_fetched(conversation, &refusal, now);
            }
            Query::Row { conversation } => {
                let track = self.track(conversation);
                track.is_row_asked = false;
                track.is_row_moved = refusal.code.retryable();
                if track.is_row_moved {
                    self.look_again(conversation, now);
                } else {
                    track.is_unnamed = false;
                    self.questions.look_at(conversation);
                }
            }
            Query::Hidden { conversation, .. } => {
                self.hidden_not_fetched(conversation, &refusal, now);
            }
            Query::Status => {}
            Query::Older => self.out.push(Action::Older {
                request,
                answer: Err(refusal),
            }),
            Query::Asked => self.out.push(Action::Asked {
                request,
                answer: Err(refusal),
            }),
        }
    }

    fn list_refused(&mut self, refusal: &Refusal, now: Timestamp) {
        let ask_again_max = self.settings.limits.ask_again_max;
        let list = &mut self.questions.list;
        if refusal.code == Code::Reset && list.version > Timestamp::ZERO {
            list.version = Timestamp::ZERO;
            list.cursor = None;
            list.min_version = None;
            list.phase = ListPhase::Due(Timestamp::ZERO);
            self.timeline.forget_names();
            self.out.emit_event(Event::Reset(Reset::ListAhead));
        } else if refusal.code.retryable() {
            list.failures += 1;
            let pause = pause(list.failures, ask_again_max);
            list.phase = ListPhase::Due(now + refusal.retry_after.unwrap_or(pause));
        } else {
            list.min_version = None;
            self.questions.list_complete();
            self.look_at_missing_rows();
        }
    }

    /// Queues conversations without a row, which waited for the end of a list that might name them.
    fn look_at_missing_rows(&mut self) {
        for conversation in self.timeline.missing_rows() {
            self.questions.look_at(conversation);
        }
    }

    pub(super) fn look_again(&mut self, conversation: ConversationId, now: Timestamp) {
        let ask_again_max = self.settings.limits.ask_again_max;
        let track = self.track(conversation);
        track.failures = track.failures.saturating_add(1);
        track.waits = true;
        let at = now + pause(track.failures, ask_again_max);
        self.questions.look_later(conversation, at);
    }

    /// Reports messages the server refuses as a gap, and goes on with those it sent.
    fn cannot_fetch(&mut self, conversation: ConversationId) {
        let track = self.track(conversation);
        track.trust();
        track.newest_only = false;
        track.pull_before = None;
        let before_held = track.first_held().map(|seq| Seq(seq.0 - 1));
        let seq = before_held.unwrap_or(track.progress.known_seq);
        let cursor = Cursor {
            seq,
            id: None,
            at: track.shown_cursor.at,
        };
        if seq > track.shown_cursor.seq {
            self.leave_out(conversation, cursor);
        }
    }
}

/// Time that a server may need to place again what it lost with its power.
const CATCH_UP_MAX: Duration = Duration::from_secs(120);

/// One second, doubled with each failure, up to `longest`.
fn pause(failures: u32, longest: Duration) -> Duration {
    doubled(Duration::from_secs(1), failures.saturating_sub(1), longest)
}
