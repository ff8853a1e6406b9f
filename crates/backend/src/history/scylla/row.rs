//! A row as columns. Those of the specification bear its names; what they cannot hold stands beside them.

use bytes::Bytes;
use protocol::history::{Direction, PrivateRow};
use protocol::id::Uuid;
use protocol::message::Content;
use protocol::{DeviceId, MessageId, Options, SendId, Seq, Timestamp, UserId};
use scylla::value::CqlVarint;
use scylla::{DeserializeRow, SerializeRow};

use super::{SEAM, buckets, no_id};
use crate::scylla::write_time;
use crate::{Error, Result};

/// A server refuses a write of some megabytes for good; nothing near this passes a boat.
const DATA_MAX: usize = 1 << 20;

/// `ct`: 0 plain, 2 encrypted. What the system says (1) is no private row.
const PLAIN: i8 = 0;
const ENCRYPTED: i8 = 2;

pub(super) const INSERT: &str = "INSERT INTO pchat (uid1, pk, id, uid2, usid, tm, io, ct, mt, draf, pr, ref, \
    seq, prev, incoming, send_id, ver, dev, opt, kind, priority, enc, sub) \
    VALUES (:uid1, :pk, :id, :uid2, :usid, :tm, :io, :ct, :mt, :draf, :pr, :ref, \
    :seq, :prev, :incoming, :send_id, :ver, :dev, :opt, :kind, :priority, :enc, :sub) \
    USING TIMESTAMP :written";

pub(super) const COLUMNS: &str = "id, uid2, tm, io, draf, pr, ref, seq, prev, incoming, send_id, ver, dev, opt, kind, \
    priority, enc, sub";

/// A row to be written: all its columns but the statuses. Where there is nothing, zero stands, so that a
/// later version leaves nothing of an earlier one.
#[derive(Clone, Debug, SerializeRow)]
pub(super) struct NewRow {
    pub(super) uid1: i64,
    pub(super) pk: i16,
    pub(super) id: i64,
    uid2: i64,
    /// The last eight bytes of the send_id, for who knows sends by a number.
    usid: i64,
    tm: i64,
    io: i8,
    ct: i8,
    /// `kind`, where it fits; else -1.
    mt: i8,
    draf: Bytes,
    pr: CqlVarint,
    #[scylla(rename = "ref")]
    reference: CqlVarint,
    pub(super) seq: i64,
    prev: i64,
    incoming: i64,
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
    pub(super) fn of(row: &PrivateRow) -> Result<NewRow> {
        let content = &row.content;
        if content.data.len() > DATA_MAX {
            let text = format!(
                "a message of {} bytes; at most {DATA_MAX} are kept",
                content.data.len()
            );
            return Err(Error::conflict(SEAM, text));
        }
        let Some(seq) = write_time::of_seq(SEAM, row.seq)? else {
            return Err(Error::conflict(SEAM, "a row without a position"));
        };
        let ver = write_time::of_version(SEAM, row.version)?;
        let send_id = row.send_id.as_bytes();
        Ok(NewRow {
            uid1: row.owner.get(),
            pk: buckets::of(row.id),
            id: row.id.get(),
            uid2: row.peer.get(),
            usid: u128::from_be_bytes(*send_id) as i64,
            tm: row.accepted_at.millis(),
            io: match row.direction {
                Direction::Out => 0,
                Direction::In => 1,
            },
            ct: match content.encryption {
                0 => PLAIN,
                _ => ENCRYPTED,
            },
            mt: i8::try_from(content.kind).unwrap_or(-1),
            draf: content.data.clone(),
            pr: varint(content.key_print),
            reference: varint(content.reference.map_or(0, MessageId::get)),
            seq,
            prev: row.prev.map_or(0, MessageId::get),
            incoming: row.incoming as i64,
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

/// A row as it was read. Where only a register was written so far, all but the id are missing.
#[derive(Debug, DeserializeRow)]
pub(super) struct StoredRow {
    pub(super) id: i64,
    uid2: Option<i64>,
    tm: Option<i64>,
    io: Option<i8>,
    draf: Option<Bytes>,
    pr: Option<CqlVarint>,
    #[scylla(rename = "ref")]
    reference: Option<CqlVarint>,
    seq: Option<i64>,
    prev: Option<i64>,
    /// Rows of before migration 7 have none.
    incoming: Option<i64>,
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
    pub(super) fn of(self, owner: UserId) -> Result<Option<PrivateRow>> {
        if self.ver.is_none() {
            return Ok(None);
        }
        let id = self.id;
        let row = self.whole(owner);
        let row = row.ok_or_else(|| {
            let text = format!("row {id} of {owner} has columns that mean nothing");
            Error::corrupt(SEAM, text)
        })?;
        Ok(Some(row))
    }

    fn whole(self, owner: UserId) -> Option<PrivateRow> {
        Some(PrivateRow {
            owner,
            peer: UserId::new(self.uid2?).ok()?,
            direction: direction(self.io?)?,
            id: MessageId::new(self.id).ok()?,
            accepted_at: Timestamp::from_millis(self.tm?),
            seq: seq(self.seq?)?,
            prev: optional_id(self.prev?)?,
            incoming: u64::try_from(self.incoming.unwrap_or(0)).ok()?,
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

pub(super) fn direction(io: i8) -> Option<Direction> {
    match io {
        0 => Some(Direction::Out),
        1 => Some(Direction::In),
        _ => None,
    }
}

pub(crate) fn seq(stored: i64) -> Option<Seq> {
    u64::try_from(stored).ok().filter(|seq| *seq > 0).map(Seq)
}

pub(super) fn id(stored: i64) -> Result<MessageId> {
    MessageId::new(stored).map_err(|_| no_id())
}

/// Zero stands for none.
pub(crate) fn optional_id(stored: i64) -> Option<Option<MessageId>> {
    match stored {
        0 => Some(None),
        id => MessageId::new(id).ok().map(Some),
    }
}

pub(crate) fn varint(number: i64) -> CqlVarint {
    CqlVarint::from_signed_bytes_be(number.to_be_bytes().to_vec())
}

/// `None` for what is larger than a bigint; nothing of ours is.
pub(crate) fn number(varint: &CqlVarint) -> Option<i64> {
    let bytes = varint.as_signed_bytes_be_slice();
    let sign = if bytes.first()? & 0x80 == 0 { 0 } else { 0xff };
    let mut whole = [sign; 8];
    let start = 8usize.checked_sub(bytes.len())?;
    whole[start..].copy_from_slice(bytes);
    Some(i64::from_be_bytes(whole))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn varints_hold_every_bigint_and_nothing_else_is_misread() {
        for n in [0, 1, -1, 127, 128, -128, -129, 1 << 40, i64::MAX, i64::MIN] {
            assert_eq!(number(&varint(n)), Some(n));
            let short = CqlVarint::from_signed_bytes_be(vec![n as i8 as u8]);
            assert_eq!(number(&short), Some(i64::from(n as i8)));
        }
        assert_eq!(number(&CqlVarint::from_signed_bytes_be(vec![1; 9])), None);
        assert_eq!(number(&CqlVarint::from_signed_bytes_be_slice(&[])), None);
    }
}
