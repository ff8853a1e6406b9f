//! Scan of one conversation, position by position, like a device that syncs from scratch.

use std::collections::BTreeMap;

use backend::messages::MessageStore;
use protocol::frame::HistoryRange;
use protocol::message_row::{MessageRow, Owner};
use protocol::{ConversationId, MessageId, Seq, UserId};
use tokio::time::{Instant, timeout_at};

use super::snapshot::why;
use crate::doctor::user::{Gap, Newest, UnreadReason};

/// Rows read at once.
const PAGE: usize = 100;
/// Limit of holes in one conversation whose rows the scan tries to recover.
const HOLES: usize = 200;

/// Result of a scan of one side of a conversation.
#[derive(Debug, Default)]
pub(super) struct Scan {
    pub(super) newest: Option<Newest>,
    pub(super) max_id: Option<MessageId>,
    pub(super) holes: Vec<Gap>,
    pub(super) rows: u64,
    /// Last position read, if the scan gave up on too many holes.
    pub(super) given_up: Option<Seq>,
    /// Last position read, if the scan stopped for another reason.
    pub(super) stopped: Option<(Seq, UnreadReason)>,
    /// Holes whose rows the scan did not try to recover: count, first position, and reason.
    pub(super) untold: Option<(usize, Seq, UnreadReason)>,
    /// Message ids at positions, as named by the next row, the head or the list.
    names: BTreeMap<Seq, MessageId>,
}

/// One side of a conversation: the rows of one owner.
#[derive(Clone, Copy)]
pub(super) struct ConversationSide<'a> {
    pub(super) messages: &'a dyn MessageStore,
    pub(super) owner: UserId,
    pub(super) conversation: ConversationId,
    /// Deadline of all reads.
    pub(super) until: Instant,
}

impl ConversationSide<'_> {
    /// Reads all rows after `after`; positions up to `claimed` must have rows. `names`: ids of
    /// positions that head and list know. A failure ends the scan, and keeps the rows read before
    /// it.
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
                    last = rows.last().map_or(last, |row| row.seq());
                }
                // The corrupt row is somewhere in this page: narrow it down.
                Err(UnreadReason::Corrupt(_)) if limit > 1 => limit /= 2,
                Err(UnreadReason::Corrupt(_)) if missing.len() < HOLES => {
                    last = last.next();
                    missing.push(last);
                    limit = PAGE;
                }
                Err(UnreadReason::Corrupt(_)) => {
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
            scan.holes.push(Gap {
                first: seq,
                last: seq,
                rows: row.into_iter().collect(),
            });
        }
        if told < claimed {
            scan.holes.push(Gap {
                first: told.next(),
                last: claimed,
                rows: Vec::new(),
            });
        }
        scan
    }

    async fn page(&self, after: Seq, limit: usize) -> Result<Vec<MessageRow>, UnreadReason> {
        let range = HistoryRange::Forward { after };
        let (owner, conversation) = (Owner::User(self.owner), self.conversation);
        let asked = self.messages.page(owner, conversation, range, limit);
        self.in_time(asked).await
    }

    async fn in_time<T>(
        &self,
        call: impl Future<Output = backend::Result<T>>,
    ) -> Result<T, UnreadReason> {
        if Instant::now() >= self.until {
            return Err(UnreadReason::Late);
        }
        let answer = timeout_at(self.until, call).await;
        answer.map_err(|_| UnreadReason::Late)?.map_err(why)
    }

    /// Recovers the owner's row at a position that no page reaches: the row itself, if only the
    /// path to it is lost, or one made from the peer's row.
    async fn remains(
        &self,
        seq: Seq,
        name: Option<MessageId>,
    ) -> Result<Option<MessageRow>, UnreadReason> {
        let Some(peer) = self.conversation.peer_of(self.owner) else {
            return Ok(None);
        };
        let is_it =
            |row: &MessageRow| row.seq() == seq && row.placed.conversation == self.conversation;
        if let Some(id) = name {
            let keys = [self.owner, peer].map(|user| (Owner::User(user), id));
            let rows = self.in_time(self.messages.rows(&keys)).await?;
            if let Some(row) = rows.into_iter().flatten().find(is_it) {
                return Ok(side_of(&row, self.owner));
            }
        }
        let other = ConversationSide {
            owner: peer,
            ..*self
        };
        match other.page(Seq(seq.0.saturating_sub(1)), 1).await {
            Ok(rows) => Ok(rows
                .iter()
                .find(|row| is_it(row))
                .and_then(|row| side_of(row, self.owner))),
            Err(UnreadReason::Corrupt(_)) => Ok(None),
            Err(why) => Err(why),
        }
    }
}

impl Scan {
    fn read(&mut self, row: &MessageRow) {
        self.rows += 1;
        self.max_id = self.max_id.max(Some(row.id()));
        self.newest = Some(Newest::from(row));
        if let Some(before) = row.placed.position.prev {
            let seq = Seq(row.seq().0.saturating_sub(1));
            self.names.insert(seq, before);
        }
    }
}

/// Row of the same message on the side of `owner`.
pub(super) fn side_of(row: &MessageRow, owner: UserId) -> Option<MessageRow> {
    let sides = MessageRow::pair_of(&row.placed, row.sent(), row.version)?;
    sides
        .into_iter()
        .find(|side| side.owner == Owner::User(owner))
}
