//! The rows of closed minutes, page by page.

use std::ops::Range;

use backend::Result;
use backend::audit::AuditStore;
use protocol::Timestamp;
use protocol::ledger::minute::{MINUTE, MinuteRow};

/// Rows read at once.
const PAGE: usize = 500;

/// Reads the minutes of a range, oldest first.
pub(super) struct MinuteRows<'a> {
    store: &'a dyn AuditStore,
    /// Range that is not read yet.
    unread: Range<Timestamp>,
}

impl<'a> MinuteRows<'a> {
    pub(super) fn of(store: &'a dyn AuditStore, minutes: Range<Timestamp>) -> MinuteRows<'a> {
        MinuteRows {
            store,
            unread: minutes,
        }
    }

    /// The next page; `None` at the end.
    ///
    /// # Errors
    /// A store that does not answer: the same page may be asked for again.
    pub(super) async fn next(&mut self) -> Result<Option<Vec<MinuteRow>>> {
        if self.unread.is_empty() {
            return Ok(None);
        }
        let rows = self.store.rows(self.unread.clone(), PAGE).await?;
        self.unread.start = match rows.last() {
            Some(last) if rows.len() == PAGE => last.minute + MINUTE,
            _ => self.unread.end,
        };
        Ok(Some(rows))
    }
}
