//! Which message stands where in a group: `gchat_seq`, in blocks of positions, as `pchat_seq` for two users.
//!
//! Writers go upward: what one write holds becomes visible at once (it is in one partition), and the next is
//! begun when it is acknowledged. The row of a block is written between the last position of the block before
//! and its own first one. So a position that is missing below one that is there will never come by waiting.

use std::collections::{BTreeMap, BTreeSet, HashMap};

use protocol::frame::HistoryRange;
use protocol::{GroupId, MessageId, Seq};

use super::row::NewRow;
use super::{KEYS_MAX, SEAM, TOGETHER, message};
use crate::history::scylla::row::seq;
use crate::scylla::{Known, SeamCql, Statement, write_time};
use crate::{Error, Result};

/// A partition has 2^14 positions, below a megabyte.
const BLOCK_BITS: u32 = 14;

/// Who stands at a position, by which version.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct Standing {
    pub(super) ver: i64,
    pub(super) id: i64,
}

/// By group, or by group and sender: who stands where.
pub(super) type Entries<K> = BTreeMap<K, BTreeMap<i64, Standing>>;

/// Of two versions the later counts.
pub(super) fn note<K: Ord>(entries: &mut Entries<K>, key: K, row: &NewRow) {
    let standing = Standing {
        ver: row.ver,
        id: row.id,
    };
    let entry = entries.entry(key).or_default().entry(row.seq);
    let entry = entry.or_insert(standing);
    *entry = (*entry).max(standing);
}

pub(super) struct Positions {
    insert: Statement,
    insert_block: Statement,
    upward: Statement,
    downward: Statement,
    by_seqs: Statement,
    later_block: Statement,
    newest_block: Statement,
    known: Known<(i64, i64)>,
}

impl Positions {
    pub(super) fn new() -> Positions {
        Positions {
            insert: Statement::new(
                "INSERT INTO gchat_seq (gid, block, seq, id) VALUES (?, ?, ?, ?) USING TIMESTAMP ?",
            ),
            insert_block: Statement::new("INSERT INTO gchat_block (gid, block) VALUES (?, ?)"),
            upward: Statement::new(
                "SELECT seq, id FROM gchat_seq WHERE gid = ? AND block = ? AND seq >= ? \
                 ORDER BY seq ASC LIMIT ?",
            ),
            downward: Statement::new(
                "SELECT seq, id FROM gchat_seq WHERE gid = ? AND block = ? AND seq <= ? \
                 ORDER BY seq DESC LIMIT ?",
            ),
            by_seqs: Statement::new(
                "SELECT seq, id FROM gchat_seq WHERE gid = ? AND block = ? AND seq IN ?",
            ),
            later_block: Statement::new(
                "SELECT block FROM gchat_block WHERE gid = ? AND block > ? LIMIT 1",
            ),
            newest_block: Statement::new(
                "SELECT block FROM gchat_block WHERE gid = ? AND block <= ? LIMIT 1",
            ),
            known: Known::default(),
        }
    }

    /// Groups side by side, each upward.
    pub(super) async fn save(&self, cql: &SeamCql, entries: Entries<i64>) -> Result<()> {
        let groups = entries.into_iter();
        let saves = groups.map(|(gid, entries)| self.save_one(cql, gid, entries));
        cql.all(saves.collect()).await.map(drop)
    }

    async fn save_one(
        &self,
        cql: &SeamCql,
        gid: i64,
        entries: BTreeMap<i64, Standing>,
    ) -> Result<()> {
        let entries: Vec<_> = entries.into_iter().collect();
        for in_block in entries.chunk_by(|(one, _), (other, _)| block_of(*one) == block_of(*other))
        {
            let Some(&(first, _)) = in_block.first() else {
                continue;
            };
            let block = block_of(first);
            self.open(cql, gid, block).await?;
            for together in in_block.chunks(TOGETHER) {
                let writes = together.iter().map(|&(seq, Standing { ver, id })| {
                    let values = (gid, block, seq, id, ver);
                    (&self.insert, values)
                });
                cql.write_together(writes.collect()).await?;
            }
        }
        Ok(())
    }

    async fn open(&self, cql: &SeamCql, gid: i64, block: i64) -> Result<()> {
        if !self.known.has(&(gid, block)) {
            cql.write(&self.insert_block, (gid, block)).await?;
            self.known.add((gid, block));
        }
        Ok(())
    }

    /// Who stands at these positions, where anybody does.
    pub(super) async fn ids(
        &self,
        cql: &SeamCql,
        group: GroupId,
        seqs: &[i64],
    ) -> Result<HashMap<i64, i64>> {
        let seqs: Vec<i64> = BTreeSet::from_iter(seqs.iter().copied())
            .into_iter()
            .collect();
        let blocks = seqs.chunk_by(|one, other| block_of(*one) == block_of(*other));
        let chunks = blocks.flat_map(|in_block| in_block.chunks(KEYS_MAX));
        let questions = chunks.map(|chunk| async move {
            let block = chunk.first().map_or(0, |seq| block_of(*seq));
            let asked = (group.get(), block, chunk.to_vec());
            cql.rows::<(i64, i64)>(&self.by_seqs, asked).await
        });
        let found = cql.all(questions.collect()).await?;
        Ok(found.into_iter().flatten().collect())
    }

    /// Positions one after the other, in the order of `range`; `Corrupt` where a hole comes first.
    pub(super) async fn page(
        &self,
        cql: &SeamCql,
        group: GroupId,
        range: HistoryRange,
        limit: usize,
    ) -> Result<Vec<(Seq, MessageId)>> {
        if limit == 0 {
            return Ok(Vec::new());
        }
        let found = match range {
            HistoryRange::Forward { after } => self.forward(cql, group, after, limit).await?,
            HistoryRange::Backward { before } => self.backward(cql, group, before, limit).await?,
        };
        let place = |(stored, id)| {
            let torn = || Error::corrupt(SEAM, "a column holds no position");
            Ok((seq(stored).ok_or_else(torn)?, message(id)?))
        };
        found.into_iter().map(place).collect()
    }

    async fn forward(
        &self,
        cql: &SeamCql,
        group: GroupId,
        after: Seq,
        limit: usize,
    ) -> Result<Vec<(i64, i64)>> {
        let Ok(Some(first)) = write_time::of_seq(SEAM, Seq(after.0.saturating_add(1))) else {
            return Ok(Vec::new());
        };
        let found = self.dense(cql, group, first, limit).await?;
        if !found.is_empty() || !self.goes_on_after(cql, group, first).await? {
            return Ok(found);
        }
        // A writer may have gone on from here into a later block since.
        let found = self.dense(cql, group, first, limit).await?;
        match found.is_empty() {
            true => Err(hole(group, first)),
            false => Ok(found),
        }
    }

    /// Everything from `first` up to a hole or the end. `Corrupt` where later ones are in its block, and it is
    /// not.
    async fn dense(
        &self,
        cql: &SeamCql,
        group: GroupId,
        first: i64,
        limit: usize,
    ) -> Result<Vec<(i64, i64)>> {
        let mut found = Vec::new();
        let mut next = first;
        loop {
            let block = block_of(next);
            let wanted = limit - found.len();
            for (seq, id) in self.slice(cql, &self.upward, group, next, wanted).await? {
                if seq != next {
                    return match found.is_empty() {
                        true => Err(hole(group, first)),
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
        group: GroupId,
        before: Option<Seq>,
        limit: usize,
    ) -> Result<Vec<(i64, i64)>> {
        let number = |seq: Seq| i64::try_from(seq.0).unwrap_or(i64::MAX);
        let mut next = before.map_or(i64::MAX, |before| number(before).saturating_sub(1));
        let mut found: Vec<(i64, i64)> = Vec::new();
        while next > 0 && found.len() < limit {
            if found.is_empty() {
                // From where nothing is yet, down to where something may be.
                let Some(block) = self.newest_block(cql, group, block_of(next)).await? else {
                    break;
                };
                next = next.min(last_of(block));
            }
            let block = block_of(next);
            let wanted = limit - found.len();
            let rows = self.slice(cql, &self.downward, group, next, wanted).await?;
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
    async fn slice(
        &self,
        cql: &SeamCql,
        statement: &Statement,
        group: GroupId,
        bound: i64,
        limit: usize,
    ) -> Result<Vec<(i64, i64)>> {
        let limit = limit.min(1 << BLOCK_BITS) as i32;
        let values = (group.get(), block_of(bound), bound, limit);
        cql.rows(statement, values).await
    }

    async fn goes_on_after(&self, cql: &SeamCql, group: GroupId, seq: i64) -> Result<bool> {
        let values = (group.get(), block_of(seq));
        let later: Vec<(i64,)> = cql.rows(&self.later_block, values).await?;
        Ok(!later.is_empty())
    }

    async fn newest_block(&self, cql: &SeamCql, group: GroupId, most: i64) -> Result<Option<i64>> {
        let newest: Vec<(i64,)> = cql.rows(&self.newest_block, (group.get(), most)).await?;
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

fn hole(group: GroupId, seq: i64) -> Error {
    let text = format!("group {group}: nothing is at position {seq}, but later ones are there");
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
