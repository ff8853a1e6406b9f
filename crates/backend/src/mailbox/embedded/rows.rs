//! Layout of waiting mail in the store.
//!
//! | table | key | value |
//! | --- | --- | --- |
//! | mail | user, platform, accepted_at, id | – |
//! | mail | `ff` "marker" | the marker, lost only together with the mail |
//! | mail-body | id, 0 | number of entries that need the body, and their accepted_at |
//! | mail-body | id, 1 | the body |
//! | session | "r", user | newest message that the user acknowledged |
//! | session | "w", user, platform | oldest entry and number of entries; absent if nothing waits |
//!
//! Numbers are big-endian, signed ones with the sign flipped, so that bytes sort as numbers do.

use protocol::mailbox::MailCursor;
use protocol::message::Target;
use protocol::{MessageId, Platform, Timestamp, UserId};

use super::SEAM;
use crate::{Error, Result};

/// Users are positive: no entry begins with this byte.
pub(super) const MARKER_KEY: &[u8] = b"\xffmarker";
const BOX_TAG: u8 = b'w';
const RECEIVED_TAG: u8 = b'r';

/// Summary of a mailbox, so that its entries need not be scanned.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct BoxRow {
    /// Oldest entry. Scans start here, past the tombstones of removed entries.
    pub(super) oldest: MailCursor,
    pub(super) count: u64,
}

/// Number of entries that need a body.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct CountRow {
    pub(super) count: u64,
    /// Part of the entries' keys; an acknowledgement only names the id.
    pub(super) accepted_at: Timestamp,
}

fn sortable(number: i64) -> [u8; 8] {
    (number as u64 ^ (1 << 63)).to_be_bytes()
}

fn unsortable(bytes: [u8; 8]) -> i64 {
    (u64::from_be_bytes(bytes) ^ (1 << 63)) as i64
}

fn target_bytes(target: Target) -> [u8; 9] {
    let mut bytes = [0; 9];
    bytes[..8].copy_from_slice(&target.user.get().to_be_bytes());
    bytes[8] = target.platform.number();
    bytes
}

fn read_target(bytes: &[u8]) -> Option<Target> {
    let (user, platform) = bytes.split_at_checked(8)?;
    Some(Target {
        user: UserId::new(i64::from_be_bytes(user.try_into().ok()?)).ok()?,
        platform: match platform {
            [number] => Platform::from_number(*number)?,
            _ => return None,
        },
    })
}

fn cursor_bytes(cursor: MailCursor) -> [u8; 16] {
    let mut bytes = [0; 16];
    bytes[..8].copy_from_slice(&sortable(cursor.accepted_at.millis()));
    bytes[8..].copy_from_slice(&cursor.id.get().to_be_bytes());
    bytes
}

fn read_cursor(bytes: &[u8]) -> Option<MailCursor> {
    let (accepted_at, id) = bytes.split_at_checked(8)?;
    Some(MailCursor {
        accepted_at: Timestamp::from_millis(unsortable(accepted_at.try_into().ok()?)),
        id: MessageId::new(i64::from_be_bytes(id.try_into().ok()?)).ok()?,
    })
}

pub(super) fn entry_key(target: Target, cursor: MailCursor) -> Vec<u8> {
    [target_bytes(target).as_slice(), &cursor_bytes(cursor)].concat()
}

/// First key after all entries of a target.
pub(super) fn entries_end(target: Target) -> Vec<u8> {
    let mut end = target_bytes(target);
    end[8] += 1;
    end.to_vec()
}

pub(super) fn read_entry(key: &[u8]) -> Result<(Target, MailCursor)> {
    key.split_at_checked(9)
        .and_then(|(target, cursor)| Some((read_target(target)?, read_cursor(cursor)?)))
        .ok_or_else(|| corrupt("entry", key))
}

pub(super) fn box_key(target: Target) -> Vec<u8> {
    [&[BOX_TAG], target_bytes(target).as_slice()].concat()
}

/// Start of the range of boxes strictly after the target's.
pub(super) fn boxes_after(target: Option<Target>) -> Vec<u8> {
    match target {
        // The next possible key has one zero byte more.
        Some(target) => [box_key(target).as_slice(), &[0]].concat(),
        None => vec![BOX_TAG],
    }
}

pub(super) const BOXES_END: &[u8] = &[BOX_TAG + 1];

pub(super) fn read_box_key(key: &[u8]) -> Result<Target> {
    key.split_first()
        .and_then(|(_, target)| read_target(target))
        .ok_or_else(|| corrupt("box", key))
}

pub(super) fn received_key(user: UserId) -> Vec<u8> {
    [&[RECEIVED_TAG], user.get().to_be_bytes().as_slice()].concat()
}

pub(super) fn read_received(value: &[u8]) -> Result<MessageId> {
    let id = value.try_into().ok().map(i64::from_be_bytes);
    id.and_then(|id| MessageId::new(id).ok())
        .ok_or_else(|| corrupt("received message", value))
}

impl BoxRow {
    pub(super) fn to_bytes(self) -> Vec<u8> {
        [&cursor_bytes(self.oldest)[..], &self.count.to_be_bytes()].concat()
    }

    pub(super) fn read(bytes: &[u8]) -> Result<BoxRow> {
        bytes
            .split_at_checked(16)
            .and_then(|(oldest, count)| {
                Some(BoxRow {
                    oldest: read_cursor(oldest)?,
                    count: u64::from_be_bytes(count.try_into().ok()?),
                })
            })
            .ok_or_else(|| corrupt("box", bytes))
    }
}

pub(super) fn count_key(id: MessageId) -> Vec<u8> {
    [&id.get().to_be_bytes()[..], &[0]].concat()
}

pub(super) fn body_key(id: MessageId) -> Vec<u8> {
    [&id.get().to_be_bytes()[..], &[1]].concat()
}

/// Parses the id; true for a body's key, false for a count's.
pub(super) fn read_body_key(key: &[u8]) -> Result<(MessageId, bool)> {
    key.split_at_checked(8)
        .and_then(|(id, kind)| {
            let id = MessageId::new(i64::from_be_bytes(id.try_into().ok()?)).ok()?;
            Some((id, kind == [1]))
        })
        .ok_or_else(|| corrupt("body", key))
}

impl CountRow {
    pub(super) fn to_bytes(self) -> Vec<u8> {
        [
            self.count.to_be_bytes(),
            sortable(self.accepted_at.millis()),
        ]
        .concat()
    }

    pub(super) fn read(bytes: &[u8]) -> Result<CountRow> {
        bytes
            .split_at_checked(8)
            .and_then(|(count, accepted_at)| {
                Some(CountRow {
                    count: u64::from_be_bytes(count.try_into().ok()?),
                    accepted_at: Timestamp::from_millis(unsortable(accepted_at.try_into().ok()?)),
                })
            })
            .ok_or_else(|| corrupt("count", bytes))
    }
}

pub(super) fn read_marker(bytes: &[u8]) -> Result<u64> {
    let marker = bytes.try_into().map_err(|_| corrupt("marker", bytes))?;
    Ok(u64::from_be_bytes(marker))
}

fn corrupt(kind: &str, bytes: &[u8]) -> Error {
    Error::corrupt(SEAM, format!("a {kind} row cannot be read: {bytes:02x?}"))
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn target(user: i64, platform: Platform) -> Target {
        Target {
            user: UserId::new(user).expect("positive"),
            platform,
        }
    }

    fn cursor(at: i64, id: i64) -> MailCursor {
        MailCursor {
            accepted_at: Timestamp::from_millis(at),
            id: MessageId::new(id).expect("positive"),
        }
    }

    proptest! {
        #[test]
        fn keys_sort_as_cursors_do(a in any::<i64>(), b in any::<i64>(), i in 1..i64::MAX, j in 1..i64::MAX) {
            let target = target(7, Platform::Bot);
            let (one, other) = (cursor(a, i), cursor(b, j));
            let (key, end) = (entry_key(target, one), entries_end(target));
            prop_assert_eq!(one.cmp(&other), key.cmp(&entry_key(target, other)));
            prop_assert!(key < end);
            prop_assert_eq!(read_entry(&key).expect("just made"), (target, one));
        }
    }

    #[test]
    fn half_a_row_is_corrupt() {
        let row = BoxRow {
            oldest: cursor(1, 2),
            count: 3,
        };
        let bytes = row.to_bytes();
        assert_eq!(BoxRow::read(&bytes).expect("whole"), row);
        assert!(BoxRow::read(&bytes[..20]).is_err());
        assert!(CountRow::read(&bytes[..7]).is_err());
        assert!(read_entry(&bytes[..5]).is_err());
    }

    #[test]
    fn the_walk_of_boxes_goes_on_strictly_after() {
        let target = target(7, Platform::Ios);
        assert!(box_key(target) < boxes_after(Some(target)));
        assert!(boxes_after(None) <= box_key(target));
        assert!(box_key(target).as_slice() < BOXES_END);
        assert_eq!(read_box_key(&box_key(target)).expect("just made"), target);
    }
}
