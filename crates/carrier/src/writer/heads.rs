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

/// Conversations whose heads a shard remembers, at about 200 bytes each: the least recently used
/// beyond them are read again.
const HEADS_MAX: NonZeroUsize = NonZeroUsize::new(100_000).unwrap();

pub(super) struct Heads {
    store: Arc<dyn HeadStore>,
    store_deadline: StoreDeadline,
    /// With the partition of the conversation.
    cache: LruCache<ConversationId, (u32, Head)>,
}

impl Heads {
    pub(super) fn new(store: Arc<dyn HeadStore>, config: &Config) -> Heads {
        Heads {
            store,
            store_deadline: StoreDeadline::new(config),
            cache: LruCache::new(HEADS_MAX),
        }
    }

    /// Heads of these conversations; of one without messages the default.
    ///
    /// A head that is read is not remembered before this carrier has moved it: one that was behind and is repaired in
    /// the store (`doctor user N --repair`) is read again with the next message.
    pub(super) async fn load(
        &mut self,
        conversations: &BTreeSet<ConversationId>,
    ) -> Result<BTreeMap<ConversationId, Head>> {
        let mut heads = BTreeMap::new();
        let mut cache_misses = Vec::new();
        for conversation in conversations {
            match self.cache.get(conversation) {
                Some((_, head)) => _ = heads.insert(*conversation, *head),
                None => cache_misses.push(*conversation),
            }
        }
        if !cache_misses.is_empty() {
            let stored_heads = self
                .store_deadline
                .within(self.store.load(&cache_misses))
                .await?;
            let stored_heads = stored_heads.into_iter().map(Option::unwrap_or_default);
            heads.extend(cache_misses.into_iter().zip(stored_heads));
        }
        Ok(heads)
    }

    /// Heads as the store has them now.
    pub(super) async fn reload(
        &mut self,
        conversations: &BTreeSet<ConversationId>,
    ) -> Result<BTreeMap<ConversationId, Head>> {
        conversations
            .iter()
            .for_each(|conversation| self.forget_one(*conversation));
        self.load(conversations).await
    }

    pub(super) async fn write(&self, heads: &[HeadMove]) -> Result<()> {
        let values = heads
            .iter()
            .map(|head_move| (head_move.conversation, head_move.head));
        let save = self.store.save(values.collect());
        self.store_deadline.within(save).await
    }

    /// Remembers a head that is written.
    pub(super) fn remember(&mut self, head_move: HeadMove) {
        self.cache.put(
            head_move.conversation,
            (head_move.partition, head_move.head),
        );
    }

    pub(super) fn forget_one(&mut self, conversation: ConversationId) {
        self.cache.pop(&conversation);
    }

    pub(super) fn forget(&mut self, partitions: &[Partition]) {
        let numbers: Vec<u32> = partitions
            .iter()
            .filter(|partition| partition.topic == Topic::Message)
            .map(|partition| partition.number)
            .collect();
        let conversations: Vec<ConversationId> = self
            .cache
            .iter()
            .filter(|(_, (partition, _))| numbers.contains(partition))
            .map(|(conversation, _)| *conversation)
            .collect();
        conversations
            .iter()
            .for_each(|conversation| self.forget_one(*conversation));
    }
}
