//! Obligations of a placed message.

use std::time::Duration;

use super::Obligation;
use crate::{Placed, Platform, Recipient, UserId};

/// Time after the last sign-in on a platform for which messages are owed to it; later, sync serves
/// it when it comes back.
pub const PLATFORM_KNOWN_FOR: Duration = Duration::from_secs(90 * 24 * 3600);

/// Obligations of a private message: to every known platform of its receiver that keeps mail and to
/// any live sessions of the receiver, and, live only, to the sender's other sessions. `known` are
/// the receiver's platforms. For members of a group there is [`group_obligations`].
pub fn obligations(placed: &Placed, known: Vec<Platform>) -> Vec<Obligation> {
    match placed.message.to {
        Recipient::User(to) => vec![
            Obligation {
                user: to,
                platforms: known.into_iter().filter(|p| p.keeps_mail()).collect(),
                live: true,
            },
            live_only(placed.message.from),
        ],
        Recipient::Group(_) => Vec::new(),
    }
}

/// Obligations of a message to a group: to each of `members` as a private one to its receiver, and,
/// live only, to the sender's other sessions. `known` gives a user's platforms; a user without any
/// is reached through live sessions only.
pub fn group_obligations(
    members: impl IntoIterator<Item = UserId>,
    placed: &Placed,
    known: impl Fn(UserId) -> Vec<Platform>,
) -> Vec<Obligation> {
    let from = placed.message.from;
    let members = members.into_iter().filter(|user| *user != from);
    let owed = members.map(|user| Obligation {
        user,
        platforms: known(user).into_iter().filter(|p| p.keeps_mail()).collect(),
        live: true,
    });
    owed.chain([live_only(from)]).collect()
}

/// Obligation to any live sessions of the user, with nothing stored.
pub fn live_only(user: UserId) -> Obligation {
    Obligation {
        user,
        platforms: Vec::new(),
        live: true,
    }
}
