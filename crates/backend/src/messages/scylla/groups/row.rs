//! A row as columns. Columns of the specification (S0-61c) bear its names; others hold what they
//! cannot.

use bytes::Bytes;
use protocol::id::Uuid;
use protocol::message::Content;
use protocol::message_row::{MessageRow, Owner};
use protocol::{
    ConversationId, DeviceId, GroupId, Message, MessageId, Options, Placed, Position, Recipient,
    SendId, Timestamp, UserId,
};
use scylla::value::CqlVarint;
use scylla::{DeserializeRow, SerializeRow};

use super::key::{Group, Member};
use crate::Result;
use crate::messages::SEAM;
use crate::messages::owners::GroupMessage;
use crate::scylla::messages::columns::{self, NewContent, number, optional_id, seq};
use crate::scylla::messages::{PositionEntry, ScyllaRow, windows};
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
    pub(super) fn of(GroupMessage { group, row }: &GroupMessage) -> Result<NewRow> {
        let Placed {
            message, position, ..
        } = &row.placed;
        let ver = write_time::from_version(SEAM, row.version)?;
        let send_id = message.send_id.as_bytes();
        Ok(NewRow {
            gid: group.get(),
            pk: windows::of(message.id),
            id: message.id.get(),
            uid: message.from.get(),
            usid: u128::from_be_bytes(*send_id) as i64,
            tm: message.accepted_at.millis(),
            res: NOTHING,
            st: NOTHING,
            ct: NORMAL,
            seq: columns::position(SEAM, position.seq)?,
            prev: position.prev.map_or(0, MessageId::get),
            send_id: Uuid::from_bytes(*send_id),
            ver,
            dev: message.device.as_str().to_owned(),
            opt: message.options.bits() as i8,
            content: NewContent::of(SEAM, &message.content)?,
            written: ver,
        })
    }

    pub(super) fn group_entry(&self) -> (Group, i64, PositionEntry) {
        (Group { gid: self.gid }, self.seq, self.position_entry())
    }

    pub(super) fn member_entry(&self) -> (Member, i64, PositionEntry) {
        let NewRow { gid, uid, .. } = *self;
        (Member { gid, uid }, self.seq, self.position_entry())
    }

    fn position_entry(&self) -> PositionEntry {
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

impl ScyllaRow for StoredRow {
    type Owner = GroupId;

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

    fn whole(self, group: GroupId) -> Option<MessageRow> {
        Some(MessageRow {
            owner: Owner::Group(group),
            placed: Placed {
                conversation: ConversationId::Group(group),
                position: Position {
                    seq: seq(self.seq?)?,
                    prev: optional_id(self.prev?)?,
                },
                message: Message {
                    id: MessageId::new(self.id).ok()?,
                    from: UserId::new(self.uid?).ok()?,
                    to: Recipient::Group(group),
                    accepted_at: Timestamp::from_millis(self.tm?),
                    device: DeviceId::new(&self.dev?).ok()?,
                    send_id: SendId::from_uuid(self.send_id?),
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
                },
            },
            version: write_time::to_version(self.ver?)?,
            side: None,
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::messages::contract::Talk;
    use crate::test_ids::TestIds;

    // proves S0-61a in part: what no reader of ours reads back.
    #[test]
    fn a_row_is_no_broadcast_and_keeps_no_receipt() {
        let fresh = TestIds::new(1);
        let talk = Talk::group(&fresh);
        let mut row = talk.row(fresh.message(), 3, 1);
        row.placed.message.send_id =
            SendId::from_bytes([9, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 1, 4]);
        let group = talk.group_id();
        let row = NewRow::of(&GroupMessage { group, row }).expect("fits");
        let columns = (row.gid, row.uid, row.usid);
        assert_eq!(columns, (group.get(), talk.from.get(), 0x0104));
        assert_eq!((row.res, row.st, row.ct), (0, 0, 0));
    }
}
