//! The same load in two languages: Packetboat's protocol, and the floor's.

use anyhow::{Context, Result, bail};
use bytes::Bytes;
use protocol::frame::{self, Ack, AckItem, ClientFrame, Hello, ServerFrame};
use protocol::id::Uuid;
use protocol::message::Content;
use protocol::receipt::ReceiptKind;
use protocol::{DeviceId, Options, Platform, Recipient, SendId, UserId};

use super::floor;
use crate::settings::Settings;

/// Users of the load have numbers from here on; partners differ in the lowest bit.
const FIRST_USER: u64 = 1 << 40;

#[derive(Clone, Debug)]
pub(super) enum Dialect {
    Packetboat { settings: Box<Settings> },
    Floor,
}

/// What a server said, as far as a load generator cares.
#[derive(Debug)]
pub(super) enum Heard {
    Welcome,
    Accepted(u64),
    Message { n: u64, body: Bytes, ack: AckOf },
    Refused(String),
    Other,
}

/// How a message is acknowledged.
#[derive(Debug)]
pub(super) enum AckOf {
    Item(AckItem),
    Number(u64),
}

impl Dialect {
    pub(super) fn name(&self) -> &'static str {
        match self {
            Dialect::Packetboat { .. } => "packetboat",
            Dialect::Floor => "floor",
        }
    }

    pub(super) fn hello(&self, user: u64) -> Result<Bytes> {
        let Dialect::Packetboat { settings } = self else {
            return Ok(floor::frame(floor::HELLO, user, &[]));
        };
        let device = DeviceId::new("bench").context("a device name")?;
        let token = crate::cli::token::sign(
            settings,
            UserId::new((FIRST_USER + user) as i64)?,
            None,
            None,
            std::time::Duration::from_secs(86_400),
        )?;
        Ok(api::codec::encode_client(&ClientFrame::Hello(Hello {
            version: frame::VERSION,
            token,
            device,
            platform: Platform::Desktop,
            marker: None,
        })))
    }

    /// The `n`th message of `user` to its partner.
    pub(super) fn send(&self, user: u64, n: u64, body: Bytes) -> Result<Bytes> {
        let Dialect::Packetboat { .. } = self else {
            return Ok(floor::frame(floor::SEND, n, &body));
        };
        let send_id = Uuid::from_u64_pair(user, n);
        Ok(api::codec::encode_client(&ClientFrame::Send(frame::Send {
            send_id: SendId::from_uuid(send_id),
            to: Recipient::User(UserId::new((FIRST_USER + (user ^ 1)) as i64)?),
            options: Options::CHAT,
            content: Content {
                data: body,
                ..Content::text("")
            },
            attempt: 0,
            age: std::time::Duration::ZERO,
            seen_seq: None,
            trace: None,
        })))
    }

    pub(super) fn acknowledge(&self, acks: Vec<AckOf>) -> Vec<Bytes> {
        let (mut items, mut frames) = (Vec::new(), Vec::new());
        for ack in acks {
            match ack {
                AckOf::Item(item) => items.push(item),
                AckOf::Number(n) => frames.push(floor::frame(floor::ACK, n, &[])),
            }
        }
        if !items.is_empty() {
            let ack = Ack {
                kind: ReceiptKind::Received,
                items,
            };
            frames.push(api::codec::encode_client(&ClientFrame::Ack(ack)));
        }
        frames
    }

    pub(super) fn hear(&self, bytes: Bytes) -> Result<Heard> {
        match self {
            Dialect::Packetboat { .. } => hear_packetboat(bytes),
            Dialect::Floor => match floor::parse(&bytes) {
                Some((floor::HELLO, ..)) => Ok(Heard::Welcome),
                Some((floor::ACCEPTED, n, _)) => Ok(Heard::Accepted(n)),
                Some((floor::MESSAGE, n, body)) => Ok(Heard::Message {
                    n,
                    body,
                    ack: AckOf::Number(n),
                }),
                _ => bail!("the floor said something strange"),
            },
        }
    }
}

fn hear_packetboat(bytes: Bytes) -> Result<Heard> {
    Ok(match api::codec::decode_server(bytes, usize::MAX)? {
        ServerFrame::Welcome(_) => Heard::Welcome,
        ServerFrame::Accepted(accepted) => Heard::Accepted(number(accepted.send_id)),
        ServerFrame::Message(placed) => Heard::Message {
            n: number(placed.message.send_id),
            ack: AckOf::Item(AckItem {
                conversation: placed.conversation,
                id: placed.message.id,
                seq: placed.position.seq,
            }),
            body: placed.message.content.data,
        },
        ServerFrame::Refused { refusal, .. }
        | ServerFrame::Error { refusal, .. }
        | ServerFrame::Closing(refusal) => Heard::Refused(refusal.to_string()),
        ServerFrame::Placed(_)
        | ServerFrame::Acked(_)
        | ServerFrame::Receipts(_)
        | ServerFrame::Pong { .. }
        | ServerFrame::Page(_)
        | ServerFrame::Resync => Heard::Other,
    })
}

fn number(send_id: SendId) -> u64 {
    Uuid::from_bytes(*send_id.as_bytes()).as_u64_pair().1
}
