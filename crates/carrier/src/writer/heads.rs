//! The heads of conversations: the newest used in memory, all of them in the store.

use std::collections::{BTreeMap, BTreeSet};
use std::num::NonZeroUsize;
use std::sync::Arc;

use backend::heads::HeadStore;
use backend::queue::Partition;
use lru::LruCache;
use protocol::ConversationId;
use protocol::conversation::Head;
use protocol::keys::Topic;

use crate::Config;
use crate::stores::{Result, Timed};

pub(super) struct Heads {
    store: Arc<dyn HeadStore>,
    stores: Timed,
    /// With the partition that the conversation belongs to.
    cache: LruCache<ConversationId, (u32, Head)>,
}

impl Heads {
    pub(super) fn new(store: Arc<dyn HeadStore>, config: &Config) -> Heads {
        let most = NonZeroUsize::new(config.heads_max).unwrap_or(NonZeroUsize::MIN);
        Heads {
            store,
            stores: Timed::new(config),
            cache: LruCache::new(most),
        }
    }

    /// The heads of these conversations. One that was never written is at rest.
    ///
    /// What is read is not remembered before this carrier has moved it: a head that was behind and is mended
    /// in the store (`doctor user N --repair`) is read again with the next message.
    pub(super) async fn load(
        &mut self,
        wanted: BTreeSet<ConversationId>,
    ) -> Result<BTreeMap<ConversationId, Head>> {
        let mut heads = BTreeMap::new();
        let mut missing = Vec::new();
        for conversation in wanted {
            match self.cache.get(&conversation) {
                Some((_, head)) => _ = heads.insert(conversation, *head),
                None => missing.push(conversation),
            }
        }
        if !missing.is_empty() {
            let found = self.stores.within(self.store.load(&missing)).await?;
            let found = found.into_iter().map(Option::unwrap_or_default);
            heads.extend(missing.into_iter().zip(found));
        }
        Ok(heads)
    }

    /// Remembered only once they are written.
    pub(super) async fn save(
        &mut self,
        heads: BTreeMap<ConversationId, (u32, Head)>,
    ) -> Result<()> {
        if heads.is_empty() {
            return Ok(());
        }
        let values = heads
            .iter()
            .map(|(conversation, (_, head))| (*conversation, *head))
            .collect();
        if let Err(error) = self.stores.within(self.store.save(values)).await {
            // What is damaged there is found when it is read again, before anything is written.
            heads
                .keys()
                .for_each(|conversation| self.forget_one(*conversation));
            return Err(error);
        }
        for (conversation, head) in heads {
            self.cache.put(conversation, head);
        }
        Ok(())
    }

    /// The head as the store has it now.
    pub(super) async fn reload(&mut self, conversation: ConversationId) -> Result<Head> {
        self.forget_one(conversation);
        let heads = self.load([conversation].into()).await?;
        Ok(heads.get(&conversation).copied().unwrap_or_default())
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
