//! Recalls, edits and reactions, as stations check them before the log.

use protocol::admission::check_change;
use protocol::change::{ChangeRequest, ChangeRules};
use protocol::message_row::Owner;
use protocol::{ConversationId, Message, MessageId, Placed, Refusal, UserId};

use crate::world::World;

impl World {
    /// Refusal of a change that would have no effect. A change that cannot be judged yet goes on to
    /// the writer.
    pub(crate) fn refused_at_door(&self, message: &Message) -> Option<Refusal> {
        let asked = ChangeRequest::of(message)?;
        let conversation = message.conversation()?;
        let role = self
            .group_of(conversation)
            .and_then(|group| group.role(asked.by));
        let placed = self.subject(conversation, asked.by, asked.subject);
        let altered = placed.as_ref().and_then(|placed| {
            let place = (conversation, placed.position.seq);
            self.disk.altered.get(&place).cloned()
        });
        let altered = altered.unwrap_or_default();
        let original = placed.as_ref().map(|placed| (placed, &altered));
        check_change(&asked, role, original, &ChangeRules::default(), self.now).err()
    }

    /// Message `id` as `owner` has it in this conversation.
    pub(crate) fn subject(
        &self,
        conversation: ConversationId,
        owner: UserId,
        id: MessageId,
    ) -> Option<Placed> {
        let row = self.disk.rows.get(&(Owner::of(conversation, owner), id));
        let placed = row.map(|row| row.placed.clone());
        placed.filter(|placed| placed.conversation == conversation)
    }
}
