//! Where each member's own messages stand: `gchat_own`, so that counting them in a range costs what the member
//! wrote there.
//!
//! An entry is a register like the position that it repeats, but lies elsewhere: a writer that lost the position
//! to a later one leaves its entry behind. So it counts only where the position names the same message.

use std::collections::BTreeMap;
use std::ops::RangeInclusive;

use protocol::{GroupId, UserId};
use scylla::response::PagingState;

use super::TOGETHER;
use super::positions::{Entries, Positions, Standing};
use crate::Result;
use crate::scylla::{Known, SeamCql, Statement};

/// A partition covers 2^18 positions of the group. Who alone wrote them all has some ten megabytes; most have a
/// few rows, and the blocks of an old member of a busy group are still a small list.
const BLOCK_BITS: u32 = 18;

/// Entries in one answer.
const PAGE: usize = 1_000;

pub(super) struct Own {
    insert: Statement,
    insert_block: Statement,
    blocks: Statement,
    within: Statement,
    known: Known<(i64, i64, i64)>,
}

impl Own {
    pub(super) fn new() -> Own {
        Own {
            insert: Statement::new(
                "INSERT INTO gchat_own (gid, uid, block, seq, id) VALUES (?, ?, ?, ?, ?) USING TIMESTAMP ?",
            ),
            insert_block: Statement::new(
                "INSERT INTO gchat_own_block (gid, uid, block) VALUES (?, ?, ?)",
            ),
            blocks: Statement::new(
                "SELECT block FROM gchat_own_block WHERE gid = ? AND uid = ? AND block >= ? AND block <= ?",
            ),
            within: Statement::new(
                "SELECT seq, id FROM gchat_own WHERE gid = ? AND uid = ? AND block = ? AND seq >= ? AND seq <= ?",
            ),
            known: Known::default(),
        }
    }

    pub(super) async fn save(&self, cql: &SeamCql, entries: Entries<(i64, i64)>) -> Result<()> {
        let members = entries.into_iter();
        let saves = members.map(|(member, entries)| self.save_one(cql, member, entries));
        cql.all(saves.collect()).await.map(drop)
    }

    async fn save_one(
        &self,
        cql: &SeamCql,
        (gid, uid): (i64, i64),
        entries: BTreeMap<i64, Standing>,
    ) -> Result<()> {
        let entries: Vec<_> = entries.into_iter().collect();
        let blocks = entries.chunk_by(|(one, _), (other, _)| block_of(*one) == block_of(*other));
        for together in blocks.flat_map(|in_block| in_block.chunks(TOGETHER)) {
            let block = together.first().map_or(0, |(seq, _)| block_of(*seq));
            self.open(cql, (gid, uid, block)).await?;
            let writes = together.iter().map(|&(seq, Standing { ver, id })| {
                let values = (gid, uid, block, seq, id, ver);
                (&self.insert, values)
            });
            cql.write_together(writes.collect()).await?;
        }
        Ok(())
    }

    async fn open(&self, cql: &SeamCql, block: (i64, i64, i64)) -> Result<()> {
        if !self.known.has(&block) {
            cql.write(&self.insert_block, block).await?;
            self.known.add(block);
        }
        Ok(())
    }

    /// How many of these positions are the member's own.
    pub(super) async fn count(
        &self,
        cql: &SeamCql,
        positions: &Positions,
        (group, user): (GroupId, UserId),
        range: RangeInclusive<i64>,
    ) -> Result<u64> {
        let (first, last) = (*range.start(), *range.end());
        let asked = (group.get(), user.get(), block_of(first), block_of(last));
        let blocks: Vec<(i64,)> = cql.rows(&self.blocks, asked).await?;
        let mut count = 0;
        for (block,) in blocks {
            let asked = (group.get(), user.get(), block, first, last);
            let mut from = Some(PagingState::start());
            while let Some(start) = from.take() {
                let page = cql.page(&self.within, asked, start, PAGE);
                let (own, next): (Vec<(i64, i64)>, _) = page.await?;
                let seqs: Vec<i64> = own.iter().map(|(seq, _)| *seq).collect();
                let standing = positions.ids(cql, group, &seqs).await?;
                let counts = |(seq, id): &&(i64, i64)| standing.get(seq) == Some(id);
                count += own.iter().filter(counts).count() as u64;
                from = next;
            }
        }
        Ok(count)
    }
}

fn block_of(seq: i64) -> i64 {
    seq >> BLOCK_BITS
}
