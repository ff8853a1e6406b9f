//! Changes in ScyllaDB or Cassandra: `change`, a row each, and `altered`, the effect of the newest
//! change of each kind on its message.
//!
//! Rows of both are written at the time of their record. A redelivery therefore writes the same
//! rows, and the effect of an earlier record loses to that of a later one. Nothing is removed
//! from them: a reaction that was taken back is one that is off. `pin` lists the pins that are on.
//!
//! A change that died has a row of `change` at position 0, where no message is, and the smallest value
//! in each other column that may differ: if its record makes the change after all, in the same place
//! and at the same time, the larger values are those of the change.

use std::cmp::Ordering;
use std::collections::BTreeMap;
use std::ops::RangeInclusive;

use async_trait::async_trait;
use bytes::Bytes;
use protocol::change::{
    ChangeRequest, ChangeRow, ChangeSearch, MessageChange, OrderedChange, Overlay,
};
use protocol::history::Version;
use protocol::id::Uuid;
use protocol::message::Content;
use protocol::reading::RecallRange;
use protocol::{ConversationId, MessageId, SendId, Seq, Timestamp, UserId};
use scylla::{DeserializeRow, SerializeRow};
use serde::{Deserialize, Serialize};

use super::{ChangeStore, SEARCH, unknown};
use crate::embedded::value::{decode, encode};
use crate::scylla::{Cql, SeamCql, Statement, write_time};
use crate::{Error, Result};

const SEAM: &str = "changes";

/// A partition of `change` has 2^10 rows: below a hundred megabytes with the longest edits, mostly
/// far below one.
const CHANGE_BITS: u32 = 10;
/// A partition of `altered` has 2^14 positions.
const ALTERED_BITS: u32 = 14;

/// Changes per page of a search by record.
const PAGE: i32 = 128;

const RECALL: i8 = 0;
const EDIT: i8 = 1;
const REACT: i8 = 2;
/// Pins are stored among the reactions, under a text that no reaction may have, so that a page
/// needs no query for another kind.
const PIN: &str = "\u{0}pin";
/// First character of the text of each kind that is stored among the reactions.
const OTHER: char = '\u{0}';
/// Position of a change that died.
const NOWHERE: i64 = 0;

/// Changes in ScyllaDB or Cassandra. Several may write at once.
pub struct ScyllaChanges {
    cql: SeamCql,
    insert: Statement,
    insert_effect: Statement,
    select_from: Statement,
    find_backward: Statement,
    find_forward: Statement,
    sends: Statement,
    by_rev: Statement,
    effects: Statement,
    recalls: Statement,
    pin: Statement,
    unpin: Statement,
    pins: Statement,
}

const COLUMNS: &str = "rev, seq, subject, id, send_id, uid, tm, what, reaction, is_on, content";

/// Content of an edited message, in column `content`: postcard behind a format byte. Its fields are
/// final: another form gets another byte.
#[derive(Serialize, Deserialize)]
struct EditedContent {
    kind: i32,
    data: Bytes,
    priority: i32,
    reference: Option<MessageId>,
    encryption: i32,
    sub_kind: i32,
    key_print: i64,
}

impl EditedContent {
    fn from_content(content: &Content) -> EditedContent {
        EditedContent {
            kind: content.kind,
            data: content.data.clone(),
            priority: content.priority,
            reference: content.reference,
            encryption: content.encryption,
            sub_kind: content.sub_kind,
            key_print: content.key_print,
        }
    }

    fn content(self) -> Content {
        Content {
            kind: self.kind,
            data: self.data,
            priority: self.priority,
            reference: self.reference,
            encryption: self.encryption,
            sub_kind: self.sub_kind,
            key_print: self.key_print,
            change: None,
        }
    }
}

#[derive(SerializeRow)]
struct NewChange {
    kind: i8,
    low: i64,
    high: i64,
    block: i64,
    rev: i64,
    seq: i64,
    subject: i64,
    author: i64,
    id: i64,
    send_id: Uuid,
    uid: i64,
    tm: i64,
    what: i8,
    reaction: String,
    is_on: bool,
    content: Bytes,
    ver: i64,
    written: i64,
}

#[derive(DeserializeRow)]
struct ChangeColumns {
    rev: i64,
    seq: i64,
    subject: i64,
    id: i64,
    send_id: Uuid,
    uid: i64,
    tm: i64,
    what: i8,
    reaction: String,
    is_on: bool,
    content: Bytes,
}

#[derive(SerializeRow)]
struct NewAltered {
    kind: i8,
    low: i64,
    high: i64,
    block: i64,
    what: i8,
    seq: i64,
    reaction: String,
    uid: i64,
    author: i64,
    done_by: i64,
    tm: i64,
    is_on: bool,
    content: Bytes,
    ver: i64,
    written: i64,
}

#[derive(DeserializeRow)]
struct StoredAltered {
    what: i8,
    seq: i64,
    reaction: String,
    done_by: i64,
    tm: i64,
    is_on: bool,
    content: Bytes,
    ver: i64,
}

impl ScyllaChanges {
    pub fn new(cql: Cql) -> ScyllaChanges {
        let partition = "kind = ? AND low = ? AND high = ? AND block = ?";
        ScyllaChanges {
            cql: cql.at(SEAM),
            insert: Statement::new(
                "INSERT INTO change (kind, low, high, block, rev, seq, subject, author, id, send_id, uid, tm, \
                 what, reaction, is_on, content, ver) VALUES (:kind, :low, :high, :block, :rev, :seq, \
                 :subject, :author, :id, :send_id, :uid, :tm, :what, :reaction, :is_on, :content, :ver) USING TIMESTAMP :written",
            ),
            insert_effect: Statement::new(
                "INSERT INTO altered (kind, low, high, block, what, seq, reaction, uid, author, done_by, tm, \
                 is_on, content, ver) VALUES (:kind, :low, :high, :block, :what, :seq, :reaction, :uid, \
                 :author, :done_by, :tm, :is_on, :content, :ver) USING TIMESTAMP :written",
            ),
            select_from: Statement::new(format!(
                "SELECT {COLUMNS} FROM change WHERE {partition} AND rev >= ? ORDER BY rev ASC LIMIT ?"
            )),
            find_backward: Statement::new(format!(
                "SELECT rev, ver FROM change WHERE {partition} AND rev <= ? ORDER BY rev DESC LIMIT ?"
            )),
            find_forward: Statement::new(format!(
                "SELECT rev, ver FROM change WHERE {partition} AND rev >= ? ORDER BY rev ASC LIMIT ?"
            )),
            sends: Statement::new(format!(
                "SELECT rev, uid, send_id, ver, seq FROM change \
                 WHERE {partition} AND rev > ? AND rev <= ?"
            )),
            by_rev: Statement::new(format!(
                "SELECT {COLUMNS} FROM change WHERE {partition} AND rev = ?"
            )),
            effects: Statement::new(format!(
                "SELECT what, seq, reaction, done_by, tm, is_on, content, ver FROM altered \
                 WHERE {partition} AND what = ? AND seq >= ? AND seq <= ?"
            )),
            recalls: Statement::new(format!(
                "SELECT seq, author, ver FROM altered WHERE {partition} AND what = {RECALL} \
                 AND seq >= ? AND seq <= ?"
            )),
            pin: Statement::new(
                "INSERT INTO pin (kind, low, high, seq, subject) VALUES (?, ?, ?, ?, ?) USING TIMESTAMP ?",
            ),
            unpin: Statement::new(
                "DELETE FROM pin USING TIMESTAMP ? WHERE kind = ? AND low = ? AND high = ? AND seq = ?",
            ),
            pins: Statement::new(
                "SELECT seq, subject FROM pin WHERE kind = ? AND low = ? AND high = ? AND seq < ? \
                 ORDER BY seq DESC LIMIT ?",
            ),
        }
    }

    /// Writes the effect of a change on its message.
    async fn write_effect(&self, row: &ChangeRow, effect: NewAltered) -> Result<()> {
        let place = (effect.kind, effect.low, effect.high);
        let (seq, ver) = (effect.seq, effect.ver);
        tokio::try_join!(
            self.cql.write(&self.insert_effect, effect),
            self.list_pin(place, seq, &row.changed.asked, ver),
        )?;
        Ok(())
    }

    /// Lists a pin, or takes it off the list.
    async fn list_pin(
        &self,
        (kind, low, high): (i8, i64, i64),
        seq: i64,
        request: &ChangeRequest,
        ver: i64,
    ) -> Result<()> {
        let subject = request.subject.get();
        match request.change {
            MessageChange::Pin { on: true } => {
                let values = (kind, low, high, seq, subject, ver);
                self.cql.write(&self.pin, values).await
            }
            // A recall knows of no pin: the removal is a tombstone where there is none.
            MessageChange::Pin { on: false } | MessageChange::Recall => {
                let values = (ver, kind, low, high, seq);
                self.cql.write(&self.unpin, values).await
            }
            MessageChange::Edit(_)
            | MessageChange::React { .. }
            | MessageChange::Unknown
            | MessageChange::Died => Ok(()),
        }
    }

    /// Rev of the change with this version, at `last` or below.
    async fn rev_below(
        &self,
        conversation: ConversationId,
        target_ver: i64,
        last: i64,
    ) -> Result<Option<i64>> {
        let (kind, low, high) = key(conversation);
        let mut next = last;
        while next > 0 {
            let block = next >> CHANGE_BITS;
            let values = (kind, low, high, block, next, PAGE);
            let rows: Vec<(i64, i64)> = self.cql.rows(&self.find_backward, values).await?;
            for &(rev, ver) in &rows {
                match ver.cmp(&target_ver) {
                    Ordering::Greater => {}
                    Ordering::Equal => return Ok(Some(rev)),
                    Ordering::Less => return Ok(None),
                }
            }
            next = match rows.last() {
                Some((rev, _)) => rev - 1,
                None => (block << CHANGE_BITS) - 1,
            };
        }
        Ok(None)
    }

    /// Rev of the change with this version, at `first` or above. Changes are dense: an empty page is
    /// the end.
    async fn rev_above(
        &self,
        conversation: ConversationId,
        target_ver: i64,
        first: i64,
    ) -> Result<Option<i64>> {
        let (kind, low, high) = key(conversation);
        let mut next = first;
        loop {
            let values = (kind, low, high, next >> CHANGE_BITS, next, PAGE);
            let rows: Vec<(i64, i64)> = self.cql.rows(&self.find_forward, values).await?;
            for &(rev, ver) in &rows {
                match ver.cmp(&target_ver) {
                    Ordering::Less => {}
                    Ordering::Equal => return Ok(Some(rev)),
                    Ordering::Greater => return Ok(None),
                }
            }
            match rows.last() {
                Some((rev, _)) => next = rev + 1,
                None => return Ok(None),
            }
        }
    }

    async fn at(&self, conversation: ConversationId, rev: i64) -> Result<Option<OrderedChange>> {
        let (kind, low, high) = key(conversation);
        let values = (kind, low, high, rev >> CHANGE_BITS, rev);
        let rows: Vec<ChangeColumns> = self.cql.rows(&self.by_rev, values).await?;
        rows.into_iter()
            .next()
            .map(ChangeColumns::into_change)
            .transpose()
    }

    /// Reads the effects of one kind between two positions of one partition.
    async fn read_effects(
        &self,
        conversation: ConversationId,
        code: i8,
        seqs: &RangeInclusive<i64>,
    ) -> Result<Vec<StoredAltered>> {
        let (kind, low, high) = key(conversation);
        let (first, last) = (*seqs.start(), *seqs.end());
        let values = (kind, low, high, first >> ALTERED_BITS, code, first, last);
        self.cql.rows(&self.effects, values).await
    }
}

impl ChangeColumns {
    fn into_change(self) -> Result<OrderedChange> {
        let change = match self.seq {
            NOWHERE => MessageChange::Died,
            _ => change(self.what, &self.reaction, self.is_on, &self.content)?,
        };
        Ok(OrderedChange {
            rev: self.rev as u64,
            seq: Seq(self.seq as u64),
            asked: ChangeRequest {
                id: id(self.id)?,
                send_id: SendId::from_uuid(self.send_id),
                subject: id(self.subject)?,
                by: user(self.uid)?,
                at: Timestamp::from_millis(self.tm),
                change,
            },
        })
    }
}

impl StoredAltered {
    fn apply(&self, overlays: &mut BTreeMap<Seq, Overlay>) -> Result<()> {
        let seq = Seq(self.seq as u64);
        let version = write_time::to_version(self.ver).ok_or_else(torn)?;
        let change = change(self.what, &self.reaction, self.is_on, &self.content)?;
        if !change.has_effect() {
            return Ok(());
        }
        // Effects are stored without id and rev of their change; the fold needs neither.
        let placeholder = MessageId::floor_of(Timestamp::from_millis(self.tm));
        let ordered_change = OrderedChange {
            rev: 0,
            seq,
            asked: ChangeRequest {
                id: placeholder,
                send_id: SendId::from_bytes([0; 16]),
                subject: placeholder,
                by: user(self.done_by)?,
                at: Timestamp::from_millis(self.tm),
                change,
            },
        };
        overlays
            .entry(seq)
            .or_default()
            .apply(version, &ordered_change);
        Ok(())
    }
}

#[async_trait]
impl ChangeStore for ScyllaChanges {
    async fn save(&self, changes: Vec<ChangeRow>) -> Result<()> {
        let rows = changes.iter().map(to_rows).collect::<Result<Vec<_>>>()?;
        let (rows, effects): (Vec<_>, Vec<Option<_>>) = rows.into_iter().unzip();
        let writes = rows
            .into_iter()
            .map(|row| self.cql.write(&self.insert, row));
        self.cql.all(writes.collect()).await?;
        let effects = changes.iter().zip(effects);
        let writes = effects.filter_map(|(row, effect)| Some(self.write_effect(row, effect?)));
        self.cql.all(writes.collect()).await.map(drop)
    }

    async fn since(
        &self,
        conversation: ConversationId,
        after_rev: u64,
        limit: usize,
    ) -> Result<Vec<OrderedChange>> {
        let (kind, low, high) = key(conversation);
        let Ok(first) = number(after_rev.saturating_add(1)) else {
            return Ok(Vec::new());
        };
        let (mut next, mut changes) = (first, Vec::new());
        while changes.len() < limit {
            let block = next >> CHANGE_BITS;
            let page_size = (limit - changes.len()).min(1 << CHANGE_BITS) as i32;
            let values = (kind, low, high, block, next, page_size);
            let rows: Vec<ChangeColumns> = self.cql.rows(&self.select_from, values).await?;
            for row in rows {
                next = row.rev + 1;
                changes.push(row.into_change()?);
            }
            // Revs are dense: a partition that ends before its last rev is the last one.
            if next >> CHANGE_BITS == block {
                break;
            }
        }
        Ok(changes)
    }

    async fn of_record(
        &self,
        conversation: ConversationId,
        record: Version,
        search: ChangeSearch,
    ) -> Result<Option<OrderedChange>> {
        let ver = write_time::from_version(SEAM, record)?;
        let rev = match search {
            ChangeSearch::UpTo(last) => self.rev_below(conversation, ver, number(last)?).await?,
            ChangeSearch::Behind(rev) => {
                let first = number(rev.saturating_add(1))?;
                self.rev_above(conversation, ver, first).await?
            }
        };
        match rev {
            Some(rev) => self.at(conversation, rev).await,
            None => Ok(None),
        }
    }

    async fn find_send(
        &self,
        conversation: ConversationId,
        by: UserId,
        send_id: SendId,
        last: u64,
    ) -> Result<Option<(Version, OrderedChange)>> {
        let last = number(last)?;
        let lower_bound = last.saturating_sub(SEARCH as i64).max(0);
        let blocks = (lower_bound >> CHANGE_BITS)..=(last >> CHANGE_BITS);
        for block in blocks.rev() {
            let (kind, low, high) = key(conversation);
            let values = (kind, low, high, block, lower_bound, last);
            let rows: Vec<(i64, i64, Uuid, i64, i64)> = self.cql.rows(&self.sends, values).await?;
            let same = |row: &&(i64, i64, Uuid, i64, i64)| {
                row.1 == by.get() && row.2 == uuid(send_id) && row.4 != NOWHERE
            };
            let Some(&(rev, _, _, ver, _)) = rows.iter().rev().find(same) else {
                continue;
            };
            let version = write_time::to_version(ver).ok_or_else(torn)?;
            let found_change = self.at(conversation, rev).await?;
            return Ok(found_change.map(|change| (version, change)));
        }
        Ok(None)
    }

    async fn altered(
        &self,
        conversation: ConversationId,
        first: Seq,
        last: Seq,
    ) -> Result<BTreeMap<Seq, Overlay>> {
        let blocks = blocks(first, last);
        let kinds = [RECALL, EDIT, REACT];
        let reads = blocks
            .iter()
            .flat_map(|seqs| kinds.map(|code| (code, seqs)));
        let reads = reads.map(|(code, seqs)| self.read_effects(conversation, code, seqs));
        let mut overlays = BTreeMap::new();
        for effect in self.cql.all(reads.collect()).await?.into_iter().flatten() {
            effect.apply(&mut overlays)?;
        }
        Ok(overlays)
    }

    async fn altered_each(&self, places: &[(ConversationId, Seq)]) -> Result<Vec<Overlay>> {
        let mut reads = Vec::with_capacity(3 * places.len());
        for (index, &(conversation, seq)) in places.iter().enumerate() {
            for seqs in blocks(seq, seq) {
                for code in [RECALL, EDIT, REACT] {
                    let seqs = seqs.clone();
                    reads.push(async move {
                        let effect = self.read_effects(conversation, code, &seqs).await?;
                        Ok((index, effect))
                    });
                }
            }
        }
        let mut overlays = vec![BTreeMap::new(); places.len()];
        for (index, effects) in self.cql.all(reads).await? {
            for effect in effects {
                effect.apply(&mut overlays[index])?;
            }
        }
        let overlays = places.iter().zip(overlays);
        Ok(overlays
            .map(|((_, seq), mut overlays)| overlays.remove(seq).unwrap_or_default())
            .collect())
    }

    async fn recalled(&self, ranges: &[RecallRange]) -> Result<Vec<BTreeMap<Seq, UserId>>> {
        let mut reads = Vec::with_capacity(ranges.len());
        for (index, range) in ranges.iter().enumerate() {
            let max_ver = write_time::from_version(SEAM, range.last_version)?;
            let (kind, low, high) = key(range.conversation);
            for seqs in blocks(range.base.next(), range.last) {
                reads.push(async move {
                    let (first, last) = (*seqs.start(), *seqs.end());
                    let values = (kind, low, high, first >> ALTERED_BITS, first, last);
                    let mut rows: Vec<(i64, i64, i64)> =
                        self.cql.rows(&self.recalls, values).await?;
                    rows.retain(|(_, _, ver)| *ver <= max_ver);
                    Ok((index, rows))
                });
            }
        }
        let mut recalls = vec![BTreeMap::new(); ranges.len()];
        for (index, rows) in self.cql.all(reads).await? {
            for (seq, author, _) in rows {
                recalls[index].insert(Seq(seq as u64), user(author)?);
            }
        }
        Ok(recalls)
    }

    async fn pins(
        &self,
        conversation: ConversationId,
        before_seq: Seq,
        limit: usize,
    ) -> Result<Vec<(Seq, MessageId)>> {
        let (kind, low, high) = key(conversation);
        let before_seq = i64::try_from(before_seq.0).unwrap_or(i64::MAX);
        let limit = i32::try_from(limit).unwrap_or(i32::MAX);
        let values = (kind, low, high, before_seq, limit);
        let rows: Vec<(i64, i64)> = self.cql.rows(&self.pins, values).await?;
        let pins = rows
            .into_iter()
            .map(|(seq, subject)| Ok((Seq(seq as u64), id(subject)?)));
        pins.collect()
    }
}

/// Splits the positions from `first` to `last`, both included, by partition.
fn blocks(first: Seq, last: Seq) -> Vec<RangeInclusive<i64>> {
    const MAX_SEQ: u64 = i64::MAX as u64;
    let (mut next, last) = (first.0.clamp(1, MAX_SEQ) as i64, last.0.min(MAX_SEQ) as i64);
    let mut blocks = Vec::new();
    while next <= last {
        let end = (next | ((1 << ALTERED_BITS) - 1)).min(last);
        blocks.push(next..=end);
        next = match end.checked_add(1) {
            Some(next) => next,
            None => break,
        };
    }
    blocks
}

fn change(code: i8, reaction: &str, on: bool, content: &Bytes) -> Result<MessageChange> {
    match code {
        RECALL => Ok(MessageChange::Recall),
        EDIT => {
            decode(SEAM, content).map(|edit: EditedContent| MessageChange::Edit(edit.content()))
        }
        REACT if reaction == PIN => Ok(MessageChange::Pin { on }),
        // Kinds of a later version, stored among the reactions as pins are, or beside them. They
        // are no error, which would make the other changes of a page unreadable, too.
        REACT if reaction.starts_with(OTHER) => Ok(MessageChange::Unknown),
        REACT => Ok(MessageChange::React {
            reaction: reaction
                .parse()
                .map_err(|error: String| Error::corrupt(SEAM, error))?,
            on,
        }),
        _ => Ok(MessageChange::Unknown),
    }
}

fn key(conversation: ConversationId) -> (i8, i64, i64) {
    match conversation {
        ConversationId::Private { low, high } => (0, low.get(), high.get()),
        ConversationId::Group(group) => (1, 0, group.get()),
        ConversationId::System(user) => (2, 0, user.get()),
    }
}

/// Rows of a change: itself, and its effect on the message, unless it died.
fn to_rows(row: &ChangeRow) -> Result<(NewChange, Option<NewAltered>)> {
    let (kind, low, high) = key(row.conversation);
    let ver = write_time::from_version(SEAM, row.version)?;
    let OrderedChange {
        rev,
        seq,
        asked: request,
    } = &row.changed;
    let (rev, seq) = (number(*rev)?, write_time::from_seq(SEAM, *seq)?);
    let seq = match (seq, row.changed.has_died()) {
        (Some(seq), false) => seq,
        (None, true) => NOWHERE,
        (None, false) | (Some(_), true) => {
            return Err(Error::conflict(SEAM, "a change without a position"));
        }
    };
    let (code, reaction, is_on, content) = match &request.change {
        MessageChange::Recall => (RECALL, String::new(), true, Bytes::new()),
        MessageChange::Edit(content) => (
            EDIT,
            String::new(),
            true,
            encode(SEAM, &EditedContent::from_content(content))?,
        ),
        MessageChange::React { reaction, on } => (REACT, reaction.to_string(), *on, Bytes::new()),
        MessageChange::Pin { on } => (REACT, PIN.to_owned(), *on, Bytes::new()),
        MessageChange::Died => (RECALL, String::new(), false, Bytes::new()),
        MessageChange::Unknown => return Err(unknown()),
    };
    let author = match seq {
        NOWHERE => 0,
        _ => row.author.get(),
    };
    let (by, tm) = (request.by.get(), request.at.millis());
    let effect = (seq != NOWHERE).then(|| NewAltered {
        kind,
        low,
        high,
        block: seq >> ALTERED_BITS,
        what: code,
        seq,
        reaction: reaction.clone(),
        uid: match &request.change {
            MessageChange::React { .. } => by,
            _ => 0,
        },
        author,
        done_by: by,
        tm,
        is_on,
        content: content.clone(),
        ver,
        written: ver,
    });
    let change = NewChange {
        kind,
        low,
        high,
        block: rev >> CHANGE_BITS,
        rev,
        seq,
        subject: request.subject.get(),
        author,
        id: request.id.get(),
        send_id: uuid(request.send_id),
        uid: by,
        tm,
        what: code,
        reaction,
        is_on,
        content,
        ver,
        written: ver,
    };
    Ok((change, effect))
}

fn number(rev: u64) -> Result<i64> {
    i64::try_from(rev).map_err(|_| Error::conflict(SEAM, "a rev beyond the maximum"))
}

fn id(raw: i64) -> Result<MessageId> {
    MessageId::new(raw).map_err(|_| torn())
}

fn user(raw: i64) -> Result<UserId> {
    UserId::new(raw).map_err(|_| torn())
}

fn uuid(send_id: SendId) -> Uuid {
    Uuid::from_bytes(*send_id.as_bytes())
}

fn torn() -> Error {
    Error::corrupt(SEAM, "a change with invalid columns")
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::changes::contract;
    use crate::scylla::fixture::on_cql;

    contract::checks!(on_cql!("changes", ScyllaChanges::new));

    #[test]
    fn kinds_of_a_later_version_are_unknown() {
        let unknown = MessageChange::Unknown;
        let read = |code, reaction: &str| change(code, reaction, true, &Bytes::new());
        assert_eq!(read(3, "").expect("reads"), unknown);
        assert_eq!(read(-1, "+1").expect("reads"), unknown);
        assert_eq!(read(REACT, "\u{0}poll").expect("reads"), unknown);
        let pin = MessageChange::Pin { on: true };
        assert_eq!(read(REACT, PIN).expect("reads"), pin);
        assert!(read(REACT, "").is_err() && read(EDIT, "").is_err(), "torn");
        let mut overlays = BTreeMap::new();
        let effect = StoredAltered {
            what: REACT,
            seq: 4,
            reaction: "\u{0}poll".to_owned(),
            done_by: 1,
            tm: 5,
            is_on: true,
            content: Bytes::new(),
            ver: 9,
        };
        effect.apply(&mut overlays).expect("reads");
        assert_eq!(overlays, BTreeMap::new());
    }

    /// Of two writes at one time, the larger value of each column counts: that of the change.
    #[test]
    fn a_change_replaces_the_place_of_its_own_death() {
        let (user, id) = (user(8).expect("a user"), id(7).expect("an id"));
        let conversation = ConversationId::private(user, self::user(9).expect("a user"));
        let version = Version {
            epoch: 1,
            offset: 3,
        };
        let request = |change| ChangeRequest {
            id: self::id(20).expect("an id"),
            send_id: SendId::from_bytes([7; 16]),
            subject: id,
            by: user,
            at: Timestamp::from_millis(5),
            change,
        };
        let row = |ordered_change| ChangeRow {
            conversation: conversation.expect("two users"),
            version,
            author: user,
            changed: ordered_change,
        };
        let reaction = "+1".parse().expect("short");
        for change in [
            MessageChange::Recall,
            MessageChange::Edit(Content::text("x")),
            MessageChange::React {
                reaction,
                on: false,
            },
            MessageChange::Pin { on: true },
        ] {
            let request = request(change);
            let (dead, effect) = to_rows(&row(OrderedChange::died(4, &request))).expect("a row");
            assert!(effect.is_none());
            let ordered_change = OrderedChange {
                rev: 4,
                seq: Seq(2),
                asked: request,
            };
            let (live, effect) = to_rows(&row(ordered_change)).expect("rows");
            assert!(effect.is_some());
            assert_eq!(
                (dead.rev, dead.ver, dead.written),
                (live.rev, live.ver, live.written)
            );
            assert_eq!((dead.id, dead.uid, dead.tm), (live.id, live.uid, live.tm));
            assert!(dead.seq < live.seq && dead.subject < live.subject);
            assert!(dead.author < live.author && dead.send_id < live.send_id);
            assert!(dead.what <= live.what && dead.reaction <= live.reaction);
            assert!(dead.is_on <= live.is_on && dead.content <= live.content);
        }
    }

    #[test]
    fn ranges_are_cut_where_partitions_meet() {
        let cut = |first, last| blocks(Seq(first), Seq(last));
        assert_eq!(cut(0, 3), [1..=3]);
        assert_eq!(cut(16_383, 16_384), [16_383..=16_383, 16_384..=16_384]);
        assert_eq!(cut(5, 4), []);
        assert_eq!(cut(u64::MAX, u64::MAX).len(), 1);
    }
}
