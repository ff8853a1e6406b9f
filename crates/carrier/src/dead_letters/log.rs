//! What operators and workers did, from its end on.

use backend::queue::Record;
use protocol::desk::Entry;
use serde::{Deserialize, Serialize};

use super::view::{OPERATIONS, entry};
use super::{DeadLetters, Result, read_on};

/// Entries of one answer.
const ENTRIES: usize = 1000;
/// Records read at a time.
const PAGE: u64 = 500;
/// Records that are looked at for one answer.
const LOOKED_AT: u64 = 20_000;

/// The newest first.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct LogPage {
    pub entries: Vec<Entry>,
    /// Before this one it goes on; `None` at the beginning of the log. There may be more also where there are
    /// fewer entries than were asked for, as an answer looks at so many records only.
    pub next: Option<u64>,
}

impl DeadLetters {
    /// At most so many entries, from before one on or the newest; if wanted, only what operators asked for.
    pub async fn log(&self, most: usize, decisions: bool, before: Option<u64>) -> Result<LogPage> {
        let most = most.clamp(1, ENTRIES);
        let (first, end) = self.backends.queue.bounds(OPERATIONS).await?;
        let mut next = before.map_or(end, |before| before.min(end));
        let stop = next.saturating_sub(LOOKED_AT).max(first);
        let mut page = LogPage::default();
        while next > stop && page.entries.len() < most {
            let from = next.saturating_sub(PAGE).max(stop);
            let records = self.operations(from, next).await?;
            next = from;
            for record in records.iter().rev() {
                if page.entries.len() == most {
                    next = record.offset + 1;
                    break;
                }
                let wanted = |entry: &Entry| !decisions || entry.act.is_decision();
                page.entries.extend(entry(record).filter(wanted));
            }
        }
        page.next = (next > first).then_some(next);
        Ok(page)
    }

    /// Those from one offset up to another.
    async fn operations(&self, from: u64, to: u64) -> Result<Vec<Record>> {
        let mut records: Vec<Record> = Vec::new();
        let mut next = from;
        while next < to {
            let most = (to - next) as usize;
            let (read, behind) = read_on(&*self.backends.queue, OPERATIONS, next, most).await?;
            next = behind;
            records.extend(read.into_iter().filter(|record| record.offset < to));
        }
        Ok(records)
    }
}
