//! The continuous audit: closes minute after minute, and looks at open ones again until they are
//! settled.
//!
//! ```text
//! log ─▶ MinuteBuilder ─▶ minute ─▶ ledger: its fate ─▶ head (compare and set) ─▶ row, amendment
//! ```
//!
//! Every process with a desk has an auditor; one at a time works. The head of the chain decides
//! which: it names the worker that moved it last, and when, and is replaced by compare-and-set
//! only. Two auditors that both believe it is their turn therefore never fork the chain: one is
//! refused, and rests. The row is written after the head, which holds a whole copy of it: a
//! successor writes it again.

mod config;
mod gauges;
mod lease;
#[cfg(test)]
mod tests;

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::Duration;

use anyhow::{Result, bail};
use backend::audit::AuditStore;
use backend::clock::Clock;
use backend::ledger::LedgerStore;
use protocol::ledger::chain::{ChainHead, ChainPlace};
use protocol::ledger::minute::{
    Amendment, ChainLink, ClosedMinute, MINUTE, MinuteFigures, MinuteReading, MinuteRow,
    MinuteVerdict, OffsetRange, minute_of,
};
use protocol::{MessageId, Timestamp};
use tokio::time::{Instant, sleep};
use tokio_util::sync::CancellationToken;

pub use self::config::Config;
use self::gauges::Gauges;
use self::lease::LeaseLoss;
pub(super) use self::lease::Term;
use super::audit::MESSAGES_MAX;
use super::log::{Log, MinuteRest, PAGES};
use super::minute_rows::MinuteRows;
use super::open_messages::{Finding, Seeker, find};
use crate::answer::utc;
use crate::minute_builder::{LogMove, MinuteBuilder};

/// Open minutes looked at again in one round, and limit of their messages (the first minute always
/// fits).
const AGAIN: usize = 60;
const AGAIN_MESSAGES: usize = 100_000;
/// Pause after a look, as a multiple of the look's duration: with a long backlog, each look reads
/// all of it.
const REST: u32 = 4;
/// Doublings of the interval, at most, before a failed round is tried again: one per failure.
const DOUBLED: u32 = 5;
/// Interval between removals of old minutes.
const FORGET_EVERY: Duration = Duration::from_secs(3600);
/// Time before the start of the chain that is removed once more, in case a removal broke off.
const FORGOTTEN: Duration = Duration::from_secs(2 * 86_400);

/// Closes minutes, while it is this process's turn.
pub struct Auditor {
    log: Arc<Log>,
    ledger: Arc<dyn LedgerStore>,
    store: Arc<dyn AuditStore>,
    clock: Arc<dyn Clock>,
    config: Config,
    worker: u64,
    gauges: Arc<Gauges>,
    duty: Option<Duty>,
    /// Turn of the head, and since when this process has seen no later one.
    seen: Option<(u64, Instant)>,
    /// Start of the last round: the clock was set back if it is later than the next one.
    round_at: Timestamp,
    /// True once it was reported that minutes of the future are closed.
    is_ahead: bool,
}

/// State of the auditor whose turn it is.
struct Duty {
    term: Term,
    gather: MinuteBuilder,
    /// Closed minutes that are not settled, each with the time of its next look.
    open: BTreeMap<Timestamp, OpenMinute>,
    /// Earliest time of the next look at open minutes.
    look_at: Timestamp,
    forget_at: Timestamp,
}

impl Duty {
    /// Moves the times of what is to be done along with a clock that was set back.
    fn set_back(&mut self, step: Duration) {
        self.look_at = self.look_at - step;
        self.forget_at = self.forget_at - step;
        for open in self.open.values_mut() {
            open.again_at = open.again_at - step;
        }
    }
}

struct OpenMinute {
    again_at: Timestamp,
    figures: MinuteFigures,
    /// Messages open at the last look that have a record in topic `message`, counted by partition.
    waiting: BTreeMap<usize, u64>,
}

impl OpenMinute {
    /// True if all open messages wait in partitions that no carrier has begun: nothing changes
    /// before one does.
    fn waits_for_carriers(&self, left: &[MinuteRest]) -> bool {
        let waiting = self.waiting.iter().filter(|(partition, _)| {
            let left = left.get(**partition);
            left.is_some_and(|left| left.is_untouched && !left.offsets.is_empty())
        });
        let waiting: u64 = waiting.map(|(_, count)| count).sum();
        let all_wait = self.figures.missing == 0 && self.figures.in_flight == waiting;
        all_wait || left.iter().all(|left| left.is_untouched)
    }
}

impl Auditor {
    /// `worker`: a number unique to this process.
    pub fn new(
        log: Arc<Log>,
        ledger: Arc<dyn LedgerStore>,
        store: Arc<dyn AuditStore>,
        clock: Arc<dyn Clock>,
        worker: u64,
        config: Config,
    ) -> Auditor {
        Auditor {
            log,
            ledger,
            store,
            clock,
            config,
            worker,
            gauges: Arc::new(Gauges::new()),
            duty: None,
            seen: None,
            round_at: Timestamp::ZERO,
            is_ahead: false,
        }
    }

    /// Closes minutes until `stop`.
    pub async fn run(mut self, stop: CancellationToken) {
        let (gauges, clock, interval) = (
            self.gauges.clone(),
            self.clock.clone(),
            self.config.interval,
        );
        // The lag must show during a round, too, which may take long.
        let telling = async {
            loop {
                sleep(interval).await;
                gauges.lag(clock.now());
            }
        };
        let closing = async {
            let mut failures = 0;
            loop {
                let round = self.round().await;
                match &round {
                    Err(error) if failures == 0 => {
                        tracing::warn!(error = format!("{error:#}"), "no minute can be closed now");
                    }
                    Ok(()) if failures > 0 => tracing::info!("minutes are closed again"),
                    _ => {}
                }
                failures = if round.is_err() { failures + 1 } else { 0 };
                sleep(interval * 2_u32.pow(failures.min(DOUBLED))).await;
            }
        };
        stop.run_until_cancelled(async { tokio::join!(telling, closing) })
            .await;
    }

    /// Closes each minute that can be closed and looks at open ones that are due, if it is this
    /// process's turn.
    ///
    /// # Errors
    /// A log or a store that does not answer, or a log that is busy: the next round goes on.
    pub async fn round(&mut self) -> Result<()> {
        // Dropped if the round fails: state ahead of the chain is read again.
        let held = self.duty.take();
        let worked = self.work(held).await;
        self.gauges.lag(self.clock.now());
        match worked {
            Ok(duty) => self.duty = duty,
            Err(error) if error.is::<LeaseLoss>() => tracing::info!("{error}"),
            Err(error) => return Err(error),
        }
        let open = self.duty.iter().flat_map(|duty| duty.open.values());
        self.gauges.open(open.map(|open| open.figures));
        Ok(())
    }

    async fn work(&mut self, held: Option<Duty>) -> Result<Option<Duty>> {
        let standing = self.store.head().await?;
        let now = self.clock.now();
        let step = std::mem::replace(&mut self.round_at, now).since(now);
        if let Some(head) = &standing {
            self.gauges.closed_until(head.until);
            self.report_ahead(head.until, now);
        }
        let mine = held.filter(|duty| Some(duty.term.head()) == standing.as_ref());
        let mut duty = match (mine, standing) {
            (Some(mut duty), _) => {
                duty.set_back(step);
                duty
            }
            (None, Some(head)) if self.is_others(&head, now) => return Ok(None),
            (None, standing) => self.take_over(standing, now).await?,
        };
        while self.clock.now() >= duty.gather.due_at() {
            self.read(&mut duty).await?;
            let Some(next) = duty.gather.poll_move() else {
                break;
            };
            self.move_on(&mut duty, next).await?;
            self.gauges.closed_until(duty.term.head().until);
        }
        self.look_again(&mut duty).await?;
        self.forget(&mut duty).await?;
        duty.term.go_on().await?;
        Ok(Some(duty))
    }

    /// True if it is another process's turn. That one has fallen silent if the head is old by the
    /// clock, or has stood for as long while this process looked: the head may be of a clock that was
    /// ahead.
    fn is_others(&mut self, head: &ChainHead, now: Timestamp) -> bool {
        let seen = self.seen.filter(|(turn, _)| *turn == head.turn);
        let seen = seen.unwrap_or_else(|| (head.turn, Instant::now()));
        self.seen = Some(seen);
        let silence = now.since(head.at).max(seen.1.elapsed());
        head.worker != self.worker && silence < self.config.takeover
    }

    fn report_ahead(&mut self, until: Timestamp, now: Timestamp) {
        let is_ahead = until > now + MINUTE;
        if is_ahead && !self.is_ahead {
            tracing::warn!(
                until = %utc(until),
                "minutes are closed up to a time after this process's clock, which was set back: the next one is closed \
                 when the clock has caught up, and counts the messages accepted until then"
            );
        }
        self.is_ahead = is_ahead;
    }

    async fn take_over(&self, standing: Option<ChainHead>, now: Timestamp) -> Result<Duty> {
        let mut head = match standing {
            Some(head) => head,
            None => self.beginning(now).await?,
        };
        let partitions = self.log.partitions();
        if (head.place.epoch, head.place.from.len()) != (self.log.epoch(), partitions) {
            head.place = ChainPlace {
                epoch: self.log.epoch(),
                from: vec![0; partitions],
                counted: vec![0; partitions],
            };
        }
        let (store, clock) = (self.store.clone(), self.clock.clone());
        let term = Term::begin(store, clock, self.worker, head, self.config.takeover).await?;
        let head = term.head();
        if let Some(last) = &head.last {
            self.store.save(last).await?;
        }
        let mut open = BTreeMap::new();
        let mut rows = MinuteRows::of(self.store.as_ref(), head.open_from..head.until);
        while let Some(rows) = rows.next().await? {
            open.extend(rows.iter().filter_map(|row| still_open(row, now)));
        }
        tracing::info!(until = %utc(head.until), open = open.len(), "this process closes minutes");
        Ok(Duty {
            gather: MinuteBuilder::new(head.place.clone(), head.until, self.config.settle),
            term,
            open,
            look_at: now,
            forget_at: now,
        })
    }

    /// Head of a new chain, which begins with the present minute: earlier messages are audited on
    /// demand.
    async fn beginning(&self, now: Timestamp) -> Result<ChainHead> {
        let minute = minute_of(now);
        let turn = self.log.turn().await?;
        let mut place = ChainPlace {
            epoch: self.log.epoch(),
            ..ChainPlace::default()
        };
        for number in 0..self.log.partitions() {
            let (from, end) = turn.since(number, minute).await?;
            place.from.push(from);
            place.counted.push(end);
        }
        Ok(ChainHead {
            turn: 0,
            worker: self.worker,
            at: now,
            start: ChainLink::beginning(minute),
            until: minute,
            open_from: minute,
            place,
            last: None,
        })
    }

    /// Reads each partition as far as the next minute needs.
    async fn read(&self, duty: &mut Duty) -> Result<()> {
        let gather = &mut duty.gather;
        for number in 0..self.log.partitions() {
            let mut ended = false;
            while !ended && gather.wants(number).is_some() {
                let turn = duty.term.turn_at(&self.log).await?;
                let now = self.clock.now();
                let (first, end) = turn.bounds(number).await?;
                gather.handle_start(number, first);
                for _ in 0..PAGES {
                    let Some(next) = gather.wants(number) else {
                        break;
                    };
                    let page = turn.page(number, next..end).await?;
                    ended = page.is_empty();
                    if ended {
                        gather.handle_end(number, now);
                        break;
                    }
                    for (offset, appended_at, message) in page {
                        gather.handle_record(number, offset, appended_at, message);
                    }
                }
                drop(turn);
                if gather.held() > MESSAGES_MAX {
                    bail!(
                        "more than {MESSAGES_MAX} messages in a few minutes: the audit cannot hold them"
                    );
                }
                duty.term.go_on().await?;
            }
        }
        Ok(())
    }

    async fn move_on(&self, duty: &mut Duty, next: LogMove) -> Result<()> {
        let LogMove {
            until,
            place,
            closes,
        } = next;
        let Some((reading, ids)) = closes else {
            let quiet = |head: &mut ChainHead| (head.until, head.place) = (until, place);
            return duty.term.advance(quiet).await;
        };
        let MinuteReading {
            minute, accepted, ..
        } = reading;
        let now = self.clock.now();
        let left = self.left(duty, reading.epoch, &reading.stretches).await?;
        let (found, waiting) = self.found(duty, ids, left).await?;
        let open = (found.in_flight.len() + found.missing.len()) as u64;
        let then = MinuteFigures {
            settled: accepted - open,
            in_flight: found.in_flight.len() as u64,
            missing: found.missing.len() as u64,
            contradictions: found.contradictions,
        };
        let closed = ClosedMinute::after(duty.term.head().link(), reading, then);
        let open_from = duty.open.keys().next().copied().unwrap_or(minute);
        let forward = |head: &mut ChainHead| {
            (head.until, head.place) = (until, place);
            head.open_from = open_from;
            head.last = Some(closed.clone());
        };
        duty.term.advance(forward).await?;
        self.store.save(&closed).await?;
        self.gauges.closed();
        if closed.unread > 0 {
            let (minute, records) = (utc(minute), closed.unread);
            tracing::warn!(
                minute,
                records,
                "the log removed records before they were audited"
            );
        }
        let amendment = Amendment::of(&closed, now, &found);
        self.amend(duty, &closed, None, amendment, waiting).await
    }

    /// Finds the open messages of a minute that is being closed. Messages from a partition that no
    /// carrier has begun are in flight without a look.
    async fn found(
        &self,
        duty: &mut Duty,
        ids: Vec<(MessageId, usize)>,
        left: Option<Vec<MinuteRest>>,
    ) -> Result<(MinuteVerdict, BTreeMap<usize, u64>)> {
        let waits = |partition: usize| {
            left.as_ref()
                .is_some_and(|left| left[partition].is_untouched)
        };
        let (waiting, begun): (Vec<_>, Vec<_>) = ids
            .into_iter()
            .partition(|(_, partition)| waits(*partition));
        let begun: Vec<MessageId> = begun.into_iter().map(|(id, _)| id).collect();
        let finding = match begun.is_empty() {
            true => Finding::default(),
            false => {
                let left = left.map(|left| vec![begun_with(left)]);
                self.find(duty, &begun, left.as_deref()).await?
            }
        };
        let mut found = finding.among(&begun);
        let mut open = finding.waiting(&found.in_flight);
        for (id, partition) in waiting {
            found.in_flight.push(id);
            *open.entry(partition).or_default() += 1;
        }
        found.in_flight.sort_unstable();
        Ok((found, open))
    }

    /// Stores the result of a look at a closed minute, and keeps the minute open until it is
    /// settled.
    async fn amend(
        &self,
        duty: &mut Duty,
        closed: &ClosedMinute,
        before: Option<&Amendment>,
        amendment: Amendment,
        waiting: BTreeMap<usize, u64>,
    ) -> Result<()> {
        let minute = closed.minute;
        self.store.amend(minute, &amendment).await?;
        let figures = amendment.figures();
        let before = before.map(Amendment::figures).unwrap_or_default();
        let more = figures.contradictions.saturating_sub(before.contradictions);
        self.gauges.contradicted(more);
        if figures.missing > 0 && before.missing == 0 {
            let names = amendment.missing.first.iter().take(10);
            let names: Vec<_> = names.map(MessageId::to_string).collect();
            let missing = figures.missing;
            tracing::warn!(
                minute = utc(minute),
                missing,
                ?names,
                "messages are missing"
            );
        }
        if more > 0 {
            tracing::warn!(
                minute = utc(minute),
                more,
                "entries of the ledger contradict each other"
            );
        }
        if amendment.is_settled() {
            duty.open.remove(&minute);
        } else {
            let open = OpenMinute {
                again_at: again_at(&amendment, minute, self.clock.now()),
                figures,
                waiting,
            };
            duty.open.insert(minute, open);
        }
        Ok(())
    }

    /// Looks at all minutes that are due in one scan, so that the backlog of carriers is read once.
    async fn look_again(&self, duty: &mut Duty) -> Result<()> {
        let now = self.clock.now();
        if now < duty.look_at {
            return Ok(());
        }
        let looks = self.due(duty, now).await?;
        let ids: BTreeSet<MessageId> = looks.iter().flat_map(|look| &look.ids).copied().collect();
        let left: Option<Vec<_>> = looks.iter().map(|look| look.left.clone()).collect();
        let finding = match ids.is_empty() {
            true => Finding::default(),
            false => {
                let ids = Vec::from_iter(ids);
                self.find(duty, &ids, left.as_deref()).await?
            }
        };
        for Look {
            closed,
            before,
            ids,
            ..
        } in looks
        {
            let found = finding.among(&ids);
            let amendment = match &before {
                Some(before) => before.amended(&closed, look_after(before, now), &found),
                None => Amendment::of(&closed, now, &found),
            };
            let waiting = finding.waiting(&found.in_flight);
            self.amend(duty, &closed, before.as_ref(), amendment, waiting)
                .await?;
        }
        let ended = self.clock.now();
        duty.look_at = ended + ended.since(now) * REST;
        Ok(())
    }

    /// Minutes to look at now. A minute whose open messages no carrier has begun is unchanged, and
    /// is recorded as such without a look.
    async fn due(&self, duty: &mut Duty, now: Timestamp) -> Result<Vec<Look>> {
        let due = duty.open.iter().filter(|(_, open)| open.again_at <= now);
        let due: Vec<Timestamp> = due.map(|(&minute, _)| minute).take(AGAIN).collect();
        let (mut looks, mut messages) = (Vec::new(), 0);
        for minute in due {
            duty.term.go_on().await?;
            let row = self.store.rows(minute..minute + MINUTE, 1).await?.pop();
            let Some((closed, before)) = row.and_then(|row| Some((row.closed?, row.amendment)))
            else {
                // Row removed or unreadable: a verification names it.
                duty.open.remove(&minute);
                continue;
            };
            let left = self.left(duty, closed.epoch, &closed.stretches).await?;
            let open = duty.open.get(&minute).zip(left.as_ref());
            let same = open.filter(|(open, left)| open.waits_for_carriers(left));
            if let (Some((open, _)), Some(before)) = (same, &before) {
                let same = before.seen_again(&closed, look_after(before, now));
                let waiting = open.waiting.clone();
                self.amend(duty, &closed, Some(before), same, waiting)
                    .await?;
                continue;
            }
            let ids = match before.as_ref().and_then(Amendment::open) {
                Some(open) => Some(open),
                None => self.ids_of(duty, &closed).await?,
            };
            let Some(ids) = ids else {
                // Too many ids to be stored, and the log has dropped their records.
                duty.open.remove(&minute);
                continue;
            };
            messages += ids.len();
            if messages > AGAIN_MESSAGES && !looks.is_empty() {
                break;
            }
            looks.push(Look {
                closed,
                before,
                ids,
                left,
            });
        }
        Ok(looks)
    }

    async fn find(
        &self,
        duty: &mut Duty,
        ids: &[MessageId],
        left: Option<&[Vec<MinuteRest>]>,
    ) -> Result<Finding> {
        let seeker = Seeker::Auditor(&self.log, &mut duty.term);
        find(seeker, self.ledger.as_ref(), ids, left).await
    }

    async fn left(
        &self,
        duty: &mut Duty,
        epoch: u32,
        stretches: &[OffsetRange],
    ) -> Result<Option<Vec<MinuteRest>>> {
        let turn = duty.term.turn_at(&self.log).await?;
        turn.left(epoch, stretches).await
    }

    /// Ids that a minute counted, from the log; `None` if the log has dropped some of the records.
    async fn ids_of(
        &self,
        duty: &mut Duty,
        closed: &ClosedMinute,
    ) -> Result<Option<Vec<MessageId>>> {
        let turn = duty.term.turn_at(&self.log).await?;
        let ids = turn.ids_of(closed).await?;
        Ok(ids.map(|ids| ids.into_iter().collect()))
    }

    /// Removes minutes past their retention. Moves the start of the chain in the head first, so
    /// that no verification misses them.
    async fn forget(&self, duty: &mut Duty) -> Result<()> {
        let now = self.clock.now();
        if now < duty.forget_at {
            return Ok(());
        }
        duty.forget_at = now + FORGET_EVERY;
        let cut = minute_of(now - self.config.retention).min(duty.term.head().until);
        let start = duty.term.head().start;
        let mut rows = MinuteRows::of(self.store.as_ref(), start.minute..cut);
        let mut last = None;
        while let Some(rows) = rows.next().await? {
            let closed = rows.iter().filter_map(|row| row.closed.as_ref());
            last = closed.map(ClosedMinute::link).next_back().or(last);
        }
        let Some(last) = last.filter(|last| last.number > start.number) else {
            return Ok(());
        };
        duty.term.advance(|head| head.start = last).await?;
        duty.open.retain(|&minute, _| minute >= cut);
        self.store.forget(start.minute - FORGOTTEN..cut).await?;
        Ok(())
    }
}

/// A closed minute that is due, and its messages to look at.
struct Look {
    closed: ClosedMinute,
    before: Option<Amendment>,
    /// In ascending order.
    ids: Vec<MessageId>,
    left: Option<Vec<MinuteRest>>,
}

/// Empties the ranges of partitions that no carrier has begun: nothing has to be read there.
fn begun_with(mut left: Vec<MinuteRest>) -> Vec<MinuteRest> {
    for MinuteRest { offsets, .. } in left.iter_mut().filter(|left| left.is_untouched) {
        offsets.start = offsets.end;
    }
    left
}

/// Time of a look, after the one before: the later amendment stays, also of a clock that was set
/// back.
fn look_after(before: &Amendment, now: Timestamp) -> Timestamp {
    now.max(before.looked_at + Duration::from_millis(1))
}

/// Time of the next look at a minute. Soon, if the last one was under a clock that was ahead: nobody
/// knows when that was.
fn again_at(amendment: &Amendment, minute: Timestamp, now: Timestamp) -> Timestamp {
    match amendment.looked_at > now {
        true => now + MINUTE,
        false => amendment.again_at(minute),
    }
}

fn still_open(row: &MinuteRow, now: Timestamp) -> Option<(Timestamp, OpenMinute)> {
    let closed = row.closed.as_ref()?;
    let open = match &row.amendment {
        Some(amendment) if amendment.is_settled() => return None,
        Some(amendment) => OpenMinute {
            again_at: again_at(amendment, closed.minute, now),
            figures: amendment.figures(),
            waiting: BTreeMap::new(),
        },
        None => OpenMinute {
            again_at: now,
            figures: closed.then,
            waiting: BTreeMap::new(),
        },
    };
    Some((row.minute, open))
}
