//! Judges a change when it is sent, so that a sender who may not make it, or comes too late, hears
//! so at once.
//!
//! The conversation's writer judges again, at the change's place in the log: only that counts. A
//! change that cannot be judged here, because its message is not placed yet or a store does not
//! answer, goes on to the writer.

use std::sync::Arc;
use std::time::Duration;

use backend::Backends;
use protocol::admission::check_change;
use protocol::change::{ChangeKind, ChangeRequest, ChangeRules, Overlay};
use protocol::message_row::Owner;
use protocol::{Code, ConversationId, Message, MessageId, Placed, Refusal, UserId};

use crate::config::Config;
use crate::membership::Membership;
use crate::stores::within;

/// Judges changes.
pub(crate) struct ChangeCheck {
    backends: Backends,
    deadline: Duration,
    membership: Arc<Membership>,
    rules: ChangeRules,
}

impl ChangeCheck {
    pub(crate) fn new(
        backends: &Backends,
        config: &Config,
        membership: Arc<Membership>,
    ) -> ChangeCheck {
        ChangeCheck {
            backends: backends.clone(),
            deadline: config.store_deadline,
            membership,
            rules: config.bounds().rules(),
        }
    }

    /// Reason why this change would have no effect; `None` if it may go on.
    pub(crate) async fn refused(
        &self,
        message: &Message,
        conversation: ConversationId,
    ) -> Option<Refusal> {
        let Some(request) = ChangeRequest::of(message) else {
            return self.hide_refused(message, conversation).await;
        };
        let (role, readable_after) = match conversation {
            ConversationId::Group(group) => match self.membership.of(request.by, group).await {
                Ok((info, member)) => (member.role, member.readable_after(info.settings)),
                Err(refusal) if refusal.code.retryable() => return None,
                Err(refusal) => return Some(refusal),
            },
            ConversationId::Private { .. } | ConversationId::System(_) => (None, None),
        };
        let original = self.original(request.by, request.subject, conversation);
        // What a member may not read is not there.
        let original = (original.await.ok()?)
            .filter(|entry| readable_after.is_none_or(|floor| entry.position.seq > floor));
        let overlay = match &original {
            Some(entry) => self.altered(entry).await.ok()?,
            None => Overlay::default(),
        };
        let original = original.as_ref().map(|entry| (entry, &overlay));
        let now = self.backends.clock.now();
        check_change(&request, role, original, &self.rules, now).err()
    }

    /// Refuses to hide what a member may not read: to them it is not there. The writer does not judge that, as the
    /// members of a record that is handled again may have left and come back since.
    async fn hide_refused(
        &self,
        message: &Message,
        conversation: ConversationId,
    ) -> Option<Refusal> {
        let change = message.content.change.as_deref()?;
        let (ChangeKind::Hide, ConversationId::Group(group)) = (&change.kind, conversation) else {
            return None;
        };
        let (info, member) = self.membership.of(message.from, group).await.ok()?;
        let readable_after = member.readable_after(info.settings)?;
        let original = self.original(message.from, change.subject?, conversation);
        let seq = original.await.ok()??.position.seq;
        let text = "no such message in this conversation";
        (seq <= readable_after).then(|| Refusal::new(Code::NotFound, text))
    }

    /// The message that the change names, as it was sent.
    async fn original(
        &self,
        sender: UserId,
        subject: MessageId,
        conversation: ConversationId,
    ) -> Result<Option<Placed>, Refusal> {
        let key = [(Owner::of(conversation, sender), subject)];
        let rows = within(self.deadline, self.backends.messages.rows(&key)).await?;
        let row = rows.into_iter().next().flatten();
        let entry = row.map(|row| row.placed);
        Ok(entry.filter(|entry| entry.conversation == conversation))
    }

    async fn altered(&self, entry: &Placed) -> Result<Overlay, Refusal> {
        let seq = entry.position.seq;
        let overlays = self.backends.changes.altered(entry.conversation, seq, seq);
        let overlays = within(self.deadline, overlays).await?.remove(&seq);
        Ok(overlays.unwrap_or_default())
    }
}
