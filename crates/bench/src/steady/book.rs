//! Record of one pair's messages, numbered 1, 2, 3 …, and the sum over all pairs.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use anyhow::Result;
use comfy_table::{Table, presets};
use hdrhistogram::Histogram;
use serde::Serialize;
use server::cli::Output;
use server::{out, outln};

/// Upper bound of recorded latencies, in milliseconds: longer ones count as this long.
const LATENCY_MAX: u64 = 3_600_000;
/// Maximum number of missing messages named.
const MAX_NAMES: usize = 20;

#[derive(Default)]
pub(super) struct Book(Mutex<BookEntries>);

#[derive(Clone)]
struct BookEntries {
    sent_count: u64,
    accepted_count: u64,
    /// Refusals after which the client tried again.
    retry_count: u64,
    /// Messages accepted and not shown, by number, with the server's id.
    pending_ids: BTreeMap<u64, String>,
    shown_count: u64,
    last: u64,
    /// Numbers below `last` that were not shown.
    skipped_numbers: BTreeSet<u64>,
    repeat_count: u64,
    out_of_order: u64,
    /// Clients that took the server for another one, or found that it lost messages.
    resets: u64,
    /// Time from sent to shown, in milliseconds, for receivers that stay.
    latency: Histogram<u64>,
}

impl Default for BookEntries {
    fn default() -> Self {
        BookEntries {
            sent_count: 0,
            accepted_count: 0,
            retry_count: 0,
            pending_ids: BTreeMap::new(),
            shown_count: 0,
            last: 0,
            skipped_numbers: BTreeSet::new(),
            repeat_count: 0,
            out_of_order: 0,
            resets: 0,
            latency: Histogram::new_with_bounds(1, LATENCY_MAX, 3)
                .expect("the bounds are of the right kind"),
        }
    }
}

impl Book {
    fn entries(&self) -> MutexGuard<'_, BookEntries> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Returns the number of the next message.
    pub(super) fn send(&self) -> u64 {
        let mut entries = self.entries();
        entries.sent_count += 1;
        entries.sent_count
    }

    pub(super) fn accepted(&self, number: u64, id: String) {
        let mut entries = self.entries();
        entries.accepted_count += 1;
        let is_shown = number <= entries.last && !entries.skipped_numbers.contains(&number);
        if !is_shown {
            entries.pending_ids.insert(number, id);
        }
    }

    pub(super) fn count_retry(&self) {
        self.entries().retry_count += 1;
    }

    pub(super) fn reset(&self) {
        self.entries().resets += 1;
    }

    /// Records a shown message. `latency`: milliseconds since it was sent, if meaningful.
    pub(super) fn count_shown(&self, number: u64, latency: Option<u64>) {
        let mut entries = self.entries();
        if number > entries.last {
            let gap = entries.last + 1..number;
            entries.skipped_numbers.extend(gap);
            entries.last = number;
        } else if entries.skipped_numbers.remove(&number) {
            entries.out_of_order += 1;
        } else {
            entries.repeat_count += 1;
            return;
        }
        entries.shown_count += 1;
        entries.pending_ids.remove(&number);
        if let Some(latency) = latency {
            entries.latency.saturating_record(latency.max(1));
        }
    }

    pub(super) fn is_settled(&self) -> bool {
        let entries = self.entries();
        entries.accepted_count == entries.sent_count && entries.pending_ids.is_empty()
    }
}

/// Result of a run.
#[derive(Debug, Default, Serialize)]
pub(super) struct SteadyResult {
    pub(super) sent: u64,
    pub(super) accepted: u64,
    /// Messages neither accepted nor known to be refused when the bench ended.
    pub(super) open: u64,
    pub(super) retried: u64,
    pub(super) shown: u64,
    /// Ids of messages accepted and not shown.
    pub(super) missing: Vec<String>,
    pub(super) twice: u64,
    pub(super) out_of_order: u64,
    pub(super) resets: u64,
    pub(super) p50_ms: u64,
    pub(super) p99_ms: u64,
    pub(super) max_ms: u64,
}

impl SteadyResult {
    pub(super) fn sum(books: &[Arc<Book>]) -> SteadyResult {
        let mut result = SteadyResult::default();
        let mut latency = BookEntries::default().latency;
        for book in books {
            let entries = book.entries();
            result.sent += entries.sent_count;
            result.accepted += entries.accepted_count;
            result.retried += entries.retry_count;
            result.shown += entries.shown_count;
            result.twice += entries.repeat_count;
            result.out_of_order += entries.out_of_order;
            result.resets += entries.resets;
            let missing_ids = entries.pending_ids.values().cloned();
            result.missing.extend(missing_ids);
            // Cannot fail: the bounds are equal.
            let _ = latency.add(&entries.latency);
        }
        result.open = result.sent - result.accepted;
        result.p50_ms = latency.value_at_quantile(0.50);
        result.p99_ms = latency.value_at_quantile(0.99);
        result.max_ms = latency.max();
        result
    }

    /// Whether nothing was lost, repeated, open or out of order, and no client was reset.
    pub(super) fn is_clean(&self) -> bool {
        let faults = [self.twice, self.out_of_order, self.open, self.resets];
        self.missing.is_empty() && faults == [0; 4]
    }

    pub(super) fn print(&self, output: Output) -> Result<()> {
        if output == Output::Json {
            outln!("{}", serde_json::to_string(self)?)?;
            return Ok(());
        }
        let mut table = Table::new();
        table.load_style(presets::NOTHING);
        let rows = [
            ("sent", self.sent),
            ("accepted", self.accepted),
            ("tried again", self.retried),
            ("not accepted at the end", self.open),
            ("shown", self.shown),
            ("missing", self.missing.len() as u64),
            ("shown twice", self.twice),
            ("out of order", self.out_of_order),
            ("clients that began anew", self.resets),
            ("p50 to a present receiver, ms", self.p50_ms),
            ("p99, ms", self.p99_ms),
            ("longest, ms", self.max_ms),
        ];
        for (label, number) in rows {
            table.add_row([label.to_owned(), number.to_string()]);
        }
        out!("{table}\n")?;
        for id in self.missing.iter().take(MAX_NAMES) {
            outln!("missing: {id} (packetboat trace {id} says more)")?;
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn found(book: Book) -> SteadyResult {
        SteadyResult::sum(&[Arc::new(book)])
    }

    #[test]
    fn accepted_messages_that_are_not_shown_are_missing() {
        let book = Book::default();
        for number in 1..=3 {
            assert_eq!(book.send(), number);
            book.accepted(number, number.to_string());
        }
        book.count_shown(1, None);
        book.count_shown(3, None);
        assert!(!book.is_settled());
        let result = found(book);
        assert_eq!(result.missing, ["2"]);
        assert!(!result.is_clean());
    }

    #[test]
    fn shown_before_its_answer_came_is_not_missing() {
        let book = Book::default();
        book.send();
        book.count_shown(1, Some(5));
        assert!(!book.is_settled(), "the answer is open");
        book.accepted(1, "1".into());
        assert!(book.is_settled());
        assert!(found(book).is_clean());
    }

    #[test]
    fn repeats_and_late_ones_are_told_apart() {
        let book = Book::default();
        for number in 1..=3 {
            book.send();
            book.accepted(number, number.to_string());
        }
        for number in [1, 3, 2, 2] {
            book.count_shown(number, None);
        }
        let result = found(book);
        assert_eq!((result.twice, result.out_of_order), (1, 1));
        assert!(result.missing.is_empty());
    }
}
