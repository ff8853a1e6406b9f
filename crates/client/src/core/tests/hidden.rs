use std::collections::BTreeMap;

use protocol::change::{Authorship, MessageMarks};
use protocol::frame::{
    ClientFrame, HiddenPage, ListEvent, ListEventKind, PinPage, ServerFrame, Summary, SyncAnswer,
    SyncQuery,
};
use protocol::{Code, Refusal, Seq};

use super::device::{Device, id, message, send_id, summary, user, with};
use super::world::START;
use crate::core::{CatchUp, ConversationProgress, Cursor, Limits, Snapshot};

/// Row of a conversation with `seq` messages and hidings up to `hidden`.
fn row(seq: u64, hide_number: u64) -> Summary {
    Summary {
        hidden: hide_number,
        newest: Some(message(seq)),
        ..summary(2, seq)
    }
}

fn is_hidden(query: &SyncQuery) -> bool {
    matches!(query, SyncQuery::Hidden { .. })
}

fn asks_hidden(device: &mut Device) -> Vec<u64> {
    let queries = device
        .take_sent()
        .into_iter()
        .filter_map(|frame| match frame {
            ClientFrame::Sync(request) => Some(request.query),
            _ => None,
        });
    let cursors = queries.filter_map(|query| match query {
        SyncQuery::Hidden { after, .. } => Some(after),
        _ => None,
    });
    cursors.collect()
}

fn tell(device: &mut Device, seqs: &[u64], last: u64, more: bool) {
    let request = device.question(is_hidden);
    let page = HiddenPage {
        seqs: seqs.iter().copied().map(Seq).collect(),
        last,
        more,
    };
    device.answer(request, SyncAnswer::Hidden(page));
}

fn fetch(device: &mut Device, first: u64, last: u64) {
    let request = device.question(|query| matches!(query, SyncQuery::History { .. }));
    device.history(request, (first..=last).map(message).collect(), last);
}

fn hides(seq: u64) -> ServerFrame {
    ServerFrame::Listed(ListEvent {
        id: id(900),
        send_id: send_id(9),
        conversation: with(2),
        kind: ListEventKind::Hidden(Seq(seq)),
    })
}

/// Positions shown, each with a flag: true if hidden.
fn shown(device: &Device) -> Vec<(u64, bool)> {
    let shown = device.shown_messages.iter().map(|shown| {
        let is_hidden = shown.marks.as_ref().is_some_and(|marks| marks.hidden);
        let says = &shown.placed.message.content.data;
        assert_eq!(says.is_empty(), is_hidden);
        (shown.placed.position.seq.0, is_hidden)
    });
    shown.collect()
}

fn hidden(device: &Device) -> Vec<u64> {
    device
        .hidden_messages
        .iter()
        .map(|(_, seq)| seq.0)
        .collect()
}

/// Device that showed three messages and knows hidings up to 5.
fn back() -> Device {
    let mut snapshot = Snapshot::default();
    let cursor = Cursor {
        seq: Seq(3),
        id: Some(id(103)),
        ..Cursor::default()
    };
    let progress = ConversationProgress {
        cursor,
        known_seq: Seq(3),
        hide_number: 5,
        hidden_known: 5,
        ..ConversationProgress::default()
    };
    snapshot.conversations.insert(with(2), progress);
    let mut device = Device::with(CatchUp::Everything, Limits::default(), snapshot);
    device.sign_in();
    device
}

#[test]
fn a_new_device_never_has_what_a_hidden_message_says() {
    let mut device = Device::new();
    device.sign_in();
    device.list(vec![row(4, 7)]);
    fetch(&mut device, 1, 4);
    assert_eq!(shown(&device), [], "before it knows what is hidden");
    tell(&mut device, &[2], 6, true);
    assert_eq!((shown(&device), hidden(&device)), (vec![], vec![2]));
    tell(&mut device, &[4], 7, false);
    let expected = [(1, false), (2, true), (3, false), (4, true)];
    assert_eq!(shown(&device), expected);
    assert_eq!(asks_hidden(&mut device), [0, 6]);
    let is_empty = |row: &Summary| {
        let newest = row.newest.as_ref().expect("there is one");
        newest.message.content.data.is_empty()
    };
    assert!(device.rows.iter().all(is_empty));

    device.crash();
    let row_of_2 = device.core.list().next().expect("there is one");
    assert!(is_empty(&row_of_2) && row_of_2.marks.is_some_and(|marks| marks.hidden));
    device.sign_in();
    device.list(vec![row(4, 7)]);
    assert_eq!(asks_hidden(&mut device), [0_u64; 0], "it is kept");
    let request = device.core.load_older(with(2), None, 4, device.now);
    device.drain();
    device.history(request, (1..=4).rev().map(message).collect(), 4);
    let crate::core::Action::Older { answer, .. } = device.actions.pop().expect("answered") else {
        panic!("another answer");
    };
    let page = answer.expect("a page");
    let says = page.messages.iter();
    let says: Vec<bool> = says.map(|m| m.message.content.data.is_empty()).collect();
    assert_eq!(says, [true, false, true, false]);
    assert!(page.marks[&Seq(2)].hidden && page.marks.len() == 2);
}

/// The server does not hide: its pages of pins have what the user hid.
#[test]
fn a_pin_of_a_hidden_message_comes_emptied() {
    let mut device = back();
    device.hear(hides(2));
    let query = SyncQuery::Pins {
        conversation: with(2),
        before: None,
        limit: 0,
    };
    let request = device.core.ask_server(query, device.now);
    device.drain();
    let pin_marks = MessageMarks {
        pinned: Some(Authorship {
            by: user(2),
            at: START,
        }),
        ..MessageMarks::default()
    };
    let page = PinPage {
        messages: vec![message(3), message(2)],
        marks: BTreeMap::from([3, 2].map(|seq| (Seq(seq), pin_marks.clone()))),
        next: None,
        rev: 7,
    };
    device.answer(request, SyncAnswer::Pins(page));
    let Some(crate::core::Action::Asked { answer, .. }) = device.actions.pop() else {
        panic!("no answer");
    };
    let Ok(SyncAnswer::Pins(page)) = answer else {
        panic!("another answer");
    };
    let says = page.messages.iter();
    let says: Vec<bool> = says.map(|m| m.message.content.data.is_empty()).collect();
    assert_eq!(says, [false, true]);
    assert_eq!(page.marks[&Seq(3)], pin_marks);
    let hide_marks = MessageMarks {
        hidden: true,
        ..pin_marks
    };
    assert_eq!(page.marks[&Seq(2)], hide_marks);
    assert_eq!(page.rev, 7);
}

#[test]
fn messages_hidden_while_offline_are_reported_once() {
    let mut device = back();
    device.list(vec![row(3, 9)]);
    tell(&mut device, &[1], 9, false);
    assert_eq!(asks_hidden(&mut device), [5]);
    assert_eq!(hidden(&device), [1]);
    device.hear(hides(3));
    device.hear(hides(1));
    assert_eq!(hidden(&device), [1, 3]);
    device.reconnect();
    // The event may have overtaken another: hidings are requested from the last page on.
    device.list(vec![row(3, 12)]);
    tell(&mut device, &[3], 12, false);
    assert_eq!(asks_hidden(&mut device), [9]);
    assert_eq!(hidden(&device), [1, 3]);
    assert_eq!(device.snapshot.conversations[&with(2)].hide_number, 12);
}

/// The server was rolled back: its hidings are learnt anew, and other messages stand behind its
/// end.
#[test]
fn hidden_positions_behind_the_end_are_dropped() {
    let mut device = back();
    device.hear(hides(2));
    device.hear(hides(3));
    device.list(vec![row(2, 4)]);
    tell(&mut device, &[2], 4, false);
    device.stay_behind(2, 140);
    device.push(message(3));
    assert_eq!(shown(&device), [(3, false)]);
    assert_eq!(device.snapshot.hidden_seqs[&with(2)].len(), 1);
}

/// The server was rolled back while its answer was under way.
#[test]
fn an_answer_to_what_is_asked_anew_is_passed_over() {
    let mut device = back();
    device.list(vec![row(3, 9)]);
    let old = device.question(is_hidden);
    device.hear(ServerFrame::Resync);
    device.list(vec![row(3, 4)]);
    let page = HiddenPage {
        seqs: vec![Seq(3)],
        last: 9,
        more: false,
    };
    device.answer(old, SyncAnswer::Hidden(page));
    assert_eq!(hidden(&device), [0_u64; 0]);
    tell(&mut device, &[1, 2], 4, false);
    assert_eq!(asks_hidden(&mut device), [5, 0]);
    assert_eq!(hidden(&device), [1, 2]);
    assert_eq!(device.snapshot.conversations[&with(2)].hide_number, 4);
}

/// More may be hidden than the answer was read with.
#[test]
fn hidden_number_listed_during_a_query_is_queried_again() {
    let mut device = back();
    device.list(vec![row(3, 9)]);
    device.hear(ServerFrame::Resync);
    device.list(vec![row(3, 11)]);
    tell(&mut device, &[1], 9, false);
    tell(&mut device, &[2], 11, false);
    assert_eq!(asks_hidden(&mut device), [5, 9]);
    assert_eq!(hidden(&device), [1, 2]);
}

#[test]
fn untaken_hidden_event_is_reported_again() {
    let mut device = back();
    device.takes = false;
    device.list(vec![row(3, 9)]);
    tell(&mut device, &[1], 9, false);
    assert_eq!(hidden(&device), [1]);
    device.crash();
    device.sign_in();
    tell(&mut device, &[1], 9, false);
    assert_eq!(asks_hidden(&mut device), [5]);
    assert_eq!(hidden(&device), [1]);
    assert_eq!(device.snapshot.hidden_seqs[&with(2)].len(), 1);
}

/// The conversation was taken from the list before this device had one, and goes on: the list did
/// not name it.
#[test]
fn conversation_missing_from_the_list_is_queried_once() {
    let mut device = Device::ready();
    device.push(message(1));
    assert_eq!(shown(&device), [(1, false)], "nobody waits");
    let cleared_row = Summary {
        cleared_seq: Seq(1),
        ..row(1, 3)
    };
    device.row(Some(cleared_row));
    tell(&mut device, &[1], 3, false);
    assert_eq!(hidden(&device), [1]);
    assert!(!device.snapshot.list[&with(2)].is_on_list());
    device.push(message(2));
    assert!(device.snapshot.list[&with(2)].is_on_list());
    let rows = device.take_sent().into_iter();
    let rows = rows.filter(|frame| match frame {
        ClientFrame::Sync(request) => matches!(request.query, SyncQuery::Row { .. }),
        _ => false,
    });
    assert_eq!(rows.count(), 1);
}

#[test]
fn without_an_answer_it_goes_on() {
    let mut device = Device::new();
    device.sign_in();
    device.list(vec![row(2, 7)]);
    fetch(&mut device, 1, 2);
    let refuse = |device: &mut Device, code| {
        let request = Some(device.question(is_hidden));
        let refusal = Refusal::new(code, "no");
        device.hear(ServerFrame::Error { request, refusal });
    };
    refuse(&mut device, Code::Unavailable);
    assert_eq!(shown(&device), [], "it asks again");
    device.wait(2000);
    refuse(&mut device, Code::Forbidden);
    assert_eq!(asks_hidden(&mut device), [0, 0]);
    assert_eq!(shown(&device), [(1, false), (2, false)]);
}
