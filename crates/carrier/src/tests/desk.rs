//! Worker of the desk: tasks of operators are done, whatever happens in between.

use std::time::Duration;

use backend::Kind;
use backend::hook::Fault;
use backend::queue::NewRecord;
use bytes::Bytes;
use operator::DeadLetters;
use operator::dead_letters::rules::{
    OperatorTask, OperatorWork, Pace, Progress, TaskId, TaskOutcome,
};
use operator::dead_letters::{
    Filter, Forecast, Kind as LetterKind, Letter, Request, Selection, Stats, Summary, TaskRefusal,
};
use protocol::Platform;
use protocol::keys::Topic;
use protocol::ledger::DeadReason;
use tokio::time::sleep;
use tokio_util::sync::CancellationToken;

use super::world::*;

const WAIT_TIMEOUT: Duration = Duration::from_secs(120);

pub(super) fn all() -> Selection {
    Selection::Filter {
        filter: Filter::default(),
        limit: 1000,
    }
}

pub(super) fn request(work: OperatorWork, selection: Selection) -> Request {
    Request {
        task: Some("t".parse().expect("a name")),
        work,
        selection,
        pace: Pace::default(),
        why: "a test".to_owned(),
    }
}

pub(super) fn id() -> TaskId {
    "t".parse().expect("a name")
}

/// Works until it is dropped.
pub(super) struct Worker(CancellationToken);

impl Worker {
    pub(super) fn begin(letters: &DeadLetters, name: &str) -> Worker {
        let stop = CancellationToken::new();
        tokio::spawn(letters.clone().work(name.to_owned(), stop.clone()));
        Worker(stop)
    }
}

impl Drop for Worker {
    fn drop(&mut self) {
        self.0.cancel();
    }
}

/// Makes a letter of a message that the mailbox refused, and would take by now.
pub(super) async fn make_mailbox_letter(world: &World) {
    world.register_device(BOB, Platform::Web).await;
    world.faults.begin(ROUTES, Fault::Conflict);
    world.send(ALICE, BOB).await;
    world
        .wait_until("a letter", async || {
            !world.records(Topic::Dead).await.is_empty()
        })
        .await;
    world.faults.end(ROUTES);
}

/// Makes this many letters of records that cannot be read, and die of the same cause again and
/// again.
pub(super) async fn garbage(world: &World, count: u8) {
    let key = protocol::keys::record_key(between(ALICE, BOB));
    for number in 0..count {
        world
            .publish_raw(Topic::Message, &key, Bytes::from(vec![0xff, number]))
            .await;
    }
    world
        .wait_until("letters", async || {
            world.records(Topic::Dead).await.len() == usize::from(count)
        })
        .await;
}

pub(super) async fn list_letters(letters: &DeadLetters) -> Vec<Letter> {
    let page = letters.list(&Filter::default(), None, 1000).await;
    page.expect("readable").letters
}

/// Summary of the messages that died for this reason; some did.
pub(super) fn reason_summary(stats: &Stats, reason: DeadReason) -> Summary {
    let mut reasons = stats.reasons.iter();
    let matching_reason =
        reasons.find(|entry| (entry.kind, entry.reason) == (LetterKind::Message, reason));
    matching_reason.expect("some died of it").summary
}

pub(super) async fn wait(letters: &DeadLetters) -> OperatorTask {
    letters.wait(&id(), WAIT_TIMEOUT).await.expect("known")
}

pub(super) fn says(record: &NewRecord, text: &str) -> bool {
    let is_operation = record.partition.topic == Topic::Operation;
    is_operation && String::from_utf8_lossy(&record.value).contains(text)
}

/// A crash after the record, and before its entry: the next worker publishes it once more, and the
/// recipient gets the message once.
#[tokio::test(start_paused = true)]
async fn a_crash_before_the_entry_publishes_a_repeat() {
    let world = World::new().await;
    make_mailbox_letter(&world).await;
    let old_count = world.records(Topic::Retry(1)).await.len();
    let letters = world.dead_letters();
    let faults = &world.faults;
    faults.refuse_records(|record| says(record, "\"done\"").then_some(Kind::Unavailable));
    let first = Worker::begin(&letters, "first");
    let task = letters
        .begin("ann", request(OperatorWork::Redrive, all()))
        .await;
    assert_eq!(task.expect("begun").start.letters, 1);
    world
        .wait_until("it is published", async || {
            world.records(Topic::Retry(1)).await.len() == old_count + 1
        })
        .await;
    // The worker tries to write the entry, and publishes nothing more.
    sleep(Duration::from_secs(10)).await;
    assert_eq!(world.records(Topic::Retry(1)).await.len(), old_count + 1);
    drop(first);
    faults.accept_records();
    let _second = Worker::begin(&letters, "second");
    let task = wait(&letters).await;
    assert_eq!(task.progress, Progress::Over);
    assert_eq!(task.first_outcomes[0].1, TaskOutcome::ToRetry);
    assert_eq!(world.records(Topic::Retry(1)).await.len(), old_count + 2);
    assert!(list_letters(&letters).await[0].redriven);
    world.wait_until_committed().await;
    assert_eq!(world.waiting(BOB, Platform::Web).await, 1);
}

/// Same, but the log drops the letter before the next worker comes.
#[tokio::test(start_paused = true)]
async fn a_letter_dropped_before_its_entry_ends_its_task() {
    let mut world = World::new().await;
    make_mailbox_letter(&world).await;
    world.wait_until_committed().await;
    world.stop().await;
    let old_count = world.records(Topic::Retry(1)).await.len();
    let letters = world.dead_letters();
    let faults = &world.faults;
    faults.refuse_records(|record| says(record, "\"done\"").then_some(Kind::Unavailable));
    let first = Worker::begin(&letters, "first");
    letters
        .begin("ann", request(OperatorWork::Redrive, all()))
        .await
        .expect("begun");
    world
        .wait_until("it is published", async || {
            world.records(Topic::Retry(1)).await.len() == old_count + 1
        })
        .await;
    drop(first);
    faults.accept_records();
    let after_retention = world.now() + Duration::from_secs(31 * 86_400);
    world.log.trim(after_retention).await.expect("trimmed");
    assert!(list_letters(&letters).await.is_empty());
    let _second = Worker::begin(&letters, "second");
    let task = wait(&letters).await;
    assert_eq!(task.progress, Progress::Over);
    assert_eq!(task.first_outcomes[0].1, TaskOutcome::NoSuchLetter);
}

/// A cancel does not reach the letters that a worker may have published by then: the next one
/// finishes them, so that nobody discards a letter that is on its way.
#[tokio::test(start_paused = true)]
async fn a_cancelled_task_finishes_the_letters_in_hand() {
    let world = World::new().await;
    garbage(&world, 3).await;
    let letters = world.dead_letters();
    let faults = &world.faults;
    faults.refuse_records(|record| says(record, "\"done\"").then_some(Kind::Unavailable));
    let first = Worker::begin(&letters, "first");
    let slow_request = Request {
        pace: Pace {
            per_second: 4,
            ..Pace::default()
        },
        ..request(OperatorWork::Redrive, all())
    };
    letters.begin("ann", slow_request).await.expect("begun");
    sleep(Duration::from_secs(3)).await;
    drop(first);
    faults.accept_records();
    letters.cancel("ann", &id()).await.expect("known");
    let _second = Worker::begin(&letters, "second");
    let task = wait(&letters).await;
    assert!(matches!(task.progress, Progress::Cancelled { .. }));
    assert_eq!(task.outcomes, [(TaskOutcome::ToMessage, 1)].into());
    let redriven = |letter: &&Letter| letter.redriven;
    assert_eq!(
        list_letters(&letters).await.iter().filter(redriven).count(),
        1
    );
}

/// A crash before the record: the next worker publishes it.
#[tokio::test(start_paused = true)]
async fn a_letter_in_hand_is_published_by_the_next_worker() {
    let world = World::new().await;
    make_mailbox_letter(&world).await;
    let old_count = world.records(Topic::Retry(1)).await.len();
    let letters = world.dead_letters();
    let faults = &world.faults;
    let is_redrive = |record: &NewRecord| record.headers.iter().any(|(name, _)| name == "letter");
    faults.refuse_records(move |record| is_redrive(record).then_some(Kind::Unavailable));
    let first = Worker::begin(&letters, "first");
    letters
        .begin("ann", request(OperatorWork::Redrive, all()))
        .await
        .expect("begun");
    sleep(Duration::from_secs(10)).await;
    assert_eq!(letters.task(&id()).await.expect("known").done_letters(), 0);
    drop(first);
    faults.accept_records();
    let _second = Worker::begin(&letters, "second");
    assert_eq!(
        wait(&letters).await.first_outcomes[0].1,
        TaskOutcome::ToRetry
    );
    assert_eq!(world.records(Topic::Retry(1)).await.len(), old_count + 1);
}

#[tokio::test(start_paused = true)]
async fn one_of_several_workers_works() {
    let world = World::new().await;
    garbage(&world, 10).await;
    let letters = world.dead_letters();
    let names = ["one", "two", "three"];
    let _workers = names.map(|name| Worker::begin(&letters, name));
    letters
        .begin("ann", request(OperatorWork::Discard, all()))
        .await
        .expect("begun");
    let task = wait(&letters).await;
    assert_eq!(task.outcomes[&TaskOutcome::Discarded], 10);
    let log = letters.log(1000, false, None).await.expect("readable");
    let workers: std::collections::BTreeSet<_> =
        log.entries.iter().map(|entry| &*entry.by).collect();
    assert_eq!(workers.len(), 2, "{workers:?}");
}

#[tokio::test(start_paused = true)]
async fn a_redrive_that_dies_again_pauses_and_goes_on_when_told() {
    let world = World::new().await;
    garbage(&world, 40).await;
    let letters = world.dead_letters();
    let _worker = Worker::begin(&letters, "desk");
    let slow_request = Request {
        pace: Pace {
            per_second: 8,
            pause_above: 50,
        },
        ..request(OperatorWork::Redrive, all())
    };
    letters.begin("ann", slow_request).await.expect("begun");
    let task = wait(&letters).await;
    let Progress::Paused { by, why } = &task.progress else {
        panic!("{task:?}");
    };
    assert_eq!(by, "desk");
    assert!(why.contains("died again"), "{why}");
    assert!((20..40).contains(&task.redriven_count()), "{task:?}");
    let redriven_count = task.redriven_count();
    sleep(Duration::from_secs(60)).await;
    assert_eq!(
        letters.task(&id()).await.expect("known").redriven_count(),
        redriven_count
    );

    letters.resume("ann", &id()).await.expect("known");
    world
        .wait_until("more went", async || {
            letters.task(&id()).await.expect("known").redriven_count() > redriven_count
        })
        .await;
    letters.cancel("ann", &id()).await.expect("known");
    let task = wait(&letters).await;
    assert!(matches!(task.progress, Progress::Cancelled { .. }));
}

#[tokio::test(start_paused = true)]
async fn discarded_letters_are_left_alone_until_restored() {
    let world = World::new().await;
    garbage(&world, 2).await;
    let letters = world.dead_letters();
    let _worker = Worker::begin(&letters, "desk");
    let first = list_letters(&letters).await[0].id.clone();
    let one = || Selection::ids(vec![first.clone()]);
    letters
        .begin("ann", request(OperatorWork::Discard, one()))
        .await
        .expect("begun");
    wait(&letters).await;
    assert!(list_letters(&letters).await[0].discarded);
    assert_eq!(
        letters.stats().await.expect("counts").causes.items[0]
            .summary
            .discarded,
        1
    );
    let timeout = Duration::from_secs(5);
    let redrive = async || {
        let outcomes = letters.redrive("ann", &one(), timeout).await;
        outcomes.expect("answered")[0].outcome
    };
    assert_eq!(redrive().await, TaskOutcome::IsDiscarded);
    let restore = Request {
        task: None,
        ..request(OperatorWork::Restore, one())
    };
    let restore_task = letters.begin("bob", restore).await.expect("begun");
    let restore_task = letters
        .wait(restore_task.id(), WAIT_TIMEOUT)
        .await
        .expect("known");
    assert_eq!(restore_task.first_outcomes[0].1, TaskOutcome::Restored);
    assert_eq!(redrive().await, TaskOutcome::ToMessage);
}

#[tokio::test(start_paused = true)]
async fn a_task_asked_for_twice_is_one_and_nothing_is_none() {
    let world = World::new().await;
    garbage(&world, 3).await;
    let letters = world.dead_letters();
    let first = letters
        .begin("ann", request(OperatorWork::Discard, all()))
        .await;
    let second = letters
        .begin("ann", request(OperatorWork::Discard, all()))
        .await;
    assert_eq!(first.expect("begun").at, second.expect("the same").at);
    assert_eq!(letters.tasks().await.expect("readable").len(), 1);
    let empty_request = Request {
        task: None,
        ..request(OperatorWork::Discard, Selection::ids(Vec::new()))
    };
    let refusal = letters
        .begin("ann", empty_request)
        .await
        .expect_err("refused");
    assert!(
        matches!(&refusal, TaskRefusal::Refusal(r) if r.text.contains("no letter")),
        "{refusal}"
    );
    let unknown: TaskId = "u".parse().expect("a name");
    assert!(matches!(
        letters.cancel("ann", &unknown).await,
        Err(TaskRefusal::Refusal(_))
    ));
}

#[tokio::test(start_paused = true)]
async fn a_plan_says_what_would_die_again_and_what_would_not() {
    let world = World::new().await;
    make_mailbox_letter(&world).await;
    let key = protocol::keys::record_key(between(ALICE, BOB));
    world
        .publish_raw(Topic::Message, &key, Bytes::from_static(b"\xff"))
        .await;
    world
        .wait_until("letters", async || {
            world.records(Topic::Dead).await.len() == 2
        })
        .await;
    let letters = world.dead_letters();
    let plan = letters.plan(&all()).await.expect("readable");
    let forecasts: Vec<_> = plan.forecasts.iter().map(|share| &share.forecast).collect();
    let [Forecast::Store, Forecast::FailAgain { cause }] = &forecasts[..] else {
        panic!("{plan:?}");
    };
    let cause = cause.to_string();
    assert!(cause.starts_with("undecodable"), "{cause}");

    world
        .sign_in(BOB, Platform::Web, 20, Manner::Acknowledges)
        .await;
    let plan = letters.plan(&all()).await.expect("readable");
    assert_eq!(plan.forecasts[0].forecast, Forecast::Deliver);

    let _worker = Worker::begin(&letters, "desk");
    letters
        .begin("ann", request(OperatorWork::Redrive, all()))
        .await
        .expect("begun");
    wait(&letters).await;
    let plan = letters.plan(&all()).await.expect("readable");
    let outcome = TaskOutcome::Before;
    let untouched_count: u64 = plan
        .forecasts
        .iter()
        .filter(|share| share.forecast == Forecast::LeftAlone { outcome })
        .map(|share| share.letters)
        .sum();
    assert_eq!(untouched_count, 2, "{plan:?}");
}
