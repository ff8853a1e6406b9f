//! What messages say by now: an edit or a recall since they were sent.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use backend::changes::ChangeStore;
use backend::heads::HeadStore;
use futures_util::future::try_join_all;
use protocol::message::Content;
use protocol::{ConversationId, MessageId, Placed, Refusal, Seq};

use crate::deadline::within;

/// Asks what became of messages of any conversations.
#[derive(Clone)]
pub(crate) struct Current {
    pub(crate) heads: Arc<dyn HeadStore>,
    pub(crate) changes: Arc<dyn ChangeStore>,
    pub(crate) deadline: Duration,
}

impl Current {
    /// Of those that say something else than they did. One question for all heads, one more for each conversation in
    /// which anything was ever changed.
    pub(crate) async fn contents(
        &self,
        messages: &[Placed],
    ) -> Result<BTreeMap<MessageId, Content>, Refusal> {
        let mut of = BTreeMap::<ConversationId, Vec<&Placed>>::new();
        for placed in messages {
            of.entry(placed.conversation).or_default().push(placed);
        }
        let conversations: Vec<_> = of.keys().copied().collect();
        let heads = within(self.deadline, self.heads.load(&conversations)).await?;
        let changed = (of.into_iter().zip(heads))
            .filter(|(_, head)| head.is_some_and(|head| head.rev > 0))
            .map(|((conversation, messages), _)| self.changed(conversation, messages));
        Ok(try_join_all(changed).await?.into_iter().flatten().collect())
    }

    async fn changed(
        &self,
        conversation: ConversationId,
        messages: Vec<&Placed>,
    ) -> Result<Vec<(MessageId, Content)>, Refusal> {
        let seqs = || messages.iter().map(|placed| placed.position.seq);
        let first = seqs().min().unwrap_or(Seq::ZERO);
        let last = seqs().max().unwrap_or(Seq::ZERO);
        let altered = self.changes.altered(conversation, first, last);
        let altered = within(self.deadline, altered).await?;
        let say = |placed: &Placed| {
            let altered = altered.get(&placed.position.seq)?;
            Some((placed.message.id, altered.shown(&placed.message.content)))
        };
        Ok(messages.into_iter().filter_map(say).collect())
    }
}
