//! History in ScyllaDB or Cassandra.
//!
//! | table | partition | row | holds |
//! | --- | --- | --- | --- |
//! | `pchat` | user, 28-day window of the id | id | the row, and its registers |
//! | `pchat_bucket` | user | window | windows with rows of the user |
//! | `pchat_seq` | both users, block of positions | seq | id, the same for both sides |
//! | `pchat_block` | both users | block | blocks with positions of the conversation |
//! | `pchat_send` | send_id | sender, receiver, id | |
//!
//! A page by id is one read per window it touches. A page of a conversation is one or two reads of
//! `pchat_seq` and one of `pchat` for each window and hundred rows. Without that index, it would
//! begin with a search for the id of its first position, and read over all that the owner said to
//! others in between: the cost would grow with the history. The index costs one small write per
//! message, not one per side.
//!
//! Writing takes four steps; the redelivery repeats whatever was interrupted:
//!
//! ```text
//! 1 windows            every row lies in a known window
//! 2 senders' rows      no receiver has a message that its sender lacks (S0-53)
//! 3 receivers' rows,   in any order
//!   send_ids
//! 4 positions          upward in each conversation: a reader sees no false hole, and no
//!                      position without its rows
//! ```

mod pair;
mod places;
mod row;
mod statuses;

use async_trait::async_trait;
use protocol::frame::HistoryRange;
use protocol::history::{Direction, IdRange, Order, Place, PrivateRow, RowStatus};
use protocol::unread::Tally;
use protocol::{ConversationId, MessageId, SendId, Seq, UserId};

use self::pair::UserPair;
use self::places::Places;
use self::row::{NewRow, StoredRow};
use self::statuses::Statuses;
use super::{HistoryStore, StatusWrite};
use crate::scylla::messages::{Owner, PositionEntries, Positions, Rows, Sends, StoredSend};
use crate::scylla::{Cql, SeamCql};
use crate::{Error, Result};

const SEAM: &str = "history";

/// History in ScyllaDB or Cassandra. Several may write at once.
pub struct ScyllaHistory {
    cql: SeamCql,
    rows: Rows<StoredRow>,
    places: Places,
    positions: Positions<UserPair>,
    sends: Sends,
    statuses: Statuses,
}

impl ScyllaHistory {
    pub fn new(cql: Cql) -> ScyllaHistory {
        ScyllaHistory {
            cql: cql.at(SEAM),
            rows: Rows::new(),
            places: Places::new(),
            positions: Positions::new(),
            sends: Sends::new("pchat_send", "uid1", "uid2"),
            statuses: Statuses::new(),
        }
    }
}

impl Owner for UserId {
    const COLUMN: &'static str = "uid1";
    const ROWS: &'static str = "pchat";
    const WINDOWS: &'static str = "pchat_bucket";

    fn number(self) -> i64 {
        self.get()
    }
}

#[async_trait]
impl HistoryStore for ScyllaHistory {
    async fn save_private(&self, rows: Vec<PrivateRow>) -> Result<()> {
        let pairs = rows
            .iter()
            .map(UserPair::of)
            .collect::<Result<Vec<UserPair>>>()?;
        let new = rows.iter().map(NewRow::of).collect::<Result<Vec<_>>>()?;
        let standings = pairs.into_iter().zip(&new);
        let standings = PositionEntries::of(standings.map(|(pair, row)| row.standing(pair)));
        let sent = rows.iter().filter(|row| row.direction == Direction::Out);
        let sent = sent.map(|row| StoredSend {
            send_id: row.send_id,
            from: row.owner,
            to: row.peer.get(),
            id: row.id,
        });
        let cql = &self.cql;
        let keys = rows.iter().map(|row| (row.owner, row.id));
        self.rows.open(cql, keys).await?;
        let (out, incoming): (Vec<_>, Vec<_>) = new.into_iter().partition(NewRow::is_the_senders);
        self.rows.save(cql, &out).await?;
        tokio::try_join!(self.rows.save(cql, &incoming), self.sends.save(cql, sent))?;
        self.positions.save(cql, standings).await
    }

    async fn private(&self, keys: &[(UserId, MessageId)]) -> Result<Vec<Option<PrivateRow>>> {
        self.rows.whole(&self.cql, keys).await
    }

    async fn places(&self, keys: &[(UserId, MessageId)]) -> Result<Vec<Option<Place>>> {
        self.places.of(&self.cql, keys).await
    }

    async fn find_private(
        &self,
        owner: UserId,
        range: IdRange,
        order: Order,
        limit: usize,
    ) -> Result<Vec<PrivateRow>> {
        let rows = &self.rows;
        rows.find(&self.cql, owner, range, order, limit).await
    }

    async fn conversation(
        &self,
        owner: UserId,
        conversation: ConversationId,
        range: HistoryRange,
        limit: usize,
    ) -> Result<Vec<PrivateRow>> {
        let (Some(_), Some(pair)) = (
            conversation.peer_of(owner),
            UserPair::of_conversation(conversation),
        ) else {
            return Ok(Vec::new());
        };
        let places = self.positions.page(&self.cql, pair, range, limit).await?;
        let rows = &self.rows;
        rows.standing(&self.cql, owner, pair, &places).await
    }

    async fn tallies(
        &self,
        places: &[(UserId, ConversationId, Seq)],
    ) -> Result<Vec<Option<Tally>>> {
        let pair = |conversation| {
            UserPair::of_conversation(conversation)
                .ok_or_else(|| Error::conflict(SEAM, "no private conversation"))
        };
        let pairs = places
            .iter()
            .map(|&(_, conversation, seq)| Ok((pair(conversation)?, seq)));
        let pairs = pairs.collect::<Result<Vec<_>>>()?;
        let ids = self.positions.ids(&self.cql, &pairs).await?;
        let named = places.iter().zip(&ids);
        let keys: Vec<_> = named
            .filter_map(|(&(owner, ..), id)| Some((owner, (*id)?)))
            .collect();
        let mut found = self.places.of(&self.cql, &keys).await?.into_iter();
        let tally =
            |id: &Option<MessageId>| id.and_then(|_| found.next().flatten()).map(Tally::from);
        Ok(ids.iter().map(tally).collect())
    }

    async fn find_send(
        &self,
        from: UserId,
        conversation: ConversationId,
        send_id: SendId,
        since: MessageId,
    ) -> Result<Option<PrivateRow>> {
        let Some(peer) = conversation.peer_of(from) else {
            return Ok(None);
        };
        let since = StoredSend {
            send_id,
            from,
            to: peer.get(),
            id: since,
        };
        let ids = self.sends.find(&self.cql, since).await?;
        let keys: Vec<_> = ids.into_iter().map(|id| (from, id)).collect();
        let rows = self.rows.whole(&self.cql, &keys).await?;
        Ok(rows.into_iter().flatten().next())
    }

    async fn sent_as(&self, send_id: SendId) -> Result<Vec<(UserId, MessageId)>> {
        self.sends.all(&self.cql, send_id).await
    }

    async fn set_status(&self, writes: Vec<StatusWrite>) -> Result<Vec<bool>> {
        self.statuses.advance(&self.cql, writes).await
    }

    async fn status(&self, keys: &[(UserId, MessageId)]) -> Result<Vec<RowStatus>> {
        self.statuses.read(&self.cql, keys).await
    }

    async fn delete(&self, keys: &[(UserId, MessageId)]) -> Result<()> {
        let places = self.places.of(&self.cql, keys).await?;
        let mut sides = Vec::with_capacity(2 * keys.len());
        for (&(owner, id), place) in keys.iter().zip(places) {
            sides.push((owner, id));
            sides.extend(place.map(|place| (place.peer, id)));
        }
        self.statuses.delete(&self.cql, sides).await
    }
}

#[cfg(test)]
mod tests;
