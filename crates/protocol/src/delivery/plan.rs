//! To whom a placed message is owed.

use std::time::Duration;

use super::Owed;
use crate::{Placed, Platform, Recipient, UserId};

/// A platform that nobody signed in on for so long is owed nothing; sync serves it when it comes back.
pub const PLATFORM_KNOWN_FOR: Duration = Duration::from_secs(90 * 24 * 3600);

/// A private message is owed to every known platform of its receiver that keeps mail and to whatever
/// sessions live, and told to the sender's other sessions. `known` are the receiver's platforms. For a group's
/// members there is [`owed_to`].
pub fn owed(placed: &Placed, known: Vec<Platform>) -> Vec<Owed> {
    match placed.message.to {
        Recipient::User(to) => vec![
            Owed {
                user: to,
                platforms: known.into_iter().filter(|p| p.keeps_mail()).collect(),
                live: true,
            },
            told(placed.message.from),
        ],
        Recipient::Group(_) => Vec::new(),
    }
}

/// A message to a group is owed to each of `members` as a private one is to its receiver, and told to the sender's other
/// sessions. `known` says which platforms somebody has; where it says none, only sessions that live are told.
pub fn owed_to(
    members: impl IntoIterator<Item = UserId>,
    placed: &Placed,
    known: impl Fn(UserId) -> Vec<Platform>,
) -> Vec<Owed> {
    let from = placed.message.from;
    let members = members.into_iter().filter(|user| *user != from);
    let owed = members.map(|user| Owed {
        user,
        platforms: known(user).into_iter().filter(|p| p.keeps_mail()).collect(),
        live: true,
    });
    owed.chain([told(from)]).collect()
}

/// Whatever sessions of the user live are told, and nothing is stored.
pub fn told(user: UserId) -> Owed {
    Owed {
        user,
        platforms: Vec::new(),
        live: true,
    }
}
