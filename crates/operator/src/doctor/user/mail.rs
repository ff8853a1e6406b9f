//! Mail against history: each entry must be a message that history has at the same position.

use std::time::Duration;

use protocol::message::Target;
use protocol::message_row::MessageRow;
use protocol::{ConversationId, MessageId, Platform, Seq, Timestamp};

use super::{Damage, Difference, Mend, UserSnapshot};

/// Age above which mail for a connected device is stuck. A healthy device fetches sooner: its boat
/// looks for mail every five minutes.
const STUCK: Duration = Duration::from_secs(15 * 60);

/// Mail of one platform, oldest first.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Mailbox {
    pub platform: Platform,
    pub entries: Vec<MailEntry>,
}

/// A mailbox entry, and what history, read after the mailbox, has of the message.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct MailEntry {
    pub id: MessageId,
    /// `None`: the body is gone, and the accept time with it.
    pub accepted_at: Option<Timestamp>,
    pub body: Body,
    /// Position of the owner's row.
    pub row: Option<(ConversationId, Seq)>,
    /// Row rebuilt from the other side's, if the owner has none.
    pub rebuilt_row: Option<MessageRow>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Body {
    Gone,
    Unreadable,
    /// The position in the frame for the device.
    Says(ConversationId, Seq),
}

pub(super) fn differences(snapshot: &UserSnapshot, mailbox: &Mailbox) -> Vec<Difference> {
    let entries = mailbox.entries.iter();
    let entries = entries.filter_map(|entry| difference(snapshot, mailbox.platform, entry));
    find_stuck(snapshot, mailbox)
        .into_iter()
        .chain(entries)
        .collect()
}

fn difference(
    snapshot: &UserSnapshot,
    platform: Platform,
    entry: &MailEntry,
) -> Option<Difference> {
    let message = entry.id;
    let target = Target {
        user: snapshot.user,
        platform,
    };
    let acknowledgement = Some(Mend::Acknowledge(target, message));
    let (damage, mend) = match (entry.row, entry.body) {
        (Some(stands), Body::Says(conversation, seq)) if stands == (conversation, seq) => {
            return None;
        }
        (Some(stands), Body::Says(conversation, seq)) => {
            let damage = Damage::MailMisplaced {
                platform,
                message,
                mail_position: (conversation, seq),
                history_position: stands,
            };
            (damage, acknowledgement)
        }
        (Some(_), Body::Gone) => (Damage::MailBodiless { platform, message }, None),
        (Some(_), Body::Unreadable) => (
            Damage::MailUnreadable { platform, message },
            acknowledgement,
        ),
        (None, Body::Gone | Body::Unreadable) => {
            (Damage::MailLost { platform, message }, acknowledgement)
        }
        // Reported once, as a hole of the conversation.
        (None, Body::Says(conversation, seq)) if is_hole(snapshot, conversation, seq) => {
            return None;
        }
        (None, Body::Says(conversation, seq)) => {
            let damage = Damage::MailUnknown {
                platform,
                message,
                conversation,
                seq,
            };
            let copy = entry.rebuilt_row.clone();
            (damage, copy.map(|row| Mend::WriteRows(vec![row])))
        }
    };
    Some(Difference { damage, mend })
}

fn is_hole(snapshot: &UserSnapshot, conversation: ConversationId, seq: Seq) -> bool {
    let mut all = snapshot.conversations.iter();
    let owner_conversation = all.find(|one| one.id == conversation);
    owner_conversation.is_some_and(|owner_conversation| {
        owner_conversation.holes.iter().any(|hole| hole.covers(seq))
    })
}

/// Mail that waits although a session is connected all the while.
fn find_stuck(snapshot: &UserSnapshot, mailbox: &Mailbox) -> Option<Difference> {
    let cutoff = snapshot.now - STUCK;
    let is_old = |at: Timestamp| at < cutoff;
    let oldest_at = mailbox
        .entries
        .iter()
        .find_map(|entry| entry.accepted_at)
        .filter(|at| is_old(*at))?;
    // A login number is the login's time, or later.
    let login = |login: u64| Timestamp::from_millis(i64::try_from(login).unwrap_or(i64::MAX));
    let is_there = snapshot.sessions.iter().any(|session| {
        session.platform == mailbox.platform
            && is_old(login(session.login))
            && snapshot.boats.contains(&session.life)
    });
    is_there.then_some(Difference {
        damage: Damage::MailStuck {
            platform: mailbox.platform,
            since: oldest_at,
        },
        mend: None,
    })
}
