//! Minutes are closed over a log in memory, by one and by several.

use std::collections::BTreeSet;
use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};

use async_trait::async_trait;
use backend::audit::EmbeddedAudit;
use backend::clock::TimerClock;
use backend::embedded::Engine;
use backend::hook::{Hook, Hooked, Op};
use backend::queue::Queue;
use metrics_exporter_prometheus::PrometheusBuilder;
use protocol::ledger::chain::{ChainFlaw, ChainWalk};
use protocol::ledger::minute::{Digest, MinuteVerdict};
use protocol::ledger::{LedgerEntry, LedgerEvent};
use protocol::{ConversationId, SendId, Seq, UserId};
use tokio::time::advance;

use super::*;
use crate::answer::Time;
use crate::audit::answer::answer;
use crate::audit::tests::Books;
use crate::audit::verify::{self, verify};
use crate::audit::{AuditQuestion, Report};

/// Records the workers that moved the head and the records read, and loses a row on demand.
#[derive(Default)]
struct Watch {
    moved_by: Mutex<BTreeSet<u64>>,
    refused_count: AtomicUsize,
    away_for_rows: AtomicBool,
    read: AtomicUsize,
}

#[async_trait]
impl Hook for Watch {
    async fn before(&self, op: &Op) -> backend::Result<()> {
        if matches!(op.name, "head" | "advance") {
            tokio::task::yield_now().await;
        }
        if op.name == "save" && self.away_for_rows.load(Ordering::SeqCst) {
            Err(backend::Error::unavailable("audit", "away"))
        } else {
            Ok(())
        }
    }

    async fn after(&self, op: &Op, count: usize) -> backend::Result<()> {
        match (op.name, count) {
            ("read", _) => _ = self.read.fetch_add(count, Ordering::SeqCst),
            ("advance", 0) => _ = self.refused_count.fetch_add(1, Ordering::SeqCst),
            ("advance", _) => self.moved_by.lock().expect("no panic").extend(&op.subjects),
            _ => {}
        }
        Ok(())
    }
}

struct World {
    books: Books,
    watch: Arc<Watch>,
    queue: Arc<dyn Queue>,
    store: Arc<dyn AuditStore>,
}

impl World {
    fn new() -> World {
        let books = Books::new();
        let watch = Arc::new(Watch::default());
        let hook: Arc<dyn Hook> = watch.clone();
        let store: Arc<dyn AuditStore> = Arc::new(EmbeddedAudit::new(Engine::memory()));
        World {
            queue: Hooked::new(books.queue.clone() as Arc<dyn Queue>, &hook),
            store: Hooked::new(store, &hook),
            books,
            watch,
        }
    }

    fn auditor(&self, worker: u64, config: Config) -> Auditor {
        self.auditor_by(Arc::new(self.books.clock.clone()), worker, config)
    }

    fn auditor_by(&self, clock: Arc<dyn Clock>, worker: u64, config: Config) -> Auditor {
        Auditor::new(
            Arc::new(Log::new(self.queue.clone())),
            self.books.ledger.clone(),
            self.store.clone(),
            clock,
            worker,
            config,
        )
    }

    async fn begin_auditor(&self) -> Auditor {
        let mut auditor = self.auditor(1, Config::default());
        auditor.round().await.expect("begins");
        auditor
    }

    /// Writes the end of these messages to the ledger.
    async fn settle(&self, ids: &[MessageId]) {
        let entries = ids.iter().flat_map(|&id| {
            let user = |n| UserId::new(n).expect("positive");
            let placed_event = LedgerEvent::Placed {
                conversation: ConversationId::private(user(1), user(2)).expect("two users"),
                seq: Seq(id.get() as u64),
                from: user(1),
                send_id: SendId::from_bytes([1; 16]),
                partition: 0,
                offset: 0,
            };
            [placed_event, LedgerEvent::Settled].map(|event| LedgerEntry {
                message: id,
                at: id.timestamp(),
                target: None,
                event,
            })
        });
        let outcome = self.books.ledger.append(entries.collect()).await;
        outcome.expect("appends");
    }

    async fn head(&self) -> ChainHead {
        self.store.head().await.expect("reads").expect("a head")
    }

    async fn rows(&self) -> Vec<MinuteRow> {
        let head = self.head().await;
        let all = Timestamp::ZERO..head.until;
        self.store.rows(all, 10_000).await.expect("reads")
    }

    async fn flaws(&self) -> Vec<ChainFlaw> {
        let mut walk = ChainWalk::whole(&self.head().await);
        self.rows().await.iter().for_each(|row| walk.step(row));
        walk.end().0
    }

    async fn answer(&self, question: &AuditQuestion) -> Report {
        let (log, now) = (Log::new(self.queue.clone()), self.books.clock.now());
        let (ledger, store) = (self.books.ledger.as_ref(), self.store.as_ref());
        let report = answer(&log, ledger, store, question, now).await;
        report.expect("an answer")
    }

    async fn verify(&self, deep: bool) -> verify::Report {
        let log = Log::new(self.queue.clone());
        let question = verify::VerifyQuestion { since: None, deep };
        let report = verify(&log, self.store.as_ref(), &question).await;
        report.expect("a verification")
    }

    /// Amendment of the only closed minute.
    async fn amendment(&self) -> Amendment {
        let mut rows = self.rows().await;
        assert_eq!(rows.len(), 1);
        rows.remove(0).amendment.expect("it was looked at")
    }
}

fn accepted(rows: &[MinuteRow]) -> u64 {
    let closed_minute = rows.iter().filter_map(|row| row.closed_minute.as_ref());
    closed_minute
        .map(|closed_minute| closed_minute.accepted)
        .sum()
}

#[tokio::test(start_paused = true)]
async fn a_minute_is_closed_once_and_amended_until_it_is_settled() {
    let world = World::new();
    let mut auditor = world.begin_auditor().await;
    let ids = world.books.accept(5).await;
    advance(MINUTE * 2).await;
    auditor.round().await.expect("a round");
    assert!(world.rows().await.is_empty(), "it is not settled yet");
    advance(MINUTE).await;
    auditor.round().await.expect("a round");
    let row = world.rows().await.remove(0);
    let closed_minute = row.closed_minute.expect("a row");
    assert_eq!(
        (closed_minute.accepted, closed_minute.then.in_flight),
        (5, 5)
    );
    assert_eq!(closed_minute.minute, minute_start(ids[0].timestamp()));

    world.settle(&ids[..4]).await;
    world.books.commit().await;
    advance(MINUTE * 2).await;
    auditor.round().await.expect("a round");
    let amendment = world.amendment().await;
    assert_eq!(amendment.settled, 4);
    assert_eq!(amendment.missing.first, ids[4..]);

    // Only the ledger was late.
    world.settle(&ids[4..]).await;
    advance(MINUTE * 2).await;
    auditor.round().await.expect("a round");
    assert!(world.amendment().await.is_settled());
    assert_eq!(world.rows().await[0].closed_minute, Some(closed_minute));
    assert_eq!(world.flaws().await, []);
}

#[tokio::test(start_paused = true)]
async fn a_restart_goes_on_where_the_last_one_stopped() {
    let world = World::new();
    let mut auditor = world.begin_auditor().await;
    let mut all = 0;
    for minute in 0..100 {
        world.settle(&world.books.accept(7).await).await;
        world.books.commit().await;
        all += 7;
        advance(MINUTE).await;
        auditor.round().await.expect("a round");
        if minute % 10 == 5 {
            let read_before = world.watch.read.load(Ordering::SeqCst);
            auditor = world.auditor(2 + minute, Config::default());
            advance(MINUTE * 2).await;
            auditor.round().await.expect("goes on");
            let read = world.watch.read.load(Ordering::SeqCst) - read_before;
            assert!(read < 60, "{read} of {all}: more than what is not closed");
        }
    }
    advance(MINUTE * 3).await;
    auditor.round().await.expect("closes the rest");
    let rows = world.rows().await;
    assert_eq!((rows.len(), accepted(&rows)), (100, all));
    assert_eq!(world.flaws().await, []);
}

/// Both workers always believe that it is their turn.
#[tokio::test(start_paused = true)]
async fn two_workers_never_fork_the_chain() {
    let world = World::new();
    let hasty = Config {
        takeover: Duration::ZERO,
        ..Config::default()
    };
    let mut one = world.auditor(1, hasty.clone());
    let mut other = world.auditor(2, hasty.clone());
    one.round().await.expect("begins");
    let mut all = BTreeSet::new();
    for minute in 0..60 {
        let ids = world.books.accept(3 + minute % 5).await;
        world.settle(&ids).await;
        all.extend(ids);
        advance(MINUTE).await;
        // Both at once, in either order, and one of them alone for a while.
        let rounds = match minute % 3 {
            0 => tokio::join!(one.round(), other.round()),
            1 => tokio::join!(other.round(), one.round()),
            _ => (one.round().await, Ok(())),
        };
        rounds.0.and(rounds.1).expect("whoever is refused rests");
    }
    advance(MINUTE * 3).await;
    other.round().await.expect("closes the rest");
    let moved_by: Vec<u64> = world
        .watch
        .moved_by
        .lock()
        .expect("no panic")
        .iter()
        .copied()
        .collect();
    assert_eq!(moved_by, [1, 2], "both had their turns");
    assert!(world.watch.refused_count.load(Ordering::SeqCst) > 5);
    let rows = world.rows().await;
    assert_eq!(world.flaws().await, []);
    let mut numbers = rows
        .iter()
        .filter_map(|row| Some(row.closed_minute.as_ref()?.number));
    assert!(numbers.by_ref().eq(1..=60));
    assert_eq!(accepted(&rows), all.len() as u64);
}

#[tokio::test(start_paused = true)]
async fn one_works_while_it_is_heard_of_and_another_goes_on_after_it() {
    let world = World::new();
    let mut one = world.begin_auditor().await;
    let mut other = world.auditor(2, Config::default());
    for _ in 0..10 {
        world.settle(&world.books.accept(2).await).await;
        advance(Duration::from_secs(30)).await;
        one.round().await.expect("works");
        other.round().await.expect("rests");
        assert_eq!(world.head().await.worker, 1);
    }
    world.settle(&world.books.accept(2).await).await;
    advance(MINUTE * 4).await;
    other.round().await.expect("takes over");
    assert_eq!(world.head().await.worker, 2);
    one.round().await.expect("rests now");
    assert_eq!(world.head().await.worker, 2);
    assert_eq!(world.flaws().await, []);
    let rows = world.rows().await;
    assert_eq!(accepted(&rows), 22);
}

/// The books' clock, set back by some seconds.
struct LateClock {
    clock: TimerClock,
    behind_secs: AtomicU64,
}

impl Clock for LateClock {
    fn now(&self) -> Timestamp {
        self.clock.now() - Duration::from_secs(self.behind_secs.load(Ordering::Relaxed))
    }
}

#[tokio::test(start_paused = true)]
async fn a_head_of_a_clock_that_was_ahead_is_taken_over() {
    let world = World::new();
    let one = world.begin_auditor().await;
    drop(one);
    let late = Arc::new(LateClock {
        clock: world.books.clock.clone(),
        behind_secs: AtomicU64::new(7200),
    });
    let mut other = world.auditor_by(late, 2, Config::default());
    other.round().await.expect("rests");
    assert_eq!(world.head().await.worker, 1, "nobody knows how old it is");
    advance(Config::default().takeover).await;
    other.round().await.expect("takes over");
    assert_eq!(world.head().await.worker, 2);
}

#[tokio::test(start_paused = true)]
async fn a_worker_is_seen_alive_though_its_clock_is_set_back() {
    let world = World::new();
    let late = Arc::new(LateClock {
        clock: world.books.clock.clone(),
        behind_secs: AtomicU64::new(0),
    });
    let mut one = world.auditor_by(late.clone(), 1, Config::default());
    let mut other = world.auditor_by(late.clone(), 2, Config::default());
    one.round().await.expect("begins");
    let ids = world.books.accept(2).await;
    advance(MINUTE * 4).await;
    one.round().await.expect("closes a minute that is open");
    late.behind_secs.store(1800, Ordering::Relaxed);
    world.settle(&ids).await;
    world.books.commit().await;
    for _ in 0..10 {
        advance(Duration::from_secs(20)).await;
        one.round().await.expect("works");
        other.round().await.expect("rests");
        assert_eq!(world.head().await.worker, 1);
    }
    let amendment = world.rows().await.remove(0).amendment.expect("looked at");
    assert!(
        amendment.is_settled(),
        "open minutes do not wait for the clock"
    );
}

/// The head holds the row until it is written.
#[tokio::test(start_paused = true)]
async fn a_row_that_was_not_written_is_written_by_whoever_goes_on() {
    let world = World::new();
    let mut auditor = world.begin_auditor().await;
    let ids = world.books.accept(2).await;
    advance(MINUTE * 3).await;
    world.watch.away_for_rows.store(true, Ordering::SeqCst);
    auditor.round().await.expect_err("the row is not written");
    assert!(world.rows().await.is_empty());
    let closed_minute = world.head().await.last.expect("the head has it");
    world.watch.away_for_rows.store(false, Ordering::SeqCst);
    world.settle(&ids).await;
    world.books.commit().await;
    let mut other = world.auditor(2, Config::default());
    advance(MINUTE * 2).await;
    other.round().await.expect("goes on");
    let row = world.rows().await.remove(0);
    assert_eq!(row.closed_minute, Some(closed_minute));
    assert!(row.amendment.expect("looked at").is_settled());
    assert_eq!(world.flaws().await, []);
}

#[tokio::test(start_paused = true)]
async fn old_minutes_are_removed_and_the_rest_of_the_chain_holds() {
    let world = World::new();
    let config = Config {
        retention: MINUTE * 90,
        ..Config::default()
    };
    let mut auditor = world.auditor(1, config);
    for _ in 0..200 {
        auditor.round().await.expect("a round");
        world.settle(&world.books.accept(1).await).await;
        advance(MINUTE).await;
    }
    let rows = world.rows().await;
    assert!((85..160).contains(&rows.len()), "{} rows", rows.len());
    assert!(world.head().await.start.number > 0);
    assert_eq!(world.flaws().await, []);
}

/// More open messages than have names, so that they are looked up in the log again.
#[tokio::test(start_paused = true)]
async fn ids_that_are_not_stored_are_read_from_the_log_again() {
    let world = World::new();
    let mut auditor = world.begin_auditor().await;
    let ids = world.books.accept(1500).await;
    advance(MINUTE * 3).await;
    auditor.round().await.expect("a round");
    let amendment = world.amendment().await;
    assert_eq!((amendment.in_flight.count, amendment.open()), (1500, None));
    world.settle(&ids).await;
    world.books.commit().await;
    advance(MINUTE * 2).await;
    auditor.round().await.expect("a round");
    assert!(world.amendment().await.is_settled());
}

/// Committed offsets settle the question for whole minutes; for those that carriers have begun, one
/// look is enough.
#[tokio::test(start_paused = true)]
async fn absent_carriers_cause_no_second_read_of_the_log() {
    let world = World::new();
    let mut auditor = world.begin_auditor().await;
    let mut ids = Vec::new();
    for _ in 0..40 {
        ids.extend(world.books.accept(50).await);
        advance(MINUTE).await;
        auditor.round().await.expect("a round");
    }
    advance(MINUTE * 3).await;
    auditor.round().await.expect("a round");
    let rows = world.rows().await;
    assert_eq!((rows.len(), accepted(&rows)), (40, 2000));
    let read = || world.watch.read.load(Ordering::SeqCst);
    assert!(read() < 2000 + 100, "{} records of 2000 were read", read());

    // Carriers are back, and got through a part of the log; all minutes are due.
    world.settle(&ids[..1000]).await;
    world.books.commit_to(|end| end / 2).await;
    let read_before = read();
    advance(MINUTE * 60).await;
    auditor.round().await.expect("a round");
    let reread_count = read() - read_before;
    assert!(
        reread_count <= 1000 + 200,
        "{reread_count} records were read again"
    );
    let settled_count = world.rows().await.into_iter().map(|row| row.amendment);
    let settled_count: u64 = settled_count
        .map(|amendment| amendment.expect("looked at").settled)
        .sum();
    assert_eq!(settled_count, 1000);

    world.settle(&ids[1000..]).await;
    world.books.commit().await;
    advance(MINUTE * 60).await;
    auditor.round().await.expect("a round");
    let looks = world.rows().await.into_iter().map(|row| row.amendment);
    let open = looks.filter(|look| look.as_ref().is_none_or(|look| !look.is_settled()));
    assert_eq!(open.count(), 0);
    assert_eq!(world.flaws().await, []);
}

/// Half of each minute lies in a partition whose carrier hangs: that half is in flight for every
/// asker.
#[tokio::test(start_paused = true)]
async fn a_stalled_partition_is_not_read_again_for_each_minute() {
    let world = World::new();
    let mut auditor = world.begin_auditor().await;
    let (other, mut stuck_ids) = (world.books.elsewhere(), Vec::new());
    let read = || world.watch.read.load(Ordering::SeqCst);
    for _ in 0..40 {
        stuck_ids.extend(world.books.accept(50).await);
        world.settle(&world.books.accept_for(other, 50).await).await;
        world.books.commit_for(other).await;
        advance(MINUTE).await;
        auditor.round().await.expect("a round");
    }
    advance(MINUTE * 3).await;
    auditor.round().await.expect("a round");
    let figures = async || {
        let rows = world.rows().await.into_iter();
        let looks = rows.map(|row| row.amendment.expect("looked at").figures());
        looks.collect::<Vec<_>>()
    };
    let half = MinuteFigures {
        settled: 50,
        in_flight: 50,
        ..MinuteFigures::default()
    };
    assert_eq!(figures().await, [half; 40]);
    assert!(read() <= 4000 + 200, "{} records of 4000 were read", read());

    let read_before = read();
    advance(MINUTE * 60).await;
    auditor.round().await.expect("a round");
    assert_eq!(read(), read_before, "nothing has changed since");

    // Another process knows only the rows: it reads the stretches of their minutes, once.
    let mut next = world.auditor(2, Config::default());
    advance(MINUTE * 60).await;
    next.round().await.expect("a round");
    let reread_count = read() - read_before;
    assert!(
        reread_count <= 4000,
        "{reread_count} records were read again"
    );
    let read_before = read();
    advance(MINUTE * 60).await;
    next.round().await.expect("a round");
    assert_eq!(read(), read_before, "nor again");
    assert_eq!(figures().await, [half; 40]);

    // The carrier goes on, and loses one.
    world.settle(&stuck_ids[1..]).await;
    world.books.commit().await;
    advance(MINUTE * 60).await;
    next.round().await.expect("a round");
    let missing_count = figures().await.iter().map(|now| now.missing).sum::<u64>();
    assert_eq!(missing_count, 1);
    assert_eq!(
        figures().await.iter().map(|now| now.in_flight).sum::<u64>(),
        0
    );
}

/// A redriven dead letter, a repeat, a copy: its record lies behind all records that its minute was
/// read from.
#[tokio::test(start_paused = true)]
async fn messages_of_a_later_record_are_not_missing() {
    let world = World::new();
    let mut auditor = world.begin_auditor().await;
    let ids = world.books.accept(3).await;
    advance(MINUTE * 3).await;
    auditor.round().await.expect("closes it");
    world.settle(&ids[..2]).await;
    world.books.commit().await;
    let records = vec![world.books.record(ids[2])];
    let answers = world.books.queue.producer().publish(records).await;
    assert!(answers.iter().all(Result::is_ok));
    advance(MINUTE * 2).await;
    auditor.round().await.expect("a round");
    // The message counts once more in the minute where its second record was read.
    let looks = world.rows().await.into_iter();
    let looks: Vec<_> = looks.map(|row| row.amendment.expect("looked at")).collect();
    assert_eq!(looks.len(), 2);
    assert_eq!((looks[0].settled, looks[0].missing.count), (2, 0));
    for look in looks {
        assert_eq!(look.in_flight.first, ids[2..]);
    }
}

#[tokio::test(start_paused = true)]
async fn missing_messages_and_contradictions_are_counted() {
    let recorder = PrometheusBuilder::new().build_recorder();
    let handle = recorder.handle();
    let _counts = metrics::set_default_local_recorder(&recorder);
    let world = World::new();
    let mut auditor = world.begin_auditor().await;
    let ids = world.books.accept(3).await;
    world.settle(&ids[..1]).await;
    let contradiction = LedgerEntry {
        message: ids[0],
        at: ids[0].timestamp(),
        target: None,
        event: LedgerEvent::Placed {
            conversation: ConversationId::System(UserId::new(2).expect("positive")),
            seq: Seq(1),
            from: UserId::new(1).expect("positive"),
            send_id: SendId::from_bytes([1; 16]),
            partition: 0,
            offset: 0,
        },
    };
    world
        .books
        .ledger
        .append(vec![contradiction])
        .await
        .expect("appends");
    world.books.commit().await;
    advance(MINUTE * 3).await;
    auditor.round().await.expect("a round");
    let exposition = handle.render();
    for line in [
        "audit_minutes_total 1",
        "audit_missing 2",
        "audit_in_flight 0",
        "audit_contradictions_total 1",
        "audit_lag_seconds 120",
    ] {
        assert!(
            exposition.lines().any(|exposition| exposition == line),
            "{line}: {exposition}"
        );
    }
    // Found again, but not counted again.
    world.settle(&ids[1..]).await;
    advance(MINUTE * 2).await;
    auditor.round().await.expect("a round");
    let exposition = handle.render();
    for line in ["audit_missing 0", "audit_contradictions_total 1"] {
        assert!(
            exposition.lines().any(|exposition| exposition == line),
            "{line}: {exposition}"
        );
    }
}

/// Answers from closed minutes and from the log alone are the same, while both have the records.
#[tokio::test(start_paused = true)]
async fn an_answer_from_closed_minutes_is_that_of_the_log() {
    let world = World::new();
    // Before the chain begins.
    world.settle(&world.books.accept(4).await).await;
    advance(MINUTE * 3).await;
    let mut auditor = world.begin_auditor().await;
    let mut unsettled_ids = Vec::new();
    for minute in 0..30 {
        let ids = world.books.accept(6).await;
        let open = usize::from(minute % 10 == 0);
        unsettled_ids.extend(&ids[..open]);
        world.settle(&ids[open..]).await;
        world.books.commit().await;
        advance(MINUTE).await;
        auditor.round().await.expect("a round");
    }
    // One settled since the last look, and others not settled yet: in the newest minutes and in
    // closed ones.
    world.settle(&unsettled_ids[1..2]).await;
    world.books.accept(2).await;
    let start = world.head().await.start.minute;
    let window = |first_minute: Option<u32>, last_minute: Option<u32>| AuditQuestion {
        since: first_minute.map(|minutes| Time::from(start + MINUTE * minutes)),
        until: last_minute.map(|minutes| Time::from(start + MINUTE * minutes)),
        ..AuditQuestion::default()
    };
    let windows = [
        (None, None),
        (Some(0), None),
        (Some(3), Some(12)),
        (None, Some(12)),
        (Some(29), None),
    ];
    for (first_minute, last_minute) in windows {
        let question = window(first_minute, last_minute);
        let quick = world.answer(&question).await;
        let deep = AuditQuestion {
            deep: true,
            ..question.clone()
        };
        let deep = world.answer(&deep).await;
        let figures = |report: &Report| {
            let missing_ids = report.missing.items.clone();
            let minutes: Vec<_> = report
                .minutes
                .items
                .iter()
                .map(|m| (m.at, m.accepted))
                .collect();
            let sums = (report.accepted, report.settled, report.in_flight);
            (
                report.balanced,
                sums,
                missing_ids,
                minutes,
                report.truncated,
            )
        };
        assert_eq!(figures(&quick), figures(&deep), "{question:?}");
        assert_eq!(deep.closed_minutes, 0);
        let open_end = first_minute == Some(29);
        assert_eq!(
            quick.closed_minutes == 0,
            open_end,
            "{question:?}: {}",
            quick.closed_minutes
        );
    }
    let all = world.answer(&window(Some(0), None)).await;
    assert_eq!(all.missing.items.len(), 2);
    assert_eq!((all.accepted, all.in_flight), (30 * 6 + 2, 2));

    // Settled minutes need no read of the log.
    let read_before = world.watch.read.load(Ordering::SeqCst);
    let settled_report = world.answer(&window(Some(1), Some(9))).await;
    assert_eq!(
        (settled_report.accepted, settled_report.closed_minutes),
        (48, 8)
    );
    assert_eq!(world.watch.read.load(Ordering::SeqCst), read_before);
}

// A minute that was open on one page is closed on the next, which counted all of it again.
#[tokio::test(start_paused = true)]
async fn an_audit_that_goes_on_counts_each_message_once() {
    let world = World::new();
    let mut auditor = world.begin_auditor().await;
    for _ in 0..8 {
        world.settle(&world.books.accept(7).await).await;
        advance(MINUTE / 2).await;
    }
    world.books.commit().await;
    let mut question = AuditQuestion {
        all: true,
        limit: Some(10),
        ..AuditQuestion::default()
    };
    let (mut accepted_count, mut pages) = (0, 0);
    loop {
        let report = world.answer(&question).await;
        accepted_count += report.accepted;
        pages += 1;
        assert!(report.accepted > 0, "page {pages} is empty");
        let Some(next) = report.next else { break };
        question.since = Some(next);
        advance(MINUTE * 3).await;
        auditor.round().await.expect("a round");
    }
    assert!(pages > 1);
    assert_eq!(accepted_count, 8 * 7);
}

#[tokio::test(start_paused = true)]
async fn a_verification_names_the_minutes_that_were_changed() {
    let world = World::new();
    let mut auditor = world.begin_auditor().await;
    for _ in 0..6 {
        world.settle(&world.books.accept(3).await).await;
        advance(MINUTE).await;
    }
    advance(MINUTE * 3).await;
    auditor.round().await.expect("a round");
    let report = world.verify(true).await;
    assert!(report.intact, "{report:?}");
    assert_eq!(
        (report.minutes, report.minutes_in_log, report.link),
        (6, 6, 6)
    );

    let row = world.rows().await.remove(2);
    let closed_minute = row.closed_minute.expect("a row");
    let mut tampered_minute = closed_minute.clone();
    tampered_minute.accepted -= 1;
    world.store.save(&tampered_minute).await.expect("saves");
    let broken = world.verify(false).await;
    assert!(!broken.intact);
    let names: Vec<_> = broken.flaws.items.iter().map(|flaw| flaw.minute).collect();
    assert_eq!(names, [Time::from(closed_minute.minute)]);
    world.store.save(&closed_minute).await.expect("saves");
    assert!(world.verify(false).await.intact);

    let removed_range = closed_minute.minute..closed_minute.minute + MINUTE;
    world.store.forget(removed_range).await.expect("forgets");
    let broken = world.verify(false).await;
    assert!(
        broken.flaws.items[0].flaw.contains("link 3 was removed"),
        "{broken:?}"
    );
}

#[tokio::test(start_paused = true)]
async fn a_verification_of_no_minutes_is_none() {
    let world = World::new();
    let mut auditor = world.begin_auditor().await;
    world.settle(&world.books.accept(3).await).await;
    advance(MINUTE * 3).await;
    auditor.round().await.expect("a round");
    let (log, end) = (Log::new(world.queue.clone()), world.head().await.until);
    let ask = async |start: Timestamp| {
        let question = verify::VerifyQuestion {
            since: Some(Time::from(start)),
            deep: false,
        };
        verify(&log, world.store.as_ref(), &question).await
    };
    for start in [end, end + MINUTE, Timestamp::MAX] {
        let none = ask(start).await.expect_err("nothing is closed there");
        assert!(none.is::<verify::NoMinutes>(), "{none:?}");
    }
    for start in [end - MINUTE, Timestamp::from_millis(i64::MIN)] {
        assert!(ask(start).await.expect("closed minutes").intact);
    }
}

/// A chain made anew from start to end is found out by the log.
#[tokio::test(start_paused = true)]
async fn a_chain_that_was_made_anew_does_not_match_the_log() {
    let world = World::new();
    let mut auditor = world.begin_auditor().await;
    let ids = world.books.accept(3).await;
    world.settle(&ids).await;
    advance(MINUTE * 3).await;
    auditor.round().await.expect("a round");
    let mut head = world.head().await;
    let closed_minute = head.last.take().expect("closed");
    let reading = MinuteReading {
        minute: closed_minute.minute,
        accepted_count: 2,
        ids: Digest::from_ids(ids[..2].iter().copied()),
        unread: 0,
        epoch: closed_minute.epoch,
        stretches: closed_minute.stretches.clone(),
    };
    let forged_minute = ClosedMinute::after(head.start, reading, closed_minute.then);
    head.turn += 1;
    head.last = Some(forged_minute.clone());
    assert!(world.store.advance(&head).await.expect("answers"));
    world.store.save(&forged_minute).await.expect("saves");
    let amended_at = world.books.clock.now() + MINUTE;
    let amendment = Amendment::of(&forged_minute, amended_at, &MinuteVerdict::default());
    let outcome = world.store.amend(forged_minute.minute, &amendment).await;
    outcome.expect("amends");
    assert!(world.verify(false).await.intact);
    let deep = world.verify(true).await;
    let flaws = &deep.flaws.items;
    assert_eq!(flaws.len(), 1, "{flaws:?}");
    assert_eq!(flaws[0].minute, Time::from(closed_minute.minute));
    assert!(flaws[0].flaw.contains("3 message"), "{flaws:?}");
}
