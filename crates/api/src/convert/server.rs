//! Frames from boat to client: [`ServerFrame`] and everything in it, except sync pages.

use std::time::Duration;

use protocol::frame::{Accepted, Acked, PlacedEcho, ServerFrame, Welcome};
use protocol::receipt::Receipt;
use protocol::subscription::{GroupSignal, SubscriptionState};
use protocol::{MessageId, Position, Refusal, Seq, SessionId, Timestamp, UserId};

use super::client::group_end;
use super::{by_value, conversation, field, id_or_zero, message_ids, millis, optional_message};
use super::{optional_time, present, receipt_kind, receipt_number, resume_bytes, resume_ticket};
use crate::station::SendAnswer;
use crate::v1;
use crate::v1::server_frame::Frame;

impl TryFrom<v1::ServerFrame> for ServerFrame {
    type Error = Refusal;

    fn try_from(wire: v1::ServerFrame) -> Result<Self, Refusal> {
        let frame = present("the frame's content", wire.frame)?;
        let resume = &wire.resume_ticket;
        Ok(match frame {
            Frame::Welcome(welcome) => ServerFrame::Welcome(welcome.try_into()?),
            Frame::SendAnswer(answer) => SendAnswer::try_from(answer)?.into(),
            Frame::Placed(echo) => ServerFrame::Placed(echo.try_into()?),
            Frame::Message(chat) => ServerFrame::Message(chat.try_into()?),
            Frame::Changed(change) => ServerFrame::Changed {
                conversation: conversation(change.conversation)?,
                changed: present("changed.change", change.change)?.try_into()?,
            },
            Frame::Listed(event) => ServerFrame::Listed(event.try_into()?),
            Frame::AckAnswer(answer) => ServerFrame::Acked(answer.try_into()?),
            Frame::Receipts(receipts) => {
                let receipts = receipts.receipts.into_iter().map(Receipt::try_from);
                ServerFrame::Receipts(receipts.collect::<Result<_, _>>()?)
            }
            Frame::Pong(pong) => ServerFrame::Pong {
                nonce: pong.nonce,
                server_time: Timestamp::from_millis(pong.server_time),
            },
            Frame::Page(page) => ServerFrame::Page(page.try_into()?),
            Frame::Signals(signals) => {
                let signals = signals.signals.into_iter().map(GroupSignal::try_from);
                ServerFrame::Signals(signals.collect::<Result<_, _>>()?)
            }
            Frame::Resync(v1::Resync {}) => ServerFrame::Resync,
            Frame::Error(error) => ServerFrame::Error {
                request: (error.request != 0).then_some(error.request),
                refusal: present("error.refusal", error.refusal)?.try_into()?,
            },
            Frame::Closing(refusal) => ServerFrame::Closing {
                refusal: refusal.try_into()?,
                resume: resume_ticket(resume),
            },
            Frame::Refreshed(refresh) => ServerFrame::Refreshed {
                expires_at: Timestamp::from_millis(refresh.expires_at),
            },
        })
    }
}

impl From<&ServerFrame> for v1::ServerFrame {
    fn from(frame: &ServerFrame) -> Self {
        let resume = match frame {
            ServerFrame::Closing { resume, .. } => resume.as_ref(),
            _ => None,
        };
        let frame = match frame {
            ServerFrame::Welcome(welcome) => Frame::Welcome(welcome.into()),
            ServerFrame::Accepted(accepted) => Frame::SendAnswer((*accepted).into()),
            ServerFrame::Refused { send_id, refusal } => Frame::SendAnswer(v1::SendAnswer {
                send_id: send_id.to_string(),
                refusal: Some(refusal.into()),
                ..v1::SendAnswer::default()
            }),
            ServerFrame::Placed(echo) => Frame::Placed((*echo).into()),
            ServerFrame::Message(message) => Frame::Message(message.into()),
            ServerFrame::Changed {
                conversation,
                changed: change,
            } => Frame::Changed(v1::Changed {
                conversation: Some((*conversation).into()),
                change: Some(change.into()),
            }),
            ServerFrame::Listed(event) => Frame::Listed(event.into()),
            ServerFrame::Acked(answer) => Frame::AckAnswer(answer.into()),
            ServerFrame::Receipts(receipts) => Frame::Receipts(v1::Receipts {
                receipts: receipts.iter().map(|&receipt| receipt.into()).collect(),
            }),
            ServerFrame::Pong { nonce, server_time } => Frame::Pong(v1::Pong {
                nonce: *nonce,
                server_time: server_time.millis(),
            }),
            ServerFrame::Page(page) => Frame::Page(page.into()),
            ServerFrame::Signals(signals) => Frame::Signals(v1::Signals {
                signals: signals.iter().map(|&signal| signal.into()).collect(),
            }),
            ServerFrame::Resync => Frame::Resync(v1::Resync {}),
            ServerFrame::Error { request, refusal } => Frame::Error(v1::Error {
                request: request.unwrap_or(0),
                refusal: Some(refusal.into()),
            }),
            ServerFrame::Closing { refusal, .. } => Frame::Closing(refusal.into()),
            ServerFrame::Refreshed { expires_at } => Frame::Refreshed(v1::Refreshed {
                expires_at: expires_at.millis(),
            }),
        };
        v1::ServerFrame {
            frame: Some(frame),
            resume_ticket: resume_bytes(resume),
        }
    }
}

impl TryFrom<v1::GroupSignal> for GroupSignal {
    type Error = Refusal;

    fn try_from(wire: v1::GroupSignal) -> Result<Self, Refusal> {
        let (group, end) = group_end("signals.end.group", present("signals.end", wire.end)?)?;
        let mut states = SubscriptionState::ALL.into_iter();
        let state = states.find(|state| state.number() == wire.state);
        Ok(GroupSignal {
            group,
            end,
            at: Timestamp::from_millis(wire.at),
            state: present("signals.state", state)?,
            spread: Duration::from_millis(u64::from(wire.spread_ms)),
        })
    }
}

impl From<GroupSignal> for v1::GroupSignal {
    fn from(signal: GroupSignal) -> Self {
        v1::GroupSignal {
            end: Some((signal.group, signal.end).into()),
            at: signal.at.millis(),
            state: signal.state.number(),
            spread_ms: u32::try_from(millis(signal.spread)).unwrap_or(u32::MAX),
        }
    }
}

impl TryFrom<v1::Welcome> for Welcome {
    type Error = Refusal;

    fn try_from(wire: v1::Welcome) -> Result<Self, Refusal> {
        Ok(Welcome {
            session: field("welcome.session", SessionId::new(wire.session))?,
            user: field("welcome.user", UserId::new(wire.user))?,
            server_time: Timestamp::from_millis(wire.server_time),
            heartbeat: Duration::from_millis(u64::from(wire.heartbeat_ms)),
            frame_bytes_max: wire.frame_bytes_max,
            send_window: wire.send_window,
            cluster: wire.cluster,
            marker: wire.marker,
            recovered: wire.recovered,
            expires_at: optional_time(wire.expires_at),
        })
    }
}

impl From<&Welcome> for v1::Welcome {
    fn from(welcome: &Welcome) -> Self {
        v1::Welcome {
            session: welcome.session.get(),
            user: welcome.user.get(),
            server_time: welcome.server_time.millis(),
            heartbeat_ms: u32::try_from(millis(welcome.heartbeat)).unwrap_or(u32::MAX),
            frame_bytes_max: welcome.frame_bytes_max,
            send_window: welcome.send_window,
            cluster: welcome.cluster,
            marker: welcome.marker,
            recovered: welcome.recovered,
            expires_at: welcome.expires_at.map_or(0, Timestamp::millis),
        }
    }
}

impl From<Accepted> for v1::SendAnswer {
    fn from(answer: Accepted) -> Self {
        v1::SendAnswer {
            send_id: answer.send_id.to_string(),
            msg_id: answer.id.get(),
            tm: answer.accepted_at.millis(),
            refusal: None,
        }
    }
}

impl TryFrom<v1::PlacedEcho> for PlacedEcho {
    type Error = Refusal;

    fn try_from(wire: v1::PlacedEcho) -> Result<Self, Refusal> {
        Ok(PlacedEcho {
            send_id: field("placed.send_id", wire.send_id.parse())?,
            id: field("placed.msg_id", MessageId::new(wire.msg_id))?,
            conversation: conversation(wire.conversation)?,
            position: Position {
                seq: Seq(wire.seq),
                prev: optional_message("placed.prev_id", wire.prev_id)?,
            },
        })
    }
}

impl From<PlacedEcho> for v1::PlacedEcho {
    fn from(echo: PlacedEcho) -> Self {
        v1::PlacedEcho {
            send_id: echo.send_id.to_string(),
            msg_id: echo.id.get(),
            conversation: Some(echo.conversation.into()),
            seq: echo.position.seq.0,
            prev_id: id_or_zero(echo.position.prev),
        }
    }
}

impl TryFrom<v1::AckAnswer> for Acked {
    type Error = Refusal;

    fn try_from(wire: v1::AckAnswer) -> Result<Self, Refusal> {
        let refusals = wire.refused.into_iter().map(|item| {
            let id = field("ack_answer.refused.msg_id", MessageId::new(item.msg_id))?;
            let refusal = present("ack_answer.refused.refusal", item.refusal)?;
            Ok((id, Refusal::try_from(refusal)?))
        });
        Ok(Acked {
            kind: receipt_kind(wire.kind)?,
            refusals: refusals.collect::<Result<_, Refusal>>()?,
            ids: message_ids("ack_answer.msg_ids", wire.msg_ids)?,
        })
    }
}

impl From<&Acked> for v1::AckAnswer {
    fn from(answer: &Acked) -> Self {
        v1::AckAnswer {
            kind: receipt_number(answer.kind),
            msg_ids: answer.ids.iter().map(|id| id.get()).collect(),
            refused: answer
                .refusals
                .iter()
                .map(|(id, refusal)| v1::AckRefused {
                    msg_id: id.get(),
                    refusal: Some(refusal.into()),
                })
                .collect(),
        }
    }
}

impl TryFrom<v1::Receipt> for Receipt {
    type Error = Refusal;

    fn try_from(wire: v1::Receipt) -> Result<Self, Refusal> {
        Ok(Receipt {
            kind: receipt_kind(wire.kind)?,
            conversation: conversation(wire.conversation)?,
            id: field("receipt.msg_id", MessageId::new(wire.msg_id))?,
            seq: Seq(wire.seq),
            by: field("receipt.by", UserId::new(wire.by))?,
            at: Timestamp::from_millis(wire.at),
        })
    }
}

impl From<Receipt> for v1::Receipt {
    fn from(receipt: Receipt) -> Self {
        v1::Receipt {
            kind: receipt_number(receipt.kind),
            conversation: Some(receipt.conversation.into()),
            msg_id: receipt.id.get(),
            seq: receipt.seq.0,
            by: receipt.by.get(),
            at: receipt.at.millis(),
        }
    }
}

by_value! {
    ServerFrame => v1::ServerFrame,
    Welcome => v1::Welcome,
    Acked => v1::AckAnswer,
}
