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
/// Pins lie among the reactions, by a text that no reaction may have: a page asks for no kind more.
const PIN: &str = "\u{0}pin";
/// Begins the text of each such kind.
const OTHER: char = '\u{0}';
/// Position of a change that died.
const NOWHERE: i64 = 0;

/// Changes in ScyllaDB or Cassandra. Several may write at once.
pub struct ScyllaChanges {
    cql: SeamCql,
    insert: Statement,
    leave: Statement,
    upward: Statement,
    downward: Statement,
    behind: Statement,
    sends: Statement,
    one: Statement,
    altered: Statement,
    recalled: Statement,
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
    fn of(content: &Content) -> EditedContent {
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
            leave: Statement::new(
                "INSERT INTO altered (kind, low, high, block, what, seq, reaction, uid, author, done_by, tm, \
                 is_on, content, ver) VALUES (:kind, :low, :high, :block, :what, :seq, :reaction, :uid, \
                 :author, :done_by, :tm, :is_on, :content, :ver) USING TIMESTAMP :written",
            ),
            upward: Statement::new(format!(
                "SELECT {COLUMNS} FROM change WHERE {partition} AND rev >= ? ORDER BY rev ASC LIMIT ?"
            )),
            downward: Statement::new(format!(
                "SELECT rev, ver FROM change WHERE {partition} AND rev <= ? ORDER BY rev DESC LIMIT ?"
            )),
            behind: Statement::new(format!(
                "SELECT rev, ver FROM change WHERE {partition} AND rev >= ? ORDER BY rev ASC LIMIT ?"
            )),
            sends: Statement::new(format!(
                "SELECT rev, uid, send_id, ver, seq FROM change \
                 WHERE {partition} AND rev > ? AND rev <= ?"
            )),
            one: Statement::new(format!(
                "SELECT {COLUMNS} FROM change WHERE {partition} AND rev = ?"
            )),
            altered: Statement::new(format!(
                "SELECT what, seq, reaction, done_by, tm, is_on, content, ver FROM altered \
                 WHERE {partition} AND what = ? AND seq >= ? AND seq <= ?"
            )),
            recalled: Statement::new(format!(
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
            self.cql.write(&self.leave, effect),
            self.list_pin(place, seq, &row.changed.asked, ver),
        )?;
        Ok(())
    }

    /// Lists a pin, or takes it off the list.
    async fn list_pin(
        &self,
        (kind, low, high): (i8, i64, i64),
        seq: i64,
        asked: &ChangeRequest,
        ver: i64,
    ) -> Result<()> {
        let subject = asked.subject.get();
        match asked.change {
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
        wanted: i64,
        last: i64,
    ) -> Result<Option<i64>> {
        let (kind, low, high) = key(conversation);
        let mut next = last;
        while next > 0 {
            let block = next >> CHANGE_BITS;
            let values = (kind, low, high, block, next, PAGE);
            let rows: Vec<(i64, i64)> = self.cql.rows(&self.downward, values).await?;
            for &(rev, ver) in &rows {
                match ver.cmp(&wanted) {
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
        wanted: i64,
        first: i64,
    ) -> Result<Option<i64>> {
        let (kind, low, high) = key(conversation);
        let mut next = first;
        loop {
            let values = (kind, low, high, next >> CHANGE_BITS, next, PAGE);
            let rows: Vec<(i64, i64)> = self.cql.rows(&self.behind, values).await?;
            for &(rev, ver) in &rows {
                match ver.cmp(&wanted) {
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
        let found: Vec<ChangeColumns> = self.cql.rows(&self.one, values).await?;
        found
            .into_iter()
            .next()
            .map(ChangeColumns::changed)
            .transpose()
    }

    /// Reads the effects of one kind between two positions of one partition.
    async fn left(
        &self,
        conversation: ConversationId,
        what: i8,
        seqs: &RangeInclusive<i64>,
    ) -> Result<Vec<StoredAltered>> {
        let (kind, low, high) = key(conversation);
        let (first, last) = (*seqs.start(), *seqs.end());
        let values = (kind, low, high, first >> ALTERED_BITS, what, first, last);
        self.cql.rows(&self.altered, values).await
    }
}

impl ChangeColumns {
    fn changed(self) -> Result<OrderedChange> {
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
    fn apply(&self, altered: &mut BTreeMap<Seq, Overlay>) -> Result<()> {
        let seq = Seq(self.seq as u64);
        let version = write_time::version_of(self.ver).ok_or_else(torn)?;
        let change = change(self.what, &self.reaction, self.is_on, &self.content)?;
        if !change.has_effect() {
            return Ok(());
        }
        // Effects are stored without id and rev of their change; the fold needs neither.
        let nobody = MessageId::floor_of(Timestamp::from_millis(self.tm));
        let changed = OrderedChange {
            rev: 0,
            seq,
            asked: ChangeRequest {
                id: nobody,
                send_id: SendId::from_bytes([0; 16]),
                subject: nobody,
                by: user(self.done_by)?,
                at: Timestamp::from_millis(self.tm),
                change,
            },
        };
        altered.entry(seq).or_default().apply(version, &changed);
        Ok(())
    }
}

#[async_trait]
impl ChangeStore for ScyllaChanges {
    async fn save(&self, changes: Vec<ChangeRow>) -> Result<()> {
        let rows = changes.iter().map(rows_of).collect::<Result<Vec<_>>>()?;
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
        after: u64,
        limit: usize,
    ) -> Result<Vec<OrderedChange>> {
        let (kind, low, high) = key(conversation);
        let Ok(first) = number(after.saturating_add(1)) else {
            return Ok(Vec::new());
        };
        let (mut next, mut found) = (first, Vec::new());
        while found.len() < limit {
            let block = next >> CHANGE_BITS;
            let wanted = (limit - found.len()).min(1 << CHANGE_BITS) as i32;
            let values = (kind, low, high, block, next, wanted);
            let rows: Vec<ChangeColumns> = self.cql.rows(&self.upward, values).await?;
            for row in rows {
                next = row.rev + 1;
                found.push(row.changed()?);
            }
            // Revs are dense: a partition that ends before its last rev is the last one.
            if next >> CHANGE_BITS == block {
                break;
            }
        }
        Ok(found)
    }

    async fn of_record(
        &self,
        conversation: ConversationId,
        record: Version,
        search: ChangeSearch,
    ) -> Result<Option<OrderedChange>> {
        let wanted = write_time::of_version(SEAM, record)?;
        let rev = match search {
            ChangeSearch::UpTo(last) => self.rev_below(conversation, wanted, number(last)?).await?,
            ChangeSearch::Behind(rev) => {
                let first = number(rev.saturating_add(1))?;
                self.rev_above(conversation, wanted, first).await?
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
        let after = last.saturating_sub(SEARCH as i64).max(0);
        let blocks = (after >> CHANGE_BITS)..=(last >> CHANGE_BITS);
        for block in blocks.rev() {
            let (kind, low, high) = key(conversation);
            let values = (kind, low, high, block, after, last);
            let rows: Vec<(i64, i64, Uuid, i64, i64)> = self.cql.rows(&self.sends, values).await?;
            let same = |row: &&(i64, i64, Uuid, i64, i64)| {
                row.1 == by.get() && row.2 == uuid(send_id) && row.4 != NOWHERE
            };
            let Some(&(rev, _, _, ver, _)) = rows.iter().rev().find(same) else {
                continue;
            };
            let version = write_time::version_of(ver).ok_or_else(torn)?;
            let found = self.at(conversation, rev).await?;
            return Ok(found.map(|changed| (version, changed)));
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
        let asked = blocks
            .iter()
            .flat_map(|seqs| kinds.map(|what| (what, seqs)));
        let asked = asked.map(|(what, seqs)| self.left(conversation, what, seqs));
        let mut altered = BTreeMap::new();
        for left in self.cql.all(asked.collect()).await?.into_iter().flatten() {
            left.apply(&mut altered)?;
        }
        Ok(altered)
    }

    async fn altered_each(&self, places: &[(ConversationId, Seq)]) -> Result<Vec<Overlay>> {
        let mut asked = Vec::with_capacity(3 * places.len());
        for (place, &(conversation, seq)) in places.iter().enumerate() {
            for seqs in blocks(seq, seq) {
                for what in [RECALL, EDIT, REACT] {
                    let seqs = seqs.clone();
                    asked.push(async move {
                        let left = self.left(conversation, what, &seqs).await?;
                        Ok((place, left))
                    });
                }
            }
        }
        let mut altered = vec![BTreeMap::new(); places.len()];
        for (place, left) in self.cql.all(asked).await? {
            for left in left {
                left.apply(&mut altered[place])?;
            }
        }
        let altered = places.iter().zip(altered);
        Ok(altered
            .map(|((_, seq), mut altered)| altered.remove(seq).unwrap_or_default())
            .collect())
    }

    async fn recalled(&self, ranges: &[RecallRange]) -> Result<Vec<BTreeMap<Seq, UserId>>> {
        let mut asked = Vec::with_capacity(ranges.len());
        for (place, range) in ranges.iter().enumerate() {
            let until = write_time::of_version(SEAM, range.until)?;
            let (kind, low, high) = key(range.conversation);
            for seqs in blocks(range.after.next(), range.last) {
                asked.push(async move {
                    let (first, last) = (*seqs.start(), *seqs.end());
                    let values = (kind, low, high, first >> ALTERED_BITS, first, last);
                    let mut rows: Vec<(i64, i64, i64)> =
                        self.cql.rows(&self.recalled, values).await?;
                    rows.retain(|(_, _, ver)| *ver <= until);
                    Ok((place, rows))
                });
            }
        }
        let mut recalled = vec![BTreeMap::new(); ranges.len()];
        for (place, rows) in self.cql.all(asked).await? {
            for (seq, author, _) in rows {
                recalled[place].insert(Seq(seq as u64), user(author)?);
            }
        }
        Ok(recalled)
    }

    async fn pins(
        &self,
        conversation: ConversationId,
        before: Seq,
        limit: usize,
    ) -> Result<Vec<(Seq, MessageId)>> {
        let (kind, low, high) = key(conversation);
        let before = i64::try_from(before.0).unwrap_or(i64::MAX);
        let limit = i32::try_from(limit).unwrap_or(i32::MAX);
        let values = (kind, low, high, before, limit);
        let rows: Vec<(i64, i64)> = self.cql.rows(&self.pins, values).await?;
        let pins = rows
            .into_iter()
            .map(|(seq, subject)| Ok((Seq(seq as u64), id(subject)?)));
        pins.collect()
    }
}

/// Splits the positions from `first` to `last`, both included, by partition.
fn blocks(first: Seq, last: Seq) -> Vec<RangeInclusive<i64>> {
    const MOST: u64 = i64::MAX as u64;
    let (mut next, last) = (first.0.clamp(1, MOST) as i64, last.0.min(MOST) as i64);
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

fn change(what: i8, reaction: &str, on: bool, content: &Bytes) -> Result<MessageChange> {
    match what {
        RECALL => Ok(MessageChange::Recall),
        EDIT => {
            decode(SEAM, content).map(|said: EditedContent| MessageChange::Edit(said.content()))
        }
        REACT if reaction == PIN => Ok(MessageChange::Pin { on }),
        // Kinds of a later version, among the reactions as pins are, or beside them. Refused, no page
        // would have the others.
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
fn rows_of(row: &ChangeRow) -> Result<(NewChange, Option<NewAltered>)> {
    let (kind, low, high) = key(row.conversation);
    let ver = write_time::of_version(SEAM, row.version)?;
    let OrderedChange { rev, seq, asked } = &row.changed;
    let (rev, seq) = (number(*rev)?, write_time::of_seq(SEAM, *seq)?);
    let seq = match (seq, row.changed.has_died()) {
        (Some(seq), false) => seq,
        (None, true) => NOWHERE,
        (None, false) | (Some(_), true) => {
            return Err(Error::conflict(SEAM, "a change of no position"));
        }
    };
    let (what, reaction, is_on, content) = match &asked.change {
        MessageChange::Recall => (RECALL, String::new(), true, Bytes::new()),
        MessageChange::Edit(content) => (
            EDIT,
            String::new(),
            true,
            encode(SEAM, &EditedContent::of(content))?,
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
    let (by, tm) = (asked.by.get(), asked.at.millis());
    let left = (seq != NOWHERE).then(|| NewAltered {
        kind,
        low,
        high,
        block: seq >> ALTERED_BITS,
        what,
        seq,
        reaction: reaction.clone(),
        uid: match &asked.change {
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
        subject: asked.subject.get(),
        author,
        id: asked.id.get(),
        send_id: uuid(asked.send_id),
        uid: by,
        tm,
        what,
        reaction,
        is_on,
        content,
        ver,
        written: ver,
    };
    Ok((change, left))
}

fn number(rev: u64) -> Result<i64> {
    i64::try_from(rev).map_err(|_| Error::conflict(SEAM, "a rev beyond all that is counted"))
}

fn id(stored: i64) -> Result<MessageId> {
    MessageId::new(stored).map_err(|_| torn())
}

fn user(stored: i64) -> Result<UserId> {
    UserId::new(stored).map_err(|_| torn())
}

fn uuid(send_id: SendId) -> Uuid {
    Uuid::from_bytes(*send_id.as_bytes())
}

fn torn() -> Error {
    Error::corrupt(SEAM, "a change has columns that mean nothing")
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
        let read = |what, reaction: &str| change(what, reaction, true, &Bytes::new());
        assert_eq!(read(3, "").expect("reads"), unknown);
        assert_eq!(read(-1, "+1").expect("reads"), unknown);
        assert_eq!(read(REACT, "\u{0}poll").expect("reads"), unknown);
        let pin = MessageChange::Pin { on: true };
        assert_eq!(read(REACT, PIN).expect("reads"), pin);
        assert!(read(REACT, "").is_err() && read(EDIT, "").is_err(), "torn");
        let mut altered = BTreeMap::new();
        let left = StoredAltered {
            what: REACT,
            seq: 4,
            reaction: "\u{0}poll".to_owned(),
            done_by: 1,
            tm: 5,
            is_on: true,
            content: Bytes::new(),
            ver: 9,
        };
        left.apply(&mut altered).expect("reads");
        assert_eq!(altered, BTreeMap::new());
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
        let asked = |change| ChangeRequest {
            id: self::id(20).expect("an id"),
            send_id: SendId::from_bytes([7; 16]),
            subject: id,
            by: user,
            at: Timestamp::from_millis(5),
            change,
        };
        let row = |changed| ChangeRow {
            conversation: conversation.expect("two users"),
            version,
            author: user,
            changed,
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
            let asked = asked(change);
            let (dead, effect) = rows_of(&row(OrderedChange::died(4, &asked))).expect("a row");
            assert!(effect.is_none());
            let changed = OrderedChange {
                rev: 4,
                seq: Seq(2),
                asked,
            };
            let (made, effect) = rows_of(&row(changed)).expect("rows");
            assert!(effect.is_some());
            assert_eq!(
                (dead.rev, dead.ver, dead.written),
                (made.rev, made.ver, made.written)
            );
            assert_eq!((dead.id, dead.uid, dead.tm), (made.id, made.uid, made.tm));
            assert!(dead.seq < made.seq && dead.subject < made.subject);
            assert!(dead.author < made.author && dead.send_id < made.send_id);
            assert!(dead.what <= made.what && dead.reaction <= made.reaction);
            assert!(dead.is_on <= made.is_on && dead.content <= made.content);
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
