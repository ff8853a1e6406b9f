//! What waits against history: every entry is a message that history has, at the same place.

use std::time::Duration;

use super::{Chart, Damage, Difference, Mend};
use crate::history::PrivateRow;
use crate::message::Target;
use crate::{ConversationId, MessageId, Platform, Seq, Timestamp};

/// A device that is connected fetches sooner; its boat asks for mail again every five minutes.
const STUCK: Duration = Duration::from_secs(15 * 60);

/// What waits on one platform, oldest first.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Mailbox {
    pub platform: Platform,
    pub entries: Vec<Entry>,
}

/// A message that waits, and what history, asked after it, has of it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Entry {
    pub id: MessageId,
    /// `None`: the entry's body is gone, and its time with it.
    pub accepted_at: Option<Timestamp>,
    pub body: Body,
    /// Where the owner's row stands.
    pub row: Option<(ConversationId, Seq)>,
    /// Where the owner has no row: what can be made from the other side's.
    pub copy: Option<PrivateRow>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Body {
    Gone,
    Unreadable,
    /// The place that the frame tells the device.
    Says(ConversationId, Seq),
}

pub(super) fn differences(chart: &Chart, mailbox: &Mailbox) -> Vec<Difference> {
    let entries = mailbox.entries.iter();
    let entries = entries.filter_map(|entry| difference(chart, mailbox.platform, entry));
    stuck(chart, mailbox).into_iter().chain(entries).collect()
}

fn difference(chart: &Chart, platform: Platform, entry: &Entry) -> Option<Difference> {
    let message = entry.id;
    let target = Target {
        user: chart.user,
        platform,
    };
    let away = Some(Mend::Acknowledge(target, message));
    let (damage, mend) = match (entry.row, entry.body) {
        (Some(stands), Body::Says(conversation, seq)) if stands == (conversation, seq) => {
            return None;
        }
        (Some(stands), Body::Says(conversation, seq)) => {
            let damage = Damage::MailMisplaced {
                platform,
                message,
                says: (conversation, seq),
                stands,
            };
            (damage, away)
        }
        (Some(_), Body::Gone) => (Damage::MailBodiless { platform, message }, None),
        (Some(_), Body::Unreadable) => (Damage::MailUnreadable { platform, message }, away),
        (None, Body::Gone | Body::Unreadable) => (Damage::MailLost { platform, message }, away),
        // It is said once, where the conversation is looked at.
        (None, Body::Says(conversation, seq)) if is_hole(chart, conversation, seq) => return None,
        (None, Body::Says(conversation, seq)) => {
            let damage = Damage::MailUnknown {
                platform,
                message,
                conversation,
                seq,
            };
            let copy = entry.copy.clone();
            (damage, copy.map(|row| Mend::WriteRows(vec![row])))
        }
    };
    Some(Difference { damage, mend })
}

fn is_hole(chart: &Chart, conversation: ConversationId, seq: Seq) -> bool {
    let mut all = chart.conversations.iter();
    let found = all.find(|one| one.id == conversation);
    found.is_some_and(|found| found.holes.iter().any(|hole| hole.covers(seq)))
}

/// A session that was there all the time, and what waits for it.
fn stuck(chart: &Chart, mailbox: &Mailbox) -> Option<Difference> {
    let bound = chart.now - STUCK;
    let is_old = |at: Timestamp| at < bound;
    let since = mailbox
        .entries
        .iter()
        .find_map(|entry| entry.accepted_at)
        .filter(|at| is_old(*at))?;
    // A login number is the time of the login, or later.
    let login = |login: u64| Timestamp::from_millis(i64::try_from(login).unwrap_or(i64::MAX));
    let is_there = chart.sessions.iter().any(|session| {
        session.platform == mailbox.platform
            && is_old(login(session.login))
            && chart.boats.contains(&session.life)
    });
    is_there.then_some(Difference {
        damage: Damage::MailStuck {
            platform: mailbox.platform,
            since,
        },
        mend: None,
    })
}
