//! Receipts over the wire: recorded, answered, pushed to the sender.

use std::sync::atomic::Ordering;
use std::time::Duration;

use api::station::ReceiptItem;
use api::v1;
use backend::embedded::{Table, WriteBatch};
use backend::hook::{Calls, Fault};
use bytes::Bytes;
use protocol::admission::MEMBERSHIP_CACHE_TTL;
use protocol::frame::{Ack, AckItem, Acked, ServerFrame};
use protocol::receipt::{Receipt, ReceiptKind};
use protocol::{Code, Placed, Platform, Seq};
use tokio::time::{Instant, sleep, timeout};

use super::groups::{CLOSED, to_group};
use super::world::*;
use crate::Config;

pub(super) fn receipt_item(number: i64, kind: ReceiptKind, entries: &[&Placed]) -> ReceiptItem {
    ReceiptItem {
        user: user(number),
        session: session(number),
        ack: Ack {
            kind,
            items: entries
                .iter()
                .map(|entry| AckItem {
                    conversation: entry.conversation,
                    id: entry.message.id,
                    seq: entry.position.seq,
                })
                .collect(),
        },
        ticket: None,
    }
}

impl World {
    pub(super) async fn acknowledge(&self, items: &[ReceiptItem]) -> Vec<Acked> {
        let request = v1::ReceiptsRequest {
            items: items.iter().map(v1::ReceiptItem::from).collect(),
        };
        let answer = self.client.clone().receipts(request).await;
        let answers = answer.expect("answered").into_inner().answers;
        settle().await;
        answers
            .into_iter()
            .map(|answer| answer.try_into().expect("whole"))
            .collect()
    }

    fn pushed_receipts(&self) -> Vec<(i64, Receipt)> {
        let frames = self.boat.frames().into_iter();
        frames
            .flat_map(|(session, frame)| match frame {
                ServerFrame::Receipts(receipts) => {
                    receipts.into_iter().map(move |receipt| (session, receipt))
                }
                other => panic!("not receipts: {other:?}"),
            })
            .collect()
    }

    async fn status_flags(&self, entry: &Placed) -> (bool, bool) {
        let key = [(entry.message.from, entry.message.id)];
        let status = self.backends.messages.status(&key).await.expect("readable");
        (
            status[0].delivered_at.is_some(),
            status[0].read_at.is_some(),
        )
    }
}

// proves S3-08, S3-10, S3-14, S3-15, S3-16: ack:R is recorded, ack:A answers it, ack:N tells the sender.
#[tokio::test(start_paused = true)]
async fn a_receipt_is_recorded_answered_and_told_to_the_sender() {
    let world = world().await;
    world.sign_in(1, Platform::Ios, 11).await;
    world.sign_in(1, Platform::Web, 12).await;
    let entry = world.place(1, 2, 1, "hello").await;
    let answers = world
        .acknowledge(&[receipt_item(2, ReceiptKind::Received, &[&entry])])
        .await;
    assert_eq!(answers[0].kind, ReceiptKind::Received);
    assert_eq!(answers[0].ids, [entry.message.id]);
    assert_eq!(answers[0].refusals, []);
    assert_eq!(world.status_flags(&entry).await, (true, false));
    let expected = Receipt {
        kind: ReceiptKind::Received,
        conversation: entry.conversation,
        id: entry.message.id,
        seq: Seq(1),
        by: user(2),
        at: BEGIN,
    };
    let mut pushes = world.pushed_receipts();
    pushes.sort_by_key(|(session, _)| *session);
    assert_eq!(pushes, [(11, expected), (12, expected)]);
}

// proves S3-17 in part: read implies received, and nothing moves back.
#[tokio::test(start_paused = true)]
async fn receipts_only_move_forward_and_are_told_once() {
    let world = world().await;
    world.sign_in(1, Platform::Ios, 11).await;
    let entry = world.place(1, 2, 1, "hello").await;
    for kind in [ReceiptKind::Read, ReceiptKind::Received, ReceiptKind::Read] {
        let answers = world.acknowledge(&[receipt_item(2, kind, &[&entry])]).await;
        assert_eq!(
            answers[0].ids,
            [entry.message.id],
            "repeats are answered, too"
        );
        assert_eq!(world.status_flags(&entry).await, (true, true));
    }
    let kinds: Vec<_> = world
        .pushed_receipts()
        .iter()
        .map(|(_, receipt)| receipt.kind)
        .collect();
    assert_eq!(kinds, [ReceiptKind::Read]);
}

#[tokio::test(start_paused = true)]
async fn a_call_of_many_receipts_moves_each_register_to_its_end() {
    let world = world().await;
    world.sign_in(1, Platform::Ios, 11).await;
    let mut entries = Vec::new();
    for seq in 1..=20 {
        entries.push(world.place(1, 2, seq, "x").await);
    }
    let other = world.place(3, 2, 1, "from another").await;
    let (first, second) = entries.split_at(10);
    let first: Vec<&Placed> = first.iter().collect();
    let second: Vec<&Placed> = second.iter().rev().collect();
    let answers = world
        .acknowledge(&[
            receipt_item(2, ReceiptKind::Received, &second),
            receipt_item(2, ReceiptKind::Read, &first),
            receipt_item(2, ReceiptKind::Received, &[&other]),
        ])
        .await;
    let counts: Vec<_> = answers.iter().map(|answer| answer.ids.len()).collect();
    assert_eq!(counts, [10, 10, 1]);
    let keys = [(user(2), between(1, 2)), (user(2), between(3, 2))];
    let rows = world
        .backends
        .conversations
        .get(&keys)
        .await
        .expect("readable");
    let registers: Vec<_> = rows
        .into_iter()
        .map(|row| row.expect("listed"))
        .map(|row| (row.read_seq.0, row.received_seq.0))
        .collect();
    assert_eq!(registers, [(10, 20), (0, 1)]);
    assert_eq!(
        world.pushed_receipts().len(),
        20,
        "the other sender is away"
    );
    let calls = world.boat.notices.lock().len();
    assert_eq!(calls, 1, "one call for one boat");
}

#[tokio::test(start_paused = true)]
async fn own_message_on_another_device_notifies_nobody() {
    let world = world().await;
    world.sign_in(1, Platform::Ios, 11).await;
    let entry = world.place(1, 2, 1, "mine").await;
    let answers = world
        .acknowledge(&[receipt_item(1, ReceiptKind::Received, &[&entry])])
        .await;
    assert_eq!(answers[0].ids, [entry.message.id]);
    assert_eq!(world.status_flags(&entry).await, (false, false));
    assert_eq!(world.pushed_receipts(), []);
}

// proves S3-18: without pushing, the sender learns it by asking.
#[tokio::test(start_paused = true)]
async fn receipts_need_not_be_pushed() {
    let world = world_with(Config {
        push_receipts: false,
        ..Config::default()
    })
    .await;
    world.sign_in(1, Platform::Ios, 11).await;
    let entry = world.place(1, 2, 1, "hello").await;
    world
        .acknowledge(&[receipt_item(2, ReceiptKind::Read, &[&entry])])
        .await;
    assert_eq!(world.pushed_receipts(), []);
    let statuses = world.ask_status(1, &[entry.message.id]).await;
    assert_eq!(statuses[0].delivered_at, Some(BEGIN));
    assert_eq!(statuses[0].read_at, Some(BEGIN));
}

const STORE_DEADLINE: Duration = Duration::from_secs(3);

/// Time of one attempt: a pause, and the deadline of a store.
const ATTEMPT_TIME: Duration = Duration::from_secs(4);

// A boat that was away for a moment lost the receipt for as long as the sender stayed connected.
#[tokio::test(start_paused = true)]
async fn a_push_that_fails_is_repeated() {
    let world = world().await;
    world.sign_in(1, Platform::Ios, 11).await;
    let entry = world.place(1, 2, 1, "hello").await;
    world.boat.remaining_failures.store(2, Ordering::Relaxed);
    world
        .acknowledge(&[receipt_item(2, ReceiptKind::Read, &[&entry])])
        .await;
    assert_eq!(world.pushed_receipts(), []);
    sleep(Duration::from_secs(2)).await;
    assert_eq!(
        world.pushed_receipts().len(),
        1,
        "after half a second and one more"
    );
    sleep(Duration::from_secs(60)).await;
    assert_eq!(world.pushed_receipts().len(), 1);
}

// Sixteen calls to a boat wait for it; further ones for it come again later, and delay no other
// boat's.
#[tokio::test(start_paused = true)]
async fn a_boat_that_hangs_keeps_back_its_own_receipts_only() {
    let world = world().await;
    let (other, lease, _door) = world.add_boat("boat-2").await;
    world.sign_in(1, Platform::Ios, 11).await;
    let connect = api::station::Connect {
        life: lease.instance.life.clone(),
        ..world.connect_request(3, Platform::Ios, 13)
    };
    world.connect(&connect).await.expect("admitted");
    world.boat.hangs.store(true, Ordering::Relaxed);
    let mut entries = Vec::new();
    for seq in 1..=100 {
        entries.push(world.place(1, 2, seq, "x").await);
    }
    for entry in &entries {
        world
            .acknowledge(&[receipt_item(2, ReceiptKind::Read, &[entry])])
            .await;
    }
    let to_other = world.place(3, 2, 1, "hello").await;
    world
        .acknowledge(&[receipt_item(2, ReceiptKind::Read, &[&to_other])])
        .await;
    assert_eq!(other.frames().len(), 1, "at once");
    assert_eq!(world.pushed_receipts(), []);
    world.boat.hangs.store(false, Ordering::Relaxed);
    sleep(Duration::from_secs(30)).await;
    assert_eq!(world.pushed_receipts().len(), 100);
}

#[tokio::test(start_paused = true)]
async fn a_push_whose_sessions_are_unknown_is_repeated() {
    let world = world().await;
    world.sign_in(1, Platform::Ios, 11).await;
    let entry = world.place(1, 2, 1, "hello").await;
    world.lose_mailboxes(&[1]);
    world
        .acknowledge(&[receipt_item(2, ReceiptKind::Received, &[&entry])])
        .await;
    world.restore_mailboxes();
    world.faults.begin(MAILBOX.named("sessions"), Fault::Hang);
    world
        .acknowledge(&[receipt_item(2, ReceiptKind::Read, &[&entry])])
        .await;
    sleep(STORE_DEADLINE / 2).await;
    world.faults.end(MAILBOX.named("sessions"));
    assert_eq!(world.pushed_receipts(), []);
    sleep(2 * ATTEMPT_TIME).await;
    let mut kinds: Vec<_> = (world.pushed_receipts().iter())
        .map(|(_, receipt)| receipt.kind)
        .collect();
    kinds.sort();
    assert_eq!(kinds, [ReceiptKind::Received, ReceiptKind::Read]);
}

#[tokio::test(start_paused = true)]
async fn a_push_is_repeated_for_a_quarter_of_a_minute() {
    let world = world().await;
    world.sign_in(1, Platform::Ios, 11).await;
    let entry = world.place(1, 2, 1, "hello").await;
    world
        .boat
        .remaining_failures
        .store(usize::MAX, Ordering::Relaxed);
    world
        .acknowledge(&[receipt_item(2, ReceiptKind::Read, &[&entry])])
        .await;
    sleep(Duration::from_secs(60)).await;
    let pushes = usize::MAX - world.boat.remaining_failures.load(Ordering::Relaxed);
    assert_eq!(pushes, 6, "the first, and after 0.5, 1, 2, 4 and 8 seconds");
}

// A status that was set while its answer was lost was not new when the receipt came again: its
// sender heard nothing.
#[tokio::test(start_paused = true)]
async fn a_status_whose_write_was_not_answered_is_pushed_all_the_same() {
    let world = world().await;
    world.sign_in(1, Platform::Ios, 11).await;
    let entry = world.place(1, 2, 1, "hello").await;
    let receipt = [receipt_item(2, ReceiptKind::Read, &[&entry])];
    world.faults.next(1, STATUSES, Fault::NoAnswer);
    let answers = world.acknowledge(&receipt).await;
    let (_, refusal) = &answers[0].refusals[0];
    assert_eq!(refusal.code, Code::DeadlineExceeded);
    let answers = world.acknowledge(&receipt).await;
    assert_eq!(answers[0].ids, [entry.message.id]);
    sleep(2 * ATTEMPT_TIME).await;
    let pushes = world.pushed_receipts();
    assert_eq!(pushes.len(), 1, "{pushes:?}");
    assert_eq!(pushes[0].1.kind, ReceiptKind::Read);
}

// The same if the boat hangs up: its call ends in the middle.
#[tokio::test(start_paused = true)]
async fn a_call_that_is_broken_off_pushes_what_it_has_recorded() {
    let world = world().await;
    world.sign_in(1, Platform::Ios, 11).await;
    let entry = world.place(1, 2, 1, "hello").await;
    let receipt = [receipt_item(2, ReceiptKind::Read, &[&entry])];
    world.faults.next(1, STATUSES, Fault::NoAnswer);
    let broken_off = timeout(Duration::from_secs(1), world.acknowledge(&receipt)).await;
    assert!(broken_off.is_err());
    assert_eq!(world.faults.calls("messages", "set_status"), 1);
    assert_eq!(world.status_flags(&entry).await, (true, true));
    sleep(3 * ATTEMPT_TIME).await;
    let pushes = world.pushed_receipts();
    assert_eq!(pushes.len(), 1, "{pushes:?}");
}

// A status that was not recorded is not pushed.
#[tokio::test(start_paused = true)]
async fn a_status_that_does_not_stand_is_not_pushed() {
    let world = world().await;
    world.sign_in(1, Platform::Ios, 11).await;
    let entry = world.place(1, 2, 1, "hello").await;
    world.faults.begin(STATUSES, Fault::Unavailable);
    let receipt = [receipt_item(2, ReceiptKind::Read, &[&entry])];
    world.acknowledge(&receipt).await;
    world.faults.end(STATUSES);
    sleep(Duration::from_secs(60)).await;
    assert_eq!(world.pushed_receipts(), []);
    assert_eq!(world.status_flags(&entry).await, (false, false));
}

/// Faults of a store, and the refusals of the receipts that they hit.
const FAILURES: [(Fault, Code); 2] = [
    (Fault::Unavailable, Code::Unavailable),
    (Fault::Hang, Code::DeadlineExceeded),
];

/// Time for a call whose store does not answer for some.
const CALL_TIMEOUT: Duration = STORE_DEADLINE.saturating_add(Duration::from_millis(100));

#[tokio::test(start_paused = true)]
async fn a_row_that_fails_refuses_the_receipts_of_its_owner_alone() {
    for (fault, code) in FAILURES {
        let world = world().await;
        let first = world.place(1, 2, 1, "hello").await;
        let second = world.place(1, 3, 1, "hello").await;
        let receipts = [
            receipt_item(2, ReceiptKind::Read, &[&first]),
            receipt_item(3, ReceiptKind::Received, &[&second]),
        ];
        let row = Calls::to("messages").named("places");
        let row = row.about(first.message.id.get());
        world.faults.begin(row, fault);
        let started_at = Instant::now();
        let answers = world.acknowledge(&receipts).await;
        assert!(
            started_at.elapsed() < CALL_TIMEOUT,
            "{:?}",
            started_at.elapsed()
        );
        assert_eq!(answers[0].refusals[0].1.code, code);
        assert_eq!(answers[1].ids, [second.message.id]);
        world.faults.end(row);
        world.faults.calls("messages", "places");
        let answers = world.acknowledge(&receipts).await;
        assert_eq!(answers[0].ids, [first.message.id]);
        assert_eq!(world.faults.calls("messages", "places"), 1, "one for all");
    }
}

#[tokio::test(start_paused = true)]
async fn a_row_that_cannot_be_read_is_no_place() {
    let world = world().await;
    // Not by the store, which remembers the places that it wrote.
    let damaged_entry = world.placed(1, 2, 1, "hello");
    let well = world.place(1, 2, 2, "hello").await;
    let other = world.place(1, 3, 1, "hello").await;
    let id = damaged_entry.message.id;
    let key = [2i64.to_be_bytes(), id.get().to_be_bytes()].concat();
    let mut batch = WriteBatch::new();
    batch.put(Table::Private, key, Bytes::from_static(b"\xffdamaged"));
    world.engine.write(batch).expect("written");
    let answers = world
        .acknowledge(&[
            receipt_item(2, ReceiptKind::Read, &[&damaged_entry, &well]),
            receipt_item(3, ReceiptKind::Read, &[&other]),
        ])
        .await;
    assert_eq!(answers[0].ids, [well.message.id]);
    let refusals = answers[0].refusals.iter();
    let refusals: Vec<_> = refusals.map(|(id, refusal)| (*id, refusal.code)).collect();
    assert_eq!(refusals, [(id, Code::NotFound)]);
    assert_eq!(answers[1].ids, [other.message.id]);
}

#[tokio::test(start_paused = true)]
async fn a_group_that_fails_refuses_the_receipts_there_alone() {
    for (fault, code) in FAILURES {
        let world = world().await;
        world.create_group(7, CLOSED, &[1, 2]).await;
        world.create_group(8, CLOSED, &[1, 3]).await;
        let first = world.say(7, 1, "hello").await;
        let second = world.say(8, 1, "hello").await;
        let at = Calls::to("messages").named("at").about(7);
        world.faults.begin(at, fault);
        let started_at = Instant::now();
        let answers = world
            .acknowledge(&[
                receipt_item(2, ReceiptKind::Received, &[&first]),
                receipt_item(3, ReceiptKind::Received, &[&second]),
            ])
            .await;
        assert!(
            started_at.elapsed() < CALL_TIMEOUT,
            "{:?}",
            started_at.elapsed()
        );
        assert_eq!(answers[0].refusals[0].1.code, code);
        assert_eq!(answers[1].ids, [second.message.id]);
        world.faults.end(at);
    }
}

#[tokio::test(start_paused = true)]
async fn members_who_cannot_be_read_refuse_their_own_receipts_alone() {
    // A group, and a user of it.
    for (about, is_well) in [(7, [false, false, true]), (4, [true, false, true])] {
        for (fault, code) in FAILURES {
            let world = world().await;
            world.create_group(7, CLOSED, &[1, 2, 4]).await;
            world.create_group(8, CLOSED, &[1, 3]).await;
            let first = world.say(7, 1, "hello").await;
            let second = world.say(8, 1, "hello").await;
            let receipts = [(2, &first), (4, &first), (3, &second)];
            let ids = receipts.map(|(_, entry)| entry.message.id);
            let receipts =
                receipts.map(|(by, entry)| receipt_item(by, ReceiptKind::Received, &[entry]));
            let members = Calls::to("groups").named("members_of").about(about);
            world.faults.begin(members, fault);
            let started_at = Instant::now();
            let answers = world.acknowledge(&receipts).await;
            assert!(
                started_at.elapsed() < CALL_TIMEOUT,
                "{:?}",
                started_at.elapsed()
            );
            for ((answer, id), is_well) in answers.iter().zip(ids).zip(is_well) {
                if is_well {
                    assert_eq!(answer.ids, [id])
                } else {
                    assert_eq!(answer.refusals[0].1.code, code)
                }
            }
            world.faults.end(members);
            sleep(MEMBERSHIP_CACHE_TTL).await;
            world.faults.calls("groups", "members_of");
            let answers = world.acknowledge(&receipts).await;
            for (answer, id) in answers.iter().zip(ids) {
                assert_eq!(answer.ids, [id]);
            }
            let calls = world.faults.calls("groups", "members_of");
            assert_eq!(calls, 1, "one for all");
        }
    }
}

// Sends are judged again by the writer, receipts by nobody. A user known to be no member is refused, too, though
// no store says whether there is a group.
#[tokio::test(start_paused = true)]
async fn stranger_is_refused_while_the_store_is_silent() {
    let forbidden = Err(Code::Forbidden);
    for (fault, code) in FAILURES {
        for (question, expected_code, expected_result) in [
            ("members_of", code, Ok(())),
            ("present", Code::Forbidden, forbidden),
        ] {
            let world = world().await;
            world.create_group(7, CLOSED, &[1, 2]).await;
            let entry = world.say(7, 1, "hello").await;
            let question = Calls::to("groups").named(question);
            world.faults.begin(question, fault);
            world.faults.writes("conversations");
            for kind in [ReceiptKind::Received, ReceiptKind::Read] {
                let answers = world.acknowledge(&[receipt_item(3, kind, &[&entry])]).await;
                assert_eq!(answers[0].ids, []);
                assert_eq!(answers[0].refusals[0].1.code, expected_code);
            }
            assert_eq!(world.faults.writes("conversations"), 0);
            let result = world.submit_one(item(3, to_group(7, 1, "hello"))).await;
            assert_eq!(result.map(drop), expected_result);
            world.faults.end(question);
        }
    }
}

#[tokio::test(start_paused = true)]
async fn a_register_that_fails_refuses_its_own_receipts_alone() {
    const LISTS: Calls = Calls::to("conversations");
    for (fault, code) in FAILURES {
        for number in 0..3 {
            let world = world().await;
            world.sign_in(4, Platform::Ios, 14).await;
            let first = world.place(1, 2, 1, "hello").await;
            let second = world.place(4, 3, 1, "hello").await;
            let (register, kind) = match number {
                0 => (LISTS.named("set_read").about(2), ReceiptKind::Read),
                1 => (LISTS.named("set_received").about(2), ReceiptKind::Received),
                _ => (STATUSES.about(first.message.id.get()), ReceiptKind::Read),
            };
            world.faults.begin(register, fault);
            let started_at = Instant::now();
            let answers = world
                .acknowledge(&[
                    receipt_item(2, kind, &[&first]),
                    receipt_item(3, kind, &[&second]),
                ])
                .await;
            assert!(
                started_at.elapsed() < CALL_TIMEOUT,
                "{:?}",
                started_at.elapsed()
            );
            assert_eq!(answers[0].refusals[0].1.code, code, "{number}");
            assert_eq!(answers[1].ids, [second.message.id], "{number}");
            assert_eq!(world.pushed_receipts().len(), 1, "{number}");
            world.faults.end(register);
        }
    }
}
