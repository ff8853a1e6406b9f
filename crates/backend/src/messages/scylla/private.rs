//! Users' copies of private messages.
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

use protocol::frame::HistoryRange;
use protocol::history::{Direction, IdRange, Order};
use protocol::message_row::{MessageRow, StoredPlace};
use protocol::unread::Tally;
use protocol::writer::SendKey;
use protocol::{ConversationId, MessageId, SendId, Seq, UserId};

pub(super) use self::pair::UserPair;
use self::places::Places;
use self::row::{NewRow, StoredRow};
use self::statuses::Statuses;
use crate::messages::SEAM;
use crate::messages::owners::UserCopy;
use crate::scylla::SeamCql;
use crate::scylla::messages::{Owner, PositionEntries, Positions, Rows, Sends, StoredSend};
use crate::{Error, Result};

pub(super) struct PrivateTables {
    rows: Rows<StoredRow>,
    places: Places,
    pub(super) positions: Positions<UserPair>,
    sends: Sends,
    pub(super) statuses: Statuses,
}

impl Owner for UserId {
    const COLUMN: &'static str = "uid1";
    const ROWS: &'static str = "pchat";
    const WINDOWS: &'static str = "pchat_bucket";

    fn number(self) -> i64 {
        self.get()
    }
}

impl PrivateTables {
    pub(super) fn new() -> PrivateTables {
        PrivateTables {
            rows: Rows::new(),
            places: Places::new(),
            positions: Positions::new(),
            sends: Sends::new("pchat_send", "uid1", "uid2"),
            statuses: Statuses::new(),
        }
    }

    pub(super) async fn save(&self, cql: &SeamCql, copies: &[UserCopy]) -> Result<()> {
        let new = copies.iter().map(NewRow::of).collect::<Result<Vec<_>>>()?;
        let pairs = copies
            .iter()
            .map(|copy| UserPair::new(copy.owner, copy.peer));
        let standings = pairs.zip(&new);
        let standings = PositionEntries::of(standings.map(|(pair, row)| row.standing(pair)));
        let sends = copies
            .iter()
            .filter(|copy| copy.side.direction == Direction::Out);
        let sends = sends.map(|copy| StoredSend {
            send_id: copy.row.placed.message.send_id,
            from: copy.owner,
            to: copy.peer.get(),
            id: copy.row.id(),
        });
        let keys = copies.iter().map(|copy| (copy.owner, copy.row.id()));
        self.rows.open(cql, keys).await?;
        let (out, receivers): (Vec<_>, Vec<_>) = new.into_iter().partition(NewRow::is_the_senders);
        self.rows.save(cql, &out).await?;
        tokio::try_join!(self.rows.save(cql, &receivers), self.sends.save(cql, sends))?;
        self.positions.save(cql, standings).await
    }

    pub(super) async fn rows(
        &self,
        cql: &SeamCql,
        keys: &[(UserId, MessageId)],
    ) -> Result<Vec<Option<MessageRow>>> {
        self.rows.whole(cql, keys).await
    }

    pub(super) async fn places(
        &self,
        cql: &SeamCql,
        keys: &[(UserId, MessageId)],
    ) -> Result<Vec<Option<StoredPlace>>> {
        self.places.of(cql, keys).await
    }

    /// Rows by id.
    pub(super) async fn find(
        &self,
        cql: &SeamCql,
        owner: UserId,
        range: IdRange,
        order: Order,
        limit: usize,
    ) -> Result<Vec<MessageRow>> {
        self.rows.find(cql, owner, range, order, limit).await
    }

    /// Conversation by position.
    pub(super) async fn page(
        &self,
        cql: &SeamCql,
        owner: UserId,
        conversation: ConversationId,
        range: HistoryRange,
        limit: usize,
    ) -> Result<Vec<MessageRow>> {
        let Some(peer) = conversation.peer_of(owner) else {
            return Ok(Vec::new());
        };
        let pair = UserPair::new(owner, peer);
        let places = self.positions.page(cql, pair, range, limit).await?;
        self.rows.standing(cql, owner, pair, &places).await
    }

    /// Ids and tallies at these positions.
    pub(super) async fn at(
        &self,
        cql: &SeamCql,
        places: &[(UserId, ConversationId, Seq)],
    ) -> Result<Vec<Option<(MessageId, Tally)>>> {
        let pair = |owner, conversation: ConversationId| {
            let peer = conversation.peer_of(owner);
            let pair = peer.map(|peer| UserPair::new(owner, peer));
            pair.ok_or_else(|| Error::conflict(SEAM, "a position that is not its owner's"))
        };
        let pairs = places
            .iter()
            .map(|&(owner, conversation, seq)| Ok((pair(owner, conversation)?, seq)));
        let pairs = pairs.collect::<Result<Vec<_>>>()?;
        let ids = self.positions.ids(cql, &pairs).await?;
        let lookups = places.iter().zip(&ids);
        let keys: Vec<_> = lookups
            .filter_map(|(&(owner, ..), id)| Some((owner, (*id)?)))
            .collect();
        let mut stored_places = self.places.of(cql, &keys).await?.into_iter();
        let tally = |id: Option<MessageId>| {
            let id = id?;
            let place = stored_places.next().flatten()?;
            Some((id, Tally::from(place)))
        };
        Ok(ids.into_iter().map(tally).collect())
    }

    pub(super) async fn find_sends(
        &self,
        cql: &SeamCql,
        sends: &[(SendKey, UserId)],
    ) -> Result<Vec<Option<MessageRow>>> {
        let queries = sends.iter().map(|(key, peer)| StoredSend {
            send_id: key.send_id,
            from: key.from,
            to: peer.get(),
            id: key.min_id,
        });
        let ids = self.sends.find(cql, queries).await?;
        let lookups = sends.iter().zip(&ids);
        let keys: Vec<_> = lookups
            .flat_map(|((key, _), ids)| ids.iter().map(move |id| (key.from, *id)))
            .collect();
        let mut rows = self.rows.whole(cql, &keys).await?.into_iter();
        let first = |ids: &Vec<MessageId>| {
            let rows: Vec<_> = rows.by_ref().take(ids.len()).collect();
            rows.into_iter().flatten().next()
        };
        Ok(ids.iter().map(first).collect())
    }

    pub(super) async fn sent_as(
        &self,
        cql: &SeamCql,
        send_id: SendId,
    ) -> Result<Vec<(UserId, MessageId)>> {
        self.sends.all(cql, send_id).await
    }

    /// Marks both sides.
    pub(super) async fn delete(&self, cql: &SeamCql, keys: &[(UserId, MessageId)]) -> Result<()> {
        let places = self.places.of(cql, keys).await?;
        let mut sides = Vec::with_capacity(2 * keys.len());
        for (&(owner, id), place) in keys.iter().zip(places) {
            sides.push((owner, id));
            sides.extend(place.map(|place| (place.peer, id)));
        }
        self.statuses.delete(cql, sides).await
    }
}
