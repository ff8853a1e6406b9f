//! Dead letters that are final: those that died again, that can no longer be restored, or that the
//! log has dropped.

use std::sync::Arc;
use std::time::Duration;

use backend::Backends;
use backend::clock::TimerClock;
use backend::queue::{NewRecord, Queue};
use bytes::Bytes;
use operator::DeadLetters;
use operator::dead_letters::rules::{OperatorAction, OperatorWork, TaskOutcome};
use operator::dead_letters::{Filter, Forecast, HeaderValue, Selection};
use protocol::keys::Topic;
use protocol::ledger::DeadReason;
use tokio::time::sleep;

use super::desk::{Worker, all, garbage, id, list_letters, reason_summary, request, wait};
use super::world::*;

const DAY: Duration = Duration::from_secs(86_400);

/// A desk some time later.
fn desk_after(world: &World, delay: Duration) -> DeadLetters {
    let backends = Backends {
        clock: Arc::new(TimerClock::starting_at(world.now() + delay)),
        ..world.backends.clone()
    };
    DeadLetters::new(backends, world.bounds)
}

async fn operator_actions(letters: &DeadLetters) -> Vec<OperatorAction> {
    let log = letters.log(1000, false, None).await.expect("readable");
    log.entries.into_iter().map(|entry| entry.act).collect()
}

/// Ann discards them, and this worker does it.
async fn discard_all(letters: &DeadLetters, worker: &str) -> Worker {
    let worker = Worker::begin(letters, worker);
    letters
        .begin("ann", request(OperatorWork::Discard, all()))
        .await
        .expect("begun");
    wait(letters).await;
    worker
}

#[tokio::test(start_paused = true)]
async fn a_task_tells_which_letters_died_again() {
    let world = World::new().await;
    garbage(&world, 3).await;
    let letters = world.dead_letters();
    let old_ids: Vec<String> = (list_letters(&letters).await.into_iter())
        .map(|letter| letter.id)
        .collect();
    let first = Worker::begin(&letters, "first");
    letters
        .begin("ann", request(OperatorWork::Redrive, all()))
        .await
        .expect("begun");
    wait(&letters).await;
    world
        .wait_until("it is told", async || {
            letters.task(&id()).await.expect("known").died_again == 3
        })
        .await;
    let task = letters.task(&id()).await.expect("known");
    let page = list_letters(&letters).await;
    assert_eq!(page.len(), 6);
    for letter in page {
        let parent = letter.parent.filter(|parent| old_ids.contains(parent));
        let is_reported = task.died_again_as.contains(&letter.id);
        assert_eq!(is_reported, parent.is_some(), "{}", letter.id);
        assert_eq!(is_reported, !old_ids.contains(&letter.id), "{}", letter.id);
    }
    // The next worker does not report it again.
    drop(first);
    let _second = Worker::begin(&letters, "second");
    sleep(Duration::from_secs(30)).await;
    assert_eq!(letters.task(&id()).await.expect("known").died_again, 3);
    let reports = operator_actions(&letters).await.into_iter();
    let reports = reports.filter(|act| matches!(act, OperatorAction::DiedAgain { .. }));
    let reports: usize = reports
        .map(|act| match act {
            OperatorAction::DiedAgain { letters, .. } => letters.len(),
            _ => 0,
        })
        .sum();
    assert_eq!(reports, 3);
}

#[tokio::test(start_paused = true)]
async fn discarded_letters_are_gone_after_seven_days() {
    let world = World::new().await;
    garbage(&world, 2).await;
    let letters = world.dead_letters();
    let _worker = Worker::begin(&letters, "desk");
    let name = list_letters(&letters).await[0].id.clone();
    let one = Selection::ids(vec![name.clone()]);
    letters
        .begin("ann", request(OperatorWork::Discard, one.clone()))
        .await
        .expect("begun");
    wait(&letters).await;
    assert_eq!(list_letters(&letters).await.len(), 2);

    let letters = desk_after(&world, 8 * DAY);
    let remaining_letters = list_letters(&letters).await;
    assert_eq!(remaining_letters.len(), 1);
    assert_ne!(remaining_letters[0].id, name);
    let stats = letters.stats().await.expect("counts");
    assert_eq!(reason_summary(&stats, DeadReason::Undecodable).letters, 1);
    assert_eq!(letters.count(&all()).await.expect("counts").letters, 1);
    let package = letters.pack("ann", 7, &Filter::default(), None, "").await;
    assert_eq!(package.expect("packed").letters.len(), 1);
    let view = letters.show(&name, true).await.expect("readable");
    let view = view.expect("it is in the log");
    assert!(view.letter.gone && view.letter.discarded_at.is_some());
    assert_eq!(view.body, None);
    assert!(letters.envelope(&name).await.is_err());
    let plan = letters.plan(&one).await.expect("readable");
    let outcome = TaskOutcome::Final;
    let forecast = Forecast::LeftAlone { outcome };
    assert_eq!(plan.forecasts[0].forecast, forecast);
    let filter_all = Filter {
        with_gone: true,
        ..Filter::default()
    };
    let filter_all = letters.list(&filter_all, None, 10).await.expect("readable");
    assert_eq!(filter_all.letters.len(), 2);
}

#[tokio::test(start_paused = true)]
async fn letters_that_the_log_dropped_are_forgotten() {
    let world = World::new().await;
    garbage(&world, 3).await;
    let letters = world.dead_letters();
    let _worker = discard_all(&letters, "desk").await;
    sleep(Duration::from_secs(30)).await;
    assert_eq!(forgotten_count(&operator_actions(&letters).await), 0);
    let after_retention = world.now() + 31 * DAY;
    world.log.trim(after_retention).await.expect("trimmed");
    assert!(list_letters(&letters).await.is_empty());
    world
        .wait_until("they are forgotten", async || {
            forgotten_count(&operator_actions(&letters).await) == 3
        })
        .await;
    // Once.
    sleep(Duration::from_secs(30)).await;
    assert_eq!(forgotten_count(&operator_actions(&letters).await), 3);
}

fn forgotten_count(acts: &[OperatorAction]) -> usize {
    let forgets = acts.iter().map(|act| match act {
        OperatorAction::Forgotten { letters } => letters.len(),
        _ => 0,
    });
    forgets.sum()
}

/// One letter, discarded, and half an hour later another record of its name; the log drops the
/// first one.
async fn trim_first_of_two(world: &World, reason: Option<&'static str>) -> DeadLetters {
    garbage(world, 1).await;
    let first = world.records(Topic::Dead).await.remove(0);
    let retention_end = world.now() + 30 * DAY + Duration::from_secs(600);
    sleep(Duration::from_secs(1800)).await;
    let mut headers = first.headers;
    if let Some(reason) = reason {
        let reason_header = headers.iter_mut().find(|(name, _)| name == "reason");
        reason_header.expect("it has one").1 = Bytes::from(reason);
    }
    let second = NewRecord {
        partition: first.partition,
        key: first.key,
        headers,
        value: first.value,
    };
    let answers = world.log.producer().publish(vec![second]).await;
    assert!(answers[0].is_ok());
    let letters = world.dead_letters();
    let worker = discard_all(&letters, "desk").await;
    world.log.trim(retention_end).await.expect("trimmed");
    assert_eq!(world.records(Topic::Dead).await.len(), 1);
    sleep(Duration::from_secs(30)).await;
    drop(worker);
    letters
}

#[tokio::test(start_paused = true)]
async fn a_letter_is_remembered_while_any_record_of_it_is_there() {
    let world = World::new().await;
    let letters = trim_first_of_two(&world, None).await;
    assert_eq!(forgotten_count(&operator_actions(&letters).await), 0);
    assert!(list_letters(&letters).await[0].discarded);
    let _worker = Worker::begin(&letters, "another");
    let after_retention = world.now() + 31 * DAY;
    world.log.trim(after_retention).await.expect("trimmed");
    sleep(Duration::from_secs(30)).await;
    assert_eq!(forgotten_count(&operator_actions(&letters).await), 1);
}

/// A later version may know the cause of death.
#[tokio::test(start_paused = true)]
async fn a_letter_is_remembered_while_an_unreadable_record_has_its_id() {
    let world = World::new().await;
    let letters = trim_first_of_two(&world, Some("of-later-times")).await;
    assert!(list_letters(&letters).await.is_empty(), "it cannot be read");
    assert_eq!(forgotten_count(&operator_actions(&letters).await), 0);
}

#[tokio::test(start_paused = true)]
async fn unreadable_log_is_not_mistaken_for_dropped_letters() {
    let world = World::new().await;
    garbage(&world, 3).await;
    let letters = world.dead_letters();
    let first = discard_all(&letters, "first").await;
    drop(first);
    world.hide(Topic::Dead);
    let _second = Worker::begin(&letters, "second");
    sleep(Duration::from_secs(30)).await;
    assert_eq!(forgotten_count(&operator_actions(&letters).await), 0);
    assert!(letters.count(&all()).await.is_err(), "not none");
    world.hide(Topic::Operation);
    let new_desk = world.dead_letters();
    assert!(new_desk.tasks().await.is_err(), "not none");
}

#[tokio::test(start_paused = true)]
async fn the_log_tells_only_decisions_if_asked_and_goes_on() {
    let world = World::new().await;
    garbage(&world, 3).await;
    let letters = world.dead_letters();
    let _worker = discard_all(&letters, "desk").await;
    letters
        .log_look("bob", "message-0-0", "")
        .await
        .expect("said");
    let page = letters.log(1, true, None).await.expect("readable");
    let [newest] = &page.entries[..] else {
        panic!("{page:?}");
    };
    assert_eq!(newest.by, "bob");
    let page = letters.log(10, true, page.next).await.expect("readable");
    let [oldest] = &page.entries[..] else {
        panic!("{page:?}");
    };
    assert!(matches!(oldest.act, OperatorAction::Begun(_)));
    assert_eq!(page.next, None);
    assert!(operator_actions(&letters).await.len() > 3);
}

/// Both imports find nothing, and both add the letter.
#[tokio::test(start_paused = true)]
async fn a_letter_that_came_back_twice_at_once_is_one() {
    let world = World::new().await;
    garbage(&world, 1).await;
    let full = world.dead_letters();
    let packages = full.pack("ann", 7, &Filter::default(), None, "").await;
    let packages = packages.expect("packed").letters;

    let empty = World::new().await;
    let (ann, bob) = (empty.dead_letters(), empty.dead_letters());
    let (first, second) = tokio::join!(
        ann.unpack("ann", 7, packages.clone(), "a test"),
        bob.unpack("bob", 7, packages.clone(), "a test"),
    );
    let import_counts = [first, second].map(|report| report.expect("taken").imported.len());
    assert_eq!(
        import_counts.iter().sum::<usize>(),
        empty.records(Topic::Dead).await.len()
    );
    let stats = ann.stats().await.expect("counts");
    assert_eq!(reason_summary(&stats, DeadReason::Undecodable).letters, 1);
    assert_eq!(ann.count(&all()).await.expect("counts").letters, 1);
    let outcomes = empty.redrive(&all()).await.expect("redriven");
    assert_eq!(outcomes.len(), 1);
    assert_eq!(outcomes[0].outcome, TaskOutcome::ToMessage);
    let message_count = empty.records(Topic::Message).await.len();
    let outcomes = empty
        .redrive(&Selection::ids(vec![packages[0].id.clone()]))
        .await;
    assert_eq!(
        outcomes.expect("left alone")[0].outcome,
        TaskOutcome::Before
    );
    assert_eq!(empty.records(Topic::Message).await.len(), message_count);
}

#[tokio::test(start_paused = true)]
async fn headers_leave_and_come_back_byte_for_byte() {
    let world = World::new().await;
    garbage(&world, 1).await;
    let mut record = world.records(Topic::Dead).await.remove(0);
    record
        .headers
        .push(("odd".to_owned(), Bytes::from_static(b"\xff\x00")));
    let put = async |world: &World| {
        let record = NewRecord {
            partition: record.partition,
            key: record.key.clone(),
            headers: record.headers.clone(),
            value: record.value.clone(),
        };
        let answers = world.log.producer().publish(vec![record]).await;
        assert!(answers[0].is_ok());
    };
    let odd = World::new().await;
    put(&odd).await;
    let packages = odd
        .dead_letters()
        .pack("ann", 7, &Filter::default(), None, "")
        .await;
    let packages = packages.expect("packed").letters;
    let (_, value) = packages[0].headers.last().expect("the odd one");
    assert!(matches!(value, HeaderValue::Bytes { .. }), "{value:?}");
    let text = serde_json::to_string(&packages).expect("JSON");
    let packages = serde_json::from_str(&text).expect("back");

    let empty = World::new().await;
    let desk = empty.dead_letters();
    desk.unpack("ann", 7, packages, "").await.expect("taken");
    let record_copy = empty.records(Topic::Dead).await.remove(0);
    assert_eq!(record_copy.headers, record.headers);
}
