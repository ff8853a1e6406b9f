//! Stores that answer each call in time, but take longer for a whole poll than a member of the
//! group may be silent: the carrier stays in the group, and does nothing twice.

use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use backend::embedded::Table;
use backend::hook::{Calls, Fault, Hook, Hooked, Op};
use backend::mailbox::ServerId;
use protocol::change::{ChangeKind, ChangeOf, ListArrangement};
use protocol::frame::HistoryRange;
use protocol::group::{GroupCommand, GroupInfo, Member, Role};
use protocol::history::Version;
use protocol::keys::{self, Topic};
use protocol::ledger::LedgerEvent;
use protocol::message::Content;
use protocol::message_row::Owner;
use protocol::{ConversationId, GroupId, MessageId, Options, Platform, Recipient, Seq, Timestamp};

use super::damage::{damage, row_key};
use super::groups::{CLOSED, create};
use super::kickouts::kickout;
use super::retrying::web_retry;
use super::world::*;
use crate::Config;

/// Records of one poll, all of which the stores are asked about.
const RECORDS: usize = 512;
const CAROL: i64 = 3;
/// Far below the 60 s after which the log gives partitions to others.
const MEMBERSHIP_LIMIT: Duration = Duration::from_secs(20);

fn group(number: usize) -> GroupId {
    GroupId::new(1000 + number as i64).expect("positive")
}

impl World {
    async fn send_command(&self, number: usize, command: GroupCommand) {
        let change = Some((None, ChangeKind::GroupCommand(command)));
        let mut message = self.for_group(ALICE, change);
        message.to = Recipient::Group(group(number));
        self.accept_from_sender(message).await;
    }

    fn since(&self, start: Timestamp) -> Duration {
        self.now().since(start)
    }
}

#[tokio::test(start_paused = true)]
async fn slow_timelines_of_512_groups_cost_no_membership() {
    let mut world = World::without_carrier(Config::default()).await;
    for number in 0..RECORDS {
        world.send_command(number, create([BOB])).await;
    }
    world.carrier = Some(world.start().await);
    world.wait_until_committed().await;
    world.stop().await;
    for number in 0..RECORDS {
        let mut message = world.for_group(ALICE, None);
        message.to = Recipient::Group(group(number));
        world.accept_from_sender(message).await;
    }
    world
        .faults
        .begin(TIMELINE, Fault::Delay(Duration::from_millis(150)));
    let start = world.now();
    world.carrier = Some(world.start().await);
    world.wait_until_committed().await;
    assert!(
        world.since(start) < MEMBERSHIP_LIMIT,
        "{:?}",
        world.since(start)
    );
    // 64 at once, and the others as long as 200 ms have not passed.
    assert_eq!(world.faults.items("timeline", "push"), 2 * 64);
}

/// More groups than are pushed at once: each write waits for the fill tokens and for the timelines, 200 ms each.
#[tokio::test(start_paused = true)]
async fn hanging_caches_cost_a_write_of_100_groups_under_a_second() {
    const GROUPS_OF_BOB: usize = 100;
    let mut world = World::without_carrier(Config::default()).await;
    (world.sign_in(BOB, Platform::Web, 20, Manner::Acknowledges)).await;
    for number in 0..GROUPS_OF_BOB {
        world.send_command(number, create([BOB])).await;
    }
    world.carrier = Some(world.start().await);
    world.wait_until_committed().await;
    world.stop().await;
    let push_count = world.boat.pushed_to(20).len();
    for number in 0..GROUPS_OF_BOB {
        let mut message = world.for_group(ALICE, None);
        message.to = Recipient::Group(group(number));
        world.accept_from_sender(message).await;
    }
    for cache in [TIMELINE, CACHE.named("find")] {
        world.faults.begin(cache, Fault::Hang);
    }
    let start = world.now();
    world.carrier = Some(world.start().await);
    world.wait_until_committed().await;
    let took = world.since(start);
    assert_eq!(world.boat.pushed_to(20).len(), push_count + GROUPS_OF_BOB);
    let writes = world.faults.calls("messages", "save") as u32;
    assert!(
        took < Duration::from_secs(1) * writes,
        "{took:?} for {writes} writes"
    );
}

#[tokio::test(start_paused = true)]
async fn recalls_in_512_groups_are_deleted_together() {
    let mut world = World::without_carrier(Config::default()).await;
    for number in 0..RECORDS {
        world.send_command(number, create([BOB])).await;
    }
    let mut subjects = Vec::new();
    for number in 0..RECORDS {
        let mut message = world.for_group(ALICE, None);
        message.to = Recipient::Group(group(number));
        subjects.push(world.accept_from_sender(message).await);
    }
    world.carrier = Some(world.start().await);
    world.wait_until_committed().await;
    world.stop().await;
    for (number, subject) in subjects.into_iter().enumerate() {
        let recall = Some((Some(subject), ChangeKind::Recall));
        let mut message = world.for_group(ALICE, recall);
        message.to = Recipient::Group(group(number));
        world.accept_from_sender(message).await;
    }
    let deletes = Calls::to("messages").named("delete");
    world
        .faults
        .begin(deletes, Fault::Delay(Duration::from_millis(150)));
    let start = world.now();
    world.carrier = Some(world.start().await);
    world.wait_until_committed().await;
    assert!(
        world.since(start) < MEMBERSHIP_LIMIT,
        "{:?}",
        world.since(start)
    );
    assert_eq!(world.faults.items("messages", "delete"), RECORDS);
    let calls = world.faults.calls("messages", "delete");
    assert!(calls <= 8, "{calls} calls");
}

#[tokio::test(start_paused = true)]
async fn slow_commands_of_one_group_are_each_saved_once() {
    let mut world = World::without_carrier(Config::default()).await;
    world.send_command(0, create([BOB])).await;
    for number in 1..RECORDS {
        let new_member = user(10 + number as i64);
        world
            .send_command(0, GroupCommand::Add(vec![new_member]))
            .await;
    }
    world.faults.begin(
        GROUPS.named("save"),
        Fault::Delay(Duration::from_millis(250)),
    );
    world.carrier = Some(world.start().await);
    world.wait_until_committed().await;
    assert_eq!(world.faults.calls("groups", "save"), RECORDS);
}

#[tokio::test(start_paused = true)]
async fn reactions_are_judged_together() {
    let mut world = World::without_carrier(Config::default()).await;
    let mut subjects = Vec::new();
    for _ in 0..RECORDS {
        subjects.push(world.send(ALICE, BOB).await);
    }
    world.carrier = Some(world.start().await);
    world.wait_until_committed().await;
    world.stop().await;
    for subject in subjects {
        let mut message = world.message(BOB, ALICE);
        message.content = Content::text("");
        message.options = Options::NONE;
        message.content.change = Some(Box::new(ChangeOf {
            subject: Some(subject),
            kind: ChangeKind::Recall,
        }));
        world.accept_from_sender(message).await;
    }
    world.faults.begin(
        Calls::to("messages").named("rows"),
        Fault::Delay(Duration::from_millis(120)),
    );
    let start = world.now();
    world.carrier = Some(world.start().await);
    world.wait_until_committed().await;
    assert!(
        world.since(start) < MEMBERSHIP_LIMIT,
        "{:?}",
        world.since(start)
    );
}

/// Retries for as many users, all due at once, while history takes `latency` for a call and cannot
/// read one row in `damage_interval`: all others are delivered, once. Returns the time that took.
async fn retries_beside_damaged_rows(latency: Duration, damage_interval: usize) -> Duration {
    let mut world = World::without_carrier(Config::default()).await;
    let mut expected = Vec::new();
    for number in 0..RECORDS {
        let recipient = 1000 + number as i64;
        (world.sign_in(recipient, Platform::Web, recipient, Manner::Acknowledges)).await;
        let retry = web_retry(&world, recipient, Duration::from_secs(5));
        let id = retry.work.message().expect("of a message");
        match number % damage_interval {
            0 => _ = damage(&world, Table::Private, &row_key(recipient, id)),
            _ => expected.push((recipient, id.get())),
        }
        world.publish(Topic::Retry(2), &retry).await;
    }
    world
        .faults
        .begin(Calls::to("messages").named("rows"), Fault::Delay(latency));
    let start = world.now();
    world.carrier = Some(world.start().await);
    world.wait_until_committed().await;
    let took = world.since(start);
    let mut pushes = world.boat.pushes.lock().clone();
    pushes.sort_unstable();
    assert_eq!(pushes, expected, "each once");
    let dead = world.records(Topic::Dead).await.len();
    assert_eq!(dead, RECORDS - expected.len());
    took
}

#[tokio::test(start_paused = true)]
async fn a_damaged_row_costs_no_tier_its_membership() {
    let took = retries_beside_damaged_rows(Duration::from_millis(150), RECORDS).await;
    assert!(took < MEMBERSHIP_LIMIT, "{took:?}");
}

/// All calls together take longer than a member of the group may be silent.
#[tokio::test(start_paused = true)]
async fn a_tier_polls_between_what_it_reads() {
    retries_beside_damaged_rows(Duration::from_millis(4500), 32).await;
}

/// One partition waits for a row that is never written, and each try takes as long as a store may.
#[tokio::test(start_paused = true)]
async fn a_stalled_partition_leaves_half_of_the_time_to_others() {
    let world = World::new().await;
    let partition_of = |recipient| {
        let key = keys::record_key(between(ALICE, recipient));
        keys::partition_of(&key, world.backends.queue.partitions(Topic::Message))
    };
    let other = (BOB + 1..100).find(|recipient| partition_of(*recipient) != partition_of(BOB));
    let other = other.expect("several partitions");
    let stalled_message = world.message(ALICE, BOB);
    let save = ROWS.about(stalled_message.id.get());
    world.faults.begin(save, Fault::Hang);
    world.accept(task(stalled_message)).await;
    // Nobody knows yet that this partition will stall.
    tokio::time::sleep(Config::default().store_timeout + Duration::from_secs(1)).await;
    let mut timely_count = 0;
    for count in 1..=400 {
        world.send(ALICE, other).await;
        tokio::time::sleep(Duration::from_millis(100)).await;
        let row_count = world.conversation(ALICE, other).await.len();
        timely_count += usize::from(row_count == count);
    }
    assert!((180..=260).contains(&timely_count), "{timely_count} of 400");
    world.faults.end(save);
    world.wait_until_committed().await;
    assert_eq!(world.conversation(ALICE, BOB).await.len(), 1);
}

/// Clearing, arranging and hiding are three writes, each quick enough for its stamp.
#[tokio::test(start_paused = true)]
async fn operations_of_three_kinds_are_each_written_once() {
    let mut world = World::without_carrier(Config::default()).await;
    (world.sign_in(ALICE, Platform::Ios, 10, Manner::Acknowledges)).await;
    let newest = world.send(BOB, ALICE).await;
    world.carrier = Some(world.start().await);
    world.wait_until_committed().await;
    world.stop().await;
    let pin = ListArrangement {
        pinned: true,
        ..ListArrangement::default()
    };
    for kind in [
        ChangeKind::Clear,
        ChangeKind::Arrange(pin),
        ChangeKind::Hide,
    ] {
        let operation = world.about_list(ALICE, BOB, newest, kind);
        world.accept(task(operation)).await;
    }
    world.faults.writes("conversations");
    world
        .faults
        .begin(LISTS, Fault::Delay(Duration::from_secs(2)));
    let start = world.now();
    world.carrier = Some(world.start().await);
    world.wait_until_committed().await;
    assert!(
        world.since(start) < MEMBERSHIP_LIMIT,
        "{:?}",
        world.since(start)
    );
    assert_eq!(world.faults.writes("conversations"), 3);
}

/// Settings that a check would refuse: a write may take longer than a stamp is good for, and does
/// for minutes.
#[tokio::test(start_paused = true)]
async fn a_list_that_is_never_written_in_time_costs_no_membership() {
    let config = Config {
        store_timeout: Duration::from_secs(8),
        ..Config::default()
    };
    for latency in [Duration::from_millis(5100), Duration::from_secs(7)] {
        let world = World::with(config.clone()).await;
        (world.sign_in(BOB, Platform::Web, 20, Manner::Acknowledges)).await;
        for user_id in 100..120 {
            (world.sign_in(user_id, Platform::Web, user_id, Manner::Acknowledges)).await;
        }
        world.faults.begin(LISTS, Fault::Delay(latency));
        let id = world.send(ALICE, BOB).await;
        let command = create([BOB]);
        world.send_command(0, command).await;
        tokio::time::sleep(Duration::from_secs(120)).await;
        // Records that need no list, of partitions that do not wait.
        for user_id in 100..120 {
            let task = kickout(&world, vec![world.key(user_id, user_id)]);
            world.publish(Topic::Message, &task).await;
        }
        tokio::time::sleep(Duration::from_secs(120)).await;
        assert!(
            !world.boat.closed_sessions().is_empty(),
            "the log is polled"
        );
        assert_eq!(world.boat.pushed_to(20), [0i64; 0]);
        let key = [(group(0), user(BOB))];
        let members = world.backends.groups.members_of(&key).await;
        assert!(members.expect("reads")[0].is_some());
        world.faults.end(LISTS);
        world.wait_until_committed().await;
        let pushed_ids = world.boat.pushed_to(20);
        assert_eq!(
            pushed_ids.len(),
            2,
            "the message and the group, once: {pushed_ids:?}"
        );
        assert!(pushed_ids.contains(&id.get()));
    }
}

/// Nearly all have left: only the number of current members is bounded.
#[tokio::test(start_paused = true)]
async fn a_group_that_takes_longer_than_one_call_is_loaded_in_the_end() {
    let mut world = World::without_carrier(Config::default()).await;
    let member = |role, offset| Member::new(role, Seq::ZERO, Version { epoch: 0, offset });
    let alice = (user(ALICE), member(Some(Role::Owner), 0));
    let former_members = (0..30_000).map(|n| (user(100 + n), member(None, n as u64)));
    let members = former_members.chain([alice]).collect();
    let info = GroupInfo::uncounted(CLOSED, Version::default());
    let save = world.backends.groups.save(group(0), Some(info), members);
    save.await.expect("saves");
    let mut message = world.for_group(ALICE, None);
    message.to = Recipient::Group(group(0));
    world.accept_from_sender(message).await;
    world.faults.begin(
        GROUPS.named("members"),
        Fault::Delay(Duration::from_millis(900)),
    );
    world
        .faults
        .begin(GROUPS.named("members"), Fault::UnavailableEvery(7));
    world.carrier = Some(world.start().await);
    world.wait_until_committed().await;
    let range = HistoryRange::Forward { after: Seq::ZERO };
    let conversation = ConversationId::Group(group(0));
    let rows = (world.backends.messages).page(Owner::Group(group(0)), conversation, range, 9);
    assert_eq!(rows.await.expect("reads").len(), 1);
    // 31 pages, and each that was broken off once more.
    assert_eq!(world.faults.calls("groups", "members"), 36);
}

/// Users with even numbers are on a server that takes an hour for a call.
struct OddAndEven;

#[async_trait]
impl Hook for OddAndEven {
    fn server(&self, user: u64) -> Option<ServerId> {
        Some(ServerId(user % 2))
    }

    async fn before(&self, op: &Op) -> backend::Result<()> {
        if op.name == "route_or_store" && op.subjects.iter().any(|user| user % 2 == 0) {
            tokio::time::sleep(Duration::from_secs(3600)).await;
        }
        Ok(())
    }
}

/// A mailbox on two servers, of which one takes longer for a call than the carrier waits.
#[tokio::test(start_paused = true)]
async fn a_server_of_the_mailbox_that_hangs_delays_only_its_users() {
    let mut world = World::without_carrier(Config::default()).await;
    let servers: Arc<dyn Hook> = Arc::new(OddAndEven);
    world.backends.mailbox = Hooked::new(world.backends.mailbox.clone(), &servers);
    world.carrier = Some(world.start().await);
    world
        .sign_in(CAROL, Platform::Web, 30, Manner::Acknowledges)
        .await;
    assert_eq!((BOB % 2, CAROL % 2), (0, 1));
    for _ in 0..100 {
        world.send(ALICE, BOB).await;
    }
    let (start, mut expected) = (world.now(), Vec::new());
    for _ in 0..20 {
        expected.push(world.send(ALICE, CAROL).await.get());
        tokio::time::sleep(Duration::from_millis(100)).await;
        assert_eq!(world.boat.pushed_to(30), expected);
    }
    assert!(world.since(start) < Duration::from_secs(5), "no call ended");
    tokio::time::sleep(Duration::from_secs(4)).await;
    let ids = expected
        .iter()
        .map(|&id| MessageId::new(id).expect("an id"));
    for id in ids {
        let events = world.events(id).await;
        assert_eq!(
            events.last(),
            Some(&(None, LedgerEvent::Settled)),
            "{events:?}"
        );
    }
}
