//! Changes in the embedded store.
//!
//! | table | key | value |
//! | --- | --- | --- |
//! | `change` | conversation, rev | the change, or that it died, and the record that asked for it |
//! | `altered` | conversation, kind, seq; for a reaction its user and text | newest effect |
//! | `altered` | conversation, kind, seq | a pin that is on, of a message that is not recalled |

use std::cmp::Ordering;
use std::collections::BTreeMap;
use std::ops::Bound;

use async_trait::async_trait;
use parking_lot::Mutex;
use protocol::change::{
    ChangeRequest, ChangeRow, ChangeSearch, MessageChange, OrderedChange, Overlay, Reaction,
};
use protocol::history::Version;
use protocol::reading::RecallRange;
use protocol::{ConversationId, MessageId, SendId, Seq, Timestamp, UserId};
use serde::{Deserialize, Serialize};

use super::{ChangeStore, SEARCH, unknown};
use crate::Result;
use crate::embedded::value::{decode, decode_front, encode};
use crate::embedded::{Engine, ScanOrder, Table, WriteBatch};

const SEAM: &str = "changes";

/// Rows per read.
const SCAN: usize = 256;

/// Kinds of effects, as the second part of a key.
const RECALLED: u8 = 0;
const EDITED: u8 = 1;
const REACTED: u8 = 2;
const PINNED: u8 = 3;
/// List of pins: only those that are on, so that a page reads no others.
const LISTED: u8 = 4;

/// Changes in the embedded store.
pub struct EmbeddedChanges {
    engine: Engine,
    /// Held from the read of an effect to its write, never across an await.
    write_lock: Mutex<()>,
}

/// Stored value of both tables. The version comes first, so that it can be decoded alone, and the
/// kind of the change last, so that all but an unknown one can.
#[derive(Serialize)]
struct StoredRow {
    version: Version,
    author: UserId,
    changed: OrderedChange,
}

/// What comes before the kind of a change, in a [`StoredRow`].
#[derive(Deserialize)]
struct RowFront {
    version: Version,
    author: UserId,
    rev: u64,
    seq: Seq,
    id: MessageId,
    send_id: SendId,
    subject: MessageId,
    by: UserId,
    at: Timestamp,
}

/// Position of a change that died, where no message is. It is stored as a recall, so that the
/// version before this one can read the row, too.
const NOWHERE: Seq = Seq::ZERO;

/// Number of kinds that are stored, in the order of [`MessageChange`].
const KINDS: u32 = 4;

impl StoredRow {
    fn decode(value: &[u8]) -> Result<StoredRow> {
        let ((front, kind), _): ((RowFront, u32), _) = decode_front(SEAM, value)?;
        let change = if kind < KINDS {
            match decode(SEAM, value)? {
                (RowFront { seq: NOWHERE, .. }, MessageChange::Recall) => MessageChange::Died,
                (_, change) => change,
            }
        } else {
            // A kind of a later version. It is no error, which would make the other changes of a
            // page unreadable, too.
            MessageChange::Unknown
        };
        Ok(StoredRow {
            version: front.version,
            author: front.author,
            changed: OrderedChange {
                rev: front.rev,
                seq: front.seq,
                asked: ChangeRequest {
                    id: front.id,
                    send_id: front.send_id,
                    subject: front.subject,
                    by: front.by,
                    at: front.at,
                    change,
                },
            },
        })
    }
}

impl EmbeddedChanges {
    pub fn new(engine: Engine) -> EmbeddedChanges {
        EmbeddedChanges {
            engine,
            write_lock: Mutex::default(),
        }
    }

    fn version(&self, table: Table, key: &[u8]) -> Result<Option<Version>> {
        let Some(value) = self.engine.get(table, key)? else {
            return Ok(None);
        };
        decode_front(SEAM, &value).map(|(version, _)| Some(version))
    }

    /// Lists the pin of this row, or takes it off the list. The newest of pins and recalls decides,
    /// in whatever order they are written.
    fn list_pin(
        &self,
        batch: &mut WriteBatch,
        row: &StoredRow,
        conversation: ConversationId,
    ) -> Result<()> {
        let OrderedChange {
            seq,
            asked: request,
            ..
        } = &row.changed;
        let is_on = match &request.change {
            MessageChange::Pin { on } => *on,
            MessageChange::Recall => false,
            MessageChange::Edit(_)
            | MessageChange::React { .. }
            | MessageChange::Unknown
            | MessageChange::Died => return Ok(()),
        };
        for kind in [PINNED, RECALLED] {
            let newest = self.version(Table::Altered, &effect_key(conversation, kind, *seq))?;
            if newest > Some(row.version) {
                return Ok(());
            }
        }
        let key = effect_key(conversation, LISTED, *seq).to_vec();
        if is_on {
            batch.put(Table::Altered, key, encode(SEAM, row)?)
        } else {
            batch.remove(Table::Altered, key)
        }
        Ok(())
    }

    /// Visits the effects of one kind between two positions, both included.
    fn visit_effects(
        &self,
        conversation: ConversationId,
        kind: u8,
        (first, last): (Seq, Seq),
        mut each: impl FnMut(StoredRow),
    ) -> Result<()> {
        if first > last {
            return Ok(());
        }
        let mut from = Bound::Included(effect_key(conversation, kind, first).to_vec());
        let end = effect_key(conversation, kind, last.next());
        let end = match last.0 {
            u64::MAX => effect_key(conversation, kind + 1, Seq::ZERO),
            _ => end,
        };
        loop {
            let bounds = (from.as_ref().map(Vec::as_slice), Bound::Excluded(&end[..]));
            let page = self
                .engine
                .range(Table::Altered, bounds, ScanOrder::Forward, SCAN)?;
            for (_, value) in &page {
                each(StoredRow::decode(value)?);
            }
            match page.last() {
                Some((key, _)) if page.len() == SCAN => from = Bound::Excluded(key.to_vec()),
                _ => return Ok(()),
            }
        }
    }
}

impl EmbeddedChanges {
    fn overlays_between(
        &self,
        conversation: ConversationId,
        first: Seq,
        last: Seq,
    ) -> Result<BTreeMap<Seq, Overlay>> {
        let mut overlays: BTreeMap<Seq, Overlay> = BTreeMap::new();
        for kind in [RECALLED, EDITED, REACTED, PINNED] {
            self.visit_effects(conversation, kind, (first, last), |row| {
                if row.changed.asked.change.has_effect() {
                    let overlay = overlays.entry(row.changed.seq).or_default();
                    overlay.apply(row.version, &row.changed);
                }
            })?;
        }
        Ok(overlays)
    }
}

#[async_trait]
impl ChangeStore for EmbeddedChanges {
    async fn save(&self, mut changes: Vec<ChangeRow>) -> Result<()> {
        // The last write of a key in a batch counts, so the latest version goes last.
        changes.sort_by_key(|row| row.version);
        let _write_guard = self.write_lock.lock();
        let mut batch = WriteBatch::new();
        for row in changes {
            let change_key = change_key(row.conversation, row.changed.rev);
            let effect_key = own_key(row.conversation, &row.changed)?;
            let version = row.version;
            let mut stored_row = StoredRow {
                version,
                author: row.author,
                changed: row.changed,
            };
            self.list_pin(&mut batch, &stored_row, row.conversation)?;
            if stored_row.changed.has_died() {
                stored_row.changed.asked.change = MessageChange::Recall;
            }
            let value = encode(SEAM, &stored_row)?;
            if let Some(effect_key) = effect_key
                && self.version(Table::Altered, &effect_key)? <= Some(version)
            {
                batch.put(Table::Altered, effect_key, value.clone());
            }
            if self.version(Table::Change, &change_key)? <= Some(version) {
                batch.put(Table::Change, change_key.to_vec(), value);
            }
        }
        if batch.is_empty() {
            Ok(())
        } else {
            self.engine.write(batch).map(drop)
        }
    }

    async fn since(
        &self,
        conversation: ConversationId,
        after_rev: u64,
        limit: usize,
    ) -> Result<Vec<OrderedChange>> {
        let (start, end) = (
            change_key(conversation, after_rev),
            change_key(conversation, u64::MAX),
        );
        if start == end {
            return Ok(Vec::new());
        }
        let bounds = (Bound::Excluded(&start[..]), Bound::Included(&end[..]));
        let rows = self
            .engine
            .range(Table::Change, bounds, ScanOrder::Forward, limit)?;
        let decode = |value: &[u8]| StoredRow::decode(value).map(|row| row.changed);
        rows.iter().map(|(_, value)| decode(value)).collect()
    }

    async fn of_record(
        &self,
        conversation: ConversationId,
        record: Version,
        search: ChangeSearch,
    ) -> Result<Option<OrderedChange>> {
        let (first, last) = search.revs().into_inner();
        let mut start = Bound::Included(change_key(conversation, first).to_vec());
        let mut end = Bound::Included(change_key(conversation, last).to_vec());
        let (order, past) = match search {
            ChangeSearch::UpTo(_) => (ScanOrder::Backward, Ordering::Less),
            ChangeSearch::Behind(_) => (ScanOrder::Forward, Ordering::Greater),
        };
        loop {
            let bounds = (
                start.as_ref().map(Vec::as_slice),
                end.as_ref().map(Vec::as_slice),
            );
            let page = self.engine.range(Table::Change, bounds, order, SCAN)?;
            for (_, value) in &page {
                let (version, _): (Version, _) = decode_front(SEAM, value)?;
                match version.cmp(&record) {
                    Ordering::Equal => {
                        return StoredRow::decode(value).map(|row| Some(row.changed));
                    }
                    other if other == past => return Ok(None),
                    _ => {}
                }
            }
            let last = match page.last() {
                Some((key, _)) if page.len() == SCAN => Bound::Excluded(key.to_vec()),
                _ => return Ok(None),
            };
            match order {
                ScanOrder::Backward => end = last,
                ScanOrder::Forward => start = last,
            }
        }
    }

    async fn find_send(
        &self,
        conversation: ConversationId,
        by: UserId,
        send_id: SendId,
        last: u64,
    ) -> Result<Option<(Version, OrderedChange)>> {
        let start = change_key(conversation, last.saturating_sub(SEARCH));
        let end = change_key(conversation, last);
        let bounds = (Bound::Excluded(&start[..]), Bound::Included(&end[..]));
        let rows = if start < end {
            self.engine
                .range(Table::Change, bounds, ScanOrder::Backward, SEARCH as usize)?
        } else {
            Vec::new()
        };
        for (_, value) in &rows {
            let row = StoredRow::decode(value)?;
            let request = &row.changed.asked;
            if request.by == by && request.send_id == send_id && !row.changed.has_died() {
                return Ok(Some((row.version, row.changed)));
            }
        }
        Ok(None)
    }

    async fn altered(
        &self,
        conversation: ConversationId,
        first: Seq,
        last: Seq,
    ) -> Result<BTreeMap<Seq, Overlay>> {
        self.overlays_between(conversation, first, last)
    }

    async fn altered_each(&self, places: &[(ConversationId, Seq)]) -> Result<Vec<Overlay>> {
        let overlays = places.iter().map(|&(conversation, seq)| {
            let mut overlays = self.overlays_between(conversation, seq, seq)?;
            Ok(overlays.remove(&seq).unwrap_or_default())
        });
        overlays.collect()
    }

    async fn recalled(&self, ranges: &[RecallRange]) -> Result<Vec<BTreeMap<Seq, UserId>>> {
        let recalls = ranges.iter().map(|range| {
            let mut recalls = BTreeMap::new();
            let seqs = (range.base.next(), range.last);
            self.visit_effects(range.conversation, RECALLED, seqs, |row| {
                if row.version <= range.last_version {
                    recalls.insert(row.changed.seq, row.author);
                }
            })?;
            Ok(recalls)
        });
        recalls.collect()
    }

    async fn pins(
        &self,
        conversation: ConversationId,
        before_seq: Seq,
        limit: usize,
    ) -> Result<Vec<(Seq, MessageId)>> {
        let start = effect_key(conversation, LISTED, Seq::ZERO);
        let end = effect_key(conversation, LISTED, before_seq);
        let bounds = (Bound::Included(&start[..]), Bound::Excluded(&end[..]));
        let page = self
            .engine
            .range(Table::Altered, bounds, ScanOrder::Backward, limit)?;
        let place = |row: StoredRow| (row.changed.seq, row.changed.asked.subject);
        let pin = |value: &[u8]| StoredRow::decode(value).map(place);
        page.iter().map(|(_, value)| pin(value)).collect()
    }
}

fn change_key(conversation: ConversationId, rev: u64) -> [u8; 25] {
    let mut key = [0; 25];
    key[..17].copy_from_slice(&conversation.to_key());
    key[17..].copy_from_slice(&rev.to_be_bytes());
    key
}

fn effect_key(conversation: ConversationId, kind: u8, seq: Seq) -> [u8; 26] {
    let mut key = [0; 26];
    key[..17].copy_from_slice(&conversation.to_key());
    key[17] = kind;
    key[18..].copy_from_slice(&seq.0.to_be_bytes());
    key
}

/// Key of the effect of a change; `None` for one that died.
fn own_key(
    conversation: ConversationId,
    ordered_change: &OrderedChange,
) -> Result<Option<Vec<u8>>> {
    let ChangeRequest { by, change, .. } = &ordered_change.asked;
    let (kind, rest) = match change {
        MessageChange::Recall => (RECALLED, Vec::new()),
        MessageChange::Edit(_) => (EDITED, Vec::new()),
        MessageChange::React { reaction, .. } => (REACTED, reaction_key(*by, reaction)),
        MessageChange::Pin { .. } => (PINNED, Vec::new()),
        MessageChange::Unknown => return Err(unknown()),
        MessageChange::Died => return Ok(None),
    };
    let mut key = effect_key(conversation, kind, ordered_change.seq).to_vec();
    key.extend(rest);
    Ok(Some(key))
}

fn reaction_key(by: UserId, reaction: &Reaction) -> Vec<u8> {
    [&by.get().to_be_bytes()[..], reaction.as_str().as_bytes()].concat()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::changes::contract;
    use crate::test_ids::on_memory_and_disk;

    contract::checks!(on_memory_and_disk!(super::EmbeddedChanges::new));

    fn row(change: MessageChange) -> StoredRow {
        let user = UserId::new(1).expect("positive");
        let id = MessageId::new(7).expect("positive");
        StoredRow {
            version: Version {
                epoch: 1,
                offset: 10,
            },
            author: user,
            changed: OrderedChange {
                rev: 2,
                seq: Seq(5),
                asked: ChangeRequest {
                    id,
                    send_id: SendId::from_bytes([7; 16]),
                    subject: id,
                    by: user,
                    at: Timestamp::ZERO,
                    change,
                },
            },
        }
    }

    /// The last known kind has the number `KINDS - 1`. A larger number is read as an unknown
    /// change, whatever follows it; a torn row is an error.
    #[test]
    fn kinds_of_a_later_version_are_unknown() {
        let pin = row(MessageChange::Pin { on: true });
        let encoded = encode(SEAM, &pin).expect("encodes");
        let (front, kind) = encoded.split_at(encoded.len() - 2);
        assert_eq!(kind, [KINDS as u8 - 1, 1]);
        let decoded = StoredRow::decode(&encoded).expect("decodes").changed;
        assert_eq!(decoded, pin.changed);
        for more in [&[KINDS as u8][..], &[KINDS as u8, 1, 2, 3], &[0xff, 0x7f]] {
            let unknown = [front, more].concat();
            let decoded = StoredRow::decode(&unknown).expect("decodes").changed;
            assert_eq!(decoded, row(MessageChange::Unknown).changed, "{more:?}");
        }
        for torn in [front, &[&encoded[..], &[0]].concat()] {
            let error = StoredRow::decode(torn).err().expect("refused");
            assert_eq!(error.kind, crate::Kind::Corrupt);
        }
    }

    /// A change of an unknown kind appears in pages at its rev and in no overlay; other changes are
    /// not affected.
    #[tokio::test]
    async fn an_unknown_kind_keeps_its_place_in_pages() {
        let store = crate::test_ids::TestBackend::in_memory(EmbeddedChanges::new).store;
        let conversation = ConversationId::Group(protocol::GroupId::new(1).expect("positive"));
        let with_unknown_kind = |value: StoredRow| {
            let value = encode(SEAM, &value).expect("encodes");
            [&value[..value.len() - 1], &[KINDS as u8 + 9, 1]].concat()
        };
        let mut batch = WriteBatch::new();
        let mut unknown = row(MessageChange::Recall);
        unknown.changed.rev = 1;
        let key = change_key(conversation, 1).to_vec();
        batch.put(Table::Change, key, with_unknown_kind(unknown));
        let key = effect_key(conversation, EDITED, Seq(5)).to_vec();
        batch.put(
            Table::Altered,
            key,
            with_unknown_kind(row(MessageChange::Recall)),
        );
        store.engine.write(batch).map(drop).expect("writes");
        let pin_row = ChangeRow {
            conversation,
            version: row(MessageChange::Recall).version,
            author: row(MessageChange::Recall).author,
            changed: row(MessageChange::Pin { on: true }).changed,
        };
        store.save(vec![pin_row]).await.expect("saves");
        let page = store.since(conversation, 0, 9).await.expect("reads");
        let kinds = page
            .iter()
            .map(|change| (change.rev, change.asked.change.clone()));
        let kinds: Vec<_> = kinds.collect();
        let expected = [
            (1, MessageChange::Unknown),
            (2, MessageChange::Pin { on: true }),
        ];
        assert_eq!(kinds, expected);
        let overlay = store.altered(conversation, Seq(5), Seq(5)).await;
        let overlay = overlay.expect("reads").remove(&Seq(5)).expect("pinned");
        assert_eq!(overlay.edited, None);
        assert!(overlay.pin().is_some());
    }
}
