use std::time::Duration;

use protocol::change::{ChangeKind, ChangeOf, ChangeRequest, MessageChange, OrderedChange};
use protocol::frame::{
    ClientFrame, MessageStatus, PlacedEcho, ServerFrame, Summary, SyncAnswer, SyncQuery,
};
use protocol::message::Content;
use protocol::receipt::{Receipt, ReceiptKind};
use protocol::{Code, Message, Placed, Position, Seq};

use super::device::{
    Device, id, is_history, message, private_message, send_id, summary, to, user, with,
};
use crate::core::{CatchUp, Limits, Origin, SendError, SendStatus, Snapshot};

fn numbers(sends: &[protocol::frame::Send]) -> Vec<u8> {
    sends
        .iter()
        .map(|send| send.send_id.as_bytes()[0])
        .collect()
}

fn echo(device: &mut Device, number: u8, seq: u64) {
    device.hear(ServerFrame::Placed(PlacedEcho {
        send_id: send_id(number),
        id: id(number.into()),
        conversation: with(2),
        position: Position {
            seq: Seq(seq),
            prev: None,
        },
    }));
}

fn receipt(device: &mut Device, kind: ReceiptKind, number: u8, seq: u64) {
    device.hear(ServerFrame::Receipts(vec![Receipt {
        kind,
        conversation: with(2),
        id: id(number.into()),
        seq: Seq(seq),
        by: user(2),
        at: device.now,
    }]));
}

// proves S3-20, S3-21: resent after 1, 2 and 4 s with the same send_id, three times; then failed, and kept.
#[test]
fn unanswered_send_is_resent_after_1_2_and_4_s_then_fails() {
    let mut device = Device::ready();
    device.send(to(2), 1);
    let first = device.take_sends();
    assert_eq!((first.len(), first[0].attempt), (1, 0));
    let mut age = Duration::ZERO;
    for (attempt, seconds) in [(1, 1), (2, 2), (3, 4)] {
        device.wait(seconds * 1000 - 1);
        assert!(device.take_sends().is_empty(), "too early");
        device.wait(1);
        age += Duration::from_secs(seconds);
        let resent_sends = device.take_sends();
        assert_eq!(resent_sends.len(), 1);
        assert_eq!(resent_sends[0].send_id, first[0].send_id);
        assert_eq!(resent_sends[0].content, first[0].content);
        assert_eq!(
            (resent_sends[0].attempt, resent_sends[0].age),
            (attempt, age)
        );
        assert_eq!(device.send_status(1), Some(&SendStatus::Pending));
    }
    device.wait(10_000);
    assert!(device.take_sends().is_empty(), "three times at most");
    assert!(matches!(device.send_status(1), Some(SendStatus::Failed(_))));
    assert_eq!(device.snapshot.outbox.len(), 1, "kept for retry or give up");

    assert!(device.core.retry(send_id(1), device.now));
    device.drain();
    assert_eq!(numbers(&device.take_sends()), [1]);
    device.accept(1);
    assert_eq!(
        device.send_status(1),
        Some(&SendStatus::Accepted { id: id(1) })
    );
    assert!(device.snapshot.outbox.is_empty());
}

// proves S3-22: the answer to a resend is the answer to the send, once.
#[test]
fn a_resend_makes_no_second_message() {
    let mut device = Device::ready();
    device.send(to(2), 1);
    device.wait(1000);
    let sends = device.take_sends();
    assert_eq!(numbers(&sends), [1, 1]);
    device.accept(1);
    device.accept(1);
    device.wait(60_000);
    assert!(device.take_sends().is_empty());
    let is_accepted =
        |(_, status): &&(_, SendStatus)| matches!(status, SendStatus::Accepted { .. });
    assert_eq!(device.statuses.iter().filter(is_accepted).count(), 1);
}

/// Sends it and answers after this time; returns how often it was sent.
fn sent_and_answered_after(device: &mut Device, number: u8, wait: Duration) -> usize {
    device.send(to(2), number);
    device.wait(wait.as_millis() as u64);
    let sends = device.take_sends();
    assert!(sends.iter().all(|send| send.send_id == send_id(number)));
    device.accept(number);
    sends.len()
}

// The answer would be no earlier for it, and a slow line no less busy.
#[test]
fn a_send_over_a_line_of_ten_seconds_is_sent_once() {
    let slow = Duration::from_secs(10);
    let mut device = Device::new();
    device.core.handle_connected(device.now);
    device.drain();
    device.wait(10_000);
    device.sign_in_again();
    device.list(Vec::new());
    for number in 1..=5 {
        assert_eq!(
            sent_and_answered_after(&mut device, number, slow),
            1,
            "{number}"
        );
    }

    // A line that becomes slow later is found out by its first answer.
    let mut device = Device::ready();
    let quick = Duration::from_millis(100);
    assert_eq!(sent_and_answered_after(&mut device, 1, quick), 1);
    assert_eq!(sent_and_answered_after(&mut device, 2, slow), 4);
    assert_eq!(sent_and_answered_after(&mut device, 3, slow), 1);

    // And one that becomes quick again, by some of them.
    for number in 4..24 {
        assert_eq!(sent_and_answered_after(&mut device, number, quick), 1);
    }
    device.send(to(2), 24);
    device.wait(2000);
    assert_eq!(device.take_sends().len(), 2, "lost");

    // The next connection has a line of its own.
    device.accept(24);
    assert_eq!(sent_and_answered_after(&mut device, 25, slow), 3);
    device.reconnect();
    device.send(to(2), 26);
    device.wait(1000);
    assert_eq!(numbers(&device.take_sends()), [26, 26]);
}

#[test]
fn a_retry_after_minutes_says_nothing_of_the_line() {
    let mut device = Device::ready();
    device.send(to(2), 1);
    device.wait(20_000);
    assert!(matches!(device.send_status(1), Some(SendStatus::Failed(_))));
    device.wait_live(300_000);
    assert!(device.core.retry(send_id(1), device.now));
    device.drain();
    device.accept(1);
    device.take_sends();
    device.send(to(2), 2);
    device.wait(1000);
    assert_eq!(numbers(&device.take_sends()), [2, 2]);
}

#[test]
fn send_is_transmitted_only_once_stored() {
    let mut device = Device::ready();
    device.stores = false;
    device.send(to(2), 1);
    assert!(device.take_sends().is_empty());
    device.store();
    assert_eq!(numbers(&device.take_sends()), [1]);
}

// proves S3-20: the outbox survives a restart, in order, and says that it may have been tried.
#[test]
fn the_outbox_survives_a_restart() {
    let mut device = Device::ready();
    for number in 1..=3 {
        device.send(to(2), number);
    }
    device.accept(1);
    device.now = device.now + Duration::from_secs(5);
    device.crash();
    assert_eq!(device.send_status(2), Some(&SendStatus::Pending));
    device.sign_in();
    let sends = device.take_sends();
    assert_eq!(numbers(&sends), [2, 3]);
    assert!(sends.iter().all(|send| send.attempt > 0));
    assert_eq!(sends[0].age, Duration::from_secs(5));
}

#[test]
fn failed_send_survives_restart_and_blocks_its_conversation() {
    let mut device = Device::ready();
    device.send(to(2), 1);
    device.wait(60_000);
    device.crash();
    assert!(matches!(device.send_status(1), Some(SendStatus::Failed(_))));
    device.sign_in();
    device.send(to(2), 2);
    device.send(to(3), 3);
    assert_eq!(numbers(&device.take_sends()), [3]);
    assert!(device.core.give_up(send_id(1), device.now));
    device.drain();
    assert_eq!(numbers(&device.take_sends()), [2]);
    assert!(!device.snapshot.outbox.contains_key(&1));
}

#[test]
fn the_window_is_kept_and_filled_in_order() {
    let mut device = Device::new();
    device.sign_in_to(7, 2);
    for number in 1..=5 {
        device.send(to(2), number);
    }
    assert_eq!(numbers(&device.take_sends()), [1, 2]);
    device.accept(1);
    assert_eq!(numbers(&device.take_sends()), [3]);
    device.accept(2);
    device.accept(3);
    assert_eq!(numbers(&device.take_sends()), [4, 5]);
}

// proves S3-20: unanswered sends are resent in order after a reconnect.
#[test]
fn sends_in_flight_are_resent_in_order_after_a_reconnect() {
    let mut device = Device::ready();
    for number in 1..=3 {
        device.send(to(2), number);
    }
    device.accept(2);
    device.take_sent();
    device.reconnect();
    let sends = device.take_sends();
    assert_eq!(numbers(&sends), [1, 3]);
    assert!(sends.iter().all(|send| send.attempt == 1));
}

#[test]
fn refusal_resends_its_conversation_in_order_and_no_others() {
    let mut device = Device::ready();
    for number in 1..=3 {
        device.send(to(2), number);
    }
    device.take_sent();
    device.refuse(1, Code::Unavailable);
    device.refuse(2, Code::EarlierSendFailed);
    device.refuse(3, Code::EarlierSendFailed);
    device.send(to(2), 4);
    device.send(to(3), 5);
    assert_eq!(numbers(&device.take_sends()), [5]);
    device.accept(5);
    device.wait(1000);
    assert_eq!(numbers(&device.take_sends()), [1, 2, 3, 4]);
}

#[test]
fn a_hint_says_when_to_come_again() {
    let mut device = Device::ready();
    device.send(to(2), 1);
    device.take_sent();
    let refusal = protocol::Refusal::new(Code::RateLimited, "slowly");
    device.hear(ServerFrame::Refused {
        send_id: send_id(1),
        refusal: refusal.retry_after(Duration::from_secs(7)),
    });
    device.wait(6999);
    assert!(device.take_sends().is_empty());
    device.wait(1);
    assert_eq!(numbers(&device.take_sends()), [1]);
}

// proves S3-21: a definite no is told at once, kept, and what follows it goes on.
#[test]
fn unacceptable_send_fails_at_once_and_blocks_nothing() {
    let mut device = Device::ready();
    device.send(to(2), 1);
    device.refuse(1, Code::Forbidden);
    assert!(
        matches!(device.send_status(1), Some(SendStatus::Failed(why)) if why.code == Code::Forbidden)
    );
    device.take_sent();
    device.send(to(2), 2);
    assert_eq!(numbers(&device.take_sends()), [2]);
    // Larger than a frame: the server would end the connection.
    let huge = Content::text("x".repeat(64 * 1024));
    let outcome = device.core.send(send_id(3), to(2), huge, device.now);
    outcome.expect("taken");
    device.drain();
    assert!(
        matches!(device.send_status(3), Some(SendStatus::Failed(why)) if why.code == Code::TooLarge)
    );
    assert!(device.take_sends().is_empty());
}

/// The carrier's writer refuses a send that the station accepted, and is heard first.
#[test]
fn a_last_word_that_overtakes_accepted_stays_the_last() {
    let mut device = Device::ready();
    device.send(to(2), 1);
    device.refuse(1, Code::Forbidden);
    device.accept(1);
    let status = device.send_status(1);
    assert!(
        matches!(&status, Some(SendStatus::Failed(why)) if why.code == Code::Forbidden),
        "{status:?}"
    );
    // Retried, it is a send like any other.
    assert!(device.core.retry(send_id(1), device.now));
    device.drain();
    assert_eq!(numbers(&device.take_sends()), [1, 1]);
    device.accept(1);
    assert!(matches!(
        device.send_status(1),
        Some(SendStatus::Accepted { .. })
    ));
}

#[test]
fn a_full_outbox_refuses() {
    let limits = Limits {
        outbox_max: 2,
        ..Limits::default()
    };
    let mut device = Device::with(CatchUp::Everything, limits, Snapshot::default());
    device.send(to(2), 1);
    device.send(to(2), 2);
    let third = device
        .core
        .send(send_id(3), to(2), Content::text("x"), device.now);
    assert_eq!(third, Err(SendError::OutboxFull(2)));
}

// proves S3-10, S3-16, S3-17 in part: accepted, placed, delivered, read; whatever comes late changes nothing.
#[test]
fn the_status_only_moves_forward() {
    let mut device = Device::ready();
    device.send(to(2), 1);
    device.accept(1);
    echo(&mut device, 1, 1);
    receipt(&mut device, ReceiptKind::Received, 1, 1);
    receipt(&mut device, ReceiptKind::Received, 1, 1);
    echo(&mut device, 1, 1);
    receipt(&mut device, ReceiptKind::Read, 1, 1);
    device.accept(1);
    let ranks: Vec<u8> = device
        .statuses
        .iter()
        .map(|(_, status)| status.rank())
        .collect();
    assert_eq!(ranks, [0, 2, 3, 4, 5]);
}

// The echo was lost, and the message was read soon: its own device shows it all the same.
#[test]
fn a_receipt_tells_of_a_place_that_no_echo_told() {
    let mut device = Device::ready();
    device.send(to(2), 1);
    device.accept(1);
    device.take_sent();
    receipt(&mut device, ReceiptKind::Read, 1, 1);
    let own = Placed {
        message: Message {
            id: id(1),
            ..private_message(2, 1, "phone", 1).message
        },
        ..private_message(2, 1, "phone", 1)
    };
    device.row(None);
    let request = device.question(|query| matches!(query, SyncQuery::History { .. }));
    device.history(request, vec![own], 1);
    assert_eq!(device.take_shown(), [1]);
}

// The boat holds back sends behind a refused one, even if the refused change was reported done
// before a resend.
#[test]
fn a_change_that_is_done_after_a_refusal_is_not_waited_for() {
    let mut device = Device::ready();
    device.push(message(1));
    let recall = Content {
        change: Some(Box::new(ChangeOf {
            subject: Some(id(101)),
            kind: ChangeKind::Recall,
        })),
        ..Content::text("")
    };
    let outcome = device.core.send(send_id(1), to(2), recall, device.now);
    assert_eq!(outcome, Ok(()));
    device.drain();
    device.refuse(1, Code::Unavailable);
    device.take_sent();
    device.hear(ServerFrame::Changed {
        conversation: with(2),
        changed: OrderedChange {
            rev: 1,
            seq: Seq(1),
            asked: ChangeRequest {
                id: id(7),
                send_id: send_id(1),
                subject: id(101),
                by: user(1),
                at: device.now,
                change: MessageChange::Recall,
            },
        },
    });
    assert_eq!(device.take_sent(), [ClientFrame::GiveUp(send_id(1))]);
}

#[test]
fn a_read_of_a_later_message_reads_those_before() {
    let mut device = Device::ready();
    for number in 1..=2 {
        device.send(to(2), number);
        device.accept(number);
        echo(&mut device, number, number.into());
    }
    receipt(&mut device, ReceiptKind::Read, 2, 2);
    assert_eq!(device.send_status(1), Some(&SendStatus::Read { id: id(1) }));
    assert_eq!(device.send_status(2), Some(&SendStatus::Read { id: id(2) }));
}

// proves S3-18: receipts that were missed are learnt by query.
#[test]
fn missed_receipts_are_asked_for_after_a_reconnect() {
    let mut device = Device::ready();
    device.send(to(2), 1);
    device.accept(1);
    echo(&mut device, 1, 1);
    device.reconnect();
    let ids = vec![id(1)];
    let request = device.question(|query| *query == SyncQuery::Status { ids: ids.clone() });
    let status = MessageStatus {
        id: id(1),
        delivered_at: Some(device.now),
        read_at: None,
        is_finished: false,
    };
    device.answer(request, SyncAnswer::Status(vec![status]));
    assert_eq!(
        device.send_status(1),
        Some(&SendStatus::Delivered { id: id(1) })
    );
}

// A station whose clock was ahead answers with a list that hides what is written until then.
#[test]
fn a_send_that_no_list_shows_is_looked_for_after_a_reconnect() {
    let mut device = Device::ready();
    device.send(to(2), 1);
    device.accept(1);
    echo(&mut device, 1, 1);
    device.send(to(2), 2);
    device.accept(2);
    device.reconnect();
    device.list(Vec::new());
    device.row(Some(summary(2, 1)));
    device.take_sent();
    device.take_shown();
    device.wait_live(9_000);
    assert_eq!(device.find_question(is_history), None);
    device.wait_live(1_000);
    let request = device.question(is_history);
    device.history(request, vec![message(2)], 2);
    assert_eq!(device.take_shown(), [2]);
}

// A boat without room for its pushes sends a resync.
#[test]
fn missed_receipts_are_asked_for_after_a_resync() {
    let mut device = Device::ready();
    device.send(to(2), 1);
    device.accept(1);
    echo(&mut device, 1, 1);
    device.hear(ServerFrame::Resync);
    device.question(|query| *query == SyncQuery::Status { ids: vec![id(1)] });
}

#[test]
fn own_messages_are_shown_in_their_place() {
    let mut device = Device::ready();
    device.send(to(2), 1);
    device.accept(1);
    assert!(device.shown_messages.is_empty());
    echo(&mut device, 1, 1);
    assert_eq!(device.shown_messages[0].origin, Origin::OwnHere);
    assert_eq!(
        device.shown_messages[0].placed.message.content,
        Content::text("send 1")
    );
    let mut answer = message(2);
    answer.position.prev = Some(id(1));
    device.push(answer);
    assert_eq!(device.take_shown(), [1, 2]);
    assert!(device.actions.is_empty());
}

// A lost echo costs nothing: the conversation is checked if the position does not come.
#[test]
fn a_lost_echo_is_made_up_for() {
    let mut device = Device::ready();
    device.send(to(2), 1);
    device.accept(1);
    device.wait(10_000);
    device.row(None);
    let request = device.question(|query| matches!(query, SyncQuery::History { .. }));
    let mut own = super::device::private_message(2, 1, "here", 1);
    own.message.send_id = send_id(1);
    own.message.id = id(1);
    device.history(request, vec![own], 1);
    let expected = SendStatus::Placed {
        id: id(1),
        seq: Seq(1),
    };
    assert_eq!(device.send_status(1), Some(&expected));
    assert_eq!(device.take_shown(), [1]);
}

#[test]
fn sends_keep_below_the_rate() {
    let limits = Limits {
        sends_per_second: 3,
        ..Limits::default()
    };
    let mut device = Device::with(CatchUp::Everything, limits, Snapshot::default());
    device.sign_in();
    for number in 1..=5 {
        device.send(to(2), number);
    }
    assert_eq!(numbers(&device.take_sends()), [1, 2, 3]);
    device.wait(999);
    assert!(device.take_sends().is_empty());
    device.wait(1);
    assert_eq!(
        numbers(&device.take_sends()),
        [1, 2, 3],
        "what has no answer goes first"
    );
    device.wait(1000);
    assert_eq!(numbers(&device.take_sends()), [4, 5]);
}

/// Seed 8584: the message had its position long before the resend was answered, and somebody had
/// reacted to it. The list says that there is a change, which counts as known, since fetched
/// messages carry it; the position alone would not.
#[test]
fn an_own_message_that_may_have_changed_meanwhile_is_fetched() {
    let mut device = Device::new();
    device.send(to(2), 1);
    device.sign_in();
    let own = Placed {
        message: Message {
            send_id: send_id(1),
            id: id(1),
            ..private_message(2, 1, "here", 1).message
        },
        ..private_message(2, 1, "here", 1)
    };
    device.list(vec![Summary {
        rev: 1,
        ..summary(2, 2)
    }]);
    device.accept(1);
    echo(&mut device, 1, 1);
    assert!(device.take_shown().is_empty());
    device.wait(1000);
    let request = device.question(|query| matches!(query, SyncQuery::History { .. }));
    device.history(request, vec![own, message(2)], 2);
    assert_eq!(device.take_shown(), [1, 2]);
}

/// Seed 11205: the list with a change was stored, and the program died before it requested the
/// change.
#[test]
fn change_named_by_the_stored_list_is_queried_after_restart() {
    let mut device = Device::ready();
    device.push(message(1));
    device.row(Some(summary(2, 1)));
    device.reconnect();
    device.list(vec![Summary {
        rev: 1,
        ..summary(2, 1)
    }]);
    let asks = |device: &mut Device| {
        let frames = device.take_sent().into_iter();
        let mut questions = frames.filter_map(|frame| match frame {
            ClientFrame::Sync(request) => Some(request.query),
            _ => None,
        });
        questions.any(|query| matches!(query, SyncQuery::Changes { after: 0, .. }))
    };
    device.wait(1000);
    assert!(asks(&mut device));
    device.crash();
    device.sign_in();
    device.list(Vec::new());
    device.wait(1000);
    assert!(asks(&mut device));
}
