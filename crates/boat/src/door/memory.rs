//! The memory limit of this process, and the measures taken near it.

use std::sync::Arc;
use std::time::Duration;

use backend::clock::Entropy;
use backend::memory::MemoryReader;
use metrics::{Counter, Gauge, counter, gauge};
use protocol::pause::between;
use protocol::{Code, Refusal};
use tokio::time::sleep;
use tracing::warn;

use super::memory_pressure::{MemoryPressure, Pressure, SAMPLE_INTERVAL, memory_ceiling};
use crate::connection::Connection;
use crate::connection::connections::Connections;
use crate::connection::driver::DriverParts;
use crate::status::Shortage;

/// Upper bound of the random wait advised to clients that are sent away.
const MAX_RETURN_DELAY: Duration = Duration::from_secs(30);

/// Samples memory until dropped, if there is a limit.
pub(crate) async fn watch_memory(drivers: Arc<DriverParts>, max: Option<u64>) {
    let reader = MemoryReader::for_current_process();
    let limit = reader.read().ok().and_then(|memory| memory.limit);
    let Some(max) = max.or_else(|| limit.map(memory_ceiling)) else {
        return std::future::pending().await;
    };
    let mut watch = MemoryWatch::new(drivers, max);
    loop {
        sleep(SAMPLE_INTERVAL).await;
        if let Ok(memory) = reader.read() {
            watch.sample(memory.used_bytes);
        }
    }
}

/// Acts on each sample.
pub(crate) struct MemoryWatch {
    drivers: Arc<DriverParts>,
    max: u64,
    pressure: MemoryPressure,
    in_use: Gauge,
    shed: Counter,
}

impl MemoryWatch {
    /// A watch with a limit of `max` bytes.
    pub(crate) fn new(drivers: Arc<DriverParts>, max: u64) -> MemoryWatch {
        gauge!("boat_memory_max_bytes").set(max as f64);
        MemoryWatch {
            drivers,
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
            self.drivers
                .status
                .set_shortage(Shortage::Memory, now != Pressure::Normal);
            if previous == Pressure::Normal {
                send_arriving_away(&self.drivers);
            }
        }
        self.shed();
    }

    fn shed(&mut self) {
        let (connections, now) = (&self.drivers.connections, self.drivers.connections.now());
        let count = self.pressure.shed(connections.sessions(), now);
        for connection in heaviest(connections, count) {
            self.shed.increment(1);
            let text = "this boat is short of memory and your connection holds much of it: read \
                        what is waiting, or finish the open frame";
            let refusal = Refusal::new(Code::Slow, text).retry_after(wait(&*self.drivers.entropy));
            connection.update(|session| session.close(refusal, now));
        }
    }
}

/// Refusal for newcomers while memory is short.
pub(super) fn refusal(entropy: &dyn Entropy) -> Refusal {
    let text = "this boat is short of memory; reconnect to reach another";
    Refusal::new(Code::Full, text).retry_after(wait(entropy))
}

fn wait(entropy: &dyn Entropy) -> Duration {
    let least = Duration::from_secs(1);
    between(least, least + MAX_RETURN_DELAY, entropy.next())
}

fn send_arriving_away(drivers: &DriverParts) {
    for connection in drivers.connections.all() {
        let is_arriving = {
            let session = &connection.lock().session;
            !session.is_open() && !session.is_closed()
        };
        if is_arriving {
            let refusal = refusal(&*drivers.entropy);
            connection.update(|session| session.close(refusal, drivers.connections.now()));
        }
    }
}

/// The `count` sessions with the most bytes that wait for their client to read them, or to send the
/// rest, of those that have any.
fn heaviest(connections: &Connections, count: usize) -> Vec<Arc<Connection>> {
    if count == 0 {
        return Vec::new();
    }
    let weigh = |connection: Arc<Connection>| {
        let session = &connection.lock().session;
        let weight = session.waiting() + session.received();
        (weight > 0 && session.is_open()).then(|| (weight, Arc::clone(&connection)))
    };
    let mut sessions: Vec<_> = (connections.by_shard().flatten())
        .filter_map(weigh)
        .collect();
    sessions.sort_unstable_by_key(|(weight, _)| std::cmp::Reverse(*weight));
    sessions.truncate(count);
    sessions
        .into_iter()
        .map(|(_, connection)| connection)
        .collect()
}
