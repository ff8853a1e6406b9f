//! What is recorded of deliveries: a span for each user and platform, out of what the ledger is told.

use std::collections::BTreeMap;
use std::time::Duration;

use api::trace::Spans;
use protocol::Timestamp;
use protocol::delivery::Settlement;
use protocol::ledger::{Event, LedgerEntry};
use protocol::message::Target;
use protocol::trace::{Span, Step};

/// Records the deliveries of a record that has come to its end.
pub(crate) fn record_deliveries(spans: &Spans, settlement: &Settlement, now: Timestamp) {
    let (source, task) = (settlement.source, &settlement.task);
    let Some(parent) = spans.sampled(task.trace) else {
        return;
    };
    let Some(began) = settlement.ledger.iter().map(|entry| entry.at).min() else {
        return;
    };
    let took = now.since(began);
    for (target, entries) in by_target(&settlement.ledger) {
        let (outcome, failed) = outcome_of(&entries);
        let context = parent.delivery(source, target);
        spans.record(Span {
            ended: entries
                .last()
                .map_or(Duration::ZERO, |last| now.since(last.at)),
            failed,
            message: Some(task.placed.message.id),
            conversation: Some(task.placed.conversation.kind()),
            platform: target.map(|target| target.platform),
            record: Some((source.partition, source.offset)),
            attempt: Some(task.retry_count),
            events: (entries.iter())
                .filter_map(|entry| Some((word(&entry.event)?, now.since(entry.at))))
                .collect(),
            ..Span::new(Step::Deliver, context, Some(parent.span), took, outcome)
        });
    }
}

type Entries<'a> = Vec<&'a LedgerEntry>;

/// What happened for each, and for whatever sessions live (`None`).
fn by_target(ledger: &[LedgerEntry]) -> BTreeMap<Option<Target>, Entries<'_>> {
    let mut by_target: BTreeMap<_, Entries<'_>> = BTreeMap::new();
    let told = ledger.iter().filter(|entry| word(&entry.event).is_some());
    for entry in told {
        by_target.entry(entry.target).or_default().push(entry);
    }
    by_target
}

/// The last word that ends it, and whether that is bad.
fn outcome_of(entries: &[&LedgerEntry]) -> (&'static str, bool) {
    let ends =
        |entry: &&&LedgerEntry| !matches!(entry.event, Event::Pushed { .. } | Event::Notified);
    let Some(end) = entries.iter().rev().find(ends) else {
        return ("pushed", true);
    };
    let bad = matches!(
        end.event,
        Event::Failed { .. } | Event::Retried { .. } | Event::Dead { .. }
    );
    (word(&end.event).unwrap_or("settled"), bad)
}

/// As the span says it; `None` for what is not about a delivery.
fn word(event: &Event) -> Option<&'static str> {
    Some(match event {
        Event::Pushed { .. } => "pushed",
        Event::Acked { .. } => "acked",
        Event::Written { .. } => "written",
        Event::Failed { .. } => "failed",
        Event::Retried { .. } => "retried",
        Event::StoredOffline => "stored",
        Event::ReachableBySync => "sync",
        Event::Dropped => "dropped",
        Event::Notified => "notified",
        Event::Dead { .. } => "dead",
        Event::Placed { .. }
        | Event::Changed { .. }
        | Event::Unchanged { .. }
        | Event::Listed { .. }
        | Event::Refused { .. }
        | Event::Repeat { .. }
        | Event::Fetched { .. }
        | Event::NotificationSent { .. }
        | Event::Redriven { .. }
        | Event::Settled => return None,
    })
}
