//! What the core asks of its driver, and the values it is told with.

use std::fmt;

use protocol::change::{Changed, Marks};
use protocol::frame::{ClientFrame, HistoryPage, Summary, SyncAnswer};
use protocol::receipt::Receipt;
use protocol::{
    ConversationId, DeviceId, MessageId, Placed, Platform, Refusal, SendId, Seq, Timestamp,
};

use super::Limits;
use super::saved::{Account, Change};

/// Who this client is and how it behaves.
#[derive(Clone)]
pub struct Settings {
    /// Empty where the driver is asked for the first one, too.
    pub token: String,
    /// The driver answers `FetchToken`.
    pub renews_token: bool,
    pub platform: Platform,
    pub device: DeviceId,
    /// False: shows messages, but neither keeps nor acknowledges that it has them.
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

/// What a device shows of what it has missed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum CatchUp {
    /// All of it, oldest first: forward from the cursor, on a fresh device from the first message.
    Everything,
    /// After a short absence all of it. On a fresh device, or after more than
    /// [`absence_max`](Limits::absence_max), only the newest so many of each conversation: what lies
    /// before is told as a [`Gap`](Action::Gap) and loaded on demand. Zero: only what comes from now on.
    Recent(u32),
}

/// What is to be done now. In order.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Action {
    /// Open a connection; answer by `handle_connected` or `handle_disconnected`.
    Connect,
    /// Get a new token; answer by `handle_token`. Never two at a time.
    FetchToken,
    /// End the connection; answer by `handle_disconnected` with this refusal.
    Disconnect(Refusal),
    Transmit(ClientFrame),
    /// Write these in one transaction; answer by `handle_stored` when they are durable. Never two at a
    /// time.
    Store {
        batch: u64,
        changes: Vec<Change>,
    },
    /// A message for the application; answer by `handle_taken` when it has it.
    Show(Shown),
    /// A message that was shown was recalled or edited, or somebody reacted to it; answer by `handle_taken` when
    /// the application has it. In the order of the conversation's changes, and after the message.
    Changed {
        number: u64,
        conversation: ConversationId,
        changed: Changed,
    },
    /// The user hid these messages, on whichever device: what they say is to be seen no more. What is shown of them
    /// from now on says nothing, and bears the mark. Answer by `handle_taken` when the application has done it.
    Hidden {
        number: u64,
        conversation: ConversationId,
        seqs: Vec<Seq>,
    },
    /// The conversation list has this now.
    Listed(Box<Summary>),
    /// How far an own send has come; per send only forward, except that a failed one may be tried again.
    Status {
        send_id: SendId,
        status: SendStatus,
    },
    /// A receipt for an own message whose send this device does not follow (any longer).
    Receipt(Receipt),
    /// These will not be shown by themselves: they are older than what is caught up, or the server has
    /// them no longer. Both bounds are missing ones. Answer by `handle_taken` as for a message: until then it is told
    /// again after an end. `None`: it is told this once, since only the newest are caught up, or too much waits to be
    /// taken.
    Gap {
        number: Option<u64>,
        conversation: ConversationId,
        from: Seq,
        to: Seq,
    },
    /// What this device has saved and what the server says belong to different histories.
    Reset(Reset),
    /// The answer to `load_older`.
    Older {
        request: u32,
        answer: Result<HistoryPage, Refusal>,
    },
    /// The answer to `ask_server`.
    Asked {
        request: u32,
        answer: Result<SyncAnswer, Refusal>,
    },
    State(State),
}

/// A message as the application gets it: each once, in the order of its conversation.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Shown {
    /// Counts what was shown: give it to `handle_taken`.
    pub number: u64,
    pub placed: Placed,
    /// What has become of it, where it was fetched later: the message says what it says now.
    pub marks: Option<Marks>,
    pub origin: Origin,
}

/// Whose message it is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Origin {
    /// Somebody else's.
    Other,
    /// The user's own, sent from another device.
    OwnElsewhere,
    /// Sent from this device: its send stands in the statuses, too.
    OwnHere,
}

/// How far a send has come.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum SendStatus {
    /// In the outbox.
    Pending,
    /// Refused, or not answered in time. It stays in the outbox until it is tried again or given up.
    Failed(Refusal),
    /// The server has it; it will not be lost.
    Accepted {
        id: MessageId,
    },
    /// It has its place in the conversation.
    Placed {
        id: MessageId,
        seq: Seq,
    },
    /// A device of the receiver has stored it.
    Delivered {
        id: MessageId,
    },
    Read {
        id: MessageId,
    },
}

impl SendStatus {
    /// The only order in which a status moves.
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

    /// The message, once there is one.
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

/// Saved state and server do not belong together.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Reset {
    /// The server is another installation, or the token another user's. Nothing saved is used but the outbox of
    /// the same user; a `Disconnect` follows. Start a new core from what is saved for `now`.
    OtherAccount { saved: Account, now: Account },
    /// The server's conversation ends before what this device was shown: the server has lost messages
    /// or was put back. New messages are shown from the server's end on.
    Behind {
        conversation: ConversationId,
        ours: Seq,
        theirs: Seq,
    },
    /// The message says that another one stands before it than the one that was shown there.
    OtherChain {
        conversation: ConversationId,
        seq: Seq,
    },
    /// The saved list is newer than the server's time: the whole list was asked for.
    ListAhead,
}

/// The life of a client.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum State {
    Idle,
    Connecting,
    /// Signed in; missed messages are being fetched. Sends go out already.
    Syncing,
    /// Complete, as far as the server knows.
    Ready,
    /// The connection was lost; the next one comes at `until`.
    Reconnecting {
        until: Timestamp,
        why: Refusal,
    },
    /// For good.
    Closed(Refusal),
}
