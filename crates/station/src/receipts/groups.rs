//! Receipts of groups' messages: checked against the one row, and against who is in.

use std::collections::{BTreeMap, BTreeSet};

use api::station::ReceiptItem;
use futures_util::stream::{self, StreamExt, TryStreamExt};
use protocol::frame::AckItem;
use protocol::{ConversationId, GroupId, MessageId, Refusal, Seq, UserId};

use super::{Receipts, unknown};
use crate::deadline::within;

/// Groups whose messages are looked up at a time.
const TOGETHER: usize = 16;

/// What the receipts of a call speak of, where it is in groups.
#[derive(Default)]
pub(super) struct InGroups {
    messages: BTreeMap<(GroupId, Seq), MessageId>,
    refused: BTreeMap<(GroupId, UserId), Refusal>,
}

impl InGroups {
    /// May this be said of that message, and does it stand there?
    pub(super) fn judge(&self, user: UserId, group: GroupId, ack: &AckItem) -> Result<(), Refusal> {
        if let Some(refusal) = self.refused.get(&(group, user)) {
            return Err(refusal.clone());
        }
        let is_it = self.messages.get(&(group, ack.seq)) == Some(&ack.id);
        is_it.then_some(()).ok_or_else(unknown)
    }
}

impl Receipts {
    /// What many members say of one message is one place to be looked up.
    pub(super) async fn in_groups(&self, items: &[ReceiptItem]) -> Result<InGroups, Refusal> {
        let mut places: BTreeMap<GroupId, BTreeSet<Seq>> = BTreeMap::new();
        let mut members = BTreeSet::new();
        for item in items {
            for ack in &item.ack.items {
                if let ConversationId::Group(group) = ack.conversation {
                    places.entry(group).or_default().insert(ack.seq);
                    members.insert((group, item.user));
                }
            }
        }
        if places.is_empty() {
            return Ok(InGroups::default());
        }
        let members: Vec<_> = members.into_iter().collect();
        let messages = stream::iter(places)
            .map(|(group, seqs)| self.standing(group, seqs))
            .buffer_unordered(TOGETHER)
            .try_concat();
        let (messages, refused) = tokio::join!(messages, self.membership.refused(&members));
        Ok(InGroups {
            messages: messages?.into_iter().collect(),
            refused,
        })
    }

    async fn standing(
        &self,
        group: GroupId,
        seqs: BTreeSet<Seq>,
    ) -> Result<Vec<((GroupId, Seq), MessageId)>, Refusal> {
        let seqs: Vec<Seq> = seqs.into_iter().collect();
        let ids = within(self.deadline, self.group_history.ids(group, &seqs)).await?;
        let known = seqs.into_iter().zip(ids);
        Ok(known
            .filter_map(|(seq, id)| Some(((group, seq), id?)))
            .collect())
    }
}
