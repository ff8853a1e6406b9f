//! Recalls, edits and reactions, as stations check them before the log.

use protocol::admission::check_change;
use protocol::change::{ChangeRequest, ChangeRules};
use protocol::message_row::Owner;
use protocol::{ConversationId, Message, MessageId, Placed, Refusal, UserId};

use crate::world::World;

impl World {
    /// Refusal of a change that would have no effect. A change that cannot be judged yet goes on to
    /// the writer.
    pub(crate) fn early_refusal(&self, message: &Message) -> Option<Refusal> {
        let request = ChangeRequest::of(message)?;
        let conversation = message.conversation()?;
        let role = self
            .conversation_group(conversation)
            .and_then(|group| group.role(request.by));
        let subject = self.subject(conversation, request.by, request.subject);
        let overlay = subject.as_ref().and_then(|subject| {
            let place = (conversation, subject.position.seq);
            self.disk.overlays.get(&place).cloned()
        });
        let overlay = overlay.unwrap_or_default();
        let original = subject.as_ref().map(|subject| (subject, &overlay));
        check_change(&request, role, original, &ChangeRules::default(), self.now).err()
    }

    /// Message `id` as `owner` has it in this conversation.
    pub(crate) fn subject(
        &self,
        conversation: ConversationId,
        owner: UserId,
        id: MessageId,
    ) -> Option<Placed> {
        let row = self.disk.rows.get(&(Owner::of(conversation, owner), id));
        let message = row.map(|row| row.placed.clone());
        message.filter(|message| message.conversation == conversation)
    }
}
