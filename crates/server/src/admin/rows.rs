//! The rows of closed minutes, page by page.

use std::ops::Range;

use backend::Result;
use backend::audit::AuditStore;
use protocol::Timestamp;
use protocol::ledger::minute::{MINUTE, Row};

/// Rows read at once.
const PAGE: usize = 500;

/// Goes over the minutes of a time, the oldest first.
pub(super) struct Rows<'a> {
    store: &'a dyn AuditStore,
    /// What was not read yet.
    left: Range<Timestamp>,
}

impl<'a> Rows<'a> {
    pub(super) fn of(store: &'a dyn AuditStore, minutes: Range<Timestamp>) -> Rows<'a> {
        Rows {
            store,
            left: minutes,
        }
    }

    /// The next page; `None` at the end.
    ///
    /// # Errors
    /// A store that does not answer: the same page can be asked for again.
    pub(super) async fn next(&mut self) -> Result<Option<Vec<Row>>> {
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
