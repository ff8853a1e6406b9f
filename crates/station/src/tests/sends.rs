//! Accepting: the meaning of *accepted*, and failures of backends.

use std::num::NonZeroU32;
use std::sync::Arc;
use std::time::Duration;

use api::v1::station_service_client::StationServiceClient;
use async_trait::async_trait;
use backend::hook::{Calls, Fault, Hook, Op};
use backend::queue::Partition;
use parking_lot::Mutex;
use protocol::access::Role;
use protocol::bounds::Bounds;
use protocol::keys::{Topic, partition_of, record_key};
use protocol::message::Recipient;
use protocol::record::Work;
use protocol::{Code, MessageId, Platform, SendId, Seq};
use tokio::time::Instant;

use super::groups::{CLOSED, to_group};
use super::world::*;
use crate::accept::breaker::{ACK_TIMEOUT, PROBE_INTERVAL};
use crate::{Config, start};

// proves S3-11, S3-12, S0-32: accepted means that the log has it, under an id of the server's.
#[tokio::test(start_paused = true)]
async fn an_accepted_message_is_in_the_log_once_in_its_partition() {
    let world = world().await;
    let id = world.submit_one(item(1, send(2, 1, "hello"))).await;
    let id = id.expect("accepted");
    assert_eq!(id.timestamp(), BEGIN);
    let log = world.log().await;
    assert_eq!(log.len(), 1);
    let key = record_key(between(1, 2));
    assert_eq!(log[0].key, &key[..]);
    assert_eq!(log[0].partition.number, partition_of(&key, 16));
    let tasks = world.tasks().await;
    let Work::Message(task) = &tasks[0] else {
        panic!("not a message: {tasks:?}");
    };
    assert_eq!(task.message.id, id);
    assert_eq!(task.message.from, user(1));
    assert_eq!(task.message.to, Recipient::User(user(2)));
    assert_eq!(task.message.accepted_at, BEGIN);
    assert_eq!(task.message.device, device("phone"));
    assert_eq!(message_text(&task.message), "hello");
    let origin = task.origin.as_ref().expect("an origin");
    assert_eq!((origin.session, &origin.life), (session(1), &world.life));
    assert!(!task.maybe_repeat && !task.unsure);
}

/// Names of all calls of the parts, in order.
#[derive(Default)]
struct CallLog(Mutex<Vec<(&'static str, &'static str)>>);

#[async_trait]
impl Hook for CallLog {
    async fn before(&self, op: &Op) -> backend::Result<()> {
        self.0.lock().push((op.seam, op.name));
        Ok(())
    }
}

// proves S1-18, S1-28: between a send and its answer are one look at the dedupe keys and one publish of one record, also
// if the receiver is online on three platforms, or a group whose member the station knows. Who is online, and what is
// stored for those who are not, is the carrier's.
#[tokio::test(start_paused = true)]
async fn a_send_touches_the_mailbox_for_its_dedupe_key_alone() {
    let mut world = world().await;
    for (platform, at) in [
        (Platform::Ios, 21),
        (Platform::Web, 22),
        (Platform::Pad, 23),
    ] {
        world.sign_in(2, platform, at).await;
    }
    world.create_group(7, CLOSED, &[1, 2]).await;
    let calls = Arc::new(CallLog::default());
    let backends = (world.backends.clone()).hooked(&(calls.clone() as Arc<dyn Hook>));
    let config = Config {
        name: "station-2".into(),
        ..Config::default()
    };
    let (connector, shutdown) = (world.connector.clone(), world.shutdown.clone());
    let station = start(config, backends, connector, shutdown).await;
    let station = station.expect("a second station");
    let address = &station.instance().address;
    let channel = world.connector.channel(Role::Station, address);
    world.client = StationServiceClient::new(channel);
    // Asks whether the sender is a member.
    let first = world.submit_one(item(1, to_group(7, 1, "hello"))).await;
    assert!(first.is_ok(), "{first:?}");
    settle().await;

    let sends = [
        send(2, 2, "here"),
        send(9, 3, "away"),
        to_group(7, 4, "all"),
    ];
    for (records, message) in (2..).zip(sends) {
        calls.0.lock().clear();
        let answer = world.submit_one(item(1, message)).await;
        assert!(answer.is_ok(), "{answer:?}");
        settle().await;
        let path = [("mailbox", "dedupe_begin"), ("queue", "publish")];
        let behind_it = ("mailbox", "dedupe_done");
        assert_eq!(*calls.0.lock(), [path[0], path[1], behind_it]);
        assert_eq!(world.log().await.len(), records);
    }
    world.shutdown.cancel();
    station.drained().await;
}

/// One Redis server of several does not answer: the sends of the others' users do not wait for it.
#[tokio::test(start_paused = true)]
async fn sends_wait_for_the_mailbox_server_of_their_own_user_alone() {
    let world = world().await;
    world.lose_mailboxes(&[1]);
    let sends = (1..=4).map(|from| item(from, send(9, 1, &from.to_string())));
    let submission = world.submit(sends.collect());
    let check = async {
        tokio::time::sleep(Duration::from_millis(10)).await;
        world.messages().await
    };
    let (results, early) = tokio::join!(submission, check);
    let mut early: Vec<String> = early.into_iter().map(|(_, text)| text).collect();
    early.sort_unstable();
    assert_eq!(early, ["2", "3", "4"]);
    assert!(results.iter().all(Result::is_ok), "{results:?}");
    assert_eq!(world.messages().await.len(), 4);
}

/// Carriers judge by the bounds in the record, whatever their own settings are.
#[tokio::test(start_paused = true)]
async fn a_record_bears_the_bounds_of_its_station() {
    let bounds = Bounds {
        record_bytes: 70_000,
        group_members: 7,
        group_push: 3,
        change_within: Duration::from_secs(60),
    };
    let world = world_with(Config {
        record_bytes_max: bounds.record_bytes,
        group_size_max: bounds.group_members,
        group_push_max: bounds.group_push,
        change_within: bounds.change_within,
        ..Config::default()
    })
    .await;
    let result = world.submit_one(item(1, send(2, 1, "hello"))).await;
    assert!(result.is_ok());
    let tasks = world.tasks().await;
    assert!(matches!(&tasks[..], [Work::Message(task)] if task.bounds == bounds));
}

#[tokio::test(start_paused = true)]
async fn batch_makes_one_publish_per_partition_in_sender_order() {
    let world = world().await;
    let items: Vec<_> = (0..60)
        .map(|n| item(1 + i64::from(n % 3), send(9, n, &n.to_string())))
        .collect();
    let results = world.submit(items).await;
    assert!(results.iter().all(Result::is_ok));
    // Three conversations.
    assert_eq!(world.faults.calls("queue", "publish"), 3);
    let messages = world.messages().await;
    assert_eq!(messages.len(), 60);
    for sender in 0..3 {
        let numbers: Vec<u32> = messages
            .iter()
            .map(|(_, text)| text.parse().expect("a number"))
            .filter(|n: &u32| n % 3 == sender)
            .collect();
        assert!(numbers.is_sorted(), "{numbers:?}");
    }
}

// proves S3-22: repeating a UUID answers with the same message id and makes no second record.
#[tokio::test(start_paused = true)]
async fn a_repeat_is_answered_with_the_first_id() {
    let world = world().await;
    let first = world.submit_one(item(1, send(2, 1, "once"))).await;
    settle().await;
    let resend = as_resend(send(2, 1, "once"), 1, Duration::from_secs(1));
    assert_eq!(world.submit_one(item(1, resend.clone())).await, first);
    // Also from another session of the same user.
    let mut other_item = item(1, resend);
    other_item.session = session(77);
    assert_eq!(world.submit_one(other_item).await, first);
    // The same UUID of another user is another message.
    let other = world.submit_one(item(3, send(2, 1, "mine"))).await;
    assert_ne!(other, first);
    assert_eq!(world.messages().await.len(), 2);
}

// proves S3-22
#[tokio::test(start_paused = true)]
async fn a_repeat_inside_one_batch_is_one_record() {
    let world = world().await;
    let results = world
        .submit(vec![
            item(1, send(2, 1, "once")),
            item(1, send(2, 1, "once")),
            item(1, send(3, 1, "to somebody else under the same send_id")),
        ])
        .await;
    assert!(results[0].is_ok());
    assert_eq!(results[0], results[1]);
    assert_eq!(results[2], Err(Code::InvalidArgument));
    assert_eq!(world.messages().await.len(), 1);
}

// The promise's sentence 4: one send_id for two recipients. Whatever the key says, the second is
// neither called accepted nor put under the first one's id.
#[tokio::test(start_paused = true)]
async fn a_send_id_that_stands_for_another_conversation_is_refused() {
    let world = world().await;
    let first = world.submit_one(item(1, send(2, 1, "to 2"))).await;
    first.expect("accepted");
    settle().await;
    let result = world.submit_one(item(1, send(3, 1, "to 3"))).await;
    assert_eq!(result, Err(Code::InvalidArgument), "the key is resolved");

    world.faults.next(1, PUBLISHES, Fault::LostAnswer);
    let lost_result = world.submit_one(item(1, send(2, 7, "to 2 again"))).await;
    assert_eq!(lost_result, Err(Code::Unavailable));
    for other in [
        send(3, 7, "to 3"),
        as_resend(send(3, 7, "to 3"), 1, Duration::from_secs(1)),
    ] {
        let result = world.submit_one(item(1, other)).await;
        assert_eq!(result, Err(Code::InvalidArgument), "the key is pending");
    }
    let log = world.messages().await;
    let texts: Vec<&str> = log.iter().map(|(_, text)| text.as_str()).collect();
    assert_eq!(texts, ["to 2", "to 2 again"]);
    // Nobody waits for the refused one: it may go under a send_id of its own.
    assert!(world.submit_one(item(1, send(3, 8, "to 3"))).await.is_ok());
}

// T-ST1: the log took it, the answer was lost, the client resends: the same id, marked.
#[tokio::test(start_paused = true)]
async fn a_send_of_unknown_outcome_is_published_again_under_its_id() {
    let world = world().await;
    world.faults.next(1, PUBLISHES, Fault::LostAnswer);
    let lost_result = world.submit_one(item(1, send(2, 1, "x"))).await;
    assert_eq!(lost_result, Err(Code::Unavailable));
    let resend = as_resend(send(2, 1, "x"), 1, Duration::from_secs(1));
    let id = world.submit_one(item(1, resend)).await.expect("accepted");
    let tasks = world.tasks().await;
    let marks: Vec<(MessageId, bool, bool)> = tasks
        .iter()
        .map(|work| match work {
            Work::Message(task) => (task.message.id, task.maybe_repeat, task.unsure),
            other => panic!("not a message: {other:?}"),
        })
        .collect();
    assert_eq!(marks, [(id, false, false), (id, false, true)]);
}

#[tokio::test(start_paused = true)]
async fn a_failed_publish_is_refused_and_holds_back_what_follows_it() {
    let world = world().await;
    // One publish for each conversation.
    world.faults.next(3, PUBLISHES, Fault::Unavailable);
    let results = world
        .submit(vec![
            item(1, send(2, 1, "first")),
            item(1, send(3, 2, "to another")),
            item(1, send(2, 3, "second")),
            item(4, send(2, 4, "another session")),
        ])
        .await;
    assert_eq!(
        results,
        [
            Err(Code::Unavailable),
            Err(Code::Unavailable),
            Err(Code::EarlierSendFailed),
            Err(Code::Unavailable),
        ]
    );
    assert_eq!(world.messages().await, [], "no false acknowledgement");
    let resends = [(1, "first"), (3, "second")]
        .map(|(n, text)| item(1, as_resend(send(2, n, text), 1, Duration::from_secs(1))));
    let results = world.submit(resends.to_vec()).await;
    assert!(results.iter().all(Result::is_ok));
    let texts: Vec<_> = world.messages().await.into_iter().map(|m| m.1).collect();
    assert_eq!(texts, ["first", "second"]);
}

#[tokio::test(start_paused = true)]
async fn a_log_that_does_not_answer_is_waited_for_within_bounds() {
    let world = world_with(Config {
        publish_deadline: Duration::from_secs(2),
        sends_in_flight_max: 2,
        batch_items_max: 2,
        ..Config::default()
    })
    .await;
    world.faults.begin(PUBLISHES, Fault::Hang);
    let client = world.submit(vec![
        item(1, send(2, 1, "first")),
        item(1, send(2, 2, "second")),
    ]);
    let excess = async {
        settle().await;
        world.submit_one(item(5, send(6, 3, "one too many"))).await
    };
    let (results, excess) = tokio::join!(client, excess);
    assert_eq!(
        results,
        [Err(Code::DeadlineExceeded), Err(Code::EarlierSendFailed)]
    );
    // T-ST2: excess sends are shed at once, and may come again.
    assert_eq!(excess, Err(Code::Unavailable));
}

/// Each store takes as long as it may, and then the log does: the boat still hears the answers, one
/// of them about a send that the log has.
#[tokio::test(start_paused = true)]
async fn checks_and_the_log_share_one_deadline() {
    let world = world().await;
    let config = Config::default();
    let members = Calls::to("groups").named("members_of");
    world.faults.begin(members, Fault::Hang);
    world.lose_mailboxes(&[1]);
    let started_at = Instant::now();
    let submission = world.submit(vec![
        item(1, to_group(7, 1, "late")),
        item(3, send(4, 2, "at once")),
    ]);
    let log_hangs = async {
        tokio::time::sleep(Duration::from_millis(50)).await;
        world.faults.begin(PUBLISHES, Fault::Hang);
    };
    let (results, ()) = tokio::join!(submission, log_hangs);
    let elapsed = started_at.elapsed();
    assert_eq!(results[0], Err(Code::DeadlineExceeded));
    assert!(results[1].is_ok(), "{results:?}");
    let checks = config.dedupe_deadline + config.members_deadline;
    assert!(elapsed > checks, "{elapsed:?}");
    let end = config.publish_deadline + Duration::from_millis(50);
    assert!(elapsed < end, "{elapsed:?}");
}

#[tokio::test(start_paused = true)]
async fn a_partition_that_is_away_fails_its_own_sends_alone() {
    let world = world().await;
    let partition = |peer| partition_of(&record_key(between(1, peer)), 16);
    let well = (3..).find(|&peer| partition(peer) != partition(2));
    let well = well.expect("another partition");
    let without_leader = Partition {
        topic: Topic::Message,
        number: partition(2),
    };
    world.faults.without_leader(Some(without_leader));
    let batch = |n: u8| {
        let away_item = item(1, send(2, 2 * n, "away"));
        vec![away_item, item(1, send(well, 2 * n + 1, "well"))]
    };
    let started_at = Instant::now();
    let results = world.submit(batch(1)).await;
    assert_eq!(results[0], Err(Code::DeadlineExceeded));
    assert!(results[1].is_ok(), "{results:?}");
    assert_eq!(
        started_at.elapsed(),
        ACK_TIMEOUT,
        "not the deadline of those that are away"
    );
    // From now on nobody waits, not even for a probe.
    for n in 2..40 {
        let started_at = Instant::now();
        let results = world.submit(batch(n)).await;
        assert_eq!(results[0], Err(Code::Unavailable));
        assert!(results[1].is_ok(), "{results:?}");
        assert!(started_at.elapsed() < Duration::from_millis(50), "{n}");
        tokio::time::sleep(Duration::from_millis(100)).await;
    }
    let texts: Vec<_> = world.messages().await.into_iter().map(|m| m.1).collect();
    assert_eq!(texts, vec!["well"; 39]);
    // The partition is back: a probe finds that out.
    world.faults.without_leader(None);
    tokio::time::sleep(PROBE_INTERVAL).await;
    assert_eq!(world.submit(batch(40)).await[0], Err(Code::Unavailable));
    tokio::time::sleep(Duration::from_millis(10)).await;
    assert!(world.submit(batch(41)).await[0].is_ok());
}

// design 3: a mailbox that is away does not stop accepting; each send is marked unsure with its
// age, also the first, which may come behind its resend.
#[tokio::test(start_paused = true)]
async fn a_silent_mailbox_does_not_stop_accepting() {
    let world = world().await;
    world.faults.begin(MAILBOX, Fault::Hang);
    let first = world.submit_one(item(1, send(2, 1, "new"))).await;
    assert!(first.is_ok());
    let resend = as_resend(send(2, 1, "new"), 1, Duration::from_secs(3));
    let second = world.submit_one(item(1, resend)).await;
    assert!(second.is_ok() && second != first);
    let tasks = world.tasks().await;
    let marks: Vec<_> = tasks
        .iter()
        .map(|work| match work {
            Work::Message(task) => (task.maybe_repeat, task.unsure, task.age),
            other => panic!("not a message: {other:?}"),
        })
        .collect();
    let margin = protocol::admission::AGE_MARGIN;
    let ages = [margin, Duration::from_secs(3) + margin];
    assert_eq!(marks, ages.map(|age| (false, true, age)));
}

// A resend whose key was lost (the mailbox forgot it) is marked unsure as well.
#[tokio::test(start_paused = true)]
async fn a_resend_that_finds_no_key_is_unsure() {
    let world = world().await;
    let resend = as_resend(send(2, 1, "again"), 2, Duration::from_secs(3));
    world.submit_one(item(1, resend)).await.expect("accepted");
    let tasks = world.tasks().await;
    assert!(matches!(&tasks[0], Work::Message(task) if task.unsure));
}

#[tokio::test(start_paused = true)]
async fn a_user_who_sends_too_much_is_held_back_alone_and_in_order() {
    let world = world_with(Config {
        user_sends_per_second: NonZeroU32::new(2).expect("2"),
        user_sends_burst: NonZeroU32::new(2).expect("2"),
        ..Config::default()
    })
    .await;
    let results = world
        .submit(vec![
            item(1, send(2, 1, "a")),
            item(1, send(2, 2, "b")),
            item(1, send(2, 3, "c")),
            item(1, send(2, 4, "d")),
            item(3, send(2, 5, "e")),
        ])
        .await;
    assert_eq!(
        results[2..4],
        [Err(Code::RateLimited), Err(Code::EarlierSendFailed)]
    );
    assert!(results[0].is_ok() && results[1].is_ok() && results[4].is_ok());
    let wire = vec![(&item(1, send(2, 6, "f"))).into()];
    let refusal = world.submit_wire(wire).await.remove(0).refusal;
    assert_eq!(refusal.expect("refused").retry_after_ms, 500);
    tokio::time::advance(Duration::from_millis(500)).await;
    let resend = as_resend(send(2, 3, "c"), 1, Duration::from_millis(500));
    assert!(world.submit_one(item(1, resend)).await.is_ok());
}

#[tokio::test(start_paused = true)]
async fn seen_seq_moves_the_read_register_within_bounds() {
    let world = world().await;
    world.place(2, 1, 1, "one").await;
    world.place(2, 1, 2, "two").await;
    let read = async |seen: u64, number: u8| {
        let mut reply = send(2, number, "reply");
        reply.seen_seq = Some(Seq(seen));
        world.submit_one(item(1, reply)).await.expect("accepted");
        settle().await;
        let key = [(user(1), between(1, 2))];
        let rows = world
            .backends
            .conversations
            .get(&key)
            .await
            .expect("readable");
        rows[0].expect("listed").read_seq
    };
    assert_eq!(read(1, 1).await, Seq(1));
    assert_eq!(read(99, 2).await, Seq(2), "not beyond the end");
    assert_eq!(read(1, 3).await, Seq(2), "never back");
}

#[tokio::test(start_paused = true)]
async fn calls_in_flight_end_before_the_station_does() {
    let world = world().await;
    let send_result = world.submit_one(item(1, send(2, 1, "last"))).await;
    world.shutdown.cancel();
    world.station.drained().await;
    assert_eq!(world.messages().await.len(), 1);
    // Work after the answer was done as well: the key is resolved.
    let key = protocol::mailbox::DedupeKey {
        from: user(1),
        send_id: SendId::from_bytes([1; 16]),
    };
    let to_first_send = |id| protocol::mailbox::FirstSend {
        id,
        conversation: between(1, 2),
    };
    let answers = world
        .backends
        .mailbox
        .dedupe_begin(
            vec![(key, to_first_send(MessageId::new(1).expect("positive")))],
            BEGIN,
        )
        .await;
    let expected =
        protocol::mailbox::DedupeAnswer::Done(to_first_send(send_result.expect("accepted")));
    assert_eq!(answers[0].as_ref().ok(), Some(&expected));
    let request = api::v1::OnlineRequest::default();
    let status = world.client.clone().online(request).await;
    let status = status.expect_err("nobody serves any more");
    assert_eq!(refusal_code(&status), Code::Unavailable);
}
