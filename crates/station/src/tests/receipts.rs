//! Receipts over the wire: recorded, answered, pushed to the sender.

use std::sync::atomic::Ordering;
use std::time::Duration;

use api::station::ReceiptItem;
use api::v1;
use backend::embedded::{Table, WriteBatch};
use backend::hook::{Calls, Fault};
use bytes::Bytes;
use protocol::admission::MEMBER_BELIEVED_FOR;
use protocol::frame::{Ack, AckItem, Acked, ServerFrame};
use protocol::receipt::{Receipt, ReceiptKind};
use protocol::{Code, Placed, Platform, Seq};
use tokio::time::{Instant, sleep, timeout};

use super::groups::{CLOSED, to_group};
use super::world::*;
use crate::Config;

pub(super) fn receipt_of(who: i64, kind: ReceiptKind, placed: &[&Placed]) -> ReceiptItem {
    ReceiptItem {
        user: user(who),
        session: session(who),
        ack: Ack {
            kind,
            items: placed
                .iter()
                .map(|placed| AckItem {
                    conversation: placed.conversation,
                    id: placed.message.id,
                    seq: placed.position.seq,
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

    fn told(&self) -> Vec<(i64, Receipt)> {
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

    async fn status_of(&self, placed: &Placed) -> (bool, bool) {
        let key = [(placed.message.from, placed.message.id)];
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
    let placed = world.place(1, 2, 1, "hello").await;
    let answers = world
        .acknowledge(&[receipt_of(2, ReceiptKind::Received, &[&placed])])
        .await;
    assert_eq!(answers[0].kind, ReceiptKind::Received);
    assert_eq!(answers[0].ids, [placed.message.id]);
    assert_eq!(answers[0].refused, []);
    assert_eq!(world.status_of(&placed).await, (true, false));
    let expected = Receipt {
        kind: ReceiptKind::Received,
        conversation: placed.conversation,
        id: placed.message.id,
        seq: Seq(1),
        by: user(2),
        at: BEGIN,
    };
    let mut told = world.told();
    told.sort_by_key(|(session, _)| *session);
    assert_eq!(told, [(11, expected), (12, expected)]);
}

// proves S3-17 in part: read implies received, and nothing moves back.
#[tokio::test(start_paused = true)]
async fn receipts_only_move_forward_and_are_told_once() {
    let world = world().await;
    world.sign_in(1, Platform::Ios, 11).await;
    let placed = world.place(1, 2, 1, "hello").await;
    for kind in [ReceiptKind::Read, ReceiptKind::Received, ReceiptKind::Read] {
        let answers = world.acknowledge(&[receipt_of(2, kind, &[&placed])]).await;
        assert_eq!(
            answers[0].ids,
            [placed.message.id],
            "repeats are answered, too"
        );
        assert_eq!(world.status_of(&placed).await, (true, true));
    }
    let kinds: Vec<_> = world
        .told()
        .iter()
        .map(|(_, receipt)| receipt.kind)
        .collect();
    assert_eq!(kinds, [ReceiptKind::Read]);
}

#[tokio::test(start_paused = true)]
async fn a_call_of_many_receipts_moves_each_register_to_its_end() {
    let world = world().await;
    world.sign_in(1, Platform::Ios, 11).await;
    let mut placed = Vec::new();
    for seq in 1..=20 {
        placed.push(world.place(1, 2, seq, "x").await);
    }
    let other = world.place(3, 2, 1, "from another").await;
    let (first, second) = placed.split_at(10);
    let first: Vec<&Placed> = first.iter().collect();
    let second: Vec<&Placed> = second.iter().rev().collect();
    let answers = world
        .acknowledge(&[
            receipt_of(2, ReceiptKind::Received, &second),
            receipt_of(2, ReceiptKind::Read, &first),
            receipt_of(2, ReceiptKind::Received, &[&other]),
        ])
        .await;
    let counts: Vec<_> = answers.iter().map(|answer| answer.ids.len()).collect();
    assert_eq!(counts, [10, 10, 1]);
    let keys = [(user(2), between(1, 2)), (user(2), between(3, 2))];
    let listed = world
        .backends
        .conversations
        .get(&keys)
        .await
        .expect("readable");
    let registers: Vec<_> = listed
        .into_iter()
        .map(|listed| listed.expect("listed"))
        .map(|listed| (listed.read_seq.0, listed.received_seq.0))
        .collect();
    assert_eq!(registers, [(10, 20), (0, 1)]);
    assert_eq!(world.told().len(), 20, "the other sender is away");
    let calls = world.boat.notices.lock().len();
    assert_eq!(calls, 1, "one call for one boat");
}

#[tokio::test(start_paused = true)]
async fn an_own_message_on_another_device_is_acknowledged_and_nobody_is_told() {
    let world = world().await;
    world.sign_in(1, Platform::Ios, 11).await;
    let placed = world.place(1, 2, 1, "mine").await;
    let answers = world
        .acknowledge(&[receipt_of(1, ReceiptKind::Received, &[&placed])])
        .await;
    assert_eq!(answers[0].ids, [placed.message.id]);
    assert_eq!(world.status_of(&placed).await, (false, false));
    assert_eq!(world.told(), []);
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
    let placed = world.place(1, 2, 1, "hello").await;
    world
        .acknowledge(&[receipt_of(2, ReceiptKind::Read, &[&placed])])
        .await;
    assert_eq!(world.told(), []);
    let statuses = world.ask_status(1, &[placed.message.id]).await;
    assert_eq!(statuses[0].delivered_at, Some(BEGIN));
    assert_eq!(statuses[0].read_at, Some(BEGIN));
}

const STORE_DEADLINE: Duration = Duration::from_secs(3);

/// Time between two looks: a pause, and the deadline of a store.
const ROUND: Duration = Duration::from_secs(4);

// A boat that was away for a moment lost the receipt for as long as the sender stayed connected.
#[tokio::test(start_paused = true)]
async fn a_push_that_fails_is_repeated() {
    let world = world().await;
    world.sign_in(1, Platform::Ios, 11).await;
    let placed = world.place(1, 2, 1, "hello").await;
    world.boat.failing.store(2, Ordering::Relaxed);
    world
        .acknowledge(&[receipt_of(2, ReceiptKind::Read, &[&placed])])
        .await;
    assert_eq!(world.told(), []);
    sleep(Duration::from_secs(2)).await;
    assert_eq!(world.told().len(), 1, "after half a second and one more");
    sleep(Duration::from_secs(60)).await;
    assert_eq!(world.told().len(), 1);
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
        ..world.connect_of(3, Platform::Ios, 13)
    };
    world.connect(&connect).await.expect("admitted");
    world.boat.hangs.store(true, Ordering::Relaxed);
    let mut placed = Vec::new();
    for seq in 1..=100 {
        placed.push(world.place(1, 2, seq, "x").await);
    }
    for placed in &placed {
        world
            .acknowledge(&[receipt_of(2, ReceiptKind::Read, &[placed])])
            .await;
    }
    let to_other = world.place(3, 2, 1, "hello").await;
    world
        .acknowledge(&[receipt_of(2, ReceiptKind::Read, &[&to_other])])
        .await;
    assert_eq!(other.frames().len(), 1, "at once");
    assert_eq!(world.told(), []);
    world.boat.hangs.store(false, Ordering::Relaxed);
    sleep(Duration::from_secs(30)).await;
    assert_eq!(world.told().len(), 100);
}

#[tokio::test(start_paused = true)]
async fn a_push_whose_sessions_are_unknown_is_repeated() {
    let world = world().await;
    world.sign_in(1, Platform::Ios, 11).await;
    let placed = world.place(1, 2, 1, "hello").await;
    world.lose_mailboxes_of(&[1]);
    world
        .acknowledge(&[receipt_of(2, ReceiptKind::Received, &[&placed])])
        .await;
    world.find_mailboxes();
    world.faults.begin(MAILBOX.named("sessions"), Fault::Hang);
    world
        .acknowledge(&[receipt_of(2, ReceiptKind::Read, &[&placed])])
        .await;
    sleep(STORE_DEADLINE / 2).await;
    world.faults.end(MAILBOX.named("sessions"));
    assert_eq!(world.told(), []);
    sleep(2 * ROUND).await;
    let mut kinds: Vec<_> = (world.told().iter())
        .map(|(_, receipt)| receipt.kind)
        .collect();
    kinds.sort();
    assert_eq!(kinds, [ReceiptKind::Received, ReceiptKind::Read]);
}

#[tokio::test(start_paused = true)]
async fn a_push_is_repeated_for_a_quarter_of_a_minute() {
    let world = world().await;
    world.sign_in(1, Platform::Ios, 11).await;
    let placed = world.place(1, 2, 1, "hello").await;
    world.boat.failing.store(usize::MAX, Ordering::Relaxed);
    world
        .acknowledge(&[receipt_of(2, ReceiptKind::Read, &[&placed])])
        .await;
    sleep(Duration::from_secs(60)).await;
    let pushes = usize::MAX - world.boat.failing.load(Ordering::Relaxed);
    assert_eq!(pushes, 6, "the first, and after 0.5, 1, 2, 4 and 8 seconds");
}

// A status that was set while its answer was lost was not new when the receipt came again: its
// sender heard nothing.
#[tokio::test(start_paused = true)]
async fn a_status_whose_write_was_not_answered_is_pushed_all_the_same() {
    let world = world().await;
    world.sign_in(1, Platform::Ios, 11).await;
    let placed = world.place(1, 2, 1, "hello").await;
    let receipt = [receipt_of(2, ReceiptKind::Read, &[&placed])];
    world.faults.next(1, STATUSES, Fault::NoAnswer);
    let answers = world.acknowledge(&receipt).await;
    let (_, refusal) = &answers[0].refused[0];
    assert_eq!(refusal.code, Code::DeadlineExceeded);
    let answers = world.acknowledge(&receipt).await;
    assert_eq!(answers[0].ids, [placed.message.id]);
    sleep(2 * ROUND).await;
    let told = world.told();
    assert_eq!(told.len(), 1, "{told:?}");
    assert_eq!(told[0].1.kind, ReceiptKind::Read);
}

// The same if the boat hangs up: its call ends in the middle.
#[tokio::test(start_paused = true)]
async fn a_call_that_is_broken_off_pushes_what_it_has_recorded() {
    let world = world().await;
    world.sign_in(1, Platform::Ios, 11).await;
    let placed = world.place(1, 2, 1, "hello").await;
    let receipt = [receipt_of(2, ReceiptKind::Read, &[&placed])];
    world.faults.next(1, STATUSES, Fault::NoAnswer);
    let broken_off = timeout(Duration::from_secs(1), world.acknowledge(&receipt)).await;
    assert!(broken_off.is_err());
    assert_eq!(world.faults.calls("messages", "set_status"), 1);
    assert_eq!(world.status_of(&placed).await, (true, true));
    sleep(3 * ROUND).await;
    let told = world.told();
    assert_eq!(told.len(), 1, "{told:?}");
}

// A status that was not recorded is not pushed.
#[tokio::test(start_paused = true)]
async fn a_status_that_does_not_stand_is_not_pushed() {
    let world = world().await;
    world.sign_in(1, Platform::Ios, 11).await;
    let placed = world.place(1, 2, 1, "hello").await;
    world.faults.begin(STATUSES, Fault::Unavailable);
    let receipt = [receipt_of(2, ReceiptKind::Read, &[&placed])];
    world.acknowledge(&receipt).await;
    world.faults.end(STATUSES);
    sleep(Duration::from_secs(60)).await;
    assert_eq!(world.told(), []);
    assert_eq!(world.status_of(&placed).await, (false, false));
}

/// Faults of a store, and the refusals of the receipts that they hit.
const FAILURES: [(Fault, Code); 2] = [
    (Fault::Unavailable, Code::Unavailable),
    (Fault::Hang, Code::DeadlineExceeded),
];

/// Time for a call whose store does not answer for some.
const BOUND: Duration = STORE_DEADLINE.saturating_add(Duration::from_millis(100));

#[tokio::test(start_paused = true)]
async fn a_row_that_fails_refuses_the_receipts_of_its_owner_alone() {
    for (fault, code) in FAILURES {
        let world = world().await;
        let first = world.place(1, 2, 1, "hello").await;
        let second = world.place(1, 3, 1, "hello").await;
        let receipts = [
            receipt_of(2, ReceiptKind::Read, &[&first]),
            receipt_of(3, ReceiptKind::Received, &[&second]),
        ];
        let row = Calls::to("messages").named("places");
        let row = row.about(first.message.id.get());
        world.faults.begin(row, fault);
        let began = Instant::now();
        let answers = world.acknowledge(&receipts).await;
        assert!(began.elapsed() < BOUND, "{:?}", began.elapsed());
        assert_eq!(answers[0].refused[0].1.code, code);
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
    let damaged = world.placed(1, 2, 1, "hello");
    let well = world.place(1, 2, 2, "hello").await;
    let other = world.place(1, 3, 1, "hello").await;
    let id = damaged.message.id;
    let key = [2i64.to_be_bytes(), id.get().to_be_bytes()].concat();
    let mut batch = WriteBatch::new();
    batch.put(Table::Private, key, Bytes::from_static(b"\xffdamaged"));
    world.engine.write(batch).expect("written");
    let answers = world
        .acknowledge(&[
            receipt_of(2, ReceiptKind::Read, &[&damaged, &well]),
            receipt_of(3, ReceiptKind::Read, &[&other]),
        ])
        .await;
    assert_eq!(answers[0].ids, [well.message.id]);
    let refused = answers[0].refused.iter();
    let refused: Vec<_> = refused.map(|(id, refusal)| (*id, refusal.code)).collect();
    assert_eq!(refused, [(id, Code::NotFound)]);
    assert_eq!(answers[1].ids, [other.message.id]);
}

#[tokio::test(start_paused = true)]
async fn a_group_that_fails_refuses_the_receipts_there_alone() {
    for (fault, code) in FAILURES {
        let world = world().await;
        world.group_of(7, CLOSED, &[1, 2]).await;
        world.group_of(8, CLOSED, &[1, 3]).await;
        let first = world.say(7, 1, "hello").await;
        let second = world.say(8, 1, "hello").await;
        let at = Calls::to("messages").named("at").about(7);
        world.faults.begin(at, fault);
        let began = Instant::now();
        let answers = world
            .acknowledge(&[
                receipt_of(2, ReceiptKind::Received, &[&first]),
                receipt_of(3, ReceiptKind::Received, &[&second]),
            ])
            .await;
        assert!(began.elapsed() < BOUND, "{:?}", began.elapsed());
        assert_eq!(answers[0].refused[0].1.code, code);
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
            world.group_of(7, CLOSED, &[1, 2, 4]).await;
            world.group_of(8, CLOSED, &[1, 3]).await;
            let first = world.say(7, 1, "hello").await;
            let second = world.say(8, 1, "hello").await;
            let receipts = [(2, &first), (4, &first), (3, &second)];
            let ids = receipts.map(|(_, placed)| placed.message.id);
            let receipts =
                receipts.map(|(by, placed)| receipt_of(by, ReceiptKind::Received, &[placed]));
            let members = Calls::to("groups").named("members_of").about(about);
            world.faults.begin(members, fault);
            let began = Instant::now();
            let answers = world.acknowledge(&receipts).await;
            assert!(began.elapsed() < BOUND, "{:?}", began.elapsed());
            for ((answer, id), is_well) in answers.iter().zip(ids).zip(is_well) {
                match is_well {
                    true => assert_eq!(answer.ids, [id]),
                    false => assert_eq!(answer.refused[0].1.code, code),
                }
            }
            world.faults.end(members);
            sleep(MEMBER_BELIEVED_FOR).await;
            world.faults.calls("groups", "members_of");
            let answers = world.acknowledge(&receipts).await;
            for (answer, id) in answers.iter().zip(ids) {
                assert_eq!(answer.ids, [id]);
            }
            let asked = world.faults.calls("groups", "members_of");
            assert_eq!(asked, 1, "one for all");
        }
    }
}

// Sends are judged again by the writer, receipts by nobody. A user known to be no member is refused, too, though
// no store says whether there is a group.
#[tokio::test(start_paused = true)]
async fn a_stranger_acknowledges_nothing_while_the_store_does_not_answer() {
    let forbidden = Err(Code::Forbidden);
    for (fault, code) in FAILURES {
        for (question, refused, sent) in [
            ("members_of", code, Ok(())),
            ("present", Code::Forbidden, forbidden),
        ] {
            let world = world().await;
            world.group_of(7, CLOSED, &[1, 2]).await;
            let placed = world.say(7, 1, "hello").await;
            let question = Calls::to("groups").named(question);
            world.faults.begin(question, fault);
            world.faults.writes("conversations");
            for kind in [ReceiptKind::Received, ReceiptKind::Read] {
                let answers = world.acknowledge(&[receipt_of(3, kind, &[&placed])]).await;
                assert_eq!(answers[0].ids, []);
                assert_eq!(answers[0].refused[0].1.code, refused);
            }
            assert_eq!(world.faults.writes("conversations"), 0);
            let got = world.submit_one(item(3, to_group(7, 1, "hello"))).await;
            assert_eq!(got.map(drop), sent);
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
            let began = Instant::now();
            let answers = world
                .acknowledge(&[
                    receipt_of(2, kind, &[&first]),
                    receipt_of(3, kind, &[&second]),
                ])
                .await;
            assert!(began.elapsed() < BOUND, "{:?}", began.elapsed());
            assert_eq!(answers[0].refused[0].1.code, code, "{number}");
            assert_eq!(answers[1].ids, [second.message.id], "{number}");
            assert_eq!(world.told().len(), 1, "{number}");
            world.faults.end(register);
        }
    }
}
