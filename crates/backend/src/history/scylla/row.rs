//! A row as columns. Those of the specification bear its names; what they cannot hold stands beside them.

use bytes::Bytes;
use protocol::history::{Direction, PrivateRow};
use protocol::id::Uuid;
use protocol::message::Content;
use protocol::{DeviceId, MessageId, Options, SendId, Seq, Timestamp, UserId};
use scylla::value::CqlVarint;
use scylla::{DeserializeRow, SerializeRow};

use super::SEAM;
use super::pair::Pair;
use crate::Result;
use crate::scylla::messages::columns::{self, NewContent, number, optional_id, seq};
use crate::scylla::messages::{Standing, Stored, windows};
use crate::scylla::write_time;

/// `ct`: 0 plain, 2 encrypted. What the system says (1) is no private row.
const PLAIN: i8 = 0;
const ENCRYPTED: i8 = 2;

/// A row to be written: all its columns but the statuses. Where there is nothing, zero stands, so that a
/// later version leaves nothing of an earlier one.
#[derive(Clone, Debug, SerializeRow)]
pub(super) struct NewRow {
    uid1: i64,
    pk: i16,
    id: i64,
    uid2: i64,
    /// The last eight bytes of the send_id, for who knows sends by a number.
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
    /// `Conflict` for what the columns cannot hold.
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
            io: match row.direction {
                Direction::Out => 0,
                Direction::In => 1,
            },
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

    /// Both sides stand at one position under one id.
    pub(super) fn standing(&self, pair: Pair) -> (Pair, i64, Standing) {
        let Self { seq, ver, id, .. } = *self;
        (pair, seq, Standing { ver, id })
    }
}

/// A row as it was read. Where only a register was written so far, all but the id are missing.
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

pub(super) fn direction(io: i8) -> Option<Direction> {
    match io {
        0 => Some(Direction::Out),
        1 => Some(Direction::In),
        _ => None,
    }
}
