//! A row as columns. Columns of the specification bear its names; others hold what they cannot.

use bytes::Bytes;
use protocol::history::Direction;
use protocol::id::Uuid;
use protocol::message::Content;
use protocol::message_row::{CopySide, MessageRow, Owner};
use protocol::{
    ConversationId, DeviceId, Message, MessageId, Options, Placed, Position, Recipient, SendId,
    Timestamp, UserId,
};
use scylla::value::CqlVarint;
use scylla::{DeserializeRow, SerializeRow};

use super::pair::UserPair;
use crate::Result;
use crate::messages::SEAM;
use crate::messages::owners::UserCopy;
use crate::scylla::messages::columns::{self, NewContent, number, optional_id, seq};
use crate::scylla::messages::{PositionEntry, ScyllaRow, windows};
use crate::scylla::write_time;

/// `ct`: 0 plain, 2 encrypted. System messages (1) are no private rows.
const PLAIN: i8 = 0;
const ENCRYPTED: i8 = 2;

/// Row to be written: all its columns but the statuses. Empty fields are zeros, so that a later
/// version leaves nothing of an earlier one.
#[derive(Clone, Debug, SerializeRow)]
pub(super) struct NewRow {
    uid1: i64,
    pk: i16,
    id: i64,
    uid2: i64,
    /// Last eight bytes of the send_id, for programs that know sends by a number.
    usid: i64,
    tm: i64,
    io: i8,
    ct: i8,
    seq: i64,
    prev: i64,
    incoming: i64,
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
    pub(super) fn of(copy: &UserCopy) -> Result<NewRow> {
        let Placed {
            message, position, ..
        } = &copy.row.placed;
        let ver = write_time::from_version(SEAM, copy.row.version)?;
        let send_id = message.send_id.as_bytes();
        Ok(NewRow {
            uid1: copy.owner.get(),
            pk: windows::of(message.id),
            id: message.id.get(),
            uid2: copy.peer.get(),
            usid: u128::from_be_bytes(*send_id) as i64,
            tm: message.accepted_at.millis(),
            io: io(copy.side.direction),
            ct: match message.content.encryption {
                0 => PLAIN,
                _ => ENCRYPTED,
            },
            seq: columns::position(SEAM, position.seq)?,
            prev: position.prev.map_or(0, MessageId::get),
            incoming: copy.side.incoming_count as i64,
            send_id: Uuid::from_bytes(*send_id),
            ver,
            dev: message.device.as_str().to_owned(),
            opt: message.options.bits() as i8,
            content: NewContent::of(SEAM, &message.content)?,
            written: ver,
        })
    }

    pub(super) fn is_the_senders(&self) -> bool {
        self.io == io(Direction::Out)
    }

    /// Both sides share one position and one id.
    pub(super) fn standing(&self, pair: UserPair) -> (UserPair, i64, PositionEntry) {
        let Self { seq, ver, id, .. } = *self;
        (pair, seq, PositionEntry { ver, id })
    }
}

/// Row as read. All columns but the id are missing if only a register was written so far.
#[derive(Debug, DeserializeRow)]
pub(super) struct StoredRow {
    id: i64,
    uid2: Option<i64>,
    tm: Option<i64>,
    io: Option<i8>,
    draf: Option<Bytes>,
    pr: Option<CqlVarint>,
    #[scylla(rename = "ref")]
    reference: Option<CqlVarint>,
    seq: Option<i64>,
    prev: Option<i64>,
    /// Rows from before migration 7 have none.
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

impl ScyllaRow for StoredRow {
    type Owner = UserId;

    const COLUMNS: &'static str = "id, uid2, tm, io, draf, pr, ref, seq, prev, incoming, send_id, ver, dev, opt, kind, \
        priority, enc, sub";
    const NEW: &'static str = "uid1, pk, id, uid2, usid, tm, io, ct, mt, draf, pr, ref, \
        seq, prev, incoming, send_id, ver, dev, opt, kind, priority, enc, sub";

    fn id(&self) -> i64 {
        self.id
    }

    fn was_written(&self) -> bool {
        self.ver.is_some()
    }

    fn whole(self, owner: UserId) -> Option<MessageRow> {
        let peer = UserId::new(self.uid2?).ok()?;
        let direction = direction(self.io?)?;
        let (from, to) = match direction {
            Direction::Out => (owner, peer),
            Direction::In => (peer, owner),
        };
        Some(MessageRow {
            owner: Owner::User(owner),
            placed: Placed {
                conversation: ConversationId::private(owner, peer)?,
                position: Position {
                    seq: seq(self.seq?)?,
                    prev: optional_id(self.prev?)?,
                },
                message: Message {
                    id: MessageId::new(self.id).ok()?,
                    from,
                    to: Recipient::User(to),
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
            side: Some(CopySide {
                direction,
                incoming_count: u64::try_from(self.incoming.unwrap_or(0)).ok()?,
            }),
        })
    }
}

fn io(direction: Direction) -> i8 {
    match direction {
        Direction::Out => 0,
        Direction::In => 1,
    }
}

pub(super) fn direction(io: i8) -> Option<Direction> {
    match io {
        0 => Some(Direction::Out),
        1 => Some(Direction::In),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::messages::contract::Talk;
    use crate::messages::owners;
    use crate::test_ids::TestIds;

    // proves S0-51 in part, S0-53 in part: what no reader of ours reads back.
    #[test]
    fn a_row_says_which_side_it_is_and_whether_it_is_encrypted() {
        let fresh = TestIds::new(1);
        let talk = Talk::private(&fresh).back();
        let (from, to) = (talk.from.get(), talk.receiver().get());
        assert!(from > to, "the sender has the larger number");
        for (encryption, ct) in [(0, 0), (1, 2), (9, 2)] {
            let mut rows = talk.rows(fresh.message(), 1, 1);
            for row in &mut rows {
                let message = &mut row.placed.message;
                message.send_id =
                    SendId::from_bytes([1, 2, 3, 4, 5, 6, 7, 8, 0, 0, 0, 0, 0, 0, 1, 4]);
                message.content.encryption = encryption;
            }
            let id = rows[0].id().get();
            let (copies, _) = owners::rows(rows).expect("their owners'");
            let new = copies.iter().map(|copy| NewRow::of(copy).expect("fits"));
            let new: Vec<NewRow> = new.collect();
            let [out, inbound] = &new[..] else {
                panic!("two rows: {new:?}");
            };
            assert_eq!((out.uid1, out.uid2, out.io), (from, to, 0));
            assert_eq!((inbound.uid1, inbound.uid2, inbound.io), (to, from, 1));
            assert!(out.is_the_senders() && !inbound.is_the_senders());
            for row in [out, inbound] {
                assert_eq!((row.usid, row.ct, row.id), (0x0104, ct, id));
            }
        }
    }
}
