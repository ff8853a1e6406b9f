//! A row as columns. Those of the specification (S0-61c) bear its names; what they cannot hold stands beside
//! them.

use bytes::Bytes;
use protocol::group::GroupRow;
use protocol::id::Uuid;
use protocol::message::Content;
use protocol::{DeviceId, GroupId, MessageId, Options, SendId, Timestamp, UserId};
use scylla::value::CqlVarint;
use scylla::{DeserializeRow, SerializeRow};

use super::SEAM;
use crate::history::scylla::buckets;
use crate::history::scylla::row::{number, optional_id, seq, varint};
use crate::scylla::write_time;
use crate::{Error, Result};

/// A server refuses a write of some megabytes for good; nothing near this passes a boat.
const DATA_MAX: usize = 1 << 20;

/// `ct`: 0 normal, 1 broadcast. What members say is normal.
const NORMAL: i8 = 0;
/// `res` is reserved, and `st` has nothing to say, as groups keep no receipts.
const NOTHING: i8 = 0;

pub(super) const INSERT: &str = "INSERT INTO gchat (gid, pk, id, uid, usid, tm, res, st, ct, mt, draf, pr, ref, \
    seq, prev, send_id, ver, dev, opt, kind, priority, enc, sub) \
    VALUES (:gid, :pk, :id, :uid, :usid, :tm, :res, :st, :ct, :mt, :draf, :pr, :ref, \
    :seq, :prev, :send_id, :ver, :dev, :opt, :kind, :priority, :enc, :sub) \
    USING TIMESTAMP :written";

pub(super) const COLUMNS: &str = "id, uid, tm, draf, pr, ref, seq, prev, send_id, ver, dev, opt, kind, \
    priority, enc, sub";

/// A row to be written: all its columns but the register. Where there is nothing, zero stands, so that a later
/// version leaves nothing of an earlier one.
#[derive(Clone, Debug, SerializeRow)]
pub(super) struct NewRow {
    pub(super) gid: i64,
    pk: i16,
    pub(super) id: i64,
    pub(super) uid: i64,
    /// The last eight bytes of the send_id, for who knows sends by a number.
    usid: i64,
    tm: i64,
    res: i8,
    st: i8,
    ct: i8,
    /// `kind`, where it fits; else -1.
    mt: i8,
    draf: Bytes,
    pr: CqlVarint,
    #[scylla(rename = "ref")]
    reference: CqlVarint,
    pub(super) seq: i64,
    prev: i64,
    send_id: Uuid,
    pub(super) ver: i64,
    dev: String,
    opt: i8,
    kind: i32,
    priority: i32,
    enc: i32,
    sub: i32,
    written: i64,
}

impl NewRow {
    /// `Conflict` for what the columns cannot hold.
    pub(super) fn of(row: &GroupRow) -> Result<NewRow> {
        let content = &row.content;
        if content.data.len() > DATA_MAX {
            let bytes = content.data.len();
            let text = format!("a message of {bytes} bytes; at most {DATA_MAX} are kept");
            return Err(Error::conflict(SEAM, text));
        }
        let Some(seq) = write_time::of_seq(SEAM, row.seq)? else {
            return Err(Error::conflict(SEAM, "a row without a position"));
        };
        let ver = write_time::of_version(SEAM, row.version)?;
        let send_id = row.send_id.as_bytes();
        Ok(NewRow {
            gid: row.group.get(),
            pk: buckets::of(row.id),
            id: row.id.get(),
            uid: row.from.get(),
            usid: u128::from_be_bytes(*send_id) as i64,
            tm: row.accepted_at.millis(),
            res: NOTHING,
            st: NOTHING,
            ct: NORMAL,
            mt: i8::try_from(content.kind).unwrap_or(-1),
            draf: content.data.clone(),
            pr: varint(content.key_print),
            reference: varint(content.reference.map_or(0, MessageId::get)),
            seq,
            prev: row.prev.map_or(0, MessageId::get),
            send_id: Uuid::from_bytes(*send_id),
            ver,
            dev: row.device.as_str().to_owned(),
            opt: row.options.bits() as i8,
            kind: content.kind,
            priority: content.priority,
            enc: content.encryption,
            sub: content.sub_kind,
            written: ver,
        })
    }
}

/// A row as it was read. Where only the register was written so far, all but the id are missing.
#[derive(Debug, DeserializeRow)]
pub(super) struct StoredRow {
    pub(super) id: i64,
    uid: Option<i64>,
    tm: Option<i64>,
    draf: Option<Bytes>,
    pr: Option<CqlVarint>,
    #[scylla(rename = "ref")]
    reference: Option<CqlVarint>,
    seq: Option<i64>,
    prev: Option<i64>,
    send_id: Option<Uuid>,
    ver: Option<i64>,
    dev: Option<String>,
    opt: Option<i8>,
    kind: Option<i32>,
    priority: Option<i32>,
    enc: Option<i32>,
    sub: Option<i32>,
}

impl StoredRow {
    /// `None` for a row that was never written; `Corrupt` for one that means nothing.
    pub(super) fn of(self, group: GroupId) -> Result<Option<GroupRow>> {
        if self.ver.is_none() {
            return Ok(None);
        }
        let id = self.id;
        let row = self.whole(group).ok_or_else(|| {
            let text = format!("row {id} of group {group} has columns that mean nothing");
            Error::corrupt(SEAM, text)
        })?;
        Ok(Some(row))
    }

    fn whole(self, group: GroupId) -> Option<GroupRow> {
        Some(GroupRow {
            group,
            from: UserId::new(self.uid?).ok()?,
            id: MessageId::new(self.id).ok()?,
            accepted_at: Timestamp::from_millis(self.tm?),
            seq: seq(self.seq?)?,
            prev: optional_id(self.prev?)?,
            send_id: SendId::from_uuid(self.send_id?),
            device: DeviceId::new(&self.dev?).ok()?,
            options: Options::from_bits(u8::try_from(self.opt?).ok()?)?,
            content: Content {
                kind: self.kind?,
                data: self.draf?,
                priority: self.priority?,
                reference: optional_id(number(&self.reference?)?)?,
                encryption: self.enc?,
                sub_kind: self.sub?,
                key_print: number(&self.pr?)?,
                change: None,
            },
            version: write_time::version_of(self.ver?)?,
        })
    }
}
