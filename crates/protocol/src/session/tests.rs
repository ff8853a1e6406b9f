//! Each rule by example; then all of them at once, in random orders.

mod acknowledging;
mod handshake;
mod living;
mod mail;
mod pushing;
mod questions;
mod random;
mod sending;
mod signals;

use std::time::Duration;

use bytes::Bytes;

use super::*;
use crate::delivery::{Push, PushToken};
use crate::frame::{
    Accepted, Ack, AckItem, Acked, ClientFrame, Hello, Send, SyncQuery, SyncRequest, VERSION,
};
use crate::mailbox::MailCursor;
use crate::message::Content;
use crate::receipt::ReceiptKind;
use crate::{ConversationId, MessageId, Options, Recipient, SendId, Seq};

const START: Timestamp = Timestamp::from_millis(1_800_000_000_000);

fn after(millis: u64) -> Timestamp {
    START + Duration::from_millis(millis)
}

fn user(number: i64) -> UserId {
    UserId::new(number).expect("positive")
}

fn message(number: i64) -> MessageId {
    MessageId::new(number).expect("positive")
}

fn send_id(number: u8) -> SendId {
    SendId::from_bytes([number; 16])
}

fn hello() -> Hello {
    Hello {
        version: VERSION,
        token: "token".into(),
        device: DeviceId::new("phone").expect("short"),
        platform: Platform::Ios,
        marker: None,
        resume: None,
    }
}

fn admission() -> Admission {
    Admission {
        user: user(1),
        marker: 7,
        recovered: true,
        mail_waits: false,
        cluster: 9,
        server_time: START,
        expires_at: after(3_600_000),
    }
}

fn send_to(to: i64, number: u8) -> ClientFrame {
    ClientFrame::Send(Send {
        send_id: send_id(number),
        to: Recipient::User(user(to)),
        options: Options::CHAT,
        content: Content::text("hi"),
        attempt: 0,
        age: Duration::ZERO,
        seen_seq: None,
        trace: None,
    })
}

fn accepted_answer(number: u8) -> Result<Accepted, Refusal> {
    Ok(Accepted {
        send_id: send_id(number),
        id: message(i64::from(number) + 1),
        accepted_at: START,
    })
}

fn question(request: u32) -> SyncRequest {
    SyncRequest {
        request,
        query: SyncQuery::Status {
            ids: vec![message(1)],
        },
    }
}

fn unavailable() -> Refusal {
    Refusal::new(Code::Unavailable, "the log does not answer")
}

fn ack_item(id: i64) -> AckItem {
    AckItem {
        conversation: ConversationId::private(user(1), user(2)).expect("two"),
        id: message(id),
        seq: Seq(1),
    }
}

fn ack(kind: ReceiptKind, ids: &[i64]) -> ClientFrame {
    ClientFrame::Ack(Ack {
        kind,
        items: ids.iter().map(|&id| ack_item(id)).collect(),
    })
}

fn received(ids: &[i64]) -> ClientFrame {
    ack(ReceiptKind::Received, ids)
}

const SOURCE: u32 = 3;

fn token(number: u64) -> Token {
    Token {
        source: SOURCE,
        number,
    }
}

fn push(id: i64) -> Push {
    Push {
        token: PushToken::from_number(id as u64),
        session: SessionId::new(42).expect("positive"),
        message: message(id),
        frame: encoded_frame(id),
        needs_ack: true,
        trace: None,
    }
}

fn encoded_frame(id: i64) -> Bytes {
    Bytes::from(format!("frame {id}"))
}

fn mails(ids: &[i64], next: Option<i64>) -> Result<Page, Refusal> {
    Ok(Page {
        mails: (ids.iter())
            .map(|&id| PageItem {
                id: message(id),
                frame: encoded_frame(id),
            })
            .collect(),
        next: next.map(cursor),
    })
}

fn cursor(id: i64) -> MailCursor {
    MailCursor {
        accepted_at: START,
        id: message(id),
    }
}

fn resolve_action(id: i64, outcome: Outcome) -> Action {
    Action::Resolve {
        token: token(id as u64),
        outcome,
    }
}

fn opened_session(limits: SessionLimits) -> Session {
    let id = SessionId::new(42).expect("positive");
    Session::new(id, Arc::new(limits), START)
}

fn admitted_session(limits: SessionLimits, admission: Admission) -> Session {
    let mut session = opened_session(limits);
    session.handle_frame(ClientFrame::Hello(hello()), START);
    assert_eq!(session.poll_action(), Some(Action::Admit(hello())));
    session.handle_admitted(Ok(admission), START);
    session
}

fn open_session(limits: SessionLimits) -> Session {
    let mut session = admitted_session(limits, admission());
    let actions = drain_actions(&mut session);
    assert!(
        matches!(
            &actions[..],
            [Action::Transmit(Outgoing::Frame(ServerFrame::Welcome(_)))]
        ),
        "{actions:?}"
    );
    write_all(&mut session, START);
    session
}

fn open() -> Session {
    open_session(SessionLimits::default())
}

/// Has the socket take all transmitted bytes.
fn write_all(session: &mut Session, now: Timestamp) {
    session.handle_written(session.outgoing(), now);
}

fn drain_actions(session: &mut Session) -> Vec<Action> {
    std::iter::from_fn(|| session.poll_action()).collect()
}

/// Frames to the client, apart from pushed messages.
fn server_frames(actions: &[Action]) -> Vec<&ServerFrame> {
    (actions.iter())
        .filter_map(|action| match action {
            Action::Transmit(Outgoing::Frame(frame)) => Some(frame),
            _ => None,
        })
        .collect()
}

fn pushed_frames(actions: &[Action]) -> Vec<Bytes> {
    (actions.iter())
        .filter_map(|action| match action {
            Action::Transmit(Outgoing::Encoded(frame)) => Some(frame.clone()),
            _ => None,
        })
        .collect()
}

fn refusals(actions: &[Action]) -> Vec<(SendId, Code)> {
    (server_frames(actions).iter())
        .filter_map(|frame| match frame {
            ServerFrame::Refused { send_id, refusal } => Some((*send_id, refusal.code)),
            _ => None,
        })
        .collect()
}

fn submitted_ids(actions: &[Action]) -> Vec<SendId> {
    (actions.iter())
        .filter_map(|action| match action {
            Action::Submit(batch) => Some(batch.iter().map(|submit| submit.send.send_id)),
            _ => None,
        })
        .flatten()
        .collect()
}

fn counted_bounds(actions: &[Action]) -> Vec<Bound> {
    (actions.iter())
        .filter_map(|action| match action {
            Action::Count(bound) => Some(*bound),
            _ => None,
        })
        .collect()
}

fn close_code(actions: &[Action]) -> Option<Code> {
    actions.iter().find_map(|action| match action {
        Action::Close(refusal) => Some(refusal.code),
        _ => None,
    })
}
