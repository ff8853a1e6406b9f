//! What a device keeps across restarts, as a value, and how it changes.
//!
//! The driver writes [`Change`]s to its store in one transaction per [`Store`](super::Action::Store);
//! the simulator applies them to a [`Saved`]. Both come back as the `Saved` that a new core starts from.

use std::collections::{BTreeMap, BTreeSet};

use protocol::frame::Summary;
use protocol::loaded::Loaded;
use protocol::message::Content;
use protocol::receipt::Status;
use protocol::{
    ConversationId, MessageId, Options, Recipient, Refusal, SendId, Seq, Timestamp, UserId,
};

/// Whose state this is: one user of one installation.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Account {
    /// As the welcome names the installation.
    pub cluster: u64,
    pub user: UserId,
}

/// All that survives a restart.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Saved {
    /// `None` until the first welcome.
    pub account: Option<Account>,
    /// The marker of the last welcome.
    pub marker: Option<u64>,
    /// The version of the last complete conversation list.
    pub list_version: Timestamp,
    pub conversations: BTreeMap<ConversationId, Kept>,
    /// The conversation list, as far as it is known here.
    pub list: BTreeMap<ConversationId, Summary>,
    /// Messages that the user hid.
    pub hidden: BTreeMap<ConversationId, BTreeSet<Seq>>,
    /// What the application has of each conversation.
    pub loaded: BTreeMap<ConversationId, Loaded>,
    /// Sends that are neither accepted nor given up, by their order.
    pub outbox: BTreeMap<u64, OutboxRow>,
    /// Accepted sends whose status is followed, by their order.
    pub followed: BTreeMap<u64, FollowedRow>,
}

/// How far a device has come in one conversation.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Kept {
    /// The application has everything up to here.
    pub cursor: Cursor,
    /// The newest position that the server is known to have.
    pub known: Seq,
    /// Read up to this message.
    pub read: Option<(Seq, MessageId)>,
    /// The server knows that we have read up to here.
    pub read_acked: Seq,
    /// The application has all changes up to this one.
    pub rev: u64,
    /// The application knows what is hidden up to here, and the server has so much.
    pub hidden: u64,
    pub hidden_known: u64,
}

/// A place in a conversation up to which nothing is missing.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Cursor {
    /// Zero: nothing yet.
    pub seq: Seq,
    /// The message at `seq`, where it was seen.
    pub id: Option<MessageId>,
    /// When that message was accepted.
    pub at: Timestamp,
}

/// A send that waits for its answer, or has failed and waits for its sender.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct OutboxRow {
    /// Grows with each send of this device.
    pub order: u64,
    pub send_id: SendId,
    pub to: Recipient,
    pub options: Options,
    pub content: Content,
    pub created_at: Timestamp,
    /// Set when it failed; kept until it is tried again or given up.
    pub failed: Option<Refusal>,
}

/// An accepted send.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct FollowedRow {
    pub order: u64,
    pub send_id: SendId,
    pub conversation: ConversationId,
    pub id: MessageId,
    /// Known once it is placed.
    pub seq: Option<Seq>,
    pub status: Status,
}

/// One thing to be written.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Change {
    /// The first welcome: what was saved without an account belongs to this one.
    Account(Account),
    Marker(u64),
    ListVersion(Timestamp),
    Conversation(ConversationId, Kept),
    /// A conversation of the list, as it is now.
    Listed(Box<Summary>),
    Loaded(ConversationId, Loaded),
    /// More that the user hid.
    Hidden(ConversationId, Vec<Seq>),
    /// None is hidden behind this any more.
    HiddenUpTo(ConversationId, Seq),
    /// A new send, or an old one whose state changed.
    Outbox(OutboxRow),
    /// Accepted, or known better. It leaves the outbox.
    Followed(FollowedRow),
    /// In the outbox or followed: it is of no more interest.
    Forget {
        order: u64,
    },
}

impl Saved {
    pub fn apply(&mut self, change: Change) {
        match change {
            Change::Account(account) => self.account = Some(account),
            Change::Marker(marker) => self.marker = Some(marker),
            Change::ListVersion(version) => self.list_version = version,
            Change::Conversation(conversation, kept) => {
                self.conversations.insert(conversation, kept);
            }
            Change::Loaded(conversation, loaded) => {
                self.loaded.insert(conversation, loaded);
            }
            Change::Hidden(_, seqs) if seqs.is_empty() => {}
            Change::Hidden(conversation, seqs) => {
                self.hidden.entry(conversation).or_default().extend(seqs);
            }
            Change::HiddenUpTo(conversation, end) => {
                if let Some(hidden) = self.hidden.get_mut(&conversation) {
                    hidden.retain(|seq| *seq <= end);
                }
                self.hidden.retain(|_, hidden| !hidden.is_empty());
            }
            Change::Listed(summary) => {
                self.list.insert(summary.conversation, *summary);
            }
            Change::Outbox(row) => {
                self.outbox.insert(row.order, row);
            }
            Change::Followed(row) => {
                self.outbox.remove(&row.order);
                self.followed.insert(row.order, row);
            }
            Change::Forget { order } => {
                self.outbox.remove(&order);
                self.followed.remove(&order);
            }
        }
    }
}
