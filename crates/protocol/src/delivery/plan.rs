//! Obligations of a placed message.

use std::time::Duration;

use super::Obligation;
use crate::{Placed, Platform, Recipient, UserId};

/// Time after the last sign-in on a platform for which messages are owed to it; later, sync serves
/// it when it comes back.
pub const PLATFORM_KNOWN_FOR: Duration = Duration::from_secs(90 * 24 * 3600);

/// Obligations of a private message: to every known platform of its receiver that keeps mail and to
/// any live sessions of the receiver, and, live only, the sender's other sessions. `platforms` are
/// those of the receiver. For members of a group there is [`group_obligations`].
pub fn obligations(placed_message: &Placed, platforms: Vec<Platform>) -> Vec<Obligation> {
    match placed_message.message.to {
        Recipient::User(to) => vec![
            Obligation {
                user: to,
                platforms: platforms.into_iter().filter(|p| p.keeps_mail()).collect(),
                live: true,
            },
            live_only(placed_message.message.from),
        ],
        Recipient::Group(_) => Vec::new(),
    }
}

/// Obligations of a message to a group: to each of `members` as a private one to its receiver, and,
/// live only, to the sender's other sessions. `platforms_of_user` gives a user's platforms; a user
/// without any is reached through live sessions only.
pub fn group_obligations(
    members: impl IntoIterator<Item = UserId>,
    placed_message: &Placed,
    platforms_of_user: impl Fn(UserId) -> Vec<Platform>,
) -> Vec<Obligation> {
    let from = placed_message.message.from;
    let members = members.into_iter().filter(|user| *user != from);
    let obligations = members.map(|user| Obligation {
        user,
        platforms: platforms_of_user(user)
            .into_iter()
            .filter(|p| p.keeps_mail())
            .collect(),
        live: true,
    });
    obligations.chain([live_only(from)]).collect()
}

/// Obligation to any live sessions of the user, with nothing stored.
pub fn live_only(user: UserId) -> Obligation {
    Obligation {
        user,
        platforms: Vec::new(),
        live: true,
    }
}
