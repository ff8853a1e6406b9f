//! A row as columns. Columns of the specification bear its names; others hold what they cannot.

use bytes::Bytes;
use protocol::history::{Direction, PrivateRow};
use protocol::id::Uuid;
use protocol::message::Content;
use protocol::{DeviceId, MessageId, Options, SendId, Seq, Timestamp, UserId};
use scylla::value::CqlVarint;
use scylla::{DeserializeRow, SerializeRow};

use super::SEAM;
use super::pair::UserPair;
use crate::Result;
use crate::scylla::messages::columns::{self, NewContent, number, optional_id, seq};
use crate::scylla::messages::{PositionEntry, Stored, windows};
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
    pub(super) fn of(row: &PrivateRow) -> Result<NewRow> {
        let ver = write_time::of_version(SEAM, row.version)?;
        let send_id = row.send_id.as_bytes();
        Ok(NewRow {
            uid1: row.owner.get(),
            pk: windows::of(row.id),
            id: row.id.get(),
            uid2: row.peer.get(),
            usid: u128::from_be_bytes(*send_id) as i64,
            tm: row.accepted_at.millis(),
            io: io(row.direction),
            ct: match row.content.encryption {
                0 => PLAIN,
                _ => ENCRYPTED,
            },
            seq: columns::position(SEAM, row.seq)?,
            prev: row.prev.map_or(0, MessageId::get),
            incoming: row.incoming as i64,
            send_id: Uuid::from_bytes(*send_id),
            ver,
            dev: row.device.as_str().to_owned(),
            opt: row.options.bits() as i8,
            content: NewContent::of(SEAM, &row.content)?,
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

impl Stored for StoredRow {
    type Owner = UserId;
    type Row = PrivateRow;

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

    fn seq(row: &PrivateRow) -> Seq {
        row.seq
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
    use protocol::ConversationId;
    use protocol::message::{Message, Placed, Position, Recipient};

    use super::*;
    use crate::test_ids::{at, content};

    // proves S0-51 in part, S0-53 in part: what no reader of ours reads back.
    #[test]
    fn a_row_says_which_side_it_is_and_whether_it_is_encrypted() {
        let user = |number| UserId::new(number).expect("positive");
        let id = MessageId::floor_of(at(7));
        let rows = |encryption| {
            let placed = Placed {
                conversation: ConversationId::private(user(1), user(2)).expect("two"),
                position: Position {
                    seq: Seq(1),
                    prev: None,
                },
                message: Message {
                    id,
                    from: user(2),
                    to: Recipient::User(user(1)),
                    accepted_at: id.timestamp(),
                    device: DeviceId::new("d").expect("a name"),
                    send_id: SendId::from_bytes([1, 2, 3, 4, 5, 6, 7, 8, 0, 0, 0, 0, 0, 0, 1, 4]),
                    options: Options::CHAT,
                    content: Content {
                        encryption,
                        ..content()
                    },
                },
            };
            let version = protocol::history::Version {
                epoch: 1,
                offset: 1,
            };
            let rows = PrivateRow::pair_of(&placed, 1, version).expect("private");
            rows.map(|row| NewRow::of(&row).expect("fits"))
        };
        for (encryption, ct) in [(0, 0), (1, 2), (9, 2)] {
            let [out, incoming] = rows(encryption);
            assert_eq!((out.uid1, out.uid2, out.io), (2, 1, 0));
            assert_eq!((incoming.uid1, incoming.uid2, incoming.io), (1, 2, 1));
            assert!(out.is_the_senders() && !incoming.is_the_senders());
            for row in [out, incoming] {
                assert_eq!((row.usid, row.ct, row.id), (0x0104, ct, id.get()));
            }
        }
    }
}
