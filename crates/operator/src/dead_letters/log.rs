//! Actions of operators and workers: the log of operations, from its end backwards.

use backend::queue::Record;

use super::log_view::{OPERATIONS, entry};
use super::rules::OperationEntry;
use super::{DeadLetters, Result, read_on};

/// Entries of one answer.
const ENTRIES: usize = 1000;
/// Records read at a time.
const PAGE: u64 = 500;
/// Records looked at for one answer.
const LOOKED_AT: u64 = 20_000;

/// Some entries, newest first.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct LogPage {
    pub entries: Vec<OperationEntry>,
    /// Entries before this offset come next; `None` at the beginning of the log. A page with fewer
    /// entries than were asked for may have a next one too, as an answer looks at a limited number
    /// of records.
    pub next: Option<u64>,
}

impl DeadLetters {
    /// Reads at most this many entries, from before an offset or the newest; only the decisions of
    /// operators if wanted.
    pub async fn log(&self, limit: usize, decisions: bool, cursor: Option<u64>) -> Result<LogPage> {
        let limit = limit.clamp(1, ENTRIES);
        let (first, end) = self.backends.queue.bounds(OPERATIONS).await?;
        let mut next = cursor.map_or(end, |cursor| cursor.min(end));
        let stop = next.saturating_sub(LOOKED_AT).max(first);
        let mut page = LogPage::default();
        while next > stop && page.entries.len() < limit {
            let from = next.saturating_sub(PAGE).max(stop);
            let records = self.operations(from, next).await?;
            next = from;
            for record in records.iter().rev() {
                if page.entries.len() == limit {
                    next = record.offset + 1;
                    break;
                }
                let is_wanted = |entry: &OperationEntry| !decisions || entry.act.is_decision();
                page.entries.extend(entry(record).filter(is_wanted));
            }
        }
        page.next = (next > first).then_some(next);
        Ok(page)
    }

    /// Records from one offset up to another.
    async fn operations(&self, from: u64, to: u64) -> Result<Vec<Record>> {
        let mut records: Vec<Record> = Vec::new();
        let mut next = from;
        while next < to {
            let limit = (to - next) as usize;
            let (read, next_offset) =
                read_on(&*self.backends.queue, OPERATIONS, next, limit).await?;
            next = next_offset;
            records.extend(read.into_iter().filter(|record| record.offset < to));
        }
        Ok(records)
    }
}
