//! Metrics of a carrier.

use std::time::Duration;

use metrics::{Counter, Gauge, Histogram, counter, gauge, histogram};
use protocol::delivery::{DeliveryLoad, Settlement};
use protocol::ledger::LedgerEvent;

/// Metric handles of one shard's loop.
pub(crate) struct Gauges {
    in_flight: Gauge,
    in_flight_max: Gauge,
    users_in_flight: Gauge,
    bytes_in_flight: Gauge,
    pushes: Gauge,
    lanes: Gauge,
    unsettled_records: Gauge,
    ack_latency: Histogram,
    settled_records: Counter,
    acked_deliveries: Counter,
    stored_deliveries: Counter,
    retried_deliveries: Counter,
    notifications: Counter,
    failed_pushes: Counter,
    dead_letters: Counter,
}

impl Gauges {
    pub(crate) fn new(shard: usize) -> Gauges {
        let shard = shard.to_string();
        let shard_gauge = |name: &'static str| gauge!(name, "shard" => shard.clone());
        Gauges {
            in_flight: shard_gauge("carrier_in_flight"),
            in_flight_max: shard_gauge("carrier_in_flight_max"),
            users_in_flight: shard_gauge("carrier_users_in_flight"),
            bytes_in_flight: shard_gauge("carrier_bytes_in_flight"),
            pushes: shard_gauge("carrier_pushes_open"),
            lanes: shard_gauge("carrier_lanes"),
            unsettled_records: shard_gauge("carrier_settling"),
            ack_latency: histogram!("carrier_ack_latency_seconds"),
            settled_records: counter!("carrier_records_settled_total"),
            acked_deliveries: counter!("carrier_deliveries_acked_total"),
            stored_deliveries: counter!("carrier_deliveries_stored_total"),
            retried_deliveries: counter!("carrier_deliveries_retried_total"),
            notifications: counter!("carrier_notifications_total"),
            failed_pushes: counter!("carrier_pushes_failed_total"),
            dead_letters: counter!("carrier_dead_letters_total", "reason" => "max-retries"),
        }
    }

    pub(crate) fn show(&self, load: &DeliveryLoad, unsettled_count: usize) {
        self.in_flight.set(load.records as f64);
        self.in_flight_max.set(load.records_max as f64);
        self.users_in_flight.set(load.users as f64);
        self.bytes_in_flight.set(load.bytes as f64);
        self.pushes.set(load.pushes as f64);
        self.lanes.set(load.lanes as f64);
        self.unsettled_records.set(unsettled_count as f64);
    }

    /// Records the time that a device took to acknowledge.
    pub(crate) fn record_ack(&self, latency: Duration) {
        self.ack_latency.record(latency.as_secs_f64());
    }

    pub(crate) fn settled(&self, settlement: &Settlement) {
        self.settled_records.increment(1);
        self.notifications
            .increment(settlement.notifications.len() as u64);
        self.dead_letters
            .increment(u64::from(settlement.letter.is_some()));
        for entry in &settlement.ledger {
            match entry.event {
                LedgerEvent::Acked { .. } | LedgerEvent::Written { .. } => {
                    self.acked_deliveries.increment(1)
                }
                LedgerEvent::StoredOffline => self.stored_deliveries.increment(1),
                LedgerEvent::Retried { .. } => self.retried_deliveries.increment(1),
                LedgerEvent::Failed { .. } => self.failed_pushes.increment(1),
                LedgerEvent::Placed { .. }
                | LedgerEvent::Changed { .. }
                | LedgerEvent::Unchanged { .. }
                | LedgerEvent::Listed { .. }
                | LedgerEvent::Refused { .. }
                | LedgerEvent::Repeat { .. }
                | LedgerEvent::Pushed { .. }
                | LedgerEvent::Fetched { .. }
                | LedgerEvent::ReachableBySync
                | LedgerEvent::Dropped
                | LedgerEvent::Notified
                | LedgerEvent::NotificationSent { .. }
                | LedgerEvent::Dead { .. }
                | LedgerEvent::Redriven { .. }
                | LedgerEvent::Settled => {}
            }
        }
    }
}
