//! The continuous audit: closes minute after minute, and looks at open ones until they are settled.
//!
//! ```text
//! log ─▶ Gather ─▶ minute ─▶ ledger: what became of it ─▶ head (compare and set) ─▶ row, amendment
//! ```
//!
//! Every process with a desk has one; one at a time works. Which one, the head says: it bears who moved it
//! last and when, and a head is replaced only by who knows it. So two that both believe it is their turn
//! never fork the chain: one of them is refused, and rests. The row is written after the head, which bears it
//! whole: whoever takes over writes it again.

mod config;
mod gauges;
mod term;
#[cfg(test)]
mod tests;

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::Duration;

use anyhow::{Result, bail};
use backend::audit::AuditStore;
use backend::clock::Clock;
use backend::ledger::LedgerStore;
use protocol::ledger::chain::{Head, Place};
use protocol::ledger::gather::{Gather, Move};
use protocol::ledger::minute::{
    Amendment, Closed, Figures, Found, Link, MINUTE, Reading, Row, Stretch, minute_of,
};
use protocol::{MessageId, Timestamp};
use tokio::time::sleep;
use tokio_util::sync::CancellationToken;

pub use self::config::Config;
use self::gauges::Gauges;
use self::term::Overtaken;
pub(super) use self::term::Term;
use super::audit::MESSAGES_MAX;
use super::find::{Finding, Seeker, find};
use super::log::{Left, Log, PAGES};
use super::rows::Rows;
use super::utc::utc;

/// Open minutes that are looked at again in one round, and messages of theirs (or the first minute's).
const AGAIN: usize = 60;
const AGAIN_MESSAGES: usize = 100_000;
/// After a look it rests so many times as long as that took: where much is carried, each look reads all of it.
const REST: u32 = 4;
/// A round that failed is tried again after the interval, then ever later, this many times doubled at most.
const DOUBLED: u32 = 5;
/// How often old minutes are removed.
const FORGET_EVERY: Duration = Duration::from_secs(3600);
/// Removed once more, in case it was broken off.
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
}

/// What the one who works holds.
struct Duty {
    term: Term,
    gather: Gather,
    /// Closed minutes that are not settled, and when they are looked at again.
    open: BTreeMap<Timestamp, Open>,
    /// Not before.
    look_at: Timestamp,
    forget_at: Timestamp,
}

struct Open {
    again_at: Timestamp,
    figures: Figures,
    /// How many messages that were open when it was last looked at have a record in each partition of topic
    /// `message`.
    waiting: BTreeMap<usize, u64>,
}

impl Open {
    /// Whether its open messages all wait in partitions that no carrier has begun with: then nothing changes
    /// before one does.
    fn waits_for_carriers(&self, left: &[Left]) -> bool {
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
    /// `worker`: a number that no other process has.
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
        }
    }

    /// Closes minutes until `stop`.
    pub async fn run(mut self, stop: CancellationToken) {
        let (gauges, clock, interval) = (
            self.gauges.clone(),
            self.clock.clone(),
            self.config.interval,
        );
        // A round may take long, and that must show.
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

    /// Closes what can be closed and looks at what is due, if it is this process's turn.
    ///
    /// # Errors
    /// A log or a store that does not answer, or a log that others read: the next round goes on.
    pub async fn round(&mut self) -> Result<()> {
        // Whatever fails in between: what is held may be ahead of the chain, and is read again.
        let held = self.duty.take();
        let worked = self.work(held).await;
        self.gauges.lag(self.clock.now());
        match worked {
            Ok(duty) => self.duty = duty,
            Err(error) if error.is::<Overtaken>() => tracing::info!("{error}"),
            Err(error) => return Err(error),
        }
        let open = self.duty.iter().flat_map(|duty| duty.open.values());
        self.gauges.open(open.map(|open| open.figures));
        Ok(())
    }

    async fn work(&self, held: Option<Duty>) -> Result<Option<Duty>> {
        let standing = self.store.head().await?;
        let now = self.clock.now();
        if let Some(head) = &standing {
            self.gauges.closed_until(head.until);
        }
        let mine = held.filter(|duty| Some(duty.term.head()) == standing.as_ref());
        let mut duty = match (mine, standing) {
            (Some(duty), _) => duty,
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

    fn is_others(&self, head: &Head, now: Timestamp) -> bool {
        head.worker != self.worker && now.since(head.at) < self.config.takeover
    }

    async fn take_over(&self, standing: Option<Head>, now: Timestamp) -> Result<Duty> {
        let mut head = match standing {
            Some(head) => head,
            None => self.beginning(now).await?,
        };
        let partitions = self.log.partitions();
        if (head.place.epoch, head.place.from.len()) != (self.log.epoch(), partitions) {
            head.place = Place {
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
        let mut rows = Rows::of(self.store.as_ref(), head.open_from..head.until);
        while let Some(rows) = rows.next().await? {
            open.extend(rows.iter().filter_map(|row| still_open(row, now)));
        }
        tracing::info!(until = %utc(head.until), open = open.len(), "this process closes minutes");
        Ok(Duty {
            gather: Gather::new(head.place.clone(), head.until, self.config.settle),
            term,
            open,
            look_at: now,
            forget_at: now,
        })
    }

    /// The chain begins with the present minute: what was accepted before is audited on demand.
    async fn beginning(&self, now: Timestamp) -> Result<Head> {
        let minute = minute_of(now);
        let turn = self.log.turn().await?;
        let mut place = Place {
            epoch: self.log.epoch(),
            ..Place::default()
        };
        for number in 0..self.log.partitions() {
            let (from, end) = turn.since(number, minute).await?;
            place.from.push(from);
            place.counted.push(end);
        }
        Ok(Head {
            turn: 0,
            worker: self.worker,
            at: now,
            start: Link::beginning(minute),
            until: minute,
            open_from: minute,
            place,
            last: None,
        })
    }

    /// Reads each partition as far as the next minute needs it.
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

    async fn move_on(&self, duty: &mut Duty, next: Move) -> Result<()> {
        let Move {
            until,
            place,
            closes,
        } = next;
        let Some((reading, ids)) = closes else {
            let quiet = |head: &mut Head| (head.until, head.place) = (until, place);
            return duty.term.advance(quiet).await;
        };
        let Reading {
            minute, accepted, ..
        } = reading;
        let now = self.clock.now();
        let left = self.left(duty, reading.epoch, &reading.stretches).await?;
        let (found, waiting) = self.found(duty, ids, left).await?;
        let open = (found.in_flight.len() + found.missing.len()) as u64;
        let then = Figures {
            settled: accepted - open,
            in_flight: found.in_flight.len() as u64,
            missing: found.missing.len() as u64,
            contradictions: found.contradictions,
        };
        let closed = Closed::after(duty.term.head().link(), reading, then);
        let open_from = duty.open.keys().next().copied().unwrap_or(minute);
        let forward = |head: &mut Head| {
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

    /// What is open of a minute that is being closed. What was read from a partition that no carrier has begun
    /// with is in flight, and nobody is asked.
    async fn found(
        &self,
        duty: &mut Duty,
        ids: Vec<(MessageId, usize)>,
        left: Option<Vec<Left>>,
    ) -> Result<(Found, BTreeMap<usize, u64>)> {
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

    /// Keeps what has become of a minute.
    async fn amend(
        &self,
        duty: &mut Duty,
        closed: &Closed,
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
            let open = Open {
                again_at: amendment.again_at(minute),
                figures,
                waiting,
            };
            duty.open.insert(minute, open);
        }
        Ok(())
    }

    /// Looks at what is due, all at once: what is carried is read once for all of it.
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
                Some(before) => before.amended(&closed, now, &found),
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

    /// The minutes to be looked at now. Those whose open messages no carrier has begun with are as they were.
    async fn due(&self, duty: &mut Duty, now: Timestamp) -> Result<Vec<Look>> {
        let due = duty.open.iter().filter(|(_, open)| open.again_at <= now);
        let due: Vec<Timestamp> = due.map(|(&minute, _)| minute).take(AGAIN).collect();
        let (mut looks, mut messages) = (Vec::new(), 0);
        for minute in due {
            duty.term.go_on().await?;
            let row = self.store.rows(minute..minute + MINUTE, 1).await?.pop();
            let Some((closed, before)) = row.and_then(|row| Some((row.closed?, row.amendment)))
            else {
                // It was removed, or cannot be read: a verification names it.
                duty.open.remove(&minute);
                continue;
            };
            let left = self.left(duty, closed.epoch, &closed.stretches).await?;
            let open = duty.open.get(&minute).zip(left.as_ref());
            let same = open.filter(|(open, left)| open.waits_for_carriers(left));
            if let (Some((open, _)), Some(before)) = (same, &before) {
                let (waiting, same) = (open.waiting.clone(), before.seen_again(&closed, now));
                self.amend(duty, &closed, Some(before), same, waiting)
                    .await?;
                continue;
            }
            let ids = match before.as_ref().and_then(Amendment::open) {
                Some(open) => Some(open),
                None => self.ids_of(duty, &closed).await?,
            };
            let Some(ids) = ids else {
                // Too many to have names, and the log does not have them any more.
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
        left: Option<&[Vec<Left>]>,
    ) -> Result<Finding> {
        let seeker = Seeker::Auditor(&self.log, &mut duty.term);
        find(seeker, self.ledger.as_ref(), ids, left).await
    }

    async fn left(
        &self,
        duty: &mut Duty,
        epoch: u32,
        stretches: &[Stretch],
    ) -> Result<Option<Vec<Left>>> {
        let turn = duty.term.turn_at(&self.log).await?;
        turn.left(epoch, stretches).await
    }

    /// The ids that a minute counted, from the log; `None` where that has forgotten a part of them.
    async fn ids_of(&self, duty: &mut Duty, closed: &Closed) -> Result<Option<Vec<MessageId>>> {
        let turn = duty.term.turn_at(&self.log).await?;
        let ids = turn.ids_of(closed).await?;
        Ok(ids.map(|ids| ids.into_iter().collect()))
    }

    /// Removes minutes that are too old. The head tells first where the chain begins then, so that nobody
    /// misses them.
    async fn forget(&self, duty: &mut Duty) -> Result<()> {
        let now = self.clock.now();
        if now < duty.forget_at {
            return Ok(());
        }
        duty.forget_at = now + FORGET_EVERY;
        let cut = minute_of(now - self.config.retention).min(duty.term.head().until);
        let start = duty.term.head().start;
        let mut rows = Rows::of(self.store.as_ref(), start.minute..cut);
        let mut last = None;
        while let Some(rows) = rows.next().await? {
            let closed = rows.iter().filter_map(|row| row.closed.as_ref());
            last = closed.map(Closed::link).next_back().or(last);
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

/// A closed minute that is due, and the messages to be looked at.
struct Look {
    closed: Closed,
    before: Option<Amendment>,
    /// In order.
    ids: Vec<MessageId>,
    left: Option<Vec<Left>>,
}

/// What is left of partitions that a carrier has begun with: of the others nothing has to be read.
fn begun_with(mut left: Vec<Left>) -> Vec<Left> {
    for Left { offsets, .. } in left.iter_mut().filter(|left| left.is_untouched) {
        offsets.start = offsets.end;
    }
    left
}

fn still_open(row: &Row, now: Timestamp) -> Option<(Timestamp, Open)> {
    let closed = row.closed.as_ref()?;
    let open = match &row.amendment {
        Some(amendment) if amendment.is_settled() => return None,
        Some(amendment) => Open {
            again_at: amendment.again_at(closed.minute),
            figures: amendment.figures(),
            waiting: BTreeMap::new(),
        },
        None => Open {
            again_at: now,
            figures: closed.then,
            waiting: BTreeMap::new(),
        },
    };
    Some((row.minute, open))
}
