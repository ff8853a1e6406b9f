//! Lists: registers are those of the log, and each device's list is that of a count of the
//! messages.

use std::collections::BTreeSet;

use protocol::{ConversationId, Seq};
use tests::model::Model;

use crate::world::World;

impl World {
    /// Checks against the log how far users cleared, what they hid and what they pinned.
    pub(crate) fn judge_registers(&self, model: &Model) -> Result<(), String> {
        for (conversation, talk) in &model.talks {
            for user in users_of(*conversation) {
                let registers = self.disk.registers_of(user, *conversation);
                if registers.cleared.seq != talk.cleared(user) {
                    let (got, expected) = (registers.cleared.seq, talk.cleared(user));
                    return Err(format!(
                        "{user} has {conversation} cleared up to {got}, the log says {expected}"
                    ));
                }
                let pinned = registers
                    .arranged
                    .is_some_and(|(_, arranged)| arranged.pinned);
                let hidden = self.disk.hidden.get(&(user, *conversation));
                let hidden = hidden.into_iter().flat_map(|all| all.values().copied());
                let (hidden, expected) = (hidden.collect::<BTreeSet<_>>(), talk.hidden(user));
                if hidden != expected {
                    return Err(format!(
                        "{user} has {hidden:?} hidden in {conversation}, the log says {expected:?}"
                    ));
                }
                if pinned != talk.pinned.get(&user).copied().unwrap_or_default() {
                    return Err(format!("{user} has {conversation} pinned: {pinned}"));
                }
            }
        }
        Ok(())
    }

    /// Checks that each read position on a device is registered, in private conversations. Skipped
    /// after a crash of the whole machine, which may lose the last reads.
    pub(crate) fn judge_reads(&self) -> Result<(), String> {
        for index in self.standing_devices() {
            let device = &self.devices[index];
            let private = device.saved.conversations.iter();
            let private = private.filter(|(of, _)| of.peer_of(device.user).is_some());
            for (conversation, kept) in private {
                let read = kept.read.map_or(Seq::ZERO, |(seq, _)| seq);
                if self.disk.registers_of(device.user, *conversation).read < read {
                    return Err(format!("{} has read {read}, and nobody knows", device.name));
                }
            }
        }
        Ok(())
    }

    /// Checks each device's list, once all devices came back. Skipped where the machine lost reads
    /// that devices still know.
    pub(crate) fn judge_lists(&self, model: &Model) -> Result<(), String> {
        if self.reads_lost {
            return Ok(());
        }
        let read = |user, conversation| self.disk.registers_of(user, conversation).read;
        self.evidence().judge_lists(model, read)
    }
}

fn users_of(conversation: ConversationId) -> Vec<protocol::UserId> {
    match conversation {
        ConversationId::Private { low, high } => vec![low, high],
        ConversationId::Group(_) | ConversationId::System(_) => Vec::new(),
    }
}
