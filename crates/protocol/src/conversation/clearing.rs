//! Taking a conversation from somebody's list (S4-17 to S4-24).
//!
//! It is a record of the conversation's own log, so what the client had seen when it asked is compared with
//! the end as it is at that place in the log: nothing can come in between. Nothing is removed. What was
//! cleared is a place that only grows; a conversation is on the list as long as it goes on behind it, so the
//! next message brings it back by itself.

use super::Head;
use crate::unread::Tally;
use crate::{MessageId, Seq};

/// What becomes of the wish to clear a conversation.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Clearing {
    /// It goes from the list, up to here.
    Cleared(Tally),
    /// It was cleared up to here before.
    Nothing,
    /// A message came that the client had not seen when it asked: the conversation stays (S4-19).
    Expired,
}

/// The newest message that a client has of a conversation.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Seen {
    pub seq: Seq,
    pub id: MessageId,
}

impl Head {
    /// Judges the wish of somebody who has seen the conversation up to `seen`. `end`: the end as they count;
    /// `cleared`: what they cleared before.
    pub fn clear(&self, seen: Seen, end: Tally, cleared: Tally) -> Clearing {
        // At the same place another message: the client's history is not this one.
        if seen.seq < self.seq || self.last_id != Some(seen.id) {
            return Clearing::Expired;
        }
        match cleared.seq >= self.seq {
            true => Clearing::Nothing,
            false => Clearing::Cleared(end),
        }
    }
}

/// Is a conversation that ends here on the list of somebody who cleared it up to there?
pub fn is_listed(end: Seq, cleared: Tally) -> bool {
    end > cleared.seq
}

#[cfg(test)]
mod tests;
