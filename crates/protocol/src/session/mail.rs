//! Delivery of the mailbox to a client that has reconnected: page after page, each message removed
//! only after a device has it.

use std::collections::VecDeque;
use std::time::Duration;

use super::{Page, PageItem};
use crate::mailbox::MailCursor;
use crate::pause::doubled;
use crate::{MessageId, Refusal, Timestamp};

/// Recently acknowledged ids: their removal may still be under way while a page is read again.
const RECENT_MAX: usize = 256;
/// Longest pause after pages that brought nothing: each of the many devices whose mail cannot be
/// read now asks about once a minute.
const PAUSE_MAX: Duration = Duration::from_secs(60);

#[derive(Debug)]
pub(super) struct MailDrain {
    state: State,
    cursor: Option<MailCursor>,
    /// Whether something was stored since the drain began: it may lie before `cursor`.
    needs_rescan: bool,
    /// Whether a page of this pass was empty since all of its mail was left out.
    was_left_out: bool,
    /// Items of the last page that are not pushed yet.
    pending: VecDeque<PageItem>,
    acked_ids: Vec<MessageId>,
    recent: VecDeque<MessageId>,
    /// Pauses for mail that was left out, since the client last acknowledged mail.
    pause_count: u32,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum State {
    /// The next page is due.
    Due,
    Fetching,
    RetryAt(Timestamp),
    /// The end is reached.
    Finished,
    /// All mail of the last page was left out: the next page at this time, or with new mail.
    LeftOutUntil(Timestamp),
    /// The end is reached, but mail was left out: from the oldest again at this time.
    AgainAt(Timestamp),
}

impl MailDrain {
    pub(super) fn new() -> MailDrain {
        MailDrain {
            state: State::Due,
            cursor: None,
            needs_rescan: false,
            was_left_out: false,
            pending: VecDeque::new(),
            acked_ids: Vec::new(),
            recent: VecDeque::new(),
            pause_count: 0,
        }
    }

    /// Notes stored mail: read from the oldest once more, now or after the present pass.
    pub(super) fn hint(&mut self) {
        self.needs_rescan = true;
        if let State::LeftOutUntil(_) = self.state {
            self.state = State::Due;
        }
        self.settle();
    }

    /// Cursor of a page to fetch now.
    pub(super) fn next_fetch(&mut self) -> Option<Option<MailCursor>> {
        (self.state == State::Due && self.pending.is_empty()).then(|| {
            self.state = State::Fetching;
            self.cursor
        })
    }

    pub(super) fn handle_page(&mut self, page: Result<Page, Refusal>, retry_at: Timestamp) {
        if self.state != State::Fetching {
            return;
        }
        match page {
            Ok(page) => {
                self.pending = page.mails.into();
                // A page that does not advance would be read forever.
                self.state = match page.next {
                    Some(next) if next == MailCursor::START => {
                        self.was_left_out = false;
                        State::AgainAt(retry_at + self.further_pause())
                    }
                    // Stores that do not answer for a page are not asked about all others at once.
                    Some(next) if Some(next) > self.cursor && self.pending.is_empty() => {
                        self.was_left_out = true;
                        State::LeftOutUntil(retry_at + self.further_pause())
                    }
                    Some(next) if Some(next) > self.cursor => State::Due,
                    // The station that answered the last page need not have answered the others.
                    Some(_) | None if std::mem::take(&mut self.was_left_out) => {
                        State::AgainAt(retry_at + self.further_pause())
                    }
                    Some(_) | None => State::Finished,
                };
                self.cursor = page.next.filter(|next| *next != MailCursor::START);
                self.settle();
            }
            Err(refusal) if refusal.code.retryable() => self.state = State::RetryAt(retry_at),
            Err(_) => {
                self.state = State::Finished;
                self.needs_rescan = false;
            }
        }
    }

    /// Addition to the next pause: it doubles, as long as nothing comes. The counted pauses are not
    /// those of pages that failed as a whole, which cost one call each.
    fn further_pause(&mut self) -> Duration {
        let first = Duration::from_secs(1);
        let pause = doubled(first, self.pause_count, PAUSE_MAX);
        self.pause_count = self.pause_count.saturating_add(1);
        pause - first
    }

    /// Next message to push that the client has not just acknowledged.
    pub(super) fn next_pending(&mut self) -> Option<PageItem> {
        while let Some(item) = self.pending.pop_front() {
            if !self.recent.contains(&item.id) {
                return Some(item);
            }
        }
        None
    }

    /// Puts back a message for lack of room.
    pub(super) fn put_back(&mut self, item: PageItem) {
        self.pending.push_front(item);
    }

    pub(super) fn acknowledge(&mut self, id: MessageId) {
        self.acked_ids.push(id);
        self.pause_count = 0;
        if self.recent.len() == RECENT_MAX {
            self.recent.pop_front();
        }
        self.recent.push_back(id);
    }

    pub(super) fn take_acked(&mut self) -> Option<Vec<MessageId>> {
        (!self.acked_ids.is_empty()).then(|| std::mem::take(&mut self.acked_ids))
    }

    pub(super) fn retry_at(&self) -> Option<Timestamp> {
        match self.state {
            State::RetryAt(at) | State::LeftOutUntil(at) | State::AgainAt(at) => Some(at),
            State::Due | State::Fetching | State::Finished => None,
        }
    }

    pub(super) fn handle_timeout(&mut self, now: Timestamp) {
        if self.retry_at().is_some_and(|at| at <= now) {
            self.state = State::Due;
        }
    }

    /// True with nothing to fetch, to push or to remove.
    pub(super) fn is_over(&self) -> bool {
        self.state == State::Finished && self.pending.is_empty() && self.acked_ids.is_empty()
    }

    fn settle(&mut self) {
        let is_end = matches!(self.state, State::Finished | State::AgainAt(_));
        if is_end && self.needs_rescan {
            self.needs_rescan = false;
            self.cursor = None;
            self.state = State::Due;
        }
    }
}
