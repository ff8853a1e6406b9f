//! Limits concurrent calls to stations: further calls wait for a slot, no longer than a station may
//! take to answer.

use std::time::Duration;

use metrics::{Counter, counter};
use protocol::{Code, Refusal};
use tokio::sync::{Semaphore, SemaphorePermit};
use tokio::time::timeout;

use crate::Config;

/// Wait advised to a refused client.
const RETRY_AFTER: Duration = Duration::from_secs(1);

/// Slots for each kind of call.
pub(super) struct CallLimits {
    /// Apart from others: a wave of newcomers delays no request of admitted clients.
    pub(super) sign_ins: CallLimit,
    /// Apart from sign-ins: a slow token provider holds up no resumption.
    pub(super) resumptions: CallLimit,
    /// Apart from questions: slow history holds back nobody's mail.
    pub(super) mail: CallLimit,
    pub(super) questions: CallLimit,
}

impl CallLimits {
    pub(super) fn new(config: &Config) -> CallLimits {
        CallLimits {
            sign_ins: CallLimit::new("sign_in_calls", config.sign_in_calls_max, config),
            resumptions: CallLimit::new("resume_calls", config.sign_in_calls_max, config),
            mail: CallLimit::new("calls", config.calls_max, config),
            questions: CallLimit::new("calls", config.calls_max, config),
        }
    }
}

/// Slots for one kind of call.
pub(super) struct CallLimit {
    slots: Semaphore,
    wait: Duration,
    refusals: Counter,
}

impl CallLimit {
    fn new(limit: &'static str, max: usize, config: &Config) -> CallLimit {
        CallLimit {
            slots: Semaphore::new(max),
            wait: config.station_timeout,
            refusals: counter!("limits_total", "limit" => limit),
        }
    }

    /// Waits for a slot, held until the call is answered.
    pub(super) async fn acquire_slot(&self) -> Result<SemaphorePermit<'_>, Refusal> {
        if let Ok(Ok(permit)) = timeout(self.wait, self.slots.acquire()).await {
            return Ok(permit);
        }
        self.refusals.increment(1);
        let text = "too many calls to stations are in flight; try again";
        Err(Refusal::new(Code::Unavailable, text).retry_after(RETRY_AFTER))
    }
}
