//! Taking a conversation from somebody's list (S4-17 to S4-24).
//!
//! It is a record of the conversation's own log. What decides is the message behind the newest one that the
//! client had when it asked: if its record is before this one in the log, something came that the client had
//! not seen, and nothing happens. Positions never change, so the answer is the same whenever this record is
//! handled, also after a crash with later messages already placed; where the conversation ends now does not
//! matter.
//!
//! Nothing is removed. What was cleared is a place that only grows; a conversation is on the list as long as
//! it goes on behind it, so the next message brings it back by itself.

use crate::history::Version;
use crate::unread::Tally;
use crate::{MessageId, Seq};

/// The newest message that a client has of a conversation.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Seen {
    pub seq: Seq,
    pub id: MessageId,
}

/// What stands at the position that was seen, and behind it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Around {
    /// The message there, and how its reader counts up to it.
    pub seen: Option<(MessageId, Tally)>,
    /// The record of the next one.
    pub next: Option<Version>,
}

/// What becomes of the wish to clear a conversation.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Clearing {
    /// It goes from the list, up to here.
    Cleared(Tally),
    /// It was cleared beyond here before.
    Nothing,
    /// A message came that the client had not seen when it asked: the conversation stays (S4-19).
    Expired,
}

/// Judges the wish of somebody who has seen the conversation up to `seen`; `cleared`: what they cleared before.
pub fn clear(record: Version, seen: Seen, around: Around, cleared: Tally) -> Clearing {
    let place = around.seen.filter(|(id, _)| *id == seen.id);
    let Some((_, place)) = place else {
        // Another message stands there, or none: the client's history is not this one.
        return Clearing::Expired;
    };
    if around.next.is_some_and(|next| next < record) {
        return Clearing::Expired;
    }
    // The same place again is this record that comes again, or says the same.
    match cleared.seq > place.seq {
        true => Clearing::Nothing,
        false => Clearing::Cleared(place),
    }
}

/// Is a conversation that ends here on the list of somebody who cleared it up to there?
pub fn is_listed(end: Seq, cleared: Tally) -> bool {
    end > cleared.seq
}

#[cfg(test)]
mod tests;
