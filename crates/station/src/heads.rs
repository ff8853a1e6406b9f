//! Where conversations end: groups by their copies, those with one other user by the store.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use backend::heads::HeadStore;
use protocol::cached::{self, CachedGroup};
use protocol::conversation::Head;
use protocol::{ConversationId, GroupId, Refusal, Seq};

use crate::cached::Cached;
use crate::deadline::within;

/// Reads heads.
#[derive(Clone)]
pub(crate) struct Heads {
    pub(crate) store: Arc<dyn HeadStore>,
    pub(crate) cached: Cached,
    pub(crate) deadline: Duration,
}

impl Heads {
    /// As the store says now, in order of the question; at rest where there is none.
    pub(crate) async fn read(
        &self,
        conversations: &[ConversationId],
    ) -> Result<Vec<Head>, Refusal> {
        if conversations.is_empty() {
            return Ok(Vec::new());
        }
        let heads = within(self.deadline, self.store.load(conversations)).await?;
        Ok(heads.into_iter().map(Option::unwrap_or_default).collect())
    }

    pub(crate) async fn read_one(&self, conversation: ConversationId) -> Result<Head, Refusal> {
        let heads = self.read(&[conversation]).await?;
        Ok(heads.into_iter().next().unwrap_or_default())
    }

    /// In order of the question. Those of which there is no copy are read, and kept.
    pub(crate) async fn groups(&self, groups: &[GroupId]) -> Result<Vec<CachedGroup>, Refusal> {
        let at = self.cached.now();
        let slots = self.cached.groups(groups).await;
        let known: Vec<Option<CachedGroup>> = slots.iter().map(|slot| slot.copy).collect();
        let missing = groups.iter().copied().zip(slots);
        let missing: Vec<_> = missing.filter(|(_, slot)| slot.copy.is_none()).collect();
        let of = |(group, _): &(GroupId, _)| ConversationId::Group(*group);
        let heads = self
            .read(&missing.iter().map(of).collect::<Vec<_>>())
            .await?;
        let heads = heads.into_iter();
        let read = heads.map(|head| CachedGroup::read(at, head, None));
        let read: Vec<CachedGroup> = read.collect();
        let kept = missing.into_iter().zip(&read);
        let kept = kept.map(|((group, slot), copy)| (group, slot, *copy));
        self.cached.keep_groups(kept).await;
        let mut read = read.into_iter();
        let copies = known.into_iter().map(|known| known.or_else(|| read.next()));
        Ok(copies.flatten().collect())
    }

    /// Up to where messages of each may have been changed.
    pub(crate) async fn changed_to(
        &self,
        conversations: &[ConversationId],
    ) -> Result<BTreeMap<ConversationId, Seq>, Refusal> {
        let group = |of: &ConversationId| match of {
            ConversationId::Group(group) => Some(*group),
            ConversationId::Private { .. } | ConversationId::System(_) => None,
        };
        let groups: Vec<GroupId> = conversations.iter().filter_map(group).collect();
        let others = conversations.iter().filter(|of| group(of).is_none());
        let others: Vec<ConversationId> = others.copied().collect();
        let (copies, heads) = tokio::try_join!(self.groups(&groups), self.read(&others))?;
        let groups = groups.into_iter().map(ConversationId::Group);
        let groups = groups.zip(copies.iter().map(|copy| copy.changed_to));
        let of = |head: &Head| cached::changed_to(head.rev, head.seq);
        let others = others.into_iter().zip(heads.iter().map(of));
        Ok(groups.chain(others).collect())
    }
}
