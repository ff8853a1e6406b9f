//! Heads in the embedded store: table `head`, the conversation's key → the head.

use async_trait::async_trait;
use parking_lot::Mutex;
use protocol::ConversationId;
use protocol::conversation::Head;
use protocol::history::Version;

use super::HeadStore;
use crate::Result;
use crate::embedded::aging_map::AgingMap;
use crate::embedded::value::{decode, encode};
use crate::embedded::{Engine, Table, WriteBatch};

const SEAM: &str = "heads";

/// Heads in the embedded store. One instance per store: it remembers the versions it wrote.
pub struct EmbeddedHeads {
    engine: Engine,
    /// Held from the read of a head's version to its write, never across an await.
    versions: Mutex<AgingMap<ConversationId, Version>>,
}

impl EmbeddedHeads {
    pub fn new(engine: Engine) -> EmbeddedHeads {
        EmbeddedHeads {
            engine,
            versions: Mutex::default(),
        }
    }

    fn version(&self, key: &[u8]) -> Result<Option<Version>> {
        let Some(value) = self.engine.get(Table::Head, key)? else {
            return Ok(None);
        };
        decode(SEAM, &value).map(|head: Head| Some(head.version))
    }
}

#[async_trait]
impl HeadStore for EmbeddedHeads {
    async fn load(&self, conversations: &[ConversationId]) -> Result<Vec<Option<Head>>> {
        let keys: Vec<_> = conversations.iter().map(|c| c.to_key()).collect();
        self.engine
            .multi_get(Table::Head, &keys)?
            .into_iter()
            .map(|value| value.map(|value| decode(SEAM, &value)).transpose())
            .collect()
    }

    async fn save(&self, mut heads: Vec<(ConversationId, Head)>) -> Result<()> {
        // The last write of a key in a batch counts, so the latest version goes last.
        heads.sort_by_key(|(_, head)| head.version);
        let mut versions = self.versions.lock();
        let mut batch = WriteBatch::new();
        let mut updates = Vec::with_capacity(heads.len());
        for (conversation, head) in heads {
            let key = conversation.to_key();
            let current = match versions.get(&conversation) {
                Some(version) => Some(version),
                None => self.version(&key)?,
            };
            if current <= Some(head.version) {
                batch.put(Table::Head, key.to_vec(), encode(SEAM, &head)?);
                updates.push((conversation, head.version));
            }
        }
        if !batch.is_empty() {
            self.engine.write(batch)?;
        }
        for (conversation, version) in updates {
            versions.put(conversation, version);
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::heads::contract;
    use crate::test_ids::{TestIds, on_memory_and_disk};

    contract::checks!(on_memory_and_disk!(super::EmbeddedHeads::new));

    /// A new instance has no memory and reads before it writes.
    #[tokio::test]
    async fn a_new_life_replaces_nothing_that_is_later() {
        let (engine, fresh) = (Engine::memory(), TestIds::new(1));
        let (conversation, id) = (fresh.conversation(), fresh.message());
        let head = |offset| Head::default().moved_by(Version { epoch: 1, offset }, id, None);
        for offset in [9, 8] {
            let store = EmbeddedHeads::new(engine.clone());
            let result = store.save(vec![(conversation, head(offset))]).await;
            result.expect("saves");
        }
        let heads = EmbeddedHeads::new(engine).load(&[conversation]).await;
        assert_eq!(heads.expect("loads"), [Some(head(9))]);
    }
}
