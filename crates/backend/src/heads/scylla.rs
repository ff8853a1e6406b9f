//! Heads in ScyllaDB or Cassandra: table `head`, a row per conversation, written at the time of its
//! version. A change without a new seq or version raises `rev`: at equal times the larger value
//! wins.

use async_trait::async_trait;
use protocol::conversation::Head;
use protocol::{ConversationId, MessageId, Seq, Timestamp};
use scylla::DeserializeRow;

use super::HeadStore;
use crate::scylla::{Cql, SeamCql, Statement, write_time};
use crate::{Error, Result};

const SEAM: &str = "heads";

/// Heads in ScyllaDB or Cassandra. Several may write at once.
pub struct ScyllaHeads {
    cql: SeamCql,
    insert: Statement,
    select: Statement,
}

#[derive(DeserializeRow)]
struct HeadColumns {
    seq: i64,
    rev: i64,
    last_id: i64,
    max_id: i64,
    /// Heads from before migration 7 have none.
    from_low: Option<i64>,
    stamp: Option<i64>,
    ver: i64,
}

impl ScyllaHeads {
    pub fn new(cql: Cql) -> ScyllaHeads {
        ScyllaHeads {
            cql: cql.at(SEAM),
            insert: Statement::new(
                "INSERT INTO head (kind, low, high, seq, rev, last_id, max_id, from_low, stamp, ver) \
                 VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?) USING TIMESTAMP ?",
            ),
            select: Statement::new(
                "SELECT seq, rev, last_id, max_id, from_low, stamp, ver FROM head \
                 WHERE kind = ? AND low = ? AND high = ?",
            ),
        }
    }

    async fn one(&self, conversation: ConversationId) -> Result<Option<Head>> {
        let rows: Vec<HeadColumns> = self.cql.rows(&self.select, key(conversation)).await?;
        let columns = rows.into_iter().next();
        columns
            .map(|columns| {
                let torn =
                    || Error::corrupt(SEAM, format!("the head of {conversation} is invalid"));
                columns.head().ok_or_else(torn)
            })
            .transpose()
    }

    async fn write(&self, conversation: ConversationId, head: Head) -> Result<()> {
        let (kind, low, high) = key(conversation);
        let ver = write_time::from_version(SEAM, head.version)?;
        let seq = write_time::from_seq(SEAM, head.seq)?.unwrap_or(0);
        let id = |id: Option<MessageId>| id.map_or(0, MessageId::get);
        let (last_id, max_id) = (id(head.last_id), id(head.max_id));
        // Cast to signed: bit patterns keep the full range, and the larger number is the larger
        // value.
        let rev = head.rev as i64;
        let (from_low, stamp) = (head.from_low as i64, head.stamp.millis());
        let values = (
            kind, low, high, seq, rev, last_id, max_id, from_low, stamp, ver, ver,
        );
        self.cql.write(&self.insert, values).await
    }
}

impl HeadColumns {
    fn head(self) -> Option<Head> {
        let id = |raw: i64| match raw {
            0 => Some(None),
            id => MessageId::new(id).ok().map(Some),
        };
        Some(Head {
            seq: Seq(u64::try_from(self.seq).ok()?),
            rev: self.rev as u64,
            last_id: id(self.last_id)?,
            max_id: id(self.max_id)?,
            from_low: u64::try_from(self.from_low.unwrap_or(0)).ok()?,
            stamp: Timestamp::from_millis(self.stamp.unwrap_or(0)),
            version: write_time::to_version(self.ver)?,
        })
    }
}

#[async_trait]
impl HeadStore for ScyllaHeads {
    async fn load(&self, conversations: &[ConversationId]) -> Result<Vec<Option<Head>>> {
        let reads = conversations
            .iter()
            .map(|&conversation| self.one(conversation));
        self.cql.all(reads.collect()).await
    }

    async fn save(&self, heads: Vec<(ConversationId, Head)>) -> Result<()> {
        let writes = heads
            .into_iter()
            .map(|(conversation, head)| self.write(conversation, head));
        self.cql.all(writes.collect()).await.map(drop)
    }
}

fn key(conversation: ConversationId) -> (i8, i64, i64) {
    match conversation {
        ConversationId::Private { low, high } => (0, low.get(), high.get()),
        ConversationId::Group(group) => (1, 0, group.get()),
        ConversationId::System(user) => (2, 0, user.get()),
    }
}

#[cfg(test)]
mod tests {
    use super::ScyllaHeads;
    use crate::heads::contract;
    use crate::scylla::fixture::on_cql;

    contract::checks!(on_cql!("heads", ScyllaHeads::new));
}
