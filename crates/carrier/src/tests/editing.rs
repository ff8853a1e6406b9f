//! Edits of letters by an operator.

use api::envelope;
use api::task::Value;
use backend::Kind;
use backend::hook::Fault;
use bytes::Bytes;
use operator::DeadLetters;
use operator::dead_letters::{EditResult, Envelope, Forecast, LetterChange, TaskRefusal};
use operator::desk::{EditRefusal, TaskOutcome, Version};
use protocol::Platform;
use protocol::keys::Topic;
use protocol::ledger::LedgerEvent;
use protocol::record::RetryTask;
use protocol::{Placed, Position, Seq};

use super::desk::{Worker, all, letters_of, says};
use super::world::*;

const TASK: &str = "packetboat.v1.Task";

/// A message of Alice's to Bob, mended or damaged as JSON.
fn bytes(world: &World, change: impl FnOnce(String) -> String) -> Bytes {
    let mut task = task(world.message(ALICE, BOB));
    task.bounds = world.bounds;
    let work = protocol::record::Work::Message(task);
    let task = protocol::record::Task::new(work, world.now());
    let text = envelope::to_json(TASK, task.encode()).expect("a task").text;
    envelope::from_json(TASK, &change(text)).expect("a message of the wire")
}

/// Names a sender that cannot be: no user is -1.
fn from_nobody(text: String) -> String {
    let damaged = text.replace("\"fromId\": \"1\"", "\"fromId\": \"-1\"");
    assert_ne!(damaged, text);
    damaged
}

/// A letter that holds these bytes.
async fn letter(world: &World, value: Bytes) -> String {
    let key = protocol::keys::record_key(between(ALICE, BOB));
    world.publish_raw(Topic::Message, &key, value).await;
    let letters = world.dead_letters();
    world
        .until("a letter", async || !letters_of(&letters).await.is_empty())
        .await;
    letters_of(&letters).await[0].id.clone()
}

async fn held(letters: &DeadLetters, id: &str) -> Envelope {
    let held = letters.envelope(id).await.expect("readable");
    held.expect("there")
}

fn change(base: &Version, envelope: &str) -> LetterChange {
    LetterChange {
        base: base.clone(),
        envelope: envelope.to_owned(),
        why: "a test".to_owned(),
        dry_run: false,
        drop_unknown: false,
    }
}

async fn edit(
    letters: &DeadLetters,
    id: &str,
    change: LetterChange,
) -> Result<EditResult, TaskRefusal> {
    let changed = letters.edit("ann", id, change).await?;
    Ok(changed.expect("there is such a letter"))
}

async fn forecast(letters: &DeadLetters) -> Forecast {
    let plan = letters.plan(&all()).await.expect("readable");
    plan.forecasts[0].forecast.clone()
}

fn refusal(refused: Result<EditResult, TaskRefusal>) -> String {
    refused.expect_err("refused").to_string()
}

#[tokio::test(start_paused = true)]
async fn a_letter_is_mended_and_redriven_as_it_is_now() {
    let world = World::new().await;
    world
        .sign_in(BOB, Platform::Web, 20, Manner::Acknowledges)
        .await;
    let id = letter(&world, bytes(&world, from_nobody)).await;
    let letters = world.dead_letters();
    let before = held(&letters, &id).await;
    let flaw = before.flaw.clone().expect("it would die");
    assert!(flaw.starts_with("undecodable"), "{flaw}");
    let text = before.text.as_ref().expect("a message");
    let text = text.replace("\"-1\"", "\"1\"");

    let looked = LetterChange {
        dry_run: true,
        ..change(&before.version, &text)
    };
    let looked = edit(&letters, &id, looked).await.expect("it can be");
    assert!(
        looked.diff.contains("+      \"fromId\": \"1\""),
        "{looked:?}"
    );
    assert_eq!(looked.fields, ["message.message.fromId"]);
    assert_eq!((looked.flaw, looked.done), (None, false));
    assert!(matches!(
        forecast(&letters).await,
        Forecast::FailAgain { .. }
    ));

    let kept = edit(&letters, &id, change(&before.version, &text)).await;
    assert!(kept.expect("it can be").done);
    assert_eq!(forecast(&letters).await, Forecast::Place);
    assert_eq!(world.records(Topic::Dead).await.len(), 2);
    let [listed] = &letters_of(&letters).await[..] else {
        panic!("what was made of a letter is none");
    };
    assert!(listed.edited);
    // Another operator saw what it held before.
    let stale = edit(&letters, &id, change(&before.version, "{}")).await;
    assert!(matches!(
        stale,
        Err(TaskRefusal::NotEdited(EditRefusal::Changed))
    ));

    // Another process knows the same.
    let again = world.dead_letters();
    let _worker = Worker::begin(&again, "desk");
    let shown = again.show(&id, true).await.expect("readable");
    let shown = shown.expect("there");
    assert!(shown.body.expect("asked for").contains("number 1"));
    let edit_of = shown.edit.expect("edited");
    assert_eq!((&*edit_of.by, &*edit_of.why), ("ann", "a test"));
    let told = world.redrive(&all()).await.expect("redriven");
    assert_eq!(told[0].outcome, TaskOutcome::ToMessage);
    world
        .until("it is pushed", async || world.boat.pushed_to(20).len() == 1)
        .await;
    let version = held(&again, &id).await.version;
    let late = edit(&again, &id, change(&version, "{}")).await;
    assert!(matches!(
        late,
        Err(TaskRefusal::NotEdited(EditRefusal::Redriven))
    ));
    assert_eq!(letters_of(&letters).await.len(), 1, "it did not die again");
}

/// A letter that names its message, and two targets that miss it.
async fn dead_for_two(world: &World) -> (String, Placed) {
    let message = world.message(ALICE, BOB);
    let placed = Placed {
        conversation: between(ALICE, BOB),
        position: Position {
            seq: Seq(1),
            prev: None,
        },
        message,
    };
    let work = protocol::record::Work::Deliver(RetryTask {
        rev: 0,
        placed: placed.clone(),
        targets: [Platform::Web, Platform::Ios]
            .map(|on| target(BOB, on))
            .to_vec(),
        live_users: Vec::new(),
        due_at: world.now(),
        cause: String::new(),
        letter: None,
    });
    world.faults.begin(ROUTES, Fault::Conflict);
    world
        .publish(
            Topic::Retry(1),
            &protocol::record::Task::new(work, world.now()),
        )
        .await;
    let letters = world.dead_letters();
    world
        .until("a letter", async || !letters_of(&letters).await.is_empty())
        .await;
    world.faults.end(ROUTES);
    let [letter] = &letters_of(&letters).await[..] else {
        panic!("one letter");
    };
    assert_eq!(letter.targets.len(), 2, "{letter:?}");
    (letter.id.clone(), placed)
}

#[tokio::test(start_paused = true)]
async fn a_letter_stays_the_message_that_it_names() {
    let world = World::new().await;
    let (id, placed) = dead_for_two(&world).await;
    let letters = world.dead_letters();
    let before = held(&letters, &id).await;
    let text = before.text.expect("a message");
    let number = placed.message.id.get();
    let other = text.replace(&number.to_string(), &(number + 1).to_string());
    assert_ne!(other, text);
    for dry_run in [true, false] {
        for text in [&*other, "{}"] {
            let change = LetterChange {
                dry_run,
                ..change(&before.version, text)
            };
            let refused = refusal(edit(&letters, &id, change).await);
            assert!(refused.contains("Keep its id"), "{refused}");
        }
    }
}

#[tokio::test(start_paused = true)]
async fn a_target_that_is_taken_out_is_not_said_to_be_on_its_way() {
    let world = World::new().await;
    let (id, placed) = dead_for_two(&world).await;
    let letters = world.dead_letters();
    let before = held(&letters, &id).await;
    let mut json: serde_json::Value =
        serde_json::from_str(&before.text.expect("a message")).expect("JSON");
    let targets = json["deliver"]["targets"].as_array_mut();
    targets.expect("they are there").remove(1);
    let kept = edit(&letters, &id, change(&before.version, &json.to_string())).await;
    assert!(kept.expect("it can be").done);
    world.redrive(&all()).await.expect("redriven");
    let events = world.events(placed.message.id).await.into_iter();
    let redriven = events.filter(|(_, event)| matches!(event, LedgerEvent::Redriven { .. }));
    let redriven: Vec<_> = redriven.map(|(target, _)| target).collect();
    assert_eq!(redriven, [Some(target(BOB, Platform::Web))]);
}

/// A crash after the new bytes, and before the entry that makes them count.
#[tokio::test(start_paused = true)]
async fn bytes_without_an_entry_count_for_nothing() {
    let world = World::new().await;
    let id = letter(&world, bytes(&world, from_nobody)).await;
    let letters = world.dead_letters();
    let before = held(&letters, &id).await;
    let text = before.text.as_ref().expect("a message");
    let text = text.replace("\"-1\"", "\"1\"");
    let faults = &world.faults;
    faults.refuse_records(|record| says(record, "\"edited\"").then_some(Kind::Unavailable));
    let failed = edit(&letters, &id, change(&before.version, &text)).await;
    assert!(matches!(failed, Err(TaskRefusal::Failed(_))), "{failed:?}");
    assert_eq!(world.records(Topic::Dead).await.len(), 2);
    let [listed] = &letters_of(&letters).await[..] else {
        panic!("it is no letter");
    };
    assert!(!listed.edited);
    assert_eq!(held(&letters, &id).await, before);
    faults.accept_records();
    let kept = edit(&letters, &id, change(&before.version, &text)).await;
    assert!(kept.expect("it can be").done);
}

#[tokio::test(start_paused = true)]
async fn of_two_operators_at_once_one_is_told_to_look_again() {
    let world = World::new().await;
    let id = letter(&world, bytes(&world, from_nobody)).await;
    let (ann, bob) = (world.dead_letters(), world.dead_letters());
    let before = held(&ann, &id).await;
    let text = before.text.as_ref().expect("a message");
    let (one, other) = (text.replace("-1", "1"), text.replace("-1", "3"));
    let (first, second) = tokio::join!(
        edit(&ann, &id, change(&before.version, &one)),
        edit(&bob, &id, change(&before.version, &other)),
    );
    let kept = [&first, &second].map(Result::is_ok);
    assert!(kept == [true, false] || kept == [false, true], "{kept:?}");
    let refused = [first, second].into_iter().find(Result::is_err);
    let refused = refusal(refused.expect("one of them"));
    assert!(refused.contains("look again"), "{refused}");
}

#[tokio::test(start_paused = true)]
async fn what_is_too_large_is_trimmed_and_nothing_larger_is_taken() {
    let mut world = World::new().await;
    world.bounds.record_bytes = 1000;
    let large = |text: String| {
        let mut json: serde_json::Value = serde_json::from_str(&text).expect("JSON");
        json["message"]["message"]["data"] = "QUJD".repeat(1000).into();
        json.to_string()
    };
    let id = letter(&world, bytes(&world, large)).await;
    let letters = world.dead_letters();
    let before = held(&letters, &id).await;
    assert!(before.flaw.expect("it would die").starts_with("too-large"));
    let text = before.text.expect("a message");
    let larger = text.replace("QUJD", "QUJDQUJD");
    let refused = refusal(edit(&letters, &id, change(&before.version, &larger)).await);
    assert!(refused.contains("at most 1000"), "{refused}");
    let smaller = text.replace(&"QUJD".repeat(1000), "QUJD");
    let kept = edit(&letters, &id, change(&before.version, &smaller)).await;
    let kept = kept.expect("it can be");
    assert_eq!(kept.fields, ["message.message.data"]);
    assert_eq!((kept.flaw, kept.done), (None, true));
}

#[tokio::test(start_paused = true)]
async fn what_is_no_message_is_shown_and_replaced_as_a_whole() {
    let world = World::new().await;
    let id = letter(&world, Bytes::from_static(b"\xff\xffnot a task")).await;
    let letters = world.dead_letters();
    let before = held(&letters, &id).await;
    assert_eq!(before.text, None);
    assert!(before.raw.expect("shown").contains("not a task"));
    let whole = envelope::to_json(TASK, bytes(&world, |text| text)).expect("a task");
    let kept = edit(&letters, &id, change(&before.version, &whole.text)).await;
    let kept = kept.expect("it can be");
    assert_eq!(kept.fields, ["*"]);
    assert!(kept.done && kept.flaw.is_none(), "{kept:?}");
    assert_eq!(forecast(&letters).await, Forecast::Place);
}

#[tokio::test(start_paused = true)]
async fn fields_that_are_not_known_are_not_lost_by_the_way() {
    let world = World::new().await;
    let mut value = bytes(&world, from_nobody).to_vec();
    value.extend([0x98, 0x06, 0x01]); // field 99, a number
    let id = letter(&world, value.into()).await;
    let letters = world.dead_letters();
    let before = held(&letters, &id).await;
    assert_eq!(before.unknown_fields, ["#99"]);
    let text = before.text.expect("a message").replace("-1", "1");
    let change = change(&before.version, &text);
    let refused = refusal(edit(&letters, &id, change.clone()).await);
    assert!(refused.contains("#99"), "{refused}");
    let slip = LetterChange {
        envelope: text.replace("retryCount", "retryCuont"),
        ..change.clone()
    };
    let refused = refusal(edit(&letters, &id, slip).await);
    assert!(
        refused.contains("retryCuont") && refused.contains("line"),
        "{refused}"
    );
    let knowingly = LetterChange {
        drop_unknown: true,
        ..change
    };
    let kept = edit(&letters, &id, knowingly).await.expect("it can be");
    assert!(kept.diff.contains("-# unknown: #99"), "{}", kept.diff);
    assert!(kept.done);
}
