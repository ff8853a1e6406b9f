//! Edits of letters by an operator.

use api::envelope;
use api::task::Value;
use backend::Kind;
use backend::hook::Fault;
use bytes::Bytes;
use operator::DeadLetters;
use operator::dead_letters::rules::{EditRefusal, TaskOutcome, Version};
use operator::dead_letters::{EditResult, Envelope, Forecast, LetterChange, TaskRefusal};
use protocol::Platform;
use protocol::keys::Topic;
use protocol::ledger::LedgerEvent;
use protocol::record::RetryTask;
use protocol::{Placed, Position, Seq};

use super::desk::{Worker, all, list_letters, says};
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
    let damaged_text = text.replace("\"fromId\": \"1\"", "\"fromId\": \"-1\"");
    assert_ne!(damaged_text, text);
    damaged_text
}

/// A letter that holds these bytes.
async fn letter(world: &World, value: Bytes) -> String {
    let key = protocol::keys::record_key(between(ALICE, BOB));
    world.publish_raw(Topic::Message, &key, value).await;
    let letters = world.dead_letters();
    world
        .wait_until("a letter", async || {
            !list_letters(&letters).await.is_empty()
        })
        .await;
    list_letters(&letters).await[0].id.clone()
}

async fn load_envelope(letters: &DeadLetters, id: &str) -> Envelope {
    let envelope = letters.envelope(id).await.expect("readable");
    envelope.expect("there")
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
    let result = letters.edit("ann", id, change).await?;
    Ok(result.expect("there is such a letter"))
}

async fn forecast(letters: &DeadLetters) -> Forecast {
    let plan = letters.plan(&all()).await.expect("readable");
    plan.forecasts[0].forecast.clone()
}

fn refusal(result: Result<EditResult, TaskRefusal>) -> String {
    result.expect_err("refused").to_string()
}

#[tokio::test(start_paused = true)]
async fn a_letter_is_mended_and_redriven_as_it_is_now() {
    let world = World::new().await;
    world
        .sign_in(BOB, Platform::Web, 20, Manner::Acknowledges)
        .await;
    let id = letter(&world, bytes(&world, from_nobody)).await;
    let letters = world.dead_letters();
    let envelope = load_envelope(&letters, &id).await;
    let flaw = envelope.flaw.clone().expect("it would die");
    assert!(flaw.starts_with("undecodable"), "{flaw}");
    let text = envelope.text.as_ref().expect("a message");
    let text = text.replace("\"-1\"", "\"1\"");

    let preview = LetterChange {
        dry_run: true,
        ..change(&envelope.version, &text)
    };
    let preview = edit(&letters, &id, preview).await.expect("it can be");
    assert!(
        preview.diff.contains("+      \"fromId\": \"1\""),
        "{preview:?}"
    );
    assert_eq!(preview.fields, ["message.message.fromId"]);
    assert_eq!((preview.flaw, preview.done), (None, false));
    assert!(matches!(
        forecast(&letters).await,
        Forecast::FailAgain { .. }
    ));

    let edit_result = edit(&letters, &id, change(&envelope.version, &text)).await;
    assert!(edit_result.expect("it can be").done);
    assert_eq!(forecast(&letters).await, Forecast::Place);
    assert_eq!(world.records(Topic::Dead).await.len(), 2);
    let [listed] = &list_letters(&letters).await[..] else {
        panic!("what was made of a letter is none");
    };
    assert!(listed.edited);
    // Another operator saw what it held before.
    let stale = edit(&letters, &id, change(&envelope.version, "{}")).await;
    assert!(matches!(
        stale,
        Err(TaskRefusal::NotEdited(EditRefusal::Changed))
    ));

    // Another process knows the same.
    let other_desk = world.dead_letters();
    let _worker = Worker::begin(&other_desk, "desk");
    let view = other_desk.show(&id, true).await.expect("readable");
    let view = view.expect("there");
    assert!(view.body.expect("asked for").contains("number 1"));
    let last_edit = view.edit.expect("edited");
    assert_eq!((&*last_edit.by, &*last_edit.why), ("ann", "a test"));
    let outcomes = world.redrive(&all()).await.expect("redriven");
    assert_eq!(outcomes[0].outcome, TaskOutcome::ToMessage);
    world
        .wait_until("it is pushed", async || world.boat.pushed_to(20).len() == 1)
        .await;
    let version = load_envelope(&other_desk, &id).await.version;
    let late_edit = edit(&other_desk, &id, change(&version, "{}")).await;
    assert!(matches!(
        late_edit,
        Err(TaskRefusal::NotEdited(EditRefusal::Redriven))
    ));
    assert_eq!(
        list_letters(&letters).await.len(),
        1,
        "it did not die again"
    );
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
        .wait_until("a letter", async || {
            !list_letters(&letters).await.is_empty()
        })
        .await;
    world.faults.end(ROUTES);
    let [letter] = &list_letters(&letters).await[..] else {
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
    let envelope = load_envelope(&letters, &id).await;
    let text = envelope.text.expect("a message");
    let number = placed.message.id.get();
    let text_of_other_id = text.replace(&number.to_string(), &(number + 1).to_string());
    assert_ne!(text_of_other_id, text);
    for dry_run in [true, false] {
        for text in [&*text_of_other_id, "{}"] {
            let change = LetterChange {
                dry_run,
                ..change(&envelope.version, text)
            };
            let refusal_text = refusal(edit(&letters, &id, change).await);
            assert!(refusal_text.contains("Keep its id"), "{refusal_text}");
        }
    }
}

#[tokio::test(start_paused = true)]
async fn a_target_that_is_taken_out_is_not_said_to_be_on_its_way() {
    let world = World::new().await;
    let (id, placed) = dead_for_two(&world).await;
    let letters = world.dead_letters();
    let envelope = load_envelope(&letters, &id).await;
    let mut json: serde_json::Value =
        serde_json::from_str(&envelope.text.expect("a message")).expect("JSON");
    let targets = json["deliver"]["targets"].as_array_mut();
    targets.expect("they are there").remove(1);
    let edit_result = edit(&letters, &id, change(&envelope.version, &json.to_string())).await;
    assert!(edit_result.expect("it can be").done);
    world.redrive(&all()).await.expect("redriven");
    let events = world.events(placed.message.id).await.into_iter();
    let redriven_targets =
        events.filter(|(_, event)| matches!(event, LedgerEvent::Redriven { .. }));
    let redriven_targets: Vec<_> = redriven_targets.map(|(target, _)| target).collect();
    assert_eq!(redriven_targets, [Some(target(BOB, Platform::Web))]);
}

/// A crash after the new bytes, and before the entry that makes them count.
#[tokio::test(start_paused = true)]
async fn bytes_without_an_entry_count_for_nothing() {
    let world = World::new().await;
    let id = letter(&world, bytes(&world, from_nobody)).await;
    let letters = world.dead_letters();
    let envelope = load_envelope(&letters, &id).await;
    let text = envelope.text.as_ref().expect("a message");
    let text = text.replace("\"-1\"", "\"1\"");
    let faults = &world.faults;
    faults.refuse_records(|record| says(record, "\"edited\"").then_some(Kind::Unavailable));
    let failure = edit(&letters, &id, change(&envelope.version, &text)).await;
    assert!(
        matches!(failure, Err(TaskRefusal::Failed(_))),
        "{failure:?}"
    );
    assert_eq!(world.records(Topic::Dead).await.len(), 2);
    let [listed] = &list_letters(&letters).await[..] else {
        panic!("it is no letter");
    };
    assert!(!listed.edited);
    assert_eq!(load_envelope(&letters, &id).await, envelope);
    faults.accept_records();
    let edit_result = edit(&letters, &id, change(&envelope.version, &text)).await;
    assert!(edit_result.expect("it can be").done);
}

#[tokio::test(start_paused = true)]
async fn of_two_concurrent_edits_one_is_refused() {
    let world = World::new().await;
    let id = letter(&world, bytes(&world, from_nobody)).await;
    let (ann, bob) = (world.dead_letters(), world.dead_letters());
    let envelope = load_envelope(&ann, &id).await;
    let text = envelope.text.as_ref().expect("a message");
    let (one, other) = (text.replace("-1", "1"), text.replace("-1", "3"));
    let (first, second) = tokio::join!(
        edit(&ann, &id, change(&envelope.version, &one)),
        edit(&bob, &id, change(&envelope.version, &other)),
    );
    let successes = [&first, &second].map(Result::is_ok);
    assert!(
        successes == [true, false] || successes == [false, true],
        "{successes:?}"
    );
    let refusal_text = [first, second].into_iter().find(Result::is_err);
    let refusal_text = refusal(refusal_text.expect("one of them"));
    assert!(refusal_text.contains("reload it"), "{refusal_text}");
}

#[tokio::test(start_paused = true)]
async fn a_too_large_letter_can_be_trimmed_but_not_grown() {
    let mut world = World::new().await;
    world.bounds.record_bytes = 1000;
    let large = |text: String| {
        let mut json: serde_json::Value = serde_json::from_str(&text).expect("JSON");
        json["message"]["message"]["data"] = "QUJD".repeat(1000).into();
        json.to_string()
    };
    let id = letter(&world, bytes(&world, large)).await;
    let letters = world.dead_letters();
    let envelope = load_envelope(&letters, &id).await;
    assert!(
        envelope
            .flaw
            .expect("it would die")
            .starts_with("too-large")
    );
    let text = envelope.text.expect("a message");
    let larger = text.replace("QUJD", "QUJDQUJD");
    let refusal_text = refusal(edit(&letters, &id, change(&envelope.version, &larger)).await);
    assert!(refusal_text.contains("at most 1000"), "{refusal_text}");
    let smaller = text.replace(&"QUJD".repeat(1000), "QUJD");
    let edit_result = edit(&letters, &id, change(&envelope.version, &smaller)).await;
    let edit_result = edit_result.expect("it can be");
    assert_eq!(edit_result.fields, ["message.message.data"]);
    assert_eq!((edit_result.flaw, edit_result.done), (None, true));
}

#[tokio::test(start_paused = true)]
async fn an_undecodable_letter_is_shown_raw_and_replaced_whole() {
    let world = World::new().await;
    let id = letter(&world, Bytes::from_static(b"\xff\xffnot a task")).await;
    let letters = world.dead_letters();
    let envelope = load_envelope(&letters, &id).await;
    assert_eq!(envelope.text, None);
    assert!(envelope.raw.expect("shown").contains("not a task"));
    let whole = envelope::to_json(TASK, bytes(&world, |text| text)).expect("a task");
    let edit_result = edit(&letters, &id, change(&envelope.version, &whole.text)).await;
    let edit_result = edit_result.expect("it can be");
    assert_eq!(edit_result.fields, ["*"]);
    assert!(
        edit_result.done && edit_result.flaw.is_none(),
        "{edit_result:?}"
    );
    assert_eq!(forecast(&letters).await, Forecast::Place);
}

#[tokio::test(start_paused = true)]
async fn fields_that_are_not_known_are_not_lost_by_the_way() {
    let world = World::new().await;
    let mut value = bytes(&world, from_nobody).to_vec();
    value.extend([0x98, 0x06, 0x01]); // field 99, a number
    let id = letter(&world, value.into()).await;
    let letters = world.dead_letters();
    let envelope = load_envelope(&letters, &id).await;
    assert_eq!(envelope.unknown_fields, ["#99"]);
    let text = envelope.text.expect("a message").replace("-1", "1");
    let change = change(&envelope.version, &text);
    let refusal_text = refusal(edit(&letters, &id, change.clone()).await);
    assert!(refusal_text.contains("#99"), "{refusal_text}");
    let slip = LetterChange {
        envelope: text.replace("retryCount", "retryCuont"),
        ..change.clone()
    };
    let refusal_text = refusal(edit(&letters, &id, slip).await);
    assert!(
        refusal_text.contains("retryCuont") && refusal_text.contains("line"),
        "{refusal_text}"
    );
    let lossy_change = LetterChange {
        drop_unknown: true,
        ..change
    };
    let edit_result = edit(&letters, &id, lossy_change).await.expect("it can be");
    assert!(
        edit_result.diff.contains("-# unknown: #99"),
        "{}",
        edit_result.diff
    );
    assert!(edit_result.done);
}
