//! Stamps of rows that lists compare with a client's version.

use std::sync::Arc;
use std::time::Duration;

use backend::Error;
use backend::clock::Clock;
use protocol::Timestamp;
use protocol::writer::stamp_holds;
use tokio::time::Instant;

/// Writes of one effect under stamps of their own; then its records come again.
const WRITES_MAX: u32 = 3;

/// A client's list version may have passed a stamp whose write took long: the effect is stamped and written again.
pub(super) struct StampRetry {
    clock: Arc<dyn Clock>,
    list_margin: Duration,
    deadline: Instant,
    stamped_at: Option<Instant>,
    writes: u32,
}

impl StampRetry {
    /// Nothing is stamped again after `deadline`.
    pub(super) fn new(
        clock: Arc<dyn Clock>,
        list_margin: Duration,
        deadline: Instant,
    ) -> StampRetry {
        StampRetry {
            clock,
            list_margin,
            deadline,
            stamped_at: None,
            writes: 0,
        }
    }

    /// Stamp of the next write; `None` once the last one was quick enough.
    pub(super) fn next(&mut self) -> Result<Option<Timestamp>, Error> {
        let now = Instant::now();
        if let Some(at) = self.stamped_at {
            if stamp_holds(now - at, self.list_margin) {
                return Ok(None);
            }
            if self.writes == WRITES_MAX || now >= self.deadline {
                let error = format!(
                    "no write finished within {:?} of its timestamp",
                    self.list_margin / 2
                );
                return Err(Error::unavailable("store", error));
            }
        }
        self.stamped_at = Some(now);
        self.writes += 1;
        Ok(Some(self.clock.now()))
    }
}
