//! Places of rows of `pchat`: all that a receipt needs.

use protocol::message_row::StoredPlace;
use protocol::{MessageId, UserId};
use scylla::DeserializeRow;

use super::row;
use crate::messages::SEAM;
use crate::scylla::messages::{by_ids, columns, select};
use crate::scylla::{SeamCql, Statement};
use crate::{Error, Result};

/// Columns of a place; all but the id are missing if only a register was written.
#[derive(DeserializeRow)]
struct PlaceColumns {
    id: i64,
    uid2: Option<i64>,
    io: Option<i8>,
    seq: Option<i64>,
    incoming: Option<i64>,
}

pub(super) struct Places(Statement);

impl Places {
    pub(super) fn new() -> Places {
        Places(select::<UserId>("id, uid2, io, seq, incoming", "id IN ?"))
    }

    /// Reads places, in request order.
    pub(super) async fn of(
        &self,
        cql: &SeamCql,
        keys: &[(UserId, MessageId)],
    ) -> Result<Vec<Option<StoredPlace>>> {
        by_ids(cql, &self.0, keys, |_, columns: PlaceColumns| {
            Ok((columns.id, place(&columns)?))
        })
        .await
    }
}

fn place(columns: &PlaceColumns) -> Result<Option<StoredPlace>> {
    let (Some(peer), Some(io), Some(seq)) = (columns.uid2, columns.io, columns.seq) else {
        return Ok(None);
    };
    let torn = || Error::corrupt(SEAM, "a column holds no place");
    Ok(Some(StoredPlace {
        peer: UserId::new(peer).map_err(|error| Error::corrupt(SEAM, error))?,
        direction: row::direction(io).ok_or_else(torn)?,
        seq: columns::seq(seq).ok_or_else(torn)?,
        incoming_count: columns.incoming.unwrap_or(0) as u64,
    }))
}
