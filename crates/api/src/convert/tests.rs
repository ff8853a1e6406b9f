use bytes::Bytes;
use proptest::prelude::*;
use prost::Message as _;
use protocol::change::{ChangeRequest, MessageChange, OrderedChange};
use protocol::frame::{ClientFrame, HistoryRange, Send, ServerFrame};
use protocol::history::Version;
use protocol::message::Content;
use protocol::message_row::MessageRow;
use protocol::revocation::PageStart;
use protocol::session::{Page, Submit};
use protocol::{Message, Placed, Recipient, SendId, Seq};

use super::*;
use crate::boat::{DeliverBatch, DrainCommand, DrainProgress, NoticeBatch, Outcome};
use crate::station::{
    Admission, Connect, Disconnect, Kickout, MailAck, MailPageRequest, OnlineMembers, OnlineUser,
    Reassert, Reasserted, ReceiptItem, RefreshToken, Refreshment, ResumeSession, Revoke,
    RevokedPage, SendAnswer, SyncCall,
};

/// Converts to the wire's type, to bytes, and back.
fn across<W, T>(value: T) -> Result<T, Refusal>
where
    W: prost::Message + Default + From<T>,
    T: TryFrom<W, Error = Refusal>,
{
    let bytes = W::from(value).encode_to_vec();
    W::decode(bytes.as_slice())
        .expect("encoded by us")
        .try_into()
}

macro_rules! round_trips {
    ($($(#[$doc:meta])* $name:ident: $value:ident, $inside:ty, $wire:ty;)+) => {
        proptest! {
            $($(#[$doc])* #[test]
            fn $name(value in arbitrary::$value()) {
                prop_assert_eq!(across::<$wire, $inside>(value.clone()), Ok(value));
            })+
        }
    };
}

round_trips! {
    client_frames: client_frame, ClientFrame, v1::ClientFrame;
    server_frames: server_frame, ServerFrame, v1::ServerFrame;
    sends: send, Send, v1::Send;
    messages: message, Message, v1::MsgChat;
    refusals: refusal, Refusal, v1::Refusal;
    conversations: conversation, ConversationId, v1::Conversation;
    session_keys: session_key, SessionKey, v1::SessionKey;
    connects: connect, Connect, v1::ConnectRequest;
    admissions: admission, Result<Admission, Refusal>, v1::ConnectResponse;
    disconnects: disconnects, Vec<Disconnect>, v1::DisconnectRequest;
    refresh_tokens: refresh_token, RefreshToken, v1::RefreshRequest;
    refreshments: refreshment, Result<Refreshment, Refusal>, v1::RefreshResponse;
    resume_sessions: resume_session, ResumeSession, v1::ResumeSession;
    resume_tickets: resume_tickets, Vec<Option<ResumeTicket>>, v1::ResumeTicketsResponse;
    reasserts: reassert, Reassert, v1::ReassertSession;
    reassert_answers: reasserted, Reasserted, v1::ReassertResult;
    submits: submit, Submit, v1::SendItem;
    send_answers: send_answer, SendAnswer, v1::SendAnswer;
    receipt_items: receipt_item, ReceiptItem, v1::ReceiptItem;
    mail_page_requests: mail_page_request, MailPageRequest, v1::MailPageRequest;
    mail_pages: mail_page, Page, v1::MailPageResponse;
    mail_acks: mail_ack, MailAck, v1::MailAckItem;
    sync_calls: sync_call, SyncCall, v1::SyncCall;
    online_members: online_members, OnlineMembers, v1::OnlineMembersRequest;
    online_users: online_user, OnlineUser, v1::OnlineUser;
    kickouts: kickout, Kickout, v1::KickoutRequest;
    revokes: revoke, Revoke, v1::RevokeRequest;
    page_starts: page_start, PageStart, v1::RevokedRequest;
    revoked_pages: revoked_page, RevokedPage, v1::RevokedResponse;
    deliver_batches: deliver_batch, DeliverBatch, v1::DeliverBatch;
    drain_commands: drain_command, DrainCommand, v1::DrainRequest;
    drains: drain_progress, DrainProgress, v1::DrainResponse;
    notice_batches: notice_batch, NoticeBatch, v1::NoticeRequest;
    outcomes: outcome, Outcome, v1::Outcome;
}

proptest! {
    // proves S0-50a: the same MsgChat carries private and group messages, told apart by chat_type.
    #[test]
    fn one_type_carries_private_and_group_messages(placed in arbitrary::placed()) {
        let wire = v1::MsgChat::from(&placed);
        let (chat_type, to) = match placed.message.to {
            Recipient::User(user) => (v1::ChatType::P2p, user.get()),
            Recipient::Group(group) => (v1::ChatType::Group, group.get()),
        };
        prop_assert_eq!(wire.chat_type(), chat_type);
        prop_assert_eq!(wire.to_id, to);
        prop_assert_eq!(Placed::try_from(wire), Ok(placed));
    }

    // proves S0-50b, S4-10
    #[test]
    fn rows_give_back_every_field_of_their_message(placed in arbitrary::placed()) {
        let rows = MessageRow::from_placed(&placed, 1, Version::default());
        let is_group = matches!(placed.message.to, Recipient::Group(_));
        prop_assert_eq!(rows.len(), if is_group { 1 } else { 2 });
        let wire = v1::MsgChat::from(&placed);
        for row in rows {
            prop_assert_eq!(v1::MsgChat::from(&row.placed), wire.clone());
        }
    }
}

/// A field of protobuf's wire format, written by hand.
fn varint(number: u32, value: u64) -> Vec<u8> {
    let mut bytes = Vec::new();
    prost::encoding::encode_varint(u64::from(number << 3), &mut bytes);
    prost::encoding::encode_varint(value, &mut bytes);
    bytes
}

fn delimited(number: u32, value: &[u8]) -> Vec<u8> {
    let mut bytes = Vec::new();
    prost::encoding::encode_varint(u64::from(number << 3 | 2), &mut bytes);
    prost::encoding::encode_varint(value.len() as u64, &mut bytes);
    bytes.extend_from_slice(value);
    bytes
}

// proves S0-33, S0-34 in part, S0-35, S0-36, S0-37, S0-38, S0-39, S0-40, S0-41, S0-42
// proves S0-43, S0-44 in part, S0-45 in part, S0-46, S0-47, S0-48 in part, S0-49
#[test]
fn msg_chat_has_the_required_fields_under_their_numbers() {
    let long = i64::MAX - 7;
    let default = v1::MsgChat::default;
    let cases: [(Vec<u8>, v1::MsgChat); 19] = [
        (
            varint(1, long as u64),
            v1::MsgChat {
                msg_id: long,
                ..default()
            },
        ),
        (
            varint(2, long as u64),
            v1::MsgChat {
                user_id: long,
                ..default()
            },
        ),
        (
            varint(3, long as u64),
            v1::MsgChat {
                from_id: long,
                ..default()
            },
        ),
        (
            varint(4, long as u64),
            v1::MsgChat {
                to_id: long,
                ..default()
            },
        ),
        (
            varint(5, long as u64),
            v1::MsgChat {
                tm: long,
                ..default()
            },
        ),
        (
            delimited(6, b"phone"),
            v1::MsgChat {
                dev_id: "phone".into(),
                ..default()
            },
        ),
        (
            delimited(7, b"7e"),
            v1::MsgChat {
                send_id: "7e".into(),
                ..default()
            },
        ),
        (
            varint(8, 3),
            v1::MsgChat {
                msg_type: v1::ChatMsgType::Video.into(),
                ..default()
            },
        ),
        (
            delimited(9, b"\0\xff"),
            v1::MsgChat {
                data: Bytes::from_static(b"\0\xff"),
                ..default()
            },
        ),
        (
            varint(10, 2),
            v1::MsgChat {
                priority: v1::MsgPriority::High.into(),
                ..default()
            },
        ),
        (
            varint(11, long as u64),
            v1::MsgChat {
                ref_message_id: long,
                ..default()
            },
        ),
        (
            varint(12, 3),
            v1::MsgChat {
                status: v1::ChatMsgStatus::Read.into(),
                ..default()
            },
        ),
        (
            varint(13, long as u64),
            v1::MsgChat {
                send_reply: long,
                ..default()
            },
        ),
        (
            varint(14, long as u64),
            v1::MsgChat {
                recv_reply: long,
                ..default()
            },
        ),
        (
            varint(15, long as u64),
            v1::MsgChat {
                read_reply: long,
                ..default()
            },
        ),
        (
            varint(16, 1),
            v1::MsgChat {
                enc_type: v1::EncryptType::EndToEnd.into(),
                ..default()
            },
        ),
        (
            varint(17, 3),
            v1::MsgChat {
                chat_type: v1::ChatType::System.into(),
                ..default()
            },
        ),
        (
            varint(18, 9),
            v1::MsgChat {
                sub_msg_type: 9,
                ..default()
            },
        ),
        (
            varint(19, long as u64),
            v1::MsgChat {
                key_print: long,
                ..default()
            },
        ),
    ];
    for (bytes, expected) in cases {
        assert_eq!(v1::MsgChat::decode(bytes.as_slice()), Ok(expected.clone()));
        assert_eq!(expected.encode_to_vec(), bytes);
    }
}

/// A client, also one of an earlier version, moves on over it: it has the place, and nothing of the change that was asked
/// for.
#[test]
fn a_change_that_died_is_of_no_kind_on_the_wire() {
    let request = ChangeRequest {
        id: MessageId::new(9).expect("positive"),
        send_id: SendId::from_bytes([7; 16]),
        subject: MessageId::new(8).expect("positive"),
        by: UserId::new(1).expect("positive"),
        at: Timestamp::from_millis(5),
        change: MessageChange::Edit(Content::text("said")),
    };
    let dead_change = OrderedChange::died(3, &request);
    let wire = v1::Change::from(&dead_change);
    assert_eq!(
        wire.change
            .as_ref()
            .and_then(|change_of| change_of.kind.as_ref()),
        None
    );
    assert_eq!((wire.content.is_none(), wire.seq), (true, 0));
    let received_change = OrderedChange::try_from(wire).expect("well-formed");
    assert_eq!(received_change.asked.change, MessageChange::Unknown);
    assert_eq!((received_change.rev, received_change.seq), (3, Seq::ZERO));
    assert_ne!(received_change.asked.send_id, request.send_id);
    assert_ne!(received_change.asked.subject, request.subject);
}

// proves S0-40, S0-42, S0-46: the enums are open: a number that this version does not know passes unchanged.
#[test]
fn unknown_types_pass_unchanged() {
    for unknown in [77, i32::MAX, -5] {
        let bytes = v1::MsgChat {
            msg_type: unknown,
            priority: unknown,
            enc_type: unknown,
            ..good_send().message.expect("just made")
        }
        .encode_to_vec();
        let message = v1::MsgChat::decode(bytes.as_slice()).expect("an open enum");
        assert!(v1::ChatMsgType::try_from(message.msg_type).is_err());
        let send = v1::Send {
            message: Some(message),
            ..v1::Send::default()
        };
        let send = Send::try_from(send).expect("opaque to the server");
        let content = &send.content;
        assert_eq!(
            [content.kind, content.priority, content.encryption],
            [unknown; 3]
        );
        let back = v1::Send::from(&send).message.expect("a message");
        assert_eq!(back.encode_to_vec(), bytes);
    }
}

fn good_send() -> v1::Send {
    v1::Send {
        message: Some(v1::MsgChat {
            to_id: 7,
            chat_type: v1::ChatType::P2p.into(),
            send_id: "67e55044-10b1-426f-9247-bb680e5fe0c8".into(),
            options: 7,
            ..v1::MsgChat::default()
        }),
        ..v1::Send::default()
    }
}

fn sent_with(change: impl FnOnce(&mut v1::MsgChat)) -> Result<Send, Refusal> {
    let mut send = good_send();
    change(send.message.as_mut().expect("just made"));
    send.try_into()
}

/// Returns the code, once the text is found to name the field.
fn refused_for<T: std::fmt::Debug>(result: Result<T, Refusal>, names: &str) -> Code {
    let refusal = result.expect_err(names);
    assert!(
        refusal.text.contains(names),
        "{refusal} does not name {names}"
    );
    refusal.code
}

#[test]
fn a_send_is_refused_for_each_thing_that_cannot_be() {
    assert!(sent_with(|_| ()).is_ok());
    let nothing = v1::Send::default();
    assert_eq!(
        refused_for(Send::try_from(nothing), "message"),
        Code::Malformed
    );

    let invalid = Code::InvalidArgument;
    assert_eq!(refused_for(sent_with(|m| m.to_id = 0), "to_id"), invalid);
    assert_eq!(refused_for(sent_with(|m| m.to_id = -1), "to_id"), invalid);
    assert_eq!(
        refused_for(sent_with(|m| m.send_id.clear()), "send_id"),
        invalid
    );
    assert_eq!(
        refused_for(sent_with(|m| m.send_id = "x".into()), "send_id"),
        invalid
    );
    assert_eq!(
        refused_for(sent_with(|m| m.options = 8), "options"),
        invalid
    );
    assert_eq!(
        refused_for(sent_with(|m| m.options = 256), "options"),
        invalid
    );
    assert_eq!(
        refused_for(sent_with(|m| m.chat_type = 0), "chat_type"),
        invalid
    );
    assert_eq!(
        refused_for(sent_with(|m| m.chat_type = 99), "chat_type"),
        invalid
    );
    assert_eq!(
        refused_for(sent_with(|m| m.ref_message_id = -1), "ref_message_id"),
        invalid
    );
    let system = sent_with(|m| m.chat_type = v1::ChatType::System.into());
    assert_eq!(refused_for(system, "system"), Code::Unsupported);
}

#[test]
fn server_fields_of_a_send_are_ignored() {
    let plain = sent_with(|_| ());
    let forgery = sent_with(|m| {
        (m.msg_id, m.user_id, m.from_id, m.tm) = (1, 2, 3, 4);
        (m.seq, m.prev_id, m.status, m.read_reply) = (5, 6, 3, 8);
        m.dev_id = "another's".into();
    });
    assert_eq!(forgery, plain);
}

fn hello_with(change: impl FnOnce(&mut v1::Hello)) -> Result<ClientFrame, Refusal> {
    let mut hello = v1::Hello {
        version: 1,
        token: "t".into(),
        device: "phone".into(),
        platform: v1::Platform::Ios.into(),
        marker: 0,
        ..v1::Hello::default()
    };
    change(&mut hello);
    let frame = Some(v1::client_frame::Frame::Hello(hello));
    v1::ClientFrame { frame }.try_into()
}

#[test]
fn a_hello_is_refused_for_each_thing_that_cannot_be() {
    assert!(hello_with(|_| ()).is_ok());
    let invalid = Code::InvalidArgument;
    assert_eq!(
        refused_for(hello_with(|h| h.platform = 0), "platform"),
        invalid
    );
    assert_eq!(
        refused_for(hello_with(|h| h.platform = 8), "platform"),
        invalid
    );
    assert_eq!(
        refused_for(hello_with(|h| h.platform = -1), "platform"),
        invalid
    );
    assert_eq!(
        refused_for(hello_with(|h| h.device.clear()), "device"),
        invalid
    );
    assert_eq!(
        refused_for(hello_with(|h| h.device = "a\u{1b}".into()), "device"),
        invalid
    );
    assert_eq!(
        refused_for(hello_with(|h| h.device = "x".repeat(65)), "device"),
        invalid
    );
    let long = hello_with(|h| h.token = "x".repeat(TOKEN_BYTES_MAX + 1));
    assert_eq!(refused_for(long, "token"), Code::TooLarge);
}

#[test]
fn unset_choices_are_malformed() {
    let frame = ClientFrame::try_from(v1::ClientFrame::default());
    assert_eq!(refused_for(frame, "content"), Code::Malformed);
    let frame = ServerFrame::try_from(v1::ServerFrame::default());
    assert_eq!(refused_for(frame, "content"), Code::Malformed);
    let call = v1::SyncCall {
        user: 1,
        session: 1,
        request: Some(v1::SyncRequest::default()),
        ..v1::SyncCall::default()
    };
    assert_eq!(
        refused_for(SyncCall::try_from(call), "query"),
        Code::Malformed
    );
    let batch = DeliverBatch::try_from(v1::DeliverBatch::default());
    assert_eq!(refused_for(batch, "life"), Code::Malformed);
    let answer = Result::<Admission, Refusal>::try_from(v1::ConnectResponse::default());
    assert_eq!(refused_for(answer, "result"), Code::Malformed);
}

fn repeated_ack(item: v1::AckItem, times: usize) -> Result<ClientFrame, Refusal> {
    let ack = v1::Ack {
        kind: v1::ReceiptKind::Received.into(),
        items: vec![item; times],
    };
    let frame = Some(v1::client_frame::Frame::Ack(ack));
    v1::ClientFrame { frame }.try_into()
}

#[test]
fn an_ack_is_refused_for_each_thing_that_cannot_be() {
    let item = |a, b, id| v1::AckItem {
        conversation: Some(v1::Conversation {
            r#type: v1::ChatType::P2p.into(),
            user_a: a,
            user_b: b,
            group: 0,
        }),
        msg_id: id,
        seq: 1,
    };
    assert!(repeated_ack(item(2, 1, 5), ACK_ITEMS_MAX).is_ok());
    let many = repeated_ack(item(1, 2, 5), ACK_ITEMS_MAX + 1);
    assert_eq!(refused_for(many, "ack.items"), Code::TooLarge);
    let invalid = Code::InvalidArgument;
    assert_eq!(
        refused_for(repeated_ack(item(1, 1, 5), 1), "two different users"),
        invalid
    );
    assert_eq!(
        refused_for(repeated_ack(item(0, 1, 5), 1), "user_a"),
        invalid
    );
    assert_eq!(
        refused_for(repeated_ack(item(1, 2, 0), 1), "msg_id"),
        invalid
    );
    let nowhere = v1::AckItem {
        conversation: None,
        ..item(1, 2, 5)
    };
    assert_eq!(
        refused_for(repeated_ack(nowhere, 1), "conversation"),
        Code::Malformed
    );
}

#[test]
fn a_status_question_has_a_bound() {
    let ask = |count: usize| {
        let query = v1::sync_request::Query::Status(v1::StatusQuery {
            msg_ids: vec![1; count],
        });
        let wire = v1::SyncRequest {
            request: 1,
            query: Some(query),
        };
        protocol::frame::SyncRequest::try_from(wire)
    };
    assert!(ask(STATUS_IDS_MAX).is_ok());
    assert_eq!(
        refused_for(ask(STATUS_IDS_MAX + 1), "status.msg_ids"),
        Code::TooLarge
    );
}

#[test]
fn a_message_without_a_place_is_not_placed() {
    let message = v1::MsgChat {
        msg_id: 1,
        from_id: 1,
        dev_id: "phone".into(),
        ..good_send().message.expect("just made")
    };
    assert!(Message::try_from(message.clone()).is_ok());
    let result = Placed::try_from(message.clone());
    assert_eq!(refused_for(result, "seq"), Code::InvalidArgument);
    let to_self = v1::MsgChat {
        seq: 1,
        from_id: 7,
        ..message
    };
    assert_eq!(
        refused_for(Placed::try_from(to_self), "same user"),
        Code::ToSelf
    );
}

#[test]
fn a_code_of_a_newer_server_still_says_whether_to_retry() {
    let from = |code| {
        Refusal::try_from(v1::Refusal {
            code,
            text: "new".into(),
            retry_after_ms: 5,
        })
    };
    let retryable = from(4444).expect("a code of the retryable kind");
    assert!(retryable.code.retryable() && retryable.text.contains("4444"));
    assert_eq!(retryable.retry_after, Some(Duration::from_millis(5)));
    let terminal = from(4999).expect("a code of the terminal kind");
    assert!(!terminal.code.retryable() && terminal.text.contains("4999"));
    assert_eq!(from(0).expect_err("no code").code, Code::Malformed);
    assert_eq!(from(70_000).expect_err("no code").code, Code::Malformed);
}

#[test]
fn the_first_position_has_no_predecessor() {
    use crate::v1::history_query::Range;
    let none = HistoryRange::Backward {
        before: Some(protocol::Seq::ZERO),
    };
    // 0 would mean "from the newest".
    assert_eq!(Range::from(none), Range::Before(1));
}
