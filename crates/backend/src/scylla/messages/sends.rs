//! Messages by send_id. Rows are only added: a repeat that became a message of its own lies beside
//! the first.

use protocol::id::Uuid;
use protocol::{MessageId, SendId, UserId};

use super::columns;
use crate::scylla::{SeamCql, Statement};
use crate::{Error, Result};

/// Message under its send_id.
#[derive(Clone, Copy, Debug)]
pub(crate) struct StoredSend {
    pub(crate) send_id: SendId,
    pub(crate) from: UserId,
    /// User or group.
    pub(crate) to: i64,
    pub(crate) id: MessageId,
}

impl StoredSend {
    fn values(self) -> (Uuid, i64, i64, i64) {
        let StoredSend { from, to, id, .. } = self;
        (uuid(self.send_id), from.get(), to, id.get())
    }
}

pub(crate) struct Sends {
    insert: Statement,
    by_sender: Statement,
    all: Statement,
}

impl Sends {
    /// `table` has the columns `send_id`, these two, and `id`.
    pub(crate) fn new(table: &str, from: &str, to: &str) -> Sends {
        Sends {
            insert: Statement::new(format!(
                "INSERT INTO {table} (send_id, {from}, {to}, id) VALUES (?, ?, ?, ?)"
            )),
            by_sender: Statement::new(format!(
                "SELECT id FROM {table} WHERE send_id = ? AND {from} = ? AND {to} = ? AND id >= ? LIMIT 16"
            )),
            // Bounded: a send_id shared by thousands of messages returns only some of them.
            all: Statement::new(format!(
                "SELECT {from}, id FROM {table} WHERE send_id = ? LIMIT 256"
            )),
        }
    }

    pub(crate) async fn save(
        &self,
        cql: &SeamCql,
        sends: impl Iterator<Item = StoredSend>,
    ) -> Result<()> {
        let writes = sends.map(|send| cql.write(&self.insert, send.values()));
        cql.all(writes.collect()).await.map(drop)
    }

    /// Ids of the first sends that match each of these, from its id on.
    pub(crate) async fn find(
        &self,
        cql: &SeamCql,
        first_sends: impl Iterator<Item = StoredSend>,
    ) -> Result<Vec<Vec<MessageId>>> {
        let queries = first_sends.map(|first_send| async move {
            let rows: Vec<(i64,)> = cql.rows(&self.by_sender, first_send.values()).await?;
            let ids = rows.into_iter().map(|(id,)| columns::id(cql, id));
            ids.collect::<Result<Vec<_>>>()
        });
        cql.all(queries.collect()).await
    }

    pub(crate) async fn all(
        &self,
        cql: &SeamCql,
        send_id: SendId,
    ) -> Result<Vec<(UserId, MessageId)>> {
        let rows: Vec<(i64, i64)> = cql.rows(&self.all, (uuid(send_id),)).await?;
        let to_send = |(from, id)| {
            let from = UserId::new(from).map_err(|error| Error::corrupt(cql.seam(), error))?;
            Ok((from, columns::id(cql, id)?))
        };
        rows.into_iter().map(to_send).collect()
    }
}

fn uuid(send_id: SendId) -> Uuid {
    Uuid::from_bytes(*send_id.as_bytes())
}
