//! One partition of the log: its retained and visible ranges, and its newest records in memory.

use std::collections::VecDeque;

use bytes::{BufMut, Bytes, BytesMut};
use parking_lot::Mutex;
use protocol::Timestamp;
use protocol::keys::Topic;

use super::super::{NewRecord, Partition, Record};
use super::SEAM;
use crate::embedded::{Engine, ScanOrder, Table};
use crate::{Error, Result};

/// Maximum number of newest records that a partition keeps in memory, whatever their size.
const TAIL_RECORDS: usize = 1024;

pub(super) struct PartitionLog {
    pub(super) partition: Partition,
    tail_bytes_max: usize,
    state: Mutex<State>,
}

struct State {
    /// First retained offset.
    first: u64,
    /// End of the durable records, the only ones readers see: an effect must not outlive its
    /// record, which a crash could still take back.
    visible: u64,
    /// The offset of the next record.
    next: u64,
    /// The newest records, as they are stored; the last has offset `next - 1`.
    tail: VecDeque<Bytes>,
    tail_bytes: usize,
}

impl PartitionLog {
    /// Opens the partition and finds its end.
    pub(super) fn open(
        engine: &Engine,
        partition: Partition,
        tail_bytes_max: usize,
    ) -> Result<PartitionLog> {
        let first = match engine.get(Table::Offsets, &first_key(partition))? {
            Some(bytes) => read_u64(&bytes)?,
            None => 0,
        };
        let prefix = log_prefix(partition);
        let last = engine.prefix(Table::Log, &prefix, ScanOrder::Backward, 1)?;
        let next = match last.first() {
            Some((key, _)) => read_u64(key.get(prefix.len()..).unwrap_or_default())? + 1,
            None => first,
        };
        Ok(PartitionLog {
            partition,
            tail_bytes_max,
            state: Mutex::new(State {
                first,
                visible: next,
                next,
                tail: VecDeque::new(),
                tail_bytes: 0,
            }),
        })
    }

    /// Assigns the next offset to a record, which is not visible yet.
    pub(super) fn append(&self, record: Bytes) -> u64 {
        let mut state = self.state.lock();
        let offset = state.next;
        state.next += 1;
        state.tail_bytes += record.len();
        state.tail.push_back(record);
        while state.tail.len() > TAIL_RECORDS || state.tail_bytes > self.tail_bytes_max {
            match state.tail.pop_front() {
                Some(oldest) => state.tail_bytes -= oldest.len(),
                None => break,
            }
        }
        offset
    }

    /// Takes back offsets of records that the store refused to write.
    pub(super) fn truncate_from(&self, from: u64) {
        let mut state = self.state.lock();
        while state.next > from {
            state.next -= 1;
            if let Some(newest) = state.tail.pop_back() {
                state.tail_bytes -= newest.len();
            }
        }
    }

    /// Makes records before `next`, now durable, visible.
    pub(super) fn make_visible(&self, next: u64) {
        let mut state = self.state.lock();
        state.visible = state.visible.max(next);
    }

    /// First retained offset, and end of the visible records.
    pub(super) fn bounds(&self) -> (u64, u64) {
        let state = self.state.lock();
        (state.first, state.visible)
    }

    pub(super) fn forget_before(&self, first: u64) {
        let mut state = self.state.lock();
        state.first = state.first.max(first);
    }

    /// Reads visible records from `from` on, up to `max` and about `max_bytes` (at least one
    /// record).
    pub(super) fn read(
        &self,
        engine: &Engine,
        from: u64,
        max: usize,
        max_bytes: usize,
    ) -> Result<Vec<Record>> {
        let (from, end, recent) = {
            let state = self.state.lock();
            let from = from.max(state.first);
            let end = state.visible.min(from.saturating_add(max as u64));
            if from >= end {
                return Ok(Vec::new());
            }
            let tail_start = state.next - state.tail.len() as u64;
            let recent: Option<Vec<Bytes>> = (from >= tail_start).then(|| {
                let range = (from - tail_start) as usize..(end - tail_start) as usize;
                state.tail.range(range).cloned().collect()
            });
            (from, end, recent)
        };
        let rows: Vec<(u64, Bytes)> = match recent {
            Some(recent) => (from..).zip(recent).collect(),
            None => self.read_stored(engine, from, end)?,
        };
        let mut budget = max_bytes;
        let mut records = Vec::with_capacity(rows.len());
        for (offset, bytes) in rows {
            if bytes.len() > budget && !records.is_empty() {
                break;
            }
            budget = budget.saturating_sub(bytes.len());
            records.push(decode(self.partition, offset, &bytes)?);
        }
        Ok(records)
    }

    fn read_stored(&self, engine: &Engine, from: u64, end: u64) -> Result<Vec<(u64, Bytes)>> {
        let keys = (log_key(self.partition, from), log_key(self.partition, end));
        let limit = (end - from) as usize;
        let rows = engine.range(
            Table::Log,
            keys.0.as_ref()..keys.1.as_ref(),
            ScanOrder::Forward,
            limit,
        )?;
        rows.into_iter()
            .map(|(key, value)| Ok((read_u64(key.get(5..).unwrap_or_default())?, value)))
            .collect()
    }
}

/// Number of the topic in keys; never changes.
fn topic_number(topic: Topic) -> u8 {
    match topic {
        Topic::Message => 1,
        Topic::Dead => 2,
        Topic::Notification => 3,
        Topic::NotificationDead => 4,
        Topic::Operation => 5,
        Topic::Retry(tier) => 16u8.saturating_add(tier),
    }
}

fn log_prefix(partition: Partition) -> [u8; 5] {
    let [a, b, c, d] = partition.number.to_be_bytes();
    [topic_number(partition.topic), a, b, c, d]
}

pub(super) fn log_key(partition: Partition, offset: u64) -> Bytes {
    let mut key = [0; 13];
    key[..5].copy_from_slice(&log_prefix(partition));
    key[5..].copy_from_slice(&offset.to_be_bytes());
    Bytes::copy_from_slice(&key)
}

/// Key of a partition's first retained offset.
pub(super) fn first_key(partition: Partition) -> Vec<u8> {
    [b"f".as_slice(), &log_prefix(partition)].concat()
}

pub(super) const COMMITTED_PREFIX: &[u8] = b"c";

/// Key of a group's committed offset.
pub(super) fn committed_key(group: &str, partition: Partition) -> Vec<u8> {
    [COMMITTED_PREFIX, &log_prefix(partition), group.as_bytes()].concat()
}

/// Parses a key made by [`committed_key`] into group and partition.
pub(super) fn parse_committed_key(key: &[u8]) -> Option<(String, Partition)> {
    let rest = key.strip_prefix(COMMITTED_PREFIX)?;
    let (&topic, rest) = rest.split_first()?;
    let (number, group) = rest.split_at_checked(4)?;
    let topic = Topic::ALL.into_iter().find(|&t| topic_number(t) == topic)?;
    Some((
        String::from_utf8(group.to_vec()).ok()?,
        Partition {
            topic,
            number: u32::from_be_bytes(number.try_into().ok()?),
        },
    ))
}

pub(super) fn read_u64(bytes: &[u8]) -> Result<u64> {
    bytes
        .try_into()
        .map(u64::from_be_bytes)
        .map_err(|_| Error::corrupt(SEAM, "an offset that is not eight bytes"))
}

/// Encodes a record for the store: time, key, number of headers, each header, value; lengths
/// precede contents.
pub(super) fn encode(record: &NewRecord, appended_at: Timestamp) -> Bytes {
    let headers: usize = record
        .headers
        .iter()
        .map(|(name, value)| 8 + name.len() + value.len())
        .sum();
    let size = 8 + 4 + record.key.len() + 4 + headers + record.value.len();
    let mut buffer = BytesMut::with_capacity(size);
    buffer.put_i64(appended_at.millis());
    put_sized(&mut buffer, &record.key);
    buffer.put_u32(record.headers.len() as u32);
    for (name, value) in &record.headers {
        put_sized(&mut buffer, name.as_bytes());
        put_sized(&mut buffer, value);
    }
    buffer.put_slice(&record.value);
    buffer.freeze()
}

fn put_sized(buffer: &mut BytesMut, bytes: &[u8]) {
    buffer.put_u32(bytes.len() as u32);
    buffer.put_slice(bytes);
}

/// Append time of a stored record.
pub(super) fn appended_at(row: &[u8]) -> Option<Timestamp> {
    let millis = row.get(..8)?.try_into().ok()?;
    Some(Timestamp::from_millis(i64::from_be_bytes(millis)))
}

pub(super) fn decode(partition: Partition, offset: u64, row: &Bytes) -> Result<Record> {
    parse(partition, offset, row).ok_or_else(|| {
        Error::corrupt(
            SEAM,
            format!(
                "cannot decode record {}/{}/{offset}",
                partition.topic, partition.number
            ),
        )
    })
}

fn parse(partition: Partition, offset: u64, row: &Bytes) -> Option<Record> {
    let appended_at = appended_at(row)?;
    let mut position = 8;
    let key = take_sized(row, &mut position)?;
    let count = take_u32(row, &mut position)?;
    let mut headers = Vec::with_capacity(count.min(64));
    for _ in 0..count {
        let name = take_sized(row, &mut position)?;
        let value = take_sized(row, &mut position)?;
        headers.push((String::from_utf8(name.to_vec()).ok()?, value));
    }
    Some(Record {
        partition,
        offset,
        appended_at,
        key,
        headers,
        value: row.slice(position..),
    })
}

fn take_u32(row: &Bytes, position: &mut usize) -> Option<usize> {
    let bytes = row.get(*position..*position + 4)?.try_into().ok()?;
    *position += 4;
    Some(u32::from_be_bytes(bytes) as usize)
}

fn take_sized(row: &Bytes, position: &mut usize) -> Option<Bytes> {
    let length = take_u32(row, position)?;
    let end = position
        .checked_add(length)
        .filter(|&end| end <= row.len())?;
    let part = row.slice(*position..end);
    *position = end;
    Some(part)
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    const PARTITION: Partition = Partition {
        topic: Topic::Retry(2),
        number: 7,
    };

    proptest! {
        #[test]
        fn records_survive_storing_and_garbage_does_not_panic(
            key in proptest::collection::vec(any::<u8>(), 0..20),
            headers in proptest::collection::vec(("[a-z]{0,8}", proptest::collection::vec(any::<u8>(), 0..9)), 0..4),
            value in proptest::collection::vec(any::<u8>(), 0..40),
            cut in 0usize..60,
        ) {
            let new = NewRecord {
                partition: PARTITION,
                key: key.into(),
                headers: headers.into_iter().map(|(name, value)| (name, value.into())).collect(),
                value: value.into(),
            };
            let row = encode(&new, Timestamp::from_millis(5));
            let record = decode(PARTITION, 3, &row).unwrap();
            prop_assert_eq!(record.appended_at, Timestamp::from_millis(5));
            prop_assert_eq!((record.key, record.headers, record.value), (new.key, new.headers, new.value));
            let _ = decode(PARTITION, 3, &row.slice(cut.min(row.len())..));
        }
    }

    #[test]
    fn a_committed_key_names_its_group_and_partition() {
        let key = committed_key("carrier", PARTITION);
        assert_eq!(
            parse_committed_key(&key),
            Some(("carrier".into(), PARTITION))
        );
        assert_eq!(parse_committed_key(&key[..4]), None);
    }
}
