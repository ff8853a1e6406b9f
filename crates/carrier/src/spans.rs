//! Spans of deliveries: one for each user and platform, derived from the ledger entries.

use std::collections::BTreeMap;
use std::time::Duration;

use api::trace::Spans;
use protocol::Timestamp;
use protocol::delivery::Settlement;
use protocol::ledger::{LedgerEntry, LedgerEvent};
use protocol::message::Target;
use protocol::trace::{Span, Step};

/// Records the deliveries of a record that is settled.
pub(crate) fn record_deliveries(spans: &Spans, settlement: &Settlement, now: Timestamp) {
    let (source, task) = (settlement.source, &settlement.task);
    let Some(parent) = spans.sampled(task.trace) else {
        return;
    };
    let Some(start) = settlement.ledger.iter().map(|entry| entry.at).min() else {
        return;
    };
    let took = now.since(start);
    for (target, entries) in by_target(&settlement.ledger) {
        let (outcome, is_failure) = delivery_outcome(&entries);
        let context = parent.delivery(source, target);
        spans.record(Span {
            ended_ago: entries
                .last()
                .map_or(Duration::ZERO, |last| now.since(last.at)),
            is_failure,
            message: Some(task.placed.message.id),
            conversation: Some(task.placed.conversation.kind()),
            platform: target.map(|target| target.platform),
            record: Some((source.partition, source.offset)),
            attempt: Some(task.retry_count),
            events: (entries.iter())
                .filter_map(|entry| Some((event_name(&entry.event)?, now.since(entry.at))))
                .collect(),
            ..Span::new(Step::Deliver, context, Some(parent.span), took, outcome)
        });
    }
}

type Entries<'a> = Vec<&'a LedgerEntry>;

/// Entries by target; `None` stands for whatever sessions live.
fn by_target(ledger: &[LedgerEntry]) -> BTreeMap<Option<Target>, Entries<'_>> {
    let mut by_target: BTreeMap<_, Entries<'_>> = BTreeMap::new();
    let entries = ledger
        .iter()
        .filter(|entry| event_name(&entry.event).is_some());
    for entry in entries {
        by_target.entry(entry.target).or_default().push(entry);
    }
    by_target
}

/// Name of the last event that ends the delivery, and whether it is a failure.
fn delivery_outcome(entries: &[&LedgerEntry]) -> (&'static str, bool) {
    let ends = |entry: &&&LedgerEntry| {
        !matches!(
            entry.event,
            LedgerEvent::Pushed { .. } | LedgerEvent::Notified
        )
    };
    let Some(end) = entries.iter().rev().find(ends) else {
        return ("pushed", true);
    };
    let is_failure = matches!(
        end.event,
        LedgerEvent::Failed { .. } | LedgerEvent::Retried { .. } | LedgerEvent::Dead { .. }
    );
    (event_name(&end.event).unwrap_or("settled"), is_failure)
}

/// Name of the event in a span; `None` if it is not about a delivery.
fn event_name(event: &LedgerEvent) -> Option<&'static str> {
    Some(match event {
        LedgerEvent::Pushed { .. } => "pushed",
        LedgerEvent::Acked { .. } => "acked",
        LedgerEvent::Written { .. } => "written",
        LedgerEvent::Failed { .. } => "failed",
        LedgerEvent::Retried { .. } => "retried",
        LedgerEvent::StoredOffline => "stored",
        LedgerEvent::ReachableBySync => "sync",
        LedgerEvent::Dropped => "dropped",
        LedgerEvent::Notified => "notified",
        LedgerEvent::Dead { .. } => "dead",
        LedgerEvent::Placed { .. }
        | LedgerEvent::Changed { .. }
        | LedgerEvent::Unchanged { .. }
        | LedgerEvent::Listed { .. }
        | LedgerEvent::Refused { .. }
        | LedgerEvent::Repeat { .. }
        | LedgerEvent::Fetched { .. }
        | LedgerEvent::NotificationSent { .. }
        | LedgerEvent::Redriven { .. }
        | LedgerEvent::Settled => return None,
    })
}
