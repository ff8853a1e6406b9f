//! Frames from client to boat: [`ClientFrame`] and everything in it, except sync questions.

use protocol::frame::{Ack, AckItem, ClientFrame, Hello, Refresh};
use protocol::subscription::GroupEnd;
use protocol::{DeviceId, GroupId, MessageId, Refusal, Seq};

use super::ACK_ITEMS_MAX;
use super::{by_value, conversation, field, list, platform, platform_number, present};
use super::{receipt_kind, receipt_number, resume_bytes, shown_resume_ticket, token};
use crate::v1;
use crate::v1::client_frame::Frame;

impl TryFrom<v1::ClientFrame> for ClientFrame {
    type Error = Refusal;

    fn try_from(wire: v1::ClientFrame) -> Result<Self, Refusal> {
        let frame = present(
            "the frame's content (hello, send, give_up, ack, ping, sync, refresh, subscribe, watch)",
            wire.frame,
        )?;
        Ok(match frame {
            Frame::Hello(hello) => ClientFrame::Hello(hello.try_into()?),
            Frame::Send(send) => ClientFrame::Send(send.try_into()?),
            Frame::GiveUp(give_up) => {
                ClientFrame::GiveUp(field("give_up.send_id", give_up.send_id.parse())?)
            }
            Frame::Ack(ack) => ClientFrame::Ack(ack.try_into()?),
            Frame::Ping(ping) => ClientFrame::Ping { nonce: ping.nonce },
            Frame::Sync(request) => ClientFrame::Sync(request.try_into()?),
            Frame::Refresh(refresh) => ClientFrame::Refresh(Refresh {
                token: token(refresh.token)?,
            }),
            Frame::Subscribe(subscribe) => {
                let groups = subscribe.groups.into_iter();
                let groups = groups.map(|end| group_end("subscribe.groups", end));
                ClientFrame::Subscribe(groups.collect::<Result<_, _>>()?)
            }
            Frame::Watch(watch) => {
                let groups = watch.groups.into_iter();
                let groups = groups.map(|group| field("watch.groups", GroupId::new(group)));
                ClientFrame::Watch(groups.collect::<Result<_, _>>()?)
            }
        })
    }
}

impl From<&ClientFrame> for v1::ClientFrame {
    fn from(frame: &ClientFrame) -> Self {
        let frame = match frame {
            ClientFrame::Hello(hello) => Frame::Hello(hello.into()),
            ClientFrame::Send(send) => Frame::Send(send.into()),
            ClientFrame::GiveUp(send_id) => Frame::GiveUp(v1::GiveUp {
                send_id: send_id.to_string(),
            }),
            ClientFrame::Ack(ack) => Frame::Ack(ack.into()),
            ClientFrame::Ping { nonce } => Frame::Ping(v1::Ping { nonce: *nonce }),
            ClientFrame::Sync(request) => Frame::Sync(request.into()),
            ClientFrame::Refresh(refresh) => Frame::Refresh(v1::Refresh {
                token: refresh.token.clone(),
            }),
            ClientFrame::Subscribe(groups) => Frame::Subscribe(v1::Subscribe {
                groups: groups.iter().map(|&end| end.into()).collect(),
            }),
            ClientFrame::Watch(groups) => Frame::Watch(v1::Watch {
                groups: groups.iter().map(|group| group.get()).collect(),
            }),
        };
        v1::ClientFrame { frame: Some(frame) }
    }
}

/// A group and how far it is.
pub(super) fn group_end(name: &str, wire: v1::GroupEnd) -> Result<(GroupId, GroupEnd), Refusal> {
    let end = GroupEnd {
        seq: Seq(wire.seq),
        rev: wire.rev,
    };
    Ok((field(name, GroupId::new(wire.group))?, end))
}

impl From<(GroupId, GroupEnd)> for v1::GroupEnd {
    fn from((group, end): (GroupId, GroupEnd)) -> Self {
        v1::GroupEnd {
            group: group.get(),
            seq: end.seq.0,
            rev: end.rev,
        }
    }
}

impl TryFrom<v1::Hello> for Hello {
    type Error = Refusal;

    fn try_from(wire: v1::Hello) -> Result<Self, Refusal> {
        Ok(Hello {
            version: wire.version,
            device: field("hello.device", DeviceId::new(&wire.device))?,
            platform: platform("hello.platform", wire.platform)?,
            token: token(wire.token)?,
            marker: (wire.marker != 0).then_some(wire.marker),
            resume: shown_resume_ticket(&wire.resume_ticket)?,
        })
    }
}

impl From<&Hello> for v1::Hello {
    fn from(hello: &Hello) -> Self {
        v1::Hello {
            version: hello.version,
            token: hello.token.clone(),
            device: hello.device.as_str().to_owned(),
            platform: platform_number(hello.platform),
            marker: hello.marker.unwrap_or(0),
            resume_ticket: resume_bytes(hello.resume.as_ref()),
        }
    }
}

impl TryFrom<v1::Ack> for Ack {
    type Error = Refusal;

    fn try_from(wire: v1::Ack) -> Result<Self, Refusal> {
        Ok(Ack {
            kind: receipt_kind(wire.kind)?,
            items: list("ack.items", wire.items, ACK_ITEMS_MAX)?,
        })
    }
}

impl From<&Ack> for v1::Ack {
    fn from(ack: &Ack) -> Self {
        v1::Ack {
            kind: receipt_number(ack.kind),
            items: ack.items.iter().map(|&item| item.into()).collect(),
        }
    }
}

impl TryFrom<v1::AckItem> for AckItem {
    type Error = Refusal;

    fn try_from(wire: v1::AckItem) -> Result<Self, Refusal> {
        Ok(AckItem {
            conversation: conversation(wire.conversation)?,
            id: field("ack.items.msg_id", MessageId::new(wire.msg_id))?,
            seq: Seq(wire.seq),
        })
    }
}

impl From<AckItem> for v1::AckItem {
    fn from(item: AckItem) -> Self {
        v1::AckItem {
            conversation: Some(item.conversation.into()),
            msg_id: item.id.get(),
            seq: item.seq.0,
        }
    }
}

by_value! {
    ClientFrame => v1::ClientFrame,
    Hello => v1::Hello,
    Ack => v1::Ack,
}
