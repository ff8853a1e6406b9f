//! Conditions of the services of a process for new work, checked while they run.

use std::sync::Arc;
use std::time::Duration;

use backend::queue::{Partition, Queue};
use futures_util::future::select_ok;
use operator::lifecycle::Condition;
use protocol::keys::Topic;
use tokio::sync::watch;
use tokio::time::{sleep, timeout};

/// Pause between two looks at the log, and deadline of one.
const POLL_INTERVAL: Duration = Duration::from_secs(5);
const ANSWER_TIMEOUT: Duration = Duration::from_secs(3);
/// Partitions asked, one of which must answer.
const ASKED_MAX: u32 = 4;
/// Looks in a row without an answer that make an outage: one slow answer is none.
const SILENCES: u32 = 2;

/// Condition of a service that others find by discovery.
pub(super) fn registration_condition(
    part: &'static str,
    holds: watch::Receiver<bool>,
) -> Condition {
    Condition {
        part,
        holds,
        trouble: "not registered with discovery",
    }
}

/// Conditions of services that write to the embedded store.
pub(super) fn store_takes_writes(
    parts: &[&'static str],
    takes_writes: Option<&watch::Receiver<bool>>,
) -> Vec<Condition> {
    let Some(takes_writes) = takes_writes else {
        return Vec::new();
    };
    let condition = |part: &&'static str| Condition {
        part,
        holds: takes_writes.clone(),
        trouble: "a write to the store failed; no further writes until a restart",
    };
    parts.iter().map(condition).collect()
}

/// Conditions of services that read or write this topic; checked until their receivers are dropped.
pub(super) fn log_answers(
    parts: &[&'static str],
    queue: &Arc<dyn Queue>,
    topic: Topic,
) -> Vec<Condition> {
    let (answers, holds) = watch::channel(true);
    // A weak reference, so that these checks do not keep a store open.
    let queue = Arc::downgrade(queue);
    let ask = move || {
        let queue = queue.upgrade();
        async move {
            match queue {
                Some(queue) => any_answers(&*queue, topic).await,
                None => false,
            }
        }
    };
    tokio::spawn(poll_condition(ask, answers));
    let condition = |part: &&'static str| Condition {
        part,
        holds: holds.clone(),
        trouble: "the log does not answer",
    };
    parts.iter().map(condition).collect()
}

/// Whether at least one partition answers: one without a leader holds back only its own records.
async fn any_answers(queue: &dyn Queue, topic: Topic) -> bool {
    let partitions = 0..queue.partitions(topic).min(ASKED_MAX);
    let bounds = partitions.map(|number| queue.bounds(Partition { topic, number }));
    select_ok(bounds).await.is_ok()
}

/// Asks again and again, until the receivers of answers are dropped.
async fn poll_condition<F: Future<Output = bool>>(
    ask: impl Fn() -> F,
    answers: watch::Sender<bool>,
) {
    let mut silences = 0;
    while !answers.is_closed() {
        match timeout(ANSWER_TIMEOUT, ask()).await {
            Ok(true) => silences = 0,
            Ok(false) | Err(_) => silences += 1,
        }
        answers.send_if_modified(|now| {
            let previous = std::mem::replace(now, silences < SILENCES);
            previous != *now
        });
        tokio::select! {
            biased;
            () = answers.closed() => {}
            () = sleep(POLL_INTERVAL) => {}
        }
    }
}

#[cfg(test)]
mod tests {
    use std::future::pending;

    use super::*;

    #[tokio::test(start_paused = true)]
    async fn a_log_is_away_after_two_silences_and_back_at_an_answer() {
        #[derive(Clone, Copy)]
        enum Says {
            Yes,
            No,
            Nothing,
        }
        let (says, state) = watch::channel(Says::Yes);
        let (answers, holds) = watch::channel(true);
        let ask = move || {
            let says = *state.borrow();
            async move {
                match says {
                    Says::Yes => true,
                    Says::No => false,
                    Says::Nothing => pending().await,
                }
            }
        };
        let poller = tokio::spawn(poll_condition(ask, answers));
        let holds_after = async |time| {
            sleep(time).await;
            *holds.borrow()
        };
        assert!(holds_after(POLL_INTERVAL / 2).await);
        for silent in [Says::No, Says::Nothing] {
            says.send_replace(silent);
            assert!(holds_after(POLL_INTERVAL).await, "one silence is no outage");
            assert!(!holds_after(POLL_INTERVAL * 3).await);
            says.send_replace(Says::Yes);
            assert!(holds_after(POLL_INTERVAL * 2).await, "it answers again");
        }
        drop(holds);
        sleep(POLL_INTERVAL * 2).await;
        assert!(poller.is_finished(), "nobody asks any more");
    }
}
