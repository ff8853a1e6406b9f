use std::time::Duration;

use api::codec::decode_server;
use api::v1;
use prost::Message as _;
use prost::encoding::{WireType, encode_key, encode_varint};
use protocol::change::{ChangeRequest, MessageChange, MessageMarks, OrderedChange};
use protocol::frame::{
    Ack, AckItem, Acked, ClientFrame, HistoryRange, ServerFrame, Summary, SyncAnswer, SyncQuery,
};
use protocol::loaded_ranges::OlderRange;
use protocol::receipt::{Receipt, ReceiptKind};
use protocol::{Code, Platform, Refusal, Seq};

use super::device::{
    Device, id, is_history, message, private_message, send_id, summary, user, with,
};
use super::world::START;
use crate::core::{
    Action, CatchUp, ConversationProgress, Cursor, Event, Limits, Origin, Reset, Settings, Snapshot,
};

fn asks_history(device: &mut Device) -> Vec<HistoryRange> {
    (device.take_sent().into_iter())
        .filter_map(|frame| match frame {
            ClientFrame::Sync(request) => Some(request.query),
            _ => None,
        })
        .filter_map(|query| match query {
            SyncQuery::History { range, .. } => Some(range),
            _ => None,
        })
        .collect()
}

fn forward(after_seq: u64) -> HistoryRange {
    HistoryRange::Forward {
        after: Seq(after_seq),
    }
}

/// A device that has seen the conversation with 2 up to `seq`, at `START`.
fn seen(seq: u64) -> Snapshot {
    let mut snapshot = Snapshot {
        list_version: START,
        ..Snapshot::default()
    };
    let progress = ConversationProgress {
        cursor: Cursor {
            seq: Seq(seq),
            id: Some(id(100 + seq)),
            at: START,
        },
        known_seq: Seq(seq),
        ..ConversationProgress::default()
    };
    snapshot.conversations.insert(with(2), progress);
    snapshot
}

// proves S2-05 in part, S2-06, S2-08 in part: the first has no predecessor, the next joins it: nothing is asked.
#[test]
fn contiguous_messages_ask_nothing() {
    let mut device = Device::ready();
    device.take_sent();
    for seq in 1..=3 {
        device.push(message(seq));
    }
    assert!(asks_history(&mut device).is_empty());
    assert_eq!(device.take_shown(), [1, 2, 3]);
}

// proves S2-04 in part, S2-07 in part: what is missing is fetched, page after page, and all is shown in order.
#[test]
fn a_gap_is_fetched() {
    let mut device = Device::ready();
    device.push(message(1));
    device.row(None);
    device.take_sent();
    device.push(message(5));
    assert_eq!(device.take_shown(), [1]);
    assert_eq!(asks_history(&mut device), [forward(1)]);
    device.push(message(6));
    assert!(
        asks_history(&mut device).is_empty(),
        "one question is enough"
    );
    let request = 3;
    device.history(request, vec![message(2), message(3)], 6);
    assert_eq!(device.take_shown(), [2, 3]);
    assert_eq!(asks_history(&mut device), [forward(3)]);
    device.history(4, vec![message(4), message(5)], 6);
    assert_eq!(device.take_shown(), [4, 5, 6]);
    assert!(asks_history(&mut device).is_empty());
}

// proves S2-06, S2-07 in part, S2-08: the place after the last one continues and any other is a hole, whatever the message
// says of the one before it.
#[test]
fn only_a_hole_in_positions_asks() {
    let follows = |seq, prev: Option<u64>| {
        let mut entry = message(seq);
        entry.position.prev = prev.map(id);
        entry
    };
    let mut device = Device::ready();
    device.push(message(1));
    device.row(None);
    device.take_sent();
    for entry in [follows(2, None), follows(3, Some(999)), follows(2, None)] {
        device.push(entry);
        assert_eq!(asks_history(&mut device), []);
    }
    assert_eq!(device.take_shown(), [1, 2, 3]);
    device.push(follows(5, Some(103)));
    assert_eq!(device.take_shown(), [0u64; 0]);
    assert_eq!(asks_history(&mut device), [forward(3)]);
}

// proves S2-05: position 1 is the first. A message at any other place follows something, though it names nothing.
#[test]
fn only_the_first_position_begins_a_conversation() {
    for (seq, asked) in [(1, vec![]), (2, vec![forward(0)])] {
        let mut device = Device::ready();
        device.take_sent();
        let mut entry = message(seq);
        entry.position.prev = None;
        device.push(entry);
        device.row(None);
        assert_eq!(asks_history(&mut device), asked, "from {seq}");
        assert_eq!(device.take_shown().len(), usize::from(asked.is_empty()));
    }
}

// proves S3-19: what the first device has read comes to the second one, which asks from behind its own last and from nowhere
// else: what it has is not sent again.
#[test]
fn fetch_starts_at_own_cursor_not_at_another_devices_read() {
    let mut device = Device::with(CatchUp::Everything, Limits::default(), seen(3));
    device.sign_in();
    device.list(vec![Summary {
        read_seq: Seq(5),
        unread: 0,
        ..summary(2, 5)
    }]);
    assert_eq!(asks_history(&mut device), [forward(3)]);
    device.history(2, vec![message(4), message(5)], 5);
    assert_eq!(device.take_shown(), [4, 5]);
    device.reconnect();
    device.list(Vec::new());
    assert_eq!(asks_history(&mut device), []);
}

// proves S3-07, S3-14: acknowledged after the store; a crash before it brings the message again.
#[test]
fn crash_before_the_store_shows_again_and_sent_no_ack() {
    let mut device = Device::ready();
    device.take_sent();
    device.stores = false;
    device.push(message(1));
    assert_eq!(device.take_shown(), [1]);
    assert!(device.take_acked().is_empty());
    device.crash();
    device.sign_in();
    device.list(vec![]);
    device.take_sent();
    device.push(message(1));
    assert_eq!(device.take_shown(), [1]);
    assert_eq!(device.take_acked(), [1]);
    device.crash();
    device.sign_in();
    device.list(vec![]);
    device.take_sent();
    device.push(message(1));
    assert!(device.take_shown().is_empty(), "stored, so shown once");
    assert_eq!(device.take_acked(), [1], "but acknowledged again");
}

#[test]
fn acknowledgement_waits_for_the_application() {
    let mut device = Device::ready();
    device.take_sent();
    device.takes = false;
    device.push(message(1));
    device.push(message(2));
    assert!(device.take_acked().is_empty());
    assert!(!device.snapshot.conversations.contains_key(&with(2)));
    device.core.handle_taken(1, device.now);
    device.drain();
    assert_eq!(device.take_acked(), [1]);
    assert_eq!(device.snapshot.conversations[&with(2)].cursor.seq, Seq(1));
}

#[test]
fn slow_application_gets_what_it_can_take_then_the_rest() {
    let limits = Limits {
        untaken_max: 2,
        held_max: 1,
        ..Limits::default()
    };
    let mut device = Device::with(CatchUp::Everything, limits, Snapshot::default());
    device.sign_in();
    device.list(vec![]);
    device.takes = false;
    for seq in 1..=6 {
        device.push(message(seq));
    }
    assert_eq!(device.take_shown(), [1, 2]);
    device.row(None);
    device.take_sent();
    device.core.handle_taken(2, device.now);
    device.drain();
    assert_eq!(device.take_shown(), [3], "it was held");
    device.takes = true;
    device.core.handle_taken(3, device.now);
    device.drain();
    let request = device.question(is_history);
    device.history(request, (4..=5).map(message).collect(), 6);
    let request = device.question(is_history);
    device.history(request, vec![message(6)], 6);
    assert_eq!(device.take_shown(), [4, 5, 6]);
}

// proves S3-07: the same message twice is shown once, and acknowledged both times.
#[test]
fn repeats_are_acknowledged_but_not_shown() {
    let mut device = Device::ready();
    device.push(message(1));
    device.take_sent();
    device.push(message(1));
    assert_eq!(device.take_shown(), [1]);
    assert_eq!(device.take_acked(), [1]);
}

#[test]
fn one_send_in_two_places_is_shown_once() {
    let mut device = Device::ready();
    device.push(message(1));
    let mut copy = message(2);
    copy.message.send_id = message(1).message.send_id;
    device.push(copy);
    device.push(message(3));
    assert_eq!(device.take_shown(), [1, 3]);
    assert_eq!(device.snapshot.conversations[&with(2)].cursor.seq, Seq(3));
}

#[test]
fn acks_are_batched_and_repeated_until_confirmed() {
    let mut device = Device::ready();
    device.stores = false;
    for seq in 1..=3 {
        device.push(message(seq));
    }
    device.take_sent();
    device.stores = true;
    device.store();
    let acks: Vec<usize> = (device.take_sent().iter())
        .filter_map(|frame| match frame {
            ClientFrame::Ack(ack) => Some(ack.items.len()),
            _ => None,
        })
        .collect();
    assert!(
        acks.iter().sum::<usize>() == 3 && acks.len() <= 2,
        "{acks:?}"
    );
    device.wait(5000);
    assert_eq!(device.take_acked(), [1, 2, 3], "not confirmed");
    device.hear(ServerFrame::Acked(Acked {
        kind: ReceiptKind::Received,
        ids: vec![id(101), id(102)],
        refusals: vec![(id(103), Refusal::new(Code::NotFound, "never sent"))],
    }));
    device.wait(20_000);
    assert!(device.take_acked().is_empty());
    assert!(device.core.is_flushed());
}

// proves S3-10: read is another receipt than received; it survives a restart until it is recorded.
#[test]
fn a_read_is_told_until_the_server_has_recorded_it() {
    let mut device = Device::ready();
    device.push(message(1));
    device.push(message(2));
    device.take_sent();
    device.core.read(with(2), Seq(2), id(102), device.now);
    device.core.read(with(2), Seq(1), id(101), device.now);
    device.drain();
    let reads = |device: &mut Device| -> Vec<u64> {
        (device.take_sent().into_iter())
            .filter_map(|frame| match frame {
                ClientFrame::Ack(ack) if ack.kind == ReceiptKind::Read => Some(ack.items[0].seq.0),
                _ => None,
            })
            .collect()
    };
    assert_eq!(reads(&mut device), [2], "forward only");
    device.crash();
    device.sign_in();
    assert_eq!(reads(&mut device), [2]);
    device.hear(ServerFrame::Acked(Acked {
        kind: ReceiptKind::Read,
        ids: vec![id(102)],
        refusals: vec![],
    }));
    device.crash();
    device.sign_in();
    assert!(reads(&mut device).is_empty());
}

// A machine that died may have lost a read it confirmed: the client sends it again.
#[test]
fn a_read_that_the_server_forgot_is_told_again() {
    let mut device = Device::ready();
    device.push(message(1));
    device.core.read(with(2), Seq(1), id(101), device.now);
    device.drain();
    let frame = ServerFrame::Acked(Acked {
        kind: ReceiptKind::Read,
        ids: vec![id(101)],
        refusals: vec![],
    });
    device.hear(frame);
    device.take_sent();
    device.hear(ServerFrame::Resync);
    device.list(vec![summary(2, 1)]);
    let read = Ack {
        kind: ReceiptKind::Read,
        items: vec![AckItem {
            conversation: with(2),
            id: id(101),
            seq: Seq(1),
        }],
    };
    assert!(device.take_sent().contains(&ClientFrame::Ack(read)));
}

#[test]
fn own_messages_of_other_devices_are_marked_and_acknowledged() {
    let mut device = Device::ready();
    device.take_sent();
    device.push(private_message(2, 1, "elsewhere", 1));
    assert_eq!(device.shown_messages[0].origin, Origin::OwnElsewhere);
    assert_eq!(device.take_acked(), [1]);
}

// proves S0-16, S0-17, S0-20: up to the last moment of a day;
// on a phone, after signing in, what came since the newest local message is loaded forward.
#[test]
fn a_short_absence_is_caught_up_forward() {
    let mut device = Device::with(CatchUp::Recent(10), Limits::default(), seen(3));
    device.now = START + Duration::from_millis(24 * 3600 * 1000 - 1);
    device.sign_in();
    let list = |query: &SyncQuery| {
        *query
            == SyncQuery::List {
                since: START,
                cursor: None,
            }
    };
    device.question(list);
    device.take_sent().clear();
    device.answer(1, list_page(vec![summary(2, 50)], device.now));
    assert_eq!(asks_history(&mut device), [forward(3)]);
    device.history(2, (4..=50).map(message).collect(), 50);
    assert_eq!(device.take_shown(), (4..=50).collect::<Vec<_>>());
    assert!(device.is_ready());
}

// proves S0-64: what a sync brought is acknowledged, as what was pushed is.
#[test]
fn missed_messages_are_acknowledged() {
    let mut device = Device::with(CatchUp::Everything, Limits::default(), seen(3));
    device.sign_in();
    device.list(vec![summary(2, 9)]);
    let request = device.question(is_history);
    device.take_sent();
    device.history(request, (4..=9).map(message).collect(), 9);
    assert_eq!(device.take_shown(), (4..=9).collect::<Vec<_>>());
    assert_eq!(device.take_acked(), (4..=9).collect::<Vec<_>>());
}

// proves S4-01: the first question of each connection is for the list, and nothing is shown as caught up
// before its answer.
// proves S0-64 in part
#[test]
fn each_sign_in_asks_for_the_list_first() {
    let mut device = Device::new();
    for _ in 0..2 {
        device.take_sent();
        device.sign_in();
        let first = device
            .take_sent()
            .into_iter()
            .find_map(|frame| match frame {
                ClientFrame::Sync(request) => Some(request),
                _ => None,
            });
        let first = first.expect("a question");
        assert!(matches!(first.query, SyncQuery::List { .. }), "{first:?}");
        assert!(!device.is_ready());
        let page = list_page(Vec::new(), device.now);
        device.answer(first.request, page);
        assert!(device.is_ready());
        device.lose(0);
        device.wait(0);
    }
}

fn list_page(
    conversations: Vec<protocol::frame::Summary>,
    version: protocol::Timestamp,
) -> SyncAnswer {
    SyncAnswer::List(protocol::frame::ListPage {
        conversations,
        version,
        more: false,
    })
}

// proves S0-18 in part, S0-19 in part, S0-22 in part:
// after a day or more the newest are loaded backward; the rest is told as a
// gap and loaded on demand.
#[test]
fn a_long_absence_is_caught_up_backward() {
    let mut device = Device::with(CatchUp::Recent(2), Limits::default(), seen(3));
    device.now = START + Duration::from_secs(24 * 3600);
    device.sign_in();
    device.list(vec![summary(2, 9)]);
    let request = device.question(|query| {
        matches!(
            query,
            SyncQuery::History {
                range: HistoryRange::Backward { before: None },
                limit: 2,
                ..
            }
        )
    });
    device.push(message(10));
    device.history(request, vec![message(9), message(8)], 9);
    assert_eq!(device.take_shown(), [8, 9, 10]);
    let gap = Event::Gap {
        number: None,
        conversation: with(2),
        from: Seq(4),
        to: Seq(7),
    };
    assert_eq!(device.actions, [Action::Event(gap)]);

    let request = device.core.load_older(with(2), Some(Seq(8)), 2, device.now);
    device.drain();
    device.history(request, vec![message(7), message(6)], 9);
    assert!(
        matches!(&device.actions[1], Action::Older { request: of, answer: Ok(page) }
        if *of == request && page.messages.len() == 2)
    );
    assert!(
        device.shown_messages.is_empty(),
        "what is loaded on demand is not shown by itself"
    );
}

// Messages left out are not loaded after a restart, even if the application never took the gap.
#[test]
fn skipped_messages_stay_skipped_after_a_restart() {
    let mut device = Device::with(CatchUp::Recent(2), Limits::default(), seen(3));
    device.takes = false;
    device.now = START + Duration::from_secs(24 * 3600);
    device.sign_in();
    device.list(vec![summary(2, 9)]);
    let request = device.question(is_history);
    device.history(request, vec![message(9), message(8)], 9);
    assert_eq!(device.take_shown(), [8, 9]);
    let (snapshot, now) = (device.snapshot.clone(), device.now);
    device = Device::with(CatchUp::Recent(2), Limits::default(), snapshot);
    device.now = now;
    device.sign_in();
    device.list(vec![]);
    let request = device.question(is_history);
    assert_eq!(asks_history(&mut device), [forward(7)]);
    device.history(request, vec![message(8), message(9)], 9);
    assert_eq!(device.take_shown(), [8, 9], "they were not taken");
}

// With no more missing than is to be shown, messages are loaded forward however long the absence.
#[test]
fn a_little_that_was_missed_long_ago_is_loaded_forward() {
    let mut device = Device::with(CatchUp::Recent(5), Limits::default(), seen(3));
    device.now = START + Duration::from_secs(48 * 3600);
    device.sign_in();
    device.list(vec![summary(2, 6)]);
    let request = device.question(is_history);
    assert_eq!(asks_history(&mut device), [forward(3)]);
    device.history(request, (4..=6).map(message).collect(), 6);
    assert_eq!(device.take_shown(), [4, 5, 6]);
    assert!(device.actions.is_empty(), "no gap");
}

// proves S0-23: a new device of an existing user loads the newest backward and knows what it left out.
#[test]
fn a_fresh_device_begins_with_the_newest_or_with_the_first() {
    let mut device = Device::with(CatchUp::Recent(1), Limits::default(), Snapshot::default());
    device.sign_in();
    device.push(private_message(3, 3, "far", 1));
    assert!(device.shown_messages.is_empty(), "the list decides");
    device.list(vec![summary(2, 9)]);
    let request = device.question(is_history);
    device.history(request, vec![message(9)], 9);
    assert_eq!(device.take_shown(), [1, 9]);
    assert_eq!(device.actions.len(), 1);

    let mut device = Device::ready();
    device.reconnect();
    device.list(vec![summary(2, 2)]);
    let request = device.question(is_history);
    device.history(request, vec![message(1), message(2)], 2);
    assert_eq!(device.take_shown(), [1, 2]);
}

#[test]
fn from_now_on_shows_what_was_pushed_since_the_connection() {
    let mut device = Device::with(CatchUp::Recent(0), Limits::default(), Snapshot::default());
    device.sign_in();
    device.push(message(9));
    device.list(vec![summary(2, 9)]);
    device.push(message(10));
    assert_eq!(device.take_shown(), [9, 10]);
    assert_eq!(device.snapshot.conversations[&with(2)].cursor.seq, Seq(10));
}

#[test]
fn list_is_paged_and_its_version_stored_at_the_end() {
    let mut device = Device::new();
    device.sign_in();
    let mut page = protocol::frame::ListPage {
        conversations: vec![summary(2, 0)],
        version: START + Duration::from_secs(1),
        more: true,
    };
    device.answer(1, SyncAnswer::List(page.clone()));
    assert_eq!(device.snapshot.list_version.millis(), 0);
    let cursor = Some(with(2));
    let request =
        device.question(|query| matches!(query, SyncQuery::List { cursor: a, .. } if *a == cursor));
    page.more = false;
    page.version = START + Duration::from_secs(2);
    device.answer(request, SyncAnswer::List(page));
    assert_eq!(
        device.snapshot.list_version,
        START + Duration::from_secs(1),
        "the earliest is safe"
    );
    assert!(device.is_ready());
}

/// Read of another device of the user, in the conversation with user 2.
fn read_elsewhere(seq: u64) -> ServerFrame {
    ServerFrame::Receipts(vec![Receipt {
        kind: ReceiptKind::Read,
        conversation: with(2),
        id: id(seq),
        seq: Seq(seq),
        by: user(1),
        at: START,
    }])
}

/// Row of three messages of user 2.
fn three_message_row(read_seq: u64, unread: u64) -> Summary {
    Summary {
        read_seq: Seq(read_seq),
        unread,
        ..summary(2, 3)
    }
}

/// Read position and unread count of the conversation with user 2.
fn read_and_unread(device: &Device) -> (u64, u64) {
    let row = device.core.list().find(|row| row.conversation == with(2));
    let row = row.expect("a row");
    (row.read_seq.0, row.unread)
}

// Seed 922 of the simulation of whole systems: the server read the list, another device read the
// conversation, and the receipt overtook the list.
#[test]
fn a_read_from_before_the_list_is_in_it() {
    let mut device = Device::new();
    device.sign_in();
    device.hear(read_elsewhere(3));
    device.hear(read_elsewhere(2));
    device.list(vec![three_message_row(0, 3)]);
    assert_eq!(read_and_unread(&device), (3, 0));
}

// A part that was read before leaves a count that only the server knows.
#[test]
fn a_read_of_a_part_from_before_the_list_asks_for_the_row_again() {
    let mut device = Device::new();
    device.sign_in();
    device.hear(read_elsewhere(2));
    device.list(vec![three_message_row(0, 3)]);
    device.list(vec![three_message_row(2, 1)]);
    assert_eq!(read_and_unread(&device), (2, 1));
}

// Seed 413 of the worlds with power cuts: the server lost the read of another device, and named the
// row without it; the other device repeated its read.
#[test]
fn lost_read_of_another_device_counts_once_it_is_back() {
    let mut device = Device::new();
    device.sign_in();
    device.list(vec![three_message_row(0, 3)]);
    device.hear(read_elsewhere(2));
    device.list(vec![three_message_row(2, 1)]);
    device.lose(0);
    device.wait(0);
    device.sign_in();
    device.list(vec![three_message_row(0, 3)]);
    assert_eq!(read_and_unread(&device), (2, 3));
    device.hear(read_elsewhere(2));
    device.list(vec![three_message_row(2, 1)]);
    assert_eq!(read_and_unread(&device), (2, 1));
}

#[test]
fn listed_messages_are_fetched_after_a_restart() {
    let mut device = Device::new();
    device.sign_in();
    device.list(vec![summary(2, 4)]);
    device.crash();
    device.sign_in();
    device.list(vec![]);
    let request = device.question(is_history);
    device.history(request, (1..=4).map(message).collect(), 4);
    assert_eq!(device.take_shown(), [1, 2, 3, 4]);
}

#[test]
fn resync_compares_again() {
    let mut device = Device::ready();
    device.take_sent();
    device.hear(ServerFrame::Resync);
    assert!(!device.is_ready());
    device.list(vec![summary(2, 1)]);
    let request = device.question(is_history);
    device.history(request, vec![message(1)], 1);
    assert_eq!(device.take_shown(), [1]);
    assert!(device.is_ready());
}

#[test]
fn a_refused_question_is_asked_again_later() {
    let mut device = Device::ready();
    device.push(message(2));
    device.row(None);
    let request = device.question(is_history);
    device.take_sent();
    device.hear(ServerFrame::Error {
        request: Some(request),
        refusal: Refusal::new(Code::Unavailable, "later"),
    });
    assert!(asks_history(&mut device).is_empty());
    device.wait(1000);
    assert_eq!(asks_history(&mut device), [forward(0)]);
}

#[test]
fn unfetchable_messages_are_reported_as_a_gap() {
    let mut device = Device::ready();
    device.push(message(3));
    device.row(None);
    let request = device.question(is_history);
    device.hear(ServerFrame::Error {
        request: Some(request),
        refusal: Refusal::new(Code::Forbidden, "no"),
    });
    assert_eq!(device.take_shown(), [3]);
    assert!(matches!(
        device.actions[..],
        [Action::Event(Event::Gap {
            from: Seq(1),
            to: Seq(2),
            ..
        })]
    ));
}

fn device_ahead() -> Device {
    let limits = Limits {
        ask_again_max: Duration::from_secs(1),
        ..Limits::default()
    };
    let mut device = Device::with(CatchUp::Everything, limits, seen(8));
    device.sign_in();
    device.list(vec![summary(2, 5)]);
    device
}

// A server that was rolled back is reported, and its new messages are shown.
#[test]
fn a_server_that_stays_behind_the_client_is_told_and_followed() {
    let mut device = device_ahead();
    device.stay_behind(5, 119);
    assert!(device.actions.is_empty(), "{:?}", device.actions);
    device.stay_behind(5, 1);
    assert_eq!(device.actions, [behind(5)]);
    device.push(message(6));
    assert_eq!(device.take_shown(), [6]);
}

// Messages that such a server places meanwhile are shown, too, though their seq was shown before.
#[test]
fn new_messages_of_a_server_behind_the_client_are_shown() {
    let mut device = device_ahead();
    device.stay_behind(5, 60);
    device.push(message(6));
    assert!(device.take_shown().is_empty());
    device.stay_behind(6, 60);
    assert_eq!(device.actions, [behind(5)]);
    let request = device.question(is_history);
    device.history(request, vec![message(6)], 6);
    assert_eq!(device.take_shown(), [6]);
}

// A doubt outlives a connection, and only time on connections counts.
#[test]
fn a_doubt_goes_on_with_the_next_connection() {
    let mut device = device_ahead();
    device.stay_behind(5, 100);
    device.lose(0);
    device.wait(600_000);
    device.sign_in();
    device.list(vec![]);
    device.actions.clear();
    device.stay_behind(5, 19);
    assert!(device.actions.is_empty(), "{:?}", device.actions);
    device.stay_behind(5, 1);
    assert_eq!(device.actions, [behind(5)]);
}

// A question in doubt that nobody answers is asked again.
#[test]
fn a_doubt_lasts_until_it_is_answered() {
    let mut device = device_ahead();
    device.take_sent();
    device.wait_live(50_000);
    device.stay_behind(5, 120);
    assert_eq!(device.actions, [behind(5)]);
}

fn behind(theirs: u64) -> Action {
    Action::Event(Event::Reset(Reset::Behind {
        conversation: with(2),
        ours: Seq(8),
        theirs: Seq(theirs),
    }))
}

// After a loss of power, a carrier places again what devices had before.
#[test]
fn a_server_that_catches_up_with_the_client_loses_nothing() {
    let mut device = device_ahead();
    device.stay_behind(5, 60);
    device.wait_live(1_000);
    let request = device.question(is_history);
    device.history(request, vec![message(9)], 9);
    assert_eq!(device.take_shown(), [9]);
    assert!(device.actions.is_empty(), "{:?}", device.actions);
}

#[test]
fn a_list_that_is_only_late_is_no_reset() {
    let mut device = Device::new();
    device.sign_in();
    device.push(message(1));
    device.push(message(2));
    // The answer was made before the second message existed.
    device.list(vec![summary(2, 1)]);
    let request = device.question(is_history);
    device.history(request, vec![], 2);
    assert!(device.actions.is_empty());
    assert_eq!(device.take_shown(), [1, 2]);
    assert!(device.is_ready());
}

// One station of many answers with another installation's id: nothing is reset, shown or lost.
#[test]
fn another_installation_that_answers_once_changes_nothing() {
    let mut device = Device::ready();
    device.push(message(1));
    device.send(super::device::to(2), 1);
    device.take_sent();
    device.take_shown();
    device.lose(0);
    device.wait(0);
    device.sign_in_to(8, 8);
    assert!(
        matches!(&device.actions[..], [Action::Disconnect(why)] if why.code.retryable()),
        "{:?}",
        device.actions
    );
    assert!(device.take_sends().is_empty());
    device.reconnect();
    assert_eq!(device.take_sends().len(), 1, "what waits is sent again");
    assert!(device.take_shown().is_empty());
    // Long after, it answers once more: that counts as the first time again.
    device.wait(3_600_000);
    device.actions.clear();
    device.lose(0);
    device.wait(0);
    device.sign_in_to(8, 8);
    assert!(matches!(&device.actions[..], [Action::Disconnect(_)]));
}

#[test]
fn another_installation_gets_nothing_of_what_is_kept() {
    let mut device = Device::ready();
    device.send(super::device::to(2), 1);
    device.take_sent();
    device.lose(0);
    device.wait(0);
    device.sign_in_to(8, 8);
    let began = device.now;
    while device.now < began + Duration::from_secs(60) {
        assert!(matches!(&device.actions[..], [Action::Disconnect(_)]));
        device.actions.clear();
        device.lose(0);
        let remaining = (began + Duration::from_secs(60)).since(device.now);
        device.wait((remaining.as_millis() as u64).min(20_000));
        device.sign_in_to(8, 8);
    }
    assert!(matches!(
        device.actions[0],
        Action::Event(Event::Reset(Reset::OtherAccount { .. }))
    ));
    assert!(matches!(device.actions[1], Action::Disconnect(_)));
    assert!(device.take_sends().is_empty());
}

#[test]
fn without_acks_messages_are_shown_and_nothing_else() {
    let settings = Settings {
        token: "token".into(),
        renews_token: false,
        platform: Platform::Ios,
        device: protocol::DeviceId::new("here").expect("short"),
        acks: false,
        catch_up: CatchUp::Everything,
        limits: Limits::default(),
    };
    let mut device = Device::with_settings(settings, Snapshot::default());
    device.sign_in();
    device.list(vec![]);
    device.take_sent();
    device.push(message(1));
    device.push(message(1));
    device.wait(10_000);
    assert_eq!(device.take_shown(), [1]);
    assert!(device.take_acked().is_empty());
    assert!(device.snapshot.conversations.is_empty());
}

// proves S0-67, S0-69 in part, S0-70 in part, S0-71 in part:
// below what a device got after long is an edge, which it keeps; a look that meets it
// loads what is before, and the edge moves down until it meets what was there.
#[test]
fn an_edge_is_kept_and_goes_when_it_is_passed() {
    let mut device = Device::with(CatchUp::Recent(2), Limits::default(), seen(0));
    device.now = START + Duration::from_secs(48 * 3600);
    device.sign_in();
    device.list(vec![summary(2, 9)]);
    let newest = device.question(is_history);
    device.history(newest, vec![message(9), message(8)], 9);
    assert_eq!(device.take_shown(), [8, 9]);
    assert_eq!(device.core.edges(with(2)), [Seq(7)]);
    assert_eq!(device.core.older(with(2), Seq(9)), OlderRange::Here);
    device.crash();
    assert_eq!(device.core.edges(with(2)), [Seq(7)], "it is kept");
    device.sign_in();
    assert_eq!(
        device.core.older(with(2), Seq(8)),
        OlderRange::ToBeLoaded(Seq(8))
    );
    for (before, page, edges) in [(8, 4..=7, vec![Seq(3)]), (4, 1..=3, vec![])] {
        device
            .core
            .load_older(with(2), Some(Seq(before)), 4, device.now);
        device.drain();
        let request = device.question(|query| {
            matches!(query, SyncQuery::History { range: HistoryRange::Backward { before: Some(seq) }, .. }
                if seq.0 == before)
        });
        device.history(request, page.rev().map(message).collect(), 9);
        assert_eq!(device.core.edges(with(2)), edges);
    }
    assert_eq!(device.core.older(with(2), Seq(1)), OlderRange::Nothing);
}

/// Bytes of a field that has this message.
fn nested(number: u32, message: &[u8]) -> Vec<u8> {
    let mut bytes = Vec::new();
    encode_key(number, WireType::LengthDelimited, &mut bytes);
    encode_varint(message.len() as u64, &mut bytes);
    bytes.extend_from_slice(message);
    bytes
}

/// Bytes of a change, whose kind has a number that no field of this version has.
fn unknown_change(rev: u64) -> Vec<u8> {
    let subject = v1::ChangeOf {
        msg_id: id(101).get(),
        kind: None,
    };
    let subject = [subject.encode_to_vec(), nested(999, b"later")].concat();
    let change = v1::Change {
        rev,
        seq: 1,
        change_id: id(200 + rev).get(),
        send_id: send_id(9).to_string(),
        by: 2,
        at: START.millis(),
        ..v1::Change::default()
    };
    [change.encode_to_vec(), nested(6, &subject)].concat()
}

// A refused frame would end the connection, and come again on the next one.
#[test]
fn a_change_of_an_unknown_kind_uses_its_rev_and_changes_nothing() {
    let mut device = Device::ready();
    device.push(message(1));
    device.row(Some(Summary {
        newest: Some(message(1)),
        ..summary(2, 1)
    }));
    let hear = |device: &mut Device, bytes: Vec<u8>| {
        let frame = decode_server(bytes.into(), 1 << 20);
        device.hear(frame.expect("a frame"));
    };
    let row = |device: &Device| {
        let row = device.core.list().find(|row| row.conversation == with(2));
        row.expect("listed")
    };
    let kinds = |device: &Device| -> Vec<(u64, MessageChange)> {
        let changed = device.changes.iter();
        let changed = changed.map(|(_, changed)| (changed.rev, changed.asked.change.clone()));
        changed.collect()
    };
    let conversation = v1::Conversation::from(with(2)).encode_to_vec();
    let old_row = row(&device);

    let change_bytes = [nested(1, &conversation), nested(2, &unknown_change(1))].concat();
    hear(&mut device, nested(12, &change_bytes));
    assert_eq!(kinds(&device), [(1, MessageChange::Unknown)]);
    assert_eq!(device.snapshot.conversations[&with(2)].rev, 1);

    device.hear(ServerFrame::Changed {
        conversation: with(2),
        changed: OrderedChange {
            rev: 4,
            seq: Seq(1),
            asked: ChangeRequest {
                id: id(204),
                send_id: send_id(8),
                subject: id(101),
                by: user(2),
                at: START,
                change: MessageChange::Pin { on: false },
            },
        },
    });
    device.wait(1000);
    let request = device.question(|query| matches!(query, SyncQuery::Changes { after: 1, .. }));
    let page = [
        nested(1, &conversation),
        nested(2, &unknown_change(2)),
        nested(2, &unknown_change(3)),
        v1::ChangePage {
            last_rev: 4,
            ..v1::ChangePage::default()
        }
        .encode_to_vec(),
    ];
    let number = v1::SyncPage {
        request,
        answer: None,
    };
    let page = [number.encode_to_vec(), nested(5, &page.concat())].concat();
    hear(&mut device, nested(8, &page));
    let expected = [
        (1, MessageChange::Unknown),
        (2, MessageChange::Unknown),
        (3, MessageChange::Unknown),
        (4, MessageChange::Pin { on: false }),
    ];
    assert_eq!(kinds(&device), expected);
    assert_eq!(device.snapshot.conversations[&with(2)].rev, 4);

    let new_row = row(&device);
    assert_eq!((new_row.rev, &new_row.newest), (4, &old_row.newest));
    assert_eq!(new_row.marks.unwrap_or_default(), MessageMarks::default());
    assert!(device.is_ready());
}
