//! To whom a placed message is owed.

use std::time::Duration;

use super::Owed;
use crate::{Placed, Platform, Recipient};

/// A platform that nobody signed in on for so long is owed nothing; sync serves it when it comes back.
pub const PLATFORM_KNOWN_FOR: Duration = Duration::from_secs(90 * 24 * 3600);

/// A private message is owed to every known platform of its receiver that keeps mail and to whatever
/// sessions live, and told to the sender's other sessions. `known` are the receiver's platforms. A group's
/// members are not planned here: their number decides how.
pub fn owed(placed: &Placed, known: Vec<Platform>) -> Vec<Owed> {
    match placed.message.to {
        Recipient::User(to) => vec![
            Owed {
                user: to,
                platforms: known.into_iter().filter(|p| p.keeps_mail()).collect(),
                live: true,
            },
            Owed {
                user: placed.message.from,
                platforms: Vec::new(),
                live: true,
            },
        ],
        Recipient::Group(_) => Vec::new(),
    }
}
