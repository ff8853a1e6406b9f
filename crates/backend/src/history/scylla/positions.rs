//! Which message stands where in a conversation: `pchat_seq`, in blocks of positions.
//!
//! Writers go upward: what one write holds becomes visible at once (it is in one partition), and the next is
//! begun when it is acknowledged. The row of a block is written between the last position of the block before
//! and its own first one. So a position that is missing below one that is there will never come by waiting.

use std::collections::BTreeMap;

use protocol::frame::HistoryRange;
use protocol::history::PrivateRow;
use protocol::{ConversationId, MessageId, Seq};

use super::row::{self, NewRow};
use super::{SEAM, no_id};
use crate::scylla::{Known, SeamCql, Statement, write_time};
use crate::{Error, Result};

/// A partition has 2^14 positions, below a megabyte.
const BLOCK_BITS: u32 = 14;
/// Positions in one write: some kilobytes.
const TOGETHER: usize = 50;

/// The two users of a private conversation.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(super) struct Pair {
    low: i64,
    high: i64,
}

impl Pair {
    pub(super) fn of_conversation(conversation: ConversationId) -> Option<Pair> {
        match conversation {
            ConversationId::Private { low, high } => Some(Pair {
                low: low.get(),
                high: high.get(),
            }),
            ConversationId::Group(_) | ConversationId::System(_) => None,
        }
    }

    pub(super) fn of(row: &PrivateRow) -> Result<Pair> {
        let pair = row.conversation().and_then(Pair::of_conversation);
        pair.ok_or_else(|| Error::conflict(SEAM, "a row of a user with itself"))
    }
}

/// Who stands at a position, by which version.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct Standing {
    ver: i64,
    id: i64,
}

type Entries = BTreeMap<Pair, BTreeMap<i64, Standing>>;

/// Both sides stand at one position under one id; of two versions the later counts.
pub(super) fn note(entries: &mut Entries, pair: Pair, row: &NewRow) {
    let standing = Standing {
        ver: row.ver,
        id: row.id,
    };
    let entry = entries.entry(pair).or_default().entry(row.seq);
    let entry = entry.or_insert(standing);
    *entry = (*entry).max(standing);
}

pub(super) struct Positions {
    insert: Statement,
    insert_block: Statement,
    pub(super) upward: Statement,
    downward: Statement,
    later_block: Statement,
    newest_block: Statement,
    one: Statement,
    known: Known<(Pair, i64)>,
}

impl Positions {
    pub(super) fn new() -> Positions {
        Positions {
            insert: Statement::new(
                "INSERT INTO pchat_seq (low, high, block, seq, id) VALUES (?, ?, ?, ?, ?) USING TIMESTAMP ?",
            ),
            insert_block: Statement::new(
                "INSERT INTO pchat_block (low, high, block) VALUES (?, ?, ?)",
            ),
            upward: Statement::new(
                "SELECT seq, id FROM pchat_seq WHERE low = ? AND high = ? AND block = ? AND seq >= ? \
                 ORDER BY seq ASC LIMIT ?",
            ),
            downward: Statement::new(
                "SELECT seq, id FROM pchat_seq WHERE low = ? AND high = ? AND block = ? AND seq <= ? \
                 ORDER BY seq DESC LIMIT ?",
            ),
            later_block: Statement::new(
                "SELECT block FROM pchat_block WHERE low = ? AND high = ? AND block > ? LIMIT 1",
            ),
            newest_block: Statement::new(
                "SELECT block FROM pchat_block WHERE low = ? AND high = ? AND block <= ? LIMIT 1",
            ),
            one: Statement::new(
                "SELECT id FROM pchat_seq WHERE low = ? AND high = ? AND block = ? AND seq = ?",
            ),
            known: Known::default(),
        }
    }

    /// Conversations side by side, each upward.
    pub(super) async fn save(&self, cql: &SeamCql, entries: Entries) -> Result<()> {
        let conversations = entries.into_iter();
        let saves = conversations.map(|(pair, entries)| self.save_one(cql, pair, entries));
        cql.all(saves.collect()).await.map(drop)
    }

    async fn save_one(
        &self,
        cql: &SeamCql,
        pair: Pair,
        entries: BTreeMap<i64, Standing>,
    ) -> Result<()> {
        let entries: Vec<_> = entries.into_iter().collect();
        for in_block in entries.chunk_by(|(one, _), (other, _)| block_of(*one) == block_of(*other))
        {
            let Some(&(first, _)) = in_block.first() else {
                continue;
            };
            self.open(cql, pair, block_of(first)).await?;
            for together in in_block.chunks(TOGETHER) {
                let writes = together.iter().map(|&(seq, standing)| {
                    let Standing { ver, id } = standing;
                    let values = (pair.low, pair.high, block_of(seq), seq, id, ver);
                    (&self.insert, values)
                });
                cql.write_together(writes.collect()).await?;
            }
        }
        Ok(())
    }

    async fn open(&self, cql: &SeamCql, pair: Pair, block: i64) -> Result<()> {
        if !self.known.has(&(pair, block)) {
            let values = (pair.low, pair.high, block);
            cql.write(&self.insert_block, values).await?;
            self.known.add((pair, block));
        }
        Ok(())
    }

    /// Which message stands at each of these positions.
    pub(super) async fn ids(
        &self,
        cql: &SeamCql,
        places: &[(Pair, Seq)],
    ) -> Result<Vec<Option<MessageId>>> {
        let asked = places.iter().map(|&(pair, seq)| async move {
            let Ok(Some(seq)) = write_time::of_seq(SEAM, seq) else {
                return Ok(None);
            };
            let values = (pair.low, pair.high, block_of(seq), seq);
            let found: Vec<(i64,)> = cql.rows(&self.one, values).await?;
            found.first().map(|(id,)| row::id(*id)).transpose()
        });
        cql.all(asked.collect()).await
    }

    /// Positions one after the other, in the order of `range`; `Corrupt` where a hole comes first.
    pub(super) async fn page(
        &self,
        cql: &SeamCql,
        pair: Pair,
        range: HistoryRange,
        limit: usize,
    ) -> Result<Vec<(Seq, MessageId)>> {
        if limit == 0 {
            return Ok(Vec::new());
        }
        let found = match range {
            HistoryRange::Forward { after } => self.forward(cql, pair, after, limit).await?,
            HistoryRange::Backward { before } => self.backward(cql, pair, before, limit).await?,
        };
        found
            .into_iter()
            .map(|(seq, id)| Ok((row::seq(seq).ok_or_else(no_id)?, row::id(id)?)))
            .collect()
    }

    async fn forward(
        &self,
        cql: &SeamCql,
        pair: Pair,
        after: Seq,
        limit: usize,
    ) -> Result<Vec<(i64, i64)>> {
        let Ok(Some(first)) = write_time::of_seq(SEAM, Seq(after.0.saturating_add(1))) else {
            return Ok(Vec::new());
        };
        let found = self.upward(cql, pair, first, limit).await?;
        if !found.is_empty() || !self.goes_on_after(cql, pair, first).await? {
            return Ok(found);
        }
        // A writer may have gone on from here into a later block since.
        let found = self.upward(cql, pair, first, limit).await?;
        match found.is_empty() {
            true => Err(hole(pair, first)),
            false => Ok(found),
        }
    }

    /// Everything from `first` up to a hole or the end. `Corrupt` where later ones are in its block, and it is
    /// not.
    async fn upward(
        &self,
        cql: &SeamCql,
        pair: Pair,
        first: i64,
        limit: usize,
    ) -> Result<Vec<(i64, i64)>> {
        let mut found = Vec::new();
        let mut next = first;
        loop {
            let block = block_of(next);
            let wanted = limit - found.len();
            let rows = self.slice(cql, &self.upward, pair, next, wanted).await?;
            for (seq, id) in rows {
                if seq != next {
                    return match found.is_empty() {
                        true => Err(hole(pair, first)),
                        false => Ok(found),
                    };
                }
                found.push((seq, id));
                next += 1;
            }
            if block_of(next) == block || found.len() >= limit {
                return Ok(found);
            }
        }
    }

    async fn backward(
        &self,
        cql: &SeamCql,
        pair: Pair,
        before: Option<Seq>,
        limit: usize,
    ) -> Result<Vec<(i64, i64)>> {
        let last = before.map_or(i64::MAX, |before| {
            i64::try_from(before.0)
                .unwrap_or(i64::MAX)
                .saturating_sub(1)
        });
        let mut found: Vec<(i64, i64)> = Vec::new();
        let mut next = last;
        while next > 0 && found.len() < limit {
            if found.is_empty() {
                // From where nothing is yet, down to where something may be.
                let Some(block) = self.newest_block(cql, pair, block_of(next)).await? else {
                    break;
                };
                next = next.min(last_of(block));
            }
            let wanted = limit - found.len();
            let rows = self.slice(cql, &self.downward, pair, next, wanted).await?;
            let block = block_of(next);
            if rows.is_empty() && !found.is_empty() {
                break;
            }
            for (seq, id) in rows {
                if found.last().is_some_and(|(above, _)| above - 1 != seq) {
                    return Ok(found);
                }
                found.push((seq, id));
                next = seq - 1;
            }
            match found.is_empty() {
                true => next = first_of(block) - 1,
                false if block_of(next) == block => break,
                false => {}
            }
        }
        Ok(found)
    }

    /// Positions of one block, from `bound` on.
    pub(super) async fn slice(
        &self,
        cql: &SeamCql,
        statement: &Statement,
        pair: Pair,
        bound: i64,
        limit: usize,
    ) -> Result<Vec<(i64, i64)>> {
        let limit = limit.min(1 << BLOCK_BITS) as i32;
        let values = (pair.low, pair.high, block_of(bound), bound, limit);
        cql.rows(statement, values).await
    }

    async fn goes_on_after(&self, cql: &SeamCql, pair: Pair, seq: i64) -> Result<bool> {
        let values = (pair.low, pair.high, block_of(seq));
        let later: Vec<(i64,)> = cql.rows(&self.later_block, values).await?;
        Ok(!later.is_empty())
    }

    async fn newest_block(&self, cql: &SeamCql, pair: Pair, most: i64) -> Result<Option<i64>> {
        let values = (pair.low, pair.high, most);
        let newest: Vec<(i64,)> = cql.rows(&self.newest_block, values).await?;
        Ok(newest.first().map(|(block,)| *block))
    }
}

fn block_of(seq: i64) -> i64 {
    seq >> BLOCK_BITS
}

fn first_of(block: i64) -> i64 {
    block << BLOCK_BITS
}

fn last_of(block: i64) -> i64 {
    first_of(block) + ((1 << BLOCK_BITS) - 1)
}

fn hole(pair: Pair, seq: i64) -> Error {
    let Pair { low, high } = pair;
    let text = format!("p:{low}:{high}: nothing is at position {seq}, but later ones are there");
    Error::corrupt(SEAM, text)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn blocks_meet_without_a_gap() {
        assert_eq!(block_of(1), 0);
        assert_eq!(block_of(last_of(0)), 0);
        assert_eq!(first_of(1), last_of(0) + 1);
        assert_eq!(block_of(first_of(7)), 7);
    }
}
