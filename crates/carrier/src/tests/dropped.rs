//! Letters that are over: died again, beyond restoring, or dropped by the log.

use std::sync::Arc;
use std::time::Duration;

use backend::Backends;
use backend::clock::TimerClock;
use backend::queue::{NewRecord, Queue};
use bytes::Bytes;
use operator::DeadLetters;
use operator::dead_letters::{Filter, Forecast, HeaderValue, Selection};
use operator::desk::{OperatorAction, OperatorWork, TaskOutcome};
use protocol::keys::Topic;
use protocol::ledger::DeadReason;
use tokio::time::sleep;

use super::desk::{Worker, all, garbage, id, letters_of, request, summary_of, wait};
use super::world::*;

const DAY: Duration = Duration::from_secs(86_400);

/// A desk some time later.
fn later(world: &World, by: Duration) -> DeadLetters {
    let backends = Backends {
        clock: Arc::new(TimerClock::starting_at(world.now() + by)),
        ..world.backends.clone()
    };
    DeadLetters::new(backends, world.bounds)
}

async fn acts(letters: &DeadLetters) -> Vec<OperatorAction> {
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
    let old: Vec<String> = (letters_of(&letters).await.into_iter())
        .map(|letter| letter.id)
        .collect();
    let first = Worker::begin(&letters, "first");
    letters
        .begin("ann", request(OperatorWork::Redrive, all()))
        .await
        .expect("begun");
    wait(&letters).await;
    world
        .until("it is told", async || {
            letters.task(&id()).await.expect("known").died_again == 3
        })
        .await;
    let task = letters.task(&id()).await.expect("known");
    let listed = letters_of(&letters).await;
    assert_eq!(listed.len(), 6);
    for letter in listed {
        let parent = letter.parent.filter(|parent| old.contains(parent));
        let is_told = task.died_again_as.contains(&letter.id);
        assert_eq!(is_told, parent.is_some(), "{}", letter.id);
        assert_eq!(is_told, !old.contains(&letter.id), "{}", letter.id);
    }
    // The next worker does not report it again.
    drop(first);
    let _second = Worker::begin(&letters, "second");
    sleep(Duration::from_secs(30)).await;
    assert_eq!(letters.task(&id()).await.expect("known").died_again, 3);
    let told = acts(&letters).await.into_iter();
    let told = told.filter(|act| matches!(act, OperatorAction::DiedAgain { .. }));
    let told: usize = told
        .map(|act| match act {
            OperatorAction::DiedAgain { letters, .. } => letters.len(),
            _ => 0,
        })
        .sum();
    assert_eq!(told, 3);
}

#[tokio::test(start_paused = true)]
async fn what_was_discarded_is_gone_after_seven_days() {
    let world = World::new().await;
    garbage(&world, 2).await;
    let letters = world.dead_letters();
    let _worker = Worker::begin(&letters, "desk");
    let name = letters_of(&letters).await[0].id.clone();
    let one = Selection::ids(vec![name.clone()]);
    letters
        .begin("ann", request(OperatorWork::Discard, one.clone()))
        .await
        .expect("begun");
    wait(&letters).await;
    assert_eq!(letters_of(&letters).await.len(), 2);

    let letters = later(&world, 8 * DAY);
    let left = letters_of(&letters).await;
    assert_eq!(left.len(), 1);
    assert_ne!(left[0].id, name);
    let stats = letters.stats().await.expect("counts");
    assert_eq!(summary_of(&stats, DeadReason::Undecodable).letters, 1);
    assert_eq!(letters.count(&all()).await.expect("counts").letters, 1);
    let packed = letters.pack("ann", 7, &Filter::default(), None, "").await;
    assert_eq!(packed.expect("packed").letters.len(), 1);
    let shown = letters.show(&name, true).await.expect("readable");
    let shown = shown.expect("it is in the log");
    assert!(shown.letter.gone && shown.letter.discarded_at.is_some());
    assert_eq!(shown.body, None);
    assert!(letters.envelope(&name).await.is_err());
    let plan = letters.plan(&one).await.expect("readable");
    let outcome = TaskOutcome::Final;
    let over = Forecast::LeftAlone { outcome };
    assert_eq!(plan.forecasts[0].forecast, over);
    let every = Filter {
        with_gone: true,
        ..Filter::default()
    };
    let every = letters.list(&every, None, 10).await.expect("readable");
    assert_eq!(every.letters.len(), 2);
}

#[tokio::test(start_paused = true)]
async fn what_the_log_has_dropped_is_forgotten() {
    let world = World::new().await;
    garbage(&world, 3).await;
    let letters = world.dead_letters();
    let _worker = discard_all(&letters, "desk").await;
    sleep(Duration::from_secs(30)).await;
    assert_eq!(forgotten(&acts(&letters).await), 0);
    let month = world.now() + 31 * DAY;
    world.log.trim(month).await.expect("trimmed");
    assert!(letters_of(&letters).await.is_empty());
    world
        .until("they are forgotten", async || {
            forgotten(&acts(&letters).await) == 3
        })
        .await;
    // Once.
    sleep(Duration::from_secs(30)).await;
    assert_eq!(forgotten(&acts(&letters).await), 3);
}

fn forgotten(acts: &[OperatorAction]) -> usize {
    let forgets = acts.iter().map(|act| match act {
        OperatorAction::Forgotten { letters } => letters.len(),
        _ => 0,
    });
    forgets.sum()
}

/// One letter, discarded, and half an hour later another record of its name; the log drops the
/// first one.
async fn dropped_the_first_of_two(world: &World, reason: Option<&'static str>) -> DeadLetters {
    garbage(world, 1).await;
    let first = world.records(Topic::Dead).await.remove(0);
    let month = world.now() + 30 * DAY + Duration::from_secs(600);
    sleep(Duration::from_secs(1800)).await;
    let mut headers = first.headers;
    if let Some(reason) = reason {
        let found = headers.iter_mut().find(|(name, _)| name == "reason");
        found.expect("it has one").1 = Bytes::from(reason);
    }
    let second = NewRecord {
        partition: first.partition,
        key: first.key,
        headers,
        value: first.value,
    };
    let put = world.log.producer().publish(vec![second]).await;
    assert!(put[0].is_ok());
    let letters = world.dead_letters();
    let worker = discard_all(&letters, "desk").await;
    world.log.trim(month).await.expect("trimmed");
    assert_eq!(world.records(Topic::Dead).await.len(), 1);
    sleep(Duration::from_secs(30)).await;
    drop(worker);
    letters
}

#[tokio::test(start_paused = true)]
async fn a_letter_is_remembered_while_any_record_of_it_is_there() {
    let world = World::new().await;
    let letters = dropped_the_first_of_two(&world, None).await;
    assert_eq!(forgotten(&acts(&letters).await), 0);
    assert!(letters_of(&letters).await[0].discarded);
    let _worker = Worker::begin(&letters, "another");
    let late = world.now() + 31 * DAY;
    world.log.trim(late).await.expect("trimmed");
    sleep(Duration::from_secs(30)).await;
    assert_eq!(forgotten(&acts(&letters).await), 1);
}

/// A later version may know the cause of death.
#[tokio::test(start_paused = true)]
async fn a_letter_is_remembered_while_a_record_that_cannot_be_read_bears_its_name() {
    let world = World::new().await;
    let letters = dropped_the_first_of_two(&world, Some("of-later-times")).await;
    assert!(letters_of(&letters).await.is_empty(), "it cannot be read");
    assert_eq!(forgotten(&acts(&letters).await), 0);
}

#[tokio::test(start_paused = true)]
async fn what_the_log_does_not_hand_out_is_not_taken_for_dropped() {
    let world = World::new().await;
    garbage(&world, 3).await;
    let letters = world.dead_letters();
    let first = discard_all(&letters, "first").await;
    drop(first);
    world.hide(Topic::Dead);
    let _second = Worker::begin(&letters, "second");
    sleep(Duration::from_secs(30)).await;
    assert_eq!(forgotten(&acts(&letters).await), 0);
    assert!(letters.count(&all()).await.is_err(), "not none");
    world.hide(Topic::Operation);
    let again = world.dead_letters();
    assert!(again.tasks().await.is_err(), "not none");
}

#[tokio::test(start_paused = true)]
async fn the_log_tells_only_decisions_if_asked_and_goes_on() {
    let world = World::new().await;
    garbage(&world, 3).await;
    let letters = world.dead_letters();
    let _worker = discard_all(&letters, "desk").await;
    letters
        .looked("bob", "message-0-0", "")
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
    assert!(acts(&letters).await.len() > 3);
}

/// Both imports find nothing, and both add the letter.
#[tokio::test(start_paused = true)]
async fn a_letter_that_came_back_twice_at_once_is_one() {
    let world = World::new().await;
    garbage(&world, 1).await;
    let full = world.dead_letters();
    let packed = full.pack("ann", 7, &Filter::default(), None, "").await;
    let packed = packed.expect("packed").letters;

    let empty = World::new().await;
    let (ann, bob) = (empty.dead_letters(), empty.dead_letters());
    let (first, second) = tokio::join!(
        ann.unpack("ann", 7, packed.clone(), "a test"),
        bob.unpack("bob", 7, packed.clone(), "a test"),
    );
    let taken = [first, second].map(|unpacked| unpacked.expect("taken").imported.len());
    assert_eq!(
        taken.iter().sum::<usize>(),
        empty.records(Topic::Dead).await.len()
    );
    let stats = ann.stats().await.expect("counts");
    assert_eq!(summary_of(&stats, DeadReason::Undecodable).letters, 1);
    assert_eq!(ann.count(&all()).await.expect("counts").letters, 1);
    let told = empty.redrive(&all()).await.expect("redriven");
    assert_eq!(told.len(), 1);
    assert_eq!(told[0].outcome, TaskOutcome::ToMessage);
    let redriven = empty.records(Topic::Message).await.len();
    let told = empty
        .redrive(&Selection::ids(vec![packed[0].id.clone()]))
        .await;
    assert_eq!(told.expect("left alone")[0].outcome, TaskOutcome::Before);
    assert_eq!(empty.records(Topic::Message).await.len(), redriven);
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
        let put = world.log.producer().publish(vec![record]).await;
        assert!(put[0].is_ok());
    };
    let odd = World::new().await;
    put(&odd).await;
    let packed = odd
        .dead_letters()
        .pack("ann", 7, &Filter::default(), None, "")
        .await;
    let packed = packed.expect("packed").letters;
    let (_, value) = packed[0].headers.last().expect("the odd one");
    assert!(matches!(value, HeaderValue::Bytes { .. }), "{value:?}");
    let text = serde_json::to_string(&packed).expect("JSON");
    let packed = serde_json::from_str(&text).expect("back");

    let empty = World::new().await;
    let desk = empty.dead_letters();
    desk.unpack("ann", 7, packed, "").await.expect("taken");
    let back = empty.records(Topic::Dead).await.remove(0);
    assert_eq!(back.headers, record.headers);
}
