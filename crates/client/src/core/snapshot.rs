//! State a device keeps across restarts, as a value, and the changes to it.
//!
//! The driver writes [`Change`]s to its store in one transaction per
//! [`Store`](super::Action::Store); the simulator applies them to a [`Snapshot`]. A new core starts
//! from the `Snapshot` that either one yields.

use std::collections::{BTreeMap, BTreeSet};

use protocol::frame::Summary;
use protocol::loaded_ranges::LoadedRanges;
use protocol::message::Content;
use protocol::receipt::ReceiptStatus;
use protocol::{
    ConversationId, MessageId, Options, Recipient, Refusal, SendId, Seq, Timestamp, UserId,
};

/// Owner of the state: one user of one installation.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Account {
    /// Id of the installation, from the welcome.
    pub cluster: u64,
    pub user: UserId,
}

/// All state that survives a restart.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Snapshot {
    /// `None` until the first welcome.
    pub account: Option<Account>,
    /// Marker of the last welcome.
    pub marker: Option<u64>,
    /// Version of the last complete conversation list.
    pub list_version: Timestamp,
    pub conversations: BTreeMap<ConversationId, ConversationProgress>,
    /// The conversation list, as far as it is known here.
    pub list: BTreeMap<ConversationId, Summary>,
    /// Messages that the user hid.
    pub hidden_seqs: BTreeMap<ConversationId, BTreeSet<Seq>>,
    /// Ranges of messages that the application has.
    pub loaded_ranges: BTreeMap<ConversationId, LoadedRanges>,
    /// Sends neither accepted nor given up, by their order.
    pub outbox: BTreeMap<u64, OutboxRow>,
    /// Accepted sends whose status is followed, by their order.
    pub followed_rows: BTreeMap<u64, FollowedRow>,
}

/// Progress of a device in one conversation.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct ConversationProgress {
    /// Cursor up to which the application has everything.
    pub cursor: Cursor,
    /// Newest position the server is known to have.
    pub known_seq: Seq,
    /// Last message read by the user, with its id.
    pub read: Option<(Seq, MessageId)>,
    /// Read position that the server knows.
    pub read_acked: Seq,
    /// Last change that the application has, with all before it.
    pub rev: u64,
    /// Number of the last hiding that the application knows, then of the last that the server has.
    pub hide_number: u64,
    pub hidden_known: u64,
}

impl ConversationProgress {
    /// Read position that the server has not confirmed.
    pub(super) fn unconfirmed_read(&self) -> Option<(Seq, MessageId)> {
        self.read.filter(|(seq, _)| *seq > self.read_acked)
    }
}

/// Position in a conversation up to which nothing is missing.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Cursor {
    /// Position of the last message; zero: nothing yet.
    pub seq: Seq,
    /// Id of the message at `seq`, if it was seen.
    pub id: Option<MessageId>,
    /// Acceptance time of that message.
    pub at: Timestamp,
}

/// A send that waits for its answer, or has failed and waits for its sender.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct OutboxRow {
    /// Number that grows with each send of this device.
    pub order: u64,
    pub send_id: SendId,
    pub to: Recipient,
    pub options: Options,
    pub content: Content,
    pub created_at: Timestamp,
    /// Refusal of a failed send, until it is retried or given up.
    pub refusal: Option<Refusal>,
}

/// An accepted send.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct FollowedRow {
    pub order: u64,
    pub send_id: SendId,
    pub conversation: ConversationId,
    pub id: MessageId,
    /// Position, once it is placed.
    pub seq: Option<Seq>,
    pub status: ReceiptStatus,
}

/// One change to write.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Change {
    /// Account of the first welcome: state saved without an account belongs to it.
    Account(Account),
    Marker(u64),
    ListVersion(Timestamp),
    Conversation(ConversationId, ConversationProgress),
    /// Row of the conversation list, as it is now.
    Listed(Box<Summary>),
    Loaded(ConversationId, LoadedRanges),
    /// More messages that the user hid.
    Hidden(ConversationId, Vec<Seq>),
    /// End of the hidden messages: none behind it is hidden any more.
    HiddenUpTo(ConversationId, Seq),
    /// New send, or one whose state changed.
    Outbox(OutboxRow),
    /// Accepted send, or news of one. It leaves the outbox.
    Followed(FollowedRow),
    /// Send in the outbox or followed, of no more interest.
    Forget {
        order: u64,
    },
}

impl Snapshot {
    pub fn apply(&mut self, change: Change) {
        match change {
            Change::Account(account) => self.account = Some(account),
            Change::Marker(marker) => self.marker = Some(marker),
            Change::ListVersion(version) => self.list_version = version,
            Change::Conversation(conversation, progress) => {
                self.conversations.insert(conversation, progress);
            }
            Change::Loaded(conversation, loaded_ranges) => {
                self.loaded_ranges.insert(conversation, loaded_ranges);
            }
            Change::Hidden(_, seqs) if seqs.is_empty() => {}
            Change::Hidden(conversation, seqs) => {
                self.hidden_seqs
                    .entry(conversation)
                    .or_default()
                    .extend(seqs);
            }
            Change::HiddenUpTo(conversation, end) => {
                if let Some(hidden_seqs) = self.hidden_seqs.get_mut(&conversation) {
                    hidden_seqs.retain(|seq| *seq <= end);
                }
                self.hidden_seqs
                    .retain(|_, hidden_seqs| !hidden_seqs.is_empty());
            }
            Change::Listed(summary) => {
                self.list.insert(summary.conversation, *summary);
            }
            Change::Outbox(row) => {
                self.outbox.insert(row.order, row);
            }
            Change::Followed(row) => {
                self.outbox.remove(&row.order);
                self.followed_rows.insert(row.order, row);
            }
            Change::Forget { order } => {
                self.outbox.remove(&order);
                self.followed_rows.remove(&order);
            }
        }
    }
}
