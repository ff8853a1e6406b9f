//! Conversations and lists as the disk has them.

use std::collections::BTreeSet;

use protocol::{ConversationId, UserId};
use tests::conversations::{StoredConversations, StoredRegisters};
use tests::core_device::CoreDevice;
use tests::model::Model;

use crate::world::World;

impl World {
    /// Conversations of the disk, and of the log.
    pub(crate) fn stored(&self, model: &Model) -> StoredConversations {
        let disk = &self.disk;
        let mut stored = StoredConversations::new();
        for ((of, rev), row) in &disk.changes {
            let conversation = stored.entry(*of).or_default();
            if row.changed.has_died() {
                _ = conversation.died.insert(*rev)
            } else {
                conversation.changes.push((*rev, row.changed.asked.id))
            }
        }
        for ((of, seq), overlay) in &disk.altered {
            let overlays = &mut stored.entry(*of).or_default().overlays;
            overlays.insert(*seq, overlay.clone());
        }
        for (of, head) in &disk.heads {
            stored.entry(*of).or_default().rev = head.rev;
        }
        let listed = disk.registers.keys().map(|(_, of)| *of);
        let all: BTreeSet<_> = listed.chain(model.talks.keys().copied()).collect();
        for of in all {
            let conversation = stored.entry(of).or_default();
            match of {
                ConversationId::Group(number) => {
                    let group = self.group(number);
                    let members = group.iter().flat_map(|group| group.members.iter());
                    let members = members.map(|(user, member)| (user, (member.role, member.since)));
                    conversation.members = members.collect();
                }
                ConversationId::Private { low, high } => {
                    let registers = [low, high].map(|user| (user, self.registers(user, of)));
                    conversation.registers = registers.into();
                }
                ConversationId::System(_) => {}
            }
        }
        stored
    }

    fn registers(&self, user: UserId, of: ConversationId) -> StoredRegisters {
        let registers = self.disk.registers_of(user, of);
        let hidden = self.disk.hidden.get(&(user, of)).into_iter();
        let arranged = registers.arranged;
        StoredRegisters {
            read_seq: registers.read,
            cleared_seq: registers.cleared.seq,
            is_pinned: arranged.is_some_and(|(_, arranged)| arranged.pinned),
            hidden_seqs: hidden.flat_map(|all| all.values().copied()).collect(),
        }
    }

    /// Checks each device's list, once all devices came back. Skipped where the machine lost reads
    /// that devices still know.
    pub(crate) fn judge_lists(&self, model: &Model) -> Result<(), String> {
        if self.reads_lost {
            return Ok(());
        }
        let read = |device: &CoreDevice, conversation| {
            Some(self.disk.registers_of(device.user, conversation).read)
        };
        self.evidence().judge_lists(model, read)
    }
}
