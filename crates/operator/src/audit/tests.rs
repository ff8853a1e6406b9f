//! Questions to the desk, over a log in memory.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use api::dead_letter::{DeadLetter, LetterOrigin};
use api::task::Value;
use backend::Backends;
use backend::clock::{Clock, SeededEntropy, TimerClock};
use backend::embedded::Engine;
use backend::ledger::{EmbeddedLedger, LedgerStore};
use backend::mailbox::{EmbeddedMailbox, MailboxConfig};
use backend::messages::EmbeddedMessages;
use backend::queue::{EmbeddedQueue, NewRecord, Partition, Polled, Queue, QueueConfig};
use bytes::Bytes;
use protocol::bounds::Bounds;
use protocol::keys::{CARRIERS, Topic, partition_of, record_key};
use protocol::ledger::{DeadReason, LedgerEntry, LedgerEvent};
use protocol::message::{Content, Options, Recipient};
use protocol::record::{MessageTask, Task, Work};
use protocol::{DeviceId, Message, MessageId, SendId, Timestamp, UserId};
use tokio::time::advance;

use super::log::{Busy, Log};
use super::trace::{self, Name};
use super::{AuditQuestion, Report};
use crate::answer::Time;
use crate::dead_letters::Filter;
use crate::in_memory::Environment;
use crate::{DeadLetters, audit};

const MINUTE: Duration = Duration::from_secs(60);

fn user(n: i64) -> UserId {
    UserId::new(n).expect("positive")
}

/// Dead letter of a record at this offset that nobody could read.
pub(crate) fn dead_letter(offset: u64, at: Timestamp) -> NewRecord {
    let letter = DeadLetter {
        origin: LetterOrigin {
            topic: Topic::Message,
            partition: 0,
            offset,
        },
        message: None,
        conversation: None,
        targets: Vec::new(),
        retry_count: 0,
        first_failed_at: at,
        last_failed_at: at,
        reason: DeadReason::Undecodable,
        error_message: String::new(),
        carrier: "carrier-1".to_owned(),
        build: "1".to_owned(),
        trace: None,
        parent: None,
    };
    NewRecord {
        partition: Partition {
            topic: Topic::Dead,
            number: 0,
        },
        key: Bytes::new(),
        headers: letter.to_headers(),
        value: Bytes::from_static(b"no task"),
    }
}

fn mailbox() -> EmbeddedMailbox {
    let (engine, entropy) = (Engine::memory(), SeededEntropy::new(1));
    let mailbox = EmbeddedMailbox::open(engine, &MailboxConfig::default(), &entropy);
    mailbox.expect("opens")
}

/// A log and a ledger, and the time that passes in both.
pub(crate) struct Books {
    pub(super) queue: Arc<EmbeddedQueue>,
    log: Log,
    messages: EmbeddedMessages,
    pub(super) ledger: Arc<EmbeddedLedger>,
    mailbox: EmbeddedMailbox,
    pub(super) clock: TimerClock,
}

impl Books {
    pub(crate) fn new() -> Books {
        let noon = Timestamp::from_millis(1_790_000_000_000);
        let clock =
            TimerClock::starting_at(noon - Duration::from_millis(noon.millis() as u64 % 60_000));
        let config = QueueConfig {
            partitions: 2,
            ..QueueConfig::default()
        };
        let queue = EmbeddedQueue::open(Engine::memory(), config, Arc::new(clock.clone()));
        let queue = Arc::new(queue.expect("opens"));
        Books {
            log: Log::new(queue.clone()),
            queue,
            messages: EmbeddedMessages::new(Engine::memory()),
            ledger: Arc::new(EmbeddedLedger::open(Engine::memory()).expect("opens")),
            mailbox: mailbox(),
            clock,
        }
    }

    /// Accepts `count` messages from 1 to 2, now.
    pub(super) async fn accept(&self, count: usize) -> Vec<MessageId> {
        self.accept_for(2, count).await
    }

    /// Accepts `count` messages from 1 to `to`, now.
    pub(super) async fn accept_for(&self, to: i64, count: usize) -> Vec<MessageId> {
        let floor = MessageId::floor_of(self.clock.now()).get() + to * 10_000;
        let ids: Vec<MessageId> = (0..count)
            .map(|n| MessageId::new(floor + n as i64).expect("positive"))
            .collect();
        let records = ids.iter().map(|id| self.record_for(to, *id)).collect();
        for offset in self.queue.producer().publish(records).await {
            offset.expect("published");
        }
        ids
    }

    /// A user whose messages from 1 lie in another partition than those for 2.
    pub(super) fn elsewhere(&self) -> i64 {
        let id = MessageId::new(1).expect("positive");
        let of = |to| self.record_for(to, id).partition.number;
        (3..).find(|to| of(*to) != of(2)).expect("two partitions")
    }

    pub(crate) fn record(&self, id: MessageId) -> NewRecord {
        self.record_for(2, id)
    }

    fn record_for(&self, to: i64, id: MessageId) -> NewRecord {
        let message = Message {
            id,
            from: user(1),
            to: Recipient::User(user(to)),
            accepted_at: id.timestamp(),
            device: DeviceId::new("phone").expect("short"),
            send_id: send_id(id),
            options: Options::CHAT,
            content: Content::text("hello"),
        };
        let key = record_key(message.conversation().expect("two users"));
        let work = Work::Message(MessageTask {
            message,
            origin: None,
            maybe_repeat: false,
            unsure: false,
            age: Duration::ZERO,
            letter: None,
            bounds: Bounds::default(),
        });
        let topic = Topic::Message;
        NewRecord {
            partition: Partition {
                topic,
                number: partition_of(&key, self.queue.partitions(topic)),
            },
            key: Bytes::copy_from_slice(&key),
            headers: Vec::new(),
            value: Task::new(work, self.clock.now()).encode(),
        }
    }

    /// Adds `count` dead letters.
    async fn bury(&self, count: u64) {
        let now = self.clock.now();
        let letters = (0..count).map(|offset| dead_letter(offset, now));
        let answers = self.queue.producer().publish(letters.collect()).await;
        assert!(answers.iter().all(Result::is_ok));
    }

    fn letters(&self) -> DeadLetters {
        let ledger = Arc::new(EmbeddedLedger::open(Engine::memory()).expect("opens"));
        let memory = Environment::in_memory();
        let backends = Backends {
            queue: self.queue.clone(),
            ledger,
            mailbox: Arc::new(mailbox()),
            clock: Arc::new(self.clock.clone()),
            entropy: Arc::new(SeededEntropy::new(1)),
            ..memory.expect("stores in memory").backends
        };
        DeadLetters::new(backends, Bounds::default())
    }

    /// Commits all records, as carriers do once they are settled.
    pub(super) async fn commit(&self) {
        self.commit_to(|end| end).await;
    }

    /// Commits each partition up to `so_far` of its end.
    pub(super) async fn commit_to(&self, so_far: impl Fn(u64) -> u64) {
        self.commit_each(|_, end| Some(so_far(end))).await;
    }

    /// Commits all records of the partition with messages for `to`.
    pub(super) async fn commit_for(&self, to: i64) {
        let id = MessageId::new(1).expect("positive");
        let its = self.record_for(to, id).partition;
        self.commit_each(|partition, end| (partition == its).then_some(end))
            .await;
    }

    async fn commit_each(&self, so_far: impl Fn(Partition, u64) -> Option<u64>) {
        let mut consumer = self
            .queue
            .subscribe(CARRIERS, Topic::Message)
            .await
            .expect("joins");
        let assignment = consumer.poll(1).await.expect("polls");
        let Polled::Assigned(partitions) = assignment else {
            panic!("{assignment:?}");
        };
        for partition in partitions {
            let (_, end) = self.queue.bounds(partition).await.expect("reads");
            if let Some(next) = so_far(partition, end) {
                let commit = consumer.commit(&[(partition, next)]).await;
                commit.expect("commits");
            }
        }
    }

    async fn audit(&self, question: AuditQuestion) -> Report {
        let report =
            audit::audit(&self.log, self.ledger.as_ref(), &question, self.clock.now()).await;
        report.expect("an audit")
    }

    async fn trace(&self, name: Name) -> Vec<trace::Report> {
        let witnesses = trace::Witnesses {
            log: &self.log,
            messages: &self.messages,
            ledger: self.ledger.as_ref(),
            mailbox: &self.mailbox,
        };
        let lives = witnesses.trace(name, self.clock.now()).await;
        lives.expect("a trace")
    }
}

fn send_id(id: MessageId) -> SendId {
    let mut bytes = [7; 16];
    bytes[..8].copy_from_slice(&id.get().to_be_bytes());
    SendId::from_bytes(bytes)
}

fn all() -> AuditQuestion {
    AuditQuestion {
        all: true,
        ..AuditQuestion::default()
    }
}

/// Nothing else runs on this thread while a page is read: the test counts how often something does.
#[tokio::test(start_paused = true)]
async fn reading_the_log_yields_to_other_tasks() {
    let books = Books::new();
    books.accept(3000).await;
    let turns = Arc::new(AtomicUsize::new(0));
    let turn_counter = turns.clone();
    let other = tokio::spawn(async move {
        loop {
            turn_counter.fetch_add(1, Ordering::Relaxed);
            tokio::task::yield_now().await;
        }
    });
    assert_eq!(books.audit(all()).await.in_flight, 3000);
    // 15 pages of accepted messages, as many of messages in flight, and 60 of lives.
    let audit_turns = turns.load(Ordering::Relaxed);
    assert!(audit_turns >= 90, "{audit_turns} turns");
    let unknown = SendId::from_bytes([9; 16]);
    assert!(books.trace(Name::Send(unknown)).await.is_empty());
    let trace_turns = turns.load(Ordering::Relaxed) - audit_turns;
    assert!(trace_turns >= 15, "{trace_turns} turns");

    books.bury(1000).await;
    let letters = books.letters();
    let turns_before = turns.load(Ordering::Relaxed);
    assert_eq!(letters.stats().await.expect("counts").uncounted, 0);
    let none = letters.show("message-0-9999", false).await;
    assert!(none.expect("reads").is_none());
    let look_turns = turns.load(Ordering::Relaxed) - turns_before;
    assert!(look_turns >= 20, "{look_turns} turns for twice ten pages");
    other.abort();
}

// A filter that nothing matched went over the whole topic in one answer.
#[tokio::test(start_paused = true)]
async fn a_list_looks_at_some_records_and_says_where_to_go_on() {
    let books = Books::new();
    for _ in 0..21 {
        books.bury(1000).await;
    }
    let letters = books.letters();
    let none = Filter {
        text: Some("no such error".to_owned()),
        ..Filter::default()
    };
    let page = letters.list(&none, None, 10).await.expect("reads");
    assert_eq!(page.letters, []);
    let next = page.next.expect("it goes on");
    assert!((10_000..21_000).contains(&next.offset), "{next}");
    let page = letters.list(&none, Some(next), 10).await.expect("reads");
    assert_eq!((page.letters.len(), page.next), (0, None));
    let package = letters.pack("ann", 7, &none, None, "a test").await;
    assert_eq!(package.expect("reads").next, Some(next));
}

#[tokio::test(start_paused = true)]
async fn one_question_at_a_time_reads_the_log() {
    let books = Books::new();
    let known_id = books.accept(1).await[0];
    let entry = LedgerEntry {
        message: known_id,
        at: known_id.timestamp(),
        target: None,
        event: LedgerEvent::Settled,
    };
    books.ledger.append(vec![entry]).await.expect("appends");
    let turn = books.log.turn().await.expect("nobody reads");
    let now = books.clock.now();
    let second = audit::audit(&books.log, books.ledger.as_ref(), &all(), now).await;
    let error = second.expect_err("it is read already");
    assert!(error.is::<Busy>(), "{error:?}");
    let wait_time = books.clock.now().since(now);
    assert!(wait_time <= Duration::from_secs(10), "{wait_time:?}");
    // A message known to the ledger needs no read of the log.
    assert_eq!(books.trace(Name::Message(known_id)).await.len(), 1);
    drop(turn);
    assert_eq!(books.audit(all()).await.accepted, 1);
}

/// Only the first turn may be refused.
#[tokio::test(start_paused = true)]
async fn a_question_that_has_begun_waits_for_its_next_turn() {
    let books = Books::new();
    books.accept(9_000).await;
    let start = books.clock.now();
    let other_reader = async {
        // A reader that comes while the audit reads its first pages has the next turn.
        let turn = books.log.turn().await.expect("between two pages");
        tokio::time::sleep(MINUTE).await;
        let now = books.clock.now();
        let new = audit::audit(&books.log, books.ledger.as_ref(), &all(), now).await;
        assert!(new.expect_err("others read").is::<Busy>());
        drop(turn);
    };
    let (report, ()) = tokio::join!(books.audit(all()), other_reader);
    assert_eq!(report.in_flight, 9_000);
    let duration = books.clock.now().since(start);
    assert!(duration >= MINUTE, "it waited: {duration:?}");
}

/// Each question holds as much as an audit.
#[tokio::test(start_paused = true)]
async fn a_few_questions_are_under_way_at_once_and_no_more() {
    let books = Books::new();
    let [mut one, mut two, mut three, mut four] = [(); 4].map(|()| books.log.reader());
    for reader in [&mut one, &mut two, &mut three] {
        drop(reader.turn().await.expect("it begins"));
    }
    assert!(four.turn().await.is_err(), "three are under way");
    drop(two.turn().await.expect("it has begun"));
    drop(two);
    drop(four.turn().await.expect("there is room"));
}

#[tokio::test(start_paused = true)]
async fn an_audit_counts_exactly_what_was_accepted_in_its_window() {
    let books = Books::new();
    let first = books.clock.now();
    // Three messages a minute, for two days.
    for _ in 0..48 * 60 {
        books.accept(3).await;
        advance(MINUTE).await;
    }
    let minutes_later = |minutes: u32| Some(Time::from(first + MINUTE * minutes));
    let counts = [
        (all(), 48 * 60 * 3),
        (AuditQuestion::default(), 24 * 60 * 3),
        (
            AuditQuestion {
                since: minutes_later(100),
                ..AuditQuestion::default()
            },
            (48 * 60 - 100) * 3,
        ),
        (
            AuditQuestion {
                since: minutes_later(100),
                until: minutes_later(110),
                ..AuditQuestion::default()
            },
            30,
        ),
        (
            AuditQuestion {
                until: minutes_later(7),
                ..AuditQuestion::default()
            },
            21,
        ),
    ];
    for (question, expected_count) in counts {
        let report = books.audit(question.clone()).await;
        assert_eq!(report.accepted, expected_count, "{question:?}");
        assert_eq!(report.in_flight, expected_count, "{question:?}");
        assert_eq!((report.truncated, report.next), (0, None), "{question:?}");
    }
}

#[tokio::test(start_paused = true)]
async fn an_audit_of_too_many_counts_the_rest_and_says_where_to_go_on() {
    let books = Books::new();
    let mut ids = Vec::new();
    for _ in 0..10 {
        ids.extend(books.accept(7).await);
        advance(MINUTE).await;
    }
    books.commit().await;
    let mut question = AuditQuestion {
        limit: Some(20),
        ..all()
    };
    let mut missing_ids = Vec::new();
    let mut unread_count = 70;
    loop {
        let report = books.audit(question.clone()).await;
        // 20 would cut a millisecond in two.
        assert_eq!(report.accepted, 14);
        unread_count -= report.accepted;
        assert_eq!(report.truncated, unread_count);
        missing_ids.extend(report.missing.items);
        assert!(
            !report.balanced,
            "nothing is carried and the ledger knows nothing"
        );
        match report.next {
            Some(next) => question.since = Some(next),
            None => break,
        }
        assert!(missing_ids.len() < 70);
    }
    let ids: Vec<String> = ids.iter().map(MessageId::to_string).collect();
    assert_eq!(missing_ids, ids);
}

#[tokio::test(start_paused = true)]
async fn a_report_names_a_thousand_and_counts_the_rest() {
    let books = Books::new();
    let ids = books.accept(1500).await;
    books.commit().await;
    let report = books.audit(all()).await;
    assert_eq!((report.accepted, report.missing.total()), (1500, 1500));
    assert_eq!(report.missing.items.len(), 1000);
    assert_eq!(report.missing.truncated, 500);

    let entries = (0..1500).map(|_| LedgerEntry {
        message: ids[0],
        at: ids[0].timestamp(),
        target: None,
        event: LedgerEvent::Settled,
    });
    books
        .ledger
        .append(entries.collect())
        .await
        .expect("appends");
    let lives = books.trace(Name::Message(ids[0])).await;
    assert_eq!(lives[0].events.items.len(), 1000);
    assert_eq!(lives[0].events.truncated, 500);
}

/// The ledger does not know the message yet, or any more.
#[tokio::test(start_paused = true)]
async fn unplaced_messages_are_found_in_the_log() {
    let books = Books::new();
    let mut ids = Vec::new();
    for _ in 0..50 {
        ids.extend(books.accept(9).await);
        advance(MINUTE).await;
    }
    for id in [ids[0], ids[200], ids[449]] {
        for name in [Name::Message(id), Name::Send(send_id(id))] {
            let lives = books.trace(name).await;
            let [life] = &lives[..] else {
                panic!("{lives:?}");
            };
            assert_eq!(life.msg_id, id.to_string());
            assert_eq!(life.verdict.items, ["accepted, not placed yet"]);
        }
    }
    let unknown_id = MessageId::new(ids[449].get() + 9).expect("positive");
    assert!(books.trace(Name::Message(unknown_id)).await.is_empty());
}
