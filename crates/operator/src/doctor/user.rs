//! Contradictions between the stores' views of one user.
//!
//! Writers write rows → head → list, and then store mail. A [`UserSnapshot`] is read the other way
//! round: mail, list, head, rows; and sessions before boats. So data *ahead* of its source is
//! damage at the first look, whatever is written meanwhile. Data *behind* its source may be on its
//! way: it is damage if a later look finds the same ([`Damage::is_same`]).

mod conversation;
mod examine;
mod inconsistency;
mod mail;
mod mend;
mod repair;
mod scan;
mod sessions;
mod snapshot;
#[cfg(test)]
mod tests;
mod unread;

use protocol::presence::{BoatLife, SessionEntry};
use protocol::{Timestamp, UserId};

pub use self::conversation::{Conversation, Gap, ListedConversation, Newest};
pub use self::inconsistency::Damage;
pub use self::mail::{Body, MailEntry, Mailbox};
pub use self::mend::Mend;
pub use self::repair::{RepairReport, RepairStep};
pub use self::unread::{Unread, UnreadReason};

/// Data read of a user.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct UserSnapshot {
    pub user: UserId,
    pub now: Timestamp,
    /// All registered sessions.
    pub sessions: Vec<SessionEntry>,
    /// Boats in discovery, read after the sessions.
    pub boats: Vec<BoatLife>,
    pub mail: Vec<Mailbox>,
    pub conversations: Vec<Conversation>,
}

/// A contradiction, and its repair.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Difference {
    pub damage: Damage,
    /// `None`: nothing to repair, or a person has to decide.
    pub mend: Option<Mend>,
}

impl UserSnapshot {
    /// All contradictions: sessions, then mail, then conversations.
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

/// Keeps the differences that an earlier look saw, too, as far as both looks saw them.
pub fn retain_lasting(
    now: Vec<Difference>,
    previous_differences: &[Difference],
) -> Vec<Difference> {
    let lasts = |difference: Difference| {
        let mut previous_differences = previous_differences.iter();
        let previous =
            previous_differences.find(|previous| previous.damage.is_same(&difference.damage))?;
        if previous.damage.ends_before(&difference.damage) {
            Some(previous.clone())
        } else {
            Some(difference)
        }
    };
    now.into_iter().filter_map(lasts).collect()
}
