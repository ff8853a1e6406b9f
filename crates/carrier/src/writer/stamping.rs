//! Stamps of what lists compare with the version that a client has.

use std::sync::Arc;
use std::time::Duration;

use backend::Error;
use backend::clock::Clock;
use protocol::Timestamp;
use tokio::time::Instant;

/// Writes of the same under stamps of their own; then the record that wants it comes again.
const WRITES_MAX: u32 = 3;

/// What took long after its stamp might be passed by a client's list version: it is stamped and written again.
pub(super) struct Stamping {
    clock: Arc<dyn Clock>,
    /// From the stamp to the end of the write.
    time: Duration,
    until: Instant,
    stamped_at: Option<Instant>,
    writes: u32,
}

impl Stamping {
    /// Nothing is stamped again after `until`.
    pub(super) fn new(clock: Arc<dyn Clock>, list_margin: Duration, until: Instant) -> Stamping {
        Stamping {
            clock,
            time: list_margin / 2,
            until,
            stamped_at: None,
            writes: 0,
        }
    }

    /// The stamp of the write that comes next; `None` once the last one was quick enough.
    pub(super) fn next(&mut self) -> Result<Option<Timestamp>, Error> {
        let now = Instant::now();
        if let Some(at) = self.stamped_at {
            if now - at <= self.time {
                return Ok(None);
            }
            if self.writes == WRITES_MAX || now >= self.until {
                let error = format!("no write ended within {:?} of its stamp", self.time);
                return Err(Error::unavailable("store", error));
            }
        }
        self.stamped_at = Some(now);
        self.writes += 1;
        Ok(Some(self.clock.now()))
    }
}
