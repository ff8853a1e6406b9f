//! Large groups: subscribed to, told by signals, read when somebody looks.

use std::collections::BTreeMap;
use std::time::Duration;

use protocol::change::{ChangeRequest, MessageChange, OrderedChange};
use protocol::frame::{
    ChangePage, ClientFrame, HistoryPage, HistoryRange, ServerFrame, Summary, SyncAnswer, SyncQuery,
};
use protocol::group::Role;
use protocol::receipt::ReceiptKind;
use protocol::subscription::{GROUPS_MAX, GroupEnd, GroupSignal, SubscriptionState};
use protocol::{Code, ConversationId, GroupId, Options, Placed, Recipient, Refusal, Seq};

use super::device::{Device, id, private_message, summary, user};
use super::world::START;
use crate::core::{Action, CatchUp, Event, Limits, Snapshot};

fn group(number: i64) -> GroupId {
    GroupId::new(number).expect("positive")
}

fn conversation() -> ConversationId {
    ConversationId::Group(group(7))
}

/// A message as a boat passes it on: nobody waits for an acknowledgement.
fn message(seq: u64) -> Placed {
    let mut placed = private_message(7, 2, "far", seq);
    placed.conversation = conversation();
    placed.message.to = Recipient::Group(group(7));
    placed.message.options = Options::NONE;
    placed
}

fn messages(seqs: std::ops::RangeInclusive<u64>) -> Vec<Placed> {
    seqs.map(message).collect()
}

fn large_row(number: i64, seq: u64) -> Summary {
    Summary {
        conversation: ConversationId::Group(group(number)),
        incoming: 0,
        role: Some(Role::Member),
        is_large: true,
        unread: seq,
        ..summary(2, seq)
    }
}

fn signal(seq: u64, state: SubscriptionState) -> ServerFrame {
    ServerFrame::Signals(vec![GroupSignal {
        group: group(7),
        end: GroupEnd {
            seq: Seq(seq),
            rev: 0,
        },
        at: START + Duration::from_secs(seq),
        state,
        spread: Duration::from_secs(4),
    }])
}

fn subscribed(seq: u64) -> ServerFrame {
    signal(seq, SubscriptionState::Subscribed)
}

/// A device that has the first `seq` messages of group 7, which has no more.
fn member(seq: u64) -> Device {
    let mut device = Device::new();
    device.sign_in();
    device.list(vec![large_row(7, 0)]);
    for placed in messages(1..=seq) {
        device.push(placed);
    }
    device.take_sent();
    device.take_shown();
    device
}

impl Device {
    fn take_subscriptions(&mut self) -> Vec<Vec<(i64, u64)>> {
        let frames = self.take_sent().into_iter();
        let sets = frames.filter_map(|frame| match frame {
            ClientFrame::Subscribe(groups) => Some(groups),
            _ => None,
        });
        sets.map(|groups| {
            groups
                .iter()
                .map(|(id, end)| (id.get(), end.seq.0))
                .collect()
        })
        .collect()
    }

    fn open_group(&mut self) {
        self.core.open_groups(&[group(7)], self.now);
        self.drain();
    }

    /// Queries for history since the last look at any frames.
    fn take_ranges(&mut self) -> Vec<HistoryRange> {
        let frames = self.take_sent().into_iter();
        let queries = frames.filter_map(|frame| match frame {
            ClientFrame::Sync(request) => Some(request.query),
            _ => None,
        });
        queries
            .filter_map(|query| match query {
                SyncQuery::History { range, .. } => Some(range),
                _ => None,
            })
            .collect()
    }

    fn page(&mut self, messages: Vec<Placed>, last: u64) {
        let request = self.question(|query| matches!(query, SyncQuery::History { .. }));
        let page = HistoryPage {
            conversation: conversation(),
            messages,
            marks: BTreeMap::new(),
            statuses: BTreeMap::new(),
            rev: 0,
            last_seq: Seq(last),
            more: false,
        };
        self.answer(request, SyncAnswer::History(page));
    }

    fn gaps(&self) -> Vec<(u64, u64)> {
        let events = self.actions.iter();
        let gaps = events.filter_map(|action| match action {
            Action::Event(Event::Gap { from, to, .. }) => Some((from.0, to.0)),
            _ => None,
        });
        gaps.collect()
    }

    fn large_row(&self) -> &Summary {
        &self.snapshot.list[&conversation()]
    }
}

#[test]
fn a_device_subscribes_to_the_large_groups_of_its_list_and_again_when_that_changes() {
    let mut device = Device::new();
    device.sign_in();
    assert!(device.take_subscriptions_keeping_questions().is_empty());
    device.list(vec![large_row(7, 5), large_row(8, 0), summary(2, 0)]);
    assert_eq!(device.take_subscriptions(), [[(8, 0), (7, 5)]]);
    device.reconnect();
    assert_eq!(
        device.take_subscriptions_keeping_questions(),
        [[(8, 0), (7, 5)]],
        "from the saved rows, before the list"
    );
    // Group 8 is small now.
    let small_row = Summary {
        is_large: false,
        ..large_row(8, 0)
    };
    device.list(vec![small_row]);
    assert_eq!(device.take_subscriptions(), [[(7, 5)]]);
}

#[test]
fn a_device_without_large_groups_subscribes_to_nothing() {
    let mut device = Device::ready();
    device.open_group();
    let is_about_groups =
        |frame: &ClientFrame| matches!(frame, ClientFrame::Subscribe(_) | ClientFrame::Watch(_));
    assert!(!device.take_sent().iter().any(is_about_groups));
}

#[test]
fn messages_are_shown_in_order_without_acknowledgements() {
    // proves S3-32 in part
    let mut device = member(0);
    device.push(message(1));
    device.push(message(2));
    assert_eq!(device.take_shown(), [1, 2]);
    assert!(device.take_acked().is_empty());
    // Somebody is mentioned: the server waits.
    let mut owed = message(3);
    owed.message.options = Options::CHAT;
    device.push(owed);
    assert_eq!(device.take_acked(), [3]);
}

#[test]
fn a_signal_moves_the_row_and_reads_nothing() {
    // proves S3-33 in part
    let mut device = member(2);
    device.hear(subscribed(12));
    device.wait_live(20_000);
    assert!(device.take_ranges().is_empty());
    let row = device.large_row();
    assert_eq!((row.seq, row.unread), (Seq(12), 12));
    assert_eq!(row.version, START + Duration::from_secs(12));
    device.hear(subscribed(11));
    assert_eq!(device.large_row().seq, Seq(12), "an older one");
    // The server's row is exact.
    device.reconnect();
    device.list(vec![Summary {
        unread: 9,
        ..large_row(7, 12)
    }]);
    assert_eq!(device.large_row().unread, 9);
}

#[test]
fn a_message_behind_unread_ones_leaves_them_out() {
    let mut device = member(2);
    device.hear(subscribed(12));
    device.push(message(13));
    assert!(device.take_shown().is_empty(), "others may be on their way");
    device.wait(5_000);
    assert_eq!(device.take_shown(), [13]);
    assert_eq!(device.gaps(), [(3, 12)]);
    assert!(device.take_ranges().is_empty());
    assert_eq!(device.core.edges(conversation()), [Seq(12)]);
}

#[test]
fn messages_that_come_late_fill_the_gap_before_an_own_one() {
    let mut device = member(2);
    device.push(message(5));
    device.push(message(3));
    device.push(message(4));
    assert_eq!(device.take_shown(), [3, 4, 5]);
    device.wait(10_000);
    assert!(device.gaps().is_empty());
}

#[test]
fn an_open_group_is_watched_and_its_newest_page_read() {
    // proves S0-25 in part, S3-35 in part
    let mut device = member(2);
    device.hear(subscribed(500));
    device.take_sent();
    device.open_group();
    assert!(
        device
            .sent_frames
            .contains(&ClientFrame::Watch(vec![group(7)]))
    );
    let range = HistoryRange::Backward {
        before: Some(Seq(501)),
    };
    let request = device.question(|query| matches!(query, SyncQuery::History { .. }));
    assert!(request > 0);
    assert_eq!(device.take_ranges_keeping_questions(), [range]);
    device.page(messages(401..=500).into_iter().rev().collect(), 500);
    assert_eq!(device.take_shown(), (401..=500).collect::<Vec<_>>());
    assert_eq!(device.gaps(), [(3, 400)]);
    device.take_sent();
    device.wait(20_000);
    assert!(device.take_ranges().is_empty(), "one page at most");
    let row = device.large_row();
    let newest = row.newest.as_ref().map(|newest| newest.position.seq);
    assert_eq!((row.seq, newest), (Seq(500), Some(Seq(500))));
}

#[test]
fn devices_spread_what_they_read_after_a_signal() {
    let mut device = member(2);
    device.open_group();
    device.take_sent();
    device.hear(subscribed(3));
    assert!(
        device.take_ranges_keeping_questions().is_empty(),
        "not at once"
    );
    device.wait(4_000);
    let range = HistoryRange::Backward {
        before: Some(Seq(4)),
    };
    assert_eq!(device.take_ranges_keeping_questions(), [range]);
    device.page(vec![message(3)], 3);
    assert_eq!(device.take_shown(), [3]);
    assert!(device.gaps().is_empty());
}

#[test]
fn an_open_group_is_read_after_a_reconnect() {
    let mut device = member(2);
    device.open_group();
    device.lose(0);
    // Told before the connection was lost, but not read.
    device.wait(0);
    device.sign_in();
    device.list(Vec::new());
    device.hear(subscribed(4));
    device.wait(4_000);
    device.page(vec![message(4), message(3)], 4);
    assert_eq!(device.take_shown(), [3, 4]);
}

#[test]
fn an_open_group_is_read_after_a_restart() {
    let mut device = member(2);
    // The row is stored, the messages are not here.
    device.hear(subscribed(4));
    device.crash();
    device.open_group();
    device.sign_in();
    device.list(Vec::new());
    device.wait(0);
    device.page(vec![message(4), message(3)], 4);
    assert_eq!(device.take_shown(), [3, 4]);
}

#[test]
fn a_row_shows_the_newest_message_of_both_sides() {
    let mut device = member(2);
    device.hear(subscribed(9));
    device.reconnect();
    device.list(vec![Summary {
        newest: Some(message(8)),
        ..large_row(7, 8)
    }]);
    let row = device.large_row();
    let newest = row.newest.as_ref().map(|newest| newest.position.seq);
    assert_eq!((row.seq, newest), (Seq(9), Some(Seq(8))));
}

#[test]
fn what_a_group_lacked_when_it_became_large_is_left_out() {
    let mut device = Device::new();
    device.sign_in();
    device.list(vec![Summary {
        is_large: false,
        ..large_row(7, 0)
    }]);
    device.push(message(3));
    device.reconnect();
    device.list(vec![large_row(7, 3)]);
    device.wait(10_000);
    assert!(device.take_shown().is_empty(), "they may be on their way");
    let request = device.question(|query| matches!(query, SyncQuery::History { .. }));
    device.hear(ServerFrame::Error {
        request: Some(request),
        refusal: Refusal::new(Code::Unavailable, "later"),
    });
    device.wait(2_000);
    assert_eq!(device.take_shown(), [3]);
    assert_eq!(device.gaps(), [(1, 2)]);
}

#[test]
fn a_group_that_the_server_took_from_the_set_is_subscribed_to_again_if_its_row_says_so() {
    for state in [SubscriptionState::Small, SubscriptionState::Gone] {
        let mut device = member(2);
        device.hear(signal(0, state));
        assert_eq!(device.take_subscriptions_keeping_questions(), [[]]);
        device.row(Some(large_row(7, 2)));
        assert!(device.take_subscriptions().is_empty(), "not at once");
        device.wait(2_000);
        assert_eq!(device.take_subscriptions(), [[(7, 2)]]);
    }
}

#[test]
fn a_group_that_is_no_longer_large_is_caught_up_like_any_other() {
    let mut device = member(2);
    device.hear(signal(0, SubscriptionState::Small));
    device.row(Some(Summary {
        is_large: false,
        ..large_row(7, 4)
    }));
    let range = HistoryRange::Forward { after: Seq(2) };
    assert_eq!(device.take_ranges_keeping_questions(), [range]);
    device.page(messages(3..=4), 4);
    assert_eq!(device.take_shown(), [3, 4]);
    let mut owed = message(5);
    owed.message.options = Options::CHAT;
    device.push(owed);
    assert!(device.take_acked().contains(&5));
}

#[test]
fn a_full_boat_is_asked_for_the_row_every_thirty_seconds() {
    let mut device = member(2);
    device.hear(signal(0, SubscriptionState::Full));
    device.take_sent();
    for seq in 3..6 {
        device.wait_live(29_000);
        let is_row = |query: &SyncQuery| matches!(query, SyncQuery::Row { .. });
        assert_eq!(device.find_question(is_row), None);
        device.wait_live(1_000);
        device.row(Some(large_row(7, seq)));
        assert_eq!(device.large_row().seq, Seq(seq));
        device.take_sent();
    }
}

#[test]
fn rows_on_the_screen_are_asked_for_now_and_then() {
    let mut device = member(2);
    device.core.show_groups(&[group(7)]);
    let is_row = |query: &SyncQuery| matches!(query, SyncQuery::Row { .. });
    device.hear(subscribed(3));
    device.wait_live(4_000);
    device.row(Some(large_row(7, 3)));
    device.take_sent();
    for seq in 4..10 {
        device.hear(subscribed(seq));
    }
    device.wait_live(20_000);
    assert_eq!(device.find_question(is_row), None);
    device.wait_live(11_000);
    assert!(device.find_question(is_row).is_some());
}

#[test]
fn more_groups_than_a_boat_takes_are_asked_for_by_row() {
    let mut device = Device::new();
    device.sign_in();
    let rows = (1..=GROUPS_MAX as i64 + 2).map(|number| Summary {
        version: START + Duration::from_secs(number as u64),
        ..large_row(number, 1)
    });
    device.list(rows.collect());
    let sets = device.take_subscriptions();
    assert_eq!(sets[0].len(), GROUPS_MAX);
    assert!(!sets[0].contains(&(1, 1)) && !sets[0].contains(&(2, 1)));
    device.wait_live(30_000);
    let asked = device
        .take_sent()
        .into_iter()
        .filter_map(|frame| match frame {
            ClientFrame::Sync(request) => Some(request.query),
            _ => None,
        });
    let row_queries: Vec<SyncQuery> = [1, 2]
        .map(|number| SyncQuery::Row {
            conversation: ConversationId::Group(group(number)),
        })
        .to_vec();
    assert_eq!(asked.collect::<Vec<_>>(), row_queries);
}

#[test]
fn read_positions_of_a_large_group_are_sent_now_and_then() {
    let mut device = member(5);
    let reads = |device: &mut Device| -> Vec<u64> {
        let frames = device.take_sent().into_iter();
        let acks = frames.filter_map(|frame| match frame {
            ClientFrame::Ack(ack) if ack.kind == ReceiptKind::Read => Some(ack.items),
            _ => None,
        });
        acks.flatten().map(|item| item.seq.0).collect()
    };
    for seq in 1..=5 {
        device
            .core
            .read(conversation(), Seq(seq), id(350 + seq), device.now);
        device.drain();
    }
    assert_eq!(reads(&mut device), [1]);
    device.wait(3_000);
    assert!(reads(&mut device).is_empty());
    device.wait(7_000);
    assert_eq!(reads(&mut device), [5]);
}

fn recall(rev: u64, seq: u64) -> OrderedChange {
    let placed = message(seq);
    OrderedChange {
        rev,
        seq: Seq(seq),
        asked: ChangeRequest {
            id: id(900 + rev),
            send_id: placed.message.send_id,
            by: user(2),
            at: START,
            subject: placed.message.id,
            change: MessageChange::Recall,
        },
    }
}

#[test]
fn few_missing_changes_are_read_and_many_left_out() {
    let mut device = member(3);
    let changed = |rev| ServerFrame::Changed {
        conversation: conversation(),
        changed: recall(rev, 1),
    };
    let is_changes = |query: &SyncQuery| matches!(query, SyncQuery::Changes { .. });
    device.hear(changed(3));
    assert_eq!(device.find_question(is_changes), None, "not at once");
    device.wait(5_000);
    let request = device.question(is_changes);
    let page = ChangePage {
        conversation: conversation(),
        changes: vec![recall(1, 1), recall(2, 2)],
        last_rev: 3,
        more: false,
    };
    device.answer(request, SyncAnswer::Changes(page));
    let shown: Vec<u64> = device.changes.drain(..).map(|(_, it)| it.rev).collect();
    assert_eq!(shown, [1, 2, 3]);
    device.take_sent();
    device.hear(changed(200));
    device.wait(5_000);
    assert_eq!(device.find_question(is_changes), None);
    let shown: Vec<u64> = device.changes.drain(..).map(|(_, it)| it.rev).collect();
    assert_eq!(shown, [200]);
}

#[test]
fn a_new_device_begins_with_the_messages_that_come() {
    for catch_up in [CatchUp::Everything, CatchUp::Recent(20)] {
        let mut device = Device::with(catch_up, Limits::default(), Snapshot::default());
        device.sign_in();
        device.list(vec![large_row(7, 500)]);
        device.wait(10_000);
        assert!(device.take_ranges().is_empty());
        device.push(message(501));
        device.wait(10_000);
        assert_eq!(device.take_shown(), [501], "{catch_up:?}");
        assert_eq!(device.gaps(), [(1, 500)]);
    }
}

#[test]
fn a_device_that_starts_again_reads_nothing_of_large_groups() {
    let mut device = member(2);
    device.push(message(9));
    device.crash();
    device.sign_in();
    assert_eq!(device.take_subscriptions_keeping_questions(), [[(7, 2)]]);
    device.list(Vec::new());
    device.wait(10_000);
    assert!(device.take_ranges().is_empty());
}

impl Device {
    /// As `take_subscriptions`, with the queries left to be answered.
    fn take_subscriptions_keeping_questions(&mut self) -> Vec<Vec<(i64, u64)>> {
        let frames = self.sent_frames.clone();
        let sets = self.take_subscriptions();
        self.sent_frames = frames;
        self.sent_frames
            .retain(|frame| matches!(frame, ClientFrame::Sync(_)));
        sets
    }

    /// As `take_ranges`, with the queries left to be answered.
    fn take_ranges_keeping_questions(&mut self) -> Vec<HistoryRange> {
        let frames = self.sent_frames.clone();
        let ranges = self.take_ranges();
        self.sent_frames = frames;
        ranges
    }
}
