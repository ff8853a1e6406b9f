//! Messages by position: the reading. `Entries` says what a reader may rely on.

use std::collections::HashMap;
use std::fmt::Display;

use protocol::frame::HistoryRange;
use protocol::history::Order;
use protocol::{MessageId, Seq};

use super::{Entries, Key, KeyedValues, PositionEntries, by_partition, columns};
use crate::scylla::{SeamCql, Statement, write_time};
use crate::{Error, Result};

/// Positions of conversations, dense in each. Errors show the key.
pub(crate) struct Positions<K: Key> {
    entries: Entries<K>,
    upward: Statement,
    downward: Statement,
    by_seqs: Statement,
    later_block: Statement,
    newest_block: Statement,
}

impl<K: Key + Display> Positions<K> {
    pub(crate) fn new() -> Positions<K> {
        let (entries, blocks, is) = (K::ENTRIES, K::BLOCKS, K::is());
        let entry = |which: &str| {
            let text =
                format!("SELECT seq, id FROM {entries} WHERE {is} AND block = ? AND {which}");
            Statement::new(text)
        };
        let block = |which: &str| {
            let text = format!("SELECT block FROM {blocks} WHERE {is} AND block {which} ? LIMIT 1");
            Statement::new(text)
        };
        Positions {
            entries: Entries::new(),
            upward: entry("seq >= ? ORDER BY seq ASC LIMIT ?"),
            downward: entry("seq <= ? ORDER BY seq DESC LIMIT ?"),
            by_seqs: entry("seq IN ?"),
            later_block: block(">"),
            newest_block: block("<="),
        }
    }

    pub(crate) async fn save(&self, cql: &SeamCql, entries: PositionEntries<K>) -> Result<()> {
        self.entries.save(cql, entries).await
    }

    /// Ids of the messages at these positions, in request order.
    pub(crate) async fn ids(
        &self,
        cql: &SeamCql,
        places: &[(K, Seq)],
    ) -> Result<Vec<Option<MessageId>>> {
        let to_key = |&(key, seq)| Some((key, position(cql, seq)?));
        let places: Vec<Option<(K, i64)>> = places.iter().map(to_key).collect();
        let known_places = places.iter().flatten();
        let queries = by_partition(known_places.map(|&(key, seq)| ((key, K::to_block(seq)), seq)))
            .into_iter()
            .map(|((key, block), seqs)| async move {
                let rows = cql
                    .rows(&self.by_seqs, KeyedValues(key, (block, seqs)))
                    .await?;
                let rows = rows.into_iter();
                Ok(rows.map(move |(seq, id): (i64, i64)| ((key, seq), id)))
            });
        let ids_by_place = cql.all(queries.collect()).await?;
        let ids_by_place: HashMap<(K, i64), i64> = ids_by_place.into_iter().flatten().collect();
        let id = |place: Option<(K, i64)>| ids_by_place.get(&place?).copied();
        places
            .into_iter()
            .map(|place| id(place).map(|id| columns::id(cql, id)).transpose())
            .collect()
    }

    /// Consecutive positions, in the order of `range`; `Corrupt` if a hole comes first.
    pub(crate) async fn page(
        &self,
        cql: &SeamCql,
        key: K,
        range: HistoryRange,
        limit: usize,
    ) -> Result<Vec<(Seq, MessageId)>> {
        if limit == 0 {
            return Ok(Vec::new());
        }
        let entries = match range {
            HistoryRange::Forward { after } => self.forward(cql, key, after, limit).await?,
            HistoryRange::Backward { before } => self.backward(cql, key, before, limit).await?,
        };
        let to_entry = |(seq, id)| {
            let torn = || Error::corrupt(cql.seam(), "a column holds no position");
            let seq = columns::seq(seq).ok_or_else(torn)?;
            Ok((seq, columns::id(cql, id)?))
        };
        entries.into_iter().map(to_entry).collect()
    }

    async fn forward(
        &self,
        cql: &SeamCql,
        key: K,
        cursor: Seq,
        limit: usize,
    ) -> Result<Vec<(i64, i64)>> {
        let Some(first) = position(cql, Seq(cursor.0.saturating_add(1))) else {
            return Ok(Vec::new());
        };
        let entries = self.dense(cql, key, first, limit).await?;
        if !entries.is_empty() || !self.goes_on_after(cql, key, first).await? {
            return Ok(entries);
        }
        // A writer may have moved on from here into a later block since.
        let entries = self.dense(cql, key, first, limit).await?;
        if entries.is_empty() {
            Err(hole(cql, key, first))
        } else {
            Ok(entries)
        }
    }

    /// Positions from `first` up to a hole or the end. `Corrupt` if its block has later ones but
    /// not `first`.
    async fn dense(
        &self,
        cql: &SeamCql,
        key: K,
        first: i64,
        limit: usize,
    ) -> Result<Vec<(i64, i64)>> {
        let mut entries = Vec::new();
        let mut next = first;
        loop {
            let block = K::to_block(next);
            let remaining = limit - entries.len();
            for (seq, id) in self
                .slice(cql, Order::Forward, key, next, remaining)
                .await?
            {
                if seq != next {
                    return if entries.is_empty() {
                        Err(hole(cql, key, first))
                    } else {
                        Ok(entries)
                    };
                }
                entries.push((seq, id));
                next += 1;
            }
            if K::to_block(next) == block || entries.len() >= limit {
                return Ok(entries);
            }
        }
    }

    async fn backward(
        &self,
        cql: &SeamCql,
        key: K,
        upper_bound: Option<Seq>,
        limit: usize,
    ) -> Result<Vec<(i64, i64)>> {
        let number = |seq: Seq| i64::try_from(seq.0).unwrap_or(i64::MAX);
        let mut next = upper_bound.map_or(i64::MAX, |upper_bound| {
            number(upper_bound).saturating_sub(1)
        });
        let mut entries: Vec<(i64, i64)> = Vec::new();
        while next > 0 && entries.len() < limit {
            if entries.is_empty() {
                // Skips empty blocks, down to the newest block with positions.
                let Some(block) = self.newest_block(cql, key, K::to_block(next)).await? else {
                    break;
                };
                next = next.min(K::last_position(block));
            }
            let block = K::to_block(next);
            let remaining = limit - entries.len();
            let rows = self
                .slice(cql, Order::Backward, key, next, remaining)
                .await?;
            if rows.is_empty() && !entries.is_empty() {
                break;
            }
            for (seq, id) in rows {
                if entries.last().is_some_and(|(above, _)| above - 1 != seq) {
                    return Ok(entries);
                }
                entries.push((seq, id));
                next = seq - 1;
            }
            if entries.is_empty() {
                next = K::first_position(block) - 1;
            } else if K::to_block(next) == block {
                break;
            }
        }
        Ok(entries)
    }

    /// Positions of one block, from `start_position` on.
    pub(crate) async fn slice(
        &self,
        cql: &SeamCql,
        order: Order,
        key: K,
        start_position: i64,
        limit: usize,
    ) -> Result<Vec<(i64, i64)>> {
        let statement = match order {
            Order::Forward => &self.upward,
            Order::Backward => &self.downward,
        };
        let limit = limit.min(1 << K::BLOCK_BITS) as i32;
        let values = KeyedValues(key, (K::to_block(start_position), start_position, limit));
        cql.rows(statement, values).await
    }

    async fn goes_on_after(&self, cql: &SeamCql, key: K, seq: i64) -> Result<bool> {
        let values = KeyedValues(key, (K::to_block(seq),));
        let later_blocks: Vec<(i64,)> = cql.rows(&self.later_block, values).await?;
        Ok(!later_blocks.is_empty())
    }

    async fn newest_block(&self, cql: &SeamCql, key: K, max_block: i64) -> Result<Option<i64>> {
        let values = KeyedValues(key, (max_block,));
        let newest: Vec<(i64,)> = cql.rows(&self.newest_block, values).await?;
        Ok(newest.first().map(|(block,)| *block))
    }
}

/// `None` if no message can have this position.
fn position(cql: &SeamCql, seq: Seq) -> Option<i64> {
    write_time::from_seq(cql.seam(), seq).ok().flatten()
}

fn hole(cql: &SeamCql, key: impl Display, seq: i64) -> Error {
    let text = format!("{key}: position {seq} is missing, but later ones exist");
    Error::corrupt(cql.seam(), text)
}
