//! Conversations and lists as the disk has them.

use std::collections::BTreeSet;

use protocol::{ConversationId, UserId};
use tests::conversations::{StoredConversations, StoredRegisters};
use tests::core_device::CoreDevice;
use tests::model::Model;

use crate::world::World;

impl World {
    /// Conversations of the disk, and of the log.
    pub(crate) fn stored_conversations(&self, model: &Model) -> StoredConversations {
        let disk = &self.disk;
        let mut conversations = StoredConversations::new();
        for ((id, rev), row) in &disk.changes {
            let conversation = conversations.entry(*id).or_default();
            if row.changed.has_died() {
                _ = conversation.died.insert(*rev, row.changed.asked.id)
            } else {
                conversation.changes.push((*rev, row.changed.asked.id))
            }
        }
        for ((id, seq), overlay) in &disk.overlays {
            let overlays = &mut conversations.entry(*id).or_default().overlays;
            overlays.insert(*seq, overlay.clone());
        }
        for (id, head) in &disk.heads {
            conversations.entry(*id).or_default().rev = head.rev;
        }
        let register_keys = disk.registers.keys().map(|(_, id)| *id);
        let ids: BTreeSet<_> = register_keys.chain(model.talks.keys().copied()).collect();
        for id in ids {
            let conversation = conversations.entry(id).or_default();
            match id {
                ConversationId::Group(number) => {
                    let group = self.group(number);
                    let members = group.iter().flat_map(|group| group.members.iter());
                    let members = members.map(|(user, member)| (user, (member.role, member.since)));
                    conversation.members = members.collect();
                }
                ConversationId::Private { low, high } => {
                    let registers = [low, high].map(|user| (user, self.registers(user, id)));
                    conversation.registers = registers.into();
                }
                ConversationId::System(_) => {}
            }
        }
        conversations
    }

    fn registers(&self, user: UserId, conversation: ConversationId) -> StoredRegisters {
        let registers = self.disk.user_registers(user, conversation);
        let hidden_marks = self
            .disk
            .hidden_messages
            .get(&(user, conversation))
            .into_iter();
        let arrangement = registers.arrangement;
        StoredRegisters {
            read_seq: registers.read_seq,
            cleared_seq: registers.cleared_to.seq,
            is_pinned: arrangement.is_some_and(|(_, arrangement)| arrangement.pinned),
            hidden_seqs: hidden_marks.flat_map(|all| all.values().copied()).collect(),
        }
    }

    /// Checks each device's list, once all devices came back. Skipped where the machine lost reads
    /// that devices still know.
    pub(crate) fn judge_lists(&self, model: &Model) -> Result<(), String> {
        if self.reads_lost {
            return Ok(());
        }
        let read = |device: &CoreDevice, conversation| {
            Some(self.disk.user_registers(device.user, conversation).read_seq)
        };
        self.evidence().judge_lists(model, read)
    }
}
