use std::time::Duration;

use api::task::Value;
use backend::hook::{Calls, Fault};
use backend::queue::Record;
use operator::dead_letters::{Filter, Selection};
use protocol::group::GroupCommand;
use protocol::keys::{self, Topic};
use protocol::ledger::LedgerEvent;
use protocol::record::{RetryTask, Task, Work};
use protocol::{MessageId, Platform, Position, Seq, UserId};

use super::groups::create;
use super::world::*;
use crate::Config;

// One record for three platforms, two of which have what they are owed; what is tried again names the one that failed.
// proves S1-13, S1-23, S1-24, S1-26, S1-27, S1-28
#[tokio::test(start_paused = true)]
async fn only_the_platform_that_never_acknowledges_is_tried_again() {
    let world = World::new().await;
    world
        .sign_in(BOB, Platform::Web, 20, Manner::Acknowledges)
        .await;
    world.sign_in(BOB, Platform::Ios, 21, Manner::Silent).await;
    world.know(BOB, Platform::Desktop).await;
    let id = world.send(ALICE, BOB).await;
    world
        .until("a retry is queued", async || {
            !world.records(Topic::Retry(1)).await.is_empty()
        })
        .await;
    assert_eq!(world.records(Topic::Message).await.len(), 1);
    let [record] = &world.records(Topic::Retry(1)).await[..] else {
        panic!("one record");
    };
    let task = Task::decode(record.value.clone()).expect("a task");
    assert_eq!(task.retry_count, 1);
    let Work::Deliver(deliver) = task.work else {
        panic!("{task:?}");
    };
    assert_eq!(deliver.targets, [target(BOB, Platform::Ios)]);
    assert_eq!(deliver.placed.position.seq, Seq(1));
    // The phone comes back, and acknowledges.
    world
        .sign_in(BOB, Platform::Ios, 22, Manner::Acknowledges)
        .await;
    world.until_quiet().await;
    assert_eq!(world.boat.pushed_to(22), [id.get()]);
    assert_eq!(world.boat.pushed_to(20), [id.get()], "not again");
    assert_eq!(world.waiting(BOB, Platform::Ios).await, 0);
    let events = world.events(id).await.into_iter();
    let stored = events.filter(|(_, event)| *event == LedgerEvent::StoredOffline);
    let stored: Vec<_> = stored.filter_map(|(target, _)| target).collect();
    assert_eq!(stored, [target(BOB, Platform::Desktop)], "once");
    assert_eq!(world.records(Topic::Retry(2)).await.len(), 0);
}

// proves S1-25: whoever takes nothing three times counts as offline.
#[tokio::test(start_paused = true)]
async fn a_platform_that_never_acknowledges_ends_in_the_mailbox() {
    let world = World::new().await;
    for number in 20..24 {
        world
            .sign_in(BOB, Platform::Web, number, Manner::Silent)
            .await;
    }
    let id = world.send(ALICE, BOB).await;
    world.until_quiet().await;
    assert_eq!(world.waiting(BOB, Platform::Web).await, 1);
    assert_eq!(
        world.boat.hinted(),
        [23],
        "the newest session replaced the others"
    );
    let events = world.events(id).await;
    let attempts: Vec<u32> = events
        .iter()
        .filter_map(|(_, event)| match event {
            LedgerEvent::Retried { attempt, .. } => Some(*attempt),
            _ => None,
        })
        .collect();
    assert_eq!(attempts, [1, 2, 3], "retry_count only grows");
}

#[tokio::test(start_paused = true)]
async fn a_boat_that_says_nothing_is_tried_again() {
    let world = World::new().await;
    world.sign_in(BOB, Platform::Web, 20, Manner::Lost).await;
    let id = world.send(ALICE, BOB).await;
    world
        .until("pushed", async || !world.boat.pushed_to(20).is_empty())
        .await;
    world.boat.set(20, Manner::Acknowledges);
    world.until_quiet().await;
    assert_eq!(world.boat.pushed_to(20), [id.get(), id.get()]);
    assert_eq!(world.waiting(BOB, Platform::Web).await, 0);
}

#[tokio::test(start_paused = true)]
async fn a_mailbox_that_is_away_delays_and_does_not_count() {
    let world = World::new().await;
    world
        .sign_in(BOB, Platform::Web, 20, Manner::Acknowledges)
        .await;
    world.faults.begin(ROUTES, Fault::Unavailable);
    let id = world.send(ALICE, BOB).await;
    tokio::time::sleep(Duration::from_secs(3600)).await;
    assert_eq!(world.boat.pushed_to(20), [0i64; 0]);
    world.faults.end(ROUTES);
    world.until_quiet().await;
    assert_eq!(world.boat.pushed_to(20), [id.get()]);
    assert_eq!(world.records(Topic::Dead).await.len(), 0);
    let events = world.events(id).await;
    let counted =
        |event: &LedgerEvent| matches!(event, LedgerEvent::Retried { attempt, .. } if *attempt > 0);
    assert!(
        !events.iter().any(|(_, event)| counted(event)),
        "{events:?}"
    );
}

// Nobody knows whether the retry is queued: it is queued again, and has no further effect.
#[tokio::test(start_paused = true)]
async fn a_log_that_says_nothing_is_asked_again() {
    let world = World::new().await;
    world.sign_in(BOB, Platform::Web, 20, Manner::Silent).await;
    let id = world.send(ALICE, BOB).await;
    world
        .until("pushed", async || !world.boat.pushed_to(20).is_empty())
        .await;
    world
        .sign_in(BOB, Platform::Web, 21, Manner::Acknowledges)
        .await;
    world.faults.begin(PUBLISHES, Fault::NoAnswer);
    tokio::time::sleep(Duration::from_secs(8)).await;
    // The retry itself needs nothing of its topic any more.
    assert_eq!(
        world.uncommitted().await,
        1,
        "the message waits for its retry"
    );
    world.faults.end(PUBLISHES);
    world.until_quiet().await;
    let retries = world.records(Topic::Retry(1)).await.len();
    assert!(retries >= 2, "once more than needed");
    assert_eq!(world.boat.pushed_to(21), vec![id.get(); retries]);
    assert_eq!(world.waiting(BOB, Platform::Web).await, 0);
    assert_eq!(world.records(Topic::Dead).await.len(), 0);
}

// proves S1 Pitfall F: what waits long in its tier holds neither the other tiers nor new messages.
#[tokio::test(start_paused = true)]
async fn a_long_wait_in_one_tier_holds_nobody_else() {
    let world = World::new().await;
    world
        .sign_in(BOB, Platform::Web, 20, Manner::Acknowledges)
        .await;
    let deliver = |message: protocol::Message, after: u64| {
        let deliver = RetryTask {
            rev: 0,
            placed: protocol::Placed {
                conversation: between(ALICE, BOB),
                position: Position {
                    seq: Seq(1),
                    prev: None,
                },
                message,
            },
            targets: vec![target(BOB, Platform::Web)],
            live_users: Vec::new(),
            due_at: world.now() + Duration::from_secs(after),
            cause: "a test".to_owned(),
            letter: None,
        };
        Task {
            retry_count: 1,
            ..Task::new(Work::Deliver(deliver), world.now())
        }
    };
    for _ in 0..50 {
        let slow = deliver(world.message(ALICE, BOB), 600);
        world.publish(Topic::Retry(5), &slow).await;
    }
    let quick = world.message(ALICE, BOB);
    world
        .publish(Topic::Retry(1), &deliver(quick.clone(), 1))
        .await;
    let fresh = world.send(ALICE, BOB).await;
    tokio::time::sleep(Duration::from_millis(500)).await;
    assert_eq!(world.boat.pushed_to(20), [fresh.get()]);
    tokio::time::sleep(Duration::from_secs(1)).await;
    assert_eq!(world.boat.pushed_to(20), [fresh.get(), quick.id.get()]);
    tokio::time::sleep(Duration::from_secs(600)).await;
    assert_eq!(world.boat.pushed_to(20).len(), 52);
}

/// Members of a group whose deliveries all fail at once.
const MANY: i64 = 2000;

/// Bytes of a retry in these tests.
const BYTES_MAX: usize = 4096;

/// A group of `MANY` members.
async fn many() -> World {
    let world = World::with(Config {
        retry_bytes_max: BYTES_MAX,
        ..Config::default()
    })
    .await;
    for members in 0..MANY / 100 {
        let members = 1000 + 100 * members;
        let command = match members {
            1000 => create(members..members + 100),
            _ => GroupCommand::Add((members..members + 100).map(user).collect()),
        };
        world.command(ALICE, command).await;
    }
    world.until_quiet().await;
    world
}

/// Users in the records of a message, sorted. Checks that there are several records, none too
/// large, and that no user is in two.
fn users_of(id: MessageId, records: Vec<Record>) -> Vec<UserId> {
    let (mut sizes, mut users) = (Vec::new(), Vec::new());
    for record in records {
        let task = Task::decode(record.value.clone()).expect("a task");
        let Work::Deliver(deliver) = task.work else {
            panic!("{task:?}");
        };
        if deliver.placed.message.id == id {
            sizes.push(record.value.len());
            let targets = deliver.targets.iter().map(|target| target.user);
            users.extend(deliver.live_users.iter().copied().chain(targets));
        }
    }
    assert!(sizes.len() > 1, "{sizes:?}");
    assert!(sizes.iter().all(|size| *size <= BYTES_MAX), "{sizes:?}");
    let count = users.len();
    users.sort_unstable();
    users.dedup();
    assert_eq!(users.len(), count, "nobody twice");
    users
}

// holes 11: letters of many members, and their redriven records, are split as their retries were.
#[tokio::test(start_paused = true)]
async fn letters_of_many_members_are_redriven_no_larger_than_a_retry_may_be() {
    let world = many().await;
    world.faults.begin(ROUTES, Fault::Conflict);
    let id = world.say(ALICE).await;
    (world.until("letters", async || {
        !world.records(Topic::Dead).await.is_empty()
    }))
    .await;
    world.until_quiet().await;
    let dead = users_of(id, world.records(Topic::Dead).await);
    assert!(dead.len() as i64 >= MANY, "{}", dead.len());
    world.faults.end(ROUTES);
    let before = world.records(Topic::Retry(1)).await.len();
    let everything = Selection::Filter {
        filter: Filter::default(),
        limit: 1000,
    };
    world.redrive(&everything).await.expect("redriven");
    let again = world.records(Topic::Retry(1)).await.split_off(before);
    assert_eq!(users_of(id, again), dead);
}

#[tokio::test(start_paused = true)]
async fn a_retry_for_many_members_is_no_larger_than_a_record_may_be() {
    let world = many().await;
    world.faults.begin(ROUTES, Fault::Unavailable);
    let id = world.say(ALICE).await;
    let retries = async || world.records(Topic::Retry(1)).await;
    (world.until("retries are queued", async || !retries().await.is_empty())).await;
    let users = users_of(id, retries().await);
    assert!(users.len() as i64 >= MANY, "{}", users.len());
    // The last member of them comes online once the mailbox is back.
    let (last, session) = (1000 + MANY - 1, 77);
    world.faults.end(ROUTES);
    world
        .sign_in(last, Platform::Web, session, Manner::Acknowledges)
        .await;
    world.until_quiet().await;
    assert_eq!(world.boat.pushed_to(session), [id.get()]);
    assert!(world.records(Topic::Dead).await.is_empty());
}

/// A retry for a user's web platform, due after this time.
pub(super) fn retry_of(world: &World, whom: i64, after: Duration) -> Task {
    let deliver = RetryTask {
        rev: 0,
        placed: protocol::Placed {
            conversation: between(ALICE, whom),
            position: Position {
                seq: Seq(1),
                prev: None,
            },
            message: world.message(ALICE, whom),
        },
        targets: vec![target(whom, Platform::Web)],
        live_users: Vec::new(),
        due_at: world.now() + after,
        cause: "a test".to_owned(),
        letter: None,
    };
    Task {
        retry_count: 1,
        ..Task::new(Work::Deliver(deliver), world.now())
    }
}

/// After a restart one partition has a backlog that is due in ten minutes, and another has records
/// due now. Returns how many of the latter are pushed within ten seconds.
async fn due_now_beside_a_backlog(config: Config) -> usize {
    let mut world = World::without_carrier(config).await;
    let partition_of = |whom| {
        let key = keys::record_key(between(ALICE, whom));
        keys::partition_of(&key, world.backends.queue.partitions(Topic::Retry(5)))
    };
    let other = (BOB + 1..100).find(|whom| partition_of(*whom) != partition_of(BOB));
    let other = other.expect("several partitions");
    world
        .sign_in(other, Platform::Web, 20, Manner::Acknowledges)
        .await;
    for _ in 0..100 {
        let later = retry_of(&world, BOB, Duration::from_secs(600));
        world.publish(Topic::Retry(5), &later).await;
        let now = retry_of(&world, other, Duration::ZERO);
        world.publish(Topic::Retry(5), &now).await;
    }
    world.carrier = Some(world.start().await);
    tokio::time::sleep(Duration::from_secs(10)).await;
    world.boat.pushed_to(20).len()
}

#[tokio::test(start_paused = true)]
async fn what_is_due_later_leaves_room_for_what_is_due_now() {
    let few_records = Config {
        poll_max: 8,
        retry_held_max: 30,
        ..Config::default()
    };
    assert_eq!(due_now_beside_a_backlog(few_records).await, 100);
    let few_bytes = Config {
        poll_max: 8,
        retry_held_bytes_max: 3000,
        ..Config::default()
    };
    assert_eq!(due_now_beside_a_backlog(few_bytes).await, 100);
}

/// Retries of the first tier that become due one after the other go out in few batches: the first
/// is not put off, and those behind it wait for each other, no longer than a quarter of the delay.
#[tokio::test(start_paused = true)]
async fn retries_of_one_tier_are_tried_in_batches() {
    let world = World::new().await;
    world
        .sign_in(BOB, Platform::Web, 20, Manner::Acknowledges)
        .await;
    let began = tokio::time::Instant::now();
    for count in 1..=25 {
        let retry = retry_of(&world, BOB, Duration::from_secs(1));
        world.publish(Topic::Retry(1), &retry).await;
        tokio::time::sleep_until(began + Duration::from_millis(40) * count).await;
    }
    let pushed = || world.boat.pushed_to(20).len();
    tokio::time::sleep_until(began + Duration::from_millis(1100)).await;
    assert_eq!(pushed(), 1, "the first is not put off");
    tokio::time::sleep_until(began + Duration::from_millis(2250)).await;
    assert_eq!(pushed(), 25);
    let batches = world.faults.calls("messages", "rows");
    assert!((4..=6).contains(&batches), "{batches} batches in a second");
}

/// The machine's clock is set back by an hour while retries wait: in memory, and in the log.
#[tokio::test(start_paused = true)]
async fn a_step_of_the_clock_delays_no_retry() {
    for is_read_after in [false, true] {
        let mut world = World::new().await;
        world.know(BOB, Platform::Ios).await;
        world.faults.begin(ROUTES, Fault::Unavailable);
        world.send(ALICE, BOB).await;
        world
            .until("a retry is queued", async || {
                !world.records(Topic::Retry(1)).await.is_empty()
            })
            .await;
        if is_read_after {
            world.stop().await;
        } else {
            tokio::time::sleep(Duration::from_millis(200)).await;
        }
        world.clock.step_back(Duration::from_secs(3600));
        world.faults.end(ROUTES);
        let began = tokio::time::Instant::now();
        if is_read_after {
            world.carrier = Some(world.start().await);
        }
        world
            .until("it is stored", async || {
                world.waiting(BOB, Platform::Ios).await == 1
            })
            .await;
        let took = began.elapsed();
        assert!(took < Duration::from_secs(10), "{is_read_after}: {took:?}");
    }
}

/// Retries for twenty users are due at once, and history has this fault for the first of them.
/// Returns the time until all others have theirs.
async fn retries_beside_a_failing_row(fault: Fault) -> Duration {
    const FIRST: i64 = 1000;
    const LATE: i64 = 2000;
    let mut world = World::without_carrier(Config::default()).await;
    let mut ids = Vec::new();
    for whom in (FIRST..FIRST + 20).chain([LATE]) {
        (world.sign_in(whom, Platform::Web, whom, Manner::Acknowledges)).await;
    }
    for whom in FIRST..FIRST + 20 {
        let retry = retry_of(&world, whom, Duration::ZERO);
        ids.push(retry.work.message().expect("of a message").get());
        world.publish(Topic::Retry(1), &retry).await;
    }
    let row = Calls::to("messages").named("rows").about(ids[0]);
    world.faults.begin(row, fault);
    let began = tokio::time::Instant::now();
    world.carrier = Some(world.start().await);
    (world.until("all others are pushed", async || {
        world.boat.pushed.lock().len() == 19
    }))
    .await;
    let took = began.elapsed();
    // The pause of the failing one is at its longest, and is its own.
    tokio::time::sleep(Duration::from_secs(60)).await;
    for count in 1..=20 {
        let retry = retry_of(&world, LATE, Duration::ZERO);
        let published = tokio::time::Instant::now();
        world.publish(Topic::Retry(1), &retry).await;
        (world.until("it is pushed", async || {
            world.boat.pushed_to(LATE).len() == count
        }))
        .await;
        let waited = published.elapsed();
        assert!(waited < took + Duration::from_secs(1), "{waited:?}");
    }
    assert_eq!(world.boat.pushed_to(FIRST), [0i64; 0]);
    world.faults.end(row);
    world.until_quiet().await;
    assert_eq!(world.boat.pushed_to(FIRST), [ids[0]]);
    assert_eq!(world.boat.pushed.lock().len(), 40, "each once");
    assert!(world.records(Topic::Dead).await.is_empty());
    took
}

#[tokio::test(start_paused = true)]
async fn a_row_that_fails_holds_up_no_other_retry() {
    let took = retries_beside_a_failing_row(Fault::Unavailable).await;
    assert!(took < Duration::from_secs(2), "{took:?}");
}

/// The question about all rows, then those about each, take as long as a store may.
#[tokio::test(start_paused = true)]
async fn a_row_that_is_never_answered_for_holds_up_others_for_two_calls_at_most() {
    let took = retries_beside_a_failing_row(Fault::Hang).await;
    assert!(took < Duration::from_secs(12), "{took:?}");
}
