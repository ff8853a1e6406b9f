//! Heads of conversations: those used last in memory, all of them in the store.

use std::collections::{BTreeMap, BTreeSet};
use std::num::NonZeroUsize;
use std::sync::Arc;

use backend::heads::HeadStore;
use backend::queue::Partition;
use lru::LruCache;
use protocol::ConversationId;
use protocol::conversation::Head;
use protocol::keys::Topic;
use protocol::writer::HeadMove;

use crate::Config;
use crate::deadline::{Result, StoreDeadline};

pub(super) struct Heads {
    store: Arc<dyn HeadStore>,
    stores: StoreDeadline,
    /// With the partition of the conversation.
    cache: LruCache<ConversationId, (u32, Head)>,
}

impl Heads {
    pub(super) fn new(store: Arc<dyn HeadStore>, config: &Config) -> Heads {
        let most = NonZeroUsize::new(config.heads_max).unwrap_or(NonZeroUsize::MIN);
        Heads {
            store,
            stores: StoreDeadline::new(config),
            cache: LruCache::new(most),
        }
    }

    /// Heads of these conversations; of one without messages the default.
    ///
    /// A head that is read is not remembered before this carrier has moved it: one that was behind and is repaired in
    /// the store (`doctor user N --repair`) is read again with the next message.
    pub(super) async fn load(
        &mut self,
        wanted: &BTreeSet<ConversationId>,
    ) -> Result<BTreeMap<ConversationId, Head>> {
        let mut heads = BTreeMap::new();
        let mut missing = Vec::new();
        for conversation in wanted {
            match self.cache.get(conversation) {
                Some((_, head)) => _ = heads.insert(*conversation, *head),
                None => missing.push(*conversation),
            }
        }
        if !missing.is_empty() {
            let stored = self.stores.within(self.store.load(&missing)).await?;
            let stored = stored.into_iter().map(Option::unwrap_or_default);
            heads.extend(missing.into_iter().zip(stored));
        }
        Ok(heads)
    }

    /// Heads as the store has them now.
    pub(super) async fn reload(
        &mut self,
        wanted: &BTreeSet<ConversationId>,
    ) -> Result<BTreeMap<ConversationId, Head>> {
        wanted
            .iter()
            .for_each(|conversation| self.forget_one(*conversation));
        self.load(wanted).await
    }

    pub(super) async fn write(&self, heads: &[HeadMove]) -> Result<()> {
        let values = heads.iter().map(|moved| (moved.conversation, moved.head));
        let saved = self.store.save(values.collect());
        self.stores.within(saved).await
    }

    /// Remembers a head that is written.
    pub(super) fn remember(&mut self, moved: HeadMove) {
        self.cache
            .put(moved.conversation, (moved.partition, moved.head));
    }

    pub(super) fn forget_one(&mut self, conversation: ConversationId) {
        self.cache.pop(&conversation);
    }

    pub(super) fn forget(&mut self, partitions: &[Partition]) {
        let gone: Vec<u32> = partitions
            .iter()
            .filter(|partition| partition.topic == Topic::Message)
            .map(|partition| partition.number)
            .collect();
        let theirs: Vec<ConversationId> = self
            .cache
            .iter()
            .filter(|(_, (partition, _))| gone.contains(partition))
            .map(|(conversation, _)| *conversation)
            .collect();
        theirs
            .iter()
            .for_each(|conversation| self.forget_one(*conversation));
    }
}
