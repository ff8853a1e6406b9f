//! A row as columns. Columns of the specification (S0-61c) bear its names; others hold what they
//! cannot.

use bytes::Bytes;
use protocol::group::GroupRow;
use protocol::id::Uuid;
use protocol::message::Content;
use protocol::{DeviceId, GroupId, MessageId, Options, SendId, Seq, Timestamp, UserId};
use scylla::value::CqlVarint;
use scylla::{DeserializeRow, SerializeRow};

use super::SEAM;
use super::key::{Group, Member};
use crate::Result;
use crate::scylla::messages::columns::{self, NewContent, number, optional_id, seq};
use crate::scylla::messages::{PositionEntry, Stored, windows};
use crate::scylla::write_time;

/// `ct`: 0 normal, 1 broadcast. Messages of members are normal.
const NORMAL: i8 = 0;
/// `res` is reserved, and `st` is unused, as groups keep no receipts.
const NOTHING: i8 = 0;

/// Row to be written: all its columns but the register. Empty fields are zeros, so that a later
/// version leaves nothing of an earlier one.
#[derive(Clone, Debug, SerializeRow)]
pub(super) struct NewRow {
    gid: i64,
    pk: i16,
    id: i64,
    uid: i64,
    /// Last eight bytes of the send_id, for programs that know sends by a number.
    usid: i64,
    tm: i64,
    res: i8,
    st: i8,
    ct: i8,
    seq: i64,
    prev: i64,
    send_id: Uuid,
    ver: i64,
    dev: String,
    opt: i8,
    #[scylla(flatten)]
    content: NewContent,
    written: i64,
}

impl NewRow {
    /// `Conflict` if the columns cannot hold the row.
    pub(super) fn of(row: &GroupRow) -> Result<NewRow> {
        let ver = write_time::of_version(SEAM, row.version)?;
        let send_id = row.send_id.as_bytes();
        Ok(NewRow {
            gid: row.group.get(),
            pk: windows::of(row.id),
            id: row.id.get(),
            uid: row.from.get(),
            usid: u128::from_be_bytes(*send_id) as i64,
            tm: row.accepted_at.millis(),
            res: NOTHING,
            st: NOTHING,
            ct: NORMAL,
            seq: columns::position(SEAM, row.seq)?,
            prev: row.prev.map_or(0, MessageId::get),
            send_id: Uuid::from_bytes(*send_id),
            ver,
            dev: row.device.as_str().to_owned(),
            opt: row.options.bits() as i8,
            content: NewContent::of(SEAM, &row.content)?,
            written: ver,
        })
    }

    pub(super) fn in_group(&self) -> (Group, i64, PositionEntry) {
        (Group { gid: self.gid }, self.seq, self.standing())
    }

    pub(super) fn of_member(&self) -> (Member, i64, PositionEntry) {
        let NewRow { gid, uid, .. } = *self;
        (Member { gid, uid }, self.seq, self.standing())
    }

    fn standing(&self) -> PositionEntry {
        let NewRow { ver, id, .. } = *self;
        PositionEntry { ver, id }
    }
}

/// Row as read. All columns but the id are missing if only the register was written so far.
#[derive(Debug, DeserializeRow)]
pub(super) struct StoredRow {
    id: i64,
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

impl Stored for StoredRow {
    type Owner = GroupId;
    type Row = GroupRow;

    const COLUMNS: &'static str = "id, uid, tm, draf, pr, ref, seq, prev, send_id, ver, dev, opt, kind, \
        priority, enc, sub";
    const NEW: &'static str = "gid, pk, id, uid, usid, tm, res, st, ct, mt, draf, pr, ref, \
        seq, prev, send_id, ver, dev, opt, kind, priority, enc, sub";

    fn id(&self) -> i64 {
        self.id
    }

    fn was_written(&self) -> bool {
        self.ver.is_some()
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

    fn seq(row: &GroupRow) -> Seq {
        row.seq
    }
}

#[cfg(test)]
mod tests {
    use protocol::history::Version;

    use super::*;
    use crate::test_ids::{at, content};

    // proves S0-61a in part: what no reader of ours reads back.
    #[test]
    fn a_row_is_no_broadcast_and_keeps_no_receipt() {
        let id = MessageId::floor_of(at(7));
        let row = GroupRow {
            group: GroupId::new(5).expect("positive"),
            from: UserId::new(2).expect("positive"),
            id,
            accepted_at: id.timestamp(),
            seq: Seq(3),
            prev: None,
            send_id: SendId::from_bytes([9, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 1, 4]),
            device: DeviceId::new("d").expect("a name"),
            options: Options::CHAT,
            content: content(),
            version: Version {
                epoch: 1,
                offset: 1,
            },
        };
        let row = NewRow::of(&row).expect("fits");
        assert_eq!((row.gid, row.uid, row.usid), (5, 2, 0x0104));
        assert_eq!((row.res, row.st, row.ct), (0, 0, 0));
    }
}
