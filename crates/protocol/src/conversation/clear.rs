//! Clearing a conversation from a user's list (S4-17 to S4-24).
//!
//! A clear is a record of the conversation's own log. It is decided by the message behind the
//! newest one that the client had when it asked: if that message's record is before this one in the
//! log, the client had not seen it, and nothing happens. Positions never change, so every
//! redelivery of this record gets the same answer, even after a crash with later messages already
//! placed. The present end of the conversation does not matter.
//!
//! Nothing is removed. The cleared position only grows, and a conversation is listed as long as it
//! continues behind that position, so the next message brings it back by itself.

use crate::history::Version;
use crate::unread::Tally;
use crate::{MessageId, Seq};

/// The newest message that a client has of a conversation.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct NewestSeen {
    pub seq: Seq,
    pub id: MessageId,
}

/// Messages at the seen position and behind it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Neighbours {
    /// The message there, and its reader's count up to it.
    pub newest_seen: Option<(MessageId, Tally)>,
    /// Record of the next message.
    pub next: Option<Version>,
}

/// Outcome of a clear.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ClearResult {
    /// Cleared up to here.
    Cleared(Tally),
    /// No effect: already cleared beyond this position.
    Nothing,
    /// The client had not seen the newest message when it asked: the conversation stays (S4-19).
    Expired,
}

/// Judges a clear by a user who has seen the conversation up to `newest_seen`;
/// `cleared_up_to` is the earlier cleared position.
pub fn clear(
    record: Version,
    newest_seen: NewestSeen,
    neighbours: Neighbours,
    cleared_up_to: Tally,
) -> ClearResult {
    let seen_place = neighbours
        .newest_seen
        .filter(|(id, _)| *id == newest_seen.id);
    let Some((_, seen_place)) = seen_place else {
        // Another message stands there, or none: the client's history is not this one.
        return ClearResult::Expired;
    };
    if neighbours.next.is_some_and(|next| next < record) {
        return ClearResult::Expired;
    }
    // An equal position is this record redelivered, or a repeat of it.
    if cleared_up_to.seq > seen_place.seq {
        ClearResult::Nothing
    } else {
        ClearResult::Cleared(seen_place)
    }
}

/// Whether a conversation that ends at `end` is in the list of a user who cleared it up to
/// `cleared_up_to`.
pub fn is_listed(end: Seq, cleared_up_to: Tally) -> bool {
    end > cleared_up_to.seq
}

#[cfg(test)]
mod tests;
