//! Actions of a session, and the values that go in.

use bytes::Bytes;

use super::Submit;
use crate::delivery::PushToken;
use crate::frame::{Ack, Hello, Refresh, ServerFrame, SyncRequest};
use crate::mailbox::MailCursor;
use crate::subscription::GroupEnd;
use crate::{GroupId, MessageId, Refusal, Timestamp, UserId};

/// Actions for the caller, to do in order.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Action {
    /// Write it, and report its [`weight`](Outgoing::weight) by `handle_written` once the socket
    /// has it.
    Transmit(Outgoing),
    /// Ask the station to admit this client; answer by `handle_admitted`, in any case.
    Admit(Hello),
    /// Ask the station to accept these sends, in this order; answer by `handle_submitted`. Never
    /// two at a time.
    Submit(Vec<Submit>),
    /// Pass acknowledgements to the station; answer by `handle_receipts`. Never two at a time.
    Receipts(Ack),
    /// Outcome of a push, exactly once for each token.
    Resolve { token: Token, outcome: Outcome },
    /// Fetch waiting messages; answer by `handle_page`. Never two at a time.
    FetchMail {
        cursor: Option<MailCursor>,
        limit: u32,
    },
    /// Remove these from the mailbox, since a device has them. No answer.
    RemoveMail { ids: Vec<MessageId> },
    /// Ask the station; answer by `handle_answer`.
    Sync(SyncRequest),
    /// Have a station check the new token; answer by `handle_refreshed`.
    Refresh(Refresh),
    /// Replace the groups that the session subscribes to, with what the client has of each.
    Subscribe(Vec<(GroupId, GroupEnd)>),
    /// Replace the groups that the client has open.
    Watch(Vec<GroupId>),
    /// Count that the client has reached this bound. Its notice follows.
    Count(Bound),
    /// Write all earlier frames, then end the connection with this code. At most once.
    Close(Refusal),
    /// Tell the station that this session is gone. At most once, and only after an admission.
    Leave,
}

/// A bound of one session that its client reaches by its own frames, or by not reading.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Bound {
    Frames,
    BodyBytes,
    Questions,
    OutgoingBytes,
}

/// Output to the client.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Outgoing {
    /// A complete frame, shared with other receivers.
    Encoded(Bytes),
    /// The same, for echoes and receipts, which can wait.
    Notice(Bytes),
    Frame(ServerFrame),
}

impl Outgoing {
    /// Whether it may go out a moment later, together with the next frame. Echoes and receipts may,
    /// and outnumber the messages.
    pub fn may_wait(&self) -> bool {
        matches!(
            self,
            Outgoing::Notice(_) | Outgoing::Frame(ServerFrame::Acked(_))
        )
    }

    /// Weight against the bound of outgoing bytes: its length, or a slightly high estimate.
    pub fn weight(&self) -> usize {
        match self {
            Outgoing::Encoded(bytes) | Outgoing::Notice(bytes) => bytes.len(),
            Outgoing::Frame(frame) => frame.weight(),
        }
    }
}

/// Name of a push for its requester.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Token {
    /// Requester of the push: several carriers use the same numbers.
    pub source: u32,
    pub number: u64,
}

impl Token {
    /// Name of a push of this source; `None` for the number 0, whose outcome nobody waits for.
    pub fn of(source: u32, push: PushToken) -> Option<Token> {
        let number = push.number();
        (number != 0).then_some(Token { source, number })
    }
}

/// Outcome of a push.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Outcome {
    /// Acknowledged by the client, or written if no acknowledgement was requested.
    Done,
    /// Not acknowledged in time, or the connection ended before.
    NoAck,
    /// No live session, or not yet.
    NoSession,
    /// Too much is unacknowledged.
    Full,
}

/// The station's admission after a hello.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Admission {
    pub user: UserId,
    /// Marker of the offline data; another value later means that some was lost.
    pub marker: u64,
    pub recovered: bool,
    /// Whether messages wait for this platform.
    pub mail_waits: bool,
    pub cluster: u64,
    pub server_time: Timestamp,
    /// End of the token, and with it of the session.
    pub expires_at: Timestamp,
}

/// Waiting messages, oldest first.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Page {
    pub mails: Vec<PageItem>,
    /// Cursor of the next page; `None` if nothing waits after this one, `START` if nothing does
    /// except mail that could not be read now.
    pub next: Option<MailCursor>,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PageItem {
    pub id: MessageId,
    /// The complete frame.
    pub frame: Bytes,
}
