//! Positions of each member's own messages: `gchat_own`, so that a count over a range costs what
//! the member wrote there.
//!
//! An entry is a register like the position it repeats, but lies elsewhere: a writer that lost the
//! position to a later one leaves its entry behind. An entry therefore counts only if the position
//! names the same message.

use std::ops::RangeInclusive;

use protocol::{MessageId, Seq};
use scylla::response::PagingState;

use super::key::{Group, Member};
use crate::Result;
use crate::scylla::messages::{Entries, Key, KeyedValues, PositionEntries, Positions};
use crate::scylla::{SeamCql, Statement};

/// Entries per answer.
const PAGE: usize = 1_000;

pub(super) struct OwnMessages {
    entries: Entries<Member>,
    blocks: Statement,
    select_range: Statement,
}

impl OwnMessages {
    pub(super) fn new() -> OwnMessages {
        OwnMessages {
            entries: Entries::new(),
            blocks: Statement::new(
                "SELECT block FROM gchat_own_block WHERE gid = ? AND uid = ? AND block >= ? AND block <= ?",
            ),
            select_range: Statement::new(
                "SELECT seq, id FROM gchat_own WHERE gid = ? AND uid = ? AND block = ? AND seq >= ? AND seq <= ?",
            ),
        }
    }

    pub(super) async fn save(
        &self,
        cql: &SeamCql,
        standings: PositionEntries<Member>,
    ) -> Result<()> {
        self.entries.save(cql, standings).await
    }

    /// Counts the member's own messages in `range`.
    pub(super) async fn count(
        &self,
        cql: &SeamCql,
        positions: &Positions<Group>,
        member: Member,
        range: RangeInclusive<i64>,
    ) -> Result<u64> {
        let (first, last) = (*range.start(), *range.end());
        let group = Group { gid: member.gid };
        let values = KeyedValues(member, (Member::to_block(first), Member::to_block(last)));
        let blocks: Vec<(i64,)> = cql.rows(&self.blocks, values).await?;
        let mut count = 0;
        for (block,) in blocks {
            let mut from = Some(PagingState::start());
            while let Some(start) = from.take() {
                let values = KeyedValues(member, (block, first, last));
                let page = cql.page(&self.select_range, values, start, PAGE);
                let (own, next): (Vec<(i64, i64)>, _) = page.await?;
                let places: Vec<_> = own
                    .iter()
                    .map(|&(seq, _)| (group, Seq(seq as u64)))
                    .collect();
                let current_ids = positions.ids(cql, &places).await?;
                let ids = current_ids.into_iter().map(|id| id.map(MessageId::get));
                let pairs = own.iter().zip(ids);
                count += pairs
                    .filter(|((_, id), current)| *current == Some(*id))
                    .count() as u64;
                from = next;
            }
        }
        Ok(count)
    }
}
