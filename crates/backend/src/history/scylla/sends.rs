//! Which messages were sent under a send_id. Rows are only added: a repeat that became a message of its own
//! stands beside the first.

use protocol::history::{Direction, PrivateRow};
use protocol::id::Uuid;
use protocol::{MessageId, SendId, UserId};

use super::{SEAM, row};
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
                "INSERT INTO pchat_send (send_id, uid1, uid2, id) VALUES (?, ?, ?, ?)",
            ),
            of_sender: Statement::new(
                "SELECT id FROM pchat_send WHERE send_id = ? AND uid1 = ? AND uid2 = ? AND id >= ? LIMIT 16",
            ),
            // Whoever chooses a send_id that thousands chose is not told of all of them.
            all: Statement::new("SELECT uid1, id FROM pchat_send WHERE send_id = ? LIMIT 256"),
        }
    }

    pub(super) async fn save(&self, cql: &SeamCql, rows: &[PrivateRow]) -> Result<()> {
        let sent = rows.iter().filter(|row| row.direction == Direction::Out);
        let writes = sent.map(|row| {
            let (from, to) = (row.owner.get(), row.peer.get());
            cql.write(&self.insert, (uuid(row.send_id), from, to, row.id.get()))
        });
        cql.all(writes.collect()).await.map(drop)
    }

    /// Ids of what one user sent to another, from `since` on, the first ones.
    pub(super) async fn find(
        &self,
        cql: &SeamCql,
        send_id: SendId,
        (from, to): (UserId, UserId),
        since: MessageId,
    ) -> Result<Vec<MessageId>> {
        let key = (uuid(send_id), from.get(), to.get(), since.get());
        let found: Vec<(i64,)> = cql.rows(&self.of_sender, key).await?;
        found.into_iter().map(|(id,)| row::id(id)).collect()
    }

    pub(super) async fn all(
        &self,
        cql: &SeamCql,
        send_id: SendId,
    ) -> Result<Vec<(UserId, MessageId)>> {
        let found: Vec<(i64, i64)> = cql.rows(&self.all, (uuid(send_id),)).await?;
        let sent = |(from, id)| {
            let from = UserId::new(from).map_err(|error| Error::corrupt(SEAM, error))?;
            Ok((from, row::id(id)?))
        };
        found.into_iter().map(sent).collect()
    }
}

fn uuid(send_id: SendId) -> Uuid {
    Uuid::from_bytes(*send_id.as_bytes())
}
