//! What a client and a boat say to each other: six packets and what surrounds them.
//!
//! ```text
//! client                     boat
//!   hello ───────────────────▶          token, device, platform
//!   ◀───────────────── welcome          session, heartbeat, limits
//!   send (msg:R) ────────────▶
//!   ◀──────── accepted (msg:A)          or refused
//!   ◀───────────────── placed          where my message stands: seq, prev
//!   ◀───────── message (msg:N)
//!   ack (ack:R) ─────────────▶          received, after my store has it; read
//!   ◀────────── acked (ack:A)
//!   ◀──────── receipts (ack:N)          to the sender
//!   ◀───────────────── changed          a message was recalled, edited …
//!   ping ────────────────────▶
//!   ◀───────────────────── pong
//!   list, history, changes … ▶
//!   ◀──────────────── a page
//!   refresh ─────────────────▶          a new token
//!   ◀─────────────── refreshed
//!   ◀────── closing, then end           kicked, reconnect, slow …
//! ```

use std::collections::BTreeMap;
use std::fmt;
use std::time::Duration;

use crate::change::{Arranged, Changed, Marks};
use crate::group::{self, Role};
use crate::history::RowStatus;
use crate::message::Content;
use crate::receipt::{Receipt, ReceiptKind};
use crate::ticket::ResumeTicket;
use crate::{
    ConversationId, DeviceId, GroupId, MessageId, Options, Placed, Platform, Position, Recipient,
    Refusal, SendId, Seq, SessionId, Timestamp, TraceContext, UserId,
};

/// The protocol version that `hello` names.
pub const VERSION: u32 = 1;

/// From a client.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum ClientFrame {
    Hello(Hello),
    /// msg:R
    Send(Send),
    /// The client will not resend this one: later sends to its conversation may go on.
    GiveUp(SendId),
    /// ack:R
    Ack(Ack),
    Ping {
        nonce: u64,
    },
    Sync(SyncRequest),
    /// A new token of the same user, before the old one ends.
    Refresh(Refresh),
}

/// The first frame of a connection.
#[derive(Clone, PartialEq, Eq)]
pub struct Hello {
    pub version: u32,
    /// Empty where a ticket to resume with takes its place.
    pub token: String,
    pub device: DeviceId,
    pub platform: Platform,
    /// The marker of the last welcome, if this client has one: tells whether offline data was lost.
    pub marker: Option<u64>,
    /// Ticket of the closing frame of a boat that left.
    pub resume: Option<ResumeTicket>,
}

impl fmt::Debug for Hello {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Hello")
            .field("version", &self.version)
            .field("token", &crate::Hidden::of(&self.token))
            .field("device", &self.device)
            .field("platform", &self.platform)
            .field("marker", &self.marker)
            .field("resume", &self.resume)
            .finish()
    }
}

#[derive(Clone, PartialEq, Eq)]
pub struct Refresh {
    pub token: String,
}

impl fmt::Debug for Refresh {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Refresh")
            .field("token", &crate::Hidden::of(&self.token))
            .finish()
    }
}

/// A message as its sender's client sends it, first time or again.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Send {
    pub send_id: SendId,
    pub to: Recipient,
    pub options: Options,
    pub content: Content,
    /// 0 for the first try.
    pub attempt: u32,
    /// How long ago the first try was, by the client's own clock.
    pub age: Duration,
    /// The sender has read its conversation up to here.
    pub seen_seq: Option<Seq>,
    /// The client's own trace, where it has one.
    pub trace: Option<TraceContext>,
}

/// ack:R. Sent after the client's own store has the messages.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Ack {
    pub kind: ReceiptKind,
    pub items: Vec<AckItem>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct AckItem {
    pub conversation: ConversationId,
    pub id: MessageId,
    pub seq: Seq,
}

/// A question about what the server keeps; the answer bears the same `request`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SyncRequest {
    /// The client's own number of this question.
    pub request: u32,
    pub query: SyncQuery,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub enum SyncQuery {
    /// Conversations that changed since `since` (a version of an earlier list; zero for all), after
    /// `after` where a list has several pages.
    List {
        since: Timestamp,
        after: Option<ConversationId>,
    },
    /// How one conversation stands in the list, whether it is on it or not: for one that no list named.
    Row { conversation: ConversationId },
    /// Messages of one conversation, dense in `seq`.
    History {
        conversation: ConversationId,
        range: HistoryRange,
        limit: u32,
    },
    /// How far my messages have come.
    Status { ids: Vec<MessageId> },
    /// Who is in a group, in order of user, from behind `after` on.
    Members {
        group: GroupId,
        after: Option<UserId>,
        limit: u32,
    },
    /// Which members of a group have read up to this position.
    Readers { group: GroupId, seq: Seq },
    /// Changes of one conversation's messages, dense in `rev`, upward from `after`, exclusive.
    Changes {
        conversation: ConversationId,
        after: u64,
        limit: u32,
    },
    /// Private messages of all conversations in order of id, from behind `after` on; `None`: from a little before
    /// what the server knows that the user received, or from the beginning.
    Missed {
        after: Option<MessageId>,
        limit: u32,
    },
    /// Conversations with unread messages, in order, from behind `after` on.
    Unread { after: Option<ConversationId> },
    /// How many messages of a group were accepted after a time.
    CountSince { group: GroupId, since: Timestamp },
    /// Which messages of a conversation the user hid, in the order in which they were, from behind `after` on: a
    /// [`Summary::hidden`], or how far a page went.
    Hidden {
        conversation: ConversationId,
        after: u64,
        limit: u32,
    },
}

/// Which part of a conversation; bounds are exclusive.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum HistoryRange {
    /// Upward from `after`, oldest first.
    Forward { after: Seq },
    /// Downward from `before` (`None`: from the newest), newest first.
    Backward { before: Option<Seq> },
}

/// To a client.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum ServerFrame {
    Welcome(Welcome),
    /// msg:A
    Accepted(Accepted),
    /// msg:A that says no.
    Refused {
        send_id: SendId,
        refusal: Refusal,
    },
    /// The place of a message that this session sent.
    Placed(PlacedEcho),
    /// msg:N
    Message(Placed),
    /// A message that stands was recalled, edited, or somebody reacted to it. Needs no acknowledgement: who
    /// misses one finds that `rev` is not dense, and asks.
    Changed {
        conversation: ConversationId,
        changed: Changed,
    },
    /// The user took a conversation from the list, up to here, or arranged it, on whichever device.
    Listed(ListWord),
    /// ack:A
    Acked(Acked),
    /// ack:N
    Receipts(Vec<Receipt>),
    Pong {
        nonce: u64,
        server_time: Timestamp,
    },
    Page(SyncPage),
    /// Something was lost or skipped between us: compare your cursors with the server's.
    Resync,
    /// A refusal that does not end the connection; `request` is the sync question it answers.
    Error {
        request: Option<u32>,
        refusal: Refusal,
    },
    /// The last frame: why the connection ends. Codes of 4500 and above are terminal.
    Closing {
        refusal: Refusal,
        /// To sign in with elsewhere, within two minutes.
        resume: Option<ResumeTicket>,
    },
    /// The session goes on with the new token, until this time.
    Refreshed {
        expires_at: Timestamp,
    },
}

/// What a user did to their list.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ListWord {
    /// Of what was sent.
    pub id: MessageId,
    pub send_id: SendId,
    pub conversation: ConversationId,
    pub deed: ListDeed,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ListDeed {
    /// Taken from it, up to here.
    Cleared(Seq),
    Arranged(Arranged),
    /// The message at this place is hidden.
    Hidden(Seq),
    /// The user is this in the group now; `None`: not in it any more.
    Member(Option<Role>),
}

/// The answer to a hello that was admitted.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Welcome {
    pub session: SessionId,
    pub user: UserId,
    pub server_time: Timestamp,
    /// The client pings when it has sent nothing for this long.
    pub heartbeat: Duration,
    pub frame_bytes_max: u32,
    /// Sends that may wait for their answers.
    pub send_window: u32,
    /// Names this installation: client state of another one does not belong here.
    pub cluster: u64,
    /// To be given in the next hello.
    pub marker: u64,
    /// False: offline data may have been lost since the last hello, so sync before you believe
    /// yourself complete.
    pub recovered: bool,
    /// End of the token, and of the session unless it is refreshed. Unset: an older boat.
    pub expires_at: Option<Timestamp>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Accepted {
    pub send_id: SendId,
    pub id: MessageId,
    pub accepted_at: Timestamp,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PlacedEcho {
    pub send_id: SendId,
    pub id: MessageId,
    pub conversation: ConversationId,
    pub position: Position,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Acked {
    pub kind: ReceiptKind,
    /// What is now recorded.
    pub ids: Vec<MessageId>,
    /// What was refused: an ack for what was never sent to this user, or with a wrong seq.
    pub refused: Vec<(MessageId, Refusal)>,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SyncPage {
    pub request: u32,
    pub answer: SyncAnswer,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub enum SyncAnswer {
    List(ListPage),
    /// `None`: nothing is known of it.
    Row(Option<Box<Summary>>),
    History(HistoryPage),
    Status(Vec<MessageStatus>),
    Changes(ChangePage),
    Members(MemberPage),
    Readers(Vec<UserId>),
    Missed(MissedPage),
    Unread(UnreadPage),
    CountSince(CountSince),
    Hidden(HiddenPage),
}

/// Messages that the user hid.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct HiddenPage {
    pub seqs: Vec<Seq>,
    /// How far the page goes; where it is empty, the `after` of the question.
    pub last: u64,
    /// Ask again with `after` = this.
    pub more: bool,
}

/// As they are now. What comes late under a smaller id is not among them: the list tells of it, as of everything.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct MissedPage {
    pub messages: Vec<Placed>,
    /// Ask again with `after` = the last of these.
    pub more: bool,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct UnreadPage {
    /// Above zero.
    pub counts: Vec<(ConversationId, u64)>,
    /// Ask again with this as `after`; `None` at the end.
    pub next: Option<ConversationId>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct CountSince {
    pub count: u64,
    /// There are more than are counted at once.
    pub more: bool,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ListPage {
    pub conversations: Vec<Summary>,
    /// Give this as `since` next time, once the last page is in.
    pub version: Timestamp,
    /// Ask again with `after` = the last conversation of this page.
    pub more: bool,
}

/// A conversation as one of its users sees it in a list.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Summary {
    pub conversation: ConversationId,
    /// The newest position.
    pub seq: Seq,
    /// How many of the messages up to it others wrote; 0 in a group, where who keeps a list counts them as they come.
    pub incoming: u64,
    /// The last change.
    pub rev: u64,
    /// In a group not before where the user came.
    pub read_seq: Seq,
    /// Up to where it was taken from the list: it is on it as long as it goes on behind this.
    pub cleared_seq: Seq,
    pub arranged: Arranged,
    /// How far what the user hid here goes: the [mark](crate::history::Version::mark) of the last record that hid
    /// something; 0: nothing is hidden.
    pub hidden: u64,
    /// What the user is in the group; `None` in a private conversation, and in a group that they left.
    pub role: Option<Role>,
    /// Messages of others behind what was read that nobody recalled.
    pub unread: u64,
    pub version: Timestamp,
    /// As it is now.
    pub newest: Option<Placed>,
    /// What has become of it.
    pub marks: Option<Marks>,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct HistoryPage {
    pub conversation: ConversationId,
    /// Dense in seq, in the order that was asked for. As they are now: an edited one says what it says since, a
    /// recalled one nothing.
    pub messages: Vec<Placed>,
    /// What has become of those that do not stand as they were sent.
    pub marks: BTreeMap<Seq, Marks>,
    /// How far the asker's own messages to a peer have come, and what was recalled. A register that could not be asked
    /// says less than is so, never more.
    pub statuses: BTreeMap<Seq, RowStatus>,
    /// The last change of the conversation when the page was read: all up to it is in the page.
    pub rev: u64,
    /// The newest position of the conversation at the time of the answer.
    pub last_seq: Seq,
    pub more: bool,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct MemberPage {
    pub settings: group::Settings,
    pub members: Vec<(UserId, Role)>,
    pub more: bool,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ChangePage {
    pub conversation: ConversationId,
    /// Dense in rev.
    pub changes: Vec<Changed>,
    /// The last change at the time of the answer.
    pub last_rev: u64,
    pub more: bool,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct MessageStatus {
    pub id: MessageId,
    pub delivered_at: Option<Timestamp>,
    pub read_at: Option<Timestamp>,
    /// It was read, and every platform of the receiver's that was owed it has it.
    pub is_finished: bool,
}
