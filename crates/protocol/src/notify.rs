//! When an absent user is told, and of what.

use crate::message::Target;
use crate::{ConversationId, MessageId, Options, Timestamp, UserId};

/// A task for horn: `target` has mail that its options want to be told of.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Notification {
    pub message: MessageId,
    pub from: UserId,
    pub target: Target,
    pub conversation: ConversationId,
    pub accepted_at: Timestamp,
}

/// Does storing this message offline call for a notification?
pub fn wants_notification(options: Options) -> bool {
    options.has(Options::NOTIFY_OFFLINE)
}
