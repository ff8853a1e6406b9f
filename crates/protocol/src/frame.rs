//! Frames between client and boat: six packets and what surrounds them.
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
//!   subscribe, watch ────────▶          large groups, and those on the screen
//!   ◀───────────────── signals          how far they are
//!   refresh ─────────────────▶          a new token
//!   ◀─────────────── refreshed
//!   ◀────── closing, then end           kicked, reconnect, slow …
//! ```

use std::collections::BTreeMap;
use std::fmt;
use std::time::Duration;

use crate::change::{ListArrangement, MessageMarks, OrderedChange};
use crate::group::{self, Role};
use crate::history::RowStatus;
use crate::message::Content;
use crate::receipt::{Receipt, ReceiptKind};
use crate::subscription::{GroupEnd, GroupSignal};
use crate::ticket::ResumeTicket;
use crate::{
    ConversationId, DeviceId, GroupId, MessageId, Options, Placed, Platform, Position, Recipient,
    Refusal, SendId, Seq, SessionId, Timestamp, TraceContext, UserId,
};

/// The protocol version that `hello` names.
pub const VERSION: u32 = 1;

/// Frames from client to boat.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum ClientFrame {
    Hello(Hello),
    /// msg:R
    Send(Send),
    /// The client will not resend this send: later ones to its conversation may go on.
    GiveUp(SendId),
    /// ack:R
    Ack(Ack),
    Ping {
        nonce: u64,
    },
    Sync(SyncRequest),
    /// A new token of the same user, before the old one ends.
    Refresh(Refresh),
    /// The large groups that the client wants to hear of, with what it has of each. Replaces the
    /// set before it; at most [`GROUPS_MAX`](crate::subscription::GROUPS_MAX).
    Subscribe(Vec<(GroupId, GroupEnd)>),
    /// Those of them that the user has open. Replaces the set before it; at most
    /// [`WATCHED_MAX`](crate::subscription::WATCHED_MAX).
    Watch(Vec<GroupId>),
}

/// The first frame of a connection.
#[derive(Clone, PartialEq, Eq)]
pub struct Hello {
    pub version: u32,
    /// Empty if a resume ticket takes its place.
    pub token: String,
    pub device: DeviceId,
    pub platform: Platform,
    /// Marker of the last welcome, if the client has one: tells whether offline data was lost.
    pub marker: Option<u64>,
    /// Resume ticket from the closing frame of a boat that left.
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

/// A message as its sender's client sends it, for the first time or again.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Send {
    pub send_id: SendId,
    pub to: Recipient,
    pub options: Options,
    pub content: Content,
    /// 0 for the first try.
    pub attempt: u32,
    /// Age of the first try, by the client's own clock.
    pub age: Duration,
    /// The sender has read its conversation up to here.
    pub seen_seq: Option<Seq>,
    /// The client's own trace, if it has one.
    pub trace: Option<TraceContext>,
}

/// ack:R. Sent once the client's own store has the messages.
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

/// A query for data on the server; the answer bears the same `request`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SyncRequest {
    /// The client's own number for this query.
    pub request: u32,
    pub query: SyncQuery,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub enum SyncQuery {
    /// Conversations that changed since `since` (the version of an earlier list; zero for all),
    /// after `after` if the list has several pages.
    List {
        since: Timestamp,
        cursor: Option<ConversationId>,
    },
    /// One conversation's list entry, listed or not: for a conversation that no list named.
    Row { conversation: ConversationId },
    /// Messages of one conversation, dense in `seq`.
    History {
        conversation: ConversationId,
        range: HistoryRange,
        limit: u32,
    },
    /// Delivery status of the user's own messages.
    Status { ids: Vec<MessageId> },
    /// Members of a group, in order of user, from behind `after` on.
    Members {
        group: GroupId,
        after: Option<UserId>,
        limit: u32,
    },
    /// Members of a group who have read up to this position.
    Readers { group: GroupId, seq: Seq },
    /// Changes of one conversation's messages, dense in `rev`, upward from `after`, exclusive.
    Changes {
        conversation: ConversationId,
        after: u64,
        limit: u32,
    },
    /// Private messages of all conversations in order of id, from behind `after` on. `None`: from a
    /// little before the last one that the server knows the user to have received, or from the
    /// beginning.
    Missed {
        after: Option<MessageId>,
        limit: u32,
    },
    /// Conversations with unread messages, in order, from behind `after` on.
    Unread { after: Option<ConversationId> },
    /// Number of messages of a group that were accepted after a time.
    CountSince { group: GroupId, since: Timestamp },
    /// Messages of a conversation that the user hid, in the order of hiding, from behind `after`
    /// on: a [`Summary::hidden`], or the `last` of a page.
    Hidden {
        conversation: ConversationId,
        after: u64,
        limit: u32,
    },
    /// Pinned messages of a conversation, newest first, from before `before` on.
    Pins {
        conversation: ConversationId,
        before: Option<Seq>,
        limit: u32,
    },
}

/// Part of a conversation; bounds are exclusive.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum HistoryRange {
    /// Upward from `after`, oldest first.
    Forward { after: Seq },
    /// Downward from `before` (`None`: from the newest), newest first.
    Backward { before: Option<Seq> },
}

/// Frames from boat to client.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum ServerFrame {
    Welcome(Welcome),
    /// msg:A
    Accepted(Accepted),
    /// msg:A, as a refusal.
    Refused {
        send_id: SendId,
        refusal: Refusal,
    },
    /// Position of a message that this session sent.
    Placed(PlacedEcho),
    /// msg:N
    Message(Placed),
    /// Recall, edit or reaction of a placed message. Needs no acknowledgement: a client that misses
    /// one sees a gap in `rev`, and asks.
    Changed {
        conversation: ConversationId,
        changed: OrderedChange,
    },
    /// The user cleared a conversation from the list, up to here, or arranged it, on any device.
    Listed(ListEvent),
    /// ack:A
    Acked(Acked),
    /// ack:N
    Receipts(Vec<Receipt>),
    Pong {
        nonce: u64,
        server_time: Timestamp,
    },
    Page(SyncPage),
    /// How far large groups are that the client subscribed to.
    Signals(Vec<GroupSignal>),
    /// Something was lost or skipped on this connection: compare your cursors with the server's.
    Resync,
    /// A refusal that does not end the connection; `request` is the query that it answers.
    Error {
        request: Option<u32>,
        refusal: Refusal,
    },
    /// Last frame, with the reason for the end. Codes of 4500 and above are terminal.
    Closing {
        refusal: Refusal,
        /// Resume ticket for a sign-in elsewhere, within two minutes.
        resume: Option<ResumeTicket>,
    },
    /// The session continues with the new token, until this time.
    Refreshed {
        expires_at: Timestamp,
    },
}

/// Operation of a user on their list.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ListEvent {
    /// Id of the operation's message.
    pub id: MessageId,
    pub send_id: SendId,
    pub conversation: ConversationId,
    pub kind: ListEventKind,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ListEventKind {
    /// Cleared up to here.
    Cleared(Seq),
    Arranged(ListArrangement),
    /// The message at this position is hidden.
    Hidden(Seq),
    /// The user's role in the group now; `None`: not a member any more.
    Member(Option<Role>),
}

/// Answer to an admitted hello.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Welcome {
    pub session: SessionId,
    pub user: UserId,
    pub server_time: Timestamp,
    /// Time without a frame from the client after which it pings.
    pub heartbeat: Duration,
    pub frame_bytes_max: u32,
    /// Sends that may await their answers.
    pub send_window: u32,
    /// Number of this installation: client state of another one does not belong here.
    pub cluster: u64,
    /// Marker for the next hello.
    pub marker: u64,
    /// False: offline data may have been lost since the last hello, so the client must sync before
    /// it counts as complete.
    pub recovered: bool,
    /// End of the token, and of the session unless it is refreshed. Unset by older boats.
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
    /// Ids now recorded.
    pub ids: Vec<MessageId>,
    /// Refused items: acks of messages that were never sent to this user, or with a wrong seq.
    pub refusals: Vec<(MessageId, Refusal)>,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SyncPage {
    pub request: u32,
    pub answer: SyncAnswer,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub enum SyncAnswer {
    List(ListPage),
    /// `None` if the server has nothing of the conversation.
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
    Pins(PinPage),
}

/// Pinned messages, newest first, with their current content.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PinPage {
    pub messages: Vec<Placed>,
    /// Marks of each message: `pinned` says who pinned it, and when.
    pub marks: BTreeMap<Seq, MessageMarks>,
    /// Ask again with `before` = this; `None` at the end.
    pub next: Option<Seq>,
    /// Changes up to this one are included.
    pub rev: u64,
}

/// Messages that the user hid.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct HiddenPage {
    pub seqs: Vec<Seq>,
    /// End of the page; of an empty page, the query's `after`.
    pub last: u64,
    /// Ask again with `after` = this.
    pub more: bool,
}

/// Missed messages, with their current content. A message that comes late under a smaller id is not
/// among them: the list has it, as it has every change.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct MissedPage {
    pub messages: Vec<Placed>,
    /// Ask again with `after` = the last of these.
    pub more: bool,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct UnreadPage {
    /// Counts above zero.
    pub counts: Vec<(ConversationId, u64)>,
    /// Ask again with this as `after`; `None` at the end.
    pub next: Option<ConversationId>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct CountSince {
    pub count: u64,
    /// Whether the count stopped at the limit of one query.
    pub more: bool,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ListPage {
    pub conversations: Vec<Summary>,
    /// The next query's `since`, once the last page is in.
    pub version: Timestamp,
    /// Ask again with `after` = the last conversation of this page.
    pub more: bool,
}

/// A conversation as one of its users sees it in a list.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Summary {
    pub conversation: ConversationId,
    /// Newest position.
    pub seq: Seq,
    /// Number of messages up to it from others; 0 in a group, where a client that keeps a list
    /// counts them as they come.
    pub incoming: u64,
    /// Rev of the last change.
    pub rev: u64,
    /// The user's read marker; in a group, not before the position at which the user joined.
    pub read_seq: Seq,
    /// Position up to which it was cleared: listed as long as the conversation goes on behind this.
    pub cleared_seq: Seq,
    pub arranged: ListArrangement,
    /// Cursor of the messages hidden here: the [mark](crate::history::Version::mark) of the last
    /// record that hid one; 0 if nothing is hidden.
    pub hidden: u64,
    /// The user's role in the group; `None` in a private conversation, and in a group that the user
    /// left.
    pub role: Option<Role>,
    /// True for a group whose messages come to subscribers only.
    pub is_large: bool,
    /// Messages from others behind the read marker, without recalled ones.
    pub unread: u64,
    pub version: Timestamp,
    /// Newest message, with its current content.
    pub newest: Option<Placed>,
    /// Marks of the newest message.
    pub marks: Option<MessageMarks>,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct HistoryPage {
    pub conversation: ConversationId,
    /// Dense in seq, in the requested order, with current content: an edited message has its new
    /// text, a recalled one none.
    pub messages: Vec<Placed>,
    /// Marks of messages that have changed since they were sent.
    pub marks: BTreeMap<Seq, MessageMarks>,
    /// Status of the asker's own messages to a peer, and recalls. A register that did not answer
    /// leads to too little here, never too much.
    pub statuses: BTreeMap<Seq, RowStatus>,
    /// The conversation's last change at the time of the read: the page includes all changes up to
    /// it.
    pub rev: u64,
    /// The newest position of the conversation at the time of the answer.
    pub last_seq: Seq,
    pub more: bool,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct MemberPage {
    pub settings: group::GroupSettings,
    pub members: Vec<(UserId, Role)>,
    pub more: bool,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ChangePage {
    pub conversation: ConversationId,
    /// Dense in rev.
    pub changes: Vec<OrderedChange>,
    /// The last change at the time of the answer.
    pub last_rev: u64,
    pub more: bool,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct MessageStatus {
    pub id: MessageId,
    pub delivered_at: Option<Timestamp>,
    pub read_at: Option<Timestamp>,
    /// True once the message was read, and every platform of the receiver that it was owed to has
    /// it.
    pub is_finished: bool,
}

/// Weight of a frame without a body.
pub(crate) const SMALL: usize = 64;

impl ServerFrame {
    /// Size on the wire in bytes, estimated slightly high.
    pub fn weight(&self) -> usize {
        let body = match self {
            ServerFrame::Message(placed) => message_weight(placed),
            ServerFrame::Changed { changed, .. } => SMALL + change_weight(changed),
            ServerFrame::Receipts(receipts) => receipts.len() * SMALL,
            ServerFrame::Signals(signals) => signals.len() * SMALL,
            ServerFrame::Acked(acked) => {
                let refusals = acked.refusals.iter();
                let refusals = refusals.map(|(_, refusal)| 20 + refusal.text.len());
                acked.ids.len() * 10 + refusals.sum::<usize>()
            }
            ServerFrame::Page(page) => page.answer.weight(),
            ServerFrame::Refused { refusal, .. } | ServerFrame::Error { refusal, .. } => {
                refusal.text.len()
            }
            ServerFrame::Closing { refusal, .. } => SMALL + refusal.text.len(),
            ServerFrame::Welcome(_)
            | ServerFrame::Refreshed { .. }
            | ServerFrame::Accepted(_)
            | ServerFrame::Placed(_)
            | ServerFrame::Listed(_)
            | ServerFrame::Pong { .. }
            | ServerFrame::Resync => 0,
        };
        SMALL + body
    }
}

impl SyncAnswer {
    /// Messages of a page, with their marks where it has any; `None` for other answers.
    pub fn page_mut(&mut self) -> Option<PageMut<'_>> {
        match self {
            SyncAnswer::History(page) => Some((&mut page.messages, Some(&mut page.marks))),
            SyncAnswer::Missed(page) => Some((&mut page.messages, None)),
            SyncAnswer::Pins(page) => Some((&mut page.messages, Some(&mut page.marks))),
            SyncAnswer::List(_)
            | SyncAnswer::Row(_)
            | SyncAnswer::Status(_)
            | SyncAnswer::Members(_)
            | SyncAnswer::Readers(_)
            | SyncAnswer::Unread(_)
            | SyncAnswer::CountSince(_)
            | SyncAnswer::Hidden(_)
            | SyncAnswer::Changes(_) => None,
        }
    }

    fn weight(&self) -> usize {
        match self {
            SyncAnswer::List(list) => list.conversations.iter().map(summary_weight).sum(),
            SyncAnswer::Row(row) => row.as_deref().map_or(0, summary_weight),
            SyncAnswer::History(page) => page_weight(&page.messages, &page.marks),
            SyncAnswer::Status(statuses) => statuses.len() * SMALL / 2,
            SyncAnswer::Members(page) => page.members.len() * 12,
            SyncAnswer::Readers(users) => users.len() * 10,
            SyncAnswer::Missed(page) => page.messages.iter().map(message_weight).sum(),
            SyncAnswer::Unread(page) => page.counts.len() * SMALL / 2,
            SyncAnswer::CountSince(_) => SMALL,
            SyncAnswer::Hidden(page) => SMALL + page.seqs.len() * 10,
            SyncAnswer::Changes(page) => page.changes.iter().map(change_weight).sum(),
            SyncAnswer::Pins(page) => page_weight(&page.messages, &page.marks),
        }
    }
}

/// Messages of a page, and marks of those that changed.
pub type PageMut<'a> = (
    &'a mut [Placed],
    Option<&'a mut BTreeMap<Seq, MessageMarks>>,
);

fn message_weight(placed: &Placed) -> usize {
    2 * SMALL + placed.message.content.data.len()
}

fn page_weight(messages: &[Placed], marks: &BTreeMap<Seq, MessageMarks>) -> usize {
    let messages = messages.iter().map(message_weight);
    messages.sum::<usize>() + marks.values().map(MessageMarks::weight).sum::<usize>()
}

fn summary_weight(summary: &Summary) -> usize {
    let newest = summary.newest.as_ref();
    let newest = newest.map_or(0, message_weight);
    SMALL + newest + summary.marks.as_ref().map_or(0, MessageMarks::weight)
}

fn change_weight(change: &OrderedChange) -> usize {
    SMALL + change.asked.change.weight()
}
