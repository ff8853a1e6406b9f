use std::collections::BTreeMap;

use protocol::change::{ChangeKind, ChangeOf};
use protocol::frame::{
    Acked, ClientFrame, HistoryPage, HistoryRange, ListEvent, ListEventKind, MemberPage,
    ServerFrame, Summary, SyncAnswer, SyncQuery,
};
use protocol::group::{GroupCommand, GroupSettings, Role};
use protocol::message::Content;
use protocol::receipt::ReceiptKind;
use protocol::{ConversationId, GroupId, Placed, Recipient, Seq};

use super::device::{Device, id, private_message, send_id, summary, user};
use crate::core::{Action, CatchUp, Event, Limits, SendStatus, Snapshot};

fn group() -> GroupId {
    GroupId::new(7).expect("positive")
}

const SETTINGS: GroupSettings = GroupSettings::CLOSED;

fn group_conversation() -> ConversationId {
    ConversationId::Group(group())
}

fn said(from: i64, seq: u64) -> Placed {
    let mut entry = private_message(7, 2, "far", seq);
    entry.conversation = group_conversation();
    entry.message.from = user(from);
    entry.message.to = Recipient::Group(group());
    entry
}

fn row(seq: u64, unread: u64, role: Option<Role>) -> Summary {
    Summary {
        conversation: group_conversation(),
        incoming: 0,
        role,
        unread,
        ..summary(2, seq)
    }
}

fn word(role: Option<Role>) -> ServerFrame {
    ServerFrame::Listed(ListEvent {
        id: id(900),
        send_id: send_id(9),
        conversation: group_conversation(),
        kind: ListEventKind::Member(role),
    })
}

fn page(device: &mut Device, messages: Vec<Placed>, last: u64) {
    let request = device.question(|query| matches!(query, SyncQuery::History { .. }));
    let page = HistoryPage {
        conversation: group_conversation(),
        messages,
        marks: BTreeMap::new(),
        statuses: BTreeMap::new(),
        rev: 0,
        last_seq: Seq(last),
        more: false,
    };
    device.answer(request, SyncAnswer::History(page));
}

fn ranges(frames: &[ClientFrame]) -> Vec<HistoryRange> {
    let queries = frames.iter().filter_map(|frame| match frame {
        ClientFrame::Sync(request) => Some(&request.query),
        _ => None,
    });
    queries
        .filter_map(|query| match query {
            SyncQuery::History { range, .. } => Some(*range),
            _ => None,
        })
        .collect()
}

impl Device {
    fn group_row(&self) -> Option<&Summary> {
        self.snapshot.list.get(&group_conversation())
    }

    /// Tells the client that the user's membership changed; the server answers with `row`.
    fn learn(&mut self, row: Summary) {
        self.hear(word(row.role));
        self.row(Some(row));
    }
}

/// A user brought into a group learns it at once, and asks for the row.
#[test]
fn a_group_comes_into_the_list_and_goes_from_it() {
    let mut device = Device::ready();
    device.take_sent();
    device.learn(row(3, 2, Some(Role::Member)));
    let added_row = device.group_row().expect("a row");
    assert_eq!(
        (added_row.role, added_row.is_on_list()),
        (Some(Role::Member), true)
    );
    page(&mut device, vec![said(2, 1), said(2, 2), said(3, 3)], 3);
    assert_eq!(device.take_shown(), [1, 2, 3]);
    assert_eq!(device.group_row().map(|row| row.unread), Some(2));

    device.take_sent();
    device.learn(row(3, 2, Some(Role::Admin)));
    assert_eq!(ranges(&device.take_sent()), [], "what is here is known");
    device.learn(row(0, 0, None));
    let left_row = device.group_row().expect("a row");
    assert_eq!((left_row.is_on_list(), left_row.unread), (false, 0));
    device.learn(row(4, 1, Some(Role::Member)));
    assert!(device.group_row().expect("a row").is_on_list());
}

// Events are retried: that of a join may come behind that of the leave.
#[test]
fn an_old_word_behind_a_newer_one_changes_nothing() {
    let mut device = Device::ready();
    device.learn(row(0, 0, None));
    device.take_sent();
    device.hear(word(Some(Role::Member)));
    assert_eq!(device.group_row().and_then(|row| row.role), None);
    let request = device.question(|query| matches!(query, SyncQuery::Row { .. }));
    device.take_sent();
    // The answer may be older than this event.
    device.hear(word(Some(Role::Admin)));
    assert_eq!(device.take_sent(), [], "one question at a time");
    let answer = SyncAnswer::Row(Some(Box::new(row(0, 0, None))));
    device.answer(request, answer);
    device.row(Some(row(0, 0, Some(Role::Admin))));
    let stands = device.group_row().and_then(|row| row.role);
    assert_eq!(stands, Some(Role::Admin));
    device.hear(word(None));
    device.take_sent();
    device.reconnect();
    device.list(vec![]);
    device.row(Some(row(0, 0, None)));
    let stands = device.group_row().and_then(|row| row.role);
    assert_eq!(
        stands, None,
        "the list does not name what was older than it"
    );
}

#[test]
fn a_device_that_was_away_learns_of_its_leaving_by_the_list() {
    let mut device = Device::ready();
    device.learn(row(1, 1, Some(Role::Member)));
    page(&mut device, vec![said(2, 1)], 1);
    device.take_sent();
    device.reconnect();
    device.list(vec![row(0, 0, None)]);
    assert!(!device.group_row().expect("a row").is_on_list());
    assert_eq!(ranges(&device.take_sent()), [], "nothing of it is asked");
    assert!(device.is_ready());
}

// Found by seed 410971 of the simulator: the session ended, as the message was never acknowledged.
#[test]
fn message_before_its_row_is_acknowledged_after_leaving() {
    let mut device = Device::ready();
    device.hear(word(Some(Role::Member)));
    let request = device.question(|query| matches!(query, SyncQuery::Row { .. }));
    device.hear(ServerFrame::Message(said(2, 5)));
    device.take_sent();
    let answer = SyncAnswer::Row(Some(Box::new(row(0, 0, None))));
    device.answer(request, answer);
    let frames = device.take_sent();
    let acks: Vec<_> = (frames.iter())
        .filter_map(|frame| match frame {
            ClientFrame::Ack(ack) => Some(&ack.items),
            _ => None,
        })
        .flatten()
        .map(|item| item.seq)
        .collect();
    assert_eq!(acks, [Seq(5)], "{frames:?}");
    assert_eq!(ranges(&frames), [], "nothing of it is asked");
}

// Answers may swap: a row read before a list does not have the last word.
#[test]
fn a_row_that_comes_behind_a_list_is_asked_for_again() {
    let mut device = Device::ready();
    device.learn(row(3, 3, Some(Role::Member)));
    page(&mut device, vec![said(2, 1), said(2, 2), said(2, 3)], 3);
    device.hear(word(Some(Role::Admin)));
    let request = device.question(|query| matches!(query, SyncQuery::Row { .. }));
    device.core.read(
        group_conversation(),
        Seq(1),
        said(2, 1).message.id,
        device.now,
    );
    device.drain();
    device.hear(ServerFrame::Acked(Acked {
        kind: ReceiptKind::Read,
        ids: vec![said(2, 1).message.id],
        refusals: Vec::new(),
    }));
    device.list(vec![row(3, 2, Some(Role::Admin))]);
    device.take_sent();
    let old = SyncAnswer::Row(Some(Box::new(row(3, 3, Some(Role::Member)))));
    device.answer(request, old);
    device.row(Some(row(3, 2, Some(Role::Admin))));
    let row = device.group_row().expect("a row");
    assert_eq!((row.unread, row.role), (2, Some(Role::Admin)));
}

// The application knows of a gap, or hears of it again.
#[test]
fn a_gap_that_was_not_taken_before_the_end_is_told_again() {
    let gaps = |device: &Device| {
        let actions = device.actions.iter();
        actions
            .filter(|it| matches!(it, Action::Event(Event::Gap { .. })))
            .count()
    };
    let mut device = Device::ready();
    device.takes = false;
    device.learn(row(40, 0, Some(Role::Member)));
    page(&mut device, vec![], 40);
    assert_eq!(gaps(&device), 1);

    device.crash();
    device.sign_in();
    device.list(vec![row(40, 0, Some(Role::Member))]);
    page(&mut device, vec![], 40);
    assert_eq!(gaps(&device), 1, "again, and this time it is taken");

    device.crash();
    device.sign_in();
    device.list(vec![row(40, 0, Some(Role::Member))]);
    assert_eq!((gaps(&device), ranges(&device.take_sent())), (0, vec![]));
}

/// Messages before a member came are not shown, and not requested again and again.
#[test]
fn messages_before_joining_are_a_gap() {
    let mut device = Device::ready();
    device.learn(row(40, 0, Some(Role::Member)));
    page(&mut device, vec![], 40);
    let gap = Event::Gap {
        number: Some(1),
        conversation: group_conversation(),
        from: Seq(1),
        to: Seq(40),
    };
    assert_eq!(device.actions, [Action::Event(gap)]);
    assert!(device.is_ready());
    device.push(said(2, 41));
    assert_eq!(device.take_shown(), [41]);
    let row = device.group_row().expect("a row");
    assert_eq!((row.seq, row.unread), (Seq(41), 1));
}

// proves S0-18 in part, S0-24 in part, S0-25:
// whoever shows the recent loads a group backward, however short they were away; nothing
// is read from the oldest on.
#[test]
fn a_group_is_loaded_backward() {
    let snapshot = Snapshot::default();
    let mut device = Device::with(CatchUp::Recent(2), Limits::default(), snapshot);
    device.sign_in();
    device.list(vec![row(90, 90, Some(Role::Member))]);
    let newest = HistoryRange::Backward { before: None };
    assert_eq!(ranges(&device.take_sent()), [newest]);
    device.reconnect();
    device.list(vec![row(90, 90, Some(Role::Member))]);
    page(&mut device, vec![said(2, 90), said(2, 89)], 90);
    assert_eq!(device.take_shown(), [89, 90]);
    device.take_sent();
    device.reconnect();
    device.list(vec![row(99, 99, Some(Role::Member))]);
    assert_eq!(ranges(&device.take_sent()), [newest]);
}

// proves S4-35: own messages are not unread, also where the server's word is older than what was shown.
#[test]
fn unread_counts_what_others_said() {
    let mut device = Device::ready();
    device.learn(row(0, 0, Some(Role::Member)));
    for (from, seq) in [(2, 1), (1, 2), (3, 3), (1, 4), (2, 5)] {
        device.push(said(from, seq));
    }
    assert_eq!(device.group_row().map(|row| row.unread), Some(3));
    device.reconnect();
    device.list(vec![row(2, 1, Some(Role::Member))]);
    let row = device.group_row().expect("a row");
    assert_eq!((row.seq, row.unread), (Seq(5), 3));
    let (seq, read) = (Seq(5), said(2, 5).message.id);
    device
        .core
        .read(group_conversation(), seq, read, device.now);
    device.drain();
    assert_eq!(device.group_row().map(|row| row.unread), Some(0));
}

#[test]
fn a_command_is_done_when_its_asker_is_told() {
    let mut device = Device::ready();
    let command = GroupCommand::Create {
        settings: SETTINGS,
        members: vec![user(2)],
    };
    let content = Content {
        change: Some(Box::new(ChangeOf {
            subject: None,
            kind: ChangeKind::GroupCommand(command),
        })),
        ..Content::text("")
    };
    let to = Recipient::Group(group());
    let outcome = device.core.send(send_id(9), to, content, device.now);
    outcome.expect("room");
    device.core.handle_timeout(device.now);
    device.drain();
    device.accept(9);
    device.learn(row(0, 0, Some(Role::Owner)));
    let status = device.send_status(9);
    assert!(
        matches!(status, Some(SendStatus::Placed { .. })),
        "{status:?}"
    );
    let row = device.group_row().expect("a row");
    assert_eq!((row.role, row.is_on_list()), (Some(Role::Owner), true));
}

#[test]
fn members_are_queried_and_answered() {
    let mut device = Device::ready();
    let request = device.core.ask_server(
        SyncQuery::Members {
            group: group(),
            after: None,
            limit: 0,
        },
        device.now,
    );
    device.drain();
    let answer = SyncAnswer::Members(MemberPage {
        settings: SETTINGS,
        members: vec![(user(1), Role::Owner)],
        more: false,
    });
    device.answer(request, answer.clone());
    let expected = Action::Asked {
        request,
        answer: Ok(answer),
    };
    assert_eq!(device.actions, [expected]);
    device.lose(1);
    let request = device.core.ask_server(
        SyncQuery::Readers {
            group: group(),
            seq: Seq(1),
        },
        device.now,
    );
    device.drain();
    assert!(
        matches!(device.actions.last(), Some(Action::Asked { request: of, answer: Err(_) }) if *of == request)
    );
}
