//! Which messages were sent to groups under a send_id. Rows are only added: a repeat that became a message of its
//! own stands beside the first.

use protocol::group::GroupRow;
use protocol::id::Uuid;
use protocol::{GroupId, MessageId, SendId, UserId};

use super::{SEAM, message};
use crate::scylla::{SeamCql, Statement};
use crate::{Error, Result};

pub(super) struct Sends {
    insert: Statement,
    of_sender: Statement,
    all: Statement,
}

impl Sends {
    pub(super) fn new() -> Sends {
        Sends {
            insert: Statement::new(
                "INSERT INTO gchat_send (send_id, uid, gid, id) VALUES (?, ?, ?, ?)",
            ),
            of_sender: Statement::new(
                "SELECT id FROM gchat_send WHERE send_id = ? AND uid = ? AND gid = ? AND id >= ? LIMIT 16",
            ),
            // Whoever chooses a send_id that thousands chose is not told of all of them.
            all: Statement::new("SELECT uid, id FROM gchat_send WHERE send_id = ? LIMIT 256"),
        }
    }

    pub(super) async fn save(&self, cql: &SeamCql, rows: &[GroupRow]) -> Result<()> {
        let writes = rows.iter().map(|row| {
            let (from, group) = (row.from.get(), row.group.get());
            cql.write(&self.insert, (uuid(row.send_id), from, group, row.id.get()))
        });
        cql.all(writes.collect()).await.map(drop)
    }

    /// Ids of what one user sent to a group, from `since` on, the first ones.
    pub(super) async fn find(
        &self,
        cql: &SeamCql,
        send_id: SendId,
        (from, group, since): (UserId, GroupId, MessageId),
    ) -> Result<Vec<MessageId>> {
        let key = (uuid(send_id), from.get(), group.get(), since.get());
        let found: Vec<(i64,)> = cql.rows(&self.of_sender, key).await?;
        found.into_iter().map(|(id,)| message(id)).collect()
    }

    pub(super) async fn all(
        &self,
        cql: &SeamCql,
        send_id: SendId,
    ) -> Result<Vec<(UserId, MessageId)>> {
        let found: Vec<(i64, i64)> = cql.rows(&self.all, (uuid(send_id),)).await?;
        let sent = |(from, id)| {
            let from = UserId::new(from).map_err(|error| Error::corrupt(SEAM, error))?;
            Ok((from, message(id)?))
        };
        found.into_iter().map(sent).collect()
    }
}

fn uuid(send_id: SendId) -> Uuid {
    Uuid::from_bytes(*send_id.as_bytes())
}
