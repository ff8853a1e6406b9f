//! Actions the core hands its driver, and the values they carry.

use std::fmt;

use protocol::change::{MessageMarks, OrderedChange};
use protocol::frame::{ClientFrame, HistoryPage, Summary, SyncAnswer};
use protocol::receipt::Receipt;
use protocol::{
    ConversationId, DeviceId, MessageId, Placed, Platform, Refusal, SendId, Seq, Timestamp,
};

use super::Limits;
use super::snapshot::{Account, Change};

/// Identity and behaviour of one client.
#[derive(Clone)]
pub struct Settings {
    /// Empty if the driver is asked for the first token as well.
    pub token: String,
    /// Whether the driver answers `FetchToken`.
    pub renews_token: bool,
    pub platform: Platform,
    pub device: DeviceId,
    /// False: the client shows messages, but neither records nor acknowledges that it has them.
    pub acks: bool,
    pub catch_up: CatchUp,
    pub limits: Limits,
}

impl fmt::Debug for Settings {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Settings")
            .field("token", &protocol::Hidden::of(&self.token))
            .field("renews_token", &self.renews_token)
            .field("platform", &self.platform)
            .field("device", &self.device)
            .field("acks", &self.acks)
            .field("catch_up", &self.catch_up)
            .field("limits", &self.limits)
            .finish()
    }
}

/// Missed messages that a device shows.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum CatchUp {
    /// All messages, oldest first: forward from the cursor, on a fresh device from the first
    /// message.
    Everything,
    /// All messages after a short absence. In a group, on a fresh device, or after
    /// [`absence_max`](Limits::absence_max), only the newest so many of each conversation: older
    /// ones are reported as a [`Gap`](Event::Gap) and loaded on demand. Zero: only messages from
    /// now on.
    Recent(u32),
}

/// Next step for the driver, which takes them in order.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Action {
    /// Open a connection; answer by `handle_connected` or `handle_disconnected`.
    Connect,
    /// Get a new token; answer by `handle_token`. Never two at a time.
    FetchToken,
    /// End the connection; answer by `handle_disconnected` with this refusal.
    Disconnect(Refusal),
    Transmit(ClientFrame),
    /// Write the changes in one transaction; answer by `handle_stored` once they are durable. Never
    /// two at a time.
    Store {
        batch: u64,
        changes: Vec<Change>,
    },
    /// News for the application; answer a numbered one by `handle_taken` once the application has
    /// it.
    Event(Event),
    /// New state of a row of the conversation list.
    Listed(Box<Summary>),
    /// Answer to `load_older`.
    Older {
        request: u32,
        answer: Result<HistoryPage, Refusal>,
    },
    /// Answer to `ask_server`.
    Asked {
        request: u32,
        answer: Result<SyncAnswer, Refusal>,
    },
}

/// Event for the application.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Event {
    /// A message, once, in the order of its conversation. The user's own come, too: see `origin`.
    Message(ShownMessage),
    /// Recall, edit or reaction on a message shown before. Each once, in the order of the
    /// conversation's changes.
    Changed {
        number: u64,
        conversation: ConversationId,
        change: OrderedChange,
    },
    /// Messages the user hid, on whichever device: stop showing their content. Any of them shown
    /// from now on comes without content and bears the mark.
    Hidden {
        number: u64,
        conversation: ConversationId,
        seqs: Vec<Seq>,
    },
    /// Progress of a send of this device. Moves only forward, except that a failed send may be
    /// retried. Its ticket shows it as well.
    Status {
        send_id: SendId,
        status: SendStatus,
    },
    /// Receipt for an own message that this device does not follow, or no longer does.
    Receipt(Receipt),
    /// Messages from `from` to `to`, both missing, are not shown on their own: they are older than
    /// what is caught up, or the server no longer has them; `load_older` may have them. Like a
    /// message, a gap is reported again after a restart until it is taken. Without a number, it is
    /// reported this once, since only the newest are caught up, or too much waits to be taken.
    Gap {
        number: Option<u64>,
        conversation: ConversationId,
        from: Seq,
        to: Seq,
    },
    /// Saved state of this device and the server's belong to different histories.
    Reset(Reset),
    State(ConnectionState),
}

impl Event {
    /// Number of an event that the application must take.
    pub(crate) fn number(&self) -> Option<u64> {
        match self {
            Event::Message(message) => Some(message.number),
            Event::Changed { number, .. } | Event::Hidden { number, .. } => Some(*number),
            Event::Gap { number, .. } => *number,
            Event::Status { .. } | Event::Receipt(_) | Event::Reset(_) | Event::State(_) => None,
        }
    }
}

/// Message as the application gets it: each once, in the order of its conversation.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ShownMessage {
    /// Running number of shown items: pass it to `handle_taken`.
    pub number: u64,
    pub placed: Placed,
    /// Marks of earlier changes, if the message was fetched after them: its content is the current
    /// one.
    pub marks: Option<MessageMarks>,
    pub origin: Origin,
}

/// Author of a message, as seen from this device.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Origin {
    /// Message of another user.
    Other,
    /// Own message, sent from another device.
    OwnElsewhere,
    /// Own message, sent from this device: its send has a status, too.
    OwnHere,
}

/// Progress of a send.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum SendStatus {
    /// In the outbox.
    Pending,
    /// Refused, or not answered in time. Stays in the outbox until it is retried or given up.
    Failed(Refusal),
    /// Durable on the server: it will not be lost.
    Accepted {
        id: MessageId,
    },
    /// Positioned in its conversation.
    Placed {
        id: MessageId,
        seq: Seq,
    },
    /// Stored by a device of the recipient.
    Delivered {
        id: MessageId,
    },
    Read {
        id: MessageId,
    },
}

impl SendStatus {
    /// Rank in the only order in which a status advances.
    pub fn rank(&self) -> u8 {
        match self {
            SendStatus::Pending => 0,
            SendStatus::Failed(_) => 1,
            SendStatus::Accepted { .. } => 2,
            SendStatus::Placed { .. } => 3,
            SendStatus::Delivered { .. } => 4,
            SendStatus::Read { .. } => 5,
        }
    }

    /// Id of the message, once accepted.
    pub fn id(&self) -> Option<MessageId> {
        match *self {
            SendStatus::Pending | SendStatus::Failed(_) => None,
            SendStatus::Accepted { id }
            | SendStatus::Placed { id, .. }
            | SendStatus::Delivered { id }
            | SendStatus::Read { id } => Some(id),
        }
    }
}

/// Mismatch between saved state and server.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Reset {
    /// The server is another installation, or the token another user's. Of the saved state only the
    /// outbox of the same user is used; a `Disconnect` follows. Start a new core from the state
    /// saved for `now`.
    OtherAccount { saved: Account, now: Account },
    /// The server's conversation ends before the last message shown here: the server lost messages
    /// or was rolled back. New messages are shown from the server's end on.
    Behind {
        conversation: ConversationId,
        ours: Seq,
        theirs: Seq,
    },
    /// The message at `seq`, or its predecessor, is not the one that was shown here.
    OtherChain {
        conversation: ConversationId,
        seq: Seq,
    },
    /// The saved list is newer than the server's time; the whole list is requested.
    ListAhead,
}

/// State of a client's connection.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum ConnectionState {
    Idle,
    Connecting,
    /// Signed in and fetching missed messages. Sends go out already. Lasts for two minutes if the
    /// server lost messages that this device has.
    Syncing,
    /// Caught up, as far as the server knows.
    Ready,
    /// Connection lost; the next attempt is at `until`.
    Reconnecting {
        retry_at: Timestamp,
        why: Refusal,
    },
    /// Ended for good.
    Closed(Refusal),
}
