//! Columns of a message.

use bytes::Bytes;
use protocol::message::Content;
use protocol::{MessageId, Seq};
use scylla::SerializeRow;
use scylla::value::CqlVarint;

use crate::scylla::{SeamCql, write_time};
use crate::{Error, Result};

/// Limit of a body: servers refuse writes of some megabytes for good, and nothing near this size
/// passes a boat.
const DATA_MAX: usize = 1 << 20;

/// Content of a row to be written. Empty fields are zeros.
#[derive(Clone, Debug, SerializeRow)]
pub(crate) struct NewContent {
    /// `kind` if it fits, else -1.
    mt: i8,
    draf: Bytes,
    pr: CqlVarint,
    #[scylla(rename = "ref")]
    reference: CqlVarint,
    kind: i32,
    priority: i32,
    enc: i32,
    sub: i32,
}

impl NewContent {
    /// `Conflict` if the content is too large.
    pub(crate) fn of(seam: &'static str, content: &Content) -> Result<NewContent> {
        let bytes = content.data.len();
        if bytes > DATA_MAX {
            let text = format!("a message of {bytes} bytes; at most {DATA_MAX} can be stored");
            return Err(Error::conflict(seam, text));
        }
        Ok(NewContent {
            mt: i8::try_from(content.kind).unwrap_or(-1),
            draf: content.data.clone(),
            pr: varint(content.key_print),
            reference: varint(content.reference.map_or(0, MessageId::get)),
            kind: content.kind,
            priority: content.priority,
            enc: content.encryption,
            sub: content.sub_kind,
        })
    }
}

/// Position of a row to be written; `Conflict` if it has none.
pub(crate) fn position(seam: &'static str, seq: Seq) -> Result<i64> {
    write_time::from_seq(seam, seq)?
        .ok_or_else(|| Error::conflict(seam, "a row without a position"))
}

pub(crate) fn seq(value: i64) -> Option<Seq> {
    u64::try_from(value).ok().filter(|seq| *seq > 0).map(Seq)
}

pub(crate) fn id(cql: &SeamCql, value: i64) -> Result<MessageId> {
    let torn = |_| Error::corrupt(cql.seam(), "a column holds no message id");
    MessageId::new(value).map_err(torn)
}

/// Zero means none.
pub(crate) fn optional_id(value: i64) -> Option<Option<MessageId>> {
    match value {
        0 => Some(None),
        id => MessageId::new(id).ok().map(Some),
    }
}

fn varint(number: i64) -> CqlVarint {
    CqlVarint::from_signed_bytes_be(number.to_be_bytes().to_vec())
}

/// `None` if larger than a bigint; nothing of ours is.
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

    /// The column holds small kinds; another column holds every kind.
    #[test]
    fn small_kinds_are_types_of_the_specification() {
        for (kind, mt) in [(0, 0), (1, 1), (127, 127), (128, -1), (1000, -1)] {
            let content = Content {
                kind,
                ..Content::text("")
            };
            let row = NewContent::of("test", &content).expect("fits");
            assert_eq!((row.mt, row.kind), (mt, kind));
        }
    }

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
