//! Makes the calls of a lane: batches of many sessions, one call after the other, and the next ones
//! beside slow ones.

use std::future::pending;
use std::pin::pin;
use std::sync::Arc;
use std::time::Duration;

use api::station::{Disconnect, MailAck};
use api::trace;
use futures_util::stream::{FuturesUnordered, StreamExt};
use protocol::session::Submit;
use protocol::{Code, Refusal, TraceContext};
use tokio::time::{Instant, sleep_until};
use tracing::warn;

use super::Uplink;
use super::batch_queue::{BatchQueue, QueuedBatch};
use super::station_queues::{Receipt, Submission};
use crate::metrics::UplinkMetrics;

/// Age at which a call counts as slow: from then on its lane calls beside it.
pub(crate) const SLOW_CALL: Duration = Duration::from_millis(50);

/// Calls of one kind that a lane has in flight at most.
pub(crate) const CALLS_MAX: usize = 16;

/// Outcome of a call for the items of a queue.
enum CallOutcome<T> {
    /// Nothing is left to be sent.
    Done,
    /// Items that a part of the mailbox did not answer for.
    Unanswered(Vec<T>),
    /// Items of a call that failed as a whole.
    Failed(Vec<T>),
}

/// Calls of one queue that are in flight, and earliest times of further ones.
struct CallTimes {
    pause: Duration,
    /// First calls in flight.
    new_calls: usize,
    is_repeating: bool,
    /// The next call beside others in flight.
    next_overlap: Instant,
    next_repeat: Instant,
    /// Any call, after one that failed.
    resume_at: Instant,
}

impl CallTimes {
    fn new(pause: Duration) -> CallTimes {
        let now = Instant::now();
        CallTimes {
            pause,
            new_calls: 0,
            is_repeating: false,
            next_overlap: now,
            next_repeat: now,
            resume_at: now,
        }
    }

    /// Time from which the next call for new items may begin; `None`: not before another has ended.
    fn first_at(&self) -> Option<Instant> {
        match self.new_calls {
            0 => Some(self.resume_at),
            first => (first < CALLS_MAX).then(|| self.next_overlap.max(self.resume_at)),
        }
    }

    /// The same for items of which the first may be repeated at `due_at`.
    fn repeat_at(&self, due_at: Option<Instant>) -> Option<Instant> {
        let due_at = due_at.filter(|_| !self.is_repeating)?;
        Some(due_at.max(self.next_repeat).max(self.resume_at))
    }

    fn begin(&mut self, is_repeat: bool) {
        if is_repeat {
            self.is_repeating = true
        } else {
            self.new_calls += 1;
            self.next_overlap = Instant::now() + SLOW_CALL;
        }
    }

    fn end(&mut self, is_repeat: bool) {
        if is_repeat {
            self.is_repeating = false
        } else {
            self.new_calls -= 1
        }
    }
}

async fn sleep_if(deadline: Option<Instant>) {
    match deadline {
        Some(deadline) => sleep_until(deadline).await,
        None => pending().await,
    }
}

/// Makes one call after the other for the items of a queue, and overlaps the next with slow ones,
/// until dropped. `call` gets its items, and whether they are repeated.
///
/// Items left unanswered are repeated in calls of their own, one at a time, with a pause between: a
/// part of the mailbox that is away holds back nobody else's items, and meets no burst when it is
/// back.
async fn carry<T: QueuedBatch, C: Future<Output = CallOutcome<T>>>(
    uplink: &Uplink,
    queue: &BatchQueue<T>,
    call: impl Fn(Vec<T>, bool) -> C,
) {
    let items_max = uplink.queues.batch_items_max;
    let call = |batch: Vec<T>, is_repeat: bool| {
        let call = call(batch, is_repeat);
        async move { (is_repeat, call.await) }
    };
    let mut calls = FuturesUnordered::new();
    let mut times = CallTimes::new(uplink.queues.retry_pause);
    // Lingers on while calls end.
    let mut next = pin!(queue.begin(items_max));
    loop {
        let first_at = times.first_at();
        let may_begin = first_at.is_some_and(|at| at <= Instant::now());
        tokio::select! {
            biased;
            Some((is_repeat, outcome)) = calls.next() => {
                times.end(is_repeat);
                end_call(uplink, queue, &mut times, is_repeat, outcome);
            }
            () = sleep_if(times.repeat_at(queue.repeat_due())) => {
                let batch = queue.begin_repeat(items_max);
                // None if it was dropped meanwhile.
                if !batch.is_empty() {
                    times.begin(true);
                    calls.push(call(batch, true));
                }
            }
            batch = next.as_mut(), if may_begin => {
                times.begin(false);
                calls.push(call(batch, false));
                next.set(queue.begin(items_max));
            }
            () = sleep_if(first_at), if !may_begin => {}
        }
    }
}

/// Keeps what a call left, before its batch counts as done.
fn end_call<T: QueuedBatch>(
    uplink: &Uplink,
    queue: &BatchQueue<T>,
    times: &mut CallTimes,
    is_repeat: bool,
    outcome: CallOutcome<T>,
) {
    let retry_at = Instant::now() + times.pause;
    // A boat that leaves has a deadline.
    if is_repeat && !(uplink.status.is_leaving() && matches!(outcome, CallOutcome::Done)) {
        times.next_repeat = retry_at;
    }
    match outcome {
        CallOutcome::Done => {}
        CallOutcome::Unanswered(items) => queue.set_aside(items, retry_at),
        // Perhaps because of the part that is away: it says nothing about the calls of others.
        CallOutcome::Failed(items) if is_repeat => queue.set_aside(items, retry_at),
        CallOutcome::Failed(items) => {
            times.resume_at = retry_at;
            queue.put_back(items);
        }
    }
    queue.finish_batch();
    let dropped_count = queue.take_dropped();
    uplink
        .metrics
        .lane_overflows
        .increment(dropped_count as u64);
}

/// Carries the sends of a lane, until dropped.
pub(crate) async fn carry_sends(uplink: Arc<Uplink>, lane: usize) {
    let uplink = &*uplink;
    let call = |batch: Vec<Submission>, _| async move {
        carry_batch(uplink, lane, batch).await;
        CallOutcome::Done
    };
    carry(uplink, &uplink.queues.get(lane).sends, call).await;
}

async fn carry_batch(uplink: &Uplink, lane: usize, batch: Vec<Submission>) {
    let (connections, items): (Vec<_>, Vec<_>) = (batch.into_iter())
        .map(|submission| {
            (
                (submission.connection, submission.items.len()),
                submission.items,
            )
        })
        .unzip();
    let items: Vec<Submit> = items.into_iter().flatten().collect();
    uplink.metrics.sends.increment(items.len() as u64);
    let answers = match uplink.status.life() {
        Some(life) => {
            let call = uplink.stations.send_batch(lane, &life, &items);
            trace::within(single_trace(&items), call).await
        }
        None => Err(not_registered()),
    };
    let mut answers = answers.map(Vec::into_iter);
    for (connection, count) in connections {
        let session_answers = match &mut answers {
            Ok(answers) => answers.by_ref().take(count).collect(),
            Err(refusal) => vec![Err(batch_refusal(refusal)); count],
        };
        connection
            .update(|session| session.handle_submitted(session_answers, uplink.connections.now()));
    }
}

/// The trace of a call made for one message alone.
fn single_trace(items: &[Submit]) -> Option<TraceContext> {
    match items {
        [only] => only.send.trace,
        _ => None,
    }
}

/// Carries the acknowledgements of a lane, until dropped.
pub(crate) async fn carry_receipts(uplink: Arc<Uplink>, lane: usize) {
    let uplink = &*uplink;
    let call = |batch: Vec<Receipt>, _| async move {
        acknowledge(uplink, lane, batch).await;
        CallOutcome::Done
    };
    carry(uplink, &uplink.queues.get(lane).receipts, call).await;
}

async fn acknowledge(uplink: &Uplink, lane: usize, batch: Vec<Receipt>) {
    let (connections, items): (Vec<_>, Vec<_>) = (batch.into_iter())
        .map(|receipt| (receipt.connection, receipt.item))
        .unzip();
    let answers = uplink.stations.receipts(lane, &items).await;
    let mut answers = answers.map(Vec::into_iter);
    for connection in connections {
        let answer = match &mut answers {
            Ok(answers) => answers.next().unwrap_or_else(|| Err(no_answer())),
            Err(refusal) => Err(batch_refusal(refusal)),
        };
        connection.update(|session| session.handle_receipts(answer, uplink.connections.now()));
    }
}

/// Removes acknowledged mail from the mailbox, until dropped.
pub(crate) async fn carry_mail_acks(uplink: Arc<Uplink>, lane: usize) {
    let uplink = &*uplink;
    let call = |batch: Vec<MailAck>, _| async move {
        let answer = uplink.stations.mail_ack(lane, &batch).await;
        call_outcome("mail_ack", batch, answer)
    };
    carry(uplink, &uplink.queues.get(lane).mail_acks, call).await;
}

/// Signs sessions off, until dropped.
pub(crate) async fn carry_leaves(uplink: Arc<Uplink>, lane: usize) {
    let uplink = &*uplink;
    let call = |batch: Vec<Disconnect>, is_repeat: bool| async move {
        // Repeats take no turns of others: theirs were spent in vain.
        if !is_repeat {
            tokio::select! {
                biased;
                // A boat that leaves has a pace and a deadline of its own.
                () = uplink.status.leaving() => {}
                _ = uplink.queues.sign_offs.take(batch.len()) => {}
            }
        }
        let answer = uplink.stations.disconnect(lane, &batch).await;
        call_outcome("disconnect", batch, answer)
    };
    carry(uplink, &uplink.queues.get(lane).leaves, call).await;
}

/// Outcome of a call whose answer names the indices of unanswered items, in order. Items that are
/// refused for good are dropped, which is no loss: the next acknowledgement removes the same mail,
/// and the next push to a gone session finds out.
fn call_outcome<T>(
    call: &'static str,
    batch: Vec<T>,
    answer: Result<Vec<u32>, Refusal>,
) -> CallOutcome<T> {
    match answer {
        Ok(indices) if indices.is_empty() => CallOutcome::Done,
        Ok(indices) => {
            let mut indices = indices.iter().peekable();
            let items = (0..).zip(batch);
            let unanswered_items = items.filter(|(index, _)| indices.next_if_eq(&index).is_some());
            CallOutcome::Unanswered(unanswered_items.map(|(_, item)| item).collect())
        }
        Err(refusal) if refusal.code.retryable() => CallOutcome::Failed(batch),
        Err(refusal) => {
            let items = batch.len();
            warn!(call, items, error = %refusal, "dropped a batch that a station refused permanently");
            UplinkMetrics::record_drop(call, items);
            CallOutcome::Done
        }
    }
}

/// A refusal of a whole batch is no verdict on its parts: they may be retried.
fn batch_refusal(refusal: &Refusal) -> Refusal {
    if refusal.code.retryable() {
        return refusal.clone();
    }
    let text = format!("a batch of several sessions was refused: {refusal}");
    Refusal::new(Code::Unavailable, text)
}

fn no_answer() -> Refusal {
    Refusal::new(
        Code::Unavailable,
        "the station gave no answer to this; send it again",
    )
}

fn not_registered() -> Refusal {
    Refusal::new(Code::Unavailable, "this boat is not registered; try again")
}
