//! What a session asks of the world, and the values it is asked with.

use bytes::Bytes;

use crate::change::{Change, Changed, Marks, REACTION_BYTES_MAX};
use crate::frame::{Ack, Hello, Refresh, Send, ServerFrame, Summary, SyncAnswer, SyncRequest};
use crate::mailbox::MailCursor;
use crate::{MessageId, Placed, Refusal, Timestamp, UserId};

/// What is to be done now. In order.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Action {
    /// Write it. Tell its [`weight`](Outgoing::weight) by `handle_written` once the socket has it.
    Transmit(Outgoing),
    /// Ask the station to admit this client; answer by `handle_admitted`, in any case.
    Admit(Hello),
    /// Ask the station to accept these, in this order; answer by `handle_submitted`. Never two at a time.
    Submit(Vec<Send>),
    /// Tell the station what was acknowledged; answer by `handle_receipts`. Never two at a time.
    Receipts(Ack),
    /// The end of a push, exactly once for each token.
    Resolve { token: Token, outcome: Outcome },
    /// Ask for waiting messages; answer by `handle_page`. Never two at a time.
    FetchMail {
        after: Option<MailCursor>,
        limit: u32,
    },
    /// A device has these: they need not wait any longer. No answer.
    RemoveMail { ids: Vec<MessageId> },
    /// Ask the station; answer by `handle_answer`.
    Sync(SyncRequest),
    /// Have a station check the new token; answer by `handle_refreshed`.
    Refresh(Refresh),
    /// Count it: the client has reached this bound. What it is told follows.
    Count(Bound),
    /// Write what was transmitted before, then end the connection with this code. At most once.
    Close(Refusal),
    /// Tell the station that this session is gone. At most once, and only if it was admitted.
    Leave,
}

/// A bound of one session that its client reaches by what it does, or does not read.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Bound {
    Frames,
    BodyBytes,
    Questions,
    OutgoingBytes,
}

/// Something for the client.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Outgoing {
    /// A complete frame, shared with other receivers.
    Encoded(Bytes),
    /// The same, of what nobody waits for: echoes and receipts.
    Notice(Bytes),
    Frame(ServerFrame),
}

/// Bytes of what has no body.
const SMALL: usize = 64;

impl Outgoing {
    /// Does it lose nothing by going out together with what comes next, a moment later? Echoes and
    /// receipts do not, and outnumber the messages.
    pub fn may_wait(&self) -> bool {
        matches!(
            self,
            Outgoing::Notice(_) | Outgoing::Frame(ServerFrame::Acked(_))
        )
    }

    /// What it counts as against the bound of outgoing bytes: its length, or a guess a little too high.
    pub fn weight(&self) -> usize {
        match self {
            Outgoing::Encoded(bytes) | Outgoing::Notice(bytes) => bytes.len(),
            Outgoing::Frame(frame) => {
                SMALL
                    + match frame {
                        ServerFrame::Message(placed) => message_weight(placed),
                        ServerFrame::Changed { changed, .. } => SMALL + change_weight(changed),
                        ServerFrame::Receipts(receipts) => receipts.len() * SMALL,
                        ServerFrame::Acked(acked) => {
                            acked.ids.len() * 10
                                + (acked.refused.iter())
                                    .map(|(_, refusal)| 20 + refusal.text.len())
                                    .sum::<usize>()
                        }
                        ServerFrame::Page(page) => match &page.answer {
                            SyncAnswer::List(list) => {
                                list.conversations.iter().map(summary_weight).sum()
                            }
                            SyncAnswer::Row(row) => row.as_deref().map_or(0, summary_weight),
                            SyncAnswer::History(page) => {
                                page.messages.iter().map(message_weight).sum::<usize>()
                                    + page.marks.values().map(Marks::weight).sum::<usize>()
                            }
                            SyncAnswer::Status(statuses) => statuses.len() * SMALL / 2,
                            SyncAnswer::Members(page) => page.members.len() * 12,
                            SyncAnswer::Readers(users) => users.len() * 10,
                            SyncAnswer::Missed(page) => {
                                page.messages.iter().map(message_weight).sum()
                            }
                            SyncAnswer::Unread(page) => page.counts.len() * SMALL / 2,
                            SyncAnswer::CountSince(_) => SMALL,
                            SyncAnswer::Hidden(page) => SMALL + page.seqs.len() * 10,
                            SyncAnswer::Changes(page) => {
                                page.changes.iter().map(change_weight).sum()
                            }
                        },
                        ServerFrame::Refused { refusal, .. }
                        | ServerFrame::Error { refusal, .. } => refusal.text.len(),
                        ServerFrame::Closing { refusal, .. } => SMALL + refusal.text.len(),
                        ServerFrame::Welcome(_)
                        | ServerFrame::Refreshed { .. }
                        | ServerFrame::Accepted(_)
                        | ServerFrame::Placed(_)
                        | ServerFrame::Listed(_)
                        | ServerFrame::Pong { .. }
                        | ServerFrame::Resync => 0,
                    }
            }
        }
    }
}

fn message_weight(placed: &Placed) -> usize {
    2 * SMALL + placed.message.content.data.len()
}

fn summary_weight(summary: &Summary) -> usize {
    let newest = summary.newest.as_ref();
    let newest = newest.map_or(0, message_weight);
    SMALL + newest + summary.marks.as_ref().map_or(0, Marks::weight)
}

fn change_weight(changed: &Changed) -> usize {
    SMALL
        + match &changed.asked.change {
            Change::Recall => 0,
            Change::Edit(content) => SMALL + content.data.len(),
            Change::React { .. } => REACTION_BYTES_MAX,
        }
}

/// Names a push to the one who asked for it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Token {
    /// Which of those who push: several carriers number alike.
    pub source: u32,
    pub number: u64,
}

/// A message for the client.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Push {
    /// `None`: nobody waits for the outcome.
    pub token: Option<Token>,
    pub id: MessageId,
    /// The complete frame.
    pub frame: Bytes,
    /// False: done when it is written.
    pub needs_ack: bool,
}

/// What became of a push.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Outcome {
    /// The client acknowledged it, or none was asked for and it is written.
    Done,
    /// Not acknowledged in time, or the connection ended before.
    NoAck,
    /// The session does not live any more, or not yet.
    NoSession,
    /// Too much is unacknowledged.
    Full,
}

/// The station's yes to a hello.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Admission {
    pub user: UserId,
    /// Marks the offline data; another value later means that some was lost.
    pub marker: u64,
    pub recovered: bool,
    /// Messages wait for this platform.
    pub mail_waits: bool,
    pub cluster: u64,
    pub server_time: Timestamp,
    /// When the token ends, and the session with it.
    pub expires_at: Timestamp,
}

/// Waiting messages, oldest first.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Page {
    pub mails: Vec<PageItem>,
    /// Where the next page goes on; `None`: nothing waits after this one.
    pub next: Option<MailCursor>,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PageItem {
    pub id: MessageId,
    /// The complete frame.
    pub frame: Bytes,
}
