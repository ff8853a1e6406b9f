//! What messages are by now: edited, recalled, reacted to since they were sent.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::Duration;

use backend::changes::ChangeStore;
use futures_util::future::try_join_all;
use protocol::change::Marks;
use protocol::{ConversationId, Placed, Refusal, Seq};

use crate::deadline::within;
use crate::heads::Heads;

/// Makes of messages what they are now.
#[derive(Clone)]
pub(crate) struct Current {
    pub(crate) heads: Heads,
    pub(crate) changes: Arc<dyn ChangeStore>,
    pub(crate) deadline: Duration,
}

impl Current {
    /// Those of one conversation, in which nothing behind `changed_to` was ever changed. Answers what became of which;
    /// one question where any of them lies before.
    pub(crate) async fn mark(
        &self,
        conversation: ConversationId,
        changed_to: Seq,
        mut messages: Vec<&mut Placed>,
    ) -> Result<BTreeMap<Seq, Marks>, Refusal> {
        let seqs = || {
            let seqs = messages.iter().map(|placed| placed.position.seq);
            seqs.filter(|seq| *seq <= changed_to)
        };
        let (Some(first), Some(last)) = (seqs().min(), seqs().max()) else {
            return Ok(BTreeMap::new());
        };
        let altered = self.changes.altered(conversation, first, last);
        let altered = within(self.deadline, altered).await?;
        let marked = messages.iter_mut().filter_map(|placed| {
            let seq = placed.position.seq;
            Some((seq, altered.get(&seq)?.show(placed)?))
        });
        Ok(marked.collect())
    }

    /// Each of a conversation of its own, in which nothing behind the place beside it was ever changed. Answers what
    /// became of each; one question for all of them, where any lies before its place (S4-32).
    pub(crate) async fn mark_each(
        &self,
        messages: Vec<Option<(Seq, &mut Placed)>>,
    ) -> Result<Vec<Option<Marks>>, Refusal> {
        let may_have =
            |(changed_to, placed): &(Seq, &mut Placed)| placed.position.seq <= *changed_to;
        let messages: Vec<_> = messages.into_iter().map(|of| of.filter(may_have)).collect();
        let asked = messages.iter().flatten();
        let asked: Vec<_> = asked
            .map(|(_, placed)| (placed.conversation, placed.position.seq))
            .collect();
        let altered = match asked.is_empty() {
            true => Vec::new(),
            false => within(self.deadline, self.changes.altered_each(&asked)).await?,
        };
        let mut altered = altered.into_iter();
        let marks = messages.into_iter().map(|of| {
            let (_, placed) = of?;
            altered.next()?.show(placed)
        });
        Ok(marks.collect())
    }

    /// Those of any conversations, with one question more for their heads. Answers the places of which anything became.
    pub(crate) async fn mark_all(
        &self,
        messages: &mut [Placed],
    ) -> Result<BTreeSet<(ConversationId, Seq)>, Refusal> {
        let mut of = BTreeMap::<ConversationId, Vec<&mut Placed>>::new();
        for placed in messages {
            of.entry(placed.conversation).or_default().push(placed);
        }
        let conversations: Vec<_> = of.keys().copied().collect();
        let changed = self.heads.changed_to(&conversations).await?;
        let marking = of.into_iter().zip(changed.into_values());
        let marking = marking.map(|((conversation, messages), changed_to)| async move {
            let marks = self.mark(conversation, changed_to, messages).await?;
            Ok::<_, Refusal>(marks.into_keys().map(move |seq| (conversation, seq)))
        });
        Ok(try_join_all(marking).await?.into_iter().flatten().collect())
    }
}
