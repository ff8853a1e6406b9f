use std::time::Duration;

use api::task::Value;
use backend::Kind;
use backend::hook::Fault;
use backend::queue::NewRecord;
use bytes::Bytes;
use operator::dead_letters::rules::TaskOutcome;
use operator::dead_letters::{Filter, Forecast, Letter, LetterPackage, Selection, TaskRefusal};
use protocol::Platform;
use protocol::keys::Topic;
use protocol::ledger::{DeadReason, LedgerEvent};

use super::desk::reason_summary;
use super::world::*;

// proves S1 Pitfall E; T-C4: what cannot be read is a dead letter at once, and its neighbours pass.
#[tokio::test(start_paused = true)]
async fn unusable_records_become_dead_letters_and_block_nobody() {
    let mut world = World::new().await;
    world.bounds.record_bytes = 4096;
    world
        .sign_in(BOB, Platform::Web, 20, Manner::Acknowledges)
        .await;
    let key = protocol::keys::record_key(between(ALICE, BOB));
    world
        .publish_raw(
            Topic::Message,
            &key,
            Bytes::from_static(b"\xff\xffnot a task"),
        )
        .await;
    world.publish_raw(Topic::Message, &key, Bytes::new()).await;
    let mut large = task(world.message(ALICE, BOB));
    large.message.content.data = vec![0; 5000].into();
    world.accept(large).await;
    let misplaced_task = protocol::record::Task::new(
        protocol::record::Work::Message(task(world.message(ALICE, BOB))),
        world.now(),
    );
    let home = protocol::keys::partition_of(&key, 3);
    let wrong = backend::queue::Partition {
        topic: Topic::Message,
        number: (home + 1) % 3,
    };
    world.publish_at(wrong, &key, misplaced_task.encode()).await;
    let id = world.send(ALICE, BOB).await;
    world.wait_until_committed().await;

    assert_eq!(world.boat.pushed_to(20), [id.get()]);
    let stats = world.dead_letters().stats().await.expect("readable");
    let counts: Vec<(DeadReason, u64)> = stats
        .reasons
        .iter()
        .map(|summary| (summary.reason, summary.summary.letters))
        .collect();
    let expected = [
        (DeadReason::Undecodable, 2),
        (DeadReason::TooLarge, 1),
        (DeadReason::Misplaced, 1),
    ];
    assert_eq!(counts, expected);
    for record in world.records(Topic::Dead).await {
        let letter = api::dead_letter::DeadLetter::from_headers(&record.headers);
        assert_eq!(letter.expect("readable").origin.topic, Topic::Message);
    }
}

// proves S1-29, S1-30 in part; S1 Pitfall H: what reaches the letters by failing is a mailbox that refuses.
#[tokio::test(start_paused = true)]
async fn a_failing_message_becomes_a_letter_that_is_redriven_once() {
    let world = World::new().await;
    world.register_device(BOB, Platform::Web).await;
    world.faults.begin(ROUTES, Fault::Conflict);
    let id = world.send(ALICE, BOB).await;
    world
        .wait_until("a letter", async || {
            !world.records(Topic::Dead).await.is_empty()
        })
        .await;
    world.faults.end(ROUTES);

    let desk = world.dead_letters();
    let page = desk
        .list(&Filter::default(), None, 10)
        .await
        .expect("readable");
    let [letter] = &page.letters[..] else {
        panic!("{page:?}");
    };
    assert_eq!(letter.reason, DeadReason::MaxRetries);
    assert_eq!((letter.message, letter.retry_count), (Some(id), 6));
    assert_eq!(letter.targets, ["2/web"]);
    let view = desk
        .show(&letter.id, true)
        .await
        .expect("readable")
        .expect("there");
    assert!(view.body.expect("asked for").contains("number 1"));
    assert!(
        desk.show("message-0-99", true)
            .await
            .expect("readable")
            .is_none()
    );
    let json = serde_json::to_string(letter).expect("serialisable");
    assert!(json.contains("\"reason\":\"max_retries\""), "{json}");
    let parsed_letter: Letter = serde_json::from_str(&json).expect("back");
    assert_eq!(parsed_letter, *letter);

    let all = Selection::Filter {
        filter: Filter::default(),
        limit: 10,
    };
    let plan = desk.plan(&all).await.expect("readable");
    let [share] = &plan.forecasts[..] else {
        panic!("{plan:?}");
    };
    assert_eq!(share.forecast, Forecast::Store);
    assert_eq!(
        (plan.letters, &share.sample[..]),
        (1, &[letter.id.clone()][..])
    );
    assert_eq!(
        world.waiting(BOB, Platform::Web).await,
        0,
        "a plan does nothing"
    );
    let redrives = world.redrive(&all).await.expect("redriven");
    assert_eq!(
        (redrives.len(), redrives[0].outcome),
        (1, TaskOutcome::ToRetry)
    );
    world.wait_until_committed().await;
    assert_eq!(world.waiting(BOB, Platform::Web).await, 1);

    let ids = Selection::ids(vec![letter.id.clone(), "message-9-9".to_owned()]);
    let second_redrive = world.redrive(&ids).await.expect("readable");
    let outcomes: Vec<TaskOutcome> = second_redrive
        .iter()
        .map(|redrive| redrive.outcome)
        .collect();
    assert_eq!(outcomes, [TaskOutcome::Before, TaskOutcome::NoSuchLetter]);
    let events = world.events(id).await;
    assert!(events.iter().any(|(target, event)| {
        target.is_some() && matches!(event, LedgerEvent::Redriven { letter: l } if *l == letter.id)
    }));
    let stats = desk.stats().await.expect("readable");
    assert_eq!(reason_summary(&stats, DeadReason::MaxRetries).redriven, 1);
    let open = Filter {
        redriven: Some(false),
        ..Filter::default()
    };
    assert_eq!(
        desk.list(&open, None, 10).await.expect("readable").letters,
        []
    );
}

#[tokio::test(start_paused = true)]
async fn a_letter_without_a_place_gets_one_when_it_is_redriven() {
    let world = World::new().await;
    world
        .sign_in(BOB, Platform::Web, 20, Manner::Acknowledges)
        .await;
    let rejected_message = world.message(ALICE, BOB);
    world
        .faults
        .begin(ROWS.about(rejected_message.id.get()), Fault::Conflict);
    world.accept(task(rejected_message.clone())).await;
    let other = world.send(ALICE, BOB).await;
    world.wait_until_committed().await;
    world.faults.end(ROWS.about(rejected_message.id.get()));
    let all = Selection::Filter {
        filter: Filter::default(),
        limit: 10,
    };
    let outcomes = world.redrive(&all).await.expect("redriven");
    assert_eq!(outcomes[0].outcome, TaskOutcome::ToMessage);
    world.wait_until_committed().await;
    let ids: Vec<_> = world
        .conversation(BOB, ALICE)
        .await
        .into_iter()
        .map(|(_, id)| id)
        .collect();
    assert_eq!(ids, [other, rejected_message.id]);
    assert_eq!(
        world.boat.pushed_to(20),
        [other.get(), rejected_message.id.get()]
    );
}

// T-C5: nothing is dropped, and the others pass.
#[tokio::test(start_paused = true)]
async fn an_unwritable_dead_topic_holds_one_offset_only() {
    let world = World::new().await;
    world
        .sign_in(BOB, Platform::Web, 20, Manner::Acknowledges)
        .await;
    let is_dead_letter = |record: &NewRecord| record.partition.topic == Topic::Dead;
    let faults = &world.faults;
    faults.refuse_records(move |record| is_dead_letter(record).then_some(Kind::Unavailable));
    let key = protocol::keys::record_key(between(ALICE, BOB));
    world
        .publish_raw(Topic::Message, &key, Bytes::from_static(b"\xff"))
        .await;
    let mut sent_ids = Vec::new();
    for _ in 0..5 {
        sent_ids.push(world.send(ALICE, BOB).await.get());
    }
    tokio::time::sleep(Duration::from_secs(30)).await;
    assert_eq!(world.boat.pushed_to(20), sent_ids);
    assert_eq!(world.uncommitted().await, 6, "no commit passes the record");
    faults.accept_records();
    world.wait_until_committed().await;
    assert_eq!(world.records(Topic::Dead).await.len(), 1);
}

#[tokio::test(start_paused = true)]
async fn letters_are_listed_page_by_page() {
    let world = World::new().await;
    let key = protocol::keys::record_key(between(ALICE, BOB));
    for number in 0..7u8 {
        world
            .publish_raw(Topic::Message, &key, Bytes::from(vec![0xff, number]))
            .await;
    }
    world.wait_until_committed().await;
    let desk = world.dead_letters();
    let (mut cursor, mut sizes, mut ids) = (None, Vec::new(), Vec::new());
    loop {
        let page = desk
            .list(&Filter::default(), cursor, 3)
            .await
            .expect("readable");
        sizes.push(page.letters.len());
        ids.extend(page.letters.into_iter().map(|letter| letter.id));
        match page.next {
            Some(next) => cursor = Some(next),
            None => break,
        }
    }
    assert_eq!(sizes, [3, 3, 1]);
    ids.sort();
    ids.dedup();
    assert_eq!(ids.len(), 7);
}

/// A log that has forgotten its letters takes them back, each once, and no others.
#[tokio::test(start_paused = true)]
async fn exported_letters_are_imported_once_into_their_own_cluster() {
    const CLUSTER: u64 = 7;
    let world = World::new().await;
    let key = protocol::keys::record_key(between(ALICE, BOB));
    for number in 0..3u8 {
        let garbage = Bytes::from(vec![0xff, number]);
        world.publish_raw(Topic::Message, &key, garbage).await;
    }
    world.wait_until_committed().await;
    let filter = Filter::default();
    let full = world.dead_letters();
    let package = full.pack("ann", CLUSTER, &filter, None, "").await;
    let package = package.expect("packed");
    assert_eq!((package.letters.len(), package.next), (3, None));

    let empty = World::new().await;
    let desk = empty.dead_letters();
    let unpack =
        |letters: Vec<LetterPackage>, cluster| desk.unpack("ann", cluster, letters, "a test");
    for (cluster, wrong) in [
        (8, package.letters[0].clone()),
        (
            CLUSTER,
            LetterPackage {
                id: "message-9-9".to_owned(),
                ..package.letters[0].clone()
            },
        ),
        (
            CLUSTER,
            LetterPackage {
                value: String::new(),
                ..package.letters[0].clone()
            },
        ),
    ] {
        let refusal = unpack(vec![wrong], cluster).await;
        assert!(
            matches!(refusal, Err(TaskRefusal::Refusal(_))),
            "{refusal:?}"
        );
    }
    let report = unpack(package.letters.clone(), CLUSTER)
        .await
        .expect("taken");
    assert_eq!((report.imported.len(), report.present.len()), (3, 0));
    let second_report = unpack(package.letters.clone(), CLUSTER)
        .await
        .expect("known");
    assert_eq!(
        (second_report.imported.len(), second_report.present.len()),
        (0, 3)
    );
    let export = desk.pack("ann", CLUSTER, &filter, None, "").await;
    assert_eq!(export.expect("packed").letters, package.letters);
}
