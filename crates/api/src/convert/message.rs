//! `MsgChat`, the one message of the wire, in its three stages: as a client sends it ([`Send`]), as
//! the log has it ([`Message`]), and with its place ([`Placed`]). Two items of batches carry it
//! between services: a [`Submit`] to a station, and a [`Push`] to a boat.

use std::time::Duration;

use protocol::delivery::{Push, PushToken};
use protocol::frame::Send;
use protocol::message::{Content, Target};
use protocol::session::Submit;
use protocol::{
    Code, DeviceId, GroupId, Message, MessageId, Options, Placed, Position, Recipient, Refusal,
    Seq, SessionId, Timestamp, TraceContext, UserId,
};

use super::change::change;
use super::station::{ticket, ticket_bytes};
use super::{by_value, field, id_or_zero, invalid, millis, optional_message, platform};
use super::{platform_number, present};
use crate::trace::trace_text;
use crate::v1;

fn recipient(wire: &v1::MsgChat) -> Result<Recipient, Refusal> {
    match v1::ChatType::try_from(wire.chat_type) {
        Ok(v1::ChatType::P2p) => field("to_id", UserId::new(wire.to_id)).map(Recipient::User),
        Ok(v1::ChatType::Group) => field("to_id", GroupId::new(wire.to_id)).map(Recipient::Group),
        Ok(v1::ChatType::System) => Err(Refusal::new(
            Code::Unsupported,
            "system messages are made by the server only: send chat_type 1 (p2p) or 2 (group)",
        )),
        Ok(v1::ChatType::Unspecified) | Err(_) => Err(invalid(format!(
            "chat_type is 1 (p2p) or 2 (group), got {}",
            wire.chat_type
        ))),
    }
}

fn options(bits: u32) -> Result<Options, Refusal> {
    let options = u8::try_from(bits).ok().and_then(Options::from_bits);
    options.ok_or_else(|| {
        invalid(format!(
            "options {bits} has a bit without a meaning: add up 1 (needs an acknowledgement), \
             2 (store if offline) and 4 (notify if offline)"
        ))
    })
}

pub(super) fn content(wire: v1::MsgChat) -> Result<Content, Refusal> {
    Ok(Content {
        kind: wire.msg_type,
        data: wire.data,
        priority: wire.priority,
        reference: optional_message("ref_message_id", wire.ref_message_id)?,
        encryption: wire.enc_type,
        sub_kind: wire.sub_msg_type,
        key_print: wire.key_print,
        change: change(wire.change)?,
    })
}

/// Content of a message, the rest at zero.
pub(super) fn saying(content: &Content) -> v1::MsgChat {
    v1::MsgChat {
        msg_type: content.kind,
        data: content.data.clone(),
        priority: content.priority,
        ref_message_id: id_or_zero(content.reference),
        enc_type: content.encryption,
        sub_msg_type: content.sub_kind,
        key_print: content.key_print,
        change: content.change.as_deref().map(v1::ChangeOf::from),
        ..v1::MsgChat::default()
    }
}

/// Fields that a client may set, the rest at zero.
fn chat(to: Recipient, content: &Content, options: Options) -> v1::MsgChat {
    let (chat_type, to_id) = match to {
        Recipient::User(user) => (v1::ChatType::P2p, user.get()),
        Recipient::Group(group) => (v1::ChatType::Group, group.get()),
    };
    v1::MsgChat {
        to_id,
        chat_type: chat_type.into(),
        options: u32::from(options.bits()),
        ..saying(content)
    }
}

impl TryFrom<v1::Send> for Send {
    type Error = Refusal;

    /// Fields that a client may not set (id, sender, time, device, place) are ignored, not refused.
    fn try_from(wire: v1::Send) -> Result<Self, Refusal> {
        let message = present("send.message", wire.message)?;
        Ok(Send {
            send_id: field("send_id", message.send_id.parse())?,
            trace: TraceContext::parse(&message.traceparent),
            to: recipient(&message)?,
            options: options(message.options)?,
            content: content(message)?,
            attempt: wire.attempt,
            age: Duration::from_millis(wire.age_ms),
            seen_seq: (wire.seen_seq != 0).then_some(Seq(wire.seen_seq)),
        })
    }
}

impl From<&Send> for v1::Send {
    fn from(send: &Send) -> Self {
        v1::Send {
            message: Some(v1::MsgChat {
                send_id: send.send_id.to_string(),
                traceparent: trace_text(send.trace),
                ..chat(send.to, &send.content, send.options)
            }),
            attempt: send.attempt,
            age_ms: millis(send.age),
            seen_seq: send.seen_seq.map_or(0, |seq| seq.0),
        }
    }
}

impl TryFrom<v1::SendItem> for Submit {
    type Error = Refusal;

    fn try_from(wire: v1::SendItem) -> Result<Self, Refusal> {
        Ok(Submit {
            session: field("send_item.session", SessionId::new(wire.session))?,
            user: field("send_item.user", UserId::new(wire.user))?,
            device: field("send_item.device", DeviceId::new(&wire.device))?,
            platform: platform("send_item.platform", wire.platform)?,
            send: present("send_item.send", wire.send)?.try_into()?,
            ticket: ticket("send_item.ticket", &wire.ticket)?,
        })
    }
}

impl From<&Submit> for v1::SendItem {
    fn from(submit: &Submit) -> Self {
        v1::SendItem {
            session: submit.session.get(),
            user: submit.user.get(),
            device: submit.device.as_str().to_owned(),
            platform: platform_number(submit.platform),
            send: Some((&submit.send).into()),
            ticket: ticket_bytes(submit.ticket.as_ref()),
        }
    }
}

impl TryFrom<v1::MsgChat> for Message {
    type Error = Refusal;

    fn try_from(wire: v1::MsgChat) -> Result<Self, Refusal> {
        Ok(Message {
            id: field("msg_id", MessageId::new(wire.msg_id))?,
            from: field("from_id", UserId::new(wire.from_id))?,
            to: recipient(&wire)?,
            accepted_at: Timestamp::from_millis(wire.tm),
            device: field("dev_id", DeviceId::new(&wire.dev_id))?,
            send_id: field("send_id", wire.send_id.parse())?,
            options: options(wire.options)?,
            content: content(wire)?,
        })
    }
}

impl From<&Message> for v1::MsgChat {
    /// `user_id` stays 0: the encoder of a copy sets its owner.
    fn from(message: &Message) -> Self {
        v1::MsgChat {
            msg_id: message.id.get(),
            from_id: message.from.get(),
            tm: message.accepted_at.millis(),
            dev_id: message.device.as_str().to_owned(),
            send_id: message.send_id.to_string(),
            status: v1::ChatMsgStatus::Sent.into(),
            send_reply: message.accepted_at.millis(),
            ..chat(message.to, &message.content, message.options)
        }
    }
}

impl TryFrom<v1::MsgChat> for Placed {
    type Error = Refusal;

    fn try_from(wire: v1::MsgChat) -> Result<Self, Refusal> {
        let (seq, prev) = (Seq(wire.seq), wire.prev_id);
        if seq == Seq::ZERO {
            return Err(invalid("seq is 0: a message with a place has 1 or more"));
        }
        let prev = optional_message("prev_id", prev)?;
        let message = Message::try_from(wire)?;
        let conversation = message
            .conversation()
            .ok_or_else(|| Refusal::new(Code::ToSelf, "from_id and to_id are the same user"))?;
        Ok(Placed {
            message,
            conversation,
            position: Position { seq, prev },
        })
    }
}

impl From<&Placed> for v1::MsgChat {
    fn from(message: &Placed) -> Self {
        v1::MsgChat {
            seq: message.position.seq.0,
            prev_id: id_or_zero(message.position.prev),
            ..(&message.message).into()
        }
    }
}

impl TryFrom<v1::Delivery> for Push {
    type Error = Refusal;

    fn try_from(wire: v1::Delivery) -> Result<Self, Refusal> {
        Ok(Push {
            token: PushToken::from_number(wire.token),
            session: field("delivery.session", SessionId::new(wire.session))?,
            message: field("delivery.msg_id", MessageId::new(wire.msg_id))?,
            frame: wire.frame,
            needs_ack: wire.needs_ack,
            trace: TraceContext::parse(&wire.traceparent),
        })
    }
}

impl From<&Push> for v1::Delivery {
    fn from(push: &Push) -> Self {
        v1::Delivery {
            token: push.token.number(),
            session: push.session.get(),
            msg_id: push.message.get(),
            frame: push.frame.clone(),
            needs_ack: push.needs_ack,
            traceparent: trace_text(push.trace),
        }
    }
}

impl TryFrom<v1::DeliverTarget> for Target {
    type Error = Refusal;

    fn try_from(wire: v1::DeliverTarget) -> Result<Self, Refusal> {
        Ok(Target {
            user: field("target", UserId::new(wire.user))?,
            platform: platform("target's platform", wire.platform)?,
        })
    }
}

impl From<Target> for v1::DeliverTarget {
    fn from(target: Target) -> Self {
        v1::DeliverTarget {
            user: target.user.get(),
            platform: platform_number(target.platform),
        }
    }
}

by_value! {
    Send => v1::Send,
    Submit => v1::SendItem,
    Message => v1::MsgChat,
    Placed => v1::MsgChat,
    Push => v1::Delivery,
}
