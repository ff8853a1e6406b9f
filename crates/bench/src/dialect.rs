//! One load in two languages: Packetboat's protocol, and the floor's.

use anyhow::{Context, Result, bail};
use backend::clock::{Entropy, SystemEntropy};
use bytes::Bytes;
use protocol::frame::{self, Ack, AckItem, ClientFrame, Hello, ServerFrame};
use protocol::id::Uuid;
use protocol::message::Content;
use protocol::receipt::ReceiptKind;
use protocol::{DeviceId, Message, Options, Platform, Recipient, SendId, UserId};
use server::cli;
use server::settings::Settings;

use super::floor;

/// First number of the load's users; partners differ in the lowest bit.
const FIRST_USER: u64 = 1 << 40;

#[derive(Clone, Debug)]
pub(super) enum Dialect {
    Packetboat {
        settings: Box<Settings>,
        /// Random number of this run, so that its send_ids never collide with those that real parts
        /// remember of earlier runs.
        run: u64,
    },
    Floor,
}

/// Parsed frame of a server, as far as a load generator cares.
#[derive(Debug)]
pub(super) enum BenchFrame {
    Welcome,
    Accepted(u64),
    Message {
        /// `None`: the message is from another run.
        n: Option<u64>,
        body: Bytes,
        ack: AckOf,
    },
    Refused(String),
    Other,
}

/// Form of a message's acknowledgement.
#[derive(Debug)]
pub(super) enum AckOf {
    Item(AckItem),
    Number(u64),
}

impl Dialect {
    pub(super) fn packetboat(settings: &Settings) -> Dialect {
        Dialect::Packetboat {
            settings: Box::new(settings.clone()),
            run: SystemEntropy.next(),
        }
    }

    /// The same dialect for another run.
    pub(super) fn anew(&self) -> Dialect {
        match self {
            Dialect::Packetboat { settings, .. } => Dialect::packetboat(settings),
            Dialect::Floor => Dialect::Floor,
        }
    }

    pub(super) fn name(&self) -> &'static str {
        match self {
            Dialect::Packetboat { .. } => "packetboat",
            Dialect::Floor => "floor",
        }
    }

    pub(super) fn hello(&self, user: u64) -> Result<Bytes> {
        let Dialect::Packetboat { settings, .. } = self else {
            return Ok(floor::frame(floor::HELLO, user, &[]));
        };
        let device = DeviceId::new("bench").context("a device name")?;
        let token = cli::sign_own(settings, Dialect::user(user)?, None, None)?;
        Ok(api::codec::encode_client(&ClientFrame::Hello(Hello {
            version: frame::VERSION,
            token,
            device,
            platform: Platform::Desktop,
            marker: None,
            resume: None,
        })))
    }

    /// Encodes the `n`th message of `user` to its partner.
    pub(super) fn send(&self, user: u64, n: u64, body: Bytes) -> Result<Bytes> {
        self.send_to(user, n, Recipient::User(Dialect::user(user ^ 1)?), body)
    }

    /// Id of the user in Packetboat.
    pub(super) fn user(user: u64) -> Result<UserId> {
        Ok(UserId::new((FIRST_USER + user) as i64)?)
    }

    /// Like `send`, to any recipient; the floor knows partners only.
    pub(super) fn send_to(&self, user: u64, n: u64, to: Recipient, body: Bytes) -> Result<Bytes> {
        let Dialect::Packetboat { run, .. } = self else {
            return Ok(floor::frame(floor::SEND, n, &body));
        };
        let send_id = Uuid::from_u64_pair(run.wrapping_add(user), n);
        Ok(api::codec::encode_client(&ClientFrame::Send(frame::Send {
            send_id: SendId::from_uuid(send_id),
            to,
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

    pub(super) fn hear(&self, bytes: Bytes) -> Result<BenchFrame> {
        match self {
            Dialect::Packetboat { run, .. } => hear_packetboat(bytes, *run),
            Dialect::Floor => match floor::parse(&bytes) {
                Some((floor::HELLO, ..)) => Ok(BenchFrame::Welcome),
                Some((floor::ACCEPTED, n, _)) => Ok(BenchFrame::Accepted(n)),
                Some((floor::MESSAGE, n, body)) => Ok(BenchFrame::Message {
                    n: Some(n),
                    body,
                    ack: AckOf::Number(n),
                }),
                _ => bail!("unexpected data from the floor server"),
            },
        }
    }
}

fn hear_packetboat(bytes: Bytes, run: u64) -> Result<BenchFrame> {
    Ok(match api::codec::decode_server(bytes, usize::MAX)? {
        ServerFrame::Welcome(_) => BenchFrame::Welcome,
        ServerFrame::Accepted(accepted) => BenchFrame::Accepted(number(accepted.send_id)),
        ServerFrame::Message(placed) => BenchFrame::Message {
            n: number_in(run, &placed.message),
            ack: AckOf::Item(AckItem {
                conversation: placed.conversation,
                id: placed.message.id,
                seq: placed.position.seq,
            }),
            body: placed.message.content.data,
        },
        ServerFrame::Refused { refusal, .. }
        | ServerFrame::Error { refusal, .. }
        | ServerFrame::Closing { refusal, .. } => BenchFrame::Refused(refusal.to_string()),
        ServerFrame::Placed(_)
        | ServerFrame::Changed { .. }
        | ServerFrame::Listed(_)
        | ServerFrame::Acked(_)
        | ServerFrame::Receipts(_)
        | ServerFrame::Pong { .. }
        | ServerFrame::Page(_)
        | ServerFrame::Signals(_)
        | ServerFrame::Refreshed { .. }
        | ServerFrame::Resync => BenchFrame::Other,
    })
}

fn number(send_id: SendId) -> u64 {
    Uuid::from_bytes(*send_id.as_bytes()).as_u64_pair().1
}

/// Number of a message; `None` if an earlier run left it in the receiver's mailbox.
fn number_in(run: u64, message: &Message) -> Option<u64> {
    let (sender, n) = Uuid::from_bytes(*message.send_id.as_bytes()).as_u64_pair();
    let user = sender.wrapping_sub(run);
    (FIRST_USER.checked_add(user) == Some(message.from.get() as u64)).then_some(n)
}
