//! Message ids of this station: never beyond what discovery has recorded as ours.

use std::sync::Arc;
use std::sync::atomic::{AtomicI64, Ordering};
use std::time::Duration;

use backend::clock::Clock;
use backend::discovery::{NodeLease, Registry};
use parking_lot::Mutex;
use protocol::id::snowflake::{Snowflake, SnowflakeError};
use protocol::{Code, MessageId, Refusal, Timestamp};
use tokio::sync::Notify;

/// How many node numbers a start may look at to find one whose past is over.
const NODES_TRIED: usize = 8;

/// How long to wait after a reservation failed, or while ids are refused.
const RETRY_AFTER: Duration = Duration::from_secs(1);

/// Makes ids under a leased node number. A number is reserved ahead, durably: a successor begins after
/// the reservation, so that no id is ever made twice, whatever the clocks do (reliability R10).
pub(crate) struct MessageIds {
    snowflake: Mutex<Snowflake>,
    lease: Box<dyn NodeLease>,
    /// The last millisecond that ids may bear.
    reserved: AtomicI64,
    /// Somebody needed an id beyond the reservation.
    wanted: Notify,
    ahead: Duration,
    clock: Arc<dyn Clock>,
}

impl MessageIds {
    /// Leases a number and reserves it. A number that was held until a moment ago is reserved into the
    /// future; another one is taken then, where there is one, instead of waiting.
    pub(crate) async fn lease(
        registry: &dyn Registry,
        clock: Arc<dyn Clock>,
        ahead: Duration,
    ) -> backend::Result<MessageIds> {
        let mut best = registry.lease_node().await?;
        let mut passed_over = Vec::new();
        while best.not_before() > clock.now() && passed_over.len() < NODES_TRIED {
            // Held until the search ends: what is given back at once would be given out again.
            let Ok(next) = registry.lease_node().await else {
                break;
            };
            if next.not_before() < best.not_before() {
                passed_over.push(std::mem::replace(&mut best, next));
            } else {
                passed_over.push(next);
            }
        }
        let ids = MessageIds {
            snowflake: Mutex::new(Snowflake::new(best.number(), best.not_before())),
            reserved: AtomicI64::new(best.not_before().millis()),
            lease: best,
            wanted: Notify::new(),
            ahead,
            clock,
        };
        ids.reserve().await?;
        Ok(ids)
    }

    /// As many ids as asked for, ascending; all or none. A refusal may be tried again.
    pub(crate) fn draw(&self, count: usize) -> Result<Vec<MessageId>, Refusal> {
        let now = self.clock.now();
        let mut snowflake = self.snowflake.lock();
        let mut ids = Vec::with_capacity(count);
        for _ in 0..count {
            let id = snowflake.next(now).map_err(unmade)?;
            if id.timestamp().millis() > self.reserved.load(Ordering::Acquire) {
                self.wanted.notify_one();
                return Err(unavailable("message ids are not reserved far enough"));
            }
            ids.push(id);
        }
        Ok(ids)
    }

    /// Keeps the reservation ahead of the clock, for ever.
    pub(crate) async fn keep_reserved(&self) {
        let mut failing = false;
        loop {
            let pause = if failing { RETRY_AFTER } else { self.ahead / 4 };
            tokio::select! {
                () = tokio::time::sleep(pause) => {}
                () = self.wanted.notified(), if !failing => {}
            }
            match self.reserve().await {
                Ok(()) => failing = false,
                Err(error) => {
                    if !failing {
                        tracing::warn!(%error, until = %self.reserved_until(), "message ids cannot be reserved");
                    }
                    metrics::counter!("station_id_reservations_failed_total").increment(1);
                    failing = true;
                }
            }
        }
    }

    async fn reserve(&self) -> backend::Result<()> {
        let until = (self.clock.now() + self.ahead).max(self.reserved_until());
        self.lease.reserve(until).await?;
        self.reserved.store(until.millis(), Ordering::Release);
        Ok(())
    }

    fn reserved_until(&self) -> Timestamp {
        Timestamp::from_millis(self.reserved.load(Ordering::Acquire))
    }
}

fn unmade(error: SnowflakeError) -> Refusal {
    metrics::counter!("station_ids_refused_total").increment(1);
    unavailable(error.to_string())
}

fn unavailable(text: impl Into<String>) -> Refusal {
    Refusal::new(Code::Unavailable, text).retry_after(RETRY_AFTER)
}
