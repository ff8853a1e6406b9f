//! Bodies of waiting messages: one for all mailboxes that hold the message.

use std::collections::BTreeMap;

use bytes::Bytes;

use super::{Change, Mail};
use crate::MessageId;

/// Each body and how many entries need it. It goes with the last of them.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Bodies {
    counted: BTreeMap<MessageId, (u64, Bytes)>,
}

impl Bodies {
    /// Follows what a [`Mailbox`](super::Mailbox) did; `mail` is the message of the request, if it had one.
    pub fn apply(&mut self, changes: &[Change], mail: Option<&Mail>) {
        for change in changes {
            match (change, mail) {
                (Change::Added { at, .. }, Some(mail)) if at.id == mail.id => self.add(mail),
                (Change::Added { .. }, _) => {}
                (Change::Removed { at, .. }, _) => self.remove(at.id),
            }
        }
    }

    /// One more entry needs it.
    pub fn add(&mut self, mail: &Mail) {
        let (count, _) = self
            .counted
            .entry(mail.id)
            .or_insert_with(|| (0, mail.body.clone()));
        *count += 1;
    }

    /// One entry fewer needs it. A body that is not known stays so: nothing falls below zero.
    pub fn remove(&mut self, id: MessageId) {
        if let Some((count, _)) = self.counted.get_mut(&id) {
            *count -= 1;
            if *count == 0 {
                self.counted.remove(&id);
            }
        }
    }

    /// Drops a body whoever needs it, as a store does that lost it.
    pub fn lose(&mut self, id: MessageId) {
        self.counted.remove(&id);
    }

    pub fn get(&self, id: MessageId) -> Option<&Bytes> {
        self.counted.get(&id).map(|(_, body)| body)
    }

    pub fn count(&self, id: MessageId) -> u64 {
        self.counted.get(&id).map_or(0, |&(count, _)| count)
    }

    pub fn is_empty(&self) -> bool {
        self.counted.is_empty()
    }
}
