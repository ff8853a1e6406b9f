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
    world.register_device(BOB, Platform::Desktop).await;
    let id = world.send(ALICE, BOB).await;
    world
        .wait_until("a retry is queued", async || {
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
    world.wait_until_committed().await;
    assert_eq!(world.boat.pushed_to(22), [id.get()]);
    assert_eq!(world.boat.pushed_to(20), [id.get()], "not again");
    assert_eq!(world.waiting(BOB, Platform::Ios).await, 0);
    let events = world.events(id).await.into_iter();
    let stored_targets = events.filter(|(_, event)| *event == LedgerEvent::StoredOffline);
    let stored_targets: Vec<_> = stored_targets.filter_map(|(target, _)| target).collect();
    assert_eq!(stored_targets, [target(BOB, Platform::Desktop)], "once");
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
    world.wait_until_committed().await;
    assert_eq!(world.waiting(BOB, Platform::Web).await, 1);
    assert_eq!(
        world.boat.hinted_sessions(),
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
        .wait_until("pushed", async || !world.boat.pushed_to(20).is_empty())
        .await;
    world.boat.set(20, Manner::Acknowledges);
    world.wait_until_committed().await;
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
    world.wait_until_committed().await;
    assert_eq!(world.boat.pushed_to(20), [id.get()]);
    assert_eq!(world.records(Topic::Dead).await.len(), 0);
    let events = world.events(id).await;
    let is_counted =
        |event: &LedgerEvent| matches!(event, LedgerEvent::Retried { attempt, .. } if *attempt > 0);
    assert!(
        !events.iter().any(|(_, event)| is_counted(event)),
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
        .wait_until("pushed", async || !world.boat.pushed_to(20).is_empty())
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
    world.wait_until_committed().await;
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
    let deliver = |message: protocol::Message, delay_secs: u64| {
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
            due_at: world.now() + Duration::from_secs(delay_secs),
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
const GROUP_SIZE: i64 = 2000;

/// Bytes of a retry in these tests.
const RETRY_BYTES_MAX: usize = 4096;

/// A group of `GROUP_SIZE` members.
async fn large_group_world() -> World {
    let world = World::with(Config {
        retry_bytes_max: RETRY_BYTES_MAX,
        ..Config::default()
    })
    .await;
    for members in 0..GROUP_SIZE / 100 {
        let members = 1000 + 100 * members;
        let command = match members {
            1000 => create(members..members + 100),
            _ => GroupCommand::Add((members..members + 100).map(user).collect()),
        };
        world.command(ALICE, command).await;
    }
    world.wait_until_committed().await;
    world
}

/// Users in the records of a message, sorted. Checks that there are several records, none too
/// large, and that no user is in two.
fn message_users(id: MessageId, records: Vec<Record>) -> Vec<UserId> {
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
    assert!(
        sizes.iter().all(|size| *size <= RETRY_BYTES_MAX),
        "{sizes:?}"
    );
    let count = users.len();
    users.sort_unstable();
    users.dedup();
    assert_eq!(users.len(), count, "nobody twice");
    users
}

// holes 11: letters of many members, and their redriven records, are split as their retries were.
#[tokio::test(start_paused = true)]
async fn redriven_letters_of_a_large_group_respect_the_retry_size() {
    let world = large_group_world().await;
    world.faults.begin(ROUTES, Fault::Conflict);
    let id = world.say(ALICE).await;
    (world.wait_until("letters", async || {
        !world.records(Topic::Dead).await.is_empty()
    }))
    .await;
    world.wait_until_committed().await;
    let dead = message_users(id, world.records(Topic::Dead).await);
    assert!(dead.len() as i64 >= GROUP_SIZE, "{}", dead.len());
    world.faults.end(ROUTES);
    let old_count = world.records(Topic::Retry(1)).await.len();
    let selection = Selection::Filter {
        filter: Filter::default(),
        limit: 1000,
    };
    world.redrive(&selection).await.expect("redriven");
    let redriven_records = world.records(Topic::Retry(1)).await.split_off(old_count);
    assert_eq!(message_users(id, redriven_records), dead);
}

#[tokio::test(start_paused = true)]
async fn a_retry_for_many_members_is_no_larger_than_a_record_may_be() {
    let world = large_group_world().await;
    world.faults.begin(ROUTES, Fault::Unavailable);
    let id = world.say(ALICE).await;
    let retries = async || world.records(Topic::Retry(1)).await;
    (world.wait_until("retries are queued", async || !retries().await.is_empty())).await;
    let users = message_users(id, retries().await);
    assert!(users.len() as i64 >= GROUP_SIZE, "{}", users.len());
    // The last member of them comes online once the mailbox is back.
    let (last, session) = (1000 + GROUP_SIZE - 1, 77);
    world.faults.end(ROUTES);
    world
        .sign_in(last, Platform::Web, session, Manner::Acknowledges)
        .await;
    world.wait_until_committed().await;
    assert_eq!(world.boat.pushed_to(session), [id.get()]);
    assert!(world.records(Topic::Dead).await.is_empty());
}

/// A retry for a user's web platform, due after this time.
pub(super) fn web_retry(world: &World, recipient: i64, delay: Duration) -> Task {
    let deliver = RetryTask {
        rev: 0,
        placed: protocol::Placed {
            conversation: between(ALICE, recipient),
            position: Position {
                seq: Seq(1),
                prev: None,
            },
            message: world.message(ALICE, recipient),
        },
        targets: vec![target(recipient, Platform::Web)],
        live_users: Vec::new(),
        due_at: world.now() + delay,
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
    let partition_of = |recipient| {
        let key = keys::record_key(between(ALICE, recipient));
        keys::partition_of(&key, world.backends.queue.partitions(Topic::Retry(5)))
    };
    let other = (BOB + 1..100).find(|recipient| partition_of(*recipient) != partition_of(BOB));
    let other = other.expect("several partitions");
    world
        .sign_in(other, Platform::Web, 20, Manner::Acknowledges)
        .await;
    for _ in 0..100 {
        let later_retry = web_retry(&world, BOB, Duration::from_secs(600));
        world.publish(Topic::Retry(5), &later_retry).await;
        let due_retry = web_retry(&world, other, Duration::ZERO);
        world.publish(Topic::Retry(5), &due_retry).await;
    }
    world.carrier = Some(world.start().await);
    tokio::time::sleep(Duration::from_secs(10)).await;
    world.boat.pushed_to(20).len()
}

#[tokio::test(start_paused = true)]
async fn retries_due_later_leave_room_for_those_due_now() {
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
    let start = tokio::time::Instant::now();
    for count in 1..=25 {
        let retry = web_retry(&world, BOB, Duration::from_secs(1));
        world.publish(Topic::Retry(1), &retry).await;
        tokio::time::sleep_until(start + Duration::from_millis(40) * count).await;
    }
    let push_count = || world.boat.pushed_to(20).len();
    tokio::time::sleep_until(start + Duration::from_millis(1100)).await;
    assert_eq!(push_count(), 1, "the first is not put off");
    tokio::time::sleep_until(start + Duration::from_millis(2250)).await;
    assert_eq!(push_count(), 25);
    let batches = world.faults.calls("messages", "rows");
    assert!((4..=6).contains(&batches), "{batches} batches in a second");
}

/// The machine's clock is set back by an hour while retries wait: in memory, and in the log.
#[tokio::test(start_paused = true)]
async fn a_step_of_the_clock_delays_no_retry() {
    for is_read_after in [false, true] {
        let mut world = World::new().await;
        world.register_device(BOB, Platform::Ios).await;
        world.faults.begin(ROUTES, Fault::Unavailable);
        world.send(ALICE, BOB).await;
        world
            .wait_until("a retry is queued", async || {
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
        let start = tokio::time::Instant::now();
        if is_read_after {
            world.carrier = Some(world.start().await);
        }
        world
            .wait_until("it is stored", async || {
                world.waiting(BOB, Platform::Ios).await == 1
            })
            .await;
        let took = start.elapsed();
        assert!(took < Duration::from_secs(10), "{is_read_after}: {took:?}");
    }
}

/// Retries for twenty users are due at once, and history has this fault for the first of them.
/// Returns the time until all others have theirs.
async fn retries_beside_a_failing_row(fault: Fault) -> Duration {
    const FIRST_USER: i64 = 1000;
    const LATE_USER: i64 = 2000;
    let mut world = World::without_carrier(Config::default()).await;
    let mut ids = Vec::new();
    for recipient in (FIRST_USER..FIRST_USER + 20).chain([LATE_USER]) {
        (world.sign_in(recipient, Platform::Web, recipient, Manner::Acknowledges)).await;
    }
    for recipient in FIRST_USER..FIRST_USER + 20 {
        let retry = web_retry(&world, recipient, Duration::ZERO);
        ids.push(retry.work.message().expect("of a message").get());
        world.publish(Topic::Retry(1), &retry).await;
    }
    let row = Calls::to("messages").named("rows").about(ids[0]);
    world.faults.begin(row, fault);
    let start = tokio::time::Instant::now();
    world.carrier = Some(world.start().await);
    (world.wait_until("all others are pushed", async || {
        world.boat.pushes.lock().len() == 19
    }))
    .await;
    let took = start.elapsed();
    // The pause of the failing one is at its longest, and is its own.
    tokio::time::sleep(Duration::from_secs(60)).await;
    for count in 1..=20 {
        let retry = web_retry(&world, LATE_USER, Duration::ZERO);
        let published_at = tokio::time::Instant::now();
        world.publish(Topic::Retry(1), &retry).await;
        (world.wait_until("it is pushed", async || {
            world.boat.pushed_to(LATE_USER).len() == count
        }))
        .await;
        let wait = published_at.elapsed();
        assert!(wait < took + Duration::from_secs(1), "{wait:?}");
    }
    assert_eq!(world.boat.pushed_to(FIRST_USER), [0i64; 0]);
    world.faults.end(row);
    world.wait_until_committed().await;
    assert_eq!(world.boat.pushed_to(FIRST_USER), [ids[0]]);
    assert_eq!(world.boat.pushes.lock().len(), 40, "each once");
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
async fn an_unanswered_row_delays_others_by_two_calls_at_most() {
    let took = retries_beside_a_failing_row(Fault::Hang).await;
    assert!(took < Duration::from_secs(12), "{took:?}");
}
