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
    MinuteVerdict, OffsetRange, minute_start,
};
use protocol::pause::doubled;
use protocol::{MessageId, Timestamp};
use tokio::time::{Instant, sleep};
use tokio_util::sync::CancellationToken;

pub use self::config::Config;
use self::gauges::Gauges;
use self::lease::LeaseLoss;
pub(super) use self::lease::Term;
use super::MESSAGES_MAX;
use super::log::{Log, MinuteRest, PAGES};
use super::minute_builder::{LogMove, MinuteBuilder};
use super::minute_rows::MinuteRows;
use super::open_messages::{Finding, Seeker, find};
use crate::answer::utc;

/// Open minutes looked at again in one round, and limit of their messages (the first minute always
/// fits).
const MINUTES_PER_LOOK: usize = 60;
const MESSAGES_PER_LOOK: usize = 100_000;
/// Pause after a look, as a multiple of the look's duration: with a long backlog, each look reads
/// all of it.
const REST: u32 = 4;
/// Intervals before a failed round is tried again, at most; they double with each failure.
const INTERVALS_MAX: u32 = 32;
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
    last_seen: Option<(u64, Instant)>,
    /// Start of the last round: the clock was set back if it is later than the next one.
    round_at: Timestamp,
    /// True once it was reported that minutes of the future are closed.
    is_ahead: bool,
}

/// State of the auditor whose turn it is.
struct Duty {
    term: Term,
    builder: MinuteBuilder,
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
    waiting_counts: BTreeMap<usize, u64>,
}

impl OpenMinute {
    /// Whether all open messages wait in partitions that no carrier has begun: nothing changes
    /// before one does.
    fn waits_for_carriers(&self, backlog: &[MinuteRest]) -> bool {
        let waiting_count = self.waiting_counts.iter().filter(|(partition, _)| {
            let rest = backlog.get(**partition);
            rest.is_some_and(|rest| rest.is_untouched && !rest.offsets.is_empty())
        });
        let waiting_count: u64 = waiting_count.map(|(_, count)| count).sum();
        let all_wait = self.figures.missing == 0 && self.figures.in_flight == waiting_count;
        all_wait || backlog.iter().all(|rest| rest.is_untouched)
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
            last_seen: None,
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
        let lag_loop = async {
            loop {
                sleep(interval).await;
                gauges.lag(clock.now());
            }
        };
        let round_loop = async {
            let mut failures = 0;
            loop {
                let round = self.round().await;
                match &round {
                    Err(error) if failures == 0 => {
                        tracing::warn!(error = format!("{error:#}"), "cannot close audit minutes");
                    }
                    Ok(()) if failures > 0 => {
                        tracing::info!("audit minutes are being closed again")
                    }
                    _ => {}
                }
                failures = if round.is_err() { failures + 1 } else { 0 };
                sleep(doubled(interval, failures, interval * INTERVALS_MAX)).await;
            }
        };
        stop.run_until_cancelled(async { tokio::join!(lag_loop, round_loop) })
            .await;
    }

    /// Closes each minute that can be closed and looks at open ones that are due, if it is this
    /// process's turn.
    ///
    /// # Errors
    /// A log or a store that does not answer, or a log that is busy: the next round goes on.
    pub async fn round(&mut self) -> Result<()> {
        // Dropped if the round fails: state ahead of the chain is read again.
        let old_duty = self.duty.take();
        let outcome = self.work(old_duty).await;
        self.gauges.lag(self.clock.now());
        match outcome {
            Ok(duty) => self.duty = duty,
            Err(error) if error.is::<LeaseLoss>() => tracing::info!("{error}"),
            Err(error) => return Err(error),
        }
        let open = self.duty.iter().flat_map(|duty| duty.open.values());
        self.gauges.open(open.map(|open| open.figures));
        Ok(())
    }

    async fn work(&mut self, old_duty: Option<Duty>) -> Result<Option<Duty>> {
        let stored_head = self.store.head().await?;
        let now = self.clock.now();
        let step = std::mem::replace(&mut self.round_at, now).since(now);
        if let Some(head) = &stored_head {
            self.gauges.closed_until(head.until);
            self.report_ahead(head.until, now);
        }
        let own_duty = old_duty.filter(|duty| Some(duty.term.head()) == stored_head.as_ref());
        let mut duty = match (own_duty, stored_head) {
            (Some(mut duty), _) => {
                duty.set_back(step);
                duty
            }
            (None, Some(head)) if self.is_others(&head, now) => return Ok(None),
            (None, stored_head) => self.take_over(stored_head, now).await?,
        };
        while self.clock.now() >= duty.builder.due_at() {
            self.read(&mut duty).await?;
            let Some(next) = duty.builder.poll_move() else {
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

    /// Whether it is another process's turn. That one has fallen silent if the head is old by the
    /// clock, or has stood for as long while this process looked: the head may be of a clock that was
    /// ahead.
    fn is_others(&mut self, head: &ChainHead, now: Timestamp) -> bool {
        let last_seen = self.last_seen.filter(|(turn, _)| *turn == head.turn);
        let last_seen = last_seen.unwrap_or_else(|| (head.turn, Instant::now()));
        self.last_seen = Some(last_seen);
        let silence = now.since(head.at).max(last_seen.1.elapsed());
        head.worker != self.worker && silence < self.config.takeover
    }

    fn report_ahead(&mut self, closed_until: Timestamp, now: Timestamp) {
        let is_ahead = closed_until > now + MINUTE;
        if is_ahead && !self.is_ahead {
            tracing::warn!(
                until = %utc(closed_until),
                "audit minutes are closed up to a time in the future, as a fast clock was set \
                 back: the next one closes once the clock has caught up, and counts the messages \
                 accepted until then"
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
        tracing::info!(until = %utc(head.until), open = open.len(), "this process now closes audit minutes");
        Ok(Duty {
            builder: MinuteBuilder::new(head.place.clone(), head.until, self.config.settle),
            term,
            open,
            look_at: now,
            forget_at: now,
        })
    }

    /// Head of a new chain, which begins with the present minute: earlier messages are audited on
    /// demand.
    async fn beginning(&self, now: Timestamp) -> Result<ChainHead> {
        let minute = minute_start(now);
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
        let builder = &mut duty.builder;
        for number in 0..self.log.partitions() {
            let mut is_at_end = false;
            while !is_at_end && builder.wants(number).is_some() {
                let turn = duty.term.turn_at(&self.log).await?;
                let now = self.clock.now();
                let (first, end) = turn.bounds(number).await?;
                builder.handle_start(number, first);
                for _ in 0..PAGES {
                    let Some(next) = builder.wants(number) else {
                        break;
                    };
                    let page = turn.page(number, next..end).await?;
                    is_at_end = page.is_empty();
                    if is_at_end {
                        builder.handle_end(number, now);
                        break;
                    }
                    for (offset, appended_at, message) in page {
                        builder.handle_record(number, offset, appended_at, message);
                    }
                }
                drop(turn);
                if builder.held() > MESSAGES_MAX {
                    bail!(
                        "more than {MESSAGES_MAX} messages in a few minutes: too many for the audit"
                    );
                }
                duty.term.go_on().await?;
            }
        }
        Ok(())
    }

    async fn move_on(&self, duty: &mut Duty, next: LogMove) -> Result<()> {
        let LogMove {
            closed_until,
            place,
            closes,
        } = next;
        let Some((reading, ids)) = closes else {
            let quiet = |head: &mut ChainHead| (head.until, head.place) = (closed_until, place);
            return duty.term.advance(quiet).await;
        };
        let MinuteReading {
            minute,
            accepted_count,
            ..
        } = reading;
        let now = self.clock.now();
        let backlog = self
            .read_backlog(duty, reading.epoch, &reading.stretches)
            .await?;
        let (verdict, waiting_counts) = self.find_open(duty, ids, backlog).await?;
        let open = (verdict.in_flight_ids.len() + verdict.missing_ids.len()) as u64;
        let figures = MinuteFigures {
            settled: accepted_count - open,
            in_flight: verdict.in_flight_ids.len() as u64,
            missing: verdict.missing_ids.len() as u64,
            contradictions: verdict.contradictions,
        };
        let closed_minute = ClosedMinute::after(duty.term.head().link(), reading, figures);
        let open_from = duty.open.keys().next().copied().unwrap_or(minute);
        let forward = |head: &mut ChainHead| {
            (head.until, head.place) = (closed_until, place);
            head.open_from = open_from;
            head.last = Some(closed_minute.clone());
        };
        duty.term.advance(forward).await?;
        self.store.save(&closed_minute).await?;
        self.gauges.count_closed();
        if closed_minute.unread > 0 {
            let (minute, records) = (utc(minute), closed_minute.unread);
            tracing::warn!(
                minute,
                records,
                "retention removed records before they were audited"
            );
        }
        let amendment = Amendment::of(&closed_minute, now, &verdict);
        self.amend(duty, &closed_minute, None, amendment, waiting_counts)
            .await
    }

    /// Finds the open messages of a minute that is being closed. Messages from a partition that no
    /// carrier has begun are in flight without a look.
    async fn find_open(
        &self,
        duty: &mut Duty,
        ids: Vec<(MessageId, usize)>,
        backlog: Option<Vec<MinuteRest>>,
    ) -> Result<(MinuteVerdict, BTreeMap<usize, u64>)> {
        let waits = |partition: usize| {
            backlog
                .as_ref()
                .is_some_and(|backlog| backlog[partition].is_untouched)
        };
        let (untouched_ids, begun_ids): (Vec<_>, Vec<_>) = ids
            .into_iter()
            .partition(|(_, partition)| waits(*partition));
        let begun_ids: Vec<MessageId> = begun_ids.into_iter().map(|(id, _)| id).collect();
        let finding = if begun_ids.is_empty() {
            Finding::default()
        } else {
            let backlog = backlog.map(|backlog| vec![skip_untouched(backlog)]);
            self.find(duty, &begun_ids, backlog.as_deref()).await?
        };
        let mut verdict = finding.among(&begun_ids);
        let mut open = finding.count_waiting(&verdict.in_flight_ids);
        for (id, partition) in untouched_ids {
            verdict.in_flight_ids.push(id);
            *open.entry(partition).or_default() += 1;
        }
        verdict.in_flight_ids.sort_unstable();
        Ok((verdict, open))
    }

    /// Stores the result of a look at a closed minute, and keeps the minute open until it is
    /// settled.
    async fn amend(
        &self,
        duty: &mut Duty,
        closed_minute: &ClosedMinute,
        previous: Option<&Amendment>,
        amendment: Amendment,
        waiting_counts: BTreeMap<usize, u64>,
    ) -> Result<()> {
        let minute = closed_minute.minute;
        self.store.amend(minute, &amendment).await?;
        let figures = amendment.figures();
        let previous = previous.map(Amendment::figures).unwrap_or_default();
        let more = figures
            .contradictions
            .saturating_sub(previous.contradictions);
        self.gauges.count_contradictions(more);
        if figures.missing > 0 && previous.missing == 0 {
            let names = amendment.missing.first.iter().take(10);
            let names: Vec<_> = names.map(MessageId::to_string).collect();
            let missing_count = figures.missing;
            tracing::warn!(
                minute = utc(minute),
                missing = missing_count,
                ?names,
                "messages are missing"
            );
        }
        if more > 0 {
            tracing::warn!(
                minute = utc(minute),
                more,
                "ledger entries contradict each other"
            );
        }
        if amendment.is_settled() {
            duty.open.remove(&minute);
        } else {
            let open = OpenMinute {
                again_at: again_at(&amendment, minute, self.clock.now()),
                figures,
                waiting_counts,
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
        let looks = self.find_due(duty, now).await?;
        let ids: BTreeSet<MessageId> = looks.iter().flat_map(|look| &look.ids).copied().collect();
        let backlogs: Option<Vec<_>> = looks.iter().map(|look| look.backlog.clone()).collect();
        let finding = if ids.is_empty() {
            Finding::default()
        } else {
            let ids = Vec::from_iter(ids);
            self.find(duty, &ids, backlogs.as_deref()).await?
        };
        for Look {
            closed_minute,
            previous,
            ids,
            ..
        } in looks
        {
            let verdict = finding.among(&ids);
            let amendment = match &previous {
                Some(previous) => {
                    previous.amended(&closed_minute, look_after(previous, now), &verdict)
                }
                None => Amendment::of(&closed_minute, now, &verdict),
            };
            let waiting_counts = finding.count_waiting(&verdict.in_flight_ids);
            self.amend(
                duty,
                &closed_minute,
                previous.as_ref(),
                amendment,
                waiting_counts,
            )
            .await?;
        }
        let end = self.clock.now();
        duty.look_at = end + end.since(now) * REST;
        Ok(())
    }

    /// Minutes to look at now. A minute whose open messages no carrier has begun is unchanged, and
    /// is recorded as such without a look.
    async fn find_due(&self, duty: &mut Duty, now: Timestamp) -> Result<Vec<Look>> {
        let due_minutes = duty.open.iter().filter(|(_, open)| open.again_at <= now);
        let due_minutes: Vec<Timestamp> = due_minutes
            .map(|(&minute, _)| minute)
            .take(MINUTES_PER_LOOK)
            .collect();
        let (mut looks, mut messages) = (Vec::new(), 0);
        for minute in due_minutes {
            duty.term.go_on().await?;
            let row = self.store.rows(minute..minute + MINUTE, 1).await?.pop();
            let Some((closed_minute, previous)) =
                row.and_then(|row| Some((row.closed_minute?, row.amendment)))
            else {
                // Row removed or unreadable: a verification names it.
                duty.open.remove(&minute);
                continue;
            };
            let backlog = self
                .read_backlog(duty, closed_minute.epoch, &closed_minute.stretches)
                .await?;
            let open = duty.open.get(&minute).zip(backlog.as_ref());
            let same = open.filter(|(open, backlog)| open.waits_for_carriers(backlog));
            if let (Some((open, _)), Some(previous)) = (same, &previous) {
                let same = previous.rechecked(&closed_minute, look_after(previous, now));
                let waiting_counts = open.waiting_counts.clone();
                self.amend(duty, &closed_minute, Some(previous), same, waiting_counts)
                    .await?;
                continue;
            }
            let ids = match previous.as_ref().and_then(Amendment::open) {
                Some(open) => Some(open),
                None => self.read_ids(duty, &closed_minute).await?,
            };
            let Some(ids) = ids else {
                // Too many ids to be stored, and the log has dropped their records.
                duty.open.remove(&minute);
                continue;
            };
            messages += ids.len();
            if messages > MESSAGES_PER_LOOK && !looks.is_empty() {
                break;
            }
            looks.push(Look {
                closed_minute,
                previous,
                ids,
                backlog,
            });
        }
        Ok(looks)
    }

    async fn find(
        &self,
        duty: &mut Duty,
        ids: &[MessageId],
        backlogs: Option<&[Vec<MinuteRest>]>,
    ) -> Result<Finding> {
        let seeker = Seeker::Auditor(&self.log, &mut duty.term);
        find(seeker, self.ledger.as_ref(), ids, backlogs).await
    }

    async fn read_backlog(
        &self,
        duty: &mut Duty,
        epoch: u32,
        stretches: &[OffsetRange],
    ) -> Result<Option<Vec<MinuteRest>>> {
        let turn = duty.term.turn_at(&self.log).await?;
        turn.read_backlog(epoch, stretches).await
    }

    /// Ids that a minute counted, from the log; `None` if the log has dropped some of the records.
    async fn read_ids(
        &self,
        duty: &mut Duty,
        closed_minute: &ClosedMinute,
    ) -> Result<Option<Vec<MessageId>>> {
        let turn = duty.term.turn_at(&self.log).await?;
        let ids = turn.read_ids(closed_minute).await?;
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
        let cut = minute_start(now - self.config.retention).min(duty.term.head().until);
        let start = duty.term.head().start;
        let mut rows = MinuteRows::of(self.store.as_ref(), start.minute..cut);
        let mut last = None;
        while let Some(rows) = rows.next().await? {
            let closed_minutes = rows.iter().filter_map(|row| row.closed_minute.as_ref());
            last = closed_minutes.map(ClosedMinute::link).next_back().or(last);
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
    closed_minute: ClosedMinute,
    previous: Option<Amendment>,
    /// In ascending order.
    ids: Vec<MessageId>,
    backlog: Option<Vec<MinuteRest>>,
}

/// Empties the ranges of partitions that no carrier has begun: nothing has to be read there.
fn skip_untouched(mut backlog: Vec<MinuteRest>) -> Vec<MinuteRest> {
    for MinuteRest { offsets, .. } in backlog.iter_mut().filter(|rest| rest.is_untouched) {
        offsets.start = offsets.end;
    }
    backlog
}

/// Time of a look, after the one before: the later amendment stays, also of a clock that was set
/// back.
fn look_after(previous: &Amendment, now: Timestamp) -> Timestamp {
    now.max(previous.looked_at + Duration::from_millis(1))
}

/// Time of the next look at a minute. Soon, if the last one was under a clock that was ahead: nobody
/// knows when that was.
fn again_at(amendment: &Amendment, minute: Timestamp, now: Timestamp) -> Timestamp {
    if amendment.looked_at > now {
        now + MINUTE
    } else {
        amendment.again_at(minute)
    }
}

fn still_open(row: &MinuteRow, now: Timestamp) -> Option<(Timestamp, OpenMinute)> {
    let closed_minute = row.closed_minute.as_ref()?;
    let open = match &row.amendment {
        Some(amendment) if amendment.is_settled() => return None,
        Some(amendment) => OpenMinute {
            again_at: again_at(amendment, closed_minute.minute, now),
            figures: amendment.figures(),
            waiting_counts: BTreeMap::new(),
        },
        None => OpenMinute {
            again_at: now,
            figures: closed_minute.then,
            waiting_counts: BTreeMap::new(),
        },
    };
    Some((row.minute, open))
}
