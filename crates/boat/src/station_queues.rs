//! Queues of calls to stations, in lanes by session. A session has at most one submission and one
//! acknowledgement in flight, which keeps its order; calls of other sessions overtake a slow call.

use std::sync::Arc;
use std::time::Duration;

use api::station::{Disconnect, MailAck, ReceiptItem};
use api::trace;
use futures_util::stream::{FuturesUnordered, StreamExt};
use protocol::session::{Session, Submit};
use protocol::{Code, Refusal, TraceContext};
use tokio::time::{Instant, sleep, sleep_until};
use tracing::warn;

use crate::Config;
use crate::batch_queue::{BatchQueue, QueuedBatch};
use crate::boat::Boat;
use crate::connection::Connection;
use crate::metrics::Metrics;

pub(crate) struct StationQueues(Vec<StationQueue>);

pub(crate) struct StationQueue {
    pub(crate) sends: BatchQueue<Submission>,
    pub(crate) receipts: BatchQueue<Receipt>,
    pub(crate) mail_acks: BatchQueue<MailAck>,
    pub(crate) leaves: BatchQueue<Disconnect>,
}

/// The sends of one session that wait for their answers.
pub(crate) struct Submission {
    pub(crate) connection: Arc<Connection>,
    pub(crate) items: Vec<Submit>,
}

/// Acknowledgement of one session.
pub(crate) struct Receipt {
    pub(crate) connection: Arc<Connection>,
    pub(crate) item: ReceiptItem,
}

impl QueuedBatch for Submission {
    fn items(&self) -> usize {
        self.items.len()
    }

    fn bytes(&self) -> usize {
        (self.items.iter())
            .map(|item| 160 + item.send.content.data.len())
            .sum()
    }
}

impl QueuedBatch for Receipt {
    fn items(&self) -> usize {
        self.item.ack.items.len()
    }

    fn bytes(&self) -> usize {
        80 + 40 * self.item.ack.items.len()
    }
}

impl QueuedBatch for MailAck {
    fn bytes(&self) -> usize {
        64 + 10 * self.ids.len()
    }
}

impl QueuedBatch for Disconnect {
    fn bytes(&self) -> usize {
        64 + self.key.life.boat.as_str().len()
    }
}

impl StationQueues {
    pub(crate) fn new(config: &Config) -> StationQueues {
        let (items, bytes) = (config.lane_items_max, config.lane_bytes_max);
        let lane = || StationQueue {
            sends: BatchQueue::new(items, bytes),
            receipts: BatchQueue::lingering(items, bytes, config.receipts_linger),
            mail_acks: BatchQueue::lingering(items, bytes, config.receipts_linger),
            leaves: BatchQueue::new(items, bytes),
        };
        StationQueues((0..config.lanes.max(1)).map(|_| lane()).collect())
    }

    pub(crate) fn get(&self, lane: usize) -> &StationQueue {
        &self.0[lane]
    }

    pub(crate) fn len(&self) -> usize {
        self.0.len()
    }

    /// True if nothing waits and nothing is in flight.
    pub(crate) fn are_idle(&self) -> bool {
        self.0.iter().all(|lane| {
            lane.sends.is_idle()
                && lane.receipts.is_idle()
                && lane.mail_acks.is_idle()
                && lane.leaves.is_idle()
        })
    }
}

/// Age at which a call counts as slow: from then on its lane calls beside it.
pub(crate) const SLOW: Duration = Duration::from_millis(50);

/// Calls of one kind that a lane has in flight at most.
pub(crate) const CALLS_MAX: usize = 16;

/// Makes one call after the other, and overlaps the next with slow ones, until dropped.
async fn carry<T: QueuedBatch, C: Future<Output = ()>>(
    gather: &BatchQueue<T>,
    items_max: usize,
    call: impl Fn(Vec<T>) -> C,
) {
    let mut calls = FuturesUnordered::new();
    // Earliest start of the next call beside those in flight.
    let mut beside = Instant::now();
    loop {
        let may_begin = calls.is_empty() || (calls.len() < CALLS_MAX && beside <= Instant::now());
        tokio::select! {
            biased;
            Some(()) = calls.next() => gather.done(),
            batch = gather.begin(items_max), if may_begin => {
                calls.push(call(batch));
                beside = Instant::now() + SLOW;
            }
            () = sleep_until(beside), if !may_begin && calls.len() < CALLS_MAX => {}
        }
    }
}

/// Carries the sends of a lane, until dropped.
pub(crate) async fn carry_sends(boat: Arc<Boat>, lane: usize) {
    let sends = &boat.lanes.get(lane).sends;
    let call = |batch| carry_batch(&boat, lane, batch);
    carry(sends, boat.config.batch_items_max, call).await;
}

async fn carry_batch(boat: &Boat, lane: usize, batch: Vec<Submission>) {
    let (connections, items): (Vec<_>, Vec<_>) = (batch.into_iter())
        .map(|submission| {
            (
                (submission.connection, submission.items.len()),
                submission.items,
            )
        })
        .unzip();
    let items: Vec<Submit> = items.into_iter().flatten().collect();
    boat.metrics.sends.increment(items.len() as u64);
    let answers = match boat.life() {
        Some(life) => {
            let call = boat.stations.send_batch(lane, &life, &items);
            trace::within(trace_of(&items), call).await
        }
        None => Err(unregistered()),
    };
    let mut answers = answers.map(Vec::into_iter);
    for (connection, count) in connections {
        let own = match &mut answers {
            Ok(answers) => answers.by_ref().take(count).collect(),
            Err(refusal) => vec![Err(refused_whole(refusal)); count],
        };
        connection.update(|session| session.handle_submitted(own, boat.now()));
    }
}

/// The trace of a call made for one message alone.
fn trace_of(items: &[Submit]) -> Option<TraceContext> {
    match items {
        [only] => only.send.trace,
        _ => None,
    }
}

/// Carries the acknowledgements of a lane, until dropped.
pub(crate) async fn carry_receipts(boat: Arc<Boat>, lane: usize) {
    let receipts = &boat.lanes.get(lane).receipts;
    let call = |batch| acknowledge(&boat, lane, batch);
    carry(receipts, boat.config.batch_items_max, call).await;
}

async fn acknowledge(boat: &Boat, lane: usize, batch: Vec<Receipt>) {
    let (connections, items): (Vec<_>, Vec<_>) = (batch.into_iter())
        .map(|receipt| (receipt.connection, receipt.item))
        .unzip();
    let answers = boat.stations.receipts(lane, &items).await;
    let mut answers = answers.map(Vec::into_iter);
    for connection in connections {
        let own = match &mut answers {
            Ok(answers) => answers.next().unwrap_or_else(|| Err(unanswered())),
            Err(refusal) => Err(refused_whole(refusal)),
        };
        connection.update(|session| session.handle_receipts(own, boat.now()));
    }
}

/// Removes acknowledged mail from the mailbox, until dropped.
pub(crate) async fn carry_mail_acks(boat: Arc<Boat>, lane: usize) {
    let acks = &boat.lanes.get(lane).mail_acks;
    loop {
        let batch = acks.next(boat.config.batch_items_max).await;
        match boat.stations.mail_ack(lane, &batch).await {
            Ok(unanswered) => retry_part(&boat, acks, batch, &unanswered).await,
            Err(refusal) => retry_or_drop(&boat, acks, batch, "mail_ack", &refusal).await,
        }
    }
}

/// Signs sessions off, until dropped.
pub(crate) async fn carry_leaves(boat: Arc<Boat>, lane: usize) {
    let leaves = &boat.lanes.get(lane).leaves;
    loop {
        let batch = leaves.next(boat.config.batch_items_max).await;
        tokio::select! {
            biased;
            // A boat that leaves has a pace and a deadline of its own.
            () = boat.leaving() => {}
            _ = boat.sign_offs.take(batch.len()) => {}
        }
        match boat.stations.disconnect(lane, &batch).await {
            Ok(unanswered) => retry_part(&boat, leaves, batch, &unanswered).await,
            Err(refusal) => retry_or_drop(&boat, leaves, batch, "disconnect", &refusal).await,
        }
    }
}

/// Requeues the items at these indices behind the waiting ones: an unavailable part of the mailbox
/// holds back nobody else's items.
async fn retry_part<T: QueuedBatch>(
    boat: &Boat,
    gather: &BatchQueue<T>,
    batch: Vec<T>,
    places: &[u32],
) {
    if places.is_empty() {
        return;
    }
    let mut lost = 0;
    let mut places = places.iter().peekable();
    for (place, one) in (0..).zip(batch) {
        if places.next_if_eq(&&place).is_some() {
            lost += gather.push(one).err().map_or(0, |one| one.items());
        }
    }
    boat.metrics.lane_overflows.increment(lost as u64);
    sleep(boat.config.retry_pause).await;
}

/// Requeues a batch if a retry may succeed. Items that do not fit any more, or are refused for
/// good, are no loss: the next acknowledgement removes the same mail, and the next push to a gone
/// session finds out.
async fn retry_or_drop<T: QueuedBatch>(
    boat: &Boat,
    gather: &BatchQueue<T>,
    batch: Vec<T>,
    call: &'static str,
    refusal: &Refusal,
) {
    if !refusal.code.retryable() {
        let items = batch.len();
        warn!(call, items, error = %refusal, "a station refuses this for good; it is dropped");
        return Metrics::dropped(call, items);
    }
    let lost = gather.put_back(batch);
    boat.metrics.lane_overflows.increment(lost as u64);
    sleep(boat.config.retry_pause).await;
}

/// Gives a session its sends back if its lane is full.
pub(crate) fn refuse_submission(session: &mut Session, boat: &Boat, count: usize) {
    boat.metrics.lane_overflows.increment(count as u64);
    session.handle_submitted(vec![Err(overflow()); count], boat.now());
}

pub(crate) fn refuse_receipt(session: &mut Session, boat: &Boat) {
    boat.metrics.lane_overflows.increment(1);
    session.handle_receipts(Err(overflow()), boat.now());
}

/// A refusal of a whole batch is no verdict on its parts: they may be retried.
fn refused_whole(refusal: &Refusal) -> Refusal {
    if refusal.code.retryable() {
        return refusal.clone();
    }
    let text = format!("a batch of several sessions was refused: {refusal}");
    Refusal::new(Code::Unavailable, text)
}

fn unanswered() -> Refusal {
    Refusal::new(
        Code::Unavailable,
        "the station gave no answer to this; send it again",
    )
}

fn unregistered() -> Refusal {
    Refusal::new(Code::Unavailable, "this boat is not registered; try again")
}

fn overflow() -> Refusal {
    let text = "too much waits for the stations; try again later";
    Refusal::new(Code::Unavailable, text).retry_after(Duration::from_secs(1))
}

#[cfg(test)]
mod tests {
    use protocol::presence::{BoatLife, SessionKey};
    use protocol::{BoatId, Incarnation, SessionId, UserId};

    use super::*;

    // proves S1-08 in part: whoever leaves with a hundred thousand others is signed off with a thousand of them in a call,
    // and nobody is left out for want of room.
    #[tokio::test]
    async fn a_hundred_thousand_leave_in_a_hundred_calls() {
        const EVERYBODY: i64 = 100_000;
        let config = Config::default();
        let lanes = StationQueues::new(&config);
        let life = BoatLife {
            boat: BoatId::new("boat-1").expect("short"),
            incarnation: Incarnation(1),
        };
        for n in 1..=EVERYBODY {
            let key = SessionKey {
                user: UserId::new(n).expect("positive"),
                session: SessionId::new(n << 6).expect("positive"),
                life: life.clone(),
            };
            let leaves = &lanes.get(n as usize % lanes.len()).leaves;
            let leave = Disconnect { key, ticket: None };
            assert_eq!(leaves.push(leave), Ok(()), "{n}");
        }
        let mut calls = Vec::new();
        for lane in 0..lanes.len() {
            let leaves = &lanes.get(lane).leaves;
            while !leaves.is_idle() {
                calls.push(leaves.next(config.batch_items_max).await.len());
                leaves.done();
            }
        }
        assert_eq!(calls.iter().sum::<usize>(), EVERYBODY as usize);
        assert!(calls.len() <= 100, "{}", calls.len());
    }
}
