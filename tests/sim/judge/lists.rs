//! Lists: what each device shows of a conversation in its list is what a count of the messages says.

use std::collections::BTreeSet;

use protocol::{ConversationId, Seq};
use tests::model::{Model, Talk};

use crate::device::Device;
use crate::world::World;

impl World {
    /// What was cleared and arranged is what the log comes to; what was read on a device is read.
    pub(crate) fn judge_registers(&self, model: &Model) -> Result<(), String> {
        for (conversation, talk) in &model.talks {
            for user in users_of(*conversation) {
                let registers = self.registers(user, *conversation);
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

    /// What was read on a device is read: in a group only while they are in. Not asked where a machine died whole: it may take the last of that with it.
    pub(crate) fn judge_reads(&self) -> Result<(), String> {
        for index in self.standing_devices() {
            let device = &self.devices[index];
            let private = device.saved.conversations.iter();
            let private = private.filter(|(of, _)| of.peer_of(device.user).is_some());
            for (conversation, kept) in private {
                let read = kept.read.map_or(Seq::ZERO, |(seq, _)| seq);
                if self.registers(device.user, *conversation).read < read {
                    return Err(format!("{} has read {read}, and nobody knows", device.name));
                }
            }
        }
        Ok(())
    }

    /// After everybody came back: each device's list.
    pub(crate) fn judge_lists(&self, model: &Model) -> Result<(), String> {
        for index in self.standing_devices() {
            let device = &self.devices[index];
            for (conversation, talk) in &model.talks {
                let crowd = talk.group.as_ref();
                let is_in = crowd.is_some_and(|crowd| crowd.is_in(device.user));
                if is_in || conversation.peer_of(device.user).is_some() {
                    self.judge_row(device, *conversation, talk)?;
                }
            }
        }
        Ok(())
    }

    fn judge_row(
        &self,
        device: &Device,
        conversation: ConversationId,
        talk: &Talk,
    ) -> Result<(), String> {
        if self.reads_lost {
            // The machine forgot what devices still know.
            return Ok(());
        }
        let row = device.saved.list.get(&conversation);
        let read = self.registers(device.user, conversation).read;
        device.screen().check_row(conversation, talk, row, read)
    }
}

fn users_of(conversation: ConversationId) -> Vec<protocol::UserId> {
    match conversation {
        ConversationId::Private { low, high } => vec![low, high],
        ConversationId::Group(_) | ConversationId::System(_) => Vec::new(),
    }
}
