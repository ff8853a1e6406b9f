//! The way out: sends clients away as other boats have room for them, and ends the boat in order.

mod drain;

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use api::boat::{DrainOrder, DrainProgress};
use backend::clock::Entropy;
use backend::discovery::Registry;
use metrics::{Gauge, gauge};
use parking_lot::Mutex;
use protocol::drain::{BoatLoad, BoatState, Drain, DrainBounds, Room};
use protocol::{Code, Refusal};
use tokio::sync::watch;
use tokio::time::{Instant, timeout};

use crate::Config;
use crate::connection::connections::Connections;
use crate::status::{BoatStatus, Phase, RETURN_SPREAD};
use crate::uplink::Uplink;

/// Time for an order to take effect.
const ORDER_TIMEOUT: Duration = Duration::from_secs(1);

pub(crate) struct Leaving {
    registry: Arc<dyn Registry>,
    connections: Arc<Connections>,
    uplink: Arc<Uplink>,
    status: Arc<BoatStatus>,
    entropy: Arc<dyn Entropy>,
    /// Last order of an operator.
    orders: watch::Sender<DrainOrder>,
    drain: Mutex<Drain>,
    /// Free room on the other boats, as discovery last reported it.
    room: Mutex<Option<(Instant, Room)>>,
    /// True while clients should leave and no other boat has room; the gauge shows it.
    is_waiting: AtomicBool,
    waits_gauge: Gauge,
    /// The load of a boat without clients.
    empty_load: BoatLoad,
    notice: Duration,
    deadline: Duration,
    bounds: DrainBounds,
    reconnect_percent: u8,
}

impl Leaving {
    pub(crate) fn new(
        config: &Config,
        registry: Arc<dyn Registry>,
        connections: Arc<Connections>,
        uplink: Arc<Uplink>,
        status: Arc<BoatStatus>,
        entropy: Arc<dyn Entropy>,
    ) -> Arc<Leaving> {
        Arc::new(Leaving {
            registry,
            connections,
            uplink,
            status,
            entropy,
            orders: watch::Sender::new(DrainOrder::Cancel),
            drain: Mutex::new(Drain::new(RETURN_SPREAD)),
            is_waiting: AtomicBool::new(false),
            room: Mutex::new(None),
            waits_gauge: gauge!("boat_drain_waits"),
            empty_load: BoatLoad {
                state: BoatState::Open,
                connections: 0,
                seats: config.connections_max,
                accepts_per_second: config.accepts_here() as usize,
                leaving: 0,
                zone: config.zone.clone(),
                url: config.public_url.clone(),
            },
            notice: config.drain_notice,
            deadline: config.drain_deadline,
            bounds: config.drain_bounds(),
            reconnect_percent: config.reconnect_percent,
        })
    }

    /// Load of this boat as discovery publishes it.
    pub(crate) fn load(&self) -> BoatLoad {
        BoatLoad {
            state: match self.status.phase() {
                Phase::Notice { .. } | Phase::Draining => BoatState::Draining,
                // Not `ready`, which lags the phase by a moment.
                Phase::Serving if self.status.lacks_nothing() => BoatState::Open,
                Phase::Serving => BoatState::Tight,
            },
            connections: self.connections.len(),
            leaving: self.drain.lock().leaving(self.connections.now()),
            ..self.empty_load.clone()
        }
    }

    /// Takes an operator's order.
    pub(crate) fn order(&self, order: DrainOrder) -> Result<(), Refusal> {
        if self.status.is_leaving() {
            let text = "this boat is shutting down (SIGTERM): its drain cannot be cancelled";
            return Err(Refusal::new(Code::Forbidden, text));
        }
        // A repeated order changes nothing.
        (self.orders).send_if_modified(|last| std::mem::replace(last, order) != order);
        Ok(())
    }

    /// Progress, once the order has taken effect.
    pub(crate) async fn progress(&self, order: Option<DrainOrder>) -> DrainProgress {
        let begins = |phase: &Phase| match order {
            None => true,
            Some(DrainOrder::Drain { .. }) => *phase != Phase::Serving,
            Some(DrainOrder::Cancel) => *phase == Phase::Serving,
        };
        let mut phases = self.status.phases();
        let _ = timeout(ORDER_TIMEOUT, phases.wait_for(begins)).await;
        DrainProgress {
            state: self.load().state,
            connections: self.connections.len() as u64,
            waits: self.is_waiting.load(Ordering::Relaxed),
        }
    }

    fn set_waiting(&self, is_waiting: bool) {
        self.is_waiting.store(is_waiting, Ordering::Relaxed);
        self.waits_gauge.set(f64::from(u8::from(is_waiting)));
    }
}
