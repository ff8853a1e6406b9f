//! Calls to stations at a time: further ones wait for a place, no longer than a station may take to answer.

use std::time::Duration;

use metrics::{Counter, counter};
use protocol::{Code, Refusal};
use tokio::sync::{Semaphore, SemaphorePermit};
use tokio::time::timeout;

use crate::Config;

/// The wait that a refused client is advised.
const RETRY_AFTER: Duration = Duration::from_secs(1);

/// Places of one kind of call.
pub(crate) struct CallLimit {
    places: Semaphore,
    wait: Duration,
    refused: Counter,
}

impl CallLimit {
    /// Places of sign-ins, apart from others: many newcomers delay no question of those who are there.
    pub(crate) fn of_sign_ins(config: &Config) -> CallLimit {
        CallLimit::new("sign_in_calls", config.sign_in_calls_max, config)
    }

    /// Places of those who resume, apart from sign-ins: neither waits where the provider of tokens is slow.
    pub(crate) fn of_resumptions(config: &Config) -> CallLimit {
        CallLimit::new("resume_calls", config.sign_in_calls_max, config)
    }

    /// Places of pages from mailboxes, apart from questions: history that is slow keeps nobody's mail back.
    pub(crate) fn of_mail(config: &Config) -> CallLimit {
        CallLimit::new("calls", config.calls_max, config)
    }

    /// Places of questions.
    pub(crate) fn of_questions(config: &Config) -> CallLimit {
        CallLimit::new("calls", config.calls_max, config)
    }

    fn new(limit: &'static str, max: usize, config: &Config) -> CallLimit {
        CallLimit {
            places: Semaphore::new(max),
            wait: config.station_timeout,
            refused: counter!("limits_total", "limit" => limit),
        }
    }

    /// Waits for a place, held until the call is answered.
    pub(crate) async fn place(&self) -> Result<SemaphorePermit<'_>, Refusal> {
        if let Ok(Ok(place)) = timeout(self.wait, self.places.acquire()).await {
            return Ok(place);
        }
        self.refused.increment(1);
        let text = "too many calls to stations wait for their answers; try again";
        Err(Refusal::new(Code::Unavailable, text).retry_after(RETRY_AFTER))
    }
}
