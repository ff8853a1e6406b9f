//! The memory limit of this process, and the measures taken near it.

use std::sync::Arc;
use std::time::Duration;

use crate::door::memory_pressure::{MemoryPressure, Pressure, SAMPLE_INTERVAL, memory_ceiling};
use backend::memory::MemoryReader;
use metrics::{Counter, Gauge, counter, gauge};
use protocol::pause::between;
use protocol::{Code, Refusal};
use tokio::time::sleep;
use tracing::warn;

use crate::boat::{Boat, Shortage};
use crate::connection::Connection;

/// Upper bound of the random wait advised to clients that are sent away.
const MAX_RETURN_DELAY: Duration = Duration::from_secs(30);

/// Samples memory until dropped; returns at once if there is no limit.
pub(crate) async fn watch_memory(boat: Arc<Boat>) {
    let reader = MemoryReader::for_current_process();
    let limit = reader.read().ok().and_then(|memory| memory.limit);
    let Some(max) = boat.config.memory_max.or_else(|| limit.map(memory_ceiling)) else {
        return std::future::pending().await;
    };
    let mut watch = MemoryWatch::new(boat, max);
    loop {
        sleep(SAMPLE_INTERVAL).await;
        if let Ok(memory) = reader.read() {
            watch.sample(memory.used_bytes);
        }
    }
}

/// Acts on each sample.
pub(crate) struct MemoryWatch {
    boat: Arc<Boat>,
    max: u64,
    pressure: MemoryPressure,
    in_use: Gauge,
    shed: Counter,
}

impl MemoryWatch {
    /// A watch with a limit of `max` bytes.
    pub(crate) fn new(boat: Arc<Boat>, max: u64) -> MemoryWatch {
        gauge!("boat_memory_max_bytes").set(max as f64);
        MemoryWatch {
            boat,
            max,
            pressure: MemoryPressure::default(),
            in_use: gauge!("boat_memory_bytes"),
            shed: counter!("limits_total", "limit" => "memory"),
        }
    }

    pub(crate) fn sample(&mut self, used_bytes: u64) {
        self.in_use.set(used_bytes as f64);
        let previous = self.pressure.now();
        let now = self.pressure.sample(used_bytes, self.max);
        if now != previous {
            warn!(used = used_bytes, max = self.max, pressure = ?now, "memory pressure changed");
            (self.boat).set_shortage(Shortage::Memory, now != Pressure::Normal);
            if previous == Pressure::Normal {
                send_arriving_away(&self.boat);
            }
        }
        self.shed();
    }

    fn shed(&mut self) {
        let boat = &self.boat;
        let count = self.pressure.shed(boat.sessions(), boat.now());
        for connection in heaviest(boat, count) {
            self.shed.increment(1);
            let text = "this boat is short of memory and your connection holds much of it: read \
                        what is waiting, or finish the open frame";
            let refusal = Refusal::new(Code::Slow, text).retry_after(wait(boat));
            connection.update(|session| session.close(refusal, boat.now()));
        }
    }
}

/// Refusal for newcomers while memory is short.
pub(crate) fn refusal(boat: &Boat) -> Refusal {
    let text = "this boat is short of memory; reconnect to reach another";
    Refusal::new(Code::Full, text).retry_after(wait(boat))
}

fn wait(boat: &Boat) -> Duration {
    let least = Duration::from_secs(1);
    between(least, least + MAX_RETURN_DELAY, boat.entropy.next())
}

fn send_arriving_away(boat: &Boat) {
    for connection in boat.connections.all() {
        let is_arriving = {
            let session = &connection.lock().session;
            !session.is_open() && !session.is_closed()
        };
        if is_arriving {
            connection.update(|session| session.close(refusal(boat), boat.now()));
        }
    }
}

/// The `count` sessions with the most bytes that wait for their client to read them, or to send the
/// rest, of those that have any.
fn heaviest(boat: &Boat, count: usize) -> Vec<Arc<Connection>> {
    if count == 0 {
        return Vec::new();
    }
    let weigh = |connection: Arc<Connection>| {
        let session = &connection.lock().session;
        let weight = session.waiting() + session.received();
        (weight > 0 && session.is_open()).then(|| (weight, Arc::clone(&connection)))
    };
    let mut sessions: Vec<_> = (boat.connections.by_shard().flatten())
        .filter_map(weigh)
        .collect();
    sessions.sort_unstable_by_key(|(weight, _)| std::cmp::Reverse(*weight));
    sessions.truncate(count);
    sessions
        .into_iter()
        .map(|(_, connection)| connection)
        .collect()
}
