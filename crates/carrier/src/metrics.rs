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
    unsettled: Gauge,
    ack_latency: Histogram,
    settled: Counter,
    acked: Counter,
    stored: Counter,
    retried: Counter,
    notified: Counter,
    failed: Counter,
    dead: Counter,
}

impl Gauges {
    pub(crate) fn new(shard: usize) -> Gauges {
        let shard = shard.to_string();
        let of_shard = |name: &'static str| gauge!(name, "shard" => shard.clone());
        Gauges {
            in_flight: of_shard("carrier_in_flight"),
            in_flight_max: of_shard("carrier_in_flight_max"),
            users_in_flight: of_shard("carrier_users_in_flight"),
            bytes_in_flight: of_shard("carrier_bytes_in_flight"),
            pushes: of_shard("carrier_pushes_open"),
            lanes: of_shard("carrier_lanes"),
            unsettled: of_shard("carrier_settling"),
            ack_latency: histogram!("carrier_ack_latency_seconds"),
            settled: counter!("carrier_records_settled_total"),
            acked: counter!("carrier_deliveries_acked_total"),
            stored: counter!("carrier_deliveries_stored_total"),
            retried: counter!("carrier_deliveries_retried_total"),
            notified: counter!("carrier_notifications_total"),
            failed: counter!("carrier_pushes_failed_total"),
            dead: counter!("carrier_dead_letters_total", "reason" => "max-retries"),
        }
    }

    pub(crate) fn show(&self, load: &DeliveryLoad, settling: usize) {
        self.in_flight.set(load.records as f64);
        self.in_flight_max.set(load.records_max as f64);
        self.users_in_flight.set(load.users as f64);
        self.bytes_in_flight.set(load.bytes as f64);
        self.pushes.set(load.pushes as f64);
        self.lanes.set(load.lanes as f64);
        self.unsettled.set(settling as f64);
    }

    /// Records the time that a device took to acknowledge.
    pub(crate) fn acked(&self, latency: Duration) {
        self.ack_latency.record(latency.as_secs_f64());
    }

    pub(crate) fn settled(&self, settlement: &Settlement) {
        self.settled.increment(1);
        self.notified
            .increment(settlement.notifications.len() as u64);
        self.dead.increment(u64::from(settlement.letter.is_some()));
        for entry in &settlement.ledger {
            match entry.event {
                LedgerEvent::Acked { .. } | LedgerEvent::Written { .. } => self.acked.increment(1),
                LedgerEvent::StoredOffline => self.stored.increment(1),
                LedgerEvent::Retried { .. } => self.retried.increment(1),
                LedgerEvent::Failed { .. } => self.failed.increment(1),
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
