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
    left: Range<Timestamp>,
}

impl<'a> MinuteRows<'a> {
    pub(super) fn of(store: &'a dyn AuditStore, minutes: Range<Timestamp>) -> MinuteRows<'a> {
        MinuteRows {
            store,
            left: minutes,
        }
    }

    /// The next page; `None` at the end.
    ///
    /// # Errors
    /// A store that does not answer: the same page may be asked for again.
    pub(super) async fn next(&mut self) -> Result<Option<Vec<MinuteRow>>> {
        if self.left.is_empty() {
            return Ok(None);
        }
        let rows = self.store.rows(self.left.clone(), PAGE).await?;
        self.left.start = match rows.last() {
            Some(last) if rows.len() == PAGE => last.minute + MINUTE,
            _ => self.left.end,
        };
        Ok(Some(rows))
    }
}
