//! Bodies of waiting messages, shared by all mailboxes that hold the message.

use std::collections::BTreeMap;

use bytes::Bytes;

use super::{Mail, MailboxChange};
use crate::MessageId;

/// Bodies, each with the number of entries that need it. A body goes with its last entry.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Bodies {
    counted_bodies: BTreeMap<MessageId, (u64, Bytes)>,
}

impl Bodies {
    /// Applies the changes of a [`Mailbox`](super::Mailbox); `mail` is the message of the request,
    /// if any.
    pub fn apply(&mut self, changes: &[MailboxChange], mail: Option<&Mail>) {
        for change in changes {
            match (change, mail) {
                (MailboxChange::Added { at, .. }, Some(mail)) if at.id == mail.id => self.add(mail),
                (MailboxChange::Added { .. }, _) => {}
                (MailboxChange::Removed { at, .. }, _) => self.remove(at.id),
            }
        }
    }

    /// Adds an entry that needs the body.
    pub fn add(&mut self, mail: &Mail) {
        let (count, _) = self
            .counted_bodies
            .entry(mail.id)
            .or_insert_with(|| (0, mail.body.clone()));
        *count += 1;
    }

    /// Removes an entry that needed the body. An unknown body is ignored: no count falls below
    /// zero.
    pub fn remove(&mut self, id: MessageId) {
        if let Some((count, _)) = self.counted_bodies.get_mut(&id) {
            *count -= 1;
            if *count == 0 {
                self.counted_bodies.remove(&id);
            }
        }
    }

    /// Drops a body regardless of its entries, like a store that lost it.
    pub fn lose(&mut self, id: MessageId) {
        self.counted_bodies.remove(&id);
    }

    pub fn get(&self, id: MessageId) -> Option<&Bytes> {
        self.counted_bodies.get(&id).map(|(_, body)| body)
    }

    pub fn count(&self, id: MessageId) -> u64 {
        self.counted_bodies.get(&id).map_or(0, |&(count, _)| count)
    }

    pub fn is_empty(&self) -> bool {
        self.counted_bodies.is_empty()
    }
}
