//! Scan of one conversation, position by position, like a device that syncs from scratch.

use std::collections::BTreeMap;

use backend::messages::MessageStore;
use protocol::frame::HistoryRange;
use protocol::message_row::{MessageRow, Owner};
use protocol::{ConversationId, MessageId, Seq, UserId};
use tokio::time::{Instant, timeout_at};

use super::snapshot::why;
use super::{Gap, Newest, UnreadReason};

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
    pub(super) stop: Option<(Seq, UnreadReason)>,
    /// Holes whose rows the scan did not try to recover: count, first position, and reason.
    pub(super) unscanned: Option<(usize, Seq, UnreadReason)>,
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
    pub(super) deadline: Instant,
}

impl ConversationSide<'_> {
    /// Reads all rows after `start`; positions up to `max_seq` must have rows. `names`: ids of
    /// positions that head and list know. A failure ends the scan, and keeps the rows read before
    /// it.
    pub(super) async fn scan(
        &self,
        start: Seq,
        max_seq: Seq,
        names: impl IntoIterator<Item = (Seq, MessageId)>,
    ) -> Scan {
        let mut scan = Scan {
            names: names.into_iter().collect(),
            ..Scan::default()
        };
        let (mut last, mut limit) = (start, PAGE);
        let mut missing_seqs: Vec<Seq> = Vec::new();
        loop {
            match self.page(last, limit).await {
                Ok(rows) if rows.is_empty() => break,
                Ok(rows) => {
                    rows.iter().for_each(|row| scan.read(row));
                    last = rows.last().map_or(last, |row| row.seq());
                }
                // The corrupt row is somewhere in this page: narrow it down.
                Err(UnreadReason::Corrupt(_)) if limit > 1 => limit /= 2,
                Err(UnreadReason::Corrupt(_)) if missing_seqs.len() < HOLES => {
                    last = last.next();
                    missing_seqs.push(last);
                    limit = PAGE;
                }
                Err(UnreadReason::Corrupt(_)) => {
                    scan.given_up = Some(last);
                    break;
                }
                Err(reason) => {
                    scan.stop = Some((last, reason));
                    break;
                }
            }
        }
        let is_whole = scan.given_up.is_none() && scan.stop.is_none();
        let max_seq = if is_whole { max_seq } else { last };
        let tail = (last.0 + 1..=max_seq.0).map(Seq);
        missing_seqs.extend(tail.take(HOLES));
        let last_hole = missing_seqs.last().map_or(last, |seq| last.max(*seq));
        for (n, &seq) in missing_seqs.iter().enumerate() {
            let row = match self.remains(seq, scan.names.get(&seq).copied()).await {
                Ok(row) => row,
                Err(reason) => {
                    scan.unscanned = Some((missing_seqs.len() - n, seq, reason));
                    return scan;
                }
            };
            scan.holes.push(Gap {
                first: seq,
                last: seq,
                rows: row.into_iter().collect(),
            });
        }
        if last_hole < max_seq {
            scan.holes.push(Gap {
                first: last_hole.next(),
                last: max_seq,
                rows: Vec::new(),
            });
        }
        scan
    }

    async fn page(&self, cursor: Seq, limit: usize) -> Result<Vec<MessageRow>, UnreadReason> {
        let range = HistoryRange::Forward { after: cursor };
        let (owner, conversation) = (Owner::User(self.owner), self.conversation);
        let query = self.messages.page(owner, conversation, range, limit);
        self.in_time(query).await
    }

    async fn in_time<T>(
        &self,
        call: impl Future<Output = backend::Result<T>>,
    ) -> Result<T, UnreadReason> {
        if Instant::now() >= self.deadline {
            return Err(UnreadReason::Late);
        }
        let answer = timeout_at(self.deadline, call).await;
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
                return Ok(find_side(&row, self.owner));
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
                .and_then(|row| find_side(row, self.owner))),
            Err(UnreadReason::Corrupt(_)) => Ok(None),
            Err(reason) => Err(reason),
        }
    }
}

impl Scan {
    fn read(&mut self, row: &MessageRow) {
        self.rows += 1;
        self.max_id = self.max_id.max(Some(row.id()));
        self.newest = Some(Newest::from(row));
        if let Some(previous_id) = row.placed.position.prev {
            let seq = Seq(row.seq().0.saturating_sub(1));
            self.names.insert(seq, previous_id);
        }
    }
}

/// Row of the same message on the side of `owner`.
pub(super) fn find_side(row: &MessageRow, owner: UserId) -> Option<MessageRow> {
    let sides = MessageRow::private_pair(&row.placed, row.sent(), row.version)?;
    sides
        .into_iter()
        .find(|side| side.owner == Owner::User(owner))
}
