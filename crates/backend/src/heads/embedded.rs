//! Heads in the embedded store: table `head`, the conversation's key → the head, its version first.

use async_trait::async_trait;
use parking_lot::Mutex;
use protocol::ConversationId;
use protocol::conversation::Head;
use protocol::history::Version;
use serde::{Deserialize, Serialize};

use super::HeadStore;
use crate::Result;
use crate::embedded::value::{decode, decode_front, encode};
use crate::embedded::{Batch, Engine, Table};

const SEAM: &str = "heads";

/// Heads in the embedded store.
pub struct EmbeddedHeads {
    engine: Engine,
    /// Held between looking at a head's version and writing it, never across an await.
    writing: Mutex<()>,
}

/// A head behind its version, which is read alone.
#[derive(Serialize, Deserialize)]
struct Kept(Version, Head);

impl EmbeddedHeads {
    pub fn new(engine: Engine) -> EmbeddedHeads {
        EmbeddedHeads {
            engine,
            writing: Mutex::new(()),
        }
    }
}

#[async_trait]
impl HeadStore for EmbeddedHeads {
    async fn load(&self, conversations: &[ConversationId]) -> Result<Vec<Option<Head>>> {
        let keys: Vec<_> = conversations.iter().map(|c| c.to_key()).collect();
        self.engine
            .multi_get(Table::Head, &keys)?
            .into_iter()
            .map(|value| {
                let kept = value
                    .map(|value| decode::<Kept>(SEAM, &value))
                    .transpose()?;
                Ok(kept.map(|Kept(_, head)| head))
            })
            .collect()
    }

    async fn save(&self, mut heads: Vec<(ConversationId, Head)>) -> Result<()> {
        // Of two writes of one key in a batch the later counts.
        heads.sort_by_key(|(_, head)| head.version);
        let keys: Vec<_> = heads.iter().map(|(c, _)| c.to_key()).collect();
        let _writing = self.writing.lock();
        let standing = self.engine.multi_get(Table::Head, &keys)?;
        let mut batch = Batch::new();
        for (((_, head), key), standing) in heads.iter().zip(keys).zip(standing) {
            if let Some(standing) = standing {
                let (version, _): (Version, _) = decode_front(SEAM, &standing)?;
                if version > head.version {
                    continue;
                }
            }
            let value = encode(SEAM, &Kept(head.version, *head))?;
            batch.put(Table::Head, key.to_vec(), value);
        }
        if !batch.is_empty() {
            self.engine.write(batch)?;
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::EmbeddedHeads;
    use crate::fresh::on_memory_and_disk;
    use crate::heads::contract;

    on_memory_and_disk!(super::EmbeddedHeads::new:
        what_was_never_saved_is_none,
        a_head_comes_back_whole,
        only_a_later_version_replaces,
    );
}
