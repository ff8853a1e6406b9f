//! Lists: what each device shows of a conversation in its list is what a count of the messages says.

use std::collections::BTreeSet;

use protocol::{ConversationId, Seq};

use crate::device::Device;
use crate::model::{Model, Talk};
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
        let user = device.user;
        let (end, cleared) = (talk.end(), talk.cleared(user));
        let row = device.saved.list.get(&conversation);
        if self.reads_lost {
            // The machine forgot what devices still know.
            return Ok(());
        }
        let is_group = matches!(conversation, ConversationId::Group(_));
        let is_listed = end > cleared || is_group && end == Seq::ZERO;
        if is_listed != row.is_some_and(|row| row.is_on_list()) {
            let name = &device.name;
            return Err(format!(
                "{name} lists {conversation}: {row:?}, cleared to {cleared}"
            ));
        }
        let Some(row) = row.filter(|_| is_listed) else {
            return Ok(());
        };
        let read = self.registers(user, conversation).read;
        let read = read.max(crowd_since(talk, user));
        let pinned = talk.pinned.get(&user).copied().unwrap_or_default();
        let crowd = talk.group.as_ref();
        let floor = crowd.and_then(|crowd| crowd.readable_after(user));
        // The row is kept as it came.
        let newest = talk
            .view()
            .pop()
            .filter(|_| floor.is_none_or(|floor| end > floor));
        let newest = newest.map(|said| (said.id, said.content, said.marks));
        let shown = row.newest.as_ref().map(|newest| {
            let marks = row.marks.clone().unwrap_or_default();
            (newest.message.id, newest.message.content.clone(), marks)
        });
        let got = (
            row.seq,
            row.rev,
            row.read_seq,
            row.unread,
            row.arranged.pinned,
        );
        let changes = talk.changes.len() as u64;
        let expected = (end, changes, read, talk.unread(user, read), pinned);
        if got != expected || shown != newest {
            return Err(format!(
                "{} lists {conversation} as {got:?} with {shown:?}, a count says {expected:?} with {newest:?}",
                device.name
            ));
        }
        Ok(())
    }
}

/// What was there before they came is not theirs to read.
fn crowd_since(talk: &Talk, user: protocol::UserId) -> Seq {
    let crowd = talk.group.as_ref();
    crowd.map_or(Seq::ZERO, |crowd| crowd.since(user))
}

fn users_of(conversation: ConversationId) -> Vec<protocol::UserId> {
    match conversation {
        ConversationId::Private { low, high } => vec![low, high],
        ConversationId::Group(_) | ConversationId::System(_) => Vec::new(),
    }
}
