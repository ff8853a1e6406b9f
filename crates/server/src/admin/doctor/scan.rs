//! One conversation, position by position, as a device reads it that syncs from nothing.

use std::collections::BTreeMap;

use backend::history::HistoryStore;
use protocol::doctor::user::{Hole, Newest, Why};
use protocol::frame::HistoryRange;
use protocol::history::PrivateRow;
use protocol::{ConversationId, MessageId, Seq, UserId};
use tokio::time::{Instant, timeout_at};

use super::chart::why;

/// Rows read at once.
const PAGE: usize = 100;
/// Holes of one conversation for which it is looked what is left of their rows.
const HOLES: usize = 200;

/// What the rows of one side of a conversation are.
#[derive(Debug, Default)]
pub(super) struct Scan {
    pub(super) newest: Option<Newest>,
    pub(super) max_id: Option<MessageId>,
    pub(super) holes: Vec<Hole>,
    pub(super) rows: u64,
    /// There are so many holes that it was not looked further than here.
    pub(super) given_up: Option<Seq>,
    /// It was not looked further than here, for another reason.
    pub(super) stopped: Option<(Seq, Why)>,
    /// Holes of which it was not looked what is left: how many, the first, and why.
    pub(super) untold: Option<(usize, Seq, Why)>,
    /// Who stands at positions, as others say it: the row behind, head or list.
    names: BTreeMap<Seq, MessageId>,
}

/// Whose rows, and of which conversation.
#[derive(Clone, Copy)]
pub(super) struct Side<'a> {
    pub(super) history: &'a dyn HistoryStore,
    pub(super) owner: UserId,
    pub(super) conversation: ConversationId,
    /// Nothing is read later.
    pub(super) until: Instant,
}

impl Side<'_> {
    /// Reads everything after `after`. Up to `claimed` there must be rows. `names`: ids of positions that head
    /// and list know. What was seen before something went wrong counts.
    pub(super) async fn scan(
        &self,
        after: Seq,
        claimed: Seq,
        names: impl IntoIterator<Item = (Seq, MessageId)>,
    ) -> Scan {
        let mut scan = Scan {
            names: names.into_iter().collect(),
            ..Scan::default()
        };
        let (mut last, mut limit) = (after, PAGE);
        let mut missing: Vec<Seq> = Vec::new();
        loop {
            match self.page(last, limit).await {
                Ok(rows) if rows.is_empty() => break,
                Ok(rows) => {
                    rows.iter().for_each(|row| scan.read(row));
                    last = rows.last().map_or(last, |row| row.seq);
                }
                // Somewhere among them: nearer.
                Err(Why::Corrupt(_)) if limit > 1 => limit /= 2,
                Err(Why::Corrupt(_)) if missing.len() < HOLES => {
                    last = last.next();
                    missing.push(last);
                    limit = PAGE;
                }
                Err(Why::Corrupt(_)) => {
                    scan.given_up = Some(last);
                    break;
                }
                Err(why) => {
                    scan.stopped = Some((last, why));
                    break;
                }
            }
        }
        let is_whole = scan.given_up.is_none() && scan.stopped.is_none();
        let claimed = if is_whole { claimed } else { last };
        let tail = (last.0 + 1..=claimed.0).map(Seq);
        missing.extend(tail.take(HOLES));
        let told = missing.last().map_or(last, |seq| last.max(*seq));
        for (n, &seq) in missing.iter().enumerate() {
            let row = match self.remains(seq, scan.names.get(&seq).copied()).await {
                Ok(row) => row,
                Err(why) => {
                    scan.untold = Some((missing.len() - n, seq, why));
                    return scan;
                }
            };
            scan.holes.push(Hole {
                first: seq,
                last: seq,
                rows: row.into_iter().collect(),
            });
        }
        if told < claimed {
            scan.holes.push(Hole {
                first: told.next(),
                last: claimed,
                rows: Vec::new(),
            });
        }
        scan
    }

    async fn page(&self, after: Seq, limit: usize) -> Result<Vec<PrivateRow>, Why> {
        let range = HistoryRange::Forward { after };
        let (owner, conversation) = (self.owner, self.conversation);
        let asked = self.history.conversation(owner, conversation, range, limit);
        self.in_time(asked).await
    }

    async fn in_time<T>(&self, call: impl Future<Output = backend::Result<T>>) -> Result<T, Why> {
        if Instant::now() >= self.until {
            return Err(Why::Late);
        }
        let answer = timeout_at(self.until, call).await;
        answer.map_err(|_| Why::Late)?.map_err(why)
    }

    /// The owner's row of a position that no page reaches: as it is, if only the way to it is lost; or made from
    /// the other side's.
    async fn remains(&self, seq: Seq, name: Option<MessageId>) -> Result<Option<PrivateRow>, Why> {
        let Some(peer) = self.conversation.peer_of(self.owner) else {
            return Ok(None);
        };
        let is_it =
            |row: &PrivateRow| row.seq == seq && row.conversation() == Some(self.conversation);
        if let Some(id) = name {
            let keys = [(self.owner, id), (peer, id)];
            let rows = self.in_time(self.history.private(&keys)).await?;
            if let Some(row) = rows.into_iter().flatten().find(is_it) {
                return Ok(side_of(&row, self.owner));
            }
        }
        let other = Side {
            owner: peer,
            ..*self
        };
        match other.page(Seq(seq.0.saturating_sub(1)), 1).await {
            Ok(rows) => Ok(rows
                .iter()
                .find(|row| is_it(row))
                .and_then(|row| side_of(row, self.owner))),
            Err(Why::Corrupt(_)) => Ok(None),
            Err(why) => Err(why),
        }
    }
}

impl Scan {
    fn read(&mut self, row: &PrivateRow) {
        self.rows += 1;
        self.max_id = self.max_id.max(Some(row.id));
        self.newest = Some(Newest::from(row));
        if let Some(before) = row.prev {
            self.names.insert(Seq(row.seq.0.saturating_sub(1)), before);
        }
    }
}

/// The same message as `owner` keeps it.
pub(super) fn side_of(row: &PrivateRow, owner: UserId) -> Option<PrivateRow> {
    let sides = PrivateRow::pair_of(&row.placed()?, row.sent(), row.version)?;
    sides.into_iter().find(|side| side.owner == owner)
}
