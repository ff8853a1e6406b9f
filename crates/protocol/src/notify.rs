//! Notifications of absent users.

mod attempt;
mod collapse;

pub use attempt::{NextAttempt, NotifyFailure, NotifyLimits};
pub use collapse::Collapse;

use crate::message::Target;
use crate::{ConversationId, MessageId, Options, Timestamp, UserId};

/// A task for horn: `target` has mail whose options ask for a notification.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Notification {
    pub message: MessageId,
    pub from: UserId,
    pub target: Target,
    pub conversation: ConversationId,
    pub accepted_at: Timestamp,
}

/// Whether storing this message offline calls for a notification.
pub fn wants_notification(options: Options) -> bool {
    options.has(Options::NOTIFY_OFFLINE)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_the_third_bit_asks_for_a_notification() {
        let notifying_bits: Vec<u8> = (0..8)
            .filter(|&bits| Options::from_bits(bits).is_some_and(wants_notification))
            .collect();
        assert_eq!(notifying_bits, [4, 5, 6, 7]);
    }
}
