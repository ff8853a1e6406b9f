//! What the stores say of one user, and where they contradict each other.
//!
//! Who writes, writes rows → head → list, and stores mail behind them; who fills in a [`Chart`] reads the other
//! way round: mail, list, head, rows; sessions before boats. So what is *ahead* of its source is damage at the
//! first look, whatever is written meanwhile. What is *behind* may be on its way: it is damage where it is still
//! the same at a later look ([`Damage::is_same`]).

mod conversation;
mod damage;
mod mail;
mod mend;
mod sessions;
#[cfg(test)]
mod tests;
mod unread;

pub use self::conversation::{Conversation, Hole, Listed, Newest};
pub use self::damage::Damage;
pub use self::mail::{Body, Entry, Mailbox};
pub use self::mend::Mend;
pub use self::unread::{Unread, Why};
use crate::presence::{BoatLife, SessionEntry};
use crate::{Timestamp, UserId};

/// All that was read of a user.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Chart {
    pub user: UserId,
    pub now: Timestamp,
    /// All that are registered.
    pub sessions: Vec<SessionEntry>,
    /// Boats in discovery, asked for after the sessions.
    pub boats: Vec<BoatLife>,
    pub mail: Vec<Mailbox>,
    pub conversations: Vec<Conversation>,
}

/// Something that contradicts itself, and what would mend it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Difference {
    pub damage: Damage,
    /// `None`: a person has to decide, or it needs nothing.
    pub mend: Option<Mend>,
}

impl Chart {
    /// All that is wrong: sessions, then mail, then conversations.
    pub fn differences(&self) -> Vec<Difference> {
        let sessions = sessions::differences(self);
        let mail = self
            .mail
            .iter()
            .flat_map(|mailbox| mail::differences(self, mailbox));
        let conversations = self.conversations.iter();
        let conversations =
            conversations.flat_map(|one| conversation::differences(self.user, one, self.now));
        sessions
            .into_iter()
            .chain(mail)
            .chain(conversations)
            .collect()
    }
}

/// Of the differences of a look those that an earlier look saw, too, as far as both saw them.
pub fn lasting(now: Vec<Difference>, before: &[Difference]) -> Vec<Difference> {
    let lasts = |difference: Difference| {
        let mut before = before.iter();
        let earlier = before.find(|earlier| earlier.damage.is_same(&difference.damage))?;
        match earlier.damage.ends_before(&difference.damage) {
            true => Some(earlier.clone()),
            false => Some(difference),
        }
    };
    now.into_iter().filter_map(lasts).collect()
}
