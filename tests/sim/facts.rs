//! Facts that a decision lacks, read from the disk.

use std::sync::Arc;

use protocol::conversation::StoredPosition;
use protocol::history::Version;
use protocol::message_row::Owner;
use protocol::writer::{ChangeKey, Facts, Missing, SendKey};
use protocol::{ConversationId, MessageId, Seq};

use crate::world::World;

impl World {
    /// Adds all missing facts: heads from the carrier's memory, and all else from the disk.
    pub(crate) fn answer(&self, missing: &Missing, facts: &mut Facts) {
        for group in missing.groups.keys() {
            let stored_group = self.group(*group).map(Arc::new);
            facts.groups.insert(*group, stored_group);
        }
        for conversation in &missing.heads {
            let remembered_head = self.carrier.heads.get(conversation);
            let head = remembered_head.or_else(|| self.disk.heads.get(conversation));
            facts
                .heads
                .insert(*conversation, head.copied().unwrap_or_default());
        }
        for conversation in &missing.stored_heads {
            let head = self.disk.heads.get(conversation).copied();
            facts
                .stored_heads
                .insert(*conversation, head.unwrap_or_default());
        }
        for group in missing.stored_groups.keys() {
            let stored_group = self.group(*group).map(Arc::new);
            facts.stored_groups.insert(*group, stored_group);
        }
        for key in &missing.rows {
            facts.rows.insert(*key, self.disk.rows.get(key).cloned());
        }
        for key in &missing.first_sends {
            facts.first_sends.insert(*key, self.stored_send(*key));
        }
        for place in &missing.overlays {
            let overlay = self.disk.overlays.get(place).cloned();
            facts.overlays.insert(*place, overlay.unwrap_or_default());
        }
        for (key, last) in &missing.first_changes {
            let first = self.stored_change(*key, *last);
            facts.first_changes.insert(*key, first);
        }
        for ((conversation, record), search) in &missing.own_changes {
            let (first, last) = search.revs().into_inner();
            let range = (*conversation, first)..=(*conversation, last);
            let mut changes = self.disk.changes.range(range);
            let own = changes.find(|(_, row)| row.version == *record);
            let own = own.map(|(_, row)| row.changed.clone());
            facts.own_changes.insert((*conversation, *record), own);
        }
        for key in &missing.followers {
            facts.followers.insert(*key, self.stored_follower(*key));
        }
        for key in &missing.clears {
            facts
                .clears
                .insert(*key, self.disk.user_registers(key.0, key.1).cleared_to);
        }
        for user in &missing.platforms {
            let platforms = self.disk.platforms.get(user).cloned();
            facts.platforms.insert(*user, platforms.unwrap_or_default());
        }
        for (owner, conversation, seq) in &missing.hide_marks {
            let hidden = self
                .disk
                .hidden_messages
                .get(&(*owner, *conversation))
                .into_iter()
                .flatten();
            let mut marks = hidden.filter(|(_, hidden)| *hidden == seq);
            let first = marks.next().map(|(mark, _)| *mark);
            facts
                .hide_marks
                .insert((*owner, *conversation, *seq), first);
        }
        for (group, user) in &missing.members {
            let stored_group = self.group(*group);
            let member = stored_group.and_then(|group| {
                let member = group.members.get(*user)?;
                Some((group.info, *member))
            });
            facts.members.insert((*group, *user), member);
        }
    }

    fn stored_send(&self, key: SendKey) -> Option<(MessageId, StoredPosition)> {
        let owner = Owner::of(key.conversation, key.from);
        let mut rows = self.disk.owner_rows(owner, key.min_id);
        let row = rows.find(|row| {
            let message = &row.placed.message;
            row.placed.conversation == key.conversation
                && (message.from, message.send_id) == (key.from, key.send_id)
        })?;
        Some((row.id(), row.position()))
    }

    fn stored_change(
        &self,
        key: ChangeKey,
        last: u64,
    ) -> Option<(Version, protocol::change::OrderedChange)> {
        let mut changes =
            (self.disk.changes).range((key.conversation, 0)..=(key.conversation, last));
        let first = changes.find(|(_, row)| {
            let request = &row.changed.asked;
            (request.by, request.send_id) == (key.by, key.send_id)
        })?;
        Some((first.1.version, first.1.changed.clone()))
    }

    fn stored_follower(
        &self,
        (owner, conversation, seq): (Owner, ConversationId, Seq),
    ) -> Option<Version> {
        let row = self.disk.row_at(owner, conversation, seq.next());
        row.map(|row| row.version)
    }
}
