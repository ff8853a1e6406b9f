//! What sessions tell stations, in lanes by session. A session has one submission and one acknowledgement under way
//! at most, which keeps its order; a call that is slow is overtaken by those of other sessions.

use std::sync::Arc;
use std::time::Duration;

use api::station::{Disconnect, MailAck, ReceiptItem, SendItem};
use api::trace;
use futures_util::stream::{FuturesUnordered, StreamExt};
use protocol::session::Session;
use protocol::{Code, Refusal, TraceContext};
use tokio::time::{Instant, sleep, sleep_until};
use tracing::warn;

use crate::Config;
use crate::boat::Boat;
use crate::connection::Connection;
use crate::gather::{Gather, Gathered};
use crate::metrics::Metrics;

pub(crate) struct Lanes(Vec<Lane>);

pub(crate) struct Lane {
    pub(crate) sends: Gather<Submission>,
    pub(crate) receipts: Gather<Receipt>,
    pub(crate) mail_acks: Gather<MailAck>,
    pub(crate) leaves: Gather<Disconnect>,
}

/// The sends of one session that wait for their answers.
pub(crate) struct Submission {
    pub(crate) connection: Arc<Connection>,
    pub(crate) items: Vec<SendItem>,
}

/// What one session acknowledged.
pub(crate) struct Receipt {
    pub(crate) connection: Arc<Connection>,
    pub(crate) item: ReceiptItem,
}

impl Gathered for Submission {
    fn items(&self) -> usize {
        self.items.len()
    }

    fn bytes(&self) -> usize {
        (self.items.iter())
            .map(|item| 160 + item.send.content.data.len())
            .sum()
    }
}

impl Gathered for Receipt {
    fn items(&self) -> usize {
        self.item.ack.items.len()
    }

    fn bytes(&self) -> usize {
        80 + 40 * self.item.ack.items.len()
    }
}

impl Gathered for MailAck {
    fn bytes(&self) -> usize {
        64 + 10 * self.ids.len()
    }
}

impl Gathered for Disconnect {
    fn bytes(&self) -> usize {
        64 + self.key.life.boat.as_str().len()
    }
}

impl Lanes {
    pub(crate) fn new(config: &Config) -> Lanes {
        let (items, bytes) = (config.lane_items_max, config.lane_bytes_max);
        let lane = || Lane {
            sends: Gather::new(items, bytes),
            receipts: Gather::lingering(items, bytes, config.receipts_linger),
            mail_acks: Gather::lingering(items, bytes, config.receipts_linger),
            leaves: Gather::new(items, bytes),
        };
        Lanes((0..config.lanes.max(1)).map(|_| lane()).collect())
    }

    pub(crate) fn get(&self, lane: usize) -> &Lane {
        &self.0[lane]
    }

    pub(crate) fn len(&self) -> usize {
        self.0.len()
    }

    /// Nothing waits and nothing is in flight.
    pub(crate) fn are_idle(&self) -> bool {
        self.0.iter().all(|lane| {
            lane.sends.is_idle()
                && lane.receipts.is_idle()
                && lane.mail_acks.is_idle()
                && lane.leaves.is_idle()
        })
    }
}

/// After this long a call is slow: what waits in its lane goes beside it.
pub(crate) const SLOW: Duration = Duration::from_millis(50);

/// Calls of one kind that a lane has in flight at most.
pub(crate) const CALLS_MAX: usize = 16;

/// Makes one call after the other, and the next beside those that are slow, until dropped.
async fn carry<T: Gathered, C: Future<Output = ()>>(
    gather: &Gather<T>,
    items_max: usize,
    call: impl Fn(Vec<T>) -> C,
) {
    let mut calls = FuturesUnordered::new();
    // When the next may begin beside those that are in flight.
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
    let items = items.concat();
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

/// The trace of a call that is made for one message alone.
fn trace_of(items: &[SendItem]) -> Option<TraceContext> {
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

/// Has removed from the mailbox what devices have, until dropped.
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
            _ = boat.sign_offs.take(batch.len()) => {}
            // A boat that leaves has a pace and a deadline of its own.
            () = boat.leaving() => {}
        }
        match boat.stations.disconnect(lane, &batch).await {
            Ok(unanswered) => retry_part(&boat, leaves, batch, &unanswered).await,
            Err(refusal) => retry_or_drop(&boat, leaves, batch, "disconnect", &refusal).await,
        }
    }
}

/// Tries the items at these places again, behind those that wait: a part of the mailbox that is away keeps back nobody
/// else's.
async fn retry_part<T: Gathered>(boat: &Boat, gather: &Gather<T>, batch: Vec<T>, places: &[u32]) {
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

/// Tries later what may succeed later. What does not fit any more, or is refused for good, is no loss:
/// what is acknowledged once more is removed then, and whoever pushes to a session that is gone finds out.
async fn retry_or_drop<T: Gathered>(
    boat: &Boat,
    gather: &Gather<T>,
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

/// Gives a session its sends back where its lane is full.
pub(crate) fn refuse_submission(session: &mut Session, boat: &Boat, count: usize) {
    boat.metrics.lane_overflows.increment(count as u64);
    session.handle_submitted(vec![Err(overflow()); count], boat.now());
}

pub(crate) fn refuse_receipt(session: &mut Session, boat: &Boat) {
    boat.metrics.lane_overflows.increment(1);
    session.handle_receipts(Err(overflow()), boat.now());
}

/// A batch that is refused as a whole says nothing of its single parts: they may be tried again.
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
        let lanes = Lanes::new(&config);
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
